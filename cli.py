"""The command ``abag``: parse, call, print. Nothing is computed here."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from abag import AbagError, __version__

_EXISTING_FILE = click.Path(path_type=Path)


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


_TABLE = click.argument("table", type=_EXISTING_FILE)
_STORE = click.option("--store", type=_EXISTING_FILE, required=True, help="Folder of vectors.")
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
@click.option("--backend", default="packed", show_default=True,
              type=click.Choice(["packed", "reference"]),
              help="Our packed encoders, or transformers' own modules.")  # fmt: skip
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

    summary = embed_table(table, store, progress=True, **options)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        for plural in ("antibodies", "antigens"):
            click.echo(_embedded_line(plural, summary[plural]))


def _embedded_line(plural: str, one: dict[str, Any]) -> str:
    rate = f", {one['tokens'] / one['seconds']:,.0f} tokens/s" if one["encoded"] else ""
    return (
        f"{plural}: {one['unique']:,} unique, {one['reused']:,} reused, {one['encoded']:,} encoded "
        f"with {one['encoder']} in {one['seconds']:.1f} s{rate}"
    )
