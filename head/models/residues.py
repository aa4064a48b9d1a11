"""Models of the residues of variants: antibodies are columns of residues, not vectors.

A place holds a residue of the reference, the consensus of the training antibodies, or what is
inserted after it. Residues are equal or not (one-hot), or have coordinates whose squared distances
are 2 - 2 x similarity, from BLOSUM62 (Henikoff and Henikoff, PNAS 89, 1992) divided so that each is
1 with itself (Jankowiak et al., arXiv 2606.11057). N antibodies, A in training, S places (2 L + 1
for L positions), V of them where these differ, C columns, F training pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Matrix, distinct
from abag.embed.sequences.chains import RESIDUES
from abag.head.data.vectors import Standardizer
from abag.head.models.gaussian_process import (
    GaussianProcess,
    ProcessSettings,
    fit_gaussian_process,
)
from abag.head.models.pair_model import Arrays, DoesNotApply, PairVectors, TrainingRows
from abag.head.models.ridge import (
    FeatureBlock,
    LinearModel,
    LinearSettings,
    fit_ridge,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Chains
    from abag.head.models.pair_model import Index

SHARED_LENGTH = 0.5
"""Share of the pairs with one common length from which residues are compared by position."""
NOTHING, GAP = ".", "-"
"""What is in the place of an insertion in most chains, and in that of a deleted residue."""
LETTERS = NOTHING + GAP + RESIDUES
MOST_PLACES = 20_000
"""Of the reference in a predictor."""
LEAST_IDENTITY = 0.5
"""Mean share of residues in common with the consensus; unrelated domains have about half."""
MAX_PRODUCTS = 2 * 10**11
"""Products of columns above which the ridge, which would take minutes, is left out."""
TRAIN = "antibody.train"
WIDE = 10.0
"""How much wider the kernel of the third view is: nearly linear in the number of substitutions."""
RESIDUE_WEIGHTS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))
"""Weights that are tried: equal or not; substitutions; these, and almost linear in them."""
ORDER = "ARNDCQEGHILKMFPSTWYV"
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


# ---- residues as columns -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneHot:
    """What each column stands for."""

    reference: tuple[str, ...]
    """Heavy and light chain; one may be empty."""
    seen: tuple[str, ...]
    """Letters of the training antibodies at each place, (S,). Two or more have a column each."""
    marks_new: bool
    """Whether each place has a further column, its first, for all other letters."""

    def __post_init__(self) -> None:
        """Refuse what no training antibodies give, since predictors come from files."""
        places = sum(2 * len(chain) + 1 for chain in self.reference)
        valid = (
            len(self.reference) == 2
            and set("".join(self.reference)) <= set(RESIDUES)
            and len(self.seen) == places <= MOST_PLACES
            and all(0 < len(one) == len(set(one) & set(LETTERS)) for one in self.seen)
            and self.width > 0
        )
        if not valid:
            msg = f"one-hot columns of a reference with {places} places and {len(self.seen)} lists"
            raise ValueError(msg)

    @classmethod
    def of(
        cls, chains: Sequence[Chains], reference: tuple[str, str], *, marks_new: bool
    ) -> OneHot | None:
        """Collect the letters of training antibodies; None if there is nothing to tell them by."""
        present = (np.flatnonzero(np.bincount(place)) for place in _align(chains, reference).T)
        seen = tuple(bytes(letters.tolist()).decode() for letters in present)
        if not marks_new and not any(len(one) > 1 for one in seen):
            return None
        return cls(reference, seen, marks_new)

    @property
    def width(self) -> int:
        varied = sum(len(one) for one in self.seen if len(one) > 1)
        return varied + self.marks_new * len(self.seen)

    def encode(self, chains: Sequence[Chains], *, alike: bool = False) -> Matrix:
        """Return one row per antibody, see `encode_codes`."""
        return self.encode_codes(_align(chains, self.reference), alike=alike)

    def encode_codes(self, codes_NS: NDArray[np.uint8], *, alike: bool) -> Matrix:
        """Return columns of 0 and 1, (N, C), and if `alike` the coordinates as two more views."""
        views = [np.empty((len(codes_NS), self.width), np.float32) for _ in range(1 + alike)]
        first = 0
        for codes_N, letters in zip(codes_NS.T, self.seen, strict=True):
            tables = indicators(letters, self.marks_new), coordinates(letters)
            after = first + tables[0].shape[1]
            for x_NC, table in zip(views, tables, strict=False):
                x_NC[:, first:after] = table[codes_N]
            first = after
        return np.hstack([*views, views[1]]) if alike else views[0]

    def pack(self, x_NC: Matrix) -> NDArray[np.uint8]:
        """Return the letters of training antibodies where these differ, (A, V), from `encode`."""
        packed, first = [], 0
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
            msg = f"{TRAIN} is of type {codes_AV.dtype} and shape {codes_AV.shape}"
            raise ValueError(msg)
        common = "".join(letters[0] for letters in self.seen)
        codes_AS = np.tile(np.frombuffer(common.encode(), np.uint8), (len(codes_AV), 1))
        codes_AS[:, varied] = codes_AV
        return codes_AS


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
    found, codes = np.eye(256), np.frombuffer(ORDER.encode(), np.uint8)
    found[np.ix_(codes, codes)] = odds / root / root[:, None]
    return found


def coordinates(seen: str) -> Matrix:
    """Return the coordinates of every letter at a place with these letters, (256, C).

    The first is 0 for seen letters; where nothing varies, squared distances are half as large.
    """
    alike, codes = similarity(), np.frombuffer(seen.encode(), np.uint8)
    if len(codes) == 1:
        return np.sqrt(np.maximum(0, 1 - alike[:, codes])).astype(np.float32)
    root = np.linalg.cholesky(alike[np.ix_(codes, codes)] + JITTER * np.eye(len(codes)))
    inside = np.linalg.solve(root, alike[codes]).T
    outside = np.sqrt(np.maximum(0, 1 - np.square(inside).sum(axis=1)))
    outside[codes] = 0
    return np.hstack([outside[:, None], inside]).astype(np.float32)


def _align(chains: Sequence[Chains], reference: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letter of each antibody at each place, as ASCII codes, (N, S)."""
    return np.hstack(
        [_align_chain([one[at] for one in chains], chain) for at, chain in enumerate(reference)]
    )


def _align_chain(texts: Sequence[str], reference: str) -> NDArray[np.uint8]:
    """Return the letters of one chain: places of insertions and positions alternate, (N, S)."""
    from rapidfuzz.distance import Levenshtein

    length = len(reference)
    codes_NS = np.full((len(texts), 2 * length + 1), ord(NOTHING), np.uint8)
    same = [row for row, text in enumerate(texts) if len(text) == length]
    letters = np.frombuffer("".join(texts[row] for row in same).encode(), np.uint8)
    codes_NS[same, 1::2] = letters.reshape(len(same), length)
    for row, text in enumerate(texts):
        for edit in Levenshtein.opcodes(reference, text) if len(text) != length else ():
            first, last = 2 * edit.src_start, 2 * edit.src_end
            found = text[edit.dest_start : edit.dest_end].encode()
            if edit.tag == "insert":
                codes_NS[row, first] = found[0]
            else:  # a replacement has as many letters on both sides, a deletion none
                codes_NS[row, first + 1 : last : 2] = list(found or GAP.encode())
    return codes_NS


# ---- what they are compared with -----------------------------------------------------------------


def common_reference(chains: Sequence[Chains], of_pair: Index) -> tuple[str, str] | None:
    """Return the consensus of the antibodies of pairs, (R,), if most pairs share their lengths."""
    lengths = [tuple(map(len, one)) for one in chains]
    usual, most = Counter(lengths[i] for i in np.sort(of_pair).tolist()).most_common(1)[0]
    if most < SHARED_LENGTH * len(of_pair):
        return None
    of_usual = [chains[i] for i in distinct(of_pair).tolist() if lengths[i] == usual]
    from abag.head.regimes.clusters import consensus  # imports pandas, which --help does not

    heavy, light = (consensus([one[at] for one in of_usual]) for at in (0, 1))
    return heavy, light


def identity(chains: Sequence[Chains], reference: tuple[str, str]) -> float:
    """Return the share of the reference's residues that antibodies have in place, on average."""
    expected_S = _align([reference], reference)[0]
    positions = expected_S != ord(NOTHING)
    return float((_align(chains, reference) == expected_S)[:, positions].mean())


def find_reference(head: str, chains: Sequence[Chains], of_pair: Index) -> tuple[str, str]:
    """Return what a head compares the antibodies of the training pairs, (F,), with."""
    reference, used = common_reference(chains, of_pair), trained_antibodies(chains, of_pair)
    if reference is None:
        found = f"fewer than {SHARED_LENGTH:.0%} of the training pairs have antibodies of the same "
        found += "lengths"
    elif len(used) == 1:
        found = "all training pairs have the same antibody"
    elif (shared := identity(used, reference)) < LEAST_IDENTITY:
        found = f"the training antibodies share {shared:.0%} of their residues with their "
        found += f"consensus, less than {LEAST_IDENTITY:.0%}"
    else:
        return reference
    msg = f"{head}: {found}; expected variants of one antibody, or another --head"
    raise DoesNotApply(msg)


def trained_antibodies(chains: Sequence[Chains], of_pair: Index) -> list[Chains]:
    return [chains[i] for i in distinct(of_pair).tolist()]


def with_residues(vectors: PairVectors, one_hot: OneHot, *, alike: bool = False) -> PairVectors:
    """Put columns of residues in place of the vectors of antibodies."""
    x_NC = one_hot.encode(vectors.chains(), alike=alike)
    views = (one_hot.width,) * (3 if alike else 1)
    return replace(vectors, antibody_ND=x_NC, views=(views, vectors.widths(1)))


# ---- models --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResidueSettings:
    """The part of a `ResidueKernel` that is no array."""

    one_hot: OneHot
    process: ProcessSettings

    @property
    def alike(self) -> bool:
        """Whether there are views of substitutions, see `RESIDUE_WEIGHTS`."""
        return len(self.process.antibody.widths) > 1


@dataclass(frozen=True, slots=True)
class ResidueKernel:
    """A Gaussian process whose antibodies are columns of residues."""

    one_hot: OneHot
    inner: GaussianProcess

    @property
    def settings(self) -> ResidueSettings:
        return ResidueSettings(self.one_hot, self.inner.settings)

    def _features(self, vectors: PairVectors) -> PairVectors:
        return with_residues(vectors, self.one_hot, alike=self.settings.alike)

    def predict(self, vectors: PairVectors) -> Floats:
        return self.inner.predict(self._features(vectors))

    def variance(self, vectors: PairVectors) -> Floats:
        return self.inner.variance(self._features(vectors))

    def difference_variance(self, vectors: PairVectors, other: Index) -> Floats:
        return self.inner.difference_variance(self._features(vectors), other)

    def arrays(self) -> Arrays:
        arrays = self.inner.arrays()
        return {**arrays, TRAIN: self.one_hot.pack(arrays[TRAIN][:, : self.one_hot.width])}

    @classmethod
    def load(cls, arrays: Arrays, settings: ResidueSettings) -> ResidueKernel:
        one_hot = settings.one_hot
        train_AC = one_hot.encode_codes(one_hot.unpack(arrays[TRAIN]), alike=settings.alike)
        process = GaussianProcess.load({**arrays, TRAIN: train_AC}, settings.process)
        return cls(one_hot, process)


def fit_residue_kernel(training: TrainingRows, head: str, *, alike: bool) -> ResidueKernel:
    chains, of_pair = training.vectors.chains(), training.vectors.antibody[training.rows]
    reference = find_reference(head, chains, of_pair)
    one_hot = OneHot.of(trained_antibodies(chains, of_pair), reference, marks_new=True)
    assert one_hot is not None
    residues = training.with_vectors(with_residues(training.vectors, one_hot, alike=alike))
    weights, stretch = (RESIDUE_WEIGHTS, (1.0, 1.0, WIDE)) if alike else (None, ())
    process = fit_gaussian_process(
        residues, "error", scale_antibodies=False,
        antibody_weights=weights, antibody_stretch=stretch,
    )  # fmt: skip
    return ResidueKernel(one_hot, process)


@dataclass(frozen=True, slots=True)
class OneHotRidgeSettings(LinearSettings):
    """The part of a `OneHotRidge` that is no array."""

    one_hot: OneHot


class OneHotRidge(LinearModel):
    """A ridge whose antibodies are columns of residues, and whose antigens have no weight."""

    __slots__ = ()
    settings: OneHotRidgeSettings

    def predict(self, vectors: PairVectors) -> Floats:
        return LinearModel.predict(self, with_residues(vectors, self.settings.one_hot))


def columns_of(chains: Sequence[Chains], of_pair: Index) -> OneHot:
    """Return the columns of residues for a ridge on the antibodies of the training pairs, (F,)."""
    reference = find_reference("one_hot_ridge", chains, of_pair)
    trained = trained_antibodies(chains, of_pair)
    one_hot = OneHot.of(trained, reference, marks_new=False)
    if one_hot is None or len(trained) * one_hot.width**2 > MAX_PRODUCTS:
        msg = (
            f"one_hot_ridge: {len(trained):,} training antibodies; expected few enough for a ridge "
            "in a minute. Use another --head."
        )
        raise DoesNotApply(msg)
    return one_hot


def fit_one_hot_ridge(training: TrainingRows) -> OneHotRidge:
    vectors, rows = training.vectors, training.rows
    chains = vectors.chains()
    one_hot = columns_of(chains, vectors.antibody[rows])
    block = FeatureBlock(one_hot.encode(chains), vectors.antibody.astype(np.int64))
    fit = fit_ridge([block], training.pairs.pkd, rows, training.fold, training.device)
    width = vectors.antigen_ME.shape[1]
    return OneHotRidge(
        OneHotRidgeSettings(fit.intercept, one_hot),
        Standardizer.identity(one_hot.width),
        Standardizer.identity(width),
        fit.weights[0],
        np.zeros(width),
    )
