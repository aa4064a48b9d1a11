"""Heads in closed form against the plain formulas."""

from dataclasses import replace

import numpy as np
import pytest
from chunks import set_sizes
from drawn import labelled
from heads import (
    MODELS,
    PairVectors,
    Standardizer,
    TrainingRows,
    fitted_models,
    inner_folds,
    reloaded,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from abag.head.models.kernel_search import (
    Chosen,
    FoldLabels,
    KernelSearch,
    _solve_inducing,
    fit_gaussian_process,
    random_order,
    solved_kernels,
)
from abag.head.models.kernels import GaussianProcess, PairKernel
from abag.head.models.pair_vectors import SideVectors
from abag.head.models.ridge import FeatureBlock, Ridge, fit_linear
from abag.head.predictor.parts import Parts, RunParts, fit_fold, with_searches


def make_training(pairs=80, antibodies=30, antigens=7, seed=0, train=60):
    """Training rows with a smooth truth, and the vectors of all pairs."""
    rng = np.random.default_rng(seed)
    x_ND = rng.normal(size=(antibodies, 5)).astype(np.float32)
    y_ME = rng.normal(size=(antigens, 4)).astype(np.float32)
    i = rng.integers(antibodies, size=pairs)
    j = rng.integers(antigens, size=pairs)
    pkd = 7 + np.sin(x_ND[i, 0]) + x_ND[i, 1] * y_ME[j, 0] + 0.1 * rng.normal(size=pairs)
    rows = np.sort(rng.permutation(pairs)[:train])
    chains = [("ACDEFGHIKL" + "".join(rng.choice(list("ACD"), 6)), "") for _ in range(antibodies)]
    antigen_chains = [("".join(rng.choice(list("ACDEFGHIKL"), 12)),) for _ in range(antigens)]
    sides = {
        "antibody": SideVectors(x_ND, i, chains),
        "antigen": SideVectors(y_ME, j, antigen_chains),
    }
    vectors = PairVectors(sides)
    labels = labelled(i, j, pkd, measurements=rng.integers(1, 4, pairs))
    return TrainingRows(labels, vectors, rows, inner_folds(i[rows]))


CLOSED_FORMS = sum(model.fit is not None for model in MODELS.values())


def fits_of(training):
    """Fit all closed forms; those that do not apply need several antibodies."""
    fits = dict(fitted_models(training))
    is_one_antibody = len(np.unique(training.vectors.sides["antibody"].index[training.rows])) == 1
    assert is_one_antibody or len(fits) == CLOSED_FORMS
    return fits.values()


def test_a_fold_predicts_the_pairs_that_it_has_not_learned_from():
    training = make_training()
    of_run = RunParts.decide("stack", ("antibody", "antigen"), training.vectors, [training.rows])
    fold = fit_fold(training, of_run)
    learned = np.isin(np.arange(80), training.rows)
    parts = Parts.fit(make_training(), of_run.models)
    predicted, variances = parts.predict_with_variance(training.vectors, of_run.models)
    assert variances
    for expected, computed in ((predicted, fold.predicted), (variances, fold.variances)):
        for name, of_part in expected.items():
            assert np.isnan(computed[name]).tolist() == learned.tolist()
            np.testing.assert_allclose(computed[name][~learned], of_part[~learned], atol=1e-5)


def plain_kernel(training, scale, product):
    """The kernel between all pairs, one pair at a time."""
    vectors = training.vectors
    rows = training.rows
    sides = []
    for side in vectors.sides.values():
        table = side.x_ND
        index = side.index
        used = np.unique(index[rows])
        z = Standardizer.of(table[used]).apply(table).astype(np.float64)
        squared = ((z[:, None] - z[None]) ** 2).sum(-1)
        unit = squared[np.ix_(used, used)].mean()
        sides.append((1 / (1 + squared / unit / (2 * scale)))[np.ix_(index, index)])
    a, g = sides
    return product * a * g + (1 - product) / 2 * (a + g)


def plain_noise(training, rows, noise=0.05):
    """The noise of some pairs, whose labels are medians of several measurements, as a matrix."""
    return np.diag(noise / training.labels.measurements[rows])


def test_a_process_equals_the_plain_formula_on_one_row_a_pair(monkeypatch):
    set_sizes(monkeypatch, kernel_scales=(0.3,), kernel_products=(0.4,), kernel_noises=(0.05,))
    training = make_training()
    fit = fit_gaussian_process(training, "error")
    kernel = plain_kernel(training, 0.3, 0.4)
    rows = training.rows
    inverse = np.linalg.inv(kernel[np.ix_(rows, rows)] + plain_noise(training, rows))
    target = training.pkd - training.pkd.mean()
    expected = training.pkd.mean() + kernel[:, rows] @ inverse @ target
    reduced = np.einsum("pr,rs,ps->p", kernel[:, rows], inverse, kernel[:, rows])
    amplitude = target @ inverse @ target / len(rows)
    np.testing.assert_allclose(fit.predict(training.vectors), expected, rtol=1e-9)
    variance = fit.variance(training.vectors)
    np.testing.assert_allclose(variance, amplitude * (1 - reduced), atol=1e-4 * amplitude)


def cost_of(search, fold, chosen, criterion):
    """Compute the cost of a kernel that no choice has asked for."""
    search._costs_of({chosen: {fold: True}})
    return search._costs[chosen][fold, criterion]


def test_the_error_of_a_kernel_is_that_of_fits_without_each_fold():
    training = make_training()
    order = random_order(training)
    labels = FoldLabels.of(training, training.rows[order])
    search = KernelSearch(solved_kernels(training, {}, order), {}, [labels])
    chosen = Chosen(PairKernel(0.3, 0.4, ((1.0,), (1.0,))), 0.05)
    square = 0.0
    kernel = plain_kernel(training, 0.3, 0.4)
    rows = training.rows
    for k in range(training.fold.max() + 1):
        held = rows[training.fold == k]
        rest = rows[training.fold != k]
        inverse = np.linalg.inv(kernel[np.ix_(rest, rest)] + plain_noise(training, rest))
        across = kernel[np.ix_(held, rest)]
        mean = training.labels.pkd[rest].mean()
        expected = mean + across @ inverse @ (training.labels.pkd[rest] - mean)
        square += np.square(training.labels.pkd[held] - expected).sum()
    assert cost_of(search, 0, chosen, "error") == pytest.approx(square, rel=1e-9)


def test_all_pairs_as_inducing_points_give_the_exact_fit(monkeypatch):
    training = make_training(200, train=150, antibodies=100)
    exact = fit_gaussian_process(training, "error")
    set_sizes(monkeypatch, exact_pairs=100, variance_pairs=149)
    inducing = fit_gaussian_process(training, "error")
    assert inducing.settings.scale == exact.settings.scale
    vectors = training.vectors
    np.testing.assert_allclose(inducing.predict(vectors), exact.predict(vectors), atol=1e-3)
    np.testing.assert_allclose(inducing.variance(vectors), exact.variance(vectors), atol=0.02)


def test_a_large_table_keeps_only_its_inducing_pairs(monkeypatch):
    training = make_training(400, train=300, antibodies=100)
    set_sizes(monkeypatch, exact_pairs=100, inducing_pairs=60, variance_pairs=40)
    fit = fit_gaussian_process(training, "error")
    assert len(fit.weight) == 60
    assert fit.root.shape == (40, 40)
    test = np.setdiff1d(np.arange(400), training.rows)
    error = training.labels.pkd[test] - fit.predict(training.vectors)[test]
    assert np.sqrt(np.mean(error**2)) < 0.8 * training.pkd.std()


@pytest.mark.ci
@settings(max_examples=30)  # each fits all closed forms
@given(antibodies=st.integers(1, 12), antigens=st.integers(1, 4), train=st.integers(2, 30))
def test_any_few_pairs_give_finite_predictions_that_are_stored_whole(antibodies, antigens, train):
    training = make_training(40, antibodies, antigens, train=train)
    for fit in fits_of(training):
        predicted = fit.predict(training.vectors)
        assert np.isfinite(predicted).all()
        again = reloaded(fit)
        np.testing.assert_array_equal(again.predict(training.vectors), predicted)
        if isinstance(again, GaussianProcess):
            variance = fit.variance(training.vectors)
            np.testing.assert_array_equal(again.variance(training.vectors), variance)
            assert (variance >= 0).all()


def test_predictions_do_not_depend_on_the_other_pairs_of_a_table():
    training = make_training(3000, antibodies=1500, train=200)
    for fit in fits_of(training):
        whole = fit.predict(training.vectors)
        for pair in (0, 1234, 2999):
            sides = {}
            for kind, side in training.vectors.sides.items():
                i = side.index[pair]
                sides[kind] = SideVectors(side.x_ND[[i]], np.array([0]), [side.chains[i]])
            assert fit.predict(PairVectors(sides))[0] == pytest.approx(whole[pair], rel=1e-9)


@pytest.mark.parametrize("antibodies", [3, 30])
def test_the_ridge_head_equals_the_ridge_of_standardised_vectors(antibodies, monkeypatch):
    set_sizes(monkeypatch, ridge_strengths=np.array([0.3]))
    training = make_training(antibodies=antibodies)
    fit = fit_linear(training)
    vectors = training.vectors
    blocks = []
    for side in vectors.sides.values():
        scaling = Standardizer.of(side.x_ND, side.index[training.rows])
        blocks.append(FeatureBlock(scaling.apply(side.x_ND), side.index))
    pkd = training.labels.pkd
    rows = training.rows
    fold = training.fold
    plain = Ridge(blocks, rows, fold).fit(pkd)

    def predict(ridge):
        joined = np.hstack([block.table_ND[block.index] for block in blocks])
        return ridge.intercept + joined @ np.concatenate(ridge.weights)

    np.testing.assert_allclose(fit.predict(training.vectors), predict(plain), rtol=1e-6)
    # with 3 antibodies a refit spans fewer dimensions, which changes the unit of its strength
    for k in range(training.fold.max() + 1 if antibodies > 3 else 0):
        held = rows[fold == k]
        rest = rows[fold != k]
        refit = Ridge(blocks, rest, np.zeros(len(rest), np.int64)).fit(pkd)
        np.testing.assert_allclose(plain.inner[fold == k], predict(refit)[held], rtol=1e-5)


@pytest.mark.parametrize("train", [40, 90])
def test_heads_that_share_what_they_tried_equal_heads_fitted_alone(monkeypatch, train):
    set_sizes(monkeypatch, search_pairs=60)  # all pairs choose the kernel, or only some
    tried = []
    costs_of = KernelSearch._costs_of

    def counted(search, asked, map_calls):
        tried.extend((len(search.solver), chosen) for chosen in asked)
        return costs_of(search, asked, map_calls)

    monkeypatch.setattr(KernelSearch, "_costs_of", counted)
    together = make_training(pairs=120, train=train)
    for criterion in ("error", "evidence"):
        shared = fit_gaussian_process(together, criterion)
        first = len(tried)
        alone = fit_gaussian_process(make_training(pairs=120, train=train), criterion)
        assert first < len(tried)
        assert shared.settings == alone.settings
        for name, array in alone.arrays().items():
            np.testing.assert_array_equal(shared.arrays()[name], array)
        tried = tried[:first]
    assert len(tried) == len(set(tried))


def test_two_processes_that_choose_the_same_kernel_and_noise_are_solved_once(monkeypatch):
    set_sizes(monkeypatch, kernel_scales=(0.3,), kernel_products=(1 / 3,), kernel_noises=(0.2,))
    training = make_training()
    first, second = (fit_gaussian_process(training, c) for c in ("error", "evidence"))
    assert first.weight is second.weight
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(second.arrays()[name], array)


def test_the_variance_of_inducing_pairs_is_that_of_a_subset_of_regressors():
    training = make_training(pairs=200, train=180, antibodies=60)
    solver = solved_kernels(training, {}, np.arange(len(training.rows)))
    solver = replace(solver, share=np.where(np.arange(len(solver)) % 3, 1.0, 0.5))
    weight, root, amplitude = _solve_inducing(solver, Chosen(KERNEL, 0.2), 50)
    matrix = solver.train.matrix(KERNEL)
    few = matrix[:50]
    noise = 0.2 * solver.share
    precise = (few / noise) @ few.T
    inner = np.linalg.inv(matrix[:50, :50] + 1e-8 * np.eye(50) + precise)
    expected = few.T @ inner @ (few / noise) @ solver.target
    np.testing.assert_allclose(few.T @ weight, expected, atol=1e-5)
    # k (K^-1 - (K + k D^-1 k)^-1) k is what the pairs take from the variance of another one
    explained = np.linalg.inv(matrix[:50, :50] + 1e-8 * np.eye(50)) - inner
    others = few[:, 60:90].T
    np.testing.assert_allclose(
        np.square(others @ root).sum(axis=1), ((others @ explained) * others).sum(axis=1), atol=1e-5
    )
    covariance = few.T @ np.linalg.inv(matrix[:50, :50] + 1e-8 * np.eye(50)) @ few
    covariance[np.diag_indices_from(covariance)] += noise
    expected = solver.target @ np.linalg.solve(covariance, solver.target) / len(solver)
    assert amplitude == pytest.approx(expected, rel=1e-5)


def test_processes_of_the_same_pairs_hold_their_vectors_once_and_are_written_without_a_copy():
    training = make_training()
    first, second = (fit_gaussian_process(training, c) for c in ("error", "evidence"))
    assert first.train is second.train
    for fit in fits_of(training):
        assert all(array.flags.c_contiguous for array in fit.arrays().values())


@pytest.mark.parametrize("criterion", ["error", "evidence"])
def test_pure_noise_is_predicted_by_about_its_mean(criterion):
    training = make_training(300, train=250, antibodies=100)
    noise = np.random.default_rng(1).normal(7, 1, 300)
    training = replace(training, labels=replace(training.labels, pkd=noise))
    fit = fit_gaussian_process(training, criterion)
    test = np.setdiff1d(np.arange(300), training.rows)
    assert fit.predict(training.vectors)[test].std() < 0.35


KERNEL = PairKernel(0.3, 1 / 3, ((1.0,), (1.0,)))


def solver_of_all_pairs():
    """Return 60 pairs of random vectors, and their kernel matrix."""
    training = make_training(pairs=60)
    solver = solved_kernels(training, {}, np.arange(len(training.rows)))
    return solver, solver.train.matrix(KERNEL).copy()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.sampled_from([0.05, 1.0]), inner=st.integers(1, 5))
def test_costs_of_a_fold_are_those_of_its_own_pairs(seed, noise, inner):
    rng = np.random.default_rng(seed)
    solver, matrix = solver_of_all_pairs()
    n = len(matrix)
    learned = rng.random(n) < rng.uniform(0.3, 1.0)
    learned[:6] = True
    inner_C = rng.permutation(np.arange(n) % inner)
    fold = FoldLabels.sort(learned, inner_C, rng.normal(size=n))
    other = FoldLabels.sort(~learned | (np.arange(n) < 8), np.arange(n) % 2, rng.normal(size=n))
    search = KernelSearch(solver, {}, [fold, other])
    chosen = Chosen(KERNEL, noise)
    full = matrix + noise * np.diag(solver.share)

    kernel = full[np.ix_(learned, learned)]
    y = fold.target_C[learned]
    of_inner = inner_C[learned]
    squares = 0.0
    for k in np.unique(of_inner):
        tested = of_inner == k
        mean = y[~tested].mean() if not tested.all() else 0.0
        weight = np.linalg.solve(kernel[np.ix_(~tested, ~tested)], y[~tested] - mean)
        predicted = mean + matrix[np.ix_(learned, learned)][np.ix_(tested, ~tested)] @ weight
        squares += np.square(y[tested] - predicted).sum()
    assert cost_of(search, 0, chosen, "error") == pytest.approx(squares, rel=1e-12)

    centred = y - y.mean()
    amplitude = centred @ np.linalg.solve(kernel, centred) / len(y)
    log_density = multivariate_normal.logpdf(centred, cov=amplitude * kernel)
    constant = len(y) * (1 + np.log(2 * np.pi) - np.log(len(y)))
    assert cost_of(search, 0, chosen, "evidence") == pytest.approx(
        -2 * log_density - constant, rel=1e-12, abs=1e-10
    )


def test_a_choice_does_not_see_what_its_fold_holds_out():
    solver, matrix = solver_of_all_pairs()
    rng = np.random.default_rng(1)
    learned = rng.random(len(matrix)) < 0.7
    fold = FoldLabels.sort(learned, np.arange(len(matrix)) % 3, rng.normal(size=len(matrix)))
    other_labels = np.where(learned, fold.target_C, 100.0)
    changed = replace(fold, target_C=other_labels)
    for criterion in ("error", "evidence"):
        before, after = (
            cost_of(KernelSearch(solver, {}, [labels]), 0, Chosen(KERNEL, 0.2), criterion)
            for labels in (fold, changed)
        )
        assert before == pytest.approx(after, rel=1e-6)


def test_folds_of_a_run_choose_what_they_would_choose_alone():
    every = make_training(pairs=150, train=150)
    antibody = every.vectors.sides["antibody"].index
    folds = [
        replace(every, rows=rows, fold=inner_folds(antibody[rows]), shared={})
        for rows in (np.arange(100), np.arange(30, 150), np.arange(150))
    ]
    searched, searches = with_searches(every, folds, ("kernel", "gp", "residue_kernel"))
    for search, criteria in searches:
        search.choose(criteria)
    assert {*searched[0].searches} == {"vectors", "residue_kernel"}
    for fold, shared in zip(folds, searched, strict=True):
        for criterion in ("error", "evidence"):
            alone = fit_gaussian_process(replace(fold, shared={}), criterion).settings
            chosen = fit_gaussian_process(replace(shared, shared={}), criterion).settings
            # vectors of all pairs set the unit of distances: neighbours on the grid may change
            assert 0.3 <= chosen.scale / alone.scale <= 3.5
            assert chosen.antibody.units == alone.antibody.units


def test_a_search_of_all_folds_computes_what_each_choice_alone_asks_for_and_nothing_else():
    solver, _ = solver_of_all_pairs()
    n = len(solver)
    rng = np.random.default_rng(3)
    folds = [
        FoldLabels.sort(rng.random(n) < 0.7, np.arange(n) % 3, noise * rng.normal(size=n) + shift)
        for noise, shift in ((1, 0), (0.1, solver.target), (0, solver.target))
    ]
    search = KernelSearch(solver, {}, folds)
    search.choose(["error", "evidence"])
    known = {
        (chosen, *asked): cost for chosen, costs in search._costs.items()
        for asked, cost in costs.items()
    }  # fmt: skip
    asked = {}
    for criterion in ("error", "evidence"):
        for at in range(len(folds)):
            alone = KernelSearch(solver, {}, folds)
            assert alone.choice(at, criterion) == search.choice(at, criterion)
            for chosen, costs in alone._costs.items():
                asked |= {(chosen, *of): cost for of, cost in costs.items()}
    assert known == pytest.approx(asked, rel=1e-12)


def test_threads_do_not_change_the_costs_of_a_search(monkeypatch):
    monkeypatch.setattr("abag.head.models.kernel_search.LEAST_SHARED", 0)
    solver, _ = solver_of_all_pairs()
    n = len(solver)
    folds = [
        FoldLabels.sort(np.arange(n) % 4 != k, np.arange(n) % 3, np.arange(n) % 7 - 3.0)
        for k in range(4)
    ]
    alone, shared = (KernelSearch(solver, {}, folds, threads) for threads in (1, 3))
    for search in (alone, shared):
        search.choose(["error", "evidence"])
    assert alone._costs == shared._costs
