"""Weights of the parts of a stack by several rules, judged by rows that abag never saw.

    python benchmarks/bench_mixing.py collect FOLDER --out DIR [--seeds 3] [--cores 16] [--only hiv]
    python benchmarks/bench_mixing.py judge --out DIR
    python benchmarks/bench_mixing.py screen --out DIR
    python benchmarks/bench_mixing.py sigma --out DIR
    python benchmarks/bench_mixing.py score FOLDER --out DIR [--seeds 3] [--sizes 120 300] [--only rbd]
    python benchmarks/bench_mixing.py collect --tiny --out DIR

`collect` draws training rows of the tables of FOLDER (and of planted laws; and of any other CSV
there with columns `heavy`, perhaps `light`, `antigen` and `pKd`), fits them with default
options, and keeps the out-of-fold errors of every part by regime, and what every part predicts of
rows that were held out before. `judge` weighs the parts of each regime by each rule of `RULES` and
prints by how much its RMSE on the held-out rows exceeds that of the best part in hindsight, in
percent, by number of training rows; beside the rule before, the mean difference, and how often it is
over 5 % worse.

`sigma` calibrates sigma on the out-of-fold errors with the variance of one of the parts, of several, or
of all, and prints what held-out rows say: negative log-likelihood less that with kernels alone, the share of
90 % intervals that hold, the rank correlation of the model's own part with absolute errors, and how
large that part is beside the true error, which planted laws tell; how often it is 0.

`score` fits and predicts as a user does, and writes a line of JSON per draw: likelihood and intervals of sigma on
held-out rows; `widest` is the RMSE over sigma of the tenth with the largest. Two checkouts that run it on the same draws can be compared.

`screen` asks whether the first two folds of a regime tell that its network gets no weight, so that
the other folds could be spared: it does if the network has weight in at most 5 % of draws of their
groups again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

SIZES = (60, 120, 250, 500)
HELD_OUT = 1500
LEAST_ROWS = 25
"""Held-out rows of a regime from which its RMSE is judged."""
TABLES = {
    "her2": "alphabind_her2.csv.gz",
    "rbd": "rbd_escape.csv.gz",
    "hiv": "hiv_ic50_seen.csv.gz",
    "skempi": "skempi_measurements.csv",
}


# ---- collect -------------------------------------------------------------------------------------


def draw(folder, name, size, seed):
    """Return training and held-out rows of a table; for complexes, also those of new antigens.

    Of `her2 0.01` and the like, this share are yes, the others no, as in `bench_binary.py`.
    """
    if " 0." in name:
        from bench_binary import draws

        table, share = name.split()
        [drawn] = draws(folder, table, [(size, float(share))], [seed])
        frame = drawn.bare.drop(columns=[drawn.label]).assign(binder=drawn.y)
        return frame.iloc[drawn.kept], frame.iloc[drawn.held_out]
    rng = np.random.default_rng([size, seed])
    if name in ("additive", "epistatic"):
        from bench_batches import planted_library

        frame = planted_library(name)
    else:
        from outside_truth import read

        frame, _, label = read(folder / TABLES.get(name, f"{name}.csv"))
        frame = frame.rename(columns={label: "pKd"})
        frame = frame[pd.to_numeric(frame["pKd"], errors="coerce").notna()]
        if "censored" in frame:
            frame = frame[~frame["censored"].fillna("").astype(str).str.contains("[<>]")]
    order = rng.permutation(len(frame))
    chosen = np.zeros(len(frame), np.bool_)
    if name in ("hiv", "skempi"):
        antigens = frame["antigen"].unique()
        kept = rng.permutation(antigens)[: max(2, int(0.7 * len(antigens)))]
        order = np.concatenate([order[frame["antigen"].isin(kept).to_numpy()[order]]])
    chosen[order[:size]] = True
    rest = rng.permutation(np.flatnonzero(~chosen))[:HELD_OUT]
    return frame[chosen], frame.iloc[rest]


def collect(folder, out, name, size, seed):
    """Fit one draw, and write what its parts predict."""
    import torch

    from abag.core.messages import reporting
    from abag.embed.embed import embed_table
    from abag.embed.store.store import open_store
    from abag.embed.tables.pairs import Sequences
    from abag.head import fit as fitting
    from abag.head.predictor import weigh as weighing
    from abag.head.predictor.predictor import Scorer
    from abag.head.regimes.splits import learned_rows

    torch.set_num_threads(1)
    found = {}
    kept = {}
    asked = []
    stack_weights, make = weighing.stack_weights, fitting.make_predictor
    fit_all_pairs = fitting.fit_all_pairs

    def keeping(weigh):
        def weigh_and_keep(*of_regime):
            asked.clear()
            return keep(weigh(*of_regime))

        return weigh_and_keep

    def keep(weighed):
        pairs, measured, folds = weighed.pairs, weighed.measured, weighed.folds
        regime = measured.regime.name
        found[f"{regime}:parts"] = weighed.part_RK
        found[f"{regime}:truth"] = weighed.tested.pkd
        if not pairs.quantity.classes:  # those of classes follow from the link of their mixture
            found[f"{regime}:errors"] = asked[0][0]
        found[f"{regime}:fold"] = weighed.tested.fold
        with_variance = list(folds[0].variances)
        found["with variance"] = np.array(with_variance, dtype=str)
        for name in with_variance:
            of_folds = [fold.variances[name] for fold in folds]
            found[f"{regime}:variance:{name}"] = weighed.tested.take(of_folds)
        weights = [weighed.mixture.weights.get(name, 0.0) for name in folds[0].parts]
        found[f"{regime}:weights"] = np.array(weights)
        found[f"{regime}:distance"] = weighed.distance
        found[f"{regime}:groups"] = np.unique(weighed.group, return_inverse=True)[1]
        found[f"{regime}:pair"] = weighed.tested.rows
        found[f"{regime}:learned"] = np.stack(
            [np.isin(np.arange(len(pairs)), learned_rows(split)) for split in measured.splits]
        )
        kept["pairs"] = pairs
        found["parts"] = np.array(folds[0].parts)
        found["mean"] = np.array(folds[0].parts.index("train_mean"))
        return weighed

    def stack_and_keep(*arguments, **options):
        asked.append(arguments)
        return stack_weights(*arguments, **options)

    def fit_all_parts(trainings, split, rows, names, work=None):
        kept["needed"] = names
        return fit_all_pairs(trainings, split, rows, list(trainings.models), work)

    def make_and_keep(inputs, parts, *others):
        kept["predictor"] = make(inputs, parts, *others)
        needed = {name: parts.models[name] for name in kept["needed"]}
        return replace(kept["predictor"], parts=replace(parts, models=needed))

    weighing.weigh = keeping(weighing.weigh)
    weighing._weigh_classes = keeping(weighing._weigh_classes)
    weighing.stack_weights = stack_and_keep
    fitting.fit_all_pairs, fitting.make_predictor = fit_all_parts, make_and_keep
    train, held_out = draw(folder, name, size, seed)
    plain = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    with tempfile.TemporaryDirectory() as scratch, reporting(silent=True):
        at = Path(scratch)
        train.to_csv(at / "train.csv", index=False)
        held_out.to_csv(at / "new.csv", index=False)
        embed_table([at / "train.csv", at / "new.csv"], at / "store", **plain)
        label = "pKd" if "pKd" in train else "binder"
        options = {} if label == "pKd" else {"epochs": 10}
        fitting.fit(at / "train.csv", at / "store", at / "run", **options)
        from abag.embed.tables.options import TableOptions
        from abag.embed.tables.pairs import read_pairs

        pairs = read_pairs(at / "new.csv", TableOptions())
        sides = []
        for kind in ("antibody", "antigen"):
            sequences = pairs.sequences[kind]
            chains = [sequences.chains[i] for i in sequences.of_row.tolist()]
            sides.append(Sequences.of(kind, chains))
        scorer = Scorer(kept["predictor"], open_store(at / "store"), *sides)
        scored = scorer.score(*(side.of_row for side in sides))
        parts = kept["predictor"].parts
        predicted, variances = parts.predict_with_variance(scored.vectors, parts.models)
    labelled = kept["pairs"]
    found["pairs:row"] = labelled.table.positions[labelled.row]
    found["pairs:truth"] = labelled.pkd
    found["test:row"] = pairs.positions
    regimes = scored.regimes
    found["test:regime"] = np.array(regimes.used, dtype=str)
    found["test:far"], found["test:distance"] = regimes.is_far, regimes.distance
    found |= {f"test:variance:{name}": variance for name, variance in variances.items()}
    found["test:truth"] = held_out[label].to_numpy(float)[pairs.positions]
    found["test:predicted"] = np.stack([predicted[str(part)] for part in found["parts"]], axis=1)
    np.savez(out / f"{name}-{size}-{seed}.npz", **found)
    return name, size, seed


# ---- judge ---------------------------------------------------------------------------------------


def as_used(error_RK, group, mean):
    """Weigh as a fit does."""
    from abag.head.predictor.weigh import stack_weights

    return stack_weights(error_RK, group, mean)


def before(error_RK, group, mean):
    """Pull toward the best part, or toward the mean if that is as good within a standard error."""
    from abag.head.regimes.splits import standard_error

    square_RK = np.square(error_RK)
    best = int(square_RK.mean(axis=0).argmin())
    gain_R = square_RK[:, mean] - square_RK[:, best]
    chosen = mean if gain_R.mean() <= standard_error(gain_R, group) else best
    return solve(error_RK, group, np.eye(error_RK.shape[1])[chosen], 3)


def solve(error_RK, group, expected_K, prior):
    """Minimise the squared error plus the pull toward expected weights."""
    from abag.head.regimes.splits import effective_groups

    square = np.square(error_RK).mean(axis=0).min()
    root_KK = np.linalg.qr(error_RK, mode="r") / np.sqrt(len(error_RK))
    pull = np.sqrt(prior / effective_groups(group) * square)
    unit = 1e3 * max(pull, float(np.abs(root_KK).max()))
    k = len(expected_K)
    rows = np.vstack([root_KK, pull * np.eye(k), np.full((1, k), unit)])
    weights, _ = nnls(rows, np.concatenate([np.zeros(len(root_KK)), pull * expected_K, [unit]]))
    return weights / weights.sum()


def shares_of_best(error_RK, group, mean, draws=100):
    """Return how often each part is the best one of groups that are drawn again, (K,)."""
    rng = np.random.default_rng(0)
    n_groups = int(group.max()) + 1
    k = error_RK.shape[1]
    square_GK = np.zeros((n_groups, k))
    np.add.at(square_GK, group, np.square(error_RK))
    count_G = np.bincount(group, minlength=n_groups)
    drawn = rng.multinomial(n_groups, np.full(n_groups, 1 / n_groups), draws)
    loss = drawn @ square_GK / np.maximum(drawn @ count_G, 1)[:, None]
    return np.bincount(loss.argmin(axis=1), minlength=k) / draws


def resampled(prior):
    """Pull toward how often each part is the best one."""

    def weigh(error_RK, group, mean):
        return solve(error_RK, group, shares_of_best(error_RK, group, mean), prior)

    return weigh


def softened(prior, scale):
    """Pull toward parts by their losses, in standard errors of the difference from the best."""

    def weigh(error_RK, group, mean):
        square_RK = np.square(error_RK)
        best = int(square_RK.mean(axis=0).argmin())
        gap_RK = square_RK - square_RK[:, [best]]
        n_groups = int(group.max()) + 1
        total_GK = np.zeros((n_groups, gap_RK.shape[1]))
        np.add.at(total_GK, group, gap_RK)
        error_K = np.sqrt(np.square(total_GK - total_GK.mean(axis=0)).sum(axis=0)) / len(gap_RK)
        z_K = gap_RK.mean(axis=0) / np.maximum(error_K, 1e-12)
        z_K[best] = 0.0
        likely = np.exp(-np.square(z_K) / 2 * scale)
        return solve(error_RK, group, likely / likely.sum(), prior)

    return weigh


def equal(error_RK, group, mean):
    """Weigh all parts but the mean alike."""
    weights = np.ones(error_RK.shape[1])
    weights[mean] = 0
    return weights / weights.sum()


def one(error_RK, group, mean):
    """Take the best part alone."""
    return np.eye(error_RK.shape[1])[np.square(error_RK).mean(axis=0).argmin()]


RULES = {
    "before": before, "as used": as_used, "best out of fold": one, "equal": equal,
    **{f"resampled, {prior}": resampled(prior) for prior in (1, 3, 10, 30)},
    **{f"softened, {prior}, {scale}": softened(prior, scale) for prior in (3, 10, 30)
       for scale in (1.0, 0.5)},
}  # fmt: skip


def judge(out):
    """Print how much worse each rule is than the best part in hindsight, by size."""
    rows = []
    for path in sorted(out.glob("*.npz")):
        name, size, seed = path.stem.rsplit("-", 2)
        kept = np.load(path)
        mean = int(kept["mean"])
        for regime in np.unique(kept["test:regime"]).tolist():
            inside = kept["test:regime"] == regime
            if inside.sum() < LEAST_ROWS or f"{regime}:errors" not in kept:
                continue
            truth = kept["test:truth"][inside]
            predicted = kept["test:predicted"][inside]
            hindsight = np.sqrt(np.square(predicted - truth[:, None]).mean(axis=0))
            error_RK, group = kept[f"{regime}:errors"], kept[f"{regime}:groups"]
            for rule, weigh in RULES.items():
                weights = weigh(error_RK, group, mean)
                rmse = np.sqrt(np.square(predicted @ weights - truth).mean())
                rows.append({"table": name, "size": int(size), "seed": seed, "regime": regime,
                             "rule": rule, "rmse": rmse, "worse": rmse / hindsight.min() - 1})  # fmt: skip
    frame = pd.DataFrame(rows)
    of_used = frame[frame["rule"] == "before"].set_index(["table", "size", "seed", "regime"])
    used = of_used["rmse"].reindex(pd.MultiIndex.from_frame(frame[of_used.index.names])).to_numpy()
    frame["beside"] = frame["rmse"] / used - 1
    frame["much worse"] = frame["beside"] > 0.05
    table = 100 * frame.pivot_table(index="rule", columns="size", values="worse", sort=False)
    table["all"] = 100 * frame.groupby("rule")["worse"].mean()
    table["beside"] = 100 * frame.groupby("rule")["beside"].mean()
    table["5 % worse"] = 100 * frame.groupby("rule")["much worse"].mean()
    lines = [f"| {' | '.join(['rule', *map(str, table.columns)])} |"]
    lines += ["|---" * (len(table.columns) + 1) + "|"]
    for rule, row in table.iterrows():
        lines.append(f"| {' | '.join([rule, *(f'{value:.2f}' for value in row)])} |")
    text = "# Weights of the parts of a stack by several rules\n\n" + "\n".join(lines)
    (out / "mixing.md").write_text(text + "\n")
    print(text)
    by_table = 100 * frame.pivot_table(index="rule", columns="table", values="beside", sort=False)
    print(by_table.round(2).to_string())
    return frame


WAYS = {
    "kernels": lambda name, _: float(name != "trees"),
    "by weight": lambda _, weight: weight,
    "trees": lambda name, _: float(name == "trees"),
    "all alike": lambda _name, _weight: 1.0,
}
"""How much the variance of a part counts, by its name and weight; those of all alike if none does."""
LAW_NOISE = 0.3
"""Of measurements of planted laws."""


def sigma(out):
    """Print how well sigma and its own part follow the errors of held-out rows, by its variance."""
    from scipy.stats import spearmanr

    from abag.head.predictor.weigh import Errors, calibrate

    rows = []
    for path in sorted(out.glob("*.npz")):
        kept = np.load(path)
        if "with variance" not in kept.files:
            continue
        names = kept["with variance"].tolist()
        for regime in np.unique(kept["test:regime"]).tolist():
            new = (kept["test:regime"] == regime) & ~kept["test:far"]
            if new.sum() < LEAST_ROWS or f"{regime}:weights" not in kept:
                continue
            weights = kept[f"{regime}:weights"]
            by_part = dict(zip(kept["parts"].tolist(), weights.tolist(), strict=True))
            tested, predicted = kept[f"{regime}:parts"] @ weights, kept["test:predicted"] @ weights
            error = (kept["test:truth"] - predicted)[new]
            table, size, seed = path.stem.rsplit("-", 2)
            for way, count in WAYS.items():
                shares = np.array([count(name, by_part[name]) for name in names])
                shares = shares if shares.any() else np.ones(len(names))
                of_tested, of_new = (
                    np.average([kept[f"{at}:variance:{name}"] for name in names], 0, shares)
                    for at in (regime, "test")
                )
                exact = np.zeros(len(tested), np.int8)
                known = Errors(kept[f"{regime}:truth"] - tested, tested, of_tested,
                               kept[f"{regime}:distance"], exact, kept[f"{regime}:pair"])  # fmt: skip
                mixture = calibrate(by_part, known)
                given = predicted[new], of_new[new], kept["test:distance"][new]
                whole, own = mixture.sigma(*given), mixture.sigma_model(*given)
                true = np.square(error).mean() - LAW_NOISE**2
                law = table in ("additive", "epistatic")
                rows.append({
                    "table": table, "size": int(size), "seed": seed, "regime": regime, "way": way,
                    "trees": by_part.get("trees", 0.0), "zero": mixture.spread == 0,
                    "likelihood": np.mean(np.log(whole) + np.square(error / whole) / 2),
                    "held": np.mean(np.abs(error) < 1.645 * whole),
                    "rank": spearmanr(own, np.abs(error))[0] if np.ptp(own) else 0.0,
                    "own / true": np.sqrt(np.square(own).mean() / true) if law else np.nan,
                })  # fmt: skip
    frame = pd.DataFrame(rows)
    key = ["table", "size", "seed", "regime"]
    before = frame[frame["way"] == "kernels"].set_index(key)["likelihood"]
    frame["likelihood"] -= before.loc[pd.MultiIndex.from_frame(frame[key])].to_numpy()
    shown = ["zero", "likelihood", "held", "rank", "own / true"]
    for title, some in (("all", frame), ("trees above .3", frame[frame["trees"] > 0.3])):
        ways = some.groupby("way", sort=False)
        table = ways[shown].mean().assign(error=ways["likelihood"].sem(), regimes=ways.size())
        print(f"{title}\n{table.round(3).to_string()}")
    for what in ("likelihood", "rank"):
        print(f"{what}\n{frame.pivot_table(what, ['table', 'size'], 'way', sort=False).round(3)}")


def score(folder, out, name, size, seed):
    """Fit a draw with default options; return what held-out rows say of its sigma."""
    import abag

    training, held_out = draw(folder, name, size, seed)
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    quiet = {"say": False, "progress": False}
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        abag.embed_table(training, at / "store", **encoders, **quiet)
        abag.fit(training, at / "store", at / "run", report=False, **quiet)
        unlabelled = held_out.drop(columns="pKd")
        predicted = abag.predict(unlabelled, at / "run", store=at / "store")
    sigma = predicted["sigma"].to_numpy(float)
    error = held_out["pKd"].to_numpy(float) - predicted["pkd_predicted"].to_numpy(float)
    widest = sigma >= np.quantile(sigma, 0.9)
    squares = np.square(error[widest]).mean() / np.square(sigma[widest]).mean()
    found = {
        "table": name, "size": size, "seed": seed,
        "widest": float(np.sqrt(squares)),
        "widest held": float(np.mean(np.abs(error[widest]) < 1.645 * sigma[widest])),
        "likelihood": float(np.mean(np.log(sigma) + np.square(error / sigma) / 2)),
        "held": float(np.mean(np.abs(error) < 1.645 * sigma)),
        "largest": float(sigma.max()),
        "rmse": float(np.sqrt(np.square(error).mean())),
    }  # fmt: skip
    with (out / "score.jsonl").open("a") as file:
        file.write(json.dumps(found) + "\n")
    return name, size, seed


def screen(out, draws=40):
    """Print how many regimes two folds would spare their networks, and how many wrongly."""
    from abag.head.predictor.weigh import stack_weights

    rows = []
    for path in sorted(out.glob("*.npz")):
        kept = np.load(path)
        network = kept["parts"].tolist().index("mlp")
        mean = int(kept["mean"])
        for key in kept.files:
            regime, _, what = key.partition(":")
            if what != "fold":
                continue
            error_RK, group, fold = (
                kept[f"{regime}:{name}"] for name in ("errors", "groups", what)
            )
            first = np.isin(fold, np.unique(fold)[:2])
            names, of_row = np.unique(group[first], return_inverse=True)
            order = np.argsort(of_row, kind="stable")
            ends = np.searchsorted(of_row[order], np.arange(len(names) + 1))
            rng = np.random.default_rng(0)
            used = 0
            for _ in range(draws):
                drawn = rng.integers(0, len(names), len(names))
                at = np.concatenate([order[ends[g] : ends[g + 1]] for g in drawn.tolist()])
                weights = stack_weights(error_RK[first][at], of_row[at], mean)
                used += weights[network] > 0
            weight = stack_weights(error_RK, group, mean)[network]
            rows.append({"fit": path.stem, "weight": weight, "groups": len(names),
                         "share": used / draws})  # fmt: skip
    frame = pd.DataFrame(rows)
    by_fit = frame.groupby("fit")["weight"].max()
    print(f"{len(frame)} regimes of {len(by_fit)} fits; the network has weight in "
          f"{(frame['weight'] > 0).sum()} of {(by_fit > 0).sum()} fits")  # fmt: skip
    print("| groups | regimes spared | with weight | fits spared | with weight |")
    print("|---|---|---|---|---|")
    for least in (0, 20, 40, 80):
        spared = (frame["share"] <= 0.05) & (frame["groups"] >= least)
        whole = spared.groupby(frame["fit"]).all()
        wrong = (frame["weight"][spared] > 0).sum()
        print(f"| {least} | {spared.sum()} | {wrong} | {whole.sum()} | "
              f"{(by_fit[whole[whole].index] > 0).sum()} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["collect", "judge", "screen", "sigma", "score"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.step not in ("collect", "score"):
        {"judge": judge, "screen": screen, "sigma": sigma}[args.step](args.out)
        return
    if args.tiny:
        collect(None, args.out, "additive", 60, 0)
        judge(args.out)
        sigma(args.out)
        return
    others = sorted(path.stem for path in args.folder.glob("*.csv"))
    given = [name for name in others if f"{name}.csv" not in TABLES.values()]
    names = [*TABLES, "additive", "epistatic", *given]
    names = [name for name in names if not args.only or name in args.only]
    # the largest first, so that none of them is last
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs = [(name, size, seed) for size in sorted(args.sizes)[::-1] for seed in seeds
            for name in names]  # fmt: skip
    with ProcessPoolExecutor(args.cores, get_context("spawn"), max_tasks_per_child=1) as pool:
        work = score if args.step == "score" else collect
        done = [pool.submit(work, args.folder, args.out, *job) for job in jobs]
        for number, future in enumerate(done):
            try:
                print(number + 1, "of", len(done), *future.result(), flush=True)
            except Exception as error:  # noqa: BLE001 - the others go on
                print("failed:", *jobs[number], repr(error)[:300], flush=True)


if __name__ == "__main__":
    main()
