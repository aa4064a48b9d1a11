"""Campaigns: results of an order join the measured pairs of an earlier run, round by round."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from invoke import draw, needs_chromium
from invoke import run as run_command
from trastuzumab import HEAVY, LIGHT

import abag
from abag import DamagedFile
from abag.head.design.batches import known_errors
from abag.head.labels.headers import PKD
from abag.head.runs.run_folder import describe_fit

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
ANTIGEN = "TQVCTGTDMKLRLPASPETHLDMLRHLYQGCQVVQGNLELTYLPTNASLSFLQ"


def variants(number):
    """Return variants of one antibody with labels that their residues decide."""
    rng = np.random.default_rng(0)
    rows = []
    for n in range(number):
        first, second = rng.integers(20, size=2)
        heavy = HEAVY[:54] + RESIDUES[first] + RESIDUES[second] + HEAVY[56:]
        rows.append((f"clone-{n}", heavy, LIGHT, round(6 + first / 10 + second / 20, 3)))
    frame = pd.DataFrame(rows, columns=["clone", "VH", "VL", "Kd (nM)"])
    frame["Kd (nM)"] = 10 ** (9 - frame["Kd (nM)"])
    return frame.drop_duplicates("VH").reset_index(drop=True)


def fit_first(table, store, run, **options):
    """Fit the first round of a campaign."""
    options = {"antigen": ANTIGEN, "head": "one_hot_ridge", "report": False} | options
    return abag.fit(table, store, run, **options)


def add_round(case, run, table, **options):
    """Fit a round that joins a run of a case, ``r1`` unless `add` names another."""
    options = {"add": str(case / "r1"), "report": False} | options
    return abag.fit(table, None, run, **options)


def begin_campaign(folder, frame, label, embed_options, **options):
    """Fit the first round, and let rank choose an order of the others, not measured yet."""
    frame.head(40).to_csv(folder / "pairs.csv", index=False)
    frame.iloc[40:].drop(columns=label).to_csv(folder / "others.csv", index=False)
    abag.embed_table(frame, folder / "store", **embed_options)
    fit_first(folder / "pairs.csv", folder / "store", folder / "r1", **options)
    abag.predict(folder / "others.csv", folder / "r1", folder / "scored.csv")
    chosen = {"run": folder / "r1", "batch": 8, "keep_far": True}
    abag.rank(folder / "scored.csv", folder / "order.csv", **chosen)
    return folder


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A campaign whose first round is fitted, and whose order is not measured yet."""
    folder = tmp_path_factory.mktemp("campaign")
    options = {"antigen": ANTIGEN, **COMPOSITION}
    return begin_campaign(folder, variants(90), "Kd (nM)", options)


def measured(case, name="our result", factor=1.0):
    """Return the order with the results that the laboratory found, in a column of any name."""
    order = pd.read_csv(case / "order.csv")
    truth = variants(90).set_index("clone")["Kd (nM)"]
    return order.assign(**{name: truth.loc[order["clone"]].to_numpy() * factor})


@pytest.fixture(scope="module")
def second(case):
    measured(case).to_csv(case / "back.csv", index=False)
    return abag.fit(case / "back.csv", None, case / "r2", add=str(case / "r1"))


def test_an_order_that_comes_back_starts_the_next_run_with_all_pairs(case, second):
    pairs = pd.read_parquet(case / "r2" / "pairs.parquet")
    back = measured(case)
    assert pairs["round"].value_counts().to_dict() == {0: 40, 1: 8}
    of_round = pairs[pairs["round"] == 1].set_index("antibody_name")["pkd"]
    expected = 9 - np.log10(back.set_index("clone")["our result"])
    assert of_round.loc[expected.index].tolist() == pytest.approx(expected.tolist())
    assert second["data"]["pairs"] == 48
    config = json.loads((case / "r2" / "config.json").read_text())
    assert (config["head"], config["antigen"]) == ("one_hot_ridge", ANTIGEN)


def test_the_next_run_equals_a_fit_of_both_tables_in_one(case, second, tmp_path):
    back = measured(case, "Kd (nM)")[["clone", "VH", "VL", "Kd (nM)"]]
    both = pd.concat([pd.read_csv(case / "pairs.csv"), back])
    both.to_csv(tmp_path / "both.csv", index=False)
    whole = fit_first(tmp_path / "both.csv", case / "store", tmp_path / "run")
    for regime, other in zip(second["regimes"], whole["regimes"], strict=True):
        assert regime["rmse"] == pytest.approx(other["rmse"], rel=1e-6)


def test_a_split_file_of_all_rounds_is_used_whatever_the_folds_of_the_first(case, second, tmp_path):
    fit_first(case / "pairs.csv", case / "store", tmp_path / "r1", split="random", folds=2)
    split = f"file={case / 'r2/splits.parquet'}"
    add_round(case, tmp_path / "r2", case / "back.csv", add=str(tmp_path / "r1"), split=split)
    folds, expected = (pd.read_parquet(at / "r2/splits.parquet")["fold"] for at in (tmp_path, case))
    assert folds.nunique() == expected.nunique() > 2


def test_each_round_says_what_it_brought_and_what_was_promised(case, second):
    first, last = second["rounds"]
    start = 9 - np.log10(pd.read_csv(case / "pairs.csv")["Kd (nM)"])
    batch = 9 - np.log10(measured(case)["our result"])
    assert first["best_so_far"] == pytest.approx(start.max())
    assert (last["pairs"], last["better"]) == (8, int((batch > start.max()).sum()))
    assert last["best"] == pytest.approx(batch.max())
    order = pd.read_csv(case / "order.csv")
    promised = order["expected_best"].max() if "expected_best" in order else None
    assert last["expected_best"] == promised


def test_a_header_with_another_unit_is_read_in_that_unit(case, tmp_path):
    measured(case, "KD (M)", factor=1e-9).to_csv(tmp_path / "back.csv", index=False)
    add_round(case, tmp_path / "r2", tmp_path / "back.csv")
    pairs = pd.read_parquet(tmp_path / "r2" / "pairs.parquet")
    assert pairs.loc[pairs["round"] == 1, "pkd"].between(6, 9).all()


def test_the_same_results_twice_are_refused_and_a_third_round_counts_on(case, second, tmp_path):
    with pytest.raises(abag.AbagError, match="all 8 measurements are in the earlier run"):
        abag.fit(case / "back.csv", None, tmp_path / "r3", add=str(case / "r2"))
    assert not (tmp_path / "r3").exists()
    frame = variants(90)
    left = frame[~frame["clone"].isin(measured(case)["clone"])].iloc[40:46]
    left.to_csv(tmp_path / "third.csv", index=False)
    third = abag.fit(tmp_path / "third.csv", None, tmp_path / "r3", add=str(case / "r2"))
    assert [entry["pairs"] for entry in third["rounds"]] == [40, 8, 6]
    assert "Rounds" in (tmp_path / "r3" / "report.html").read_text()


@pytest.mark.parametrize("written", ["{:.3g}", "{:.2f}"])
def test_a_table_of_all_results_may_have_earlier_ones_in_another_unit(
    case, tmp_path, said, written
):
    every = pd.concat([pd.read_csv(case / "pairs.csv"), measured(case, "Kd (nM)")])
    molar = every.pop("Kd (nM)")
    every["pKd"] = [written.format(9 - np.log10(value)) for value in molar]
    if written == "{:.3g}":
        every["Kd (M)"] = [written.format(value * 1e-9) for value in molar]
        del every["pKd"]
    every = every[["clone", "VH", "VL", every.columns[-1]]]
    summary = add_round(case, tmp_path / "run", every)
    assert any(": 40 measurements of earlier rounds, with the same" in line for line in said)
    assert [entry["pairs"] for entry in summary["rounds"]] == [40, 8]
    assert len(pd.read_parquet(tmp_path / "run/measured.parquet")) == 48


def test_a_replicate_that_agrees_well_by_chance_is_not_taken_for_an_earlier_label(case, tmp_path):
    controls = pd.read_csv(case / "pairs.csv").head(2)
    controls["Kd (nM)"] *= [1.01, 1.5]  # 0.004 and 0.18 pKd
    new = pd.concat([measured(case, "Kd (nM)"), controls])[["clone", "VH", "VL", "Kd (nM)"]]
    add_round(case, tmp_path / "run", new)
    assert len(pd.read_parquet(tmp_path / "run/measured.parquet")) == 40 + 8 + 2


@pytest.mark.parametrize("problem", ["label", "name"])
def test_rounds_that_contradict_each_other_are_listed_and_nothing_is_written(
    case, tmp_path, problem
):
    back = measured(case)
    earlier = pd.read_csv(case / "pairs.csv").iloc[3]
    if problem == "label":
        row = {"VH": earlier["VH"], "our result": earlier["Kd (nM)"] * 50}
        back.loc[2, [*row]] = [*row.values()]
        text = r"row 4: pKd .*, but .* in round 0 for the same pair \(row 5 there\)"
    else:
        back.loc[2, "clone"] = earlier["clone"]
        text = "row 4: 'clone-3' is another antibody in round 0"
    back.to_csv(tmp_path / "back.csv", index=False)
    with pytest.raises(abag.AbagError, match=text):
        add_round(case, tmp_path / "r2", tmp_path / "back.csv")
    assert not (tmp_path / "r2").exists()


@pytest.mark.ci
def test_a_name_of_many_variants_is_of_their_parent_and_contradicts_nothing(case, tmp_path):
    pairs = pd.read_csv(case / "pairs.csv").assign(clone="trastuzumab")
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    fit_first(tmp_path / "pairs.csv", case / "store", tmp_path / "r1")
    back = measured(case).assign(clone="trastuzumab")
    summary = add_round(tmp_path, tmp_path / "r2", back)
    assert summary["data"]["pairs"] == 48


def test_rows_without_results_are_skipped_if_asked_and_listed(case, tmp_path):
    back = measured(case)
    back.loc[1, "our result"] = np.nan
    back.to_csv(tmp_path / "back.csv", index=False)
    with pytest.raises(abag.AbagError, match="row 3"):
        add_round(case, tmp_path / "r2", tmp_path / "back.csv")
    options = {"bad_rows": "skip", "skipped": tmp_path / "skipped.csv"}
    summary = add_round(case, tmp_path / "r2", tmp_path / "back.csv", **options)
    assert [entry["pairs"] for entry in summary["rounds"]] == [40, 7]
    assert len(pd.read_csv(tmp_path / "skipped.csv")) == 1


@pytest.mark.parametrize("rounds", [[{"round": 0}], "many", [None]])
def test_damaged_rounds_in_a_summary_are_named_and_crash_nothing(case, second, tmp_path, rounds):
    shutil.copytree(case / "r2", tmp_path / "r2")
    path = tmp_path / "r2" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rounds": rounds}))
    (state,) = abag.runs(tmp_path / "r2")["runs"]
    assert state["state"] == "unreadable"
    with pytest.raises(abag.AbagError, match=r"summary\.json"):
        abag.fit(case / "back.csv", case / "store", tmp_path / "r3", add=str(tmp_path / "r2"))


@pytest.mark.ci
def test_what_was_expected_is_of_the_pairs_that_came_back(case, tmp_path):
    order = measured(case)
    some = order.iloc[[1, 4, 6]]
    # in any order of the rows
    some.iloc[[2, 0, 1]].to_csv(tmp_path / "some.csv", index=False)
    entry = add_round(case, tmp_path / "r2", tmp_path / "some.csv")["rounds"][1]
    mean, sigma = (some[name].to_numpy() for name in ("pkd_predicted", "sigma"))
    known = known_errors(case / "r1", {*some["regime"]}, PKD)
    of_some = known.expect(mean, sigma, np.arange(3), np.zeros(3, int))
    assert entry["expected_best"] == pytest.approx(of_some.best_of_first[-1], abs=1e-6)
    assert entry["expected_best"] < order["expected_best"].max()
    forged = order.assign(expected_best=np.inf)
    forged.to_csv(tmp_path / "forged.csv", index=False)
    entry = add_round(case, tmp_path / "r3", tmp_path / "forged.csv")["rounds"][1]
    assert entry["expected_best"] is None


@pytest.mark.ci
@pytest.mark.parametrize("written", [{}, {"sep": ";", "decimal": ","}], ids=["", "german"])
def test_replicates_of_an_order_are_one_measurement_of_what_was_expected(case, tmp_path, written):
    order = measured(case)
    shifted = order.assign(**{"our result": order["our result"] * 1.5})
    pd.concat([order, shifted]).to_csv(tmp_path / "twice.csv", index=False, **written)
    entry = add_round(case, tmp_path / "r2", tmp_path / "twice.csv")["rounds"][1]
    assert entry["expected_best"] == pytest.approx(order["expected_best"].max())
    pkd = 9 - np.log10(order["our result"] * np.sqrt(1.5))
    assert entry["errors"]["pairs"] == len(order)
    bias = (order["pkd_predicted"] - pkd).mean()
    assert entry["errors"]["bias"] == pytest.approx(bias, abs=1e-3)


@pytest.fixture(scope="module")
def selected(case):
    """Return the run of a second round of 24 pairs, of which rank predicted more than there is."""
    scored = pd.read_csv(case / "scored.csv").nlargest(24, "pkd_predicted")
    scored["pkd_predicted"] += 0.5
    truth = variants(90).set_index("clone")["Kd (nM)"]
    results = truth.loc[scored["clone"]].to_numpy()
    scored = scored.assign(rank=np.arange(1, 25), **{"our result": results})
    scored.to_csv(case / "selected.csv", index=False)
    summary = add_round(case, case / "selected", case / "selected.csv")
    return scored, summary


def test_what_was_expected_of_a_round_is_of_its_own_results_in_a_table_of_all(
    case, second, tmp_path
):
    options = {"run": case / "r2", "batch": 6, "keep_far": True, "say": False}
    abag.predict(case / "others.csv", case / "r2", tmp_path / "scored.csv")
    order = abag.rank(pd.read_csv(tmp_path / "scored.csv"), **options)
    truth = variants(90).set_index("clone")["Kd (nM)"]
    third = order.assign(**{"our result": truth.loc[order["clone"]].to_numpy()})
    both = pd.concat([pd.read_csv(case / "back.csv"), third])
    add = {"add": str(case / "r2")}
    alone = add_round(case, tmp_path / "alone", third, **add)["rounds"]
    together = add_round(case, tmp_path / "both", both, **add)["rounds"]
    assert together == alone
    assert alone[2]["expected_best"] == pytest.approx(order["expected_best"].max())


def test_the_first_round_and_selected_ones_are_scored_apart(case, selected):
    _, summary = selected
    rows = pd.read_parquet(case / "selected" / "predictions.parquet")
    rows["round"] = pd.read_parquet(case / "selected" / "pairs.parquet")["round"][
        rows["pair"]
    ].array
    regime = next(regime for regime in summary["regimes"] if "by_round" in regime)
    tested = rows[rows["regime"] == regime["regime"]]
    for is_later, score in enumerate(regime["by_round"]):
        inside = tested[(tested["round"] > 0) == is_later]
        error = inside["pkd_predicted"] - inside["pkd"]
        assert score["n"] == inside["pair"].nunique()
        assert score["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    first, later = (f"{score['rmse']:.2f} pKd, Spear" for score in regime["by_round"])
    shown = describe_fit(summary)
    line = next(line for line in shown.splitlines() if "; later rounds: RMSE" in line)
    assert line.startswith(f"{regime['words']}: round 0: RMSE {first}")
    assert f"; later rounds: RMSE {later}" in line
    assert "such as the next batch" in shown
    assert abag.evaluate(case / "selected")["regimes"] == summary["regimes"]


@pytest.mark.ci
def test_a_round_has_the_errors_of_the_predictions_that_chose_it(case, selected):
    scored, summary = selected
    first, last = summary["rounds"]
    error = scored["pkd_predicted"] - (9 - np.log10(scored["our result"]))
    assert first["errors"] is None
    assert last["errors"] == {
        "pairs": 24,
        "rmse": pytest.approx(np.sqrt(np.mean(error**2)), abs=1e-4),
        "bias": pytest.approx(error.mean(), abs=1e-4),
        "sigma": pytest.approx(np.sqrt(np.mean(scored["sigma"] ** 2)), abs=1e-4),
    }
    line = f"before they were measured: round 1: RMSE {last['errors']['rmse']:.2f} (sigma"
    assert line in describe_fit(summary)
    order = {"run": case / "selected", "batch": 4, "keep_far": True, "say": (said := []).append}
    abag.rank(case / "scored.csv", case / "next.csv", **order)
    assert any(line in text for text in said)
    third = variants(90).iloc[80:].assign(pkd_predicted="?", sigma=1)
    third.to_csv(case / "third.csv", index=False)
    options = {"add": str(case / "selected"), "report": False}
    rounds = abag.fit(case / "third.csv", None, case / "third", **options)["rounds"]
    assert [entry["errors"] for entry in rounds] == [None, last["errors"], None]


def test_bounds_that_the_predictions_of_a_batch_are_beyond_are_counted(case, tmp_path):
    back = measured(case).assign(**{"our result": lambda t: t["our result"].astype(str)})
    back.loc[[1, 2], "our result"] = ">1e6"  # weaker than was predicted
    back.loc[3, "our result"] = "<1e6"
    others = variants(90).iloc[40:].rename(columns={"Kd (nM)": "our result"})
    control = others[~others["clone"].isin(back["clone"])].head(1)  # which was not predicted
    back = pd.concat([back, back.iloc[[1]], control.astype({"our result": str})])
    summary = add_round(case, tmp_path / "r2", back)
    errors = summary["rounds"][1]["errors"]
    assert (errors["pairs"], errors["missed_bounds"]) == (5, 2)
    assert "of 5 pairs, and 2 bounds on the wrong side of the pred" in describe_fit(summary)


def test_rounds_with_few_pairs_are_not_scored_apart(second):
    assert not any("by_round" in regime for regime in second["regimes"])
    assert "later rounds" not in describe_fit(second)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["our result", "KD [nM]"])
def test_numbers_that_could_be_pkd_as_well_are_said_if_no_header_decides(
    case, tmp_path, said, name
):
    order = measured(case, name)
    order[name] = np.linspace(7.5, 9.1, len(order))
    order.to_csv(tmp_path / "back.csv", index=False)
    add_round(case, tmp_path / "r2", tmp_path / "back.csv")
    line = "column 'our result' states no unit, and all its numbers could be pKd as well"
    assert any(line in text for text in said) == (name == "our result")


def test_a_folder_that_is_no_run_is_named(case, tmp_path):
    for folder in (case, case / "r1/predictor", tmp_path / "none"):
        with pytest.raises(abag.AbagError, match=f"add: {folder} is not a run of abag fit"):
            abag.fit(case / "order.csv", None, tmp_path / "r2", add=str(folder))


def test_the_next_order_has_no_pair_that_an_earlier_round_measured(case, second, tmp_path, said):
    abag.predict(case / "others.csv", case / "r2", tmp_path / "scored.csv", store=case / "store")
    options = {"run": case / "r2", "batch": 8, "keep_far": True}
    abag.rank(tmp_path / "scored.csv", tmp_path / "order.csv", **options)
    again = set(pd.read_csv(tmp_path / "order.csv")["clone"]) & set(measured(case)["clone"])
    assert again == set()
    assert any("left out: 8 already measured" in text for text in said)
    first = {**options, "measured": case / "pairs.csv", "force": True}
    summary = abag.rank(tmp_path / "scored.csv", tmp_path / "order.csv", **first)
    assert summary["left_out"]["measured"] == 8


def test_expected_improvement_is_over_the_best_of_all_rounds_of_the_run(
    case, second, tmp_path, said
):
    abag.predict(case / "others.csv", case / "r2", tmp_path / "scored.csv", store=case / "store")
    options = {"run": case / "r2", "batch": 4, "keep_far": True, "rule": "improvement"}
    summary = abag.rank(tmp_path / "scored.csv", tmp_path / "order.csv", **options)
    labels = [pd.read_csv(case / "pairs.csv")["Kd (nM)"], measured(case)["our result"]]
    assert summary["best_measured"] == pytest.approx(9 - np.log10(pd.concat(labels).min()))
    assert not any(line.startswith("labels: ") for line in said)  # nobody gave --label
    with pytest.raises(abag.AbagError, match="has no measured pairs"):
        abag.rank(
            tmp_path / "scored.csv", tmp_path / "x.csv", **{**options, "run": case / "r2/predictor"}
        )


def test_numbers_of_rows_may_begin_anew_in_each_table(case, tmp_path):
    back = measured(case)
    back["id"] = range(len(back))
    back.to_csv(tmp_path / "back.csv", index=False)
    summary = add_round(case, tmp_path / "r2", tmp_path / "back.csv")
    assert summary["data"]["pairs"] == 48


def test_an_order_without_results_is_refused_in_one_line(case, tmp_path):
    with pytest.raises(abag.AbagError, match=r"order\.csv: no column for pkd"):
        add_round(case, tmp_path / "r2", case / "order.csv")
    assert not (tmp_path / "r2").exists()


def test_yes_and_no_are_not_proposed_as_labels_of_a_run_of_affinities(case, tmp_path):
    order = pd.read_csv(case / "order.csv")
    order.assign(label=["yes", "no"] * (len(order) // 2)).to_csv(tmp_path / "back.csv", index=False)
    for read in (
        lambda: add_round(case, tmp_path / "r2", tmp_path / "back.csv"),
        lambda: abag.evaluate(case / "r1", table=tmp_path / "back.csv"),
    ):
        with pytest.raises(abag.AbagError, match=r"back\.csv: no column for pkd") as refused:
            read()
        assert "binary" not in str(refused.value)


def test_the_run_of_add_is_not_overwritten(case):
    measured(case).to_csv(case / "back.csv", index=False)
    with pytest.raises(abag.AbagError, match="is the run of add"):
        abag.fit(case / "back.csv", None, case / "r1", add=str(case / "r1"))


def test_damaged_measurements_of_a_run_are_refused(case, tmp_path):
    shutil.copytree(case / "r1", tmp_path / "r1")
    frame = pd.read_parquet(tmp_path / "r1" / "measured.parquet")
    frame.assign(pkd=np.nan).to_parquet(tmp_path / "r1" / "measured.parquet", index=False)
    with pytest.raises(DamagedFile, match=r"measured\.parquet: has invalid rows"):
        abag.fit(case / "back.csv", case / "store", tmp_path / "r2", add=str(tmp_path / "r1"))


@pytest.mark.ci
def test_the_command_adds_a_round_and_runs_shows_all_of_them(case, second, tmp_path):
    measured(case).to_csv(case / "back.csv", index=False)
    run_command("fit", case / "back.csv", "--add", case / "r1", "--run", tmp_path / "r2")
    shown = run_command("runs", case / "r1", tmp_path / "r2").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "pairs.csv", "40"] in [line[:3] for line in lines]
    assert ["1", "back.csv", "8"] in [line[:3] for line in lines]


def test_the_report_draws_the_labels_of_each_round_and_the_best_so_far(case, second):
    page = (case / "r2/report.html").read_text()
    drawn = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["campaign"]
    rounds = second["rounds"]
    assert drawn["best"] == pytest.approx([entry["best_so_far"] for entry in rounds], abs=1e-3)
    assert drawn["expected"] == [None, pytest.approx(rounds[1]["expected_best"], abs=1e-3)]
    assert np.bincount(np.round(drawn["round"]).astype(int)).tolist() == [40, 8]
    assert max(drawn["measured"]) == drawn["best"][-1]
    assert page.index('id="campaign"') < page.index('data-csv="rounds-table"')


@pytest.mark.ci
@needs_chromium
def test_an_axis_of_rounds_has_no_halves(case, second, tmp_path):
    drawn = draw(case / "r2/report.html", tmp_path / "profile")
    figure = re.search(r'<figure id="campaign".*?</svg>', drawn, re.DOTALL)[0]
    assert re.findall(r'text-anchor="middle">(-?[\d.]+)<', figure) == ["0", "1"]


# ---- other quantities, and antibodies alone ------------------------------------------------------


@pytest.fixture(scope="module")
def retention(tmp_path_factory):
    """Fit a retention time, of which lower is better, on antibodies alone, and rank the others."""
    folder = tmp_path_factory.mktemp("retention")
    frame = variants(90).rename(columns={"Kd (nM)": "HIC RT (min)"})
    frame["HIC RT (min)"] = np.log10(frame["HIC RT (min)"]) + 10
    options = {"no_antigen": True, "antibody_encoder": "composition"}
    begin_campaign(folder, frame, "HIC RT (min)", options, antigen=None, no_antigen=True)
    order = pd.read_csv(folder / "order.csv")
    order["our result"] = frame.set_index("clone")["HIC RT (min)"].loc[order["clone"]].to_numpy()
    order.to_csv(folder / "back.csv", index=False)
    return folder


def test_rounds_of_a_quantity_of_which_lower_is_better_count_downwards(retention):
    said = []
    options = {"add": str(retention / "r1"), "say": said.append}
    second = abag.fit(retention / "back.csv", None, retention / "r2", **options)
    assert not any("antigen" in line for line in said)  # of antibodies alone
    start = pd.read_csv(retention / "pairs.csv")["HIC RT (min)"]
    order = pd.read_csv(retention / "back.csv")
    first, last = second["rounds"]
    assert first["best_so_far"] == pytest.approx(start.min())
    assert last["best"] == pytest.approx(order["our result"].min())
    assert last["better"] == int((order["our result"] < start.min()).sum())
    if "expected_best" in order:
        assert last["expected_best"] == pytest.approx(order["expected_best"].min())
    kept = pd.read_parquet(retention / "r2" / "measured.parquet")
    assert "pkd" not in kept
    assert kept["measured"].tolist() == pytest.approx([*start, *order["our result"]])
    listed = run_command("runs", retention / "r2").stdout
    assert "HIC RT (min)" in listed
    assert "pKd" not in listed


def test_rank_of_such_a_run_leaves_out_its_measured_pairs_and_knows_the_best(retention, tmp_path):
    everything = variants(90).drop(columns="Kd (nM)")
    everything.to_csv(tmp_path / "all.csv", index=False)
    abag.predict(tmp_path / "all.csv", retention / "r1", tmp_path / "scored.csv")
    abag.rank(
        tmp_path / "scored.csv",
        tmp_path / "order.csv",
        run=retention / "r1",
        batch=8,
        keep_far=True,
        rule="improvement",
    )
    chosen = set(pd.read_csv(tmp_path / "order.csv")["clone"])
    assert chosen.isdisjoint(pd.read_csv(retention / "pairs.csv")["clone"])


@pytest.mark.parametrize(
    ("column", "cells", "options"),
    [
        ("titer", lambda strength: 10 ** (strength - 5), {"better": "higher"}),
        ("dead", lambda strength: (strength < 7).astype(int), {"positive": "0"}),
        (
            "response",
            lambda strength: np.array(["none", "weak", "high"])[np.digitize(strength, [6.7, 7.2])],
            {"classes": ("none", "weak", "high")},
        ),
    ],
)
def test_labels_of_the_first_round_are_not_read_as_cells_again(
    retention, tmp_path, column, cells, options
):
    frame = variants(90).drop(columns="Kd (nM)")
    strength = 9 - np.log10(variants(90)["Kd (nM)"])
    label = cells(strength)
    expected = {
        "titer": strength - 5,
        "dead": (strength >= 7).astype(float),
        "response": np.digitize(strength, [6.7, 7.2]).astype(float),
    }[column]
    frame = frame.assign(**{column: label})
    quick = {"no_antigen": True, "head": "one_hot_ridge", "report": False, "say": lambda _: None}
    abag.fit(
        frame.head(60), retention / "store", tmp_path / "r1", columns={"label": column},
        **quick, **options,
    )  # fmt: skip
    results = frame.iloc[60:].assign(rank=1, score=0.5, plate=3.0)
    if column == "response":  # behind those of rank
        results = results.assign(outcome=results.pop("response"))
    abag.fit(
        results, None, tmp_path / "r2", add=str(tmp_path / "r1"), report=False, say=lambda _: None
    )
    kept = pd.read_parquet(tmp_path / "r2" / "measured.parquet")
    np.testing.assert_allclose(kept["measured"], expected)
    fitted = pd.read_parquet(tmp_path / "r2" / "pairs.parquet")
    np.testing.assert_allclose(np.sort(fitted["measured"]), np.sort(expected))
    run = json.loads((tmp_path / "r1" / "summary.json").read_text())["data"]
    again = json.loads((tmp_path / "r2" / "summary.json").read_text())["data"]
    for name in ("quantity", "better", "classes"):
        assert again.get(name) == run.get(name)
    if column == "titer":
        abag.predict(
            frame, tmp_path / "r1", tmp_path / "scored.csv", store=retention / "store",
            say=lambda _: None,
        )  # fmt: skip
        ranked = abag.rank(
            tmp_path / "scored.csv", tmp_path / "order.csv", run=tmp_path / "r1", batch=3,
            rule="improvement", keep_far=True, say=lambda _: None,
        )  # fmt: skip
        assert ranked["best_measured"] == pytest.approx(expected[:60].max())


def test_contradictions_of_such_a_run_are_told_in_its_unit(retention, tmp_path):
    pairs = pd.read_csv(retention / "pairs.csv").head(2)
    pairs.loc[0, "HIC RT (min)"] += 9
    pairs.to_csv(tmp_path / "back.csv", index=False)
    with pytest.raises(abag.AbagError, match=r"row 2: HIC RT \(min\) .* in round 0 .* at most"):
        add_round(retention, tmp_path / "r2", tmp_path / "back.csv")
    assert not (tmp_path / "r2").exists()


@pytest.mark.ci
def test_results_that_lack_a_column_of_the_run_are_refused(case, tmp_path):
    table = pd.read_csv(case / "pairs.csv")
    table["stability"] = np.random.default_rng(0).normal(size=len(table))
    options = {"head": "ridge", "features": ["stability"]}
    fit_first(table, case / "store", tmp_path / "r1", **options)
    with pytest.raises(
        abag.AbagError, match=r"no column 'stability', which the run .* has as feature"
    ):
        add_round(tmp_path, tmp_path / "r2", measured(case))
    assert not (tmp_path / "r2").exists()


def test_results_that_say_no_binding_are_bounds_where_their_concentration_is_given(case, tmp_path):
    back = measured(case, "KD (nM)")
    back["KD (nM)"] = back["KD (nM)"].astype(object)
    back.loc[3, "KD (nM)"] = "n.d."
    back.to_csv(tmp_path / "back.csv", index=False)
    with pytest.raises(abag.AbagError, match=r"row 5, column .KD \(nM\).: .n\.d\.. is not a valid"):
        add_round(case, tmp_path / "r2", tmp_path / "back.csv")
    add_round(case, tmp_path / "r2", tmp_path / "back.csv", no_binding=10_000)
    kept = pd.read_parquet(tmp_path / "r2" / "measured.parquet")
    (bound,) = kept[kept["censored"] != ""].to_dict("records")
    assert (bound["pkd"], bound["censored"], bound["row"]) == (pytest.approx(5), ">", 5)
    config = json.loads((tmp_path / "r2" / "config.json").read_text())
    assert config["no_binding"] is None  # of this table alone, in its unit


def test_names_that_are_numbers_beside_gaps_are_kept_as_a_file_has_them(case, tmp_path):
    frame = variants(90).head(40).assign(id=[np.nan, *range(1, 40)])  # 1.0 in memory, 1 in a file
    fit_first(frame, case / "store", tmp_path / "r1")
    shown = pd.read_parquet(tmp_path / "r1/pairs.parquet").sort_values("row")["id"].tolist()
    kept = pd.read_parquet(tmp_path / "r1/measured.parquet").sort_values("row")["id"].tolist()
    assert shown == kept == ["", *map(str, range(1, 40))][: len(shown)]


def test_a_next_run_remembers_the_parent_of_which_mutations_are(tmp_path, said):
    frame = variants(60)
    residues = frame["VH"].str[54:56]
    frame["mutations"] = [f"H:{HEAVY[54]}55{a},H:{HEAVY[55]}56{b}" for a, b in residues]
    frame = frame[["mutations", "Kd (nM)"]]
    store = tmp_path / "store"
    named = {"antigen": ANTIGEN, "parent": f"{HEAVY}|{LIGHT}"}
    abag.embed_table(frame, store, **named, **COMPOSITION)
    fit_first(frame.head(30), store, tmp_path / "r1", **named)
    add_round(tmp_path, tmp_path / "r2", frame.iloc[30:45])
    summary = abag.predict(frame.iloc[45:], tmp_path / "r2", tmp_path / "scored.csv")
    assert any("mutations are of the parent of the run" in line for line in said)
    assert summary["rows"] == len(frame) - 45
