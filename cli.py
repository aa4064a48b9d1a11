"""The command ``abag``: parse, call, print. Nothing is computed here."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

import click

from abag import AbagError
from abag.core.command_line import OptionsCommand, click_options

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


_TABLE = click.argument("table", type=_PATH)
_STORE = click.option("--store", type=_PATH, required=True, help="Folder of vectors.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
_RUN = click.option("--run", type=_PATH, required=True, help="Folder of the run.")


def _command(short_help: str, *classes: str) -> Callable[[Callable[..., None]], click.Command]:
    """Register a command of `main` with the options of classes, named ``module:Class``."""

    def make_options() -> list[click.Option]:
        found = (resolve_name(f"abag.{name}") for name in classes)
        return [one for cls in found for one in click_options(cls, path=_PATH)]

    return main.command(cls=OptionsCommand, short_help=short_help, make_options=make_options)


@_command(
    "Encode every sequence of a table that the store does not hold yet.",
    "core.shared_options:EncoderOptions",
    "embed.pipeline.options:EmbedOptions",
)
@_TABLE
@_STORE
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


@_command(
    "Train a head on stored vectors and compare it with baselines.", "head.model.config:FitConfig"
)
@_TABLE
@_STORE
@_RUN
@click.option("--no-compile", is_flag=True, help="The same as --compile off.")
@click.option("-v", "--verbose", is_flag=True, help="Print the score of every validation.")
@_JSON
def fit(table: Path, store: Path, run: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Train a head on the stored vectors of TABLE, and report it beside baselines.

    Run it again to go on where it was stopped.

    \b
    Example:
      abag fit pairs.csv --store store --run runs/first
    """
    from abag.head.fit import fit as fit_head

    if options.pop("no_compile"):
        options["compile"] = "off"
    summary = fit_head(table, store, run, progress=True, **options)
    click.echo(json.dumps(summary) if as_json else _score_table(summary))


@_command("Score a finished run again, or on another table.", "head.runs.options:EvaluateOptions")
@click.argument("table", type=_PATH, required=False)
@_RUN
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


@_command("Adapt encoders to a split's training pairs by LoRA.", "adapt.config:AdaptConfig")
@_TABLE
@click.option("--out", type=_PATH, required=True, help="Folder of the adapter.")
@_JSON
def adapt(table: Path, out: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
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

    summary = adapt_encoders(table, out, progress=True, **options)
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


def _sweep_options() -> list[click.Option]:
    from abag.head.model.config import FitConfig
    from abag.head.search.options import CHOSEN_BY_SWEEP, SweepOptions

    not_searched = click_options(FitConfig, path=_PATH, without=CHOSEN_BY_SWEEP)
    return [*click_options(SweepOptions, path=_PATH), *not_searched]


@main.command(
    cls=OptionsCommand,
    short_help="Search for the head that predicts best on inner folds.",
    make_options=_sweep_options,
)
@_TABLE
@_STORE
@click.option("--sweep", "folder", type=_PATH, required=True, help="Folder of the sweep.")
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

    summary = search(table, store, folder, progress=True, **options)
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


@_command(
    "Write a table's rows with predicted pKd and its sigma.",
    "head.prediction.options:PredictOptions",
)
@_TABLE
@click.option("--run", type=_PATH, required=True,
              help="Folder of a finished run, or its predictor folder.")  # fmt: skip
@click.option("--out", type=_PATH, required=True, help="Table to write: .csv, .tsv or .parquet.")
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


@_command(
    "Describe a table, its problems and what encoding it takes.", "head.runs.options:PlanOptions"
)
@_TABLE
@_JSON
def plan(table: Path, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Say what is in TABLE, what looks wrong, and what encoding and training would take.

    \b
    Example:
      abag plan pairs.csv
    """
    from abag.head.plan import describe_plan
    from abag.head.plan import plan as make_plan

    found = make_plan(table, **options)
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


@_command(
    "Check this machine, the weights and the store's disk.", "embed.doctor.options:DoctorOptions"
)
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
