"""What the labels of a run measure: the name, the unit, and which values are better.

It is decided once, where the label column is read (`head.data.affinities`), kept in config.json, in
the summary and in the predictor, and handed to all that prints, names columns or ranks. Affinities
are pKd, with its units and checks; any other quantity stays as it is written: no logarithm, no
usual range, no threshold of strong binders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from abag.core.errors import OptionError
from abag.core.messages import printable
from abag.head.data.headers import plain_text, read_header
from abag.head.data.label_options import Better

if TYPE_CHECKING:
    import pandas as pd

LONGEST_NAME = 60
"""Characters of the name of a quantity that are kept."""
DIGITS = 4
"""Digits after the point of a predicted pKd in text files."""
STRONG_RANGE = (-20, 20)
"""Valid thresholds of pKd."""
LARGE = 10_000
"""From this on, numbers of other quantities are shown without digits after the point."""
INSIDE = ("pkd", "pkd_predicted", "pkd_measured")
OUTSIDE = ("measured", "predicted", "measured")
"""Names of columns of labels and predictions: in code and for pKd, and for other quantities."""
_OUTSIDE_OF = dict(zip(INSIDE, OUTSIDE, strict=True))
_DELTA_DELTA = re.compile(r"(?:delta[\s_\-]*){2,}(?=g)")
_UNIT = re.compile(r"(?P<name>.*\S)\s*[(\[](?P<unit>[^()\[\]]*)[)\]]\s*")
_HIGHER = re.compile(
    "enrichment|expression|titer|titre|yield|neutrali[sz]|melting|thermostab|thermalstab|"
    "solubility|rel(?:ative)?binding|bindingsignal|bindingintensity|monomer|purity"
)
_LOWER = re.compile(
    "ddg|aggregation|polyreactiv|polyspecific|viscosity|hydrophob|immunogenic|nonspecific|"
    "retentiontime|(?:hic|cic|smac)rt|acsins|selfinteraction"
)
_FUNCTION = re.compile(
    r"\W*(?:log|log2|log10|log1p|ln|asinh|sqrt|mean|median|delta)", re.IGNORECASE
)
_TITERS = frozenset("nt50 nt80 id50 id80 pvnt50 prnt50".split())
"""Dilutions of sera at which a share of viruses is neutralised."""
_WORDS_HIGHER = _TITERS | frozenset(
    "tm tm1 tm2 tonset tagg t50 dtm deltatm mfi od od450 expr".split()
)
_WORDS_LOWER = frozenset("ic80 ic90 ic95 ic99".split())
"""Words and parts of words that name a quantity whose better values are known."""
_NEGATED = (["neg"], ["negative"], ["minus"])
"""First words that reverse a quantity, as a minus does."""
_UNDECIDED = frozenset(
    "neg negative minus loss escape resistance resistant decrease reduction reduced drop inverse "
    "reciprocal rank".split()
)
"""Words with which the usual direction of a quantity may be reversed."""
_SPREAD = frozenset(
    "std sd sem se err error stdev stddev stderr ci ci95 cv variance uncertainty pvalue pval "
    "qvalue qval padj fdr".split()
)
"""Words of a column that describes another one."""
_OPPOSITE: dict[Better | None, Better | None] = {"higher": "lower", "lower": "higher", None: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What labels and predictions are."""

    name: str = "pKd"
    unit: str = ""
    """As the user or the column writes it; empty if there is none."""
    better: Better = "higher"
    affinity: bool = True
    """Whether it is pKd, pIC50 or pEC50, to which values of other units were converted."""

    def __str__(self) -> str:
        """Write the name with its unit, as in headings: ``Tm (°C)``."""
        return printable(f"{self.name} ({self.unit})" if self.unit else self.name)

    @property
    def sign(self) -> int:
        """1 if higher values are better, else -1."""
        return 1 if self.better == "higher" else -1

    @property
    def description(self) -> str:
        """Say what it is in half a sentence."""
        if self.affinity:
            return f"{self} = -log10({str(self)[1:]} in M)"
        return f"{self}, {self.better} is better"

    @property
    def predicted(self) -> str:
        """Name of the column of predictions."""
        return self.column("pkd_predicted")

    def column(self, name: str) -> str:
        """Return the name that a column of the code has in tables."""
        return name if self.affinity else _OUTSIDE_OF.get(name, name)

    def columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that columns of the code have in tables."""
        return tuple(map(self.column, names))

    def outward(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Name the columns of a table of the code as users see them."""
        return frame.rename(columns={} if self.affinity else _OUTSIDE_OF)

    def inward(self, frame: pd.DataFrame, *names: str) -> pd.DataFrame:
        """Give these columns of a table that was written back their names in the code."""
        return frame.rename(columns={self.column(name): name for name in names})

    def show(self, value: float, digits: int = 2) -> str:
        """Write a value: with `digits` after the point, or as many significant ones and two more.

        The latter is for other quantities than affinities, which have any scale.
        """
        if self.affinity:
            return f"{value:z.{digits}f}"  # z: no -0.00
        return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.{digits + 2}g}"

    def digits(self, spread: float) -> int:
        """Return the digits after the point in text files, for values of this spread."""
        if self.affinity or not 0 < spread < math.inf:
            return DIGITS
        return max(0, DIGITS - math.floor(math.log10(spread)))

    def to_json(self) -> dict[str, Any]:
        """Return what `of_json` restores."""
        return asdict(self)

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Quantity:
        """Restore from JSON; TypeError or ValueError if it is none."""
        made = cls(**record)
        texts = isinstance(made.name, str) and isinstance(made.unit, str)
        if not texts or made.better not in ("higher", "lower") or type(made.affinity) is not bool:
            msg = f"{dict(record)} is no quantity"
            raise ValueError(msg)
        return made

    def check_threshold(self, value: float | None, name: str) -> None:
        """Refuse a threshold, given for the option `name`, that no value of an affinity reaches."""
        low, high = STRONG_RANGE if self.affinity else (-math.inf, math.inf)
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            expected = f"{low} to {high}" if self.affinity else "a finite number"
            msg = f"{name}: {value} is out of range; expected {expected}."
            raise OptionError(msg)


PKD = Quantity()


class ValueHeader(NamedTuple):
    """What the name of a column says about a quantity that is no affinity."""

    name: str
    unit: str
    better: Better | None
    """None if the name does not tell."""
    describes_another: bool = False
    """Whether it is an error or an interval of another column."""


def read_value_header(column: str) -> ValueHeader:
    """Read the name of a column as that of a quantity, such as ``Tm (°C)``.

    Parameters
    ----------
    column : str
        As in the table.

    Returns
    -------
    ValueHeader
        A unit is what brackets at the end hold; `better` is known for usual quantities only.
    """
    bracketed = _UNIT.fullmatch(column)
    if bracketed is None or _is_of_function(bracketed["name"], bracketed["unit"]):
        name = column.strip()
        unit = ""
    else:
        name = bracketed["name"].strip()
        unit = bracketed["unit"].strip()
    describes_another = not _SPREAD.isdisjoint(_words(column))
    return ValueHeader(
        name=printable(name)[:LONGEST_NAME] or "value",
        unit=printable(unit)[:LONGEST_NAME],
        better=None if describes_another else _better_values(column, name),
        describes_another=describes_another,
    )


def _is_of_function(name: str, bracketed: str) -> bool:
    """Tell whether brackets hold a quantity instead of a unit, as in ``log10(MFI)``."""
    return (
        bool(_FUNCTION.fullmatch(name.strip())) or _usual_direction(_words(bracketed)) is not None
    )


def _words(name: str) -> list[str]:
    text = _DELTA_DELTA.sub("dd", plain_text(name)[0])
    text = re.sub(r"\b([pq])[\s_-]+(?=val)", r"\1", text)
    return re.findall("[a-z]+[0-9]*|[0-9]+", text)


def _usual_direction(words: list[str]) -> Better | None:
    joined = "".join(words)
    if _LOWER.search(joined):
        return "higher" if "temperature" in joined else "lower"  # of an onset: it is a stability
    if not _WORDS_LOWER.isdisjoint(words):
        return "lower"
    is_known = _HIGHER.search(joined) or not _WORDS_HIGHER.isdisjoint(words)
    return "higher" if is_known else None


def _better_values(column: str, name: str) -> Better | None:
    """Return which values of a column are better, if its name tells."""
    words = _words(name)
    better = _usual_direction(words)
    joined = "".join(words)
    neutralises = "neutrali" in joined or not _TITERS.isdisjoint(words)
    if neutralises and better == "higher" and read_header(f"IC50 {column}").units:
        return None  # a concentration that neutralises, or one at which neutralisation was measured
    if "aggregation" in joined and better == "lower" and "°" in column:
        return None  # its onset, or a share at a temperature
    is_negated = plain_text(name)[0].lstrip().startswith("-") or words[:1] in _NEGATED
    if not _UNDECIDED.isdisjoint(_words(column)[int(is_negated) :]):
        return None
    return _OPPOSITE[better] if is_negated else better
