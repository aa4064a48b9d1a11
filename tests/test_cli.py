"""The command line: options, help, exit codes, and what README promises of them."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pandas as pd
import pyarrow as pa
import pytest
import torch
from chunks import set_sizes
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from faults import raising
from invoke import PLAIN_ENCODERS, TINY_ENCODERS, commands, one_line, run
from trastuzumab import CH1

import abag
from abag.cli import main
from abag.core.command_line import HEADINGS
from abag.head.demo import demo_table, planted_ceiling, planted_pkd
from abag.head.models.config import PRESETS

ROOT = Path(__file__).parent.parent


def options_of(command):
    parameters = command.get_params(click.Context(command, **main.context_settings))
    help_flags = {"--help", "--help-all"}
    return [p for p in parameters if isinstance(p, click.Option) and not help_flags & {*p.opts}]


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_every_command_has_help_with_an_example_and_is_in_the_readme(path):
    text = run(*path, "--help").output
    assert f"abag {' '.join(path)}" in text.split("Example:")[1]
    readme = (ROOT / "README.md").read_text()
    assert re.search(rf"`abag {path[0]}\b", readme)
    assert path[-1] in readme


def test_every_option_has_help_and_no_list_of_commands_is_cut_short():
    for path, command in commands():
        for option in options_of(command):
            assert option.help, (path, option.name)
    listed = run("--help").output.split("Commands:")[1]
    assert "..." not in listed
    shown = [line.split()[0] for line in listed.splitlines() if line.strip()]
    assert shown[:4] == ["embed", "fit", "predict", "plan"]  # what most people need first
    assert "..." not in run("store", "--help").output.split("Commands:")[1]


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_help_has_80_columns_and_every_choice_and_default(path):
    command = dict(commands())[path]
    options = options_of(command)
    text = run(*path, "--help").output
    if "--help-all" in text:
        text = run(*path, "--help-all").output
    assert all(len(line) <= 80 for line in text.splitlines())
    words = re.sub(r"\s+", " ", text)
    for option in options:
        declared = getattr(option, "schema", None)
        if declared is not None:
            listed = "|".join(declared.choices), ", ".join(declared.choices)
            assert any(choices in words for choices in listed), option.name
            assert declared.default_text in words


def test_every_heading_of_an_option_has_its_place():
    used = set()
    for _, command in commands():
        used |= {getattr(option, "group", "Output") for option in options_of(command)}
    assert used == {*HEADINGS}


def test_a_shell_completes_commands_options_and_choices():
    complete = ShellComplete(main, {}, "abag", "_ABAG_COMPLETE").get_completions
    assert [c.value for c in complete([], "ad")] == ["adapt"]
    assert "--weight-decay" in [c.value for c in complete(["fit"], "--wei")]
    assert [c.value for c in complete(["fit", "--preset"], "s")] == ["small", "seed"]


def test_colours_are_left_out_where_no_color_asks_for_it(tmp_path, monkeypatch):
    @main.command("paint")
    def paint():
        click.secho("bold", bold=True)

    monkeypatch.setitem(main.commands, "paint", main.commands.pop("paint"))
    assert "\x1b[" in CliRunner().invoke(main, ["paint"], color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(main, ["paint"], color=True).output


def test_a_path_that_cannot_be_used_is_one_line_without_a_traceback(pairs, tmp_path):
    line = one_line("demo", pairs)
    assert line.startswith(f"Error: {pairs}: cannot be used (File exists); ")
    store = tmp_path / "store"
    run("embed", pairs, "--store", store, *PLAIN_ENCODERS)
    line = one_line("fit", pairs, "--store", store, "--run", pairs)
    assert line.startswith(f"Error: {pairs}: is a file; expected a new folder. Give another --run")


def test_objects_are_not_visited_as_a_command_ends(tmp_path):
    code = (
        "import gc; gc.disable()\n"
        "class Cycle:\n"
        "    def __init__(self): self.own = self\n"
        "    def __del__(self): print('visited')\n"
        "Cycle()\n"
        "from abag.cli import main; main(['embed', 'absent.csv', '--store', 'store'])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.startswith("Error: absent.csv")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_full_disk_is_called_that(monkeypatch, tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "pairs.csv"))
    monkeypatch.setattr(pd.DataFrame, "to_csv", raising(full))
    line = one_line("demo", tmp_path / "demo")
    assert line.endswith("pairs.csv: the disk is full. Free space, and run the command again.")


@pytest.mark.parametrize("error", [
    RuntimeError("can't start new thread"),
    ImportError("x.so: failed to map segment from shared object", name="scipy.x"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
])  # fmt: skip
def test_what_does_not_fit_into_memory_is_called_that(monkeypatch, tmp_path, error):
    monkeypatch.setattr(pd.DataFrame, "to_csv", raising(error))
    line = one_line("demo", tmp_path / "demo")
    assert line.startswith(f"Error: not enough memory ({error}")


def test_a_text_that_arrow_has_no_memory_for_is_not_shown(monkeypatch, tmp_path):
    error = pa.lib.ArrowException(f"Unknown error: Wrapping {'EVQL' * 1000} failed")
    monkeypatch.setattr(pd.DataFrame, "to_csv", raising(error))
    line = one_line("demo", tmp_path / "demo")
    assert line.startswith("Error: not enough memory (no more is available)")


BROKEN_TORCH = """\
import sys

if hasattr(sys, "torch_began"):
    raise ImportError("torch can only be initialized once per process")
sys.torch_began = True
raise ImportError("libcudart.so.13: cannot open\\nshared object file", name="torch._C")
"""


def test_a_broken_installation_is_one_line_with_the_first_error(pairs, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BROKEN_TORCH)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from abag.cli import main; main()"
    arguments = ["embed", pairs, "--store", tmp_path / "store", *PLAIN_ENCODERS]
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: torch: cannot be imported (libcudart.so.13: cannot open shared object file); "
        "expected a working installation. Install abag in a new environment."
    ]
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("arguments", "words"), [
    ("plan nowhere.csv", "nowhere.csv: does not exist; expected a .csv table"),
    ("plan nowhere", "nowhere: does not exist; expected a readable table"),
    ("plan pairs.csv --label foo", "--label: 'foo' is unknown; expected one of pkd, kd_m"),
    ("adapt pairs.csv --out a --split-from b --floor foo", "--floor: 'foo' is unknown"),
    ("adapt pairs.csv --out a --split-from nowhere", "--split-from nowhere: does not exist"),
    ("plan pairs.csv --price-per-hour nan", "--price-per-hour: nan is not valid"),
    ("fit pairs.csv --store nope --run r", "nope: does not exist; expected a store"),
    ("embed pairs.csv --store s --commit-seconds nan", "--commit-seconds: nan is not"),
])  # fmt: skip
def test_a_slip_on_the_command_line_is_named_with_what_was_expected(
    pairs, monkeypatch, arguments, words
):
    monkeypatch.chdir(pairs.parent)
    assert words in one_line(*arguments.split())
    assert [path.name for path in pairs.parent.iterdir()] == ["pairs.csv"]


@pytest.mark.parametrize(("line", "words"), [
    ("embed", "Missing argument"), ("embed a.csv --store s --column heavy", "heavy"),
    ("embed a.csv --store s --devices two", "'two' is neither a number nor all"),
    ("adapt a.csv --out a", "Missing option '--split-from'"),
    ("fit a.csv --store s --run r --hed mlp", "No such option:? '?--hed'?.*--head"),
    ("evaluate --run r --no-store", r"No such option:? '?--no-store'?\.?\n$"),
    ("embed a.csv --store s --no-binding 9", "--no-binding is an option of fit, plan, sweep,"),
    ("predict a.csv --run r --label pkd", "--label is an option of fit, plan, evaluate,"),
])  # fmt: skip
def test_usage_errors_exit_with_2_and_name_what_was_meant(line, words):
    assert re.search(words, run(*line.split(), code=2).stderr)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    demo_table().head(160).to_csv(path, index=False)
    return path


@pytest.mark.ci
def test_both_stages_run_from_the_command_line_and_again_to_no_effect(pairs, tmp_path):
    store = tmp_path / "store"
    where = tmp_path / "run"
    run("embed", pairs, "--store", store, *PLAIN_ENCODERS)
    arguments = ["fit", pairs, "--store", store, "--run", where, "--epochs", 2, "--json"]
    first = json.loads(run(*arguments, "--split", "random").stdout)
    assert {"train_mean", "antigen_mean", "ridge"} <= set(first["regimes"][0]["metrics"])
    again = run(*arguments, "--split", "random")
    second = json.loads(again.stdout)
    assert 0.05 < second.pop("peak_gib") <= first.pop("peak_gib") * 2
    assert second == first
    assert "nothing to do" in again.stderr


def test_fit_cuts_antibodies_as_they_were_cut_for_the_store(tmp_path):
    table = tmp_path / "fabs.csv"
    store = tmp_path / "store"
    where = tmp_path / "run"
    demo_table().head(160).assign(heavy=lambda t: t["heavy"] + CH1).to_csv(table, index=False)
    run("embed", table, "--store", store, *PLAIN_ENCODERS, "--antibody-region", "fv")
    arguments = ["fit", table, "--store", store, "--run", where, "--head", "ridge"]
    arguments += ["--split", "random"]
    assert "cut to their variable domains, as in the store" in run(*arguments).stderr
    assert json.loads((where / "config.json").read_text())["antibody_region"] == "fv"
    assert "nothing to do" in run(*arguments, "--antibody-region", "fv").stderr
    other = ["--store", tmp_path / "other", *PLAIN_ENCODERS, "--limit", 80]
    run("embed", table, *other)  # neither as given nor cut
    arguments[3] = tmp_path / "other"
    arguments[5] = tmp_path / "second"
    assert "antibody sequences of" in run(*arguments, code=1).stderr


@pytest.mark.ci
def test_a_tilde_is_the_home_folder_wherever_a_path_enters(pairs, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run("embed", pairs, "--store", "~/store", *PLAIN_ENCODERS)
    quick = ["--head", "ridge", "--split", "random"]
    run("fit", pairs, "--store", "~/store", "--run", "~/run", *quick)
    quick[-1] = "file=~/run/splits.parquet"
    run("fit", pairs, "--store", "~/store", "--run", "~/again", *quick)
    run("predict", pairs, "--run", "~/run", "--out", "~/scored.parquet")
    assert len(abag.runs(["~/run", "~/again"])["runs"]) == 2
    assert abag.predict(pairs, "~/run", "~/python.csv")["rows"] == 160
    assert len(abag.load_predictor("~/run").predict("QVQLVESGG", antigen="MKTAYIAK")) == 1
    assert abag.open_store("~/store").path == tmp_path / "home" / "store"
    assert not (tmp_path / "~").exists()


def test_a_folder_called_tilde_is_reached_as_such(pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run("embed", pairs, "--store", "store", *PLAIN_ENCODERS)
    quick = ["--head", "ridge", "--split", "random"]
    fitted = run("fit", pairs, "--store", "store", "--run", "./~/run", *quick, "--json")
    assert (tmp_path / "~" / "run" / "splits.parquet").exists()
    scored = run("evaluate", "--run", "./~/run", "--json")
    assert json.loads(scored.stdout)["regimes"] == json.loads(fitted.stdout)["regimes"]
    assert not (tmp_path / "home" / "run").exists()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("store info", "STORE"), ("evaluate --run", "--run"), ("store export s --to", "--to"),
        ("predict pairs.csv --run r --out o.csv --store", "--store"),
    ],
)  # fmt: skip
def test_an_empty_path_is_refused(line, name):
    assert f"Error: {name}: is empty; expected a path." in run(*line.split(), "", code=1).stderr


def test_a_finished_fit_goes_on_where_a_new_one_asks_which_encoder_to_take(pairs, tmp_path):
    run("embed", pairs, "--store", tmp_path / "store", *PLAIN_ENCODERS)
    fit = ["fit", pairs, "--store", tmp_path / "store", "--head", "ridge", "--split", "random"]
    first = json.loads(run(*fit, "--run", tmp_path / "r", "--json").stdout)
    run("embed", pairs, "--store", tmp_path / "store", "--limit", 3, *TINY_ENCODERS)
    again = run(*fit, "--run", tmp_path / "r", "--json")
    assert json.loads(again.stdout) | {"peak_gib": first["peak_gib"]} == first
    assert "nothing to do" in again.stderr
    line = run(*fit, "--run", tmp_path / "new", code=1).stderr
    assert "more than one antibody encoder: composition, tiny-igt5. Give --antibody-enc" in line
    assert not (tmp_path / "new").exists()


@pytest.mark.ci
def test_a_run_is_evaluated_on_its_split_on_a_table_and_beside_predictions(pairs, tmp_path):
    store = tmp_path / "store"
    where = tmp_path / "run"
    theirs = tmp_path / "theirs.csv"
    table = demo_table().head(160)
    table.assign(affinity_type=["kd"] * 140 + ["ic50"] * 20).to_csv(pairs, index=False)
    run("embed", pairs, "--store", store, *PLAIN_ENCODERS)
    arguments = ["fit", pairs, "--store", store, "--run", where, "--epochs", 2, "--split", "random"]
    assert "140 of 'kd', 20 of 'ic50'" in run(*arguments, code=1).stderr
    fitted = run(*arguments, "--affinity-type", "kd", "--json")
    assert "160 rows read, 20 of other affinity types, 140 used" in fitted.stderr
    again = json.loads(run("evaluate", "--run", where, "--json").stdout)
    assert again["regimes"] == json.loads(fitted.stdout)["regimes"]
    on_table = run("evaluate", pairs, "--run", where, "--store", store, "--affinity-type", "ic50")
    assert "outside training data" in on_table.stdout
    assert "0 of 20 pairs are training pairs of the run" in on_table.stderr
    table.head(140).rename(columns={"pKd": "mine"}).to_csv(theirs, index=False)
    arguments = ["evaluate", "--run", where, "--predictions", theirs]
    assert "--column prediction=NAME" in run(*arguments, code=1).stderr
    assert "theirs.csv" in run(*arguments, "--column", "prediction=mine").stdout
    refused = run("evaluate", "--run", store, code=1).stderr
    assert "not a finished run (it has no config.json). Check the path" in refused


@pytest.mark.ci
def test_a_run_scores_new_antibodies_and_is_compared(pairs, tmp_path):
    store = tmp_path / "store"
    first = tmp_path / "runs" / "a"
    second = tmp_path / "runs" / "b"
    run("embed", pairs, "--store", store, *PLAIN_ENCODERS)
    first.parent.mkdir()
    arguments = ["fit", pairs, "--store", store, "--epochs", 2, "--split", "random"]
    run(*arguments, "--run", first)
    run(*arguments, "--run", second, "--lr", 0.01)
    new = tmp_path / "new.csv"
    out = tmp_path / "out.csv"
    new.write_text("name,VH\n007,EVQLVESGGGLVQ\n008,QVQLQQSGAELAR\n")
    asked = ["predict", new, "--run", first, "--antigen", "MKTAYIAKQR", "--out", out]
    told = run(*asked, "--column", "heavy=VH")
    assert "encoding 2 antibodies with composition and 1 antigen with composition" in told.stderr
    assert out.read_text().startswith(
        "name,VH,pkd_predicted,sigma,sigma_model,regime,far,why_far,nearest,distance\n007,"
    )
    assert "--force" in run(*asked, code=1).stderr
    again = run(*asked, "--force", "--json")
    assert json.loads(again.stdout)["rows"] == 2
    assert "encoding" not in again.stderr
    crossed = tmp_path / "crossed.parquet"
    told = run("predict", pairs, "--run", first, "--cross", pairs, "--out", crossed)
    assert f"{len(pd.read_parquet(crossed)):,} rows" in told.stdout
    shown = run("runs", tmp_path / "runs").stdout
    assert re.search(r"lr +(0.001 +0.01|0.01 +0.001)", shown)
    assert len(json.loads(run("runs", first, second, "--json").stdout)["comparisons"]) == 1


def test_store_commands_answer(pairs, tmp_path):
    store = tmp_path / "store"
    run("embed", pairs, "--store", store, *PLAIN_ENCODERS)
    info = json.loads(run("store", "info", store, "--json").stdout)
    assert info["rows"] > 0
    assert str(store) in run("store", "info", store).stdout
    assert "0 problems" in run("store", "verify", store).stdout
    copied = run("store", "merge", store, "--out", tmp_path / "copy").stdout
    vectors = f"{info['rows']} vectors"
    assert copied == f"{tmp_path / 'copy'}: 2 shards copied, 0 already there; {vectors}\n"
    merged = json.loads(run("store", "info", tmp_path / "copy", "--json").stdout)
    assert merged["rows"] == info["rows"]
    shard = next(store.glob("antigen-*/*.h5"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert shard.name in run("store", "verify", store, code=1).stdout
    left_out = run("store", "merge", store, "--out", tmp_path / "rest", code=1).stdout
    assert "1 shard copied" in left_out
    assert shard.name in left_out.partition("damaged: ")[2]


def test_plan_says_what_is_in_a_table_and_writes_nothing(pairs, tmp_path):
    before = sorted(tmp_path.iterdir())
    brief = run("plan", pairs).stdout
    whole = run("plan", pairs, "-v").stdout
    assert re.search(r"^antibodies  +\d+", brief, re.MULTILINE)
    assert re.search(r"^antibodies .* \d+\.\d MB$", brief, re.MULTILINE)  # as `store info` counts
    assert "T4: estimate" in whole
    assert "T4: estimate" not in brief
    assert json.loads(run("plan", pairs, "--json").stdout)["rows"] == 160
    assert sorted(tmp_path.iterdir()) == before


def test_the_committed_table_is_what_the_generator_makes(tmp_path):
    demo_table().to_csv(tmp_path / "demo.csv", index=False)
    assert (tmp_path / "demo.csv").read_bytes() == (ROOT / "data" / "demo_pairs.csv").read_bytes()


def test_the_planted_rule_is_the_ceiling_that_the_demo_states():
    table = demo_table()
    residual = table["pKd"] - planted_pkd(table)
    assert 0.3 < residual.std() < 0.4
    assert 0.9 < planted_ceiling(table) < 0.95


def test_the_demo_does_not_overwrite_a_table_of_the_user(tmp_path):
    (tmp_path / "pairs.csv").write_text("my,only,copy\n")
    line = one_line("demo", tmp_path)
    assert line.startswith(f"Error: {tmp_path}/pairs.csv: already exists; use --force")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]
    assert (tmp_path / "pairs.csv").read_text() == "my,only,copy\n"


@pytest.mark.ci
def test_the_demo_shows_both_stages_beside_the_ceiling(tmp_path, monkeypatch):
    set_sizes(monkeypatch, demo_pairs=150)
    monkeypatch.setitem(PRESETS, "small", replace(PRESETS["small"], epochs=2))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "pairs.csv").write_text("mine")
    out = run("demo", tmp_path / "demo", "--force").output
    assert run("demo", tmp_path / "demo").exit_code == 0  # its own table is no obstacle
    assert "0 encoded with tiny-igt5" in out
    assert "Spearman of 0.9" in out
    assert "carry no biology" in out
    assert (tmp_path / "demo" / "run" / "report.html").is_file()
