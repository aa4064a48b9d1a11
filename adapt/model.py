"""Encoders with LoRA under a small regression head: pairs in, pKd out.

P pairs, B of a batch, U distinct sequences of a batch, D width of an antibody or antigen vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from abag.core.device import default_batch_tokens, to_device
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.lora import LoraEncoder, fit_lora
from abag.embed.packing.batches import longest_first, pack_spans
from abag.embed.packing.pooling import pool_tokens
from abag.embed.pipeline.stream import encode_stream
from abag.head.data.scaling import Standardizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from abag.adapt.config import AdaptConfig
    from abag.core.device import DevicePlan
    from abag.embed.encoders.loading import Identity
    from abag.embed.sequences.chains import Chains
    from abag.head.data.labels import LabelledPairs

SAMPLE = 2048
"""Sequences from which the statistics of an adapted encoder's vectors are measured."""
HEAD_WIDTH, HEAD_DROPOUT = 128, 0.1
"""Of the regression head, which is thrown away afterwards."""


class SequenceVectors(Protocol):
    """One kind of sequence, as standardised vectors."""

    width: int

    def __call__(self, index_U: NDArray[np.int64]) -> Tensor:
        """Return the vectors of sequences, given by their places among the unique ones."""
        ...


class FrozenVectors(nn.Module):
    """Vectors that stay as they are: encoded once."""

    def __init__(
        self,
        identity: Identity,
        chains: Sequence[Chains],
        training: NDArray[np.int64],
        plan: DevicePlan,
    ) -> None:
        super().__init__()
        x_ND = base_vectors(identity, chains, plan)
        z_ND = Standardizer.of(x_ND[training]).apply(x_ND)
        self._z_ND = torch.from_numpy(z_ND).to(plan.device)
        self.width = x_ND.shape[1]

    def forward(self, index_U: NDArray[np.int64]) -> Tensor:
        """See `SequenceVectors`."""
        return self._z_ND[to_device(index_U, self._z_ND.device)]


class AdaptedEncoder(nn.Module):
    """Vectors that change: encoded whenever they are asked for.

    Standardised by what the encoder gave before: the vectors of protein language models are one
    large mean with differences of a few percent.
    """

    def __init__(
        self,
        identity: Identity,
        chains: Sequence[Chains],
        training: NDArray[np.int64],
        plan: DevicePlan,
        config: AdaptConfig,
    ) -> None:
        super().__init__()
        some = np.random.default_rng(config.seed).permutation(training)[:SAMPLE]
        x_ND = base_vectors(identity, [chains[i] for i in some], plan)
        statistics = Standardizer.of(x_ND)
        self._mean_D = torch.from_numpy(statistics.mean).to(plan.device)
        self._scale_D = torch.from_numpy(statistics.scale).to(plan.device)
        self._layout, self._chains, self._plan = identity.layout, chains, plan
        self.width = x_ND.shape[1]
        self.encoder = LoraEncoder(
            identity.checkpoint,
            plan,
            fit_lora(config, identity.checkpoint),
            gradient_checkpointing=config.gradient_checkpointing,
        )

    def forward(self, index_U: NDArray[np.int64]) -> Tensor:
        """See `SequenceVectors`."""
        spans = [(k, p) for k, i in enumerate(index_U) for p in self._layout.spans(self._chains[i])]
        batch = pack_spans(spans)
        device = self._plan.device
        mean_T1 = to_device(
            np.ascontiguousarray(batch.weights[:, :1]), device
        )  # the first is `mean`
        bounds = to_device(batch.bounds.astype(np.int64), device)
        x_UD = pool_tokens(self.encoder(batch), mean_T1, bounds)[:, 0]
        return (x_UD - self._mean_D) * self._scale_D

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of each unique sequence."""
        return np.array([sum(self._layout.span_lengths(c)) for c in self._chains], dtype=np.int64)


class AdaptationModel(nn.Module):
    """Both sides and the head."""

    def __init__(
        self,
        identities: dict[str, Identity],
        pairs: LabelledPairs,
        training: NDArray[np.int64],
        plan: DevicePlan,
        config: AdaptConfig,
    ) -> None:
        super().__init__()
        self._pairs = pairs
        self.sides: dict[str, FrozenVectors | AdaptedEncoder] = {}
        for kind, unique, index in (
            ("antibody", pairs.table.antibodies, pairs.antibody),
            ("antigen", pairs.table.antigens, pairs.antigen),
        ):
            seen = np.unique(index[training])
            side = (
                AdaptedEncoder(identities[kind], unique.chains, seen, plan, config)
                if kind in config.kinds()
                else FrozenVectors(identities[kind], unique.chains, seen, plan)
            )
            self.sides[kind] = side
            self.add_module(kind, side)
        joined = sum(side.width for side in self.sides.values())
        self.head = nn.Sequential(
            nn.Linear(joined, HEAD_WIDTH),
            nn.LayerNorm(HEAD_WIDTH),
            nn.GELU(),
            nn.Dropout(HEAD_DROPOUT),
            nn.Linear(HEAD_WIDTH, 1),
        ).to(plan.device)

    def forward(self, rows_B: NDArray[np.int64]) -> Tensor:
        """Score pairs, shape (B,), in training standard deviations; each sequence encoded once."""
        sides = []
        for kind, index in (("antibody", self._pairs.antibody), ("antigen", self._pairs.antigen)):
            unique_U, of_row = np.unique(index[rows_B], return_inverse=True)
            vectors_UD = self.sides[kind](unique_U)
            sides.append(vectors_UD[to_device(of_row.reshape(-1), vectors_UD.device)])
        scores_B1: Tensor = self.head(torch.cat(sides, dim=1))
        return scores_B1.squeeze(1)

    def adapted(self) -> dict[str, LoraEncoder]:
        """Return the encoders that learn, by kind."""
        return {k: s.encoder for k, s in self.sides.items() if isinstance(s, AdaptedEncoder)}

    def learning(self) -> dict[str, nn.Parameter]:
        """Return what learns, by name."""
        return {n: p for n, p in self.named_parameters() if p.requires_grad}

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of every pair's adapted sequences, shape (P,)."""
        total = np.zeros(len(self._pairs), dtype=np.int64)
        for kind, index in (("antibody", self._pairs.antibody), ("antigen", self._pairs.antigen)):
            side = self.sides[kind]
            if isinstance(side, AdaptedEncoder):
                total += side.lengths()[index]
        return total


def base_vectors(
    identity: Identity, chains: Sequence[Chains], plan: DevicePlan
) -> NDArray[np.float32]:
    """Encode sequences with an encoder as it is, on the fast path; their `mean`, shape (N, D)."""
    encoder = load_encoder(identity, plan)
    longest = [max(identity.layout.span_lengths(c)) for c in chains]
    order = longest_first(longest)
    budget = max(default_batch_tokens(plan), max(longest))
    out_ND = np.zeros((len(chains), encoder.width), np.float32)
    ordered = (chains[i] for i in order)
    for done in encode_stream(encoder, identity.layout, ordered, plan, budget, torch.float32):
        out_ND[order[done.positions]] = done.stored_SPD[:, 0]
    return out_ND
