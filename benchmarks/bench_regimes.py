"""Verdicts, coverage and weights of `abag fit` by regime, on planted tables with a known truth.

Tables have families of antibodies and of antigens, random projections of their residues as vectors,
and labels whose rule is known, so that new rows of every regime can be drawn. For each table the
measured regimes are compared with the truth on new rows: claims without signal, coverage of the
90 % intervals, and the error of the stack relative to its best part.

    python benchmarks/bench_regimes.py null FIRST LAST       claims where nothing can be learned
    python benchmarks/bench_regimes.py signal FIRST LAST     coverage and weights on new rows
    python benchmarks/bench_regimes.py seeds TABLES          verdicts of ten seeds of the folds

Tables are numbered from FIRST to LAST - 1; ``--head`` chooses the parts (default: ridges, which are
fast; ``stack`` for all). One line of JSON per regime and table goes to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtri

from abag.core.messages import reporting
from abag.embed.tables.options import TableOptions
from abag.head.labels.labelled_pairs import read_labelled_pairs
from abag.head.labels.options import LabelOptions
from abag.head.models import registry
from abag.head.models.config import FitConfig
from abag.head.models.pair_vectors import PairVectors, SideVectors, TrainingRows
from abag.head.predictor.parts import Parts, RunParts, fit_fold, inner_folds
from abag.head.predictor.weigh import weigh_run
from abag.head.regimes.folds import RegimesOfTable, all_pairs
from abag.head.regimes.splits import PairGroups, learned_rows

LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
NOISE = 0.5
KINDS = (
    "no_signal",
    "antibody_memory",
    "antigen_memory",
    "both_memory",
    "linear",
    "interaction",
    "label_shift",
    "batch",
    "duplicates",
    "floor",
    "crossed",
    "one_antigen",
    "one_antibody",
    "small",
    "imbalanced",
    "weak_linear",
)
NULL = {  # regimes in which nothing can be learned
    "no_signal": ("known", "new_antibody", "new_antigen", "both_new"),
    "antibody_memory": ("new_antibody", "both_new"),
    "antigen_memory": ("new_antigen", "both_new"),
    "both_memory": ("both_new",),
    "small_no_signal": ("known", "new_antibody", "new_antigen", "both_new"),
}
"""Of the ranking within antigens in antigen_memory/new_antibody nothing can be learned, either."""


@dataclass
class Planted:
    """A table, its vectors, and new rows of each regime: antibody, antigen, label."""

    chains: tuple[list[str], list[str]]
    vectors: tuple[np.ndarray, np.ndarray]
    antibody: np.ndarray
    antigen: np.ndarray
    pkd: np.ndarray
    new: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def families(rng, count, members, length, spread=0.06):
    """Draw sequences in families; return their residues, (N, length), and families, (N,)."""
    base = rng.integers(20, size=(count, length))
    family = np.repeat(np.arange(count), members)
    residues = base[family].copy()
    for i in range(len(residues)):
        if i and family[i] == family[i - 1]:
            at = rng.choice(length, rng.integers(1, max(2, int(spread * length))), replace=False)
            residues[i, at] = rng.integers(20, size=len(at))
    return residues, family


def projected(rng, residues, width):
    """Project one-hot residues at random, as an encoder's vectors; standardised."""
    length = residues.shape[1]
    table = rng.normal(size=(length, 20, width)) / np.sqrt(length)
    x = table[np.arange(length), residues].sum(1)
    return ((x - x.mean(0)) / np.maximum(x.std(0), 1e-9)).astype(np.float32)


def plant(kind, seed, n=500, antibodies=(40, 5), antigens=(25, 2)):
    """Draw a table of a kind, with as many families outside of it for new rows."""
    rng = np.random.default_rng([seed, sum(map(ord, kind))])
    if kind in ("small", "small_no_signal"):
        n = 80
        antibodies = (16, 3)
        antigens = (10, 2)
    if kind == "crossed":
        n = 10**6
        antibodies = (24, 2)
        antigens = (16, 1)
    if kind == "one_antigen":
        n = 250
        antibodies = (80, 5)
        antigens = (1, 1)
    if kind == "one_antibody":
        n = 200
        antibodies = (1, 1)
        antigens = (60, 4)
    res_a, fam_a = families(rng, 2 * antibodies[0] if antibodies[0] > 1 else 1, antibodies[1], 110)
    res_g, fam_g = families(rng, 2 * antigens[0] if antigens[0] > 1 else 1, antigens[1], 150)
    x_a = projected(rng, res_a, 24)
    x_g = projected(rng, res_g, 16)

    def unit(values):
        return (values - values.mean()) / values.std() if values.std() else 0 * values

    line_a = unit(x_a @ rng.normal(size=24))
    line_g = unit(x_g @ rng.normal(size=16))
    memory_a = rng.normal(size=fam_a.max() + 1)[fam_a]
    memory_g = rng.normal(size=fam_g.max() + 1)[fam_g]
    both = (x_a @ rng.normal(size=(24, 2))), (x_g @ rng.normal(size=(16, 2)))
    effect = rng.normal(size=12)[fam_g % 12]

    def label(a, g):
        e = NOISE * rng.normal(size=len(a))
        of = {
            "antibody_memory": lambda: memory_a[a] + e,
            "antigen_memory": lambda: memory_g[g] + e,
            "both_memory": lambda: memory_a[a] + memory_g[g] + e,
            "weak_linear": lambda: 0.3 * line_a[a] + 0.3 * line_g[g] + 2 * e,
            "one_antigen": lambda: line_a[a] + e,
            "one_antibody": lambda: line_g[g] + e,
            "interaction": lambda: (both[0][a] * both[1][g]).sum(1) / 28 + 0.5 * line_a[a] + e,
            "label_shift": lambda: 2 * memory_g[g] + 0.5 * line_a[a] + e,
            "batch": lambda: effect[g] + 0.5 * line_a[a] + e,
        }
        if kind.endswith("no_signal"):
            return 8 + 2 * e
        return 8 + of.get(kind, lambda: 0.8 * line_a[a] + 0.8 * line_g[g] + e)()

    in_a = np.isin(fam_a, rng.permutation(fam_a.max() + 1)[: antibodies[0]])
    in_g = np.isin(fam_g, rng.permutation(fam_g.max() + 1)[: antigens[0]])
    inside = np.flatnonzero(in_a), np.flatnonzero(in_g)
    cells = np.stack(np.meshgrid(*inside, indexing="ij"), -1).reshape(-1, 2)
    p = np.ones(len(cells))
    if kind == "imbalanced":
        p[cells[:, 1] == inside[1][0]] = len(inside[1]) - 1
    drawn = rng.choice(len(cells), min(n, int(0.85 * len(cells))), replace=False, p=p / p.sum())
    a, g = cells[drawn].T
    pkd = label(a, g)
    if kind == "duplicates":
        again = rng.choice(len(a), len(a) // 3)
        a = np.r_[a, a[again]]
        g = np.r_[g, g[again]]
        pkd = np.r_[pkd, pkd[again] + 0.1 * rng.normal(size=len(again))]
    rest = np.setdiff1d(np.arange(len(cells)), drawn)
    new = {}
    outside = (np.flatnonzero(~in_a), np.flatnonzero(~in_g))
    m = 3000
    if len(rest):
        new_pairs = cells[rng.choice(rest, min(m, len(rest)), replace=False)].T
        seen = np.isin(fam_a[new_pairs[0]], fam_a[a]) & np.isin(fam_g[new_pairs[1]], fam_g[g])
        new["known"] = new_pairs[0][seen], new_pairs[1][seen]
    if len(outside[0]):
        new["new_antibody"] = rng.choice(outside[0], m), rng.choice(g, m)
    if len(outside[1]):
        new["new_antigen"] = rng.choice(a, m), rng.choice(outside[1], m)
    if len(outside[0]) and len(outside[1]):
        new["both_new"] = rng.choice(outside[0], m), rng.choice(outside[1], m)
    rows = {name: (*pair, label(*pair)) for name, pair in new.items()}
    if kind == "floor":
        low = np.quantile(pkd, 0.3)
        pkd = np.maximum(pkd, low)
        rows = {name: (*pair, np.maximum(y, low)) for name, (*pair, y) in rows.items()}
    texts = tuple(["".join(LETTERS[codes]) for codes in res] for res in (res_a, res_g))
    return Planted(texts, (x_a, x_g), a, g, pkd, rows)


def measure(table, config, seed=0):
    """Fit and weigh every regime; yield each with a function that predicts new rows."""
    frame = pd.DataFrame(
        {
            "heavy": [table.chains[0][i] for i in table.antibody],
            "antigen": [table.chains[1][i] for i in table.antigen],
            "pKd": table.pkd,
        }
    )
    pairs = read_labelled_pairs(frame, TableOptions(), LabelOptions())
    sides = {}
    for side, (kind, unique) in enumerate(pairs.table.sequences.items()):
        place = {text: i for i, text in enumerate(table.chains[side])}
        index = np.array([place["".join(chains)] for chains in unique.chains])
        x_ND = table.vectors[side][index]
        sides[kind] = SideVectors(x_ND, pairs.index(kind), unique.chains)
    vectors = PairVectors(sides)

    measured = RegimesOfTable(
        PairGroups(pairs, replace(config, seed=seed), is_cached=False)
    ).measured()
    splits = []
    for measurement in measured:
        splits += measurement.splits
    parts = None
    if splits:
        fits = [learned_rows(split) for split in (all_pairs(measured), *splits)]
        of_run = RunParts.decide(config.filled().head, config.kinds, vectors, fits)

    def training_rows(split):
        rows = learned_rows(split)
        return TrainingRows(
            pairs,
            vectors,
            rows,
            inner_folds(split.group[rows]),
            run_pairs=of_run.pairs,
            residue_sides=of_run.residue_sides,
        )

    for measurement in measured:
        if not measurement.splits:
            yield measurement, None, None
            continue
        (weighed,) = weigh_run(
            pairs,
            [
                (
                    measurement,
                    [fit_fold(training_rows(split), of_run) for split in measurement.splits],
                )
            ],
        ).regimes
        if parts is None:
            parts = Parts.fit(training_rows(all_pairs(measured)), of_run.models)

        def predict(a, g, weighed=weighed, parts=parts):
            antibodies = SideVectors(table.vectors[0], a, [(t, "") for t in table.chains[0]])
            antigens = SideVectors(table.vectors[1], g, [(t,) for t in table.chains[1]])
            new = PairVectors({"antibody": antibodies, "antigen": antigens})
            predictions = parts.predict(new, parts.models)
            pkd = weighed.mixture.pkd(predictions)
            _, variances = parts.predict_with_variance(new, ())
            return (
                pkd,
                weighed.mixture.sigma(pkd, weighed.mixture.variance(variances, len(new))),
                predictions,
            )

        yield measurement, weighed, predict


def claims_of(score):
    """Return what a score claims: ranks, values, better than the best baseline, worse."""
    names = ("spearman", "spearman_within_antigen", "spearman_within_antibody")
    claims = [score[name] for name in names if score[name] is not None]
    return {
        "ranks": any((claim["low"] or 0) > 0 for claim in claims),
        "values": (score["better_than_mean"]["low"] or 0) > 0,
        "best": (score["better_than_best"]["low"] or 0) > 0,
        "worse": (score["better_than_mean"]["high"] or 0) < 0,
    }


def describe(mode, kind, seed, split_seed, measurement, weighed, predict, new):
    """Return a line about one regime of one table."""
    line = {"kind": kind, "table": seed, "seed": split_seed, "regime": measurement.regime.name}
    if weighed is None:
        return line | {"why_not": measurement.why_not}
    score = weighed.score
    line |= {"claims": claims_of(score), "n": score["n"], "groups": score["groups"]}
    line |= {"rmse": score["rmse"], "coverage": score["coverage"]}
    if mode == "signal" and measurement.regime.name in new:
        a, g, pkd = new[measurement.regime.name]
        whole, sigma, of_parts = predict(a, g)
        errors = {name: float(np.sqrt(np.mean((p - pkd) ** 2))) for name, p in of_parts.items()}
        rmse = float(np.sqrt(np.mean((whole - pkd) ** 2)))
        line |= {
            "new_rmse": rmse,
            "interval": score["intervals"]["rmse"],
            "new_coverage": float(np.mean(np.abs(whole - pkd) <= ndtri(0.95) * sigma)),
            "to_best_part": rmse / min(errors.values()),
            "gain": 1 - rmse / errors["train_mean"],
        }
    return line


def main():
    """Measure planted tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("null", "signal", "seeds"))
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--head", default="ridges")
    parser.add_argument("--kinds")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.mode != "seeds" and (arguments.last or 0) <= arguments.first:
        parser.error(f"{arguments.mode} needs FIRST and a larger LAST")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.head == "ridges":
        kept = ("train_mean", "ridge", "antibody_ridge", "antigen_ridge")
        models = dict(registry.MODELS)
        registry.MODELS.clear()  # type: ignore[attr-defined]
        registry.MODELS.update({n: models[n] for n in kept})  # type: ignore[attr-defined]
    config = FitConfig()
    last = arguments.last if arguments.last is not None else arguments.first
    first = 0 if arguments.mode == "seeds" else arguments.first
    kinds = (
        arguments.kinds.split(",")
        if arguments.kinds
        else (NULL if arguments.mode == "null" else KINDS)
    )
    lines = []
    start_s = time.perf_counter()
    with reporting(silent=True, bars=False):
        for kind in kinds:
            for seed in range(first, last):
                table = plant(kind, seed)
                for split_seed in range(10 if arguments.mode == "seeds" else 1):
                    for measurement, weighed, predict in measure(table, config, split_seed):
                        regime = measurement.regime.name
                        if arguments.mode == "null" and regime not in NULL[kind]:
                            continue
                        place = (arguments.mode, kind, seed, split_seed)
                        lines.append(describe(*place, measurement, weighed, predict, table.new))
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} regimes in {time.perf_counter() - start_s:.0f} s")
    summarise(arguments.mode, pd.DataFrame([line for line in lines if "why_not" not in line]))


def summarise(mode, frame):
    """Print the shares of claims, and coverage and weights on new rows."""
    claims = pd.DataFrame(frame["claims"].tolist())
    if mode == "null":
        for name in ("ranks", "values", "best"):
            print(f"{name}: {claims[name].sum()} of {len(claims)} = {claims[name].mean():.2%}")
    if mode == "signal":
        shown = frame.dropna(subset=["new_coverage"]).groupby(["kind", "regime"])
        columns = ["groups", "new_coverage", "to_best_part", "gain"]
        print(shown[columns].mean().round(3).to_string())
        means = shown["new_coverage"].mean()
        inside = means.between(0.87, 0.93)
        print(f"coverage {means.mean():.3f}, inside 0.87 to 0.93: {inside.sum()} of {len(means)}")
        print(f"stack / best part: {shown['to_best_part'].mean().mean():.3f}")
        ends = frame.dropna(subset=["new_rmse", "interval"])
        low, high = np.array(ends["interval"].tolist()).T
        inside = (low <= ends["new_rmse"]) & (ends["new_rmse"] <= high)
        below = (ends["new_rmse"] < low).mean()
        print(f"intervals of RMSE contain the error outside: {inside.mean():.3f} of {len(ends)}")
        print(f"below {below:.3f}; true / promised {(ends['new_rmse'] / ends['rmse']).mean():.3f}")
    if mode == "seeds":
        keys = [frame[name] for name in ("kind", "table", "regime")]
        for name in ("ranks", "values", "best"):
            share = claims[name].groupby(keys).mean()
            same = ((share == 0) | (share == 1)).mean()
            nearly = np.maximum(share, 1 - share).ge(0.9).mean()
            print(f"{name}: ten seeds agree in {same:.1%}, at least nine in {nearly:.1%}")


if __name__ == "__main__":
    main()
