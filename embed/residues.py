"""One vector per residue, for models that attend to residues: yielded, never stored.

A store holds pooled vectors, so the encoders have to run: on packed batches, as in `embed`. The
vectors of a sequence are in the order of its chains and of the residues in them. A residue that
several windows of a long chain contain has the mean of its vectors in these windows.

T residue tokens, R residues of a sequence, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.messages import note, reporting, say
from abag.core.options import EncoderOptions
from abag.embed.embed_options import ResidueOptions
from abag.embed.encoders.identity import Identity, check_backend
from abag.embed.families.registry import known_alias
from abag.embed.job import (
    check_attention,
    describe_long,
    describe_weights,
    identify_for,
    plan_for,
    refuse_long,
)
from abag.embed.packing import Layout, PackedBatch, Piece, fill_batches, longest_first
from abag.embed.sequences.chains import Chains, Kind, shown_chains
from abag.embed.sequences.pairs import SequenceTable, UniqueSequences, read_pairs
from abag.embed.store.shard import is_finite

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.families.family import Encoder
    from abag.embed.sequences.tables import TableLike

NumberFormat = Literal["float16", "float32"]
Vectors: TypeAlias = NDArray[np.float16 | np.float32]
"""Vectors of the residues of a sequence, shape (R, D)."""


class ResidueVectors(NamedTuple):
    """One sequence of a table, and a vector for each of its residues."""

    kind: Kind
    row: int
    """Number of the row in which the sequence occurs first."""
    chains: Chains
    """(heavy, light) of an antibody, the sorted chains of an antigen."""
    vectors: Vectors
    """Shape (R, D): those of the first chain, then those of the next."""


def residues(
    table: TableLike,
    **options: Any,  # noqa: ANN401 - the fields of EncoderOptions and ResidueOptions
) -> Iterator[ResidueVectors]:
    """Encode the sequences of a table, and yield a vector for each of their residues.

    Parameters
    ----------
    table : path or DataFrame
        As for `embed_table`; it has to fit into memory.
    **options
        Fields of `EncoderOptions` and `ResidueOptions`.

    Yields
    ------
    ResidueVectors
        Of every distinct antibody, then of every distinct antigen, in both cases the longest
        first.

    Raises
    ------
    AbagError
        For any invalid input, before anything is encoded; DeviceError and EncoderError while
        the vectors are yielded.
    """
    encoders, others = EncoderOptions.take(options)
    chosen = ResidueOptions.from_keywords(others, "residues")
    with reporting(silent=not chosen.progress):
        _, sides = read_sides(table, encoders, chosen)
    return _encode_sides(sides)


def _encode_sides(sides: Sequence[Side]) -> Iterator[ResidueVectors]:
    """Encode sides; a generator of its own, so that `residues` checks all before the first one."""
    for side in sides:
        for at, vectors in side.encode(side.order):
            yield ResidueVectors(side.kind, side.row(at), side.sequences.chains[at], vectors)


def read_sides(
    table: TableLike, encoders: EncoderOptions, options: ResidueOptions
) -> tuple[SequenceTable, list[Side]]:
    """Read a table and check it, its encoders and the device, before anything is encoded.

    Raises `AbagError`.
    """
    names: dict[Kind, str] = {
        "antibody": encoders.antibody_encoder,
        "antigen": encoders.antigen_encoder,
    }
    pairs = read_pairs(table, options, kinds=options.kinds)
    pairs.report_notes()
    if options.skipped is not None:
        pairs.skipped.write(Path(options.skipped))
    sides = []
    for kind in options.kinds:
        identity = identify_for(names[kind], kind, options)
        side = Side(identity, pairs.sequences[kind], options)
        side.check()
        sides.append(side)
    return pairs, sides


@dataclass(frozen=True)
class Side:
    """The distinct sequences of one kind, and the encoder that they are for."""

    identity: Identity
    sequences: UniqueSequences
    options: ResidueOptions

    @property
    def kind(self) -> Kind:
        """Kind of the sequences."""
        return self.sequences.kind

    def row(self, at: int) -> int:
        """Return the number of the row in which a sequence, given by position, occurs first."""
        return int(self.sequences.first_rows[at])

    def check(self) -> None:
        """Refuse what cannot be encoded, and say what happens to sequences and vectors.

        Raises `AbagError`.
        """
        identity = self.identity
        layout = self.identity.layout
        options = self.options
        check_backend(identity, options.backend(self.kind))
        _ = self.plan  # refuses a device that is not there
        check_attention(identity, options.device, options)
        long = sum(map(layout.is_long, self.sequences.chains))
        if options.long_antigens == "error":
            longest = max(map(len, chain.from_iterable(self.sequences.chains)))
            refuse_long(identity, long, longest)
        for line in describe_long(layout, long) + describe_weights(identity):
            say(f"  {line}")
        alias = known_alias(identity.checkpoint.name, identity.checkpoint.origin)
        if alias is not None and not alias.commercial:
            note(
                f"{identity.checkpoint.name}: the licence of its weights, {alias.licence}, forbids "
                "commercial use"
            )

    @cached_property
    def plan(self) -> DevicePlan:
        """Device and precision."""
        return plan_for(self.identity, self.options.device, self.options)

    def load(self) -> Encoder:
        """Load the encoder onto the device, again with each call."""
        from abag.embed.encoders.loading import load_encoder

        backend = self.options.backend(self.kind)
        attention = self.options.attention
        return load_encoder(self.identity, self.plan, backend=backend, attention=attention)

    @cached_property
    def width(self) -> int:
        """Numbers per vector, D."""
        return self.identity.shape.width or self.load().width

    @cached_property
    def residues(self) -> NDArray[np.int64]:
        """Residues of each of the N sequences, shape (N,)."""
        return np.array([sum(map(len, chains)) for chains in self.sequences.chains], np.int64)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The sequences by descending length, shape (N,), the same for the same table."""
        layout = self.identity.layout
        longest = [max(layout.span_lengths(chains)) for chains in self.sequences.chains]
        return longest_first(longest)

    def encode(self, order: NDArray[np.int64]) -> Iterator[tuple[int, Vectors]]:
        """Encode sequences, given by position with descending lengths.

        Yields the position of each and its vectors, in the same order.

        Raises
        ------
        DeviceError
            If a sequence does not fit into the memory of the device.
        EncoderError
            If a vector is not finite.
        """
        from abag.embed.encode import TokenBudget

        layout = self.identity.layout
        chains = self.sequences.chains
        longest = np.array([max(layout.span_lengths(chains[i])) for i in order], np.int64)
        kept = "what was yielded before it is complete"
        budget = TokenBudget(self.plan, self.options.batch_tokens, kept)
        encoder = self.load()  # not kept: the next kind needs the memory

        def encode(first: int, tokens: int) -> Iterator[_Completed]:
            left = [chains[i] for i in order[first:].tolist()]
            return _residue_stream(encoder, layout, left, self.plan, tokens, self.options.dtype)

        for first, completed in budget.stream(longest, encode, lambda at: self.name(order[at])):
            for position, vectors in zip(completed.positions, completed.vectors, strict=True):
                at = int(order[first + position])
                self._check_finite(at, vectors)
                yield at, vectors

    def name(self, at: int) -> str:
        """Name a sequence, given by position, in a message."""
        return f"row {self.row(at)}: {self.kind} {shown_chains(self.sequences.chains[at])}"

    def _check_finite(self, at: int, vectors: Vectors) -> None:
        if is_finite(vectors):
            return
        from abag.core.errors import EncoderError

        remedy = "--dtype float32, and if that fails too --precision fp32"
        if self.options.dtype == "float32":
            remedy = "--precision fp32, or check the checkpoint's weights"
        msg = (
            f"{self.name(at)}: the vector of a residue is not finite as {self.options.dtype}, "
            f"from {self.identity.checkpoint.name} in {self.plan.precision}. Give {remedy}."
        )
        raise EncoderError(msg)


class _Completed(NamedTuple):
    """The sequences that a batch completed."""

    positions: NDArray[np.int64]
    """Of the S sequences in the input: shape (S,), consecutive over batches."""
    vectors: list[Vectors]
    """Vectors of the residues of each of the S sequences."""


def _residue_stream(
    encoder: Encoder,
    layout: Layout,
    chains: Sequence[Chains],
    plan: DevicePlan,
    tokens: int,
    dtype: NumberFormat,
) -> Iterator[_Completed]:
    """Encode sequences in the given order, one batch ahead of what is yielded."""
    from abag.core.device import current_device
    from abag.embed.encode import prefetch

    begun: list[NDArray[Any]] = []  # token vectors of a sequence whose windows fill several batches
    pending: _Pending | None = None
    for batch in prefetch(fill_batches(layout.numbered_spans(chains), tokens)):
        divided = any(layout.is_long(chains[i]) for i in batch.sequences.tolist())
        with current_device(plan.device):  # not around the yield: the caller keeps its own
            latest = _Pending(encoder, batch, plan, dtype, exact=divided)
        if pending is not None:
            yield pending.fetch(layout, chains, begun)
        pending = latest
    if pending is not None:
        yield pending.fetch(layout, chains, begun)


class _Pending:
    """The vectors of a batch's residue tokens, while they are copied from the device."""

    def __init__(
        self,
        encoder: Encoder,
        batch: PackedBatch,
        plan: DevicePlan,
        dtype: NumberFormat,
        *,
        exact: bool,
    ) -> None:
        import torch

        from abag.core.device import to_device
        from abag.embed.encode import STORED, to_host

        self._batch = batch
        self._dtype = dtype
        is_residue_T = batch.weights[:, 0] > 0  # special tokens have no weight in the mean
        counts = np.add.reduceat(is_residue_T, batch.bounds[:-1], dtype=np.int64)
        self._ends = np.cumsum(counts)
        # what is averaged over windows stays in fp32 until then
        copied = torch.float32 if exact else STORED[dtype]
        with torch.inference_mode():
            hidden_TD = encoder(batch)
            at_T = to_device(np.flatnonzero(is_residue_T), plan.device)
            self._host_TD = to_host(hidden_TD[at_T].to(copied))
        self._copied: Any = None
        if hidden_TD.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def fetch(
        self, layout: Layout, chains: Sequence[Chains], begun: list[NDArray[Any]]
    ) -> _Completed:
        """Wait for the copy; `begun` holds, before and after, what a sequence has so far."""
        if self._copied is not None:
            self._copied.synchronize()
        batch = self._batch
        vectors = []
        tokens_of_sequences = np.split(self._host_TD.numpy(), self._ends[:-1])
        for place, tokens_TD in enumerate(tokens_of_sequences):
            position = int(batch.sequences[place])
            begun.append(tokens_TD)
            if batch.continues and place == len(tokens_of_sequences) - 1:
                break
            whole_TD = np.concatenate(begun) if len(begun) > 1 else tokens_TD
            begun.clear()
            if layout.is_long(chains[position]):
                whole_TD = average_windows(whole_TD, layout.pieces(chains[position]))
            vectors.append(whole_TD.astype(self._dtype))  # a copy: the batch need not stay
        return _Completed(batch.sequences[: len(vectors)], vectors)


def average_windows(tokens_TD: NDArray[np.float32], pieces: Sequence[Piece]) -> NDArray[np.float32]:
    """Average the vectors of each residue over the windows that contain it.

    Parameters
    ----------
    tokens_TD : ndarray, shape=(T, D)
        Vectors of the residue tokens of a sequence.
    pieces : sequence of Piece
        From `Layout.pieces`; together they have T residues.

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
