"""Columns that no model can read: one line in Python, at the command line and in a plan."""

import json
import re

import drawn
import numpy as np
import pandas as pd
import pytest
from invoke import one_line, run
from reading import read_labels, splits_of
from trastuzumab import HEAVY

import abag
from abag.core.messages import reporting
from abag.head.labels.options import MOST_VALUE

ROWS = 60
MANY = 100_000


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return drawn.linear_table(tmp_path_factory.mktemp("bad"), 15, 4, 0.2)


def first(value, others=1.0):
    """Return a column whose first cell is another."""
    return [value, *np.linspace(others, 2, ROWS - 1).tolist()]


BAD = {
    "constant": ("features", 1.5, "the feature 'x' is 1.5 in every labelled row; expected"),
    "missing": ("features", np.nan, "the feature 'x' has no number in any labelled row; expected"),
    "text": ("features", "high", "column x: 'high' .*Name a column of text with categories"),
    "one text": ("features", first("high"), "column x: 'high' .*1 such row.*Fix or empty it"),
    "infinite": ("features", first(np.inf), "column x: .*inf.* is not a valid feature; expected"),
    "huge": (
        "features",
        first(-1e20),
        "column x: '-1e[+]20' .*a finite number up to 1e[+]15 or an",
    ),
    "one category": ("categories", "spr", "the category 'x' is 'spr' in every labelled row"),
    "no category": ("categories", np.nan, "the category 'x' is '.missing.' in every labelled row"),
    "names": ("categories", [f"n{n}" for n in range(ROWS)], "'x' has another value in every pair"),
    "error of 0": ("error", first(0.0), "column x: 0.0 .*is not a valid error; expected a finite"),
    "error below 0": ("error", first(-0.1), "column x: -0.1 .*is not a valid error; expected"),
    "no error": ("error", first(np.nan), "column x: .*is not a valid error; expected"),
    "error in words": ("error", "small", "column x: 'small' .*60 such rows.*not a valid error"),
    "weight of 0": ("weight", first(0.0), "column x: 0.0 .*is not a valid weight; expected"),
    "infinite weight": ("weight", first(np.inf), "column x: .*inf.* is not a valid weight"),
}


@pytest.mark.parametrize(("option", "cells", "words"), BAD.values(), ids=BAD)
def test_a_bad_column_is_one_line_and_nothing_is_written(case, tmp_path, option, cells, words):
    path = tmp_path / "pairs.csv"
    case.frame.assign(x=cells).to_csv(path, index=False)
    value = ("x",) if option in ("features", "categories") else "x"
    with pytest.raises(abag.AbagError, match=words) as refused:
        abag.fit(path, case.store, tmp_path / "run", **{option: value})
    message = str(refused.value)
    assert "\n" not in message
    assert str(path.name) in message
    command = ["fit", path, "--store", case.store, "--run", tmp_path / "run"]
    line = one_line(*command, f"--{option}", "x")
    assert line.replace("--", "") == f"Error: {message}"  # Python has keywords in place of flags
    assert not (tmp_path / "run").exists()
    planned = json.loads(run("plan", path, f"--{option}", "x", "--json", code=1).stdout)
    assert f"Error: {planned['refused']}" == line


@pytest.mark.parametrize("name", ["pKd", "heavy"])
def test_the_label_and_sequences_are_no_features(case, tmp_path, name):
    case.frame.to_csv(tmp_path / "pairs.csv", index=False)
    command = ["fit", tmp_path / "pairs.csv", "--store", case.store, "--run", tmp_path / "run"]
    flag = "--categories" if name == "heavy" else "--features"
    role = "the label" if name == "pKd" else "the heavy column"
    assert f"column {name!r} is {role}; expected another" in one_line(*command, flag, name)


@pytest.mark.parametrize(("noise", "is_said"), [(1e-3, True), (0.5, False)])
def test_a_copy_of_the_label_is_said_by_fit_and_plan(case, tmp_path, noise, is_said):
    rng = np.random.default_rng(0)
    copy = 3 - 2 * case.frame["pKd"] + noise * rng.normal(size=ROWS)
    table = case.frame.assign(copied=copy)
    lines = []
    options = {"head": "ridge", "report": False, "device": "cpu", "split": "random"}
    abag.fit(table, case.store, tmp_path / "run", features=("copied",), say=lines.append, **options)
    expected = "'copied' has a correlation of -1.0000 with the label: it may be the label itself"
    assert any(expected in line for line in lines) == is_said
    planned = abag.plan(table, features=("copied",))["beside"]
    assert any(expected in line for line in planned) == is_said


def test_a_hundred_thousand_features_are_refused_in_a_short_line(case, tmp_path):
    names = tuple(f"x{n}" for n in range(MANY))
    with pytest.raises(abag.AbagError, match="100,000 columns; expected at most") as refused:
        abag.fit(case.frame, case.store, tmp_path / "run", features=names)
    assert len(str(refused.value)) < 200
    command = ["fit", "pairs.csv", "--store", case.store, "--run", tmp_path / "run"]
    assert "100,000 columns; expected" in one_line(*command, "--features", ",".join(names))


def test_one_feature_of_many_columns_is_found_or_missed_in_a_short_line(case):
    columns = [f"x{n}" for n in range(MANY // 50)]
    wide = pd.DataFrame(np.zeros((ROWS, len(columns)), np.int8), columns=columns)
    table = pd.concat([case.frame.assign(ddg=np.linspace(0, 1, ROWS)), wide], axis=1)
    assert "features 'ddg'" in abag.plan(table, features=("ddg",))["beside"][0]
    refused = abag.plan(table, features=("x2000",))["refused"]
    assert "no column 'x2000', which is to be read as a feature. Did you mean" in refused
    assert len(refused) < 500


def test_more_values_of_categories_than_models_read_are_refused_in_a_short_line(tmp_path):
    frame = drawn.draw_pairs(1_100, 2)
    frame["lab"] = np.repeat([f"lab {n}" for n in range(1_100)], 2)
    drawn.add_vectors(tmp_path / "store", frame)
    with pytest.raises(abag.AbagError, match=r"too many features .*at most 1,000") as refused:
        abag.fit(frame, tmp_path / "store", tmp_path / "run", categories=("lab",))
    assert len(str(refused.value)) < 400
    assert not (tmp_path / "run").exists()


QUICK = {"head": "ridge", "split": "random", "report": False}


@pytest.mark.parametrize("option", ["features", "categories", "error", "weight"])
@pytest.mark.parametrize(("column", "what"), [("pKd", "the label"), ("heavy", "the heavy column")])
def test_columns_of_labels_and_sequences_describe_no_pair(case, tmp_path, option, column, what):
    value = (column,) if option in ("features", "categories") else column
    role = {"features": "feature", "categories": "category"}.get(option, option)
    expected = f"column '{column}' is {what}; expected another column as an? {role}. Leave it out"
    with pytest.raises(abag.ColumnError, match=expected):
        abag.fit(case.frame, case.store, tmp_path / "run", **{option: value}, **QUICK)
    assert not (tmp_path / "run").exists()
    assert re.search(expected, abag.plan(case.frame, **{option: value})["refused"])


def test_a_column_like_that_of_the_split_is_proposed(case, tmp_path):
    table = case.frame.assign(cluster=np.arange(ROWS) % 4)
    options = {"split": "column=clusters", "head": "ridge", "report": False}
    expected = "no column 'clusters', which split names; found .*Did you mean 'cluster'"
    with pytest.raises(abag.ColumnError, match=expected):
        abag.fit(table, case.store, tmp_path / "run", **options)


def test_a_column_that_one_of_several_tables_lacks_is_missing_there(case, tmp_path):
    first = case.frame[: ROWS // 2].assign(ddg=np.linspace(0, 1, ROWS // 2))
    plan = abag.plan([first, case.frame[ROWS // 2 :]], features=("ddg",))
    assert f"{ROWS // 2} of 'ddg'" in " ".join(plan["beside"])
    with pytest.raises(abag.ColumnError, match=r"no column 'dg', .*Did you mean 'ddg'"):
        abag.fit([first, case.frame[ROWS // 2 :]], case.store, tmp_path / "r", features=("dg",))


def test_names_of_columns_with_any_characters_are_kept_as_they_are(case, tmp_path):
    names = {"heavy": "heavy\u00a0chain", "antigen": "a\tb", "pKd": "my\u2009pKd \x1b[2J"}
    frame = case.frame.assign(ddg=np.linspace(0, 1, ROWS), lab=np.resize(["A", "B"], ROWS))
    names |= {"ddg": "d\u00a0dG\x1b", "lab": "lab\u202f\t1"}
    table = frame.rename(columns=names)
    columns = {"heavy": names["heavy"], "antigen": names["antigen"], "label": names["pKd"]}
    options = {"features": (names["ddg"],), "categories": (names["lab"],), **QUICK}
    abag.fit(table, case.store, tmp_path / "run", columns=columns, label="pkd", **options)
    options |= {"features": ("ddg",), "categories": ("lab",)}
    abag.fit(frame, case.store, tmp_path / "plain", **options)
    abag.predict(table, tmp_path / "run", tmp_path / "out.parquet", store=case.store)
    abag.predict(frame, tmp_path / "plain", tmp_path / "plain.parquet", store=case.store)
    scores = pd.read_parquet(tmp_path / "out.parquet")
    assert [*scores][: table.shape[1]] == [*table]
    expected = pd.read_parquet(tmp_path / "plain.parquet")["pkd_predicted"]
    np.testing.assert_array_equal(scores["pkd_predicted"], expected)


@pytest.mark.parametrize("role", ["heavy", "features", "categories"])
def test_what_a_predictor_cannot_hold_is_refused_before_training(case, tmp_path, role):
    name = "x" * 1_001
    old = "heavy" if role == "heavy" else "other"
    table = case.frame.assign(other=np.resize(["1", "2"], ROWS)).rename(columns={old: name})
    options = {"columns": {"heavy": name}} if role == "heavy" else {role: (name,)}
    with pytest.raises(abag.AbagError, match="expected 1 to 1,000") as refused:
        abag.fit(table, case.store, tmp_path / "run", **options, **QUICK)
    assert len(str(refused.value)) < 400
    assert not (tmp_path / "run").exists()


def test_a_first_residue_beyond_those_of_a_predictor_is_no_option():
    for number in (5_000_001, -(10**6) - 1, 10**5_000):
        with pytest.raises(abag.OptionError, match="is out of range; expected -1,000,000 to"):
            abag.PlanOptions(first_residue=number)


def test_the_largest_labels_that_are_read_give_a_predictor_that_is_read(case, tmp_path):
    table = case.frame.rename(columns={"pKd": "mfi"})
    table["mfi"] *= 0.9 * MOST_VALUE / table["mfi"].max()
    options = {"head": "gp", "label": "value", "better": "higher", "columns": {"label": "mfi"}}
    abag.fit(table, case.store, tmp_path / "run", **QUICK | options)
    assert abag.load_predictor(tmp_path / "run").label_sd > 1e10


LONG = {"words": "not 1 number " * 10_000, "letters": "J" * 100_000, "digits": "9" * 5_000}
PLACES = {
    "pKd": {}, "heavy": {}, "antigen": {}, "censored": {}, "affinity_type": {},
    "x": {"features": ("x",)}, "w": {"weight": "w"}, "part": {"split": "column=part"},
    "mutations": {"parent": HEAVY}, "name": {"sequences": ("names.csv",)},
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("place", PLACES)
def test_a_long_cell_is_quoted_by_its_ends(case, tmp_path, monkeypatch, place, kind):
    monkeypatch.chdir(tmp_path)
    table = case.frame.head(20).assign(x=range(20), w=1.0, censored="=", affinity_type="Kd")
    table = table.assign(part=np.resize(["train", "validation", "test"], 20))
    if place == "mutations":
        table = table.drop(columns="heavy").assign(mutations=f"{HEAVY[49]}50G")
    if place == "name":
        pd.DataFrame({"name": ["one"], "heavy": [HEAVY]}).to_csv("names.csv", index=False)
        table = table.drop(columns="heavy").assign(name="one")
    table = table.astype({place: object})
    table.loc[3, place] = LONG[kind]

    def read():
        pairs = read_labels(table, **({} if place == "part" else PLACES[place]))
        splits_of(pairs, **PLACES[place])

    messages = []
    with reporting(messages.append), pytest.raises(abag.AbagError) as refused:
        read()
    for message in (str(refused.value), *messages):
        assert max(map(len, message.splitlines())) < 700
