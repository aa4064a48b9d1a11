"""Extremely randomised trees: what scikit-learn predicts, from arrays that are checked."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.tree
from heads import PairVectors, TrainingRows, reloaded
from hypothesis import given, settings
from hypothesis import strategies as st
from test_head_closed_form import make_training
from test_head_one_hot import variants

from abag.head.models import trees
from abag.head.models.pair_vectors import SideVectors
from abag.head.models.trees import LEAF, Trees, fit_trees


def of_variants(training, seed):
    """The same pairs with variants of one antibody, which are compared by their residues."""
    sides = dict(training.vectors.sides)
    number = len(sides["antibody"].x_ND)
    sides["antibody"] = replace(sides["antibody"], chains=variants(number, seed))
    return replace(training, vectors=PairVectors(sides))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.booleans(), st.booleans(), st.sampled_from([1, 7, 1 << 18]))
def test_predictions_are_those_of_scikit_learn(seed, are_variants, are_weighted, walks):
    training = replace(make_training(seed=seed), seed=seed)
    if are_variants:
        training = of_variants(training, seed)
    if are_weighted:
        share = np.random.default_rng(seed).uniform(0.2, 5, len(training.labels.pkd))
        training = replace(training, labels=replace(training.labels, share=share))
    grown = []

    class Recorded(sklearn.tree.ExtraTreeRegressor):
        def fit(self, x, *args, **options):
            grown.append((self, x))
            return super().fit(x, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.tree, "ExtraTreeRegressor", Recorded)
        patch.setattr(trees, "MOST_WALKS", walks)
        model = fit_trees(training)
        predicted = model.predict(training.vectors)
    x_FC = grown[0][1]
    of_trees_TF = np.array([tree.predict(x_FC) for tree, _ in grown])
    plain = of_trees_TF.mean(axis=0)
    assert len(grown) == trees.TREES
    assert np.ptp(plain) > 0.1
    np.testing.assert_allclose(predicted[training.rows], plain, rtol=0, atol=1e-12)
    variance = model.variance(training.vectors)[training.rows]
    np.testing.assert_allclose(variance, of_trees_TF.var(axis=0), rtol=0, atol=1e-12)
    other = np.full(len(predicted), training.rows[0])
    of_difference = model.difference_variance(training.vectors, other)[training.rows]
    plain_difference = of_trees_TF - of_trees_TF[:, [0]]
    np.testing.assert_allclose(of_difference, plain_difference.var(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(reloaded(model).predict(training.vectors), predicted)
    np.testing.assert_array_equal(fit_trees(training).predict(training.vectors), predicted)


def test_another_seed_grows_other_trees():
    training = make_training()
    first, second = (fit_trees(replace(training, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first.predict(training.vectors), second.predict(training.vectors))


def test_columns_that_count_are_found_among_many_that_do_not():
    rng = np.random.default_rng(0)
    parent = rng.choice(list("ACDEFGHIKL"), 120)
    chains_NL = np.tile(parent, (400, 1))
    changed_NL = rng.random(chains_NL.shape) < 0.5
    chains_NL[changed_NL] = "W"
    pkd = 6.0 + 2 * (changed_NL[:, 7] & changed_NL[:, 70])
    training = make_training(pairs=400, antibodies=400, train=200)
    chains = [("".join(chain), "") for chain in chains_NL]
    index = np.arange(400)
    sides = {
        "antibody": SideVectors(np.zeros((400, 1), np.float32), index, chains),
        "antigen": SideVectors(np.zeros((1, 1), np.float32), 0 * index, [("ACDE",)]),
    }
    labels = replace(training.labels, pkd=pkd)
    training = TrainingRows(labels, PairVectors(sides), training.rows, training.fold)
    new = np.setdiff1d(index, training.rows)
    error = (fit_trees(training).predict(training.vectors) - pkd)[new]
    assert np.square(error).mean() < 0.4 * pkd.var()


def forgeries():
    """Changes of the arrays of trees that no fit gives, by name."""

    def at(name, node, value):
        return lambda arrays: {name: np.where(np.arange(len(arrays[name])) == node, value,
                                              arrays[name]).astype(arrays[name].dtype)}  # fmt: skip

    return {
        "a walk that returns": at("left", 0, 0),
        "a child before its parent": at("right", 1, 0),
        "a child in the next tree": lambda a: at("right", 0, a["root"][1])(a),
        "a child behind the last node": lambda a: at("left", a["root"][-1], len(a["left"]))(a),
        "a column behind the last": at("column", 0, 10**6),
        "a column before the first": at("column", 0, -2),
        "a leaf that leads on": lambda a: at("left", int((a["column"] == LEAF).argmax()), 9)(a),
        "no trees": lambda a: {"root": a["root"][:0]},
        "no nodes": lambda a: {name: a[name][:0] for name in a},
        "a first tree that begins later": at("root", 0, 1),
        "trees out of order": lambda a: {"root": a["root"][::-1].copy()},
        "two trees in one": lambda a: {"root": np.repeat(a["root"], 2)},
        "a root behind the last node": lambda a: at("root", len(a["root"]) - 1, 10**6)(a),
        "too many trees": lambda a: {"root": np.arange(len(a["left"]), dtype=np.int32)},
        "other integers": lambda a: {"left": a["left"].astype(np.int64)},
        "single precision": lambda a: {"number": a["number"].astype(np.float32)},
        "two axes": lambda a: {"column": a["column"][None]},
        "fewer numbers": lambda a: {"number": a["number"][1:]},
    }


@pytest.mark.parametrize("name", forgeries())
def test_forged_trees_are_refused(name):
    model = fit_trees(make_training(pairs=200, train=150))
    arrays = dict(model.arrays())
    assert Trees.load(arrays, model.settings)
    with pytest.raises(ValueError, match=r"trees|has"):
        Trees.load({**arrays, **forgeries()[name](arrays)}, model.settings)


def test_a_tree_of_a_table_of_any_length_is_read():
    model = fit_trees(make_training())
    inner = np.arange(65_535)
    leaves = np.zeros(65_536, np.int64)
    grown = {
        "root": np.zeros(1, np.int32),
        "column": np.append(0 * inner, leaves + LEAF).astype(np.int32),
        "left": np.append(2 * inner + 1, leaves).astype(np.int32),
        "right": np.append(2 * inner + 2, leaves).astype(np.int32),
        "number": np.zeros(len(inner) + len(leaves)),
    }
    assert len(Trees.load(grown, model.settings).root_T) == 1


def test_trees_of_another_number_of_columns_are_refused():
    training = make_training()
    model = fit_trees(training)
    wider = replace(model.settings, width=model.settings.width + 1)
    forged = Trees.load(model.arrays(), wider)
    with pytest.raises(ValueError, match=r"trees of \d+ columns, and pairs of \d+"):
        forged.predict(training.vectors)
