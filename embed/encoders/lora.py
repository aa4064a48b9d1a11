"""LoRA in a transformers encoder: inserted by peft, trained on labels, saved as an adapter.

The encoder stays frozen and in eval mode; only the low-rank factors learn, in fp32.

References
----------
Hu et al., arXiv:2106.09685: W + (alpha / r) B A, with B zero at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint as recompute

from abag.core.errors import MissingPackage, OptionError
from abag.embed.encoders.adapters import PEFT_PREFIX
from abag.embed.encoders.loading import cast_parameters, load_transformers_model, run_padded
from abag.embed.families.registry import FAMILIES
from abag.embed.options import Lora
from abag.embed.weights import EncoderCheckpoint

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.packing import PackedBatch


def fit_lora(lora: Lora, checkpoint: EncoderCheckpoint) -> Lora:
    """Restrict targets and layers to those of an encoder; the other one may have the rest."""
    family, name = FAMILIES[checkpoint.family], checkpoint.name
    known, last = family.lora_projections, family.shape(checkpoint.config).layers
    if not known:
        msg = f"encoder {name}: has no weights to adapt. Leave its side out: --sides."
        raise OptionError(msg)
    targets = tuple(t for t in lora.targets if t in known)
    layers = tuple(n for n in lora.layers if 1 <= n <= last)
    for option, given, left, expected in (
        ("targets", lora.targets, targets, f"projections among {', '.join(known)}"),
        ("layers", lora.layers, layers, f"layers among 1 to {last}"),
    ):
        if given and not left:
            msg = (
                f"encoder {name}: has none of --{option} {','.join(map(str, given))}; expected "
                f"{expected}. Give at least one of them."
            )
            raise OptionError(msg)
    return replace(lora, targets=targets or family.lora_targets, layers=layers)


def import_peft() -> Any:  # noqa: ANN401 - peft is untyped
    try:
        import peft
    except ImportError as error:
        msg = f"abag adapt: cannot import peft ({error}); run pip install peft"
        raise MissingPackage(msg) from error
    return peft


class LoraEncoder(torch.nn.Module):
    """A transformers encoder with LoRA: packed batches to token vectors, with gradients.

    `lora` is as returned by `fit_lora`. In bf16 the factors stay in fp32, under autocast.
    `gradient_checkpointing` stores only each layer's input, and recomputes the rest in the
    backward pass.
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
        peft, family = import_peft(), FAMILIES[checkpoint.family]
        model = load_transformers_model(checkpoint)
        self._config = peft.LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout,
            target_modules=list(lora.targets),
            layers_to_transform=[n - 1 for n in lora.layers] or None,
            layers_pattern=family.layer_list.rsplit(".", 1)[-1] if lora.layers else None,
            base_model_name_or_path=checkpoint.origin,
        )  # fmt: skip
        frozen = cast_parameters(model.eval().requires_grad_(False), plan)
        self._model = peft.inject_adapter_in_model(self._config, frozen)
        for parameter in self.factors().values():
            parameter.data = parameter.data.to(plan.device, torch.float32)
        if gradient_checkpointing:
            for layer in attrgetter(family.layer_list)(self._model):
                layer.forward = partial(recompute, layer.forward, use_reentrant=False)
        self._pad_id, self._plan = family.vocabulary.pad, plan

    def factors(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters by name, dtype=float32."""
        return {n: p for n, p in self._model.named_parameters() if p.requires_grad}

    def train(self, mode: bool = True) -> LoraEncoder:
        """Set the mode of the factors' dropout; the encoder's own dropout stays off."""
        self.training = mode
        for name, module in self._model.named_modules():
            if "lora_dropout" in name:
                module.training = mode
        return self

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Return the last hidden state of every token, shape=(T, D)."""
        device, half = self._plan.device, self._plan.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out, is_token_NL = run_padded(self._model, batch, self._pad_id, device)
        hidden_TD: torch.Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD

    def saved(self, factors: Mapping[str, torch.Tensor]) -> tuple[bytes, dict[str, Any]]:
        """Return the contents of adapter_model.safetensors and adapter_config.json for peft."""
        from safetensors.torch import save

        tensors = {
            PEFT_PREFIX + name.replace(".default.weight", ".weight"): t.detach().cpu().contiguous()
            for name, t in factors.items()
        }
        config = {**self._config.to_dict(), "inference_mode": True}
        listed = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
        return save(tensors, metadata={"format": "pt"}), listed
