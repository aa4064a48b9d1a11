"""Encoders with LoRA and a small regression head: pairs in, pKd out.

peft inserts LoRA into a transformers encoder, which stays frozen and in eval mode; only the
low-rank factors learn, in fp32. They are saved as an adapter.

P pairs, B pairs of a batch, N sequences, U unique sequences of a batch, D width of a vector.

References
----------
Hu et al., arXiv:2106.09685: W + (alpha / r) B A, with B zero at the start.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from abag.core.arrays import distinct
from abag.core.device import to_device
from abag.core.errors import MissingPackage, OptionError
from abag.embed.encode import PoolingSink, TokenBudget
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.loading import (
    cast_parameters,
    load_encoder,
    load_transformers_model,
    run_padded,
)
from abag.embed.encoders.packing import pack_spans, pool_tokens
from abag.embed.encoders.weights import PEFT_PREFIX
from abag.embed.store.shard import public_origin
from abag.embed.tables.chains import shown_chains
from abag.head.models.pair_vectors import Standardizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from abag.adapt.config import AdaptConfig, Lora
    from abag.core.device import DevicePlan
    from abag.embed.encoders.identity import Identity
    from abag.embed.encoders.packing import PackedBatch
    from abag.embed.encoders.weights import EncoderCheckpoint
    from abag.embed.tables.chains import Chains, Kind
    from abag.head.labels.labelled_pairs import LabelledPairs

STATISTICS_SAMPLE = 2048
"""Sequences from which the statistics of an adapted encoder's vectors are measured."""
HEAD_WIDTH = 128
"""Hidden units of the regression head, which is discarded after the training."""
HEAD_DROPOUT = 0.1


def lora_choices(checkpoint: EncoderCheckpoint) -> tuple[tuple[str, ...], range]:
    """Return the targets and the layers of an encoder that can be adapted."""
    family = FAMILIES[checkpoint.family]
    layers = family.shape(checkpoint.config).layers
    return family.lora_projections(checkpoint.config), range(1, layers + 1)


def fit_lora(lora: Lora, checkpoint: EncoderCheckpoint) -> Lora:
    """Restrict targets and layers to those of an encoder; the other encoder may have the rest.

    Empty targets become the family's defaults; empty layers mean all.

    Raises
    ------
    OptionError
        If nothing can be adapted, or the encoder has none of the targets or layers.
    """
    family = FAMILIES[checkpoint.family]
    name = checkpoint.name
    projections, numbers = lora_choices(checkpoint)
    if not projections:
        msg = f"encoder {name}: has no weights to adapt. Leave its side out: --sides."
        raise OptionError(msg)
    targets = tuple(target for target in lora.targets if target in projections)
    layers = tuple(layer for layer in lora.layers if layer in numbers)
    for option, requested, usable, expected in (
        ("targets", lora.targets, targets, f"projections among {', '.join(projections)}"),
        ("layers", lora.layers, layers, f"layers among 1 to {len(numbers)}"),
    ):
        if requested and not usable:
            msg = (
                f"encoder {name}: has none of --{option} {','.join(map(str, requested))}; expected "
                f"{expected}. Give at least one of them."
            )
            raise OptionError(msg)
    if not targets:  # queries and values; where one layer has them and the keys, this layer
        of_attention = len(family.architecture_of(checkpoint.config).qkv)
        targets = projections[:of_attention:2]
    return replace(lora, targets=targets, layers=layers)


def import_peft() -> Any:  # noqa: ANN401 - peft is untyped
    """Import peft, or raise `MissingPackage`."""
    try:
        import peft
    except ImportError as error:
        msg = f"abag adapt: cannot import peft ({error}); run pip install peft"
        raise MissingPackage(msg) from error
    return peft


class LoraEncoder(nn.Module):
    """A transformers encoder with LoRA: packed batches to token vectors, with gradients.

    In bf16 the factors stay in fp32, under autocast.

    Parameters
    ----------
    checkpoint : EncoderCheckpoint
    plan : DevicePlan
        Device and precision.
    lora : Lora
        From `fit_lora`.
    gradient_checkpointing : bool
        Whether to store only each layer's input, and recompute the rest in the backward pass.
    """

    def __init__(
        self,
        checkpoint: EncoderCheckpoint,
        plan: DevicePlan,
        lora: Lora,
        *,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        peft = import_peft()
        family = FAMILIES[checkpoint.family]
        model = load_transformers_model(checkpoint)
        layers = family.architecture_of(checkpoint.config).layers
        self._config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets),
            # peft names the list of layers by its last part, and counts from 0
            layers_to_transform=[n - 1 for n in lora.layers] or None,
            layers_pattern=layers.rpartition(".")[2] if lora.layers else None,
            # without the path of a folder, because the adapter's digest covers this
            base_model_name_or_path=public_origin(checkpoint.origin),
        )
        frozen = cast_parameters(model.eval().requires_grad_(False), plan)
        self._model = peft.inject_adapter_in_model(self._config, frozen)
        for parameter in self.factors().values():
            parameter.data = parameter.data.to(plan.device, torch.float32)
        if gradient_checkpointing:
            # the reentrant form needs an input with gradients: frozen embeddings have none
            for layer in attrgetter(layers)(self._model):
                layer.forward = partial(recompute, layer.forward, use_reentrant=False)
        self._pad_id = family.vocabulary.pad
        self._plan = plan

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name, dtype=float32."""
        parameters = self._model.named_parameters()
        return {name: parameter for name, parameter in parameters if parameter.requires_grad}

    def train(self, mode: bool = True) -> LoraEncoder:
        """Set the mode of the factors' dropout; the encoder's own dropout stays off."""
        self.training = mode
        for name, module in self._model.named_modules():
            if "lora_dropout" in name:
                module.training = mode
        return self

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden state of every token, shape=(T, D)."""
        device = self._plan.device
        half = self._plan.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out, is_token_NL = run_padded(self._model, batch, self._pad_id, device)
        hidden_TD: Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD

    def saved(self, factors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, Any]]:
        """Return the contents of adapter_model.safetensors and adapter_config.json for peft.

        `factors` are tensors by the names of `factors`.
        """
        from safetensors.torch import save

        tensors = {}
        for name, factor in factors.items():
            peft_name = PEFT_PREFIX + name.replace(".default.weight", ".weight")
            tensors[peft_name] = factor.detach().cpu().contiguous()
        config = {**self._config.to_dict(), "inference_mode": True}
        for key, value in config.items():
            if isinstance(value, set):  # which JSON has not
                config[key] = sorted(value)
        return save(tensors, metadata={"format": "pt"}), config


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
            if kind in config.adapted_kinds():
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
    sink = PoolingSink(encoder, plan, "float32")
    budget = TokenBudget(plan, None, "nothing is adapted")
    out_ND = np.zeros((len(chains), encoder.width), np.float32)

    def name(at: int) -> str:
        return f"{identity.layout.kind} {shown_chains(chains[at])}"

    for at, pooled in budget.stream(sink, identity.layout, chains, name):
        out_ND[at] = pooled.stored_SPD[:, 0]
    return out_ND
