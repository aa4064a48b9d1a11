"""A transformer of scikit-learn that looks up the vectors of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from abag.core.options import schema
from abag.core.python_surface import naming_keywords
from abag.embed.sequences.options import ColumnOptions
from abag.embed.store.export import vector_names
from abag.embed.store.options import VectorOptions
from abag.embed.store.store import Store
from abag.head.estimators.sequence_frame import as_store, folders_with, read_frame

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind


_KEYWORDS = {one.name: one for cls in (VectorOptions, ColumnOptions) for one in schema(cls)}
"""What errors name instead of flags."""


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

    Attributes
    ----------
    fingerprints_ : dict
        Fingerprint of the encoder by kind; other vectors are not accepted after `fit`.
    n_features_in_ : int

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
    ) -> None:
        self.store = store
        self.antibody_encoder = antibody_encoder
        self.antigen_encoder = antigen_encoder
        self.antibody_pooling = antibody_pooling
        self.antigen_pooling = antigen_pooling
        self.columns = columns
        self.encode = encode

    def fit(self, X: pd.DataFrame, y: object = None) -> PairVectorizer:
        """Find the encoders in the store; `y` is ignored.

        Raises
        ------
        AbagError
            If X or the store is invalid, or sequences are missing.
        """
        vectors, fingerprints = self._look_up(X)
        self.fingerprints_ = fingerprints
        self.n_features_in_ = X.shape[1]
        self._names = [
            name
            for kind, x_RD in vectors.items()
            for name in vector_names(
                kind, self._options().vectors_of(kind)["pooling"], x_RD.shape[1]
            )
        ]
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
        vectors, _ = self._look_up(X, self.fingerprints_)
        return np.concatenate([*vectors.values()], axis=1)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the columns, such as ``antigen_mean_0``."""
        check_is_fitted(self)
        return np.array(self._names, dtype=object)

    def _options(self, fingerprints: Mapping[str, str] | None = None) -> VectorOptions:
        found = fingerprints or {}
        return VectorOptions(
            antibody_encoder=found.get("antibody", self.antibody_encoder),
            antigen_encoder=found.get("antigen", self.antigen_encoder),
            antibody_pooling=self.antibody_pooling,
            antigen_pooling=self.antigen_pooling,
        )

    def _look_up(
        self, X: pd.DataFrame, fingerprints: Mapping[str, str] | None = None
    ) -> tuple[dict[Kind, NDArray[np.float32]], dict[str, str]]:
        """Read the vectors of each row by kind, and the fingerprints of their encoders."""
        with naming_keywords(_KEYWORDS):
            options = self._options(fingerprints)
            table = read_frame(X, columns=self.columns)
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
