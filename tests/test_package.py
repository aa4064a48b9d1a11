"""What is installed: names, contents, import cost, and who may import whom."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Wheel and source archive, built from a clean copy of the tree."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / "stray.py").write_text("raise SystemExit\n")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(copy)],
        capture_output=True, check=True,
    )  # fmt: skip
    return out


def test_the_wheel_holds_abag_alone_and_every_module_of_it(archives):
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        names = [n for n in wheel.namelist() if ".dist-info/" not in n]
    assert {n.split("/")[0] for n in names} == {"abag"}
    expected = {"abag/__init__.py", "abag/cli.py", "abag/py.typed"}
    for room in ("embed", "head", "adapt"):
        expected |= {f"abag/{room}/{p.name}" for p in (ROOT / room).glob("*.py")}
    assert set(names) == expected


def test_the_source_archive_builds_too(archives):
    assert list(archives.glob("abag-*.tar.gz"))


def test_importing_abag_loads_no_torch_and_help_and_version_neither():
    code = (
        "import sys, abag; from click.testing import CliRunner; from abag.cli import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        "assert 'torch' in CliRunner().invoke(main, ['--version']).output;"
        "print([m for m in ('torch', 'pandas', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_adapt_alone_knows_both_and_neither_knows_it():
    assert {"abag.embed.lora", "abag.head.splits"} <= {
        m for path in (ROOT / "adapt").glob("*.py") for m in imported(path)
    }
    for path in [*(ROOT / "embed").glob("*.py"), *(ROOT / "head").glob("*.py")]:
        assert not [m for m in imported(path) if m.startswith("abag.adapt")], path.name


def test_embed_knows_no_head_and_head_meets_embed_only_in_store_and_sequences():
    for path in (ROOT / "embed").glob("*.py"):
        assert not [m for m in imported(path) if m.startswith("abag.head")], path.name
    shared = {"abag.embed.store", "abag.embed.sequences"}
    for path in (ROOT / "head").glob("*.py"):
        met = {m for m in imported(path) if m.startswith("abag.embed")}
        assert met <= shared, (path.name, met - shared)


def test_nothing_unpickles_freely_or_runs_foreign_code():
    for room in ("embed", "head", "adapt", "."):
        for path in (ROOT / room).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    keywords = {k.arg for k in node.keywords}
                    assert name not in ("eval", "exec", "pickle.load", "pickle.loads"), path.name
                    assert "trust_remote_code" not in keywords, path.name
                    if name == "torch.load":
                        assert "weights_only" in keywords, path.name
