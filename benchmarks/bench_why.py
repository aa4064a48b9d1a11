"""Measure the effect of five common mistakes on one table, with one closed-form ridge.

    python benchmarks/bench_why.py [TABLE] [--antibody-encoder NAME] [--antigen-encoder NAME]
        [--repeats R] [--out DIR]

Without TABLE, it uses the synthetic demo table. Only ridges are fitted, so all differences come from the
data and the evaluation. See docs/why-numbers-differ.md.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from abag.embed.embed import embed_table
from abag.embed.encoders.identity import find_checkpoint
from abag.embed.store.store import open_store
from abag.embed.tables.chains import keys_array
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import read_pairs
from abag.head.demo import demo_table
from abag.head.evaluation import metrics
from abag.head.evaluation.metrics import pearson, ranks
from abag.head.labels.labelled_pairs import read_labelled_pairs
from abag.head.labels.options import LabelOptions, SplitOptions
from abag.head.models.pair_vectors import PairVectors, Standardizer, TrainingRows
from abag.head.models.ridge import FeatureBlock, Ridge
from abag.head.predictor.parts import BaselineInputs, inner_folds
from abag.head.regimes.folds import make_splits
from abag.head.regimes.splits import TEST, TRAIN, PairGroups

FOLDS = 5
FLOOR_SHARE = 0.366
"""Share of the labels at one value in a published collection of 159,735 pairs."""
SPLITS = ("random", "antibody", "antigen", "both")


def main() -> None:
    """Measure each mistake, and write a report."""
    args = arguments()
    synthetic = demo_table().head(200) if args.tiny else demo_table()
    pairs = read_labelled_pairs(args.table or synthetic, TableOptions(), LabelOptions())
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(pairs, args, Path(folder))
        lines = [*header(args, bench), *row_splits(bench), *pooled_folds(bench), *floors(bench)]
        lines += [*unspaced_tokens(bench), *glued_chains(bench)]
    print("\n".join(lines))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "why.md").write_text("\n".join(lines) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--antibody-encoder", default="tiny-igt5")
    parser.add_argument("--antigen-encoder", default="tiny-esm2")
    parser.add_argument("--repeats", type=int, default=4, help="of five folds")
    parser.add_argument(
        "--tiny", action="store_true", help="200 rows of the demo's table, one repeat"
    )
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    args.repeats = 1 if args.tiny else args.repeats
    return args


class Bench:
    """The pairs, their vectors, and ridges on them."""

    def __init__(self, pairs, args, folder):
        self.pairs = pairs
        self.args = args
        self.folder = folder
        self.chains = pairs.table.antibodies.chains
        self.antibody_ND = self.antibodies(args.antibody_encoder, self.chains)
        encoders = "composition", args.antigen_encoder
        embed_table(pairs.table.frame, folder / "antigens", *encoders)
        antigens = open_store(folder / "antigens").folder("antigen")
        self.antigen_ND = antigens.read(pairs.table.antigens.keys)

    def antibodies(self, encoder, chains):
        """Vectors of antibodies, shape (N, D)."""
        frame = pd.DataFrame(chains, columns=["heavy", "light"])
        store = self.folder / encoder
        embed_table(frame, store, encoder, "composition", antigen="MKTAYIAKQR")
        return open_store(store).folder("antibody").read(keys_array("antibody", chains))

    def splits(self, name):
        """Make the splits by name."""
        options = SplitOptions(split=name, folds=FOLDS, repeats=self.args.repeats)
        return make_splits(PairGroups(self.pairs, options))

    def ridge(self, split, *, antibody_ND=None, pkd=None):
        """Predict every pair, shape (P,), from the split's exact training rows."""
        pairs = self.pairs
        pkd = self.pairs.pkd if pkd is None else pkd
        rows = np.flatnonzero((split.part == TRAIN) & (pairs.censored == 0))
        tables = self.antibody_ND if antibody_ND is None else antibody_ND, self.antigen_ND
        blocks = [
            FeatureBlock(Standardizer.of(table, index[rows]).apply(table), index)
            for table, index in zip(tables, (pairs.antibody, pairs.antigen), strict=True)
        ]
        fit = Ridge(blocks, rows, inner_folds(split.group[rows])).fit(pkd)
        joined = np.hstack([block.table_ND[block.index] for block in blocks])
        return fit.intercept + joined @ np.concatenate(fit.weights)

    def mean(self, split, group=None):
        """Predict the training mean, or that of each pair's group."""
        rows = np.flatnonzero((split.part == TRAIN) & (self.pairs.censored == 0))
        group = np.zeros(len(self.pairs), np.int64) if group is None else group
        training = TrainingRows(self.pairs, PairVectors({}), rows, rows)
        return BaselineInputs(self.pairs, training, split, None).mean_of(group)

    def scores(self, splits, predict, pkd=None, keep=None):
        """Average each test metric over folds; only the rows in ``keep``, if given."""
        pairs = self.pairs
        pkd = self.pairs.pkd if pkd is None else pkd
        folds = []
        for split in splits:
            rows = split.rows(TEST)
            rows = rows if keep is None else rows[keep[rows]]
            measured = metrics.MeasuredRows.of(pkd[rows], pairs.antigen[rows], pairs.censored[rows])
            folds.append(measured.score(predict(split)[rows]))
        return metrics.average_folds(folds)


def header(args, bench):
    """Return the first lines of the report."""
    title = args.table.name if args.table else "the demo's synthetic table"
    command = f"python benchmarks/bench_why.py {args.table.name if args.table else ''}".rstrip()
    for name in ("antibody_encoder", "antigen_encoder"):
        command += f" --{name.replace('_', '-')} {getattr(args, name)}"
    pairs = bench.pairs
    return [
        f"# What five mistakes do to the numbers, on {title}",
        "",
        f"`{command} --repeats {args.repeats}`; Python {platform.python_version()}, torch "
        f"{torch.__version__}, transformers {version('transformers')}; {date.today()}.",
        "",
        f"{len(pairs)} pairs of {len(bench.antibody_ND)} antibodies ({args.antibody_encoder}) and "
        f"{len(bench.antigen_ND)} antigens ({args.antigen_encoder}). The model is one closed-form "
        f"ridge on both vectors; {FOLDS} folds x {args.repeats}, scored within each fold and averaged "
        "unless said otherwise.",
    ]


def row_splits(bench):
    """Score one ridge on one table under four splits."""
    lines = [
        *section("Row splits"),
        "| held out | test rows whose antibody / antigen has a near-duplicate in training | Spearman | "
        "within antigen | R2 | antigen mean: Spearman |",
        "|---|---|---|---|---|---|",
    ]
    for name in SPLITS:
        splits = bench.splits(name)
        ours = bench.scores(splits, bench.ridge)
        mean = bench.scores(splits, lambda split: bench.mean(split, bench.pairs.antigen))
        shares = " / ".join(
            f"{near_duplicates(splits, kind):.0%}" for kind in ("antibody", "antigen")
        )
        cells = [ours["spearman"], ours["spearman_within_antigen"], ours["r2"], mean["spearman"]]
        lines.append(f"| {name} | {shares} | {' | '.join(map(shown, cells))} |")
    return lines


def near_duplicates(splits, kind):
    """Return the share of test rows with a near-duplicate in training, at the identity of the split."""
    level = {"antibody": "0.9", "antigen": "0.4"}[kind]
    leaks = sum(s.description["leaks"][kind][level] for s in splits)
    return leaks / sum(len(s.rows(TEST)) for s in splits)


def pooled_folds(bench):
    """Compare correlations averaged over folds with one correlation of pooled folds."""
    splits = bench.splits("antigen")
    lines = [
        *section("Pooled folds"),
        "| prediction | Spearman, averaged over folds | pooled over folds |",
        "|---|---|---|",
    ]
    for title, predict in (("each fold's training mean", bench.mean), ("ridge", bench.ridge)):
        pooled = []
        for repeat in range(bench.args.repeats):
            predicted = np.zeros(len(bench.pairs))
            for split in splits[FOLDS * repeat : FOLDS * (repeat + 1)]:
                predicted[split.rows(TEST)] = predict(split)[split.rows(TEST)]
            exact = bench.pairs.censored == 0
            pooled.append(pearson(ranks(bench.pairs.pkd[exact]), ranks(predicted[exact])))
        within = bench.scores(splits, predict)["spearman"]
        lines.append(f"| {title} | {shown(within)} | {shown(np.mean(pooled))} |")
    return lines


def floors(bench):
    """Measure the effect of a floor in the labels, as in collections of several assays."""
    pairs = bench.pairs
    splits = bench.splits("random")
    order = np.argsort([pairs.pkd[pairs.antigen == a].mean() for a in range(len(bench.antigen_ND))])
    covered = np.cumsum(np.bincount(pairs.antigen)[order]) / len(pairs)
    low = np.isin(pairs.antigen, order[: 1 + np.searchsorted(covered, FLOOR_SHARE)])
    value = np.quantile(pairs.pkd, FLOOR_SHARE)
    variants = {
        "as measured": (pairs.pkd, np.zeros(len(pairs), bool)),
        f"the lowest {FLOOR_SHARE:.1%} of the labels clipped": (
            np.maximum(pairs.pkd, value),
            pairs.pkd <= value,
        ),
        f"whole antigens, {low.mean():.1%} of the rows, at one value": (
            np.where(low, pairs.pkd.min(), pairs.pkd),
            low,
        ),
    }
    lines = [
        *section("Floors"),
        "| labels | Spearman, all test rows | rows above the floor alone | RMSE, all | above alone |",
        "|---|---|---|---|---|",
    ]
    for title, (pkd, floored) in variants.items():

        def predict(split, pkd=pkd):
            return bench.ridge(split, pkd=pkd)

        whole = bench.scores(splits, predict, pkd)
        above = bench.scores(splits, predict, pkd, ~floored)
        cells = [whole["spearman"], above["spearman"], whole["rmse"], above["rmse"]]
        lines.append(f"| {title} | {' | '.join(map(shown, cells))} |")
    return lines


def unspaced_tokens(bench):
    """Measure the effect of giving residues to the T5 tokenizer without spaces."""
    token_lists, unspaced_ND = read_unspaced(["".join(pair) for pair in bench.chains])
    spaced_ND = bench.antibodies("tiny-igt5", bench.chains)
    longest = max(map(len, token_lists))
    return [
        *section("Unspaced tokens"),
        f"{len(token_lists)} antibodies given to a T5 tokenizer without spaces between residues become "
        f"at most {longest} tokens (the first: {token_lists[0]}). Only "
        f"{len(set(map(tuple, token_lists)))} of these lists differ, so no more than that many different "
        "vectors remain with any weights.",
        "",
        *vector_head("antibody vectors of tiny-igt5 (random weights)"),
        vector_row(bench, "spaced", spaced_ND),
        vector_row(bench, "unspaced", unspaced_ND),
    ]


def vector_head(title):
    """Return the head of a table of vectors."""
    return [
        f"| {title} | distinct | Spearman, random folds | within antigen | RMSE |",
        "|---|---|---|---|---|",
    ]


def vector_row(bench, title, antibody_ND):
    """Scores of the ridge with other antibody vectors."""
    scores = bench.scores(
        bench.splits("random"), lambda split: bench.ridge(split, antibody_ND=antibody_ND)
    )
    cells = [scores[name] for name in ("spearman", "spearman_within_antigen", "rmse")]
    distinct = len(np.unique(antibody_ND.round(4), axis=0))
    return f"| {title} | {distinct} | {' | '.join(map(shown, cells))} |"


def read_unspaced(texts):
    """Return token ids of unspaced residues, and the mean over all their positions."""
    from transformers import AutoTokenizer, T5EncoderModel

    folder = find_checkpoint("tiny-igt5").folder
    tokenizer = AutoTokenizer.from_pretrained(folder, do_lower_case=False)
    model = T5EncoderModel.from_pretrained(folder).eval()
    spaced = [tokenizer(text)["input_ids"] for text in texts]
    distinct = {tuple(ids): None for ids in spaced}
    with torch.inference_mode():
        for ids in distinct:
            out = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            distinct[ids] = out.mean(0).numpy()
    return spaced, np.stack([distinct[tuple(ids)] for ids in spaced])


def glued_chains(bench):
    """Measure the effect of joining heavy and light without a separator."""
    paired = [i for i, pair in enumerate(bench.chains) if all(pair)]
    glued = [("".join(pair), "") for pair in bench.chains]
    name = bench.args.antibody_encoder
    glued_ND = bench.antibodies(name, glued)
    away = np.linalg.norm(glued_ND - bench.antibody_ND, axis=1)[paired]
    away = np.median(away / np.linalg.norm(bench.antibody_ND[paired], axis=1))
    return [
        *section("Glued chains"),
        f"{len(paired)} antibodies with two chains were joined into one string. abag splits "
        f"{recovered(bench, paired)} of them exactly, which gives the same vectors. Read as one "
        f"chain, a vector of {name} moves by {away:.1%} (median); one mutation moves it by "
        f"{one_mutation(bench, paired):.1%}.",
        "",
        *vector_head(f"antibody vectors of {name}"),
        vector_row(bench, "heavy and light separate", bench.antibody_ND),
        vector_row(bench, "joined, read as one chain", glued_ND),
    ]


def recovered(bench, paired):
    """Count the joined strings that are split exactly as before."""
    frame = pd.DataFrame({"antibody": ["".join(bench.chains[i]) for i in paired]})
    options = TableOptions(antigen="MKTAYIAKQR", bad_rows="skip")
    trained = set(read_pairs(frame, options).antibodies.chains)
    return sum(bench.chains[i] in trained for i in paired)


def one_mutation(bench, paired):
    """Median relative distance caused by one mutation of the heavy chain."""
    rng = np.random.default_rng(0)
    mutants = []
    for i in paired:
        heavy, light = bench.chains[i]
        at = rng.integers(len(heavy))
        other = rng.choice(sorted(set("ACDEFGHIKLMNPQRSTVWY") - {heavy[at]}))
        mutants.append((heavy[:at] + other + heavy[at + 1 :], light))
    moved_ND = bench.antibodies(bench.args.antibody_encoder, mutants) - bench.antibody_ND[paired]
    size = np.linalg.norm(bench.antibody_ND[paired], axis=1)
    return np.median(np.linalg.norm(moved_ND, axis=1) / size)


def section(title):
    """Return the lines of a heading."""
    return ["", f"## {title}", ""]


def shown(value):
    """Return a cell of a table; ``-`` for None."""
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
