"""Stores from within: what commands do with them, and the constants that rule their patience."""

from functools import partialmethod

from abag.embed.store.care import merge, verify
from abag.embed.store.shard import StoreUnreachable, open_shard, shard_name
from abag.embed.store.store import EncoderFolder
from abag.embed.store.writer import QUEUED_COMMITS, publish_spools, spool_of, spooled_rows
from abag.embed.tables.chains import keys_array

__all__ = [
    "QUEUED_COMMITS",
    "StoreUnreachable",
    "keys_array",
    "merge",
    "mount_drives_at",
    "open_shard",
    "publish_spools",
    "set_patience",
    "shard_name",
    "spool_of",
    "spooled_rows",
    "verify",
]


def set_patience(
    patch, *, first_pause_s=None, report_s=None, read_s=None, write_s=None, hang_s=None
):
    """Change how long abag waits for a store that fails, until the patch of pytest is undone.

    `read_s` and `write_s` are for how long it tries, where a caller does not say it.
    """
    if write_s is not None:
        writer_of = EncoderFolder.writer
        patch.setattr(EncoderFolder, "writer", partialmethod(writer_of, retry_seconds=write_s))
    for name, seconds in (
        ("shard.FIRST_PAUSE_SECONDS", first_pause_s),
        ("shard.REPORT_SECONDS", report_s),
        ("shard.RETRY_SECONDS", read_s),
        ("writer.HANG_SECONDS", hang_s),
    ):
        if seconds is not None:
            patch.setattr(f"abag.embed.store.{name}", seconds)


def mount_drives_at(patch, folder):
    """Let this folder be where a Colab machine mounts a Drive."""
    patch.setattr("abag.embed.store.shard.COLAB_DRIVE", folder)
