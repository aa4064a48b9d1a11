"""Every score that `fit` and `evaluate` print, computed again from files with other libraries."""

import json
import re
from types import SimpleNamespace

import invoke
import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from heads import demo_table
from scipy import stats
from sklearn import metrics as sk

import abag

KEYS = ["antibody_key", "antigen_key"]
RUNS = {
    "default": {"head": "ridge"},
    "random": {"head": "ridge", "split": "random"},
    "antigen": {"head": "ridge", "split": "antigen", "folds": 3},
    "both": {"head": "gp", "split": "both"},
}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("truth")
    table = demo_table().head(700)
    table["censored"] = np.where(np.arange(len(table)) % 20 == 3, ">", "")
    table.to_csv(at / "pairs.csv", index=False)
    abag.embed_table(at / "pairs.csv", at / "store", **COMPOSITION)
    for name, options in RUNS.items():
        abag.fit(at / "pairs.csv", at / "store", at / name, report=False, **options)
    return SimpleNamespace(at=at, table=table)


def regimes_of(run):
    """Yield the summary of each regime, and its rows: all, and exact ones with baselines."""
    tested = pd.read_parquet(run / "predictions.parquet")
    baselines = pd.read_parquet(run / "baselines.parquet")
    assert tested[[*KEYS, "fold"]].equals(baselines[[*KEYS, "fold"]])
    rows = tested.join(baselines.drop(columns=[*KEYS, "fold"]))
    for regime in json.loads((run / "summary.json").read_text())["regimes"]:
        regime_rows = rows[rows["regime"] == regime["regime"]]
        yield regime, regime_rows, regime_rows[regime_rows["censored"] == 0]


def rmse(pkd, predicted):
    return sk.root_mean_squared_error(pkd, predicted)


def mean_spearman(rows, by):
    """Average rank correlations by their pairs: of cells of five or more, and of pooled ones."""
    values = []
    sizes = []
    columns = ["pkd", "pkd_predicted"]
    rows = rows.assign(cell=rows.groupby(by).ngroup(), sequence=0)
    if len(by) > 1:
        rows["sequence"] = rows.groupby(by[1:]).ngroup()
    size = rows.groupby("cell")["pkd"].transform("size")
    units = [cell for _, cell in rows[size >= 5].groupby("cell")]
    small = rows[(size > 1) & (size < 5)]
    of_sequence = small.groupby("sequence")["pkd"].transform("size")
    units += [unit for _, unit in small[of_sequence >= 5].groupby("sequence")]
    rest = small[of_sequence < 5]
    for unit in [*units, *([rest] if len(rest) > 2 else [])]:
        cells = unit.groupby("cell")
        level = cells[columns].transform("mean") if cells.ngroups > 1 else 0
        rank = (unit[columns] - level).round(9).rank()
        rank -= rank.groupby(unit["cell"]).transform("mean")
        if (rank["pkd"] == 0).all():
            continue
        constant = (rank["pkd_predicted"] == 0).all()
        values.append(0.0 if constant else stats.pearsonr(*rank.to_numpy().T).statistic)
        sizes.append(len(unit))
    return np.average(values, weights=sizes) if values else None


def scores(rows, predicted, name="pkd"):
    """Return what `sklearn.metrics` and scipy give for one fold."""
    y = rows[name]
    p = rows[predicted]
    strong = y >= 9
    picked = p >= 9
    varies = p.nunique() > 1
    return {
        "rmse": rmse(y, p),
        "mae": sk.mean_absolute_error(y, p),
        "r2": sk.r2_score(y, p),
        "pearson": stats.pearsonr(y, p).statistic if varies else np.nan,
        "spearman": stats.spearmanr(y, p).statistic if varies else np.nan,
        "recall_at_9": sk.recall_score(strong, picked) if strong.any() else np.nan,
        "precision_at_9": sk.precision_score(strong, picked) if picked.any() else np.nan,
        "average_precision_at_9": sk.average_precision_score(strong, p) if strong.any() else np.nan,
        "spread_ratio": np.std(p) / np.std(y),
    }


def same(value, expected, near=1e-6):
    missing = expected is None or np.isnan(expected)
    return value is None if missing else value == pytest.approx(expected, rel=near, abs=near)


@pytest.mark.parametrize("name", RUNS)
def test_labels_rows_and_training_means_are_those_of_the_table(case, name):
    run = case.at / name
    pairs = case.table.groupby(["heavy", "light", "antigen"])["pKd"].median()
    splits = pd.read_parquet(run / "splits.parquet")
    labels = pd.read_parquet(run / "pairs.parquet").set_index(KEYS)
    for _, rows, exact in regimes_of(run):
        cells = case.table.iloc[rows["row"] - 2]  # as a spreadsheet numbers rows below a header
        assert cells["id"].tolist() == rows["id"].tolist()
        of_cells = pairs.loc[pd.MultiIndex.from_frame(cells[["heavy", "light", "antigen"]])]
        is_bound = cells["censored"].to_numpy() == ">"
        assert (rows["censored"].to_numpy() == np.where(is_bound, -1, 0)).all()
        np.testing.assert_allclose(rows["pkd"][~is_bound], of_cells[~is_bound], atol=1e-6)
        for fold, tested in exact.groupby("fold"):
            of_fold = splits[splits["fold"] == fold].set_index(KEYS)
            parts = of_fold["split"].reindex(pd.MultiIndex.from_frame(tested[KEYS]))
            assert set(parts) == {"test"}
            train = labels.loc[of_fold.index[of_fold["split"] == "train"]]
            if not (train["censored"] != 0).any():
                assert tested["train_mean"].to_numpy() == pytest.approx(train["pkd"].mean())


@pytest.mark.parametrize("name", RUNS)
def test_the_scores_of_a_regime_are_those_of_scikit_learn_and_scipy(case, name):
    for regime, _, exact in regimes_of(case.at / name):
        y = exact["pkd"]
        p = exact["pkd_predicted"]
        mean = exact["train_mean"]
        assert regime["n"] == len(exact[KEYS].drop_duplicates())
        assert same(regime["rmse"], rmse(y, p))
        assert same(regime["r2"], sk.r2_score(y, p))
        skill = 1 - sk.mean_squared_error(y, p) / sk.mean_squared_error(y, mean)
        assert same(regime["skill"], skill)
        assert same(regime["rmse_of_mean"], rmse(y, mean))
        assert same(
            regime["coverage"], (abs(y - p) <= stats.norm.ppf(0.95) * exact["sigma"]).mean()
        )
        assert same(regime["rmse_of_best"], rmse(y, exact[regime["best_baseline"]]))
        for key, by in (
            ("spearman", ["fold"]),
            ("spearman_within_antigen", ["fold", "antigen_key"]),
        ):
            if regime[key] is not None:
                assert same(regime[key]["value"], mean_spearman(exact, by))
        difference = np.square(y - mean) - np.square(y - p)
        assert same(regime["better_than_mean"]["value"], difference.mean())


@pytest.mark.ci
@pytest.mark.parametrize("name", RUNS)
def test_the_metrics_of_every_model_are_averages_of_what_scikit_learn_gives_per_fold(case, name):
    for regime, rows, exact in regimes_of(case.at / name):
        for model, metrics in regime["metrics"].items():
            column = "pkd_predicted" if model == "head" else model
            folds = []
            for _, fold_rows in exact.groupby("fold"):
                # one row without a prediction, and the scores of its fold are undefined
                if fold_rows[column].notna().all():
                    folds.append(scores(fold_rows, column))
            if not folds:
                assert metrics["rmse"] is None
                continue
            by_fold = pd.DataFrame(folds).mean()
            predicted = exact[exact.groupby("fold")[column].transform(lambda p: p.notna().all())]
            level = predicted.groupby("fold")[column].transform("mean")
            strong = predicted["pkd"] >= 9
            if strong.any():
                by_fold["average_precision_at_9"] = sk.average_precision_score(
                    strong, (predicted[column] - level).round(9)
                )
            for metric, expected in by_fold.items():
                assert same(metrics[metric], expected), (model, metric)
            assert metrics["n"] == len(rows)


@pytest.mark.parametrize("name", RUNS)
def test_the_median_correlation_within_antigens_is_that_of_scipy(case, name):
    clusters = pd.read_parquet(case.at / name / "pairs.parquet").get("antigen_cluster")
    for regime, _, exact in regimes_of(case.at / name):
        of_folds = []
        for _, rows in exact.groupby("fold"):
            size = rows.groupby("antigen_key")["pkd"].transform("size")
            group = rows["antigen_key"]
            if clusters is not None:
                group = group.where(size >= 5, clusters[rows["pair"]].astype(str).to_numpy())
            values = [
                stats.spearmanr(group_rows["pkd"], group_rows["pkd_predicted"]).statistic
                for _, group_rows in rows.groupby(group)
                if len(group_rows) >= 5
            ]
            of_folds += [np.median(values)] if values else []
        expected = np.mean(of_folds) if of_folds else None
        assert same(regime["metrics"]["head"]["spearman_within_antigen"], expected)


@pytest.mark.parametrize("name", RUNS)
def test_strong_binders_are_counted_as_scikit_learn_counts_them(case, name):
    summary = json.loads((case.at / name / "summary.json").read_text())
    for strong, (_, rows, _) in zip(
        summary["strong"]["regimes"], regimes_of(case.at / name), strict=True
    ):
        below = (rows["censored"] < 0) & (rows["pkd"] <= 9)
        decided = rows[(rows["censored"] == 0) | below]
        is_strong = (decided["pkd"] >= 9) & (decided["censored"] == 0)
        picked = decided["pkd_predicted"] >= 9
        assert (strong["n"], strong["strong"]) == (len(decided), is_strong.sum())
        if is_strong.any():
            recall = sk.recall_score(is_strong, picked)
            ordered = sk.average_precision_score(is_strong, decided["pkd_predicted"])
            assert same(strong["at_threshold"]["recall"], recall)
            assert same(strong["average_precision"], ordered)
        if picked.any():
            assert same(strong["at_threshold"]["precision"], sk.precision_score(is_strong, picked))


def bootstrap(rows, draws=4000):
    """Draw whole groups with replacement; return the quantiles of each score."""
    inside = abs(rows["pkd"] - rows["pkd_predicted"]) <= 1.6449 * rows["sigma"]
    y = rows["pkd"]
    values = pd.DataFrame(
        {
            "n": 1.0,
            "y": y,
            "y2": y**2,
            "inside": inside.astype(float),
            "square": (y - rows["pkd_predicted"]) ** 2,
            "of_mean": (y - rows["train_mean"]) ** 2,
        }
    )
    groups = values.groupby(rows["group"].to_numpy()).sum()
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), draws)
    drawn = pd.DataFrame(counts @ groups.to_numpy(), columns=groups.columns)
    around_mean = drawn["y2"] - drawn["y"] ** 2 / drawn["n"]
    resampled = pd.DataFrame(
        {
            "rmse": np.sqrt(drawn["square"] / drawn["n"]),
            "rmse_of_mean": np.sqrt(drawn["of_mean"] / drawn["n"]),
            "r2": 1 - drawn["square"] / around_mean,
            "skill": 1 - drawn["square"] / drawn["of_mean"],
            "coverage": drawn["inside"] / drawn["n"],
        }
    )
    return resampled.quantile([0.025, 0.975])


@pytest.mark.parametrize("name", ["default", "random", "antigen"])
def test_the_ends_of_intervals_are_near_those_of_a_bootstrap_of_groups(case, name):
    compared = 0
    for regime, _, exact in regimes_of(case.at / name):
        if not exact["group"].equals(exact["second_group"]):
            continue  # of two groupings the wider interval counts
        for score, (low, high) in bootstrap(exact).items():
            if score == "rmse" and exact["fold"].nunique() > 1:
                # held-out pairs of one fold are learned from in the others: twice the variance
                center = regime["rmse"]
                low, high = (center * (end / center) ** np.sqrt(2) for end in (low, high))
                low *= 0.94  # folds learn from 80 % of the pairs, the predictor from all
            interval = regime["intervals"][score]
            width = high - low
            # the jackknife is symmetric and has Student's t: wider for few groups
            of_interval = (regime["regime"], score)
            assert interval == pytest.approx([low, high], abs=0.25 * width), of_interval
            compared += 1
    assert compared >= 5


def test_the_command_prints_these_scores(case):
    printed = invoke.run("evaluate", "--run", case.at / "default").stdout
    cells = {}
    for line in printed.splitlines():  # two regimes beside each other, others below
        cells.setdefault(line[:28].strip(), []).extend(re.findall(r"(-?[\d.]+) \[", line))
    exact_rows = [exact for _, _, exact in regimes_of(case.at / "default")]
    for line, value in {
        "RMSE (pKd)": lambda rows: rmse(rows["pkd"], rows["pkd_predicted"]),
        "R2": lambda rows: sk.r2_score(rows["pkd"], rows["pkd_predicted"]),
        "RMSE of mean (pKd)": lambda rows: rmse(rows["pkd"], rows["train_mean"]),
    }.items():
        assert cells[line] == [f"{value(rows):.2f}" for rows in exact_rows]
    assert "skill" not in cells  # nearly R2; it is in summary.json


def test_another_table_is_scored_as_its_predictions_are(case, tmp_path):
    new = demo_table().tail(400).drop_duplicates(["heavy", "light", "antigen"])
    new.to_csv(tmp_path / "new.csv", index=False)
    run = case.at / "default"
    evaluated = abag.evaluate(run, table=tmp_path / "new.csv")["table"]
    abag.predict(tmp_path / "new.csv", run, tmp_path / "scored.parquet")
    rows = pd.read_parquet(tmp_path / "scored.parquet").astype({"pKd": float})
    labels = pd.read_parquet(run / "pairs.parquet")
    of_run = labels.loc[labels["censored"] == 0, "pkd"].mean()
    for metric, expected in scores(rows, "pkd_predicted", "pKd").items():
        assert same(evaluated["metrics"][metric], expected, 1e-4), metric
    bias = (rows["pkd_predicted"] - rows["pKd"]).mean()
    assert evaluated["bias"] == pytest.approx(bias, abs=1e-5)
    for regime in evaluated["regimes"]:
        regime_rows = rows[rows["regime"] == regime["regime"]]
        y = regime_rows["pKd"]
        p = regime_rows["pkd_predicted"]
        assert regime["n"] == len(regime_rows)
        assert regime["rmse"] == pytest.approx(rmse(y, p), abs=1e-5)
        assert regime["r2"] == pytest.approx(sk.r2_score(y, p), abs=1e-5)
        of_mean = np.mean((y - of_run) ** 2)
        assert regime["skill"] == pytest.approx(1 - np.mean((y - p) ** 2) / of_mean, abs=1e-5)
        spearman = stats.spearmanr(y, p).statistic
        assert regime["spearman"]["value"] == pytest.approx(spearman, abs=1e-4)
        inside = abs(y - p) <= stats.norm.ppf(0.95) * regime_rows["sigma"]
        assert regime["coverage"] == pytest.approx(inside.mean(), abs=1e-9)


def test_the_run_s_own_predictions_have_its_scores_when_they_come_from_elsewhere(case, tmp_path):
    run = case.at / "antigen"
    tested = pd.read_parquet(run / "predictions.parquet")
    cells = case.table.iloc[tested["row"] - 2].reset_index(drop=True)
    theirs = cells[["heavy", "light", "antigen"]].assign(
        fold=tested["fold"], prediction=tested["pkd_predicted"]
    )
    theirs.to_csv(tmp_path / "theirs.csv", index=False)
    summary = abag.evaluate(run, predictions=tmp_path / "theirs.csv")
    for ours, outside in zip(summary["regimes"], summary["predictions"]["regimes"], strict=True):
        for score in ("rmse", "r2", "skill", "rmse_of_mean"):
            assert outside[score] == pytest.approx(ours[score], abs=1e-6), score
