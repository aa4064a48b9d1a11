"""Identified encoders to modules on a device, with the reference for every faster path.

The reference runs transformers' own modules over padded batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abag.core.device import DevicePlan
from abag.core.messages import first_line
from abag.embed.encoders.identity import Identity, check_backend
from abag.embed.families.family import Backend, Encoder
from abag.embed.families.registry import FAMILIES
from abag.embed.packing.batches import PackedBatch, pad_batch
from abag.embed.packing.tokens import Layout, TokenizerMismatch
from abag.embed.sequences.chains import RESIDUES, Chains
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint

if TYPE_CHECKING:
    from abag.embed.packing.batches import LayerPooling


def load_encoder(
    identity: Identity, plan: DevicePlan, *, backend: Backend = "packed", attention: str = "auto"
) -> Encoder:
    """Load an encoder's weights onto a device.

    A family that lacks the backend uses its own default. `attention` is the kernel of the packed
    encoders; ``"auto"`` takes the fastest that runs on the device.

    Raises
    ------
    WrongBackend, FaesmUnavailable, AttentionUnavailable
        The backend or the kernel cannot run this encoder on this device.
    BadCheckpoint, TokenizerMismatch, AdapterMismatch
        The weights contradict config.json, the tokenizer abag's vocabulary, or the adapter the
        weights.
    """
    check_backend(identity, backend)
    check_tokenizer(identity.checkpoint, identity.layout)
    return build_encoder(identity, plan, identity.family.effective_backend(backend), attention)


def build_encoder(identity: Identity, plan: DevicePlan, backend: str, attention: str) -> Encoder:
    """As `load_encoder`, with a backend of the family, and a tokenizer that has been checked."""
    if backend == "reference":
        return ReferenceEncoder(identity.checkpoint, plan)
    return identity.family.build(backend, identity.checkpoint, plan, attention)


def check_loadable(identity: Identity) -> None:
    """Check that a packed encoder can be built, without reading its weights.

    On torch's meta device a tensor is only a name and a shape; the first call takes 2 to 7 s,
    because torch imports its compiler for arithmetic there.

    Raises
    ------
    BadCheckpoint, AdapterMismatch
    """
    if "packed" in identity.family.backends:
        plan = DevicePlan(torch.device("meta"), "fp32", "check of the weights")
        build_encoder(identity, plan, "packed", "auto")


class ReferenceEncoder:
    """A transformers module as an `Encoder`.

    Raises
    ------
    BadCheckpoint, AdapterMismatch
        See `load_transformers_model`.
    """

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
        """Encode a batch: see `Encoder`."""
        inner = {"output_hidden_states": layer_pooling is not None}
        out, is_token_NL = run_padded(self._model, batch, self._pad_id, self._device, **inner)
        if layer_pooling is not None:
            for layer, hidden_NLD in enumerate(out.hidden_states):
                layer_pooling.add(layer, hidden_NLD[is_token_NL])
        hidden_TD: Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD


def run_padded(
    model: torch.nn.Module, batch: PackedBatch, pad_id: int, device: torch.device, **options: bool
) -> tuple[Any, Tensor]:
    """Run a transformers module on a padded copy of a batch.

    Returns
    -------
    out : object
        The module's output, with ``last_hidden_state`` of shape (N, L, D).
    is_token_NL : Tensor, shape=(N, L), dtype=bool
        False is padding.
    """
    ids_NL, is_token_NL = pad_batch(batch, pad_id, device)
    return model(input_ids=ids_NL, attention_mask=is_token_NL.long(), **options), is_token_NL


def cast_parameters(
    model: torch.nn.Module, plan: DevicePlan, keep: tuple[str, ...] = ()
) -> torch.nn.Module:
    """Move a model to the plan's device and its parameters to the plan's type.

    Parameters whose names have an end in `keep` keep their type. So do buffers: rotary frequencies
    in bf16 give wrong angles at far positions.
    """
    for name, parameter in model.named_parameters():
        if not name.endswith(keep):
            parameter.data = parameter.data.to(plan.dtype)
    return model.to(plan.device)


def check_tokenizer(checkpoint: EncoderCheckpoint, layout: Layout) -> None:
    """Check that a checkpoint's own tokenizer, if any, returns abag's ids of every residue letter.

    Raises
    ------
    TokenizerMismatch
        With the first position that differs.
    BadCheckpoint
        No readable tokenizer.
    """
    if checkpoint.folder is None:
        return
    family, tokenizer = FAMILIES[checkpoint.family], None
    probes = [(RESIDUES, ""), ("EVQLXW", "DIQMTX")]
    for probe in probes:
        chains: Chains = probe if layout.kind == "antibody" else probe[:1]
        spans = layout.spans(chains)
        ours = spans[0].ids.tolist()
        if len(spans) > 1:  # the second chain has a span of its own
            chains = (probe[0], "")
        text = family.text(chains, layout.kind)
        if ours == family.ids_by_files(checkpoint, text):
            continue
        with quiet_transformers():
            tokenizer = tokenizer or load_tokenizer(checkpoint)
            with _readable(checkpoint):
                theirs: list[int] = list(tokenizer(text)["input_ids"])
        if ours != theirs:
            shorter = min(len(ours), len(theirs))
            at = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
            msg = (
                f"{checkpoint.origin}: its tokenizer disagrees with abag's vocabulary at position "
                f"{at} of {'|'.join(probe)}: {theirs[at : at + 1]}, expected {ours[at : at + 1]} "
                f"({len(theirs)} tokens, expected {len(ours)}). "
                "Use a checkpoint of the family that config.json names, with all files of its "
                "tokenizer."
            )
            raise TokenizerMismatch(msg)


def load_tokenizer(checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - untyped
    """Load a checkpoint's tokenizer.

    Raises
    ------
    BadCheckpoint
    """
    with _readable(checkpoint):
        return FAMILIES[checkpoint.family].load_tokenizer(checkpoint)


@contextmanager
def _readable(checkpoint: EncoderCheckpoint) -> Iterator[None]:
    """Turn what a tokenizer of damaged files raises into one line."""
    try:
        yield
    except ImportError:  # of a package that this kind of tokenizer needs
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        msg = (
            f"{checkpoint.folder}: no readable tokenizer ({first_line(error)}); "
            "copy the tokenizer's files into the folder"
        )
        raise BadCheckpoint(msg) from error


def load_transformers_model(checkpoint: EncoderCheckpoint) -> torch.nn.Module:
    """Load a checkpoint as transformers' own module, in fp32, with its adapter merged.

    Raises
    ------
    BadCheckpoint
        Weights that are missing, or that the module does not have.
    AdapterMismatch
        An adapter with changes that match no weight.
    """
    with quiet_transformers():
        model, unmatched = FAMILIES[checkpoint.family].load_reference(checkpoint)
    if unmatched:
        msg = (
            f"{checkpoint.folder}: {len(unmatched)} encoder weights are missing, or not part of a "
            f"{checkpoint.family} encoder as config.json describes it "
            f"({', '.join(sorted(unmatched)[:3])}); the download may be incomplete"
        )
        raise BadCheckpoint(msg)
    if (adapter := checkpoint.adapter) is not None:
        for name, parameter in model.named_parameters():
            parameter.data = adapter.merge(name, parameter.data)
        adapter.check_all_merged(name for name, _ in model.named_parameters())
    return model


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' warnings about unused task heads; abag checks the weights itself."""
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
