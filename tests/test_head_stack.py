"""Heads in closed form and stacks as heads of a run: fit, bundle, resume, predict."""

import json
from itertools import chain
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from drawn import write_vectors

import abag
from abag.core.arrays import hex_keys
from abag.core.options import BadOption, schema
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store
from abag.head.closed_form import registry
from abag.head.model.config import HEADS_WITH, FitConfig, HeadName, RunMismatch, is_used
from abag.head.prediction import fitted
from abag.head.prediction.bundle import load_predictor
from abag.head.training import stack as stack_module

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
QUICK = {
    "report": False, "split": "antibody", "widths": (8,), "epochs": 2, "batch_size": 16,
    "device": "cpu", "say": lambda _text: None,
}  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A table whose labels are a linear function of the stored vectors, plus noise."""
    at, rng = tmp_path_factory.mktemp("stack"), np.random.default_rng(0)
    heavy = ["".join(rng.choice(RESIDUES, 15)) for _ in range(40)]
    antigen = ["".join(rng.choice(RESIDUES, 15)) for _ in range(3)]
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigen], columns=["heavy", "antigen"])
    table, store = read_pairs(frame), open_store(at / "store", create=True)
    value = np.zeros(len(frame))
    for kind, unique in table.sequences.items():
        x_ND = rng.normal(size=(len(unique.keys), 4)).astype(np.float32)
        value += x_ND[unique.of_row, 0]
        write_vectors(store, kind, unique.keys, x_ND)
    frame["pKd"] = 8 + value + 0.2 * rng.normal(size=len(frame))
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


def fit(case, run, **options):
    quick = {n: one for n, one in QUICK.items() if is_used(n, options.get("head", "stack"))}
    return abag.fit(case.frame, case.store, run, **quick | options)


def same_predictions(run, case):
    """Whether the bundle of a run predicts what its fit wrote for the only fold."""
    written = pd.read_parquet(run / "predictions.parquet")
    predictor = load_predictor(run)
    chains = []
    for kind, unique in read_pairs(case.frame).sequences.items():
        of_key = dict(zip(hex_keys(unique.keys), unique.chains, strict=True))
        chains.append([of_key[key] for key in written[f"{kind}_key"]])
    found, _ = predictor.score_stored(open_store(case.store), *chains)
    for name in ("pkd_predicted", "sigma"):
        np.testing.assert_allclose(found[name], written[name], rtol=1e-4)


@pytest.mark.parametrize("head", ["ridge", "antibody_ridge", "kernel", "gp", "stack", "auto"])
def test_a_head_is_fitted_stored_and_refitted_to_the_same_bits(case, tmp_path, head):
    run, again = tmp_path / "run", tmp_path / "again"
    summary = fit(case, run, head=head)
    assert (
        summary["metrics"]["test"]["rmse"]
        < 0.6 * summary["baselines"]["train_mean"]["test"]["rmse"]
    )
    assert sum(summary["shares"].values()) == pytest.approx(1)
    same_predictions(run, case)
    said = []
    assert fit(case, run, head=head, say=said.append) == json.loads(
        (run / "summary.json").read_text()
    )
    assert "nothing to do" in said[-1]
    (run / "summary.json").unlink()  # interrupted before the last file
    fit(case, run, head=head)
    fit(case, again, head=head)
    for name in (
        "predictions.parquet",
        "predictor/predictor.json",
        "predictor/weights.safetensors",
    ):
        assert (run / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.parametrize("head", ["kernel", "stack"])
def test_a_head_scores_tables_and_all_pairs_and_is_listed(case, tmp_path, head):
    fit(case, tmp_path / "run", head=head, folds=3)
    predictor, said = load_predictor(tmp_path / "run"), lambda _text: None
    assert sum(member.weight for member in predictor.members) == pytest.approx(1)
    abag.predict(case.frame, tmp_path / "run", tmp_path / "rows.csv", store=case.store, say=said)
    abag.predict(
        case.frame, tmp_path / "run", tmp_path / "cross.csv", cross=case.frame, store=case.store,
        say=said,
    )  # fmt: skip
    rows, cross = (pd.read_csv(tmp_path / name) for name in ("rows.csv", "cross.csv"))
    both = rows.merge(cross, on=["heavy", "antigen"], suffixes=("", "_cross"))
    assert len(both) == len(rows) == len(cross)
    np.testing.assert_allclose(both["pkd_predicted"], both["pkd_predicted_cross"], rtol=1e-9)
    assert both["sigma"].std() > 0
    (listed,) = abag.runs(tmp_path / "run")["runs"]
    assert listed["state"] == "finished"


@pytest.mark.parametrize(("members", "networks"), [(1, 2), (4, 4)])
def test_each_network_of_a_stack_leaves_out_one_inner_fold(
    case, tmp_path, monkeypatch, members, networks
):
    found, said = [], []
    plain = stack_module.make_training_sets

    def make_training_sets(config, pairs, split):
        found.append((plain(config, pairs, split), split))
        return found[-1][0]

    monkeypatch.setattr("abag.head.training.train.make_training_sets", make_training_sets)
    summary = fit(case, tmp_path / "run", head="stack", members=members, say=said.append)
    ((sets, split),) = found
    training = split.rows(0)
    left_out = [np.setdiff1d(training, one) for one in sets]
    assert [round(5 * len(rows) / len(training)) for rows in left_out] == [1] * networks
    groups = [set(split.group[rows]) for rows in left_out]
    assert not set.intersection(*groups[:2])
    assert sum(f"{sum(map(len, left_out))} training pairs" in text for text in said) == 1
    assert summary["kept"] == 1.0  # the weights take the place of the shrinkage
    assert "shrunk" not in (tmp_path / "run/predictor/README.md").read_text()


def test_the_mean_is_weighed_by_its_error_on_labels_of_other_folds():
    rng = np.random.default_rng(0)
    training = SimpleNamespace(fold=rng.integers(5, size=60), pkd=rng.normal(8, 1, 60))
    found = fitted._mean_of_other_folds(training)
    expected = [training.pkd[training.fold != fold].mean() for fold in training.fold]
    np.testing.assert_allclose(found, expected)


def test_a_stack_of_a_large_table_is_weighed_on_the_validation_pairs(case, tmp_path, monkeypatch):
    monkeypatch.setattr(stack_module, "INNER_PAIRS", 10)
    said = []
    fit(case, tmp_path / "run", head="stack", say=said.append)
    assert any("by the errors on" in text and "validation pairs" in text for text in said)
    same_predictions(tmp_path / "run", case)


def test_auto_takes_the_model_with_the_smallest_error_on_pairs_not_seen(case, tmp_path):
    said = []
    summary = fit(case, tmp_path / "run", head="auto", say=said.append)
    (line,) = [text for text in said if "RMSE on pairs not seen" in text]
    rmse = {n: float(v) for n, v in (one.split() for one in line.split(": ")[2].split(", "))}
    assert rmse.keys() == {"kernel", "gp", "ridge", "network", "mean", "stack"} | {
        "antibody_ridge",
        "antigen_ridge",
    }
    best = min(rmse, key=rmse.get)
    assert rmse[best] <= rmse["ridge"] < 0.5 < rmse["mean"]
    if best != "stack":
        assert summary["shares"][best] == 1


@pytest.mark.parametrize("head", ["auto", "stack"])
def test_labels_of_the_test_part_change_nothing_but_the_scores(case, tmp_path, head):
    rng = np.random.default_rng(1)
    part = np.where(rng.random(len(case.frame)) < 0.2, "test", "train")
    part[rng.random(len(part)) < 0.1] = "val"
    frame = case.frame.assign(part=part)
    changed = frame.assign(
        pKd=np.where(part == "test", rng.uniform(6, 10, len(part)), frame["pKd"])
    )
    found = []
    for name, table in (("a", frame), ("b", changed)):
        run = tmp_path / name
        fit(SimpleNamespace(frame=table, store=case.store), run, head=head, split="column=part")
        predictions = pd.read_parquet(run / "predictions.parquet")[["pkd_predicted", "sigma"]]
        weights = (run / "predictor/weights.safetensors").read_bytes()
        found.append((predictions, pd.read_parquet(run / "baselines.parquet"), weights))
    (predicted, baselines, weights), (again, baselines_again, weights_again) = found
    pd.testing.assert_frame_equal(again, predicted, check_exact=True)
    pd.testing.assert_frame_equal(baselines_again, baselines, check_exact=True)
    assert weights_again == weights


# ---- the default ---------------------------------------------------------------------------------


PARTS = {"kernel", "gp", "ridge", "network", "mean"}


def recorded_head(run):
    return json.loads((run / "config.json").read_text())["head"]


def test_the_default_head_is_a_stack_of_five_models(case, tmp_path):
    summary = fit(case, tmp_path / "run")
    assert recorded_head(tmp_path / "run") == "stack"
    assert summary["shares"].keys() == PARTS
    same = fit(case, tmp_path / "same", head="stack")
    assert same["metrics"] == summary["metrics"]


def test_a_run_of_another_head_is_refused_without_it(case, tmp_path):
    fit(case, tmp_path / "run", head="ridge")
    with pytest.raises(RunMismatch, match="head was 'ridge' and is now 'stack'"):
        fit(case, tmp_path / "run")
    fit(case, tmp_path / "seed", preset="seed", widths=(8,))
    assert recorded_head(tmp_path / "seed") == "notebook"


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "rank", "rank_scope": "batch"},
        {"loss": "huber", "members": 3, "patience": 1, "epochs": 4},
        {"folds": 2, "learning_curve": True},
        {"split": "random", "precision": "bf16", "select": "rmse"},
        {"dropout": 0.5, "accumulate": 2, "preset": "large", "widths": (4,)},
    ],
)
def test_a_stack_takes_the_options_of_its_network(case, tmp_path, options):
    summary = fit(case, tmp_path / "run", **options)
    assert summary["shares"].keys() == PARTS
    assert np.isfinite(summary["metrics"]["test"]["rmse"])


@pytest.mark.parametrize("rows", [6, 12])
def test_a_stack_of_few_pairs_some_of_them_censored_is_fitted(case, tmp_path, rows):
    frame = case.frame.head(rows).assign(censored=["", "<"] * (rows // 2))
    part = np.where(np.arange(rows) % 3 == 0, "test", "train")
    frame = frame.assign(part=np.where(np.arange(rows) == 1, "val", part))
    few = SimpleNamespace(frame=frame, store=case.store)
    run = tmp_path / "run"
    fit(few, run, split="column=part")
    predicted = pd.read_parquet(run / "predictions.parquet")
    assert np.isfinite(predicted["pkd_predicted"]).all()


@pytest.mark.parametrize(
    ("largest", "parts"),
    [
        ({"kernel": 200, "gp": 10}, PARTS - {"gp"}),
        ({"kernel": 10, "gp": 10}, PARTS - {"kernel", "gp"}),
    ],
)
def test_a_stack_leaves_out_what_takes_too_long_and_says_so(
    case, tmp_path, monkeypatch, largest, parts
):
    monkeypatch.setattr(registry, "LARGEST", largest)
    monkeypatch.setattr(stack_module, "INNER_PAIRS", 10)
    said = []
    summary = fit(case, tmp_path / "run", say=said.append)
    assert summary["shares"].keys() == parts
    (line,) = [text for text in said if "which are left out" in text]
    assert all((f"{name} (10)" in line) == (name not in parts) for name in ("kernel", "gp"))
    same_predictions(tmp_path / "run", case)


WITH_A_NETWORK = "mlp, lowrank, notebook, stack, auto"


@pytest.mark.parametrize(
    ("options", "name", "head", "heads"),
    [
        ({"head": "ridge", "widths": (5,)}, "widths", "ridge", "mlp, notebook, stack, auto"),
        ({"head": "ridge", "rank": 5}, "rank", "ridge", "lowrank"),
        ({"head": "kernel", "lr": 1e-3}, "lr", "kernel", WITH_A_NETWORK),
        ({"head": "gp", "members": 4}, "members", "gp", WITH_A_NETWORK),
        ({"head": "one_hot_ridge", "epochs": 50}, "epochs", "one_hot_ridge", WITH_A_NETWORK),
        ({"head": "ridge", "preset": "large"}, "preset", "ridge", WITH_A_NETWORK),
        ({"head": "ridge", "patience": 2}, "patience", "ridge", WITH_A_NETWORK),
        ({"head": "lowrank", "widths": (5,)}, "widths", "lowrank", "mlp, notebook, stack, auto"),
        ({"rank": 5}, "rank", "stack", "lowrank"),
        ({"preset": "seed", "rank": 5}, "rank", "notebook", "lowrank"),
    ],
)
def test_options_that_the_head_does_not_use_are_refused(tmp_path, options, name, head, heads):
    with pytest.raises(BadOption) as refused:
        abag.fit("no table", "no store", tmp_path / "run", **options)
    assert str(refused.value) == (
        f"{name}: has no effect on the head {head}; it is an option of {heads}. Leave out {name}, "
        "or choose another head."
    )
    assert not (tmp_path / "run").exists()


def test_every_head_takes_the_defaults_of_all_options():
    options = {one.name: one.default for one in schema(FitConfig)}
    for head in get_args(HeadName):
        FitConfig(**options | {"head": head})
    assert set(chain.from_iterable(HEADS_WITH.values())) <= set(get_args(HeadName))


def test_the_sigma_of_a_process_is_calibrated_on_groups_it_had_not_seen(case, tmp_path):
    sigma = fit(case, tmp_path / "run", head="kernel")["sigma"]
    assert sigma["calibrated"]
    assert sigma["groups"] >= 5
    assert sigma["coverage"]["90"] > 0.6
