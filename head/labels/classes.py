"""Labels that are yes or no, or ordered classes: their words, and which of them are better.

A column is read as classes if `--label binary` or `--classes` says so, or if all its cells are
words for yes and no, or 0 and 1. Which word is positive is known for such words; else the user says
so. A class is a number from 0, the lowest, and the label of a pair is that number.

C classes; R rows of a table.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.errors import LabelError
from abag.core.messages import quoted, shell_quoted
from abag.embed.tables.chains import MISSING_TEXT
from abag.embed.tables.formats import cell_text
from abag.embed.tables.table import says_no_binding
from abag.head.labels.headers import Quantity, name_words, plain_text, read_header

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from abag.core.arrays import Bools, Floats
    from abag.embed.tables.table import Table
    from abag.head.labels.options import Better, Label, LabelOptions


BINARY: Label = "binary"
ORDERED: Label = "classes"
_ANSWERS = (
    ("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("0", "1"), ("-1", "1"), ("-", "+"),
    # also as Excel writes TRUE and FALSE
    ("nein", "ja"), ("falsch", "wahr"), ("faux", "vrai"), ("falso", "verdadero"), ("falso", "vero"),
    ("onwaar", "waar"),
)  # fmt: skip
"""Words for no and yes to what the name of their column says."""
_WORDS = (
    *_ANSWERS,
    ("non-binder", "binder"), ("non-binding", "binding"), ("not binding", "binding"),
    ("non-binders", "binders"), ("no binder", "binder"), ("no binding", "binding"),
    ("not a binder", "binder"), ("does not bind", "binds"), ("not bound", "bound"),
    ("unbound", "bound"), ("nonbinder", "binder"), ("nonbinding", "binding"),
    ("nb", "binder"), ("neg", "pos"), ("negative", "positive"), ("inactive", "active"),
    ("non-neutralizing", "neutralizing"), ("non-neutralising", "neutralising"),
    ("not neutralizing", "neutralizing"), ("not neutralising", "neutralising"),
    ("non-neutralizer", "neutralizer"), ("does not neutralize", "neutralizes"),
    ("does not neutralise", "neutralises"), ("non-reactive", "reactive"),
    ("non-polyreactive", "polyreactive"), ("not polyreactive", "polyreactive"),
    ("not enriched", "enriched"), ("depleted", "enriched"), ("miss", "hit"),
    ("non-hit", "hit"), ("no hit", "hit"), ("fail", "pass"), ("absent", "present"),
    ("non-blocking", "blocking"), ("non-blocker", "blocker"), ("does not block", "blocks"),
    ("non-specific", "specific"),
)  # fmt: skip
"""Words for no and yes, as they are used beside each other."""
_PARTS = (
    "bind|bound|neutrali|reactiv|polyreactiv|specific|polyspecific|positiv|active|enrich|escap|"
    "block|inhibit|hit|viable|success|recogni|interact"
)
_PAIRS = re.compile(_PARTS)
"""Parts of the names of columns that say whether something is so."""
_LOSSES = (
    r"(?:lost|loss|los[ei]\w*|lack\w*|(?<!pass )fail(?:s|ed|ing|ure)?|absen\w*|abolish\w*|"
    r"disrupt\w*|eliminat\w*|impair\w*|knock\w*)\b"
)
_NEGATIONS = re.compile(
    # not any word and t, as in T cells and troponin T
    r"\b(?:not|no(?! of)|never|without|cannot|unable|"
    r"(?:do|does|did|is|are|was|were|has|ca|could|wo)n ?t)\s+"
    rf"(?=(?:\w+\s+){{0,3}}(?:\w*(?:{_PARTS})|{_LOSSES}))"
    rf"|\bnon\s+(?=\w*(?:{_PARTS}))|\b(?:non|un|in)(?={_PARTS})|\s+negative\b|\b{_LOSSES}"
)
"""Words and syllables with which such a name says that something is not so."""
_IS_BOUND = re.compile("(is)?(bind(er|s|ing)?|bound)(class|call|label|status|result|detected)?")
"""Names, without signs, of columns that say whether a pair binds, and nothing else."""
_UNWANTED = re.compile("escap|resistan|autoreactiv|selfreactiv|offtarget")
"""Parts of the names of what is not wanted."""
_NAMES = frozenset("label labels class target outcome y response binary isbinder call".split())
"""Names of columns of classes, without signs."""
_LAST_WORDS = frozenset("label labels class binary call".split())
"""Last words of such names."""
_OF_ANYTHING = frozenset(chain.from_iterable(_ANSWERS))
MOST_CLASSES = 20
_STRAY = 10
"""Cells for each one that is no class in a column of words for yes and no, at least."""
_LISTED = 8


def spelled(cell: object) -> str:
    """Spell a cell as classes are compared: in lower case, ``1.0`` as ``1``; empty if missing."""
    text = " ".join(str(cell_text(cell)).split())
    if text in MISSING_TEXT or not text:
        return ""
    text = text.casefold().replace("−", "-").replace("–", "-")
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text)


def _plain(word: str) -> str:
    """Return a word without the signs that divide it, as ``non_binder`` and ``non-binder``."""
    is_sign = word in ("+", "-") or re.search("[0-9]", word) is not None
    return word if is_sign else re.sub(r"[\s_\-./()]+", "", word)


_NO = frozenset(_plain(no) for no, _ in _WORDS)
_YES = frozenset(_plain(yes) for _, yes in _WORDS)


def _spelled_values(cells: pd.Series) -> dict[str, int]:
    """Count the distinct spellings of the cells that are not empty."""
    values, counts = np.unique(cells.dropna().astype(object).map(spelled), return_counts=True)
    found = dict(zip(map(str, values), counts.tolist(), strict=True))
    found.pop("", None)
    return found


def says_yes_or_no(word: str) -> bool:
    """Tell whether a spelled cell is a word for yes or no, or 0 or 1."""
    return _plain(word) in _NO | _YES


def says_no(cells: pd.Series) -> Bools:
    """Tell which cells, of R, are a word for no, or 0."""
    words = cells.astype(object).map(spelled)
    return words.map(lambda word: _plain(word) in _NO).to_numpy(bool)


def says_whether_bound(name: str) -> bool:
    """Tell whether the name of a column asks no more than whether a pair binds."""
    return _IS_BOUND.fullmatch("".join(name_words(name))) is not None


def class_words(values: Iterable[str]) -> tuple[str, str] | None:
    """Return the words for no and for yes among the values of a column.

    None unless all are such words, one for each: of several, one may mean another class. A column
    that holds only one of them, as the first rows of a table may, has the other word beside it.
    """
    values = [*values]
    if not values or not all(map(says_yes_or_no, values)):
        return None
    no = [value for value in values if _plain(value) in _NO]
    yes = [value for value in values if _plain(value) in _YES]
    if len(no) > 1 or len(yes) > 1:
        return None
    known = {_plain(word) for word in (*no, *yes)}
    for of_no, of_yes in _WORDS:
        if known <= {_plain(of_no), _plain(of_yes)}:
            return (no or [of_no])[0], (yes or [of_yes])[0]
    return (no[0], yes[0]) if no and yes else None


def _words_and_others(values: Mapping[str, int]) -> tuple[tuple[str, str] | None, int]:
    """Return the words for no and yes of a column, and how many cells are neither.

    None if there are numbers beside words, as in a table of affinities and non-binders.
    """
    words = [value for value in values if says_yes_or_no(value)]
    others = values.keys() - {*words}
    are_numbers = any(re.search("[0-9]", value) for value in others)
    return None if are_numbers else class_words(words), sum(values[value] for value in others)


def _words_among(values: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the words for no and yes of a column in which a few cells may be neither."""
    words, others = _words_and_others(values)
    return None if _STRAY * others > sum(values.values()) else words


def words_beside_others(cells: pd.Series) -> tuple[str, ...]:
    """Return the words for no and yes of most cells of a column with a few others, or nothing."""
    values = _spelled_values(cells) if cells.nunique() <= _LISTED else {}
    if "-" in values and "+" not in values:  # also a mark of what was not measured: `read_classes`
        values["not measured"] = values.pop("-")
    words, others = _words_and_others(values)
    if words is None or not values.keys() >= {*words}:
        return ()
    return words if 0 < 2 * others < sum(values.values()) else ()


def is_named_like_classes(name: str) -> bool:
    """Tell whether the name of a column says that it holds classes, such as ``is_binder``."""
    words = name_words(name)
    joined = "".join(words)
    is_named = joined in _NAMES or not _LAST_WORDS.isdisjoint(words[-1:])
    return is_named or _PAIRS.search(joined) is not None


def _are_words_of(classes: Sequence[str], first: Container[str], second: Container[str]) -> bool:
    """Tell whether classes are two: a word among the `first`, and one among the `second`."""
    return len(classes) == 2 and _plain(classes[0]) in first and _plain(classes[1]) in second


def _better_class(name: str, classes: tuple[str, ...]) -> Better:
    """Return which class is better by the name of a column: no, of yes and no in ``non_binder``.

    If a word for no is the positive one, as the user has chosen, it is.
    """
    if _are_words_of(classes, _YES, _NO) or classes == ("fail", "pass"):
        return "higher"
    words = " ".join(name_words(name))
    affirmed, negations = _NEGATIONS.subn("", words)
    better = read_header(affirmed).better or "higher"
    # others, such as binder and non-binder, say it themselves
    if _OF_ANYTHING.issuperset(classes):
        is_unwanted = _UNWANTED.search(affirmed.replace(" ", "")) is not None
        if is_unwanted != bool(negations % 2):  # one of not losing is none
            return "lower" if better == "higher" else "higher"
    return better


def says_class(cell: object) -> bool:
    """Tell whether a cell is a truth value or a word for a class, not a measurement."""
    if isinstance(cell, bool | np.bool_):
        return True
    return isinstance(cell, str) and (re.search("[0-9]", cell) is None or says_no_binding(cell))


def refuse_two_values(raw: Floats, where: str, what: str, role: str = "label") -> None:
    """Refuse numbers, shape (R,), of which there are only two, as measurements of `what`.

    `role` is that of their column.
    """
    numbers = raw[np.isfinite(raw)]
    distinct = np.unique(numbers)
    if len(distinct) == 2 and len(numbers) > 2:
        low, high = distinct
        msg = (
            f"{where} holds only {low:g} and {high:g}, which are two classes, not measurements of "
            f"{what}; expected more than two different numbers. Choose a column of measurements "
            f"with --column {role}=NAME, or learn classes with --label binary --positive {high:g}."
        )
        raise LabelError(msg)


def has_classes(table: Table, name: str, options: LabelOptions) -> bool:
    """Tell whether a column has the classes that the options name, or words for yes and no."""
    if options.classes is None and options.positive is None:
        return holds_classes(table, name)
    cells = table.frame[name]
    if cells.nunique() > MOST_CLASSES:
        return False
    values = _spelled_values(cells)
    if options.classes is not None:
        return bool(values) and {*values} <= set(map(spelled, options.classes))
    return len(values) == 2 and spelled(options.positive) in values


def holds_classes(table: Table, name: str) -> bool:
    """Tell whether the cells of a column are words for yes and no, or 0 and 1.

    One of them alone says so only where the name does, too.
    """
    cells = table.frame[name]
    if cells.nunique() > 2 * len(_WORDS):  # spelling many cells takes long
        return False
    values = _spelled_values(cells)
    is_enough = len(values) > 1 or is_named_like_classes(name)
    has_words = _words_among(values) is not None or all(map(says_yes_or_no, values))
    return is_enough and bool(values) and has_words


def unit_of(classes: Sequence[str]) -> Label:
    """Return the unit of labels that are these classes."""
    return BINARY if len(classes) == 2 else ORDERED


def decide_classes(table: Table, column: str, options: LabelOptions) -> tuple[Quantity, str] | None:
    """Decide whether a column of labels holds classes: its quantity, and what says so.

    None if it holds numbers.

    Raises
    ------
    LabelError
        If it is to hold classes, and which is not known; or it does, and the options say
        otherwise.
    """
    where = f"{table.source}: column {column!r}"
    header = read_header(column)
    asked = options.asks_for_classes
    if not asked and (options.label or options.unit or options.no_binding) is not None:
        return None
    if asked and header.names_affinity and header.units:
        msg = (
            f"{where} is named like {header.units[0]}, an affinity, but classes are asked for; "
            "expected one or the other. Leave --label, --positive and --classes out, or rename "
            "the column."
        )
        raise LabelError(msg)
    cells = table.frame[column]
    why = "given by the options"
    if options.classes:
        classes = tuple(spelled(name) for name in options.classes)
        refuse_other_cells(table, column, classes)
    elif asked:
        classes = _two_classes(where, cells, options.positive)
    else:
        names_affinity = header.names_affinity or "affin" in plain_text(column)[0]
        if names_affinity or not (holds_classes(table, column) or words_beside_others(cells)):
            return None
        classes = _words_among(_spelled_values(cells)) or _two_classes(where, cells, None)
        replace(options, label=BINARY)  # raises if others are of numbers
        why = f"cells are {quoted(classes[0])} or {quoted(classes[1])}"
    quantity = Quantity(
        name=header.quantity,
        better=options.better or _better_class(column, classes),
        affinity=False,
        classes=classes,
    )
    return quantity, why


def refuse_other_cells(table: Table, column: str, classes: tuple[str, ...]) -> None:
    """Refuse a column of which no cell is one of the classes."""
    cells = table.frame[column]
    if np.isfinite(read_classes(cells, classes)).any() or not cells.notna().any():
        return
    values = [*map(quoted, cells.dropna().unique()[:_LISTED].tolist())]
    table.refuse(
        f"column {column!r} has no cell that is {' or '.join(map(quoted, classes))}; it holds "
        f"{', '.join(values)}. Choose the column with --column label=NAME, or correct --classes.",
        LabelError,
    )


def _two_classes(where: str, cells: pd.Series, positive: str | None) -> tuple[str, str]:
    """Return the words for no and yes of a column that is to hold two classes."""
    values = _spelled_values(cells)
    known = _words_among(values)
    words = [*values] if known is None else [*known]
    chosen = None if positive is None else spelled(positive)
    is_one_class = len(values) == 1 and (known is None or chosen is not None)
    meanings = {*map(_plain, words)}
    is_one_class |= meanings <= _YES or meanings <= _NO
    if len(words) == 2 and not is_one_class:
        if chosen in words:
            return next(word for word in words if word != chosen), chosen
        if known is not None and chosen is None:
            return known
    listed = ", ".join(map(quoted, [*values][:_LISTED])) + ", ..." * (len(values) > _LISTED)
    choice = "--positive VALUE"
    if len(values) == 2 and not is_one_class:
        choice = " or ".join(f"--positive {shell_quoted(value)}" for value in values)
    lacks = ""
    if chosen is not None and chosen not in words:
        lacks = f"no cell {quoted(positive)}, the value of --positive, but "
    beside = ",".join(words_beside_others(cells))
    names = shell_quoted(beside) if beside else "NAMES"
    msg = (
        f"{where} has {lacks}{len(values)} different cells ({listed or 'all are empty'}); expected "
        "a word for each of two classes, of which one is known to be positive, such as yes and no. "
        f"Write one word per class, choose the positive one with {choice}, name the classes from "
        f"low to high with --classes {names} (--bad-rows skip leaves other cells out), or read "
        "numbers with --label value --better higher, or lower."
    )
    raise LabelError(msg)


def advise_classes(cells: pd.Series) -> str:
    """Say how a column of a few whole numbers is read as classes; empty for others."""
    values = _spelled_values(cells) if cells.nunique() <= MOST_CLASSES else {}
    is_few = 2 < len(values) and 5 * len(values) <= len(cells)
    if not is_few or not all(value.isdigit() for value in values):
        return ""
    names = ",".join(sorted(values, key=int))
    return f" If its numbers are ordered classes, not counts, add --classes {names}."


def read_classes(cells: pd.Series, classes: Sequence[str]) -> Floats:
    """Return the class of each cell as its number, (R,); NaN for a cell that is none of them.

    Of two classes that are words for no and yes, all other such words are read, too.
    """
    number = {name: float(at) for at, name in enumerate(classes)}
    for words, others in ((_NO, _YES), (_YES, _NO)):  # no may be the one that is looked for
        if _are_words_of(classes, words, others):
            number = {**dict.fromkeys(words, 0.0), **dict.fromkeys(others, 1.0), **number}
    codes, distinct = pd.factorize(cells.astype(object), use_na_sentinel=True)
    of_value = np.full(len(distinct) + 1, np.nan)  # the last is that of missing cells
    spelled_cells = [*map(spelled, distinct)]
    for sign, is_unknown in (("-1", "0" in spelled_cells), ("-", "+" not in spelled_cells)):
        if is_unknown and sign not in classes:  # also a mark of what was not measured
            number.pop(sign, None)
    for at, word in enumerate(spelled_cells):
        of_value[at] = number.get(word, number.get(_plain(word), np.nan))
    return np.asarray(of_value[codes])


def refuse_other_options(table: Table, options: LabelOptions, quantity: Quantity) -> None:
    """Raise `LabelError` if options ask for another label than that of the run."""
    unit = unit_of(quantity.classes) if quantity.classes else "value"
    classes = options.classes and tuple(map(spelled, options.classes))
    positive = options.positive and (spelled(options.positive),)
    given = {
        f"--label {options.label}": options.label not in (None, unit),
        f"--better {options.better}": options.better not in (None, quantity.better),
        f"--scale {options.scale}": options.scale not in (None, quantity.scale),
        "--classes": classes not in (None, quantity.classes),
        f"--positive {options.positive}": positive not in (None, quantity.classes[-1:]),
    }
    for option, is_other in given.items():
        if is_other:
            table.refuse(
                f"{option}: the run predicts {quantity.description}; expected labels of that. "
                "Leave the option out.",
                LabelError,
            )
