"""Variable domains of all antibodies of a table: their types, places and IMGT numbering.

The numbering is kept for the next command. Chains of the same lengths have the same positions, so
it is a layout of positions and the place of the first residue of each chain. N distinct chains, R
chains of one layout, L residues.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from subprocess import run
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag.core.cores import count_cores
from abag.core.files import load_cached, store_cached
from abag.core.messages import bar
from abag.embed.tables.chains import (
    BEFORE_CYSTEINE_23,
    CHAIN_ROLES,
    CONSTANT_MOTIF,
    J_SEGMENT,
    WHOLE_DOMAIN,
    ChainName,
    ChainPlaces,
    Chains,
    find_domains,
    locate_positions,
    split_domains,
    variable_domain,
)

NUMBERING_VERSION = 2
"""Raise when `domains.locate_positions` or the format of what is cached changes."""
WORTH_PROCESSES = 20_000
"""Chains from which on processes save more time than they take to start."""
PART = 2_000
"""Chains that are numbered before the bar moves."""
PARTS_OF_PROCESS = 8
"""Most of these that a process numbers: it takes as long to start as to number two of them."""
NO_DOMAIN = -1  # layout of a chain that cannot be numbered

Positions: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = tuple[Sequence[Positions], Sequence[int], Sequence[int]]
"""Layouts, and by chain its layout and where its domain starts."""


J_MOTIFS: Mapping[ChainName, str] = {
    "heavy": "WG.G.{4}V[ST][SAP]",
    "light": "FG.G[TS].[LV].[IVL](?:[^S]|$)",
}
"""Framework 4: WGQGTLVTVSS, FGQGTKVEIK, FGGGTKLTVL. Arrow reads these too, without look-ahead."""
_ANY_J = re.compile("|".join(J_MOTIFS.values()))
_CONSERVED = re.compile("C.{7,25}W.{45,85}C.{3,60}(?P<j>[WF]G.G)")
"""Cysteine 23, tryptophan 41, cysteine 104 and the J segment motif."""
_CONSTANT = re.compile(CONSTANT_MOTIF)
LEAST_FLANK = 4  # fewer residues may be those by which the ends of domains vary
_VARIABLE_DOMAIN = re.compile(
    "[^C]{18,23}C.{7,25}W.{45,85}C.{3,40}(?:WG.G.{4}V[ST][SAP]|FG.G[TS].[LV].[IVL][KLE])"
)
"""A chain that `variable_domain` need not look at."""
EARLIEST_CONSTANT = 95  # residues before which no constant domain starts
CHAIN_TYPES: tuple[list[str], ...] = ([], ["heavy"], ["light"])
"""Types of the variable domains of a chain that `find_types` can tell, by number."""
HEAVY_TYPE = 1
LIGHT_TYPE = 2
UNCLEAR_TYPE = len(CHAIN_TYPES)
"""Type of a chain that only numbering can tell."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """The IMGT positions of N distinct chains of one type."""

    chains: Sequence[str]
    layouts: Sequence[Positions]
    """Positions of the residues of a domain, from the N- to the C-terminus."""
    layout: NDArray[np.int32]
    """Positions of each chain, (N,), or `NO_DOMAIN`."""
    start: NDArray[np.int32]
    """Where the domain of each chain starts, (N,), from 0."""

    def by_layout(self) -> Iterator[tuple[Positions, NDArray[np.intp], NDArray[np.uint8]]]:
        """Yield each layout with its R chains, (R,), and their residues as ASCII codes, (R, L)."""
        order = np.argsort(self.layout, kind="stable")
        bounds = np.searchsorted(self.layout[order], np.arange(len(self.layouts) + 1))
        for layout, first, end in zip(self.layouts, bounds, bounds[1:], strict=False):
            rows = order[first:end]
            starts = zip(rows.tolist(), self.start[rows].tolist(), strict=True)
            domains = [self.chains[row][at : at + len(layout)] for row, at in starts]
            codes = np.frombuffer("".join(domains).encode("ascii"), np.uint8)
            yield layout, rows, codes.reshape(len(rows), len(layout))


def number_chains(chains: Sequence[str], name: ChainName) -> Numbers:
    """Number distinct chains of one type, `PART` at a time, or more in each process.

    From `WORTH_PROCESSES` chains on they are numbered by other interpreters, because immunum holds
    the lock of this one. Unlike a pool of multiprocessing these need no guard in the script of the
    user.
    """
    many = len(chains) >= WORTH_PROCESSES and count_cores() > 1
    part = PART
    if many:  # as many processes as cores, if these are not too long without a sign
        share = -(-len(chains) // count_cores())
        part = min(max(share, PART), PARTS_OF_PROCESS * PART)
    parts = [chains[at : at + part] for at in range(0, len(chains), part)]
    number = partial(_ask if many else _number, name)
    layouts: dict[Positions, int] = {}
    layout: list[int] = []
    start: list[int] = []
    with (
        ThreadPoolExecutor(count_cores()) as threads,
        bar(total=len(chains), desc=f"numbering {name} chains", unit=" chains", delay=1) as drawn,
    ):
        numbered = threads.map(number, parts) if many else map(number, parts)
        for part_layouts, part_layout, part_start in numbered:
            # numbers of the part's layouts among those of all parts
            renumbered = {NO_DOMAIN: NO_DOMAIN}
            for i, positions in enumerate(part_layouts):
                renumbered[i] = layouts.setdefault(tuple(positions), len(layouts))
            layout += [renumbered[i] for i in part_layout]
            start += part_start
            drawn.update(len(part_layout))
    return list(layouts), layout, start


def _number(name: ChainName, chains: Sequence[str]) -> Numbers:
    layouts: dict[Positions, int] = {}
    layout: list[int] = []
    start: list[int] = []
    for chain in chains:
        places = locate_positions(chain, name)
        layout.append(layouts.setdefault(tuple(places), len(layouts)) if places else NO_DOMAIN)
        start.append(next(iter(places.values()), 0))
    return list(layouts), layout, start


def _ask(name: ChainName, chains: Sequence[str]) -> Numbers:
    # -P: else a file in the current folder could be imported in place of a module
    command = [sys.executable, "-P", "-m", __name__, name]
    done = run(command, input=json.dumps(chains), capture_output=True, text=True)
    if done.returncode:  # such as abag on a path that only this interpreter has
        return _number(name, chains)
    return cast("Numbers", json.loads(done.stdout))


def number_antibodies(
    antibodies: Sequence[Chains], cache: Path | None
) -> Mapping[ChainName, Numbered]:
    """Number the chains of antibodies; the folder `cache` keeps what was numbered."""
    result: dict[ChainName, Numbered] = {}
    for at, name in enumerate(CHAIN_ROLES):
        chains = sorted({antibody[at] for antibody in antibodies} - {""})
        program = f"{NUMBERING_VERSION} immunum {version('immunum')} {name}"
        entry = program.encode() + b"\0" + "\n".join(chains).encode("ascii")
        content = load_cached(cache, entry)
        if content is None:
            content = json.dumps(number_chains(chains, name)).encode()
            store_cached(cache, entry, content)
        layouts, layout, start = json.loads(content)
        result[name] = Numbered(
            chains,
            [*map(tuple, layouts)],
            np.array(layout, np.int32),
            np.array(start, np.int32),
        )
    return result


if __name__ == "__main__":
    json.dump(_number(cast("ChainName", sys.argv[1]), json.load(sys.stdin)), sys.stdout)


def find_flanked(chains: Sequence[str], name: ChainName) -> list[int]:
    """Find the chains with residues beside their variable domain, by index.

    These are leaders, tags, linkers and constant domains, but no second variable domain.
    """
    usual = BEFORE_CYSTEINE_23["H" if name == "heavy" else "K"]
    flanked = []
    for number, chain in enumerate(chains):
        domain = _CONSERVED.search(chain)
        if domain is None:
            is_flanked = _CONSTANT.search(chain, EARLIEST_CONSTANT) is not None
        else:
            behind = chain[domain.start("j") + J_SEGMENT[name] :]
            is_tail = len(behind) >= LEAST_FLANK and not _ANY_J.search(behind)
            is_flanked = is_tail or domain.start() - usual >= LEAST_FLANK
        if is_flanked:
            flanked.append(number)
    return flanked


def have_motif(motif: str, texts: pa.Array) -> NDArray[np.bool_]:
    """Tell which texts have a motif, in half the time of a search per text; shape (N,)."""
    return np.asarray(pc.match_substring_regex(texts, motif))


def find_types(chains: Sequence[str]) -> NDArray[np.int64]:
    """Tell the `CHAIN_TYPES` of chains by motifs, shape (N,), or `UNCLEAR_TYPE`."""
    array = pa.array(chains, pa.large_string())
    length_N = np.asarray(pc.binary_length(array))
    heavy_N = have_motif(J_MOTIFS["heavy"], array)
    light_N = have_motif(J_MOTIFS["light"], array)
    # a longer chain may have a second domain, unless a constant one follows the first
    is_single_N = length_N < 2 * WHOLE_DOMAIN
    long = np.flatnonzero(~is_single_N)
    ends_of_long = pc.utf8_slice_codeunits(array.take(pa.array(long)), EARLIEST_CONSTANT)
    is_single_N[long] = have_motif(CONSTANT_MOTIF, ends_of_long)
    is_clear_N = is_single_N & (heavy_N ^ light_N)
    type_N = np.where(heavy_N, HEAVY_TYPE, LIGHT_TYPE)
    type_N = np.where(is_clear_N, type_N, UNCLEAR_TYPE)
    return np.where(length_N < WHOLE_DOMAIN, 0, type_N)


def chain_types(chain: str, type_number: int | None = None) -> list[str]:
    """Name the type of each variable domain of a chain; `type_number` is that of `find_types`."""
    number = find_types([chain])[0] if type_number is None else type_number
    if number == UNCLEAR_TYPE:
        return [domain.chain for domain in find_domains(chain)]
    return CHAIN_TYPES[number]


def domain_types(text: str) -> list[str]:
    """Name the type of each variable domain in the chains of a text, joined by ``|`` or ``:``."""
    types: list[str] = []
    for chain in re.split("[|:]", text):
        types += chain_types(chain)
    return types


def place_chains(
    chains: Chains, types: tuple[list[str], list[str]], places: ChainPlaces
) -> tuple[Chains, str]:
    """Return the chains of these types in their places, if asked to, and what was found."""
    heavy, light = chains
    if types in ((["light"], ["heavy"]), (["light"], []), ([], ["heavy"])):
        return ((light, heavy), "exchanged") if places == "auto" else (chains, "misplaced")
    if types in ((["heavy"], ["heavy"]), (["light"], ["light"])):
        return chains, "same type"
    if max(map(len, types)) > 1:
        if places == "auto" and not (heavy and light):
            split = split_domains(heavy or light)
            return (split.heavy, split.light), split.form
        return chains, "two domain"
    return chains, ""


def cut_to_domains(chains: Chains) -> tuple[Chains, list[str]]:
    """Cut chains to their variable domains if these are certain, and say what was done."""
    kept: list[str] = []
    words: list[str] = []
    for text in chains:
        is_domain = not text or _VARIABLE_DOMAIN.fullmatch(text)
        domain = text if is_domain else variable_domain(text)
        if domain is None:
            words = ["uncut"]
        kept.append(text if domain is None else domain)
    if tuple(kept) != chains:
        words.append("cut")
    return tuple(kept), words
