"""ESM-2: one chain per sequence, with a classification token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from abag.embed.families.architecture import Architecture, Config, EncoderShape
from abag.embed.families.family import DrawNormal, Encoder, Family, Weights
from abag.embed.families.vocabulary_files import WordTokenizer
from abag.embed.packing.tokens import Vocabulary, residue_ids

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.weights.checkpoints import EncoderCheckpoint, WeightNames

_TINY_CONFIG: Config = {
    "model_type": "esm", "architectures": ["EsmForMaskedLM"], "hidden_size": 64,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 33, "max_position_embeddings": 1026, "layer_norm_eps": 1e-5,
    "position_embedding_type": "rotary", "token_dropout": True,
    "emb_layer_norm_before": False, "hidden_act": "gelu", "mask_token_id": 32,
    "pad_token_id": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "is_folding_model": False,
}  # fmt: skip
_VOCABULARY = (
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
)


class _EsmFamily(Family):
    def shape(self, config: Config) -> EncoderShape:
        return EncoderShape.of(config)

    def build(
        self, backend: str, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str
    ) -> Encoder:
        if backend != "faesm":
            return super().build(backend, checkpoint, plan, attention)
        from abag.embed.families.faesm import FaesmEncoder

        self.checked_config(checkpoint)
        return FaesmEncoder(checkpoint, plan)

    def weight_names(self, config: Config) -> WeightNames:
        """Return the names of the weights; ESM-2's old position embeddings are not used."""
        names = super().weight_names(config)
        if config.get("position_embedding_type") != "rotary":
            return names
        return replace(names, unused=(*names.unused, "embeddings.position_embeddings."))

    def random_weights(self, config: Config, draw: DrawNormal) -> Weights:
        """Draw weights of an ESM-2 encoder and its contact head."""
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        embedding = draw((config["vocab_size"], hidden), 1.0)
        weights = {"esm.embeddings.word_embeddings.weight": embedding}

        def linear(name: str, rows: int, columns: int) -> None:
            weights[f"{name}.weight"] = draw((rows, columns), columns**-0.5)
            weights[f"{name}.bias"] = draw((rows,), 0.1)

        def norm(name: str) -> None:
            weights[f"{name}.weight"] = 1 + draw((hidden,), 0.1)
            weights[f"{name}.bias"] = draw((hidden,), 0.1)

        for i in range(layers):
            at = f"esm.encoder.layer.{i}"
            for projection in ("query", "key", "value"):
                linear(f"{at}.attention.self.{projection}", hidden, hidden)
            linear(f"{at}.attention.output.dense", hidden, hidden)
            norm(f"{at}.attention.LayerNorm")
            linear(f"{at}.intermediate.dense", inner, hidden)
            linear(f"{at}.output.dense", hidden, inner)
            norm(f"{at}.LayerNorm")
        norm("esm.encoder.emb_layer_norm_after")
        linear("esm.contact_head.regression", 1, layers * heads)
        return weights

    def tokenizer_files(self) -> dict[str, bytes]:
        config = {
            "tokenizer_class": "EsmTokenizer", "cls_token": "<cls>", "eos_token": "<eos>",
            "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
        }  # fmt: skip
        return {
            "vocab.txt": "\n".join(_VOCABULARY.split()).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


_LAYERS = Architecture(
    embedding="embeddings.word_embeddings",
    layers="encoder.layer",
    norms=("attention.LayerNorm", "LayerNorm"),
    qkv=tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
    out="attention.output.dense",
    up=("intermediate.dense",),
    down="output.dense",
    last_norm="encoder.emb_layer_norm_after",
    rotary="halves",
    # the embeddings are scaled by the share of tokens that were not masked in training
    embedding_scale=1 - 0.15 * 0.8,
)
ESM = _EsmFamily(
    name="esm",
    model_type="esm",
    vocabulary=Vocabulary(
        residue_ids("LAGVSERTIDPKQNFYMHWCX", 4), start=0, end=2, pad=1, max_residues=1022,
        has_cls=True,
    ),
    backends=("packed", "reference", "faesm"),
    config_keys=(
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "layer_norm_eps", "max_position_embeddings",
    ),
    config_defaults={
        "hidden_act": "gelu", "position_embedding_type": "absolute", "rope_theta": 10000.0,
        "emb_layer_norm_before": False, "token_dropout": False, "mask_token_id": 32,
        "pad_token_id": 1, "is_decoder": False, "add_cross_attention": False,
    },
    required={
        "position_embedding_type": "rotary", "rope_theta": 10000.0, "token_dropout": True,
        "mask_token_id": 32, "emb_layer_norm_before": False, "hidden_act": "gelu",
        "is_decoder": False,
    },
    architecture=_LAYERS,
    transformers_class="EsmModel",
    transformers_options={"add_pooling_layer": False},
    weight_prefix="esm.",
    unused_weights=("contact_head.", "pooler."),
    tokenizer=WordTokenizer(("EsmTokenizer",), ("cls_token", "<cls>"), ("eos_token", "<eos>")),
    lora_targets=("query", "value"),
    lora_projections=("query", "key", "value"),
    tiny_config=_TINY_CONFIG,
    reduced_config={
        **_TINY_CONFIG, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        "num_hidden_layers": 4,
    },
)  # fmt: skip
