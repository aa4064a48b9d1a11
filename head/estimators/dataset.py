"""``abag.dataset``: the pairs of a table, their vectors and groups, for a model of one's own.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.arrays import hex_keys, weights_of
from abag.core.messages import counted
from abag.core.options import VectorOptions
from abag.core.python_surface import as_html, shorten
from abag.embed.store.store import as_store, folder_with
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import read_pairs
from abag.embed.tables.table import with_types
from abag.head.evaluation.verdicts import label_problems
from abag.head.labels.column import decide_label
from abag.head.labels.labelled_pairs import (
    label_pairs,
    report_counts,
    with_feature_columns,
)
from abag.head.labels.options import LabelOptions, PairColumnOptions, SplitOptions
from abag.head.regimes.folds import make_splits
from abag.head.regimes.splits import PairGroups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.store.store import EncoderFolder, Store
    from abag.embed.tables.chains import Kind
    from abag.embed.tables.table import TableLike
    from abag.head.estimators.torch_pairs import TorchPairs
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.regimes.splits import Split


LONGEST_CELL = 24


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(
    VectorOptions, SplitOptions, PairColumnOptions, LabelOptions, TableOptions, group="Data"
):
    """All options of `dataset`."""


@dataclass(frozen=True, repr=False)
class PairDataset:
    """Labelled pairs and where their vectors are; nothing large is read before it is asked for.

    Pairs are in the order of their keys, so that every draw over them is the same for any order of
    the table's rows. Replicates are merged as by ``abag fit`` (by default to their median).
    """

    pairs: LabelledPairs
    folders: Mapping[Kind, EncoderFolder]
    options: DatasetOptions
    row_labels: pd.Index | None = None
    """Index of the data frame that the pairs are of; None if they are of another table."""

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def y(self) -> NDArray[np.float64]:
        """PKd of the pairs, shape (P,); a bound where `censored` is not 0."""
        return self.pairs.pkd

    @property
    def censored(self) -> NDArray[np.int8]:
        """0 for exact labels, -1 where the true pKd is below `y` and 1 where above, shape (P,)."""
        return self.pairs.censored

    @property
    def features(self) -> pd.DataFrame:
        """Features and categories as `abag.fit` reads them: P rows, a column for each.

        Numbers are float64, NaN where a cell is missing, replicates joined to their mean. Values of
        categories are texts. Without features and categories there are no columns. The index is
        that of `frame`.
        """
        cells = self.pairs.cells
        columns = self.pairs.features
        if cells is None or columns is None:
            return pd.DataFrame(index=self._index)
        numbers = [column.name for column in columns.numbers]
        words = [column.name for column in columns.categories]
        of_numbers = pd.DataFrame(cells.numbers_RF, columns=numbers)
        joined = of_numbers.join(pd.DataFrame(cells.words_RG, columns=words))
        return joined.set_axis(self._index)

    @property
    def weight(self) -> NDArray[np.float64] | None:
        """How much each label counts, with mean 1, shape (P,), from `error` or `weight`.

        None without these options. It is the ``sample_weight`` of scikit-learn.
        """
        return weights_of(self.pairs.share)

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802 - as in scikit-learn
        """The antibody's vector, then the antigen's, of every pair: shape (P, D + E).

        With ``no_antigen`` the antibody's alone, (P, D).
        """
        sides = [self.vectors(kind)[self.pairs.index(kind)] for kind in self.folders]
        return np.concatenate(sides, axis=1)

    @property
    def frame(self) -> pd.DataFrame:
        """The row of the table of each pair, the first one for replicates: P rows.

        Columns of text files are numbers where no cell, such as 0012, loses anything; names and
        categories are text. The index is that of the data frame that was read, and counts the pairs
        of other tables.
        """
        table = self.pairs.table
        rows = table.frame.iloc[self.pairs.row].set_axis(self._index)
        if not table.holds_texts:
            return rows
        text = [*(self.options.categories or ()), self.options.split_value]
        return with_types(rows, table.columns, text)

    @property
    def _index(self) -> pd.Index:
        if self.row_labels is None:
            return pd.RangeIndex(len(self))
        return self.row_labels[self.pairs.table.row_numbers[self.pairs.row] - 1]

    @cached_property
    def groups(self) -> dict[str, NDArray[np.int64]]:
        """Clusters of the pairs' ``antibody`` and ``antigen``, shape (P,) each.

        They are those that ``abag fit --split`` keeps in one part, at the identities of the
        options.
        """
        groups = PairGroups(self.pairs, self.options)
        return {kind: groups.of_method(kind) for kind in self.folders}

    def keys(self, kind: Kind) -> list[str]:
        """Return the key of each pair's antibody or antigen, as 32 hexadecimal digits."""
        return hex_keys(self.pairs.keys(kind))

    def vectors(self, kind: Kind) -> NDArray[np.float32]:
        """Read the vectors of the distinct antibodies, (N, D), or antigens, (M, E).

        `index` tells which belongs to a pair.
        """
        keys = self.pairs.table.sequences[kind].keys
        return self.folders[kind].read(keys, self.options.vectors_of(kind)["pooling"])

    def index(self, kind: Kind) -> NDArray[np.int64]:
        """Return the row of `vectors` of each pair, shape (P,)."""
        return self.pairs.index(kind)

    def splits(self) -> list[Split]:
        """Split the pairs as ``abag fit`` does with the same options.

        The pairs of a part are ``split.rows(TRAIN)``, with ``TRAIN``, ``VALIDATION`` and ``TEST``
        of `abag.head.regimes.splits`.
        """
        return make_splits(PairGroups(self.pairs, self.options))

    def torch(self, rows: NDArray[np.integer | np.bool_] | None = None) -> TorchPairs:
        """Return pairs as a ``torch.utils.data.Dataset`` of ``(x, y)``.

        Parameters
        ----------
        rows : ndarray, shape=(R,), dtype=integer, or shape=(P,), dtype=bool, optional
            Pairs to include, such as those of one part; by default all.

        Returns
        -------
        TorchPairs
            Its items are float32 tensors: ``x`` of shape (D + E,) and ``y`` of shape (). Each
            distinct vector is in memory once.
        """
        from abag.head.estimators.torch_pairs import TorchPairs

        every = np.arange(len(self))
        chosen = every if rows is None else every[rows]
        vectors = [self.vectors(kind) for kind in self.folders]
        index = [self.index(kind)[chosen] for kind in self.folders]
        return TorchPairs(vectors, index, self.y[chosen], self.censored[chosen])

    def __repr__(self) -> str:
        lines = [f"PairDataset: {len(self):,} pairs of {self.pairs.table.source}"]
        for kind, folder in self.folders.items():
            pooling = self.options.vectors_of(kind)["pooling"]
            count = len(self.pairs.table.sequences[kind].keys)
            lines.append(f"{kind}: {count:,} sequences, {folder.name}, {pooling}")
        bounds = int((self.censored != 0).sum())
        quantity = self.pairs.quantity
        low = quantity.show(float(self.y.min()))
        high = quantity.show(float(self.y.max()))
        labels = f"y: {low} to {high} {quantity}"
        if bounds:
            labels += f", {counted(bounds, 'bound')}"
        lines.append(labels)
        return shorten([*lines, *label_problems(self.pairs)])

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", LONGEST_CELL):
            table = self.frame.head().to_html()
        return as_html(repr(self)) + table


def dataset(
    store: Store | Path | str,
    table: TableLike,
    **options: Any,  # noqa: ANN401 - the fields of DatasetOptions
) -> PairDataset:
    """Read the labelled pairs of a table, whose vectors a store holds, for a model of one's own.

    Parameters
    ----------
    store : Store or path
        Has a vector for every sequence of the table.
    table : path, DataFrame or list of these
        Pairs with a measured affinity; labels are read as by `abag.fit`.
    **options
        Fields of `DatasetOptions`.

    Returns
    -------
    PairDataset
        With ``X``, ``y``, ``groups``, ``keys`` and ``torch()``.

    Raises
    ------
    MissingVectors
        If the store lacks a sequence of the table.
    AbagError
        If an option, the table, a label or the store is invalid.
    """
    chosen = DatasetOptions.from_keywords(options, "dataset")
    decide = partial(decide_label, options=chosen)
    read = read_pairs(table, chosen, label=decide, refuse=False)
    opened = as_store(store)
    folders = {}
    for kind in read.kinds:
        keys = read.sequences[kind].keys
        view = chosen.vectors_of(kind)
        folders[kind] = folder_with(opened, kind, view["encoder"], keys, read.source)
        folders[kind].read(keys[:1], view["pooling"])  # checks
    pairs = label_pairs(read, folders=lambda: folders)
    report_counts(pairs)
    pairs = with_feature_columns(pairs)
    row_labels = table.index if isinstance(table, pd.DataFrame) else None
    return PairDataset(pairs, folders, chosen, row_labels)
