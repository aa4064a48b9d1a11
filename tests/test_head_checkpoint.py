import pickle

import pytest
import torch
from faults import fill_disk_for_tensors
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from abag import DamagedFile, OutputError
from abag.head.training import tasks
from abag.head.training.tasks import SCHEMA, load, load_newest, save_rotating

TENSORS = {"model.w": torch.arange(6.0).reshape(2, 3), "optimizer.step": torch.tensor(3.0)}


def test_a_checkpoint_restores_tensors_and_state_bit_for_bit(tmp_path):
    save_rotating(tmp_path, TENSORS, {"step": 3, "best_score": 0.1})
    loaded = load(tmp_path / "latest")
    assert loaded.state == {"step": 3, "best_score": 0.1}
    assert all(torch.equal(loaded.tensors[name], TENSORS[name]) for name in TENSORS)
    assert loaded.tensors["optimizer.step"].shape == ()


def test_rotation_keeps_only_the_two_newest_checkpoints(tmp_path):
    for step in (1, 2, 3):
        save_rotating(tmp_path, TENSORS, {"step": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "previous"]
    assert load(tmp_path / "latest").state["step"] == 3
    assert load(tmp_path / "previous").state["step"] == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "state"])
def test_a_damaged_checkpoint_is_reported_skipped_and_not_rotated(tmp_path, damage, said):
    save_rotating(tmp_path, TENSORS, {"step": 1})
    save_rotating(tmp_path, TENSORS, {"step": 2})
    whole = (tmp_path / "latest").read_bytes()
    broken = {
        "truncated": whole[:-5],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "empty": b"",
        "state": whole.replace(b'\\"step\\": 2', b'\\"step\\": 7'),
    }[damage]
    assert broken != whole
    (tmp_path / "latest").write_bytes(broken)
    assert load_newest(tmp_path).state["step"] == 1
    assert "previous, step 1" in said[0]
    save_rotating(tmp_path, TENSORS, {"step": 2})
    assert load(tmp_path / "previous").state["step"] == 1


def test_only_damaged_checkpoints_are_an_error_and_no_checkpoint_is_a_fresh_start(tmp_path):
    assert load_newest(tmp_path) is None
    (tmp_path / "latest").write_bytes(b"")
    with pytest.raises(DamagedFile, match="no checkpoint is whole"):
        load_newest(tmp_path)


def test_a_checkpoint_that_a_failing_drive_does_not_give_is_an_error(tmp_path, monkeypatch):
    def fail(path, framework):
        msg = f"unable to open file <{path}> in read-only mode: Input/output error (5)"  # of torch
        raise RuntimeError(msg)

    save_rotating(tmp_path, TENSORS, {"step": 1})
    monkeypatch.setattr(tasks, "safe_open", fail)
    with pytest.raises(DamagedFile, match=r"error \(5\).*Run the same command again"):
        load_newest(tmp_path)


def test_a_pickle_file_is_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was run",))

    (tmp_path / "latest").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DamagedFile):
        load(tmp_path / "latest")
    torch.save({"model.w": torch.zeros(1)}, tmp_path / "latest")
    with pytest.raises(DamagedFile):
        load(tmp_path / "latest")


def test_an_unsupported_schema_is_reported(tmp_path):
    save_rotating(tmp_path, TENSORS, {"step": 1})
    path = tmp_path / "latest"
    with safe_open(path, "pt") as saved:
        header = saved.metadata() | {"schema": "99"}
    save_file(load_file(path), path, header)
    reads = f"schema '99'; this abag reads {SCHEMA}"
    with pytest.raises(DamagedFile, match=reads):
        load_newest(tmp_path)


def test_a_full_disk_keeps_the_previous_checkpoint_and_leaves_no_partial_file(
    tmp_path, monkeypatch
):
    save_rotating(tmp_path, TENSORS, {"step": 1})
    fill_disk_for_tensors(monkeypatch, "torch")
    with pytest.raises(OutputError, match="No space left"):
        save_rotating(tmp_path, TENSORS, {"step": 2})
    assert load_newest(tmp_path).state["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["latest"]
