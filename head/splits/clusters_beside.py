"""Clusters of many antibodies, found in a process of its own while the network trains.

The process holds the lock of its own interpreter. It leaves the clusters in the cache, from which
`PairGroups` reads them; if it fails, they are computed where they are needed.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abag.core.messages import reporting
from abag.core.workers import Workers, receive, send, serving
from abag.head.splits.groups import (
    FEW_SEQUENCES,
    MANY_SEQUENCES,
    cached_clusters,
    choose_method,
    has_clusters,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from abag.head.data.labels import LabelledPairs
    from abag.head.splits.split_options import SplitOptions

WORTH_A_PROCESS = FEW_SEQUENCES["antibody"]
"""Fewer antibodies are clustered in about the time that a process takes to start."""


@contextmanager
def antibodies_clustered_meanwhile(
    pairs: LabelledPairs,
    options: SplitOptions,
    cache: Path,
    after: Event | None = None,
) -> Iterator[Callable[[], object] | None]:
    """Begin to cluster antibodies beside the block, which gets a function that waits for the end.

    None: they are few, known, or so many that only some splits cluster them. If the block is left
    before, the process ends. `after` is set when what shall have the cores first has ended.
    """
    unique, identity = pairs.table.antibodies, options.antibody_identity
    most = MANY_SEQUENCES["antibody"]
    method = choose_method("antibody", len(unique.keys), options.antibody_by, "builtin")
    if not WORTH_A_PROCESS < len(unique.keys) <= most or has_clusters(
        method, unique.keys, identity, cache
    ):
        yield None
        return
    asked = {"by": options.antibody_by, "identity": identity, "cache": str(cache.absolute())}
    texts = "\n".join("|".join(chains) for chains in unique.chains)
    content = json.dumps(asked).encode(), np.ascontiguousarray(unique.keys), texts.encode()

    def ask() -> None:
        if after is not None:
            after.wait()
        workers.ask(*content)

    with ThreadPoolExecutor(1) as thread, Workers(__name__, 1) as workers:
        yield thread.submit(ask).result


def _serve() -> None:
    """Answer the process that started this one."""
    with serving() as (requests, answers), reporting(silent=True):
        while True:
            asked, keys, texts = (receive(requests) for _ in range(3))
            options = json.loads(asked)
            chains = [tuple(line.split("|")) for line in texts.decode().split("\n")]
            method = choose_method("antibody", len(chains), options["by"], "builtin")
            keys_N16 = np.frombuffer(keys, np.uint8).reshape(len(chains), -1)
            cache = Path(options["cache"])
            cached_clusters(method, keys_N16, chains, {options["identity"]}, cache)
            send(answers, b"kept")


if __name__ == "__main__":
    _serve()
