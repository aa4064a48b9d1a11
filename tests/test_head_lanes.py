"""Tasks of a fit in several threads: the same results, one error, signals, one bar."""

import os
import platform
import signal
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import abag
from abag.core import messages
from abag.core.messages import part_of_stage, reporting, stage, whole_bar
from abag.head import fit_run as fit_module
from abag.head.evaluation.baselines import BaselineInputs
from abag.head.model.layers import _Dropout
from abag.head.training import lanes, torch_settings
from abag.head.training.lane_count import LANE_PAIRS
from abag.head.training.lanes import Task, run_in_lanes
from abag.head.training.loop import Stopped, delayed_signals
from abag.head.training.torch_settings import keep_freed_memory, matrix_threads


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(lanes, "count_cores", lambda: 2)


def wait(event):
    assert event.wait(20)


def test_two_tasks_run_at_once_and_own_ones_first_in_this_thread(two_cores):
    met, order = threading.Barrier(2), []

    def meet():
        met.wait(20)
        order.append(threading.current_thread())

    own = Task(meet, 0.5)
    run_in_lanes([own], [Task(meet, 0.5)], 10)
    assert len(set(order)) == 2
    run_in_lanes([own._replace(run=lambda: order.append("own"))], [], 10)
    assert order[2:] == ["own"]


@pytest.mark.parametrize(("cores", "pairs"), [(1, 10), (8, LANE_PAIRS + 1)])
def test_one_core_or_a_large_fold_has_one_lane(monkeypatch, cores, pairs):
    monkeypatch.setattr(lanes, "count_cores", lambda: cores)
    found = []
    tasks = [Task(lambda: found.append(threading.current_thread()), 0.2) for _ in range(5)]
    run_in_lanes([], tasks, pairs)
    assert found == [threading.main_thread()] * 5


@pytest.mark.parametrize(("pairs", "threads"), [(LANE_PAIRS, 1), (LANE_PAIRS + 1, 3)])
def test_only_the_matrices_of_a_large_fold_use_all_cores(monkeypatch, pairs, threads):
    monkeypatch.setattr(torch_settings, "count_cores", lambda: 3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with matrix_threads(pairs):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.parametrize("pairs", [10, LANE_PAIRS + 1])
def test_what_runs_beside_has_a_thread_of_its_own_at_any_size(two_cores, pairs):
    met, order = threading.Barrier(2), []

    def meet(name):
        met.wait(20)
        order.append((name, threading.current_thread() is threading.main_thread()))

    tasks = [[Task(lambda name=name: meet(name), 0.2)] * 3 for name in ("own", "beside")]
    run_in_lanes(tasks[0], [], pairs, beside=tasks[1])
    assert sorted(order) == [("beside", False)] * 3 + [("own", True)] * 3


def test_an_error_beside_stops_a_training_which_saves(two_cores):
    begun, ended = threading.Event(), []
    train = partial(train_until_stopped, begun, ended)

    def fail():
        wait(begun)
        msg = "memory"
        raise MemoryError(msg)

    with pytest.raises(MemoryError, match="memory"):
        run_in_lanes([Task(train, 0.5)], [], LANE_PAIRS + 1, beside=[Task(fail, 0.5)])
    assert ended == ["saved"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_what_a_finished_task_has_freed_is_given_back_to_the_system(two_cores):
    keep_freed_memory()
    before = resident_mib()

    def fill():
        blocks = [np.ones(2**17) for _ in range(128)]  # 1 MiB each
        assert resident_mib() > before + 100
        del blocks

    run_in_lanes([], [Task(fill, 0.5), Task(fill, 0.5)], 10)
    assert resident_mib() < before + 60


def train_until_stopped(begun, ended):
    """Do what a training does: go on until it is stopped, and save."""
    with delayed_signals() as received:
        begun.set()
        while not received:
            pass
        ended.append("saved")


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_an_error_in_one_lane_stops_the_others_and_is_raised(two_cores):
    begun, ended, after = threading.Event(), [], []
    train = partial(train_until_stopped, begun, ended)

    def fail():
        wait(begun)
        msg = "disk full"
        raise OSError(msg)

    tasks = [Task(run, 0.3) for run in (train, fail, lambda: after.append("begun"))]
    with pytest.raises(OSError, match="disk full"):
        run_in_lanes([], tasks, 10)
    assert (ended, after) == (["saved"], [])


def test_a_signal_lets_every_lane_save_and_is_raised_once_they_have(two_cores):
    met, saved = threading.Barrier(2), []

    def train():
        with delayed_signals() as received:
            if met.wait(20) == 0:
                os.kill(os.getpid(), signal.SIGINT)
            while not received:
                pass
            saved.append(threading.current_thread())
            assert received[0] == signal.SIGINT

    with pytest.raises(KeyboardInterrupt):
        run_in_lanes([], [Task(train, 0.5)] * 2, 10)
    assert len(set(saved)) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_whose_handler_raises_nothing_still_ends_the_fit(two_cores):
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(Stopped, match="Run the same command again"):
            run_in_lanes([], [Task(lambda: os.kill(os.getpid(), signal.SIGTERM), 1.0)], 10)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored_while_training():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with delayed_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not received
    finally:
        signal.signal(signal.SIGHUP, before)


def test_parts_of_a_stage_in_any_order_fill_its_share_of_the_bar(monkeypatch):
    drawn = []
    monkeypatch.setattr(messages.tqdm, "update", lambda _bar, n: drawn.append(n))
    with reporting(bars=True), whole_bar("fit"):
        stage("training", 0.8)
        with part_of_stage(0.25), messages.bar(total=4) as steps:
            steps.update(2)
        with part_of_stage(0.75), part_of_stage(0.5):
            stage("inside", 1.0)
    # from 0, as nothing moves the bar: the stage begins, half of the first part, all of it ...
    assert drawn == pytest.approx([0.0, 0.1, 0.2, 0.5, 0.8])


def test_stacked_heads_with_a_generator_of_their_own_drop_what_torch_would():
    dropout, ones = _Dropout([0.3, 0.5]), torch.ones(2, 4, 3)
    torch.manual_seed(7)
    expected = dropout(ones)
    dropout.generator = torch.Generator().manual_seed(7)
    torch.testing.assert_close(dropout(ones), expected, rtol=0, atol=0)


def small_table(folder):
    rng = np.random.default_rng(0)
    heavy = ["".join(rng.choice(list("ACDEFGHIKLMN"), 12)) for _ in range(20)]
    antigen = ["".join(rng.choice(list("ACDEFGHIKLMN"), 12)) for _ in range(3)]
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigen], columns=["heavy", "antigen"])
    frame["pKd"] = 8 + rng.normal(size=len(frame))
    frame.to_csv(folder / "pairs.csv", index=False)
    inputs = folder / "pairs.csv", folder / "store"
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(*inputs, **encoders)
    return inputs


FOLDS = {"folds": 3, "repeats": 2, "split": "random", "report": False, "device": "cpu"}


SMALL = {"widths": (8,), "epochs": 3, "batch_size": 8}


@pytest.mark.parametrize(("head", "small"), [("stack", SMALL), ("mlp", SMALL), ("gp", {})])
def test_results_do_not_depend_on_the_number_of_lanes(tmp_path, monkeypatch, head, small):
    inputs = small_table(tmp_path)
    options = {"head": head, "say": print} | small | FOLDS
    for cores in (1, 4):
        monkeypatch.setattr(lanes, "count_cores", lambda cores=cores: cores)
        abag.fit(*inputs, tmp_path / str(cores), **options)
    for name in ("predictions.parquet", "predictor/weights.safetensors"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()


def test_baselines_prepared_beside_a_gpu_are_those_of_a_cpu(tmp_path, monkeypatch):
    inputs, prepared = small_table(tmp_path), []
    abag.fit(*inputs, tmp_path / "cpu", head="ridge", **FOLDS)
    real_fit, real_prepare = fit_module.fit_heads, BaselineInputs.prepare

    def prepare(of_split):
        prepared.append(threading.current_thread() is threading.main_thread())
        real_prepare(of_split)

    monkeypatch.setattr(BaselineInputs, "prepare", prepare)
    # neither "cpu" nor "cuda": the tasks of a GPU, with the arithmetic of a CPU
    gpu = SimpleNamespace(type="other")
    monkeypatch.setattr(fit_module, "fit_heads", lambda folds: real_fit(folds._replace(device=gpu)))
    abag.fit(*inputs, tmp_path / "gpu", head="ridge", **FOLDS)
    assert sorted(prepared) == [False] * 6 + [True] * 6  # before, and where they are used
    cpu, beside = (
        pd.read_parquet(tmp_path / name / "baselines.parquet") for name in ("cpu", "gpu")
    )
    pd.testing.assert_frame_equal(cpu, beside, check_exact=False, rtol=1e-9)
