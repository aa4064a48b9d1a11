"""BERT, RoFormer and RoBERTa: AntiBERTy, ProtBert and IgBert, AntiBERTa2, Ab-RoBERTa."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from abag.embed.encoders.family import Architecture, Config, Family, LanguageHead, Package
from abag.embed.encoders.packing import Vocabulary, number_tokens


def _check(config: Config) -> str:
    """Say whether a config.json describes embeddings of another width."""
    if (size := config.get("embedding_size")) in (None, config.get("hidden_size", 768)):
        return ""
    return f"embedding_size {size!r}; only {config.get('hidden_size', 768)} is supported"


_vocabulary = partial(Vocabulary.of, unknown="[UNK]", start="[CLS]", end="[SEP]", pad="[PAD]")
_ANTIBERTY_TOKENS = number_tokens(
    "[PAD] [UNK] [CLS] [SEP] [MASK] A C D E F G H I K L M N P Q R S T V W Y"
)
_PROTBERT_TOKENS = number_tokens(
    "[PAD] [UNK] [CLS] [SEP] [MASK] L A G V E S I K R D T P N Q F Y M H C W X U B Z O"
)
_ANTIBERTA2_TOKENS = number_tokens(
    "[PAD] [CLS] [SEP] [MASK] [UNK] A C D E F G H I K L M N P Q R S T V W Y X Ḣ Ḷ"
)
_ROBERTA_TOKENS = number_tokens(
    "<s> <pad> </s> <unk> <mask> A C D E F G H I K L M N P Q R S T V W Y"
)
_LAYERS = Architecture(
    embedding="embeddings.word_embeddings",
    type_embedding="embeddings.token_type_embeddings",
    position_embedding="embeddings.position_embeddings",
    first_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    up=("intermediate.dense",),
    down="output.dense",
    norm_after=True,
)
BERT = Family(
    name="bert",
    model_type="bert",
    tokens=_ANTIBERTY_TOKENS,
    vocabulary=_vocabulary(_ANTIBERTY_TOKENS, max_residues=510, window=510),
    package=Package(
        "antiberty",
        weights="AntiBERTy_md_smooth/pytorch_model.bin",
        config="AntiBERTy_md_smooth/config.json",
        folder="trained_models",
        requirement="antiberty==0.1.3",  # 1.0 has no weights
    ),
    config_defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "is_decoder": False,
        "add_cross_attention": False,
    },
    required={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "rotary_value": False,
        "is_decoder": False,
    },
    fewest_positions=512,
    check=_check,
    architecture=_LAYERS,
    head=LanguageHead(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        decoder="cls.predictions.decoder.weight",
        tied=True,
        bias="cls.predictions.bias",
        bias_again="cls.predictions.decoder.bias",
    ),
    transformers_class="BertModel",
    transformers_options={"add_pooling_layer": False},
    weight_prefix="bert.",
    unused_weights=("pooler.",),
    lora_targets=("query", "value"),
    lora_projections=("query", "key", "value"),
    tiny_config={
        "model_type": "bert",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 25,
        "type_vocab_size": 2,
        "max_position_embeddings": 512,
    },
)
"""AntiBERTy, and other BERT encoders with its vocabulary."""
PROTBERT = replace(
    BERT,
    name="protbert",
    own_values={"vocab_size": 30},
    tokens=_PROTBERT_TOKENS,
    vocabulary=_vocabulary(_PROTBERT_TOKENS, separator="[SEP]", max_residues=1021),
    package=None,
    fewest_positions=1024,
    tiny_config={**BERT.tiny_config, "vocab_size": 30, "max_position_embeddings": 1024},
)
"""ProtBert, and IgBert, which was trained on it."""
ROFORMER = replace(
    BERT,
    name="roformer",
    model_type="roformer",
    tokens=_ANTIBERTA2_TOKENS,
    vocabulary=_vocabulary(
        _ANTIBERTA2_TOKENS, separator="[SEP]", chain_tokens=("Ḣ", "Ḷ"), max_residues=251, window=251
    ),
    package=None,
    config_defaults={
        **BERT.config_defaults,
        "max_position_embeddings": 1536,
        "rotary_value": False,
        "embedding_size": None,
    },
    fewest_positions=256,
    architecture=replace(_LAYERS, position_embedding="", rotary="neighbours"),
    transformers_class="RoFormerModel",
    transformers_options={},
    weight_prefix="roformer.",
    unused_weights=("pooler.", "encoder.embed_positions."),
    tiny_config={
        **BERT.tiny_config,
        "model_type": "roformer",
        "vocab_size": 30,
        "max_position_embeddings": 256,
    },
)
"""AntiBERTa2."""
# trained on 150 tokens, two of them special
_read_roberta = partial(
    Vocabulary.of,
    unknown="<unk>",
    start="<s>",
    end="</s>",
    pad="<pad>",
    max_residues=148,
    window=148,
)
ROBERTA = replace(
    BERT,
    name="roberta",
    model_type="roberta",
    tokens=_ROBERTA_TOKENS,
    vocabulary=_read_roberta(_ROBERTA_TOKENS),
    read_vocabulary=_read_roberta,
    package=None,
    config_defaults={**BERT.config_defaults, "pad_token_id": 1},
    fewest_positions=152,  # they count from the id of the padding
    architecture=replace(_LAYERS, positions_after_pad=True),
    head=LanguageHead(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder.weight",
        tied=True,
        bias="lm_head.bias",
        bias_again="lm_head.decoder.bias",
    ),
    transformers_class="RobertaModel",
    weight_prefix="roberta.",
    tiny_config={
        **BERT.tiny_config,
        "model_type": "roberta",
        "max_position_embeddings": 152,
        "pad_token_id": 1,
    },
)
"""Ab-RoBERTa (Huh et al., arXiv:2506.13006): one chain per span; its files say the ids."""
