"""The encoder's folder that holds the vectors of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abag import AbagError

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.store import Store


class VectorsMissing(AbagError):
    """The store has no vector for some of the table's sequences."""


def folder_with(
    store: Store, table: SequenceTable, kind: Kind, encoder: str | None
) -> EncoderFolder:
    """Find the folder that holds a vector of every sequence of a table.

    Without `encoder`, the only encoder of this kind in the store is used.

    Raises
    ------
    VectorsMissing
        If a sequence has no vector in the store.
    NoSuchEncoder, AmbiguousEncoder
    """
    sequences = table.sequences[kind]
    folder = store.folder(kind, encoder)
    missing = int(folder.missing(sequences.keys).sum())
    if missing:
        msg = (
            f"{store.path}: {missing} of {len(sequences.keys)} {kind} sequences of {table.source} "
            f"have no vector from {folder.name}. Run: abag embed {table.source} --store "
            f"{store.path} {folder.embed_options}"
        )
        raise VectorsMissing(msg)
    return folder
