"""FAESM's ESM-2 as a backend: a second implementation, with FlashAttention where it is installed.

FAESM 0.1.1 works with transformers 4.53 only, so it lives in an extra and an environment of its
own. Here its inner model is built, not `FAEsmForMaskedLM`: that one always computes the language
model's head, rebuilds the mask from padding ids, and starts in training mode with dropout 0.1.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from abag import AbagError
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import PackedBatch
    from abag.embed.packing.pooling import LayerPooling
    from abag.embed.weights.checkpoints import EncoderCheckpoint


class FaesmUnavailable(AbagError):
    """FAESM is not installed, or stands beside a transformers that it does not work with."""


def import_faesm() -> ModuleType:
    """Import FAESM's ESM-2.

    Raises
    ------
    FaesmUnavailable
        Saying what is installed and what is needed.
    """
    try:
        # its note that flash-attn is absent would spoil the one JSON object on stdout
        with redirect_stdout(io.StringIO()):
            import faesm.esm
    # not only ImportError: with flash-attn installed it asks for a CUDA device while imported
    except (ImportError, RuntimeError, AssertionError) as error:
        found = ", ".join(f"{name} {_version(name)}" for name in ("faesm", "transformers"))
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        msg = (
            f"--antigen-backend faesm: cannot be imported ({first_line}); found {found}, needed "
            "faesm 0.1.1 with transformers 4.53; pip install 'abag[faesm]' into an environment "
            "of its own, or leave the option out"
        )
        raise FaesmUnavailable(msg) from error
    return faesm.esm  # type: ignore[no-any-return]


class FaesmEncoder:
    """FAESM's ESM-2 over padded batches, behind the `Encoder` protocol."""

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        faesm = import_faesm()
        half = plan.dtype is not torch.float32  # FlashAttention has no fp32
        flash = faesm.flash_attn_installed and plan.device.type == "cuda" and half
        self.width = int(checkpoint.config["hidden_size"])
        self._pad = int(checkpoint.config["pad_token_id"])
        self._device = plan.device
        self._model = _build(faesm, checkpoint, use_fa=flash)
        _load(self._model, checkpoint, plan)

    @torch.inference_mode()
    def __call__(
        self, batch: PackedBatch, layer_pooling: LayerPooling | None = None
    ) -> torch.Tensor:
        """Encode a batch: see `Encoder`."""
        lengths_N = torch.from_numpy(batch.offsets).diff()
        inside_NL = torch.arange(batch.max_length)[None, :] < lengths_N[:, None]
        ids_NL = torch.full(inside_NL.shape, self._pad)
        ids_NL[inside_NL] = torch.from_numpy(batch.ids).long()
        inside_NL = inside_NL.to(self._device)
        out = self._model(ids_NL.to(self._device), attention_mask=inside_NL)
        hidden_TD: torch.Tensor = out.last_hidden_state[inside_NL]
        return hidden_TD


def _build(faesm: ModuleType, checkpoint: EncoderCheckpoint, *, use_fa: bool) -> Any:  # noqa: ANN401
    """FAESM's model in eval mode, its weights not loaded yet."""
    from transformers import EsmConfig

    config = EsmConfig.from_dict({**checkpoint.config, "use_fa": use_fa})
    return faesm.FAEsmModel(config, add_pooling_layer=False).eval().requires_grad_(False)


def _load(model: torch.nn.Module, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
    """Put the checkpoint's weights into the model, every one accounted for.

    Parameters only: rotary frequencies in bf16 would turn far positions by wrong angles.
    """
    with EncoderWeights(checkpoint, plan) as take:
        take.ignore("lm_head.", "esm.contact_head.", "esm.pooler.", "esm.embeddings.position_")
        take.ignore(*(f"esm.{name}" for name, _ in model.named_buffers()))
        for name, parameter in model.named_parameters():
            if not name.startswith("contact_head."):
                parameter.data = take(f"esm.{name}", *parameter.shape)
    model.to(plan.device)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
