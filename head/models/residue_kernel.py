"""Models of the residues of variants: a side of a pair is columns of residues, not a vector.

A side whose sequences are variants of one, antibodies or antigens, is compared place by place with
the consensus of its training sequences, see `residue_columns`; the other side keeps its vectors. A
place holds a residue of the reference, or what is inserted after it. Residues are equal or not
(one-hot), or have coordinates whose squared distances are 2 - 2 x similarity, from BLOSUM62
(Henikoff and Henikoff, PNAS 89, 1992) divided so that each is 1 with itself (Jankowiak et al.,
arXiv 2606.11057).

N sequences, A in training, S places (2 L + 1 for L positions of a chain), V of them where these
differ, C columns; P pairs, F of them in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from abag.core.arrays import Floats, Ints, Matrix, distinct
from abag.embed.tables.chains import KINDS, PLURAL, RESIDUES, Kind
from abag.head.models.kernel_search import ColumnViews, fit_gaussian_process
from abag.head.models.kernels import (
    BLOCK,
    GaussianProcess,
    KernelSide,
    PairKernel,
    ProcessSettings,
    split,
    squared_distances,
)
from abag.head.models.pair_vectors import (
    Arrays,
    DoesNotApply,
    PairModel,
    PairVectors,
    Standardizer,
    TrainingRows,
)
from abag.head.models.ridge import (
    FeatureBlock,
    LinearModel,
    LinearSettings,
    LinearSide,
    fit_beside_features,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.tables.chains import Chains
    from abag.head.models.pair_vectors import Index


NOTHING = "."
"""Stands in the place of an insertion in most chains."""
GAP = "-"
"""Stands in the place of a deleted residue."""
LETTERS = NOTHING + GAP + RESIDUES
"""All letters that a place may have."""
MOST_PLACES = 20_000
"""Places of a reference, at most."""
ORDER = "ARNDCQEGHILKMFPSTWYV"
"""Residues of the rows and columns of `BLOSUM62`."""
BLOSUM62 = """
 4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0
-1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3
-2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3
-2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3
 0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1
-1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2
-1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2
 0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3
-2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3
-1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
"""
"""Scores in half bits: twice the logarithm, base 2, of observed / expected."""
JITTER = 1e-9
"""Added to similarities of a letter with itself, which keeps their matrix positive."""
MOST_TABLES = 4_096
"""Tables of letters at a place that are kept, each of some kilobytes."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """Encode the residues of variants as columns; each stands for a letter at a place."""

    reference: tuple[str, ...]
    """Heavy and light chain, of which one may be empty, or the chains of an antigen."""
    seen: tuple[str, ...]
    """Letters of the training sequences at each place, (S,). Two or more have a column each."""
    marks_new: bool
    """Whether each place has a further column, its first, for all other letters, and the columns
    are followed by the views of substitutions, see `RESIDUE_WEIGHTS`."""

    def __post_init__(self) -> None:
        """Refuse what no training sequences give, since predictors come from files."""
        places = sum(2 * len(chain) + 1 for chain in self.reference)
        has_residues = set("".join(self.reference)) <= set(RESIDUES)
        has_letters = all(0 < len(seen) == len(set(seen) & set(LETTERS)) for seen in self.seen)
        fits = len(self.seen) == places <= MOST_PLACES
        if not (has_residues and fits and has_letters and self.width):
            msg = f"one-hot columns of a reference with {places} places and {len(self.seen)} lists"
            raise ValueError(msg)

    @classmethod
    def of(
        cls, chains: Sequence[Chains], reference: tuple[str, ...], *, marks_new: bool
    ) -> OneHot | None:
        """Collect the letters of training sequences; None if there is nothing to tell them by."""
        seen = []
        for codes_A in align(chains, reference).T:
            present = np.flatnonzero(np.bincount(codes_A))
            seen.append(bytes(present.tolist()).decode())
        if not marks_new and max(map(len, seen)) < 2:
            return None
        return cls(reference, tuple(seen), marks_new)

    @property
    def width(self) -> int:
        """Return the number of columns."""
        varied = sum(len(letters) for letters in self.seen if len(letters) > 1)
        return varied + self.marks_new * len(self.seen)

    @property
    def views(self) -> tuple[int, ...]:
        """Return the columns of each view."""
        return (self.width,) * (len(RESIDUE_STRETCH) if self.marks_new else 1)

    @property
    def bounds(self) -> Ints:
        """Return the first column of each place, and the number of columns, (S + 1,)."""
        varied = [len(letters) if len(letters) > 1 else 0 for letters in self.seen]
        return np.cumsum([0, *varied]) + self.marks_new * np.arange(len(varied) + 1)

    def encode(self, chains: Sequence[Chains]) -> Matrix:
        """Return one row per sequence, see `encode_codes`."""
        return self.encode_codes(align(chains, self.reference))

    def encode_codes(self, codes_NS: NDArray[np.uint8]) -> Matrix:
        """Return columns of 0 and 1, (N, C), and with `marks_new` coordinates as two more views."""
        width = self.width
        # filled in place: joining the views would copy hundreds of MB
        x_NC = np.empty((len(codes_NS), sum(self.views)), np.float32)
        first = 0
        for codes_N, letters in zip(codes_NS.T, self.seen, strict=True):
            table = indicators(letters, self.marks_new)
            after = first + table.shape[1]
            x_NC[:, first:after] = table[codes_N]
            if self.marks_new:
                x_NC[:, width + first : width + after] = coordinates(letters)[codes_N]
            first = after
        if self.marks_new:
            x_NC[:, 2 * width :] = x_NC[:, width : 2 * width]
        return x_NC

    def pack(self, x_NC: Matrix) -> NDArray[np.uint8]:
        """Return the letters of training sequences where these differ, (A, V), from `encode`."""
        packed = []
        first = 0
        for letters in self.seen:
            after = first + self.marks_new + (len(letters) if len(letters) > 1 else 0)
            if len(letters) > 1:
                codes = np.frombuffer(letters.encode(), np.uint8)
                packed.append(codes[x_NC[:, first + self.marks_new : after].argmax(axis=1)])
            first = after
        return np.stack(packed, axis=1) if packed else np.zeros((len(x_NC), 0), np.uint8)

    def unpack(self, codes_AV: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the letters at all places, (A, S), from `pack`."""
        varied = [place for place, letters in enumerate(self.seen) if len(letters) > 1]
        if codes_AV.dtype != np.uint8 or codes_AV.shape[1:] != (len(varied),):
            msg = f"the training residues are of type {codes_AV.dtype} and shape {codes_AV.shape}"
            raise ValueError(msg)
        common = "".join(letters[0] for letters in self.seen)
        codes_AS = np.tile(np.frombuffer(common.encode(), np.uint8), (len(codes_AV), 1))
        codes_AS[:, varied] = codes_AV
        return codes_AS


@lru_cache(maxsize=MOST_TABLES)
def indicators(seen: str, marks_new: bool) -> Matrix:
    """Return the columns of 0 and 1 of every letter at a place with these letters, (256, C)."""
    codes = np.frombuffer(seen.encode(), np.uint8)
    table = np.zeros((256, marks_new + (len(codes) if len(codes) > 1 else 0)), np.float32)
    if marks_new:
        table[:, 0] = 1
        table[codes, 0] = 0
    if len(codes) > 1:
        table[codes, marks_new + np.arange(len(codes))] = 1
    return table


@cache
def similarity() -> Floats:
    """Return the similarity of each two letters, (256, 256); no residue is like another letter."""
    scores = np.array(BLOSUM62.split(), np.float64).reshape(len(ORDER), -1)
    odds = np.exp2(scores / 2)
    root = np.sqrt(odds.diagonal())
    alike = np.eye(256)
    codes = np.frombuffer(ORDER.encode(), np.uint8)
    alike[np.ix_(codes, codes)] = odds / root / root[:, None]
    return alike


@lru_cache(maxsize=MOST_TABLES)
def coordinates(seen: str) -> Matrix:
    """Return the coordinates of every letter at a place with these letters, (256, C).

    The first is 0 for seen letters; where nothing varies, squared distances are half as large.
    """
    alike = similarity()
    codes = np.frombuffer(seen.encode(), np.uint8)
    if len(codes) == 1:
        return np.sqrt(np.maximum(0, 1 - alike[:, codes])).astype(np.float32)
    root = np.linalg.cholesky(alike[np.ix_(codes, codes)] + JITTER * np.eye(len(codes)))
    inside = np.linalg.solve(root, alike[codes]).T
    outside = np.sqrt(np.maximum(0, 1 - np.square(inside).sum(axis=1)))
    outside[codes] = 0
    return np.hstack([outside[:, None], inside]).astype(np.float32)


def align(chains: Sequence[Chains], reference: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letter of each sequence at each place, as ASCII codes, (N, S).

    Chains that the reference lacks follow its last one, as an insertion; one that it has more is
    deleted.
    """
    last = len(reference) - 1
    columns = []
    for number, text in enumerate(reference):
        end = number + 1 if number < last else None
        texts = ["".join(sequence[number:end]) for sequence in chains]
        columns.append(_align_chain(texts, text))
    return np.hstack(columns)


def _align_chain(texts: Sequence[str], reference: str) -> NDArray[np.uint8]:
    """Return the letters of one chain: places of insertions and positions alternate, (N, S)."""
    from rapidfuzz.distance import Levenshtein

    length = len(reference)
    codes_NS = np.full((len(texts), 2 * length + 1), ord(NOTHING), np.uint8)
    same = [row for row, text in enumerate(texts) if len(text) == length]
    letters = np.frombuffer("".join(texts[row] for row in same).encode(), np.uint8)
    codes_NS[same, 1::2] = letters.reshape(len(same), length)
    for row, text in enumerate(texts):
        if len(text) == length:  # compared as it stands, not by an insertion and a deletion
            continue
        for edit in Levenshtein.opcodes(reference, text):
            first = 2 * edit.src_start
            last = 2 * edit.src_end
            letters_here = text[edit.dest_start : edit.dest_end].encode()
            if edit.tag == "insert":
                codes_NS[row, first] = letters_here[0]
            else:  # a replacement has as many letters on both sides, a deletion none
                codes_NS[row, first + 1 : last : 2] = list(letters_here or GAP.encode())
    return codes_NS


def places_of(sequence: Sequence[str], reference: Sequence[str]) -> dict[tuple[int, int], int]:
    """Return the place of each residue of a sequence, by its chain and its index in the chain.

    A residue behind the first of an insertion has none.
    """
    from rapidfuzz.distance import Levenshtein

    places: dict[tuple[int, int], int] = {}
    if len(sequence) != len(reference):
        return places
    first = 0
    for chain, (text, expected) in enumerate(zip(sequence, reference, strict=True)):
        if len(text) == len(expected):  # as `align` compares them
            places |= {(chain, at): first + 2 * at + 1 for at in range(len(text))}
        else:
            for edit in Levenshtein.opcodes(expected, text):
                if edit.tag == "insert":
                    places[chain, edit.dest_start] = first + 2 * edit.src_start
                elif edit.tag != "delete":
                    for step in range(edit.dest_end - edit.dest_start):
                        places[chain, edit.dest_start + step] = (
                            first + 2 * (edit.src_start + step) + 1
                        )
        first += 2 * len(expected) + 1
    return places


SHARED_LENGTH = 0.5
"""Share of the pairs with one common length from which residues are compared by position."""
MOST_LETTERS = 10**8
"""Training sequences x places above which a side is not compared by residues: columns and kernels
would take many times as many bytes."""
LEAST_IDENTITY = 0.5
"""Mean share of residues in common with the consensus; unrelated domains have about half."""
MAX_PRODUCTS = 2 * 10**11
"""Products of columns above which the ridge, which would take minutes, is left out."""
WIDE = 10.0
"""How much wider the kernel of the third view is: nearly linear in the number of substitutions."""
RESIDUE_WEIGHTS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))
"""Weights that are tried: equal or not; substitutions; these, and almost linear in them."""
RESIDUE_STRETCH = (1.0, 1.0, WIDE)
"""Factors of the units of the views."""
RESIDUE_KERNEL = "residue_kernel"
"""Name of the model, and of the search for its kernels."""


# ---- which sides, and what they are compared with ------------------------------------------------


@dataclass(frozen=True, slots=True)
class SideColumns:
    """Hold the columns of residues of one side."""

    kind: Kind
    one_hot: OneHot

    def __post_init__(self) -> None:
        """Refuse antibodies that have no two chains."""
        if self.kind == "antibody" and len(self.one_hot.reference) != 2:
            msg = f"one-hot columns of an antibody with {len(self.one_hot.reference)} chains"
            raise ValueError(msg)


def chains_of(vectors: PairVectors, kind: Kind) -> Sequence[Chains]:
    """Return the chains of unique sequences in an order that a mutation does not change."""
    chains = vectors.chains(kind)
    if kind == "antibody":
        return chains
    # those of an antigen are sorted by their letters
    return [tuple(sorted(antigen, key=len)) for antigen in chains]


def shared_lengths(chains: Sequence[Chains], of_pair: Index) -> tuple[int, ...] | None:
    """Return the lengths of the chains that most pairs, (R,), have; None if no such are."""
    lengths = [tuple(map(len, sequence)) for sequence in chains]
    lengths_of_pairs = Counter(lengths[i] for i in np.sort(of_pair).tolist())
    usual, most = lengths_of_pairs.most_common(1)[0]
    return usual if most >= SHARED_LENGTH * len(of_pair) else None


def common_reference(chains: Sequence[Chains], of_pair: Index) -> tuple[str, ...] | None:
    """Return the consensus of the sequences of pairs, (R,), if most pairs share their lengths."""
    usual = shared_lengths(chains, of_pair)
    if usual is None:
        return None
    used = trained_sequences(chains, of_pair)
    usual_chains = [sequence for sequence in used if tuple(map(len, sequence)) == usual]
    from abag.head.regimes.relations import consensus  # imports pandas, which --help does not

    reference = []
    for number in range(len(usual)):
        reference.append(consensus([sequence[number] for sequence in usual_chains]))
    return tuple(reference)


def identity(chains: Sequence[Chains], reference: tuple[str, ...]) -> float:
    """Return the share of the reference's residues that sequences have in place, on average.

    A residue counts where it is more common than any other: each of two unrelated sequences of one
    length has half of their consensus.
    """
    from abag.head.regimes.relations import count_letters

    expected_S = align([reference], reference)[0]
    positions = np.flatnonzero(expected_S != ord(NOTHING))
    others_LK = count_letters(align(chains, reference)[:, positions])
    expected = np.arange(len(positions)), expected_S[positions]
    count_L = others_LK[expected]
    others_LK[expected] = 0
    is_usual_L = count_L > others_LK.max(axis=1)
    return float(count_L[is_usual_L].sum() / (len(chains) * len(positions)))


def why_no_variants(kind: Kind, chains: Sequence[Chains], of_pair: Index) -> str:
    """Return why a side of training pairs, (F,), is not compared by residues; empty if it is."""
    reference = common_reference(chains, of_pair)
    plural = PLURAL[kind]
    if reference is None:
        share = f"{SHARED_LENGTH:.0%}"
        return f"fewer than {share} of the training pairs have {plural} of the same lengths"
    used = trained_sequences(chains, of_pair)
    if len(used) == 1:
        return f"all training pairs have the same {kind}"
    residues = sum(map(len, reference))
    places = 2 * residues + len(reference)
    if places > MOST_PLACES or places * len(used) > MOST_LETTERS:
        return f"{len(used):,} training {plural} of {residues:,} residues are too many columns"
    shared = identity(used, reference)
    if shared < LEAST_IDENTITY:
        return (
            f"the training {plural} share {shared:.0%} of their residues with their consensus, "
            f"less than {LEAST_IDENTITY:.0%}"
        )
    return ""


def find_residue_sides(vectors: PairVectors, fits: Sequence[Ints]) -> tuple[tuple[Kind, ...], str]:
    """Return the sides that every fit can compare by residues, and why there are none.

    Parameters
    ----------
    vectors : PairVectors
        With the chains of the sequences; a side whose chains are unknown has no residues.
    fits : sequence of ndarray
        The training pairs of each fit.
    """
    reasons: dict[Kind, str] = {}
    for kind in KINDS:
        side = vectors.sides[kind]
        if kind == "antigen" and side.chains is None:
            reasons[kind] = "the chains of the antigens are unknown"
            continue
        chains = chains_of(vectors, kind)
        index = side.index
        reasons_of_fits = (why_no_variants(kind, chains, index[rows]) for rows in fits)
        reasons[kind] = next(filter(None, reasons_of_fits), "")
    sides = tuple(kind for kind, reason in reasons.items() if not reason)
    if sides:
        return sides, ""
    why_none = ", and ".join(reasons.values())
    return (), f"{why_none}; expected variants of one antibody or antigen, or another --head"


def sides_of(training: TrainingRows) -> tuple[tuple[Kind, ...], str]:
    """Return the sides that models compare by residues, as the run decided; else those of a fit.

    With them comes why the fit has none.
    """
    if training.residue_sides is not None:
        return training.residue_sides, ""
    return find_residue_sides(training.vectors, [training.rows])


def residue_sides(training: TrainingRows, head: str) -> tuple[Kind, ...]:
    """Return the sides that a head compares by residues; raise `DoesNotApply` if there is none."""
    sides, why_none = sides_of(training)
    if why_none:
        msg = f"{head}: {why_none}"
        raise DoesNotApply(msg)
    return sides


def trained_sequences(chains: Sequence[Chains], of_pair: Index) -> list[Chains]:
    """Return the unique sequences of training pairs, given the number of each pair's, (F,)."""
    return [chains[i] for i in distinct(of_pair).tolist()]


def columns_of(
    vectors: PairVectors, rows: Ints, sides: Sequence[Kind], *, marks_new: bool
) -> tuple[SideColumns, ...]:
    """Return the columns of the sides of training pairs, (F,), without those that do not vary."""
    columns = list[SideColumns]()
    for kind in sides:
        chains = chains_of(vectors, kind)
        of_pair = vectors.sides[kind].index[rows]
        reference = common_reference(chains, of_pair)
        assert reference is not None
        used = trained_sequences(chains, of_pair)
        one_hot = OneHot.of(used, reference, marks_new=marks_new)
        if one_hot is not None:
            columns.append(SideColumns(kind, one_hot))
    return tuple(columns)


def with_residues(vectors: PairVectors, sides: Sequence[SideColumns]) -> PairVectors:
    """Put columns of residues in place of the vectors of some sides."""
    encoded = dict(vectors.sides)
    for side in sides:
        x_NC = side.one_hot.encode(chains_of(vectors, side.kind))
        encoded[side.kind] = replace(encoded[side.kind], x_ND=x_NC, views=side.one_hot.views)
    return replace(vectors, sides=encoded)


def _check_sides(sides: Sequence[SideColumns]) -> None:
    """Raise ValueError unless there are columns of one side or of both, once each."""
    kinds = [side.kind for side in sides]
    if not kinds or kinds != [kind for kind in KINDS if kind in kinds]:
        msg = f"one-hot columns of the sides {', '.join(kinds) or 'none'}"
        raise ValueError(msg)


# ---- models --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LetterSide(KernelSide):
    """Training sequences that new ones are compared with by letter, and not by columns.

    The columns of a place depend on its letter alone. So squared distances are those of the
    reference, and what each other letter adds: thousands of columns are never made. P pairs as in
    `kernels`, S places, L letters, U letters at a place that a block of sequences has and the
    reference has not.
    """

    one_hot: OneHot
    z_LC: Matrix
    """Scaled columns of sequences that have one letter everywhere, (256, C)."""
    usual_1C: Matrix
    """Scaled columns of the reference."""
    usual_VA: Floats
    """Squared distances of the reference from the training sequences in each of V views."""

    @classmethod
    def reading(cls, side: KernelSide, columns: SideColumns) -> LetterSide:
        """Return a side of columns as one that reads letters."""
        one_hot = columns.one_hot
        z_LC = side.scaling.apply(_letter_columns(columns))
        usual_1C = side.scaling.apply(one_hot.encode([one_hot.reference]))
        views = zip(split(usual_1C, side.widths), split(side.train_AD, side.widths), strict=True)
        usual_VA = np.concatenate([squared_distances(*of_view) for of_view in views])
        return cls(
            side.scaling,
            side.widths,
            side.units,
            side.train_AD,
            one_hot,
            z_LC,
            usual_1C,
            usual_VA,
        )

    def select(self, used: Index) -> LetterSide:
        """Return the side with some of the training sequences."""
        return replace(self, train_AD=self.train_AD[used], usual_VA=self.usual_VA[:, used])

    def kernel(self, kernel: PairKernel, side: int, x_ND: NDArray[Any]) -> Floats:
        """Return the kernel of sequences, given as letters from `align`, (N, S), with training."""
        similar_NA = np.empty((len(x_ND), len(self.train_AD)))
        for at in range(0, len(x_ND), BLOCK):
            rows = slice(at, at + BLOCK)
            squared = self._by_letter(x_ND[rows], kernel.weights[side])
            similar_NA[rows] = kernel.of_views(side, squared)
        return similar_NA

    def _by_letter(self, code_NS: NDArray[np.uint8], weights: Sequence[float]) -> list[Floats]:
        """Return what `distances` does of the columns of these letters."""
        from abag.head.regimes.similar import unusual_letters  # imports pandas and scipy

        usual_S = align([self.one_hot.reference], self.one_hot.reference)[0]
        unusual_NU, place_U, letter_U = unusual_letters(code_NS, usual_S, np.dtype(np.float64))
        bounds = self.one_hot.bounds
        width = self.one_hot.width
        step = max(1, MOST_VALUES // max(1, len(letter_U)))
        distances = []
        for view, (unit, weight) in enumerate(zip(self.units, weights, strict=True)):
            if not weight:
                distances.append(np.empty((0, 0)))
                continue
            of_view = slice(view * width, (view + 1) * width)
            z_LC = self.z_LC[:, of_view]
            usual_1C = self.usual_1C[:, of_view]
            squared_NA = np.empty((len(code_NS), len(self.train_AD)))
            for at in range(0, len(self.train_AD), step):
                train_BC = self.train_AD[at : at + step, of_view]
                usual_B = self.usual_VA[view, at : at + step]
                more_UB = np.empty((len(letter_U), len(train_BC)))
                for number in distinct(place_U).tolist():
                    part = slice(*bounds[number : number + 2])
                    here = slice(*np.searchsorted(place_U, [number, number + 1]))
                    usual_1P = usual_1C[:, part].astype(np.float64)
                    z_UP = z_LC[letter_U[here], part].astype(np.float64)
                    # |z - t|^2 - |usual - t|^2 of training columns t
                    more_UB[here] = -2 * (z_UP - usual_1P) @ train_BC[:, part].T.astype(np.float64)
                    more_UB[here] += (np.square(z_UP) - np.square(usual_1P)).sum(axis=1)[:, None]
                squared_NA[:, at : at + step] = unusual_NU @ more_UB + usual_B
            distances.append(np.maximum(squared_NA, 0) / unit)
        return distances


@dataclass(frozen=True, slots=True)
class ResidueSettings:
    """Hold the part of a `ResidueKernel` that is no array."""

    sides: tuple[SideColumns, ...]
    process: ProcessSettings

    def __post_init__(self) -> None:
        """Refuse what no fit gives."""
        _check_sides(self.sides)
        for side in self.sides:
            of_process = getattr(self.process, side.kind)
            if not side.one_hot.marks_new or of_process.widths != side.one_hot.views:
                msg = f"residues of {side.kind} with views of {of_process.widths} columns"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class ResidueKernel(PairModel):
    """Predict by a Gaussian process in which variants are columns of residues."""

    compared: tuple[SideColumns, ...]
    """The sides that are compared by residues."""
    inner: GaussianProcess

    @property
    def settings(self) -> ResidueSettings:
        """Return what `load` needs beside the arrays."""
        return ResidueSettings(self.compared, self.inner.settings)

    def encode(self, vectors: PairVectors) -> PairVectors:
        """Put columns of residues in place of the vectors that the inner process reads."""
        return with_residues(vectors, self.compared)

    def reading(self, vectors: PairVectors) -> tuple[GaussianProcess, PairVectors]:
        """Return a process that reads letters in place of columns, and pairs with their letters."""
        compared = dict(zip(KINDS, self.inner.train.sides, strict=True))
        read = dict(vectors.sides)
        for side in self.compared:
            compared[side.kind] = LetterSide.reading(compared[side.kind], side)
            code_NS: NDArray[Any] = align(chains_of(vectors, side.kind), side.one_hot.reference)
            read[side.kind] = replace(read[side.kind], x_ND=code_NS)
        pairs = replace(self.inner.train, sides=tuple(compared.values()))
        return replace(self.inner, train=pairs), replace(vectors, sides=read)

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,)."""
        process, read = self.reading(vectors)
        return process.predict(read)

    def exchange_losses(self, encoded: PairVectors, side: SideColumns) -> LossesOf:
        """Return a function of what predictions lose by exchanged letters of one side.

        Squared distances are sums over places: one place is taken off and another letter added.
        """
        process = self.inner
        number = KINDS.index(side.kind)
        train = process.train.sides[number]
        here = encoded.sides[side.kind]
        z_LC = train.scaling.apply(_letter_columns(side))
        kernel = process.kernel
        used = [n for n, weight in enumerate(kernel.weights[number]) if weight]
        squared = train.distances(train.scaling.apply(here.x_ND), kernel.weights[number])
        similar_NA = kernel.of_views(number, squared)
        value_PA = process.values_of(encoded, number)
        width = side.one_hot.width

        def losses_of(
            own_P: NDArray[np.uint8], seen_V: NDArray[np.uint8], columns: slice
        ) -> Floats:
            away = []  # from training sequences, of each letter at this place, by view
            for view in used:
                part = slice(view * width + columns.start, view * width + columns.stop)
                of_place = squared_distances(z_LC[:, part], train.train_AD[:, part])
                away.append(of_place / train.units[view])
            loss_PV = np.empty((len(own_P), len(seen_V)))
            step = max(1, MOST_VALUES // (len(seen_V) * len(train.train_AD)))
            for at in range(0, len(own_P), step):
                rows = slice(at, at + step)
                exchanged = [np.empty((0, 0))] * len(squared)
                for view, of_place in zip(used, away, strict=True):
                    kept_PA = squared[view][here.index[rows]] - of_place[own_P[rows]]
                    exchanged[view] = np.maximum(kept_PA[:, None] + of_place[seen_V], 0)
                lost_PVA = similar_NA[here.index[rows], None] - kernel.of_views(number, exchanged)
                loss_PV[rows] = (lost_PVA @ value_PA[rows, :, None])[..., 0]
            return loss_PV

        return losses_of

    def variance(self, vectors: PairVectors) -> Floats:
        """Return the variance of each prediction in pKd^2, (P,)."""
        process, read = self.reading(vectors)
        return process.variance(read)

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        """Return the variance of each pair's difference from an `other` pair in pKd^2, (P,)."""
        return self.inner.difference_variance(self.encode(vectors), other)

    def arrays(self) -> Arrays:
        """Return the arrays of the process, with residues as letters."""
        arrays = {**self.inner.arrays()}
        for side in self.compared:
            name = f"{side.kind}.train"
            arrays[name] = side.one_hot.pack(arrays[name][:, : side.one_hot.width])
        return arrays

    @classmethod
    def load(cls, arrays: Arrays, settings: ResidueSettings) -> ResidueKernel:
        """Restore from the `arrays` of a predictor; ValueError if they do not fit."""
        unpacked = {**arrays}
        for side in settings.sides:
            name = f"{side.kind}.train"
            codes_AS = side.one_hot.unpack(arrays[name])
            unpacked[name] = side.one_hot.encode_codes(codes_AS)
        return cls(settings.sides, GaussianProcess.load(unpacked, settings.process))


class ResidueTraining(NamedTuple):
    """Hold what a process of residues is fitted to."""

    sides: tuple[SideColumns, ...]
    rows: TrainingRows
    """Training rows with columns of residues in place of the vectors of these sides."""
    views: Mapping[Kind, ColumnViews]


def residue_training(training: TrainingRows) -> ResidueTraining:
    """Compare variants by residues; raise `DoesNotApply` if no side has variants."""
    kinds = residue_sides(training, RESIDUE_KERNEL)
    sides = columns_of(training.vectors, training.rows, kinds, marks_new=True)
    rows = training.with_vectors(with_residues(training.vectors, sides))
    views = ColumnViews(RESIDUE_WEIGHTS, RESIDUE_STRETCH)
    return ResidueTraining(sides, rows, dict.fromkeys(kinds, views))


def fit_residue_kernel(training: TrainingRows) -> ResidueKernel:
    """Fit a process to columns of residues; raise `DoesNotApply` if no side has variants."""
    sides, rows, views = residue_training(training)
    process = fit_gaussian_process(rows, "error", views=views, columns=RESIDUE_KERNEL)
    return ResidueKernel(sides, process)


@dataclass(frozen=True, slots=True)
class OneHotRidgeSettings(LinearSettings):
    """Hold the part of a `OneHotRidge` that is no array."""

    sides: tuple[SideColumns, ...]

    def __post_init__(self) -> None:
        """Refuse what no fit gives."""
        _check_sides(self.sides)


class OneHotRidge(LinearModel):
    """Predict by a ridge on columns of residues; a side without any has no weight."""

    __slots__ = ()
    settings: OneHotRidgeSettings

    @property
    def compared(self) -> tuple[SideColumns, ...]:
        """Return the sides that are compared by residues."""
        return self.settings.sides

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,)."""
        return LinearModel.predict(self, with_residues(vectors, self.compared))

    def exchange_losses(self, _encoded: PairVectors, side: SideColumns) -> LossesOf:
        """Return a function of what predictions lose by exchanged letters of one side."""
        linear = self.sides[side.kind]
        z_LC = linear.scaling.apply(_letter_columns(side))

        def losses_of(
            own_P: NDArray[np.uint8], seen_V: NDArray[np.uint8], columns: slice
        ) -> Floats:
            value_L = z_LC[:, columns] @ linear.weight_D[columns]
            return np.asarray(value_L[own_P][:, None] - value_L[seen_V])

        return losses_of


def ridge_columns(
    vectors: PairVectors, rows: Ints, kinds: Sequence[Kind]
) -> tuple[SideColumns, ...]:
    """Return the columns of a ridge on training pairs, (F,); `DoesNotApply` if it takes minutes."""
    sides = columns_of(vectors, rows, kinds, marks_new=False)
    total = sum(side.one_hot.width for side in sides)
    counts = {kind: len(distinct(vectors.sides[kind].index[rows])) for kind in kinds}
    products = sum(counts[side.kind] * side.one_hot.width * total for side in sides)
    if not sides or products > MAX_PRODUCTS:
        sizes = " and ".join(f"{count:,} training {PLURAL[kind]}" for kind, count in counts.items())
        msg = (
            f"one_hot_ridge: {sizes}; expected few enough for a ridge in a minute. Use another "
            "--head."
        )
        raise DoesNotApply(msg)
    return sides


def fit_one_hot_ridge(training: TrainingRows) -> OneHotRidge:
    """Fit a ridge to columns of residues; raise `DoesNotApply` if no side has variants."""
    vectors = training.vectors
    rows = training.rows
    sides = ridge_columns(vectors, rows, residue_sides(training, "one_hot_ridge"))
    encoded = with_residues(vectors, sides)
    blocks = list[FeatureBlock]()
    for columns in sides:
        side = encoded.sides[columns.kind]
        blocks.append(FeatureBlock(side.x_ND, side.index.astype(np.int64)))
    fit, features = fit_beside_features(blocks, training)
    linear: dict[Kind, LinearSide] = {}
    for kind, side in encoded.sides.items():
        width = side.x_ND.shape[1]
        linear[kind] = LinearSide(Standardizer.identity(width), np.zeros(width))
    for columns, weight_C in zip(sides, fit.weights, strict=True):
        linear[columns.kind] = replace(linear[columns.kind], weight_D=weight_C)
    return OneHotRidge(OneHotRidgeSettings(fit.intercept, sides), linear, features)


# ---- what each residue contributes ---------------------------------------------------------------


MOST_VALUES = 1 << 22
"""Kernels of exchanged residues with training sequences that are in memory at a time."""


class Exchange(NamedTuple):
    """What predictions of P pairs lose with each of V letters at one place."""

    kind: Kind
    place: int
    """See the head of this module."""
    own_P: NDArray[np.uint8]
    """Letter of each pair, as its ASCII code."""
    reference: int
    """Letter of the consensus of the training sequences."""
    letters: str
    """Those that training has here, (V,)."""
    loss_PV: Floats
    """Prediction less that with each of the letters, in pKd; 0 with that of the pair itself."""


LossesOf: TypeAlias = Callable[["NDArray[np.uint8]", "NDArray[np.uint8]", slice], Floats]
"""Returns what predictions lose with each of V letters, (P, V), given the letters of the pairs,
(P,), these letters, (V,), and the columns of the place."""


@runtime_checkable
class ComparesResidues(Protocol):
    """Predict by columns of residues, and by the same ones with a letter exchanged."""

    @property
    def compared(self) -> tuple[SideColumns, ...]:
        """Return the sides that are compared by residues."""

    def exchange_losses(self, encoded: PairVectors, side: SideColumns) -> LossesOf:
        """Return a function of what predictions lose by exchanged letters of one side.

        `encoded` are pairs with columns of residues in place of the vectors of `compared` sides.
        """


def exchanges(model: ComparesResidues, vectors: PairVectors) -> Iterator[Exchange]:
    """Exchange the letters of pairs one by one, and yield what their predictions lose.

    Only places are looked at where training sequences differ, or a pair has a letter that none of
    them has: elsewhere nothing is known.
    """
    encoded = with_residues(vectors, model.compared)
    for side in model.compared:
        one_hot = side.one_hot
        codes_PS = align(chains_of(vectors, side.kind), one_hot.reference)
        codes_PS = codes_PS[encoded.sides[side.kind].index]
        reference_S = align([one_hot.reference], one_hot.reference)[0]
        losses_of = model.exchange_losses(encoded, side)
        first = 0
        for place, letters in enumerate(one_hot.seen):
            after = first + indicators(letters, one_hot.marks_new).shape[1]
            seen_V = np.frombuffer(letters.encode(), np.uint8)
            own_P = codes_PS[:, place]
            is_own_PV = own_P[:, None] == seen_V
            if after > first and not is_own_PV.all():
                loss_PV = losses_of(own_P, seen_V, slice(first, after))
                loss_PV[is_own_PV] = 0.0
                reference = int(reference_S[place])
                yield Exchange(side.kind, place, own_P, reference, letters, loss_PV)
            first = after


def _letter_columns(side: SideColumns) -> Matrix:
    """Return the columns of sequences that have one letter everywhere, (256, C)."""
    x_LC = np.zeros((256, sum(side.one_hot.views)), np.float32)
    codes = np.frombuffer(LETTERS.encode(), np.uint8)
    codes_NS = np.repeat(codes[:, None], len(side.one_hot.seen), axis=1)
    x_LC[codes] = side.one_hot.encode_codes(codes_NS)
    return x_LC
