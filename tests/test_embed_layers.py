"""Poolings of inner layers, computed in the same pass as those of the last."""

import json
from contextlib import suppress

import numpy as np
import pytest
import torch
from drawn import TINY, demo_table
from encoding import CPU, FAMILIES, batch_of, load_encoder, pooled_layers, random_encoder
from stores import merge, verify

import abag
from abag import AbagError, EncoderError, OptionError, StoreError, embed_table, open_store


@pytest.fixture
def table():
    return demo_table().head(12)


@pytest.mark.parametrize("family", [n for n, f in FAMILIES.items() if "packed" in f.backends])
def test_every_familys_packed_layers_are_those_of_its_reference(family, tmp_path):
    identity = random_encoder(tmp_path, family)
    batch = batch_of(identity, ("EVQLVESGGG",))
    packed, reference = (
        pooled_layers(load_encoder(identity, CPU, backend=backend), batch, [0, 1, 2])
        for backend in ("packed", "reference")
    )
    assert set(packed) == {0, 1, 2}
    for layer, ours in packed.items():
        torch.testing.assert_close(ours, reference[layer], rtol=1e-5, atol=1e-5)


def test_layers_are_stored_with_the_last_and_leave_its_bits_unchanged(table, tmp_path):
    embed_table(table, tmp_path / "plain", store_dtype="float32", **TINY)
    done = embed_table(table, tmp_path / "deep", store_dtype="float32", layers=(1, 2), **TINY)
    plain, deep = (abag.open_store(tmp_path / name) for name in ("plain", "deep"))
    antigens = list(table["antigen"])
    assert done["antigens"]["fingerprint"] == plain.folder("antigen").fingerprint
    for pooling in ("mean", "cls"):
        ours, theirs = (s.vectors("antigen", antigens, pooling=pooling) for s in (deep, plain))
        assert np.array_equal(ours, theirs)
    last = deep.vectors("antigen", antigens, pooling="mean@2")
    np.testing.assert_array_equal(last, deep.vectors("antigen", antigens))
    assert "light_mean@1" in deep.folder("antibody").poolings


def test_a_store_continues_with_its_own_layers_and_refuses_others(table, tmp_path):
    store = tmp_path / "store"
    embed_table(table, store, limit=5, layers=(1,), **TINY)
    before = sorted(store.rglob("*.h5"))
    with pytest.raises(StoreError, match=r"begun with layers=1, not 2;"):
        embed_table(table, store, layers=(2,), **TINY)
    assert sorted(store.rglob("*.h5")) == before
    embed_table(table, store, **TINY)
    opened = abag.open_store(store)
    assert len(opened.vectors("antigen", list(table["antigen"]), pooling="mean@1")) == len(table)
    assert opened.folder("antigen").damaged == []


def test_a_store_without_layers_says_how_to_get_them(table, tmp_path):
    embed_table(table, tmp_path / "store", **TINY)
    with pytest.raises(StoreError, match="begun with layers none, not 1"):
        embed_table(table, tmp_path / "store", layers=(1,), **TINY)
    opened = abag.open_store(tmp_path / "store")
    with pytest.raises(StoreError, match=r"'mean@1' is not stored.*--layers 1 into"):
        opened.vectors("antigen", list(table["antigen"]), pooling="mean@1")


def test_each_encoder_uses_the_layers_it_has_and_a_layer_of_neither_is_an_error(table, tmp_path):
    mixed = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "composition"}
    embed_table(table, tmp_path / "store", layers=(1,), **mixed)
    opened = abag.open_store(tmp_path / "store")
    assert opened.folder("antigen").poolings == ("mean",)
    assert "mean@1" in opened.folder("antibody").poolings
    with pytest.raises(OptionError, match=r"layers=3: tiny-igt5 has 2 and composition has 0"):
        embed_table(table, tmp_path / "new", layers=(3,), **mixed)
    with pytest.raises(EncoderError, match="FAESM returns the last layer only"):
        embed_table(table, tmp_path / "new", layers=(1,), antigen_backend="faesm", **TINY)
    assert not (tmp_path / "new").exists()


def test_more_layers_than_a_shard_can_hold_are_refused(table, tmp_path, monkeypatch):
    monkeypatch.setattr("abag.embed.job.MAX_ARRAYS", 12)  # 3 poolings of 3 layers, and 4 others
    with pytest.raises(OptionError, match=r"antibodies would hold 13 arrays.*at most 12"):
        embed_table(table, tmp_path / "store", layers=(1, 2), **TINY)
    assert not (tmp_path / "store").exists()


def test_stores_of_other_layers_are_not_merged(table, tmp_path):
    embed_table(table, tmp_path / "plain", **TINY)
    embed_table(table, tmp_path / "deep", layers=(1,), **TINY)
    with pytest.raises(StoreError, match=r"has the layers \[1\]"):
        merge([tmp_path / "plain", tmp_path / "deep"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.ci
def test_a_head_trains_on_a_layers_pooling(table, tmp_path):
    table = demo_table().head(60)
    embed_table(table, tmp_path / "store", layers=(1,), **TINY)
    options = {"antibody_pooling": "mean@1", "antigen_pooling": "mean@2", "split": "random"}
    with pytest.raises(StoreError, match="mean@2"):
        abag.fit(table, tmp_path / "store", tmp_path / "run", **options)
    options["antigen_pooling"] = "cls@1"
    summary = abag.fit(
        table, tmp_path / "store", tmp_path / "run", epochs=1, report=False, **options
    )
    assert summary["regimes"][0]["n"] > 0


@pytest.mark.parametrize("promised", [{"layers": [1]}, {"layers": [99]}, {"poolings": ["cdr_mean"]},
                                      {"loglik": "ab" * 16}, {"adapter": "ab" * 16}])  # fmt: skip
def test_what_encoder_json_promises_and_the_shards_lack_is_found_and_ends_in_one_line(
    table, tmp_path, promised
):
    store = tmp_path / "store"
    embed_table(table.head(4), store, **TINY)
    path = open_store(store).folder("antibody").path / "encoder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | promised))
    assert len(verify(open_store(store))) == 1
    with suppress(AbagError):  # what cannot be continued is refused in one line
        embed_table(table.head(6), store, **TINY)
