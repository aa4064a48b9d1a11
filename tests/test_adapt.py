"""Adapting encoders: what is learned from which pairs, and the way from there to a head."""

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import TINY, write_split
from encoding import find_checkpoint, identify, plan_device
from faults import adapter_step, stop_after
from hypothesis import given, settings
from hypothesis import strategies as st
from invoke import run
from reading import read_labels
from trastuzumab import HEAVY, LIGHT

import abag
from abag import (
    AdaptConfig,
    DamagedFile,
    EncoderError,
    MissingPackage,
    OptionError,
    OutputError,
    RunError,
    SplitError,
    adapt_encoders,
)
from abag.adapt.model import AdaptationModel, encode_frozen
from abag.adapt.train import AdapterTraining, assign_pairs, batch_pairs
from abag.core.options import schema
from abag.embed.encoders.packed import PackedEncoder
from abag.embed.tables.options import TableOptions
from abag.head.models.probit import latent_labels
from abag.head.regimes.splits import TRAIN
from abag.head.training.tasks import load

SMALL = {**TINY, "epochs": 2, "batch_size": 8, "device": "cpu"}
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
TABLE_OPTIONS = {option.name for option in schema(TableOptions)}
RBD = "NITNLCPFGEVFNATRFASVYAWNRKRISNCVADYSVLYNSASFSTFKCYG"


def make_table(rows=48):
    """Pairs of short chains whose affinity is the number of W in the heavy chain."""
    rng = np.random.default_rng(0)
    heavy = ["".join(rng.choice(list("ACDEFGHIKLW"), 12)) for _ in range(rows)]
    antigen = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVY"), 14)) for _ in range(8)]
    frame = pd.DataFrame({"heavy": heavy, "antigen": [antigen[i % 8] for i in range(rows)]})
    return frame.assign(pKd=6 + frame["heavy"].str.count("W") + rng.normal(size=rows) * 0.1)


@pytest.fixture
def given_split(tmp_path):
    """A table, its pairs, and a file with a random split of them."""
    table = make_table()
    write_split(table, tmp_path / "split.parquet", split="random")
    return table, read_labels(table), tmp_path / "split.parquet"


@pytest.mark.ci
def test_training_reduces_the_loss_and_records_the_adapter(given_split, tmp_path):
    table, _, split = given_split
    said = []
    options = SMALL | {"epochs": 12, "lr": 3e-3, "patience": 0, "say": said.append}
    summary = adapt_encoders(table, tmp_path / "a", split_from=split, head_share=0, **options)
    assert summary["last_loss"] < 0.5 * summary["first_loss"]
    lines = [json.loads(x) for x in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert summary["best_validation_loss"] == min(line["validation_loss"] for line in lines)
    assert summary["sides"]["antibody"]["trainable_parameters"] == 2 * 2 * 8 * (64 + 64)
    assert any("4,096 trainable parameters" in text for text in said)


def test_one_encoder_can_be_adapted_next_to_an_encoder_without_weights(given_split, tmp_path):
    table, _, split = given_split
    options = SMALL | {"antigen_encoder": "composition"}
    with pytest.raises(abag.AbagError, match=r"composition: has no weights .* sides\."):
        adapt_encoders(table, tmp_path / "a", split_from=split, **options)
    assert not (tmp_path / "a").exists()
    summary = adapt_encoders(table, tmp_path / "a", split_from=split, sides="antibody", **options)
    assert list(summary["sides"]) == ["antibody"]
    assert not (tmp_path / "a" / "antigen").exists()


def test_untrained_adapters_return_the_vectors_of_the_frozen_encoders(given_split):
    _, pairs, split = given_split
    config = AdaptConfig(split_from=str(split), **TINY)
    plan = plan_device("cpu")
    identities = {kind: identify(config.encoder(kind), kind) for kind in ("antibody", "antigen")}
    model = AdaptationModel(identities, pairs, np.arange(len(pairs)), plan, config).eval()
    for kind, unique in (("antibody", pairs.table.antibodies), ("antigen", pairs.table.antigens)):
        side = model.encoders[kind]
        with torch.no_grad():
            x_UD = side(np.arange(5)) / side._scale_D + side._mean_D
        theirs = encode_frozen(identities[kind], unique.chains, plan)[:5]
        np.testing.assert_allclose(x_UD.numpy(), theirs, rtol=1e-4, atol=1e-5)


def test_frozen_vectors_survive_batches_that_do_not_fit(monkeypatch):
    chains = [("MKTAYIAKQRQI" * n,) for n in (1, 9, 3, 20, 14)]
    identity = identify("tiny-esm2", "antigen")
    expected = encode_frozen(identity, chains, plan_device("cpu"))
    sizes = []

    real = PackedEncoder.__call__

    def full(self, batch, _layer_pooling=None):
        sizes.append(len(batch.ids))
        if sizes[-1] > 400:
            raise torch.OutOfMemoryError
        return real(self, batch)

    monkeypatch.setattr(PackedEncoder, "__call__", full)
    ours = encode_frozen(identity, chains, plan_device("cpu"))
    assert max(sizes) > 400
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_encoders_are_adapted_to_the_latent_values_of_classes(given_split, tmp_path):
    table, _, split = given_split
    level = np.digitize(table["pKd"], [6.5, 7.5])
    classes = ("low", "medium", "high")
    frame = table.drop(columns="pKd").assign(response=np.array(classes)[level])
    options = {**SMALL, "split_from": split, "epochs": 4, "lr": 1e-2, "classes": classes}
    summary = adapt_encoders(frame, tmp_path / "a", **options, say=lambda _: None)
    assert summary["last_loss"] < summary["first_loss"]
    lines = (tmp_path / "a/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["validation"]["spearman"] is not None
    # targets of classes are as far apart as their latent values, not as their numbers
    pairs = read_labels(frame, classes=classes)
    latent = np.unique(latent_labels(pairs, np.arange(len(pairs))).pkd)
    assert len(latent) == 3
    assert not np.isclose(np.diff(latent)[0], np.diff(latent)[1])


def test_a_censored_label_gives_a_one_sided_loss(given_split, tmp_path):
    table, _, split = given_split
    relation = np.where(np.arange(len(table)) % 3, ">", "")  # Kd above: pKd below the label
    pairs = read_labels(table.assign(censored=relation))
    config = AdaptConfig(split_from=str(split), **TINY)
    identities = {kind: identify(config.encoder(kind), kind) for kind in ("antibody", "antigen")}
    training = AdapterTraining(
        tmp_path, pairs, assign_pairs(pairs, config), identities, plan_device("cpu"), config
    )
    training.model.eval()
    rows = training.assignment.adapter
    rows = rows[pairs.censored[rows] != 0]
    with torch.no_grad():
        error_B = training.model(rows) - training.target_P[torch.from_numpy(rows)]
        losses_B = training._losses(rows, training.model(rows))
    assert (losses_B[error_B < 0] == 0).all()
    torch.testing.assert_close(losses_B[error_B > 0], error_B[error_B > 0].square())


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 3))
def test_an_epoch_contains_each_pair_once_and_groups_similar_lengths(n, size, epoch):
    rng = np.random.default_rng(n)
    rows = rng.permutation(2 * n)[:n]
    lengths = rng.integers(1, 999, 2 * n)
    config = AdaptConfig(split_from="x", batch_size=size)
    batches = batch_pairs(rows, lengths, config, epoch)
    assert sorted(np.concatenate(batches)) == sorted(rows)
    assert all(1 <= len(batch) <= size for batch in batches)
    assert len(batches) == -(-n // size)
    again = batch_pairs(rows, lengths, config, epoch)
    assert all(map(np.array_equal, batches, again))
    if n <= 16 * size:  # one bucket: no batch reaches into another's lengths
        spans = sorted((lengths[b].min(), lengths[b].max()) for b in batches)
        assert all(low <= high for (_, low), (high, _) in pairwise(spans))


def test_training_groups_are_not_divided_and_test_pairs_are_not_assigned(given_split, tmp_path):
    table, pairs, _ = given_split
    write_split(table, tmp_path / "groups.parquet", split="column=antigen")
    parts = assign_pairs(pairs, AdaptConfig(split_from=str(tmp_path / "groups.parquet")))
    groups = parts.split.group
    assert not set(groups[parts.adapter]) & set(groups[parts.head])
    assert sorted([*parts.adapter, *parts.head]) == parts.split.rows(TRAIN).tolist()
    assert 0.3 < len(parts.adapter) / len(parts.split.rows(TRAIN)) < 0.7
    written = parts.to_frame(pairs)
    assert (written["adapter"] == "train").sum() == len(parts.adapter)
    assert set(written.loc[written["adapter"] == "train", "split"]) == {"train"}
    assert set(written.loc[written["adapter"] == "validation", "split"]) == {"validation"}
    assert not written.loc[written["split"] == "test", "adapter"].any()


def test_a_split_with_several_folds_requires_a_fold(given_split, tmp_path):
    table, pairs, _ = given_split
    write_split(table, tmp_path / "folds.csv", split="random", folds=3)
    for fold in (None, 3):
        with pytest.raises(OptionError, match="has folds 0 to 2; expected one"):
            adapt_encoders(table, tmp_path / "a", split_from=tmp_path / "folds.csv", fold=fold)
    parts = assign_pairs(pairs, AdaptConfig(split_from=str(tmp_path / "folds.csv"), fold=1))
    written = pd.read_csv(tmp_path / "folds.csv")
    written = written[written["fold"] == 1]
    assert parts.to_frame(pairs)["split"].tolist() == written["split"].tolist()
    assert set(parts.to_frame(pairs)["fold"]) == {0}


def test_a_single_training_group_cannot_be_divided(given_split, tmp_path):
    _, pairs, split = given_split
    pd.read_parquet(split).assign(group=0).to_parquet(tmp_path / "one.parquet")
    with pytest.raises(match=r"1 group.*--head-share 0"):
        assign_pairs(pairs, AdaptConfig(split_from=str(tmp_path / "one.parquet")))


class Stop(Exception):
    """Simulates a kill inside one process."""


def test_an_interrupted_training_resumes_to_identical_weights(given_split, tmp_path, monkeypatch):
    table, _, split = given_split
    options = SMALL | {"save_every": 2, "batch_size": 4}
    adapt_encoders(table, tmp_path / "whole" / "a", split_from=split, **options)
    broken = tmp_path / "broken" / "a"
    with monkeypatch.context() as patch:
        stop_after(patch, 4, step_of=adapter_step, error=Stop)
        with pytest.raises(Stop):
            adapt_encoders(table, broken, split_from=split, **options)
    assert load(broken / "checkpoints" / "latest").state["step"] == 4
    summary = adapt_encoders(table, broken, split_from=split, **options)
    assert summary["resumed_from_step"] == 4
    for kind in ("antibody", "antigen"):
        files = [
            tmp_path / w / "a" / kind / "adapter_model.safetensors" for w in ("whole", "broken")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
    ends = [load(tmp_path / w / "a" / "checkpoints" / "latest") for w in ("whole", "broken")]
    assert all(torch.equal(ends[0].tensors[n], t) for n, t in ends[1].tensors.items())


def test_a_finished_adapter_is_reused_and_other_options_are_refused(given_split, tmp_path):
    table, _, split = given_split
    said = []
    options = SMALL | {"epochs": 1, "say": said.append}
    first = adapt_encoders(table, tmp_path / "a", split_from=split, **options)
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    assert adapt_encoders(table, tmp_path / "a", split_from=split, **options) == first
    assert "nothing to do" in said[-1]
    for other in ({"rank": 4}, {"epochs": 2}, {"head_share": 0.2}):
        with pytest.raises(RunError, match=r"was .* and is now .*another out folder"):
            adapt_encoders(table, tmp_path / "a", split_from=split, **(options | other))
    changed = table.assign(pKd=table["pKd"] + 1)
    with pytest.raises(RunError, match="labels or features of the table differ"):
        adapt_encoders(changed, tmp_path / "a", split_from=split, **options)
    damaged = shutil.copytree(tmp_path / "a", tmp_path / "damaged")
    for summary in (None, [], {**first, "steps": "7"}):
        record = json.loads((tmp_path / "a" / "adapter.json").read_text())
        (damaged / "adapter.json").write_text(json.dumps(record | {"summary": summary}))
        with pytest.raises(DamagedFile, match=r"adapter\.json: (summary|steps) is .*; expected"):
            adapt_encoders(table, damaged, split_from=split, **options)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("mine")
    with pytest.raises(OutputError, match="and no adapter; expected a new folder"):
        adapt_encoders(table, tmp_path / "full", split_from=split, **options)
    assert {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()} == before


def test_training_stops_when_validation_stops_improving(given_split, tmp_path):
    table, _, split = given_split
    options = SMALL | {"epochs": 9, "patience": 2, "lr": 1e-12, "head_lr": 1e-12, "dropout": 0.0}
    summary = adapt_encoders(table, tmp_path / "a", split_from=split, **options)
    assert summary["epochs"] < 9


@pytest.mark.parametrize(("options", "words"), [
    ({"sides": "heavy"}, "^sides: 'heavy' is unknown"), ({"rank": 0}, "^rank: 0 is out of range"),
    ({"head_share": 1.0}, "^head_share: 1.0 is out of range"),
    ({"targets": ("q", "query", "value", "up")}, "^targets: no adapted encoder has up; .* q, k, v"),
    ({"layers": (1, 3)}, "^layers: no adapted encoder has 3; .* 1, 2. "),
    ({"ranks": 3}, "adapt: unknown option 'ranks'. Did you mean 'rank'"),
])  # fmt: skip
def test_invalid_options_are_refused_before_anything_is_written(
    given_split, tmp_path, options, words
):
    table, _, split = given_split
    with pytest.raises(abag.AbagError, match=words):
        adapt_encoders(table, tmp_path / "a", split_from=split, **(SMALL | options))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("part", ["validation", "train"])
def test_a_split_without_a_part_that_training_needs_is_refused(given_split, tmp_path, part):
    table, _, split = given_split
    rows = pd.read_parquet(split)
    rows.assign(split=rows["split"].replace(part, "test")).to_parquet(split)
    name = {"train": "training"}.get(part, part)
    with pytest.raises(SplitError, match=f"^split_from .*: the {name} part is empty; expected at"):
        adapt_encoders(table, tmp_path / "a", split_from=split, **SMALL)
    assert not (tmp_path / "a").exists()


def test_a_missing_peft_error_names_the_extra(given_split, tmp_path, monkeypatch):
    table, _, split = given_split
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPackage, match="pip install peft"):
        adapt_encoders(table, tmp_path / "a", split_from=split, **SMALL)


def written_as_values(frame):
    """Return a table without antigens, whose positive labels of no known unit span decades."""
    return frame.assign(signal=10 ** frame["pKd"]).drop(columns=["pKd", "antigen"])


def written_as_mutations(frame):
    """Return single mutants of one antibody, from residue 1000, under a name that says nothing."""
    places = [(at, new) for at in range(30, 54) for new in "AW" if HEAVY[at] != new]
    change = [f"H:{HEAVY[at]}{at + 1000}{new}" for at, new in places]
    return pd.DataFrame({"change": change, "pKd": frame["pKd"].head(len(change))})


def written_as_matrix(frame):
    """Return a row per antibody and a column per antigen."""
    cells = pd.DataFrame(
        np.random.default_rng(0).uniform(5, 9, (8, 6)), columns=frame["antigen"].unique()[:6]
    )
    return cells.assign(heavy=frame["heavy"].head(8))


def written_by_laboratories(frame):
    """Return pairs that several laboratories have measured, one of them twice, with errors."""
    again = [frame.head(9).eval(f"pKd = pKd + {shift}") for shift in (1, 1.5)]
    labs = ["north", "south", "south"]
    tables = [frame.assign(lab=lab) for frame, lab in zip([frame, *again], labs, strict=True)]
    return pd.concat(tables).assign(sd=lambda table: 0.1 + 0.4 * (table["lab"] == "south"))


OF_PARENT = {
    "parent": f"{HEAVY}|{LIGHT}", "first_residue": 1000, "columns": {"mutations": "change"},
}  # fmt: skip


@pytest.mark.parametrize(("write", "options"), [
    (
        lambda frame: frame.assign(pKd=10 ** (9 - frame["pKd"])).rename(columns={"pKd": "value"}),
        {"columns": {"pkd": "value"}, "label": "kd_nm", "label_range": "3:40", "limit": 40},
    ),
    (
        written_as_values,
        {"label": "value", "better": "higher", "columns": {"label": "signal"}, "antigen": RBD},
    ),
    (lambda frame: pd.concat([frame, frame.head(9).eval("pKd = pKd + 1")]), {"replicates": "keep"}),
    (
        lambda frame: frame.astype({"pKd": object}).replace({"pKd": {frame["pKd"][0]: "NB"}}),
        {"no_binding": 5.0},
    ),
    (lambda frame: frame.replace({"pKd": {frame["pKd"][0]: -1e6}}),
     {"label_range": "3:40", "bad_rows": "skip"}),
    (written_as_mutations, {"antigen": RBD, **OF_PARENT}),
    (written_as_matrix, {"matrix": True, "label": "pkd"}),
    (written_by_laboratories, {"categories": ["lab"]}),
    (written_by_laboratories, {"error": "sd"}),
])  # fmt: skip
def test_a_table_is_read_as_the_run_of_its_split_read_it(tmp_path, write, options):
    table = tmp_path / "table.csv"
    write(make_table()).to_csv(table, index=False)
    reading = {name: options[name] for name in options.keys() & TABLE_OPTIONS}
    abag.embed_table(table, tmp_path / "store", **reading, **COMPOSITION)
    quick = {"head": "ridge", "split": "random", "report": False}
    abag.fit(table, tmp_path / "store", tmp_path / "run", **options, **quick)
    chosen = {"split_from": tmp_path / "run", "fold": 0, **SMALL, "epochs": 1}
    said = []
    adapt_encoders(table, tmp_path / "a", **chosen, say=said.append)
    record = json.loads((tmp_path / "a" / "config.json").read_text())
    assert record["pairs"] == len(pd.read_parquet(tmp_path / "run/pairs.parquet"))
    assert not any(" was " in line for line in said)
    same = {name: value for name, value in options.items() if name not in ("categories", "error")}
    adapt_encoders(table, tmp_path / "b", **chosen, **same)


def test_a_split_of_several_rounds_is_learned_from_with_the_tables_of_all_rounds(tmp_path):
    table = make_table()
    rounds = [tmp_path / "first.csv", tmp_path / "second.csv"]
    table.head(30).to_csv(rounds[0], index=False)
    table[30:].rename(columns={"pKd": "pKd (SPR)"}).to_csv(rounds[1], index=False)
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    quick = {"head": "ridge", "split": "random", "report": False}
    abag.fit(rounds[0], tmp_path / "store", tmp_path / "run", **quick)
    abag.fit(rounds[1], None, tmp_path / "both", add=tmp_path / "run")
    adapt = ["--split-from", tmp_path / "both", "--fold", 0, "--epochs", 1, "--rank", 2]
    adapt += ["--antibody-encoder", "tiny-igt5", "--antigen-encoder", "composition"]
    adapt += ["--sides", "antibody", "--device", "cpu", "--out", tmp_path / "a"]
    line = run("adapt", rounds[1], *adapt, code=1).stderr.splitlines()[-1]
    assert "has 30 pairs that are not in the table" in line
    assert "Give the tables that it is of" in line
    run("adapt", *rounds, *adapt)
    record = json.loads((tmp_path / "a" / "config.json").read_text())
    assert record["pairs"] == len(pd.read_parquet(tmp_path / "both/pairs.parquet"))


def test_what_is_given_wins_over_the_run_of_the_split_and_is_reported(tmp_path):
    table = make_table()
    table.loc[0, "pKd"] = np.nan
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    quick = {"head": "ridge", "split": "random", "report": False, "bad_rows": "skip"}
    abag.fit(table, tmp_path / "store", tmp_path / "run", **quick, label_range="1:30")
    said = []
    chosen = {"split_from": tmp_path / "run", "fold": 0, **SMALL, "epochs": 1}
    given = {"label_range": "2:30", "limit": 70}
    adapt_encoders(table, tmp_path / "a", **chosen, **given, say=said.append)
    assert f"{tmp_path / 'run'}: label_range was 1:30; 2:30 is used" in said
    assert f"{tmp_path / 'run'}: limit was not given; 70 is used" in said


@pytest.mark.parametrize("split", ["none", "."])
def test_a_split_that_does_not_exist_is_told_before_what_its_run_says_of_the_table(tmp_path, split):
    table = make_table().rename(columns={"pKd": "x"})
    with pytest.raises(OptionError, match=r"does not exist; expected a run folder, or a file like"):
        adapt_encoders(table, tmp_path / "a", split_from=tmp_path / split, **SMALL)


@pytest.mark.ci
def test_a_head_can_be_trained_on_vectors_of_an_adapted_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(find_checkpoint("tiny-igt5").folder, "models/My T5")
    pairs = tmp_path / "pairs.csv"
    store = tmp_path / "store"
    adapter = tmp_path / "first"
    make_table(80).to_csv(pairs, index=False)
    encoders = ["--antibody-encoder", "models/My T5", "--antigen-encoder", "composition"]
    run("embed", pairs, "--store", store, *encoders)
    quick = {"epochs": 1, "report": False}
    abag.fit(pairs, store, tmp_path / "frozen", split="random", **quick)
    adapt = ["adapt", pairs, "--split-from", tmp_path / "frozen", "--fold", 0, "--out", adapter]
    adapt += [*encoders, "--sides", "antibody", "--epochs", 1, "--rank", 2]
    line = run(*adapt, "--fold", 5, code=1).stderr.splitlines()[-1]
    assert "has folds 0 to 4 (0 to 4: new antibodies, known antigens); expected" in line
    make_table(80).eval("pKd = 15 - pKd").rename(columns={"pKd": "x"}).to_csv(
        "log.csv", index=False
    )
    line = run("adapt", "log.csv", *adapt[2:], "--column", "pkd=x", code=1).stderr.splitlines()[-1]
    assert "80 of 80 labels differ from those of the run" in line
    once = make_table(80)
    repeated = pd.concat([once, once.head(20).eval("pKd = pKd + 0.5")])
    kept = {"replicates": "keep", "device": "cpu"}
    abag.fit(repeated, store, "kept", split="random", **quick, **kept)
    of_kept = {"split_from": "kept", "fold": 0, "head_share": 0, **SMALL, **kept}
    of_kept |= {"antibody_encoder": "models/My T5", "antigen_encoder": "composition"}
    adapt_encoders(repeated, "second", **of_kept, sides="antibody")
    made = json.loads(run(*adapt, "--json").stdout)
    again = run(*adapt, "--antibody-encoder", "./models/../models/My T5")  # the same
    assert "nothing to do" in again.stderr
    assert "trainable parameters" in again.stdout
    embed = f"TABLE --store DIR --kind antibody --antibody-encoder '{tmp_path / 'models/My T5'}'"
    assert f"abag embed {embed} --antibody-adapter {adapter}" in again.stdout
    run("embed", pairs, "--store", store, *encoders, "--antibody-adapter", adapter)
    shutil.rmtree(adapter)  # the store needs it no more
    other = ["fit", pairs, "--store", store, "--antibody-encoder", "my-t5-first"]
    other += ["--epochs", 1, "--run", tmp_path / "other", "--split", "random", "--split-seed", 7]
    line = run(*other, code=1).stderr.splitlines()[-1]
    assert "trained its adapter" in line
    assert not (tmp_path / "other").exists()
    split_file = line.split("--split 'file=")[1].split("'")[0]
    said = []
    fitted = abag.fit(
        pairs,
        store,
        tmp_path / "own",
        antibody_encoder="my-t5-first",
        split=f"file={split_file}",
        **(quick | {"say": said.append}),
    )
    assert fitted["regimes"][0]["split"]["rows"]["train"] == made["pairs"]["head"]
    assert any(f"{made['pairs']['adapter']} training pairs trained" in text for text in said)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    abag.share(tmp_path / "own", "shared", say=said.append)
    for file in Path("shared").rglob("*.*"):
        assert str(tmp_path).encode() not in file.read_bytes()
    new = {"heavy": ["ACDWWKLACDEF", "WWWWCDEFGHIK"], "antigen": "ACDEFGHIKLMN", "say": said.append}
    by_store = abag.load_predictor(tmp_path / "own").predict(**new)
    bundle = shutil.copytree(tmp_path / "own" / "predictor", tmp_path / "bundle")
    shutil.rmtree(store)  # and whoever is handed the bundle needs neither
    alone = abag.load_predictor(bundle).predict(**new)
    np.testing.assert_allclose(alone["pkd_predicted"], by_store["pkd_predicted"], atol=1e-3)
    shutil.rmtree(bundle / "antibody-adapter")
    with pytest.raises(EncoderError, match="its fingerprint is"):
        abag.load_predictor(bundle).predict(**new)
    (tmp_path / "models/My T5").rename("moved")
    for predictor, name in (("../own", str(tmp_path / "models/My T5")), ("shared", "'My T5'")):
        with pytest.raises(EncoderError, match=f"{name}: .* as antibody_encoder"):
            abag.load_predictor(predictor).predict(**new)
    here = abag.load_predictor("shared").predict(**new, antibody_encoder="moved")
    np.testing.assert_array_equal(here["pkd_predicted"], alone["pkd_predicted"])
