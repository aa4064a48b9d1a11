"""The kernels of stacked heads against their plain twins: interpreted on a CPU, else compiled."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abag.head.model import layers
from abag.head.model.layers import StackedLayers
from abag.head.model.product_kernels import WIDEST_TILE, gathered_product
from abag.head.model.triton_kernels import norm_gelu
from abag.head.model.vector_tables import Rows, gathered

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXAMPLES = 25 if HERE.type == "cpu" else 8  # each shape is compiled


def draw_block(feeds, shared, pairs, width, rates, seed=0):
    """Return a product and the parameters of a block, all with gradients, and noise."""
    torch.manual_seed(seed)
    members = feeds * shared
    y = torch.randn(feeds, pairs, shared, width) * 3 + 1
    bias, gain, shift = torch.randn(3, members, width).unbind(0)
    tensors = [x.to(HERE).requires_grad_() for x in (y, bias, gain + 1, shift)]
    noise = torch.rand(pairs, width, device=HERE) if max(rates) > 0 else None
    return tensors, noise, torch.tensor(rates, device=HERE)


def plain(y, bias, gain, shift, noise, rate):
    """Do what the layers do, one after the other."""
    x = layers._members_apart(y) + bias[:, None]
    x = torch.nn.functional.layer_norm(x, x.shape[-1:]) * gain[:, None] + shift[:, None]
    x = torch.nn.functional.gelu(x)
    if noise is None:
        return x
    return x * (noise >= rate[:, None, None]) / (1 - rate[:, None, None])


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    feeds=st.integers(1, 3),
    shared=st.integers(1, 3),
    pairs=st.integers(1, 70),
    width=st.sampled_from([1, 3, 16, 40, 320]),
    dropped=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_fused_block_and_its_gradients_equal_the_plain_layers(
    feeds, shared, pairs, width, dropped, half, seed
):
    rates = [0.5 * dropped * k / 9 for k in range(feeds * shared)]
    inputs, noise, rate = draw_block(feeds, shared, pairs, width, rates, seed)
    if half:
        inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    ours, theirs = norm_gelu(*inputs, noise, rate)[0], plain(*inputs, noise, rate)
    assert ours.dtype == inputs[0].dtype
    near = 8e-3 if half else 1e-4  # what rounding the result to bf16 costs
    torch.testing.assert_close(ours.float(), theirs, rtol=near, atol=1e-4)
    weight = torch.randn_like(theirs).bfloat16().float()  # exact in both
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        # one output a LayerNorm is all rounding: its gradients are the noise of 1 / sqrt(eps)
        torch.testing.assert_close(a, b, rtol=max(1e-3, near), atol=2e-3)


def test_the_operator_keeps_torchs_rules():
    inputs, noise, rate = draw_block(2, 2, 40, 16, [0.0, 0.1, 0.2, 0.5])
    torch.library.opcheck(norm_gelu, (*inputs, noise, rate), atol=1e-4, rtol=1e-4)


def draw_rows(members, pairs, widths, seed=0):
    """Return both sides' tables and the rows that each head reads of them."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if HERE.type == "cuda" else torch.float32
    return [
        Rows(
            torch.randn(size, width, device=HERE).to(dtype),
            torch.randint(size, (members, pairs), device=HERE),
        )
        for size, width in zip((50, 7), widths, strict=True)
    ]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    members=st.integers(1, 3),
    pairs=st.sampled_from([1, 40, 65, 130]),
    widths=st.tuples(*[st.sampled_from([1, 20, 64, 130])] * 2),
    outer=st.sampled_from([1, 40, 161, 320]),
    seed=st.integers(0, 99),
)
def test_products_that_gather_equal_those_of_gathered_vectors(members, pairs, widths, outer, seed):
    antibody, antigen = draw_rows(members, pairs, widths, seed)
    weight = torch.randn(members, outer, sum(widths), device=HERE).to(antibody.table_ND.dtype)
    weight.requires_grad_()
    ours = gathered_product(weight, *antibody, *antigen)
    x_MBI = torch.cat([gathered(antibody), gathered(antigen)], -1)
    exact = weight.detach().double().requires_grad_()
    theirs = x_MBI.double() @ exact.transpose(1, 2)
    dy = torch.randn_like(ours)
    pairs_of = [
        (ours, theirs),
        (
            torch.autograd.grad(ours, weight, dy)[0],
            torch.autograd.grad(theirs, exact, dy.double())[0],
        ),
    ]
    near = 8e-3 if HERE.type == "cuda" else 1e-4  # what rounding the result to bf16 costs
    for a, b in pairs_of:
        torch.testing.assert_close(a.double(), b, rtol=near, atol=near)


def test_the_gathering_operator_keeps_torchs_rules():
    sides = draw_rows(2, 40, (20, 12))
    weight = torch.randn(2, 24, 32, device=HERE).to(sides[0].table_ND.dtype).requires_grad_()
    torch.library.opcheck(gathered_product, (weight, *sides[0], *sides[1]), atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("feeds", "outer", "gathers"),
    [(3, 40, True), (1, 40, False), (3, WIDEST_TILE + 1, False)],
    ids=["own rows", "shared rows", "too wide"],
)
def test_a_fused_stack_gathers_in_its_product_where_each_head_has_its_own_rows(
    feeds, outer, gathers, monkeypatch
):
    def stack(fused, before=lambda side: side):
        torch.manual_seed(1)
        made = StackedLayers([0.0] * 3)
        layers = made.blocks(
            made.linear(32, outer), made.norm(outer), torch.nn.GELU(), made.dropout(),
            made.linear(outer, 1),
        ).to(HERE, draw_rows(1, 1, (1, 1))[0].table_ND.dtype)  # fmt: skip
        for name, parameter in layers.named_parameters():
            torch.nn.init.normal_(parameter, std=0.1)
            if not name.endswith("weight") or parameter.ndim == 2:
                parameter.data = parameter.data.float()
        layers.fused = fused
        sides = draw_rows(feeds, 70, (20, 12))
        out = layers(*map(before, sides))
        return out, *torch.autograd.grad(out.float().square().sum(), [*layers.parameters()])

    called = []
    monkeypatch.setattr(
        "abag.head.model.product_kernels.gathered_product",
        lambda *given: called.append(given) or gathered_product(*given),
    )
    near = 0.05 if HERE.type == "cuda" else 1e-3
    for ours, theirs in zip(stack(True), stack(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
    assert bool(called) == gathers
    for ours, theirs in zip(stack(True), stack(True, before=gathered), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_a_stack_of_fused_blocks_equals_one_of_plain_layers(drop):
    def block(fused):
        torch.manual_seed(1)
        made = StackedLayers([drop, drop / 2])
        stack = made.blocks(
            made.linear(6, 5), made.norm(5), torch.nn.GELU(), made.dropout(), made.linear(5, 1)
        ).to(HERE)
        stack.fused = fused
        for parameter in stack.parameters():
            torch.nn.init.normal_(parameter)
        x, y = torch.randn(2, 1, 9, 3, device=HERE).requires_grad_()
        torch.manual_seed(2)
        out = stack(x, y)
        return out, *torch.autograd.grad(out.square().sum(), [x, y, *stack.parameters()])

    for ours, theirs in zip(block(True), block(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
