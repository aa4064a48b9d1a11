"""A synthetic table with a known rule, for ``abag demo`` and the tests.

Antibodies have random CDRs in a fixed human framework, antigens are random, and pKd follows a
simple rule plus noise. The sequences have no biological meaning.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from abag.core.errors import OutputError
from abag.core.files import write_bytes
from abag.embed.tables.chains import STANDARD_RESIDUES

# framework of trastuzumab's variable domains, split at CDR1, CDR2 and CDR3
_HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAAS",
    "IHWVRQAPGKGLEWVAR",
    "RYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC",
    "WGQGTLVTVSS",
)
_LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRAS",
    "VAWYQQKPGKAPKLLIY",
    "FLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYC",
    "FGQGTKVEIK",
)
_LETTERS = np.array(list(STANDARD_RESIDUES))
_CHARGE = {"K": 1.0, "R": 1.0, "D": -1.0, "E": -1.0}
NOISE_SD = 0.35
"""In pKd; about that of replicate measurements."""
ANTIBODIES = 200
ANTIGENS = 24
PAIRS = 1200
REPEATED = 40
"""Pairs that are measured twice."""


def demo_table(seed: int = 0) -> pd.DataFrame:
    """Make the table of the demo: some antibodies lack a light chain, some rows are replicates."""
    rng = np.random.default_rng(seed)
    heavies = np.empty(ANTIBODIES, object)
    lights = np.full(ANTIBODIES, "", object)
    for number in range(ANTIBODIES):
        heavies[number] = _graft(_HEAVY, [8, 8, int(rng.integers(8, 19))], rng)
        if number % 10:  # every tenth lacks its light chain
            lights[number] = _graft(_LIGHT, [6, 3, 9], rng)
    antigens = np.empty(ANTIGENS, object)
    for number in range(ANTIGENS):
        antigens[number] = _antigen(rng, chains=2 if number % 6 == 0 else 1)
    drawn = rng.permutation(ANTIBODIES * ANTIGENS)[:PAIRS]
    drawn = np.r_[drawn, drawn[:REPEATED]]
    antibody, antigen = np.divmod(drawn, ANTIGENS)
    rows = pd.DataFrame(
        {
            "id": [f"demo-{number:04d}" for number in range(len(drawn))],
            "heavy": heavies[antibody],
            "light": lights[antibody],
            "antigen": antigens[antigen],
        }
    )
    label = planted_pkd(rows) + NOISE_SD * rng.standard_normal(len(rows))
    return rows.assign(pKd=label.round(3))


def write_demo_table(path: Path, *, force: bool) -> pd.DataFrame:
    """Write the table of the demo as CSV, and return it; `OutputError` if the file holds other."""
    table = demo_table()
    content = table.to_csv(index=False).encode()
    if not force and path.exists() and path.read_bytes() != content:
        msg = f"{path}: already exists; use --force to overwrite, or choose another DIR."
        raise OutputError(msg)
    write_bytes(path, content)
    return table


def planted_pkd(table: pd.DataFrame) -> NDArray[np.float64]:
    """Compute the pKd of R rows without noise: opposite charges and aromatic residues raise it."""
    antibody = (table["heavy"] + table["light"].fillna("")).map(_net_charge).to_numpy(float)
    antigen = table["antigen"].map(lambda s: 100 * _net_charge(s) / len(s)).to_numpy(float)
    aromatic = table["heavy"].map(lambda s: sum(map(s.count, "FWY"))).to_numpy(float)
    rule: NDArray[np.float64] = 7.5 - 0.05 * (antibody - 2) * antigen + 0.25 * (aromatic - 14)
    return rule


def planted_ceiling(table: pd.DataFrame) -> float:
    """Return the Spearman correlation of the rule with the labels: the best possible score."""
    return float(spearmanr(planted_pkd(table), table["pKd"]).statistic)


def _graft(framework: tuple[str, ...], lengths: list[int], rng: np.random.Generator) -> str:
    """Join the parts of a framework by random loops of these lengths."""
    sequence = framework[0]
    for length, after in zip(lengths, framework[1:], strict=True):
        sequence += "".join(rng.choice(_LETTERS, length)) + after
    return sequence


def _antigen(rng: np.random.Generator, chains: int) -> str:
    """Draw chains of random residues, with residue frequencies drawn per antigen."""
    frequencies = rng.dirichlet(np.full(len(_LETTERS), 4.0))
    drawn = []
    for _ in range(chains):
        length = rng.integers(60, 260)
        drawn.append("".join(rng.choice(_LETTERS, length, p=frequencies)))
    return "|".join(drawn)


def _net_charge(sequence: str) -> float:
    return sum(charge * sequence.count(letter) for letter, charge in _CHARGE.items())
