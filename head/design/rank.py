"""``rank``: from a table of predictions to the list of pairs to order.

Pairs that are measured, repeated or far from the training set are left out and counted; a rule
scores the others, and a batch of the best, or of the best that differ, is written with all columns
of its rows. R rows, B pairs of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from abag.core import messages
from abag.core.arrays import Bools
from abag.embed.sequences.table_writer import TableWriter
from abag.embed.sequences.tables import TableLike
from abag.head.design.batches import (
    BatchSummary,
    Order,
    choose_batch,
    order_groups,
    pool_size,
)
from abag.head.design.candidates import (
    Candidates,
    CannotRank,
    Measured,
    read_candidates,
    read_measured,
    read_pool,
    with_antigen,
)
from abag.head.design.options import RankOptions
from abag.head.design.rules import RULES
from abag.head.prediction.inputs import check_table_out

SHOWN_BATCHES = 5


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
    correlation: float
    batches: list[BatchSummary]


def _in_words(options: RankOptions) -> str:
    """Say by what pairs are chosen."""
    return {
        "mean": "highest prediction",
        "ucb": f"highest prediction + {1 if options.explore is None else options.explore:g} sigma",
        "improvement": "largest expected improvement",
        "probability": f"most probably above {options.above} pKd",
    }[options.rule]


def describe_rank(summary: RankSummary) -> str:
    """Describe the batches in a few lines."""
    lines = []
    for batch in summary["batches"][:SHOWN_BATCHES]:
        of = f" for {batch['antigen']}" if batch["antigen"] else ""
        low, high = batch["predicted"]
        lines.append(
            f"Chose {batch['pairs']:,} of {batch['candidates']:,} candidates{of} "
            f"({summary['chosen_by']}): predicted pKd {low:.2f} to {high:.2f}"
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
    lines = [
        f"expected   best {batch['expected_best']:.2f} pKd (90 % interval {low:.2f} to "
        f"{high:.2f}), if the errors have a correlation of {summary['correlation']:g}"
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
        output of `predict`, or any table with such columns. Pairs that are ``far`` are left out
        unless ``keep_far``.
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
        ``out``, ``rule``, ``rows``, ``left_out`` by reason, ``above``, ``correlation``, and
        ``batches``: one, or one per antigen, with what measuring it is expected to give.

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
        chosen = with_antigen(predictions, chosen)
        candidates = read_candidates(predictions, chosen)
        _refuse_missing_sigma(candidates, chosen)
        measured = None
        if chosen.measured is not None:
            measured = read_measured(chosen.measured, candidates, chosen)
        left_out = _left_out(candidates, measured, chosen)
        counts = {reason: int(rows.sum()) for reason, rows in left_out.items()}
        _say_left_out(candidates, counts)
        orders = order_groups(
            candidates, ~np.any(list(left_out.values()), axis=0), measured, chosen
        )
        for one in orders:
            _refuse_too_few(candidates, one, counts, chosen)
        top = [one.rows[: pool_size(chosen)] for one in orders]
        pool = read_pool(predictions, chosen, candidates, np.concatenate(top))
        batches = [choose_batch(candidates, one, pool, chosen) for one in orders]
        if chosen.keep_far:
            far = sum(int(candidates.far[batch.rows].sum()) for batch in batches)
            messages.say(f"{far:,} of the chosen pairs are far from all that was measured")
        with TableWriter(out) as writer:
            for batch in batches:
                writer.write(batch.frame)
    return {
        "out": str(out),
        "rule": chosen.rule,
        "chosen_by": _in_words(chosen),
        "rows": len(candidates.row),
        "left_out": counts,
        "above": chosen.above,
        "correlation": chosen.correlation,
        "batches": [batch.summary for batch in batches],
    }


def _refuse_missing_sigma(candidates: Candidates, options: RankOptions) -> None:
    if candidates.sigma is None and RULES[options.rule].needs_sigma:
        msg = (
            f"{candidates.source}: no column for sigma, which --rule {options.rule} needs; "
            "expected the standard error of each prediction. Name it with --column sigma=NAME, "
            "or use --rule mean."
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
        found["far"] = candidates.far & ~np.any(list(found.values()), axis=0)
    return found


def _say_left_out(candidates: Candidates, counts: dict[str, int]) -> None:
    words = {
        "repeated": "repeat a pair",
        "measured": "are measured",
        "far": "are far from all that the run has measured (--keep-far keeps them)",
    }
    # 0 measured is told, too: the sequences of the two tables may be cut differently
    told = [reason for reason, n in counts.items() if n or reason == "measured"]
    if told:
        parts = ", ".join(f"{counts[reason]:,} {words[reason]}" for reason in told)
        messages.say(f"{candidates.source}: of {len(candidates.row):,} rows, left out: {parts}")


def _refuse_too_few(
    candidates: Candidates, order: Order, counts: dict[str, int], options: RankOptions
) -> None:
    """Refuse a batch that is larger than what is left."""
    left = len(order.rows)
    if left >= options.batch:
        return
    of = "" if order.antigen is None else f" of antigen {order.antigen + 1}"
    out = ", ".join(f"{n:,} {reason}" for reason, n in counts.items() if n) or "none"
    fixes = [f"--batch {left}"] * (left > 0) + ["--keep-far"] * (counts.get("far", 0) > 0)
    msg = (
        f"{candidates.source}: {left:,} of {len(candidates.row):,} rows are left{of} (left out: "
        f"{out}); expected at least {options.batch:,}. Use "
        f"{' or '.join([*fixes, 'more predictions'])}."
    )
    raise CannotRank(msg)
