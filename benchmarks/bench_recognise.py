"""Compare how a predictor recognises near-duplicates with comparing every sequence.

    python benchmarks/bench_recognise.py TABLE [--sequences 1500] [--seeds 3] [--label NAME]

A fifth of the sequences is asked for, the others are in training. The exact answer is that of the
rule of the splits for two sequences: at most 10 % of the residues of an antibody differ, or it is a
clone; of antigens, 10 % of the shorter chain inside the longer one. Needs edlib.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import edlib
import numpy as np
from rapidfuzz.distance import Levenshtein

from abag.embed.sequences.domains import position_number
from abag.embed.sequences.numbering import number_antibodies
from abag.embed.sequences.pairs import read_pairs
from abag.head.regimes.library import align
from abag.head.regimes.recognise import SeenSequences

CDR_H3 = range(105, 118)
"""IMGT positions."""


def loops(antibodies) -> list[str]:
    """Return the CDR H3 of each antibody."""
    numbered = number_antibodies(antibodies, None)["heavy"]
    positions, residues = align([chains[0] for chains in antibodies], numbered)
    columns = [i for i, name in enumerate(positions) if position_number(name) in CDR_H3]
    return ["".join(chr(c) for c in row[columns] if c > ord("-")) for row in residues]


def near_antibody(one, other) -> tuple[bool, bool]:
    """Whether two antibodies, with their CDR H3, are near-duplicates, and whether clones."""
    (chains, loop), (others, loop_of_other) = one, other
    different = length = 0
    for a, b in zip(chains, others, strict=True):
        if a and b:
            different += Levenshtein.distance(a, b)
            length += max(len(a), len(b))
    near = bool(length) and different <= 0.1 * length
    if not loop or len(loop) != len(loop_of_other):
        return near, False
    substitutions = sum(a != b for a, b in zip(loop, loop_of_other, strict=True))
    heavy = Levenshtein.distance(chains[0], others[0])
    longest = max(len(chains[0]), len(others[0]))
    return near, substitutions <= 0.2 * len(loop) and heavy <= 0.3 * longest


def near_antigen(one, other) -> bool:
    """Whether a chain of one antigen lies in a chain of the other, with few differences."""
    for a in one:
        for b in other:
            shorter, longer = sorted((a, b), key=len)
            found = edlib.align(shorter, longer, mode="HW", k=int(0.1 * len(shorter)))
            if found["editDistance"] >= 0:
                return True
    return False


def measure(kind, sequences, seed, most) -> str | None:
    """Hold out a fifth at random; return a row of the table."""
    order = np.random.default_rng(seed).permutation(len(sequences))[:most]
    chosen = [sequences[i] for i in order]
    n = len(chosen) // 5
    if not n:
        return None
    asked, trained = chosen[:n], chosen[n:]
    seen = SeenSequences.of(kind, trained)
    begun = time.perf_counter()
    found = seen.near(asked)
    ms = 1000 * (time.perf_counter() - begun) / n
    clones = np.zeros(n, bool)
    if kind == "antibody":
        named = [*zip(chosen, loops(chosen), strict=True)]
        pairs = [[near_antibody(one, other) for other in named[n:]] for one in named[:n]]
        exact = np.array([any(near for near, _ in row) for row in pairs])
        clones = np.array([any(clone for _, clone in row) for row in pairs]) & ~exact
    else:
        exact = np.array([any(near_antigen(one, other) for other in trained) for one in asked])
    right = (found == exact) | clones
    known = int((found & ~exact & ~clones).sum())
    cells = [kind, seed, len(trained), n, f"{right.mean():.1%}", known, int((~found & exact).sum())]
    cells += [int(clones.sum()), int((found & clones).sum()), f"{ms:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--sequences", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    a = parser.parse_args()
    table = read_pairs(a.table)
    print(f"### {a.table.name}\n")
    print(
        "| kind | seed | in training | asked | right | new called known | known called new | "
        "clones only | of them called known | ms each |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for kind, unique in table.sequences.items():
        for seed in range(a.seeds):
            row = measure(kind, list(unique.chains), seed, a.sequences)
            if row:
                print(row, flush=True)


if __name__ == "__main__":
    main()
