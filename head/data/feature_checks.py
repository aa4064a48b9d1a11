"""Checks of the features of a fit, and their form for its models.

P pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats
from abag.core.errors import ColumnError
from abag.core.messages import counted, quoted, say
from abag.embed.sequences.columns import quote_some
from abag.head.data.feature_scaling import CONSTANT
from abag.head.data.features import FeatureColumns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from abag.head.data.feature_scaling import PairFeatures
    from abag.head.data.label_options import PairColumnOptions
    from abag.head.data.labels import LabelledPairs

SAME_AS_LABEL = 0.999
"""Correlation with the label above which a column may be the label itself."""
LABELS_AND_SEQUENCES = (
    "pkd", "label", "heavy", "light", "antibody", "antigen", "censored", "mutations",
    "antigen_mutations",
)  # fmt: skip
"""Roles of columns that are no features."""


def with_feature_columns(
    pairs: LabelledPairs, options: PairColumnOptions, heads: Mapping[str, str]
) -> LabelledPairs:
    """Return pairs with the description of their features, once these are checked.

    `heads` are those of `likelihoods.with_logliks`.

    Raises
    ------
    ColumnError
        If a column is constant, empty, another role's, or has a value of its own in each pair.
    """
    cells = pairs.cells
    table = pairs.table
    if cells is None:
        return pairs
    roles = {table.columns[role]: role for role in LABELS_AND_SEQUENCES if role in table.columns}
    for name in (*(options.features or ()), *(options.categories or ())):
        if name in roles:
            role = "the label" if roles[name] in ("pkd", "label") else f"the {roles[name]} column"
            msg = (
                f"{table.source}: column {name!r} is {role}; expected another column as a feature. "
                "Leave it out."
            )
            raise ColumnError(msg)
    for name, values_P in zip(options.features or (), cells.numbers_RF.T, strict=True):
        _check_numbers(table.source, name, values_P)
        if name not in heads:  # new pairs have a likelihood, too
            _say_same_as_label(pairs, name, values_P)
    for name, words_P in zip(options.categories or (), cells.words_RG.T, strict=True):
        _check_words(table.source, name, words_P)
    try:
        columns = FeatureColumns.of(cells, options, heads)
    except ValueError as error:
        msg = f"{table.source}: {error}. Leave some out, or rename it."
        raise ColumnError(msg) from error
    say(f"{table.source}: {_describe(columns)}")
    if missing := columns.describe_missing(cells):
        say(f"{table.source}: features {missing}; a column for each says where")
    return replace(pairs, features=columns)


def _describe(columns: FeatureColumns) -> str:
    parts = []
    if columns.numbers:
        parts.append(f"features {quote_some([column.name for column in columns.numbers])}")
    for category in columns.categories:
        parts.append(f"category {category.name!r} with {counted(len(category.values), 'value')}")
    return f"{'; '.join(parts)}: {counted(columns.width, 'column')} beside the vectors"


def _check_numbers(source: str, name: str, values_P: Floats) -> None:
    finite = values_P[np.isfinite(values_P)]
    if not len(finite):
        problem = "has no number in any labelled row"
    elif np.ptp(finite) <= CONSTANT * np.abs(finite).max():
        problem = f"is {finite[0]:g} in every labelled row"
    else:
        return
    msg = (
        f"{source}: the feature {name!r} {problem}; expected a column whose values differ. Leave "
        "it out."
    )
    raise ColumnError(msg)


def _check_words(source: str, name: str, words_P: NDArray[np.object_]) -> None:
    values = set(words_P.tolist())
    if len(values) == 1:
        problem = f"is {quoted(words_P[0])} in every labelled row"
    elif len(values) == len(words_P) > 2:
        problem = "has another value in every pair"
    else:
        return
    msg = (
        f"{source}: the category {name!r} {problem}; expected values that several pairs share. "
        "Leave it out, or name a column of numbers with --features."
    )
    raise ColumnError(msg)


def _say_same_as_label(pairs: LabelledPairs, name: str, values_P: Floats) -> None:
    rows = np.isfinite(values_P) & (pairs.censored == 0)
    values = values_P[rows]
    labels = pairs.pkd[rows]
    if len(values) < 3 or np.ptp(values) == 0 or np.ptp(labels) == 0:
        return
    correlations = [np.corrcoef(values, labels)[0, 1]]
    if (values > 0).all():  # a Kd beside its pKd
        correlations.append(np.corrcoef(np.log(values), labels)[0, 1])
    largest = max(correlations, key=abs)
    if abs(largest) > SAME_AS_LABEL:
        say(
            f"{pairs.table.source}: the feature {name!r} has a correlation of {largest:.4f} with "
            "the label: it may be the label itself, which new pairs lack"
        )


def encoded_features(pairs: LabelledPairs) -> PairFeatures | None:
    """Return the features of the pairs of a fit as models read them; None if it has none."""
    if pairs.cells is None or pairs.features is None:
        return None
    return pairs.features.encode(pairs.cells)
