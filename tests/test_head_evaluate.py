import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION, QUICK, add_vectors, draw_chains, draw_pairs, linear_table, mutated
from heads import BASELINES, sequence_keys
from invoke import run
from marks import in_ci
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from trastuzumab import HEAVY, LIGHT

import abag
from abag import ColumnError, OptionError, PredictionError, RunError, SequenceError
from abag.head.evaluation.metrics import METRICS, Metric
from abag.head.runs.evaluate import errors_with_bounds


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("evaluate")
    frame = draw_pairs(30, 6)
    new = draw_pairs(5, 6, seed=1, antigens=sorted(set(frame["antigen"])))
    add_vectors(at / "store", pd.concat([frame, new]))
    one_fold = abag.fit(frame, at / "store", at / "one", **QUICK)
    folded = abag.fit(frame, at / "store", at / "folds", **QUICK | {"folds": 3, "repeats": 2})
    return SimpleNamespace(at=at, frame=frame, new=new, one=one_fold, folded=folded)


def run_evaluate(case, name="one", **options):
    said = []
    return abag.evaluate(case.at / name, say=said.append, **options), said


def own_predictions(case, name="one", part="test"):  # all that is written is tested
    """Write down the run's own predictions as somebody else would: by sequence."""
    saved = pd.read_parquet(case.at / name / "predictions.parquet")
    saved = saved[["antibody_key", "antigen_key", "fold", "pkd_predicted"]]
    joined = (
        case.frame.join(sequence_keys(case.frame))
        .drop(columns="pKd")
        .merge(saved, on=["antibody_key", "antigen_key"])
    )
    return joined[["heavy", "antigen", "fold", "pkd_predicted"]].reset_index(drop=True)


def test_a_registered_metric_and_baseline_appear_in_the_outputs_of_fit(case, tmp_path, monkeypatch):
    bias = Metric(function=lambda rows: float(np.sum(rows.predicted - rows.pkd)), in_tables=True)
    monkeypatch.setitem(METRICS, "mean_bias", bias)
    monkeypatch.setitem(BASELINES, "constant", lambda inputs: np.full(len(inputs.pairs), 7.0))
    summary = abag.fit(case.frame, case.at / "store", tmp_path, **QUICK)
    (regime,) = summary["regimes"]
    assert regime["metrics"]["constant"]["mean_bias"] < 0
    assert regime["metrics"]["head"]["mean_bias"] is not None
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_a_head_of_one_model_is_not_its_own_baseline(case, tmp_path):
    def label(frame):  # what a ridge model learns
        return frame.assign(pKd=5 + 10 * frame["heavy"].map(lambda chain: chain.count("W") / 15))

    abag.fit(label(case.frame), case.at / "store", tmp_path, head="antibody_ridge")
    table = abag.evaluate(tmp_path, table=label(case.new))["table"]
    assert [regime["best_baseline"] for regime in table["regimes"]] == ["train_mean"]


@pytest.mark.parametrize(("name", "fitted"), [("one", "one"), ("folds", "folded")])
def test_scores_of_a_saved_run_equal_those_of_fit_bit_for_bit(case, name, fitted):
    summary, _ = run_evaluate(case, name)
    assert summary == json.loads(json.dumps(getattr(case, fitted)))
    assert summary["regimes"][0]["sentence"] in run("evaluate", "--run", case.at / name).stdout


FILES = ("config.json", "summary.json", "pairs.parquet", "predictions.parquet")


def copied(case, to):
    for name in FILES:
        (to / name).write_bytes((case.at / "one" / name).read_bytes())
    return to


@pytest.mark.parametrize("name", ["config.json", "summary.json", "predictions.parquet"])
@pytest.mark.parametrize("damage", ["gone", "cut", "list"])
def test_an_incomplete_run_is_refused_in_one_line(case, tmp_path, name, damage):
    path = copied(case, tmp_path) / name
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        half = content[: len(content) // 2]
        path.write_bytes({"cut": half, "list": b"[]"}[damage])
    with pytest.raises(RunError, match=r"not a finished run|is damaged") as error:
        abag.evaluate(tmp_path)
    assert "\n" not in str(error.value)


def test_a_split_and_predictions_of_two_runs_are_refused(case, tmp_path):
    copy = copied(case, tmp_path)
    split = pd.read_parquet(copy / "pairs.parquet")
    split.iloc[::-1].to_parquet(copy / "pairs.parquet", index=False)
    with pytest.raises(RunError, match="belong to different runs"):
        abag.evaluate(copy)


@pytest.mark.parametrize("name", ["one", "folds"])
def test_pairs_in_the_training_set_are_counted(case, name):
    both = pd.concat([case.frame, case.new], ignore_index=True)
    summary, said = run_evaluate(case, name, table=both)
    known, new = summary["table"]["regimes"]
    assert f"; {len(case.frame)} of {len(case.frame)} pairs are training pairs" in known["sentence"]
    assert "training pairs" not in new["sentence"]
    assert any(f"{len(case.frame)} of {len(both)} pairs are training pairs" in x for x in said)
    counted = summary["table"]["in_training"]
    assert counted["pair"] == len(case.frame)
    assert counted["antibody"] == len(case.frame)
    assert counted["antigen"] == len(both)


def test_pairs_that_a_run_has_left_unused_are_no_training_pairs(case, tmp_path):
    parts = ["unused", "test", "train", "train", "validation"]
    table = case.frame.assign(part=[parts[row % 5] for row in range(len(case.frame))])
    abag.fit(table, case.at / "store", tmp_path / "run", head="ridge", split="column=part")
    summary = abag.evaluate(tmp_path / "run", table=case.frame, store=case.at / "store")["table"]
    assert summary["in_training"] == {"pair": 144, "antibody": 180, "antigen": 180}
    (known,) = summary["regimes"]  # of unused pairs both sequences are in training
    assert "; 144 of 180 pairs are training pairs" in known["sentence"]


def test_labels_are_read_with_the_options_of_the_run(case):
    molar = case.frame.assign(K=10 ** (9 - case.frame["pKd"])).drop(columns="pKd")
    units = {"label": "kd_nm", "columns": {"pkd": "K"}}
    abag.fit(molar, case.at / "store", case.at / "molar", **QUICK | units)
    new = case.new.assign(K=10 ** (9 - case.new["pKd"])).drop(columns="pKd")
    twice = pd.concat([new, new.assign(K=new["K"] * 4)])
    summary, _ = run_evaluate(case, "molar", table=twice)
    assert summary["table"]["pairs"] == len(new)
    assert summary["table"]["metrics"]["mae"] < 5


def test_bad_rows_are_refused_or_skipped_and_reported(case):
    table = pd.DataFrame(
        {"antibody": case.new["heavy"] + "|", "antigen": case.new["antigen"], "pKd": 8.0}
    )
    table.loc[2, "antibody"] = HEAVY + HEAVY + LIGHT
    table["pKd"] = table["pKd"].astype(object)
    table.loc[4, "pKd"] = "unknown"
    both = r"(?s)row 3, .* heavy \+ heavy \+ light.*row 5, .*unknown"
    with pytest.raises(SequenceError, match=both):
        run_evaluate(case, table=table)
    summary, said = run_evaluate(case, table=table, bad_rows="skip")
    assert summary["table"]["pairs"] == len(table) - 2
    assert "2 bad rows skipped (unsure domains: 1 row, 1 antibody; invalid label" in said[0]
    table = table.drop(4).assign(pkd_predicted=8.0)
    with pytest.raises(SequenceError, match=r"heavy \+ heavy \+ light"):
        run_evaluate(case, predictions=table)
    with pytest.raises(PredictionError, match="not in the run"):
        run_evaluate(case, predictions=table, bad_rows="skip")


def test_sequences_of_a_table_that_the_store_lacks_are_encoded_first(tmp_path):
    frame = draw_pairs(30, 6)
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    abag.fit(frame, tmp_path / "store", tmp_path / "run", **QUICK)
    said = []
    summary = abag.evaluate(tmp_path / "run", table=draw_pairs(5, 6, seed=2), say=said.append)
    assert summary["table"]["pairs"] == 30
    assert "encoding 5 antibodies with composition and 6 antigens with composition" in "\n".join(
        said
    )
    stored = abag.open_store(tmp_path / "store").folder("antibody", "composition").keys()
    assert sum(map(len, stored)) == 35


def test_rows_of_the_affinity_type_of_the_run_are_scored(case):
    name = "typed"
    typed = case.frame.assign(affinity_type="kd")
    options = QUICK | {"affinity_type": "kd"}
    abag.fit(typed, case.at / "store", case.at / name, **options)
    mixed = case.new.assign(affinity_type=["kd", "elisa"] * 15)
    assert run_evaluate(case, name, table=mixed)[0]["table"]["pairs"] == 15
    other, _ = run_evaluate(case, name, table=mixed.head(9), affinity_type="elisa")
    assert other["table"]["pairs"] == 4
    _, said = run_evaluate(case, name, table=case.new)
    assert any("used as 'kd'" in line for line in said)


def test_missing_and_unknown_rows_are_refused_with_their_counts(case):
    theirs = own_predictions(case, part="test")
    more = pd.concat([theirs, case.new.head(4).assign(pkd_predicted=7.0)], ignore_index=True)
    with pytest.raises(PredictionError, match=r"for 3 of .* test rows, and 0 pairs are not"):
        run_evaluate(case, predictions=theirs.iloc[3:])
    with pytest.raises(PredictionError, match=r"for 0 of .* test rows, and 4 pairs are not"):
        run_evaluate(case, predictions=more)


def test_rows_of_an_unknown_fold_are_refused(case):
    theirs = own_predictions(case, "folds").assign(fold=lambda f: f["fold"] + 0.5)
    with pytest.raises(PredictionError, match="antigen and fold"):
        run_evaluate(case, "folds", predictions=theirs.drop_duplicates(["heavy", "antigen"]))


def test_different_predictions_of_a_pair_are_refused_but_repeated_rows_are_not(case):
    theirs = own_predictions(case)
    repeated = pd.concat([theirs, theirs.head(5)], ignore_index=True)
    repeated.loc[0, "pkd_predicted"] += 1e-6  # as predict rounds rows of the same pair
    run_evaluate(case, predictions=repeated)
    repeated.loc[0, "pkd_predicted"] += 1
    with pytest.raises(PredictionError, match=r"more than one prediction .* \(1 extra row\)"):
        run_evaluate(case, predictions=repeated)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(np.nan, r"an empty cell \(or NA\)"), (np.inf, "inf"), ("strong", "'strong'"), ("", "''")],
)
def test_an_invalid_prediction_is_refused_with_its_row(case, value, shown):
    theirs = own_predictions(case).astype({"pkd_predicted": object})
    theirs.loc[1, "pkd_predicted"] = value
    message = rf"row 2, column pkd_predicted: {shown} \(1 such row\) is not a valid prediction"
    with pytest.raises(PredictionError, match=message):
        run_evaluate(case, predictions=theirs)


def test_an_ambiguous_prediction_column_must_be_named(case):
    theirs = own_predictions(case)
    with pytest.raises(ColumnError, match=r'columns=\{"prediction": "NAME"\}'):
        run_evaluate(case, predictions=theirs.rename(columns={"pkd_predicted": "mine"}))
    ambiguous = theirs.assign(prediction=7.0)
    with pytest.raises(ColumnError, match=r'columns=\{"prediction": "NAME"\}'):
        run_evaluate(case, predictions=ambiguous)
    summary, _ = run_evaluate(case, predictions=ambiguous, columns={"prediction": "prediction"})
    assert summary["predictions"]["regimes"][0]["spearman"]["value"] == 0


@pytest.mark.parametrize("options", [
    {"table": "a.csv", "predictions": "b.csv"}, {"store": "store"},
    {"store": "store", "predictions": "b.csv"}, {"affinity_type": "kd"},
    {"columns": {"heavy": "VH"}},
])  # fmt: skip
def test_inputs_that_would_not_be_used_are_refused(case, options):
    with pytest.raises(OptionError, match="TABLE"):
        run_evaluate(case, **options)


def test_another_table_is_scored_by_the_regimes_of_its_pairs(case, tmp_path):
    summary, said = run_evaluate(case, table=case.new)
    table = summary["table"]
    assert (table["pairs"], table["in_training"]["antibody"]) == (30, 0)
    assert table["in_training"]["antigen"] == 30
    assert [regime["regime"] for regime in table["regimes"]] == ["new_antibody"]
    assert table["regimes"][0]["n"] == 30
    assert table["far"] == 30  # the run has measured random pairs only
    predicted = abag.load_predictor(case.at / "one").predict(
        list(case.new["heavy"]), antigen=list(case.new["antigen"])
    )["pkd_predicted"]
    rmse = np.sqrt(np.mean((predicted - case.new["pKd"]) ** 2))
    assert table["regimes"][0]["rmse"] == pytest.approx(rmse, rel=1e-4)
    assert table["metrics"]["rmse"] == pytest.approx(rmse, rel=1e-4)
    assert table["bias"] == pytest.approx(np.mean(predicted - case.new["pKd"]), rel=1e-3)
    case.new.to_csv(tmp_path / "new.csv", index=False)
    lines = run("evaluate", tmp_path / "new.csv", "--run", case.at / "one").stdout.splitlines()
    assert lines[0] == "new.csv: 30 pairs, 30 outside training data"  # the table comes first
    assert f"{summary['run']}, cross-validated:" in lines
    assert any("0 of 30 pairs are training pairs" in text for text in said)


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """Return a run, and pairs of other antibodies that it predicts well."""
    drawn = linear_table(tmp_path_factory.mktemp("batches"), 40, 4, 0.4)
    is_first = drawn.frame["heavy"].isin(drawn.frame["heavy"].unique()[:22])
    first = drawn.frame[is_first]
    abag.fit(first, drawn.store, drawn.at / "run", head="ridge", report=False, folds=3)
    return SimpleNamespace(run=drawn.at / "run", first=first, new=drawn.frame[~is_first])


def test_predictions_that_are_shifted_are_told_from_those_that_only_err(batches, tmp_path):
    table = batches.new.assign(pKd=batches.new["pKd"] + 1.5)
    plain, shifted = (
        abag.evaluate(batches.run, table=frame)["table"] for frame in (batches.new, table)
    )
    low, high = shifted["bias_interval"]
    assert low < -1.5 < high < -1
    assert shifted["bias"] == pytest.approx(plain["bias"] - 1.5)
    assert shifted["rmse_without_bias"] == pytest.approx(plain["rmse_without_bias"])
    error = shifted["metrics"]["rmse"] ** 2
    assert shifted["rmse_without_bias"] ** 2 + shifted["bias"] ** 2 == pytest.approx(error)
    assert "too low on average; RMSE" in shifted["sentence"]
    assert f"abag fit --add {batches.run} --categories COLUMN" in shifted["sentence"]
    assert plain["bias_interval"][0] < 0 < plain["bias_interval"][1]
    assert plain["sentence"].endswith("on average, which may be chance")
    assert "--add" not in plain["sentence"]
    table.to_csv(tmp_path / "table.csv", index=False)
    shown = run("evaluate", tmp_path / "table.csv", "--run", batches.run).stdout
    assert shifted["sentence"] in shown.splitlines()


@pytest.mark.ci
def test_ten_pairs_of_a_batch_with_its_category_remove_the_shift(batches):
    at = batches.run.parent
    other = batches.new.assign(pKd=batches.new["pKd"] + 1.5, batch="B")
    ten = other.sample(10, random_state=1)
    said = []
    options = {"add": str(batches.run), "categories": ("batch",), "report": False}
    abag.fit(ten, None, at / "r2", say=said.append, **options)
    assert any("no column batch; its pairs are of the category (missing)" in line for line in said)
    rest_of = other.drop(ten.index)
    rest = abag.evaluate(at / "r2", table=rest_of)["table"]
    before = abag.evaluate(at / "r2", table=batches.first.assign(batch=""))["table"]
    for table in (rest, before):
        assert abs(table["bias"]) < 0.3
        assert "--add" not in table["sentence"]
    shifted = abag.evaluate(at / "r2", table=rest_of.assign(pKd=rest_of["pKd"] + 1.5))["table"]
    assert f"--add {at / 'r2'}; if batch does not tell" in shifted["sentence"]
    assert "with --categories batch,COLUMN" in shifted["sentence"]
    third = rest_of.head(6)
    summary = abag.fit(third, None, at / "r3", add=str(at / "r2"), report=False)
    assert summary["rounds"][2]["pairs"] == 6


def test_a_large_mean_error_of_few_groups_says_that_chance_may_make_it(batches):
    of_few = batches.new[batches.new["heavy"].isin(batches.new["heavy"].unique()[:4])]
    table = of_few.assign(pKd=of_few["pKd"] + 1.5)
    evaluated = abag.evaluate(batches.run, table=table)["table"]
    assert evaluated["bias_interval"] is None
    assert "groups of pairs cannot tell this from chance. If these" in evaluated["sentence"]
    assert "--categories COLUMN" in evaluated["sentence"]


def test_a_mean_error_of_one_group_or_of_equal_labels_is_no_shift(batches):
    table = batches.new.assign(pKd=batches.new["pKd"] + 1.5)
    few = abag.evaluate(batches.run, table=table.head(3))["table"]
    assert few["bias_interval"] is None
    assert few["sentence"].endswith("too low on average")
    equal = abag.evaluate(batches.run, table=table.assign(pKd=11.0))["table"]
    for evaluated in (few, equal):
        assert "too low on average" in evaluated["sentence"]
        assert "--add" not in evaluated["sentence"]


@pytest.mark.parametrize("shift", [0.0, 1.5, -1.5])
def test_a_shift_is_told_by_labels_and_bounds(batches, shift):
    """Of labels above a limit alone, predictions are too low, whatever the shift."""
    label = batches.new["pKd"] + shift
    limit = label.median()
    table = batches.new.assign(
        pKd=label.clip(lower=limit), censored=np.where(label < limit, ">", "")
    )
    whole = abag.evaluate(batches.run, table=batches.new.assign(pKd=label))["table"]
    told = abag.evaluate(batches.run, table=table)["table"]
    low, high = told["bias_interval"]
    assert low < whole["bias"] < high
    assert told["bias"] == pytest.approx(whole["bias"], abs=0.2)
    assert ("--add" in told["sentence"]) == (shift != 0)
    if shift:
        assert "on average by labels and bounds" in told["sentence"]
        assert "RMSE" not in told["sentence"]  # of a selection


@pytest.mark.parametrize("far", [1.0, 30.0])
def test_the_mean_error_with_bounds_is_the_most_likely_one_however_far_it_is(far):
    rng = np.random.default_rng(1)
    for _ in range(20):
        error = far * rng.normal(3, 2, 9)
        censored = np.array([0, *rng.choice([-1, 1], 8)], np.int8)

        def loss(mean, z=error, side=censored):
            away = z - mean
            terms = np.where(side < 0, norm.logsf(away), norm.logcdf(away))
            return -np.where(side == 0, norm.logpdf(away), terms).sum()

        likely = minimize_scalar(loss, bounds=(-20 * far, 20 * far), options={"xatol": 1e-7})
        values = errors_with_bounds(error, censored, np.ones(9))
        assert values.mean() == pytest.approx(likely.x, abs=1e-3)


def test_the_mean_error_with_bounds_is_the_most_likely_one():
    rng = np.random.default_rng(0)
    predicted = rng.normal(7, 0.8, 400)
    label = predicted - rng.normal(0.4, 0.6, 400)
    bound = rng.normal(7, 0.5, 400)  # one for each pair
    censored = np.where(label < bound, -1, 0).astype(np.int8)
    error = predicted - np.maximum(label, bound)
    sigma = np.full(400, 0.6)

    def loss(mean):
        z = (error - mean) / 0.6
        return -np.where(censored == 0, norm.logpdf(z), norm.logsf(z)).sum()

    values = errors_with_bounds(error, censored, sigma)
    likely = minimize_scalar(loss, bracket=(-1, 1))
    assert values.mean() == pytest.approx(likely.x, abs=1e-4)
    assert values.mean() == pytest.approx(0.4, abs=0.1)
    curvature = (loss(likely.x + 0.01) + loss(likely.x - 0.01) - 2 * likely.fun) / 0.01**2
    assert values.std() / 20 == pytest.approx(curvature**-0.5, rel=0.2)
    assert errors_with_bounds(error, 0 * censored, sigma) is error


@pytest.mark.parametrize("name", ["one", "folds"])
def test_the_predictions_of_the_run_are_indistinguishable_from_the_head(case, name):
    summary, said = run_evaluate(case, name, predictions=own_predictions(case, name))
    theirs = summary["predictions"]["regimes"]
    ours = summary["regimes"]
    our_rmse = [regime["rmse"] for regime in ours]
    assert [regime["rmse"] for regime in theirs] == pytest.approx(our_rmse)
    (verdict,) = summary["predictions"]["verdicts"]
    assert "the run is statistically indistinguishable from" in verdict
    assert verdict not in said  # the command prints it once, below the scores


def test_perfect_predictions_are_better_than_the_head(case):
    perfect = own_predictions(case).drop(columns=["fold", "pkd_predicted"]).drop_duplicates()
    perfect = perfect.merge(case.frame.rename(columns={"pKd": "pkd_predicted"}))
    summary, _ = run_evaluate(case, predictions=perfect)
    assert summary["predictions"]["regimes"][0]["rmse"] == pytest.approx(0, abs=1e-9)
    assert "the run is worse than" in summary["predictions"]["verdicts"][0]


@pytest.mark.ci
@pytest.mark.parametrize("side", ["antibody", *in_ci("antigen")])
def test_a_table_is_scored_with_the_identities_of_the_run(side, tmp_path):
    rng = np.random.default_rng(0)
    parents = draw_chains(rng, 24, 60)
    members = [mutated(rng, parent, 12) for parent in parents for _ in range(3)]  # 60 % alike
    others = draw_chains(rng, 6, 60)
    columns = ["heavy", "antigen"] if side == "antibody" else ["antigen", "heavy"]
    frame = pd.DataFrame([(m, other) for m in members for other in others], columns=columns)
    frame["pKd"] = rng.normal(8, 1, len(frame))
    add_vectors(tmp_path / "store", frame)
    n_groups = {}
    for identity in (0.5, 0.95):
        run = tmp_path / f"{identity}"
        options = {"head": "ridge", "report": False, f"{side}_identity": identity}
        abag.fit(frame[:216], tmp_path / "store", run, **options)
        (regime,) = abag.evaluate(run, table=frame[216:])["table"]["regimes"]
        assert regime["regime"] == f"new_{side}"
        n_groups[identity] = regime["groups"]
    assert n_groups == {0.5: 12, 0.95: 36}


def test_an_evaluation_shows_the_scores_of_its_table_first(case):
    summary, _ = run_evaluate(case, table=case.new)
    (regime,) = summary["table"]["regimes"]
    shown = repr(summary).splitlines()
    assert shown[0].startswith("table: 30 pairs")
    assert shown[1].split()[:2] == ["RMSE", "(pKd)"]
    assert f"{regime['rmse']:.2f}" in shown[2]
    assert regime["words"] in shown[2]
    assert "new antibodies, known antigens: ranking" in summary._repr_html_()
    assert "cross-validated: 180 pairs" in summary._repr_html_()
    predicted, _ = run_evaluate(case, predictions=own_predictions(case))
    assert repr(predicted).splitlines()[0] == "table:"
    assert repr(run_evaluate(case)[0]).splitlines()[0] == repr(case.one).splitlines()[0]
