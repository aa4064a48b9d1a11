"""Identified encoders to modules on a device: packed, or the plain reference of every faster path.

The reference runs transformers' own modules over padded batches, and so does `abag adapt`. Where
transformers has no class of an encoder, `EncoderModule` takes its place: a plain torch module of a
declared architecture, with the names of its published checkpoints.

The head of a language model turns hidden states into the log-probability of each residue.

N sequences, L tokens of the longest, D hidden width, H heads, E width of a head.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from abag.core.device import DevicePlan
from abag.core.errors import AbagError
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.family import Architecture, Backend, Config, Encoder, EncoderShape, Family
from abag.embed.encoders.identity import (
    Identity,
    check_backend,
    head_checkpoint,
    head_of,
    import_faesm,
)
from abag.embed.encoders.packed import PackedLayerNormEncoder, PackedRmsNormEncoder, rotary_tables
from abag.embed.encoders.packing import LayerPooling, PackedBatch, pad_batch
from abag.embed.encoders.weights import EncoderCheckpoint, EncoderTensors, EncoderWeights

CHUNK_TOKENS = 8192
"""Tokens whose scores by a language model are in memory at a time."""


class EncoderModule(nn.Module):
    """An encoder with norms before each part, rotary positions and a gated feed-forward."""

    def __init__(self, declared: Architecture, shape: EncoderShape, config: Config) -> None:
        super().__init__()
        assert declared.rotary
        assert declared.gate
        assert not declared.norm_after
        eps = declared.epsilon(config)
        place(self, declared.embedding, nn.Embedding(config["vocab_size"], shape.width))
        layers = nn.ModuleList(_Layer(declared, shape, eps) for _ in range(shape.layers))
        place(self, declared.layers, layers)
        if declared.last_norm:
            norm = _norm(declared, shape.width, eps, biased=declared.last_norm_biased)
            place(self, declared.last_norm, norm)
        self._declared = declared
        self._head_width = shape.head_width

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: bool) -> SimpleNamespace:
        """Encode padded ids, and return what transformers' modules return.

        Parameters
        ----------
        input_ids : Tensor, shape=(N, L), dtype=int64
        attention_mask : Tensor, shape=(N, L)
            1 where there is a token, 0 where there is padding.

        Returns
        -------
        SimpleNamespace
            ``last_hidden_state``, shape (N, L, D), and ``hidden_states``: the embeddings, then the
            output of each layer.
        """
        angles = rotary_tables(input_ids.shape[1], self._head_width, input_ids.device)
        x_NLD = self.get_submodule(self._declared.embedding)(input_ids)
        states = [x_NLD]
        for layer in self.get_submodule(self._declared.layers).children():
            x_NLD = layer(x_NLD, attention_mask.bool(), *angles)
            states.append(x_NLD)
        if self._declared.last_norm:
            states[-1] = self.get_submodule(self._declared.last_norm)(x_NLD)
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


class _Layer(nn.Module):
    def __init__(self, declared: Architecture, shape: EncoderShape, eps: float) -> None:
        super().__init__()
        d = shape.width
        f = shape.feed_forward_width
        # inputs and outputs of each product
        sizes = {name: (d, 3 * d // len(declared.qkv)) for name in declared.qkv}
        sizes |= {name: (d, 2 * f // len(declared.up)) for name in declared.up}
        sizes |= {declared.out: (d, d), declared.down: (f, d)}
        for name, size in sizes.items():
            place(self, name, nn.Linear(*size, bias=declared.biased))
        for name in declared.norms:
            place(self, name, _norm(declared, d, eps))
        for name in declared.qk_norms or ():
            place(self, name, _norm(declared, d, eps, biased=False))
        self._declared = declared
        self._shape = shape

    def forward(self, x_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        declared = self._declared
        norm1, norm2 = (self.get_submodule(name) for name in declared.norms)
        scale = declared.branch_scale(self._shape.layers)
        mixed_NLD = self._attend(norm1(x_NLD), is_token_NL, cos, sin)
        x_NLD = x_NLD + self.get_submodule(declared.out)(mixed_NLD) / scale
        y_NLD = norm2(x_NLD)
        both = torch.cat([self.get_submodule(name)(y_NLD) for name in declared.up], dim=-1)
        gate, up = both.chunk(2, dim=-1)
        if declared.gate == "second":
            gate, up = up, gate
        hidden_NLF = F.silu(gate) * up
        out_NLD: Tensor = x_NLD + self.get_submodule(declared.down)(hidden_NLF) / scale
        return out_NLD

    def _attend(self, y_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        declared = self._declared
        heads = self._shape.heads
        head_width = self._shape.head_width
        qkv = torch.cat([self.get_submodule(name)(y_NLD) for name in declared.qkv], dim=-1)
        query, key, value = qkv.chunk(3, dim=-1)
        if declared.qk_norms:
            query_norm, key_norm = (self.get_submodule(name) for name in declared.qk_norms)
            query = query_norm(query)
            key = key_norm(key)
        query, key, value_NLHE = (x.view(*x.shape[:2], heads, -1) for x in (query, key, value))
        neighbours = declared.rotary == "neighbours"
        query, key = (rotate(x, cos, sin, neighbours=neighbours) for x in (query, key))
        scale = head_width ** (-1.0 if declared.scaled_twice else -0.5)
        mixed_NHLE = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value_NLHE.transpose(1, 2),
            attn_mask=is_token_NL[:, None, None],
            scale=scale,
        )
        return mixed_NHLE.transpose(1, 2).flatten(2)


class _LayerNorm(nn.LayerNorm):
    """A layer norm that keeps the type of its input, under autocast too."""

    def forward(self, x_NLD: Tensor) -> Tensor:
        return super().forward(x_NLD).to(x_NLD.dtype)


def _norm(declared: Architecture, width: int, eps: float, *, biased: bool = True) -> nn.Module:
    if declared.norm == "rms":
        return nn.RMSNorm(width, eps)
    return _LayerNorm(width, eps, bias=biased)


def rotate(x_NLHE: Tensor, cos: Tensor, sin: Tensor, *, neighbours: bool) -> Tensor:
    """Rotate pairs of dimensions by the angle of their position.

    Parameters
    ----------
    x_NLHE : Tensor, shape=(N, L, H, E)
        Queries or keys.
    cos, sin : Tensor, shape=(L, E / 2), dtype=float32
        Of the angles, see `rotary_tables`.
    neighbours : bool
        Whether pairs are neighbours, or else half a head apart.

    Returns
    -------
    Tensor, shape=(N, L, H, E)
        In the type of `x_NLHE`.
    """
    pair_shape = (-1, 2) if neighbours else (2, -1)
    pair_dim = -1 if neighbours else -2
    pairs = x_NLHE.float().view(*x_NLHE.shape[:-1], *pair_shape)
    first, second = pairs.unbind(pair_dim)
    c = cos[:, None]
    s = sin[:, None]
    turned = [first * c - second * s, second * c + first * s]
    return torch.stack(turned, dim=pair_dim).flatten(-2).to(x_NLHE.dtype)


def place(parent: nn.Module, path: str, module: nn.Module) -> None:
    """Add a submodule at a dotted path, whose parts are created."""
    *parts, last = path.split(".")
    for part in parts:
        if not hasattr(parent, part):
            parent.add_module(part, nn.Module())
        parent = parent.get_submodule(part)
    parent.add_module(last, module)


def load_encoder(
    identity: Identity, plan: DevicePlan, *, backend: Backend = "packed", attention: str = "auto"
) -> Encoder:
    """Load an encoder onto a device.

    Parameters
    ----------
    identity : Identity
    plan : DevicePlan
        Device and precision.
    backend : {"packed", "reference", "faesm"}
        A family without this backend uses its own default.
    attention : str
        The attention kernel of packed encoders, see `load_kernels`.

    Raises
    ------
    EncoderError
        If the backend cannot run the encoder, or its weights do not match config.json.
    DeviceError
        If the attention kernel cannot run on the device.
    """
    check_backend(identity, backend)
    checkpoint = identity.checkpoint
    family = identity.family
    chosen = family.effective_backend(backend)
    if chosen == "reference":
        return ReferenceEncoder(checkpoint, plan)
    if chosen == "faesm":
        return FaesmEncoder(checkpoint, plan)
    if family.build is not None:
        return family.build(plan)
    has_rms_norms = family.architecture_of(checkpoint.config).norm == "rms"
    packed = PackedRmsNormEncoder if has_rms_norms else PackedLayerNormEncoder
    return packed(identity, plan, attention)


class ReferenceEncoder:
    """A transformers module as an `Encoder`."""

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        family = FAMILIES[checkpoint.family]
        model = load_transformers_model(checkpoint)
        self.width = family.shape(checkpoint.config).width
        keep = family.fp32_weights if plan.dtype is torch.float16 else ()
        self._model = cast_parameters(model.eval().requires_grad_(False), plan, keep)
        self._pad_id = family.vocabulary.pad
        self._device = plan.device

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        out, is_token_NL = run_padded(
            self._model,
            batch,
            self._pad_id,
            self._device,
            output_hidden_states=layer_pooling is not None,
        )
        if layer_pooling is not None:
            for layer, hidden_NLD in enumerate(out.hidden_states):
                layer_pooling.add(layer, hidden_NLD[is_token_NL])
        hidden_TD: Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD


class FaesmEncoder:
    """FAESM's ESM-2 on padded batches, as an `Encoder` that pools no inner layers.

    A second implementation, with FlashAttention if it is installed. FAESM 0.1.1 works only with
    transformers 4.53, so it needs an environment of its own. This builds its inner model instead of
    `FAEsmForMaskedLM`, which always computes the language model's head, derives the mask from
    padding ids, and starts in training mode with dropout 0.1.
    """

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        faesm = import_faesm()
        from transformers import EsmConfig

        half = plan.dtype is not torch.float32  # FlashAttention has no fp32
        flash = faesm.flash_attn_installed and plan.device.type == "cuda" and half
        self.width = int(checkpoint.config["hidden_size"])
        self._pad_id = int(checkpoint.config["pad_token_id"])
        self._device = plan.device
        # without flash-attn, FAESM raises a NameError unless it is told not to use it
        config = EsmConfig.from_dict({**checkpoint.config, "use_fa": flash})
        model = faesm.FAEsmModel(config, add_pooling_layer=False)
        self._model = model.eval().requires_grad_(False)
        # parameters only: rotary frequencies, which are buffers, are too coarse in bf16
        with EncoderWeights(checkpoint, plan) as weights:
            for name, parameter in model.named_parameters():
                if not name.startswith("contact_head."):
                    parameter.data = weights(name, *parameter.shape)
        model.to(plan.device)

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        ids_NL, is_token_NL = pad_batch(batch, self._pad_id, self._device)
        out = self._model(ids_NL, attention_mask=is_token_NL)
        hidden_TD: Tensor = out.last_hidden_state[is_token_NL]
        return hidden_TD


def run_padded(
    model: torch.nn.Module, batch: PackedBatch, pad_id: int, device: torch.device, **options: bool
) -> tuple[Any, Tensor]:
    """Run a transformers module on a padded copy of a batch.

    Returns its output, and which of the N spans' L places are tokens, shape (N, L).
    """
    ids_NL, is_token_NL = pad_batch(batch, pad_id, device)
    return model(input_ids=ids_NL, attention_mask=is_token_NL.long(), **options), is_token_NL


def cast_parameters(
    model: torch.nn.Module, plan: DevicePlan, keep: tuple[str, ...] = ()
) -> torch.nn.Module:
    """Move a model to the device, and convert its parameters to the plan's type.

    Those whose names end as in `keep` stay in their type.
    """
    # not buffers: rotary frequencies in bf16 give wrong angles at far positions
    for name, parameter in model.named_parameters():
        if not name.endswith(keep):
            parameter.data = parameter.data.to(plan.dtype)
    return model.to(plan.device)


def load_transformers_model(checkpoint: EncoderCheckpoint) -> torch.nn.Module:
    """Load a checkpoint as transformers' own module, on the CPU in fp32, with its adapter merged.

    A family that transformers has no class for is loaded as `EncoderModule`.

    Raises
    ------
    EncoderError
        If the weights do not match config.json.
    AbagError
        If this version of transformers has no class for the family, nor abag a module.
    """
    family = FAMILIES[checkpoint.family]
    config = family.checked_config(checkpoint)
    encoder = _transformers_class(family)
    if encoder is None:
        model: torch.nn.Module = EncoderModule(
            family.architecture_of(config), family.shape(config), config
        )
    else:
        with torch.random.fork_rng(devices=[]):  # the initial values are not used
            settings = encoder.config_class.from_dict(dict(checkpoint.config))
            model = encoder(settings, **family.transformers_options).float()
    with EncoderWeights(checkpoint, DevicePlan(torch.device("cpu"), "fp32", "")) as weights:
        # parameters only: buffers such as rotary frequencies are computed
        for name, parameter in model.named_parameters():
            if not name.startswith(family.unused_weights):
                parameter.data = weights(name, *parameter.shape)
    return model


def _transformers_class(family: Family) -> Any:  # noqa: ANN401 - untyped
    """Return transformers' class, or None if abag's own module takes its place."""
    if not family.transformers_class:
        return None
    import transformers

    module_class = getattr(transformers, family.transformers_class, None)
    if module_class is not None:
        return module_class
    assert family.architecture is not None
    if family.architecture.gate and family.architecture.rotary:  # such as ESM C
        return None
    msg = (
        f"encoder family {family.name}: transformers {transformers.__version__} has no "
        f"{family.transformers_class}; run pip install -U transformers"
    )
    raise AbagError(msg)


class LanguageModelHead:
    """Scores tokens from their hidden states; the last products are in fp32.

    The encoder reads a sequence once and unmasked, so each probability is that of a residue given
    the whole sequence, itself included. T packed tokens, D hidden width, V tokens of the
    vocabulary.

    Raises
    ------
    EncoderError
        If the encoder has no language model, or the checkpoint lacks the head's weights.
    """

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        family, self._head = head_of(checkpoint)
        config = family.complete(checkpoint.config)
        declared = family.architecture_of(config)
        width = family.shape(config).width
        size = int(config["vocab_size"])
        full = torch.float32
        self._eps = declared.epsilon(config)
        head = self._head
        self._dense: tuple[Tensor, Tensor] | None = None
        with EncoderWeights(head_checkpoint(checkpoint), plan) as weights:
            if head.dense:
                rows = (1 + head.gated) * width
                self._dense = (
                    weights(f"{head.dense}.weight", rows, width),
                    weights(f"{head.dense}.bias", rows),
                )
            self._norm = weights(f"{head.norm}.weight", width, dtype=full)
            self._norm_bias: Tensor | None = None
            if head.norm_kind == "layer":
                self._norm_bias = weights(f"{head.norm}.bias", width, dtype=full)
            tied = head.is_tied(config)
            if not tied:
                decoder_VD = weights(head.decoder, size, width, dtype=full)
            self._bias = weights(head.bias, size, dtype=full) if head.bias else None
        if tied:
            # not EncoderWeights, which would miss the other tensors of the encoder
            with EncoderTensors(checkpoint) as tensors:
                embedding_VD = tensors.read[f"{declared.embedding}.weight"]()
                decoder_VD = embedding_VD.to(plan.device, full)
        self._decoder_VD = decoder_VD

    def log_probabilities(self, hidden_TD: Tensor, ids_T: Tensor) -> Tensor:
        """Return the log-probability of each token among all tokens of the vocabulary.

        Parameters
        ----------
        hidden_TD : Tensor, shape=(T, D)
            The last hidden states, in the encoder's type.
        ids_T : Tensor, shape=(T,), dtype=integer
            The tokens that the encoder read.

        Returns
        -------
        Tensor, shape=(T,), dtype=float32
            Natural logarithms.
        """
        ids_T1 = ids_T.long()[:, None]
        with torch.inference_mode():
            chunks = []
            for begin in range(0, len(ids_T1), CHUNK_TOKENS):
                chunk = slice(begin, begin + CHUNK_TOKENS)
                logp_TV = self.scores(hidden_TD[chunk]).log_softmax(1)
                chunks.append(logp_TV.gather(1, ids_T1[chunk])[:, 0])
            return torch.cat(chunks)

    def scores(self, x_TD: Tensor) -> Tensor:
        """Return the score of every token of the vocabulary, shape (T, V), in fp32.

        `x_TD` holds hidden states, shape (T, D).
        """
        if self._dense is not None:
            weight, bias = self._dense
            x_TD = F.linear(x_TD.to(weight.dtype), weight, bias).float()
            if self._head.gated:
                first, gate = x_TD.chunk(2, dim=1)
                x_TD = F.silu(gate) * first
            else:
                x_TD = F.gelu(x_TD)
        x_TD = x_TD.float()
        if self._norm_bias is None:
            x_TD = F.rms_norm(x_TD, self._norm.shape, self._norm, self._eps)
        else:
            x_TD = F.layer_norm(x_TD, self._norm.shape, self._norm, self._norm_bias, self._eps)
        return F.linear(x_TD, self._decoder_VD, self._bias)
