"""Device, precision and attention by capability, on simulated hardware."""

import numpy as np
import pytest
import torch
from encoding import plan_device

from abag import DeviceError
from abag.core.device import default_batch_tokens, resolve_device, to_device
from abag.embed.kernels import attention, triton_kernels
from abag.embed.kernels.attention import choose_attention, load_kernels
from abag.embed.kernels.ops import HalfOps, PlainOps


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that a GPU of some capability and free memory is there."""

    def fake(name, capability, free_gib=16):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free_gib * 2**30, 0))

    return fake


@pytest.mark.parametrize(("name", "capability", "precision", "biased", "plain"), [
    ("Tesla T4", (7, 5), "fp16", "sdpa", "sdpa"), ("Tesla V100", (7, 0), "fp16", "sdpa", "sdpa"),
    ("L4", (8, 9), "bf16", "triton", "triton"), ("A100", (8, 0), "bf16", "triton", "triton"),
    ("H100", (9, 0), "bf16", "triton", "triton"),
])  # fmt: skip
def test_capability_decides_precision_and_attention(
    gpu, name, capability, precision, biased, plain
):
    gpu(name, capability)
    plan = plan_device()
    assert plan.precision == precision
    assert name in plan.reason
    assert choose_attention(plan, biased=True) == biased
    assert choose_attention(plan, biased=False) == plain


def test_heads_that_triton_cannot_divide_use_another_attention(gpu):
    gpu("A100", (8, 0))
    plan = plan_device()
    assert choose_attention(plan, biased=False, head_width=24) == "triton"  # ESM-2 35M
    assert choose_attention(plan, biased=False, head_width=20) == "varlen"
    assert choose_attention(plan, biased=True, head_width=20) == "sdpa"
    with pytest.raises(DeviceError, match="triton: does not support heads of 20"):
        choose_attention(plan, biased=False, head_width=20, requested="triton")


def test_a_t4_refuses_bf16_and_fast_attention_before_any_weights(gpu):
    gpu("Tesla T4", (7, 5))
    with pytest.raises(DeviceError, match=r"bf16 on Tesla T4: compute capability 7.5.*fp16"):
        plan_device("cuda", "bf16")
    with pytest.raises(DeviceError, match=r"triton: needs compute capability 8.0"):
        choose_attention(plan_device(), biased=True, requested="triton")


@pytest.mark.parametrize(
    ("name", "capability", "ops_class"), [("Tesla T4", (7, 5), HalfOps), ("A100", (8, 0), PlainOps)]
)
def test_where_triton_does_not_work_plain_steps_replace_it_with_a_note(
    gpu, monkeypatch, name, capability, ops_class, said
):
    gpu(name, capability)
    plan = plan_device()
    monkeypatch.setattr(attention, "triton_problem", lambda _: "no C compiler")
    kernel, ops = load_kernels(plan, biased=True)
    assert (kernel, type(ops)) == ("sdpa", ops_class)
    (line,) = said
    assert "no C compiler" in line
    monkeypatch.setattr(attention, "triton_problem", lambda _: "")
    assert type(load_kernels(plan, biased=False)[1]) is triton_kernels.FusedOps


def test_triton_requested_where_it_does_not_work_is_refused(gpu, monkeypatch):
    gpu("A100", (8, 0))
    monkeypatch.setattr(attention, "triton_problem", lambda _: "no C compiler")
    with pytest.raises(DeviceError, match=r"triton: does not work.*no C compiler"):
        load_kernels(plan_device(), biased=True, requested="triton")


def test_triton_is_tried_once_and_what_fails_is_named(monkeypatch):
    calls = []

    def broken(*_):
        calls.append(1)
        msg = "Failed to find C compiler\nand a long story"
        raise RuntimeError(msg)

    attention.triton_problem.cache_clear()
    assert attention.triton_problem(torch.device("cpu")) == ""  # interpreted
    attention.triton_problem.cache_clear()
    monkeypatch.setattr(triton_kernels.FusedOps, "add_rms_norm_", broken)
    for _ in range(2):
        problem = attention.triton_problem(torch.device("cpu"))
        assert problem == "Failed to find C compiler"
    assert len(calls) == 1
    attention.triton_problem.cache_clear()


def test_a_cpu_computes_in_fp32_with_sdpa():
    plan = plan_device("cpu")
    assert (plan.precision, choose_attention(plan, biased=True)) == ("fp32", "sdpa")
    with pytest.raises(DeviceError, match="fp16 on a CPU"):
        plan_device("cpu", "fp16")
    with pytest.raises(DeviceError, match="varlen: needs a CUDA device; usable"):
        choose_attention(plan, biased=False, requested="varlen")


def test_flash_attention_is_refused_for_a_biased_encoder_and_for_fp32(gpu):
    gpu("H100", (9, 0))
    with pytest.raises(DeviceError, match="does not support a bias by position"):
        choose_attention(plan_device(), biased=True, requested="varlen")
    assert choose_attention(plan_device(precision="fp32"), biased=True) == "sdpa"


@pytest.mark.parametrize("name", ["cuda:7", "tpu", "mps"])
def test_a_missing_device_is_refused(name):
    with pytest.raises(DeviceError, match=name):
        plan_device(name)


def test_batches_grow_with_free_memory(gpu):
    budgets = []
    for free_gib in (8, 15, 80):
        gpu("some GPU", (8, 0), free_gib)
        budgets.append(default_batch_tokens(plan_device()))
    assert budgets == sorted(set(budgets))


def test_an_apple_gpu_runs_encoders_if_asked_for_and_no_heads(monkeypatch):
    with pytest.raises(DeviceError, match="--device mps: this machine has"):
        plan_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    plan = plan_device("mps")
    assert (plan.device.type, plan.precision) == ("mps", "fp32")
    assert "has not been tested" in plan.reason
    assert plan_device("mps", "fp16").dtype == torch.float16
    assert plan_device().device.type == "cpu"
    assert choose_attention(plan, biased=False) == "sdpa"
    with pytest.raises(DeviceError, match="bf16 on an Apple GPU: not supported"):
        plan_device("mps", "bf16")
    with pytest.raises(DeviceError, match="mps: runs encoders only"):
        resolve_device("mps")


def test_arrays_go_to_devices_that_are_not_of_cuda():
    assert to_device(np.zeros(3), torch.device("meta")).device.type == "meta"
