"""Metrics against scipy, by hand, and on what is undefined."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import in_ci
from scipy import stats
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, r2_score

from abag import FitConfig, OptionError
from abag.head.evaluation import scores as scores_of_regimes
from abag.head.evaluation import verdicts
from abag.head.evaluation.metrics import (
    METRICS,
    MIN_ROWS_PER_ANTIGEN,
    KnownOrder,
    MeasuredRows,
    Metric,
    RanksByGroup,
    average_folds,
    average_precision,
    calibration_slope,
    find_metric,
    is_better,
    metric_heading,
    metric_key,
    pearson,
    rank_values,
    ranks,
    score_folds,
    selectable_metrics,
    split_key,
)
from abag.head.evaluation.verdicts import describe_regimes
from abag.head.labels.headers import PKD, Quantity

TIED = st.integers(0, 4).map(float)


def score(pkd, predicted, antigen, censored=0):
    """Compute all metrics of one prediction."""
    return MeasuredRows.of(pkd, antigen, censored).score(predicted)


def spearman(pkd, predicted):
    return pearson(ranks(pkd), ranks(predicted))


def columns(*elements, min_size=0, max_size=25):
    """Columns of one length, drawn row by row."""
    rows = st.lists(st.tuples(*elements), min_size=min_size, max_size=max_size)
    return rows.map(lambda r: [np.array(c) for c in zip(*r, strict=True)] if r else None)


@settings(deadline=None)
@given(columns(TIED, TIED, st.integers(0, 3)))
def test_ranks_by_group_have_the_spearman_of_each_group(drawn):
    y, p, group = drawn or (np.zeros(0), np.zeros(0), np.zeros(0, int))
    wanted = []
    for g in np.unique(group):
        correlation = spearman(y[group == g], p[group == g])
        if correlation is None and np.ptp(y[group == g]):
            correlation = 0.0  # constant predictions
        few = np.count_nonzero(group == g) < MIN_ROWS_PER_ANTIGEN
        wanted.append(np.nan if correlation is None or few else correlation)
    assert RanksByGroup(y, group).spearman(p).tolist() == pytest.approx(wanted, nan_ok=True)


def test_nan_leaves_only_the_correlations_it_belongs_to_undefined():
    y = np.arange(12.0)
    p = np.arange(12.0)
    p[2] = np.nan
    assert spearman(y, p) is None
    assert spearman(p, y) is None
    by_group = RanksByGroup(y, np.repeat([0, 1], 6)).spearman(p)
    assert np.isnan(by_group[0])
    assert by_group[1] == 1


def test_correlations_and_errors_equal_scipy_on_tied_values():
    rng = np.random.default_rng(0)
    y = rng.integers(5, 11, 200).astype(float)
    p = rng.integers(5, 11, 200).astype(float)
    scores = score(y, p, np.zeros(200, int))
    assert scores["spearman"] == pytest.approx(stats.spearmanr(y, p).statistic)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(y, p).statistic)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - p) ** 2)))
    assert scores["mae"] == pytest.approx(np.mean(abs(y - p)))
    line = stats.linregress(p, y)
    assert calibration_slope(y, p) == pytest.approx(line.slope)


@settings(deadline=None)
@given(columns(TIED, TIED, min_size=1))
def test_accuracy_on_confident_pairs_equals_a_count_of_all_pairs(drawn):
    y, p = drawn
    y = 7 + 0.5 * y
    i, j = np.nonzero(y - y[:, None] >= 1)
    hits = ((p[j] > p[i]) * 1.0 + (p[j] >= p[i])) / 2
    expected = pytest.approx(np.mean(hits)) if len(hits) else None
    assert score(y, p, y * 0)["pair_accuracy"] == expected


def test_the_ratio_of_spreads_and_the_enrichment_of_the_top_tenth_equal_counts_by_hand():
    y = np.arange(20.0)
    p = np.arange(20.0) / 4
    scores = score(y, p, np.zeros(20, int))
    assert scores["spread_ratio"] == pytest.approx(0.25)
    assert scores["top_enrichment"] == pytest.approx(10)
    p[19] = -1.0  # one of the two strongest is missed
    assert score(y, p, np.zeros(20, int))["top_enrichment"] == pytest.approx(5)
    assert score(y, p * 0, np.zeros(20, int))["top_enrichment"] == pytest.approx(1)
    assert score(y * 0, p, np.zeros(20, int))["spread_ratio"] is None


def test_recall_and_precision_at_9_equal_a_count_by_hand():
    scores = score([9.5, 9.0, 8.0, 7.0, 6.0], [9.2, 8.0, 9.1, 6.0, 5.0], [0] * 5)
    assert scores["recall_at_9"] == 1 / 2
    assert scores["precision_at_9"] == 1 / 2
    # in the order 9.2 hit, 9.1 miss, 8.0 hit: (1/1 + 2/3) / 2
    assert scores["average_precision_at_9"] == pytest.approx(5 / 6)
    assert scores["r2"] == pytest.approx(1 - 4.3 / 8.2)


def test_predicted_ties_share_the_last_places_of_the_top_tenth():
    y = np.array([9.5, 9.4, *[6.0] * 18])
    p = np.array([8.0, 7.0, *[7.0] * 3, *[2.0] * 15])
    # two picks: one hit for certain, one of four tied rows of which one is a hit
    assert score(y, p, y * 0)["top_enrichment"] == pytest.approx(10 * 1.25 / 2)


@given(columns(st.booleans(), TIED, min_size=1))
def test_average_precision_does_not_depend_on_the_order_of_tied_rows(data):
    strong, p = data
    reverse = average_precision(strong[::-1], p[::-1])
    assert average_precision(strong, p) == pytest.approx(reverse)


def test_spearman_within_antigen_is_the_median_over_antigens_with_five_rows():
    antigen = np.repeat([0, 1, 2, 3], [5, 5, 5, 4])
    y = np.concatenate([np.arange(5.0)] * 3 + [np.arange(4.0)])
    p = y.copy()
    p[5:10] *= -1
    p[10:15] = [0, 1, 2, 4, 3]
    scores = score(y, p, antigen)
    assert scores["spearman_within_antigen"] == pytest.approx(0.9)


def plain_concordance(y, p, censored):
    """Every ordered pair, one by one."""
    right = pairs = 0.0
    for i in range(len(y)):
        for j in range(len(y)):
            upper = np.inf if censored[i] > 0 else y[i]
            lower = -np.inf if censored[j] < 0 else y[j]
            certain = upper < lower or (upper == lower and bool(censored[i] or censored[j]))
            if certain and i != j:
                pairs += 1
                right += 1 if p[i] < p[j] else 0.5 if p[i] == p[j] else 0
    return right / pairs if pairs else None


@settings(deadline=None)
@given(columns(TIED, TIED, st.sampled_from([-1, 0, 1])))
def test_concordance_equals_a_count_over_all_decidable_pairs(data):
    if data is None:
        return
    y, p, censored = data
    scores = score(y, p, y * 0, censored)
    expected = plain_concordance(y, p, censored)
    assert scores["concordance"] == (None if expected is None else pytest.approx(expected))


@settings(deadline=None)
@given(columns(st.integers(0, 9), st.integers(0, 9), TIED, min_size=1))
def test_pairs_in_the_right_order_are_counted(drawn):
    below, above, p = drawn
    i, j = np.nonzero(below[:, None] <= above)
    order = KnownOrder(below, above)
    assert order.pairs == len(i)
    expected = (np.mean(p[i] < p[j]) + np.mean(p[i] <= p[j])) / 2 if len(i) else None
    assert order.share_right(p) == pytest.approx(expected)


def test_of_many_pairs_in_a_known_order_a_sample_is_compared():
    rng = np.random.default_rng(0)
    y = rng.normal(size=2_000)
    p = y + rng.normal(size=2_000)
    whole = KnownOrder(y + 1, y).share_right(p)
    drawn = KnownOrder(y + 1, y, most_listed=100_000)
    assert drawn.pairs > 400_000
    assert drawn.share_right(p) == pytest.approx(whole, abs=0.003)


def test_censored_rows_count_only_in_concordance_and_beyond_their_bound():
    rng = np.random.default_rng(2)
    y = rng.normal(7, 1, 40)
    p = rng.normal(7, 1, 40)
    antigen = np.zeros(40, int)
    censored = np.zeros(40, int)
    censored[30:] = -1
    exact = score(y[:30], p[:30], antigen[:30])
    all_rows = score(y, p, antigen, censored)
    differ = {name for name in exact if exact[name] != all_rows[name]}
    assert differ == {"n", "n_censored", "concordance", "beyond_bound"}


@pytest.mark.parametrize("seed", range(8))
def test_a_label_of_weight_three_counts_as_three_rows(seed):
    rng = np.random.default_rng(seed)
    pkd, predicted = rng.integers(7, 12, size=(2, 40)).astype(float)
    antigen = np.arange(40) % 2
    censored = rng.choice([0, 0, 0, -1, 1], 40)
    times = rng.integers(1, 4, 40)
    times[0] += (-times[censored == 0].sum()) % 10 if censored[0] == 0 else 0
    whole_tenth = times[censored == 0].sum() % 10 == 0
    once = MeasuredRows.of(pkd, antigen, censored, weight=times / times.mean()).score(predicted)
    row = np.repeat(np.arange(40), times)
    repeated = MeasuredRows.of(pkd[row], antigen[row], censored[row]).score(predicted[row])
    for name in METRICS:
        if name != "top_enrichment" or whole_tenth:
            key = metric_key(name)
            assert once[key] == pytest.approx(repeated[key], abs=1e-9), name


def test_the_share_of_predictions_beyond_their_bound_is_that_of_censored_rows():
    y = [6, 6, 6, 6]
    p = [7, 5, 5, 9]
    censored = [-1, -1, 1, 0]
    assert score(y, p, [0] * 4, censored)["beyond_bound"] == pytest.approx(2 / 3)
    assert score(y, p, [0] * 4)["beyond_bound"] is None


@pytest.mark.parametrize(
    ("y", "p"), [([], []), ([7.0], [7.0]), ([7.0] * 6, range(6)), (range(6), [7.0] * 6)]
)
def test_undefined_metrics_are_none_and_scores_are_valid_json(y, p):
    scores = score(list(y), list(p), np.zeros(len(list(y)), int))
    assert scores["spearman"] is None
    assert scores["pearson"] is None
    ranks_nothing = len(set(y)) > 1  # constant predictions of labels that differ
    assert scores["spearman_within_antigen"] == (0 if ranks_nothing else None)
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores


def test_one_non_finite_prediction_leaves_every_metric_undefined():
    scores = score([6.0, 7.0, 9.5], [6.0, np.nan, 9.5], [0, 0, 0])
    assert scores["n"] == 3
    assert scores["rmse"] is None
    assert scores["recall_at_9"] is None


def test_folds_are_averaged_and_never_pooled():
    # Two folds whose means differ: each is ranked perfectly backwards, pooled they look good.
    low = np.array([5.0, 5.1, 5.2])
    high = np.array([9.0, 9.1, 9.2])
    folds = [score(y, y[::-1], [0] * 3) for y in (low, high)]
    summary = average_folds(folds)["spearman"]
    pooled = score(np.r_[low, high], np.r_[low[::-1], high[::-1]], [0] * 6)
    assert summary == pytest.approx(-1)
    assert pooled["spearman"] > 0.5
    # a fold without a value is left out
    folds = [score([1.0, 2.0], [1.0, 2.0], [0, 0]), score([1.0, 1.0], [1.0, 2.0], [0, 0])]
    assert average_folds(folds)["spearman"] == pytest.approx(1)


def test_the_average_precision_of_chance_over_folds_with_few_strong_binders_is_their_share():
    rng = np.random.default_rng(0)
    folds = []
    predicted = []
    for fold in range(200):
        pkd = np.where(np.arange(30) < 2, 9.5, 7.0) + rng.normal(0, 0.1, 30)
        pkd[2:] -= 0.005 * fold
        folds.append(MeasuredRows.of(pkd, np.zeros(30), np.where(np.arange(30) == 29, -1, 0)))
        predicted.append(rng.normal(fold % 5, 1, 30))
    key = "average_precision_at_9"
    exact = [of_fold[:29] for of_fold in predicted]
    levelled = np.concatenate([of_fold - of_fold.mean() for of_fold in exact])
    is_strong = np.tile(np.arange(29) < 2, 200)
    value = score_folds(folds, predicted, key)
    assert value == pytest.approx(average_precision_score(is_strong, levelled))
    assert value == pytest.approx(2 / 29, abs=0.02)
    mean = np.mean([rows.score_one(key, p) for rows, p in zip(folds, predicted, strict=True)])
    assert mean > 2 * value  # whatever is predicted
    assert score_folds(folds[:1], predicted[:1], key) == folds[0].score_one(key, predicted[0])
    rmse = [rows.score_one("rmse", p) for rows, p in zip(folds, predicted, strict=True)]
    assert score_folds(folds, predicted, "rmse") == pytest.approx(np.mean(rmse))
    predicted[3][0] = np.nan
    others = score_folds(folds[:3] + folds[4:], predicted[:3] + predicted[4:], key)
    assert score_folds(folds, predicted, key) == others
    assert score_folds(folds[3:4], predicted[3:4], key) is None


def test_a_registered_metric_appears_wherever_its_flags_say(monkeypatch):
    bias = Metric(
        function=lambda rows: float(np.mean(rows.predicted - rows.pkd)),
        lower_is_better=True,
        in_tables=True,
        selectable=True,
    )
    monkeypatch.setitem(METRICS, "mean_bias", bias)
    assert score([6.0, 7.0], [7.0, 9.0], [0, 0])["mean_bias"] == 1.5
    assert MeasuredRows.of([6.0], [0]).score_one("mean_bias", [7.0]) == 1
    assert selectable_metrics()[-1] == "mean_bias"
    assert metric_heading("mean_bias", PKD) == "mean bias"
    assert is_better("mean_bias", 0.1, 0.2)
    for name in selectable_metrics():
        assert FitConfig(select=name).select == name
    with pytest.raises(OptionError, match="--select: 'r2' is unknown; expected one of spearman"):
        FitConfig(select="r2")


@settings(deadline=None)
@given(columns(TIED, TIED, st.integers(0, 3), st.sampled_from([-1, 0, 1]), min_size=1))
def test_one_metric_alone_equals_its_entry_among_all(drawn):
    y, p, antigen, censored = drawn
    whole = score(y, p, antigen, censored)
    keys = [metric_key(name) for name in METRICS]
    assert list(whole) == ["n", "n_censored", *keys]
    measured = MeasuredRows.of(y, antigen, censored)
    for key in keys:
        assert measured.score_one(key, p) == whole[key]


@given(st.sampled_from(list(METRICS)), st.integers(0, 99_999).map(lambda n: n / 1000))
def test_a_key_has_the_name_of_its_metric_and_the_threshold_if_it_has_one(name, threshold):
    key = metric_key(name, threshold)
    expected = threshold if METRICS[name].has_threshold else None
    assert split_key(key) == (name, expected)
    assert find_metric(key) is METRICS[name]


def test_a_key_is_split_only_into_a_metric_of_strong_binders_and_a_number():
    for key in ("recall_at_high", "recall_at_", "recall_at_-1", "rmse_at_9", "recall"):
        assert split_key(key) == (key, None)
    with pytest.raises(KeyError, match="recall_at_high"):
        find_metric("recall_at_high")


def test_an_undefined_score_is_never_better():
    assert is_better("rmse", 1.0, None)
    assert not is_better("rmse", None, None)
    assert is_better("rmse", 1.0, 2.0)
    assert is_better("spearman", 0.3, 0.2)


def regime(predicted, pkd, group=None):
    n = len(pkd)
    groups = [np.arange(n) if group is None else group]
    tested = scores_of_regimes.TestedPairs(
        np.arange(n), pkd, np.zeros(n, int), np.arange(n), np.zeros(n, int), groups
    )
    mean = np.full(n, 7.8)
    sigma = np.full(n, 1 / stats.norm.ppf(0.95))
    return scores_of_regimes.score_regime("known", "known", tested, predicted, mean, {}, sigma)


def test_every_score_of_a_regime_has_the_interval_of_its_groups():
    rng = np.random.default_rng(0)
    pkd = 8 + rng.normal(size=400)
    predicted = pkd + rng.normal(size=400) * 0.7
    scores = regime(predicted, pkd)
    square = (pkd - predicted) ** 2
    error = stats.t.ppf(0.975, 399) * square.std() / 20
    wanted = np.sqrt([square.mean() - error, square.mean() + error])
    assert scores["intervals"]["rmse"] == pytest.approx(wanted, rel=1e-2)
    drawn = rng.integers(400, size=(2000, 400))
    skill = 1 - square[drawn].sum(axis=1) / ((pkd - 7.8) ** 2)[drawn].sum(axis=1)
    assert scores["intervals"]["skill"] == pytest.approx(
        np.quantile(skill, [0.025, 0.975]), abs=0.02
    )
    r2 = [r2_score(pkd[rows], predicted[rows]) for rows in drawn]
    assert scores["intervals"]["r2"] == pytest.approx(np.quantile(r2, [0.025, 0.975]), abs=0.02)
    low, high = scores["intervals"]["coverage"]
    assert scores["coverage"] == pytest.approx(np.mean(abs(pkd - predicted) < 1))
    assert low < scores["coverage"] < high <= 1
    wide = regime(predicted, pkd, np.arange(400) // 20)["intervals"]["rmse"]
    assert wide[0] < scores["rmse"] < wide[1]
    assert regime(predicted, pkd, np.arange(400) // 200)["intervals"]["rmse"] is None


@settings(deadline=None)
@given(columns(TIED, TIED, st.integers(1, 3), min_size=6))
def test_a_rank_correlation_and_the_influence_of_pairs_equal_scipys_and_a_derivative(drawn):
    predicted, pkd, times = map(np.array, drawn)
    weight = times.astype(float)
    cell = np.zeros(len(pkd), int)

    def correlation(weight):
        return rank_values(predicted, pkd, cell, cell, weight).correlation[0]

    ranked = rank_values(predicted, pkd, cell, cell, weight)
    if len(np.unique(pkd)) == 1:
        assert (ranked.unit == -1).all()
        return
    if len(np.unique(predicted)) == 1:
        assert ranked.correlation[0] == 0
        return
    repeated = [np.repeat(column, times) for column in (predicted, pkd)]
    assert ranked.correlation[0] == pytest.approx(stats.spearmanr(*repeated).statistic, abs=1e-9)
    step = 1e-5 * np.eye(len(pkd))
    slope = [(correlation(weight + e) - correlation(weight - e)) / 2e-5 for e in step]
    assert ranked.influence == pytest.approx(weight.sum() * np.array(slope), abs=1e-4)


def rank_claim(predicted, pkd, fold=None, antigen=None, groups=None):
    fold = np.zeros(len(pkd), int) if fold is None else fold
    antigen = np.zeros(len(pkd), int) if antigen is None else antigen
    groups = np.arange(len(pkd)) if groups is None else groups
    tested = scores_of_regimes.TestedPairs(
        np.arange(len(pkd)), pkd, fold, np.arange(len(pkd)), antigen, [groups]
    )
    mean = np.zeros(len(pkd))
    return scores_of_regimes.score_regime("known", "known", tested, predicted, mean, {}, None)


@pytest.mark.ci
@pytest.mark.parametrize("rho", [0.5, *in_ci(0.0, 0.9)])
@pytest.mark.parametrize(("n_groups", "size"), [(20, 1), (40, 5)])
def test_intervals_of_rank_correlations_hold_the_truth_and_are_as_wide_as_a_bootstraps(
    rho, n_groups, size
):
    rng = np.random.default_rng(round(100 * rho) + n_groups)
    linear = 2 * np.sin(np.pi * rho / 6)  # of normal values with this rank correlation
    group = np.repeat(np.arange(n_groups), size)
    is_inside = []
    half = []
    deviations = []
    for _ in range(250):
        x, noise = (rng.normal(size=n_groups)[group] + rng.normal(size=len(group)) for _ in "xy")
        y = linear * x + np.sqrt(1 - linear**2) * noise
        claim = rank_claim(x, y, groups=group)["spearman"]
        is_inside.append(claim["low"] <= rho <= claim["high"])
        half.append((claim["high"] - claim["low"]) / 2)
        deviations.append(claim["value"])
    assert 0.91 <= np.mean(is_inside) <= 0.995
    # 1.96 standard deviations are what a bootstrap of groups estimates
    assert np.mean(half) == pytest.approx(1.96 * np.std(deviations), rel=0.35)


def test_small_cells_are_ranked_together_and_the_level_of_a_fold_changes_nothing():
    rng = np.random.default_rng(0)
    antigen = np.repeat(np.arange(40), 4)
    fold = np.tile([0, 0, 1, 1], 40)  # cells of two
    pkd = rng.normal(size=40)[antigen] + rng.normal(size=160)
    predicted = pkd + rng.normal(size=160)
    scores = rank_claim(predicted, pkd, fold, antigen)
    within = scores["spearman_within_antigen"]
    assert within["low"] > 0.3
    assert within["groups"] == 160  # every pair counts
    level = rng.normal(size=(40, 2))[antigen, fold] * 9
    moved = rank_claim(predicted + level, pkd, fold, antigen)["spearman_within_antigen"]
    assert moved == pytest.approx(within)
    # the level of a cell is no signal, even where it follows the labels of the other fold
    memory = -np.array(
        [pkd[(antigen == a) & (fold == f)].mean() for a, f in zip(antigen, fold, strict=True)]
    )
    assert rank_claim(memory, pkd, fold, antigen)["spearman_within_antigen"]["value"] == 0
    antigens_of_six = np.repeat(np.arange(10), 6)
    pkd = rng.normal(size=60)
    predicted = rng.normal(size=60)
    each = [stats.spearmanr(predicted[i : i + 6], pkd[i : i + 6])[0] for i in range(0, 60, 6)]
    claim = rank_claim(predicted, pkd, antigen=antigens_of_six)["spearman_within_antigen"]
    assert claim["value"] == pytest.approx(np.mean(each))


def test_labels_with_a_weight_count_as_so_many_and_worthless_ones_change_no_verdict():
    rng = np.random.default_rng(1)
    times = rng.integers(1, 4, 60)
    pkd = rng.normal(8, 1, 60)
    predicted = pkd + rng.normal(size=60) / 2
    antibody = np.arange(60)

    def judge(pkd, predicted, weight, group):
        tested = scores_of_regimes.TestedPairs(
            group, pkd, group * 0, group, group * 0, [group], weight=weight
        )
        mean = np.full(len(pkd), 8.0)
        sigma = np.full(len(pkd), 0.8 / stats.norm.ppf(0.95))
        return scores_of_regimes.score_regime("known", "k", tested, predicted, mean, {}, sigma)

    weighted = judge(pkd, predicted, times.astype(float), antibody)
    repeated = judge(*(np.repeat(column, times) for column in (pkd, predicted)), None,
                     np.repeat(antibody, times))  # fmt: skip
    assert weighted.pop("effective_pairs") == pytest.approx(times.sum() ** 2 / (times**2).sum())
    for name in ("rmse", "r2", "skill", "coverage", "groups", "sentence"):
        assert weighted[name] == pytest.approx(repeated[name]), name
    assert weighted["spearman"]["value"] == pytest.approx(repeated["spearman"]["value"])
    assert weighted["r2"] == pytest.approx(r2_score(pkd, predicted, sample_weight=times))
    for name in ("rmse", "r2", "coverage"):
        assert weighted["intervals"][name] == pytest.approx(repeated["intervals"][name])
    garbage = np.arange(60) < 24
    spoiled = np.where(garbage, rng.normal(8, 6, 60), pkd)
    judged = judge(spoiled, predicted, np.where(garbage, 0.001, 1.0), antibody)
    assert judged["groups"] == pytest.approx(36, abs=0.1)
    assert judged["rmse"] == pytest.approx(np.sqrt(np.mean((pkd - predicted)[~garbage] ** 2)), 0.05)
    assert "errors are smaller than those of the mean" in judged["sentence"]


def test_where_many_labels_are_bounds_their_order_is_judged_and_not_the_errors_of_the_others():
    rng = np.random.default_rng(2)
    whole = rng.normal(7, 1, 200)
    predicted = whole + rng.normal(size=200) - 1
    bound = np.quantile(whole, 0.68)
    censored = np.where(whole < bound, -1, 0).astype(np.int8)
    pkd = np.maximum(whole, bound)
    rows = np.arange(200)
    tested = scores_of_regimes.TestedPairs(
        rows, pkd, rows * 0, rows, rows * 0, [rows], censored=censored
    )
    judged = scores_of_regimes.score_regime(
        "known", "k", tested, predicted, np.full(200, 5.0), {}, None
    )
    claim = judged["concordance"]
    assert claim["value"] == pytest.approx(plain_concordance(pkd, predicted, censored))
    boot = []
    for _ in range(300):
        rows = rng.integers(200, size=200)
        boot.append(score(pkd[rows], predicted[rows], rows * 0, censored[rows])["concordance"])
    assert [claim["low"], claim["high"]] == pytest.approx(
        np.quantile(boot, [0.025, 0.975]), abs=0.02
    )
    assert judged["sentence"].startswith("k: ranking of labels and bounds is better than chance; ")
    assert "errors cannot be judged, as 68% of the tested pairs are bounds" in judged["sentence"]
    (limit,) = judged["limits"]
    assert (limit["side"], limit["limit"]) == (-1, bound)
    is_called = predicted < bound  # the labels that the bounds hide tell what is right
    for name, called, right in (
        ("beyond", is_called, whole < bound), ("within", ~is_called, whole >= bound)
    ):  # fmt: skip
        claim = limit[name]
        found = binomtest(int(right[called].sum()), int(called.sum())).proportion_ci(
            method="wilson"
        )
        assert claim["value"] == pytest.approx(right[called].mean())
        assert [claim["low"], claim["high"]] == pytest.approx([*found], abs=1e-4)
    of_folds = replace(tested, fold=tested.rows % 2)  # which learn from each other
    for alone, several in zip(
        scores_of_regimes.limit_claims(tested, predicted)[0][2:],
        scores_of_regimes.limit_claims(of_folds, predicted)[0][2:],
        strict=True,
    ):
        assert several.value == alone.value
        wider = (several.high - several.low) / (alone.high - alone.low)
        assert wider == pytest.approx(2**0.5, rel=0.1)


def test_bounds_that_leave_the_side_of_the_limit_open_are_left_out():
    pkd = np.array([5.0, 6.0, 6.5, 6.0, 7.0, 8.0, 9.0, 6.0, 5.5, 6.0] * 4)
    censored = np.array([-1, -1, -1, -1, 0, 0, 0, 1, 0, 0] * 4)
    predicted = np.array([5, 5, 5, 7, 7, 7, 5, 7, 7, 5] * 4) * 1.0
    rows = np.arange(40)
    tested = scores_of_regimes.TestedPairs(
        rows, pkd, rows * 0, rows, rows * 0, [rows], censored=censored.astype(np.int8)
    )
    (limit,) = scores_of_regimes.limit_claims(tested, predicted)
    assert (limit.side, limit.limit) == (-1, 6.0)
    # below: bounds of 5 and 6, not the labels of 9 and of the limit itself; a bound of 6.5 may be
    assert limit.beyond.value == pytest.approx(2 / 4)
    # not below: 7, 8 and more than 6; not the bound of 6 and the label of 5.5
    assert limit.within.value == pytest.approx(3 / 5)
    mirrored = replace(tested, pkd=-pkd, censored=-tested.censored)
    assert scores_of_regimes.limit_claims(mirrored, -predicted) == [
        limit._replace(side=1, limit=-6.0)
    ]
    # no pair is predicted below, where some labels are measured
    judged = scores_of_regimes.score_regime(
        "known", "k", tested, np.full(40, 9.0), np.full(40, 7.0), {}, None
    )
    assert "; many labels are only known to be below pKd 6.00, and sigma" in judged["sentence"]


def test_a_part_that_has_nearly_all_the_weight_is_no_rival_of_the_predictor():
    rng = np.random.default_rng(3)
    pkd = rng.normal(8, 1, 200)
    rows = np.arange(200)
    tested = scores_of_regimes.TestedPairs(rows, pkd, rows * 0, rows, rows * 0, [rows])
    part = pkd + rng.normal(size=200) / 2
    nested = part + rng.normal(size=200) / 5  # with the weights of other folds
    others = {"one_hot_ridge": part, "composition_ridge": pkd + rng.normal(size=200) / 4}

    def judge(**options):
        mean = np.full(200, 8.0)
        return scores_of_regimes.score_regime(
            "known", "known", tested, nested, mean, options.pop("others", others), None, **options
        )

    assert "larger" in judge(others={"one_hot_ridge": part})["sentence"]
    alone = judge(others={"one_hot_ridge": part}, weights={"one_hot_ridge": 1.0})
    assert alone["sentence"].endswith("errors are smaller than those of the mean")
    beside = judge(weights={"one_hot_ridge": 0.95, "composition_ridge": 0.05})
    assert beside["best_baseline"] == "composition_ridge"
    assert "but larger than those of the best baseline (composition ridge)" in beside["sentence"]
    assert judge(weights={"one_hot_ridge": 0.5})["best_baseline"] == "composition_ridge"
    mean = judge(weights={"train_mean": 1.0})["sentence"]
    assert mean.endswith(
        "not shown to be smaller than those of the mean, which has nearly all the weight"
    )


def interval(low, high, groups=50.0):
    middle = None if low is None else (low + high) / 2
    return scores_of_regimes.Claim(middle or 0.0, low, high, groups)


NOTHING = interval(None, None, 3.0)
LimitClaims = scores_of_regimes.LimitClaims
RANKING = [
    ({"": interval(0.1, 0.5)}, "ranking is better than chance"),
    ({" within antigens": interval(-0.1, 0.5), "": interval(0.1, 0.5)},
     "ranking is better than chance"),
    ({" within antigens": interval(0.1, 0.5), "": interval(-0.1, 0.5)},
     "ranking within antigens is better than chance"),
    ({" within antibodies": interval(0.1, 0.5), " within antigens": None},
     "ranking within antibodies is better than chance"),
    ({" within antigens": interval(0.1, 0.5), "": interval(-0.5, -0.1)},
     "ranking within antigens is better than chance, but worse overall"),
    ({" within antigens": interval(-0.5, -0.1), "": interval(-0.2, 0.3)},
     "ranking within antigens is worse than chance"),
    ({"": interval(-0.5, -0.1)}, "ranking is worse than chance"),
    ({" within antigens": interval(-0.1, 0.6), "": interval(0.0, 0.7)},
     "ranking is not shown to be better than chance"),
    ({" of labels and bounds": interval(0.1, 0.3), "": NOTHING},
     "ranking of labels and bounds is better than chance"),
    ({" within antigens": None, "": NOTHING}, "ranking cannot be judged"),
    ({}, "ranking cannot be judged"),
]  # fmt: skip
ERRORS = [
    (NOTHING, NOTHING, "ridge", "errors cannot be judged"),
    (interval(-2.0, -1.0), NOTHING, "ridge", "errors are larger than those of the mean"),
    (interval(-1.0, 2.0), interval(1, 2), "ridge",
     "errors are not shown to be smaller than those of the mean"),
    (interval(1.0, 2.0), interval(0, 0), "train_mean", "errors are smaller than those of the mean"),
    (interval(1.0, 2.0), interval(-1, 2), "antigen_ridge",
     "errors are smaller than those of the mean, but not clearly smaller than those of the best "
     "baseline (antigen ridge)"),
    (interval(1.0, 2.0), interval(1, 2), "ridge",
     "errors are smaller than those of the mean, and smaller than those of the best baseline "
     "(ridge)"),
    (interval(1.0, 2.0), interval(-2, -1), "ridge",
     "errors are smaller than those of the mean, but larger than those of the best baseline "
     "(ridge)"),
]  # fmt: skip


PROBABILITIES = [
    (NOTHING, NOTHING, "ridge", "probabilities cannot be judged"),
    (interval(-2.0, -1.0), NOTHING, "ridge", "probabilities are worse than the prevalence"),
    (interval(-1.0, 2.0), interval(1, 2), "ridge",
     "probabilities are not shown to be better than the prevalence"),
    (interval(1.0, 2.0), interval(0, 0), "train_mean",
     "probabilities are better than the prevalence"),
    (interval(1.0, 2.0), interval(-1, 2), "antigen_ridge",
     "probabilities are better than the prevalence, but not clearly better than those of the best "
     "baseline (antigen ridge)"),
    (interval(1.0, 2.0), interval(1, 2), "ridge",
     "probabilities are better than the prevalence, and better than those of the best baseline "
     "(ridge)"),
    (interval(1.0, 2.0), interval(-2, -1), "ridge",
     "probabilities are better than the prevalence, but worse than those of the best baseline "
     "(ridge)"),
]  # fmt: skip
BOUNDS = [
    (0.68, interval(0.7, 0.9),
     "errors cannot be judged, as 68% of the tested pairs are bounds: of pairs of these with a "
     "known order, 0.80 [0.70, 0.90] are predicted in this order"),
    (1.0, None, "errors cannot be judged, as 100% of the tested pairs are bounds"),
    (0.7, None, [LimitClaims(-1, 7.2, interval(0.9, 0.98), interval(0.6, 0.8))],
     "errors cannot be judged, as 70% of the tested pairs are bounds; of pairs predicted below pKd "
     "7.20, 94% [90%, 98%] are below it and of those predicted above, 70% [60%, 80%] above it, "
     "but sigma does not tell how far below"),
    (0.7, None, [LimitClaims(1, 9.0, interval(0.9, 0.98), None)],
     "errors cannot be judged, as 70% of the tested pairs are bounds; of pairs predicted above pKd "
     "9.00, 94% [90%, 98%] are above it, but sigma does not tell how far above"),
    (0.7, None, [LimitClaims(-1, 7.2, None, NOTHING)],
     "errors cannot be judged, as 70% of the tested pairs are bounds; many labels are only known "
     "to be below pKd 7.20, and sigma does not tell how far below they are"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shift", "relation"),
    [(0.0, "statistically indistinguishable from"), (1.0, "better than"), (-1.0, "worse than")],
)
def test_two_models_are_told_apart_by_the_interval_of_their_errors(shift, relation):
    rng = np.random.default_rng(0)
    rows = np.arange(80)
    pkd = rng.normal(8, 1, 80)
    tested = scores_of_regimes.TestedPairs(rows, pkd, rows * 0, rows, rows * 0, [rows])
    ours = pkd + rng.normal(size=80) / 2 + max(0.0, -shift)
    theirs = pkd + rng.normal(size=80) / 2 + max(0.0, shift)
    sentence = scores_of_regimes.compare_models("known", "run", "other", tested, ours, theirs, PKD)
    errors = [np.sqrt(np.square(pkd - predicted).mean()) for predicted in (ours, theirs)]
    assert sentence == (
        f"known: run is {relation} other (RMSE {errors[0]:.3f} and {errors[1]:.3f} pKd, 80 test "
        "pairs in effectively 80 groups)"
    )


def test_every_sentence_of_a_verdict_follows_from_its_numbers():
    judged = [
        scores_of_regimes.describe_loss(scores_of_regimes.PROBABILITIES, *claims)
        for *claims, _ in PROBABILITIES
    ]
    assert judged == [sentence for *_, sentence in PROBABILITIES]
    judged = [scores_of_regimes._describe_bounds(*numbers) for *numbers, _ in BOUNDS]
    assert judged == [sentence for *_, sentence in BOUNDS]
    judged = [scores_of_regimes.describe_ranking(claims) for claims, _ in RANKING]
    assert judged == [sentence for _, sentence in RANKING]
    judged = [
        scores_of_regimes.describe_loss(scores_of_regimes.ERRORS, *claims) for *claims, _ in ERRORS
    ]
    assert judged == [sentence for *_, sentence in ERRORS]
    for claims, sentence in RANKING:
        shown = [claim for claim in claims.values() if claim is not None and claim.holds]
        is_denied = "not shown" in sentence or "is worse" in sentence
        assert scores_of_regimes.is_by_chance(f"known: {sentence}; x") == is_denied
        assert bool(shown) == ("is better" in sentence)


@pytest.mark.parametrize(("pkd", "predicted", "group", "sentence"), [
    # equal labels, two values, equal predictions, one group, a perfect order
    (np.full(40, 8.0), np.arange(40), np.arange(40), "ranking cannot be judged"),
    (np.arange(40) % 2, np.arange(40) % 2, np.arange(40), "ranking within antigens is better"),
    (np.arange(40), np.full(40, 7.0), np.arange(40), "ranking is not shown to be better"),
    (np.arange(40), np.arange(40), np.zeros(40, int), "ranking cannot be judged; errors cannot"),
    (np.arange(10), np.arange(10), np.arange(10), "ranking within antigens is better"),
])  # fmt: skip
def test_what_cannot_be_said_is_not_said(pkd, predicted, group, sentence):
    judged = rank_claim(predicted * 1.0, pkd * 1.0, groups=group)
    assert judged["sentence"].startswith(f"known: {sentence}")
    claim = judged["spearman"]
    if claim is not None and claim["low"] is not None:
        assert -1 <= claim["low"] <= claim["value"] <= claim["high"] <= 1
        assert claim["low"] < 0.9999  # pairs in order are no certainty


def test_r2_compares_with_the_mean_of_the_test_pairs_and_skill_with_that_of_training():
    pkd = np.array([7.0, 8.0, 9.0, 8.5])
    predicted = np.full(4, 7.9)  # nearer than the training mean, 7.8; not than their own
    scores = regime(predicted, pkd)
    assert scores["r2"] == pytest.approx(r2_score(pkd, predicted))
    assert scores["r2"] < 0 < scores["skill"]
    assert scores["skill"] == pytest.approx(1 - sum((pkd - 7.9) ** 2) / sum((pkd - 7.8) ** 2))
    pkd = np.array([7.0, 8.0, 9.0] * 3)
    wide = regime(pkd + np.array([2.0, *[0.0] * 8]), pkd)  # one large error
    assert wide["intervals"]["r2"][1] == wide["intervals"]["skill"][1] == 1
    equal = regime(np.full(4, 7.9), np.full(4, 8.1))
    assert equal["r2"] is None
    assert equal["intervals"]["r2"] is None
    assert "-" in describe_regimes([equal])[1]


def test_an_anticorrelation_is_worse_than_chance():
    pkd = 8 + np.random.default_rng(0).normal(size=100)
    assert "ranking within antigens is worse than chance" in regime(16 - pkd, pkd)["sentence"]
    assert "errors are larger than those of the mean" in regime(16 - pkd, pkd)["sentence"]


def test_the_table_of_regimes_names_the_unit_of_the_labels():
    pkd = 8 + np.random.default_rng(0).normal(size=100)
    pic50 = Quantity(name="pIC50")
    head, row = describe_regimes([regime(pkd, pkd)], pic50)
    assert "RMSE (pIC50)" in head
    assert len(head) == len(row) == len(verdicts.columns(pic50)) + 1
