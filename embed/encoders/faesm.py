"""FAESM's ESM-2 as a backend: a second implementation, with FlashAttention if it is installed.

FAESM 0.1.1 works only with transformers 4.53, so it needs an environment of its own. This module
builds its inner model instead of `FAEsmForMaskedLM`, which always computes the language model's
head, derives the mask from padding ids, and starts in training mode with dropout 0.1.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.core.errors import MissingPackage
from abag.core.messages import first_line
from abag.embed.encoders.packing import pad_batch
from abag.embed.encoders.weights import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.encoders.packing import LayerPooling, PackedBatch
    from abag.embed.encoders.weights import EncoderCheckpoint


def import_faesm() -> ModuleType:
    """Import FAESM's module of ESM-2.

    Raises
    ------
    MissingPackage
        If it is not installed, or cannot be imported here.
    """
    try:
        # FAESM prints to stdout if flash-attn is missing, which would break --json
        with redirect_stdout(io.StringIO()):
            import faesm.esm
    # RuntimeError, AssertionError: with flash-attn installed, the import needs a CUDA device
    except (ImportError, RuntimeError, AssertionError) as error:
        msg = (
            f"--antigen-backend faesm: cannot import FAESM ({first_line(error)}); expected faesm "
            "0.1.1 with transformers 4.53. Run pip install 'abag[faesm]' in a separate "
            "environment, or omit the option."
        )
        raise MissingPackage(msg) from error
    return faesm.esm  # type: ignore[no-any-return]


class FaesmEncoder:
    """FAESM's ESM-2 on padded batches, as an `Encoder` that pools no inner layers."""

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        faesm = import_faesm()
        from transformers import EsmConfig

        half = plan.dtype is not torch.float32  # FlashAttention has no fp32
        flash = faesm.flash_attn_installed and plan.device.type == "cuda" and half
        self.width = int(checkpoint.config["hidden_size"])
        self._pad_id = int(checkpoint.config["pad_token_id"])
        self._device = plan.device
        # without flash-attn, FAESM raises a NameError unless it is told not to use it
        config = EsmConfig.from_dict({**checkpoint.config, "use_fa": flash})
        model = faesm.FAEsmModel(config, add_pooling_layer=False)
        self._model = model.eval().requires_grad_(False)
        # parameters only: rotary frequencies, which are buffers, are too coarse in bf16
        with EncoderWeights(checkpoint, plan) as weights:
            for name, parameter in model.named_parameters():
                if not name.startswith("contact_head."):
                    parameter.data = weights(name, *parameter.shape)
        model.to(plan.device)

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        ids_NL, is_token_NL = pad_batch(batch, self._pad_id, self._device)
        out = self._model(ids_NL, attention_mask=is_token_NL)
        hidden_TD: Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD
