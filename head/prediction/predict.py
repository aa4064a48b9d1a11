"""``predict``: score a table of pairs, or every antibody against every antigen, into a file.

The table is read twice, in chunks: first to check every row and to collect the sequences, then to
write the rows beside their scores. In between, two indices and two scores per pair are kept;
vectors are read in slices, in the order in which the store holds them.
P pairs, N antibodies, M antigens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from abag.core import messages
from abag.core.options import flag
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.table_writer import TableWriter
from abag.embed.sequences.tables import TableLike, read_table_chunks
from abag.head.models.pair_model import PairVectors
from abag.head.prediction.all_pairs import PAIRS, predict_all_pairs
from abag.head.prediction.inputs import (
    CannotPredict,
    CollectedPairs,
    PairScores,
    RegimeCounts,
    Scorer,
    check_table_out,
    collect_pairs,
    digest_rows,
    encode_missing,
    loaded,
    region_of_run,
    row_bar,
    say_random_weights,
    with_p_strong,
)
from abag.head.prediction.options import PredictOptions
from abag.head.regimes.recognise import NewSequences
from abag.head.regimes.regimes import REGIMES

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.embed.store.store import Store
    from abag.head.prediction.predictor import Predictor

IndexedKeys: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int32]]
"""Distinct keys, (N, 16), and the index of each pair's key among them, (P,)."""

PAIR_OPTIONS = {"store", "antibody_encoder", "antigen_encoder", "device", "batch_tokens"}
"""Options of one pair, as in `Predictor.predict`."""
SLICE = 16_384
"""Sequences of one kind whose vectors are in memory at a time: 80 MB at the real widths."""


class PredictSummary(PairScores):
    """What `predict` returns, and ``abag predict --json`` prints."""

    out: str
    seconds: float


def describe_prediction(summary: PredictSummary) -> str:
    """Describe what was written."""
    return f"{summary['rows']:,} rows in {summary['out']}"


def predict(
    table: TableLike,
    run: Path | str | Predictor,
    out: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of PredictOptions
) -> PredictSummary:
    """Score the pairs of a table, and write its rows and columns beside their scores.

    Labels in the table are copied, never read. Nothing is written before every row is checked.

    Parameters
    ----------
    table : path or DataFrame
        Pairs; with ``cross``, antibodies. See `abag.embed.sequences.tables.read_table`.
    run : path or Predictor
        As for `abag.load_predictor`, or what it returned.
    out : path
        Its suffix decides on the format; written whole or not at all.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Show progress bars on stderr.
    **options
        Fields of `PredictOptions`.

    Returns
    -------
    dict
        ``out``, ``rows`` written, ``skipped_rows``, ``regimes`` (rows by regime), ``far_rows`` (no
        measured regime covers them), ``why_far`` (these by reason), ``seconds``; ``antibodies`` and
        ``antigens``, each with ``unique``, ``reused``, ``encoded``, ``new``.

    Raises
    ------
    AbagError
        If anything is refused; ``out`` is then unchanged.
    """
    chosen = PredictOptions.from_keywords(options, "predict")
    predictor = loaded(run)
    start_s, out, cross = time.monotonic(), Path(out), chosen.cross
    with messages.reporting(say, bars=progress):
        check_table_out(out, (table, cross), force=chosen.force)
        chosen = replace(chosen, antibody_region=region_of_run(chosen, predictor))
        scorer = Scorer(predictor, predictor.resolve_store(chosen.store), chosen.encoding(progress))
        say_random_weights(predictor)
        if cross is None:
            scored = _predict_pairs(scorer, table, out, chosen)
        else:
            scored = predict_all_pairs(scorer, table, cross, out, chosen)
        messages.say(f"{out}: {scored['rows']:,} rows")
        for line in describe_regimes_of(predictor, scored):
            messages.say(line)
    seconds = round(time.monotonic() - start_s, 3)
    return {"out": str(out), **scored, "seconds": seconds}


class PairPrediction(TypedDict):
    """Prediction of one pair; also the JSON of ``abag predict --heavy``."""

    pkd_predicted: float
    sigma: float
    """In pKd."""
    regime: str
    """What is new about the pair."""
    far: bool
    """No regime that was measured covers the pair."""
    why_far: str
    verdict: str
    """What the run has shown for this regime."""
    strong: NotRequired[float]
    """As given."""
    p_strong: NotRequired[float]
    """Probability that the pKd is at least ``strong``."""


def predict_pair(
    predictor: Predictor,
    heavy: str = "",
    light: str = "",
    *,
    antigen: str | None = None,
    strong: float | None = None,
    **options: Any,  # noqa: ANN401 - the options of Predictor.predict
) -> PairPrediction:
    """Predict one pair, see `Predictor.predict`.

    Raises
    ------
    CannotPredict
        If there is no antigen, or an option is of tables alone.
    AbagError
        If a sequence is invalid, or cannot be encoded.
    """
    if antigen is None:
        msg = "A pair needs an antigen. Add --antigen SEQUENCE."
        raise CannotPredict(msg)
    if unused := sorted(options.keys() - PAIR_OPTIONS):
        msg = f"{flag(unused[0])}: is an option of tables; one pair does not use it. Leave it out."
        raise CannotPredict(msg)
    strong = PredictOptions.take({"strong": strong})[0].strong
    scores = predictor.predict([heavy], [light], [antigen], **options)
    row = with_p_strong(scores, strong).iloc[0]
    regime = str(row["regime"])
    measured = predictor.regimes.get(regime)
    pair: PairPrediction = {
        "pkd_predicted": float(row["pkd_predicted"]),
        "sigma": float(row["sigma"]),
        "regime": regime,
        "far": bool(row["far"]),
        "why_far": str(row["why_far"]),
        "verdict": measured.verdict if measured else f"{REGIMES[regime].words}: not measured",
    }
    if strong is not None:
        pair |= {"strong": strong, "p_strong": float(row["p_strong"])}
    return pair


def describe_pair(pair: PairPrediction) -> str:
    """Say what was predicted of one pair, and how far it can be trusted."""
    pkd, sigma = pair["pkd_predicted"], pair["sigma"]
    low, high = (pkd + sign * ndtri(0.95) * sigma for sign in (-1, 1))
    text = (
        f"pKd {pkd:.2f}, Kd {_in_nanomolar(pkd)}; 90 % interval of pKd {low:.2f} to {high:.2f} "
        f"(sigma {sigma:.2f})\n{pair['verdict']}"
    )
    if "p_strong" in pair:
        text += f"\nProbability of a pKd of {pair['strong']:g} or more: {pair['p_strong']:.0%}."
    if pair["far"]:
        text += f"\nOutside of all that was measured: {pair['why_far']}."
    return text


def _in_nanomolar(pkd: float) -> str:
    return f"{10 ** (9 - pkd):.3g} nM"


def describe_regimes_of(predictor: Predictor, scored: PairScores) -> list[str]:
    """Say what the run has shown for the regimes that occur, most frequent first."""
    lines = []
    for name, rows in sorted(scored["regimes"].items(), key=lambda item: -item[1]):
        if name in predictor.regimes:
            lines.append(f"{rows:,} rows: {predictor.regimes[name].verdict}")
        else:
            lines.append(f"{rows:,} rows: {REGIMES[name].words}: not measured by the run")
    if scored["far_rows"]:
        why = ", ".join(f"{rows:,} because {text}" for text, rows in scored["why_far"].items())
        lines.append(
            f"{scored['far_rows']:,} rows are far from all that was measured ({why}): measure some "
            "of these pairs before you use their scores"
        )
    return lines


def _predict_pairs(
    scorer: Scorer, table: TableLike, out: Path, options: PredictOptions
) -> PairScores:
    found = collect_pairs(scorer, table, options)
    antibodies, antigens = found.antibodies.finish(), found.antigens.finish()
    store = encode_missing(scorer, found.antibodies, found.antigens)
    predictor, at = scorer.predictor, 0
    new = NewSequences(found.antibodies.state[antibodies[1]], found.antigens.state[antigens[1]])
    pkd, sigma = _score(scorer, store, antibodies, antigens, found, new)
    counts = RegimeCounts()
    with TableWriter(out) as writer, row_bar("writing", found.rows) as shown:
        for part in _read_again(table, found, options):
            rows = slice(at, at + len(part))
            at += len(part)
            scores = predictor.columns(
                pkd[rows], sigma[rows], NewSequences(*(side[rows] for side in new))
            )
            counts.add(scores)
            scores = with_p_strong(scores, options.strong)
            writer.write(pd.concat([part.reset_index(drop=True), scores], axis=1))
            shown.update(len(part))
    return counts.summary(found.rows, len(found.skipped), found.antibodies, found.antigens)


def _read_again(
    table: TableLike, found: CollectedPairs, options: TableOptions
) -> Iterator[pd.DataFrame]:
    """Yield the rows to score, all columns; their sequences have to be those of the first time."""
    digests, read = iter(found.digests), 0
    for chunk in read_table_chunks(table, limit=options.limit, as_written=True):
        kept = found.kept.get(read, np.ones(len(chunk.frame), np.bool_))
        read += len(chunk.frame)
        is_same = len(kept) == len(chunk.frame)
        if not is_same or digest_rows(chunk.frame[kept], found.columns) != next(digests, None):
            raise _changed(chunk.source)
        yield chunk.frame[kept]
    if next(digests, None) is not None:
        raise _changed(chunk.source)


def _changed(source: str) -> CannotPredict:
    return CannotPredict(
        f"{source}: the table changed while it was read; expected the same rows as at first. Run "
        "the command again."
    )


def _score(
    scorer: Scorer,
    store: Store,
    antibodies: IndexedKeys,
    antigens: IndexedKeys,
    found: CollectedPairs,
    new: NewSequences,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score all pairs, one slice of antibodies against one slice of antigens at a time.

    Returns pKd and sigma of each pair, (P,).
    """
    predictor, pairs = scorer.predictor, len(antibodies[1])
    left = _SlicedVectors(predictor, store, "antibody", antibodies[0])
    right = _SlicedVectors(predictor, store, "antigen", antigens[0])
    pkd, sigma = np.empty(pairs), np.empty(pairs)
    with row_bar("scoring", pairs) as shown:
        for a, g, rows in _blocks(left.slice_of, right.slice_of, antibodies[1], antigens[1]):
            i = left.row_in_slice[antibodies[1][rows]]
            j = right.row_in_slice[antigens[1][rows]]
            chains = [
                None if side.chains is None else [side.chains[n] for n in own.tolist()]
                for side, own in ((found.antibodies, left.rows(a)), (found.antigens, right.rows(g)))
            ]
            vectors = PairVectors(left.read(a), right.read(g), i, j, *chains)
            states = NewSequences(*(side[rows] for side in new))
            pkd[rows], sigma[rows] = predictor.values(vectors, states)
            shown.update(len(i))
    return pkd, sigma


def _blocks(
    antibody_slice: NDArray[np.int32],
    antigen_slice: NDArray[np.int32],
    antibody: NDArray[np.int32],
    antigen: NDArray[np.int32],
) -> Iterator[tuple[int, int, NDArray[np.int64] | slice]]:
    """Yield the pairs of each two slices: the numbers of the slices, and at most `PAIRS` rows."""
    if not antibody_slice.any() and not antigen_slice.any():  # one slice each: nothing to sort
        for at in range(0, len(antibody), PAIRS):
            yield 0, 0, slice(at, at + PAIRS)
        return
    # One number holds block and row and is sorted in place: 8 bytes per pair, where numpy.lexsort
    # and a search for the ends of the blocks need 28.
    antigen_slices, bits = int(antigen_slice.max()) + 1, len(antibody).bit_length()
    pairs = np.empty(len(antibody), np.int64)
    for at in range(0, len(pairs), PAIRS):
        rows = slice(at, at + PAIRS)
        blocks = antibody_slice[antibody[rows]].astype(np.int64) * antigen_slices
        blocks += antigen_slice[antigen[rows]]
        pairs[rows] = (blocks << bits) + np.arange(at, at + len(blocks))
    pairs.sort()
    at = 0
    while at < len(pairs):
        block = int(pairs[at]) >> bits
        end = min(int(np.searchsorted(pairs, (block + 1) << bits)), at + PAIRS)
        yield *divmod(block, antigen_slices), pairs[at:end] & ((1 << bits) - 1)
        at = end


class _SlicedVectors:
    """The vectors of N sequences, one slice of them in memory at a time.

    Sequence ``n`` is row ``row_in_slice[n]`` of slice ``slice_of[n]``.
    """

    def __init__(
        self, predictor: Predictor, store: Store, kind: Kind, keys: NDArray[np.uint8]
    ) -> None:
        predictor.refuse_missing(store, kind, keys)
        self._predictor, self._store, self._kind, self._keys = predictor, store, kind, keys
        self._order = store.folder(kind, predictor.spec(kind).fingerprint).stored_order(keys)
        rank = np.empty(len(keys), np.int32)
        rank[self._order] = np.arange(len(keys), dtype=np.int32)
        self.slice_of, self.row_in_slice = rank // SLICE, rank % SLICE
        self._held, self._held_slice = np.zeros((0, 0), np.float32), -1

    def rows(self, number: int) -> NDArray[np.int64]:
        """Return the sequences of a slice, shape (S,)."""
        return self._order[number * SLICE : (number + 1) * SLICE]

    def read(self, number: int) -> NDArray[np.float32]:
        """Return the vectors of a slice, shape (S, D)."""
        if number != self._held_slice:
            rows = self.rows(number)
            self._held = self._predictor.read(self._store, self._kind, self._keys[rows])
            self._held_slice = number
        return self._held
