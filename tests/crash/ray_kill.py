"""Kill drivers and workers of ``abag embed --ray`` at random times, and run the same command again.

    python tests/crash/ray_kill.py FOLDER [KILLS] [SEED]

Starts a Ray cluster of two CPU slots on this machine. Each store is killed up to four times and
then completed; everything that was committed before a kill must still be there. Prints one JSON
object.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from full_disk import in_child_value, problem, start

PORT = 6399
KILLS_PER_STORE = 4
KILLED_WITHIN_S = 4.0
ROWS = 2000
TINY = ["--antibody-encoder", "tiny-igt5", "--antigen-encoder", "tiny-esm2"]


@contextlib.contextmanager
def cluster():
    """Run a cluster, which ends with its own process; other clusters of the machine stay."""
    run = "from ray.scripts.scripts import main; main()"
    options = ["--head", f"--port={PORT}", "--num-cpus=2", "--include-dashboard=false", "--block"]
    command = [sys.executable, "-c", run, "start", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", PORT), timeout=1).close()
                break
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait()


def make_table(path):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 120)) for _ in range(ROWS)]
    pd.DataFrame({"heavy": texts, "antigen": texts[0]}).to_csv(path, index=False)


def workers():
    """Process ids of all actors on this machine."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if "ray::_Worker" in path.read_text():
                pids.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return pids


def content(store):
    """Verify a store; return each sequence's vector, by its key."""
    from stores import verify

    from abag import open_store

    if not store.exists():
        return {}
    opened = open_store(store)
    assert verify(opened) == []
    vectors = {}
    for folder in opened.folders():
        for keys in folder.keys():
            for key, x in zip(keys, folder.read(keys), strict=True):
                vectors[f"{folder.kind} {bytes(key).hex()}"] = x.tolist()
    return vectors


def differing(some, whole):
    """Count the vectors that differ by more than other batches of one run do."""
    return sum(not np.allclose(x, whole[key], rtol=2e-3, atol=2e-3) for key, x in some.items())


def killed(arguments, log, rng, counts):
    """Run the command and kill its driver, or one of its workers, soon after the workers started.

    Returns the exit code of a driver that was not killed, or 0.
    """
    ours = {*workers()}  # those of the driver before may take a moment to end
    driver = start(arguments, log)
    while not (started := [*{*workers()} - ours]):
        if os.waitpid(driver, os.WNOHANG) != (0, 0):
            return 0  # nothing was missing
        time.sleep(0.02)
    time.sleep(rng.uniform(0, KILLED_WITHIN_S))
    if rng.random() < 0.5:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(rng.choice([*{*workers()} - ours] or started), signal.SIGKILL)
            counts["workers killed"] += 1
        return os.waitstatus_to_exitcode(os.waitpid(driver, 0)[1])
    os.kill(driver, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(driver, 0)[1])
    counts["drivers killed"] += code == -signal.SIGKILL
    return 0


def main(folder, kills=30, seed=1):
    import ray  # noqa: F401 - imported once, before the forks

    import abag.embed.embed  # noqa: F401

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tempfile.tempdir = str(folder)
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a machine that used Ray before may have a token
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    table = folder / "pairs.csv"
    log = folder / "log"
    rng = random.Random(seed)
    make_table(table)
    counts = Counter({"drivers killed": 0, "workers killed": 0, "lost": 0, "wrong": 0})
    often = ["--commit-seconds", "0", "--batch-tokens", "1024", "--ray", f"127.0.0.1:{PORT}"]
    with cluster():
        begun = time.monotonic()
        arguments = ["embed", table, "--store", folder / "whole", *TINY, *often]
        _, status = os.waitpid(start(arguments, log), 0)
        assert status == 0, log.read_text()
        seconds = time.monotonic() - begun
        whole = in_child_value(partial(content, folder / "whole"), folder)
        while counts["drivers killed"] + counts["workers killed"] < kills:
            store = folder / f"store{counts['stores']}"
            arguments[3] = store
            kept = set()
            for _ in range(KILLS_PER_STORE):
                code = killed(arguments, log, rng, counts)
                counts["bad ends"] += bool(problem(code, log)) if code else 0
                held = in_child_value(partial(content, store), folder)
                kept |= held.keys()
                if len(held) == len(whole):
                    break
                counts["wrong"] += differing(held, whole)
            _, status = os.waitpid(start(arguments, log), 0)
            embedded = in_child_value(partial(content, store), folder)
            counts["acknowledged"] += len(kept)
            counts["lost"] += len(kept - embedded.keys())
            counts["incomplete"] += bool(
                status != 0 or embedded.keys() != whole.keys() or differing(embedded, whole)
            )
            counts["stores"] += 1
            print(dict(counts), file=sys.stderr)
    print(json.dumps({**counts, "rows": len(whole), "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
