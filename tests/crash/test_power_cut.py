"""What was acknowledged survives a power cut at any point of a commit.

A recorder notes every fsync, rename, removal and new folder, and what the files held at the time.
After a power cut, according to POSIX, a file holds what it held when it was last synced; later data
may be there, missing, cut off or zeros. A folder holds the names that it had when it was last
synced, with any of the later changes; a rename is one change. The tests write each of these states
to a folder and open it.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import demo_table
from stores import merge

import abag
from abag import AbagError, open_store
from abag.core.messages import reporting
from abag.head.training.tasks import load_newest, save_rotating

UNSYNCED = {
    "whole": lambda data: data,
    "empty": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "half": lambda data: data[: len(data) // 2],
}
"""What may be left of data that was not synced."""
CALLS = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link")


class Recorder:
    """Records what happens below `root`; a context manager.

    Attributes
    ----------
    points : list
        After each call: the state of the disk cache, what of it is durable, the pending changes
        of names, and the latest value given to :meth:`acknowledge`.
    ignored : str
        Whether syncs of "files" or "folders" have no effect.
    """

    ignored = ""

    def __init__(self, root, monkeypatch):
        self.root = root
        self.points = []
        self.acknowledged = None
        self._contents = {}  # durable bytes by inode; b"" for a new file
        self._names = {}  # durable names: {(folder inode, name): inode}
        self._pending = []  # changes of names: {(folder inode, name): inode or None}
        self._folders = {root.stat().st_ino}
        self._cached = {}
        self._data = {}  # latest bytes by inode, also of removed files
        self._patch = monkeypatch

    def __enter__(self):
        for name in CALLS:
            self._patch.setattr(os, name, self._through(name, getattr(os, name)))
        return self

    def __exit__(self, *_):
        self._patch.undo()
        self._note()

    def acknowledge(self, value):
        """Note what the user may rely on from now on."""
        self.acknowledged = value
        self._note()

    def _through(self, name, call):
        def recorded(*args, **kwargs):
            self._note()  # what was created and written before
            result = call(*args, **kwargs)
            if name == "fsync":
                self._sync(args[0] if isinstance(args[0], int) else args[0].fileno())
            self._note()
            return result

        return recorded

    def _sync(self, descriptor):
        inode = os.fstat(descriptor).st_ino
        if self.ignored == ("folders" if inode in self._folders else "files"):
            return
        if inode not in self._folders:
            self._contents[inode] = self._data.get(inode, b"")
            return
        kept = []
        for change in self._pending:
            if any(folder == inode for folder, _ in change):
                _apply(self._names, [change])
            else:
                kept.append(change)
        self._pending = kept

    def _note(self):
        """Compare the folder with what was seen last, and add a point."""
        entries = {}
        for folder, folders, names in os.walk(self.root):
            here = Path(folder).stat().st_ino
            self._folders.add(here)
            for name in [*folders, *names]:
                path = Path(folder, name)
                inode = entries[here, name] = path.stat().st_ino
                if name in names:
                    self._data[inode] = path.read_bytes()
        gone = {
            place: inode for place, inode in self._cached.items() if entries.get(place) != inode
        }
        for place, inode in entries.items():
            if self._cached.get(place) == inode:
                continue
            change = {place: inode}
            moved = next((old for old, old_inode in gone.items() if old_inode == inode), None)
            if moved is not None and moved not in entries:
                change[moved] = None
                gone.pop(moved)
            self._pending.append(change)
        self._pending += [{place: None} for place in gone if place not in entries]
        self._cached = entries
        self.points.append(
            (
                dict(self._names),
                list(self._pending),
                dict(self._contents),
                dict(self._data),
                self.acknowledged,
            )
        )

    def states(self):
        """Yield each different state that a power cut can leave, and what was acknowledged.

        A state is {path below the root: bytes, or None for a folder}.
        """
        seen = set()
        for names, pending, durable, data, acknowledged in self.points:
            for changes in _chosen(pending):
                placed = dict(names)
                _apply(placed, changes)
                for left_unsynced in UNSYNCED.values():
                    kept = {
                        i: _left(durable.get(i, b""), d, left_unsynced) for i, d in data.items()
                    }
                    state = self._tree(placed, kept, self.root.stat().st_ino)
                    mark = (frozenset(state.items()), acknowledged)
                    if mark not in seen:
                        seen.add(mark)
                        yield state, acknowledged

    def _tree(self, names, data, folder, prefix=""):
        state = {}
        for (parent, name), inode in names.items():
            if parent == folder:
                path = prefix + name
                if inode in self._folders:
                    state |= {path: None, **self._tree(names, data, inode, path + "/")}
                else:
                    state[path] = data.get(inode, b"")
        return state


def _left(durable, latest, left_unsynced):
    """Return what is left of a file; bytes that were synced before others were appended stay."""
    kept = durable if latest.startswith(durable) else b""
    return kept + left_unsynced(latest[len(kept) :])


def write_state(state, root):
    for path, data in state.items():
        if data is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)


def _apply(names, changes):
    for change in changes:
        for place, inode in change.items():
            if inode is None:
                names.pop(place, None)
            else:
                names[place] = inode


def _chosen(pending):
    """Yield the subsets of pending changes: each prefix, each alone, and all but each one."""
    for n in range(len(pending) + 1):
        yield pending[:n]
    for i, change in enumerate(pending):
        yield [change]
        yield [*pending[:i], *pending[i + 1 :]]


INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}
KEYS = np.random.default_rng(0).integers(0, 256, (12, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((12, 8)).astype(np.float16)


def add(store, rows):
    folder = open_store(store, create=True).create_folder("antibody", INFO)
    with folder.writer(attrs={}) as out:
        out.add(KEYS[rows], np.ones(len(KEYS[rows])), {"mean": VECTORS[rows]})


def check_store(store, acknowledged):
    """Check that a store holds every acknowledged row, and only right ones."""
    try:
        folder = open_store(store).folder("antibody")
    except AbagError:
        assert not acknowledged
        return
    present = np.flatnonzero(~folder.missing(KEYS, verify=True))
    assert set(range(acknowledged or 0)) <= set(present.tolist())
    if len(present):
        assert np.array_equal(folder.read(KEYS[present]), VECTORS[present])


def all_hold(recorder, tmp_path, check):
    """Check every state; return how many there are."""
    n = 0
    with reporting(silent=True):
        for state, acknowledged in recorder.states():
            n += 1
            at = tmp_path / f"state{n}"
            at.mkdir()
            write_state(state, at)
            check(at, acknowledged)
    return n


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """Records an empty folder; the folder and everything before are durable."""
    (tmp_path / "root").mkdir()
    return Recorder(tmp_path / "root", monkeypatch)


def add_three_times(recorder):
    with recorder:
        for end in (4, 8, 12):
            add(recorder.root / "store", slice(end - 4, end))
            recorder.acknowledge(end)


def test_a_store_holds_every_acknowledged_row_after_a_power_cut(tmp_path, recorder):
    add_three_times(recorder)
    assert all_hold(recorder, tmp_path, lambda at, rows: check_store(at / "store", rows)) > 25


def test_a_merged_store_holds_every_row_after_a_power_cut(tmp_path, recorder):
    for end in (4, 8, 12):
        add(tmp_path / f"source{end}", slice(end - 4, end))
    with recorder:
        for end in (4, 8, 12):
            merge([tmp_path / f"source{end}"], recorder.root / "store")
            recorder.acknowledge(end)
    assert all_hold(recorder, tmp_path, lambda at, rows: check_store(at / "store", rows)) > 25


@pytest.mark.parametrize("ignored", ["files", "folders"])
def test_a_power_cut_loses_rows_where_syncs_have_no_effect(tmp_path, recorder, ignored):
    recorder.ignored = ignored
    add_three_times(recorder)
    with pytest.raises(AssertionError):
        all_hold(recorder, tmp_path, lambda at, rows: check_store(at / "store", rows))


def check_checkpoints(folder, acknowledged):
    checkpoint = load_newest(folder)
    step = checkpoint.state["step"] if checkpoint else 0
    assert step >= (acknowledged or 0)
    assert not checkpoint or checkpoint.tensors["w"].tolist() == [step] * 3


def test_the_newest_checkpoint_is_whole_after_a_power_cut(tmp_path, recorder):
    with recorder:
        for step in (1, 2, 3):
            save_rotating(recorder.root, {"w": torch.full((3,), step)}, {"step": step})
            recorder.acknowledge(step)
    assert all_hold(recorder, tmp_path, check_checkpoints) > 10


HEAD = {
    "epochs": 2,
    "widths": (4,),
    "save_every": 2,
    "batch_size": 32,
    "split": "random",
    "report": False,
    "device": "cpu",
    "threads": 1,
    "say": lambda _: None,
}


@pytest.fixture
def recorded_fit(tmp_path, recorder):
    """A finished fit and its recorder, with a function that runs the same command elsewhere."""
    table = demo_table().head(60)
    store = tmp_path / "store"
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    with reporting(silent=True):
        abag.embed_table(table, store, **encoders)
        with recorder:
            abag.fit(table, store, recorder.root / "run", **HEAD)
            recorder.acknowledge("finished")
    return recorder, lambda at: abag.fit(table, store, at / "run", **HEAD)


def results(run):
    names = ["predictions.parquet", "splits.parquet", "predictor/predictor.json"]
    return [(run / name).read_bytes() for name in names]


@pytest.mark.ci
def test_a_finished_run_is_finished_after_a_power_cut(tmp_path, recorded_fit):
    recorder, fit = recorded_fit

    def check(at, acknowledged):
        if acknowledged:
            abag.load_predictor(at / "run")
            fit(at)  # has nothing to do
            assert results(at / "run") == results(recorder.root / "run")

    all_hold(recorder, tmp_path, check)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_fit_resumes_to_the_same_bits_after_a_power_cut_at_any_point(tmp_path, recorded_fit):
    recorder, fit = recorded_fit

    def check(at, _acknowledged):
        fit(at)
        assert results(at / "run") == results(recorder.root / "run")

    assert all_hold(recorder, tmp_path, check) > 50
