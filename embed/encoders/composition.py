"""Residue composition, chain length and hashed 3-mers: the baseline for every language model.

The family needs no weights. Its encoder returns one vector per token like the others, so that the
mean over residues is the composition and every pooling works. `pool` counts without these vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Ints
from abag.embed.encoders.family import Family
from abag.embed.encoders.packing import LayerPooling, PackedBatch, Vocabulary, number_tokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_LETTERS = "ACDEFGHIKLMNPQRSTVWYX"
_KMER_BUCKETS = 234  # 21 letters + 1 + 234 = 256 columns
_KMER = 3


class _ResidueComposition:
    """One-hot residue, log chain length and hashed 3-mer per token."""

    width = len(_LETTERS) + 1 + _KMER_BUCKETS

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        """Encode a batch: see `Encoder`. Returns shape (T, 256), dtype=float32."""
        import torch
        import torch.nn.functional as F

        ids_T = torch.from_numpy(batch.ids).to(self._device, torch.int64)
        lengths_N = torch.from_numpy(batch.offsets).to(self._device).diff()
        out_TD = torch.zeros(len(ids_T), self.width, device=self._device)
        out_TD[:, : len(_LETTERS)] = F.one_hot(ids_T, len(_LETTERS))
        out_TD[:, len(_LETTERS)] = lengths_N.float().log().repeat_interleave(lengths_N)
        starts, columns = map(torch.from_numpy, _kmers(batch))
        out_TD[starts, columns] = 1
        return out_TD

    def pool(self, batch: PackedBatch) -> Tensor:
        """Encode and pool a batch: see `PoolingEncoder`. Returns shape (S, P, 256)."""
        import torch

        ids_T = batch.ids.astype(np.int64)
        lengths_N = np.diff(batch.offsets)
        # of torch, as above: NumPy's logarithm may differ in the last bit
        log_N = torch.from_numpy(lengths_N).float().log().numpy()
        starts, columns = _kmers(batch)
        n_poolings = batch.weights.shape[1]
        sums = np.zeros((len(batch.sequences), n_poolings, self.width), np.float32)
        first_T = np.repeat(np.arange(len(sums)) * n_poolings * self.width, np.diff(batch.bounds))
        for p, weight_T in enumerate(np.ascontiguousarray(batch.weights.T)):
            residue_T = first_T + p * self.width
            # in the order of the tokens, in which `pool_tokens` adds
            np.add.at(sums.ravel(), residue_T + ids_T, weight_T)
            log_T = np.repeat(log_N, lengths_N)
            np.add.at(sums.ravel(), residue_T + len(_LETTERS), log_T * weight_T)
            np.add.at(sums.ravel(), residue_T[starts] + columns, weight_T[starts])
        return torch.from_numpy(sums)


def _kmers(batch: PackedBatch) -> tuple[Ints, Ints]:
    """Return the tokens at which a 3-mer of their span starts, and the column that counts it."""
    ids_T = batch.ids.astype(np.int64)
    padded = np.pad(ids_T, (0, _KMER - 1))
    code_T = np.zeros_like(ids_T)
    for k in range(_KMER):
        code_T = code_T * len(_LETTERS) + padded[k : k + len(ids_T)]
    # Knuth's multiplicative hash spreads neighbouring codes over the buckets
    bucket_T = ((code_T * 2654435761) % 2**32) * _KMER_BUCKETS // 2**32
    stop_T = np.repeat(batch.offsets[1:], np.diff(batch.offsets))
    starts = np.flatnonzero(np.arange(len(ids_T)) + _KMER <= stop_T)
    return starts, len(_LETTERS) + 1 + bucket_T[starts]


COMPOSITION = Family(
    name="composition",
    vocabulary=Vocabulary.of(number_tokens(" ".join(_LETTERS)), window=None),
    backends=("composition",),
    build=lambda plan: _ResidueComposition(plan.device),
)
