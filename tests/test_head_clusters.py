"""Clusters compared with a naive implementation that aligns every pair of strings."""

from functools import cache

import numpy as np
import pytest
from chunks import set_cores, set_sizes
from drawn import draw_chain, draw_chains
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import in_ci
from trastuzumab import HEAVY, LIGHT

from abag.embed.tables.chains import locate_positions, position_number
from abag.head.regimes import similar
from abag.head.regimes.relations import (
    antibody_clusters,
    antigen_clusters,
    clone_clusters,
    consensus,
    contained_peptides,
    distance_to_consensus,
)


@cache
def plain_distance(x, y, contained):
    """Edits between two strings, by dynamic programming."""
    above = [0 if contained else k for k in range(len(y) + 1)]
    for i, a in enumerate(x, 1):
        row = [i]
        for j, b in enumerate(y, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return min(above) if contained else above[-1]


def plain_clusters(strings, identity, contained, queries=None):
    """Single-linkage clusters, by comparing every pair."""
    queries = [True] * len(strings) if queries is None else queries
    asked = {x for x, query in zip(strings, queries, strict=True) if query}
    labels = list(range(len(strings)))
    for i, x in enumerate(strings):
        for j, y in enumerate(strings):
            if (len(x), x) > (len(y), y) or (x != y and not asked & {x, y}):
                continue
            length = len(x) if contained else len(y)
            if plain_distance(x, y, contained) <= np.floor((1 - identity) * length + 1e-9):
                labels = [labels[i] if label == labels[j] else label for label in labels]
    return labels


def partition(labels):
    return {tuple(np.flatnonzero(np.asarray(labels) == label)) for label in set(labels)}


def mutated(rng, text, edits):
    letters = list(text)
    for _ in range(edits):
        at = rng.integers(len(letters))
        kind = rng.integers(3)
        if kind == 0 and len(letters) > 1:
            del letters[at]
        elif kind == 1:
            letters.insert(at, rng.choice(list("ACDE")))
        else:
            letters[at] = rng.choice(list("ACDE"))
    return "".join(letters)


def family_members(rng, n, longest=60):
    """Variants of five parents: near-duplicates, near misses and unrelated strings.

    One parent is a tandem repeat, and one has a single letter, or a single residue.
    """
    parents = ["".join(rng.choice(list("ACDE"), rng.integers(1, longest))) for _ in range(3)]
    parents += [parents[0][:3] * int(rng.integers(1, longest // 3)), "A" * rng.integers(1, longest)]
    return [mutated(rng, parents[rng.integers(5)], rng.integers(0, 8)) for _ in range(n)]


@settings(deadline=None, max_examples=60)
@given(st.text("ACD", min_size=1, max_size=150), st.text("ACD", max_size=150))
def test_the_edit_distance_equals_that_of_dynamic_programming(x, y):
    first = np.array([x], dtype=object)
    second = np.array([y], dtype=object)
    assert similar.Block([y]).distances(x).tolist() == [plain_distance(x, y, contained=True)]
    assert similar.whole_distances(first, second).tolist() == [
        plain_distance(x, y, contained=False)
    ]


def test_a_text_is_aligned_as_if_it_were_alone_in_its_block():
    rng = np.random.default_rng(5)
    for length in (1, 7, 8, 9, 63, 64, 90):
        texts = family_members(rng, 12, longest=80)
        pattern = "".join(rng.choice(list("ACDEW"), length))
        expected = [plain_distance(pattern, text, contained=True) for text in texts]
        assert similar.Block(texts).distances(pattern).tolist() == expected


@pytest.fixture(params=["edlib", "no edlib"])
def each_platform(request, monkeypatch):
    if request.param == "no edlib":
        monkeypatch.setattr(similar, "edlib", None)


@pytest.mark.usefixtures("each_platform")
def test_antigens_of_twilight_families_are_clustered_as_by_comparing_every_pair(monkeypatch):
    # families of whole proteins and domains, with 25 to 70 % identity to their parents
    rng = np.random.default_rng(8)
    for block in (1, 400, 1 << 15):
        set_sizes(monkeypatch, aligned_residues=block)
        parents = draw_chains(rng, 4, 90)
        strings = []
        for _ in range(24):
            text = substituted(rng, parents[rng.integers(4)], rng.choice([0.3, 0.5, 0.7, 0.8]))
            start = rng.integers(40)
            strings.append(mutated(rng, text[start : start + rng.integers(40, 90)], 3))
        for identity in (0.9, 0.6, 0.4):
            clusters = similar.cluster(strings, identity, contained=True)
            assert partition(clusters) == partition(plain_clusters(strings, identity, True))


@pytest.mark.usefixtures("each_platform")
@pytest.mark.parametrize("identity", [0.9, 0.6, 0.4])
def test_antigens_with_just_as_many_edits_as_allowed_are_near(identity):
    text = draw_chain(np.random.default_rng(6), 66).replace("W", "A")
    edits = int(np.floor((1 - identity) * 60 + 1e-9))
    for more, expected in ((0, [0, 0]), (1, [0, 1])):
        unmatched = "W" * (edits + more)  # at the start, where unrelated ones are recognised
        pattern = unmatched + text[3 + len(unmatched) : 63]
        assert plain_distance(pattern, text, contained=True) == edits + more
        assert similar.cluster([text, pattern], identity, contained=True).tolist() == expected
        near = similar.contained_near(
            np.array([pattern], object), np.array([text], object), identity
        )
        assert near.tolist() == [expected == [0, 0]]


def replaced(text, places, source):
    letters = list(text)
    for at in places:
        letters[at] = source[at]
    return "".join(letters)


@pytest.mark.parametrize("identity", [0.6, 0.4])
def test_variants_of_antigens_that_are_just_far_from_each_other_are_compared_one_by_one(
    identity, monkeypatch
):
    # some variants of two parents are nearer to each other than the parents, which are far
    set_sizes(monkeypatch, substituted_share=0.1)  # of short antigens
    joined = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        parent, other = draw_chains(rng, 2, 60)
        edits = int(np.floor((1 - identity) * 60 + 1e-9)) + seed % 4
        # a residue more, because antigens of one length are compared by substitutions first
        second = replaced(parent, rng.choice(60, edits, replace=False), other) + "W"
        strings = [parent, second]
        for _ in range(5):
            strings.append(replaced(second, rng.choice(60, 2, replace=False), parent))
            strings.append(replaced(parent, rng.choice(60, 2, replace=False), second))
        clusters = similar.cluster(strings, identity, contained=True)
        assert partition(clusters) == partition(plain_clusters(strings, identity, True))
        joined.append(len(set(clusters)) == 1)
    assert any(joined)


def test_threads_find_the_same_clusters_of_antigens(monkeypatch):
    strings = family_members(np.random.default_rng(3), 60)
    expected = plain_clusters(strings, 0.8, True)
    set_cores(monkeypatch, 8)
    for parts in (1, 3, 100):
        set_sizes(monkeypatch, aligned_first=1, aligned_parts=parts)
        assert partition(similar.cluster(strings, 0.8, contained=True)) == partition(expected)


@pytest.mark.usefixtures("each_platform")
def test_new_antigens_are_near_those_that_comparing_every_pair_finds():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        strings = family_members(rng, 40)
        queries = strings[:15]
        targets = strings[15:]
        for identity in (0.9, 0.6):
            expected = []
            for x in queries:
                pairs = [sorted((x, y), key=len) for y in targets]
                edits = [(plain_distance(a, b, contained=True), len(a)) for a, b in pairs]
                expected.append(any(k <= np.floor((1 - identity) * n + 1e-9) for k, n in edits))
            near = similar.contained_near(
                np.array(queries, object), np.array(targets, object), identity
            )
            assert near.tolist() == expected


@pytest.mark.parametrize("contained", [False, True])
@pytest.mark.parametrize("seeds", [range(2), *in_ci(range(2, 8))])
def test_clusters_equal_those_of_comparing_every_pair(contained, seeds, monkeypatch):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        set_sizes(
            monkeypatch,
            neighbours=int(rng.choice([0, 8])),
            projected_sample=int(rng.choice([4, 10_000])),
            compared_rows=int(rng.choice([1, 5, 10_000])),
            compared_columns=int(rng.choice([1, 5, 10_000])),
            compared_batch=int(rng.choice([1, 5, 10_000])),
        )
        strings = family_members(rng, 24)
        queries = rng.random(24) < 0.5 if seed % 2 and not contained else None
        for identity in (0.95, 0.9, 0.8, 0.4):
            clusters = similar.cluster(strings, identity, contained=contained, queries=queries)
            expected = plain_clusters(strings, identity, contained, queries)
            assert partition(clusters) == partition(expected)


def test_clusters_that_are_joined_anyway_are_joined_with_others():
    rng = np.random.default_rng(4)
    strings = [mutated(rng, chain, 1) for chain in family_members(rng, 12) for _ in range(2)]
    joined = rng.integers(8, size=24)
    _, first = np.unique(strings, return_index=True)  # equal strings are joined in any case
    clusters = similar.cluster([strings[i] for i in first], 0.8, joined=joined[first])
    expected = plain_clusters([strings[i] for i in first], 0.8, False)
    both = similar.join_clusters(
        len(first),
        [(np.arange(len(first)), labels) for labels in (joined[first], np.array(expected))],
    )
    assert partition(clusters) == partition(both)


def test_pairs_exactly_at_the_identity_threshold_are_clustered():
    # Evenly spread edits destroy the most words.
    heavy = list(HEAVY)
    for at in range(5, 120, 10):
        heavy[at] = "P" if heavy[at] != "P" else "K"
    edits = len(range(5, 120, 10))
    at_edge = 1 - edits / len(HEAVY)
    assert similar.cluster([HEAVY, "".join(heavy)], at_edge).tolist() == [0, 0]
    assert similar.cluster([HEAVY, "".join(heavy)], at_edge + 1e-3).tolist() == [0, 1]


def test_a_domain_clusters_with_the_antigen_that_contains_it():
    rng = np.random.default_rng(1)
    protein = draw_chain(rng, 400)
    other = draw_chain(rng, 400)
    antigens = [(protein,), (protein[100:220],), (other,)]
    assert antigen_clusters(antigens, 0.4).tolist() == [0, 0, 1]


def test_antigens_that_share_a_chain_share_a_cluster():
    rng = np.random.default_rng(2)
    a, b, c = draw_chains(rng, 3, 150)
    assert antigen_clusters([(a,), (a, b), (b, c), (c,)], 0.4).tolist() == [0, 0, 0, 0]
    assert antigen_clusters([(a,), (b, c)], 0.4).tolist() == [0, 1]


def test_peptides_cluster_with_peptides_but_not_with_their_protein():
    rng = np.random.default_rng(3)
    protein = draw_chain(rng, 300)
    antigens = [(protein,), (protein[10:25],), (protein[14:29],)]
    assert antigen_clusters(antigens, 0.4).tolist() == [0, 1, 1]


def test_a_single_heavy_chain_joins_the_paired_antibody_that_contains_it():
    other_light = LIGHT[::-1]
    pair = (HEAVY, LIGHT)
    twin = (HEAVY, other_light)
    assert antibody_clusters([pair, twin], 0.9).tolist() == [0, 1]
    assert antibody_clusters([pair, (HEAVY, "")], 0.9).tolist() == [0, 0]
    assert antibody_clusters([pair, (HEAVY[::-1], "")], 0.9).tolist() == [0, 1]
    assert antibody_clusters([(HEAVY, ""), ("", LIGHT)], 0.9).tolist() == [0, 1]


def test_clustering_nothing_gives_no_clusters():
    assert similar.cluster([], 0.9).tolist() == []
    assert antigen_clusters([("ACDEFGHIKL",)], 0.4).tolist() == [0]


def test_peptides_are_found_where_they_occur_in_longer_chains():
    rng = np.random.default_rng(0)
    long, other = ("".join(rng.choice(list("ACDEFGHIKL"), n)) for n in (60, 90))
    antigens = [(long,), (long[5:17],), (long[40:], other), (long[:7],), (long[9:20], "MMM")]
    # a peptide of 20 residues, one too short, one that is only the chain of a complex
    assert contained_peptides(antigens).tolist() == [[1, 0], [2, 0], [4, 0]]
    assert contained_peptides([(long,), (other,)]).shape == (0, 2)


def plain_clones(antibodies):
    """Single-linkage clusters of clones, by comparing every pair."""
    loops = []
    for heavy, _ in antibodies:
        positions = locate_positions(heavy, "heavy")
        loops.append([heavy[at] for p, at in positions.items() if 105 <= position_number(p) <= 117])
    labels = list(range(len(antibodies)))
    for i, (x, _) in enumerate(antibodies):
        for j, (y, _) in enumerate(antibodies[:i]):
            n = len(loops[i])
            edits = plain_distance(x, y, contained=False)
            if n and n == len(loops[j]) and edits <= np.floor(0.3 * max(len(x), len(y)) + 1e-9):
                if sum(map(str.__eq__, loops[i], loops[j])) >= 0.8 * n:
                    labels = [labels[i] if label == labels[j] else label for label in labels]
    return labels


def substituted(rng, text, share):
    letters = rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), len(text))
    return "".join(np.where(rng.random(len(text)) < share, letters, list(text)))


@pytest.mark.parametrize("neighbours", [8, *in_ci(0)])
def test_clones_are_those_of_comparing_every_pair(neighbours, monkeypatch):
    set_sizes(monkeypatch, neighbours=neighbours)
    rng = np.random.default_rng(neighbours)
    start = HEAVY.index("SRWGG")
    antibodies = [("", LIGHT), ("EVQL", ""), (HEAVY, LIGHT), (HEAVY, "")]
    for _ in range(30):
        loop = substituted(rng, HEAVY[start : start + 13], 0.25)[: rng.integers(12, 14)]
        ends = HEAVY[:start], HEAVY[start + 13 :]
        heavy = loop.join(substituted(rng, end, rng.choice([0, 0.2])) for end in ends)
        antibodies.append((heavy, LIGHT))
    clones = clone_clusters(antibodies)
    assert 4 < len(set(clones)) < 30
    assert partition(clones) == partition(plain_clones(antibodies))


@pytest.mark.ci
def test_clones_in_one_large_bucket_of_equal_loops_are_all_found():
    rng = np.random.default_rng(0)
    end = HEAVY.index("SRWGG")
    antibodies = [(substituted(rng, HEAVY[:end], 0.2) + HEAVY[end:], "") for _ in range(30)]
    assert partition(clone_clusters(antibodies)) == partition(plain_clones(antibodies))


def test_distance_to_the_consensus_counts_both_chains():
    family = [("ACDEF", "KL"), ("ACDEF", "KL"), ("ACDEY", "KL"), ("ACDE", "KV")]
    assert consensus([heavy for heavy, _ in family]) == "ACDEF"
    assert distance_to_consensus(family).tolist() == [0, 0, 1, 2]
