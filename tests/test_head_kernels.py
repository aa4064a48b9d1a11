"""The kernels of stacked heads against their plain twins: interpreted on a CPU, else compiled."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abag.head.model import layers
from abag.head.model.layers import stacked_layers
from abag.head.model.triton_kernels import norm_gelu

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXAMPLES = 25 if HERE.type == "cpu" else 8  # each shape is compiled


def draw_block(training_sets, shared, pairs, width, rates, seed=0):
    """Return a product and the parameters of a block, all with gradients, and noise."""
    torch.manual_seed(seed)
    members = training_sets * shared
    y = torch.randn(training_sets, pairs, shared, width) * 3 + 1
    bias, gain, shift = torch.randn(3, members, width).unbind(0)
    tensors = [x.to(HERE).requires_grad_() for x in (y, bias, gain + 1, shift)]
    noise = torch.rand(pairs, width, device=HERE) if max(rates) > 0 else None
    return tensors, noise, torch.tensor(rates, device=HERE)


def plain(y, bias, gain, shift, noise, rate):
    """Do what the layers do, one after the other."""
    x = layers.split_members(y) + bias[:, None]
    x = torch.nn.functional.layer_norm(x, x.shape[-1:]) * gain[:, None] + shift[:, None]
    x = torch.nn.functional.gelu(x)
    if noise is None:
        return x
    return x * (noise >= rate[:, None, None]) / (1 - rate[:, None, None])


@pytest.mark.ci
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    training_sets=st.integers(1, 3),
    shared=st.integers(1, 3),
    pairs=st.integers(1, 70),
    width=st.sampled_from([1, 3, 16, 40, 320]),
    dropped=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_fused_block_and_its_gradients_equal_the_plain_layers(
    training_sets, shared, pairs, width, dropped, half, seed
):
    rates = [0.5 * dropped * k / 9 for k in range(training_sets * shared)]
    inputs, noise, rate = draw_block(training_sets, shared, pairs, width, rates, seed)
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


def test_the_operator_passes_the_checks_of_torch():
    inputs, noise, rate = draw_block(2, 2, 40, 16, [0.0, 0.1, 0.2, 0.5])
    torch.library.opcheck(norm_gelu, (*inputs, noise, rate), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_a_stack_of_fused_blocks_equals_one_of_plain_layers(drop):
    def block(fused):
        torch.manual_seed(1)
        made = stacked_layers([drop, drop / 2])
        stack = made.blocks(
            made.linear(6, 5), made.norm(5), torch.nn.GELU(), made.dropout(), made.linear(5, 1)
        ).to(HERE)
        stack.fused = fused
        for parameter in stack.parameters():
            torch.nn.init.normal_(parameter)
        x = torch.randn(1, 9, 6, device=HERE, requires_grad=True)
        torch.manual_seed(2)
        out = stack(x)
        return out, *torch.autograd.grad(out.square().sum(), [x, *stack.parameters()])

    for ours, theirs in zip(block(True), block(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
