"""Groups of a table's pairs that belong together, computed on first use.

Sequences and pairs are in the order of their keys, so the numbers of the groups do not depend on
the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints
from abag.core.cache import cache_dir, load_cached, store_cached
from abag.core.messages import say
from abag.head.regimes.clusters import (
    antibody_clusters,
    antigen_clusters,
    clone_clusters,
    contained_peptides,
)
from abag.head.regimes.near_duplicates import number_by_appearance

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.regimes.split_options import SplitOptions


CLUSTERS_VERSION = 2
"""Raise when the clusters change, so that cached ones are not used."""
KNOWN_ANTIGEN = 0.9
"""Identity to a training antigen from which an antigen is known."""
MANY_SEQUENCES: Mapping[Kind, int] = {"antibody": 150_000, "antigen": 5_000}
"""Above this, clustering takes minutes: it is left out where the split does not need it."""


@dataclass
class PairGroups:
    """Groups of P pairs, (P,) each: equal for pairs that belong together."""

    pairs: LabelledPairs
    options: SplitOptions
    cache: Path | None = None
    """Folder of cached clusters; None: they are not kept."""

    @cached_property
    def pair(self) -> Ints:
        """Equal for rows with the same two sequences."""
        n_antigens = len(self.pairs.table.antigens.keys)
        return number_by_appearance(self.pairs.antibody * n_antigens + self.pairs.antigen)

    @cached_property
    def clones(self) -> Ints:
        """Clusters of antibodies by clones."""
        return self._of_pairs("antibody", self._clones)

    @cached_property
    def antibody(self) -> Ints:
        """Clusters of antibodies by identity and clones."""
        unique, identity = self.pairs.table.antibodies, self.options.antibody_identity
        return self._of_pairs(
            "antibody",
            self._cached(
                "antibody",
                f"{identity!r}",
                lambda: antibody_clusters(unique.chains, identity, self._clones),
            ),
        )

    @cached_property
    def antigen(self) -> Ints:
        """Clusters of antigens by identity."""
        return self._of_pairs("antigen", self._antigens)

    @cached_property
    def near_antigen(self) -> Ints:
        """Clusters of antigens of which one makes the others known."""
        unique, identity = self.pairs.table.antigens, self.options.antigen_identity
        if identity >= KNOWN_ANTIGEN:
            return self.antigen
        return self._of_pairs(
            "antigen",
            self._cached(
                "antigen",
                f"{KNOWN_ANTIGEN!r} within {identity!r}",
                lambda: antigen_clusters(unique.chains, KNOWN_ANTIGEN, self._antigens),
            ),
        )

    def of_method(self, method: str) -> Ints:
        """Return the groups that ``random``, ``antibody`` or ``antigen`` keeps in one part."""
        found: Ints = getattr(self, "pair" if method == "random" else method)
        return found

    def are_clustered(self, kind: Kind) -> bool:
        """Whether sequences of a kind are clustered where the split may not need it."""
        n, name = len(self.pairs.table.sequences[kind].keys), self.options.split_name
        return n <= MANY_SEQUENCES[kind] or name in ("auto", kind, "both")

    def levels(self) -> dict[str, dict[str, Ints]]:
        """Return the group of each pair by kind (or ``pair``) and closeness, for leaks."""
        result = {"pair": {"exact": self.pair}}
        result |= {kind: {"exact": self.pairs.index(kind)} for kind in MANY_SEQUENCES}
        clustered = [kind for kind in MANY_SEQUENCES if self.are_clustered(kind)]
        if "antibody" in clustered:
            result["antibody"][f"{self.options.antibody_identity:g}"] = self.antibody
            result["antibody"]["clone"] = self.clones
        if "antigen" in clustered:
            result["antigen"][f"{KNOWN_ANTIGEN:g}"] = self.near_antigen
            result["antigen"][f"{self.options.antigen_identity:g}"] = self.antigen
        if len(clustered) == 2:
            result["pair"]["near"] = self.antibody * len(self.antigen) + self.antigen
        return result

    def cluster_sizes(self) -> dict[str, dict[str, dict[str, float]]]:
        """Count the clusters by kind and closeness, and the share of the pairs in the largest."""
        return {
            kind: {closeness: _sizes(labels) for closeness, labels in levels.items()}
            for kind, levels in self.levels().items()
            if kind != "pair"
        }

    @cached_property
    def peptides(self) -> Ints:
        """Unique antigens, (K, 2), of which the first is a peptide of the second."""
        is_small = self.are_clustered("antigen")
        return contained_peptides(self.pairs.table.antigens.chains if is_small else ())

    @cached_property
    def _clones(self) -> Ints:
        chains = self.pairs.table.antibodies.chains
        numbering = None if self.cache is None else cache_dir() / "numbering"
        return self._cached("antibody", "clones", lambda: clone_clusters(chains, numbering))

    @cached_property
    def _antigens(self) -> Ints:
        unique, identity = self.pairs.table.antigens, self.options.antigen_identity
        return self._cached(
            "antigen", f"{identity!r}", lambda: antigen_clusters(unique.chains, identity)
        )

    def _cached(self, kind: Kind, name: str, compute: Callable[[], Ints]) -> Ints:
        keys = self.pairs.table.sequences[kind].keys
        return cached_clusters(f"{kind} {name}", keys, compute, self.cache)

    def _of_pairs(self, kind: Kind, labels: Ints) -> Ints:
        return number_by_appearance(labels[self.pairs.index(kind)])


def with_clusters(groups: PairGroups) -> LabelledPairs:
    """Return the pairs with the clusters of their sequences at the identities of the split.

    Where clustering would take minutes and the split does not need it, each antigen remains a
    cluster of its own, and antibodies have no clusters.
    """
    pairs = groups.pairs
    if groups.are_clustered("antibody"):
        pairs = replace(pairs, antibody_cluster=groups.antibody)
    if groups.are_clustered("antigen"):
        return replace(pairs, antigen_cluster=groups.antigen)
    n = len(pairs.table.antigens.keys)
    say(f"{n:,} antigens are not clustered: intervals treat each as independent of the others")
    return replace(pairs, antigen_cluster=pairs.antigen)


def cached_clusters(
    name: str, keys: NDArray[np.uint8], compute: Callable[[], Ints], cache: Path | None
) -> Ints:
    """Return the cluster of each of N sequences, (N,), computed once for their keys, (N, 16)."""
    # clones depend on the numbering
    versions = f"{CLUSTERS_VERSION} immunum {version('immunum')}"
    entry = f"{versions} {name}".encode() + b"\0" + keys.tobytes()
    content = load_cached(cache, entry)
    if content and len(content) == 8 * len(keys):
        return np.frombuffer(content, np.int64).copy()
    labels = compute()
    store_cached(cache, entry, labels.astype(np.int64).tobytes())
    return labels


def _sizes(labels: Ints) -> dict[str, float]:
    sizes = np.bincount(number_by_appearance(labels))
    return {"clusters": len(sizes), "largest_share": float(sizes.max() / sizes.sum())}
