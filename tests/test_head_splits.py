"""Splits keep groups whole, are deterministic, and count leaks."""

from contextlib import suppress
from functools import cache

import numpy as np
import pandas as pd
import pytest
from chunks import set_sizes
from drawn import draw_chain, draw_chains, mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import groups_of, read_labels, splits_of
from trastuzumab import HEAVY

from abag import SplitError
from abag.head.regimes.folds import FOLDS, RegimesOfTable, measure_regimes
from abag.head.regimes.splits import (
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    Split,
    grouped_folds,
    split_frame,
    thinned,
)


def measured(families=12, antigens=8, rows=160, seed=0, **columns):
    """Make a table of antibody families against unrelated antigens, one antigen per family."""
    rng = np.random.default_rng(seed)
    parents = draw_chains(rng, families, 60)
    targets = draw_chains(rng, antigens, 80)
    family = rng.integers(families, size=rows)
    frame = pd.DataFrame(
        {
            "heavy": [mutated(rng, parents[f], int(rng.integers(0, 4))) for f in family],
            "antigen": [targets[f % antigens] for f in family],
            "pkd": rng.normal(8, 1, rows).round(2),
        }
    )
    return frame.assign(**columns)


def shared(labels, split):
    """Groups with rows in training and in test."""
    return set(labels[split.part == TRAIN]) & set(labels[split.part == TEST])


def test_a_random_split_keeps_replicates_together_and_holds_out_a_tenth_each():
    frame = measured(rows=1000, families=40)
    pairs = read_labels(pd.concat([frame, frame]), replicates="keep")
    (split,) = splits_of(pairs, split="random", seed=3)
    pair = pairs.antibody * len(pairs) + pairs.antigen
    assert not shared(pair, split)
    assert np.bincount(split.part) / len(pairs) == pytest.approx([0.81, 0.09, 0.1], abs=0.01)


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=9, max_size=60), st.integers(2, 5), st.integers(0, 9))
def test_folds_cover_every_row_once_and_keep_groups_whole(groups, folds, seed):
    group = np.array(groups + list(range(9)))
    fold = grouped_folds(group, folds, seed)
    assert set(fold) == set(range(folds))
    assert all(len(set(fold[group == g])) == 1 for g in set(groups))


def test_folds_are_balanced_by_rows_and_repeats_differ():
    sizes = [200, 100, 60, 50, *[10] * 40]
    group = np.repeat(np.arange(len(sizes)), sizes)
    assigned = [grouped_folds(group, 4, seed) for seed in range(4)]
    assert all(np.bincount(fold).max() <= 1.2 * len(group) / 4 for fold in assigned)
    assert len({fold.tobytes() for fold in assigned}) == 4


@pytest.mark.parametrize("kind", ["random", "antigen", "antibody", "both"])
def test_no_group_or_cluster_is_in_both_training_and_test(kind):
    pairs = read_labels(measured())
    splits = splits_of(pairs, split=kind, folds=4, repeats=2)
    assert [split.fold for split in splits] == list(range(8))
    tested = sum((split.part == TEST).astype(int) for split in splits)
    assert (tested <= 2).all() if kind == "both" else (tested == 2).all()  # once per repeat
    for split in splits:
        assert not shared(split.group, split)
        leaks = split.description["leaks"]
        assert leaks["pair"]["exact"] == 0
        if kind in ("antigen", "both"):
            assert not shared(pairs.antigen, split)
            assert leaks["antigen"]["0.4"] == 0
        if kind in ("antibody", "both"):
            assert leaks["antibody"] == dict.fromkeys(("exact", "0.9", "clone"), 0)
            assert leaks["pair"]["near"] == 0
        if kind == "random":
            assert leaks["pair"]["near"] > 0.9 * len(split.rows(TEST))


def test_clones_below_the_identity_are_held_out_together():
    rng = np.random.default_rng(0)
    loop = HEAVY.index("SRWGG")
    frame = measured(families=10, rows=60)
    clones = [mutated(rng, HEAVY[:loop], 20) + HEAVY[loop:] for _ in range(20)]
    frame.loc[:19, "heavy"] = clones
    pairs = read_labels(frame)
    is_clone = np.isin([heavy for heavy, _ in pairs.table.antibodies.chains], clones)
    for split in splits_of(pairs, split="antibody", folds=3):
        assert len(set(split.part[is_clone[pairs.antibody]])) == 1
        assert split.description["leaks"]["antibody"]["clone"] == 0
    (split,) = splits_of(pairs, split="random")
    assert split.description["leaks"]["antibody"]["clone"] > 0


def test_a_split_by_both_leaves_mixed_pairs_out():
    rng = np.random.default_rng(1)
    heavies = draw_chains(rng, 30, 60)
    targets = draw_chains(rng, 10, 80)
    frame = pd.DataFrame(
        [(h, a, rng.normal(8)) for h in heavies for a in targets],
        columns=["heavy", "antigen", "pkd"],
    )
    pairs = read_labels(frame)
    (split,) = splits_of(pairs, split="both", seed=2)
    assert not shared(pairs.antibody, split)
    assert not shared(pairs.antigen, split)
    assert split.description["rows"]["unused"] == (split.part == UNUSED).sum() > 0


def test_a_pair_measured_twice_has_one_row_in_the_split_file():
    frame = measured().drop_duplicates(["heavy", "antigen"])
    again = pd.concat([frame, frame.head(3)])
    pairs = read_labels(again, replicates="keep")
    splits = splits_of(pairs, split="antigen", folds=3)
    saved = split_frame(pairs, splits)
    assert len(saved) == 3 * len(frame) == len(saved.drop_duplicates())
    assert len(pairs) == len(again)


def test_a_split_file_is_applied_by_sequence_keys(tmp_path):
    frame = measured()
    pairs = read_labels(frame)
    made = splits_of(pairs, split="antigen", folds=3)
    for name, write in (("s.parquet", "to_parquet"), ("s.csv", "to_csv")):
        getattr(split_frame(pairs, made), write)(tmp_path / name, index=False)
        other = read_labels(frame.iloc[::-1])
        read = splits_of(other, split=f"file={tmp_path / name}")
        assert [s.part.tolist() for s in read] == [s.part.tolist() for s in made]


def test_all_folds_of_a_split_file_count_however_large_the_table_is(tmp_path, monkeypatch):
    set_sizes(monkeypatch, large_table=100, enough_groups=1.0)
    pairs = read_labels(measured())
    made = splits_of(pairs, split="antigen", folds=3)
    split_frame(pairs, made).to_parquet(tmp_path / "s.parquet")
    read = splits_of(pairs, split=f"file={tmp_path / 's.parquet'}")
    assert [s.part.tolist() for s in read] == [s.part.tolist() for s in made]


@pytest.mark.parametrize("split", ["random", "antigen"])
def test_repeats_without_a_number_of_folds_are_those_of_the_usual_folds(split, monkeypatch):
    set_sizes(monkeypatch, large_table=100, enough_groups=1.0)
    pairs = read_labels(measured())
    table = RegimesOfTable(groups_of(pairs, split=split, repeats=2))
    for splits in (splits_of(pairs, split=split, repeats=2), measure_regimes(table)[0].splits):
        assert len(splits) == 2 * FOLDS
        n_tested = np.sum([part.part == TEST for part in splits], axis=0)
        assert (n_tested == 2).all()


@pytest.mark.parametrize("asked", [{"folds": 3}, {"repeats": 2}])
def test_folds_beside_parts_that_are_named_are_refused(asked, tmp_path):
    frame = measured()
    frame["part"] = ["train", "train", "test", "train"] * 40
    pairs = read_labels(frame)
    split_frame(pairs, splits_of(pairs, split="random")).to_parquet(tmp_path / "s.parquet")
    for split in ("column=part", f"file={tmp_path / 's.parquet'}"):
        with pytest.raises(SplitError, match="names the parts; expected no --folds or --repeats"):
            splits_of(pairs, split=split, **asked)


def test_a_split_file_with_an_empty_fold_is_refused(tmp_path):
    pairs = read_labels(measured())
    frame = split_frame(pairs, splits_of(pairs, split="random")).astype({"fold": float})
    frame.loc[3, "fold"] = np.nan
    for folds in (frame, frame.assign(fold=np.nan)):
        folds.to_csv(tmp_path / "s.csv", index=False)
        with pytest.raises(SplitError, match=r"row [14] of the split file: fold is empty"):
            splits_of(pairs, split=f"file={tmp_path / 's.csv'}")


@pytest.mark.parametrize(("keep", "count"), [(slice(10, None), 10), (slice(None), 0)])
def test_a_split_file_with_missing_or_additional_pairs_is_refused(tmp_path, keep, count):
    pairs = read_labels(measured())
    frame = split_frame(pairs, splits_of(pairs, split="random"))[keep]
    if not count:
        frame = pd.concat([frame, frame.iloc[:3].assign(antibody_key="0" * 32)])
    frame.to_parquet(tmp_path / "s.parquet")
    with pytest.raises(SplitError, match=f"lacks {count} pairs of the table and has"):
        splits_of(pairs, split=f"file={tmp_path / 's.parquet'}")


def test_a_column_can_name_parts_or_groups():
    frame = measured().drop_duplicates(["heavy", "antigen"], ignore_index=True)
    frame["part"] = np.resize(["train", "valid", "Test", "train"], len(frame))
    frame["site"] = [f"site{i % 5}" for i in range(len(frame))]
    pairs = read_labels(frame)
    (named,) = splits_of(pairs, split="column=part")
    assert set(frame["part"].iloc[pairs.row[named.part == TEST]]) == {"Test"}
    (held_out,) = splits_of(pairs, split="column=site")
    assert not shared(frame["site"].to_numpy()[pairs.row], held_out)


def test_groups_of_a_column_that_look_like_numbers_are_text(tmp_path):
    frame = measured()
    frame["site"] = ["1.1", "1.10", "01.1", "1.100"] * 40
    frame.to_csv(tmp_path / "t.csv", index=False)
    (split,) = splits_of(read_labels(tmp_path / "t.csv"), split="column=site")
    assert len(set(split.group)) == 4


def test_groups_of_a_split_file_that_look_like_numbers_are_text(tmp_path):
    pairs = read_labels(measured())
    frame = split_frame(pairs, splits_of(pairs, split="random"))
    groups = np.resize(["1.1", "1.10", "4E10", "012"], len(frame))
    frame.assign(group=groups).to_csv(tmp_path / "s.csv", index=False)
    (split,) = splits_of(pairs, split=f"file={tmp_path / 's.csv'}")
    assert len(set(split.group)) == 4


@pytest.mark.parametrize(
    ("words", "spelled"),
    [
        (["train", "dev", "test"], "validation ('dev')"),
        (["Training", "valid", "holdout"], "test ('holdout')"),
        (["train", "Val", "held-out"], "test ('held-out')"),
        (["train set", "dev", "eval"], "test ('eval')"),
        (["train", "eval", "test"], "validation ('eval')"),
        (["train", "Evaluation", "Test set"], "validation ('Evaluation')"),
    ],
)
@pytest.mark.parametrize("where", ["column", "file"])
def test_the_usual_names_of_parts_are_those_parts(words, spelled, where, said, tmp_path):
    frame = measured().drop_duplicates(["heavy", "antigen"], ignore_index=True)
    expected = np.resize([TRAIN, VALIDATION, TEST, TRAIN], len(frame))
    frame["part"] = np.resize([*words, words[0]], len(frame))
    pairs = read_labels(frame)
    how = "column=part"
    if where == "file":
        keys = split_frame(pairs, splits_of(pairs, split="random"))
        keys.assign(split=frame["part"].to_numpy()[pairs.row]).to_csv(tmp_path / "s.csv")
        how = f"file={tmp_path / 's.csv'}"
    (split,) = splits_of(pairs, split=how)
    assert split.part.tolist() == expected[pairs.row].tolist()
    (line,) = [line for line in said if line.startswith("split: ")]
    assert spelled in line
    for number, name in ((VALIDATION, "validation"), (TEST, "test")):
        assert f" {(expected == number).sum()} {name}" in line


@pytest.mark.parametrize("stray", ["A", "tset", "set", "-", "train2", "0.5"])
def test_a_cell_that_names_no_part_in_a_column_of_parts_is_refused(stray):
    frame = measured().assign(part=["train", "dev", "test", "train"] * 40)
    frame.loc[7, "part"] = stray
    expected = f"table: row 8, column part: '?{stray}'? is not the name of a part"
    with pytest.raises(SplitError, match=expected):
        splits_of(read_labels(frame), split="column=part")


def test_a_cell_that_names_no_part_in_a_split_file_is_refused(tmp_path):
    pairs = read_labels(measured())
    frame = split_frame(pairs, splits_of(pairs, split="random")[:1])
    frame.loc[3, "split"] = "A"
    frame.to_parquet(tmp_path / "s.parquet")
    with pytest.raises(
        SplitError, match=r"row 4 of the split file: split 'A' is unknown; expected"
    ):
        splits_of(pairs, split=f"file={tmp_path / 's.parquet'}")


def test_a_name_that_may_be_either_of_two_parts_is_refused():
    frame = measured().assign(part=["train", "dev", "test", "eval"] * 40)
    with pytest.raises(
        SplitError, match=r"names the parts 'train', 'dev', 'test', 'eval'; expected"
    ):
        splits_of(read_labels(frame), split="column=part")


def test_empty_cells_in_a_column_of_parts_are_unused_and_counted(said):
    frame = measured().drop_duplicates(["heavy", "antigen"], ignore_index=True)
    frame["part"] = np.resize(np.array(["train", "dev", "test", None], object), len(frame))
    pairs = read_labels(frame)
    (split,) = splits_of(pairs, split="column=part")
    assert (split.part == UNUSED).tolist() == frame["part"].isna().iloc[pairs.row].tolist()
    assert f"{frame['part'].isna().sum()} unused (empty cells) pairs" in said[-1]


def test_values_without_the_name_of_a_part_are_groups_and_that_is_said(said):
    frame = measured()
    frame["site"] = [f"site{i % 5}" for i in range(160)]
    pairs = read_labels(frame)
    (split,) = splits_of(pairs, split="column=site")
    assert len(set(frame["site"].iloc[pairs.row[split.part == TEST]])) == 1
    assert said[-1] == "split: column 'site': no train or test in it; its 5 values are groups"


def test_a_planted_leak_is_counted():
    frame = measured(rows=80).drop_duplicates(["heavy", "antigen"], ignore_index=True)
    part = np.array(["train"] * len(frame), dtype=object)
    part[-20:-10] = "validation"
    part[-10:] = "test"
    # Each test row is a one-residue variant of a training row, against the same antigen.
    for test, train in zip(range(len(frame) - 10, len(frame)), range(10), strict=True):
        heavy = frame.loc[train, "heavy"]
        frame.loc[test, "heavy"] = ("A" if heavy[0] != "A" else "C") + heavy[1:]
        frame.loc[test, "antigen"] = frame.loc[train, "antigen"]
    pairs = read_labels(frame.assign(part=part))
    (split,) = splits_of(pairs, split="column=part")
    assert split.description["leaks"]["pair"] == {"exact": 0, "near": 10}
    assert split.description["leaks"]["antibody"]["0.9"] == 10


def test_test_rows_whose_peptide_is_part_of_a_training_antigen_are_counted():
    rng = np.random.default_rng(0)
    targets = draw_chains(rng, 20, 80)
    epitopes = [target[20:32] for target in targets[:5]]
    frame = pd.DataFrame({"heavy": draw_chain(rng, 60), "antigen": targets + epitopes})
    frame["pkd"] = rng.normal(8, 1, len(frame))
    frame["part"] = ["train"] * 10 + ["test"] * 10 + ["test"] * 4 + ["validation"]
    (split,) = splits_of(read_labels(frame), split="column=part")
    assert split.description["leaks"]["antigen"] == {
        "exact": 0,
        "0.9": 0,
        "0.4": 0,
        "contained": 4,
    }
    frame["part"] = frame["part"].replace({"train": "test", "test": "train"})
    (swapped,) = splits_of(read_labels(frame), split="column=part")
    assert swapped.description["leaks"]["antigen"]["contained"] == 4


def test_a_split_file_that_is_no_table_is_refused_in_one_line():
    with pytest.raises(SplitError, match=r"cannot be read: .*; expected Parquet or CSV") as caught:
        splits_of(read_labels(measured()), split=f"file={__file__}")
    assert "\n" not in str(caught.value)


def test_an_empty_part_is_refused():
    one_antigen = read_labels(measured(antigens=1))
    with pytest.raises(SplitError, match="--split antigen: the pairs form 1 group;"):
        splits_of(one_antigen, split="antigen")
    with pytest.raises(SplitError, match="--split both: the pairs form 1 group;"):
        splits_of(read_labels(measured(families=1)), split="both")
    parts = ((["train", "dev"], "test"), (["dev", "test"], "train"), (["train"] * 2, "test"))
    for words, empty in parts:
        two = read_labels(measured().assign(part=words * 80))
        with pytest.raises(SplitError, match=rf"the {empty} part of 126 pairs in .* is empty"):
            splits_of(two, split="column=part")


@pytest.mark.parametrize("where", ["column", "file"])
@pytest.mark.parametrize("kind", ["random", "antibody", "antigen"])
def test_a_split_without_validation_takes_it_from_train_as_new_as_the_test_part(
    kind, where, said, tmp_path
):
    frame = measured(rows=400, families=30, antigens=5 if kind == "antibody" else 25)
    pairs = read_labels(frame)
    (whole,) = splits_of(pairs, split=kind)
    frame = frame.iloc[pairs.row].assign(part=np.where(whole.part == TEST, "test", "train"))
    named = read_labels(frame)
    how = "column=part"
    if where == "file":
        whole_frame = split_frame(pairs, [whole]).drop(columns="group")
        whole_frame["split"] = np.where(whole.part == TEST, "test", "train")
        whole_frame.to_csv(tmp_path / "s.csv", index=False)
        how = f"file={tmp_path / 's.csv'}"
    (split,) = splits_of(named, split=how)
    (again,) = splits_of(named, split=how)
    assert split.part.tolist() == again.part.tolist()
    tested = frame["part"].to_numpy()[named.row] == "test"
    assert ((split.part == TEST) == tested).all()
    taken = int((split.part == VALIDATION).sum())
    train = int((~tested).sum())
    assert 0.03 * train < taken < 0.2 * train
    if kind != "random":
        group = groups_of(named, split=kind).of_method(kind)
        assert not {*group[split.part == VALIDATION]} & {*group[split.part == TRAIN]}
    how_held_out = "single pairs" if kind == "random" else f"{kind} clusters, as the test part is"
    told = f"no validation part; {taken} of {train} train pairs are taken for it ({how_held_out})"
    assert said[-1].endswith(told)


@cache
def pairs_of_families(families, antigens):
    """Return pairs of few antibody families with few antigens."""
    return read_labels(measured(rows=60, families=families, antigens=antigens))


@settings(deadline=None)
@given(
    kind=st.sampled_from(["random", "antigen", "antibody", "both"]),
    sizes=st.sampled_from([(2, 9), (9, 2), (3, 4), (5, 5), (4, 7), (8, 3), (9, 9)]),
    k=st.sampled_from([0, 2, 5]),
    seed=st.integers(0, 9),
)
def test_a_drawn_fold_trains_on_more_pairs_than_it_validates_on(kind, sizes, k, seed):
    pairs = pairs_of_families(*sizes)
    with suppress(SplitError):  # too few groups, or a part without pairs
        for split in splits_of(pairs, split=kind, folds=k, seed=seed):
            rows = split.rows_per_part()
            assert rows["train"] > rows["validation"] > 0
            assert rows["test"] > 0


@pytest.mark.parametrize("replicates", ["median", "keep"])
def test_replicates_that_a_column_divides_are_reported(replicates, said):
    frame = measured(rows=60).assign(part=["train", "test", "validation"] * 20)
    frame = pd.concat([frame, frame.head(9).assign(pkd=7.0, part="test")], ignore_index=True)
    divided = int((frame.groupby(["heavy", "antigen"])["part"].nunique() > 1).sum())
    pairs = read_labels(frame, replicates=replicates)
    (split,) = splits_of(pairs, split="column=part")
    expected = [f"column 'part': {divided} pairs have replicates with different values; each pair"]
    columns = [line.partition(" is where")[0] for line in said if "different values" in line]
    assert columns == expected * (replicates == "median")
    names = frame["part"].map({"train": TRAIN, "test": TEST, "validation": VALIDATION})
    if replicates == "median":  # a pair is tested if one of its rows is
        names = names.groupby([frame["heavy"], frame["antigen"]]).transform("max")
    assert split.part.tolist() == names[pairs.table.row_numbers[pairs.row] - 1].tolist()


@pytest.mark.parametrize("words", [["train", "test", "validation", ""], ["b", "a", "", "c"]])
def test_a_column_divides_replicates_alike_whatever_the_order_of_the_rows(words):
    frame = measured(rows=60)
    frame = pd.concat([frame, frame.head(30).assign(pkd=7.0)], ignore_index=True)
    frame["part"] = np.random.default_rng(0).choice(words, 90)
    frame["lab"] = np.random.default_rng(1).choice(["A", "B"], 90)
    parts = []
    for seed in range(4):
        table = frame.sample(frac=1, random_state=seed)
        pairs = read_labels(table, categories=("lab",))
        parts.append(splits_of(pairs, split="column=part")[0].part.tolist())
    assert parts == parts[:1] * 4


@given(st.integers(0, 9), st.integers(1, 12))
def test_a_thinned_split_keeps_whole_training_groups_and_everything_else(seed, groups):
    group = np.random.default_rng(seed).integers(groups, size=60)
    part = np.where(np.arange(60) < 40, TRAIN, TEST).astype(np.int8)
    split = Split(name="drawn", part=part, group=group)
    half = thinned(split, 0.5, seed)
    quarter = thinned(split, 0.25, seed)
    kept = set(group[half.rows(TRAIN)])
    assert len(kept) == max(1, round(0.5 * len(set(group[:40]))))
    assert half.rows(TRAIN).tolist() == [i for i in range(40) if group[i] in kept]
    assert set(quarter.rows(TRAIN)) <= set(half.rows(TRAIN)) <= set(split.rows(TRAIN))
    assert half.rows(TEST).tolist() == split.rows(TEST).tolist()
    assert (half.part[:40] != TEST).all()


def test_a_thinned_split_keeps_the_same_share_of_the_validation_groups_that_ridges_learn_from():
    group = np.arange(60)
    part = np.repeat([TRAIN, VALIDATION, TEST], 20).astype(np.int8)
    quarter = thinned(Split(name="drawn", part=part, group=group), 0.25, seed=0)
    assert quarter.rows_per_part() == {"train": 5, "validation": 5, "test": 20, "unused": 30}


def test_the_split_does_not_depend_on_the_order_of_rows():
    frame = measured()
    options = {"split": "antigen", "folds": 3, "seed": 5}
    frames = [
        split_frame(pairs, splits_of(pairs, **options))
        for pairs in (read_labels(frame), read_labels(frame.sample(frac=1, random_state=1)))
    ]
    keys = ["fold", "antibody_key", "antigen_key"]
    first, second = (f.sort_values(keys, ignore_index=True) for f in frames)
    pd.testing.assert_frame_equal(first, second)
