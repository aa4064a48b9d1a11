"""fp16 on GPUs without bf16: T5's weights are scaled so that no product overflows."""

import numpy as np
import pytest
import torch
from encoding import (
    CPU,
    FAMILIES,
    DevicePlan,
    batch_of,
    change_weights,
    identify,
    load_encoder,
    pooled,
    pooled_layers,
    save_random_checkpoint,
)
from marks import in_ci, needs_antiberty
from safetensors.numpy import load_file
from transformers import T5EncoderModel

from abag.embed.kernels.ops import HalfOps, PlainOps

FP16 = DevicePlan(torch.device("cpu"), "fp16", "as on a T4")


def chains(count):
    rng = np.random.default_rng(0)
    letters = list("ACDEFGHIKLMNPQRSTVWY")
    drawn = []
    for _ in range(count):
        lengths = rng.integers(20, 70, 2)
        drawn.append(tuple("".join(rng.choice(letters, n)) for n in lengths))
    return drawn


def identity_of(tmp_path, family, changes=None, **factors):
    """A random checkpoint, with the weights that end with a name multiplied by its factor."""
    config = {**FAMILIES[family].reduced_config, **(changes or {})}
    folder = save_random_checkpoint(tmp_path / family, config, seed=1)
    change_weights(
        folder,
        lambda weights: {
            key: x * factors.get(key.split(".")[-2], 1.0) for key, x in weights.items()
        },
    )
    return identify(str(folder), "antibody")


def batches(identity, count=3):
    return [batch_of(identity, chain) for chain in chains(count)]


def means(encoder, identity):
    return torch.cat([pooled(encoder, batch) for batch in batches(identity)])[:, 0]


def transformers_as_it_loads(identity, *, keeps_wo=True):
    """transformers' T5 in fp16, which keeps `wo` in fp32 by itself."""
    model = T5EncoderModel.from_pretrained(identity.checkpoint.folder, dtype=torch.float16).eval()
    if not keeps_wo:
        model.half()

    @torch.no_grad()
    def encode(batch):
        return model(input_ids=torch.from_numpy(batch.ids)[None].long()).last_hidden_state[0]

    return encode


def mean_distance(ours, exact):
    return float(((ours - exact).norm(dim=1) / exact.norm(dim=1)).mean())


@pytest.mark.parametrize(
    "factors",
    [{}, {"wo": 3e4}, {"o": 1e5}, {"wi": 1e5}, {"v": 1e5}, {"wi": 1e3, "wo": 1e6}],
    ids=str,
)
def test_t5_in_fp16_is_as_close_to_fp32_as_transformers_with_its_fp32_products(tmp_path, factors):
    identity = identity_of(tmp_path, "t5", **factors)
    exact = means(load_encoder(identity, CPU), identity)
    ours = mean_distance(means(load_encoder(identity, FP16), identity), exact)
    theirs = means(transformers_as_it_loads(identity), identity)
    if theirs.isfinite().all():  # transformers keeps only one of the four products in fp32
        assert ours <= mean_distance(theirs, exact)
    assert ours < 1e-3


def test_the_reference_does_not_round_the_weights_it_keeps_in_fp32(tmp_path):
    identity = identity_of(tmp_path, "t5", wo=1e9)  # fp16 would be infinite
    stored = load_file(tmp_path / "t5" / "model.safetensors")
    model = load_encoder(identity, FP16, backend="reference")._model
    for name, parameter in model.named_parameters():
        if parameter.dtype is torch.float32:
            assert name.endswith(".wo.weight")
            assert (parameter.numpy() == stored[name]).all()
        else:
            assert not name.endswith(".wo.weight")


def test_without_a_scale_t5_in_fp16_is_far_from_fp32(tmp_path):
    """So that the closeness of the test above says something."""
    identity = identity_of(tmp_path, "t5", wo=3e4)
    exact = means(load_encoder(identity, CPU), identity)
    unscaled = means(transformers_as_it_loads(identity, keeps_wo=False), identity)
    assert not mean_distance(unscaled, exact) < 0.05  # finite, because transformers clamps


@pytest.mark.parametrize("projection", ["gated-gelu", *in_ci("gated-silu")])
@pytest.mark.parametrize(
    "factors", [{"wo": 3e4}, {"wi_0": 1e-3}, *in_ci({}, {"wi_1": 1e5}, {"wi_0": 3e3})]
)
def test_gated_t5_in_fp16_is_as_close_to_fp32_as_transformers(tmp_path, factors, projection):
    identity = identity_of(tmp_path, "ankh", {"feed_forward_proj": projection}, **factors)
    exact = means(load_encoder(identity, CPU), identity)
    ours = mean_distance(means(load_encoder(identity, FP16), identity), exact)
    theirs = means(load_encoder(identity, FP16, backend="reference"), identity)
    if theirs.isfinite().all():
        assert ours <= mean_distance(theirs, exact)
    assert ours < 2e-3


def test_a_layers_pooling_does_not_show_the_scale_of_the_products(tmp_path):
    identity = identity_of(tmp_path, "t5", wo=3e4)
    (batch,) = batches(identity, 1)
    half, full = (
        pooled_layers(load_encoder(identity, plan), batch, [1, 3]) for plan in (FP16, CPU)
    )
    for layer in (1, 3):
        assert mean_distance(half[layer][:, 0], full[layer][:, 0]) < 1e-3


OTHERS = [
    name
    for name, family in FAMILIES.items()
    if "packed" in family.backends and not family.biased_attention
]
QUICK = ["esm", "roformer"]
"""Those of the test line of the README: all share the operations in fp16."""


@pytest.mark.parametrize(
    "family",
    [
        *QUICK,
        *in_ci(*(name for name in OTHERS if name not in (*QUICK, "bert"))),
        pytest.param("bert", marks=[pytest.mark.ci, needs_antiberty]),
    ],
)
def test_other_families_in_fp16_are_as_close_to_fp32_as_transformers(tmp_path, family):
    name = "antiberty" if family == "bert" else None
    identity = identify(name, "antibody") if name else identity_of(tmp_path, family)
    exact = means(load_encoder(identity, CPU), identity)
    theirs = mean_distance(
        means(load_encoder(identity, FP16, backend="reference"), identity), exact
    )
    encoder = load_encoder(identity, FP16)
    for ops in [PlainOps(), HalfOps()]:
        encoder._ops = ops
        ours = mean_distance(means(encoder, identity), exact)
        assert ours <= theirs
        assert ours < 2e-3
