"""Errors and weights of labels: how they are read, and that models trust labels by them."""

import json
from types import SimpleNamespace

import drawn
import numpy as np
import pandas as pd
import pytest
from marks import in_ci
from reading import read_labels
from scipy.stats import norm, spearmanr
from sklearn.linear_model import LinearRegression, Ridge

import abag
from abag import ColumnError, LabelError
from abag.head.design.batches import known_errors
from abag.head.evaluation.verdicts import describe_regimes
from abag.head.labels.headers import PKD as PKD_QUANTITY
from abag.head.models.pair_vectors import TrainingRows
from abag.head.models.ridge import STRENGTHS, FeatureBlock
from abag.head.models.ridge import Ridge as PairRidge
from abag.head.regimes.splits import TEST, TRAIN, Split
from abag.head.runs.report import chart_data
from abag.head.runs.run_folder import read_run
from abag.head.sweep import without_test_part

ERRORS = np.array([0.1, 0.2, 0.3, 0.4])
PKD = np.array([6.0, 7.0, 8.0, 9.0])
QUICK = {"split": "random", "report": False, "device": "cpu"}


def table_of(**columns):
    """Return a table of four pairs."""
    heavy = ["EVQLVESGGGLVQPGGSLRLSCAAS" + tail for tail in "ACDE"]
    return pd.DataFrame({"heavy": heavy, "antigen": "MKTAYIAKQRQISFVKSHFSRQ", **columns})


def read(frame, better=None, label=None, **named):
    return read_labels(frame, better=better, label=label, **named)


def share_by_label(pairs):
    """Return the variances of noise in the order of the labels."""
    return pairs.share[np.argsort(pairs.pkd)]


def test_half_of_the_noise_follows_the_squared_errors():
    pairs = read(table_of(pkd=PKD, sd=ERRORS), error="sd")
    expected = 0.5 + 0.5 * ERRORS**2 / np.mean(ERRORS**2)
    np.testing.assert_allclose(share_by_label(pairs), expected)
    rows = np.arange(4)
    training = TrainingRows(pairs, None, rows, np.zeros(4, np.int64))
    np.testing.assert_allclose(training.noise_share, pairs.share)
    np.testing.assert_allclose(training.weight, 1 / pairs.share / np.mean(1 / pairs.share))


def test_errors_of_concentrations_become_those_of_pkd(capsys):
    kd = np.array([1000.0, 100.0, 10.0, 1.0])
    error = np.array([100.0, 20.0, 3.0, 0.4])  # 10 to 40 %
    pairs = read(table_of(kd_nM=kd, sd=error), error="sd")
    sd = error / kd / np.log(10)
    expected = 0.5 + 0.5 * sd**2 / np.mean(sd**2)
    np.testing.assert_allclose(share_by_label(pairs), expected)
    assert f"median {np.median(sd):.2f} pKd" in capsys.readouterr().err


def test_weights_are_relative():
    weights = np.array([1.0, 2.0, 4.0, 8.0])
    pairs = read(table_of(pkd=PKD, w=weights), weight="w")
    again = read(table_of(pkd=PKD, w=10 * weights), weight="w")
    np.testing.assert_allclose(pairs.share, again.share)
    expected = (1 / weights) / np.mean(1 / weights)
    np.testing.assert_allclose(share_by_label(pairs), expected)


def test_replicates_have_the_error_of_their_mean():
    single = table_of(pkd=PKD, sd=0.2)
    frame = pd.concat([single, single.head(1).assign(pkd=6.1)])
    variance = np.array([0.2**2 / 2, 0.2**2, 0.2**2, 0.2**2])
    expected = 0.5 + 0.5 * variance / variance.mean()
    np.testing.assert_allclose(share_by_label(read(frame, error="sd")), expected)


@pytest.mark.parametrize("replicates", ["median", "mean"])
def test_replicates_count_by_their_weights(replicates):
    single = table_of(pkd=PKD, w=1.0)
    frame = pd.concat([single, single.head(1).assign(pkd=3.0, w=1e-3)])
    pairs = read(frame, weight="w", replicates=replicates)
    assert pairs.pkd.min() == pytest.approx((6.0 + 3.0e-3) / 1.001)
    weight = 1 / share_by_label(pairs)
    np.testing.assert_allclose(weight / weight[1], [1.001, 1, 1, 1])


def test_a_weighted_median_is_where_half_of_the_weight_is_below():
    rows = pd.DataFrame({"pkd": [5.0, 6.0, 9.0, 7.0, 7.5], "w": [1.0, 1.0, 4.0, 2.0, 2.0]})
    rows = rows.assign(
        heavy=[*["EVQLVESGGGLVQPGGSLRLSCAASA"] * 3, *["EVQLVESGGGLVQPGGSLRLSCAASC"] * 2]
    )
    pairs = read(rows.assign(antigen="MKTAYIAKQRQISFVKSHFSRQ"), weight="w")
    expected = np.interp(0.5, [0.5 / 6, 1.5 / 6, 4 / 6], [5.0, 6.0, 9.0])
    np.testing.assert_allclose(np.sort(pairs.pkd), np.sort([7.25, expected]))


def test_other_quantities_have_errors_in_their_unit():
    frame = table_of(**{"Tm (°C)": 60 + PKD, "sd": ERRORS})
    pairs = read(frame, better="higher", label="value", error="sd")
    np.testing.assert_allclose(share_by_label(pairs), 0.5 + 0.5 * ERRORS**2 / np.mean(ERRORS**2))


def test_bounds_may_lack_an_error():
    frame = table_of(kd_nM=["100", "10", "1", ">5000"], sd=[10.0, 1.0, 0.1, np.nan])
    pairs = read(frame, error="sd")
    np.testing.assert_allclose(pairs.share, 1)


@pytest.mark.parametrize("name", ["KD", "KD (nM)"])
def test_errors_of_labels_in_several_units_are_refused(name):
    frame = table_of(
        **{name: ["100 nM", "10 nM", "300 pM", ">10 µM"]}, sd=[10.0, 1.0, 30.0, np.nan]
    )
    with pytest.raises(LabelError, match=r"row 3, column KD.*: '300 pM'.* another unit than kd_nm"):
        read(frame, error="sd")
    of_one_unit = read(frame.drop(index=2), error="sd")
    np.testing.assert_allclose(of_one_unit.share, 1)


@pytest.mark.parametrize("option", ["error", "weight"])
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "1,100"])
def test_values_that_are_not_above_0_are_refused_with_their_row(option, bad):
    frame = table_of(pkd=PKD, sd=np.array([0.1, bad, 0.3, 0.4], object))
    with pytest.raises(LabelError, match=f"row 2, column sd: .*not a valid {option}") as refused:
        read(frame, **{option: "sd"})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("option", ["error", "weight"])
@pytest.mark.parametrize("extreme", [1e154, 1e308, 1e14, 1e-14, 1e-154, 5e-324])
def test_values_that_no_other_can_be_compared_with_are_refused_with_their_row(option, extreme):
    errors = ERRORS.copy()
    errors[2] = extreme
    with pytest.raises(LabelError, match=r"row 3, column sd: .*leave the row out"):
        read(table_of(pkd=PKD, sd=errors), **{option: "sd"})
    errors[2] = 1e9
    with np.errstate(all="raise"):
        assert np.isfinite(read(table_of(pkd=PKD, sd=errors), **{option: "sd"}).share).all()


def test_a_column_of_errors_that_is_absent_is_refused():
    with pytest.raises(ColumnError, match="no column 'std', which --error names"):
        read(table_of(pkd=PKD, sd=ERRORS), error="std")


def test_a_search_keeps_the_errors_of_its_pairs():
    pairs = read(table_of(pkd=PKD, sd=ERRORS), error="sd")
    part = np.array([TRAIN, TEST, TRAIN, TRAIN], np.int8)
    kept, _ = without_test_part(pairs, Split(name="random", part=part, group=np.arange(4)))
    np.testing.assert_array_equal(kept.share, pairs.share[[0, 2, 3]])


def test_a_weighted_ridge_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = x[:, 0] + 0.1 * rng.normal(size=60)
    weight = rng.uniform(0.2, 3, 60)
    weight /= weight.mean()
    rows = np.arange(60)
    fitted = PairRidge([FeatureBlock(x, rows)], rows, rows % 3, None, weight).fit(y)
    centred = x - np.average(x, axis=0, weights=weight)
    unit = np.sum(weight[:, None] * centred**2) / 5
    expected = [Ridge(alpha=s * unit).fit(x, y, sample_weight=weight).coef_ for s in STRENGTHS]
    away = [np.abs(coefficients - fitted.weights[0]).max() for coefficients in expected]
    assert min(away) < 1e-6
    assert (
        min(
            np.abs(Ridge(alpha=s * unit).fit(x, y).coef_ - fitted.weights[0]).max()
            for s in STRENGTHS
        )
        > 1e-4
    )


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """Pairs of which half have labels that are nearly noise, and the true labels of others."""
    case = drawn.linear_table(tmp_path_factory.mktemp("errors"), 50, 4, 0.0)
    rng = np.random.default_rng(3)
    sd = rng.choice([0.1, 3.0], len(case.frame))
    frame = case.frame.assign(sd=sd, w=1 / sd**2)
    order = rng.permutation(len(frame))
    train = frame.iloc[order[:120]]
    train = train.assign(pKd=train["pKd"] + train["sd"] * rng.normal(size=120))
    return SimpleNamespace(at=case.at, store=case.store, train=train, test=frame.iloc[order[120:]])


@pytest.mark.ci
@pytest.mark.parametrize(
    ("head", "share", "more"),
    [
        ("ridge", 0.9, {}),
        ("mlp", 0.98, {"epochs": 60, "widths": (16,), "lr": 0.01}),
        *in_ci(("kernel", 0.9, {})),
    ],
)
def test_labels_with_large_errors_count_less(unequal, head, share, more):
    errors = {}
    for name, options in {"alike": {}, "error": {"error": "sd"}, "weight": {"weight": "w"}}.items():
        run = unequal.at / f"{head}-{name}"
        abag.fit(unequal.train, unequal.store, run, head=head, **QUICK, **more, **options)
        columns = [unequal.test["heavy"].tolist(), None, unequal.test["antigen"].tolist()]
        predicted = abag.load_predictor(run).predict(*columns)["pkd_predicted"]
        away = predicted.to_numpy() - unequal.test["pKd"].to_numpy()
        errors[name] = float(np.sqrt(np.mean(away**2)))
    assert errors["error"] < share * errors["alike"]
    assert errors["weight"] < 0.9 * errors["alike"]


def test_scores_count_pairs_by_the_weights_of_the_fit(unequal):
    run = unequal.at / "scored"
    summary = abag.fit(unequal.train, unequal.store, run, head="ridge", weight="w", **QUICK)
    (regime,) = summary["regimes"]
    rows = pd.read_parquet(run / "predictions.parquet")
    weight = pd.read_parquet(run / "pairs.parquet")["weight"].to_numpy()[rows["pair"]]
    square = np.square(rows["pkd"] - rows["pkd_predicted"])
    assert regime["rmse"] == pytest.approx(np.sqrt(np.average(square, weights=weight)))
    assert regime["rmse"] < 0.7 * np.sqrt(square.mean())
    effective = weight.sum() ** 2 / np.square(weight).sum()
    assert regime["effective_pairs"] == pytest.approx(effective)
    assert regime["groups"] < 0.7 * len(rows)
    assert f"({effective:,.0f} effective)" in " ".join(describe_regimes([regime])[1])
    (strong,) = summary["strong"]["regimes"]
    is_strong = rows["pkd"] >= summary["strong"]["threshold"]
    assert strong["prevalence"] == pytest.approx(np.average(is_strong, weights=weight))
    spearmans = []
    for fold in rows["fold"].unique():
        inside = (rows["fold"] == fold).to_numpy()
        times = np.round(40 * weight[inside] / weight.max()).astype(int)  # in whole rows
        repeated = rows.loc[np.repeat(np.flatnonzero(inside), times)]
        spearmans.append(spearmanr(repeated["pkd"], repeated["pkd_predicted"]).statistic)
    of_head = regime["metrics"]["head"]
    assert of_head["spearman"] == pytest.approx(np.mean(spearmans), abs=0.01)
    own = unequal.train[["heavy", "antigen"]].iloc[rows["row"] - 1]
    own = own.assign(fold=rows["fold"].array, prediction=rows["pkd_predicted"].array)
    again = abag.evaluate(run, predictions=own)["predictions"]["regimes"][0]
    for name in ("rmse", "groups", "spearman"):
        assert again[name] == pytest.approx(regime[name])

    compared = {}
    for name, table in {
        "weighed": unequal.test,
        "alike": unequal.test.drop(columns="w"),
        "both": [unequal.test.head(30), unequal.test.iloc[30:]],
    }.items():
        evaluated = abag.evaluate(run, table=table, store=unequal.store)["table"]
        compared[name] = {score["regime"]: score for score in evaluated["regimes"]}
    predicted = abag.predict(unequal.test, run, store=unequal.store)
    mean = np.average(unequal.train["pKd"], weights=unequal.train["w"])
    for name, score in compared["weighed"].items():
        inside = (predicted["regime"] == name).to_numpy()
        rows = unequal.test[inside]
        for predictions, key in (
            (predicted["pkd_predicted"][inside].array, "rmse"),
            (mean, "rmse_of_mean"),
        ):
            square = np.square(rows["pKd"] - predictions)
            expected = np.sqrt(np.average(square, weights=rows["w"]))
            assert score[key] == pytest.approx(expected, rel=1e-3)
            plain = compared["alike"][name][key]
            assert plain == pytest.approx(np.sqrt(square.mean()), rel=1e-3)
            assert compared["both"][name][key] == pytest.approx(score[key])


def test_charts_count_pairs_by_the_weights_of_the_fit(unequal):
    run = unequal.at / "scored"
    if not run.exists():
        abag.fit(unequal.train, unequal.store, run, head="ridge", weight="w", **QUICK)
    saved = read_run(run)
    (view,) = chart_data(saved)["views"]
    rows = saved.tested
    error = np.abs(rows["pkd_predicted"] - rows["pkd"]).to_numpy()
    for nominal, share in zip(view["coverage"]["x"], view["coverage"]["y"], strict=True):
        inside = error <= norm.ppf((1 + nominal) / 2) * rows["sigma"]
        assert share == pytest.approx(np.average(inside, weights=rows["weight"]), abs=2e-3)
    line = LinearRegression().fit(rows[["pkd_predicted"]], rows["pkd"], rows["weight"])
    assert view["calibration"]["slope"] == pytest.approx(line.coef_[0])


def test_labels_that_hardly_count_are_no_results_to_expect(unequal):
    train = unequal.train.assign(w=np.where(unequal.train["sd"] < 1, 1.0, 1e-3))
    is_good = train["w"] == 1
    train["pKd"] = train["pKd"].where(is_good, 14.0)
    run = unequal.at / "hardly"
    abag.fit(train, unequal.store, run, head="ridge", weight="w", **QUICK)
    known = known_errors(run, {"known"}, PKD_QUANTITY)
    np.testing.assert_allclose(np.sort(known.labels), np.sort(train["pKd"][is_good]))
    assert known.degrees <= 2 + is_good.sum()  # their errors do not tell sigma, either
    record = json.loads((run / "predictor" / "predictor.json").read_text())
    assert record["label_sd"] == pytest.approx(train["pKd"][is_good].std(ddof=0), rel=0.05)


@pytest.mark.ci
def test_scikit_learn_takes_sample_weights(unequal):
    from abag.sklearn import AffinityRegressor

    x = unequal.train[["heavy", "antigen"]]
    y = unequal.train["pKd"]
    new = unequal.test[["heavy", "antigen"]]
    model = AffinityRegressor(unequal.store, head="ridge", split="random")
    alike = model.fit(x, y).predict(new)
    weighted = model.fit(x, y, sample_weight=unequal.train["w"]).predict(new)
    again = model.fit(x, y, sample_weight=7 * unequal.train["w"].to_numpy()).predict(new)
    truth = unequal.test["pKd"].to_numpy()
    assert np.mean((weighted - truth) ** 2) < 0.8 * np.mean((alike - truth) ** 2)
    np.testing.assert_allclose(weighted, again, rtol=1e-9)
    with pytest.raises(abag.AbagError, match="sample_weight: shape"):
        model.fit(x, y, sample_weight=[1.0])


@pytest.mark.ci
def test_labels_that_count_for_almost_nothing_do_not_widen_sigma(tmp_path):
    rng = np.random.default_rng(2)
    heavies = drawn.draw_chains(rng, 200, 110)
    frame = pd.DataFrame({"heavy": heavies, "antigen": drawn.draw_chain(rng, 90)})
    truth = 7 + 60 * frame["heavy"].str.count("W") / 110
    is_wrong = np.arange(200) % 5 < 2
    noise = np.where(is_wrong, 4.0, 0.3) * rng.normal(size=200)
    frame = frame.assign(pKd=truth + noise, w=np.where(is_wrong, 0.001, 1.0))
    abag.embed_table(
        frame, tmp_path / "s", antibody_encoder="composition", antigen_encoder="composition"
    )
    sigma = {}
    for name, rows in {"all": frame, "right": frame[~is_wrong]}.items():
        found = abag.fit(rows, tmp_path / "s", tmp_path / name, head="ridge", weight="w", **QUICK)
        assert "errors are smaller than those of the mean" in found["regimes"][0]["sentence"]
        predictor = abag.load_predictor(tmp_path / name)
        scores = predictor.predict(heavies, None, frame["antigen"].tolist())
        sigma[name] = scores["sigma"].median()
    assert sigma["all"] < 1.3 * sigma["right"]


@pytest.mark.parametrize("replicates", ["median", "mean", "keep"])
@pytest.mark.parametrize("trust", ["error", "weight"])
def test_pairs_are_the_same_bits_whatever_the_order_of_the_rows(trust, replicates):
    rng = np.random.default_rng(0)
    heavies = drawn.draw_chains(rng, 40, 90)
    frame = pd.DataFrame({"heavy": rng.choice(heavies, 160), "antigen": drawn.draw_chain(rng, 60)})
    frame["pkd"] = rng.normal(8, 1, 160).round(1)
    frame["w"] = np.exp(rng.normal(0, 2, 160))
    frame["ddg"] = rng.normal(size=160)
    frame["lab"] = rng.choice(["B", "A", ""], 160)
    if replicates == "keep":  # replicates are in the order of their labels, categories and weights
        frame = frame.drop_duplicates(["heavy", "pkd", "lab"])
    options = {trust: "w", "features": ("ddg",), "categories": ("lab",), "replicates": replicates}
    first, *others = (
        read_labels(frame.sample(frac=1, random_state=seed), **options) for seed in range(6)
    )
    for other in others:
        np.testing.assert_array_equal(other.pkd, first.pkd)
        np.testing.assert_array_equal(other.share, first.share)
        np.testing.assert_array_equal(other.cells.numbers_RF, first.cells.numbers_RF)
        assert other.cells.words_RG.tolist() == first.cells.words_RG.tolist()


def test_a_predictor_that_follows_the_labels_with_weight_is_no_worse_than_its_folds(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"heavy": drawn.draw_chains(rng, 60, 110)})
    counts = np.arange(60) < 2
    frame["pKd"] = 7 + 4 * counts + 0.3 * rng.normal(size=60)
    frame = frame.assign(
        antigen=drawn.draw_chain(rng, 90),
        w=np.where(counts, 1000.0, 1.0),
        part=np.where(np.arange(60) < 30, "test", "train"),
    )
    abag.embed_table(
        frame, tmp_path / "s", antibody_encoder="composition", antigen_encoder="composition"
    )
    options = QUICK | {"head": "ridge", "weight": "w", "split": "column=part"}
    summary = abag.fit(frame, tmp_path / "s", tmp_path / "run", **options)
    assert summary["predictor_digest"]
