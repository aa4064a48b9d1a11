"""abag doctor: each thing that would fail later is found now; hardware not here is faked."""

import errno
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from abag.cli import main
from abag.core.cache import recorded_speed
from abag.core.device import DevicePlan, device_name, plan_device
from abag.core.files import Files
from abag.embed.doctor import checks, probes
from abag.embed.doctor.checks import (
    check_attention,
    check_compiler,
    check_device,
    check_parity,
    check_precision,
    check_speed,
    check_store,
    check_temporary_folder,
    check_versions,
    check_weights,
    find_local_checkpoint,
)
from abag.embed.encoders.identity import find_checkpoint, save_random_checkpoint
from abag.embed.families.registry import FAMILIES, SHAPES
from abag.embed.kernels import attention
from abag.embed.kernels.grouped_sdpa import grouped_sdpa
from abag.embed.store import filesystem as mounts
from abag.embed.store.filesystem import StoreUnreachable
from abag.embed.store.store import open_store

TINY = ["--antibody-encoder", "tiny-igt5", "--antigen-encoder", "tiny-esm2", "--device", "cpu"]
CPU = plan_device("cpu")
CUDA = DevicePlan(torch.device("cuda"), "bf16", "a GPU")
INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}


@pytest.fixture
def quick(monkeypatch):
    """Leave the compiler alone: it takes ten seconds, and has a test of its own."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["doctor", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


# ---- the whole -----------------------------------------------------------------------------


def test_a_working_machine_passes_every_check_and_no_file_is_left_behind(quick, tmp_path):
    store = tmp_path / "new" / "store"
    lines = run("--store", store, *TINY).stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} checks, 0 failed"
    assert {line.split()[0] for line in lines[:-1]} == {"ok", "note"}
    for name in ("versions", "precision", "antibody attention", "compiler", "antigen parity"):
        assert any(line[6:].startswith(f"{name}:") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_check_with_its_values_and_the_exit_code_follows(quick, tmp_path):
    told = json.loads(run("--json", *TINY).stdout)
    values = {check["name"]: check["values"] for check in told["checks"]}
    assert told["ok"] is True
    assert values["precision"] == {"precision": "fp32"}
    assert values["antigen attention"] == {"attention": "sdpa"}
    assert values["antibody parity"]["reference"] < values["antibody parity"]["limit"]
    (tmp_path / "thesis.txt").write_text("mine")
    bad = run("--json", "--store", tmp_path, *TINY, code=1)
    assert json.loads(bad.stdout)["ok"] is False
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_missing_device_fails(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    *_, last = checks.examine(antibody_encoder="tiny-igt5", device="cuda")
    assert (last.name, last.state) == ("device", "FAIL")
    assert "give auto or cpu" in last.text


# ---- software ------------------------------------------------------------------------------


def test_a_package_that_is_too_old_or_missing_fails(monkeypatch):
    asked = ["numpy>=99", "no-such-package>=1", "torch>=2", 'absent>=1; extra == "lora"']
    monkeypatch.setattr(checks, "requires", lambda _: asked)
    check = check_versions()
    assert check.state == "FAIL"
    assert "numpy" in check.text
    assert "no-such-package missing" in check.text
    assert "absent" not in check.text


def no_compiler(*_, **__):
    msg = "Failed to find C compiler. Please specify via CC environment variable.\nmore lines"
    raise RuntimeError(msg)


@pytest.mark.parametrize(("plan", "state"), [(CPU, "note"), (CUDA, "FAIL")])
def test_a_missing_compiler_fails_where_stage_two_needs_one(monkeypatch, plan, state):
    real = torch.arange
    monkeypatch.setattr(torch, "arange", lambda *a, **_: real(*a))
    monkeypatch.setattr(torch, "compile", no_compiler)
    check = check_compiler(plan)
    assert check.state == state
    assert "Failed to find C compiler" in check.text
    assert "more lines" not in check.text
    assert ("--no-compile" in check.text) == (state == "FAIL")


def test_a_compiler_that_returns_wrong_numbers_fails(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda x: function(x) + 1)
    assert "wrong numbers" in check_compiler(CPU).text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own
def test_the_compiler_really_compiles():
    assert check_compiler(CPU).state == "ok"


# ---- the store's disk ----------------------------------------------------------------------


class Fails(Files):
    """Refuses one operation."""

    def __init__(self, name, code):
        def refuse(*_):
            raise OSError(code, os.strerror(code))

        setattr(self, name, refuse)


class Garbles(Files):
    def write(self, path, content):
        super().write(path, bytes(len(content)))


@pytest.mark.parametrize(
    ("files", "step", "reason"),
    [
        (Fails("write", errno.EROFS), "write and sync", "Read-only file system"),
        (Fails("write", errno.ENOSPC), "write and sync", "No space left"),
        (Fails("replace", errno.EPERM), "rename", "Operation not permitted"),
        (Fails("sync_folder", errno.EIO), "sync the folder", "Input/output error"),
        (Fails("remove", errno.EBUSY), "remove", "busy"),
        (Garbles(), "read back", "bytes read differ"),
    ],
    ids=["read-only", "full", "rename", "folder sync", "remove", "garbled"],
)
def test_a_file_system_that_cannot_commit_fails_with_the_step_that_failed(
    tmp_path, files, step, reason
):
    check = {c.name: c for c in check_store(tmp_path / "store", files)}["store: writing"]
    assert check.state == "FAIL"
    assert check.values == {"step": step}
    assert f"cannot {step} (" in check.text
    assert reason in check.text
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    checks = {c.name: c for c in check_store(tmp_path)}
    assert checks["store: space"].state == "FAIL"
    assert check_temporary_folder().state == "FAIL"


def test_no_temporary_folder_at_all_fails(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    check = check_temporary_folder()
    assert check.state == "FAIL"
    assert "set TMPDIR" in check.text


def test_a_path_that_cannot_hold_a_store_fails(tmp_path):
    (tmp_path / "file").write_text("mine")
    for store, words in (
        (tmp_path / "file", "not a packed store"),
        (tmp_path / "file" / "store", "expected a folder"),
        (tmp_path, "is not a store, it holds file"),
    ):
        (check,) = check_store(store)
        assert check.state == "FAIL"
        assert words in check.text


def test_a_drive_that_is_not_mounted_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(mounts, "COLAB_DRIVE", tmp_path)
    (check,) = check_store(tmp_path / "MyDrive" / "store")
    assert check.state == "FAIL"
    assert "no Drive is mounted" in check.text


def test_sequences_in_a_local_spool_are_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_store(tmp_path / "s", create=True).create_folder("antibody", INFO)
    out = folder.writer(attrs={}, files=Fails("replace", errno.EPERM), retry_seconds=0.0)
    out.add(np.zeros((3, 16), np.uint8), np.ones(3), {"mean": np.ones((3, 4), np.float16)})
    with pytest.raises(StoreUnreachable):
        out.close()
    check = {c.name: c for c in check_store(tmp_path / "s")}["store: spool"]
    assert check.state == "note"
    assert "3 sequences of an earlier run are in a local spool" in check.text


# ---- device --------------------------------------------------------------------------------


@pytest.fixture
def t4(monkeypatch):
    """Pretend that a T4 is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (14 << 30, 15 << 30))
    return plan_device()


def test_a_t4_computes_in_fp16_with_sdpa_and_the_report_says_why(t4):
    assert "14.0 of 15.0 GiB free" in check_device(t4, requested="auto").text
    assert "no bf16 units, even if torch" in check_precision(t4).text
    check = check_attention(t4, "antibody", "igt5", find_checkpoint("tiny-igt5"))
    assert check.values == {"attention": "sdpa"}
    assert "triton: needs compute capability 8.0" in check.text


def test_a_gpu_that_torch_cannot_use_fails_unless_the_cpu_was_requested(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("NVRM")
    monkeypatch.setattr(checks, "NVIDIA_DRIVER", tmp_path / "version")
    check = check_device(CPU, requested="auto")
    assert check.state == "FAIL"
    assert "install a build of torch for CUDA" in check.text
    assert check_device(CPU, requested="cpu").state == "note"


# ---- weights -------------------------------------------------------------------------------


def absent(name="nobody/nothing"):
    return check_weights("antibody", name, find_local_checkpoint(name))


def unreachable(_):
    msg = "Name or service not known"
    raise ConnectionError(msg)


def test_weights_that_are_neither_on_disk_nor_on_the_hub_fail(monkeypatch):
    monkeypatch.setattr(checks, "_hub_bytes", unreachable)
    check = absent()
    assert check.state == "FAIL"
    assert "hf download nobody/nothing" in check.text


def test_weights_to_download_are_noted_with_their_size_and_fail_without_free_space(monkeypatch):
    monkeypatch.setattr(checks, "_hub_bytes", lambda _: 4_800_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=6_000_000_000))
    assert absent().state == "note"
    assert "4.8 GB will be downloaded" in absent().text
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4_000_000_000))
    assert absent().state == "FAIL"
    assert "set HF_HOME" in absent().text


def test_names_and_folders_that_are_not_encoders_fail(tmp_path):
    for name, words in (
        ("igt6", "not an alias and not an existing folder"),
        (tmp_path, "no config.json"),
    ):
        check = absent(str(name))
        assert check.state == "FAIL"
        assert words in check.text
    assert absent("composition").state == "ok"


# ---- speed ---------------------------------------------------------------------------------


@pytest.fixture
def briefly(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "SECONDS", 0.05)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_measured_speed_is_kept_for_plan_under_the_name_that_was_given(briefly):
    check = check_speed(CPU, "antigen", "tiny-esm2", find_checkpoint("tiny-esm2"))
    assert check.state == "ok"
    kept = recorded_speed(device_name(CPU.device), "tiny-esm2")
    assert kept.tokens_per_s == check.values["tokens_per_s"] > 0


@pytest.mark.parametrize(("kind", "family"), [("antibody", "t5"), ("antigen", "esm")])
def test_the_speed_of_many_layers_is_that_of_two_times_their_number(
    briefly, monkeypatch, tmp_path, kind, family
):
    monkeypatch.setattr(probes, "_tokens_per_s", lambda *_: 600.0)
    for layers in (2, 6):
        key = "num_layers" if family == "t5" else "num_hidden_layers"
        config = FAMILIES[family].tiny_config | {key: layers}
        folder = save_random_checkpoint(tmp_path / str(layers), config, seed=0)
        rate = probes.measure_speed(find_checkpoint(str(folder)), kind, CPU)
        assert rate == pytest.approx(600 * 2 / layers)


def test_doctor_measures_speeds_only_when_asked(quick, briefly):
    def speeds(*options):
        done = CliRunner().invoke(main, ["doctor", *TINY, *options, "--json"])
        return [c["name"] for c in json.loads(done.stdout)["checks"] if "speed" in c["name"]]

    assert speeds() == []
    assert speeds("--bench") == ["antibody speed", "antigen speed"]


@pytest.mark.parametrize(
    ("kind", "name", "family", "key"),
    [
        ("antibody", "igt5", "t5", "num_layers"),
        ("antigen", "esm2-650m", "esm", "num_hidden_layers"),
    ],
)
def test_default_encoders_are_measured_before_they_are_downloaded(
    briefly, monkeypatch, kind, name, family, key
):
    def two_layers(encoder, *_):
        assert len(encoder._layers) == probes.LAYERS
        return 100.0

    layers = SHAPES[name][key]
    monkeypatch.setitem(SHAPES, name, FAMILIES[family].reduced_config | {key: layers})
    monkeypatch.setattr(probes, "_tokens_per_s", two_layers)
    check = check_speed(CPU, kind, name, find_local_checkpoint("nobody/nothing"))
    assert check.values["tokens_per_s"] == pytest.approx(100 * probes.LAYERS / layers)


def test_encoders_that_cannot_be_measured_are_noted_and_nothing_is_kept(briefly, tmp_path):
    missing = check_speed(CPU, "antigen", "esm2-3b", find_local_checkpoint("nobody/nothing"))
    assert missing.state == "note"
    assert "esm2-3b is known when its weights are on disk" in missing.text
    counted = check_speed(CPU, "antigen", "composition", find_checkpoint("composition"))
    assert counted.state == "ok"
    assert not (tmp_path / "cache").exists()


# ---- parity --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("antibody", "tiny-igt5"), ("antigen", "tiny-esm2")])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_packed_path_agrees_with_the_reference_in_every_precision(kind, name, precision):
    plan = DevicePlan(torch.device("cpu"), precision, "")
    measured = probes.measure_parity(find_checkpoint(name), kind, plan)
    assert measured.holds
    assert measured.alone <= measured.reference < measured.mutation / 3


def leaking(qkv, groups, heads, scale):
    """Attention that forgets where sequences end."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3)
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(0, 1).flatten(1)


def shifted(qkv, groups, heads, scale):
    """Attention whose keys are those of the residue before."""
    q, k, v = qkv.chunk(3, dim=1)
    return grouped_sdpa(torch.cat([q, k.roll(1, 0), v], dim=1), groups, heads, scale)


def overflowing(qkv, groups, heads, scale):
    return grouped_sdpa(qkv, groups, heads, scale) * float("nan")


@pytest.mark.parametrize("broken", [leaking, shifted, overflowing])
@pytest.mark.parametrize(("kind", "name"), [("antibody", "tiny-igt5"), ("antigen", "tiny-esm2")])
def test_a_broken_kernel_fails_even_in_the_lowest_precision(monkeypatch, kind, name, broken):
    monkeypatch.setattr(attention, "grouped_sdpa", broken)
    plan = DevicePlan(torch.device("cpu"), "bf16", "")
    check = check_parity(plan, kind, name, find_checkpoint(name))
    assert check.state == "FAIL"
    assert "--attention sdpa --precision fp32" in check.text


def test_an_encoder_that_cannot_be_run_fails_with_the_reason(monkeypatch):
    def dies(*_):
        msg = "CUDA error: no kernel image is available\nCompile with ..."
        raise RuntimeError(msg)

    monkeypatch.setattr(attention, "grouped_sdpa", dies)
    check = check_parity(CPU, "antigen", "tiny-esm2", find_checkpoint("tiny-esm2"))
    assert check.state == "FAIL"
    assert "no kernel image is available)" in check.text


def test_too_little_memory_for_the_reference_is_a_note_and_not_a_failure(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(probes, "load_encoder", full)
    check = check_parity(CPU, "antigen", "tiny-esm2", find_checkpoint("tiny-esm2"))
    assert check.state == "note"
    assert "not checked" in check.text


def test_parity_of_missing_weights_is_checked_with_random_ones_and_says_so():
    check = check_parity(CPU, "antigen", "esm2-650m", find_local_checkpoint("nobody/nothing"))
    assert check.state == "ok"
    assert "random weights of esm2-650m's architecture" in check.text
