"""Tables read and split as the commands do it: all that tests know of where this is done.

Options are keyword arguments, as in the public functions.
"""

import abag
from abag.embed.tables.chains import KINDS
from abag.embed.tables.formats import CHUNK_ROWS, FORMATS
from abag.embed.tables.layout import Layout
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import check_chunks, read_pairs
from abag.head.demo import demo_table
from abag.head.labels.labelled_pairs import read_labelled_pairs, with_feature_columns
from abag.head.models.config import FitConfig
from abag.head.regimes.folds import make_splits
from abag.head.regimes.splits import PairGroups
from abag.head.training.inputs import layout_of_run

__all__ = [
    "FORMATS",
    "demo_table",
    "groups_of",
    "read_as_run",
    "read_chunks",
    "read_labels",
    "read_sequences",
    "read_table",
    "read_table_chunks",
    "splits_of",
]


def read_sequences(table, *, kinds=KINDS, as_written=False, **options):
    """Return the rows of a table with their distinct sequences, without reading labels."""
    return read_pairs(table, abag.PlanOptions(**options), kinds=kinds, as_written=as_written)


def read_chunks(table, *, rows=CHUNK_ROWS, as_written=False, **options):
    """Return the same in chunks of `rows` rows."""
    options = abag.PlanOptions(**options)
    return check_chunks(Layout.of(table, options, rows=rows, as_written=as_written))


def read_table_chunks(
    table, *, columns=None, limit=None, sheet=None, matrix=False, chains="as-given", **flags
):
    """Return the rows of a table in chunks, unchecked."""
    options = TableOptions(
        columns=columns or {}, limit=limit, sheet=sheet, matrix=matrix, chains=chains
    )
    return Layout.of(table, options, **flags).chunks()


def read_table(table, **options):
    """Return all rows of a table, unchecked."""
    (whole,) = read_table_chunks(table, rows=None, **options)
    return whole


def read_labels(table, **options):
    """Return the labelled pairs of a table; `abag.dataset` has them too, but needs a store."""
    chosen = abag.PlanOptions(**options)
    return with_feature_columns(read_labelled_pairs(table, chosen, chosen))


def read_as_run(table, labels, options, **given):
    """Return the labelled pairs of a table as a run reads it whose own table had `labels`.

    `options` are those of the run, and `given` those of this table.
    """
    references = labels.table.files[0].references
    config = FitConfig(**options)
    layout = layout_of_run(config, labels, labels.table.columns, references)
    now = abag.PlanOptions(bad_rows=config.bad_rows, replicates="keep", **given)
    return with_feature_columns(read_labelled_pairs(table, now, now, layout))


def groups_of(pairs, **options):
    """Return the clusters of labelled pairs, as splits with these options need them."""
    return PairGroups(pairs, abag.DatasetOptions(**options), is_cached=False)


def splits_of(pairs, **options):
    """Split labelled pairs as `PairDataset.splits` does, without its cache."""
    return make_splits(groups_of(pairs, **options))
