"""The commands do what was recorded in ``tests/golden``; its script says how to record it again."""

import copy
import json
import re
import shutil
from pathlib import Path

import formats
import numpy as np
import pandas as pd
import pytest
from golden.make_golden import PARTS, Folder, differences, read_golden, record
from heads import BASELINES, MODELS, SPLIT_VALUES, choices_of
from marks import in_ci

import abag


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("golden"))


LONG = [part for part in PARTS if part.startswith(("scores", "splits", "baselines"))]
LONG += ["predictions/predict", "surface/keys"]


@pytest.mark.parametrize("part", [*(part for part in PARTS if part not in LONG), *in_ci(*LONG)])
def test_commands_do_what_was_recorded(part, folder):
    changed = differences(read_golden(part), record(part, folder), part)
    if changed:
        again = "If this is intended: python tests/golden/make_golden.py --write"
        pytest.fail("\n".join([f"{len(changed)} differences", *changed, again]), pytrace=False)


def test_every_head_split_baseline_and_rule_is_recorded():
    heads = [read_golden(f"scores/heads on {kind}") for kind in ("pairs", "variants", "folds")]
    assert set().union(*heads) == choices_of(abag.FitConfig, "head")
    assert {how.partition("=")[0] for how in read_golden("splits/splits")} == set(SPLIT_VALUES)
    baselines = read_golden("baselines/baselines").values()
    assert set().union(*baselines) >= set(BASELINES) | {
        name for name, model in MODELS.items() if model.is_baseline
    }
    rules = {rule.split()[0] for rule in read_golden("predictions/rank")}
    assert rules == choices_of(abag.RankOptions, "rule")


def test_each_difference_is_listed_with_both_values():
    before = {"a": {"rmse": 1.5, "n": 7}, "text": ["one", "two"], "gone": True, "ids": [1, 2]}
    now = copy.deepcopy(before)
    now["a"] = {"rmse": 1.501, "n": 7}
    assert differences(before, now, "x") == []
    now["a"] = {"rmse": 1.51, "n": 8}
    now["text"] = ["one", "2"]
    del now["gone"]
    now["ids"] = [2, 1]
    assert differences(before, now, "x") == [
        "x/a/n: was 7, is 8",
        "x/a/rmse: was 1.5, is 1.51",
        "x/gone: was True, is '(absent)'",
        "x/ids/0: was 1, is 2",
        "x/ids/1: was 2, is 1",
        "x/text: - two",
        "x/text: + 2",
    ]


RELEASED = Path(__file__).parent / "golden" / "formats"
"""A store, a run and predictors of an earlier version, by tests/golden/make_formats.py."""


def test_files_of_a_released_version_are_read(tmp_path):
    files = tmp_path / "formats"
    shutil.copytree(RELEASED, files)  # which may become read-only
    expected = json.loads((files / "expected.json").read_text())
    pairs = expected["pairs"]
    store = abag.open_store(files / "store")
    vectors = store.vectors("antigen", pairs["antigen"])[:, :4]
    np.testing.assert_allclose(vectors, expected["vectors"], atol=1e-6)
    for folder, columns in expected["scores"].items():
        scores = abag.load_predictor(files / folder).predict(**pairs, store=files / "store")
        assert scores["regime"].tolist() == columns.pop("regime")
        for name, values in columns.items():
            np.testing.assert_allclose(scores[name], values, atol=1e-4)


def test_a_run_of_a_released_version_is_scored_reported_and_used(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(RELEASED / "run", run)
    shutil.copytree(RELEASED / "store", tmp_path / "store")
    (regime,) = abag.evaluate(run, say=False)["regimes"]
    assert regime["n"] == 60
    assert abag.runs(run)["runs"][0]["state"] == "finished"
    abag.report(run, say=False)
    assert "a recall of 80%" in (run / "report.html").read_text()
    pairs = pd.DataFrame(json.loads((RELEASED / "expected.json").read_text())["pairs"])
    scored = abag.predict(pairs, run, store=tmp_path / "store", say=False)
    other = scored.assign(heavy=scored["heavy"] + "A")  # pairs that the run has not measured
    batch = abag.rank(other, run=run, batch=2, keep_far=True, say=False)
    assert len(batch) == 2


def test_an_update_encodes_no_sequence_again(tmp_path):
    shutil.copytree(RELEASED / "store", tmp_path / "store")
    pairs = pd.DataFrame(json.loads((RELEASED / "expected.json").read_text())["pairs"])
    composition = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    summary = abag.embed_table(pairs, tmp_path / "store", say=False, **composition)
    assert summary["antibodies"]["encoded"] == summary["antigens"]["encoded"] == 0


PAGE = (Path(__file__).parents[1] / "docs" / "compatibility.md").read_text()


def test_the_page_of_what_stays_has_the_formats_of_the_files():
    stated = dict(re.findall(r"^\| ([^|]+) \| `[\w-]+\.json` \| ([^|]+) \|$", PAGE, re.MULTILINE))
    store = json.loads((RELEASED / "store" / "abag-store.json").read_text())
    predictor = json.loads((RELEASED / "predictor" / "predictor.json").read_text())
    assert stated["store"] == f"`abag-store`, version {store['version']}"
    assert stated["predictor"] == f"schema {predictor['schema']}"
    assert stated["run"] == f"`{formats.RUN}`"
    assert stated["sweep"] == f"`{formats.SWEEP}`"
    assert stated["shared predictor"] == f"`abag-predictor`, version {formats.SHARED['version']}"
    assert stated["adapter"] == f"`abag-adapter`, version {formats.ADAPTER['version']}"
    assert f"| attribute `format` | `{formats.SHARD}` |" in PAGE
    assert f"| attribute `format` | `abag-residues {formats.RESIDUES['version']}` |" in PAGE


@pytest.mark.parametrize("name", ["store/abag-store.json", "run/config.json"])
def test_a_file_of_a_newer_version_is_refused_as_the_page_says(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.parent.mkdir()
    if path.parent.name == "store":
        path.write_text('{"format": "abag-store", "version": 3}')
    else:
        path.write_text('{"format": "abag-run 7"}')
    read = {"store": abag.open_store, "run": abag.report}[path.parent.name]
    with pytest.raises(abag.AbagError) as refusal:
        read(path.parent)
    assert str(refusal.value) in PAGE
