"""Small chunks, so that a table of a few rows is read as a large one is."""

from abag.embed.sequences.tables import read_table_chunks


def set_chunk_rows(patch, rows):
    """Read tables by this many rows at a time, until the patch of pytest is undone."""
    patch.setitem(read_table_chunks.__kwdefaults__, "rows", rows)
