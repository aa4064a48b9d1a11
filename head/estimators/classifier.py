"""The heads of ``abag fit`` as a classifier of scikit-learn, for labels that are yes or no.

R rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin

from abag.head.estimators.regressor import InvalidLabel, PairEstimator

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray


class BindingClassifier(ClassifierMixin, PairEstimator):  # type: ignore[misc] # no types
    """Predict how probably pairs are of the second of two classes, such as binders.

    X is a DataFrame as for `AffinityRegressor`, whose parameters it has, too; y has two values, of
    which the last in their order, such as 1, True or ``yes``, is the positive one. Probabilities
    are calibrated for each regime on folds of the training pairs.

    Parameters
    ----------
    store : path or Store
        Holds the vectors, or receives them if `encode` is set.
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    encode : bool
        Encode sequences that the store lacks with the store's encoders; else they are an error.
    verbose : bool
        Whether to report what is done on stderr.
    **options
        Fields of `abag.FitConfig`, as for `AffinityRegressor`.

    Attributes
    ----------
    classes_ : ndarray, shape=(2,)
        The two values of y, the positive one last.
    predictor_ : Predictor
        The fitted models.
    regimes_ : list of dict
        Scores of the regimes that the training pairs allow to measure.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Columns of the X of `fit`, if all have names of text.

    Examples
    --------
    >>> model = BindingClassifier("store", head="ridge")
    >>> model.fit(table[["heavy", "light", "antigen"]], table["binder"])  # doctest: +SKIP
    >>> probability = model.predict_proba(new)[:, 1]  # doctest: +SKIP
    """

    def fit(
        self, X: pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> BindingClassifier:
        """Train the head.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.
        y : array-like, shape=(R,) or (R, 1)
            The class of each pair.
        sample_weight : array-like, shape=(R,), optional
            How much each label counts; only the ratios count, and rows of weight 0 are left out.

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If an option, a sequence, a label or the store is invalid, or y has not two classes.
        """
        values = np.asarray(y)
        classes, level = np.unique(values, return_inverse=True)
        if len(classes) != 2:
            msg = (
                f"y: {len(classes)} classes; expected 2: only binary classification is supported. "
                "Correct y, or use AffinityRegressor for numbers."
            )
            raise InvalidLabel(msg)
        self._fit(X, level.reshape(values.shape), sample_weight, label="binary")
        self.classes_ = classes
        return self

    def predict_proba(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Predict the probabilities of both classes.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.

        Returns
        -------
        ndarray, shape=(R, 2), dtype=float64
            In the order of `classes_`.

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If a sequence or the store is invalid, or X lacks a column that `fit` had.
        """
        probability = self._score(X)["pkd_predicted"].to_numpy(np.float64)
        return np.stack([1 - probability, probability], axis=1)

    def predict(self, X: pd.DataFrame) -> NDArray[Any]:
        """Predict the more probable class of each pair, (R,)."""
        is_positive = self.predict_proba(X)[:, 1] >= 0.5
        return np.asarray(self.classes_[is_positive.astype(np.int64)])

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that there are two classes, and that labels are few and noisy."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags
