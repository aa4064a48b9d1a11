"""Sequences to vectors in packed batches, and those that a store lacks to committed vectors.

There is one stream of batches, which `embed`, `residues`, `doctor` and `abag adapt` use. A sink
says what is kept of the token vectors of a batch: their poolings, with those of inner layers and
the likelihoods of residues, or a vector per residue. The device never waits: while a batch is
computed, the vectors of the one before are copied back, and the next one is tokenised. If the
memory of the device runs out, smaller batches continue after the last complete sequence.

The pooling ``cdr_mean`` is the mean over the CDR residues of both chains, by IMGT numbering. A
chain without one contributes none; if that holds for both chains, all residues count, as in
``mean``.

S sequences that a batch completes, P poolings, T tokens, D width, R residues of a sequence, L of
one chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.device import (
    DevicePlan,
    current_device,
    default_batch_tokens,
    to_device,
    torch_threads,
)
from abag.core.errors import DeviceError, EncoderError, is_out_of_memory
from abag.core.files import cache_dir
from abag.core.messages import detail, note
from abag.embed.encoders.family import Encoder, PoolingEncoder
from abag.embed.encoders.loading import LanguageModelHead
from abag.embed.encoders.packing import (
    LayerPooling,
    PackedBatch,
    Piece,
    ResidueWeights,
    TokenLayout,
    fill_batches,
    longest_first,
    pool_tokens,
)
from abag.embed.job import KindJob, Rank, name_sequence
from abag.embed.store.store import LOGLIK
from abag.embed.tables.chains import CHAIN_ROLES, IMGT_REGIONS, Chains, position_number
from abag.embed.tables.numbering import NO_DOMAIN, Numbered, number_antibodies
from abag.embed.tables.pairs import SequencePart

COUNTED_TOKENS = 65_536
"""Most tokens per batch of an encoder that counts, and has no vector per token in memory."""
NumberFormat = Literal["float16", "float32"]
STORED: dict[str, torch.dtype] = {"float16": torch.float16, "float32": torch.float32}
"""Types of vectors by the names of number formats."""
Vectors = TypeVar("Vectors", covariant=True)


def weigh_cdrs(antibodies: Sequence[Chains]) -> tuple[list[ResidueWeights], int]:
    """Weigh the residues of antibodies in the pooling over their CDRs.

    Returns
    -------
    weights : list of ResidueWeights
        Of each antibody; the weights of its residues sum to 1.
    unnumbered : int
        Antibodies with a chain whose CDRs are unknown.
    """
    numbered = number_antibodies(antibodies, cache_dir() / "numbering")
    cdrs_by_chain = [_find_cdrs(numbered[name]) for name in CHAIN_ROLES]  # heavy, then light
    no_chain = np.zeros(0, bool)
    weights = []
    unnumbered = 0
    for chains in antibodies:
        masks = []
        is_numbered = True
        for cdrs, chain in zip(cdrs_by_chain, chains, strict=True):
            mask = cdrs.get(chain, no_chain)
            is_numbered = is_numbered and bool(mask.any() or not len(mask))
            masks.append(mask)
        unnumbered += not is_numbered
        total = sum(map(np.count_nonzero, masks))
        if not total:
            masks = [np.ones_like(mask) for mask in masks]
            total = sum(map(len, masks))
        weights.append(tuple((mask / total).astype(np.float32) for mask in masks))
    return weights, unnumbered


def _find_cdrs(numbered: Numbered) -> dict[str, NDArray[np.bool_]]:
    """Return, for each chain, which of its residues are in a CDR: shape (L,), dtype bool."""
    masks_of_layouts = []
    ends = [last for _, last in IMGT_REGIONS[:-1]]  # of frameworks and CDRs, in turn
    for layout_positions in numbered.layouts:
        numbers_L = np.array([*map(position_number, layout_positions)])
        masks_of_layouts.append(np.searchsorted(ends, numbers_L) % 2 == 1)
    masks = {}
    for chain, layout, start in zip(numbered.chains, numbered.layout, numbered.start, strict=True):
        mask = np.zeros(len(chain), bool)
        if layout != NO_DOMAIN:
            mask_of_domain = masks_of_layouts[layout]
            mask[start : start + len(mask_of_domain)] = mask_of_domain
        masks[chain] = mask
    return masks


# --- the stream: sequences to vectors, batch by batch ---------------------------------------------


class Sink(Protocol[Vectors]):
    """Runs an encoder on batches, and keeps some of its vectors: those of type `Vectors`."""

    plan: DevicePlan
    """Device of the encoder."""

    def begin(self, chains: Sequence[Chains]) -> None:
        """Forget all earlier batches; the next are those of `chains`, in this order."""
        ...

    def add(self, batch: PackedBatch) -> Callable[[], Vectors]:
        """Encode a batch, and start to copy what is kept of it to the host.

        Returns a function that waits for the copy, and returns the vectors of the sequences that
        the batch completes. It is called once, after those of earlier batches.
        """
        ...


def encode_stream(
    sink: Sink[Vectors],
    layout: TokenLayout,
    chains: Sequence[Chains],
    tokens: int,
    extra: Sequence[ResidueWeights] | None = None,
) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
    """Encode sequences in the given order; longest first, memory runs out at once or never.

    Parameters
    ----------
    sink : Sink
        Has the encoder.
    layout : TokenLayout
        How sequences become tokens, see `Identity.layout`.
    chains : sequence
        The chains of each sequence.
    tokens : int
        Most tokens per batch.
    extra : sequence of ResidueWeights, optional
        Weights of the residues of each sequence in one more pooling, see `TokenLayout.spans`.

    Yields
    ------
    positions : ndarray, shape=(S,), dtype=int64
        The sequences that a batch completes, consecutive over batches.
    vectors
        What the sink keeps of them. They stay valid if a later batch does not fit into memory.
    """
    sink.begin(chains)
    running: tuple[NDArray[np.int64], Callable[[], Vectors]] | None = None
    for batch in fill_batches(layout.numbered_spans(chains, extra), tokens):
        with current_device(sink.plan.device):  # not around the yield: the caller keeps its own
            started = (batch.completed, sink.add(batch))
        if running is not None:  # while this batch is computed, the one before it is copied
            positions, fetch = running
            yield positions, fetch()
        running = started
    if running is not None:
        positions, fetch = running
        yield positions, fetch()


class TokenBudget:
    """The most tokens per batch, which shrink as often as the memory of the device runs out.

    Parameters
    ----------
    plan : DevicePlan
    batch_tokens : int, optional
        The first budget; by default chosen for the device.
    kept : str
        Part of the error about a sequence that does not fit even alone: says what became of those
        before it.
    """

    def __init__(self, plan: DevicePlan, batch_tokens: int | None, kept: str) -> None:
        self._plan = plan
        self._kept = kept
        self._tokens = batch_tokens or default_batch_tokens(plan)

    def stream(
        self,
        sink: Sink[Vectors],
        layout: TokenLayout,
        chains: Sequence[Chains],
        name: Callable[[int], str],
        extra: Sequence[ResidueWeights] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Encode sequences, longest first, with a smaller budget from where memory ran out.

        Parameters
        ----------
        name : callable
            Names a sequence, given by position, in an error.

        The others, and what is yielded, are those of `encode_stream`; positions are those in
        `chains`, by descending length.

        Raises
        ------
        DeviceError
            If a sequence does not fit into the memory of the device even alone.
        """
        longest_spans = [max(layout.span_lengths(sequence)) for sequence in chains]
        order = longest_first(longest_spans)
        while len(order):
            left = order.tolist()
            # a sequence above the budget is a batch of its own
            tokens = max(self._tokens, longest_spans[left[0]])
            chains_left = [chains[i] for i in left]
            extra_left = None if extra is None else [extra[i] for i in left]
            done = 0
            try:
                for at, vectors in encode_stream(sink, layout, chains_left, tokens, extra_left):
                    done += len(at)
                    yield order[at], vectors
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                first = left[done]
                self._shrink(tokens, longest_spans[first], partial(name, first), error)
            order = order[done:]

    def _shrink(self, tokens: int, longest: int, name: Callable[[], str], error: Exception) -> None:
        if tokens <= longest:  # a batch of its own
            msg = (
                f"{name()}, {tokens:,} tokens: out of memory on {self._plan.device} even alone; "
                f"{self._kept}. Cut or remove it, or use a device with more memory."
            )
            raise DeviceError(msg) from error
        if self._plan.device.type == "cuda":
            torch.cuda.empty_cache()  # blocks of the larger batches would not fit the smaller ones
        self._tokens = max(tokens // 2, longest)
        note(f"out of memory with {tokens:,} tokens per batch; continuing with {self._tokens:,}")


# --- sinks: what is kept of the vectors of tokens -------------------------------------------------


class _HostCopy:
    """Tensors while they are copied from the device; those on a CPU are not copied."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        # pinned, so that the copy does not wait for the device
        self._on_host = [x.to("cpu", non_blocking=x.is_cuda) for x in tensors]
        self._copied: Any = None
        if tensors[0].is_cuda:
            # an event, not a synchronisation: the next batch is computed during the copy
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self) -> list[NDArray[Any]]:
        """Wait for the copy, and return the arrays."""
        if self._copied is not None:
            self._copied.synchronize()  # GPU sync
        return [x.numpy() for x in self._on_host]


class Pooled(NamedTuple):
    """Pooled vectors of S sequences."""

    stored_SPD: NDArray[np.float16 | np.float32]
    """Vectors of P poolings with D values each, in the number format of the sink."""
    loglik_S: NDArray[np.float32] | None
    """Mean log-probability of the residues; None without a head."""
    bad: tuple[int, str] | None
    """Which of the S is the first whose vector must not be stored, and why."""
    tokens: int
    """Of the batch: also those of a sequence that it only begins."""


class PoolingSink:
    """Keeps the poolings of the last layer, of inner layers, and likelihoods.

    Parameters
    ----------
    encoder : Encoder
    plan : DevicePlan
        Device of the encoder.
    dtype : {"float16", "float32"}
        Number format of the vectors.
    layers : sequence of int
        Inner layers, from 1; their poolings follow those of the last layer.
    head : LanguageModelHead, optional
        Gives the likelihoods of the residues.
    """

    def __init__(
        self,
        encoder: Encoder,
        plan: DevicePlan,
        dtype: NumberFormat,
        layers: Sequence[int] = (),
        head: LanguageModelHead | None = None,
    ) -> None:
        self.plan = plan
        self._encoder = encoder
        self._dtype = STORED[dtype]
        self._layers = layers
        self._head = head
        self._begun: list[torch.Tensor] = []  # of a sequence whose windows fill several batches

    def begin(self, chains: Sequence[Chains]) -> None:
        """Forget all earlier batches: see `Sink`."""
        self._begun = []

    @torch.inference_mode()
    def add(self, batch: PackedBatch) -> Callable[[], Pooled]:
        """Encode and pool a batch: see `Sink`."""
        sums = self._pool(batch)
        for of_batch, begun in zip(sums, self._begun, strict=False):
            of_batch[:1] += begun
        self._begun = [of_batch[-1:].clone() for of_batch in sums] if batch.continues else []
        done = len(batch.completed)
        pooled_SPD, *loglik_S = (of_batch[:done] for of_batch in sums)
        is_finite_S = pooled_SPD.isfinite().flatten(1).all(1)
        copy = _HostCopy(pooled_SPD.to(self._dtype), is_finite_S, *loglik_S)
        return partial(_fetch_pooled, copy, len(batch.ids))

    def _pool(self, batch: PackedBatch) -> list[torch.Tensor]:
        """Return what a batch adds to the S sequences in it: (S, P, D), and (S,) with a head."""
        device = self.plan.device
        weights_TP = to_device(batch.weights, device)
        bounds = to_device(batch.bounds.astype(np.int64), device)
        if isinstance(self._encoder, PoolingEncoder):
            return [self._encoder.pool(batch)]
        layer_pooling = LayerPooling(self._layers, weights_TP, bounds)
        hidden_TD = self._encoder(batch, layer_pooling if self._layers else None)
        inner = [layer_pooling.pooled[layer] for layer in self._layers]
        pooled_SPD = torch.cat([pool_tokens(hidden_TD, weights_TP, bounds), *inner], dim=1)
        if self._head is None:
            return [pooled_SPD]
        logp_T = self._head.log_probabilities(hidden_TD, to_device(batch.ids, device))
        # the weights of the mean: special tokens have none, windows share theirs
        loglik_S = pool_tokens(logp_T[:, None], weights_TP[:, :1], bounds)[:, 0, 0]
        return [pooled_SPD, loglik_S]


def _fetch_pooled(copy: _HostCopy, tokens: int) -> Pooled:
    """Wait for the sums of a batch, and check them."""
    stored_SPD, exact_S, *logliks = copy.wait()
    loglik_S = logliks[0] if logliks else None
    if loglik_S is not None:
        exact_S = exact_S & np.isfinite(loglik_S)
    finite_S = np.isfinite(stored_SPD).all((1, 2))
    not_finite = np.flatnonzero(~(finite_S & exact_S))
    bad = None
    if len(not_finite):
        first = int(not_finite[0])
        # finite before it was rounded to the type of the store
        bad = (first, "overflow" if exact_S[first] else "not finite")
    return Pooled(stored_SPD, loglik_S, bad, tokens)


class ResidueSink:
    """Keeps a vector per residue: for each of the S sequences an array of shape (R, D).

    Parameters
    ----------
    encoder : Encoder
    plan : DevicePlan
        Device of the encoder.
    dtype : {"float16", "float32"}
        Number format of the vectors.
    layout : TokenLayout
        That of the stream: says which residues the windows of a sequence contain.
    """

    def __init__(
        self, encoder: Encoder, plan: DevicePlan, dtype: NumberFormat, layout: TokenLayout
    ) -> None:
        self.plan = plan
        self._encoder = encoder
        self._dtype = dtype
        self._layout = layout
        self._chains: Sequence[Chains] = ()
        # token vectors of a sequence whose windows fill several batches
        self._begun: list[NDArray[Any]] = []

    def begin(self, chains: Sequence[Chains]) -> None:
        """Forget all earlier batches: see `Sink`."""
        self._chains = chains
        self._begun.clear()

    def add(self, batch: PackedBatch) -> Callable[[], list[NDArray[np.float16 | np.float32]]]:
        """Encode a batch: see `Sink`."""
        is_residue_T = batch.weights[:, 0] > 0  # special tokens have no weight in the mean
        divided = any(self._layout.is_long(self._chains[i]) for i in batch.sequences.tolist())
        # what is averaged over windows stays in fp32 until then
        copied = torch.float32 if divided else STORED[self._dtype]
        with torch.inference_mode():
            hidden_TD = self._encoder(batch)
            at_T = to_device(np.flatnonzero(is_residue_T), self.plan.device)
            copy = _HostCopy(hidden_TD[at_T].to(copied))
        counts = np.add.reduceat(is_residue_T, batch.bounds[:-1], dtype=np.int64)
        return partial(self._fetch, batch, np.cumsum(counts), copy)

    def _fetch(
        self, batch: PackedBatch, ends: NDArray[np.int64], copy: _HostCopy
    ) -> list[NDArray[np.float16 | np.float32]]:
        """Wait for the token vectors of a batch, which end at `ends`, and join those of windows."""
        (tokens_TD,) = copy.wait()
        *completed, last_TD = np.split(tokens_TD, ends[:-1])
        vectors = []
        if not batch.continues:
            completed.append(last_TD)
        for position, sequence_TD in zip(batch.completed.tolist(), completed, strict=True):
            whole_TD = np.concatenate([*self._begun, sequence_TD]) if self._begun else sequence_TD
            self._begun.clear()
            chains = self._chains[position]
            if self._layout.is_long(chains):
                whole_TD = average_windows(whole_TD, self._layout.pieces(chains))
            vectors.append(whole_TD.astype(self._dtype))  # a copy: the batch need not stay
        if batch.continues:
            self._begun.append(last_TD)
        return vectors


def average_windows(tokens_TD: NDArray[np.float32], pieces: Sequence[Piece]) -> NDArray[np.float32]:
    """Average the vectors of each residue over the windows that contain it.

    Parameters
    ----------
    tokens_TD : ndarray, shape=(T, D)
        Vectors of the residue tokens of a sequence.
    pieces : sequence of Piece
        From `TokenLayout.pieces`; together they have T residues.

    Returns
    -------
    ndarray, shape=(R, D), dtype=float32
    """
    lengths = {piece.chain: piece.stop for piece in pieces}  # windows are in ascending order
    first = {}  # residue of each chain, among all R
    residues = 0
    for i, length in lengths.items():
        first[i] = residues
        residues += length
    total_RD = np.zeros((residues, tokens_TD.shape[1]), np.float32)
    windows_R = np.zeros(len(total_RD), np.float32)
    begin = 0
    for piece in pieces:
        end = begin + piece.stop - piece.start
        place = slice(first[piece.chain] + piece.start, first[piece.chain] + piece.stop)
        total_RD[place] += tokens_TD[begin:end]
        windows_R[place] += 1
        begin = end
    return total_RD / windows_R[:, None]


# --- into the store -------------------------------------------------------------------------------


def encode_share(job: KindJob, rank: Rank, loaded: Callable[[], object]) -> float:
    """Encode the sequences of a job that this process owns, and commit them.

    Calls `loaded` as soon as the encoder is. Returns the seconds it took, loading included.

    Raises
    ------
    DeviceError
        If a sequence does not fit into the memory of the device.
    EncoderError
        If a vector is not finite, or the encoder cannot be loaded.
    """
    start_s = time.perf_counter()
    if not job.own:
        return 0.0
    encoder = job.load()
    load_s = time.perf_counter() - start_s
    loaded()
    encode_s = encode_parts(job, encoder, job.own_parts(), job.own_tokens, shown=not rank.number)
    name = f"{rank}: {job.own:,} " if rank.world > 1 else ""
    detail(
        f"{name}{job.plural}: {job.own_tokens:,} tokens; loaded in {load_s:.1f} s, encoded in "
        f"{encode_s:.2f} s = {_rate(job.own_tokens, encode_s)}"
    )
    return time.perf_counter() - start_s


def encode_parts(
    job: KindJob, encoder: Encoder, parts: Iterable[SequencePart], total: int, *, shown: bool
) -> float:
    """Encode sequences that are not stored yet, longest of each part first, and commit them.

    `total` are their tokens, for the progress bar, which is drawn if `shown`. Returns the seconds
    until the last vector. Errors are those of `encode_share`; everything committed before one
    stays.
    """
    plan = job.plan
    attrs = {"precision": plan.precision, "device": str(plan.device), "backend": job.backend}
    head = None
    if job.folder.head:
        attrs["head"] = job.folder.head
        head = LanguageModelHead(job.identity.checkpoint, plan)
    sink = PoolingSink(encoder, plan, job.options.store_dtype, job.folder.layers, head)
    most_tokens = job.options.batch_tokens
    threads: AbstractContextManager[None] = nullcontext()
    if isinstance(encoder, PoolingEncoder):
        most_tokens = most_tokens or COUNTED_TOKENS
        # NumPy counts; threads of torch would wait busily for the next of few small operations
        threads = torch_threads(1)
    budget = TokenBudget(plan, most_tokens, "the sequences encoded before it are stored")
    layout = job.identity.layout
    tokens = 0
    unnumbered = 0  # antibodies with a chain whose CDRs are unknown
    start_s = time.perf_counter()
    encode_s = 0.0
    with (
        threads,
        job.folder.writer(attrs=attrs, commit_seconds=job.options.commit_seconds) as writer,
        job.bar(total, shown=shown) as drawn,
    ):
        for part in parts:
            name = partial(name_sequence, job.kind, part.rows, part.chains)
            extra = None
            if job.extra_poolings:
                extra, without_cdrs = weigh_cdrs(part.chains)
                unnumbered += without_cdrs
            for at, pooled in budget.stream(sink, layout, part.chains, name, extra):
                if pooled.bad is not None:
                    position, problem = pooled.bad
                    raise _bad_vector(job, name(int(at[position])), problem)
                sequences = [part.chains[i] for i in at]
                residues = np.array([sum(map(len, chains)) for chains in sequences], np.int32)
                vectors = _by_name(job, pooled)
                writer.add(part.keys[at], residues, vectors, _chain_flags(job, sequences))
                tokens += pooled.tokens
                encode_s = time.perf_counter() - start_s
                text = f"{_rate(tokens, encode_s)}, {writer.committed:,} committed"
                drawn.set_postfix_str(text, refresh=False)
                drawn.update(pooled.tokens)
    if unnumbered:
        note(
            "cdr_mean leaves out chains without IMGT numbering (antibodies with such a chain: "
            f"{unnumbered:,}); without any numbered chain, it is the mean"
        )
    return encode_s


def _by_name(job: KindJob, pooled: Pooled) -> dict[str, NDArray[np.floating[Any]]]:
    """Return the vectors of a batch by their names in the store."""
    vectors: dict[str, NDArray[np.floating[Any]]] = {}
    for p, name in enumerate(job.poolings):
        vectors[name] = pooled.stored_SPD[:, p]
    if pooled.loglik_S is not None:  # in float32: a mutation changes its third digit
        vectors[LOGLIK] = pooled.loglik_S[:, None]
    return vectors


def _chain_flags(job: KindJob, sequences: Sequence[Chains]) -> dict[str, NDArray[np.uint8]]:
    """Return which chains antibodies have: without a light chain, `light_mean` is zeros."""
    if job.kind == "antigen":
        return {}
    has_heavy = np.array([bool(heavy) for heavy, _ in sequences], np.uint8)
    has_light = np.array([bool(light) for _, light in sequences], np.uint8)
    return {"has_heavy": has_heavy, "has_light": has_light}


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / (seconds or float('inf')):,.0f} tokens/s"  # a clock can stand still


def _bad_vector(job: KindJob, name: str, problem: str) -> EncoderError:
    if problem == "overflow":
        msg = (
            f"{name}: a value of its vector exceeds the float16 maximum of 65,504; give "
            "--store-dtype float32"
        )
    else:
        msg = (
            f"{name}: {job.identity.checkpoint.name} in {job.plan.precision} returned NaN or "
            "infinity; its vector was not stored. Give --precision fp32, or check the "
            "checkpoint's weights."
        )
    return EncoderError(msg)
