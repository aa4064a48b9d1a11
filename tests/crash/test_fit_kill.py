"""A fit that is killed at any point ends with the same files as an uninterrupted one."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

OPTIONS = {
    "widths": (8, 4), "epochs": 4, "batch_size": 8, "accumulate": 2, "save_every": 3, "patience": 3,
    "device": "cpu", "split": "random", "report": False,
}  # fmt: skip


@pytest.mark.ci
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "seed", "members", "folds"),
    [
        (6, 0, 1, 0),
        (5, 2, 3, 0),
        (4, 4, 1, 3),
        pytest.param(220, 1, 1, 0, marks=pytest.mark.slow),
        pytest.param(100, 3, 3, 0, marks=pytest.mark.slow),
        pytest.param(100, 5, 1, 3, marks=pytest.mark.slow),
    ],
)
def test_a_killed_fit_resumes_to_the_same_bits_as_an_uninterrupted_one(
    killed_anywhere, kills, seed, members, folds
):
    killed_anywhere(__file__, kills, seed, members, folds)


def make_inputs(folder):
    """Write a table of 60 pairs with a planted rule, and a store of its vectors."""
    from abag.embed.sequences.pairs import read_pairs
    from abag.embed.store.store import open_store

    rng = np.random.default_rng(0)
    heavy = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 12)) for _ in range(20)]
    antigen = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 12)) for _ in range(3)]
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigen], columns=["heavy", "antigen"])
    frame["pKd"] = 7 + rng.normal(size=len(frame))
    frame.to_csv(folder / "pairs.csv", index=False)
    table = read_pairs(folder / "pairs.csv")
    store = open_store(folder / "store", create=True)
    for kind, unique in (("antibody", table.antibodies), ("antigen", table.antigens)):
        vectors = store.create_folder(kind, {"name": "drawn", "fingerprint": "ab" * 16})
        with vectors.writer(attrs={"precision": "fp32"}) as writer:
            n = len(unique.keys)
            x_ND = rng.normal(size=(n, 6)).astype(np.float32)
            writer.add(unique.keys, np.full(n, 12, np.int32), {"mean": x_ND})


def fit(folder, run):
    import abag

    return abag.fit(folder / "pairs.csv", folder / "store", run, say=lambda _text: None, **OPTIONS)


def snapshot(run):
    """Return the content of the run, without times, speeds and resumptions."""
    from abag.head.training.checkpoint import load

    kept = {}
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        name = str(path.relative_to(run))
        if "checkpoints" in path.parts and path.suffix != ".jsonl":
            found = load(path)
            state = {k: v for k, v in found.state.items() if k != "seconds"}
            state["log"] = [
                {k: v for k, v in one.items() if k != "seconds"} for one in state["log"]
            ]
            kept[name] = (state, {n: t.numpy().tobytes() for n, t in found.tensors.items()})
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif name == "summary.json":
            values = json.loads(path.read_text())
            kept[name] = {
                k: v for k, v in values.items() if k not in ("run", "seconds", "resumed_from_step")
            }
        else:
            kept[name] = path.read_bytes()
    return kept


def main(folder, kills, seed, members=1, folds=0):
    folder.mkdir(parents=True, exist_ok=True)
    OPTIONS.update(members=members, folds=folds, patience=0 if folds else 3)
    # Import what a fit imports on first use once, before the forks.
    import pyarrow.parquet  # noqa: F401
    import torch
    from forks import in_child, kill_anywhere

    import abag.head.fit  # noqa: F401
    from abag.head.training.stack import TrainingStep

    torch.set_num_threads(1)
    assert in_child(lambda: make_inputs(folder)) == 0
    kill_anywhere(
        folder, kills, seed, lambda run: fit(folder, run), step=(TrainingStep, "run"),
        snapshot=snapshot, summary=lambda run: json.loads((run / "summary.json").read_text()),
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
