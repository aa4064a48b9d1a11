"""The splits of ``abag fit`` as cross-validators of scikit-learn.

R rows of X, P distinct pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.model_selection import BaseCrossValidator

from abag.core.cache import cache_dir
from abag.core.options import Declaration, OptionSchema, schema
from abag.core.python_surface import naming_keywords
from abag.head.estimators.sequence_frame import labelled, pair_of_row, read_frame
from abag.head.regimes.groups import PairGroups
from abag.head.regimes.split_methods import SPLIT_METHODS
from abag.head.regimes.split_options import ComparedRegion, SplitOptions
from abag.head.regimes.splits import TEST, UNUSED

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_SKLEARN_NAMES = {"folds": "n_splits", "repeats": "n_repeats"}


def _as_argument(one: OptionSchema) -> OptionSchema:
    """Return an option of the command line under the name that it has here."""
    flag: Declaration = {**one.declaration, "flag": one.flag}
    return replace(one, name=_SKLEARN_NAMES.get(one.name, one.name), declaration=flag)


_ARGUMENTS = {one.name: one for one in map(_as_argument, schema(SplitOptions))}
"""What errors name instead of flags."""


class _PairSplit(BaseCrossValidator):  # type: ignore[misc] # scikit-learn has no types
    """Folds of ``abag fit --split NAME --folds K --repeats R``; rows of one pair stay together."""

    _method: ClassVar[str]
    n_splits: int
    n_repeats: int
    seed: int
    columns: Mapping[str, str] | None

    def split(
        self, X: pd.DataFrame, y: object = None, groups: object = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows of the training part and of the test part of each fold.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row, in columns such as ``heavy``, ``light`` and ``antigen``.
        y, groups : object
            Ignored; the sequences decide.

        Yields
        ------
        train, test : ndarray, dtype=int64
            Positions of rows. ``BothSplit`` leaves some rows out of both.

        Raises
        ------
        AbagError
            If a sequence is invalid, or there are fewer groups than folds.
        """
        if groups is not None:
            words = f"The groups parameter is ignored by {type(self).__name__}"
            warnings.warn(words, UserWarning, stacklevel=2)
        with naming_keywords(_ARGUMENTS):
            pairs, of_row = self._read(X)
            splits = SPLIT_METHODS[self._method](pairs, self._options())
        for one in splits:
            part = one.part[of_row]
            yield np.flatnonzero((part != TEST) & (part != UNUSED)), np.flatnonzero(part == TEST)

    def groups(self, X: pd.DataFrame, kind: str | None = None) -> NDArray[np.int64]:
        """Return the group of each row, shape (R,), for splitters such as ``GroupKFold``.

        `kind` is ``antigen``, ``antibody`` or ``random`` (the pair); by default what this splitter
        holds out, and for ``BothSplit`` the antigen.
        """
        default = "antigen" if self._method == "both" else self._method
        with naming_keywords(_ARGUMENTS):
            pairs, of_row = self._read(X)
            return pairs.of_method(kind or default)[of_row]

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        """Return the number of folds over all repeats."""
        return self.n_splits * self.n_repeats

    def _read(self, X: pd.DataFrame) -> tuple[PairGroups, NDArray[np.int64]]:
        pairs = labelled(read_frame(X, columns=self.columns))
        return PairGroups(pairs, self._options(), cache_dir() / "clusters"), pair_of_row(pairs)

    def _options(self) -> SplitOptions:
        """Return the options that ``abag fit`` would have; it checks their values."""
        own = ("antigen_identity", "antibody_identity", "antibody_by")
        given: dict[str, Any] = {n: getattr(self, n) for n in own if hasattr(self, n)}
        return SplitOptions(
            split=self._method, folds=self.n_splits, repeats=self.n_repeats, seed=self.seed, **given
        )


class RandomSplit(_PairSplit):
    """Hold out random pairs: both sequences of a test pair may be in training.

    Parameters
    ----------
    n_splits, n_repeats : int
        Folds, and repetitions with other folds.
    seed : int
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    """

    _method = "random"

    def __init__(
        self,
        n_splits: int = 5,
        *,
        n_repeats: int = 1,
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.n_splits, self.n_repeats = n_splits, n_repeats
        self.seed, self.columns = seed, columns


class AntigenSplit(_PairSplit):
    """Hold out whole clusters of antigens, as ``abag fit --split antigen``.

    Parameters
    ----------
    n_splits, n_repeats : int
        Folds, and repetitions with other folds.
    antigen_identity : float
        Sequence identity from which antigens share a cluster.
    seed : int
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    """

    _method = "antigen"

    def __init__(
        self,
        n_splits: int = 5,
        *,
        n_repeats: int = 1,
        antigen_identity: float = 0.4,
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.n_splits, self.n_repeats = n_splits, n_repeats
        self.antigen_identity = antigen_identity
        self.seed, self.columns = seed, columns


class AntibodySplit(_PairSplit):
    """Hold out whole clusters of antibodies, as ``abag fit --split antibody``.

    Parameters
    ----------
    n_splits, n_repeats : int
        Folds, and repetitions with other folds.
    antibody_identity : float
        Sequence identity from which antibodies share a cluster.
    antibody_by : {"fv", "cdrh3"}
        What is compared: both variable domains, or CDRH3.
    seed : int
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    """

    _method = "antibody"

    def __init__(
        self,
        n_splits: int = 5,
        *,
        n_repeats: int = 1,
        antibody_identity: float = 0.9,
        antibody_by: ComparedRegion = "fv",
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.n_splits, self.n_repeats = n_splits, n_repeats
        self.antibody_identity, self.antibody_by = antibody_identity, antibody_by
        self.seed, self.columns = seed, columns


class BothSplit(_PairSplit):
    """Hold out clusters of antigens and of antibodies, as ``abag fit --split both``.

    Pairs of a held-out antigen and a training antibody, or the reverse, are in neither part.

    Parameters
    ----------
    n_splits, n_repeats : int
        Folds, and repetitions with other folds.
    antigen_identity, antibody_identity : float
        Sequence identities from which sequences share a cluster.
    antibody_by : {"fv", "cdrh3"}
        What is compared: both variable domains, or CDRH3.
    seed : int
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    """

    _method = "both"

    def __init__(
        self,
        n_splits: int = 5,
        *,
        n_repeats: int = 1,
        antigen_identity: float = 0.4,
        antibody_identity: float = 0.9,
        antibody_by: ComparedRegion = "fv",
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.n_splits, self.n_repeats = n_splits, n_repeats
        self.antigen_identity, self.antibody_identity = antigen_identity, antibody_identity
        self.antibody_by = antibody_by
        self.seed, self.columns = seed, columns
