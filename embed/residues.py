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
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict, cast

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import hex_keys
from abag.core.errors import EncoderError, OutputError
from abag.core.files import (
    is_begun,
    nearest_existing,
    only_writer,
    read_json,
    refuse_read_only,
    replacing,
    sweep_partials,
    write_bytes,
    write_json,
)
from abag.core.messages import counted, first_line, reporting, say, size_text
from abag.core.options import EncoderOptions, user_path
from abag.embed.encoders.identity import Identity
from abag.embed.encoders.packing import longest_first
from abag.embed.job import EncoderJob, identify_for, name_sequence, note_licences
from abag.embed.options import ResidueFileOptions, ResidueOptions
from abag.embed.tables.chains import PLURAL, Chains, Kind
from abag.embed.tables.pairs import SequenceTable, UniqueSequences, read_pairs
from abag.embed.tables.table import TableLike

Vectors: TypeAlias = NDArray[np.float16 | np.float32]
"""Vectors of the residues of a sequence, shape (R, D)."""
FORMAT = {"format": "abag-residues", "version": 1}
"""Keys of residues.json that say how to read the files."""
ABOUT_FILE = "residues.json"
ROWS_FILE = "rows.csv"
ROOM = 1.02
"""Times the size of the vectors, for the sequences beside them: must be free on the disk."""


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
    table : path, DataFrame or list of these
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
    _, jobs = read_jobs(table, encoders, chosen)
    # a generator only from here on, so that all is checked before the first vector is asked for
    return (sequence for job in jobs for sequence in job.encode(job.order))


def read_jobs(
    table: TableLike, encoders: EncoderOptions, options: ResidueOptions
) -> tuple[SequenceTable, list[ResidueJob]]:
    """Read a table and check it, its encoders and the device, before anything is encoded.

    Raises `AbagError`.
    """
    pairs = read_pairs(table, options, kinds=options.kinds)
    pairs.report_notes()
    if options.skipped is not None:
        pairs.skipped.write(Path(options.skipped))
    jobs = []
    for kind in options.kinds:
        identity = identify_for(encoders.encoder(kind), kind, options)
        job = ResidueJob(identity, pairs.sequences[kind], options)
        _ = job.plan  # refuses a device that is not there
        chains = job.sequences.chains
        long = sum(map(identity.layout.is_long, chains))
        job.check(long, max(map(len, chain.from_iterable(chains))))
        for line in job.describe_vectors(long):
            say(f"  {line}")
        jobs.append(job)
    note_licences(jobs)
    return pairs, jobs


class ResidueJob(EncoderJob):
    """The distinct sequences of one kind, and the encoder that they are for."""

    options: ResidueOptions

    def __init__(
        self, identity: Identity, sequences: UniqueSequences, options: ResidueOptions
    ) -> None:
        super().__init__(identity, options.device, options)
        self.sequences = sequences

    @cached_property
    def width(self) -> int:
        """Numbers per vector, D."""
        return self.identity.shape.width or self.load().width

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return self.width * np.dtype(self.options.dtype).itemsize

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

    def encode(self, order: NDArray[np.int64]) -> Iterator[ResidueVectors]:
        """Encode sequences, given by position with descending lengths, in this order.

        Raises
        ------
        DeviceError
            If a sequence does not fit into the memory of the device.
        EncoderError
            If a vector is not finite.
        """
        from abag.embed.encode import ResidueSink, TokenBudget  # imports torch

        layout = self.identity.layout
        kept = "what was yielded before it is complete"
        budget = TokenBudget(self.plan, self.options.batch_tokens, kept)
        # the encoder is not kept: memory for the next
        sink = ResidueSink(self.load(), self.plan, self.options.dtype, layout)
        rows = self.sequences.first_rows[order]
        chains = [self.sequences.chains[i] for i in order.tolist()]
        name = partial(name_sequence, self.kind, rows, chains)
        for positions, batch in budget.stream(sink, layout, chains, name):
            for at, vectors in zip(positions.tolist(), batch, strict=True):
                if not np.isfinite(vectors).all():
                    remedy = "--dtype float32, and if that fails too --precision fp32"
                    if self.options.dtype == "float32":
                        remedy = "--precision fp32, or check the checkpoint's weights"
                    msg = (
                        f"{name(at)}: the vector of a residue is not finite as "
                        f"{self.options.dtype}, from {self.identity.checkpoint.name} in "
                        f"{self.plan.precision}. Give {remedy}."
                    )
                    raise EncoderError(msg)
                yield ResidueVectors(self.kind, int(rows[at]), chains[at], vectors)


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
                f"{kind['encoder']} ({size}) in {files}, {kind['written']:,} of them new"
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
    table : path, DataFrame or list of these
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
    with reporting(bars=chosen.progress):
        pairs, jobs = read_jobs(table, encoders, chosen)
        outputs = [_Output(job, folder, _divide(job, chosen.file_mb)) for job in jobs]
        rows = _rows_csv(pairs, outputs)
        about = _describe(outputs, chosen, rows)
        _check_folder(folder, about)
        refuse_read_only(folder)
        _check_room(folder, outputs, chosen.dtype)
        with only_writer(folder):
            _check_folder(folder, about)  # another process may have begun it since
            sweep_partials(folder)
            if not (folder / ABOUT_FILE).exists():
                write_json(folder / ABOUT_FILE, about)
            if not (folder / ROWS_FILE).exists():
                write_bytes(folder / ROWS_FILE, rows)
            kinds = {PLURAL[output.job.kind]: output.write() for output in outputs}
    summary = {
        "out": str(folder),
        "dtype": chosen.dtype,
        **kinds,
        "rows": len(pairs.frame),
        "skipped_rows": len(pairs.skipped),
    }
    return cast("ResidueSummary", summary)


def _divide(job: ResidueJob, file_mb: int) -> list[NDArray[np.int64]]:
    """Divide the sequences, longest first, among files of about equal size."""
    size = np.cumsum(job.residues[job.order] * job.row_bytes)
    parts = []
    begin = 0
    while begin < len(size):
        before = size[begin - 1] if begin else 0
        end = int(np.searchsorted(size, before + file_mb * 1_000_000, "right"))
        end = max(end, begin + 1)
        parts.append(job.order[begin:end])
        begin = end
    return parts


@dataclass(frozen=True)
class _Output:
    """The files of one kind of sequence."""

    job: ResidueJob
    folder: Path
    parts: list[NDArray[np.int64]]
    """Positions of the sequences of each file, in `job`."""

    @property
    def bytes(self) -> int:
        return int(self.job.residues.sum()) * self.job.row_bytes

    def path(self, number: int) -> Path:
        return self.folder / f"{self.job.kind}-{number:05}.h5"

    def missing(self) -> list[int]:
        """Return the numbers of the files that are not there whole."""
        return [n for n, part in enumerate(self.parts) if not self._is_there(n, part)]

    def missing_bytes(self) -> int:
        residues = [int(self.job.residues[self.parts[n]].sum()) for n in self.missing()]
        return sum(residues) * self.job.row_bytes

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
        residues = int(self.job.residues[part].sum())
        if shape != (residues, self.job.width) or not is_whole:
            return False
        return np.array_equal(keys.astype(str), hex_keys(self.job.sequences.keys[part]))

    def write(self) -> ResidueKind:
        """Encode the sequences of the missing files in one stream, and write these files."""
        start_s = time.monotonic()
        job = self.job
        missing = self.missing()
        if missing:
            self._encode_files({n: self.parts[n] for n in missing})
        return ResidueKind(
            unique=len(job.sequences.chains),
            residues=int(job.residues.sum()),
            width=job.width,
            files=len(self.parts),
            written=len(missing),
            bytes=self.bytes,
            encoder=job.identity.checkpoint.name,
            fingerprint=job.identity.fingerprint,
            seconds=round(time.monotonic() - start_s, 3),
        )

    def _encode_files(self, parts: dict[int, NDArray[np.int64]]) -> None:
        """Encode the sequences of files, given by number, and write these in a thread."""
        job = self.job
        stream = job.encode(np.concatenate(list(parts.values())))
        total = sum(int(job.residues[part].sum()) for part in parts.values())
        with (
            job.bar(total) as drawn,
            ThreadPoolExecutor(1, "write") as thread,
        ):
            writing: Future[None] | None = None
            for number, part in parts.items():
                residues = job.residues[part]
                vectors_RD = np.empty((int(residues.sum()), job.width), job.options.dtype)
                ends = np.cumsum([0, *residues])
                of_file = islice(stream, len(part))
                for (begin, end), sequence in zip(pairwise(ends), of_file, strict=True):
                    vectors_RD[begin:end] = sequence.vectors
                    drawn.update(end - begin)
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
        job = self.job
        path = self.path(number)
        image = io.BytesIO()
        # in memory: HDF5 crashes, perhaps when Python exits, if it cannot write what it closes;
        # earlier versions of its format have no checksums of names, types and attributes
        with h5py.File(image, "w", libver=("v110", "v110")) as file:
            file.attrs["format"] = f"{FORMAT['format']} {FORMAT['version']}"
            file.attrs["kind"] = job.kind
            file.attrs["encoder"] = job.identity.checkpoint.name
            file.attrs["fingerprint"] = job.identity.fingerprint
            file.attrs["precision"] = job.plan.precision
            file["vectors"] = vectors_RD
            file["offsets"] = ends
            file["key"] = np.array(hex_keys(job.sequences.keys[part]), "S32")
            texts = ["|".join(job.sequences.chains[i]) for i in part.tolist()]
            file.create_dataset("sequence", data=texts, dtype=h5py.string_dtype())
            file["row"] = job.sequences.first_rows[part]
        try:
            with replacing(path) as partial:
                partial.write_bytes(image.getvalue())
        except OSError as error:
            msg = (
                f"{path}: cannot be written ({first_line(error)}); the files before it are whole. "
                "Free space, or change what is in the way, and run the same command again."
            )
            raise OutputError(msg) from error


def _describe(outputs: list[_Output], options: ResidueFileOptions, rows: bytes) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for output in outputs:
        job = output.job
        keys = job.sequences.keys[np.concatenate(output.parts)]
        kinds[job.kind] = {
            "encoder": job.identity.checkpoint.name,
            "fingerprint": job.identity.fingerprint,
            "sequences": len(keys),
            "residues": int(job.residues.sum()),
            "width": job.width,
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
    if not is_begun(folder, ABOUT_FILE, "residues", "--out"):
        return
    ours = _values(about)
    theirs = _values(read_json(folder / ABOUT_FILE))
    # other rows differ with all else: last
    for name in sorted(ours | theirs, key="rows".__eq__):
        begun = theirs.get(name, "nothing")
        now = ours.get(name, "nothing")
        if now != begun:
            msg = (
                f"{folder}: begun with {name} {begun}, now {now}; expected the same table and "
                "options. Give another --out."
            )
            raise OutputError(msg)


def _values(about: dict[str, Any]) -> dict[str, Any]:
    """Return the values of residues.json that decide about the files, those of a kind by both."""
    flat = pd.json_normalize(about, sep=" ").iloc[0]
    named = {str(name).removeprefix("kinds "): value for name, value in flat.items()}
    # an encoder may have several names, and one fingerprint
    return {name: value for name, value in named.items() if not name.endswith(" encoder")}


def _check_room(folder: Path, outputs: list[_Output], dtype: str) -> None:
    """Say how large the files will be, and refuse what the disk cannot hold."""
    for output in outputs:
        job = output.job
        residues = counted(int(job.residues.sum()), "residue")
        say(
            f"{residues} of {len(job.residues):,} {PLURAL[job.kind]}, {job.width:,} "
            f"{dtype} each: {size_text(output.bytes)}"
        )
    needed = sum(output.missing_bytes() for output in outputs)
    free = shutil.disk_usage(nearest_existing(folder)).free
    to_do = f"{size_text(needed)} to write" if needed else "nothing to encode"
    say(f"{folder}: {to_do}, {size_text(free)} free")
    if needed * ROOM > free:
        smaller = "--dtype float16, " if dtype == "float32" else ""
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
        sequence_of_row = output.job.sequences.of_row
        sizes = [len(part) for part in output.parts]
        order = np.concatenate(output.parts)
        file = np.empty_like(order)
        file[order] = np.repeat(np.arange(len(sizes)), sizes)
        place = np.empty_like(order)
        place[order] = np.concatenate([np.arange(size) for size in sizes])
        names = np.array([output.path(n).name for n in range(len(sizes))], object)
        columns[f"{output.job.kind}_file"] = names[file[sequence_of_row]]
        columns[f"{output.job.kind}_place"] = place[sequence_of_row]
    return pd.DataFrame(columns).to_csv(index=False).encode()
