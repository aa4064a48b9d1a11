"""Stores on the hub: pushed, pulled, continued, and not trusted. The hub is on 127.0.0.1."""

import json
import re
import shutil
import sys
import threading

import h5py
import numpy as np
import pytest
from fake_hub import Problem, allow
from faults import UnsafeFile
from huggingface_hub import HfApi
from invoke import one_line, run
from marks import in_ci
from stores import shard_name, verify

from abag import DamagedFile, HubError, OutputError, StoreError, open_store
from abag.embed.store.care import pull, push

NAME = "lab/vectors"
ADDRESS = f"hf://datasets/{NAME}"
FINGERPRINT = "ab" * 16
FOLDER = "antibody-x-abababab"


def add(store, seed, rows=20, shards=1, width=8, **info):
    """Add shards to a store; all vectors of a key are the same."""
    about = {"name": "x", "fingerprint": FINGERPRINT, **info}
    folder = open_store(store, create=True).create_folder("antibody", about)
    for shard in range(shards):
        rng = np.random.default_rng([seed, shard])
        keys = rng.integers(0, 256, (rows, 16), np.uint8)
        x_ND = rng.standard_normal((rows, width)).astype(np.float16)
        with folder.writer(attrs={"precision": "fp32"}) as writer:
            writer.add(keys, np.full(rows, 9, np.int32), {"mean": x_ND})
    return folder


def shards_of(store):
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*.h5")}


@pytest.fixture
def store(tmp_path):
    add(tmp_path / "store", seed=1, shards=3)
    return tmp_path / "store"


@pytest.fixture
def pushed(hub, store):
    push(store, ADDRESS)
    return store


def test_a_pushed_store_is_pulled_as_an_ordinary_store_with_the_same_bytes(pushed, tmp_path):
    summary = pull(ADDRESS, tmp_path / "new")
    assert (summary["pulled"], summary["present"]) == (3, 0)
    assert shards_of(tmp_path / "new") == shards_of(pushed)
    assert verify(open_store(tmp_path / "new")) == []
    names = {p.name for p in (tmp_path / "new").rglob("*") if p.is_file()}
    assert names == {"abag-store.json", "encoder.json", *(p.name for p in pushed.rglob("*.h5"))}
    ours, theirs = (open_store(p).folder("antibody") for p in (pushed, tmp_path / "new"))
    keys = np.concatenate(ours.keys())
    np.testing.assert_array_equal(theirs.read(keys), ours.read(keys))


def test_huggingface_hub_and_h5py_read_what_was_pushed(pushed, tmp_path):
    from huggingface_hub import snapshot_download

    folder = snapshot_download(NAME, repo_type="dataset", local_dir=tmp_path / "theirs")
    paths = sorted((tmp_path / "theirs").rglob("*.h5"))
    assert len(paths) == 3
    with h5py.File(paths[0]) as shard:
        assert shard["mean"].shape == (20, 8)
    assert len(open_store(folder).folder("antibody").shards()) == 3


def test_only_missing_shards_are_sent_and_downloaded(hub, pushed, tmp_path):
    first = pull(ADDRESS, tmp_path / "new")
    again = push(pushed, ADDRESS)
    assert (again["pushed"], again["present"], again["bytes"]) == (0, 3, 0)
    assert again["address"] == first["address"]
    assert pull(ADDRESS, tmp_path / "new")["pulled"] == 0
    add(pushed, seed=2)
    hub.asked.clear()
    assert push(pushed, ADDRESS)["pushed"] == 1
    assert sum(method == "PUT" for method, _ in hub.asked) == 1
    hub.asked.clear()
    summary = pull(ADDRESS, tmp_path / "new")
    assert (summary["pulled"], summary["present"]) == (1, 3)
    assert sum(m == "GET" and p.endswith(".h5") for m, p in hub.asked) == 1


def test_what_is_sent_is_announced_and_holds_no_path_or_note_of_this_machine(hub, tmp_path, said):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    folder = add(tmp_path / "store", seed=1, origin=str(checkpoint))
    (folder.path / "run.json").write_text('{"table": "secret.csv"}')
    (folder.path / "speed.json").write_text("{}")
    push(tmp_path / "store", ADDRESS)
    files = hub.files("dataset", NAME)
    shard = next(name for name in files if name.endswith(".h5"))
    assert set(files) == {
        ".gitattributes",
        "README.md",
        "abag-store.json",
        f"{FOLDER}/encoder.json",
        shard,
    }
    assert json.loads(files[f"{FOLDER}/encoder.json"])["origin"] == "checkpoint"
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    assert [line.split(":")[0] for line in said] == ["hf"]
    assert "1 shards (" in said[0]
    assert all(name in said[0] for name in ("README.md", "abag-store.json", "encoder.json"))


def test_a_pulled_branch_is_named_by_its_commit_which_pulls_the_same_again(pushed, tmp_path, said):
    said.clear()
    commit = pull(ADDRESS, tmp_path / "new")["address"].partition("@")[2]
    assert f"@{commit}" in said[0]
    add(pushed, seed=2)
    push(pushed, ADDRESS)
    assert pull(f"{ADDRESS}@{commit}", tmp_path / "old")["pulled"] == 3
    assert pull(ADDRESS, tmp_path / "new")["pulled"] == 1


def test_a_pull_adds_to_a_store_that_holds_other_shards(pushed, tmp_path):
    add(tmp_path / "mine", seed=7)
    shutil.copy(next(pushed.rglob("*.h5")), tmp_path / "mine" / FOLDER)
    summary = pull(ADDRESS, tmp_path / "mine")
    assert (summary["pulled"], summary["present"]) == (2, 1)
    assert len(shards_of(tmp_path / "mine")) == 4
    assert verify(open_store(tmp_path / "mine")) == []


def test_a_damaged_local_shard_and_one_under_anothers_name_are_replaced(pushed, tmp_path):
    pull(ADDRESS, tmp_path / "new")
    damaged, other, *_ = sorted((tmp_path / "new").rglob("*.h5"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-9] + b"damaged!!")
    assert pull(ADDRESS, tmp_path / "new")["pulled"] == 1
    assert damaged.read_bytes() == whole
    shutil.copy(damaged, other)
    assert pull(ADDRESS, tmp_path / "new")["pulled"] == 1
    assert shards_of(tmp_path / "new") == shards_of(pushed)


def test_damaged_shards_are_not_pushed(hub, store):
    damaged = sorted(store.rglob("*.h5"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-5])
    summary = push(store, ADDRESS)
    assert (summary["pushed"], len(summary["damaged"])) == (2, 1)
    assert f"{FOLDER}/{damaged.name}" not in hub.files("dataset", NAME)


def test_another_encoder_or_other_poolings_of_the_same_folder_are_refused(hub, pushed, tmp_path):
    add(tmp_path / "other", seed=3, fingerprint=FINGERPRINT[:-1] + "0")
    add(tmp_path / "layered", seed=3, layers=[2])
    for path, text in (
        (tmp_path / "other", "fingerprint"),
        (tmp_path / "layered", "has the layers"),
    ):
        before = shards_of(path)
        with pytest.raises(StoreError, match=text):
            push(path, ADDRESS)
        with pytest.raises(StoreError, match=text):
            pull(ADDRESS, path)
        assert shards_of(path) == before
    assert len(hub.files("dataset", NAME)) == 7


CHILD = """
import sys
from abag.embed.store import care
sys.argv[1] == "pull" and care.pull(sys.argv[2], sys.argv[3], batch_files=1)
sys.argv[1] == "push" and care.push(sys.argv[3], sys.argv[2])
"""


def command(direction, store):
    return [sys.executable, "-c", CHILD, direction, ADDRESS, store]


@pytest.mark.parametrize("reached", [4, *in_ci(1, 7)])
def test_a_killed_pull_leaves_whole_shards_only_and_is_continued(hub, tmp_path, reached):
    add(tmp_path / "store", seed=1, shards=8)
    push(tmp_path / "store", ADDRESS)
    pulling = command("pull", tmp_path / "new")
    hub.killed(pulling, reached, lambda method, path: method == "GET" and path.endswith(".h5"))
    whole = shards_of(tmp_path / "store")
    arrived = shards_of(tmp_path / "new")
    assert len(arrived) <= reached
    assert arrived.items() <= whole.items()
    if arrived:
        assert verify(open_store(tmp_path / "new")) == []
    summary = pull(ADDRESS, tmp_path / "new")
    assert (summary["pulled"], summary["present"]) == (8 - len(arrived), len(arrived))
    assert shards_of(tmp_path / "new") == whole


@pytest.mark.parametrize("reached", [9, *in_ci(1, 6, 11)])
def test_a_push_killed_at_any_request_is_continued_and_loses_nothing(hub, tmp_path, reached):
    add(tmp_path / "store", seed=1, shards=4)
    before = files_of(tmp_path / "store")
    hub.killed(command("push", tmp_path / "store"), reached, lambda _method, _path: True)
    acknowledged = {n: c for n, c in hub_files(hub).items() if n.endswith(".h5")}
    assert acknowledged.items() <= shards_of(tmp_path / "store").items()
    summary = push(tmp_path / "store", ADDRESS)
    assert (summary["pushed"], summary["present"]) == (4 - len(acknowledged), len(acknowledged))
    assert hub_files(hub).items() >= shards_of(tmp_path / "store").items()
    assert files_of(tmp_path / "store") == before  # nothing of the killed process stays there


def hub_files(hub):
    """Return what the hub holds of the repository, which may not exist yet."""
    return hub.files("dataset", NAME) if ("dataset", NAME) in hub.repositories else {}


def files_of(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("status", "says"), [(403, "access is denied"), (400, "answers with an")])
def test_an_upload_that_the_hub_refuses_is_one_line(hub, store, status, says):
    def before(method, path):
        if method == "PUT":
            raise Problem(status)

    hub.before = before
    with pytest.raises(HubError, match=rf"{ADDRESS}: .*{says}"):
        push(store, ADDRESS)


# of huggingface_hub; what `commit` does to the filters of warnings, it does to those of all threads
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stores_pushed_at_the_same_time_lose_no_shard(hub, tmp_path):
    stores = [tmp_path / f"store-{number}" for number in range(3)]
    for number, path in enumerate(stores):
        add(path, seed=number, shards=3)
    failures = []

    def send(path):
        try:
            push(path, ADDRESS)
        except Exception as error:  # noqa: BLE001 - threads hide what they raise
            failures.append(error)

    threads = [threading.Thread(target=send, args=(path,)) for path in stores]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert failures == []
    uploaded = {n: c for n, c in hub.files("dataset", NAME).items() if n.endswith(".h5")}
    assert uploaded == {name: c for path in stores for name, c in shards_of(path).items()}


def listed(**changes):
    """Return a listing with entries changed by the end of their path."""

    def change(entries):
        for entry in entries:
            for end, values in changes.items():
                if entry["path"].endswith(end):
                    entry |= values
        return entries

    return change


@pytest.mark.parametrize("name", [
    "../pwned.h5", "/etc/pwned", "antibody-x-ababababff/x.h5", f"{FOLDER}/../../pwned.h5",
    *(f"{FOLDER}/{name}" for name in ("deep/x.h5", "..", "encoder.json/x", "evil.pkl",
                                      ".hidden.h5", "x\n.h5", "adapter/../encoder.json")),
])  # fmt: skip
def test_a_listed_name_that_the_format_does_not_allow_is_refused(hub, pushed, tmp_path, name):
    before = {*tmp_path.rglob("*")}
    hub.listed = listed(h5={"path": name})
    with pytest.raises(UnsafeFile):
        pull(ADDRESS, tmp_path / "new")
    assert not [p for p in {*tmp_path.rglob("*")} - before if "hf-home" not in str(p)]


@pytest.mark.parametrize(("change", "error", "text"), [
    ({"h5": {"size": 1 << 60}}, HubError, "free"), ({"h5": {"size": "nine"}}, HubError, "refuses"),
    ({"h5": {"size": None}}, HubError, "is not a hub"),
    ({"encoder.json": {"size": 1 << 60}}, HubError, "free"),
])  # fmt: skip
def test_a_forged_listing_is_refused(hub, pushed, tmp_path, change, error, text):
    hub.listed = listed(**change)
    with pytest.raises(error, match=text) as raised:
        pull(ADDRESS, tmp_path / "new")
    assert "\n" not in str(raised.value)
    assert not shards_of(tmp_path / "new") if (tmp_path / "new").exists() else True


@pytest.mark.parametrize("failing", [r"/tree/", r"/resolve/.*encoder", r"/resolve/.*\.h5"])
@pytest.mark.parametrize(("status", "text"), [(404, "answers with an"), (403, "is denied")])
def test_a_hub_that_fails_in_the_middle_of_a_pull_is_one_line_and_it_is_continued(
    hub, pushed, tmp_path, failing, status, text
):
    def before(_method, path):
        if re.search(failing, path):
            raise Problem(status)

    hub.before = before
    with pytest.raises(HubError, match=f"{ADDRESS}: .*{text}") as raised:
        pull(ADDRESS, tmp_path / "new")
    assert "\n" not in str(raised.value)
    hub.before = allow
    pull(ADDRESS, tmp_path / "new")
    assert shards_of(tmp_path / "new") == shards_of(pushed)


@pytest.mark.parametrize("next_page", [
    lambda url, _: url,  # itself
    lambda url, page: f"{url.partition('?')[0]}?cursor={page % 2}",  # there and back
    lambda url, page: f"{url.partition('?')[0]}?cursor={page + 1}",  # always another
])  # fmt: skip
def test_a_listing_whose_next_page_lists_nothing_new_is_refused(hub, tmp_path, next_page):
    hub.put("dataset", NAME, {"README.md": b"# x"})
    pages = []

    def link(url):
        pages.append(url)
        assert len(pages) < 50
        return next_page(url, len(pages))

    hub.next_page = link
    with pytest.raises(HubError, match="its list of files has no end"):
        pull(ADDRESS, tmp_path / "new")
    assert len(pages) < 5


def test_a_next_page_is_asked_of_the_same_hub_and_its_files_are_taken(hub, pushed, tmp_path):
    asked = []
    everything = []

    def listed_by_page(entries):
        everything[:] = sorted(entries, key=lambda entry: entry["path"])
        return everything[:2] if len(asked) == 0 else everything[2:]

    def link(_url):
        asked.append(1)
        return "http://127.0.0.1:9/stolen?cursor=2" if len(asked) == 1 else None

    hub.listed = listed_by_page
    hub.next_page = link
    assert pull(ADDRESS, tmp_path / "new")["pulled"] == 3
    assert len(asked) == 2


@pytest.mark.parametrize("answered", ["/tree/", "/revision/"])
def test_an_answer_that_is_nested_too_deeply_is_one_line(hub, pushed, tmp_path, answered):
    hub.bodies = {answered: b"[" * 100_000}
    text = one_line("store", "pull", f"{ADDRESS}@main", "--store", tmp_path / "new")
    assert "is not a hub (RecursionError" in text
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("has_length", [True, False])
def test_a_file_that_is_larger_than_listed_is_refused_while_it_arrives(
    hub, pushed, tmp_path, has_length
):
    victim = next(iter(shards_of(pushed)))
    hub.sent = {victim: b"x" * (100 << 20)}
    hub.says_length = has_length
    with pytest.raises(HubError, match=r"sends more than the .* bytes that it lists"):
        pull(ADDRESS, tmp_path / "new")
    assert victim not in shards_of(tmp_path / "new")
    assert hub.sent_bytes < 60 << 20


def test_a_shard_that_was_changed_on_its_way_is_refused_and_the_others_stay(hub, pushed, tmp_path):
    victim, content = next(iter(shards_of(pushed).items()))
    hub.sent = {victim: content[:-4] + b"evil"}
    with pytest.raises(DamagedFile, match="is damaged or of another encoder"):
        pull(ADDRESS, tmp_path / "new")
    assert victim not in shards_of(tmp_path / "new")
    hub.sent = {}
    pull(ADDRESS, tmp_path / "new")
    assert shards_of(tmp_path / "new") == shards_of(pushed)


def test_a_damaged_or_foreign_shard_in_a_repository_is_refused(hub, pushed, tmp_path):
    content = next(iter(shards_of(pushed).values()))
    add(tmp_path / "foreign", seed=5, fingerprint="cd" * 16)
    files = {
        "damaged": content[:-4] + b"evil",
        "foreign": next(iter(shards_of(tmp_path / "foreign").values())),
        "no shard": b"#!/bin/sh\n",
    }
    for case, forged in files.items():
        name = shard_name(forged) if case == "foreign" else "zz.h5"
        commit = hub.put("dataset", NAME, {f"{FOLDER}/{name}": forged})
        with pytest.raises(DamagedFile, match=r"is damaged or of another encoder"):
            pull(f"{ADDRESS}@{commit}", tmp_path / f"new-{case}")
        assert verify(open_store(tmp_path / f"new-{case}")) == []
        assert f"{FOLDER}/{name}" not in shards_of(tmp_path / f"new-{case}")


@pytest.mark.parametrize(("files", "error"), [
    ({f"{FOLDER}/encoder.json": b"{}"}, DamagedFile),
    ({f"{FOLDER}/encoder.json": b"[" * 9999}, DamagedFile),
    ({f"{FOLDER}/encoder.json": None}, StoreError),
    ({"abag-store.json": b'{"format": "abag-store", "version": 9}'}, StoreError),
])  # fmt: skip
def test_a_repository_with_a_wrong_record_is_refused(hub, pushed, tmp_path, files, error):
    hub.put("dataset", NAME, files)
    with pytest.raises(error):
        pull(ADDRESS, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["igt5", "<b>", "x y"])
def test_an_encoder_named_unlike_its_folder_is_refused_and_adds_nothing(
    hub, pushed, tmp_path, name
):
    add(tmp_path / "new", seed=2)
    before = files_of(tmp_path / "new")
    record = {"kind": "antibody", "name": name, "fingerprint": FINGERPRINT}
    hub.put("dataset", NAME, {f"{FOLDER}/encoder.json": json.dumps(record).encode()})
    with pytest.raises(DamagedFile, match="does not match the folder's name"):
        pull(ADDRESS, tmp_path / "new")
    assert files_of(tmp_path / "new") == before


@pytest.mark.parametrize(("promised", "text"), [
    ({"layers": [99]}, "is damaged or of another encoder"),
    ({"poolings": ["cdr_mean"]}, "is damaged or of another encoder"),
    ({"adapter": "ee" * 16}, "adapter/adapter.json is missing"),
    ({"layers": [2, 2]}, "expected layer numbers, each once"),
    ({"poolings": 7}, "poolings is 7; expected a list"),
])  # fmt: skip
def test_what_an_encoder_promises_and_its_shards_lack_is_refused(
    hub, pushed, tmp_path, promised, text
):
    record = {"kind": "antibody", "name": "x", "fingerprint": FINGERPRINT, **promised}
    hub.put("dataset", NAME, {f"{FOLDER}/encoder.json": json.dumps(record).encode()})
    with pytest.raises(DamagedFile, match=text):
        pull(ADDRESS, tmp_path / "new")
    assert not shards_of(tmp_path / "new") if (tmp_path / "new").exists() else True


def test_a_pull_does_not_write_through_a_linked_encoder_folder(pushed, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / FOLDER).symlink_to(tmp_path / "outside")
    (tmp_path / "new" / "abag-store.json").write_bytes((pushed / "abag-store.json").read_bytes())
    with pytest.raises(UnsafeFile, match="is a link; expected a folder"):
        pull(ADDRESS, tmp_path / "new")
    assert not (tmp_path / "outside").exists()


def test_a_repository_without_a_store_is_refused_and_nothing_is_created(hub, tmp_path):
    hub.put("dataset", NAME, {"README.md": b"# x\n"})
    with pytest.raises(StoreError, match="holds no store"):
        pull(ADDRESS, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_each_failure_is_one_line(hub, store, tmp_path, monkeypatch):
    new = ["--store", tmp_path / "new"]
    assert "does not exist on the hub" in one_line("store", "pull", ADDRESS, *new)
    assert "not the address of a dataset" in one_line("store", "pull", f"hf://{NAME}", *new)
    assert "not the address of a dataset" in one_line("store", "push", store, "../x")
    assert "is a commit" in one_line("store", "push", store, f"{ADDRESS}@{'0' * 40}")
    assert ("dataset", NAME) not in hub.repositories
    run("store", "push", store, ADDRESS)
    assert "has no revision nope" in one_line("store", "pull", f"{ADDRESS}@nope", *new)
    assert "was given" in one_line("store", "push", store, ADDRESS, "--private")
    add(store, seed=9)
    hub.may_write = False
    assert "access is denied" in one_line("store", "push", store, ADDRESS)
    hub.may_read = False
    assert "may not see it" in one_line("store", "pull", ADDRESS, *new)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    offline = "huggingface_hub.constants.is_offline_mode"  # not before 1.0
    monkeypatch.setattr(offline, lambda: True, raising=False)
    hub.close()
    assert "cannot be reached" in one_line("store", "pull", ADDRESS, *new)
    assert not (tmp_path / "new").exists()


def test_a_private_repository_is_created_private_and_a_branch_is_created(hub, store):
    push(store, f"{ADDRESS}@next", private=True)
    assert HfApi().repo_info(NAME, repo_type="dataset").private
    assert len(hub.files("dataset", NAME, "next")) == 7
    assert len(hub.files("dataset", NAME, "main")) == 1


def test_an_adapter_goes_with_the_vectors_but_not_its_options(hub, tmp_path):
    folder = add(tmp_path / "store", seed=1, adapter="ee" * 16, origin="igt5")
    record = {
        "format": "abag-adapter",
        "version": 1,
        "name": "first",
        "sides": {"antibody": {"encoder": "igt5", "weights": "ab"}},
        "options": {"split_from": "/home/someone/run"},
        "summary": {"adapter": "/home/someone/a"},
    }
    for name, content in {
        "adapter.json": json.dumps(record),
        "splits.parquet": "rows",
        "antibody/adapter_model.safetensors": "weights",
        "antibody/adapter_config.json": '{"base_model_name_or_path": "igt5"}',
    }.items():
        path = folder.path / "adapter" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    push(tmp_path / "store", ADDRESS)
    pull(ADDRESS, tmp_path / "new")
    pulled = open_store(tmp_path / "new").folder("antibody").adapter_files()
    assert len(pulled) == 4
    assert "someone" not in pulled["adapter/adapter.json"].decode()
    config = folder.path / "adapter" / "antibody" / "adapter_config.json"
    config.write_text('{"base_model_name_or_path": "/home/someone/igt5"}')
    with pytest.raises(OutputError, match="adapter's digest covers"):
        push(tmp_path / "store", "hf://datasets/lab/other")
    assert ("dataset", "lab/other") not in hub.repositories


def test_the_commands_print_their_summaries(hub, store, tmp_path):
    assert re.search(r": 3 shards \(.* kB\) sent, 0 ", run("store", "push", store, ADDRESS).stdout)
    pulled = run("store", "pull", ADDRESS, "--store", tmp_path / "new", "--json")
    assert json.loads(pulled.stdout)["pulled"] == 3


def test_a_push_that_fails_is_continued_without_sending_a_shard_twice(hub, tmp_path):
    add(tmp_path / "store", seed=1, shards=4)

    def stop(_method, path):
        if "/commit/" in path:
            raise Problem(503)

    hub.before = stop
    with pytest.raises(HubError, match=r"cannot be reached|answers with"):
        push(tmp_path / "store", ADDRESS)
    hub.before = allow
    assert push(tmp_path / "store", ADDRESS)["pushed"] == 4
    sent = [path for method, path in hub.asked if method == "PUT"]
    assert len(sent) == len(set(sent)) == 4
