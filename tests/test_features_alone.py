"""What features say without vectors: a baseline of every run, and expected labels of bounds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import draw_pairs, labelled, write_vectors
from marks import in_ci
from reading import read_sequences
from sklearn.linear_model import RidgeCV

import abag
from abag import open_store
from abag.head.labels.features import PairFeatures
from abag.head.models.pair_vectors import PairVectors, SideVectors, TrainingRows
from abag.head.models.ridge import impute_censored
from abag.head.predictor.parts import inner_folds

QUICK = {"split": "random", "report": False, "device": "cpu"}
TRAINED = 150


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Pairs of random vectors whose labels depend on a feature alone."""
    at = tmp_path_factory.mktemp("alone")
    rng = np.random.default_rng(7)
    frame = draw_pairs(50, 4, seed=7).sample(frac=1, random_state=7, ignore_index=True)
    frame["ddg"] = rng.normal(20, 5, len(frame))
    frame["pKd"] = 8 + frame["ddg"] / 5 + 0.5 * rng.normal(size=len(frame))
    store = open_store(at / "store", create=True)
    for kind, unique in read_sequences(frame).sequences.items():
        vectors = rng.normal(size=(len(unique.keys), 6)).astype(np.float32)
        write_vectors(store, kind, unique.keys, vectors)
    return at, frame.iloc[:TRAINED], frame.iloc[TRAINED:]


def r2(predicted, truth):
    return 1 - np.sum((predicted - truth) ** 2) / np.sum((truth - truth.mean()) ** 2)


def predict(run, table, *, features=True):
    columns = [table["heavy"].tolist(), None, table["antigen"].tolist()]
    scores = abag.load_predictor(run).predict(*columns, features=table if features else None)
    return scores["pkd_predicted"].to_numpy()


@pytest.mark.ci
@pytest.mark.parametrize("head", ["ridge", "kernel", *in_ci("gp", "stack")])
def test_a_label_of_a_feature_alone_is_predicted_as_by_scikit_learn(planted, head):
    at, train, test = planted
    abag.fit(train, at / "store", at / head, features=("ddg",), head=head, **QUICK)
    reference = RidgeCV(np.logspace(-4, 3, 8)).fit(train[["ddg"]], train["pKd"])
    expected = r2(reference.predict(test[["ddg"]]), test["pKd"])
    assert expected > 0.7
    assert r2(predict(at / head, test), test["pKd"]) > expected - 0.03


def test_a_run_shows_what_features_say_without_vectors(planted):
    at, train, _ = planted
    options = QUICK | {"head": "ridge"}
    summary = abag.fit(train, at / "store", at / "ridge", features=("ddg",), **options)
    metrics = summary["regimes"][0]["metrics"]
    assert metrics["features_ridge"]["rmse"] < 0.6 < metrics["train_mean"]["rmse"]
    bare = abag.fit(train, at / "store", at / "bare", **options)
    assert "features_ridge" not in bare["regimes"][0]["metrics"]


def test_the_baseline_of_features_is_a_ridge_of_scikit_learn(planted):
    at, train, _ = planted
    abag.fit(train, at / "store", at / "ridge", features=("ddg",), head="ridge", **QUICK)
    predicted = pd.read_parquet(at / "ridge" / "baselines.parquet")["features_ridge"].to_numpy()
    truth = pd.read_parquet(at / "ridge" / "predictions.parquet")["pkd"].to_numpy()
    x = train.set_index("pKd")["ddg"].loc[truth].to_numpy()[:, None]
    line = np.linalg.lstsq(np.c_[x, np.ones(len(x))], predicted, rcond=None)[0]
    slope = RidgeCV(np.logspace(-4, 3, 8)).fit(train[["ddg"]], train["pKd"]).coef_[0]
    assert line[0] == pytest.approx(slope, rel=0.05)


@pytest.mark.ci
def test_bounds_are_expected_from_features_too():
    rng = np.random.default_rng(0)
    x_ND = rng.normal(size=(300, 3)).astype(np.float32)
    ddg = rng.normal(size=300)
    rows = np.arange(300)
    hidden = 7 + x_ND[:, 0] + 2 * ddg + 0.3 * rng.normal(size=300)
    censored = np.where(hidden < 7, -1, 0).astype(np.int8)
    labels = labelled(rows, 0 * rows, np.where(censored, 7, hidden), censored)
    vectors = PairVectors(
        {
            "antibody": SideVectors(x_ND, rows),
            "antigen": SideVectors(np.ones((1, 2), np.float32), 0 * rows),
        }
    )
    features = PairFeatures(ddg[:, None], np.zeros((300, 0), np.float32))
    errors = []
    for used in (features, None):
        training = TrainingRows(labels, replace(vectors, features=used), rows, inner_folds(rows))
        imputed = impute_censored(training)
        bound = censored != 0
        np.testing.assert_array_equal(imputed.pkd[~bound], hidden[~bound])
        assert (imputed.pkd[bound] <= 7).all()
        errors.append(float(np.sqrt(np.mean((imputed.pkd - hidden)[bound] ** 2))))
    assert errors[0] < 0.5
    assert errors[0] < 0.5 * errors[1]
