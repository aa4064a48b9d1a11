"""Columns of numbers and categories that models read beside the vectors of a pair."""

import json
from types import SimpleNamespace

import drawn
import numpy as np
import pandas as pd
import pytest
from invoke import one_line, run
from marks import in_ci
from reading import read_labels
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LinearRegression

import abag
from abag import ColumnError
from abag.head.labels.features import PairFeatures
from abag.head.models.pair_vectors import FeatureScaling, PairVectors, SideVectors
from abag.head.predictor.folder import record_digest

QUICK = {"split": "random", "report": False, "device": "cpu"}
COLUMNS = {"features": ("ddg",), "categories": ("lab",)}
OFFSETS = {"A": 0.0, "B": 1.0, "C": -1.0}
TRAINED = 130
NOISE = 0.3
NETWORK = {"head": "mlp", "epochs": 60, "widths": (16,), "lr": 0.01}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Pairs whose labels depend on their vectors, a number with missing cells, and a category."""
    case = drawn.linear_table(tmp_path_factory.mktemp("features"), 45, 4, NOISE)
    rng = np.random.default_rng(1)
    ddg = rng.normal(100, 3, len(case.frame))
    lab = rng.choice(list(OFFSETS), len(case.frame))
    of_lab = pd.Series(lab).map(OFFSETS).to_numpy()
    label = case.frame["pKd"] + (ddg - 100) / 3 + of_lab
    frame = case.frame.assign(ddg=ddg, lab=lab, noise=rng.normal(size=len(ddg)), pKd=label)
    frame.loc[:7, "ddg"] = np.nan
    order = rng.permutation(len(frame))
    return SimpleNamespace(
        at=case.at,
        store=case.store,
        train=frame.iloc[order[:TRAINED]],
        test=frame.iloc[order[TRAINED:]],
    )


def fit(case, name, table=None, **options):
    """Return the predictor of a run in the folder of this name, which is fitted once."""
    table = case.train if table is None else table
    abag.fit(table, case.store, case.at / name, **QUICK | options)
    return abag.load_predictor(case.at / name)


def predict(predictor, table):
    features = None if predictor.features is None else table
    columns = [table["heavy"].tolist(), None, table["antigen"].tolist()]
    return predictor.predict(*columns, features=features)


def rmse(predictor, table):
    error = predict(predictor, table)["pkd_predicted"].to_numpy() - table["pKd"].to_numpy()
    return float(np.sqrt(np.mean(error**2)))


@pytest.mark.ci
@pytest.mark.parametrize("options", [{"head": "ridge"}, *in_ci({"head": "kernel"}, {"head": "gp"})])
def test_features_that_labels_depend_on_lower_the_errors_of_unseen_rows(planted, options):
    labelled = planted.test[planted.test["ddg"].notna()]
    without = rmse(fit(planted, f"without-{options['head']}", **options), labelled)
    beside = rmse(fit(planted, f"with-{options['head']}", **options, **COLUMNS), labelled)
    assert without > 1.0
    assert beside < 1.5 * NOISE


@pytest.fixture(scope="module")
def assays(tmp_path_factory):
    """Pairs of which one assay measures with little noise, and another with much."""
    case = drawn.linear_table(tmp_path_factory.mktemp("assays"), 75, 6, 0.2)
    rng = np.random.default_rng(2)
    assay = rng.choice(["SPR", "ELISA"], len(case.frame))
    label = case.frame["pKd"] + np.where(assay == "ELISA", 1.2, 0.0) * rng.normal(size=len(assay))
    frame = case.frame.assign(assay=assay, pKd=label)
    order = rng.permutation(len(frame))
    return SimpleNamespace(
        at=case.at, store=case.store, train=frame.iloc[order[:270]], test=frame.iloc[order[270:]]
    )


@pytest.mark.ci
def test_pairs_of_a_noisy_assay_have_a_larger_sigma(assays):
    predictor = fit(assays, "run", head="ridge", categories=("assay",))
    scores = predict(predictor, assays.test)
    error = np.abs(scores["pkd_predicted"].to_numpy() - assays.test["pKd"].to_numpy())
    inside = error <= 1.645 * scores["sigma"].to_numpy()
    of_assay = assays.test["assay"].to_numpy()
    sigma = scores["sigma"].groupby(of_assay).median()
    assert sigma["ELISA"] > 2 * sigma["SPR"]
    covered = pd.Series(inside).groupby(of_assay).mean()
    assert covered.between(0.8, 0.97).all(), covered


@pytest.mark.ci
def test_factors_of_categories_that_no_training_gives_are_refused(assays, tmp_path):
    fit(assays, "damaged", head="ridge", categories=("assay",))
    folder = assays.at / "damaged" / "predictor"
    weights = load_file(folder / "weights.safetensors")
    weights["noise.category.0"] = np.array([1.0, -1.0])
    save_file(weights, folder / "weights.safetensors")
    record = json.loads((folder / "predictor.json").read_text())
    record["digest"] = record_digest(record, folder / "weights.safetensors")
    (folder / "predictor.json").write_text(json.dumps(record))
    with pytest.raises(abag.AbagError, match=r"noise.category.0 has factors that are not above 0"):
        abag.load_predictor(assays.at / "damaged")


@pytest.mark.ci
def test_a_network_reads_features(planted):
    labelled = planted.test[planted.test["ddg"].notna()]
    without = rmse(fit(planted, "without-mlp", **NETWORK), labelled)
    assert rmse(fit(planted, "with-mlp", **NETWORK, **COLUMNS), labelled) < 0.7 * without


@pytest.mark.parametrize("head", ["ridge", *in_ci("kernel")])
def test_a_feature_of_noise_changes_errors_by_less_than_two_percent(planted, head):
    without = rmse(fit(planted, f"without-{head}", head=head), planted.test)
    noise = rmse(fit(planted, f"noise-{head}", head=head, features=("noise",)), planted.test)
    assert noise == pytest.approx(without, rel=0.02)


@pytest.mark.ci
def test_residues_of_variants_are_read_beside_features(planted, tmp_path):
    rng = np.random.default_rng(2)
    parent = drawn.draw_chain(rng, 30)
    heavy = list({drawn.mutated(rng, parent, 2) for _ in range(80)})
    score = rng.normal(size=len(heavy))
    frame = pd.DataFrame({"heavy": heavy, "antigen": planted.train["antigen"].iloc[0]})
    frame = frame.assign(score=score, pKd=8 + score + 0.1 * rng.normal(size=len(heavy)))
    drawn.add_vectors(tmp_path / "store", frame)
    for head in ("one_hot_ridge", "residue_kernel"):
        case = SimpleNamespace(at=tmp_path, store=tmp_path / "store", train=frame[:60])
        options = {"head": head, "features": ("score",)}
        assert rmse(fit(case, head, **options), frame[60:]) < 0.4


def test_missing_numbers_are_the_mean_and_marked():
    numbers = np.array([[1.0], [np.nan], [3.0]])
    marks = np.array([[0], [1], [0]], np.float32)
    features = PairFeatures(numbers, marks)
    scaling = FeatureScaling.of(features)
    np.testing.assert_allclose(scaling.apply(features), [[-1, 0], [0, 1], [1, 0]])
    far = PairFeatures(np.array([[1e9]]), np.zeros((1, 1), np.float32))
    assert scaling.apply(far)[0, 0] == 10


def test_replicates_have_the_mean_of_their_numbers_and_categories_keep_pairs_apart():
    heavy = ["EVQLVESGGGLVQPGGSLRLSCAAS", "QVQLQQSGAELARPGASVKMSCKAS"]
    frame = pd.DataFrame(
        {
            "heavy": [heavy[0]] * 4 + [heavy[1]],
            "antigen": "MKTAYIAKQRQISFVKSHFSRQ",
            "pKd": [7.0, 8.0, 9.0, 6.0, 5.0],
            "ddg": [1.0, 3.0, np.nan, 10.0, 0.0],
            "lab": ["a", "a", "a", "b", "b"],
        }
    )
    pairs = read_labels(frame, **COLUMNS)
    averaged = pd.DataFrame(
        {"pkd": pairs.pkd, "ddg": pairs.cells.numbers_RF[:, 0], "lab": pairs.cells.words_RG[:, 0]}
    )
    expected = frame.groupby(["heavy", "lab"])[["pKd", "ddg"]].mean()
    assert sorted(averaged["pkd"]) == sorted(expected["pKd"])
    assert sorted(averaged["ddg"]) == sorted(expected["ddg"])
    assert averaged.set_index("pkd")["lab"].to_dict() == {8.0: "a", 6.0: "b", 5.0: "b"}


def test_a_ridge_of_many_pairs_finds_the_slope_of_a_feature(planted):
    predictor = fit(planted, "with-ridge", head="ridge", **COLUMNS)
    row = planted.test[planted.test["lab"] == "A"].iloc[[0]]
    table = pd.concat([row.assign(ddg=value) for value in (99.0, 101.0)])
    low, high = predict(predictor, table)["pkd_predicted"]
    labelled = planted.train.dropna()
    x = pd.get_dummies(labelled[["ddg", "lab", "heavy", "antigen"]])
    slope = LinearRegression().fit(x.to_numpy(float), labelled["pKd"]).coef_[0]
    assert (high - low) / 2 == pytest.approx(slope, rel=0.15)


@pytest.mark.ci
def test_a_process_has_the_posterior_of_its_kernel_with_features(planted):
    predictor = fit(planted, "with-gp", head="gp", **COLUMNS)
    (model,) = predictor.parts.models["gp"]
    train = model.train
    kernel = model.kernel
    assert kernel.features > 0
    sides = [
        side.scaled_kernel(kernel, at, side.train_AD)[index][:, index]
        for at, (side, index) in enumerate(zip(train.sides, train.index, strict=True))
    ]
    z = train.features.astype(np.float64)
    expected = kernel.mix(*sides) + kernel.features / z.shape[1] * z @ z.T
    np.testing.assert_allclose(train.matrix(kernel), expected, rtol=1e-6, atol=1e-8)
    vectors = vectors_of(predictor, planted.train)
    explained = np.square(expected @ model.root).sum(axis=1)
    variance = model.settings.amplitude * (np.diag(expected) - explained)
    assert sorted(model.variance(vectors)) == pytest.approx(sorted(variance), rel=1e-3, abs=1e-6)
    predicted = model.settings.pkd_mean + expected @ model.weight
    assert sorted(model.predict(vectors)) == pytest.approx(sorted(predicted), rel=1e-6)
    other = np.roll(np.arange(len(vectors)), 1)
    assert (model.difference_variance(vectors, other) >= 0).all()


def vectors_of(predictor, frame):
    """Return the vectors and features of the rows of a table."""
    from abag.embed.tables.pairs import Sequences
    from abag.head.labels.features import read_features

    store = abag.open_store(predictor.store)
    sides = {}
    for side in (
        Sequences.of("antibody", [(chain, "") for chain in frame["heavy"]]),
        Sequences.of("antigen", [(chain,) for chain in frame["antigen"]]),
    ):
        x_ND = predictor.read(store, side.kind, side.keys)
        sides[side.kind] = SideVectors(x_ND, side.of_row, side.chains)
    return PairVectors(sides, read_features(predictor.features, frame, "table").values)


# ---- the predictor -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(planted):
    return fit(planted, "with-ridge", head="ridge", **COLUMNS)


def test_the_command_predicts_a_table_as_python_does(planted, fitted, tmp_path):
    planted.test.drop(columns="pKd").to_csv(tmp_path / "new.csv", index=False)
    done = run(
        "predict",
        tmp_path / "new.csv",
        "--run",
        planted.at / "with-ridge",
        "--out",
        tmp_path / "out.csv",
    )
    assert done.exit_code == 0, done.output
    written = pd.read_csv(tmp_path / "out.csv")
    expected = predict(fitted, planted.test)
    np.testing.assert_allclose(written["pkd_predicted"], expected["pkd_predicted"], atol=1e-4)
    np.testing.assert_allclose(written["sigma"], expected["sigma"], atol=1e-4)


def test_rows_outside_the_trained_features_are_far_with_their_reason(planted, fitted, tmp_path):
    rows = planted.train.head(4).assign(lab="A", ddg=100.0)
    rows["ddg"] = [100.0, 200.0, planted.train["ddg"].max() + 0.1, 100.0]
    rows["lab"] = ["A", "A", "A", "D"]
    far = predict(fitted, rows)
    assert far["far"].tolist() == [False, True, False, True]
    low = planted.train["ddg"].min()
    high = planted.train["ddg"].max()
    assert far["why_far"][1] == f"its ddg is above the {low:g} to {high:g} of training"
    assert far["why_far"][3] == "its lab is 'D', which training lacks"
    assert far["sigma"][1] >= fitted.label_sd
    rows.to_csv(tmp_path / "new.csv", index=False)
    summary = abag.predict(
        tmp_path / "new.csv", run=planted.at / "with-ridge", out=tmp_path / "o.csv"
    )
    assert summary["far_rows"] == 2
    assert sum(summary["why_far"].values()) == 2


def test_only_the_most_frequent_reasons_for_being_far_are_said(planted, tmp_path):
    rows = planted.train.head(9).assign(lab=list("PPPQQRRST"))
    said = []
    run = planted.at / "with-ridge"
    summary = abag.predict(rows, run=run, out=tmp_path / "o.csv", say=said.append)
    assert len(summary["why_far"]) == 5
    (line,) = (line for line in said if line.startswith("outside the training data: 9 rows"))
    assert "(3 because its lab is 'P', which training lacks" in line
    assert "2 for other reasons, in column 'why_far')" in line


@pytest.mark.ci
def test_categories_are_the_same_however_a_file_writes_them(tmp_path, planted):
    table = planted.train.assign(lab=planted.train["lab"].map({"A": 1, "B": 2, "C": 3}))
    predictor = fit(planted, "numbered", table, head="ridge", **COLUMNS)
    new = planted.test.head(6).assign(lab=["1", "2.0", " 3 ", "1", "2", "3"])
    as_numbers = new.assign(lab=[1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    pd.testing.assert_frame_equal(predict(predictor, new), predict(predictor, as_numbers))
    assert not predict(predictor, new)["why_far"].str.contains("lab").any()


@pytest.mark.ci
def test_categories_that_look_like_numbers_are_text(tmp_path, planted):
    words = {"A": "1.1", "B": "1.10", "C": "01.1"}
    tables = {}
    for name, part in (("train", planted.train), ("test", planted.test)):
        tables[name] = tmp_path / f"{name}.csv"
        part.assign(lab=part["lab"].map(words)).to_csv(tables[name], index=False)
    predictor = fit(planted, "versions", tables["train"], head="ridge", **COLUMNS)
    assert predictor.features.categories[0].values == ("01.1", "1.1", "1.10")
    summary = abag.predict(tables["test"], run=predictor, out=tmp_path / "o.csv")
    assert not any("lab" in reason for reason in summary["why_far"])


def test_categories_of_truth_values_are_those_of_text():
    frame = drawn.draw_pairs(4, 1)
    for cells in ([True, False, True, False], ["TRUE", " false", "true", "False"]):
        pairs = read_labels(frame.assign(soluble=cells), categories=("soluble",))
        words = dict(zip(pairs.row.tolist(), pairs.cells.words_RG[:, 0], strict=True))
        assert words == {0: "True", 1: "False", 2: "True", 3: "False"}


def test_a_sweep_searches_with_features(planted):
    options = {"trials": 2, "folds": 2, "split": "random", "device": "cpu", "epochs": 3}
    at = planted.at / "sweep"
    summary = abag.sweep(planted.train, planted.store, at, **options, **COLUMNS)
    assert summary["best"]["value"] > 0


def test_evaluate_reads_the_features_of_a_table(planted, fitted):
    summary = abag.evaluate(planted.at / "with-ridge", table=planted.test)
    reported = summary["table"]["metrics"]["rmse"]
    assert reported == pytest.approx(rmse(fitted, planted.test), abs=1e-6)


def test_an_altered_record_of_features_is_refused(planted, fitted, tmp_path):
    from safetensors.torch import load_file

    from abag import DamagedFile
    from abag.head.predictor.folder import WEIGHTS, record_digest

    folder = planted.at / "with-ridge" / "predictor"
    assert load_file(folder / WEIGHTS)
    written = json.loads((folder / "predictor.json").read_text())
    for change in ({"numbers": []}, {"categories": []}, {"numbers": [{"name": "ddg"}]}, {}):
        altered = {**written, "features": {**written["features"], **change} if change else None}
        altered["digest"] = record_digest(altered, folder / WEIGHTS)
        (tmp_path / "predictor.json").write_text(json.dumps(altered))
        (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
        with pytest.raises(DamagedFile):
            abag.load_predictor(tmp_path)


def test_the_model_card_and_what_is_shared_name_the_features(planted, fitted, tmp_path, capsys):
    card = (planted.at / "with-ridge" / "predictor" / "README.md").read_text()
    assert "features=table)" in card
    assert "beside its sequences: `ddg`, `lab`" in card
    abag.share(planted.at / "with-ridge", tmp_path / "shared")
    assert "values of categories of the columns 'ddg', 'lab'" in capsys.readouterr().err
    shared = abag.load_predictor(tmp_path / "shared")
    assert shared.features == fitted.features


def test_scikit_learn_reads_features_as_further_columns(planted):
    from abag.sklearn import AffinityRegressor

    x = planted.train[["heavy", "antigen", "ddg", "lab"]]
    model = AffinityRegressor(planted.store, head="ridge", split="random", **COLUMNS)
    model.fit(x, planted.train["pKd"])
    new = planted.test[planted.test["ddg"].notna()]
    error = model.predict(new[list(x.columns)]) - new["pKd"].to_numpy()
    assert np.sqrt(np.mean(error**2)) < 1.5 * NOISE
    with pytest.raises(ColumnError, match="no column 'lab'"):
        model.predict(new[["heavy", "antigen", "ddg"]])


# ---- likelihoods ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def likely(tmp_path_factory):
    """A run whose labels are the likelihoods of antibodies that its store has, and new rows."""
    at = tmp_path_factory.mktemp("likely")
    rng = np.random.default_rng(5)
    heavy = drawn.draw_chains(rng, 50, 20)
    frame = pd.DataFrame({"heavy": heavy, "antigen": np.resize(drawn.draw_chains(rng, 3, 20), 50)})
    abag.embed_table(frame, at / "both", "tiny-esm2", "tiny-esm2", loglik=True, device="cpu")
    loglik = abag.open_store(at / "both").vectors("antibody", frame["heavy"], pooling="loglik")
    frame = frame.assign(pKd=8 + 2 * (loglik[:, 0] - loglik.mean()) / loglik.std())
    train = frame[:35]
    test = frame[35:]
    options = {"antibody_encoder": "tiny-esm2", "device": "cpu"}
    abag.embed_table(train, at / "store", antigen_encoder="composition", kind="antigen")
    abag.embed_table(train, at / "store", kind="antibody", loglik=True, **options)
    return SimpleNamespace(at=at, store=at / "store", train=train, test=test)


@pytest.mark.ci
def test_likelihoods_of_the_store_are_features(likely):
    case = likely
    predictor = fit(case, "loglik", head="ridge", features=("loglik",), antibody_vectors=("mean",))
    assert predictor.features.names == ("antibody_loglik",)
    assert predictor.features.in_tables == ()
    assert rmse_of_sequences(predictor, case.test) < 0.5
    without = fit(case, "no-loglik", head="ridge")
    assert rmse_of_sequences(without, case.test) > 1
    folder = abag.load_predictor(case.at / "loglik" / "predictor")
    elsewhere = folder.predict(
        case.test["heavy"].tolist(), None, case.test["antigen"].tolist(), store=case.at / "new"
    )
    expected = predictor.predict(case.test["heavy"].tolist(), None, case.test["antigen"].tolist())
    np.testing.assert_allclose(elsewhere["pkd_predicted"], expected["pkd_predicted"], atol=1e-3)
    done = run(
        "predict",
        "--heavy",
        case.test["heavy"].iloc[0],
        "--antigen",
        case.test["antigen"].iloc[0],
        "--run",
        case.at / "loglik",
        "--json",
    )
    pair = json.loads(done.stdout)
    assert pair["pkd_predicted"] == pytest.approx(expected["pkd_predicted"].iloc[0], abs=1e-3)
    summary = abag.evaluate(case.at / "loglik", table=case.test)
    assert summary["table"]["metrics"]["rmse"] < 0.5
    parent = case.train.iloc[0]
    scanned = abag.scan(
        case.at / "loglik",
        case.at / "scan.csv",
        heavy=parent["heavy"],
        antigen=parent["antigen"],
        positions="A1",
    )
    assert scanned["rows"] == 19
    mutants = pd.read_csv(case.at / "scan.csv")
    sequences = [(parent["heavy"], ""), *((heavy, "") for heavy in mutants["heavy"])]
    of_store = abag.open_store(case.store).vectors("antibody", sequences, pooling="loglik")[:, 0]
    np.testing.assert_allclose(
        mutants["antibody_loglik_difference"], of_store[1:] - of_store[0], rtol=1e-4, atol=1e-6
    )
    crossed = abag.predict(
        case.test, run=case.at / "loglik", out=case.at / "o.csv", cross=case.test
    )
    written = pd.read_csv(case.at / "o.csv")
    assert crossed["rows"] == len(written) == 15 * 3
    assert crossed["far_rows"] == written["far"].sum()


def rmse_of_sequences(predictor, table):
    predicted = predictor.predict(table["heavy"].tolist(), None, table["antigen"].tolist())
    error = predicted["pkd_predicted"].to_numpy() - table["pKd"].to_numpy()
    return float(np.sqrt(np.mean(error**2)))


@pytest.mark.ci
def test_likelihoods_that_a_store_lacks_are_refused(likely, planted):
    with pytest.raises(ColumnError, match="no likelihood of the antigen in the store"):
        fit(likely, "antigens", head="ridge", features=("antigen_loglik",))
    with pytest.raises(ColumnError, match="no likelihood of the antibody or antigen in the store"):
        fit(planted, "drawn", head="ridge", features=("loglik",))
    table = likely.train.assign(loglik=np.arange(len(likely.train)))
    run = fit(likely, "own", table, head="ridge", features=("loglik",))
    assert run.features.in_tables == ("loglik",)


@pytest.mark.ci
def test_scikit_learn_reads_likelihoods(likely):
    from abag.sklearn import AffinityRegressor

    x = likely.train[["heavy", "antigen"]]
    model = AffinityRegressor(
        likely.store, head="ridge", split="random", encode=True, features=("antibody_loglik",)
    )
    error = model.fit(x, likely.train["pKd"]).predict(likely.test[["heavy", "antigen"]])
    assert np.sqrt(np.mean((error - likely.test["pKd"].to_numpy()) ** 2)) < 0.5


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"features": ("ddg", "ddg")}, "'ddg' is given twice"),
        ({"features": ("ddg",), "categories": ("ddg",)}, "'ddg' is given twice"),
        ({"features": ("",)}, "names no column"),
        ({"features": tuple(map(str, range(1001)))}, "1,001 columns; expected at most 1,000"),
        ({"error": "a", "weight": "b"}, "--error and --weight: .*; expected one of them"),
    ],
)
def test_options_that_name_no_columns_are_refused(named, words):
    with pytest.raises(abag.AbagError, match=words):
        abag.PlanOptions(**named)


def test_a_category_that_is_too_long_is_refused_before_training_instead_of_cut(planted, tmp_path):
    long = pd.Series(["a" * 200, "a" * 200 + "b"] * 40)[: len(planted.train)]
    table = planted.train.assign(lab=long.reindex(planted.train.index, fill_value="c").to_numpy())
    table.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "--store", planted.store, "--run", tmp_path / "run")
    said = one_line(*fit, "--head", "ridge", "--categories", "lab")
    assert "row 3, column lab: 'aaaa" in said
    assert "(201 characters) is not a valid category; expected at most 200 characters" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["pkd_copy", "kd_copy"])
def test_a_feature_that_is_the_label_is_reported(planted, name):
    copies = {"pkd_copy": planted.train["pKd"] + 1, "kd_copy": 10.0 ** -planted.train["pKd"]}
    planned = abag.plan(planted.train.assign(other=copies[name]), features=("other",))
    assert any("it may be the label itself" in line for line in planned["beside"])


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "new.csv", "--out", "out.csv"),
        ("predict", "new.csv", "--cross", "new.csv", "--out", "out.csv"),
        ("predict", "--heavy", "EVQLVESGG", "--antigen", "MKTAYIAK"),
    ],
)
def test_scores_without_the_features_of_the_run_are_refused(
    planted, fitted, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    planted.test[["heavy", "antigen"]].to_csv("new.csv", index=False)
    assert "'ddg'" in one_line(*command, "--run", planted.at / "with-ridge")
    assert not (tmp_path / "out.csv").exists()


def test_scan_refuses_a_run_with_features(planted, fitted, tmp_path):
    parent = planted.train.iloc[0]
    with pytest.raises(ColumnError, match="scan: the run reads the columns 'ddg', 'lab'"):
        abag.scan(
            planted.at / "with-ridge",
            tmp_path / "scan.csv",
            heavy=parent["heavy"],
            antigen=parent["antigen"],
            positions="H1",
        )


def test_python_refuses_features_of_other_lengths_and_of_runs_without(planted, fitted):
    heavy = planted.test["heavy"].tolist()
    antigen = planted.test["antigen"].tolist()
    with pytest.raises(ColumnError, match="1 row for 50 pairs"):
        fitted.predict(heavy, None, antigen, features=planted.test.head(1))
    with pytest.raises(ColumnError, match="the run reads the columns"):
        fitted.predict(heavy, None, antigen)
    bare = fit(planted, "without-ridge", head="ridge")
    with pytest.raises(ColumnError, match="the run reads none"):
        bare.predict(heavy, None, antigen, features=planted.test)
