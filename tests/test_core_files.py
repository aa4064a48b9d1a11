"""A file is replaced whole or stays as it was."""

import errno
import json
import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from faults import failing, raising

from abag.core.files import (
    host_name,
    is_partial,
    json_bytes,
    json_text,
    partial_path,
    replacing,
    sweep_partials,
    write_bytes,
    write_json,
    write_text,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_block_that_raises_leaves_the_old_file_and_no_partial(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def interrupted():
        with replacing(tmp_path / "a.txt") as partial:
            partial.write_text("half")
            assert names(tmp_path) == sorted(["a.txt", partial.name])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_whose_bytes_are_read_back_wrong_is_not_committed(tmp_path, monkeypatch):
    write_bytes(tmp_path / "a.h5", b"old")
    real = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, new: real(path, bytes(len(new))))
    with pytest.raises(OSError, match=r"bytes read differ .*/a\.h5'$"):
        write_bytes(tmp_path / "a.h5", b"new")
    assert (tmp_path / "a.h5").read_bytes() == b"old"
    assert names(tmp_path) == ["a.h5"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_mode_of_a_file_follows_the_umask_whatever_writes_it(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "a") as partial:
            partial.chmod(0o600)  # as safetensors and tempfile do
        write_text(tmp_path / "b", "text")
    finally:
        os.umask(before)
    for name in "ab":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_a_drive_without_modes_takes_files_that_were_made_private(tmp_path, monkeypatch):
    with replacing(tmp_path / "a") as partial:
        partial.chmod(0o600)
        monkeypatch.setattr("os.chmod", raising(OSError(errno.ENOSYS, "Function not implemented")))
    assert names(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_synced_does_not_fail_the_write(tmp_path, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112 -- a link to the folder
            raise OSError(22, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", files_only)
    write_json(tmp_path / "a.json", {"b": 1, "a": 2}, sort_keys=True)
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'


def test_a_failing_disk_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", 1)
    with (
        failing(tmp_path, errno.ENOSPC, when=lambda number: number == 2),
        pytest.raises(OSError, match="No space left"),
    ):
        write_json(tmp_path / "a.json", 2)
    assert json.loads((tmp_path / "a.json").read_text()) == 1
    assert names(tmp_path) == ["a.json"]


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    def write():
        with replacing(tmp_path / "scores.csv"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*scores\.csv'"):
        write()


def test_an_error_of_the_network_keeps_its_words_where_a_file_is_written(tmp_path):
    def write():
        with replacing(tmp_path / "shard.h5"):
            msg = "no route to host"
            raise ConnectionError(msg)  # as requests raises it, without a number

    with pytest.raises(ConnectionError, match=r"^no route to host$"):
        write()


def test_an_error_names_the_file_and_not_its_partial_file(tmp_path):
    for write in (write_json, write_text):
        with pytest.raises(FileNotFoundError, match=r"directory: '\S+/no/a\.json'$"):
            write(tmp_path / "no" / "a.json", "text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"directory: '\S+/folder'$"):
        write_text(tmp_path / "folder", "text")


def test_every_partial_file_has_its_own_name_that_says_who_writes_it(tmp_path):
    partials = {partial_path(tmp_path / "0a1b.h5").name for _ in range(100)}
    assert len(partials) == 100
    for name in partials:
        assert name.startswith("0a1b.")
        assert is_partial(tmp_path / name)
        assert f".{host_name()}.{os.getpid()}.partial" in name
    assert not is_partial(tmp_path / "config.json")
    write_text(tmp_path / ("\N{SNOWMAN}" * 80), "a name of 240 bytes")


def test_two_writers_of_one_file_leave_one_of_the_two_whole(tmp_path):
    with replacing(tmp_path / "a.txt") as first, replacing(tmp_path / "a.txt") as second:
        second.write_text("2" * 3_000)
        first.write_text("1" * 2_000)
    assert (tmp_path / "a.txt").read_text() == "1" * 2_000  # the last rename
    assert names(tmp_path) == ["a.txt"]


def write_by_name(path, text):
    with replacing(path) as partial:
        partial.write_text(text)


@pytest.mark.parametrize("write", [write_text, write_by_name])
def test_a_link_at_the_partial_name_is_not_followed(tmp_path, monkeypatch, write):
    (tmp_path / "victim").write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _n: "guessed")
    partial_path(tmp_path / "a.txt").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write(tmp_path / "a.txt", "new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "a.txt").exists()


@pytest.mark.parametrize("write", [write_text, write_by_name])
def test_writing_a_file_again_removes_only_what_dead_writers_of_it_left(tmp_path, write):
    dead = 999_999_999
    host = host_name()
    for name in (
        f"a.0123.{host}.{dead}.partial",
        f"a.0123.{host}.{os.getpid()}.partial",
        f"b.0123.{host}.{dead}.partial",
        f"a.0123.elsewhere.{dead}.partial",
        "a.txt.partial",
        "a.download.partial",
    ):
        (tmp_path / name).write_text("half")
    os.utime(tmp_path / "a.txt.partial", (0, 0))
    before = set(names(tmp_path))
    write(tmp_path / "a.txt", "new")
    assert set(names(tmp_path)) == before - {f"a.0123.{host}.{dead}.partial"} | {"a.txt"}


def test_numbers_that_are_not_finite_become_null_in_json():
    value = {"a": [1.5, math.inf, (math.nan, -math.inf)], "b": {"c": math.nan}, "d": "NaN"}
    refuse = {"parse_constant": lambda name: pytest.fail(f"{name} is not JSON")}
    expected = {"a": [1.5, None, [None, None]], "b": {"c": None}, "d": "NaN"}
    assert json.loads(json_text(value), **refuse) == expected
    assert json.loads(json_bytes(value), **refuse) == expected


def test_a_partial_file_that_another_process_deletes_first_does_not_end_the_sweep(
    tmp_path, monkeypatch
):
    for name in "abc":
        (tmp_path / f"{name}.{host_name()}.999999999.partial").touch()
    look = Path.lstat

    looked_at = []

    def vanished(path):
        looked_at.append(path)
        if len(looked_at) == 1:
            raise FileNotFoundError
        return look(path)

    monkeypatch.setattr(Path, "lstat", vanished)
    sweep_partials(tmp_path)
    monkeypatch.undo()
    assert [*tmp_path.iterdir()] == looked_at[:1]


def test_numbers_and_arrays_of_numpy_are_written_as_those_of_python():
    counts = {"n": np.int64(3), "is": np.bool_(True), "all": np.arange(2), "no": np.float32("nan")}
    assert json.loads(json_text(counts)) == {"n": 3, "is": True, "all": [0, 1], "no": None}
    with pytest.raises(TypeError, match="object is not JSON"):
        json_text({"what": object()})
