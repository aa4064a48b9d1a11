"""Several tables are read as one, each by its own columns."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from invoke import PLAIN_ENCODERS, one_line, run
from reading import demo_table, read_chunks, read_labels, read_sequences

import abag
from abag import LabelError, TableError
from abag.head.labels import column as labels
from abag.head.labels import values

PAIRS = demo_table().head(90)
FIRST = PAIRS.head(50)
SECOND = PAIRS.iloc[45:].rename(columns={"heavy": "VH", "light": "VL", "antigen": "ag_seq"})
BOTH = pd.concat([FIRST, PAIRS.iloc[45:]], ignore_index=True)


def texts(read, kind):
    return ["|".join(read.sequences[kind].chains[i]) for i in read.sequences[kind].of_row]


@pytest.fixture
def files(tmp_path):
    FIRST.to_csv(tmp_path / "a.csv", index=False)
    SECOND.assign(round=2).to_csv(tmp_path / "b.txt", sep="\t", index=False)
    return [tmp_path / "a.csv", tmp_path / "b.txt"]


def test_rows_and_sequences_are_those_of_one_table_with_all_rows(files):
    read = read_sequences(files)
    whole = read_sequences(BOTH)
    for kind in ("antibody", "antigen"):
        assert texts(read, kind) == texts(whole, kind)
        assert set(read.sequences[kind].chains) == set(whole.sequences[kind].chains)
        assert (read.sequences[kind].keys == whole.sequences[kind].keys).all()
    assert read.frame["pKd"].astype(float).tolist() == BOTH["pKd"].tolist()
    assert read.frame["file"].tolist() == ["a.csv"] * 50 + ["b.txt"] * 45
    assert read.frame["round"].isna().tolist() == [True] * 50 + [False] * 45
    assert read.row_numbers.tolist() == [*range(2, 52), *range(2, 47)]
    assert read.positions.tolist() == [*range(95)]
    notes = " ".join(abag.plan(files)["notes"])
    assert "b.txt: columns are read as those of the others: 'VH' as 'heavy'" in notes


@pytest.mark.parametrize("taken", [[], ["file"], ["file", "source_file", "joined_file", "file_2"]])
def test_a_column_names_the_table_of_a_row_whatever_columns_there_are(taken):
    tables = [FIRST.assign(**dict.fromkeys(taken, "x")), SECOND]
    names = read_sequences(tables).frame.iloc[:, -1]
    assert names.name not in taken
    assert names.tolist() == ["table 1"] * 50 + ["table 2"] * 45


def test_chunks_of_several_tables_are_their_rows(files):
    chunks = [*read_chunks(files, rows=20, as_written=True)]
    assert [len(chunk.frame) for chunk in chunks] == [20, 20, 10, 20, 20, 5]
    assert [text for chunk in chunks for text in texts(chunk, "antibody")] == texts(
        read_sequences(BOTH), "antibody"
    )
    assert [at for chunk in chunks for at in chunk.positions.tolist()] == [*range(95)]
    assert {tuple(chunk.frame.columns) for chunk in chunks} == {
        ("id", "heavy", "light", "antigen", "pKd", "round", "file")
    }


def test_the_first_rows_of_several_tables(files):
    read = read_sequences(files, limit=60)
    assert read.frame["id"].tolist() == BOTH["id"].head(60).tolist()


def test_replicates_across_tables_are_joined_as_those_within_one(tmp_path, files):
    shifted = SECOND.assign(pKd=SECOND["pKd"] + 0.5)
    shifted.to_csv(tmp_path / "b.csv", index=False)
    read = read_labels([files[0], tmp_path / "b.csv"])
    usual = {"VH": "heavy", "VL": "light", "ag_seq": "antigen"}
    whole = pd.concat([FIRST, shifted.rename(columns=usual)])
    expected = read_labels(whole.reset_index(drop=True))
    assert read.counts == expected.counts
    assert read.counts["replicate_rows"] == 5
    np.testing.assert_array_equal(read.pkd, expected.pkd)
    assert read.noise == expected.noise


def test_labels_of_one_unit_with_other_names_are_one_column(tmp_path, files):
    SECOND.rename(columns={"pKd": "pKd (SPR)"}).to_csv(tmp_path / "c.csv", index=False)
    read = read_labels([files[0], tmp_path / "c.csv"])
    expected = read_labels(BOTH)
    np.testing.assert_array_equal(read.pkd, expected.pkd)
    note = "c.csv: columns are read as those of the others: 'VH' as 'heavy', 'VL' as 'light', "
    assert f"{note}'ag_seq' as 'antigen', 'pKd (SPR)' as 'pKd'" in read.table.notes


def test_labels_of_different_quantities_are_refused(tmp_path):
    for name, column in (("tm", "Tm (C)"), ("yield", "expression (mg/L)")):
        PAIRS.rename(columns={"pKd": column}).to_csv(tmp_path / f"{name}.csv", index=False)
    tables = [tmp_path / "tm.csv", tmp_path / "yield.csv"]
    with pytest.raises(
        LabelError, match=r"different quantities: 'Tm \(C\)' of tm.csv as Tm \(C\); "
    ):
        read_labels(tables)


def test_classes_that_are_called_otherwise_in_another_table_are_named(tmp_path):
    paths = []
    for name, words in (("a.csv", ["yes", "no"]), ("b.csv", ["1", "0"])):
        paths.append(tmp_path / name)
        PAIRS.head(10).drop(columns="pKd").assign(binder=words * 5).to_csv(paths[-1], index=False)
    said = "'binder' of a.csv as binder, 'yes' or 'no', .* of b.csv as binder, '1' or '0'"
    with pytest.raises(LabelError, match=said):
        read_labels(paths)


def test_a_hyphen_is_no_only_in_a_table_that_has_a_plus_too():
    first = FIRST.drop(columns="pKd").assign(binder=np.resize(["yes", "no", "-"], len(FIRST)))
    second = SECOND.drop(columns="pKd").assign(binder=np.resize(["+", "-"], len(SECOND)))
    options = {"columns": {"label": "binder"}, "classes": ("no", "yes")}
    with pytest.raises(LabelError, match="16 rows are bad") as caught:
        read_labels([first, second], **options)
    assert "of table 1, column 'binder': '-' is not a valid label" in str(caught.value)
    assert "of table 2, column" not in str(caught.value)
    assert len(read_labels(second, **options)) == len(SECOND)


def test_kd_and_ic50_of_two_tables_are_not_one_label(tmp_path):
    nanomolar = 10 ** (9 - FIRST["pKd"])
    for name, column in (("kd.csv", "Kd (nM)"), ("ic50.csv", "IC50 (nM)")):
        FIRST.drop(columns="pKd").assign(**{column: nanomolar}).to_csv(tmp_path / name, index=False)
    with pytest.raises(
        LabelError, match=r"'Kd \(nM\)' of kd.csv as pKd; 'IC50 \(nM\)' of .* as pIC50"
    ):
        read_labels([tmp_path / "kd.csv", tmp_path / "ic50.csv"])


def test_labels_in_different_units_are_refused(tmp_path, files):
    nanomolar = SECOND.assign(**{"KD (nM)": 10 ** (9 - SECOND["pKd"])}).drop(columns="pKd")
    nanomolar.to_csv(tmp_path / "nm.csv", index=False)
    with pytest.raises(LabelError, match="the labels are in different units") as caught:
        read_labels([files[0], tmp_path / "nm.csv"])
    assert "'pKd' of a.csv as pkd; 'KD (nM)' of nm.csv as kd_nm" in str(caught.value)


def test_a_table_that_has_the_label_of_another_beside_its_own_is_refused(tmp_path):
    kd = 10 ** (9 - FIRST["pKd"])
    unlabelled = FIRST.drop(columns="pKd")
    unlabelled.assign(Kd=kd).to_csv(tmp_path / "one.csv", index=False)
    unlabelled.assign(Kd=2 * kd, **{"Kd (nM)": kd}).to_csv(tmp_path / "two.csv", index=False)
    tables = [tmp_path / "one.csv", tmp_path / "two.csv"]
    with pytest.raises(LabelError, match=r"^two\.csv: its label is 'Kd \(nM\)', that of one\.csv"):
        read_labels(tables, label="kd_nm")
    assert (
        "that of one.csv is 'Kd', which two.csv has" in abag.plan(tables, label="kd_nm")["refused"]
    )


def test_a_table_whose_values_are_of_another_unit_is_refused_by_its_name(tmp_path):
    for name, scale in (("nm.csv", 1.0), ("m.csv", 1e-9)):
        kd = 10 ** (9 - FIRST["pKd"]) * scale
        FIRST.drop(columns="pKd").assign(Kd=kd).to_csv(tmp_path / name, index=False)
    tables = [tmp_path / "nm.csv", tmp_path / "m.csv"]
    with pytest.raises(LabelError, match=r"^m\.csv: column Kd"):
        read_labels(tables, label="kd_nm")


def test_bad_rows_are_listed_with_their_table(tmp_path, files):
    changed = SECOND.copy()
    changed.loc[46, "VH"] = "EVQ!"
    changed.loc[47, "pKd"] = None
    changed.to_csv(tmp_path / "d.csv", index=False)
    store = ("--store", tmp_path / "store")
    run("embed", files[0], *store, *PLAIN_ENCODERS)
    done = run("fit", files[0], tmp_path / "d.csv", *store, "--run", tmp_path / "r", code=1)
    assert "row 3 of d.csv, column 'VH': character '!'" in done.stderr
    assert "row 4 of d.csv, column 'pKd': an empty cell" in done.stderr
    assert not (tmp_path / "r").exists()


def test_columns_that_would_be_mixed_up_are_refused(tmp_path, files):
    SECOND.assign(heavy="x").to_csv(tmp_path / "e.csv", index=False)
    with pytest.raises(abag.AbagError, match=r"^e\.csv"):
        abag.plan([files[0], tmp_path / "e.csv"])
    with pytest.raises(TableError, match="is given twice"):
        abag.plan([files[0], files[0]])


@pytest.mark.ci
def test_commands_read_several_tables(tmp_path, files):
    store = ("--store", tmp_path / "store")
    embedded = json.loads(run("embed", *files, *store, *PLAIN_ENCODERS, "--json").stdout)
    assert embedded["rows"] == 95
    assert embedded["antibodies"]["unique"] == len(PAIRS[["heavy", "light"]].drop_duplicates())
    assert json.loads(run("plan", *files, "--json").stdout)["rows"] == 95
    options = ("--split", "random", "--epochs", 1, "--device", "cpu")
    folder = ("--run", tmp_path / "r")
    fitted = json.loads(run("fit", *files, *store, *folder, *options, "--json").stdout)
    assert fitted["data"]["pairs"] == len(PAIRS.drop_duplicates(["heavy", "light", "antigen"]))
    predicted = run("predict", *files, *store, *folder, "--out", tmp_path / "out.csv")
    assert "b.txt: columns are read as those of the others: 'VH' as 'heavy'" in predicted.stderr
    assert predicted.stderr.count("names the table of a row") == 1
    out = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert out["heavy"].tolist() == BOTH["heavy"].tolist()
    assert out["file"].tolist() == ["a.csv"] * 50 + ["b.txt"] * 45
    run("predict", files[1], *store, *folder, "--out", tmp_path / "b.csv")
    alone = pd.read_csv(tmp_path / "b.csv")
    assert out["pkd_predicted"][50:].astype(float).tolist() == alone["pkd_predicted"].tolist()
    scores = json.loads(run("evaluate", *files, *folder, "--json").stdout)
    assert scores["table"]["pairs"] == fitted["data"]["pairs"]
    searched = ("--sweep", tmp_path / "s", "--trials", 1, "--split", "random", "--device", "cpu")
    run("sweep", *files, *store, *searched)
    residues = ("--out", tmp_path / "residues", *PLAIN_ENCODERS)
    written = json.loads(run("residues", *files, *residues, "--json").stdout)
    assert written["antibodies"]["unique"] == embedded["antibodies"]["unique"]
    crossed = ("--cross", files[0], "--out", tmp_path / "x.csv")
    text = one_line("predict", *files, *crossed, *store, *folder)
    assert "2 tables: expected one" in text


def test_the_label_of_each_table_of_a_fit_is_decided_once_and_converted_once(
    tmp_path, files, monkeypatch
):
    calls = Counter()
    for module, name in ((labels, "meaning_of_column"), (values, "to_pkd")):
        original = getattr(module, name)

        def counted(*given, name=name, original=original, **options):
            calls[name] += 1
            return original(*given, **options)

        monkeypatch.setattr(module, name, counted)
    store = ("--store", tmp_path / "store")
    run("embed", *files, *store, *PLAIN_ENCODERS)
    assert not calls  # the first stage knows no labels
    options = ("--split", "random", "--head", "ridge", "--device", "cpu")
    run("fit", *files, *store, "--run", tmp_path / "r", *options)
    assert calls == {"meaning_of_column": len(files), "to_pkd": 1}
