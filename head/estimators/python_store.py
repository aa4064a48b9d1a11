"""The store as Python users open it: the vectors, and the labelled pairs of a table with them.

Vectors belong to stage one, which knows no labels; `Store.dataset` joins the two. Importing this
module imports neither torch nor scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from abag.core.python_surface import PublicFunction
from abag.embed.store import store as vectors

if TYPE_CHECKING:
    from pathlib import Path

    from abag import _DatasetKeywords
    from abag.core.frames import AnyTables
    from abag.head.estimators.dataset import PairDataset

_DATASET = PublicFunction(
    "dataset", "head.estimators.dataset", "", "head.estimators.dataset:DatasetOptions"
)


class Store(vectors.Store):
    """Vectors of antibodies and antigens; made by :func:`open_store`.

    Methods raise StoreUnreachable if the file system fails, or a store that existed when it was
    opened does not any more.
    """

    def dataset(self, table: AnyTables, **options: Unpack[_DatasetKeywords]) -> PairDataset:
        """Read the labelled pairs of a table as arrays or for torch; see `abag.dataset`."""
        data: PairDataset = _DATASET.load()(self, table, **options)
        return data


def open_store(path: Path | str, *, create: bool = False) -> Store:
    """Open a store.

    Parameters
    ----------
    create : bool
        Accept a path that does not exist or is an empty folder; the store is created with its
        first encoder folder.

    Raises
    ------
    StoreError
        If the path does not exist, or holds something else.
    StoreUnreachable
        If the path cannot be read, or is for a Drive that is not mounted.
    """
    return vectors.open_as(Store, path, create=create)
