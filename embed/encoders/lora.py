"""LoRA in a transformers encoder: inserted by peft, trained by whoever has labels, saved for good.

The encoder itself stays frozen and in eval mode; only the low-rank factors learn, in fp32.

References
----------
Hu et al., arXiv:2106.09685: W + (alpha / r) B A, with B zero at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint as recompute

from abag import AbagError
from abag.embed.encoders.options import Lora
from abag.embed.encoders.reference import (
    PAD,
    cast_parameters,
    load_module,
    quiet_transformers,
    run_padded,
)
from abag.embed.encoders.registry import layer_count
from abag.embed.weights.adapters import PEFT_PREFIX
from abag.embed.weights.checkpoints import EncoderCheckpoint, Family

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import PackedBatch

TARGETS: Mapping[Family, tuple[str, ...]] = {
    "t5": ("q", "v"),
    "esm": ("query", "value"),
    "bert": ("query", "value"),
}
_LAYERS: Mapping[Family, str] = {"t5": "block", "esm": "layer", "bert": "layer"}


class LoraUnavailable(AbagError):
    """peft is not installed."""


class BadLora(AbagError):
    """LoRA cannot be put where it was asked for."""


def fit_lora(lora: Lora, checkpoint: EncoderCheckpoint) -> Lora:
    """Return the part of the options that one encoder has: the other may be of another family.

    Raises
    ------
    BadLora
        Where nothing is left, or the encoder has no weights to adapt.
    """
    family, last = checkpoint.family, layer_count(checkpoint)
    if family == "composition":
        msg = f"encoder {checkpoint.name}: has no weights to adapt. Leave its side out: --sides."
        raise BadLora(msg)
    known = _projections(family)
    targets = tuple(t for t in lora.targets if t in known) or TARGETS[family]
    layers = tuple(n for n in lora.layers if 1 <= n <= last)
    if lora.targets and not set(targets) & set(lora.targets):
        msg = (
            f"encoder {checkpoint.name}: has none of --targets {','.join(lora.targets)}; "
            f"expected projections among {', '.join(known)}. Give one that it has."
        )
        raise BadLora(msg)
    if lora.layers and not layers:
        msg = (
            f"encoder {checkpoint.name}: has none of --layers "
            f"{','.join(map(str, lora.layers))}; expected layers among 1 to {last}. "
            "Give one that it has."
        )
        raise BadLora(msg)
    return Lora(
        rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=targets, layers=layers
    )


def _projections(family: Family) -> tuple[str, ...]:
    """Linear layers by their names in transformers."""
    if family == "t5":
        return ("q", "k", "v", "o", "wi", "wo")
    return ("query", "key", "value")


def import_peft() -> Any:  # noqa: ANN401 - peft is untyped
    """Import peft, or say which extra brings it.

    Raises
    ------
    LoraUnavailable
    """
    try:
        import peft
    except ImportError as error:
        msg = f"abag adapt: peft cannot be imported ({error}); pip install 'abag[lora]'"
        raise LoraUnavailable(msg) from error
    return peft


class LoraEncoder(torch.nn.Module):
    """A transformers encoder with LoRA in it: packed batches to token vectors, with gradients.

    Parameters
    ----------
    checkpoint : Checkpoint
    plan : Plan
        fp32, or bf16: the frozen weights are then bf16, the factors fp32 under autocast.
    lora : Lora
        As `fit_lora` returns it.
    gradient_checkpointing : bool
        Keep each layer's input only and compute the rest again on the way back.
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
        with quiet_transformers():
            model = load_module(checkpoint)
        self._config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets),
            layers_to_transform=[n - 1 for n in lora.layers] or None,
            layers_pattern=_LAYERS[checkpoint.family] if lora.layers else None,
            base_model_name_or_path=checkpoint.origin,
        )
        frozen = cast_parameters(model.eval().requires_grad_(False), plan)
        self._model = peft.inject_adapter_in_model(self._config, frozen)
        for parameter in self.factors().values():
            parameter.data = parameter.data.to(plan.device, torch.float32)
        if gradient_checkpointing:
            for layer in getattr(self._model.encoder, _LAYERS[checkpoint.family]):
                layer.forward = partial(recompute, layer.forward, use_reentrant=False)
        self._pad, self._plan = PAD[checkpoint.family], plan

    def factors(self) -> dict[str, torch.nn.Parameter]:
        """Return what learns, by name."""
        return {n: p for n, p in self._model.named_parameters() if p.requires_grad}

    def train(self, mode: bool = True) -> LoraEncoder:
        """Switch the factors' dropout; the encoder's own stays off."""
        self.training = mode
        for name, module in self._model.named_modules():
            if "lora_dropout" in name:
                module.training = mode
        return self

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Encode a batch: last hidden state of every token, shape=(T, D)."""
        device, half = self._plan.device, self._plan.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out, inside_NL = run_padded(self._model, batch, self._pad, device)
        hidden_TD: torch.Tensor = out.last_hidden_state[inside_NL]
        return hidden_TD

    def saved(self, factors: Mapping[str, torch.Tensor]) -> tuple[bytes, dict[str, Any]]:
        """Return adapter_model.safetensors and adapter_config.json, as peft writes them."""
        from safetensors.torch import save

        tensors = {
            PEFT_PREFIX + name.replace(".default.weight", ".weight"): t.detach().cpu().contiguous()
            for name, t in factors.items()
        }
        config = {**self._config.to_dict(), "inference_mode": True}
        listed = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
        return save(tensors, metadata={"format": "pt"}), listed
