"""Tables larger than memory: read in chunks of rows, embedded in parts of distinct sequences."""

import hashlib
import io
import os
import re
import tempfile
from collections import Counter
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import set_chunk_rows, set_part_bytes
from embedding import assert_same_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import demo_table, read_chunks, read_sequences, read_table, read_table_chunks
from trastuzumab import HEAVY, LIGHT

import abag
from abag import AbagError, OutputError, TableError, embed_table
from abag.embed.tables.chains import antibody, antigen, keys_array, parse_antibody, sequence_text
from abag.embed.tables.pairs import EMPTY_ROW, Partitions, SkippedRows, UniqueSequences

PLAIN = ("composition", "composition")
sequences = st.text("ACDEFGHIK", min_size=1, max_size=4)


def distinct(chains, start):
    """The sequences of some rows, each with its first row, as the readers give them."""
    first = {}
    for row, chain in enumerate(chains):
        first.setdefault((chain,), start + row + 1)
    numbers = {chain: i for i, chain in enumerate(first)}
    return UniqueSequences(
        kind="antigen",
        chains=[*first],
        keys=keys_array("antigen", [*first]),
        of_row=np.array([numbers[(chain,)] for chain in chains], np.int64),
        first_rows=np.array([*first.values()], np.int64),
        replaced=np.ones(len(first), np.int32),
        forms=["glued"] * len(first),
    )


@given(
    st.lists(st.lists(sequences, min_size=1, max_size=40), min_size=1, max_size=6),
    st.sampled_from([1, 2000, 1 << 26]),
    st.sampled_from([1, 1000, 1 << 25]),
)
@settings(deadline=None)  # 256 parts take 0.2 s on a busy machine
def test_parts_hold_every_sequence_once_with_its_first_row(chunks, held_bytes, part_bytes):
    with Partitions("antigen", held_bytes=held_bytes, part_bytes=part_bytes) as collected:
        check_parts(collected, chunks)


def check_parts(collected, chunks):
    first = {}
    start = 0
    for chains in chunks:
        unique = distinct(chains, start)
        collected.add(unique)
        for key, row in zip(unique.chains, unique.first_rows.tolist(), strict=True):
            first.setdefault(key, row)
        start += len(chains)
    for _ in range(2):  # they can be gone through again
        parts = [part for part in collected.parts() if part.chains]
        met = [(c, r) for part in parts for c, r in zip(part.chains, part.rows, strict=True)]
        assert len(met) == len(first)
        assert dict(met) == first
        keys = [key.tobytes() for part in parts for key in part.keys]
        assert keys == sorted(keys)
        for part in parts:
            assert np.array_equal(part.keys, keys_array("antigen", part.chains))
        assert sum(part.replaced for part in parts) == len(first)
        assert sum((Counter(part.forms) for part in parts), Counter())["glued"] == len(first)


def test_only_sequences_that_do_not_fit_into_memory_are_written_to_disk(monkeypatch):
    files = Mock(wraps=tempfile.TemporaryFile)
    monkeypatch.setattr(tempfile, "TemporaryFile", files)
    few = Partitions("antigen", held_bytes=4000)
    for start in range(0, 3000, 100):
        few.add(distinct(["A", "C", "AC"] * 30, start))
    assert [len(part.chains) for part in few.parts()] == [3]
    assert not files.called
    with Partitions("antigen", held_bytes=4000) as many:
        add_numbers(many)
        assert sum(len(part.chains) for part in many.parts()) == 3000
    assert files.call_count > 10


def add_numbers(many):
    """Add 3,000 sequences, in chunks of a hundred."""
    for start in range(0, 3000, 100):
        many.add(
            distinct(
                [format(start + i, "b").replace("0", "A").replace("1", "C") for i in range(100)],
                start,
            )
        )


def test_a_full_temporary_disk_is_named_with_what_to_do(monkeypatch):
    def full(**_):
        file = io.BytesIO()
        file.write = Mock(side_effect=OSError(28, "No space left on device"))
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OutputError, match=r"No space left on device.*TMPDIR"):
        Partitions("antigen", held_bytes=1).add(distinct(["A"], 0))
    assert tempfile.gettempdir()


def written(folder, table, form):
    if form == "frame":
        return table
    path = folder / f"pairs{form}"
    if form in (".csv", ".csv.gz"):
        table.to_csv(path, index=False)
    elif form == ".parquet":
        table.to_parquet(path, row_group_size=7)
    else:
        (path / "_temporary").mkdir(parents=True)
        (path / "_temporary" / "half.parquet").write_bytes(b"PAR1")
        for start in range(0, len(table), 9):
            table.iloc[start : start + 9].to_parquet(path / f"part-{start:03}.parquet")
    return path


@pytest.mark.parametrize("how", ["frame", ".csv", ".csv.gz", ".parquet", ""])
@pytest.mark.parametrize("limit", [None, 11, 25])
def test_chunks_are_consecutive_rows_of_the_table(tmp_path, how, limit):
    table = demo_table().head(25)
    chunks = list(read_table_chunks(written(tmp_path, table, how), limit=limit, rows=4))
    whole = table.head(limit or 25)
    columns = ["heavy", "light", "antigen"]
    joined = pd.concat([chunk.frame[columns] for chunk in chunks]).fillna("")
    assert all(len(chunk.frame) <= 4 for chunk in chunks)
    pd.testing.assert_frame_equal(joined, whole[columns], check_index_type=False, check_dtype=False)
    assert all(chunk.columns["heavy"] == "heavy" for chunk in chunks)


def test_a_folder_of_parquet_files_is_one_table(tmp_path):
    table = demo_table().head(25)
    path = written(tmp_path, table, "")
    assert read_table(path).frame["heavy"].tolist() == table["heavy"].tolist()
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match=r"holds no \.parquet file"):
        next(read_table_chunks(tmp_path / "empty"))


def read_all(table, chunk_rows=None, **options):
    rows = 0
    skipped = SkippedRows()
    sequences = []
    for chunk in read_chunks(table, rows=chunk_rows, **options):
        rows += len(chunk.frame)
        skipped.update(chunk.skipped)
        sequences += chunk.sequences.values()
    return sequences, rows, skipped


@given(
    st.lists(
        st.tuples(st.sampled_from(["QVQ", "EVQ", "u", "*", ""]), st.sampled_from(["M", "A|M", ""])),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 9),
)
@settings(deadline=None)
def test_chunks_give_the_sequences_counts_and_errors_of_the_whole_table(rows, chunk_rows):
    rows = [("QVQ", "M"), *rows]  # else bad cells are a column of names
    frame = pd.DataFrame(rows, columns=["heavy", "antigen"])
    try:
        pairs = read_sequences(frame, bad_rows="skip")
    except AbagError as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            read_all(frame, chunk_rows, bad_rows="skip")
        return
    sequences, kept, skipped = read_all(frame, chunk_rows, bad_rows="skip")
    assert kept == len(pairs.frame)
    assert sorted(skipped.rows) == sorted(pairs.skipped.rows)
    for kind, side in (("antibody", pairs.antibodies), ("antigen", pairs.antigens)):
        met = Partitions(kind)
        for unique in sequences:
            if unique.kind == kind:
                met.add(unique)
        (part,) = met.parts()
        assert set(part.chains) == set(side.chains)
        first = {
            c: int(pairs.row_numbers[side.of_row.tolist().index(i)])
            for i, c in enumerate(side.chains)
        }
        assert dict(zip(part.chains, part.rows.tolist(), strict=True)) == first


ANTIBODIES = [HEAVY + LIGHT, LIGHT + "GGGGSGGGGS" + HEAVY, "QVQ|DIQ", "|DIQ", "QVQ", "A|C|D", "|"]
CELLS = [None, "", " ", "QVQ", "qv q", "QVU", "QV*", "ND", "ACGT" * 10, "M|A"]
CELLS += ["EVQLVESGGG", "LIGHT"]


def is_empty(row):
    return not any((cell or "").strip() for cell in row.values())


def plain(row):
    """Read one row by itself: the chains of each kind; None for a bad one."""
    try:
        cell = sequence_text(row.get("antibody"))
        chains = parse_antibody(cell).chains if "antibody" in row else antibody(row["h"], row["l"])
        return {"antibody": chains, "antigen": antigen(row["antigen"])}
    except AbagError:
        return None


@given(
    st.sampled_from([("h", "l"), ("antibody",)]).flatmap(
        lambda names: st.lists(
            st.fixed_dictionaries(
                {
                    **{
                        name: st.sampled_from(ANTIBODIES + CELLS if len(names) == 1 else CELLS)
                        for name in names
                    },
                    "antigen": st.sampled_from(CELLS),
                }
            ),
            min_size=1,
            max_size=25,
        )
    ),
    st.integers(1, 9),
    st.sampled_from([1, 1 << 26]),
)
@settings(deadline=None)
def test_sequences_of_a_parquet_table_are_those_of_its_rows_read_one_by_one(
    rows, chunk_rows, held_bytes
):
    # else bad cells are a column of names
    if "l" in rows[0]:
        rows[0]["l"] = LIGHT
    rows[0]["antigen"] = "MKTAYIAKQRQISFVKSHFSRQ"
    rows[0]["h" if "h" in rows[0] else "antibody"] = HEAVY
    columns = {"heavy": "h", "light": "l"} if "h" in rows[0] else {}
    options = {"bad_rows": "skip", "columns": columns}
    empty = [is_empty(row) for row in rows]
    expected = [None if skip else plain(row) for row, skip in zip(rows, empty, strict=True)]
    options |= {"rows": chunk_rows}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        if not any(expected):
            with pytest.raises(AbagError):
                [*read_chunks(path, **options)]
            return
        chunks = [*read_chunks(path, **options)]
    skipped = SkippedRows()
    for chunk in chunks:
        skipped.update(chunk.skipped)
    assert sorted(row for row, _ in skipped.rows) == [
        i for i, chains in enumerate(expected, 1) if chains is None
    ]
    assert [row for row, cell in skipped.rows if cell == EMPTY_ROW] == [
        i for i, skip in enumerate(empty, 1) if skip
    ]
    for kind in ("antibody", "antigen"):
        first = {}
        for i, chains in enumerate(expected, 1):
            if chains is not None:
                first.setdefault(chains[kind], i)
        with Partitions(kind, held_bytes=held_bytes, part_bytes=1000) as met:
            for chunk in chunks:
                met.add(chunk.sequences[kind])
            parts = [*met.parts()]
        pairs = [(c, r) for part in parts for c, r in zip(part.chains, part.rows, strict=True)]
        assert dict(pairs) == first
        assert len(pairs) == len(first)
        keys = np.concatenate([part.keys for part in parts])
        assert np.array_equal(keys, keys_array(kind, [c for c, _ in pairs]))


def test_a_bad_row_far_down_a_table_is_named_by_its_number(tmp_path):
    table = demo_table().head(25)
    table.loc[17, "heavy"] = "Q*V"
    path = written(tmp_path, table, ".csv")
    with pytest.raises(AbagError, match=r"pairs.csv: row 19, column 'heavy': character '\*'"):
        read_all(path, 4)
    skipped = read_all(path, 4, bad_rows="skip")[2]
    assert skipped.notes() == ["1 bad row skipped (unknown residue: 1 row, 1 antibody)"]


@pytest.fixture
def small_parts(monkeypatch):
    """Many chunks, runs on disk and parts, as for a table of 10^8 rows."""
    set_chunk_rows(monkeypatch, 40)
    set_part_bytes(monkeypatch, held=4000, part=6000)


def test_a_table_in_many_parts_gives_the_vectors_of_a_table_in_one(tmp_path, monkeypatch, request):
    table = demo_table().head(150)
    whole = embed_table(table, tmp_path / "whole", *PLAIN)
    request.getfixturevalue("small_parts")
    path = written(tmp_path, table, "")
    first = embed_table(path, tmp_path / "parts", *PLAIN, limit=60)
    rest = embed_table(path, tmp_path / "parts", *PLAIN)
    again = embed_table(path, tmp_path / "parts", *PLAIN)
    counts = assert_same_vectors(tmp_path / "parts", tmp_path / "whole")
    store = abag.open_store(tmp_path / "parts")
    assert counts == [store.folder(kind).rows for kind in ("antibody", "antigen")]
    for plural in ("antibodies", "antigens"):
        unique = whole[plural]["unique"]
        assert rest[plural]["unique"] == unique
        assert rest[plural]["reused"] == first[plural]["encoded"] > 0
        assert again[plural]["reused"] == unique
        assert first[plural]["tokens"] + rest[plural]["tokens"] == whole[plural]["tokens"]


@pytest.mark.usefixtures("small_parts")
def test_each_shard_is_checked_once_for_any_number_of_parts(tmp_path, monkeypatch):
    embed_table(
        demo_table().head(80), tmp_path / "store", *PLAIN, batch_tokens=2000, commit_seconds=0
    )
    digested = []
    digest = hashlib.file_digest

    def noted(file, *rest):
        digested.append(os.fstat(file.fileno()).st_ino)
        return digest(file, *rest)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    embed_table(demo_table().head(80), tmp_path / "store", *PLAIN)
    shards = [path.stat().st_ino for path in (tmp_path / "store").rglob("*.h5")]
    assert sorted(digested) == sorted(shards)
    assert len(shards) > 2


def test_sequences_of_several_chains_come_back_whole():
    chains = [("QVQ", "DIQ"), ("", "DIQ"), ("QVQ", ""), ("M",), ("M", "K", "T"), ("MK", "T")]
    held = UniqueSequences(
        kind="antigen",
        chains=chains,
        keys=keys_array("antigen", chains),
        of_row=np.arange(6),
        first_rows=np.arange(1, 7),
        replaced=np.zeros(6, np.int32),
        forms=[""] * 6,
    )
    for held_bytes in (1, 1 << 20):
        with Partitions("antigen", held_bytes=held_bytes) as collected:
            collected.add(held)
            collected.add(held)
            (part,) = collected.parts()
        assert sorted(part.chains) == sorted(chains)
        assert np.array_equal(part.keys, keys_array("antigen", part.chains))
