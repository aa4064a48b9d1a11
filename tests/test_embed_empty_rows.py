"""Rows without any content, which spreadsheets write and do not show, are skipped and reported."""

import pandas as pd
import pytest
from drawn import COMPOSITION
from reading import demo_table, read_chunks, read_sequences
from trastuzumab import HEAVY

import abag
from abag import SequenceError, TableError
from abag.sklearn import PairVectorizer

EMPTY = [0, 7, 8, 63]
"""Positions of the empty rows among the others; the last is the last row."""
KEPT = [number for number in range(64) if number not in EMPTY]
NOTE = "4 rows with only empty cells skipped; the first is row 2"
BELOW = NOTE.replace("4", "3")
"""Excel files end with the last row that has a value."""
WITHOUT_HEADER = NOTE.replace("row 2", "row 1")
"""Of Parquet files and tables in memory."""


def notes_of(pairs):
    """Return the notes less that on the nanobodies of the demo."""
    return [note for note in pairs.notes if "nanobodies" not in note]


def spaced():
    """Return 60 rows of the demo with those of `EMPTY` among them."""
    return demo_table().head(60).set_axis(KEPT).reindex(range(64))


def written(path, frame):
    if path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.xlsx", "a.parquet"])
def test_empty_rows_are_skipped_and_other_rows_keep_their_numbers(tmp_path, name, as_written):
    path = written(tmp_path / name, spaced())
    note = {"a.xlsx": BELOW, "a.parquet": WITHOUT_HEADER}.get(name, NOTE)
    pairs = read_sequences(path, as_written=as_written)
    first = 1 if name == "a.parquet" else 2
    assert (pairs.row_numbers - first).tolist() == KEPT
    assert pairs.frame["heavy"].tolist() == demo_table().head(60)["heavy"].tolist()
    assert notes_of(pairs) == [note]
    (chunk,) = read_chunks(path)
    assert notes_of(chunk) == [note]
    assert chunk.row_numbers.tolist() == pairs.row_numbers.tolist()


@pytest.mark.parametrize("blank", ["", " ", "NA"])
def test_cells_without_content_may_hold_blanks_or_stand_for_missing_values(tmp_path, blank):
    frame = spaced()[["heavy", "antigen", "pKd"]].astype(object).fillna(blank)
    for as_written in (False, True):
        pairs = read_sequences(written(tmp_path / "a.csv", frame), as_written=as_written)
        assert notes_of(pairs) == [NOTE]
    assert notes_of(read_sequences(frame, as_written=True)) == [WITHOUT_HEADER]


@pytest.mark.parametrize("name", ["a.csv", "a.xlsx", "a.parquet"])
@pytest.mark.parametrize("column", ["pKd", "id"])
def test_a_row_with_any_content_is_as_bad_as_ever(tmp_path, name, column):
    frame = spaced()
    frame.loc[8, column] = frame.loc[1, column]
    path = written(tmp_path / name, frame)
    first = 1 if name == "a.parquet" else 2
    with pytest.raises(SequenceError, match=f"row {8 + first}, column"):
        read_sequences(path)
    with pytest.raises(SequenceError, match=f"row {8 + first}, column"):
        [*read_chunks(path)]
    pairs = read_sequences(path, bad_rows="skip")
    count = len(EMPTY) - 1 - (name == "a.xlsx")
    assert notes_of(pairs) == [
        "1 bad row skipped (empty sequence: 1 row, 1 antibody)",
        f"{count} rows with only empty cells skipped; the first is row {first}",
    ]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_row_with_a_label_alone_is_bad_in_any_format(tmp_path, name):
    frame = spaced()
    frame.loc[8, "pKd"] = 7.0
    with pytest.raises(abag.AbagError, match="no antibody chain"):
        [*read_chunks(written(tmp_path / name, frame))]


def test_a_table_of_empty_rows_has_no_rows(tmp_path):
    path = written(tmp_path / "a.csv", spaced().loc[EMPTY])
    for read in (abag.plan, lambda table: [*read_chunks(table)]):
        with pytest.raises(TableError, match=r"a.csv: all 4 rows are empty; expected at least one"):
            read(path)


def test_empty_rows_may_fill_a_chunk(tmp_path):
    frame = demo_table().head(60).set_axis(range(70, 130))
    path = written(tmp_path / "a.csv", frame.reindex(range(130)))
    chunks = [*read_chunks(path, rows=70)]
    assert [len(chunk.frame) for chunk in chunks] == [0, 60]
    assert chunks[1].row_numbers[0] == 70 + 2


@pytest.mark.ci
def test_every_command_skips_them_and_says_so_once(tmp_path):
    table = written(tmp_path / "pairs.csv", spaced())
    store = tmp_path / "store"
    run = tmp_path / "run"
    scored = tmp_path / "scored.csv"
    said = []
    note = f"pairs.csv: {NOTE}"
    embedded = abag.embed_table(table, store, **COMPOSITION)
    assert (embedded["rows"], embedded["skipped_rows"]) == (60, 4)
    options = {"split": "random", "epochs": 1, "report": False, "device": "cpu"}
    assert NOTE in abag.plan(table, **COMPOSITION)["notes"]
    abag.fit(table, store, run, say=said.append, **options)
    assert said.count(note) == 1
    said.clear()
    abag.predict(table, run, scored, store=store, say=said.append)
    assert said.count(note) == 1
    assert pd.read_csv(scored)["id"].tolist() == demo_table().head(60)["id"].tolist()
    said.clear()
    again = written(scored, pd.read_csv(scored).set_axis(KEPT).reindex(range(64)))
    abag.evaluate(run, predictions=again, say=said.append)
    measured = written(tmp_path / "measured.csv", spaced().head(9))
    abag.rank(again, tmp_path / "order.csv", measured=measured, batch=5, say=said.append)
    assert said.count(f"scored.csv: {NOTE}") == 2
    assert said.count(f"measured.csv: {NOTE.replace('4', '3')}") == 1


def test_estimators_refuse_them_as_labels_and_predictions_are_one_per_row():
    frame = spaced()[["heavy", "light", "antigen"]]
    with pytest.raises(ValueError, match=r"X: row 1 has no valid sequences \(4 such rows\)"):
        PairVectorizer("store").fit_transform(frame)


@pytest.mark.parametrize("above", ["", "\n", "# of 2026\n\n"])
def test_blank_lines_are_rows_so_that_others_have_the_numbers_of_their_lines(tmp_path, above):
    lines = ["heavy,antigen", "EVQ,MKT", "", "EVK,MKV", "\t", "EVR,MKL"]
    path = tmp_path / "a.csv"
    path.write_text(above + "\n".join(lines) + "\n\n")
    pairs = read_sequences(path)
    first = above.count("\n") + 1
    assert (pairs.row_numbers - first).tolist() == [1, 3, 5]
    assert f"3 rows with only empty cells skipped; the first is row {first + 2}" in pairs.notes


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.xlsx"])
def test_comments_below_the_rows_are_skipped_and_said(tmp_path, name):
    frame = demo_table().head(3)[["heavy", "antigen", "pKd"]].astype(object)
    frame.loc[3] = ["# bootstrapFC is a constant", "", ""]
    frame.loc[4] = ["#1, a row with a label", "", 7.5]
    path = written(tmp_path / name, frame)
    with pytest.raises(SequenceError, match=r"row 6, column 'heavy': .*'#1, a row"):
        read_sequences(path)
    path = written(tmp_path / name, frame.drop(index=4))
    pairs = read_sequences(path)
    assert pairs.frame["heavy"].tolist() == frame["heavy"].tolist()[:3]
    assert "1 row of a comment (#) skipped; the first is row 5" in pairs.notes
    # an empty cell of mutations would be the parent
    variants = pd.DataFrame({"chain": ["H", "# a note"], "mutation": ["E1Q", ""]})
    read = read_sequences(written(tmp_path / name, variants), parent=HEAVY, no_antigen=True)
    assert read.antibodies.chains == [("Q" + HEAVY[1:], "")]
