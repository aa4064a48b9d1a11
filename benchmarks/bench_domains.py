"""Measure how well joined antibody strings are split into their known chains.

    python benchmarks/bench_domains.py TABLE

Prints Markdown. A split is wrong if a boundary is more than 10 residues off, if heavy and light are
exchanged, or if two domains are kept as one chain.
"""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version

from abag.embed.sequences.chains import Chains
from abag.embed.sequences.domains import UnsureDomains, split_domains
from abag.embed.sequences.pairs import read_pairs

WRONG_RESIDUES = 10
G4S3 = "GGGGS" * 3
LAYOUTS: dict[str, Callable[[str, str], str]] = {
    "H L": lambda heavy, light: heavy + light,
    "L H": lambda heavy, light: light + heavy,
    "H (G4S)3 L": lambda heavy, light: heavy + G4S3 + light,
    "L (G4S)3 H": lambda heavy, light: light + G4S3 + heavy,
    "H XXX L": lambda heavy, light: heavy + "XXX" + light,
    "L XXX H": lambda heavy, light: light + "XXX" + heavy,
    "H 218 L": lambda heavy, light: heavy + "GSTSGSGKPGSGEGSTKG" + light,
    "L 218 H": lambda heavy, light: light + "GSTSGSGKPGSGEGSTKG" + heavy,
    # not in the list of linkers that the splitter knows
    "H PAS L": lambda heavy, light: heavy + "ASPAAPAPASPAAPAPSAPA" + light,
    "L PAS H": lambda heavy, light: light + "ASPAAPAPASPAAPAPSAPA" + heavy,
    "H alone": lambda heavy, light: heavy,
    "L alone": lambda heavy, light: light,
}


def boundary_error(found: str, known: str) -> int:
    """Count the residues by which a chain's ends are off; a huge number if it is another chain."""
    if found == known:
        return 0
    core = known[WRONG_RESIDUES:-WRONG_RESIDUES] or known
    at = found.find(core)
    if at < 0:
        return max(len(found), len(known))
    before = abs(at - known.find(core))
    return max(before, abs(len(found) - len(known) - (at - known.find(core))))


def measure(pairs: Sequence[Chains], layout: str) -> tuple[Counter[str], int]:
    """Split every pair joined in one layout; give the counts and the worst boundary error."""
    counts: Counter[str] = Counter()
    worst = 0
    for heavy, light in pairs:
        known = (heavy if layout != "L alone" else "", light if layout != "H alone" else "")
        try:
            split = split_domains(LAYOUTS[layout](heavy, light))
        except UnsureDomains:
            counts["refused"] += 1
            continue
        error = max(boundary_error(*chains) for chains in zip(split[:2], known, strict=True))
        counts["exact" if error == 0 else "near" if error <= WRONG_RESIDUES else "wrong"] += 1
        counts["found"] += error <= WRONG_RESIDUES
        worst = max(worst, error if error <= WRONG_RESIDUES else 0)
    return counts, worst


def main(path: str) -> None:
    table = read_pairs(path)
    pairs = [pair for pair in table.antibodies.chains if all(pair)]
    print(
        f"{table.source}: {len(pairs)} unique pairs; Python {platform.python_version()}, ", end=""
    )
    print(f"immunum {version('immunum')}, {platform.machine()}, one core\n")
    print("| layout | found | exact to the residue | worst boundary error | refused | wrong |")
    print("|---|---|---|---|---|---|")
    start = time.perf_counter()
    for layout in LAYOUTS:
        counts, worst = measure(pairs, layout)
        exact = f"{counts['exact']} ({counts['exact'] / len(pairs):.1%})"
        print(f"| {layout} | {counts['found']} | {exact} | {worst} | ", end="")
        print(f"{counts['refused']} | {counts['wrong']} |")
    wall_s = time.perf_counter() - start
    print(f"\n{len(pairs) * len(LAYOUTS) / wall_s:,.0f} strings/s")


if __name__ == "__main__":
    main(sys.argv[1])
