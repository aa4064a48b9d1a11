"""Adapters merged into packed encoders: agreement with peft, fingerprints, errors."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from drawn import TINY, demo_table
from encoding import (
    CPU,
    FAMILIES,
    TINY_CONFIG,
    assert_close,
    batch_of,
    distance,
    identify,
    load_encoder,
    pooled,
    save_random_checkpoint,
    weights_digest,
)
from invoke import one_line
from marks import needs_antiberty
from safetensors.numpy import save
from stores import merge

import abag
from abag import DamagedFile, EncoderError, OptionError, embed_table
from abag.adapt.config import Lora
from abag.adapt.model import LoraEncoder, fit_lora
from abag.embed.encoders.loading import load_transformers_model, run_padded
from abag.embed.encoders.weights import (
    ADAPTER_FORMAT,
    PEFT_PREFIX,
    adapter_digest,
    read_adapter_files,
)

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
RNG = np.random.default_rng(3)
CHAINS = {"antibody": ("EVQLVESGGGLVQ", "DIQMTQSP"), "antigen": ("MKTAYIAKQRQISFVK", "GSHMA")}


def save_adapter(folder, name, kind, seed=0, **lora):
    """Write an adapter of random factors, as abag adapt would; returns its trainable encoder."""
    identity = identify(name, kind)
    encoder = LoraEncoder(identity.checkpoint, CPU, fit_lora(Lora(**lora), identity.checkpoint))
    draw = torch.Generator().manual_seed(seed)
    for factor in encoder.factors().values():
        factor.data = torch.randn(factor.shape, generator=draw) * 0.2
    weights, config = encoder.saved(encoder.factors())
    (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / kind / WEIGHTS_FILE).write_bytes(weights)
    (folder / kind / CONFIG_FILE).write_text(json.dumps(config))
    sign(folder, name, kind)
    return encoder.eval()


def sign(folder, name, kind):
    """Write the record of an adapter's files, and return it."""
    (folder / "splits.parquet").write_bytes(b"rows")
    base = weights_digest(identify(name, kind).checkpoint)
    digest = adapter_digest(base, read_adapter_files(folder, kind))
    side = {"encoder": name, "weights": base, "digest": digest}
    record = {**ADAPTER_FORMAT, "name": folder.name, "sides": {kind: side}}
    (folder / "adapter.json").write_text(json.dumps(record))
    return record


def mean(identity, encoder):
    return pooled(encoder, batch_of(identity, CHAINS[identity.layout.kind]))[0, 0]


@pytest.mark.parametrize(
    ("name", "kind", "backend"),
    [
        ("tiny-igt5", "antibody", "packed"),
        ("tiny-igt5", "antibody", "reference"),
        ("tiny-esm2", "antigen", "packed"),
        ("tiny-esm2", "antigen", "reference"),
        ("tiny-esm2", "antibody", "packed"),
        pytest.param("antiberty", "antibody", "packed", marks=needs_antiberty),
        ("roformer", "antibody", "packed"),  # the name of a family: a random checkpoint
        ("ankh", "antigen", "packed"),
        ("esmc", "antigen", "packed"),
        ("amplify", "antigen", "packed"),
        ("amplify", "antigen", "reference"),
        ("glm2", "antibody", "packed"),
    ],
)
def test_merged_weights_give_the_output_of_pefts_unmerged_model(tmp_path, name, kind, backend):
    if name in FAMILIES:
        config = FAMILIES[name].tiny_config
        name = str(save_random_checkpoint(tmp_path / name, config, seed=2))
    unmerged = save_adapter(tmp_path / "a", name, kind, rank=4, alpha=6.0)
    identity = identify(name, kind, adapter=tmp_path / "a")
    theirs = mean(identity, unmerged)
    ours = mean(identity, load_encoder(identity, CPU, backend=backend))
    base = mean(identity, load_encoder(identify(name, kind), CPU, backend=backend))
    assert_close(ours, theirs)
    assert distance(base, theirs) > 1e-3  # what not merging at all would give


def test_peft_loads_the_folder_and_gives_the_same_output(tmp_path):
    from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    encoder = save_adapter(tmp_path / "a", "tiny-esm2", "antigen", rank=4, layers=(2,))
    config = LoraConfig.from_pretrained(tmp_path / "a" / "antigen")
    identity = identify("tiny-esm2", "antigen")
    model = inject_adapter_in_model(config, load_transformers_model(identity.checkpoint).eval())
    tensors = load_file(tmp_path / "a" / "antigen" / WEIGHTS_FILE)
    bare = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}
    assert len(bare) == 4  # A and B of query and value, one layer
    assert not set_peft_model_state_dict(model.eval(), bare).unexpected_keys
    batch = batch_of(identity, CHAINS["antigen"])
    with torch.no_grad():
        out, is_token_NL = run_padded(model, batch, 1, CPU.device)
        assert torch.equal(out.last_hidden_state[is_token_NL], encoder(batch))


@pytest.mark.parametrize("name", ["tiny-igt5", "tiny-esm2"])
def test_gradient_checkpointing_stores_less_and_changes_no_gradient(name):
    kind = "antibody" if "igt5" in name else "antigen"
    identity = identify(name, kind)
    batch = batch_of(identity, CHAINS[kind])
    gradients = []
    kept = []

    def count(tensor):
        kept[-1] += tensor.nbytes
        return tensor

    for saving in (False, True):
        torch.manual_seed(0)
        lora = fit_lora(Lora(dropout=0.5), identity.checkpoint)
        encoder = LoraEncoder(identity.checkpoint, CPU, lora, gradient_checkpointing=saving)
        for factor in encoder.factors().values():
            factor.data.fill_(0.01)
        torch.manual_seed(1)
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = encoder.train()(batch).square().sum()
        loss.backward()
        gradients.append([p.grad for p in encoder.factors().values()])
    assert kept[1] < 0.5 * kept[0]
    assert all(g.abs().sum() > 0 for g in gradients[0])
    for plain, saved in zip(*gradients, strict=True):
        torch.testing.assert_close(saved, plain)


def test_only_the_factors_of_the_chosen_targets_and_layers_are_trainable(tmp_path):
    checkpoint = identify("tiny-igt5", "antibody").checkpoint
    all_of_it = LoraEncoder(checkpoint, CPU, fit_lora(Lora(rank=2), checkpoint)).factors()
    assert sum(p.numel() for p in all_of_it.values()) == 2 * 2 * (64 + 64) * 2
    lora = fit_lora(Lora(rank=2, targets=("k", "query"), layers=(2, 9)), checkpoint)
    some = LoraEncoder(checkpoint, CPU, lora).factors()
    assert {n.split(".lora_")[0] for n in some} == {"encoder.block.1.layer.0.SelfAttention.k"}
    with pytest.raises(OptionError, match=r"has none of --targets query.* q, k, v, o, wi, wo"):
        fit_lora(Lora(targets=("query",)), checkpoint)
    with pytest.raises(OptionError, match="has none of --layers 9; expected layers among 1 to 2"):
        fit_lora(Lora(layers=(9,)), checkpoint)
    with pytest.raises(OptionError, match="no weights to adapt"):
        fit_lora(Lora(), identify("composition", "antigen").checkpoint)


def test_an_adapter_changes_the_fingerprint_and_its_vectors_get_their_own_folder(tmp_path):
    table = demo_table().head(12)
    store = tmp_path / "store"
    save_adapter(tmp_path / "one", "tiny-igt5", "antibody", seed=0)
    save_adapter(tmp_path / "two", "tiny-igt5", "antibody", seed=1)
    bases = [None, tmp_path / "one", tmp_path / "two"]
    done = [embed_table(table, store, antibody_adapter=a, **TINY) for a in bases]
    assert len({d["antibodies"]["fingerprint"] for d in done}) == 3
    assert [d["antibodies"]["encoded"] > 0 for d in done] == [True] * 3
    assert [d["antigens"]["encoded"] > 0 for d in done] == [True, False, False]
    names = [f.name for f in abag.open_store(store).folders("antibody")]
    assert names == ["tiny-igt5", "tiny-igt5-one", "tiny-igt5-two"]


def test_embedding_continues_from_the_stores_copy_of_the_adapter(tmp_path):
    table = demo_table().head(12)
    store = tmp_path / "store"
    encoders = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "composition"}
    save_adapter(tmp_path / "one", "tiny-igt5", "antibody")
    first = embed_table(table, store, limit=4, antibody_adapter=tmp_path / "one", **encoders)
    with pytest.raises(abag.MissingVectors, match="no vector") as refused:
        abag.export_vectors(store, tmp_path / "to.npz", table=table)
    words = re.search(r"--antibody-encoder (\S+) --antibody-adapter (\S+),", str(refused.value))
    assert words[1] == "tiny-igt5"
    (tmp_path / "one").rename(tmp_path / "gone")
    again = embed_table(table, store, antibody_adapter=words[2], **encoders)
    assert again["antibodies"]["fingerprint"] == first["antibodies"]["fingerprint"]
    assert again["antibodies"]["reused"] == first["antibodies"]["unique"]


def test_a_merged_store_keeps_the_adapter_of_their_vectors(tmp_path):
    table = demo_table().head(6)
    store = tmp_path / "store"
    encoders = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "composition"}
    save_adapter(tmp_path / "one", "tiny-igt5", "antibody")
    embed_table(table, store, antibody_adapter=tmp_path / "one", **encoders)
    merge([store], tmp_path / "merged")
    stores = [abag.open_store(p) for p in (store, tmp_path / "merged")]
    ours, theirs = (s.folder("antibody").adapter_files() for s in stores)
    assert ours == theirs
    assert set(ours) == {
        "adapter/adapter.json",
        "adapter/splits.parquet",
        "adapter/antibody/adapter_config.json",
        "adapter/antibody/adapter_model.safetensors",
    }


def test_an_adapter_of_other_weights_is_an_error_with_both_digests_and_writes_nothing(tmp_path):
    demo_table().head(4).to_csv(tmp_path / "pairs.csv", index=False)
    other = save_random_checkpoint(tmp_path / "other", TINY_CONFIG["tiny-igt5"], seed=9)
    save_adapter(tmp_path / "one", "tiny-igt5", "antibody")
    error = one_line(
        "embed",
        tmp_path / "pairs.csv",
        "--store",
        tmp_path / "store",
        "--antibody-encoder",
        other,
        "--antigen-encoder",
        "composition",
        "--antibody-adapter",
        tmp_path / "one",
    )
    ours, theirs = (
        weights_digest(identify(n, "antibody").checkpoint) for n in ("tiny-igt5", str(other))
    )
    assert ours in error
    assert theirs in error
    assert not (tmp_path / "store").exists()


def test_incomplete_adapters_and_those_of_the_other_kind_are_refused(tmp_path):
    save_adapter(tmp_path / "one", "tiny-igt5", "antibody")
    with pytest.raises(EncoderError, match="adapts antibody, not antigen"):
        identify("tiny-esm2", "antigen", adapter=tmp_path / "one")
    with pytest.raises(EncoderError, match="no finished adapter"):
        identify("tiny-igt5", "antibody", adapter=tmp_path / "nowhere")
    with pytest.raises(EncoderError, match=f"no finished adapter .* Give {tmp_path / 'one'}"):
        identify("tiny-igt5", "antibody", adapter=tmp_path / "one" / "antibody")
    shutil.copytree(tmp_path / "one" / "antibody", tmp_path / "of peft")
    with pytest.raises(EncoderError, match=r"Merge an adapter of peft .* as --antibody-encoder"):
        identify("tiny-igt5", "antibody", adapter=tmp_path / "of peft")
    for name in ("nothing like it", str(tmp_path / "base")):
        with pytest.raises(EncoderError, match=f"{name}.*one was trained on tiny-igt5"):
            identify(name, "antibody", adapter=tmp_path / "one")
        with pytest.raises(EncoderError, match="no finished adapter"):  # before any download
            identify(name, "antibody", adapter=tmp_path / "nowhere")
    with pytest.raises(EncoderError, match="composition has weights none"):
        identify("composition", "antibody", adapter=tmp_path / "one")
    (tmp_path / "one" / "splits.parquet").write_bytes(b"other rows")
    with pytest.raises(DamagedFile, match="digest differs"):
        identify("tiny-igt5", "antibody", adapter=tmp_path / "one")
    (tmp_path / "one" / "splits.parquet").unlink()
    with pytest.raises(DamagedFile, match="incomplete"):
        identify("tiny-igt5", "antibody", adapter=tmp_path / "one")


def test_a_change_that_matches_no_weight_is_an_error_when_merged(tmp_path):
    save_adapter(tmp_path / "one", "tiny-esm2", "antigen")
    identity = identify("tiny-esm2", "antigen", adapter=tmp_path / "one")
    factors = identity.checkpoint.adapter.factors
    factors["encoder.layer.7.attention.self.query"] = next(iter(factors.values()))
    for backend in ("packed", "reference"):
        with pytest.raises(EncoderError, match="1 of its 5 changes match no weight"):
            load_encoder(identity, CPU, backend=backend)


# ---- adapters that anybody may have written: whatever is wrong with their files is one error ----

MODULE = "encoder.layer.0.attention.self.query"
A = np.ones((2, 64), np.float32)
B = np.ones((64, 2), np.float32)
CONFIG = {"lora_alpha": 4.0, "r": 2}


def factors(a=A, b=B):
    names = {"A": a, "B": b}
    return save(
        {f"{PEFT_PREFIX}{MODULE}.lora_{n}.weight": x for n, x in names.items() if x is not None}
    )


def forge(folder, config=CONFIG, weights=None):
    """Write an adapter of antigens, and sign what it holds."""
    (folder / "antigen").mkdir(parents=True)
    (folder / "antigen" / CONFIG_FILE).write_text(json.dumps(config))
    (folder / "antigen" / WEIGHTS_FILE).write_bytes(weights or factors())
    return sign(folder, "tiny-esm2", "antigen")


def test_an_adapter_is_read_with_its_scale(tmp_path):
    forge(tmp_path / "a")
    adapter = identify("tiny-esm2", "antigen", adapter=tmp_path / "a").checkpoint.adapter
    assert adapter.scale == 2.0
    assert list(adapter.factors) == [MODULE]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("sides"), lambda record: record.pop("name"),
        lambda record: record.update(sides=["antigen"]), lambda record: record.update(name=5),
        lambda record: record["sides"].update(antigen="x"),
        lambda record: record["sides"]["antigen"].pop("digest"),
        lambda record: record["sides"]["antigen"].update(weights=None),
    ],
)  # fmt: skip
def test_a_record_without_what_a_reader_needs_is_refused(tmp_path, change):
    record = forge(tmp_path / "a")
    change(record)
    (tmp_path / "a" / "adapter.json").write_text(json.dumps(record))
    with pytest.raises(DamagedFile, match=r"adapter\.json: .*Copy the whole folder again"):
        identify("tiny-esm2", "antigen", adapter=tmp_path / "a")


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ([], None), ({}, None), ({**CONFIG, "r": 0}, None), ({**CONFIG, "r": "2"}, None),
        ({**CONFIG, "lora_alpha": float("nan")}, None), ({**CONFIG, "lora_alpha": 10**400}, None),
        (CONFIG, b"not safetensors"), (CONFIG, factors(b=None)),
    ],
)  # fmt: skip
def test_files_that_are_signed_and_invalid_are_refused(tmp_path, config, weights):
    forge(tmp_path / "a", config, weights)
    with pytest.raises(DamagedFile, match="its files cannot be read"):
        identify("tiny-esm2", "antigen", adapter=tmp_path / "a")


@pytest.mark.parametrize(
    "weights",
    [factors(a=A[:, 1:]), factors(a=A[:1]), factors(b=B[1:]), factors(a=A[0]), factors(a=A[:, :1])],
)
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_factors_of_another_shape_than_the_weight_are_refused(tmp_path, weights, backend):
    forge(tmp_path / "a", weights=weights)
    identity = identify("tiny-esm2", "antigen", adapter=tmp_path / "a")
    with pytest.raises(EncoderError, match=rf"its change of {MODULE} has the shapes"):
        load_encoder(identity, CPU, backend=backend)
