"""config.json of real encoders, as far as it decides speed, for benchmarks and tests."""

import numpy as np

from abag.embed.encoders.families import FAMILIES

_TINY = {name: family.tiny_config for name, family in FAMILIES.items()}
SHAPES = {
    "igt5": {
        **_TINY["t5"],
        "d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32, "num_layers": 24,
    },
    "esm2-650m": {
        **_TINY["esm"], "hidden_size": 1280, "intermediate_size": 5120,
        "num_hidden_layers": 33, "num_attention_heads": 20,
    },
    "esm1b": {
        **_TINY["esm1"], "hidden_size": 1280, "intermediate_size": 5120,
        "num_hidden_layers": 33, "num_attention_heads": 20,
    },
    "esm2-35m": {
        **_TINY["esm"], "hidden_size": 480, "intermediate_size": 1920,
        "num_hidden_layers": 12, "num_attention_heads": 20,
    },
    "igbert": {
        **_TINY["protbert"], "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 30, "num_attention_heads": 16,
    },
    "antiberta2": {
        **_TINY["roformer"], "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 16, "num_attention_heads": 16,
    },
    "ab-roberta": {
        **_TINY["roberta"], "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12,
    },
    "ablang2": {
        **_TINY["ablang2"], "hidden_embed_size": 480, "n_attn_heads": 20, "n_encoder_blocks": 12,
    },
    "ankh-base": {
        **_TINY["ankh"],
        "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 48,
    },
    "ankh-large": {
        **_TINY["ankh"],
        "d_model": 1536, "d_ff": 3840, "d_kv": 64, "num_heads": 16, "num_layers": 48,
    },
    "ankh3-large": {
        **_TINY["ankh3"],
        "d_model": 1536, "d_ff": 3840, "d_kv": 64, "num_heads": 16, "num_layers": 48,
    },
    "esmc-300m": {
        **_TINY["esmc"], "hidden_size": 960, "intermediate_size": 2560,
        "num_hidden_layers": 30, "num_attention_heads": 15,
    },
    "esmc-600m": {
        **_TINY["esmc"], "hidden_size": 1152, "intermediate_size": 3072,
        "num_hidden_layers": 36, "num_attention_heads": 18,
    },
    "amplify-120m": {
        **_TINY["amplify"], "hidden_size": 640, "intermediate_size": 2560,
        "num_hidden_layers": 24, "num_attention_heads": 10,
    },
    "amplify-350m": {
        **_TINY["amplify"], "hidden_size": 960, "intermediate_size": 3840,
        "num_hidden_layers": 32, "num_attention_heads": 15,
    },
    "glm2-150m": {**_TINY["glm2"], "dim": 640, "depth": 30, "heads": 10},
    "glm2-650m": {**_TINY["glm2"], "dim": 1280, "depth": 33, "heads": 20},
}  # fmt: skip
"""config.json of the default encoders and one of each architecture, as far as it decides speed."""


def count_flops(shape, lengths):
    """Count the operations of matrix products and attention of spans of some tokens, (N,)."""
    tokens_N = np.asarray(lengths, dtype=np.float64)
    feed_forward = shape.feed_forward_products * shape.feed_forward_width
    weights = shape.layers * shape.width * (4 * shape.attention_width + feed_forward)
    attention = 4 * shape.layers * shape.attention_width
    return float(2 * weights * tokens_N.sum() + attention * np.square(tokens_N).sum())
