"""Tests that need a GPU; run by hand: pytest -m gpu tests/test_embed_gpu.py."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoding import (
    TINY_CONFIG,
    change_weights,
    identify,
    load_encoder,
    pack_spans,
    plan_device,
    save_random_checkpoint,
)

from abag.embed.encode import PoolingSink, encode_stream
from abag.embed.kernels.cublaslt import wide_products

pytestmark = pytest.mark.gpu
WIDE = {
    "t5": {**TINY_CONFIG["tiny-igt5"], "d_model": 128, "d_kv": 64, "num_heads": 2},
    "esm": {**TINY_CONFIG["tiny-esm2"], "hidden_size": 128, "num_attention_heads": 2},
    "heads of 24": {**TINY_CONFIG["tiny-esm2"], "hidden_size": 96, "num_attention_heads": 4},
}


def wide_encoder(tmp_path, config):
    return identify(str(save_random_checkpoint(tmp_path / "wide", config, 1)), "antigen")


def random_batch(layout, rng):
    lengths = rng.integers(1, 600, rng.integers(1, 20))
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    chains = ["".join(rng.choice(letters, n)) for n in lengths]
    return pack_spans([(i, p) for i, c in enumerate(chains) for p in layout.spans((c,))])


@pytest.mark.parametrize("family", ["t5", "esm"])
def test_no_kernel_is_recompiled_over_1000_random_batches(family, tmp_path):
    from abag.embed.kernels import triton_kernels as kernels

    identity = wide_encoder(tmp_path, WIDE[family])
    encoder = load_encoder(identity, plan_device("cuda"))
    rng = np.random.default_rng(0)
    for _ in range(5):
        encoder(random_batch(identity.layout, rng))
    jitted = [v for k, v in vars(kernels).items() if k.endswith("_kernel")]

    def compiled():
        return sum(len(cache[0]) for kernel in jitted for cache in kernel.device_caches.values())

    before = compiled()
    assert before > 0
    for _ in range(1000):
        encoder(random_batch(identity.layout, rng))
    assert compiled() == before


@pytest.mark.parametrize("family", WIDE)
@pytest.mark.parametrize("attention", ["triton", "varlen", "sdpa"])
def test_every_attention_kernel_agrees_with_fp32(family, attention, tmp_path):
    if (family, attention) == ("t5", "varlen"):
        return  # takes no bias: refused, tested without a GPU
    identity = wide_encoder(tmp_path, WIDE[family])
    batch = random_batch(identity.layout, np.random.default_rng(1))
    exact = load_encoder(identity, plan_device("cpu"))(batch)
    ours = load_encoder(identity, plan_device("cuda"), attention=attention)(batch).float().cpu()
    assert float((ours - exact).norm() / exact.norm()) < 2e-2
    wide = load_encoder(identity, plan_device("cuda", "fp32"))(batch).cpu()
    torch.testing.assert_close(wide, exact, rtol=1e-4, atol=1e-4)


def test_a_batch_with_more_than_2_31_activations_is_as_exact_as_its_parts(tmp_path):
    # as IgT5 has, with the largest default batch
    config = {**WIDE["t5"], "d_ff": 16384, "num_layers": 1}
    identity = wide_encoder(tmp_path, config)
    encoder = load_encoder(identity, plan_device("cuda"))
    rng = np.random.default_rng(0)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    chains = ["".join(rng.choice(letters, 998)) for _ in range(136)]
    spans = [(i, p) for i, c in enumerate(chains) for p in identity.layout.spans((c,))]
    whole = pack_spans(spans)
    assert len(whole.ids) * 16384 > 2**31
    parts = torch.cat([encoder(pack_spans(half)) for half in (spans[:68], spans[68:])])
    torch.testing.assert_close(encoder(whole), parts, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gelu_of_mostly_negative_values_is_as_close_to_fp32_as_in_transformers(precision, tmp_path):
    # as in trained weights; random ones hide the error of GELU's tanh form
    folder = save_random_checkpoint(tmp_path / "esm", WIDE["esm"], 1)

    def trained(weights):
        for name in weights:
            if name.endswith("intermediate.dense.bias"):
                weights[name] -= 1.3
            elif ".attention." not in name and name.endswith("output.dense.weight"):
                weights[name] *= 30
        return weights

    change_weights(folder, trained)
    identity = identify(str(folder), "antigen")
    batch = random_batch(identity.layout, np.random.default_rng(1))
    exact = load_encoder(identity, plan_device("cpu"))(batch)
    ours, theirs = (
        load_encoder(identity, plan_device("cuda", precision), backend=backend)(batch)
        for backend in ("packed", "reference")
    )
    error, their_error = ((x.float().cpu() - exact).norm() / exact.norm() for x in (ours, theirs))
    assert error <= their_error


@pytest.mark.parametrize("tokens", [4096, 5001, 16384])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_cublaslt_equal_those_of_torch(tokens, dtype):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("only Hopper GPUs use them")
    device = torch.device("cuda", torch.cuda.current_device())
    wide = wide_products(device)
    generator = torch.Generator(device).manual_seed(tokens)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    for inputs, outputs in ((1280, 5120), (1024, 1024), (320, 960)):
        x = draw(tokens, inputs)
        weight = draw(outputs, inputs) / inputs**0.5
        bias = draw(outputs)
        plain = F.linear(x.float(), weight.float())
        stream = draw(tokens, outputs)
        expected = {
            "none": (plain, plain + bias),
            "relu": (plain.relu(), (plain + bias).relu()),
            "gelu": (F.gelu(plain, approximate="tanh"), F.gelu(plain + bias, approximate="tanh")),
        }
        near = {"rtol": 2e-2, "atol": 2e-2}
        for epilogue, (without, with_bias) in expected.items():
            ours = wide(x, weight, epilogue=epilogue)
            torch.testing.assert_close(ours.float(), without, **near)
            ours = wide(x, weight, bias, epilogue=epilogue)
            torch.testing.assert_close(ours.float(), with_bias, **near)
        total = stream.float() + plain
        assert wide(x, weight, add_to=stream) is stream
        torch.testing.assert_close(stream.float(), total, **near)
        # left to torch: fewer outputs than inputs, few tokens, unaligned or mixed types
        assert wide(draw(tokens, outputs + 8), draw(inputs, outputs + 8)) is None
        assert wide(x[:100], weight) is None
        assert wide(x[1:], weight) is None or x[1:].data_ptr() % 256 == 0
        assert wide(x, weight.float()) is None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("family", ["t5", "esm"])
def test_the_second_gpu_gives_the_vectors_of_the_first(family, tmp_path):
    identity = wide_encoder(tmp_path, WIDE[family])
    chains = [("MKV" * n,) for n in (7, 90, 300)]

    def encode_on(device):
        plan = plan_device(device)
        encoder = load_encoder(identity, plan)
        sink = PoolingSink(encoder, plan, "float32")
        batches = encode_stream(sink, identity.layout, chains, 1000)
        return [pooled.stored_SPD for _, pooled in batches]

    first = encode_on("cuda:0")
    second = encode_on("cuda:1")
    assert all(np.array_equal(x_SPD, y_SPD) for x_SPD, y_SPD in zip(first, second, strict=True))


def test_the_doctor_passes_on_this_gpu():
    from abag.embed.doctor import examine

    checks = list(examine(antibody_encoder="tiny-igt5", antigen_encoder="tiny-esm2"))
    output = "\n".join(map(str, checks))
    assert [check for check in checks if check.state == "FAIL"] == [], output
    assert torch.cuda.get_device_name() in output, output


@pytest.mark.parametrize(("kind", "name"), [("antibody", "igt5"), ("antigen", "esm2-650m")])
def test_heads_as_wide_as_the_real_ones_agree_with_the_reference(kind, name, tmp_path):
    from abag.embed.doctor import measure_parity, reduced_checkpoint

    checkpoint = reduced_checkpoint(name, tmp_path / "reduced")
    distance, limit = measure_parity(checkpoint, kind, plan_device("cuda"))
    assert distance <= limit
