"""What is installed: names, contents, import cost, and who may import whom."""

import ast
import subprocess
import sys
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "embed", "head", "adapt")


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
    for package in PACKAGES:
        expected |= {f"abag/{p.relative_to(ROOT)}" for p in (ROOT / package).rglob("*.py")}
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


LAYERS = """
    core
    embed.sequences embed.store embed.packing embed.kernels embed.weights embed.encoders
    embed.pipeline embed.doctor
    head.clustering head.data head.evaluation head.model head.training head.prediction head.runs
    head.fit head.search head.plan
    adapt
""".split()
"""Sub-packages and top modules; each may import those before it, never those after it."""


def modules():
    """Every module of the packages, by its dotted name without ``abag.``."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imported(path):
    """Modules of abag that a file imports, also for its types only, without ``abag.``."""
    known = {name for name, _ in modules()}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("abag."):
            module = node.module.removeprefix("abag.")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in known else module
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (n.removeprefix("abag.") for n in names if n.startswith("abag."))


def layer(module):
    """The place of a module in LAYERS."""
    fits = [i for i, name in enumerate(LAYERS) if f"{module}.".startswith(f"{name}.")]
    assert fits, f"{module} is in no layer"
    return fits[0]


IMPORTS = {name: set(imported(path)) for name, path in modules() if "__init__" not in name}


def test_no_module_imports_from_a_later_layer():
    upward = [(a, b) for a, found in IMPORTS.items() for b in found if layer(b) > layer(a)]
    assert not upward


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, naming the circle


def test_embed_knows_no_head_and_neither_knows_adapt():
    for module, found in IMPORTS.items():
        if module.startswith("embed."):
            assert not [m for m in found if m.startswith(("head.", "adapt."))], module
        if module.startswith("head."):
            assert not [m for m in found if m.startswith("adapt.")], module


def test_head_imports_no_encoder():
    allowed = ("embed.sequences.", "embed.store.")
    for module, found in IMPORTS.items():
        if module.startswith("head."):
            met = [m for m in found if m.startswith("embed.") and not m.startswith(allowed)]
            assert not met, (module, met)


def test_every_sub_package_says_what_it_is_for():
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_nothing_unpickles_freely_or_runs_foreign_code():
    for path in [*ROOT.glob("*.py"), *(path for _, path in modules())]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                keywords = {k.arg for k in node.keywords}
                assert name not in ("eval", "exec", "pickle.load", "pickle.loads"), path.name
                assert "trust_remote_code" not in keywords, path.name
                if name == "torch.load":
                    assert "weights_only" in keywords, path.name
