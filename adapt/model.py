"""Encoders with LoRA and a small regression head: pairs in, pKd out.

P pairs, B pairs of a batch, N sequences, U unique sequences of a batch, D width of a vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from abag.core.arrays import distinct
from abag.core.device import default_batch_tokens, to_device
from abag.embed.encode import encode_stream
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.lora import LoraEncoder, fit_lora
from abag.embed.kernels.packing import longest_first, pack_spans, pool_tokens
from abag.head.labels.vectors import Standardizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from abag.adapt.config import AdaptConfig
    from abag.core.device import DevicePlan
    from abag.embed.encoders.identity import Identity
    from abag.embed.tables.chains import Chains, Kind
    from abag.head.labels.pairs import LabelledPairs

STATISTICS_SAMPLE = 2048
"""Sequences from which the statistics of an adapted encoder's vectors are measured."""
HEAD_WIDTH = 128
"""Hidden units of the regression head, which is discarded after the training."""
HEAD_DROPOUT = 0.1


class FrozenVectors(nn.Module):
    """Standardized vectors of an encoder that is not adapted; each of `chains` is encoded once.

    Parameters
    ----------
    chains : sequence
        The N sequences of the table.
    training : ndarray, dtype=int64
        Indices of the sequences from which mean and scale are measured.
    """

    def __init__(
        self,
        identity: Identity,
        chains: Sequence[Chains],
        training: NDArray[np.int64],
        plan: DevicePlan,
    ) -> None:
        super().__init__()
        x_ND = encode_frozen(identity, chains, plan)
        z_ND = Standardizer.of(x_ND[training]).apply(x_ND)
        self._z_ND = torch.from_numpy(z_ND).to(plan.device)
        self.width = x_ND.shape[1]

    def forward(self, index_U: NDArray[np.int64]) -> Tensor:
        """Return the vectors of sequences, (U, D) float32, by their indices."""
        return self._z_ND[to_device(index_U, self._z_ND.device)]


class AdaptedEncoder(nn.Module):
    """Vectors of an encoder that is adapted, standardized as before its adaptation.

    Parameters
    ----------
    chains : sequence
        The N sequences of the table.
    training : ndarray, dtype=int64
        Indices of the sequences from a sample of which mean and scale are measured.
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
        sample = np.random.default_rng(config.seed).permutation(training)[:STATISTICS_SAMPLE]
        x_ND = encode_frozen(identity, [chains[i] for i in sample], plan)
        statistics = Standardizer.of(x_ND)
        self._mean_D = torch.from_numpy(statistics.mean).to(plan.device)
        self._scale_D = torch.from_numpy(statistics.scale).to(plan.device)
        self._layout = identity.layout
        self._chains = chains
        self._plan = plan
        self.width = x_ND.shape[1]
        lora = fit_lora(config, identity.checkpoint)
        self.encoder = LoraEncoder(
            identity.checkpoint,
            plan,
            lora,
            gradient_checkpointing=config.gradient_checkpointing,
        )

    def forward(self, index_U: NDArray[np.int64]) -> Tensor:
        """Encode sequences by their indices, (U, D) float32, with gradients of the adapter."""
        spans = self._layout.numbered_spans(self._chains[i] for i in index_U)
        batch = pack_spans(list(spans))
        device = self._plan.device
        mean_weights_T1 = to_device(np.ascontiguousarray(batch.weights[:, :1]), device)
        bounds = to_device(batch.bounds.astype(np.int64), device)
        x_UD = pool_tokens(self.encoder(batch), mean_weights_T1, bounds)[:, 0]
        return (x_UD - self._mean_D) * self._scale_D

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of every sequence, shape (N,), int64."""
        return self._layout.count_tokens(self._chains)


class AdaptationModel(nn.Module):
    """Both encoders and the regression head; `training` are indices of pairs, int64."""

    def __init__(
        self,
        identities: Mapping[Kind, Identity],
        pairs: LabelledPairs,
        training: NDArray[np.int64],
        plan: DevicePlan,
        config: AdaptConfig,
    ) -> None:
        super().__init__()
        self._index: dict[Kind, NDArray[np.int64]]
        self._index = {"antibody": pairs.antibody, "antigen": pairs.antigen}  # (P,) each
        unique = {"antibody": pairs.table.antibodies, "antigen": pairs.table.antigens}
        self.encoders: dict[Kind, FrozenVectors | AdaptedEncoder] = {}
        for kind, index_P in self._index.items():
            chains = unique[kind].chains
            training_sequences = distinct(index_P[training])
            encoder: FrozenVectors | AdaptedEncoder
            if kind in config.kinds():
                encoder = AdaptedEncoder(identities[kind], chains, training_sequences, plan, config)
            else:
                encoder = FrozenVectors(identities[kind], chains, training_sequences, plan)
            self.encoders[kind] = encoder
            self.add_module(kind, encoder)  # torch looks for modules in attributes, not in a dict
        input_width = sum(encoder.width for encoder in self.encoders.values())
        self.head = nn.Sequential(
            nn.Linear(input_width, HEAD_WIDTH),
            nn.LayerNorm(HEAD_WIDTH),
            nn.GELU(),
            nn.Dropout(HEAD_DROPOUT),
            nn.Linear(HEAD_WIDTH, 1),
        ).to(plan.device)

    def forward(self, rows_B: NDArray[np.int64]) -> Tensor:
        """Predict pairs, (B,) in standard deviations of the training labels, float32."""
        vectors = []
        for kind, index_P in self._index.items():
            unique_U, inverse_B = np.unique(index_P[rows_B], return_inverse=True)
            vectors_UD = self.encoders[kind](unique_U)
            vectors.append(vectors_UD[to_device(inverse_B.reshape(-1), vectors_UD.device)])
        scores_B1: Tensor = self.head(torch.cat(vectors, dim=1))
        return scores_B1.squeeze(1)

    def adapted(self) -> dict[Kind, LoraEncoder]:
        """Return the adapted encoders by kind."""
        adapted = {}
        for kind, encoder in self.encoders.items():
            if isinstance(encoder, AdaptedEncoder):
                adapted[kind] = encoder.encoder
        return adapted

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the adapters and the head, by name."""
        parameters = self.named_parameters()
        return {name: parameter for name, parameter in parameters if parameter.requires_grad}

    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of the adapted encoders for every pair, shape (P,), int64."""
        total_P = np.zeros_like(self._index["antibody"], dtype=np.int64)
        for kind, encoder in self.encoders.items():
            if isinstance(encoder, AdaptedEncoder):
                total_P += encoder.lengths()[self._index[kind]]
        return total_P


def encode_frozen(
    identity: Identity, chains: Sequence[Chains], plan: DevicePlan
) -> NDArray[np.float32]:
    """Return the mean-pooled vectors, (N, D), of an encoder that is not adapted."""
    encoder = load_encoder(identity, plan)
    longest_spans = [max(identity.layout.span_lengths(sequence)) for sequence in chains]
    order = longest_first(longest_spans)
    budget = default_batch_tokens(plan)
    out_ND = np.zeros((len(chains), encoder.width), np.float32)
    ordered = (chains[i] for i in order)
    for batch in encode_stream(encoder, identity.layout, ordered, plan, budget, torch.float32):
        out_ND[order[batch.positions]] = batch.stored_SPD[:, 0]
    return out_ND
