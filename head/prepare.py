"""What a fit computes from a table alone, computed while a GPU encodes the table.

Clusters and IMGT numbering end in the caches that `abag fit` reads. A process of its own, with the
lowest priority, computes them: it cannot stop the encoding, and ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import TYPE_CHECKING, Any

from abag.core.cores import count_cores
from abag.core.errors import AbagError
from abag.core.files import cache_dir
from abag.core.messages import detail, reporting
from abag.embed.tables.options import TableOptions

if TYPE_CHECKING:
    from abag.embed.tables.table import TableLike
    from abag.head.models.config import FitConfig

FEWEST_CORES = 4
"""With fewer, the threads that feed the GPU would wait."""
MOST_ROWS = 1_000_000
"""A fit holds the whole table in memory, about 2 kB per row; encoding does not."""


def prepare_fit(table: TableLike, config: FitConfig) -> None:
    """Compute the clusters and the numbering of a table, and leave them in the caches."""
    from abag.embed.tables.numbering import number_antibodies
    from abag.head.labels.labelled_pairs import read_labelled_pairs
    from abag.head.regimes.splits import PairGroups

    pairs = read_labelled_pairs(table, config, config)
    PairGroups(pairs, config).levels()
    number_antibodies(pairs.table.antibodies.chains, cache_dir() / "numbering")


def preparing(
    table: Path | list[Path], options: Mapping[str, Any], rows: int
) -> AbstractContextManager[None]:
    """Prepare a fit of a table, read with these options of `abag embed`, until the block ends."""
    is_whole = options.get("kind", "both") == "both"  # a fit needs both sides
    if not is_whole or count_cores() < FEWEST_CORES or rows > MOST_ROWS:
        return nullcontext()
    return _in_a_process(table, TableOptions.take(options)[0])


@contextmanager
def _in_a_process(table: Path | list[Path], options: TableOptions) -> Iterator[None]:
    tables = [table] if isinstance(table, Path) else table
    paths = [str(table.absolute()) for table in tables]
    request = json.dumps({"table": paths, **options.to_json()})
    command = [sys.executable, "-P", "-m", __name__, request]
    try:
        process = Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    except OSError as error:
        detail(f"nothing is prepared for abag fit ({error})")
        yield
        return
    with process:  # closes stdin in the end, and with it ends the process
        yield


def _serve() -> None:
    """Prepare a fit for the process that started this one; end when that closes the pipe."""
    from abag.head.models.config import FitConfig  # slow, and the parent does not need it

    os.nice(19)
    Thread(target=_end_with_parent, daemon=True).start()
    options = json.loads(sys.argv[1])
    with suppress(AbagError), reporting(silent=True):  # a fit will say it
        prepare_fit(options.pop("table"), FitConfig.from_keywords(options, "fit"))


def _end_with_parent() -> None:
    """Wait until the pipe is closed, also by the death of the parent; end this process group."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
