"""A store and runs written before the code was split into sub-packages still work.

`tests/fixtures/make_run.py` wrote them with the code of commit b040d05.
"""

import json
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import abag
from abag.embed.store.maintenance import verify
from abag.head.data.demo import demo_table

FIXTURE = Path(__file__).parent / "fixtures" / "run.tar.xz"
ENCODERS = ("tiny-igt5", "tiny-esm2")
OPTIONS = {
    "split": "random", "members": 2, "widths": (6, 4), "batch_size": 16, "epochs": 6,
    "save_every": 5, "seed": 3, "report": False, "say": lambda _text: None,
}  # fmt: skip
"""As in make_run.py."""


@pytest.fixture(autouse=True)
def old(tmp_path, monkeypatch):
    """Unpack the old files, and work in their folder: a run remembers its table by name."""
    with tarfile.open(FIXTURE) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return Path("run")


def shards(store):
    return {path: path.read_bytes() for path in store.rglob("*.h5")}


def test_an_old_store_is_verified_read_and_extended_without_touching_its_shards(old):
    before = shards(old / "store")
    assert not verify(abag.open_store(old / "store"))
    again = abag.embed_table(old / "pairs.csv", old / "store", *ENCODERS)
    assert again["antibodies"]["encoded"] == again["antigens"]["encoded"] == 0
    more = abag.embed_table(demo_table(7).head(70), old / "store", *ENCODERS)
    assert more["antibodies"]["reused"] == again["antibodies"]["unique"]
    assert 0 < more["antibodies"]["encoded"] < 10
    after = shards(old / "store")
    assert {path: after[path] for path in before} == before


def test_stored_vectors_equal_those_of_a_store_written_now(old):
    table = pd.read_csv(old / "pairs.csv").fillna("")
    abag.embed_table(table, "new-store", *ENCODERS)
    antibodies = list(zip(table["heavy"], table["light"], strict=True))
    for kind, sequences in (("antibody", antibodies), ("antigen", list(table["antigen"]))):
        stores = (abag.open_store(old / "store"), abag.open_store("new-store"))
        before, now = (store.vectors(kind, sequences, pooling="mean") for store in stores)
        assert abs(before - now).max() <= 1e-3 * abs(before).max()


def test_a_finished_old_run_has_nothing_left_to_do(old):
    before = {p: p.read_bytes() for p in (old / "finished").rglob("*") if p.is_file()}
    summary = abag.fit(old / "pairs.csv", old / "store", old / "finished", **OPTIONS)
    assert summary == json.loads((old / "finished" / "summary.json").read_text())
    assert {p: p.read_bytes() for p in (old / "finished").rglob("*") if p.is_file()} == before


def test_a_stopped_old_run_resumes_to_the_result_of_the_unbroken_one(old):
    stopped = old / "stopped"
    assert not (stopped / "summary.json").exists()
    summary = abag.fit(old / "pairs.csv", old / "store", stopped, **OPTIONS)
    assert summary["resumed_from_step"] == 10
    unbroken, resumed = (
        pd.read_parquet(run / "predictions.parquet") for run in (old / "finished", stopped)
    )
    # another processor may round differently; on one machine the two are equal bit for bit
    # older runs saved no antigen_cluster
    assert_frame_equal(resumed[list(unbroken.columns)], unbroken, rtol=1e-4)


def test_an_old_run_is_evaluated_and_predicts_as_it_did(old):
    evaluated = abag.evaluate(old / "finished", say=lambda _text: None)
    fitted = json.loads((old / "finished" / "summary.json").read_text())
    for part, scores in fitted["metrics"].items():  # metrics were added since
        now = evaluated["metrics"][part]
        assert {name: now[name] for name in scores} == pytest.approx(scores)
    abag.predict(old / "pairs.csv", old / "finished", "scored.csv", store=old / "store")
    scored, expected = pd.read_csv("scored.csv"), pd.read_csv(old / "predicted.csv")
    expected = expected.drop(columns="sigma")  # was not calibrated, and is no longer written
    number = ["pkd_predicted"]
    assert_frame_equal(scored[number], expected[number], rtol=1e-4)
    assert_frame_equal(scored.drop(columns=number), expected.drop(columns=number))


def test_an_old_predictor_uses_a_new_store_without_encoding_its_vectors_again(old):
    abag.embed_table(old / "pairs.csv", "new-store", *ENCODERS)
    before = shards(Path("new-store"))
    assert not before.keys() & shards(old / "store").keys()
    predictor = abag.load_predictor(old / "finished")
    pairs = pd.read_csv(old / "pairs.csv").fillna("").head(5)
    arguments = [pairs[name].tolist() for name in ("heavy", "light", "antigen")]
    scored = predictor.predict(*arguments, store="new-store")
    assert shards(Path("new-store")) == before
    expected = predictor.predict(*arguments, store=old / "store")
    assert_frame_equal(scored, expected, rtol=1e-3)


def test_an_old_store_serves_a_predictor_whose_vectors_are_in_a_new_store(old):
    abag.embed_table(demo_table(7).head(70), old / "store", *ENCODERS)  # finds out it is the same
    abag.embed_table(old / "pairs.csv", "new-store", *ENCODERS)
    abag.fit(old / "pairs.csv", "new-store", "new-run", **OPTIONS)
    before = shards(old / "store")
    predictor = abag.load_predictor("new-run")
    pairs = pd.read_csv(old / "pairs.csv").fillna("").head(5)
    arguments = [pairs[name].tolist() for name in ("heavy", "light", "antigen")]
    predictor.predict(*arguments, store=old / "store")
    assert shards(old / "store") == before


def test_the_report_of_an_old_run_is_written_without_what_it_did_not_save(old):
    left_out = abag.report(old / "finished", say=lambda _text: None)["left_out"]
    assert any("differences to the baselines" in part for part in left_out)
    html = (old / "finished/report.html").read_text()
    assert "Test scores of the head and the baselines" in html
    assert 'data-csv="differences"' not in html
