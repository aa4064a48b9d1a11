"""``predict``: a table of pairs, or every antibody against every antigen, scored into a file.

The table is read twice, some rows at a time: once to check every row and to learn which sequences
there are, once to write the rows beside their scores. In between lie two indices and two scores
a pair; vectors are read in slices, in the order in which they lie in the store.
P pairs, N antibodies, M antigens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.embed.sequences.options import TableOptions
from abag.head.prediction.all_pairs import PAIRS, predict_cross
from abag.head.prediction.inputs import (
    CannotPredict,
    TableSource,
    Work,
    complete,
    gather_pairs,
    source_name,
)
from abag.head.prediction.rows import RowWriter, kind_of, read_rows

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.embed.store.store import Store
    from abag.head.prediction.predictor import Predictor

Side: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int32]]
"""Distinct keys, (N, 16), and their places in the pairs, (P,)."""

SLICE = 16_384
"""Sequences of a side whose vectors are in memory at a time: 80 MB at the real widths."""


def predict(
    table: TableSource,
    predictor: Predictor,
    out: Path | str,
    *,
    store: Path | str | None = None,
    cross: TableSource | None = None,
    force: bool = False,
    columns: Mapping[str, str] | None = None,
    antigen: str | None = None,
    limit: int | None = None,
    bad_rows: Literal["error", "skip"] = "error",
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **encoding: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Score the pairs of a table, and write its rows and columns beside their scores.

    Labels in the table are carried, never read. Nothing is written before every row is checked.

    Parameters
    ----------
    table : path or DataFrame
        Pairs; with ``cross``, antibodies. CSV, TSV, Parquet, also ``.gz``, or a folder of Parquet.
    predictor : Predictor
        From `abag.load_predictor`; `abag.predict` takes the run's folder instead.
    out : path
        Its name says the kind of table; written whole or not at all.
    store : path, optional
        Holds the vectors, and takes those of new sequences; by default the run's own.
    cross : path or DataFrame, optional
        Score each distinct antibody of ``table`` against each distinct antigen of this one, which
        may be the same.
    force : bool
        Replace ``out`` if it is there.
    columns, antigen, limit, bad_rows
        How the tables are read, see `abag.embed.sequences.pairs.TableOptions`.
    say : callable, optional
        Takes each message; by default they go to stderr.
    progress : bool
        Draw bars on stderr.
    **encoding
        Of `abag.embed_table`, for sequences that are new; ``antibody_encoder`` and
        ``antigen_encoder`` say where the run's encoders lie here.

    Returns
    -------
    dict
        ``out``, ``rows`` written, ``skipped_rows``, ``seconds``; ``antibodies`` and ``antigens``,
        each ``unique``, ``reused``, ``encoded``, ``far``.

    Raises
    ------
    AbagError
        In one line; ``out`` is then as it was.
    """
    options = TableOptions(columns=columns or {}, antigen=antigen, limit=limit, bad_rows=bad_rows)
    begun, out = time.monotonic(), Path(out)
    _check_out(out, (table, cross), force=force)
    work = Work(predictor, predictor.resolve_store(store), say or _to_stderr, progress, encoding)
    for side in (predictor.antibody, predictor.antigen):
        if side.random_weights:
            work.say(f"{side.name} has random weights: these scores mean nothing biologically")
    if cross is None:
        summary = _predict_pairs(work, table, out, options)
    else:
        summary = predict_cross(work, table, cross, out, options)
    work.say(f"{out}: {summary['rows']:,} rows; {_far(summary)}")
    return {"out": str(out), **summary, "seconds": round(time.monotonic() - begun, 3)}


def _far(summary: Mapping[str, Any]) -> str:
    antibodies, antigens = summary["antibodies"], summary["antigens"]
    text = (
        f"{antibodies['far']:,} of {antibodies['unique']:,} antibodies and {antigens['far']:,} of "
        f"{antigens['unique']:,} antigens lie far from the training set"
    )
    return text + ": expect less of their scores" * bool(antibodies["far"] or antigens["far"])


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _check_out(out: Path, sources: Sequence[TableSource | None], *, force: bool) -> None:
    """Refuse a place that cannot be written to before anything is read."""
    kind_of(out)
    if not out.parent.is_dir():
        msg = f"{out}: its folder does not exist; expected one. Make it, or give another --out."
        raise CannotPredict(msg)
    paths = [Path(source) for source in sources if isinstance(source, Path | str)]
    if any(path.exists() and out.exists() and path.samefile(out) for path in paths):
        msg = f"{out}: --out is the table that is read; expected another file. Give another --out."
        raise CannotPredict(msg)
    if out.is_dir() or (out.exists() and not force):
        msg = f"{out}: is there already; expected a new file. Give another --out, or --force."
        raise CannotPredict(msg)


def _predict_pairs(
    work: Work, table: TableSource, out: Path, options: TableOptions
) -> dict[str, Any]:
    found = gather_pairs(work, table, options)
    antibodies, antigens = found.antibodies.finish(), found.antigens.finish()
    store = complete(work, found.antibodies, found.antigens)
    scores = _score(work, store, antibodies, antigens)
    skipped, seen, at = found.skipped.total(), 0, 0
    with RowWriter(out) as writer, work.bar("writing", found.rows) as bar:
        for frame in read_rows(table, limit=options.limit):
            kept = found.kept.get(seen)
            part = frame if kept is None else frame[kept]
            rows = slice(at, at + len(part))
            seen, at = seen + len(frame), at + len(part)
            if at > found.rows:
                break
            writer.write(
                part.assign(
                    pkd_predicted=scores.pkd[rows],
                    sigma=scores.sigma[rows],
                    far_antibody=scores.far_antibody[antibodies[1][rows]],
                    far_antigen=scores.far_antigen[antigens[1][rows]],
                )
            )
            bar.update(len(part))
        if (seen, at) != (found.rows + skipped, found.rows):
            msg = f"{source_name(table)}: changed while it was read; expected {found.rows + skipped} rows. Try again."  # noqa: E501
            raise CannotPredict(msg)
    return {
        "rows": found.rows,
        "skipped_rows": skipped,
        "antibodies": found.antibodies.summary(int(scores.far_antibody.sum())),
        "antigens": found.antigens.summary(int(scores.far_antigen.sum())),
    }


@dataclass(frozen=True, slots=True)
class _Scores:
    """Of P pairs, N antibodies and M antigens."""

    pkd: NDArray[np.float64]
    sigma: NDArray[np.float64]
    far_antibody: NDArray[np.bool_]
    """(N,)"""
    far_antigen: NDArray[np.bool_]
    """(M,)"""


def _score(work: Work, store: Store, antibodies: Side, antigens: Side) -> _Scores:
    """Score all pairs, a slice of antibodies against a slice of antigens at a time."""
    predictor, pairs = work.predictor, len(antibodies[1])
    left = _Slices(predictor, store, "antibody", antibodies[0])
    right = _Slices(predictor, store, "antigen", antigens[0])
    pkd, sigma = np.empty(pairs), np.empty(pairs)
    with work.bar("scoring", pairs) as bar:
        for a, g, rows in _blocks(left.of, right.of, antibodies[1], antigens[1]):
            i, j = left.place[antibodies[1][rows]], right.place[antigens[1][rows]]
            pkd[rows], sigma[rows] = predictor.score(left.read(a), right.read(g), i, j)
            bar.update(len(i))
    return _Scores(pkd, sigma, left.far, right.far)


def _blocks(
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    antibody: NDArray[np.int32],
    antigen: NDArray[np.int32],
) -> Iterator[tuple[int, int, NDArray[np.int64] | slice]]:
    """Give the pairs of each two slices: the slices' numbers, and rows, not too many at a time."""
    if not left.any() and not right.any():  # one slice a side: nothing to sort
        for at in range(0, len(antibody), PAIRS):
            yield 0, 0, slice(at, at + PAIRS)
        return
    # One number says block and row, and is sorted in place: 8 bytes a pair, where numpy.lexsort
    # and what it takes to find the blocks' ends need 28.
    rights, bits = int(right.max()) + 1, len(antibody).bit_length()
    pairs = np.empty(len(antibody), np.int64)
    for at in range(0, len(pairs), PAIRS):
        rows = slice(at, at + PAIRS)
        blocks = left[antibody[rows]].astype(np.int64) * rights + right[antigen[rows]]
        pairs[rows] = (blocks << bits) + np.arange(at, at + len(blocks))
    pairs.sort()
    at = 0
    while at < len(pairs):
        block = int(pairs[at]) >> bits
        end = int(np.searchsorted(pairs, (block + 1) << bits))
        yield *divmod(block, rights), pairs[at : min(end, at + PAIRS)] & ((1 << bits) - 1)
        at = min(end, at + PAIRS)


class _Slices:
    """The vectors of many sequences, a slice in memory at a time.

    Sequence ``n`` is row ``place[n]`` of slice ``of[n]``.
    """

    def __init__(
        self, predictor: Predictor, store: Store, kind: Kind, keys: NDArray[np.uint8]
    ) -> None:
        predictor.refuse_missing(store, kind, keys)
        self._predictor, self._store, self._kind, self._keys = predictor, store, kind, keys
        self._order = store.folder(kind, predictor.spec(kind).fingerprint).stored_order(keys)
        rank = np.empty(len(keys), np.int32)
        rank[self._order] = np.arange(len(keys), dtype=np.int32)
        self.of, self.place = rank // SLICE, rank % SLICE
        self.far = np.zeros(len(keys), np.bool_)
        self._measured: set[int] = set()
        self._held, self._number = np.zeros((0, 0), np.float32), -1

    def read(self, number: int) -> NDArray[np.float32]:
        """Return a slice's vectors, and note which lie far when they are first seen."""
        if number != self._number:
            rows = self._order[number * SLICE : (number + 1) * SLICE]
            self._held = self._predictor.read(self._store, self._kind, self._keys[rows])
            self._number = number
            if number not in self._measured:
                self.far[rows] = self._predictor.applicability(self._kind).is_far(self._held)
                self._measured.add(number)
        return self._held
