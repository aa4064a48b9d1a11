"""Clusters that another process finds while the heads train change nothing but the time."""

import json
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import abag
from abag.cli import main
from abag.core.options import BadOption
from abag.core.workers import Workers
from abag.embed.sequences.pairs import read_pairs
from abag.head import fit as fit_module
from abag.head.clustering.clusters import antibody_clusters, antigen_clusters
from abag.head.clustering.mmseqs import MMseqsFailed
from abag.head.data.demo import demo_table
from abag.head.data.labels import label_pairs
from abag.head.splits import clusters_beside, groups
from abag.head.splits.clusters_beside import antibodies_clustered_meanwhile
from abag.head.splits.groups import PairGroups
from abag.head.splits.split_options import SplitOptions

TIMES = {"run", "seconds"}


@pytest.fixture
def fit(tmp_path, monkeypatch):
    table = demo_table().head(300)
    table.to_csv(tmp_path / "pairs.csv", index=False)
    plain = ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
    where = ["--store", str(tmp_path / "store")]

    def call(*arguments):
        result = CliRunner().invoke(main, [*map(str, arguments)])
        assert result.exit_code == 0, result.output

    call("embed", tmp_path / "pairs.csv", *where, *plain)

    def one(name, *options):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache of {name}"))
        run = tmp_path / name
        call(
            "fit",
            tmp_path / "pairs.csv",
            *where,
            "--run",
            run,
            "--epochs",
            2,
            "--head",
            "mlp",
            *options,
        )
        summary = json.loads((run / "summary.json").read_text())
        for part in (summary, summary["used"]):
            for key in TIMES & part.keys():
                del part[key]
        return summary, pd.read_parquet(run / "predictions.parquet")

    return one


@pytest.mark.parametrize("options", [["--split", "random"], ["--split", "both"]])
def test_a_fit_is_the_same_with_clusters_found_beside_it(fit, monkeypatch, options):
    expected, predicted = fit("alone", *options)
    monkeypatch.setattr(clusters_beside, "WORTH_A_PROCESS", 1)
    asked, ask = [], Workers.ask
    monkeypatch.setattr(
        Workers, "ask", lambda workers, *given: asked.append(ask(workers, *given)) or asked[-1]
    )
    found, again = fit("beside", *options)
    assert asked == [b"kept"]
    assert found == expected
    assert list(found["split"]["leaks"]) == list(expected["split"]["leaks"])
    pd.testing.assert_frame_equal(again, predicted)
    fit("beside again", *options)  # another cache
    assert len(asked) == 2


@pytest.mark.parametrize("can_keep", [True, False])
@pytest.mark.parametrize("split", ["random", "antigen"])
def test_antigens_are_clustered_once_and_beside_the_import_of_torch(
    fit, monkeypatch, split, can_keep
):
    found = []

    def search(*given):
        found.append(threading.current_thread() is threading.main_thread())
        return antigen_clusters(*given)

    monkeypatch.setattr(groups, "antigen_clusters", search)
    if not can_keep:
        monkeypatch.setattr(groups, "keep", lambda *_: None)
    fit("run", "--split", split)
    assert found == [False]


def test_a_problem_of_the_search_is_reported_as_if_it_were_not_beside(fit, tmp_path, monkeypatch):
    def fail(*_):
        msg = "mmseqs: failed"
        raise MMseqsFailed(msg)

    monkeypatch.setattr(groups, "antigen_clusters", fail)
    with pytest.raises(AssertionError, match="Error: mmseqs: failed"):
        fit("run", "--split", "random")
    assert not (tmp_path / "run").exists()


MMSEQS = """#!/bin/sh
[ "$1" = version ] && echo 0 && exit
sleep 30 &  # as mmseqs does, which is a script that starts further processes
echo $! > "$BEGUN.partial" && mv "$BEGUN.partial" "$BEGUN"
wait
touch "$BEGUN.ended"
"""


@pytest.fixture
def slow_mmseqs(tmp_path, monkeypatch):
    """Have an mmseqs that takes 30 s; return the file in which it names what it has started."""
    program = tmp_path / "bin" / "mmseqs"
    program.parent.mkdir()
    program.write_text(MMSEQS)
    program.chmod(0o755)
    begun = tmp_path / "begun"
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("BEGUN", str(begun))
    return begun


def has_ended(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes of Linux")
@pytest.mark.parametrize("error", [BadOption, KeyboardInterrupt])
def test_a_fit_that_fails_kills_mmseqs2_and_leaves_nothing(
    tmp_path, monkeypatch, slow_mmseqs, error
):
    begun, scratch = slow_mmseqs, tmp_path / "scratch"

    def fail():
        while not begun.exists():
            time.sleep(0.01)
        raise error

    table = demo_table().head(60)
    abag.embed_table(table, tmp_path / "store", "composition", "composition")
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(fit_module, "import_torch", fail)
    with pytest.raises(error):
        abag.fit(table, tmp_path / "store", tmp_path / "run", cluster_tool="mmseqs")
    assert has_ended(int(begun.read_text()))
    assert not Path(f"{begun}.ended").exists()
    assert not list(scratch.iterdir())
    assert not (tmp_path / "run").exists()


@pytest.fixture
def pairs():
    return label_pairs(read_pairs(demo_table().head(200)))


def test_clusters_are_found_where_they_are_needed_if_the_process_fails(
    pairs, tmp_path, monkeypatch
):
    monkeypatch.setattr(clusters_beside, "WORTH_A_PROCESS", 1)
    monkeypatch.setattr(clusters_beside, "Workers", lambda name, _: Workers(name, 0))
    options = SplitOptions(split="antibody")
    with antibodies_clustered_meanwhile(pairs, options, tmp_path) as wait:
        found = PairGroups(pairs, options, tmp_path, {"antibody": wait}).of_method("antibody")
    chains = pairs.table.antibodies.chains
    (expected,) = antibody_clusters(chains, [options.antibody_identity])
    _, first = np.unique(found, return_index=True)
    assert len(first) == len(np.unique(expected[pairs.antibody]))


@pytest.mark.skipif(not hasattr(os, "getpgid"), reason="needs process groups")
def test_ctrl_c_does_not_reach_the_process_itself():
    with Workers(clusters_beside.__name__, 1) as workers:
        (process,) = workers.started
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()


def test_the_process_ends_with_the_block_and_is_not_started_for_known_clusters(
    pairs, tmp_path, monkeypatch
):
    monkeypatch.setattr(clusters_beside, "WORTH_A_PROCESS", 1)
    options, begun = SplitOptions(), time.monotonic()
    started = []

    def start(name, count):
        started.append(Workers(name, count))
        return started[-1]

    monkeypatch.setattr(clusters_beside, "Workers", start)
    with pytest.raises(KeyError), antibodies_clustered_meanwhile(pairs, options, tmp_path):
        raise KeyError
    assert [process.poll() for one in started for process in one.started] != [None]
    assert time.monotonic() - begun < 10
    PairGroups(pairs, options, tmp_path).of_method("antibody")
    with antibodies_clustered_meanwhile(pairs, options, tmp_path) as wait:
        assert wait is None
    assert groups.has_clusters(
        groups.choose_method("antibody", 2, "fv", "builtin"),
        pairs.table.antibodies.keys,
        options.antibody_identity,
        tmp_path,
    )
