"""The stored vectors of a table's unique sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag.embed.store.store import folder_with

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.store import Store


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """The vectors of all unique antibodies, or of all unique antigens, of a table."""

    folder: EncoderFolder
    pooling: str
    x_ND: NDArray[np.float32]
    """Shape (N, D), dtype float32; in the order of the unique sequences."""


def read_vectors(
    store: Store, table: SequenceTable, kind: Kind, *, encoder: str | None, pooling: str
) -> StoredVectors:
    """Read the vectors of a table's unique sequences; all are finite, as in every store.

    Without `encoder`, the only encoder of this kind in the store is used.

    Raises
    ------
    VectorsMissing
        If a sequence has no vector in the store.
    AbagError
        If the store has no such encoder or pooling, or several encoders and none was chosen.
    """
    folder = folder_with(store, table, kind, encoder)
    keys = table.sequences[kind].keys
    return StoredVectors(folder, pooling, folder.read(keys, pooling))
