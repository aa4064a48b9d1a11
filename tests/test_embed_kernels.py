"""Triton kernels against their plain torch versions: interpreted on a CPU, compiled on a GPU."""

import numpy as np
import pytest
import torch

from abag.embed.kernels import triton_kernels as kernels
from abag.embed.kernels.attention import Attention, dense_bias, query_tiles
from abag.embed.kernels.ops import PlainOps
from abag.embed.packing.batches import pack_spans
from abag.embed.packing.tokens import TokenSpan

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NEAR = 1e-5 if HERE.type == "cpu" else 2e-3  # a GPU multiplies fp32 in TF32
FUSED, PLAIN = kernels.FusedOps(), PlainOps()


def batch_of(lengths):
    spans = [TokenSpan(np.zeros(n, np.int32), np.zeros((n, 1), np.float32)) for n in lengths]
    return pack_spans(list(enumerate(spans)))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


def far(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("lengths", [[1], [64], [65, 1, 130], [300, 17], [16, 15, 14]])
def test_packed_attention_equals_one_sequence_at_a_time(lengths, biased):
    heads, width = 2, 32
    bias = draw(heads, 257, seed=1) if biased else None
    qkv = draw(sum(lengths), 3 * heads * width)
    fast = Attention("triton", heads, 0.5, bias)
    plain = Attention("sdpa", heads, 0.5, bias)
    ours = fast(qkv, fast.geometry(batch_of(lengths), HERE))
    theirs = plain(qkv, plain.geometry(batch_of(lengths), HERE))
    assert far(ours, theirs) < NEAR


def test_attention_one_position_off_is_far_outside_the_tolerance():
    qkv = draw(70, 3 * 2 * 32)
    bias = draw(2, 257, seed=1)
    attention = Attention("triton", 2, 1.0, bias)
    off = Attention("triton", 2, 1.0, bias.roll(1, dims=1))
    geometry = attention.geometry(batch_of([70]), HERE)
    assert far(off(qkv, geometry), attention(qkv, geometry)) > 1e-2


@pytest.mark.parametrize("blocks", [(64, 64), (128, 64), (64, 128), (128, 128), (32, 16)])
def test_tiled_bias_holds_the_dense_bias_of_every_tile(blocks):
    m, n = blocks
    bias = draw(3, 257)
    tiled, dense = kernels.tile_bias(bias, m, n), dense_bias(bias, 1024)
    reach = (tiled.shape[2] - n) // 2
    for i in range(0, 1024, m):
        for j in range(0, 1024, n):
            at = min(max(j - i, -reach), reach) + reach
            torch.testing.assert_close(tiled[:, :, at : at + n], dense[:, i : i + m, j : j + n])


def test_query_tiles_cover_every_token_once_within_its_own_sequence():
    offsets = np.array([0, 1, 65, 65 + 64, 200], dtype=np.int32)
    first, start, stop = query_tiles(offsets, 64)
    covered = [t for f, e in zip(first, stop, strict=True) for t in range(f, min(f + 64, e))]
    assert covered == list(range(200))
    assert set(zip(start, stop, strict=True)) == {(0, 1), (1, 65), (65, 129), (129, 200)}


@pytest.mark.parametrize("width", [64, 80, 1280])
def test_norms_equal_their_plain_versions(width):
    x, weight, bias, shift = (draw(5, width), *(draw(width, seed=s) for s in (1, 2, 3)))
    x1, x2, delta = x.clone(), x.clone(), draw(5, width, seed=4)
    ours, theirs = (o.add_rms_norm_(y, delta, weight, 1e-6) for o, y in ((FUSED, x1), (PLAIN, x2)))
    assert far(ours, theirs) < NEAR
    assert torch.equal(x1, x2)
    ours = FUSED.layer_norm(x, shift, weight, bias, 1e-5)
    assert far(ours, PLAIN.layer_norm(x, shift, weight, bias, 1e-5)) < NEAR


def test_rotary_equals_its_plain_version():
    from abag.embed.families.packed_esm import rotary_tables

    heads, width = 3, 16
    cos, sin = rotary_tables(40, width, HERE)
    positions = torch.tensor([0, 1, 2, 39, 0, 7], dtype=torch.int32, device=HERE)
    qkv = draw(6, 3 * heads * width)
    bias = draw(2 * heads * width, seed=1)
    ours = FUSED.rotary_(qkv.clone(), bias, positions, cos, sin, heads)
    theirs = PLAIN.rotary_(qkv.clone(), bias, positions, cos, sin, heads)
    assert far(ours, theirs) < NEAR
    assert torch.equal(ours[:, 2 * heads * width :], qkv[:, 2 * heads * width :])


def test_activations_equal_their_plain_versions():
    x, weight, bias = draw(7, 24), draw(48, 24, seed=1), draw(48, seed=2)
    assert far(FUSED.linear_relu(x, weight), PLAIN.linear_relu(x, weight)) < NEAR
    assert far(FUSED.linear_gelu(x, weight, bias), PLAIN.linear_gelu(x, weight, bias)) < NEAR
