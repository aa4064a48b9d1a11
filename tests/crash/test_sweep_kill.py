"""A sweep that is killed at any point is continued by the same command."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

TRIALS = 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_sweep_is_continued_to_the_wanted_number_of_trials(killed_anywhere):
    killed_anywhere(__file__, 30, 1)


def search(folder, out):
    import abag

    return abag.sweep(
        folder / "pairs.csv",
        folder / "store",
        out,
        trials=TRIALS,
        folds=2,
        epochs=2,
        device="cpu",
        split="random",
        final=True,
    )


def snapshot(out):
    """Return trials and final predictions, which are those of an unbroken sweep."""
    return [(out / name).read_bytes() for name in ("trials.csv", "final/predictions.parquet")]


def main(folder, kills, seed):
    from faults import training_step
    from forks import kill_anywhere
    from test_fit_kill import make_inputs

    step = training_step()
    kill_anywhere(folder, kills, seed, make_inputs, search, step=step, snapshot=snapshot)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
