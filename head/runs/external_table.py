"""Scores of a finished run on another table, by the regimes of its pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import hex_keys
from abag.core.cache import cache_dir
from abag.core.messages import say
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store import open_store
from abag.head.evaluation.comparison import score_rows
from abag.head.evaluation.regime_scores import RegimeScore, TestedPairs, score_regime
from abag.head.models.registry import COMPARED
from abag.head.prediction.bundle import load_predictor
from abag.head.prediction.fitted import COVERED
from abag.head.regimes.groups import with_clusters
from abag.head.regimes.regimes import LEAST_ROWS, REGIMES, MeasuredRegime
from abag.head.regimes.split_options import SplitOptions
from abag.head.regimes.splits import KEYS, TEST, UNUSED, Split

if TYPE_CHECKING:
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs
    from abag.head.report.results import RunSummary
    from abag.head.runs.saved_run import SavedRun


def score_table(
    summary: RunSummary,
    run: Path,
    saved: SavedRun,
    pairs: LabelledPairs,
    store: Path | str | None,
) -> None:
    """Add to a summary the scores of the pairs of a table, by what is new about them.

    The mean is that of the run's labels, and the baselines are the run's, fitted to all its pairs.

    Parameters
    ----------
    store : path, optional
        Holds the vectors of the pairs; None is the store of the run.

    Raises
    ------
    VectorsMissing
        If the store lacks some of the sequences.
    """
    pairs = with_clusters(pairs, SplitOptions(), cache_dir() / "clusters")
    predictor = load_predictor(run)
    opened = open_store(predictor.resolve_store(store))
    antibodies = [pairs.table.antibodies.chains[i] for i in pairs.antibody.tolist()]
    antigens = [pairs.table.antigens.chains[i] for i in pairs.antigen.tolist()]
    found, vectors = predictor.score_stored(opened, antibodies, antigens)
    predicted, sigma = (found[name].to_numpy(np.float64) for name in ("pkd_predicted", "sigma"))
    mean = saved.pairs.pkd[saved.pairs.censored == 0].mean()
    baselines = {
        part.name: part.predict(vectors) for part in predictor.parts if part.name in COMPARED
    }
    regimes, of_pair = list[RegimeScore](), found["regime"].to_numpy(str)
    for name, regime in REGIMES.items():
        part = np.where(of_pair == name, TEST, UNUSED).astype(np.int8)
        if (part == TEST).sum() < LEAST_ROWS:
            continue
        groups = _groups(pairs, name)
        split = Split(name=name, part=part, group=groups[0])
        tested = TestedPairs.of(pairs, MeasuredRegime(regime, (split,), tuple(groups)))
        if not len(tested.rows):
            continue
        own = predicted[tested.rows]
        inside = np.abs(tested.pkd - own) <= COVERED * sigma[tested.rows]
        regimes.append(
            score_regime(
                name,
                regime.words,
                tested,
                own,
                np.full(len(own), mean),
                {one: values[tested.rows] for one, values in baselines.items()},
                inside.astype(np.float64),
            )
        )
    exact = pairs.censored == 0
    error = (predicted - pairs.pkd)[exact]
    known = _count_known(saved, pairs)
    summary["table"] = {
        "source": pairs.table.source,
        "pairs": len(pairs),
        "in_training": known,
        "bias": float(error.mean()) if len(error) else None,
        "far": int(found["far"].sum()),
        "regimes": regimes,
        "metrics": score_rows(pairs, predicted, np.arange(len(pairs))),
    }


def _groups(pairs: LabelledPairs, regime: str) -> list[NDArray[np.int64]]:
    """Return what counts as one measurement in a regime, (P,) each."""
    antigen = pairs.antigen if pairs.antigen_cluster is None else pairs.antigen_cluster
    antibody = pairs.antibody if pairs.antibody_cluster is None else pairs.antibody_cluster
    if regime == "new_mutations":
        antibody = pairs.antibody
    new = REGIMES[regime].new
    sides = {"antibody": antibody, "antigen": antigen}
    if new:
        return [sides[kind] for kind in new]
    return [np.unique(antibody * (antigen.max() + 1) + antigen, return_inverse=True)[1]]


def _count_known(saved: SavedRun, pairs: LabelledPairs) -> dict[str, int]:
    """Count the pairs of a table that are in training, as pairs or by one sequence; report them."""
    keys = key_frame(pairs.keys("antibody"), pairs.keys("antigen"))
    both = pd.MultiIndex.from_frame(keys).isin(pd.MultiIndex.from_frame(saved.frame[KEYS]))
    known = {"pair": int(both.sum())} | {
        kind: int(keys[f"{kind}_key"].isin(saved.frame[f"{kind}_key"]).sum()) for kind in KINDS
    }
    say(
        f"{pairs.table.source}: {known['pair']} of {len(pairs)} pairs are training pairs of the "
        f"run; {known['antibody']} contain a training antibody, {known['antigen']} a training "
        "antigen"
    )
    if known["pair"]:
        say("scores of training pairs say nothing about new pairs: remove them from the table")
    return known


def key_frame(antibody_keys: NDArray[np.uint8], antigen_keys: NDArray[np.uint8]) -> pd.DataFrame:
    """Return the keys of pairs, arrays of shape (P, 16), as two columns of hex digits."""
    return pd.DataFrame(
        {"antibody_key": hex_keys(antibody_keys), "antigen_key": hex_keys(antigen_keys)}
    )
