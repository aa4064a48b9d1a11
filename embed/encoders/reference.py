"""The plain path: transformers' own modules over padded batches.

Every fast path is compared with this one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from abag.embed.packing.batches import PackedBatch
from abag.embed.packing.tokens import Layout, check_against_tokenizer
from abag.embed.sequences.chains import Chains
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.packing.pooling import LayerPooling


PAD = {"t5": 0, "esm": 1, "bert": 0}


class ReferenceEncoder:
    """A transformers encoder behind the `Encoder` protocol."""

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        with quiet_transformers():
            model = load_module(checkpoint)
        self.width = int(model.config.hidden_size)
        self._model = cast_parameters(model.eval().requires_grad_(False), plan)
        if plan.dtype is torch.float16 and checkpoint.family == "t5":
            _keep_t5_in_range(self._model)
        self._pad = PAD[checkpoint.family]
        self._device = plan.device

    @torch.inference_mode()
    def __call__(
        self, batch: PackedBatch, layer_pooling: LayerPooling | None = None
    ) -> torch.Tensor:
        """Encode a batch: see `Encoder`."""
        out, inside_NL = run_padded(
            self._model,
            batch,
            self._pad,
            self._device,
            output_hidden_states=layer_pooling is not None,
        )
        if layer_pooling is not None:
            for layer, hidden_NLD in enumerate(out.hidden_states):
                layer_pooling.add(layer, hidden_NLD[inside_NL])
        hidden_TD: torch.Tensor = out.last_hidden_state[inside_NL]
        return hidden_TD


def run_padded(
    model: Any,  # noqa: ANN401 - transformers' is untyped
    batch: PackedBatch,
    pad: int,
    device: torch.device,
    **asked: bool,
) -> tuple[Any, torch.Tensor]:
    """Run a transformers module over a padded copy of a batch.

    Returns
    -------
    output of the module, and Tensor, shape=(N, L), dtype=bool
        The latter says which places hold the batch's tokens, in their order.
    """
    lengths_N = torch.from_numpy(batch.offsets).diff()
    inside_NL = torch.arange(batch.max_length)[None, :] < lengths_N[:, None]
    ids_NL = torch.full(inside_NL.shape, pad, dtype=torch.int64)
    ids_NL[inside_NL] = torch.from_numpy(batch.ids).long()
    inside_NL = inside_NL.to(device)
    out = model(input_ids=ids_NL.to(device), attention_mask=inside_NL.long(), **asked)
    return out, inside_NL


def cast_parameters(model: Any, plan: DevicePlan) -> Any:  # noqa: ANN401 - transformers' is untyped
    """Send a model to the device and its parameters, but not its buffers, to the type.

    Rotary frequencies are buffers: in bf16 they turn residue 1,000 by the wrong angle.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(plan.dtype)
    return model.to(plan.device)


def check_tokenizer(checkpoint: EncoderCheckpoint, layout: Layout) -> None:
    """Refuse a checkpoint whose own tokenizer gives other ids than our table.

    Raises
    ------
    TokenizerMismatch, BadCheckpoint
    """
    with quiet_transformers():
        tokenizer = _tokenizer(checkpoint)

    def tokenize(chains: Chains) -> Sequence[int]:
        spaced = [" ".join(chain) for chain in chains if chain]
        ids: list[int] = tokenizer(" </s> ".join(spaced))["input_ids"]
        return ids

    check_against_tokenizer(layout, tokenize, checkpoint.origin)


def _tokenizer(checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - transformers' is untyped
    from transformers import AutoTokenizer, BertTokenizer

    if checkpoint.origin == "antiberty":
        assert checkpoint.folder is not None
        return BertTokenizer(str(checkpoint.folder / "vocab.txt"), do_lower_case=False)
    try:
        return AutoTokenizer.from_pretrained(checkpoint.folder, do_lower_case=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        msg = (
            f"{checkpoint.folder}: no readable tokenizer ({first_line}); "
            "copy its files beside config.json"
        )
        raise BadCheckpoint(msg) from error


def load_module(checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - transformers' is untyped
    """Load a checkpoint as transformers' own module, in fp32, its adapter merged.

    Raises
    ------
    BadCheckpoint, AdapterMismatch
    """
    model = _load(checkpoint)
    if (adapter := checkpoint.adapter) is not None:
        for name, parameter in model.named_parameters():
            parameter.data = adapter.merge(name, parameter.data)
        adapter.refuse_unmerged(name for name, _ in model.named_parameters())
    return model


def _load(checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - transformers' is untyped
    from transformers import BertConfig, BertModel, EsmModel, T5EncoderModel

    if checkpoint.origin == "antiberty":
        model = BertModel(BertConfig(**checkpoint.config), add_pooling_layer=False)
        state = torch.load(checkpoint.weights[0], map_location="cpu", weights_only=True)
        inner = {k.removeprefix("bert."): v for k, v in state.items() if k.startswith("bert.")}
        missing = model.load_state_dict(inner, strict=False).missing_keys
        _refuse_missing(checkpoint, missing)
        return model
    kind: Any = {"t5": T5EncoderModel, "esm": EsmModel, "bert": BertModel}[checkpoint.family]
    extra = {} if checkpoint.family == "t5" else {"add_pooling_layer": False}
    model, report = kind.from_pretrained(checkpoint.folder, output_loading_info=True, **extra)
    # buffers such as rotary frequencies are computed; ESM's contact head is no part of the encoder
    needed = {name for name, _ in model.named_parameters() if "contact_head" not in name}
    _refuse_missing(checkpoint, sorted(needed & set(report["missing_keys"])))
    return model.float()


def _refuse_missing(checkpoint: EncoderCheckpoint, missing: Sequence[str]) -> None:
    if missing:
        shown = ", ".join(sorted(missing)[:3])
        msg = (
            f"{checkpoint.folder}: {len(missing)} encoder weights are missing ({shown}); "
            "the download may be incomplete"
        )
        raise BadCheckpoint(msg)


def _keep_t5_in_range(model: torch.nn.Module) -> None:
    """T5 in fp16: its residual stream passes 65,504, so `wo` and the norms stay in fp32."""
    for name, module in model.named_modules():
        if name.endswith(".wo"):
            module.float()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' notes on unused task heads: missing weights are our own error."""
    import transformers

    log: Any = transformers.utils.logging
    bars = log.is_progress_bar_enabled()
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    log.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            log.enable_progress_bar()
