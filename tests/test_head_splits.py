"""Splits keep groups whole, are deterministic, and count what leaks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abag.core.options import BadOption
from abag.embed.sequences.pairs import read_pairs
from abag.head.data import splits as grouped
from abag.head.data.labels import label_pairs
from abag.head.data.options import LabelOptions, SplitOptions
from abag.head.data.splits import (
    TEST,
    TRAIN,
    UNUSED,
    BadSplit,
    EmptyPart,
    SplitFileMismatch,
    TooFewGroups,
    describe_splits,
    grouped_folds,
    make_splits,
    random_split,
    split_assignments,
    split_frame,
)

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")


def protein(rng, length):
    return "".join(rng.choice(RESIDUES, length))


def variant(rng, text, mutations):
    letters = np.array(list(text))
    at = rng.choice(len(text), mutations, replace=False)
    letters[at] = [rng.choice([x for x in RESIDUES if x != letters[i]]) for i in at]
    return "".join(letters)


def measured(families=12, antigens=8, rows=160, seed=0, **columns):
    """A table of antibody families against unrelated antigens, each family on one antigen."""
    rng = np.random.default_rng(seed)
    parents = [protein(rng, 60) for _ in range(families)]
    targets = [protein(rng, 80) for _ in range(antigens)]
    family = rng.integers(families, size=rows)
    frame = pd.DataFrame(
        {
            "heavy": [variant(rng, parents[f], int(rng.integers(0, 4))) for f in family],
            "antigen": [targets[f % antigens] for f in family],
            "pkd": rng.normal(8, 1, rows).round(2),
        }
    )
    return frame.assign(**columns)


def pairs_of(frame):
    return label_pairs(read_pairs(frame), LabelOptions())


def shared(labels, split):
    """Groups with rows on both sides."""
    return set(labels[split.part == TRAIN]) & set(labels[split.part == TEST])


def test_a_random_split_keeps_replicates_together_and_has_the_asked_shares():
    antibody, antigen = np.repeat(np.arange(500), 2), np.zeros(1000, np.int64)
    split = random_split(antibody, antigen, seed=3)
    assert not shared(antibody, split)
    assert np.bincount(split.part).tolist() == [800, 100, 100]


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=9, max_size=60), st.integers(2, 5), st.integers(0, 9))
def test_folds_cover_every_row_once_and_never_cut_a_group(groups, folds, seed):
    group = np.array(groups + list(range(9)))
    fold = grouped_folds(group, folds, seed)
    assert set(fold) == set(range(folds))
    assert all(len(set(fold[group == g])) == 1 for g in set(groups))


def test_folds_are_balanced_by_rows_and_repeats_differ():
    sizes = [200, 100, 60, 50, *[10] * 40]
    group = np.repeat(np.arange(len(sizes)), sizes)
    deals = [grouped_folds(group, 4, seed) for seed in range(4)]
    assert all(np.bincount(fold).max() <= 1.2 * len(group) / 4 for fold in deals)
    assert len({fold.tobytes() for fold in deals}) == 4


@pytest.mark.parametrize("kind", ["random", "antigen", "antibody", "both"])
def test_no_group_and_no_cluster_mate_is_on_both_sides(kind):
    pairs = pairs_of(measured())
    for split in make_splits(pairs, SplitOptions(split=kind, folds=4, repeats=2)):
        assert not shared(split.group, split)
        leaks = split.description["leaks"]
        assert leaks["pair"]["exact"] == 0
        if kind in ("antigen", "both"):
            assert not shared(pairs.antigen, split)
            assert leaks["antigen"]["0.4"] == 0
        if kind in ("antibody", "both"):
            assert leaks["antibody"] == dict.fromkeys(("exact", "0.95", "0.9"), 0) | {
                "0.8": leaks["antibody"]["0.8"]
            }
            assert leaks["pair"]["near"] == 0
        if kind == "random":
            assert leaks["pair"]["near"] > 0.9 * len(split.rows(TEST))


def test_every_row_is_tested_once_a_repeat():
    pairs = pairs_of(measured())
    splits = make_splits(pairs, SplitOptions(split="antigen", folds=4, repeats=2))
    assert [split.fold for split in splits] == list(range(8))
    for repeat in (splits[:4], splits[4:]):
        tested = sum((split.part == TEST).astype(int) for split in repeat)
        assert (tested == 1).all()


def test_cold_both_discards_the_rows_in_between_and_says_how_many():
    rng = np.random.default_rng(1)
    heavies, targets = [protein(rng, 60) for _ in range(30)], [protein(rng, 80) for _ in range(10)]
    frame = pd.DataFrame(
        [(h, a, rng.normal(8)) for h in heavies for a in targets],
        columns=["heavy", "antigen", "pkd"],
    )
    pairs = pairs_of(frame)
    (split,) = make_splits(pairs, SplitOptions(split="both", seed=2))
    discarded = int((split.part == UNUSED).sum())
    assert not shared(pairs.antibody, split)
    assert not shared(pairs.antigen, split)
    assert split.description["discarded"] == discarded > 0
    assert any(line.startswith(f"{discarded} pairs discarded") for line in describe_splits([split]))


def test_a_deal_of_antibodies_that_leaves_a_part_empty_is_drawn_again(monkeypatch):
    pairs = pairs_of(measured(families=24, antigens=24))
    options = SplitOptions(split="both", folds=4)
    first = make_splits(pairs, options)
    whole = grouped._is_whole
    monkeypatch.setattr(
        grouped, "_is_whole", lambda s: whole(s) and not np.array_equal(s.part, first[0].part)
    )
    again = make_splits(pairs, options)
    assert not np.array_equal(again[0].part, first[0].part)
    assert all(np.array_equal(a.part, b.part) for a, b in zip(again[1:], first[1:], strict=True))
    assert all(whole(split) for split in again)
    assert not shared(pairs.antigen, again[0])


def test_mutations_train_near_the_parent_and_test_far_from_it():
    rng = np.random.default_rng(2)
    parent = protein(rng, 200)
    counts = np.repeat(np.arange(10), 12)
    heavies = [variant(rng, parent, int(n)) for n in counts]
    frame = pd.DataFrame(
        {"heavy": heavies, "antigen": protein(rng, 80), "pkd": rng.normal(8, 1, 120)}
    )
    pairs = pairs_of(frame)
    n = counts[pairs.row]
    (split,) = make_splits(pairs, SplitOptions(split="mutations=5:8"))
    assert set(n[split.part == TRAIN]) == set(range(6))
    assert set(n[split.part == TEST]) == {8, 9}
    (chosen,) = make_splits(pairs, SplitOptions(split="mutations"))
    assert n[chosen.part == TEST].min() > n[chosen.part == TRAIN].max() + 1


def test_the_same_pairs_in_another_order_are_split_alike():
    frame = measured()
    options = SplitOptions(split="antigen", folds=3, seed=5)
    frames = [
        split_frame(pairs, make_splits(pairs, options))
        for pairs in (pairs_of(frame), pairs_of(frame.sample(frac=1, random_state=1)))
    ]
    keys = ["fold", "antibody_key", "antigen_key"]
    first, second = (f.sort_values(keys, ignore_index=True) for f in frames)
    pd.testing.assert_frame_equal(first, second)


def test_a_pair_that_was_measured_twice_has_two_parts_and_one_row_in_the_split_file():
    frame = measured().drop_duplicates(["heavy", "antigen"])
    again = pd.concat([frame, frame.head(3)])
    pairs = label_pairs(read_pairs(again), LabelOptions(replicates="keep"))
    splits = make_splits(pairs, SplitOptions(split="antigen", folds=3))
    parts = pd.concat([split_assignments(pairs, split) for split in splits], ignore_index=True)
    assert len(parts) == 3 * len(again)
    saved = split_frame(pairs, splits)
    assert len(saved) == 3 * len(frame)
    pd.testing.assert_frame_equal(saved, parts.drop_duplicates(ignore_index=True))
    names = ["train", "validation", "test", "unused"]
    assert [names[n] for n in splits[1].part] == parts[parts["fold"] == 1]["split"].tolist()


def test_a_saved_split_is_laid_over_another_run_by_key(tmp_path):
    frame = measured()
    pairs = pairs_of(frame)
    made = make_splits(pairs, SplitOptions(split="antigen", folds=3))
    for name, write in (("s.parquet", "to_parquet"), ("s.csv", "to_csv")):
        getattr(split_frame(pairs, made), write)(tmp_path / name, index=False)
        other = pairs_of(frame.iloc[::-1])
        read = make_splits(other, SplitOptions(split=f"file={tmp_path / name}"))
        assert [s.part.tolist() for s in read] == [s.part.tolist() for s in made]


@pytest.mark.parametrize(("keep", "count"), [(slice(10, None), 10), (slice(None), 0)])
def test_a_split_file_that_misses_or_adds_pairs_is_refused(tmp_path, keep, count):
    pairs = pairs_of(measured())
    frame = split_frame(pairs, make_splits(pairs, SplitOptions(split="random")))[keep]
    if not count:
        frame = pd.concat([frame, frame.iloc[:3].assign(antibody_key="0" * 32)])
    frame.to_parquet(tmp_path / "s.parquet")
    with pytest.raises(SplitFileMismatch, match=f"misses {count} pairs of the table and holds"):
        make_splits(pairs, SplitOptions(split=f"file={tmp_path / 's.parquet'}"))


def test_a_column_names_the_parts_or_the_groups():
    frame = measured()
    frame["part"] = ["train", "valid", "Test", "train"] * 40
    frame["site"] = [f"site{i % 5}" for i in range(160)]
    pairs = pairs_of(frame)
    (named,) = make_splits(pairs, SplitOptions(split="column=part"))
    assert set(frame["part"].iloc[pairs.row[named.part == TEST]]) == {"Test"}
    (held_out,) = make_splits(pairs, SplitOptions(split="column=site"))
    assert not shared(frame["site"].to_numpy()[pairs.row], held_out)


def test_a_planted_leak_is_counted():
    frame = measured(rows=80).drop_duplicates(["heavy", "antigen"], ignore_index=True)
    part = np.array(["train"] * len(frame), dtype=object)
    part[-20:-10], part[-10:] = "validation", "test"
    # Each test row is a one-residue variant of a training row, against its very antigen.
    for test, train in zip(range(len(frame) - 10, len(frame)), range(10), strict=True):
        heavy = frame.loc[train, "heavy"]
        frame.loc[test, "heavy"] = ("A" if heavy[0] != "A" else "C") + heavy[1:]
        frame.loc[test, "antigen"] = frame.loc[train, "antigen"]
    pairs = pairs_of(frame.assign(part=part))
    (split,) = make_splits(pairs, SplitOptions(split="column=part"))
    assert split.description["leaks"]["pair"] == {"exact": 0, "near": 10}
    assert split.description["leaks"]["antibody"]["0.95"] == 10


def test_auto_holds_antigens_out_and_repeats_folds_when_they_are_few():
    few = make_splits(pairs_of(measured(antigens=8)))
    assert len(few) == 20
    assert "8 antigen clusters" in few[0].description["why"]
    many = make_splits(pairs_of(measured(families=40, antigens=40, rows=400)))
    assert len(many) == 1
    assert many[0].name == "antigen"


def test_auto_turns_to_antibodies_then_to_mutations_when_there_is_one_antigen():
    (by_antibody,) = make_splits(pairs_of(measured(families=40, antigens=1, rows=300)))
    assert by_antibody.name == "antibody"
    (by_mutations,) = make_splits(pairs_of(measured(families=1, antigens=1, rows=300)))
    assert by_mutations.name == "mutations"
    assert "variants" in by_mutations.description["why"]


def test_clusters_are_kept_in_the_cache_and_read_from_it(tmp_path, monkeypatch):
    pairs = pairs_of(measured())
    options = SplitOptions(split="antigen")
    first = make_splits(pairs, options, cache=tmp_path)
    assert list(tmp_path.glob("clusters-*.npy"))
    monkeypatch.setattr("abag.head.data.groups.antigen_clusters", None)
    monkeypatch.setattr("abag.head.data.groups.antibody_clusters", None)
    again = make_splits(pairs, options, cache=tmp_path)
    assert again[0].part.tolist() == first[0].part.tolist()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"split": "antigen", "folds": 9}, TooFewGroups, "9 folds need"),
        ({"split": "column=none"}, BadSplit, "no such column; found heavy"),
        ({"split": "file=absent.parquet"}, BadSplit, "no such file"),
        ({"split": f"file={__file__}"}, BadSplit, "cannot be read: .*; expected Parquet or CSV"),
        ({"split": "mutations=5:6"}, BadSplit, "expected NEAR:FAR"),
        ({"split": "mutations", "folds": 3}, BadSplit, "no folds"),
    ],
)
def test_a_split_that_the_table_does_not_bear_is_one_clear_line(options, error, says):
    with pytest.raises(error, match=says) as caught:
        make_splits(pairs_of(measured()), SplitOptions(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"split": "sideways"}, {"split": "column"}, {"folds": 1}, {"antigen_identity": 40.0}],
)
def test_an_option_that_means_nothing_is_refused_at_once(options):
    with pytest.raises(BadOption, match="expected"):
        SplitOptions(**options)


def test_a_part_left_empty_is_refused():
    one_antigen = pairs_of(measured(antigens=1))
    with pytest.raises(EmptyPart, match="--split antigen: 1 groups"):
        make_splits(one_antigen, SplitOptions(split="antigen"))
    two = pairs_of(measured().assign(part=["train", "test"] * 80))
    with pytest.raises(EmptyPart, match="the validation part is empty"):
        make_splits(two, SplitOptions(split="column=part"))
