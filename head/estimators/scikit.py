"""Objects of scikit-learn: the splits of ``abag fit``, and a transformer that looks up vectors.

R rows of X, P distinct pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils.validation import check_is_fitted

from abag.core.cache import cache_dir
from abag.core.options import schema
from abag.embed.store.export import vector_names
from abag.embed.store.options import VectorOptions
from abag.embed.store.store import Store
from abag.embed.tables.options import TableOptions
from abag.head.estimators.regressor import (
    as_store,
    folders_with,
    labelled,
    name_features,
    naming_own_options,
    pair_of_row,
    read_frame,
    refuse_missing,
    sequence_columns,
)
from abag.head.labels.options import SplitOptions
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.folds import SPLIT_METHODS
from abag.head.regimes.splits import TEST, UNUSED

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from abag.embed.tables.chains import Kind
    from abag.embed.tables.pairs import SequenceTable

_SKLEARN_NAMES = {"folds": "n_splits", "repeats": "n_repeats"}


_OF_ALL = {"--column": "columns", "--no-antigen": "no_antigen"}
_ARGUMENTS = _OF_ALL | {
    field.flag: _SKLEARN_NAMES.get(field.name, field) for field in schema(SplitOptions)
}
"""What errors name instead of flags."""
_VECTOR_KEYWORDS = _OF_ALL | {field.flag: field for field in schema(VectorOptions)}
"""What errors name instead of flags."""


class _PairSplit(BaseCrossValidator):  # type: ignore[misc] # scikit-learn has no types
    """Folds of ``abag fit --split NAME --folds K --repeats R``; rows of one pair stay together.

    Parameters
    ----------
    n_splits, n_repeats : int
        Folds, and repetitions with other folds.
    antigen_identity, antibody_identity : float
        Sequence identities from which sequences share a cluster, of the kinds that are held out.
    seed : int
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    no_antigen : bool
        Whether X has antibodies alone.
    """

    _method: ClassVar[str]

    def __init__(
        self,
        n_splits: int = 5,
        *,
        n_repeats: int = 1,
        antigen_identity: float = 0.4,
        antibody_identity: float = 0.9,
        seed: int = 0,
        columns: Mapping[str, str] | None = None,
        no_antigen: bool = False,
    ) -> None:
        self.n_splits = n_splits
        self.n_repeats = n_repeats
        self.antigen_identity = antigen_identity
        self.antibody_identity = antibody_identity
        self.seed = seed
        self.columns = columns
        self.no_antigen = no_antigen

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
        with naming_own_options(_ARGUMENTS):
            pairs, of_row = self._read(X)
            splits = SPLIT_METHODS[self._method](pairs, self._options())
        for split in splits:
            part = split.part[of_row]
            yield np.flatnonzero((part != TEST) & (part != UNUSED)), np.flatnonzero(part == TEST)

    def groups(self, X: pd.DataFrame, kind: str | None = None) -> NDArray[np.int64]:
        """Return the group of each row, shape (R,), for splitters such as ``GroupKFold``.

        By default of the `kind` that is held out, for ``BothSplit`` the antigen.
        """
        default = "antigen" if self._method == "both" else self._method
        with naming_own_options(_ARGUMENTS):
            pairs, of_row = self._read(X)
            return pairs.of_method(kind or default)[of_row]

    def get_n_splits(self, X: object = None, y: object = None, groups: object = None) -> int:
        return self.n_splits * self.n_repeats

    def _read(self, X: pd.DataFrame) -> tuple[PairGroups, NDArray[np.int64]]:
        options = TableOptions(no_antigen=self.no_antigen)
        pairs = labelled(read_frame(X, columns=self.columns, options=options))
        return PairGroups(pairs, self._options(), cache_dir() / "clusters"), pair_of_row(pairs)

    def _options(self) -> SplitOptions:
        """Return the options that ``abag fit`` would have; it checks their values."""
        return SplitOptions(
            split=self._method,
            folds=self.n_splits,
            repeats=self.n_repeats,
            antigen_identity=self.antigen_identity,
            antibody_identity=self.antibody_identity,
            seed=self.seed,
        )


class RandomSplit(_PairSplit):
    """Hold out random pairs: both sequences of a test pair may be in training."""

    _method = "random"


class AntigenSplit(_PairSplit):
    """Hold out clusters of antigens at `antigen_identity`, as ``abag fit --split antigen``."""

    _method = "antigen"


class AntibodySplit(_PairSplit):
    """Hold out clusters of antibodies at `antibody_identity` and of clones.

    They are those of ``abag fit --split antibody``.
    """

    _method = "antibody"


class BothSplit(_PairSplit):
    """Hold out clusters of antigens and of antibodies, as ``abag fit --split both``.

    Pairs of a held-out antigen and a training antibody, or the reverse, are in neither part.
    """

    _method = "both"


class PairVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc] # no types
    """Turn pairs of sequences into a matrix: the antibody's vector, then the antigen's.

    Parameters
    ----------
    store : path or Store
        Holds the vectors, or receives them if `encode` is set.
    antibody_encoder, antigen_encoder : str, optional
        Encoders in the store; by default the only one of each kind.
    antibody_pooling, antigen_pooling : str
        Poolings such as ``mean``, ``cls`` or ``mean@LAYER``.
    columns : mapping, optional
        Columns of X by role (``heavy``, ``light``, ``antibody``, ``antigen``), where their names do
        not tell.
    encode : bool
        Encode sequences that the store lacks with the store's encoders; else they are an error.
    no_antigen : bool
        Whether X has antibodies alone, whose vectors then are the matrix.

    Attributes
    ----------
    fingerprints_ : dict
        Fingerprint of the encoder by kind; other vectors are not accepted after `fit`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Columns of the X of `fit`, if all have names of text. `transform` needs those of sequences.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> model = make_pipeline(PairVectorizer("store"), Ridge())  # doctest: +SKIP
    >>> model.fit(table[["heavy", "light", "antigen"]], table["pKd"])  # doctest: +SKIP
    """

    def __init__(
        self,
        store: Store | Path | str | None = None,
        *,
        antibody_encoder: str | None = None,
        antigen_encoder: str | None = None,
        antibody_pooling: str = "mean",
        antigen_pooling: str = "mean",
        columns: Mapping[str, str] | None = None,
        encode: bool = False,
        no_antigen: bool = False,
    ) -> None:
        self.store = store
        self.antibody_encoder = antibody_encoder
        self.antigen_encoder = antigen_encoder
        self.antibody_pooling = antibody_pooling
        self.antigen_pooling = antigen_pooling
        self.columns = columns
        self.encode = encode
        self.no_antigen = no_antigen

    def fit(self, X: pd.DataFrame, y: object = None) -> PairVectorizer:
        """Find the encoders in the store; `y` is ignored.

        Raises
        ------
        AbagError
            If X or the store is invalid, or sequences are missing.
        """
        table = self._read(X)
        vectors, fingerprints = self._look_up(table)
        self.fingerprints_ = fingerprints
        self._columns = sequence_columns(table)
        name_features(self, X)
        self._names = list[str]()
        for kind, x_RD in vectors.items():
            pooling = self._options().vectors_of(kind)["pooling"]
            self._names += vector_names(kind, pooling, x_RD.shape[1])
        return self

    def transform(self, X: pd.DataFrame) -> NDArray[np.float32]:
        """Return the vectors of the pairs.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.

        Returns
        -------
        ndarray, shape=(R, D + E), dtype=float32
            D and E are the widths of the antibody and the antigen vectors.
        """
        check_is_fitted(self)
        table = self._read(X)
        refuse_missing(table, self._columns)
        vectors, _ = self._look_up(table, self.fingerprints_)
        return np.concatenate([*vectors.values()], axis=1)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the columns, such as ``antigen_mean_0``."""
        check_is_fitted(self)
        return np.array(self._names, dtype=object)

    def _options(self, fingerprints: Mapping[str, str] | None = None) -> VectorOptions:
        encoders = fingerprints or {}
        return VectorOptions(
            antibody_encoder=encoders.get("antibody", self.antibody_encoder),
            antigen_encoder=encoders.get("antigen", self.antigen_encoder),
            antibody_pooling=self.antibody_pooling,
            antigen_pooling=self.antigen_pooling,
        )

    def _read(self, X: pd.DataFrame) -> SequenceTable:
        with naming_own_options(_VECTOR_KEYWORDS):
            reading = TableOptions(no_antigen=self.no_antigen)
            return read_frame(X, columns=self.columns, options=reading)

    def _look_up(
        self, table: SequenceTable, fingerprints: Mapping[str, str] | None = None
    ) -> tuple[dict[Kind, NDArray[np.float32]], dict[str, str]]:
        with naming_own_options(_VECTOR_KEYWORDS):
            options = self._options(fingerprints)
            folders = folders_with(as_store(self.store), table, options, encode=self.encode)
            vectors: dict[Kind, NDArray[np.float32]] = {}
            for kind, folder in folders.items():
                unique = table.sequences[kind]
                x_ND = folder.read(unique.keys, options.vectors_of(kind)["pooling"])
                vectors[kind] = x_ND[unique.of_row]
        return vectors, {kind: folder.fingerprint for kind, folder in folders.items()}

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that X holds text, and that fitting needs no y."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.target_tags.required = False
        return tags
