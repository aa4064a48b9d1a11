"""Shards: how often their bytes are read, and in which order damage is reported."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import numpy as np
import pytest

from abag.core.files import Files
from abag.embed.shards.hdf5_layout import BlockSource, shard_chunks
from abag.embed.shards.regular_files import DamagedShard, digest_of
from abag.embed.shards.shard import check_file, commit_shard, read_table_of_contents

ROWS, WIDTH = 5000, 64  # half a chunk more than one


@pytest.fixture
def shard(tmp_path):
    path, rng = tmp_path / "a.h5", np.random.default_rng(0)
    arrays = {
        "key": rng.integers(0, 256, (ROWS, 16), dtype=np.uint8),
        "length": np.arange(ROWS, dtype="<i4"),
        "mean": rng.standard_normal((ROWS, WIDTH)).astype("<f4"),
    }
    commit_shard(path, shard_chunks([BlockSource.of({}, arrays)]), Files())
    return path, arrays


def block_of(path):
    (block,) = read_table_of_contents(path).blocks
    return block


def test_checking_a_shard_reads_each_byte_once(shard, monkeypatch):
    path, _ = shard
    read, real = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: read.append(real(*a)) or read[-1])
    check_file(path)
    assert path.stat().st_size <= sum(read) < 1.01 * path.stat().st_size + 4096


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_an_array_of_several_chunks_is_read_into_the_given_one(shard, dtype):
    path, arrays = shard
    out = np.full((ROWS + 2, WIDTH), 7, dtype)
    block_of(path).load("mean", out[1:-1])
    assert np.array_equal(out[1:-1], arrays["mean"])
    assert (out[[0, -1]] == 7).all()


def test_a_shard_that_shrinks_after_it_was_opened_is_named(shard):
    path, _ = shard
    block = block_of(path)
    os.truncate(path, block.arrays["mean"].offset + 10)
    with pytest.raises(DamagedShard, match=rf"^{path}: it ends early\.$"):
        block.load("mean")


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_full_temporary_folder_is_one_line_with_its_name(tmp_path, monkeypatch, kind):
    def full(*_, **__):
        msg = "Unable to create (write failed: time = now\n, errno = 28, error message = 'No"
        raise kind(msg)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("h5py.File", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        list(shard_chunks([BlockSource.of({}, {"key": np.zeros((1, 16), np.uint8)})]))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.startswith(f"{tmp_path}/abag-skeleton-")
    assert "\n" not in str(caught.value)


def test_damage_is_reported_as_digest_then_nan_then_crc(shard):
    path, _ = shard
    with path.open("r+b") as file:
        file.seek(block_of(path).arrays["mean"].offset)
        file.write(np.float32(np.nan).tobytes())
    block = block_of(path)
    entry = block.arrays["mean"]

    def problem(**known):
        arrays = {"mean": replace(entry, **known)}
        with pytest.raises(DamagedShard) as caught:
            replace(block, arrays=arrays).check_arrays()
        return str(caught.value)

    assert "match their digest" in problem()
    digest = digest_in(path, entry)
    assert "contains infinity or NaN" in problem(digest=digest)
    with path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(np.float32(1).tobytes())
    assert "match their CRC-32" in problem(digest=digest_in(path, entry))


def digest_in(path, entry):
    return digest_of(path.read_bytes()[entry.offset : entry.end])
