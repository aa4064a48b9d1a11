"""``abag embed`` in other processes, and stores compared with those of one process."""

import json
import subprocess
import sys
import time

import numpy as np
from invoke import PLAIN_ENCODERS

from abag.embed.store.store import open_store
from abag.head.data.demo import demo_table

SLOW = """
import time
from abag.embed import encode

real = encode.load_encoder

def slow(*args, **kwargs):
    encoder = real(*args, **kwargs)
    def call(batch):
        time.sleep(0.05)
        return encoder(batch)
    return call

encode.load_encoder = slow

if __name__ == "__main__":
    from abag.cli import main
    main()
"""


def start_embed(folder, rows, *options, launcher=()):
    """Embed rows of the demo in a process whose encoders are slow, and which commits often."""
    demo_table().head(rows).to_csv(folder / "pairs.csv", index=False)
    (folder / "slow.py").write_text(SLOW)
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
