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
from typing import TYPE_CHECKING

from abag.embed.families.esm import ESM
from abag.embed.families.family import Config, Encoder, EncoderShape, Family
from abag.embed.families.vocabulary_files import PIPELINE_FILE
from abag.embed.sequences.chains import RESIDUES
from abag.embed.weights.checkpoints import BadCheckpoint

if TYPE_CHECKING:
    from torch.nn import Module

    from abag.core.device import DevicePlan
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

    def build(
        self, backend: str, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str
    ) -> Encoder:
        from abag.embed.families.packed_esmc import PackedEsmc

        self._check_layers(checkpoint)
        return PackedEsmc(checkpoint, plan, attention, positions=self.positions)

    def _check_layers(self, checkpoint: EncoderCheckpoint) -> None:
        """Check that abag has the layers that config.json describes."""
        shape = self.shape(checkpoint.config)
        config = self.require(
            checkpoint, hidden_act="silu", attention_bias=False, mlp_bias=False,
            num_key_value_heads=shape.heads, head_dim=shape.head_width, rope_scaling=None,
            rope_theta=_ROPE["rope_theta"],
        )  # fmt: skip
        if {**_ROPE, **config["rope_parameters"]} != _ROPE:
            msg = (
                f"{checkpoint.folder}/config.json: rope_parameters {config['rope_parameters']}; "
                f"only {_ROPE} is supported"
            )
            raise BadCheckpoint(msg)

    def _lacks_class(self) -> bool:
        import transformers

        return getattr(transformers, self.transformers_class, None) is None

    def reference_module(self, config: Config) -> Module:
        """Return transformers' module, or abag's own where this version has none."""
        if not self._lacks_class():
            return super().reference_module(config)
        from abag.embed.families.esmc_module import EsmcModule

        return EsmcModule(self.shape(config), config["vocab_size"])

    def load_transformers_model(self, checkpoint: EncoderCheckpoint) -> tuple[Module, set[str]]:
        """Load the reference in fp32; also returns the weights that only one side has."""
        if not self._lacks_class():
            return super().load_transformers_model(checkpoint)
        self._check_layers(checkpoint)
        return self._load_own_module(checkpoint)

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return a tokenizer with a piece per letter, as ESM C's."""
        from tokenizers import Tokenizer, models, processors

        vocabulary = self.vocabulary
        ids = {"<cls>": 0, "<pad>": 1, "<eos>": 2, "<unk>": 3}
        ids |= {letter: int(vocabulary.ids[ord(letter)]) for letter in RESIDUES}
        pipeline = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
        pipeline.post_processor = processors.TemplateProcessing(
            single="<cls> $A <eos>", special_tokens=[("<cls>", 0), ("<eos>", 2)]
        )
        return {PIPELINE_FILE: str(pipeline.to_str()).encode()}


_TINY_CONFIG: Config = {
    "model_type": "esmc", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 2048,
}  # fmt: skip
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
