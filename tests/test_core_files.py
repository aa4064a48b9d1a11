"""A file is replaced whole or stays as it was."""

import json
import os

import pytest

from abag.core.files import (
    Files,
    is_partial,
    partial_owner,
    partial_path,
    replacing,
    write_chunks,
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
            assert names(tmp_path) == ["a.txt", "a.txt.partial"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_that_fails_its_check_is_not_committed(tmp_path):
    def refuse(path):
        assert path.read_bytes() == b"..ab"
        msg = "wrong bytes"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="wrong bytes"):
        write_chunks(tmp_path / "a.h5", [(2, b"ab"), (0, b"..")], check=refuse)
    assert names(tmp_path) == []


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
    class Full(Files):
        def write(self, path, chunks):
            super().write(path, [(0, b"half")])
            raise OSError(28, "No space left on device")

    write_json(tmp_path / "a.json", 1)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "a.json", 2, concurrent=True, files=Full())
    assert json.loads((tmp_path / "a.json").read_text()) == 1
    assert names(tmp_path) == ["a.json"]


def test_partial_names_tell_concurrent_writers_apart(tmp_path):
    plain = partial_path(tmp_path / "config.json")
    assert plain.name == "config.json.partial"
    assert partial_owner(plain) is None
    shared = partial_path(tmp_path / "0a1b.h5", concurrent=True)
    assert shared.name.startswith("0a1b.")
    assert partial_owner(shared)[1] == os.getpid()
    assert is_partial(plain)
    assert is_partial(shared)
    assert not is_partial(tmp_path / "config.json")
