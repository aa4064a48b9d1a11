"""Measure sigma of library variants that are further from training than random ones are.

    python benchmarks/bench_far_variants.py TABLE [--draws 10 14] [--head stack] --out DIR
    python benchmarks/bench_far_variants.py --matrix [--draws 0 1 2] --out DIR
    python benchmarks/bench_far_variants.py --tiny --out DIR

TABLE has the columns antibody_heavy, antibody_light, antigen and pKd of one library. Each draw holds out the variants within 2
residues of 3 drawn ones, and trains on variants at least 4 residues away from all of them. 200 more test rows, `beside`, come
from the training part. Encoders are `composition`. Writes DIR/far_variants.md.

--matrix plants 38 families of 4 antibodies, measured with 7 antigens each, holds out single cells, and one antibody each of 19
families with all its cells, and compares what `fit` promises for known pairs and for new variants with the errors there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import abag

CENTRES = 3
WITHIN = 2
"""Residues from a centre up to which variants are tested."""
APART = 4
"""Least residues from tested variants to those of the training part."""
COVERED = 1.6449
AMINO_ACIDS = list("ACDEFGHIKLMNPQRSTVWY")


def planted(rng, variants=600, sites=8, letters=4):
    """Draw a library with additive effects and interactions of neighbouring sites."""
    parent = rng.choice(AMINO_ACIDS, 110)
    at = np.sort(rng.choice(110, sites, replace=False))
    choice = np.unique(rng.integers(0, letters, (2 * variants, sites)), axis=0)
    choice = rng.permutation(choice)[:variants]
    effect = rng.normal(0, 0.5, (sites, letters))
    interaction = rng.normal(0, 0.5, (sites - 1, letters, letters))
    label = 8 + effect[np.arange(sites), choice].sum(axis=1)
    label += interaction[np.arange(sites - 1), choice[:, :-1], choice[:, 1:]].sum(axis=1)
    alphabet = np.array([rng.choice(AMINO_ACIDS, letters, replace=False) for _ in range(sites)])
    heavy = []
    for numbers in choice:
        text = parent.copy()
        text[at] = alphabet[np.arange(sites), numbers]
        heavy.append("".join(text))
    table = pd.DataFrame(
        {"antibody_heavy": heavy, "antibody_light": "", "antigen": "MKTAYIAKQR" * 9}
    )
    table["pKd"] = label + rng.normal(0, 0.2, len(table))
    return table


def divide(table, seed, away, trained):
    """Return the training part and the test part, with a column `beside`."""
    rng = np.random.default_rng(seed)
    length = table.antibody_heavy.str.len().mode()[0]
    light = table.antibody_light.fillna("")
    kept = (table.antibody_heavy.str.len() == length) & (light == light.mode()[0])
    table = table[kept].drop_duplicates("antibody_heavy").reset_index(drop=True)
    residues = np.array([list(heavy.encode()) for heavy in table.antibody_heavy], np.uint8)
    inside = np.zeros(len(table), bool)
    for centre in rng.choice(len(table), CENTRES, replace=False):
        inside |= (residues != residues[centre]).sum(1) <= WITHIN
    test = rng.permutation(np.flatnonzero(inside))[:away]
    distance = np.min([(residues != residues[row]).sum(1) for row in test], axis=0)
    rest = rng.permutation(np.flatnonzero(distance >= APART))[:trained]
    n_beside = min(200, len(rest) // 8)
    both = table.iloc[np.concatenate([test, rest[:n_beside]])]
    beside = np.arange(len(both)) >= len(test)
    return table.iloc[rest[n_beside:]], both.assign(beside=beside)


def measure(table, seed, head, away, trained):
    """Fit and predict one draw; return a row of each kind of test rows."""
    train, test = divide(table, seed, away, trained)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        run = Path(folder) / "run"
        for part in (train, test):
            abag.embed_table(
                part, store, antibody_encoder="composition", antigen_encoder="composition"
            )
        abag.fit(train, store, run, head=head, device="cpu")
        texts = [
            test[name].fillna("").tolist()
            for name in ("antibody_heavy", "antibody_light", "antigen")
        ]
        scores = abag.load_predictor(run).predict(*texts, store=store)
    error = np.abs(scores.pkd_predicted.to_numpy() - test.pKd.to_numpy())
    sigma = scores.sigma.to_numpy()
    for beside in (False, True):
        rows = test.beside.to_numpy() == beside
        lines.append({
            "draw": seed,
            "rows": f"{'beside' if beside else 'away'} ({rows.sum()})",
            "RMSE": f"{np.sqrt(np.square(error[rows]).mean()):.2f}",
            "sigma": f"{sigma[rows].mean():.2f}",
            "within 90 % intervals": f"{(error <= COVERED * sigma)[rows].mean():.0%}",
            "far": f"{scores.far.to_numpy()[rows].mean():.0%}",
        })  # fmt: skip
    return lines


def plant_matrix(rng, families=38, members=4, antigens=7):
    """Draw families of antibodies, measured with each antigen; the effects of antigens differ."""
    targets = ["".join(rng.choice(AMINO_ACIDS, 120)) for _ in range(antigens)]
    lines = []
    for family in range(families):
        parent = rng.choice(AMINO_ACIDS, 115)
        of_family = rng.normal(8, 1.0, antigens)
        for member in range(members):
            text = parent.copy()
            n_mutations = int(rng.integers(1, 9))
            text[rng.choice(115, n_mutations, replace=False)] = rng.choice(AMINO_ACIDS, n_mutations)
            labels = of_family + 0.35 * np.sqrt(n_mutations) * rng.normal(size=antigens)
            labels += 0.2 * rng.normal(size=antigens)
            for target, label in zip(targets, labels, strict=True):
                lines.append((family, member, "".join(text), target, label))
    columns = ["family", "member", "antibody_heavy", "antigen", "pKd"]
    return pd.DataFrame(lines, columns=columns).assign(antibody_light="")


def measure_matrix(seed, head):
    """Fit a planted matrix and predict what was held out; return a row of each regime."""
    rng = np.random.default_rng(seed)
    table = plant_matrix(rng)
    is_whole = (table.member == 0) & (table.family % 2 == 0)
    held_out = is_whole | (rng.random(len(table)) < 0.1)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        abag.embed_table(
            table, store, antibody_encoder="composition", antigen_encoder="composition"
        )
        run = Path(folder) / "run"
        found = abag.fit(table[~held_out], store, run, head=head, device="cpu")
        test = table[held_out]
        texts = [test[name].tolist() for name in ("antibody_heavy", "antibody_light", "antigen")]
        scores = abag.load_predictor(run).predict(*texts, store=store)
    error = np.abs(scores.pkd_predicted.to_numpy() - test.pKd.to_numpy())
    promised = {regime["regime"]: regime for regime in found["regimes"]}
    for regime, rows in scores.groupby("regime").indices.items():
        promise = promised.get(regime)
        said = "not measured"
        if promise is not None:
            low, high = promise["intervals"]["rmse"]
            said = f"{promise['rmse']:.2f} [{low:.2f}, {high:.2f}]"
        lines.append({
            "draw": seed,
            "regime": regime,
            "rows": len(rows),
            "promised RMSE": said,
            "RMSE": f"{np.sqrt(np.square(error[rows]).mean()):.2f}",
            "within 90 % intervals": f"{(error <= COVERED * scores.sigma)[rows].mean():.0%}",
            "far": f"{scores.far.to_numpy()[rows].mean():.0%}",
        })  # fmt: skip
    return lines


def row(cells) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--draws", nargs="+", type=int, default=[10, 14])
    parser.add_argument("--head", default="stack")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.matrix:
        draws = []
        for seed in options.draws:
            draws += measure_matrix(seed, options.head)
    elif options.tiny:
        table = planted(np.random.default_rng(0))
        draws = measure(table, 0, "ridge", 40, 400)
    else:
        table = pd.read_csv(options.table)
        draws = []
        for seed in options.draws:
            draws += measure(table, seed, options.head, 300, 2700)
    lines = ["# Variants far from training", "", row(draws[0]), row(["---"] * len(draws[0]))]
    lines += [row(draw.values()) for draw in draws]
    page = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "far_variants.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
