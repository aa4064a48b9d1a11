"""Every benchmark runs at tiny size and writes its report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from marks import in_slow
from run_scripts import script_runner

pytestmark = pytest.mark.ci
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


LONG = [
    ("bench_encoders.py", ["--encoder", "igt5", "--quick", "--agreement", "16"], "encoders.md"),
    ("bench_predict.py", [], "predict.md"), ("bench_scale.py", [], "scale.md"),
    ("bench_tables.py", [], "tables.md"), ("bench_adapt_skempi.py", [], "adapt_skempi.md"),
    ("bench_gelu.py", [], "gelu.md"), ("bench_heads.py", [], "heads.md"),
    ("bench_steps.py", [], "steps.md"),
    ("bench_time_to_answer.py", ["--case", "embed, nothing missing"], "time_to_answer.md"),
    ("bench_plan.py", [], "plan.md"), ("bench_export.py", [], "export.md"),
    ("bench_mixing.py", ["collect"], "mixing.md"), ("bench_log_scale.py", [], "log_scale.md"),
]  # fmt: skip
"""Five seconds or more each; `.ci/run` only imports what they use."""
LONG_LINES = (
    "bench_campaign.py", "bench_growth.py", "bench_time_left.py", "bench_trees.py",
    "bench_unseen.py",
)  # fmt: skip
"""Those that write lines instead of a page, ten seconds or more each."""


@pytest.mark.parametrize("script", sorted({*LONG_LINES, *(script for script, _, _ in LONG)}))
def test_a_long_benchmark_imports_what_it_uses_and_shows_its_help(run_script, tmp_path, script):
    status = run_script(tmp_path / "log", BENCHMARKS / script, "--help")
    printed = (tmp_path / "log").read_text()
    assert status == 0, printed
    assert "--tiny" in printed


@pytest.mark.parametrize(("script", "options", "report"), [
    ("bench_encoders.py", ["--encoder", "esmc-300m", "--agreement", "16", "--loglik"],
     "encoders.md"),
    ("bench_embed.py", [], "embed.md"), ("bench_adapt.py", [], "adapt.md"),
    ("bench_design.py", [], "design.md"),
    ("bench_members.py", ["--device", "cpu"], "members.md"),
    ("bench_attention.py", [], "attention.md"),
    ("bench_far_variants.py", [], "far_variants.md"),
    ("bench_scan.py", [], "scan.md"), ("bench_leave_out.py", [], "leave_out.md"),
    ("bench_turing.py", ["--encoder", "igt5"], "turing.md"),
    ("bench_region.py", [], "region.md"),
    ("bench_views.py", [], "views.md"), ("bench_why.py", [], "why.md"),
    (
        "bench_time_to_answer.py",
        ["--case", "fit, one split", "--repeats", "0"],
        "time_to_answer.md",
    ),
    ("bench_weights.py", [], "weights.md"),
    ("bench_strong.py", [], "strong.md"),
    ("bench_fit.py", ["--device", "cpu"], "fit_cpu_*.md"),
    *in_slow(*LONG),
])  # fmt: skip
def test_a_benchmark_runs_at_tiny_size_and_writes_its_report(
    run_script, tmp_path, script, options, report
):
    command = [BENCHMARKS / script, "--tiny", "--out", tmp_path, *options]
    status = run_script(tmp_path / "log", *command)
    assert status == 0, (tmp_path / "log").read_text()
    (page,) = tmp_path.glob(report)
    assert page.read_text().startswith("# ")


@pytest.mark.parametrize(("script", "options", "shown"), [
    ("bench_clusters.py", "--antibodies 60 --antigens 12 --sample 40",
     "at 90%: equal to aligning all pairs"),
    ("bench_recognise.py", "--drawn 60 --asked 12",
     r"\| drawn antibody \| 0 \| 48 \| 12 \| 100.0%"),
    ("bench_intervals.py", "cells --draws 1", r"\| 60 \| 10 \| 0\.8 \| 0\.\d+"),
    ("bench_intervals.py", "shift --draws 2", r"\| 30 \| 0\.7 \| 1\.0 \| 1\.0 \| 0\.\d+"),
    ("bench_intervals.py", "precision --draws 2", r"\| 400 \| 1 \| 0\.15 \| 0\.\d+"),
    ("bench_regimes.py", "null 0 1 --kinds small_no_signal", r"values: 0 of \d+"),
    ("bench_binary.py", "planted --tiny", r"planted 1 +60 +0\.4 +abag"),
    ("bench_peers.py", "tiny", r"mean of all \d"),
    ("bench_rows.py", "--rows 60 --antibodies 20 --antigens 4", r"first step after \d"),
    ("bench_tails.py", "--draws 2", r"\| normal \| 1000 \| normal \| 0\.\d+"),
])  # fmt: skip
def test_a_benchmark_that_prints_its_result_runs_at_tiny_size(
    run_script, tmp_path, script, options, shown
):
    if script == "bench_recognise.py":
        pytest.importorskip("edlib")  # it has no wheel for Python 3.14
    status = run_script(tmp_path / "log", BENCHMARKS / script, *options.split())
    printed = (tmp_path / "log").read_text()
    assert status == 0, printed
    assert re.search(shown, printed), printed


@pytest.fixture
def small_checkout(tmp_path):
    """A repository of two modules, one of them with a dense statement, a test and a page."""
    files = {
        "core/__init__.py": '"""About."""\n',
        "core/plain.py": '"""About."""\n\nx = 1  # one\n',
        "head/fit.py": "def fit():\n    one, two = 1, 2\n    return [a for b in one for a in b]\n",
        "tests/test_fit.py": "from abag.head import fit\n",
        "benchmarks/bench_fit.py": "",
        "README.md": "three words here\n",
        "docs/page.md": "and one\n",
    }
    for name, text in files.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path / "checkout", check=True)
    return tmp_path / "checkout"


def test_the_mass_of_a_checkout_is_counted(run_script, tmp_path, small_checkout):
    status = run_script(tmp_path / "log", BENCHMARKS / "mass.py", small_checkout)
    printed = (tmp_path / "log").read_text()
    assert status == 0, printed
    assert "| product | 3 | 7 | 4 |" in printed
    assert "Tests import 1 modules below the root, in 1 files of theirs" in printed
    assert "\n2 modules of the product hold more than a docstring." in printed
    assert "14.3% of the lines have a comment; 1 functions" in printed
    assert "5 words in README.md and docs" in printed


def test_the_density_of_a_checkout_is_counted(run_script, tmp_path, small_checkout):
    command = [BENCHMARKS / "density.py", "--root", small_checkout, f"other={small_checkout}/core"]
    status = run_script(tmp_path / "log", *command)
    printed = (tmp_path / "log").read_text()
    assert status == 0, printed
    assert "| abag | 4 | 250.0 | 250.0 / 250.0 | 0.0 |" in printed
    assert "| abag, tests | 1 | 0.0 |" in printed
    assert "| other | 1 | 0.0 |" in printed


def test_imports_of_packages_are_counted(run_script, tmp_path):
    package = tmp_path / "found"
    package.mkdir()
    (package / "__init__.py").write_text("from found.top import walk\n")
    (package / "top.py").write_text("from . import middle\nfrom .low import walk\n")
    (package / "middle.py").write_text("def late():\n    from found.low import walk, run\n")
    (package / "low.py").write_text("import os\n")
    status = run_script(tmp_path / "log", BENCHMARKS / "imports.py", package)
    printed = (tmp_path / "log").read_text()
    assert status == 0, printed
    assert "| found | 3 | 6 | 1.0 | 500.0 | 4 |" in printed


WAYS = {
    # command: most modules, times that tables are opened, and that roles of columns are found
    "embed": (36, 1, 1),
    "fit --split random": (64, 1, 1),
    "predict": (38, 2, 1),  # checked as a whole, then written beside its scores
    "fit of two tables": (64, 2, 2),
}
"""What commands may run through; the numbers only go down."""
LONGEST_CHAIN = 22
CHAIN_THAT_RUNS = 17
"""Of imports, with those for types and without; they only go down."""
TABLE_STEPS = 290
"""Changes of module on the way of the table of a fit, some of which depend on threads."""


def test_commands_run_through_few_modules_and_decide_once(run_script, tmp_path):
    status = run_script(tmp_path / "log", BENCHMARKS / "way.py", "--tiny")
    printed = (tmp_path / "log").read_text()
    assert status == 0, printed
    rows = re.findall(r"^\| (.+?) \| (\d+) \|.* (\d+) \| (\d+) \|$", printed, re.MULTILINE)
    assert [name for name, *_ in rows] == [*WAYS]
    for name, *counts in rows:
        modules, opened, roles = map(int, counts)
        assert modules <= WAYS[name][0], name
        assert (opened, roles) == WAYS[name][1:], name
    (table,) = re.findall(r"of the table of a fit: (\d+) / (\d+) / \d+", printed)
    assert 100 < int(table[0]) <= TABLE_STEPS
    ((chain, runs),) = re.findall(r"imports has (\d+) modules, (\d+) without", printed)
    assert int(chain) <= LONGEST_CHAIN
    assert int(runs) <= CHAIN_THAT_RUNS


def test_censored_labels_are_compared_with_the_hidden_ones(run_script, tmp_path):
    options = ["--pairs", "60", "--seeds", "1", "--head", "ridge"]
    command = [BENCHMARKS / "bench_censored.py", "--out", tmp_path, *options]
    status = run_script(tmp_path / "log", *command)
    assert status == 0, (tmp_path / "log").read_text()
    page = (tmp_path / "censored.md").read_text()
    for variant in ("all labels known", "limit as label", "marked censored", "--floor censor"):
        assert re.search(rf"\| {variant} \| \d\.\d+ \|", page), page


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.sh")), ids=lambda path: path.name)
def test_a_shell_script_of_the_benchmarks_can_be_parsed(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_cpu_seconds_of_tests_are_counted_with_those_of_their_children(tmp_path, capsys):
    import bench_tests

    (tmp_path / "test_two.py").write_text(
        "import subprocess, sys\n"
        "SPIN = 'import time\\nwhile time.process_time() < 0.6: pass'\n"
        "def test_child(): subprocess.run([sys.executable, '-c', SPIN], check=True)\n"
        "def test_nothing(): pass\n"
    )
    times = tmp_path / "times.jsonl"
    line = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tmp_path]
    line += ["-p", "no:xdist", "-p", "bench_tests", "--cpu-times", times, tmp_path / "test_two.py"]
    subprocess.run(line, check=True, env=os.environ | {"PYTHONPATH": str(BENCHMARKS)})
    bench_tests.main([str(times)])
    child, nothing = (json.loads(line) for line in times.read_text().splitlines())
    assert child["cpu_s"] > 0.5 > nothing["cpu_s"]
    assert "| test_two.py | 2 | " in capsys.readouterr().out


BY_HAND = {
    "bench_kernels.py": "measures tiles of a GPU",
    "bench_ranks.py": "compares several GPUs",
    "screenshot.py": "needs chromium",
    "bench_domains.py": "tests/test_embed_domains.py",
    "bench_store.py": "tests/test_embed_store.py",
    "shapes.py": "read by other scripts",
}  # fmt: skip
"""Scripts that no test of this module runs, and why."""


def test_each_script_of_the_benchmarks_is_run_here_or_has_a_reason():
    here = Path(__file__).read_text()
    scripts = {path.name for path in BENCHMARKS.glob("*.py")}
    unnamed = {
        name for name in scripts if f'"{name}"' not in here and f"import {name[:-3]}" not in here
    }
    assert not unnamed
    assert {*BY_HAND} <= scripts


def test_the_benchmark_of_the_hub_runs_where_nothing_has_read_the_address_of_the_hub(tmp_path):
    with script_runner() as run:
        status = run(tmp_path / "log", BENCHMARKS / "bench_share.py", "--tiny", "--out", tmp_path)
    assert status == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "share.md").read_text().startswith("# ")


def tiny_lines(run_script, folder, script, *options):
    """Run a benchmark at tiny size, and return its lines of JSON."""
    out = folder / "lines.jsonl"
    out.unlink(missing_ok=True)
    status = run_script(folder / "log", BENCHMARKS / script, "--tiny", "--out", out, *options)
    assert status == 0, (folder / "log").read_text()
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def test_tokens_are_counted_per_second_of_the_cpu(run_script, tmp_path):
    assert run_script(tmp_path / "log", BENCHMARKS / "bench_tokens.py", "--antibodies", 100) == 0
    assert "of 100 antibodies, " in (tmp_path / "log").read_text()


def test_early_stopping_is_scored_and_timed(run_script, tmp_path):
    lines = tiny_lines(run_script, tmp_path, "bench_patience.py")
    settings = [(line["head"], line["epochs"], line["patience"]) for line in lines]
    assert settings == [(head, 2, patience) for head in ("mlp", "stack") for patience in (0, 1)]
    assert all(line["rmse"] and line["steps"] and line["seconds"] > 0 for line in lines)


def test_promises_are_compared_with_the_truth(run_script, tmp_path):
    *sides, line = tiny_lines(run_script, tmp_path, "bench_promises.py", "bounds")
    assert [side["what"] for side in sides] == [
        "bounds: predicted beyond", "bounds: predicted within",
    ]  # fmt: skip
    for side in sides:
        low, high = side["promised"][1:]
        assert low < side["promised"][0] < high
        assert side["true"] == pytest.approx(side["promised"][0], abs=0.2)
    low, high = line["promised"][1:]
    assert low < line["promised"][0] < high
    assert line["true"] > 0


@pytest.mark.slow
def test_the_time_left_is_compared_with_what_was_left(run_script, tmp_path):
    (line,) = tiny_lines(run_script, tmp_path, "bench_time_left.py")
    fit = line["bars"]["fit"]
    assert 0 < fit["seconds"] < line["seconds"]
    assert any(ratio and 0 < ratio < 20 for ratio in fit["ratios"].values())


def test_the_bars_of_a_large_table_are_watched(run_script, tmp_path):
    (line,) = tiny_lines(run_script, tmp_path, "bench_large_table.py")
    assert line["pairs"] == 200
    assert 0 < line["longest_silence_s"] < line["seconds"]
    assert line["rmse"]


def test_the_default_fit_of_a_table_is_timed(run_script, tmp_path):
    (line,) = tiny_lines(run_script, tmp_path, "bench_default_fit.py")
    assert line["pairs"] == 60
    assert line["rmse"]


@pytest.mark.slow
def test_growth_is_measured_by_command_and_drawn(run_script, tmp_path):
    lines = tiny_lines(run_script, tmp_path, "bench_growth.py")
    assert [line["pairs"] for line in lines] == [100] * 4
    assert all(line["cpu_seconds"] > 0 and line["peak_mb"] > 50 for line in lines)
    picture = tmp_path / "growth.png"
    out = tmp_path / "fits.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = BENCHMARKS / "bench_growth.py"
    assert run_script(tmp_path / "log", script, "--draw", out, "--picture", picture) == 0
    assert picture.stat().st_size > 10_000


@pytest.mark.slow
def test_unseen_and_known_rows_are_timed(run_script, tmp_path):
    lines = tiny_lines(run_script, tmp_path, "bench_unseen.py")
    assert [line["number"] for line in lines] == [50] * 3


def test_ridges_are_timed_and_compared_by_size(run_script, tmp_path):
    out = tmp_path / "ridge.md"
    status = run_script(
        tmp_path / "log",
        BENCHMARKS / "bench_ridge.py",
        *("--columns", 8, 30, "--seconds", 0.02, "--out", out),
    )
    assert status == 0, (tmp_path / "log").read_text()
    head, _, *rows = [line.strip("| ").split(" | ") for line in out.read_text().splitlines()]
    assert [row[0] for row in rows] == ["8", "30"]
    assert all(len(row) == len(head) and float(row[-1]) < 1e-10 for row in rows)


def test_the_choice_of_kernels_is_timed_and_compared_with_folds_alone(run_script, tmp_path):
    out = tmp_path / "search.md"
    script = BENCHMARKS / "bench_kernel_search.py"
    status = run_script(tmp_path / "log", script, "--pairs", 30, "--out", out)
    assert status == 0, (tmp_path / "log").read_text()
    head, _, row = [line.strip("| ").split(" | ") for line in out.read_text().splitlines()]
    assert len(row) == len(head)
    assert row[0] == "30"
    assert float(row[-1]) < 1e-10


def test_promises_are_compared_with_rows_that_abag_never_saw(run_script, tmp_path):
    lines = tiny_lines(run_script, tmp_path, "outside_truth.py")
    assert {line["case"] for line in lines} == {"random", "8 antibodies"}
    measured = [line for line in lines if line["sum_of_weights"] is not None]
    assert measured
    assert all(line["sum_of_weights"] == pytest.approx(1) for line in measured)
    assert all(line["rmse"] > 0 for line in lines)


@pytest.mark.slow
def test_campaigns_of_all_kinds_start_alike_and_count_what_they_find(run_script, tmp_path):
    policies = ["random", "forest vectors", "gp one-hot, ei", "abag, mean, 2 apart"]
    lines = tiny_lines(run_script, tmp_path, "bench_campaign.py", "--policies", *policies)
    assert {line["policy"] for line in lines} == set(policies)
    first = [line for line in lines if line["batch"] == 0]
    assert len({(line["best"], line["hits"]) for line in first}) == 1
    for line in [line for line in lines if line["batch"] == 1]:
        assert line["measured"] == 54
        assert (line["better_than_before"] > 0) == (line["best"] > first[0]["best"])


def test_what_is_expected_of_batches_is_compared_with_what_they_hold(run_script, tmp_path):
    lines = tiny_lines(run_script, tmp_path, "bench_batches.py", "--pools", tmp_path / "pools")
    fitted = [line for line in lines if line["library"] == "demo"]
    assert {line["pool"] for line in fitted} == {"demo-60-0-0", "demo-60-0-1"}
    before, now = (
        [np.ptp(line["best_interval"]) for line in lines if line["way"] == way]
        for way in ("before", "now")
    )
    assert len(before) == len(now) > 0
    assert np.mean(now) < np.mean(before)


def test_columns_of_a_table_are_measured_on_rows_that_abag_never_saw(run_script, tmp_path):
    lines = tiny_lines(run_script, tmp_path, "bench_columns.py")
    changed = {line["difference"]: line for line in lines if "difference" in line}
    assert [*changed] == ["features", "categories", "error", "all"]
    assert changed["features"]["rmse"] < 0
    assert all(line["rmse_se"] >= 0 for line in changed.values())


@pytest.mark.slow  # the script runs in the test before, likelihoods in test_embed_loglik.py
def test_likelihoods_are_stored_and_timed_before_they_are_features(run_script, tmp_path):
    encoder = ["--antigen-encoder", "tiny-esm2", "--loglik", "--features", "antigen_loglik"]
    store = ["--store", tmp_path / "store"]
    lines = tiny_lines(run_script, tmp_path, "bench_columns.py", *encoder, *store)
    embedded = [line for line in lines if "round" in line]
    assert [line["loglik"] for line in embedded] == [False, True, False, True]
    without, with_loglik = (line["antigen"]["store_bytes"] for line in embedded[:2])
    assert 0 < without < with_loglik
    assert embedded[0]["antibody"] | {"seconds": 0} == embedded[1]["antibody"] | {"seconds": 0}
    fits = [line for line in lines if line.get("case") == "features"]
    (tmp_path / "lines.jsonl").rename(tmp_path / "fits.jsonl")
    again = tiny_lines(run_script, tmp_path, "bench_columns.py", *encoder, *store)
    assert not [line for line in again if "round" in line]
    joined = tiny_lines(run_script, tmp_path, "bench_columns.py", "--join", tmp_path / "fits.jsonl")
    assert joined == [line for line in lines if "difference" in line]
    assert len(fits) == joined[0]["seeds"] == 2


def test_a_table_is_read_by_abag_as_by_pandas(run_script, tmp_path):
    (line,) = tiny_lines(run_script, tmp_path, "bench_public_tables.py")
    assert line["agree"]
    assert line["abag_read"] == "63 rows read, 3 skipped, 60 used"
    assert line["abag_pairs"] == line["pairs"] == 57
    assert line["rmse"]
    assert line["held_out"]["agree"]
    assert line["held_out"]["train"] < 63


def test_planted_errors_of_labels_are_noise_of_that_size(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bench_columns

    exact = pd.DataFrame({"pKd": np.full(20_000, 7.0)})
    noisy = bench_columns.plant_errors(exact, SimpleNamespace(column="pKd"), 0.2)
    sd = noisy[bench_columns.PLANTED]
    assert np.median(sd) == pytest.approx(0.2, rel=0.05)
    assert ((noisy["pKd"] - 7) / sd).std() == pytest.approx(1, rel=0.05)


def test_drawn_tables_have_every_chain_and_antigens_of_lognormal_lengths(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bench_rows

    table = bench_rows.make_table(6_000, 4_000, 3_000)
    assert list(table.drop(columns="pkd").nunique()) == [4_000, 4_000, 3_000]
    lengths = table["antigen"].drop_duplicates().str.len()
    assert (lengths.min(), lengths.max()) == (30, 1_022)
    assert lengths.median() == pytest.approx(300, rel=0.05)
    assert np.log(lengths[lengths.between(31, 1_021)]).std() == pytest.approx(0.6, rel=0.1)
    assert set(table["heavy"].str.len()) == {120}


def test_a_benchmark_refuses_messages_that_do_not_tell_of_all_tokens(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bench_scale

    summary = {"antibodies": {"tokens": 7_000}, "antigens": {"tokens": 5}}
    told = (
        "rank 0 of 2: 3 antibodies: 4,000 tokens; loaded in 0.5 s, encoded in 1.25 s = 3,200/s\n"
        "rank 1 of 2: 2 antibodies: 3,000 tokens; loaded in 0.6 s, encoded in 1.00 s = 3,000/s\n"
        "antigens: 5 tokens; loaded in 0.1 s, encoded in 0.20 s = 25/s\n"
    )
    ranks = bench_scale.seconds_of_ranks(told, summary)
    assert ranks["antibodies"] == [(4_000, 0.5, 1.25), (3_000, 0.6, 1.0)]
    assert ranks["antigens"] == [(5, 0.1, 0.2)]
    with pytest.raises(SystemExit, match="7000 tokens of antibodies, --json of 7001"):
        bench_scale.seconds_of_ranks(told, summary | {"antibodies": {"tokens": 7_001}})


def test_what_fails_for_one_encoder_does_not_lose_the_rest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import bench_encoders

    load = bench_encoders.Bench.ours

    def ours(bench, *arguments):
        if bench.name == "amplify-120m":
            msg = "out of memory"
            raise RuntimeError(msg)
        return load(bench, *arguments)

    monkeypatch.setattr(bench_encoders.Bench, "ours", ours)
    line = ["--encoder", "amplify-120m", "glm2-150m", "--tiny", "--agreement", "2"]
    with pytest.raises(SystemExit, match="amplify-120m: abag failed: RuntimeError: out of memory"):
        bench_encoders.main([*line, "--out", str(tmp_path)])
    results = json.loads((tmp_path / "encoders.json").read_text())
    reference = "a plain torch module, SDPA, sorted, 16k-token batches"
    assert reference in [row["path"] for row in results["amplify-120m"]["rows"]]
    assert results["glm2-150m"]["failures"] == []
    assert len(results["glm2-150m"]["agreement"]) == 8
    assert "times the speed of a plain torch module, sorted" in results["glm2-150m"]["notes"][2]


def test_the_chart_of_the_readme_shows_the_numbers_of_its_report(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import chart

    assert chart.CHART.read_text() == chart.draw(chart.REPORT.read_text())
    assert ">1,072 (2.2x)<" in chart.draw(chart.REPORT.read_text())


def test_the_badges_of_the_readme_state_the_facts_of_pyproject(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import badges

    assert badges.badges() == {p.name: p.read_text() for p in badges.BADGES.iterdir()}
