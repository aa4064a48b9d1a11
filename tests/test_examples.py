"""docs/examples.md runs from top to bottom, and has every verb."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import abag
from abag.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "examples.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, "examples.md", "exec"), names)
            continue
        for line in text.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "abag"
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"


VERBS = [name for name in abag.__all__ if name[0].islower()]


@pytest.mark.parametrize("verb", VERBS)
def test_every_function_has_an_example(verb):
    assert re.search(rf"abag\.{verb}\(", "".join(text for _, text in BLOCKS))


def test_every_function_can_be_had_from_the_package():
    assert VERBS == [
        "adapt_encoders",
        "embed_table",
        "evaluate",
        "fit",
        "load_predictor",
        "open_store",
        "plan",
        "predict",
        "runs",
        "sweep",
    ]
    for verb in VERBS:
        assert callable(getattr(abag, verb))
        assert getattr(abag, verb).__doc__
