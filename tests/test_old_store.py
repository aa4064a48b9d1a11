"""The store format does not change: files of the old code are read, extended, packed and merged.

`tests/fixtures/make_store.py` wrote them with the code of commit b040d05, before it was split
into sub-packages.
"""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import abag
from abag.core.files import Files
from abag.core.messages import reporting
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.sequences.chains import antibody, antigen, keys_array
from abag.embed.shards.hdf5_layout import BlockSource, shard_chunks
from abag.embed.shards.shard import commit_shard, read_table_of_contents
from abag.embed.store.maintenance import merge, pack, verify
from abag.embed.store.spool import publish_spools, spooled_rows
from abag.embed.store.store import open_store

FIXTURE = Path(__file__).parent / "fixtures" / "store.tar.xz"
HEAVY = ("EVQLVESGGGLVQPGGSLRL", "QVQLQQSGAELARPGASVKM", "")
LIGHT = ("DIQMTQSPSSLSASVGDRVT", "", "DIVMTQSPDSLAVSLGERAT")
ANTIGEN = ("MKTAYIAKQRQISFVK", "MKTAYIAKQR|GGSGGSACDE", "ACDEFGHIKLMNPQRSTVWY")
KEYS = {
    "antibody": keys_array("antibody", [antibody(h, s) for h, s in zip(HEAVY, LIGHT, strict=True)]),
    "antigen": keys_array("antigen", [antigen(text) for text in ANTIGEN]),
}


@pytest.fixture
def old(tmp_path):
    with tarfile.open(FIXTURE) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "stored"


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_vectors(path):
    """Check every stored vector, bit for bit."""
    store = open_store(path)
    assert verify(store) == []
    expected = dict(np.load(path.parent / "vectors.npz"))
    assert len(store.folders()) == 4
    for folder in store.folders():
        for pooling in folder.poolings:
            vectors = expected.pop(f"{folder.kind} {folder.name} {pooling}")
            assert np.array_equal(folder.read(KEYS[folder.kind], pooling), vectors)
    assert not expected


@pytest.mark.parametrize("name", ["store", "packed.h5"])
def test_reading_an_old_store_changes_nothing_in_it(old, name):
    before = files(old)
    assert_vectors(old / name)
    assert files(old) == before


def test_an_old_store_is_extended_and_its_shards_stay(old):
    before = files(old / "store")
    table = pd.DataFrame(
        {"heavy": [*HEAVY, "QVQL"], "light": [*LIGHT, ""], "antigen": [*ANTIGEN, "MKT"]}
    )
    for encoders in (("composition", "composition"), ("tiny-igt5", "tiny-esm2")):
        summary = abag.embed_table(table, old / "store", *encoders, device="cpu", progress=False)
        for plural in ("antibodies", "antigens"):
            assert (summary[plural]["reused"], summary[plural]["encoded"]) == (3, 1)
    after = files(old / "store")
    for path in before:
        if path.suffix == ".h5" or path.name == "abag-store.json":
            assert after[path] == before[path]
        if path.name == "encoder.json":
            assert json.loads(before[path]).items() <= json.loads(after[path]).items()
    assert_vectors(old / "store")


def test_an_old_store_is_not_extended_after_config_json_has_changed(old, tmp_path):
    table = pd.DataFrame(
        {"heavy": [*HEAVY, "QVQL"], "light": [*LIGHT, ""], "antigen": [*ANTIGEN, "MKT"]}
    )
    encoders = ("composition", "tiny-esm2")
    abag.embed_table(table, old / "store", *encoders, device="cpu", progress=False)
    changed = shutil.copytree(find_checkpoint("tiny-esm2").folder, tmp_path / "tiny-esm2")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "num_attention_heads": 2}))
    encoders = ("composition", str(changed))
    summary = abag.embed_table(table, old / "store", *encoders, device="cpu", progress=False)
    assert (summary["antigens"]["reused"], summary["antigens"]["encoded"]) == (0, 4)


def test_old_stores_are_merged_and_packed(old):
    copied = merge([old / "store"], old / "copy")
    assert (copied["copied"], copied["rows"], copied["duplicates"]) == (8, 12, 0)
    assert files(old / "copy").items() <= files(old / "store").items()
    unpacked = merge([old / "packed.h5"], old / "unpacked")
    assert (unpacked["copied"], unpacked["rows"]) == (4, 12)
    pack(open_store(old / "store"), old / "again.h5")
    for path in (old / "copy", old / "unpacked", old / "again.h5"):
        assert_vectors(path)
    one, other = (
        read_table_of_contents(old / name, most_bytes=1 << 20) for name in ("packed.h5", "again.h5")
    )
    assert one.about == other.about
    for ours, theirs in zip(one.blocks, other.blocks, strict=True):
        assert (ours.group, ours.attrs, ours.arrays) == (theirs.group, theirs.attrs, theirs.arrays)


def today(old, *sequences):
    """Embed with today's code into a new store."""
    heavy, antigens = zip(*sequences, strict=True)
    table = pd.DataFrame({"heavy": heavy, "antigen": antigens})
    abag.embed_table(table, old / "new", "tiny-igt5", "tiny-esm2", device="cpu", progress=False)


def test_an_old_and_a_new_store_of_one_encoder_are_merged_once_it_is_known(old):
    today(old, (HEAVY[0], ANTIGEN[0]), ("QVQL", "MKT"))
    said = []
    with reporting(said.append):
        merge([old / "store", old / "new"], old / "apart")
    assert len(open_store(old / "apart").folders()) == 6
    assert sum("kept apart" in line for line in said) == 2
    table = pd.DataFrame({"heavy": ["QVQLQ"], "antigen": ["MKTA"]})
    abag.embed_table(table, old / "store", "tiny-igt5", "tiny-esm2", device="cpu", progress=False)
    for number, sources in enumerate([("store", "new"), ("new", "store")]):
        out, said = old / f"joined{number}", []
        for copied in (True, False):  # merging again finds everything
            with reporting(said.append):
                summary = merge([old / name for name in sources], out)
            assert (summary["copied"] > 0, summary["conflicts"]) == (copied, 0)
        assert not said
        joined = open_store(out)
        assert verify(joined) == []
        assert len(joined.folders()) == 4
        for kind, text in (("antibody", ("QVQL", "")), ("antigen", "MKT")):
            name = "tiny-igt5" if kind == "antibody" else "tiny-esm2"
            new_store = open_store(old / "new")
            (new,) = new_store.folders(kind)
            one, other = (s.vectors(kind, [text], encoder=name) for s in (joined, new_store))
            assert np.array_equal(one, other)
            folder = joined.folder(kind, name)
            assert not folder.missing(KEYS[kind]).any()
            assert new.fingerprint in folder.fingerprints
        table = pd.DataFrame({"heavy": [*HEAVY[:2], "QVQL"], "light": [*LIGHT[:2], ""]})
        table["antigen"] = [*ANTIGEN[:2], "MKT"]
        again = abag.embed_table(
            table, out, "tiny-igt5", "tiny-esm2", device="cpu", progress=False
        )  # fmt: skip
        assert [again[kind]["encoded"] for kind in ("antibodies", "antigens")] == [0, 0]


def test_an_old_shard_written_again_has_the_same_attributes_and_arrays(old):
    for path in (old / "store").rglob("*.h5"):
        (block,) = read_table_of_contents(path).blocks
        arrays = {name: block.load(name) for name in block.arrays}
        copy = old / path.name
        commit_shard(copy, shard_chunks([BlockSource.of(block.attrs, arrays)]), Files())
        (again,) = read_table_of_contents(copy).blocks
        assert (again.attrs, again.arrays) == (block.attrs, block.arrays)


def test_an_old_spool_is_published(old, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(old))
    store_digest = hashlib.blake2b(bytes(old / "store"), digest_size=6).hexdigest()
    (old / "waiting").rename(old / f"abag-waiting-{store_digest}-0123abcd")
    assert spooled_rows(old / "store") == 2
    assert publish_spools(old / "store") == 2
    keys = np.arange(32, dtype=np.uint8).reshape(2, 16)
    folder = open_store(old / "store").folder("antibody", "tiny-igt5")
    assert (folder.read(keys) == 1).all()
    assert not list(old.glob("abag-waiting-*"))
