"""Strong binders: precision, recall, cut-offs and p_strong, against plain counts."""

import json
import re

import invoke
import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from heads import demo_table
from scipy.stats import norm
from sklearn.metrics import average_precision_score

import abag
from abag import OptionError
from abag.head.evaluation.verdicts import describe_strong, page_of, score_strong
from abag.head.labels.headers import PKD, Quantity

REGIME = [{"regime": "known", "words": "known pairs"}]


def drawn(pairs=2_000, folds=5, sigma=0.7, seed=0):
    rng = np.random.default_rng(seed)
    predicted = rng.normal(8, 1, pairs)
    return pd.DataFrame(
        {
            "regime": "known",
            "fold": np.arange(pairs) % folds,
            "group": np.arange(pairs) % 97,
            "pkd": predicted + rng.normal(0, sigma, pairs),
            "censored": 0,
            "pkd_predicted": predicted,
            "sigma": sigma,
        }
    )


def test_precision_recall_and_prevalence_are_plain_counts():
    rows = drawn()
    (regime,) = score_strong(rows, REGIME, 9.0)["regimes"]
    strong = rows["pkd"] >= 9
    picked = rows["pkd_predicted"] >= 9
    assert (regime["n"], regime["strong"]) == (len(rows), strong.sum())
    assert regime["prevalence"] == pytest.approx(strong.mean())
    assert regime["at_threshold"]["precision"] == pytest.approx(strong[picked].mean())
    assert regime["at_threshold"]["recall"] == pytest.approx(picked[strong].mean())
    expected = average_precision_score(strong, rows["pkd_predicted"])
    assert regime["average_precision"] == pytest.approx(expected)
    recall, precision = np.array(regime["curve"]).T
    assert (np.diff(recall) >= 0).all()
    assert ((precision >= 0) & (precision <= 1)).all()


def test_a_calibrated_sigma_gives_calibrated_probabilities():
    rows = drawn(20_000)
    (regime,) = score_strong(rows, REGIME, 9.0)["regimes"]
    p = norm.sf(9.0, rows["pkd_predicted"], rows["sigma"])
    assert regime["expected"] == pytest.approx(p.sum())
    assert sum(part["pairs"] for part in regime["calibration"]) == len(rows)
    for part in regime["calibration"]:
        assert part["low"] <= part["expected"] <= part["high"]
        assert part["strong"] == pytest.approx(part["expected"], abs=0.05)


@pytest.mark.parametrize("folds", [1, 5])
def test_cutoffs_reach_about_what_was_wanted_on_pairs_that_did_not_choose_them(folds):
    rows = drawn(20_000, folds)
    (regime,) = score_strong(rows, REGIME, 9.0)["regimes"]
    assert {cut["wanted"] for cut in regime["cutoffs"]} == {"precision", "recall"}
    for cut in regime["cutoffs"]:
        assert cut[cut["wanted"]] == pytest.approx(cut["level"], abs=0.03)
        picked = rows["pkd_predicted"] >= cut["cutoff"]
        strong = rows["pkd"] >= 9
        reached = {"precision": strong[picked].mean(), "recall": picked[strong].mean()}
        assert reached[cut["wanted"]] == pytest.approx(cut["level"], abs=0.03)


def test_what_is_promised_of_cutoffs_is_what_new_pairs_show():
    new = drawn(20_000, seed=99)
    is_strong = new["pkd"] >= 9
    errors = {}
    held = []
    for seed in range(40):
        (regime,) = score_strong(drawn(150, 5, seed=seed), REGIME, 9.0)["regimes"]
        for cut in regime["cutoffs"]:
            wanted = cut["wanted"]
            picked = new["pkd_predicted"] >= cut["cutoff"]
            true = {"precision": is_strong[picked].mean(), "recall": picked[is_strong].mean()}
            error = cut[wanted] - true[wanted]
            errors.setdefault((wanted, cut["level"]), []).append(error)
            low, high = cut["interval"]
            assert low < cut[wanted] < high
            held.append(low <= true[wanted] <= high)
            assert cut["level"] <= cut[wanted]  # by which it was chosen
    assert len(errors) == 4
    for of_cutoff in errors.values():
        assert abs(np.mean(of_cutoff)) < 0.04
        assert np.sqrt(np.mean(np.square(of_cutoff))) < 0.08
    assert np.mean(held) >= 0.95


def test_a_precision_that_few_pairs_reach_by_chance_has_no_cutoff():
    rows = drawn(60).assign(pkd_predicted=8.0)
    rows.loc[:2, ["pkd_predicted", "pkd"]] = (8.3, 9.2)  # three of three, and p_strong is .16
    scores = score_strong(rows, REGIME, 9.0)
    (regime,) = scores["regimes"]
    (cut,) = (cut for cut in regime["cutoffs"] if cut["level"] == 0.8 and cut["wanted"] != "recall")
    assert (cut["cutoff"], cut["picked"], cut["precision"], cut["interval"]) == (
        None,
        0,
        None,
        None,
    )
    lines = describe_strong(scores, PKD)
    (line,) = (line for line in lines if line.startswith("a precision of 80%"))
    assert line.split()[-4:] == ["-", "0", "-", "-"]


def test_censored_pairs_count_where_they_are_decided():
    rows = drawn(6).assign(
        pkd=[9.5, 8.0, 9.2, 8.5, 9.5, 7.0], censored=[1, 1, -1, -1, 0, 0]
    )  # above 9.5, above 8 (unknown), below 9.2 (unknown), below 8.5
    (regime,) = score_strong(rows, REGIME, 9.0)["regimes"]
    assert (regime["n"], regime["strong"]) == (4, 2)


def test_without_strong_binders_nothing_is_claimed():
    scores = score_strong(drawn(50), REGIME, 14.0)
    (regime,) = scores["regimes"]
    assert regime["strong"] == 0
    assert regime["curve"] == []
    assert regime["at_threshold"]["recall"] is None
    assert "0 of 50 pairs are strong (prevalence 0%)" in "\n".join(describe_strong(scores, PKD))


def test_strong_binders_are_described_in_tables_of_80_columns():
    rows = drawn(2_000, 5)
    lines = describe_strong(score_strong(rows, REGIME, 9.0), PKD)
    picked = rows["pkd_predicted"] >= 9
    assert max(map(len, lines)) <= 80
    (cut_off,) = (line for line in lines if line.startswith("none: the threshold itself"))
    assert cut_off.split()[-4:-2] == ["9.00", f"{picked.sum():,}"]
    assert "those expected of new pairs, with" in lines[-2]
    (cut_off,) = (line for line in lines if line.startswith("a precision of 80%"))
    assert re.search(r"\d\d% \[\d\d%, \d\d%\]", cut_off)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_cutoff_that_fails_on_other_pairs_does_not_stand_for_what_was_wanted(sign):
    quantity = PKD if sign > 0 else Quantity(name="Tm", better="lower", affinity=False)
    rows = drawn(2_000)
    # cut-offs are too low
    chosen_on = rows.assign(pkd_predicted=rows["pkd_predicted"] - 1.5, group=np.arange(len(rows)))
    if sign < 0:
        rows = rows.assign(pkd=-rows["pkd"], pkd_predicted=-rows["pkd_predicted"])
        chosen_on = chosen_on.assign(
            pkd=-chosen_on["pkd"], pkd_predicted=-chosen_on["pkd_predicted"]
        )
    of_run = [REGIME[0] | {"rmse": 1.0, "intervals": {}}]
    scores = score_strong(
        rows,
        REGIME,
        9.0 * sign,
        (chosen_on, of_run),
        quantity=Quantity(better="higher" if sign > 0 else "lower"),
    )
    (regime,) = scores["regimes"]
    found = {(cut["wanted"], cut["level"]): cut for cut in regime["cutoffs"]}
    assert found["precision", 0.8]["precision"] < 0.7
    assert found["recall", 0.8]["recall"] > 0.9
    cells = {row[0]: row[3:] for row in page_of(scores, quantity)["regimes"][0]["rows"]}
    precision, _ = cells["a precision of 80%"]
    assert precision == f"{found['precision', 0.8]['precision']:.0%} (not 80%)"
    assert not any("not" in cell for cell in cells["a recall of 80%"])
    assert sum("(not 80%)" in line for line in describe_strong(scores, quantity)) == 1


def test_a_threshold_that_is_no_number_cannot_select():
    assert abag.FitConfig(head="mlp", select="recall_at_8.5").select == "recall_at_8.5"
    with pytest.raises(OptionError, match="recall_at_high"):
        abag.FitConfig(head="mlp", select="recall_at_high")


def test_a_run_has_the_metrics_of_the_threshold_that_selects_by_its_own_name(run):
    options = {"head": "mlp", "widths": (8,), "epochs": 2, "split": "random", "folds": 2}
    said = []
    summary = abag.fit(
        run / "pairs.csv",
        run / "store",
        run / "at-6.5",
        say=said.append,
        verbose=True,
        select="recall_at_6.50",
        report=False,
        **options,
    )
    assert any("validation recall at 6.50 " in line for line in said)
    lines = (run / "at-6.5" / "metrics.jsonl").read_text().splitlines()
    assert all("recall_at_6.50" in json.loads(line)["validation"] for line in lines)
    tested = pd.read_parquet(run / "at-6.5" / "predictions.parquet")
    metrics = summary["regimes"][0]["metrics"]["head"]
    for threshold in (6.5, 9):
        hits = (tested["pkd"] >= threshold) & (tested["pkd_predicted"] >= threshold)
        for name, column in (("recall", "pkd"), ("precision", "pkd_predicted")):
            chosen = tested[column] >= threshold
            folds = hits[chosen].groupby(tested["fold"][chosen]).mean()
            expected = folds.mean() if len(folds) else None
            assert metrics[f"{name}_at_{threshold:g}"] == pytest.approx(expected)
    assert metrics["recall_at_6.5"] != metrics["recall_at_9"]
    assert summary["strong"]["threshold"] == 6.5


def test_evaluate_scores_another_table_at_the_threshold_that_is_asked_for(run):
    metrics = abag.evaluate(run / "run", table=run / "pairs.csv", strong=7.25)["table"]["metrics"]
    (regime,) = abag.evaluate(run / "run", table=run / "pairs.csv", strong=7.25)["strong_at"][
        "regimes"
    ]
    assert metrics["recall_at_7.25"] == pytest.approx(regime["at_threshold"]["recall"])
    assert metrics["precision_at_7.25"] == pytest.approx(regime["at_threshold"]["precision"])
    assert "recall_at_9" in metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    at = tmp_path_factory.mktemp("strong")
    demo_table().head(240).to_csv(at / "pairs.csv", index=False)
    abag.embed_table(at / "pairs.csv", at / "store", **COMPOSITION)
    abag.fit(at / "pairs.csv", at / "store", at / "run", head="ridge", split="random")
    return at


def test_evaluate_says_how_strong_binders_are_found(run):
    done = invoke.run("evaluate", "--run", run / "run", "--strong", "8")
    assert "Strong binders: pKd >= 8" in done.stdout
    assert re.search("precision +recall", done.stdout)  # recall never stands alone
    assert "prevalence" in done.stdout
    arguments = ["evaluate", run / "pairs.csv", "--run", run / "run", "--strong", "8"]
    assert "precision and recall are of these pairs." in invoke.run(*arguments).stdout
    printed = json.loads(invoke.run(*arguments, "--json").stdout)
    summary = json.loads((run / "run" / "summary.json").read_text())
    assert printed["strong"] == summary["strong"]
    assert printed["strong_at"]["threshold"] == 8.0
    assert sum(regime["n"] for regime in printed["strong_at"]["regimes"]) > 0
    cut, chosen = (
        strong_at["regimes"][0]["cutoffs"][0]["cutoff"]
        for strong_at in (printed["strong_at"], abag.evaluate(run / "run", strong=8)["strong_at"])
    )
    assert cut == chosen  # chosen on the out-of-fold pairs of the run


def test_the_report_shows_the_curve_cutoffs_and_calibration(run):
    page = (run / "run" / "report.html").read_text()
    assert "<h2>Strong binders: pKd of 9 or more</h2>" in page
    assert "p_strong" in page
    assert "cut-off (predicted pKd)" in page
