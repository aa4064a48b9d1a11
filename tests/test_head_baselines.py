"""Baselines against the plain formulas, and comparisons on planted tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from chunks import set_sizes
from drawn import RESIDUES, draw_chains
from heads import (
    MODELS,
    TEST,
    TRAIN,
    VALIDATION,
    PairVectors,
    Split,
    Standardizer,
    TrainingRows,
    fitted_models,
    inner_folds,
    read_labels,
    splits_of,
    with_cluster_numbers,
)
from threadpoolctl import threadpool_info, threadpool_limits

import abag
from abag.head.evaluation.metrics import MeasuredRows
from abag.head.models.pair_vectors import SideVectors, count_residues
from abag.head.models.ridge import FeatureBlock, NormalEquations, Ridge
from abag.head.predictor.parts import BaselineInputs, count_mutations, predict_baselines


def random_split(antibody, antigen, seed):
    """Split the unique pairs 8:1:1, whatever the order of the rows."""
    joined = antibody * (antigen.max() + 1) + antigen
    group = np.unique(joined, return_inverse=True)[1]
    n = group.max() + 1
    first, second = np.round(n * np.array([0.8, 0.9])).astype(int)
    order = np.random.default_rng(seed).permutation(n)
    part = np.full(n, TEST, np.int8)
    part[order[:second]] = VALIDATION
    part[order[:first]] = TRAIN
    return Split(name="random", part=part[group], group=group)


def plain_ridge(x_PD, y, penalty):
    """Ridge with a free intercept, by the normal equations on one row per pair."""
    mean = x_PD.mean(0)
    centred = x_PD - mean
    weights = np.linalg.solve(
        centred.T @ centred + penalty * np.eye(x_PD.shape[1]), centred.T @ (y - y.mean())
    )
    return lambda new: y.mean() + (new - mean) @ weights


def planted(seed=0, antibodies=60, antigens=12, rows=300, antigen_effect=1.0, noise=0.2):
    """Return pairs, and vectors of which the labels are a linear function plus noise."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "heavy": rng.choice(draw_chains(rng, antibodies, 60), rows),
            "antigen": rng.choice(draw_chains(rng, antigens, 80), rows),
        }
    ).drop_duplicates(ignore_index=True)
    antibody_of = {h: rng.normal(size=6) for h in sorted(set(frame["heavy"]))}
    antigen_of = {a: rng.normal(size=4) for a in sorted(set(frame["antigen"]))}
    pkd = 8 + frame["heavy"].map(lambda h: antibody_of[h][0]) + rng.normal(0, noise, len(frame))
    pkd += antigen_effect * frame["antigen"].map(lambda a: antigen_of[a][0])
    pairs = read_labels(frame.assign(pkd=pkd))
    table = pairs.table
    antibody_ND = np.array([antibody_of[heavy] for heavy, _ in table.antibodies.chains], np.float32)
    antigen_ND = np.array([antigen_of[chain] for (chain,) in table.antigens.chains], np.float32)
    return pairs, antibody_ND, antigen_ND


def inputs_of(pairs, split, antibody_ND, antigen_ND):
    """Return what baselines learn from: the exact pairs of the training part."""
    sides = {}
    for kind, x_ND in (("antibody", antibody_ND), ("antigen", antigen_ND)):
        chains = pairs.table.sequences[kind].chains
        sides[kind] = SideVectors(np.asarray(x_ND, np.float32), pairs.index(kind), chains)
    vectors = PairVectors(sides)
    rows = np.flatnonzero((split.part == TRAIN) & (pairs.censored == 0))
    training = TrainingRows(pairs, vectors, rows, inner_folds(split.group[rows]))
    return BaselineInputs(pairs, training, split, count_mutations(pairs))


COMPARED = [name for name, model in MODELS.items() if model.is_baseline]


def predict_compared(inputs):
    """Predict by the baselines and by the models that every fit is compared with."""
    predicted = predict_baselines(inputs)
    for name, fit in fitted_models(inputs.training, COMPARED):
        predicted[name] = fit.predict(inputs.training.vectors)
    return predicted


def ridge(blocks, pkd, fit_rows, fold):
    """Fit a ridge on blocks, and predict every pair."""
    fit = Ridge(blocks, fit_rows, fold).fit(pkd)
    joined = np.hstack([block.table_ND[block.index] for block in blocks])
    return fit.intercept + joined @ np.concatenate(fit.weights)


@pytest.mark.parametrize("width", [5, 80])
def test_ridge_equals_the_normal_equations_on_one_row_a_pair(width, monkeypatch):
    set_sizes(monkeypatch, ridge_strengths=np.array([0.3]), ridge_rows=7)
    rng = np.random.default_rng(0)
    left = rng.normal(size=(20, width))
    right = rng.normal(size=(15, 3))
    blocks = [
        FeatureBlock(table.astype(np.float32), rng.integers(len(table), size=60))
        for table in (left, right)
    ]
    pkd = rng.normal(8, 1, 60)
    fit_rows = np.arange(40)
    predicted = ridge(blocks, pkd, fit_rows, np.arange(40) % 5)
    x_PD = np.hstack([b.table_ND[b.index] for b in blocks]).astype(np.float64)
    train = x_PD[:40]
    columns = min(width, len(np.unique(blocks[0].index[:40]))) + 3
    penalty = 0.3 * ((train - train.mean(0)) ** 2).sum() / min(40, columns)
    expected = plain_ridge(train, pkd[:40], penalty)(x_PD)
    np.testing.assert_allclose(predicted, expected, atol=1e-5)


@pytest.mark.gpu
def test_ridges_on_a_gpu_equal_those_of_the_cpu():
    rng = np.random.default_rng(0)
    blocks = [
        FeatureBlock(rng.normal(size=size).astype(np.float32), rng.integers(size[0], size=50))
        for size in [(30, 20), (9, 40)]
    ]
    pkd = rng.normal(8, 1, 50)
    inputs = blocks, rng.permutation(50)[:40], np.arange(40) % 3
    fitted = Ridge(*inputs, torch.device("cuda")).fit(pkd)
    expected = Ridge(*inputs).fit(pkd)
    for weights, other in zip(fitted.weights, expected.weights, strict=True):
        np.testing.assert_allclose(weights, other, atol=1e-9)
    np.testing.assert_allclose(fitted.inner, expected.inner, atol=1e-9)


def test_residues_are_counted_like_by_count():
    texts = ["ACDA", "", "XXYA", "W"]
    counts = count_residues(texts)
    for text, counted in zip(texts, counts.tolist(), strict=True):
        assert counted == [text.count(letter) for letter in RESIDUES]


@pytest.mark.parametrize(("limit", "threads"), [(1500, {1}), (0, {2})])
def test_a_small_ridge_uses_one_thread_and_a_large_one_all(limit, threads, monkeypatch):
    real = NormalEquations.solve
    seen = set()

    def record(*inputs):
        seen.update(x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas")
        return real(*inputs)

    monkeypatch.setattr(NormalEquations, "solve", record)
    set_sizes(monkeypatch, parallel_columns=limit)
    pairs, *vectors = planted()
    with threadpool_limits(2, user_api="blas"):
        predict_compared(inputs_of(pairs, random_split(pairs.antibody, pairs.antigen, 0), *vectors))
    assert seen == threads


def test_baselines_use_only_exact_training_labels():
    pairs, antibody_ND, antigen_ND = planted()
    split = random_split(pairs.antibody, pairs.antigen, 0)
    censored = np.where(np.arange(len(pairs)) % 5 == 0, -1, 0).astype(np.int8)
    hidden = (split.part != TRAIN) | (censored != 0)
    first = predict_compared(
        inputs_of(replace(pairs, censored=censored), split, antibody_ND, antigen_ND)
    )
    other = replace(pairs, censored=censored, pkd=np.where(hidden, 99.0, pairs.pkd))
    second = predict_compared(inputs_of(other, split, antibody_ND, antigen_ND))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_the_antigen_mean_is_undefined_where_every_antigen_is_new():
    pairs, antibody_ND, antigen_ND = planted()
    cold = splits_of(pairs, split="antigen")[0]
    predicted = predict_baselines(inputs_of(pairs, cold, antibody_ND, antigen_ND))["antigen_mean"]
    assert np.isnan(predicted[cold.rows(TEST)]).all()
    warm = random_split(pairs.antibody, pairs.antigen, 0)
    predicted = predict_baselines(inputs_of(pairs, warm, antibody_ND, antigen_ND))["antigen_mean"]
    row = warm.rows(TEST)[0]
    same_antigen = (warm.part == TRAIN) & (pairs.antigen == pairs.antigen[row])
    assert predicted[row] == pytest.approx(pairs.pkd[same_antigen].mean())


def test_baselines_count_a_label_by_its_weight_as_the_models_do():
    pairs, split, *vectors = families(60, 70)
    is_wild = np.arange(len(pairs)) % 4 == 0
    wild = replace(pairs, pkd=pairs.pkd + 9.0 * is_wild)
    share = np.where(is_wild, 1e9, 1.0)
    for weighed, may_differ in ((share, False), (None, True)):
        first, second = (
            predict_compared(inputs_of(replace(labels, share=weighed), split, *vectors))
            for labels in (pairs, wild)
        )
        rows = split.rows(TEST)
        for name in first.keys() - {"nearest_antibody"}:  # which may have such a label alone
            is_same = np.allclose(first[name][rows], second[name][rows], atol=1e-3, equal_nan=True)
            assert is_same != may_differ, name


def test_constant_inputs_and_a_single_antigen_give_finite_predictions():
    pairs, antibody_ND, _ = planted(antigens=1, antigen_effect=0)
    split = random_split(pairs.antibody, pairs.antigen, 0)
    predicted = predict_compared(inputs_of(pairs, split, antibody_ND, np.ones((1, 4), np.float32)))
    rows = split.rows(TEST)
    assert all(np.isfinite(p[rows]).all() for p in predicted.values())
    assert predicted["antigen_ridge"] == pytest.approx(predicted["train_mean"])
    constant = predict_compared(
        inputs_of(pairs, split, np.ones_like(antibody_ND), np.ones((1, 4), np.float32))
    )
    assert constant["ridge"] == pytest.approx(constant["train_mean"])


def test_the_assay_mean_applies_to_tables_with_an_assay_column():
    pairs, antibody_ND, antigen_ND = planted()
    frame = pairs.table.frame.assign(assay=lambda f: np.where(f["pkd"] > 8, "spr", "elisa"))
    named = read_labels(frame)
    split = random_split(named.antibody, named.antigen, 0)
    predicted = predict_baselines(inputs_of(named, split, antibody_ND, antigen_ND))["assay_mean"]
    assert len(np.unique(predicted.round(6))) == 2
    assert "assay alone explains" in problems_of(frame)


def families(*lengths):
    """Return pairs of variants of unrelated parents, and vectors; each mutation costs 0.5 pKd."""
    rng = np.random.default_rng(0)
    rows = []
    for length in lengths:
        parent = rng.choice(RESIDUES, length)
        for _ in range(120):
            letters = parent.copy()
            at = rng.choice(length, rng.integers(0, 6), replace=False)
            letters[at] = rng.choice(RESIDUES, len(at))
            pkd = 9 - 0.5 * (letters != parent).sum() + 0.01 * rng.normal()
            rows.append({"heavy": "".join(letters), "antigen": "ACDEFGHIKLMN", "pkd": pkd})
    pairs = read_labels(pd.DataFrame(rows))
    x_ND = np.array([[len(heavy)] for heavy, _ in pairs.table.antibodies.chains], np.float32)
    pairs = with_cluster_numbers(pairs)
    split = random_split(pairs.antibody, pairs.antigen, 0)
    return pairs, split, x_ND, np.zeros((1, 2))


def test_variants_of_one_length_get_one_hot_and_mutation_baselines():
    pairs, split, *vectors = families(60)
    predicted = predict_compared(inputs_of(pairs, split, *vectors))
    rows = split.rows(TEST)
    assert np.corrcoef(pairs.pkd[rows], predicted["mutation_count"][rows])[0, 1] > 0.95
    assert "one_hot_ridge" in predicted
    of_many_lengths = predict_compared(inputs_of(*families(60, 70, 80)))
    assert not {"mutation_count", "one_hot_ridge"} & of_many_lengths.keys()


def test_nearest_antibodies_are_left_out_of_large_tables(monkeypatch):
    pairs, antibody_ND, antigen_ND = planted()
    split = random_split(pairs.antibody, pairs.antigen, 0)
    every = set(predict_compared(inputs_of(pairs, split, antibody_ND, antigen_ND)))
    set_sizes(monkeypatch, compared_antibodies=1)
    left = set(predict_compared(inputs_of(pairs, split, antibody_ND, antigen_ND)))
    assert every - left == {"nearest_antibody"}


def test_nearest_antibody_prefers_labels_with_the_same_antigen():
    pairs, antibody_ND, antigen_ND = planted()
    split = random_split(pairs.antibody, pairs.antigen, 0)
    inputs = inputs_of(pairs, split, antibody_ND, antigen_ND)
    predicted = predict_baselines(inputs)["nearest_antibody"]
    train = split.rows(TRAIN)
    z_ND = Standardizer.of(antibody_ND, pairs.antibody[train]).apply(antibody_ND)
    seen = np.unique(pairs.antibody[train])
    for row in split.rows(TEST)[:10]:
        nearest = pairs.antibody[row]
        if nearest not in seen:
            nearest = seen[np.argmin(((z_ND[seen] - z_ND[nearest]) ** 2).sum(1))]
        same_antibody = train[pairs.antibody[train] == nearest]
        same = same_antibody[pairs.antigen[same_antibody] == pairs.antigen[row]]
        nearest_rows = same if len(same) else same_antibody
        assert predicted[row] == pytest.approx(pairs.pkd[nearest_rows].mean())


def problems_of(frame):
    """Return what plan lists, of which fit warns as well."""
    return " ".join(abag.plan(frame)["problems"])


def test_labels_out_of_range_and_measurements_that_differ_are_problems():
    pairs, *_ = planted()
    frame = pairs.table.frame.copy()
    frame.loc[:8, "pkd"] = 20.0
    again = frame[50:90].assign(pkd=lambda rows: rows["pkd"] + np.where(rows.index < 53, 1.5, 0.4))
    plan = abag.plan(pd.concat([frame, again]))
    lines = " ".join(plan["problems"])
    assert "9 labels are outside the usual range of pKd" in lines
    assert "3 pairs have labels or bounds more than 1 pKd apart" in lines
    noise = plan["labels"]["replicate_noise"]
    assert noise > 0.2
    assert f"{noise:.2f} pKd: the error of a label that was measured once" in lines


@pytest.mark.parametrize("large", [1e4, 1e6, 1e8, 1e12])
def test_a_ridge_is_finite_where_one_inner_fold_dwarfs_the_others(large):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x_ND = rng.normal(size=(24, 30)).astype(np.float32)
        rows = np.arange(24)
        x_ND[:8] *= large
        predicted = ridge([FeatureBlock(x_ND, rows)], rng.normal(size=24), rows, rows // 8)
        assert np.isfinite(predicted).all()


def test_ridge_recovers_a_planted_rule_and_predicts_the_mean_on_noise():
    pairs, antibody_ND, antigen_ND = planted()
    split = random_split(pairs.antibody, pairs.antigen, 0)
    rows = split.rows(TEST)
    good = predict_compared(inputs_of(pairs, split, antibody_ND, antigen_ND))["ridge"]
    assert MeasuredRows.of(pairs.pkd[rows], pairs.antigen[rows]).score(good[rows])["rmse"] < 0.3
    shuffled = replace(pairs, pkd=np.random.default_rng(1).permutation(pairs.pkd))
    blind = predict_compared(inputs_of(shuffled, split, antibody_ND, antigen_ND))
    assert blind["ridge"].std() < 0.3 * pairs.pkd.std()


def test_labels_explained_by_the_antigen_alone_are_a_problem():
    for effect, is_explained in ((8.0, True), (0.0, False)):
        pairs, *_ = planted(antigen_effect=effect)
        assert ("antigen alone explains" in problems_of(pairs.table.frame)) == is_explained
