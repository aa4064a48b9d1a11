"""A default fit that is killed at chosen places continues without fitting finished parts again."""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

OPTIONS = {"widths": (8, 4), "epochs": 4, "patience": 2, "save_every": 1, "device": "cpu"}
KINDS = ("cost", "step", "fit")
"""What a fit does: the cost of a kernel in all folds, a step of networks, a part in closed form."""


@pytest.mark.ci
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_a_default_fit_killed_anywhere_ends_alike_and_repeats_no_finished_part(result_of, kills):
    result = result_of(__file__, kills)
    assert {kind for kind, _, _ in result["killed"]} == {*KINDS}
    assert len(result["killed"]) == kills
    for kind, n, outcome in result["killed"]:
        assert outcome["ended"] == [-signal.SIGKILL, 0], (kind, n)
        assert outcome["different"] == [], (kind, n)
        # what was fitted while the process was killed is fitted again, and nothing else
        assert outcome["repeated"] == [], (kind, n)


def make_inputs(folder):
    """Write a table of variants of one antibody, so that residues are compared, and its vectors."""
    import numpy as np
    import pandas as pd
    from drawn import add_vectors, draw_chains

    rng = np.random.default_rng(3)
    parent, *antigens = draw_chains(rng, 4, 40)
    rows = []
    for at in range(3, 27):
        variant = parent[:at] + "AC"[parent[at] == "A"] + parent[at + 1 :]
        rows += [(variant, antigen, 8 + rng.normal()) for antigen in antigens]
    table = pd.DataFrame(rows, columns=["heavy", "antigen", "pKd"])
    table.to_csv(folder / "pairs.csv", index=False)
    add_vectors(folder / "store", table)


def compute(folder, run, journal, kill_at=None):
    """Fit, and note in a file what begins and ends; die when something begins for the n-th time."""
    import abag
    from abag.head import fit as fitting
    from abag.head.models import registry
    from abag.head.models.kernel_search import KernelSearch
    from abag.head.training import tasks
    from abag.head.training.stack import TrainingStep

    tasks.LEAST_SECONDS = 0.0
    fitting.count_threads = lambda *_: 1
    fitting.count_cores = lambda: 1
    counts = dict.fromkeys(KINDS, 0)
    notes = journal.open("a", encoding="utf-8", buffering=1)

    def watched(kind, real, name):
        def call(*arguments):
            counts[kind] += 1
            if (kind, counts[kind]) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            notes.write(json.dumps([kind, name(*arguments)]) + "\n")
            return real(*arguments)

        return call

    for name, entry in registry.MODELS.items():
        if entry.fit is not None:
            fit = watched(
                "fit", entry.fit, lambda training, name=name: f"{name} {training.rows.tolist()}"
            )
            registry.MODELS[name] = replace(entry, fit=fit)
    TrainingStep.run = watched("step", TrainingStep.run, lambda step, seed: f"{id(step)} {seed}")
    KernelSearch._costs_of = watched(
        "cost", KernelSearch._costs_of, lambda _search, *asked: str(asked)
    )
    abag.fit(folder / "pairs.csv", folder / "store", run, **OPTIONS)
    notes.close()


def noted(journal, kind):
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [name for noted_kind, name in lines if noted_kind == kind]


def places(total, first_folds):
    """Return what begins for which time when the process is killed, one of each kind first."""
    return [
        ("cost", total["cost"]), ("step", total["step"] // 2), ("fit", 2 * first_folds + 2),
        ("cost", 2), ("step", 1), ("step", total["step"]),
        ("fit", 3), ("fit", first_folds + 1), ("fit", total["fit"]),
    ]  # fmt: skip


def content(run):
    """Return all files of a run but for times; the report shows when it was written."""
    from forks import snapshot

    files = snapshot(run)
    files["report.html"] = re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC", b"", files["report.html"])
    return files


def main(folder, kills):
    from forks import import_all, in_child

    import_all()
    folder.mkdir(parents=True, exist_ok=True)
    assert in_child(lambda: make_inputs(folder)) == 0
    journal = folder / "unbroken.jsonl"
    unbroken = folder / "unbroken/run"
    assert in_child(lambda: compute(folder, unbroken, journal)) == 0
    expected = content(unbroken)
    whole = {kind: noted(journal, kind) for kind in KINDS}
    rows = [name.partition(" ")[2] for name in whole["fit"]]
    last_training = rows[-1]
    killed = []
    totals = {kind: len(names) for kind, names in whole.items()}
    for kind, n in places(totals, rows.count(rows[0]))[:kills]:
        run = folder / f"{kind}-{n}/run"
        journal = folder / f"{kind}-{n}.jsonl"
        ended = [
            in_child(lambda run=run, at=at, journal=journal: compute(folder, run, journal, at))
            for at in ((kind, n), None)
        ]
        files = content(run)
        different = [name for name in expected if files.get(name) != expected[name]]
        fits = [name for name in noted(journal, "fit") if name.partition(" ")[2] != last_training]
        repeated = [name for name in {*fits} if fits.count(name) > 1]
        steps = noted(journal, "step")
        if len(steps) > len(whole["step"]):
            repeated.append(f"{len(steps)} steps")
        killed.append((kind, n, {"ended": ended, "different": different, "repeated": repeated}))
    print(json.dumps({"killed": killed}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
