"""abag in scikit-learn: ``from abag.sklearn import AffinityRegressor``.

Needs the extra ``sklearn``. All is defined in `abag.head.estimators`. This package is not
in the root of the checkout, where it would hide scikit-learn from programs that are started there.
"""

from __future__ import annotations

from importlib.util import find_spec

from abag.core.errors import AbagError

if find_spec("sklearn") is None:
    msg = (
        "abag.sklearn needs the package scikit-learn, which is not installed; expected it. "
        "Run: pip install scikit-learn"
    )
    raise AbagError(msg)

from abag.head.estimators.scikit import (
    AffinityRegressor,
    BindingClassifier,
    PairVectorizer,
    pair_groups,
)

__all__ = ["AffinityRegressor", "BindingClassifier", "PairVectorizer", "pair_groups"]
