"""The command ``abag``: parse, call, print. Nothing is computed here."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from abag import AbagError, __version__

_PATH = click.Path(path_type=Path)


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


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="abag")
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
    click.option("--epochs", type=int), click.option("--batch-size", type=int),
    click.option("--accumulate", type=int, help="Batches an optimiser step."),
    click.option("--lr", type=float, help="Highest learning rate."),
    click.option("--scale-lr", is_flag=True, default=None,
                 help="Scale the rate with the effective batch."),
    click.option("--dropout", type=float), click.option("--weight-decay", type=float),
    click.option("--loss", metavar="NAME", help="mse, huber or rank."),
    click.option("--select", metavar="METRIC", help="Validation metric of the best checkpoint."),
    click.option("--patience", type=int, help="Validations without progress before stopping."),
    click.option("--seed", type=int), click.option("--split-seed", type=int),
    click.option("--save-every", type=int, metavar="N", help="Steps between checkpoints."),
    click.option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N."),
    click.option("--precision", metavar="NAME", help="fp32 (TF32 on a GPU) or bf16."),
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
              type=click.Choice(["auto", "bf16", "fp16", "fp32"]))  # fmt: skip
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
              type=click.Choice(["float16", "float32"]))  # fmt: skip
@_JSON
def embed(table: Path, store: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Encode every sequence of TABLE that the store does not hold yet.

    Stop it at any time and run it again: it goes on where it was.

    \b
    Example:
      abag embed pairs.csv --store store
    """
    from abag.embed.run import embed_table

    options["layers"] = options["layers"] or None
    summary = embed_table(table, store, progress=True, **options)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        for plural in ("antibodies", "antigens"):
            click.echo(_embedded_line(plural, summary[plural]))


def _embedded_line(plural: str, one: dict[str, Any]) -> str:
    rate = f" in {one['seconds']:.1f} s" if one["encoded"] else ""
    return (
        f"{plural}: {one['unique']:,} unique, {one['reused']:,} reused, "
        f"{one['encoded']:,} encoded with {one['encoder']}{rate}"
    )


@main.command()
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
    from abag.head.train import fit as fit_head

    given = {name: value for name, value in options.items() if value is not None}
    if given.pop("no_compile"):
        given["compile"] = "off"
    summary = fit_head(table, store, run, progress=True, **given)
    click.echo(json.dumps(summary) if as_json else _score_table(summary))


@main.command()
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
    from abag.head.evaluate import evaluate as evaluate_run

    summary = evaluate_run(run, **options)
    click.echo(json.dumps(summary) if as_json else _score_table(summary))


_ADAPT_OPTIONS = [
    click.option("--sides", type=click.Choice(["antibody", "antigen", "both"]), default="both",
                 show_default=True, help="Encoders to adapt."),
    click.option("--antibody-encoder", default="igt5", show_default=True, metavar="NAME"),
    click.option("--antigen-encoder", default="esm2-650m", show_default=True, metavar="NAME"),
    click.option("--rank", type=int, default=8, show_default=True, help="Rank r of the change."),
    click.option("--alpha", type=float, default=16.0, show_default=True,
                 help="The change is alpha / r times B A."),
    click.option("--dropout", type=float, default=0.1, show_default=True),
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
    click.option("--epochs", type=int, default=10, show_default=True),
    click.option("--batch-size", type=int, default=16, show_default=True),
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
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--save-every", type=int, default=100, show_default=True, metavar="N",
                 help="Steps between checkpoints."),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--precision", default="auto", show_default=True,
                 type=click.Choice(["auto", "fp32", "bf16"])),
]  # fmt: skip


@main.command()
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


_SHOWN = ("spearman_within_antigen", "spearman", "pearson", "rmse", "mae", "r2")


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
    lines = [f"{title + ': ' + str(rows['head']['n']):24}" + "".join(f"{m:>12.12}" for m in _SHOWN)]
    for name, scores in rows.items():
        cells = [scores.get(metric) for metric in _SHOWN]
        lines.append(
            f"{name:24.24}"
            + "".join(f"{'-' if c is None else format(c, '.3f'):>12}" for c in cells)
        )
    return "\n".join(lines)


@main.command()
@_TABLE
@click.option("--antibody-encoder", default="igt5", show_default=True, metavar="NAME")
@click.option("--antigen-encoder", default="esm2-650m", show_default=True, metavar="NAME")
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
    from abag.embed.sequences import TableOptions
    from abag.head.plan import describe_plan
    from abag.head.plan import plan as make_plan
    from abag.head.table import LabelOptions

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


@main.command()
@click.argument("folder", type=_PATH, default=Path("abag-demo"))
def demo(folder: Path) -> None:
    """Show both stages on a synthetic table with a known answer: no download, about a minute.

    \b
    Example:
      abag demo
    """
    from abag.embed.run import embed_table
    from abag.head.demo import demo_table, planted_ceiling
    from abag.head.train import fit as fit_head

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
    for plural in ("antibodies", "antigens"):
        click.echo(_embedded_line(plural, again[plural]))
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


@store_group.command("info")
@_STORE_ARGUMENT
@_JSON
def store_info(store: Path, as_json: bool) -> None:
    """Say what a store holds, and how a running embed is doing.

    \b
    Example:
      abag store info store
    """
    from abag.embed import upkeep
    from abag.embed.store import open_store

    _report(upkeep.info(open_store(store)), as_json=as_json)


@store_group.command("verify")
@_STORE_ARGUMENT
@_JSON
def store_verify(store: Path, as_json: bool) -> None:
    """Check every byte of a store against its digests; exit 1 if any is not as written.

    \b
    Example:
      abag store verify store
    """
    from abag.embed import upkeep
    from abag.embed.store import open_store

    findings = upkeep.verify(open_store(store))
    problems = [{"path": str(f.path), "what": f.what} for f in findings]
    if as_json:
        click.echo(json.dumps({"problems": problems}))
    else:
        for problem in problems:
            click.echo(problem["what"])
        click.echo(f"{store}: {len(problems)} problems found")
    sys.exit(1 if problems else 0)


@store_group.command("merge")
@click.argument("sources", type=_PATH, nargs=-1, required=True)
@click.option("--out", type=_PATH, required=True, help="Store to add to; made if it is not there.")
@_JSON
def store_merge(sources: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Add the shards of SOURCES to one store, and report duplicates and conflicts.

    \b
    Example:
      abag store merge laptop-store cluster-store --out store
    """
    from abag.embed import upkeep

    _report(upkeep.merge(sources, out), as_json=as_json)


@store_group.command("pack")
@_STORE_ARGUMENT
@click.option("--out", type=_PATH, required=True, help="The one .h5 file to write.")
@_JSON
def store_pack(store: Path, out: Path, as_json: bool) -> None:
    """Write a store into one file, which every reading command accepts in its place.

    \b
    Example:
      abag store pack store --out store.h5
    """
    from abag.embed import upkeep
    from abag.embed.store import open_store

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
