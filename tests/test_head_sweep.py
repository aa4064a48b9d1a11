import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import invoke
import numpy as np
import pandas as pd
import pytest
from drawn import fill_store, planted_table
from faults import raising, stop_after
from heads import MODELS, PairVectors, TrainingRows, inner_folds, read_sequences
from marks import in_ci
from optuna.storages.journal import JournalFileBackend
from scipy.stats import spearmanr
from sklearn.metrics import log_loss

import abag
from abag import (
    DamagedFile,
    FitConfig,
    LabelError,
    MissingPackage,
    OptionError,
    OutputError,
    RunError,
    SplitError,
)
from abag.head import sweep
from abag.head.models.pair_vectors import SideVectors
from abag.head.models.probit import HeldOutClasses, latent_labels
from abag.head.sweep import BATCH_PARAMETERS, LOGARITHMIC, RANGES, SHAPES, score_batch
from abag.head.training.inputs import read_inputs

QUICK = {"split": "antigen", "epochs": 4, "device": "cpu", "trials": 8}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Pairs whose pKd is a sum of one number per sequence, which ``mean`` contains."""
    folder = tmp_path_factory.mktemp("planted")
    frame = planted_table(12, 12).drop(columns="part")
    frame.to_csv(folder / "pairs.csv", index=False)
    store = fill_store(folder / "store", frame)
    return SimpleNamespace(table=folder / "pairs.csv", store=store, frame=frame)


@pytest.fixture(autouse=True, scope="module")
def _small_shapes():
    # as many shapes, cheap enough for one core; heads in closed form have their own tests
    with pytest.MonkeyPatch.context() as patch:
        for name in SHAPES:
            patch.setitem(SHAPES, name, {"head": "mlp", "widths": (16,)})
        patch.setattr("abag.head.runs.report.write_report", lambda *_: None)  # seconds each
        yield


def quick_sweep(case, folder, **options):
    said = []
    options = QUICK | {"say": said.append} | options
    return abag.sweep(case.table, case.store, folder, **options), said


@pytest.fixture(scope="module")
def done(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "done"
    summary, said = quick_sweep(case, folder, trials=40, epochs=8, seed=3)
    return SimpleNamespace(folder=folder, summary=summary, said=said)


@pytest.mark.ci
def test_a_sweep_finds_the_informative_pooling(done):
    best = done.summary["best"]["params"]
    assert (best["antibody_pooling"], best["antigen_pooling"]) == ("mean", "mean")
    assert done.summary["best"]["value"] > 0.5


def test_a_sweep_counts_its_trials_and_writes_its_files(done):
    assert sum(done.summary["trials"].values()) == 40
    frame = pd.read_csv(done.folder / "trials.csv")
    assert len(frame) == 40
    assert {"trial", "value", "state", "lr", "shape"} <= set(frame)
    assert not list(done.folder.glob("*.partial"))
    values = [trial["value"] for trial in done.summary["best_trials"]]
    assert values == sorted(values, reverse=True)
    assert "--final" in sweep.describe_trials(done.summary)
    assert "held out" in " ".join(done.said)


def test_a_finished_sweep_has_nothing_to_search_and_returns_the_same_summary(case, done):
    before = (done.folder / "journal.log").read_bytes()
    again, said = quick_sweep(case, done.folder, trials=40, epochs=8, seed=3)
    assert again == done.summary
    assert any("nothing to do" in text for text in said)
    assert (done.folder / "journal.log").read_bytes() == before


def test_the_seed_determines_a_sweep(case, tmp_path):
    runs = [quick_sweep(case, tmp_path / str(k), seed=k // 2, split_seed=0)[0] for k in range(3)]
    first, again, other = (run["best_trials"] for run in runs)
    assert first == again
    assert first != other


def test_trials_of_a_batch_share_the_batch_parameters(done):
    frame = pd.read_csv(done.folder / "trials.csv")
    for start in range(0, 40, 8):
        batch = frame[start : start + 8]
        assert all(batch[name].nunique() == 1 for name in BATCH_PARAMETERS)
        assert batch["lr"].nunique() == 8


@pytest.mark.ci
def test_labels_of_the_test_part_do_not_affect_the_search(case, tmp_path):
    first, _ = quick_sweep(case, tmp_path / "first", final=True, members=2)
    parts = pd.read_parquet(tmp_path / "first/final/splits.parquet")
    table = read_sequences(case.table)
    keys = [bytes(k).hex() for k in table.antigens.keys]
    tested = set(parts[parts["split"] == "test"]["antigen_key"])
    rows = np.isin([keys[i] for i in table.antigens.of_row], list(tested))
    assert rows.sum() == (parts["split"] == "test").sum()
    changed = case.frame.copy()
    changed.loc[rows, "pKd"] = 20 - changed.loc[rows, "pKd"]
    other, _ = quick_sweep(
        SimpleNamespace(table=changed, store=case.store), tmp_path / "other", final=True, members=2
    )
    assert other["best_trials"] == first["best_trials"]
    (first_regime,) = first["final"]["regimes"]
    (other_regime,) = other["final"]["regimes"]
    assert first_regime["n"] == other_regime["n"] == rows.sum()
    assert first_regime["rmse"] != other_regime["rmse"]


def test_the_final_run_is_an_ordinary_run_of_the_winner_and_closes_the_sweep(case, tmp_path):
    quick_sweep(case, tmp_path / "s")
    summary, _ = quick_sweep(case, tmp_path / "s", trials=None, final=True, members=3)
    config = json.loads((tmp_path / "s/final/config.json").read_text())
    best = summary["best"]["params"]
    assert (config["lr"], config["loss"]) == (best["lr"], best["loss"])
    assert config["members"] == 3
    assert summary["final"]["regimes"][0]["n"] > 0
    assert config["head"] == "stack"  # with the winner's network
    again, said = quick_sweep(case, tmp_path / "s", trials=None, final=True, members=3)
    assert again["final"] == summary["final"]
    assert any("nothing to do" in text for text in said)
    given = ["--split", "antigen", "--epochs", "4", "--device", "cpu", "--final", "--members", "3"]
    at = ["--store", case.store, "--sweep", tmp_path / "s"]
    shown = invoke.run("sweep", case.table, *at, *given).stdout
    assert f"predictor  {tmp_path / 's' / 'final' / 'predictor'}" in shown.splitlines()
    with pytest.raises(RunError, match="the test part has been scored"):
        quick_sweep(case, tmp_path / "s", trials=100)


def test_a_sweep_that_has_moved_goes_on(case, tmp_path):
    summary, _ = quick_sweep(case, tmp_path / "s", final=True, members=2)
    (tmp_path / "s").rename(tmp_path / "moved")
    again, said = quick_sweep(case, tmp_path / "moved", final=True, members=2)
    assert again["final"]["regimes"] == summary["final"]["regimes"]
    assert sum("nothing to do" in text for text in said) == 2


@pytest.mark.ci
def test_a_stopped_final_run_begins_again_if_another_trial_is_best_by_now(
    case, tmp_path, monkeypatch
):
    quick_sweep(case, tmp_path / "s")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            quick_sweep(case, tmp_path / "s", final=True, members=2, save_every=1)
    assert list((tmp_path / "s/final").rglob("latest"))
    best = {"shape": next(iter(SHAPES)), "loss": "mse", "dropout": 0.125, "lr": 0.00125}
    best |= {"weight_decay": 0.5, "antibody_pooling": "mean", "antigen_pooling": "mean"}
    monkeypatch.setattr(sweep, "used_parameters", lambda _: {**best})
    for _ in range(2):
        summary, said = quick_sweep(case, tmp_path / "s", final=True, members=2, save_every=1)
    config = json.loads((tmp_path / "s/final/config.json").read_text())
    assert (config["lr"], config["dropout"]) == (0.00125, 0.125)
    assert sum("nothing to do" in text for text in said) == 2
    assert summary["final"]["regimes"][0]["n"] > 0


def trials_of(folder):
    """Return what the trials are and scored."""
    return pd.read_csv(folder / "trials.csv")


@pytest.fixture(scope="module")
def unbroken(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "s"
    quick_sweep(case, folder, trials=24, epochs=2)
    return trials_of(folder)


@pytest.mark.ci
@pytest.mark.parametrize("stopped_at", [0, 5, 61, 159, 173, *in_ci(1, 6, 40, 100, 150, 161, 171)])
def test_a_sweep_that_was_stopped_at_any_record_has_the_trials_of_an_unbroken_one(
    case, tmp_path, monkeypatch, unbroken, stopped_at
):
    real = JournalFileBackend.append_logs
    written = []

    def stop_at(self, logs):
        if len(written) == stopped_at:
            raise KeyboardInterrupt
        written.append(1)
        real(self, logs)

    with monkeypatch.context() as patch:
        patch.setattr(JournalFileBackend, "append_logs", stop_at)
        with pytest.raises(KeyboardInterrupt):
            quick_sweep(case, tmp_path / "s", trials=24, epochs=2)
    quick_sweep(case, tmp_path / "s", trials=24, epochs=2)
    pd.testing.assert_frame_equal(trials_of(tmp_path / "s"), unbroken)


def test_a_sweep_that_was_stopped_while_it_scored_has_the_trials_of_an_unbroken_one(
    case, tmp_path, monkeypatch, unbroken
):
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        with pytest.raises(KeyboardInterrupt):
            quick_sweep(case, tmp_path / "s", trials=24, epochs=2)
    summary, _ = quick_sweep(case, tmp_path / "s", trials=24, epochs=2)
    assert summary["trials"].keys() == {"complete"}
    pd.testing.assert_frame_equal(trials_of(tmp_path / "s"), unbroken)


def test_trials_that_an_error_ended_are_not_repeated(case, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 9, error=MemoryError)
        with pytest.raises(MemoryError):
            quick_sweep(case, tmp_path / "s", trials=12)
    summary, _ = quick_sweep(case, tmp_path / "s", trials=12)
    assert "failed" in sweep.describe_trials(summary)
    assert summary["trials"].pop("fail") in (4, 8)
    assert sum(summary["trials"].values()) == 12


CHILD = """
import sys, abag
from abag.head.sweep import SHAPES
SHAPES.update(dict.fromkeys(SHAPES, {"head": "mlp", "widths": (8, 4)}))
abag.sweep(sys.argv[1], sys.argv[2], sys.argv[3], split="antigen", epochs=2, device="cpu",
           trials=int(sys.argv[4]))
"""


CREATED = '"op_code":4'
"""In a record of the journal that creates a trial."""


def start(case, folder, trials):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, case.table, case.store, folder, str(trials)],
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_a_batch(folder, child):
    """Wait until a batch is running, or the child has ended."""
    journal = folder / "journal.log"
    while child.poll() is None:
        if journal.exists() and journal.read_text().count(CREATED) >= 8:
            time.sleep(0.2)  # Optuna waits 30 s for the lock of a process that died with it
            return
        time.sleep(0.05)


@pytest.mark.ci
def test_a_sweep_resumes_after_its_process_was_killed(case, tmp_path):
    folder = tmp_path / "s"
    with start(case, folder, 200) as killed:
        wait_for_a_batch(folder, killed)
        os.kill(killed.pid, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    wanted = (folder / "journal.log").read_text().count(CREATED) + 8
    summary, _ = quick_sweep(case, folder, epochs=2, trials=wanted)
    assert summary["trials"]["complete"] >= wanted
    assert not {"fail", "running"} & summary["trials"].keys()


def test_a_sweep_needs_no_links_which_a_mounted_drive_lacks(case, tmp_path, monkeypatch):
    for name in ("symlink", "link"):
        monkeypatch.setattr(os, name, raising(OSError(errno.ENOSYS, "no links")))
    summary, _ = quick_sweep(case, tmp_path / "s", trials=1, epochs=1)
    assert summary["trials"] == {"complete": 1}


def test_a_record_that_a_full_disk_cut_off_is_left_out(case, done, tmp_path):
    shutil.copytree(done.folder, tmp_path / "sweep")
    journal = tmp_path / "sweep" / "journal.log"
    journal.write_bytes(journal.read_bytes()[:-20])
    before = journal.read_bytes().rpartition(b"\n")[0]
    summary, _ = quick_sweep(case, tmp_path / "sweep", trials=41, epochs=8, seed=3)
    assert summary["trials"]["complete"] + summary["trials"].get("pruned", 0) >= 41
    assert journal.read_bytes().startswith(before + b"\n")


@pytest.mark.parametrize("damage", [
    lambda text: text.replace(b"trial_id", b"trial_ix", 1),
    lambda text: text[:-9] + bytes(8) + b"\n" + text[-40:],
    lambda text: text.replace(b'"op_code":0', b'"op_code":99', 1),
])  # fmt: skip
def test_a_damaged_journal_is_one_line_and_left_as_it_is(case, done, tmp_path, damage):
    shutil.copytree(done.folder, tmp_path / "sweep")
    journal = tmp_path / "sweep" / "journal.log"
    damaged = damage(journal.read_bytes())
    journal.write_bytes(damaged)
    with pytest.raises(DamagedFile, match=r"journal\.log: damaged \(.*expected a journal"):
        quick_sweep(case, tmp_path / "sweep", trials=41, epochs=8, seed=3)
    assert journal.read_bytes() == damaged


@pytest.mark.ci
def test_two_processes_share_a_sweep(case, tmp_path):
    children = [start(case, tmp_path / "s", 24) for _ in range(2)]
    for child in children:
        _, errors = child.communicate()
        assert child.returncode == 0, errors.decode()
    summary, _ = quick_sweep(case, tmp_path / "s", epochs=2, trials=24)
    frame = pd.read_csv(tmp_path / "s/trials.csv")
    assert 24 <= sum(summary["trials"].values()) <= 24 + 8  # both may ask for the last batch
    assert not frame.duplicated(["lr", "dropout"]).any()


def make_problem(case, objective="spearman", **options):
    config = FitConfig(split="antigen", epochs=8, device="cpu", **options)
    inputs = read_inputs(case.table, case.store, config)
    config, split = sweep._hold_out_test(inputs.pairs, config)
    return sweep._define_search(inputs, config, split, folds=3, objective=objective)[0]


def draw(problem, rng, count):
    """Draw a batch of trials at random, all of the same shape."""
    shared = {name: str(rng.choice(values)) for name, values in problem.choices().items()}
    batch = []
    for _ in range(count):
        drawn = {}
        for name, (low, high) in RANGES.items():
            if name in LOGARITHMIC:
                drawn[name] = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            else:
                drawn[name] = float(rng.uniform(low, high))
        batch.append(shared | drawn)
    return batch


def drawn_batch(problem, count, **shared):
    batch = draw(problem, np.random.default_rng(5), count)
    return [params | {"dropout": 0.0, **shared} for params in batch]


def test_a_trial_scores_the_same_in_a_batch_as_alone(case):
    problem = make_problem(case)
    batch = drawn_batch(problem, 3, shape="mlp 64")
    together = score_batch(problem, batch)
    for params, value in zip(batch, together, strict=True):
        assert value == pytest.approx(score_batch(problem, [params])[0], abs=0.02)


def test_parameters_of_trials_are_valid_options_of_fit(case):
    problem = make_problem(case)
    for params in draw(problem, np.random.default_rng(0), 50):
        FitConfig(**sweep.fit_options(params))
        assert all(low <= params[name] <= high for name, (low, high) in RANGES.items())


OF_NETWORKS = ("dropout", "loss", "lr", "weight_decay")


def with_closed_form(monkeypatch):
    # another dict: entries that are deleted and put back change the order, and so what is drawn
    shapes = {"mlp 64": {"head": "mlp", "widths": (8,)}}
    shapes |= {name: {"head": name} for name in sweep.ON_VECTORS}
    monkeypatch.setattr(sweep, "SHAPES", shapes)
    monkeypatch.setattr(sweep, "SHAPES", shapes)


@pytest.fixture(scope="module")
def classes(case):
    """The pairs of `case`, of which the stronger half are binders."""
    pkd = case.frame["pKd"]
    answer = np.where(pkd > pkd.median(), "binder", "non-binder")
    frame = case.frame.drop(columns="pKd").assign(binds=answer)
    return SimpleNamespace(table=frame, store=case.store, frame=frame)


def test_trials_of_classes_are_scored_by_the_log_loss_of_pairs_held_out(classes, monkeypatch):
    with_closed_form(monkeypatch)
    problem = make_problem(classes, objective=sweep.LOG_LOSS)
    informative = dict.fromkeys(sweep.POOLINGS, "mean")
    (params,) = drawn_batch(problem, 1, shape="ridge", **informative)
    pairs = problem.pairs
    vectors = sweep._vectors(problem, params)
    latent = np.empty(len(pairs))
    for fold in range(3):
        rows = np.flatnonzero(problem.fold != fold)
        labels = latent_labels(pairs, rows)
        training = TrainingRows(labels, vectors, rows, inner_folds(problem.group[rows]))
        held = problem.fold == fold
        latent[held] = MODELS["ridge"].fit(training).predict(vectors)[held]
    every = np.arange(len(pairs))
    held_out = HeldOutClasses.of(pairs, every, latent[:, None], problem.group)
    probability = held_out.expected(problem.fold)
    expected = log_loss(pairs.pkd, probability)
    assert expected < 0.95 * np.log(2)
    assert score_batch(problem, [params]) == [pytest.approx(expected, rel=1e-6)]


def test_networks_of_classes_are_searched_and_the_best_is_refitted(classes, tmp_path):
    summary, _ = quick_sweep(classes, tmp_path / "s", trials=8, final=True, members=1)
    assert summary["select"] == "log_loss"
    values = [trial["value"] for trial in summary["best_trials"]]
    assert values == sorted(values)
    assert values[0] < 0.73  # folds of 12 pairs each hardly tell a link
    assert "classes" in summary["final"]["regimes"][0]
    assert json.loads((tmp_path / "s/sweep.json").read_text())["objective"] == "log_loss"
    assert "log_loss" in sweep.describe_trials(summary)


def test_classes_can_be_searched_by_their_average_precision(classes, tmp_path):
    key = "average_precision_at_0.5"
    summary, _ = quick_sweep(classes, tmp_path / "s", select=key)
    assert summary["select"] == key
    values = [trial["value"] for trial in summary["best_trials"]]
    assert values == sorted(values, reverse=True)
    assert 0.5 < values[0] <= 1
    with pytest.raises(RunError, match="other options"):
        quick_sweep(classes, tmp_path / "s")
    # one that was begun when each fold was scored alone
    record = json.loads((tmp_path / "s/sweep.json").read_text())
    del record["folds_scored"]
    (tmp_path / "s/sweep.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="folds_scored was None and is now 'together'"):
        quick_sweep(classes, tmp_path / "s", select=key)


def test_a_head_in_closed_form_is_fitted_to_the_other_inner_folds(case, monkeypatch):
    with_closed_form(monkeypatch)
    problem = make_problem(case)
    (params,) = drawn_batch(problem, 1, shape="ridge")
    pairs = problem.pairs
    expected = []
    sides = {}
    for kind in ("antibody", "antigen"):
        x_ND = problem.vectors(kind, params[f"{kind}_pooling"]).x_ND
        sides[kind] = SideVectors(x_ND, pairs.index(kind))
    vectors = PairVectors(sides)
    for fold in range(3):
        rows = np.flatnonzero(problem.fold != fold)
        inner = inner_folds(problem.group[rows])
        assert not set(problem.group[rows]) & set(problem.group[problem.fold == fold])
        fit = MODELS["ridge"].fit(TrainingRows(pairs, vectors, rows, inner))
        held = problem.fold == fold
        predicted = fit.predict(vectors)[held]
        expected.append(spearmanr(pairs.pkd[held], predicted).statistic)
    assert score_batch(problem, [params]) == [pytest.approx(np.mean(expected))]


def test_a_sweep_can_choose_a_head_in_closed_form_and_refits_it(case, tmp_path, monkeypatch):
    with_closed_form(monkeypatch)
    options = {"trials": 12, "epochs": 1, "patience": 1}  # of the networks only
    quick_sweep(case, tmp_path / "s", **options)
    summary, _ = quick_sweep(case, tmp_path / "s", **options, final=True)
    frame = pd.read_csv(tmp_path / "s/trials.csv")
    best = summary["best"]["params"]
    assert best.keys() == {"shape", "antibody_pooling", "antigen_pooling"}
    closed = frame["shape"].isin(sweep.ON_VECTORS)
    assert frame.loc[closed, list(OF_NETWORKS)].isna().all(axis=None)
    assert frame.loc[~closed, list(OF_NETWORKS)].notna().all(axis=None)
    assert set(sweep.ON_VECTORS) & set(frame["shape"])  # nothing is left to learn in one epoch
    assert best["shape"] in sweep.ON_VECTORS
    config = json.loads((tmp_path / "s/final/config.json").read_text())
    assert (config["head"], config["members"]) == (best["shape"], 1)
    assert config["antibody_pooling"] == best["antibody_pooling"]
    assert summary["final"]["regimes"][0]["spearman"]["value"] > 0.5


def test_the_table_of_trials_shows_what_each_head_uses():
    trials = [
        {"trial": 3, "value": 0.6, "params": {"shape": "ridge", "antigen_pooling": "mean"}},
        {"trial": 0, "value": 0.5, "params": {"shape": "mlp 64", "lr": 0.01}},
    ]
    summary = {"sweep": "s", "select": "spearman", "best_trials": trials, "trials": {}}
    lines = [line.split() for line in sweep.describe_trials(summary).split("\n")]
    assert lines[:-2] == [
        ["trial", "3", "0"],
        ["spearman", "0.600", "0.500"],
        ["shape", "ridge", "mlp", "64"],
        ["antigen_pooling", "mean", "-"],
        ["lr", "-", "0.01"],
    ]


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"select": "luck"}, OptionError, "^select: 'luck' is unknown"),
    ({"lr": 0.1}, OptionError, "^lr: is chosen by sweep itself"),
    ({"head": "ridge"}, OptionError, "^head: is chosen by sweep itself"),
    ({"folds": 50}, SplitError, "^50 folds: .* only 11 groups; .* Use fewer folds, or"),
    ({"trials": None, "final": True}, RunError, "no trial is complete"),
])  # fmt: skip
def test_invalid_sweeps_are_refused(case, tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        quick_sweep(case, tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_inner_folds_without_exact_labels_are_refused_before_anything_is_written(case, tmp_path):
    part = np.resize(["test", "validation", "train", "train"], len(case.frame))
    frame = case.frame.assign(part=part, relation=np.where(part == "test", "", ">="))
    with pytest.raises(LabelError, match="all labels of the training part are censored"):
        abag.sweep(frame, case.store, tmp_path / "sweep", **{**QUICK, "split": "column=part"})
    assert not (tmp_path / "sweep").exists()


@pytest.mark.ci
def test_a_split_with_several_folds_is_refused(case, tmp_path):
    options = {"split": "random", "folds": 3, "epochs": 1, "device": "cpu", "report": False}
    abag.fit(case.table, case.store, tmp_path / "run", **options)
    with pytest.raises(SplitError, match="gives 3 folds"):
        quick_sweep(case, tmp_path / "s", split=f"file={tmp_path / 'run/splits.parquet'}")


def test_a_sweep_with_other_options_or_another_table_is_refused(case, done):
    with pytest.raises(RunError, match=r"other options or data: epochs .* another --sweep"):
        quick_sweep(case, done.folder, epochs=3)
    changed = SimpleNamespace(table=case.frame.assign(pKd=case.frame["pKd"] + 1), store=case.store)
    with pytest.raises(RunError, match="labels or features of the table differ"):
        quick_sweep(changed, done.folder, epochs=8)


def test_a_folder_with_other_files_is_refused(case, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="and no sweep; expected a new folder"):
        quick_sweep(case, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_missing_optuna_is_reported_with_the_extra_to_install(case, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingPackage, match="pip install optuna"):
        quick_sweep(case, tmp_path / "s")
