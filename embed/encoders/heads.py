"""Heads of language models: the log-probability of each residue, from hidden states.

The encoder reads a sequence once and unmasked, so each probability is that of a residue given the
whole sequence, itself included. T packed tokens, D hidden width, V tokens of the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from abag.core.errors import EncoderError
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.family import Family, LanguageHead
from abag.embed.encoders.weights import (
    EncoderCheckpoint,
    EncoderTensors,
    EncoderWeights,
    weight_files,
    weights_digest,
)

if TYPE_CHECKING:
    from torch import Tensor

    from abag.core.device import DevicePlan

HEAD_VERSION = 1
"""Part of the digest; changes if the meaning of a likelihood changes."""
CHUNK_TOKENS = 8192
"""Tokens whose scores are in memory at a time."""


def head_digest(checkpoint: EncoderCheckpoint) -> str:
    """Hash the head of a checkpoint's language model: 32 hexadecimal digits.

    Raises
    ------
    EncoderError
        If the encoder has no language model, or the checkpoint lacks the head's weights.
    """
    family, head = _head_of(checkpoint)
    meaning = {
        "head": HEAD_VERSION,
        "weights": weights_digest(_head_checkpoint(checkpoint)),
        "tied": head.is_tied(family.complete(checkpoint.config)),
    }
    canonical = json.dumps(meaning, sort_keys=True).encode()
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


def _head_of(checkpoint: EncoderCheckpoint) -> tuple[Family, LanguageHead]:
    family = FAMILIES[checkpoint.family]
    if family.head is None:
        msg = (
            f"--loglik: {checkpoint.name} is an encoder only, and has no language model that gives "
            "probabilities of residues; expected an encoder such as esm2-650m, esm1v-1, antiberty "
            "or igbert. Leave out --loglik, or give --kind with the other encoder only."
        )
        raise EncoderError(msg)
    return family, family.head


def _head_checkpoint(checkpoint: EncoderCheckpoint) -> EncoderCheckpoint:
    """Return a checkpoint that holds the head's tensors only."""
    family, head = _head_of(checkpoint)
    names = head.weight_names(family.complete(checkpoint.config))
    assert checkpoint.folder is not None
    files = weight_files(checkpoint.folder, names) or checkpoint.weights
    head_only = replace(checkpoint, weights=files, names=names, adapter=None)
    with EncoderTensors(head_only) as tensors:
        missing = sorted(set(names.only) - tensors.read.keys())
    if missing:
        msg = (
            f"--loglik: {checkpoint.origin} holds the encoder without the head of its language "
            f"model ({missing[0]} is missing); expected weights as of a model for masked tokens, "
            "such as EsmForMaskedLM. Leave out --loglik, or give such a checkpoint."
        )
        raise EncoderError(msg)
    return head_only


class LanguageModelHead:
    """Scores tokens from their hidden states; the last products are in fp32.

    Raises
    ------
    EncoderError
        If the encoder has no language model, or the checkpoint lacks the head's weights.
    """

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        import torch

        family, self._head = _head_of(checkpoint)
        config = family.complete(checkpoint.config)
        declared = family.architecture_of(config)
        width = family.shape(config).width
        size = int(config["vocab_size"])
        full = torch.float32
        self._eps = declared.epsilon(config)
        head = self._head
        self._dense: tuple[Tensor, Tensor] | None = None
        with EncoderWeights(_head_checkpoint(checkpoint), plan) as weights:
            if head.dense:
                rows = (1 + head.gated) * width
                self._dense = (
                    weights(f"{head.dense}.weight", rows, width),
                    weights(f"{head.dense}.bias", rows),
                )
            self._norm = weights(f"{head.norm}.weight", width, dtype=full)
            self._norm_bias: Tensor | None = None
            if head.norm_kind == "layer":
                self._norm_bias = weights(f"{head.norm}.bias", width, dtype=full)
            tied = head.is_tied(config)
            if not tied:
                decoder_VD = weights(head.decoder, size, width, dtype=full)
            self._bias = weights(head.bias, size, dtype=full) if head.bias else None
        if tied:
            # not EncoderWeights, which would miss the other tensors of the encoder
            with EncoderTensors(checkpoint) as tensors:
                embedding_VD = tensors.read[f"{declared.embedding}.weight"]()
                decoder_VD = embedding_VD.to(plan.device, full)
        self._decoder_VD = decoder_VD

    def log_probabilities(self, hidden_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Return the log-probability of each token among all tokens of the vocabulary.

        Parameters
        ----------
        hidden_TD : Tensor, shape=(T, D)
            The last hidden states, in the encoder's type.
        ids_T : Tensor, shape=(T,), dtype=integer
            The tokens that the encoder read.

        Returns
        -------
        Tensor, shape=(T,), dtype=float32
            Natural logarithms.
        """
        import torch

        ids_T1 = ids_T.long()[:, None]
        with torch.inference_mode():
            chunks = []
            for begin in range(0, len(ids_T1), CHUNK_TOKENS):
                chunk = slice(begin, begin + CHUNK_TOKENS)
                logp_TV = self.scores(hidden_TD[chunk]).log_softmax(1)
                chunks.append(logp_TV.gather(1, ids_T1[chunk])[:, 0])
            return torch.cat(chunks)

    def scores(self, x_TD: Tensor) -> Tensor:
        """Return the score of every token of the vocabulary, shape (T, V), in fp32.

        `x_TD` holds hidden states, shape (T, D).
        """
        import torch.nn.functional as F

        if self._dense is not None:
            weight, bias = self._dense
            x_TD = F.linear(x_TD.to(weight.dtype), weight, bias).float()
            if self._head.gated:
                first, gate = x_TD.chunk(2, dim=1)
                x_TD = F.silu(gate) * first
            else:
                x_TD = F.gelu(x_TD)
        x_TD = x_TD.float()
        if self._norm_bias is None:
            x_TD = F.rms_norm(x_TD, self._norm.shape, self._norm, self._eps)
        else:
            x_TD = F.layer_norm(x_TD, self._norm.shape, self._norm, self._norm_bias, self._eps)
        return F.linear(x_TD, self._decoder_VD, self._bias)
