"""Vectors of adapted encoders: whose labels they have seen, and what a fit makes of it.

An adapter learned from measured pairs, so its vectors know their labels. Those pairs may not be
held out, for the score would be of memory; nor, unless asked for, may the head train on them,
for it would trust vectors of new sequences as much as vectors that hold the answer.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag import AbagError
from abag.core.keys import hex_keys
from abag.head.data.splits import (
    PART_NAMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    Split,
    group_pairs,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from abag.embed.store.store import EncoderFolder
    from abag.head.data.groups import PairGroups
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.options import AdapterRows, SplitOptions

_ROWS = "adapter/splits.parquet"


class AdapterLeak(AbagError):
    """Held-out pairs whose labels an encoder's adapter has seen."""


class NoHeadRows(AbagError):
    """The adapter learned from every training pair."""


def apply_adapter_policy(
    splits: Sequence[Split],
    pairs: LabelledPairs,
    folders: Sequence[EncoderFolder],
    options: SplitOptions,
    *,
    cache: Path | None = None,
    adapter_rows: AdapterRows,
    allow_leak: bool,
) -> list[Split]:
    """Refuse splits that adapters have seen through; leave the adapters' pairs out of training.

    Parameters
    ----------
    splits : sequence of Split
    pairs : LabelledPairs
        P of them.
    folders : sequence of EncoderFolder
        Whose vectors the head is to learn from; those without an adapter change nothing.
    options : SplitOptions
        The options the splits were made with: they define near-duplicates.
    cache : path, optional
        Folder of cached clusters, see `make_splits`.
    adapter_rows : {"leave-out", "train"}
        What happens to training pairs that the adapter learned from.
    allow_leak : bool
        Report leaks instead of refusing them.

    Returns
    -------
    list of Split
        With ``description["adapters"]``: sentences for the report.

    Raises
    ------
    AdapterLeak
        If a test pair or its mate under the split taught an adapter or told it when to stop, or a
        validation pair or its mate taught it.
    NoHeadRows
        If no training pair is left.
    """
    adapted = [folder for folder in folders if folder.info.get("adapter")]
    if not adapted:
        return list(splits)
    name = " and ".join(folder.name for folder in adapted)
    rows = [_rows(folder) for folder in adapted]
    grouping = group_pairs(pairs, options, cache)
    leaks = [np.any([_leaks(split, grouping, r) for r in rows], axis=0) for split in splits]
    notes = _leak_notes(splits, leaks, name, adapted[0], allow_leak=allow_leak)
    taught = np.any([_among(pairs, r[r["adapter"] == "train"]) for r in rows], axis=0)
    count = sum(int((taught & (split.part == TRAIN)).sum()) for split in splits)
    if count and adapter_rows == "train":
        notes.append(
            f"{count} training pairs taught the adapter of {name} too: their vectors know their "
            "labels, and the head may trust vectors too much."
        )
    elif count:
        splits = [_without(split, taught, name) for split in splits]
        notes.append(
            f"{count} training pairs taught the adapter of {name} and are left out of the head's."
        )
    return [replace(s, description=s.description | {"adapters": notes}) for s in splits]


def _rows(folder: EncoderFolder) -> pd.DataFrame:
    """Read what taught an adapter (``train``) and what told it to stop (``validation``)."""
    columns = ["antibody_key", "antigen_key", "adapter"]
    try:
        return pd.read_parquet(io.BytesIO(folder.adapter_files()[_ROWS]), columns=columns)
    except (KeyError, ValueError, OSError) as error:
        state = "is missing" if isinstance(error, KeyError) else f"cannot be read ({error})"
        msg = (
            f"{folder.path}: its vectors come from an adapter, but {_ROWS} {state}; expected it to "
            "name the pairs that taught it. Remove it and run abag embed with the adapter again."
        )
        raise AdapterLeak(msg) from error


def _among(pairs: LabelledPairs, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Say which pairs, (P,), are among rows given by their keys."""
    known = pd.MultiIndex.from_frame(rows[["antibody_key", "antigen_key"]])
    keys = [hex_keys(pairs.antibody_keys()), hex_keys(pairs.antigen_keys())]
    return pd.MultiIndex.from_arrays(keys).isin(known)


def _leaks(split: Split, grouping: PairGroups, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Say which held-out pairs an adapter has seen, themselves or a mate of theirs; (P,)."""
    taught = _seen(split, grouping, rows[rows["adapter"] == "train"])
    stopped = taught | _seen(split, grouping, rows[rows["adapter"] == "validation"])
    return np.where(split.part == TEST, stopped, (split.part == VALIDATION) & taught)


def _seen(split: Split, grouping: PairGroups, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Say which pairs, (P,), are among rows or mates of those that are.

    A split that holds antigens out whole is seen through by any pair of the antigen, also by one
    that is not in the table.
    """
    pairs = grouping.pairs
    seen = np.isin(split.group, split.group[_among(pairs, rows)])
    for side, index in (("antibody", pairs.antibody), ("antigen", pairs.antigen)):
        if split.name in (side, "both"):
            unique = pairs.table.antibodies if side == "antibody" else pairs.table.antigens
            known = np.isin(hex_keys(unique.keys), rows[f"{side}_key"].to_numpy(str))[index]
            group = grouping.of(side)
            seen |= np.isin(group, group[known])
    return seen


def _leak_notes(
    splits: Sequence[Split],
    leaks: Sequence[NDArray[np.bool_]],
    name: str,
    folder: EncoderFolder,
    *,
    allow_leak: bool,
) -> list[str]:
    """Refuse leaks, or put them into words where they are allowed."""
    count = sum(int(leak.sum()) for leak in leaks)
    if not count:
        return []
    held_out = sum(int(np.isin(s.part, (TEST, VALIDATION)).sum()) for s in splits)
    text = f"{count} of {held_out} validation and test pairs, or mates of theirs under the split,"
    if not allow_leak:
        msg = (
            f"{name}: {text} taught its adapter; expected none. Take the adapter's own split "
            f"(--split file={folder.path / _ROWS}), adapt anew with --split-from this one, or give "
            "--allow-adapter-leak."
        )
        raise AdapterLeak(msg)
    return [f"{text} taught the adapter of {name}: these scores are of memory."]


def _without(split: Split, taught: NDArray[np.bool_], name: str) -> Split:
    part = np.where(taught & (split.part == TRAIN), np.int8(UNUSED), split.part)
    if not (part == TRAIN).any():
        msg = (
            f"{name}: its adapter learned from all training pairs, so none is left for the head; "
            "expected some. Adapt with --head-share above 0, or give --adapter-rows train."
        )
        raise NoHeadRows(msg)
    rows = {n: int((part == number).sum()) for n, number in PART_NAMES.items()}
    return replace(split, part=part, description=split.description | {"rows": rows})
