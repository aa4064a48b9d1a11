"""A fit that is killed for real, anywhere, ends as one that was not.

One process imports everything and then forks for each trial, so that a kill costs a fork and not
an import. It computes nothing itself: threads would not survive the fork.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

OPTIONS = {
    "widths": (8, 4), "epochs": 4, "batch_size": 8, "accumulate": 2, "save_every": 3, "patience": 3,
    "device": "cpu", "validate_pairs": 8, "split": "random", "report": False,
}  # fmt: skip


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "seed", "members"),
    [
        (14, 0, 1),
        (6, 2, 3),
        pytest.param(220, 1, 1, marks=pytest.mark.slow),
        pytest.param(100, 3, 3, marks=pytest.mark.slow),
    ],
)
def test_a_fit_killed_anywhere_ends_bit_for_bit_as_an_unbroken_one(tmp_path, kills, seed, members):
    command = [sys.executable, __file__, tmp_path, str(kills), str(seed), str(members)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["different"] == []
    assert result["killed"] == kills
    assert result["resumed"] > 0


def make_inputs(folder):
    """Write a table of 60 pairs with a planted rule, and a store of its vectors."""
    from abag.embed.sequences import read_pairs
    from abag.embed.store import open_store

    rng = np.random.default_rng(0)
    heavy = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 12)) for _ in range(20)]
    antigen = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 12)) for _ in range(3)]
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigen], columns=["heavy", "antigen"])
    frame["pKd"] = 7 + rng.normal(size=len(frame))
    frame.to_csv(folder / "pairs.csv", index=False)
    table = read_pairs(folder / "pairs.csv")
    store = open_store(folder / "store", create=True)
    for kind, unique in (("antibody", table.antibodies), ("antigen", table.antigens)):
        vectors = store.create_folder(kind, {"name": "drawn", "fingerprint": "ab" * 16})
        with vectors.writer(attrs={"precision": "fp32"}) as writer:
            n = len(unique.keys)
            x_ND = rng.normal(size=(n, 6)).astype(np.float32)
            writer.add(unique.keys, np.full(n, 12, np.int32), {"mean": x_ND})


def fit(folder, run):
    import abag

    return abag.fit(folder / "pairs.csv", folder / "store", run, say=lambda _text: None, **OPTIONS)


def die_at(event, n):
    """Arrange SIGKILL at the n-th step, or before or after the n-th rename."""
    from abag.head.step import Stepper

    def dying(real, *, after):
        count = 0

        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == n and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if count == n and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    if event == "step":
        Stepper.step = dying(Stepper.step, after=False)
    elif event in ("before", "after"):
        os.replace = dying(os.replace, after=event == "after")


def in_child(work, kill_after_s=None):
    """Run in a fork; return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)  # whatever happens, the child must not go on as the parent
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def snapshot(run):
    """Return everything the run holds but times, speeds and how often it was resumed."""
    from abag.head.checkpoint import load

    kept = {}
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        name = str(path.relative_to(run))
        if path.parent.name == "checkpoints":
            found = load(path)
            state = {k: v for k, v in found.state.items() if k not in ("seconds", "log_bytes")}
            kept[name] = (state, {n: t.numpy().tobytes() for n, t in found.tensors.items()})
        elif name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif name == "summary.json":
            values = json.loads(path.read_text())
            kept[name] = {
                k: v for k, v in values.items() if k not in ("run", "seconds", "resumed_from_step")
            }
        else:
            kept[name] = path.read_bytes()
    return kept


def main(folder, kills, seed, members):
    OPTIONS["members"] = members
    # What a fit imports on its first use, once for all forks.
    import pyarrow.parquet  # noqa: F401
    import torch

    import abag.head.train  # noqa: F401

    torch.set_num_threads(1)
    assert in_child(lambda: make_inputs(folder)) == 0
    begun = time.monotonic()
    assert in_child(lambda: fit(folder, folder / "unbroken")) == 0
    seconds = time.monotonic() - begun
    steps = len((folder / "unbroken/metrics.jsonl").read_text().splitlines())
    rng = random.Random(seed)
    result = {"killed": 0, "resumed": 0, "different": []}
    expected = snapshot(folder / "unbroken")
    trial = 0
    while result["killed"] < kills:  # a late one finds the run finished, and does not count
        trial += 1
        run = folder / f"run{trial}"
        event = ("step", "before", "after", "time")[trial % 4]
        n = rng.randint(1, steps if event == "step" else steps + 12)
        wait = rng.uniform(0, seconds) if event == "time" else None

        def killed(event=event, n=n, run=run):
            die_at(event, n)
            fit(folder, run)

        code = in_child(killed, wait)
        result["killed"] += code == -signal.SIGKILL
        ended = in_child(lambda run=run: fit(folder, run))
        if ended != 0 or snapshot(run) != expected:
            result["different"].append((event, n, wait, ended))
            continue
        summary = json.loads((run / "summary.json").read_text())
        result["resumed"] += summary["resumed_from_step"] is not None
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
