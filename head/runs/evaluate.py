"""``evaluate``: score a finished run on its own split, on another table or against predictions.

Nothing is trained. The run folder has the split and the predictions by key; predictions from
elsewhere for the same pairs are matched by the keys of both sequences, and by fold if they say one,
and scored with the same split and metrics, fold by fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from abag.core.arrays import Bools, Floats, Ints, distinct, hex_keys, label_weights, weights_of
from abag.core.errors import AbagError, PredictionError
from abag.core.messages import counted, quoted, say
from abag.core.options import schema
from abag.embed.store.store import open_store
from abag.embed.tables.chains import KINDS, Kind
from abag.embed.tables.options import (
    FileOptions,
    ReferenceOptions,
    TableOptions,
    refuse_together,
)
from abag.embed.tables.pairs import SequenceTable, read_pairs
from abag.embed.tables.table import Table, TableLike, read_numbers
from abag.head.evaluation.metrics import rmse, rows_to_score, strong_threshold
from abag.head.evaluation.scores import (
    LEVEL,
    MANY_BOUNDS,
    Claim,
    RegimeScore,
    TestedPairs,
    compare_models,
    mean_claim,
    score_regime,
)
from abag.head.evaluation.verdicts import score_strong
from abag.head.labels.classes import refuse_other_options
from abag.head.labels.column import (
    AS_IN_THE_RUN,
    Column,
    LabelLayout,
    as_it_is,
    choose_prediction,
    decide_label,
    refuse_affinity,
)
from abag.head.labels.features import features_of
from abag.head.labels.headers import PROBABILITY, Quantity
from abag.head.labels.labelled_pairs import LabelledPairs, label_pairs, one_label, report_counts
from abag.head.labels.options import (
    UNITS,
    LabelOptions,
    PairColumnOptions,
    SplitOptions,
    named_beside,
)
from abag.head.labels.values import read_affinities, refuse_cells
from abag.head.models.registry import MEAN, MODELS
from abag.head.models.ridge import expected_labels
from abag.head.predictor.options import EvaluateOptions, refuse_antigen
from abag.head.predictor.predictor import SAME_PREDICTION_PKD, Predictor, Scorer
from abag.head.predictor.scoring import load_predictor
from abag.head.regimes.splits import (
    KEYS,
    LEAST_ROWS,
    LEVELS,
    REGIMES,
    VARIANT,
    PairGroups,
    Regime,
    pair_keys,
    with_clusters,
)
from abag.head.runs.run_folder import (
    RunSummary,
    SavedRun,
    labels_as_in_the_run,
    naming_damage,
    read_run,
)

NOTICEABLE = 0.01
"""Share of the spread of the labels below which a mean error is not worth a line."""
LEAST_SHIFT = 1 / 3
"""Mean error, relative to the RMSE, from which it is worth to take it off."""
CLOSE = 1e-6
"""Error of a mean error, in sigmas."""
PAIRS_OF_BATCH = 10
"""Measured pairs of another batch that tell its level well enough."""


def compare_with_predictions(saved: SavedRun, table: SequenceTable) -> dict[str, Any]:
    """Score predictions of another tool in each regime, and compare them with those of the run.

    Parameters
    ----------
    saved : SavedRun
    table : SequenceTable
        The pairs with their predictions as its label.

    Returns
    -------
    dict
        ``source``, and ``regimes`` (scores) and ``verdicts``, one of each regime.

    Raises
    ------
    PredictionError
        If predictions are invalid, differ for one pair, or are not of the test pairs.
    """
    reference = _align_predictions(saved, table)
    scores = list[RegimeScore]()
    verdicts = list[str]()
    with naming_damage(saved.run):  # the means that the run's own scores are compared with
        mean_of_pair = pd.read_parquet(saved.run / "baselines.parquet")[MEAN].to_numpy(np.float64)
    for regime, rows, tested in saved.regimes():
        ours = rows["pkd_predicted"].to_numpy(np.float64)
        pairs = rows.index.to_numpy()
        words = regime["words"]
        theirs = reference[pairs]
        score = score_regime(
            regime["regime"],
            words,
            tested,
            theirs,
            mean_of_pair[pairs],
            {},
            None,
            quantity=saved.quantity,
        )
        scores.append(score)
        verdict = compare_models(
            words, "the run", table.source, tested, ours, theirs, saved.quantity
        )
        verdicts.append(verdict)
    return {"source": table.source, "regimes": scores, "verdicts": verdicts}


def _align_predictions(saved: SavedRun, table: SequenceTable) -> Floats:
    predicted, on = _read_predictions(saved, table)
    rows = saved.tested[[*KEYS, "fold"]]
    measured_rows = pd.MultiIndex.from_frame(rows[on] if "fold" in on else saved.frame[on])
    is_known = pd.MultiIndex.from_frame(predicted[on]).isin(measured_rows)
    unknown = int((~is_known).sum())
    aligned = rows.merge(predicted, how="left", on=on)["prediction"].to_numpy(np.float64)
    missing = int(np.isnan(aligned).sum())
    if missing or unknown:
        by = " and fold" if "fold" in on else ""
        msg = (
            f"{table.source}: predictions are missing for {missing} of the run's test rows, and "
            f"{unknown} pairs are not in the run (matched by antibody, antigen{by}); expected all "
            "test rows and no other pairs. Predict the rows of the run's predictions.parquet."
        )
        raise PredictionError(msg)
    return aligned


def _read_predictions(saved: SavedRun, table: SequenceTable) -> tuple[pd.DataFrame, list[str]]:
    affinities = read_affinities(table, one_label(table))
    column = affinities.column
    value = affinities.pkd
    if not saved.quantity.classes:
        affinities.refuse_other_units(np.isfinite(value), "predictions")
    say(affinities.describe(noun="predictions"))
    is_invalid = ~np.isfinite(value) | (affinities.side != 0)
    classes = saved.quantity.classes
    expected = "a finite number"
    if classes:
        is_invalid |= (value < 0) | (value > len(classes) - 1)
        expected = f"the expected number of the class, 0 ({quoted(classes[0])}) to "
        expected += f"{len(classes) - 1} ({quoted(classes[-1])})"
    if saved.quantity.is_binary:
        expected = "a probability from 0 to 1"
    if saved.quantity.affinity:
        unit = affinities.unit
        expected = "a pKd" if unit == "pkd" else f"a number in {unit}"
    problem = f"is not a valid prediction; expected {expected}. Predict these pairs or remove them."
    refuse_cells(table, is_invalid, column, problem, PredictionError)
    columns = {}
    for kind, sequences in table.sequences.items():
        columns[f"{kind}_key"] = hex_keys(sequences.keys[sequences.of_row])
    table_keys = pd.DataFrame(columns).assign(prediction=value)
    on = list(KEYS)
    folds = saved.tested["fold"].unique()
    if len(folds) > 1 and "fold" in table.frame.columns:
        fold = pd.Series(read_numbers(table.frame["fold"]), table.frame.index)
        # rows of no fold of the run count as unknown pairs, which are refused
        table_keys["fold"] = fold.where(fold.isin(folds), -1).astype(np.int64)
        on.append("fold")
    first = table_keys.groupby(on)["prediction"].transform("first")
    # other quantities have any scale
    same = SAME_PREDICTION_PKD if saved.quantity.affinity else SAME_PREDICTION_PKD * value.std()
    differs = abs(table_keys["prediction"] - first) > same
    repeated = int(differs.sum())
    if repeated:
        hint = ", or a column fold" if len(folds) > 1 else ""
        msg = (
            f"{table.source}: column {column} has more than one prediction for the same pair "
            f"({counted(repeated, 'extra row')}); expected one per pair{hint}. Remove the others."
        )
        raise PredictionError(msg)
    return table_keys.drop_duplicates(on, ignore_index=True), on


@dataclass(frozen=True, kw_only=True)
class _TableOfRun(TableOptions):
    """How a table is read whose run has decided whether there are antigens."""

    proposes_no_antigen = False


def evaluate(
    run: Path | str,
    *,
    table: TableLike | None = None,
    **options: Any,  # noqa: ANN401 - the fields of EvaluateOptions
) -> RunSummary:
    """Score a run on its saved split, and optionally on another table or against predictions.

    Parameters
    ----------
    run : path
        Folder of a finished run.
    table : path, DataFrame or list of these, optional
        Other measured pairs. Their label is read by its own name or by ``label``; a column of
        the run's name that states no unit is read as in the run. Other options of labels are
        those of the run.
    **options
        Fields of `EvaluateOptions`. ``predictions`` must cover all test pairs. With folds, its
        column ``fold`` assigns a row to the test part of one fold; without it, the prediction of
        a pair is used in all folds.

    Returns
    -------
    RunSummary
        The result of `fit`. A table adds ``table``: scores by the regime of its pairs, and how many
        of these are in training. ``strong`` adds ``strong_at``: how well strong binders are found,
        with cut-offs and the calibration of p_strong. ``predictions`` adds
        ``predictions``: their scores in each regime, and ``verdicts``.

    Raises
    ------
    NoFinishedRun
        If the run is unfinished or damaged.
    OptionError
        If the combination of inputs is invalid.
    PredictionError
        If the predictions are invalid or not of the pairs of the run.
    AbagError
        If a table cannot be read, or the store lacks some of its sequences.
    """
    chosen = EvaluateOptions.from_keywords(options, "evaluate")
    _check_inputs(table, chosen)
    saved = read_run(Path(run))
    strong = chosen.strong
    if saved.quantity.classes:  # pairs of the highest class are found by its probability
        strong = len(saved.quantity.classes) - 1.5
    saved.quantity.check_strong(chosen.strong)
    score_hits = partial(score_strong, quantity=saved.quantity)
    summary = saved.summary.copy()
    remembered = saved.layout
    table_options = [*schema(FileOptions), *schema(ReferenceOptions)]
    reading_options = {field.name: getattr(chosen, field.name) for field in table_options}
    if saved.config["no_antigen"]:
        refuse_antigen(chosen)
    reading = _TableOfRun(
        **reading_options,
        no_antigen=saved.config["no_antigen"],
        antibody_region=remembered.antibody_region,
        chains=remembered.chains,
        bad_rows=chosen.bad_rows or remembered.bad_rows,
    )
    if table is not None:
        summary["table"], scored = _evaluate_table(saved, table, reading, chosen)
        if strong is not None:
            of_run = (saved.tested, saved.summary["regimes"])
            summary["strong_at"] = score_hits(scored, summary["table"]["regimes"], strong, of_run)
    elif strong is not None:
        summary["strong_at"] = score_hits(saved.tested, summary["regimes"], strong)
    if chosen.predictions is not None:
        decide = partial(
            decide_prediction,
            options=LabelOptions(label=chosen.label, molar_mass=chosen.molar_mass),
            quantity=saved.quantity,
            molar_mass=saved.config["molar_mass"],
        )
        others = read_pairs(chosen.predictions, reading, remembered=saved.layout, label=decide)
        others.report_notes()
        summary["predictions"] = compare_with_predictions(saved, others)
    return summary


def decide_prediction(
    table: Table,
    options: LabelOptions,
    quantity: Quantity,
    molar_mass: str | None,
) -> LabelLayout:
    """Decide which column of a table holds the predictions of another tool, and in which unit.

    Those of another `quantity` than an affinity are taken as they are. `molar_mass` is that of the
    run, unless `options` give one. What is wrong is part of the result, as in `decide_label`.
    """
    try:
        if quantity.affinity:
            meaning = replace(choose_prediction(table, options.label), quantity=quantity)
            if options.molar_mass is None and UNITS[meaning.unit].of_mass:
                options = replace(options, molar_mass=molar_mass)
        else:
            refuse_other_options(table, options, quantity)
            own = PROBABILITY if quantity.is_binary and PROBABILITY in table.names else ""
            column = own if own and not table.has("prediction") else table.column("prediction")
            refuse_affinity(Column(table, column), quantity)
            # predictions of classes are numbers
            meaning = as_it_is(column, replace(quantity, classes=()), AS_IN_THE_RUN)
    except AbagError as error:
        return LabelLayout(source=table.source, meaning=None, options=options, refused=error)
    return LabelLayout(source=table.source, meaning=meaning, options=options)


def _check_inputs(table: object, options: EvaluateOptions) -> None:
    given = {"TABLE": table is not None, "--predictions": options.predictions is not None}
    refuse_together("each has pairs to score", given)
    if table is not None:
        return
    names = {option.name for option in schema(EvaluateOptions)}
    of_table = {"store", "affinity_type"}
    if options.predictions is None:
        of_table = names - {"strong"}
    options.refuse_without("a TABLE", of_table)


def _evaluate_table(
    saved: SavedRun,
    table: TableLike,
    reading: _TableOfRun,
    chosen: EvaluateOptions,
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Read the measured pairs of a table, and score them with the predictor of the run."""

    def decide(top: Table) -> LabelLayout:
        labels = labels_as_in_the_run(
            saved.config,
            top,
            label=chosen.label,
            molar_mass=chosen.molar_mass,
            affinity_type=chosen.affinity_type,
        )
        labels = replace(labels, bad_rows=reading.bad_rows)
        trusted = [(name, role) for name, role in trusted_by if name in top.names]
        return decide_label(top, labels, remembered.label, named=[*named, *trusted], run=saved.run)

    remembered = saved.layout
    predictor = load_predictor(saved.run)
    named = [] if predictor.features is None else predictor.features.named_in_tables
    of_run = PairColumnOptions(error=saved.config["error"], weight=saved.config["weight"])
    trusted_by = named_beside(of_run)
    other = read_pairs(table, reading, remembered=remembered, label=decide, refuse=False)
    predictor.refuse_without_chains(other.antibodies, other.source)
    pairs = label_pairs(other)
    report_counts(pairs)
    pairs.report_problems()
    strong_pkd = chosen.strong
    if strong_pkd is None:
        strong_pkd = strong_threshold(saved.config["select"], saved.quantity)
    return _score_table(saved, predictor, pairs, chosen.store, strong_pkd)


def _score_table(
    saved: SavedRun,
    predictor: Predictor,
    pairs: LabelledPairs,
    store: Path | str | None,
    strong_pkd: float | None,
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Score the pairs of a table by what is new about them; return the scores of each, too."""
    identities = {name: saved.config[name] for name in ("antibody_identity", "antigen_identity")}
    groups = PairGroups(pairs, SplitOptions(**identities))
    pairs = with_clusters(groups)
    scores_by_row, baselines = _score_pairs(predictor, pairs, store)
    predicted = scores_by_row["pkd_predicted"].to_numpy(np.float64)
    keys_of_run = pd.MultiIndex.from_frame(saved.trained[KEYS])
    is_trained = pd.MultiIndex.from_frame(pair_keys(pairs)).isin(keys_of_run)
    regimes = _score_regimes(saved, predictor, groups, scores_by_row, baselines, is_trained)
    scored = scores_by_row.assign(
        pkd=pairs.pkd, censored=pairs.censored, fold=0, group=pairs.antigen
    )
    if pairs.share is not None:
        scored = scored.assign(weight=label_weights(pairs.share))
    rows = rows_to_score(pairs, np.arange(len(pairs)))
    keys = pair_keys(pairs)
    counts = {"pair": int(is_trained.sum())}
    for kind in KINDS:
        is_known = keys[f"{kind}_key"].isin(saved.trained[f"{kind}_key"])
        counts[kind] = int(is_known.sum())
    antigens = f", {counts['antigen']:,} a training antigen" if "antigen" in pairs.kinds else ""
    say(
        f"{pairs.table.source}: {counts['pair']:,} of {counted(len(pairs), 'pair')} are training "
        f"pairs of the run; {counts['antibody']:,} have a training antibody{antigens}"
    )
    summary = {
        "source": pairs.table.source,
        "pairs": len(pairs),
        "in_training": counts,
        **_score_shift(saved, predictor, groups, scores_by_row),
        "far": int(scores_by_row["far"].sum()),
        "regimes": regimes,
        "metrics": rows.score(predicted, strong_pkd),
    }
    return summary, scored


def _score_pairs(
    predictor: Predictor, pairs: LabelledPairs, store: Path | str | None
) -> tuple[pd.DataFrame, dict[str, Floats]]:
    """Score pairs with the predictor, and with those of its parts that are baselines, (P,) each."""
    path = predictor.resolve_store(store)
    predictor.encode(path, pairs.table.antibodies, pairs.table.antigens)  # as predict does
    scorer = Scorer(predictor, open_store(path), pairs.table.antibodies, pairs.table.antigens)
    features = None
    if predictor.features is not None:
        cells = predictor.features.with_stored(pairs.cells, len(pairs))
        features = features_of(predictor.features, cells, pairs.table.source)
    scored = scorer.score(pairs.antibody, pairs.antigen, features=features)
    baselines: dict[str, Floats] = {}
    names = [*predictor.parts.models]
    if len(names) > 2:  # else the model is the head, beside the mean
        names = [name for name in names if name != MEAN and MODELS[name].is_baseline]
        baselines = predictor.parts.predict(scored.vectors, names)
    return scored.scores, baselines


def _score_regimes(
    saved: SavedRun,
    predictor: Predictor,
    groups: PairGroups,
    scores_by_row: pd.DataFrame,
    baselines: Mapping[str, Floats],
    is_trained: Bools,
) -> list[RegimeScore]:
    """Score the exact labels of each regime that has enough of them.

    `is_trained`, (P,), tells which pairs the run was trained on.
    """
    pairs = groups.pairs
    predicted = scores_by_row["pkd_predicted"].to_numpy(np.float64)
    sigma = scores_by_row["sigma"].to_numpy(np.float64)
    regime_of_pair = scores_by_row["regime"].to_numpy(str)
    exact = saved.trained[saved.trained["censored"] == 0]
    weight = exact["weight"] if "weight" in exact else None
    mean_of_run = float(np.average(exact["pkd"], weights=weight))
    regimes = list[RegimeScore]()
    for name, regime in REGIMES.items():
        rows = np.flatnonzero(regime_of_pair == name)
        tested = _tested_pairs(predictor, groups, rows, regime)
        if np.count_nonzero(tested.is_exact) < LEAST_ROWS:
            continue
        _, used = predictor.applied(name)
        baselines_here = {}
        if not pairs.quantity.classes:  # latent values, which no link turns into classes
            baselines_here = {name: values[rows] for name, values in baselines.items()}
        score = score_regime(
            name,
            regime.words,
            tested,
            predicted[rows],
            np.full(len(rows), mean_of_run),
            baselines_here,
            sigma[rows],
            weights=predictor.regimes[used].mixture.weights,
            quantity=pairs.quantity,
        )
        trained = int(is_trained[rows].sum())
        if trained:
            verb = "is a training pair" if trained == 1 else "are training pairs"
            score["sentence"] += (
                f"; {trained:,} of {counted(len(rows), 'pair')} {verb}, which makes all this "
                "optimistic: leave them out"
            )
        regimes.append(score)
    return regimes


def _counted(predictor: Predictor, groups: PairGroups, kind: Kind, level: int) -> Ints:
    """Number what counts as one sequence of a level among the pairs, (P,), as in `Side`."""
    if predictor.seen[kind].residues is not None:
        return groups.pairs.index(kind)  # of a library, clusters would be too few
    is_strain = kind == "antigen" and level == VARIANT
    return groups.near_antigen if is_strain else groups.of_method(kind)


def _tested_pairs(
    predictor: Predictor, groups: PairGroups, rows: Ints, regime: Regime
) -> TestedPairs:
    """Take the rows of a regime, all in one fold, grouped by what is new about them."""
    pairs = groups.pairs
    levels = dict(zip(KINDS, regime.levels, strict=True))
    kinds = regime.new or KINDS
    sides = [_counted(predictor, groups, kind, levels[kind])[rows] for kind in kinds]
    if not regime.new:  # a pair is a measurement of its clusters
        sides = [np.unique(np.stack(sides), axis=1, return_inverse=True)[1].reshape(-1)]
    fold = np.zeros(len(rows), np.int64)
    return TestedPairs(
        rows,
        pairs.pkd[rows],
        fold,
        pairs.antibody[rows],
        pairs.antigen[rows],
        sides,
        weight=weights_of(pairs.share, rows),
        censored=pairs.censored[rows],
        kinds=pairs.kinds,
    )


def _score_shift(
    saved: SavedRun, predictor: Predictor, groups: PairGroups, scores_by_row: pd.DataFrame
) -> dict[str, Any]:
    """Return the mean error, the RMSE of exact labels without it, and both in words."""
    pairs = groups.pairs
    exact = pairs.censored == 0
    error = scores_by_row["pkd_predicted"].to_numpy(np.float64) - pairs.pkd
    if not exact.any():
        return {"bias": None, "bias_interval": None, "rmse_without_bias": None, "sentence": ""}
    names = scores_by_row["regime"].to_numpy(str)
    weight = weights_of(pairs.share, np.arange(len(pairs)))
    errors = errors_with_bounds(
        error, pairs.censored, scores_by_row["sigma"].to_numpy(np.float64), weight
    )
    bias = mean_claim(errors, _groups_of_regimes(predictor, groups, names), weight=weight)
    weight = weights_of(pairs.share, np.flatnonzero(exact))
    error = error[exact]
    root = float(np.sqrt(np.average(np.square(error), weights=weight)))
    without = rmse(error, np.full(len(error), bias.value), weight)
    quantity = saved.quantity
    noticeable = 0.005  # shown with two digits
    if not quantity.affinity:
        spreads = [regime["rmse_of_mean"] for regime in saved.summary["regimes"]]
        noticeable = NOTICEABLE * max(spreads, default=0.0)
    is_selection = len(error) < (1 - MANY_BOUNDS) * len(pairs)
    sentence = ""
    if abs(bias.value) >= noticeable and without is not None:
        show = quantity.show
        side = "high" if bias.value > 0 else "low"
        noun = "probabilities" if quantity.is_binary else "predictions"
        sentence = f"{noun} are {show(abs(bias.value))}"
        if bias.low is not None and bias.high is not None:
            ends = sorted(np.sign(bias.value) * np.array([bias.low, bias.high]))
            sentence += f" [{show(ends[0])}, {show(ends[1])}]"
        unit = "" if quantity.classes else f" {quantity}"
        sentence += f"{unit} too {side} on average"
        if len(error) < len(pairs):
            sentence += " by labels and bounds"
        if bias.low is not None and not (bias.holds or bias.fails):
            sentence += ", which may be chance"
        elif bias.low is not None and not is_selection:
            sentence += f"; RMSE {show(root)}, and {show(without)} once this is taken off"
    is_large = len(error) >= LEAST_ROWS and abs(bias.value) >= LEAST_SHIFT * root
    if is_large and np.ptp(pairs.pkd[exact]):  # else such as the end of an assay
        is_untold = bias.low is None
        if is_untold:
            sentence += (
                f"; effectively {counted(round(bias.groups), 'group')} of pairs cannot tell this "
                "from chance"
            )
        if is_untold or _is_clear(bias, saved, predictor, names):
            sentence += f". {_advice(saved, predictor)}"
    return {
        "bias": bias.value,
        "bias_interval": None if bias.low is None else [bias.low, bias.high],
        "rmse_without_bias": without,
        "sentence": sentence,
    }


def errors_with_bounds(
    error: Floats, censored: NDArray[np.int8], sigma: Floats, weight: Floats | None = None
) -> Floats:
    """Return values, (R,), whose mean is that of the errors, and which deviate from it as they do.

    Exact labels alone are a selection, whose predictions are shifted by that. The mean is the most
    likely one if errors are normal, given those of labels, and by how much bounds are exceeded;
    each value deviates by its influence on the mean. Without bounds, values are the errors.

    Parameters
    ----------
    error : Floats, shape=(R,)
        Prediction minus label or bound, of which one label at least.
    censored : ndarray, shape=(R,), dtype=int8
        -1 if the label is below its bound, 1 if above, 0 if exact.
    sigma : Floats, shape=(R,)
        Of the predictions.
    weight : Floats, shape=(R,), optional
    """
    if not censored.any():
        return error
    typical = float(np.sqrt(np.average(np.square(sigma), weights=weight)))

    def expected_errors(mean: float) -> tuple[Floats, Floats]:
        # of labels relative to their predictions, bounds are at -error
        expected, variance = expected_labels(-error, censored, np.full(len(error), -mean), typical)
        return -expected, variance

    def slope(mean: float) -> float:
        return float(np.average(expected_errors(mean)[0], weights=weight)) - mean

    # the slope of the log-likelihood falls with the mean, and labels let it change its sign
    low = high = 0.0
    while slope(low) < 0:
        low = 2 * low - typical
    while slope(high) > 0:
        high = 2 * high + typical
    from scipy.optimize import brentq  # takes 0.3 s, which few labels need

    mean = brentq(slope, low, high, xtol=CLOSE * typical)
    errors, variance = expected_errors(mean)
    told = float(np.average(1 - variance / typical**2, weights=weight))
    return np.asarray(mean + (errors - mean) / told)


def _groups_of_regimes(
    predictor: Predictor, groups: PairGroups, names: NDArray[np.str_]
) -> list[Ints]:
    """Group pairs of several regimes, each by what is new about it, once for either side."""
    level_R2 = np.array([REGIMES[name].levels for name in names])
    total = len(names)
    sides = []
    for side, kind in enumerate(KINDS):
        group = np.arange(total)  # a side that is known groups nothing
        for level in filter(None, distinct(level_R2[:, side]).tolist()):
            inside = level_R2[:, side] == level
            counted_as = _counted(predictor, groups, kind, level)[inside]
            group[inside] = level * total + np.unique(counted_as, return_inverse=True)[1]
        sides.append(group)
    is_known = ~level_R2.any(axis=1)
    clusters = [_counted(predictor, groups, kind, 0)[is_known] for kind in KINDS]
    both = np.unique(np.stack(clusters), axis=1, return_inverse=True)[1].reshape(-1)
    for group in sides:
        group[is_known] = LEVELS * total + both
    return sides


def _is_clear(bias: Claim, saved: SavedRun, predictor: Predictor, names: NDArray[np.str_]) -> bool:
    """Tell whether a mean error is more than chance can give labels of one laboratory.

    The level of the predictions is of the groups of the run, which are as random as those of the
    table. As either sign is claimed, each is asked for half of the level.
    """
    if bias.low is None or bias.high is None:
        return False
    trained = []
    for name in np.unique(names):
        _, used = predictor.applied(name)
        trained += [
            score["groups"] for score in saved.summary["regimes"] if score["regime"] == used
        ]
        trained += [float(saved.trained[kind].nunique()) for kind in REGIMES[name].new]
    of_run = min(trained, default=bias.groups)
    degrees = min(of_run, bias.groups) - 1
    if degrees <= 0:
        return False
    wider = stdtrit(degrees, (1 + LEVEL) / 2) / stdtrit(bias.groups - 1, LEVEL)
    half = (bias.high - bias.low) / 2 * wider * np.sqrt(1 + bias.groups / of_run)
    return bool(abs(bias.value) > half)


def _advice(saved: SavedRun, predictor: Predictor) -> str:
    """Say how labels of another laboratory or batch are predicted at their level."""
    add = (
        "If these pairs are of another laboratory, assay or batch, measure about "
        f"{PAIRS_OF_BATCH} of them and add these with abag fit --add {saved.run}"
    )
    of_run = [] if predictor.features is None else predictor.features.categories
    named = ",".join(column.name for column in of_run)
    if named:
        return (
            f"{add}; if {named} does not tell the laboratory or batch, with --categories "
            f"{named},COLUMN, where COLUMN does"
        )
    return f"{add} --categories COLUMN, a column that names the laboratory or batch of each pair"
