"""Clusters compared with a naive implementation that aligns every pair of strings."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trastuzumab import HEAVY, LIGHT

from abag.embed.sequences.domains import number_domain, position_number
from abag.head.clustering import alignment, clones, profiles, search
from abag.head.clustering.alignment import (
    Residues,
    contained_distances,
    whole_distances,
)
from abag.head.clustering.clones import clone_clusters
from abag.head.clustering.clusters import (
    PEPTIDE,
    SEED,
    antibody_clusters,
    antigen_clusters,
    cdrh3_clusters,
    cluster,
    consensus,
    contained_peptides,
    distance_to_parent,
)
from abag.head.clustering.mmseqs import mmseqs_cluster, mmseqs_version


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
    """Sets of entries that share a label."""
    return {tuple(np.flatnonzero(np.asarray(labels) == label)) for label in set(labels)}


def mutated(rng, text, edits):
    letters = list(text)
    for _ in range(edits):
        at, kind = rng.integers(len(letters)), rng.integers(3)
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
    first, second = np.array([0]), np.array([1])
    found = contained_distances(Residues.of([x, y, "A"]), first, second)
    assert found.tolist() == [plain_distance(x, y, contained=True)]
    found = whole_distances(np.array([x, y], dtype=object), first, second)
    assert found.tolist() == [plain_distance(x, y, contained=False)]


def every_pair(rng, lengths):
    strings = ["".join(rng.choice(list("ACD"), n)) for n in lengths]
    i, j = (axis.ravel() for axis in np.indices((len(strings), len(strings))))
    expected = [plain_distance(strings[a], strings[b], True) for a, b in zip(i, j, strict=True)]
    return strings, i, j, expected


def test_pairs_of_different_lengths_can_be_aligned_in_one_batch():
    strings, i, j, expected = every_pair(np.random.default_rng(0), (1, 63, 64, 65, 128, 129, 200))
    assert contained_distances(Residues.of(strings), i, j).tolist() == expected


def test_batches_of_pairs_are_aligned_like_all_at_once(monkeypatch):
    monkeypatch.setattr(alignment, "BATCH_PAIRS", 20)
    strings, i, j, expected = every_pair(np.random.default_rng(1), range(1, 40, 3))
    assert contained_distances(Residues.of(strings), i, j).tolist() == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text("ACDEX", min_size=1, max_size=40), min_size=2, max_size=2))
def test_profiles_bound_the_edit_distance_from_below(strings):
    found, first, second = profiles.Profiles(strings), np.array([0]), np.array([1])
    edits = plain_distance(*strings, contained=False)
    differing = found.differing(first, second).item()
    assert differing == np.abs(found.bits(first) - found.bits(second)).sum()
    assert differing <= profiles.BITS_PER_EDIT * edits
    assert found.differing(first, first).item() == 0
    edits = plain_distance(*strings, contained=True)
    assert found.lost(first, second).item() <= profiles.BITS_PER_LOSS * edits


@pytest.mark.parametrize("sample", [4, 10_000])
def test_projections_bound_the_differing_bits_from_below(sample, monkeypatch):
    monkeypatch.setattr(profiles, "SAMPLE", sample)
    found = profiles.Profiles(family_members(np.random.default_rng(8), 30))
    projections = profiles.Projections(found, edits=3)
    is_late = np.arange(30) % 3 > 0
    order = projections.sort(is_late)
    found.sort(order)
    assert sorted(order) == list(range(30))
    assert is_late[order].tolist() == sorted(is_late)
    first, second = (axis.ravel() for axis in np.indices((30, 30)))
    differing = found.differing(first, second).reshape(30, 30)
    bounds = projections.distances(slice(0, 30), np.arange(30))
    assert np.all(bounds <= differing + profiles.ROUNDING)
    if sample > 30:
        np.testing.assert_allclose(bounds, differing, atol=1e-3)


@pytest.mark.parametrize("windows", [1, 8])
def test_common_subsequences_bound_the_edits_of_a_contained_string_from_below(windows, monkeypatch):
    monkeypatch.setattr(alignment, "WINDOWS", windows)
    monkeypatch.setattr(alignment, "SIMILAR", 5)
    rng = np.random.default_rng(windows)
    texts = family_members(rng, 20)
    texts += ["C" * 70 + text[len(text) // 3 :] + "D" * 90 for text in texts[:6]]
    strings = np.array(sorted(texts, key=len), dtype=object)
    bounds = alignment.contained_bounds(strings, np.array(texts, dtype=object))
    expected = [[plain_distance(x, y, True) for y in texts] for x in strings]
    assert np.all(bounds <= expected)
    assert np.mean(bounds > 0) > 0.5


def test_each_string_is_in_one_family_of_similar_strings():
    rng = np.random.default_rng(7)
    strings = np.array(sorted(set(family_members(rng, 60)), key=len), dtype=object)
    found = search.Families.of(strings)
    assert sorted(found.members) == list(range(len(strings)))
    assert found.size.max() > 1
    pairs = found.member_pairs(found.parent, np.arange(len(found.size)))
    for k, (family, at) in enumerate(zip(*pairs, strict=True)):
        parent, member = strings[found.parent[family]], strings[found.members[at]]
        assert at == k
        assert found.differing[at] == sum(a != b for a, b in zip(parent, member, strict=True))
        assert found.differing[at] <= found.radius[family] <= 0.1 * len(parent)
        assert found.parent[family] <= found.members[at] <= found.last[family]


def plain_families(strings):
    """Members of each family and their differences from its parent, one pair at a time."""
    found, rest = [], list(range(len(strings)))
    while rest:
        parent = strings[rest[0]]
        differing = {
            i: sum(a != b for a, b in zip(parent, strings[i], strict=True))
            for i in rest
            if len(strings[i]) == len(parent)
        }
        near = {i: k for i, k in differing.items() if k <= 0.1 * len(parent)}
        found.append(near)
        rest = [i for i in rest if i not in near]
    return found


@pytest.mark.parametrize("length", [3, 9, 10, 50, 300])
def test_families_equal_those_of_comparing_one_pair_at_a_time(length):
    rng = np.random.default_rng(length)
    parents = rng.choice(list("ACD"), (3, length))
    strings = []
    for _ in range(40):  # some differ only at the end, which is not among the first positions
        child, first = parents[rng.integers(3)].copy(), int(rng.choice([0, length // 2]))
        at = rng.integers(first, length, size=rng.integers(0, length // 4 + 2))
        child[at] = rng.choice(list("ACD"), len(at))
        strings.append("".join(child))
    found = search.Families.of(np.array([*strings, "A" * (length + 1)], dtype=object))
    expected = plain_families([*strings, "A" * (length + 1)])
    assert found.parent.tolist() == [min(family) for family in expected]
    assert found.size.tolist() == [len(family) for family in expected]
    both = dict(zip(found.members.tolist(), found.differing.tolist(), strict=True))
    assert list(both.items()) == [one for family in expected for one in family.items()]
    assert max(found.size) > 1


@pytest.mark.parametrize("contained", [False, True])
def test_clusters_equal_those_of_comparing_every_pair(contained, monkeypatch):
    identities = [0.9, 0.4, 0.95, 0.8]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        size = int(rng.choice([1, 5, 10_000]))
        monkeypatch.setattr(search, "VARIANT_DIFFERENCE", rng.choice([0.1, 0.4]))
        monkeypatch.setattr(profiles, "PIVOTS", int(rng.choice([1, 7, 256])))
        monkeypatch.setattr(profiles, "SAMPLE", int(rng.choice([4, 10_000])))
        monkeypatch.setattr(search, "WORTH_BOUNDS", rng.choice([-1, 0.1, 2]))
        for name in ("BATCH_PAIRS", "QUEUE_PAIRS", "CHUNK", "BLOCK", "FAMILIES", "MEMBER_PAIRS"):
            monkeypatch.setattr(search, name, size)
        strings = family_members(rng, 24)
        queries = rng.random(24) < 0.5 if seed % 2 else None
        found = cluster(strings, identities, contained=contained, queries=queries)
        for identity, labels in zip(identities, found, strict=True):
            expected = plain_clusters(strings, identity, contained, queries)
            assert partition(labels) == partition(expected)


@pytest.mark.parametrize("share", [-1, 2])  # with and without the bounds from subsequences
def test_a_near_duplicate_of_a_family_member_need_not_be_one_of_its_parent(share, monkeypatch):
    monkeypatch.setattr(search, "WORTH_BOUNDS", share)
    parent = "ACDEFGHIKLMNPQRSTVWA" * 2
    member = parent[:9] + "Y" + parent[10:16] + "Y" + parent[17:25] + "Y" + parent[26:]
    assert search.Families.of(np.array([parent, member], dtype=object)).size.tolist() == [2]
    found = cluster([parent, member, member[:38]], [0.95], contained=True)
    assert found[0].tolist() == [0, 1, 1]


def test_clusters_do_not_depend_on_the_order_of_the_strings():
    rng = np.random.default_rng(5)
    strings = family_members(rng, 40)
    order = rng.permutation(40)
    shuffled = cluster([strings[i] for i in order], [0.8])[0]
    back = np.empty(40, int)
    back[order] = shuffled
    assert partition(back) == partition(cluster(strings, [0.8])[0])


def test_near_duplicates_of_near_duplicates_share_a_cluster():
    a, b, c = "A" * 20, "A" * 18 + "C" * 2, "A" * 16 + "C" * 4
    assert cluster([a, c], [0.9])[0].tolist() == [0, 1]
    assert cluster([a, b, c], [0.9])[0].tolist() == [0, 0, 0]


def test_pairs_exactly_at_the_identity_threshold_are_clustered():
    # Evenly spread edits destroy the most words.
    heavy = list(HEAVY)
    for at in range(5, 120, 10):
        heavy[at] = "P" if heavy[at] != "P" else "K"
    edits = len(range(5, 120, 10))
    at_edge = 1 - edits / len(HEAVY)
    assert cluster([HEAVY, "".join(heavy)], [at_edge])[0].tolist() == [0, 0]
    assert cluster([HEAVY, "".join(heavy)], [at_edge + 1e-3])[0].tolist() == [0, 1]


def test_edits_that_change_the_most_bits_of_a_profile_are_clustered():
    letters = "ACDEFGHIKLMNPQRSTVWY"
    text = letters + letters[-2::-1]  # no pair of neighbours occurs twice
    edited = text[:6] + "S" + text[7:24] + "D" + text[25:]
    differing = profiles.Profiles([text, edited]).differing(np.array([0]), np.array([1]))
    assert differing.item() == 2 * profiles.BITS_PER_EDIT
    assert cluster([text, edited], [1 - 2 / 39])[0].tolist() == [0, 0]
    assert cluster([text, edited], [1 - 1 / 39])[0].tolist() == [0, 1]


def test_a_domain_clusters_with_the_antigen_that_contains_it():
    rng = np.random.default_rng(1)
    protein = "".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 400))
    other = "".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 400))
    antigens = [(protein,), (protein[100:220],), (other,)]
    assert antigen_clusters(antigens, [0.4])[0].tolist() == [0, 0, 1]


def test_antigens_that_share_a_chain_share_a_cluster():
    rng = np.random.default_rng(2)
    a, b, c = ("".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 150)) for _ in range(3))
    assert antigen_clusters([(a,), (a, b), (b, c), (c,)], [0.4])[0].tolist() == [0, 0, 0, 0]
    assert antigen_clusters([(a,), (b, c)], [0.4])[0].tolist() == [0, 1]


def test_peptides_cluster_with_peptides_but_not_with_their_protein():
    rng = np.random.default_rng(3)
    protein = "".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 300))
    antigens = [(protein,), (protein[10:25],), (protein[14:29],)]
    assert antigen_clusters(antigens, [0.4])[0].tolist() == [0, 1, 1]


def test_a_single_heavy_chain_joins_the_paired_antibody_that_contains_it():
    other_light = LIGHT[::-1]
    pair, twin = (HEAVY, LIGHT), (HEAVY, other_light)
    assert antibody_clusters([pair, twin], [0.9])[0].tolist() == [0, 1]
    assert antibody_clusters([pair, (HEAVY, "")], [0.9])[0].tolist() == [0, 0]
    assert antibody_clusters([pair, (HEAVY[::-1], "")], [0.9])[0].tolist() == [0, 1]
    assert antibody_clusters([(HEAVY, ""), ("", LIGHT)], [0.9])[0].tolist() == [0, 1]


def test_antibodies_can_be_clustered_by_cdrh3():
    loop = HEAVY.replace("SRWGGDGFYAMDY", "ARDLLLPPPSSTFDI")
    other_frame = HEAVY.replace("EVQLVESGGG", "QVQLQQSGAE")
    antibodies = [(HEAVY, LIGHT), (loop, LIGHT), (other_frame, LIGHT), ("", LIGHT)]
    assert cdrh3_clusters(antibodies, [0.8])[0].tolist() == [0, 1, 0, 2]


def test_clustering_nothing_gives_no_clusters():
    assert cluster([], [0.9])[0].tolist() == []
    assert antigen_clusters([("ACDEFGHIKL",)], [0.4])[0].tolist() == [0]


def test_distance_to_the_consensus_counts_both_chains():
    family = [("ACDEF", "KL"), ("ACDEF", "KL"), ("ACDEY", "KL"), ("ACDE", "KV"), ("WWWWW", "WW")]
    assert consensus([heavy for heavy, _ in family[:4]]) == "ACDEF"
    assert distance_to_parent(family, np.array([0, 0, 0, 0, 1])).tolist() == [0, 0, 1, 2, 0]
    known = np.array([False, False, True, False, True])
    found = distance_to_parent(family, np.array([0, 0, 0, 0, 1]), known)
    assert found.tolist() == [1, 1, 0, 2, 0]


@given(
    antibodies=st.lists(
        st.tuples(st.text("ACD", max_size=6), st.text("KL", max_size=4)), min_size=1, max_size=9
    ),
    seed=st.integers(0, 99),
)
def test_distances_to_parents_equal_those_of_one_antibody_at_a_time(antibodies, seed):
    rng = np.random.default_rng(seed)
    group, known = rng.integers(3, size=len(antibodies)), rng.random(len(antibodies)) < 0.6
    known[np.unique(group, return_index=True)[1]] = True
    expected = []
    for own, chains in zip(group, antibodies, strict=True):
        family = [a for a, k, g in zip(antibodies, known, group, strict=True) if k and g == own]
        parents = [consensus(texts) for texts in zip(*family, strict=True)]
        edits = [plain_distance(x, y, False) for x, y in zip(chains, parents, strict=True)]
        expected.append(sum(edits))
    assert distance_to_parent(antibodies, group, known).tolist() == expected


@pytest.mark.skipif(mmseqs_version() is None, reason="MMseqs2 is not installed")
def test_mmseqs2_finds_the_exact_clusters_of_well_separated_families():
    rng = np.random.default_rng(6)
    letters = list("ACDEFGHIKLMNPQRSTVWY")
    parents = [rng.choice(letters, 200) for _ in range(8)]
    strings = []
    for parent in parents * 5:
        child = parent.copy()
        at = rng.choice(200, 30, replace=False)
        child[at] = rng.choice(letters, 30)
        strings.append("".join(child))
    exact = antigen_clusters([(text,) for text in strings], [0.4])[0]
    found = antigen_clusters([(text,) for text in strings], [0.4], mmseqs_cluster)[0]
    assert partition(found) == partition(exact)
    assert exact.max() == 7


def test_the_benchmark_runs(capsys, monkeypatch):
    path = Path(__file__).parents[1] / "benchmarks" / "bench_clusters.py"
    spec = importlib.util.spec_from_file_location("bench_clusters", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    small = ["--antibodies", "60", "--antigens", "12", "--sample", "50"]
    monkeypatch.setattr("sys.argv", ["bench_clusters.py", *small])
    bench.main()
    assert "equal to aligning all pairs" in capsys.readouterr().out


def test_peptides_are_found_where_they_occur_in_longer_chains():
    rng = np.random.default_rng(0)
    long, other = ("".join(rng.choice(list("ACDEFGHIKL"), n)) for n in (60, 90))
    antigens = [(long,), (long[5:17],), (long[40:], other), (long[:7],), (long[9:20], "MMM")]
    # a peptide of 20 residues, one too short, one that is only the chain of a complex
    assert contained_peptides(antigens).tolist() == [[1, 0], [2, 0], [4, 0]]
    assert contained_peptides([(long,), (other,)]).shape == (0, 2)


@settings(deadline=None)
@given(
    st.lists(st.text("AC", min_size=49, max_size=70), max_size=4),
    st.lists(st.text("AC", min_size=7, max_size=9), max_size=4),
)
def test_contained_peptides_equal_a_search_of_all_pairs(proteins, short):
    texts = short + proteins
    expected = [
        [i, j]
        for i, peptide in enumerate(texts)
        for j, text in enumerate(texts)
        if SEED <= len(peptide) < PEPTIDE <= len(text) and peptide in text
    ]
    assert contained_peptides([(text,) for text in texts]).tolist() == expected


def plain_clones(antibodies):
    """Single-linkage clusters of clones, by comparing every pair."""
    loops = [number_domain(heavy, "heavy") for heavy, _ in antibodies]
    loops = [[x for p, x in one.items() if 105 <= position_number(p) <= 117] for one in loops]
    labels = list(range(len(antibodies)))
    for i, (x, _) in enumerate(antibodies):
        for j, (y, _) in enumerate(antibodies[:i]):
            n, edits = len(loops[i]), plain_distance(x, y, contained=False)
            if n and n == len(loops[j]) and edits <= np.floor(0.3 * max(len(x), len(y)) + 1e-9):
                if sum(map(str.__eq__, loops[i], loops[j])) >= 0.8 * n:
                    labels = [labels[i] if label == labels[j] else label for label in labels]
    return labels


def substituted(rng, text, share):
    letters = rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), len(text))
    return "".join(np.where(rng.random(len(text)) < share, letters, list(text)))


@pytest.mark.parametrize("neighbours", [1, 8])
def test_clones_are_those_of_comparing_every_pair(neighbours, monkeypatch):
    monkeypatch.setattr(clones, "NEIGHBOURS", neighbours)
    rng, start = np.random.default_rng(neighbours), HEAVY.index("SRWGG")
    antibodies = [("", LIGHT), ("EVQL", ""), (HEAVY, LIGHT), (HEAVY, "")]
    for _ in range(60):
        loop = substituted(rng, HEAVY[start : start + 13], 0.25)[: rng.integers(12, 14)]
        ends = HEAVY[:start], HEAVY[start + 13 :]
        heavy = loop.join(substituted(rng, end, rng.choice([0, 0.2])) for end in ends)
        antibodies.append((heavy, LIGHT))
    found = clone_clusters(antibodies)
    assert 4 < len(set(found)) < 50
    assert partition(found) == partition(plain_clones(antibodies))


def test_clones_in_one_large_bucket_of_equal_loops_are_all_found():
    rng, end = np.random.default_rng(0), HEAVY.index("SRWGG")
    antibodies = [(substituted(rng, HEAVY[:end], 0.2) + HEAVY[end:], "") for _ in range(60)]
    assert partition(clone_clusters(antibodies)) == partition(plain_clones(antibodies))
