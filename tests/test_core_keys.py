"""Keys are found, sorted and spelled by their bytes; distinct values."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abag.core.arrays import KeyIndex, distinct, hex_keys, is_among, sort_keys


def random_keys(n, seed=0, values=256):
    return np.random.default_rng(seed).integers(0, values, (n, 16)).astype(np.uint8)


def test_the_index_distinguishes_keys_that_share_their_first_eight_bytes():
    keys = random_keys(300)
    keys[:, :8] = 7
    index = KeyIndex([keys[:100], keys[50:200]])
    block, row = index.find(keys)
    assert (block[:100] == 0).all()
    assert (block[100:200] == 1).all()
    assert (block[200:] == -1).all()
    assert row[150] == 100
    assert KeyIndex([]).find(keys)[0].tolist() == 300 * [-1]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 2**32))
def test_equal_keys_keep_their_order_when_sorted(picked, seed):
    keys = random_keys(4, seed, values=2)[picked] * np.uint8(255)
    order, repeated = sort_keys(keys)
    assert order.tolist() == sorted(range(len(keys)), key=lambda i: keys[i].tobytes())
    rows = [keys[i].tobytes() for i in order]
    assert repeated.tolist() == [i > 0 and rows[i] == rows[i - 1] for i in range(len(rows))]


def test_spelled_keys_are_read_back():
    keys = random_keys(5)
    assert hex_keys(keys) == [key.tobytes().hex() for key in keys]


@given(st.lists(st.integers(-5, 5)), st.sampled_from([np.int8, np.int32, np.int64]))
def test_distinct_values_equal_those_of_numpy(values, dtype):
    array = np.array(values, dtype)
    np.testing.assert_array_equal(distinct(array), np.unique(array), strict=True)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3)), st.sets(st.integers(0, 9)))
def test_values_among_sorted_ones_are_those_that_numpy_finds(rows, known):
    values = np.array(rows, np.uint64).reshape(-1, 3) << np.uint64(60)
    ordered = np.array(sorted(known), np.uint64) << np.uint64(60)
    np.testing.assert_array_equal(is_among(values, ordered), np.isin(values, ordered, kind="sort"))
