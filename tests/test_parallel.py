"""Calls from several threads and processes at once, as services and notebooks make them."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import COMPOSITION, demo_table
from workers import embed_part, predict_part

import abag

WORKERS = 3


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A run, and the predictions for pairs of which its store lacks most."""
    folder = tmp_path_factory.mktemp("parallel")
    table = demo_table().head(90)
    abag.embed_table(table.head(60), folder / "store", say=False, **COMPOSITION)
    run = folder / "run"
    abag.fit(table.head(60), folder / "store", run, head="ridge", report=False, say=False)
    expected = abag.predict(table, run, store=folder / "alone", say=False)["pkd_predicted"]
    return SimpleNamespace(folder=folder, run=run, table=table, expected=expected.tolist())


def shares(table):
    """Return rows for each worker, of which neighbours share two thirds."""
    return [table.iloc[10 * worker : 10 * worker + 60] for worker in range(WORKERS)]


def executor(kind):
    if kind == "threads":
        return ThreadPoolExecutor(WORKERS)
    # a process that is spawned imports torch for seconds
    return ProcessPoolExecutor(2 if kind == "spawn" else WORKERS, multiprocessing.get_context(kind))


@pytest.mark.parametrize("kind", ["threads", "fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_several_workers_predict_and_read_into_one_store_at_once(case, tmp_path, kind):
    store = tmp_path / "store"
    parts = shares(case.table)
    with executor(kind) as workers:
        futures = [workers.submit(predict_part, case.run, store, part) for part in parts]
        results = [future.result(timeout=120) for future in futures]
    for worker, (predicted, vectors) in enumerate(results):
        expected = case.expected[10 * worker : 10 * worker + 60]
        assert predicted == pytest.approx(expected, rel=1e-12)  # products of other shapes
        assert np.isfinite(vectors).all()


@pytest.mark.parametrize("kind", ["threads", "fork"])
def test_several_workers_embed_into_one_store_and_it_holds_each_sequence(case, tmp_path, kind):
    with executor(kind) as workers:
        for done in [
            workers.submit(embed_part, tmp_path / "s", part) for part in shares(case.table)
        ]:
            done.result(timeout=120)
    missing = abag.embed_table(case.table.head(80), tmp_path / "s", say=False, **COMPOSITION)
    assert missing["antibodies"]["encoded"] == missing["antigens"]["encoded"] == 0


def test_messages_of_a_thread_go_to_its_own_function(case, tmp_path):
    def embed(worker):
        lines = []
        part = shares(case.table)[worker]
        abag.embed_table(part, tmp_path / f"store-{worker}", say=lines.append, **COMPOSITION)
        return lines

    with ThreadPoolExecutor(WORKERS) as workers:
        said = [*workers.map(embed, range(WORKERS))]
    for lines in said:
        assert sum("60 rows" in line for line in lines) == 1
