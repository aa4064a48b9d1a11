"""Scores of a finished run on another table, next to baselines.

The baselines are fitted to the pairs that the heads of the run were trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Floats, hex_keys, keys_from_hex
from abag.core.cache import cache_dir
from abag.core.messages import say
from abag.embed.sequences.chains import KINDS, PLURAL, Kind
from abag.embed.store.store import open_store
from abag.head.clustering.clusters import contained_peptides
from abag.head.evaluation.baselines import group_mean, inner_folds, standardised
from abag.head.evaluation.comparison import compare, score_intervals, score_rows
from abag.head.evaluation.ranking import spearman
from abag.head.evaluation.ridge import FeatureBlock, ridge
from abag.head.evaluation.verdicts import against_mean, verdict
from abag.head.prediction.bundle import load_predictor
from abag.head.prediction.predictor import Predictor
from abag.head.splits.groups import cached_clusters, choose_method
from abag.head.splits.splits import KEYS, TEST, TRAIN, Split
from abag.head.training.uncertainty import coverage, describe_ranking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from abag.embed.sequences.chains import Chains
    from abag.embed.store.store import Store
    from abag.head.data.labels import LabelledPairs
    from abag.head.report.results import RunSummary, TableSummary
    from abag.head.runs.saved_run import SavedRun


@dataclass(frozen=True, slots=True)
class _Overlap:
    """What the P pairs of a table share with the training pairs of a run, by kind of sequence."""

    same: Mapping[Kind, NDArray[np.bool_]]
    """(P,): the sequence is in the training set."""
    near: Mapping[Kind, NDArray[np.bool_]]
    """(P,): the sequence has a near-duplicate there."""
    cluster: Mapping[Kind, NDArray[np.int64]]
    """(P,)"""


def _overlap(
    saved: SavedRun, pairs: LabelledPairs, keys: pd.DataFrame, trained: pd.DataFrame
) -> _Overlap:
    """Compare the sequences of a table with the training set, at the identities of the split."""
    same, near, clusters = {}, {}, {}
    cache = cache_dir() / "clusters"
    for kind in KINDS:
        seen = trained[f"{kind}_key"].unique()
        same[kind] = keys[f"{kind}_key"].isin(seen).to_numpy()
        own, identity = pairs.table.sequences[kind], saved.config[f"{kind}_identity"]
        found = saved.sequences[saved.sequences["key"].isin(seen)]
        known: list[Chains] = [tuple(text.split("|")) for text in found["chains"]]
        both = np.concatenate([keys_from_hex(found["key"].tolist()), own.keys])
        chains = [*known, *own.chains]
        method = choose_method(kind, len(chains), saved.config["antibody_by"])
        cluster = cached_clusters(method, both, chains, [identity], cache)[identity]
        clusters[kind] = cluster[len(known) :][pairs.index(kind)]
        near[kind] = same[kind] | np.isin(clusters[kind], cluster[: len(known)])
        if kind == "antigen":
            i, j = contained_peptides(chains).T
            parts = np.concatenate([j[i < len(known)], i[j < len(known)]]) - len(known)
            near[kind] |= np.isin(pairs.antigen, parts)
    return _Overlap(same, near, clusters)


def _count_known(
    saved: SavedRun,
    pairs: LabelledPairs,
    keys: pd.DataFrame,
    trained: pd.DataFrame,
    overlap: _Overlap,
) -> TableSummary:
    """Count the pairs of a table that are in or near the training set of any fold; report them."""
    both = pd.MultiIndex.from_frame(keys).isin(pd.MultiIndex.from_frame(trained[KEYS]))
    known = {"pair": int(both.sum())} | {n: int(same.sum()) for n, same in overlap.same.items()}
    near = {"pair": int(np.all([*overlap.near.values()], axis=0).sum())}
    near |= {kind: int(rows.sum()) for kind, rows in overlap.near.items()}
    source = pairs.table.source
    say(
        f"{source}: {known['pair']} of {len(pairs)} pairs are training pairs of the run; "
        f"{known['antibody']} contain a training antibody, {known['antigen']} a training antigen"
    )
    levels = [f"{kind} {saved.config[f'{kind}_identity']:g}" for kind in KINDS]
    say(
        f"{source}: {near['antibody']} contain a near-duplicate of a training antibody, "
        f"{near['antigen']} of a training antigen, {near['pair']} of both (identities: "
        f"{', '.join(levels)})"
    )
    if known["pair"]:
        say("scores of training pairs say nothing about new pairs: remove them from the table")
    return {
        "source": source,
        "pairs": len(pairs),
        "in_training": known,
        "near_training": near,
    }


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
    overlap = _overlap(saved, pairs, keys, trained)
    pairs = replace(
        pairs,
        antigen_cluster=overlap.cluster["antigen"],
        antibody_cluster=overlap.cluster["antibody"],
    )
    table = summary["table"] = _count_known(saved, pairs, keys, trained, overlap)
    predictor = load_predictor(run)
    opened = open_store(predictor.resolve_store(store))
    antibodies = [pairs.table.antibodies.chains[i] for i in pairs.antibody.tolist()]
    antigens = [pairs.table.antigens.chains[i] for i in pairs.antigen.tolist()]
    found, _ = predictor.score_stored(opened, antibodies, antigens)
    head = found["pkd_predicted"].to_numpy(np.float64)
    everything = np.arange(len(pairs))
    own = summary["metrics"]["table"] = score_rows(pairs, head, everything)
    for kind in KINDS:
        rows = np.flatnonzero(~overlap.near[kind])
        scores = score_rows(pairs, head, rows) if len(rows) else None
        summary["metrics"][f"table_new_{PLURAL[kind]}"] = scores
    others = _predict_baselines(predictor, trained, keys, opened)
    for name, predicted in others.items():
        table_scores = score_rows(pairs, predicted, everything)
        summary["baselines"].setdefault(name, {})["table"] = table_scores
    part = np.full(len(pairs), TEST, np.int8)
    split = Split(name="table", part=part, group=overlap.cluster["antigen"])
    table["intervals"] = score_intervals(pairs, [split], [head], own)
    table["verdicts"] = against_mean(own, summary["baselines"]["train_mean"]["table"])
    for name in ("train_mean", "ridge"):
        if name in others:
            interval = compare(pairs, [split], [head], [others[name]], "rmse")
            table["verdicts"].append(verdict("head", name, "rmse", interval))
    table["verdicts"] += _add_reliability(table, pairs, found)


def _add_reliability(table: TableSummary, pairs: LabelledPairs, found: pd.DataFrame) -> list[str]:
    """Add bias, coverage and share of far pairs of predictions to a summary; describe them."""
    exact = pairs.censored == 0
    error = (found["pkd_predicted"].to_numpy(np.float64) - pairs.pkd)[exact]
    table["bias"] = float(error.mean()) if len(error) else None
    sigma = found["sigma"].to_numpy(np.float64)[exact]
    table["coverage"] = coverage(error, sigma)
    table["error_spearman"] = spearman(np.abs(error), sigma)
    table["far"] = int((found["far_antibody"] | found["far_antigen"]).sum())
    far = f"{table['far']} of {len(pairs)} pairs are flagged as far from the training set."
    if table["bias"] is None:
        return [far]
    held = ", ".join(
        f"{s:.0%} in the {at} %" for at, s in table["coverage"].items() if s is not None
    )
    side = "high" if table["bias"] > 0 else "low"
    return [
        f"Predictions are {abs(table['bias']):.2f} pKd too {side} on average.",
        f"Labels within the intervals of sigma: {held} interval"
        f"{describe_ranking(table['error_spearman'])}.",
        far,
    ]


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
