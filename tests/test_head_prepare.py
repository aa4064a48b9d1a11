"""What is prepared for a fit while a GPU encodes, on tables that the project draws."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from chunks import set_cores
from drawn import RESIDUES
from faults import raising
from heads import demo_table
from invoke import PLAIN_ENCODERS, run

from abag import FitConfig
from abag.embed import encode
from abag.embed.job import KindJob
from abag.head.prepare import FEWEST_CORES, MOST_ROWS, prepare_fit, preparing


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demo_table().head(200).to_csv(tmp_path / "pairs.csv", index=False)
    return tmp_path / "pairs.csv"


@pytest.fixture
def on_any_device(monkeypatch):
    """Prepare as beside a GPU, which is busy until all is prepared."""
    real = encode.encode_parts

    def encode_slowly(*arguments, **options):
        while serving():
            time.sleep(0.05)
        return real(*arguments, **options)

    set_cores(monkeypatch, FEWEST_CORES)
    monkeypatch.setattr("abag.embed.embed._encodes_alone_on_gpu", lambda *_: True)
    monkeypatch.setattr(encode, "encode_parts", encode_slowly)


def cached():
    """Return the files of the cache, each with its number, which is another if it is rewritten."""
    files = Path(os.environ["XDG_CACHE_HOME"]).rglob("*")
    return {path: path.stat().st_ino for path in files if path.is_file()}


def embed(table, *options):
    run("embed", table, "--store", table.parent / "store", *PLAIN_ENCODERS, *options)


def fit(table, *options):
    where = ["--store", table.parent / "store", "--run", table.parent / "run"]
    run("fit", table, *where, "--head", "ridge", *options)


@pytest.mark.ci
def test_a_fit_after_embed_finds_clusters_and_numbering_in_the_cache(
    table, on_any_device, monkeypatch
):
    options = ["--column", "antigen=antigen", "--limit", "150"]
    beside = []
    load = KindJob.load
    monkeypatch.setattr(KindJob, "load", lambda job: beside.append(serving()) or load(job))
    embed(table, *options)
    assert beside[0] == []  # until the first encoder is loaded
    prepared = cached()
    assert {"clusters", "numbering"} <= {path.parent.name for path in prepared}
    fit(table, *options)
    assert cached() == prepared


@pytest.mark.ci
def test_a_damaged_prepared_cache_is_computed_again(table, on_any_device):
    prepare_fit(table, FitConfig())
    prepared = [path for path in cached() if path.parent.name in ("clusters", "numbering")]
    before = [path.read_bytes() for path in prepared]
    for path in prepared:
        path.write_bytes(path.read_bytes()[:90])
    embed(table, "--no-prepare-fit")
    fit(table)
    assert [path.read_bytes() for path in prepared] == before


def test_nothing_is_prepared_with_few_cores_or_for_a_huge_table(table, monkeypatch):
    for cores, rows in ((FEWEST_CORES - 1, 100), (16, MOST_ROWS + 1), (16, 100)):
        set_cores(monkeypatch, cores)
        before = psutil.Process().children()
        with preparing(table, {}, rows):
            started = len(psutil.Process().children()) - len(before)
            assert started == (cores == 16 and rows == 100)


@pytest.mark.parametrize("options", [["--no-prepare-fit"], ["--kind", "antigen"]])
def test_nothing_is_prepared_if_not_asked_for(table, on_any_device, options):
    embed(table, *options)
    assert not cached()


def test_nothing_is_prepared_without_a_gpu_or_of_a_table_that_cannot_be_fitted(
    table, monkeypatch, request
):
    with monkeypatch.context() as patch:
        patch.setattr("abag.head.prepare.preparing", raising(AssertionError))
        embed(table)
    request.getfixturevalue("on_any_device")
    demo_table().head(20).drop(columns="pKd").to_csv(table, index=False)
    embed(table)
    assert not cached()


PARENT = """
import os, sys, time
os.sched_getaffinity = lambda _: set(range(16))
from abag.head.prepare import preparing
from pathlib import Path
with preparing(Path(sys.argv[1]), {}, 10):
    print("entered", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def serving():
    """Process ids of children that prepare."""
    process_ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            home = f"XDG_CACHE_HOME={os.environ['XDG_CACHE_HOME']}".encode()
            ours = home in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"abag.head.prepare" in command and ours:
            process_ids.append(int(process.name))
    return process_ids


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "after"), [(signal.SIGKILL, 3), (signal.SIGTERM, 0), (signal.SIGINT, 0)]
)
def test_a_stopped_parent_leaves_no_process(tmp_path, table, number, after):
    rng = np.random.default_rng(0)
    antigens = ["".join(rng.choice([*RESIDUES], 400)) for _ in range(2000)]
    pd.DataFrame({"heavy": "EVQLVES", "antigen": antigens, "pkd": 7.0}).to_csv(table, index=False)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, table, "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        assert parent.stdout.readline() == "entered\n"
        time.sleep(after)
        assert serving()
        parent.send_signal(number)
        parent.wait(10)
    deadline = time.monotonic() + 10
    while serving() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert serving() == []
