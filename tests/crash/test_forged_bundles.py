"""Forge each field and each array of a predictor folder, sign it again, load it and predict.

    python tests/crash/test_forged_bundles.py FOLDER SEED [HEAD ...]

A forged folder must be refused by one line of an AbagError, or give finite predictions, finite
sigmas of 0 or more and no warning. A predictor of each head is trained in FOLDER first; that of
``variants`` also counts changes from training antibodies and antigens.
"""

import json
import sys
import warnings
from collections import Counter
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))
import trastuzumab
from drawn import QUICK, add_vectors, demo_table
from safetensors.numpy import load_file, save_file

import abag
from abag import AbagError
from abag.head.models.config import is_used
from abag.head.models.pair_vectors import PairVectors, SideVectors
from abag.head.predictor.folder import record_digest

RECORD = "predictor.json"
WEIGHTS = "weights.safetensors"
HEADS = (
    "mlp", "gp", "ridge", "stack", "residue_kernel", "one_hot_ridge", "trees", "variants",
)  # fmt: skip
MOST_FORGERIES = 6000
"""Of one head; the fields of the others are drawn."""
PARENT = "EVQLVESGGGLV"
VALUES = [
    None, True, "", "x", [], {}, [8], 0, -1, 2**31, 2**63, 10**310, 0.0, -0.5, 1e-320, 1e30, -1e30,
    1e308, float("nan"), float("inf"),
]  # fmt: skip


def draw_variants(parent, number):
    variants = set()
    for at in range(len(parent)):
        variants |= {parent[:at] + new + parent[at + 1 :] for new in "ACDEFG"}
    return sorted(variants)[:number]


def draw_table(head):
    if head == "variants":  # so many that combinations of their changes are kept
        table = demo_table().head(300)
        heavy = draw_variants(trastuzumab.HEAVY, len(table))
        antigen = [table["antigen"][0][:60] + "A" * (n % 7) for n in range(len(table))]
        return table.assign(heavy=heavy, light=trastuzumab.LIGHT, antigen=antigen)
    table = demo_table().head(60)
    if head in (
        "residue_kernel",
        "one_hot_ridge",
    ):  # a short chain, since each of its positions is a field
        table = table.assign(heavy=draw_variants(PARENT, len(table)), light="")
    return table


def places(value, where=()):
    """Yield the path of every field of a record, containers included."""
    yield where
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*where, name))


def forge_record(record, where, value):
    inner = record = deepcopy(record)
    for name in where[:-1]:
        inner = inner[name]
    if value is KeyError:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    return record


def forge_array(array, rng):
    """Yield an array with other values, another shape or another type."""
    for value in (0, -1, np.iinfo(np.int32).max, 1e30, -1e30, 3e38):
        changed = array.copy()
        with np.errstate(all="ignore"):
            changed.flat[rng.integers(array.size) if array.size else slice(0)] = np.array(
                value
            ).astype(array.dtype)
        yield changed
    with np.errstate(all="ignore"):
        yield np.full_like(array, np.array(3e38).astype(array.dtype))
    yield -array
    yield array[:0]
    yield array.reshape(-1)[:1]
    yield array[None]
    yield np.concatenate([array, array]) if array.ndim else array[None]
    for dtype in (np.float16, np.float64, np.int64, np.uint8, np.bool_):
        with np.errstate(all="ignore"):
            yield array.astype(dtype)


def forgeries(bundle, rng):
    """Yield a description, the record and the arrays of each forgery of a folder."""
    record = json.loads((bundle / RECORD).read_text())
    arrays = load_file(bundle / WEIGHTS)
    values = [KeyError, *VALUES]
    fields = [where for where in places(record) if where and where[0] not in ("schema", "digest")]
    chosen = rng.permutation(len(fields))[: MOST_FORGERIES // len(values)]
    for where in (fields[at] for at in chosen):
        for value in values:
            yield (where, value), forge_record(record, where, value), arrays
    for name, array in arrays.items():
        yield (name, "gone"), record, {n: a for n, a in arrays.items() if n != name}
        for number, changed in enumerate(forge_array(array, rng)):
            yield (name, number), record, arrays | {name: changed}


def sign(folder, record, arrays):
    """Write a predictor folder whose digest fits."""
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, folder / WEIGHTS)
    digest = record_digest(record, (folder / WEIGHTS).read_bytes())
    (folder / RECORD).write_text(json.dumps(record | {"digest": digest}))


def outcome(folder, table):
    """Return "refused" or "predicted"; anything else is a fault in words."""
    rng = np.random.default_rng(0)
    x_ND, y_ME = (rng.normal(size=(n, 6)).astype(np.float32) for n in (9, 5))
    i = rng.integers(9, size=20)
    j = rng.integers(5, size=20)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            predictor = abag.load_predictor(folder)
            heavy, light, antigen = (table[name][:9] for name in ("heavy", "light", "antigen"))
            chains = [
                (h[n:] + "W" * (n % 3), x)
                for n, (h, x) in enumerate(zip(heavy, light, strict=True))
            ]
            antigens = [tuple((text[n:] + "W" * n).split("|")) for n, text in enumerate(antigen)]
            antibody = predictor.seen["antibody"].compare(chains).take(i)
            antigen = predictor.seen["antigen"].compare(antigens[:5]).take(j)
            left = SideVectors(x_ND, i, chains)
            right = SideVectors(y_ME, j, antigens[:5])
            pairs = PairVectors({"antibody": left, "antigen": right})
            scores = predictor.score(pairs, antibody, antigen).scores
    except AbagError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        return f"{type(error).__name__}: {error}"
    if not np.isfinite(scores[["pkd_predicted", "sigma"]]).all(axis=None):
        return "not finite"
    return "predicted" if scores["sigma"].min() >= 0 else "negative sigma"


def run(folder, seed, heads=HEADS):
    """Return how often each outcome came, and the forgeries with a fault."""
    rng = np.random.default_rng(seed)
    counts = Counter()
    faults = []
    for head in heads:
        table = draw_table(head)
        store = add_vectors(folder / f"{head}-store", table).path
        name = "ridge" if head == "variants" else head
        used = {n: options for n, options in QUICK.items() if is_used(n, name)}
        abag.fit(table, store, folder / head, head=name, **used)
        forged = folder / f"{head}-forged"
        forged.mkdir()
        assert outcome(folder / head, table) == "predicted"
        for forgery, *files in forgeries(folder / head / "predictor", rng):
            sign(forged, *files)
            result = outcome(forged, table)
            good = result in ("refused", "predicted")
            counts[result if good else "fault"] += 1
            if not good:
                faults.append((head, forgery, result))
                print(head, forgery, result, flush=True)
    return counts, faults


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("head", HEADS)
def test_a_forged_predictor_is_refused_or_gives_finite_predictions(tmp_path, head):
    counts, faults = run(tmp_path, 1, [head])
    assert not faults
    assert min(counts["refused"], counts["predicted"]) > 100


if __name__ == "__main__":
    counts, faults = run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or HEADS)
    print(dict(counts))
    sys.exit(bool(faults))
