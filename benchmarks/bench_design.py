"""Choose batches from a measured table as if it were not measured: which rule finds the best pairs?

    python benchmarks/bench_design.py TABLE --store DIR [--seeds 10] [--plot FILE] --out FOLDER
    python benchmarks/bench_design.py --tiny --out FOLDER                     # seconds, on a CPU

The store must hold a vector for every sequence of the table (`abag embed`). Each seed starts from
96 random pairs and adds 5 batches of 96, chosen by each policy from the pairs that are left; the
model is fitted to all pairs chosen so far, in closed form. Hits are the best 1 % of the table. The
goal of the rule `probability` is the pKd of the worst hit, which in practice is not known. Writes
design.md and, with --plot, a picture.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import abag
from abag.embed.store.store import open_store
from abag.embed.tables.options import TableOptions
from abag.head.demo import demo_table
from abag.head.design.batches import (
    RULES,
    Aim,
    KnownErrors,
    SharedErrors,
    best_first,
    choose_capped,
)
from abag.head.labels.labelled_pairs import LabelledPairs, read_labelled_pairs
from abag.head.labels.options import LabelOptions
from abag.head.models.pair_vectors import PairVectors, SideVectors, TrainingRows
from abag.head.models.registry import MODELS
from abag.head.predictor.parts import inner_folds
from abag.head.predictor.weigh import fit_sigma
from abag.head.regimes.relations import antibody_clusters

CORRELATIONS = (0.0, 0.25, 0.5, 0.75, 0.9)
IDENTITY = 0.98
"""Of antibodies of one cluster."""
POOL = 4
"""Clusters are computed of the best 4 candidates per pair of a batch."""
PER_CLUSTER = 8


class Policy(NamedTuple):
    """The choice of a batch."""

    head: str = "gp"
    rule: str = "mean"
    explore: float = 1.0
    diversity: str = "none"
    sigma: str = "calibrated"
    """Or ``model``: the deviation that the model gives, without residual noise."""

    def __str__(self) -> str:
        rule = f"{self.rule} {self.explore:g}" if self.rule == "ucb" else self.rule
        diversity = f"+ {self.diversity}" * (self.diversity != "none")
        sigma = "(model sigma)" * (self.sigma == "model")
        return " ".join(part for part in (self.head, rule, diversity, sigma) if part)


DIVERSITIES = ("none", "clusters")
RANDOM = Policy(head="random", rule="")
RIDGE = Policy(head="ridge")
DEFAULT = Policy(rule="ucb")
POLICIES = [
    RANDOM,
    RIDGE,
    Policy(head="kernel"),
    *(Policy(rule=rule, diversity=diversity) for rule, diversity in product(RULES, DIVERSITIES)),
    Policy(rule="ucb", explore=2.0),
    Policy(rule="ucb", sigma="model"),
    Policy(rule="improvement", sigma="model"),
    Policy(rule="probability", sigma="model"),
]


class Model(NamedTuple):
    """Predictions of all P pairs."""

    mean: np.ndarray
    sigma: dict[str, np.ndarray]
    """Calibrated as in `abag predict`, and that of the model; empty without sigma."""


class Library:
    """A measured table and its vectors, whose labels are looked up when a pair is ordered."""

    def __init__(self, pairs: LabelledPairs, store: Path) -> None:
        self.pairs = pairs
        opened = open_store(store)
        sides = {}
        for kind, unique in pairs.table.sequences.items():
            x_ND = opened.folder(kind).read(unique.keys, "mean")
            sides[kind] = SideVectors(x_ND, pairs.index(kind))
        self.vectors = PairVectors(sides)
        self.goal = float(np.quantile(pairs.pkd, 0.99))
        self.hits = pairs.pkd >= self.goal

    def fit(self, head: str, rows: np.ndarray) -> Model:
        """Fit a head to some pairs; their labels are not known of any other."""
        rows = np.sort(rows)
        labels = self.pairs.pkd
        group = np.arange(len(rows))
        fit = MODELS[head].fit(TrainingRows(self.pairs, self.vectors, rows, inner_folds(group)))
        mean = fit.predict(self.vectors)
        variance = fit.variance(self.vectors)
        if variance is None:
            return Model(mean, {})
        fold = inner_folds(group)
        error, deviation = np.empty((2, len(rows)))
        for k in np.unique(fold):
            rest = rows[fold != k]
            held = rows[fold == k]
            inside = inner_folds(np.arange(len(rest)))
            of_rest = MODELS[head].fit(TrainingRows(self.pairs, self.vectors, rest, inside))
            error[fold == k] = labels[held] - of_rest.predict(self.vectors)[held]
            deviation[fold == k] = np.sqrt(of_rest.variance(self.vectors)[held])
        spread, noise = fit_sigma(error, deviation)
        calibrated = np.sqrt(spread**2 * variance + noise**2)
        return Model(mean, {"calibrated": calibrated, "model": np.sqrt(variance)})

    def choose(self, policy: Policy, model: Model, measured: np.ndarray, batch: int) -> np.ndarray:
        """Choose a batch of pairs that are not measured, best first."""
        left = np.setdiff1d(np.arange(len(self.pairs)), measured)
        sigma = model.sigma.get(policy.sigma, np.zeros_like(model.mean))[left]
        mean = model.mean[left]
        aim = Aim(policy.explore, float(self.pairs.pkd[measured].max()), self.goal)
        order = best_first(RULES[policy.rule](mean, sigma, aim), mean)
        ordered = left[order]
        pool = ordered[: POOL * batch]
        if policy.diversity == "clusters":
            chains = [self.pairs.table.antibodies.chains[i] for i in self.pairs.antibody[pool]]
            groups = [[cluster] for cluster in antibody_clusters(chains, IDENTITY)]
            chosen = choose_capped(np.arange(len(pool)), batch, groups, PER_CLUSTER)
            rest = np.setdiff1d(np.arange(len(pool)), chosen)  # a cap that cannot be kept
            return pool[np.concatenate([chosen, rest[: batch - len(chosen)]])]
        return ordered[:batch]


class Result(NamedTuple):
    """The results of one policy from one start, per batch; the start counts as the first."""

    best: list[float]
    hits: list[float]
    """Share of all hits."""
    promised: list[dict[str, float]]
    """What each batch was expected to hold, and what it held."""


def campaign(
    library: Library,
    policy: Policy,
    seed: int,
    batch: int,
    batches: int,
    first_fit: Callable[[str, np.ndarray], Model],
) -> Result:
    """Run one policy from one start."""
    rng = np.random.default_rng(seed)
    measured = rng.permutation(len(library.pairs))[:batch]
    labels = library.pairs.pkd
    result = Result([], [], [])
    for number in range(batches + 1):
        result.best.append(float(labels[measured].max()))
        result.hits.append(float(library.hits[measured].sum() / library.hits.sum()))
        if number == batches:
            return result
        if policy == RANDOM:
            left = np.setdiff1d(np.arange(len(labels)), measured)
            chosen = rng.permutation(left)[:batch]
        else:
            model = (first_fit if number == 0 else library.fit)(policy.head, measured)
            chosen = library.choose(policy, model, measured, batch)
            if policy.sigma == "calibrated" and model.sigma:
                result.promised.append(promise(library, model, chosen))
        measured = np.concatenate([measured, chosen])
    raise AssertionError


def promise(library: Library, model: Model, chosen: np.ndarray) -> dict[str, float]:
    """Compare what a batch was expected to hold with what it held."""
    mean = model.mean[chosen]
    sigma = model.sigma["calibrated"][chosen]
    best = library.pairs.pkd[chosen].max()
    hits = library.hits[chosen].sum()
    result = {"best": float(best), "above": float(hits)}
    for correlation in CORRELATIONS:
        expected = KnownErrors(SharedErrors(correlation)).expect(mean, sigma, above=library.goal)
        low, high = expected.best_interval
        few, many = expected.above_interval
        result |= {
            f"expected {correlation:g}": float(expected.best_of_first[-1]),
            f"inside {correlation:g}": float(low <= best <= high),
            f"above inside {correlation:g}": float(few <= hits <= many),
            "expected above": expected.above,
        }
    return result


def interval(values: list[float]) -> str:
    """Give mean and the 95 % interval of the mean over seeds, by drawing seeds anew."""
    array = np.array(values)
    drawn = np.random.default_rng(0).integers(0, len(array), (10_000, len(array)))
    low, high = np.quantile(array[drawn].mean(axis=1), [0.025, 0.975])
    return f"{array.mean():.3f} [{low:.3f}, {high:.3f}]"


def in_markdown(frame: pd.DataFrame) -> list[str]:
    """Lay a table out."""
    rows = [list(frame.columns), ["---"] * len(frame.columns)]
    for values in frame.to_numpy():
        rows.append([f"{v:.3f}" if isinstance(v, float) else str(v) for v in values])
    return ["| " + " | ".join(row) + " |" for row in rows]


def score_table(results: dict[Policy, list[Result]], batches: int) -> list[str]:
    """Compare the policies at the end, and each with the default of `abag rank`, seed by seed."""
    reference = results[DEFAULT]
    rows = []
    for policy, campaigns in results.items():
        last = [campaign.hits[-1] for campaign in campaigns]
        gain = [a - b.hits[-1] for a, b in zip(last, reference, strict=True)]
        rows.append(
            {
                "policy": str(policy),
                "hits found": interval(last),
                "minus gp ucb 1": interval(gain),
                "area under hits": float(
                    np.mean([np.mean(campaign.hits[1:]) for campaign in campaigns])
                ),
                "after 1 batch": float(np.mean([campaign.hits[1] for campaign in campaigns])),
                "best pKd": interval([campaign.best[-1] for campaign in campaigns]),
                "best after 1": float(np.mean([campaign.best[1] for campaign in campaigns])),
            }
        )
    return in_markdown(pd.DataFrame(rows))


def promise_table(results: dict[Policy, list[Result]]) -> list[str]:
    """Say how often the best of a batch was inside its 90 % interval."""
    rows = []
    for policy, campaigns in results.items():
        frame = pd.DataFrame(list(chain.from_iterable(result.promised for result in campaigns)))
        if frame.empty:
            continue
        row: dict[str, object] = {"policy": str(policy), "batches": len(frame)}
        for c in CORRELATIONS:
            error = (frame["best"] - frame[f"expected {c:g}"]).mean()
            inside = f"{frame[f'inside {c:g}'].mean():.0%}, {error:+.2f}"
            row[f"correlation {c:g}"] = f"{inside}; {frame[f'above inside {c:g}'].mean():.0%}"
        row["hits in a batch"] = f"{frame['above'].mean():.1f}"
        row["expected"] = f"{frame['expected above'].mean():.1f}"
        rows.append(row)
    return in_markdown(pd.DataFrame(rows))


def plot(results: dict[Policy, list[Result]], path: Path, title: str, batch: int) -> None:
    """Draw hits and best pKd against pairs measured, mean over seeds; bands hold half of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = {
        RANDOM: "#999999",
        RIDGE: "#b35806",
        Policy(): "#2166ac",
        DEFAULT: "#1b7837",
        Policy(rule="improvement"): "#762a83",
        Policy(rule="probability"): "#d6604d",
    }
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for axis, attribute, label in zip(
        axes,
        ("hits", "best"),
        ("hits found (best 1 % of the table)", "best pKd so far"),
        strict=True,
    ):
        for policy, colour in shown.items():
            values = np.array([getattr(campaign, attribute) for campaign in results[policy]])
            at = batch * np.arange(1, values.shape[1] + 1)
            axis.plot(at, values.mean(axis=0), color=colour, marker="o", ms=3, label=str(policy))
            if policy in (RANDOM, DEFAULT):
                middle = np.quantile(values, [0.25, 0.75], axis=0)
                axis.fill_between(at, *middle, color=colour, alpha=0.15, lw=0)
        axis.set(xlabel="pairs measured", ylabel=label, xticks=at)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=90)


def tiny_inputs(folder: Path) -> tuple[Path, Path]:
    """Make a small table and its store."""
    table = folder / "pairs.csv"
    store = folder / "store"
    demo_table().head(200).to_csv(table, index=False)
    abag.embed_table(table, store, antibody_encoder="composition", antigen_encoder="composition")
    return table, store


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--limit", type=int, help="use the first rows of the table only")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if a.tiny:
            a.table, a.store = tiny_inputs(Path(folder))
            a.seeds = 2
            a.batch = 16
            a.batches = 2
        library = Library(
            read_labelled_pairs(a.table, TableOptions(limit=a.limit), LabelOptions()), a.store
        )
        results: dict[Policy, list[Result]] = {policy: [] for policy in POLICIES}
        for seed in range(a.seeds):
            fits: dict[str, Model] = {}

            def first_fit(head: str, rows: np.ndarray, fits: dict[str, Model] = fits) -> Model:
                if head not in fits:
                    fits[head] = library.fit(head, rows)
                return fits[head]

            for policy in POLICIES:
                results[policy].append(
                    campaign(library, policy, seed, a.batch, a.batches, first_fit)
                )
            print(f"seed {seed}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    n = len(library.pairs)
    hits = int(library.hits.sum())
    lines = [
        f"# Batches chosen from {a.table.name}, {platform.machine()}, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_design.py {' '.join(arguments or sys.argv[1:])}`; "
        f"numpy {np.__version__}, Python {platform.python_version()}; "
        f"{time.perf_counter() - begun:.0f} s.",
        f"{n:,} pairs, {hits} hits (pKd of at least {library.goal:.2f}), "
        f"{a.batches} batches of {a.batch} after {a.batch} random pairs, {a.seeds} seeds; "
        f"clusters: at most {PER_CLUSTER} pairs per cluster of antibodies at {IDENTITY:.0%} identity "
        f"(as far as possible), distance: far from each other, both among the best {POOL} x "
        f"{a.batch}. In brackets 95 % of 10,000 draws of the seeds.",
        "",
        *score_table(results, a.batches),
        "",
        "Best of a batch: share inside its 90 % interval, measured minus expected pKd; share of "
        "batches whose number of hits is inside its 90 % interval.",
        "",
        *promise_table(results),
    ]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "design.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if a.plot:
        plot(results, a.plot, f"{a.table.name}: {n:,} pairs, {a.seeds} seeds", a.batch)


if __name__ == "__main__":
    main()
