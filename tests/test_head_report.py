"""The report: one page that loads nothing, whose tables and charts agree with the results."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pandas as pd
import pytest

from abag.embed.sequences.pairs import read_pairs
from abag.head.data.label_options import LabelOptions
from abag.head.data.labels import label_pairs
from abag.head.evaluation import comparison, verdicts
from abag.head.evaluation.baselines import BaselineInputs, predict_baselines
from abag.head.evaluation.comparison import score_rows
from abag.head.model.config import FitConfig
from abag.head.report import chart_data
from abag.head.report.chart_data import principal_plane
from abag.head.report.report import model_card, render
from abag.head.report.results import PairNames, RunResults
from abag.head.runs.summary import score_models, split_facts
from abag.head.splits.split_methods import make_splits
from abag.head.splits.split_options import SplitOptions
from abag.head.splits.splits import TEST

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
VOID = {"meta", "link", "img", "br"}
DATE = "2026-11-22 12:00 UTC"
INPUTS = {"store": "store", "pairs_digest": "0" * 32}
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(comparison, "DRAWS", 20)


def table(rows=120, antigens=8):
    rng = np.random.default_rng(0)
    sequences = ["".join(rng.choice(RESIDUES, 60)) for _ in range(antigens)]
    which = rng.integers(antigens, size=rows)
    return pd.DataFrame(
        {
            "heavy": ["".join(rng.choice(RESIDUES, 40)) for _ in range(rows)],
            "antigen": [sequences[i] for i in which],
            "antigen_name": [f"target {i // 2}" for i in which],  # two antigens per name
            "id": [f"pair {i}" for i in range(rows)],
            "pkd": rng.normal(8, 1, rows),
        }
    )


def results(frame=None, title="runs/first", **options):
    frame, rng = table() if frame is None else frame, np.random.default_rng(1)
    pairs = label_pairs(read_pairs(frame), LabelOptions())
    antibody_ND = rng.normal(size=(len(pairs.table.antibodies.chains), 5)).astype(np.float32)
    antigen_ND = rng.normal(size=(len(pairs.table.antigens.chains), 4)).astype(np.float32)
    splits = make_splits(pairs, SplitOptions(**{"split": "random", **options}))
    found = [
        predict_baselines(BaselineInputs(pairs, split, antibody_ND, antigen_ND)) for split in splits
    ]
    log = [
        {"fold": fold, "step": i + 1, "epoch": i + 1, "loss": 1 / (i + 1), "lr": 1e-3}
        for fold in range(len(splits))
        for i in range(10)
    ]
    log[-1]["validation"] = {"spearman": None, "rmse": 1.0}
    return RunResults(
        title=title,
        facts=FitConfig(**{"split": "random", **options}).to_json() | INPUTS,
        source=pairs.table.source,
        pairs=pairs,
        names=PairNames.of(pairs),
        split=split_facts(splits),
        splits=splits,
        predicted=[f["ridge"] + rng.normal(0, 0.1, len(pairs)) for f in found],
        sigma=[rng.uniform(0.5, 1.5, len(pairs)) for _ in found],
        baselines=found,
        log=log,
        antibody_ND=antibody_ND,
        antigen_ND=antigen_ND,
    )


@pytest.fixture(scope="module")
def single():
    return results()


@pytest.fixture(scope="module")
def repeated():
    return results(split="antigen", folds=4, repeats=2)


def render_run(run):
    return render(run, summary_of(run), DATE)


def summary_of(run):
    sigma = {
        "noise": 1.0, "spread": 0.0, "calibrated": True, "rows": 80, "predictions": 80,
        "groups": 6,
        "coverage": {"90": 0.85}, "coverage_folds": {"90": [0.8, 0.9]}, "error_spearman": 0.05,
    }  # fmt: skip
    own = {"run": "runs/first", "used": {"batch_size": 32}, "sigma": sigma}
    return score_models(run.pairs, run) | own


class Page(HTMLParser):
    """Check that tags are closed, and collect what the page would load and the cells of tables."""

    def __init__(self, html):
        super().__init__()
        self.open, self.loads, self.tags, self.tables = [], [], [], {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(dict(attrs)["data-csv"], [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] += data


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


# ---- the page ----------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_only_its_own_script_may_run(single):
    html = render_run(single)
    page = Page(html)
    assert all(value.startswith("data:") for value in page.loads)
    assert set(re.findall(r"https?://[\w./]+", html)) == {"http://www.w3.org/2000/svg"}
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html  # fmt: skip # noqa: E501
    assert json.loads(data)


def test_names_from_the_table_cannot_break_out(single):
    frame = table().assign(id=HOSTILE, antigen_name=HOSTILE)
    html = render_run(results(frame, title=HOSTILE))
    page = Page(html)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert data_of(html)["pairs"]["id"][0] == HOSTILE[:39] + "…"
    assert page.tables["largest-errors"][1][1] == HOSTILE[:39] + "…"


def test_differences_are_head_minus_baseline_and_bold_where_the_head_is_better(repeated):
    page = Page(html := render_run(repeated))
    rows = {name: cells for name, *cells in page.tables["differences"]}
    assert rows["head minus"][1] == "RMSE\N{NO-BREAK SPACE}↓"
    for name in ("ridge", "train_mean", "nearest_antibody"):
        found = repeated.compared_with(name, "rmse")
        assert rows[name][1] == verdicts.format_difference(found)
        better = verdicts.relation(found, "rmse") == "better"
        assert (f"<b>{rows[name][1]}</b>" in html) == better
    assert "240 test rows: 120 pairs, each tested in 2 of 8 folds" in html
    assert [name for name, *_ in page.tables["scores"]][:2] == ["", "head"]


def test_folds_have_the_numbers_of_the_files(repeated):
    page = Page(html := render_run(repeated))
    numbers = [str(split.fold) for split in repeated.splits]
    assert [fold for fold, *_ in page.tables["parts"][1:]] == numbers == [*"01234567"]
    assert re.findall(r"<option>fold (\d)</option>", html) == numbers


def test_the_page_has_the_intervals_of_scores_and_what_sigma_covers(repeated):
    html, summary = render_run(repeated), summary_of(repeated)
    rows = {name: cells for name, *cells in Page(html).tables["intervals"]}
    for name, label in (("rmse", "RMSE"), ("pair_accuracy", "pair accuracy")):
        one = summary["intervals"][name]
        assert one["value"] == summary["metrics"]["test"][name]
        expected = [f"{one['value']:.3f}", f"[{one['low']:.3f}, {one['high']:.3f}]"]
        assert rows[label] == expected
    assert "85% (worst fold 80%) within its 90 % interval" in html
    assert "sigma is a level, and does not tell good predictions from bad" in html


def test_the_page_tells_what_was_run_and_the_settings_that_were_used(single):
    html = render_run(single)
    rows = {name: cells for name, *cells in Page(html).tables["settings"]}
    assert rows["batch size"] == ["1024", "32"]
    assert rows["lr"] == ["0.001", ""]
    assert DATE in html
    assert f'<p class="verdict">{score_models(single.pairs, single)["verdict"]}</p>' in html
    assert "abag fit table --store store --run runs/first --split random" in html


def test_the_command_has_every_option_that_is_not_a_default(single):
    config = FitConfig(columns={"heavy": "V H"}, bootstrap=False, widths=(32, 8), split="antigen")
    html = render_run(replace(single, facts=config.to_json() | INPUTS | {"store": "a store"}))
    (command,) = re.findall(r"<code>(abag fit .*)</code>", html)
    assert shlex.split(command.replace("&#39;", "'"))[2:] == [
        "table", "--store", "a store", "--run", "runs/first", "--column", "heavy=V H",
        "--split", "antigen", "--widths", "32,8", "--no-bootstrap",
    ]  # fmt: skip


def test_a_store_below_the_working_directory_is_shown_relative_to_it(single, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    html = render_run(replace(single, facts=single.facts | {"store": str(tmp_path / "a/store")}))
    assert "abag fit table --store a/store --run runs/first" in html


def test_the_same_run_gives_the_same_page(single):
    assert render_run(single) == render_run(results())


# ---- names and the largest errors ----------------------------------------------------------------


def test_antigens_of_one_name_are_told_apart_by_the_start_of_their_keys(single):
    pairs = data_of(render_run(single))["pairs"]
    assert set(pairs["groups"]) == {f"target {i}" for i in range(4)}
    assert len(set(pairs["antigens"])) == 8
    assert all(re.fullmatch(r"target \d [0-9a-f]{6}", name) for name in pairs["antigens"])
    bare = data_of(render_run(results(table().drop(columns=["id", "antigen_name"]))))["pairs"]
    assert all(re.fullmatch(r"antigen [0-9a-f]{6}", name) for name in bare["antigens"])
    assert bare["id"] is None
    one = data_of(render_run(results(table().assign(antigen_name=table()["antigen"].str[:5]))))
    assert all(len(name) == 5 for name in one["pairs"]["antigens"])


def test_the_largest_errors_are_those_of_mean_predictions_over_folds(repeated):
    head, *rows = Page(render_run(repeated)).tables["largest-errors"]
    assert head[:2] == ["row", "id"]
    mean = {}
    for split, predicted in zip(repeated.splits, repeated.predicted, strict=True):
        for pair in split.rows(TEST).tolist():
            mean.setdefault(pair, []).append(predicted[pair])
    error = {pair: np.mean(p) - repeated.pairs.pkd[pair] for pair, p in mean.items()}
    worst = sorted(error, key=lambda pair: -abs(error[pair]))[:20]
    table_rows = repeated.pairs.table.row_numbers[repeated.pairs.row[worst]]
    assert [row[0] for row in rows] == [str(n) for n in table_rows]
    at = head.index("predicted - measured")
    assert [row[at] for row in rows] == [f"{error[pair]:.3f}" for pair in worst]


# ---- the numbers of the charts ---------------------------------------------------------------


def test_points_are_the_predictions_of_the_test_rows(repeated):
    data = data_of(render_run(repeated))
    rows = np.array(data["pairs"]["row"])
    assert len(data["tests"]) == 8
    for test, split, predicted in zip(
        data["tests"], repeated.splits, repeated.predicted, strict=True
    ):
        at = split.rows(TEST)
        assert sorted(rows[test["pair"]]) == sorted(
            repeated.pairs.table.row_numbers[repeated.pairs.row[at]]
        )
        assert sorted(test["predicted"]) == sorted(np.round(predicted[at], 3))


def test_curves_are_computed_from_every_row(single):
    single = replace(single, predicted=[single.predicted[0] + 1])
    view = data_of(render_run(single))["views"][0]
    at = single.splits[0].rows(TEST)
    error = single.predicted[0][at] - single.pairs.pkd[at]
    residuals = view["residuals"]
    assert sum(residuals["counts"]) == len(at)
    middle = np.mean([residuals["edges"][:-1], residuals["edges"][1:]], axis=0)
    assert np.average(middle, weights=residuals["counts"]) == pytest.approx(error.mean(), abs=0.2)
    nominal = chart_data.COVERAGE[24]
    assert nominal == pytest.approx(0.5)
    inside = np.mean(np.abs(error) <= 0.67449 * single.sigma[0][at])
    assert view["coverage"]["y"][24] == pytest.approx(inside, abs=1e-3)
    assert len(view["deciles"]["x"]) == min(10, len(at))
    constant = replace(single, sigma=[np.full(len(single.pairs), 0.7)])
    deciles = data_of(render_run(constant))["views"][0]["deciles"]
    assert deciles["x"] == [0.7]
    assert deciles["y"] == pytest.approx([np.sqrt(np.mean(error**2))], abs=1e-3)


def test_the_bars_of_antigens_have_the_median_that_is_the_metric(repeated):
    run = repeated
    for fold, view in enumerate(data_of(render_run(run))["views"][1:]):
        rows = run.splits[fold].rows(TEST)
        for name, p in (("head", run.predicted[fold]), ("ridge", run.baselines[fold]["ridge"])):
            expected = score_rows(run.pairs, p, rows)["spearman_within_antigen"]
            assert np.median(view["antigens"][name]) == pytest.approx(expected, abs=1e-3)


def test_a_large_table_is_sampled_and_the_page_says_so(single, monkeypatch):
    monkeypatch.setattr(chart_data, "MAX_POINTS", 5)
    monkeypatch.setattr(chart_data, "MAP_POINTS", 7)
    html = render_run(single)
    tested = len(single.splits[0].rows(TEST))
    assert f"Points are a sample of 5 of {tested} test rows." in html
    data = data_of(html)
    assert len(data["tests"][0]["pair"]) == 5
    assert len(data["map"]["pair"]) == len(data["parts"][0]) == 7
    assert len(data["pairs"]["row"]) <= 12
    assert sum(data["views"][0]["residuals"]["counts"]) == tested


def test_the_learning_curve_of_the_summary_is_drawn(single):
    point = {"share": 0.5, "training_pairs": 48, "test": {"spearman": None, "rmse": 1.25}}
    summary = summary_of(single)
    assert data_of(render(single, summary, DATE))["learningCurve"] == []
    html = render(single, summary | {"learning_curve": [point]}, DATE)
    assert data_of(html)["learningCurve"] == [[48, None, 1.25]]


@pytest.mark.parametrize("shape", [(200, 30), (3, 30), (1, 4), (50, 1)])
def test_the_map_shows_the_principal_components(shape):
    rng = np.random.default_rng(0)
    x_PD = (rng.normal(size=shape) * 0.9 ** np.arange(shape[1])).astype(np.float32)
    plane, share = principal_plane(x_PD)
    u, s, _ = np.linalg.svd(x_PD.astype(np.float64) - x_PD.mean(axis=0), full_matrices=False)
    expected = np.zeros((shape[0], 2))
    expected[:, : len(s[:2])] = (u * s)[:, :2]
    assert np.abs(plane) == pytest.approx(np.abs(expected), abs=1e-2)
    assert share == pytest.approx((s[:2] ** 2).sum() / max((s**2).sum(), 1e-30), abs=1e-4)


# ---- unusual runs, and a browser ---------------------------------------------------------------


def unusual(name):
    if name == "five rows":
        return results(table(5, 2))
    if name == "one antigen":
        return results(table(antigens=1))
    if name == "censored":
        frame = table()
        return results(frame.assign(censored=np.where(frame.index % 3, "", ">")))
    return replace(results(), log=[])


@pytest.mark.parametrize("name", ["five rows", "one antigen", "censored", "no log"])
def test_an_unusual_run_gives_a_page(name):
    html = render_run(unusual(name))
    head = Page(html).tables["differences"][0]
    assert len(set(head)) == len(head) == (2 if name == "five rows" else 3)
    assert len(data_of(html)["views"]) == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("＝1+1", "'＝1+1"),
        ("＠SUM(1)", "'＠SUM(1)"),
        (" =1+1", "' =1+1"),
        ("\r=1", '"\'\r=1"'),
        ("\tx", "'\tx"),
        ("-0.422", "-0.422"),
        ("+1.5e-7", "+1.5e-7"),
        ("-0.4 [-0.5, +0.2] and [-0.6, +0.3]", '"-0.4 [-0.5, +0.2] and [-0.6, +0.3]"'),
        ("pair 1", "pair 1"),
    ],
)
def test_a_cell_of_a_downloaded_csv_is_never_a_formula(cell, written):
    page = (resources.files("abag.head.report") / "templates" / "page.js").read_text("utf-8")
    quote = page[page.index("const FORMULA") : page.index('document.querySelectorAll("table')]
    script = f"{quote}\nprocess.stdout.write(quote({json.dumps(cell)}))"
    done = subprocess.run(["node", "-e", script], capture_output=True, check=True)
    assert done.stdout.decode() == written


def test_report_and_card_call_labels_by_what_they_are(single):
    summary = summary_of(single) | {"data": {"quantity": "pIC50"}}
    page = render(single, summary, DATE)
    assert "pIC50 = -log10(IC50 in M)" in page
    assert '"quantity":"pIC50"' in page
    assert "pKd" not in page
    assert "pKd = -log10(Kd in M)" in render(single, summary_of(single), DATE)


def test_the_report_shows_the_weights_of_a_stack(single):
    shares = {"kernel": 0.25, "one_hot_kernel": 0.0, "network": 0.75}
    page = render(single, summary_of(single) | {"shares": shares}, DATE)
    assert "weighted mean of: kernel 0.25, one hot kernel 0.00, network 0.75." in page
    assert "weighted mean" not in render(single, summary_of(single) | {"shares": {"gp": 1.0}}, DATE)


def test_names_in_a_model_card_are_neither_html_nor_markdown(single):
    hostile = "<img src=x> [win](https://x.y) `qq` **qq** |"
    summary = summary_of(single) | {
        "counts": {}, "noise": None, "kept": 1.0, "shares": {}, "warnings": [hostile],
        "split": {"name": f"column={hostile}", "folds": 1, "why": hostile, "rows": {}, "leaks": {}},
    }  # fmt: skip
    config = FitConfig(affinity_type=hostile).to_json() | {"pairs": 120}
    config |= dict.fromkeys(("antibody_encoder", "antigen_encoder"), hostile)
    config |= dict.fromkeys(("antibody_fingerprint", "antigen_fingerprint"), "ab" * 16)
    card = model_card(f"{hostile}\n\n# x", config, summary)
    text = re.sub(r"(?m)(?<!`)``(?!`) .*? ``(?!`)", "", card)  # without spans of code
    assert text.count("img") == 6
    assert not re.search(r"(?<!\\)<img|\]\(|(?<!\\)(\*\*|`)qq", text)
    assert "\n# x" not in card


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_chromium_draws_every_chart_and_runs_nothing_else(tmp_path, repeated):
    frame = table().assign(id=HOSTILE, antigen_name=HOSTILE)
    pages = {"hostile": results(frame), "folds": repeated}
    pages |= {name: unusual(name) for name in ("five rows", "one antigen", "censored")}
    for name, run in pages.items():
        html = render_run(run)
        (tmp_path / f"{name}.html").write_text(html, encoding="utf-8")
        flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
        flags += "--disable-background-networking --disable-component-update --disable-sync "
        flags += f"--enable-logging=stderr --user-data-dir={tmp_path / 'profile'} --dump-dom"
        done = subprocess.run(
            ["chromium", *flags.split(), (tmp_path / f"{name}.html").as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert "CONSOLE" not in done.stderr, name
        drawn = len(re.findall('<svg [^>]*role="img"', done.stdout))
        expected = 10 - (not data_of(html)["views"][0]["antigens"]["names"])
        assert drawn == expected or (name == "five rows" and drawn >= 5), name
        assert "<title>runs/first</title>" in done.stdout
        assert done.stdout.count("Download as CSV</button>") == html.count("data-csv=")
