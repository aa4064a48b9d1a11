"""Kill a computation at many points, resume it, and compare the results.

One process imports everything and then forks for each script and each trial, so that a kill costs a
fork and not an import. The parents compute nothing, because threads would not survive the fork.
Scripts use this module, and the fixture `killed_anywhere` (conftest.py) runs the scripts.
"""

import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from run_scripts import MODULES

EVENTS = ("step", "before", "after", "time")
"""When to kill: before a step, before or after a rename, or at a random time."""


def watch(step, tell):
    """Call `tell` before each call of a method, given as (class, name), and around each rename."""
    owner, name = step
    real_step = getattr(owner, name)
    real_replace = os.replace

    def stepping(*args, **kwargs):
        tell("step")
        return real_step(*args, **kwargs)

    def replacing(*args, **kwargs):
        tell("before")
        result = real_replace(*args, **kwargs)
        tell("after")
        return result

    setattr(owner, name, stepping)
    os.replace = replacing  # pathlib looks it up in os too


def dying_at(event, n, number=signal.SIGKILL):
    """Return a function that signals this process when an event happens for the n-th time."""
    left = n

    def tell(happened):
        nonlocal left
        left -= happened == event
        if not left:
            os.kill(os.getpid(), number)

    return tell


def in_child(work, kill_after_s=None, number=signal.SIGKILL):
    """Run in a fork; return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            if code == 3:
                traceback.print_exc()
            os._exit(code)  # the child must never continue as the parent
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def import_all():
    for name in MODULES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def kill_anywhere(
    folder, kills, seed, make_inputs, compute, *, step, snapshot, summary=None, check_stop=None
):
    """Compute once without a kill, then kill and resume many times; print one JSON object.

    Parameters
    ----------
    make_inputs : callable
        Takes the folder, and writes there what `compute` reads.
    compute : callable
        Takes the folder and one to compute into; resumes from what it finds there.
    step : (class, str)
        The method that does one step.
    snapshot, summary : callable
        Take that folder; return what must be equal, and a dict with ``resumed_from_step``. Without
        a summary, every trial counts as resumed.
    check_stop : callable, optional
        Half of the trials are stopped by SIGTERM, which ends a command with 143; this takes the
        folder then, and raises for what the command should not have said.
    """
    import_all()
    folder.mkdir(parents=True, exist_ok=True)
    assert in_child(lambda: make_inputs(folder)) == 0
    counts = {event: multiprocessing.Value("i") for event in EVENTS}

    def unbroken():
        def tell(happened):
            counts[happened].value += 1

        watch(step, tell)
        compute(folder, folder / "unbroken")

    begun = time.monotonic()
    assert in_child(unbroken) == 0
    seconds = time.monotonic() - begun
    expected = snapshot(folder / "unbroken")
    rng = random.Random(seed)
    result = {"killed": 0, "resumed": 0, "different": []}
    trial = 0
    while result["killed"] < kills:  # a kill after the end does not count
        trial += 1
        event = EVENTS[(trial - 1) % len(EVENTS)]
        out = folder / f"out{trial}"
        n = rng.randint(1, max(1, counts[event].value))
        wait = rng.uniform(0, seconds) if event == "time" else None
        by_term = check_stop is not None and trial // len(EVENTS) % 2
        number = signal.SIGTERM if by_term else signal.SIGKILL

        def killed(event=event, n=n, out=out, number=number):
            watch(step, dying_at(event, n, number))
            compute(folder, out)

        code = in_child(killed, wait, number)
        if by_term and code == 128 + signal.SIGTERM:
            check_stop(out)
            result["killed"] += 1
        elif code == -number:
            result["killed"] += 1
        elif code:
            result["different"].append((event, n, wait, code))
        ended = in_child(lambda out=out: compute(folder, out))
        if ended != 0 or snapshot(out) != expected:
            result["different"].append((event, n, wait, ended))
            continue
        result["resumed"] += summary is None or summary(out)["resumed_from_step"] is not None
    print(json.dumps(result), flush=True)


def timeless(value):
    """Leave out what depends on times and paths."""
    if isinstance(value, dict):
        dropped = ("run", "seconds", "resumed_from_step", "adapter")
        return {name: timeless(item) for name, item in value.items() if name not in dropped}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def snapshot(folder, without=None):
    """Return the content of a folder, without times, speeds and resumptions."""
    from abag.head.training.tasks import load

    kept = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != without):
        name = str(path.relative_to(folder))
        if path.suffix in (".json", ".jsonl"):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            kept[name] = [timeless(json.loads(line)) for line in lines]
        elif "checkpoints" in path.relative_to(folder).parts:
            checkpoint = load(path)
            tensors = {n: t.numpy().tobytes() for n, t in checkpoint.tensors.items()}
            kept[name] = timeless(checkpoint.state), tensors
        else:
            kept[name] = path.read_bytes()
    return kept
