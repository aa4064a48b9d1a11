"""Tables of any length to predict: what is kept of them in memory, and in which order."""

import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abag.embed.sequences.tables import read_table_chunks
from abag.head.prediction import predict as predict_module
from abag.head.prediction.predict import by_antibody
from abag.head.prediction.predictor import SequenceCollector, Sequences


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


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=9))
def test_every_row_keeps_its_sequence_after_any_number_of_chunks(rows):
    collected = SequenceCollector("antibody")
    for numbers in rows:
        used, of_row = np.unique(numbers, return_inverse=True)
        collected.add([(f"EVQL{'A' * n}", "") for n in used], of_row)
    found = collected.finish()
    assert [len(found.chains[n][0]) - 4 for n in found.of_row] == np.concatenate(rows).tolist()
    assert len(found.keys) == len({*found.chains}) == len(found.chains)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_blocks_hold_each_row_once_by_antibody(antibodies, pairs, most):
    sequences = Sequences.of("antibody", [(f"EVQL{'A' * n}", "") for n in antibodies])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict_module, "PAIRS", pairs)
        patch.setattr(predict_module, "ANTIBODIES", most)
        blocks = by_antibody(sequences)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(antibodies)))
    for rows in blocks:
        assert 0 < len(rows) <= pairs
        assert len({antibodies[row] for row in rows}) <= most
    changes = np.diff(np.array(antibodies)[np.concatenate(blocks)]) != 0
    assert changes.sum() == len({*antibodies}) - 1
