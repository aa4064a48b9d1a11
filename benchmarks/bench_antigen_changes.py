"""Leave antigens out: do the changes from the nearest training antigen tell where intervals fail?

    python benchmarks/bench_antigen_changes.py TABLE [--head ridge] [--rows N] --out FOLDER
    python benchmarks/bench_antigen_changes.py [TABLE] --time --out FOLDER
    python benchmarks/bench_antigen_changes.py --tiny --out FOLDER              # seconds, on a CPU

Composition vectors. Each case holds out rows, antigens at random, or the antigens with more edits
than others from the most frequent antigen that is at least 90 % identical, and trains on 85 % of
the rest. For the rows with 0, few, many changes and unlike antigens: how many, the share in the
90 % interval, and the share flagged by vectors and by changes. With --time, only the search is
timed. Writes antigen_changes.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from rapidfuzz.distance import Levenshtein

import abag
from abag.embed.sequences.pairs import read_pairs
from abag.head.prediction.antigen_changes import (
    LEAST_IDENTITY,
    TrainingAntigens,
    measure_antigens,
)

Z_90 = 1.6449
RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")


def parent_edits(antigens: pd.Series) -> pd.Series:
    """Count the edits of each row's antigen from the most frequent similar one."""
    found: dict[str, int] = {}
    parents: list[str] = []
    for one in antigens.value_counts().index:
        near = (Levenshtein.normalized_similarity(one, p) >= LEAST_IDENTITY for p in parents)
        at = next((n for n, is_near in enumerate(near) if is_near), None)
        found[one] = 0 if at is None else Levenshtein.distance(one, parents[at])
        if at is None:
            parents.append(one)
    return antigens.map(found)


def cases(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Name the rows to leave out, a boolean array each."""
    rng = np.random.default_rng(0)
    of_row, antigens = pd.factorize(table["antigen"])
    edits = parent_edits(table["antigen"]).to_numpy()
    found = {"15 % of rows": rng.random(len(table)) < 0.15}
    found["15 % of antigens"] = (rng.random(len(antigens)) < 0.15)[of_row]
    return found | {f"variants with more than {n} edits": edits > n for n in (0, 1, 2, 5)}


def measure(
    table: pd.DataFrame, store: Path, out: np.ndarray, head: str
) -> list[dict[str, object]]:
    """Train without some rows and score them, by the changes of their antigens."""
    drawn = np.random.default_rng(1).random(len(table))
    part = np.select([out, drawn < 0.15], ["test", "val"], "train")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        abag.fit(
            table.assign(part=part), store, run, split="column=part", report=False, head=head,
            say=lambda _text: None,
        )  # fmt: skip
        start_s = time.monotonic()
        predictor = abag.load_predictor(run)
        asked = table[out]
        found = predictor.predict(asked["heavy"], asked["light"], asked["antigen"], store=store)
        seconds = time.monotonic() - start_s
        texts = read_pairs(asked)
    error = (asked["pKd"].to_numpy() - found["pkd_predicted"]).abs()
    changes, limit = found["antigen_changes"], predictor.antigens.most_changes
    chains = [texts.antigens.chains[n] for n in texts.antigens.of_row]
    by_changes = predictor.antigens.is_far(predictor.antigens.count(chains))
    groups = {
        "all": changes.isna() | True, "0": changes == 0, "1 to 2": changes.between(1, 2),
        "3 to 10": changes.between(3, 10), "more": changes > 10, "unlike": changes.isna(),
    }  # fmt: skip
    return [
        {
            "changes": name, "rows": int(rows.sum()), "RMSE": float((error[rows] ** 2).mean() ** 0.5),
            "in 90 % interval": share(error[rows] <= Z_90 * found["sigma"][rows]),
            "far antigen": share(found["far_antigen"][rows]), "by changes": share(by_changes[rows]),
            "limit": "none" if limit is None else str(limit), "seconds": f"{seconds:.1f}",
        }
        for name, group in groups.items()
        if (rows := group.fillna(value=False).to_numpy(bool)).any()
    ]  # fmt: skip


def time_search(table: pd.DataFrame, count: int) -> list[dict[str, object]]:
    """Time the limit for the antigens of a table, and counts against drawn training antigens."""
    rng = np.random.default_rng(0)
    drawn = ["".join(rng.choice(RESIDUES, rng.integers(100, 600))) for _ in range(2 * count)]
    known, unrelated = drawn[:count], drawn[count:]
    parent, family = rng.choice(RESIDUES, 300).tolist(), set()
    while len(family) < count:
        changed = parent.copy()
        for at in rng.integers(0, 300, rng.integers(2, 6)):
            changed[at] = rng.choice(RESIDUES)
        family.add("".join(changed))
    own = sorted(family)
    asked = {
        "unrelated": (known, unrelated),
        "variants": (known, [one[:50] + "WW" + one[50:] for one in known]),
        "in training": (known, known),
        "variants of one family": (own, [one[:50] + "WW" + one[50:] for one in own]),
    }
    sets = {"of the table": table["antigen"].unique().tolist(), "drawn": known, "family": own}
    rows: list[dict[str, object]] = []
    for name, antigens in sets.items():
        chains = [tuple(one.split("|")) for one in antigens]
        start_s = time.perf_counter()
        measure_antigens(chains)
        seconds = time.perf_counter() - start_s
        rows.append({"what": f"limit, {name}", "antigens": len(antigens), "seconds": seconds})
    for name, (training, new) in asked.items():
        counter = TrainingAntigens(training, None)
        start_s = time.perf_counter()
        counter.count([(one,) for one in new])
        seconds = time.perf_counter() - start_s
        rows.append({"what": f"count, {name}", "antigens": len(new), "seconds": seconds})
    return rows


def share(rows: pd.Series | np.ndarray) -> str:
    """Format a share."""
    return f"{np.mean(rows):.0%}"


def planted_table() -> pd.DataFrame:
    """Antibodies against variants of one antigen, whose changes add up in pKd."""
    rng = np.random.default_rng(0)
    heavy = ["".join(rng.choice(RESIDUES, 40)) for _ in range(12)]
    parent, effect = rng.choice(RESIDUES, 120), rng.normal(0, 0.7, 120)
    rows = []
    for n in range(200):
        at = rng.choice(120, n % 4 if n % 5 else 8, replace=False)
        antigen = parent.copy()
        antigen[at] = rng.choice(RESIDUES, len(at))
        label = 8 + effect[at].sum()
        rows += [(h, "".join(antigen), label + rng.normal(0, 0.2)) for h in rng.choice(heavy, 3)]
    table = pd.DataFrame(rows, columns=["heavy", "antigen", "pKd"])
    return table.assign(light="").drop_duplicates(["heavy", "antigen"], ignore_index=True)


def read(path: Path) -> pd.DataFrame:
    """Read a table, its columns named by their roles, with one row per pair."""
    parsed = read_pairs(path)
    frame = pd.DataFrame(
        [parsed.antibodies.chains[n] for n in parsed.antibodies.of_row], columns=["heavy", "light"]
    )
    frame["antigen"] = ["|".join(parsed.antigens.chains[n]) for n in parsed.antigens.of_row]
    label = next(name for name in ("pKd", "pIC50") if name in parsed.frame)
    frame["pKd"] = parsed.frame[label].to_numpy()
    return frame.dropna().groupby(["heavy", "light", "antigen"], as_index=False).median()


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?", help="default: a planted table")
    parser.add_argument("--head", default="ridge")
    parser.add_argument("--rows", type=int, help="draw at most so many")
    parser.add_argument("--time", action="store_true", help="time the search instead")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    table = planted_table() if a.table is None else read(a.table)
    if a.tiny:
        table = table.head(150)
    if a.rows and a.rows < len(table):
        table = table.sample(a.rows, random_state=0, ignore_index=True)
    rows = time_search(table, 100 if a.tiny else 3000) if a.time else []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        if not a.time:
            abag.embed_table(table, store, "composition", "composition")
        for name, out in ({} if a.time else cases(table)).items():
            if not 15 <= out.sum() <= 0.9 * len(table):
                continue
            rows += [{"left out": name} | row for row in measure(table, store, out, a.head)]
            print(rows[-1], flush=True)
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in r.values()] for r in rows]
    lines = [
        f"# Antigens left out of training, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_antigen_changes.py {' '.join(arguments or sys.argv[1:])}`; "
        f"{platform.machine()}, Python {platform.python_version()}.",
        "",
        *("| " + " | ".join(c) + " |" for c in [list(rows[0]), ["---"] * len(rows[0]), *cells]),
    ]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "antigen_changes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
