"""``predict``: score a table of pairs, or every antibody against every antigen, into a file.

`pair_sources` reads the pairs and scores them; here are the options, the file and the summary, and
what the command line says about one pair.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pandas as pd
from scipy.special import ndtr, ndtri

from abag.core import messages
from abag.core.errors import PredictionError
from abag.core.messages import counted
from abag.core.options import flag
from abag.embed.sequences.chains import KINDS
from abag.embed.sequences.table_files import bare_suffix
from abag.embed.sequences.table_writer import writing_table
from abag.embed.sequences.tables import TableLike
from abag.embed.store.store import open_store
from abag.head.data.quantity import PKD, Quantity
from abag.head.data.written_columns import STRONG_COLUMN
from abag.head.evaluation.ties import SamePredictions
from abag.head.prediction.loading import loaded
from abag.head.prediction.pair_sources import CrossedTables, PairTable
from abag.head.prediction.predict_options import PredictOptions
from abag.head.prediction.predictor import SCORE_COLUMNS, Scorer
from abag.head.prediction.reading import as_in_the_run
from abag.head.prediction.sequences import SequenceCounts
from abag.head.prediction.tables import (
    antigen_of_run,
    check_table_out,
    file_stamps,
    refuse_changed,
    region_of_run,
    rounded,
    say_random_weights,
)
from abag.head.regimes.regimes import KNOWN

if TYPE_CHECKING:
    from abag.head.prediction.predictor import Predictor

PAIR_OPTIONS = {"store", "antibody_encoder", "antigen_encoder", "device", "batch_tokens"}
"""Options of one pair, as in `Predictor.predict`."""


class PredictSummary(TypedDict):
    """Result of `predict`: the keys of ``abag predict --json``."""

    out: str
    rows: int
    skipped_rows: int
    regimes: dict[str, int]
    """Rows by what is new about them."""
    far_rows: int
    """Those that no measured regime covers."""
    why_far: dict[str, int]
    """These by reason."""
    verdicts: dict[str, str]
    """What the run has shown for the regimes that occur."""
    can_rank: bool
    """False if all rows have the same prediction."""
    same_prediction: dict[str, int]
    """Rows of the regimes in which all rows have the same prediction."""
    antibodies: SequenceCounts
    antigens: SequenceCounts
    seconds: float


def describe_prediction(summary: PredictSummary) -> str:
    """Describe what was written."""
    skipped = summary["skipped_rows"]
    rest = f"; {counted(skipped, 'row')} skipped" if skipped else ""
    return f"{counted(summary['rows'], 'row')} in {summary['out']}{rest}"


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
    table : path, DataFrame or list of these
        Pairs; with ``cross``, antibodies. See `abag.embed.sequences.tables.read_table`.
    run : path or Predictor
        As for `abag.load_predictor`, or what it returned.
    out : path
        Its suffix decides on the format; written whole or not at all. In text files, predictions
        have 4 digits after the point.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Show progress bars on stderr.
    **options
        Fields of `PredictOptions`.

    Returns
    -------
    PredictSummary

    Raises
    ------
    AbagError
        If anything is refused; ``out`` is then unchanged.
    """
    chosen = PredictOptions.from_keywords(options, "predict")
    predictor = loaded(run)
    start_s = time.monotonic()
    out = Path(out)
    with messages.reporting(say, bars=progress):
        check_table_out(out, sources=(table, chosen.cross), force=chosen.force)
        quantity = predictor.quantity
        quantity.check_threshold(chosen.strong, "--strong")
        chosen = _as_in_the_run(table, chosen, predictor)
        store = predictor.resolve_store(chosen.store)
        say_random_weights(predictor)
        added = quantity.columns(score_columns(chosen.strong))
        source: PairTable | CrossedTables
        typed = bare_suffix(out) == ".parquet"
        if chosen.cross is None:
            source = PairTable(table, chosen, added, predictor.features, typed=typed)
        else:
            reading = predictor.reading
            source = CrossedTables(table, chosen.cross, chosen, added, reading, typed=typed)
        before = file_stamps(table)
        antibodies, antigens = source.read()
        predictor.refuse_without_chains(antibodies, source.name)
        counts = predictor.encode(store, antibodies, antigens, **chosen.encoding(progress))
        scorer = Scorer(predictor, open_store(store), antibodies, antigens)
        regimes, why_far = source.count_regimes(scorer)
        verdicts = predictor.say_verdicts(regimes, "row")
        _say_far(why_far)
        same = SamePredictions(quantity, no_antigen=predictor.no_antigen)
        with writing_table(out) as write:
            for rows, scores in source.score(scorer):
                same.add(scores)
                shown_scores = quantity.outward(with_p_strong(scores, chosen.strong, quantity))
                columns = [part.reset_index(drop=True) for part in (rows, shown_scores)]
                write(rounded(pd.concat(columns, axis=1), out, added, predictor.digits))
            refuse_changed(table, before)
        several = max(len(antibodies.keys), len(antigens.keys)) > 1
        if several:
            for text in same.describe("row"):
                messages.say(f"{out}: {text}")
    for kind, new in zip(KINDS, scorer.new, strict=True):
        counts[kind]["new"] = int((new.level != KNOWN).sum())
    return {
        "out": str(out),
        "rows": source.rows,
        "skipped_rows": source.skipped,
        "regimes": dict(regimes),
        "far_rows": why_far.total(),
        "why_far": dict(why_far),
        "verdicts": verdicts,
        "can_rank": same.can_rank or not several,
        "same_prediction": same.regimes if several else {},
        "antibodies": counts["antibody"],
        "antigens": counts["antigen"],
        "seconds": round(time.monotonic() - start_s, 3),
    }


def _as_in_the_run(
    table: TableLike, options: PredictOptions, predictor: Predictor
) -> PredictOptions:
    """Complete the options by what the run remembers; refuse those that do not fit the run."""
    options = replace(
        options,
        antibody_region=region_of_run(options, predictor),
        no_antigen=antigen_of_run(options, predictor),
    )
    if options.cross is None:
        return as_in_the_run(table, options, predictor.reading)
    if predictor.no_antigen:
        msg = "--cross: the run is of antibodies alone; expected no antigens. Leave it out."
        raise PredictionError(msg)
    predictor.refuse_without_features("--cross", "Predict a table of pairs that has them.")
    return options


def _say_far(why_far: Counter[str]) -> None:
    """Say how many rows no measured regime covers, by reason."""
    if not why_far:
        return
    far = counted(why_far.total(), "row")
    why = ", ".join(f"{rows:,} because {text}" for text, rows in why_far.items())
    messages.say(
        f"outside the training data: {far} ({why}); measure some of these pairs before you use "
        "their scores"
    )


def score_columns(strong: float | None) -> tuple[str, ...]:
    """Return the names of the columns to add."""
    return SCORE_COLUMNS if strong is None else (*SCORE_COLUMNS, STRONG_COLUMN)


def with_p_strong(
    scores: pd.DataFrame, strong: float | None, quantity: Quantity = PKD
) -> pd.DataFrame:
    """Add the probability that a pair is at least as good as `strong`, if that is given."""
    if strong is None:
        return scores
    z = (scores["pkd_predicted"] - strong) / scores["sigma"]
    return scores.assign(p_strong=ndtr(quantity.sign * z))


# ---- one pair ------------------------------------------------------------------------------------


def predict_pair(
    predictor: Predictor,
    heavy: str = "",
    light: str = "",
    *,
    antigen: str | None = None,
    strong: float | None = None,
    **options: Any,  # noqa: ANN401 - the options of Predictor.predict
) -> dict[str, Any]:
    """Predict one pair, see `Predictor.predict`, and say what the run has shown for its regime."""
    quantity = predictor.quantity
    if antigen is None and predictor.reading.antigen:
        antigen = predictor.reading.antigen
        messages.say("the antigen of the run is taken")
    if antigen is None and not predictor.no_antigen:
        msg = "A pair needs an antigen. Add --antigen SEQUENCE."
        raise PredictionError(msg)
    if unused := sorted(options.keys() - PAIR_OPTIONS):
        msg = f"{flag(unused[0])}: is an option of tables; one pair does not use it. Leave it out."
        raise PredictionError(msg)
    advice = "Put the pair in a table that has them, and give --out FILE."
    predictor.refuse_without_features("one pair", advice)
    strong = PredictOptions(strong=strong).strong
    quantity.check_threshold(strong, "--strong")
    scores = predictor.predict([heavy], [light], [antigen or ""], **options)
    scores = quantity.inward(scores, "pkd_predicted")
    row = with_p_strong(scores, strong, quantity).iloc[0]
    regime = str(row["regime"])
    measured = predictor.regimes.get(regime)
    pair = {
        quantity.predicted: float(row["pkd_predicted"]),
        "sigma": float(row["sigma"]),
        "regime": regime,
        "far": bool(row["far"]),
        "why_far": str(row["why_far"]),
        "verdict": measured.verdict if measured else f"{predictor.words(regime)}: not measured",
    }
    if not quantity.affinity:
        pair["quantity"] = quantity.to_json()
    if strong is not None:
        pair |= {"strong": strong, "p_strong": float(row["p_strong"])}
    return pair


def describe_pair(pair: dict[str, Any]) -> str:
    """Say what was predicted of one pair, and how far it can be trusted."""
    quantity = Quantity.of_json(pair["quantity"]) if "quantity" in pair else PKD
    show = quantity.show
    value = pair[quantity.predicted]
    sigma = pair["sigma"]
    away = ndtri(0.95) * sigma
    interval = f"{show(value - away)} to {show(value + away)} (sigma {show(sigma)})"
    if quantity.affinity:  # a predictor of pIC50 gives the pKd that this stands for
        kd_nm = float(f"{10 ** (9 - value):.3g}")
        text = f"pKd {show(value)}, Kd {kd_nm:,g} nM; 90 % interval of pKd {interval}"
    else:
        text = f"{quantity} {show(value)}; 90 % interval {interval}"
    text += f"\n{pair['verdict']}"
    if "p_strong" in pair:
        side = "more" if quantity.sign > 0 else "less"
        threshold = f"a pKd of {pair['strong']:g}" if quantity.affinity else f"{pair['strong']:g}"
        text += f"\nProbability of {threshold} or {side}: {pair['p_strong']:.0%}."
    if pair["far"]:
        text += f"\nOutside the training data: {pair['why_far']}."
    return text
