import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from drawn import add_vectors
from trastuzumab import HEAVY, LIGHT

import abag
from abag.embed.sequences.columns import AmbiguousColumn, MissingColumn
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.pairs import read_pairs
from abag.head.evaluation import metrics, ranking
from abag.head.evaluation.baselines import BASELINES
from abag.head.report.report import describe_scores
from abag.head.runs.evaluate import NothingToEvaluate, PredictionsMismatch, evaluate
from abag.head.runs.saved_run import NoFinishedRun
from abag.head.splits import groups

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
QUICK = {
    "split": "random", "report": False, "widths": (8,), "epochs": 2, "batch_size": 16,
    "device": "cpu", "say": lambda _text: None,
}  # fmt: skip


def pairs_table(n_antibodies, seed, antigens=None):
    rng = np.random.default_rng(seed)
    heavy = ["".join(rng.choice(RESIDUES, 15)) for _ in range(n_antibodies)]
    antigens = antigens or ["".join(rng.choice(RESIDUES, 15)) for _ in range(6)]
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigens], columns=["heavy", "antigen"])
    return frame.assign(pKd=8 + rng.normal(size=len(frame)))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("evaluate")
    frame = pairs_table(30, seed=0)
    new = pairs_table(5, seed=1, antigens=sorted(set(frame["antigen"])))
    add_vectors(at / "store", pd.concat([frame, new]))
    one = abag.fit(frame, at / "store", at / "one", **QUICK)
    folded = abag.fit(frame, at / "store", at / "folds", **QUICK | {"folds": 3, "repeats": 2})
    return SimpleNamespace(at=at, frame=frame, new=new, one=one, folded=folded)


def run_evaluate(case, name="one", **options):
    said = []
    return evaluate(case.at / name, say=said.append, **options), said


def keyed(frame):
    table = read_pairs(frame)
    sides = {"antibody_key": table.antibodies, "antigen_key": table.antigens}
    return frame.assign(
        **{n: [k.tobytes().hex() for k in side.keys[side.of_row]] for n, side in sides.items()}
    )


def own_predictions(case, name="one", part=None):
    """Write down the run's own predictions as somebody else would: by sequence."""
    saved = pd.read_parquet(case.at / name / "predictions.parquet")
    saved = saved[["antibody_key", "antigen_key", "split", "fold", "pkd_predicted"]]
    joined = keyed(case.frame).drop(columns="pKd").merge(saved, on=["antibody_key", "antigen_key"])
    joined = joined if part is None else joined[joined["split"] == part]
    return joined[["heavy", "antigen", "fold", "pkd_predicted"]].reset_index(drop=True)


def test_a_registered_metric_and_baseline_appear_in_the_outputs_of_fit(case, tmp_path, monkeypatch):
    bias = metrics.Metric(
        function=lambda rows: float(np.mean(rows.predicted - rows.pkd)), in_tables=True
    )
    monkeypatch.setitem(metrics.METRICS, "mean_bias", bias)
    monkeypatch.setitem(BASELINES, "constant", lambda inputs: np.full(len(inputs.pairs), 7.0))
    summary = abag.fit(case.frame, case.at / "store", tmp_path, **QUICK)
    assert summary["baselines"]["constant"]["test"]["mean_bias"] < 0
    assert summary["metrics"]["test"]["mean_bias"] is not None
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    for text in ((tmp_path / "predictor/README.md").read_text(), describe_scores(summary)):
        assert "constant" in text
        assert re.search("mean.bias", text)


# ---- the saved split -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "fitted"), [("one", "one"), ("folds", "folded")])
def test_scores_of_a_saved_run_equal_those_of_fit_bit_for_bit(case, name, fitted):
    found, _ = run_evaluate(case, name)
    assert found == json.loads(json.dumps(getattr(case, fitted)))
    text = " ".join(describe_scores(found).split())
    assert "head, 95 % intervals: spearman" in text
    assert "within its 90 % interval" in text
    assert ("worst fold" in text) == (name == "folds")


def test_scores_come_from_the_saved_predictions(case, tmp_path):
    copy = copied(case, tmp_path)
    frame = pd.read_parquet(copy / "predictions.parquet")
    frame.assign(pkd_predicted=frame["pkd"]).to_parquet(copy / "predictions.parquet", index=False)
    assert evaluate(copy)["metrics"]["test"]["rmse"] == 0


FILES = (
    "config.json", "summary.json", "splits.parquet", "predictions.parquet", "sequences.parquet",
)  # fmt: skip


def copied(case, to):
    for name in FILES:
        (to / name).write_bytes((case.at / "one" / name).read_bytes())
    return to


@pytest.mark.parametrize("name", ["config.json", "summary.json", "predictions.parquet"])
@pytest.mark.parametrize("damage", ["gone", "cut", "list", "deep"])
def test_an_incomplete_run_is_refused_in_one_line(case, tmp_path, name, damage):
    path = copied(case, tmp_path) / name
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        half = content[: len(content) // 2]
        path.write_bytes({"cut": half, "list": b"[]", "deep": b"[" * 100_000}[damage])
    with pytest.raises(
        NoFinishedRun, match=r"not a finished run|is damaged; expected a JSON object"
    ) as error:
        evaluate(tmp_path)
    assert "\n" not in str(error.value)


def test_a_split_and_predictions_of_two_runs_are_refused(case, tmp_path):
    copy = copied(case, tmp_path)
    split = pd.read_parquet(copy / "splits.parquet")
    split.iloc[::-1].to_parquet(copy / "splits.parquet", index=False)
    with pytest.raises(NoFinishedRun, match="belong to different runs"):
        evaluate(copy)


# ---- another table -------------------------------------------------------------------------------


def test_another_table_is_scored_by_the_predictor(case):
    found, said = run_evaluate(case, table=case.new)
    predicted = abag.load_predictor(case.at / "one").predict(
        heavy=list(case.new["heavy"]), antigen=list(case.new["antigen"])
    )
    error = predicted["pkd_predicted"] - case.new["pKd"]
    assert found["metrics"]["table"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert found["metrics"]["test"] == case.one["metrics"]["test"]
    assert found["table"]["in_training"] == {"pair": 0, "antibody": 0, "antigen": 30}
    assert any(": 0 of 30 pairs are training pairs" in line for line in said)


def test_another_table_is_scored_on_new_sequences_and_with_baselines(case):
    both = pd.concat([case.frame, case.new], ignore_index=True)
    found, _ = run_evaluate(case, table=both)
    alone, _ = run_evaluate(case, table=case.new)
    new, expected = found["metrics"]["table_new_antibodies"], alone["metrics"]["table"]
    assert new.keys() == expected.keys()
    for name, value in expected.items():  # equal but for the rounding of networks in batches
        assert new[name] == (value and pytest.approx(value, rel=1e-5, abs=1e-6))
    assert found["metrics"]["table_new_antigens"] is None
    split = keyed(case.frame).merge(pd.read_parquet(case.at / "one/splits.parquet"))
    trained = split[split["split"] == "train"]
    others = {name: s["table"] for name, s in alone["baselines"].items() if "table" in s}
    error = case.new["pKd"] - trained["pKd"].mean()
    assert others["train_mean"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    error = case.new["pKd"] - case.new["antigen"].map(trained.groupby("antigen")["pKd"].mean())
    assert others["antigen_mean"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert sum("over" in line or "too few" in line for line in alone["table"]["verdicts"]) == 2


def variants(texts, at=7):
    """Mutate one residue of each text."""
    return [t[:at] + ("A" if t[at] != "A" else "C") + t[at + 1 :] for t in texts]


def test_near_duplicates_of_training_sequences_are_not_new(case):
    table = case.new.copy()
    known = sorted(set(case.frame["heavy"]))
    changed = dict(zip(sorted(set(table["heavy"])), variants(known[:3]), strict=False))
    table["heavy"] = table["heavy"].replace(changed)
    table["antigen"] = variants(table["antigen"])
    add_vectors(case.at / "store", table)
    found, said = run_evaluate(case, table=table)
    split = keyed(case.frame).merge(pd.read_parquet(case.at / "one/splits.parquet"))
    trained = set(split.loc[split["split"] == "train", "heavy"])
    near = 6 * len(trained & set(known[:3]))
    assert found["table"]["in_training"] == {"pair": 0, "antibody": 0, "antigen": 0}
    assert found["table"]["near_training"] == {"pair": near, "antibody": near, "antigen": 30}
    assert found["metrics"]["table_new_antibodies"]["n"] == 30 - near
    assert found["metrics"]["table_new_antigens"] is None
    assert any(f"{near} contain a near-duplicate of a training antibody" in line for line in said)


def test_an_antigen_that_contains_a_training_peptide_is_not_new(case):
    epitopes = sorted(set(case.frame["antigen"]))
    longer = ["".join(np.random.default_rng(i).choice(RESIDUES, 40)) for i in range(6)]
    around = {e: x[:20] + e + x[20:] for e, x in zip(epitopes, longer, strict=True)}
    table = case.new.assign(antigen=case.new["antigen"].map(around))
    add_vectors(case.at / "store", table)
    found, _ = run_evaluate(case, table=table)
    assert found["table"]["near_training"]["antigen"] == 30
    assert found["metrics"]["table_new_antigens"] is None


def test_clusters_of_another_table_are_kept_for_the_next_evaluation(case, monkeypatch):
    found, _ = run_evaluate(case, table=case.new)
    for name in ("antibody_clusters", "antigen_clusters"):
        monkeypatch.setattr(groups, name, None)
    again, _ = run_evaluate(case, table=case.new)
    assert again["table"]["near_training"] == found["table"]["near_training"]


def test_intervals_on_another_table_draw_clusters_of_antigens(case):
    other = case.new.assign(antigen=variants(case.new["antigen"]))
    table = pd.concat([case.new, other], ignore_index=True)
    add_vectors(case.at / "store", other)
    found, _ = run_evaluate(case, table=table)
    assert any("over 6 clusters" in line for line in found["table"]["verdicts"])


def test_bias_coverage_and_far_pairs_of_another_table_are_reported(case):
    shifted = case.new.assign(pKd=case.new["pKd"] - 3)
    found, _ = run_evaluate(case, table=shifted)
    near, _ = run_evaluate(case, table=case.new)
    table = found["table"]
    assert table["bias"] == pytest.approx(near["table"]["bias"] + 3)
    assert table["coverage"]["90"] < near["table"]["coverage"]["90"]
    assert 0 <= table["far"] <= 30
    text = describe_scores(found)
    assert f"Predictions are {table['bias']:.2f} pKd too high on average." in text
    assert "in the 90 %" in text
    assert f"{table['far']} of 30 pairs are flagged as far" in text
    assert "sigma is a level, equal for all pairs" in text  # one head without a spread
    own = table["intervals"]["pair_accuracy_unrelated"]
    assert own["value"] == found["metrics"]["table"]["pair_accuracy_unrelated"]
    assert own["low"] < own["value"] < own["high"]
    one_line = " ".join(text.split())
    assert f"pair_accuracy_unrelated {own['value']:.3f} [{own['low']:.3f}, " in one_line


def test_predictions_worse_than_a_mean_are_called_that_first(case):
    shifted = case.new.assign(pKd=case.new["pKd"] + np.tile([-3.0, 3.0], 15))
    table = run_evaluate(case, table=shifted)[0]
    assert table["metrics"]["table"]["r2"] < 0
    first, second = table["table"]["verdicts"][:2]
    worse = "The head is worse than predicting the mean of the scored labels: R2 is -"
    assert worse in first or ("not better than predicting the training mean" in first)
    assert worse in first + second


def test_the_ridge_on_another_table_equals_that_of_fit(case):
    found, _ = run_evaluate(case, table=case.frame)
    saved = keyed(case.frame).merge(pd.read_parquet(case.at / "one/splits.parquet"))
    test = saved[saved["split"] == "test"]
    on_test, _ = run_evaluate(case, table=test[["heavy", "antigen", "pKd"]])
    as_fit = case.one["baselines"]["ridge"]["test"]
    assert on_test["baselines"]["ridge"]["table"]["rmse"] == pytest.approx(as_fit["rmse"])
    assert found["baselines"]["ridge"]["table"]["n"] == len(case.frame)


def test_without_the_store_of_the_run_only_mean_baselines_are_scored(case, tmp_path):
    shutil.copytree(case.at / "one", tmp_path / "one")
    config = json.loads((tmp_path / "one/config.json").read_text())
    config["store"] = str(tmp_path / "gone")
    (tmp_path / "one/config.json").write_text(json.dumps(config))
    said = []
    found = evaluate(tmp_path / "one", table=case.new, store=case.at / "store", say=said.append)
    assert "table" not in found["baselines"]["ridge"]
    assert "table" in found["baselines"]["antigen_mean"]
    assert any(line.startswith("the ridge baseline is left out") for line in said)


@pytest.mark.parametrize("name", ["one", "folds"])
def test_pairs_in_the_training_set_are_counted(case, name):
    split = pd.read_parquet(case.at / name / "splits.parquet")
    known = split[split["split"] == "train"].drop_duplicates(["antibody_key", "antigen_key"])
    both = pd.concat([case.frame, case.new], ignore_index=True)
    found, said = run_evaluate(case, name, table=both)
    assert "say nothing about new pairs" in said[-1]
    counted = found["table"]["in_training"]
    assert counted["pair"] == len(known)
    assert counted["antibody"] == len(case.frame)
    assert counted["antigen"] == len(both)


def test_labels_are_read_with_the_options_of_the_run(case):
    molar = case.frame.assign(pKd=10 ** (9 - case.frame["pKd"]))
    abag.fit(molar, case.at / "store", case.at / "molar", **QUICK | {"label": "kd_nm"})
    new = case.new.assign(pKd=10 ** (9 - case.new["pKd"]))
    twice = pd.concat([new, new.assign(pKd=new["pKd"] * 4)])
    found, _ = run_evaluate(case, "molar", table=twice)
    assert found["table"]["pairs"] == len(new)
    assert found["metrics"]["table"]["mae"] < 5


def test_bad_rows_are_refused_or_skipped_and_reported(case):
    table = pd.DataFrame(
        {"antibody": case.new["heavy"] + "|", "antigen": case.new["antigen"], "pKd": 8.0}
    )
    table.loc[2, "antibody"] = HEAVY + HEAVY + LIGHT
    table["pKd"] = table["pKd"].astype(object)
    table.loc[4, "pKd"] = "unknown"
    with pytest.raises(UnsureDomains, match=r"row 3, .* heavy \+ heavy \+ light"):
        run_evaluate(case, table=table)
    summary, said = run_evaluate(case, table=table, bad_rows="skip")
    assert summary["table"]["pairs"] == len(table) - 2
    assert "1 bad row skipped" in said[0]
    table = table.drop(4).assign(pkd_predicted=8.0)
    with pytest.raises(UnsureDomains):
        run_evaluate(case, predictions=table)
    with pytest.raises(PredictionsMismatch, match="not in the run"):
        run_evaluate(case, predictions=table, bad_rows="skip")


def test_a_table_without_vectors_is_refused_with_what_to_do(case):
    with pytest.raises(abag.AbagError, match=r"5 of 5 antibody .* abag embed"):
        run_evaluate(case, table=pairs_table(5, seed=2))


def test_rows_of_the_affinity_type_of_the_run_are_scored(case):
    name, typed = "typed", case.frame.assign(affinity_type="kd")
    options = QUICK | {"affinity_type": "kd"}
    abag.fit(typed, case.at / "store", case.at / name, **options)
    mixed = case.new.assign(affinity_type=["kd", "elisa"] * 15)
    assert run_evaluate(case, name, table=mixed)[0]["table"]["pairs"] == 15
    other, _ = run_evaluate(case, name, table=mixed.head(9), affinity_type="elisa")
    assert other["table"]["pairs"] == 4
    _, said = run_evaluate(case, name, table=case.new)
    assert any("used as 'kd'" in line for line in said)


# ---- anyone's predictions ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one", "folds"])
@pytest.mark.parametrize("part", [None, "test"])
def test_the_predictions_of_the_run_given_as_a_file_get_the_same_scores(case, tmp_path, name, part):
    path = tmp_path / "theirs.csv"
    own_predictions(case, name, part).sample(frac=1, random_state=0).to_csv(path, index=False)
    found, said = run_evaluate(case, name, predictions=path)
    theirs, ours = found["predictions"]["test"], found["metrics"]["test"]
    assert theirs == pytest.approx(ours)
    assert found["predictions"]["validation"]["rmse"] == (
        None if part else pytest.approx(found["metrics"]["validation"]["rmse"])
    )
    assert found["predictions"]["head_minus_predictions"]["rmse"]["difference"] == pytest.approx(0)
    assert "theirs.csv" in said[0]


def test_perfect_predictions_are_better_than_the_head(case):
    perfect = case.frame.rename(columns={"pKd": "prediction"})
    found, _ = run_evaluate(case, predictions=perfect)
    gap = found["predictions"]["head_minus_predictions"]["spearman"]
    assert found["predictions"]["test"]["rmse"] == 0
    assert gap["high"] < 0
    assert any("is worse than" in line for line in found["predictions"]["verdicts"])


def test_folds_are_scored_separately_and_never_pooled(case):
    saved = pd.read_parquet(case.at / "folds" / "predictions.parquet")
    shifted = own_predictions(case, "folds").assign(
        pkd_predicted=lambda f: f["pkd_predicted"] + 100 * f["fold"]
    )
    found, _ = run_evaluate(case, "folds", predictions=shifted)
    by_hand = [
        ranking.spearman(rows["pkd"].to_numpy(), rows["pkd_predicted"].to_numpy())
        for _, rows in saved[saved["split"] == "test"].groupby("fold")
    ]
    assert found["predictions"]["test"]["spearman"] == pytest.approx(np.mean(by_hand))
    assert found["predictions"]["cv"]["spearman"]["n"] == 6


def test_one_prediction_per_pair_is_used_in_all_folds(case):
    perfect = case.frame.rename(columns={"pKd": "prediction"})
    found, _ = run_evaluate(case, "folds", predictions=perfect)
    assert found["predictions"]["cv"]["rmse"] == {"mean": 0, "sd": 0, "n": 6}


def test_missing_and_unknown_rows_are_refused_with_their_counts(case):
    theirs = own_predictions(case, part="test")
    more = pd.concat([theirs, case.new.head(4).assign(pkd_predicted=7.0)], ignore_index=True)
    with pytest.raises(PredictionsMismatch, match=r"for 3 of .* test rows, and 0 pairs are not"):
        run_evaluate(case, predictions=theirs.iloc[3:])
    with pytest.raises(PredictionsMismatch, match=r"for 0 of .* test rows, and 4 pairs are not"):
        run_evaluate(case, predictions=more)


def test_rows_of_an_unknown_fold_are_refused(case):
    theirs = own_predictions(case, "folds").assign(fold=lambda f: f["fold"] + 0.5)
    with pytest.raises(PredictionsMismatch, match="antigen and fold"):
        run_evaluate(case, "folds", predictions=theirs.drop_duplicates(["heavy", "antigen"]))


def test_different_predictions_of_a_pair_are_refused_but_repeated_rows_are_not(case):
    theirs = own_predictions(case)
    repeated = pd.concat([theirs, theirs.head(5)], ignore_index=True)
    repeated.loc[0, "pkd_predicted"] += 1e-6  # as predict rounds rows of the same pair
    run_evaluate(case, predictions=repeated)
    repeated.loc[0, "pkd_predicted"] += 1
    with pytest.raises(
        PredictionsMismatch, match=r"more than one prediction for the same pair \(1 extra rows\)"
    ):
        run_evaluate(case, predictions=repeated)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(np.nan, r"an empty cell \(or NA\)"), (np.inf, "inf"), ("strong", "'strong'"), ("", "''")],
)
def test_an_invalid_prediction_is_refused_with_its_row(case, value, shown):
    theirs = own_predictions(case).astype({"pkd_predicted": object})
    theirs.loc[1, "pkd_predicted"] = value
    message = f"row 2, column pkd_predicted: {shown} is not a valid prediction.*1 such rows"
    with pytest.raises(PredictionsMismatch, match=message):
        run_evaluate(case, predictions=theirs)


def test_an_ambiguous_prediction_column_must_be_named(case):
    theirs = own_predictions(case)
    with pytest.raises(MissingColumn, match="--column prediction=NAME"):
        run_evaluate(case, predictions=theirs.rename(columns={"pkd_predicted": "mine"}))
    two = theirs.assign(prediction=0.0)
    with pytest.raises(AmbiguousColumn, match="--column prediction=NAME"):
        run_evaluate(case, predictions=two)
    found, _ = run_evaluate(case, predictions=two, columns={"prediction": "prediction"})
    assert found["predictions"]["test"]["spearman"] is None


@pytest.mark.parametrize(
    "options",
    [
        {"table": "a.csv", "predictions": "b.csv"},
        {"store": "store"},
        {"store": "store", "predictions": "b.csv"},
        {"affinity_type": "kd"},
        {"columns": {"heavy": "VH"}},
    ],
)
def test_inputs_that_would_not_be_used_are_refused(case, options):
    with pytest.raises(NothingToEvaluate, match="TABLE"):
        run_evaluate(case, **options)
