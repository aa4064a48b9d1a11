"""AMPLIFY, gLM2 and AbLang2: rotary positions and SwiGLU; published without transformers' classes.

AbLang2 reads heavy and light chain as one sequence, the others one chain per span.

References
----------
AMPLIFY: github.com/chandar-lab/AMPLIFY, src/amplify/model; tokenizer.json and config.json of
chandar-lab/AMPLIFY_120M on the hub. gLM2: modeling_glm2.py and glm_tokenizer.py of
tattabio/gLM2_650M on the hub. Neither applies the norm of its language-model head to the hidden
states that it returns. AbLang2: github.com/TobiasHeOl/AbLang2, version 0.2.1: models/ablang2 for
layers and tokens, load_model.py for the files.
"""

from __future__ import annotations

from dataclasses import replace

from abag.embed.encoders.family import (
    SIZE_KEYS,
    Architecture,
    Config,
    Family,
    LanguageHead,
    Package,
)
from abag.embed.encoders.packing import Vocabulary, number_tokens


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
    config_keys=(*SIZE_KEYS, "vocab_size", "norm_eps"),
    config_defaults=_AMPLIFY_FIXED,
    required=_AMPLIFY_FIXED,
    architecture=_AMPLIFY_LAYERS,
    unused_weights=("decoder.", "layer_norm_2."),
    head=LanguageHead(
        norm="layer_norm_2", norm_kind="rms", decoder="decoder.weight", bias="decoder.bias"
    ),
    lora_targets=("q", "v"),
    lora_projections=("q", "k", "v", "wo", "w12", "w3"),
    layer_list="transformer_encoder",
    tiny_config={
        **_AMPLIFY_FIXED,
        "model_type": "AMPLIFY",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
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
    config_keys=("dim", "depth", "heads", "vocab_size", "norm_eps"),
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
    lora_targets=("wqkv",),
    lora_projections=("wqkv", "wo", "w1", "w2", "w3"),
    layer_list="encoder.layers",
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
    config_keys=(
        "hidden_embed_size",
        "n_attn_heads",
        "n_encoder_blocks",
        "vocab_size",
        "layer_norm_eps",
        "a_fn",
    ),
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
    lora_targets=("q_proj", "v_proj"),
    lora_projections=("q_proj", "k_proj", "v_proj", "out_proj"),
    layer_list="encoder_blocks",
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
