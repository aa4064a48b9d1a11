"""Columns that commands add to tables, and how one is recognised when its table comes back.

Such columns are never labels: a table of predictions returns from the laboratory with measurements
beside them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

RANK_COLUMNS = ("rank", "score", "expected_best", "probability_above")
OWN_SCORE = "rank_score"
"""Name of the scores of `rank` beside a column ``score`` of the user."""
PREDICT_COLUMNS = ("pkd_predicted", "sigma", "regime", "far", "why_far")
STRONG_COLUMN = "p_strong"
SCAN_MEASURED = ("pkd_measured", "measured")
WRITTEN_BY = {
    "rank": (*RANK_COLUMNS, OWN_SCORE),
    "predict": (*PREDICT_COLUMNS, STRONG_COLUMN, "predicted"),
    "scan": ("difference", "difference_sigma", *SCAN_MEASURED),
}
"""Columns that commands add to tables, which come back with measurements from the laboratory."""
_CERTAIN = frozenset(
    {
        "rank",
        OWN_SCORE,
        "expected_best",
        "probability_above",
        "pkd_predicted",
        "why_far",
        "p_strong",
        "difference_sigma",
        "pkd_measured",
    }
)
"""Of these, names that no other table has; the others are of a command only beside one."""


def written_by(name: str, names: Sequence[object]) -> str:
    """Return the command that has written a column of a table, or nothing."""
    written = _as_written(name)
    if written != "rank" and not any(written in columns for columns in WRITTEN_BY.values()):
        return ""  # before the others are looked at: tables may have 100,000 columns
    beside = {_as_written(str(other)) for other in names} - {written}
    if written == "score":  # `predict` writes none, and `rank` not alone
        is_of_rank = not beside.isdisjoint(RANK_COLUMNS) and OWN_SCORE not in beside
        return "rank" if is_of_rank else ""
    for command, columns in WRITTEN_BY.items():
        if written == "measured" and "difference" not in beside:
            continue  # a word of every laboratory
        if written in columns and (written in _CERTAIN - {"rank"} or beside & _CERTAIN):
            return command
        if written == "rank" and "score" in beside:
            return "rank"
    return ""


def score_column(names: Sequence[object]) -> str:
    """Return the name of the scores that `rank` adds: ``score``, unless that is the user's own."""
    is_own = "score" in names and not written_by("score", names)
    return OWN_SCORE if is_own else "score"


def _as_written(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())
