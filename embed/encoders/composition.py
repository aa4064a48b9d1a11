"""The encoder that needs no weights: residue composition, length and hashed 3-mers.

The baseline that every language model must beat. It is written as a vector a token, like the
others, so that the mean over residues is the composition and the poolings come for free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from abag.embed.packing.batches import PackedBatch

if TYPE_CHECKING:
    from abag.embed.packing.pooling import LayerPooling

LETTERS = 21  # 20 residues and X
HASHED = 234  # buckets of 3-mers; 21 + 1 + 234 = 256 columns
_REACH = 3


class Composition:
    """One-hot residue, log length of the chain, and the hashed 3-mer that starts at a residue."""

    width = LETTERS + 1 + HASHED

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(
        self, batch: PackedBatch, layer_pooling: LayerPooling | None = None
    ) -> torch.Tensor:
        """Encode a batch: see `Encoder`. Returns float32, shape (T, 256)."""
        ids_T = torch.from_numpy(batch.ids).to(self._device, torch.int64)
        offsets = torch.from_numpy(batch.offsets).to(self._device, torch.int64)
        lengths_N = offsets.diff()
        log_length_T = lengths_N.float().log().repeat_interleave(lengths_N)
        out_TD = torch.zeros(len(ids_T), self.width, device=self._device)
        out_TD[:, :LETTERS] = F.one_hot(ids_T, LETTERS)
        out_TD[:, LETTERS] = log_length_T
        kmer_T, whole_T = _kmers(ids_T, offsets)
        rows = whole_T.nonzero()[:, 0]
        out_TD[rows, LETTERS + 1 + kmer_T[rows]] = 1
        return out_TD


def _kmers(ids_T: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bucket of the 3-mer starting at each token, and whether it ends inside its chain."""
    padded = F.pad(ids_T, (0, _REACH - 1))
    code_T = torch.zeros_like(ids_T)
    for k in range(_REACH):
        code_T = code_T * LETTERS + padded[k : k + len(ids_T)]
    # Knuth's multiplicative hash: neighbouring codes land in unrelated buckets
    bucket_T = ((code_T * 2654435761) % 2**32) * HASHED // 2**32
    stop_T = offsets[1:].repeat_interleave(offsets.diff())
    at_T = torch.arange(len(ids_T), device=ids_T.device)
    return bucket_T, at_T + _REACH <= stop_T
