"""Files of the old notebooks are recognised, never opened, and refused with what to do instead."""

import pickle
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from abag.cli import main
from abag.embed.weights.legacy_files import LegacyFile, refuse_legacy_file


class Bomb:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def torch_file(path, legacy=False):
    state = {"head": torch.zeros(3), "epoch": 7, "bomb": Bomb()}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)


def write(path, kind):
    if kind == "torch":
        torch_file(path)
    elif kind == "legacy torch":
        torch_file(path, legacy=True)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    elif kind == "npz":
        with path.open("wb") as file:
            np.savez_compressed(file, antibody=np.zeros((2, 3)), antigen=np.zeros((2, 3)))
    else:
        with path.open("wb") as file:
            np.save(file, np.array([{"row": 1}], dtype=object), allow_pickle=True)


WORDS = {
    "torch": "a torch checkpoint",
    "legacy torch": "a torch checkpoint",
    "pickle": "a Python pickle",
    "npz": "NumPy arrays",
    "npy": "NumPy arrays",
}


@pytest.mark.parametrize("kind", WORDS)
def test_a_legacy_file_is_recognised_by_its_content_whatever_its_name(tmp_path, kind):
    path = tmp_path / "pairs.csv"
    write(path, kind)
    with pytest.raises(LegacyFile, match=WORDS[kind]) as caught:
        refuse_legacy_file(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"), [("best.pth", "a torch checkpoint"), ("cache.npz", "NumPy arrays")]
)
def test_a_truncated_archive_is_recognised_by_its_name(tmp_path, name, words):
    path = tmp_path / name
    write(path, "npz" if "npz" in name else "torch")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LegacyFile, match=words):
        refuse_legacy_file(path)


def test_tables_folders_other_archives_and_missing_files_pass(tmp_path):
    pd.DataFrame({"heavy": ["EV"]}).to_parquet(tmp_path / "pairs.parquet")
    (tmp_path / "pairs.csv").write_text("heavy,light\nEV,DI\n")
    (tmp_path / "empty.csv").write_text("")
    with zipfile.ZipFile(tmp_path / "sheet.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    for path in [*tmp_path.iterdir(), tmp_path, tmp_path / "nowhere"]:
        refuse_legacy_file(path)


def arguments(old, other):
    yield "embed", old, "--store", other
    yield "embed", other, "--store", old
    yield "embed", __file__, "--store", other, "--antibody-encoder", old
    yield "fit", old, "--store", other, "--run", other
    yield "fit", other, "--store", old, "--run", other
    yield "fit", other, "--store", other, "--run", old
    yield "evaluate", "--run", old
    yield "evaluate", "--run", other, "--predictions", old
    yield "plan", old
    yield "store", "info", old
    yield "store", "verify", old
    yield "store", "merge", old, "--out", other
    yield "store", "pack", old, "--out", other


def test_every_command_refuses_a_legacy_checkpoint_with_one_line_and_writes_nothing(tmp_path):
    old, table = tmp_path / "old.pt", tmp_path / "pairs.csv"
    torch_file(old)
    table.write_text("heavy,light,antigen\nEVQL,DIQM,MKT\n")
    before = sorted(tmp_path.iterdir())
    for given in arguments(old, tmp_path / "new"):
        command = [str(table if part == __file__ else part) for part in given]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1, (command, result.output)
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"Error: {old}: a torch checkpoint")
        assert "abag embed TABLE --store" in line
    assert sorted(tmp_path.iterdir()) == before
