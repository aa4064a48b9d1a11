"""Commands that write one result are killed at any point: it is whole or absent, and made again."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from invoke import PLAIN_ENCODERS, run

HEAD = ["--head", "ridge", "--split", "random", "--device", "cpu"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_command_leaves_a_whole_result_or_none_and_can_be_repeated(killed_anywhere):
    killed_anywhere(__file__, 60, 1)


def commands(inputs, out):
    """Return the arguments of each command by the name of its result in `out`."""
    table = inputs / "pairs.csv"
    store = inputs / "store"
    fitted = inputs / "run"
    export = ["store", "export", store, "--table", table, "--force", "--to"]
    predict = ["predict", table, "--run", fitted, "--force", "--out"]
    return {
        "scored.csv": [*predict, out / "scored.csv"],
        "scored.parquet": [*predict, out / "scored.parquet"],
        "order.csv": ["rank", inputs / "library.csv", "--batch", "8", "--force",
                      "--out", out / "order.csv"],
        "shared": ["share", fitted, "--to", out / "shared"],
        "vectors.npz": [*export, out / "vectors.npz"],
        "vectors.parquet": [*export, out / "vectors.parquet"],
        "merged": ["store", "merge", store, inputs / "more", "--out", out / "merged"],
    }  # fmt: skip


def content(path):
    """Return what a result says: its bytes, those of its files, or the vectors of a store."""
    from stores import verify
    from test_scan_kill import vectors

    from abag import open_store

    if path.name == "merged":
        assert verify(open_store(path)) == []
        return vectors(path)
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*")}
    return path.read_bytes()


def compute(folder, out):
    """Make all results in `out`; what an earlier call left there has to be whole."""
    out.mkdir(exist_ok=True)
    for name, arguments in commands(folder / "inputs", out).items():
        path = out / name
        if path.exists() and name != "merged" and out.name != "unbroken":
            whole = content(folder / "unbroken" / name)
            current = content(path)
            # a folder is filled file by file
            assert current == whole or (path.is_dir() and is_part(current, whole)), name
        run(*arguments)


def is_part(current, whole):
    return all(whole.get(n) == data for n, data in current.items() if not n.endswith(".partial"))


def snapshot(out):
    """Return all results, and the names of the files beside them."""
    left = sorted(path.name for path in out.iterdir())
    return left, {name: content(out / name) for name in commands(out, out)}


def make_inputs(folder):
    from drawn import demo_table

    inputs = folder / "inputs"
    table = inputs / "pairs.csv"
    store = inputs / "store"
    inputs.mkdir()
    demo_table().head(100).to_csv(table, index=False)
    demo_table().head(150).to_csv(inputs / "more.csv", index=False)
    run("embed", table, "--store", store, *PLAIN_ENCODERS)
    run("embed", inputs / "more.csv", "--store", inputs / "more", *PLAIN_ENCODERS)
    run("fit", table, "--store", store, "--run", inputs / "run", *HEAD)
    run("predict", table, "--run", inputs / "run", "--out", inputs / "library.csv")


def main(folder, kills, seed):
    from forks import kill_anywhere

    step = os, "fsync"
    kill_anywhere(folder, kills, seed, make_inputs, compute, step=step, snapshot=snapshot)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
