"""Vectors of adapted encoders: which pairs may be held out, and which may train the head."""

import io

import numpy as np
import pandas as pd
import pytest
from drawn import draw_chain, draw_chains
from heads import TEST, read_labels, sequence_keys, splits_of, store_vectors

import abag
from abag import FitConfig, SplitError
from abag.embed.store.shard import write_adapter_files
from abag.head.regimes.splits import split_frame
from abag.head.training.inputs import read_inputs, split_inputs

RNG = np.random.default_rng(5)
QUICK = {"report": False, "epochs": 1, "device": "cpu"}


@pytest.fixture
def table():
    """Forty antibodies against ten families of two antigens, one residue apart."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state
    families = draw_chains(RNG, 10, 70)
    antigens = [g for family in families for g in (family, "M" + family[1:])]
    rows = [(draw_chain(RNG, 60), antigens[i % 20]) for i in range(80)]
    frame = pd.DataFrame(rows, columns=["heavy", "antigen"])
    return frame.assign(pKd=7 + RNG.normal(size=80))


def make_store(path, table, trained, validated=None):
    """Make a store whose antibody vectors come from an adapter that was trained on a table."""
    adapter = {"antibody": {"adapter": "cd"}, "antigen": {}}
    store = store_vectors(
        path,
        table,
        lambda _kind, number: RNG.normal(size=(number, 6)),
        lambda kind: {"origin": "drawn"} | adapter[kind],
    )
    if trained is not None:
        uses = [(trained, "train")] + ([] if validated is None else [(validated, "validation")])
        rows = pd.concat([sequence_keys(t).assign(adapter=use) for t, use in uses])
        content = io.BytesIO()
        rows.to_parquet(content, index=False)
        write_adapter_files(
            store.folder("antibody").path, {"adapter/splits.parquet": content.getvalue()}
        )
    return path


def parts_of(table, **options):
    """Split as fit will; return the rows of each part."""
    pairs = read_labels(table)
    (split,) = splits_of(pairs, **options)
    return {
        n: table.iloc[pairs.row[split.part == i]] for i, n in enumerate(("train", "val", "test"))
    }


def written_split(table, path, **options):
    """Write the split of `parts_of`; return the option that names it."""
    pairs = read_labels(table)
    split_frame(pairs, splits_of(pairs, **options)).to_parquet(path, index=False)
    return f"file={path}"


@pytest.mark.ci
def test_pairs_that_trained_the_adapter_are_excluded_and_counted(table, tmp_path):
    parts = parts_of(table, split="antigen")
    store = make_store(tmp_path / "store", table, parts["train"].head(25), parts["val"])
    said = []
    split_file = written_split(table, tmp_path / "split.parquet", split="antigen")
    summary = abag.fit(
        table, store, tmp_path / "run", split=split_file, **(QUICK | {"say": said.append})
    )
    assert summary["regimes"][0]["split"]["rows"]["train"] == len(parts["train"]) - 25
    assert any("25 training pairs trained the adapter of drawn and are excluded" in t for t in said)
    written = pd.read_parquet(tmp_path / "run" / "splits.parquet")
    assert (written["split"] == "unused").sum() == 25
    kept = abag.fit(
        table, store, tmp_path / "kept", split=split_file, adapter_rows="train", **QUICK
    )
    assert kept["regimes"][0]["split"]["rows"]["train"] == len(parts["train"])
    assert any("vectors depend on their labels" in text for text in kept["warnings"])


def test_pairs_of_an_adapter_are_counted_once_whatever_the_folds(table, tmp_path):
    pairs = read_labels(table)
    splits = splits_of(pairs, split="random", folds=3)
    split_frame(pairs, splits).to_parquet(tmp_path / "split.parquet", index=False)
    store = make_store(tmp_path / "store", table, table.head(10))
    config = FitConfig(split=f"file={tmp_path / 'split.parquet'}")
    with pytest.raises(SplitError, match="10 of 80 validation and test pairs"):
        split_inputs(read_inputs(table, store, config))


def test_distances_are_to_the_pairs_that_the_head_learns_from(tmp_path):
    parent = draw_chain(RNG, 60)
    heavy = ["".join("AC"[letter == "A"] for letter in parent[:n]) + parent[n:] for n in range(48)]
    table = pd.DataFrame({"heavy": heavy, "antigen": draw_chain(RNG, 70)})
    parts = ["validation"] * 3 + ["train"] * 33 + ["test"] * 12
    table = table.assign(pKd=7 + RNG.normal(size=48), part=parts)
    store = make_store(tmp_path / "store", table, table.iloc[30:36])  # the nearest ones
    config = FitConfig(split="column=part", head="ridge")
    (measured,) = split_inputs(read_inputs(table, store, config)).regimes
    (split,) = measured.splits
    assert sorted(split.distance[split.part == TEST]) == [*range(7, 19)]


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_held_out_pair_that_trained_the_adapter_is_refused(table, tmp_path, part):
    trained = parts_of(table, split="random")[part].head(1)
    split_file = written_split(table, tmp_path / "split.parquet", split="random")
    store = make_store(tmp_path / "store", table, trained)
    with pytest.raises(SplitError, match=r"drawn: 1 of 15 validation and test pairs"):
        abag.fit(table, store, tmp_path / "run", split=split_file, **QUICK)
    assert not (tmp_path / "run").exists()


@pytest.mark.ci
def test_a_near_duplicate_of_a_held_out_pair_is_refused_even_outside_the_table(table, tmp_path):
    test = parts_of(table, split="antigen")["test"]
    antigen = test["antigen"].iloc[0]
    twin = next(g for g in table["antigen"].unique() if g != antigen and g[1:] == antigen[1:])
    # the very pair is nowhere in the table; its antigen differs from the held-out one
    outside = pd.DataFrame({"heavy": [draw_chain(RNG, 60)], "antigen": [twin]})
    store = make_store(tmp_path / "store", table, outside)
    for split in ("antigen", "auto"):
        with pytest.raises(SplitError, match="or near-duplicates of them"):
            abag.fit(table, store, tmp_path / "run", split=split, **QUICK)
    abag.fit(table, store, tmp_path / "run", split="random", **QUICK)


@pytest.mark.ci
def test_near_duplicate_antibodies_count_if_both_sequences_are_held_out(table, tmp_path):
    test = parts_of(table, split="both")["test"]
    outside = pd.DataFrame({"heavy": test["heavy"].head(1), "antigen": [draw_chain(RNG, 70)]})
    store = make_store(tmp_path / "store", table, outside)
    with pytest.raises(SplitError):
        abag.fit(table, store, tmp_path / "run", split="both", **QUICK)
    abag.fit(table, store, tmp_path / "run", split="antigen", **QUICK)


def test_validation_pairs_of_the_adapter_may_validate_but_not_test_the_head(table, tmp_path):
    parts = parts_of(table, split="random")
    split_file = written_split(table, tmp_path / "split.parquet", split="random")
    for name, validated in (("val", parts["val"]), ("test", parts["test"].head(2))):
        make_store(tmp_path / name, table, parts["train"].head(9), validated)
    abag.fit(table, tmp_path / "val", tmp_path / "run", split=split_file, **QUICK)
    with pytest.raises(SplitError, match="2 of 15"):
        abag.fit(table, tmp_path / "test", tmp_path / "other", split=split_file, **QUICK)


def test_an_adapter_trained_on_every_training_pair_is_refused(table, tmp_path):
    parts = parts_of(table, split="random")
    split_file = written_split(table, tmp_path / "split.parquet", split="random")
    store = make_store(tmp_path / "store", table, parts["train"])
    with pytest.raises(SplitError, match=r'head-share above 0.*adapter_rows="train"'):
        abag.fit(table, store, tmp_path / "run", split=split_file, **QUICK)
    assert not (tmp_path / "run").exists()


def test_adapted_vectors_without_their_training_pairs_are_refused(table, tmp_path):
    store = make_store(tmp_path / "store", table, None)
    with pytest.raises(SplitError, match=r"adapter/splits.parquet is missing"):
        abag.fit(table, store, tmp_path / "run", split="random", **QUICK)
    folder = abag.open_store(store).folder("antibody")
    write_adapter_files(folder.path, {"adapter/splits.parquet": b"half a file"})
    with pytest.raises(SplitError, match=r"adapter/splits.parquet is missing or cannot be read"):
        abag.fit(table, store, tmp_path / "run", split="random", **QUICK)


def test_a_split_file_leaks_through_its_groups(table, tmp_path):
    own = written_split(table, tmp_path / "own.parquet", split="antigen")
    trained = parts_of(table, split="antigen")["train"].head(20)
    store = make_store(tmp_path / "store", table, trained)
    abag.fit(table, store, tmp_path / "run", split=own, **QUICK)
    frame = pd.read_parquet(tmp_path / "own.parquet")
    frame.assign(group=0).to_parquet(tmp_path / "joined.parquet")
    with pytest.raises(SplitError):
        abag.fit(
            table, store, tmp_path / "other", split=f"file={tmp_path / 'joined.parquet'}", **QUICK
        )
