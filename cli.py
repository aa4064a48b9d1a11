"""The command ``abag``: reads the command line, calls a function, prints its result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias, TypeVar

import click

from abag import _FUNCTIONS, _MEANWHILE, __version__
from abag.core.command_line import (
    CommandGroup,
    GroupedOption,
    OptionsCommand,
    UserPath,
    one_or_all,
    peak_gib,
)
from abag.core.errors import AbagError
from abag.core.files import json_text
from abag.core.messages import counted, printable, reporting, wrap
from abag.core.python_surface import PublicFunction

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")
Tables: TypeAlias = Path | list[Path]
"""One table, or several that are read as one."""

_STORE_FUNCTIONS = {
    name: ("embed.store.care", f"describe_{name}") for name in ("info", "merge", "push", "pull")
}
"""Functions of commands that Python users do not have, as in `_FUNCTIONS`."""

# Arguments and options that several commands share.
_PATH = UserPath()
_TABLES = click.argument(
    "table", type=_PATH, nargs=-1, required=True, metavar="TABLE...", callback=one_or_all
)
_MAYBE_TABLES = click.argument(
    "table", type=_PATH, nargs=-1, metavar="[TABLE...]", callback=one_or_all
)
_STORE = click.option(
    "--store", cls=GroupedOption, group="Data", type=_PATH, required=True, help="Folder of vectors."
)
_RUN = click.option("--run", type=_PATH, required=True, help="Folder of the run.")
_RUN_ARGUMENT = click.argument("run", type=_PATH)
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout.")


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="abag %(version)s")
def main() -> None:
    """Encode antibodies and antigens once; train affinity heads in seconds.

    Stage one, `abag embed`, turns each unique sequence of a table into vectors in a store.
    Stage two, `abag fit`, trains a head on them. Try both: `abag demo`.
    """


def _out(flag: str, text: str) -> Callable[[F], F]:
    """Declare the option of what a command writes."""
    return click.option(flag, type=_PATH, required=True, help=text)


def _command(
    function: str = "", *classes: str, group: click.Group = main, name: str | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """Register a command with the options of a public function, or of other classes."""
    places = [f"abag.{place}" for place in classes or _FUNCTIONS.get(function, ())[2:]]

    def register(callback: Callable[..., None]) -> click.Command:
        settings: dict[str, Any] = {"cls": OptionsCommand, "classes": places} if places else {}
        command = group.command(name, **settings)(callback)
        command.params.append(_JSON)
        return command

    return register


def _passes_on(
    function: str,
    *,
    group: click.Group = main,
    name: str | None = None,
    is_problem: Callable[[Any], bool] = lambda _: False,
) -> Callable[[Callable[[], None]], click.Command]:
    """Register a command that calls a public function; the decorated one holds only its help.

    It exits with 1 if its result `is_problem`.
    """

    def register(described: Callable[[], None]) -> click.Command:
        @wraps(described)
        def call(as_json: bool, **options: Any) -> None:
            sys.exit(is_problem(_call(function, as_json=as_json, **options)))

        return _command(function, group=group, name=name or function)(call)

    return register


def _call(function: str, *, as_json: bool, verbose: bool | None = None, **options: Any) -> Any:
    """Call a public function, which shows its progress if it can; print and return its result.

    `verbose` is for what describes the result; None: it has no such argument.
    """
    public = PublicFunction(function, *(_FUNCTIONS | _STORE_FUNCTIONS)[function])
    if public.draws_bars():
        options["progress"] = True
    with reporting(bars=True):
        result = public.function()(**options)
    describe: Callable[..., Any] = public.describe() or str
    _print(result, as_json, describe if verbose is None else partial(describe, verbose=verbose))
    return result


def _print(result: T, as_json: bool, describe: Callable[[T], Iterable[str]]) -> None:
    """Print a result as JSON, with the peak memory of the command, or as text."""
    if as_json:
        shown: Any = result
        if isinstance(shown, Mapping):
            shown = {**shown, "peak_gib": peak_gib()}
        click.echo(json_text(shown))
        return
    described = describe(result)
    _show(described if isinstance(described, str) else "\n".join(described))


def _show(text: str) -> None:
    """Print text for people, whose lines fit into the terminal."""
    click.echo(wrap(printable(text)))


# The commands are in the order in which help lists them: what most people need first. They import
# what they call: torch takes seconds, and help does not need it.


@_command("", "core.options:EncoderOptions", "embed.options:EmbedOptions")
@_TABLES
@_STORE
@click.option(
    "--prepare-fit/--no-prepare-fit",
    cls=GroupedOption,
    group="Hardware",
    rare=True,
    default=True,
    help="While a GPU encodes, compute clusters and numbering for abag fit on 4 or more idle cores."
    "  [default: on]",
)
def embed(table: Tables, store: Path, as_json: bool, prepare_fit: bool, **options: Any) -> None:
    """Encode the sequences of a table into a store.

    TABLE is a CSV, TSV or Parquet file, or a folder of Parquet files, of any size, or a JSON, FASTA
    or Excel file; several are read as one table. Sequences that the store holds are not encoded
    again. The command can be stopped at any time; run it again to continue. Under torchrun or
    srun, each rank encodes its share.

    \b
    Example:
      abag embed pairs.csv --store store
    """
    from abag.embed.embed import describe_embedding, embed_meanwhile
    from abag.embed.job import rank_here

    preparing = resolve_name(f"abag.{_MEANWHILE}") if prepare_fit else None
    meanwhile = preparing and partial(preparing, table, options)
    summary = embed_meanwhile(meanwhile, table, store, progress=True, **options)
    if not rank_here().number:  # only the first rank prints
        _print(summary, as_json, describe_embedding)


@_command("fit")
@_TABLES
@click.option(
    "--store",
    cls=GroupedOption,
    group="Data",
    type=_PATH,
    help="Folder of vectors; with --add, by default that of that run.",
)
@_RUN
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print every message, all scores and those of every validation.",
)
def fit(
    table: Tables,
    run: Path,
    as_json: bool,
    verbose: bool,
    store: Path | None = None,
    **options: Any,
) -> None:
    """Train a head on stored vectors and compare it with baselines.

    The command can be stopped at any time; run it again to continue. With --add, TABLE is an order
    of abag rank that came back with results, in a column of any name.

    \b
    Example:
      abag fit pairs.csv --store store --run runs/first
      abag fit order.csv --add runs/first --run runs/second
    """
    from abag.head.fit import fit as fit_head
    from abag.head.runs.run_folder import describe_fit

    summary = fit_head(table, store, run, progress=True, verbose=verbose, **options)
    _print(summary, as_json, partial(describe_fit, verbose=verbose))


@_command("predict")
@_MAYBE_TABLES
@click.option(
    "--run",
    type=_PATH,
    required=True,
    help="Folder of a run or of its predictor, or hf://user/name.",
)
@click.option("--out", type=_PATH, help="Table to write: .csv, .tsv or .parquet.")
@click.option("--heavy", metavar="SEQUENCE", help="Heavy chain of one antibody, instead of TABLE.")
@click.option("--light", metavar="SEQUENCE", help="Light chain of one antibody, instead of TABLE.")
def predict(
    run: Path,
    as_json: bool,
    table: Tables | None = None,
    out: Path | None = None,
    heavy: str = "",
    light: str = "",
    **options: Any,
) -> None:
    """Write a table's rows with predicted pKd and its sigma.

    Unfamiliar sequences are flagged. Sequences that the store lacks are encoded first, with the
    encoders of the run. A label column is copied but not used. With --antigen and --heavy, --light
    or both, instead of TABLE and --out, the prediction of one pair is printed.

    \b
    Example:
      abag predict new.csv --run runs/first --out scored.csv
      abag predict --run runs/first --heavy EVQL --light DIQM --antigen MKTI
    """
    if not (heavy or light):
        if table is None or out is None:
            msg = "Give a TABLE and --out FILE, or one pair with --heavy, --light and --antigen."
            raise AbagError(msg)
        _call("predict", table=table, run=run, out=out, as_json=as_json, **options)
        return
    if table is not None or out is not None:
        msg = (
            f"{'--heavy' if heavy else '--light'} predicts one pair and prints it. Leave out "
            "TABLE and --out, or put the pair in the table."
        )
        raise AbagError(msg)
    from abag import load_predictor
    from abag.head.predictor.scoring import describe_pair, predict_pair

    pair = predict_pair(load_predictor(run), heavy, light, **options)
    _print(pair, as_json, describe_pair)


@_passes_on("plan", is_problem=lambda costs: bool(costs["refused"]))
@_TABLES
@click.option("-v", "--verbose", is_flag=True, help="Print where each time comes from, too.")
def plan() -> None:
    """Describe a table, its problems and the cost of encoding.

    \b
    Example:
      abag plan pairs.csv
    """


def _is_unreadable(summary: Mapping[str, Any]) -> bool:
    return any(state["state"] == "unreadable" for state in summary["runs"])


@_passes_on("runs", is_problem=_is_unreadable)
@click.argument("folders", type=_PATH, nargs=-1, required=True, metavar="DIR...")
@click.option("-v", "--verbose", is_flag=True, help="Print all scores, not only those that decide.")
def runs() -> None:
    """Compare runs, or look at one that is training.

    DIR is a run or a folder of runs. Shows the scores with their intervals, significant differences
    on the same test rows, and the options that differ. Nothing is written. Exits with 1 if a run
    is damaged or cannot be read.

    \b
    Example:
      abag runs runs
    """


@_passes_on("report")
@_RUN_ARGUMENT
def report() -> None:
    """Write the report of a finished run again.

    RUN is the folder of a run. The model card of its predictor is written again, too. Nothing is
    trained or otherwise changed.

    \b
    Example:
      abag report runs/first
    """


@_command("evaluate")
@_MAYBE_TABLES
@_RUN
def evaluate(run: Path, as_json: bool, **options: Any) -> None:
    """Score a finished run again, or on another table.

    The run is scored on its test split, on TABLE, or against other predictions. The labels of TABLE
    are read with the options of the run.

    \b
    Example:
      abag evaluate --run runs/first --predictions theirs.csv
    """
    from abag.head.runs.evaluate import evaluate as evaluate_run
    from abag.head.runs.run_folder import describe_scores

    _print(evaluate_run(run, **options), as_json, describe_scores)


@_command("sweep")
@_TABLES
@_STORE
@click.option("--sweep", "folder", type=_PATH, required=True, help="Folder of the sweep.")
def sweep(table: Tables, store: Path, folder: Path, as_json: bool, **options: Any) -> None:
    """Search for the head that predicts best on inner folds.

    Needs the extra sweep. Run it again to continue; several processes can share the work. The test
    part is not scored before --final.

    \b
    Example:
      abag sweep pairs.csv --store store --sweep sweeps/first
    """
    from abag.head.runs.run_folder import describe_fit
    from abag.head.sweep import describe_trials
    from abag.head.sweep import sweep as search

    summary = search(table, store, folder, progress=True, **options)
    _print(summary, as_json, describe_trials)
    if "final" in summary and not as_json:
        _show("\n" + describe_fit(summary["final"], verbose=True))


@_passes_on("scan")
@_RUN_ARGUMENT
@_out("--out", "Table to write: .csv, .tsv or .parquet; and the map, .html.")
def scan() -> None:
    """Score the mutants of an antibody or antigen, with a heat map.

    RUN is the folder of a finished run, or its predictor folder. Every residue of a region or list
    of positions is exchanged; mutants that the store lacks are encoded first. The command can be
    stopped at any time; run it again to continue.

    \b
    Example:
      abag scan runs/first --parents new.csv --region cdrh3 --out scan.csv
    """


@_passes_on("rank")
@click.argument("predictions", type=_PATH)
@_out("--out", "Table to write: .csv, .tsv or .parquet.")
def rank() -> None:
    """Choose the pairs to measure next, from predictions.

    PREDICTIONS is what abag predict wrote, or another table with predicted pKd and sigma. Measured
    pairs and those outside the training data are left out. Says what the batch is expected to hold.

    \b
    Example:
      abag rank scored.csv --batch 96 --measured pairs.csv --out order.csv
    """


@_passes_on("adapt_encoders", name="adapt")
@_TABLES
@_out("--out", "Folder of the adapter.")
def adapt() -> None:
    """Adapt encoders to a split's training pairs by LoRA.

    Needs the extra lora. The command can be stopped at any time; run it again to continue. Then
    embed the table with the adapted encoders.

    \b
    Example:
      abag adapt pairs.csv --split-from runs/first --fold 0 --out adapters/first
      abag embed pairs.csv --store store --antibody-adapter adapters/first \\
        --antigen-adapter adapters/first
      abag fit pairs.csv --store store --run runs/adapted \\
        --antibody-encoder igt5-first --antigen-encoder esm2-650m-first \\
        --split file=adapters/first/splits.parquet
    """


@_passes_on("share")
@_RUN_ARGUMENT
@_out("--to", "New folder, or hf://user/name on the hub.")
def share() -> None:
    """Send a run's predictor to the hub, or write it to a folder.

    What is sent is listed first, with what it contains of the training data: at least vectors of
    training sequences and the residues of the training antibodies by position. Paths of this
    machine are not sent.

    \b
    Example:
      abag share runs/first --to hf://user/name
    """


@_passes_on("export_residues", name="residues")
@_TABLES
@_out("--out", "New folder, or one that the same command began.")
def residues() -> None:
    """Write a vector per residue, for models of your own.

    A store holds no residues, so that the encoders have to run. The size is printed first, and
    refused if the disk has too little room: 1,000 antibodies with IgT5 take 0.5 GB. The command can
    be stopped at any time; run it again to continue.

    \b
    Example:
      abag residues pairs.csv --out residues --kind antibody
    """


@main.group("store")
def store_group() -> None:
    """Inspect, check and combine stores."""


_STORE_ARGUMENT = click.argument("store", type=_PATH)


def _is_damaged(summary: Mapping[str, Any]) -> bool:
    return any(part["damaged"] for part in (summary, *summary.get("encoders", ())))


@_passes_on("info", group=store_group, is_problem=_is_damaged)
@_STORE_ARGUMENT
def store_info() -> None:
    """Show what a store holds. Exits with 1 if a part of it cannot be read.

    Bytes that changed on disk are found by abag store verify.

    \b
    Example:
      abag store info store
    """


@_command(group=store_group, name="verify")
@_STORE_ARGUMENT
def store_verify(store: Path, as_json: bool) -> None:
    """Check every byte of a store against its digests. Exits with 1 if any differs.

    \b
    Example:
      abag store verify store
    """
    from abag.embed.store.care import verify
    from abag.embed.store.store import open_store

    problems = []
    lines = []
    for path, what in verify(open_store(store)):
        problems.append({"path": str(path), "what": what})
        lines.append(what)
    lines.append(f"{store}: {counted(len(problems), 'problem')} found")
    _print({"problems": problems}, as_json, lambda _: lines)
    sys.exit(1 if problems else 0)


@_passes_on("merge", group=store_group, is_problem=_is_damaged)
@click.argument("sources", type=_PATH, nargs=-1, required=True)
@_out("--out", "Store to add to; created if missing.")
def store_merge() -> None:
    """Add the shards of several stores to one. Each is checked; duplicates are counted.

    Damaged shards are left out: exits with 1 if there are any, and the others are in the store.

    \b
    Example:
      abag store merge laptop-store cluster-store --out store
    """


@_passes_on("push", group=store_group, is_problem=_is_damaged)
@_STORE_ARGUMENT
@click.argument("address")
@click.option(
    "--private", is_flag=True, help="Create the repository for you and your organization only."
)
def store_push() -> None:
    """Send the shards of a store to the hub.

    ADDRESS is hf://datasets/user/name; others need not encode the same sequences again. Only shards
    that the hub lacks are sent; run it again to continue. Push only vectors of public sequences.
    Damaged shards are left out: exits with 1 if there are any, and the others are sent.

    \b
    Example:
      abag store push store hf://datasets/user/name
    """


@_passes_on("pull", group=store_group)
@click.argument("address")
@_STORE
def store_pull() -> None:
    """Add the shards of a store on the hub.

    ADDRESS is hf://datasets/user/name, optionally with @ and a branch, tag or commit. Only missing
    shards are downloaded, and each is checked byte by byte; run it again to continue.

    \b
    Example:
      abag store pull hf://datasets/user/name --store store
    """


@_passes_on("export_vectors", group=store_group, name="export")
@_STORE_ARGUMENT
@_out("--to", "File to write: .npz, .parquet, .h5ad or .csv.")
def store_export() -> None:
    """Write vectors to a file for NumPy, pandas, pyarrow or AnnData.

    With --table, one row per row of the table, beside its columns; else every stored vector, by its
    key. The vectors keep their number format. An .h5ad file needs the extra h5ad.

    \b
    Example:
      abag store export store --table pairs.csv --to vectors.parquet
    """


@main.command()
@click.argument("folder", type=_PATH, default=Path("abag-demo"))
@click.option("--force", is_flag=True, help="Overwrite another table in the folder.")
def demo(folder: Path, force: bool) -> None:
    """Run both stages on a synthetic table, without downloads.

    \b
    Example:
      abag demo
    """
    from abag.embed.embed import describe_embedding, embed_table
    from abag.head.demo import planted_ceiling, write_demo_table
    from abag.head.fit import fit as fit_head
    from abag.head.runs.run_folder import describe_fit

    pairs = folder / "pairs.csv"
    store = folder / "store"
    run = folder / "run"
    folder.mkdir(parents=True, exist_ok=True)
    table = write_demo_table(pairs, force=force)
    _show(f"A synthetic table of {len(table):,} antibody-antigen pairs: {pairs}")
    encoders = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "tiny-esm2"}
    click.secho("\nStage one: abag embed", bold=True)
    embed_table(pairs, store, progress=True, **encoders)
    click.secho("\nThe same command again: nothing is encoded twice", bold=True)
    _show(describe_embedding(embed_table(pairs, store, **encoders)))
    click.secho("\nStage two: abag fit", bold=True)
    with reporting(details=False):
        _show(describe_fit(fit_head(pairs, store, run, progress=True, split="random")))
    ending = (
        "\nThe rule that generated the labels, without their noise, reaches a Spearman of "
        f"{planted_ceiling(table):.3f}: the best possible score on this table.\n"
        "tiny-igt5 and tiny-esm2 are the real architectures with random weights: their vectors "
        "tell sequences apart but carry no biology.\n"
        f"Table {pairs}\nStore {store}\nRun {run}\n"
        "With your own table: abag embed pairs.csv --store store"
    )
    _show(ending)


@_command("", "core.options:DeviceOptions", "core.options:EncoderOptions")
@click.option(
    "--store",
    cls=GroupedOption,
    group="Data",
    type=_PATH,
    help="Store to check; it need not exist.",
)
def doctor(as_json: bool, **options: Any) -> None:
    """Check this machine, the weights and the store's disk.

    Exits with 1 if a check fails. Nothing is downloaded and no files are left behind. Takes about a
    minute.

    \b
    Example:
      abag doctor --store store
    """
    from abag.embed.doctor import examine

    checks = []
    for check in examine(**options):
        checks.append(check)
        if not as_json:
            _show(f"{check.state} {check.name}: {check.text}")
    failed = sum(check.state == "FAIL" for check in checks)
    report = {"ok": not failed, "checks": [check._asdict() for check in checks]}
    _print(report, as_json, lambda _: f"{counted(len(checks), 'check')}, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
