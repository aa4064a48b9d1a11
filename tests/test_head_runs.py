"""`runs`: comparing finished runs, and the progress of one that is training."""

import errno
import fcntl
import json
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import drawn
import pytest
from drawn import add_vectors, draw_pairs
from faults import denying, left_by_the_dead, locked, raising
from invoke import one_line
from invoke import run as invoke

import abag
from abag import DamagedFile, RunError, runs
from abag.head.runs.compare import describe_runs, read_progress
from abag.head.runs.run_folder import describe_fit

QUICK = drawn.QUICK | {"epochs": 3}
SENTENCE = re.compile("abag | than |significant|compared|known .*, known|pairs of|/predictor")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("runs")
    frame = draw_pairs(40, 5)
    frame.to_csv(at / "pairs.csv", index=False)
    add_vectors(at / "store", frame)
    for name, options in {
        "a": {},
        "deep/b": {"lr": 0.01},
        "other": {"seed": 7},
        "folds": {"folds": 3},
    }.items():
        (at / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        abag.fit(frame, at / "store", at / "runs" / name, **QUICK | options)
    listed = runs(at / "runs")
    return SimpleNamespace(at=at, runs=at / "runs", frame=frame, listed=listed)


def named(listed, name):
    return next(run for run in listed["runs"] if run["run"].endswith(name))


def test_runs_are_found_at_any_depth_and_only_differing_options_are_listed(case):
    listed = case.listed
    runs = [run["run"] for run in listed["runs"]]
    assert set(runs) == {str(case.runs / name) for name in ("a", "deep/b", "folds", "other")}
    errors = [run["regimes"][0]["rmse"] for run in listed["runs"]]
    assert errors == sorted(errors)
    assert set(listed["differences"]) == {"lr", "seed", "split_seed", "folds"}
    assert listed["differences"]["lr"][str(case.runs / "deep/b")] == 0.01
    assert json.loads(json.dumps(listed)) == listed


def test_runs_with_the_same_test_rows_are_compared_and_others_give_a_reason(case):
    comparisons = case.listed["comparisons"]
    paired = [comparison for comparison in comparisons if comparison["with"]]
    assert len(paired) == 1
    assert {paired[0]["run"], paired[0]["with"]} == {
        str(case.runs / "a"),
        str(case.runs / "deep/b"),
    }
    (verdict,) = paired[0]["verdicts"]
    assert "is statistically indistinguishable from" in verdict
    unpaired = [comparison for comparison in comparisons if not comparison["with"]]
    alone = {comparison["run"]: comparison["reason"] for comparison in unpaired}
    assert set(alone) == {str(case.runs / "other"), str(case.runs / "folds")}
    assert "same test rows" in alone[str(case.runs / "other")]


def test_a_run_with_another_label_is_not_compared(case, tmp_path):
    frame = case.frame.assign(pKd=case.frame["pKd"] + 1)
    abag.fit(frame, case.at / "store", tmp_path / "c", **QUICK)
    listed = runs([case.runs / "a", tmp_path / "c"])
    assert all(comparison["with"] is None for comparison in listed["comparisons"])


COMMANDS = {
    "evaluate": lambda case, run: abag.evaluate(run),
    "report": lambda case, run: abag.report(run),
    "fit": lambda case, run: abag.fit(case.frame, case.at / "store", run, **QUICK),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("file", "change", "says"), [
    ("config", {"format": "abag-run 1"}, "format 'abag-run 1' is not supported; this abag rea"),
    ("config", {"epochs": ...}, "epochs is missing. Copy the whole run folder again."),
    ("config", {"epochs": True}, "holds what no fit writes ("),
    ("config", {"select": ["x"]}, "holds what no fit writes ("),
    ("config", {"molar_mass": {}}, "holds what no fit writes ("),
    ("summary", {"regimes": ...}, "regimes is missing. Copy the whole run folder again."),
    ("summary", {"regimes": {}}, "regimes is {}; expected a list. Copy the whole run folder"),
    ("summary", {"regimes": [{}]}, "best_baseline is missing. Copy the whole run folder again."),
    ("summary", {"data": []}, "data is []; expected an object. Copy the whole"),
    ("summary", {"steps": "7"}, "steps is '7'; expected a whole number. Copy the whole"),
    ("summary", {"seconds": float("inf")}, "seconds is inf; expected a finite number. Copy"),
    ("summary", {"epochs": 10**400}, f"epochs is 1{0:079}...{0:010} (401 characters); expected a"),
    ("summary", {"warnings": [None]}, "warnings is None; expected a string. Copy the whole"),
    ("summary", {"not_measured": [{"why": ""}]}, "regime is missing. Copy the whole run folder"),
])  # fmt: skip
def test_every_command_names_what_is_wrong_with_a_run(case, tmp_path, command, file, change, says):
    run = shutil.copytree(case.runs / "a", tmp_path / "run")
    path = run / f"{file}.json"
    changed = json.loads(path.read_text()) | change
    path.write_text(json.dumps({n: value for n, value in changed.items() if value is not ...}))
    with pytest.raises((DamagedFile, RunError)) as caught:
        COMMANDS[command](case, run)
    (state,) = runs(run)["runs"]
    assert state["state"] == "unreadable"
    for text in (str(caught.value), state["reason"]):
        assert f"{path}: {says}" in text
        assert "\n" not in text


@pytest.mark.parametrize("name", ["regime", "n", "rmse", "intervals", "spearman", "sentence"])
@pytest.mark.parametrize("value", [None, 7.5, [], {"a": {}}, True])
def test_a_mistyped_score_is_one_line(case, tmp_path, name, value):
    run = shutil.copytree(case.runs / "a", tmp_path / "run")
    changed = json.loads((run / "summary.json").read_text())
    changed["regimes"][0][name] = value
    (run / "summary.json").write_text(json.dumps(changed))
    if (name, value) in (("rmse", 7.5), ("spearman", None)):
        assert invoke("evaluate", "--run", run).stdout
        return
    for command in (["evaluate", "--run", run], ["report", run]):
        assert f"{run / 'summary.json'}: " in one_line(*command)
    assert "unreadable" in invoke("runs", run, code=1).stdout


@pytest.mark.parametrize("name", ["b", "b/config.json", "b/summary.json", "c"])
def test_a_run_that_cannot_be_read_is_reported_beside_the_others(case, tmp_path, name, monkeypatch):
    for copy in ("a", "b"):
        shutil.copytree(case.runs / "a", tmp_path / copy)
    (tmp_path / "c").mkdir()
    denying(monkeypatch, tmp_path / name)
    done = invoke("runs", tmp_path, code=1)
    (line,) = [line for line in done.stdout.splitlines() if "unreadable" in line]
    assert str(tmp_path / name) in line
    assert "cannot be read (Permission denied)" in line
    assert "RMSE" in done.stdout


@pytest.mark.parametrize(("config", "reason"), [
    ({"format": "abag-run 5"}, "format 'abag-run 5' is not supported"),
    ({"format": "abag-run 6", "layout": 3}, "is missing"), ({"layout": 3}, "holds what no fit"),
])  # fmt: skip
def test_a_run_without_a_layout_is_listed_beside_the_others(case, tmp_path, config, reason):
    for copy in ("a", "b"):
        shutil.copytree(case.runs / "a", tmp_path / copy)
    path = tmp_path / "b" / "config.json"
    before = {} if "format" in config else json.loads(path.read_text())
    path.write_text(json.dumps(before | config))
    done = invoke("runs", tmp_path, code=1)
    (line,) = [line for line in done.stdout.splitlines() if "unreadable" in line]
    assert reason in line
    assert "RMSE" in done.stdout


def test_a_read_only_run_is_said_to_be_before_anything_is_fitted(case, tmp_path, monkeypatch):
    run = shutil.copytree(case.runs / "a", tmp_path / "run")
    denying(monkeypatch, tmp_path, only_writing=True)
    read_only = f"Error: {tmp_path}: is read-only for this user; expected a folder to write into."
    for command, option in (("fit", "--run"), ("sweep", "--sweep")):
        into = (case.at / "pairs.csv", "--store", case.at / "store", option, tmp_path / "new")
        assert one_line(command, *into).startswith(read_only)
    assert one_line("share", run, "--to", tmp_path / "shared").startswith(read_only)
    assert one_line("report", run).startswith(f"Error: {run}: is read-only")
    assert invoke("evaluate", "--run", run).stdout
    COMMANDS["fit"](case, run)  # there is nothing to do


def test_what_a_disk_does_not_give_is_not_called_damaged(case, tmp_path, monkeypatch):
    run = shutil.copytree(case.runs / "a", tmp_path / "run")
    failure = raising(OSError(errno.EIO, "error stat()ing file"))
    monkeypatch.setattr("pandas.read_parquet", failure)
    assert f"{run}: cannot be read (error stat()ing file); expected " in one_line("report", run)
    monkeypatch.setattr("pathlib.Path.read_bytes", failure)
    with pytest.raises(OSError, match=r"stat\(\)ing"):
        abag.fit(case.frame, case.at / "store", run, **QUICK | {"epochs": 4})


def test_a_log_that_is_nested_too_deeply_is_one_line(case, tmp_path):
    run = shutil.copytree(case.runs / "a", tmp_path / "run")
    (run / "metrics.jsonl").write_text("[" * 100_000 + "]" * 100_000 + "\n")
    assert "a file of the run is damaged (" in one_line("report", run)


def test_what_dead_processes_left_in_a_finished_run_is_removed(case, tmp_path):
    run = shutil.copytree(case.runs / "a", tmp_path / "run")
    left = left_by_the_dead(run / "predictor", "weights")
    left.touch()
    COMMANDS["fit"](case, run)
    assert not left.exists()


def test_the_text_shows_runs_differences_and_verdicts(case):
    lines = describe_runs(case.listed)
    text = "\n".join(lines)
    assert "deep/b" in text
    assert str(case.runs) not in text
    assert "lr" in text
    assert lines[0] == "known antibodies, known antigens:"
    assert "RMSE (pKd)" in lines[1]
    assert sum("no significant differences" in line for line in lines) == 1
    assert "not compared, because no other run has the same test rows: " in text


@pytest.mark.parametrize("width", [20, 45, 60, 80, 120, 240])
def test_runs_and_fit_show_what_decides_within_any_width(case, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = invoke("runs", case.runs).stdout
    every = invoke("runs", case.runs, "--verbose").stdout
    fitted = describe_fit(abag.fit(case.frame, case.at / "store", case.runs / "a", **QUICK))
    for text in (shown, every, fitted):
        tables = [line for line in text.splitlines() if not SENTENCE.search(line)]
        assert max(map(len, tables)) <= width
    for text in (shown, every, fitted):
        assert "RMSE (pKd)" in text
        assert ("coverage" in text) == (text is every)
    assert "all scores: abag runs --verbose" in shown
    assert "abag runs --verbose" not in every


@pytest.mark.parametrize(("paths", "names"), [
    (["/x/runs/a", "/x/runs/deep/b"], ["a", "deep/b"]), (["a", "/x/b"], ["a", "/x/b"]),
    (["runs/a"], ["runs/a"]),
])  # fmt: skip
def test_names_of_runs_leave_out_the_folders_that_all_share(paths, names):
    states = [{"run": path, "state": "unreadable", "reason": "damaged"} for path in paths]
    lines = describe_runs({"runs": states, "comparisons": [], "differences": {}})
    assert lines[: len(names)] == [f"{name}: unreadable, damaged" for name in names]


@pytest.mark.parametrize("content", ["nothing", "empty", "a file"])
def test_a_folder_without_runs_is_refused(tmp_path, content):
    path = tmp_path / "x"
    if content == "empty":
        path.mkdir()
    if content == "a file":
        path.write_text("x")
    with pytest.raises(RunError, match="expected a run folder of abag fit"):
        runs(path)


def test_a_damaged_run_does_not_hide_the_others(case, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "summary.json"):
        (broken / name).write_bytes((case.runs / "a" / name).read_bytes())
    listed = runs([case.runs / "a", broken])
    assert named(listed, "broken")["state"] == "unreadable"
    assert named(listed, "a")["state"] == "finished"
    assert "pairs.parquet" in "\n".join(describe_runs(listed))


@pytest.fixture
def half(tmp_path):
    """A run of 10 epochs whose fifth is done; the line of the sixth is being written."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    log = "".join(json.dumps({"step": 100 * k, "epoch": k}) + "\n" for k in range(1, 6))
    (tmp_path / "checkpoints" / "log.jsonl").write_text(log + '{"step": 600, "ep')
    (tmp_path / "checkpoints" / "latest").write_text("")
    return tmp_path


CONFIG = {"epochs": 10, "select": "spearman"}


def test_progress_is_that_of_the_last_whole_line_of_the_log(half):
    now = time.time() + 60
    with locked(half):
        progress = read_progress(half, CONFIG, now)
    assert (progress["state"], progress["epoch"], progress["epochs"]) == ("training", 5, 10)
    assert progress["written_s_ago"] == pytest.approx(60, abs=5)


def test_a_run_that_no_process_writes_counts_as_stopped_at_once(half):
    progress = read_progress(half, CONFIG)
    assert progress["state"] == "stopped"
    lines = describe_runs({"runs": [progress], "comparisons": [], "differences": {}})
    assert "run abag fit again to resume" in "\n".join(lines)


def test_without_locks_a_run_that_wrote_nothing_for_minutes_counts_as_stopped(half, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, "no locks")))
    assert read_progress(half, CONFIG)["state"] == "training"
    assert read_progress(half, CONFIG, time.time() + 1000)["state"] == "stopped"


def test_a_run_with_only_a_configuration_is_starting(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with locked(tmp_path):
        progress = read_progress(tmp_path, CONFIG)
    assert progress["state"] == "starting"
    assert progress["epoch"] == 0


@pytest.mark.ci
def test_progress_is_read_while_another_process_trains(case, tmp_path):
    script = (
        "import sys, abag; abag.fit(sys.argv[1], sys.argv[2], sys.argv[3], split='random',"
        "report=False, widths=(8,), epochs=100000, patience=0, batch_size=16, device='cpu',"
        "save_every=50)"
    )
    run = tmp_path / "live"
    arguments = [case.at / "pairs.csv", case.at / "store", run]
    child = subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.DEVNULL)

    def next_progress():
        while True:
            time.sleep(0.3)
            assert child.poll() is None
            progress = runs(run)["runs"][0] if (run / "config.json").exists() else {}
            if progress.get("epoch"):
                return progress

    try:
        first = last = next_progress()
        while last["epoch"] == first["epoch"]:
            last = next_progress()
    finally:
        child.kill()
        child.wait()
    assert first["state"] == "training"
    assert first["epoch"] < last["epoch"] < last["epochs"]
