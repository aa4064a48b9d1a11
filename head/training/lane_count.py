"""How many threads fit the models of a fit; without torch, for estimates of its time."""

from __future__ import annotations

MOST_LANES = 4
LANE_PAIRS = 2_000
"""Most training pairs of a fold for which lanes pay: larger matrices are faster one after the other
on all cores, and take less memory."""


def count_lanes(tasks: int, n_training: int, cores: int) -> int:
    """Return how many threads share the tasks of a fit; one for large folds.

    Parameters
    ----------
    n_training : int
        Training pairs of the largest fold.
    """
    return max(1, min(MOST_LANES, cores, tasks)) if n_training <= LANE_PAIRS else 1
