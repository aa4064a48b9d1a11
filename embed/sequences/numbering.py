"""IMGT numbering of all antibodies of a table, kept for the next command.

Chains of the same lengths have the same positions, so a numbering is a layout of positions and the
place of its first residue.

N distinct chains, R chains of one layout, L residues.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag.core.cache import load_cached, store_cached
from abag.core.messages import bar
from abag.embed.sequences.domains import ChainName, locate_positions

if TYPE_CHECKING:
    from pathlib import Path

    from abag.embed.sequences.chains import Chains

CHAINS: tuple[ChainName, ChainName] = ("heavy", "light")
NUMBERING_VERSION = 2
"""Raise when `domains.locate_positions` or the format of what is cached changes."""
NO_DOMAIN = -1  # layout of a chain that cannot be numbered

Layout = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Numbered:
    """The IMGT positions of N distinct chains of one type."""

    chains: Sequence[str]
    layouts: Sequence[Layout]
    """Positions of the residues of a domain, from the N- to the C-terminus."""
    layout: NDArray[np.int32]  # layout of each chain, (N,), or `NO_DOMAIN`
    start: NDArray[np.int32]  # where the domain of each chain starts, (N,), from 0

    def by_layout(self) -> Iterator[tuple[Layout, NDArray[np.intp], NDArray[np.uint8]]]:
        """Yield each layout with its R chains, (R,), and their residues as ASCII codes, (R, L)."""
        order = np.argsort(self.layout, kind="stable")
        bounds = np.searchsorted(self.layout[order], np.arange(len(self.layouts) + 1))
        for layout, first, end in zip(self.layouts, bounds, bounds[1:], strict=False):
            rows = order[first:end]
            starts = zip(rows.tolist(), self.start[rows].tolist(), strict=True)
            domains = [self.chains[row][at : at + len(layout)] for row, at in starts]
            codes = np.frombuffer("".join(domains).encode("ascii"), np.uint8)
            yield layout, rows, codes.reshape(len(rows), len(layout))


def number_chains(chains: Iterable[str], name: ChainName) -> Numbered:
    """Number the distinct chains of one type, in their order; empty ones are left out."""
    distinct = [chain for chain in dict.fromkeys(chains) if chain]
    layouts: dict[Layout, int] = {}
    found = []
    for chain in bar(iterable=distinct, desc=f"numbering {name} chains", unit=" chains", delay=1):
        places = locate_positions(chain, name)
        layout = layouts.setdefault(tuple(places), len(layouts)) if places else NO_DOMAIN
        found.append((layout, next(iter(places.values()), 0)))
    layout_N, start_N = np.array(found, np.int32).reshape(-1, 2).T.copy()
    return Numbered(distinct, list(layouts), layout_N, start_N)


def number_antibodies(
    antibodies: Sequence[Chains], cache: Path | None
) -> Mapping[ChainName, Numbered]:
    """Number the chains of antibodies; the folder `cache` keeps what was numbered."""
    result: dict[ChainName, Numbered] = {}
    for at, name in enumerate(CHAINS):
        chains = sorted({antibody[at] for antibody in antibodies} - {""})
        program = f"{NUMBERING_VERSION} immunum {version('immunum')} {name}"
        entry = program.encode() + b"\0" + "\n".join(chains).encode("ascii")
        content = load_cached(cache, entry)
        if content is None:
            result[name] = found = number_chains(chains, name)
            answer = [found.layouts, found.layout.tolist(), found.start.tolist()]
            store_cached(cache, entry, json.dumps(answer).encode())
        else:
            layouts, layout, start = json.loads(content)
            arrays = np.array(layout, np.int32), np.array(start, np.int32)
            result[name] = Numbered(chains, [*map(tuple, layouts)], *arrays)
    return result
