"""What a type accepts, of options and of JSON alike."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest

from abag.core.options import Mistyped, parse, why_mistyped

LARGE = f"1{0:079}...{0:010} (401 characters)"
"""How a number of hundreds of digits is shown."""
NESTED: list[Any] = []
for _ in range(100_000):  # of a forged file; Python does not write it
    NESTED = [NESTED]


class Point(TypedDict):
    x: float
    tags: list[str]
    note: NotRequired[str | None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"x": 1.5, "tags": []}, ""),
        ({"x": 1, "tags": ["a"], "note": None, "more": [{}]}, ""),
        ({"x": 1}, "tags is missing"),
        ({"x": True, "tags": []}, "x is True; expected a finite number"),
        ({"x": "1", "tags": []}, "x is '1'; expected a finite number"),
        ({"x": math.nan, "tags": []}, "x is nan; expected a finite number"),
        ({"x": 10**400, "tags": []}, f"x is {LARGE}; expected a finite number"),
        ({"x": 1, "tags": "a"}, "tags is 'a'; expected a list of names"),
        ({"x": 1, "tags": [1]}, "tags is 1; expected a string"),
        ({"x": 1, "tags": [], "note": 3}, "note is 3; expected a string"),
        ([], "it is []; expected an object"),
        ({"x": NESTED, "tags": []}, "x is a nested list; expected a finite number"),
    ],
)
def test_a_value_of_json_is_compared_with_its_type(value, reason):
    assert why_mistyped(value, Point) == reason


@dataclass(frozen=True)
class Shape:
    sizes: tuple[int, ...]
    share: float
    form: Literal["round", "flat"] | None
    more: dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Shape, ...]


def test_a_dataclass_is_what_it_was_before_it_was_written_as_json():
    drawing = Drawing((Shape((1, 2), 0.5, "flat", {"a": [None]}), Shape((), 1.0, None, {})))
    assert parse(Drawing, json.loads(json.dumps(asdict(drawing)))) == drawing


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "it is []; expected an object"),
        ({}, "it has ; expected shapes"),
        ({"shapes": [], "more": 1}, "it has shapes, more; expected shapes"),
        ({"shapes": {}}, "shapes is {}; expected a list"),
        ({"shapes": [{"sizes": []}]}, "shapes has sizes; expected sizes, share, form, more"),
    ],
)
def test_an_object_has_exactly_the_names_of_a_dataclass(value, reason):
    assert why_mistyped(value, Drawing) == reason


def test_numbers_are_compared_with_the_largest():
    assert parse(float, 3, most=5) == 3.0
    for value in (6, -6.0, math.nan, np.inf):
        with pytest.raises(Mistyped, match="expected a finite number"):
            parse(float, value, most=5)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, np.int64(3), 3),
        (float, np.float32(0.5), 0.5),
        (tuple[int, ...], np.array([1, 2]), (1, 2)),
        (tuple[str, ...], ["a"], ("a",)),
        (int | Literal["all"], "all", "all"),
    ],
)
def test_what_python_users_pass_becomes_what_json_holds(kind, value, expected):
    parsed = parse(kind, value)
    assert (parsed, type(parsed)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, True), (int, 1.0), (bool, 1), (str, 1), (float, "1"), (tuple[str, ...], "ab")],
)
def test_nothing_else_is_converted(kind, value):
    with pytest.raises(Mistyped):
        parse(kind, value)


class _Unshown:
    """Stands for a large table, whose text takes long to make."""

    def __repr__(self):
        pytest.fail("was shown")


def test_a_table_in_memory_is_not_shown_to_find_out_that_it_is_no_path():
    table = _Unshown()
    assert parse(Path | str | Any | None, table) is table
