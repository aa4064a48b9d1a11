"""What `rank` expects of batches beside what is true: the best pair, and the number of hits.

    python benchmarks/bench_batches.py FOLDER --pools pools --out batches.jsonl [--only her2 ...]
    python benchmarks/bench_batches.py --only additive --first-draw 300 --draws 60 --starts 60 --rounds 1 --jobs 16 --pools pools --out batches.jsonl
    python benchmarks/bench_batches.py --tiny --pools pools --out batches.jsonl

Campaigns are played as by `bench_campaign.py`: random pairs are measured, abag fits and predicts the
others, the 24 with the highest predictions are measured, too, and so on. After each fit, batches of
8, 24 and 96 are expected (hits: above 90 % of the measured labels), once as before (errors with a
correlation of 0.9, normally distributed) and once as `rank` does, and looked up. Tables are those of
FOLDER, the table of `abag demo` and planted laws: mutations that add up, mutations that interact,
and labels that end at a floor. Fits are kept in the folder of pools: a second run reads them.

Writes a JSON line per batch and way. Prints, by table and by size, the share of 90 % intervals that
hold the truth, their width relative to that before (mean and median), and what was found beyond what
was expected. Then the same for errors that are drawn with a known law, without any fit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
from bench_campaign import COMPOSITION, TABLES, read_library

SIZES = (8, 24, 96)
BATCH = 24
LAWS = ((0.0, 12), (0.3, 12), (0.6, 12), (0.6, 3))
"""Shares of the variance of errors by antigen, and antigens."""
BEFORE = 0.9
"""Correlation of errors that was assumed."""
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTF"
    "GQGTKVEIK"
)
ANTIGEN = "TQVCTGTDMKLRLPASPETHLDMLRHLYQGCQVVQGNLELTYLPTNASLSFLQDIQEVQGYVLIAHNQVRQVPLQRLRIVRGTQLFEDNYALAVLDNGDPL"
FIRST_SITE, SITES = 98, 10
PLANTED = ("additive", "epistatic", "floor")
STARTS = {name: (48, 150) for name in ("her2", "rbd", "her2skewed", "rbdskewed")} | {
    "hiv": (200,),
    "skempi": (200,),
    "demo": (120,),
}
"""Random pairs that are measured first; of planted laws 60 and 200."""


# ---- libraries -----------------------------------------------------------------------------------


def planted_law(law, rng):
    """Draw a law; return a function from the residues of CDR H3, as numbers, to their label."""
    parent = [RESIDUES.index(HEAVY[FIRST_SITE + at]) for at in range(SITES)]
    sites = np.arange(SITES)
    effect = rng.normal(0, 0.5, (SITES, 20))
    effect -= effect[sites, parent][:, None]
    effect -= 0.15 * (np.arange(20) != np.array(parent)[:, None])
    together = rng.normal(0, 0.35, (SITES, 20, SITES, 20))

    def label_of(residues):
        label = 7 + effect[sites, residues].sum()
        if law == "epistatic":
            changed = [site for site in sites if residues[site] != parent[site]]
            for first in changed:
                for second in (site for site in changed if site < first):
                    label += together[first, residues[first], second, residues[second]]
        return max(label, 6.0) if law == "floor" else label

    return label_of


def planted_library(law, number=3000, seed=5):
    """Draw variants of trastuzumab's CDR H3 with labels by a law, and noise of 0.3."""
    rng = np.random.default_rng(seed)
    label_of = planted_law(law, rng)
    parent = [RESIDUES.index(HEAVY[FIRST_SITE + at]) for at in range(SITES)]
    drawn = set()
    while len(drawn) < number:
        residues = list(parent)
        for site in rng.choice(np.arange(SITES), rng.integers(1, 6), replace=False):
            residues[site] = int(rng.integers(20))
        drawn.add(tuple(residues))
    rows = []
    for residues in sorted(drawn):
        loop = "".join(RESIDUES[residue] for residue in residues)
        heavy = HEAVY[:FIRST_SITE] + loop + HEAVY[FIRST_SITE + SITES :]
        rows.append((heavy, LIGHT, ANTIGEN, label_of(list(residues))))
    frame = pd.DataFrame(rows, columns=["heavy", "light", "antigen", "pKd"])
    frame["pKd"] = (frame["pKd"] + rng.normal(0, 0.3, number)).round(3)
    return frame


def demo_library():
    """Return the pairs of the table of the demo, each once."""
    from abag.head.demo import demo_table

    frame = demo_table(1).fillna("")[["heavy", "light", "antigen", "pKd"]]
    return frame.drop_duplicates(["heavy", "light", "antigen"]).reset_index(drop=True)


def hiv_library(path):
    """Read 3,000 random pairs of the HIV table, whose antibodies are one sequence."""
    frame = pd.read_csv(path).rename(columns={"antibody": "heavy", "pIC50": "pKd"})
    frame = frame.assign(light="").drop_duplicates(["heavy", "antigen"])
    kept = np.random.default_rng(0).permutation(len(frame))[:3000]
    return frame.iloc[kept][["heavy", "light", "antigen", "pKd"]].reset_index(drop=True)


def skempi_library(path):
    """Read the pairs of SKEMPI with exact labels."""
    frame = pd.read_csv(path)
    frame = frame[frame["censored"].isna()]
    frame = frame.rename(columns=lambda name: name.removeprefix("antibody_")).fillna("")
    frame = frame[["heavy", "light", "antigen", "pKd"]]
    return frame.drop_duplicates(["heavy", "light", "antigen"]).reset_index(drop=True)


def skewed(frame):
    """Return the table with exponential labels, whose order is the same and whose range is 4 to 11."""
    label = frame["pKd"].to_numpy()
    grown = np.exp((label - np.median(label)) / label.std())
    return frame.assign(pKd=(4 + 7 * (grown - grown.min()) / np.ptp(grown)).round(4))


def make_libraries(folder, draws):
    """Return functions that make the libraries, by name; planted ones are drawn several times."""
    made = {}
    for law in PLANTED:
        for draw in draws:
            name = f"{law}.{draw}" if draw else law
            made[name] = partial(planted_library, law, seed=5 + draw)
    made["demo"] = demo_library
    if folder is None:
        return made
    for name, file in TABLES.items():
        made[name] = partial(read_library, folder / file, 4000)
        made[f"{name}skewed"] = lambda file=file: skewed(read_library(folder / file, 4000))
    made["hiv"] = partial(hiv_library, folder / "hiv_ic50_seen.csv.gz")
    made["skempi"] = partial(skempi_library, folder / "skempi_measurements.csv")
    return made


# ---- campaigns -----------------------------------------------------------------------------------


def play(name, frame, store, pools, seed, start, rounds, options):
    """Play a campaign; keep what each fit left, and what it predicted beside the labels."""
    import abag

    frame = frame.assign(row_of_library=np.arange(len(frame)))
    measured = np.random.default_rng(seed).permutation(len(frame))[:start]
    for number in range(rounds):
        pool = pools / f"{name}-{start}-{seed}-{number}"
        if not (pool / "scored.parquet").exists():
            with tempfile.TemporaryDirectory() as folder:
                at = Path(folder)
                others = frame.drop(index=frame.index[measured])
                frame.iloc[np.sort(measured)].drop(columns="row_of_library").to_csv(
                    at / "measured.csv", index=False
                )
                others.drop(columns="pKd").to_csv(at / "others.csv", index=False)
                abag.fit(
                    at / "measured.csv", store, at / "run", report=False, device="cpu", **options
                )
                abag.predict(at / "others.csv", at / "run", at / "scored.parquet", store=store)
                pool.mkdir(parents=True, exist_ok=True)
                for kept in ("predictions.parquet", "pairs.parquet"):
                    shutil.copy(at / "run" / kept, pool / kept)
                scored = pd.read_parquet(at / "scored.parquet")
                scored.assign(truth=others["pKd"].to_numpy()).to_parquet(pool / "scored.parquet")
        batch = choose(pd.read_parquet(pool / "scored.parquet"), BATCH)
        chosen = batch["row_of_library" if "row_of_library" in batch else "row_"].to_numpy()
        measured = np.concatenate([measured, chosen])


def choose(scored, size):
    """Return the pairs with the highest predictions, those outside of training if they must."""
    near = scored[~scored["far"]]
    return (near if len(near) >= size else scored).nlargest(size, "pkd_predicted")


def expectations(pool, batch, above):
    """Return what was expected of a batch before, and what `rank` expects."""
    from abag.head.design.batches import KnownErrors, SharedErrors, known_errors
    from abag.head.labels.headers import PKD

    mean, sigma = (batch[name].to_numpy() for name in ("pkd_predicted", "sigma"))
    known = known_errors(pool, {*batch["regime"]}, PKD)
    antibody = pd.factorize(batch["heavy"] + "|" + batch["light"])[0]
    antigen = pd.factorize(batch["antigen"])[0]
    before = KnownErrors(SharedErrors(BEFORE))
    yield "before", before.expect(mean, sigma, above=above)
    yield "now", known.expect(mean, sigma, antibody, antigen, above)


def judge(pool):
    """Return a line per batch of a pool and way to expect something of it."""
    scored = pd.read_parquet(pool / "scored.parquet")
    pairs = pd.read_parquet(pool / "pairs.parquet")
    above = float(pairs.loc[pairs["censored"] == 0, "pkd"].quantile(0.9))
    lines = []
    for size in SIZES:
        batch = choose(scored, size)
        if len(batch) < size:
            continue
        best = float(batch["truth"].max())
        hits = int((batch["truth"] > above).sum())
        random = [scored["truth"].sample(size, random_state=draw).max() for draw in range(200)]
        for way, expected in expectations(pool, batch, above):
            low, high = expected.best_interval
            few, many = expected.above_interval
            lines.append({
                "library": pool.name.split("-")[0].split(".")[0],
                "start": int(pool.name.split("-")[1]),
                "pool": pool.name,
                "size": size,
                "way": way,
                "best": best,
                "expected_best": float(expected.best_of_first[-1]),
                "best_interval": [low, high],
                "hits": hits,
                "expected_hits": expected.above,
                "hits_interval": [few, many],
                "best_of_random": float(np.mean(random)),
            })  # fmt: skip
    return lines


def planted_errors(rng, pairs, share, antigens):
    """Draw errors of one model with a share of the variance by antigen, and the antigens."""
    antigen = rng.integers(antigens, size=pairs)
    of_antigen = rng.standard_normal(antigens)[antigen]
    own = rng.standard_normal(pairs)
    return np.sqrt(share) * of_antigen + np.sqrt(1 - share) * own, antigen


def judge_law(share, antigens, draws, size=96):
    """Return lines for batches whose errors follow a known law, told by 10 folds of 40 pairs."""
    from abag.head.design.batches import KnownErrors, SharedErrors, estimate_shares

    rng = np.random.default_rng(0)
    lines = []
    for draw in range(draws):
        folds = [planted_errors(rng, 40, share, antigens) for _ in range(10)]
        error = np.concatenate([of_fold for of_fold, _ in folds])
        antigen_of_error = np.concatenate([antigen for _, antigen in folds])
        number = np.arange(len(error))
        shares = estimate_shares(error, number // 40, antigen_of_error, number)
        mean = 7 + 0.3 * np.sort(rng.standard_normal(size))[::-1]
        of_batch, antigen = planted_errors(rng, size, share, antigens)
        truth = mean + of_batch
        ways = {
            "before": KnownErrors(SharedErrors(BEFORE)).expect(mean, np.ones(size), above=8.0),
            "now": KnownErrors(shares).expect(mean, np.ones(size), np.arange(size), antigen, 8.0),
        }
        for way, expected in ways.items():
            lines.append({
                "library": f"share {share:g} by antigen, {antigens}",
                "pool": str(draw),
                "size": size,
                "way": way,
                "best": float(truth.max()),
                "expected_best": float(expected.best_of_first[-1]),
                "best_interval": list(expected.best_interval),
                "hits": int((truth > 8).sum()),
                "expected_hits": expected.above,
                "hits_interval": list(expected.above_interval),
                "best_of_random": float("nan"),
            })  # fmt: skip
    return lines


# ---- all of them ---------------------------------------------------------------------------------


def summarise(lines, by):
    """Return coverage, relative widths and errors of what was expected."""
    frame = pd.DataFrame(lines)
    for what in ("best", "hits"):
        low, high = np.array(frame[f"{what}_interval"].tolist()).T
        frame[f"{what} inside"] = (low <= frame[what]) & (frame[what] <= high)
        frame[f"{what} width"] = high - low
        frame[f"{what} beyond"] = frame[what] - frame[f"expected_{what}"]
        key = ["library", "pool", "size"]
        before = frame[frame["way"] == "before"].set_index(key)[f"{what} width"]
        width = before.loc[pd.MultiIndex.from_frame(frame[key])].to_numpy()
        least = 1.0 if what == "hits" else 1e-9
        frame[f"{what} width"] = frame[f"{what} width"] / np.maximum(width, least)
    frame["below random"] = frame["expected_best"] < frame["best_of_random"]
    shown = [name for name in frame if name.split()[-1] in ("inside", "width", "beyond", "random")]
    groups = frame.groupby([*by, "way"], sort=False)
    table = groups[shown].mean()
    for what in ("best", "hits"):
        table[f"{what} width, median"] = groups[f"{what} width"].median()
    table.insert(0, "batches", groups.size())
    return table.round(2)


def play_library(name, arguments, draws):
    """Embed a library, and play its campaigns."""
    import abag
    from abag.core.messages import reporting

    frame = make_libraries(arguments.folder, draws)[name]()
    store = arguments.pools / f"store-{name}"
    options = {} if arguments.head is None else {"head": arguments.head}
    starts = arguments.starts or STARTS.get(name, (60, 200))
    with reporting(silent=True, bars=False):
        abag.embed_table(frame, store, device="cpu", **COMPOSITION)
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for start in starts:
                play(name, frame, store, arguments.pools, seed, start, arguments.rounds, options)


def main():
    """Play what is missing, write a line per batch and way, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--pools", type=Path, required=True, help="folder of fits, kept and read")
    parser.add_argument("--only", nargs="*", help="of the libraries")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draws", type=int, default=1, help="of each planted library")
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--starts", type=int, nargs="*", help="random pairs measured first")
    parser.add_argument("--head", help="of abag; by default its own choice")
    parser.add_argument("--tiny", action="store_true", help="two fits to the demo table")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.only, arguments.seeds, arguments.starts = ["demo"], 1, [60]

    draws = range(arguments.first_draw, arguments.first_draw + arguments.draws)
    names = [name for name in make_libraries(arguments.folder, draws)
             if arguments.only is None or name.split(".")[0] in arguments.only]  # fmt: skip
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as processes:
        for task in [processes.submit(play_library, name, arguments, draws) for name in names]:
            task.result()
        pools = sorted(path.parent for path in arguments.pools.glob("*/scored.parquet"))
        lines = [line for task in processes.map(judge, pools) for line in task]
        of_laws = partial(judge_law, draws=5 if arguments.tiny else 200)
        drawn = [line for task in processes.map(of_laws, *zip(*LAWS, strict=True)) for line in task]
    with arguments.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*lines, *drawn])
    pd.set_option("display.width", 250, "display.max_columns", 30)
    for by in ([], ["size"], ["library"], ["library", "start"]):
        print(summarise(lines, by).to_string(), end="\n\n")
    print(summarise(drawn, ["library"]).drop(columns="below random").to_string())


if __name__ == "__main__":
    main()
