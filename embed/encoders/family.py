"""The interface of an encoder, and the table that describes a family of encoders.

A table holds names and numbers only. torch and transformers are imported when an encoder is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from abag.core.errors import AbagError, EncoderError
from abag.embed.encoders.packing import LayerPooling, PackedBatch, Vocabulary
from abag.embed.encoders.weights import EncoderCheckpoint, WeightNames

if TYPE_CHECKING:
    from torch import Tensor

    from abag.core.device import DevicePlan

Backend = Literal["packed", "reference", "faesm"]
Config: TypeAlias = Mapping[str, Any]
"""Content of a config.json."""


SIZE_KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
"""Usual keys of config.json for the sizes of an encoder; see `Family.sizes`."""


class Encoder(Protocol):
    """An encoder: packed token ids to one vector per token."""

    width: int
    """Numbers per vector, D."""

    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        """Encode the T tokens of a batch, to shape (T, D).

        `layer_pooling` receives the vectors of the layers that it selects.
        """
        ...


@runtime_checkable
class PoolingEncoder(Protocol):
    """An encoder that pools without making a vector per token."""

    def pool(self, batch: PackedBatch) -> Tensor:
        """Encode a batch and pool it, to shape (S, P, D): the same bits as by `pool_tokens`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The layers of an encoder, and the names of their tensors without ``.weight``, ``.bias``."""

    embedding: str
    layers: str
    """Path of the list of layers."""
    norms: tuple[str, str]
    """Norms of attention and of the feed-forward."""
    qkv: tuple[str, ...]
    """Queries, keys and values, as three matrices or one."""
    out: str
    up: tuple[str, ...]
    """The first product of the feed-forward, with its gate as one matrix or two."""
    down: str
    first_norm: str = ""
    """Norm of the embeddings; empty: there is none, as for the names below."""
    first_norm_key: str = ""
    """Key of config.json that says whether there is a first norm; empty: none does."""
    last_norm: str = ""
    qk_norms: tuple[str, str] | None = None
    """Norms of all queries and of all keys of a token."""
    type_embedding: str = ""
    """Table whose first row is added to every embedding."""
    position_embedding: str = ""
    relative_bias: str = ""
    """Bias of attention by T5's buckets of distances."""

    norm: Literal["layer", "rms"] = "layer"
    norm_after: bool = False
    """Whether norms come after each residual sum, rather than before each part."""
    biased: bool = True
    """Whether matrix products have biases."""
    rotary: Literal["", "halves", "neighbours"] = ""
    """Which dimensions of a head turn together; empty: no rotary positions."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    gate: Literal["", "first", "second"] = ""
    """Which half of the first product is its gate; empty: no gate."""
    eps: str | float = "layer_norm_eps"
    """Epsilon of the norms, or its key in config.json."""
    embedding_scale: float = 1.0
    scaled_twice: bool = False
    """Whether scores are divided by sqrt(head width) twice."""
    residual_layers: int = 0
    """Branches are divided by ``sqrt(layers / residual_layers)``; 0: they are not."""
    last_norm_biased: bool = True
    positions_after_pad: bool = False
    """Whether learned positions count from pad_token_id + 1."""

    def epsilon(self, config: Config) -> float:
        """Return the epsilon of the norms of an encoder with this config.json."""
        return float(config[self.eps] if isinstance(self.eps, str) else self.eps)

    def branch_scale(self, layers: int) -> float:
        """Return the divisor of the output of each part of a layer."""
        return float((layers / self.residual_layers) ** 0.5) if self.residual_layers else 1.0


@dataclass(frozen=True, kw_only=True)
class LanguageHead:
    """The head of a language model: how it scores tokens, and the names of its tensors in files.

    It is a product with its activation, unless `dense` is empty, a norm, and a product with one
    row per token. Names are as in `Architecture`, but those of `decoder` and `bias` are complete.
    """

    dense: str = ""
    gated: bool = False
    """Whether the activation is SwiGLU, whose gate is the second half, instead of GELU."""
    norm: str
    norm_kind: Literal["layer", "rms"] = "layer"
    decoder: str
    """Weights of the last product."""
    tied: bool = False
    """Whether the decoder is the embedding, unless config.json says otherwise."""
    bias: str = ""
    bias_again: str = ""
    """Another name of the tensor `bias`."""

    def is_tied(self, config: Config) -> bool:
        """Return whether the decoder of an encoder with this config.json is its embedding."""
        return self.tied and config.get("tie_word_embeddings") is not False

    def weight_names(self, config: Config) -> WeightNames:
        """Return the names of the head's tensors, beside those of the encoder."""
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
    feed_forward_products: int = 2
    """Matrices of the feed-forward: 3 if it is gated."""
    heads: int = 1

    @property
    def head_width(self) -> int:
        """Dimensions of a head."""
        return self.attention_width // self.heads


class Package(NamedTuple):
    """An installed Python package that carries weights; its code is never imported."""

    name: str
    """Name of the package, and of abag's extra."""
    weights: str
    """Path of the weights in `folder`."""
    config: str
    """Path of the configuration in `folder`."""
    folder: str = ""
    """Folder in the package that holds the files of the vocabulary."""
    download: str = ""
    """Command that downloads the weights, if they are not part of the package."""
    requirement: str = ""
    """Version that has the weights, as pip reads it; empty: any."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One encoder architecture, listed in `registry`; the first of its backends is the default."""

    name: str
    """Part of the fingerprint."""
    vocabulary: Vocabulary
    backends: tuple[str, ...] = ("packed", "reference")
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of tokens by their texts; compared with the files of a checkpoint."""
    read_vocabulary: Callable[[Mapping[str, int]], Vocabulary] | None = None
    """Makes the vocabulary of a checkpoint from the tokens in its files, where only they say the
    ids."""
    package: Package | None = None
    """Package with the weights of aliases that are not on the hub."""

    model_type: str = ""
    """Value of model_type in config.json."""
    own_values: Config = field(default_factory=dict)
    """Values of config.json that no other family of the model_type has."""
    config_keys: tuple[str, ...] = ()
    """Keys that config.json must have beside those of sizes; all change vectors."""
    config_defaults: Config = field(default_factory=dict)
    """Defaults of other keys of config.json that change vectors."""
    required: Config = field(default_factory=dict)
    """Keys of config.json that may have only one value."""
    fewest_positions: int = 0
    """Smallest max_position_embeddings that config.json may have."""
    check: Callable[[Config], str] | None = None
    """Function that says what is wrong with a config.json, or nothing."""
    sizes: tuple[str, str, str, str | Callable[[Config], int]] = SIZE_KEYS
    """Keys of the numbers of layers, width, heads and width of the feed-forward, or its formula."""
    head_width: str = ""
    """Key of the width of a head, where heads times their width is not the width of the encoder."""

    architecture: Architecture | None = None
    """Layers of the encoder; None if it has none."""
    build: Callable[[DevicePlan], Encoder] | None = None
    """Makes an encoder without weights, which is neither packed nor a reference."""
    gated: Mapping[str, Architecture] = field(default_factory=dict)
    """Architectures for other values of feed_forward_proj in config.json."""
    head: LanguageHead | None = None
    """Head of its language model, if checkpoints have one."""
    transformers_class: str = ""
    """Class of the reference implementation; empty: abag's own."""
    transformers_options: Config = field(default_factory=dict)
    """Arguments of that class."""
    weight_prefix: str = ""
    """Prefix of the encoder's tensors in a model with a task head."""
    unused_weights: tuple[str, ...] = ()
    """Prefixes, in the encoder, of tensors it does not need."""
    tied_weights: Mapping[str, str] = field(default_factory=dict)
    """Second names of tensors, and the first name of each."""
    fp32_weights: tuple[str, ...] = ()
    """Ends of names of weights whose products overflow fp16."""
    tiny_config: Config = field(default_factory=dict)

    @property
    def biased_attention(self) -> bool:
        """Whether attention adds a bias by relative position."""
        return self.architecture is not None and bool(self.architecture.relative_bias)

    @property
    def reduced_config(self) -> Config:
        """Content of a config.json with few layers, but heads as wide as in real encoders."""
        layers, width, heads, inner = self.sizes
        sizes = {layers: 4, width: 256}
        if isinstance(inner, str):
            sizes[inner] = 1024
        if self.head_width:
            sizes |= {heads: 2, self.head_width: 128}
        return {**self.tiny_config, **sizes}

    @property
    def weight_names(self) -> WeightNames:
        """Names of the tensors of a checkpoint that belong to the encoder."""
        return WeightNames(self.weight_prefix, self.unused_weights, self.tied_weights)

    @property
    def needed_keys(self) -> tuple[str, ...]:
        """Keys that config.json must have, those of sizes included."""
        if self.architecture is None:
            return ()
        sizes = [key for key in (*self.sizes, self.head_width) if isinstance(key, str) and key]
        keys = dict.fromkeys((*sizes, *self.config_keys))
        return tuple(key for key in keys if key not in self.config_defaults)

    def effective_backend(self, backend: str) -> str:
        """Return the backend that runs when `backend` is requested."""
        return backend if backend in self.backends else self.backends[0]

    def complete(self, config: Config) -> dict[str, Any]:
        """Return config.json with defaults for keys that are absent or null."""
        present = {key: value for key, value in config.items() if value is not None}
        return {**self.config_defaults, **present}

    def settings(self, config: Config) -> dict[str, object]:
        """Return the values in config.json that change vectors, for the fingerprint."""
        complete = self.complete(config)
        return {key: complete.get(key) for key in (*self.needed_keys, *self.config_defaults)}

    def shape(self, config: Config) -> EncoderShape:
        """Return the sizes of an encoder with this config.json."""
        if self.architecture is None:
            return EncoderShape()
        config = self.complete(config)
        layers, width, heads = (config[key] for key in self.sizes[:3])
        inner = self.sizes[3]
        return EncoderShape(
            layers=layers,
            width=width,
            attention_width=heads * config[self.head_width] if self.head_width else width,
            feed_forward_width=config[inner] if isinstance(inner, str) else inner(config),
            feed_forward_products=3 if self.architecture_of(config).gate else 2,
            heads=heads,
        )

    def architecture_of(self, config: Config) -> Architecture:
        """Return the layers of an encoder with this config.json.

        Raises
        ------
        AbagError
            If encoders of the family have no layers.
        """
        if self.architecture is None:
            msg = f"encoder family {self.name}: has no layers"
            raise AbagError(msg)
        declared = self.gated.get(str(config.get("feed_forward_proj")), self.architecture)
        if declared.first_norm_key and not config.get(declared.first_norm_key):
            return replace(declared, first_norm="")
        return declared

    def lora_projections(self, config: Config) -> tuple[str, ...]:
        """Return the linear layers that can be adapted, by the last part of their names."""
        if self.architecture is None:
            return ()
        declared = self.architecture_of(config)
        products = (*declared.qkv, declared.out, *declared.up, declared.down)
        names = [product.rpartition(".")[2] for product in products]
        # peft finds layers by this part: several of BERT are called dense, some of AbLang2 0 and 2
        return tuple(name for name in names if names.count(name) == 1 and not name.isdecimal())

    def checked_config(self, checkpoint: EncoderCheckpoint) -> dict[str, Any]:
        """Return config.json with all defaults, after a check that abag has its layers.

        Raises
        ------
        EncoderError
            If config.json describes other layers.
        """
        config = self.complete(checkpoint.config)
        check = self._check_feed_forward if self.gated else self.check
        problem = "" if check is None else check(checkpoint.config)
        for key, value in self.required.items():
            actual = config.get(key)
            if actual not in (None, value):
                problem = problem or f"{key} {actual!r}; only {value!r} is supported"
        positions = config.get("max_position_embeddings", 0)
        if positions < self.fewest_positions:
            problem = (
                f"max_position_embeddings {positions}; {self.name} encoders need "
                f"{self.fewest_positions}"
            )
        if problem:
            msg = f"{checkpoint.folder}/config.json: {problem}"
            raise EncoderError(msg)
        return config

    def _check_feed_forward(self, config: Config) -> str:
        """Say whether a config.json describes another feed-forward, or contradicts itself."""
        projection = config.get("feed_forward_proj") or "relu"
        if projection not in ("relu", *self.gated):
            supported = ", ".join(("relu", *self.gated))
            return f"feed_forward_proj {projection!r}; only {supported} are supported"
        expected = {"gated-gelu": "gelu_new"}.get(projection, projection.removeprefix("gated-"))
        activation = config.get("dense_act_fn") or expected
        if activation == expected:
            return ""
        return f"dense_act_fn {activation!r}; only {expected!r} is supported with {projection!r}"
