"""Kill writers of a store at any instant, and count the losses.

    python tests/crash/kills.py --kills 1000 --writers 2 --seed 7

Children are forked, so that a thousand of them take minutes. Each adds what the store lacks,
reports to its parent what the writer calls committed, and is killed at a random time or, with
--steps, at one file operation after the other. Prints one JSON object.
"""

import argparse
import errno
import itertools
import json
import os
import random
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))
from faults import before_operations
from stores import publish_spools, set_patience

from abag import open_store
from abag.core.messages import reporting

SEQUENCES = 400
WIDTH = 24
BATCH = 7
COMMIT_ROWS = 16
LONGEST_LIFE_S = 0.3  # of all writers together, before the kill; doubled if none added anything
INFO = {"name": "crash", "fingerprint": "c0" * 16}
KEYS = np.random.default_rng(0).integers(0, 256, (SEQUENCES, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((SEQUENCES, WIDTH)).astype(np.float16)


def interrupted(root: Path, last: int, rng: random.Random | None) -> AbstractContextManager[None]:
    """Kill this process at the n-th file operation; with `rng`, let some of them fail."""
    left = itertools.count(last - 1, -1)

    def step(_name):
        if not next(left):
            os.kill(os.getpid(), signal.SIGKILL)
        if rng is not None and rng.random() < 0.1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return before_operations(root, step)


def child(root: Path, seed: int, report: int) -> None:
    """Add what is missing; write (row, committed?) pairs to `report`."""
    rng = random.Random(seed)
    os.environ["XDG_CACHE_HOME"] = str(root.parent / "cache")  # deleted with the store
    set_patience(pytest.MonkeyPatch(), first_pause_s=0.0001)
    publish_spools(root)
    folder = open_store(root, create=True).create_folder("antibody", INFO)
    rows = np.flatnonzero(folder.missing(KEYS, verify=True))
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    reported = 0
    with folder.writer(attrs={}, commit_rows=COMMIT_ROWS, commit_seconds=0.01) as writer:
        for at in range(0, len(rows), BATCH):
            part = rows[at : at + BATCH]
            lengths = np.full(len(part), 100)
            writer.add(KEYS[part], lengths, {"mean": VECTORS[part], "cls": -VECTORS[part]})
            os.write(report, b"".join(struct.pack("<ii", r, 0) for r in part.tolist()))
            reported = report_rows(report, rows, reported, writer.committed)
            time.sleep(rng.random() * 0.002)
    report_rows(report, rows, reported, writer.committed)


def report_rows(report: int, rows, reported: int, committed: int) -> int:
    """Report the rows that were committed since the last report."""
    os.write(report, b"".join(struct.pack("<ii", r, 1) for r in rows[reported:committed].tolist()))
    return committed


def spawn(root: Path, seed: int, last: int, flaky: random.Random | None) -> tuple[int, int]:
    """Fork a child; return its process id and the pipe that it writes to."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid:
        os.close(send)
        return pid, receive
    code = 1
    try:
        os.close(receive)
        with interrupted(root, last, flaky):
            child(root, seed, send)
        code = 0
    except BaseException:  # noqa: BLE001 -- printed; the parent stops
        traceback.print_exc()
    finally:
        os._exit(code)


def drain(receive: int) -> tuple[set[int], set[int]]:
    """Read a dead child's report: the rows that it added, and those that were committed."""
    data = b""
    while part := os.read(receive, 1 << 16):
        data += part
    os.close(receive)
    data = data[: len(data) // 8 * 8]
    rows = list(struct.iter_unpack("<ii", data))
    added = {row for row, is_committed in rows if not is_committed}
    return added, {row for row, is_committed in rows if is_committed}


def check(root: Path, acknowledged: set[int], counts: Counter) -> set[int]:
    """Open the store again, check it, and return the rows that it holds."""
    try:
        folder = open_store(root).folder("antibody")
    except Exception:  # noqa: BLE001 -- any exception is a failure
        if (root / "abag-store.json").exists() and acknowledged:
            counts["unreadable"] += 1
        return set()
    present = np.flatnonzero(~folder.missing(KEYS, verify=True))
    counts["unreadable"] += len(folder.damaged)
    counts["lost"] += len(acknowledged - set(present.tolist()))
    if len(present):
        counts["wrong"] += int((folder.read(KEYS[present]) != VECTORS[present]).any(axis=1).sum())
        wrong = folder.read(KEYS[present], "cls") != -VECTORS[present]
        counts["wrong"] += int(wrong.any(axis=1).sum())
    return set(present.tolist())


def run(kills: int, writers: int, seed: int, *, steps: bool, flaky: bool) -> dict[str, int]:
    """Kill writers of one store after the other until there were enough kills."""
    rng = random.Random(seed)
    counts = Counter(dict.fromkeys(("kills", "stores", "lost", "unreadable", "wrong"), 0))
    step = 0
    while counts["kills"] < kills:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "store"
            acknowledged = set()
            present = set()
            patience_s = LONGEST_LIFE_S
            while len(present) < SEQUENCES:
                step = step + 1 if steps else 0
                children = [
                    spawn(root, rng.randrange(1 << 30), step, rng if flaky else None)
                    for _ in range(writers)
                ]
                for pid, receive in children:
                    if not steps:
                        select.select([], [], [], rng.random() * patience_s / writers)
                        os.kill(pid, signal.SIGKILL)
                    added, committed = drain(receive)
                    _, status = os.waitpid(pid, 0)
                    counts["kills"] += os.WIFSIGNALED(status)
                    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                        sys.exit("a writer failed without being killed")
                    step = step if os.WIFSIGNALED(status) else 0
                    acknowledged |= committed
                    counts["added"] += len(added)
                before = present
                present = check(root, acknowledged, counts)
                # on a busy machine, a writer may need longer to add anything at all
                patience_s = LONGEST_LIFE_S if present > before else 2 * patience_s
                if writers == 1:
                    risk = len(added - present)
                    counts["most_at_risk"] = max(counts["most_at_risk"], risk)
                counts["encoded_again"] += len(added & before) if writers == 1 else 0
            counts["acknowledged"] += len(acknowledged)
            counts["stores"] += 1
            counts["shards_spooled"] += len(list(root.parent.glob("cache/abag/spool/*/*/*.h5")))
            counts["partials_left"] += len(list(root.glob("*/*.partial")))
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", action="store_true", help="kill at each file operation")
    parser.add_argument("--flaky", action="store_true", help="let some operations fail")
    options = parser.parse_args()
    with reporting(silent=True):
        counts = run(
            options.kills,
            options.writers,
            options.seed,
            steps=options.steps,
            flaky=options.flaky,
        )
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main()
