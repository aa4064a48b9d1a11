"""Results that are kept for the next command, and those that cannot be trusted."""

import errno
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from chunks import set_sizes
from faults import raising

from abag.core import files
from abag.core.files import cache_dir, load_cached, store_cached
from abag.head.regimes.relations import cached_clusters

CONTENT = b"what was computed"


@pytest.fixture
def new_folder():
    """Forget the temporary folder of this process, before and after."""
    files._new_folder.cache_clear()
    yield
    files._new_folder.cache_clear()


@pytest.fixture
def entry(tmp_path):
    """An entry for the inputs ``b"what"``."""
    store_cached(tmp_path / "kept", b"what", CONTENT)
    (path,) = (tmp_path / "kept").iterdir()
    return path


def test_what_is_kept_is_read_for_the_same_inputs_only(entry):
    assert load_cached(entry.parent, b"what") == CONTENT
    assert load_cached(entry.parent, b"who") is None
    assert load_cached(None, b"what") is None


def test_any_changed_byte_or_length_is_noticed(entry):
    whole = entry.read_bytes()
    for at in range(len(whole)):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert load_cached(entry.parent, b"what") is None
    for other in (b"", whole[:16], whole[:-1], whole + b"x"):
        entry.write_bytes(other)
        assert load_cached(entry.parent, b"what") is None
    store_cached(entry.parent, b"what", CONTENT)
    assert load_cached(entry.parent, b"what") == CONTENT


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's cache folder, which does not exist yet, and the temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "home" / "abag"


@pytest.mark.parametrize("umask", [0o022, 0o002, 0])
def test_nobody_else_can_enter_the_cache_folder(home, umask):
    before = os.umask(umask)
    try:
        assert cache_dir() == home
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    home.chmod(0o755)
    assert cache_dir() == home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o757, 0o720])
def test_a_cache_folder_to_which_others_may_write_is_reported_once_and_not_used(
    home, tmp_path, mode, said
):
    home.mkdir(parents=True)
    home.chmod(mode)
    assert {cache_dir(), cache_dir()} == {tmp_path / "tmp" / f"abag-{os.getuid()}"}
    assert said == [
        f"{home}: other users may write to it, so nothing in it is used or kept. Delete it; abag "
        "makes it again."
    ]
    assert not list(home.iterdir())


@pytest.mark.parametrize("linked", [False, True])
def test_a_cache_folder_of_another_user_is_not_used(home, tmp_path, monkeypatch, linked):
    home.parent.mkdir()
    if linked:
        (tmp_path / "own").mkdir()
        home.symlink_to(tmp_path / "own")
    else:
        home.mkdir()
    assert cache_dir() == home
    user = os.getuid()
    # a link of another user to a folder of this one decides what is read, too
    real = Path.lstat if linked else Path.stat

    def owned(path, **options):
        state = list(real(path, **options))
        state[stat.ST_UID] = 4711 if path == home else user
        return os.stat_result(state)

    monkeypatch.setattr(Path, real.__name__, owned)
    assert cache_dir() == tmp_path / "tmp" / f"abag-{user}"


def test_a_temporary_folder_that_others_prepared_is_not_used_either(home, tmp_path, new_folder):
    home.parent.write_text("not a folder")
    prepared = tmp_path / "tmp" / f"abag-{os.getuid()}"
    prepared.mkdir()
    prepared.chmod(0o777)
    folder = cache_dir()
    assert folder.parent == tmp_path / "tmp"
    assert folder != prepared
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache_dir() == folder  # one for all parts of a command


def test_a_folder_holds_a_bounded_number_of_the_entries_used_last(tmp_path, monkeypatch):
    set_sizes(monkeypatch, cached_entries=5)
    for number in range(9):
        before = {*tmp_path.iterdir()}
        store_cached(tmp_path, bytes([number]), CONTENT)
        (at,) = {*tmp_path.iterdir()} - before
        os.utime(at, ns=(number, number))
        load_cached(tmp_path, bytes([0]))  # used again and again
    assert [n for n in range(9) if load_cached(tmp_path, bytes([n])) is not None] == [0, 5, 6, 7, 8]


def test_a_folder_holds_a_bounded_number_of_bytes_and_at_least_the_last_entry(
    tmp_path, monkeypatch
):
    set_sizes(monkeypatch, cached_bytes=100)
    for number in range(3):
        store_cached(tmp_path, bytes([number]), bytes(60))
    assert len(list(tmp_path.iterdir())) == 1
    store_cached(tmp_path, b"large", bytes(200))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [216]


def test_readers_and_writers_at_the_same_time_find_whole_entries_or_none(tmp_path, monkeypatch):
    set_sizes(monkeypatch, cached_entries=3)
    wrong = []

    def work(seed):
        for number in np.random.default_rng(seed).integers(8, size=150).tolist():
            content = load_cached(tmp_path, bytes([number]))
            if content is None:
                store_cached(tmp_path, bytes([number]), bytes([number]) * 5000)
            elif content != bytes([number]) * 5000:
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
    store_cached(tmp_path / "file" / "kept", b"what", CONTENT)
    assert load_cached(tmp_path / "file" / "kept", b"what") is None


def test_clusters_of_another_length_in_the_cache_are_computed_again(tmp_path):
    keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
    right = cached_clusters("test", keys, lambda: np.array([0, 0, 2]), tmp_path)
    (path,) = tmp_path.iterdir()
    assert cached_clusters("test", keys, lambda: None, tmp_path).tolist() == right.tolist()
    path.write_bytes(path.read_bytes()[:16] + np.array([0, 1, 2]).tobytes())
    again = cached_clusters("test", keys, lambda: right, tmp_path)
    assert again.tolist() == right.tolist() == [0, 0, 2]
    cached_clusters("test of another kind", keys, lambda: right, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_was_kept_is_read_where_its_time_cannot_be_set(entry, monkeypatch):
    """As in a home folder that a cluster mounts to be read only."""
    monkeypatch.setattr(os, "utime", raising(OSError(errno.EROFS, "Read-only file system")))
    assert load_cached(entry.parent, b"what") == CONTENT
