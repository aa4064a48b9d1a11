"""Compare frozen, adapted and leaking vectors on cold-antigen folds of a real table.

    python benchmarks/bench_adapt_skempi.py --table pairs.csv --out DIR [--encoder antiberty]
        [--folds 5 --repeats 4 --first 0 --last 20] [--epochs 4] [--device auto] [--tiny]

For each fold, an adapter of the antibody encoder is trained on the training pairs of that fold; half
of them (in whole antigen clusters) are left for the head. Heads are then trained on different vectors
and scored on the same test pairs:

    frozen         vectors of the frozen encoder, head trained on all training pairs
    frozen, half   the same, head trained on the pairs left by the adapter
    adapted        adapted vectors, head trained on the pairs left by the adapter (abag's default)
    memorised      adapted vectors, head trained on all training pairs, including the adapter's
    leak           adapter trained on a random 90 % of all pairs, including test pairs

The antigen encoder is `composition`. The report is rewritten after each fold.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch

import abag
from abag.embed.tables.options import TableOptions
from abag.head.demo import demo_table
from abag.head.labels.labelled_pairs import read_labelled_pairs
from abag.head.labels.options import LabelOptions, SplitOptions
from abag.head.regimes import splits as regimes
from abag.head.regimes.folds import make_splits
from abag.head.regimes.splits import PairGroups, split_frame

METRICS = ("spearman_within_antigen", "spearman", "rmse")
MODELS = ("head", "ridge")
ARMS = ("frozen", "frozen, half", "adapted", "memorised", "leak")


def quiet(_text):
    """Say nothing."""


def one_fold(pairs, table, split, work, args):
    """Return {arm: {model: {metric: value}}} of one fold."""
    store = args.work / "store"
    encoders = {"antibody_encoder": args.encoder, "antigen_encoder": "composition"}
    split_frame(pairs, [split]).assign(fold=0).to_parquet(work / "split.parquet")
    (random,) = make_splits(PairGroups(pairs, SplitOptions(split="random", seed=split.fold)))
    random.part[random.part == 2] = 0  # 90 % to learn from, 10 % to stop by
    random.part[np.flatnonzero(random.part == 1)[0]] = 2  # a split needs a test pair
    split_frame(pairs, [random]).assign(fold=0).to_parquet(work / "leak.parquet")
    common = {
        "sides": "antibody",
        "lr": args.lr,
        "batch_size": args.batch_size,
        "device": args.device,
        "layers": args.layers,
        "say": quiet,
        **encoders,
    }
    taught = {}
    names = {}
    for name, source, share, epochs in (
        ("own", "split", 0.5, args.epochs),
        ("leak", "leak", 0.0, args.leak_epochs or args.epochs),
    ):
        start = time.perf_counter()
        taught[name] = abag.adapt_encoders(
            table,
            work / name,
            split_from=work / f"{source}.parquet",
            head_share=share,
            epochs=epochs,
            **common,
        )
        taught[name]["wall_s"] = time.perf_counter() - start
        done = abag.embed_table(
            table, store, device=args.device, antibody_adapter=work / name, **encoders
        )
        names[name] = done["antibodies"]["fingerprint"]
    rows = pd.read_parquet(work / "own" / "splits.parquet")
    half = rows.assign(split=rows["split"].where(rows["adapter"] != "train", "unused"))
    half.drop(columns="adapter").to_parquet(work / "half.parquet")
    frozen = abag.embed_table(table, store, device=args.device, **encoders)["antibodies"][
        "fingerprint"
    ]
    plans = {
        "frozen": (frozen, "split", {}),
        "frozen, half": (frozen, "half", {}),
        "adapted": (names["own"], "split", {}),
        "memorised": (names["own"], "split", {"adapter_rows": "train"}),
        "leak": (names["leak"], "split", {"adapter_rows": "train"}),
    }
    scores = {}
    for arm, (fingerprint, file, options) in plans.items():
        leaks = nullcontext()
        if arm == "leak":  # which abag refuses
            leaks = mock.patch.object(
                regimes, "_leaks", lambda fold, *_: np.zeros(len(fold.part), bool)
            )
        with leaks:
            summary = abag.fit(
                table,
                store,
                work / f"run-{arm.replace(chr(44), '').replace(chr(32), chr(45))}",
                split=f"file={work / file}.parquet",
                antibody_encoder=fingerprint,
                antigen_encoder="composition",
                report=False,
                say=quiet,
                device=args.device,
                head="mlp",
                **options,
            )
        (regime,) = summary["regimes"]
        scores[arm] = {model: regime["metrics"][model] for model in MODELS}
    return scores, taught


def scores_of(folds, arm, model, metric):
    """Return a score of each fold: NaN where it has none."""
    return np.array([fold["scores"][arm][model][metric] for fold in folds], dtype=float)


def report(args, folds, head):
    """Write the table of means, and of paired differences from `frozen`."""
    lines = [*head, f"{len(folds)} folds.", "", "| vectors | model | " + " | ".join(METRICS) + " |"]
    lines.append("|---|---|" + "---|" * len(METRICS))
    for arm in ARMS:
        for model in MODELS:
            cells = []
            for metric in METRICS:
                ours = scores_of(folds, arm, model, metric)
                base = scores_of(folds, "frozen", model, metric)
                difference = ours - base
                finite = np.isfinite(difference)
                error = (
                    difference[finite].std(ddof=1) / finite.sum() ** 0.5 if finite.sum() > 1 else 0
                )
                cells.append(
                    f"{np.nanmean(ours) if finite.any() else float('nan'):.3f} "
                    f"({difference[finite].mean() if finite.any() else 0:+.3f} ± {error:.3f})"
                )
            lines.append(f"| {arm} | {model} | " + " | ".join(cells) + " |")
    lines += ["", "In brackets: difference from frozen, mean and standard error over folds.", ""]
    for name in ("own", "leak"):
        runs = [f["taught"][name] for f in folds]
        lines.append(
            f"- adapter `{name}`: {np.mean([r['pairs']['adapter'] for r in runs]):.0f} pairs, "
            f"{np.mean([r['steps'] for r in runs]):.0f} steps, best epoch "
            f"{np.mean([r['best_epoch'] for r in runs]):.1f} of {runs[0]['epochs']}, loss "
            f"{np.mean([r['first_loss'] for r in runs]):.3f} to "
            f"{np.mean([r['last_loss'] for r in runs]):.3f}, validation "
            f"{np.mean([r['best_validation_loss'] for r in runs]):.3f}; "
            f"{np.mean([r['wall_s'] for r in runs]):.0f} s a fold"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "adapt_skempi.md").write_text("\n".join(lines) + "\n")
    (args.out / "adapt_skempi.json").write_text(json.dumps(folds))


def main(argv=None):
    """Adapt, embed and fit for each repeat, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="keep stores and adapters here, to resume")
    parser.add_argument("--encoder", default="antiberty")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--leak-epochs", type=int, help="of the adapter `leak`: it has more pairs")
    parser.add_argument(
        "--layers",
        type=lambda t: tuple(map(int, t.split(","))),
        default=(),
        help="layers that change, such as 7,8",
    )
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        args.work = args.work or Path(folder)
        args.work.mkdir(parents=True, exist_ok=True)
        if args.tiny:
            args.table = args.work / "pairs.csv"
            args.encoder = "tiny-igt5"
            args.epochs = 1
            args.repeats = 1
            args.last = 1
            demo_table().head(120).to_csv(args.table, index=False)
        pairs = read_labelled_pairs(args.table, TableOptions(), LabelOptions())
        options = SplitOptions(split="antigen", folds=args.folds, repeats=args.repeats)
        splits = make_splits(PairGroups(pairs, options))[args.first : args.last]
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "2-core AMD EPYC"
        head = [
            f"# Adapted antibody vectors on cold antigens, {device}, {date.today()}",
            "",
            f"torch {torch.__version__}, {platform.python_version()}; {args.encoder}; {len(pairs)} "
            f"pairs; `python benchmarks/bench_adapt_skempi.py --encoder {args.encoder} --folds "
            f"{args.folds} --repeats {args.repeats} --first {args.first} --last {args.last} "
            f"--epochs {args.epochs} --leak-epochs {args.leak_epochs or args.epochs} --layers "
            f"{','.join(map(str, args.layers)) or 'all'} --lr {args.lr} --batch-size {args.batch_size}`",
            "",
        ]
        folds = []
        for split in splits:
            work = args.work / f"fold-{split.fold}"
            work.mkdir(exist_ok=True)
            scores, taught = one_fold(pairs, args.table, split, work, args)
            folds.append({"fold": split.fold, "scores": scores, "taught": taught})
            report(args, folds, head)
            print((args.out / "adapt_skempi.md").read_text(), flush=True)


if __name__ == "__main__":
    main()
