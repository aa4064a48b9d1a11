"""``rank``: from a table of predictions to the list of pairs to order.

Pairs that are measured, repeated or outside the training data are left out and counted; a rule
scores the others, and a batch of the best is written with all columns of its rows, with at most so
many near-duplicates or mutants of one position as the user allows. R rows, B pairs of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd

from abag.core import messages
from abag.core.arrays import Bools, Floats, Ints
from abag.embed.sequences.table_writer import TableWriter
from abag.embed.sequences.tables import TableLike
from abag.head.design.batches import (
    RULES,
    Aim,
    Cap,
    best_first,
    choose_capped,
    expect,
    probability_above,
)
from abag.head.design.candidates import (
    SITE_COLUMNS,
    Candidates,
    CannotRank,
    Measured,
    read_candidates,
    read_measured,
    read_rows,
    sites_of,
    with_antigen,
)
from abag.head.design.options import RankOptions
from abag.head.prediction.bundle import load_predictor
from abag.head.prediction.tables import (
    check_table_out,
    file_stamps,
    refuse_changed,
    rounded,
    say_verdicts,
)
from abag.head.regimes.clusters import antibody_clusters
from abag.head.regimes.regimes import REGIMES

if TYPE_CHECKING:
    from abag.embed.sequences.tables import Table

SHOWN_BATCHES = 5
IDENTITY = 0.98
"""Of antibodies of one cluster, for ``--per-cluster``."""
POOL = 4
"""Clusters are computed of the best 4 candidates per pair of a batch, and of more if they must."""
MOST_AT_ONE_POSITION = 0.5
"""Share of a batch above which a warning says that it changes one position."""


class BatchSummary(TypedDict):
    """One batch, and what measuring it is expected to give; None without sigma."""

    antigen: str | None
    """Name of the antigen; None if the batch is of all antigens."""
    pairs: int
    candidates: int
    predicted: tuple[float, float]
    """Smallest and largest predicted pKd."""
    best_measured: float | None
    expected_best: float | None
    best_interval: tuple[float, float] | None
    """Central 90 % of the best pKd."""
    expected_above: float | None
    above_interval: tuple[float, float] | None


class RankSummary(TypedDict):
    """What `rank` returns, and ``abag rank --json`` prints."""

    out: str
    rule: str
    chosen_by: str
    """The rule in words."""
    rows: int
    """Valid rows of the predictions."""
    left_out: dict[str, int]
    """Rows by why they could not be chosen; each row counts once."""
    above: float | None
    batches: list[BatchSummary]


@dataclass(frozen=True, slots=True)
class Order:
    """The candidates of one batch, best first."""

    antigen: int | None
    """Index of their antigen; None: candidates of all antigens."""
    rows: Ints
    """Indices of the candidates."""
    score: Floats
    """What the rule gives, in the order of `rows`."""
    best_measured: float | None


def describe_rank(summary: RankSummary) -> str:
    """Describe the batches in a few lines."""
    lines = []
    for batch in summary["batches"][:SHOWN_BATCHES]:
        of = f" for {batch['antigen']}" if batch["antigen"] else ""
        low, high = batch["predicted"]
        lines.append(
            f"Chose {batch['pairs']:,} of {batch['candidates']:,}{of} ({summary['chosen_by']}). "
            f"Predicted pKd: {low:.2f} to {high:.2f}."
        )
        lines += _describe_expected(batch, summary)
    more = len(summary["batches"]) - SHOWN_BATCHES
    if more > 0:
        lines.append(f"... and {more:,} more batches")
    return "\n".join([*lines, f"order      {summary['out']}"])


def _describe_expected(batch: BatchSummary, summary: RankSummary) -> list[str]:
    if batch["expected_best"] is None or batch["best_interval"] is None:
        return []
    low, high = batch["best_interval"]
    best = batch["expected_best"]
    lines = [
        f"expected   best pKd {best:.2f} (90 % interval {low:.2f} to {high:.2f}); "
        "optimistic, by 0.4 to 0.7 in our tests: the largest predictions tend to be too large"
    ]
    if batch["expected_above"] is not None and batch["above_interval"] is not None:
        few, many = batch["above_interval"]
        lines.append(
            f"           {batch['expected_above']:.1f} pairs above {summary['above']:g} "
            f"({few:.0f} to {many:.0f})"
        )
    return lines


def rank(
    predictions: TableLike,
    out: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of RankOptions
) -> RankSummary:
    """Choose the pairs to measure next, and write them in the order of their scores.

    Parameters
    ----------
    predictions : path or DataFrame
        Pairs with a predicted pKd and, for rules that need it, its standard error ``sigma``: the
        output of `predict` or `scan`, or any table with such columns. Pairs that are ``far``,
        outside the training data, are left out unless ``keep_far``.
    out : path
        Its suffix decides on the format; written whole or not at all. Holds the rows of the batch
        with all their columns, ``rank``, ``score`` (what the rule gives), with sigma
        ``expected_best`` (of the pairs up to this rank, in pKd), and with ``above``
        ``probability_above``.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Show progress bars on stderr.
    **options
        Fields of `RankOptions`.

    Returns
    -------
    dict
        ``out``, ``rule``, ``rows``, ``left_out`` by reason, ``above``, and ``batches``: one, or one
        per antigen, with what measuring it is expected to give.

    Raises
    ------
    CannotRank
        If fewer pairs are left than the batch needs, or the rule needs sigma and there is none.
    AbagError
        If a table or an option is invalid. ``out`` is then unchanged.
    """
    chosen, out = RankOptions.from_keywords(options, "rank"), Path(out)
    with messages.reporting(say, bars=progress):
        check_table_out(out, (predictions, chosen.measured), force=chosen.force)
        before = file_stamps(predictions)
        chosen = with_antigen(predictions, chosen)
        candidates = read_candidates(predictions, chosen)
        _say_regimes(candidates, chosen)
        _refuse_missing_columns(candidates, chosen)
        measured = None
        if chosen.measured is not None:
            measured = read_measured(chosen.measured, candidates, chosen)
        left_out = _left_out(candidates, measured, chosen)
        counts = {reason: int(rows.sum()) for reason, rows in left_out.items()}
        _say_left_out(candidates, counts)
        eligible = ~np.any(list(left_out.values()), axis=0)
        orders = _order_groups(candidates, eligible, measured, chosen)
        for one in orders:
            _refuse_too_few(candidates, one, counts, chosen)
        batches = [_choose(candidates, one, chosen) for one in orders]
        _say_kept(candidates, np.concatenate(batches), chosen)
        rows = candidates.frame["row"].to_numpy()[np.concatenate(batches)]
        read = read_rows(predictions, chosen, rows)
        parts, summaries, at = list[pd.DataFrame](), list[BatchSummary](), 0
        for order, batch in zip(orders, batches, strict=True):
            own = slice(at, at := at + len(batch))
            part = _lay_out(candidates, order, batch, read, own, chosen)
            parts.append(part[0])
            summaries.append(part[1])
        with TableWriter(out) as writer:
            for frame in parts:
                writer.write(rounded(frame, out))
            refuse_changed(predictions, before)
    return {
        "out": str(out),
        "rule": chosen.rule,
        "chosen_by": _in_words(chosen),
        "rows": len(candidates.frame),
        "left_out": counts,
        "above": chosen.above,
        "batches": summaries,
    }


def _in_words(options: RankOptions) -> str:
    """Say by what pairs are chosen."""
    return {
        "mean": "highest prediction",
        "ucb": f"highest prediction + {options.explore or 1:g} sigma"
        if options.explore != 0
        else "highest prediction",
        "improvement": "largest expected improvement",
        "probability": f"most probably above {options.above} pKd",
    }[options.rule]


# ---- what can be chosen --------------------------------------------------------------------------


def _say_regimes(candidates: Candidates, options: RankOptions) -> None:
    """Say what the run has shown for the regimes of the candidates, if they have any."""
    if "regime" not in candidates.frame:
        return
    found = candidates.frame["regime"].value_counts().to_dict()
    known = {str(name): rows for name, rows in found.items() if name in REGIMES}
    if options.run is not None:
        verdicts = {n: one.verdict for n, one in load_predictor(options.run).regimes.items()}
        say_verdicts(known, verdicts, "candidates")
    elif known:
        words = ", ".join(f"{rows:,} {REGIMES[name].words}" for name, rows in known.items())
        messages.say(f"candidates: {words}. --run RUN says how well the run predicts these.")


def _refuse_missing_columns(candidates: Candidates, options: RankOptions) -> None:
    if candidates.sigma is None and options.rule != "mean":
        msg = (
            f"{candidates.source}: no column for sigma, which --rule {options.rule} needs; "
            "expected the standard error of each prediction. Name it with --column sigma=NAME, "
            "or use --rule mean."
        )
        raise CannotRank(msg)
    if options.per_position is not None and "site" not in candidates.frame:
        names = " and ".join(SITE_COLUMNS)
        msg = (
            f"{candidates.source}: no columns {names}, which --per-position needs; expected the "
            "table of abag scan. Leave --per-position out."
        )
        raise CannotRank(msg)


def _left_out(
    candidates: Candidates, measured: Measured | None, options: RankOptions
) -> dict[str, Bools]:
    """Return which rows cannot be chosen, (R,), by reason; each row has at most one."""
    found = {"repeated": candidates.repeated()}
    if measured is not None:
        found["measured"] = measured.is_measured & ~found["repeated"]
    if not options.keep_far:
        far = candidates.frame["far"].to_numpy(np.bool_)
        found["far"] = far & ~np.any(list(found.values()), axis=0)
    return found


def _say_left_out(candidates: Candidates, counts: Mapping[str, int]) -> None:
    words = {
        "repeated": "repeat a pair",
        "measured": "are measured",
        "far": "are outside the training data (--keep-far keeps them)",
    }
    # 0 measured is told, too: the sequences of the two tables may be cut differently
    told = [reason for reason, n in counts.items() if n or reason == "measured"]
    if told:
        parts = ", ".join(f"{counts[reason]:,} {words[reason]}" for reason in told)
        rows = len(candidates.frame)
        messages.say(f"{candidates.source}: of {rows:,} rows, left out: {parts}")


def _refuse_too_few(
    candidates: Candidates, order: Order, counts: Mapping[str, int], options: RankOptions
) -> None:
    """Refuse a batch that is larger than what is left."""
    left = len(order.rows)
    if left >= options.batch:
        return
    of = "" if order.antigen is None else f" of antigen {order.antigen + 1}"
    out = ", ".join(f"{n:,} {reason}" for reason, n in counts.items() if n) or "none"
    fixes = [f"--batch {left}"] * (left > 0) + ["--keep-far"] * (counts.get("far", 0) > 0)
    msg = (
        f"{candidates.source}: {left:,} of {len(candidates.frame):,} rows are left{of} (left out: "
        f"{out}); expected at least {options.batch:,}. Use "
        f"{' or '.join([*fixes, 'more predictions'])}."
    )
    raise CannotRank(msg)


# ---- the batches ---------------------------------------------------------------------------------


def _order_groups(
    candidates: Candidates, eligible: Bools, measured: Measured | None, options: RankOptions
) -> list[Order]:
    """Score the eligible candidates, (R,), and order those of all antigens, or of each."""
    groups: list[tuple[int | None, Bools]] = [(None, eligible)]
    if options.per_antigen:
        of_row = candidates.antigens.of_row
        groups = [(n, eligible & (of_row == n)) for n in range(len(candidates.antigens.chains))]
    orders = []
    for antigen, is_candidate in groups:
        rows, best = np.flatnonzero(is_candidate), options.best
        if options.rule == "improvement" and best is None and measured is not None:
            best = measured.best(antigen)
        explore = 1.0 if options.explore is None else options.explore
        aim = Aim(explore, *(np.nan if x is None else x for x in (best, options.above)))
        mean = candidates.mean[rows]
        sigma = np.zeros_like(mean) if candidates.sigma is None else candidates.sigma[rows]
        score = RULES[options.rule](mean, sigma, aim)
        order = best_first(score, mean)
        orders.append(Order(antigen, rows[order], score[order], best))
    return orders


def _choose(candidates: Candidates, order: Order, options: RankOptions) -> Ints:
    """Choose the best candidates of an order that keep to the caps, (B,)."""
    caps = []
    if options.per_position is not None:
        caps.append(Cap(sites_of(candidates.frame["site"]), options.per_position))
    if options.per_cluster is None:
        return _checked(choose_capped(order.rows, options.batch, caps), candidates, options)
    of_row, size = candidates.antibodies.of_row, POOL * options.batch
    while True:
        pool = order.rows[:size]
        used, antibody = np.unique(of_row[pool], return_inverse=True)
        chains = [candidates.antibodies.chains[n] for n in used.tolist()]
        cluster = dict(
            zip(pool.tolist(), antibody_clusters(chains, IDENTITY)[antibody], strict=True)
        )
        groups = [[cluster.get(row)] for row in range(len(candidates.frame))]
        chosen = choose_capped(pool, options.batch, [*caps, Cap(groups, options.per_cluster)])
        if len(chosen) == options.batch or size >= len(order.rows):
            return _checked(chosen, candidates, options)
        size *= POOL


def _checked(chosen: Ints, candidates: Candidates, options: RankOptions) -> Ints:
    """Return a batch, which the caps must not have left too small."""
    if len(chosen) < options.batch:
        given = {"--per-cluster": options.per_cluster, "--per-position": options.per_position}
        caps = " and ".join(f"{name} {most}" for name, most in given.items() if most is not None)
        msg = (
            f"{candidates.source}: {caps} allow {len(chosen):,} pairs; expected "
            f"{options.batch:,}. Raise the limit, or use --batch {len(chosen)}."
        )
        raise CannotRank(msg)
    return chosen


def _say_kept(candidates: Candidates, chosen: Ints, options: RankOptions) -> None:
    """Warn of pairs outside the training data, and of a batch that changes one position."""
    frame = candidates.frame.iloc[chosen]
    if options.keep_far:
        messages.say(f"{frame['far'].sum():,} of the chosen pairs are outside the training data")
    if "site" in frame and options.per_position is None:
        count = Counter(site for sites in sites_of(frame["site"]) for site in sites)
        (site, most), *_ = count.most_common(1)
        if most > MOST_AT_ONE_POSITION * len(frame) and len(count) > 0 and most > 1:
            messages.say(
                f"{most:,} of the {len(frame):,} chosen pairs change {site}: if the model is wrong "
                "there, most of the batch is lost. --per-position N spreads it."
            )


def _lay_out(
    candidates: Candidates, order: Order, batch: Ints, read: Table, own: slice, options: RankOptions
) -> tuple[pd.DataFrame, BatchSummary]:
    """Return the rows of a batch with what is added, and what measuring it should give."""
    score = pd.Series(order.score, order.rows).reindex(batch).to_numpy()
    frame = read.frame[own].assign(rank=np.arange(1, len(batch) + 1), score=score)
    name = None
    if order.antigen is not None:
        named = read.cells("antigen_name").fillna("")[own] if read.has("antigen_name") else [""]
        name = str(next(iter(named))) or f"antigen {order.antigen + 1}"
    mean = candidates.mean[batch]
    summary: BatchSummary = {
        "antigen": name,
        "pairs": len(batch),
        "candidates": len(order.rows),
        "predicted": (float(mean.min()), float(mean.max())),
        "best_measured": order.best_measured,
        "expected_best": None, "best_interval": None,
        "expected_above": None, "above_interval": None,
    }  # fmt: skip
    if candidates.sigma is not None:
        sigma, above = candidates.sigma[batch], options.above
        found = expect(mean, sigma, above=np.nan if above is None else above)
        frame = frame.assign(expected_best=found.best_of_first)
        summary["expected_best"] = float(found.best_of_first[-1])
        summary["best_interval"] = found.best_interval
        if above is not None:
            frame["probability_above"] = probability_above(mean, sigma, Aim(above=above))
            summary["expected_above"], summary["above_interval"] = found.above, found.above_interval
    return frame, summary
