"""Real file systems that fill up or turn read-only; needs the right to mount."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stores import StoreUnreachable, publish_spools

from abag import open_store
from abag.core.messages import reporting

pytestmark = pytest.mark.slow

INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}
KEYS = np.random.default_rng(0).integers(0, 256, (4000, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((4000, 256)).astype(np.float16)  # 2 MiB


def mount(*options):
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine does not let us mount: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A file system of 1 MiB, half of what the vectors take; the spool is beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "disk"
    path.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path))
    yield path
    subprocess.run(["umount", str(path)], check=True)


def add_all(folder, **options):
    with folder.writer(attrs={}, commit_rows=200, **options) as out:
        for at in range(0, 4000, 100):
            part = slice(at, at + 100)
            out.add(KEYS[part], np.ones(100), {"mean": VECTORS[part]})
    return out


def assert_whole(root):
    folder = open_store(root).folder("antibody")
    assert np.array_equal(folder.read(KEYS), VECTORS.astype(np.float32))
    assert folder.damaged == []


def test_a_full_disk_loses_nothing_and_the_next_run_publishes_the_rest(disk):
    folder = open_store(disk / "store", create=True).create_folder("antibody", INFO)
    with pytest.raises(StoreUnreachable, match="No space left on device"):
        add_all(folder, retry_seconds=0.5)
    stored = (~folder.missing(KEYS, verify=True)).sum()
    assert 0 < stored < 4000
    mount("-o", "remount,size=8m", str(disk))
    publish_spools(disk / "store")
    assert_whole(disk / "store")


def test_a_disk_that_grows_in_time_receives_everything(disk):
    folder = open_store(disk / "store", create=True).create_folder("antibody", INFO)
    sizes = iter(["size=2m", "size=8m"])

    def grow(*_):
        mount("-o", f"remount,{next(sizes, 'size=8m')}", str(disk))

    with reporting(grow):
        assert add_all(folder).committed == 4000
    assert_whole(disk / "store")


def test_a_disk_remounted_read_only_loses_nothing(disk):
    mount("-o", "remount,size=8m", str(disk))
    folder = open_store(disk / "store", create=True).create_folder("antibody", INFO)
    out = folder.writer(attrs={}, commit_rows=200, retry_seconds=0.5)
    out.add(KEYS[:200], np.ones(200), {"mean": VECTORS[:200]})
    while not out.committed:
        pass
    mount("-o", "remount,ro", str(disk))
    out.add(KEYS[200:], np.ones(3800), {"mean": VECTORS[200:]})
    with pytest.raises(StoreUnreachable, match="Read-only file system"):
        out.close()
    mount("-o", "remount,rw", str(disk))
    publish_spools(disk / "store")
    assert_whole(disk / "store")


@pytest.mark.timeout(1800)
def test_a_disk_that_is_full_at_any_level_is_one_line_and_the_same_command_continues(tmp_path):
    if os.getuid():
        pytest.skip("only root may mount")
    script = Path(__file__).with_name("full_disk.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "6"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for system in json.loads(done.stdout).values():
        assert system["problems"] == 0, done.stderr
