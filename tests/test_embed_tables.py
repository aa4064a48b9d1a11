"""Tables are read from files, and the roles of their columns are found."""

import gzip
import json
import os
import re
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import set_chunk_rows
from drawn import COMPOSITION
from faults import raising
from reading import (
    demo_table,
    read_chunks,
    read_labels,
    read_sequences,
    read_table,
    read_table_chunks,
)
from trastuzumab import HEAVY, LIGHT

import abag
from abag import AbagError, ColumnError, TableError
from abag.embed.tables import formats
from abag.embed.tables.columns import find_columns
from abag.embed.tables.formats import Chunk
from abag.embed.tables.table import WRITERS, writing_table


def written(folder, name, text, encoding="utf-8"):
    path = folder / name
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    return path


def refusal(path):
    """Return the line with which every reader of tables refuses a file."""
    with pytest.raises(TableError) as caught:
        abag.plan(path)
    with pytest.raises(TableError) as of_predict:
        next(read_chunks(path, as_written=True))
    assert str(of_predict.value) == str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def roles(*names):
    return find_columns(names, {}, "table")[0]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.CSV", "a.csv.gz", "a.b.TSV.GZ"])
@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_the_header_line_decides_on_the_separator(tmp_path, name, separator):
    text = f"heavy{separator}antigen\nQVQ{separator}MKT\n"
    table = read_table(written(tmp_path, name, text))
    assert table.frame.to_dict("list") == {"heavy": ["QVQ"], "antigen": ["MKT"]}
    assert table.source == name


@pytest.mark.parametrize("separator", [",", "\t"])
def test_lines_of_comments_above_the_header_are_skipped_and_counted(tmp_path, separator):
    rows = [["heavy", "antigen"], ["QVQ", "MKT"], ["EVQ", "#"]]
    text = "".join(separator.join(row) + "\n" for row in rows)
    path = written(tmp_path, "a.csv", f"# of two, lines\n#\tand, a tab\n\n{text}")
    table = read_table(path)
    assert table.frame.to_dict("list") == {"heavy": ["QVQ", "EVQ"], "antigen": ["MKT", "#"]}
    assert table.first_row == 5  # as an editor counts
    with pytest.raises(AbagError, match="row 6, column 'antigen': character '#'"):
        abag.plan(path)
    path.write_text("# one\n" + text.replace("#", "M"))
    assert "1 line above the header, marked with '#', not read" in str(abag.plan(path))
    path.write_text("# one\n#" + text)  # a marked header is the header
    assert read_table(path).names == ["#heavy", "antigen"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "cp1252"])
def test_text_that_excel_saves_in_another_encoding_is_read(tmp_path, encoding):
    mark = "\ufeff" if "16" in encoding else ""
    table = "antibody\theavy\tantigen\tKD (µM)\nmüller-1\tQVQ\tMKT\t1.5\n"
    path = tmp_path / "a.txt"
    path.write_bytes((mark + table).encode(encoding))
    read = read_table(path)
    assert read.names == ["antibody", "heavy", "antigen", "KD (µM)"]
    assert read.frame.iloc[0].tolist() == ["müller-1", "QVQ", "MKT", "1.5"]
    remark = "read as Windows-1252, in which the first other character is 'µ'"
    assert (remark in str(abag.plan(path))) == (encoding == "cp1252")


def test_the_first_character_of_windows_may_stand_far_down(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_ENCODING_BYTES", 16)
    path = tmp_path / "a.csv"
    for encoding in ("utf-8", "cp1252"):  # characters of UTF-8 lie across blocks
        path.write_bytes(("heavy,antigen\n" + 9 * "QVQ,MKT\n" + 9 * "QVQ,µé\n").encode(encoding))
        assert read_table(path).frame["antigen"].tolist()[8:11] == ["MKT", "µé", "µé"]


@pytest.mark.parametrize(("header", "row"), [
    ('"VH" "antigen" "KD (M)"', '"a{}" "EV{}" "MKT" 1e-09'),  # write.table of R
    ('"VH"\t"antigen"\t"KD (M)"', '"a{}"\t"EV{}"\t"MKT"\t1e-09'),
    ("VH\tantigen\tKD (M)", "a{}\tEV{}\tMKT\t1e-09"),
    ('"VH","antigen","KD (M)"', '"a{}","EV{}","MKT",1e-09'),
    ('"","VH","antigen","KD (M)"', '"a{}","EV{}","MKT",1e-09'),  # write.csv of R
])  # fmt: skip
def test_row_names_without_a_name_in_the_header_are_a_column(tmp_path, header, row):
    path = written(tmp_path, "a.txt", f"{header}\n{row.format(*'1Q')}\n{row.format(*'2K')}\n")
    frame = read_table(path).frame
    assert frame.columns.tolist() == ["Unnamed: 0", "VH", "antigen", "KD (M)"]
    assert frame["Unnamed: 0"].tolist() == ["a1", "a2"]
    assert frame["VH"].tolist() == ["EVQ", "EVK"]
    assert frame["KD (M)"].tolist() == ["1e-09", "1e-09"]


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
def test_an_index_that_pandas_wrote_three_times_is_read_as_by_pandas(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    frame = pd.DataFrame({"VH": ["EVQ", "EVK"], "antigen": "MKT", "signal": [7.5, 8]}, index=[5, 6])
    read = pd.read_csv if suffix == "csv" else pd.read_excel
    for _ in range(3):
        getattr(frame, "to_csv" if suffix == "csv" else "to_excel")(path)
        frame = read(path)
    names = ["Unnamed: 0.2", "Unnamed: 0.1", "Unnamed: 0", "VH", "antigen", "signal"]
    assert frame.columns.tolist() == read_table(path).frame.columns.tolist() == names
    assert read_table(path).frame["VH"].tolist() == ["EVQ", "EVK"]
    asked = {"label": "value", "better": "higher", "antibody_encoder": "composition"}
    planned = abag.plan(path, no_antigen=True, **asked)
    assert "'signal' read as signal, higher is better" in str(planned)  # not an index


@pytest.mark.parametrize("lines", [
    ["sep=;", "heavy;antigen;note", "QVQ;MKT;a,b,c,d"],
    ['"sep=\t"', "heavy\tantigen\tnote", "QVQ\tMKT\ta,b,c,d"],
    ['heavy,antigen,"note; of; one; to; four"', 'QVQ,MKT,"a,b,c,d"'],
    ["heavy\tantigen\tnote, of, one, to, four", "QVQ\tMKT\ta,b,c,d"],
])  # fmt: skip
def test_the_separator_is_the_one_that_divides_header_and_rows(tmp_path, lines):
    frame = read_table(written(tmp_path, "a.csv", "\n".join(lines))).frame
    assert frame.iloc[0].tolist() == ["QVQ", "MKT", "a,b,c,d"]


@pytest.mark.parametrize("quoted", [True, False])
def test_a_line_of_metadata_above_the_header_is_skipped_and_said(tmp_path, quoted):
    metadata = json.dumps({"Run": "SRR1", "Author": "X et al., 2020", "Chain": "Heavy"})
    line = '"' + metadata.replace('"', '""') + '"' if quoted else metadata
    path = written(tmp_path, "a.csv", f"{line}\nheavy,antigen\nQVQ,MKT\nEVQ,#\n")
    table = read_table(path)
    assert table.frame.to_dict("list") == {"heavy": ["QVQ", "EVQ"], "antigen": ["MKT", "#"]}
    with pytest.raises(AbagError, match="row 4, column 'antigen': character '#'"):
        abag.plan(path)
    path.write_text(path.read_text().replace("#", "M"))
    assert "1 line of metadata above the header, not read" in str(abag.plan(path))


@pytest.mark.parametrize("name", ["a.parquet", "a.parquet.gz"])
def test_parquet_is_read(tmp_path, name):
    frame = pd.DataFrame({"heavy": ["QVQ", "EVQ"], "antigen": ["M", None], "pKd": [7.5, 8.0]})
    data = frame.to_parquet()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    read = read_table(path).frame.fillna("missing")  # None or NaN, by the version of pandas
    pd.testing.assert_frame_equal(read, frame.fillna("missing"), check_dtype=False)


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    path = written(tmp_path, "a.csv", "heavy,antigen\nQVQ,MKT\n", "utf-8-sig")
    assert read_table(path).columns == {"heavy": "heavy", "antigen": "antigen"}


def test_sequences_that_look_like_numbers_stay_text_and_empty_cells_stay_empty(tmp_path):
    path = written(tmp_path, "a.csv", "heavy,light,antigen,id\nINF,,TRUE,001\n1E5,,NaN,002\n")
    frame = read_table(path).frame
    assert frame["heavy"].tolist() == ["INF", "1E5"]
    assert frame["antigen"].tolist()[0] == "TRUE"
    assert frame["light"].isna().all()


def test_rows_after_the_limit_are_not_read(tmp_path):
    path = written(tmp_path, "a.csv", "heavy,antigen\nQVQ,MKT\nEVQ,MKT,surplus\n")
    assert len(read_table(path, limit=1).frame) == 1


@pytest.mark.parametrize(("name", "text", "part"), [
    ("a.csv", "heavy,antigen\n", "no rows"), ("a.csv", "", "cannot be read: it is empty"),
    ("a.csv", "heavy,antigen\nQVQ,M\nQVQ,M,1\n", "line 3 has 3 fields, and the header 2"),
    ("a.csv", "heavy,antigen\nx,QVQ,M\ny,QVQ,M\n", "more fields than the header"),
    ("a.csv", "heavy,antigen\n1,QVQ,M\n2,QVQ,M\n", "more fields than the header"),
    ("a.txt", "heavy\tantigen\nx\tQVQ\tM\nx\tEVQ\tM\n", "name the column of row names"),
    ("a.txt", "heavy\tantigen\nx\tQVQ\tM\nQVQ\tM\n", "name the column of row names"),
    ("a.txt", "heavy\tantigen\nQVQ\tM\t\nEVQ\tM\t\n", "separators at the ends of the rows"),
    ("a.csv", "id,heavy,x,antigen\n0,QVQ,CAR,M,\n", "separators at the ends of the rows"),
    ("a.xls", "", "not a supported table format; expected a name that ends in .csv, .tsv"),
    ("a", "", "not a supported table format"), ("a.parquet", "heavy,antigen\n", "cannot be read"),
])  # fmt: skip
def test_a_file_that_is_not_a_table_is_refused_in_one_line(tmp_path, name, text, part):
    message = refusal(written(tmp_path, name, text))
    assert name in message
    assert part in message


def test_damaged_and_missing_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "a.csv.gz"
    assert "does not exist" in refusal(path)
    path.write_bytes(b"heavy,antigen\n")
    assert "gzip" in refusal(path)
    whole = gzip.compress(b"heavy,antigen\nQVQ,M\n" * 1000)
    path.write_bytes(whole[:-20])
    assert "cannot be read" in refusal(path)
    path.write_bytes(whole[:12] + b"\xff" * 20 + whole[32:])
    assert "cannot be read" in refusal(path)
    text = "name,heavy\n" + "a,QVQ\n" * 9 + "\x81,QVQ\n"
    path = written(tmp_path, "c.csv", text, "latin-1")  # byte 0x81 is none of Windows-1252
    assert "0x81 is not utf-8; save it as UTF-8" in refusal(path)
    path.write_bytes(text.encode("utf-16-le"))
    assert "it holds NUL bytes, as binary files do; save it as UTF-8" in refusal(path)


@pytest.mark.parametrize(("heavy", "light", "antigen"), [
    ("heavy", "light", "antigen_sequence"), ("VH", "VL", "Antigen Seq"), ("fab_h", "fab_l", "ag"),
    ("VH\u200b", "VL\xa0", "\ufeffAntigen\xad"),
    ("HC", "LC", "Target"), ("Ab_heavy_chain_seq", "Ab_light_chain_seq", "Ag_seq"),
    ("mut_heavy_chain_seq", "light_chain_seq", "antigen_seq"), ("VH_mut", "LC seq mut", "ag"),
    ("seq_nanobody", "seq_light", "seq_antigen"), ("VH seq", "VL seq", "antigen protein sequence"),
])  # fmt: skip
def test_common_column_names_are_recognized(heavy, light, antigen):
    assert roles("x", heavy, light, antigen) == {"heavy": heavy, "light": light, "antigen": antigen}


@pytest.mark.parametrize(("name", "role"), [
    ("antibody_sequence", "antibody"), ("scFv_sequence", "antibody"), ("mata_sequence", "antibody"),
    ("matalpha_sequence", "antigen"), ("VHH_sequence", "heavy"), ("pKd", None),
    ("affinity", None), ("KD (nM)", None), ("Δheavy", None), ("heavy µ", None),
    ("Aff_op", "censored"), ("nanobody", None), ("seq_ab", "antibody"), ("antigen_chain", None),
    ("full length antibody sequence", "antibody"), ("sequence of the antigen", None),
    ("V-D-J-REGION", "heavy"), ("Light VJ-REGION", "light"), ("IGK_VJ_aa", "light"),
    ("vdj", None), ("VJ gene", None), ("vdj_sequence_nt", None),
    ("Ag_ID", "antigen_name"), ("pdb", "antigen_name"), ("mAb name", "antibody_name"), ("H", None),
])  # fmt: skip
def test_a_name_plays_one_role_or_none(name, role):
    assert roles(name) == ({role: name} if role else {})


def test_a_column_that_says_sequence_goes_before_one_that_may_hold_a_name():
    assert roles("antigen", "antigen_sequence", "target")["antigen"] == "antigen_sequence"
    for mutant in ("mut_heavy_chain_seq", "antibody_heavy_seq_mut", "heavy_mutant"):
        assert roles("heavy_chain_seq", mutant)["heavy"] == mutant


def test_columns_with_the_same_name_are_refused(tmp_path):
    path = written(tmp_path, "a.csv", "heavy,heavy,antigen\nQVQ,EVQ,M\n")
    assert "two columns are called 'heavy'; expected names that differ. Rename one." in refusal(
        path
    )
    groups = written(tmp_path, "g.csv", "Chain,Chain,Assay\nheavy,light,pKd\nEVQ,DIQ,7\n")
    assert "'Chain'; expected names that differ. Remove this line: the next has" in refusal(groups)
    assert read_table(pd.read_csv(path)).ties == {"heavy": ["heavy", "heavy.1"]}


def test_a_data_frame_without_one_name_per_column_is_refused():
    frame = demo_table(0).head(2)
    twice = pd.concat([frame, frame[["heavy"]]], axis=1)
    with pytest.raises(TableError, match="two columns are called 'heavy'"):
        abag.plan(twice, **COMPOSITION)
    levels = frame.set_axis(pd.MultiIndex.from_product([["mean"], frame.columns]), axis=1)
    with pytest.raises(TableError, match="names of 2 levels; expected one name each"):
        abag.plan(levels, **COMPOSITION)


@pytest.mark.parametrize("table", [None, 3, [1, 2]])
def test_what_is_no_table_is_refused_by_its_type(tmp_path, table):
    with pytest.raises(TableError, match="expected a path, a DataFrame of pandas, Polars"):
        abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    assert not any(tmp_path.iterdir())


def test_a_named_column_must_exist_and_its_role_too():
    with pytest.raises(ColumnError, match="no such column; found 'a', 'b'"):
        find_columns(["a", "b"], {"heavy": "c"}, "t.csv")
    with pytest.raises(ColumnError, match="no such role; expected one of heavy, light"):
        find_columns(["a", "b"], {"weight": "a"}, "t.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_column_missing_from_the_file_is_refused_with_the_files_name(tmp_path, name):
    path = written(tmp_path, name, "VH,antigen\nQVQ,M\n")
    with pytest.raises(ColumnError, match=rf"^{name}: columns={{.heavy.: .x.}}: no such column"):
        abag.plan(path, columns={"heavy": "x"})


def test_a_named_column_plays_no_other_role():
    columns, ties = find_columns(["VH", "heavy"], {"id": "VH"}, "t.csv")
    assert columns == {"id": "VH", "heavy": "heavy"}
    assert ties == {}


@pytest.mark.ci
def test_embed_fit_plan_and_predict_see_the_same_rows_of_a_folder(tmp_path):
    table = demo_table().head(60)
    pairs = tmp_path / "pairs"
    for name, part in (
        ("a.parquet", table.iloc[:30]),
        ("sub/b.parquet", table.iloc[30:]),
        ("_metadata.parquet", table.head(1)),
        (".hidden.parquet", table.head(2)),
        ("_delta_log/x.parquet", table.head(3)),
    ):
        (pairs / name).parent.mkdir(parents=True, exist_ok=True)
        part.to_parquet(pairs / name, index=False)
    store = tmp_path / "store"
    run = tmp_path / "run"
    out = tmp_path / "out.csv"
    embedded = abag.embed_table(pairs, store, **COMPOSITION)
    assert embedded["rows"] == 60
    assert abag.plan(pairs, antibody_encoder="composition")["rows"] == 60
    fitted = abag.fit(pairs, store, run, split="random", epochs=1, report=False, device="cpu")
    assert fitted["data"]["pairs"] == 60
    assert len(read_sequences(pairs).frame) == 60
    abag.predict(pairs, run, out, store=store)
    assert pd.read_csv(out)["heavy"].tolist() == table["heavy"].tolist()


def test_a_new_format_is_an_entry_of_each_registry(tmp_path, monkeypatch):
    def read(file, options):
        frame = pd.read_json(file, lines=True, dtype=False)
        yield Chunk(frame)

    @contextmanager
    def open_writer(file):
        yield lambda frame: frame.to_json(file, orient="records", lines=True)

    monkeypatch.setitem(formats.FORMATS, ".jsonl", read)
    monkeypatch.setitem(WRITERS, ".jsonl", open_writer)
    table = demo_table().head(20)[["heavy", "light", "antigen"]]
    path = tmp_path / "pairs.jsonl.gz"
    with writing_table(path) as write:
        write(table.head(12))
        write(table.tail(8))
    assert read_sequences(path).frame["heavy"].tolist() == table["heavy"].tolist()
    summary = abag.embed_table(path, tmp_path / "store", limit=15, **COMPOSITION)
    assert summary["rows"] == 15
    assert abag.plan(path)["rows"] == 20


def test_a_folder_whose_name_states_a_column_is_refused(tmp_path):
    (tmp_path / "assay=spr").mkdir()
    demo_table().head(3).to_parquet(tmp_path / "assay=spr" / "a.parquet")
    assert "assay=spr: the name of this folder states a column" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.fasta", "a.parquet", "folder/a.parquet", "63"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    refused = refusal(path if path.parent == tmp_path else path.parent)
    assert refused.endswith("is not a regular file; expected a table. Save it to a file first.")


def test_files_of_a_folder_may_have_different_columns_except_in_an_output(tmp_path):
    table = demo_table().head(6)[["heavy", "light", "antigen"]]
    table.head(2).to_parquet(tmp_path / "a.parquet")
    table.tail(4).assign(note="x").to_parquet(tmp_path / "b.parquet")
    assert read_table(tmp_path).frame["note"].isna().tolist() == [True] * 2 + [False] * 4
    first, second = read_table_chunks(tmp_path, as_written=True)
    with writing_table(tmp_path / "out.csv") as write:
        write(first.frame)
        with pytest.raises(TableError, match="expected the same columns"):
            write(second.frame)


ODD_CELLS = {
    "float NaN": (pa.array([float("nan"), None, float("nan")]), ""),
    "null": (pa.nulls(3), ""),
    "booleans": (pa.array([True, False, None]), "True is not a valid sequence; expected text"),
    "numbers": (pa.array([1.5, float("nan"), None]), "1.5 is not a valid sequence; expected text"),
    "dates": (pa.array([0, 1, 2], pa.date32()), "is not a valid sequence; expected text"),
    "bytes": (pa.array([b"DIQ", None, b"DIQ"]), "b'DIQ' is not a valid sequence; expected text"),
    "lists": (pa.array([["DIQ"], None, ["DIQ"]]), ""),
    "lists of numbers": (pa.array([[1], None, [2]]), "list<"),
    "structs": (pa.array([{"a": "D"}, None, {"a": "I"}]), "struct<"),
    "dictionary": (pa.array(["DIQ", None, "DIQ"]).dictionary_encode(), ""),
    "large text": (pa.array(["DIQ", None, "DIQ"], pa.large_string()), ""),
    "text views": (pa.array(["DIQ", None, "DIQ"], pa.string_view()), ""),
    "bytes views": (
        pa.array([b"DIQ", None, b"DIQ"], pa.binary_view()),
        "b'DIQ' is not a valid sequence; expected text",
    ),
}


@pytest.mark.parametrize("name", ODD_CELLS)
def test_every_reader_reads_or_refuses_a_column_of_parquet_alike(tmp_path, name):
    light, problem = ODD_CELLS[name]
    heavy = pa.array(["EVQ", "EVK", "EVR"])
    pq.write_table(
        pa.table({"heavy": heavy, "light": light, "antigen": heavy}), tmp_path / "a.parquet"
    )
    expected = ["", "", ""] if name in ("float NaN", "null") else ["DIQ", "", "DIQ"]
    for flags in ({}, {"as_written": True}):
        if problem:
            with pytest.raises(AbagError, match=re.escape(problem)):
                list(read_chunks(tmp_path / "a.parquet", **flags))
        else:
            (table,) = read_chunks(tmp_path / "a.parquet", **flags)
            assert [table.antibodies.chains[i][1] for i in table.antibodies.of_row] == expected


def test_a_chosen_column_of_lists_is_read_in_memory_as_in_parquet(tmp_path):
    table = demo_table().head(4)[["heavy", "light", "antigen"]]
    lists = table.assign(complex=[[antigen] for antigen in table.pop("antigen")])
    lists.to_parquet(tmp_path / "a.parquet")
    of_file, of_frame = (
        read_sequences(part, columns={"antigen": "complex"}) for part in (tmp_path, lists)
    )
    assert of_frame.antigens.chains == of_file.antigens.chains


def test_a_number_that_pandas_cannot_convert_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("heavy,antigen,x\nEVQ,MKV,1\n")
    error = OverflowError("int too large to convert to float")
    monkeypatch.setattr(pd.io.parsers.TextFileReader, "get_chunk", raising(error))
    with pytest.raises(TableError, match=r"t\.csv: cannot be read: int too large to convert"):
        list(read_table_chunks(tmp_path / "t.csv"))


UNSUPPORTED = {
    "Mars/Phobos": pa.array([0, 1], pa.timestamp("us", "Mars/Phobos")),
    "+99:99": pa.array([0, None], pa.timestamp("s", "+99:99")),
    "Moon": pa.array([{"at": 0}, None], pa.struct([("at", pa.timestamp("ns", "Moon"))])),
    "list<element: string_view>": pa.array([["a"], None], pa.list_(pa.string_view())),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("flags", [{}, {"as_written": True}])
def test_a_type_that_no_command_can_use_is_refused_by_every_reader(tmp_path, name, flags):
    heavy = pa.array(["EVQ", "EVK"])
    table = pa.table({"heavy": heavy, "antigen": heavy, "x": UNSUPPORTED[name]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(TableError, match=rf"cannot be read: column 'x' has .*{re.escape(name)}"):
        list(read_table_chunks(tmp_path / "a.parquet", **flags))


def test_a_time_of_any_year_is_written_as_text(tmp_path):
    far = pa.array([10**13], pa.timestamp("s"))
    pq.write_table(
        pa.table({"heavy": ["EVQ"], "antigen": ["EVQ"], "x": far}), tmp_path / "a.parquet"
    )
    frame = read_table(tmp_path / "a.parquet", as_written=True).frame
    with writing_table(tmp_path / "out.csv") as write:
        write(frame)
    assert "318857-05-20 17:46:40" in (tmp_path / "out.csv").read_text()


@pytest.mark.parametrize("options", [
    {"label": "binary"}, {"label": "value", "better": "higher"}, {}, {"no_antigen": True},
    {"parent": f"{HEAVY}|{LIGHT}", "columns": {"mutations": "changes"}},
])  # fmt: skip
def test_columns_of_vectors_and_records_beside_others_are_no_reason_to_fail(tmp_path, options):
    table = pa.table(
        {
            "heavy": [HEAVY, f"Q{HEAVY[1:]}", f"D{HEAVY[1:]}"],
            "antigen": [HEAVY] * 3,
            "changes": ["H:E1Q", "H:E1D", ""],
            "source": [[1.0, 2.0], [3.0], None],
            "class": [{"a": 1}, None, {"a": 2}],
            "binder": ["yes", "no", "yes"],
            "Tm": [61.5, 62.5, 63.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    labels = {"binary": 2, "value": 3}
    asked = options.get("label")
    if asked:
        assert len(set(read_labels(tmp_path / "a.parquet", **options).pkd)) == labels[asked]
    else:
        assert len(read_sequences(tmp_path / "a.parquet", **options).frame) == 3


def test_a_sequence_that_is_the_index_of_a_parquet_file_is_read_by_every_reader(tmp_path):
    table = demo_table().head(5)
    table.set_index("heavy").to_parquet(tmp_path / "a.parquet")
    pairs = read_sequences(tmp_path / "a.parquet")
    np.testing.assert_array_equal(pairs.antibodies.keys, read_sequences(table).antibodies.keys)


@pytest.mark.parametrize("metadata", [b"{}", b"[1]", b"not json", b'{"index_columns": 7}'])
def test_metadata_of_pandas_is_not_needed(tmp_path, metadata):
    table = pa.Table.from_pandas(demo_table().head(5), preserve_index=False)
    pq.write_table(table.replace_schema_metadata({b"pandas": metadata}), tmp_path / "a.parquet")
    assert len(read_sequences(tmp_path / "a.parquet").frame) == 5


def test_text_that_is_not_utf8_is_refused_in_one_line(tmp_path):
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(
        pa.table({"heavy": ["EVQ"], "antigen": ["EVQ"], "x": bad}), tmp_path / "a.parquet"
    )
    assert re.search(r"cannot be read: .*UTF8.*Check the file", refusal(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"heavy,antigen\nEVQ,MKT\n"), "it is compressed by gzip; rename it to end"),
        (b"PK\x03\x04" + bytes(60), "it is a zip archive; if it is an Excel file, rename it"),
        (b"\xd0\xcf\x11\xe0" + bytes(60), "it is an Excel file in an old format; export it as CSV"),
    ],
    ids=["gzip", "zip", "old Excel"],  # gzip's bytes hold the time
)
def test_a_text_file_that_is_something_else_is_named(tmp_path, content, words):
    (tmp_path / "a.csv").write_bytes(content)
    assert words in refusal(tmp_path / "a.csv")


def test_a_lone_cr_in_a_cell_stays_in_its_row(tmp_path):
    table = demo_table().head(3).assign(note=["a\rb", "c\nd", ""])
    for name in ("out.csv", "out.tsv"):
        with writing_table(tmp_path / name) as write:
            write(table)
        frame = read_table(tmp_path / name, as_written=True).frame
        assert frame["note"].tolist() == ["a\rb", "c\nd", ""]
        assert frame["heavy"].tolist() == table["heavy"].tolist()


def test_line_breaks_are_reported_only_where_a_quotation_mark_may_cause_them(tmp_path):
    table = demo_table().head(3).assign(note=["a\nb", "c", "d"])
    table["heavy"] = table["heavy"].str[:30] + "\n" + table["heavy"].str[30:]
    table.to_excel(tmp_path / "a.xlsx", index=False)
    table.to_parquet(tmp_path / "a.parquet", index=False)
    for pairs in (read_sequences(t) for t in (table, tmp_path / "a.xlsx", tmp_path / "a.parquet")):
        assert pairs.notes == []
        assert pairs.frame["note"].tolist() == ["a\nb", "c", "d"]
        assert pairs.antibodies.chains[0][0] == demo_table()["heavy"][0]


@pytest.mark.parametrize("rows", [4, 50_000])
def test_rows_swallowed_by_a_stray_quote_are_reported(tmp_path, monkeypatch, rows, said):
    set_chunk_rows(monkeypatch, rows)
    text = demo_table().head(20).assign(note="x").to_csv(index=False).splitlines()
    text[3] = text[3].replace(",x", ',"x')
    text[9] = text[9].replace(",x", ',x"')
    (tmp_path / "in.csv").write_text("\n".join(text) + "\n")
    note = "1 cell with a line break: does an unmatched quotation mark join rows?"
    assert note in read_sequences(tmp_path / "in.csv").notes
    said.clear()
    embedded = abag.embed_table(tmp_path / "in.csv", tmp_path / "s", progress=True, **COMPOSITION)
    assert embedded["rows"] == 14
    assert f"  {note}" in said
    assert not read_sequences(demo_table().head(3)).notes


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n", b"\r\r\n"])
def test_rows_may_end_in_any_way(tmp_path, end):
    path = tmp_path / "a.csv"
    rows = [b"heavy,antigen,pKd", *(b'"EV%s",MKT,7.%d' % (b"Q" * (i % 5), i) for i in range(40))]
    path.write_bytes(end.join([*rows, b""]))
    assert len(read_sequences(path).frame) == 40


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_two_writers_of_one_table_leave_one_of_the_two_whole(tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    table = demo_table()
    with writing_table(path) as first, writing_table(path) as second:
        for _ in range(3):
            first(table)
            second(table.head(7))
    frame = read_table(path, as_written=True).frame
    assert frame["heavy"].tolist() == 3 * table["heavy"].tolist()  # the last to finish
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.ci
def test_repeated_texts_and_missing_cells_of_a_parquet_file_are_read_as_they_are(tmp_path):
    antigens = ["MKT" * 2000, "QVQ" * 2000, None]
    table = pa.table({"heavy": pa.array(antigens * 1000)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    cells = read_table(tmp_path / "a.parquet").frame["heavy"]
    assert cells.isna().sum() == 1000
    assert [*cells[:2]] == antigens[:2]


def test_texts_that_share_prefixes_are_read_as_they_are(tmp_path):
    texts = [f"{'EVQ' * (n % 700)}{n}" for n in range(3000)] + [None]
    pq.write_table(
        pa.table(dict.fromkeys(["heavy", "light", "antigen"], texts)),
        tmp_path / "a.parquet",
        compression="zstd",
        use_dictionary=False,
        column_encoding="DELTA_BYTE_ARRAY",
    )
    for rows in (None, 7, 50_000):
        chunks = [c.frame for c in read_table_chunks(tmp_path / "a.parquet", rows=rows)]
        for name, cells in pd.concat(chunks).items():
            assert [*cells[:3000]] == texts[:3000], name


@pytest.mark.parametrize("as_written", [False, True])
def test_times_beyond_those_of_python_are_no_reason_to_fail(tmp_path, as_written):
    times = pa.array([10**13, None], pa.timestamp("s"))
    pq.write_table(pa.table({"x": ["a", "b"], "time": times}), tmp_path / "a.parquet")
    with pytest.raises(ColumnError, match="no column for heavy, light or antibody"):
        read_sequences(tmp_path / "a.parquet", as_written=as_written)
    rows = pa.table({"heavy": [None, HEAVY], "antigen": [None, "MKTAYIAKQRQISFVK"], "time": times})
    pq.write_table(rows, tmp_path / "b.parquet")
    read = read_sequences(tmp_path / "b.parquet", as_written=as_written, bad_rows="skip")
    assert read.row_numbers.tolist() == [2]
