"""BERT and RoFormer: AntiBERTy, ProtBert and IgBert, AntiBERTa2."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag.embed.families.family import Config, Encoder, EncoderShape, Family
from abag.embed.families.vocabulary_files import WordTokenizer
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.sequences.chains import RESIDUES
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint, EncoderNotFound

if TYPE_CHECKING:
    from abag.core.device import DevicePlan

_ANTIBERTY = "antiberty"


@dataclass(frozen=True, kw_only=True)
class _BertFamily(Family):
    tokens: str  # of vocab.txt

    def shape(self, config: Config) -> EncoderShape:
        return EncoderShape.of(self.complete(config))

    def build(
        self, backend: str, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str
    ) -> Encoder:
        from abag.embed.families.packed_bert import PackedBert

        config = self.require(
            checkpoint, hidden_act="gelu", position_embedding_type="absolute", rotary_value=False,
            embedding_size=self.shape(checkpoint.config).width, is_decoder=False,
        )  # fmt: skip
        if (positions := config["max_position_embeddings"]) < self.positions:
            msg = (
                f"{checkpoint.folder}/config.json: max_position_embeddings {positions}; "
                f"{self.name} encoders need {self.positions}"
            )
            raise BadCheckpoint(msg)
        return PackedBert(checkpoint, {"vocab_size": 30522, **config}, plan, attention)

    def builtin_checkpoint(self, alias: str) -> EncoderCheckpoint:
        """Find the weights inside the package antiberty; its code is never imported.

        Raises
        ------
        EncoderNotFound
            If the package is not installed.
        """
        spec = find_spec("antiberty")
        if spec is None or not spec.submodule_search_locations:
            msg = (
                "encoder antiberty: the package antiberty is not installed; "
                "run pip install 'abag[antiberty]'"
            )
            raise EncoderNotFound(msg)
        root = Path(spec.submodule_search_locations[0]) / "trained_models"
        folder = root / "AntiBERTy_md_smooth"
        config = json.loads((folder / "config.json").read_text())
        weights = (folder / "pytorch_model.bin",)
        names = self.weight_names(config)
        return EncoderCheckpoint(alias, self.name, root, weights, config, _ANTIBERTY, names=names)

    def load_tokenizer(self, checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - untyped
        """Load the checkpoint's tokenizer.

        RoFormer's own class splits Chinese words with an extra package; residues with spaces
        between them are split alike by BERT's.
        """
        if checkpoint.origin != _ANTIBERTY and checkpoint.config["model_type"] == "bert":
            return super().load_tokenizer(checkpoint)
        from transformers import BertTokenizer

        assert checkpoint.folder is not None
        if not (path := checkpoint.folder / "vocab.txt").is_file():
            msg = "no vocab.txt"
            raise OSError(msg)
        return BertTokenizer(str(path), do_lower_case=False)

    def tokenizer_files(self) -> dict[str, bytes]:
        options = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
        return {
            "vocab.txt": "\n".join(self.tokens.split()).encode(),
            "tokenizer_config.json": json.dumps(options).encode(),
        }


def _vocabulary(tokens: str, *, paired: bool = False, most: int, window: int) -> Vocabulary:
    """Number tokens in their order; residues without one are unknown."""
    at = {token: i for i, token in enumerate(tokens.split())}
    ids = residue_ids("", 0, other=at["[UNK]"])
    for letter in RESIDUES:
        ids[ord(letter)] = at.get(letter, at["[UNK]"])
    marks = (at["Ḣ"], at["Ḷ"]) if "Ḣ" in at else None
    return Vocabulary(
        ids, start=at["[CLS]"], end=at["[SEP]"], separator=at["[SEP]"] if paired else None,
        chain_tokens=marks, pad=at["[PAD]"], max_residues=most, window=window,
    )  # fmt: skip


_ANTIBERTY_TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] A C D E F G H I K L M N P Q R S T V W Y"
_PROTBERT_TOKENS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] L A G V E S I K R D T P N Q F Y M H C W X U B Z O"
)
_ANTIBERTA2_TOKENS = "[PAD] [CLS] [SEP] [MASK] [UNK] A C D E F G H I K L M N P Q R S T V W Y X Ḣ Ḷ"
_DEFAULTS: Config = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "position_embedding_type": "absolute",
    "type_vocab_size": 2, "pad_token_id": 0, "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
_TINY_CONFIG: Config = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 256, "vocab_size": 25, "type_vocab_size": 2,
    "max_position_embeddings": 512,
}  # fmt: skip
_REDUCED: Config = {
    "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 4,
}  # fmt: skip
BERT = _BertFamily(
    name="bert",
    model_type="bert",
    tokens=_ANTIBERTY_TOKENS,
    vocabulary=_vocabulary(_ANTIBERTY_TOKENS, most=510, window=510),
    backends=("packed", "reference"),
    config_defaults=_DEFAULTS,
    transformers_class="BertModel",
    transformers_options={"add_pooling_layer": False},
    tokenizer=WordTokenizer(
        ("BertTokenizer", "RoFormerTokenizer"), ("cls_token", "[CLS]"), ("sep_token", "[SEP]")
    ),
    weight_prefix="bert.",
    unused_weights=("pooler.",),
    lora_targets=("query", "value"),
    lora_projections=("query", "key", "value"),
    tiny_config=_TINY_CONFIG,
    reduced_config={**_TINY_CONFIG, **_REDUCED},
)
"""AntiBERTy, and other BERT encoders with its vocabulary."""
_PROTBERT_CONFIG: Config = {
    **_TINY_CONFIG, "vocab_size": 30, "max_position_embeddings": 1024,
}  # fmt: skip
PROTBERT = replace(
    BERT,
    name="protbert",
    vocab_sizes=(30,),
    tokens=_PROTBERT_TOKENS,
    vocabulary=_vocabulary(_PROTBERT_TOKENS, paired=True, most=1021, window=1022),
    separator_text=" [SEP] ",
    tiny_config=_PROTBERT_CONFIG,
    reduced_config={**_PROTBERT_CONFIG, **_REDUCED},
)
"""ProtBert, and IgBert, which was trained on it."""
_ROFORMER_CONFIG: Config = {
    **_TINY_CONFIG, "model_type": "roformer", "vocab_size": 30, "max_position_embeddings": 256,
}  # fmt: skip
ROFORMER = replace(
    BERT,
    name="roformer",
    model_type="roformer",
    tokens=_ANTIBERTA2_TOKENS,
    vocabulary=_vocabulary(_ANTIBERTA2_TOKENS, paired=True, most=251, window=251),
    config_defaults={
        **_DEFAULTS, "max_position_embeddings": 1536, "rotary_value": False,
        "embedding_size": None,
    },
    transformers_class="RoFormerModel",
    transformers_options={},
    weight_prefix="roformer.",
    unused_weights=("pooler.", "encoder.embed_positions."),
    separator_text=" [SEP] ",
    chain_texts=("Ḣ", "Ḷ"),
    tiny_config=_ROFORMER_CONFIG,
    reduced_config={**_ROFORMER_CONFIG, **_REDUCED},
)  # fmt: skip
"""AntiBERTa2."""
