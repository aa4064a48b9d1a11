"""The report: one file with all sections, which a browser shows without errors."""

from __future__ import annotations

import base64
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from abag.embed.sequences.pairs import read_pairs
from abag.head.data.label_options import LabelOptions
from abag.head.data.labels import label_pairs
from abag.head.evaluation import comparison
from abag.head.evaluation.baselines import predict_baselines
from abag.head.report.report import render, write_report
from abag.head.report.results import RunResults
from abag.head.runs.summary import score_models
from abag.head.splits.partition import make_splits
from abag.head.splits.split_options import SplitOptions

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
VOID = {"meta", "link", "img"}


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(comparison, "DRAWS", 20)


def results(title="runs/first", antigens=8, **options):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "heavy": ["".join(rng.choice(RESIDUES, 40)) for _ in range(120)],
            "antigen": rng.choice(
                ["".join(rng.choice(RESIDUES, 60)) for _ in range(antigens)], 120
            ),
            "pkd": rng.normal(8, 1, 120),
        }
    )
    pairs = label_pairs(read_pairs(frame), LabelOptions())
    antibody_ND = rng.normal(size=(len(pairs.table.antibodies.chains), 5)).astype(np.float32)
    antigen_ND = rng.normal(size=(len(pairs.table.antigens.chains), 4)).astype(np.float32)
    splits = make_splits(pairs, SplitOptions(**{"split": "random", **options}))
    found = [predict_baselines(pairs, split, antibody_ND, antigen_ND) for split in splits]
    log = [{"step": i + 1, "epoch": i + 1, "loss": 1 / (i + 1), "lr": 1e-3} for i in range(10)]
    log[-1]["validation"] = {"spearman": None, "rmse": 1.0}
    return RunResults(
        title=title,
        facts={"antibody encoder": "tiny-igt5 3f2c9b1e"},
        pairs=pairs,
        splits=splits,
        predicted=[f["ridge"] + rng.normal(0, 0.1, len(pairs)) for f in found],
        sigma=[rng.uniform(0.5, 1.5, len(pairs)) for _ in found],
        baselines=found,
        log=log,
        antibody_ND=antibody_ND,
        antigen_ND=antigen_ND,
    )


def render_run(run):
    return render(run, score_models(run))


def write(folder):
    write_report(folder / "report.html", results(), score_models(results()))


class Page(HTMLParser):
    """Check that tags are closed, and collect what the page would load."""

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(html):
    page = Page()
    page.feed(html)
    assert page.open == []
    return page


def test_the_page_is_well_formed_and_loads_and_runs_nothing():
    page = read(render_run(results()))
    assert "script" not in page.tags
    assert page.tags.count("img") >= 5
    assert all(value.startswith("data:") for value in page.loads)


def test_every_figure_is_an_image_of_useful_size():
    for value in read(render_run(results())).loads:
        if value.startswith("data:image/png"):
            data = base64.b64decode(value.split(",")[1])
            width, height = struct.unpack(">II", data[16:24])
            assert width > 500
            assert height > 400
            assert len(data) > 5000


def test_the_table_shows_head_and_baselines_with_intervals():
    html = render_run(results(split="antigen", folds=4))
    for name in ("head", "ridge", "train_mean", "antigen_mean", "nearest_antibody"):
        assert f"<td>{name}</td>" in html
    assert re.search(r"[+-]\d\.\d\d \[[+-]\d\.\d\d, [+-]\d\.\d\d\]", html)
    assert "fold and averaged" in html


def test_the_page_shows_leaks_clusters_and_fingerprints():
    html = render_run(results())
    assert "tiny-igt5 3f2c9b1e" in html
    assert "Test rows with a near-duplicate in training" in html
    assert "Clusters by identity" in html


def test_text_from_outside_is_escaped():
    html = render_run(results(title="<script>alert(1)</script>"))
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_the_same_run_gives_the_same_bytes(tmp_path):
    write(tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    write(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_an_empty_log_and_a_single_antigen_give_a_page():
    bare = results(antigens=1)
    read(render_run(RunResults(**{n: getattr(bare, n) for n in bare.__slots__} | {"log": []})))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_chromium_shows_every_image_and_logs_no_error(tmp_path):
    write(tmp_path)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update --disable-sync "
    flags += f"--enable-logging=stderr --user-data-dir={tmp_path / 'profile'} --dump-dom"
    probe = (
        "<script>addEventListener('load', () => document.body.dataset.drawn = "
        "[...document.images].filter(i => i.complete && i.naturalWidth > 500).length)</script>"
    )
    html = (tmp_path / "report.html").read_text()
    (tmp_path / "probed.html").write_text(html.replace("</body>", probe + "</body>"))
    done = subprocess.run(
        ["chromium", *flags.split(), f"file://{tmp_path / 'probed.html'}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f'data-drawn="{html.count("<img ")}"' in done.stdout
    assert "CONSOLE" not in done.stderr
