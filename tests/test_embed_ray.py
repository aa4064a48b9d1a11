"""Stage one on a Ray cluster of this machine's two CPU slots."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn import TINY
from embedding import assert_same_vectors, finished
from invoke import PLAIN_ENCODERS, TINY_ENCODERS

import abag
from abag import AbagError, EmbedOptions, MissingPackage, StoreError
from abag.embed.embed import embed_table
from abag.embed.job import identify_for
from abag.embed.tables.chains import keys_array
from abag.embed.tables.pairs import SequencePart
from abag.embed.workers import _units, _Worker
from abag.head.demo import demo_table

pytest.importorskip("ray", reason="extra ray")

DRIVER = """
import ray
from abag.cli import main

real = ray.init
ray.init = lambda *a, **k: real(*a, num_cpus=2, include_dashboard=False, **k)
main()
"""


def start(table, store, *options):
    command = ["embed", table, "--store", store, *options, "--json", "--ray"]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_units_hold_every_sequence_once_and_about_as_many_tokens():
    rng = np.random.default_rng(0)
    chains = [("M" * int(n),) for n in rng.integers(30, 900, 500)]
    part = SequencePart(chains, keys_array("antigen", chains), np.arange(500))
    layout = identify_for("tiny-esm2", "antigen", EmbedOptions()).layout
    units = list(_units(iter([part]), layout, 8000))
    assert sorted(row for unit in units for row in unit.rows) == list(range(500))
    tokens = []
    for unit in units:
        tokens.append(sum(len(chain) + 2 for (chain,) in unit.chains))
    assert max(tokens) < 9000
    assert min(tokens[:-1]) > 7000


def test_a_worker_that_finds_other_weights_under_the_name_refuses(tmp_path):
    task = ("tiny-esm2", "antigen", "0" * 32, tmp_path / "store", EmbedOptions())
    with pytest.raises(StoreError, match="same checkpoint on every machine"):
        _Worker("CPU", task).load()


def test_ray_and_devices_together_are_refused():
    with pytest.raises(AbagError, match="cannot be combined"):
        EmbedOptions(devices=2, ray="")


def test_an_address_without_a_cluster_is_refused_before_the_store_is_made(tmp_path):
    table = demo_table().head(5)
    with pytest.raises(
        MissingPackage, match=r"--ray nowhere: no cluster found .*RAY_AUTH_MODE=token"
    ):
        embed_table(table, tmp_path / "store", "composition", "composition", ray="nowhere")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["nonsense.invalid:1", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nothing_answers_is_refused_within_seconds(tmp_path, address):
    start_s = time.monotonic()
    with pytest.raises(MissingPackage, match=f"--ray {address}: no cluster found"):
        embed_table(
            demo_table().head(5), tmp_path / "store", "composition", "composition", ray=address
        )
    assert time.monotonic() - start_s < 20
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # 20 s of starting Ray and its workers
def test_a_run_on_ray_gives_the_store_of_a_single_process(tmp_path):
    table = demo_table().head(60)
    table.to_csv(tmp_path / "pairs.csv", index=False)
    summary = finished(start(tmp_path / "pairs.csv", tmp_path / "store", *PLAIN_ENCODERS))
    whole = embed_table(table, tmp_path / "whole", "composition", "composition")
    check_same(tmp_path, summary, whole)


@pytest.mark.slow
def test_a_change_of_precision_is_said_once_on_ray_too(tmp_path):
    table = demo_table().head(20)
    table.to_csv(tmp_path / "pairs.csv", index=False)
    embed_table(table, tmp_path / "store", limit=5, precision="bf16", **TINY)
    driver = start(
        tmp_path / "pairs.csv", tmp_path / "store", *TINY_ENCODERS, "--precision", "fp32"
    )
    _, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert err.count("note: antibody-tiny-igt5") == 1, err
    assert "begun in bf16, continued in fp32" in err


def check_same(tmp_path, summary, whole):
    counts = assert_same_vectors(tmp_path / "store", tmp_path / "whole", rtol=2e-3, atol=2e-3)
    for count, plural in zip(counts, ("antibodies", "antigens"), strict=True):
        assert summary[plural]["encoded"] == whole[plural]["unique"] == count


def workers_of(process):
    """Process ids of the actors of one driver's cluster."""
    parents = {}
    names = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
                names[int(folder.name)] = (folder / "cmdline").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])

    def descends(pid):
        return pid == process.pid or (pid in parents and descends(parents[pid]))

    return [pid for pid, name in names.items() if "_Worker" in name and descends(pid)]


def wait_for(count, more_than, process):
    while count() <= more_than and process.poll() is None:
        time.sleep(0.05)


@pytest.mark.slow
def test_two_killed_workers_and_a_killed_driver_lose_nothing(tmp_path):
    rng = np.random.default_rng(0)
    heavies = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 120)) for _ in range(3000)]
    table = pd.DataFrame({"heavy": heavies, "antigen": demo_table()["antigen"][0]})
    table.to_csv(tmp_path / "pairs.csv", index=False)
    store = tmp_path / "store"
    options = [*TINY_ENCODERS, "--commit-seconds", "0.5", "--batch-tokens", "1024"]

    def shards():
        return len(list(store.rglob("*.h5")))

    driver = start(tmp_path / "pairs.csv", store, *options)
    wait_for(shards, 2, driver)
    driver.send_signal(signal.SIGKILL)  # its actors end with it
    driver.communicate()
    wait_for(lambda: -len(workers_of(driver)), -1, driver)
    driver = start(tmp_path / "pairs.csv", store, *options)
    killed = []
    for _ in range(2):
        before = shards()
        wait_for(lambda before=before: shards() > before and len(workers_of(driver)), 0, driver)
        assert driver.poll() is None, driver.communicate()
        killed.append(workers_of(driver)[0])
        os.kill(killed[-1], signal.SIGKILL)
    summary = finished(driver)
    assert len(set(killed)) == 2
    assert summary["antibodies"]["reused"] > 0
    whole = embed_table(table, tmp_path / "whole", "tiny-igt5", "tiny-esm2")
    summary["antibodies"]["encoded"] += summary["antibodies"]["reused"]
    check_same(tmp_path, summary, whole)
    rows = abag.open_store(store).folder("antibody").rows
    print(f"{rows - 3000} sequences stored twice, {summary['antibodies']['reused']} reused")
