"""The groups that a table's pairs fall into, computed when first asked for.

Clusters are numbered in the order of the pairs, which is that of their keys: the same pairs give
the same numbers whatever the order of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.files import replacing
from abag.core.keys import sort_keys
from abag.head.clustering.clusters import (
    antibody_clusters,
    antigen_clusters,
    cdrh3_clusters,
    distance_to_parent,
)
from abag.head.clustering.linkage import cluster, number_by_appearance
from abag.head.clustering.mmseqs import mmseqs_cluster, mmseqs_version

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.options import AntibodyRegion, ClusterTool

Ints: TypeAlias = NDArray[np.int64]
Side: TypeAlias = Literal["antibody", "antigen"]

METHOD = 1
"""Raise when the built-in clusters change: cached ones are then not read."""
LEVELS: Mapping[Side, tuple[float, ...]] = {
    "antibody": (0.95, 0.9, 0.8),
    "antigen": (0.9, 0.7, 0.4),
}
"""Identities at which clusters and leaks are counted beside the split's own."""
SOME: Mapping[Side, int] = {"antibody": 5_000, "antigen": 1_000}
"""Unique sequences beyond which more identities than the split's own would cost minutes."""
MANY: Mapping[Side, int] = {"antibody": 20_000, "antigen": 2_000}
"""Unique sequences beyond which the exact method takes minutes: MMseqs2 then, if installed."""


@dataclass(slots=True)
class PairGroups:
    """Groups of P pairs, by kind and identity."""

    pairs: LabelledPairs
    identity: Mapping[Side, float]
    antibody_by: AntibodyRegion
    tool: ClusterTool
    cache: Path | None
    tools: dict[str, str] = field(default_factory=dict)
    """What computed the clusters of each kind."""
    _found: dict[tuple[Side, float, ClusterTool], Ints] = field(default_factory=dict)

    def of(self, kind: str) -> Ints:
        """Group of each pair under a split, (P,); ``both`` goes by its antigens."""
        if kind == "random":
            return number_by_appearance(
                self.pairs.antibody * len(self.chains("antigen")) + self.pairs.antigen
            )
        side: Side = "antibody" if kind == "antibody" else "antigen"
        return self._at(side, self.identity[side], self.tool)

    def levels(self) -> dict[str, dict[str, Ints]]:
        """Labels of the pairs by kind and closeness: the basis of leak counts.

        They come from the exact method, whatever the split used. Above `SOME` sequences only the
        split's own identity is there, above `MANY` only if the split needed it anyway.
        """
        result: dict[str, dict[str, Ints]] = {"pair": {"exact": self.of("random")}}
        for side in LEVELS:
            own = self.identity[side]
            few = len(self.chains(side)) <= SOME[side]
            wanted = sorted({*LEVELS[side], own} if few else {own}, reverse=True)
            tool: ClusterTool = "builtin"
            if len(self.chains(side)) > MANY[side]:
                tool = self.tool
                wanted = [t for t in wanted if (side, t, tool) in self._found]
            result[side] = {"exact": self.index(side)}
            result[side] |= {f"{t:g}": self._at(side, t, tool) for t in wanted}
        near = [result[side].get(f"{self.identity[side]:g}") for side in LEVELS]
        if near[0] is not None and near[1] is not None:
            result["pair"]["near"] = near[0] * len(near[1]) + near[1]
        return result

    def clusters(self) -> dict[str, dict[str, dict[str, float]]]:
        """Sensitivity: the number of clusters and the largest one's share of the pairs."""
        return {
            side: {at: _sizes(labels) for at, labels in levels.items()}
            for side, levels in self.levels().items()
            if side != "pair"
        }

    def _at(self, side: Side, identity: float, tool: ClusterTool) -> Ints:
        """Cluster of each pair's antibody or antigen at an identity, (P,)."""
        if (side, identity, tool) not in self._found:
            labels = self._read_or_compute(side, identity, tool)
            self._found[side, identity, tool] = number_by_appearance(labels[self.index(side)])
        return self._found[side, identity, tool]

    def mutations(self) -> Ints:
        """Edits between each pair's antibody and the consensus of its cluster, (P,)."""
        antibodies = self.chains("antibody")
        labels = self._read_or_compute("antibody", self.identity["antibody"], self.tool)
        return distance_to_parent(antibodies, labels)[self.pairs.antibody]

    def chains(self, side: Side) -> list[tuple[str, ...]]:
        """Unique sequences of one kind."""
        table = self.pairs.table
        return table.antibodies.chains if side == "antibody" else table.antigens.chains

    def index(self, side: Side) -> Ints:
        """Which unique sequence each pair has, (P,)."""
        return self.pairs.antibody if side == "antibody" else self.pairs.antigen

    def _read_or_compute(self, side: Side, identity: float, tool: ClusterTool) -> Ints:
        """Cluster of each unique sequence."""
        method, name = self._method(side, tool)
        if tool == self.tool:
            self.tools[side] = name
        table = self.pairs.table
        keys = (table.antibodies if side == "antibody" else table.antigens).keys
        order, _ = sort_keys(keys)
        path = self._cache_path(f"{METHOD} {name} {identity:g}", keys[order])
        found = _load(path, len(keys))
        if found is None:
            chains = self.chains(side)
            found = method([chains[i] for i in order], identity)
            _save(path, found)
        labels = np.empty(len(order), np.int64)
        labels[order] = found
        return labels

    def _method(self, side: Side, tool: ClusterTool) -> tuple[Callable[[Any, float], Ints], str]:
        by_cdrh3 = side == "antibody" and self.antibody_by == "cdrh3"
        many = len(self.chains(side)) > MANY[side]
        version = (
            mmseqs_version() if self.tool == "mmseqs" or (self.tool == "auto" and many) else None
        )
        if by_cdrh3:
            return cdrh3_clusters, "built-in, CDRH3"
        whole = antibody_clusters if side == "antibody" else antigen_clusters
        if tool == "mmseqs" or version:
            return lambda chains, t: whole(chains, t, mmseqs_cluster), f"MMseqs2 {version}"
        return lambda chains, t: whole(chains, t, cluster), "built-in"

    def _cache_path(self, what: str, keys: NDArray[np.uint8]) -> Path | None:
        if self.cache is None:
            return None
        digest = hashlib.blake2b(what.encode() + b"\0" + keys.tobytes(), digest_size=16)
        return self.cache / f"clusters-{digest.hexdigest()}.npy"


def _load(path: Path | None, sequences: int) -> Ints | None:
    """Read kept clusters; a file that is absent or damaged is as good as none."""
    if path is None:
        return None
    try:
        found: Ints = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (sequences,) else None


def _save(path: Path | None, labels: Ints) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, concurrent=True) as partial, partial.open("wb") as file:
        np.save(file, labels, allow_pickle=False)


def _sizes(labels: Ints) -> dict[str, float]:
    sizes = np.bincount(number_by_appearance(labels))
    return {"clusters": len(sizes), "largest_share": float(sizes.max() / sizes.sum())}
