"""Positions and residues that no training antibody had."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trastuzumab import HEAVY, LIGHT

from abag.embed.sequences.domains import number_domain
from abag.embed.sequences.numbering import number_antibodies
from abag.head.prediction.novelty import UNCOUNTED, Novelty, as_columns, measure_novelty

H3 = HEAVY.index("WGGDGFYAMDY")


def mutated(chain, *changes):
    for at, residue in changes:
        chain = chain[:at] + residue + chain[at + 1 :]
    return chain


def test_a_residue_is_new_at_a_varied_position_and_a_position_is_new_where_none_varied():
    training = [(mutated(HEAVY, (H3, r)), LIGHT) for r in "WYFA"]
    novelty = measure_novelty(training)
    asked = [
        mutated(HEAVY, (H3, "K")),  # another residue at a varied position
        mutated(HEAVY, (H3 + 4, "K")),  # a position that never varied
        mutated(HEAVY, (H3 + 4, "X"), (H3, "X")),
        HEAVY[: H3 + 4] + HEAVY[H3 + 5 :],  # a deletion
        HEAVY[2:-2],  # ends are often trimmed
    ]
    found = novelty.count([(heavy, LIGHT) for heavy in asked])
    assert found.tolist() == [[0, 1], [1, 1], [0, 0], [1, 1], [0, 0]]
    assert novelty.is_far(found).tolist() == [False, True, False, True, False]


def test_a_chain_that_no_training_antibody_had_is_new_and_a_missing_one_is_not():
    alone = measure_novelty([(HEAVY, "")])
    assert alone.count([(HEAVY, LIGHT)])[0, 0] == len(LIGHT)
    assert measure_novelty([(HEAVY, LIGHT)]).count([(HEAVY, "")]).tolist() == [[0, 0]]


def test_antibodies_that_cannot_be_numbered_are_not_counted_and_not_far():
    novelty = measure_novelty([(HEAVY, LIGHT), ("W" * 15, "")])
    found = novelty.count([("W" * 15, ""), (HEAVY, LIGHT)])
    assert found.tolist() == [[UNCOUNTED] * 2, [0, 0]]
    assert not novelty.is_far(found).any()
    assert pd.DataFrame(as_columns(found)).isna().to_numpy().tolist() == [[True] * 2, [False] * 2]


def by_hand(training, asked):
    """The counts of one antibody, from sets of residues."""
    positions = residues = 0
    for name, at in (("heavy", 0), ("light", 1)):
        known = [n for one in training if (n := number_domain(one[at], name))]
        own = number_domain(asked[at], name)
        if not own:
            continue
        places = {p for n in [own, *known] for p in n}

        def residue(numbered, place):
            number = [int(p.strip("ABCDEFGHIJ")) for p in numbered]
            inside = min(number) <= int(place.strip("ABCDEFGHIJ")) <= max(number)
            return numbered.get(place, "-" if inside else None)

        for place in places:
            seen = {residue(n, place) for n in known} - {None}
            if seen and residue(own, place) not in (None, "X", *seen):
                residues += 1
                positions += len(seen) == 1
    return [positions, residues]


# few places and residues, so that antibodies share some
changes = st.lists(
    st.tuples(st.sampled_from([29, 54, H3, H3 + 4]), st.sampled_from("ACX")), max_size=3
)
heavies = st.builds(
    lambda found, cut: mutated(HEAVY, *found)[cut:], changes, st.sampled_from([0, 0, 2])
)
variants = st.tuples(heavies, st.sampled_from([LIGHT, ""]))


@settings(max_examples=30, deadline=None)
@given(st.lists(variants, min_size=1, max_size=6), variants)
def test_counts_equal_a_plain_reference_and_training_antibodies_are_never_far(training, asked):
    training = [*dict.fromkeys(training), (HEAVY, LIGHT)]
    novelty = measure_novelty(training)
    known = novelty.count(training)
    assert not known.any()
    assert not novelty.is_far(known).any()
    assert novelty.count([asked])[0].tolist() == by_hand(training, asked)
    kept = Novelty.from_json(json.loads(json.dumps(novelty.to_json())))
    assert kept.count([asked]).tolist() == novelty.count([asked]).tolist()


def test_a_numbering_of_more_antibodies_changes_nothing():
    training = [(mutated(HEAVY, (H3, r)), LIGHT) for r in "WYFA"]
    others = [(HEAVY[:H3] + "AAAAAAAAAA" + HEAVY[H3:], LIGHT[:50] + LIGHT[55:]), ("W" * 15, "")]
    numbered = number_antibodies([*others, *training], None)
    assert measure_novelty(training, numbered).to_json() == measure_novelty(training).to_json()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(heavies.filter(lambda chain: "X" not in chain), min_size=2, max_size=8, unique=True)
)
def test_limits_are_what_would_be_new_in_a_training_antibody_among_the_others(heavy):
    training = [(chain, LIGHT) for chain in heavy]
    novelty = measure_novelty(training)
    left_out = [
        measure_novelty(training[:n] + training[n + 1 :]).count([training[n]])[0]
        for n in range(len(training))
    ]
    expected = np.quantile(left_out, 0.99, axis=0).astype(int).tolist()
    assert [novelty.most_positions, novelty.most_residues] == expected


@pytest.mark.parametrize(
    "change",
    [
        {"most_positions": -1},
        {"most_residues": True},
        {"most_residues": 10**9},
        {"more": 1},
        {"heavy": []},
        {"heavy": {"0": "A"}},
        {"heavy": {"1": ""}},
        {"heavy": {"1": "a"}},
        {"heavy": {"1": ["A"]}},
        {"light": {str(n): "A" for n in range(1, 1001)}},
    ],
)
def test_invalid_residues_by_position_are_refused(change):
    record = measure_novelty([(HEAVY, LIGHT)]).to_json()
    Novelty.from_json(record)
    with pytest.raises(ValueError, match="by position"):
        Novelty.from_json(record | change)
