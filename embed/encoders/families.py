"""The encoder families: a table each, in torch-free names and numbers.

Composition, the baseline for every language model, needs no weights: its encoder returns one vector
per token like the others, so that the mean over residues is the composition and every pooling
works; `pool` counts without these vectors.

References
----------
AMPLIFY: github.com/chandar-lab/AMPLIFY, src/amplify/model; tokenizer.json and config.json of
chandar-lab/AMPLIFY_120M on the hub. gLM2: modeling_glm2.py and glm_tokenizer.py of
tattabio/gLM2_650M on the hub. Neither applies the norm of its language-model head to the hidden
states that it returns. AbLang2: github.com/TobiasHeOl/AbLang2, version 0.2.1: models/ablang2 for
layers and tokens, load_model.py for the files. AMPLIFY and gLM2 read one chain per span, AbLang2
heavy and light chain as one sequence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Ints
from abag.embed.encoders.family import (
    SIZE_KEYS,
    Architecture,
    Config,
    Family,
    LanguageHead,
    Package,
)
from abag.embed.encoders.packing import LayerPooling, PackedBatch, Vocabulary, number_tokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LM_HEAD = LanguageHead(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    decoder="lm_head.decoder.weight",
    tied=True,
    bias="lm_head.bias",
)
"""As ESM-2 and RoBERTa have it."""
_TINY_SIZES = dict(zip(SIZE_KEYS, (2, 64, 4, 256), strict=True))
"""Layers, width, heads and width of the feed-forward of a tiny encoder."""


# --- BERT, RoFormer and RoBERTa: AntiBERTy, ProtBert and IgBert, AntiBERTa2, Ab-RoBERTa -----------


def _check_bert(config: Config) -> str:
    """Say whether a config.json describes embeddings of another width."""
    if (size := config.get("embedding_size")) in (None, config.get("hidden_size", 768)):
        return ""
    return f"embedding_size {size!r}; only {config.get('hidden_size', 768)} is supported"


_bert_vocabulary = partial(Vocabulary.of, unknown="[UNK]", start="[CLS]", end="[SEP]", pad="[PAD]")
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
_BERT_LAYERS = Architecture(
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
    vocabulary=_bert_vocabulary(_ANTIBERTY_TOKENS, max_residues=510, window=510),
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
    check=_check_bert,
    architecture=_BERT_LAYERS,
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
    tiny_config={
        "model_type": "bert",
        **_TINY_SIZES,
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
    vocabulary=_bert_vocabulary(_PROTBERT_TOKENS, separator="[SEP]", max_residues=1021),
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
    vocabulary=_bert_vocabulary(
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
    architecture=replace(_BERT_LAYERS, position_embedding="", rotary="neighbours"),
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
    architecture=replace(_BERT_LAYERS, positions_after_pad=True),
    head=replace(_LM_HEAD, bias_again="lm_head.decoder.bias"),
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

# --- ESM-2, ESM-1b, ESM-1v and ESM C: one chain per span, with a classification token -------------


_ESM_TOKENS = number_tokens(
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
)
_ESM_LAYERS = Architecture(
    embedding="embeddings.word_embeddings",
    layers="encoder.layer",
    norms=("attention.LayerNorm", "LayerNorm"),
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    up=("intermediate.dense",),
    down="output.dense",
    last_norm="encoder.emb_layer_norm_after",
    rotary="halves",
    # the embeddings are scaled by the share of tokens that were not masked in training
    embedding_scale=1 - 0.15 * 0.8,
)
ESM = Family(
    name="esm",
    model_type="esm",
    tokens=_ESM_TOKENS,
    vocabulary=Vocabulary.of(
        _ESM_TOKENS, start="<cls>", end="<eos>", pad="<pad>", max_residues=1022, has_cls=True
    ),
    backends=("packed", "reference", "faesm"),
    config_keys=("vocab_size", "layer_norm_eps", "max_position_embeddings"),
    config_defaults={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "rope_theta": 10000.0,
        "emb_layer_norm_before": False,
        "token_dropout": False,
        "mask_token_id": 32,
        "pad_token_id": 1,
        "is_decoder": False,
        "add_cross_attention": False,
    },
    required={
        "position_embedding_type": "rotary",
        "rope_theta": 10000.0,
        "token_dropout": True,
        "mask_token_id": 32,
        "emb_layer_norm_before": False,
        "hidden_act": "gelu",
        "is_decoder": False,
    },
    architecture=_ESM_LAYERS,
    head=_LM_HEAD,
    transformers_class="EsmModel",
    transformers_options={"add_pooling_layer": False},
    weight_prefix="esm.",
    # position embeddings are left over from before ESM-2
    unused_weights=("contact_head.", "pooler.", "embeddings.position_embeddings."),
    tiny_config={
        "model_type": "esm",
        **_TINY_SIZES,
        "vocab_size": 33,
        "max_position_embeddings": 1026,
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "emb_layer_norm_before": False,
        "hidden_act": "gelu",
        "mask_token_id": 32,
        "pad_token_id": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
)

ESM1 = replace(
    ESM,
    name="esm1",
    own_values={"position_embedding_type": "absolute"},
    backends=("packed", "reference"),
    required={
        "position_embedding_type": "absolute",
        "token_dropout": True,
        "mask_token_id": 32,
        "pad_token_id": 1,
        "hidden_act": "gelu",
        "is_decoder": False,
    },
    fewest_positions=1026,  # 1,024 tokens, counted from the id after that of the padding
    architecture=replace(
        _ESM_LAYERS,
        position_embedding="embeddings.position_embeddings",
        positions_after_pad=True,
        first_norm="embeddings.layer_norm",
        first_norm_key="emb_layer_norm_before",
        rotary="",
    ),
    unused_weights=("contact_head.", "pooler."),
    tiny_config={
        **ESM.tiny_config,
        "position_embedding_type": "absolute",
        "emb_layer_norm_before": True,
    },
)
"""ESM-1b and ESM-1v: learned positions; ESM-1b also has a norm of the embeddings."""

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _check_esmc(config: Config) -> str:
    """Say whether a config.json has fewer heads of keys, or other rotary positions."""
    heads = config["num_attention_heads"]
    supported = {"num_key_value_heads": heads, "head_dim": config["hidden_size"] // heads}
    for key, value in supported.items():
        actual = config.get(key)
        if actual not in (None, value):
            return f"{key} {actual!r}; only {value!r} is supported"
    rope = {**_ROPE, **(config.get("rope_parameters") or {})}
    if rope != _ROPE:
        return f"rope_parameters {rope!r}; only {_ROPE!r} is supported"
    return ""


ESMC = Family(
    name="esmc",
    model_type="esmc",
    tokens=number_tokens("<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X"),
    # trained on up to 2048 tokens, two of them special
    vocabulary=replace(ESM.vocabulary, max_residues=2046, window=2046),
    check=_check_esmc,
    config_keys=("vocab_size",),
    config_defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rope_parameters": _ROPE,
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": 1,
    },
    required={
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": None,
        "rope_theta": 10000.0,
    },
    architecture=Architecture(
        embedding="embed_tokens",
        layers="layers",
        norms=("input_layernorm", "post_attention_layernorm"),
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out="self_attn.o_proj",
        up=("mlp.gate_proj", "mlp.up_proj"),
        down="mlp.down_proj",
        last_norm="norm",
        qk_norms=("self_attn.q_norm", "self_attn.k_norm"),
        biased=False,
        rotary="halves",
        activation="silu",
        gate="first",
        eps=1e-5,
        residual_layers=36,
        last_norm_biased=False,
    ),
    head=replace(_LM_HEAD, tied=False, bias="lm_head.decoder.bias"),
    transformers_class="EsmcModel",
    weight_prefix="esmc.",
    tiny_config={
        "model_type": "esmc",
        **_TINY_SIZES,
        "vocab_size": 64,
        "max_position_embeddings": 2048,
    },
)

# --- T5: IgT5 and ProtT5, which read heavy and light chain as one sequence; ProstT5, Ankh ---------


_T5_TOKENS = number_tokens("<pad> </s> <unk> A L G V S R E D T I P K F Q N Y M H W C X B O U Z")
_T5_ATTENTION = "layer.0.SelfAttention"
_T5_FEED_FORWARD = "layer.1.DenseReluDense"
_T5_LAYERS = Architecture(
    embedding="shared",
    layers="encoder.block",
    norms=("layer.0.layer_norm", "layer.1.layer_norm"),
    qkv=(f"{_T5_ATTENTION}.q", f"{_T5_ATTENTION}.k", f"{_T5_ATTENTION}.v"),
    out=f"{_T5_ATTENTION}.o",
    up=(f"{_T5_FEED_FORWARD}.wi",),
    down=f"{_T5_FEED_FORWARD}.wo",
    last_norm="encoder.final_layer_norm",
    relative_bias=f"encoder.block.0.{_T5_ATTENTION}.relative_attention_bias",
    norm="rms",
    biased=False,
    activation="relu",
    eps="layer_norm_epsilon",
)
_T5_GATED = replace(
    _T5_LAYERS,
    up=(f"{_T5_FEED_FORWARD}.wi_0", f"{_T5_FEED_FORWARD}.wi_1"),
    gate="first",
    activation="silu",
)
T5 = Family(
    name="t5",
    model_type="t5",
    tokens=_T5_TOKENS,
    vocabulary=Vocabulary.of(_T5_TOKENS, end="</s>", separator="</s>"),
    sizes=("num_layers", "d_model", "num_heads", "d_ff"),
    head_width="d_kv",
    config_keys=("vocab_size", "layer_norm_epsilon", "relative_attention_num_buckets"),
    config_defaults={
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "dense_act_fn": "relu",
        "is_gated_act": False,
        "pad_token_id": 0,
    },
    required={"relative_attention_max_distance": 128},
    architecture=_T5_LAYERS,
    gated={"gated-silu": _T5_GATED, "gated-gelu": replace(_T5_GATED, activation="gelu_tanh")},
    transformers_class="T5EncoderModel",
    weight_prefix="transformer.",
    # of T5ForConditionalGeneration, in which form IgT5 is on the hub
    unused_weights=("decoder.", "lm_head.", "qa_outputs."),
    tied_weights={"encoder.embed_tokens.weight": "shared.weight"},
    fp32_weights=(".wo.weight",),  # transformers keeps them so, too
    tiny_config={
        "model_type": "t5",
        "d_model": 64,
        "d_ff": 256,
        "d_kv": 16,
        "num_heads": 4,
        "num_layers": 2,
        "vocab_size": 128,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.0,
        "is_encoder_decoder": False,
        "pad_token_id": 0,
    },
)
"""IgT5 and ProtT5."""
_PROSTT5_TOKENS = {**_T5_TOKENS, "<AA2fold>": 149}
PROSTT5 = replace(
    T5,
    name="prostt5",
    own_values={"vocab_size": 150},
    tokens=_PROSTT5_TOKENS,
    vocabulary=Vocabulary.of(_PROSTT5_TOKENS, start="<AA2fold>", end="</s>"),
    tiny_config={**T5.tiny_config, "vocab_size": 150},
)
"""ProstT5, which is told that it reads residues rather than structures."""
ANKH = replace(
    T5,
    name="ankh",
    own_values={"vocab_size": 144},
    vocabulary=Vocabulary.of(_T5_TOKENS, end="</s>"),
    tiny_config={
        **T5.tiny_config,
        "vocab_size": 144,
        "relative_attention_num_buckets": 64,
        "feed_forward_proj": "gated-gelu",
    },
)
"""Ankh and Ankh 2: a gated feed-forward."""
# which tokens have the ids 4 to 6 is not published
_ANKH3_TOKENS = number_tokens(
    "<pad> </s> <unk> [NLU] [S2S] [NLG] [MASK] L A G S V E R T I D P K N F Q Y H M C W X"
)
_read_ankh3 = partial(Vocabulary.of, unknown="<unk>", start="[NLU]", end="</s>")
ANKH3 = replace(
    ANKH,
    name="ankh3",
    own_values={"vocab_size": 256},
    tokens=_ANKH3_TOKENS,
    vocabulary=_read_ankh3(_ANKH3_TOKENS),
    read_vocabulary=_read_ankh3,
    tiny_config={**ANKH.tiny_config, "vocab_size": 256, "feed_forward_proj": "gated-silu"},
)
"""Ankh 3, which is told its task; its `vocabulary` has the ids of its random checkpoints."""

# --- AMPLIFY, gLM2 and AbLang2: rotary positions and SwiGLU, without transformers' classes --------


def _two_thirds(width: int, factor: float = 1, *, multiple_of: int) -> int:
    """Return the width of a gated feed-forward with the cost of an ungated one of `width`."""
    return -(-int(factor * int(2 * width / 3)) // multiple_of) * multiple_of


def _amplify_width(config: Config) -> int:
    return _two_thirds(config["intermediate_size"], multiple_of=8)


def _glm2_width(config: Config) -> int:
    multiple = config["swiglu_multiple_of"]
    factor = config.get("ffn_dim_multiplier") or 1
    return _two_thirds(4 * config["dim"], factor, multiple_of=multiple)


def _ablang2_width(config: Config) -> int:
    return int(4 * config["hidden_embed_size"])


_AMPLIFY_TOKENS = number_tokens(
    "<pad> <unk> <mask> <bos> <eos> | L A G V S E R T I D P K Q N F Y M H W C B"
)
_AMPLIFY_FIXED: Config = {
    "hidden_act": "SwiGLU",
    "rms_norm": True,
    "att_bias": False,
    "ffn_bias": False,
    "layer_norm_after_embedding": False,
}
_AMPLIFY_LAYERS = Architecture(
    embedding="encoder",
    layers="transformer_encoder",
    norms=("attention_norm", "ffn_norm"),
    qkv=("q", "k", "v"),
    out="wo",
    up=("ffn.w12",),
    down="ffn.w3",
    norm="rms",
    biased=False,
    rotary="neighbours",
    activation="silu",
    gate="first",
    eps="norm_eps",
)
AMPLIFY = Family(
    name="amplify",
    model_type="AMPLIFY",
    own_values={"vocab_size": 27},  # later models of its authors have 32 tokens, and other layers
    tokens=_AMPLIFY_TOKENS,
    # its second stage was trained on 2048 tokens, two of them special; X is an unknown token
    vocabulary=Vocabulary.of(
        _AMPLIFY_TOKENS, unknown="<unk>", start="<bos>", end="<eos>", max_residues=2046, window=2046
    ),
    sizes=("num_hidden_layers", "hidden_size", "num_attention_heads", _amplify_width),
    config_keys=("intermediate_size", "vocab_size", "norm_eps"),
    config_defaults=_AMPLIFY_FIXED,
    required=_AMPLIFY_FIXED,
    architecture=_AMPLIFY_LAYERS,
    unused_weights=("decoder.", "layer_norm_2."),
    head=LanguageHead(
        norm="layer_norm_2", norm_kind="rms", decoder="decoder.weight", bias="decoder.bias"
    ),
    tiny_config={
        **_AMPLIFY_FIXED,
        "model_type": "AMPLIFY",
        **_TINY_SIZES,
        "vocab_size": 27,
        "norm_eps": 1e-5,
    },
)
_GLM2_TOKENS = number_tokens(
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O a t c g "
    "<+> <-> <mask> <sep>"
)
GLM2 = Family(
    name="glm2",
    model_type="gLM2",
    tokens=_GLM2_TOKENS,
    # trained on contigs of 4096 tokens; <+> is the strand of a gene
    vocabulary=Vocabulary.of(
        _GLM2_TOKENS, start="<+>", pad="<pad>", max_residues=4095, window=4095
    ),
    sizes=("depth", "dim", "heads", _glm2_width),
    config_keys=("vocab_size", "norm_eps"),
    config_defaults={"swiglu_multiple_of": 256, "ffn_dim_multiplier": None},
    architecture=replace(
        _AMPLIFY_LAYERS,
        embedding="tok_embeddings",
        layers="encoder.layers",
        qkv=("attention.wqkv",),
        out="attention.wo",
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        rotary="halves",
    ),
    weight_prefix="glm2.",
    unused_weights=("lm_head.",),
    head=LanguageHead(norm="lm_head.norm", norm_kind="rms", decoder="lm_head.proj_output.weight"),
    tiny_config={
        "model_type": "gLM2",
        "dim": 64,
        "depth": 2,
        "heads": 4,
        "vocab_size": 37,
        "norm_eps": 1e-5,
        "swiglu_multiple_of": 256,
        "ffn_dim_multiplier": None,
    },
)
_ABLANG2_TOKENS = number_tokens("< M R H K D E S T N Q C G P A V I F Y W L - > * X |")
ABLANG2 = Family(
    name="ablang2",
    model_type="ablang2",
    tokens=_ABLANG2_TOKENS,
    # trained on variable domains; rotary positions allow any length
    vocabulary=Vocabulary.of(
        _ABLANG2_TOKENS,
        start="<",
        end=">",
        separator="|",
        frames_chains=True,
        pad="-",
        max_residues=510,
        window=510,
    ),
    package=Package(
        "ablang2",
        weights="model-weights-ablang2-paired/model.pt",
        config="model-weights-ablang2-paired/hparams.json",
        download="python -c 'import ablang2; ablang2.pretrained()'",
    ),
    sizes=("n_encoder_blocks", "hidden_embed_size", "n_attn_heads", _ablang2_width),
    config_keys=("vocab_size", "layer_norm_eps", "a_fn"),
    required={"a_fn": "swiglu"},
    architecture=Architecture(
        embedding="aa_embed_layer",
        layers="encoder_blocks",
        norms=("pre_attn_layer_norm", "final_layer_norm"),
        qkv=(
            "multihead_attention.q_proj",
            "multihead_attention.k_proj",
            "multihead_attention.v_proj",
        ),
        out="multihead_attention.out_proj",
        up=("intermediate_layer.0",),
        down="intermediate_layer.2",
        last_norm="layer_norm_after_encoder_blocks",
        rotary="neighbours",
        activation="silu",
        gate="second",
        scaled_twice=True,  # as the published code does
    ),
    weight_prefix="AbRep.",
    head=LanguageHead(
        dense="AbHead.ff.0",
        gated=True,
        norm="AbHead.ff.2",
        decoder="AbHead.weights",
        tied=True,
        bias="AbHead.bias",
    ),
    tiny_config={
        "model_type": "ablang2",
        "hidden_embed_size": 64,
        "n_attn_heads": 4,
        "n_encoder_blocks": 2,
        "vocab_size": 26,
        "layer_norm_eps": 1e-12,
        "a_fn": "swiglu",
    },
)

# --- residue composition, chain length and hashed 3-mers: no weights ------------------------------


_COUNTED_LETTERS = "ACDEFGHIKLMNPQRSTVWYX"
_KMER_BUCKETS = 234  # 21 letters + 1 + 234 = 256 columns
_KMER = 3


class _ResidueComposition:
    """One-hot residue, log chain length and hashed 3-mer per token."""

    width = len(_COUNTED_LETTERS) + 1 + _KMER_BUCKETS

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        """Encode a batch: see `Encoder`. Returns shape (T, 256), dtype=float32."""
        import torch
        import torch.nn.functional as F

        ids_T = torch.from_numpy(batch.ids).to(self._device, torch.int64)
        lengths_N = torch.from_numpy(batch.offsets).to(self._device).diff()
        out_TD = torch.zeros(len(ids_T), self.width, device=self._device)
        out_TD[:, : len(_COUNTED_LETTERS)] = F.one_hot(ids_T, len(_COUNTED_LETTERS))
        out_TD[:, len(_COUNTED_LETTERS)] = lengths_N.float().log().repeat_interleave(lengths_N)
        starts, columns = map(torch.from_numpy, _kmers(batch))
        out_TD[starts, columns] = 1
        return out_TD

    def pool(self, batch: PackedBatch) -> Tensor:
        """Encode and pool a batch: see `PoolingEncoder`. Returns shape (S, P, 256)."""
        import torch

        ids_T = batch.ids.astype(np.int64)
        lengths_N = np.diff(batch.offsets)
        # of torch, as above: NumPy's logarithm may differ in the last bit
        log_N = torch.from_numpy(lengths_N).float().log().numpy()
        starts, columns = _kmers(batch)
        n_poolings = batch.weights.shape[1]
        sums = np.zeros((len(batch.sequences), n_poolings, self.width), np.float32)
        first_T = np.repeat(np.arange(len(sums)) * n_poolings * self.width, np.diff(batch.bounds))
        for p, weight_T in enumerate(np.ascontiguousarray(batch.weights.T)):
            residue_T = first_T + p * self.width
            # in the order of the tokens, in which `pool_tokens` adds
            np.add.at(sums.ravel(), residue_T + ids_T, weight_T)
            log_T = np.repeat(log_N, lengths_N)
            np.add.at(sums.ravel(), residue_T + len(_COUNTED_LETTERS), log_T * weight_T)
            np.add.at(sums.ravel(), residue_T[starts] + columns, weight_T[starts])
        return torch.from_numpy(sums)


def _kmers(batch: PackedBatch) -> tuple[Ints, Ints]:
    """Return the tokens at which a 3-mer of their span starts, and the column that counts it."""
    ids_T = batch.ids.astype(np.int64)
    padded = np.pad(ids_T, (0, _KMER - 1))
    code_T = np.zeros_like(ids_T)
    for k in range(_KMER):
        code_T = code_T * len(_COUNTED_LETTERS) + padded[k : k + len(ids_T)]
    # Knuth's multiplicative hash spreads neighbouring codes over the buckets
    bucket_T = ((code_T * 2654435761) % 2**32) * _KMER_BUCKETS // 2**32
    stop_T = np.repeat(batch.offsets[1:], np.diff(batch.offsets))
    starts = np.flatnonzero(np.arange(len(ids_T)) + _KMER <= stop_T)
    return starts, len(_COUNTED_LETTERS) + 1 + bucket_T[starts]


COMPOSITION = Family(
    name="composition",
    vocabulary=Vocabulary.of(number_tokens(" ".join(_COUNTED_LETTERS)), window=None),
    backends=("composition",),
    build=lambda plan: _ResidueComposition(plan.device),
)
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        T5, PROSTT5, ANKH, ANKH3, ESM, ESM1, ESMC, AMPLIFY, GLM2, BERT, PROTBERT, ROFORMER, ROBERTA,
        ABLANG2, COMPOSITION,
    )
}  # fmt: skip
"""All families by name; two of the same model_type differ in `Family.own_values`."""


def family_of(config: Config) -> Family | None:
    """Return the family of a config.json; None if there is none.

    A family whose `own_values` config.json has goes before one without own values.
    """
    model_type = config.get("model_type")
    general = None
    for family in FAMILIES.values():
        if not model_type or family.model_type != model_type:
            continue
        if not family.own_values:
            general = general or family
        elif family.own_values.items() <= family.complete(config).items():
            return family
    return general
