"""Results of a run: what its report is drawn from, and the contents of summary.json.

Damage of summary.json is found when it is read, and not where a value is used.
"""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    NotRequired,
    Protocol,
    TypedDict,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, distinct, hex_keys
from abag.core.files import FileDamaged, read_json
from abag.core.messages import printable
from abag.head.evaluation.comparison import MeasuredPairs
from abag.head.evaluation.metrics import Scores
from abag.head.evaluation.regime_scores import RegimeScore

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs
    from abag.head.regimes.regimes import MeasuredRegime
    from abag.head.regimes.splits import Split

NAMES = ("id", "antibody_name", "antigen_name")
"""Roles of the columns that name a pair or a sequence."""
LONGEST = 40
"""Characters of a name that are shown."""
SHOWN = 40
"""Characters of a wrong value that a message has."""
_hints = cache(get_type_hints)
_PLAIN = {Mapping: dict}
_EXPECTED = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip


class CurvePoint(TypedDict):
    """Scores of the first regime by the size of the training part."""

    share: float
    """Share of the training groups."""
    training_pairs: int
    """Mean over folds."""
    score: RegimeScore


class ReportedPairs(MeasuredPairs, Protocol):
    """What a report needs of P pairs."""

    @property
    def antibody(self) -> Ints:
        """Number of each pair's antibody, (P,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResults:
    """Predictions and inputs of a run that has finished training."""

    title: str
    facts: Mapping[str, Any]
    """Content of config.json: options, encoders with fingerprints, table."""
    source: str
    """The table."""
    pairs: ReportedPairs
    """P pairs."""
    names: PairNames
    regimes: Sequence[MeasuredRegime]
    """Those without folds were not measured."""
    predicted: Sequence[Floats]
    """pKd of every pair, (P,), for each fold of all regimes; out-of-fold for its test pairs."""
    sigma: Sequence[Floats]
    """Standard deviation of the error of each prediction, in pKd, (P,)."""
    baselines: Sequence[Mapping[str, Floats]]
    """pKd of every pair by each baseline of each fold, (P,). Read from a folder, they are NaN
    outside the test parts."""
    log: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl."""
    antibody_ND: NDArray[np.floating] | None
    """One vector per unique antibody; None: the store is not there."""
    antigen_ND: NDArray[np.floating] | None
    """One vector per unique antigen."""
    learning_curve: Sequence[CurvePoint] = ()
    """Scores of heads that were fitted to fewer training groups."""

    @property
    def splits(self) -> list[Split]:
        """The folds of all regimes."""
        return [split for one in self.regimes for split in one.splits]


class RegimeSummary(RegimeScore):
    """What is known of a measured regime."""

    folds: int
    weights: Mapping[str, float]
    """Weight of each part of the prediction, with sum 1."""
    spread: float
    noise: float
    """Residual noise in sigma, in pKd."""
    split: dict[str, Any]
    """Rows per part, clusters and leaks of the folds."""
    metrics: dict[str, Scores]
    """Scores on the test pairs, averaged over folds: of the ``head`` and of the baselines."""


class NotMeasured(TypedDict):
    """A regime that the table does not allow to measure."""

    regime: str
    words: str
    why: str


class TableSummary(TypedDict):
    """What ``evaluate`` adds for another table."""

    source: str
    pairs: int
    in_training: dict[str, int]
    """How many pairs are in the training set, as a ``pair`` or by one of their sequences."""
    bias: float | None
    """Mean of predicted minus measured, in pKd, over exact rows."""
    far: int
    """Pairs that no measured regime covers."""
    regimes: list[RegimeScore]
    """Scores of the pairs of the table, by regime; the mean is that of the training labels."""
    metrics: Scores
    """Of all pairs of the table."""


class PredictionsSummary(TypedDict):
    """What ``evaluate`` adds for a file of predictions."""

    source: str
    regimes: list[RegimeScore]
    """Scores of these predictions."""
    verdicts: list[str]
    """Comparisons of the head with them, one per regime."""


class RunSummary(TypedDict):
    """Content of summary.json: what ``fit`` and ``evaluate`` return."""

    run: str
    regimes: list[RegimeSummary]
    """Those that were measured: the table that everybody should see."""
    not_measured: list[NotMeasured]
    warnings: list[str]
    steps: int
    epochs: int
    """Of the networks that were fitted to all pairs; 0 without networks."""
    seconds: float
    resumed_from_step: int | None
    used: dict[str, Any]
    """Settings that the run chose itself; several values if folds differ."""
    data: dict[str, str | int]
    """The table's ``source``, how many ``pairs``, ``antibodies`` and ``antigens`` it has, and the
    ``quantity`` of its labels, such as pKd or pIC50."""
    noise: float | None
    counts: Mapping[str, int]
    learning_curve: NotRequired[list[CurvePoint]]
    """Only with ``--learning-curve``; the last point is the run itself."""
    table: NotRequired[TableSummary]
    predictions: NotRequired[PredictionsSummary]


class PairNames:
    """Names of P pairs and of their antigens."""

    columns: dict[str, pd.Series[Any]]
    """``row``, the number of each pair's row in the table, from 1, and those of `NAMES` that the
    table has, as text; each has P rows."""
    antigens: NDArray[np.int64]
    """Antigens of the pairs, sorted."""

    def __init__(
        self,
        columns: Mapping[str, pd.Series[Any]],
        antigen: NDArray[np.int64],
        antigen_keys: Sequence[str],
    ) -> None:
        """Take the columns, the antigen of each pair, and the hex key of each unique antigen."""
        self.columns = dict(columns)
        self.antigens, first = np.unique(antigen, return_index=True)
        names = self.texts("antigen_name", first) or [""] * len(first)
        self._groups = [
            name or f"antigen {key[:6]}" for name, key in zip(names, antigen_keys, strict=True)
        ]
        found = Counter(self._groups)
        self._antigens = [
            group if found[group] == 1 else f"{group} {key[:6]}"
            for group, key in zip(self._groups, antigen_keys, strict=True)
        ]

    @classmethod
    def of(cls, pairs: LabelledPairs) -> PairNames:
        """Take the names from the table of the pairs."""
        table = pairs.table
        columns: dict[str, pd.Series[Any]] = {"row": pd.Series(table.row_numbers[pairs.row])}
        for role in NAMES:
            if role in table.columns:
                columns[role] = _texts(table.frame[table.columns[role]].iloc[pairs.row])
        used = distinct(pairs.antigen)
        return cls(columns, pairs.antigen, hex_keys(table.antigens.keys[used]))

    def rows(self, pairs: NDArray[np.int64]) -> list[int]:
        """Return the row numbers of some pairs."""
        return [int(row) for row in self.columns["row"].iloc[pairs]]

    def texts(self, role: str, pairs: NDArray[np.int64]) -> list[str] | None:
        """Return the cells of some pairs, shortened; None if the table has no such column."""
        if role not in self.columns:
            return None
        return [_shorten(text) for text in _texts(self.columns[role].iloc[pairs])]

    def antigen(self, which: int) -> str:
        """Name an antigen; with the start of its key where others have the same name."""
        return self._antigens[int(np.searchsorted(self.antigens, which))]

    def antigen_group(self, which: int) -> str:
        """Name an antigen and all others with the same name, such as variants."""
        return self._groups[int(np.searchsorted(self.antigens, which))]


def _texts(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Spell cells as printable text; missing ones are empty."""
    found = zip(cells, cells.isna(), strict=True)
    texts = ["" if missing else printable(str(cell).strip()) for cell, missing in found]
    return pd.Series(texts, dtype=object)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class _Data(TypedDict):
    """What is read of ``data``, which `RunSummary` leaves open."""

    source: str
    pairs: int
    antibodies: int
    antigens: int
    quantity: NotRequired[str]


class _Read(TypedDict):
    data: _Data


def read_summary(run: Path) -> RunSummary:
    """Read the summary of a finished run.

    Raises
    ------
    FileDamaged
        If a value is missing, or not of the type that `fit` writes.
    OSError
        If the file cannot be read.
    """
    path = run / "summary.json"
    found = read_json(path)
    for problem in _problems(found):
        msg = f"{path}: {problem}. Copy the whole run folder again."
        raise FileDamaged(msg)
    return cast("RunSummary", found)


def _problems(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _misfits(found, RunSummary, "")
    yield from _misfits(found, _Read, "")


def _misfits(value: Any, kind: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - JSON, and a type
    """Yield what of a JSON value is not of a type: where, what it is, and what was expected."""
    inner, arguments = f"{at}." if at else "", get_args(kind)
    if kind is Any:
        return
    if get_origin(kind) is NotRequired:
        kind = arguments[0]
        arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        of_each = [[*_misfits(value, one, at)] for one in arguments]
        yield from of_each[0] if all(of_each) else ()
        return
    plain = dict if is_typeddict(kind) else _PLAIN.get(get_origin(kind), get_origin(kind) or kind)
    accepted: Any = (int, float) if plain is float else plain
    if not isinstance(value, accepted) or (isinstance(value, bool) and plain is not bool):
        shown = json.dumps(value)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        yield f"{at} is {shown}; expected {_EXPECTED[plain]}"
    elif is_typeddict(kind):
        for name, hint in _hints(kind, include_extras=True).items():
            if name in value:
                yield from _misfits(value[name], hint, inner + name)
            elif get_origin(hint) is not NotRequired:
                yield f"{inner}{name} is missing"
    elif plain is dict:
        for name, one in value.items():
            yield from _misfits(one, arguments[1], inner + name)
    elif plain is list:
        for number, one in enumerate(value):
            yield from _misfits(one, arguments[0], f"{at}[{number}]")
