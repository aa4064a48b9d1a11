"""abag in scikit-learn: ``from abag.sklearn import AffinityRegressor``.

All is defined in `abag.head.estimators`. This package is not in the root of the checkout, where it
would hide scikit-learn from programs that are started there.
"""

from __future__ import annotations

from abag.head.estimators.scikit import (
    AffinityRegressor,
    BindingClassifier,
    PairVectorizer,
    pair_groups,
)

__all__ = ["AffinityRegressor", "BindingClassifier", "PairVectorizer", "pair_groups"]
