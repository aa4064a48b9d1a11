"""Reads summary.json of a run folder: damage is found here, and not where a value is used."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import (
    Any,
    NotRequired,
    TypedDict,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from abag.core.files import FileDamaged, read_json
from abag.head.report.results import RunSummary


class _Scored(TypedDict):
    n: int
    rmse: float | None


class _Baseline(TypedDict):
    test: _Scored


class _Metrics(TypedDict):
    validation: _Scored | None
    test: _Scored


class _Split(TypedDict):
    name: str
    folds: int
    why: str
    rows: dict[str, int]
    test_pairs: int
    clusters: dict[str, dict[str, dict[str, float]]]
    leaks: dict[str, dict[str, int]]
    leaks_of_all_folds: dict[str, dict[str, int]]


class _Data(TypedDict):
    source: str
    pairs: int
    antibodies: int
    antigens: int
    quantity: NotRequired[str]


class _Sigma(TypedDict):
    calibrated: bool
    spread: float
    noise: float
    rows: int
    predictions: NotRequired[int]
    groups: int
    coverage: dict[str, float | None]
    coverage_folds: dict[str, list[float | None]]
    error_spearman: float | None


class _Read(TypedDict):
    """What is read of the parts that `RunSummary` leaves open."""

    metrics: _Metrics
    baselines: dict[str, _Baseline]
    split: _Split
    data: _Data
    sigma: _Sigma


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


SHOWN = 40
"""Characters of a wrong value that a message has."""
_hints = cache(get_type_hints)
_PLAIN = {Mapping: dict}
_EXPECTED = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip


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
