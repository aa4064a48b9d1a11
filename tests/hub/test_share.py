"""Predictors that are shared: as a folder and on the hub, which is a server on 127.0.0.1."""

import errno
import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from drawn import COMPOSITION, demo_table
from faults import UnsafeFile, failing, host_name
from heads import sign
from huggingface_hub import ModelCard
from invoke import run

import abag
from abag import DamagedFile, HubError, OptionError, OutputError
from abag.core.hub import HubAddress, is_hub_address, parse_address
from abag.head.predictor.folder import MANIFEST

NAME = "lab/binder"
ADDRESS = f"hf://{NAME}"
FILES = {"README.md", "LICENSE", "manifest.json", "predictor.json", "weights.safetensors"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table with a telling name, in a folder with another."""
    at = tmp_path_factory.mktemp("someone")
    table = demo_table().head(120)
    table.to_csv(at / "pairs.csv", index=False)
    abag.embed_table(at / "pairs.csv", at / "store", **COMPOSITION)
    abag.fit(
        at / "pairs.csv",
        at / "store",
        at / "run",
        split="random",
        epochs=2,
        widths=(8,),
        compile="off",
        device="cpu",
    )
    return SimpleNamespace(at=at, run=at / "run", store=at / "store", table=table)


def predictions(path, case):
    """Predict some pairs; names of training sequences are not shared unless these are."""
    table = case.table.head(6)
    predictor = abag.load_predictor(path)
    columns = table["heavy"], table["light"], table["antigen"]
    return predictor.predict(*columns, store=case.store).drop(columns="nearest")


def test_a_shared_folder_predicts_as_the_run_and_has_the_layout_of_the_hub(trained, tmp_path):
    summary = abag.share(trained.run, tmp_path / "shared")
    assert {p.name for p in (tmp_path / "shared").iterdir()} == FILES == set(summary["sent"])
    assert predictions(tmp_path / "shared", trained).equals(predictions(trained.run, trained))
    again = abag.share(trained.run, tmp_path / "shared")
    assert again["sent"] == []
    assert again["files"] == summary["files"]


def test_the_card_is_read_by_huggingface_hub_with_tags_and_licence(trained, tmp_path):
    abag.share(trained.run, tmp_path / "shared", license="cc-by-4.0")
    card = ModelCard((tmp_path / "shared" / "README.md").read_text())
    assert (card.data.license, card.data.library_name) == ("cc-by-4.0", "abag")
    assert card.data.pipeline_tag == "tabular-regression"
    local_text = (trained.run / "predictor" / "README.md").read_text()
    for before, after in (('"predictor"', '"shared"'), ("--run predictor ", "--run shared ")):
        local_text = local_text.replace(before, after)
    texts = [re.split(r"^(?=## )", text.strip(), flags=re.M) for text in (card.text, local_text)]
    # what the folder holds is another thing
    differing = [ours for ours, theirs in zip(*texts, strict=True) if ours != theirs]
    assert [text.splitlines()[0] for text in differing] == ["## What this folder holds"]
    abag.share(trained.run, tmp_path / "other")
    about = yaml.safe_load((tmp_path / "other" / "README.md").read_text().split("---\n")[1])
    assert (about["license"], about["license_link"]) == ("other", "LICENSE")
    assert "composition" in (tmp_path / "other" / "LICENSE").read_text()


def test_no_path_of_this_machine_and_no_training_data_is_shared(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "copied")
    record = json.loads((run / "predictor" / "predictor.json").read_text())
    checkpoint = trained.at / "my-encoder"
    checkpoint.mkdir(exist_ok=True)
    forged = with_origin(run, str(checkpoint))
    assert forged["antibody"]["views"][0]["origin"] == str(checkpoint)
    abag.share(run, tmp_path / "shared")
    content = {p.name: p.read_bytes() for p in (tmp_path / "shared").iterdir()}
    for name, data in content.items():
        assert str(trained.at).encode() not in data, name
        for column in ("heavy", "antigen"):
            assert not [row for row in trained.table[column] if row.encode() in data], name
    shared = json.loads(content["predictor.json"])
    assert shared["antibody"]["views"][0]["origin"] == "my-encoder"
    shared["antibody"]["views"][0]["origin"] = "composition"
    assert shared["antibody"] == record["antibody"]
    assert predictions(tmp_path / "shared", trained).equals(predictions(trained.run, trained))
    with_origin(run, ".")  # has no last part, and an encoder is not without name
    abag.share(run, tmp_path / "dot")
    shared = json.loads((tmp_path / "dot" / "predictor.json").read_text())
    assert shared["antibody"]["views"][0]["origin"] == "."


def held(folder):
    """Return the section of the card on what its folder holds: a summary, and words by file."""
    text = (folder / "README.md").read_text().split("\n## What this folder holds\n")[1]
    section, _, _ = text.partition("\n\n## ")
    lines = section.strip().splitlines()
    assert not any(line.startswith("## ") for line in lines)
    files = dict(re.findall(r"^- `([^`]+)`: (.+)$", "\n".join(lines), re.MULTILINE))
    return lines[0], files


def library(parent):
    """Return the parent and all combinations of five mutations, whose effects add up."""
    names = [f"{parent[at]}{at + 1}{'A' if parent[at] != 'A' else 'G'}" for at in range(30, 80, 10)]
    rows = []
    for chosen in itertools.product([0, 1], repeat=len(names)):
        mutations = ",".join(itertools.compress(names, chosen))
        rows.append({"mutations": mutations, "pKd": 6 + np.dot(chosen, [1.0, -0.5, 0.4, 0.8, 0.3])})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Runs of a library that was given as one parent, mutations and one antigen."""
    at = tmp_path_factory.mktemp("variants")
    pair = demo_table().iloc[0]
    options = {"parent": pair["heavy"], "antigen": pair["antigen"]}
    frame = library(pair["heavy"])
    abag.embed_table(frame, at / "store", **COMPOSITION, **options)
    for head in ("gp", "ridge", "one_hot_ridge", "residue_kernel"):
        abag.fit(frame, at / "store", at / head, head=head, split="random", report=False, **options)
    chains = {"antibody": pair["heavy"], "antigen": pair["antigen"]}
    return SimpleNamespace(at=at, chains=chains)


@pytest.mark.parametrize("head", ["gp", "ridge", "one_hot_ridge", "residue_kernel"])
@pytest.mark.parametrize("way", ["run", "shared", "with sequences"])
def test_the_card_names_every_file_and_those_in_which_sequences_can_be_read(
    variants, tmp_path, head, way, said
):
    folder = variants.at / head / "predictor"
    if way != "run":
        folder = tmp_path / "shared"
        abag.share(variants.at / head, folder, with_sequences=way == "with sequences")
    summary, files = held(folder)
    assert files.keys() == {path.name for path in folder.iterdir()}
    has_parent = head in ("one_hot_ridge", "residue_kernel")
    assert ("No sequence" in summary) == (way == "shared" and not has_parent)
    for path in folder.iterdir():
        content = path.read_bytes()
        for kind, chain in variants.chains.items():
            if chain.encode() in content:
                assert f"(`{path.name}`)" in summary
                assert kind[:6] in files[path.name] or "parent" in files[path.name]
    if has_parent:
        assert "consensus of the training antibodies" in files["predictor.json"]
    if way != "shared":
        assert "the parent that mutations are of" in files["predictor.json"]
        assert "sequences of 32 antibodies and 1 antigen" in files["weights.safetensors"]
    if head == "residue_kernel":
        assert "sequences of 32 antibodies of the training" in files["weights.safetensors"]
    if way != "run":
        assert all(text.split(";")[0] in said[-1] for text in files.values() if "sequences" in text)


def test_a_card_written_by_hand_says_what_its_folder_holds_too(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "copied")
    (run / "predictor" / "README.md").write_text("# Mine\n\nText.\n")
    abag.share(run, tmp_path / "shared")
    assert "# Mine\n\nText.\n" in (tmp_path / "shared" / "README.md").read_text()
    assert held(tmp_path / "shared")[1].keys() == FILES
    assert abag.share(tmp_path / "shared", tmp_path / "shared")["sent"] == []


def with_origin(run, origin):
    """Write the predictor of a run again, as if its encoder had been a folder."""

    def change(record):
        record["antibody"]["views"][0]["origin"] = origin

    folder = sign(run / "predictor", change)
    return json.loads((folder / "predictor.json").read_text())


def test_what_a_predictor_contains_of_the_training_data_is_said_before_it_is_written(
    trained, tmp_path, said
):
    full = failing(tmp_path / "shared", errno.ENOSPC, at="write")
    with full, pytest.raises(OSError, match="No space left"):
        abag.share(trained.run, tmp_path / "shared")
    record = json.loads((trained.run / "predictor" / "predictor.json").read_text())
    counts = [record[kind]["training_sequences"] for kind in ("antibody", "antigen")]
    assert f"vectors of {counts[0]} antibodies and {counts[1]} antigens of the trai" in said[0]
    assert "weights that follow from their labels" in said[0]
    assert "keys of the training sequences" in said[0]


def test_a_card_that_was_edited_to_name_a_path_is_refused(trained, tmp_path):
    run = shutil.copytree(trained.run, tmp_path / "copied")
    card = run / "predictor" / "README.md"
    card.write_text(f"{card.read_text()}\nSee {Path.home()}/notes.txt\n")
    with pytest.raises(OutputError, match="contains the path"):
        abag.share(run, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def test_what_a_killed_share_left_is_not_in_the_folder_that_is_shared(trained, tmp_path):
    (tmp_path / "shared").mkdir()
    dead = f"predictor.0123.{host_name()}.999999999.partial"
    for name in (dead, dead.replace("predictor", "notes")):
        (tmp_path / "shared" / name).write_text("half")
    abag.share(trained.run, tmp_path / "shared")
    left = {p.name for p in (tmp_path / "shared").iterdir()} - FILES
    assert left == {dead.replace("predictor", "notes")}  # not of a file of a predictor


def test_a_folder_that_holds_something_else_is_not_overwritten(trained, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "README.md").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("taken", "file"):
        with pytest.raises(OutputError, match="already exists and differs"):
            abag.share(trained.run, tmp_path / name)
    assert (tmp_path / "taken" / "README.md").read_text() == "mine"
    assert len(list((tmp_path / "taken").iterdir())) == 1


@pytest.mark.parametrize("licence", ["MIT", "a b", "../x", ""])
def test_a_licence_that_is_no_id_is_refused(trained, tmp_path, licence):
    with pytest.raises(OptionError, match="license"):
        abag.share(trained.run, tmp_path / "shared", license=licence)


@pytest.mark.parametrize("name", ["predictor.json", "weights.safetensors", MANIFEST])
def test_a_changed_missing_or_linked_file_of_a_shared_folder_is_refused(trained, tmp_path, name):
    abag.share(trained.run, tmp_path / "shared")
    for change in ("changed", "missing", "linked"):
        copy = shutil.copytree(tmp_path / "shared", tmp_path / change)
        content = (copy / name).read_bytes()
        (copy / name).rename(copy / "elsewhere")
        if change == "changed":
            (copy / name).write_bytes(content[:-3] + b"!!!")
        elif change == "linked":
            (copy / name).symlink_to("elsewhere")
        elif name == MANIFEST:
            continue  # an ordinary predictor folder, which has a digest of its own
        with pytest.raises((DamagedFile, UnsafeFile)) as raised:
            abag.load_predictor(copy)
        assert "\n" not in str(raised.value)


@pytest.fixture
def shared(hub, trained):
    return abag.share(trained.run, ADDRESS)


def test_a_predictor_on_the_hub_predicts_as_the_run(shared, trained, tmp_path):
    assert predictions(ADDRESS, trained).equals(predictions(trained.run, trained))
    trained.table.drop(columns="pKd").head(5).to_csv(tmp_path / "new.csv", index=False)
    scored = ["--out", tmp_path / "scored.csv", "--store", trained.store]
    run("predict", tmp_path / "new.csv", "--run", ADDRESS, *scored)
    assert len(pd.read_csv(tmp_path / "scored.csv")) == 5


def test_what_is_sent_is_listed_first_and_nothing_else_is_sent(hub, trained, said):
    summary = abag.share(trained.run, ADDRESS)
    assert set(hub.files("model", NAME)) == FILES | {".gitattributes"}
    assert all(f"{name} (" in said[0] for name in FILES)
    assert summary["to"].startswith(f"{ADDRESS}@")
    assert summary["page"] == f"{hub.address}/{NAME}"
    card = hub.files("model", NAME)["README.md"].decode()
    assert f'abag.load_predictor("{ADDRESS}")' in card
    assert f"abag predict pairs.csv --run {ADDRESS} " in card
    again = abag.share(trained.run, ADDRESS)
    assert (again["to"], again["sent"]) == (summary["to"], [])


def test_sharing_another_predictor_replaces_ours_and_leaves_the_files_of_others(
    hub, shared, trained, said
):
    hub.put("model", NAME, {"plot.png": b"png", "antibody-adapter/adapter.json": b"{}"})
    said.clear()
    abag.share(trained.run, ADDRESS, license="mit")
    assert set(hub.files("model", NAME)) == FILES | {".gitattributes", "plot.png"}
    assert "replacing" in said[0]
    assert "removing antibody-adapter/adapter.json" in said[1]


def test_a_branch_is_resolved_to_a_commit_which_is_said_and_stays_readable(
    hub, shared, trained, tmp_path, said
):
    said.clear()
    first = predictions(ADDRESS, trained)
    commit = shared["to"].partition("@")[2]
    assert said[0].startswith(f"{ADDRESS}: commit {commit}")
    hub.put("model", NAME, {"weights.safetensors": b"broken"})
    with pytest.raises(DamagedFile, match="differs from its digest"):
        abag.load_predictor(ADDRESS)
    hub.asked.clear()
    assert predictions(f"{ADDRESS}@{commit}", trained).equals(first)
    assert hub.asked == []  # a commit that was downloaded needs no network
    branch = HubAddress("model", NAME, "next")
    abag.share(trained.run, str(branch))
    assert predictions(str(branch), trained).equals(first)


CHILD = "import abag, sys; abag.load_predictor(sys.argv[1])"


@pytest.mark.ci
def test_a_killed_download_never_looks_whole_and_is_repeated(hub, shared, trained, tmp_path):
    loading = [sys.executable, "-c", CHILD, ADDRESS]
    hub.killed(loading, 0, lambda method, path: (method, path[-11:]) == ("GET", "safetensors"))
    place = tmp_path / "cache" / "abag" / "hub" / NAME
    assert not list(place.rglob(MANIFEST))
    assert predictions(ADDRESS, trained).equals(predictions(trained.run, trained))


def manifest_with(files, **names):
    manifest = json.loads(files[MANIFEST])
    manifest["files"] |= names
    return json.dumps(manifest).encode()


ANY = {"bytes": 1, "sha256": "0" * 64}


def test_repositories_that_are_not_a_sound_predictor_are_refused(hub, shared, tmp_path):
    files = hub.files("model", NAME)
    cases = {
        "no manifest": ({MANIFEST: None}, DamagedFile),
        "empty manifest": ({MANIFEST: b"{}"}, DamagedFile),
        "deep manifest": ({MANIFEST: b"[" * 100_000}, DamagedFile),
        "traversal": ({MANIFEST: manifest_with(files, **{"../../x": ANY})}, UnsafeFile),
        "absolute": ({MANIFEST: manifest_with(files, **{"/tmp/x": ANY})}, UnsafeFile),
        "pickle": ({MANIFEST: manifest_with(files, **{"model.pkl": ANY}), "model.pkl": b"x"},
                   UnsafeFile),
        "not listed": ({MANIFEST: manifest_with(files, **{"antibody-adapter/adapter.json": ANY})},
                       DamagedFile),
        "bytes as text": (
            {MANIFEST: manifest_with(files, **{"predictor.json": ANY | {"bytes": "1"}})},
            DamagedFile),
        "other weights": ({"weights.safetensors": b"other"}, DamagedFile),
        "no weights": ({"weights.safetensors": None}, DamagedFile),
    }  # fmt: skip
    for number, (case, (changed, error)) in enumerate(cases.items()):
        name = f"lab/case-{number}"
        hub.put("model", name, files | changed)
        with pytest.raises(error) as raised:
            abag.load_predictor(f"hf://{name}")
        assert "\n" not in str(raised.value), case
        place = tmp_path / "cache" / "abag" / "hub" / name
        assert not place.exists() or list(place.iterdir()) == [], case


def test_a_size_that_no_predictor_has_is_refused_before_the_download(hub, shared):
    hub.listed = lambda entries: [
        entry | ({"size": 1 << 60} if entry["path"] == MANIFEST else {}) for entry in entries
    ]
    hub.asked.clear()
    with pytest.raises(HubError, match="free"):
        abag.load_predictor(ADDRESS)
    assert not [p for m, p in hub.asked if m == "GET" and p.endswith(MANIFEST)]


def test_addresses_are_told_from_paths_and_read_strictly():
    assert parse_address(Path("hf://a/b@v1"), "model") == HubAddress("model", "a/b", "v1")
    branch = "hf://datasets/a/b@refs/pr/1"
    assert str(parse_address(branch, "dataset")) == branch
    assert not is_hub_address("runs/first")
    for text in (
        "hf://a",
        "hf://../b",
        "hf://a/b/c",
        "hf://a/b@",
        "hf://a/b@../x",
        "hf://a/b\n",
        "hf://datasets/a/b",
        "hf:///etc/passwd",
        "hf://a/b@x y",
    ):
        with pytest.raises(HubError, match="not the address of a model"):
            parse_address(text, "model")


def test_a_wrong_name_revision_or_right_is_one_line(hub, shared, trained):
    cases = {"hf://lab/nope": "does not exist", f"{ADDRESS}@nope": "has no revision nope"}
    for address, text in cases.items():
        with pytest.raises(HubError, match=text):
            abag.load_predictor(address)
    with pytest.raises(HubError, match="is a commit"):
        abag.share(trained.run, shared["to"])
    with pytest.raises(HubError, match="is public"):
        abag.share(trained.run, ADDRESS, private=True)
    hub.may_write = False
    with pytest.raises(HubError, match="access is denied"):
        abag.share(trained.run, ADDRESS, license="mit")


@pytest.mark.ci
def test_an_adapter_is_shared_with_its_predictor_and_used(tmp_path, hub):
    """The adapter's files are checked too; its folder on this machine is not named."""
    pairs = tmp_path / "pairs.csv"
    demo_table().head(60).to_csv(pairs, index=False)
    encoders = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "composition"}
    quick = {"epochs": 1, "widths": (8,), "compile": "off", "device": "cpu"}
    abag.embed_table(pairs, tmp_path / "store", **encoders)
    abag.fit(pairs, tmp_path / "store", tmp_path / "first", split="random", **quick)
    adapter = tmp_path / "adapter"
    abag.adapt_encoders(
        pairs,
        adapter,
        split_from=tmp_path / "first",
        fold=0,
        sides="antibody",
        epochs=1,
        **encoders,
    )
    abag.embed_table(pairs, tmp_path / "adapted", antibody_adapter=adapter, **encoders)
    split = f"file={adapter / 'splits.parquet'}"
    abag.fit(pairs, tmp_path / "adapted", tmp_path / "run", split=split, **quick)
    summary = abag.share(tmp_path / "run", ADDRESS)
    assert "antibody-adapter/adapter.json" in summary["sent"]
    for name, content in hub.files("model", NAME).items():
        assert str(tmp_path).encode() not in content, name
    pair = {"heavy": "EVQLVESGGGLVQPGGSLRLSCAAS", "light": "DIQMTQSPSSLSASVGDR"}
    pair["antigen"] = "MKTAYIAKQRQISFVK"
    new = abag.load_predictor(ADDRESS).predict(**pair, store=tmp_path / "theirs")
    old = abag.load_predictor(tmp_path / "run").predict(**pair, store=tmp_path / "ours")
    assert new.equals(old)


def test_a_file_that_changes_in_the_cache_is_refused(shared, trained, tmp_path):
    abag.load_predictor(ADDRESS)
    (weights,) = (tmp_path / "cache").rglob("weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFile, match="differs from its digest"):
        abag.load_predictor(ADDRESS)
