"""Promises about selected rounds, tables that are mostly bounds, and laboratories, beside the truth.

    python benchmarks/bench_promises.py rounds|bounds|laboratories --out lines.jsonl [--seeds 4]
    python benchmarks/bench_promises.py bounds --folder FOLDER --out lines.jsonl      HER2 and RBD, too
    python benchmarks/bench_promises.py counts --fits FOLDER
    python benchmarks/bench_promises.py summary --out lines.jsonl
    python benchmarks/bench_promises.py rounds --tiny --out lines.jsonl          # seconds

All tables follow planted laws, so that the labels of pairs that abag never saw are known. `rounds`:
60 random variants are measured, then three times the 24 that abag predicts highest, by `--add`; the
Spearman correlation that a run promises is looked up among all other variants. `bounds`: labels below
a limit are bounds; predictions are compared with the labels that it hides, beside a forest that takes
bounds for values. `laboratories`: each measures its own antigens, and adds a value of its own to all
of them; one laboratory is held out, `abag evaluate` judges its rows, and ten of them are then added; what
is promised of each regime then is compared with the other rows. `counts`: errors of held-out known pairs
in units of sigma, by how many training pairs have their antibody or antigen, in the fits that
`bench_strong.py --cutoffs` has kept.
Vectors are residue compositions. Writes a JSON line per case.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from bench_batches import planted_library
from bench_binary import composition, one_hot
from bench_campaign import TABLES, read_library
from outside_truth import COMPOSITION, Z_90
from scipy.stats import norm, spearmanr
from sklearn.ensemble import RandomForestRegressor

import abag
from abag.core.messages import reporting
from abag.head.demo import demo_table

FIRST = 60
CHOSEN = 24
ROUNDS = 3
SHARES = (0.3, 0.68, 0.9)
"""Of labels that are bounds."""
COUNTS = (-1, 1, 2, 4, 8, 16, 10_000)
"""Edges of bins of training pairs."""
FEWEST_CALLED = 50
LABORATORIES = 5
SHIFT = 0.8
"""Standard deviation of what a laboratory adds, in pKd."""


def predict(frame, run, folder):
    """Return the predictions of a frame without its labels."""
    out = folder / "out.parquet"
    abag.predict(frame, run, out, store=folder / "store", force=True)
    return pd.read_parquet(out)


def correlate(predicted, measured):
    """Return Spearman's correlation."""
    return float(spearmanr(predicted, measured).statistic)


def promised(score):
    """Return the promised correlation and its interval."""
    value = score["spearman"] or {}
    return [value.get(key) for key in ("value", "low", "high")]


def rounds(seed, options):
    """Yield what runs promise after selected rounds, and what is true of all other variants."""
    for law in ("additive", "epistatic"):
        frame = planted_library(law, 400 if options else 2000)
        rng = np.random.default_rng(seed)
        measured = rng.permutation(len(frame))[:FIRST]
        with tempfile.TemporaryDirectory() as at:
            folder = Path(at)
            abag.embed_table(frame, folder / "store", **COMPOSITION)
            run = folder / "run-0"
            summary = abag.fit(frame.iloc[measured], folder / "store", run, report=False, **options)
            for number in range(1, ROUNDS + 1):
                others = np.setdiff1d(np.arange(len(frame)), measured)
                scored = predict(frame.iloc[others].drop(columns="pKd"), run, folder)
                order = np.argsort(-scored["pkd_predicted"].to_numpy(), kind="stable")
                chosen = others[order[:CHOSEN]]
                earlier = run
                run = folder / f"run-{number}"
                summary = abag.fit(
                    frame.iloc[chosen], folder / "store", run, add=str(earlier), report=False
                )
                measured = np.concatenate([measured, chosen])
                others = np.setdiff1d(np.arange(len(frame)), measured)
                scored = predict(frame.iloc[others].drop(columns="pKd"), run, folder)
                truth = frame["pKd"].to_numpy()[others]
                for score in summary["regimes"]:
                    inside = (scored["regime"] == score["regime"]).to_numpy()
                    if inside.sum() < 50:
                        continue
                    mean = scored["pkd_predicted"].to_numpy()[inside]
                    next_ones = np.argsort(-mean, kind="stable")[: 2 * CHOSEN]
                    parts = score.get("by_round") or [None, None]
                    yield {
                        "what": f"rounds, {law}",
                        "round": number,
                        "regime": score["regime"],
                        "promised": promised(score),
                        "of_random": None if parts[0] is None else promised(parts[0]),
                        "of_chosen": None if parts[1] is None else promised(parts[1]),
                        "true": correlate(mean, truth[inside]),
                        "true_of_next": correlate(mean[next_ones], truth[inside][next_ones]),
                        "sentence": score["sentence"],
                    }


def bounds(seed, options, folder=None, head=None, hides=True):
    """Yield promises of tables with bounds, and what is true of the labels that they hide."""
    tables = {"": planted_library("additive", 1500)}
    if folder is not None:
        tables |= {f", {name}": read_library(folder / TABLES[name], 4000) for name in TABLES}
    shares = SHARES[:1] if options else SHARES
    options = options if head is None else {"head": head}
    for name, frame in tables.items():
        yield from bounds_of(name, frame, seed, options, shares, hides)


def bounds_of(name, frame, seed, options, shares, hides=True):
    """Yield promises of a table whose labels below a limit are hidden, and what is true of them."""
    value = frame.pop("pKd").to_numpy()
    rng = np.random.default_rng(seed)
    for share in shares:
        kept, held_out = np.split(rng.permutation(len(frame))[:1300], [300])
        limit = float(np.quantile(value, share).round(2))
        is_bound = value < limit
        table = frame.assign(pKd=np.maximum(value, limit), censored=np.where(is_bound, ">", ""))
        sides = [role for role in ("heavy", "antigen") if frame[role].nunique() > 1]
        alike = [frame[role] for role in sides if frame[role].str.len().nunique() == 1]
        others = [composition(frame[role]) for role in sides if frame[role].str.len().nunique() > 1]
        if not hides:
            table = frame.assign(pKd=value)
        x_ND = np.hstack([*([one_hot(alike)] if alike else []), *others])
        forest = RandomForestRegressor(300, min_samples_leaf=2, random_state=0)
        of_forest = forest.fit(x_ND[kept], table["pKd"].to_numpy()[kept]).predict(x_ND[held_out])
        with tempfile.TemporaryDirectory() as at:
            folder = Path(at)
            abag.embed_table(frame, folder / "store", **COMPOSITION)
            summary = abag.fit(
                table.iloc[kept], folder / "store", folder / "run", report=False, **options
            )
            scored = predict(frame.iloc[held_out].reset_index(drop=True), folder / "run", folder)
        mean = scored["pkd_predicted"].to_numpy()
        truth = value[held_out]
        is_exact = ~is_bound[held_out]
        error = mean - truth
        sigma = scored["sigma"].to_numpy()
        inside = np.abs(error) <= Z_90 * sigma
        away = (limit - mean) / sigma  # of normal labels, those above the limit have this mean
        above = mean + sigma * np.exp(norm.logpdf(away) - norm.logsf(away))
        score = max(summary["regimes"], key=lambda regime: regime["n"])
        claim = score.get("concordance") or {}
        usual = table["pKd"].to_numpy()[kept].mean()
        for of_regime in summary["regimes"]:
            is_here = (scored["regime"] == of_regime["regime"]).to_numpy() & ~scored["far"]
            for side, is_called in {"beyond": mean < limit, "within": mean >= limit}.items():
                called = is_here & is_called
                if called.sum() < FEWEST_CALLED or not of_regime.get("limits"):
                    continue
                of_side = of_regime["limits"][0][side] or {}
                is_right = (truth[called] < limit) == (side == "beyond")
                yield {
                    "what": f"bounds{name}: predicted {side}",
                    "share": share,
                    "n": int(called.sum()),
                    "promised": [of_side.get(key) for key in ("value", "low", "high")],
                    "true": float(is_right.mean()),
                    "coverage": float(inside[called].mean()),
                }
        yield {
            "what": f"bounds{name}",
            "share": share,
            "promised": [claim.get(key) for key in ("value", "low", "high")],
            "true": concordance(mean, truth, is_exact),
            "rmse": float(np.sqrt(np.mean(error**2))),
            "rmse_of_exact": float(np.sqrt(np.mean(error[is_exact] ** 2))),
            "forest_of_exact": float(np.sqrt(np.mean((of_forest - truth)[is_exact] ** 2))),
            "mean_of_exact": float(np.sqrt(np.mean((usual - truth)[is_exact] ** 2))),
            "above_of_exact": float(np.sqrt(np.mean((above - truth)[is_exact] ** 2))),
            "bias_of_exact": float(error[is_exact].mean()),
            "coverage": float(inside.mean()),
            "coverage_of_exact": float(inside[is_exact].mean()),
            "spearman": correlate(mean, truth),
            "spearman_of_forest": correlate(of_forest, truth),
            "sentence": score["sentence"],
        }


def impute_with_residues(training):
    """Expect labels behind bounds as a fit does, but from vectors and residues of variants."""
    from abag.head.models import residue_kernel, ridge
    from abag.head.models.pair_vectors import DoesNotApply

    labels, rows = training.labels, training.rows
    bound, censored = training.pkd, labels.censored[rows]
    if not censored.any():
        return training
    _, of_kinds = ridge._blocks(training)
    blocks = [*of_kinds.values()]
    try:
        kinds = residue_kernel.residue_sides(training, "one_hot_ridge")
        sides = residue_kernel.ridge_columns(training.vectors, rows, kinds)
    except DoesNotApply:
        sides = ()
    encoded = residue_kernel.with_residues(training.vectors, sides)
    for side in (encoded.sides[columns.kind] for columns in sides):
        # both kinds of columns together have the same variance
        variances = [
            sum(float(table[np.unique(index[rows])].var(axis=0).sum()) for table, index in found)
            for found in (
                [(block.table_ND, block.index) for block in of_kinds.values()],
                [(encoded.sides[one.kind].x_ND, encoded.sides[one.kind].index) for one in sides],
            )
        ]
        stretch = np.float32(np.sqrt(variances[0] / (variances[1] or 1.0)))
        blocks.append(ridge.FeatureBlock(side.x_ND * stretch, side.index.astype(np.int64)))
    fitted = ridge.Ridge(blocks, rows, training.fold, training.device)
    pkd, sigma = labels.pkd.copy(), float(bound.std())
    for _ in range(ridge.ROUNDS):
        inner = fitted.fit(pkd).inner
        label, variance = ridge.expected_labels(bound, censored, inner, sigma)
        sigma = float(np.sqrt(np.mean(np.square(label - inner) + variance)))
        moved = np.abs(label - pkd[rows]).max()
        pkd[rows] = label
        if moved < ridge.CLOSE:
            break
    exact = labels.censored.copy()
    exact[rows] = 0
    return replace(training, labels=replace(labels, pkd=pkd, censored=exact))


def concordance(predicted, truth, is_exact):
    """Return the share of the pairs of rows with a known order that are predicted in this order.

    The order of two rows is known if the larger label is exact.
    """
    known = 0
    right = 0.0
    for row in np.flatnonzero(is_exact).tolist():
        below = truth < truth[row]
        known += int(below.sum())
        right += float((predicted[below] < predicted[row]).sum())
    return right / known if known else None


def laboratories(seed, options, sizes):
    """Yield promises about the antigens of a laboratory that was never seen."""
    frame = demo_table(seed).fillna("").drop_duplicates(["heavy", "light", "antigen"])
    rng = np.random.default_rng(seed)
    for rows in sizes:
        table = frame.iloc[rng.permutation(len(frame))].reset_index(drop=True)
        antigen = pd.factorize(table["antigen"])[0]
        laboratory = antigen % LABORATORIES
        added = rng.normal(0, SHIFT, LABORATORIES)
        table["pKd"] = (table["pKd"] + added[laboratory]).round(3)
        table["laboratory"] = [f"lab{number}" for number in laboratory]
        table = table.drop(columns="id")
        is_new = laboratory == LABORATORIES - 1
        known = table[~is_new].head(rows)
        new = table[is_new].reset_index(drop=True)
        for categories in (None, "laboratory"):
            bare = [] if categories else ["laboratory"]
            given = {} if categories is None else {"categories": [categories]}
            with tempfile.TemporaryDirectory() as at:
                folder = Path(at)
                abag.embed_table(table.drop(columns="laboratory"), folder / "store", **COMPOSITION)
                abag.fit(known.drop(columns=bare), folder / "store", folder / "run", report=False,
                         **given, **options)  # fmt: skip
                result = abag.evaluate(
                    folder / "run", table=new.drop(columns=bare), store=folder / "store"
                )
                scored = predict(new.drop(columns=["pKd", *bare]), folder / "run", folder)
                error = (scored["pkd_predicted"] - new["pKd"]).to_numpy()
                first, others = np.split(rng.permutation(len(new)), [10])
                added_to = abag.fit(
                    new.drop(columns=bare).iloc[first], folder / "store", folder / "next",
                    add=str(folder / "run"), report=False,
                )  # fmt: skip
                again = predict(
                    new.drop(columns=["pKd", *bare]).iloc[others].reset_index(drop=True),
                    folder / "next", folder,
                )  # fmt: skip
            error_after = again["pkd_predicted"].to_numpy() - new["pKd"].to_numpy()[others]
            inside = np.abs(error) <= Z_90 * scored["sigma"].to_numpy()
            after = np.abs(error_after) <= Z_90 * again["sigma"].to_numpy()
            promised_rmse = {score["regime"]: score["rmse"] for score in added_to["regimes"]}
            for regime, of_regime in again.groupby("regime"):
                at = of_regime.index
                yield {
                    "what": f"ten rows added, {'named' if categories else 'not named'}, {regime}",
                    "rows": rows,
                    "n": len(at),
                    "promised_rmse": promised_rmse.get(regime),
                    "mean_sigma": float(of_regime["sigma"].mean()),
                    "rmse": float(np.sqrt(np.mean(error_after[at] ** 2))),
                    "coverage": float(after[at].mean()),
                }
            yield {
                "what": f"laboratories, {'named' if categories else 'not named'}",
                "rows": rows,
                "shift": float(added[-1] - added[laboratory[~is_new][:rows]].mean()),
                "bias": float(error.mean()),
                "said": result["table"]["sentence"],
                "coverage": float(inside.mean()),
                "rmse": float(np.sqrt(np.mean(error**2))),
                "rmse_after": float(np.sqrt(np.mean(error_after**2))),
                "bias_after": float(error_after.mean()),
                "coverage_after": float(after.mean()),
            }


def counts(folder):
    """Yield how large errors of known pairs are, by the training pairs with a sequence of theirs."""
    several = []
    for path in sorted(folder.glob("*-ridge-*.parquet")):
        rows = pd.read_parquet(path)
        rows = rows[(~rows["is_new"].astype(bool)) & (rows["censored"] == 0)]
        all_pairs = rows.drop_duplicates("pair")
        known = rows[rows["regime"] == "known"]
        if known.empty:
            continue
        known = known.assign(table=path.stem.partition("-")[0])
        for side in ("antibody", "antigen"):
            key = f"{side}_key"
            held_out = known.groupby(["fold", key])["pair"].transform("nunique")
            known[side] = known[key].map(all_pairs[key].value_counts()) - held_out
        several.append(known)
    known = pd.concat(several)
    known = known.assign(square=np.square((known["pkd"] - known["pkd_predicted"]) / known["sigma"]))
    for side in ("antibody", "antigen"):
        bins = pd.cut(known[side], COUNTS)
        for (table, bin_), square in known.groupby(["table", bins], observed=True)["square"]:
            yield {
                "what": f"known pairs of {table}, by {side}",
                "rows": int(bin_.right),
                "n": len(square),
                "error_in_sigmas": float(np.sqrt(square.mean())),
                "coverage": float((square <= Z_90**2).mean()),
            }


WORK = {"rounds": rounds, "bounds": bounds, "laboratories": laboratories}


def show(lines):
    """Print means, and how often promised intervals hold the truth."""
    frame = pd.DataFrame(lines)
    for of_true, of_promise in (("true", "promised"), ("true", "of_random"), ("true", "of_chosen"),
                                ("true_of_next", "of_chosen")):  # fmt: skip
        if not {of_true, of_promise} <= set(frame):
            continue
        usable = [isinstance(x, list) and None not in x for x in frame[of_promise]]
        known = frame[usable].dropna(subset=[of_true])
        if known.empty:
            continue
        value, low, high = np.array(known[of_promise].tolist()).T
        truth = known[of_true].to_numpy()
        held = pd.Series((low <= truth) & (truth <= high)).groupby(known["what"].to_numpy())
        away = pd.Series(value - truth).groupby(known["what"].to_numpy())
        print(f"{of_promise} beside {of_true}:")
        print(pd.DataFrame({"held": held.mean(), "away": away.mean(), "n": held.size()}).round(3))
    by = [name for name in ("what", "round", "share", "rows") if name in frame]
    print(frame.groupby(by, dropna=False).mean(numeric_only=True).round(3).to_string())


def main():
    """Measure what is asked for; append its lines and print means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=[*WORK, "counts", "summary"])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="+", default=[120, 250], help="of laboratories")
    parser.add_argument("--folder", type=Path, help="public tables, for bounds")
    parser.add_argument("--known", action="store_true", help="hide no label behind its bound")
    parser.add_argument("--residues", action="store_true", help="expect bounds from residues, too")
    parser.add_argument("--head", help="of abag for bounds; by default its own choice")
    parser.add_argument("--fits", type=Path, help="folder of kept fits")
    parser.add_argument("--tiny", action="store_true", help="a ridge on few rows")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.work == "summary":
        show([json.loads(line) for line in arguments.out.read_text().splitlines()])
        return
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    options = {"head": "ridge"} if arguments.tiny else {}
    work = WORK.get(arguments.work)
    if arguments.work == "laboratories":
        work = partial(laboratories, sizes=arguments.rows)
    if arguments.residues:
        from abag.head import fit as fitting

        fitting.impute_censored = impute_with_residues
    if arguments.work == "bounds":
        given = {"head": arguments.head, "hides": not arguments.known}
        work = partial(bounds, folder=arguments.folder, **given)
    if arguments.work == "counts":
        show(list(counts(arguments.fits)))
        return
    lines = []
    with reporting(silent=True, bars=False):
        for seed in seeds if not arguments.tiny else [0]:
            for line in work(seed, options):
                lines.append({**line, "seed": seed})
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    show(lines)


if __name__ == "__main__":
    main()
