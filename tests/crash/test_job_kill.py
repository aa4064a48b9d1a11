"""Whole commands, as typed, are stopped by SIGKILL and SIGTERM anywhere, and repeated.

    python tests/crash/test_job_kill.py FOLDER KILLS SEED JOB

What a repeated command leaves is what an uninterrupted one does, to the bit.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from invoke import PLAIN_ENCODERS, TINY_ENCODERS, run

FIT = ["fit", "pairs.csv", "--store", "store", "--device", "cpu", "--run"]
JOBS = {
    "fit": [*FIT, "out/run"],
    "random": [*FIT, "out/run", "--split", "random"],
    "networks": [*FIT, "out/run", "--head", "mlp", "--epochs", "6", "--save-every", "3"],
    "folds": [*FIT, "out/run", "--split", "random", "--folds", "3", "--learning-curve"],
    "classes": ["fit", "classes.csv", *FIT[2:], "out/run", "--column", "label=binding",
                "--classes", "weak,medium,strong"],
    "words": ["fit", "words.csv", *FIT[2:], "out/run"],
    "add": ["fit", "more.csv", "--add", "run", "--run", "out/run"],
    "sweep": ["sweep", *FIT[1:-1], "--sweep", "out/sweep", "--trials", "4",
              "--epochs", "2", "--split", "random", "--final"],
    "adapt": ["adapt", "pairs.csv", "--split-from", "run", "--fold", "0", "--out", "out/adapter",
              *TINY_ENCODERS, "--epochs", "2", "--batch-size", "32", "--save-every", "2"],
    "embed": ["embed", "more.csv", "--store", "out/store", *PLAIN_ENCODERS],
    "scan": ["scan", "run", "--parents", "parent.csv", "--out", "out/scan.csv", "--force"],
    "rank": ["rank", "scored.csv", "--batch", "8", "--out", "out/order.csv", "--force"],
    "predict": ["predict", "more.csv", "--run", "run", "--out", "out/scored.csv", "--force"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("job", [*JOBS])
def test_a_stopped_command_is_repeated_to_the_same_bits(killed_anywhere, job):
    killed_anywhere(__file__, 12, 1, job)


def make_inputs(folder):
    """Write tables of variants of six antibodies, their store, a run, and what it predicts."""
    import numpy as np
    import pandas as pd
    from drawn import demo_table, draw_chains

    os.chdir(folder)
    rng = np.random.default_rng(5)
    antigens = draw_chains(rng, 6, 60)
    rows = []
    for parent in demo_table()["heavy"].unique()[:6]:
        for at in range(3, 9):
            variant = parent[:at] + "AC"[parent[at] == "A"] + parent[at + 1 :]
            rows += [(variant, antigen, 8 + rng.normal()) for antigen in antigens]
    more = pd.DataFrame(rows, columns=["heavy", "antigen", "pKd"])
    more.to_csv("more.csv", index=False)
    table = more.drop(index=more.index[::8])
    table.to_csv("pairs.csv", index=False)
    pkd = table.pop("pKd")
    words = np.where(pkd > 8, "yes", "no")
    table.assign(binds=words).to_csv("words.csv", index=False)
    classes = pd.cut(pkd, [0, 7.5, 8.5, 99], labels=["weak", "medium", "strong"])
    table.assign(binding=classes).to_csv("classes.csv", index=False)
    table.head(1).to_csv("parent.csv", index=False)
    run("embed", "more.csv", "--store", "store", *PLAIN_ENCODERS)
    run(*FIT, "run", "--head", "ridge", "--split", "random")
    run("predict", "more.csv", "--run", "run", "--out", "scored.csv")


def compute(folder, out, job):
    """Run the command in a folder that holds the inputs, with a cache of its own."""
    from abag.cli import main

    trial = out.resolve()
    trial.mkdir(exist_ok=True)
    for path in folder.iterdir():
        link = trial / path.name
        if not path.name.startswith(("out", "unbroken")) and not link.is_symlink():
            link.symlink_to(path.resolve())
    os.environ["XDG_CACHE_HOME"] = str(trial / "cache")
    os.chdir(trial)
    Path("out").mkdir(exist_ok=True)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    main(JOBS[job])


def snapshot(trial):
    """Return all files of the result but for times."""
    from forks import snapshot as files_of
    from stores import verify
    from test_scan_kill import vectors

    from abag import open_store

    out = trial / "out"
    if (out / "store").exists():
        assert verify(open_store(out / "store")) == []
        return vectors(out / "store")
    varying = re.compile(re.escape(str(trial.resolve())) + r"|\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    files = files_of(out)
    files.pop("sweep/journal.log", None)  # times, and numbers that Optuna draws
    return {
        name: varying.sub("", json.dumps(files[name], sort_keys=True, default=repr))
        for name in files
    }


def check_stop(trial):
    """Raise unless the last of what a stopped command said is one line."""
    said = (trial / "log").read_text()
    assert "Traceback" not in said, said
    assert " ".join(said.split()).endswith("run the same command again to continue."), said


def main(folder, kills, seed, job):
    from faults import training_step
    from forks import kill_anywhere

    kill_anywhere(
        folder, int(kills), int(seed), make_inputs,
        lambda folder, out: compute(folder, out, job),
        step=training_step(), snapshot=snapshot, check_stop=check_stop,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
