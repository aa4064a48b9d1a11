"""Small chunks, so that a table of a few rows is read as a large one is."""

import functools

from abag.embed import embed
from abag.embed.sequences import joined, pairs
from abag.embed.sequences.partitions import Partitions


def set_chunk_rows(patch, rows):
    """Let commands read tables by this many rows at a time, until the patch of pytest is undone.

    Tests that call a reader give it `rows`.
    """
    for module in (pairs, joined):
        patch.setattr(module, "CHUNK_ROWS", rows)


def set_part_bytes(patch, *, held, part):
    """Let `embed` hold so many bytes of sequences in memory, and encode so many at a time."""
    small = functools.partial(Partitions, held_bytes=held, part_bytes=part)
    patch.setattr(embed, "Partitions", small)
