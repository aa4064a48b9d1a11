"""abag doctor: each thing that would fail later is found now; hardware not here is faked."""

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from encoding import CPU, DevicePlan, find_checkpoint
from faults import failing, raising
from invoke import PLAIN_ENCODERS, TINY_ENCODERS, run
from stores import StoreUnreachable, mount_drives_at

from abag import open_store
from abag.cli import main
from abag.embed import doctor
from abag.embed.doctor import check_device, check_encoder, check_weights, measure_parity
from abag.embed.kernels import attention
from abag.embed.kernels.attention import grouped_sdpa

CUDA = DevicePlan(torch.device("cuda"), "bf16", "a GPU")
INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}


def examined(*options, encoders=PLAIN_ENCODERS):
    """Return the checks of two encoders on a CPU by name, as (state, text)."""
    line = ["doctor", "--json", *encoders, "--device", "cpu", *options]
    done = CliRunner().invoke(main, [str(word) for word in line])
    checks = json.loads(done.stdout)["checks"]
    assert done.exit_code == any(check["state"] == "FAIL" for check in checks)
    return {check["name"]: (check["state"], check["text"]) for check in checks}


def assert_found(check, state, *words):
    assert check[0] == state
    assert all(word in check[1] for word in words), check


def test_a_working_machine_passes_every_check_and_no_file_is_left_behind(tmp_path):
    store = tmp_path / "new" / "store"
    lines = run("doctor", "--store", store, *TINY_ENCODERS, "--device", "cpu").stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} checks, 0 failed"
    assert {line.split()[0] for line in lines[:-1]} <= {"PASS", "WARN"}
    for name in ("versions", "cache", "store", "device", "antigen encoder"):
        assert any(line[5:].startswith(f"{name}:") for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_check_and_the_exit_code_follows(tmp_path):
    result = json.loads(run("doctor", "--json", *TINY_ENCODERS, "--device", "cpu").stdout)
    assert result["ok"] is True
    assert all(check.keys() == {"name", "state", "text"} for check in result["checks"])
    (tmp_path / "thesis.txt").write_text("mine")
    bad = run("doctor", "--json", "--store", tmp_path, *TINY_ENCODERS, "--device", "cpu", code=1)
    assert json.loads(bad.stdout)["ok"] is False
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_package_that_is_too_old_or_missing_fails(tmp_path, monkeypatch):
    asked = ["numpy>=99", "no-such-package>=1", "torch>=2", 'absent>=1; extra == "lora"']
    metadata = ["Metadata-Version: 2.1", "Name: abag", "Version: 9"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in asked]
    (tmp_path / "abag-9.dist-info").mkdir()
    (tmp_path / "abag-9.dist-info" / "METADATA").write_text("\n".join(metadata))
    monkeypatch.syspath_prepend(tmp_path)
    state, text = examined()["versions"]
    assert state == "FAIL"
    assert "numpy" in text
    assert "no-such-package missing" in text
    assert "absent" not in text


@pytest.mark.parametrize(
    ("call", "reason"),
    [("os.fsync", "No space left"), ("pathlib.Path.open", "Read-only file system")],
)
def test_a_file_system_that_cannot_commit_fails(tmp_path, monkeypatch, call, reason):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(call, raising(OSError(errno.EIO, reason)))
        state, text = examined()["temporary files"]
    assert state == "FAIL"
    assert reason in text
    assert "set TMPDIR to another folder" in text
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails_all_checks_of_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    checks = examined("--store", tmp_path / "store")
    for name in ("temporary files", "cache", "store"):
        assert checks[name][0] == "FAIL"
        assert "free some space" in checks[name][1]


def test_a_path_that_cannot_hold_a_store_fails(tmp_path):
    (tmp_path / "file").write_text("mine")
    for store in (tmp_path / "file", tmp_path / "file" / "store", tmp_path):
        assert_found(examined("--store", store)["store"], "FAIL", str(tmp_path))


def test_a_drive_that_is_not_mounted_fails(tmp_path, monkeypatch):
    mount_drives_at(monkeypatch, tmp_path)
    store = tmp_path / "MyDrive" / "store"
    assert_found(examined("--store", store)["store"], "FAIL", "no Drive is mounted")


def test_a_gpu_that_torch_cannot_use_fails_unless_the_cpu_was_requested(tmp_path, monkeypatch):
    (tmp_path / "version").write_text("NVRM")
    monkeypatch.setattr("abag.embed.doctor.NVIDIA_DRIVER", tmp_path / "version")
    found = check_device(CPU, requested="auto")
    assert_found(found, "FAIL", "install a build of torch for CUDA")
    assert check_device(CPU, requested="cpu")[0] == "WARN"


def test_weights_that_are_neither_on_disk_nor_on_the_hub_fail(monkeypatch):
    unreachable = OSError(errno.EHOSTUNREACH, "unreachable")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", raising(unreachable))
    assert_found(check_weights("nobody/nothing"), "FAIL", "hf download nobody/nothing")


def test_weights_to_download_are_noted_with_their_size_and_fail_without_free_space(monkeypatch):
    files = {"config.json": 9, "model.safetensors": 4_800_000_000, "pytorch_model.bin": 10**9}
    siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in files.items()]
    model = SimpleNamespace(siblings=siblings)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: model)
    for free, state, words in (
        (6_000_000_000, "WARN", "4.8 GB will be downloaded"),
        (4_000_000_000, "FAIL", "set HF_HOME"),
    ):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        weights_state, text = check_weights("nobody/nothing")
        assert weights_state == state
        assert words in text


@pytest.mark.ci
def test_names_and_folders_that_are_not_encoders_fail(tmp_path):
    for name, words in (
        ("igt6", "not an alias and not an existing folder"),
        (str(tmp_path), "no config.json"),
    ):
        weights = examined("--antibody-encoder", name)["antibody weights"]
        assert_found(weights, "FAIL", words)
    assert check_weights("composition")[0] == "PASS"


@pytest.mark.parametrize(("kind", "name"), [("antibody", "tiny-igt5"), ("antigen", "tiny-esm2")])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_packed_path_agrees_with_the_reference_in_every_precision(kind, name, precision):
    plan = DevicePlan(torch.device("cpu"), precision, "")
    distance, limit = measure_parity(find_checkpoint(name), kind, plan)
    assert distance <= limit


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
    assert_found(
        check_encoder(DevicePlan(torch.device("cpu"), "bf16", ""), kind, name),
        "FAIL",
        "--attention sdpa --precision fp32",
    )


def test_an_encoder_that_cannot_be_run_fails_with_the_reason(monkeypatch):
    error = RuntimeError("CUDA error: no kernel image is available\nCompile with ...")
    monkeypatch.setattr(F, "scaled_dot_product_attention", raising(error))
    state, text = examined(encoders=TINY_ENCODERS)["antigen encoder"]
    assert state == "FAIL"
    assert text == "CUDA error: no kernel image is available"


def test_too_little_memory_for_the_reference_is_no_failure(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", raising(torch.OutOfMemoryError()))
    found = examined(encoders=TINY_ENCODERS)["antigen encoder"]
    assert_found(found, "WARN", "not checked")


def test_encoders_without_weights_are_checked_with_random_ones_and_say_so(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = examined("--antigen-encoder", "esm2-650m")["antigen encoder"]
    assert_found(found, "PASS", "random weights of esm2-650m's architecture")


def test_a_gpu_on_which_triton_does_not_work_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "measure_parity", lambda *_: (0.0, 1.0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(doctor, "triton_problem", lambda _: "no C compiler")
    assert_found(
        check_encoder(CUDA, "antibody", "tiny-igt5"), "WARN", "Triton does not work (no C compiler)"
    )


def test_a_file_system_that_garbles_files_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    replace = Path.replace

    def garble(path, target):
        replace(path, target)
        target.write_bytes(target.read_bytes()[::-1])

    monkeypatch.setattr(Path, "replace", garble)
    assert "not those written" in examined()["temporary files"][1]


def test_sequences_in_a_local_spool_are_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_store(tmp_path / "s", create=True).create_folder("antibody", INFO)
    with failing(tmp_path / "s", errno.EPERM, at="rename"):
        out = folder.writer(attrs={}, retry_seconds=0.0)
        out.add(np.zeros((3, 16), np.uint8), np.ones(3), {"mean": np.ones((3, 4), np.float16)})
        with pytest.raises(StoreUnreachable):
            out.close()
    found = examined("--store", tmp_path / "s")["store"]
    assert_found(found, "WARN", "3 sequences wait in a local spool")


@pytest.mark.parametrize("name", ["nobody/nothing", "./no-folder"])
def test_an_encoder_whose_architecture_is_unknown_is_not_checked(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", raising(OSError("unreachable")))
    found = examined("--antigen-encoder", name)
    assert found["antigen weights"][0] == "FAIL"
    assert_found(found["antigen encoder"], "WARN", f"{name}: not checked")
