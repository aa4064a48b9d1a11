"""A scan that is killed at any point leaves no part of a result, and is repeated by one command."""

import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_scan_is_repeated_with_the_same_result(killed_anywhere):
    killed_anywhere(__file__, 40, 1)


def scan(folder, out):
    """Predict mutants, whose vectors are committed to a store of this trial."""
    import abag

    out.mkdir(exist_ok=True)
    if (out / "mutants.csv").exists():  # a killed scan leaves a whole result or none
        assert (out / "mutants.csv").read_bytes() == (folder / "unbroken/mutants.csv").read_bytes()
    acknowledged = vectors(out / "store") if (out / "store" / "abag-store.json").exists() else {}
    abag.scan(
        folder / "run",
        out / "mutants.csv",
        parents=folder / "pairs.csv",
        limit=4,
        region="cdrh3",
        mutate_to="ACDEF",
        store=out / "store",
        force=True,
        device="cpu",
    )
    assert acknowledged.items() <= vectors(out / "store").items()  # nothing acknowledged is lost


def vectors(path):
    """Return the vectors of a store, by key."""
    from abag import open_store

    vector_of_key = {}
    for folder in open_store(path).folders():
        for keys in folder.keys():
            for key, x in zip(keys, folder.read(keys), strict=True):
                vector_of_key[bytes(key)] = x.tobytes()
    return vector_of_key


def snapshot(out):
    """Return the result, the names of what is left beside it, and the vectors."""
    from stores import verify

    from abag import open_store

    store = open_store(out / "store")
    assert verify(store) == []
    for folder in store.folders():
        with folder.writer(attrs={}):  # the next one that writes clears what a dead one left
            pass
    # notes on the speed are written after the vectors, and not again
    left = {p.name for p in out.rglob("*") if p.suffix != ".h5"}
    return (out / "mutants.csv").read_bytes(), left, vectors(out / "store")


def make_inputs(folder):
    from drawn import demo_table

    import abag

    table = demo_table().head(60)
    table.to_csv(folder / "pairs.csv", index=False)
    abag.embed_table(table, folder / "store", "composition", "composition")
    quick = {"head": "ridge", "split": "random", "report": False, "device": "cpu"}
    abag.fit(table, folder / "store", folder / "run", **quick)


def main(folder, kills, seed):
    import pandas as pd
    from forks import kill_anywhere

    step = pd.DataFrame, "to_csv"
    kill_anywhere(folder, kills, seed, make_inputs, scan, step=step, snapshot=snapshot)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
