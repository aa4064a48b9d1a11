"""IMGT numbering of all antibodies of a table, kept for the next command.

Chains of the same lengths have the same positions, so a numbering is a layout of positions and the
place of its first residue.

N distinct chains, R chains of one layout, L residues.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from subprocess import run
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from abag.core.cache import load_cached, store_cached
from abag.core.cores import count_cores
from abag.core.messages import bar
from abag.embed.tables.domains import ChainName, locate_positions

if TYPE_CHECKING:
    from pathlib import Path

    from abag.embed.tables.chains import Chains

CHAINS: tuple[ChainName, ChainName] = ("heavy", "light")
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


def number_chains(
    chains: Sequence[str],
    name: ChainName,
    *,
    worth_processes: int = WORTH_PROCESSES,
    part: int = PART,
) -> Numbers:
    """Number distinct chains of one type, `part` at a time, or more in each process.

    From `worth_processes` chains on they are numbered by other interpreters, because immunum holds
    the lock of this one. Unlike a pool of multiprocessing these need no guard in the script of the
    user.
    """
    many = len(chains) >= worth_processes and count_cores() > 1
    if many:  # as many processes as cores, if these are not too long without a sign
        share = -(-len(chains) // count_cores())
        part = min(max(share, part), PARTS_OF_PROCESS * part)
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
    antibodies: Sequence[Chains],
    cache: Path | None,
    *,
    worth_processes: int = WORTH_PROCESSES,
    part: int = PART,
) -> Mapping[ChainName, Numbered]:
    """Number the chains of antibodies; the folder `cache` keeps what was numbered.

    `worth_processes` and `part` are those of `number_chains`.
    """
    result: dict[ChainName, Numbered] = {}
    for at, name in enumerate(CHAINS):
        chains = sorted({antibody[at] for antibody in antibodies} - {""})
        program = f"{NUMBERING_VERSION} immunum {version('immunum')} {name}"
        entry = program.encode() + b"\0" + "\n".join(chains).encode("ascii")
        content = load_cached(cache, entry)
        if content is None:
            numbers = number_chains(chains, name, worth_processes=worth_processes, part=part)
            content = json.dumps(numbers).encode()
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
