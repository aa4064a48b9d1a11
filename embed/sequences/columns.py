"""Which column of a table plays which role: heavy, light, antigen, pKd ...

Column names are recognized as people write them (``VH``, ``Ab_heavy_chain_seq``, ``hc_sequence``
...). Where two columns fit a role equally well, none is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

from abag import AbagError

# Patterns over the lower-case letters and digits of a name. The first pattern that matches any
# column decides: a column that says "sequence" goes before one that may hold a name or PDB chain.
_SEQUENCE = "(seq|sequence|aa|aaseq|aminoacidsequence)"
_MUTANT = "(mut|mutant|mutated)"
_OWNER = "(antibody|ab|mab|fab|fv)?"
_HEAVY = f"{_OWNER}(heavy|heavychain|vh|vhchain|vhh|vhorvhh|hc|variableheavy|heavyvariable)"
_LIGHT = f"{_OWNER}(light|lightchain|vl|vlchain|lc|variablelight|lightvariable)"
_ANTIGEN = "(antigen|ag|target)"
_KD = "(affinity)?(kd|ki|ic50|ec50)"

ROLES: dict[str, tuple[str, ...]] = {
    "heavy": (
        f"{_MUTANT}{_HEAVY}{_SEQUENCE}?",
        f"({_HEAVY}|nanobody){_SEQUENCE}",
        f"{_HEAVY}|fabh",
        "antibodyseqa",  # of BioMap
    ),
    "light": (
        f"{_MUTANT}{_LIGHT}{_SEQUENCE}?",
        f"{_LIGHT}{_SEQUENCE}",
        f"{_LIGHT}|fabl",
        "antibodyseqb",
    ),
    "antibody": (
        f"(antibody|ab|mab|scfv|fv){_SEQUENCE}",
        "antibody|ab|mab|fv",
        f"mata{_SEQUENCE}|{_SEQUENCE}",
    ),
    "antigen": (f"{_ANTIGEN}(chain)?{_SEQUENCE}", "antigen|ag", f"target|matalpha{_SEQUENCE}"),
    "pkd": (
        "(affinity)?pkd(value)?|neg(ative)?log(10)?kdm?|-log(10)?kdm|affinitypkd",
        "p(ic|ec)50(value)?",
        "affinity|label",
        "processedmeasurement|bindingscore|fitness|measurement|score",
    ),
    "kd_m": (f"{_KD}(m|molar)",),
    "kd_um": (f"{_KD}(um|micromolar)",),
    "kd_nm": (f"{_KD}(nm|nanomolar)",),
    "log10_kd_m": (f"log(10)?{_KD}m",),
    "log10_kd_nm": (f"log(10)?{_KD}nm",),
    "ug_ml": (f"{_KD}u?g(per)?ml1?",),
    "dg_kcal": ("(dg|deltag)(kcal|kcalmol)?",),
    "dg_kj": ("(dg|deltag)kj(mol)?",),
    "prediction": ("pkdpredicted|predictedpkd|predictions?|predicted",),
    "sigma": (
        "(pkd)?sigma",
        "(pkd|prediction|predicted|pkdpredicted)?(std|sd|stddev|stdev|uncertainty|standarderror)",
    ),
    "censored": ("censored|censor|censoring", "(kd|affinity|aff|label)?(relation|operator|op)"),
    "assay": ("assay|assayid|assayname", "dataset|study", "source"),
    "affinity_type": ("(affinity|label|measurement)type",),
    "id": ("id|pairid|rowid",),
    "antibody_name": ("(antibody|ab|mab|fab|fv|nanobody)(name|id)", "clone(name|id)?"),
    "antigen_name": (f"{_ANTIGEN}(name|id)", "pdb(id)?"),
}
"""Role to patterns; the roles of labels are named after their units (``--label``)."""

UNIT_ROLES = (
    "kd_m", "kd_um", "kd_nm", "log10_kd_m", "log10_kd_nm", "ug_ml", "dg_kcal", "dg_kj",
)  # fmt: skip
"""Roles that only say which unit a column's name states; a label has the role ``pkd``."""
SEQUENCE_ROLES = ("heavy", "light", "antibody", "antigen")


class MissingColumn(AbagError):
    """No column of the table plays a role, or the table lacks a column named by the user."""


class AmbiguousColumn(AbagError):
    """Several columns fit a role equally well."""


def find_columns(
    names: Iterable[Hashable], given: Mapping[str, str], source: str
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Find the column of each role, some `given` by the user, and roles that several fit."""
    present = [str(name) for name in names]
    for role, name in given.items():
        if role in UNIT_ROLES:
            msg = (
                f"--column {role}={name}: {role} is the unit of a label, not a role. "
                f"Give --column pkd={name} --label {role}."
            )
            raise MissingColumn(msg)
        if role not in ROLES:
            expected = ", ".join(role for role in ROLES if role not in UNIT_ROLES)
            msg = f"--column {role}={name}: no such role; expected one of {expected}."
            raise MissingColumn(msg)
        if name not in present:
            choices = f"no such column; found {quote_names(present)}"
            msg = f"{source}: --column {role}={name}: {choices}. Give one of these."
            raise MissingColumn(msg)
    free = [name for name in present if name not in given.values()]
    fits = {role: _best_fits(role, free) for role in ROLES if role not in given}
    found = {role: names[0] for role, names in fits.items() if len(names) == 1}
    return {**found, **given}, {role: names for role, names in fits.items() if len(names) > 1}


def named_roles(name: str) -> list[str]:
    """List the roles that a column's name states clearly."""
    return [role for role, (clear, *_) in ROLES.items() if re.fullmatch(clear, _simplified(name))]


def names_kd(name: str) -> bool:
    """Tell whether a column's name states a Kd, IC50 or the like, but no unit."""
    return re.fullmatch(f"{_KD}(value)?", _simplified(name)) is not None


def names_log10_nm(name: str) -> bool:
    """Tell whether a column is one that AlphaSeq tables have, of log10 of a Kd in nM."""
    return _simplified(name) in ("alphaseqaffinity", "predaffinity")


def quote_names(names: Iterable[Hashable]) -> str:
    return ", ".join(repr(str(name)) for name in names)


def _best_fits(role: str, names: Sequence[str]) -> list[str]:
    for pattern in ROLES[role]:
        fits = [name for name in names if re.fullmatch(pattern, _simplified(name))]
        if fits:
            return fits
    return []


def _simplified(name: str) -> str:
    # pandas names the second of two columns called "heavy" "heavy.1"
    # a minus at the start, as in -log10(Kd), reverses the meaning
    return name[: name.startswith("-")] + re.sub(
        "[^a-z0-9]", "", re.sub(r"\.\d+$", "", name.lower())
    )
