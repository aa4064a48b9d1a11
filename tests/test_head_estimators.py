"""abag in scikit-learn: the regressor, the vectorizer, the splitters and the import."""

import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from drawn import COMPOSITION
from heads import demo_table, schema, sequence_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.metrics import get_scorer, r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import abag
from abag import FitConfig, LabelError, MissingVectors, OptionError, TableError
from abag.sklearn import AffinityRegressor, PairVectorizer, pair_groups

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def table():
    """Pairs of which some are measured twice, in the order of nobody's keys."""
    frame = demo_table().head(150)
    twice = frame.head(20).assign(pKd=lambda rows: rows["pKd"] + 0.2)
    return pd.concat([frame, twice]).sample(frac=1, random_state=0)


@pytest.fixture(scope="module")
def X(table):  # noqa: N802 - as in scikit-learn
    return table[["heavy", "light", "antigen"]]


@pytest.fixture(scope="module")
def y(table):
    return table["pKd"]


@pytest.fixture(scope="module")
def store(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("estimators") / "store"
    abag.embed_table(table, path, **COMPOSITION)
    return str(path)


@pytest.mark.parametrize("make", [
    lambda store: AffinityRegressor(store, head="ridge", split="random"), PairVectorizer,
])  # fmt: skip
def test_an_x_without_a_column_of_fit_is_refused_by_its_name(store, X, y, make):
    model = make(store).fit(X.assign(note="x"), y)
    assert model.feature_names_in_.tolist() == ["heavy", "light", "antigen", "note"]
    assert model.n_features_in_ == 4
    apply = model.predict if hasattr(model, "predict") else model.transform
    expected = apply(X)  # a column that is not read may be absent, and others be called otherwise
    renamed = X.rename(columns={"light": "VL", "heavy": "VH"})[["antigen", "VL", "VH"]]
    np.testing.assert_array_equal(apply(renamed), expected)
    for name in ("light", "heavy", "antigen"):
        with pytest.raises(abag.AbagError, match=f"no column .*{name}"):
            apply(X.drop(columns=name))
    with pytest.raises(ValueError, match="X: no column 'light', which fit had for light; found"):
        apply(X.drop(columns="light"))


@pytest.mark.ci
def test_cross_validation_with_group_splits_scores_a_head(store, X, y):
    scores = cross_val_score(
        AffinityRegressor(store, head="ridge", split="random"),
        X,
        y,
        cv=GroupKFold(3),
        groups=pair_groups(X, "pair"),
    )
    assert scores.shape == (3,)
    assert scores.mean() > 0
    grid = GridSearchCV(
        AffinityRegressor(store, head="ridge", split="random"),
        {"antigen_pooling": ["mean"], "head": ["ridge", "kernel"]},
        cv=GroupKFold(2),
        scoring="neg_mean_squared_error",
    )
    grid.fit(X, y, groups=pair_groups(X, "antigen"))
    assert grid.best_params_["head"] in ("ridge", "kernel")


@pytest.mark.parametrize(
    "options", [{"head": "mlp", "widths": (16,), "epochs": 3, "lr": 0.01}, {"head": "ridge"}]
)
def test_a_regressor_and_abag_fit_make_the_same_predictor(store, X, y, tmp_path, options):
    options |= {"seed": 4, "split": "random"}
    model = AffinityRegressor(store, **options).fit(X, y)
    table = X.assign(pKd=y)
    summary = abag.fit(table, store, tmp_path / "run", **options, report=False)
    predictor = abag.load_predictor(tmp_path / "run")
    rows = list(X["heavy"]), list(X["light"]), list(X["antigen"])
    expected = predictor.predict(*rows, store=store)
    np.testing.assert_array_equal(model.predict(X), expected["pkd_predicted"])
    np.testing.assert_array_equal(model.predict(X, return_std=True)[1], expected["sigma"])
    for score in ("rmse", "r2", "skill"):
        expected_scores = [regime[score] for regime in summary["regimes"]]
        assert [regime[score] for regime in model.regimes_] == expected_scores


def test_the_score_of_a_regressor_is_scikit_learns_r2_score(store, X, y):
    train, test = next(GroupKFold(3).split(X, y, pair_groups(X, "pair")))
    model = AffinityRegressor(store, head="ridge", split="random").fit(X.iloc[train], y.iloc[train])
    expected = r2_score(y.iloc[test], model.predict(X.iloc[test]))
    assert model.score(X.iloc[test], y.iloc[test]) == expected
    assert get_scorer("r2")(model, X.iloc[test], y.iloc[test]) == expected


def test_a_fitted_regressor_survives_pickle_and_clone_forgets_the_fit(store, X, y):
    model = AffinityRegressor(store, members=2, epochs=2, split="random").fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    scores = again.predictor_.predict(X["heavy"][:3], X["light"][:3], X["antigen"][:3])
    assert list(scores["regime"]) == ["known"] * 3
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    fresh.set_params(head="ridge", members=1, epochs=None)
    assert fresh.fit(X, y).get_params()["head"] == "ridge"


OF_TABLES_AND_RUNS = set(
    "adapter_rows add affinity_type antigen bad_rows classes floor folds label "
    "learning_curve limit matrix positive repeats save_every split_seed".split()
)
"""Options of fit about tables, test parts and run folders, none of which an estimator has."""


def test_the_parameters_are_the_options_of_fit(store):
    parameters = AffinityRegressor(store).get_params()
    options = {option.name: option.default for option in schema(FitConfig)}
    assert options.keys() - parameters.keys() == OF_TABLES_AND_RUNS
    for name in options.keys() - OF_TABLES_AND_RUNS - {"columns"}:  # no mapping, but None
        assert parameters[name] == options[name]
    assert parameters.keys() - options.keys() == {"store", "encode", "verbose"}
    assert repr(AffinityRegressor("a", lr=0.1)) == "AffinityRegressor(lr=0.1, store='a')"


NAMED_IN_UNITS = ["KD (nM)", "IC50_nM", "ΔG (kcal/mol)", "log10 KD (M)", "IC50 (ug/mL)"]
NOT_NAMED_PKD = [*NAMED_IN_UNITS, "Kd", "nM", "KD error", "kon (1/Ms)", "fold change of KD"]


@pytest.mark.parametrize("name", NOT_NAMED_PKD)
def test_a_y_that_is_named_in_another_unit_than_pkd_is_refused(store, X, y, name):
    for named in (y.rename(name), y.to_frame(name)):
        with pytest.raises(
            LabelError, match=r"^y: its name .*; expected pKd, .* Convert it to pKd"
        ):
            AffinityRegressor(store, head="ridge").fit(X, named)
    if name in NAMED_IN_UNITS:
        with pytest.raises(LabelError, match=r"^y: its name .* an affinity, and better or unit "):
            AffinityRegressor(store, head="ridge", better="lower").fit(X, y.rename(name))


@pytest.mark.parametrize("name", ["pKd", "y", "affinity", "-log10 KD", "pIC50", None, 7])
def test_a_y_of_pkd_may_have_any_name_that_says_nothing_else(store, X, y, name):
    model = AffinityRegressor(store, head="ridge", split="random")
    assert model.fit(X, y.rename(name)).predictor_.quantity.affinity
    assert model.fit(X, y.to_frame(name)).predictor_.quantity.affinity


def spoiled(X, y, which):
    """Return X and y of which one is wrong in some way."""
    frames = {
        "no antigen": (X.drop(columns="antigen"), y),
        "names": (X.assign(antigen="HER2_x"), y),
        "no residues": (X.assign(heavy=X["heavy"].where(X.index > 3, "1234")), y),
        "no antibody": (X[["antigen"]], y),
        "two heavy": (X.assign(VH=X["heavy"]), y),
        "a Kd": (X, 10 ** (9 - y)),
        "classes": (X, np.arange(len(y)) % 2),
        "classes of Tm": (X, pd.Series(np.arange(len(y)) % 2, name="Tm")),
        "missing": (X, y.where(y.index > 3)),
        "words": (X, y.astype(object).where(y.index > 3, "NB")),
        "words of Tm": (X, y.astype(object).where(y.index > 3, "NB").rename("Tm")),
        "constant": (X, 0 * y + 7),
    }
    return frames[which]


SPOILED = ["no antigen", "names", "no residues", "no antibody", "two heavy", "a Kd", "classes",
           "classes of Tm", "missing", "words", "words of Tm", "constant"]  # fmt: skip


@pytest.mark.parametrize("which", SPOILED)
def test_errors_of_a_regressor_name_only_options_that_it_has(store, X, y, which):
    model = AffinityRegressor(store, head="ridge", split="random")
    with pytest.raises(abag.AbagError) as caught:
        model.fit(*spoiled(X, y, which))
    text = str(caught.value)
    assert {*caught.value.options} <= {*model.get_params()}
    for name in OF_TABLES_AND_RUNS - {"antigen", "label"}:  # words, too
        assert not re.search(rf"\b{name}\b", text)
    assert not re.search(r'--label|\blabel[,=]|antigen=|"(pkd|label)": "', text)
    first, *_ = text.splitlines()
    assert re.search(r"[.;] [A-Z][^;]*\.$", first), text  # what to do
    assert (which != "no residues") or first.endswith("labels. Fix them.")  # they are in X
    assert (which != "no antigen") or first.endswith("antibodies alone with no_antigen.")


@pytest.mark.ci
def test_sequences_that_the_store_lacks_are_encoded_on_request(store, X, y, tmp_path):
    abag.embed_table(X.head(40), tmp_path / "small", **COMPOSITION)
    with pytest.raises(MissingVectors, match="antibody sequences of table have no vector"):
        AffinityRegressor(tmp_path / "small", head="ridge").fit(X, y)
    model = AffinityRegressor(tmp_path / "small", head="ridge", encode=True).fit(X.head(60), y[:60])
    np.testing.assert_array_equal(
        model.predict(X), AffinityRegressor(store, head="ridge").fit(X.head(60), y[:60]).predict(X)
    )
    model.set_params(encode=False).predict(X)  # now they are stored


def test_messages_are_only_shown_on_request(store, X, y, capfd):
    options = {"head": "mlp", "epochs": 1, "split": "random"}
    AffinityRegressor(store, **options).fit(X, y).predict(X)
    assert capfd.readouterr().err == ""
    AffinityRegressor(store, verbose=True, **options).fit(X, y)
    assert "1 epochs of" in capfd.readouterr().err


def test_a_vectorizer_gives_the_vectors_of_both_sequences(store, table, X, y):
    vectorizer = PairVectorizer(store)
    vectors = vectorizer.fit_transform(X)
    opened = abag.open_store(store)
    antibodies = list(zip(X["heavy"], X["light"], strict=True))
    sides = opened.vectors("antibody", antibodies), opened.vectors("antigen", X["antigen"])
    assert np.array_equal(vectors, np.hstack(sides))
    names = vectorizer.get_feature_names_out()
    assert (names[0], names[-1]) == ("antibody_mean_0", f"antigen_mean_{sides[1].shape[1] - 1}")
    framed = PairVectorizer(store).set_output(transform="pandas").fit_transform(X)
    assert list(framed.columns) == list(names)
    assert np.array_equal(framed.index, X.index)
    renamed = X.rename(columns={"heavy": "a", "light": "b", "antigen": "c"})
    columns = {"heavy": "a", "light": "b", "antigen": "c"}
    again = PairVectorizer(store, columns=columns).fit(renamed).transform(renamed)
    assert np.array_equal(again, vectors)


def test_a_pipeline_of_vectors_and_ridge_predicts(store, X, y):
    model = make_pipeline(PairVectorizer(store), Ridge(1e-3))
    folds = {"cv": GroupKFold(3), "groups": pair_groups(X, "pair")}
    assert np.isfinite(cross_val_score(model, X, y, **folds)).all()
    assert model.fit(X, y).score(X, y) > 0.1
    grid = GridSearchCV(model, {"ridge__alpha": [1.0, 100.0]}, cv=GroupKFold(2))
    grid.fit(X, y, groups=pair_groups(X, "antibody"))
    again = pickle.loads(pickle.dumps(grid.best_estimator_))
    assert np.array_equal(again.predict(X), grid.predict(X))


def test_a_fitted_vectorizer_keeps_to_its_encoder(store, X, tmp_path):
    abag.embed_table(X, tmp_path / "both", **COMPOSITION)
    vectorizer = PairVectorizer(tmp_path / "both").fit(X)
    abag.embed_table(X, tmp_path / "both", kind="antigen", antigen_encoder="tiny-esm2")
    assert np.array_equal(vectorizer.transform(X), PairVectorizer(store).fit_transform(X))


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_groups_of_rows_are_those_that_abag_fit_keeps_in_one_part(store, table, X, kind):
    data = abag.dataset(store, table)
    pairs = [*zip(data.keys("antibody"), data.keys("antigen"), strict=True)]
    rows = [*zip(*map(sequence_keys(X).get, ("antibody_key", "antigen_key")), strict=True)]
    expected = data.groups[kind][[pairs.index(row) for row in rows]]
    both = {*zip(pair_groups(X, kind), expected, strict=True)}
    assert len(both) == len(np.unique(expected)) == len(np.unique(pair_groups(X, kind)))


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=40))
def test_rows_share_a_group_if_and_only_if_they_are_of_one_pair(rows):
    letters = "ACDEFGHIKL"
    frame = pd.DataFrame(
        [(letters[a] * 30, "", letters[b] * 40) for a, b in rows],
        columns=["heavy", "light", "antigen"],
    )
    groups = pair_groups(frame, "pair")
    assert len({*zip(rows, groups, strict=True)}) == len({*rows}) == len(np.unique(groups))


@pytest.mark.ci
def test_groups_serve_the_splitters_of_scikit_learn(store, X, y):
    antigen = pair_groups(X, "antigen")
    antibody = pair_groups(X, "antibody")
    for train, test in GroupKFold(3).split(X, y, antigen):
        assert not set(X["antigen"].iloc[train]) & set(X["antigen"].iloc[test])
    kept = np.random.default_rng(0).permutation(len(X))
    moved = pair_groups(X.iloc[kept], "antigen")
    assert np.array_equal(moved, antigen[kept])  # numbered by sequence, not by row
    assert len(np.unique(antibody)) > len(np.unique(antigen))
    predicted = cross_val_predict(
        AffinityRegressor(store, head="ridge", split="random"),
        X,
        y,
        cv=GroupKFold(3),
        groups=antigen,
    )
    assert np.isfinite(predicted).all()


def test_invalid_input_is_refused_in_one_line(store, X, y):
    ridge = AffinityRegressor(store, head="ridge")
    for error, words, call in [
        (
            TableError,
            "X: ndarray; expected a DataFrame with the sequences",
            lambda: ridge.fit(X.to_numpy(), y),
        ),
        (TableError, r"y: shape \(5,\) for 170 rows", lambda: ridge.fit(X, y[:5])),
        (TableError, "^sample_weight: all are 0", lambda: ridge.fit(X, y, 0 * y)),
        (OptionError, "store=None: not given", lambda: AffinityRegressor().fit(X, y)),
        (OptionError, "store=None: not given", lambda: PairVectorizer().fit(X)),
        (LabelError, "is not a valid label", lambda: ridge.fit(X, y.where(y < y.max()))),
        (LabelError, "outside the usual range of pKd", lambda: ridge.fit(X, 10 ** (9 - y))),
        (abag.AbagError, "no column for antigen", lambda: ridge.fit(X[["heavy"]], y)),
        (
            abag.AbagError,
            "row 2, ",
            lambda: ridge.fit(X.assign(heavy=["QVQ", "1", *["QVQ"] * 168]), y),
        ),
        (
            OptionError,
            "chooses what is measured inside",
            lambda: clone(ridge).set_params(split="column=part").fit(X, y),
        ),
        (
            OptionError,
            "^head: 'forest' is unknown",
            lambda: clone(ridge).set_params(head="forest").fit(X, y),
        ),
        (
            OptionError,
            "AffinityRegressor: unknown option 'learning_rate'. Did you mean 'lr'",
            lambda: AffinityRegressor(learning_rate=1),
        ),
        (OptionError, "kind='both': is unknown; expected", lambda: pair_groups(X, "both")),
        (
            OptionError,
            "antigen_identity: 2.0 is out of range",
            lambda: pair_groups(X, "antigen", antigen_identity=2.0),
        ),
        (
            abag.AbagError,
            "no antigen encoder 'x'",
            lambda: PairVectorizer(store, antigen_encoder="x").fit(X),
        ),
        (
            abag.AbagError,
            "'cls' is not stored",
            lambda: PairVectorizer(store, antigen_pooling="cls").fit(X),
        ),
        (
            OptionError,
            "^dropout: 3.0 is out of range",
            lambda: AffinityRegressor(store, dropout=3.0).fit(X, y),
        ),
        (
            abag.AbagError,
            'columns={"heavy": "vh"}: no such column',
            lambda: clone(ridge).set_params(columns={"heavy": "vh"}).fit(X, y),
        ),
        (
            abag.AbagError,
            'columns={"heavy": "vh"}: no such column',
            lambda: PairVectorizer(store, columns={"heavy": "vh"}).fit(X),
        ),
    ]:
        with pytest.raises(error, match=words) as caught:
            call()
        is_of_store = words in ("no antigen encoder 'x'", "'cls' is not stored")
        assert is_of_store or isinstance(caught.value, ValueError)
        assert "\n" not in str(caught.value)
        assert " --" not in str(caught.value).partition("Run: abag")[0]
    with pytest.raises(NotFittedError):
        PairVectorizer(store).transform(X)


def test_errors_of_invalid_values_are_value_errors_everywhere(X):
    with pytest.raises(ValueError, match="unknown option 'rule'"):
        abag.plan(X, rule="mean")
    for kind in ("Option", "Table", "Column", "Sequence", "Label", "Split"):
        assert issubclass(getattr(abag, f"{kind}Error"), ValueError)


def test_an_error_of_an_estimator_is_a_value_error_that_survives_pickle(store, X, y):
    with pytest.raises(LabelError) as caught:
        AffinityRegressor(store, head="ridge").fit(X, y.where(y < y.max()))
    copied = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copied, ValueError)
    assert isinstance(copied, LabelError)
    assert str(copied) == str(caught.value)


RIDGE = {"head": "ridge", "split": "random"}
PLACES = {"heavy": 0, "light": 1, "antigen": 2}


def test_a_y_of_one_column_is_that_column(store, X, y):
    expected = AffinityRegressor(store, **RIDGE).fit(X, y).predict(X)
    for column in (y.to_frame(), y.to_numpy()[:, None]):
        assert np.array_equal(AffinityRegressor(store, **RIDGE).fit(X, column).predict(X), expected)
    with pytest.raises(TableError, match=r"y: shape \(170, 2\) for 170 rows"):
        AffinityRegressor(store, **RIDGE).fit(X, np.ones((170, 2)))


def test_a_transformed_target_gives_the_predictions_back_in_its_unit(store, X, y):
    scaled = TransformedTargetRegressor(
        AffinityRegressor(store, better="higher", **RIDGE), transformer=StandardScaler()
    )
    expected = AffinityRegressor(store, **RIDGE).fit(X, y).predict(X)
    np.testing.assert_allclose(scaled.fit(X, y).predict(X), expected, atol=1e-6)


def test_bagging_fits_arrays_whose_columns_are_named_by_place(store, X, y):
    one = AffinityRegressor(store, columns=PLACES, **RIDGE)
    bagged = BaggingRegressor(one, n_estimators=2, random_state=0).fit(X, y)
    assert np.isfinite(bagged.predict(X)).all()
    expected = AffinityRegressor(store, **RIDGE).fit(X, y).predict(X)
    one.fit(X.to_numpy(), y)
    assert np.array_equal(one.predict(X.to_numpy()), expected)
    assert one.n_features_in_ == 3
    assert not hasattr(one, "feature_names_in_")


def test_an_interrupted_fit_leaves_an_estimator_as_it_was(store, X, y, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    model = AffinityRegressor(store, **RIDGE)
    monkeypatch.setattr("abag.head.estimators.scikit.load_predictor", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_rows_of_weight_0_are_left_out(store, X, y):
    weight = np.where(np.arange(170) < 120, 1.0, 0.0)
    expected = AffinityRegressor(store, **RIDGE).fit(X[:120], y[:120], np.ones(120)).predict(X)
    weighted = AffinityRegressor(store, **RIDGE).fit(X, y, weight)
    assert np.array_equal(weighted.predict(X), expected)


def test_an_x_of_another_library_is_read_like_that_of_pandas(store, X, y):
    table = pa.Table.from_pandas(X, preserve_index=False)
    expected = AffinityRegressor(store, **RIDGE).fit(X, y)
    model = AffinityRegressor(store, **RIDGE).fit(table, y.tolist())
    assert np.array_equal(model.predict(table), expected.predict(X))
    assert model.feature_names_in_.tolist() == ["heavy", "light", "antigen"]
    vectors = PairVectorizer(store).fit(table).transform(table)
    assert np.array_equal(vectors, PairVectorizer(store).fit(X).transform(X))


LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
ONE_LABEL = "one pair has one label, from which nothing can be learned; the error says so"
EQUAL_LABELS = (
    "seven of ten labels are equal, and those of the training part of a fold all are; the same"
)
EXPECTED = {
    AffinityRegressor: {
        "check_fit2d_1sample": ONE_LABEL,
        "check_fit2d_1feature": EQUAL_LABELS,
    },
    PairVectorizer: {
        "check_transformer_preserve_dtypes": "vectors are float32, whatever the dtype of X"
    },
}
"""Checks that fail, with the reason."""


class OfNumbers:
    """Turns each row of numbers into an antibody and an antigen: different rows, others.

    The checks fit on arrays of numbers. With this in front they test parameters, state, pickling
    and the order of rows of the real estimator; the arrays are checked by scikit-learn.
    """

    def fit(self, X, y=None):
        if isinstance(self, AffinityRegressor):
            X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
            super().fit(self.frame(X), 8 + 2 * np.tanh(y / (1 + np.abs(y).max())))
        else:
            X = validate_data(self, X, dtype=np.float64)
            super().fit(self.frame(X))
        self.n_features_in_ = X.shape[1]
        return self

    def checked(self, X):
        check_is_fitted(self)
        return self.frame(validate_data(self, X, dtype=np.float64, reset=False))

    @staticmethod
    def frame(X):
        words = (X + 0.0).view(np.uint64) >> np.uint64(12)  # readable, and nearly all of a number
        digits = words[..., None] // np.uint64(20) ** np.arange(12, dtype=np.uint64)
        letters = LETTERS[(digits % np.uint64(20)).astype(int)].reshape(len(X), -1)
        text = ["".join(row) for row in letters]
        return pd.DataFrame({"heavy": text, "antigen": [sequence[::-1] for sequence in text]})

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.string = False
        return tags


class RegressorOfNumbers(OfNumbers, AffinityRegressor):
    __init__ = AffinityRegressor.__init__

    def predict(self, X, return_std=False):
        return super().predict(self.checked(X), return_std)


class VectorizerOfNumbers(OfNumbers, PairVectorizer):
    __init__ = PairVectorizer.__init__

    def transform(self, X):
        return super().transform(self.checked(X))


@pytest.fixture
def one_pair_store(tmp_path):
    frame = pd.DataFrame({"heavy": ["EVQ"], "antigen": ["MKT"]})
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    return str(tmp_path / "store")


def results_of(estimator, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # checks provoke them
        return check_estimator(
            estimator, expected_failed_checks=expected, on_fail=None, on_skip=None
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "options"),
    [(RegressorOfNumbers, {"head": "ridge", "split": "random"}), (VectorizerOfNumbers, {})],
)
def test_the_checks_of_scikit_learn_pass_on_numbers_spelled_as_sequences(
    one_pair_store, estimator, options
):
    expected = EXPECTED[estimator.__mro__[2]]
    results = results_of(estimator(one_pair_store, encode=True, **options), expected)
    for check in results:  # shown by pytest -s
        reason = expected.get(check["check_name"], "")
        print(f"{check['status']:7} {check['check_name']}  {reason}".rstrip())
    by_status = {"passed": set(), "xfail": set(), "failed": set()}
    for check in results:
        if check["status"] in by_status:
            by_status[check["status"]].add(check["check_name"])
    assert by_status["failed"] == set()
    assert by_status["xfail"] == set(expected)
    assert len(by_status["passed"]) >= 40


def test_the_checks_that_need_no_numbers_pass_on_the_estimators_themselves(store):
    for estimator in (AffinityRegressor(store), PairVectorizer(store)):
        (only,) = results_of(estimator, {})
        assert (only["check_name"], only["status"]) == ("check_estimator_cloneable", "passed")


def python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, **options
    )


@pytest.mark.ci
def test_abag_sklearn_is_imported_on_use_and_hides_nothing():
    done = python(
        "import sys, abag\n"
        "assert 'sklearn' not in sys.modules and 'abag.sklearn' not in sys.modules\n"
        "from abag.sklearn import PairVectorizer\n"
        "import sklearn\n"
        "assert sklearn.__name__ == 'sklearn' and sklearn.linear_model\n"
        "assert abag.sklearn.PairVectorizer is PairVectorizer\n"
        "print(PairVectorizer.__module__)"
    )
    assert done.stdout.strip() == "abag.head.estimators.scikit", done.stderr
