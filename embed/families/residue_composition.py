"""The encoder without weights: residue composition, chain length and hashed 3-mers.

The baseline for every language model. It returns one vector per token like the others, so that the
mean over residues is the composition and every pooling works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from abag.embed.packing.batches import PackedBatch

if TYPE_CHECKING:
    from abag.embed.packing.pooling import LayerPooling

RESIDUE_LETTERS = 21  # 20 residues and X
KMER_BUCKETS = 234  # 21 + 1 + 234 = 256 columns
_KMER = 3


class ResidueComposition:
    """One-hot residue, log chain length and hashed 3-mer per token; see `Encoder`."""

    width = RESIDUE_LETTERS + 1 + KMER_BUCKETS

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(
        self, batch: PackedBatch, layer_pooling: LayerPooling | None = None
    ) -> torch.Tensor:
        """Encode a batch: see `Encoder`. Returns shape (T, 256), dtype=float32."""
        ids_T = torch.from_numpy(batch.ids).to(self._device, torch.int64)
        offsets = torch.from_numpy(batch.offsets).to(self._device, torch.int64)
        lengths_N = offsets.diff()
        log_length_T = lengths_N.float().log().repeat_interleave(lengths_N)
        out_TD = torch.zeros(len(ids_T), self.width, device=self._device)
        out_TD[:, :RESIDUE_LETTERS] = F.one_hot(ids_T, RESIDUE_LETTERS)
        out_TD[:, RESIDUE_LETTERS] = log_length_T
        kmer_T, complete_T = _kmers(ids_T, offsets)
        rows = complete_T.nonzero()[:, 0]
        out_TD[rows, RESIDUE_LETTERS + 1 + kmer_T[rows]] = 1
        return out_TD


def _kmers(ids_T: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's 3-mer bucket, and whether the 3-mer ends inside the chain: both (T,)."""
    padded = F.pad(ids_T, (0, _KMER - 1))
    code_T = torch.zeros_like(ids_T)
    for k in range(_KMER):
        code_T = code_T * RESIDUE_LETTERS + padded[k : k + len(ids_T)]
    # Knuth's multiplicative hash spreads neighbouring codes over the buckets
    bucket_T = ((code_T * 2654435761) % 2**32) * KMER_BUCKETS // 2**32
    stop_T = offsets[1:].repeat_interleave(offsets.diff())
    at_T = torch.arange(len(ids_T), device=ids_T.device)
    return bucket_T, at_T + _KMER <= stop_T
