"""The parents of a scan, and their residues to mutate, by region and IMGT position.

The residues of an antigen have no common numbering: their positions count from 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from abag.core.errors import PredictionError
from abag.core.messages import bar, counted, printable, say
from abag.embed.tables.chains import IMGT_REGIONS, locate_positions, position_number
from abag.embed.tables.layout import LayoutRecord
from abag.embed.tables.pairs import read_pairs
from abag.embed.tables.table import read_names

if TYPE_CHECKING:
    from abag.embed.tables.chains import Chains, Kind
    from abag.embed.tables.pairs import SequenceTable
    from abag.embed.tables.table import TableLike
    from abag.head.predictor.options import PositionRange, ScanOptions


class Site(NamedTuple):
    """A residue that can be mutated."""

    chain: str
    """heavy, light or antigen; ``antigen 2`` is the second of several chains, in their order."""
    chain_index: int
    """Index of the chain among those of the antibody or antigen."""
    at: int
    position: str
    region: str
    wild_type: str

    @property
    def number(self) -> int:
        """The position without the letters of an insertion."""
        return position_number(self.position)

    @property
    def place(self) -> tuple[Kind, int, int]:
        """Kind of the sequence, its chain, and the index of the residue in that chain."""
        kind: Kind = "antigen" if self.region == "antigen" else "antibody"
        return kind, self.chain_index, self.at

    @property
    def prefix(self) -> str:
        """Letter of the chain, with the number of an antigen's chain."""
        return self.chain[0].upper() + self.chain.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class Parent:
    """An antibody with its antigen, whose mutants are scored."""

    name: str
    antibody: Chains
    antigen: Chains
    sites: tuple[Site, ...]

    def mutant(self, changes: Mutant) -> tuple[Chains, Chains]:
        """Return the antibody and the antigen with some residues exchanged."""
        antibody = list(self.antibody)
        antigen = list(self.antigen)
        for site, residue in changes:
            chains = antigen if site.region == "antigen" else antibody
            chain = chains[site.chain_index]
            chains[site.chain_index] = chain[: site.at] + residue + chain[site.at + 1 :]
        # as `chains.antigen` sorts them: a mutation may change the order, and keys depend on it
        return tuple(antibody), tuple(sorted(antigen))

    def count_mutants(self, residues: str) -> int:
        """Count the mutants that `single_mutants` yields."""
        unchanged = sum(site.wild_type in residues for site in self.sites)
        return len(self.sites) * len(residues) - unchanged


Mutant = tuple[tuple[Site, str], ...]
"""What is changed: one site and its new residue, or two."""


def single_mutants(parent: Parent, residues: str) -> Iterator[Mutant]:
    """Yield every mutant of one site, in the order of the sites."""
    for site in parent.sites:
        for residue in residues:
            if residue != site.wild_type:
                yield ((site, residue),)


def pairs_of(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Yield the double mutants of single ones at different sites, each once, sites in order."""
    for (first,), (second,) in combinations(mutants, 2):
        if first[0] != second[0]:
            yield tuple(sorted((first, second), key=_order))


def drawn_of(
    mutants: Sequence[Mutant], mutations: int, number: int, rng: np.random.Generator
) -> list[Mutant]:
    """Draw mutants that combine single ones at so many different sites, no two the same.

    All are equally probable. If there are fewer than `number`, all are returned.
    """
    at_site: dict[Site, list[Mutant]] = {}
    for mutant in mutants:
        at_site.setdefault(mutant[0][0], []).append(mutant)
    chosen: dict[Mutant, None] = {}
    if _count_combinations([len(group) for group in at_site.values()], mutations) <= 2 * number:
        for groups in combinations(at_site.values(), mutations):
            for singles in product(*groups):
                chosen[_combined(singles)] = None
        every = [*chosen]
        rows = rng.permutation(len(every))[:number]
        return [every[row] for row in sorted(rows.tolist())]
    while len(chosen) < number:
        rows = rng.choice(len(mutants), mutations, replace=False)
        singles = tuple(mutants[row] for row in rows.tolist())
        if len({single[0][0] for single in singles}) == mutations:
            chosen[_combined(singles)] = None
    return [*chosen]


def _combined(singles: Iterable[Mutant]) -> Mutant:
    return tuple(sorted((change for (change,) in singles), key=_order))


def _count_combinations(sizes: Sequence[int], number: int) -> int:
    """Count the choices of one member each from `number` of the groups of these sizes."""
    ways = [1] + [0] * number
    for size in sizes:
        for chosen in range(number, 0, -1):
            ways[chosen] += size * ways[chosen - 1]
    return ways[number]


def _order(change: tuple[Site, str]) -> tuple[bool, int, int]:
    site = change[0]
    return site.region == "antigen", site.chain_index, site.at


def name_mutant(changes: Mutant) -> str:
    """Name a mutant, such as ``H:W107A`` or ``H:W107A+L:Y38F``."""
    return "+".join(
        f"{site.prefix}:{site.wild_type}{site.position}{residue}" for site, residue in changes
    )


def find_sites(
    antibody: Chains, antigen: Chains, options: ScanOptions
) -> tuple[tuple[Site, ...], list[str]]:
    """Find the residues of a parent to mutate; say what is not scanned, and why."""
    problems = []
    sites: list[Site] = []
    for index, (name, chain) in enumerate(zip(("heavy", "light"), antibody, strict=True)):
        if not chain or name not in options.scanned_chains:
            continue
        numbered = list(_domain_sites(name, index, chain))
        if not numbered:
            problems.append(f"the {name} chain cannot be numbered")
        sites += numbered
    if "antigen" in options.scanned_chains:
        for index, chain in enumerate(antigen):
            name = "antigen" if len(antigen) == 1 else f"antigen {index + 1}"
            sites += [
                Site(name, index, at, f"{at + 1}", "antigen", x) for at, x in enumerate(chain)
            ]
    if options.ranges:
        chosen = [site for site in sites if any(_in_range(site, r) for r in options.ranges)]
        for selected in options.ranges:
            numbers = [site.number for site in chosen if _in_range(site, selected)]
            if not numbers:
                problems.append(f"no position {selected.text}")
            # an antibody may lack the last position, because IMGT leaves gaps
            elif selected.chain == "antigen" and max(numbers) < selected.last:
                problems.append(f"no position A{selected.last} of {selected.text}")
    else:
        chosen = [site for site in sites if _in_any_region(site, options.regions)]
    mutable = tuple(site for site in chosen if site.wild_type != options.residues)
    if not mutable and not problems:
        other = f" other than {options.residues}" if chosen else ""
        problems.append(f"no residue{other} in {options.chosen}")
    return mutable, problems


def _domain_sites(name: str, index: int, chain: str) -> Iterator[Site]:
    """Yield the residues of a variable domain, in their order."""
    for position, at in locate_positions(chain, "heavy" if name == "heavy" else "light").items():
        site = Site(name, index, at, position, "", chain[at])
        region = next(region for region, last in IMGT_REGIONS if site.number <= last)
        yield site._replace(region=region.format(name[0]))


def _in_range(site: Site, asked: PositionRange) -> bool:
    inside = asked.chain == site.chain and asked.first <= site.number <= asked.last
    return inside and asked.insertion in (None, site.position.removeprefix(str(site.number)))


def _in_any_region(site: Site, regions: Collection[str]) -> bool:
    groups = {site.region}
    if site.region != "antigen":
        groups |= {"fv", "cdr" if site.region.startswith("cdr") else "framework"}
    return not groups.isdisjoint(regions)


NAME_ROLES = ("antibody_name", "id")
"""Roles of the columns that name a parent; the first that the table has is used."""
LONGEST_SITE = 60


def read_parents(options: ScanOptions, remembered: LayoutRecord) -> tuple[list[Parent], int]:
    """Read the parents that have residues to mutate; count and report those that have none."""
    table = read_pairs(_table(options), options, remembered=remembered)
    table.report_notes()
    names = _names(table) if options.parents is not None else ["the parent"]
    pairs = list(zip(table.antibodies.of_row, table.antigens.of_row, strict=True))
    # reversed: the first row of a pair is the last to be set
    first_rows = {pair: row for row, pair in reversed([*enumerate(pairs)])}
    parents: list[Parent] = []
    problems = Counter[str]()
    rows = sorted(first_rows.values())
    for row in bar(iterable=rows, desc="numbering", unit=" parents", delay=1):
        antibody = table.antibodies.chains[pairs[row][0]]
        antigen = table.antigens.chains[pairs[row][1]]
        sites, report = find_sites(antibody, antigen, options)
        problems.update(report)
        if sites:
            parents.append(Parent(names[row], antibody, antigen, sites))
    _report(problems, len(rows))
    if len(rows) < len(pairs):
        repeated = len(pairs) - len(rows)
        verb = "repeats" if repeated == 1 else "repeat"
        say(f"{counted(repeated, 'row')} {verb} a parent, which is scanned once")
    if not parents:
        msg = (
            f"nothing to scan: {'; '.join(problems)}; expected an antibody with residues in "
            f"{options.chosen}. Give another parent, --region or --positions."
        )
        raise PredictionError(msg)
    return parents, len(rows) - len(parents)


def _table(options: ScanOptions) -> TableLike:
    if options.parents is not None:
        source: TableLike = options.parents
        return source
    chains = {"heavy": options.heavy, "light": options.light}
    return pd.DataFrame({name: [chain] for name, chain in chains.items() if chain is not None})


def _names(table: SequenceTable) -> list[str]:
    numbers = [f"row {number}" for number in table.row_numbers]
    columns = [table.columns[role] for role in NAME_ROLES if role in table.columns]
    if not columns:
        return numbers
    names = [printable(name)[:LONGEST_SITE] for name in read_names(table.frame[columns[0]])]
    count = Counter(names)
    # a name has to tell its parent from the others, in the table and on the page
    for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
        if not name:
            names[place] = number
        elif count[name] > 1:
            names[place] = f"{name} ({number})"
    return names


def _report(problems: Mapping[str, int], parents: int) -> None:
    for problem, n in problems.items():
        if problem.startswith("no position") and n == parents:
            subject = "the parent has" if parents == 1 else "the parents have"
            msg = (
                f"--positions: {problem.removeprefix('no position ')}: {subject} no such residue; "
                "expected IMGT positions of the antibody, or residues of an antigen of one chain. "
                "Correct --positions, or use --region antigen for all chains."
            )
            raise PredictionError(msg)
        say(f"not scanned: {problem}, in {n:,} of {counted(parents, 'parent')}")
