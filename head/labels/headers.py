"""What the name of a column says about a measurement: quantity, unit, direction, and how surely.

A name states a unit if all that it needs is there: ``Fab KD (nM)``, ``−log10 KD``, ``Ka (1/M)``.
What is not understood makes the unit unknown, it is never dropped: ``KD (☃M)``, ``KD (nM⁻¹)``.
Affinities are converted to pKd; any other quantity stays as it is written. Columns that commands
add to tables are recognised when such a table comes back, and are never labels.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats
from abag.core.errors import OptionError
from abag.core.messages import printable, quoted
from abag.core.options import parse
from abag.embed.tables.table import (
    UNIT_IN_CELL,
    CellNumbers,
    listed_cells,
    plain_number,
    read_bounds,
    without_error,
)
from abag.head.labels.options import ANTIBODY_KDA, UNITS, Better, Label, Scale

USUAL_PKD = (2.0, 14.0)
"""Affinities outside this range do not occur; the label has another unit or meaning."""
FEWEST_FOR_SCALE = 10
"""Fewer values do not show how they are distributed."""
MOST_NAMES = 50_000
"""Names of columns that are remembered: a table of genes has 20,000, each read several times."""
DECADES = 100.0
"""Ratio of the largest to the smallest value from which a logarithm is learned."""


def to_pkd(values: Floats, unit: Label, molar_mass_kda: float = ANTIBODY_KDA) -> Floats:
    """Convert values to pKd; what has no logarithm becomes NaN, other quantities stay."""
    # zero and negative numbers have no logarithm, and become NaN below
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        linear = np.log10(values) if UNITS[unit].takes_log else values
        pkd = UNITS[unit].at_one + linear / UNITS[unit].per_pkd
        if UNITS[unit].of_mass:
            pkd = pkd + np.log10(molar_mass_kda / ANTIBODY_KDA)
    return np.where(np.isfinite(pkd), pkd, np.nan)


def outside(values: Floats, bounds: tuple[float, float]) -> Bools:
    """Return which values lie below the first bound or above the second, (R,)."""
    return (values < bounds[0]) | (values > bounds[1])


def spans_decades(values: Floats) -> bool:
    """Tell whether values, (N,), are positive, far apart, and less skewed as logarithms."""
    known = values[np.isfinite(values)]
    if len(known) < FEWEST_FOR_SCALE or known.min() <= 0 or known.max() < DECADES * known.min():
        return False
    return abs(_skewness(np.log10(known))) < abs(_skewness(known))


def _skewness(values: Floats) -> float:
    centred = values - values.mean()
    deviation = np.sqrt(np.mean(centred**2))
    return float(np.mean((centred / deviation) ** 3)) if deviation > 0 else 0.0


RANK_COLUMNS = ("rank", "score", "expected_best", "probability_above")
SECOND_COLUMNS = ("second_predicted", "second_sigma", "second_probability_above", "front")
"""What `rank` adds of a second property."""
OWN_SCORE = "rank_score"
"""Name of the scores of `rank` beside a column ``score`` of the user."""
PREDICT_COLUMNS = (
    "pkd_predicted",
    "sigma",
    "sigma_model",
    "regime",
    "far",
    "why_far",
    "nearest",
    "distance",
)
SIGMAS = ("sigma", "sigma_model")
STRONG_COLUMN = "p_strong"
PROBABILITY = "probability"
PROBABILITY_COLUMNS = (PROBABILITY, "probability_low", "probability_high")
"""Columns of predictions of a label that is yes or no."""
SCAN_MEASURED = ("pkd_measured", "measured")
WRITTEN_BY = {
    "rank": (*RANK_COLUMNS, *SECOND_COLUMNS, OWN_SCORE),
    "predict": (*PREDICT_COLUMNS, STRONG_COLUMN, "predicted", *PROBABILITY_COLUMNS),
    "scan": ("difference", "difference_sigma", *SCAN_MEASURED),
}
"""Columns that commands add to tables, which come back with measurements from the laboratory."""
_CERTAIN = frozenset(
    "rank expected_best probability_above second_predicted pkd_predicted why_far p_strong "
    "difference_sigma pkd_measured".split()
) | {OWN_SCORE, *PROBABILITY_COLUMNS[1:]}
"""Of these, names that no other table has; the others are of a command only beside one."""


def written_by(name: str, names: Iterable[object]) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the name of a column says."""

    units: tuple[Label, ...] = ()
    """Units that the name allows, the one that it states or implies first; empty: it names none."""
    sure: bool = True
    """Whether every word of the name is understood, so that the column is taken unasked."""
    affinity: bool = False
    """Whether it names an affinity, whose unit has to be given if `units` is empty."""
    unit_alone: bool = False
    """Whether it names a unit, but nothing that is measured in it."""
    plain: bool = False
    """Whether it is one of the words for any measurement, such as ``fitness``."""
    order: int = 0
    """Of several columns that state a unit, those of the lowest number are taken."""
    not_label: str = ""
    """What the column is instead of an affinity, such as ``a difference``."""
    predicted: bool = False
    """Whether it says that its values are predictions."""
    of_alphaseq: bool = False
    """Whether it is one that AlphaSeq tables have, in `ALPHASEQ_UNIT`, which it does not say."""
    quantity: str = ""
    """What it names, if that is another quantity than an affinity."""
    written_unit: str = ""
    """What brackets at its end hold."""
    better: Better | None = None
    """Which values of a quantity are better; None if the name does not tell."""
    describes_another: bool = False
    """Whether it is an error or an interval of another column."""

    @property
    def names_affinity(self) -> bool:
        """Whether it names an affinity, and more than its unit."""
        return self.affinity and not self.unit_alone

    @property
    def states_affinity(self) -> bool:
        """Whether it states a unit of an affinity, and more than the unit."""
        return bool(self.units) and self.names_affinity

    @property
    def implies_unit(self) -> bool:
        """Whether it names an energy without a unit, which may be computed, and in any unit."""
        return self.units[:2] == ("dg_kcal", "dg_kj")

    @property
    def unit(self) -> Label | None:
        """The unit that the name states first; None if it states none."""
        return self.units[0] if self.units else None


_AS_ASCII = {
    "μ": "u", "Δ": "delta", "δ": "delta", "∆": "delta", "−": "-", "–": "-", "—": "-", "‐": "-",
    "‑": "-", "‒": "-", "×": " x ", "·": " ", "⋅": " ", "∙": " ", "•": " ", "±": " std ", "°": " ",
    "∕": "/", "⁄": "/", "’": "'", "‘": "'", "“": '"', "”": '"', "₋": "-", "ᴅ": "d",
}  # fmt: skip
"""Signs that have a meaning here, in composed form (NFKC)."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻−]*[⁰¹²³⁴⁵⁶⁷⁸⁹][⁰¹²³⁴⁵⁶⁷⁸⁹]*")
_SEPARATORS = frozenset(" \t\n_-()[]{},;:/.|=#'\"*^<>~")
_OF_QUANTITY = {
    "kd": ("kd", "kds", "ki", "ic50", "ec50", "kdapp"),
    "ka": ("ka",),
    "pkd": ("pkd", "pkds"),
    "pic50": ("pki", "pic50", "pec50", "pchembl"),
    "dg": ("dg", "gibbs"),
    "affinity": ("affinity", "affinities", "aff"),
    "dissociation": ("dissociation",),
    "association": ("association",),
}
_PREFIXES = ("", "milli", "micro", "nano", "pico", "femto")
"""Of M, each a thousandth of the one before."""
_UNKNOWN_SCALES = ("gml", "mgml", "pgml", "cal")
_OF_ERRORS = tuple(
    "error err std sd sem se stdev stddev stderr ci ci95 cv variance uncertainty".split()
)
_REASONS = {
    "an error or interval": (*_OF_ERRORS, "lower", "upper", "chi2", "sigma", "ci90"),
    "a difference": (
        "delta", "ddelta", "ddg", "dddg", "dpkd", "dkd", "dlogkd", "diff", "difference",
    ),
    "a ratio": (
        "ratio", "fold", "foldchange", "fc", "change", "percent", "pct", "percentage", "relative",
        "rel",
    ),
    "a rate": ("kon", "koff", "kass", "kdis", "kdiss", "kobs", "rate", "konoff"),
    "a mass": ("kda", "mw"),
    "another energy": ("ddh", "dh", "ds", "tds", "folding", "unfolding", "unfold", "stability"),
}  # fmt: skip
"""Words that say what a column is instead of an affinity."""
_KNOWN = (
    "a abs ab analysis and antibody apparent app assay at average averaged avg avidity "
    "ave biacore bind binding bli by carterra constant consensus curated data dissociation "
    "elisa energy eq equilibrium est estimate estimated exp experiment experimental expt fab facs "
    "final fit fitted flow for free from geo geomean geometric global gmean gyrolab igg igg1 igg2 "
    "igg3 igg4 in itc kinetic kinetics kinexa langmuir lsa mab mean meas measure measured "
    "measurement med median mono monovalent msd mst nanobody nb normal obs observed octet of "
    "overall pub published raw reported result results scfv si spr ss standard state steady "
    "surface plasmon resonance the titeseq tite seq titration to "
    "using val value values vhh fv via vitro wasatch with yeast ysd display bio layer "
    "interferometry conc concentration half maximal inhibitory effective inhibition neutralization "
    "neutralisation scale"
).split()
_CHANGED = tuple(
    "log2 log1p sqrt normalized normalised norm relative rel scaled rank ranked percentile "
    "quantile zscore inverse inverted reciprocal bin binned".split()
)
"""Words that say that values were changed, so that the unit beside them is not theirs."""
_PREDICTED = ("predicted", "prediction", "predictions", "pred", "predict")
_OTHERS = {
    "log10": ("log10", "log"), "ln": ("ln", "loge"), "neg": ("neg", "negative", "minus"),
    "predicted": _PREDICTED, "names unit": ("unit", "units"), "": (*_KNOWN,),
}  # fmt: skip
_PLAIN = frozenset(
    "affinity bindingaffinity affinityvalue affinities label labels fitness measurement "
    "measurements score scores bindingscore bindingscores processedmeasurement affinityscore "
    "affinitylabel fitnessscore".split()
)
"""Names of columns of any measurement, which state no unit."""
_ALPHASEQ = ("alphaseqaffinity", "predaffinity")
"""Columns of AlphaSeq tables, which do not say their unit."""
ALPHASEQ_UNIT: Label = "log10_kd_nm"
ALPHASEQ_WORDS = "log10 of Kd in nM, lower is stronger"
_NOT_SPLIT = ("kim", "kam", "dm", "kin", "am")
"""Words of few letters that are no quantity beside its unit."""
_ONLY_LAST = ("j", *(f"{prefix}m" for prefix in _PREFIXES))
"""Units whose end is one letter: within a word, as in ``min`` and ``format``, they are none."""
_WITHIN = re.compile("^(?:ddg|delta|p?kd|p?[ie]c50)|(?:p?kd|p?[ie]c50)$")
"""What an unknown word, such as ``kd1`` or ``her2kd``, is about."""


def _scales() -> dict[str, str]:
    """Return what values are measured in, by its words; ``?`` if no unit of `UNITS` is in it."""
    scales = dict.fromkeys(_UNKNOWN_SCALES, "?")
    for thousandths, prefix in enumerate(_PREFIXES):
        letter = "u" if prefix == "micro" else prefix[:1]
        molar = (f"{letter}m", f"{letter}molar", f"{prefix}m", f"{prefix}molar")
        words = (*molar, f"1e-{3 * thousandths}m")
        scales |= dict.fromkeys(words, f"{letter}m")
    for unit in UNITS.values():
        scales |= dict.fromkeys(unit.words, unit.scales[0])
    return scales


_SCALES = _scales()


def _vocabulary() -> dict[str, str]:
    words = dict[str, str]()
    for tag, spelled in _OTHERS.items():
        words |= dict.fromkeys(spelled, tag)
    words |= {word: f"unit {scale}" for word, scale in _SCALES.items()}
    for quantity, spelled in _OF_QUANTITY.items():
        words |= dict.fromkeys(spelled, f"of {quantity}")
    for reason, spelled in _REASONS.items():
        words |= dict.fromkeys(spelled, f"not {reason}")
    return words


_WORDS = _vocabulary()
_MOLAR = "(?:(?P<prefix>[munpf]?)m(?:olar)?)"
_INVERSE = r"\s*\^?\s*[({\[]?\s*-\s*1[)}]?(?![0-9])"
_BY = r"(?:\s*(?:/|\bper\b|_per_|per|\*|_|\.)\s*|\s+|)"
_START = "(?<![a-z0-9])"
_END = "(?![a-z0-9])"
_RATES = (
    rf"{_START}1\s*/\s*\(?\s*(?:[munpf]?m[\s*./_]*)?s(?:ec|econds?)?\s*\)?{_END}",
    rf"{_START}(?:[munpf]?m{_INVERSE}[\s*./_]*)?s(?:ec)?{_INVERSE}",
    rf"(?<=[\s(\[])/\s*s(?:ec)?{_END}",
    rf"{_START}per[\s_]*(?:[munpf]?m[\s_]*)?(?:s|sec|second){_END}",
)
_RECIPROCALS = (
    rf"{_START}1\s*/\s*\(?\s*{_MOLAR}\)?{_END}",
    rf"{_START}{_MOLAR}{_INVERSE}",
    rf"(?<=[(\[])/\s*{_MOLAR}{_END}",
    rf"{_START}per[\s_]*{_MOLAR}{_END}",
    rf"{_START}(?P<prefix>)l(?:it(?:er|re))?(?:\s*/\s*mol|\s*mol{_INVERSE}){_END}",
)
_POWER = (
    rf"(?:{_START}|(?<=x))(?:x\s*|\*\s*)?(?:10\s*\^?\s*\(?\s*|1?e)-\s*0*(?P<power>\d+)\)?\s*"
    rf"m(?:olar)?{_END}"
)
_MASS = (
    rf"{_START}(?P<mass>mc|micro|nano|[munpk]?)(?:g|grams?){_BY}"
    rf"(?P<volume>[mu]?)l(?:{_INVERSE}|1?){_END}"
)
_UNKNOWN_FACTOR = (
    rf"\^|\de-\d|{_START}1\s*/|{_START}x?\s*10\s*-\s*\d|{_START}x(?=\s*\d)|{_START}[a-z]\s+m{_END}"
    r"|[(\[]\s*\d+\s*[munpf]?m\s*[)\]]|(?<!\d)[*/]\s*10+(?![\d/])"
)
"""A power, factor or letter that is of no known unit: ``(M) x 10-9``, ``(10 nM)``, ``(n M)``.

Not the numbers of a strain, ``A/California/07/2009``, or of a date.
"""
_MOLES = (
    rf"{_START}(?P<prefix>milli|micro|nano|pico|femto|[munpf]?)[\s-]?"
    rf"(?:mol(?:es?)?{_BY}(?:l|lit(?:er|re))(?:{_INVERSE})?|molar){_END}"
)
_ENERGY = rf"{_START}(?P<energy>kcal|kj|j|cal)(?:{_BY}mol(?:e|ar)?(?:{_INVERSE}|1)?|){_END}"
_UNITS_OF_WORDS = (
    (_ENERGY, "{energy}"),
    (_MASS, "{mass}g/{volume}l"),
    *((pattern, "rate") for pattern in _RATES),
    (_POWER, "1e-{power}m"),
    *((pattern, "per {prefix}m") for pattern in _RECIPROCALS),
    (_MOLES, "{prefix}molar"),
    (rf"{_START}(?P<prefix>milli|micro|nano|pico|femto)[\s-]+m{_END}", "{prefix}molar"),
)
"""Patterns of units, in the order in which they are taken out of a name, and words for these."""
_REWRITTEN = (
    (r"(?<![a-z])(p?)k[\s_]*[\s_{(\-]\s*([dia])[})]?(?![a-z])", r"\1k\2 "),
    (r"(?<![a-z])(p?[ie]c)[\s_{\-]+50\}?", r"\1 50"),
    (r"(p?[ie]c) 50", r"\g<1>50"),
    (r"log[\s_]*[({]?10[)}]?(?!\s*\^|[0-9])", "log10 "),
    (r"(?<![a-z])p[\s_-]+(kd|ki|ic50|ec50)(?![a-z])", r"p\1"),
    (r"(?<![a-z])(?:delta[\s_\-]*){2,}", " ddelta "),
    (r"(?<!d)delta[\s_\-]*g(?=bind|exp|$|[^a-z])", " dg "),
    (r"half[\s_-]*life", " rate "),
    (r"(?<![a-z])(?:binding[\s_]*|gibbs[\s_]*)?free[\s_]*energy|binding[\s_]*energy", " dg "),
    (r"binding[\s_]*constant", " affinity "),
    (r"(?<![a-z0-9])k[\s_\-{(]*(on|off)(?![a-z])", r" k\1 "),
    (r"%", " percent "),
    (r"\+\s*/\s*-", " std "),
    (r"\b(?:at|@)?\s*\d+\s*(?:deg)?\s*c\b", " "),
)
"""Spellings of one word in several."""


@lru_cache(maxsize=MOST_NAMES)
def plain_text(name: str) -> tuple[str, bool]:
    """Spell a name in lower-case ASCII; the second result tells whether all of it could be."""
    name = re.sub(r"\.\d+$", "", name)  # pandas names the second of two columns KD KD.1
    name = re.sub(r"^X\.+(?=log)", "-", name)  # R names -log10(KD) so
    name = re.sub(r"(?<![A-Za-z])Fc(?![A-Za-z])", "constantfragment", name)  # FC: fold change
    name = _SUPERSCRIPT.sub(lambda m: "^" + m[0].replace("−", "-").translate(_SUPERSCRIPTS), name)
    composed = unicodedata.normalize("NFKC", name.replace("°", " ").replace("º", " "))
    text = ""
    for sign in composed:
        if unicodedata.category(sign) == "Cf":  # invisible, such as a byte order mark
            continue
        text += " " if sign.isspace() else _AS_ASCII.get(sign, sign)
    text = text.lower()
    return text, text.isascii()


def name_words(name: str, letters: str = "[a-z]+") -> list[str]:
    """Divide the name of a column into lower-case words, also ``AgClass``, by what these are."""
    return re.findall(letters, plain_text(_CAMEL.sub(" ", name))[0])


def _segments(run: str) -> list[str] | None:
    """Divide letters and digits into the fewest words that are known, and list their tags."""
    if run in _NOT_SPLIT:
        return None
    # the tags of the fewest words that the first k letters divide into; None if they do not
    best: list[list[str] | None] = [[], *[None] * len(run)]
    for end in range(1, len(run) + 1):
        for start in range(end):
            tag = _WORDS.get(run[start:end])
            before = best[start]
            if tag is None or before is None:
                continue
            if run[start:end] in _ONLY_LAST and end < len(run):
                continue
            if best[end] is None or len(before) + 1 < len(best[end] or ()):
                best[end] = [*before, tag]
    return best[-1]


@dataclass(slots=True)
class _Found:
    """What the words of a name are, as they are found."""

    units: set[str]
    tags: set[str]
    unknown_words: bool = False
    unknown_unit: bool = False


def _take_units(text: str, found: _Found) -> str:
    """Take units out of a text that consist of several words or signs, and note them."""
    for pattern, word in _UNITS_OF_WORDS:
        for match in re.finditer(pattern, text):
            unit = word.format(**match.groupdict())
            found.units.add(_SCALES.get(unit, unit))
        text = re.sub(pattern, " ", text)
    return text


def _take_minus(text: str, found: _Found) -> str:
    """Note a minus before a quantity or logarithm, unless it only divides two words."""
    quantity = r"(?:log|ln|p?k[dia](?![a-z])|p?[ie]c50|dg)"
    first = re.match(rf"[\s(\[]*-\s*[(\[]?\s*(?={quantity})", text)
    if first:
        found.tags.add("neg")
        return text[first.end() :]
    inner = re.search(rf"(?<=[\s(\[=:_,])-(?=[(\[]?{quantity})", text)
    if inner:
        found.tags.add("neg")
        return text[: inner.start()] + " " + text[inner.end() :]
    if re.search(r"-\s*[(\[]?\s*(?:log|ln)", text):  # a minus or a hyphen
        found.unknown_unit = True
    return text


@lru_cache(maxsize=MOST_NAMES)
def read_header(name: str) -> Header:
    """Read what the name of a column says, of an affinity and of any other quantity.

    Parameters
    ----------
    name : str
        As in the table.

    Returns
    -------
    Header
    """
    bracketed = _UNIT.fullmatch(name)
    if bracketed is None or _is_of_function(bracketed["name"], bracketed["unit"]):
        quantity = name.strip()
        unit = ""
    else:
        quantity = bracketed["name"].strip()
        unit = bracketed["unit"].strip()
    describes_another = not _SPREAD.isdisjoint(_words(name))
    of_affinity = _read_affinity(name)
    is_affinity = of_affinity.names_affinity and not of_affinity.not_label
    return replace(
        of_affinity,
        quantity=printable(quantity)[:LONGEST_QUANTITY].strip() or "value",
        written_unit=printable(unit)[:LONGEST_QUANTITY],
        better=None if describes_another or is_affinity else _better_values(name, quantity),
        describes_another=describes_another,
    )


def _read_affinity(name: str) -> Header:
    """Read what a name says about an affinity."""
    text, readable = plain_text(name)
    collapsed = re.sub("[^a-z0-9]", "", text)
    if readable and collapsed in _PLAIN:
        return Header(plain=True)
    if readable and collapsed in _ALPHASEQ:
        return Header(affinity=True, sure=False, of_alphaseq=True)
    for pattern, spelled in _REWRITTEN:
        text = re.sub(pattern, spelled, text)
    words_found = _Found(set(), set(), unknown_unit=not readable)
    text = _take_minus(text, words_found)
    text = _take_units(text, words_found)
    if re.search(_UNKNOWN_FACTOR, text):
        words_found.unknown_unit = True
    if {*re.sub("[a-z0-9]", "", text)} - _SEPARATORS:
        words_found.unknown_unit = True
    for run in re.findall("[a-z0-9]+", text):
        if run in _CHANGED or re.fullmatch(r"x?1e\d+", run):
            words_found.unknown_unit = True
        tags = _segments(run)
        if tags is None:
            words_found.unknown_words = True
            tags = [_WORDS[part] for part in _WITHIN.findall(run)]
        for tag in tags:
            kind, _, value = tag.partition(" ")
            if kind == "unit":
                words_found.units.add(value)
            elif tag:
                words_found.tags.add(tag)
    if len(re.findall(r"(?<![a-z])(?:kd|ki|ic50|ec50)(?![a-z])", text)) > 1 and "/" in text:
        words_found.tags.add("not a ratio")
    return _conclude(words_found)


def _conclude(found: _Found) -> Header:
    tags = found.tags
    predicted = "predicted" in found.tags
    quantities = {tag.removeprefix("of ") for tag in tags if tag.startswith("of ")}
    if "rate" in found.units:
        tags.add("not a rate")
    reasons = [reason for reason in _REASONS if f"not {reason}" in tags]
    if "names unit" in tags and quantities and not (found.units or found.unknown_unit):
        reasons.append("a unit")  # KD unit, beside KD
    if reasons:
        return Header(not_label=reasons[0], affinity=bool(quantities), sure=False)
    logarithms = tags & {"log10", "ln"}
    if not quantities:  # a unit alone is not taken unasked, but never ignored either
        unclear = found.unknown_words or found.unknown_unit or logarithms or "m" in found.units
        units: tuple[Label, ...] = ()
        if len(found.units) == 1 and not unclear:
            units = _allowed_units({"affinity"}, next(iter(found.units)), "", negative=False)
        return Header(
            units=units,
            affinity=bool(found.units),
            unit_alone=bool(found.units),
            sure=False,
            predicted=predicted,
        )
    allowed: tuple[Label, ...] = ()
    if quantities == {"dg"} and found.unknown_words and not found.units:
        found.unknown_unit = True  # the word may be a unit, such as REU
    if not (found.unknown_unit or len(logarithms) > 1 or len(found.units) > 1):
        stated = next(iter(found.units), "")
        logarithm = next(iter(logarithms), "")
        allowed = _allowed_units(quantities, stated, logarithm, negative="neg" in tags)
    if allowed[:1] != ("pkd",):
        order = 2
    else:
        order = 1 if "pic50" in quantities else 0
    clear = bool(allowed) or not (found.units or found.unknown_unit)
    return Header(
        units=allowed,
        sure=clear and not found.unknown_words and not predicted,
        affinity=True,
        order=order,
        predicted=predicted,
    )


def _allowed_units(
    quantities: set[str], unit: str, logarithm: str, *, negative: bool
) -> tuple[Label, ...]:
    """Return the units that fit a name, the most probable one first; none if it is unclear."""
    sign = "-" if negative else ""
    written = f"{sign}{logarithm} {_one_quantity(quantities, unit)}".strip()
    return tuple(x.name for x in UNITS.values() if written in x.written and unit in x.scales)


def _one_quantity(quantities: set[str], unit: str) -> str:
    """Name the only quantity of a name, or nothing; a binding constant is told by its unit."""
    same = {"dissociation": "kd", "association": "ka", "pic50": "pkd"}
    kinds = {same.get(quantity, quantity) for quantity in quantities - {"affinity"}}
    if kinds == {"pkd", "kd"}:  # "pKd, -log10(KD)"
        return "pkd"
    if len(kinds) > 1:
        return ""
    if kinds:
        return kinds.pop()
    of_scale = [x.written[0] for x in UNITS.values() if unit and unit == x.scales[0]]
    return of_scale[0] if of_scale else "kd"


# ---- cells with a unit of their own, such as ">10 µM" ------------------------------------------


_WITH_UNIT = re.compile(rf"(?P<number>.*[0-9.⁰¹²³⁴⁵⁶⁷⁸⁹)])\s*(?P<unit>{UNIT_IN_CELL})\s*")
_NUMBER = re.compile(
    r"(?P<relation>[\s<>≥≤=~]*)(?P<digits>[0-9.]*[0-9]|[0-9][0-9.,]*)(?P<power>[eE][-+]?[0-9]+)?"
)


def unit_of_texts(name: str, texts: Iterable[str]) -> Label | None:
    """Return the unit that all numbers of a column state; nM or ug/mL if units differ.

    Parameters
    ----------
    name : str
        Of the column, which states no unit.
    texts : iterable of str
        Its distinct cells. Those without a digit, such as ``NB``, are of no unit.
    """
    quantity = name if read_header(name).names_affinity else "KD"
    stated: list[Label] = []
    for text in texts:
        if re.search("[0-9]", text):
            _, unit = _number_and_unit(text, quantity)
            if unit is None or (stated and _power_between(unit, stated[0]) is None):
                return None
            stated.append(unit)
    if len({*stated}) > 1:
        return "ug_ml" if UNITS[stated[0]].of_mass else "kd_nm"
    return stated[0] if stated else None


def read_in_unit(cells: pd.Series, unit: Label | None) -> tuple[CellNumbers, Bools]:
    """Read the numbers and bounds of R cells in a unit, and tell which state their own, (R,).

    ``>10 µM`` is above 10,000 in ``kd_nm``. What cannot be converted is no number.
    """
    read = read_bounds(cells)
    has_unit = np.zeros(len(cells), np.bool_)
    others = np.flatnonzero(np.isnan(read.values)).tolist()
    if unit is None or not UNITS[unit].takes_log or not others:
        return read, has_unit
    values = listed_cells(cells)
    number_of: dict[object, str | None] = {}
    for at in others:
        cell = values[at]
        if isinstance(cell, str):
            if cell not in number_of:
                number_of[cell] = _in_unit(cell, unit)
            if number_of[cell] is not None:
                values[at] = number_of[cell]
                has_unit[at] = True
    if not has_unit.any():
        return read, has_unit
    return read_bounds(pd.Series(values, cells.index, dtype=object)), has_unit


def unit_of_cell(cell: object) -> Label | None:
    """Return the unit that a cell such as ``30 pM`` states; None if it states none."""
    return _number_and_unit(cell)[1] if isinstance(cell, str) else None


def _number_and_unit(text: str, quantity: str = "KD") -> tuple[str, Label | None]:
    """Divide a cell such as ``>10 µM`` into its number and its unit; None if it states none."""
    cell = _WITH_UNIT.fullmatch(text)
    number = without_error(plain_number(cell["number"])) if cell else ""
    if cell is None or not _NUMBER.fullmatch(number):
        return "", None
    return number, read_header(f"{quantity} ({cell['unit']})").unit


def _in_unit(text: str, unit: Label) -> str | None:
    """Spell the number of a cell in a unit, with its relation; None if it states no unit."""
    number, own = _number_and_unit(text)
    power = None if own is None else _power_between(own, unit)
    if not power:
        return None if power is None else number
    parts = _NUMBER.fullmatch(number)
    if parts is None or "," in number or number.count(".") > 1:
        return None  # what its marks mean, other cells tell
    value = Decimal(f"{parts['digits']}{parts['power'] or ''}").scaleb(power)
    return f"{parts['relation']}{value}"


def _power_between(own: Label, unit: Label) -> int | None:
    """Return the power of ten by which numbers in one unit become those in another."""
    first, second = UNITS[own], UNITS[unit]
    is_same = first.written == second.written and first.of_mass == second.of_mass
    return round(second.at_one - first.at_one) if is_same and first.takes_log else None


LONGEST_QUANTITY = 60
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
_CAMEL = re.compile("(?<=[a-z])(?=[A-Z][a-z]|[A-Z]{2})")
"""Where a word begins inside another, as in ``AgClass``."""
_FUNCTION = re.compile(
    r"\W*(?:log|log2|log10|log1p|ln|asinh|sqrt|mean|median|delta)", re.IGNORECASE
)
_TITERS = frozenset("nt50 nt80 id50 id80 pvnt50 prnt50".split())
"""Dilutions of sera at which a share of viruses is neutralised."""
_BAD = (
    "ddg|aggregation|polyreactiv|polyspecific|viscosity|hydrophob|immunogenic|nonspecific|"
    "retentiontime|(?:hic|cic|smac)rt|(?<!sg)acsins|selfinteraction"
)
_GOOD = (
    "enrichment|expression|titer|titre|yield|neutrali[sz]|melting|thermostab|thermalstab|"
    "solubility|rel(?:ative)?binding|bindingsignal|bindingintensity|monomer|purity|sgacsins"
)
_DIRECTIONS: tuple[tuple[str, Better], ...] = (
    (rf"^(?=\S*temperature)\S*(?:{_BAD})", "higher"),  # of an onset: it is a stability
    (rf"^\S*(?:{_BAD})| ic(?:80|90|95|99) ", "lower"),
    (rf"^\S*(?:{_GOOD})", "higher"),
    # beside TM-score, how well structures fit on each other
    (
        rf"^(?!\S*tmscore).* (?:{'|'.join(_TITERS)}|tm[12]?|tonset|tagg|t50|dtm|deltatm|mfi|"
        "od(?:450)?|expr) ",
        "higher",
    ),
)
"""Which values of a quantity are better, by its words joined and, behind a blank, its words: the
first pattern that is found."""
_NEGATED = (["neg"], ["negative"], ["minus"])
"""First words that reverse a quantity, as a minus does."""
_UNDECIDED = frozenset(
    "neg negative minus not non loss escape resistance resistant decrease reduction reduced drop "
    "inverse reciprocal rank bvp".split()
)
"""Words with which the usual direction of a quantity may be reversed, as for an OD of BVP."""
_SPREAD = frozenset((*_OF_ERRORS, *"pvalue pval qvalue qval padj fdr replicates".split()))
"""Words of a column that describes another one."""
_LOGARITHM = re.compile(
    r"log|\bln|_ln|d?dg\b|δg|delta[ _-]?g\b|energy|%|percent|pct|temperature|\btm"
)
_LINEAR = re.compile("%|cal|kj|°|celsius|kelvin")
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
    scale: Scale = "linear"
    """``log``: labels and predictions are logarithms to base 10 of the values that are written."""
    classes: tuple[str, ...] = ()
    """Names of the classes that labels are, the lowest first; labels are their numbers from 0, and
    a prediction of two classes is the probability of the second. Empty: labels are measurements."""

    def __str__(self) -> str:
        """Write the name with its unit, as in headings: ``Tm (°C)``, ``log10 titer (mg/L)``."""
        name = f"{'log10 ' * self.is_log}{self.name}"
        return printable(f"{name} ({self.unit})" if self.unit else name)

    @property
    def sign(self) -> int:
        """1 if higher values are better, else -1."""
        return 1 if self.better == "higher" else -1

    @property
    def description(self) -> str:
        """Say what it is in half a sentence."""
        if self.affinity:
            return f"{self} = -log10({str(self)[1:]} in M)"
        if self.classes:
            classes = f"{self}, {self.named(-1)} or {self.named(0)}"
            if len(self.classes) > 2:
                classes = f"{self}, {' < '.join(map(quoted, self.classes))}"
            return f"{classes}, {self.named(-1 if self.sign > 0 else 0)} is better"
        return f"{self}, {self.better} is better"

    def count_classes(self, labels: Floats) -> str:
        """Say how many of the labels, (R,), are of each class."""
        parts = []
        for number, name in reversed([*enumerate(self.classes)]):
            rows = int((labels == number).sum())
            parts.append(f"{rows:,} {quoted(name)}")
        share = float((labels == len(self.classes) - 1).mean()) if len(labels) else 0.0
        return f"{', '.join(parts)}: {share:.2g} {self.named(-1)}"

    def named(self, number: int) -> str:
        """Return the quoted name of a class, -1 being the highest."""
        return quoted(self.classes[number])

    @property
    def predicted(self) -> str:
        """Name of the column of predictions."""
        return self.column("pkd_predicted")

    def column(self, name: str) -> str:
        """Return the name that a column of the code has in tables."""
        if self.is_binary and name == "pkd_predicted":
            return PROBABILITY
        return name if self.affinity else _OUTSIDE_OF.get(name, name)

    @property
    def is_log(self) -> bool:
        """Whether labels are logarithms of the values that are written."""
        return self.scale == "log"

    @property
    def names_logarithm(self) -> bool:
        """Whether its name or unit is of a logarithm, an energy, or a percentage."""
        by_name = _LOGARITHM.search(self.name.lower())
        return by_name is not None or _LINEAR.search(self.unit.lower()) is not None

    def on_scale(self, values: Floats) -> Floats:
        """Return values as labels, (N,); on a log scale, NaN for those of 0 or less."""
        if not self.is_log:
            return values
        with np.errstate(divide="ignore", invalid="ignore"):
            labels = np.log10(values)
        return np.where(np.isfinite(labels), labels, np.nan)

    @property
    def is_binary(self) -> bool:
        """Whether labels are yes or no, so that predictions are probabilities."""
        return len(self.classes) == 2

    @property
    def squared_error(self) -> str:
        """Name of the mean squared error of predictions of classes."""
        return "Brier score" if self.is_binary else "squared error"

    def columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that columns of the code have in tables, in their order.

        Probabilities have no sigma, and their interval beside them.
        """
        shown: dict[str, None] = {}
        for name in names:
            if self.is_binary and name in SIGMAS:
                continue
            shown[self.column(name)] = None
            if self.classes and name == "pkd_predicted":
                shown |= dict.fromkeys(PROBABILITY_COLUMNS)
        return tuple(shown)

    def outward(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Name the columns of a table of the code as users see them."""
        named = frame.rename(columns={name: self.column(name) for name in INSIDE})
        if not self.classes:
            return named
        shown = self.columns(tuple(map(str, frame.columns)))
        return named[[name for name in shown if name in named]]

    def inward(self, frame: pd.DataFrame, *names: str) -> pd.DataFrame:
        """Give these columns of a table that was written back their names in the code."""
        named = frame.rename(columns={self.column(name): name for name in names})
        if self.is_binary and "pkd_predicted" in named and "sigma" not in named:
            probability = named["pkd_predicted"]
            named = named.assign(sigma=(probability * (1 - probability)) ** 0.5)
        return named

    def show(self, value: float, digits: int = 2) -> str:
        """Write a value: with `digits` after the point, or as many significant ones and two more.

        The latter is for other quantities than affinities, which have any scale.
        """
        if self.affinity or self.classes:
            return f"{value:z.{digits}f}"  # z: no -0.00
        return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.{digits + 2}g}"

    def digits(self, spread: float) -> int:
        """Return the digits after the point in text files, for values of this spread."""
        if self.affinity or self.classes or not 0 < spread < math.inf:
            return DIGITS
        return max(0, DIGITS - math.floor(math.log10(spread)))

    def to_json(self) -> dict[str, Any]:
        """Return what `of_json` restores."""
        return {**asdict(self), "classes": [*self.classes]}

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Quantity:
        """Restore from JSON; TypeError or ValueError if it is none."""
        quantity: Quantity = parse(cls, record, "quantity")
        return quantity

    def check_strong(self, threshold: float | None) -> None:
        """Refuse a threshold of strong binders where labels are classes, or out of range."""
        if self.classes and threshold is not None:
            msg = (
                f"--strong: {threshold:g} is a threshold of numbers, and the run predicts "
                f"{self.description}; the column {PROBABILITY} says how probably a pair is "
                f"{self.named(-1)}. Leave --strong out."
            )
            raise OptionError(msg)
        self.check_threshold(threshold, "--strong")

    def check_threshold(self, value: float | None, name: str) -> None:
        """Refuse a threshold, given for the option `name`, that no value of an affinity reaches."""
        is_bounded = self.affinity or self.is_log
        low, high = STRONG_RANGE if is_bounded else (-math.inf, math.inf)
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            expected = f"{low} to {high}" if is_bounded else "a finite number"
            if self.is_log:
                expected += f", as predictions are of {self}: 2 for 100"
            msg = f"{name}: {value} is out of range; expected {expected}."
            raise OptionError(msg)


PKD = Quantity()
NO_OR_YES = ("no", "yes")
"""Classes of a table of probabilities that does not name them."""


def _is_of_function(name: str, bracketed: str) -> bool:
    """Tell whether brackets hold a quantity instead of a unit, as in ``log10(MFI)``."""
    is_function = _FUNCTION.fullmatch(name.strip()) is not None
    return is_function or _usual_direction(_words(bracketed)) is not None


def _words(name: str) -> list[str]:
    """Divide the name of a column into lower-case words and numbers."""
    text = _DELTA_DELTA.sub("dd", plain_text(name)[0])
    text = re.sub(r"\b([pq])[\s_-]+(?=val)", r"\1", text)
    return re.findall("[a-z]+[0-9]*|[0-9]+", text)


def _usual_direction(words: list[str]) -> Better | None:
    """Return which values of a quantity with these words are better, if that is known."""
    text = f"{''.join(words)} {' '.join(words)} "
    return next((better for pattern, better in _DIRECTIONS if re.search(pattern, text)), None)


def _better_values(column: str, name: str) -> Better | None:
    """Return which values of a column are better, if its name tells."""
    words = _words(name)
    better = _usual_direction(words)
    joined = "".join(words)
    neutralises = "neutrali" in joined or not _TITERS.isdisjoint(words)
    if neutralises and better == "higher" and _read_affinity(f"IC50 {column}").units:
        return None  # a concentration that neutralises, or one at which neutralisation was measured
    if "aggregation" in joined and better == "lower" and "°" in column:
        return None  # its onset, or a share at a temperature
    is_negated = plain_text(name)[0].lstrip().startswith("-") or words[:1] in _NEGATED
    if not _UNDECIDED.isdisjoint(_words(column)[int(is_negated) :]):
        return None
    return _OPPOSITE[better] if is_negated else better
