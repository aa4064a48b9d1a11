"""Variants that a table writes as mutations of a parent: ``H:A50G,L:S52T``, ``p.Ala50Gly``.

Promises that every wild-type residue that is named is compared with the parent's, and that what is
not understood is refused. Columns of mutations are found by their names and content.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from string import ascii_uppercase
from typing import NamedTuple, TypeAlias

from abag.core.errors import AbagError, ColumnError, SequenceError
from abag.core.messages import quoted
from abag.embed.tables.chains import (
    LIGHT_MUTATIONS,
    MUTATION_PARTS,
    MUTATIONS,
    SEQUENCE_ROLES,
    STANDARD_RESIDUES,
    ChainName,
    Kind,
    locate_positions,
    parse_antibody,
    parse_chain,
)
from abag.embed.tables.columns import (
    column_option,
    quote_some,
    simplified,
)
from abag.embed.tables.formats import cell_text
from abag.embed.tables.options import MOST_RESIDUE, Numbering, TableOptions
from abag.embed.tables.table import Table

ChainId: TypeAlias = str
"""``H`` or ``L`` of an antibody, another letter as in a PDB file, or empty."""

IN_ORDER: ChainId = "HL"
"""Of a column with the mutations of both chains in one cell, A50G:WT, instead of one `ChainId`."""
PARENT_WORDS = frozenset(
    "- = _ wt _wt _sy wildtype wild parent parental none reference p.= p.(=)".split()
)
"""Cells, without spaces and hyphens inside, of what has no mutation."""
_CODES = {
    "ALA": "A", "ARG": "R", "ASN": "N", "ASP": "D", "CYS": "C", "GLN": "Q", "GLU": "E", "GLY": "G",
    "HIS": "H", "ILE": "I", "LEU": "L", "LYS": "K", "MET": "M", "PHE": "F", "PRO": "P", "SER": "S",
    "THR": "T", "TRP": "W", "TYR": "Y", "VAL": "V", "TER": "*",
}  # fmt: skip
_CODE = f"(?:{'|'.join(_CODES)})"
_LONG = re.compile(rf"(?<![A-Z]){_CODE}(?=\d)|(?:(?<=[\d()])|(?<=\d[A-Z])){_CODE}")
_CHAIN_IDS: Mapping[str, ChainId] = {
    **dict.fromkeys(("HC", "VH", "VHH", "HEAVY", "HEAVYCHAIN"), "H"),
    **dict.fromkeys(("LC", "VL", "VK", "LIGHT", "LIGHTCHAIN"), "L"),
}
_CHAIN_WORD = "(?:HEAVY|LIGHT)(?:[ _]?CHAIN)?|VHH|VH|VL|VK|HC|LC"
# a digit is a chain only where it cannot be a position: 5_9A may be of two residues
_CHAIN = (
    rf"(?:(?P<chain>{_CHAIN_WORD}|[A-Z]|[0-9](?=\s*:|\s*[_./ -]\s*[A-Z]{{1,2}}\d))\s*[:_./ -]\s*)?"
)
_NUMBER = r"\d{1,7}(?:\.\d{1,2}|[A-Z])?(?![\d.])"
_SUBSTITUTION = re.compile(
    rf"{_CHAIN}(?:(?P<wild>[A-Z])(?P<inner>[A-Z])?)?(?P<position>{_NUMBER})"
    r"(?P<mutant>DEL|[A-Z*=Δ-])(?![A-Z0-9])"
)
"""``A50G``, ``H:A50G``, with the chain behind the wild type, as SKEMPI writes, ``AH50G``, and
without the wild type, as EVOLVEpro writes, ``50G``."""
_RANGE = re.compile(
    rf"{_CHAIN}(?P<wild>[A-Z])(?P<position>{_NUMBER})_(?P<last_wild>[A-Z])(?P<last>{_NUMBER})"
    r"(?P<what>DEL|INS(?P<inserted>[A-Z]+))(?![A-Z0-9])"
)
_UNSURE_RANGE = re.compile(
    rf"{_CHAIN}(?:{_NUMBER}\s*[_:-]\s*[A-Z]?|[A-Z]{_NUMBER}\s*[_:-]\s*){_NUMBER}"
    r"(?:DEL|INS|DUP|[Δ-](?![A-Z0-9]))"
)
"""``82a_82bdel``: a range whose letters are of positions, or a substitution and a deletion."""
_CHAIN_BEHIND = re.compile(
    rf"(?P<before>[A-Z]?{_NUMBER})\((?P<chain>{_CHAIN_WORD}|[A-Z])\)(?P<mutant>DEL|[A-Z*=Δ-])"
)
"""``I30(H)V``"""
_CHAIN_AT_END = re.compile(
    rf"(?P<mutation>[A-Z]?{_NUMBER}(?:DEL|[A-Z*=Δ-]))\s*\((?P<chain>{_CHAIN_WORD}|[A-Z])\)"
)
_CHAIN_BEFORE = re.compile(
    rf"\((?P<chain>{_CHAIN_WORD}|[A-Z])\)\s*(?=[A-Z]\d)|"
    rf"(?<![A-Z0-9])(?P<around>{_CHAIN_WORD}|[A-Z])\s*\((?=[A-Z]\d)"
)
"""``(H)I30V`` and ``H(I30V)``"""
_FRAME_SHIFT = re.compile(r"\d[A-Za-z]{0,3}fs")  # unlike Y100fS, residue 100F to S
_ACCESSION = re.compile(r"^(?:[A-Z]{2}_|ENS[A-Z]+)\d+(?:\.\d+)?:(?=p\.)")
_SEPARATORS = re.compile(r"[\s,;:/_+|&-]*")
_EXPECTED = (
    "expected substitutions such as A50G, H:A50G or p.Ala50Gly, deletions A50del, or insertions "
    "A50_S51insGG"
)
ENOUGH = 0.9
"""Share of the variants that have to fit other numbers before these are proposed."""
LEAST_VARIANTS = 3
LOOKED_AT = 2_000
"""Variants that are tried with other numbers."""
_CHAIN_WORDS: Mapping[str, str] = {"H": "the heavy chain", "L": "the light chain", "": "the parent"}
_MUTATION_COLUMN = re.compile(
    "hgvs(pro|p)?|(aa|aminoacid|protein|ab|antibody)?(mutations?|mutants?|muts?|substitutions?|"
    "variants?|changes?)(s|list|string|str|code|name|id|pdb|cleaned|spdb|scleaned)?"
)
_CHANGES = (
    "(?:aa|aminoacid|protein)?(?:mutations?|mutants?|muts?|substitutions?|variants?|changes?)"
)
_OWNER = "(?:antibody|ab|mab|fab|fv)?"
_CHAIN_MUTATIONS: Mapping[ChainId, str] = {
    "H": "(?:variable)?(?:heavy(?:chain)?|vhh?|hc|h|igh)",
    "L": "(?:variable)?(?:light(?:chain)?|vl|vk|lc|l|kappa|lambda|ig[kl])",
}
"""Names of chains in the names of columns of their mutations."""
_RESIDUE = "(aa|res|residue|aminoacid)?"
_OF_PARTS: Mapping[str, str] = {
    "mutation_chain": "chain(id|name|type)?",
    "mutation_wild": f"{_RESIDUE}(wt|wildtype|wild|ref|reference|original|from){_RESIDUE}",
    "mutation_position": (
        "(aa|aminoacid|mut|mutation|mutated|res|residue|kabat|imgt|chothia)?(site|pos|position)|"
        "res(idue)?(id|num|number|no|nr)?|resi"
    ),
}
_MUTANT = f"{_RESIDUE}(mut|mutant|mutation|mutated|substitution|alt|to|new){_RESIDUE}"
"""Names of columns of parts of mutations: residues, and what is beside them."""
_PART_CELLS: Mapping[str, re.Pattern[str]] = {
    "mutation_chain": re.compile(_CHAIN_WORD + "|[A-Z]"),
    "mutation_wild": re.compile(f"[{STANDARD_RESIDUES}]|{'|'.join(_CODES)}"),
    "mutation_position": re.compile(_NUMBER),
}
_ONE_RESIDUE = re.compile(f"[{STANDARD_RESIDUES}*=Δ-]|DEL|{'|'.join(_CODES)}")


class BadMutation(SequenceError):
    """A mutation that is not understood, or not of the parent."""


class Mutation(NamedTuple):
    """Residues of a chain that are replaced."""

    text: str
    """The mutation as it is written."""
    chain: ChainId
    wild: str
    """Residue of the parent at `position`; empty if it is not named, and cannot be checked."""
    position: str
    last_wild: str
    """Residue of the parent at `last`."""
    last: str
    residues: str
    """The residues that replace those from `position` to `last`."""
    inserts: bool = False
    """Whether `residues` go between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRules:
    """Rules by which the mutations of one kind of sequence are read."""

    kind: Kind
    numbering: Numbering = "sequential"
    first_residue: int = 1
    """Sequential number of the first residue."""
    shared: bool = False
    """Whether the cells name the mutations of the other kind too."""

    @property
    def words(self) -> str:
        """The numbering in words, for messages."""
        start = f" from {self.first_residue}" if self.first_residue != 1 else ""
        return f"{self.numbering} numbering{start}"


def one_letter(residue: str) -> str:
    """Return the letter of a residue of three letters; any other text as it is."""
    return _CODES.get(residue.upper(), residue)


def means_parent(text: str) -> bool:
    """Tell whether a cell says that there is no mutation."""
    bare = "".join(text.lower().split())
    return bare in PARENT_WORDS or bare.replace("-", "").replace("_", "") in PARENT_WORDS | {""}


@lru_cache(100_000)  # a cell is read to find the column, to apply it, and to try other numbers
def read_mutations(text: str) -> tuple[Mutation, ...]:
    """Read the mutations in a cell, none for the parent.

    Raises
    ------
    BadMutation
        If a part of the text is not understood, or leaves no whole chain.
    """
    if means_parent(text):
        return ()
    # NP_000537.3:p.Ala50Gly and p.[Ala50Gly;Ser52Thr]
    bare = re.sub(r"\bp\.", "", _ACCESSION.sub("", text.strip()))
    # the letter of an insertion has no parentheses: S52(b)T, not I30(H)V
    bare = re.sub(r"(?<=[A-Z]\d)(\d*)\(([a-z])\)", r"\1\2", bare).upper()
    bare = _LONG.sub(lambda code: _CODES[code[0]], bare)
    # a chain in parentheses goes before its mutation: I30(H)V as H:I30V
    bare = _CHAIN_BEHIND.sub(r"\g<chain>:\g<before>\g<mutant>", bare)
    bare = _CHAIN_AT_END.sub(r"\g<chain>:\g<mutation>", bare)
    bare = _CHAIN_BEFORE.sub(lambda match: f"{match['chain'] or match['around']}:", bare)
    bare = re.sub(r"[\[\]()'\"]", "", bare)
    if _FRAME_SHIFT.search(text):
        msg = f"{quoted(text)} is a frame shift, which leaves no whole chain; remove the row"
        raise BadMutation(msg)
    mutations: list[Mutation] = []
    at = _next(bare, 0)
    chain = ""
    while at < len(bare):
        match = _RANGE.match(bare, at) or _SUBSTITUTION.match(bare, at)
        if match is None or (match.re is _SUBSTITUTION and _UNSURE_RANGE.match(bare, at)):
            why = f"is not understood at {bare[at : at + 12]!r}"
            if bare.upper() in {*STANDARD_RESIDUES}:
                why = (
                    "is one residue, without its position; if a column has that, give --column "
                    "mutation_position=NAME"
                )
            msg = f"{quoted(text)} {why}; {_EXPECTED}"
            raise BadMutation(msg)
        mutation = _read_match(match, text)
        # in "VH: A50G, S52T" the chain is that of both
        chain = mutation.chain or chain
        mutations.append(mutation._replace(chain=chain))
        at = _next(bare, match.end())
    return tuple(mutations)


def _next(text: str, at: int) -> int:
    """Return where the separators end that begin here."""
    separators = _SEPARATORS.match(text, at)
    return separators.end() if separators else at


def _read_match(match: re.Match[str], text: str) -> Mutation:
    parts = match.groupdict()
    inner = parts.get("inner") or ""
    if inner and parts["chain"]:
        msg = f"{quoted(text)} names two chains, {parts['chain']} and {inner}; expected one"
        raise BadMutation(msg)
    letters = re.sub("[ _]", "", parts["chain"] or inner)
    chain = _CHAIN_IDS.get(letters, letters)
    wild = parts["wild"] or ""
    position = _lettered(parts["position"])
    last_wild = parts.get("last_wild") or wild
    last = _lettered(parts.get("last") or position)
    mutant = parts.get("mutant", "")
    inserted = parts.get("inserted") or ""
    without_letter = {"DEL": "", "-": "", "Δ": "", "=": wild}
    residues = without_letter.get(mutant, mutant) + inserted
    if mutant == "=" and not wild:
        msg = f"{quoted(match[0])} names no residue; {_EXPECTED}"
        raise BadMutation(msg)
    if "*" in residues:
        msg = f"{quoted(match[0])} is a stop codon, which leaves no whole chain; remove the row"
        raise BadMutation(msg)
    strange = set(wild + last_wild + residues) - set(STANDARD_RESIDUES)
    if strange:
        msg = f"{quoted(match[0])}: {min(strange)} is not one of the 20 residues; {_EXPECTED}"
        raise BadMutation(msg)
    return Mutation(
        text=match[0],
        chain=chain,
        wild=wild,
        position=position,
        last_wild=last_wild,
        last=last,
        residues=residues,
        inserts=bool(inserted),
    )


def _lettered(position: str) -> str:
    """Write an insertion of IMGT, 111.1, as 111A."""
    number, point, insertion = position.partition(".")
    if not point:
        return position
    if insertion.startswith("0") or int(insertion) > len(ascii_uppercase):
        msg = f"{position!r} is not a position; expected one such as 111.1 or 111A"
        raise BadMutation(msg)
    return number + ascii_uppercase[int(insertion) - 1]


def mutate(parent: str, text: str, rules: MutationRules) -> str:
    """Apply the mutations in a cell to a parent, which is text as in a column of sequences.

    Raises
    ------
    AbagError
        `BadMutation`, or what parsing the parent raises.
    """
    mutations = read_mutations(text)
    if rules.shared:
        mutations = tuple(_of_kind(mutations, rules.kind))
    if not mutations:
        return parent
    chains = _chains_of(parent, mutations, rules)
    edits: dict[ChainId, list[_Edit]] = {}
    for mutation in mutations:
        chain = _chain_of(mutation, chains, rules)
        edit = _edit(mutation, chain, chains[chain], rules)
        edits.setdefault(chain, []).append(edit)
    for chain, chain_edits in edits.items():
        # from the end of the chain, so that the places before stay valid
        ordered = sorted(chain_edits, reverse=True)
        for later, earlier in pairwise(ordered):
            is_same_place = (later.start, later.end) == (earlier.start, earlier.end)  # insertions
            if later.start < earlier.end or is_same_place:
                msg = f"{quoted(text)} changes a residue twice; expected one mutation per residue"
                raise BadMutation(msg)
        for start, end, residues in ordered:
            chains[chain] = chains[chain][:start] + residues + chains[chain][end:]
    return "|".join(chains.values())


def of_chain(text: str, chain: ChainId) -> str:
    """Return a cell of a column for one chain with the name of this chain; empty for the parent.

    A column without a chain names it in its cells, which stay; `IN_ORDER` names both.

    Raises
    ------
    BadMutation
        If a part of the text is not understood, or names another chain.
    """
    if not chain or (chain == IN_ORDER and ":" not in text):
        return text
    if chain == IN_ORDER:
        parts = text.split(":")
        if len(parts) != len(IN_ORDER):
            msg = f"{quoted(text)} has {len(parts)} parts; expected two chains, as in A50G:WT"
            raise BadMutation(msg)
        return "; ".join(filter(None, map(of_chain, parts, IN_ORDER)))
    mutations = read_mutations(text)
    for mutation in mutations:
        if mutation.chain not in ("", chain):
            msg = f"{quoted(mutation.text)} is of chain {mutation.chain}; expected {chain}, as "
            msg += "the column is named"
            raise BadMutation(msg)
    if not mutations or mutations[0].chain:
        return text if mutations else ""
    return f"{chain}:{_ACCESSION.sub('', text.strip())}"


def _of_kind(mutations: Sequence[Mutation], kind: Kind) -> Iterator[Mutation]:
    """Yield the mutations of the chains of one kind, from a cell that has both kinds."""
    for mutation in mutations:
        if not mutation.chain:
            msg = f"{quoted(mutation.text)} names no chain; expected H:, L: or that of the antigen"
            raise BadMutation(msg)
        if (mutation.chain in ("H", "L")) == (kind == "antibody"):
            yield mutation


def _chains_of(
    parent: str, mutations: Sequence[Mutation], rules: MutationRules
) -> dict[ChainId, str]:
    parts = []
    for part in re.split("[|:]", parent):
        parts.append(parse_chain(part).chains[0] if part.strip() else "")
    if rules.kind == "antigen":
        numbers = ["", *map(str, range(1, len(parts)))]
        return dict(zip(numbers, parts, strict=True))
    names_chain = any(mutation.chain for mutation in mutations)
    # else the numbers are those of the whole string
    if len(parts) == 1 and (names_chain or rules.numbering != "sequential"):
        parts = [*parse_antibody(parent).chains]
    return {"": parts[0]} if len(parts) == 1 else dict(zip("HL", parts, strict=False))


def _chain_of(mutation: Mutation, chains: Mapping[ChainId, str], rules: MutationRules) -> ChainId:
    shown = quoted(mutation.text)
    if rules.kind == "antigen":
        if len(chains) > 1:
            msg = (
                f"{shown}: the antigen has {len(chains)} chains; expected one. Write its "
                "sequence in each row"
            )
            raise BadMutation(msg)
        return ""
    filled = [name for name, chain in chains.items() if chain]
    if not mutation.chain:
        if len(filled) == 1:
            return filled[0]
        bare = shown.strip("'")
        msg = f"{shown} names no chain; expected H:{bare} or L:{bare}"
        raise BadMutation(msg)
    if mutation.chain not in filled:
        has = " and ".join(filled)
        msg = (
            f"{shown}: the antibody has no chain {mutation.chain}; expected {has}. If it "
            "is one of the antigen, name this column as --column antigen_mutations=NAME too"
        )
        raise BadMutation(msg)
    return mutation.chain


class _Edit(NamedTuple):
    """Residues of a chain, from 0, and those that replace them."""

    start: int
    end: int
    residues: str


def _edit(mutation: Mutation, chain: ChainId, residues: str, rules: MutationRules) -> _Edit:
    """Find the residues to replace, and compare them with the wild type."""
    places = _positions(residues, chain, rules.numbering, rules.first_residue)
    is_of_antibody = rules.kind == "antibody"
    where = _CHAIN_WORDS[chain] if is_of_antibody else "the antigen"
    pairs = [(mutation.position, mutation.wild), (mutation.last, mutation.last_wild)]
    shown = quoted(mutation.text)
    for position, wild in pairs:
        if position not in places:
            if not places:
                hint = "no variable domain is recognized"
            elif is_of_antibody and rules.numbering == "sequential" and position[-1:].isalpha():
                hint = "52A and the like are of --numbering imgt, kabat or chothia"
            else:
                hint = f"it has {next(iter(places))} to {[*places][-1]}"
            msg = f"{shown}: {where} has no residue {position} ({rules.words}; {hint})"
            raise BadMutation(msg)
        held = residues[places[position]]
        if wild and held != wild:
            msg = f"{shown}: residue {position} of {where} is {held}, not {wild} ({rules.words})"
            raise BadMutation(msg)
    first = places[mutation.position]
    last = places[mutation.last]
    if last < first or (mutation.inserts and last != first + 1):
        msg = f"{shown}: {mutation.last} does not follow {mutation.position}; expected so"
        raise BadMutation(msg)
    if mutation.inserts:
        return _Edit(last, last, mutation.residues)
    return _Edit(first, last + 1, mutation.residues)


@lru_cache(4096)
def _positions(
    residues: str, chain: ChainId, numbering: Numbering, first: int
) -> Mapping[str, int]:
    """Return the index of each position of a chain."""
    if numbering == "sequential":
        return {str(first + at): at for at in range(len(residues))}
    name: ChainName = "light" if chain == "L" else "heavy"
    return locate_positions(residues, name, numbering)


# --- other numbers --------------------------------------------------------------------------------


def propose_numbers(variants: Sequence[tuple[str, str]], rules: MutationRules) -> str:
    """Name the options with which nearly all variants, (parent, mutations), fit, if there are any.

    Empty if there are none, or too few variants.
    """
    tried = [(parent, text) for parent, text in variants[:LOOKED_AT] if _read(text)]
    if len(tried) < LEAST_VARIANTS:
        return ""
    counts = {
        other: _count_fitting(tried, other)
        for other in _other_rules(tried, rules)
        if other != rules
    }
    most = max(counts.values(), default=0)
    if most < ENOUGH * len(tried) or most <= _count_fitting(tried, rules):
        return ""
    options = []
    for other, count in counts.items():
        if count == most and other.numbering == "sequential":
            options.append(f"--first-residue {other.first_residue}")
        elif count == most:
            options.append(f"--numbering {other.numbering}")
    return f"{most:,} of {len(tried):,} variants fit {' or '.join(options)}."


def propose_antigen(variants: Sequence[tuple[str, str]], antigen: str, column: str) -> str:
    """Name the options with which nearly all mutations of an antibody are those of the antigen."""
    tried = [(antigen, text) for _, text in variants[:LOOKED_AT] if _read(text)]
    rules = MutationRules(kind="antigen")
    counts = {other: _count_fitting(tried, other) for other in (rules, *_other_rules(tried, rules))}
    best = max(counts, key=lambda other: counts[other])
    if len(tried) < LEAST_VARIANTS or counts[best] < ENOUGH * len(tried):
        return ""
    option = column_option("antigen_mutations", column)
    if best.first_residue != 1:
        option += f" --first-residue {best.first_residue}"
    return f"{counts[best]:,} of {len(tried):,} variants fit the antigen: use {option}."


def _other_rules(variants: Sequence[tuple[str, str]], rules: MutationRules) -> list[MutationRules]:
    """List the numberings that may fit: the schemes, and the most likely first residue."""
    others: list[MutationRules] = []
    if rules.kind == "antibody":
        for numbering in ("kabat", "chothia", "imgt"):
            others.append(replace(rules, numbering=numbering, first_residue=1))
    starts: Counter[int] = Counter()
    for parent, text in variants:
        starts.update(_possible_starts(parent, text, rules))
    for start, _ in starts.most_common(1):
        others.append(replace(rules, numbering="sequential", first_residue=start))
    return others


def _count_fitting(variants: Sequence[tuple[str, str]], rules: MutationRules) -> int:
    fitting = 0
    for parent, text in variants:
        with suppress(AbagError):
            mutate(parent, text, rules)
            fitting += 1
    return fitting


def _possible_starts(parent: str, text: str, rules: MutationRules) -> Iterator[int]:
    """Yield which number the first residue may have for one mutation to fit."""
    mutation = read_mutations(text)[0]
    if not mutation.position.isdigit():
        return
    try:
        chains = _chains_of(parent, [mutation], replace(rules, numbering="sequential"))
        residues = chains[_chain_of(mutation, chains, rules)]
    except AbagError:
        return
    for at, residue in enumerate(residues):
        if residue == mutation.wild:
            start = int(mutation.position) - at
            if abs(start) <= MOST_RESIDUE:
                yield start


# --- columns of mutations -------------------------------------------------------------------------


def mutation_columns(
    table: Table, options: TableOptions, kinds: Sequence[Kind]
) -> tuple[dict[Kind, str], dict[str, str], frozenset[Kind]]:
    """Return the column of mutations of each kind that has one, and further ones by their roles.

    These are that of light chains, if heavy and light chains have a column each, and those of the
    parts of mutations that stand in columns of their own, as those of the last kinds do.
    """
    named = options.columns
    roles = {kind: MUTATIONS[kind] for kind in kinds}
    chosen = {kind: named[role] for kind, role in roles.items() if role in named}
    given = {role: named[role] for role in (LIGHT_MUTATIONS, *MUTATION_PARTS) if role in named}
    if options.parent is not None and "antibody" not in chosen and "antibody" in kinds:
        used = {*chosen.values(), *given.values()}
        free = [name for name in table.names if name not in used]
        heavy, *light = _find_mutations(table, free, given, is_needed=not chosen) or [""]
        if heavy:
            chosen = {"antibody": heavy, **chosen}
        given |= dict.fromkeys([LIGHT_MUTATIONS] * len(light), light[0] if light else "")
    if LIGHT_MUTATIONS in given and "antibody" in kinds and "antibody" not in chosen:
        named_so = column_option(LIGHT_MUTATIONS, given[LIGHT_MUTATIONS])
        table.refuse(
            f"{named_so}: no column has the mutations of heavy chains; expected one, too. Add "
            "--column mutations=NAME, or name this one so if heavy chains have none.",
            ColumnError,
        )
    split = set[Kind]()
    for kind, name in chosen.items():
        if parts := find_parts(table, name, given):
            given |= parts
            split.add(kind)
    return chosen, given, frozenset(split)


def _find_mutations(
    table: Table, names: Sequence[str], given: Mapping[str, str], *, is_needed: bool
) -> list[str]:
    """Find the column of mutations of the antibody, or those of its heavy and light chains."""
    of_chains = [name for name in names if chain_of_column(name) and holds_mutations(table, name)]
    named_so = [name for name in names if _MUTATION_COLUMN.fullmatch(simplified(name))]
    best = [name for name in named_so if holds_mutations(table, name)]
    if of_chains and not (len(best) == 1 and _names_chains(table, best[0])):
        best += of_chains
    if not best:
        # 50G, without a wild type, may be a well or a name in any other column
        best = [name for name in columns_of_mutations(table, given) if name in names]
    if len(best) == 1:
        return best
    if len(best) == 2 and {*map(chain_of_column, best)} == {"H", "L"}:
        return sorted(best, key=chain_of_column)
    if best:
        lines = " or ".join(column_option("mutations", name) for name in best)
        table.refuse(
            f"columns {quote_some(best)} hold mutations; expected one, or two called "
            f"heavy_mutations and light_mutations. Rename them, or choose one with {lines}.",
            ColumnError,
        )
    if not is_needed:
        return []  # every row has the parent, and a variant of the antigen
    table.refuse_missing(
        "--parent: no column holds mutations such as A50G or H:A50G",
        "Name it with --column mutations=NAME, with --column mutation_position=NAME if positions "
        "are in another, or leave --parent out.",
    )


def find_parts(table: Table, name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Find the columns that complete one of single residues to mutations, by role.

    Some are `given`. None without one of positions, and for a column of whole mutations.
    """
    if not _hold(table, name, _ONE_RESIDUE):
        return {}
    parts = {}
    for role, cells in _PART_CELLS.items():
        fits = [other for other in table.names if re.fullmatch(_OF_PARTS[role], simplified(other))]
        fits = [other for other in fits if other != name and _hold(table, other, cells)]
        if role in given:
            parts[role] = given[role]
        elif len(fits) == 1:
            parts[role] = fits[0]
    return parts if "mutation_position" in parts else {}


def _hold(table: Table, name: str, pattern: re.Pattern[str]) -> bool:
    """Tell whether most cells of a column match a pattern, in capitals, and are not of parents."""
    texts = [cell_text(cell).strip().upper() for cell in table.distinct_cells(name)]
    others = [text for text in texts if text in "=-*" or not means_parent(text)]
    matching = sum(pattern.fullmatch(text) is not None for text in others)
    return 2 * matching > len(others)


def chain_of_column(name: str) -> ChainId:
    """Return the chain that the name of a column of mutations says; empty if it says none.

    It may be the name of the chain alone, such as ``VH``.
    """
    bare = simplified(name)
    for chain, pattern in _CHAIN_MUTATIONS.items():
        if re.fullmatch(f"{_OWNER}{pattern}{_CHANGES}?|{_CHANGES}(?:in|of|on)?{pattern}", bare):
            return chain
    return ""


def _names_chains(table: Table, name: str) -> bool:
    """Tell whether all mutations of a column name their chain."""
    return all(m.chain for cell in table.distinct_cells(name) for m in _read(str(cell)))


def holds_mutations(table: Table, name: str, *, with_wild: bool = False) -> bool:
    """Tell whether most cells that are not of the parent are mutations."""
    cells = [cell for cell in table.distinct_cells(name) if isinstance(cell, str)]
    others = [cell for cell in cells if not means_parent(cell)]
    understood = 0
    for cell in others:
        mutations = _read(cell)
        unchecked = [mutation for mutation in mutations if not mutation.wild]
        if mutations and not (with_wild and unchecked):
            understood += 1
    return understood > 0 and 2 * understood >= len(others)


def _read(cell: str) -> tuple[Mutation, ...]:
    """Return the mutations in a cell, none if it is not understood."""
    try:
        parts = _in_order(cell) or [cell]
        return tuple(mutation for part in parts for mutation in read_mutations(part))
    except BadMutation:
        return ()


def _in_order(cell: str) -> list[str]:
    """Return the parts of A50G:WT, of which one is the parent's; none of other cells."""
    parts = cell.split(":")
    are_parents = [bool(part.strip()) and means_parent(part) for part in parts]
    return parts if sorted(are_parents) == [False, True] else []


def are_in_order(table: Table, name: str, *, in_run: bool) -> bool:
    """Tell whether the cells of a column have the mutations of heavy and light chains in order.

    A50G:S52T alone does not say so, since both may be of one chain, unless it was so `in_run`.
    """
    cells = [str(cell) for cell in table.distinct_cells(name)]
    if any(_in_order(cell) and _read(cell) for cell in cells):
        return True
    names_chain = any(mutation.chain for cell in cells for mutation in _read(cell))
    return in_run and not names_chain and any(":" in cell for cell in cells)


def without_wild(table: Table, name: str) -> list[str]:
    """Return mutations of a column that do not name the wild type."""
    texts: list[str] = []
    for cell in table.distinct_cells(name):
        if isinstance(cell, str):
            texts += [mutation.text for mutation in _read(cell) if not mutation.wild]
    return texts


def describe_unapplied(table: Table) -> Iterator[str]:
    """Say that a column of mutations is not applied, if the sequences do not follow it."""
    for name in table.names:
        if not _MUTATION_COLUMN.fullmatch(simplified(name)):
            continue
        parts = find_parts(table, name, {})
        if not (parts or holds_mutations(table, name, with_wild=True)):
            continue
        held = [table.columns[role] for role in SEQUENCE_ROLES if role in table.columns]
        held = [column for column in held if column != name]
        if not held:
            continue
        sequences = len(table.frame[held].drop_duplicates())
        if 2 * sequences <= len(table.frame[[name, *parts.values()]].drop_duplicates()):
            of_antibodies = column_option("mutations", name)
            of_antigens = column_option("antigen_mutations", name)
            yield (
                f"column {name!r} holds mutations that are not applied, and the sequences are "
                f"fewer: if these are the parents, give {of_antibodies} or {of_antigens}"
            )


def columns_of_mutations(table: Table, given: Mapping[str, str] | None = None) -> list[str]:
    """List the columns with mutations that name the wild type; IL17A is a name of an antigen.

    Without any, those of residues that other columns complete, some of them `given`.
    """
    of_antigens = {table.columns.get(role) for role in ("antigen", "antigen_name")}
    names = [name for name in table.names if name not in of_antigens]
    whole = [name for name in names if holds_mutations(table, name, with_wild=True)]
    residues = [name for name in names if re.fullmatch(_MUTANT, simplified(name))]
    return whole or [name for name in residues if find_parts(table, name, given or {})]
