"""Encoders of the hub, which is a server on 127.0.0.1: what is said when one cannot be had."""

import json

import pytest
import torch
from encoding import FAMILIES, TINY_CONFIG, EncoderNotFound, find_checkpoint, save_random_checkpoint
from fake_hub import Problem
from faults import UnsafeFile
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from transformers import (
    EsmConfig,
    EsmForMaskedLM,
    EsmModel,
    T5Config,
    T5ForConditionalGeneration,
)

from abag import EncoderError, HubError
from abag.embed.encoders.identity import head_digest
from abag.embed.encoders.registry import hub_source


@pytest.fixture
def checkpoint(tmp_path):
    """Return the files of an ESM-2 of three shards."""
    folder = save_random_checkpoint(tmp_path / "whole", TINY_CONFIG["tiny-esm2"], seed=0)
    EsmModel.from_pretrained(folder).save_pretrained(tmp_path / "shards", max_shard_size="200KB")
    files = {}
    for name in ("whole", "shards"):
        files |= {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    del files["model.safetensors"]
    assert len([name for name in files if name.endswith(".safetensors")]) == 3
    return files


def answer(status, code, words):
    def before(_method, path):
        if words in path:
            raise Problem(status, code)

    return before


def refusal(name):
    with pytest.raises(EncoderNotFound) as error:
        find_checkpoint(name)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_repository_that_does_not_exist_is_named_with_the_alias_that_was_meant(hub):
    text = refusal("lab/esm2_t33_650M")
    assert "lab/esm2_t33_650M does not exist on the hub, or you may not see it" in text
    assert "Did you mean esm2-650m" in text
    assert "Did you mean" not in refusal("facebook/esm2_t33_650M_UR50D")


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_is_refused_with_how_to_get_access(hub, checkpoint, status):
    hub.put("model", "lab/gated", checkpoint)
    hub.before = answer(status, "GatedRepo", "resolve")
    assert "lab/gated has to grant access to it. Ask" in refusal("lab/gated")


def test_a_revision_that_does_not_exist_is_named(hub, checkpoint):
    hub.put("model", "lab/esm", checkpoint)
    assert "lab/esm has no revision v9; expected a branch" in refusal("lab/esm@v9")


def test_weights_of_another_software_are_refused_with_the_alias_of_the_same_model(hub):
    name = "EvolutionaryScale/esmc-300m-2024-12"
    hub.put("model", name, {"data/weights/esmc_300m.pth": b"x"})
    text = refusal(name)
    assert f"{name} has no config.json on the hub; expected a model as transformers" in text
    assert "Did you mean esmc-300m" in text


def test_a_model_without_weights_or_of_another_type_is_refused_as_such(hub, checkpoint):
    small = {n: c for n, c in checkpoint.items() if "safetensors" not in n}
    hub.put("model", "lab/empty", small)
    assert "has no model.safetensors or pytorch_model.bin on the hub" in refusal("lab/empty")
    hub.put("model", "lab/llama", small | {"config.json": json.dumps({"model_type": "l"}).encode()})
    with pytest.raises(EncoderError, match="model_type 'l' is not supported"):
        find_checkpoint("lab/llama")


def test_a_download_that_stopped_between_shards_is_completed(hub, checkpoint):
    hub.put("model", "lab/esm", checkpoint)
    hub.before = answer(403, "", "00002-of-00003")
    assert "could not be downloaded (" in refusal("lab/esm")
    hub.before = answer(403, "", "")  # no answer at all: what is on disk is not taken for whole
    assert "run `hf download lab/esm`" in refusal("lab/esm")
    hub.before = lambda _method, _path: None
    assert len(find_checkpoint("lab/esm").weights) == 3
    hub.asked.clear()
    assert find_checkpoint("lab/esm", download=False).origin == "lab/esm"
    assert not hub.asked


@pytest.mark.parametrize("etag", ["../../../../x", "/{}/x", "..", "a/b", "a\\..\\b", "x" * 300, ""])
def test_no_header_decides_where_an_encoder_is_written(hub, tmp_path, checkpoint, etag):
    hub.put("model", "lab/esm", checkpoint)
    hub.etag = lambda _entry: etag.format(tmp_path)
    before = {*tmp_path.rglob("*")}
    assert len(find_checkpoint("lab/esm").weights) == 3
    written = {p for p in {*tmp_path.rglob("*")} - before if p.is_file()}
    (snapshot,) = (tmp_path / "hf-home/hub/models--lab--esm/snapshots").iterdir()
    refs = snapshot.parent.parent / "refs"
    listed = {p for p in written if tmp_path / "hub" not in p.parents}
    assert listed == {snapshot / name for name in checkpoint} | {refs / "main"}


def test_an_encoder_file_larger_than_listed_or_outside_its_folder_is_refused(
    hub, tmp_path, checkpoint
):
    hub.put("model", "lab/esm", checkpoint)
    hub.sent = {"config.json": b" " * (30 << 20)}
    with pytest.raises(HubError, match=r"config.json: the hub sends more than the"):
        find_checkpoint("lab/esm")
    hub.sent = {}
    for name in ("../x.json", "/tmp/x.json", "a/../../x.json", "a//x.json"):
        hub.put("model", "lab/out", checkpoint | {name: b"{}"})
        with pytest.raises(UnsafeFile, match="which its format does not allow"):
            find_checkpoint("lab/out")
        hub.put("model", "lab/out", {name: None})
    assert not list(tmp_path.rglob("x.json"))


def test_what_another_program_downloaded_is_used_without_the_network(hub, checkpoint):
    hub.put("model", "lab/esm", checkpoint)
    theirs = snapshot_download("lab/esm")
    hub.close()
    assert find_checkpoint("lab/esm").folder.samefile(theirs)


def test_other_programs_find_what_abag_downloaded(hub, checkpoint):
    commit = hub.put("model", "lab/esm", checkpoint)
    ours = find_checkpoint("lab/esm@main").folder
    hub.close()
    for revision in (None, "main", commit):
        theirs = snapshot_download("lab/esm", revision=revision, local_files_only=True)
        assert ours.samefile(theirs)


def test_a_repository_that_lacks_a_shard_is_refused_with_its_name(hub, checkpoint):
    lost = next(name for name in checkpoint if "00002" in name)
    hub.put("model", "lab/short", {n: c for n, c in checkpoint.items() if n != lost})
    with pytest.raises(EncoderError, match=rf"1 of 3 shards .* are missing \({lost}\)"):
        find_checkpoint("lab/short")


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_only_the_shards_of_the_encoder_are_fetched_and_once(hub, tmp_path, suffix):
    model = T5ForConditionalGeneration(T5Config.from_dict(TINY_CONFIG["tiny-igt5"]))
    model.save_pretrained(tmp_path / "model", max_shard_size="30KB")
    files = {p.name: p for p in (tmp_path / "model").iterdir()}
    shards = json.loads(files.pop("model.safetensors.index.json").read_text())["weight_map"]
    index = (
        "model.safetensors.index.json"
        if suffix == "safetensors"
        else ("pytorch_model.bin.index.json")
    )
    shards = {name: shard.replace("safetensors", suffix) for name, shard in shards.items()}
    for shard in {*shards.values()} if suffix == "bin" else ():
        stored = files.pop(shard.replace("bin", "safetensors"))
        torch.save(load_file(stored), tmp_path / "model" / shard)
        files[shard] = tmp_path / "model" / shard
    contents = {name: path.read_bytes() for name, path in files.items()}
    hub.put("model", "lab/t5", contents | {index: json.dumps({"weight_map": shards}).encode()})
    remote = find_checkpoint("lab/t5")
    encoder_shards = {s for n, s in shards.items() if n.startswith(("shared", "encoder"))}
    asked = {path.rsplit("/", 1)[-1] for _, path in hub.asked}
    assert {path.name for path in remote.weights} == asked & {*shards.values()} == encoder_shards
    assert encoder_shards < {*shards.values()}
    hub.asked.clear()
    assert find_checkpoint("lab/t5") == remote
    assert not hub.asked


def test_the_shards_of_the_head_of_a_language_model_are_fetched_too(hub, tmp_path):
    model = EsmForMaskedLM(EsmConfig.from_dict(TINY_CONFIG["tiny-esm2"]))
    model.save_pretrained(tmp_path / "model", max_shard_size="10KB")
    (tmp_path / "model" / "vocab.json").write_text(json.dumps(FAMILIES["esm"].tokens))
    contents = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    shards = json.loads(contents["model.safetensors.index.json"])["weight_map"]
    head_shards = {shard for name, shard in shards.items() if name.startswith("lm_head.")}
    assert head_shards - {shard for name, shard in shards.items() if name.startswith("esm.")}
    hub.put("model", "lab/masked", contents)
    here = find_checkpoint(str(tmp_path / "model"))
    there = find_checkpoint("lab/masked")
    assert head_digest(there) == head_digest(here)


def test_a_whole_file_is_preferred_to_shards_and_a_revision_is_part_of_the_name(hub, checkpoint):
    whole = (find_checkpoint("tiny-esm2").folder / "model.safetensors").read_bytes()
    hub.put("model", "lab/esm", checkpoint | {"model.safetensors": whole})
    newest = find_checkpoint("lab/esm")
    assert [path.name for path in newest.weights] == ["model.safetensors"]
    other = TINY_CONFIG["tiny-esm2"] | {"layer_norm_eps": 1e-6}
    commit = hub.put("model", "lab/esm", {"config.json": json.dumps(other).encode()})
    fixed = find_checkpoint(f"lab/esm@{commit}")
    assert (newest.origin, fixed.origin) == ("lab/esm", f"lab/esm@{commit}")
    assert newest.name == fixed.name == "esm"


def test_an_alias_has_a_fixed_revision_that_can_be_overridden():
    commit = "c731040fcd8d73dceaa04b0a8e6329b345b0f5df"
    assert hub_source("esm2-8m").short == f"facebook/esm2_t6_8M_UR50D@{commit}"
    assert hub_source("esm2-8m@main").short == "facebook/esm2_t6_8M_UR50D@main"
