"""BERT, RoFormer and RoBERTa: AntiBERTy, ProtBert and IgBert, AntiBERTa2, Ab-RoBERTa."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from abag.core.messages import first_line
from abag.embed.families.architecture import Architecture, Config, EncoderShape
from abag.embed.families.family import Family
from abag.embed.families.vocabulary_files import PIPELINE_FILE, WordTokenizer, letter_pipeline
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.sequences.chains import RESIDUES, Chains, Kind
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint, EncoderNotFound

_ANTIBERTY = "antiberty"


@dataclass(frozen=True, kw_only=True)
class _BertFamily(Family):
    tokens: str  # of vocab.txt

    def shape(self, config: Config) -> EncoderShape:
        return EncoderShape.of(self.complete(config))

    def complete(self, config: Config) -> dict[str, Any]:
        """Return config.json with the defaults of what it lacks."""
        return {"vocab_size": 30522, **super().complete(config)}

    def checked_config(self, checkpoint: EncoderCheckpoint) -> dict[str, Any]:
        """Return config.json with all defaults, if abag has the layers that it describes."""
        config = super().checked_config(checkpoint)
        if (size := config.get("embedding_size")) not in (None, self.shape(config).width):
            msg = (
                f"{checkpoint.folder}/config.json: embedding_size {size!r}; only "
                f"{self.shape(config).width} is supported"
            )
            raise BadCheckpoint(msg)
        positions, most = config["max_position_embeddings"], self._fewest_positions
        if positions < most:
            msg = (
                f"{checkpoint.folder}/config.json: max_position_embeddings {positions}; "
                f"{self.name} encoders need {most}"
            )
            raise BadCheckpoint(msg)
        return config

    @property
    def _fewest_positions(self) -> int:
        most = self.vocabulary.longest_span
        assert most is not None
        return most

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
        if checkpoint.origin != _ANTIBERTY and self.model_type != "roformer":
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


class _RobertaFamily(_BertFamily):
    """RoBERTa with a token per residue, whose ids only the files of a checkpoint say."""

    def vocabulary_of(self, checkpoint: EncoderCheckpoint) -> Vocabulary:
        """Read the ids of the tokens, and the longest span from the number of positions."""
        assert checkpoint.folder is not None
        path = checkpoint.folder / PIPELINE_FILE
        path = path if path.is_file() else checkpoint.folder / "vocab.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            found = found["model"]["vocab"] if path.name == PIPELINE_FILE else found
            at = {token: int(i) for token, i in found.items()}
            missing = [t for t in (*"ACDEFGHIKLMNPQRSTVWY", "<s>", "</s>", "<unk>") if t not in at]
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            msg = f"{path}: not the tokens of RoBERTa ({first_line(error)}); copy the file again"
            raise BadCheckpoint(msg) from error
        size = self.complete(checkpoint.config)["vocab_size"]
        if missing or not all(0 <= i < size for i in at.values()):
            problem = f"lacks {', '.join(missing)}" if missing else f"has ids above {size - 1}"
            msg = f"{path}: {problem}; expected a token per residue, as Ab-RoBERTa's"
            raise BadCheckpoint(msg)
        ids = residue_ids("", 0, other=at["<unk>"])
        for letter in RESIDUES:
            ids[ord(letter)] = at.get(letter, at["<unk>"])
        most = min(self._positions(checkpoint) - 2, self.vocabulary.max_residues or 0)
        return replace(
            self.vocabulary, ids=ids, start=at["<s>"], end=at["</s>"], max_residues=most,
            window=most,
        )  # fmt: skip

    def text(self, chains: Chains, kind: Kind) -> str:
        """Write the chains of one span; a byte-level tokenizer would skip a letter it lacks."""
        return super().text(chains, kind).replace("X", "<unk>")

    @property
    def _fewest_positions(self) -> int:
        return 0  # `vocabulary_of` makes shorter spans where there are fewer

    def _positions(self, checkpoint: EncoderCheckpoint) -> int:
        """Return how many tokens have a position: they count from the padding's id."""
        config = self.complete(checkpoint.config)
        if (positions := config["max_position_embeddings"] - config["pad_token_id"] - 1) < 3:
            msg = (
                f"{checkpoint.folder}/config.json: max_position_embeddings "
                f"{config['max_position_embeddings']}; expected more than pad_token_id + 3"
            )
            raise BadCheckpoint(msg)
        return int(positions)

    def tokenizer_files(self) -> dict[str, bytes]:
        ids = {token: i for i, token in enumerate(self.tokens.split())}
        config = {"tokenizer_class": "RobertaTokenizer"}
        return {
            PIPELINE_FILE: letter_pipeline(ids, "<s> $A </s>"),
            "tokenizer_config.json": json.dumps(config).encode(),
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
_LAYERS = Architecture(
    embedding="embeddings.word_embeddings",
    type_embedding="embeddings.token_type_embeddings",
    position_embedding="embeddings.position_embeddings",
    first_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    qkv=tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
    out="attention.output.dense",
    up=("intermediate.dense",),
    down="output.dense",
    norm_after=True,
)
BERT = _BertFamily(
    name="bert",
    model_type="bert",
    tokens=_ANTIBERTY_TOKENS,
    vocabulary=_vocabulary(_ANTIBERTY_TOKENS, most=510, window=510),
    backends=("packed", "reference"),
    config_defaults=_DEFAULTS,
    required={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "rotary_value": False,
        "is_decoder": False,
    },
    architecture=_LAYERS,
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
    architecture=replace(_LAYERS, position_embedding="", rotary="neighbours"),
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
_ROBERTA_CONFIG: Config = {
    **_TINY_CONFIG, "model_type": "roberta", "max_position_embeddings": 152, "pad_token_id": 1,
}  # fmt: skip
ROBERTA = _RobertaFamily(
    name="roberta",
    model_type="roberta",
    tokens="<s> <pad> </s> <unk> <mask> A C D E F G H I K L M N P Q R S T V W Y",
    # trained on 150 tokens, two of them special; its ids are those of random checkpoints
    vocabulary=Vocabulary(
        residue_ids("ACDEFGHIKLMNPQRSTVWY", 5, other=3),
        start=0,
        end=2,
        pad=1,
        max_residues=148,
        window=148,
    ),
    backends=BERT.backends,
    config_defaults={**_DEFAULTS, "pad_token_id": 1},
    required=BERT.required,
    architecture=replace(_LAYERS, positions_after_pad=True),
    transformers_class="RobertaModel",
    transformers_options=BERT.transformers_options,
    weight_prefix="roberta.",
    unused_weights=BERT.unused_weights,
    lora_targets=BERT.lora_targets,
    lora_projections=BERT.lora_projections,
    spaced=False,
    tiny_config=_ROBERTA_CONFIG,
    reduced_config={**_ROBERTA_CONFIG, **_REDUCED},
)
"""Ab-RoBERTa (Huh et al., arXiv:2506.13006): one chain per span."""
