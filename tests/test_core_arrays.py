"""Arrays compared with what NumPy computes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abag.core.arrays import distinct


@given(st.lists(st.integers(-5, 5)), st.sampled_from([np.int8, np.int32, np.int64]))
def test_distinct_values_equal_those_of_numpy(values, dtype):
    array = np.array(values, dtype)
    np.testing.assert_array_equal(distinct(array), np.unique(array), strict=True)
