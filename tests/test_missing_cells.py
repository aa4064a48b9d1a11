"""Cells that are missing, in every column that is read beside the sequences and the label."""

import drawn
import numpy as np
import pandas as pd
import pytest
from reading import read_labels, splits_of

import abag
from abag import PredictionError
from abag.head.evaluation.verdicts import label_problems, summarize_labels
from abag.head.models.pair_vectors import PairVectors, TrainingRows
from abag.head.predictor.parts import BaselineInputs
from abag.head.regimes.splits import TEST, TRAIN, Split
from abag.head.runs.rounds import NAMES, measured_rows

MISSING = {"none": None, "nan": np.nan, "NA": pd.NA, "empty": "", "spaces": "  ", "text": "NA"}
WORDS = {
    "assay": ["SPR", "ELISA"], "dataset": ["SPR", "ELISA"], "study": ["one", "two"],
    "source": ["SPR", "ELISA"], "affinity_type": ["Kd", "Kd"], "censored": ["=", ">"],
    "antibody_name": ["one", "two"], "antigen_name": ["one", "two"], "id": ["one", "two"],
    "lab": ["A", "B"], "ddg": [1.5, 2.5], "fold": ["one", "two"],
    "part": ["test", "train", "validation", "train"],
}  # fmt: skip
"""Two values of each column that is read beside sequences and labels."""


def with_cell(name, cell, rows=12):
    """Return pairs with a column, of whose cells the third is this one."""
    frame = drawn.planted_table(rows // 2, 2).drop(columns="part")
    values = np.resize(np.array(WORDS[name], object), rows)
    values[2] = cell
    return frame.assign(**{name: pd.Series(values, dtype=object)})


def what_is_read(table, name):
    """Return what `plan` and `fit` take from a column."""
    options = {"lab": {"categories": ("lab",)}, "ddg": {"features": ("ddg",)}}.get(name, {})
    pairs = read_labels(table, **options)
    summary = summarize_labels(pairs)
    summary["range"] = np.round(summary["range"], 12).tolist()
    read = {"summary": summary, "problems": label_problems(pairs)}
    # the last bit of a number depends on the file, and on the version of pandas
    read |= {"pkd": np.round(pairs.pkd, 12), "censored": pairs.censored, "assay": pairs.assay}
    read |= {"quantity": pairs.quantity, "unit": pairs.unit}
    measured = measured_rows(pairs).drop(columns="row").round({"pkd": 12})
    read["measured"] = measured.astype(object).to_dict("list")
    if pairs.cells is not None:
        read |= {"numbers": pairs.cells.numbers_RF, "words": pairs.cells.words_RG}
    if name in ("part", "fold"):
        (split,) = splits_of(pairs, split=f"column={name}")
        read["split"] = split.part
    return read


@pytest.mark.ci
@pytest.mark.parametrize("name", WORDS)
def test_a_missing_cell_is_not_stated_whatever_writes_it(tmp_path, name):
    expected = what_is_read(with_cell(name, None), name)
    files = set()
    for kind, cell in MISSING.items():
        if kind == "text" and name in NAMES:  # ``NA`` is the name of an antigen
            continue
        table = with_cell(name, cell)
        read = [table, table.astype({name: "category"})]
        table.to_csv(tmp_path / f"{kind}.csv", index=False)
        table.astype({name: "string"}).to_parquet(tmp_path / f"{kind}.parquet")
        for path in (tmp_path / f"{kind}.csv", tmp_path / f"{kind}.parquet"):
            if path.read_bytes() not in files:  # None, NaN and NA are written alike
                files.add(path.read_bytes())
                read.append(path)
        for given in read:
            np.testing.assert_equal(what_is_read(given, name), expected, err_msg=kind)


def test_an_antigen_called_na_keeps_its_name():
    pairs = read_labels(drawn.planted_table(6, 2).assign(antigen_name=["NA", "HA"] * 6))
    assert {*pairs.names_of("antigen").values()} == {"NA", "HA"}
    assert measured_rows(pairs)["antigen_name"].tolist().count("NA") == 6


def test_pairs_of_no_stated_assay_have_the_mean_of_all_training_pairs():
    part = np.array([TRAIN, TRAIN, TRAIN, TRAIN, TEST, TEST], np.int8)
    split = Split(name="drawn", part=part, group=np.arange(6))
    pkd = np.array([5.0, 6.0, 9.0, 4.0, 0.0, 0.0])
    pairs = drawn.labelled(np.arange(6), np.arange(6), pkd)
    training = TrainingRows(pairs, PairVectors({}), np.arange(4), np.arange(4))
    mean = BaselineInputs(pairs, training, split, None).mean_of(np.array([0, 0, 1, -1, -1, 1]))
    assert mean.tolist() == [5.5, 5.5, 9.0, 6.0, 6.0, 9.0]


@pytest.mark.parametrize(
    "cells", [["Camel", "Llama"], ["COV107", "COV021"], ["10.1038/s41586", "10.1016/j.cell"]]
)
def test_a_column_source_is_of_assays_only_if_it_names_some(cells):
    frame = drawn.planted_table(6, 2).assign(source=cells * 6)
    assert read_labels(frame).assay is None
    assert read_labels(frame, columns={"assay": "source"}).assay is not None
    assert read_labels(frame.rename(columns={"source": "assay"})).assay is not None
    assert read_labels([frame, frame.iloc[:4]]).assay is None


@pytest.mark.parametrize("column", ["far", "position"])
def test_rank_reads_a_table_with_missing_cells_as_its_csv(tmp_path, column):
    table = drawn.planted_table(20, 2).drop(columns="part")
    table = table.rename(columns={"pKd": "pkd_predicted"}).assign(sigma=0.5, chain="heavy")
    table = table.assign(far=pd.array([False] * 40, "boolean"), position=[*map(str, range(40))])
    table = table.assign(position=table["position"].astype("string"))
    table.loc[table.nlargest(5, "pkd_predicted").index, column] = pd.NA
    lines = []
    for write, name in ((table.to_parquet, "table.parquet"), (table.to_csv, "table.csv")):
        write(tmp_path / name, index=False)
        out = tmp_path / f"{name}.csv"
        try:
            abag.rank(tmp_path / name, out, batch=4, per_position=1)
            lines.append(pd.read_csv(out)["pkd_predicted"].round(4).tolist())
        except PredictionError as error:
            lines.append(str(error).partition(" is not a valid ")[2])
    assert lines[0] == lines[1]
    assert ("flag; expected True or False" in lines[0]) == (column == "far")
