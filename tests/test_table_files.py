"""Formats of tables beside CSV, Parquet and FASTA, and messages about tables of many columns."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from invoke import one_line, run
from reading import demo_table, read_sequences, read_table, read_table_chunks

import abag
from abag import ColumnError, TableError
from abag.embed.tables.formats import FORMATS

TABLE = demo_table().head(40).assign(n=range(40), note=["", "NA", "a,b", "é"] * 10)


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize(
    "name", ["a.txt", "a.tab", "a.txt.gz", "a.jsonl", "a.ndjson", "a.jsonl.gz"]
)
def test_text_and_json_lines_are_read_like_the_csv_file_with_the_same_cells(
    tmp_path, name, as_written
):
    TABLE.to_csv(tmp_path / "a.csv", index=False)
    is_text = name.startswith(("a.txt", "a.tab"))
    if is_text:
        TABLE.to_csv(tmp_path / name, sep="\t", index=False)
    else:
        TABLE.to_json(tmp_path / name, orient="records", lines=True, force_ascii=False)
    expected = read_table(tmp_path / "a.csv", as_written=as_written)
    read = read_table(tmp_path / name, as_written=as_written)
    pd.testing.assert_frame_equal(read.frame, expected.frame)
    assert read.columns == expected.columns
    assert read.first_row == (2 if is_text else 1)
    chunks = read_table_chunks(tmp_path / name, rows=7, as_written=as_written)
    joined = pd.concat([chunk.frame for chunk in chunks])
    pd.testing.assert_frame_equal(joined, expected.frame, check_dtype=False)


def test_lines_may_lack_names_and_numbers_stay_as_they_are_written(tmp_path):
    lines = ['{"heavy": "EVQ", "pKd": 8.50}', '{"heavy": "EVK", "x": null, "pKd": 1e1}']
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n".join(lines) + "\n\n")
    written = read_table(tmp_path / "a.jsonl", as_written=True).frame
    assert written.to_dict("list") == {
        "heavy": ["EVQ", "EVK"],
        "pKd": ["8.50", "1e1"],
        "x": ["", ""],
    }
    assert read_table(tmp_path / "a.jsonl").frame["pKd"].tolist() == ["8.50", "1e1"]


@pytest.mark.parametrize(("name", "how"), [
    ("a.json", {}), ("a.json", {"indent": 2}), ("a.jsonl", {}), ("a.json.gz", {"lines": True}),
])  # fmt: skip
def test_an_array_of_objects_is_read_as_its_objects_in_lines(tmp_path, name, how):
    frame = pd.DataFrame({"heavy": ["EVQ", "EVK"], "pKd": [8.5, None], "note": ["[", "é\u2028"]})
    frame.to_json(tmp_path / name, orient="records", **how)
    read = read_table(tmp_path / name, as_written=True).frame
    assert read.to_dict("list") == {
        "heavy": ["EVQ", "EVK"],
        "pKd": ["8.5", ""],
        "note": ["[", "é\u2028"],
    }


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("orient", ["columns", "index", "split", "table", "records"])
def test_a_table_as_pandas_writes_it_as_json_is_read(tmp_path, orient, indent):
    frame = pd.DataFrame({"heavy": ["EVQ", "EVK"], "pKd": [8.5, None], "id": ["1", "01"]}, [3, 10])
    frame.to_json(tmp_path / "a.json", orient=orient, indent=indent)
    read = read_table(tmp_path / "a.json", as_written=True).frame[["heavy", "pKd", "id"]]
    assert read.to_dict("list") == {
        "heavy": ["EVQ", "EVK"],
        "pKd": ["8.5", ""],
        "id": ["1", "01"],
    }


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrap", [lambda rows: {"data": rows}, lambda rows: {
    name: [row[name] for row in rows] for name in rows[0]
}, lambda rows: {"items": rows, "total": 3, "next": None}])  # fmt: skip
def test_a_table_in_one_object_of_json_is_read(tmp_path, wrap, indent):
    rows = [{"heavy": f"EV{letter}", "antigen": "MKT", "pKd": 7} for letter in "QKR"]
    (tmp_path / "a.json").write_text(json.dumps(wrap(rows), indent=indent))
    read = read_table(tmp_path / "a.json").frame
    assert read.to_dict("records") == [row | {"pKd": "7"} for row in rows]
    (tmp_path / "b.json").write_text(json.dumps(rows[0] | {"assays": [{"Kd": 3}]}, indent=indent))
    assert read_table(tmp_path / "b.json").frame["heavy"].tolist() == ["EVQ"]


def test_a_split_object_without_rows_is_refused_by_what_it_lacks(tmp_path):
    (tmp_path / "a.json").write_text('{"columns": ["heavy", "antigen", "pKd"], "data": null}')
    with pytest.raises(ColumnError, match=r"no column for heavy.*; found 'columns', 'data'"):
        read_sequences(tmp_path / "a.json")


def test_blank_lines_between_objects_are_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"heavy": "EVQ"}\n\n{"heavy": "EVK"}\n \n{"heavy"')
    with pytest.raises(TableError, match="line 5 is not JSON"):
        abag.plan(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text('{"heavy": "EVQ"}\n\n{"heavy": "EVK"}\n')
    assert read_table(tmp_path / "a.jsonl").frame["heavy"].tolist() == ["EVQ", "EVK"]


@pytest.mark.parametrize(("text", "words"), [
    ('{"a": {"x": "EVQ"}, "heavy": {"y": "EVQ"}}', "line 1: 'heavy' holds dict"),
    ('{"columns": ["heavy", "x"], "data": [["EVQ"]]}', "zip() argument 2 is shorter"),
    ('{"columns": ["heavy", "heavy"], "data": [["EVQ", "EVK"]]}', "two columns are called 'heavy'"),
    ('{"schema": {}, "data": [3]}', 'object 1 is "3", not an object'),
    ('[{"heavy": "EVQ"}', "the array is not JSON"), ("[]", "its array is empty"),
    ('[{"heavy": "EVQ"}, [1]]', 'object 2 is ["1"], not an object'),
    ('{"heavy": "EVQ"}\n{"heavy"', "line 2 is not JSON"), ("[" * 100_000, "is not JSON"),
    ('{"heavy": {"a": 1}}', "line 1: 'heavy' holds dict"), ("", "it is empty"),
    ("3", 'line 1 is "3", not an object'), ("{}", "line 1 is {}, not an object"),
    ('{"a": 1, "a": 2}', "'a'; expected names that differ. Rename one."),
])  # fmt: skip
def test_what_is_no_file_of_json_rows_is_refused_in_one_line(tmp_path, text, words):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(TableError) as caught:
        abag.plan(tmp_path / "a.jsonl")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_with_more_fields_than_the_header_is_named(tmp_path):
    lines = ["# exported", "", "heavy,antigen,pKd", "EVQ,MKT,8", "EVQ,MKV,9", "EVQ,MKT,7,a note"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(TableError, match="line 6 has 4 fields, and the header 3; quote cells"):
        abag.plan(tmp_path / "a.csv")


def test_lists_in_columns_that_are_passed_on_stay_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"heavy": "EVQ", "tags": ["a,b", 1.50, {"é": null}]}')
    (cell,) = read_table(tmp_path / "a.jsonl").frame["tags"]
    assert json.loads(cell) == ["a,b", "1.50", {"é": None}]


def test_lists_of_chains_are_read_whatever_holds_them(tmp_path):
    table = TABLE.drop(columns="note").assign(antigen=TABLE["antigen"].str[:40] + "|MKV")
    listed = pd.DataFrame({
        "antibody": [[h, k] for h, k in zip(table["heavy"], table["light"], strict=True)],
        "antigen": [text.split("|") for text in table["antigen"]],
        "pKd": table["pKd"],
    })  # fmt: skip
    expected = read_sequences(table)
    schema = {"antibody": pa.large_list(pa.string()), "antigen": pa.list_(pa.large_string())}
    columns = [pa.array(listed[name], kind) for name, kind in schema.items()]
    of_arrow = pa.table([*columns, pa.array(listed["pKd"])], [*listed])
    listed.to_parquet(tmp_path / "a.parquet")
    listed.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    listed.to_csv(tmp_path / "a.csv", index=False)
    arrays = pd.read_parquet(tmp_path / "a.parquet")
    of_types = of_arrow.to_pandas(types_mapper=pd.ArrowDtype)
    files = [tmp_path / name for name in ("a.parquet", "a.jsonl", "a.csv")]
    for source in (*files, listed, arrays, of_types):
        for as_written in (False, True):
            read = read_sequences(source, as_written=as_written)
            assert read.antibodies.chains == expected.antibodies.chains
            assert read.antigens.chains == expected.antigens.chains
    assert isinstance(listed["antibody"][0], list)  # the caller's table stays
    records = listed.assign(antibody=[{"H": "EVQ"}] * len(listed))
    records.to_parquet(tmp_path / "b.parquet")
    with pytest.raises(TableError, match="'antibody' has the type struct<H: string>; expected"):
        abag.plan(tmp_path / "b.parquet")


@pytest.mark.parametrize("roles", ["VH VL", "heavy_chain light_chain", "HC LC"])
def test_chains_are_joined_where_the_role_is_the_second_word_of_a_header(tmp_path, roles):
    heavy, light = (role.replace("_", " ") for role in roles.split())
    rows = TABLE.head(3)
    records = ""
    for number, (h, k) in enumerate(zip(rows["heavy"], rows["light"], strict=True)):
        records += f">ab{number} {heavy}\n{h}\n>ab{number} {light}\n{k}\n"
    (tmp_path / "a.fasta").write_text(records)
    pairs = read_sequences(tmp_path / "a.fasta", no_antigen=True)
    assert pairs.frame["id"].tolist() == ["ab0", "ab1", "ab2"]
    assert pairs.antibodies.chains == [*zip(rows["heavy"], rows["light"], strict=True)]
    (tmp_path / "a.fasta").write_text(records + ">ab0 of mouse\nEVQ\n")
    with pytest.raises(TableError, match="record 'ab0 of mouse' does not end in a role"):
        abag.plan(tmp_path / "a.fasta", no_antigen=True)


def test_fasta_in_a_text_file_is_named(tmp_path):
    (tmp_path / "a.txt").write_text(">ab1\nEVQL\n")
    with pytest.raises(TableError, match="it is FASTA"):
        abag.plan(tmp_path / "a.txt")


def test_a_sheet_is_chosen_by_its_name(tmp_path):
    path = tmp_path / "a.xlsx"
    with pd.ExcelWriter(path) as book:
        TABLE.head(3).to_excel(book, sheet_name="Fig. 1", index=False)
        TABLE.tail(5).to_excel(book, sheet_name="Table S2", index=False)
        merged = pd.DataFrame({"a": [1]})
        merged.to_excel(book, sheet_name="legend", index=False)
        book.sheets["legend"].merge_cells("A1:B1")
    for name, rows in (("Table S2", TABLE.tail(5)), ("fig. 1", TABLE.head(3))):
        read = read_sequences(path, sheet=name)
        assert read.frame["id"].tolist() == rows["id"].tolist()
    assert "rows" in json.loads(run("plan", path, "--sheet", "Table S2", "--json").stdout)
    text = one_line("plan", path, "--sheet", "S2")
    assert "it has no sheet 'S2'; choose another with --sheet, of 'Fig. 1', 'Table S2'" in text
    TABLE.to_csv(tmp_path / "a.csv", index=False)
    assert "is not an Excel file" in one_line("plan", tmp_path / "a.csv", "--sheet", "x")


def test_several_sheets_with_values_name_the_option_with_a_name(tmp_path):
    path = tmp_path / "a.xlsx"
    with pd.ExcelWriter(path) as book:
        for name in ("Fig. 1", "Table S2"):
            TABLE.to_excel(book, sheet_name=name, index=False)
    assert "choose one with --sheet 'Fig. 1' or the like" in one_line("plan", path)


def test_a_long_list_of_columns_follows_the_advice():
    table = pd.DataFrame(np.zeros((2, 80)), columns=[f"col{n}" for n in range(80)])
    with pytest.raises(ColumnError) as caught:
        read_sequences(table)
    text = str(caught.value)
    assert text.index("--column heavy=NAME") < text.index("Found 'col0'")
    assert text.endswith("'col11' and 68 more.")
    with pytest.raises(ColumnError, match="Did you mean 'col7'") as caught:
        abag.plan(table, columns={"heavy": "Col7"})
    assert len(str(caught.value)) < 400


def test_several_label_columns_are_named_with_the_line_of_each(tmp_path):
    table = demo_table().head(60).rename(columns={"pKd": "pKd (SPR)"})
    table.assign(**{"pKd BLI": table["pKd (SPR)"]}).to_csv(tmp_path / "a.csv", index=False)
    message = json.loads(run("plan", tmp_path / "a.csv", "--json", code=1).stdout)["refused"]
    assert "--column 'pkd=pKd (SPR)' or --column 'pkd=pKd BLI'" in message


def test_categories_of_text_are_read_without_a_copy_per_row(tmp_path):
    frame = TABLE.assign(light=TABLE["light"].where(TABLE["n"] % 7 > 0))
    texts = ["heavy", "light", "antigen"]
    frame.astype(dict.fromkeys(texts, "category")).to_parquet(tmp_path / "a.parquet")
    read = read_table(tmp_path / "a.parquet").frame
    for name in texts:
        cells = read[name].tolist()
        assert [None if pd.isna(cell) else cell for cell in cells] == [
            None if pd.isna(cell) else cell for cell in frame[name]
        ]
        assert len({id(cell) for cell in cells if isinstance(cell, str)}) == frame[name].nunique()


def test_a_table_that_does_not_fit_into_memory_is_named_in_one_line(tmp_path, monkeypatch):
    def read(*_):
        msg = "malloc of size 400000000 failed"
        raise pa.ArrowMemoryError(msg)

    TABLE.to_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(FORMATS, ".parquet", read)
    text = one_line("plan", tmp_path / "a.parquet")
    assert "a.parquet: needs more memory than there is (malloc of size 400000000 failed)" in text
