"""Regimes: which pairs they hold, what their folds hold out, and when they cannot be measured."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import draw_chain, draw_chains, mutated
from trastuzumab import HEAVY, LIGHT

from abag.embed.sequences.pairs import read_pairs
from abag.head.data.labels import label_pairs
from abag.head.data.options import SplitOptions
from abag.head.evaluation import regime_scores
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.folds import RegimesOfTable, all_pairs, effective_groups, measure_regimes
from abag.head.regimes.regimes import (
    KNOWN,
    NEW,
    OUTSIDE,
    REGIMES,
    NewSequences,
    Recogniser,
    SeenMutations,
    SeenSequences,
    applicable,
)
from abag.head.regimes.splits import TEST, TRAIN, VALIDATION


def groups_of(frame, **options):
    return PairGroups(label_pairs(read_pairs(frame)), SplitOptions(**options))


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
    return RegimesOfTable(groups_of(frame))


def test_test_pairs_are_in_their_regime_given_the_training_pairs(crossed):
    for one in crossed.measured():
        for split in one.splits:
            train = np.flatnonzero(np.isin(split.part, (TRAIN, VALIDATION)))
            for row in split.rows(TEST).tolist():
                new = {
                    kind
                    for kind, cluster in (
                        ("antibody", crossed.antibody), ("antigen", crossed.antigen)
                    )
                    if cluster[row] not in cluster[train]
                }  # fmt: skip
                assert new == set(one.regime.new)


def test_a_pair_is_tested_once_per_regime_and_a_fold_trains_on_more_than_it_validates(crossed):
    measured = crossed.measured()
    names = ["known", "new_antibody", "new_antigen", "both_new"]
    assert [one.regime.name for one in measured if one.splits] == names
    assert (all_pairs(measured).part == TRAIN).all()
    for one in measured:
        tested = np.concatenate([split.rows(TEST) for split in one.splits])
        assert len(tested) == len(np.unique(tested))
        for split in one.splits:
            assert len(split.rows(TRAIN)) > 2 * len(split.rows(VALIDATION)) > 0


def test_the_same_seed_gives_the_same_folds_and_another_one_others(crossed):
    seeded = (replace(crossed.groups, options=SplitOptions(seed=seed)) for seed in (0, 1))
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
    found = RegimesOfTable(groups_of(frame)).measured()
    assert [one.regime.name for one in found if one.splits] == measured
    assert [one.why_not for one in found if one.why_not][: len(reasons)] == [
        f"not measured: {reason}" for reason in reasons
    ]
    for split in (split for one in found for split in one.splits):
        assert len(split.rows(TRAIN)) > len(split.rows(VALIDATION)) > 0


@pytest.mark.parametrize("split", ["auto", "random"])
def test_one_fold_is_enough_in_a_large_table_unless_folds_are_asked_for(monkeypatch, split):
    monkeypatch.setattr("abag.head.regimes.folds.LARGE_TABLE", 400)
    rng = np.random.default_rng(3)
    heavy = draw_chains(rng, 400, 100)
    target = draw_chain(rng, 90)
    frame = pd.DataFrame({"heavy": heavy, "antigen": target, "pKd": rng.normal(8, 1, 400)})
    folds = {
        asked: max(
            len(one.splits) for one in measure_regimes(groups_of(frame, split=split, folds=asked))
        )
        for asked in (0, 4)
    }
    assert folds == {0: 1, 4: 4}


def test_variants_of_one_antibody_are_measured_by_new_mutations():
    rng = np.random.default_rng(2)
    heavy = [mutated(rng, HEAVY, int(rng.integers(1, 4))) for _ in range(120)]
    frame = pd.DataFrame(
        {"heavy": heavy, "antigen": "MKTAYIAKQR" * 8, "pKd": rng.normal(8, 1, 120)}
    )
    table = RegimesOfTable(groups_of(frame))
    assert table.is_library
    measured = {one.regime.name: one for one in table.measured()}
    chains = table.groups.pairs.table.antibodies.chains
    antibody = table.groups.pairs.antibody
    for split in measured["new_mutations"].splits:
        trained = [chains[i] for i in antibody[np.isin(split.part, (TRAIN, VALIDATION))]]
        tested = [chains[i] for i in antibody[split.rows(TEST)]]
        assert SeenMutations.of(trained).is_new(tested).all()


def test_effective_groups_count_equal_ones_and_discount_a_large_one():
    assert effective_groups(np.arange(7)) == 7
    assert effective_groups(np.repeat([0, 1], [98, 2])) == pytest.approx(1.04, abs=0.01)
    assert effective_groups(np.zeros(0, np.int64)) == 0


def test_the_best_baseline_is_compared_with_twice_the_variance_in_several_folds():
    rng, n = np.random.default_rng(8), 60
    pkd, predicted, other = rng.normal(8, 1, (3, n))

    def widths(fold):
        tested = regime_scores.TestedPairs(
            np.arange(n), pkd, fold, np.zeros(n, int), [np.arange(n)]
        )
        score = regime_scores.score_regime(
            "known", "known", tested, predicted, np.full(n, 8.0), {"ridge": other}, None
        )
        claims = score["better_than_best"], score["better_than_mean"]
        return np.array([one["high"] - one["low"] for one in claims])

    ratio = widths(np.arange(n) % 5) / widths(np.zeros(n, int))
    np.testing.assert_allclose(ratio, [np.sqrt(2), 1])


def test_exact_duplicates_are_near_and_unrelated_sequences_are_not():
    rng = np.random.default_rng(3)
    antibodies = [(mutated(rng, HEAVY, 20), "") for _ in range(20)]
    seen = SeenSequences.of("antibody", antibodies)
    assert seen.near(antibodies).all()
    assert not seen.near([(draw_chain(rng, 120), ""), (mutated(rng, HEAVY, 60), "")]).any()
    antigens = [(draw_chain(rng, 200),) for _ in range(20)]
    seen = SeenSequences.of("antigen", antigens)
    assert seen.near(antigens).all()
    assert not seen.near([(draw_chain(rng, 200),), (draw_chain(rng, 10),)]).any()


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_a_few_mutations_are_near_and_many_are_not(kind):
    rng = np.random.default_rng(4)
    parent = HEAVY if kind == "antibody" else draw_chain(rng, 300)

    def variants(share):
        texts = [mutated(rng, parent, round(share * len(parent))) for _ in range(30)]
        return [(text, "") if kind == "antibody" else (text,) for text in texts]

    seen = SeenSequences.of(kind, variants(0.0)[:1])
    assert seen.near(variants(0.03)).all()
    assert not seen.near(variants(0.45)).any()


def test_a_part_of_a_training_antigen_is_near():
    rng = np.random.default_rng(5)
    whole = draw_chain(rng, 400)
    assert SeenSequences.of("antigen", [(whole,)]).near([(whole[100:300],)]).all()


def test_a_chain_that_cannot_be_compared_is_new_unless_it_is_the_same():
    rng = np.random.default_rng(0)
    proteins = [(draw_chain(rng, 1200),) for _ in range(300)]
    seen = SeenSequences.of("antigen", [*proteins, ("EGGPFSYRV",)])
    peptides = [(draw_chain(rng, n),) for n in (1, 3, 4, 5, 9, 23, 24)]
    assert seen.near([("EGGPFSYRV",), *peptides]).tolist() == [True] + [False] * len(peptides)

    seen = SeenSequences.of("antibody", [(HEAVY, LIGHT), (HEAVY, ""), ("WWWWWWW", LIGHT)])
    asked = [(HEAVY, LIGHT), ("WWWWWWW", LIGHT), ("EVQ", LIGHT), ("W" * 200, LIGHT), (HEAVY, "W")]
    assert seen.near(asked).tolist() == [True, True, False, False, False]


def test_sketches_are_read_back_and_forged_ones_are_refused():
    rng = np.random.default_rng(6)
    antibodies = [(mutated(rng, HEAVY, 3), "") for _ in range(5)]
    made = Recogniser(
        SeenSequences.of("antibody", antibodies),
        SeenSequences.of("antigen", [(draw_chain(rng, 90),)]),
        SeenMutations.of(antibodies),
    )
    arrays = made.arrays()
    new = [(mutated(rng, HEAVY, 1), ""), (draw_chain(rng, 100), "")]
    assert (Recogniser.load(arrays).states("antibody", new) == made.states("antibody", new)).all()
    assert made.states("antibody", antibodies).tolist() == [KNOWN] * 5
    assert made.states("antibody", new).tolist() == [NEW, OUTSIDE]
    for name in arrays:
        with pytest.raises(ValueError, match="has float32"):
            Recogniser.load(arrays | {name: arrays[name].astype(np.float32)})


def test_a_pair_of_an_unmeasured_regime_uses_a_stricter_one_or_is_far():
    assert applicable(REGIMES["known"], ["new_antibody"]) == (True, "new_antibody")
    assert applicable(REGIMES["new_antibody"], ["known", "both_new"]) == (True, "both_new")
    assert applicable(REGIMES["new_antigen"], ["known", "new_antibody"])[0] is False
    assert applicable(REGIMES["both_new"], ["known", "new_antibody"]) == (False, "new_antibody")
    assert applicable(REGIMES["both_new"], ["given"]) == (True, "given")


def test_the_regime_of_a_pair_follows_from_its_two_sequences():
    rng = np.random.default_rng(7)
    seen = Recogniser(
        SeenSequences.of("antibody", [(HEAVY, "")]),
        SeenSequences.of("antigen", [(draw_chain(rng, 90),)]),
        None,
    )
    states = (
        np.array([KNOWN, NEW, KNOWN, NEW], np.int8),
        np.array([KNOWN, KNOWN, NEW, NEW], np.int8),
    )
    name, used, why = seen.regimes_of(NewSequences(*states), ["known", "new_antibody"])
    assert name.tolist() == ["known", "new_antibody", "new_antigen", "both_new"]
    assert used.tolist() == ["known", "new_antibody", "new_antibody", "new_antibody"]
    assert [bool(text) for text in why] == [False, False, True, True]
