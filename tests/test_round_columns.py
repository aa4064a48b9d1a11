"""Rounds of a campaign whose tables have features, categories, errors or weights."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import drawn
import numpy as np
import pandas as pd
import pytest
from invoke import one_line, run
from marks import in_ci

import abag

QUICK = {"head": "ridge", "split": "random", "report": False, "device": "cpu"}
SCORES = {"features": ("ddg",), "categories": ("lab",), "error": "sd"}
FIRST = 70


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Pairs in two rounds, some of them in both, and the run of the first."""
    case = drawn.linear_table(tmp_path_factory.mktemp("rounds"), 30, 3, 0.2)
    rng = np.random.default_rng(4)
    frame = case.frame.sample(frac=1, random_state=0)
    frame["lab"] = rng.choice(["A", "B"], len(frame))
    frame["ddg"] = rng.normal(size=len(frame)).round(3)
    frame.loc[frame.index[::7], "ddg"] = np.nan
    label = frame["pKd"] + frame["ddg"].fillna(0) + (frame["lab"] == "B")
    frame["KD (nM)"] = 10 ** (9 - label)
    frame["sd"] = frame["KD (nM)"] * rng.uniform(0.05, 0.4, len(frame))
    frame["w"] = rng.uniform(0.5, 3, len(frame)).round(2)
    frame = frame.drop(columns="pKd")
    again = frame.iloc[:6].assign(**{"KD (nM)": frame["KD (nM)"].iloc[:6] * 1.3})
    first = frame.iloc[:FIRST]
    second = pd.concat([frame.iloc[FIRST:], again])
    return SimpleNamespace(at=case.at, store=case.store, first=first, second=second)


def fit(campaign, name, table, **options):
    """Fit a table into the folder of this name, and return what its predictor says of all pairs."""
    abag.fit(table, campaign.store, campaign.at / name, **QUICK | options)
    predictor = abag.load_predictor(campaign.at / name)
    every = pd.concat([campaign.first, campaign.second])
    features = None if predictor.features is None else every
    columns = [every["heavy"].tolist(), None, every["antigen"].tolist()]
    return predictor.predict(*columns, features=features)


def fit_first(campaign, named):
    """Return the run of the first round with these columns; a second call does not fit it again."""
    name = f"first-{'-'.join(named)}"
    fit(campaign, name, campaign.first, **named)
    return str(campaign.at / name)


@pytest.mark.ci
@pytest.mark.parametrize(
    "named",
    [
        *(SCORES, {"weight": "w"}),
        *in_ci({"features": ("ddg",)}, {"categories": ("lab",), "weight": "w"}),
    ],
    ids=lambda named: "-".join(named),
)
def test_two_rounds_with_columns_equal_one_fit_of_the_joined_table(campaign, named):
    name = "-".join(named)
    joined = fit(campaign, f"{name}-2", campaign.second, add=fit_first(campaign, named))
    both = pd.concat([campaign.first, campaign.second])
    whole = fit(campaign, f"{name}-whole", both, **named)
    bare = fit(campaign, "bare-whole", both)
    for column in ("pkd_predicted", "sigma"):
        np.testing.assert_allclose(joined[column], whole[column], rtol=1e-9)
    assert not np.allclose(joined["pkd_predicted"], bare["pkd_predicted"], rtol=1e-3)


@pytest.mark.ci
def test_a_third_round_reads_the_columns_of_all(campaign):
    third = campaign.second.iloc[:10]
    second = campaign.second.iloc[10:]
    fit(campaign, "three-2", second, add=fit_first(campaign, SCORES))
    last = fit(campaign, "three-3", third, add=str(campaign.at / "three-2"))
    both = pd.concat([campaign.first, second, third])
    whole = fit(campaign, "three-whole", both, **SCORES)
    np.testing.assert_allclose(last["pkd_predicted"], whole["pkd_predicted"], rtol=1e-9)


def test_a_run_keeps_features_categories_and_errors_of_each_measurement(campaign):
    rows = pd.read_parquet(Path(fit_first(campaign, SCORES)) / "measured.parquet")
    table = campaign.first.reset_index(drop=True).iloc[rows["row"].to_numpy() - 1]
    np.testing.assert_array_equal(rows["feature:ddg"], table["ddg"])
    assert rows["category:lab"].tolist() == table["lab"].tolist()
    expected = table["sd"] / table["KD (nM)"] / np.log(10)  # of pKd
    np.testing.assert_allclose(rows["error:sd"], expected)


@pytest.fixture(scope="module")
def scored(campaign):
    return fit_first(campaign, SCORES)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"ddg": None}, {}, "no column 'ddg', which the run .*first.* has as feature"),
        ({"lab": None}, {}, "no column 'lab', which the run .*first.* has as category"),
        ({"sd": None}, {}, "no column 'sd', which the run .*first.* has as error"),
        ({"ddg": np.inf}, {}, "column ddg: inf .* is not a valid feature"),
        ({"sd": 0.0}, {}, "column sd: 0.0 .* is not a valid error"),
        ({}, {"features": ("ddg", "w")}, "features ddg,w: the run .*first.* has ddg; expected"),
        ({}, {"weight": "w"}, "weight w: the run .*first.* has none; expected"),
    ],
)
def test_rounds_whose_columns_do_not_fit_are_refused(campaign, scored, change, options, words):
    dropped = [name for name, value in change.items() if value is None]
    kept = {name: value for name, value in change.items() if value is not None}
    table = campaign.second.drop(columns=dropped).assign(**kept)
    with pytest.raises(abag.AbagError, match=words) as refused:
        abag.fit(table, campaign.store, campaign.at / "refused", add=scored, **options)
    assert "\n" not in str(refused.value)
    assert not (campaign.at / "refused").exists()


def test_a_run_without_columns_is_not_joined_with_any(campaign, tmp_path):
    fit(campaign, "bare", campaign.first)
    campaign.second.to_csv(tmp_path / "back.csv", index=False)
    command = ["fit", tmp_path / "back.csv", "--add", campaign.at / "bare", "--run", tmp_path / "r"]
    error = one_line(*command, "--features", "ddg")
    assert "--features ddg: the run" in error
    assert "has none" in error
    assert not (tmp_path / "r").exists()


@pytest.mark.ci
def test_the_command_joins_a_round_with_columns(campaign, scored, tmp_path):
    campaign.second.to_csv(tmp_path / "back.csv", index=False)
    done = run("fit", tmp_path / "back.csv", "--add", scored, "--run", tmp_path / "r", "--json")
    assert json.loads(done.stdout)["rounds"][1]["pairs"] > 0
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert [config[name] for name in ("features", "categories", "error")] == [
        ["ddg"],
        ["lab"],
        "sd",
    ]


@pytest.mark.ci
def test_one_pair_in_two_assays_is_no_contradiction(campaign, scored, tmp_path):
    other = campaign.first.iloc[:4]
    swapped = other["lab"].map({"A": "B", "B": "A"})
    table = other.assign(lab=swapped, **{"KD (nM)": other["KD (nM)"] * 100})
    summary = abag.fit(table, campaign.store, tmp_path / "r", add=scored, report=False)
    assert summary["data"]["pairs"] == FIRST + 4
    same = other.assign(**{"KD (nM)": other["KD (nM)"] * 100})
    with pytest.raises(abag.AbagError, match="contradicts earlier rounds"):
        abag.fit(same, campaign.store, tmp_path / "refused", add=scored)


@pytest.mark.ci
def test_likelihoods_of_the_store_join_the_next_round(tmp_path):
    rng = np.random.default_rng(5)
    heavy = drawn.draw_chains(rng, 50, 20)
    frame = pd.DataFrame({"heavy": heavy, "antigen": np.resize(drawn.draw_chains(rng, 3, 20), 50)})
    frame = frame.assign(pKd=rng.normal(8, 1, 50), ddg=rng.normal(size=50))
    abag.embed_table(frame, tmp_path / "store", "tiny-esm2", "tiny-esm2", loglik=True, device="cpu")
    options = QUICK | {"features": ("ddg", "antibody_loglik"), "antibody_vectors": ("mean",)}
    at = {name: tmp_path / name for name in ("first", "second", "whole")}
    abag.fit(frame[:35], tmp_path / "store", at["first"], **options)
    assert "feature:antibody_loglik" not in pd.read_parquet(at["first"] / "measured.parquet")
    abag.fit(frame[35:], tmp_path / "store", at["second"], add=str(at["first"]), report=False)
    abag.fit(frame, tmp_path / "store", at["whole"], **options)
    columns = [frame["heavy"].tolist(), None, frame["antigen"].tolist()]
    joined, whole = (
        abag.load_predictor(at[name]).predict(*columns, features=frame)
        for name in ("second", "whole")
    )
    np.testing.assert_allclose(joined["pkd_predicted"], whole["pkd_predicted"], rtol=1e-9)


def test_measured_pairs_that_lack_a_column_of_the_run_are_refused(campaign, tmp_path):
    shutil.copytree(fit_first(campaign, SCORES), tmp_path / "old")
    path = tmp_path / "old" / "measured.parquet"
    pd.read_parquet(path).drop(columns="feature:ddg").to_parquet(path, index=False)
    with pytest.raises(abag.AbagError, match=r"has no feature 'ddg'; .*Fit it again"):
        abag.fit(campaign.second, campaign.store, tmp_path / "r", add=str(tmp_path / "old"))
