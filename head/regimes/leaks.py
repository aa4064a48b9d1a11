"""Leaks: test pairs that a model has seen in training, as themselves or as near-duplicates.

Pairs also leak through adapted encoders. An adapter was trained on measured pairs, so its vectors
depend on their labels. Scores on those pairs would measure memorisation: they must not be held out.
By default the head does not train on them either, because it would trust the vectors of new
sequences as much as these.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, hex_keys
from abag.core.errors import SplitError
from abag.head.regimes.regimes import OF_SPLIT, REGIMES
from abag.head.regimes.splits import KEYS, TEST, TRAIN, UNUSED, VALIDATION, Parts, Split, pair_keys

if TYPE_CHECKING:
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.head.data.label_options import AdapterRows
    from abag.head.data.labels import LabelledPairs
    from abag.head.regimes.clusters import PairGroups

_ROWS = "adapter/splits.parquet"


def count_leaks(part: Parts, groups: PairGroups) -> dict[str, dict[str, int]]:
    """Count the test rows with a training row of the same or a similar sequence, by closeness.

    A number is an identity; ``near``: both sequences are similar; ``contained``: as a peptide.
    """
    test = part == TEST
    train = part == TRAIN
    leaks: dict[str, dict[str, int]] = {}
    for kind, levels in groups.levels().items():
        leaks[kind] = {}
        for closeness, group in levels.items():
            leaks[kind][closeness] = int(np.isin(group[test], group[train]).sum())
    if len(groups.peptides):
        antigen = groups.pairs.antigen
        # either antigen of a pair may be the one in training
        either = np.concatenate([groups.peptides, groups.peptides[:, ::-1]])
        in_training = np.isin(either[:, 1], antigen[train])
        seen = either[in_training, 0]
        leaks["antigen"]["contained"] = int(np.isin(antigen[test], seen).sum())
    return leaks


def total_leaks(splits: Sequence[Split]) -> dict[str, dict[str, int]]:
    """Sum the leaks of all folds, by kind and closeness; empty if they were not counted."""
    if "leaks" not in splits[0].description:
        return {}
    leaks_of_folds = [split.description["leaks"] for split in splits]
    totals: dict[str, dict[str, int]] = {}
    for kind, levels in leaks_of_folds[0].items():
        totals[kind] = {}
        for closeness in levels:
            counts = [leaks[kind][closeness] for leaks in leaks_of_folds]
            totals[kind][closeness] = sum(counts)
    return totals


def apply_adapter_policy(
    splits: Sequence[Split],
    groups: PairGroups,
    folders: Sequence[EncoderFolder],
    *,
    adapter_rows: AdapterRows,
    allow_leak: bool,
) -> list[Split]:
    """Refuse splits that leak through adapters, and exclude the adapters' pairs from training.

    They leak if an adapter saw a held-out pair or a near-duplicate of one. Notes go to the report.

    Raises
    ------
    SplitError
        If held-out pairs leak and `allow_leak` is not set, or no training pair remains.
    """
    adapted = [folder for folder in folders if folder.info.get("adapter")]
    if not adapted:
        return list(splits)
    name = " and ".join(folder.name for folder in adapted)
    rows_of_adapters = [_adapter_rows(folder) for folder in adapted]
    notes = list[str]()
    leaks = 0
    held_out = 0
    for split in splits:
        leaks_of_adapters = [_leaks(split, groups, rows) for rows in rows_of_adapters]
        leaks += int(np.any(leaks_of_adapters, axis=0).sum())
        held_out += int(np.isin(split.part, (TEST, VALIDATION)).sum())
    if leaks:
        leaked = f"{leaks} of {held_out} validation and test pairs, or near-duplicates of them,"
        if not allow_leak:
            msg = (
                f"{name}: {leaked} trained its adapter; expected none. Use the adapter's own split "
                f"(--split file={adapted[0].path / _ROWS}), adapt again with --split-from this "
                "split, or use --allow-adapter-leak."
            )
            raise SplitError(msg)
        notes = [f"{leaked} trained the adapter of {name}: the scores measure memorisation."]
    used_by_adapters = []
    for rows in rows_of_adapters:
        used_by_adapters.append(_contained(groups.pairs, rows[rows["adapter"] == "train"]))
    used = np.any(used_by_adapters, axis=0)
    trains_on_used = [used & (split.part == TRAIN) for split in splits]
    count = int(np.sum(trains_on_used))
    if count and adapter_rows == "train":
        notes.append(
            f"{count} training pairs also trained the adapter of {name}: their vectors depend on "
            "their labels, and the head may rely on vectors too much."
        )
    elif count:
        splits = [_exclude(split, used, name) for split in splits]
        notes.append(
            f"{count} training pairs trained the adapter of {name} and are excluded from the "
            "training of the head."
        )
    return [replace(split, description=split.description | {"adapters": notes}) for split in splits]


def _adapter_rows(folder: EncoderFolder) -> pd.DataFrame:
    """Read which pairs an adapter was trained on (``train``) and validated on (``validation``)."""
    columns = [*KEYS, "adapter"]
    try:
        return pd.read_parquet(io.BytesIO(folder.adapter_files()[_ROWS]), columns=columns)
    except (KeyError, ValueError, OSError) as error:
        msg = (
            f"{folder.path}: its vectors come from an adapter, but {_ROWS} is missing or cannot be "
            f"read ({error}); expected the pairs that the adapter was trained on. Delete the "
            "folder and run abag embed with the adapter again."
        )
        raise SplitError(msg) from error


def _contained(pairs: LabelledPairs, rows: pd.DataFrame) -> Bools:
    """Return which pairs are among an adapter's rows, (P,)."""
    of_adapter = pd.MultiIndex.from_frame(rows[KEYS])
    return np.asarray(pd.MultiIndex.from_frame(pair_keys(pairs)).isin(of_adapter))


def _leaks(split: Split, groups: PairGroups, rows: pd.DataFrame) -> Bools:
    """Return which held-out pairs leak through an adapter's rows, shape (P,)."""
    trained = _exposed(split, groups, rows[rows["adapter"] == "train"])
    validated = _exposed(split, groups, rows[rows["adapter"] == "validation"])
    test = split.part == TEST
    validation = split.part == VALIDATION
    return np.asarray((test & (trained | validated)) | (validation & trained))


def _exposed(split: Split, groups: PairGroups, rows: pd.DataFrame) -> Bools:
    """Return which pairs share a group, or a held-out kind of sequence, with any row, (P,)."""
    pairs = groups.pairs
    exposed: Bools = np.isin(split.group, split.group[_contained(pairs, rows)])
    method = split.name.partition("=")[0]
    for kind in REGIMES[OF_SPLIT.get(method, method)].new:
        group = groups.of_method(kind)
        # the variants of a library share one cluster: its folds hold out mutations instead
        if np.isin(group[split.rows(TEST)], group[split.rows(TRAIN)]).any():
            continue
        keys = hex_keys(pairs.table.sequences[kind].keys)
        is_adapted = np.isin(keys, rows[f"{kind}_key"].to_numpy(str))[pairs.index(kind)]
        exposed |= np.isin(group, group[is_adapted])
    return exposed


def _exclude(split: Split, used: Bools, name: str) -> Split:
    part = np.where(used & (split.part == TRAIN), np.int8(UNUSED), split.part)
    if not (part == TRAIN).any():
        msg = (
            f"{name}: its adapter was trained on all training pairs; expected some to remain for "
            "the head. Adapt with --head-share above 0, or use --adapter-rows train."
        )
        raise SplitError(msg)
    rest = replace(split, part=part)
    return replace(rest, description=split.description | {"rows": rest.rows_per_part()})
