"""The notebook runs in a clean kernel from top to bottom, also after its kernel was killed.

It installs this checkout into a new environment that shares the packages of the test environment.
A local folder replaces Drive, and small random encoders replace the real ones.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import psutil
import pytest
from heads import demo_table, read_sequences

import abag

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "notebooks" / "abag_colab.ipynb"
EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], 4)
try:
    nbclient.NotebookClient(notebook, kernel_name="abag", timeout=600).execute()
finally:
    nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the tree, so that building it leaves no files behind."""
    copy = tmp_path_factory.mktemp("source") / "abag"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "site", "__pycache__")
    return shutil.copytree(ROOT, copy, ignore=left_out)


@pytest.fixture
def notebook(tmp_path, checkout):
    """Return a function that starts the notebook in a kernel without abag."""
    home = tmp_path / "home"
    venv.create(home, with_pip=False, symlinks=True)
    # .pth files of the parent environment, such as that of an editable abag, are not processed
    parents = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    site_packages = next(home.glob("lib/python*/site-packages"))
    (site_packages / "parent.pth").write_text("\n".join(sorted(parents)))
    spec = home / "jupyter" / "kernels" / "abag" / "kernel.json"
    spec.parent.mkdir(parents=True)
    start = [str(home / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": start, "display_name": "abag", "language": "python"}))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "JUPYTER_PATH": str(home / "jupyter"),
        "IPYTHONDIR": str(home / "ipython"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # no downloads; 0 enables the option
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "ABAG_SOURCE": str(checkout),
        "ABAG_WORK": str(tmp_path / "drive"),
        "ABAG_ANTIBODY": "tiny-igt5",
        "ABAG_ANTIGEN": "tiny-esm2",
        "ABAG_FIT": "--split random --epochs 2",
    }

    def run(**settings):
        return subprocess.Popen(
            [sys.executable, "-c", EXECUTE, NOTEBOOK, tmp_path / "executed.ipynb"],
            env=environment | settings,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def printed(path):
    """Return the output of every code cell by its id."""
    cells = nbformat.read(path, 4).cells
    text_of_cell = {}
    for cell in cells:
        if cell.cell_type == "code":
            text_of_cell[cell.id] = "".join(out.get("text", "") for out in cell.outputs)
    return text_of_cell


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert NOTEBOOK.stat().st_size < 20_000


@pytest.fixture
def source(monkeypatch):
    """Return what the notebook would install, when started in a folder with a given SOURCE."""
    code = {c.id: c.source for c in nbformat.read(NOTEBOOK, 4).cells}
    function = code["install"].split("os.environ")[0]

    def source_in(folder, address=""):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("ABAG_SOURCE", address)
        names = {}
        exec(code["settings"], names)
        exec(function, names)
        return names["source"]()

    return source_in


def test_the_notebook_installs_what_source_names_or_a_wheel_in_its_folder(source, tmp_path):
    assert source(tmp_path, "https://lab.org/abag") == "git+https://lab.org/abag"
    for address in ("abag", "drive/abag.tar.gz"):
        assert source(ROOT, address) == address
    assert source(ROOT) == source(ROOT / "notebooks") == str(ROOT)
    (tmp_path / "abag-work").mkdir()
    (tmp_path / "abag-work" / "abag-0.1.0.tar.gz").touch()
    assert source(tmp_path) == "abag-work/abag-0.1.0.tar.gz"
    (tmp_path / "abag-work" / "abag-0.1.0-py3-none-any.whl").touch()
    assert source(tmp_path).endswith(".whl")


def test_on_colab_a_wheel_can_be_uploaded_and_is_kept(source, tmp_path, monkeypatch):
    uploaded = {"abag-0.1.0-py3-none-any.whl": b"wheel"}
    colab = SimpleNamespace(files=SimpleNamespace(upload=lambda: uploaded))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setenv("ABAG_WORK", str(tmp_path / "drive"))
    (tmp_path / "drive").mkdir()
    wheel = tmp_path / "drive" / "abag-0.1.0-py3-none-any.whl"
    assert source(tmp_path) == str(wheel)
    assert wheel.read_bytes() == b"wheel"
    uploaded.clear()  # the next session finds it on Drive
    assert source(tmp_path) == str(wheel)


def test_a_missing_source_is_one_clear_line(source, tmp_path):
    with pytest.raises(Exception, match="fill in SOURCE above") as stopped:
        source(tmp_path)
    (line,) = stopped.value._render_traceback_()  # shown by IPython instead of a traceback
    assert line == f"Stopped: {stopped.value}"


@pytest.mark.parametrize(("scores", "shown"), [
    ({"pkd_predicted": "7.5", "sigma": "0.41"}, "pKd  7.50 ± 0.41"),
    ({"pkd_predicted": "7.5"}, "pKd  7.50"),
    ({"predicted": "67.25", "sigma": "3"}, "predicted 67.25 ± 3.00"),
    ({"probability": "0.5", "probability_low": "0.2"}, "probability  0.50"),
])  # fmt: skip
def test_predictions_of_any_label_are_shown(tmp_path, capsys, scores, shown):
    code = {c.id: c.source for c in nbformat.read(NOTEBOOK, 4).cells}["predicted"]
    scores = {**scores, "regime": "both_new"}
    row = {"id": "one", **scores, "far": "True", "why_far": "no folds"}
    pd.DataFrame([row]).to_csv(tmp_path / "new.csv", index=False)
    exec(code, {"PREDICTED": tmp_path / "new.csv"})
    far = "outside the training data: no folds"
    assert capsys.readouterr().out == f"{'one':20} {shown}  both_new  {far}\n"


@pytest.mark.ci
def test_the_notebook_runs_in_a_clean_kernel_from_install_to_predictor(notebook, tmp_path):
    table = pd.concat(demo_table(seed).head(150) for seed in (0, 1))
    table = table.rename(columns={"antigen": "protein"}).assign(Kd=10 ** (9 - table.pop("pKd")))
    table.to_csv(tmp_path / "mine.csv", index=False)
    options = {"ABAG_READ": "--column antigen=protein", "ABAG_LABEL": "--label kd_nm"}
    started = notebook(ABAG_TABLE=str(tmp_path / "mine.csv"), **options)
    _, errors = started.communicate()
    assert started.returncode == 0, errors
    outputs = printed(tmp_path / "executed.ipynb")
    assert "encoded with tiny-igt5" in outputs["embed"]
    assert "ridge" in outputs["fit"]
    assert outputs["predicted"].count("pKd") == 3
    with zipfile.ZipFile(tmp_path / "drive" / "predictor-first.zip") as archive:
        assert {"predictor.json", "weights.safetensors"} <= set(archive.namelist())
    installed = (tmp_path / "home").glob("lib/python*/site-packages/abag/cli.py")
    assert len(list(installed)) == 1


def kill_when(process, condition, seconds=500):
    """Kill the kernel and its child processes as soon as a condition is met."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    for child in family:
        child.kill()
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_kernel_killed_in_stage_one_and_in_stage_two_loses_nothing(notebook, tmp_path):
    table = pd.concat([demo_table(seed) for seed in range(30)]).drop_duplicates("heavy")
    store = tmp_path / "drive" / "store"
    run = tmp_path / "drive" / "runs" / "first"
    variables = {"ABAG_TABLE": str(tmp_path / "pairs.csv"), "ABAG_FIT": ""}
    keys = read_sequences(table).antibodies.keys

    def missing():
        return int(abag.open_store(store).folder("antibody").missing(keys).sum())

    table.to_csv(tmp_path / "pairs.csv", index=False)
    kill_when(notebook(**variables), lambda: list(store.glob("antibody-*/*.h5")))
    kept = {path: path.read_bytes() for path in store.glob("antibody-*/*.h5")}
    assert 0 < missing() < len(keys)
    kill_when(notebook(**variables), lambda: not missing())
    assert all(path.read_bytes() == content for path, content in kept.items())

    table.head(600).to_csv(tmp_path / "pairs.csv", index=False)  # clustering thousands takes long
    kill_when(notebook(**variables), lambda: list(run.glob("checkpoints/*/latest")))
    assert not (run / "summary.json").exists()

    started = notebook(**variables)
    _, errors = started.communicate()
    assert started.returncode == 0, errors
    assert "0 encoded with tiny-igt5" in printed(tmp_path / "executed.ipynb")["embed"]
    assert json.loads((run / "summary.json").read_text())["resumed_from_step"] > 0
