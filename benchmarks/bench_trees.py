"""What do trees, or a kernel that learns which columns count, add to a stack?

Judged by rows that abag never saw.

    python benchmarks/bench_trees.py collect FOLDER --out DIR [--seeds 2] [--sizes 120 500] [--only rbd] [--others forest]
    python benchmarks/bench_trees.py choose FOLDER --out DIR
    python benchmarks/bench_trees.py judge --out DIR
    python benchmarks/bench_trees.py binary FOLDER --out lines.jsonl [--seeds 4] [--only rbd]
    python benchmarks/bench_trees.py batches [FOLDER] --out lines.jsonl [--seeds 2] [--sizes 60 200]
    python benchmarks/bench_trees.py summary --out lines.jsonl
    python benchmarks/bench_trees.py collect --tiny --out DIR

`collect` is that of `bench_mixing.py`, and keeps `trees` with the other parts. `--others` are fitted in
every fold, too: a random forest, one that tries all columns at each node (`bagged`), boosted trees
(all of scikit-learn), and `relevance`, kernel ridge whose
columns are weighed three times by the mean squared slope of the fit before (Radhakrishnan et al.,
Science 383:1461, 2024, on the diagonal). They read what `trees` read. The same
rows are predicted by ridge, forest and process of scikit-learn as in `bench_peers.py`. `choose` fits these
in the folds of each regime and in five of random rows, too, so that one of the three can be chosen before
the held-out rows are seen. `judge` weighs
the parts of each regime with and without trees, and prints the RMSE of held-out rows relative to that
without; beside the best of the three regressors in hindsight, how often it is 10 % above that, and how
often the chosen one is; where it is, `least ratio` is the 5 % quantile over groups of held-out rows that are
drawn again; `--without` leaves out other parts, too. With `--only "rbd 0.01"`, of which 1 % are yes, `judge` has the
scores of a regime with few yes that its own pairs weigh, and of one that the pairs of all do, beside a forest. `binary` has the stack with and without trees on tables of yes and no, beside the
classifiers of `bench_binary.py`. `batches` chooses the 24 highest predictions of libraries of
`bench_batches.py` with and without trees, once learned from random rows (share 1), once from rows of the
lower 70 % of the labels (share .7): trees predict nothing beyond the labels that they have seen.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from bench_mixing import LEAST_ROWS, collect, draw
from scipy.spatial.distance import cdist

PEERS = ("ridge", "forest", "process")
NAMES = ("her2", "rbd", "hiv", "skempi", "additive", "epistatic")
BUILT_IN = "trees"
OTHERS = {"forest": 100, "boosted": 150, "relevance": 3, "bagged": 50}
"""Number of trees, or of times that columns are weighed."""
WIDTHS = (0.3, 1.0, 3.0, 10.0)
"""Squared lengths of kernels, relative to the median squared distance."""
NOISES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FITTED: dict[int, tuple] = {}
"""Models of this process, which `load` finds again: trees are not written to files here."""
SECONDS = dict.fromkeys((BUILT_IN, *OTHERS), 0.0)


@dataclass(frozen=True)
class Number:
    """Number of a model in `FITTED`."""

    number: int


class Trees:
    """A part of a stack that scikit-learn has fitted."""

    def __init__(self, settings):
        self.settings = settings

    def predict(self, vectors):
        model, columns = FITTED[self.settings.number]
        return model.predict(inputs(vectors, columns)).astype(np.float64)

    def variance(self, vectors):
        return None

    def reading(self, vectors):
        return self, vectors

    def arrays(self):
        return {"none": np.zeros(1)}

    @classmethod
    def load(cls, arrays, settings):
        return cls(settings)


class Relevance:
    """Kernel ridge that weighs its columns by how much predictions change with them."""

    def __init__(self, rounds):
        self.rounds = rounds

    def fit(self, x_NC, y, sample_weight=None):
        spread = x_NC.std(axis=0)
        # columns of 0 and 1 as they are
        self.scale = np.where(np.isin(x_NC, (0, 1)).all(axis=0), 1.0, 1 / np.maximum(spread, 1e-9))
        self.scale[spread == 0] = 0.0
        self.x_NC = x_NC * self.scale
        weight_C = np.ones(x_NC.shape[1])
        tried = []
        for _ in range(self.rounds + 1):
            tried.append(self._choose(y, weight_C))
            slope_C = self._slopes(tried[-1])
            if not slope_C.any():
                break
            weight_C = np.sqrt(slope_C / slope_C.max()) + 1e-3
        self.best = min(tried, key=lambda found: found["error"])
        return self

    def _distances(self, x_MC, weight_C):
        root = np.sqrt(weight_C)
        return cdist(x_MC * root, self.x_NC * root, "sqeuclidean")

    def _choose(self, y, weight_C):
        """Choose a kernel and its noise by pairs that are left out one by one."""
        distance = self._distances(self.x_NC, weight_C)
        unit = np.median(distance[distance > 0]) if distance.any() else 1.0
        best = {"error": np.inf}
        for width in WIDTHS:
            for is_smooth in (True, False):
                away = distance / (unit * width)
                kernel = np.exp(-away if is_smooth else -np.sqrt(away))
                values, vectors = np.linalg.eigh(kernel)
                for noise in NOISES:
                    inverse = (vectors / (np.maximum(values, 0) + noise)) @ vectors.T
                    ones = inverse.sum(axis=0)
                    mean = float(ones @ y / ones.sum())
                    alpha = inverse @ y - mean * ones
                    left_out = alpha / (np.diag(inverse) - ones**2 / ones.sum())
                    error = float(np.square(left_out).mean())
                    if error < best["error"]:
                        best = {"error": error, "width": unit * width, "is_smooth": is_smooth,
                                "alpha": alpha, "mean": mean, "weight": weight_C}  # fmt: skip
        return best

    def _slopes(self, fit):
        """Return the mean squared slope of predictions along each column, (C,)."""
        away = self._distances(self.x_NC, fit["weight"]) / fit["width"]
        root = np.sqrt(away)
        slope = np.exp(-away) * -2 if fit["is_smooth"] else -np.exp(-root) / np.maximum(root, 1e-3)
        slope *= (away > 0) / fit["width"]
        by_pair = slope * fit["alpha"]
        moved = self.x_NC * by_pair.sum(axis=1)[:, None] - by_pair @ self.x_NC
        return np.square(fit["weight"] * moved).mean(axis=0)

    def predict(self, x_MC):
        fit = self.best
        away = self._distances(x_MC * self.scale, fit["weight"]) / fit["width"]
        return fit["mean"] + np.exp(-away if fit["is_smooth"] else -np.sqrt(away)) @ fit["alpha"]


def inputs(vectors, columns):
    """Return the columns that trees read of P pairs without features, (P, C)."""
    from abag.head.models.trees import column_blocks, joined_columns

    return joined_columns(column_blocks(vectors, columns, None), np.arange(len(vectors)))


def fit_trees(name):
    """Return a function that fits trees to training rows."""

    def fit(training):
        from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

        from abag.head.models.residue_kernel import columns_of, sides_of

        started = time.thread_time()
        kinds, _ = sides_of(training)
        columns = columns_of(training.vectors, training.rows, kinds, marks_new=False)
        x_FC = inputs(training.vectors.take(training.rows), columns)
        number = OTHERS[name]
        model = {
            "bagged": lambda: RandomForestRegressor(number, min_samples_leaf=2, random_state=0),
            "forest": lambda: RandomForestRegressor(
                number, min_samples_leaf=2, max_features=1 / 3, random_state=0
            ),
            "boosted": lambda: GradientBoostingRegressor(
                n_estimators=number, learning_rate=0.07, max_depth=3, subsample=0.5,
                max_features=1 / 3, random_state=0,
            ),
            "relevance": lambda: Relevance(number),
        }[name]()  # fmt: skip
        model.fit(x_FC, training.pkd, sample_weight=training.weight)
        FITTED[len(FITTED)] = (model, columns)
        SECONDS[name] += time.thread_time() - started
        return Trees(Number(len(FITTED) - 1))

    return fit


def register(names):
    """Make other models parts of every stack of this process, and time these and trees."""
    from abag.head.models.registry import MODELS, ModelEntry

    entry = MODELS[BUILT_IN]

    def timed(training):
        started = time.thread_time()
        model = entry.fit(training)
        SECONDS[BUILT_IN] += time.thread_time() - started
        return model

    MODELS[BUILT_IN] = replace(entry, fit=timed)
    for name in names:
        MODELS[name] = ModelEntry(help=name, load=Trees.load, settings=Number, fit=fit_trees(name))


def read_rows(folder, name, size, seed):
    """Return the rows of a draw, the first of which train, and what regressors read of them."""
    from bench_binary import composition, one_hot

    train, held_out = draw(folder, name, size, seed)
    both = pd.concat([train, held_out], ignore_index=True)
    blocks = []
    for role in ("antibody_heavy", "heavy", "antibody_light", "light", "antigen"):
        if role not in both:
            continue
        texts = both[role].fillna("")
        encode = one_hot if texts.str.len().nunique() == 1 else lambda c: composition(c[0])
        if texts.nunique() > 1:
            blocks.append(encode([texts]))
    return both, np.hstack(blocks), len(train)


def predict_peers(folder, name, size, seed):
    """Return what ridge, forest and process of scikit-learn predict of the held-out rows.

    Of yes and no, it is what the forest of `bench_binary.py` does.
    """
    from bench_peers import peers

    if " 0." in name:
        from bench_binary import draws
        from sklearn.ensemble import RandomForestClassifier

        table, share = name.split()
        [drawn] = draws(folder, table, [(size, float(share))], [seed])
        forest = RandomForestClassifier(500, min_samples_leaf=2, random_state=0)
        forest.fit(drawn.x_ND[drawn.kept], drawn.y[drawn.kept])
        p = forest.predict_proba(drawn.x_ND[drawn.held_out])[:, 1]
        return drawn.y[drawn.held_out], {"forest": p}
    both, x_ND, trained = read_rows(folder, name, size, seed)
    y = both["pKd"].to_numpy(float)
    rows = np.arange(len(both))
    return y[trained:], peers(x_ND, y, rows[:trained], rows[trained:])


def choose_one(folder, path):
    """Add what regressors predict in the folds of each regime, and in five of random rows."""
    from bench_peers import peers
    from sklearn.model_selection import KFold

    name, size, seed = path.stem.rsplit("-", 2)
    both, x_ND, trained = read_rows(folder, name, int(size), int(seed))
    kept = dict(np.load(path))
    x_PD, y = x_ND[kept["pairs:row"]], kept["pairs:truth"]
    folds = {"random": KFold(5, shuffle=True, random_state=0).split(y)}
    for regime in np.unique(kept["test:regime"]).tolist():
        inside = kept["test:regime"] == regime
        if inside.sum() < LEAST_ROWS or f"{regime}:pair" not in kept:
            continue
        folds[regime] = []
        for number, learned_P in enumerate(kept[f"{regime}:learned"]):
            tested = kept[f"{regime}:pair"][kept[f"{regime}:fold"] == number]
            folds[regime].append((np.flatnonzero(learned_P), tested))
    for regime, splits in folds.items():
        square_FM = []
        for learned, tested in splits:
            found = peers(x_PD, y, learned, tested, trees=200, restarts=0)
            square_FM.append([np.square(found[peer] - y[tested]).sum() for peer in PEERS])
        kept[f"{regime}:choice"] = np.sum(square_FM, axis=0)
    # rows of one complex, or else of one antibody and one antigen, are one measurement
    columns = {"skempi": ["pdb"], "hiv": ["antibody", "antigen"]}.get(name, [])
    held_out = both.iloc[trained:].iloc[kept["test:row"]]
    groups = [pd.factorize(held_out[column])[0] for column in columns] or [kept["test:row"]]
    kept["test:groups"] = np.stack(groups)
    np.savez(path, **kept)
    return path.stem


def collect_one(folder, out, name, size, seed, others):
    """Fit one draw with other parts, and add what the regressors predict."""
    register(others)
    path = out / f"{name}-{size}-{seed}.npz"
    started = time.process_time()
    collect(folder, out, name, size, seed)
    seconds = [time.process_time() - started, *SECONDS.values()]
    kept = dict(np.load(path))
    truth, found = predict_peers(folder, name, size, seed)
    if len(truth) == len(kept["test:truth"]):
        kept |= {f"peer:{peer}": values for peer, values in found.items()}
    np.savez(path, **kept, seconds=np.array(seconds))
    return path.stem, np.round(seconds, 1).tolist()


def collect_all(args):
    """Collect every table, size and draw that is not there, each in a process of its own."""
    tables = args.only or NAMES  # also of other files of the folder
    jobs = [(args.folder, args.out, name, size, seed)
            for seed in range(args.first_seed, args.first_seed + args.seeds)
            for size in args.sizes for name in tables
            if not (args.out / f"{name}-{size}-{seed}.npz").exists()]  # fmt: skip
    if args.tiny:
        jobs = [(None, args.out, "additive", 60, 0)]
    jobs = [(*job, args.others) for job in jobs]
    with ProcessPoolExecutor(args.cores, get_context("spawn"), max_tasks_per_child=1) as pool:
        done = [pool.submit(collect_one, *job) for job in jobs]
        for job, future in zip(jobs, done, strict=True):
            try:
                print(*future.result(), flush=True)
            except Exception as error:  # noqa: BLE001 - the others go on
                print("failed:", *job, repr(error)[:300], flush=True)


def rmse(predicted, truth):
    return float(np.sqrt(np.mean(np.square(predicted - truth))))


def least_ratio(error, other, groups):
    """Return the 5 % quantile of the ratio of two RMSEs over groups that are drawn again."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(2000):
        times = np.ones(len(error))
        for group in groups:
            number = group.max() + 1
            times *= np.bincount(rng.integers(number, size=number), minlength=number)[group]
        if times.any():
            ratios.append(np.sqrt(times @ np.square(error) / (times @ np.square(other))))
    return float(np.quantile(ratios, 0.05))


def judge_luck(frame, fewest=3):
    """Print how much of the best regressor's lead is luck of a draw.

    `told` is the regressor that the other draws of a table, size and regime say is best: it knows the
    table, and not the draw. `ratio` is abag's error over that of one regressor for all draws, the best of
    them, and its 90 % interval that of draws drawn again.
    """
    rng = np.random.default_rng(0)
    told, cells = [], []
    for cell, draws in frame.groupby(["table", "size", "regime"], sort=False):
        if len(draws) < fewest:
            continue
        stack_D = draws[f"+ {BUILT_IN}"].to_numpy()
        error_DM = draws[[f"peer {peer}" for peer in PEERS]].to_numpy()
        best_D = error_DM.min(axis=1)
        others_DM = error_DM.sum(axis=0) - error_DM
        of_told_D = error_DM[np.arange(len(draws)), others_DM.argmin(axis=1)]
        of_one_D = error_DM[:, error_DM.mean(axis=0).argmin()]
        told.append(np.stack([stack_D, of_told_D, of_one_D, best_D]))
        drawn = rng.integers(len(draws), size=(2000, len(draws)))
        ratios = stack_D[drawn].mean(axis=1) / of_one_D[drawn].mean(axis=1)
        line = dict(zip(("table", "size", "regime"), cell, strict=True))
        line |= {"draws": len(draws), "regressor": PEERS[int(error_DM.mean(axis=0).argmin())],
                 "ratio": stack_D.mean() / of_one_D.mean(), "low": np.quantile(ratios, 0.05),
                 "high": np.quantile(ratios, 0.95)}  # fmt: skip
        ways = {"abag": stack_D, "told": of_told_D, "one": of_one_D}
        line |= {f"{way} > 1.1": int((error > 1.1 * best_D).sum()) for way, error in ways.items()}
        cells.append(line)
    if not cells:
        return
    stack, of_told, of_one, best = np.concatenate(told, axis=1)
    print(
        f"{len(stack)} regimes of which {fewest} draws or more are there, beside the best in hindsight:"
    )
    for way, error in (("abag", stack), ("told by other draws", of_told), ("one for all", of_one)):
        ratio = error / best
        print(
            f"{way}: {ratio.mean():.3f}, above 1.1 in {(ratio > 1.1).sum()}, largest {ratio.max():.2f}"
        )
    ratio = stack / of_told
    print(
        f"abag beside told: {ratio.mean():.3f}, above 1.1 in {(ratio > 1.1).sum()}, {ratio.max():.2f}"
    )
    cells = pd.DataFrame(cells).sort_values("ratio")
    ratio = cells["ratio"]
    print(f"means of the draws: {ratio.mean():.3f} of the best regressor, above 1.1 in "
          f"{(ratio > 1.1).sum()} of {len(ratio)}, largest {ratio.max():.2f}")  # fmt: skip
    print(cells.round(3).to_string(index=False))


def judge(out, without=()):
    """Print errors with trees as parts relative to those without, by table and size."""
    from abag.head.predictor.weigh import stack_weights

    rows = []
    shares = []
    for path in sorted(out.glob("*.npz")):
        kept = np.load(path)
        name, size, seed = path.stem.rsplit("-", 2)
        parts = kept["parts"].tolist()
        if "seconds" in kept.files:
            whole, *spent = kept["seconds"].tolist()
            rest = whole - sum(spent)
            shares.append({"size": int(size), BUILT_IN: spent[0] / rest})
        for regime in np.unique(kept["test:regime"]):
            inside = kept["test:regime"] == regime
            if inside.sum() < LEAST_ROWS or f"{regime}:errors" not in kept:
                continue
            truth = kept["test:truth"][inside]
            predicted = kept["test:predicted"][inside]
            error_RK, group = kept[f"{regime}:errors"], kept[f"{regime}:groups"]
            line = {"table": name, "size": int(size), "seed": int(seed), "regime": regime,
                    "n": int(inside.sum())}  # fmt: skip
            options = {"stack": ((), ())}
            options |= {f"+ {tree}": ((tree,), ()) for tree in SECONDS if tree in parts}
            if len(options) > 2:
                options["+ all"] = ((*SECONDS,), ())
            options |= {f"+ {BUILT_IN} - {part}": ((BUILT_IN,), (part,)) for part in without}
            for what, (used, left_out) in options.items():
                columns = []
                for k, part in enumerate(parts):
                    if part in used or part not in (*SECONDS, *left_out):
                        columns.append(k)
                some = [parts[k] for k in columns]
                weights = stack_weights(error_RK[:, columns], group, some.index("train_mean"))
                line[what] = rmse(predicted[:, columns] @ weights, truth)
                if what == f"+ {BUILT_IN}":
                    built_error = predicted[:, columns] @ weights - truth
                if used and not left_out:
                    line[f"weight of {used[0]}"] = float(weights[some.index(used[0])])
                    line[f"{used[0]} alone"] = rmse(predicted[:, parts.index(used[0])], truth)
            if "peer:ridge" not in kept:  # rows that abag skipped
                continue
            line["mean"] = rmse(kept["peer:mean"][inside], truth)
            of_peer = {peer: kept[f"peer:{peer}"][inside] - truth for peer in PEERS}
            errors = {peer: rmse(error, 0) for peer, error in of_peer.items()}
            line |= {f"peer {peer}": value for peer, value in errors.items()}
            best = min(errors, key=errors.get)
            line["best peer"] = errors[best]
            for way in (regime, "random"):
                if f"{way}:choice" in kept:
                    chosen = PEERS[int(kept[f"{way}:choice"].argmin())]
                    line["chosen at random" if way == "random" else "chosen"] = errors[chosen]
            if "test:groups" in kept and rmse(built_error, 0) > 1.1 * errors[best]:
                groups = [
                    np.unique(g, return_inverse=True)[1] for g in kept["test:groups"][:, inside]
                ]
                line["groups"] = min(group.max() + 1 for group in groups)
                line["least ratio"] = least_ratio(built_error, of_peer[best], groups)
            rows.append(line)
    frame = pd.DataFrame(rows)
    options = [column for column in frame if column.startswith("+")]
    relative = frame[options].div(frame["stack"], axis=0) - 1
    relative = pd.concat([frame[["table", "size", "regime"]], 100 * relative], axis=1)
    by_fit = relative.groupby(["table", "size"], sort=False)[options].mean()
    print("RMSE beside that without trees, %, mean of the regimes")
    print(by_fit.round(2).to_string())
    print(relative[options].agg(["mean", "min", "max"]).round(2).to_string())
    for tree in SECONDS:
        if f"weight of {tree}" not in frame:
            continue
        chosen = frame[f"weight of {tree}"] > 0
        print(f"{tree}: has weight in {chosen.sum()} of {len(frame)} regimes, there "
              f"{relative.loc[chosen, f'+ {tree}'].mean():+.2f} %")  # fmt: skip
    print("CPU seconds of trees over those of the rest of the command, %")
    print((100 * pd.DataFrame(shares).groupby("size").mean()).round(1).to_string())
    for what in ("stack", *options, "chosen", "chosen at random"):
        for other in ("best peer", "chosen"):
            if what in frame and other in frame and what != other:
                ratio = (frame[what] / frame[other]).dropna()
                print(f"{what}: {ratio.mean():.3f} of {other}, above 1.1 in {(ratio > 1.1).sum()} "
                      f"of {len(ratio)}, largest {ratio.max():.2f}")  # fmt: skip
    judge_luck(frame)
    frame["ratio"] = frame[f"+ {BUILT_IN}"] / frame["best peer"]
    worst = frame.sort_values("ratio").tail(12)
    print(worst.round(3).to_string())
    return frame


def judge_classes(out):
    """Print scores of yes and no, regimes with few yes weighed by their own pairs or by all."""
    from functools import partial

    from bench_binary import scores

    from abag.head.models.probit import HeldOutClasses
    from abag.head.predictor.weigh import FEWEST_UNUSUAL, USUAL_WEIGHTS, stack_weights

    lines = []
    for path in sorted(out.glob("* 0.*.npz")):
        kept = np.load(path)
        parts = kept["parts"].tolist()
        usual_K = np.array([USUAL_WEIGHTS.get(part, 1.0) for part in parts])
        pairs = SimpleNamespace(
            pkd=kept["pairs:truth"], share=None, quantity=SimpleNamespace(classes=("no", "yes"))
        )
        regimes = {}
        for file in kept.files:
            regime, _, what = file.partition(":")
            if what == "learned":
                found = [kept[f"{regime}:{name}"] for name in ("pair", "parts", "groups")]
                regimes[regime] = HeldOutClasses.of(pairs, *found)
        for model, fewest in (("of its own", 0), ("as built", FEWEST_UNUSUAL)):
            p = np.zeros(len(kept["test:truth"]))
            for regime in np.unique(kept["test:regime"]).tolist():
                tested = regimes[regime]
                if tested.unusual < fewest:
                    tested = HeldOutClasses.joined([*regimes.values()])
                stack = partial(
                    stack_weights, mean=parts.index("train_mean"),
                    usual_K=usual_K / usual_K.sum(), informative=tested.informative,
                )  # fmt: skip
                weights, link = tested.weigh(stack)
                inside = kept["test:regime"] == regime
                p[inside] = link.expected(link.latent(kept["test:predicted"][inside] @ weights))
            lines.append({"draw": path.stem, "model": model, **scores(kept["test:truth"], p)})
        if "peer:forest" in kept:
            forest = scores(kept["test:truth"], kept["peer:forest"])
            lines.append({"draw": path.stem, "model": "forest", **forest})
    frame = pd.DataFrame(lines)
    frame["what"] = frame["draw"].str.replace(r"-\d+$", "", regex=True)
    print(frame.groupby(["what", "model"], sort=False).mean(numeric_only=True).round(4).to_string())
    for score in ("ap", "brier", "log_loss"):
        table = frame.pivot_table(score, ["what", "draw"], "model")
        away = table.rsub(table["as built"], axis=0).groupby("what")
        print(f"{score}: as built less each, mean and its standard error")
        print(away.agg(["mean", "sem", "size"]).round(5).to_string())


def binary(args):
    """Yield lines of tables of yes and no: a stack, one without trees, and classifiers."""
    from bench_binary import CASES, draws, fit, peers, scores

    from abag.head.models.registry import MODELS

    entry = MODELS[BUILT_IN]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for name in ("her2", "rbd"):
        if args.only and name not in args.only:
            continue
        cases = [case for case in CASES[name] if not args.shares or case[1] in args.shares]
        for drawn in draws(args.folder, name, cases, seeds):
            line = drawn.line
            held_out = drawn.y[drawn.held_out]
            found = peers(drawn.x_ND, drawn.y, drawn.kept, drawn.held_out)
            for peer, p in found.items():
                yield {**line, "model": peer, **scores(held_out, p)}
            with tempfile.TemporaryDirectory() as at:
                store = Path(at) / "store"
                table, new = drawn.embed(store)
                for model, parts in (("without trees", {}), ("stack", {BUILT_IN: entry})):
                    MODELS.pop(BUILT_IN, None)
                    MODELS.update(parts)
                    folder = Path(at) / model.replace(" ", "-")
                    folder.mkdir()
                    started = time.process_time()
                    summary, predicted = fit(table, new, folder, store, epochs=args.epochs)
                    seconds = time.process_time() - started
                    result = scores(held_out, predicted["probability"].to_numpy())
                    weights = {r["regime"]: r.get("weights") for r in summary["regimes"]}
                    yield {**line, "model": model, **result, "seconds": seconds,
                           "weights": weights}  # fmt: skip


def batches(args):
    """Yield lines of batches: what was predicted of 24 pairs, and what they turn out to be."""
    from bench_batches import BATCH, COMPOSITION, PLANTED, choose, make_libraries

    import abag
    from abag.head.models.registry import MODELS

    entry = MODELS[BUILT_IN]
    without = replace(entry, most_pairs=0)
    for name, make in make_libraries(args.folder, args.seeds):
        library = name.partition(".")[0]
        if args.only and library not in args.only:
            continue
        frame = make()
        top = np.sort(frame["pKd"])[-max(BATCH, len(frame) // 100) :]
        with tempfile.TemporaryDirectory() as at:
            store = Path(at) / "store"
            abag.embed_table(frame, store, device="cpu", **COMPOSITION)
            seeds = range(1 if library in PLANTED else args.seeds)  # drawn again themselves
            for seed, size, share in product(seeds, args.sizes, args.learned):
                usual = np.flatnonzero(frame["pKd"] <= frame["pKd"].quantile(share))
                rows = np.random.default_rng(seed).permutation(usual)[:size]
                learned, others = frame.iloc[rows], frame.drop(index=frame.index[rows])
                for model, part in (("without trees", without), ("stack", entry)):
                    MODELS[BUILT_IN] = part
                    with tempfile.TemporaryDirectory() as run:
                        summary = abag.fit(
                            learned, store, Path(run) / "run", report=False, device="cpu", say=False
                        )
                        scored = abag.predict(
                            others.drop(columns="pKd"), Path(run) / "run", store=store, say=False
                        ).assign(truth=others["pKd"].to_numpy())
                    batch = choose(scored, BATCH)
                    weights = {r["regime"]: r["weights"].get(BUILT_IN, 0.0)
                               for r in summary["regimes"]}  # fmt: skip
                    yield {
                        "what": library, "rows": size, "share": share, "seed": name + str(seed),
                        "model": model,
                        "weights": float(np.mean([*weights.values()])),
                        "predicted": batch["pkd_predicted"].mean(),
                        "mean": batch["truth"].mean(),
                        "regret of the mean": top[-BATCH:].mean() - batch["truth"].mean(),
                        "best": batch["truth"].max(),
                        "hits": int((batch["truth"] >= top[0]).sum()),
                        "bias": batch["pkd_predicted"].mean() - batch["truth"].mean(),
                        "covered": float(
                            (abs(batch["truth"] - batch["pkd_predicted"]) < 1.6449 * batch["sigma"]).mean()
                        ),
                    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "step", choices=["collect", "choose", "judge", "binary", "batches", "summary"]
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[120, 500])
    parser.add_argument("--shares", type=float, nargs="*", default=[0.01, 0.1])
    parser.add_argument("--learned", type=float, nargs="+", default=[1.0, 0.7])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--others", nargs="*", choices=[*OTHERS], default=[])
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.step in ("binary", "batches", "summary"):
        if args.step != "summary":
            from abag.core.messages import reporting

            lines = binary(args) if args.step == "binary" else batches(args)
            with reporting(silent=True, bars=False), args.out.open("a") as out:
                for line in lines:
                    print(line, flush=True)
                    out.write(json.dumps(line) + "\n")
                    out.flush()
        frame = pd.read_json(args.out, lines=True).drop(columns="seed")
        means = frame.groupby(["what", "rows", "share", "model"], sort=False)
        print(means.mean(numeric_only=True).assign(draws=means.size()).round(4).to_string())
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.step == "judge":
        if [*args.out.glob("* 0.*.npz")]:
            judge_classes(args.out)
        else:
            judge(args.out, args.without)
    elif args.step == "choose":
        for path in sorted(args.out.glob("*.npz")):
            if "random:choice" not in np.load(path):
                print(choose_one(args.folder, path), flush=True)
    else:
        collect_all(args)


if __name__ == "__main__":
    main()
