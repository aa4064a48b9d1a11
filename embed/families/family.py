"""What an encoder is, and what describes a family of encoders.

A family description imports torch and transformers only when an encoder is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.families.vocabulary_files import PIPELINE_FILE, WordTokenizer, ids_by_files
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint, WeightNames

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import LayerPooling, PackedBatch
    from abag.embed.packing.tokens import Vocabulary
    from abag.embed.sequences.chains import Chains, Kind

Backend = Literal["packed", "reference", "faesm"]
Config: TypeAlias = Mapping[str, Any]
Weights: TypeAlias = dict[str, NDArray[np.float32]]


class DrawNormal:
    """Draws arrays of a normal distribution, given their shape and its scale."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __call__(self, shape: Sequence[int], scale: float) -> NDArray[np.float32]:
        """Draw one array."""
        drawn = self._rng.standard_normal(tuple(shape), dtype=np.float32)
        drawn *= np.float32(scale)
        return drawn


class Encoder(Protocol):
    """Packed token ids to one vector per token."""

    width: int

    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        """Encode a batch of T tokens.

        `layer_pooling` receives the token vectors of each layer that it selects.

        Returns
        -------
        Tensor, shape=(T, D), dtype=float32, bfloat16 or float16
            Last hidden state of every token, special tokens included, on the encoder's device.
        """
        ...


@runtime_checkable
class PoolingEncoder(Protocol):
    """An encoder that pools without making a vector per token."""

    def pool(self, batch: PackedBatch) -> Tensor:
        """Encode a batch as if by `pool_tokens`, to the same bits.

        Returns
        -------
        Tensor, shape=(S, P, D), dtype=float32
            On the CPU.
        """
        ...


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


@dataclass(frozen=True, kw_only=True)
class Family:
    """One encoder architecture; subclassed per family and listed in `abag.embed.families.registry`.

    `backends` says how its encoders can run, the default first: ``"reference"`` is transformers'
    own module, any other is built by `build`. `tiny_config` and `reduced_config` are config.json
    of random checkpoints: a small one for tests and demos, and one with few layers but heads as
    wide as those of the real encoders.
    """

    name: str  # part of the fingerprint
    vocabulary: Vocabulary
    backends: tuple[str, ...]
    model_type: str = ""  # in config.json
    vocab_sizes: tuple[int, ...] = ()  # in config.json, of several families of a model_type
    config_keys: tuple[str, ...] = ()  # that config.json must have; all change vectors
    config_defaults: Config = field(default_factory=dict)  # of other keys that change vectors
    biased_attention: bool = False  # by relative position
    transformers_class: str = ""  # of the reference implementation, if there is one
    transformers_options: Config = field(default_factory=dict)  # of its from_pretrained
    weight_prefix: str = ""  # of the encoder in a model with a task head
    unused_weights: tuple[str, ...] = ()  # prefixes, in the encoder, of tensors it does not need
    fp32_weights: tuple[str, ...] = ()  # ends of names; their products overflow fp16
    lora_targets: tuple[str, ...] = ()  # linear layers adapted by default
    lora_projections: tuple[str, ...] = ()  # linear layers that can be adapted
    layer_list: str = "encoder.layer"  # attribute of the transformers module: its layers
    spaced: bool = True  # whether the tokenizer needs a space between residues
    tokenizer: WordTokenizer | None = None  # None: tokenizer.json is run as it is
    prefix_text: str = ""  # what the tokenizer must be given before the residues ...
    separator_text: str = ""  # ... and between heavy and light chain
    chain_texts: tuple[str, str] = ("", "")  # before a heavy and a light chain
    tiny_config: Config = field(default_factory=dict)
    reduced_config: Config = field(default_factory=dict)

    def reads(self, config: Config) -> bool:
        """Whether the family is that of a config.json, apart from its size of the vocabulary."""
        return bool(self.model_type) and config.get("model_type") == self.model_type

    def in_transformers_keys(self, config: Config) -> Config:
        """Return config.json as transformers writes it, where it may come from elsewhere."""
        return config

    def complete(self, config: Config) -> dict[str, Any]:
        """Return config.json with the defaults of what it lacks."""
        given = {key: value for key, value in config.items() if value is not None}
        return {**self.config_defaults, **given}

    def require(self, checkpoint: EncoderCheckpoint, **settings: object) -> dict[str, Any]:
        """Return config.json with all defaults, if it gives these settings no other values.

        Raises
        ------
        BadCheckpoint
        """
        config = self.complete(checkpoint.config)
        for key, value in settings.items():
            if (found := config.get(key)) not in (None, value):
                msg = (
                    f"{checkpoint.folder}/config.json: {key} {found!r}; only {value!r} is supported"
                )
                raise BadCheckpoint(msg)
        return config

    @property
    def positions(self) -> int:
        """Most tokens of a span, of a family that limits them."""
        longest = self.vocabulary.longest_span
        assert longest is not None
        return longest

    def text(self, chains: Chains, kind: Kind) -> str:
        """Write the chains of one span as the family's tokenizer must be given them."""
        between = " " if self.spaced else ""
        marks = self.chain_texts if kind == "antibody" else ("", "")
        marked = [
            between.join([mark, *chain] if mark else chain)
            for mark, chain in zip(marks, chains, strict=False)
            if chain
        ]
        return self.prefix_text + self.separator_text.join(marked)

    def vocabulary_of(self, _checkpoint: EncoderCheckpoint) -> Vocabulary:
        """Return the token ids of a checkpoint; by default, those of the family.

        Raises
        ------
        BadCheckpoint
            If its files do not say them.
        """
        return self.vocabulary

    def effective_backend(self, backend: str) -> str:
        """Return the backend that runs when `backend` is requested."""
        return backend if backend in self.backends else self.backends[0]

    def shape(self, _config: Config) -> EncoderShape:
        """Read an encoder's sizes from its config.json."""
        return EncoderShape()

    def settings(self, config: Config) -> dict[str, object]:
        """Return the values in config.json that change vectors, for the fingerprint."""
        required = {key: config[key] for key in self.config_keys}
        given = {key: config.get(key) for key in self.config_defaults}
        return required | {k: self.config_defaults[k] if v is None else v for k, v in given.items()}

    def weight_names(self, _config: Config) -> WeightNames:
        """Return which tensors of a checkpoint belong to the encoder."""
        return WeightNames(self.weight_prefix, self.unused_weights)

    def builtin_checkpoint(self, alias: str) -> EncoderCheckpoint:
        """Return the checkpoint of an alias that is not on the hub; by default, no weights."""
        return EncoderCheckpoint(alias, self.name, None, (), {}, alias)

    def build(
        self, backend: str, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str
    ) -> Encoder:
        """Build an encoder, for every backend but ``"reference"``.

        Raises
        ------
        BadCheckpoint, AdapterMismatch, AttentionUnavailable, FaesmUnavailable
        """
        msg = f"encoder family {self.name}: has no backend {backend}"
        raise AbagError(msg)

    def _transformers_encoder(self) -> Any:  # noqa: ANN401 - untyped
        """Return the class of the reference implementation."""
        import transformers

        if found := getattr(transformers, self.transformers_class, None):
            return found
        msg = (
            f"encoder family {self.name}: transformers {transformers.__version__} has no "
            f"{self.transformers_class}; run pip install -U transformers"
        )
        raise AbagError(msg)

    def reference_module(self, config: Config) -> Module:
        """Return the reference implementation without its weights.

        Raises
        ------
        AbagError
            If the family has none.
        """
        if not self.transformers_class:
            msg = f"encoder family {self.name}: has no random checkpoints"
            raise AbagError(msg)
        encoder = self._transformers_encoder()
        module: Module = encoder(encoder.config_class.from_dict(dict(config)))
        return module

    def load_transformers_model(self, checkpoint: EncoderCheckpoint) -> tuple[Module, set[str]]:
        """Load transformers' module in fp32; also returns the weights that only one side has."""
        from abag.embed.weights.tensors import EncoderTensors

        encoder = self._transformers_encoder()
        # in a half-precision type, buffers such as rotary frequencies would be computed in it
        config = {k: v for k, v in checkpoint.config.items() if k not in ("dtype", "torch_dtype")}
        with EncoderTensors(checkpoint) as tensors:
            model, report = encoder.from_pretrained(
                None,
                config=encoder.config_class.from_dict(config),
                state_dict={name: read().float() for name, read in tensors.read.items()},
                output_loading_info=True,
                **self.transformers_options,
            )
        # parameters only: buffers such as rotary frequencies are computed
        learned = {n for n, _ in model.named_parameters() if not n.startswith(self.unused_weights)}
        missing = learned & set(report["missing_keys"])
        return model.float(), missing | set(report["unexpected_keys"])

    def _load_own_module(self, checkpoint: EncoderCheckpoint) -> tuple[Module, set[str]]:
        """As `load_transformers_model`, where `reference_module` is abag's own."""
        from abag.embed.weights.tensors import EncoderTensors

        module = self.reference_module(checkpoint.config)
        with EncoderTensors(checkpoint) as tensors:
            found = module.load_state_dict(
                {name: read().float() for name, read in tensors.read.items()}, strict=False
            )
        return module, {*found.missing_keys, *found.unexpected_keys}

    def ids_by_files(self, checkpoint: EncoderCheckpoint, text: str) -> list[int] | None:
        """Return the ids that `load_tokenizer` gives a text; None if its files leave a doubt."""
        assert checkpoint.folder is not None
        return ids_by_files(self.tokenizer, checkpoint.folder, text)

    def load_tokenizer(self, checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - untyped
        """Load the checkpoint's tokenizer."""
        assert checkpoint.folder is not None
        path = checkpoint.folder / PIPELINE_FILE
        if self.tokenizer is None and path.is_file():
            from tokenizers import Tokenizer

            pipeline = Tokenizer.from_str(path.read_text(encoding="utf-8"))
            return lambda text: {"input_ids": pipeline.encode(text).ids}
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(checkpoint.folder, do_lower_case=False)

    def random_weights(self, config: Config, draw: DrawNormal) -> Weights:
        """Draw weights at the scale that training gives; `draw` takes a shape and a scale.

        By default, those of transformers' module.

        Raises
        ------
        AbagError
            If the family has no random checkpoints.
        """
        import torch

        with torch.device("meta"):
            module = self.reference_module(config)
        learned = {n: tuple(p.shape) for n, p in module.named_parameters()}
        return {
            name: _draw_parameter(name, shape, draw)
            for name, shape in learned.items()
            if not name.startswith(self.unused_weights)
        }

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return names and bytes of the tokenizer's files; none by default."""
        return {}


def _draw_parameter(name: str, shape: tuple[int, ...], draw: DrawNormal) -> NDArray[np.float32]:
    """Draw an embedding, a matrix, a bias or the weights of a norm."""
    if len(shape) == 2:
        return draw(shape, 1.0 if "embed" in name else shape[1] ** -0.5)
    return draw(shape, 0.1) if name.endswith("bias") else 1 + draw(shape, 0.1)
