"""What an encoder is, and what describes a family of encoders.

A family description imports torch and transformers only when an encoder is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.families.architecture import Architecture, Config, EncoderShape
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
    required: Config = field(default_factory=dict)  # the only values that some keys may have
    architecture: Architecture | None = None  # of its layers, if it has any
    transformers_class: str = ""  # of the reference implementation; abag's own if there is none
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

    def checked_config(self, checkpoint: EncoderCheckpoint) -> dict[str, Any]:
        """Return config.json with all defaults, if abag has the layers that it describes.

        Raises
        ------
        BadCheckpoint
        """
        config = self.complete(checkpoint.config)
        for key, value in self.required.items():
            if (found := config.get(key)) not in (None, value):
                msg = (
                    f"{checkpoint.folder}/config.json: {key} {found!r}; only {value!r} is supported"
                )
                raise BadCheckpoint(msg)
        return config

    @property
    def biased_attention(self) -> bool:
        """Whether attention adds a bias by relative position."""
        return self.architecture is not None and bool(self.architecture.relative_bias)

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

    def architecture_of(self, _config: Config) -> Architecture:
        """Return the layers of an encoder of the family.

        Raises
        ------
        AbagError
            If it has none.
        """
        if self.architecture is None:
            msg = f"encoder family {self.name}: has no layers"
            raise AbagError(msg)
        return self.architecture

    def build(
        self, backend: str, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str
    ) -> Encoder:
        """Build an encoder, for every backend but ``"reference"``.

        Raises
        ------
        BadCheckpoint, AdapterMismatch, AttentionUnavailable, FaesmUnavailable
        """
        assert backend == "packed"
        config = self.checked_config(checkpoint)
        architecture = self.architecture_of(config)
        from abag.embed.families.packed_layer_norm import PackedLayerNormEncoder
        from abag.embed.families.packed_rms_norm import PackedRmsNormEncoder

        rms = architecture.norm == "rms"
        return (PackedRmsNormEncoder if rms else PackedLayerNormEncoder)(
            checkpoint, config, architecture, self.shape(config), plan, attention,
            positions=self.vocabulary.longest_span,
        )  # fmt: skip

    def _transformers_encoder(self) -> Any:  # noqa: ANN401 - untyped
        """Return transformers' class, or None if abag's own module takes its place."""
        if not self.transformers_class:
            return None
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
        if encoder := self._transformers_encoder():
            module: Module = encoder(encoder.config_class.from_dict(dict(config)))
            return module
        architecture = self.architecture_of(config)
        from abag.embed.families.encoder_module import EncoderModule

        return EncoderModule(architecture, self.shape(config), config)

    def load_reference(self, checkpoint: EncoderCheckpoint) -> tuple[Module, set[str]]:
        """Load the reference in fp32; also returns the weights that only one side has."""
        from abag.embed.weights.tensors import EncoderTensors

        encoder = self._transformers_encoder()
        with EncoderTensors(checkpoint) as tensors:
            weights = {name: read().float() for name, read in tensors.read.items()}
            if encoder is None:
                module = self.reference_module(self.checked_config(checkpoint))
                found = module.load_state_dict(weights, strict=False)
                return module, {*found.missing_keys, *found.unexpected_keys}
            # in a half-precision type, buffers such as rotary frequencies would be computed in it
            types = ("dtype", "torch_dtype")
            config = {k: v for k, v in checkpoint.config.items() if k not in types}
            model, report = encoder.from_pretrained(
                None,
                config=encoder.config_class.from_dict(config),
                state_dict=weights,
                output_loading_info=True,
                **self.transformers_options,
            )
        # parameters only: buffers such as rotary frequencies are computed
        learned = {n for n, _ in model.named_parameters() if not n.startswith(self.unused_weights)}
        missing = learned & set(report["missing_keys"])
        return model.float(), missing | set(report["unexpected_keys"])

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
