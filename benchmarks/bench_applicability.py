"""Leave out libraries, CDRs or mutation orders: are the intervals right, or the rows flagged?

    python benchmarks/bench_applicability.py TABLE [--id COLUMN] [--head gp] --out FOLDER
    python benchmarks/bench_applicability.py --tiny --out FOLDER              # seconds, on a CPU

TABLE holds variants of one antibody: antibody_heavy, antibody_light, antigen, pKd. Each row of the
result leaves out the variants named, trains on 85 % of the others (composition vectors), and scores
those left out: 90 % of the labels should be within the 90 % interval. A rule is good if at least
80 % are, or if it flags at least 90 % of the rows. "More changes" is a rule that abag does not have,
see `many_changes`. Writes applicability.md.
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
from abag.embed.sequences.chains import antibody, antigen, keys_array
from abag.embed.sequences.domains import number_domain
from abag.embed.store.store import open_store

REGIONS = {"CDR H1": (27, 38), "CDR H2": (56, 65), "CDR H3": (105, 117)}
HEAVY_LIGHT = ("antibody_heavy", "antibody_light")
Z_90 = 1.6449


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """Count the changes of each row from the consensus of the heavy chains, by region."""
    numbered = [number_domain(heavy, "heavy") for heavy in table["antibody_heavy"]]
    places = list(dict.fromkeys(place for one in numbered for place in one))
    frame = pd.DataFrame([[one.get(p, "-") for p in places] for one in numbered], columns=places)
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
    drawn = np.random.default_rng(0).random(len(table))
    found = {"15 % at random": drawn < 0.15}
    found |= {f"changes in {name}": count[name] > 0 for name in [*REGIONS, "framework"]}
    found |= {
        f"more than {n} changes": count["all"] > n
        for n in np.unique(np.quantile(count["all"], [0.25, 0.5, 0.75]).astype(int))
    }
    if column:
        library = table[column].astype(str).str.extract("([^:_]*)$")[0]
        found |= {f"library {name}": library == name for name in sorted(set(library))}
    return {name: np.asarray(rows, bool) for name, rows in found.items()}


def measure(
    table: pd.DataFrame,
    counts: pd.DataFrame,
    store: Path,
    out: np.ndarray,
    options: dict[str, object],
) -> dict[str, object]:
    """Train without some rows and score them; `counts` are those of `changes`."""
    drawn = np.random.default_rng(1).random(len(table))
    part = np.select([out, drawn < 0.15], ["test", "val"], "train")
    with tempfile.TemporaryDirectory() as folder:
        run, scored = Path(folder, "run"), Path(folder, "scored.parquet")
        abag.fit(
            table.assign(part=part), store, run, split="column=part", report=False,
            say=lambda _text: None, **{"head": "mlp"} | options,
        )  # fmt: skip
        abag.predict(table[out], run, scored, say=lambda _text: None)
        found = pd.read_parquet(scored)
        chains = [antibody(h, x) for h, x in zip(*map(found.get, HEAVY_LIGHT), strict=True)]
        predictor = abag.load_predictor(run)
        antigens = [antigen(text) for text in found["antigen"]]
        keys = keys_array("antibody", chains), keys_array("antigen", antigens)
        by_vectors = predictor.predict_keys(open_store(store), *keys)
    error = found["pKd"] - found["pkd_predicted"]
    by_changes = many_changes(counts[part == "train"], counts[out])
    both = found["far_antibody"] | found["far_antigen"]
    novelty = predictor.novelty
    by_residues = novelty.is_far(novelty.count(chains))
    covered = error.abs() <= Z_90 * found["sigma"]
    return {
        "train": int((part == "train").sum()),
        "test": int(out.sum()),
        "RMSE": float(np.sqrt((error**2).mean())),
        "sd of labels": float(found["pKd"].std()),
        "in 90 % interval": f"{covered.mean():.0%}",
        "flagged by vectors": f"{by_vectors['far_antibody'].mean():.0%}",
        "flagged by residues": f"{by_residues.mean():.0%}",
        "flagged": f"{both.mean():.0%}",
        "in 90 %, not flagged": share(covered[~both]),
        "more changes": f"{by_changes.mean():.0%}",
        "in 90 %, neither": share(covered[~(both | by_changes)]),
        "limits": f"{novelty.most_positions}, {novelty.most_residues}",
        "good": "yes" if covered.mean() >= 0.8 or both.mean() >= 0.9 else "no",
    }


def many_changes(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Tell which test rows have more changes in any region than 99 % of the training rows.

    No part of abag: whether such a rule would flag new combinations of known residues.
    """
    return (test > train.quantile(0.99)).any(axis=1).to_numpy()


def share(covered: pd.Series) -> str:
    """Format the share of rows that are covered; empty without rows."""
    return f"{covered.mean():.0%}" if len(covered) else ""


def tiny_table() -> pd.DataFrame:
    """Variants of one antibody with 1 to 3 changes in CDR H2 and H3."""
    heavy = (
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTA"
        "VYYCSRWGGDGFYAMDYWGQGTLVTVSS"
    )
    rng, rows = np.random.default_rng(0), Counter()
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
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    table = tiny_table() if a.tiny else pd.read_csv(a.table)
    key = ["antibody_heavy", "antibody_light", "antigen"]
    table = table.fillna({"antibody_light": ""}).drop_duplicates(key, ignore_index=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        abag.embed_table(table, store, "composition", "composition")
        counts = changes(table)
        for name, out in scenarios(table, counts, a.id).items():
            if not 20 <= out.sum() <= 0.95 * len(table):
                continue
            rows.append({"left out": name} | measure(table, counts, store, out, {"head": a.head}))
            print(rows[-1], flush=True)
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in r.values()] for r in rows]
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
