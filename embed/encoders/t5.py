"""T5 encoders: IgT5 and ProtT5, which read heavy and light chain as one sequence; ProstT5, Ankh."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from abag.embed.encoders.family import Architecture, Family
from abag.embed.encoders.packing import Vocabulary, number_tokens

_TOKENS = number_tokens("<pad> </s> <unk> A L G V S R E D T I P K F Q N Y M H W C X B O U Z")
_ATTENTION = "layer.0.SelfAttention"
_FEED_FORWARD = "layer.1.DenseReluDense"
_LAYERS = Architecture(
    embedding="shared",
    layers="encoder.block",
    norms=("layer.0.layer_norm", "layer.1.layer_norm"),
    qkv=(f"{_ATTENTION}.q", f"{_ATTENTION}.k", f"{_ATTENTION}.v"),
    out=f"{_ATTENTION}.o",
    up=(f"{_FEED_FORWARD}.wi",),
    down=f"{_FEED_FORWARD}.wo",
    last_norm="encoder.final_layer_norm",
    relative_bias=f"encoder.block.0.{_ATTENTION}.relative_attention_bias",
    norm="rms",
    biased=False,
    activation="relu",
    eps="layer_norm_epsilon",
)
_GATED = replace(
    _LAYERS, up=(f"{_FEED_FORWARD}.wi_0", f"{_FEED_FORWARD}.wi_1"), gate="first", activation="silu"
)
T5 = Family(
    name="t5",
    model_type="t5",
    tokens=_TOKENS,
    vocabulary=Vocabulary.of(_TOKENS, end="</s>", separator="</s>"),
    sizes=("num_layers", "d_model", "num_heads", "d_ff"),
    head_width="d_kv",
    config_keys=(
        "d_model",
        "d_kv",
        "d_ff",
        "num_layers",
        "num_heads",
        "vocab_size",
        "layer_norm_epsilon",
        "relative_attention_num_buckets",
    ),
    config_defaults={
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "dense_act_fn": "relu",
        "is_gated_act": False,
        "pad_token_id": 0,
    },
    required={"relative_attention_max_distance": 128},
    architecture=_LAYERS,
    gated={"gated-silu": _GATED, "gated-gelu": replace(_GATED, activation="gelu_tanh")},
    transformers_class="T5EncoderModel",
    weight_prefix="transformer.",
    # of T5ForConditionalGeneration, in which form IgT5 is on the hub
    unused_weights=("decoder.", "lm_head.", "qa_outputs."),
    tied_weights={"encoder.embed_tokens.weight": "shared.weight"},
    fp32_weights=(".wo.weight",),  # transformers keeps them so, too
    lora_targets=("q", "v"),
    lora_projections=("q", "k", "v", "o", "wi", "wo"),
    layer_list="encoder.block",
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
_PROSTT5_TOKENS = {**_TOKENS, "<AA2fold>": 149}
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
    vocabulary=Vocabulary.of(_TOKENS, end="</s>"),
    lora_projections=("q", "k", "v", "o", "wi_0", "wi_1", "wo"),
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
