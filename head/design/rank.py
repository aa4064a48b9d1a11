"""``rank``: from a table of predictions to the list of pairs to order.

Pairs that are measured, repeated or outside the training data are left out and counted; a rule
scores the others, and a batch of the best is written with all columns of its rows, with at most so
many mutants of one position as the user allows. Candidates with the same
prediction differ in sigma, and by rounding: an order by these is none of the model. They get one
score, and places that are drawn. R rows, B pairs of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats, Ints
from abag.core.errors import OptionError, PredictionError
from abag.core.messages import counted, reporting, say
from abag.embed.tables.chains import KINDS, Kind
from abag.embed.tables.layout import NOTHING, Layout
from abag.embed.tables.table import TableLike
from abag.head.design.batches import (
    RULES,
    Aim,
    Expectation,
    Hits,
    best_first,
    choose_capped,
    expect_hits,
    known_errors,
    pareto_order,
    probability_above,
)
from abag.head.design.candidates import (
    SITE_COLUMNS,
    UNNAMED_ANTIGEN,
    Candidates,
    Measured,
    OrderList,
    SecondProperty,
    decide_reading,
    far_by_chains,
    molar_mass_of,
    read_all_measured,
    read_candidates,
    read_chosen_rows,
    say_if_measured,
    signed,
    sites_of,
)
from abag.head.evaluation.scores import is_by_chance
from abag.head.labels.headers import OUTSIDE, PKD, SECOND_COLUMNS, Quantity
from abag.head.predictor.folder import load_predictor
from abag.head.predictor.options import EXPLORE, RankOptions
from abag.head.predictor.predictor import Predictor
from abag.head.predictor.scoring import (
    check_table_out,
    equal_groups,
    file_stamps,
    has_types,
    in_memory,
    refuse_changed,
    rounded,
    writing,
)
from abag.head.regimes.splits import REGIMES, words_of
from abag.head.runs.rounds import describe_batches
from abag.head.runs.run_folder import naming_damage, read_summary

SEED = 0
"""Of the draws among pairs with the same prediction."""
MOST_DRAWN = 0.5
"""Share of a batch that may be drawn for its best pair to be expected, and from which the summary
says that the ranking of such pairs is not shown to be better than random."""


def number_equal(candidates: Candidates, eligible: Ints) -> Ints:
    """Number the groups of eligible candidates with the same prediction, (R,); -1: in none."""
    mean = candidates.mean[eligible]
    sigma = np.zeros(len(mean)) if candidates.sigma is None else candidates.sigma[eligible]
    groupings = list[Ints]()
    if "regime" in candidates.frame:
        regime = pd.factorize(candidates.frame["regime"].iloc[eligible])[0]
        antigen = candidates.antigens.of_row[eligible]
        groupings = [regime, regime * (antigen.max(initial=0) + 1) + antigen]
    group = np.full(len(candidates.mean), -1)
    group[eligible] = equal_groups(mean, sigma, groupings)
    return group


def levelled(candidates: Candidates, equal: Ints) -> Candidates:
    """Return candidates of which a group has one prediction and one sigma, its medians."""
    frame = candidates.frame
    levels = {}
    for name in frame.columns.intersection(["mean", "sigma", "sigma_model"]):
        medians = frame[name].groupby(equal).transform("median")
        # those in no group have the number -1, and keep their values
        levels[name] = frame[name].mask(equal >= 0, medians)
    return replace(candidates, frame=frame.assign(**levels))


def number_ties(values_E2: Floats) -> Ints:
    """Number the groups of E candidates of which both values are the same, (E,); -1: in none."""
    values = pd.DataFrame(values_E2)
    number = np.full(len(values), -1)
    tied = np.flatnonzero(values.duplicated(keep=False))
    number[tied] = values.iloc[tied].groupby([0, 1], sort=False).ngroup()
    return number


def draw_places(tie: Ints, candidates: Candidates, eligible: Ints) -> Ints:
    """Return what orders tied ones among E eligible candidates, (E,), whatever their rows are."""
    place = np.arange(len(tie))
    tied = np.flatnonzero(tie >= 0)
    keys = []
    for sequences in (candidates.antibodies, candidates.antigens):
        keys.append(sequences.keys[sequences.of_row[eligible[tied]]].view(">u8").T)
    drawn = np.random.default_rng(SEED).permutation(len(tied))
    place[tied[np.lexsort(np.concatenate(keys))]] = drawn
    return place


class Drawn(NamedTuple):
    """Say how many pairs of a batch were drawn among those with the same prediction."""

    pairs: int
    tied: int
    """Candidates among which they were drawn."""
    all_equal: bool
    """Whether all candidates are the same: then all are drawn, even if there are no others."""


def count_drawn(tie: Ints, is_chosen: Bools) -> Drawn:
    """Count the chosen of E candidates beside which others could have been chosen as well."""
    if len(tie) > 1 and (tie == 0).all():
        return Drawn(int(is_chosen.sum()), len(tie), all_equal=True)
    drawn = tie[is_chosen & (tie >= 0) & np.isin(tie, tie[~is_chosen])]
    return Drawn(len(drawn), int(np.isin(tie, drawn).sum()), all_equal=False)


def say_unranked(
    candidates: Candidates,
    batch: Ints,
    drawn: Drawn,
    predictor: Predictor | None,
) -> str | None:
    """Say what the model does not rank; return why the batch may be no choice of it, if so."""
    quantity = candidates.quantity
    size = len(batch)
    if drawn.all_equal:
        why = f"all {counted(drawn.tied, 'candidate')} have the same prediction"
        prediction = quantity.show(quantity.sign * candidates.mean[batch[0]])
        say(
            f"{candidates.source}: {why}, {quantity} {prediction}: the model cannot rank them, and "
            f"the batch is drawn at random (seed {SEED}). Measure it and fit again, or fit with "
            "other encoders"
        )
        return why
    if drawn.pairs:
        verb = "is" if drawn.pairs == 1 else "are"
        tied = counted(drawn.tied, "candidate")
        why = (
            f"{drawn.pairs:,} of {counted(size, 'pair')} {verb} drawn at random (seed {SEED}) from "
            f"{tied} with the same predictions, which the model cannot rank"
        )
        if drawn.pairs > MOST_DRAWN * size:  # then the summary says so
            return why
        say(f"{candidates.source}: {why}")
    if predictor is None or "regime" not in candidates.frame:
        return None
    rows_of = candidates.frame["regime"].iloc[batch].dropna().astype(str).value_counts().to_dict()
    by_chance = [name for name in rows_of if name in REGIMES and not _is_ranked(name, predictor)]
    unranked = sum(rows_of[name] for name in by_chance)
    if not unranked:
        return None
    words = "; ".join(map(predictor.words, by_chance))
    why = (
        f"ranking is not shown to be better than random for {unranked:,} of "
        f"{counted(size, 'pair')} ({words})"
    )
    if unranked > MOST_DRAWN * size:
        return why
    say(f"{candidates.source}: {why}")
    return None


def _is_ranked(regime: str, predictor: Predictor) -> bool:
    """Return whether nothing says that the run ranks pairs of a regime by chance.

    The evidence is of the regime itself, or of a newer one that was measured in its place.
    """
    is_covered, used = predictor.applied(regime)
    return is_covered and not is_by_chance(predictor.regimes[used].verdict)


MOST_AT_ONE_POSITION = 0.5
"""Share of a batch above which a warning says that it changes one position."""


class SecondSummary(TypedDict):
    """What `RankSummary` says of a second property."""

    source: str
    quantity: dict[str, Any]
    above: float | None
    predicted: tuple[float, float]
    fronts: int | None
    """Pareto fronts of which the batch is; None if a value had to be reached."""


class RankSummary(TypedDict):
    """Result of `rank`: the keys of ``abag rank --json``."""

    out: str
    rule: str
    chosen_by: str
    rows: int
    """Valid rows of the predictions."""
    left_out: dict[str, int]
    """Rows by why they could not be chosen; each row counts once."""
    above: float | None
    pairs: int
    candidates: int
    can_rank: bool
    """Whether most of the batch follows from an order that the model gives, and that is shown to be
    better than random."""
    why_not: str | None
    """Why that is not shown, or why most of the batch is drawn."""
    drawn: int
    """Pairs that were drawn at random among those with the same prediction."""
    seed: int
    """Of these draws."""
    predicted: tuple[float, float]
    best_measured: float | None
    expected_best: float | None
    """Without sigma, or if most of the batch is drawn, nothing that follows is known."""
    best_interval: tuple[float, float] | None
    expected_above: float | None
    above_interval: tuple[float, float] | None
    quantity: NotRequired[dict[str, Any]]
    """What is predicted, if it is no affinity."""
    second: NotRequired[SecondSummary]


def describe_rank(summary: RankSummary) -> str:
    """Describe the batch in a few lines."""
    low, high = summary["predicted"]
    quantity = Quantity.of_json(summary["quantity"]) if "quantity" in summary else PKD
    show = quantity.show
    reach = "above" if quantity.sign > 0 else "below"
    of_what = quantity.named(-1 if quantity.sign > 0 else 0) if quantity.classes else ""
    lines = [
        f"Chose {summary['pairs']:,} of {summary['candidates']:,} ({summary['chosen_by']}). "
        f"Predicted {quantity}: {show(low)} to {show(high)}."
    ]
    is_drawn = summary["drawn"] > MOST_DRAWN * summary["pairs"]
    if summary["why_not"] is not None and is_drawn:
        lines.append(f"expected   no better than a random batch: {summary['why_not']}")
    elif summary["why_not"] is not None:
        lines.append(f"note       {summary['why_not']}")
    if summary["expected_best"] is not None and summary["best_interval"] is not None:
        low, high = summary["best_interval"]
        lines.append(
            f"expected   best {quantity} {show(summary['expected_best'])} (90 % interval "
            f"{show(low)} to {show(high)})"
        )
    if summary["expected_above"] is not None and summary["above_interval"] is not None:
        few, many = summary["above_interval"]
        lines.append(
            f"expected   {summary['expected_above']:.1f} of {counted(summary['pairs'], 'pair')} "
            f"{of_what} (90 % interval {few:.0f} to {many:.0f})"
            if of_what
            else f"           {summary['expected_above']:.1f} pairs {reach} {summary['above']:g} "
            f"({few:.0f} to {many:.0f})"
        )
    if "second" in summary:
        lines.append(_describe_second(summary["second"]))
    if summary["out"]:
        lines.append(f"order      {summary['out']}")
    return "\n".join(lines)


def _describe_second(second: SecondSummary) -> str:
    quantity = Quantity.of_json(second["quantity"])
    low, high = (quantity.show(value) for value in second["predicted"])
    how = ""
    if second["fronts"] is not None:
        how = f", {counted(second['fronts'], 'Pareto front')} of both"
    return f"second     predicted {quantity}: {low} to {high} ({second['source']}){how}"


def rank(
    predictions: TableLike,
    out: Path | str | None = None,
    *,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of RankOptions
) -> RankSummary | pd.DataFrame:
    """Choose the pairs to measure next: return, or write, them in the order of their scores.

    Parameters
    ----------
    predictions : path or DataFrame
        Pairs with a predicted pKd and, for rules that need it, its standard error ``sigma``: the
        output of `predict` or `scan`, or any table with such columns. Pairs that are ``far``,
        outside the training data, are left out unless ``keep_far``.
    out : path, optional
        Its suffix decides on the format; written whole or not at all. Holds the rows of the batch
        with all their columns, ``rank``, ``score`` (what the rule gives; ``rank_score`` if the
        table has a column ``score``), with sigma
        ``expected_best`` (of the pairs up to this rank, in pKd; not if most of the batch is drawn),
        and with ``above`` ``probability_above``.
    progress : bool
        Show progress bars on stderr.
    **options
        Fields of `RankOptions`.

    Returns
    -------
    RankSummary or DataFrame
        Without ``out``, what would be written, as a table of the kind that `predictions` is, with
        its index; what the batch is expected to hold is then said.

    Raises
    ------
    PredictionError
        If fewer pairs are left than the batch needs, or the rule needs sigma and there is none.
    AbagError
        If a table or an option is invalid. ``out`` is then unchanged.
    """
    chosen = RankOptions.from_keywords(options, "rank")
    out = None if out is None else Path(out)
    with reporting(bars=progress):
        read = (predictions, chosen.measured, chosen.second, *chosen.sequences)
        check_table_out(out, sources=read, force=chosen.force)
        if chosen.ordered is not None:
            orders_path = Path(chosen.ordered)
            check_table_out(orders_path, sources=(*read, out), force=True, option="--ordered")
        before = file_stamps(predictions)
        predictor = None if chosen.run is None else load_predictor(chosen.run)
        layout, quantity = decide_reading(predictions, chosen, predictor)
        reading_options = layout.files[0].options
        chosen = replace(
            chosen,
            antibody_region=reading_options.antibody_region,
            antigen=reading_options.antigen,
            bad_rows=reading_options.bad_rows,
            chains=reading_options.chains,
            no_antigen=reading_options.no_antigen,
        )
        candidates, second = _read_predictions(layout, quantity, chosen, predictor)
        chosen = _toward_higher(chosen, quantity)  # as candidates are from here on
        names_none = chosen.antigen == UNNAMED_ANTIGEN
        kinds = KINDS[:1] if names_none else reading_options.kinds
        _say_regimes(candidates, predictor, kinds)
        _refuse_missing_columns(candidates, chosen)
        reading = NOTHING if predictor is None else predictor.layout
        measured = read_all_measured(candidates, chosen, reading)
        orders = None
        if chosen.ordered is not None:
            orders = OrderList.read(Path(chosen.ordered), out, candidates, chosen)
        left_out = _left_out(candidates, measured, orders, second, chosen)
        counts = {reason: int(rows.sum()) for reason, rows in left_out.items()}
        eligible = np.flatnonzero(~np.any(list(left_out.values()), axis=0))
        _refuse_too_few(candidates, len(eligible), counts, chosen)
        best = chosen.best
        if chosen.rule == "improvement" and best is None:
            best = _best(candidates, measured)
        batch = _choose_batch(candidates, eligible, best, second, chosen, predictor)
        _say_kept(candidates, batch.index, chosen)
        if chosen.run is not None:
            _say_earlier_batches(Path(chosen.run), quantity)
        rows = candidates.frame["row"].to_numpy()[batch.index]
        frame = read_chosen_rows(layout, rows, typed=has_types(out))
        say_if_measured(frame, chosen, leaves_out=bool(measured))
        frame = _with_scores(frame, candidates, batch, second, chosen)
        summary = _summarize(candidates, batch, counts, second, chosen, out)
        frames = list[pd.DataFrame]()
        with writing(out, frames) as write:
            write(_rounded(frame, candidates, out))
            # inside the block, so that an existing file stays as it is
            refuse_changed(predictions, before)
            if orders is not None:  # before the order appears: no pair may be on two orders
                orders.add(candidates, batch.index)
        if out is None:
            for line in describe_rank(summary).splitlines():
                say(line)
            return in_memory(frames, predictions)
    return summary


def _read_predictions(
    layout: Layout, quantity: Quantity, options: RankOptions, predictor: Predictor | None
) -> tuple[Candidates, SecondProperty | None]:
    """Read the candidates, with predictions of which higher is better, and a second property."""
    more = () if options.second is None else SECOND_COLUMNS
    candidates = read_candidates(layout, quantity, molar_mass_of(options), more)
    if predictor is not None:
        candidates = far_by_chains(candidates, predictor)
    frame = candidates.frame
    second = None
    if options.second is not None:
        second = SecondProperty.read(options.second, candidates, options)
        frame = frame.assign(far=frame["far"].to_numpy(np.bool_) | second.far)
    frame = frame.assign(mean=quantity.sign * frame["mean"])
    return replace(candidates, frame=frame), second


def _toward_higher(options: RankOptions, quantity: Quantity) -> RankOptions:
    """Return the options with values of which higher is better; refuse those that do not fit."""
    _refuse_of_numbers(options, quantity)
    quantity.check_threshold(options.above, "--above")
    quantity.check_threshold(options.best, "--best")
    sign = quantity.sign
    return replace(options, best=signed(options.best, sign), above=signed(options.above, sign))


def _rounded(frame: pd.DataFrame, candidates: Candidates, out: Path | None) -> pd.DataFrame:
    """Round the columns of a batch that abag has written."""
    names = [*map(str, frame.columns)]
    if candidates.quantity.affinity:  # a column called "predicted" is then the user's own
        names = [name for name in names if name not in OUTSIDE]
    if candidates.score_column != "score":  # so is one called "score"
        names.remove("score")
    return rounded(frame, out, names, candidates.quantity.digits(float(candidates.mean.std())))


def _with_scores(
    frame: pd.DataFrame,
    candidates: Candidates,
    batch: _Batch,
    second: SecondProperty | None,
    options: RankOptions,
) -> pd.DataFrame:
    """Add the ranks and scores of a batch to its rows, in the direction of the quantity."""
    sign = candidates.quantity.sign
    value_sign = sign if options.rule in ("mean", "ucb") else 1
    frame = frame.assign(rank=np.arange(1, len(batch.index) + 1))
    frame[candidates.score_column] = value_sign * batch.score
    if batch.expected is not None:
        frame = frame.assign(expected_best=sign * batch.expected.best_of_first)
    if candidates.sigma is not None and options.above is not None:
        mean = candidates.mean[batch.index]
        sigma = candidates.sigma[batch.index]
        frame["probability_above"] = probability_above(mean, sigma, Aim(above=options.above))
    return frame if second is None else frame.assign(**second.columns(batch.index, batch.front))


def _summarize(
    candidates: Candidates,
    batch: _Batch,
    left_out: dict[str, int],
    second: SecondProperty | None,
    options: RankOptions,
    out: Path | None,
) -> RankSummary:
    quantity = candidates.quantity
    sign = quantity.sign
    pairs = len(batch.index)
    predicted = sign * candidates.mean[batch.index]
    expected = batch.expected
    interval = None
    if expected is not None:
        low, high = sorted(sign * end for end in expected.best_interval)
        interval = (low, high)
    summary: RankSummary = {
        "out": "" if out is None else str(out),
        "rule": options.rule,
        "chosen_by": _in_words(options, batch.drawn, pairs, candidates),
        "rows": len(candidates.frame),
        "left_out": left_out,
        "above": signed(options.above, sign),
        "pairs": pairs,
        "candidates": batch.eligible,
        "can_rank": batch.why_not is None,
        "why_not": batch.why_not,
        "drawn": batch.drawn,
        "seed": SEED,
        "predicted": (float(predicted.min()), float(predicted.max())),
        "best_measured": signed(batch.best, sign),
        "expected_best": None if expected is None else sign * float(expected.best_of_first[-1]),
        "best_interval": interval,
        "expected_above": None if batch.hits is None else batch.hits.expected,
        "above_interval": None if batch.hits is None else batch.hits.interval,
    }
    if not quantity.affinity:
        summary["quantity"] = quantity.to_json()
    if second is not None:
        summary["second"] = _summarize_second(second, batch)
    return summary


def _summarize_second(second: SecondProperty, batch: _Batch) -> SecondSummary:
    chosen = second.mean[batch.index]
    return {
        "source": second.source,
        "quantity": second.quantity.to_json(),
        "above": second.above,
        "predicted": (float(chosen.min()), float(chosen.max())),
        "fronts": None if batch.front is None else int(batch.front[batch.index].max()),
    }


def _in_words(options: RankOptions, drawn: int, batch: int, candidates: Candidates) -> str:
    at_random = f"at random, seed {SEED}"
    if drawn == batch:
        return at_random
    quantity = candidates.quantity
    higher = quantity.sign > 0
    rule = f"{'highest' if higher else 'lowest'} prediction"
    if options.rule == "improvement":
        rule = "largest expected improvement"
    elif options.rule == "probability":
        side = "above" if higher else "below"
        rule = f"most probably {side} {signed(options.above, quantity.sign)} {quantity}"
    elif options.rule == "ucb" and (explore := _explore(options)):
        rule += f" {'+' if higher else '-'} {explore:g} {candidates.explored}"
    if options.second is not None and options.second_above is None:
        rule = f"Pareto fronts of {rule} and of the second property"
    return f"{rule}; {drawn:,} {at_random}" if drawn else rule


def _refuse_of_numbers(options: RankOptions, quantity: Quantity) -> None:
    """Refuse rules and values of numbers where predictions are probabilities of classes."""
    given = options.given({"above", "best"})
    if options.rule in ("improvement", "probability"):
        given = f"--rule {options.rule}"
    if quantity.classes and given:
        msg = (
            f"{given}: is of numbers, and the predictions are {quantity.description}; expected "
            "--rule mean, the most probable first, or ucb. Leave it out."
        )
        raise OptionError(msg)


# ---- what can be chosen --------------------------------------------------------------------------


def _say_regimes(
    candidates: Candidates, predictor: Predictor | None, kinds: Sequence[Kind]
) -> None:
    """Say what the run has shown for the regimes of the candidates, if they have any."""
    if "regime" not in candidates.frame:
        return
    counts = candidates.frame["regime"].value_counts().to_dict()
    known_counts = {str(name): rows for name, rows in counts.items() if name in REGIMES}
    if predictor is not None:
        predictor.say_verdicts(known_counts, "candidate")
    elif known_counts:
        words = [f"{rows:,} ({words_of(name, kinds)})" for name, rows in known_counts.items()]
        say(
            f"candidates: {'; '.join(words)}. With --run, rank says how well it predicts these, "
            "and expects more exactly what a batch holds."
        )


def _say_earlier_batches(run: Path, quantity: Quantity) -> None:
    """Say what errors the predictions of earlier batches of a campaign had, if it has any."""
    if (run / "summary.json").exists():  # else it is a predictor without its run
        for line in describe_batches(read_summary(run).get("rounds", ()), quantity):
            say(f"{run}: {line}")


def _refuse_missing_columns(candidates: Candidates, options: RankOptions) -> None:
    if candidates.sigma is None and options.rule != "mean":
        msg = (
            f"{candidates.source}: no column for sigma, which --rule {options.rule} needs; "
            "expected the standard error of each prediction. Name it with --column sigma=NAME, "
            "or use --rule mean."
        )
        raise PredictionError(msg)
    if options.per_position is not None and "site" not in candidates.frame:
        names = " and ".join(SITE_COLUMNS)
        msg = (
            f"{candidates.source}: no columns {names}, which --per-position needs; expected the "
            "table of abag scan. Leave --per-position out."
        )
        raise PredictionError(msg)


def _left_out(
    candidates: Candidates,
    measured: Sequence[Measured],
    orders: OrderList | None,
    second: SecondProperty | None,
    options: RankOptions,
) -> dict[str, Bools]:
    """Return which rows cannot be chosen, (R,), by reason, and say so; each has at most one."""
    found = {"repeated": (candidates.repeated(), "repeat a pair")}
    if measured:
        is_measured = np.any([table.is_measured for table in measured], axis=0)
        found["measured"] = (is_measured, "already measured")
    if orders is not None:
        found["ordered"] = (orders.is_out, f"ordered and not measured yet ({orders.path.name})")
    if not options.keep_far:
        far = candidates.frame["far"].to_numpy(np.bool_)
        found["far"] = (far, "outside the training data (--keep-far keeps them)")
    if second is not None:
        found |= second.reasons()
    is_left = np.ones(len(candidates.frame), np.bool_)
    reasons = {}
    told = []
    for name, (is_out, words) in found.items():
        reasons[name] = is_out & is_left
        is_left &= ~is_out
        # 0 measured is told, too: the sequences of the two tables may be cut differently
        if reasons[name].any() or name == "measured":
            told.append(f"{reasons[name].sum():,} {words}")
    if told:
        rows = counted(len(candidates.frame), "row")
        say(f"{candidates.source}: of {rows}, left out: {', '.join(told)}")
    return reasons


def _best(candidates: Candidates, measured: Sequence[Measured]) -> float:
    """Return the best measured label, of which higher is better, as of the candidates."""
    best_of_tables = [labels.best(candidates.quantity) for labels in measured]
    known = [value for value in best_of_tables if value is not None]
    if known:
        return max(known)
    if measured:
        sources = ", ".join(labels.table.source for labels in measured)
        msg = (
            f"{sources}: no measured pair has the antigen of the predictions; expected "
            "some for --rule improvement. Give --best PKD."
        )
        raise PredictionError(msg)
    msg = (
        f"{candidates.source}: the run has no measured pairs, as a shared predictor; expected "
        "the best measured label for --rule improvement. Add --best PKD or --measured TABLE."
    )
    raise PredictionError(msg)


def _refuse_too_few(
    candidates: Candidates, left: int, counts: dict[str, int], options: RankOptions
) -> None:
    if left >= options.batch:
        return
    words = {"second": "by --second-above"}
    out = ", ".join(f"{n:,} {words.get(why, why)}" for why, n in counts.items() if n) or "none"
    rows = counted(len(candidates.frame), "row")
    fixes = ["more predictions"]
    if counts.get("second", 0):
        fixes.insert(0, "another --second-above")
    if counts.get("far", 0):
        fixes.insert(0, "--keep-far")
    if left:
        fixes.insert(0, f"--batch {left}")
    msg = (
        f"{candidates.source}: {left:,} of {rows} are left (left out: {out}); expected at least "
        f"{options.batch:,}. Use {' or '.join(fixes)}."
    )
    raise PredictionError(msg)


# ---- the batch -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Hold the B chosen pairs in their order, of values of which higher is better."""

    index: Ints
    """Index of each pair among the candidates, (B,)."""
    score: Floats
    """What the rule gives, (B,)."""
    best: float | None
    """Best measured label, if it is known."""
    eligible: int
    """Candidates that could be chosen."""
    drawn: int
    """Pairs that were drawn at random among those with the same prediction."""
    why_not: str | None
    """Why the batch does not follow from the model; None if it does."""
    expected: Expectation | None
    """None without sigma, or if most of the batch is drawn."""
    front: Ints | None
    """Number of the Pareto front of each candidate, (R,); None unless these order them."""
    hits: Hits | None
    """How many reach the threshold, or are of the class that is looked for."""


def _choose_batch(
    candidates: Candidates,
    eligible: Ints,
    best: float | None,
    second: SecondProperty | None,
    options: RankOptions,
    predictor: Predictor | None,
) -> _Batch:
    """Order the eligible candidates by their scores, and take the best that the limits allow.

    With a second property that need not reach a value, they are ordered by Pareto fronts of both.
    """
    quantity = candidates.quantity
    level = levelled(candidates, number_equal(candidates, eligible))
    score = _score(level, best, options)
    by_fronts = second is not None and second.above is None
    value = second.value if second is not None and by_fronts else level.mean
    tie = number_ties(np.stack([score, value], axis=1)[eligible])
    places = draw_places(tie, candidates, eligible)
    front = None
    if by_fronts:
        order, fronts = pareto_order(score[eligible], value[eligible], places)
        front = np.zeros(len(score), np.int64)
        front[eligible] = fronts
    else:
        order = best_first(score[eligible], value[eligible], places)
    index = _choose(candidates, eligible[order], options)
    drawn = count_drawn(tie, np.isin(eligible, index))
    why_not = say_unranked(candidates, index, drawn, predictor)
    is_drawn = drawn.pairs > MOST_DRAWN * len(index)
    expected = None
    hits: Hits | None = None
    if quantity.classes:
        if "hit" in candidates.frame and not is_drawn:
            chosen = candidates.frame[["hit", "hit_unknown"]].iloc[index]
            hits = expect_hits(*chosen.to_numpy(np.float64).T)
    elif candidates.sigma is not None and not is_drawn:
        regimes = set[str]()
        if "regime" in candidates.frame:
            regimes = {*candidates.frame["regime"].iloc[index].dropna().astype(str)}
        of_abag = options.run is not None or "sigma_model" in candidates.frame
        run = None if options.run is None else Path(options.run)
        with naming_damage(run or Path()):
            known = known_errors(run, regimes, quantity, of_abag=of_abag)
        expected = known.expect(
            candidates.mean[index],
            candidates.sigma[index],
            candidates.antibodies.of_row[index].astype(np.int64),
            candidates.antigens.of_row[index].astype(np.int64),
            above=_or_nan(options.above),
        )
        if options.above is not None:
            hits = Hits(expected.above, expected.above_interval)
    return _Batch(
        index=index,
        score=score[index],
        best=best,
        eligible=len(eligible),
        drawn=drawn.pairs,
        why_not=why_not,
        expected=expected,
        front=front,
        hits=hits,
    )


def _score(candidates: Candidates, best: float | None, options: RankOptions) -> Floats:
    aim = Aim(_explore(options), best=_or_nan(best), above=_or_nan(options.above))
    sigma = candidates.sigma
    # measurements reduce what the model does not know, not the noise of the assay
    if sigma is not None and options.rule in ("ucb", "improvement"):
        sigma = candidates.frame[candidates.explored].to_numpy(np.float64)
    mean = candidates.mean
    return RULES[options.rule](mean, np.zeros_like(mean) if sigma is None else sigma, aim)


def _explore(options: RankOptions) -> float:
    return EXPLORE if options.explore is None else options.explore


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _choose(candidates: Candidates, order: Ints, options: RankOptions) -> Ints:
    """Take the first candidates of an order that the limit on mutants of one position allows."""
    most = options.per_position
    if most is None:
        return order[: options.batch]
    chosen = choose_capped(order, options.batch, sites_of(candidates.frame["site"]), most)
    if len(chosen) < options.batch:
        msg = (
            f"{candidates.source}: --per-position {most} allows {counted(len(chosen), 'pair')}; "
            f"expected {options.batch:,}. Raise the limit, or use --batch {len(chosen)}."
        )
        raise PredictionError(msg)
    return chosen


def _say_kept(candidates: Candidates, chosen: Ints, options: RankOptions) -> None:
    frame = candidates.frame.iloc[chosen]
    if options.keep_far:
        say(f"outside the training data: {counted(int(frame['far'].sum()), 'chosen pair')}")
    if "site" in frame and options.per_position is None:
        count = Counter(chain.from_iterable(sites_of(frame["site"])))
        for site, most in count.most_common(1):  # none, if no row names its mutations
            if most > MOST_AT_ONE_POSITION * len(frame) and most > 1:
                say(
                    f"{most:,} of the {len(frame):,} chosen pairs change {site}: if the model is "
                    "wrong there, most of the batch is lost. --per-position N spreads it."
                )
