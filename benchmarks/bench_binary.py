"""Yes or no: `abag fit` on classes beside scikit-learn's classifiers on the same rows.

Measured affinities are cut so that a share of the rows are yes. Random rows are kept, the others
are held out before abag and the classifiers see them. One-hot columns of the residues are what the
classifiers read: logistic regression (its strength chosen by the log loss of 5 folds), a random
forest, and a Gaussian process (Laplace's approximation). `numbers` is abag on the affinities of the
same rows, ranked. Planted tables have known probabilities: additive effects of substitutions on a
latent scale. The interval of a prediction should hold the mean true probability of the tenth of the
rows with such predictions. Planted tables without any effect show how often abag claims one.
Other tables of yes and no are given by path and columns; chains of several lengths are compositions to
the classifiers, with their lengths.

    python benchmarks/bench_binary.py public FOLDER --out lines.jsonl [--only her2] [--seeds 2]
    python benchmarks/bench_binary.py planted --out lines.jsonl [--seeds 4]
    python benchmarks/bench_binary.py grid --out lines.jsonl [--seeds 4] [--jobs 16]
    python benchmarks/bench_binary.py table FILE --heavy NAME [--light NAME] [--antigen NAME] \
        --label NAME --positive VALUE --table-rows 120 500 --out lines.jsonl [--seeds 2] [--around A B]
    python benchmarks/bench_binary.py null --out lines.jsonl [--seeds 100]
    python benchmarks/bench_binary.py steps FOLDER --out lines.jsonl [--seeds 8]
    python benchmarks/bench_binary.py rare FOLDER --out lines.jsonl [--seeds 4]
    python benchmarks/bench_binary.py summary --out lines.jsonl       means of the lines

`grid` has planted variants of an antibody and of an antigen, known and new ones, two or three classes: its
lines are regimes, `held` as above. `--logistic` trains networks by the log loss of yes instead of squared errors of expected latent values.
`--around` are residues before and behind the sequences of `--heavy`, which are parts of a chain.
FOLDER has tables as `outside_truth.TABLES` names them; vectors are residue compositions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
from outside_truth import COMPOSITION, TABLES, read
from scipy.optimize import brentq
from scipy.spatial.distance import cdist
from scipy.special import ndtr, ndtri
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits

import abag
from abag.core.messages import reporting
from abag.head.labels.classes import spelled
from abag.head.models import network
from abag.head.models.probit import class_thresholds, expected_latent

CASES = {
    "her2": [(60, 0.5), (120, 0.1), (400, 0.1), (400, 0.5), (1500, 0.01)],
    "rbd": [(120, 0.5), (400, 0.1), (400, 0.5), (1500, 0.01)],
}
"""Rows that are kept, and the share of yes."""
HELD_OUT = 3000
NEW = 4000
"""New rows of planted tables, so that tenths have true means that are known well."""
MOST_OF_PROCESS = 600
"""Rows above which the process, which takes minutes, is left out."""
LAWS = [(1.0, 0.3, 300), (1.0, 0.1, 300), (2.0, 0.3, 200), (0.5, 0.3, 300), (1.0, 0.3, 100)]
"""Standard deviation of the effects on the latent scale, share of yes, rows."""
LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
SMALLEST = 1e-6


def one_hot(columns):
    """Encode the letters of sequences of one length at positions that vary."""
    blocks = []
    for texts in columns:
        letters = np.array([list(text) for text in texts])
        for at in range(letters.shape[1]):
            present = np.unique(letters[:, at])
            if len(present) > 1:
                blocks.append(letters[:, at, None] == present)
    return np.hstack(blocks).astype(np.float64)


def composition(texts):
    """Count the letters of sequences, in shares, beside their lengths."""
    length = np.array([len(text) for text in texts])
    counts = np.array([[text.count(letter) for letter in LETTERS] for text in texts])
    spread = length.std() or 1.0
    return np.column_stack([20 * counts / length[:, None], (length - length.mean()) / spread])


def logistic(pairs):
    """Return the log loss of each pair, (B,), of logits that begin at the frequency of yes.

    Where predictions are 0, they have the slope that squared errors of labels with variance 1 have.
    """
    square_B = pairs.target_B.square()  # of a share q of yes, that of a yes is (1 - q) / q
    is_yes_B = pairs.target_B > 0
    share_B = torch.where(is_yes_B, 1 / (1 + square_B), square_B / (1 + square_B))
    spread_B = (share_B * (1 - share_B)).sqrt()
    logit_B = torch.logit(share_B) + pairs.predicted_B / spread_B
    return binary_cross_entropy_with_logits(logit_B, is_yes_B.float(), reduction="none")


def peers(x_ND, y, kept, held_out):
    """Return the probabilities of each classifier for the held-out rows, by name."""
    models = {
        "logistic": LogisticRegressionCV(
            Cs=np.logspace(-3, 2, 8), cv=min(5, int(np.bincount(y[kept]).min())),
            scoring="neg_log_loss", max_iter=1000,
        ),
        "forest": RandomForestClassifier(500, min_samples_leaf=2, random_state=0),
    }  # fmt: skip
    if len(kept) <= MOST_OF_PROCESS:
        kernel = ConstantKernel(1.0) * RBF(np.sqrt(2 * x_ND[kept].var(axis=0).sum()))
        models["process"] = GaussianProcessClassifier(kernel, random_state=0)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for name, model in models.items():
            found[name] = model.fit(x_ND[kept], y[kept]).predict_proba(x_ND[held_out])[:, 1]
    return found


def scores(y, p):
    """Score probabilities of yes."""
    return {
        "ap": average_precision_score(y, p),
        "auc": roc_auc_score(y, p),
        "brier": brier_score_loss(y, np.clip(p, 0, 1)),
        "log_loss": log_loss(y, np.clip(p, SMALLEST, 1 - SMALLEST)),
    }


def fit(table, new, folder, store, **options):
    """Fit a table without the new rows, and predict these."""
    summary = abag.fit(table, store, folder / "run", report=False, **options)
    out = folder / "out.parquet"
    abag.predict(new, folder / "run", out, store=store, force=True)
    return summary, pd.read_parquet(out)


class Draw(NamedTuple):
    """Hold a public table whose labels are cut at a share of yes, and the rows that are used."""

    line: dict
    """What was drawn."""
    x_ND: np.ndarray
    """Columns for peers."""
    bare: pd.DataFrame
    label: str
    y: np.ndarray
    kept: np.ndarray
    """Rows to learn from."""
    held_out: np.ndarray

    def embed(self, store):
        """Encode the rows; return those to learn from, with yes and no, and those held out."""
        rows = len(self.kept)
        both = self.bare.iloc[np.concatenate([self.kept, self.held_out])]
        both = both.drop(columns=[self.label])
        abag.embed_table(both, store, **COMPOSITION)
        table = both.iloc[:rows].assign(binder=self.y[self.kept]).reset_index(drop=True)
        return table, both.iloc[rows:].reset_index(drop=True)


def draws(folder, name, cases, seeds):
    """Yield the draws of a public table, for pairs of rows and share of yes."""
    frame, _, label = read(folder / TABLES[name])
    heavy = next(column for column in ("antibody_heavy", "heavy") if column in frame)
    varied = heavy if name == "her2" else "antigen"
    length = frame[varied].str.len()
    frame = frame[(length == length.mode()[0]).to_numpy()].reset_index(drop=True)
    value = frame[label].to_numpy()
    x_ND = one_hot([frame[varied]])
    if name == "rbd":
        x_ND = np.hstack([x_ND, pd.get_dummies(frame[heavy]).to_numpy(float)])
    bare = frame.drop(columns=[c for c in ("id", "antigen_name", "genotype") if c in frame])
    for rows, share in cases:
        y = (value >= np.quantile(value, 1 - share)).astype(int)
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(y))
            line = {"what": name, "rows": rows, "share": share, "seed": seed}
            held_out = order[rows : rows + HELD_OUT]
            yield Draw(line, x_ND, bare, label, y, order[:rows], held_out)


def public(arguments):
    """Yield lines of a public table, its labels cut at shares of yes."""
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for name, cases in CASES.items():
        if arguments.only and name not in arguments.only:
            continue
        for drawn in draws(arguments.folder, name, cases, seeds):
            line = drawn.line
            held_out = drawn.y[drawn.held_out]
            if drawn.y[drawn.kept].sum() < 2:
                continue
            for peer, p in peers(drawn.x_ND, drawn.y, drawn.kept, drawn.held_out).items():
                yield {**line, "model": peer, **scores(held_out, p)}
            with tempfile.TemporaryDirectory() as at:
                store = Path(at) / "store"
                table, new = drawn.embed(store)
                started = time.perf_counter()
                _, predicted = fit(table, new, Path(at), store, **arguments.options)
                seconds = time.perf_counter() - started
                result = scores(held_out, predicted["probability"].to_numpy())
                yield {**line, "model": "abag", **result, "seconds": seconds}
                if not arguments.numbers:
                    continue
                numbers = drawn.bare.iloc[drawn.kept].reset_index(drop=True)
                options = {"columns": {"pkd": drawn.label}, **arguments.options}
                at_numbers = Path(at) / "numbers"
                at_numbers.mkdir()
                _, predicted = fit(numbers, new, at_numbers, store, **options)
                ap = average_precision_score(held_out, predicted["pkd_predicted"])
                yield {**line, "model": "numbers", "ap": ap}


def table(arguments):
    """Yield lines of a table of yes and no, a random half of which at most is held out."""
    frame = pd.read_csv(arguments.folder, comment="#")
    names = {"heavy": arguments.heavy, "light": arguments.light, "antigen": arguments.antigen}
    names = {role: name for role, name in names.items() if name}
    frame = frame[[*names.values(), arguments.label]].dropna().drop_duplicates()
    answer = frame[arguments.label].map(spelled)
    is_class = answer.isin([arguments.positive, *arguments.negative])
    for name in names.values():  # stop codons, and the like
        is_class &= frame[name].str.fullmatch(f"[{''.join(LETTERS)}X]+")
    frame = frame[is_class].rename(columns={name: role for role, name in names.items()})
    frame = frame.drop_duplicates([*names], keep=False)  # of no answer, or of both
    y = (answer[frame.index] == arguments.positive).astype(int).to_numpy()
    frame = frame[[*names]].reset_index(drop=True)
    if arguments.around:
        before, behind = arguments.around
        frame["heavy"] = before + frame["heavy"] + behind
    blocks = []
    for name in names:
        has_one_length = frame[name].str.len().nunique() == 1
        blocks.append(one_hot([frame[name]]) if has_one_length else composition(frame[name]))
    x_ND = np.hstack(blocks)
    options = dict(arguments.options)
    encoders = dict(COMPOSITION)
    if "antigen" not in names:
        options["no_antigen"] = True
        encoders.pop("antigen_encoder")
    for rows in arguments.table_rows:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            order = np.random.default_rng(seed).permutation(len(y))
            kept = order[:rows]
            held_out = order[max(rows, len(y) // 2) :][:HELD_OUT]
            line = {"what": arguments.folder.stem, "rows": rows, "share": float(y.mean().round(2))}
            line |= {"seed": seed}
            for peer, p in peers(x_ND, y, kept, held_out).items():
                yield {**line, "model": peer, **scores(y[held_out], p)}
            with tempfile.TemporaryDirectory() as at:
                store = Path(at) / "store"
                both = frame.iloc[np.concatenate([kept, held_out])].reset_index(drop=True)
                no_antigen = {"no_antigen": True} if "antigen" not in names else {}
                abag.embed_table(both, store, **encoders, **no_antigen)
                answers = both.iloc[:rows].assign(binder=y[kept])
                new = both.iloc[rows:].reset_index(drop=True)
                _, predicted = fit(answers, new, Path(at), store, **options)
            yield {
                **line,
                "model": "abag",
                **scores(y[held_out], predicted["probability"].to_numpy()),
            }


def law(seed, rows, strength, share, sites=12):
    """Return variants of one chain and the probability of yes of each, additive in its changes."""
    rng = np.random.default_rng(seed)
    parent = rng.choice(LETTERS, 120)
    places = rng.choice(120, sites, replace=False)
    others = [rng.choice(LETTERS[LETTERS != parent[at]], 3, replace=False) for at in places]
    effect = np.hstack([np.zeros((sites, 1)), rng.normal(size=(sites, 3))])
    choice = np.where(rng.random((rows, sites)) < 0.35, rng.integers(1, 4, (rows, sites)), 0)
    latent = effect[np.arange(sites), choice].sum(axis=1)
    latent = strength * (latent - latent.mean()) / latent.std()
    chains = np.tile(parent, (rows, 1))
    for site, at in enumerate(places):
        changed = choice[:, site] > 0
        chains[changed, at] = others[site][choice[changed, site] - 1]
    p = ndtr(ndtri(share) * np.sqrt(1 + strength**2) + latent)
    answers = (rng.random(rows) < p).astype(int)
    frame = pd.DataFrame({"heavy": ["".join(chain) for chain in chains]})
    return frame.assign(antigen="ACDEFGHIKL" * 6, binder=answers), p


def planted(arguments):
    """Yield lines of planted tables with known probabilities."""
    for strength, share, rows in LAWS:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            frame, p = law(seed, rows + arguments.new, strength, share)
            with tempfile.TemporaryDirectory() as at:
                store = Path(at) / "store"
                abag.embed_table(frame, store, **COMPOSITION)
                new = frame.iloc[rows:].drop(columns="binder").reset_index(drop=True)
                table = frame.iloc[:rows]
                summary, predicted = fit(table, new, Path(at), store, **arguments.options)
            probability = predicted["probability"].to_numpy()
            held = []
            for tenth in np.array_split(np.argsort(probability, kind="stable"), 10):
                true_mean = p[rows:][tenth].mean()
                low, high = (predicted[f"probability_{end}"].to_numpy()[tenth] for end in ENDS)
                held.append(((low <= true_mean) & (true_mean <= high)).mean())
            yield {
                "what": f"planted {strength:g}",
                "rows": rows,
                "share": share,
                "seed": seed,
                "model": "abag",
                "held": float(np.mean(held)),
                "width": float(
                    (predicted["probability_high"] - predicted["probability_low"]).mean()
                ),
                **scores(frame["binder"].to_numpy()[rows:], probability),
                "brier_of_truth": brier_score_loss(frame["binder"].to_numpy()[rows:], p[rows:]),
                "better": sum("better than the prev" in x["sentence"] for x in summary["regimes"]),
            }


ENDS = ("low", "high")
GRIDS = [
    (1.5, 0.3, 2, 60), (3.0, 0.3, 2, 120), (1.5, 0.1, 2, 300), (1.5, 0.3, 2, 300),
    (3.0, 0.3, 3, 300),
]  # fmt: skip
"""Standard deviation of the effects, share of the highest class, classes, rows."""
KNOWN_SIDES = {60: (30, 6), 120: (40, 8), 300: (80, 12)}
"""Antibodies and antigens of which pairs are measured, by rows."""
NEW_SIDES = (30, 25)


def planted_side(rng, number, sites, length):
    """Return variants of a chain, which residues are changed, and additive effects."""
    parent = rng.choice(LETTERS, length)
    places = rng.choice(length, sites, replace=False)
    effect = np.hstack([np.zeros((sites, 1)), rng.normal(size=(sites, 3))])
    others = [rng.choice(LETTERS[LETTERS != parent[at]], 3, replace=False) for at in places]
    drawn = set()
    while len(drawn) < number:
        is_changed = rng.random(sites) < 0.35
        drawn.add(tuple(np.where(is_changed, rng.integers(1, 4, sites), 0).tolist()))
    choice = rng.permutation(sorted(drawn))
    chains = np.tile(parent, (number, 1))
    for site, at in enumerate(places):
        changed = choice[:, site] > 0
        chains[changed, at] = others[site][choice[changed, site] - 1]
    latent = effect[np.arange(sites), choice].sum(axis=1)
    return ["".join(chain) for chain in chains], choice > 0, scipy.stats.zscore(latent)


def grid_table(case, seed):
    """Return all pairs of a grid, with the probability of the highest class, and those to learn."""
    strength, share, classes, rows = case
    rng = np.random.default_rng([seed, rows])
    known = KNOWN_SIDES[rows]
    number = [old + new for old, new in zip(known, NEW_SIDES, strict=True)]
    heavy, of_heavy, effect = planted_side(rng, number[0], 10, 110)
    antigen, of_antigen, other_effect = planted_side(rng, number[1], 6, 70)
    i, j = np.divmod(np.arange(number[0] * number[1]), number[1])
    together = (of_heavy[i] @ rng.normal(size=(10, 6)) * of_antigen[j]).sum(axis=1)
    latent = effect[i] + 0.7 * other_effect[j] + 0.5 * scipy.stats.zscore(together)
    latent = strength * scipy.stats.zscore(latent)
    top = ndtri(1 - share) * np.sqrt(1 + strength**2)
    ends = [top] if classes == 2 else [ndtri((1 - share) / 2) * np.sqrt(1 + strength**2), top]
    level = np.searchsorted(ends, latent + rng.normal(size=len(latent)))
    frame = pd.DataFrame({"heavy": np.array(heavy)[i], "antigen": np.array(antigen)[j]})
    frame = frame.assign(level=level, p=ndtr(latent - top))
    learned = rng.permutation(np.flatnonzero((i < known[0]) & (j < known[1])))[:rows]
    return frame, learned


def grid_lines(case, seed, options):
    """Fit a grid; return a line per regime of its other pairs."""
    torch.set_num_threads(1)
    frame, learned = grid_table(case, seed)
    words = np.array(["no", "yes"] if case[2] == 2 else ["low", "medium", "high"])
    new = frame.drop(index=frame.index[learned]).reset_index(drop=True)
    table = frame.iloc[learned].reset_index(drop=True)
    table = table[["heavy", "antigen"]].assign(binding=words[table["level"]])
    if case[2] > 2:
        options = {"classes": [*words], **options}
    with tempfile.TemporaryDirectory() as at, reporting(silent=True, bars=False):
        store = Path(at) / "store"
        abag.embed_table(frame[["heavy", "antigen"]], store, **COMPOSITION)
        _, found = fit(table, new[["heavy", "antigen"]], Path(at), store, **options)
    lines = []
    for regime, of_regime in found.assign(p=new["p"])[~found["far"]].groupby("regime"):
        if len(of_regime) < 40:
            continue
        held = []
        order = np.argsort(of_regime["probability"].to_numpy(), kind="stable")
        for tenth in np.array_split(order, min(10, len(of_regime) // 20)):
            rows = of_regime.iloc[tenth]
            true = rows["p"].mean()
            held.append(rows["probability_low"].le(true) & rows["probability_high"].ge(true))
        width = (of_regime["probability_high"] - of_regime["probability_low"]).mean()
        lines.append({
            "what": f"grid {case[0]:g}, {case[2]} classes", "rows": case[3], "share": case[1],
            "seed": seed, "model": regime, "held": float(np.concatenate(held).mean()),
            "width": float(width), "tenths": len(held),
        })  # fmt: skip
    return lines


def grid(arguments):
    """Yield lines of planted grids with known probabilities, by regime."""
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    cases = [case for case in GRIDS if not arguments.only or str(case[2]) in arguments.only]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        tasks = [pool.submit(grid_lines, case, seed, arguments.options)
                 for seed in seeds for case in cases]  # fmt: skip
        for task in tasks:
            yield from task.result()


def null(arguments):
    """Yield lines of tables without any effect: what is claimed of them."""
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        frame, _ = law(seed, arguments.rows, 1.0, 0.3)
        answers = np.random.default_rng([seed, 1]).random(len(frame)) < (0.1 if seed % 2 else 0.4)
        with tempfile.TemporaryDirectory() as at:
            store = Path(at) / "store"
            abag.embed_table(frame, store, **COMPOSITION)
            summary = abag.fit(
                frame.assign(binder=answers.astype(int)), store, Path(at) / "run", report=False,
                **{"head": "residue_kernel", **arguments.options},
            )  # fmt: skip
        for regime in summary["regimes"]:
            ranking, probabilities = regime["sentence"].split(": ", 1)[1].split("; ")[:2]
            yield {
                "what": "null", "rows": len(frame), "share": float(answers.mean()), "seed": seed,
                "model": regime["regime"],
                "ranks": float("is better than chance" in ranking),
                "probabilities": float("are better than the prevalence" in probabilities),
            }  # fmt: skip


def show(lines):
    """Print the mean of each number by table, rows, share and model."""
    frame = pd.DataFrame(lines).drop(columns="seed")
    means = frame.groupby(["what", "rows", "share", "model"], sort=False)
    if (frame["what"] == "null").all():
        means = frame.drop(columns=["rows", "share"]).groupby(["what", "model"])
    print(means.mean().assign(draws=means.size()).round(4).to_string())


def steps(arguments):
    """Yield lines of further steps of expectation maximisation of a process on one-hot residues."""
    frame, _, label = read(arguments.folder / TABLES["her2"])
    heavy = frame["antibody_heavy"]
    frame = frame[heavy.str.len() == heavy.str.len().mode()[0]].reset_index(drop=True)
    value = frame[label].to_numpy()
    x_ND = one_hot([frame["antibody_heavy"]])
    for rows, share in ((1500, 0.01), (400, 0.1), (400, 0.5)):
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            y = (value >= np.quantile(value, 1 - share)).astype(int)
            order = np.random.default_rng(seed).permutation(len(y))
            kept = order[:rows]
            held_out = order[rows : rows + HELD_OUT]
            for number, ap in enumerate(_refit(x_ND, y, kept, held_out)):
                yield {"what": "steps", "rows": rows, "share": share, "seed": seed,
                       "model": number, "ap": ap}  # fmt: skip


def _refit(x_ND, y, kept, held_out):
    """Yield the average precision of a kernel ridge of latent values, which it then expects anew."""
    level = y[kept]
    prior = class_thresholds(level.astype(float), 2)
    target = expected_latent(prior)[level]
    between = [cdist(x_ND[rows], x_ND[kept], "sqeuclidean") for rows in (kept, held_out)]
    tried = {}
    for length in (3, 6, 12):
        values, vectors = np.linalg.eigh(np.exp(-between[0] / length))
        for ridge in (0.3, 1, 3, 10, 30, 100):
            inverse = vectors / (values + ridge) @ vectors.T
            left_out = inverse @ target / np.diag(inverse)
            tried[np.square(left_out).mean()] = (length, ridge, inverse)
    length, ridge, inverse = tried[min(tried)]
    kernels = [np.exp(-distance / length) for distance in between]
    for step in range(6):
        weights = inverse @ target
        yield average_precision_score(y[held_out], kernels[1] @ weights)
        latent = kernels[0] @ weights
        if not step:  # in units of the noise, to first order
            latent = latent / np.square(target).mean()
        away = latent - prior[0] * np.sqrt(1 + 1 / ridge)
        side = np.where(level == 1, 1.0, -1.0)
        density = np.exp(-np.square(away) / 2) / np.sqrt(2 * np.pi)
        target = latent + side * density / np.maximum(ndtr(side * away), 1e-12)


def rare(arguments):
    """Yield lines of RBD at 1 %: a process whose sites have lengths of their own, and steeper links.

    The links multiply the latent values of abag and keep the mean of its probabilities; `--only
    slopes` leaves the processes out, which take minutes.
    """
    frame, _, label = read(arguments.folder / TABLES["rbd"])
    length = frame["antigen"].str.len()
    frame = frame[length == length.mode()[0]].reset_index(drop=True)
    value = frame[label].to_numpy()
    x_ND = np.hstack([one_hot([frame["antigen"]]), pd.get_dummies(frame["heavy"]).to_numpy(float)])
    x_ND = x_ND[:, x_ND.mean(axis=0) <= 0.5]  # of two letters at a site, one tells both
    y = (value >= np.quantile(value, 0.99)).astype(int)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        kept = order[:1500]
        new = order[1500 : 1500 + HELD_OUT]
        line = {"what": "rare rbd", "rows": 1500, "share": 0.01, "seed": seed}
        forest = RandomForestClassifier(500, min_samples_leaf=2, random_state=0)
        p = forest.fit(x_ND[kept], y[kept]).predict_proba(x_ND[new])[:, 1]
        yield {**line, "model": "forest", **scores(y[new], p)}
        for name, lengths in (("one length", 1.0), ("lengths of sites", np.ones(x_ND.shape[1]))):
            if "slopes" in arguments.only:
                continue
            kernel = ConstantKernel(1.0) * RBF(lengths, (0.1, 30)) + WhiteKernel(1.0)
            process = GaussianProcessRegressor(kernel, normalize_y=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                process.fit(x_ND[kept], y[kept])
            ap = average_precision_score(y[new], process.predict(x_ND[new]))
            yield {**line, "model": name, "ap": ap}
        both = frame.iloc[[*kept, *new]].drop(columns=[label, "genotype", "antibody_id"])
        with tempfile.TemporaryDirectory() as at:
            store = Path(at) / "store"
            abag.embed_table(both, store, **COMPOSITION)
            table = both.iloc[:1500].assign(binder=y[kept])
            rest = both.iloc[1500:].reset_index(drop=True)
            options = {"head": "residue_kernel", **arguments.options}
            _, predicted = fit(table, rest, Path(at), store, **options)
        p = predicted["probability"].to_numpy(np.float64)
        latent = ndtri(np.clip(p, SMALLEST, 1 - SMALLEST))
        for slope in (0.7, 1.0, 1.5, 2.0):
            shift = brentq(lambda away, z=slope * latent: ndtr(z + away).mean() - p.mean(), -30, 30)
            steeper = scores(y[new], ndtr(slope * latent + shift))
            yield {**line, "model": f"abag, slope {slope:g}", **steeper}


WORK = {
    "rare": rare,
    "steps": steps,
    "public": public,
    "planted": planted,
    "grid": grid,
    "table": table,
    "null": null,
}


def main():
    """Measure what is asked for; print and append its lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=[*WORK, "summary"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument(
        "--only", nargs="*", default=[], help="tables, or numbers of classes of grids"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=100, help="of each table without effects")
    for role in ("heavy", "light", "antigen", "label"):
        parser.add_argument(f"--{role}", help="column of a table")
    parser.add_argument("--positive", default="1", help="value of yes in a table")
    parser.add_argument("--negative", default=["0"], nargs="+", help="values of no")
    parser.add_argument("--around", nargs=2, help="residues before and behind")
    parser.add_argument("--table-rows", type=int, nargs="+", default=[120, 500])
    parser.add_argument("--jobs", type=int, default=1, help="processes of grids")
    parser.add_argument("--head")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--numbers", action="store_true", help="fit the affinities, too")
    parser.add_argument("--logistic", action="store_true", help="log loss of networks")
    parser.add_argument("--tiny", action="store_true", help="one small planted table")
    parser.add_argument("--out", type=Path, help="lines of JSON; appended")
    arguments = parser.parse_args()
    given = {"head": arguments.head, "epochs": arguments.epochs}
    arguments.options = {name: value for name, value in given.items() if value is not None}
    arguments.new = NEW
    if arguments.logistic:
        network.LOSSES["mse"] = logistic
    if arguments.tiny:
        arguments.new = 400
        LAWS[:] = [(1.0, 0.4, 60)]
        arguments.seeds = 1
        arguments.options = {"head": "ridge"}
        arguments.rows = 60
    if arguments.work == "summary":
        show([json.loads(line) for line in arguments.out.read_text().splitlines()])
        return
    lines = []
    with reporting(silent=True, bars=False):
        for line in WORK[arguments.work](arguments):
            lines.append(line)
            if arguments.out is None:
                continue
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    show(lines)


if __name__ == "__main__":
    main()
