"""Shards in a local spool are published by the next run into their store."""

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faults import failing
from stores import StoreUnreachable, publish_spools, spool_of, spooled_rows, verify

from abag import open_store

INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}
KEYS = np.random.default_rng(0).integers(0, 256, (40, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((40, 8)).astype(np.float16)


def down(store):
    """Return a context in which a store accepts nothing."""
    return failing(store, errno.ENOTCONN, at="rename")


def writer_with_spooled_shards(store, **options):
    """Return a writer with all rows in its spool, for a store that is down."""
    out = encoder_folder(store).writer(attrs={}, commit_rows=10, **options)
    out.add(KEYS, np.ones(40), {"mean": VECTORS})
    while spooled_rows(store) < 40:
        time.sleep(0.005)
    return out


def encoder_folder(store):
    return open_store(store, create=True).create_folder("antibody", INFO)


CHILD = """
import sys, time
sys.path[:0] = sys.argv[2:]
import test_spool
store = test_spool.Path(sys.argv[1])
test_spool.encoder_folder(store)
with test_spool.down(store):
    test_spool.writer_with_spooled_shards(store)
    print("staged", flush=True)
    time.sleep(600)
"""


def test_the_shards_of_a_killed_writer_are_published_by_the_next_run(machine):
    store = machine / "store"
    here = Path(__file__).parent
    command = [sys.executable, "-c", CHILD, store, here, here.parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "staged\n"
        child.send_signal(signal.SIGKILL)
    assert publish_spools(store) == 40
    assert np.array_equal(open_store(store).folder("antibody").read(KEYS), VECTORS)
    assert publish_spools(store) == 0


def test_shards_of_a_living_writer_that_another_process_publishes_are_committed(machine):
    store = machine / "store"
    encoder_folder(store)
    with down(store):
        out = writer_with_spooled_shards(store)
    assert publish_spools(store) == 40
    out.close()
    assert out.committed == 40
    assert np.array_equal(open_store(store).folder("antibody").read(KEYS), VECTORS)


def abandoned_spool(store):
    """Return the spool of a writer that gave up."""
    encoder_folder(store)
    with down(store):
        out = writer_with_spooled_shards(store, retry_seconds=0.0)
        with pytest.raises(StoreUnreachable):
            out.close()
    return spool_of(encoder_folder(store).path)


def test_a_store_that_still_fails_leaves_the_spool_as_it_was(machine):
    spool = abandoned_spool(machine / "store")
    before = {p: p.read_bytes() for p in spool.rglob("*.h5")}
    with (
        failing(machine / "store", errno.EROFS),
        pytest.raises(StoreUnreachable, match=f"uncommitted shards stay in {spool}"),
    ):
        publish_spools(machine / "store")
    assert {p: p.read_bytes() for p in spool.rglob("*.h5")} == before
    assert publish_spools(machine / "store") == 40


@pytest.mark.parametrize("lost", ["store/antibody-igt5-3f2c9b1e", "store"])
def test_publishing_a_spool_restores_a_lost_encoder_folder(machine, lost):
    abandoned_spool(machine / "store")
    (machine / lost).rename(machine / "gone")
    assert publish_spools(machine / "store") == 40
    assert open_store(machine / "store").folder("antibody").rows == 40


def test_a_damaged_spooled_shard_is_left_out_and_reported(machine, said):
    shard = next(abandoned_spool(machine / "store").rglob("*.h5"))
    said.clear()
    shard.write_bytes(shard.read_bytes()[:-1])
    assert publish_spools(machine / "store") == 30
    assert f"{shard.name}: is damaged" in said[0]
    assert verify(open_store(machine / "store")) == []


def test_the_spool_of_another_store_is_left_alone(machine):
    abandoned_spool(machine / "store")
    assert publish_spools(machine / "other") == 0
    assert spooled_rows(machine / "store") == 40
