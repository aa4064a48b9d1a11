"""``abag embed`` in other processes, and stores compared with those of one process."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from drawn import demo_table
from invoke import PLAIN_ENCODERS

from abag import open_store

SLOW = """
import sys, time
import pytest
sys.path.append({tests!r})
from faults import change_encoders

def slow(encode, batch):
    time.sleep(0.05)
    return encode(batch) / {divisor}

change_encoders(pytest.MonkeyPatch(), slow)

if __name__ == "__main__":
    from abag.cli import main
    main()
"""


def start_embed(folder, rows, *options, launcher=(), divisor=1):
    """Embed rows of the demo in a process whose encoders are slow, and which commits often.

    All vectors are divided by a number.
    """
    demo_table().head(rows).to_csv(folder / "pairs.csv", index=False)
    tests = str(Path(__file__).parent)
    (folder / "slow.py").write_text(SLOW.format(tests=tests, divisor=divisor))
    command = [sys.executable, *launcher, folder / "slow.py", "embed", folder / "pairs.csv"]
    command += ["--store", folder / "store", *PLAIN_ENCODERS, "--device", "cpu", "--json"]
    command += ["--commit-seconds", "0.2", "--batch-tokens", "600", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_shards(store, process, count):
    while len(list(store.rglob("*.h5"))) < count and process.poll() is None:
        time.sleep(0.01)


def finished(process):
    """Return the JSON object that a process prints."""
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    (line,) = [line for line in out.splitlines() if line.strip()]  # the first rank alone prints
    return json.loads(line)


def assert_same_vectors(store, whole, **tolerance):
    """Compare all vectors of two stores, by default to the bit; return the number of each kind."""
    counts = []
    for kind in ("antibody", "antigen"):
        ours, theirs = (open_store(path).folder(kind) for path in (store, whole))
        keys = np.concatenate(theirs.keys())
        near = {"rtol": 0} | tolerance
        np.testing.assert_allclose(ours.read(keys), theirs.read(keys), **near)
        counts.append(len(keys))
    return counts
