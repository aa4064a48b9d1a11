"""The store returns the bits that it was given, or reports what is wrong."""

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from faults import UnsafeFile, before_operations, denying, failing, host_name, raising
from hypothesis import given, settings
from hypothesis import strategies as st
from invoke import run
from marks import in_ci
from stores import (
    QUEUED_COMMITS,
    StoreUnreachable,
    keys_array,
    merge,
    open_shard,
    publish_spools,
    set_patience,
    verify,
)
from trastuzumab import HEAVY, LIGHT

import abag
from abag import (
    AbagError,
    DamagedFile,
    MissingVectors,
    OptionError,
    OutputError,
    SequenceError,
    StoreError,
    open_store,
)
from abag.core.files import STALE_SECONDS
from abag.core.messages import reporting

INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}
OTHER = {"name": "igt5", "fingerprint": "9b1e77aa" * 4}
FORMAT_PAGE = Path(__file__).parents[1] / "docs" / "store-format.md"


def keys_of(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 16), dtype=np.uint8)


def vectors_of(n, width=8, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal((n, width)).astype(dtype)


def add(folder, keys, vectors, *, flag=1, attrs=None, **options):
    with folder.writer(attrs=attrs or {"precision": "fp32"}, **options) as out:
        n = len(keys)
        poolings = {"mean": vectors, "cls": vectors + vectors.dtype.type(1)}
        out.add(keys, np.arange(n) + 100, poolings, {"has_light": np.full(n, flag, np.uint8)})
    return out


@pytest.fixture
def folder(tmp_path):
    return open_store(tmp_path / "store", create=True).create_folder("antibody", INFO)


@pytest.fixture
def filled(folder):
    """A folder of three shards of 20, 20 and 10 rows."""
    add(folder, keys_of(50), vectors_of(50), commit_rows=20)
    return folder


def reopened(folder):
    return open_store(folder.path.parent).folder(folder.kind, folder.path.name)


def shard_of(folder, number=0):
    return sorted(folder.path.glob("*.h5"))[number]


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    width=st.integers(1, 9),
    batch=st.integers(1, 25),
    commit_rows=st.integers(1, 30),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 99),
)
def test_the_store_returns_the_bits_it_was_given(
    tmp_path_factory, n, width, batch, commit_rows, dtype, seed
):
    folder = open_store(tmp_path_factory.mktemp("s"), create=True).create_folder("antigen", INFO)
    keys = keys_of(n, seed)
    vectors = vectors_of(n, width, seed, dtype)
    with folder.writer(attrs={}, commit_rows=commit_rows) as out:
        for at in range(0, n, batch):
            part = slice(at, at + batch)
            out.add(keys[part], np.arange(n)[part], {"mean": vectors[part]})
    order = np.random.default_rng(seed).integers(0, n, 2 * n)
    assert out.committed == n
    assert np.array_equal(folder.read(keys[order]), vectors[order].astype(np.float32))
    assert np.array_equal(folder.read_array(keys[order], "length", np.int32), order)
    assert max(block.rows for block in folder.shards()) <= commit_rows


def test_poolings_lengths_and_flags_are_stored_side_by_side(filled):
    keys = keys_of(50)
    vectors = vectors_of(50)
    assert filled.poolings == ("mean", "cls")
    assert np.array_equal(filled.read(keys, "cls"), (vectors + np.float16(1)).astype(np.float32))
    assert np.array_equal(filled.read_array(keys[:3], "length", np.int32), [100, 101, 102])
    assert filled.read_array(keys, "has_light", np.uint8).all()
    assert filled.read_array(keys, "mean", np.float16).dtype == np.float16
    with pytest.raises(StoreError, match=r"'max' is not stored; expected mean or cls"):
        filled.read(keys, "max")


def test_missing_sequences_are_counted_and_listed(filled):
    asked = np.concatenate([keys_of(50), keys_of(2, seed=1)])
    assert filled.missing(asked).tolist() == 50 * [False] + 2 * [True]
    with pytest.raises(MissingVectors, match="2 of 52 sequences") as caught:
        filled.read(asked)
    assert caught.value.rows.tolist() == [50, 51]


def test_vectors_are_found_by_their_residues(folder):
    keys = keys_array("antibody", [("EVQL", "DIQM"), ("EVQL", "")])
    add(folder, keys, vectors_of(2))
    store = open_store(folder.path.parent)
    vectors = store.vectors("antibody", [("evql", ""), ("EVQL", "DIQM")])
    assert np.array_equal(vectors, vectors_of(2)[::-1])
    with pytest.raises(MissingVectors):
        store.vectors("antibody", [("DIQM", "EVQL")])


ILL_FORMED = [
    ("antibody", [("EVQL", "DIQM", "EVQL")], r"^sequence 1: \('EVQL', 'DIQM', 'EVQL'\) "),
    ("antibody", [("EVQL", ""), ("EVQL",)], r"^sequence 2: \('EVQL',\) "),
    ("antibody", [()], r"^sequence 1: \(\) "),
    ("antibody", [7], r"^sequence 1: 7 "),
    ("antibody", [("EVQL", 7)], r"^sequence 1: light: 7 "),
    ("antibody", [b"EVQL"], r"^sequence 1: b'EVQL' "),
    ("antibody", [{"heavy": "EVQL"}], r"^sequence 1: {'heavy': 'EVQL'} "),
    ("antigen", [3], r"^sequence 1: antigen: 3 "),
    ("antigen", ["MKT", ("MKT", 3)], r"^sequence 2: 3 "),
    ("antigen", [()], r"^sequence 1: \(\) "),
    ("antigen", "MKT", r"^sequences: 'MKT' "),
    ("antibody", "EVQL|DIQM", r"^sequences: 'EVQL\|DIQM' "),
    ("antigen", b"MKT", r"^sequences: b'MKT' "),
    ("antigen", 3, r"^sequences: 3 "),
    ("antigen", None, r"^sequences: None "),
    ("antibody", pd.DataFrame({"heavy": ["EVQL"], "light": [""]}), r"^sequences: a DataFrame "),
    ("antigen", {"MKT": 1}, r"^sequences: {'MKT': 1} "),
]


@pytest.mark.parametrize(("kind", "sequences", "message"), ILL_FORMED)
def test_what_is_not_a_list_of_sequences_is_refused_in_one_line(folder, kind, sequences, message):
    add(folder, keys_array("antibody", [("EVQL", "")]), vectors_of(1))
    with pytest.raises(SequenceError, match=message) as caught:
        open_store(folder.path.parent).vectors(kind, sequences)
    assert "; expected " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_antibody_in_one_text_is_read_as_in_a_table(tmp_path):
    texts = [f"{HEAVY}|{LIGHT}", HEAVY + LIGHT, LIGHT + HEAVY, HEAVY]
    table = pd.DataFrame({"antibody": texts, "antigen": "MKTAYIAK"})
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    store = open_store(tmp_path / "store")
    asked = [(HEAVY, LIGHT)] * 3 + [(HEAVY, "")]
    expected = store.vectors("antibody", asked)
    assert np.array_equal(store.vectors("antibody", table["antibody"]), expected)
    with pytest.raises(SequenceError):
        store.vectors("antibody", [None])


def test_a_key_stored_twice_is_read_from_the_first_file_name(folder):
    keys = keys_of(5)
    add(folder, keys, vectors_of(5, seed=1))
    add(folder, keys, vectors_of(5, seed=2))
    first = open_shard(shard_of(folder))
    vectors = reopened(folder).read(first.keys)
    assert np.array_equal(vectors, first.load("mean").astype(np.float32))


def test_shards_added_by_other_processes_are_found_at_the_next_call(filled):
    other = reopened(filled)
    assert other.missing(keys_of(60)).sum() == 10
    add(filled, keys_of(60)[50:], vectors_of(10))
    assert other.missing(keys_of(60)).sum() == 0


def test_an_encoder_is_found_by_name_folder_or_fingerprint(filled):
    store = open_store(filled.path.parent)
    for encoder in (None, "igt5", "antibody-igt5-3f2c9b1e", "3f2c9b1e3f"):
        assert store.folder("antibody", encoder).path == filled.path
    with pytest.raises(StoreError, match=r"no antibody encoder 'esm2'; stored: igt5\."):
        store.folder("antibody", "esm2")
    with pytest.raises(StoreError, match="no antigen encoder"):
        store.folder("antigen")


def test_two_encoders_with_the_same_name_are_ambiguous(filled):
    store = open_store(filled.path.parent)
    other = store.create_folder("antibody", OTHER)
    assert store.folder("antibody").path == filled.path  # the other holds nothing yet
    add(other, keys_of(2), vectors_of(2))
    with pytest.raises(StoreError, match=r"3f2c9b1e \(igt5\), 9b1e77aa \(igt5\)"):
        store.folder("antibody", "igt5")
    assert store.folder("antibody", "9b1e77").path == other.path


@pytest.mark.parametrize("revision", ["abc", "refs/pr/1"])
def test_an_encoder_is_found_by_what_embed_was_given(filled, monkeypatch, revision):
    monkeypatch.chdir(filled.path)
    store = open_store(filled.path.parent)
    ours = {
        "name": "my-model",
        "fingerprint": "1b" * 16,
        "origin": str(filled.path / "models" / "my_model"),
    }
    hub = {"name": "esm2", "fingerprint": "2b" * 16, "origin": f"facebook/esm2@{revision}"}
    adapted = {"name": "esm2-mine", "fingerprint": "3b" * 16, "adapter": "4b" * 16}
    later = {"name": "later", "fingerprint": "5b" * 16, "origin": f"{ours['origin']}@2"}
    for info in (ours, later, hub, {**hub, **adapted}):
        store.create_folder("antigen", info)
    for encoder in ("models/my_model", "./models/my_model"):
        assert store.folder("antigen", encoder).name == "my-model"
    for encoder in ("facebook/esm2", f"facebook/esm2@{revision}", "esm2"):
        assert store.folder("antigen", encoder).name == "esm2"
    for other in ("facebook/esm2@other", "~no-such-user/my_model"):
        with pytest.raises(StoreError, match="stored: "):
            store.folder("antigen", other)


def test_creating_a_folder_again_returns_it_unless_the_fingerprint_differs(filled):
    store = open_store(filled.path.parent)
    assert store.create_folder("antibody", {**INFO, "note": "new"}).rows == 50
    with pytest.raises(StoreError, match="expected 3f2c9b1e0000"):
        store.create_folder("antibody", {**INFO, "fingerprint": "3f2c9b1e" + 24 * "0"})


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", "x\n"])
def test_an_encoder_name_cannot_leave_the_store(tmp_path, name):
    store = open_store(tmp_path / "store", create=True)
    try:
        made = store.create_folder("antibody", {**INFO, "name": name}).path
    except AbagError:
        return
    assert made.parent == store.path
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_a_path_without_a_store_is_refused_and_left_unchanged(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        open_store(tmp_path / "none")
    with pytest.raises(StoreError, match="is empty"):
        open_store(tmp_path)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"is not a store, it holds thesis\.txt"):
        open_store(tmp_path, create=True)
    with pytest.raises(StoreError, match="is a file; expected the folder of a store"):
        open_store(tmp_path / "thesis.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_copied_encoder_folders_are_a_store_and_continued_without_mark_and_encoder_json(filled):
    store = filled.path.parent
    (store / "abag-store.json").unlink()
    assert open_store(store).folder("antibody").missing(keys_of(50)).sum() == 0
    (filled.path / "encoder.json").unlink()
    with pytest.raises(StoreError, match="is not a store, it holds antibody-"):
        open_store(store)
    continued = open_store(store, create=True).create_folder("antibody", INFO)
    assert np.array_equal(continued.read(keys_of(50)), vectors_of(50))


@pytest.mark.parametrize("version", [1, 3])
def test_a_store_of_another_version_is_refused(filled, version):
    mark = {"format": "abag-store", "version": version}
    (filled.path.parent / "abag-store.json").write_text(json.dumps(mark))
    with pytest.raises(StoreError, match="Embed again into a new store"):
        open_store(filled.path.parent)


def test_a_damaged_encoder_json_is_reported_and_rewritten_by_the_next_run(filled, said):
    (filled.path / "encoder.json").write_text("{")
    store = open_store(filled.path.parent)
    assert store.folders() == []
    assert "encoder.json" in store.damaged[0][1]
    assert "skipped" in said[0]
    assert store.create_folder("antibody", INFO).missing(keys_of(50)).sum() == 0


@pytest.mark.parametrize("name", ["", "encoder.json", "*.h5"])
def test_what_cannot_be_read_of_a_store_is_reported_beside_the_rest(filled, monkeypatch, name):
    store = filled.path.parent
    other = open_store(store).create_folder("antigen", OTHER)
    add(other, keys_of(3), vectors_of(3))
    record = (filled.path / "encoder.json").read_bytes()
    denied = next(filled.path.glob(name)) if name else filled.path
    with monkeypatch.context() as patch:
        denying(patch, denied)
        for command in ("info", "verify"):
            assert (
                f"{denied}: cannot be read by this user"
                in run("store", command, store, code=1).stdout
            )
        assert "antigen · igt5" in run("store", "info", store, code=1).stdout
        if name != "*.h5":
            with pytest.raises(DamagedFile, match="cannot be read"):
                open_store(store).create_folder("antibody", filled.info)
    assert (filled.path / "encoder.json").read_bytes() == record


def test_a_read_only_store_is_said_to_be_before_anything_is_encoded(tmp_path, monkeypatch):
    table = pd.DataFrame({"heavy": [HEAVY], "light": [LIGHT], "antigen": ["MKTAYIAKQR"]})
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    denying(monkeypatch, tmp_path, only_writing=True)
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)  # there is nothing to do
    for store in ("store", "new"):
        with pytest.raises(OutputError, match=r"is read-only for this user; .* another store\."):
            abag.embed_table(table.assign(light=""), tmp_path / store, **COMPOSITION)


def wait_until(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_added_vectors_are_committed_in_time_without_further_ones(folder):
    with folder.writer(attrs={}, commit_seconds=0.05) as out:
        out.add(keys_of(3), np.ones(3), {"mean": vectors_of(3)})
        wait_until(lambda: out.committed == 3)
        assert reopened(folder).missing(keys_of(3)).sum() == 0


def test_leaving_by_an_exception_commits_what_was_added(folder):
    def interrupted():
        with folder.writer(attrs={}) as out:
            out.add(keys_of(3), np.ones(3), {"mean": vectors_of(3)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert folder.missing(keys_of(3)).sum() == 0


def test_add_blocks_while_too_much_is_uncommitted(folder):
    gate = threading.Event()
    done = []
    with before_operations(folder.path, lambda _: gate.wait(60)):
        out = folder.writer(attrs={}, commit_rows=2)

        def encode():
            for i in range(30):
                out.add(keys_of(30)[i : i + 1], np.ones(1), {"mean": vectors_of(1)})
                done.append(i)

        thread = threading.Thread(target=encode)
        thread.start()
        wait_until(lambda: len(done) >= 8)
        time.sleep(0.1)
        assert len(done) <= (QUEUED_COMMITS + 1) * 2
        gate.set()
        thread.join()
        out.close()
    assert out.committed == 30


def test_a_writer_that_dies_stops_the_encoder_with_its_own_error(folder):
    def encode():
        with folder.writer(attrs={}, commit_rows=1) as out:
            for i in range(30):
                out.add(keys_of(30)[i : i + 1], np.ones(1), {"mean": vectors_of(1)})

    with (
        before_operations(folder.path, raising(ZeroDivisionError("a bug"))),
        pytest.raises(ZeroDivisionError, match="a bug"),
    ):
        encode()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_largest_value_of_the_number_format_is_stored(folder, dtype):
    with folder.writer(attrs={}) as out:
        out.add(keys_of(3), np.ones(3), {"mean": np.full((3, 8), np.finfo(dtype).max, dtype)})
    assert (folder.read(keys_of(3)) == np.finfo(dtype).max).all()


@pytest.mark.parametrize("wrong", ["Mean", "../mean"])
def test_names_of_arrays_that_the_format_does_not_allow_are_refused(folder, wrong):
    with pytest.raises(ValueError, match=r"(?i)mean"), folder.writer(attrs={}) as out:
        out.add(keys_of(3), np.ones(3), {wrong: vectors_of(3)})


def test_partial_files_are_swept_when_their_process_is_gone_or_after_a_day(folder):
    host = host_name()
    gone = folder.path / f"a.{host}.999999999.partial"
    running = folder.path / f"b.0123456789abcdef.{host}.{os.getpid()}.partial"
    elsewhere = folder.path / "c.elsewhere.1.partial"
    old = folder.path / "d.elsewhere.1.partial"
    for path in (gone, running, elsewhere, old):
        path.write_bytes(b"half a shard")
    os.utime(old, (0, time.time() - STALE_SECONDS - 60))
    add(folder, keys_of(2), vectors_of(2))
    assert [p.exists() for p in (gone, running, elsewhere, old)] == [False, True, True, False]


CODES = [errno.EIO, errno.ENOTCONN, errno.ENOSPC, errno.ESTALE, errno.EROFS]


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Where spools are; retries come at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "local"))
    set_patience(monkeypatch, first_pause_s=0.001)
    return tmp_path / "local" / "abag" / "spool"


def operations(folder):
    with failing(folder.path, 0, when=lambda _: False) as counted:
        add(folder, keys_of(9, seed=9), vectors_of(9))
    return len(counted)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_one_failure_at_any_operation_of_a_commit_is_recovered(folder, local, code):
    for n in range(1, operations(folder) + 1):
        keys = keys_of(9, seed=100 + n)
        vectors = vectors_of(9, seed=n)
        with failing(folder.path, code, when=lambda call, n=n: call == n):
            assert add(folder, keys, vectors).committed == 9
        assert np.array_equal(reopened(folder).read(keys), vectors.astype(np.float32))
    assert not list(folder.path.glob("*.partial"))
    assert not list(local.glob("*/*/*.h5"))


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_uncommitted_shards_are_spooled_and_published_by_the_next_run(folder, local, code):
    for n in range(1, operations(folder) + 1):
        keys = keys_of(45, seed=200 + n)
        vectors = vectors_of(45, seed=n)
        with (
            failing(folder.path, code, when=lambda call, n=n: call >= n),
            pytest.raises(StoreUnreachable, match=rf"45 are kept in {local}\S+\. ") as caught,
        ):
            add(folder, keys, vectors, retry_seconds=0.0, commit_rows=20)
        assert publish_spools(folder.path.parent) == 45
        assert np.array_equal(reopened(folder).read(keys), vectors.astype(np.float32))
        assert "\n" not in str(caught.value)


def test_a_store_that_recovers_receives_everything(folder, local, said):
    down = threading.Event()
    down.set()
    with (
        failing(folder.path, errno.ENOTCONN, when=lambda _: down.is_set()),
        folder.writer(attrs={}, commit_rows=10) as out,
    ):
        for at in range(0, 100, 10):
            part = slice(at, at + 10)
            out.add(keys_of(100)[part], np.ones(10), {"mean": vectors_of(100)[part]})
        wait_until(lambda: len(list(local.glob("*/*/*.h5"))) == 10)
        assert out.committed == 0
        down.clear()
    assert out.committed == 100
    assert np.array_equal(reopened(folder).read(keys_of(100)), vectors_of(100).astype(np.float32))
    assert "cannot be written to" in said[0]
    assert said[1:] == [f"{folder.path}: is writable again."]
    assert not list(local.glob("*/*/*.h5"))


def test_an_error_of_the_run_takes_precedence_and_notes_the_spooled_shards(folder, local):
    def encode():
        with folder.writer(attrs={}, retry_seconds=0.0) as out:
            out.add(keys_of(3), np.ones(3), {"mean": vectors_of(3)})
            msg = "encoder"
            raise ValueError(msg)

    with failing(folder.path, errno.EIO), pytest.raises(ValueError, match="encoder") as caught:
        encode()
    assert "3 are kept in " in caught.value.__notes__[0]


@pytest.mark.parametrize("rows", [20, 5])
def test_sequences_that_cannot_be_spooled_either_are_counted(folder, local, rows):
    with (
        failing(folder.path.parent.parent, errno.ENOSPC),
        pytest.raises(StoreUnreachable, match=r"nor can the local .* 9 sequences could not"),
    ):
        add(folder, keys_of(9), vectors_of(9), commit_rows=rows)


def test_a_file_system_that_hangs_does_not_hang_the_command(folder, local, monkeypatch):
    set_patience(monkeypatch, hang_s=0.05)
    gate = threading.Event()
    with (
        before_operations(folder.path, lambda _: gate.wait(60)),
        pytest.raises(StoreUnreachable, match=r"does not respond.* 9 sequences could not be kept"),
    ):
        add(folder, keys_of(9), vectors_of(9))
    gate.set()


def test_an_unreadable_store_does_not_count_as_empty(filled, monkeypatch):
    monkeypatch.setattr("os.scandir", raising(OSError(errno.ENOTCONN, "not connected")))
    set_patience(monkeypatch, read_s=0.01)
    with pytest.raises(StoreUnreachable, match="cannot be accessed"):
        filled.missing(keys_of(50))


def outcome(folder):
    """Read every stored vector, assert that it is correct, and return the number of vectors."""
    fresh = reopened(folder)
    keys = keys_of(50)
    vectors = vectors_of(50)
    for pooling, expected in (("mean", vectors), ("cls", vectors + np.float16(1))):
        while True:
            there = ~fresh.missing(keys)
            try:
                got = fresh.read(keys[there], pooling)
            except MissingVectors:  # damage that only reading shows
                continue
            assert np.array_equal(got, expected[there].astype(np.float32))
            break
    return int(there.sum())


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 80), *in_ci((80, 250)), pytest.param(0, 10_000, marks=pytest.mark.slow)],
)
def test_flipped_bits_are_all_detected_and_never_give_a_wrong_vector(filled, first, last):
    path = shard_of(filled, 1)
    rng = random.Random(4)
    whole = path.read_bytes()
    detected = 0
    for number in range(last):
        at = rng.randrange(len(whole))
        flipped = whole[at] ^ (1 << rng.randrange(8))
        if number < first:
            continue
        path.write_bytes(whole[:at] + bytes([flipped]) + whole[at + 1 :])
        with reporting(silent=True):
            assert outcome(filled) in (30, 40, 50)
            detected += len(verify(open_store(filled.path.parent)))
    assert detected == last - first


def cut(data):
    return data[: len(data) // 2]


def swap_pages(data):
    half = len(data) // 2
    return data[half:] + data[:half]


DAMAGE = {
    "empty": lambda data: b"", "cut short": cut, "one byte short": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "half synced": lambda data: cut(data) + bytes(len(data) - len(cut(data))),
    "swapped": swap_pages, "only zeros": lambda data: bytes(len(data)),
    "foreign": lambda data: b"PK\x03\x04" + data[4:],
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_shard_is_reported_left_in_place_and_encoded_again(filled, how, said):
    path = shard_of(filled)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    fresh = reopened(filled)
    missing = fresh.missing(keys_of(50), verify=True)
    assert 10 <= missing.sum() <= 20
    assert [(p, path.name in why) for p, why in fresh.damaged] == [(path, True)]
    assert "".join(said).count("counts as missing") == 1
    add(fresh, keys_of(50)[missing], vectors_of(50)[missing])
    assert outcome(filled) == 50
    assert path.exists()
    assert len(verify(open_store(filled.path.parent))) == 1


def flip_vector(path):
    data = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        offset = file["mean"].id.get_chunk_info(0).byte_offset
    data[offset + 3] ^= 1
    path.write_bytes(data)


def test_a_damaged_vector_is_missing_if_verified_and_read_from_another_shard(filled):
    flip_vector(shard_of(filled))
    fresh = reopened(filled)
    assert fresh.missing(keys_of(50)).sum() == 0
    assert fresh.missing(keys_of(50), verify=True).sum() in (10, 20)
    assert len(fresh.damaged) == 1
    add(filled, keys_of(50), vectors_of(50))
    assert outcome(filled) == 50


def test_a_shard_of_another_encoder_is_skipped(filled):
    other = open_store(filled.path.parent).create_folder("antibody", OTHER)
    add(other, keys_of(5, seed=5), vectors_of(5))
    shard_of(other).rename(filled.path / shard_of(other).name)
    fresh = reopened(filled)
    assert fresh.missing(keys_of(5, seed=5)).all()
    assert "made by antibody encoder 9b1e77aa" in fresh.damaged[0][1]


def test_a_shard_of_another_width_is_skipped(filled):
    add(filled, keys_of(5, seed=5), vectors_of(5, width=4))
    assert reopened(filled).rows == 50  # most rows have the other one
    assert len(verify(open_store(filled.path.parent))) == 1


@pytest.mark.parametrize("name", ["{} (1)", "{} - Copy", "Copy of {}", "{} copy", "{}_conflict"])
def test_copies_of_shards_are_skipped_until_they_have_their_name(filled, said, name):
    path = shard_of(filled)
    copy = path.with_name(f"{name.format(path.stem)}.h5")
    shutil.copy(path, copy)
    fresh = reopened(filled)
    assert not fresh.missing(keys_of(50), verify=True).any()
    ((where, why),) = fresh.damaged
    assert where == copy
    assert "is not the name of a shard; expected 32 hexadecimal digits" in why
    assert "Remove a copy" in why
    path.unlink()
    fresh = reopened(filled)
    assert fresh.missing(keys_of(50)).any()
    assert "give it its name if the original is lost" in fresh.damaged[0][1]
    copy.rename(path)  # as it advises
    assert outcome(filled) == 50


def test_hidden_files_are_not_taken_for_shards(filled, said):
    """Those that macOS writes beside every file on a disk of another format, for instance."""
    path = shard_of(filled)
    path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7" + bytes(4092))
    path.with_name(".hidden.h5").write_bytes(b"")
    fresh = reopened(filled)
    assert (outcome(filled), fresh.damaged, said) == (50, [], [])
    assert verify(open_store(filled.path.parent)) == []


def test_linked_shards_say_how_the_store_is_copied(filled, tmp_path):
    path = shard_of(filled)
    path.rename(tmp_path / "elsewhere.h5")
    path.symlink_to(tmp_path / "elsewhere.h5")
    fresh = reopened(filled)
    assert fresh.missing(keys_of(50)).any()
    ((_, why),) = fresh.damaged
    assert f"{path.name}: is a symbolic link" in why
    assert "cp -rL or rsync -aL" in why
    shutil.copytree(filled.path.parent, tmp_path / "copy")  # follows links, as these do
    assert verify(open_store(tmp_path / "copy")) == []


def test_links_pipes_and_folders_are_not_read_as_shards(filled, tmp_path):
    outside = tmp_path / "outside.h5"
    shard_of(filled).rename(outside)
    (filled.path / f"{'0' * 32}.h5").symlink_to(outside)
    os.mkfifo(filled.path / f"{'0' * 31}1.h5")
    (filled.path / f"{'0' * 31}2.h5").mkdir()
    fresh = reopened(filled)
    assert 30 <= (~fresh.missing(keys_of(50))).sum() <= 40
    assert len(fresh.damaged) == 3


def test_a_linked_encoder_folder_is_not_followed(filled, tmp_path):
    filled.path.rename(tmp_path / filled.path.name)
    filled.path.symlink_to(tmp_path / filled.path.name)
    assert open_store(filled.path.parent).folders() == []


@pytest.mark.parametrize("dangling", [False, True])
def test_vectors_are_not_written_through_a_linked_encoder_folder(filled, tmp_path, dangling):
    outside = tmp_path / "outside"
    filled.path.rename(outside)
    filled.path.symlink_to(outside)
    if dangling:
        shutil.rmtree(outside)
    store = open_store(filled.path.parent, create=True)
    for find in (store.find_folder, store.create_folder):
        with pytest.raises(UnsafeFile, match="is a link; expected a folder"):
            find("antibody", INFO)
    assert outside.exists() is not dangling


def test_info_describes_what_is_stored(filled):
    later = time.time() + 1e6
    os.utime(shard_of(filled), (later, later))  # the clock was set back
    (summary,) = json.loads(run("store", "info", filled.path.parent, "--json").stdout)["encoders"]
    assert (summary["rows"], summary["unique"], summary["shards"]) == (50, 50, 3)
    assert summary["attrs"] == {"precision": {"fp32": 50}}
    assert summary["poolings"] == {"mean": 8, "cls": 8}
    assert summary["values"] == {"float16": 50}
    assert summary["newest_seconds_ago"] == 0


def test_damage_and_spooled_sequences_are_shown(filled, local):
    with failing(filled.path, errno.EIO), pytest.raises(StoreUnreachable):
        add(filled, keys_of(7, seed=7), vectors_of(7), retry_seconds=0.0)
    shard_of(filled).write_bytes(b"")
    lines = run("store", "info", filled.path.parent, code=1).stdout.splitlines()
    assert re.search(r"[34]0 vectors of 1 encoder, [12]\.\d kB$", lines[0])
    assert re.fullmatch(r"antibody · igt5 \(3f2c9b1e\): [34]0 sequences in 2 shards", lines[1])
    assert lines[2].startswith("  mean 8, cls 8 · float16, fp32 · last commit ")
    assert lines[3].startswith("  damaged: ")
    assert lines[4].startswith("7 sequences in a local spool on this machine")


def test_merging_copies_each_shard_once_and_counts_duplicates(filled, tmp_path):
    keys = keys_of(60)
    vectors = vectors_of(60)
    other = open_store(tmp_path / "other", create=True).create_folder("antibody", INFO)
    add(other, keys, vectors, attrs={"precision": "bf16"})
    sources = [filled.path.parent, other.path.parent]
    first = merge(sources, tmp_path / "all")
    again = merge(sources, tmp_path / "all")
    assert (first["copied"], first["present"], first["rows"]) == (4, 0, 110)
    assert first["duplicates"] == 50
    assert (again["copied"], again["present"], again["rows"]) == (0, 4, 110)
    merged = open_store(tmp_path / "all")
    assert verify(merged) == []
    assert merged.folder("antibody").missing(keys).sum() == 0
    with pytest.raises(StoreError, match="both a source and the result"):
        merge(sources, sources[0])


def test_merging_leaves_damaged_shards_out_and_replaces_them_from_a_copy(filled, tmp_path):
    merge([filled.path.parent], tmp_path / "copy")
    path = shard_of(filled)
    path.write_bytes(cut(path.read_bytes()))
    summary = merge([filled.path.parent], tmp_path / "all")
    assert summary["copied"] == 2
    assert path.name in summary["damaged"][0]
    assert filled.missing(keys_of(50)).sum() in (10, 20)
    merge([tmp_path / "copy"], filled.path.parent)
    assert filled.missing(keys_of(50)).sum() == 0
    assert filled.damaged == []
    assert outcome(filled) == 50


def removed_at(monkeypatch, number, remove):
    """Call `remove` before the store opens a file for the time `number`; return the paths."""
    opened = []
    real = os.open

    def opening(path, flags, *mode, **options):
        if flags & os.O_NONBLOCK:  # as files are opened that another person may have put there
            opened.append(path)
            if len(opened) == number:
                remove()
        return real(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", opening)
    return opened


@pytest.mark.parametrize("command", ["merge", "verify"])
def test_a_source_that_vanishes_at_any_moment_is_an_error(filled, tmp_path, command):
    source = filled.path.parent
    shutil.copytree(source, tmp_path / "whole")

    def call(name):
        if command == "merge":
            return merge([source], tmp_path / name)["copied"]
        return len(verify(open_store(source)))

    with pytest.MonkeyPatch.context() as patch:
        opened = removed_at(patch, 0, None)
        assert call("out") == (3 if command == "merge" else 0)
    moments = [n for n, path in enumerate(opened, 1) if path.is_relative_to(source)]
    assert len(moments) > 9
    for number in moments:
        with pytest.MonkeyPatch.context() as patch:
            removed_at(patch, number, lambda: shutil.rmtree(source))
            with pytest.raises(AbagError) as caught:
                call(f"out{number}")
        assert "\n" not in str(caught.value)
        shutil.copytree(tmp_path / "whole", source)


def test_a_store_that_is_emptied_after_it_was_opened_is_an_error(filled, tmp_path):
    opened = open_store(filled.path.parent)
    shutil.rmtree(filled.path.parent)
    filled.path.parent.mkdir()  # as a disk that is unmounted leaves it
    with pytest.raises(StoreUnreachable, match="the store has vanished"):
        verify(opened)
    with pytest.raises(StoreUnreachable, match="the store has vanished"):
        opened.vectors("antibody", [("EVQL", "")])


@pytest.mark.parametrize("command", ["merge", "verify"])
def test_a_shard_that_disappears_while_a_store_is_read_is_an_error(filled, tmp_path, command):
    removed_path = shard_of(filled, 2)
    with pytest.MonkeyPatch.context() as patch:
        opened = removed_at(patch, 0, None)
        verify(open_store(filled.path.parent))
    last = len(opened) - opened[::-1].index(removed_path)
    with pytest.MonkeyPatch.context() as patch:
        removed_at(patch, last, removed_path.unlink)
        expected = f"1 shard disappeared .*{removed_path.name}"
        read = {
            "verify": lambda: verify(open_store(filled.path.parent)),
            "merge": lambda: merge([filled.path.parent], tmp_path / "out"),
        }[command]
        with pytest.raises(StoreUnreachable, match=expected):
            read()


def test_the_example_of_the_format_page_reads_a_store(filled):
    (example,) = re.findall(r"```python\n(.*?)```", FORMAT_PAGE.read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 15
    scope = {}
    exec(compile(example, str(FORMAT_PAGE), "exec"), scope)
    vectors = scope["read_folder"](filled.path, "mean")
    assert len(vectors) == 50
    for key, vector in zip(keys_of(50), vectors_of(50), strict=True):
        assert np.array_equal(vectors[key.tobytes()], vector)


@pytest.mark.ci
def test_the_benchmark_of_the_store_runs():
    bench = FORMAT_PAGE.parents[1] / "benchmarks" / "bench_store.py"
    command = [sys.executable, str(bench), "--quick", "--times", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["keys"]["rows"] == 5000


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(tmp_path):
    abag.embed_table(pd.DataFrame({"heavy": ["EVQ"], "antigen": ["MKT"]}), tmp_path, **COMPOSITION)
    with pytest.raises(OptionError, match=r"^kind: 'heavy' is unknown; expected "):
        abag.open_store(tmp_path).vectors("heavy", ["EVQ"])
