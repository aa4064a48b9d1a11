"""Parquet files: little memory for each row, and footers that are not believed."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from abag.embed.sequences import limits, parquet_files, parquet_pages
from abag.embed.sequences.formats import BadTable
from abag.embed.sequences.pairs import read_pairs
from abag.embed.sequences.parquet_pages import measure_pages
from abag.embed.sequences.tables import read_table, read_table_chunks

ENCODINGS = [None, "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]


def write_dictionary(path, texts, rows):
    heavy = pa.array([texts[row % len(texts)] for row in range(rows)])
    pq.write_table(pa.table({"heavy": heavy}), path, store_schema=False)


def test_a_parquet_row_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    write_dictionary(tmp_path / "a.parquet", ["A" * (1 << 20)], 1)
    assert len(read_table(tmp_path / "a.parquet").frame) == 1
    monkeypatch.setattr(parquet_files, "MAX_ROW_BYTES", 1 << 20)
    with pytest.raises(BadTable, match="a row has more than"):
        read_table(tmp_path / "a.parquet")


def test_long_rows_of_a_small_parquet_file_come_in_smaller_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "_BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_files, "_BATCH_ROWS", 10)
    texts = ["A" * 50_000, "V"]
    write_dictionary(tmp_path / "a.parquet", texts, 205)
    chunks = [c.frame for c in read_table_chunks(tmp_path / "a.parquet", rows=100)]
    assert max(map(len, chunks)) < 100
    assert [*pd.concat(chunks)["heavy"]] == [texts[i % 2] for i in range(205)]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.csv.gz", "a.fasta"])
def test_a_table_that_would_fill_the_memory_is_refused_before_it_is_read(
    tmp_path, monkeypatch, name
):
    path, rows = tmp_path / name, 4000
    if name == "a.parquet":
        write_dictionary(path, ["EVQ" * 1000 + "V" * n for n in range(rows)], rows)
    else:
        text = (">a_H\n" + "EVQ" * 1000 + "\n") if "fasta" in name else "heavy\n" + "EVQ" * 1000
        data = (text * 4000).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    monkeypatch.setattr(limits, "memory_bytes", lambda: 50 << 20)
    monkeypatch.delattr(pq.ParquetFile, "iter_batches")
    monkeypatch.delattr(pd, "read_csv")
    with pytest.raises(BadTable, match=r"it unpacks to at least 0\.0 GB, reading takes up to 5"):
        read_table(path)


def test_a_page_that_would_fill_the_memory_is_refused_where_a_table_is_read_in_chunks(
    tmp_path, monkeypatch
):
    table = pa.table({"heavy": ["EVQ" * 1000 + "V" * n for n in range(4000)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, data_page_size=1 << 25)
    monkeypatch.setattr(limits, "memory_bytes", lambda: 50 << 20)
    monkeypatch.delattr(pq.ParquetFile, "iter_batches")
    with pytest.raises(BadTable, match=r"it unpacks to at least 0\.0 GB, reading takes up to 5"):
        next(read_table_chunks(tmp_path / "a.parquet", rows=100))


def test_equal_texts_of_a_parquet_file_are_held_once(tmp_path):
    antigens = ["MKT" * 2000, "QVQ" * 2000, None]
    write_dictionary(tmp_path / "a.parquet", antigens, 3000)
    cells = read_table(tmp_path / "a.parquet").frame["heavy"]
    assert len({id(cell) for cell in cells}) == 3
    assert cells.isna().sum() == 1000
    assert [*cells[:2]] == antigens[:2]


def test_the_texts_of_a_table_take_little_more_memory_than_themselves(tmp_path):
    texts = [f"{'EVQ' * 3000}{'ACDEFGHIKL'[n % 10] * (1 + n // 10)}" for n in range(2000)]
    frame = pd.DataFrame({"heavy": "EVQ", "antigen": texts})
    frame.to_parquet(tmp_path / "a.parquet")
    found = read_pairs(tmp_path / "a.parquet")
    kept = {id(chain) for chains in found.antigens.chains for chain in chains}
    assert kept <= {id(cell) for cell in found.frame["antigen"]}  # no second copy


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_every_encoding_are_measured(tmp_path, encoding, version):
    texts = ["EVQ" * 300 + str(n) for n in range(500)] + [None]
    column = {"use_dictionary": encoding is None}
    if encoding:
        column["column_encoding"] = {"a": encoding, "b": "PLAIN"}
    pq.write_table(
        pa.table({"a": texts, "b": range(501)}), tmp_path / "a.parquet", row_group_size=200,
        data_page_version=version, data_page_size=5000, **column,
    )  # fmt: skip
    with (tmp_path / "a.parquet").open("rb") as file:
        pages = measure_pages(file, pq.ParquetFile(file).schema, ["a"])
    assert (pages.prefix_bytes > 0) == (encoding == "DELTA_BYTE_ARRAY")
    stored = sum(map(len, texts[:-1]))
    assert pages.prefix_bytes or stored <= pages.total_bytes < 1.1 * stored
    assert (pages.longest_bytes >= 903) == (encoding is None)
    assert [*read_table(tmp_path / "a.parquet").frame["a"][:500]] == texts[:500]


def test_nested_and_empty_columns_are_measured(tmp_path):
    lists = pa.array([[1, 2], None, [], [3]])
    table = pa.table({"heavy": ["E", "V", None, "Q"], "x": lists, "y": pa.nulls(4)})
    for rows in (4, 0):
        pq.write_table(table[:rows], tmp_path / "a.parquet")
        with (tmp_path / "a.parquet").open("rb") as file:
            assert measure_pages(file, pq.ParquetFile(file).schema, None).total_bytes >= 0
    pq.write_table(table, tmp_path / "a.parquet")
    assert len(read_table(tmp_path / "a.parquet").frame) == 4


def test_a_forged_footer_is_refused_or_changes_no_row(tmp_path):
    path, rows = tmp_path / "a.parquet", 60
    frame = pd.DataFrame({"heavy": ["EVQ", "QVQ"] * (rows // 2), "n": np.arange(rows)})
    table = pa.Table.from_pandas(frame).replace_schema_metadata()
    pq.write_table(table, path, row_group_size=40, store_schema=False)
    good = path.read_bytes()
    refused = []
    for at in range(len(good) - 8 - int.from_bytes(good[-8:-4], "little"), len(good) - 8):
        for new in (0, good[at] ^ 1, (good[at] + 2) % 256):
            path.write_bytes(good[:at] + bytes([new]) + good[at + 1 :])
            try:  # pyarrow's accessors of some of these footers end the process
                assert sum(len(c.frame) for c in read_table_chunks(path, rows=32)) == rows
            except BadTable as error:
                refused.append(str(error))
    assert len(refused) > 300
    assert not any("\n" in line for line in refused)


def test_a_footer_with_fewer_rows_than_the_pages_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"heavy": ["EVQ"] * 1000}), path, store_schema=False)
    rows, fewer = (b"\x16" + bytes([2 * n & 127 | 128, 2 * n >> 7]) for n in (1000, 900))
    assert path.read_bytes().count(rows) == 3  # of the file, its row group and the column
    path.write_bytes(path.read_bytes().replace(rows, fewer))
    with pytest.raises(BadTable, match="footer states 900 values of column 'heavy', its pages hav"):
        read_table(path)


def write_shared(path, texts, columns=1):
    """Write texts that start alike; of all but the first, only the difference is stored."""
    table = pa.table({name: texts for name in ["heavy", "light", "antigen"][:columns]})
    pq.write_table(
        table, path, compression="zstd", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
    )


def test_a_row_longer_than_the_mean_is_refused_when_it_is_met(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "MAX_ROW_BYTES", 1 << 16)
    write_shared(tmp_path / "a.parquet", ["EVQ" + "A" * n for n in (0, 1 << 17, 0, 0)] * 10)
    monkeypatch.setattr(parquet_files, "_SHARED_BYTES", 1)
    with pytest.raises(BadTable, match="a row has more than"):
        read_table(tmp_path / "a.parquet")


def test_texts_that_share_prefixes_are_read_as_they_are(tmp_path):
    texts = [f"{'EVQ' * (n % 700)}{n}" for n in range(3000)] + [None]
    write_shared(tmp_path / "a.parquet", texts, columns=3)
    for rows in (None, 7, 50_000):
        chunks = [c.frame for c in read_table_chunks(tmp_path / "a.parquet", rows=rows)]
        for name, cells in pd.concat(chunks).items():
            assert [*cells[:3000]] == texts[:3000], name


def test_large_pages_of_texts_that_share_prefixes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_pages, "_MOST_SHARED_BYTES", 5000)
    write_shared(tmp_path / "a.parquet", ["EVQ" * 1000] * 2)
    assert len(read_table(tmp_path / "a.parquet").frame) == 2
    write_shared(tmp_path / "a.parquet", ["EVQ" * 1000] * 2, columns=2)
    with pytest.raises(BadTable, match="DELTA_BYTE_ARRAY have 5 KiB per row, more than 4"):
        read_table(tmp_path / "a.parquet")


REFUSE = """
import sys, threading, time
from pathlib import Path
from abag import AbagError
from abag.embed.sequences import limits
from abag.embed.sequences.tables import read_table

def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024

def watch():
    while True:
        seen.append(anonymous())
        time.sleep(0.001)

limits.memory_bytes = lambda: 1 << 30
seen = [anonymous()]
threading.Thread(target=watch, daemon=True).start()
try:
    read_table(sys.argv[1])
except AbagError as error:
    print(max(seen) - seen[0], error)
"""


@pytest.mark.parametrize(("rows", "mib", "columns"), [(16, 15, 1), (80, 3, 1), (80, 1, 3)])
def test_a_small_file_of_shared_prefixes_is_refused_with_little_memory(
    tmp_path, rows, mib, columns
):
    start = "A" * (mib << 20)
    write_shared(tmp_path / "a.parquet", [f"{start}{n}" for n in range(rows)], columns)
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    child = [sys.executable, "-c", REFUSE, tmp_path / "a.parquet"]
    done = subprocess.run(child, capture_output=True, text=True, check=True)
    taken_mib, message = done.stdout.split(" ", 1)
    assert "unpacks to at least 0.2 GB" in message
    assert float(taken_mib) < 200
