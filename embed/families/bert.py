"""AntiBERTy, and other BERT encoders with its vocabulary."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from abag.embed.families.family import Config, EncoderShape, Family
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.weights.checkpoints import EncoderCheckpoint, EncoderNotFound

_ANTIBERTY = "antiberty"


class _BertFamily(Family):
    def shape(self, config: Config) -> EncoderShape:
        width = config.get("hidden_size", 768)
        layers, inner = config.get("num_hidden_layers", 12), config.get("intermediate_size", 3072)
        return EncoderShape(layers, width, width, inner)

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
        if checkpoint.origin != _ANTIBERTY:
            return super().load_tokenizer(checkpoint)
        from transformers import BertTokenizer

        assert checkpoint.folder is not None
        return BertTokenizer(str(checkpoint.folder / "vocab.txt"), do_lower_case=False)


BERT = _BertFamily(
    name="bert",
    # X has no id of its own: the tokenizer returns [UNK], id 1
    vocabulary=Vocabulary(
        residue_ids("ACDEFGHIKLMNPQRSTVWY", 5, other=1),
        start=2, end=3, max_residues=510, window=510,
    ),
    backends=("reference",),
    config_defaults={
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "pad_token_id": 0, "is_decoder": False, "add_cross_attention": False,
    },
    transformers_class="BertModel",
    transformers_options={"add_pooling_layer": False},
    weight_prefix="bert.",
    unused_weights=("pooler.",),
    lora_targets=("query", "value"),
    lora_projections=("query", "key", "value"),
    layer_list="layer",
)  # fmt: skip
