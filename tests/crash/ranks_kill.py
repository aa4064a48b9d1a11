"""Kill ranks of ``abag embed`` at random times, stop the others, and start all of them again.

    python tests/crash/ranks_kill.py FOLDER [KILLS]

Each rank is a fork with the variables of torchrun. Prints one JSON object.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from full_disk import PLAIN, in_child_value, problem, rows, start

RANKS = 2
STOPPED = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)


def main(folder, kills=100):
    from drawn import demo_table

    import abag.embed.embed  # noqa: F401 - imported once, before the forks

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "local").mkdir(parents=True)
    tempfile.tempdir = str(folder / "local")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    demo_table().to_csv(folder / "pairs.csv", index=False)
    counts = Counter()
    rng = random.Random(1)
    whole = None
    while counts["kills"] < kills:
        store = folder / f"store{counts['stores']}"
        small_commits = ["--commit-seconds", "0", "--batch-tokens", "3000"]
        arguments = ["embed", folder / "pairs.csv", "--store", store, *PLAIN, *small_commits]
        for attempt in range(6):
            logs = [folder / f"log{rank}" for rank in range(RANKS)]
            world = {"WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": str(attempt)}
            children = [
                start(arguments, log, RANK=str(rank), LOCAL_RANK=str(rank), **world)
                for rank, log in enumerate(logs)
            ]
            if attempt < 5:  # the last attempt is left alone
                for pid in rng.sample(children, rng.randint(1, RANKS)):
                    time.sleep(rng.random() * 0.3)
                    os.kill(pid, signal.SIGKILL)
                for pid in children:  # as a launcher does
                    os.kill(pid, signal.SIGTERM)
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
            counts["kills"] += codes.count(-signal.SIGKILL)
            counts["bad ends"] += sum(
                code not in STOPPED and bool(problem(code, log))
                for code, log in zip(codes, logs, strict=True)
            )
        counts["stores"] += 1
        held = in_child_value(lambda at=store: rows(at), folder)
        whole = whole or held
        counts["incomplete"] += codes != [0] * RANKS or held != whole or held == "failed"
    print(json.dumps({**counts, "rows": sum(whole.values())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
