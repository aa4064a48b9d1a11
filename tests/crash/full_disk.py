"""Fill the disk of a command's output, or of its temporary files, to many levels.

    python tests/crash/full_disk.py FOLDER [LEVELS] [COMMAND ...]

Needs the right to mount. Each command writes to a tmpfs that has a part of the space that it needs:
it has to end with 0, or with 1 and one line, and the same command must finish after the disk was
enlarged, with the result of an undisturbed one. Prints one JSON object.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from forks import in_child

PLAIN = ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
HEAD = ["--epochs", "2", "--widths", "8", "--device", "cpu", "--save-every", "2"]
ROOMY = 1 << 28


def commands(inputs, disk):
    """Return the arguments of each command, which writes to `disk` only."""
    table = inputs / "pairs.csv"
    store = inputs / "store"
    run = inputs / "run"
    return {
        "embed": ["embed", table, "--store", disk / "store", *PLAIN],
        "fit": ["fit", table, "--store", store, "--run", disk / "run", *HEAD],
        "folds": ["fit", table, "--store", store, "--run", disk / "run", *HEAD, "--folds", "3",
                  "--split", "random"],
        "stack": ["fit", table, "--store", store, "--run", disk / "run", *HEAD, "--head", "stack"],
        "predict": ["predict", table, "--run", run, "--out", disk / "scored.csv"],
        "predict-parquet": ["predict", table, "--run", run, "--out", disk / "scored.parquet"],
        "merge": ["store", "merge", store, inputs / "more", "--out", disk / "store"],
        "sweep": ["sweep", table, "--store", store, "--sweep", disk / "sweep", "--trials", "2",
                  "--inner-folds", "2", "--epochs", "1", "--device", "cpu"],
        "demo": ["demo", disk / "demo"],
    }  # fmt: skip


def call(arguments, log, retry_s=0.1):
    """Run the command line in this process, with its output in a file."""
    from stores import set_patience

    from abag.cli import main

    set_patience(pytest.MonkeyPatch(), write_s=retry_s)
    with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main([str(a) for a in arguments], standalone_mode=False)
        except SystemExit as ended:
            os._exit(ended.code or 0)


def start(arguments, log, **environment):
    """Call in a fork, which leads a session of its own; return its process id."""
    pid = os.fork()
    if pid == 0:
        os.environ |= environment
        os.setsid()
        try:
            call(arguments, log)
            os._exit(0)
        finally:
            os._exit(3)
    return pid


def mount(path, size):
    path.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    subprocess.run(["mount", *options], check=True)


def used(path):
    space = os.statvfs(path)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def content(disk):
    """Return what a finished command left: the vectors of stores, and the bytes of results."""
    kept = {}
    for path in sorted(p for p in disk.rglob("*") if p.is_file() and p.name != "filler"):
        name = str(path.relative_to(disk))
        if path.name in ("predictions.parquet", "predictor.json") or "scored" in path.name:
            kept[name] = path.read_bytes()
        elif path.name.endswith(".partial"):
            kept[name] = "left"
    return kept


def rows(path):
    from stores import verify

    from abag import open_store

    store = open_store(path)
    assert verify(store) == []
    counts = {}
    for folder in store.folders():
        distinct = {bytes(key) for keys in folder.keys() for key in keys}
        counts[folder.path.name] = len(distinct)
    return counts


def problem(code, log):
    """Return what is wrong with how a command ended, if anything."""
    text = log.read_text()
    *_, last = text.splitlines() or [""]
    if code == 0 or ((code == 1 and last.startswith("Error: ")) and "Traceback" not in text):
        return None
    return f"code {code}: {text[-2000:]}"


def trial(name, folder, free, where):
    """Run a command with `free` bytes, then with plenty; return its end and its problems."""
    disk = folder / "disk"
    local = folder / "local"
    log = folder / "log"
    inputs = folder / "inputs"
    sizes = {"disk": ROOMY, "tmp": ROOMY}
    if free is not None:
        sizes[where] = free + 4096
    mount(disk, sizes["disk"])
    mount(local, sizes["tmp"])
    small = disk if where == "disk" else local
    try:
        if free is not None:
            (small / "filler").write_bytes(bytes(4096))
        tempfile.tempdir = str(local)
        arguments = commands(inputs, disk)[name]
        code = in_child(lambda: call(arguments, log))
        wrong = [problem(code, log)]
        said = log.read_text().splitlines()[-1:]
        if code == 1:
            (small / "filler").unlink(missing_ok=True)
            subprocess.run(["mount", "-o", f"remount,size={ROOMY}", str(small)], check=True)
            again = in_child(lambda: call(arguments, log))
            if again:
                wrong.append(f"again: code {again}: {log.read_text()[-2000:]}")
        result = content(disk)
        if name in ("embed", "merge") and not any(wrong):
            result["rows"] = in_child_value(lambda: rows(disk / "store"), folder)
        return code, [w for w in wrong if w], result, used(small), said
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        subprocess.run(["umount", str(local)], check=True)


def in_child_value(work, folder):
    path = folder / "value.json"
    path.unlink(missing_ok=True)
    in_child(lambda: path.write_text(json.dumps(work())))
    return json.loads(path.read_text()) if path.exists() else "failed"


def make_inputs(inputs):
    from drawn import demo_table

    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    table = demo_table().head(150)
    table.to_csv(inputs / "pairs.csv", index=False)
    demo_table().head(200).to_csv(inputs / "more.csv", index=False)
    log = inputs / "log"
    here = [
        ["embed", inputs / "pairs.csv", "--store", inputs / "store", *PLAIN],
        ["embed", inputs / "more.csv", "--store", inputs / "more", *PLAIN],
        ["fit", inputs / "pairs.csv", "--store", inputs / "store", "--run", inputs / "run", *HEAD],
    ]
    for command in here:
        assert in_child(lambda command=command: call(command, log)) == 0, log.read_text()


def main(folder, levels=18, *names):
    import pyarrow.parquet  # noqa: F401 - imported once, before the forks
    import torch

    import abag.embed.embed
    import abag.head.fit
    import abag.head.predictor.scoring  # noqa: F401

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    make_inputs(folder / "inputs")
    result = {}
    for name in names or commands(folder, folder):
        for where in ("disk", "tmp"):
            _, wrong, expected, size, said = trial(name, folder, None, where)
            assert not wrong, wrong
            failed = finished = 0
            problems = []
            lines = set()
            for level in range(levels):
                free = size * level // levels if where == "disk" else level * 4096
                code, wrong, written, _, said = trial(name, folder, free, where)
                failed += code == 1
                finished += code == 0
                lines.update(said if code == 1 else ())
                different = written != expected
                if wrong or different:
                    problems.append((level, different, sorted(written), wrong))
            result[f"{name}, {where}"] = {
                "bytes": size,
                "failed": failed,
                "finished": finished,
                "problems": len(problems),
            }
            print(name, where, result[f"{name}, {where}"], file=sys.stderr)
            for line in sorted(lines):
                print("   ", line[:300], file=sys.stderr)
            for differing in problems:
                print("    PROBLEM", *differing, file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:])
