"""Measure how well joined antibody strings are split into their known chains.

    python benchmarks/bench_domains.py TABLE

The chains of a table with heavy and light columns are joined in several ways and split again. The
strings of a table with an antibody column have no known boundary; each boundary is checked by
conserved residues alone (`landmarks`).

Prints Markdown. A split is wrong if a boundary is more than 10 residues off, if heavy and light are
exchanged, or if two domains are kept as one chain.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version

from abag.embed.tables.chains import Chains, UnsureDomains, split_domains
from abag.embed.tables.pairs import read_pairs
from abag.embed.tables.table import read_table, read_texts

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


def boundary_error(numbered: str, true: str) -> int:
    """Count the residues by which a chain's ends are off; a huge number if it is another chain."""
    if numbered == true:
        return 0
    core = true[WRONG_RESIDUES:-WRONG_RESIDUES] or true
    at = numbered.find(core)
    if at < 0:
        return max(len(numbered), len(true))
    before = abs(at - true.find(core))
    return max(before, abs(len(numbered) - len(true) - (at - true.find(core))))


def measure(pairs: Sequence[Chains], layout: str) -> tuple[Counter[str], int]:
    """Split every pair joined in one layout; give the counts and the worst boundary error."""
    counts: Counter[str] = Counter()
    worst = 0
    for heavy, light in pairs:
        true_domains = (heavy if layout != "L alone" else "", light if layout != "H alone" else "")
        try:
            split = split_domains(LAYOUTS[layout](heavy, light))
        except UnsureDomains:
            counts["refused"] += 1
            continue
        error = max(boundary_error(*chains) for chains in zip(split[:2], true_domains, strict=True))
        counts["exact" if error == 0 else "near" if error <= WRONG_RESIDUES else "wrong"] += 1
        counts["found"] += error <= WRONG_RESIDUES
        worst = max(worst, error if error <= WRONG_RESIDUES else 0)
    return counts, worst


J_SEGMENT = {"heavy": re.compile("(?=([WF]..G.{7}))"), "light": re.compile("(?=(F..G.{6}))")}
FIRST_CYSTEINE = re.compile(".{10,26}?C(?=.{7,25}W)")
CONSTANT = re.compile("X?|[AT]?S?T?K?[GP]?[PX]?S?V?F?[PX]?L?A?P?S?S?K?X?|R?T?V?A?A?P?S?V?F?I?F?")


def landmarks(sequence: str, end: int, start: int, first: str) -> str:
    """Describe a boundary by conserved residues alone, without an alignment.

    A J segment of usual length is expected right before it, apart from the start of a constant
    region, and 21 or 22 residues before the first cysteine of the second domain right after it.
    """
    motifs = J_SEGMENT[first].finditer(sequence, max(0, end - 40), end)
    ends = [motif.end(1) for motif in motifs if motif.end(1) <= end]
    between = sequence[ends[-1] : end] if ends else None
    cysteine = FIRST_CYSTEINE.match(sequence, start)
    before = cysteine.end() - 1 - start if cysteine else 0
    if between is None or not CONSTANT.fullmatch(between):
        return "no J segment of usual length before the boundary"
    return "confirmed" if before in (21, 22) else f"{before} residues before cysteine 23"


def cross_check(path: str) -> None:
    """Check the boundaries in the strings of a table by conserved residues."""
    table = read_table(path)
    cells = read_texts(table.frame[table.column("antibody")])
    texts = cells[cells != ""].value_counts()
    counts = Counter[str]()
    lines = []
    for text, rows in texts.items():
        sequence = str(text)
        try:
            heavy, light, form = split_domains(sequence)
        except UnsureDomains as error:
            counts["unsure"] += 1
            lines.append(f"- unsure, {rows} rows: {error}: {sequence}")
            continue
        if not (heavy and light):
            counts[form] += 1
            continue
        first, second = (heavy, light) if sequence.startswith(heavy) else (light, heavy)
        start = len(sequence) - len(second)
        positions = landmarks(sequence, len(first), start, "heavy" if first == heavy else "light")
        counts[positions if positions == "confirmed" else "not confirmed"] += 1
        counts["linker removed"] += len(first) < start
        if positions != "confirmed" or len(first) < start:
            around = f"{first[-16:]} [{sequence[len(first) : start]}] {second[:24]}"
            lines.append(f"- {positions}: ...{around}...")
    print(f"{path.rpartition('/')[2]}: {len(texts)} unique strings, {texts.sum()} rows:")
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()), end="\n\n")
    print(*sorted(lines), sep="\n")


def main(path: str) -> None:
    """Time the search for domains in a table, and print how often it is right."""
    if read_table(path).has("antibody"):
        cross_check(path)
        return
    table = read_pairs(path, kinds=("antibody",))
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
