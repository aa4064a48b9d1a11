"""Run scripts in forks of one process, because importing torch takes longer than many a script.

    python tests/run_scripts.py [MODULE ...]

imports these modules and reads one JSON list per line: the file for the output, the script, its
arguments. It prints the exit status of each script before it reads the next line. A script that
sets options before it imports a module, such as huggingface_hub, must not be run where that module
is imported.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

MODULES = (
    "peft", "pyarrow.parquet", "scipy.stats", "torch", "transformers.models.esm.modeling_esm",
    "transformers.models.t5.modeling_t5", "abag.adapt.train", "abag.cli", "abag.embed.embed",
    "abag.embed.encoders.packed", "abag.embed.export", "abag.head.design.rank",
    "abag.head.design.scan", "abag.head.fit", "abag.head.predictor.scoring",
    "abag.head.sweep", "abag.head.share",
)  # fmt: skip
"""What scripts import; none of it starts a thread, which would not survive a fork."""


def become(log, script, *arguments):
    """Continue as a script, with its output in a file and no input."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    with Path(log).open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


@contextlib.contextmanager
def script_runner(*modules):
    """Start such a process; give a function of log and command that returns the exit status."""
    server = subprocess.Popen(
        [sys.executable, __file__, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def run(log, *command):
        print(json.dumps([str(part) for part in (log, *command)]), file=server.stdin, flush=True)
        return int(server.stdout.readline())

    with server:
        yield run
        os.killpg(server.pid, signal.SIGKILL)  # also a script that hangs


def end_fork():
    """End like a process, but without freeing what was imported, which takes 1.4 s."""
    threading._shutdown()
    atexit.unregister(gc.unfreeze)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(*modules):
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # scripts that collect garbage need not visit what was imported
    atexit.register(gc.unfreeze)  # or libraries report at the end that they leaked it
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                become(*json.loads(line))
            except SystemExit as ended:
                if ended.code:
                    raise  # what it raises ends the fork as it ends a process
            end_fork()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
