"""Parquet files in several encodings."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from abag.embed.sequences.tables import read_table, read_table_chunks


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
        pa.table(dict.fromkeys(["heavy", "light", "antigen"], texts)), tmp_path / "a.parquet",
        compression="zstd", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY",
    )  # fmt: skip
    for rows in (None, 7, 50_000):
        chunks = [c.frame for c in read_table_chunks(tmp_path / "a.parquet", rows=rows)]
        for name, cells in pd.concat(chunks).items():
            assert [*cells[:3000]] == texts[:3000], name
