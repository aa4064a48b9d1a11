"""What a column of a table is, by its name and its cells: the label, or what describes it.

`decide_label` decides once per table, as part of its layout; `values` and `features` only convert.
A column is the label if its name says what it measures. What is unclear is refused, with the
options that would decide it, and an option that contradicts the name is refused, too; a run decides
where neither an option nor the name does. `Column.refuse` writes what is wrong with a column.

Of cells nothing is guessed: what is neither a number nor text of one is NaN. R rows of a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats
from abag.core.errors import AbagError, ColumnError, LabelError
from abag.core.messages import quoted, shell_quoted
from abag.core.options import parse
from abag.embed.tables.chains import TEXT_ROLES
from abag.embed.tables.columns import (
    UNNAMED,
    MissingColumn,
    column_option,
    quote_names,
    quote_some,
    simplified,
)
from abag.embed.tables.content import distinct_texts
from abag.embed.tables.layout import LayoutRecord
from abag.embed.tables.table import ERROR_SIGN, CellNumbers, read_texts
from abag.head.labels.classes import (
    advise_classes,
    decide_classes,
    has_classes,
    holds_classes,
    is_named_like_classes,
    refuse_other_cells,
    refuse_other_options,
    refuse_two_values,
    says_class,
    spelled,
    unit_of,
    words_beside_others,
)
from abag.head.labels.features import (
    NO_DESCRIPTION,
    ColumnBeside,
    Describing,
    find_describing,
    read_types,
    unit_of_cells,
)
from abag.head.labels.headers import (
    ALPHASEQ_UNIT,
    ALPHASEQ_WORDS,
    PKD,
    SCAN_MEASURED,
    USUAL_PKD,
    Header,
    Quantity,
    name_words,
    outside,
    plain_text,
    read_header,
    read_in_unit,
    spans_decades,
    to_pkd,
    unit_of_cell,
    unit_of_texts,
    written_by,
)
from abag.head.labels.options import (
    NO_AFFINITIES,
    UNITS,
    BesideRole,
    Label,
    LabelOptions,
    named_beside,
)

if TYPE_CHECKING:
    from abag.embed.tables.table import Table


LABELS_AND_SEQUENCES = frozenset({"pkd", "label", "censored", *TEXT_ROLES})
"""Roles of columns that describe no pair."""
_MOST_PROPOSED = 4
_BINDING = re.compile(
    "affin|activit|fitness|enrich|bind|bound|avidity|score|potenc|inhibit|neutrali|pkd|ic50|ec50"
)
_STRENGTH = re.compile(
    r"(?:very|non?)?[ -]?(?:none|no|negative|neg|poor|weak|low|medium|mid|moderate|intermediate|"
    r"good|high|strong|positive|pos|[+]+|-|[+]/-|±)?[ -]?(?:binders?|binding|affinity)?"
)
"""Words for how strongly a pair binds."""
_BINDING_WORDS = frozenset("kd ka ki dg ddg fit".split())
_MEASURED = re.compile("express|signal|respon|titer|titre|yield|stabil|intens|measure|elisa|logfc")
_MEASURED_WORDS = frozenset(
    "exp expt experiment experimental tm mfi od od450 spr bli facs value label y".split()
)
"""What columns of measurements are called, first those of binding."""
_COMPUTED = re.compile(
    "plddt|iptm|ptm|pae|rosetta|dock|perplex|likelihood|loglik|confid|probab|quality|humanness|"
    "evalue|bitscore|predict|gravy|hydrophob"
)
"""What columns are called that were computed from sequences and structures."""
_OF_ROWS = re.compile(
    "(?:.*(?:count|counts|number|index|length|position|pmid|year)|.*[a-z]{3}id|id|ids|idx|no|num|nr|"
    "n|reads?|umis?|dates?|pubmed|doi|pos|positions|len|rank|distance|dist|hamming|levenshtein|"
    "identity|similarity)[0-9]*"
)
_BESIDE = re.compile(
    "(?:.*class|.*cluster|days?|months?|patent|resi|residue|site|start|end|size|mut|muts|mutations?|"
    "nmut|subs|category|classes|clone|clonotype|group|family|fold|split|set|round|cycle|batch|plate|"
    "well|row|col|column|line|replicates?|reps?|order|seed|tax|taxon|chain|resolution|age|donor|"
    "sample|subject|patient|version|flag|ph|temp|temperature|mw|mass|weight|charge|pi|conc|"
    "concentration|dose|lane|bin|code|accession|freq|frequency)[0-9]*"
)
"""Words of columns that number or count rows, and of those that describe them where no word of a
measurement is beside, as in ``fitness_round2``."""
_SUMMARIES = frozenset(
    "avg average mean median geomean gmean combined consensus overall final all".split()
)
"""Words that set one column above those that it summarises."""
MOST_UNUSUAL = 0.05
"""Share of numbers outside the usual range of pKd that a matrix of pKd may have."""
_MOLAR = (1e-15, 1e-3)
"""Least and largest concentration that may be in M."""
_MEDIAN_MOLAR = 1e-5  # above, off-rates called kd are as likely
ROUNDED_PKD = 0.02
"""Largest distance of affinities that are written in two units, from rounding."""
RATES = ("ka", "kd")
"""Association and dissociation, as Biacore and others write them beside KD."""


class UnclearLabel(MissingColumn):
    """No column is the label for sure, but some may be."""


@dataclass(frozen=True, eq=False)
class Column:
    """What one column of a table may be, by its name and its cells; each is looked at once."""

    table: Table
    name: str

    @cached_property
    def header(self) -> Header:
        """What the name says; beside each other, ka and kd in lower case are rates."""
        header = read_header(self.name_of_value)
        if self.name.strip() in RATES and {*RATES} <= {name.strip() for name in self.table.names}:
            return replace(header, units=(), sure=False, not_label="a rate")
        if self.unit_in_cells is not None:
            return replace(header, units=(self.unit_in_cells,), affinity=True)
        return header

    @cached_property
    def name_of_value(self) -> str:
        """Its name, without the error if cells have both: ``KD (nM) ± SD`` of ``3.2 ± 0.4``."""
        value = re.sub(rf"\s*{ERROR_SIGN}\s*\w*", "", self.name)
        texts = [] if value == self.name else distinct_texts(self.table, self.name)
        return value if any(re.search(ERROR_SIGN, text) for text in texts) else self.name

    @cached_property
    def unit_in_cells(self) -> Label | None:
        """Unit that its cells state, as ``300 pM``, of a label or affinity whose name has none."""
        header = read_header(self.name_of_value)
        is_label = self.name in map(self.table.columns.get, ("pkd", "label"))
        is_possible = is_label or header.affinity or header.plain
        if header.units or header.not_label or not is_possible:
            return None
        return unit_of_texts(self.name, distinct_texts(self.table, self.name))

    @cached_property
    def command(self) -> str:
        """Command of abag that wrote it, or nothing."""
        return written_by(self.name, self.table.frame.columns)

    @property
    def where(self) -> str:
        """Name the table and the column, as errors begin."""
        return f"{self.table.source}: column {self.name!r}"

    def refuse(self, why: str, error: type[AbagError] = LabelError) -> NoReturn:
        """Raise an error that says what is wrong with the column, and what to do."""
        self.table.refuse(f"column {self.name!r} {why}", error)

    @property
    def filled(self) -> pd.Series:
        """The cells that are not empty."""
        return self.table.frame[self.name].dropna()

    @cached_property
    def bounds(self) -> CellNumbers:
        """The numbers of the cells, and on which side of them values lie."""
        return read_in_unit(self.table.frame[self.name], self.header.unit)[0]

    @property
    def numbers(self) -> Floats:
        """The numbers of the cells, bounds included, (R,); NaN for others."""
        return self.bounds.values

    def repeats(self, other: Column) -> bool:
        """Tell whether it has the affinities of another column in the unit that its name states."""
        if self.header.units[0] == other.header.units[0]:
            return False
        (pkd, side), (other_pkd, other_side) = self._as_pkd(), other._as_pkd()
        number = np.isfinite(pkd)
        is_same = np.isclose(pkd, other_pkd, rtol=0, atol=ROUNDED_PKD) & (side == other_side)
        words, other_words = (read_texts(c.table.frame[c.name])[~number] for c in (self, other))
        return bool(number.any() and is_same[number].all() and (words == other_words).all())

    def _as_pkd(self) -> tuple[Floats, NDArray[np.int8]]:
        unit = self.header.units[0]
        side = self.bounds.sides
        is_stronger_above = UNITS[unit].stronger == "higher"
        return to_pkd(self.numbers, unit), side if is_stronger_above else -side

    @property
    def holds_numbers(self) -> bool:
        """Whether most cells that are not empty are numbers or bounds."""
        return 2 * int(np.isfinite(self.numbers).sum()) > len(self.filled)

    @cached_property
    def improbability(self) -> tuple[bool | int, ...]:
        """Order of columns of numbers by how probably each is the label.

        Names of measurements come first, those of binding before others; rates and differences, and
        then what numbers, counts or describes rows, come last.
        """
        words = name_words(self.name, "[a-z]+[0-9]*")
        joined = "".join(words)
        bare = {word.rstrip("0123456789") for word in words} | {*words}
        if _BINDING.search(joined) or not _BINDING_WORDS.isdisjoint(bare):
            kind = 0
        elif _MEASURED.search(joined) or not _MEASURED_WORDS.isdisjoint(bare):
            kind = 1
        else:
            kind = 2
        rows = len(self.numbers)
        values = np.unique(self.numbers[np.isfinite(self.numbers)])
        are_whole = bool((values % 1 == 0).all())
        is_described = any(map(_OF_ROWS.fullmatch, words)) or bool(_COMPUTED.search(joined))
        is_other = is_described or len(values) < 3 or self.header.predicted
        if kind == 2:
            is_other |= any(map(_BESIDE.fullmatch, words))
        is_summary = not _SUMMARIES.isdisjoint(words)
        are_repeated = 10 * len(values) < rows
        is_no_label = bool(self.header.not_label)
        return (is_other, is_no_label, kind, are_whole, not is_summary, are_repeated)

    @cached_property
    def is_of_classes(self) -> bool:
        """Whether it is named like a label of yes and no, and its cells say so."""
        is_named = is_named_like_classes(self.name) and not self.header.names_affinity
        return is_named and holds_classes(self.table, self.name)

    @cached_property
    def hint_of_classes(self) -> str:
        """How it is read as classes, by its name and its words; empty for others."""
        choice = column_option("label", self.name)
        if self.is_of_classes:
            return f"{self.name!r} holds classes: use {choice} --label binary."
        is_named = is_named_like_classes(self.name)
        if is_named or _BINDING.search(simplified(self.name)):
            words = distinct_texts(self.table, self.name)
            if len(words) > 2 and all(_STRENGTH.fullmatch(word.lower()) for word in words):
                named = f"{choice} --classes NAMES, the worst first"
                return f"{self.name!r} holds {quote_names(words)}: use {named}."
        is_class = is_named and not self.header.names_affinity
        beside = words_beside_others(self.filled) if is_class else ()
        if not beside:
            return ""
        cells = quote_names([*map(spelled, self.table.distinct_cells(self.name))])
        return (
            f"{self.name!r} holds {cells}: use {choice} --classes {shell_quoted(','.join(beside))} "
            "--bad-rows skip to leave out the others, or name all classes, the worst first."
        )

    @property
    def is_beside_labels(self) -> bool:
        """Whether it numbers, counts or describes rows, or holds classes."""
        return bool(self.improbability[0])

    @property
    def is_probable(self) -> bool:
        """Whether it is named like a measurement, and holds more than classes."""
        _, _, kind, *_ = self.improbability
        is_named = kind < 2 and not self.is_beside_labels
        return self.header.better is not None or is_named

    @property
    def is_molar(self) -> bool:
        """Whether its numbers are as small as only concentrations in M are, not in nM or uM."""
        values = self.numbers[np.isfinite(self.numbers)]
        if not len(values) or values.min() < _MOLAR[0] or values.max() > _MOLAR[1]:
            return False
        return bool(np.median(values) <= _MEDIAN_MOLAR)

    def in_unit(self, unit: str, role: str = "pkd") -> str:
        """Spell the options that read it as affinities in a unit."""
        named = "" if self.table.is_matrix else f"{column_option(role, self.name)} "
        return f"{named}--label {unit}"

    @property
    def hint_of_unit(self) -> str:
        """How it is read by a column of units, all equal, beside it; empty without one."""
        units = find_describing(self.table, self.name).units
        stated = unit_of_cells(self.table, units[0], self.name) if len(units) == 1 else None
        if stated is None:
            return ""
        return f"{self.name!r} is {stated} by column {units[0]!r}: use {self.in_unit(stated)}."

    @property
    def hint(self) -> str:
        """How it is read if it may be the label by its name; empty for others."""
        header = self.header
        if self.hint_of_classes:
            return self.hint_of_classes
        if header.not_label or not (header.affinity or header.plain):
            return ""
        # a flag of 0 and 1, such as `Kd_is_greater`, is no affinity
        is_flag = {*self.numbers[np.isfinite(self.numbers)]} <= {0, 1}
        if not header.sure and (is_flag or not self.holds_numbers):
            return ""
        if header.of_alphaseq:
            return f"{self.name!r} is {ALPHASEQ_WORDS}: use {self.in_unit(ALPHASEQ_UNIT)}."
        if header.unit_alone:
            return ""
        if header.units:
            unit = header.units[0]
            return f"{self.name!r} is named like {unit}: use {self.in_unit(unit)}."
        if self.hint_of_unit:
            return self.hint_of_unit
        if header.affinity and self.is_molar:
            return f"{self.name!r} holds M, by the size of its numbers: use {self.in_unit('kd_m')}."
        ending = "" if header.affinity else " (value --better higher: if it is no affinity)"
        return f"{self.name!r} may be one: use {self.in_unit('UNIT')}{ending}."


def _likely_first(columns: Iterable[Column]) -> list[Column]:
    return sorted(columns, key=lambda column: column.improbability)


def _without_copies(columns: Sequence[Column]) -> list[Column]:
    """Leave out columns without a cell, and those that repeat another in a further unit.

    Of several that hold the same affinities, the one of most different values is kept.
    """
    if len(columns) < 2:
        return [*columns]
    filled = [column for column in columns if len(column.filled)] or columns
    kept = list[Column]()
    for column in sorted(filled, key=lambda column: -len(np.unique(column.numbers))):
        if not any(column.repeats(other) for other in kept):
            kept.append(column)
    return [column for column in columns if column in kept]


def _names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table that may be its label."""

    table: Table

    @cached_property
    def free(self) -> list[Column]:
        """Those that have no role, and that no command has written."""
        used = set(self.table.columns.values())
        columns = [Column(self.table, name) for name in self.table.names]
        return [column for column in columns if column.name not in used and not column.command]

    @cached_property
    def numbers(self) -> list[Column]:
        """Those of numbers, likely labels first, without constants, such as a pH, beside others."""
        numbers = []
        for column in self.free:
            is_index = UNNAMED.fullmatch(column.name) is not None
            if is_index or column.header.describes_another:
                continue
            if column.holds_numbers:  # last: it reads all cells
                numbers.append(column)
        frame = self.table.frame
        varied = [column for column in numbers if frame[column.name].nunique() > 1]
        return _likely_first(varied or numbers)

    @cached_property
    def classes(self) -> list[Column]:
        """Those that are named like a label of yes and no, and whose cells say so."""
        return [column for column in self.free if column.is_of_classes]

    @cached_property
    def states_unit(self) -> bool:
        """Whether the name of a column of measurements states a unit, and more than the unit."""
        headers = [column.header for column in self.free if self._has_unit(column)]
        is_stated = any(not (header.unit_alone or header.predicted) for header in headers)
        return is_stated or any(column.header.of_alphaseq for column in self.free)

    def _has_unit(self, column: Column) -> bool:
        """Tell whether a name has a unit; an energy has none beside measurements without one."""
        if column.header.implies_unit:
            return not self._without_unit
        return bool(column.header.units)

    @cached_property
    def _without_unit(self) -> list[Column]:
        """Those of numbers that are named like a Kd or IC50, in a unit that is not named."""
        named = [x for x in self.free if x.header.sure and x.header.affinity]
        return [x for x in named if not x.header.units and x.holds_numbers]

    def _find_same(self, quantity: Quantity) -> str:
        """Return the only column with the name of a quantity, that of a run, or its classes."""
        name = quantity.name.casefold()
        columns = self.free if quantity.classes else self.numbers
        same = [x for x in columns if x.header.quantity.casefold() == name]
        if quantity.is_binary and not same:
            same = self.classes
        if len(same) == 1:
            return same[0].name
        self._refuse_missing(f"no column for {quantity}, which the run predicts")

    def _refuse_missing(self, problem: str) -> NoReturn:
        """Refuse a table without a column of numbers that may be the label."""
        self.table.refuse_missing(problem, "Name it with --column label=NAME.")

    def find_label(self, options: LabelOptions, remembered: Remembered | None) -> str:
        """Return the column that is the label of the run, or else the label by its own name.

        For a table of a run, other quantities than that of the run are neither taken nor proposed.
        """
        table = self.table
        label = options.label
        if remembered is not None and remembered.column in table.names:
            return remembered.column
        if remembered is not None and not remembered.quantity.affinity:
            return self._find_same(remembered.quantity)
        if options.asks_for_classes:
            return self._find_classes(options)
        takes_others = label is None and remembered is None
        of_classes = self._only_classes() if takes_others else None
        is_of_value = options.unit is not None or options.scale is not None
        if of_classes is not None and options.better is not None and not is_of_value:
            return of_classes
        if options.asks_for_value:
            return self._find_value(options)
        column = self._stated_label(label) or of_classes
        if column is not None:
            return column
        hints = self._propose_named(takes_classes=remembered is None)
        quantities = self._propose_quantities() if takes_others else []
        if quantities and len(self.numbers) == 1 and not hints:
            return self.numbers[0].name
        if quantities or hints:
            others = self._list_others() if takes_others else []
            proposed = " ".join([*quantities, *hints, *others])
            table.refuse(f"no column for pkd, but {proposed}", UnclearLabel)
        return table.column("pkd", "" if remembered is not None else self._advise_value())

    def _only_classes(self) -> str | None:
        """Return the only column of classes, if no column of numbers may be the label as well."""
        if len(self.classes) != 1:
            return None
        name = self.classes[0].name
        beside = [column for column in self.numbers if column.name != name]
        return None if any(x.hint or x.is_probable for x in beside) else name

    def _find_classes(self, options: LabelOptions) -> str:
        """Return the only column that holds classes as the options name them, or refuse."""
        candidates = []
        for column in self.free:
            if has_classes(self.table, column.name, options):
                candidates.append(column)
        named = [column for column in candidates if is_named_like_classes(column.name)]
        candidates = named or candidates
        if len(candidates) == 1:
            return candidates[0].name
        if not candidates:
            self._refuse_missing("no column of classes for the label")
        self.table.refuse(
            f"columns {quote_some(_names(candidates))} hold classes; expected one. Choose with "
            f"{column_option('label', candidates[0].name)}.",
            UnclearLabel,
        )

    def _find_value(self, options: LabelOptions) -> str:
        """Return the only column of numbers that is not named like an affinity, or refuse."""
        numbers = [column for column in self.numbers if not column.header.states_affinity]
        if len(numbers) == 1:
            return numbers[0].name
        if not self.numbers:
            self._refuse_missing("no column of numbers for the label")
        first = self.numbers[0].name
        advice = "" if options.better else " --label value --better higher, or lower"
        self.table.refuse(
            f"no column for the label, but {quote_some(_names(self.numbers))} may be another "
            f"quantity; expected one to be chosen. Use {column_option('label', first)}{advice}.",
            UnclearLabel,
        )

    def _advise_value(self) -> str:
        """Say how a column is read whose name says nothing: of numbers, or of yes and no."""
        names = _names(self.numbers)
        if not names or self.numbers[0].is_beside_labels:
            varied = [column for column in self.free if column.filled.nunique() > 1]
            of_two = [column for column in varied if holds_classes(self.table, column.name)]
            choices = " or ".join(column_option("label", column.name) for column in of_two)
            return f", or a label of yes and no with {choices} --label binary" if of_two else ""
        first = self.numbers[0]
        if first.hint_of_unit and (len(names) == 1 or first.is_probable):
            return f". {first.hint_of_unit.removesuffix('.')}"
        named = column_option("label", names[0])
        listed = f"; columns of numbers, likely labels first: {quote_some(names)}"
        return (
            f", or a quantity that is no affinity with {named} --label value --better "
            f"higher, or lower{listed if len(names) > 1 else ''}"
        )

    def _stated_label(self, label: Label | None) -> str | None:
        """Return the column whose name fits best; None if none does, and refuse several."""
        stated = []
        for column in self.free:
            header = column.header
            if header.sure and (self._has_unit(column) if label is None else label in header.units):
                stated.append(column)
        first = min((column.header.order for column in stated), default=0)
        best = _names(_without_copies([c for c in stated if c.header.order == first]))
        if len(best) == 1:
            return best[0]
        if len(best) > 1 and first < 2:
            choices = [column_option("pkd", name) for name in best]
            self.table.refuse(
                f"columns {quote_names(best)} fit pkd equally well; expected one. Choose with "
                f"{' or '.join(choices)}; for a run of each, give each its own --run folder, and "
                "compare them with abag runs.",
                ColumnError,
            )
        if label is None or best:
            return None
        return self._only_affinity()

    def _only_affinity(self) -> str | None:
        """Return the only column that may be in a unit that the user gave; None without one."""
        sure = [column for column in self.free if column.header.sure]
        with_unit = _names(column for column in sure if column.header.units)
        affinities = _names(column for column in sure if column.header.affinity)
        without_unit = [name for name in affinities if name not in with_unit]
        plain = _names(column for column in self.free if column.header.plain)
        for names in (without_unit, plain):
            if len(names) == 1:
                return names[0]
        # the name of a column with a unit contradicts the option, which is refused
        is_one = not without_unit and not plain and len(with_unit) == 1
        return with_unit[0] if is_one else None

    def _propose_named(self, *, takes_classes: bool) -> list[str]:
        """Say how columns are read that may be the label; if some state a unit, only these."""
        proposed = []
        for column in self.free:
            header = column.header
            is_possible = header.units or header.of_alphaseq or not self.states_unit
            if column.hint_of_classes and not takes_classes:
                continue
            if is_possible and column.hint:
                proposed.append(column)
        return [column.hint for column in _likely_first(proposed)]

    def _list_others(self) -> list[str]:
        """Name other columns that may be the label, if no column states a unit."""
        others = []
        for column in self.numbers:
            is_proposed = column.hint or column.header.better
            if not (is_proposed or self.states_unit or column.name in RATES) and column.is_probable:
                others.append(column.name)
        how = "(--column label=NAME --label value --better higher, or lower)"
        return [f"Other columns of numbers: {quote_some(others)} {how}."] if others else []

    def _propose_quantities(self) -> list[str]:
        """Say how the columns are read that are named like another quantity than an affinity."""
        named = [column for column in self.numbers if column.header.better]
        proposed = []
        for column in named[:_MOST_PROPOSED]:
            if not column.header.states_affinity:
                choice = column_option("label", column.name)
                proposed.append(
                    f"{column.name!r} is named like a quantity that is no affinity: use {choice}."
                )
        return proposed


AS_IN_THE_RUN = "as in the run"
"""Why a column has a unit."""
_IN_THE_NAME = "the column is named so"
IN_THE_CELLS = "the cells say so"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeaning:
    """What a column of labels or predictions is read as."""

    column: str = ""
    unit: Label = "pkd"
    why: str = ""
    """What says so; empty if nothing needs to."""
    quantity: Quantity = PKD

    @property
    def describing(self) -> Describing:
        """Nothing: no other column describes predictions."""
        return NO_DESCRIPTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered(ColumnMeaning):
    """How a run read its labels, for tables that say nothing else."""

    no_binding_pkd: float | None = None
    no_binding_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout(LayoutRecord):
    """What the columns of a run's table are: the same in config.json and predictor.json."""

    label: Remembered = Remembered()

    def to_json(self) -> dict[str, Any]:
        """Return what `of_json` restores."""
        layout: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples are lists
        if not self.mutations_in_order:
            del layout["mutations_in_order"]
        return layout

    @classmethod
    def of_json(cls, record: object) -> Self:
        """Restore from JSON; TypeError or ValueError if it is none."""
        layout: Self = parse(cls, record, "layout")
        layout.check()
        return layout


class Asked(NamedTuple):
    """What is known of a column beside its name and cells."""

    role: Literal["pkd", "prediction"]
    """``pkd`` for labels, which may be of another quantity."""
    options: LabelOptions
    remembered: Remembered | None = None
    """How the run of the table read its labels."""
    units: tuple[str, ...] = ()
    """Columns of the units of labels."""


def meaning_of_column(column: Column, asked: Asked) -> ColumnMeaning:
    """Find what a column is read as; refuse one that its name or the options contradict.

    Raises
    ------
    LabelError
        If the column is no measurement, or named like another unit than that of the options.
    UnclearLabel
        If the unit is not known.
    """
    options = asked.options
    if asked.role == "pkd":
        if column.command and column.name not in SCAN_MEASURED:
            column.refuse(
                f"is a column of abag {column.command}, not a measurement; expected measured "
                "affinities. Use --column pkd=NAME, or --column label=NAME of another quantity."
            )
        if asked.remembered is not None:
            meaning = _quantity_of_run(column, options, asked.remembered.quantity)
        else:
            classes = decide_classes(column.table, column.name, options)
            meaning = classes and as_it_is(column.name, *classes)
        meaning = meaning or _other_quantity(column, options, is_of_run=bool(asked.remembered))
        if meaning is not None:
            return meaning
    unit, why = _unit_of_affinity(column, asked)
    return ColumnMeaning(column=column.name, unit=unit, why=why)


# ---- kinds of labels: each returns what it reads a column as, or None ------------------------


def _quantity_of_run(
    column: Column, options: LabelOptions, quantity: Quantity
) -> ColumnMeaning | None:
    """Read the quantity of a run that is no affinity; refuse what states another one."""
    if quantity.affinity and not options.asks_for_classes:
        return None
    refuse_other_options(column.table, options, quantity)
    refuse_affinity(column, quantity)
    if quantity.classes:
        refuse_other_cells(column.table, column.name, quantity.classes)
        return as_it_is(column.name, quantity, AS_IN_THE_RUN)
    header = column.header
    same = header.quantity.casefold() == quantity.name.casefold()
    if not same and header.better not in (None, quantity.better):
        column.refuse(
            f"is named like a quantity of which {header.better} is better; expected "
            f"{quantity.description}, as in the run. Choose another with --column label=NAME, or "
            "rename it."
        )
    written = header.written_unit
    if written and quantity.unit and _spelled(written) != _spelled(quantity.unit):
        column.refuse(
            f"is in {written}; expected {quantity.unit}, as in the run. Convert it, and name it so."
        )
    return as_it_is(column.name, quantity, AS_IN_THE_RUN)


def _other_quantity(
    column: Column, options: LabelOptions, *, is_of_run: bool
) -> ColumnMeaning | None:
    """Read another quantity than an affinity, which the options ask for or the name says.

    One that is to be `is_of_run` is refused, since the quantity of the run was read before.
    """
    header = column.header
    is_affinity = header.names_affinity and not header.not_label
    is_asked_for = options.asks_for_value
    if not is_asked_for and (header.better is None or is_affinity):
        return None
    if is_affinity and header.units:
        column.refuse(
            f"is named like {header.units[0]}, an affinity, which is learned as pKd, and "
            "--label value, --better, --unit or --scale is of other quantities; expected one or "
            "the other. Leave these options out, or choose another column with --column label=NAME."
        )
    if options.label not in (None, "value"):
        column.refuse(
            "is named like another quantity than an affinity, but --label says "
            f"{options.label}; expected --label value. Leave --label out, or rename the column."
        )
    if is_of_run:
        column.refuse(
            f"is {header.quantity!r}, not an affinity, which the run predicts; expected labels of "
            "its kind. Choose another column with --column label=NAME."
        )
    better = options.better or header.better
    if better is None:
        refuse_two_values(column.numbers, column.where, header.quantity)
        column.refuse(
            "does not say which of its values are better; expected higher or lower. Add --better "
            "higher, or --better lower.",
            UnclearLabel,
        )
    unit = header.written_unit if options.unit is None else options.unit.strip()
    quantity = Quantity(name=header.quantity, unit=unit, better=better, affinity=False)
    why = "given by the options" if is_asked_for else _IN_THE_NAME
    scale = options.scale
    if scale is None and not quantity.names_logarithm and spans_decades(column.numbers):
        scale = "log"
        why += "; over two decades or more, so logarithms: --scale linear learns them as written"
    return as_it_is(column.name, replace(quantity, scale=scale or "linear"), why)


def _unit_of_affinity(column: Column, asked: Asked) -> tuple[Label, str]:
    """Return the unit of a column of affinities, and what says so.

    A column without a unit, or in another than is asked for, is refused.
    """
    header = column.header
    role = asked.role
    given = asked.options.label
    hint = ""
    if role == "pkd":
        hint = "; a quantity that is no affinity needs --label value --better higher, or lower"
    if header.not_label:
        column.refuse(
            f"is named like {header.not_label}, not like an affinity; expected pKd, Kd, Ka or dG. "
            f"Choose another with --column {role}=NAME, or rename it{hint}."
        )
    if given is not None:
        if header.units and given not in header.units and column.unit_in_cells is None:
            column.refuse(
                f"is named like {' or '.join(header.units)}, but --label says {given}; expected "
                "the unit of the name. Leave --label out, or rename the column."
            )
        return given, "given by --label"
    # a name that allows one unit says more than the run, and numbers without the unit that those
    # of the run had may be in any
    remembered = asked.remembered
    if remembered is not None and remembered.column == column.name:
        if len(header.units) != 1 and remembered.why != IN_THE_CELLS:
            return remembered.unit, AS_IN_THE_RUN
    if header.units:
        return header.units[0], _IN_THE_NAME if column.unit_in_cells is None else IN_THE_CELLS
    if header.of_alphaseq:
        column.refuse(
            f"names no unit; AlphaSeq gives {ALPHASEQ_WORDS}. If it is that, "
            f"add {column.in_unit(ALPHASEQ_UNIT, role)}.",
            UnclearLabel,
        )
    if len(asked.units) == 1:
        stated = unit_of_cells(column.table, asked.units[0], column.name)
        if stated is not None:
            return stated, f"column {asked.units[0]!r} says so"
    if header.affinity:
        units = ", ".join(unit for unit in UNITS if unit not in ("pkd", *NO_AFFINITIES))
        column.refuse(
            f"names no unit that is understood; expected one of {units}. Give it with "
            f"{column.in_unit('UNIT', role)}{hint}.",
            UnclearLabel,
        )
    # words for classes are refused later
    is_chosen = role == "pkd" and column.table.columns.get("label") == column.name
    if is_chosen and not all(map(says_class, column.filled)):
        refuse_two_values(column.numbers, column.where, "an affinity")
        column.refuse(
            "does not say what it measures; expected an affinity in a unit, or another quantity. "
            "Add --label pkd, or another unit such as kd_nm, or for a quantity that is no affinity "
            f"--label value --better higher, or lower.{advise_classes(column.filled)}",
            UnclearLabel,
        )
    with_unit = [text for text in distinct_texts(column.table, column.name) if unit_of_cell(text)]
    if with_unit:
        column.refuse(
            f"has cells with a unit, such as {quoted(with_unit[0])}, and others without; expected "
            f"one for all numbers. Give that of the others with {column.in_unit('UNIT', role)}.",
            UnclearLabel,
        )
    if role == "pkd" and column.table.is_matrix:
        _refuse_unnamed(column)
    return "pkd", "" if role == "prediction" else "no unit is stated"


def _refuse_unnamed(column: Column) -> None:
    """Refuse cells of a matrix, whose unit no header names, unless nearly all may be pKd."""
    numbers = column.numbers[np.isfinite(column.numbers)]
    unusual = numbers[outside(numbers, USUAL_PKD)]
    if len(unusual) > MOST_UNUSUAL * len(numbers):
        column.table.refuse(
            f"no header names the unit of the labels of a matrix, and {len(unusual):,} of "
            f"{len(numbers):,}, such as {unusual[0]:g}, are outside the usual range of pKd (2 to "
            "14); expected pKd. Give the unit with --label, such as --label kd_nm or --label "
            "ug_ml, or --label pkd; a quantity that is no affinity needs --label value --better "
            "higher, or lower.",
            UnclearLabel,
        )


def as_it_is(column: str, quantity: Quantity, why: str) -> ColumnMeaning:
    """Return what a column of another quantity than an affinity is read as: values or classes."""
    unit = unit_of(quantity.classes) if quantity.classes else "value"
    return ColumnMeaning(column=column, unit=unit, why=why, quantity=quantity)


def refuse_affinity(column: Column, quantity: Quantity) -> None:
    """Raise `LabelError` if a column is named like an affinity, which the run does not predict."""
    if column.header.states_affinity:
        column.refuse(
            f"is named like {column.header.unit}, an affinity; expected {quantity}, which the run "
            "predicts. Choose another with --column."
        )


def _spelled(unit: str) -> str:
    return re.sub(r"[\s.*·^]|deg(?:rees?)?|°", "", unit.casefold())


# ---- all of one table ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelLayout:
    """What the label of one table is, or why it has none, and the columns beside it."""

    source: str
    """Name of the table."""
    meaning: ColumnMeaning | None
    """None if the label is refused."""
    options: LabelOptions
    """How it is converted."""
    remembered: Remembered | None = None
    refused: AbagError | None = None
    is_absent: bool = False
    """Whether nothing may be a label, as in a table to predict."""
    beside: tuple[ColumnBeside, ...] = ()
    """Features, categories, error or weight, and the column of the split."""
    others: Mapping[str, Label] = field(default_factory=dict)
    """Units of the columns that have no role, and would be labels by their names."""
    describing: Describing = NO_DESCRIPTION

    @property
    def column(self) -> str:
        """Name of the column in its table; empty if the label is refused."""
        return "" if self.meaning is None else self.meaning.column

    def checked(self) -> ColumnMeaning:
        """Return what the column is read as, or raise the error that refuses it."""
        if self.meaning is None:
            assert self.refused is not None
            raise self.refused
        return self.meaning


def decide_label(
    table: Table,
    options: LabelOptions,
    remembered: Remembered | None = None,
    *,
    named: Sequence[tuple[str, BesideRole]] | None = None,
    run: object = "",
) -> LabelLayout:
    """Decide which column of a table is the label, what it is read as, and what is beside it.

    Parameters
    ----------
    table : Table
        With ``pkd`` or ``label`` among its roles if the user named the column; with ``label``,
        what it measures has to be stated.
    options : LabelOptions
    remembered : Remembered, optional
        How the run of the table read its labels.
    named : sequence, optional
        Columns beside the label, by default those that `options` name, see `named_beside`.
    run : path, optional
        The run that needs these columns.

    Returns
    -------
    LabelLayout
        With the refusal, as `ColumnError` or `LabelError`, if no column is the label, its unit is
        not known, or its name contradicts the options: a table to predict needs none.
    """
    columns = Columns(table)
    meaning = None
    describing = NO_DESCRIPTION
    beside = named_beside(options) if named is None else named
    refused: AbagError | None = None
    try:
        column = table.columns.get("label", table.columns.get("pkd"))
        if column is None:
            column = columns.find_label(options, remembered)
        for role in ("censored", "affinity_type"):
            if role in table.ties:
                table.column(role)  # refuses: the bounds of one column would be read as exact
        describing = find_describing(table, column, [name for name, _ in beside])
        table = replace(table, columns={**table.columns, **describing.roles})
        asked = Asked("pkd", options, remembered, describing.units)
        meaning = meaning_of_column(Column(table, column), asked)
        if meaning.quantity.affinity:
            name = _name_affinity(table, column, options.affinity_type)
            meaning = replace(meaning, quantity=replace(meaning.quantity, name=name))
    except AbagError as error:
        refused = error
    is_missing = isinstance(refused, MissingColumn) and not isinstance(refused, UnclearLabel)
    label = "" if meaning is None else meaning.column
    roles = {name: role for role, name in table.columns.items() if role in LABELS_AND_SEQUENCES}
    if label:
        roles[label] = "pkd"
    others: dict[str, Label] = {}
    if meaning is not None and meaning.quantity.affinity:
        used = {*table.columns.values(), label}
        for other in table.names:
            header = read_header(other)
            if other not in used and header.sure and header.unit is not None:
                others[other] = header.unit
    return LabelLayout(
        source=table.source,
        meaning=meaning,
        options=options,
        remembered=remembered,
        refused=refused,
        is_absent=is_missing and not columns.numbers,
        beside=tuple(ColumnBeside.of(table, roles, name, role, run) for name, role in beside),
        others=others,
        describing=describing,
    )


def _name_affinity(table: Table, column: str, affinity_type: str | None) -> str:
    """Name affinities: pIC50 or pEC50 if their column or affinity type says so, or pKd."""
    asked = affinity_type or ""
    says = [asked if read_header(asked).names_affinity else column]
    if affinity_type is None and table.has("affinity_type"):  # of one type: they are never mixed
        says += read_types(table).unique().tolist()
    match = re.search("(ic|ec)[ _-]*50", plain_text(" ".join(says))[0])
    return f"p{match[1].upper()}50" if match else "pKd"


def choose_prediction(table: Table, label: Label | None = None) -> ColumnMeaning:
    """Find the column of predictions, and what it is read as."""
    name = table.columns.get("prediction")
    if name is None and "prediction" not in table.ties:
        columns = [Column(table, name) for name in table.names]
        named = [x.name for x in columns if x.header.predicted and x.header.units]
        name = named[0] if len(named) == 1 else None
    column = Column(table, table.column("prediction") if name is None else name)
    return meaning_of_column(column, Asked("prediction", LabelOptions(label=label)))
