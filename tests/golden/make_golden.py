"""Record what the commands of abag do, as JSON that ``tests/test_golden.py`` compares with.

    python tests/golden/make_golden.py             # list the differences from the files
    python tests/golden/make_golden.py --write     # record the files again
    python tests/golden/make_golden.py scores      # only the parts whose names begin so

After a deliberate change, run the first line, put the differences into the commit message, and run
the second one. Every command runs in a temporary folder, on the CPU, on tables that are drawn here
with fixed seeds. Each file holds the values of its parts. Of what depends on time, machine,
versions or paths only the keys and types are recorded (`shape`), never the values.
"""

import argparse
import contextlib
import difflib
import json
import math
import re
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import pandas as pd
from click.testing import CliRunner

from abag import open_store
from abag.cli import main as abag
from abag.head.demo import demo_table
from abag.head.models.config import head_names, is_used
from abag.head.models.registry import MODELS
from abag.head.predictor.parts import BASELINES

HERE = Path(__file__).parent
TOLERANCES = {
    r"^vectors": 1e-5,  # encoders and store in float32: the order of sums
    # rounding decides which of equally near antibodies is taken: two kinds of CPU differ by 0.17
    r"/nearest_antibody/": 2e-1,
    # a pair more or less inside an interval or a budget: two kinds of CPU differ by 0.035
    r"/coverage$|_budget$": 5e-2,
    # the likeliest noise of few labels: two kinds of CPU differ by 0.003
    r"/noise$": 1e-2,
    # one exchanged pair of 24 test rows is 0.01 of a correlation; slopes of few rows amplify
    r"spearman|concordance|accuracy|recall|precision|enrichment|calibration|/r2|/(low|high)$": 2e-2,
    # a float16 of a stored vector that rounds the other way is 5e-4; training amplifies that
    r"": 2e-3,
}
"""How far a number may be off, of itself or of 1 if that is more, by the first pattern that its
place matches; all else is exact. Measured with 1 and 2 threads, which agree in all digits, and with
the instructions of an older CPU, which keeps these tolerances: ATEN_CPU_CAPABILITY=default
OPENBLAS_CORETYPE=Nehalem MKL_CBWR=COMPATIBLE."""
NUMBER = r"[+-]?\d[\d.]*"
BEST = r"best baseline \([^)]*\)"  # of two that are nearly equal, rounding decides
CPU = ("--device", "cpu")
TINY = ("--antibody-encoder", "tiny-igt5", "--antigen-encoder", "tiny-esm2")
COMPOSITION = ("--antibody-encoder", "composition", "--antigen-encoder", "composition")

RESIDUES = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
EFFECT = dict(zip(RESIDUES.tolist(), np.linspace(-1, 1, 20).tolist(), strict=True))
# the framework of trastuzumab, so that the domains can be numbered
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAAS{}IHWVRQAPGKGLEWVAR{}RYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC{}"
    "WGQGTLVTVSS"
)
LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRAS{}VAWYQQKPGKAPKLLIY{}FLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYC{}"
    "FGQGTKVEIK"
)


def draw(rng, length):
    return "".join(rng.choice(RESIDUES, length))


def mutate(rng, sequence, count, among=None):
    """Exchange residues, also of several chains joined by ``|``."""
    places = [i for i in among or range(len(sequence)) if sequence[i] != "|"]
    residues = list(sequence)
    for i in rng.choice(places, count, replace=False):
        residues[i] = rng.choice(RESIDUES[RESIDUES != residues[i]])
    return "".join(residues)


def draw_antibody(rng, paired=True):
    heavy = HEAVY.format(draw(rng, 8), draw(rng, 8), draw(rng, int(rng.integers(8, 16))))
    return heavy, LIGHT.format(draw(rng, 6), draw(rng, 3), draw(rng, 9)) if paired else ""


def affinity(heavy, light, antigen):
    """Return a pKd that follows residues of CDRH3, of the light chain and of the antigen."""
    loops = sum(EFFECT[r] for r in heavy[93:-11]) + 0.5 * sum(EFFECT[r] for r in light[-19:-10])
    surface = [EFFECT[r] for r in antigen if r != "|"]
    return 8 + 0.5 * loops - 8 * float(np.mean(surface)) * (1 + 0.2 * loops)


def pairs_table():
    """Draw families of antigens with point mutants of both sides, and all that labels can be.

    There are near-duplicates, replicates, conflicting and censored labels, repeated ids, an antigen
    over 1,022 residues, antigens of two chains and antibodies without a light chain.
    """
    rng = np.random.default_rng(7)
    rows = []
    earlier = []
    for family, pairs in enumerate((60, 45, 40, 30, 25, 20, 16, 12, 10, 8, 6, 4)):
        length = 1100 if family == 9 else int(rng.integers(50, 200))
        antigen = draw(rng, length) + ("|" + draw(rng, 60) if family % 4 == 1 else "")
        antigens = [antigen, antigen[: -1 - family]]  # a near-duplicate: truncated
        antigens += [mutate(rng, antigen, int(rng.integers(1, 4))) for _ in range(pairs // 8)]
        parents = [draw_antibody(rng, paired=family % 5 != 3) for _ in range(1 + pairs // 20)]
        for i in range(pairs):
            heavy, light = parents[i % len(parents)]
            if i >= len(parents):
                heavy = mutate(rng, heavy, int(rng.integers(1, 4)), range(93, len(heavy) - 11))
            among = earlier if earlier and rng.random() < 0.1 else antigens
            rows.append((family, heavy, light, among[int(rng.integers(len(among)))]))
        earlier += antigens
    table = pd.DataFrame(rows, columns=["family", "heavy", "light", "antigen"])
    table["pKd"] = [affinity(*row[1:]) for row in rows] + rng.normal(0, 0.3, len(table))
    table["pKd"] = table["pKd"].clip(3, 13)
    table["relation"] = np.where(table["pKd"] < 6, ">", "")  # of Kd: pKd is at most the label
    table.loc[table["relation"] == ">", "pKd"] = 6.0
    again = table[table["relation"] == ""].sample(20, random_state=1)
    shifts = np.where(np.arange(20) < 5, 2.5, 0.2 * rng.normal(size=20))  # 5 pairs conflict
    table = pd.concat([table, again.assign(pKd=again["pKd"] + shifts)], ignore_index=True)
    table["pKd"] = table["pKd"].round(3)
    table["assay"] = np.array(["SPR", "BLI", "ELISA"])[np.arange(len(table)) % 3]
    table.insert(0, "id", [f"p{i % 250:03d}" for i in range(len(table))])
    table["part"] = np.array(["train", "train", "train", "valid", "test"])[table["family"] % 5]
    return table.assign(family=[f"family {n}" for n in table["family"]])


def variants_table():
    """Draw a library of variants of one antibody, whose labels are Kd in nM."""
    rng = np.random.default_rng(8)
    heavy, light = draw_antibody(rng)
    loops = [*range(25, 33), *range(50, 58), *range(96, len(heavy) - 11)]
    heavies = [heavy, *(mutate(rng, heavy, 1 + i % 5, loops) for i in range(120))]
    effects = []
    for variant in heavies:
        effects.append(0.8 * sum(EFFECT[variant[i]] for i in loops))
    pkd = 7.5 + np.array(effects)
    table = pd.DataFrame({"heavy": heavies, "light": light})
    return table.assign(kd_nM=(10 ** (9 - pkd - 0.2 * rng.normal(size=len(pkd)))).round(6))


ANTIGEN = draw(np.random.default_rng(9), 120)
VARIANTS = ("variants.csv", "--antigen", ANTIGEN, "--column", "pkd=kd_nM", "--label", "kd_nm")


class Folder:
    """A folder with the tables, in which commands run; none runs twice."""

    def __init__(self, path):
        self.path = Path(path).resolve()
        self.done = {}
        self.tables = {
            "demo": demo_table().head(200),
            "pairs": pairs_table(),
            "variants": variants_table(),
            **bad_tables(),
        }
        first = self.tables["pairs"]["family"].isin(["family 0", "family 1", "family 2"])
        self.tables["few"] = self.tables["pairs"][first]
        near = self.tables["pairs"].iloc[::25]
        far = self.tables["demo"].head(3)
        self.tables["some"] = pd.concat([near, far[["id", "heavy", "light", "antigen"]]])
        for name, table in self.tables.items():
            table.to_csv(self.path / f"{name}.csv", index=False)

    def run(self, *arguments):
        if arguments not in self.done:
            env = {
                "XDG_CACHE_HOME": str(self.path / "cache"),
                "HF_HUB_OFFLINE": "1",
                "COLUMNS": "80",
            }
            with contextlib.chdir(self.path):
                self.done[arguments] = CliRunner().invoke(abag, arguments, env=env)
        return self.done[arguments]

    def json(self, *arguments):
        done = self.run(*arguments, "--json")
        if done.exit_code:
            msg = f"{arguments}: {done.output}"
            raise RuntimeError(msg) from done.exception
        result = json.loads(done.stdout)
        result.pop("peak_gib")  # of the process that records all parts
        return result

    def embed(self, table, encoders=TINY, *options):
        """Embed a table; return the summary and the store."""
        store = f"store-{'-'.join([table, encoders[1], *options])}"
        tables = VARIANTS[:3] if table == "variants" else (f"{table}.csv",)
        return self.json("embed", *tables, "--store", store, *encoders, *CPU, *options), store

    def fit(self, table, head, *options):
        """Embed a table and fit a head for few epochs; return the summary and the run."""
        tables = VARIANTS if table == "variants" else (f"{table}.csv",)
        run = "-".join(["run", table, head, *options])
        quick = ("--epochs", "4") if is_used("epochs", head) else ()
        options = ("--head", head, *quick, *options, *CPU)
        store = self.embed(table)[1]
        return self.json("fit", *tables, "--store", store, "--run", run, *options), run

    def read(self, name):
        """Read a table that a command wrote, as columns of values, without the sequences."""
        table = pd.read_csv(self.path / name)
        return table.drop(columns=["heavy", "light", "antigen"]).to_dict("list")


def scores(summary, *names):
    """Return what a summary says of quality by regime, as numbers and text without numbers.

    Of the metrics, those of the head and its parts; `baselines` has all of them.
    """
    regimes = {}
    for regime in summary["regimes"]:
        facts = {name: regime[name] for name in (*OF_REGIME, *names) if name in regime}
        facts["sentence"] = re.sub(BEST, "best baseline", re.sub(NUMBER, "#", regime["sentence"]))
        shown = {"head", *regime["weights"]} & {*regime["metrics"]}
        facts["metrics"] = {}
        for model in shown:
            metrics = regime["metrics"][model]
            facts["metrics"][model] = {name: metrics[name] for name in OF_MODEL}
        regimes[regime["regime"]] = facts
    return {"regimes": regimes, "not_measured": summary["not_measured"]}


OF_REGIME = ("n", "groups", "rmse", "coverage", "weights", "noise")
OF_MODEL = ("rmse", "spearman", "recall_at_9")
VARIABLE_KEY = "|".join([r"[\d.]+[A-Z]?", "head", "stack", *MODELS, *BASELINES])
"""Keys that name a head, a baseline, a residue or a threshold: ``*`` in lists of keys."""


def scores_of_heads(table, heads, *arguments):
    return lambda folder: {head: scores(folder.fit(table, head, *arguments)[0]) for head in heads}


OF_VARIANTS = ("residue_kernel", "one_hot_ridge")


def splits(folder):
    fitted = folder.fit("pairs", "ridge", "--split", "random")[1]
    values = (
        "auto",
        "random",
        "antigen",
        "antibody",
        "both",
        "column=part",
        "column=family",
        f"file={fitted}/splits.parquet",
    )
    summaries = {split: folder.fit("pairs", "ridge", "--split", split)[0] for split in values}
    summaries["mutations"] = folder.fit("variants", "ridge", "--split", "mutations")[0]
    result = {}
    for split, summary in summaries.items():
        facts = {name: summary[name] for name in ("counts", "noise", "warnings")}
        result[split.partition("/")[0]] = scores(summary, "split") | facts
    return result


def baselines(folder):
    fits = (("demo", "random"), ("pairs", "antigen"), ("variants", "mutations"))
    metrics = {
        table: folder.fit(table, "ridge", "--split", split)[0]["regimes"][0]["metrics"]
        for table, split in fits
    }
    arguments = ("--split", "antigen", "--categories", "assay")
    (regime,) = folder.fit("pairs", "ridge", *arguments)[0]["regimes"]
    with_categories = {name: regime["metrics"][name] for name in ("features_ridge", "head")}
    return metrics | {"pairs with categories": with_categories}


OPTIONS = {
    "mlp": (
        "--members 3 --loss huber --select rmse", "--loss rank --lr 0.01",
        "--preset seed --dropout 0.5", "--widths 16,8 --weight-decay 1",
        "--accumulate 2 --batch-size 16",
    ),
    "ridge": (
        "--antibody-pooling heavy_mean --antigen-pooling cls --replicates keep",
        "--split-seed 3 --folds 2 --repeats 2", "--limit 100",
    ),
}  # fmt: skip
"""Options by the head that they are tried with: a ridge has no checkpoint to choose by luck.

Each option of a line changes what is recorded.
"""


def options(folder):
    result = {}
    for head, lines in OPTIONS.items():
        for line in lines:
            summary = folder.fit("few", head, *line.split(), "--split", "random")[0]
            result[line] = scores(summary)
    summary = folder.fit("pairs", "ridge", "--antigen-identity", "0.95", "--split", "antigen")[0]
    return result | {"--antigen-identity 0.95": scores(summary)}


def predictions(folder):
    fitted = {
        "stack": folder.fit("pairs", "stack", "--split", "random")[1],
        "gp": folder.fit("pairs", "gp", "--split", "random")[1],
        "mlp of 3 members": folder.fit("pairs", "mlp", "--members", "3", "--split", "random")[1],
    }
    predicted = {}
    for name, run in fitted.items():
        folder.json("predict", "some.csv", "--run", run, "--out", f"{name}.csv", *CPU)
        predicted[name] = folder.read(f"{name}.csv")
    cross = ("--cross", "some.csv", "--limit", "4")
    arguments = ("--run", fitted["stack"], "--out", "cross.csv", *CPU)
    folder.json("predict", "some.csv", *arguments, *cross)
    predicted["cross"] = folder.read("cross.csv")
    return predicted


def evaluations(folder):
    run = folder.fit("pairs", "stack", "--split", "random")[1]
    theirs = folder.tables["pairs"].drop_duplicates(["heavy", "light", "antigen"])
    theirs = theirs.assign(predicted=theirs["pKd"].round())
    theirs.to_csv(folder.path / "theirs.csv", index=False)
    summaries = {
        "own": folder.json("evaluate", "--run", run),
        "table": folder.json("evaluate", "pairs.csv", "--run", run),
        "predictions": folder.json("evaluate", "--run", run, "--predictions", "theirs.csv"),
    }
    result = {}
    for name, summary in summaries.items():
        facts = {key: summary[key] for key in ("table", "predictions") if key in summary}
        result[name] = scores(summary) | facts
    return result


def scans(folder):
    run = folder.fit("variants", "stack")[1]
    parent = folder.tables["variants"].iloc[0]
    parent_chains = ("--heavy", parent["heavy"], "--light", parent["light"], "--antigen", ANTIGEN)
    choice = ("--positions", "H107-H110,L91", "--mutate-to", "ADWY", "--pairs-of", "3")
    summary = folder.json("scan", run, *parent_chains, *choice, "--out", "scan.csv", *CPU)
    return {"summary": shape(summary), "table": folder.read("scan.csv")}


def rankings(folder):
    run = folder.fit("pairs", "mlp", "--members", "3", "--split", "random")[1]
    folder.json("predict", "pairs.csv", "--run", run, "--out", "all.csv", *CPU)
    ranked = {}
    for rule in (
        "mean",
        "ucb",
        "improvement --best 11",
        "probability --above 10",
        "ucb --explore 3 --keep-far",
    ):
        out = f"rank {rule}.csv"
        arguments = ("--measured", "some.csv", "--batch", "12", "--rule", *rule.split())
        summary = folder.json("rank", "all.csv", *arguments, "--out", out)
        ranked[rule] = {"ids": folder.read(out)["id"], "summary": summary}
    return ranked


def shares(folder):
    bundles = {}
    for table, head in (("pairs", "stack"), ("variants", "residue_kernel"), ("pairs", "gp")):
        arguments = ("--split", "random") if table == "pairs" else ()
        run = folder.fit(table, head, *arguments)[1]
        shared = folder.path / f"shared-{head}"
        summary = folder.json("share", run, "--to", shared.name)
        card = (shared / "README.md").read_text(encoding="utf-8").splitlines()
        bundles[head] = {
            "files": sorted(file.name for file in shared.iterdir()),
            "headings": [line for line in card if line.startswith("#")],
            "keys": {
                file.name: shape(json.loads(file.read_text())) for file in shared.glob("*.json")
            },
            "summary": shape(summary),
        }
    return bundles


def vectors(folder):
    table = folder.tables["pairs"].drop_duplicates("family").iloc[[0, 1, 3, 8, 9]]
    sequences = {
        "antibody": [(row.heavy, row.light) for row in table.itertuples()],
        "antigen": table["antigen"].tolist(),
    }
    recorded = {}
    for encoders, extra in ((TINY, ("--layers", "1")), (COMPOSITION, ())):
        store = folder.embed("pairs", encoders, "--store-dtype", "float32", *extra)[1]
        info = folder.json("store", "info", store)
        for encoder in info["encoders"]:
            kind = encoder["kind"]
            for pooling in encoder["poolings"]:
                x_ND = open_store(folder.path / store).vectors(
                    kind, sequences[kind], pooling=pooling
                )
                recorded[f"{encoder['encoder']} {kind} {pooling}"] = {
                    "norm": np.linalg.norm(x_ND, axis=1).tolist(),
                    "first": x_ND[:, :16].tolist(),
                }
    return recorded


def commands(group=abag, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def help_texts(folder):
    lines = [(), *commands()]
    pages = {
        " ".join((*line, flag)): folder.run(*line, flag)
        for line in lines
        for flag in ("--help", "--help-all")
    }
    return {line: done.stdout.splitlines() for line, done in pages.items() if not done.exit_code}


def keys(folder):
    """List the keys of the JSON that commands print, with their types."""
    embedded, store = folder.embed("pairs")
    fitted, run = folder.fit("pairs", "stack", "--split", "antigen", "--folds", "3")
    scored = ("predict", "some.csv", "--run", run, "--out", "keys.csv", *CPU)
    search = ("--sweep", "sweep", "--trials", "2", "--inner-folds", "2", "--epochs", "2", *CPU)
    outputs = {
        "embed": embedded,
        "fit": fitted,
        "predict": folder.json(*scored),
        "evaluate": folder.json("evaluate", "--run", folder.fit("demo", "ridge")[1]),
        "plan": folder.json("plan", "pairs.csv", *TINY),
        "sweep": folder.json("sweep", "pairs.csv", "--store", store, *search),
        "store info": folder.json("store", "info", store),
        "store verify": folder.json("store", "verify", store),
        "store merge": folder.json("store", "merge", store, "--out", "merged"),
        "store export": folder.json("store", "export", store, "--kind", "antigen", "--to", "x.npz"),
        "runs": folder.json("runs", run),
        "report": folder.json("report", run),
    }
    return {name: shape(value) for name, value in outputs.items()}


def shape(value):
    """List the nested keys of a JSON value with their types, as lines of text."""
    types = {}

    def visit(value, path):
        if isinstance(value, dict):
            for key, item in value.items():
                visit(item, f"{path}.{'*' if re.fullmatch(VARIABLE_KEY, key) else key}")
        elif isinstance(value, list):
            for item in value:
                visit(item, f"{path}[]")
        else:
            types.setdefault(path.removeprefix("."), set()).add(type(value).__name__)

    visit(value, "")
    return [f"{path}: {' or '.join(sorted(types[path]))}" for path in sorted(types)]


def bad_tables():
    """Return small tables with one thing wrong in each, by name."""
    good = pairs_table().iloc[:40, 1:5].assign(pKd=lambda table: np.linspace(5, 9, len(table)))
    first = good.index == 0

    def with_first(column, value):
        return good.assign(**{column: good[column].astype(object).mask(first, value)})

    return {
        "good": good,
        "no antigen": good.drop(columns="antigen"),
        "no label": good.drop(columns="pKd"),
        "no rows": good.head(0),
        "invalid residue": with_first("heavy", "EVQL-J*VES"),
        "empty antigen": with_first("antigen", ""),
        "no antibody": with_first("heavy", "").assign(light=""),
        "label is text": with_first("pKd", "strong"),
        "label is infinite": with_first("pKd", "inf"),
        "labels are Kd": good.assign(pKd=10.0 ** -good["pKd"]),
        "labels are equal": good.assign(pKd=7.0),
        "two heavy chains": good.assign(VH=good["heavy"]),
        "two affinity types": good.assign(affinity_type=np.where(first, "IC50", "Kd")),
        "unknown relation": good.assign(censored=np.where(first, "about", "")),
        "contradicting relation": with_first("pKd", "<5").assign(censored=np.where(first, "<", "")),
        "swapped chains": good.rename(columns={"heavy": "light", "light": "heavy"}),
        "few rows": good.head(3),
    }


REFUSALS = (
    "embed {no antigen}", "embed {no rows}", "embed {invalid residue}", "embed {empty antigen}",
    "embed {no antibody}", "embed {two heavy chains}", "embed {swapped chains}", "embed absent.csv",
    "embed good.csv --column heavy=VH", "embed good.csv --column sheep=heavy",
    "embed good.csv --limit 0",
    "fit {no label}", "fit {label is text}", "fit {label is infinite}", "fit {labels are Kd}",
    "fit {labels are equal}", "fit {two affinity types}", "fit {unknown relation}",
    "fit {contradicting relation}", "fit {few rows}", 
    "fit good.csv --head mlpp",
    "fit good.csv --epochs 0", "fit good.csv --split rondom", "fit good.csv --split column=absent",
    "fit good.csv --split file=absent.parquet", "fit good.csv --folds 1",
    "fit good.csv --folds 1000", "fit good.csv --head ridge --widths 8",
    "fit good.csv --antigen-identity 2", "fit good.csv --antibody-pooling median",
    "fit good.csv --antibody-encoder igt5",
    "fit good.csv --split mutations", "fit pairs.csv", "fit good.csv --store absent",
    "fit good.csv --lr 0.01 --run {run}", "fit",
    "predict good.csv --run absent --out new.csv", "predict good.csv --run {run} --out good.csv",
    "predict good.csv --run {run} --out new.xyz", "predict {no antigen} --run {run} --out new.csv",
    "scan {run} --parents good.csv --region cdrx --out new.csv", "scan {run} --out new.csv",
    "rank good.csv --out new.csv", "rank scored.csv --rule probability --out new.csv",
    "rank scored.csv --rule improvement --out new.csv", "rank scored.csv --batch 0 --out new.csv",
    "evaluate --run absent", "evaluate --run {run} --predictions good.csv", "runs absent",
    "share {run} --to good.csv", "share absent --to new", "store info absent",
    "store export {store} --to new.txt", "store merge absent --out new", "fly", "sweep good.csv",
    "sweep good.csv --sweep new-sweep --store {store} --inner-folds 1000",
)  # fmt: skip
"""Commands; a table's name in braces is its file. ``--store`` and ``--run`` are added."""


def refusals(folder):
    run = "run-refusing"
    store = folder.embed("good", COMPOSITION)[1]
    arguments = ("--head", "ridge", "--split", "random")
    folder.json("fit", "good.csv", "--store", store, "--run", run, *arguments)
    folder.json("predict", "good.csv", "--run", run, "--out", "scored.csv")
    fixed = {"run": run, "store": store}
    answers = {}
    for line in REFUSALS:
        words = re.findall(r"\{[^}]*\}|\S+", line)
        words = [
            fixed.get(word[1:-1], f"{word[1:-1]}.csv") if word[0] == "{" else word for word in words
        ]
        if words[0] in ("embed", "fit", "sweep") and len(words) > 1 and "--store" not in words:
            words += ["--store", store if words[0] == "fit" else "new-store"]
        if words[0] == "embed" and "--antibody-encoder" not in words:
            words += COMPOSITION
        if words[0] == "fit" and len(words) > 1 and "--run" not in words:
            words += ["--run", "new-run"]
        done = folder.run(*words)
        errors = [text for text in done.stderr.splitlines() if text.startswith("Error: ")]
        answers[line] = {"exit": done.exit_code, "error": (errors or [str(done.exception)])[0]}
    return answers


PARTS = {
    "scores/heads on pairs": scores_of_heads(
        "pairs", sorted({*head_names()} - {*OF_VARIANTS}), "--split", "random"
    ),
    "scores/heads on variants": scores_of_heads("variants", (*OF_VARIANTS, "stack", "mlp")),
    "scores/heads on folds": scores_of_heads(
        "pairs", ("ridge", "gp", "stack"), "--split", "antigen", "--folds", "3"
    ),
    "scores/options": options, "splits/splits": splits, "baselines/baselines": baselines,
    "predictions/predict": predictions, "predictions/evaluate": evaluations,
    "predictions/scan": scans, "predictions/rank": rankings, "predictions/share": shares,
    "vectors/vectors": vectors, "surface/help": help_texts, "surface/keys": keys,
    "refusals/refusals": refusals,
}  # fmt: skip
"""By the name of the file and of the part in it, what records the part."""


def clean(value, root):
    """Round floats to 6 digits, undefined ones to None, and replace the folder's path."""
    if isinstance(value, dict):  # intervals have a test beside scipy in test_head_metrics.py
        return {key: clean(item, root) for key, item in value.items() if key != "intervals"}
    if isinstance(value, list | tuple):
        return [clean(item, root) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.replace(root, "<tmp>") if isinstance(value, str) else value


def record(part, folder):
    """Run the commands of a part and return its value as it would be read from the file."""
    return json.loads(json.dumps(clean(PARTS[part](folder), str(folder.path))))


def read_golden(part):
    file, name = part.split("/")
    path = HERE / f"{file}.json"
    return json.loads(path.read_text(encoding="utf-8")).get(name) if path.exists() else None


def write_golden(part, value):
    file, name = part.split("/")
    path = HERE / f"{file}.json"
    parts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    parts = {old: parts[old] for old in parts if f"{file}/{old}" in PARTS} | {name: value}
    text = json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False)
    # numbers of a list on one line
    text = re.sub(r"\[([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    path.write_text(text + "\n", encoding="utf-8")


def differences(before, now, path):
    """List every place at which two values differ by more than the tolerance, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        changes = []
        for key in sorted({*before, *now}):
            old = before.get(key, "(absent)")
            new = now.get(key, "(absent)")
            changes += differences(old, new, f"{path}/{key}")
        return changes
    if isinstance(before, list) and isinstance(now, list):
        if before and now and isinstance(before[0], str) and isinstance(now[0], str):
            changed = [line for line in difflib.ndiff(before, now) if line[0] in "+-"]
            return [f"{path}: {line}" for line in changed]
        if len(before) == len(now):
            changes = []
            for i, (old, new) in enumerate(zip(before, now, strict=True)):
                changes += differences(old, new, f"{path}/{i}")
            return changes
    if isinstance(before, float) and isinstance(now, float):
        tolerance = next(value for at, value in TOLERANCES.items() if re.search(at, path))
        close = abs(before - now) <= tolerance * max(1, abs(before))
        return [] if close else [f"{path}: was {before}, is {now}"]
    return [] if before == now else [f"{path}: was {before!r}, is {now!r}"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="?", default="", help="how the names of the parts begin")
    parser.add_argument("--write", action="store_true", help="record the files again")
    arguments = parser.parse_args()
    changes = []
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path)
        for part in [part for part in PARTS if part.startswith(arguments.parts)]:
            now = record(part, folder)
            changes += differences(read_golden(part), now, part)
            if arguments.write:
                write_golden(part, now)
    print(*changes, f"{len(changes)} differences", sep="\n")
    sys.exit(bool(changes) and not arguments.write)


if __name__ == "__main__":
    main()
