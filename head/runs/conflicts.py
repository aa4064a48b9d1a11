"""What a round of a campaign contradicts or repeats of the rounds before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from abag.core.errors import RunError
from abag.core.messages import counted, quoted, say
from abag.head.data.label_reading import CONFLICT_PKD
from abag.head.data.replicates import disagreement, spread_of
from abag.head.runs.rounds import SEQUENCES, relations_of

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.quantity import Quantity

LISTED = 20
"""Rows that a message names."""


def refuse_contradictions(measured: pd.DataFrame, new: pd.DataFrame, pairs: LabelledPairs) -> None:
    """Raise `RunError` if `new` rows, those of `pairs`, contradict what was measured before."""
    source = pairs.table.source
    quantity = pairs.quantity
    labels = pd.concat([measured, new], ignore_index=True)
    exact = labels.loc[labels["censored"] == "", "pkd"]
    conflict = CONFLICT_PKD if quantity.affinity else spread_of(exact)
    conflicts = _other_antibodies(measured, new)
    conflicts += _other_labels(measured, new, quantity, conflict)
    if not conflicts:
        return
    shown = "; ".join(conflicts[:LISTED])
    if len(conflicts) > LISTED:
        shown += f"; and {len(conflicts) - LISTED:,} more"
    rows = counted(len(conflicts), "row")
    msg = (
        f"{source}: contradicts earlier rounds in {rows}: {shown}. Expected the same antibody "
        "under one name, and labels of one pair that differ by at most "
        f"{quantity.show(conflict)} {quantity}. Correct or remove these rows."
    )
    raise RunError(msg)


def _other_antibodies(measured: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """List rows whose name is of another antibody in an earlier round."""
    conflicts = []
    for role in ("antibody_name", "id"):
        chains = [role, "heavy", "light"]
        round_of: dict[str, dict[tuple[str, str], int]] = {}
        for name, heavy, light, number in measured[[*chains, "round"]].itertuples(index=False):
            round_of.setdefault(name, {}).setdefault((heavy, light), number)
        antibodies = new[chains].drop_duplicates()[role].value_counts()
        for name, heavy, light, row in new[[*chains, "row"]].itertuples(index=False):
            earlier = round_of.get(name, {})
            is_number = name.replace(".", "", 1).isdigit()  # of rows, which each table counts anew
            if not name or is_number or not earlier or (heavy, light) in earlier:
                continue
            if len(earlier) > 1 or antibodies[name] > 1:  # of a parent or family, not of one
                continue
            number = min(earlier.values())
            conflicts.append(f"row {row}: {quoted(name)} is another antibody in round {number}")
    return list(dict.fromkeys(conflicts))


def _other_labels(
    measured: pd.DataFrame, new: pd.DataFrame, quantity: Quantity, conflict: float
) -> list[str]:
    """List rows whose label is far from that of the same pair in earlier rounds."""
    both = pd.concat([measured.assign(is_new=False), new.assign(is_new=True)], ignore_index=True)
    both["pair"] = both.groupby(_of_pair(both)).ngroup()
    side = both["censored"].map({text: side for side, text in relations_of(quantity).items()})
    rows = pd.DataFrame(
        {"antibody": both["pair"], "antigen": 0, "pkd": both["pkd"], "censored": side}
    )
    of_all = disagreement(rows).droplevel(1)
    # what one round contradicts itself in is for --replicates
    of_earlier = disagreement(rows[~both["is_new"]]).droplevel(1)
    of_new = disagreement(rows[both["is_new"]]).droplevel(1)
    inside = pd.concat([of_earlier, of_new]).groupby(level=0).max().reindex(of_all.index)
    far = of_all.index[(of_all > conflict) & ~(inside > conflict)]
    conflicts = []
    for pair in far:
        of_pair = both[both["pair"] == pair]
        earlier = of_pair[~of_pair["is_new"]].iloc[0]
        other = f"{quantity.show(earlier['pkd'])} in round {earlier['round']}"
        for _, row in of_pair[of_pair["is_new"]].iterrows():
            conflicts.append(
                f"row {row['row']}: {quantity} {quantity.show(row['pkd'])}, but {other} for the "
                f"same pair (row {earlier['row']} there)"
            )
    return conflicts


def _of_pair(rows: pd.DataFrame) -> list[str]:
    """Return the columns in which the measurements of a pair are equal."""
    return [*SEQUENCES, *(name for name in map(str, rows) if name.startswith("category:"))]


def without_repeats(measured: pd.DataFrame, new: pd.DataFrame, source: str) -> pd.DataFrame:
    """Leave out measurements that the earlier rounds have; refuse a table of nothing else."""
    same = [*_of_pair(measured), "pkd", "censored"]
    known = pd.MultiIndex.from_frame(measured[same].round({"pkd": 9}))
    repeated = pd.MultiIndex.from_frame(new[same].round({"pkd": 9})).isin(known)
    if repeated.all():
        msg = (
            f"{source}: all {counted(len(new), 'measurement')} are in the earlier run; expected "
            "the results of another round. Give the table that has them."
        )
        raise RunError(msg)
    if repeated.any():
        rows = counted(int(repeated.sum()), "measurement")
        say(f"{source}: {rows} of earlier rounds, with the same labels, count once")
    return new[~repeated].reset_index(drop=True)
