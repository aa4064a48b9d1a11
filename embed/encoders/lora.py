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
from abag.embed.encoders.registry import FAMILIES
from abag.embed.encoders.weights import EncoderCheckpoint
from abag.embed.options import Lora

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.kernels.packing import PackedBatch


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
    projections = family.lora_projections
    last = family.shape(checkpoint.config).layers
    if not projections:
        msg = f"encoder {name}: has no weights to adapt. Leave its side out: --sides."
        raise OptionError(msg)
    targets = tuple(target for target in lora.targets if target in projections)
    layers = tuple(layer for layer in lora.layers if 1 <= layer <= last)
    for option, requested, usable, expected in (
        ("targets", lora.targets, targets, f"projections among {', '.join(projections)}"),
        ("layers", lora.layers, layers, f"layers among 1 to {last}"),
    ):
        if requested and not usable:
            msg = (
                f"encoder {name}: has none of --{option} {','.join(map(str, requested))}; expected "
                f"{expected}. Give at least one of them."
            )
            raise OptionError(msg)
    return replace(lora, targets=targets or family.lora_targets, layers=layers)


def import_peft() -> Any:  # noqa: ANN401 - peft is untyped
    """Import peft, or raise `MissingPackage`."""
    try:
        import peft
    except ImportError as error:
        msg = f"abag adapt: cannot import peft ({error}); run pip install peft"
        raise MissingPackage(msg) from error
    return peft


class LoraEncoder(torch.nn.Module):
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
        # peft names the list of layers by its last part, and counts from 0
        layer_list = family.layer_list.rsplit(".", 1)[-1] if lora.layers else None
        self._config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets),
            layers_to_transform=[n - 1 for n in lora.layers] or None,
            layers_pattern=layer_list,
            base_model_name_or_path=checkpoint.origin,
        )
        frozen = cast_parameters(model.eval().requires_grad_(False), plan)
        self._model = peft.inject_adapter_in_model(self._config, frozen)
        for parameter in self.factors().values():
            parameter.data = parameter.data.to(plan.device, torch.float32)
        if gradient_checkpointing:
            # the reentrant form needs an input with gradients: frozen embeddings have none
            for layer in attrgetter(family.layer_list)(self._model):
                layer.forward = partial(recompute, layer.forward, use_reentrant=False)
        self._pad_id = family.vocabulary.pad
        self._plan = plan

    def factors(self) -> dict[str, torch.nn.Parameter]:
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

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Return the last hidden state of every token, shape=(T, D)."""
        device = self._plan.device
        half = self._plan.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out, is_token_NL = run_padded(self._model, batch, self._pad_id, device)
        hidden_TD: torch.Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD

    def saved(self, factors: Mapping[str, torch.Tensor]) -> tuple[bytes, dict[str, Any]]:
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
