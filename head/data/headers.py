"""What the name of a column says about affinity: its quantity, its unit, and whether that is sure.

A name states a unit if all that it needs is there: ``Fab KD (nM)``, ``−log10 KD``, ``Ka (1/M)``.
What is not understood makes the unit unknown, it is never dropped: ``KD (☃M)``, ``KD (nM⁻¹)``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from abag.head.data.label_options import Label
from abag.head.data.units import DECADES, TO_PKD


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

    @property
    def unit(self) -> Label | None:
        """The unit that the name states first; None if it states none."""
        return self.units[0] if self.units else None


_AS_ASCII = {
    "μ": "u", "Δ": "delta", "δ": "delta", "∆": "delta", "−": "-", "–": "-", "—": "-", "‐": "-",
    "‑": "-", "‒": "-", "×": " x ", "·": " ", "⋅": " ", "∙": " ", "•": " ", "±": " std ", "°": " ",
    "∕": "/", "⁄": "/", "’": "'", "‘": "'", "“": '"', "”": '"', "₋": "-",
}  # fmt: skip
"""Signs that have a meaning here, in composed form (NFKC)."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻−]*[⁰¹²³⁴⁵⁶⁷⁸⁹][⁰¹²³⁴⁵⁶⁷⁸⁹]*")
_SEPARATORS = frozenset(" \t\n_-()[]{},;:/.|=#'\"*^<>~")
_OF_QUANTITY = {
    "kd": ("kd", "kds", "ki", "ic50", "ec50", "kdapp"),
    "ka": ("ka",),
    "pkd": ("pkd", "pkds"),
    "pic50": ("pki", "pic50", "pec50"),
    "dg": ("dg", "gibbs"),
    "affinity": ("affinity", "affinities", "aff"),
    "dissociation": ("dissociation",),
    "association": ("association",),
}
_UNIT_WORDS = {
    "m": ("m", "molar"), "mm": ("mm", "millimolar"), "um": ("um", "micromolar", "umolar"),
    "nm": ("nm", "nanomolar", "nmolar"), "pm": ("pm", "picomolar", "pmolar"),
    "kcal": ("kcal", "kcalmol"), "kj": ("kj", "kjmol"), "ug_ml": ("ugml", "ugml1"),
    "ng_ml": ("ngml", "ngml1"), "?": ("fm", "femtomolar", "gml", "mgml", "pgml", "cal"),
}  # fmt: skip
"""Words of each unit; ``?`` is of those that are not supported."""
_REASONS = {
    "an error or interval": (
        "error", "err", "std", "sd", "sem", "se", "stdev", "stddev", "ci", "ci95", "cv",
        "variance", "uncertainty", "lower", "upper", "chi2", "stderr", "sigma", "ci90",
    ),
    "a difference": (
        "delta", "ddelta", "ddg", "dddg", "dpkd", "dkd", "dlogkd", "diff", "difference",
    ),
    "a ratio": ("ratio", "fold", "foldchange", "fc", "change", "percent", "pct", "percentage"),
    "a rate": ("kon", "koff", "kass", "kdis", "kdiss", "kobs", "rate", "konoff"),
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
    "surface plasmon resonance the titeseq tite seq titration to unit units "
    "using val value values vhh fv via vitro wasatch with yeast ysd display bio layer "
    "interferometry conc concentration half maximal inhibitory effective inhibition neutralization "
    "neutralisation scale"
).split()
_PREDICTED = ("predicted", "prediction", "predictions", "pred", "predict")
_OTHERS = {
    "log10": ("log10", "log"), "ln": ("ln", "loge"), "neg": ("neg", "negative", "minus"),
    "predicted": _PREDICTED, "": (*_KNOWN,),
}  # fmt: skip
_PLAIN = frozenset(
    {
        "affinity",
        "bindingaffinity",
        "affinityvalue",
        "affinities",
        "label",
        "labels",
        "fitness",
        "measurement",
        "measurements",
        "score",
        "scores",
        "bindingscore",
        "bindingscores",
        "processedmeasurement",
        "affinityscore",
        "affinitylabel",
        "fitnessscore",
    }
)
"""Names of columns of any measurement, which state no unit."""
_ALPHASEQ = ("alphaseqaffinity", "predaffinity")
"""Columns of AlphaSeq tables, of log10 of a Kd in nM, which is not said."""
_NOT_SPLIT = ("kim", "kam", "dm", "kin")
"""Words of few letters that are no quantity beside its unit."""
_WITHIN = re.compile("^(?:ddg|delta|p?kd|p?[ie]c50)|(?:p?kd|p?[ie]c50)$")
"""What an unknown word, such as ``kd1`` or ``her2kd``, is about."""


def _vocabulary() -> dict[str, str]:
    words = dict[str, str]()
    for tag, spelled in _OTHERS.items():
        words |= dict.fromkeys(spelled, tag)
    for unit, spelled in _UNIT_WORDS.items():
        words |= dict.fromkeys(spelled, f"unit {unit}")
    for quantity, spelled in _OF_QUANTITY.items():
        words |= dict.fromkeys(spelled, f"of {quantity}")
    for reason, spelled in _REASONS.items():
        words |= dict.fromkeys(spelled, f"not {reason}")
    return words


_WORDS = _vocabulary()
_MOLAR = "(?:(?P<prefix>[munp]?)m(?:olar)?)"
_INVERSE = r"\s*\^?\s*[({\[]?\s*-\s*1[)}]?(?![0-9])"
_BY = r"(?:\s*(?:/|\bper\b|_per_|per|\*|_|\.)\s*|\s+|)"
_START = "(?<![a-z0-9])"
_END = "(?![a-z0-9])"
_RATES = (
    rf"{_START}1\s*/\s*\(?\s*(?:[munp]?m[\s*./_]*)?s(?:ec|econds?)?\s*\)?{_END}",
    rf"{_START}(?:[munp]?m{_INVERSE}[\s*./_]*)?s(?:ec)?{_INVERSE}",
    rf"(?<=[\s(\[])/\s*s(?:ec)?{_END}",
    rf"{_START}per[\s_]*(?:[munp]?m[\s_]*)?(?:s|sec|second){_END}",
)
_RECIPROCALS = (
    rf"{_START}1\s*/\s*\(?\s*{_MOLAR}\)?{_END}",
    rf"{_START}{_MOLAR}{_INVERSE}",
    rf"(?<=[(\[])/\s*{_MOLAR}{_END}",
    rf"{_START}per[\s_]*{_MOLAR}{_END}",
    rf"{_START}(?P<prefix>)l(?:it(?:er|re))?(?:\s*/\s*mol|\s*mol{_INVERSE}){_END}",
)
_POWER = (
    rf"(?:{_START}|(?<=x))(?:x\s*|\*\s*)?(?:10\s*\^?\s*\(?\s*|1?e)-\s*0?(?P<power>\d+)\)?\s*"
    rf"m(?:olar)?{_END}"
)
_MASS = (
    rf"{_START}(?P<mass>mc|micro|nano|[munpk]?)(?:g|grams?){_BY}"
    rf"(?P<volume>[mu]?)l(?:{_INVERSE}|1?){_END}"
)
_MOLES = (
    rf"{_START}(?P<prefix>milli|micro|nano|pico|femto|[munpf]?)[\s-]?"
    rf"(?:mol(?:es?)?{_BY}(?:l|lit(?:er|re))(?:{_INVERSE})?|molar){_END}"
)
_ENERGY = rf"{_START}(?P<energy>kcal|kj|j|cal)(?:{_BY}mol(?:e|ar)?(?:{_INVERSE}|1)?|){_END}"
_BY_PREFIX = {"": "m", "m": "mm", "u": "um", "n": "nm", "p": "pm", "milli": "mm", "micro": "um",
              "nano": "nm", "pico": "pm"}  # fmt: skip
_BY_MASS = {("u", "m"): "ug_ml", ("mc", "m"): "ug_ml", ("micro", "m"): "ug_ml", ("m", ""): "ug_ml",
            ("n", "m"): "ng_ml", ("nano", "m"): "ng_ml", ("u", ""): "ng_ml"}  # fmt: skip
_BY_POWER = {0: "m", 3: "mm", 6: "um", 9: "nm", 12: "pm"}
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


def plain_text(name: str) -> tuple[str, bool]:
    """Spell a name in lower-case ASCII; the second result tells whether all of it could be."""
    name = re.sub(r"\.\d+$", "", name)  # pandas names the second of two columns KD KD.1
    name = _SUPERSCRIPT.sub(lambda m: "^" + m[0].replace("−", "-").translate(_SUPERSCRIPTS), name)
    composed = unicodedata.normalize("NFKC", name.replace("°", " ").replace("º", " "))
    text = ""
    for sign in composed:
        if unicodedata.category(sign) == "Cf":  # invisible, such as a byte order mark
            continue
        text += " " if sign.isspace() else _AS_ASCII.get(sign, sign)
    text = text.lower()
    return text, text.isascii()


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


def _take(pattern: str, text: str, found: _Found, unit: Callable[[re.Match[str]], str]) -> str:
    """Replace what a pattern matches by a space, and note its units."""

    def note(match: re.Match[str]) -> str:
        found.units.add(unit(match))
        return " "

    return re.sub(pattern, note, text)


def _take_units(text: str, found: _Found) -> str:
    """Take units out of a text that consist of several words or signs."""
    text = _take(_ENERGY, text, found, lambda m: {"kcal": "kcal", "kj": "kj"}.get(m["energy"], "?"))
    text = _take(_MASS, text, found, lambda m: _BY_MASS.get((m["mass"], m["volume"]), "?"))
    for pattern in _RATES:
        text = _take(pattern, text, found, lambda _: "rate")
    text = _take(_POWER, text, found, lambda m: _BY_POWER.get(int(m["power"]), "?"))
    for pattern in _RECIPROCALS:
        text = _take(pattern, text, found, lambda m: f"per {_BY_PREFIX[m['prefix']]}")
    return _take(_MOLES, text, found, lambda m: _BY_PREFIX.get(m["prefix"], "?"))


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


@lru_cache(maxsize=4096)
def read_header(name: str) -> Header:
    """Read what the name of a column says about affinity.

    Parameters
    ----------
    name : str
        As in the table.

    Returns
    -------
    Header
    """
    text, readable = plain_text(name)
    collapsed = re.sub("[^a-z0-9]", "", text)
    if readable and collapsed in _PLAIN:
        return Header(plain=True)
    if readable and collapsed in _ALPHASEQ:
        return Header(affinity=True, sure=False)
    for pattern, spelled in _REWRITTEN:
        text = re.sub(pattern, spelled, text)
    words_found = _Found(set(), set(), unknown_unit=not readable)
    text = _take_minus(text, words_found)
    text = _take_units(text, words_found)
    if re.search(r"\^|\de-\d|(?<![a-z0-9])1\s*/", text):  # a power of no known unit
        words_found.unknown_unit = True
    if {*re.sub("[a-z0-9]", "", text)} - _SEPARATORS:
        words_found.unknown_unit = True
    for run in re.findall("[a-z0-9]+", text):
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


def is_of_alphaseq(name: str) -> bool:
    """Tell whether a column is one that AlphaSeq tables have, of log10 of a Kd in nM."""
    text, _ = plain_text(name)
    return re.sub("[^a-z0-9]", "", text) in _ALPHASEQ


def _allowed_units(
    quantities: set[str], unit: str, logarithm: str, *, negative: bool
) -> tuple[Label, ...]:
    """Return the units that fit a name, the most probable one first; none if it is unclear."""
    named = _one_quantity(quantities, unit)
    if named == "pkd":
        is_plain = not logarithm and not negative
        is_repeated = logarithm == "log10" and negative  # as in "pKd (-log10 M)"
        return ("pkd",) if unit in ("", "m") and (is_plain or is_repeated) else ()
    if named == "dg":
        energies: dict[str, tuple[Label, ...]] = {
            "": ("dg_kcal", "dg_kj"),
            "kcal": ("dg_kcal",),
            "kj": ("dg_kj",),
        }
        return () if logarithm or negative else energies.get(unit, ())
    if named == "ka":
        per = unit.removeprefix("per ")
        return () if logarithm or negative or per == unit else _existing(f"ka_per_{per}")
    if named != "kd":
        return ()
    if negative:
        logarithms: dict[str, tuple[Label, ...]] = {
            "": ("pkd", "neg_log10_kd_nm"),
            "m": ("pkd",),
            "nm": ("neg_log10_kd_nm",),
        }
        return logarithms.get(unit, ()) if logarithm == "log10" else ()
    if unit in DECADES:
        prefix = f"{logarithm}_" if logarithm else ""
        return _existing(f"{prefix}kd_{unit}")
    return () if logarithm else _existing(unit)


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
    return "ka" if unit.startswith("per ") else "dg" if unit in ("kcal", "kj") else "kd"


def _existing(unit: str) -> tuple[Label, ...]:
    return tuple(label for label in TO_PKD if label == unit)
