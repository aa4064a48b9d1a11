"""Parts of a prediction and their weights: fit, weigh, store, refit and predict."""

import gc
import json
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import drawn
import numpy as np
import pandas as pd
import pytest
from chunks import set_cores, set_sizes
from drawn import labelled, linear_table
from heads import (
    MODELS,
    TEST,
    TRAIN,
    PairVectors,
    Split,
    TrainingRows,
    inner_folds,
    used_options,
)
from hypothesis import given
from hypothesis import strategies as st
from marks import in_ci

import abag
from abag import OptionError
from abag.head import fit as fitting
from abag.head.models.network import NetworkModel
from abag.head.models.pair_vectors import SideVectors
from abag.head.models.ridge import LinearModel
from abag.head.predictor import weigh as weighing
from abag.head.predictor.parts import Mixture, Parts, Predictions, needed_parts
from abag.head.predictor.weigh import PRIOR_GROUPS, stack_weights, weigh_run
from abag.head.regimes.splits import REGIMES, MeasuredRegime, effective_groups, standard_error
from abag.head.training.tasks import Kept

WITH_VARIANCE = {"kernel", "gp", "trees"}
"""Parts of the table of these tests that have a variance."""
QUICK = drawn.QUICK | {"split": "antibody", "folds": 2}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A table whose labels are a linear function of the stored vectors, plus noise."""
    return linear_table(tmp_path_factory.mktemp("stack"), 40, 3, noise=0.2)


def fit(case, run, **options):
    quick = used_options(QUICK, options.get("head", "stack"))
    return abag.fit(case.frame, case.store, run, **quick | options)


@pytest.fixture(scope="module")
def default(case):
    """Return the summary of a run of the default head."""
    return fit(case, case.at / "default")


def weights_of(run):
    return (run / "predictor/weights.safetensors").read_bytes()


@pytest.mark.ci
@pytest.mark.parametrize(
    "head", ["stack", *in_ci("ridge", "antibody_ridge", "kernel", "gp", "mlp")]
)
def test_a_head_is_fitted_and_refitted_to_the_same_bits(case, tmp_path, head):
    run = tmp_path / "run"
    again = tmp_path / "again"
    said = []
    summary = fit(case, run, head=head)
    (regime,) = summary["regimes"]
    assert regime["regime"] == "new_antibody"
    assert sum(regime["weights"].values()) == pytest.approx(1)
    if head != "mlp":  # which takes a few steps only
        assert regime["rmse"] < 0.6 * regime["rmse_of_mean"]
    written = json.loads((run / "summary.json").read_text())
    assert fit(case, run, head=head, say=said.append) == written
    assert "nothing to do" in said[-1]
    (run / "summary.json").unlink()  # interrupted before the last file
    fit(case, run, head=head)
    fit(case, again, head=head)
    for name in ("predictions.parquet", "predictor/predictor.json"):
        assert (run / name).read_bytes() == (again / name).read_bytes()
    assert weights_of(run) == weights_of(again)


def test_a_predictor_holds_the_parts_that_are_fitted_to_all_pairs(case, tmp_path):
    fit(case, tmp_path / "run", head="ridge")
    predictor = abag.load_predictor(tmp_path / "run")
    data = abag.dataset(case.store, case.frame)
    sides = {}
    for kind in ("antibody", "antigen"):
        sides[kind] = SideVectors(data.vectors(kind), data.index(kind))
    vectors = PairVectors(sides)
    labels = SimpleNamespace(pkd=data.y, share=None)
    rows = TrainingRows(labels, vectors, np.arange(len(data)), inner_folds(data.index("antibody")))
    alone = MODELS["ridge"].fit(rows)
    ridge = predictor.parts.predict(vectors, ["ridge"])["ridge"]
    np.testing.assert_allclose(ridge, alone.predict(vectors), atol=0.02)


def test_parts_that_no_regime_needs_are_not_fitted_to_all_pairs(case, tmp_path, monkeypatch):
    fit_parts = Parts.fit
    learned = []

    def recorded(training, names):
        parts = fit_parts(training, names)
        if len(training.rows) == len(case.frame):
            learned.extend(parts.models)
        return parts

    monkeypatch.setattr(Parts, "fit", recorded)
    summary = fit(case, tmp_path / "run")
    (regime,) = summary["regimes"]
    needed = {*regime["weights"]}
    if regime["spread"] and not needed & WITH_VARIANCE:  # sigma comes from their variance
        needed |= WITH_VARIANCE
    assert {"mlp", "ridge", "kernel"} - needed
    assert {*learned} == needed - {"mlp"}
    assert parts_of(tmp_path / "run") == needed
    assert bool(summary["epochs"]) == ("mlp" in needed)


@pytest.mark.parametrize(
    ("spread", "members", "needed"),
    [
        (0.0, 1, ["ridge"]),
        (0.5, 1, ["gp", "ridge"]),
        (0.0, 3, ["ridge"]),
        (0.5, 3, ["gp", "ridge"]),
    ],
)
def test_parts_that_sigma_comes_from_are_needed_without_weight(spread, members, needed):
    mixture = Mixture({"ridge": 1.0}, spread, noise=1.0)
    assert needed_parts({"gp": 1, "ridge": 1, "mlp": members}, [mixture]) == needed
    of_trees = Mixture({"ridge": 0.5, "trees": 0.5}, spread, noise=1.0)
    assert needed_parts({"gp": 1, "ridge": 1, "trees": 1}, [of_trees]) == ["ridge", "trees"]
    of_networks = ["ridge", "mlp"] if spread and members > 1 else ["ridge"]
    assert needed_parts({"ridge": 1, "mlp": members}, [mixture]) == of_networks


@pytest.mark.parametrize(("head", "kind"), [("ridge", LinearModel), ("mlp", NetworkModel)])
def test_folds_keep_what_their_parts_predict_and_no_models(case, tmp_path, monkeypatch, head, kind):
    weigh_folds = fitting.weigh_run
    models = []

    def counted(pairs, folds):
        gc.collect()
        models.append(sum(isinstance(thing, kind) for thing in gc.get_objects()))
        return weigh_folds(pairs, folds)

    monkeypatch.setattr(fitting, "weigh_run", counted)
    gc.collect()
    before = sum(isinstance(thing, kind) for thing in gc.get_objects())
    fit(case, tmp_path / "run", head=head)
    assert models == [before]


def test_labels_of_a_fold_change_nothing_that_is_predicted_of_it_by_one_part(case, tmp_path):
    part = np.where(np.arange(len(case.frame)) % 5 == 0, "test", "train")
    part[1::10] = "val"
    frame = case.frame.assign(part=part)
    labels = np.random.default_rng(1).uniform(6, 10, len(part))
    changed = frame.assign(pKd=np.where(part == "test", labels, frame["pKd"]))
    baselines = []
    for name, table in (("a", frame), ("b", changed)):
        relabelled = SimpleNamespace(frame=table, store=case.store)
        fit(relabelled, tmp_path / name, head="stack", split="column=part", folds=0)
        baselines.append(pd.read_parquet(tmp_path / name / "baselines.parquet"))
    pd.testing.assert_frame_equal(*baselines, check_exact=True)


def draw_errors(seed, parts, rows):
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.1, 3, parts)
    offset = rng.normal(size=parts)
    return rng, rng.normal(size=(rows, parts)) * scale + offset


@given(seed=st.integers(0, 10_000), parts=st.integers(1, 5), rows=st.integers(1, 40))
def test_weights_are_not_negative_add_up_to_one_and_no_others_cost_less(seed, parts, rows):
    rng, error_RK = draw_errors(seed, parts, rows)
    group = rng.integers(5, size=rows)
    mean = int(rng.integers(parts))
    with mock.patch.object(weighing, "LEAST_PART", 0.0):
        weights = stack_weights(error_RK, group, mean)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    square_K = np.square(error_RK).mean(axis=0)
    pull = PRIOR_GROUPS / effective_groups(group)
    expected_K = shares_of_best(error_RK, group)
    gains = [np.square(error_RK[:, mean]) - np.square(error_R) for error_R in error_RK.T]
    if all(gain_R.mean() <= standard_error(gain_R, group) for gain_R in gains):
        expected_K = (expected_K + np.eye(parts)[mean]) / 2

    def cost(of_K):
        away = np.square(of_K - expected_K).sum()
        return np.square(error_RK @ of_K).mean() + pull * square_K.min() * away

    others = [*np.eye(parts), *rng.dirichlet(np.ones(parts), 50)]
    assert cost(weights) <= min(map(cost, others)) * (1 + 1e-6) + 1e-9
    kept = stack_weights(error_RK, group, mean)
    is_kept = weights >= weighing.LEAST_PART
    np.testing.assert_allclose(kept, np.where(is_kept, weights, 0) / weights[is_kept].sum())


def shares_of_best(error_RK, group):
    """Count in plain loops how often each part is the best one, in the groups that a fit draws."""
    names = np.unique(group)
    rng = np.random.default_rng(0)
    times_SG = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), weighing.RESAMPLED)
    best = np.zeros(error_RK.shape[1])
    for times_G in times_SG:
        chosen = [np.flatnonzero(group == names[g]) for g in np.repeat(range(len(names)), times_G)]
        best[np.square(error_RK[np.concatenate(chosen)]).mean(axis=0).argmin()] += 1
    return best / best.sum()


def test_weights_do_not_follow_the_rounding_of_equal_parts():
    rng = np.random.default_rng(0)
    error_RK = rng.normal(size=(60, 3)) * [0.5, 0.5, 1.0]
    error_RK[:, 1] = error_RK[:, 0]
    rounded = error_RK * (1 + 1e-15 * rng.normal(size=error_RK.shape))
    group = np.arange(60) % 20
    np.testing.assert_allclose(
        stack_weights(rounded, group, 2), stack_weights(error_RK, group, 2), atol=1e-9
    )


def test_weights_of_many_groups_hardly_depend_on_how_many_are_drawn_as_one():
    error_RK = np.random.default_rng(0).normal(size=(5_000, 4)) * [0.5, 0.6, 0.7, 1.0]
    group = np.random.default_rng(1).permutation(5_000)
    pooled = stack_weights(error_RK, group, 3)
    with mock.patch.object(weighing, "MOST_DRAWN", 5_000):
        single = stack_weights(error_RK, group, 3)
    np.testing.assert_allclose(pooled, single, atol=1e-3)


def test_few_groups_pull_the_weights_to_the_best_part_and_many_follow_the_errors():
    rows = 600
    error_RK = np.random.default_rng(0).normal(size=(rows, 2)) * [0.5, 1.0]
    few, some, many = (stack_weights(error_RK, np.arange(rows) % n, 1)[0] for n in (2, 20, rows))
    by_variance = 1 / (1 + 0.5**2)  # the errors are independent
    assert many == pytest.approx(by_variance, abs=0.03)
    assert many < some < few
    assert few > 0.85


def test_a_part_without_errors_has_all_the_weight():
    error_RK = np.array([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]])
    assert stack_weights(error_RK, np.arange(2), 2).tolist() == [0, 1, 0]


def test_a_bad_part_does_not_pull_weight_from_the_best():
    error_RK = np.random.default_rng(0).normal(size=(60, 3)) * [0.1, 1.0, 1.0]
    both = [
        stack_weights(errors, np.arange(60), 1)[0]
        for errors in (error_RK, error_RK * [1.0, 1.0, 20.0])
    ]
    assert min(both) > 0.9
    assert both[1] == pytest.approx(both[0], abs=0.04)


def make_regime(pkd, predicted, *, folds=2, censored=None, group=None):
    """A regime whose folds test the pairs in turn, and parts with given predictions, by name."""
    n = len(pkd)
    group = np.arange(n) if group is None else group
    pairs = labelled(np.zeros(n, np.int64), np.zeros(n, np.int64), pkd, censored)
    part_FP = [
        np.where(np.arange(n) % folds == k, TEST, TRAIN).astype(np.int8) for k in range(folds)
    ]
    splits = [Split(name="known", part=part, group=group, fold=k) for k, part in enumerate(part_FP)]
    parts = [Predictions((*predicted,), dict(predicted)) for _ in splits]
    return pairs, MeasuredRegime(REGIMES["known"], tuple(splits), (group,)), parts


def weigh(pairs, measured, folds):
    (regime,) = weigh_run(pairs, [(measured, folds)]).regimes
    return regime


def right_in_halves(first, second, even):
    """Return what two parts predict of which each is right in one half only."""
    return {
        "train_mean": np.full(len(even), 8.0),
        "first": np.where(even, first, 20.0),
        "second": np.where(even, 20.0, second),
    }


def test_the_weights_of_a_fold_come_from_the_other_folds(monkeypatch):
    set_sizes(monkeypatch, prior_groups=0.0)
    rng = np.random.default_rng(0)
    n = 60
    pkd = rng.normal(8, 1, n)
    even = np.arange(n) % 2 == 0
    # each part is right in one fold only: weights of the own fold would make no error
    predicted = right_in_halves(pkd, pkd, even)
    weighed = weigh(*make_regime(pkd, predicted))
    assert weighed.predicted == pytest.approx(20)
    assert weighed.score["rmse"] > 10


def test_a_pair_that_repeats_hold_out_again_says_nothing_of_its_own_weights_and_sigma(monkeypatch):
    set_sizes(monkeypatch, prior_groups=0.0)
    rng = np.random.default_rng(0)
    n = 120
    pkd = rng.normal(8, 1, n)
    even = np.arange(n) % 2 == 0
    predicted = right_in_halves(pkd + 0.1 * rng.normal(size=n), pkd, even)
    pairs, measured, parts = make_regime(pkd, predicted)
    repeated = replace(measured, splits=measured.splits * 2)
    once = weigh(pairs, measured, parts)
    twice = weigh(pairs, repeated, parts * 2)
    assert twice.predicted == pytest.approx(np.tile(once.predicted, 2))
    assert twice.sigma == pytest.approx(np.tile(once.sigma, 2), rel=1e-3)


@pytest.mark.parametrize("counting", [1, 8])
def test_sigma_is_that_of_all_labels_where_hardly_any_counts_for_much(counting):
    rng = np.random.default_rng(0)
    n = 120
    pkd = rng.normal(8, 1, n)
    predicted = {"train_mean": np.full(n, 8.0), "ridge": pkd + 0.5 * rng.normal(size=n)}
    pairs, measured, parts = make_regime(pkd, predicted)
    share = np.where(np.arange(n) < counting, 1e-6, 1.0)
    weighed = weigh(replace(pairs, share=share), measured, parts)
    assert np.isfinite(weighed.sigma).all()
    assert 0.3 < np.median(weighed.sigma) < 1.2


def test_the_halves_of_a_single_fold_weigh_each_other():
    rng = np.random.default_rng(0)
    n = 200
    pkd = rng.normal(8, 1, n)
    predicted = {"train_mean": np.full(n, 8.0), "ridge": pkd + 0.5 * rng.normal(size=n)}
    pairs, measured, parts = make_regime(pkd, predicted, folds=1)
    weighed = weigh(pairs, measured, parts)
    share = (weighed.predicted - 8) / (predicted["ridge"] - 8)[weighed.tested.rows]
    assert len(np.unique(share.round(6))) == 2


def test_where_no_part_beats_the_mean_the_mean_has_nearly_all_the_weight():
    rng = np.random.default_rng(0)
    n = 200
    pkd = rng.normal(8, 1, n)
    useless = {f"part {k}": 8 + rng.normal(size=n) for k in range(4)}
    group = np.arange(n) // 10
    weighed = weigh(*make_regime(pkd, {"train_mean": np.full(n, 8.0)} | useless, group=group))
    assert weighed.mixture.weights["train_mean"] > 0.9
    assert weighed.score["rmse"] == pytest.approx(weighed.score["rmse_of_mean"], rel=0.03)
    assert not weighed.score["better_than_mean"]["low"] > 0


@pytest.mark.parametrize("name", ["gp", "trees"])
def test_sigma_covers_the_out_of_fold_errors_and_widens_with_their_variance(name):
    rng = np.random.default_rng(0)
    n = 2000
    variance = rng.uniform(0.1, 2, n)
    pkd = 8 + 2 * rng.normal(size=n)
    predicted = {"train_mean": np.full(n, 8.0), name: pkd + np.sqrt(variance) * rng.normal(size=n)}
    without_weight = {"kernel": pkd + 90.0}
    pairs, measured, parts = make_regime(pkd, predicted | without_weight, folds=4)
    for part in parts:
        part.variances = {"kernel": 100 * rng.permutation(variance), name: variance}
    weighed = weigh(pairs, measured, parts)
    assert weighed.score["coverage"] == pytest.approx(0.9, abs=0.03)
    assert np.corrcoef(weighed.sigma, np.sqrt(variance[weighed.tested.rows]))[0, 1] > 0.9


def test_the_variance_of_a_mixture_is_that_of_its_parts_by_weight():
    variances = {"gp": np.array([1.0, 2.0]), "trees": np.array([3.0, 8.0])}
    for weights, expected in (
        ({"gp": 0.2, "ridge": 0.2, "trees": 0.6}, [2.5, 6.5]),
        ({"trees": 0.1, "ridge": 0.9}, [3.0, 8.0]),
        ({"ridge": 1.0}, [2.0, 5.0]),
    ):
        mixture = Mixture(weights, spread=1.0, noise=1.0)
        np.testing.assert_allclose(mixture.variance(variances, 2), expected)
        assert mixture.variance({}, 2).tolist() == [0, 0]


def test_a_bound_that_a_part_satisfies_is_no_error():
    rng = np.random.default_rng(0)
    n = 400
    hidden = rng.normal(8, 1, n)
    censored = np.where(hidden < 8, -1, 0).astype(np.int8)
    pkd = np.maximum(hidden, 8)
    predicted = {"train_mean": np.full(n, pkd.mean()), "ridge": hidden + 0.1 * rng.normal(size=n)}
    weighed = weigh(*make_regime(pkd, predicted, censored=censored))
    assert weighed.mixture.weights["ridge"] > 0.95
    assert weighed.mixture.noise < 0.2


def recorded_head(run):
    return json.loads((run / "config.json").read_text())["head"]


def parts_of(run):
    return {*abag.load_predictor(run).parts.models}


def test_a_head_is_weighed_against_the_mean_and_by_default_all_that_apply_are(
    case, default, tmp_path
):
    fit(case, tmp_path / "ridge", head="ridge")
    assert parts_of(tmp_path / "ridge") <= {"ridge", "train_mean"}
    (regime,) = default["regimes"]
    assert recorded_head(case.at / "default") == "stack"
    of_variants = {"residue_kernel", "one_hot_ridge"}
    assert regime["weights"].keys() | parts_of(case.at / "default") <= {*MODELS} - of_variants


def test_each_regime_of_the_default_has_weights_of_its_own(case, tmp_path):
    summary = fit(case, tmp_path / "run", head="ridge", split="auto", folds=3)
    assert [regime["regime"] for regime in summary["regimes"]] == ["known", "new_antibody"]
    assert [regime["regime"] for regime in summary["not_measured"]] == ["new_antigen", "both_new"]
    regimes = abag.load_predictor(tmp_path / "run").regimes
    assert regimes.keys() == {"known", "new_antibody"}
    for regime in summary["regimes"]:
        assert regimes[regime["regime"]].mixture.noise == regime["noise"]
        assert regime["sentence"].endswith(regimes[regime["regime"]].verdict.split(": ", 1)[-1])


@pytest.mark.parametrize(
    ("largest", "missing"),
    [({"kernel": 200, "gp": 10}, {"gp"}), ({"kernel": 10, "gp": 10}, {"kernel", "gp"})],
)
def test_a_stack_leaves_out_what_takes_too_long_and_says_so(
    case, tmp_path, monkeypatch, largest, missing
):
    for name, most in largest.items():
        monkeypatch.setitem(MODELS, name, replace(MODELS[name], most_pairs=most))
    said = []
    fit(case, tmp_path / "run", say=said.append, verbose=True)
    assert not parts_of(tmp_path / "run") & missing
    line = next(text for text in said if "left out: it handles" in text)
    assert all(
        (f"{name} left out: it handles at most 10 " in line) == (name in missing)
        for name in ("kernel", "gp")
    )


@pytest.mark.parametrize(("right", "at_least", "at_most"), [(5, 0.1, 0.6), (8, 0.9, 1.0)])
def test_a_part_that_is_better_by_chance_shares_the_weight_with_the_mean(right, at_least, at_most):
    # a part that has the sign of the offsets of 5 of 8 groups right has a smaller error here
    rng = np.random.default_rng(1)
    offset_G = rng.normal(size=8)
    group = np.arange(160) % 8
    sign_G = np.where(np.arange(8) < right, 1.0, -1.0)
    of_mean = offset_G[group] + 0.1 * rng.normal(size=160)
    error_RK = np.stack([of_mean - (offset_G * sign_G)[group], of_mean], axis=1)
    assert np.square(error_RK).mean(axis=0).argmin() == 0
    assert at_least <= stack_weights(error_RK, group, mean=1)[0] <= at_most


@pytest.mark.parametrize("rows", [6, 12])
def test_a_stack_of_few_pairs_some_of_them_censored_is_fitted(case, tmp_path, rows):
    frame = case.frame.head(rows).assign(censored=["", "<"] * (rows // 2))
    part = np.where(np.arange(rows) % 3 == 0, "test", "train")
    frame = frame.assign(part=np.where(np.arange(rows) == 1, "val", part))
    few = SimpleNamespace(frame=frame, store=case.store)
    run = tmp_path / "run"
    fit(few, run, split="column=part", folds=0)
    predicted = pd.read_parquet(run / "predictions.parquet")
    assert np.isfinite(predicted["pkd_predicted"]).all()


@pytest.mark.parametrize(("head", "options"), [
    ("ridge", {"widths": (5,)}), ("kernel", {"lr": 1e-3}), ("gp", {"members": 4}),
    ("one_hot_ridge", {"epochs": 50}), ("ridge", {"preset": "medium"}), ("ridge", {"patience": 2}),
])  # fmt: skip
def test_options_that_the_head_does_not_use_are_refused(tmp_path, head, options):
    (name,) = options
    with pytest.raises(OptionError) as refused:
        abag.fit("no table", "no store", tmp_path / "run", head=head, **options)
    assert str(refused.value) == (
        f"{name}: has no effect on the head {head}; it is an option of mlp, stack. Leave out "
        f"{name}, or choose another head."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stopped_at", [1, 4, 9])
def test_parts_of_folds_that_were_fitted_are_not_fitted_again(
    case, default, tmp_path, monkeypatch, stopped_at
):
    set_sizes(monkeypatch, kept_part_seconds=0.0)
    set_cores(monkeypatch, 1)  # one part after the other
    fits = []
    models = dict(MODELS)

    def counted(name, stop):
        def fit_one(training):
            if len(fits) == stop:
                raise KeyboardInterrupt
            fits.append((name, training.rows.tobytes()))
            return models[name].fit(training)

        return fit_one

    for stop in (stopped_at, None):
        for name, entry in models.items():
            if entry.fit is not None:
                monkeypatch.setitem(MODELS, name, replace(entry, fit=counted(name, stop)))
        if stop is not None:
            with pytest.raises(KeyboardInterrupt):
                fit(case, tmp_path / "run")
    resumed = fit(case, tmp_path / "run")
    assert len(fits) == len(set(fits))  # each part of each fold once
    assert weights_of(tmp_path / "run") == weights_of(case.at / "default")
    assert resumed["regimes"] == default["regimes"]
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_damaged_part_is_fitted_again(tmp_path):
    kept = Kept(tmp_path, "digest")
    kept.write("ridge", {"predicted": np.arange(3.0)}, 10)
    np.testing.assert_array_equal(kept.read("ridge")["predicted"], np.arange(3.0))
    assert kept.read("kernel") is None
    assert Kept(tmp_path, "other").read("ridge") is None
    path = tmp_path / "ridge/latest"
    path.write_bytes(path.read_bytes()[:-1])
    assert kept.read("ridge") is None


def test_parts_fitted_with_other_noise_of_labels_are_not_used(case, tmp_path, monkeypatch):
    digests = []
    monkeypatch.setattr(Kept, "read", lambda kept, _name: digests.append(kept.digest))
    fit(case, tmp_path / "once")
    once = {*digests}
    digests.clear()
    # the same labels, but as medians of three measurements
    three = pd.concat([case.frame.assign(pKd=case.frame["pKd"] + by) for by in (-0.1, 0, 0.1)])
    abag.fit(three, case.store, tmp_path / "three", **QUICK)
    assert once
    assert once.isdisjoint(digests)
