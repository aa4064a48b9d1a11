"""What the layers of an encoder are: the declaration that `packed` and `encoder_module` build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Config: TypeAlias = Mapping[str, Any]
"""Content of a config.json."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The layers of an encoder, and the names of their tensors in a checkpoint.

    Names are without ``.weight`` and ``.bias``; those of a layer are inside it.
    """

    embedding: str
    layers: str  # the list of layers
    norms: tuple[str, str]  # of attention, then of the feed-forward
    qkv: tuple[str, ...]  # queries, keys and values, as three matrices or one
    out: str
    up: tuple[str, ...]  # the first product of the feed-forward, with its gate as one matrix or two
    down: str
    first_norm: str = ""  # of the embeddings
    last_norm: str = ""
    qk_norms: tuple[str, str] | None = None  # of all queries and of all keys of a token
    type_embedding: str = ""  # its first row is added to every embedding
    position_embedding: str = ""
    relative_bias: str = ""  # of attention, by T5's buckets of distances

    norm: Literal["layer", "rms"] = "layer"
    norm_after: bool = False  # each residual sum, rather than before each part
    biased: bool = True  # whether matrix products have biases
    rotary: Literal["", "halves", "neighbours"] = ""  # which dimensions of a head turn together
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    gate: Literal["", "first", "second"] = ""  # which half of the first product is its gate
    eps: str | float = "layer_norm_eps"  # of the norms: a number, or its key in config.json
    embedding_scale: float = 1.0
    scaled_twice: bool = False  # whether scores are divided by sqrt(head width) twice
    # branches are divided by sqrt(layers / residual_layers); 0: they are not
    residual_layers: int = 0
    last_norm_biased: bool = True
    positions_after_pad: bool = False  # whether learned positions count from pad_token_id + 1

    def epsilon(self, config: Config) -> float:
        """Return the epsilon of the norms."""
        return float(config[self.eps] if isinstance(self.eps, str) else self.eps)

    def branch_scale(self, layers: int) -> float:
        """Return what the output of each part of a layer is divided by."""
        return float((layers / self.residual_layers) ** 0.5) if self.residual_layers else 1.0


class EncoderShape(NamedTuple):
    """Sizes that decide how much an encoder computes; all 0 if it has no layers."""

    layers: int = 0
    width: int = 0
    attention_width: int = 0
    feed_forward_width: int = 0
    feed_forward_products: int = 2  # 3 if it is gated
    heads: int = 1

    @classmethod
    def of(cls, config: Config, *, gated: bool = False) -> EncoderShape:
        """Read the sizes from a config.json with the keys that most of transformers' models use."""
        width = config["hidden_size"]
        return cls(
            config["num_hidden_layers"], width, width, config["intermediate_size"], 2 + gated,
            config["num_attention_heads"],
        )  # fmt: skip

    @property
    def head_width(self) -> int:
        """Dimensions of the queries of a head."""
        return self.attention_width // self.heads

    def count_flops(self, lengths: Sequence[int] | NDArray[np.int32]) -> float:
        """Count floating-point operations of matrix products and attention.

        `lengths`, shape (N,), holds the tokens of each span."""
        tokens_N = np.asarray(lengths, dtype=np.float64)
        feed_forward = self.feed_forward_products * self.feed_forward_width
        weights = self.layers * self.width * (4 * self.attention_width + feed_forward)
        attention = 4 * self.layers * self.attention_width
        return float(2 * weights * tokens_N.sum() + attention * np.square(tokens_N).sum())
