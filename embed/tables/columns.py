"""Find the column of a table that plays each role: heavy, light, antigen, pKd ...

Column names are recognized as people write them (``VH``, ``Ab_heavy_chain_seq``, ``hc_sequence``
...). Where two columns fit a role equally well, none is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches

from abag.core.errors import ColumnError
from abag.core.messages import quoted, shell_quoted
from abag.embed.tables.chains import CHAIN_ROLES

# Patterns over the lower-case letters and digits of a name. The first pattern that matches any
# column decides: a column that says "sequence" goes before one that may hold a name or PDB chain.
_SEQUENCE = "(seq|sequence|aa|aaseq|aminoacidsequence)"
_MUTANT = "(mut|mutant|mutated)"
_OWNER = "(antibody|ab|mab|fab|fv)?"
_HEAVY = f"{_OWNER}(heavy|heavychain|vh|vhchain|vhh|vhorvhh|hc|variableheavy|heavyvariable)"
_LIGHT = f"{_OWNER}(light|lightchain|vl|vlchain|lc|variablelight|lightvariable)"
_ANTIGEN = "(antigen|ag|target)"
# A name of such parts alone is that of a chain, in any order; others, as in hc_cdr3, light_v_gene
# or lambda_max, make it something else.
_PART = (
    "(sequences?|seqs?|aas?|aminoacids?|proteins?|polypeptides?|chains?|variable|domains?|regions?|"
    "antibody|ab|mab|fab|fv|igg?|immunoglobulin|bcr|alignment|aligned|full|fulllength|mature|"
    "trimmed|translated|translation|input)"
)
_SAYS_SEQUENCE = "(?=.*(seq|aa|aminoacid|protein|polypeptide))"
_SAYS_CHAIN = "(?=.*(seq|aa|aminoacid|protein|polypeptide|chain|variable|domain|region))"
_HEAVY_WORD = "(heavy|vhh|vh|hcvr|hc)"
_LIGHT_WORD = "(light|vl|vk|vkappa|vlambda|lcvr|lc)"
# alone, these may be names, genes or numbers: `content.roles_by_content` looks at the cells
_HEAVY_WORDS = f"({_HEAVY_WORD}|igh|vdj|nanobody|sdab)"
_LIGHT_WORDS = f"({_LIGHT_WORD}|kappa|lambda|ig[kl]|vj)"


def _of_parts(word: str) -> str:
    """Return the pattern of names that consist of parts, with at least one of these words."""
    return f"{_PART}*({word}{_PART}*)+"


ROLES: dict[str, tuple[str, ...]] = {
    "heavy": (
        f"{_MUTANT}{_HEAVY}{_SEQUENCE}?|{_HEAVY}{_SEQUENCE}?{_MUTANT}",
        f"({_HEAVY}|nanobody){_SEQUENCE}",
        f"{_HEAVY}|fabh",
        "antibodyseqa",  # of BioMap
        _SAYS_SEQUENCE + _of_parts(_HEAVY_WORDS),
        f"{_of_parts(_HEAVY_WORD)}|{_SAYS_CHAIN}{_of_parts(_HEAVY_WORDS)}",
    ),
    "light": (
        f"{_MUTANT}{_LIGHT}{_SEQUENCE}?|{_LIGHT}{_SEQUENCE}?{_MUTANT}",
        f"{_LIGHT}{_SEQUENCE}",
        f"{_LIGHT}|fabl",
        "antibodyseqb",
        _SAYS_SEQUENCE + _of_parts(_LIGHT_WORDS),
        f"{_of_parts(_LIGHT_WORD)}|{_SAYS_CHAIN}{_of_parts(_LIGHT_WORDS)}",
    ),
    "antibody": (
        f"(antibody|ab|mab|scfv|fv){_SEQUENCE}",
        "antibody|ab|mab|fv",
        f"mata{_SEQUENCE}|(aa|protein)?{_SEQUENCE}",
        _SAYS_SEQUENCE + _of_parts("(antibody|ab|mab|fab|scfv|fv)"),
    ),
    "antigen": (
        f"{_ANTIGEN}(chain)?{_SEQUENCE}",
        "antigen|ag",
        f"target|matalpha{_SEQUENCE}",
        _SAYS_SEQUENCE + _of_parts(_ANTIGEN),
    ),
    "pkd": (),  # head.labels.column finds the label
    "label": (),  # of any quantity, which has to be said
    "prediction": ("pkdpredicted|predictedpkd|predictions?|predicted",),
    "sigma": (
        "(pkd)?sigma",
        "(pkd|prediction|predicted|pkdpredicted)?(std|sd|stddev|stdev|uncertainty|standarderror)",
    ),
    "censored": (
        "(is)?(censored|censor|censoring)",
        "relation|(kd|affinity|aff|label)(relation|operator|op)",
    ),
    "assay": ("assay|assayid|assayname", "dataset|study"),
    "affinity_type": ("(affinity|label|measurement)type",),
    "mutations": (),  # embed.tables.references finds them where there is a parent
    "light_mutations": (),
    "mutation_chain": (),
    "mutation_wild": (),
    "mutation_position": (),
    "antigen_mutations": (),
    "id": ("id|pairid|rowid", "names?"),
    "antibody_name": ("(antibody|ab|mab|fab|fv|nanobody)(name|id)", "clone(name|id)?"),
    "antigen_name": (f"{_ANTIGEN}(name|id)", "pdb(id)?"),
}
"""Role to patterns."""

IS_MUTANT = re.compile(f"^{_MUTANT}|{_MUTANT}$")
"""Names of columns, simplified, that hold variants, beside their parents in others."""
LONGEST_NAME = 1000
"""Characters of the name of a column that a run reads."""
_BARE = re.compile(r"\w+=[\w=-]*\w", re.ASCII)
"""What needs no quotation marks in a shell, nor in a sentence, unlike the dot of ``KD..nM.``."""
UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)?|index", re.IGNORECASE)
"""Columns of the index that pandas writes."""
LISTED_NAMES = 12
"""Columns that an error lists before it counts the others."""


class MissingColumn(ColumnError):
    """No column plays a role, or the table lacks a column that the user named."""


def find_columns(
    names: Iterable[Hashable], chosen: Mapping[str, str], source: str
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Find the column of each role, some `chosen` by the user, and roles that several fit.

    A chain whose chosen name is empty has no column.

    Raises
    ------
    MissingColumn
        If the user chose a role or a column that does not exist.
    """
    present = [str(name) for name in names]
    for role, name in chosen.items():
        if role not in ROLES:
            expected = ", ".join(ROLES)
            msg = f"--column {role}={name}: no such role; expected one of {expected}."
            raise MissingColumn(msg)
        if not name and role in CHAIN_ROLES:
            continue
        if not name and name not in present:
            msg = (
                f"--column '{role}=': names no column; expected one (only heavy and light may have "
                "none). Name it, or leave the option out."
            )
            raise MissingColumn(msg)
        problem = f"{source}: --column {role}={name}: no such column"
        refuse_absent(name, present, problem, "Give one of these.")
    free = {name: simplified(name) for name in present if name not in chosen.values()}
    fits = {role: _best_fits(role, free) for role in ROLES if role not in chosen}
    columns = {role: names[0] for role, names in fits.items() if len(names) == 1}
    ties = {role: names for role, names in fits.items() if len(names) > 1}
    return {**columns, **{role: name for role, name in chosen.items() if name}}, ties


def refuse_absent(
    name: str, names: Iterable[Hashable], problem: str, advice: str = "Add it, or rename one."
) -> None:
    """Raise `MissingColumn` if no column has this name; it proposes similar ones, or `advice`."""
    present = [*map(str, names)]
    if name in present:
        return
    close = get_close_matches(name, present, n=2, cutoff=0.7)
    if close:
        advice = f"Did you mean {' or '.join(map(repr, close))}?"
    raise MissingColumn(with_found(problem, present, advice))


def with_unit(name: str, names: Sequence[str]) -> str:
    """Return the only column with a name and a unit in brackets, if no column has the name alone.

    The unit may be one that a row below the header states.
    """
    pattern = re.compile(re.escape(name) + r"\s*\([^()]+\)")
    named = [] if name in names else [other for other in names if pattern.fullmatch(other)]
    return named[0] if name and len(named) == 1 else name


def may_hold(
    names: Iterable[Hashable], chosen: Mapping[str, str], roles: Iterable[str]
) -> list[str]:
    """List the columns that may play one of these roles by their names, or that the user chose."""
    present = [str(name) for name in names]
    free = {name: simplified(name) for name in present if name not in chosen.values()}
    distinct: dict[str, None] = {}
    for role in roles:
        fits = [chosen[role]] if role in chosen else _best_fits(role, free)
        distinct |= dict.fromkeys(name for name in fits if name in present)
    return [*distinct]


def column_option(role: str, name: object) -> str:
    """Spell the option that gives a role a column, or none, as it is pasted into a shell."""
    text = f"{role}={name or ''}"
    return f"--column {text if _BARE.fullmatch(text) else shell_quoted(text)}"


def quote_names(names: Iterable[Hashable]) -> str:
    """Quote names of columns, with commas between them."""
    return ", ".join(quoted(str(name)) for name in names)


def list_columns(names: Sequence[str]) -> str:
    """Name columns in a sentence: ``columns 'site' and 'mutation'``."""
    *others, last = [quoted(name) for name in names]
    return f"columns {', '.join(others)} and {last}" if others else f"column {last}"


def quote_some(names: Sequence[Hashable]) -> str:
    """Quote the first names, and count the others."""
    rest = len(names) - LISTED_NAMES
    return quote_names(names[:LISTED_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def with_found(problem: str, names: Sequence[Hashable], advice: str) -> str:
    """Write an error about the columns of a table; a long list of these follows the advice."""
    if len(names) <= LISTED_NAMES:
        return f"{problem}; found {quote_some(names)}. {advice}"
    return f"{problem}. {advice} Found {quote_some(names)}."


def _best_fits(role: str, names: Mapping[str, str]) -> list[str]:
    """Return the names, with their simplified ones, that fit a role best."""
    for pattern in map(re.compile, ROLES[role]):
        fits = [name for name, bare in names.items() if pattern.fullmatch(bare)]
        if fits:
            return fits
    return []


def simplified(name: str) -> str:
    """Return the lower-case letters and digits of a name."""
    # a minus at the start, as in -log10(Kd), reverses the meaning
    minus = "-" if name.startswith("-") else ""
    # pandas names the second of two columns called "heavy" "heavy.1"
    bare = re.sub(r"\.\d+$", "", name.lower()).replace("κ", "kappa").replace("λ", "lambda")
    # signs such as a delta stay, so that no pattern matches what they change
    return minus + re.sub(r"[\x00-/:-`{-\x7f\xad\u200b-\u200f\u2060\ufeff]|\s", "", bare)
