"""One vector per residue, for models that attend to residues: yielded, or written into files.

A store holds pooled vectors, so the encoders have to run: on packed batches, as in `embed`. The
vectors of a sequence are in the order of its chains and of the residues in them. A residue that
several windows of a long chain contain has the mean of its vectors in these windows.

    residues.json          written first: encoders, number format and a digest of the sequences
    rows.csv               of each row of the table, in which files its sequences are, and where
    antibody-00000.h5      sequences, the longest first, up to `file_mb` of vectors
    antigen-00000.h5

A file exists under its name whole, or not at all, and a file that is there is not made again.
T residue tokens, R residues of the N sequences of a file, D width.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict, cast

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import hex_keys
from abag.core.errors import OutputError
from abag.core.files import (
    nearest_existing,
    only_writer,
    read_json,
    refuse_read_only,
    replacing,
    sweep_partials,
    write_bytes,
    write_json,
)
from abag.core.messages import bar, counted, first_line, note, reporting, say, size_text
from abag.core.options import EncoderOptions, user_path
from abag.embed.encoders.identity import Identity, check_backend
from abag.embed.encoders.registry import known_alias
from abag.embed.job import (
    check_attention,
    describe_long,
    describe_weights,
    identify_for,
    plan_for,
    refuse_long,
)
from abag.embed.kernels.packing import Layout, PackedBatch, Piece, fill_batches, longest_first
from abag.embed.options import ResidueFileOptions, ResidueOptions
from abag.embed.store.shard import is_finite
from abag.embed.tables.chains import PLURAL, Chains, Kind, shown_chains
from abag.embed.tables.pairs import SequenceTable, UniqueSequences, read_pairs
from abag.embed.tables.tables import TableLike

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.encoders.family import Encoder


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


FORMAT = {"format": "abag-residues", "version": 1}
"""Keys of residues.json that say how to read the files."""
ABOUT_FILE = "residues.json"
ROWS_FILE = "rows.csv"
ROOM = 1.02
"""Times the size of the vectors, for the sequences beside them: must be free on the disk."""


class ResidueKind(TypedDict):
    """The summary of the antibodies, or of the antigens."""

    unique: int
    """Distinct sequences of the table."""
    residues: int
    """Vectors in the files."""
    width: int
    """Numbers per vector."""
    files: int
    written: int
    """Files that this run wrote; the others were there."""
    bytes: int
    """Size of the vectors in all files."""
    encoder: str
    fingerprint: str
    seconds: float
    """Wall time of encoding and writing."""


class ResidueSummary(TypedDict):
    """The keys of ``abag residues --json``."""

    out: str
    dtype: str
    antibodies: NotRequired[ResidueKind]
    antigens: NotRequired[ResidueKind]
    rows: int
    skipped_rows: int


def describe_residues(summary: ResidueSummary) -> str:
    """Describe what was written, one line per kind of sequence."""
    lines = []
    for plural in PLURAL.values():
        if kind := cast("ResidueKind | None", summary.get(plural)):
            vectors = counted(kind["residues"], "vector")
            numbers = f"{kind['width']:,} {summary['dtype']}"
            size = size_text(kind["bytes"])
            files = counted(kind["files"], "file")
            lines.append(
                f"{plural}: {kind['unique']:,} unique, {vectors} of {numbers} from "
                f"{kind['encoder']} ({size}) in {files}, of which {kind['written']:,} are new"
            )
    return "\n".join(lines)


def export_residues(
    table: TableLike,
    out: Path | str,
    **options: Any,  # noqa: ANN401 - the fields of EncoderOptions and ResidueFileOptions
) -> ResidueSummary:
    """Encode the sequences of a table, and write a vector for each of their residues.

    Parameters
    ----------
    table : path or DataFrame
        As for `embed_table`; it has to fit into memory.
    out : path
        A new folder, or one that an earlier call began with the same table and options: files
        that are there are not made again.
    **options
        Fields of `EncoderOptions` and `ResidueFileOptions`.

    Returns
    -------
    ResidueSummary
        The object that ``abag residues --json`` prints.

    Raises
    ------
    OutputError
        If the folder holds something else, or its disk has not room for all files.
    AbagError
        For any other invalid input. Nothing is written before everything is checked.
    """
    encoders, others = EncoderOptions.take(options)
    chosen = ResidueFileOptions.from_keywords(others, "export_residues")
    folder = user_path(out, "--out")
    with reporting(bars=chosen.progress, silent=not chosen.progress):
        pairs, sides = read_sides(table, encoders, chosen)
        outputs = [_Output(side, folder, _divide(side, chosen.file_mb)) for side in sides]
        rows = _rows_csv(pairs, outputs)
        about = _describe(outputs, chosen, rows)
        _check_folder(folder, about)
        refuse_read_only(folder)
        _check_room(folder, outputs, chosen)
        with only_writer(folder):
            _check_folder(folder, about)  # another process may have begun it since
            sweep_partials(folder)
            if not (folder / ABOUT_FILE).exists():
                write_json(folder / ABOUT_FILE, about)
            if not (folder / ROWS_FILE).exists():
                write_bytes(folder / ROWS_FILE, rows)
            kinds = {PLURAL[output.side.kind]: output.write(chosen) for output in outputs}
    summary = {
        "out": str(folder),
        "dtype": chosen.dtype,
        **kinds,
        "rows": len(pairs.frame),
        "skipped_rows": len(pairs.skipped),
    }
    return cast("ResidueSummary", summary)


def _divide(side: Side, file_mb: int) -> list[NDArray[np.int64]]:
    """Divide the sequences, longest first, among files of about equal size."""
    row_bytes = side.width * np.dtype(side.options.dtype).itemsize
    size = np.cumsum(side.residues[side.order] * row_bytes)
    parts = []
    begin = 0
    while begin < len(size):
        before = size[begin - 1] if begin else 0
        end = int(np.searchsorted(size, before + file_mb * 1_000_000, "right"))
        end = max(end, begin + 1)
        parts.append(side.order[begin:end])
        begin = end
    return parts


@dataclass(frozen=True)
class _Output:
    """The files of one kind of sequence."""

    side: Side
    folder: Path
    parts: list[NDArray[np.int64]]
    """Positions of the sequences of each file, in `side`."""

    @property
    def row_bytes(self) -> int:
        return self.side.width * np.dtype(self.side.options.dtype).itemsize

    @property
    def bytes(self) -> int:
        return int(self.side.residues.sum()) * self.row_bytes

    def path(self, number: int) -> Path:
        return self.folder / f"{self.side.kind}-{number:05}.h5"

    def missing(self) -> list[int]:
        """Return the numbers of the files that are not there whole."""
        return [n for n, part in enumerate(self.parts) if not self._is_there(n, part)]

    def missing_bytes(self) -> int:
        residues = [int(self.side.residues[self.parts[n]].sum()) for n in self.missing()]
        return sum(residues) * self.row_bytes

    def _is_there(self, number: int, part: NDArray[np.int64]) -> bool:
        path = self.path(number)
        if not path.is_file():
            return False
        try:
            with h5py.File(path, "r", locking=False) as file:
                keys = file["key"][:]
                shape = file["vectors"].shape
                is_whole = file["vectors"].id.get_storage_size() >= file["vectors"].nbytes
        except (OSError, KeyError, AttributeError, RuntimeError):
            return False
        residues = int(self.side.residues[part].sum())
        if shape != (residues, self.side.width) or not is_whole:
            return False
        return np.array_equal(keys.astype(str), hex_keys(self.side.sequences.keys[part]))

    def write(self, options: ResidueFileOptions) -> ResidueKind:
        """Encode the sequences of the missing files in one stream, and write these files."""
        start_s = time.monotonic()
        side = self.side
        missing = self.missing()
        left = [self.parts[n] for n in missing]
        if left:
            self._encode_files(dict(zip(missing, left, strict=True)), options)
        return ResidueKind(
            unique=len(side.sequences.chains),
            residues=int(side.residues.sum()),
            width=side.width,
            files=len(self.parts),
            written=len(missing),
            bytes=self.bytes,
            encoder=side.identity.checkpoint.name,
            fingerprint=side.identity.fingerprint,
            seconds=round(time.monotonic() - start_s, 3),
        )

    def _encode_files(
        self, parts: dict[int, NDArray[np.int64]], options: ResidueFileOptions
    ) -> None:
        """Encode the sequences of files, given by number, and write these in a thread."""
        side = self.side
        stream = side.encode(np.concatenate(list(parts.values())))
        total = sum(map(len, parts.values()))
        title = f"{side.kind} · {side.identity.checkpoint.name}"
        with (
            bar(total=total, unit="seq", desc=title) as drawn,
            ThreadPoolExecutor(1, "write") as thread,
        ):
            writing: Future[None] | None = None
            for number, part in parts.items():
                residues = side.residues[part]
                vectors_RD = np.empty((int(residues.sum()), side.width), options.dtype)
                ends = np.cumsum([0, *residues])
                of_file = islice(stream, len(part))
                for (begin, end), (_, vectors) in zip(pairwise(ends), of_file, strict=True):
                    vectors_RD[begin:end] = vectors
                    drawn.update()
                if writing is not None:
                    writing.result()  # one file in memory, one on its way to the disk
                writing = thread.submit(self._write_file, number, part, ends, vectors_RD)
            assert writing is not None
            writing.result()

    def _write_file(
        self,
        number: int,
        part: NDArray[np.int64],
        ends: NDArray[np.int64],
        vectors_RD: NDArray[Any],
    ) -> None:
        side = self.side
        path = self.path(number)
        image = io.BytesIO()
        # in memory: HDF5 crashes, perhaps when Python exits, if it cannot write what it closes;
        # earlier versions of its format have no checksums of names, types and attributes
        with h5py.File(image, "w", libver=("v110", "v110")) as file:
            file.attrs["format"] = f"{FORMAT['format']} {FORMAT['version']}"
            file.attrs["kind"] = side.kind
            file.attrs["encoder"] = side.identity.checkpoint.name
            file.attrs["fingerprint"] = side.identity.fingerprint
            file.attrs["precision"] = side.plan.precision
            file["vectors"] = vectors_RD
            file["offsets"] = ends
            file["key"] = np.array(hex_keys(side.sequences.keys[part]), "S32")
            texts = ["|".join(side.sequences.chains[i]) for i in part.tolist()]
            file.create_dataset("sequence", data=texts, dtype=h5py.string_dtype())
            file["row"] = side.sequences.first_rows[part]
        try:
            with replacing(path) as partial:
                partial.write_bytes(image.getbuffer())
        except OSError as error:
            msg = (
                f"{path}: cannot be written ({first_line(error)}); the files before it are whole. "
                "Free space, or change what is in the way, and run the same command again."
            )
            raise OutputError(msg) from error


def _describe(outputs: list[_Output], options: ResidueFileOptions, rows: bytes) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for output in outputs:
        side = output.side
        keys = side.sequences.keys[np.concatenate(output.parts)]
        kinds[side.kind] = {
            "encoder": side.identity.checkpoint.name,
            "fingerprint": side.identity.fingerprint,
            "sequences": len(keys),
            "residues": int(side.residues.sum()),
            "width": side.width,
            "digest": _digest(keys.tobytes()),
        }
    return {
        **FORMAT,
        "dtype": options.dtype,
        "file_mb": options.file_mb,
        "kinds": kinds,
        "rows": _digest(rows),
    }


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _check_folder(folder: Path, about: dict[str, Any]) -> None:
    """Refuse a folder that holds anything but a part of these residues."""
    if not folder.exists():
        return
    if not folder.is_dir():
        msg = f"{folder}: is a file; expected a new folder. Give another --out."
        raise OutputError(msg)
    if not (folder / ABOUT_FILE).exists():
        if foreign := sorted(folder.iterdir()):
            msg = f"{folder}: holds {foreign[0].name}; expected a new folder. Give another --out."
            raise OutputError(msg)
        return
    begun = read_json(folder / ABOUT_FILE)
    for name, ours, theirs in _differences(about, begun):
        msg = (
            f"{folder}: begun with {name} {theirs}, now {ours}; expected the same table and "
            "options. Give another --out."
        )
        raise OutputError(msg)


def _differences(about: dict[str, Any], begun: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """List the differences: what differs, its value in this run, and that in the folder."""
    differences = []
    for name in ("format", "version", "dtype", "file_mb"):
        if about[name] != begun.get(name):
            differences.append((name, about[name], begun.get(name)))
    kinds = begun.get("kinds")
    theirs: dict[str, Any] = kinds if isinstance(kinds, dict) else {}
    ours = about["kinds"]
    if ours.keys() != theirs.keys():
        sequences = " and ".join(theirs) or "nothing"
        differences.append(("sequences of", " and ".join(ours), sequences))
        return differences
    words = {"fingerprint": "encoder", "digest": "sequences"}
    for kind in ours:
        begun_kind = theirs[kind] if isinstance(theirs[kind], dict) else {}
        for name, value in ours[kind].items():
            if name != "encoder" and value != begun_kind.get(name):
                what_differs = f"{kind} {words.get(name, name)}"
                differences.append((what_differs, value, begun_kind.get(name)))
    if not differences and about["rows"] != begun.get("rows"):  # the same sequences in other rows
        differences.append(("rows", about["rows"], begun.get("rows")))
    return differences


def _check_room(folder: Path, outputs: list[_Output], options: ResidueFileOptions) -> None:
    """Say how large the files will be, and refuse what the disk cannot hold."""
    for output in outputs:
        side = output.side
        residues = counted(int(side.residues.sum()), "residue")
        say(
            f"{residues} of {len(side.residues):,} {PLURAL[side.kind]}, {side.width:,} "
            f"{options.dtype} each: {size_text(output.bytes)}"
        )
    needed = sum(output.missing_bytes() for output in outputs)
    free = shutil.disk_usage(nearest_existing(folder)).free
    to_do = f"{size_text(needed)} to write" if needed else "nothing to encode"
    say(f"{folder}: {to_do}, {size_text(free)} free")
    if needed * ROOM > free:
        smaller = "--dtype float16, " if options.dtype == "float32" else ""
        msg = (
            f"{folder}: needs {size_text(needed)} for residue vectors, and {size_text(free)} are "
            f"free; expected room for all. Give {smaller}--limit, --kind, or an --out on a larger "
            "disk."
        )
        raise OutputError(msg)


def _rows_csv(pairs: SequenceTable, outputs: list[_Output]) -> bytes:
    """Write the number of each row, the file of each of its sequences, and the place in it."""
    columns: dict[str, Any] = {"row": pairs.row_numbers}
    for output in outputs:
        sequence_of_row = output.side.sequences.of_row
        sizes = [len(part) for part in output.parts]
        order = np.concatenate(output.parts)
        file = np.empty_like(order)
        file[order] = np.repeat(np.arange(len(sizes)), sizes)
        place = np.empty_like(order)
        place[order] = np.concatenate([np.arange(size) for size in sizes])
        names = np.array([output.path(n).name for n in range(len(sizes))], object)
        columns[f"{output.side.kind}_file"] = names[file[sequence_of_row]]
        columns[f"{output.side.kind}_place"] = place[sequence_of_row]
    return pd.DataFrame(columns).to_csv(index=False).encode()
