"""Write onto a real FUSE file system that is slow, fails, hides new files, or disappears.

    python tests/crash/fuse_drive.py FOLDER [KILLS [WAY ...]]

The ways are slow, late, failing, "any case", "all of it", disconnected and commands: `embed` meets
the first six, and the last has `fit`, `predict`, `sweep` and others write onto drives that are
slow, fail rarely, or ignore the case. Needs the right to mount, /dev/fuse, libfuse and ``pip
install mfusepy``. Prints one JSON object.
"""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import mfusepy
import pytest
from forks import in_child
from full_disk import PLAIN, call, commands, content, in_child_value, make_inputs, problem, rows


class Drive(mfusepy.Operations):
    """A folder of the local disk, seen through a bad connection.

    Parameters
    ----------
    delay_s : float
        Longest time that a call takes.
    fails : float
        Share of the calls that fail with EIO.
    late_s : float
        How long a renamed file cannot be seen.
    any_case : bool
        Whether names that differ by case only are one name, as on macOS and Windows.
    """

    use_ns = True

    def __init__(self, folder, *, delay_s=0.0, fails=0.0, late_s=0.0, any_case=False):
        self.folder = folder
        self.delay_s = delay_s
        self.fails = fails
        self.late_s = late_s
        self.any_case = any_case
        self.hidden_until = {}
        self.random = random.Random(1)

    def at(self, path):
        if not self.any_case:
            return self.folder / path[1:]
        real = self.folder
        for name in Path(path).parts[1:]:
            names = {p.name.lower(): p.name for p in real.iterdir()} if real.is_dir() else {}
            real = real / names.get(name.lower(), name)
        return real

    def getattr(self, path, fh=None):
        state = self.at(path).lstat()
        names = ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid")
        times = {name: getattr(state, name + "_ns") for name in ("st_mtime", "st_ctime")}
        return {name: getattr(state, name) for name in names} | times

    def readdir(self, path, fh):
        now = time.monotonic()
        names = [entry.name for entry in self.at(path).iterdir()]
        hidden = {
            Path(hidden_path).name
            for hidden_path, until in self.hidden_until.items()
            if until > now
        }
        return [".", "..", *(name for name in names if name not in hidden)]

    def create(self, path, mode, fi=None):
        return os.open(self.at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path, flags):
        return os.open(self.at(path), flags & ~os.O_NOFOLLOW)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(self.at(path), length)

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)

    def rename(self, old, new):
        self.at(old).rename(self.at(new))
        self.hidden_until[new] = time.monotonic() + self.late_s

    def mkdir(self, path, mode):
        self.at(path).mkdir(mode)

    def unlink(self, path):
        self.at(path).unlink()

    def rmdir(self, path):
        self.at(path).rmdir()

    def statfs(self, path):
        space = os.statvfs(self.folder)
        return {
            n: getattr(space, n)
            for n in (
                "f_bsize",
                "f_frsize",
                "f_blocks",
                "f_bfree",
                "f_bavail",
                "f_files",
                "f_ffree",
            )
        }


def through_the_connection(name, method):
    """Delay a method of a drive, let it fail, and hide files that were renamed a moment ago."""

    def call(drive, path, *args):
        time.sleep(drive.random.random() * drive.delay_s)
        if drive.random.random() < drive.fails:
            raise mfusepy.FuseOSError(errno.EIO)
        if name in ("getattr", "open") and drive.hidden_until.get(path, 0) > time.monotonic():
            raise mfusepy.FuseOSError(errno.ENOENT)
        return method(drive, path, *args)

    return call


for _name in (
    "getattr readdir create open read write truncate fsync rename mkdir unlink rmdir statfs"
).split():
    setattr(Drive, _name, through_the_connection(_name, getattr(Drive, _name)))


class Mounted:
    """The drive of `folder`, mounted beside it by a process of its own."""

    def __init__(self, folder, **options):
        self.point = folder / "drive"
        self.backing = folder / "backing"
        self.point.mkdir(exist_ok=True)
        self.backing.mkdir(exist_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                mfusepy.FUSE(
                    Drive(self.backing, **options),
                    str(self.point),
                    foreground=True,
                    entry_timeout=0,
                    attr_timeout=0,
                    negative_timeout=0,
                )
            finally:
                os._exit(1)
        while not self.point.is_mount():
            time.sleep(0.05)

    def disconnect(self):
        """Kill the server: each call returns ENOTCONN from now on."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def unmount(self):
        subprocess.run(["umount", "-l", str(self.point)], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.disconnect()
        self.unmount()


WAYS = {
    "slow": {"delay_s": 0.004},
    "late": {"late_s": 1.0},
    "failing": {"fails": 0.01},
    "any case": {"any_case": True},
    "all of it": {"delay_s": 0.002, "late_s": 0.3, "fails": 0.005},
}
RARELY = {"slow": WAYS["slow"], "failing": {"fails": 0.001}, "any case": WAYS["any case"]}
"""Drives onto which results are written: fits end with a line each time where calls fail often."""
WRITERS = ("fit", "folds", "stack", "predict", "predict-parquet", "merge", "sweep")
MOST_TIMES = 50
"""Of one command that fails with one line, until it ends."""


def main(folder, kills=20, *chosen):
    from drawn import demo_table

    import abag.embed.embed  # noqa: F401 - imported once, before the forks

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "local").mkdir(parents=True)
    tempfile.tempdir = str(folder / "local")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    table = folder / "pairs.csv"
    log = folder / "log"
    demo_table().to_csv(table, index=False)
    often = ["--commit-seconds", "0", "--batch-tokens", "3000"]

    def embed(store, kill_after_s=None):
        arguments = ["embed", table, "--store", store, *PLAIN, *often]
        code = in_child(lambda: call(arguments, log, 2.0), kill_after_s)
        if code == 1:
            print("   ", log.read_text().splitlines()[-1], file=sys.stderr)
        return code

    begun = time.monotonic()
    assert embed(folder / "whole") == 0, log.read_text()
    whole_s = time.monotonic() - begun
    whole = in_child_value(lambda: rows(folder / "whole"), folder)
    result = {}
    rng = random.Random(2)
    for name, options in WAYS.items():
        if chosen and name not in chosen:
            continue
        with Mounted(folder, **options) as drive:
            begun = time.monotonic()
            ends = Counter([str(embed(drive.point / name))])
            seconds = time.monotonic() - begun
            for _ in range(kills):
                code = embed(drive.point / f"{name} killed", rng.uniform(0, seconds))
                ends[str(code)] += 1
                ends["not one line"] += code != -signal.SIGKILL and bool(problem(code, log))
            for store in (name, f"{name} killed"):
                while code := embed(drive.point / store):
                    ends[f"again: {code}"] += 1
        stores = [drive.backing / name, drive.backing / f"{name} killed"]
        held = [in_child_value(partial(rows, store), folder) for store in stores]
        result[name] = {**ends, "complete": [rows_held == whole for rows_held in held]}
        print(name, result[name], f"{seconds:.1f} s", file=sys.stderr)
    if not chosen or "disconnected" in chosen:
        result["disconnected"] = disconnected(folder, embed, whole, log, kills, whole_s)
    if not chosen or "commands" in chosen:
        result["commands"] = write_results(folder, log, kills)
    left = list(folder.glob("cache/abag/spool/*/*/*.h5"))
    result["shards left in a spool"] = len(left)
    print(json.dumps(result))


def disconnected(folder, embed, whole, log, times, whole_s):
    """Kill the drive during a run, mount it again, and run the same command."""
    from stores import set_patience

    set_patience(pytest.MonkeyPatch(), read_s=5)  # instead of a minute
    counts = Counter()
    rng = random.Random(3)
    for number in range(times):
        drive = Mounted(folder)
        store = drive.point / f"disconnected {number}"
        killer = os.fork()
        if killer == 0:
            time.sleep(rng.uniform(0.1, 2 * whole_s))  # a drive is slower than the disk
            os.kill(drive.pid, signal.SIGKILL)
            os._exit(0)
        code = embed(store)
        os.waitpid(killer, 0)
        os.waitpid(drive.pid, 0)
        drive.unmount()
        counts["not one line"] += bool(problem(code, log))
        counts["failed"] += code == 1
        with Mounted(folder):
            again = embed(store)
        counts[f"again: {again}"] += 1
        held = in_child_value(partial(rows, drive.backing / store.name), folder)
        counts["complete"] += held == whole
        counts["trials"] += 1
    return dict(counts)


def write_results(folder, log, kills):
    """Let commands write onto each drive, kill them, and run them until they end.

    Results have to be those on a local disk.
    """
    import pyarrow.parquet  # noqa: F401 - imported once, before the forks
    import torch

    import abag.head.fit
    import abag.head.predictor.scoring
    import abag.head.sweep  # noqa: F401

    torch.set_num_threads(1)
    inputs = folder / "inputs"
    make_inputs(inputs)
    rng = random.Random(4)
    counts = {}
    for command in WRITERS:
        local = folder / "undisturbed" / command
        local.mkdir(parents=True)
        begun = time.monotonic()
        whole = commands(inputs, local)[command]
        assert in_child(lambda whole=whole: call(whole, log)) == 0, log.read_text()
        whole_s = time.monotonic() - begun
        expected = content(local)
        for way, options in RARELY.items():
            ends = Counter()
            with Mounted(folder, **options) as drive:
                place = drive.point / f"{command} {way}"
                while not place.is_dir():
                    with contextlib.suppress(OSError):
                        place.mkdir()
                arguments = commands(inputs, place)[command]
                for number in range(kills + MOST_TIMES):
                    after_s = rng.uniform(0, 2 * whole_s) if number < kills else None
                    code = in_child(lambda given=arguments: call(given, log, 2.0), after_s)
                    wrong = code != -signal.SIGKILL and problem(code, log)
                    ends[str(code)] += 1
                    ends["not one line"] += bool(wrong)
                    if wrong:
                        print(command, way, wrong, file=sys.stderr)
                    if code == 0:
                        break
            written = content(drive.backing / place.name)
            ends["as on a disk"] = written == expected
            counts[f"{command}, {way}"] = dict(ends)
            print(command, way, dict(ends), file=sys.stderr)
            if written != expected:
                print("    PROBLEM", sorted(written), sorted(expected), file=sys.stderr)
    return counts


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:])
