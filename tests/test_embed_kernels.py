"""Kernels against plain torch; Triton's are interpreted on a CPU, compiled on a GPU."""

import encoding
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoding import FAMILIES, DevicePlan, TokenSpan, load_encoder, pack_spans
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import in_ci

from abag.embed.kernels import triton_kernels as kernels
from abag.embed.kernels.attention import Attention, dense_bias, group_lengths
from abag.embed.kernels.ops import HalfOps, PlainOps, Rotary

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NEAR = 1e-5 if HERE.type == "cpu" else 2e-3  # a GPU multiplies fp32 in TF32
FUSED = kernels.FusedOps(HERE)
PLAIN = PlainOps()


def batch_of(lengths):
    spans = [TokenSpan(np.zeros(n, np.int32), np.zeros((n, 1), np.float32)) for n in lengths]
    return pack_spans(list(enumerate(spans)))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


def far(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def one_at_a_time(qkv, lengths, heads, scale, bias=None):
    """Attention of each sequence alone, written out: (T, H * D)."""
    out = []
    for qkv_of_sequence in qkv.view(len(qkv), 3, heads, -1).split(lengths):
        q, k, v = qkv_of_sequence.permute(1, 2, 0, 3)
        scores = q @ k.mT if bias is None else q @ k.mT + dense_bias(bias, len(qkv_of_sequence))
        out.append(((scores * scale).softmax(-1) @ v).transpose(0, 1).flatten(1))
    return torch.cat(out)


def attend(attention, qkv, lengths):
    return attention(qkv, attention.geometry(batch_of(lengths).offsets, HERE, qkv.dtype))


@pytest.mark.parametrize("name", ["triton", "sdpa"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "lengths", [[1], [64], [65, 1, 130], [300, 17], [16, 15, 14], [60, 59, 60, 58, 57], [9, 9, 9]]
)
def test_packed_attention_equals_one_sequence_at_a_time(lengths, biased, name):
    heads = 2
    width = 32
    bias = draw(heads, 257, seed=1) if biased else None
    qkv = draw(sum(lengths), 3 * heads * width)
    ours = attend(Attention(name, heads, 0.5, bias), qkv, lengths)
    assert far(ours, one_at_a_time(qkv, lengths, heads, 0.5, bias)) < NEAR


@pytest.mark.ci
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("descriptors", [True, False])
@pytest.mark.parametrize("width", [24, 32, *in_ci(8, 40)])
def test_attention_of_any_width_equals_one_sequence_at_a_time(
    width, descriptors, biased, monkeypatch
):
    monkeypatch.setattr("abag.embed.kernels.attention.loads_by_descriptors", lambda: descriptors)
    lengths = [300, 17, 1, 64]
    bias = draw(2, 257, seed=1) if biased else None
    qkv = draw(sum(lengths), 3 * 2 * width)
    ours = attend(Attention("triton", 2, 0.5, bias), qkv, lengths)
    assert far(ours, one_at_a_time(qkv, lengths, 2, 0.5, bias)) < NEAR


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("descriptors", [True, False])
def test_queries_rotated_while_loading_equal_those_rotated_before(descriptors, biased, monkeypatch):
    from abag.embed.encoders.packed import rotary_tables

    monkeypatch.setattr("abag.embed.kernels.attention.loads_by_descriptors", lambda: descriptors)
    lengths = [90, 1, 64, 17]
    heads = 2
    width = 32
    angles = rotary_tables(90, width, HERE)
    positions = torch.cat([torch.arange(n) for n in lengths]).to(HERE)
    qkv = draw(sum(lengths), 3 * heads * width)
    bias = draw(2 * heads * width, seed=1) if biased else None
    query_bias, key_bias = (None, None) if bias is None else bias.chunk(2)
    before = PLAIN.rotary_(qkv.clone(), Rotary(positions, *angles), 2 * heads, bias)
    PLAIN.rotary_(qkv[:, heads * width :], Rotary(positions, *angles), heads, key_bias)
    attention = Attention("triton", heads, 0.5, rotary=angles)
    assert attention.rotates_queries
    assert not Attention("sdpa", heads, 0.5, rotary=angles).rotates_queries
    theirs = one_at_a_time(before, lengths, heads, 0.5)
    ours = attention(
        qkv, attention.geometry(batch_of(lengths).offsets, HERE, qkv.dtype), query_bias
    )
    assert far(ours, theirs) < NEAR


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.booleans(), st.integers(0, 9))
def test_grouped_attention_equals_one_sequence_at_a_time_for_any_lengths(lengths, biased, seed):
    bias = draw(3, 257, seed=seed + 1) if biased else None
    qkv = draw(sum(lengths), 3 * 3 * 8, seed=seed)
    ours = attend(Attention("sdpa", 3, 0.3, bias), qkv, lengths)
    assert far(ours, one_at_a_time(qkv, lengths, 3, 0.3, bias)) < NEAR


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=200), st.sampled_from([0.0, 0.05]))
def test_groups_partition_the_sequences_and_pad_at_most_the_given_share(lengths, most):
    lengths = np.array(lengths, np.int32)
    groups = group_lengths(lengths, most)
    assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
    for members in groups:
        assert lengths[members[0]] == lengths[members].max()
        assert lengths[members].min() >= (1 - most) * lengths[members[0]]


def test_attention_one_position_off_is_far_outside_the_tolerance():
    qkv = draw(70, 3 * 2 * 32)
    bias = draw(2, 257, seed=1)
    attention = Attention("triton", 2, 1.0, bias)
    off = Attention("triton", 2, 1.0, bias.roll(1, dims=1))
    assert far(attend(off, qkv, [70]), attend(attention, qkv, [70])) > 1e-2


@pytest.mark.parametrize("blocks", [(64, 64), (128, 64), (64, 128), (128, 128), (32, 16)])
def test_tiled_bias_holds_the_dense_bias_of_every_tile(blocks):
    m, n = blocks
    bias = draw(3, 257)
    tiled = kernels.tile_bias(bias, m, n)
    dense = dense_bias(bias, 1024)
    reach = (tiled.shape[2] - n) // 2
    for i in range(0, 1024, m):
        for j in range(0, 1024, n):
            at = min(max(j - i, -reach), reach) + reach
            torch.testing.assert_close(tiled[:, :, at : at + n], dense[:, i : i + m, j : j + n])


@pytest.mark.parametrize("width", [64, 80, 1280])
def test_norms_equal_their_plain_versions(width):
    x = draw(5, width)
    weight, bias, shift = (draw(width, seed=seed) for seed in (1, 2, 3))
    x1 = x.clone()
    x2 = x.clone()
    delta = draw(5, width, seed=4)
    ours, theirs = (
        o.add_rms_norm_(y, delta, 4.0, weight, 1e-6) for o, y in ((FUSED, x1), (PLAIN, x2))
    )
    assert far(ours, theirs) < NEAR
    assert torch.equal(x1, x2)
    for factors in [(weight, bias), (None, None)]:
        exact = PLAIN.layer_norm(x, shift, factors, 1e-5)
        for ops in (FUSED, HalfOps()):
            assert far(ops.layer_norm(x, shift, factors, 1e-5), exact) < NEAR


@pytest.mark.parametrize("width", [16, 24])
@pytest.mark.parametrize("step", ["rotary", "with a bias", "after a norm"])
def test_rotary_equals_its_plain_version(step, width):
    from abag.embed.encoders.packed import rotary_tables

    heads = 3
    positions = torch.tensor([0, 1, 2, 39, 0, 7], dtype=torch.int32, device=HERE)
    rotary = Rotary(positions, *rotary_tables(40, width, HERE))
    qkv = draw(6, 3 * heads * width) + 3
    per_width = draw(2 * heads * width, seed=1)
    bias = per_width if step == "with a bias" else None
    *ours, theirs = (
        ops.norm_rotary_(qkv.clone(), per_width, 1e-5, rotary, heads)
        if step == "after a norm"
        else ops.rotary_(qkv.clone(), rotary, 2 * heads, bias)
        for ops in (FUSED, HalfOps(), PLAIN)
    )
    if bias is not None:
        summed = qkv + F.pad(bias, (0, heads * width))
        assert torch.equal(PLAIN.rotary_(summed, rotary, 2 * heads), theirs)
    for rotated in ours:
        assert far(rotated, theirs) < NEAR
        assert torch.equal(rotated[:, 2 * heads * width :], qkv[:, 2 * heads * width :])


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize(("tokens", "width", "has_bias"), [(5, 96, False), (1, 513, True)])
def test_a_gate_equals_its_plain_version(tokens, width, has_bias, activation):
    # far out on both sides, too
    x = 9 * draw(tokens, 32)
    weight = draw(2 * width, 32, seed=1)
    bias = 9 * draw(2 * width, seed=2) if has_bias else None
    ours, theirs = (o.linear_gated(x, weight, activation, bias) for o in (FUSED, PLAIN))
    assert far(ours, theirs) < NEAR
    swapped = PLAIN.linear_gated(x, weight.roll(width, 0), activation, bias)
    assert far(swapped, theirs) > 0.1
    assert not has_bias or far(PLAIN.linear_gated(x, weight, activation), theirs) > 0.1


def test_activations_equal_their_plain_versions():
    x = draw(7, 24)
    weight = draw(48, 24, seed=1)
    bias = draw(48, seed=2)
    assert far(FUSED.linear_relu(x, weight), PLAIN.linear_relu(x, weight)) < NEAR
    assert far(FUSED.linear_gelu(x, weight, bias), PLAIN.linear_gelu(x, weight, bias)) < NEAR
    half = [t.bfloat16() for t in (x, weight, bias)]
    assert far(FUSED.linear_gelu(*half).float(), PLAIN.linear_gelu(*half).float()) < 8e-3


@pytest.mark.parametrize("family", [n for n, f in FAMILIES.items() if "packed" in f.backends])
def test_an_encoder_with_triton_equals_the_same_without(family, tmp_path, monkeypatch):
    identity = encoding.random_encoder(tmp_path, family)
    plan = DevicePlan(HERE, "fp32", "a test")
    batch = encoding.batch_of(identity, ("EVQLVE", "MX"))
    plain = load_encoder(identity, plan)(batch)
    # heads this small only fit the interpreter
    chosen = "triton" if HERE.type == "cpu" else "sdpa", FUSED
    monkeypatch.setattr("abag.embed.encoders.packed.load_kernels", lambda *_, **__: chosen)
    assert far(load_encoder(identity, plan)(batch), plain) < NEAR
