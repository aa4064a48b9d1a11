"""Measure what constant domains do to vectors and to a ridge on them.

    python benchmarks/bench_region.py [TABLE] [--encoder NAME] [--repeats R] [--out DIR]

TABLE holds variable domains in heavy and light columns; without it, the synthetic demo table is
used. Each chain is also encoded with the first constant domain of human IgG1, kappa or lambda
(UniProt P01857, P01834, P0DOY2), as chains of Fabs are. All variants share rows, splits and antigen
vectors (residue composition).
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from abag.core.errors import TableError
from abag.embed.embed import embed_table
from abag.embed.store.store import open_store
from abag.embed.tables.chains import find_domains, keys_array
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import read_pairs
from abag.head.demo import demo_table
from abag.head.evaluation.metrics import MeasuredRows, average_folds
from abag.head.evaluation.scores import TestedPairs, compare_models
from abag.head.labels.headers import PKD
from abag.head.labels.labelled_pairs import read_labelled_pairs
from abag.head.labels.options import LabelOptions, SplitOptions
from abag.head.models.pair_vectors import PairVectors, SideVectors, TrainingRows
from abag.head.models.registry import MODELS
from abag.head.predictor.parts import inner_folds
from abag.head.regimes.folds import RegimesOfTable, measure_regimes
from abag.head.regimes.splits import TEST, TRAIN, PairGroups

CH1 = (
    "ASTKGPSVFPLAPSSKSTSGGTAALGCLVKDYFPEPVTVSWNSGALTSGVHTFPAVLQSSGLYSLSSVVTVPSSSLGTQTYICNVNHKPSNTKVDK"
    "KVEPKSC"
)
KAPPA = (
    "RTVAAPSVFIFPPSDEQLKSGTASVVCLLNNFYPREAKVQWKVDNALQSGNSQESVTEQDSKDSTYSLSSTLTLSKADYEKHKVYACEVTHQGLSS"
    "PVTKSFNRGEC"
)
LAMBDA = (
    "GQPKAAPSVTLFPPSSEELQANKATLVCLISDFYPGAVTVAWKADSSPVKAGVETTTPSKQSNNKYAASSYLSLTPEQWKSHRSYSCQVTHEGSTV"
    "EKTVAPTECS"
)
SPLITS = ("random", "antibody", "antigen")
METRICS = ("spearman", "spearman_within_antigen", "rmse")


def main() -> None:
    """Compare variable domains with Fabs as input of an encoder, and write a report."""
    args = arguments()
    table = args.table or (demo_table().head(200) if args.tiny else demo_table())
    pairs = read_labelled_pairs(table, TableOptions(), LabelOptions(bad_rows="skip"))
    with tempfile.TemporaryDirectory() as folder:
        variants, antigens, seconds = encode(pairs, args.encoder, Path(folder))
    lines = [
        f"# Constant domains: {args.table.name if args.table else 'synthetic demo table'}",
        "",
        f"{date.today()}, {platform.machine()}, Python {platform.python_version()}, torch "
        f"{version('torch')}; {args.encoder} (mean) + composition, ridge, {args.repeats} x 5 folds;"
        f" {len(pairs)} pairs, {len(pairs.table.antibodies.chains)} antibodies.",
        "",
        *describe_vectors(variants, seconds),
    ]
    lines += ["", *restore(pairs.table.antibodies.chains)]
    for name in SPLITS:
        options = SplitOptions(split=name, folds=5, repeats=args.repeats)
        (measured,) = measure_regimes(RegimesOfTable(PairGroups(pairs, options, is_cached=False)))
        comparison = compare_variants(pairs, measured, variants, antigens)
        lines += ["", f"## Split {name}", "", *comparison]
    print("\n".join(lines))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "region.md").write_text("\n".join(lines) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--encoder", default="composition")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="200 rows, one repeat")
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    args.repeats = 1 if args.tiny else args.repeats
    return args


def fab(chains: tuple[str, ...]) -> tuple[str, str]:
    """Append the first constant domain to each chain that is present."""
    heavy, light = chains
    genes = [domain.gene for domain in find_domains(light)]
    return heavy and heavy + CH1, light and light + (LAMBDA if genes == ["L"] else KAPPA)


def restore(antibodies):
    """Return lines with the number of Fabs that are read as their Fv, exchanged chains put right."""
    lines = []
    for share in (0.0, 0.05, 0.4, 0.6, 1.0):
        chains = np.array([fab(pair) for pair in antibodies])
        exchanged = np.random.default_rng(0).random(len(chains)) < share
        chains[exchanged] = chains[exchanged][:, ::-1]
        frame = pd.DataFrame({"heavy": chains[:, 0], "light": chains[:, 1], "antigen": "M"})
        try:
            counts = read_pairs(frame).counts
            outcome = f"{counts['misplaced_antibodies']} counted as exchanged"
        except TableError:
            outcome = "the table is refused"
        read = read_pairs(frame, TableOptions(antibody_region="fv", chains="auto")).antibodies
        same = sum(read.chains[i] == pair for i, pair in zip(read.of_row, antibodies, strict=True))
        lines.append(
            f"- {exchanged.sum()} of {len(chains)} Fabs with heavy and light exchanged: {outcome}; with "
            f"--antibody-region fv --chains auto {same} are read as the original Fv."
        )
    return lines


def encode(pairs, encoder, folder):
    """Encode all antibodies with and without constant domains."""
    fv = pairs.table.antibodies.chains
    fabs = [fab(chains) for chains in fv]
    antigens = pairs.table.antigens.chains
    seconds = []
    for chains in (fv, fabs):
        rows = max(len(chains), len(antigens))
        frame = pd.DataFrame(
            {
                "heavy": [chains[i % len(chains)][0] for i in range(rows)],
                "light": [chains[i % len(chains)][1] for i in range(rows)],
                "antigen": ["|".join(antigens[i % len(antigens)]) for i in range(rows)],
            }
        )
        begun = time.perf_counter()
        embed_table(frame, folder, encoder, "composition", store_dtype="float32", progress=True)
        seconds.append(time.perf_counter() - begun)
    store = open_store(folder)
    read = [store.folder("antibody").read(keys_array("antibody", c)) for c in (fv, fabs)]
    vectors = [np.asarray(part, np.float32) for part in read]
    mixed = np.where(np.random.default_rng(0).random(len(fv))[:, None] < 0.5, *vectors)
    antigen_vectors = store.folder("antigen").read(keys_array("antigen", antigens))
    variants = {"Fv": vectors[0], "Fab": vectors[1], "half Fv, half Fab": mixed}
    return variants, np.asarray(antigen_vectors, np.float32), seconds


def describe_vectors(variants, seconds):
    """Return lines with the distances between vectors of an antibody, and of all antibodies."""
    fv = variants["Fv"]
    fabs = variants["Fab"]
    spread = {name: np.linalg.norm(x - x.mean(0), axis=1).mean() for name, x in variants.items()}
    apart = np.linalg.norm(fv - fabs, axis=1).mean()
    return [
        "| variant | mean distance of an antibody from the mean of all |",
        "|---|---|",
        *(f"| {name} | {value:.3f} |" for name, value in spread.items()),
        "",
        f"Mean distance between Fv and Fab of the same antibody: {apart:.3f}. Encoding took "
        f"{seconds[0]:.0f} s for Fv, {seconds[1]:.0f} s for Fab.",
    ]


def compare_variants(pairs, measured, variants, antigens):
    """Return lines with the scores of a ridge on each variant, and the differences from Fv."""
    splits = measured.splits
    predicted = {}
    for name, vectors in variants.items():
        predicted[name] = [ridge(pairs, split, vectors, antigens) for split in splits]
    lines = ["| variant | " + " | ".join(METRICS) + " |", "|---" * (len(METRICS) + 1) + "|"]
    for name, folds in predicted.items():
        scores = []
        for split, fold in zip(splits, folds, strict=True):
            rows = split.rows(TEST)
            measured_rows = (pairs.pkd[rows], pairs.antigen[rows], pairs.censored[rows])
            scores.append(MeasuredRows.of(*measured_rows).score(fold[rows]))
        means = average_folds(scores)
        cells = ["-" if means[m] is None else f"{means[m]:.3f}" for m in METRICS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("")
    for name in [*variants][1:]:
        tested = TestedPairs.of(pairs, measured)
        variant = tested.take(predicted[name])
        fv = tested.take(predicted["Fv"])
        words = measured.regime.words
        lines.append(f"- {compare_models(words, name, 'Fv', tested, variant, fv, PKD)}")
    return lines


def ridge(pairs, split, antibodies, antigens):
    """Return predictions for all pairs by ridge regression on the training pairs."""
    rows = split.rows(TRAIN)
    vectors = PairVectors(
        {
            "antibody": SideVectors(antibodies, pairs.antibody),
            "antigen": SideVectors(antigens, pairs.antigen),
        }
    )
    training = TrainingRows(pairs, vectors, rows, inner_folds(split.group[rows]))
    return MODELS["ridge"].fit(training).predict(vectors)


if __name__ == "__main__":
    main()
