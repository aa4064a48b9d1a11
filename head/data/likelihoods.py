"""Likelihoods of sequences, from the language models of their encoders, as features of pairs.

``abag embed --loglik`` stores them beside the vectors. N unique sequences, R rows of a table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.errors import ColumnError, StoreError
from abag.embed.store.encoder_folder import LOGLIK
from abag.head.data.features import LOGLIKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from abag.core.arrays import Floats
    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.head.data.label_options import PairColumnOptions


def asks_for_logliks(table: SequenceTable, named: PairColumnOptions) -> bool:
    """Tell whether features are named that are likelihoods of a store, not columns of a table."""
    return bool(likelihoods_asked_for(table, named))


def likelihoods_asked_for(table: SequenceTable, named: PairColumnOptions) -> list[str]:
    """Return the names of features that are likelihoods of a store, not columns of a table."""
    columns = set(map(str, table.frame.columns))
    features = named.features or ()
    return [name for name in features if name in (LOGLIK, *LOGLIKS) and name not in columns]


def with_logliks(
    table: SequenceTable, named: PairColumnOptions, folders: Mapping[Kind, EncoderFolder]
) -> tuple[SequenceTable, PairColumnOptions, dict[str, str]]:
    """Add likelihoods that features name, and that a table lacks, as columns.

    Parameters
    ----------
    table : SequenceTable
        R rows.
    named : PairColumnOptions
        ``loglik`` stands for the likelihoods of all sides that have one.
    folders : mapping
        Where the vectors of each kind are; none for antigens that nobody encodes.

    Returns
    -------
    table : SequenceTable
        With a column for each.
    named : PairColumnOptions
        With the names of these columns.
    heads : dict
        Digests of what gives the likelihoods, by column.

    Raises
    ------
    ColumnError
        If the store has none.
    """
    names: list[str] = []
    heads: dict[str, str] = {}
    frame = table.frame
    for name in named.features or ():
        if name in frame.columns or name not in (LOGLIK, *LOGLIKS):
            names.append(name)
            continue
        asked = LOGLIKS if name == LOGLIK else {name: LOGLIKS[name]}
        likelihoods = {}
        for column, kind in asked.items():
            is_stored = kind in folders and folders[kind].head
            if is_stored and column not in frame.columns:
                likelihoods[column] = folders[kind]
        if not likelihoods:
            msg = (
                f"{table.source}: no column {name!r}, and no likelihood of the "
                f"{' or '.join(asked.values())} in the store; expected one of them. Run abag embed "
                "--loglik into a new store, or leave it out."
            )
            raise ColumnError(msg)
        for column, folder in likelihoods.items():
            sequences = table.sequences[LOGLIKS[column]]
            loglik_N = read_logliks(folder, sequences.keys)
            frame = frame.assign(**{column: loglik_N[sequences.of_row]})
            heads[column] = folder.head
        names += likelihoods
    names = list(dict.fromkeys(names))  # loglik may be named beside a likelihood of its own
    return replace(table, frame=frame), replace(named, features=tuple(names) or None), heads


def read_logliks(folder: EncoderFolder, keys: NDArray[np.uint8], head: str = "") -> Floats:
    """Read the likelihoods of sequences, keys (N, 16), (N,); of another `head` they are refused."""
    if head and folder.head and folder.head != head:
        msg = (
            f"{folder.path}: has likelihoods of head {folder.head[:8]}; the run was trained with "
            f"{head[:8]}. Give the --store of the run, or a new one."
        )
        raise StoreError(msg)
    return folder.read(keys, LOGLIK)[:, 0].astype(np.float64)
