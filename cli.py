"""The command ``abag``: parse, call, print. Nothing is computed here."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from abag import AbagError

if TYPE_CHECKING:
    from abag.embed.pipeline.kind_job import KindSummary


class _OwnPath(click.Path):
    """A path that is no checkpoint or array file of the old notebooks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own signature
        """Refuse what only the old notebooks could read, by its first bytes."""
        from abag.embed.weights.legacy_files import refuse_legacy_file

        path = Path(str(super().convert(value, param, ctx)))
        refuse_legacy_file(path)
        return path


_PATH = _OwnPath()


class _Stopped(BaseException):
    """A signal asked us to stop; not an Exception, so that nothing but the top catches it."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Main(click.Group):
    """Turns refusals into one line and exit 1, signals into 128 + their number."""

    def invoke(self, ctx: click.Context) -> object:
        with _signals_raise():
            try:
                return super().invoke(ctx)
            except AbagError as error:
                click.echo(f"Error: {error}", err=True)
                sys.exit(1)
            except OSError as error:
                if error.filename is None:  # a closed pipe is click's to deal with
                    raise
                click.echo(
                    f"Error: {error.filename}: cannot be used ({error.strerror}); a readable and "
                    "writable path was expected. Mend it or give another, and run the same "
                    "command again.",
                    err=True,
                )
                sys.exit(1)
            except _Stopped as stopped:
                name = signal.Signals(stopped.number).name
                click.echo(
                    f"Stopped by {name}: what was committed is safe; "
                    "run the same command again to go on.",
                    err=True,
                )
                sys.exit(128 + stopped.number)


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let the first signal unwind the stack; a second one acts as it always does."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, _frame: object) -> NoReturn:
        for other, handler in before.items():
            signal.signal(other, handler)
        raise _Stopped(number)

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_versions(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    """Print a version a line, without importing any of the packages."""
    if not asked or ctx.resilient_parsing:
        return
    from abag.embed.doctor.versions import versions

    for name, version in versions().items():
        click.echo(f"{name} {version}")
    ctx.exit()


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_versions,
    help="Versions of what decides results and speed.",
)  # fmt: skip
def main() -> None:
    """Encode antibodies and antigens once; train affinity heads in seconds.

    Stage one, `abag embed`, turns each unique sequence of a table into vectors in a store.
    Stage two, `abag fit`, trains a head on them. Try both: `abag demo`.
    """


def _roles(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Turn repeated ROLE=NAME into a mapping."""
    for text in given:
        if "=" not in text:
            msg = f"{text!r} is not ROLE=NAME, such as heavy=VH"
            raise click.BadParameter(msg)
    return dict(text.split("=", 1) for text in given)


def _devices(text: str) -> int | str:
    """Read ``--devices``."""
    if text != "all" and not text.lstrip("-").isdigit():
        msg = f"{text!r} is neither a number nor all"
        raise click.BadParameter(msg)
    return text if text == "all" else int(text)


_TABLE = click.argument("table", type=_PATH)
_STORE = click.option("--store", type=_PATH, required=True, help="Folder of vectors.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
_TABLE_OPTIONS = [
    click.option(
        "--column", "columns", multiple=True, callback=_roles, metavar="ROLE=NAME",
        help="Name a column that was not recognised: heavy, light, antibody, antigen, pkd ...",
    ),
    click.option("--antigen", metavar="SEQ", help="One antigen for a table without that column."),
    click.option("--limit", type=click.IntRange(min=1), help="Take the first N rows only."),
    click.option(
        "--bad-rows", type=click.Choice(["error", "skip"]), default="error", show_default=True,
        help="What to do with a row that cannot be read.",
    ),
]  # fmt: skip


def _with(options: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Apply a list of options in the order in which they are written."""

    def apply(command: Any) -> Any:  # noqa: ANN401 - a click decorator
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def _listed(_ctx: click.Context, _param: click.Parameter, given: str | None) -> tuple[str, ...]:
    """Turn A,B,C into a tuple."""
    return tuple(part.strip() for part in given.split(",") if part.strip()) if given else ()


def _numbers(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[int, ...]:
    """Turn 24,28 into a tuple of numbers."""
    try:
        return tuple(map(int, _listed(ctx, param, given)))
    except ValueError as error:
        msg = f"{given!r} is no list of layers, such as 24,28,33"
        raise click.BadParameter(msg) from error


_FIT_OPTIONS = [
    click.option("--antibody-encoder", metavar="NAME",
                 help="Whose vectors to take.  [default: the only one stored]"),
    click.option("--antigen-encoder", metavar="NAME",
                 help="Whose vectors to take.  [default: the only one stored]"),
    click.option("--antibody-pooling", metavar="NAME",
                 help="mean, heavy_mean, light_mean, cls, mean@LAYER."),
    click.option("--antigen-pooling", metavar="NAME", help="mean, cls or mean@LAYER."),
    click.option("--label", metavar="UNIT", help="pkd, kd_m, kd_nm, log10_kd_nm or dg_kcal."),
    click.option("--replicates", metavar="RULE", help="median, mean, first, keep or error."),
    click.option("--floor", metavar="RULE", help="keep, censor or drop the value many rows share."),
    click.option("--affinity-type", metavar="NAME",
                 help="Keep the rows of one affinity type, where a table has several."),
    click.option("--split", metavar="HOW",
                 help="random, antigen, antibody, both, mutations, column=NAME or file=PATH."),
    click.option("--adapter-rows", metavar="RULE",
                 help="Training pairs that taught an adapter: leave-out or train."),
    click.option("--allow-adapter-leak", is_flag=True, default=None,
                 help="Go on where held-out pairs taught an adapter."),
    click.option("--folds", type=int, help="Cross-validate over K folds."),
    click.option("--repeats", type=int, help="Draw the folds R times."),
    click.option("--preset", metavar="NAME", help="small, medium, large or seed."),
    click.option("--head", metavar="NAME", help="mlp or lowrank."),
    click.option("--epochs", type=int, help="Most passes over the training pairs."),
    click.option("--batch-size", type=int, help="Pairs a batch."),
    click.option("--accumulate", type=int, help="Batches an optimiser step."),
    click.option("--lr", type=float, help="Highest learning rate."),
    click.option("--scale-lr", is_flag=True, default=None,
                 help="Scale the rate with the effective batch."),
    click.option("--dropout", type=float, help="Share of hidden units left out at a step."),
    click.option("--weight-decay", type=float, help="AdamW's, on the head's weights."),
    click.option("--loss", metavar="NAME", help="mse, huber or rank."),
    click.option("--select", metavar="METRIC", help="Validation metric of the best checkpoint."),
    click.option("--patience", type=int, help="Validations without progress before stopping."),
    click.option("--members", type=int, metavar="K",
                 help="Heads trained in one step; their mean predicts, their spread tells sigma."),
    click.option("--seed", type=int, help="Of split, initial weights, dropout and bags."),
    click.option("--split-seed", type=int, help="Of the split alone.  [default: --seed]"),
    click.option("--save-every", type=int, metavar="N", help="Steps between checkpoints."),
    click.option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N."),
    click.option("--precision", metavar="NAME",
                 help="fp32 (TF32 on a GPU) or bf16; auto: bf16 for several heads on a GPU."),
    click.option("--no-compile", is_flag=True, help="Run the training step eagerly."),
    click.option("--deterministic", is_flag=True, default=None,
                 help="The same bits every time, also on a GPU."),
]  # fmt: skip


@main.command()
@_TABLE
@_STORE
@click.option("--antibody-encoder", default="igt5", show_default=True, metavar="NAME",
              help="Alias, hub name or checkpoint folder.")  # fmt: skip
@click.option("--antigen-encoder", default="esm2-650m", show_default=True, metavar="NAME",
              help="Alias, hub name or checkpoint folder.")  # fmt: skip
@_with(_TABLE_OPTIONS)
@click.option("--long-antigens", "long_antigens", default="window", show_default=True,
              type=click.Choice(["window", "truncate", "error"]),
              help="Chains over 1,022 residues: overlapping windows, cut, or refused.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--precision", default="auto", show_default=True,
              type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
              help="auto: bf16, on GPUs without it fp16, on a CPU fp32.")  # fmt: skip
@click.option("--strict-precision", is_flag=True,
              help="Refuse to add to a store begun in another precision.")  # fmt: skip
@click.option("--antibody-backend", default="packed", show_default=True,
              type=click.Choice(["packed", "reference"]),
              help="Our packed encoders, or transformers' own modules.")  # fmt: skip
@click.option("--antigen-backend", default="packed", show_default=True,
              type=click.Choice(["packed", "reference", "faesm"]),
              help="The same, or FAESM's modules for ESM-2.")  # fmt: skip
@click.option("--antibody-adapter", type=_PATH, metavar="ADAPTER",
              help="Folder of abag adapt, merged into the encoder.")  # fmt: skip
@click.option("--antigen-adapter", type=_PATH, metavar="ADAPTER",
              help="The same for the antigen encoder.")  # fmt: skip
@click.option("--layers", callback=_numbers, metavar="NUMBERS",
              help="Poolings also of these layers, such as 24,28: abag fit "
              "--antigen-pooling mean@24.  [default: the store's]")  # fmt: skip
@click.option("--attention", default="auto", show_default=True,
              type=click.Choice(["auto", "triton", "flash-attn", "varlen", "sdpa"]),
              help="Attention kernel of the packed encoders.")  # fmt: skip
@click.option("--batch-tokens", type=click.IntRange(min=1), metavar="N",
              help="Most tokens in a batch.  [default: from the device]")  # fmt: skip
@click.option("--commit-seconds", type=click.FloatRange(min=0), default=30.0, show_default=True,
              help="Most seconds of work at risk.")  # fmt: skip
@click.option("--store-dtype", default="float16", show_default=True,
              type=click.Choice(["float16", "float32"]),
              help="Type of the stored vectors.")  # fmt: skip
@click.option("--devices", type=_devices, metavar="all|N",
              help="Start one process for each GPU, or N.  [default: this one]")  # fmt: skip
@click.option("--ray", is_flag=False, flag_value="", metavar="[ADDRESS]",
              help="Run on a Ray cluster: the one at hand, or at ADDRESS.")  # fmt: skip
@_JSON
def embed(table: Path, store: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Encode every sequence of TABLE that the store does not hold yet.

    TABLE is a CSV, TSV or Parquet file, or a folder of Parquet files, of any size. Stop it at any
    time and run it again: it goes on where it was. Under torchrun or srun each rank encodes its
    share.

    \b
    Example:
      abag embed pairs.csv --store store
    """
    from abag.embed.pipeline.ranks import rank_here
    from abag.embed.pipeline.run import embed_table

    options["layers"] = options["layers"] or None
    summary = embed_table(table, store, progress=True, **options)
    if rank_here().number:
        return  # the first rank alone prints
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo(_embedded_line("antibodies", summary["antibodies"]))
        click.echo(_embedded_line("antigens", summary["antigens"]))


def _embedded_line(plural: str, one: KindSummary) -> str:
    rate = f" in {one['seconds']:.1f} s" if one["encoded"] else ""
    return (
        f"{plural}: {one['unique']:,} unique, {one['reused']:,} reused, "
        f"{one['encoded']:,} encoded with {one['encoder']}{rate}"
    )


@main.command(short_help="Train a head on stored vectors; report it beside baselines.")
@_TABLE
@_STORE
@click.option("--run", type=_PATH, required=True, help="Folder of the run.")
@_with(_TABLE_OPTIONS)
@_with(_FIT_OPTIONS)
@click.option("-v", "--verbose", is_flag=True, help="Say the score of every validation.")
@_JSON
def fit(table: Path, store: Path, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Train a head on the stored vectors of TABLE, and report it beside baselines.

    Run it again to go on where it was stopped.

    \b
    Example:
      abag fit pairs.csv --store store --run runs/first
    """
    from abag.head.fit import fit as fit_head

    given = {name: value for name, value in options.items() if value is not None}
    if given.pop("no_compile"):
        given["compile"] = "off"
    summary = fit_head(table, store, run, progress=True, **given)
    click.echo(json.dumps(summary) if as_json else _score_table(summary))


@main.command(short_help="Score a finished run again, or on another table.")
@click.argument("table", type=_PATH, required=False)
@click.option("--run", type=_PATH, required=True, help="Folder of a finished run.")
@click.option("--store", type=_PATH, help="Vectors of TABLE.  [default: the run's store]")
@click.option("--predictions", type=_PATH, metavar="FILE",
              help="The run's pairs with anyone's predicted pKd.")  # fmt: skip
@click.option("--affinity-type", metavar="NAME",
              help="Rows of TABLE to score.  [default: the run's]")  # fmt: skip
@_with(_TABLE_OPTIONS[:2])
@_JSON
def evaluate(run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Score a finished run on its own test split, or on TABLE, or beside other predictions.

    Nothing is trained. The labels of TABLE are read as the run read its own.

    \b
    Example:
      abag evaluate --run runs/first --predictions theirs.csv
    """
    from abag.head.runs.evaluate import evaluate as evaluate_run

    summary = evaluate_run(run, **options)
    click.echo(json.dumps(summary) if as_json else _score_table(summary))


_ADAPT_OPTIONS = [
    click.option("--sides", type=click.Choice(["antibody", "antigen", "both"]), default="both",
                 show_default=True, help="Encoders to adapt."),
    click.option("--antibody-encoder", default="igt5", show_default=True, metavar="NAME",
                 help="Alias, hub name or checkpoint folder."),
    click.option("--antigen-encoder", default="esm2-650m", show_default=True, metavar="NAME",
                 help="Alias, hub name or checkpoint folder."),
    click.option("--rank", type=int, default=8, show_default=True, help="Rank r of the change."),
    click.option("--alpha", type=float, default=16.0, show_default=True,
                 help="The change is alpha / r times B A."),
    click.option("--dropout", type=float, default=0.1, show_default=True,
                 help="Share of the change's inputs left out at a step."),
    click.option("--targets", callback=_listed, metavar="NAMES",
                 help="Projections that change.  [default: q,v of T5; query,value of ESM-2]"),
    click.option("--layers", callback=_numbers, metavar="NUMBERS",
                 help="Layers that change, the first being 1.  [default: all]"),
    click.option("--head-share", type=float, default=0.5, show_default=True,
                 help="Share of the training pairs left to abag fit."),
    click.option("--label", default="pkd", show_default=True, metavar="UNIT",
                 help="pkd, kd_m, kd_nm, log10_kd_nm or dg_kcal."),
    click.option("--replicates", default="median", show_default=True, metavar="RULE",
                 help="median, mean, first, keep or error."),
    click.option("--floor", default="keep", show_default=True, metavar="RULE",
                 help="keep, censor or drop the value many rows share."),
    click.option("--affinity-type", metavar="NAME", help="Keep the rows of one affinity type."),
    click.option("--epochs", type=int, default=10, show_default=True,
                 help="Most passes over the adapter's training pairs."),
    click.option("--batch-size", type=int, default=16, show_default=True,
                 help="Pairs a batch."),
    click.option("--accumulate", type=int, default=1, show_default=True,
                 help="Batches an optimiser step."),
    click.option("--lr", type=float, default=3e-4, show_default=True,
                 help="Highest learning rate of the encoders' change."),
    click.option("--head-lr", type=float, default=1e-3, show_default=True,
                 help="The same for the regression head on top."),
    click.option("--patience", type=int, default=3, show_default=True,
                 help="Epochs without a better validation loss before stopping; 0: never."),
    click.option("--gradient-checkpointing", is_flag=True,
                 help="Compute layers twice to save memory."),
    click.option("--seed", type=int, default=0, show_default=True,
                 help="Of shares, weights and order."),
    click.option("--save-every", type=int, default=100, show_default=True, metavar="N",
                 help="Steps between checkpoints."),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--precision", default="auto", show_default=True,
                 type=click.Choice(["auto", "fp32", "bf16"]),
                 help="auto: bf16 on GPUs that have it, else fp32."),
]  # fmt: skip


@main.command(short_help="Adapt encoders to a split's training pairs by LoRA.")
@_TABLE
@click.option("--split-from", type=_PATH, required=True, metavar="RUN|FILE",
              help="A run, or a file like its splits.parquet.")  # fmt: skip
@click.option("--fold", type=int, help="Which of its folds, the first being 0.")
@click.option("--out", type=_PATH, required=True, help="Folder of the adapter.")
@_with(_TABLE_OPTIONS)
@_with(_ADAPT_OPTIONS)
@_JSON
def adapt(table: Path, out: Path, split_from: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Adapt encoders to the training pairs of a split by LoRA; then embed with them once.

    Run it again to go on where it was stopped.

    \b
    Example:
      abag adapt pairs.csv --split-from runs/first --out adapters/first
      abag embed pairs.csv --store store --antibody-adapter adapters/first \\
        --antigen-adapter adapters/first
      abag fit pairs.csv --store store --run runs/adapted --antibody-encoder igt5-first \\
        --antigen-encoder esm2-650m-first --split file=adapters/first/splits.parquet
    """
    from abag.adapt.train import adapt_encoders

    summary = adapt_encoders(table, out, split_from=split_from, progress=True, **options)
    click.echo(json.dumps(summary) if as_json else _adapted_lines(summary))


def _adapted_lines(summary: dict[str, Any]) -> str:
    lines = [
        f"{kind}: {side['encoder']}, {side['trainable_parameters']:,} trainable parameters, "
        f"adapter {side['digest'][:8]}"
        for kind, side in summary["sides"].items()
    ]
    best = summary["best_validation_loss"]
    lines.append(
        f"best of {summary['epochs']} epochs: {summary['best_epoch']}, validation loss {best:.4f}; "
        f"{summary['pairs']['adapter']} pairs taught it, {summary['pairs']['head']} are the head's"
    )
    return "\n".join(lines)


@main.command(short_help="Search for the head that predicts best on inner folds.")
@_TABLE
@_STORE
@click.option("--sweep", "folder", type=_PATH, required=True, help="Folder of the sweep.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N",
              help="Trials to score in all.  [default: 50; with --final 0]")  # fmt: skip
@click.option("--inner-folds", "folds", type=click.IntRange(min=2), default=3, show_default=True,
              help="Folds of the pairs outside the test part that each is scored on.")  # fmt: skip
@click.option("--final", is_flag=True,
              help="Refit the winner and score the test part, once.")  # fmt: skip
@click.option("--members", type=click.IntRange(min=1), default=8, show_default=True, metavar="K",
              help="Heads of that refit.")  # fmt: skip
@_with(_TABLE_OPTIONS)
@_with([
    click.option("--antibody-encoder", metavar="NAME",
                 help="Whose vectors to take.  [default: the only one stored]"),
    click.option("--antigen-encoder", metavar="NAME",
                 help="Whose vectors to take.  [default: the only one stored]"),
    click.option("--label", metavar="UNIT", help="pkd, kd_m, kd_nm, log10_kd_nm or dg_kcal."),
    click.option("--affinity-type", metavar="NAME",
                 help="Keep the rows of one affinity type, where a table has several."),
    click.option("--split", metavar="HOW", help="What is locked away; as in fit, one fold."),
    click.option("--select", metavar="METRIC", help="Metric that a trial is judged by."),
    click.option("--epochs", type=int, help="Epochs of a trial."),
    click.option("--batch-size", type=int, help="Pairs a batch."),
    click.option("--seed", type=int, help="Of split, trials and initial weights."),
    click.option("--split-seed", type=int, help="Of the split alone.  [default: --seed]"),
    click.option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N."),
])  # fmt: skip
@_JSON
def sweep(table: Path, store: Path, folder: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Search for the head that predicts best on inner folds of TABLE; needs the extra sweep.

    Run it again to go on, or beside itself to share the work. The test part stays locked away
    until --final.

    \b
    Example:
      abag sweep pairs.csv --store store --sweep sweeps/first
    """
    from abag.head.search.sweep import sweep as search

    given = {name: value for name, value in options.items() if value is not None}
    summary = search(table, store, folder, progress=True, **given)
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(_trial_table(summary))
    if "final" in summary:
        click.echo("\n" + _score_table(summary["final"]))


def _trial_table(summary: dict[str, Any]) -> str:
    """Lay the best trials out, a line each, and what mattered."""
    if not summary["best_trials"]:
        return "no trial is complete yet"
    names = list(summary["best_trials"][0]["params"])
    rows = [["trial", summary["select"], *names]]
    for one in summary["best_trials"]:
        values = [one["value"], *(one["params"][name] for name in names)]
        cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in values]
        rows.append([str(one["trial"]), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    mattered = ", ".join(f"{name} {share:.0%}" for name, share in summary["importance"].items())
    return "\n".join(lines + ([f"importance: {mattered}"] if mattered else []))


def _score_table(summary: dict[str, Any]) -> str:
    """Lay the head's and the others' test metrics out side by side; a further table below."""
    rows = {"head": summary["metrics"]["test"]}
    if "predictions" in summary:
        rows[summary["predictions"]["source"]] = summary["predictions"]["test"]
    rows |= {name: s["test"] for name, s in summary["baselines"].items() if "test" in s}
    text = _score_lines("test rows", rows)
    if "table" in summary:
        parts = ("table", "table_new_antibodies", "table_new_antigens")
        found = {name.replace("table", "head", 1): summary["metrics"][name] for name in parts}
        found |= {name: parts.get("table") for name, parts in summary["baselines"].items()}
        known = {name: scores for name, scores in found.items() if scores}
        text += "\n\n" + "\n".join(
            [_score_lines("table rows", known), *summary["table"].get("verdicts", [])]
        )
    return text


def _score_lines(title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    from abag.head.evaluation.metrics import table_metrics

    shown = table_metrics()
    widths = [max(12, len(metric) + 2) for metric in shown]
    heads = "".join(f"{m:>{width}}" for m, width in zip(shown, widths, strict=True))
    lines = [f"{title + ': ' + str(rows['head']['n']):24}" + heads]
    for name, scores in rows.items():
        cells = [scores.get(metric) for metric in shown]
        lines.append(
            f"{name:24.24}"
            + "".join(
                f"{'-' if c is None else format(c, '.3f'):>{width}}"
                for c, width in zip(cells, widths, strict=True)
            )
        )
    return "\n".join(lines)


@main.command(short_help="Write a table's rows with predicted pKd and its sigma.")
@_TABLE
@click.option("--run", type=_PATH, required=True,
              help="Folder of a finished run, or a predictor that somebody handed on.")  # fmt: skip
@click.option("--out", type=_PATH, required=True, help="Table to write: .csv, .tsv or .parquet.")
@click.option("--cross", type=_PATH, metavar="ANTIGENS",
              help="Score every antibody of TABLE against every antigen of this table, "
              "which may be TABLE itself.")  # fmt: skip
@click.option("--store", type=_PATH,
              help="Holds vectors, takes new ones.  [default: the run's store]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@_with(_TABLE_OPTIONS)
@click.option("--antibody-encoder", metavar="NAME",
              help="Where the run's encoder lies here, if elsewhere.")  # fmt: skip
@click.option("--antigen-encoder", metavar="NAME",
              help="Where the run's encoder lies here, if elsewhere.")  # fmt: skip
@click.option("--device", default="auto", show_default=True,
              help="For new sequences: auto, cpu, cuda or cuda:N.")  # fmt: skip
@_JSON
def predict(table: Path, run: Path, out: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Write the rows of TABLE with their predicted pKd, its sigma, and what is far from training.

    Sequences that the store lacks are encoded first, by exactly the encoders of the run. A label
    column is carried and never used.

    \b
    Example:
      abag predict new.csv --run runs/first --out scored.csv
    """
    import abag

    summary = abag.predict(table, run, out, progress=True, **options)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo(f"{summary['rows']:,} rows in {summary['out']}")


@main.command(short_help="Say what is in a table, what looks wrong, what it would take.")
@_TABLE
@click.option("--antibody-encoder", default="igt5", show_default=True, metavar="NAME",
              help="Alias, hub name or checkpoint folder.")  # fmt: skip
@click.option("--antigen-encoder", default="esm2-650m", show_default=True, metavar="NAME",
              help="Alias, hub name or checkpoint folder.")  # fmt: skip
@click.option("--label", default="pkd", show_default=True, metavar="UNIT",
              help="pkd, kd_m, kd_nm, log10_kd_nm or dg_kcal.")  # fmt: skip
@click.option("--affinity-type", metavar="NAME",
              help="Keep the rows of one affinity type, where a table has several.")  # fmt: skip
@click.option("--price-per-hour", type=click.FloatRange(min=0), help="Of a GPU, in any currency.")
@click.option("--store", type=_PATH,
              help="One written here: its speed is taken for this machine's.")  # fmt: skip
@_with(_TABLE_OPTIONS)
@_JSON
def plan(
    table: Path,
    antibody_encoder: str,
    antigen_encoder: str,
    label: str,
    affinity_type: str | None,
    price_per_hour: float | None,
    store: Path | None,
    as_json: bool,
    **reading: Any,  # noqa: ANN401
) -> None:
    """Say what is in TABLE, what looks wrong, and what encoding and training would take.

    \b
    Example:
      abag plan pairs.csv
    """
    from abag.embed.sequences.pairs import TableOptions
    from abag.head.data.labels import LabelOptions
    from abag.head.plan import describe_plan
    from abag.head.plan import plan as make_plan

    found = make_plan(
        table,
        table_options=TableOptions(**reading),
        label_options=LabelOptions(
            label=label,  # type: ignore[arg-type]
            affinity_type=affinity_type,
            bad_rows=reading["bad_rows"],
        ),
        antibody_encoder=antibody_encoder,
        antigen_encoder=antigen_encoder,
        price_per_hour=price_per_hour,
        store=store,
    )
    click.echo(json.dumps(found) if as_json else "\n".join(describe_plan(found)))


@main.command(short_help="Compare runs, or look at one that is training.")
@click.argument("folders", type=_PATH, nargs=-1, required=True, metavar="DIR...")
@_JSON
def runs(folders: tuple[Path, ...], as_json: bool) -> None:
    """Compare runs, or look at one that is training; DIR is a run or holds runs.

    Shows the scores with their intervals, whether one is better on the same test rows, and the
    options that differ. Reads only, also while another process trains.

    \b
    Example:
      abag runs runs
    """
    from abag.head.runs.compare import describe_runs
    from abag.head.runs.compare import runs as compare_runs

    found = compare_runs(folders)
    click.echo(json.dumps(found) if as_json else "\n".join(describe_runs(found)))


@main.command(short_help="Check this machine, the weights and the store's disk.")
@click.option("--store", type=_PATH, help="Folder of vectors, made already or not; tried out.")
@click.option("--antibody-encoder", default="igt5", show_default=True, metavar="NAME",
              help="Alias, hub name or checkpoint folder.")  # fmt: skip
@click.option("--antigen-encoder", default="esm2-650m", show_default=True, metavar="NAME",
              help="Alias, hub name or checkpoint folder.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@_JSON
def doctor(as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Check this machine, the weights and the store's disk; exit 1 if something would fail later.

    Nothing is downloaded and nothing stays behind. Takes about a minute.

    \b
    Example:
      abag doctor --store store
    """
    from abag.embed.doctor.doctor import examine

    checks = []
    for check in examine(**options):
        checks.append(check)
        if not as_json:
            click.echo(f"{check.state:<5} {check.name + ':':19} {check.text}")
    failed = sum(check.state == "FAIL" for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        click.echo(f"{len(checks)} checks, {failed} failed")
    sys.exit(1 if failed else 0)


@main.command(short_help="Show both stages on a synthetic table: no download.")
@click.argument("folder", type=_PATH, default=Path("abag-demo"))
def demo(folder: Path) -> None:
    """Show both stages on a synthetic table with a known answer: no download, about a minute.

    \b
    Example:
      abag demo
    """
    from abag.embed.pipeline.run import embed_table
    from abag.head.data.demo import demo_table, planted_ceiling
    from abag.head.fit import fit as fit_head

    pairs, store, run = folder / "pairs.csv", folder / "store", folder / "run"
    folder.mkdir(parents=True, exist_ok=True)
    table = demo_table()
    table.to_csv(pairs, index=False)
    click.echo(f"A synthetic table of {len(table):,} antibody-antigen pairs: {pairs}")
    encoders = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "tiny-esm2"}
    click.secho("\nStage one: abag embed", bold=True)
    embed_table(pairs, store, progress=True, **encoders)
    click.secho("\nThe same command again: nothing is encoded twice", bold=True)
    again = embed_table(pairs, store, **encoders)
    click.echo(_embedded_line("antibodies", again["antibodies"]))
    click.echo(_embedded_line("antigens", again["antigens"]))
    click.secho("\nStage two: abag fit", bold=True)
    summary = fit_head(pairs, store, run, progress=True, split="random")
    click.echo(_score_table(summary))
    click.echo(
        f"\nThe planted rule itself, without its noise, scores a Spearman of "
        f"{planted_ceiling(table):.3f}: nothing can do better on this table.\n"
        "tiny-igt5 and tiny-esm2 are the real architectures with random weights: they see which "
        "residues\nthere are, and carry no biology. With your own table: abag embed pairs.csv "
        f"--store store\n\nTable {pairs}\nStore {store}\nRun   {run}"
    )


@main.group("store")
def store_group() -> None:
    """Look into, check and combine stores."""


_STORE_ARGUMENT = click.argument("store", type=_PATH)


@store_group.command("info", short_help="Say what a store holds and how far a run is.")
@_STORE_ARGUMENT
@_JSON
def store_info(store: Path, as_json: bool) -> None:
    """Say what a store holds, and how far a run that adds to it is; safe while it works.

    \b
    Example:
      abag store info store
    """
    from abag.embed.store.status import describe, info
    from abag.embed.store.store import open_store

    told = info(open_store(store))
    click.echo(json.dumps(told) if as_json else "\n".join(describe(told)))


@store_group.command("verify", short_help="Check every byte of a store against its digests.")
@_STORE_ARGUMENT
@_JSON
def store_verify(store: Path, as_json: bool) -> None:
    """Check every byte of a store against its digests; exit 1 if any is not as written.

    \b
    Example:
      abag store verify store
    """
    from abag.embed.store import maintenance as upkeep
    from abag.embed.store.store import open_store

    findings = upkeep.verify(open_store(store))
    problems = [{"path": str(f.path), "what": f.what} for f in findings]
    if as_json:
        click.echo(json.dumps({"problems": problems}))
    else:
        for problem in problems:
            click.echo(problem["what"])
        click.echo(f"{store}: {len(problems)} problems found")
    sys.exit(1 if problems else 0)


@store_group.command("merge", short_help="Add the shards of several stores to one.")
@click.argument("sources", type=_PATH, nargs=-1, required=True)
@click.option("--out", type=_PATH, required=True, help="Store to add to; made if it is not there.")
@_JSON
def store_merge(sources: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Add the shards of SOURCES to one store, and report duplicates and conflicts.

    \b
    Example:
      abag store merge laptop-store cluster-store --out store
    """
    from abag.embed.store import maintenance as upkeep

    _report(upkeep.merge(sources, out), as_json=as_json)


@store_group.command("pack", short_help="Write a store into one file.")
@_STORE_ARGUMENT
@click.option("--out", type=_PATH, required=True, help="The one .h5 file to write.")
@_JSON
def store_pack(store: Path, out: Path, as_json: bool) -> None:
    """Write a store into one file, which every reading command accepts in its place.

    \b
    Example:
      abag store pack store --out store.h5
    """
    from abag.embed.store import maintenance as upkeep
    from abag.embed.store.store import open_store

    _report(upkeep.pack(open_store(store), out), as_json=as_json)


def _report(record: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a record as JSON, or as indented lines."""
    if as_json:
        click.echo(json.dumps(record))
        return
    for line in _lines(record, ""):
        click.echo(line)


def _lines(value: Any, indent: str) -> Iterator[str]:  # noqa: ANN401
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield f"{indent}{name}:"
            yield from _lines(inner, indent + "  ")
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            for one in inner:
                yield f"{indent}{name.rstrip('s')}:"
                yield from _lines(one, indent + "  ")
        elif isinstance(inner, list):
            yield f"{indent}{name}: {', '.join(map(str, inner)) or 'none'}"
        else:
            yield (
                f"{indent}{name}: {inner:,}"
                if isinstance(inner, int)
                else f"{indent}{name}: {inner}"
            )


if __name__ == "__main__":
    main()
