"""Identified encoders to modules on a device, with the reference for every faster path.

The reference runs transformers' own modules over padded batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abag.core.device import DevicePlan
from abag.core.errors import AbagError
from abag.embed.encoders.identity import Identity, check_backend
from abag.embed.families.family import Backend, Encoder, Family
from abag.embed.families.packed import PackedLayerNormEncoder, PackedRmsNormEncoder
from abag.embed.families.registry import FAMILIES
from abag.embed.packing import PackedBatch, pad_batch
from abag.embed.weights import EncoderCheckpoint, EncoderWeights

if TYPE_CHECKING:
    from abag.embed.packing import LayerPooling


def load_encoder(
    identity: Identity, plan: DevicePlan, *, backend: Backend = "packed", attention: str = "auto"
) -> Encoder:
    """Load an encoder onto a device.

    Parameters
    ----------
    identity : Identity
    plan : DevicePlan
        Device and precision.
    backend : {"packed", "reference", "faesm"}
        A family without this backend uses its own default.
    attention : str
        The attention kernel of packed encoders, see `load_kernels`.

    Raises
    ------
    EncoderError
        If the backend cannot run the encoder, or its weights do not match config.json.
    DeviceError
        If the attention kernel cannot run on the device.
    """
    check_backend(identity, backend)
    checkpoint = identity.checkpoint
    family = identity.family
    chosen = family.effective_backend(backend)
    if chosen == "reference":
        return ReferenceEncoder(checkpoint, plan)
    if chosen == "faesm":
        from abag.embed.families.faesm import FaesmEncoder

        return FaesmEncoder(checkpoint, plan)
    if chosen != "packed":
        return family.build(checkpoint, plan)
    config = family.checked_config(checkpoint)
    architecture = family.architecture_of(config)
    packed = PackedRmsNormEncoder if architecture.norm == "rms" else PackedLayerNormEncoder
    return packed(
        checkpoint,
        config,
        architecture,
        identity.shape,
        plan,
        attention,
        positions=family.vocabulary.longest_span,
    )


class ReferenceEncoder:
    """A transformers module as an `Encoder`."""

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        family = FAMILIES[checkpoint.family]
        model = load_transformers_model(checkpoint)
        self.width = family.shape(checkpoint.config).width
        keep = family.fp32_weights if plan.dtype is torch.float16 else ()
        self._model = cast_parameters(model.eval().requires_grad_(False), plan, keep)
        self._pad_id = family.vocabulary.pad
        self._device = plan.device

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        out, is_token_NL = run_padded(
            self._model,
            batch,
            self._pad_id,
            self._device,
            output_hidden_states=layer_pooling is not None,
        )
        if layer_pooling is not None:
            for layer, hidden_NLD in enumerate(out.hidden_states):
                layer_pooling.add(layer, hidden_NLD[is_token_NL])
        hidden_TD: Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD


def run_padded(
    model: torch.nn.Module, batch: PackedBatch, pad_id: int, device: torch.device, **options: bool
) -> tuple[Any, Tensor]:
    """Run a transformers module on a padded copy of a batch.

    Returns its output, and which of the N spans' L places are tokens, shape (N, L).
    """
    ids_NL, is_token_NL = pad_batch(batch, pad_id, device)
    return model(input_ids=ids_NL, attention_mask=is_token_NL.long(), **options), is_token_NL


def cast_parameters(
    model: torch.nn.Module, plan: DevicePlan, keep: tuple[str, ...] = ()
) -> torch.nn.Module:
    """Move a model to the device, and convert its parameters to the plan's type.

    Those whose names end as in `keep` stay in their type.
    """
    # not buffers: rotary frequencies in bf16 give wrong angles at far positions
    for name, parameter in model.named_parameters():
        if not name.endswith(keep):
            parameter.data = parameter.data.to(plan.dtype)
    return model.to(plan.device)


def load_transformers_model(checkpoint: EncoderCheckpoint) -> torch.nn.Module:
    """Load a checkpoint as transformers' own module, on the CPU in fp32, with its adapter merged.

    A family that transformers has no class for is loaded as `EncoderModule`.

    Raises
    ------
    EncoderError
        If the weights do not match config.json.
    AbagError
        If this version of transformers has no class for the family, nor abag a module.
    """
    family = FAMILIES[checkpoint.family]
    config = family.checked_config(checkpoint)
    encoder = _transformers_class(family)
    if encoder is None:
        from abag.embed.families.encoder_module import EncoderModule

        model: torch.nn.Module = EncoderModule(
            family.architecture_of(config), family.shape(config), config
        )
    else:
        with torch.random.fork_rng(devices=[]):  # the initial values are not used
            settings = encoder.config_class.from_dict(dict(checkpoint.config))
            model = encoder(settings, **family.transformers_options).float()
    with EncoderWeights(checkpoint, DevicePlan(torch.device("cpu"), "fp32", "")) as weights:
        # parameters only: buffers such as rotary frequencies are computed
        for name, parameter in model.named_parameters():
            if not name.startswith(family.unused_weights):
                parameter.data = weights(name, *parameter.shape)
    return model


def _transformers_class(family: Family) -> Any:  # noqa: ANN401 - untyped
    """Return transformers' class, or None if abag's own module takes its place."""
    if not family.transformers_class:
        return None
    import transformers

    module_class = getattr(transformers, family.transformers_class, None)
    if module_class is not None:
        return module_class
    assert family.architecture is not None
    if family.architecture.gate and family.architecture.rotary:  # such as ESM C
        return None
    msg = (
        f"encoder family {family.name}: transformers {transformers.__version__} has no "
        f"{family.transformers_class}; run pip install -U transformers"
    )
    raise AbagError(msg)
