"""A matrix of labels is read as a row per cell that is filled."""

import re

import numpy as np
import pandas as pd
import pytest
from reading import read_labels, read_sequences
from trastuzumab import D13_HEAVY, D13_LIGHT, HEAVY, LIGHT

import abag
from abag import ColumnError, OptionError, TableError

ANTIGENS = ["TQVCTGTDMKLRLPASPETHLDMLRHLYQGC", "MRVKEKYQHLWRWGWRWGTMLLGMLMICSAT"]
CELLS = pd.DataFrame(
    {
        "heavy": [HEAVY, D13_HEAVY, HEAVY],
        "light": [LIGHT, D13_LIGHT, ""],
        "note": ["a", "b", "c"],
        ANTIGENS[0]: ["12.5", ">1000", ""],
        ANTIGENS[1]: [np.nan, "3", "40"],
    }
)


@pytest.mark.parametrize("name", ["m.csv", "m.xlsx", "m.parquet", "m.jsonl"])
def test_each_filled_cell_is_a_pair_and_an_empty_one_is_none(tmp_path, name):
    path = tmp_path / name
    write = {"csv": CELLS.to_csv, "xlsx": CELLS.to_excel, "parquet": CELLS.to_parquet}
    if name == "m.jsonl":
        CELLS.to_json(path, orient="records", lines=True)
    else:
        write[name.partition(".")[2]](path, index=False)
    read = read_sequences(path, matrix=True)
    pairs = [
        ("|".join(read.antibodies.chains[a]), read.antigens.chains[g][0])
        for a, g in zip(read.antibodies.of_row, read.antigens.of_row, strict=True)
    ]
    first, second, third = (f"{h}|{k}" for h, k in zip(CELLS["heavy"], CELLS["light"], strict=True))
    expected = [(first, 0), (second, 0), (second, 1), (third, 1)]
    assert pairs == [(antibody, ANTIGENS[at]) for antibody, at in expected]
    header = 1 if name in ("m.csv", "m.xlsx") else 0
    assert read.row_numbers.tolist() == [header + n for n in (1, 2, 2, 3)]
    assert read.frame["note"].tolist() == ["a", "b", "b", "c"]
    labels = read_labels(path, matrix=True, label="kd_nm")
    sides = dict(zip(labels.pkd.round(6).tolist(), labels.censored.tolist(), strict=True))
    assert sides == {
        round(9 - np.log10(kd), 6): side for kd, side in ((12.5, 0), (1000, -1), (3, 0), (40, 0))
    }
    assert (
        "4 labels, 2 empty cells left out as not measured"
        in abag.plan(path, matrix=True)["notes"][0]
    )


def test_names_on_both_sides_of_a_matrix(tmp_path):
    (tmp_path / "all.fasta").write_text(
        f">tras_H\n{HEAVY}\n>tras_L\n{LIGHT}\n>D1.3_H\n{D13_HEAVY}\n>D1.3_L\n{D13_LIGHT}\n"
        f">HER2\n{ANTIGENS[0]}\n>gp120\n{ANTIGENS[1]}\n"
    )
    cells = pd.DataFrame({"Unnamed: 0": ["tras", "D1.3"], "HER2": [8.1, None], "gp120": [5.5, 6.0]})
    cells.to_csv(tmp_path / "m.csv", index=False)
    options = {"matrix": True, "sequences": (str(tmp_path / "all.fasta"),)}
    read = read_sequences(tmp_path / "m.csv", **options)
    assert [read.antibodies.chains[i] for i in read.antibodies.of_row] == [
        (HEAVY, LIGHT),
        (HEAVY, LIGHT),
        (D13_HEAVY, D13_LIGHT),
    ]
    assert [read.antigens.chains[i][0] for i in read.antigens.of_row] == [*ANTIGENS, ANTIGENS[1]]
    assert read.frame["label"].tolist() == ["8.1", "5.5", "6.0"]
    looked_up = "the headers of the matrix hold names of antigens, looked up in all.fasta: "
    assert any(note.startswith(looked_up) for note in read.notes)
    assert any("2 antigens, read from the headers ('HER2', 'gp120')" in note for note in read.notes)
    # a column of numbers that names no antigen is not dropped
    cells.assign(weight=[1.0, 2.0]).to_csv(tmp_path / "w.csv", index=False)
    with pytest.raises(abag.AbagError, match="'weight' has no antigen sequence in all"):
        abag.plan(tmp_path / "w.csv", **options)


def test_the_index_that_pandas_writes_is_no_antigen_of_a_matrix(tmp_path):
    CELLS.to_csv(tmp_path / "m.csv")
    read = read_sequences(tmp_path / "m.csv", matrix=True)
    assert read.antigens.chains == [(antigen,) for antigen in ANTIGENS]
    assert read.antibodies.of_row.tolist() == [0, 1, 1, 2]
    (tmp_path / "all.fasta").write_text(
        f">tras_H\n{HEAVY}\n>7_H\n{D13_HEAVY}\n>HER2\n{ANTIGENS[0]}\n>gp120\n{ANTIGENS[1]}\n"
    )
    named = pd.DataFrame({"mab": ["tras", "7"], "HER2": [8.1, None], "gp120": [5.5, 6.0]})
    named.to_csv(tmp_path / "n.csv")
    named.set_index("mab").rename_axis(None).to_csv(tmp_path / "i.csv")
    for name in ("n.csv", "i.csv"):
        read = read_sequences(tmp_path / name, matrix=True, sequences=[tmp_path / "all.fasta"])
        assert [chains[0] for chains in read.antibodies.chains] == [HEAVY, D13_HEAVY]
        assert len(read.frame) == 3


def test_a_table_of_pairs_is_no_matrix(tmp_path):
    table = pd.DataFrame({"heavy": [HEAVY], "antigen": [ANTIGENS[0]], "pKd": [8.0]})
    with pytest.raises(TableError, match="'antigen', which matrix makes of the other columns"):
        abag.plan(table, matrix=True)
    with pytest.raises(TableError, match="has no columns of labels"):
        abag.plan(table[["heavy"]], matrix=True)
    with pytest.raises(OptionError, match="--matrix and --antigen"):
        abag.PlanOptions(matrix=True, antigen=ANTIGENS[0])


@pytest.mark.parametrize("unit", ["ug_ml", "pkd"])
def test_a_matrix_of_values_that_are_no_pkd_needs_their_unit(tmp_path, unit):
    cells = CELLS.assign(**{ANTIGENS[0]: ["0.012", ">10", "3"], ANTIGENS[1]: ["", "5.2", "0.4"]})
    cells.to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(
        ColumnError, match=r"2 of 5, such as 0\.012, are outside the usual range"
    ) as why:
        read_labels(tmp_path / "m.csv", matrix=True)
    assert "--label ug_ml" in str(why.value)
    assert "outside the usual range" in str(abag.plan(tmp_path / "m.csv", matrix=True))
    labels = read_labels(tmp_path / "m.csv", matrix=True, label=unit)
    assert len(labels.pkd) == 5


@pytest.mark.parametrize(
    ("headers", "unit"),
    [
        (("IL-6 (nM)", "BA.1 (nM)"), "kd_nm"),
        (("KD IL-6 [pM]", "KD BA.1 [pM]"), "kd_pm"),
        (("IL-6_ic50_ngml", "BA.1_IC50_ngml"), "ng_ml"),
        (("IL-6-IC50 (µg/mL)", "BA.1-IC50 (µg/mL)"), "ug_ml"),
        (("pKd_IL-6", "pKd_BA.1"), "pkd"),
    ],
)
def test_what_all_headers_of_a_matrix_say_of_labels_is_no_part_of_the_antigen(
    tmp_path, headers, unit
):
    (tmp_path / "names.fasta").write_text(f">IL-6\n{ANTIGENS[0]}\n>BA.1\n{ANTIGENS[1]}\n")
    matrix = CELLS[["heavy", "light"]].assign(**{headers[0]: 4.5, headers[1]: ">7"})
    options = {"matrix": True, "sequences": [tmp_path / "names.fasta"]}
    pairs = read_labels(matrix, **options)
    assert pairs.unit == unit
    assert (pairs.censored != 0).sum() == 3
    for other in ("IL-6 (uM)", "TNF"):  # another unit of one antigen, or none
        doubtful = matrix.rename(columns={headers[1]: other})
        with pytest.raises(
            abag.AbagError, match=re.escape(f"'{headers[0]}' has no antigen sequence")
        ):
            read_labels(doubtful, **options)


def test_the_unit_that_no_header_of_a_matrix_says_is_asked_for_and_titles_are_said(tmp_path):
    (tmp_path / "names.fasta").write_text(f">IL-6\n{ANTIGENS[0]}\n>BA.1\n{ANTIGENS[1]}\n")
    matrix = CELLS[["heavy", "light"]].assign(**{"IL-6-IC50": 0.2, "BA.1-IC50": ">7"})
    text = f"Neutralization (µg/mL),,,\n{matrix.to_csv(index=False)}"
    (tmp_path / "m.csv").write_text(text, encoding="cp1252")
    options = {"matrix": True, "sequences": [tmp_path / "names.fasta"]}
    with pytest.raises(ColumnError, match="Give it with --label UNIT"):
        read_labels(tmp_path / "m.csv", **options)
    notes = " ".join(read_labels(tmp_path / "m.csv", **options, label="ug_ml").table.notes)
    assert "read as Windows-1252" in notes
    assert "1 line above the header not read: 'Neutralization (µg/mL)'" in notes
    assert "matrix of 3 rows and 2 antigens" in notes


def test_a_panel_without_a_column_of_antigens_is_told_of_the_option():
    panel = CELLS[["heavy", "light"]].assign(WT="1.2", BA1=[">10", "3", "0.1"], XBB=7.5)
    with pytest.raises(ColumnError, match="add --matrix if each antigen has a column of labels"):
        read_sequences(panel)


@pytest.mark.parametrize("odd", ["NB", "no binding", "ND"])
def test_an_antigen_that_hardly_anything_binds_is_one_of_a_matrix(odd):
    cells = CELLS.assign(**{ANTIGENS[1]: [odd, odd, "7.5"]})
    pairs = read_labels(cells, matrix=True, label="kd_nm", no_binding=5000.0)
    assert len(pairs) == 5
    assert pairs.counts["no_binding_rows"] == 2


@pytest.mark.parametrize(
    ("cells", "options", "labels"),
    [
        (("yes", "no", "yes"), {}, [0, 0, 1, 1, 1, 1]),
        (("TRUE", "", "FALSE"), {}, [0, 0, 1, 1]),
        (("-", "+", "-"), {}, [0, 0, 0, 0, 1, 1]),
        (("+", "-", "+++"), {"classes": ("-", "+", "+++")}, [0, 0, 1, 1, 2, 2]),
        (("2 nM", ">1 µM", "200 pM"), {}, [6, 6, 8.69897, 8.69897, 9.69897, 9.69897]),
    ],
)
def test_a_matrix_may_hold_classes_or_cells_with_units(cells, options, labels):
    matrix = CELLS.assign(**{ANTIGENS[0]: cells, ANTIGENS[1]: cells[::-1]})
    read = read_labels(matrix, matrix=True, **options)
    np.testing.assert_allclose(sorted(read.pkd), labels, rtol=1e-6)


def test_a_column_of_yes_and_no_is_no_antigen_of_a_matrix_of_numbers():
    read = read_labels(CELLS.assign(human=["yes", "no", "no"]), matrix=True, label="kd_nm")
    assert len(read) == 4
    assert "human" in read.table.frame


@pytest.mark.parametrize("mark", ["-", "NT", "not tested", "."])
def test_an_antigen_that_hardly_anything_was_tested_on_is_one_of_a_matrix(mark):
    cells = CELLS.assign(**{ANTIGENS[1]: [mark, mark, "7.5"]})
    header = ANTIGENS[1][:20]
    with pytest.raises(
        abag.LabelError,
        match=rf"2 rows are bad.*\n.*column '{header}.*'{mark}' is not a valid label",
    ):
        read_labels(cells, matrix=True, label="kd_nm")
    assert len(read_labels(cells, matrix=True, label="kd_nm", bad_rows="skip")) == 3


@pytest.mark.parametrize("mark", ["nt", "-"])
@pytest.mark.parametrize("label", [None, "binary"])
def test_a_matrix_of_words_beside_a_mark_says_how_it_is_read(label, mark):
    cells = CELLS.assign(**{ANTIGENS[0]: ["yes", "no", mark], ANTIGENS[1]: ["no", "yes", "yes"]})
    named = rf"'{mark}'.*--classes 'no,yes' .--bad-rows skip"
    with pytest.raises(abag.LabelError, match=named) as said:
        read_labels(cells, matrix=True, label=label)
    assert "\n" not in str(said.value)
    read = read_labels(cells, matrix=True, classes=("no", "yes"), bad_rows="skip")
    assert sorted(read.pkd) == [0, 0, 1, 1, 1]


def test_labels_of_a_matrix_are_read_without_their_errors():
    errors = CELLS.assign(**{name: ["7 ± 1 nM", "8 +/- 1 nM", "(9 ± 1) nM"] for name in ANTIGENS})
    plain = CELLS.assign(**{name: ["7 nM", "8 nM", "9 nM"] for name in ANTIGENS})
    assert read_labels(errors, matrix=True).pkd == pytest.approx(
        read_labels(plain, matrix=True).pkd
    )


def test_labels_of_a_matrix_with_decimal_commas_are_refused_not_left_out():
    cells = CELLS.assign(**{ANTIGENS[1]: ["7,5", "1 200,5", "<3"]})
    with pytest.raises(abag.LabelError, match=r"2 rows are bad.*\n.*'7,5' is not a valid label"):
        read_labels(cells, matrix=True, label="kd_nm")
