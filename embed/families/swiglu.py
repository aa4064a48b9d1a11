"""AMPLIFY and gLM2: one chain per sequence; RMS norms, rotary positions and SwiGLU.

References
----------
AMPLIFY: github.com/chandar-lab/AMPLIFY, src/amplify/model; tokenizer.json and config.json of
chandar-lab/AMPLIFY_120M on the hub. gLM2: modeling_glm2.py and glm_tokenizer.py of
tattabio/gLM2_650M on the hub. Neither applies the norm of its language-model head to the hidden
states that it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from abag.embed.families.architecture import Architecture, Config, EncoderShape
from abag.embed.families.family import Family
from abag.embed.families.vocabulary_files import PIPELINE_FILE, letter_pipeline
from abag.embed.packing.tokens import Vocabulary, residue_ids


@dataclass(frozen=True, kw_only=True)
class _SwigluFamily(Family):
    tokens: tuple[str, ...]  # of the vocabulary, in the order of their ids

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return a tokenizer with a piece per letter, and the special tokens of the family."""
        ids = {token: i for i, token in enumerate(self.tokens)}
        template = "" if self.vocabulary.end is None else "<bos> $A <eos>"
        return {PIPELINE_FILE: letter_pipeline(ids, template)}


class _AmplifyFamily(_SwigluFamily):
    def shape(self, config: Config) -> EncoderShape:
        shape = EncoderShape.of(config, gated=True)
        inner = _two_thirds(shape.feed_forward_width, multiple_of=8)
        return shape._replace(feed_forward_width=inner)


class _Glm2Family(_SwigluFamily):
    def shape(self, config: Config) -> EncoderShape:
        width, multiple = config["dim"], config.get("swiglu_multiple_of") or 256
        return EncoderShape(
            config["depth"], width, width,
            _two_thirds(4 * width, config.get("ffn_dim_multiplier") or 1, multiple_of=multiple), 3,
            config["heads"],
        )  # fmt: skip


def _two_thirds(width: int, factor: float = 1, *, multiple_of: int) -> int:
    """Return the width of a gated feed-forward with the cost of an ungated one of `width`."""
    return -(-int(factor * int(2 * width / 3)) // multiple_of) * multiple_of


_RESIDUES = "LAGVSERTIDPKQNFYMHWC"
_AMPLIFY_TOKENS = ("<pad>", "<unk>", "<mask>", "<bos>", "<eos>", "|", *_RESIDUES, "B")
_GLM2_TOKENS = (
    "<cls>", "<pad>", "<eos>", "<unk>", *_RESIDUES, *"XBUZOatcg", "<+>", "<->", "<mask>", "<sep>",
)  # fmt: skip
_AMPLIFY_FIXED: Config = {
    "hidden_act": "SwiGLU", "rms_norm": True, "att_bias": False, "ffn_bias": False,
    "layer_norm_after_embedding": False,
}  # fmt: skip
_AMPLIFY_CONFIG: Config = {
    **_AMPLIFY_FIXED, "model_type": "AMPLIFY", "architectures": ["AMPLIFY"], "hidden_size": 64,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 27,
    "norm_eps": 1e-5, "layer_norm_before_last_layer": True, "max_length": 2048, "pad_token_id": 0,
}  # fmt: skip
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
AMPLIFY = _AmplifyFamily(
    name="amplify",
    model_type="AMPLIFY",
    vocab_sizes=(27,),  # later models of its authors have 32 tokens, and other layers
    # its second stage was trained on 2048 tokens, two of them special; X is an unknown token
    vocabulary=Vocabulary(
        residue_ids(_RESIDUES, 6, other=1), start=3, end=4, max_residues=2046, window=2046
    ),
    backends=("packed", "reference"),
    config_keys=(
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "norm_eps",
    ),
    config_defaults=_AMPLIFY_FIXED,
    required=_AMPLIFY_FIXED,
    unused_weights=("decoder.", "layer_norm_2."),
    lora_targets=("q", "v"),
    lora_projections=("q", "k", "v", "wo", "w12", "w3"),
    layer_list="transformer_encoder",
    spaced=False,
    architecture=_AMPLIFY_LAYERS,
    tokens=_AMPLIFY_TOKENS,
    tiny_config=_AMPLIFY_CONFIG,
    reduced_config={
        **_AMPLIFY_CONFIG, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
    },
)  # fmt: skip
_GLM2_CONFIG: Config = {
    "model_type": "gLM2", "architectures": ["gLM2ForMaskedLM"], "dim": 64, "depth": 2, "heads": 4,
    "vocab_size": 37, "norm_eps": 1e-5, "swiglu_multiple_of": 256, "ffn_dim_multiplier": None,
}  # fmt: skip
_GLM2_LAYERS = replace(
    _AMPLIFY_LAYERS,
    embedding="tok_embeddings",
    layers="encoder.layers",
    qkv=("attention.wqkv",),
    out="attention.wo",
    up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    rotary="halves",
)
GLM2 = _Glm2Family(
    name="glm2",
    model_type="gLM2",
    # trained on contigs of 4096 tokens; <+> is the strand of a gene
    vocabulary=Vocabulary(
        residue_ids(_RESIDUES + "X", 4), start=33, pad=1, max_residues=4095, window=4095
    ),
    backends=("packed", "reference"),
    config_keys=("dim", "depth", "heads", "vocab_size", "norm_eps"),
    config_defaults={"swiglu_multiple_of": 256, "ffn_dim_multiplier": None},
    weight_prefix="glm2.",
    unused_weights=("lm_head.",),
    lora_targets=("wqkv",),
    lora_projections=("wqkv", "wo", "w1", "w2", "w3"),
    layer_list="encoder.layers",
    spaced=False,
    prefix_text="<+>",
    architecture=_GLM2_LAYERS,
    tokens=_GLM2_TOKENS,
    tiny_config=_GLM2_CONFIG,
    reduced_config={**_GLM2_CONFIG, "dim": 256, "depth": 4},
)  # fmt: skip
