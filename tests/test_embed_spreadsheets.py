"""Excel files are read like the CSV file with the same cells, or refused in one line."""

import datetime
import gzip
import re
import sys
import zipfile
from io import BytesIO

import openpyxl
import pandas as pd
import pytest
from openpyxl.styles import Font
from reading import demo_table, read_labels, read_sequences, read_table, read_table_chunks

import abag
from abag import LabelError, TableError

ROWS = [["heavy", "light", "antigen", "pKd"], ["EVQ", "DIQ", "MKT", 8.5], ["EVK", None, "MKV", 7]]


def workbook(path, rows=ROWS, change=None):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    if change is not None:
        change(book.active)
    book.save(path)
    return path


def refusal(path):
    with pytest.raises(TableError) as caught:
        abag.plan(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


def edited(path, part, change):
    """Change one part of the archive, as another program could have written it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert change(parts[part]) != parts[part]
    parts[part] = change(parts[part])
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize("name", ["a.xlsx", "a.XLSX", "a.xlsx.gz", "a.xlsm"])
def test_an_excel_file_is_read_like_the_csv_file_with_the_same_cells(tmp_path, name, as_written):
    table = demo_table().head(40)
    notes = ["NA", "a,b", 'say "x"', "two\nlines", "", "007", "tab\tbed", "é"]
    table = table.assign(id=[f"{i:03}" for i in range(40)], note=notes * 5, n=range(40))
    table.to_csv(tmp_path / "a.csv", index=False)
    stream = BytesIO()
    table.to_excel(stream, index=False)
    data = stream.getvalue()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    expected = read_table(tmp_path / "a.csv", as_written=as_written)
    spreadsheet = read_table(tmp_path / name, as_written=as_written)
    pd.testing.assert_frame_equal(spreadsheet.frame, expected.frame)
    assert (spreadsheet.columns, spreadsheet.names) == (expected.columns, expected.names)
    chunks = read_table_chunks(tmp_path / name, rows=7, as_written=as_written)
    joined = pd.concat([chunk.frame for chunk in chunks])
    pd.testing.assert_frame_equal(joined, expected.frame, check_dtype=False)


@pytest.mark.ci
def test_an_excel_file_is_embedded_planned_and_predicted_like_any_table(tmp_path):
    demo_table().head(60).to_excel(tmp_path / "a.xlsx")  # the index is a column without a name
    store = tmp_path / "store"
    run = tmp_path / "run"
    out = tmp_path / "out.csv"
    summary = abag.embed_table(tmp_path / "a.xlsx", store, "composition", "composition")
    assert summary["rows"] == 60
    assert abag.plan(tmp_path / "a.xlsx")["rows"] == 60
    options = {"split": "random", "epochs": 1, "report": False, "device": "cpu"}
    abag.fit(tmp_path / "a.xlsx", store, run, **options)
    abag.predict(tmp_path / "a.xlsx", run, out, store=store)
    assert pd.read_csv(out)["heavy"].tolist() == demo_table().head(60)["heavy"].tolist()


def test_formatting_and_empty_columns_are_no_cells_and_an_empty_row_counts_as_a_row(tmp_path):
    def change(sheet):
        sheet["Z900"].font = Font(bold=True)
        sheet.column_dimensions["B"].hidden = True
        sheet.auto_filter.ref = "A1:D3"

    rows = [[None], *ROWS[:2], [None, None], ROWS[2]]
    pairs = read_sequences(workbook(tmp_path / "a.xlsx", rows, change))
    assert pairs.frame["heavy"].tolist() == ["EVQ", "EVK"]
    assert pairs.row_numbers.tolist() == [3, 5]  # as Excel shows them
    assert [*pairs.frame] == ROWS[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", [(1_048_576, 1), (1, 16_384), (1_048_576, 16_384), (900, 9_000)])
def test_an_empty_cell_that_is_far_away_takes_no_time(tmp_path, place):
    def change(sheet):
        sheet.cell(*place).font = Font(bold=True)

    read = read_table(workbook(tmp_path / "a.xlsx", ROWS, change))
    pd.testing.assert_frame_equal(read.frame, read_table(workbook(tmp_path / "b.xlsx")).frame)


@pytest.mark.timeout(60)
def test_merged_cells_of_whole_columns_are_refused_and_links_of_them_read_at_once(tmp_path):
    def with_element(element):
        def add(xml):
            return xml.replace(b"</sheetData>", b"</sheetData>" + element)

        return edited(workbook(tmp_path / "a.xlsx"), "xl/worksheets/sheet1.xml", add)

    merged = b'<mergeCells count="1"><mergeCell ref="F1:XFD1048576"/></mergeCells>'
    assert "F1:XFD1048576 are merged; " in refusal(with_element(merged))
    link = b'<hyperlinks><hyperlink ref="A1:XFD1048576" location="a!A1"/></hyperlinks>'
    assert read_table(with_element(link)).frame.shape == (2, 4)


@pytest.mark.ci
@pytest.mark.timeout(60)
def test_a_value_that_is_far_away_is_a_column_or_a_row_and_too_far_is_refused(tmp_path):
    def note(sheet):
        sheet.cell(1, 16_384, "note")
        sheet.cell(3, 16_384, "x")

    def below(sheet):
        sheet.cell(200_000, 1, "EVQ")
        sheet.cell(200_000, 3, "MKT")
        sheet.cell(200_000, 4, 7)

    def far_below(sheet):
        for column in range(1, 100):
            sheet.cell(1, column, f"name {column}")
        sheet.cell(1_048_576, 1, "x")

    assert read_table(workbook(tmp_path / "a.xlsx", ROWS, note)).frame.shape == (2, 5)
    pairs = read_sequences(workbook(tmp_path / "b.xlsx", ROWS, below))
    assert pairs.row_numbers.tolist() == [2, 3, 200_000]
    text = refusal(workbook(tmp_path / "c.xlsx", ROWS, far_below))
    assert "c.xlsx: cannot be read: row 1048576 has a value, with 103," in text


def test_a_formula_has_the_value_that_the_spreadsheet_program_stored(tmp_path):
    def change(sheet):
        sheet["D2"] = "=9-0.5"

    path = workbook(tmp_path / "a.xlsx", change=change)
    stored = edited(path, "xl/worksheets/sheet1.xml", lambda x: re.sub(b"<v ?/>", b"<v>8.5</v>", x))
    assert read_table(stored).frame["pKd"].tolist() == ["8.5", "7"]
    empty = edited(stored, "xl/worksheets/sheet1.xml", lambda x: x.replace(b"8.5</v>", b"</v>"))
    assert "cell D2 has a formula without a value" in refusal(empty)
    text = edited(empty, "xl/worksheets/sheet1.xml", lambda x: x.replace(b'"D2"', b'"D2" t="str"'))
    assert read_table(text).frame["pKd"].isna().tolist() == [True, False]


def test_a_light_chain_by_a_formula_that_nobody_has_computed_is_not_lost(tmp_path):
    heavy_only = [[*row[:1], '=CONCATENATE("DIQ","MTQ")', *row[2:]] for row in ROWS[1:]]
    path = workbook(tmp_path / "a.xlsx", [ROWS[0], *heavy_only])
    assert "cell B2 has a formula without a value; open the file" in refusal(path)


def test_rows_that_a_filter_hides_are_read_and_reported(tmp_path):
    def hide(sheet):
        sheet.row_dimensions[3].hidden = True

    pairs = read_sequences(workbook(tmp_path / "a.xlsx", change=hide))
    assert len(pairs.frame) == 2
    assert "1 hidden row read as others: remove what a filter leaves out" in pairs.notes
    assert not any("hidden" in note for note in read_sequences(workbook(tmp_path / "b.xlsx")).notes)


@pytest.mark.parametrize("shown", ["0.0%", "#,##0,", '0.0" pM"', "0\\ \\p\\M", '">"0%'])
def test_numbers_that_a_sheet_shows_otherwise_than_it_stores_them_are_reported(tmp_path, shown):
    def change(sheet):
        for row in sheet.iter_rows(min_row=2, min_col=4):
            row[0].number_format = shown

    rows = [[*ROWS[0][:3], "KD (nM)"], *ROWS[1:]]
    pairs = read_sequences(workbook(tmp_path / "a.xlsx", rows, change))
    note = f"column 'KD (nM)' is shown in the number format {shown!r}, and read as it is stored, "
    assert f"{note}such as 8.5" in pairs.notes
    assert pairs.frame["KD (nM)"].tolist() == ["8.5", "7"]


@pytest.mark.parametrize("shown", [
    '0.0" nM"', "#,##0.00", "0.00E+00", '_(* #,##0_);_(* "-"??_)', "[>=100]0;[Red][<1]0.00;0.0",
])  # fmt: skip
def test_formats_that_change_neither_size_nor_unit_are_not_reported(tmp_path, shown):
    def change(sheet):
        sheet["D2"].number_format = shown

    rows = [[*ROWS[0][:3], "KD (nM)"], *ROWS[1:]]
    notes = read_sequences(workbook(tmp_path / "a.xlsx", rows, change)).notes
    assert not any("number format" in note for note in notes)


@pytest.mark.parametrize("shown", ['">"0', "\\>0.00", '"> "#,##0', ">0.0E+00"])
def test_a_relation_in_a_number_format_is_read_with_its_number(tmp_path, shown):
    def change(sheet):
        sheet["D2"].number_format = shown

    rows = [[*ROWS[0][:3], "KD (nM)"], *ROWS[1:]]
    pairs = read_sequences(workbook(tmp_path / "a.xlsx", rows, change))
    assert pairs.frame["KD (nM)"].tolist() == [">8.5", "7"]
    assert not any("number format" in note for note in pairs.notes)


def test_a_sheet_that_states_too_small_a_size_is_read_whole(tmp_path):
    path = workbook(tmp_path / "a.xlsx")
    stated = edited(path, "xl/worksheets/sheet1.xml", lambda x: x.replace(b'"A1:D3"', b'"A1:B2"'))
    assert read_table(stated).frame.shape == (2, 4)


@pytest.mark.parametrize(("rows", "change", "words"), [
    ([], None, "no cell has a value"), (ROWS[:1], None, "no rows"),
    (ROWS, lambda s: s.merge_cells("A2:A3"), "cells A2:A3 are merged; unmerge them and fill each"),
    (ROWS, lambda s: s.merge_cells("A1:B1"), "or delete the row, if it is a title or a note"),
    (ROWS, lambda s: s.cell(2, 6, "x"), "cell F1 is empty, but its column is not"),
    ([["Table S1", None, "SPR"], *ROWS], None, "cell B1 is empty, but its column is not"),
    ([["Table S1"], *ROWS], lambda s: s.merge_cells("A1:A2"), "cells A1:A2 are merged"),
    (ROWS, lambda s: s.parent.create_sheet("b").append([1]), "2 sheets with values, 'Sheet', 'b'"),
    (ROWS, lambda s: s.parent.create_sheet("b").append([1]),
     "choose one with sheet=\"Sheet\" or the like."),
])  # fmt: skip
def test_a_workbook_that_is_no_plain_table_is_refused_in_one_line(tmp_path, rows, change, words):
    assert words in refusal(workbook(tmp_path / "a.xlsx", rows, change))


def test_other_content_under_an_excel_name_is_refused_in_one_line(tmp_path):
    path = tmp_path / "a.xlsx"
    whole = workbook(path).read_bytes()
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "heavy,antigen")
    ole = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    for content, words in (
        (whole[: len(whole) // 2], "incomplete"),
        (b"heavy,antigen\nEVQ,MKT\n", "is not an .xlsx file"),
        (b"", "is not an .xlsx file"),
        (ole, "has a password"),
        (stream.getvalue(), "cannot be read"),
    ):
        path.write_bytes(content)
        assert words in refusal(path)


@pytest.mark.parametrize(
    "label", [datetime.date(2026, 11, 1), datetime.time(8, 30), True, "#DIV/0!", "8,500"]
)
def test_a_label_that_is_no_number_is_refused(tmp_path, label):
    path = workbook(tmp_path / "a.xlsx", [ROWS[0], [*ROWS[1][:3], label]])
    with pytest.raises(LabelError):
        read_labels(path)


def with_runs(path, token, *runs):
    """Replace a cell by runs of text, raised ones with a ^ before, as Excel stores them."""
    texts = []
    for run in runs:
        raised = '<rPr><vertAlign val="superscript"/></rPr>' if run.startswith("^") else ""
        texts.append(f"<r>{raised}<t>{run.removeprefix('^')}</t></r>")
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    part = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    inline = f't="inlineStr"><is><t>{token}</t></is>'.encode()
    edited(path, "xl/worksheets/sheet1.xml", lambda x: x.replace(inline, b't="s"><v>0</v>'))
    edited(path, "[Content_Types].xml", lambda x: x.replace(b"</Types>", part.encode()))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(
            "xl/sharedStrings.xml", f'<sst xmlns="{main}"><si>{"".join(texts)}</si></sst>'
        )


@pytest.mark.parametrize("runs", [("12", "^2"), ("3.4", "^1,2"), ("1.2x11", "^-9")])
def test_a_raised_footnote_or_power_is_no_digit_of_a_label(tmp_path, runs):
    rows = [["heavy", "antigen", "KD (nM)"], ["EVQ", "MKT", "F1"], ["EVK", "MKT", "3.5"]]
    path = workbook(tmp_path / "t.xlsx", rows)
    with_runs(path, "F1", *runs)
    with pytest.raises(LabelError, match=r"row 2, column 'KD .nM.'.* is not a valid label") as why:
        read_labels(path)
    assert repr("".join(runs)) in str(why.value)
    with_runs(workbook(path, rows), "F1", "1.2x10", "^2")
    assert sorted(10 ** (9 - read_labels(path).pkd)) == pytest.approx([3.5, 120])


@pytest.mark.parametrize(
    ("runs", "text"),
    [(("KA (M", "^-1", ")"), "KA (M^-1)"), (("CD4", "^+"), "CD4+"), (("EV", "Q"), "EVQ")],
)
def test_other_formats_of_parts_of_a_cell_leave_its_text(tmp_path, runs, text):
    path = workbook(tmp_path / "t.xlsx", [["heavy", "antigen", "F1"], ["EVQ", "MKT", "9"]])
    with_runs(path, "F1", *runs)
    assert [*read_table(path, as_written=True).frame] == ["heavy", "antigen", text]


def test_without_openpyxl_the_extra_is_named(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert "pip install openpyxl" in refusal(path)


def test_rows_that_are_crossed_out_are_read_and_reported(tmp_path):
    def cross_out(sheet):
        for cell in sheet[3]:
            cell.font = Font(strike=True)

    notes = read_sequences(workbook(tmp_path / "t.xlsx", change=cross_out)).notes
    assert any("1 row with cells that are struck through, the first is A3" in x for x in notes)
    assert not any("struck" in x for x in read_sequences(workbook(tmp_path / "u.xlsx")).notes)
