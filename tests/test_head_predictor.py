import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import abag
from abag.embed.sequences import read_pairs
from abag.embed.store import open_store
from abag.head.bundle import PredictorDamaged, load_predictor
from abag.head.predictor import VectorsMissing

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
QUICK = {
    "split": "random", "report": False, "widths": (8,), "epochs": 3, "batch_size": 16,
    "device": "cpu", "say": lambda _text: None,
}  # fmt: skip


def add_vectors(store, frame, *, fingerprint="ab" * 16, shift=0.0):
    table = read_pairs(frame)
    opened = open_store(store, create=True)
    for kind, unique in (("antibody", table.antibodies), ("antigen", table.antigens)):
        # a function of the sequence, so that two calls agree
        x_ND = unique.keys[:, :6].astype(np.float32) / 64 + shift
        folder = opened.create_folder(kind, {"name": "drawn", "fingerprint": fingerprint})
        with folder.writer(attrs={"precision": "fp32"}) as writer:
            writer.add(unique.keys, np.full(len(x_ND), 15, np.int32), {"mean": x_ND})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    at = tmp_path_factory.mktemp("predictor")
    rng = np.random.default_rng(0)
    heavy = ["".join(rng.choice(RESIDUES, 15)) for _ in range(20)]
    antigen = ["".join(rng.choice(RESIDUES, 15)) for _ in range(3)]
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigen], columns=["heavy", "antigen"])
    frame["pKd"] = 8 + rng.normal(size=len(frame))
    add_vectors(at / "store", frame)
    abag.fit(frame, at / "store", at / "run", **QUICK)
    return SimpleNamespace(at=at, frame=frame, run=at / "run", store=at / "store")


def predict(case, frame, **options):
    predictor = load_predictor(case.run)
    return predictor.predict(heavy=list(frame["heavy"]), antigen=list(frame["antigen"]), **options)


def test_a_predictor_repeats_what_the_run_predicted(trained):
    table = read_pairs(trained.frame)
    found = predict(trained, trained.frame).assign(
        antibody_key=[k.tobytes().hex() for k in table.antibodies.keys[table.antibodies.of_row]],
        antigen_key=[k.tobytes().hex() for k in table.antigens.keys[table.antigens.of_row]],
    )
    wrote = pd.read_parquet(trained.run / "predictions.parquet")
    both = wrote.merge(found, on=["antibody_key", "antigen_key"], suffixes=("_run", ""))
    assert len(both) == len(trained.frame)
    np.testing.assert_allclose(both["pkd_predicted"], both["pkd_predicted_run"], atol=1e-5)


def test_rows_keep_their_order_and_repeats_their_value(trained):
    picked = trained.frame.iloc[[5, 0, 5]].reset_index(drop=True)
    found = predict(trained, picked)
    whole = predict(trained, trained.frame)
    assert found["pkd_predicted"].tolist() == pytest.approx(
        whole["pkd_predicted"][[5, 0, 5]].tolist()
    )
    assert found["pkd_predicted"][0] == found["pkd_predicted"][2]


def test_one_antigen_serves_all_antibodies(trained):
    heavy = list(trained.frame["heavy"][:4])
    found = load_predictor(trained.run).predict(heavy=heavy, antigen=trained.frame["antigen"][0])
    assert len(found) == 4
    assert (found["sigma"] > 0).all()


def test_training_sequences_are_near_and_strange_ones_are_far(trained):
    near = predict(trained, trained.frame)
    assert near["far_antibody"].mean() < 0.1
    strange = pd.DataFrame({"heavy": ["W" * 15], "antigen": ["P" * 15], "pKd": [7.0]})
    other = trained.at / "strange"
    add_vectors(other, strange, shift=50.0)
    found = predict(trained, strange, store=other)
    assert found["far_antibody"].all()
    assert found["far_antigen"].all()


def test_a_bundle_alone_gives_the_same_bits_in_another_process(trained, tmp_path):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for path in (trained.run / "predictor").iterdir():
        (bundle / path.name).write_bytes(path.read_bytes())
    script = (
        "import sys, abag, json; p = abag.load_predictor(sys.argv[1]);"
        "f = p.predict(heavy=[sys.argv[3]], antigen=sys.argv[4], store=sys.argv[2]);"
        "print(f['pkd_predicted'][0].hex())"
    )
    row = trained.frame.iloc[0]
    command = [sys.executable, "-c", script, bundle, trained.store, row["heavy"], row["antigen"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    here = predict(trained, trained.frame[:1])["pkd_predicted"][0]
    assert float.fromhex(done.stdout.strip()) == here


def test_a_sequence_without_a_vector_is_refused_with_what_to_do(trained):
    new = pd.DataFrame({"heavy": ["W" * 15], "antigen": [trained.frame["antigen"][0]]})
    with pytest.raises(VectorsMissing, match=r"1 of 1 antibody .* abag embed"):
        predict(trained, new)


def test_vectors_of_another_encoder_are_never_used(trained, tmp_path):
    add_vectors(tmp_path / "other", trained.frame, fingerprint="cd" * 16)
    with pytest.raises(abag.AbagError, match="abab"):
        predict(trained, trained.frame, store=tmp_path / "other")


def test_nothing_in_a_bundle_is_dated(trained, tmp_path):
    abag.fit(trained.frame, trained.store, tmp_path / "again", **QUICK)
    for name in ("weights.safetensors", "predictor.json"):
        one, other = (run / "predictor" / name for run in (trained.run, tmp_path / "again"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no weights", "no json", "half json"])
def test_a_tampered_or_truncated_bundle_is_refused(trained, tmp_path, damage):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    weights = (trained.run / "predictor/weights.safetensors").read_bytes()
    record = (trained.run / "predictor/predictor.json").read_text()
    if damage != "no weights":
        changed = {"truncated": weights[:-4], "flipped": weights[:-1] + bytes([weights[-1] ^ 1])}
        (bundle / "weights.safetensors").write_bytes(changed.get(damage, weights))
    if damage != "no json":
        (bundle / "predictor.json").write_text(record[:40] if damage == "half json" else record)
    with pytest.raises(PredictorDamaged):
        load_predictor(bundle)


def test_a_bundle_of_another_schema_is_refused(trained, tmp_path):
    record = json.loads((trained.run / "predictor/predictor.json").read_text())
    (tmp_path / "predictor.json").write_text(json.dumps(record | {"schema": 99}))
    with pytest.raises(PredictorDamaged, match="schema 1"):
        load_predictor(tmp_path)
