"""`report`: the pages of a finished run, written again from its folder."""

import html
import json
import re
import shutil
from types import SimpleNamespace

import invoke
import numpy as np
import pandas as pd
import pytest
from drawn import QUICK, add_vectors, draw_pairs

import abag
from abag import RunError, report
from abag.head.runs.report import chart_data, write_card
from abag.head.runs.run_folder import read_run

HOSTILE = "</script><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("rendering")
    frame = draw_pairs(30, 6).assign(id=range(100, 280))
    frame["antigen_name"] = [f"target {antigen[:2]}" for antigen in frame["antigen"]]
    add_vectors(at / "store", frame)
    for name, options in {
        "one": {"split": "random", "learning_curve": True},
        "folds": {"split": "antigen", "folds": 3},
    }.items():
        abag.fit(frame, at / "store", at / name, **QUICK | {"report": True} | options)
    return SimpleNamespace(at=at, frame=frame)


@pytest.fixture
def run(case, tmp_path):
    shutil.copytree(case.at / "folds", tmp_path / "folds")
    return tmp_path / "folds"


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_date(page):
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page)


@pytest.mark.parametrize("name", ["one", "folds"])
def test_the_page_and_the_card_are_those_of_the_fit_and_nothing_else_changes(case, name):
    run = case.at / name
    said = []
    before = files(run)
    (run / "report.html").unlink()
    (run / "predictor/README.md").write_text("outdated")
    report(run, say=said.append)
    after = files(run)
    assert said == []
    page = run / "report.html"
    assert without_date(after.pop(page).decode()) == without_date(before.pop(page).decode())
    assert after == before


def test_a_notebook_shows_the_page_in_a_frame(run):
    shown = abag.report(run)._repr_html_()
    page = (run / "report.html").read_text()
    (source,) = re.findall(r'^<iframe srcdoc="([^"]*)" [^<>]*></iframe>$', shown)
    assert html.unescape(source) == page


def test_names_in_a_run_cannot_break_out_of_the_page(run):
    path = run / "predictions.parquet"
    pd.read_parquet(path).assign(id=HOSTILE, antigen_name=HOSTILE).to_parquet(path, index=False)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"verdict": HOSTILE}))
    report(run)
    assert (run / "report.html").read_text().count("<script") == 2


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200f", "\x1b", "\x9b", "\u2028"])
def test_characters_that_change_how_a_page_reads_are_shown_as_codes(run, character):
    name = f"anti{character}gen"
    code = character.encode("unicode_escape").decode()
    path = run / "pairs.parquet"
    pd.read_parquet(path).assign(id=name, antigen_name=name).to_parquet(path, index=False)
    summary = json.loads((run / "summary.json").read_text())
    data = summary["data"] | {"source": name}
    (run / "summary.json").write_text(json.dumps(summary | {"data": data, "warnings": [name]}))
    report(run)
    page = (run / "report.html").read_text()
    assert character not in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    charts = json.dumps(json.loads(data), ensure_ascii=False)
    assert json.dumps(name, ensure_ascii=False)[1:-1] not in charts
    assert json.dumps(f"anti{code}gen")[1:-1] in charts
    for where in (
        f'<p class="subtitle">anti{code}gen',
        f"<li>anti{code}gen",
        f">anti{code}gen</td>",
    ):
        assert where in page
    assert "\N{NO-BREAK SPACE}" in page  # which abag writes itself


@pytest.mark.parametrize("name", ["a|b", "<b>KD</b>", "*KD*", "[KD](x)", "`KD`"])
def test_names_in_the_tables_of_the_card_are_escaped(run, name):
    path = run / "config.json"
    quantity = {"name": name, "unit": "", "better": "lower", "affinity": False}
    config = json.loads(path.read_text())
    write_card(run, config | {"quantity": quantity}, json.loads((run / "summary.json").read_text()))
    lines = (run / "predictor/README.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert not [line for line in table if name in line]
    # cells are separated by pipes that are not escaped
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


def test_the_card_says_what_molar_mass_labels_by_weight_were_converted_with(run):
    config = json.loads((run / "config.json").read_text())
    config["layout"]["label"]["unit"] = "ug_ml"
    for given, stated in ((None, "`igg (150 kDa)`"), ("vhh", "`vhh`")):
        summary = json.loads((run / "summary.json").read_text())
        write_card(run, config | {"molar_mass": given}, summary)
        assert f"read as `ug_ml`, molar mass {stated}" in (run / "predictor/README.md").read_text()


@pytest.mark.parametrize("damage", ["text for numbers", "not Parquet", "no scores"])
def test_a_damaged_run_is_refused_in_one_line_and_its_report_stays(run, damage):
    pairs, baselines, summary = (
        run / name for name in ("pairs.parquet", "baselines.parquet", "summary.json")
    )
    if damage == "text for numbers":
        pd.read_parquet(pairs).assign(row="first").to_parquet(pairs, index=False)
    elif damage == "not Parquet":
        baselines.write_bytes(baselines.read_bytes()[:-20])
    else:
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"regimes": 3}))
    before = files(run)
    with pytest.raises(RunError, match="Copy the whole run folder again") as error:
        report(run)
    assert "\n" not in str(error.value)
    assert files(run) == before


def test_the_command_names_the_files_that_it_wrote(run):
    done = invoke.run("report", run)
    assert done.stdout.splitlines() == [
        f"report     {run / 'report.html'}",
        f"model card {run / 'predictor/README.md'}",
    ]
    assert "not a finished run" in invoke.one_line("report", run.parent)


def test_predictions_have_the_rows_and_names_of_the_table(case):
    predictions = pd.read_parquet(case.at / "one/predictions.parquet")
    assert sorted(predictions["row"]) == list(range(1, len(case.frame) + 1))
    rows = case.frame.iloc[predictions["row"].to_numpy() - 1]
    assert (predictions["id"].to_numpy() == rows["id"].astype(str).to_numpy()).all()
    assert (predictions["antigen_name"].to_numpy() == rows["antigen_name"].to_numpy()).all()
    assert (predictions["pkd"].to_numpy() == rows["pKd"].to_numpy()).all()


def test_baselines_have_the_scores_of_the_summary(case):
    run = case.at / "one"
    test, baselines = (pd.read_parquet(run / f"{n}.parquet") for n in ("predictions", "baselines"))
    keys = ["antibody_key", "antigen_key"]
    assert (baselines[keys].to_numpy() == test[keys].to_numpy()).all()
    (regime,) = json.loads((run / "summary.json").read_text())["regimes"]
    for name, scores in regime["metrics"].items():
        values = test["pkd_predicted"] if name == "head" else baselines[name]
        square = pd.Series((values.to_numpy() - test["pkd"].to_numpy()) ** 2)
        rmse = np.sqrt(square.groupby(test["fold"]).mean()).mean()
        assert rmse == pytest.approx(scores["rmse"])


@pytest.mark.parametrize("weights", [{"ridge": 0.4, "mlp": 0.6}, {"ridge": 1.0}])
def test_curves_of_a_network_say_where_it_has_no_weight(run, weights):
    summary = json.loads((run / "summary.json").read_text())
    for regime in summary["regimes"]:
        regime["weights"] = weights
    (run / "summary.json").write_text(json.dumps(summary))
    views = chart_data(read_run(run))["views"]
    assert all(view["training"] for view in views)
    assert {view["networkIsUsed"] for view in views} == {"mlp" in weights}


def test_the_page_shows_what_decides_first_and_strong_binders_once(case):
    page = (case.at / "folds/report.html").read_text()
    regimes = page.split('<table data-csv="regimes"')[1].split("</table>")[0]
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", regimes)
    assert heads[:5] == [
        "",
        "RMSE (pKd)",
        "RMSE of mean (pKd)",
        "RMSE of best baseline (pKd)",
        "Spearman",
    ]
    assert "R2" in heads
    assert "skill" not in heads
    assert "Up to 20 antigens: those with most test rows, at least 5 exact ones in a fold" in page
    strong = page.split("<h2>Strong binders")[1]
    before_details = strong.split("<details>")[0]
    assert before_details.count("<table") == 1
    assert "<svg" not in before_details
