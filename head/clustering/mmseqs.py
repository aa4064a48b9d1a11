"""Clusters by MMseqs2, for more sequences than the exact method can compare.

MMseqs2 searches by seeds and scores, so it can miss near-duplicates; the leak counts of a split
show how many remain.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import numpy as np
from numpy.typing import NDArray

from abag import AbagError

COVERAGE = 0.8
"""Smallest share of a sequence that an alignment has to cover."""
POLL_SECONDS = 0.1
"""Time between two looks at whether the clusters are still wanted."""


class MMseqsFailed(AbagError):
    """MMseqs2 is not installed, or failed."""


def mmseqs_version() -> str | None:
    """Return the version of MMseqs2, or None if it is not installed."""
    program = shutil.which("mmseqs")
    if program is None:
        return None
    return subprocess.run([program, "version"], capture_output=True, text=True).stdout.strip()


def mmseqs_cluster(
    strings: Sequence[str], identities: Sequence[float], *, contained: bool = False
) -> list[NDArray[np.int64]]:
    """Cluster strings by the connected components of MMseqs2's hits.

    Parameters
    ----------
    strings : sequence of str, length N
    identities : sequence of float
        Smallest identities of an alignment that covers 80 % of both sequences.
    contained : bool
        The alignment has to cover 80 % of one of them only.

    Returns
    -------
    list of NDArray, shape=(N,), dtype=int64
        Cluster of each string at each identity.

    Raises
    ------
    MMseqsFailed
        If MMseqs2 exits with an error.
    """
    unique, index = np.unique(np.asarray(strings, dtype=object), return_inverse=True)
    return [_easy_cluster(unique, identity, contained)[index] for identity in identities]


def _easy_cluster(
    unique: NDArray[np.object_], identity: float, contained: bool
) -> NDArray[np.int64]:
    with tempfile.TemporaryDirectory(prefix="abag-mmseqs-") as folder:
        fasta = Path(folder, "in.fasta")
        fasta.write_text("".join(f">{i}\n{text}\n" for i, text in enumerate(unique)))
        command = ["mmseqs", "easy-cluster", str(fasta), f"{folder}/out", f"{folder}/tmp"]
        command += ["--min-seq-id", f"{identity:g}", "-c", f"{COVERAGE:g}"]
        # Cluster mode 1 joins all pairs found, not only those with a representative.
        command += ["--cov-mode", "1" if contained else "0", "--cluster-mode", "1"]
        command += ["--single-step-clustering", "1", "-s", "7.5", "-v", "1"]
        status, said = _run(command)
        if status:
            last = said.strip().splitlines()[-1:] or ["no message"]
            msg = (
                f"mmseqs easy-cluster: failed with exit status {status}: {last[0]}. "
                "Repair it, or take mmseqs off the PATH to cluster without it."
            )
            raise MMseqsFailed(msg)
        rows = np.loadtxt(Path(folder, "out_cluster.tsv"), dtype=np.int64, ndmin=2)
    labels = np.empty(len(unique), np.int64)
    labels[rows[:, 1]] = rows[:, 0]
    return labels


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a program to its end; return its exit status, and its errors or else its output.

    If the caller stops, the program and all that it has started are killed.
    """
    # a process group of its own: mmseqs is a script that starts further processes
    process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, process_group=0)
    try:
        out, err = process.communicate()
        return process.returncode, err or out
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until none of them can write into the folder of the caller
