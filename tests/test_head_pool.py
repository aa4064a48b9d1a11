"""Tasks of a fit in several threads: the same results, one error, signals, one bar."""

import os
import signal
import threading
from functools import partial

import pytest
import torch
from chunks import set_cores
from drawn import COMPOSITION, draw_pairs
from marks import in_ci
from threadpoolctl import threadpool_info

import abag
from abag.core.cores import SMALL_FOLD_PAIRS, count_threads
from abag.core.messages import bar, reporting, tell_share
from abag.head.training import tasks as tasks_of_fits
from abag.head.training.networks import matrix_threads
from abag.head.training.tasks import Stage, Stopped, Task, Work, delayed_signals, run_tasks


def wait(event):
    assert event.wait(20)


def test_two_tasks_run_at_once_in_two_threads():
    met = threading.Barrier(2)
    order = []

    def meet():
        met.wait(20)
        order.append(threading.current_thread())

    run_tasks(Stage("fit", [Task(meet)] * 2, 2))
    assert len(set(order)) == 2


@pytest.mark.parametrize(("cores", "pairs"), [(1, 10), (8, SMALL_FOLD_PAIRS + 1)])
def test_one_core_or_a_large_fold_runs_in_this_thread(cores, pairs):
    threads = []
    tasks = [Task(lambda: threads.append(threading.current_thread()))] * 5
    run_tasks(Stage("fit", tasks, count_threads(len(tasks), pairs, cores)))
    assert threads == [threading.main_thread()] * 5


@pytest.mark.parametrize(("pairs", "threads"), [(SMALL_FOLD_PAIRS, 1), (SMALL_FOLD_PAIRS + 1, 3)])
def test_only_the_matrices_of_a_large_fold_use_all_cores(monkeypatch, pairs, threads):
    set_cores(monkeypatch, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with matrix_threads(pairs):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_threads_of_a_pool_divide_matrices_as_their_parent_does():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    seen = []

    def record():
        seen.append({x["num_threads"] for x in threadpool_info() if x["user_api"] == "openmp"})

    run_tasks(Stage("fit", [Task(record)] * 2, 2))
    torch.set_num_threads(before)
    assert [3 in numbers for numbers in seen] == [True] * 2  # scikit-learn has a library of its own


def train_until_stopped(begun, ended):
    """Do what a training does: go on until it is stopped, and save."""
    with delayed_signals() as received:
        begun.set()
        while not received:
            pass
        ended.append("saved")


@pytest.mark.parametrize("threads", [1, 2])
def test_trainings_of_a_stage_tell_its_bar_and_draw_none(threads):
    silent = []

    def train():
        with bar(total=1) as drawn:
            silent.append(drawn.disable)

    with reporting(bars=True):
        run_tasks(Stage("fit", [Task(train)] * 2, threads))
    assert silent == [True] * 2


class Clock:
    """Stand for the clock of tasks and bars."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def begin(work, title, tasks, threads):
    work.begin_stage(Stage(title, tasks, threads))
    return [work.begin(task) for task in tasks[:threads]]


def test_the_time_left_is_that_of_the_thread_that_ends_last(clock):
    tasks = [Task(lambda: None, weight) for weight in (10.0, 2.0, 2.0)]
    work = Work()
    long, short = begin(work, "fit", tasks, 2)
    assert work.forecast() is None
    clock.now_s += 4
    short.share = 1.0
    short.took_s = 4.0
    assert work.forecast().left_s == pytest.approx(20 - 4)  # and not (16 + 4) / 2
    long.share = 0.1  # it tells more than its weight does
    assert work.forecast().left_s == pytest.approx(36)


def test_the_time_left_of_a_kind_follows_from_tasks_of_this_kind(clock):
    slow = Task(lambda: None, 1.0, "slow")
    quick = Task(lambda: None, 1.0, "quick")
    later = Stage("all pairs", [Task(lambda: None, 3.0, "slow"), quick, quick], 1)
    work = Work([Stage("folds", [slow, quick, quick], 1), later])
    first = begin(work, "folds", [slow, quick, quick], 1)[0]
    clock.now_s += 9
    first.share = 1.0
    first.took_s = 9.0
    assert work.forecast().left_s == pytest.approx(2 * 9 + 3 * 9 + 2 * 9)
    second = work.begin(quick)
    clock.now_s += 1
    second.share = 1.0
    second.took_s = 1.0
    assert work.forecast().left_s == pytest.approx(1 + 3 * 9 + 2)


def test_what_an_earlier_session_has_done_says_nothing_about_the_speed_of_this_one(clock):
    work = Work()
    (resumed,) = begin(work, "fit", [Task(lambda: None, 5.0)], 1)
    resumed.share = 0.5
    resumed.before = 0.5
    assert work.forecast() is None
    clock.now_s += 2
    resumed.share = 0.6
    assert work.forecast().left_s == pytest.approx(8)
    assert work.forecast().before_s == pytest.approx(10)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bar_of_a_stage_counts_those_to_come(threads, capsys, monkeypatch):
    def half():
        tell_share(0.25, before=True)
        clock.now_s += 10
        tell_share(0.5)

    def draw(**options):
        return bar(**options, line_delay_s=0.0, line_interval_s=0.0)

    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr("tqdm.std.time", clock)
    monkeypatch.setattr(tasks_of_fits, "bar", draw)
    later = Stage("all pairs", [Task(lambda: None, 5.0)], 1)
    with reporting(bars=True):
        run_tasks(Stage("folds", [Task(half, 5.0)], threads), Work([later]))
    lines = capsys.readouterr().err
    # 40 s each, of which 10 were done before
    assert "folds 25%, 00:10, 01:00 left" in lines


def test_an_error_in_one_thread_stops_the_others_and_is_raised():
    begun = threading.Event()
    ended = []
    after = []
    train = partial(train_until_stopped, begun, ended)

    def fail():
        wait(begun)
        msg = "disk full"
        raise OSError(msg)

    tasks = [Task(train), Task(fail), Task(lambda: after.append("begun"))]
    with pytest.raises(OSError, match="disk full"):
        run_tasks(Stage("fit", tasks, 2))
    assert (ended, after) == (["saved"], [])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_lets_every_thread_save_and_is_raised_once_they_have(threads):
    met = threading.Barrier(threads)
    saved = []

    def train():
        with delayed_signals() as received:
            if met.wait(20) == 0:
                os.kill(os.getpid(), signal.SIGINT)
            while not received:
                pass
            saved.append(threading.current_thread())
            assert received[0] == signal.SIGINT

    with pytest.raises(KeyboardInterrupt):
        run_tasks(Stage("fit", [Task(train)] * 2, threads))
    assert len(set(saved)) == threads
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_whose_handler_raises_nothing_still_ends_the_fit():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(Stopped, match="Run the same command again"):
            run_tasks(Stage("fit", [Task(lambda: os.kill(os.getpid(), signal.SIGTERM))], 2))
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


FOLDS = {"folds": 3, "repeats": 2, "split": "random", "report": False, "device": "cpu"}
SMALL = {"widths": (8,), "epochs": 3, "batch_size": 8}


@pytest.mark.ci
@pytest.mark.parametrize(("head", "small"), [("stack", SMALL), *in_ci(("mlp", SMALL), ("gp", {}))])
def test_results_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch, head, small):
    inputs = draw_pairs(20, 3), tmp_path / "store"
    abag.embed_table(*inputs, **COMPOSITION)
    options = {"head": head, "say": print} | small | FOLDS
    for cores in (1, 4):
        set_cores(monkeypatch, cores)
        abag.fit(*inputs, tmp_path / str(cores), **options)
    for name in ("predictions.parquet", "predictor/weights.safetensors"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()
