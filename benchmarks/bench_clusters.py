"""Time the clustering of synthetic antibodies and antigens, and check it against all pairs.

    python benchmarks/bench_clusters.py [--case CASE ...] [--antibodies N] [--antigens N]

The antibodies resemble a repertoire: 50 x 40 germlines of unequal frequency, random CDRH3 loops,
clones of several members, and 0 to 20 % of mutations. The antigens are unrelated proteins of
different lengths, or mutants. Those called drawn are the random chains of one length of the table
of `bench_time_to_answer.py`. Antigens of drawn lengths are unrelated ones with the lengths and the residue frequencies of
proteins, strains differ like gp160 of HIV, and variants have a few mutations of one antigen. The clusters of a sample are
compared with those of aligning every pair. `--table CSV` clusters the column `antigen` of a table instead. `--libraries` times
one alignment of antigens of drawn lengths by each library that is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import resource
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from rapidfuzz import __version__ as rapidfuzz_version
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist, cpdist
from scipy import sparse

from abag.core.cores import count_cores
from abag.head.regimes.relations import antibody_clusters, antigen_clusters, clone_clusters
from abag.head.regimes.similar import Block

RESIDUES = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
FREQUENCIES = np.array(
    [
        8.25,
        1.38,
        5.46,
        6.72,
        3.86,
        7.07,
        2.27,
        5.91,
        5.8,
        9.65,
        2.41,
        4.06,
        4.74,
        3.93,
        5.53,
        6.63,
        5.35,
        6.86,
        1.1,
        2.92,
    ]
)
"""Of the residues in UniProtKB/Swiss-Prot, percent."""
TRASTUZUMAB = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPT"
    "FGQGTKVEIK",
)


def synthetic_antibodies(n, seed=0):
    """Synthetic antibodies (heavy, light) of germlines, clones and mutations."""
    rng = np.random.default_rng(seed)

    def germlines(count, length):
        root = rng.integers(20, size=length)
        families = [
            np.where(rng.random(length) < 0.35, rng.integers(20, size=length), root)
            for _ in range(7)
        ]
        return [
            np.where(rng.random(length) < 0.12, rng.integers(20, size=length), families[k % 7])
            for k in range(count)
        ]

    def one_of(pool):
        share = 1 / np.arange(1, len(pool) + 1)
        return pool[rng.choice(len(pool), p=share / share.sum())]

    def mutated(chain, rate):
        hit = rng.random(len(chain)) < rate
        return "".join(RESIDUES[np.where(hit, rng.integers(20, size=len(chain)), chain)])

    heavies = germlines(50, 98)
    lights = germlines(40, 95)
    ends = [rng.integers(20, size=length) for length in (11, 12)]
    antibodies = []
    while len(antibodies) < n:
        loop = rng.integers(20, size=int(np.clip(rng.normal(13, 3.5), 5, 25)))
        heavy = np.concatenate([one_of(heavies), loop, ends[0]])
        light = np.concatenate([one_of(lights), ends[1]])
        for _ in range(1 if rng.random() < 0.8 else int(rng.geometric(0.2))):
            rate = rng.exponential(0.05)
            antibodies.append((mutated(heavy, rate), mutated(light, rate)))
    return antibodies[:n]


def synthetic_antigens(n, length=350, families=None, seed=1):
    """Unrelated proteins of about `length` residues, or point mutants of a few."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(length), 0.3, families or n), 60, 3 * length).astype(int)
    parents = [rng.integers(20, size=k) for k in lengths]
    if not families:
        return [("".join(RESIDUES[parent]),) for parent in parents]
    antigens = []
    for _ in range(n):
        child = parents[rng.integers(families)].copy()
        child[rng.integers(len(child), size=3)] = rng.integers(20, size=3)
        antigens.append(("".join(RESIDUES[child]),))
    return antigens


def library(n, mutations=8, seed=4):
    """Variants of one antibody with as many mutations in each chain, at random places."""
    rng = np.random.default_rng(seed)
    parents = [np.searchsorted(RESIDUES, list(chain)) for chain in TRASTUZUMAB]
    sequences = []
    for _ in range(n):
        children = [parent.copy() for parent in parents]
        for child in children:
            at = rng.choice(len(child), mutations, replace=False)
            child[at] = (child[at] + rng.integers(1, 20, size=mutations)) % 20
        sequences.append(tuple("".join(RESIDUES[child]) for child in children))
    return sequences


def proteins(lengths, rng):
    """Unrelated proteins of these lengths."""
    share = FREQUENCIES / FREQUENCIES.sum()
    return [RESIDUES[rng.choice(20, length, p=share)] for length in lengths]


def drawn_lengths(n, seed=0):
    """Unrelated antigens of 30 to 1,022 residues, with a median of 300."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(300), 0.6, n), 30, 1022).astype(int)
    return [("".join(letters),) for letters in proteins(lengths, rng)]


def strains(n, seed=0):
    """Strains of one protein of 850 residues that have 70 to 84 % in common, with loops of other lengths."""
    rng = np.random.default_rng(seed)
    (parent,) = proteins([850], rng)
    sequences = []
    for _ in range(n):
        hit = rng.random(850) < rng.uniform(0.08, 0.17)
        letters = np.where(hit, RESIDUES[rng.integers(20, size=850)], parent).tolist()
        for _ in range(rng.integers(8)):
            at = rng.integers(len(letters))
            length = rng.integers(1, 8)
            if rng.random() < 0.5:
                del letters[at : at + length]
            else:
                letters[at:at] = RESIDUES[rng.integers(20, size=length)].tolist()
        sequences.append(("".join(letters),))
    return sequences


def variants(n, seed=0):
    """Variants of one antigen of 200 residues with 1 to 10 mutations."""
    rng = np.random.default_rng(seed)
    (parent,) = proteins([200], rng)
    sequences = []
    for _ in range(n):
        child = parent.copy()
        at = rng.choice(200, rng.integers(1, 11), replace=False)
        child[at] = RESIDUES[rng.integers(20, size=len(at))]
        sequences.append(("".join(child),))
    return sequences


def every_pair(texts, identity):
    """Clusters of strings by aligning every pair."""
    lengths = np.array([len(text) for text in texts])
    firsts = []
    seconds = []
    for start in range(0, len(texts), 500):
        block = slice(start, start + 500)
        distances = cdist(
            texts[block],
            texts,
            scorer=Levenshtein.distance,
            dtype=np.int32,
            workers=-1,
            score_cutoff=int(lengths.max() * (1 - identity)) + 1,
        )
        longer = np.maximum.outer(lengths[block], lengths)
        first, second = np.nonzero(distances <= np.floor((1 - identity) * longer + 1e-9))
        firsts.append(first + start)
        seconds.append(second)
    ends = (np.concatenate(firsts), np.concatenate(seconds))
    graph = sparse.coo_array((np.ones(len(ends[0])), ends), 2 * lengths.shape)
    return sparse.csgraph.connected_components(graph, directed=False)[1]


def timed(name, call):
    """Run, and describe the time in one line of Markdown."""
    begun = time.perf_counter()
    before = cpu_seconds()
    result = call()
    wall = time.perf_counter() - begun
    cpu = cpu_seconds() - before
    counts = ", ".join(f"{labels.max() + 1:,}" for labels in result)
    line = f"| {name} | {counts} | {wall:.1f} | {cpu:.1f} | {peak_mib():.0f} |"
    print(line, file=sys.stderr, flush=True)
    return result, line


def cpu_seconds():
    """CPU time of this process and of those that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def peak_mib():
    """Peak resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def drawn(n, length):
    """Random chains of one length."""
    numbers = np.random.default_rng(0).integers(20, size=(n, length), dtype=np.uint8)
    return [(row.tobytes().decode(),) for row in RESIDUES.astype("S1")[numbers]]


def by_identity(antibodies):
    """Cluster antibodies at 90 %."""
    return [antibody_clusters(antibodies, 0.9)]


def with_clones(antibodies):
    """Cluster antibodies as a fit does: by clones, and by identity where that joins others."""
    clones = clone_clusters(antibodies)
    return [clones, antibody_clusters(antibodies, 0.9, clones)]


def as_a_fit(antigens):
    """Cluster antigens at 40 %, and inside these clusters at 90 %."""
    far = antigen_clusters(antigens, 0.4)
    return [far, antigen_clusters(antigens, 0.9, within=far)]


def cases(n_antibodies, n_antigens):
    """By name: sequences, and how they are clustered."""
    return {
        "antibodies, 90 %": (lambda: synthetic_antibodies(n_antibodies), by_identity),
        "drawn antibodies, 90 %": (
            lambda: [(a[:120], a[120:]) for (a,) in drawn(n_antibodies, 228)],
            by_identity,
        ),
        "variants of one antibody, 90 %": (lambda: library(n_antibodies * 4 // 11), by_identity),
        "variants of one antibody, clones and 90 %": (
            lambda: library(n_antibodies * 4 // 11),
            with_clones,
        ),
        "drawn antigens, 40 and 90 %": (lambda: drawn(n_antigens, 300), as_a_fit),
        "unrelated antigens, 40 and 90 %": (lambda: synthetic_antigens(n_antigens), as_a_fit),
        "antigens of drawn lengths, 40 %": (
            lambda: drawn_lengths(n_antigens),
            lambda antigens: [antigen_clusters(antigens, 0.4)],
        ),
        "strains of gp160, 40 and 90 %": (lambda: strains(n_antigens * 3 // 10), as_a_fit),
        "variants of one antigen, 40 and 90 %": (lambda: variants(n_antigens * 35 // 3), as_a_fit),
        "mutants of 20 antigens, 40 and 90 %": (
            lambda: synthetic_antigens(n_antigens * 5, families=20),
            as_a_fit,
        ),
    }


def from_table(path):
    """The case of a table's antigens, with their chains separated by `|`."""
    antigens = sorted(set(pd.read_csv(path)["antigen"]))
    chains = [tuple(text.split("|")) for text in antigens]
    return {f"antigens of {path.name}, 40 and 90 %": (lambda: chains, as_a_fit)}


def clusterings(chosen):
    """Markdown table of clusterings."""
    lines = ["| what | clusters | s | CPU s | peak MiB so far |", "|---|---|---|---|---|"]
    for name, (make, method) in chosen.items():
        sequences = make()
        lines.append(timed(f"{len(sequences):,} {name}", lambda: method(sequences))[1])
    return lines


def checked(n_antibodies, sample):
    """Markdown table of a sample of the antibodies, and whether its clusters are right."""
    antibodies = synthetic_antibodies(n_antibodies)
    few = [antibodies[i] for i in np.random.default_rng(2).permutation(n_antibodies)[:sample]]
    levels = [0.95, 0.9, 0.8]
    title = f"{len(few):,} antibodies, 95%, 90%, 80%"
    clusters, line = timed(title, lambda: [antibody_clusters(few, level) for level in levels])
    lines = [line, ""]
    for labels, identity in zip(clusters, levels, strict=True):
        expected = every_pair(["".join(chains) for chains in few], identity)
        n_joint = len(np.unique(np.stack([labels, expected]), axis=1).T)
        equal = n_joint == labels.max() + 1 == expected.max() + 1
        verdict = "equal to" if equal else "DIFFERENT FROM"
        lines.append(
            f"Clusters of the {len(few):,} at {identity:.0%}: {verdict} aligning all pairs."
        )
    return lines


def libraries(n=300):
    """Markdown table: time of one alignment of antigens of drawn lengths inside longer ones."""
    texts = sorted((drawn for (drawn,) in drawn_lengths(n)), key=len)
    asked = range(0, n - 1, 5)
    pairs = [(i, j) for i in asked for j in range(i + 1, n)]
    edits = [int(0.6 * len(text) + 1e-9) for text in texts]
    blocks = {i: Block(texts[i + 1 :]) for i in asked}
    joined = {i: "".join(texts[i + 1 :]) for i in asked}
    first = [texts[i] for i, _ in pairs]
    second = [texts[j] for _, j in pairs]
    rows = {
        "abag without a library, in all others": lambda: [
            blocks[i].distances(texts[i]) for i in asked
        ],
        "rapidfuzz, common subsequence, which bounds the edits": lambda: cpdist(
            first, second, scorer=LCSseq.similarity
        ),
        "rapidfuzz, edits of whole strings": lambda: cpdist(
            first, second, scorer=Levenshtein.distance
        ),
    }
    if importlib.util.find_spec("edlib"):
        import edlib

        rows["edlib, each pair"] = lambda: [
            edlib.align(texts[i], texts[j], mode="HW", k=edits[i]) for i, j in pairs
        ]
        rows["edlib, in all others in sequence"] = lambda: [
            edlib.align(texts[i], joined[i], mode="HW", k=edits[i]) for i in asked
        ]
    if importlib.util.find_spec("parasail"):
        import parasail

        matrix = parasail.matrix_create("".join(RESIDUES), 0, -1)
        for bits in (8, 16):  # 8 bits overflow above 127 edits
            align = getattr(parasail, f"sg_dx_striped_{bits}")
            profile = getattr(parasail, f"profile_create_{bits}")
            search = getattr(parasail, f"sg_dx_striped_profile_{bits}")
            rows[f"parasail, {bits} bits, each pair"] = lambda align=align: [
                align(texts[i], texts[j], 1, 1, matrix) for i, j in pairs
            ]
            rows[f"parasail, {bits} bits, in all others in sequence"] = (
                lambda search=search, profile=profile: [
                    search(profile(texts[i], matrix), joined[i], 1, 1) for i in asked
                ]
            )
    lines = ["", "| one alignment inside a longer antigen | CPU us |", "|---|--:|"]
    for name, call in rows.items():
        begun = time.process_time()
        call()
        lines.append(f"| {name} | {(time.process_time() - begun) / len(pairs) * 1e6:.2f} |")
    return lines


def main():
    """Run and print; write the report into a folder if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=cases(0, 0), default=list(cases(0, 0)))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--antibodies", type=int, default=110_000)
    parser.add_argument("--antigens", type=int, default=3_000)
    parser.add_argument("--sample", type=int, default=0, help="Antibodies to check.")
    parser.add_argument("--libraries", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    every = cases(args.antibodies, args.antigens)
    chosen = from_table(args.table) if args.table else {name: every[name] for name in args.case}
    lines = [
        "# Clusters",
        "",
        f"`bench_clusters.py {' '.join(sys.argv[1:])}`, {date.today()}, {count_cores()} cores "
        f"({platform.machine()}), Python {platform.python_version()}, numpy {np.__version__}, "
        f"rapidfuzz {rapidfuzz_version}.",
        "",
        *clusterings(chosen),
    ]
    if args.sample:
        lines += checked(args.antibodies, args.sample)
    if args.libraries:
        lines += libraries()
    print("\n".join(lines))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"clusters_cpu_{date.today()}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
