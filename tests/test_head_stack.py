"""Heads in closed form and stacks as heads of a run: fit, bundle, resume, predict."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import abag
from abag.core.options import BadOption
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store
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
        folder = store.create_folder(kind, {"name": "drawn", "fingerprint": "ab" * 16})
        with folder.writer(attrs={"precision": "fp32"}) as writer:
            writer.add(unique.keys, np.full(len(x_ND), 15, np.int32), {"mean": x_ND})
    frame["pKd"] = 8 + value + 0.2 * rng.normal(size=len(frame))
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


def fit(case, run, **options):
    return abag.fit(case.frame, case.store, run, **QUICK | options)


def same_predictions(run, case):
    """Whether the bundle of a run predicts what its fit wrote for the only fold."""
    written = pd.read_parquet(run / "predictions.parquet")
    predictor = load_predictor(run)
    keys = [
        np.stack(written[f"{kind}_key"].map(bytes.fromhex).map(list))
        for kind in ("antibody", "antigen")
    ]
    found = predictor.predict_keys(open_store(case.store), *(k.astype(np.uint8) for k in keys))
    for name in ("pkd_predicted", "sigma"):
        np.testing.assert_allclose(found[name], written[name], rtol=1e-4)


@pytest.mark.parametrize("head", ["ridge", "kernel", "gp", "stack", "auto"])
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
    assert rmse.keys() == {"kernel", "gp", "ridge", "network", "mean", "stack"}
    best = min(rmse, key=rmse.get)
    assert rmse[best] <= rmse["ridge"] < 0.5 < rmse["mean"]
    if best != "stack":
        assert summary["shares"][best] == 1


@pytest.mark.parametrize("head", ["ridge", "kernel", "gp"])
def test_members_of_a_head_in_closed_form_are_refused(case, tmp_path, head):
    with pytest.raises(BadOption, match=f'members: 4, but head="{head}" is fitted in closed form'):
        fit(case, tmp_path / "run", head=head, members=4)
    assert not (tmp_path / "run").exists()


def test_the_sigma_of_a_process_is_calibrated_on_groups_it_had_not_seen(case, tmp_path):
    sigma = fit(case, tmp_path / "run", head="kernel")["sigma"]
    assert sigma["calibrated"]
    assert sigma["groups"] >= 5
    assert sigma["coverage"]["90"] > 0.6
