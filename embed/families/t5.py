"""T5 encoders: IgT5 and ProtT5, which read heavy and light chain as one sequence, ProstT5, Ankh.

Ankh 3 has a module of its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from abag.embed.families.architecture import Architecture, Config, EncoderShape
from abag.embed.families.family import DrawNormal, Family, Weights
from abag.embed.families.vocabulary_files import PIECES_FILE, PIPELINE_FILE, WordTokenizer
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.weights.checkpoints import BadCheckpoint

if TYPE_CHECKING:
    from torch.nn import Module

    from abag.embed.kernels.ops import Activation
    from abag.embed.weights.checkpoints import EncoderCheckpoint, WeightNames

_TINY_CONFIG: Config = {
    "model_type": "t5", "architectures": ["T5EncoderModel"], "d_model": 64, "d_ff": 256,
    "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 128,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
    "feed_forward_proj": "relu", "layer_norm_epsilon": 1e-6, "dropout_rate": 0.0,
    "is_encoder_decoder": False, "use_cache": False, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


_ACTIVATIONS: dict[object, Activation] = {
    "relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"
}  # fmt: skip
"""By feed_forward_proj."""


def _is_gated(config: Config) -> bool:
    return str(config.get("feed_forward_proj")).startswith("gated-")


class T5Family(Family):
    """What the families of T5 encoders share."""

    def shape(self, config: Config) -> EncoderShape:
        attention_width = config["num_heads"] * config["d_kv"]
        products = 3 if _is_gated(config) else 2
        return EncoderShape(
            config["num_layers"], config["d_model"], attention_width, config["d_ff"], products,
            config["num_heads"],
        )  # fmt: skip

    def weight_names(self, config: Config) -> WeightNames:
        """Return the names of the weights; the embedding of the residues has two."""
        tied = {"encoder.embed_tokens.weight": "shared.weight"}
        return replace(super().weight_names(config), tied=tied)

    def checked_config(self, checkpoint: EncoderCheckpoint) -> dict[str, Any]:
        """Return config.json with all defaults, if abag has the layers that it describes."""
        self._check_activation(checkpoint)
        config = super().checked_config(checkpoint)
        if (projection := config["feed_forward_proj"]) not in _ACTIVATIONS:
            msg = (
                f"{checkpoint.folder}/config.json: feed_forward_proj {projection!r}; "
                f"only {', '.join(map(str, _ACTIVATIONS))} are supported"
            )
            raise BadCheckpoint(msg)
        return config

    def architecture_of(self, config: Config) -> Architecture:
        """Return the layers of an encoder, whose feed-forward may be gated."""
        assert self.architecture is not None
        if not _is_gated(config):
            return self.architecture
        gated = tuple(f"{_FEED_FORWARD}.wi_{i}" for i in (0, 1))
        activation = _ACTIVATIONS[config["feed_forward_proj"]]
        return replace(self.architecture, up=gated, gate="first", activation=activation)

    def load_reference(self, checkpoint: EncoderCheckpoint) -> tuple[Module, set[str]]:
        """Load the reference in fp32; also returns the weights that only one side has."""
        self._check_activation(checkpoint)
        return super().load_reference(checkpoint)

    def _check_activation(self, checkpoint: EncoderCheckpoint) -> None:
        """Check that config.json does not contradict itself: transformers derives one key."""
        projection = str(checkpoint.config.get("feed_forward_proj") or "relu")
        name = "gelu_new" if projection == "gated-gelu" else projection.rpartition("-")[2]
        if (found := checkpoint.config.get("dense_act_fn") or name) != name:
            msg = (
                f"{checkpoint.folder}/config.json: dense_act_fn {found!r}; "
                f"only {name!r} is supported with feed_forward_proj {projection!r}"
            )
            raise BadCheckpoint(msg)

    def random_weights(self, config: Config, draw: DrawNormal) -> Weights:
        """Draw weights of a T5 encoder.

        Query weights include the 1 / sqrt(d_kv) that T5's attention omits, so that the softmax
        is neither flat nor one-hot.
        """
        layers, model, inner, hidden = self.shape(config)[:4]
        ups = ("wi_0", "wi_1") if _is_gated(config) else ("wi",)
        q_scale = (model * config["d_kv"]) ** -0.5
        bias_shape = (config["relative_attention_num_buckets"], config["num_heads"])
        weights = {"shared.weight": draw((config["vocab_size"], model), 1.0)}
        for i in range(layers):
            at = f"encoder.block.{i}.layer"
            weights |= {
                f"{at}.0.SelfAttention.q.weight": draw((inner, model), q_scale),
                f"{at}.0.SelfAttention.k.weight": draw((inner, model), model**-0.5),
                f"{at}.0.SelfAttention.v.weight": draw((inner, model), model**-0.5),
                f"{at}.0.SelfAttention.o.weight": draw((model, inner), inner**-0.5),
                f"{at}.0.layer_norm.weight": 1 + draw((model,), 0.1),
                **{
                    f"{at}.1.DenseReluDense.{up}.weight": draw((hidden, model), model**-0.5)
                    for up in ups
                },
                f"{at}.1.DenseReluDense.wo.weight": draw((model, hidden), hidden**-0.5),
                f"{at}.1.layer_norm.weight": 1 + draw((model,), 0.1),
            }
        bias_name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        weights[bias_name] = draw(bias_shape, 0.5)
        weights["encoder.final_layer_norm.weight"] = 1 + draw((model,), 0.1)
        return weights

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return the files of a tokenizer with the pieces and the added tokens of the family."""
        if self.tokenizer is None:
            return {PIPELINE_FILE: _letter_pipeline()}
        files = {
            PIECES_FILE: sentencepiece_model(
                [("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)]
                + [(f"▁{letter}", NORMAL) for letter in _LETTERS]
            ),
            "tokenizer_config.json": json.dumps(_TOKENIZER_CONFIG).encode(),
        }
        if self.prefix_text:
            files["added_tokens.json"] = json.dumps(_PROSTT5_TOKENS).encode()
        return files


_LETTERS = "ALGVSREDTIPKFQNYMHWCXBOUZ"
_TOKENIZER_CONFIG = {
    "tokenizer_class": "T5Tokenizer", "extra_ids": 100, "do_lower_case": False,
    "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
}  # fmt: skip
_PROSTT5_TOKENS = {
    **{letter: 128 + i for i, letter in enumerate("algvsrdetipkfqnymhwc")},
    "<fold2AA>": 148,
    "<AA2fold>": 149,
}


NORMAL, UNKNOWN, CONTROL, USER_DEFINED = range(1, 5)
"""Kinds of pieces in a file of SentencePiece."""


def sentencepiece_model(pieces: Sequence[tuple[str, int]], *, dummy_prefix: bool = True) -> bytes:
    """Return a SentencePiece unigram model with these texts and kinds of pieces, by id.

    `dummy_prefix` says whether a text is read as if it started with a space.
    """
    from sentencepiece import sentencepiece_model_pb2

    model: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    for rank, (text, kind) in enumerate(pieces):
        piece = model.pieces.add()
        piece.piece, piece.score, piece.type = text, -float(rank), kind
    spec = model.trainer_spec
    spec.model_type, spec.vocab_size = 1, len(model.pieces)
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = dummy_prefix
    # some versions of transformers require a normalisation table; this one has no rules: the
    # size and units of a double-array trie (the root's offset is 1; unit p is the child for
    # byte p ^ 1 and carries the label p, so that none matches), then no replacements
    trie = struct.pack("<256I", 1 << 10, *range(1, 256))
    model.normalizer_spec.precompiled_charsmap = struct.pack("<I", len(trie)) + trie + b"\0"
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def _letter_pipeline() -> bytes:
    """Return a tokenizer.json like Ankh's: every letter is a piece, and nothing marks words."""
    from tokenizers import Tokenizer, models, processors

    pieces = ["<pad>", "</s>", "<unk>", *_LETTERS]
    pipeline = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], unk_id=2))
    pipeline.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return str(pipeline.to_str()).encode()


_RESIDUES = residue_ids(_LETTERS[:21], 3)
_ATTENTION, _FEED_FORWARD = "layer.0.SelfAttention", "layer.1.DenseReluDense"
_LAYERS = Architecture(
    embedding="shared",
    layers="encoder.block",
    norms=("layer.0.layer_norm", "layer.1.layer_norm"),
    qkv=tuple(f"{_ATTENTION}.{part}" for part in "qkv"),
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
T5 = T5Family(
    name="t5",
    model_type="t5",
    vocabulary=Vocabulary(_RESIDUES, end=1, separator=1),
    backends=("packed", "reference"),
    config_keys=(
        "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "vocab_size",
        "layer_norm_epsilon", "relative_attention_num_buckets",
    ),
    required={"relative_attention_max_distance": 128},
    architecture=_LAYERS,
    config_defaults={
        "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
        "dense_act_fn": "relu", "is_gated_act": False, "pad_token_id": 0,
    },
    transformers_class="T5EncoderModel",
    weight_prefix="transformer.",
    unused_weights=("decoder.", "lm_head.", "qa_outputs."),
    fp32_weights=(".wo.weight",),
    tokenizer=WordTokenizer(("T5Tokenizer",), ("bos_token", ""), ("eos_token", "</s>")),
    separator_text=" </s> ",
    lora_targets=("q", "v"),
    lora_projections=("q", "k", "v", "o", "wi", "wo"),
    layer_list="encoder.block",
    tiny_config=_TINY_CONFIG,
    reduced_config={
        **_TINY_CONFIG, "d_model": 256, "d_kv": 128, "num_heads": 2, "d_ff": 1024, "num_layers": 4,
    },
)  # fmt: skip
"""IgT5 and ProtT5."""
PROSTT5 = replace(
    T5,
    name="prostt5",
    vocab_sizes=(150,),
    vocabulary=Vocabulary(_RESIDUES, start=149, end=1),
    prefix_text="<AA2fold> ",
    tiny_config={**_TINY_CONFIG, "vocab_size": 150},
    reduced_config={**T5.reduced_config, "vocab_size": 150},
)
"""ProstT5, which is told that it reads residues rather than structures."""
_ANKH_CONFIG: Config = {
    "vocab_size": 144, "relative_attention_num_buckets": 64, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
ANKH = replace(
    T5,
    name="ankh",
    vocab_sizes=(144,),
    vocabulary=Vocabulary(_RESIDUES, end=1),
    spaced=False,
    tokenizer=None,  # transformers 5 makes every T5 tokenizer mark the starts of words
    lora_projections=("q", "k", "v", "o", "wi_0", "wi_1", "wo"),
    tiny_config={**_TINY_CONFIG, **_ANKH_CONFIG},
    reduced_config={**T5.reduced_config, **_ANKH_CONFIG},
)
"""Ankh and Ankh 2: a gated feed-forward, and no spaces between residues."""
