"""For scikit-learn: the groups of ``abag fit --split``, and a transformer that looks up vectors.

R rows of X.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from abag.core.files import cache_dir
from abag.core.options import VectorOptions, schema
from abag.embed.export import vector_names
from abag.embed.store.store import Store, as_store
from abag.embed.tables.options import TableOptions
from abag.head.estimators.regressor import (
    InvalidParameter,
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
from abag.head.regimes.relations import PairGroups

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from abag.embed.tables.chains import Kind
    from abag.embed.tables.pairs import SequenceTable

_OF_ALL = {"--column": "columns", "--no-antigen": "no_antigen"}
_IDENTITIES = ("antigen_identity", "antibody_identity")
_GROUP_KEYWORDS = _OF_ALL | {
    field.flag: field for field in schema(SplitOptions) if field.name in _IDENTITIES
}
"""What errors name instead of flags."""
_VECTOR_KEYWORDS = _OF_ALL | {field.flag: field for field in schema(VectorOptions)}
"""What errors name instead of flags."""
GROUPED = ("antibody", "antigen", "pair")


def pair_groups(
    X: pd.DataFrame,
    kind: str,
    *,
    antigen_identity: float = 0.4,
    antibody_identity: float = 0.9,
    columns: Mapping[str, str] | None = None,
    no_antigen: bool = False,
) -> NDArray[np.int64]:
    """Return the group of each row, shape (R,), for splitters such as ``GroupKFold``.

    Parameters
    ----------
    X : DataFrame, shape=(R, columns)
        One pair per row, in columns such as ``heavy``, ``light`` and ``antigen``.
    kind : str
        ``antibody`` or ``antigen``: clusters of near-duplicates, which ``abag fit --split`` keeps
        in one part, those of antibodies with their clones; ``pair``: rows of the same pair.
    antigen_identity, antibody_identity : float
        Sequence identities from which sequences share a cluster.
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    no_antigen : bool
        Whether X has antibodies alone.

    Raises
    ------
    AbagError
        If a sequence or an identity is invalid.
    """
    if kind not in GROUPED:
        msg = f"kind={kind!r}: is unknown; expected {', '.join(GROUPED)}. Give one of them."
        raise InvalidParameter(msg)
    with naming_own_options(_GROUP_KEYWORDS):
        options = SplitOptions(
            antigen_identity=antigen_identity, antibody_identity=antibody_identity
        )
        reading = TableOptions(no_antigen=no_antigen)
        pairs = labelled(read_frame(X, columns=columns, options=reading))
        groups = PairGroups(pairs, options, cache_dir() / "clusters")
        of_pair: NDArray[np.int64] = getattr(groups, kind)
        return of_pair[pair_of_row(pairs)]


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
