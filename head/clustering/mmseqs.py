"""Clusters by MMseqs2, for more sequences than the exact method can compare.

MMseqs2 looks for mates by seeds and scores, so it can miss some; the leak counts of a split show
what is left.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abag import AbagError

COVERAGE = 0.8


class MMseqsFailed(AbagError):
    """MMseqs2 is not installed, or gave up."""


def mmseqs_version() -> str | None:
    """Version of the installed MMseqs2; None without one."""
    program = shutil.which("mmseqs")
    if program is None:
        return None
    return subprocess.run([program, "version"], capture_output=True, text=True).stdout.strip()


def mmseqs_cluster(
    strings: Sequence[str], identity: float, *, inside: bool = False
) -> NDArray[np.int64]:
    """Cluster as `linkage.cluster` does, by the connected components of MMseqs2's hits.

    Parameters
    ----------
    strings : sequence of str, length N
    identity : float
        Least identity of an alignment that covers 80 % of both, or ``inside``, of one of them.
    inside : bool

    Returns
    -------
    NDArray, shape=(N,), dtype=int64

    Raises
    ------
    MMseqsFailed
    """
    unique, index = np.unique(np.asarray(strings, dtype=object), return_inverse=True)
    if mmseqs_version() is None:
        msg = "--cluster-tool mmseqs: no program mmseqs on the PATH; install MMseqs2 (apt-get "
        msg += "install mmseqs2) or give --cluster-tool builtin."
        raise MMseqsFailed(msg)
    with tempfile.TemporaryDirectory(prefix="abag-mmseqs-") as folder:
        fasta = Path(folder, "in.fasta")
        fasta.write_text("".join(f">{i}\n{text}\n" for i, text in enumerate(unique)))
        _run(fasta, identity, coverage_mode="1" if inside else "0")
        rows = np.loadtxt(Path(folder, "out_cluster.tsv"), dtype=np.int64, ndmin=2)
    labels = np.empty(len(unique), np.int64)
    labels[rows[:, 1]] = rows[:, 0]
    return labels[index]


def _run(fasta: Path, identity: float, coverage_mode: str) -> None:
    folder = fasta.parent
    command = ["mmseqs", "easy-cluster", str(fasta), f"{folder}/out", f"{folder}/tmp"]
    command += ["--min-seq-id", f"{identity:g}", "-c", f"{COVERAGE:g}", "--cov-mode", coverage_mode]
    # All pairs found are joined (mode 1), not only those with a representative.
    command += ["--cluster-mode", "1", "--single-step-clustering", "1", "-s", "7.5", "-v", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        msg = f"mmseqs easy-cluster: exit {done.returncode}, {last[0]}. "
        raise MMseqsFailed(msg + "Give --cluster-tool builtin.")
