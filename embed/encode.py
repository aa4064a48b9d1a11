"""Missing sequences of one kind to committed vectors: batches, memory limits and progress.

The device never waits: a thread tokenises ahead of it, and the vectors of one batch are copied back
while the next batch is computed. The pooling ``cdr_mean`` is the mean over the CDR residues of both
chains, by IMGT numbering. A chain without one contributes none; if that holds for both chains, all
residues count, as in ``mean``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.cache import cache_dir
from abag.core.device import DevicePlan, current_device, default_batch_tokens, to_device
from abag.core.errors import DeviceError, EncoderError
from abag.core.messages import bar, detail, note
from abag.embed.encoders.family import Encoder, PoolingEncoder
from abag.embed.encoders.heads import LanguageModelHead, load_head
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import (
    LayerPooling,
    Layout,
    PackedBatch,
    ResidueWeights,
    fill_batches,
    longest_first,
    pool_tokens,
)
from abag.embed.job import KindJob, Rank
from abag.embed.store.folder import LOGLIK
from abag.embed.store.writer import ShardWriter
from abag.embed.tables.chains import Chains, shown_chains
from abag.embed.tables.domains import IMGT_REGIONS, position_number
from abag.embed.tables.numbering import CHAINS, NO_DOMAIN, Numbered, number_antibodies
from abag.embed.tables.unique import SequencePart

_CDRS = [
    (before, last)
    for (_, before), (region, last) in pairwise(IMGT_REGIONS)
    if region.startswith("cdr")
]
"""IMGT position before each CDR, and its last."""


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
    cdrs_by_chain = [_find_cdrs(numbered[name]) for name in CHAINS]  # heavy, then light
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
    for layout_positions in numbered.layouts:
        numbers_L = np.array([*map(position_number, layout_positions)])
        is_in_cdr_L = np.zeros(len(numbers_L), bool)
        for before, last in _CDRS:
            is_in_cdr_L |= (before < numbers_L) & (numbers_L <= last)
        masks_of_layouts.append(is_in_cdr_L)
    masks = {}
    for chain, layout, start in zip(numbered.chains, numbered.layout, numbered.start, strict=True):
        mask = np.zeros(len(chain), bool)
        if layout != NO_DOMAIN:
            mask_of_domain = masks_of_layouts[layout]
            mask[start : start + len(mask_of_domain)] = mask_of_domain
        masks[chain] = mask
    return masks


AHEAD = 4
"""Batches tokenised in advance."""
STORED = {"float16": torch.float16, "float32": torch.float32}
"""Types of stored vectors by their names."""


# --- sequences to vectors, batch by batch ---------------------------------------------------------


class Encoded(NamedTuple):
    """Pooled vectors of the S sequences that a batch of N spans completed."""

    positions: NDArray[np.int64]
    """Of the S sequences in the input: shape (S,), consecutive over batches."""
    lengths: NDArray[np.int32]
    """Tokens in each span: shape (N,)."""
    stored_SPD: NDArray[np.float16 | np.float32]
    """Vectors of P poolings with D values each, in the type of the store."""
    bad: tuple[int, str] | None
    """Position of the first vector that must not be stored, and why."""
    loglik_S: NDArray[np.float32] | None = None
    """Mean log-probability of the residues; None without a head."""


def encode_stream(
    encoder: Encoder,
    layout: Layout,
    chains: Iterable[Chains],
    plan: DevicePlan,
    budget: int,
    dtype: torch.dtype,
    layers: Sequence[int] = (),
    extra: Sequence[ResidueWeights] | None = None,
    head: LanguageModelHead | None = None,
) -> Iterator[Encoded]:
    """Encode sequences in the given order; longest first, memory runs out at once or never.

    Parameters
    ----------
    encoder : Encoder
    layout : Layout
        How sequences become tokens, see `Identity.layout`.
    chains : iterable
        The chains of each sequence.
    plan : DevicePlan
        Device of the encoder.
    budget : int
        Most tokens per batch.
    dtype : torch.dtype
        Type of the vectors that are yielded.
    layers : sequence of int
        Inner layers, from 1; their poolings follow those of the last layer.
    extra : sequence of ResidueWeights, optional
        Weights of the residues of each sequence in one more pooling, see `Layout.spans`.
    head : LanguageModelHead, optional
        Gives the likelihoods of the residues.

    Yields
    ------
    Encoded
        The vectors of one batch. They stay valid if a later batch does not fit into memory.
    """
    carry: _Sums | None = None
    pending: _Pending | None = None
    for batch in prefetch(fill_batches(layout.numbered_spans(chains, extra), budget)):
        with current_device(plan.device):  # not around the yield: the caller keeps its own
            sums = _pooled(encoder, batch, plan, layers, head)
            if carry is not None:
                sums.add_to_first(carry)
            carry = sums.last() if batch.continues else None
            latest = _Pending(batch, sums, dtype)
        if pending is not None:
            yield pending.fetch()
        pending = latest
    if pending is not None:
        yield pending.fetch()


class _Sums(NamedTuple):
    """What a batch adds to the S sequences that it contains, or begins, or ends."""

    pooled_SPD: torch.Tensor
    loglik_S: torch.Tensor | None

    @torch.inference_mode()
    def last(self) -> _Sums:
        """Return a copy of the sums of the last sequence, which continues in the next batch."""
        loglik_S = None if self.loglik_S is None else self.loglik_S[-1:].clone()
        return _Sums(self.pooled_SPD[-1:].clone(), loglik_S)

    @torch.inference_mode()
    def add_to_first(self, carry: _Sums) -> None:
        self.pooled_SPD[:1] += carry.pooled_SPD
        if self.loglik_S is not None and carry.loglik_S is not None:
            self.loglik_S[:1] += carry.loglik_S


@torch.inference_mode()
def _pooled(
    encoder: Encoder,
    batch: PackedBatch,
    plan: DevicePlan,
    layers: Sequence[int],
    head: LanguageModelHead | None,
) -> _Sums:
    """Encode and pool a batch."""
    weights_TP = to_device(batch.weights, plan.device)
    bounds = to_device(batch.bounds.astype(np.int64), plan.device)
    if isinstance(encoder, PoolingEncoder):
        return _Sums(encoder.pool(batch), None)
    if layers:
        layer_pooling = LayerPooling(layers, weights_TP, bounds)
        hidden_TD = encoder(batch, layer_pooling)
        pooled = [layer_pooling.pooled[n] for n in layers]
    else:
        hidden_TD = encoder(batch)
        pooled = []
    pooled_SPD = torch.cat([pool_tokens(hidden_TD, weights_TP, bounds), *pooled], dim=1)
    if head is None:
        return _Sums(pooled_SPD, None)
    logp_T = head.log_probabilities(hidden_TD, to_device(batch.ids, plan.device))
    # the weights of the mean: special tokens have none, windows share theirs
    loglik_S = pool_tokens(logp_T[:, None], weights_TP[:, :1], bounds)[:, 0, 0]
    return _Sums(pooled_SPD, loglik_S)


class _Pending:
    """The pooled vectors of a batch, while they are copied from the device."""

    def __init__(self, batch: PackedBatch, sums: _Sums, dtype: torch.dtype) -> None:
        done = len(batch.sequences) - batch.continues
        pooled_SPD = sums.pooled_SPD
        self._positions = batch.sequences[:done]
        self._lengths = np.diff(batch.offsets)
        self._loglik_S = None if sums.loglik_S is None else to_host(sums.loglik_S[:done])
        self._finite_S = to_host(pooled_SPD[:done].isfinite().flatten(1).all(1))
        self._stored_SPD = to_host(pooled_SPD[:done].to(dtype))
        self._copied: Any = None
        if pooled_SPD.is_cuda:
            # an event, not a synchronisation: the next batch is computed during the copy
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def fetch(self) -> Encoded:
        """Wait for the copy, and return the vectors."""
        if self._copied is not None:
            self._copied.synchronize()  # GPU sync
        stored_SPD = self._stored_SPD.numpy()
        loglik_S = None if self._loglik_S is None else self._loglik_S.numpy()
        finite_S = np.isfinite(stored_SPD).all((1, 2))
        exact_S = self._finite_S.numpy()
        if loglik_S is not None:
            exact_S = exact_S & np.isfinite(loglik_S)
        not_finite = np.flatnonzero(~(finite_S & exact_S))
        bad = None
        if len(not_finite):
            first = not_finite[0]
            # finite before it was rounded to the type of the store
            problem = "overflow" if exact_S[first] else "not finite"
            bad = (int(self._positions[first]), problem)
        return Encoded(self._positions, self._lengths, stored_SPD, bad, loglik_S)


def to_host(x: torch.Tensor) -> torch.Tensor:
    """Start copying to pinned host memory; a CPU tensor is returned as it is."""
    if not x.is_cuda:
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)


def prefetch(batches: Iterable[PackedBatch]) -> Iterator[PackedBatch]:
    """Make batches in a thread, a few in advance; the thread ends with its consumer."""
    source = iter(batches)
    with ThreadPoolExecutor(1, "tokenise") as thread:
        ahead = deque(thread.submit(next, source, None) for _ in range(AHEAD))
        try:
            while (batch := ahead.popleft().result()) is not None:
                ahead.append(thread.submit(next, source, None))
                yield batch
        finally:
            # a consumer that stops early does not wait for batches that nobody reads
            thread.shutdown(wait=False, cancel_futures=True)


# --- into the store -------------------------------------------------------------------------------


def encode_share(job: KindJob, rank: Rank) -> float:
    """Encode the sequences of a job that this process owns, and commit them.

    Returns the seconds it took, loading included.

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
    backend = job.options.backend(job.kind)
    attention = job.options.attention
    encoder = load_encoder(job.identity, job.plan, backend=backend, attention=attention)
    load_s = time.perf_counter() - start_s
    done = encode_parts(job, encoder, job.own_parts(), job.own, shown=not rank.number)
    name = f"{rank}: {done.sequences:,} " if rank.world > 1 else ""
    detail(
        f"{name}{job.plural}: {done.tokens:,} tokens; loaded in {load_s:.1f} s, encoded in "
        f"{done.seconds:.2f} s = {done.rate}"
    )
    return time.perf_counter() - start_s


def encode_parts(
    job: KindJob, encoder: Encoder, parts: Iterable[SequencePart], total: int, *, shown: bool
) -> Encoding:
    """Encode sequences that are not stored yet, longest of each part first, and commit them.

    `total` is their number, for the progress bar, which is drawn if `shown`. Errors are those of
    `encode_share`; everything committed before one stays.
    """
    plan = job.plan
    attrs = {"precision": plan.precision, "device": str(plan.device), "backend": job.backend}
    if head := job.folder.head:
        attrs["head"] = head
    title = f"{job.kind} · {job.identity.checkpoint.name}"
    hidden = {} if shown else {"disable": True}
    with (
        job.folder.writer(attrs=attrs, commit_seconds=job.options.commit_seconds) as writer,
        bar(total=total, unit="seq", desc=title, **hidden) as drawn,
    ):
        encoding = Encoding(job, encoder, writer, drawn)
        for part in parts:
            encoding.encode(part)
    if encoding.unnumbered:
        note(
            "cdr_mean leaves out chains without IMGT numbering (antibodies with such a chain: "
            f"{encoding.unnumbered:,}); without any numbered chain, it is the mean"
        )
    return encoding


class Completed(Protocol):
    """Vectors, of any kind, that an encoder has made of S sequences."""

    @property
    def positions(self) -> NDArray[np.int64]:
        """Places of the sequences in the input, shape (S,); consecutive over batches."""
        ...


C = TypeVar("C", bound=Completed)


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
        lengths: NDArray[np.int64],
        encode: Callable[[int, int], Iterator[C]],
        name: Callable[[int], str],
    ) -> Iterator[tuple[int, C]]:
        """Encode N sequences, again with a smaller budget from where memory ran out.

        Parameters
        ----------
        lengths : ndarray, shape=(N,)
            Tokens of the longest span of each sequence, descending.
        encode : callable
            ``encode(first, tokens)`` encodes the sequences from `first` on, in batches of at most
            `tokens`.
        name : callable
            Names a sequence, given by its place, in an error.

        Yields
        ------
        first : int
        completed
            What ``encode(first, tokens)`` yields; its positions count from `first`.

        Raises
        ------
        DeviceError
            If a sequence does not fit into the memory of the device even alone.
        """
        first = 0
        while first < len(lengths):
            # a sequence above the budget is a batch of its own
            tokens = max(self._tokens, int(lengths[first]))
            done = first
            try:
                for completed in encode(first, tokens):
                    yield first, completed
                    done += len(completed.positions)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                self._shrink(tokens, int(lengths[done]), partial(name, done), error)
            first = done

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


class Encoding:
    """The encoding of parts into a store, within the token budget that fits the device."""

    def __init__(
        self,
        job: KindJob,
        encoder: Encoder,
        writer: ShardWriter,
        drawn: Any,  # noqa: ANN401 - a bar
    ) -> None:
        self._job = job
        self._encoder = encoder
        self._writer = writer
        self._bar = drawn
        kept = "the sequences encoded before it are stored"
        self._budget = TokenBudget(job.plan, job.options.batch_tokens, kept)
        self._start_s = time.perf_counter()
        self.seconds = 0.0  # until the latest batch
        self._head = load_head(job.identity.checkpoint, job.plan) if job.folder.head else None
        self.sequences = 0
        self.tokens = 0
        self.unnumbered = 0  # antibodies with a chain whose CDRs are unknown

    @property
    def rate(self) -> str:
        """Tokens per second so far, for people."""
        seconds = self.seconds or float("inf")  # a clock can stand still
        return f"{self.tokens / seconds:,.0f} tokens/s"

    def encode(self, part: SequencePart) -> None:
        """Encode the sequences of a part, longest first, and give them to the writer."""
        job = self._job
        layout = job.identity.layout
        dtype = STORED[job.options.store_dtype]
        longest_spans = [max(layout.span_lengths(chains)) for chains in part.chains]
        lengths = np.array(longest_spans)
        todo = longest_first(lengths)
        extra = None
        if job.extra_poolings:
            extra, unnumbered = weigh_cdrs(part.chains)
            self.unnumbered += unnumbered

        def encode(first: int, tokens: int) -> Iterator[Encoded]:
            places = todo[first:].tolist()
            chains = [part.chains[i] for i in places]
            extra_of_chains = None if extra is None else [extra[i] for i in places]
            return encode_stream(
                self._encoder,
                layout,
                chains,
                job.plan,
                tokens,
                dtype,
                layers=job.folder.layers,
                extra=extra_of_chains,
                head=self._head,
            )

        def name(place: int) -> str:
            return _name(job, part, int(todo[place]))

        for first, vectors in self._budget.stream(lengths[todo], encode, name):
            self._store(part, todo[first:], vectors)

    def _store(self, part: SequencePart, todo: NDArray[np.int64], vectors: Encoded) -> None:
        job = self._job
        at = todo[vectors.positions]
        if vectors.bad is not None:
            position, problem = vectors.bad
            raise _bad_vector(job, _name(job, part, int(todo[position])), problem)
        sequences = [part.chains[i] for i in at]
        residues = np.array([sum(map(len, chains)) for chains in sequences], dtype=np.int32)
        poolings: dict[str, NDArray[np.floating[Any]]] = {}
        for p, name in enumerate(job.poolings):
            poolings[name] = vectors.stored_SPD[:, p]
        if vectors.loglik_S is not None:  # in float32: a mutation changes its third digit
            poolings[LOGLIK] = vectors.loglik_S[:, None]
        flags = {}
        if job.kind == "antibody":  # without a light chain, `light_mean` is zeros
            has_heavy = [bool(heavy) for heavy, _ in sequences]
            has_light = [bool(light) for _, light in sequences]
            flags["has_heavy"] = np.array(has_heavy, dtype=np.uint8)
            flags["has_light"] = np.array(has_light, dtype=np.uint8)
        self._writer.add(part.keys[at], residues, poolings, flags)
        self.sequences += len(at)
        self.tokens += int(vectors.lengths.sum())
        self.seconds = time.perf_counter() - self._start_s
        text = f"{self.rate}, {self._writer.committed:,} committed"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(len(at))


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


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "can't allocate memory" in str(error)  # on a CPU torch raises a plain RuntimeError


def _name(job: KindJob, part: SequencePart, sequence: int) -> str:
    return f"row {part.rows[sequence]}: {job.kind} {shown_chains(part.chains[sequence])}"
