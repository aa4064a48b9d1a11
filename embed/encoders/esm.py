"""ESM-2, ESM-1b, ESM-1v and ESM C: one chain per span, with a classification token."""

from __future__ import annotations

from dataclasses import replace

from abag.embed.encoders.family import SIZE_KEYS, Architecture, Config, Family, LanguageHead
from abag.embed.encoders.packing import Vocabulary, number_tokens

_TOKENS = number_tokens(
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
)
_LAYERS = Architecture(
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
    tokens=_TOKENS,
    vocabulary=Vocabulary.of(
        _TOKENS, start="<cls>", end="<eos>", pad="<pad>", max_residues=1022, has_cls=True
    ),
    backends=("packed", "reference", "faesm"),
    config_keys=(*SIZE_KEYS, "vocab_size", "layer_norm_eps", "max_position_embeddings"),
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
    architecture=_LAYERS,
    head=LanguageHead(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder.weight",
        tied=True,
        bias="lm_head.bias",
    ),
    transformers_class="EsmModel",
    transformers_options={"add_pooling_layer": False},
    weight_prefix="esm.",
    # position embeddings are left over from before ESM-2
    unused_weights=("contact_head.", "pooler.", "embeddings.position_embeddings."),
    lora_targets=("query", "value"),
    lora_projections=("query", "key", "value"),
    tiny_config={
        "model_type": "esm",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
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
        _LAYERS,
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
    config_keys=(*SIZE_KEYS, "vocab_size"),
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
    head=LanguageHead(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder.weight",
        bias="lm_head.decoder.bias",
    ),
    transformers_class="EsmcModel",
    weight_prefix="esmc.",
    lora_targets=("q_proj", "v_proj"),
    lora_projections=(
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ),
    layer_list="layers",
    tiny_config={
        "model_type": "esmc",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 2048,
    },
)
