"""The documentation builds in strict mode, its code runs, and it quotes real messages."""

import ast
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from drawn import demo_table
from encoding import ALIASES, FAMILIES, find_checkpoint
from marks import in_ci

import abag
from abag import AdaptConfig, EmbedOptions, FitConfig
from abag.cli import main
from abag.core.options import schema
from abag.head.models.config import PRESETS
from abag.head.runs import report as outcome

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = {"", "text", "json"}
"""Languages of blocks that are not code."""
SCALES = ("several GPUs", "several machines", "Apptainer", "Slurm", "a Ray cluster")
SKIPPED = {
    "README.md": ["run by .ci/run", "run by .ci/run"], "CONTRIBUTING.md": ["installs", "installs"],
    "docs/scaling.md": [f"needs {need}" for need in SCALES], "docs/tutorial.md": ["installs"],
    "docs/how-to/share.md": ["needs an account on the hub", "needs an account on the hub"],
    "docs/how-to/rent-a-gpu.md": ["installs, and encodes with the real weights"],
    "docs/how-to/own-encoder.md": ["needs a checkpoint with an adapter"],
    "docs/why-numbers-differ.md": ["a benchmark; the tests run it at tiny size"],
    "docs/splits.md": ["reads a run; tests/test_truth_scores.py computes the same"],
}  # fmt: skip
"""Reasons, given in the fences, of the blocks that are not run, by page."""
TUTORIAL = ROOT / "docs" / "tutorial.md"
EXAMPLES = ROOT / "docs" / "examples.md"
TESTED_ELSEWHERE = {ROOT / "README.md", TUTORIAL}
"""Pages with a test of their own."""
NEEDS_WEIGHTS = {"docs/how-to/colab.md"}
"""Pages about the default encoders; the commands of the others need no download."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # --quiet hides warnings from --strict, too
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.ci
def test_the_site_has_every_command_and_every_public_function(site):
    cli = (site / "reference" / "cli.html").read_text()
    assert "abag store verify" in cli
    assert "--commit-seconds" in cli
    python = (site / "reference" / "python.html").read_text()
    assert "Encode every sequence of a table that the store does not hold yet" in python
    assert 'id="abag.load_predictor"' in python


@pytest.mark.ci
def test_the_site_describes_every_keyword_option(site):
    python = html.unescape((site / "reference" / "python.html").read_text())
    for cls in (EmbedOptions, FitConfig, AdaptConfig):
        for field in schema(cls):
            assert f"<code>{field.name}</code></td>\n<td>{field.declaration['help']}</td>" in python


@pytest.mark.ci
def test_the_site_lists_every_encoder_with_its_licence(site):
    page = html.unescape((site / "reference" / "encoders.html").read_text())
    for name, alias in ALIASES.items():
        row = next(r for r in page.split("<tr>") if f"<td><code>{name}</code></td>" in r)
        assert alias.licence in row
        assert (alias.hub_name or "built in") in row
        assert ("no commercial use" in row) != alias.commercial


@pytest.mark.ci
def test_pages_show_neither_escapes_nor_marks_and_load_nothing_from_other_servers(site):
    external = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*(?:src|href)=["']?(https?:)?//""")
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<td>[^\n]*\\\|", text), page
        assert not external.search(text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet
    tutorial = (site / "tutorial.html").read_text()
    assert "data-skip" not in tutorial
    assert '<h2 id="the-table">' in tutorial  # after a skipped block


class Block(NamedTuple):
    language: str
    reason: str | None
    """The reason for not running it, if any."""
    code: str


def blocks(page):
    for language, rest, code in FENCE.findall(page.read_text(encoding="utf-8")):
        reason = re.search(r'data-skip="([^"]+)"', rest)
        yield Block(language, reason and reason[1], code)


def name(page):
    return str(page.relative_to(ROOT))


def test_only_the_listed_blocks_are_not_run():
    not_run = {}
    for page in PAGES:
        for block in blocks(page):
            assert block.language in {"sh", "python"} | SHOWN, (name(page), block)
            if block.reason:
                not_run.setdefault(name(page), []).append(block.reason)
    assert not_run == SKIPPED


def test_a_page_says_where_the_tables_come_from_that_it_does_not_make():
    silent = []
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        code = "".join(block.code for block in blocks(page) if not block.reason)
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        if re.search(r"\b(pairs|new)\.csv", code) and not re.search(
            r"tutorial\.md|abag demo", text
        ):
            silent.append(page.name)
    assert silent == ["colab.md", "rent-a-gpu.md"]  # for the table that one has


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with two tables; small random models replace those of the hub."""

    asked = []

    def from_hub(repository, **_):
        asked.append(repository)
        kind = "tiny-esm2" if "esm" in repository.lower() else "tiny-igt5"
        return str(find_checkpoint(kind).folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", from_hub)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    # what takes longest, and has its own tests
    monkeypatch.setitem(PRESETS, "small", replace(PRESETS["small"], epochs=5))
    monkeypatch.setattr(
        outcome, "write_report", lambda saved: (saved.run / "report.html").write_text("drawn")
    )
    halves = [demo_table(seed).head(45) for seed in (0, 1)]  # enough antigens for a split
    table = pd.concat(halves)
    table.to_csv("pairs.csv", index=False)
    table.drop(columns="pKd").head(20).to_csv("new.csv", index=False)
    program = tmp_path / ".bin" / "abag"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from abag.cli import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    families = dict(FAMILIES)
    yield asked
    FAMILIES.clear()
    FAMILIES.update(families)


LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"")
LINKED = [*PAGES, *(ROOT / page for page in ("CHANGELOG.md", "SECURITY.md"))]
LINKED += sorted((ROOT / "benchmarks" / "results").glob("*.md"))


def links(page):
    """Yield path and anchor of the links of a page that do not leave the repository."""
    text = re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in map(max, LINK.findall(text)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub and the site name them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_the_files_that_a_page_links_to_exist(page):
    gone = [path for path, _ in links(page) if path and not (page.parent / path).exists()]
    assert gone == []


def test_the_anchors_that_the_readme_links_to_exist():
    readme = ROOT / "README.md"
    assert len([*links(readme)]) > 20
    for path, anchor in links(readme):
        if anchor:
            assert anchor in anchors(ROOT / path if path else readme), (path, anchor)


def has_code_to_run(page):
    return any(block.language not in SHOWN and not block.reason for block in blocks(page))


QUICK = [ROOT / "docs" / "how-to" / f"{page}.md" for page in ("share",)]
"""Pages whose code the test line of the README runs."""
RUN = [page for page in PAGES if page not in TESTED_ELSEWHERE and has_code_to_run(page)]


@pytest.mark.parametrize(
    "page", [*QUICK, *in_ci(*(page for page in RUN if page not in QUICK))], ids=name
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, workplace):
    run_page(page)
    assert not workplace or name(page) in NEEDS_WEIGHTS


@pytest.mark.parametrize("name", [name for name in abag.__all__ if name[0].islower()])
def test_every_function_has_an_example_and_a_docstring(name):
    assert getattr(abag, name).__doc__
    assert f"abag.{name}(" in "".join(block.code for block in blocks(EXAMPLES))


def run_page(page):
    """Run the code of a page; return the names that its Python code defines, and all output."""
    names = {}
    printed = ""
    for block in blocks(page):
        if block.reason or block.language in SHOWN:
            continue
        if block.language == "python":
            exec(compile(block.code, name(page), "exec"), names)
        else:
            for line in block.code.replace("\\\n", " ").splitlines():
                printed += f"$ {line}\n{run(line)}"
    return names, printed


def run(line):
    """Run one line in a shell; a plain `abag` command runs in this process, to save imports."""
    if not line.startswith("abag ") or set(line) & set("|&;<>$*`"):
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True)
        return ""
    result = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}{result.exception}"
    return result.output


def without_scores(text):
    """Keep the counts, names and columns of a printed text."""
    lines = re.sub(r"-?\d+\.\d+|\d+%", "#", text).splitlines()
    return [" ".join(line.split()) for line in lines if re.search(r"[#\d/]", line)]


@pytest.mark.ci
@pytest.mark.usefixtures("workplace")
def test_the_code_of_a_page_prints_what_the_tutorial_shows():
    _, printed = run_page(TUTORIAL)
    shown = []
    for block in blocks(TUTORIAL):
        if block.language == "text":
            shown += without_scores(block.code)
    assert len(shown) >= 10
    assert not set(shown) - set(without_scores(printed))


@pytest.mark.ci
@pytest.mark.usefixtures("workplace")
def test_the_lines_of_the_readme_work_on_the_shipped_table():
    shipped = Path("data/demo_pairs.csv")
    shipped.parent.mkdir()
    shutil.copy(ROOT / shipped, shipped)
    scope, printed = run_page(ROOT / "README.md")
    rows = len(pd.read_csv(shipped))
    assert run("abag --version").startswith("abag ")
    assert "antigens: " in printed
    assert "report     runs/first/report.html" in printed
    shown = re.findall(r"^\| (known|new), (known|new) \|(.*)", PAGES[0].read_text(), re.MULTILINE)
    regimes = json.loads(Path("runs/first/summary.json").read_text())["regimes"]
    regime_of_words = {row["words"]: row for row in regimes}
    for antibody, antigen, cells in shown:
        row = regime_of_words[f"{antibody} antibodies, {antigen} antigens"]
        claims = [row["spearman"], row["spearman_within_antigen"]]
        other = []
        for claim in claims:
            other += [claim["value"], claim["low"], claim["high"]]
        other += [row[name] for name in ("rmse", "rmse_of_mean", "rmse_of_best")]
        claimed = [float(x) for x in re.findall(r"\d\.\d\d", cells)]
        # the mean and the baseline; the networks are trained for fewer epochs here
        np.testing.assert_allclose(claimed[-2:], other[-2:], atol=0.011)
        np.testing.assert_allclose(claimed, other, atol=0.4)
    assert len(shown) == 4
    # the worst predictions, the largest first, with their rows
    errors = scope["worst"]["error"].abs()
    assert errors.is_monotonic_decreasing
    assert errors.iloc[0] == scope["test"]["error"].abs().max()
    shipped_ids = pd.read_csv(shipped)["id"].iloc[scope["worst"]["row"] - 2]
    assert scope["worst"]["id"].tolist() == shipped_ids.tolist()
    compared = printed.split("$ abag runs runs")[1].split("$")[0]
    assert "[256, 128]" in compared
    assert "no other run" not in compared
    # the vectors, one row per row of the table
    assert len(scope["vectors"]) == rows
    assert scope["vectors"].dtype == "float32"
    assert set(pd.read_csv("scan.csv")["region"]) == {"cdrh3"}
    assert Path("scan.html").exists()
    assert len(pd.read_csv("order.csv")) == 8
    # a shared predictor gives the same scores
    scored = pd.read_csv("scored.csv")["pkd_predicted"]
    np.testing.assert_allclose(scope["scores"]["pkd_predicted"], scored, atol=1e-4)
    # the same lines again repeat nothing
    fit = "abag fit data/demo_pairs.csv --store store --run runs/first"
    assert "runs/first: nothing to do, this run has finished" in run(fit)
    embed = next(line for line in printed.splitlines() if line.startswith("$ abag embed"))
    assert re.search(r"antigens: (\d+) unique, \1 reused, 0 encoded", run(embed[2:]))


@pytest.mark.ci
def test_the_numbers_of_the_readme_are_those_of_its_commands(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = pd.read_csv(ROOT / "data" / "demo_pairs.csv").fillna("")
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(measured, tmp_path / "store", **encoders)
    summary = abag.fit(measured, tmp_path / "store", tmp_path / "run")
    claimed = [
        [float(number) for number in re.findall(r"\d\.\d\d", line)]
        for line in readme.splitlines()
        if re.match(r"\| (known|new), ", line)
    ]
    for regime, numbers in zip(summary["regimes"], claimed, strict=True):
        shown = []
        for name in ("spearman", "spearman_within_antigen"):
            shown += [regime[name][end] for end in ("value", "low", "high")]
        shown += [regime["rmse"], regime["rmse_of_mean"], regime["rmse_of_best"]]
        np.testing.assert_allclose(shown, numbers, atol=0.02)  # other machines round otherwise
    old_pair = measured.iloc[0]
    new_pair = demo_table(seed=1).fillna("").iloc[0]
    scores = abag.load_predictor(tmp_path / "run").predict(
        [old_pair["heavy"], new_pair["heavy"], new_pair["heavy"]],
        [old_pair["light"], new_pair["light"], new_pair["light"]],
        [old_pair["antigen"], old_pair["antigen"], new_pair["antigen"]],
        store=tmp_path / "store",
    )
    block = re.findall(r"(\d\.\d\d)   (\d\.\d\d)  (\w+) +(True|False)", readme)
    assert scores["regime"].tolist() == [regime for _, _, regime, _ in block]
    assert scores["far"].astype(str).tolist() == [far for *_, far in block]
    numbers = np.array([row[:2] for row in block], float)
    np.testing.assert_allclose(scores[["pkd_predicted", "sigma"]], numbers, atol=0.02)


def test_the_readme_has_at_most_1200_words():
    assert len((ROOT / "README.md").read_text().split()) <= 1200


def texts(tree):
    """Yield every string in the code, with … for interpolated values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def texts_of_package():
    paths = [*ROOT.glob("*.py")]
    for folder in ("core", "embed", "head", "adapt"):
        paths += (ROOT / folder).rglob("*.py")
    for path in paths:
        yield from texts(ast.parse(path.read_text(encoding="utf-8")))


PRINTED = [*texts_of_package()]
HEADINGS = re.findall(
    r"^### (.+)$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)


def is_printed(heading):
    pattern = ".*".join(re.escape(part) for part in heading.split("…"))
    return any(re.search(pattern, text) for text in PRINTED)


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_of_the_troubleshooting_page_quotes_a_message(heading):
    assert is_printed(heading)


def test_a_text_that_abag_does_not_print_is_not_found():
    assert len(HEADINGS) >= 40
    assert not is_printed("no column for …; sorry")


RELIABILITY = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
SELECTED = re.findall(r"(?:pytest.* (tests/\S+\.py)|…) -k \"?([\w ]+)", RELIABILITY)


def test_every_command_on_the_reliability_page_selects_tests_and_its_scripts_exist():
    assert len(SELECTED) >= 6
    path = ""
    for named_path, words in SELECTED:
        path = named_path or path  # … stands for the command of an earlier row
        names = re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
        for word in words.split(" or "):
            assert any(word in name for name in names), (path, word)
    for path in re.findall(r"tests/[\w/]+\.py", RELIABILITY):
        assert (ROOT / path).is_file(), path
