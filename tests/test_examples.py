"""docs/examples.md runs from top to bottom and covers every public function."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import abag
from abag.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "examples.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.ci
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


FUNCTIONS = [name for name in abag.__all__ if name[0].islower()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example_and_a_docstring(name):
    assert getattr(abag, name).__doc__
    assert re.search(rf"abag\.{name}\(", "".join(text for _, text in BLOCKS))
