"""ESM C: one chain per sequence, with ESM-2's tokens.

Its checkpoints have two layouts: that of transformers, and that of Biohub's package, which fuses
projections and has other keys in config.json.

References
----------
github.com/Biohub/esm, esm/models/esmc: config.py for the keys and the width that none gives,
checkpoint_layout.py for the names and the order of rows in fused tensors. transformers,
models/esmc/convert_esmc_checkpoint.py, says the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from abag.embed.families.architecture import Architecture, Config, EncoderShape
from abag.embed.families.esm import ESM
from abag.embed.families.family import Family
from abag.embed.families.vocabulary_files import PIPELINE_FILE, letter_pipeline
from abag.embed.sequences.chains import RESIDUES
from abag.embed.weights.checkpoints import BadCheckpoint

if TYPE_CHECKING:
    from abag.embed.weights.checkpoints import EncoderCheckpoint, WeightNames

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_PACKAGE_KEYS = {
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
}  # fmt: skip
_PACKAGE_NAMES = {
    "embed.": ("embed_tokens.",),
    "transformer.blocks.": ("layers.",),
    "transformer.norm.": ("norm.",),
    "attn.layernorm_qkv.layer_norm_": ("input_layernorm.",),
    "attn.layernorm_qkv.weight": tuple(f"self_attn.{p}_proj.weight" for p in "qkv"),
    "attn.q_ln.": ("self_attn.q_norm.",),
    "attn.k_ln.": ("self_attn.k_norm.",),
    "attn.out_proj.": ("self_attn.o_proj.",),
    "ffn.layer_norm_": ("post_attention_layernorm.",),
    "ffn.fc1_weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "ffn.fc2_weight": ("mlp.down_proj.weight",),
}
"""Parts of names in Biohub's package, and in transformers."""


class _EsmcFamily(Family):
    def in_transformers_keys(self, config: Config) -> Config:
        """Return config.json with transformers' keys, if it has those of Biohub's package."""
        if not isinstance(width := config.get("d_model"), int):
            return config
        derived = -(-width // 96) * 256  # 8 / 3 of it, up to a multiple of 256
        renamed = {_PACKAGE_KEYS.get(key, key): value for key, value in config.items()}
        return {"intermediate_size": derived, **renamed}

    def weight_names(self, config: Config) -> WeightNames:
        """Return the names of the weights in either layout."""
        return replace(super().weight_names(config), other_layout=_PACKAGE_NAMES)

    def shape(self, config: Config) -> EncoderShape:
        return EncoderShape.of(config, gated=True)

    def checked_config(self, checkpoint: EncoderCheckpoint) -> dict[str, Any]:
        """Return config.json with all defaults, if abag has the layers that it describes."""
        config, shape = super().checked_config(checkpoint), self.shape(checkpoint.config)
        heads = {"num_key_value_heads": shape.heads, "head_dim": shape.head_width}
        for key, value in {**heads, "rope_parameters": _ROPE}.items():
            found = config.get(key)
            if value is _ROPE:
                found = {**_ROPE, **(found or {})}
            if found not in (None, value):
                msg = (
                    f"{checkpoint.folder}/config.json: {key} {found!r}; only {value!r} is supported"
                )
                raise BadCheckpoint(msg)
        return config

    def _transformers_encoder(self) -> Any:  # noqa: ANN401 - untyped
        """Return transformers' class, or None in versions without it."""
        import transformers

        return getattr(transformers, self.transformers_class, None)

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return a tokenizer with a piece per letter, as ESM C's."""
        ids = {"<cls>": 0, "<pad>": 1, "<eos>": 2, "<unk>": 3}
        ids |= {letter: int(self.vocabulary.ids[ord(letter)]) for letter in RESIDUES}
        return {PIPELINE_FILE: letter_pipeline(ids, "<cls> $A <eos>")}


_TINY_CONFIG: Config = {
    "model_type": "esmc", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 2048,
}  # fmt: skip
_LAYERS = Architecture(
    embedding="embed_tokens",
    layers="layers",
    norms=("input_layernorm", "post_attention_layernorm"),
    qkv=tuple(f"self_attn.{part}_proj" for part in "qkv"),
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
)
ESMC = _EsmcFamily(
    name="esmc",
    model_type="esmc",
    # trained on up to 2048 tokens, two of them special
    vocabulary=replace(ESM.vocabulary, max_residues=2046, window=2046),
    backends=("packed", "reference"),
    config_keys=(
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size",
    ),
    config_defaults={
        "hidden_act": "silu", "max_position_embeddings": 2048, "rope_parameters": _ROPE,
        "attention_bias": False, "mlp_bias": False, "pad_token_id": 1,
    },
    required={
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None,
        "rope_theta": 10000.0,
    },
    architecture=_LAYERS,
    transformers_class="EsmcModel",
    weight_prefix="esmc.",
    lora_targets=("q_proj", "v_proj"),
    lora_projections=(
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    ),
    layer_list="layers",
    spaced=False,
    tokenizer=None,  # so that no version of transformers with its tokenizer is needed
    tiny_config=_TINY_CONFIG,
    reduced_config={
        **_TINY_CONFIG, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    },
)  # fmt: skip
