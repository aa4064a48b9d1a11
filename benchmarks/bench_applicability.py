"""Leave out libraries, CDRs or mutation orders: are the intervals right, or the rows flagged?

    python benchmarks/bench_applicability.py TABLE [--id COLUMN] [--head gp] [--case TEXT]
        [--antibody-encoder composition] [--store FOLDER] --out FOLDER
    python benchmarks/bench_applicability.py --tiny --out FOLDER              # seconds, on a CPU

TABLE holds variants of one antibody: antibody_heavy, antibody_light, antigen, pKd. Each row of the
result leaves out the variants named, trains on 85 % of the others, and scores those left out: 90 %
of the labels should be within the 90 % interval. A case is good if at least 80 % are, or if at
least 90 % of the rows are flagged. The last cases keep some rows of the smallest library in
training. Writes applicability.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import abag
from abag.embed.sequences.chains import antibody, keys_array
from abag.embed.sequences.domains import locate_positions
from abag.embed.store.store import open_store
from abag.head.evaluation.metrics import spearman

REGIONS = {"CDR H1": (27, 38), "CDR H2": (56, 65), "CDR H3": (105, 117)}
HEAVY_LIGHT = ("antibody_heavy", "antibody_light")
Z_90 = 1.6449
KEPT_ROWS = (32, 64, 128, 320)
"""Rows of the smallest library that are not left out, in the last cases: 0.5 to 5 % of the training
rows of AlphaBind HER2."""


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """Count the changes of each row from the consensus of the heavy chains, by region."""
    places: dict[str, None] = {}  # in the order of their first occurrence
    numbered = []
    for heavy in table["antibody_heavy"]:
        located = locate_positions(heavy, "heavy")
        numbered.append({position: heavy[at] for position, at in located.items()})
        places |= dict.fromkeys(located)
    frame = pd.DataFrame(numbered, columns=list(places)).fillna("-")
    changed = frame != frame.mode().iloc[0]
    number = np.array([int(p.rstrip("ABCDEFGHIJ")) for p in places])
    inside = {name: (number >= a) & (number <= b) for name, (a, b) in REGIONS.items()}
    inside["framework"] = ~np.any(list(inside.values()), axis=0)
    counts = {name: changed.to_numpy()[:, mask].sum(axis=1) for name, mask in inside.items()}
    return pd.DataFrame(counts | {"all": changed.to_numpy().sum(axis=1)})


def scenarios(
    table: pd.DataFrame, count: pd.DataFrame, column: str | None
) -> dict[str, np.ndarray]:
    """Name the rows to leave out, a boolean array each."""
    rng = np.random.default_rng(0)
    drawn = rng.random(len(table))
    held_out = {"15 % at random": drawn < 0.15}
    held_out |= {f"changes in {name}": count[name] > 0 for name in [*REGIONS, "framework"]}
    held_out |= {
        f"more than {n} changes": count["all"] > n
        for n in np.unique(np.quantile(count["all"], [0.25, 0.5, 0.75]).astype(int))
    }
    if column:
        library = table[column].astype(str).str.extract("([^:_]*)$")[0]
        held_out |= {f"library {name}": library == name for name in sorted(set(library))}
        name = library.value_counts().index[-1]
        order = rng.permutation(np.flatnonzero(library == name))
        for kept in KEPT_ROWS:
            out = np.isin(np.arange(len(table)), order[kept:])
            held_out[f"library {name} but {kept} rows"] = out
    return {name: np.asarray(rows, bool) for name, rows in held_out.items()}


def measure(table: pd.DataFrame, store: Path, out: np.ndarray, head: str) -> dict[str, object]:
    """Train without some rows and score them."""
    drawn = np.random.default_rng(1).random(len(table))
    part = np.select([out, drawn < 0.15], ["test", "val"], "train")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        scored = Path(folder, "scored.parquet")
        abag.fit(
            table.assign(part=part),
            store,
            run,
            split="column=part",
            report=False,
            say=lambda _text: None,
            head=head,
        )
        abag.predict(table[out], run, scored, say=lambda _text: None)
        predicted = pd.read_parquet(scored)
        chains = [antibody(h, x) for h, x in zip(*map(predicted.get, HEAVY_LIGHT), strict=True)]
        predictor = abag.load_predictor(run)
        x_ND = predictor.read(open_store(store), "antibody", keys_array("antibody", chains))
        by_vectors = predictor.applicability["antibody"].is_far(x_ND)
    error = predicted["pKd"] - predicted["pkd_predicted"]
    both = predicted["far_antibody"] | predicted["far_antigen"]
    novelty = predictor.novelty
    reasons = novelty.reasons(novelty.count(chains))
    by_combination = reasons.get("new_combination", np.zeros(len(chains), bool))
    ranks = spearman(error.abs().to_numpy(), predicted["sigma"].to_numpy())
    covered = error.abs() <= Z_90 * predicted["sigma"]
    return {
        "train": int((part == "train").sum()),
        "test": int(out.sum()),
        "RMSE": float(np.sqrt((error**2).mean())),
        "sd of labels": float(predicted["pKd"].std()),
        "in 90 % interval": share(covered),
        "sigma ranks errors": "constant" if ranks is None else ranks,
        "flagged by vectors": f"{by_vectors.mean():.0%}",
        "flagged by residues": f"{reasons['new_residues'].mean():.0%}",
        "flagged by combination": f"{by_combination.mean():.0%}",
        "flagged": f"{both.mean():.0%}",
        "in 90 %, not flagged": share(covered[~both]),
        "good": "yes" if covered.mean() >= 0.8 or both.mean() >= 0.9 else "no",
    }


def share(covered: pd.Series) -> str:
    """Format the share of rows that are covered, with its 95 % interval; empty without rows."""
    if not len(covered):
        return ""
    mean = covered.mean()
    return f"{mean:.0%} ± {1.96 * np.sqrt(mean * (1 - mean) / len(covered)):.0%}"


def tiny_table() -> pd.DataFrame:
    """Variants of one antibody with 1 to 3 changes in CDR H2 and H3."""
    heavy = (
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTA"
        "VYYCSRWGGDGFYAMDYWGQGTLVTVSS"
    )
    rng = np.random.default_rng(0)
    rows = Counter()
    for _ in range(120):
        chain = list(heavy)
        for at in rng.choice([29, 51, 52, 54, 98, 99, 101, 103], rng.integers(1, 4)):
            chain[at] = rng.choice(list("ADKSWY"))
        rows["".join(chain)] = 1
    table = pd.DataFrame({"antibody_heavy": list(rows), "antibody_light": "", "antigen": "MKTAYI"})
    return table.assign(pKd=8 + rng.normal(size=len(table)))


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--id", help="column whose last word, after : and _, names the library")
    parser.add_argument("--head", default="gp")
    parser.add_argument("--case", default="", help="only cases whose name has this text")
    parser.add_argument("--antibody-encoder", default="composition")
    parser.add_argument("--store", type=Path, help="keep vectors here")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    table = tiny_table() if a.tiny else pd.read_csv(a.table)
    key = ["antibody_heavy", "antibody_light", "antigen"]
    table = table.fillna({"antibody_light": ""}).drop_duplicates(key, ignore_index=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = a.store or Path(folder, "store")
        abag.embed_table(table, store, a.antibody_encoder, "composition")
        for name, out in scenarios(table, changes(table), a.id).items():
            if a.case not in name or not 20 <= out.sum() <= 0.95 * len(table):
                continue
            rows.append({"left out": name} | measure(table, store, out, a.head))
            print(rows[-1], flush=True)
    cells = []
    for row in rows:
        cells.append([f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()])
    lines = [
        f"# Variants left out of training, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_applicability.py {' '.join(arguments or sys.argv[1:])}`; "
        f"{platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}.",
        "",
        *("| " + " | ".join(c) + " |" for c in [list(rows[0]), ["---"] * len(rows[0]), *cells]),
    ]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "applicability.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
