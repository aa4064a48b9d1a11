"""A fit that is killed at any point ends with the same files as an uninterrupted one."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

OPTIONS = {
    "widths": (8, 4),
    "epochs": 4,
    "batch_size": 8,
    "accumulate": 2,
    "save_every": 3,
    "patience": 3,
    "device": "cpu",
    "split": "random",
    "report": False,
}


@pytest.mark.ci
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kills", "seed", "members", "folds"), [
    (4, 0, 1, 0), (3, 2, 3, 0), (3, 4, 1, 3), pytest.param(220, 1, 1, 0, marks=pytest.mark.slow),
    pytest.param(100, 3, 3, 0, marks=pytest.mark.slow),
    pytest.param(100, 5, 1, 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_killed_fit_resumes_to_the_same_bits_as_an_uninterrupted_one(
    killed_anywhere, kills, seed, members, folds
):
    killed_anywhere(__file__, kills, seed, members, folds)


def make_inputs(folder):
    """Write a table of 60 pairs, and a store of its vectors."""
    from drawn import add_vectors, draw_pairs

    table = draw_pairs(20, 3)
    table.to_csv(folder / "pairs.csv", index=False)
    add_vectors(folder / "store", table)


def fit(folder, run):
    import abag

    return abag.fit(folder / "pairs.csv", folder / "store", run, **OPTIONS)


def main(folder, kills, seed, members=1, folds=0):
    from faults import training_step
    from forks import kill_anywhere, snapshot

    OPTIONS.update(members=members, folds=folds, patience=0 if folds else 3)
    kill_anywhere(
        folder,
        kills,
        seed,
        make_inputs,
        fit,
        step=training_step(),
        snapshot=snapshot,
        summary=lambda run: json.loads((run / "summary.json").read_text()),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
