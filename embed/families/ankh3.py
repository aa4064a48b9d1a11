"""Ankh 3: a gated T5 that is told its task, and whose token ids only its own files say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from abag.embed.families.architecture import Config
from abag.embed.families.t5 import (
    ANKH,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    T5Family,
    sentencepiece_model,
)
from abag.embed.families.vocabulary_files import PIECES_FILE, ids_by_pieces
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.sequences.chains import RESIDUES
from abag.embed.weights.checkpoints import BadCheckpoint

if TYPE_CHECKING:
    from abag.embed.weights.checkpoints import EncoderCheckpoint

_LETTERS = "LAGSVERTIDPKNFQYHMCWX"
"""In the order of their ids, from 7. Which tokens have the ids 3 to 6 is not published."""


class _Ankh3Family(T5Family):
    def vocabulary_of(self, checkpoint: EncoderCheckpoint) -> Vocabulary:
        """Read the ids of the task, of the residues and of the end from the tokenizer's files."""
        text = self.prefix_text + RESIDUES
        try:
            ids = self._read(checkpoint, text)
        except ValueError as error:
            msg = (
                f"{checkpoint.folder}: no readable tokenizer ({error}); "
                "copy the tokenizer's files into the folder"
            )
            raise BadCheckpoint(msg) from error
        canonical = ids[1 : len(RESIDUES)]  # not X, which may be read as an unknown token
        distinct = len({ids[0], *canonical, ids[-1]}) == len(RESIDUES) + 1
        known = max(ids) < checkpoint.config["vocab_size"]
        if len(ids) != len(RESIDUES) + 2 or not distinct or not known:
            msg = (
                f"{checkpoint.folder}: its tokenizer reads {text} as {len(ids)} tokens {ids}; "
                f"expected {self.prefix_text}, one token per residue and </s>; "
                "copy the tokenizer's files of the model into the folder"
            )
            raise BadCheckpoint(msg)
        table = np.full(256, -1, dtype=np.int32)
        table[[ord(letter) for letter in RESIDUES]] = ids[1:-1]
        return replace(self.vocabulary, ids=table, start=ids[0], end=ids[-1])

    def ids_by_files(self, checkpoint: EncoderCheckpoint, text: str) -> list[int] | None:
        """Return the ids of a text."""
        return self._read(checkpoint, text)

    def load_tokenizer(self, checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - untyped
        """Return a function like a tokenizer of transformers.

        Its own would add a token before the residues from version 5 on, because it takes the task
        for a word.
        """
        return lambda text: {"input_ids": self._read(checkpoint, text)}

    def _read(self, checkpoint: EncoderCheckpoint, text: str) -> list[int]:
        assert checkpoint.folder is not None
        return ids_by_pieces(checkpoint.folder, text)

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return a file of SentencePiece with the published ids."""
        specials = [("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)]
        tasks = [(f"[{name}]", USER_DEFINED) for name in ("NLU", "S2S", "NLG", "MASK")]
        letters = [(letter, NORMAL) for letter in _LETTERS]
        return {PIECES_FILE: sentencepiece_model(specials + tasks + letters, dummy_prefix=False)}


_CONFIG: Config = {"vocab_size": 256, "feed_forward_proj": "gated-silu"}
_OWN = {
    "name": "ankh3",
    "vocab_sizes": (256,),
    "vocabulary": Vocabulary(residue_ids(_LETTERS, 7), start=3, end=1),
    "prefix_text": "[NLU]",
    "tiny_config": {**ANKH.tiny_config, **_CONFIG},
    "reduced_config": {**ANKH.reduced_config, **_CONFIG},
}
ANKH3 = _Ankh3Family(**{**vars(ANKH), **_OWN})
"""Ankh 3; its `vocabulary` has the ids of its random checkpoints."""
