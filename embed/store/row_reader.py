"""Single rows of a store, read when they are needed: for tables larger than memory.

N sequences, D numbers per vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag import AbagError
from abag.core.arrays import distinct
from abag.embed.store.encoder_folder import MissingVectors
from abag.embed.store.shard import DamagedShard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.shard import Shard


class StoreChanged(AbagError):
    """Vectors that were found before are gone."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """The vectors of N sequences; each access opens and closes the shards that it needs.

    It holds no open file, so it can be pickled, and used in forked processes.
    """

    shards: list[Shard]
    pooling: str
    width: int
    shard: NDArray[np.int64]
    """Shape (N,)."""
    row: NDArray[np.int64]
    """Row in the shard, shape (N,)."""

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
        shard, row = folder.find(keys)
        shards = folder.shards()
        return cls(shards, pooling, shards[0].widths[pooling], shard, row)

    def __getitem__(self, at: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read rows, shape (n, D); a sequence that is asked for twice is read once.

        Raises
        ------
        StoreChanged
            If a shard was removed or shortened.
        """
        wanted, inverse = np.unique(at, return_inverse=True)
        found = np.empty((len(wanted), self.width), np.float32)
        for number in distinct(self.shard[wanted]).tolist():
            places = np.flatnonzero(self.shard[wanted] == number)
            shard = self.shards[number]
            try:
                found[places] = shard.load_rows(self.pooling, self.row[wanted[places]])
            except (FileNotFoundError, DamagedShard) as error:
                msg = (
                    f"{shard.path}: cannot be read any more ({error}); expected the shard that was "
                    "there when the dataset was made. Make the dataset again."
                )
                raise StoreChanged(msg) from error
        return found[inverse]
