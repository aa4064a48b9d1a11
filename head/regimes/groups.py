"""Groups of a table's pairs that belong together, computed on first use.

Sequences and pairs are in the order of their keys, so the numbers of the groups do not depend on
the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints
from abag.core.cache import cache_dir, keep, kept
from abag.core.messages import say
from abag.head.clustering.clones import HEAVY_IDENTITY, clone_clusters
from abag.head.clustering.clusters import (
    antibody_clusters,
    antigen_clusters,
    cdrh3_clusters,
    contained_peptides,
    join_clusters,
    number_by_appearance,
)
from abag.head.clustering.mmseqs import mmseqs_cluster, mmseqs_version

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.regimes.split_options import ComparedRegion, SplitOptions


CLUSTERS_VERSION = 1
"""Raise when the built-in clusters change, so that cached ones are not used."""
IDENTITY_LEVELS: Mapping[Kind, tuple[float, ...]] = {
    "antibody": (0.95, 0.9, 0.8),
    "antigen": (0.9, 0.7, 0.4),
}
"""Identities at which clusters and leaks are counted, in addition to that of the split."""
FEW_SEQUENCES: Mapping[Kind, int] = {"antibody": 10_000, "antigen": 3_000}
"""Above this, only the identity of the split is counted: lower ones would take minutes."""
MANY_SEQUENCES: Mapping[Kind, int] = {"antibody": 150_000, "antigen": 5_000}
"""Above this, ``auto`` uses MMseqs2 if it is installed: the exact method would take minutes."""


@dataclass(slots=True)
class PairGroups:
    """Groups of P pairs, by kind of sequence and identity."""

    pairs: LabelledPairs
    options: SplitOptions
    cache: Path | None
    """Folder of cached clusters; None: they are not kept."""
    tools: dict[str, str] = field(default_factory=dict)
    """What computed the clusters of each kind."""
    _labels: dict[tuple[Kind, float], Ints] = field(default_factory=dict)
    _found: dict[tuple[Kind, float], Ints] = field(default_factory=dict)
    _peptides: Ints | None = None
    _clones: Ints | None = None

    def identity(self, kind: Kind) -> float:
        """Return the identity from which the split keeps sequences of a kind together."""
        options = self.options
        return options.antibody_identity if kind == "antibody" else options.antigen_identity

    def are_clustered(self, kind: Kind) -> bool:
        """Whether sequences of a kind are clustered where the split may not need it."""
        n, name = len(self.pairs.table.sequences[kind].keys), self.options.split_name
        return n <= MANY_SEQUENCES[kind] or name in ("auto", kind, "both")

    def of_method(self, method: str) -> Ints:
        """Return the group of each pair, shape (P,), under ``random``, ``antibody`` or ``antigen``.

        Groups of antibodies include clones if variable domains are compared.

        Raises
        ------
        MMseqsFailed
            If MMseqs2 is asked for and missing, or fails.
        """
        if method == "random":
            n_antigens = len(self.pairs.table.sequences["antigen"].keys)
            return number_by_appearance(self.pairs.antibody * n_antigens + self.pairs.antigen)
        kind: Kind = "antibody" if method == "antibody" else "antigen"
        labels = self._clusters(kind, self.identity(kind))
        if kind == "antibody" and self.options.antibody_by == "fv":
            return join_clusters(labels, self.clones)
        return labels

    @property
    def clones(self) -> Ints:
        """Cluster of clones of each pair's antibody, shape (P,)."""
        if self._clones is None:
            unique = self.pairs.table.antibodies
            self._clones = cached_clones(unique.keys, unique.chains, self.cache)
        return self._clones[self.pairs.antibody]

    def near_antigens(self, identity: float) -> Ints:
        """Return the group of each pair, (P,), by antigens that are at least so identical."""
        return self._clusters("antigen", max(identity, self.identity("antigen")))

    def levels(self) -> dict[str, dict[str, Ints]]:
        """Return the group of each pair, shape (P,), by kind (or ``pair``) and closeness.

        Above `FEW_SEQUENCES` only the identity of the split is included, above `MANY_SEQUENCES`
        only if the split needed it.
        """
        result: dict[str, dict[str, Ints]] = {"pair": {"exact": self.of_method("random")}}
        for kind in IDENTITY_LEVELS:
            wanted = self._counted(kind)
            if len(self.pairs.table.sequences[kind].keys) > MANY_SEQUENCES[kind]:
                wanted = [t for t in wanted if (kind, t) in self._found]
            result[kind] = {"exact": self.pairs.index(kind)}
            result[kind] |= {f"{t:g}": self._clusters(kind, t) for t in wanted}
        antibody, antigen = (
            result[kind].get(f"{self.identity(kind):g}") for kind in IDENTITY_LEVELS
        )
        if antibody is not None and antigen is not None:
            result["pair"]["near"] = antibody * len(antigen) + antigen
        return result

    def cluster_sizes(self) -> dict[str, dict[str, dict[str, float]]]:
        """Count the clusters by kind and closeness, and the share of the pairs in the largest."""
        return {
            kind: {closeness: _sizes(labels) for closeness, labels in levels.items()}
            for kind, levels in self.levels().items()
            if kind != "pair"
        }

    @property
    def peptides(self) -> Ints:
        """Unique antigens, (K, 2), of which the first is a peptide of the second."""
        if self._peptides is None:
            self._peptides = contained_peptides(self.pairs.table.antigens.chains)
        return self._peptides

    def _counted(self, kind: Kind) -> list[float]:
        """Identities at which clusters are counted, from the strictest on."""
        own = self.identity(kind)
        n = len(self.pairs.table.sequences[kind].keys)
        return sorted({*IDENTITY_LEVELS[kind], own} if n <= FEW_SEQUENCES[kind] else {own})[::-1]

    def _clusters(self, kind: Kind, identity: float) -> Ints:
        """Cluster of each pair's sequence, shape (P,)."""
        if (kind, identity) not in self._found:
            labels = self._load_or_compute(kind, identity)[self.pairs.index(kind)]
            self._found[kind, identity] = number_by_appearance(labels)
        return self._found[kind, identity]

    def _load_or_compute(self, kind: Kind, identity: float) -> Ints:
        """Cluster of each unique sequence; one search finds those of all counted identities."""
        unique = self.pairs.table.sequences[kind]
        chosen = choose_method(kind, len(unique.keys), self.options.antibody_by)
        self.tools[kind] = chosen.name
        if (kind, identity) not in self._labels:
            is_exact = not chosen.name.startswith("MMseqs2")
            wanted = {identity, *self._counted(kind)} if is_exact else {identity}
            found = cached_clusters(chosen, unique.keys, unique.chains, wanted, self.cache)
            self._labels |= {(kind, t): labels for t, labels in found.items()}
        return self._labels[kind, identity]


def with_clusters(
    pairs: LabelledPairs, options: SplitOptions, cache: Path | None = None
) -> LabelledPairs:
    """Return the pairs with the clusters of their sequences at the identities of the split.

    Where clustering would take minutes and the split does not need it, each antigen remains a
    cluster of its own, and antibodies have no clusters. `cache` is as in `PairGroups`.
    """
    pairs = with_antibody_clusters(pairs, PairGroups(pairs, options, cache))
    return with_antigen_clusters(pairs, PairGroups(pairs, options, cache))


def with_antibody_clusters(pairs: LabelledPairs, groups: PairGroups) -> LabelledPairs:
    """Return the pairs with the clusters of their antibodies, see `with_clusters`."""
    if groups.are_clustered("antibody"):
        return replace(pairs, antibody_cluster=groups.of_method("antibody"))
    return pairs


def with_antigen_clusters(pairs: LabelledPairs, groups: PairGroups) -> LabelledPairs:
    """Return the pairs with the clusters of their antigens, see `with_clusters`."""
    if groups.are_clustered("antigen"):
        return replace(pairs, antigen_cluster=groups.of_method("antigen"))
    n = len(pairs.table.antigens.keys)
    say(f"{n:,} antigens are not clustered: intervals treat each as independent of the others")
    return replace(pairs, antigen_cluster=pairs.antigen)


class ClusterMethod(NamedTuple):
    """How sequences are clustered."""

    name: str
    """For the summary and the cache."""
    call: Callable[[Sequence[Chains], Sequence[float]], list[Ints]]


def choose_method(kind: Kind, n: int, antibody_by: ComparedRegion) -> ClusterMethod:
    """Choose how n sequences of a kind are clustered: many by MMseqs2 if it is installed."""
    method: Callable[..., list[Ints]] = antigen_clusters
    if kind == "antibody":
        if antibody_by == "cdrh3":
            return ClusterMethod("built-in, CDRH3", cdrh3_clusters)
        method = antibody_clusters
    if n > MANY_SEQUENCES[kind] and (found := mmseqs_version()):
        return ClusterMethod(f"MMseqs2 {found}", partial(method, method=mmseqs_cluster))
    return ClusterMethod("built-in", method)


def cached_clusters(
    method: ClusterMethod,
    keys: NDArray[np.uint8],
    chains: Sequence[Chains],
    identities: Iterable[float],
    cache: Path | None,
) -> dict[float, Ints]:
    """Return the cluster of each of N sequences, shape (N,), at each identity.

    One search finds those that are not in the folder `cache`, and they are kept there. `keys`, of
    shape (N, 16), identify the sequences.
    """
    levels = sorted(identities, reverse=True)
    entries = {t: _entry(f"{method.name} {t!r}", keys) for t in levels}
    known = {
        t: labels for t in levels if (labels := _read(cache, entries[t], len(keys))) is not None
    }
    missing = [t for t in levels if t not in known]
    found = method.call(chains, missing) if missing else []
    for t, labels in zip(missing, found, strict=True):
        known[t] = labels
        keep(cache, entries[t], labels.astype(np.int64).tobytes())
    return known


def cached_clones(keys: NDArray[np.uint8], chains: Sequence[Chains], cache: Path | None) -> Ints:
    """Return the cluster of clones of each of N antibodies, (N,); as `cached_clusters`."""
    numbering = None if cache is None else cache_dir() / "numbering"
    method = ClusterMethod("clones", lambda chains, _: [clone_clusters(chains, numbering)])
    return cached_clusters(method, keys, chains, [HEAVY_IDENTITY], cache)[HEAVY_IDENTITY]


def _entry(name: str, keys: NDArray[np.uint8]) -> bytes:
    """Return all that clusters depend on; clones and CDRH3 depend on the numbering."""
    versions = f"{CLUSTERS_VERSION} immunum {version('immunum')}"
    return f"{versions} {name}".encode() + b"\0" + keys.tobytes()


def _read(cache: Path | None, entry: bytes, n: int) -> Ints | None:
    """Return the kept clusters of n sequences; None if there are none."""
    content = kept(cache, entry)
    return np.frombuffer(content, np.int64).copy() if content and len(content) == 8 * n else None


def _sizes(labels: Ints) -> dict[str, float]:
    sizes = np.bincount(number_by_appearance(labels))
    return {"clusters": len(sizes), "largest_share": float(sizes.max() / sizes.sum())}
