"""Single rows of a store, read when they are needed: for tables larger than memory.

N sequences, D numbers per vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag import AbagError
from abag.core.arrays import distinct
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard_index import MissingVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.shards.shard import VectorBlock
    from abag.embed.store.encoder_folder import EncoderFolder


class StoreChanged(AbagError):
    """Vectors that were found before are gone."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """The vectors of N sequences; each access opens and closes the shards that it needs.

    It holds no open file, so it can be pickled, and used in forked processes.
    """

    blocks: list[VectorBlock]
    pooling: str
    width: int
    block: NDArray[np.int64]
    """Shape (N,)."""
    row: NDArray[np.int64]
    """Row in the block, shape (N,)."""

    @classmethod
    def of(cls, folder: EncoderFolder, keys: NDArray[np.uint8], pooling: str) -> RowReader:
        """Find N sequences, keys (N, 16), in shards of which every byte is checked now.

        Raises
        ------
        MissingVectors
            If a sequence is not stored, or its shard has just proved to be damaged.
        """
        missing = folder.missing(keys, verify=True)
        if missing.any():
            raise MissingVectors(folder.path, len(keys), np.flatnonzero(missing))
        block, row = folder.find(keys)
        blocks = folder.blocks()
        return cls(blocks, pooling, blocks[0].widths[pooling], block, row)

    def __getitem__(self, at: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read rows, shape (n, D); a sequence that is asked for twice is read once.

        Raises
        ------
        StoreChanged
            If a shard was removed or shortened.
        """
        wanted, inverse = np.unique(at, return_inverse=True)
        found = np.empty((len(wanted), self.width), np.float32)
        for number in distinct(self.block[wanted]).tolist():
            places = np.flatnonzero(self.block[wanted] == number)
            block = self.blocks[number]
            try:
                found[places] = block.load_rows(self.pooling, self.row[wanted[places]])
            except (FileNotFoundError, DamagedShard) as error:
                msg = (
                    f"{block.path}: cannot be read any more ({error}); expected the shard that was "
                    "there when the dataset was made. Make the dataset again."
                )
                raise StoreChanged(msg) from error
        return found[inverse]
