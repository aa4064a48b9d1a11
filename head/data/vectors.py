"""The stored vectors of a table's unique sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag.embed.store.store import folder_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.options import VectorsOf
    from abag.embed.store.store import Store


@dataclass(frozen=True, slots=True)
class View:
    """One of the vectors that a sequence has."""

    folder: EncoderFolder
    pooling: str
    width: int


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """The vectors of all unique antibodies, or of all unique antigens, of a table."""

    views: tuple[View, ...]
    """One or more; their vectors are joined in this order."""
    x_ND: NDArray[np.float32]
    """Shape (N, D), dtype float32; in the order of the unique sequences."""

    @classmethod
    def read(
        cls, folders: Sequence[tuple[EncoderFolder, str]], keys: NDArray[np.uint8]
    ) -> StoredVectors:
        """Read and join a pooling of each folder."""
        each = [folder.read(keys, pooling) for folder, pooling in folders]
        views = [View(*place, x_ND.shape[1]) for place, x_ND in zip(folders, each, strict=True)]
        return cls(tuple(views), each[0] if len(each) == 1 else np.concatenate(each, axis=1))

    @property
    def folder(self) -> EncoderFolder:
        """Where the first view is stored."""
        return self.views[0].folder

    @property
    def folders(self) -> list[EncoderFolder]:
        """Where the views are stored, each folder once."""
        return list({view.folder.fingerprint: view.folder for view in self.views}.values())

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each view."""
        return tuple(view.width for view in self.views)

    @property
    def names(self) -> list[str]:
        """Fingerprint and pooling of each view."""
        return [f"{view.folder.fingerprint}:{view.pooling}" for view in self.views]


def read_vectors(
    store: Store, table: SequenceTable, kind: Kind, views: Sequence[VectorsOf]
) -> StoredVectors:
    """Read the vectors of a table's unique sequences; all are finite, as in every store.

    Without an encoder, the only one of this kind in the store is used. Raises `VectorsMissing` if a
    sequence has no vector in the store.
    """
    folders = [(folder_with(store, table, kind, one["encoder"]), one["pooling"]) for one in views]
    return StoredVectors.read(folders, table.sequences[kind].keys)
