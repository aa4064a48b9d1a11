"""Commands of abag, run in this process, and a browser that opens what they write."""

import re
import shutil
import subprocess

import click
import pytest
from click.testing import CliRunner

from abag.cli import main

PLAIN_ENCODERS = ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
TINY_ENCODERS = ["--antibody-encoder", "tiny-igt5", "--antigen-encoder", "tiny-esm2"]


def commands(group=main, path=()):
    """Yield the path and the command of each command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def run(*arguments, code=0):
    """Run a command, which has to end with an exit code, None: any; return its result."""
    texts = [str(argument) for argument in arguments]
    done = CliRunner().invoke(main, texts, terminal_width=78)  # click's in 80 columns, but in tests
    assert code in (None, done.exit_code), done.output + done.stderr
    return done


def one_line(*arguments):
    """Return the error of a command, which has to be one line after what was read."""
    done = run(*arguments, code=1)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert done.stdout == ""
    assert "Traceback" not in done.output
    return line


needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Chromium is not installed"
)


def draw(page, profile):
    """Return the elements of a page as Chromium draws it, which must not complain."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update --disable-sync "
    flags += f"--enable-logging=stderr --user-data-dir={profile} --dump-dom"
    done = subprocess.run(
        ["chromium", *flags.split(), page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "NaN" not in done.stdout
    assert not re.search(r"CONSOLE.*(Error|Refused|Uncaught)", done.stderr)
    return done.stdout
