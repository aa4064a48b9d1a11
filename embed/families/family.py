"""What an encoder is, and the table that describes a family of encoders.

A table holds names and numbers only. torch and transformers are imported when an encoder is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from abag.core.errors import AbagError, EncoderError
from abag.embed.packing import Vocabulary
from abag.embed.weights import EncoderCheckpoint, WeightNames

if TYPE_CHECKING:
    from torch import Tensor

    from abag.core.device import DevicePlan
    from abag.embed.packing import LayerPooling, PackedBatch

Backend = Literal["packed", "reference", "faesm"]
Config: TypeAlias = Mapping[str, Any]
"""Content of a config.json."""


SIZE_KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")


class Encoder(Protocol):
    """Packed token ids to one vector per token."""

    width: int

    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        """Encode T tokens; `layer_pooling` receives the vectors of the layers that it selects."""
        ...


@runtime_checkable
class PoolingEncoder(Protocol):
    """An encoder that pools without making a vector per token."""

    def pool(self, batch: PackedBatch) -> Tensor:
        """Encode a batch as if by `pool_tokens`, to the same bits."""
        ...


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The layers of an encoder, and the names of their tensors without ``.weight``, ``.bias``."""

    embedding: str
    layers: str  # the list of layers
    norms: tuple[str, str]  # of attention, then of the feed-forward
    qkv: tuple[str, ...]  # queries, keys and values, as three matrices or one
    out: str
    up: tuple[str, ...]  # the first product of the feed-forward, with its gate as one matrix or two
    down: str
    first_norm: str = ""  # of the embeddings
    first_norm_key: str = ""  # in config.json, if that says whether there is a first norm
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
        return float(config[self.eps] if isinstance(self.eps, str) else self.eps)

    def branch_scale(self, layers: int) -> float:
        """Return what the output of each part of a layer is divided by."""
        return float((layers / self.residual_layers) ** 0.5) if self.residual_layers else 1.0


@dataclass(frozen=True, kw_only=True)
class LanguageHead:
    """What turns hidden states into scores of tokens, and the names of its tensors in the files.

    A product with its activation, unless `dense` is empty, a norm, and a product with one row per
    token. Names are as in `Architecture`, those of `decoder` and `bias` as they are.
    """

    dense: str = ""
    gated: bool = False  # SwiGLU, whose gate is the second half, instead of GELU
    norm: str
    norm_kind: Literal["layer", "rms"] = "layer"
    decoder: str  # its weights
    tied: bool = False  # to the embedding, unless config.json says otherwise
    bias: str = ""
    bias_again: str = ""  # another name of the same tensor

    def is_tied(self, config: Config) -> bool:
        return self.tied and config.get("tie_word_embeddings") is not False

    def weight_names(self, config: Config) -> WeightNames:
        """Return which tensors of a checkpoint are needed beside those of the encoder."""
        names = [f"{self.norm}.weight"]
        if self.norm_kind == "layer":
            names.append(f"{self.norm}.bias")
        if self.dense:
            names += [f"{self.dense}.weight", f"{self.dense}.bias"]
        if not self.is_tied(config):
            names.append(self.decoder)
        if self.bias:
            names.append(self.bias)
        again = {self.bias_again: self.bias} if self.bias_again else {}
        return WeightNames(only=tuple(names), tied=again)


class EncoderShape(NamedTuple):
    """Sizes that decide how much an encoder computes; all 0 if it has no layers."""

    layers: int = 0
    width: int = 0
    attention_width: int = 0
    feed_forward_width: int = 0
    feed_forward_products: int = 2  # 3 if it is gated
    heads: int = 1

    @property
    def head_width(self) -> int:
        return self.attention_width // self.heads


class Package(NamedTuple):
    """An installed Python package that carries weights; its code is never imported."""

    name: str  # also of abag's extra
    weights: str  # path in `folder`
    config: str  # the same
    folder: str = ""  # in the package: where the files of the vocabulary are
    download: str = ""  # command that downloads the weights, if they are not part of the package
    requirement: str = ""  # the version that has the weights, as pip reads it


@dataclass(frozen=True, kw_only=True)
class Family:
    """One encoder architecture, listed in `registry`; the first of its backends is the default."""

    name: str  # part of the fingerprint
    vocabulary: Vocabulary
    backends: tuple[str, ...] = ("packed", "reference")
    tokens: Mapping[str, int] = field(default_factory=dict)  # texts and ids; compared with files
    # makes the vocabulary of a checkpoint from the tokens in its files, where only they say the ids
    read_vocabulary: Callable[[Mapping[str, int]], Vocabulary] | None = None
    package: Package | None = None  # of aliases that are not on the hub

    model_type: str = ""  # in config.json
    own_values: Config = field(default_factory=dict)  # no other family of the model_type has them
    config_keys: tuple[str, ...] = ()  # that config.json must have; all change vectors
    config_defaults: Config = field(default_factory=dict)  # of other keys that change vectors
    required: Config = field(default_factory=dict)  # the only values that some keys may have
    fewest_positions: int = 0  # that max_position_embeddings may say
    check: Callable[[Config], str] | None = None  # says what is wrong with a config.json
    # keys of the numbers of layers, width, heads and width of the feed-forward, or its formula
    sizes: tuple[str, str, str, str | Callable[[Config], int]] = SIZE_KEYS
    head_width: str = ""  # its key, where heads times their width is not the width of the encoder

    architecture: Architecture | None = None  # of its layers, if it has any
    # for other values of feed_forward_proj in config.json
    gated: Mapping[str, Architecture] = field(default_factory=dict)
    head: LanguageHead | None = None  # of its language model, if checkpoints have one
    transformers_class: str = ""  # of the reference implementation; abag's own if there is none
    transformers_options: Config = field(default_factory=dict)  # of its from_pretrained
    weight_prefix: str = ""  # of the encoder in a model with a task head
    unused_weights: tuple[str, ...] = ()  # prefixes, in the encoder, of tensors it does not need
    tied_weights: Mapping[str, str] = field(default_factory=dict)  # second names of one tensor
    fp32_weights: tuple[str, ...] = ()  # ends of names; their products overflow fp16
    lora_targets: tuple[str, ...] = ()  # linear layers adapted by default
    lora_projections: tuple[str, ...] = ()  # linear layers that can be adapted
    layer_list: str = "encoder.layer"  # attribute of the transformers module: its layers
    tiny_config: Config = field(default_factory=dict)

    @property
    def biased_attention(self) -> bool:
        """Whether attention adds a bias by relative position."""
        return self.architecture is not None and bool(self.architecture.relative_bias)

    @property
    def reduced_config(self) -> Config:
        """A config.json with few layers, but heads as wide as those of real encoders."""
        layers, width, heads, inner = self.sizes
        sizes = {layers: 4, width: 256}
        if isinstance(inner, str):
            sizes[inner] = 1024
        if self.head_width:
            sizes |= {heads: 2, self.head_width: 128}
        return {**self.tiny_config, **sizes}

    @property
    def weight_names(self) -> WeightNames:
        """Which tensors of a checkpoint belong to the encoder."""
        return WeightNames(self.weight_prefix, self.unused_weights, self.tied_weights)

    def effective_backend(self, backend: str) -> str:
        """Return the backend that runs when `backend` is requested."""
        return backend if backend in self.backends else self.backends[0]

    def complete(self, config: Config) -> dict[str, Any]:
        """Return config.json with the defaults of what it lacks."""
        given = {key: value for key, value in config.items() if value is not None}
        return {**self.config_defaults, **given}

    def settings(self, config: Config) -> dict[str, object]:
        """Return the values in config.json that change vectors, for the fingerprint."""
        complete = self.complete(config)
        return {key: complete.get(key) for key in (*self.config_keys, *self.config_defaults)}

    def shape(self, config: Config) -> EncoderShape:
        if self.architecture is None:
            return EncoderShape()
        config = self.complete(config)
        layers, width, heads = (config[key] for key in self.sizes[:3])
        inner = self.sizes[3]
        return EncoderShape(
            layers,
            width,
            heads * config[self.head_width] if self.head_width else width,
            config[inner] if isinstance(inner, str) else inner(config),
            3 if self.architecture_of(config).gate else 2,
            heads,
        )

    def architecture_of(self, config: Config) -> Architecture:
        if self.architecture is None:
            msg = f"encoder family {self.name}: has no layers"
            raise AbagError(msg)
        declared = self.gated.get(str(config.get("feed_forward_proj")), self.architecture)
        if declared.first_norm_key and not config.get(declared.first_norm_key):
            return replace(declared, first_norm="")
        return declared

    def checked_config(self, checkpoint: EncoderCheckpoint) -> dict[str, Any]:
        """Return config.json with all defaults, if abag has the layers that it describes."""
        config = self.complete(checkpoint.config)
        check = self._check_feed_forward if self.gated else self.check
        problem = "" if check is None else check(checkpoint.config)
        for key, value in self.required.items():
            if (found := config.get(key)) not in (None, value):
                problem = problem or f"{key} {found!r}; only {value!r} is supported"
        if (most := config.get("max_position_embeddings", 0)) < self.fewest_positions:
            problem = (
                f"max_position_embeddings {most}; {self.name} encoders need {self.fewest_positions}"
            )
        if problem:
            msg = f"{checkpoint.folder}/config.json: {problem}"
            raise EncoderError(msg)
        return config

    def _check_feed_forward(self, config: Config) -> str:
        """Say whether a config.json describes another feed-forward, or contradicts itself."""
        projection = config.get("feed_forward_proj") or "relu"
        if projection not in ("relu", *self.gated):
            known = ", ".join(("relu", *self.gated))
            return f"feed_forward_proj {projection!r}; only {known} are supported"
        name = {"gated-gelu": "gelu_new"}.get(projection, projection.removeprefix("gated-"))
        if (found := config.get("dense_act_fn") or name) == name:
            return ""
        return f"dense_act_fn {found!r}; only {name!r} is supported with {projection!r}"

    def build(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> Encoder:
        """Build an encoder of a subclass, which is neither packed nor a reference."""
        raise NotImplementedError
