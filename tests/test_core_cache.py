"""Results that are kept for the next command, and those that cannot be trusted."""

import os
import threading

import numpy as np
import pytest

from abag.core import cache
from abag.core.cache import keep, kept
from abag.head.splits.groups import ClusterMethod, cached_clusters

CONTENT = b"what was computed"


@pytest.fixture
def entry(tmp_path):
    """An entry for the inputs ``b"what"``."""
    keep(tmp_path / "kept", b"what", CONTENT)
    (path,) = (tmp_path / "kept").iterdir()
    return path


def test_what_is_kept_is_read_for_the_same_inputs_only(entry):
    assert kept(entry.parent, b"what") == CONTENT
    assert kept(entry.parent, b"who") is None
    assert kept(None, b"what") is None


def test_any_changed_byte_or_length_is_noticed(entry):
    whole = entry.read_bytes()
    for at in range(len(whole)):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept(entry.parent, b"what") is None
    for other in (b"", whole[:16], whole[:-1], whole + b"x"):
        entry.write_bytes(other)
        assert kept(entry.parent, b"what") is None
    keep(entry.parent, b"what", CONTENT)
    assert kept(entry.parent, b"what") == CONTENT


def test_the_entry_of_other_inputs_under_this_name_is_not_used(entry):
    keep(entry.parent, b"who", b"something else")
    (other,) = set(entry.parent.iterdir()) - {entry}
    other.replace(entry)
    assert kept(entry.parent, b"what") is None


def test_links_pipes_folders_and_files_that_others_may_write_are_not_used(entry, tmp_path):
    whole = entry.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(whole)
    for make in (
        lambda: entry.symlink_to(elsewhere),
        lambda: os.mkfifo(entry),
        lambda: (entry.write_bytes(whole), entry.chmod(0o666)),
    ):
        entry.unlink()
        make()
        assert kept(entry.parent, b"what") is None
        keep(entry.parent, b"what", CONTENT)
        assert kept(entry.parent, b"what") == CONTENT
    assert elsewhere.read_bytes() == whole
    entry.unlink()
    entry.mkdir()
    keep(entry.parent, b"what", CONTENT)  # cannot be kept, which does no harm
    assert kept(entry.parent, b"what") is None


def test_an_entry_of_another_user_is_not_used(entry, monkeypatch):
    assert os.getuid() == entry.stat().st_uid
    monkeypatch.setattr(
        os, "fstat", lambda _: os.stat_result((0o100644, 1, 1, 1, 12345, 0, 9, 0, 0, 0))
    )
    assert kept(entry.parent, b"what") is None


def test_a_folder_holds_a_bounded_number_of_the_entries_used_last(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_ENTRIES", 5)
    for number in range(9):
        keep(tmp_path, bytes([number]), CONTENT)
        (at,) = (one for one in [cache._path(tmp_path, bytes([number]))] if one.exists())
        os.utime(at, ns=(number, number))
        kept(tmp_path, bytes([0]))  # used again and again
    assert [n for n in range(9) if kept(tmp_path, bytes([n])) is not None] == [0, 5, 6, 7, 8]


def test_a_folder_holds_a_bounded_number_of_bytes_and_at_least_the_last_entry(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(cache, "MOST_BYTES", 100)
    for number in range(3):
        keep(tmp_path, bytes([number]), bytes(60))
    assert len(list(tmp_path.iterdir())) == 1
    keep(tmp_path, b"large", bytes(200))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [216]


def test_readers_and_writers_at_the_same_time_find_whole_entries_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_ENTRIES", 3)
    wrong = []

    def work(seed):
        for number in np.random.default_rng(seed).integers(8, size=150).tolist():
            found = kept(tmp_path, bytes([number]))
            if found is None:
                keep(tmp_path, bytes([number]), bytes([number]) * 5000)
            elif found != bytes([number]) * 5000:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(list(tmp_path.iterdir())) <= 3 + len(threads)


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path):
    (tmp_path / "file").write_text("")
    keep(tmp_path / "file" / "kept", b"what", CONTENT)
    assert kept(tmp_path / "file" / "kept", b"what") is None


def test_wrong_clusters_in_the_cache_are_computed_again(tmp_path):
    chains = [("EVQL", ""), ("EVQK", ""), ("DIQM", "")]
    keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
    method = ClusterMethod("test", lambda _, levels: [np.array([0, 0, 2]) for _ in levels])
    right = cached_clusters(method, keys, chains, [0.9], tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:16] + np.array([0, 1, 2]).tobytes())
    again = cached_clusters(method, keys, chains, [0.9], tmp_path)
    assert again[0.9].tolist() == right[0.9].tolist() == [0, 0, 2]


def test_clusters_at_nearly_the_same_identity_are_kept_apart(tmp_path):
    keys = np.zeros((1, 16), np.uint8)
    method = ClusterMethod("test", lambda _, levels: [np.array([0]) for _ in levels])
    for identity in (0.9, 0.90000001):
        cached_clusters(method, keys, [("EVQL", "")], [identity], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
