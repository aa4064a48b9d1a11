"""Intervals of differences between models, and what a comparison may claim from them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from abag.head.evaluation import comparison
from abag.head.evaluation.comparison import (
    Interval,
    _TestRows,
    antigen_groups,
    compare,
    score_interval,
    score_intervals,
    score_rows,
    widening,
)
from abag.head.evaluation.metrics import METRICS, score
from abag.head.evaluation.ranking import SCOPES, ClusterPairs, spearman_by_group
from abag.head.evaluation.verdicts import format_difference, relation, verdict, verdicts
from abag.head.report.report import describe_test_rows
from abag.head.runs.summary import score_parts
from abag.head.splits.splits import TEST, TRAIN, VALIDATION, Split

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(comparison, "DRAWS", 100)


def drawn(pkd, cluster, antigen=None):
    """Pairs whose antigens are in the given clusters; by default each cluster is one antigen."""
    pkd, cluster = np.asarray(pkd, float), np.asarray(cluster)
    return SimpleNamespace(
        pkd=pkd,
        censored=np.zeros(len(pkd), np.int8),
        antigen=cluster if antigen is None else np.asarray(antigen),
        antigen_cluster=cluster,
        antibody_cluster=None,
    )


def all_tested(group):
    return Split(name="drawn", part=np.full(len(group), TEST, np.int8), group=np.asarray(group))


def all_verdicts(pairs, split, head, baselines):
    models = {"head": head, **baselines}
    scores = {name: score_parts(pairs, split, one) for name, one in models.items()}
    return verdicts(
        lambda name, metric: compare(pairs, [split], [head], [baselines[name]], metric), scores
    )


def equally_good(clusters, rows=20, seed=0):
    """Two models with errors of equal size that are shared within clusters."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(clusters), rows)
    errors = [rng.normal(0, 1, clusters)[cluster] + rng.normal(0, 1, len(cluster)) for _ in "ab"]
    return drawn(np.zeros(len(cluster)), cluster), errors


@pytest.mark.parametrize("metric", ["rmse", "spearman", "top_enrichment", "pair_accuracy"])
def test_an_interval_is_that_of_all_samples_drawn_and_scored_in_one_go(monkeypatch, metric):
    rng, cluster = np.random.default_rng(1), np.repeat(np.arange(60), 20)
    pairs = drawn(rng.normal(8, 1, 1200), cluster)
    a, b = pairs.pkd + rng.normal(size=1200), pairs.pkd + rng.normal(size=1200)
    found = compare(pairs, [all_tested(pairs.antigen)], [a], [b], metric)
    monkeypatch.setattr(comparison, "SAMPLED_AT_ONCE", 300)  # in several threads
    monkeypatch.setattr(comparison, "MOST_KEPT", 0)
    in_parts = compare(pairs, [all_tested(pairs.antigen)], [a], [b], metric)
    ends = (found.difference, found.low, found.high)
    assert (in_parts.difference, in_parts.low, in_parts.high) == pytest.approx(ends, rel=1e-12)
    assert found.low < found.difference < found.high
    draws = np.random.default_rng(3).integers(7, size=(100, 7))
    counts = np.array([np.bincount(one, minlength=7) for one in draws])
    assert np.array_equal(comparison._count_draws(3, 100, 7), counts)


@pytest.mark.parametrize("clusters", [5, 8])
def test_equally_good_models_are_rarely_told_apart_by_few_clusters(clusters):
    wrong = 0
    for seed in range(200):
        pairs, (a, b) = equally_good(clusters, seed=seed)
        found = compare(pairs, [all_tested(pairs.antigen)], [a], [b], "rmse")
        wrong += found.low > 0 or found.high < 0
    assert wrong / 200 < 0.115  # 0.19 and 0.15 without widening


def test_intervals_over_few_clusters_are_widened_and_over_many_are_not():
    assert widening(5) == pytest.approx(2.7764 / 1.96 * np.sqrt(5 / 4), rel=1e-4)
    assert widening(10_000) == pytest.approx(1, abs=1e-3)


def test_five_test_rows_give_no_interval_although_they_form_five_groups():
    pairs = drawn([7, 8, 9, 6, 5], range(5))
    predicted = [pairs.pkd + 0.01], [pairs.pkd + 1.0]
    found = compare(pairs, [all_tested(np.arange(5))], *predicted, "rmse")
    assert (found.clusters, found.low, found.high) == (5, None, None)
    assert "5 test rows, too few for an interval" in verdict("head", "mean", "rmse", found)


def test_single_pairs_are_drawn_as_pairs_and_again_by_antigen_cluster():
    pairs, (a, b) = equally_good(8)
    b += np.where(pairs.antigen == 0, 2.0, 0.0)  # all of the gain comes from one antigen
    found = compare(pairs, [all_tested(np.arange(len(a)))], [a], [b], "rmse")
    assert (found.unit, found.clusters) == ("pairs", 160)
    assert (found.by_antigen.unit, found.by_antigen.clusters) == ("antigen clusters", 8)
    assert found.by_antigen.low < found.low < found.high < 0 < found.by_antigen.high
    said = verdict("head", "ridge", "rmse", found)
    assert said.startswith("The head is statistically indistinguishable from ridge")
    assert "over 160 pairs and 8 antigen clusters" in said
    assert found.to_json()["by_antigen"]["clusters"] == 8


@pytest.mark.parametrize(
    ("metric", "low", "high", "said"),
    [
        ("rmse", -0.2, -0.1, "The head is better than ridge: RMSE -0.150 [-0.200, -0.100] "
         "(head minus ridge; lower is better; 95 % interval over 7 clusters)."),
        ("rmse", 0.1, 0.2, "The head is worse than ridge: RMSE +0.150 [+0.100, +0.200] "
         "(head minus ridge; lower is better; 95 % interval over 7 clusters)."),
        ("spearman", 0.1, 0.2, "The head is better than ridge: Spearman +0.150 [+0.100, +0.200] "
         "(head minus ridge; higher is better; 95 % interval over 7 clusters)."),
    ],
)  # fmt: skip
def test_a_difference_is_head_minus_baseline_with_its_direction(metric, low, high, said):
    found = Interval((low + high) / 2, low, high, 7, 70)
    assert verdict("head", "ridge", metric, found) == said
    assert relation(found, metric) == said.split()[3]


def test_a_difference_is_neither_better_nor_worse_unless_all_intervals_agree():
    within = Interval(0.1, -0.1, 0.3, 7, 70, "antigen clusters")
    both = Interval(0.1, 0.05, 0.15, 60, 70, "pairs", within)
    assert relation(both, "rmse") is None
    assert format_difference(both) == "+0.100 [+0.050, +0.150] and [-0.100, +0.300]"
    assert relation(Interval(0.1, None, None, 2, 5), "rmse") is None


def test_the_same_model_fitted_twice_equals_itself():
    for limit in (1e-7, None):
        found = Interval(-1e-7, limit, limit, 7, 70)
        assert verdict("head", "ridge", "rmse", found).startswith("The head equals ridge: RMSE")
    one_differs = Interval(0.0, 0.0, 0.0, 60, 70, "pairs", Interval(0.0, -0.1, 0.1, 7, 70))
    assert " indistinguishable from ridge" in verdict("head", "ridge", "rmse", one_differs)


def test_groups_that_are_unions_of_antigen_clusters_are_drawn_once():
    pairs, (a, b) = equally_good(8)
    found = compare(pairs, [all_tested(pairs.antigen)], [a], [b], "rmse")
    assert (found.unit, found.clusters, found.by_antigen) == ("clusters", 8, None)


def test_a_single_antigen_is_drawn_by_pairs_alone():
    pairs = drawn(RNG.normal(8, 1, 60), np.zeros(60, int))
    found = compare(pairs, [all_tested(np.arange(60))], [pairs.pkd], [pairs.pkd * 0], "rmse")
    assert (found.unit, found.by_antigen) == ("pairs", None)
    assert verdict("head", "zero", "rmse", found).startswith("The head is better than zero")


def test_the_strongest_baseline_is_chosen_on_validation():
    n = 100
    part = np.repeat([TRAIN, VALIDATION, TEST], [n, n, n]).astype(np.int8)
    split = Split(name="drawn", part=part, group=np.arange(3 * n))
    pairs = drawn(RNG.normal(8, 1, 3 * n), np.zeros(3 * n, int))
    noise = RNG.normal(0, 1, 3 * n)
    good, lucky = pairs.pkd + 0.5 * noise, pairs.pkd + noise
    lucky[2 * n :] = pairs.pkd[2 * n :] + 0.3 * noise[2 * n :]
    baselines = {"good": good, "lucky": lucky, "ridge": good, "train_mean": good * 0 + 8}
    lines = all_verdicts(pairs, split, pairs.pkd + 0.1, baselines)
    assert any("good, the strongest baseline on validation" in line for line in lines)
    assert not any("lucky" in line for line in lines)


# ---- correlation within antigens -----------------------------------------------------------------


def test_constant_predictions_score_0_within_an_antigen():
    antigen = np.repeat(np.arange(10), 20)
    pkd = RNG.normal(8, 1, 200)
    blind = np.where(antigen == 0, pkd, 8.0)  # constant in 9 of 10 antigens
    found = score(pkd, blind, antigen)
    assert found["spearman_within_antigen"] == 0
    assert found["antigens_scored"] == 10
    assert spearman_by_group(pkd * 0 + 7, pkd, antigen).tolist() == pytest.approx(
        [np.nan] * 10, nan_ok=True
    )


def test_antigens_with_few_rows_are_scored_together_with_their_cluster():
    antigen = np.array([0] * 6 + [1, 1, 2, 2, 3, 3] + [4, 4])
    pairs = drawn(np.arange(14.0), [0] * 12 + [1] * 2, antigen)
    groups = antigen_groups(pairs, np.arange(14))
    assert len(set(groups[:6])) == len(set(groups[6:12])) == len(set(groups[12:])) == 1
    assert len(set(groups)) == 3
    assert score(pairs.pkd, pairs.pkd, groups)["antigens_scored"] == 2


def test_antigens_that_were_not_clustered_are_scored_by_themselves():
    pairs = drawn(np.arange(12.0), np.repeat([0, 1, 2], 4))
    pairs.antigen_cluster = None
    assert len(set(antigen_groups(pairs, np.arange(12)))) == 3


# ---- a constant as the opponent ------------------------------------------------------------------


def compared(predicted, pkd=None):
    """Verdicts on 100 test pairs of ten antigens against a good ridge and the training mean."""
    rng, n = np.random.default_rng(1), 300
    pkd = rng.normal(8, 1, n) if pkd is None else pkd
    pairs = drawn(pkd, np.arange(n) % 10)
    part = np.repeat([TRAIN, VALIDATION, TEST], n // 3).astype(np.int8)
    split = Split(name="drawn", part=part, group=pairs.antigen)
    baselines = {"train_mean": np.full(n, 8.0), "ridge": pkd + rng.normal(0, 3, n)}
    return all_verdicts(pairs, split, predicted(pkd, rng.normal(0, 1, n)), baselines)


def test_a_head_that_is_no_better_than_the_training_mean_is_called_that_first():
    lines = compared(lambda pkd, noise: pkd + 1.5 * noise)
    assert lines[0].startswith("The head is not better than predicting the training mean: RMSE 1.")
    assert lines[1].startswith("The head is worse than predicting the mean of the scored labels")
    assert lines[2].startswith("The head is worse than train_mean")
    assert any(line.startswith("The head is better than ridge") for line in lines[3:])


def test_a_head_that_may_be_no_better_than_the_training_mean_is_called_that_first():
    lines = compared(lambda pkd, noise: 8 + 0.02 * (pkd - 8) + 0.05 * noise)
    first = next(line for line in lines if "R2 is" not in line)
    assert first.startswith("The head is statistically indistinguishable from train_mean")


def test_a_good_head_is_not_compared_with_a_constant_first():
    lines = compared(lambda pkd, noise: pkd + 0.2 * noise)
    assert " train_mean" not in lines[0]
    assert lines[0].startswith("The head is better than")


def test_test_rows_of_repeated_folds_are_explained():
    split = {"folds": 20, "test_pairs": 966}
    said = describe_test_rows(3864, split)
    assert said == "3,864 test rows: 966 pairs, each tested in 4 of 20 folds"
    assert describe_test_rows(966, split) == ""


def variants_of_complexes(seed=0, rows=60):
    """Pairs of several complexes, with predictions that are partly right."""
    rng = np.random.default_rng(seed)
    antigen = rng.integers(6, size=rows)
    pairs = drawn(7 + rng.normal(size=rows), antigen // 2, antigen)
    pairs.antibody_cluster = rng.integers(3, size=rows)
    return pairs, pairs.pkd + rng.normal(size=rows)


@pytest.mark.parametrize("metric", SCOPES)
def test_pair_accuracies_of_samples_of_clusters_equal_those_of_the_repeated_rows(metric):
    pairs, predicted = variants_of_complexes()
    rows = np.arange(len(pairs.pkd))
    one = _TestRows.of(pairs, rows, [predicted])
    cluster, counts_DK = rows % 7, RNG.integers(0, 3, (5, 7)).astype(float)
    found = one.resampled_by(cluster, metric)
    assert found.cluster.tolist() == list(range(7))
    groups = antigen_groups(pairs, rows)
    for counts, value in zip(counts_DK, found.score(counts_DK), strict=True):
        again = np.repeat(rows, counts[cluster].astype(int))
        repeated = score(
            pairs.pkd[again], predicted[again], groups[again], 0,
            ClusterPairs(pairs.antibody_cluster[again], pairs.antigen_cluster[again]),
        )[metric]  # fmt: skip
        assert value == pytest.approx(repeated)


def intervals(pairs, splits, predicted):
    own = score_rows(pairs, predicted, np.arange(len(predicted)))
    return score_intervals(pairs, splits, [predicted] * len(splits), own)


def test_a_score_has_the_wider_of_its_intervals():
    pairs, predicted = variants_of_complexes(rows=200)
    pairs.antigen_cluster = pairs.antigen
    split = all_tested(np.arange(200))
    found = intervals(pairs, [split, split], predicted)
    assert list(found) == [n for n, m in METRICS.items() if m.headline or m.with_interval]
    own = score_rows(pairs, predicted, np.arange(200))
    for name, one in found.items():
        assert one["value"] == own[name]
        assert one["low"] < one["value"] < one["high"]
        assert score_interval(pairs, [split], [predicted], name)["value"] == pytest.approx(
            own[name]
        )
    pairs.antigen_cluster = np.zeros(200, int)
    by_pair = intervals(pairs, [split], predicted)
    assert "spearman_within_antigen" not in by_pair
    widths = [x["rmse"]["high"] - x["rmse"]["low"] for x in (found, by_pair)]
    assert widths[0] > widths[1]


def test_intervals_of_scores_of_perfect_predictions_do_not_pass_the_best():
    pairs, _ = variants_of_complexes()
    found = intervals(pairs, [all_tested(np.arange(60))], pairs.pkd)
    assert found["rmse"]["low"] == found["rmse"]["high"] == 0
    assert found["pair_accuracy_unrelated"]["high"] == 1
    assert found["top_enrichment"]["value"] == pytest.approx(10)


def test_intervals_do_not_pass_the_least_possible_score():
    pairs, _ = variants_of_complexes()
    blind = np.random.default_rng(3).normal(size=60)
    found = intervals(pairs, [all_tested(np.arange(60))], blind)["top_enrichment"]
    assert 0 == found["low"] <= found["value"] < found["high"]
    few = np.repeat(np.arange(5), 3)  # five clusters widen an interval the most
    pairs, noise = drawn(np.arange(15.0), few), np.random.default_rng(3).normal(size=15)
    found = intervals(pairs, [all_tested(few)], noise - 0.3 * pairs.pkd)
    assert found["pair_accuracy"]["low"] == 0
    assert found["spearman"]["low"] == -1


def test_a_share_of_pairs_of_few_clusters_has_no_interval_however_many_others_there_are():
    antigen = np.r_[np.arange(28), 0, 1]  # two of 28 antigens have two rows
    pairs = drawn(np.r_[np.linspace(5, 6, 28), 9, 9], antigen, antigen)
    pairs.antibody_cluster = np.arange(30)
    predicted = np.r_[np.linspace(5, 6, 28), 9, 4]
    found = intervals(pairs, [all_tested(np.arange(30))], predicted)
    within = found["pair_accuracy_within_antigen"]
    assert within == {"value": 0.5, "low": None, "high": None, "clusters": 4}
    assert found["pair_accuracy"]["clusters"] == 30


def test_scores_of_many_pairs_are_resampled_on_some_rows_in_few_clusters(monkeypatch):
    pairs, predicted = variants_of_complexes(rows=400)
    split = all_tested(np.arange(400))
    whole = intervals(pairs, [split], predicted)["pair_accuracy"]
    monkeypatch.setattr(comparison, "PAIRED_ROWS", 150)
    monkeypatch.setattr(comparison, "MOST_CLUSTERS", 20)
    part = intervals(pairs, [split], predicted)["pair_accuracy"]
    assert part["value"] == whole["value"]
    assert part["clusters"] == 20
    assert part["low"] < part["value"] < part["high"]
    assert part["high"] - part["low"] < 3 * (whole["high"] - whole["low"])
