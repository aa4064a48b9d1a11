"""Parquet files in several encodings."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from abag.embed.sequences.tables import read_table, read_table_chunks


def write_dictionary(path, texts, rows):
    heavy = pa.array([texts[row % len(texts)] for row in range(rows)])
    pq.write_table(pa.table({"heavy": heavy}), path, store_schema=False)


def test_repeated_texts_and_missing_cells_of_a_parquet_file_are_read_as_they_are(tmp_path):
    antigens = ["MKT" * 2000, "QVQ" * 2000, None]
    write_dictionary(tmp_path / "a.parquet", antigens, 3000)
    cells = read_table(tmp_path / "a.parquet").frame["heavy"]
    assert cells.isna().sum() == 1000
    assert [*cells[:2]] == antigens[:2]


def write_shared(path, texts, columns=1):
    """Write texts that start alike; of all but the first, only the difference is stored."""
    table = pa.table({name: texts for name in ["heavy", "light", "antigen"][:columns]})
    pq.write_table(
        table, path, compression="zstd", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
    )


def test_texts_that_share_prefixes_are_read_as_they_are(tmp_path):
    texts = [f"{'EVQ' * (n % 700)}{n}" for n in range(3000)] + [None]
    write_shared(tmp_path / "a.parquet", texts, columns=3)
    for rows in (None, 7, 50_000):
        chunks = [c.frame for c in read_table_chunks(tmp_path / "a.parquet", rows=rows)]
        for name, cells in pd.concat(chunks).items():
            assert [*cells[:3000]] == texts[:3000], name
