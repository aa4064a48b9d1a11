"""Regimes: which pairs they hold, what their folds hold out, and when they cannot be measured."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from chunks import set_sizes
from drawn import draw_chain, draw_chains, mutated
from rapidfuzz.distance import Levenshtein
from reading import groups_of, read_labels
from trastuzumab import HEAVY, LIGHT

import abag
from abag import SplitError
from abag.embed.tables import numbering
from abag.head.evaluation import scores
from abag.head.regimes import relations, sides
from abag.head.regimes.folds import RegimesOfTable, all_pairs, measure_regimes
from abag.head.regimes.relations import NONE, Distances, by_length
from abag.head.regimes.sides import KnownSequences, Side, sides_of
from abag.head.regimes.splits import (
    KNOWN,
    MUTATED,
    NEW,
    REGIMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    VARIANT,
    NewSequences,
    Shown,
    applicable,
    effective_groups,
    find_regimes,
)


@pytest.fixture(scope="module")
def crossed():
    """Measurements of 12 families of 2 antibodies with 12 of 2 antigens."""
    rng = np.random.default_rng(0)
    antibodies = [mutated(rng, p, 2) for p in draw_chains(rng, 12, 110) for _ in "ab"]
    antigens = [mutated(rng, p, 2) for p in draw_chains(rng, 12, 150) for _ in "ab"]
    cells = rng.permutation(24 * 24)[:300]
    frame = pd.DataFrame(
        {
            "heavy": [antibodies[i // 24] for i in cells],
            "antigen": [antigens[i % 24] for i in cells],
            "pKd": rng.normal(8, 1, 300),
        }
    )
    return RegimesOfTable(groups_of(read_labels(frame)))


def test_test_pairs_are_in_their_regime_given_the_training_pairs(crossed):
    for measurement in crossed.measured():
        for split in measurement.splits:
            train = np.flatnonzero(np.isin(split.part, (TRAIN, VALIDATION)))
            for row in split.rows(TEST).tolist():
                levels = []
                for side in crossed.sides:
                    has_family = side.family[row] in side.family[train]
                    is_trained = side.sequence[row] in side.sequence[train]
                    levels.append(KNOWN if is_trained else VARIANT if has_family else NEW)
                assert tuple(levels) == measurement.regime.levels


def test_a_pair_is_tested_once_per_regime_and_a_fold_trains_on_more_than_it_validates(crossed):
    measured = crossed.measured()
    names = {measurement.regime.name for measurement in measured if measurement.splits}
    assert names >= {"known", "new_variant", "antigen_variant", "new_antibody", "new_antigen"}
    assert names >= {"both_new"}
    assert (all_pairs(measured).part == TRAIN).all()
    for measurement in measured:
        tested = np.concatenate([split.rows(TEST) for split in measurement.splits])
        assert len(tested) == len(np.unique(tested))
        for split in measurement.splits:
            assert len(split.rows(TRAIN)) > 2 * len(split.rows(VALIDATION)) > 0


def test_the_same_seed_gives_the_same_folds_and_another_one_others(crossed):
    seeded = (replace(crossed.groups, options=abag.DatasetOptions(seed=seed)) for seed in (0, 1))
    again, other = (RegimesOfTable(groups).measured()[1] for groups in seeded)
    first = crossed.measured()[1]
    assert all((a.part == b.part).all() for a, b in zip(first.splits, again.splits, strict=True))
    assert any((a.part != b.part).any() for a, b in zip(first.splits, other.splits, strict=False))


@pytest.mark.parametrize(
    ("antibodies", "antigens", "rows", "measured", "reasons"),
    [
        (
            40, 1, 40, ["new_antibody"],
            ["no held-out pairs of this kind; expected at least 10",
             "1 antigen cluster; expected at least 5", "1 antigen cluster; expected at least 5"],
        ),
        (6, 3, 6, [], ["no held-out pairs of this kind; expected at least 10",
                       "6 held-out pairs of this kind; expected at least 10",
                       "3 antigen clusters; expected at least 5"]),
        # blocks without rows: each antibody has an antigen of its own
        (20, 20, 20, ["both_new"], ["no held-out pairs of this kind; expected at least 10"] * 3),
    ],
)  # fmt: skip
def test_what_a_table_cannot_measure_is_said_in_one_line(
    antibodies, antigens, rows, measured, reasons
):
    rng = np.random.default_rng(1)
    heavies = draw_chains(rng, antibodies, 100)
    targets = draw_chains(rng, antigens, 90)
    frame = pd.DataFrame(
        [(heavies[i % antibodies], targets[i % antigens], rng.normal(8, 1)) for i in range(rows)],
        columns=["heavy", "antigen", "pKd"],
    )
    measurements = RegimesOfTable(groups_of(read_labels(frame))).measured()
    names = [measurement.regime.name for measurement in measurements if measurement.splits]
    assert names == measured
    lines = [measurement.why_not for measurement in measurements if measurement.why_not]
    assert lines[: len(reasons)] == [f"not measured: {reason}" for reason in reasons]
    for measurement in measurements:
        for split in measurement.splits:
            assert len(split.rows(TRAIN)) > len(split.rows(VALIDATION)) > 0


def test_repeats_do_not_make_few_pairs_enough_to_measure_a_regime():
    rng = np.random.default_rng(3)
    heavies = draw_chains(rng, 8, 100)
    frame = pd.DataFrame({"heavy": heavies, "antigen": draw_chain(rng, 90), "pKd": np.arange(8.0)})
    pairs = read_labels(frame)
    for repeats in (1, 3):
        table = RegimesOfTable(groups_of(pairs, split="auto", repeats=repeats))
        of_new = [regime for regime in table.measured() if regime.regime.name == "new_antibody"]
        assert (
            of_new[0].why_not == "not measured: 8 held-out pairs of this kind; expected at least 10"
        )


@pytest.mark.parametrize("split", ["auto", "random"])
def test_one_fold_is_enough_in_a_large_table_unless_folds_are_asked_for(monkeypatch, split):
    set_sizes(monkeypatch, large_table=400)
    rng = np.random.default_rng(3)
    heavy = draw_chains(rng, 400, 100)
    target = draw_chain(rng, 90)
    frame = pd.DataFrame({"heavy": heavy, "antigen": target, "pKd": rng.normal(8, 1, 400)})
    for asked, expected in {0: 1, 4: 4}.items():
        measurements = measure_regimes(
            RegimesOfTable(groups_of(read_labels(frame), split=split, folds=asked))
        )
        assert max(len(measurement.splits) for measurement in measurements) == expected


def test_a_run_learns_from_all_pairs_in_the_end_where_one_fold_of_both_sides_is_enough(monkeypatch):
    set_sizes(monkeypatch, large_table=100, enough_groups=1.0)
    rng = np.random.default_rng(3)
    heavies = draw_chains(rng, 12, 100)
    rows = [(heavy, target) for heavy in heavies for target in draw_chains(rng, 12, 90)]
    frame = pd.DataFrame(rows, columns=["heavy", "antigen"]).assign(pKd=rng.normal(8, 1, 144))
    measured = measure_regimes(RegimesOfTable(groups_of(read_labels(frame), split="both")))
    (split,) = measured[0].splits
    assert (split.part == UNUSED).any()
    assert (all_pairs(measured).part == TRAIN).all()
    assert scores.TestedPairs.of(read_labels(frame), measured[0]).trained_share < 0.9


def test_variants_of_one_antibody_are_measured_by_new_mutations():
    rng = np.random.default_rng(2)
    heavy = [mutated(rng, HEAVY, int(rng.integers(1, 4))) for _ in range(120)]
    frame = pd.DataFrame(
        {"heavy": heavy, "antigen": "MKTAYIAKQR" * 8, "pKd": rng.normal(8, 1, 120)}
    )
    table = RegimesOfTable(groups_of(read_labels(frame)))
    assert [side.is_library for side in table.sides] == [True, False]
    measured = {measurement.regime.name: measurement for measurement in table.measured()}
    chains = table.groups.pairs.table.antibodies.chains
    antibody = table.groups.pairs.antibody
    n_unseen = 0
    n_tested = 0
    for split in measured["new_mutations"].splits:
        trained = [chains[i][0] for i in antibody[np.isin(split.part, (TRAIN, VALIDATION))]]
        seen = [set(column) for column in zip(*trained, strict=True)]
        for row in split.rows(TEST).tolist():
            tested = chains[antibody[row]][0]
            assert tested not in trained
            unseen = sum(tested[at] not in seen[at] for at in range(len(HEAVY)))
            n_unseen += bool(unseen)
            n_tested += 1
            assert split.distance[row] == min(mismatches(tested, other) for other in trained)
    assert n_unseen > 0.9 * n_tested  # others have a new set of changed regions


def test_effective_groups_count_equal_ones_and_discount_a_large_one():
    assert effective_groups(np.arange(7)) == 7
    assert effective_groups(np.repeat([0, 1], [98, 2])) == pytest.approx(1.04, abs=0.01)
    assert effective_groups(np.zeros(0, np.int64)) == 0


def test_the_best_baseline_is_compared_with_twice_the_variance_in_several_folds():
    rng = np.random.default_rng(8)
    n = 60
    pkd, predicted, other = rng.normal(8, 1, (3, n))

    def widths(fold):
        tested = scores.TestedPairs(
            np.arange(n), pkd, fold, np.arange(n), np.zeros(n, int), [np.arange(n)]
        )
        score = scores.score_regime(
            "known", "known", tested, predicted, np.full(n, 8.0), {"ridge": other}, None
        )
        claims = score["better_than_best"], score["better_than_mean"]
        return np.array([claim["high"] - claim["low"] for claim in claims])

    ratio = widths(np.arange(n) % 5) / widths(np.zeros(n, int))
    np.testing.assert_allclose(ratio, [np.sqrt(2), 1])


def known_of(kind, chains):
    """Keep sequences as a predictor does, of a table that pairs them with one other sequence."""
    numbers = np.arange(len(chains))
    groups = np.zeros(len(chains), np.int64) if len(chains) > 9 else numbers
    side = Side(kind, chains, numbers, groups, groups)
    names = {number: f"row {number + 1}" for number in range(len(chains))}
    return KnownSequences.of(side, names, 0.9 if kind == "antibody" else 0.4)


def has_relative(known_sequences, chains):
    return known_sequences.compare(chains).level != NEW


def test_exact_duplicates_are_known_and_unrelated_sequences_are_new():
    rng = np.random.default_rng(3)
    antibodies = [(mutated(rng, HEAVY, 20), "") for _ in range(9)]
    known_sequences = known_of("antibody", antibodies)
    assert (known_sequences.compare(antibodies).level == KNOWN).all()
    unrelated = [(draw_chain(rng, 120), ""), (mutated(rng, HEAVY, 60), "")]
    assert known_sequences.compare(unrelated).level.tolist() == [NEW, NEW]
    antigens = [(draw_chain(rng, 200),) for _ in range(9)]
    known_sequences = known_of("antigen", antigens)
    assert (known_sequences.compare(antigens).level == KNOWN).all()
    unrelated = [(draw_chain(rng, 200),), (draw_chain(rng, 10),)]
    assert known_sequences.compare(unrelated).level.tolist() == [NEW, NEW]


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_what_is_new_about_a_sequence_does_not_depend_on_those_beside_it(kind):
    rng = np.random.default_rng(6)
    trained = [mutated(rng, HEAVY, 2) for _ in range(30)]
    asked = [*trained[:3], *(mutated(rng, HEAVY, n % 4) for n in range(12)), HEAVY[:-2], HEAVY[3:]]
    pack = (lambda text: (text, "")) if kind == "antibody" else (lambda text: (text,))
    known_sequences = known_of(kind, [*map(pack, trained)])
    together = known_sequences.compare([*map(pack, asked)])
    assert len({*together.level.tolist()}) > 2
    for number, text in enumerate(asked):
        alone = known_sequences.compare([pack(text)])
        assert alone.level[0] == together.level[number]
        assert alone.distance[0] == together.distance[number]


def mismatches(text, parent):
    return sum(a != b for a, b in zip(text, parent, strict=False))


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_near_duplicates_are_exactly_those_of_the_edit_distance(kind):
    rng = np.random.default_rng(4)
    parents = draw_chains(rng, 9, 100)
    asked = [mutated(rng, parents[n % 9], n % 25) for n in range(120)]
    asked += [text[: 100 - n % 15] for n, text in enumerate(asked)]
    pack = (lambda text: (text, "")) if kind == "antibody" else (lambda text: (text,))
    known_sequences = known_of(kind, [pack(text) for text in parents])
    if kind == "antigen":  # not those that are only of one family
        known_sequences = replace(known_sequences, identity=0.9)
    is_near = has_relative(known_sequences, [pack(text) for text in asked])
    if kind == "antibody":
        most = [max(len(text), 100) // 10 for text in asked]
        distance = Levenshtein.distance
    else:  # the shorter is aligned inside the longer: nothing is shifted here
        most = [len(text) // 10 for text in asked]
        distance = mismatches
    expected = []
    for text, limit in zip(asked, most, strict=True):
        edits = [distance(text, parent) for parent in parents]
        expected.append(min(edits) <= limit)
    assert is_near.tolist() == expected


def test_strains_and_parts_of_a_training_antigen_are_variants_of_it():
    rng = np.random.default_rng(5)
    whole = draw_chain(rng, 400)
    known_sequences = known_of("antigen", [(whole,)])
    strains = [(mutated(rng, whole, edits),) for edits in (20, 60, 150)]
    compared = known_sequences.compare([(whole,), (whole[100:300],), *strains])
    assert compared.level.tolist() == [KNOWN] + [VARIANT] * 4
    assert compared.distance.tolist() == [0, 200, 20, 60, 150]


def test_a_clone_of_a_training_antibody_is_a_variant_of_it():
    rng = np.random.default_rng(5)
    at = HEAVY.index("WGGDGFYAMDY")
    clone = mutated(rng, HEAVY[: at - 5], 25) + HEAVY[at - 5 :]
    other = clone.replace("WGGDGFYAMDY", "HKKRHQRTPPV")
    known_sequences = known_of("antibody", [(HEAVY, "")])
    assert known_sequences.compare([(clone, ""), (other, "")]).level.tolist() == [VARIANT, NEW]


def test_a_chain_that_cannot_be_compared_is_new_unless_it_is_the_same():
    rng = np.random.default_rng(0)
    known_sequences = known_of(
        "antigen", [(draw_chain(rng, 1200),) for _ in range(8)] + [("EGGPFSYRV",)]
    )
    peptides = [(draw_chain(rng, n),) for n in (6, 7, 9, 23, 24)]
    asked = [("EGGPFSYRV",), *peptides]
    assert known_sequences.compare(asked).level.tolist() == [KNOWN] + [NEW] * 5
    known_sequences = known_of("antibody", [(HEAVY, LIGHT), ("WWWWWWW", LIGHT)])
    asked = [(HEAVY, LIGHT), ("WWWWWWW", LIGHT), ("W" * 200, LIGHT)]
    assert known_sequences.compare(asked).level.tolist() == [KNOWN, KNOWN, NEW]
    # of a single chain and a pair, the chain that both have is compared
    assert known_sequences.compare([(HEAVY, "")]).level.tolist() == [VARIANT]


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_sequences_that_are_compared_in_blocks_are_as_new_as_at_once(monkeypatch, kind):
    rng = np.random.default_rng(8)
    pack = (lambda text: (text, "")) if kind == "antibody" else (lambda text: (text,))
    known_sequences = known_of(kind, [pack(mutated(rng, HEAVY, n % 5)) for n in range(20)])
    asked = [*map(pack, [mutated(rng, HEAVY[: 120 - n % 3], n) for n in range(20)])]
    asked += [*map(pack, draw_chains(rng, 3, 110)), known_sequences.chains[4]]
    at_once = known_sequences.compare(asked)
    assert set(at_once.level.tolist()) >= {KNOWN, MUTATED, NEW}
    monkeypatch.setattr(sides, "COMPARED", 7)
    for together, in_blocks in zip(at_once, known_sequences.compare(asked), strict=True):
        np.testing.assert_array_equal(together, in_blocks)
        assert together.dtype == in_blocks.dtype
    assert len(known_sequences.compare([]).level) == 0


def loaded(arrays):
    """Restore the training sequences of both kinds."""
    return {kind: KnownSequences.load(kind, arrays) for kind in ("antibody", "antigen")}


def test_what_is_new_is_read_back_and_forged_arrays_are_refused():
    rng = np.random.default_rng(6)
    antibodies = [(mutated(rng, HEAVY, 3), "") for _ in range(12)]
    variants = [(mutated(rng, "MKTAYIAKQRQISFVKSHFSRQ" * 4, 2),) for _ in range(12)]
    made = {"antibody": known_of("antibody", antibodies), "antigen": known_of("antigen", variants)}
    arrays = made["antibody"].arrays() | made["antigen"].arrays()
    read = loaded(arrays)
    new = [(mutated(rng, HEAVY, 1), ""), (draw_chain(rng, 100), "")]
    for kind, asked in (("antibody", new), ("antigen", [(mutated(rng, variants[0][0], 1),)])):
        for array, other in zip(made[kind].compare(asked), read[kind].compare(asked), strict=True):
            assert (array == other).all()
    assert read["antibody"].compare(antibodies).level.tolist() == [KNOWN] * 12
    compared = read["antibody"].compare(new)
    assert compared.level.tolist() == [MUTATED, NEW]
    assert read["antibody"].names == [f"row {number}" for number in range(1, 13)]
    expected = min(mismatches(new[0][0], heavy) for heavy, _ in antibodies)
    assert compared.distance.tolist() == [expected, 0]
    assert compared.nearest[1] == NONE
    assert mismatches(new[0][0], antibodies[compared.nearest[0]][0]) == expected
    for name in arrays:
        with pytest.raises(ValueError, match="has float32"):
            loaded(arrays | {name: arrays[name].astype(np.float32)})
    tokens = arrays["seen.antigen.tokens"][::-1]  # searched for as sorted
    with pytest.raises(ValueError, match=r"tokens are not in ascending order"):
        loaded(arrays | {"seen.antigen.tokens": tokens})
    for forged in (
        "row 1\n" * 11,
        "row 1\n" * 13,
        "row 1\n" * 11 + "x" * 200 + "\n",
        "\x1b[2J\n" * 12,
    ):
        names = np.frombuffer(forged.encode(), np.uint8)
        with pytest.raises(ValueError, match=r"names are not 12 names"):
            loaded(arrays | {"seen.antibody.names": names})


def test_without_sequences_all_but_repeats_is_new():
    rng = np.random.default_rng(6)
    antibodies = [(mutated(rng, HEAVY, 3), "") for _ in range(12)]
    made = known_of("antibody", antibodies)
    shared = KnownSequences.load("antibody", made.without_sequences().arrays())
    assert shared.chains is None
    asked = [antibodies[0], (mutated(rng, HEAVY, 1), "")]
    assert shared.compare(asked).level.tolist() == [KNOWN, NEW]
    for array in shared.arrays().values():
        assert HEAVY[:8].encode() not in array.tobytes()


def measured_by_name(frame):
    measurements = RegimesOfTable(groups_of(read_labels(frame))).measured()
    return {measurement.regime.name: measurement for measurement in measurements}


def test_a_side_with_its_kinds_exchanged_has_the_mirror_image_of_regimes():
    rng = np.random.default_rng(9)
    parents = draw_chains(rng, 12, 150)
    parents_of_antigens = draw_chains(rng, 9, 150)
    heavies = [mutated(rng, parent, 3) for parent in parents for _ in "ab"]
    antigens = [mutated(rng, parent, 3) for parent in parents_of_antigens for _ in "ab"]
    cells = rng.permutation(24 * 18)[:250]
    frame = pd.DataFrame(
        {"heavy": [heavies[i // 18] for i in cells], "antigen": [antigens[i % 18] for i in cells]}
    )
    frame["pKd"] = rng.normal(8, 1, 250)
    mirrored = frame.rename(columns={"heavy": "antigen", "antigen": "heavy"})
    of_levels = {regime.levels: name for name, regime in REGIMES.items() if name != "given"}
    measured = measured_by_name(frame)
    mirror = measured_by_name(mirrored)
    assert {*measured} >= {"known", "new_antibody", "new_antigen", "both_new", "new_variant"}
    for name, measurement in measured.items():
        other = mirror[of_levels[REGIMES[name].levels[::-1]]]
        tested = sum(len(split.rows(TEST)) for split in measurement.splits)
        tested_of_other = sum(len(split.rows(TEST)) for split in other.splits)
        assert tested == pytest.approx(tested_of_other, rel=0.3, abs=12)
        if len(measurement.groups) == 1:
            assert effective_groups(measurement.groups[0]) == effective_groups(other.groups[0])


def test_a_library_of_antigens_is_measured_by_new_variants_and_by_new_mutations():
    rng = np.random.default_rng(2)
    parent = draw_chain(rng, 120)
    sites = rng.choice(120, 10, replace=False)
    rows = []
    while len(rows) < 200:
        letters = list(parent)
        for site in sites[rng.random(10) < 0.5]:
            letters[site] = "A" if parent[site] != "A" else "W"
        rows.append("".join(letters))
    heavies = draw_chains(rng, 4, 100)
    frame = pd.DataFrame({"heavy": rng.choice(heavies, 200), "antigen": rows})
    frame["pKd"] = rng.normal(8, 1, 200)
    groups = groups_of(read_labels(frame))
    assert [side.is_library for side in sides_of(groups)] == [False, True]
    measured = {
        measurement.regime.name: measurement
        for measurement in measure_regimes(RegimesOfTable(groups))
    }
    assert len(measured["antigen_variant"].splits) == 5
    chains = groups.pairs.table.antigens.chains
    antigen = groups.pairs.antigen
    variant = measured["antigen_mutations"]
    assert len(variant.splits) >= 3
    for split in variant.splits:
        trained = [chains[i][0] for i in antigen[np.isin(split.part, (TRAIN, VALIDATION))]]
        seen = {at: {text[at] for text in trained} for at in sites}
        for row in split.rows(TEST).tolist():
            tested = chains[antigen[row]][0]
            assert any(tested[at] not in seen[at] for at in sites)


@pytest.mark.parametrize("pairs", [19, 21])
def test_a_table_of_twenty_pairs_is_measured_pair_by_pair_and_a_smaller_one_is_refused(pairs):
    rng = np.random.default_rng(1)
    heavy = draw_chain(rng, 100)
    antigen = draw_chain(rng, 90)
    heavies = [mutated(rng, heavy, 2) for _ in range(3)]
    antigens = [mutated(rng, antigen, 2) for _ in range(7)]
    rows = [(heavies[i % 3], antigens[i // 3], rng.normal(8, 1)) for i in range(pairs)]
    frame = pd.DataFrame(rows, columns=["heavy", "antigen", "pKd"])
    groups = groups_of(read_labels(pd.concat([frame, frame.iloc[:3]])))
    if pairs == 19:
        with pytest.raises(SplitError, match=r"19 distinct pairs, too few .* at least 20 pairs"):
            measure_regimes(RegimesOfTable(groups))
        return
    measured = {
        measurement.regime.name: measurement
        for measurement in measure_regimes(RegimesOfTable(groups))
    }
    assert len(measured["known"].splits) == 5
    assert "each pair counts as one measurement" in measured["known"].note


def shown(*names, reach=0, **errors):
    """What a run has shown of regimes: those by name have an error of 1."""
    return {
        name: Shown(reach, error) for name, error in (dict.fromkeys(names, 1.0) | errors).items()
    }


def test_a_pair_of_an_unmeasured_regime_uses_a_stricter_one_or_is_far():
    assert applicable(REGIMES["known"], shown("new_antibody")) == (True, "new_antibody")
    assert applicable(REGIMES["new_antibody"], shown("known", "both_new")) == (True, "both_new")
    assert applicable(REGIMES["new_antigen"], shown("known", "new_antibody"))[0] is False
    measured = shown("known", "new_antibody")
    assert applicable(REGIMES["both_new"], measured) == (False, "new_antibody")
    assert applicable(REGIMES["both_new"], shown("given")) == (True, "given")


@pytest.mark.parametrize(("of_antibodies", "of_antigens", "used"), [
    (0.7, 1.4, "new_variant"), (1.4, 0.7, "antigen_variant"),
])  # fmt: skip
def test_an_unmeasured_regime_is_joined_to_the_measured_one_whose_errors_bound_it_best(
    of_antibodies, of_antigens, used
):
    measured = shown(new_variant=of_antibodies, antigen_variant=of_antigens, both_new=0.1)
    # new sequences on both sides have larger errors, whatever these few have shown
    assert applicable(REGIMES["known"], measured) == (True, used)
    # none covers these: theirs are at least as large as the larger ones
    measured = shown(new_antibody=of_antibodies, new_antigen=of_antigens)
    larger = "new_antibody" if of_antibodies > of_antigens else "new_antigen"
    assert applicable(REGIMES["both_new"], measured) == (False, larger)


def new_sequences(level, distance=0):
    level = np.array(level, np.int8)
    counts = (np.broadcast_to(np.array(n, np.int64), level.shape) for n in (distance, NONE))
    return NewSequences(level, *counts)


def test_the_regime_of_a_pair_follows_from_its_two_sequences():
    antibody = new_sequences([KNOWN, NEW, KNOWN, NEW])
    antigen = new_sequences([KNOWN, KNOWN, NEW, NEW])
    regimes = find_regimes(antibody, antigen, shown("known", "new_antibody"))
    assert regimes.name.tolist() == ["known", "new_antibody", "new_antigen", "both_new"]
    assert regimes.used.tolist() == ["known", "new_antibody", "known", "new_antibody"]
    assert regimes.is_far.tolist() == [False, False, True, True]


def test_a_variant_of_an_unmeasured_regime_is_covered_by_folds_of_new_sequences():
    antibody = new_sequences([VARIANT, VARIANT, NEW], distance=[2, 9, 0])
    antigen = new_sequences([VARIANT] * 3, distance=[3, 1, 4])
    regimes = find_regimes(antibody, antigen, shown("new_antibody_antigen_variant", reach=4))
    assert (regimes.used == "new_antibody_antigen_variant").all()
    # new antibodies have no distance: that of the antigens tells how far the pair is
    assert regimes.distance.tolist() == [3, 1, 4]
    assert not regimes.is_far.any()


def test_a_pair_further_from_training_than_the_tested_ones_is_far_and_not_covered():
    antibody = new_sequences([KNOWN] * 3, distance=[0, 4, 4])
    antigen = new_sequences([KNOWN] * 3, distance=[1, 0, 1])
    regimes = find_regimes(antibody, antigen, shown("known", reach=4))
    reason = (
        "it differs in 5 residues from the nearest training sequences, more than the 4 of nearly "
        "all tested pairs"
    )
    assert regimes.why_far.tolist() == ["", "", reason]
    assert regimes.is_far.tolist() == [False, False, True]


def plain_distance(first, second):
    """Compare two sequences chain by chain, without any bound; None if they share no chain."""
    total = 0
    is_comparable = False
    for chain, other in itertools.zip_longest(first, second, fillvalue=""):
        if not (chain and other):
            total += bool(chain) != bool(other)
            continue
        is_comparable = True
        are_as_long = len(chain) == len(other)
        total += mismatches(chain, other) if are_as_long else Levenshtein.distance(chain, other)
    return total if is_comparable else None


def find_nearest(kind, queries, targets):
    """Find the nearest of T training sequences for each of N others of the same kind."""
    distances = Distances(kind, queries, targets)
    return distances.nearest(np.arange(len(queries)), np.arange(len(targets)))


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
@pytest.mark.parametrize("seed", range(8))
def test_the_nearest_training_sequence_is_that_of_the_plain_comparison(kind, seed):
    rng = np.random.default_rng(seed)
    parents = draw_chains(rng, 3, int(rng.integers(20, 150)))

    def draw_sequence():
        chains = []
        for _ in range(2):
            text = mutated(rng, parents[rng.integers(3)], int(rng.integers(0, 7)))
            start = int(rng.integers(0, 3)) * int(rng.integers(0, 2))
            chains.append(text[start:])
        if kind == "antigen":
            return by_length(chains[: rng.integers(1, 3)])
        if rng.random() < 0.3:
            chains[rng.integers(2)] = ""
        return tuple(chains)

    trained = [draw_sequence() for _ in range(int(rng.integers(1, 60)))]
    asked = [draw_sequence() for _ in range(40)] + trained[:3]
    found = find_nearest(kind, asked, trained)
    for sequence, distance, index in zip(asked, found.distance, found.row, strict=True):
        to_each = [plain_distance(sequence, other) for other in trained]
        comparable = [number for number in to_each if number is not None]
        if comparable:
            assert distance == min(comparable) == to_each[index]
        else:
            assert distance == index == NONE


def test_the_nearest_sequence_is_found_in_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    # of two families; the distances of 400 residues do not fit in a byte
    parents = draw_chains(rng, 2, 400)
    trained = [(mutated(rng, parents[n % 2], 300 * (n % 3 == 0)),) for n in range(40)]
    trained += [(chain[n % 4 :],) for n, (chain,) in enumerate(trained)]
    asked = [(mutated(rng, parents[n % 2], n * 12)[n % 3 :],) for n in range(30)]
    whole = find_nearest("antigen", asked, trained)
    for sequence, distance, index in zip(asked, whole.distance, whole.row, strict=True):
        to_each = [plain_distance(sequence, other) for other in trained]
        assert distance == min(to_each) == to_each[index]
    assert whole.distance.max() > 255 > whole.distance.min()
    for name in ("QUERIES", "QUERIES_AT_ONCE", "TABLE_BYTES", "LEAST_BLOCK", "BLOCK_CELLS"):
        monkeypatch.setattr(relations, name, 7)
    monkeypatch.setattr(relations, "CACHED_CELLS", 3)
    in_blocks = find_nearest("antigen", asked, trained)
    assert (in_blocks.distance == whole.distance).all()
    assert (in_blocks.row == whole.row).all()


def draw_family(rng, kind):
    """Draw sequences of two families: pairs, single chains, peptides, some with deletions."""
    parents = draw_chains(rng, 4, int(rng.integers(30, 90)))
    sequences = []
    for _ in range(60):
        family = int(rng.integers(2))
        chains = []
        for parent in (parents[family], parents[family + 2]):
            text = mutated(rng, parent, int(rng.integers(0, 30)))
            at = int(rng.integers(0, len(text)))
            chains.append(text[:at] + text[at + int(rng.integers(0, 3)) :])
        if rng.random() < 0.3:
            chains[rng.integers(2)] = ""
        of_antigen = tuple(sorted(filter(None, chains)))
        sequences.append(tuple(chains) if kind == "antibody" else of_antigen)
    return sequences


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
@pytest.mark.parametrize("seed", range(4))
def test_folds_of_one_table_find_the_nearest_as_other_tables_do(kind, seed):
    rng = np.random.default_rng(seed)
    sequences = draw_family(rng, kind)
    distances = Distances(kind, sequences)
    for n_asked in (5, 30, 55, 30):  # what few trained ones leave open, many may tell
        asked, trained = np.split(rng.permutation(len(sequences)), [n_asked])
        found = distances.nearest(asked, trained)
        chosen = [[sequences[i] for i in rows.tolist()] for rows in (asked, trained)]
        expected = find_nearest(kind, *chosen)
        assert (found.distance == expected.distance).all()
        is_found = expected.row != NONE
        assert (found.row[is_found] == trained[expected.row[is_found]]).all()
        assert (found.row[~is_found] == NONE).all()


def test_what_one_fold_has_aligned_no_other_fold_aligns_again(monkeypatch):
    rng = np.random.default_rng(0)
    sequences = draw_family(rng, "antigen")
    pairs = np.arange(len(sequences))
    side = Side("antigen", sequences, pairs, near=pairs * 0, family=pairs * 0)
    aligned = []
    align = relations._edits

    def count(queries, *others):
        aligned.append(len(queries))
        return align(queries, *others)

    monkeypatch.setattr(relations, "_edits", count)
    first = side.distances(pairs[20:], pairs[:20])
    assert sum(aligned) > 20
    aligned.clear()
    assert (side.distances(pairs[20:], pairs[:20]) == first).all()
    assert sum(aligned) == 0


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
@pytest.mark.parametrize("seed", range(6))
def test_a_relative_by_its_distance_is_one_by_alignment(kind, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    sequences = draw_family(rng, kind)
    known_sequences = replace(known_of(kind, sequences[:30]), residues=None)
    compared = known_sequences.compare(sequences[30:])
    aligned = np.flatnonzero(compared.level != KNOWN)
    monkeypatch.setattr(relations, "_are_near_by", lambda _, distance, *__: distance < NONE)
    by_alignment = known_sequences.compare(sequences[30:])
    assert len(aligned)
    for array, other in zip(compared, by_alignment, strict=True):
        assert (array == other).all()


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_variants_as_long_as_a_training_sequence_are_recognised_without_alignment(
    kind, monkeypatch
):
    rng = np.random.default_rng(1)
    chain = HEAVY if kind == "antibody" else "MKTAYIAKQRQISFVKSHFSRQ" * 4
    rest = ("",) if kind == "antibody" else ()
    known_sequences = known_of(kind, [(mutated(rng, chain, 3), *rest) for _ in range(12)])

    def refuse(queries, *_):
        assert not queries
        return np.zeros(0, np.bool_)

    for name in ("_antibodies_near", "_antigens_near"):
        monkeypatch.setattr(relations, name, refuse)
    variants = [(mutated(rng, chain, edits), *rest) for edits in (1, 2, 3, 4, 1, 2, 3, 4, 5)]
    compared = known_sequences.compare(variants)
    assert set(compared.level.tolist()) <= {VARIANT, MUTATED}
    assert compared.distance.max() > 1


def test_the_numbering_of_new_antibodies_is_kept_for_the_next_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.default_rng(1)
    known_sequences = known_of("antibody", [(mutated(rng, HEAVY, 3), "") for _ in range(12)])
    asked = [(mutated(rng, HEAVY, 2), "") for _ in range(5)]
    first = known_sequences.compare(asked)
    monkeypatch.setattr(numbering, "number_chains", None)
    assert (known_sequences.compare(asked).level == first.level).all()


def test_a_fold_of_single_variants_holds_out_neighbourhoods_beside_them():
    rng = np.random.default_rng(2)
    heavy = sorted({mutated(rng, HEAVY, int(rng.integers(1, 5))) for _ in range(400)})
    frame = pd.DataFrame({"heavy": heavy, "antigen": "MKTAYIAKQR" * 9})
    frame["pKd"] = rng.normal(8, 1, len(frame))
    groups = groups_of(read_labels(frame))
    measured_by = {
        measured.regime.name: measured for measured in measure_regimes(RegimesOfTable(groups))
    }
    known = measured_by["new_variant"]
    chains = groups.pairs.table.antibodies.chains
    heavy = [chains[i][0] for i in groups.pairs.antibody.tolist()]
    for split in known.splits:
        assert (split.part[split.apart] == UNUSED).all()
        trained = np.flatnonzero(np.isin(split.part, (TRAIN, VALIDATION)))
        for row in [*split.rows(TEST)[:5].tolist(), *split.apart[:20].tolist()]:
            if split.distance[row] < 0:  # it has a residue that the others lack
                continue
            edits = [mismatches(heavy[row], heavy[other]) for other in trained.tolist()]
            assert split.distance[row] == min(edits)
    assert sum(len(split.apart) for split in known.splits) >= 10
    assert (all_pairs([known]).part == TRAIN).all()


def test_folds_of_mutations_and_the_predictor_find_the_residues_of_a_table_once(monkeypatch):
    rng = np.random.default_rng(1)
    heavies = [mutated(rng, HEAVY, int(rng.integers(1, 4))) for _ in range(60)]
    frame = pd.DataFrame({"heavy": heavies, "antigen": "MKTAYIAKQR" * 9})
    groups = groups_of(read_labels(frame.assign(pKd=rng.normal(8, 1, 60))), split="mutations")
    found = []
    residues_of = sides.Aligner.residues
    monkeypatch.setattr(
        sides.Aligner, "residues", lambda *given: found.append(1) or residues_of(*given)
    )
    table = RegimesOfTable(groups)
    (measured,) = measure_regimes(table)
    assert measured.regime.name == "new_mutations"
    KnownSequences.of(table.sides.antibody, {0: "", 1: ""}, 0.9)
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["families", "library", "single mutants"])
def test_a_predictor_gives_held_out_pairs_the_level_of_their_folds(kind):
    rng = np.random.default_rng(4)
    if kind == "families":
        heavies = [mutated(rng, parent, 3) for parent in draw_chains(rng, 12, 110) for _ in "abc"]
    else:
        most = 2 if kind == "single mutants" else 5
        heavies = [mutated(rng, HEAVY, int(rng.integers(1, most))) for _ in range(150)]
    frame = pd.DataFrame({"heavy": heavies * 2})
    frame["antigen"] = ["MKTAYIAKQR" * 9] * len(heavies) + ["GSHMTRQDNE" * 9] * len(heavies)
    frame["pKd"] = rng.normal(8, 1, len(frame))
    groups = groups_of(read_labels(frame.sample(frac=0.6, random_state=0)))
    table = RegimesOfTable(groups)
    chains = groups.pairs.table.antibodies.chains
    n_tested = 0
    for measured in measure_regimes(table):
        for split in measured.splits:
            used = np.unique(groups.pairs.antibody[np.isin(split.part, (TRAIN, VALIDATION))])
            names = {int(number): "" for number in used}
            seen = KnownSequences.of(table.sides.antibody, names, 0.9)
            tested = groups.pairs.antibody[split.rows(TEST)]
            compared = seen.compare([chains[number] for number in tested.tolist()])
            assert (compared.level == measured.regime.antibody).all()
            n_tested += len(tested)
    assert n_tested > 50
