"""Tables of any length to predict: what is kept of them in memory, and in which order."""

import gzip
import tracemalloc
from itertools import groupby

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abag.embed.sequences.pairs import UniqueSequences
from abag.embed.sequences.tables import read_table_chunks
from abag.head.prediction import predict as predict_module
from abag.head.prediction.inputs import CollectedSequences
from abag.head.prediction.predict import _blocks


@pytest.fixture
def traced():
    """Bytes that Python and numpy hold beyond those of before, and at most held."""
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


@pytest.mark.parametrize("group", [20_000, 1_000_000])  # many row groups; the table in one
def test_reading_parquet_keeps_a_small_part_of_the_file_in_memory(tmp_path, traced, group):
    path, noise = tmp_path / "in.parquet", np.random.default_rng(0).random((1_000_000, 2))
    frame = pd.DataFrame(noise, columns=["a", "b"])
    frame.to_parquet(path, row_group_size=group, use_dictionary=False)
    before = traced()[0] + pa.total_allocated_bytes()
    most = max(
        traced()[0] + pa.total_allocated_bytes()
        for _ in read_table_chunks(path, rows=5_000, as_written=True)
    )
    assert most - before < path.stat().st_size / 4


def test_compressed_parquet_is_read_like_uncompressed(tmp_path):
    frame = pd.DataFrame({"heavy": ["EVQL", "QVQL"], "n": [1, 2]})
    frame.to_parquet(tmp_path / "a.parquet")
    packed = tmp_path / "b.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    one, other = (
        pd.concat(chunk.frame for chunk in read_table_chunks(path, rows=1, as_written=True))
        for path in (tmp_path / "a.parquet", packed)
    )
    pd.testing.assert_frame_equal(one, other)


def part_of(keys, of_row, chains=None):
    chains = chains or [("EVQL", "")] * len(keys)
    return UniqueSequences(
        kind="antibody",
        chains=chains,
        keys=keys,
        of_row=of_row,
        first_rows=np.ones(len(keys), np.int64),
        replaced=np.zeros(len(keys), np.int32),
        forms=[""] * len(keys),
    )


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=9))
def test_every_row_keeps_its_key_after_any_number_of_chunks(rows):
    every = np.random.default_rng(0).integers(0, 256, (10, 16)).astype(np.uint8)
    gathered = CollectedSequences("antibody")
    for of_key in rows:
        used, of_row = np.unique(of_key, return_inverse=True)
        gathered.add(part_of(every[used], of_row), np.zeros(len(used), np.bool_))
    keys, of_row = gathered.finish()
    assert keys[of_row].tolist() == every[np.concatenate(rows)].tolist()
    assert gathered.unique == len(keys) == len(set(np.concatenate(rows)))


class Recorder:
    """Takes the last residue of each antibody for its state, and records what it was asked for."""

    def __init__(self):
        self.asked = []

    def states(self, kind, sequences):
        assert kind == "antibody"
        self.asked += sequences
        return np.array([ord(heavy[-1]) for heavy, _ in sequences], np.int8)


def test_each_sequence_of_many_chunks_is_recognised_once():
    keys = np.random.default_rng(0).integers(0, 256, (4, 16)).astype(np.uint8)
    chains = [(f"EVQL{residue}", "") for residue in "ACDE"]
    gathered = CollectedSequences("antibody", Recorder(), chains=[])
    for numbers in ([0, 1], [1, 2], [0, 2, 3]):
        part = part_of(keys[numbers], np.arange(len(numbers)), [chains[n] for n in numbers])
        gathered.add(part, np.ones(len(numbers), np.bool_))
    found, of_row = gathered.finish()
    assert gathered.seen.asked == chains
    assert gathered.state[of_row].tolist() == [ord("ACDE"[n]) for n in (0, 1, 1, 2, 0, 2, 3)]
    first = [gathered.chains[row] for row in of_row[:4].tolist()]
    assert first == [chains[n] for n in (0, 1, 1, 2)]
    assert found[of_row[-1]].tolist() == keys[3].tolist()
    assert [*gathered.new.values()] == chains


def test_keys_repeated_in_every_chunk_are_kept_once(traced):
    keys = np.random.default_rng(0).integers(0, 256, (1_000, 16)).astype(np.uint8)
    part, parts = part_of(keys, np.arange(1_000)), 100
    gathered, none, before = CollectedSequences("antibody"), np.zeros(1_000, np.bool_), traced()[0]
    for _ in range(parts):
        gathered.add(part_of(keys.copy(), part.of_row), none)
    gathered.finish()
    # an index a row, thrice while the last parts are joined to it, and the room
    assert (traced()[1] - before) / (parts * 1_000) < 3 * 4 + 8


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_blocks_hold_the_rows_of_two_slices_in_order(pairs, most):
    of, (left, right) = np.arange(5, dtype=np.int32), np.array(pairs, np.int32).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict_module, "PAIRS", most)
        found = [(a, g, np.arange(len(pairs))[rows]) for a, g, rows in _blocks(of, of, left, right)]
    assert all(0 < len(rows) <= most for *_, rows in found)
    together = [
        (block, np.concatenate([rows for *_, rows in parts]).tolist())
        for block, parts in groupby(found, key=lambda part: part[:2])
    ]
    rows_of = {pair: [i for i, p in enumerate(pairs) if p == pair] for pair in sorted(set(pairs))}
    assert together == [*rows_of.items()]
