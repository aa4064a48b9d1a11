"""The installed package: its files, types, import cost, and the imports between its modules."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from marks import in_slow

import abag

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "embed", "head", "adapt")


def files_of_checkout():
    """Paths of the files of the project: those that git knows or, in a source archive, all."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    anywhere = [line.rstrip("/") for line in ignored if not line.startswith(("#", "/"))]
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [str(path) for path in paths if not any(_fits(path, name) for name in anywhere)]


def _fits(path, pattern):
    return any(fnmatch(part, pattern) for part in path.parts)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A clean copy of the tree, with a stray module in its root."""
    copy = tmp_path_factory.mktemp("tree") / "checkout"
    for name in files_of_checkout():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)  # with its mode
    (copy / "stray.py").write_text("raise SystemExit\n")
    return copy


@pytest.fixture(scope="module")
def archives(tmp_path_factory, checkout):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "-o", out, checkout],
        capture_output=True,
        check=True,
    )
    return out


def package_files(root):
    """Paths of all modules and data files of the packages in a folder."""
    files = {"__init__.py", "__init__.pyi", "cli.py", "py.typed"}
    for package in (*PACKAGES, "sklearn"):
        paths = (path for path in (root / package).rglob("*") if path.is_file())
        files |= {str(p.relative_to(root)) for p in paths if p.parent.name != "__pycache__"}
    return files


def installed_files(checkout):
    """Paths of everything to be installed, below the installed package."""
    return {name.removeprefix("head/estimators/public/") for name in package_files(checkout)}


def test_the_wheel_contains_every_package_file_and_nothing_else(archives, checkout):
    with zipfile.ZipFile(next(archives.glob("*.whl"))) as wheel:
        names = [n for n in wheel.namelist() if ".dist-info/" not in n]
    assert set(names) == {f"abag/{name}" for name in installed_files(checkout)}


def test_the_source_archive_is_the_checkout(archives, checkout):
    with tarfile.open(next(archives.glob("abag-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {*files_of_checkout()} - names - {"MANIFEST.in"}
    assert not missing
    assert "stray.py" not in names


@pytest.mark.ci
def test_tests_run_from_the_source_archive(archives, tmp_path):
    with tarfile.open(next(archives.glob("abag-*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    tests = ["tests/test_many.py", "tests/test_package.py"]
    chosen = "many or release or recipe or licences or layer or docstring"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", chosen, *tests],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()


def test_a_release_has_one_version():
    version = abag.__version__
    assert PROJECT["dynamic"] == ["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation
    assert f'\n  version: "{version}"\n' in RECIPE
    (date,) = re.findall(rf"^## {version} \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    (cited,) = re.findall(r"^date-released: (\d{4}-\d\d-\d\d)$", citation, re.M)
    assert date in ("unreleased", cited)


def test_the_project_page_of_a_release_has_no_link_that_leads_nowhere():
    page = (ROOT / PROJECT["readme"]).read_text()
    assert not re.findall(r"\]\((?![a-z]+:)|(?:src|href)=", page)
    shown = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    commands = re.findall(r"^abag (\w+)", shown, re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert len(commands) > 5
    assert all(f"| `abag {name}` |" in readme for name in commands)
    named = {*re.findall(r"`abag\[(\w+)\]`", page)}
    assert named <= {*PROJECT["optional-dependencies"]}


def test_a_release_has_one_address():
    of_site = re.findall(r"^repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)
    cited = re.findall(r"^repository-code: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M)
    url = PROJECT.get("urls", {}).get("Repository")
    assert of_site == cited == ([url] if url else [])


def test_a_release_names_the_versions_of_python_that_its_pins_are_for():
    (pinned,) = re.findall(r"^pythons=\((.*)\)$", (ROOT / ".ci/resolve").read_text(), re.M)
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: 3." in text]
    assert named == pinned.split()
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_licences_of_all_that_is_installed_for_users_are_listed():
    page = (ROOT / "docs/reference/licences.md").read_text()
    listed = re.findall(r"^\| ([\w-]+) \| (?:(\w+) \| )?[^|]+ \|$", page, re.M)[1:]
    needed = {(name_of(text), "") for text in PROJECT["dependencies"]}
    for extra, requirements in PROJECT["optional-dependencies"].items():
        if extra not in ("test", "docs", "dev"):
            needed |= {(name_of(text), extra) for text in requirements}
    needed -= {("transformers", "faesm")}  # a dependency of its own, in an older version
    assert {pair for pair in listed if pair != ("package", "extra")} - {("---", "")} == needed


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0]


def test_hooks_before_a_commit_are_checks_of_the_whole_run():
    hooks = re.findall(r"entry: \.venv/bin/(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    run = (ROOT / ".ci/run").read_text()
    assert hooks
    for hook in hooks:
        test = re.match(r"pytest .* (tests/\S+)", hook)
        assert (ROOT / test[1]).exists() if test else f".venv/bin/{hook}\n" in run


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    _, run = RECIPE.split("\n  run:\n")
    recipe = [" ".join(line.split()[1:]) for line in run.split("\n\n")[0].splitlines()]
    # what is installed on some platforms only is not needed, and the recipe is for all
    everywhere = [requirement for requirement in PROJECT["dependencies"] if ";" not in requirement]
    ours = [f"python{PROJECT['requires-python']}", *everywhere]
    expected = [text.replace("torch", "pytorch").replace(">=", " >=") for text in ours]
    assert recipe == expected


def imported_packages(path):
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add(node.module.partition(".")[0])
    return packages


@pytest.mark.ci
def test_every_imported_package_is_a_dependency_or_in_an_extra():
    requirements = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        requirements += extra
    declared = {re.match(r"[\w.-]+", text)[0].replace("-", "_") for text in requirements}
    names = set()
    for _, path in [*modules(), ("cli", ROOT / "cli.py")]:
        names |= imported_packages(path)
    names -= {*sys.stdlib_module_names, "abag"}
    names = {name.replace("sklearn", "scikit_learn") for name in names}
    assert names <= declared


SCRIPT = """
import abag
{imports}

summary = abag.fit("pairs.csv", "store", "run", epochs=1)
abag.fit("pairs.csv", "store", "run", learning_rate=0.1)  # type: ignore[call-arg]
vectors = abag.open_store("store").vectors("antigen", ["MKT"], pooling="mean")
data = abag.open_store("store").dataset("pairs.csv", bad_rows="skip")
abag.open_store("store").dataset("pairs.csv", bad_row="skip")  # type: ignore[call-arg]
AffinityRegressor("store", head="ridge", widths=(8,))
AffinityRegressor("store", hed="ridge")  # type: ignore[call-arg]
AffinityRegressor("store", folds=3)  # type: ignore[call-arg]
scores = abag.load_predictor("run").predict(heavy=["EVQ"], light=[""], antigen="MKT")
reveal_type(abag.open_store)
reveal_type(PairVectorizer("store"))
reveal_type(abag.sklearn.PairVectorizer("store"))
"""
MYPY = """
[mypy]
strict = true
follow_imports = skip
[mypy-abag.*]
follow_imports = silent
"""
"""Only abag's own modules are followed: its dependencies would take minutes."""


def documented_imports():
    """Lines of README and the pages that import modules of abag."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = set()
    for page in pages:
        lines.update(re.findall(r"^(?:from|import) abag\..*", page.read_text(), re.MULTILINE))
    return "\n".join(sorted(lines))


@pytest.fixture(scope="module", params=[pytest.param("editable", marks=pytest.mark.ci), "wheel"])
def installed(request, tmp_path_factory, checkout):
    """Python of an environment with the install of the README, or a wheel, and dependencies."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    parents = {path for path in sys.path if Path(path).name == "site-packages"}
    # .pth files of the parent environment, such as that of an editable abag, are not processed
    site_packages = next(home.glob("lib/python*/site-packages"))
    (site_packages / "parent.pth").write_text("\n".join(sorted(parents)))
    python = home / "bin" / "python"
    if request.param == "editable":
        arguments = ["--no-build-isolation", "-e", checkout]
    else:
        arguments = list(request.getfixturevalue("archives").glob("*.whl"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            *"install -q --no-deps".split(),
            *arguments,
        ],
        capture_output=True,
        check=True,
        env=without_pythonpath(),
    )
    return python


def without_pythonpath():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.ci
def test_an_install_contains_every_package_file_and_can_be_imported(installed, checkout, tmp_path):
    code = (
        f"import abag, pathlib\n{documented_imports()}\nprint(pathlib.Path(abag.__file__).parent)"
    )
    done = subprocess.run(
        [installed, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=without_pythonpath(),
    )
    assert package_files(Path(done.stdout.strip())) == installed_files(checkout)


@pytest.mark.ci
@pytest.mark.parametrize("installed", ["wheel", *in_slow("editable")], indirect=True)
def test_mypy_finds_the_types_of_an_install(installed, tmp_path):
    imports = documented_imports()
    assert "from abag.sklearn import AffinityRegressor, PairVectorizer" in imports
    (tmp_path / "script.py").write_text(SCRIPT.format(imports=imports))
    (tmp_path / "mypy.ini").write_text(MYPY)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", installed, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=without_pythonpath(),
    )
    assert done.returncode == 0, done.stdout
    assert "-> abag.head.estimators.python_store.Store" in done.stdout
    assert done.stdout.count('"abag.head.estimators.scikit.PairVectorizer"') == 2, done.stdout


LAYERS = """
    core
    embed.tables embed.store embed.kernels embed.encoders
    embed.options embed.export embed.job embed.encode embed.workers embed.embed embed.residues
    embed.doctor
    head.labels head.regimes head.evaluation head.models
    head.training head.predictor head.runs
    head.design
    head.next_round head.fit
    head.sweep head.prepare head.demo head.plan
    head.estimators
    head.share
    adapt
""".split()
"""Sub-packages and modules in order; each may import only from earlier ones."""


@cache
def modules():
    """Return the dotted name, without ``abag.``, and the path of every module."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in paths]


def imported(path):
    """Yield the modules of abag that a file imports, including type-only imports."""
    module_names = {name for name, _ in modules()}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("abag."):
            module = node.module.removeprefix("abag.")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in module_names else module
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (n.removeprefix("abag.") for n in names if n.startswith("abag."))


def layer(module):
    fits = [i for i, name in enumerate(LAYERS) if f"{module}.".startswith(f"{name}.")]
    assert fits, f"{module} is in no layer"
    return fits[0]


IMPORTS = {name: set(imported(path)) for name, path in modules() if "__init__" not in name}


def test_no_module_imports_from_a_later_layer_or_in_a_cycle():
    upward = []
    for module, imports in IMPORTS.items():
        upward += [(module, name) for name in imports if layer(name) > layer(module)]
    assert not upward
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, which names the cycle


def test_no_two_packages_import_each_other():
    packages = {}
    for module, imports in IMPORTS.items():
        package = module.rpartition(".")[0]
        needed = packages.setdefault(package, set())
        needed |= {name.rpartition(".")[0] for name in imports} - {package}
    TopologicalSorter(packages).prepare()  # raises CycleError, which names the cycle


def test_head_imports_no_encoder_to_learn_or_score():
    allowed = ("embed.tables.", "embed.store.", "embed.options", "embed.export")
    for module, imports in IMPORTS.items():
        if module.startswith("head."):
            # to count tokens and name licences; descriptions load no torch (test_embed_families.py)
            tokens = {
                "head.plan": (
                    "embed.encoders.families",
                    "embed.encoders.packing",
                    "embed.encoders.registry",
                ),
                "head.runs.report": ("embed.encoders.registry",),  # licences
                "head.share": ("embed.encoders.registry",),  # licences and hub names
                # sequences that a store lacks are encoded on the user's behalf
                "head.predictor.scoring": ("embed.embed",),
                "head.estimators.scikit": ("embed.embed",),
            }.get(module, ())
            met = [
                m for m in imports if m.startswith("embed.") and not m.startswith(allowed + tokens)
            ]
            assert not met, (module, met)


def test_the_command_of_stage_one_names_no_module_of_stage_two():
    tree = ast.parse((ROOT / "cli.py").read_text())
    (command,) = (node for node in tree.body if getattr(node, "name", "") == "embed")
    imported = [node.module for node in ast.walk(command) if isinstance(node, ast.ImportFrom)]
    assert imported
    assert not [name for name in imported if name.startswith("abag.head")]


def test_every_sub_package_has_a_docstring():
    for package in PACKAGES:
        for path in (ROOT / package).rglob("__init__.py"):
            assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.ci
def test_nothing_unpickles_or_evaluates_untrusted_input():
    for path in [*ROOT.glob("*.py"), *(path for _, path in modules())]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                keywords = {k.arg for k in node.keywords}
                assert name not in ("eval", "exec", "pickle.load", "pickle.loads"), path.name
                assert "trust_remote_code" not in keywords, path.name
                if name == "torch.load":
                    assert "weights_only" in keywords, path.name
