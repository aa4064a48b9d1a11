from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abag.embed.packing import TokenSpan, fill_batches, longest_first

sequences = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=30)


def _spans(lengths):
    token = iter(range(10**6))
    for sequence, own in enumerate(lengths):
        for length in own:
            ids = np.array([next(token) for _ in range(length)], dtype=np.int32)
            yield sequence, TokenSpan(ids, np.ones((length, 2), dtype=np.float32))


@given(lengths=sequences, budget=st.integers(40, 200))
def test_batches_partition_the_tokens_in_order_and_none_is_empty_or_over_budget(lengths, budget):
    batches = list(fill_batches(_spans(lengths), budget))
    tokens = np.concatenate([b.ids for b in batches])
    assert tokens.tolist() == list(range(sum(map(sum, lengths))))
    assert all(0 < len(b.ids) <= budget for b in batches)
    split = [len(span) for b in batches for span in np.split(b.ids, b.offsets[1:-1])]
    assert split == [length for own in lengths for length in own]


@given(lengths=sequences, budget=st.integers(40, 200))
def test_every_token_belongs_to_its_sequence_and_only_a_split_sequence_continues(lengths, budget):
    owner = [s for s, own in enumerate(lengths) for _ in range(sum(own))]
    batches = list(fill_batches(_spans(lengths), budget))
    seen = np.concatenate([np.repeat(b.sequences, np.diff(b.bounds)) for b in batches])
    assert seen.tolist() == owner
    for batch, following in pairwise(batches):
        assert batch.continues == (batch.sequences[-1] == following.sequences[0])
    assert not batches[-1].continues


def test_a_span_over_the_budget_is_a_batch_of_its_own():
    batches = fill_batches(_spans([[41], [9, 30], [41], [1]]), 40)
    assert [len(batch.ids) for batch in batches] == [41, 39, 41, 1]


@given(st.lists(st.integers(1, 9), min_size=1))
def test_the_longest_come_first_and_equal_lengths_keep_their_order(lengths):
    order = longest_first(lengths)
    assert sorted(order) == list(range(len(lengths)))
    ranked = [(-lengths[i], i) for i in order]
    assert ranked == sorted(ranked)
