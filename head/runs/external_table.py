"""A finished run on another table: what its training knew of it, its scores, and baselines.

The baselines learn from the pairs that the run's heads were trained on, as the heads did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.keys import hex_keys, keys_from_hex
from abag.embed.sequences.chains import Kind
from abag.embed.store.store import open_store
from abag.head.data.splits import TEST, TRAIN, Split
from abag.head.evaluation import metrics
from abag.head.evaluation.baselines import group_mean, inner_folds, standardised
from abag.head.evaluation.comparison import compare, verdict
from abag.head.evaluation.ridge import FeatureBlock, ridge
from abag.head.prediction.bundle import load_predictor
from abag.head.prediction.predictor import Predictor, VectorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from abag.embed.store.store import Store
    from abag.head.data.labels import LabelledPairs
    from abag.head.runs.saved_run import SavedRun

Floats: TypeAlias = NDArray[np.float64]
KINDS: tuple[Kind, Kind] = ("antibody", "antigen")
KEYS = ["antibody_key", "antigen_key"]


def count_known(
    saved: SavedRun, pairs: LabelledPairs, say: Callable[[str], None]
) -> dict[str, Any]:
    """Count the pairs of a table that some fold's training knew, whole or by one side."""
    trained = _trained(saved)
    keys = keyed(pairs.keys("antibody"), pairs.keys("antigen"))
    both = pd.MultiIndex.from_frame(keys).isin(pd.MultiIndex.from_frame(trained[KEYS]))
    known = {
        "pair": int(both.sum()),
        "antibody": int(keys["antibody_key"].isin(trained["antibody_key"]).sum()),
        "antigen": int(keys["antigen_key"].isin(trained["antigen_key"]).sum()),
    }
    say(
        f"{pairs.table.source}: of {len(pairs)} pairs {known['pair']} are among the run's training "
        f"pairs; {known['antibody']} have an antibody and {known['antigen']} an antigen of these"
    )
    if known["pair"]:
        say("scores of pairs that training knew say nothing of new ones; leave these out for that")
    return {"source": pairs.table.source, "pairs": len(pairs), "in_training": known}


def score_table(
    result: dict[str, Any],
    run: Path,
    saved: SavedRun,
    pairs: LabelledPairs,
    store: Path | str | None,
    say: Callable[[str], None],
) -> None:
    """Score the head on a table, whole and where its sequences are new, beside baselines."""
    predictor = load_predictor(run)
    opened = open_store(predictor.resolve_store(store))
    found = predictor.predict_keys(opened, pairs.keys("antibody"), pairs.keys("antigen"))
    head = found["pkd_predicted"].to_numpy(np.float64)
    keys, trained = keyed(pairs.keys("antibody"), pairs.keys("antigen")), _trained(saved)
    new = {n: ~keys[f"{n}_key"].isin(trained[f"{n}_key"]).to_numpy() for n in KINDS}
    result["metrics"] |= {"table": _score_rows(pairs, head, np.ones(len(pairs), bool))} | {
        f"table_new_{plural}": _score_rows(pairs, head, new[kind]) if new[kind].any() else None
        for kind, plural in zip(KINDS, ("antibodies", "antigens"), strict=True)
    }
    others = _baselines(predictor, trained, pairs, opened, say)
    for name, predicted in others.items():
        result["baselines"].setdefault(name, {})["table"] = _score_rows(
            pairs, predicted, np.ones(len(pairs), bool)
        )
    if "ridge" in others:
        whole = Split(name="table", part=np.full(len(pairs), TEST, np.int8), group=pairs.antigen)
        interval = compare(pairs, [whole], [head], [others["ridge"]], "rmse")
        result["table"]["verdicts"] = [verdict("head", "ridge", "rmse", interval)]


def _score_rows(pairs: LabelledPairs, predicted: Floats, rows: NDArray[np.bool_]) -> metrics.Scores:
    return metrics.score(
        pairs.pkd[rows], predicted[rows], pairs.antigen[rows], pairs.censored[rows]
    )


def _trained(saved: SavedRun) -> pd.DataFrame:
    """Every pair that the head of some fold was trained on, once."""
    rows = pd.concat([fold[fold["split"] == "train"] for fold in saved.folds])
    return rows.drop_duplicates(KEYS, ignore_index=True)


def _baselines(
    predictor: Predictor,
    trained: pd.DataFrame,
    pairs: LabelledPairs,
    opened: Store,
    say: Callable[[str], None],
) -> dict[str, Floats]:
    """Predict a table's pairs from the run's training pairs, by means and by ridge; each (P,)."""
    exact = trained[trained["censored"] == 0]
    keys = pd.concat([exact[KEYS], keyed(pairs.keys("antibody"), pairs.keys("antigen"))])
    index = {kind: pd.factorize(keys[f"{kind}_key"])[0].astype(np.int64) for kind in KINDS}
    fit_rows, others = np.arange(len(exact)), np.arange(len(exact), len(keys))
    pkd = np.concatenate([exact["pkd"].to_numpy(np.float64), np.zeros(len(pairs))])
    part = np.where(np.arange(len(keys)) < len(exact), TRAIN, TEST).astype(np.int8)
    split = Split(name="table", part=part, group=index["antigen"])
    found = {
        "train_mean": np.full(len(keys), pkd[fit_rows].mean()),
        "antigen_mean": group_mean(index["antigen"], pkd, split, fit_rows),
    }
    try:
        sources = [open_store(predictor.resolve_store(None)), opened]
        blocks = [
            FeatureBlock(_vectors(sources, kind, predictor, keys[f"{kind}_key"]), index[kind])
            for kind in KINDS
        ]
    except AbagError as error:
        say(
            f"no ridge beside the head: the vectors of its training pairs are not at hand ({error})"
        )
    else:
        blocks = [
            FeatureBlock(standardised(b.table_ND, b.index[fit_rows]), b.index) for b in blocks
        ]
        groups = exact["group"].to_numpy(np.int64)
        found["ridge"] = ridge(blocks, pkd, fit_rows, inner_folds(groups))
    return {name: predicted[others] for name, predicted in found.items()}


def _vectors(
    sources: Sequence[Store], kind: Kind, predictor: Predictor, keys: pd.Series[str]
) -> NDArray[np.float32]:
    """Read the vector of each distinct key, in order of appearance, where there is one."""
    side: VectorSpec = getattr(predictor, kind)
    wanted = keys_from_hex(keys.drop_duplicates().tolist())
    folders = [store.folder(kind, side.fingerprint) for store in sources]
    x_ND = np.empty((len(wanted), side.width), np.float32)
    first = ~folders[0].missing(wanted)
    for folder, here in zip(folders, (first, ~first), strict=True):
        if here.any():
            x_ND[here] = folder.read(wanted[here], side.pooling)
    return x_ND


def keyed(antibody_keys: NDArray[np.uint8], antigen_keys: NDArray[np.uint8]) -> pd.DataFrame:
    return pd.DataFrame(
        {"antibody_key": hex_keys(antibody_keys), "antigen_key": hex_keys(antigen_keys)}
    )


# ---- anyone's predictions ------------------------------------------------------------------------
