"""The heads of ``abag fit`` as a regressor of scikit-learn."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from abag.core.errors import OptionError
from abag.core.messages import reporting
from abag.core.options import schema, unknown_option
from abag.embed.store.store import Store
from abag.embed.store.store_files import ADAPTER_FOLDER
from abag.head.data.feature_checks import with_feature_columns
from abag.head.data.features import read_features
from abag.head.data.label_options import LabelOptions
from abag.head.data.likelihoods import asks_for_logliks, with_logliks
from abag.head.data.vectors import StoredVectors, read_vectors
from abag.head.estimators.sequence_frame import (
    as_store,
    folders_with,
    labelled,
    name_features,
    naming_own_options,
    read_frame,
    refuse_missing,
    sequence_columns,
)
from abag.head.fit import fit_predictor
from abag.head.inputs import RunInputs
from abag.head.models.config import FitConfig
from abag.head.prediction.loading import load_predictor
from abag.head.prediction.predictor import Scorer

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from abag.embed.sequences.chains import Kind
    from abag.head.data.label_options import PairColumnOptions

NOT_OF_ESTIMATORS = frozenset(
    """
    adapter_rows add affinity_type allow_adapter_leak antigen bad_rows columns floor folds
    label learning_curve limit repeats save_every split_seed
    """.split()
)
"""Options of `fit` about tables, test parts and run folders, none of which an estimator has."""
_OPTIONS = [field for field in schema(FitConfig) if field.name not in NOT_OF_ESTIMATORS]
_KEYWORDS = {
    field.flag: field
    for field in schema(FitConfig)
    if field.name == "columns" or field.name not in NOT_OF_ESTIMATORS
}
"""What errors name instead of flags."""
_INNER_SPLITS = ("auto", "random", "antigen", "antibody", "both")


class AffinityRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc] # no types
    """Predict pKd from pairs of sequences, with a head of ``abag fit`` on stored vectors.

    X is a DataFrame with one pair per row, in columns such as ``heavy``, ``light`` and ``antigen``;
    y is the pKd, or another quantity: a Series with a name such as ``Tm (°C)``, or any numbers with
    ``better="higher"`` or ``"lower"``. A Series that is named in another unit of an affinity, such
    as ``KD (nM)``, is refused. Columns that `features` and `categories` name are read
    beside the sequences. With ``no_antigen=True``, X has antibodies alone. Rows of
    the same pair are merged as `replicates` says. As in `abag.fit`, folds of the training pairs
    weigh the parts of the head in each regime, and all pairs train them.

    Parameters
    ----------
    store : path or Store
        Holds the vectors, or receives them if `encode` is set.
    columns : mapping, optional
        Columns of X by role (``heavy``, ``light``, ``antibody``, ``antigen``), where their names do
        not tell.
    encode : bool
        Encode sequences that the store lacks with the store's encoders; else they are an error.
    verbose : bool
        Whether to report what is done on stderr.
    **options
        Fields of `abag.FitConfig`, such as ``head``, ``preset``, ``members`` or ``seed``, but not
        those about the table, the test part or the run folder. ``split`` is ``auto`` or the one
        regime that is measured: ``random``, ``antigen``, ``antibody`` or ``both``.

    Attributes
    ----------
    predictor_ : Predictor
        The fitted models; its ``predict`` takes lists of sequences, and flags unfamiliar ones.
    regimes_ : list of dict
        Scores of the regimes that the training pairs allow to measure.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Columns of the X of `fit`, if all have names of text. `predict` needs those of them that are
        read: of sequences, features and categories.

    Notes
    -----
    Encoders that were adapted to pairs (``abag adapt``) have seen their labels; `abag.fit` refuses
    such pairs in a test part, but an estimator does not know its test part.

    Examples
    --------
    >>> model = AffinityRegressor("store", head="ridge")
    >>> model.fit(table[["heavy", "light", "antigen"]], table["pKd"])  # doctest: +SKIP
    >>> pkd, sigma = model.predict(new, return_std=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        store: Store | Path | str | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        encode: bool = False,
        verbose: bool = False,
        **options: Any,  # noqa: ANN401 - the fields of FitConfig that are in `_OPTIONS`
    ) -> None:
        # stored as given: `sklearn.clone` compares by identity
        self.store = store
        self.columns = columns
        self.encode = encode
        self.verbose = verbose
        for name in options.keys() - {field.name for field in _OPTIONS}:
            raise unknown_option(name, _OPTIONS, "AffinityRegressor")
        for field in _OPTIONS:
            setattr(self, field.name, options.get(field.name, field.default))

    def fit(
        self, X: pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> AffinityRegressor:
        """Train the head.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.
        y : array-like, shape=(R,)
            Measured pKd, or values of another quantity.
        sample_weight : array-like, shape=(R,), optional
            How much each label counts, above 0; only the ratios count.

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If an option, a sequence, a label or the store is invalid.
        """
        with naming_own_options(_KEYWORDS), reporting(silent=not self.verbose, bars=False):
            config = self._config()
            labels = LabelOptions(
                replicates=config.replicates,
                better=config.better,
                unit=config.unit,
                label_range=config.label_range,
                no_binding=config.no_binding,
                no_binding_empty=config.no_binding_empty,
                molar_mass=config.molar_mass,
            )
            table = read_frame(X, columns=self.columns, options=config)
            store = as_store(self.store)
            first = replace(
                config,
                antibody_encoder=config.views_of("antibody")[0]["encoder"],
                antigen_encoder=config.views_of("antigen")[0]["encoder"],
            )
            folders = folders_with(
                store, table, first, encode=self.encode, no_antigen=config.no_antigen
            )
            named: PairColumnOptions = config
            heads: dict[str, str] = {}
            if asks_for_logliks(table, config):
                table, named, heads = with_logliks(table, config, folders)
            pairs = labelled(table, y, labels, named, sample_weight)
            pairs = with_feature_columns(pairs, named, heads)
            vectors: dict[Kind, StoredVectors] = {}
            for kind, folder in folders.items():
                views = config.views_of(kind)
                for view in views:  # the folder of the first encoder may have been written now
                    view["encoder"] = view["encoder"] or folder.fingerprint
                vectors[kind] = read_vectors(store, pairs.table, kind, views)
            if config.no_antigen:
                vectors["antigen"] = StoredVectors.absent()
            # what is read of the folder is in memory; adapters stay in the store
            adapters: dict[str, Path] = {}
            for kind, folder in folders.items():
                if folder.info.get("adapter"):
                    adapters[kind] = folder.path / ADAPTER_FOLDER
            with TemporaryDirectory(prefix="abag-fit-") as scratch:
                inputs = RunInputs(pairs, store, vectors)
                at = Path(scratch)
                self.regimes_ = fit_predictor(inputs, config, at / "run", at / "predictor")
                predictor = load_predictor(at / "predictor")
            # the folder that it was read from has gone
            self.predictor_ = replace(predictor, store=store.path, adapters=adapters)
        self._columns = sequence_columns(table)
        name_features(self, X)
        return self

    def predict(
        self, X: pd.DataFrame, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict the pKd of pairs, or the quantity of the training.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.
        return_std : bool
            Whether to return sigma as well, the standard error of each prediction.

        Returns
        -------
        ndarray, shape=(R,), dtype=float64, or a tuple of two

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If a sequence or the store is invalid, or X lacks a column that `fit` had.
        """
        check_is_fitted(self)
        predictor = self.predictor_
        with naming_own_options(_KEYWORDS), reporting(silent=not self.verbose, bars=False):
            table = read_frame(X, columns=self.columns, options=self._config())
            refuse_missing(table, self._columns)
            predictor.refuse_without_chains(table.antibodies, "X")
            store = as_store(self.store)
            options = replace(
                self._config(),
                antibody_encoder=predictor.antibody.fingerprint,
                antigen_encoder=predictor.antigen.fingerprint or None,
            )
            no_antigen = predictor.no_antigen
            folders_with(store, table, options, encode=self.encode, no_antigen=no_antigen)
            features = None
            if predictor.features is not None:
                features = read_features(predictor.features, table.frame, "X")
            scorer = Scorer(predictor, store, table.antibodies, table.antigens)
            scores, _ = scorer.score_rows(features)
            pkd = scores["pkd_predicted"].to_numpy()
            return (pkd, scores["sigma"].to_numpy()) if return_std else pkd

    def _config(self) -> FitConfig:
        config = FitConfig(**{setting.name: getattr(self, setting.name) for setting in _OPTIONS})
        if config.split not in _INNER_SPLITS:
            msg = (
                f"split={config.split!r}: chooses what is measured inside; expected one of "
                f"{', '.join(_INNER_SPLITS)}. Pass test parts to cross_val_score as cv=."
            )
            raise OptionError(msg)
        return config

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that X holds text, and that labels are few and noisy."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.regressor_tags.poor_score = True
        return tags


def _signature(signature: inspect.Signature) -> inspect.Signature:
    """Spell out the options: scikit-learn finds the parameters of an estimator here."""
    fixed = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in _OPTIONS
    ]
    return signature.replace(parameters=[*fixed, *options])


AffinityRegressor.__init__.__signature__ = _signature(  # type: ignore[attr-defined]
    inspect.signature(AffinityRegressor.__init__)
)
