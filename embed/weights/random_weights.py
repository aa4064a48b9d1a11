"""Checkpoints of random weights: the real architectures and tokenizer files, made on the spot.

For demos, tests, parity checks and benchmarks. They carry no biology.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

TINY_CONFIG: dict[str, dict[str, Any]] = {
    "tiny-igt5": {
        "model_type": "t5", "architectures": ["T5EncoderModel"], "d_model": 64, "d_ff": 256,
        "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 128,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu", "layer_norm_epsilon": 1e-6, "dropout_rate": 0.0,
        "is_encoder_decoder": False, "use_cache": False, "pad_token_id": 0, "eos_token_id": 1,
    },
    "tiny-esm2": {
        "model_type": "esm", "architectures": ["EsmForMaskedLM"], "hidden_size": 64,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 33, "max_position_embeddings": 1026, "layer_norm_eps": 1e-5,
        "position_embedding_type": "rotary", "token_dropout": True,
        "emb_layer_norm_before": False, "hidden_act": "gelu", "mask_token_id": 32,
        "pad_token_id": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "is_folding_model": False,
    },
}  # fmt: skip
_ESM_VOCAB = (
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
)


def tiny_content(name: str) -> dict[str, bytes]:
    """File names and bytes of a tiny checkpoint; the same bytes every time."""
    from safetensors.numpy import save

    config = TINY_CONFIG[name]
    if config["model_type"] == "t5":
        weights, tokenizer = random_t5_weights(config, seed=0), _t5_tokenizer_files()
    else:
        weights, tokenizer = random_esm_weights(config, seed=0), _esm_tokenizer_files()
    return {
        "config.json": json.dumps(config, indent=1).encode(),
        "model.safetensors": save(weights, metadata={"format": "pt"}),
        **tokenizer,
    }


def save_random_checkpoint(folder: Path, config: Mapping[str, Any], seed: int) -> Path:
    """Write a checkpoint of random weights with any T5 or ESM configuration.

    The real shapes without the real weights: for tests, benchmarks and parity checks.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    make, tokenizer = {
        "t5": (random_t5_weights, _t5_tokenizer_files),
        "esm": (random_esm_weights, _esm_tokenizer_files),
    }[config["model_type"]]
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1))
    save_file(make(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    for file_name, data in tokenizer().items():
        (folder / file_name).write_bytes(data)
    return folder


def random_t5_weights(config: Mapping[str, Any], seed: int) -> Weights:
    """Seeded random weights of a T5 encoder, of the scale that training gives.

    Query weights carry the 1/sqrt(d_kv) that T5 leaves out of its attention, so that the
    softmax is neither flat nor one-hot.
    """
    draw = _Normal(seed)
    model, inner = config["d_model"], config["num_heads"] * config["d_kv"]
    buckets = config["relative_attention_num_buckets"]
    weights = {"shared.weight": draw((config["vocab_size"], model), 1.0)}
    for i in range(config["num_layers"]):
        at = f"encoder.block.{i}.layer"
        q_scale = (model * config["d_kv"]) ** -0.5
        weights |= {
            f"{at}.0.SelfAttention.q.weight": draw((inner, model), q_scale),
            f"{at}.0.SelfAttention.k.weight": draw((inner, model), model**-0.5),
            f"{at}.0.SelfAttention.v.weight": draw((inner, model), model**-0.5),
            f"{at}.0.SelfAttention.o.weight": draw((model, inner), inner**-0.5),
            f"{at}.0.layer_norm.weight": 1 + draw((model,), 0.1),
            f"{at}.1.DenseReluDense.wi.weight": draw((config["d_ff"], model), model**-0.5),
            f"{at}.1.DenseReluDense.wo.weight": draw(
                (model, config["d_ff"]), config["d_ff"] ** -0.5
            ),
            f"{at}.1.layer_norm.weight": 1 + draw((model,), 0.1),
        }
    weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = draw(
        (buckets, config["num_heads"]), 0.5
    )
    weights["encoder.final_layer_norm.weight"] = 1 + draw((model,), 0.1)
    return weights


def random_esm_weights(config: Mapping[str, Any], seed: int) -> Weights:
    """Seeded random weights of an ESM-2 encoder with its language-model and contact heads."""
    draw = _Normal(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    weights = {"esm.embeddings.word_embeddings.weight": draw((config["vocab_size"], hidden), 1.0)}

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


class _Normal:
    """Seeded normal draws of a given shape and scale, float32."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, shape: Sequence[int], scale: float) -> NDArray[np.float32]:
        drawn = self._rng.standard_normal(tuple(shape), dtype=np.float32)
        drawn *= np.float32(scale)
        return drawn


def _t5_tokenizer_files() -> dict[str, bytes]:
    """Write a SentencePiece unigram model with ProtT5's and IgT5's 28 pieces."""
    from sentencepiece import sentencepiece_model_pb2

    normal, unknown, control = 1, 2, 3
    model: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    specials = [("<pad>", control), ("</s>", control), ("<unk>", unknown)]
    letters = [(f"▁{letter}", normal) for letter in "ALGVSREDTIPKFQNYMHWCXBOUZ"]
    for rank, (text, kind) in enumerate(specials + letters):
        piece = model.pieces.add()
        piece.piece, piece.score, piece.type = text, -float(rank), kind
    spec = model.trainer_spec
    spec.model_type, spec.vocab_size = 1, len(model.pieces)
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    model.normalizer_spec.name = "identity"
    # a normalisation table without rules, which some versions of transformers refuse to miss: its
    # size, a double-array trie (the root's offset is 1; unit p is the child for byte p ^ 1 and
    # carries the label p, so that none matches) and an empty list of replacements
    trie = struct.pack("<256I", 1 << 10, *range(1, 256))
    model.normalizer_spec.precompiled_charsmap = struct.pack("<I", len(trie)) + trie + b"\0"
    config = {
        "tokenizer_class": "T5Tokenizer", "extra_ids": 100, "do_lower_case": False,
        "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
    }  # fmt: skip
    return {
        "spiece.model": model.SerializeToString(deterministic=True),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


def _esm_tokenizer_files() -> dict[str, bytes]:
    config = {
        "tokenizer_class": "EsmTokenizer", "cls_token": "<cls>", "eos_token": "<eos>",
        "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
    }  # fmt: skip
    return {
        "vocab.txt": "\n".join(_ESM_VOCAB.split()).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
