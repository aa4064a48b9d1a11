"""The commands do what was recorded in ``tests/golden``; its script says how to record it again."""

import copy

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
