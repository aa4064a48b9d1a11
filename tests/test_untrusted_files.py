"""Names and links in shared files lead nowhere: each place that joins or copies one is attacked."""

import json
import os
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from drawn import add_vectors, demo_table
from encoding import TINY_CONFIG, find_checkpoint, save_random_checkpoint
from faults import UnsafeFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invoke import PLAIN_ENCODERS, one_line, run
from stores import merge

from abag import DamagedFile, StoreError, open_store
from abag.core.files import read_inside
from abag.embed.encoders.weights import read_adapter_files
from abag.embed.store.shard import ADAPTER_PATHS, write_adapter_files

PARTS = ("..", ".", "", "adapter", "antibody", "pwned", "a\0b", "~", "C:", "\\..\\", "é", "\x1b[2J")
NAMES = st.one_of(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=7).map("/".join),
    st.sampled_from(ADAPTER_PATHS).flatmap(lambda p: st.sampled_from([f"{p}/..", f"/{p}", p[1:]])),
    st.text(max_size=20),
)
FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FINGERPRINT = "ab" * 16


def everything_in(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def table():
    return demo_table().head(60)


@FUZZ
@given(name=NAMES.filter(lambda name: name not in ADAPTER_PATHS))
def test_an_adapter_is_written_under_its_own_names_only(tmp_path, name):
    with pytest.raises(UnsafeFile):
        write_adapter_files(tmp_path / "folder", {name: b"pwned"})
    assert not list(tmp_path.iterdir())


@FUZZ
@given(name=NAMES)
def test_the_name_of_an_encoder_stays_in_the_store(tmp_path, name):
    store = open_store(tmp_path / "store", create=True)
    with suppress(DamagedFile):  # an empty name
        folder = store.find_folder("antibody", {"name": name, "fingerprint": FINGERPRINT})
        assert folder.path.parent == tmp_path / "store"


@FUZZ
@given(name=NAMES)
def test_an_index_of_weights_names_only_files_of_its_folder(tmp_path, name):
    folder = tmp_path / "checkpoint"
    if not folder.exists():
        save_random_checkpoint(folder, TINY_CONFIG["tiny-esm2"], seed=0)
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": name}}))
    with pytest.raises(UnsafeFile, match="does not allow"):
        find_checkpoint(str(folder))
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert find_checkpoint(str(folder)).weights


@pytest.mark.ci
def test_a_file_that_is_larger_than_the_memory_is_one_line(tmp_path, table):
    store = add_vectors(tmp_path / "store", table).path
    pairs = tmp_path / "pairs.csv"
    table.to_csv(pairs, index=False)
    fit = ["fit", pairs, "--store", store, "--run", tmp_path / "run", "--head", "ridge"]
    run(*fit, "--split", "random")
    run("share", tmp_path / "run", "--to", tmp_path / "shared")
    os.truncate(tmp_path / "shared" / "weights.safetensors", 1 << 42)
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34)); "
        "from abag.cli import main; main()"
    )
    line = [sys.executable, "-c", limited, "predict", pairs, "--run", tmp_path / "shared"]
    line += ["--store", store, "--out", tmp_path / "out.csv"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: not enough memory (")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("layers", [5, None, ["a"], [True], [0], {}])
def test_a_folder_whose_record_has_no_valid_layers_is_skipped(tmp_path, table, layers):
    add_vectors(tmp_path / "store", table)
    (path,) = (tmp_path / "store").glob("antibody-*/encoder.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "layers": layers}))
    store = open_store(tmp_path / "store")
    assert [folder.kind for folder in store.folders()] == ["antigen"]
    assert "encoder.json has the layers" in store.damaged[0][1]


def adapter_of(folder):
    for path in ADAPTER_PATHS:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"own")


@pytest.mark.parametrize("path_inside", ["adapter", "adapter/antibody", *ADAPTER_PATHS])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_in_an_adapter_is_never_followed(tmp_path, table, path_inside, kind):
    store = add_vectors(tmp_path / "store", table)
    folder = store.folder("antibody").path
    adapter_of(folder)
    (folder / path_inside).rename(tmp_path / "secret")
    if kind == "link":
        (folder / path_inside).symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(folder / path_inside)
    with pytest.raises(UnsafeFile, match="expected a regular file"):
        store.folder("antibody").adapter_files()
    with pytest.raises(UnsafeFile, match="expected a regular file"):
        merge([store.path], tmp_path / "merged")
    name = path_inside.removeprefix("adapter/")
    if "antibody" in path_inside or name == "splits.parquet":  # what embed --antibody-adapter reads
        with pytest.raises(UnsafeFile, match="expected a regular file"):
            read_adapter_files(folder / "adapter", "antibody")


def test_the_folder_that_the_user_names_may_be_a_link(tmp_path):
    adapter_of(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert read_inside(tmp_path / "link", ADAPTER_PATHS[0]) == b"own"
    with pytest.raises(FileNotFoundError):
        read_inside(tmp_path / "link", "adapter/missing")


@pytest.mark.parametrize("name", ["key", "length", "has_light", "max"])
def test_only_poolings_are_read_as_vectors(tmp_path, name):
    store = open_store(tmp_path / "store", create=True)
    keys = np.random.default_rng(0).integers(0, 256, (60, 16), dtype=np.uint8)
    folder = store.create_folder("antibody", {"name": "x", "fingerprint": FINGERPRINT})
    flags = {"has_light": np.ones(len(keys), np.uint8)}
    with folder.writer(attrs={}) as out:
        x_ND = np.ones((len(keys), 4), np.float16)
        out.add(keys, np.full(len(keys), 9, np.int32), {"mean": x_ND, "cls": x_ND}, flags)
    with pytest.raises(StoreError, match=rf"'{name}' is not stored; expected mean or cls\."):
        folder.read(keys, name)


class Bomb:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def commands(foreign, table, new):
    yield "embed", foreign, "--store", new
    yield "embed", table, "--store", foreign, *PLAIN_ENCODERS
    yield "embed", table, "--store", new, "--antibody-encoder", foreign
    yield "fit", foreign, "--store", new, "--run", new
    yield "fit", table, "--store", foreign, "--run", new
    yield "evaluate", "--run", foreign
    yield "predict", table, "--run", foreign, "--out", new.with_suffix(".csv")
    yield "plan", foreign
    yield "store", "verify", foreign
    yield "store", "merge", foreign, "--out", new


@pytest.mark.parametrize("name", ["old.pt", "old.csv"])
def test_every_command_refuses_a_checkpoint_of_torch_in_one_line(tmp_path, table, name):
    foreign = tmp_path / name
    pairs = tmp_path / "pairs.csv"
    torch.save({"head": torch.zeros(3), "bomb": Bomb()}, foreign)
    table.to_csv(pairs, index=False)
    before = everything_in(tmp_path)
    for command in commands(foreign, pairs, tmp_path / "new"):
        assert str(foreign) in one_line(*command), command
        assert everything_in(tmp_path) == before
