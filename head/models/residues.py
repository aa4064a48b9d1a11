"""Models of the residues of variants: antibodies are columns of residues, not vectors.

Where most antibodies share their lengths, residues compared position by position say more than
vectors that average over the whole sequence. The reference has the most common residues of the
training antibodies. A chain of its length is compared by position; another one is aligned to it
with the fewest edits, so that a deletion is the residue ``-`` there, and an insertion is a residue
in a place of its own before, between or behind the positions.

N antibodies, S places (2 L + 1 for L positions of a chain), C columns, F training pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from abag.core.arrays import distinct
from abag.embed.sequences.chains import RESIDUES
from abag.head.data.vectors import Standardizer
from abag.head.models.gaussian_process import (
    GaussianProcess,
    ProcessSettings,
    fit_gaussian_process,
)
from abag.head.models.pair_model import (
    Arrays,
    DoesNotApply,
    Fitted,
    OnFeatures,
    PairVectors,
    TrainingRows,
)
from abag.head.models.ridge import (
    FeatureBlock,
    LinearModel,
    LinearSettings,
    factorise_seconds,
    fit_ridges,
)
from abag.head.models.substitutions import coordinates

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rapidfuzz.distance import Opcodes

    from abag.embed.sequences.chains import Chains
    from abag.head.models.pair_model import FitSize, Index

SHARED_LENGTH = 0.5
"""Share of the pairs with one common length from which residues are compared by position."""
NOTHING, GAP = ".", "-"
"""What is in the place of an insertion in most chains, and in that of a deleted residue."""
LETTERS = NOTHING + GAP + RESIDUES
MOST_PLACES = 20_000
"""Of the reference in a predictor."""
ENCODED = 4_096
"""Antibodies encoded at a time."""
LEAST_IDENTITY = 0.5
"""Mean share of residues in common with the consensus; unrelated domains have about half."""
MAX_PRODUCTS = 2 * 10**11
"""Products of columns above which the ridge, which would take minutes, is left out."""
TRAIN = "antibody.train"
WIDE = 10.0
"""How much wider the kernel of the third view is: nearly linear in the number of substitutions."""
RESIDUE_WEIGHTS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.5, 0.5))
"""Weights that are tried: equal or not; substitutions; substitutions, and almost linear in them,
which stands for the local linearity of the kernels of arXiv 2606.11057."""
USUAL_COLUMNS = 800
"""Of a library, for the estimate of a ridge's time."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """What each column stands for."""

    reference: tuple[str, ...]
    """Heavy and light chain; one may be empty."""
    seen: tuple[str, ...]
    """Letters of the training antibodies at each place, (S,). Two or more have a column each."""
    marks_new: bool
    """Whether each place has a further column for all other letters."""

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
        codes_NS = _aligned(chains, reference)
        present = np.zeros((codes_NS.shape[1], 256), np.bool_)
        for place, codes_N in enumerate(codes_NS.T):
            present[place, codes_N] = True
        seen = tuple(bytes(np.flatnonzero(one).astype(np.uint8)).decode() for one in present)
        if not marks_new and not any(len(one) > 1 for one in seen):
            return None
        return cls(reference, seen, marks_new)

    @property
    def width(self) -> int:
        """Number of columns."""
        varied = sum(len(one) for one in self.seen if len(one) > 1)
        return varied + self.marks_new * len(self.seen)

    def encode(self, chains: Sequence[Chains]) -> NDArray[np.float32]:
        """Return one row per antibody, (N, C) of 0 and 1."""
        column_SB = self._columns()
        x_NC = np.zeros((len(chains), self.width), np.float32)
        for at in range(0, len(chains), ENCODED):
            codes_NS = _aligned(chains[at : at + ENCODED], self.reference)
            column_NS = column_SB[np.arange(len(self.seen)), codes_NS]
            row, place = np.nonzero(column_NS >= 0)
            x_NC[at + row, column_NS[row, place]] = 1
        return x_NC

    def encode_alike(self, chains: Sequence[Chains]) -> NDArray[np.float32]:
        """Return coordinates of substitutions in place of 0 and 1, (N, C); see `coordinates`."""
        x_NC = np.zeros((len(chains), self.width), np.float32)
        for at in range(0, len(chains), ENCODED):
            rows, first = slice(at, at + ENCODED), 0
            codes_NS = _aligned(chains[rows], self.reference)
            for codes_N, letters in zip(codes_NS.T, self.seen, strict=True):
                table = coordinates(letters)
                x_NC[rows, first : first + table.shape[1]] = table[codes_N]
                first += table.shape[1]
        return x_NC

    def alike_of_one_hot(self, x_NC: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `encode_alike` of antibodies that have seen letters only, from `encode`."""
        found, first = np.zeros_like(x_NC), 0
        for letters in self.seen:
            table = coordinates(letters)
            after = first + table.shape[1]
            codes = np.frombuffer(letters.encode(), np.uint8)
            # the first column is that of new letters; a place with one letter has no other
            letter_N = x_NC[:, first + 1 : after].argmax(axis=1) if len(letters) > 1 else 0
            found[:, first:after] = table[codes][letter_N]
            first = after
        return found

    def _columns(self) -> NDArray[np.int32]:
        """Return the column of each letter at each place, (S, 256); -1 for none."""
        column_SB = np.full((len(self.seen), 256), -1, np.int32)
        used = 0
        for of_letter_B, letters in zip(column_SB, self.seen, strict=True):
            codes = list(letters.encode())
            if self.marks_new:
                of_letter_B[:] = used
                of_letter_B[codes] = -1
                used += 1
            if len(codes) > 1:
                of_letter_B[codes] = used + np.arange(len(codes))
                used += len(codes)
        return column_SB


def common_reference(
    chains: Sequence[Chains], of_pair: NDArray[np.integer]
) -> tuple[str, str] | None:
    """Return the consensus of the antibodies of some pairs, if most pairs share their lengths.

    Parameters
    ----------
    chains : sequence of Chains
        Unique antibodies.
    of_pair : NDArray, shape=(R,), dtype=integer
        Antibody of each pair.
    """
    used, times = np.unique(of_pair, return_counts=True)
    lengths = [tuple(map(len, chains[i])) for i in used.tolist()]
    count: Counter[tuple[int, ...]] = Counter()
    for length, n in zip(lengths, times.tolist(), strict=True):
        count[length] += n
    usual, most = count.most_common(1)[0]
    if most < SHARED_LENGTH * len(of_pair):
        return None
    of_usual = [chains[i] for i, one in zip(used.tolist(), lengths, strict=True) if one == usual]
    from abag.head.regimes.clusters import consensus  # imports pandas, which --help does not

    heavy, light = (consensus([one[at] for one in of_usual]) for at in (0, 1))
    return heavy, light


def identity(chains: Sequence[Chains], reference: tuple[str, str]) -> float:
    """Return the share of the reference's residues that antibodies have in place, on average."""
    same = total = 0
    for at in range(0, len(chains), ENCODED):
        codes_NS = _aligned(chains[at : at + ENCODED], reference)
        expected_S = _aligned([reference], reference)[0]
        positions = expected_S != ord(NOTHING)
        same += int((codes_NS == expected_S)[:, positions].sum())
        total += len(codes_NS) * int(positions.sum())
    return same / max(1, total)


def _aligned(chains: Sequence[Chains], reference: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letter of each antibody at each place, as ASCII codes, (N, S)."""
    return np.hstack(
        [_aligned_chain([one[at] for one in chains], chain) for at, chain in enumerate(reference)]
    )


def _aligned_chain(texts: Sequence[str], reference: str) -> NDArray[np.uint8]:
    """Return the letters of one chain: places of insertions and positions alternate, (N, S)."""
    from rapidfuzz.distance import Levenshtein

    length = len(reference)
    codes_NS = np.full((len(texts), 2 * length + 1), ord(NOTHING), np.uint8)
    same = [row for row, text in enumerate(texts) if len(text) == length]
    letters = np.frombuffer("".join(texts[row] for row in same).encode(), np.uint8)
    codes_NS[same, 1::2] = letters.reshape(len(same), length)
    for row, text in enumerate(texts):
        if len(text) != length:
            _align(codes_NS[row], text.encode(), Levenshtein.opcodes(reference, text))
    return codes_NS


def _align(codes_S: NDArray[np.uint8], text: bytes, edits: Opcodes) -> None:
    """Put the letters of one chain into their places, given the edits that lead to it."""
    for edit in edits:
        first, last = 2 * edit.src_start, 2 * edit.src_end
        letters = np.frombuffer(text[edit.dest_start : edit.dest_end], np.uint8)
        if edit.tag == "insert":
            codes_S[first] = letters[0]
        else:  # a replacement has as many letters on both sides
            codes_S[first + 1 : last : 2] = ord(GAP) if edit.tag == "delete" else letters


def find_reference(head: str, chains: Sequence[Chains], of_pair: Index) -> tuple[str, str]:
    """Return what the antibodies of the training pairs, (F,), are compared with by a head.

    Raises `DoesNotApply` if they have no common length, or are unlike each other.
    """
    reference = common_reference(chains, of_pair)
    if reference is None:
        msg = (
            f"{head}: fewer than {SHARED_LENGTH:.0%} of the training pairs have antibodies "
            "of the same lengths; expected variants of one antibody, or another --head"
        )
        raise DoesNotApply(msg)
    used = trained_antibodies(chains, of_pair)
    if len(used) == 1:
        msg = (
            f"{head}: all training pairs have the same antibody; expected variants of one "
            "antibody, or another --head"
        )
        raise DoesNotApply(msg)
    shared = identity(used, reference)
    if shared < LEAST_IDENTITY:
        msg = (
            f"{head}: the training antibodies share {shared:.0%} of their residues with "
            f"their consensus; expected variants of one antibody (at least {LEAST_IDENTITY:.0%}), "
            "or another --head"
        )
        raise DoesNotApply(msg)
    return reference


def trained_antibodies(chains: Sequence[Chains], of_pair: Index) -> list[Chains]:
    """Return the distinct antibodies of the training pairs, (F,)."""
    return [chains[i] for i in distinct(of_pair).tolist()]


@dataclass(frozen=True, slots=True)
class OneHotSettings:
    """The part of a `OneHotKernel` that is no array."""

    one_hot: OneHot
    process: ProcessSettings


@dataclass(frozen=True, slots=True)
class OneHotKernel(OnFeatures):
    """A Gaussian process whose antibodies are columns of residues."""

    one_hot: OneHot
    inner: GaussianProcess

    @property
    def settings(self) -> OneHotSettings:
        """What `load` needs beside the arrays."""
        return OneHotSettings(self.one_hot, self.inner.settings)

    def features(self, vectors: PairVectors) -> PairVectors:
        """Put columns of residues in place of the vectors of antibodies."""
        return with_residues(vectors, self.one_hot)

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays; eight columns of residues are one byte."""
        arrays = self.inner.arrays()
        return {**arrays, TRAIN: np.packbits(arrays[TRAIN] > 0, axis=1)}

    @classmethod
    def load(cls, arrays: Arrays, settings: OneHotSettings) -> OneHotKernel:
        """Restore a model from `arrays` and `settings`."""
        train_AC = _unpack(arrays[TRAIN], settings.one_hot.width)
        process = GaussianProcess.load({**arrays, TRAIN: train_AC}, settings.process)
        return cls(settings.one_hot, process)


def _unpack(packed: NDArray[Any], width: int) -> NDArray[np.float32]:
    """Return columns of 0 and 1, (A, C), of which eight were one byte."""
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != -(-width // 8):
        msg = f"{TRAIN} is of type {packed.dtype} and shape {packed.shape}"
        raise ValueError(msg)
    return np.unpackbits(packed, axis=1, count=width).astype(np.float32)


def _kernel_columns(head: str, training: TrainingRows) -> OneHot:
    """Return the columns of the training antibodies for a kernel."""
    chains, of_pair = training.vectors.chains(), training.vectors.antibody[training.rows]
    reference = find_reference(head, chains, of_pair)
    one_hot = OneHot.of(trained_antibodies(chains, of_pair), reference, marks_new=True)
    assert one_hot is not None
    return one_hot


def with_residues(vectors: PairVectors, one_hot: OneHot) -> PairVectors:
    """Put columns of residues in place of the vectors of antibodies."""
    views = None
    if vectors.views is not None:
        views = ((one_hot.width,), vectors.views[1])
    return vectors._replace(antibody_ND=one_hot.encode(vectors.chains()), views=views)


def fit_one_hot_kernel(training: TrainingRows) -> Fitted:
    """Fit kernel ridge to variants; the inner folds choose the kernel."""
    one_hot = _kernel_columns("one_hot_kernel", training)
    residues = training.with_vectors(with_residues(training.vectors, one_hot))
    fit = fit_gaussian_process(residues, "error", scale_antibodies=False)
    return fit._replace(model=OneHotKernel(one_hot, cast("GaussianProcess", fit.model)))


@dataclass(frozen=True, slots=True)
class ResidueKernel(OneHotKernel):
    """A Gaussian process on three views of residues; see `RESIDUE_WEIGHTS`."""

    def features(self, vectors: PairVectors) -> PairVectors:
        """Put the views of residues in place of the vectors of antibodies."""
        return with_residue_views(vectors, self.one_hot)

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays; the other views follow from the first."""
        arrays, width = self.inner.arrays(), self.one_hot.width
        unused = {f"antibody.{name}" for name in ("mean", "scale")}
        kept = {name: array for name, array in arrays.items() if name not in unused}
        return {**kept, TRAIN: np.packbits(arrays[TRAIN][:, :width] > 0, axis=1)}

    @classmethod
    def load(cls, arrays: Arrays, settings: OneHotSettings) -> ResidueKernel:
        """Restore a model from `arrays` and `settings`."""
        one_hot = settings.one_hot
        train_AC = _unpack(arrays[TRAIN], one_hot.width)
        alike_AC = one_hot.alike_of_one_hot(train_AC)
        views_AC = np.hstack([train_AC, alike_AC, alike_AC])
        scaling = Standardizer.identity(views_AC.shape[1]).arrays("antibody")
        process = GaussianProcess.load({**arrays, **scaling, TRAIN: views_AC}, settings.process)
        return cls(one_hot, process)


def with_residue_views(vectors: PairVectors, one_hot: OneHot) -> PairVectors:
    """Put equal residues, and substitutions twice, in place of the vectors of antibodies."""
    chains = vectors.chains()
    alike_NC = one_hot.encode_alike(chains)
    views = (one_hot.width,) * 3, vectors.widths(1)
    columns = np.hstack([one_hot.encode(chains), alike_NC, alike_NC])
    return vectors._replace(antibody_ND=columns, views=views)


def fit_residue_kernel(training: TrainingRows) -> Fitted:
    """Fit kernel ridge to variants; the inner folds choose how residues are compared."""
    one_hot = _kernel_columns("residue_kernel", training)
    residues = training.with_vectors(with_residue_views(training.vectors, one_hot))
    fit = fit_gaussian_process(
        residues,
        "error",
        scale_antibodies=False,
        antibody_weights=RESIDUE_WEIGHTS,
        antibody_stretch=(1.0, 1.0, WIDE),
    )
    return fit._replace(model=ResidueKernel(one_hot, cast("GaussianProcess", fit.model)))


@dataclass(frozen=True, slots=True)
class OneHotRidgeSettings:
    """The part of a `OneHotRidge` that is no array."""

    one_hot: OneHot
    ridge: LinearSettings


@dataclass(frozen=True, slots=True)
class OneHotRidge(OnFeatures):
    """A ridge whose antibodies are columns of residues, and whose antigens have no weight."""

    one_hot: OneHot
    inner: LinearModel

    @property
    def settings(self) -> OneHotRidgeSettings:
        """What `load` needs beside the arrays."""
        return OneHotRidgeSettings(self.one_hot, self.inner.settings)

    def features(self, vectors: PairVectors) -> PairVectors:
        """Put columns of residues in place of the vectors of antibodies."""
        return with_residues(vectors, self.one_hot)

    @classmethod
    def load(cls, arrays: Arrays, settings: OneHotRidgeSettings) -> OneHotRidge:
        """Restore a model from `arrays` and `settings`."""
        return cls(settings.one_hot, LinearModel.load(arrays, settings.ridge))


def columns_of(chains: Sequence[Chains], of_pair: Index) -> OneHot:
    """Return the columns of residues for a ridge on the antibodies of the training pairs, (F,).

    Raises `DoesNotApply` if they are no variants of each other, or too many. Then even the columns
    of a few antibodies are often too many, and those of all are not collected.
    """
    reference = find_reference("one_hot_ridge", chains, of_pair)
    trained = trained_antibodies(chains, of_pair)
    for size in sorted({min(ENCODED, len(trained)), len(trained)}):
        one_hot = OneHot.of(trained[:size], reference, marks_new=False)
        if one_hot is not None and len(trained) * one_hot.width**2 > MAX_PRODUCTS:
            one_hot = None
            break
    if one_hot is None:
        msg = (
            f"one_hot_ridge: {len(trained):,} training antibodies; expected few enough for a ridge "
            "in a minute. Use another --head."
        )
        raise DoesNotApply(msg)
    return one_hot


def fit_one_hot_ridge(training: TrainingRows) -> Fitted:
    """Fit a ridge to the training pairs; the inner folds choose its strength."""
    vectors, rows = training.vectors, training.rows
    chains = vectors.chains()
    one_hot = columns_of(chains, vectors.antibody[rows])
    block = FeatureBlock(one_hot.encode(chains), vectors.antibody.astype(np.int64))
    pkd, device = training.pairs.pkd, training.device
    fit = fit_ridges([block], pkd, rows, training.fold, [(0,)], device)[0]
    width = vectors.antigen_ME.shape[1]
    linear = LinearModel(
        LinearSettings(fit.intercept),
        Standardizer.identity(one_hot.width),
        Standardizer.identity(width),
        fit.weight_D,
        np.zeros(width),
    )
    return Fitted(OneHotRidge(one_hot, linear))


def residue_ridge_seconds(size: FitSize, cores: int) -> float:
    """Estimate the time of the ridge on residues of a split."""
    return factorise_seconds(min(USUAL_COLUMNS, size.unique[0]), size, cores)
