"""Splits as tables: ``splits.parquet`` of a run, and split files given by the user.

Pairs are identified by the keys of their sequences: row numbers mean nothing in another table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.arrays import hex_keys
from abag.embed.sequences.chains import KINDS
from abag.head.splits.splits import PART_NAMES, BadSplit, Split, SplitFileMismatch

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

KEYS = ["antibody_key", "antigen_key"]
COLUMNS = [*KEYS, "split", "fold", "group"]


def split_assignments(pairs: LabelledPairs, split: Split) -> pd.DataFrame:
    """Return the part of every pair: P rows with `COLUMNS`, the keys in hexadecimal.

    Two labels of one pair have two rows.
    """
    names = np.array(list(PART_NAMES))  # UNUSED, -1, is the last
    return pair_keys(pairs).assign(split=names[split.part], fold=split.fold, group=split.group)


def split_frame(pairs: LabelledPairs, splits: Sequence[Split]) -> pd.DataFrame:
    """Return splits as `read_splits` reads them: one row with `COLUMNS` per pair and fold."""
    frames = [split_assignments(pairs, split) for split in splits]
    frame = pd.concat(frames, ignore_index=True)
    # Pairs are in the order of their keys: few tables have any to compare.
    repeated = (np.diff(pairs.antibody) == 0) & (np.diff(pairs.antigen) == 0)
    return frame.drop_duplicates(ignore_index=True) if repeated.any() else frame


def pair_keys(pairs: LabelledPairs) -> pd.DataFrame:
    """Return the keys of every pair in hexadecimal: ``antibody_key`` and ``antigen_key``."""
    keys = {
        kind: pd.Series(hex_keys(unique.keys)) for kind, unique in pairs.table.sequences.items()
    }
    # each key is spelled once, however many pairs have it
    return pd.DataFrame({f"{kind}_key": keys[kind].array.take(pairs.index(kind)) for kind in KINDS})


def read_splits(path: Path, pairs: LabelledPairs) -> list[Split]:
    """Read a split file and apply it to these pairs.

    Parameters
    ----------
    path : Path
        Parquet or CSV with ``antibody_key``, ``antigen_key``, ``split`` and optionally ``fold``
        and ``group``.
    pairs : LabelledPairs

    Returns
    -------
    list of Split
        One per fold.

    Raises
    ------
    BadSplit
        If the file cannot be read, lacks a column, or has an unknown part or a repeated pair.
    SplitFileMismatch
        If a pair of the table is missing in the file, or the reverse.
    """
    frame = _read_frame(path)
    wanted = pair_keys(pairs)
    splits = []
    for number, (_, fold) in enumerate(frame.groupby("fold", sort=True)):
        joined = wanted.merge(fold, how="outer", indicator="found_in", validate="m:1", sort=False)
        missing, unknown = (
            int((joined["found_in"] == where).sum()) for where in ("left_only", "right_only")
        )
        if missing or unknown:
            msg = (
                f"{path}: fold {number} lacks {missing} pairs of the table and has {unknown} pairs "
                "that are not in the table; expected the same pairs. Split this table with --split."
            )
            raise SplitFileMismatch(msg)
        in_order = wanted.merge(fold, how="left", validate="m:1")
        group, _ = pd.factorize(in_order["group"], sort=True)
        splits.append(
            Split(
                name=f"file={path.name}",
                part=in_order["split"].map(PART_NAMES).to_numpy().astype(np.int8),
                group=group.astype(np.int64),
                fold=number,
            )
        )
    return splits


def _read_frame(path: Path) -> pd.DataFrame:
    if not path.is_file():
        msg = f"--split file={path}: no such file; expected the splits.parquet of a run."
        raise BadSplit(msg)
    try:
        with path.open("rb") as file:  # pandas would expand ~ in a path, and open addresses
            frame = pd.read_csv(file) if path.suffix == ".csv" else pd.read_parquet(file)
    except (OSError, ValueError) as error:
        msg = (
            f"{path}: cannot be read: {' '.join(str(error).split())}; expected Parquet or CSV. "
            "Use the splits.parquet of a run."
        )
        raise BadSplit(msg) from error
    absent = [name for name in COLUMNS[:3] if name not in frame.columns]
    if absent:
        msg = (
            f"{path}: no column {', '.join(absent)}; found {', '.join(map(str, frame.columns))}. "
            "Use the splits.parquet of a run."
        )
        raise BadSplit(msg)
    unknown = sorted(set(frame["split"].astype(str)) - set(PART_NAMES))
    if unknown:
        msg = f"{path}: split {unknown[0]!r} is unknown; expected one of {', '.join(PART_NAMES)}."
        raise BadSplit(msg)
    frame = frame.assign(fold=frame.get("fold", 0))
    if "group" not in frame.columns:
        frame["group"] = frame.groupby(KEYS).ngroup()
    frame = frame[COLUMNS].reset_index(drop=True)
    if frame.duplicated([*KEYS, "fold"]).any():
        msg = f"{path}: a pair occurs twice in one fold; expected one row per pair and fold."
        raise BadSplit(msg)
    return frame
