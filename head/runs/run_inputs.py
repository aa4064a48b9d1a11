"""What a run is trained on: labelled pairs, their vectors, and the record of both."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import Store, open_store
from abag.head.data.labels import LabelledPairs, label_pairs, report_counts
from abag.head.data.vectors import StoredVectors, read_vectors

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from abag.embed.sequences.chains import Kind
    from abag.head.model.config import FitConfig


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The pairs of a table and the vectors of their unique sequences."""

    pairs: LabelledPairs
    store: Store
    vectors: dict[Kind, StoredVectors]


def read_inputs(
    table: Path | str | pd.DataFrame, store: Path | str, config: FitConfig
) -> RunInputs:
    """Read the labelled pairs of a table and their vectors, and report what was read.

    Raises
    ------
    AbagError
        If the table, a label or the store is invalid, or the store lacks a sequence.
    """
    pairs = label_pairs(read_pairs(table, config), config)
    report_counts(pairs)
    opened = open_store(store)
    kinds: tuple[Kind, ...] = ("antibody", "antigen")
    vectors = {
        kind: read_vectors(opened, pairs.table, kind, **config.vectors_of(kind)) for kind in kinds
    }
    return RunInputs(pairs, opened, vectors)


def describe_inputs(config: FitConfig, inputs: RunInputs) -> dict[str, Any]:
    """Return the content of config.json: the options, and what identifies the inputs."""
    pairs, vectors = inputs.pairs, inputs.vectors
    digest = blake2b(digest_size=16)
    for array in (pairs.keys("antibody"), pairs.keys("antigen"), pairs.pkd, pairs.censored):
        digest.update(np.ascontiguousarray(array).data)
    return config.to_json() | {
        "antibody_encoder": vectors["antibody"].folder.name,
        "antibody_fingerprint": vectors["antibody"].folder.fingerprint,
        "antigen_encoder": vectors["antigen"].folder.name,
        "antigen_fingerprint": vectors["antigen"].folder.fingerprint,
        "store": str(inputs.store.path),
        "pairs": len(pairs),
        "pairs_digest": digest.hexdigest(),
    }
