"""Scores of a finished run on another table, next to baselines.

The baselines are fitted to the pairs that the heads of the run were trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.keys import hex_keys, keys_from_hex
from abag.core.messages import say
from abag.embed.sequences.chains import KINDS, Kind
from abag.embed.store.store import open_store
from abag.head.evaluation.baselines import group_mean, inner_folds, standardised
from abag.head.evaluation.comparison import compare, score_rows, verdict
from abag.head.evaluation.ridge import FeatureBlock, ridge
from abag.head.prediction.bundle import load_predictor
from abag.head.prediction.predictor import Predictor
from abag.head.splits.splits import TEST, TRAIN, Split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from abag.embed.store.store import Store
    from abag.head.data.labels import LabelledPairs
    from abag.head.report.results import RunSummary, TableSummary
    from abag.head.runs.saved_run import SavedRun

Floats: TypeAlias = NDArray[np.float64]
KEYS = ["antibody_key", "antigen_key"]


def _count_known(pairs: LabelledPairs, keys: pd.DataFrame, trained: pd.DataFrame) -> TableSummary:
    """Count the pairs of a table that are in the training set of any fold, and report them."""
    both = pd.MultiIndex.from_frame(keys).isin(pd.MultiIndex.from_frame(trained[KEYS]))
    known = {"pair": int(both.sum())}
    known |= {n: int(keys[f"{n}_key"].isin(trained[f"{n}_key"]).sum()) for n in KINDS}
    say(
        f"{pairs.table.source}: {known['pair']} of {len(pairs)} pairs are training pairs of the "
        f"run; {known['antibody']} contain a training antibody, {known['antigen']} a training "
        "antigen"
    )
    if known["pair"]:
        say("scores of training pairs say nothing about new pairs: remove them from the table")
    return {"source": pairs.table.source, "pairs": len(pairs), "in_training": known}


def score_table(
    summary: RunSummary,
    run: Path,
    saved: SavedRun,
    pairs: LabelledPairs,
    store: Path | str | None,
) -> None:
    """Add to a summary what is known of a table, and scores on it, its new sequences and baselines.

    `store` holds the vectors of the pairs; None is the store of the run.

    Raises
    ------
    VectorsMissing
        If the store lacks some of the sequences.
    """
    trained = _training_pairs(saved)
    keys = key_frame(pairs.keys("antibody"), pairs.keys("antigen"))
    summary["table"] = _count_known(pairs, keys, trained)
    predictor = load_predictor(run)
    opened = open_store(predictor.resolve_store(store))
    found = predictor.predict_keys(opened, pairs.keys("antibody"), pairs.keys("antigen"))
    head = found["pkd_predicted"].to_numpy(np.float64)
    everything = np.arange(len(pairs))
    summary["metrics"]["table"] = score_rows(pairs, head, everything)
    for kind, plural in zip(KINDS, ("antibodies", "antigens"), strict=True):
        rows = np.flatnonzero(~keys[f"{kind}_key"].isin(trained[f"{kind}_key"]))
        scores = score_rows(pairs, head, rows) if len(rows) else None
        summary["metrics"][f"table_new_{plural}"] = scores
    others = _predict_baselines(predictor, trained, keys, opened)
    for name, predicted in others.items():
        table_scores = score_rows(pairs, predicted, everything)
        summary["baselines"].setdefault(name, {})["table"] = table_scores
    if "ridge" in others:
        split = Split(name="table", part=np.full(len(pairs), TEST, np.int8), group=pairs.antigen)
        interval = compare(pairs, [split], [head], [others["ridge"]], "rmse")
        summary["table"]["verdicts"] = [verdict("head", "ridge", "rmse", interval)]


def _training_pairs(saved: SavedRun) -> pd.DataFrame:
    """Return the distinct pairs that are in the training part of any fold."""
    rows = pd.concat([fold[fold["split"] == "train"] for fold in saved.folds])
    return rows.drop_duplicates(KEYS, ignore_index=True)


def _predict_baselines(
    predictor: Predictor, trained: pd.DataFrame, table_keys: pd.DataFrame, opened: Store
) -> dict[str, Floats]:
    """Fit means and a ridge to the training pairs of the run; predict a table's pairs, (P,)."""
    exact = trained[trained["censored"] == 0]
    keys = pd.concat([exact[KEYS], table_keys])
    index = {kind: pd.factorize(keys[f"{kind}_key"])[0].astype(np.int64) for kind in KINDS}
    fit_rows, others = np.arange(len(exact)), np.arange(len(exact), len(keys))
    pkd = np.concatenate([exact["pkd"].to_numpy(np.float64), np.zeros(len(table_keys))])
    part = np.where(np.arange(len(keys)) < len(exact), TRAIN, TEST).astype(np.int8)
    split = Split(name="table", part=part, group=index["antigen"])
    found = {
        "train_mean": np.full(len(keys), pkd[fit_rows].mean()),
        "antigen_mean": group_mean(index["antigen"], pkd, split, fit_rows),
    }
    try:
        sources = [open_store(predictor.resolve_store(None)), opened]
        tables = [_vectors(sources, kind, predictor, keys[f"{kind}_key"]) for kind in KINDS]
    except AbagError as error:
        say(f"the ridge baseline is left out: the run's training vectors are missing ({error})")
    else:
        blocks = [
            FeatureBlock(standardised(table_ND, index[kind][fit_rows]), index[kind])
            for table_ND, kind in zip(tables, KINDS, strict=True)
        ]
        groups = exact["group"].to_numpy(np.int64)
        found["ridge"] = ridge(blocks, pkd, fit_rows, inner_folds(groups))
    return {name: predicted[others] for name, predicted in found.items()}


def _vectors(
    sources: Sequence[Store], kind: Kind, predictor: Predictor, keys: pd.Series[str]
) -> NDArray[np.float32]:
    """Read the vectors of the distinct keys, in order of appearance, from two stores."""
    spec = predictor.spec(kind)
    wanted = keys_from_hex(keys.drop_duplicates().tolist())
    folders = [store.folder(kind, spec.fingerprint) for store in sources]
    x_ND = np.empty((len(wanted), spec.width), np.float32)
    first = ~folders[0].missing(wanted)
    for folder, here in zip(folders, (first, ~first), strict=True):
        if here.any():
            x_ND[here] = folder.read(wanted[here], spec.pooling)
    return x_ND


def key_frame(antibody_keys: NDArray[np.uint8], antigen_keys: NDArray[np.uint8]) -> pd.DataFrame:
    """Return the keys of pairs, arrays of shape (P, 16), as two columns of hex digits."""
    return pd.DataFrame(
        {"antibody_key": hex_keys(antibody_keys), "antigen_key": hex_keys(antigen_keys)}
    )
