"""Play campaigns on measured tables: how soon does each way of choosing batches find the best?

    python benchmarks/bench_campaign.py FOLDER --out campaign.jsonl [--only her2] [--policies ...]
    python benchmarks/bench_campaign.py --tiny --out campaign.jsonl          # seconds, on a CPU

A campaign measures 48 random pairs of a library, and then 4 batches of 24 that a policy chooses;
the labels of all other pairs are hidden from it. abag takes the whole way of a user: `abag fit`,
`abag predict`, `abag rank`. Beside it are a random forest on one-hot residues and on the vectors
that abag has (as EVOLVEpro does with those of a language model), and a Gaussian process on one-hot
residues. All policies of a seed start from the same pairs. Hits are the best 1 % of the library.
FOLDER has tables as `TABLES` names them. Vectors are residue compositions, which need no download.

Writes one JSON line per batch: best label and hits found so far, how many of the batch are better
than all before, and, of abag, what was expected of its best. At the end it prints, for each policy,
the hits found with the 95 % interval over seeds, and how often the expected best was reached.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

THREADS = 2
"""Of a process; abag and the libraries beside it get as many."""
TABLES = {"her2": "alphabind_her2.csv.gz", "rbd": "rbd_escape.csv.gz"}
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
CHAINS = ("heavy", "light", "antigen")
POOL = 8
"""Batches with a least distance are chosen from so many candidates per pair."""


class Policy(NamedTuple):
    """The choice of a batch."""

    model: str
    rule: str = "mean"
    explore: float = 1.0
    distance: int = 0
    """Least number of residues by which two pairs of a batch differ; 0: any."""


POLICIES = {
    "random": Policy("random"),
    "forest one-hot": Policy("forest"),
    "forest vectors": Policy("forest vectors"),
    "gp one-hot, ucb": Policy("gp", "ucb"),
    "gp one-hot, ei": Policy("gp", "improvement"),
    "abag, mean": Policy("abag"),
    "abag, ucb 0.5": Policy("abag", "ucb", explore=0.5),
    "abag, ucb 1": Policy("abag", "ucb"),
    "abag, ei": Policy("abag", "improvement"),
    "abag, mean, 2 apart": Policy("abag", distance=2),
    "abag, mean, 3 apart": Policy("abag", distance=3),
}


# ---- libraries -----------------------------------------------------------------------------------


class Library(NamedTuple):
    """A table whose labels are looked up when a pair is ordered; P pairs."""

    name: str
    frame: pd.DataFrame
    """Columns ``heavy``, ``light``, ``antigen`` and ``pKd``."""
    store: Path

    @property
    def label(self):
        """Measured pKd, (P,)."""
        return self.frame["pKd"].to_numpy(np.float64)

    @property
    def is_hit(self):
        """Return whether each of the P pairs is of the best 1 %, shape (P,)."""
        return self.label >= np.quantile(self.label, 0.99)


def read_library(path, rows):
    """Read a table, and keep so many random pairs of it, each once."""
    frame = pd.read_csv(path).rename(columns=lambda name: name.removeprefix("antibody_"))
    if "light" not in frame:
        frame["light"] = ""
    frame = frame[[*CHAINS, "pKd"]].fillna({"light": ""})
    frame = frame.drop_duplicates([*CHAINS]).reset_index(drop=True)
    kept = np.random.default_rng(0).permutation(len(frame))[:rows]
    return frame.iloc[np.sort(kept)].reset_index(drop=True)


def aligned(chains):
    """Return residues as numbers, (P, L): chains of a usual length as they are, others with a gap.

    The gap, or the piece that is left out, is where the chain then agrees with the consensus best.
    """
    text = chains.to_numpy(str)
    lengths = np.char.str_len(text)
    usual = int(pd.Series(lengths).mode()[0])
    if usual == 0:
        return np.zeros((len(text), 0), np.int64)
    of_usual = np.array([list(letters) for letters in text[lengths == usual]])
    consensus = pd.DataFrame(of_usual).mode().iloc[0].to_numpy(str)
    fitted = {}
    for chain in np.unique(text).tolist():
        cut = len(chain) - usual
        ways = (
            chain[:at] + "-" * max(0, -cut) + chain[at + max(0, cut) :]
            for at in range(min(len(chain), usual) + 1)
        )
        fitted[chain] = max(ways, key=lambda way: int((np.array(list(way)) == consensus).sum()))
    letters = np.array([list(fitted[sequence]) for sequence in text.tolist()])
    return np.unique(letters, return_inverse=True)[1].reshape(letters.shape)


def one_hot(codes):
    """Return one column for each residue that occurs at each position that varies, (P, F)."""
    varying = codes[:, (codes != codes[0]).any(axis=0)]
    columns = []
    for codes_of_position in varying.T:
        columns += [codes_of_position == code for code in np.unique(codes_of_position)]
    return np.array(columns, np.float32).T


class Inputs(NamedTuple):
    """The part of a library that the policies read."""

    codes: np.ndarray
    """Aligned residues of all chains, (P, L)."""
    one_hot: np.ndarray
    vectors: np.ndarray
    """Of antibody and antigen side by side, (P, D)."""


def read_inputs(library):
    """Prepare the features of a library."""
    from abag.embed.store.store import open_store

    frame = library.frame
    codes = np.hstack([aligned(frame[name]) for name in CHAINS])
    store = open_store(library.store)
    antibodies = list(zip(frame["heavy"], frame["light"], strict=True))
    vectors = [store.vectors("antibody", antibodies), store.vectors("antigen", frame["antigen"])]
    return Inputs(codes, one_hot(codes), np.hstack(vectors))


# ---- policies ------------------------------------------------------------------------------------


def forest(x, label, measured, seed):
    """Fit a random forest; no sigma."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(n_estimators=100, random_state=seed, n_jobs=1)
    return model.fit(x[measured], label[measured]).predict(x), np.zeros(len(x))


def gaussian_process(x, label, measured, seed):
    """Fit a Gaussian process with one length scale and noise, by maximum likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    scale = (1e-1, 1e3)
    kernel = ConstantKernel() * RBF(length_scale=3.0, length_scale_bounds=scale) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed
    )
    return model.fit(x[measured], label[measured]).predict(x, return_std=True)


def score(policy, mean, sigma, best):
    """Return what a rule gives each pair, (P,)."""
    from abag.head.design.batches import RULES, Aim

    return RULES[policy.rule](mean, sigma, Aim(policy.explore, best))


def choose_apart(order, codes, batch, distance):
    """Choose the first pairs that differ from all chosen before; fill up if there are too few."""
    chosen = []
    for row in order[: POOL * batch]:
        if all((codes[row] != codes[other]).sum() >= distance for other in chosen):
            chosen.append(row)
        if len(chosen) == batch:
            break
    rest = [row for row in order if row not in set(chosen)]
    return np.array([*chosen, *rest[: batch - len(chosen)]])


def choose_with_abag(library, inputs, policy, so_far, batch, folder):
    """Fit, predict and rank as a user does; return the chosen rows and what rank said."""
    import abag

    folder.mkdir()
    measured = library.frame.iloc[np.sort(so_far)]
    hidden = library.frame.drop(columns="pKd").assign(row_of_library=np.arange(len(library.frame)))
    measured.to_csv(folder / "measured.csv", index=False)
    hidden.drop(index=so_far).to_csv(folder / "others.csv", index=False)
    run = folder / "run"
    scored = folder / "scored.parquet"
    abag.fit(folder / "measured.csv", library.store, run, report=False, device="cpu")
    abag.predict(folder / "others.csv", run, scored, store=library.store)
    explore = {"explore": policy.explore} if policy.rule == "ucb" else {}
    options = {"measured": folder / "measured.csv", "run": run, "rule": policy.rule, **explore}
    sizes = [batch * pool for pool in ((POOL, POOL // 2, 1) if policy.distance else (1,))]
    # fewer may be near the training data than a pool, or even a batch, needs
    ways = [(size, False) for size in sizes] + [(size, True) for size in sizes]
    for size, keep_far in ways:
        try:
            said = abag.rank(
                scored, folder / "order.csv", batch=size, keep_far=keep_far, force=True, **options
            )
        except abag.AbagError:
            continue
        break
    else:
        message = "no batch can be chosen"
        raise RuntimeError(message)
    order = pd.read_csv(folder / "order.csv")
    rows = order["row_of_library"].to_numpy()
    if not policy.distance:
        batch_columns = {name: order[name].round(4).tolist() for name in ("pkd_predicted", "sigma")}
        return rows, said | batch_columns
    from abag.head.design.batches import KnownErrors

    chosen = choose_apart(rows, inputs.codes, batch, policy.distance)
    picked = order.set_index("row_of_library").loc[chosen]
    of_batch = KnownErrors().expect(picked["pkd_predicted"].to_numpy(), picked["sigma"].to_numpy())
    return chosen, said | {
        "expected_best": float(of_batch.best_of_first[-1]),
        "best_interval": of_batch.best_interval,
    }


def choose(library, inputs, policy, measured, batch, seed, folder):
    """Choose the next batch; return its rows and what `abag rank` said, if it was asked."""
    left = np.setdiff1d(np.arange(len(library.frame)), measured)
    if policy.model == "random":
        return np.random.default_rng([seed, len(measured)]).permutation(left)[:batch], {}
    if policy.model == "abag":
        return choose_with_abag(library, inputs, policy, measured, batch, folder)
    x = inputs.vectors if policy.model == "forest vectors" else inputs.one_hot
    fit = gaussian_process if policy.model == "gp" else forest
    mean, sigma = fit(x, library.label, measured, seed)
    value = score(policy, mean, sigma, library.label[measured].max())
    return left[np.argsort(-value[left], kind="stable")][:batch], {}


def campaign(library, name, seed, start, batch, batches):
    """Run one policy from one start; return a line for each batch, the start as batch 0."""
    import warnings

    from abag.core.messages import reporting

    warnings.filterwarnings("ignore", message=".*(lbfgs|close to the specified).*")
    inputs = read_inputs(library)
    label = library.label
    is_hit = library.is_hit
    chosen = np.random.default_rng(seed).permutation(len(label))[:start]
    measured = np.array([], np.int64)
    lines = []
    said = {}
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        for number in range(batches + 1):
            before = label[measured].max() if len(measured) else np.inf
            measured = np.concatenate([measured, chosen])
            lines.append(
                {
                    "library": library.name,
                    "pairs": len(label),
                    "policy": name,
                    "seed": seed,
                    "batch": number,
                    "measured": len(measured),
                    "best": float(label[measured].max()),
                    "best_of_batch": float(label[chosen].max()),
                    "better_than_before": int((label[chosen] > before).sum()),
                    "hits": int(is_hit[measured].sum()),
                    "of_hits": int(is_hit.sum()),
                    "expected_best": said.get("expected_best"),
                    "best_interval": said.get("best_interval"),
                    "predicted": said.get("predicted"),
                    "can_rank": said.get("can_rank"),
                    "batch_predicted": said.get("pkd_predicted"),
                    "batch_sigma": said.get("sigma"),
                    "seconds": round(seconds, 2),
                }
            )
            if number == batches:
                return lines
            begun = time.perf_counter()
            chosen, said = choose(
                library, inputs, POLICIES[name], measured, batch, seed, Path(folder) / str(number)
            )
            seconds = time.perf_counter() - begun
    raise AssertionError


# ---- all of them ---------------------------------------------------------------------------------


def keep_to_cores(counter):
    """Give this process its own cores, by which abag and libraries count their threads."""
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        first = (number * THREADS) % len(cores)
        os.sched_setaffinity(0, cores[first : first + THREADS] or cores)


def interval(values):
    """Give mean and the 95 % interval of the mean over seeds, by drawing seeds anew."""
    array = np.array(values, np.float64)
    drawn = np.random.default_rng(0).integers(0, len(array), (10_000, len(array)))
    low, high = np.quantile(array[drawn].mean(axis=1), [0.025, 0.975])
    return f"{array.mean():.1f} [{low:.1f}, {high:.1f}]"


def summarise(lines):
    """Return what each policy found in the end, and how far its promises held."""
    frame = pd.DataFrame(lines)
    rows = []
    for (library, policy), campaigns in frame.groupby(["library", "policy"], sort=False):
        last = campaigns[campaigns["batch"] == campaigns["batch"].max()]
        promised = campaigns.dropna(subset="expected_best")
        row = {
            "library": library,
            "policy": policy,
            "seeds": campaigns["seed"].nunique(),
            "hits": interval(last["hits"]),
            "of": int(last["of_hits"].iloc[0]),
            "best": round(last["best"].mean(), 2),
            "seconds": round(campaigns.groupby("seed")["seconds"].sum().mean(), 1),
        }
        if len(promised):
            low, high = np.array(promised["best_interval"].tolist()).T
            best = promised["best_of_batch"]
            row |= {
                "reached": f"{(best >= promised['expected_best']).sum()} of {len(promised)}",
                "inside": f"{((low <= best) & (best <= high)).sum()} of {len(promised)}",
                "found minus expected": round((best - promised["expected_best"]).mean(), 2),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def summarise_correlations(lines, correlations=(0, 0.25, 0.5, 0.7, 0.9)):
    """Return how far the best of batches is from what is expected, by the correlation of errors.

    Of batches of abag with the highest predictions, which have predictions and sigmas in the lines.
    """
    from abag.head.design.batches import KnownErrors, SharedErrors

    ranked = [line for line in lines if line["batch_sigma"] and line["expected_best"] is not None]
    rows = []
    for correlation in correlations:
        for library in sorted({line["library"] for line in ranked}):
            library_lines = [line for line in ranked if line["library"] == library]
            best = np.array([line["best_of_batch"] for line in library_lines])
            of_batch = [
                KnownErrors(SharedErrors(correlation)).expect(
                    np.array(line["batch_predicted"]), np.array(line["batch_sigma"])
                )
                for line in library_lines
            ]
            expected = np.array([promise.best_of_first[-1] for promise in of_batch])
            low, high = np.array([promise.best_interval for promise in of_batch]).T
            rows.append(
                {
                    "correlation": correlation,
                    "library": library,
                    "batches": len(library_lines),
                    "found minus expected": round((best - expected).mean(), 2),
                    "reached": int((best >= expected).sum()),
                    "inside": int(((low <= best) & (best <= high)).sum()),
                }
            )
    return pd.DataFrame(rows)


def demo_library(folder, rows):
    """Make a library of the demo table."""
    from abag.head.demo import demo_table

    path = folder / "demo.csv"
    demo_table().to_csv(path, index=False)
    frame = pd.read_csv(path)
    label = next(name for name in frame if name.lower() == "pkd")
    frame.rename(columns={label: "pKd"}).to_csv(path, index=False)
    return read_library(path, rows)


def make_libraries(arguments, folder):
    """Read the tables, and store the vectors of all their sequences."""
    import abag
    from abag.core.messages import reporting

    frames = {}
    if arguments.tiny:
        frames["demo"] = demo_library(folder, 200)
    else:
        for name, file in TABLES.items():
            path = arguments.folder / file
            if path.exists() and name in (arguments.only or TABLES):
                frames[name] = read_library(path, arguments.rows)
    for name, frame in frames.items():
        store = folder / f"{name}-store"
        with reporting(silent=True, bars=False):
            abag.embed_table(frame, store, device="cpu", **COMPOSITION)
        yield Library(name, frame, store)


def main():
    """Run every library, policy and seed; write a line per batch and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", choices=TABLES, help="of the libraries")
    parser.add_argument("--policies", nargs="*", choices=POLICIES, default=[*POLICIES])
    parser.add_argument("--rows", type=int, default=4000, help="random pairs of each table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--start", type=int, default=48)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--processes", type=int, help="by default one per 2 cores")
    parser.add_argument("--tiny", action="store_true", help="a batch of 6 from the demo table")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.seeds = 1
        arguments.start = 48
        arguments.batch = 6
        arguments.batches = 1
        arguments.processes = 1
    elif arguments.folder is None:
        parser.error("give the FOLDER of the tables, or --tiny")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = arguments.processes or max(1, cores // THREADS)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(THREADS)
    begun = time.perf_counter()
    lines = []
    context = multiprocessing.get_context("spawn")
    counter = context.Value("i", 0)
    with tempfile.TemporaryDirectory() as folder:
        libraries = list(make_libraries(arguments, Path(folder)))
        if not libraries:
            parser.error(f"{arguments.folder} has none of {', '.join(TABLES.values())}")
        sizes = (arguments.start, arguments.batch, arguments.batches)
        # the longest first, so that no process waits long at the end
        order = sorted(arguments.policies, key=lambda name: POLICIES[name].model != "abag")
        with ProcessPoolExecutor(processes, context, keep_to_cores, (counter,)) as pool:
            tasks = [
                pool.submit(campaign, library, name, seed, *sizes)
                for seed, name, library in product(range(arguments.seeds), order, libraries)
            ]
            for task in as_completed(tasks):
                for line in task.result():
                    with arguments.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    lines.append(line)
                last = lines[-1]
                spent = time.perf_counter() - begun
                print(
                    f"{spent:.0f} s: {last['library']}, {last['policy']}, seed {last['seed']}: "
                    f"{last['hits']} of {last['of_hits']} hits, best {last['best']:.2f}",
                    file=sys.stderr,
                    flush=True,
                )
    place = {name: at for at, name in enumerate(POLICIES)}
    lines.sort(key=lambda line: (line["library"], place[line["policy"]], line["seed"]))
    print(summarise(lines).to_string(index=False, na_rep=""))
    print(summarise_correlations(lines).to_string(index=False))


if __name__ == "__main__":
    main()
