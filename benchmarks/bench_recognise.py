"""Compare how a predictor recognises near-duplicates with comparing every sequence.

    python benchmarks/bench_recognise.py TABLE [--sequences 1500] [--seeds 3]
    python benchmarks/bench_recognise.py --drawn 110000 [--asked 1000]
    python benchmarks/bench_recognise.py [TABLE] --variants 20000 200000 [--trained 11000]

A fifth of the sequences of a table is asked for, the others are in training. Drawn antibodies are
those of germlines with random CDR H3, clones and mutations; some of them are asked for. The exact answer is that of the
rule of the splits for two sequences: at most 10 % of the residues of an antibody differ, or it is a
clone; of antigens, 10 % of the shorter chain inside the longer one. Needs edlib.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import tempfile
import time
from pathlib import Path

import edlib
import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from abag.embed.tables.chains import position_number
from abag.embed.tables.numbering import number_antibodies
from abag.embed.tables.pairs import read_pairs
from abag.head.regimes.relations import Distances
from abag.head.regimes.sides import KnownSequences, Side, align
from abag.head.regimes.splits import NEW

CDR_H3 = range(105, 118)
"""IMGT positions."""
LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC",
    "WGQGTLVTVSS",
)
LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYC",
    "FGQGTKVEIK",
)


def drawn(n, seed=0):
    """Draw antibodies of 50 x 40 germlines, with clones of several members and mutations."""
    rng = np.random.default_rng(seed)

    def mutated(text, rate):
        letters = np.array(list(text))
        hit = (rng.random(len(letters)) < rate) & ~np.isin(letters, ["C", "W"])
        letters[hit] = rng.choice(LETTERS, hit.sum())
        return "".join(letters)

    def germlines(text, count):
        return [mutated(text, rng.uniform(0, 0.3)) for _ in range(count)]

    heavies = germlines(HEAVY[0], 50)
    lights = germlines(LIGHT[0], 40)
    antibodies = []
    while len(antibodies) < n:
        loop = "".join(rng.choice(LETTERS, int(np.clip(rng.normal(13, 3.5), 5, 25))))
        heavy = heavies[int(50 * rng.random() ** 2)] + loop + HEAVY[1]
        light = lights[int(40 * rng.random() ** 2)] + "".join(rng.choice(LETTERS, 9)) + LIGHT[1]
        for _ in range(1 if rng.random() < 0.8 else int(rng.geometric(0.2))):
            rate = rng.exponential(0.05)
            antibodies.append((mutated(heavy, rate), mutated(light, rate)))
    return [antibodies[i] for i in rng.permutation(n)]


def measure_drawn(n, asked) -> str:
    """Compare some of n drawn antibodies with all others; return a row of the table."""
    antibodies = drawn(n)
    few = antibodies[:asked]
    trained = antibodies[asked:]
    seen = known("antibody", trained)
    recognised, ms = timed(seen, few)
    whole = ["".join(chains) for chains in trained]
    lengths = np.array([len(text) for text in whole])
    loop_of = dict(zip(antibodies, loops(antibodies), strict=True))
    by_length: dict[int, list[int]] = {}
    for i, chains in enumerate(trained):
        by_length.setdefault(len(loop_of[chains]), []).append(i)
    identity = np.zeros(asked)
    clones = np.zeros(asked, bool)
    for k, chains in enumerate(few):
        text = "".join(chains)
        loop = loop_of[chains]
        edits = cdist([text], whole, scorer=Levenshtein.distance, score_cutoff=30, workers=-1)[0]
        identity[k] = (1 - edits / np.maximum(lengths, len(text))).max()
        alike = by_length.get(len(loop), []) if loop else []
        changes = (
            sum(a != b for a, b in zip(loop, loop_of[trained[i]], strict=True)) for i in alike
        )
        close = [i for i, n in zip(alike, changes, strict=True) if n <= 0.2 * len(loop)]
        clones[k] = any(
            near_antibody((chains, loop), (trained[i], loop_of[trained[i]]))[1] for i in close
        )
    exact = identity >= 0.9
    for name, wrong in (("new", recognised & ~exact & ~clones), ("known", ~recognised & exact)):
        print(
            f"nearest to {name} ones that are called otherwise:", np.sort(identity[wrong]).round(3)
        )
    return row_of("drawn antibody", 0, len(trained), recognised, exact, clones & ~exact, ms)


def planted(n, seed=0):
    """Draw a library of HER2-like variants: 1 to 8 mutations of CDRs, some with a deletion."""
    rng = np.random.default_rng(seed)
    parent = HEAVY[0] + "SRWGGDGFYAMDY" + HEAVY[1]
    places = [*range(25, 35), *range(49, 60), *range(96, 109)]
    light = LIGHT[0] + "QQHYTTPPT" + LIGHT[1]
    heavies = set()
    while len(heavies) < n:
        letters = list(parent)
        for place in rng.choice(places, int(rng.integers(1, 9)), replace=False):
            letters[place] = rng.choice(LETTERS)
        if rng.random() < 0.1:
            del letters[int(rng.choice(places))]
        heavies.add("".join(letters))
    return [(heavy, light) for heavy in sorted(heavies)]


def unseen_variants(trained, n, seed=0):
    """Draw n new variants: 1 to 4 mutations of a training sequence."""
    rng = np.random.default_rng(seed)
    seen = set(trained)
    drawn_variants = set()
    while len(drawn_variants) < n:
        heavy, light = trained[rng.integers(len(trained))]
        letters = list(heavy)
        for place in rng.choice(np.arange(25, 110), int(rng.integers(1, 5)), replace=False):
            letters[place] = rng.choice(LETTERS)
        variant = ("".join(letters), light)
        if variant not in seen:
            drawn_variants.add(variant)
    return sorted(drawn_variants)


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure_variants(name, library, n_trained, n) -> str:
    """Recognise n variants of a library; return a row of the table.

    Prints a digest of the result, too, which another version of the code should have as well.
    """
    order = np.random.default_rng(0).permutation(len(library))[:n_trained]
    trained = [library[i] for i in order]
    asked = unseen_variants(trained, n)
    seen = known("antibody", trained, is_library=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # nothing is numbered yet
        seconds = []
        clock = []
        for _ in "ab":  # the second time, the numbering is in the cache
            begun_cpu = cpu_s()
            begun = time.perf_counter()
            compared = seen.compare(asked)
            seconds.append(cpu_s() - begun_cpu)
            clock.append(time.perf_counter() - begun)
    begun_cpu = cpu_s()
    nearest = Distances("antibody", asked, trained).nearest(
        np.arange(len(asked)), np.arange(len(trained))
    )
    alone = cpu_s() - begun_cpu
    content = [*compared, nearest.distance, nearest.row]
    digest = hashlib.sha256(b"".join(array.astype(np.int64).tobytes() for array in content))
    cells = [name, f"{len(trained):,}", f"{n:,}", f"{seconds[0]:.1f}", f"{clock[0]:.1f}"]
    cells += [f"{seconds[1]:.1f}", f"{alone:.1f}", digest.hexdigest()[:8]]
    return "| " + " | ".join(cells) + " |"


def known(kind, trained, *, is_library=False) -> KnownSequences:
    """Keep training sequences as a predictor does."""
    numbers = np.arange(len(trained))
    groups = np.zeros_like(numbers) if is_library else numbers
    side = Side(kind, trained, numbers, groups, groups)
    names = {number: str(number) for number in numbers.tolist()}
    return KnownSequences.of(side, names, 0.9 if kind == "antibody" else 0.4)


def timed(seen, sequences):
    """Recognise sequences; return the result and milliseconds for each."""
    begun = time.perf_counter()
    level = seen.compare(sequences).level
    return level != NEW, 1000 * (time.perf_counter() - begun) / len(sequences)


def row_of(kind, seed, trained, recognised, exact, clones, ms) -> str:
    """Return a row of the table."""
    n = len(recognised)
    right = (recognised == exact) | clones
    only_recognised = int((recognised & ~exact & ~clones).sum())
    cells = [
        kind,
        seed,
        trained,
        n,
        f"{right.mean():.1%}",
        only_recognised,
        int((~recognised & exact).sum()),
    ]
    cells += [int(clones.sum()), int((recognised & clones).sum()), f"{ms:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def loops(antibodies) -> list[str]:
    """Return the CDR H3 of each antibody."""
    numbered = number_antibodies(antibodies, None)["heavy"]
    positions, residues = align([chains[0] for chains in antibodies], numbered)
    columns = [i for i, name in enumerate(positions) if position_number(name) in CDR_H3]
    return ["".join(chr(c) for c in row[columns] if c > ord("-")) for row in residues]


def near_antibody(antibody, other) -> tuple[bool, bool]:
    """Return whether two antibodies, with their CDR H3, are near-duplicates, and whether clones."""
    chains, loop = antibody
    others, loop_of_other = other
    shared = [pair for pair in zip(chains, others, strict=True) if all(pair)]
    first, second = ("".join(side) for side in zip(*shared, strict=True)) if shared else ("", "")
    length = max(len(first), len(second))
    near = bool(length) and Levenshtein.distance(first, second) <= int(0.1 * length + 1e-9)
    if not loop or len(loop) != len(loop_of_other):
        return near, False
    substitutions = sum(a != b for a, b in zip(loop, loop_of_other, strict=True))
    heavy = Levenshtein.distance(chains[0], others[0])
    longest = max(len(chains[0]), len(others[0]))
    return near, substitutions <= 0.2 * len(loop) and heavy <= 0.3 * longest


def near_antigen(antigen, other) -> bool:
    """Return whether a chain of one antigen lies in one of the other, with few differences."""
    for a in antigen:
        for b in other:
            shorter, longer = sorted((a, b), key=len)
            alignment = edlib.align(shorter, longer, mode="HW", k=int(0.1 * len(shorter)))
            if alignment["editDistance"] >= 0:
                return True
    return False


def measure(kind, sequences, seed, most) -> str | None:
    """Hold out a fifth at random; return a row of the table."""
    order = np.random.default_rng(seed).permutation(len(sequences))[:most]
    chosen = [sequences[i] for i in order]
    n = len(chosen) // 5
    if not n:
        return None
    asked = chosen[:n]
    trained = chosen[n:]
    seen = known(kind, trained)
    recognised, ms = timed(seen, asked)
    clones = np.zeros(n, bool)
    if kind == "antibody":
        named = [*zip(chosen, loops(chosen), strict=True)]
        exact = np.zeros(n, bool)
        for i, antibody in enumerate(named[:n]):
            relations = np.array([near_antibody(antibody, other) for other in named[n:]])
            exact[i], clones[i] = relations.any(axis=0)
        clones &= ~exact
    else:
        exact = np.zeros(n, bool)
        for i, antigen in enumerate(asked):
            exact[i] = any(near_antigen(antigen, other) for other in trained)
    return row_of(kind, seed, len(trained), recognised, exact, clones, ms)


def print_variants(a) -> None:
    """Measure and print how long variants of a planted library, or of a table's, take."""
    if a.table is None:
        name = "planted"
        library = planted(a.trained)
    else:
        name = a.table.name
        library = list(read_pairs(a.table).sequences["antibody"].chains)
    print("| library | in training | asked | CPU s | s | again, CPU s | nearest, CPU s | digest |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for n in a.variants:
        print(measure_variants(name, library, a.trained, n), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--drawn", type=int)
    parser.add_argument("--asked", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", type=int, nargs="+")
    parser.add_argument("--trained", type=int, default=11_000)
    a = parser.parse_args()
    if a.variants:
        print_variants(a)
        return
    if (a.table is None) == (a.drawn is None):
        parser.error("expected either TABLE or --drawn")
    print(f"### {a.table.name if a.table else f'{a.drawn:,} drawn antibodies'}\n")
    print(
        "| kind | seed | in training | asked | right | new called known | known called new | "
        "clones only | of them called known | ms each |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    if a.drawn:
        print(measure_drawn(a.drawn, a.asked))
        return
    for kind, unique in read_pairs(a.table).sequences.items():
        for seed in range(a.seeds):
            row = measure(kind, list(unique.chains), seed, a.sequences)
            if row:
                print(row, flush=True)


if __name__ == "__main__":
    main()
