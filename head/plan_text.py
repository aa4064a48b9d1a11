"""The result of ``abag plan`` as lines of text, tables included for 80 columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from abag.core.messages import align
from abag.head.fit_cost import DEFAULT_FOLDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from abag.head.plan import MachinePlan, Plan, SequencePlan

NEGLIGIBLE = 0.01
"""Share of the time of encoding below which the time of a fit is not shown."""


def describe_plan(found: Plan, *, verbose: bool = False) -> list[str]:
    """Describe a plan; with `verbose` also the lengths, and where each estimate comes from."""
    sequences = {"antibodies": found["antibodies"], "antigens": found["antigens"]}
    lines = [f"{found['table']}: {found['rows']:,} rows", found["columns"], *found["notes"]]
    lines += _sequence_table(sequences)
    for plural, one in sequences.items():
        if one["long_chains"]:
            chains = f"{plural}: {one['long_chains']:,} chains over {one['window']} residues"
            lines.append(f"{chains} are encoded in {one['windows']:,} windows")
        lines += _histogram(plural, one) if verbose else []
    if (labels := found["labels"]) is not None:
        lines.append(
            f"{labels['pairs']:,} pairs with pKd {labels['range'][0]:.2f} to "
            f"{labels['range'][1]:.2f}; {labels['duplicate_rows']:,} replicate rows, "
            f"{labels['conflicting_pairs']:,} conflicting pairs, "
            f"{labels['censored']:,} censored pairs"
        )
    lines += [line for line in (found["sense"], found["head"]) if line]
    lines += [f"problem: {line}" for line in found["problems"]]
    return lines + _describe_machines(found["machines"], verbose=verbose)


def _sequence_table(sequences: Mapping[str, SequencePlan]) -> list[str]:
    rows = [["", "unique", "mean length", "longest", "tokens", "encoder", "in the store"]]
    for plural, one in sequences.items():
        size = "-" if one["bytes"] is None else f"{one['bytes'] / 2**20:,.1f} MiB"
        numbers = [f"{one['mean_length']:.0f}", f"{one['longest']:,}", f"{one['tokens']:,}"]
        rows.append([plural, f"{one['unique']:,}", *numbers, one["encoder"], size])
    return align(rows, numbers=True)


def _histogram(plural: str, found: SequencePlan) -> list[str]:
    most = max(n for *_, n in found["histogram"])
    return [f"residues of {plural}:"] + [
        f"  {first:>6}-{last:<6} {n:>8,} {'#' * math.ceil(40 * n / most)}"
        for first, last, n in found["histogram"]
        if n
    ]


def _describe_machines(machines: Mapping[str, MachinePlan], *, verbose: bool) -> list[str]:
    """Lay out times, memory, sessions and prices, and say which times were measured."""
    known = {name: one for name, one in machines.items() if one["embed_s"] is not None}
    if not known:
        return ["times: no speed known for these encoders; try abag embed --limit 1000"]
    fits = any(_fit_counts(one) for one in known.values())
    sessions = any(n > 1 for one in known.values() for n in one["sessions"].values())
    prices = any(one["price"] is not None for one in known.values())
    hours = "/".join(length.removesuffix(" h") for length in next(iter(known.values()))["sessions"])
    titles = ["machine", "embed"]
    titles += ["fit", f"{DEFAULT_FOLDS} folds"] * fits + ["memory"]
    rows = [titles + ["sessions"] * sessions + ["price"] * prices]
    for name, one in known.items():
        row = [name, format_duration(one["embed_s"] or 0.0)]
        if fits:
            times = (one["fit_s"], one["fit_folds_s"]) if _fit_counts(one) else ()
            row += [format_duration(seconds) for seconds in times] or ["-", "-"]
        row.append("-" if one["memory_gib"] is None else f"{one['memory_gib']:.0f} GiB")
        row += ["/".join(map(str, one["sessions"].values()))] * sessions
        row += ["-" if one["price"] is None else f"{one['price']:.2f}"] * prices
        rows.append(row)
    measured = [f"{name} {one['basis']}" for name, one in known.items() if one["measured"]]
    others = "others are estimates" if measured else "all are estimates"
    notes = [*measured, others] + [f"sessions are of {hours} h"] * sessions
    lines = [*align(rows, numbers=True), f"times: {'; '.join(notes)}"]
    return lines + [f"{name}: {one['basis']}" for name, one in known.items() if verbose]


def _fit_counts(machine: MachinePlan) -> bool:
    """Whether a fit takes a time worth showing beside that of encoding."""
    return machine["fit_folds_s"] >= NEGLIGIBLE * (machine["embed_s"] or 0.0)


def format_duration(seconds: float) -> str:
    """Format a duration, below a day in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 1440 else f"{minutes / 60:,.0f} h"
