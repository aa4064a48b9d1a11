"""Pairs of sequences in a DataFrame, as scikit-learn hands them over: rows in, rows out.

R rows, P distinct pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.errors import FLAG, AbagError, LabelError, TableError
from abag.core.python_surface import naming_keywords
from abag.embed.embed import embed_like_folders
from abag.embed.sequences.columns import CHAIN_ROLES, SEQUENCE_ROLES, with_found
from abag.embed.sequences.pairs import read_pairs
from abag.embed.sequences.references import MUTATIONS
from abag.embed.sequences.table_options import TableOptions
from abag.embed.store.store import Store, folder_with, open_store
from abag.head.data.headers import read_header
from abag.head.data.label_column import is_named_affinity
from abag.head.data.label_options import LabelOptions, PairColumnOptions
from abag.head.data.labels import label_pairs
from abag.head.data.quantity import read_value_header

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.export_options import VectorOptions
    from abag.head.data.labels import LabelledPairs

ANY_PKD = 7.0
"""Label of pairs whose label does not matter."""
_LABEL = "y"
_CLAUSE = re.compile(r"; (?:else )?|, or (?!lower|higher)| or (?=another )")
"""What divides the ways out of an error, one of which may need an option."""
_COLUMN_OF_LABELS = re.compile(r"--column '?(?:pkd|label|prediction)\b")
_COMMAND = re.compile(r"\babag [a-z]+ .*--")
"""In advice to run a command, whose flags are its own."""


class NotAFrame(TableError, ValueError):
    """X or y is not what the estimators of abag take."""


@contextmanager
def naming_own_options(own: Mapping[str, Any]) -> Iterator[None]:
    """Let errors in the block name keyword arguments of an estimator, and no options it lacks.

    `own` has its options, or the names of its arguments, by their flags.
    """
    with naming_keywords(own):
        try:
            yield
        except AbagError as error:
            lines = str(error).split("\n")
            text = "\n".join(_without_others(line, own) for line in lines)
            error.args = (text,)
            error.options = tuple(dict.fromkeys(FLAG.findall(text)))
            raise


def _without_others(text: str, own: Mapping[str, Any]) -> str:
    """Leave out the advice that needs options other than its `own`."""

    def is_possible(clause: str) -> bool:
        names_own = {*FLAG.findall(clause)} <= own.keys()
        return names_own and not _COLUMN_OF_LABELS.search(clause)

    problem, *advice = re.split(r"(?<=[.]) (?=[A-Z])", text)
    kept = []
    for sentence in advice:
        if is_possible(sentence) or _COMMAND.search(sentence):
            kept.append(sentence)
            continue
        clauses = [clause for clause in _CLAUSE.split(sentence.rstrip(".")) if is_possible(clause)]
        if clauses and clauses[0].startswith("another "):
            clauses[0] = f"Use {clauses[0]}"
        if clauses:
            joined = ", or ".join(clauses)
            kept.append(f"{joined[0].upper()}{joined[1:]}.")
    if advice and not kept:
        kept = ["Correct X."]
        if "--better" in own:
            kept = ["Correct y: it is pKd, or another quantity with --better higher, or lower."]
    return " ".join([problem, *kept])


def _refuse_other_unit(name: str) -> None:
    """Raise `LabelError` if labels without options are named in another unit than pKd."""
    header = read_header(name)
    says = header.not_label
    if not says and header.unit not in (None, "pkd"):
        says = f"{header.unit}, another unit of an affinity"
    elif not says and header.affinity and header.unit is None:
        says = "an affinity in no unit that is understood"
    if says:
        msg = (
            f"y: its name {name!r} says {says}; expected pKd, the -log10 of Kd in M, or another "
            "quantity. Convert it to pKd and rename it."
        )
        raise LabelError(msg)


def _refuse_affinity(name: str) -> None:
    """Raise `LabelError` if labels that options call another quantity are named as an affinity."""
    if is_named_affinity(name):
        msg = (
            f"y: its name {name!r} says {read_header(name).unit}, an affinity, and --better or "
            "--unit is given for another quantity; expected one or the other. Convert it to pKd "
            "and leave these out, or rename it."
        )
        raise LabelError(msg)


def read_frame(
    X: Any,  # noqa: ANN401 - whatever the caller passes
    *,
    columns: Mapping[str, str] | None = None,
    options: TableOptions | None = None,
) -> SequenceTable:
    """Read the pairs of a DataFrame; row r of the result is row r of `X`."""
    if not isinstance(X, pd.DataFrame):
        msg = (
            f"X: {type(X).__name__}; expected a pandas DataFrame with the sequences in columns "
            "such as heavy, light and antigen. Wrap the sequences in pandas.DataFrame."
        )
        raise NotAFrame(msg)
    chosen = replace(options or TableOptions(), columns=dict(columns or {}))
    # folds of a cross-validation have any index; rows are told by their places
    table = read_pairs(X.reset_index(drop=True), chosen)
    if len(table.frame) < len(X):  # y, and the predictions, are one per row
        row = min(row for row, _ in table.skipped.rows)
        msg = (
            f"X: row {row} has no valid sequences ({len(table.skipped)} such rows); expected some "
            "in every row. Remove these rows from X and y."
        )
        raise NotAFrame(msg)
    return table


def sequence_columns(table: SequenceTable) -> dict[str, str]:
    """Return the columns of X that sequences were read from, by role."""
    of_sequences = (*SEQUENCE_ROLES, *MUTATIONS.values())
    return {role: table.columns[role] for role in of_sequences if role in table.columns}


def refuse_missing(table: SequenceTable, fitted: Mapping[str, str]) -> None:
    """Refuse an X without a column that `fit` had for sequences, by role.

    Another column in its place will do, such as one of both chains.
    """
    columns = sequence_columns(table)
    if "antibody" in columns:
        columns |= dict.fromkeys(CHAIN_ROLES, columns["antibody"])
    if columns.keys() & {*CHAIN_ROLES}:
        columns.setdefault("antibody", "")
    for role, name in fitted.items():
        if role not in columns:
            problem = f"X: no column {name!r}, which fit had for {role}"
            raise NotAFrame(with_found(problem, table.names, "Add it."))


def name_features(estimator: Any, X: pd.DataFrame) -> None:  # noqa: ANN401 - any estimator
    """Remember the columns of X as scikit-learn does: by name only if all are text."""
    estimator.n_features_in_ = X.shape[1]
    vars(estimator).pop("feature_names_in_", None)  # of an earlier fit
    if all(isinstance(name, str) for name in X.columns):
        estimator.feature_names_in_ = np.array(X.columns, dtype=object)


def labelled(
    table: SequenceTable,
    y: ArrayLike | None = None,
    options: LabelOptions | None = None,
    named: PairColumnOptions | None = None,
    weight: ArrayLike | None = None,
) -> LabelledPairs:
    """Make pairs of the rows; their exact labels are those of `y`, shape (R,).

    They are pKd, or another quantity if `options` or the name of a Series say so. Without `y` all
    have the same label. Rows of the same pair are merged as in ``abag fit``. `named` has the
    columns of features, and `weight`, (R,), is how much each label counts.
    """
    values = np.full(len(table.frame), ANY_PKD) if y is None else np.asarray(y)
    if values.shape != (len(table.frame),):
        msg = (
            f"y: shape {values.shape} for {len(table.frame)} rows of X; expected one pKd per row. "
            "Pass a column, such as table['pKd']."
        )
        raise NotAFrame(msg)
    chosen = options or LabelOptions()
    label = _LABEL
    if isinstance(name := getattr(y, "name", None), str):
        is_other = chosen.better is not None or chosen.unit is not None
        is_known = read_value_header(name).better is not None
        if is_other:
            _refuse_affinity(name)
        elif not is_known:
            _refuse_other_unit(name)
        if is_other or is_known:
            label = name
    named = named or PairColumnOptions()
    beside = [*(named.features or ()), *(named.categories or ()), named.error, named.weight]
    if label in beside:
        label = _LABEL
    frame = table.frame[[name for name in beside if name in table.frame.columns]].copy()
    label = free_name(label, frame)
    frame[label] = values
    if weight is not None:
        if named.error is not None or named.weight is not None:
            msg = (
                "sample_weight: error or weight is given, too; expected one of them. Leave the "
                "others out."
            )
            raise NotAFrame(msg)
        weights = np.asarray(weight)
        if weights.shape != values.shape:
            msg = (
                f"sample_weight: shape {weights.shape} for {len(values)} rows of X; expected one "
                "number per row. Correct it."
            )
            raise NotAFrame(msg)
        name = free_name("sample_weight", frame)
        frame[name] = weights
        named = replace(named, weight=name)
    bare = replace(table, frame=frame, columns={"pkd": label}, ties={}, names=[*frame.columns])
    return label_pairs(bare, chosen, named=named)


def free_name(name: str, frame: pd.DataFrame) -> str:
    """Return a name that no column of a frame has."""
    while name in frame.columns:
        name += "_"
    return name


def pair_of_row(pairs: LabelledPairs) -> NDArray[np.int64]:
    """Return the pair of each row of a table read by `labelled`, shape (R,)."""
    antigens = len(pairs.table.antigens.keys)
    number_of_pair = pairs.antibody * antigens + pairs.antigen  # ascending, one per pair
    of_row = pairs.table.antibodies.of_row * antigens + pairs.table.antigens.of_row
    return np.searchsorted(number_of_pair, of_row)


def as_store(store: Store | Path | str | None) -> Store:
    """Open a store, unless it is open; raise `NotAFrame` if none is given."""
    if store is None:
        msg = "store=None: not given; expected a store with vectors. Pass store='PATH'."
        raise NotAFrame(msg)
    return store if isinstance(store, Store) else open_store(store)


def folders_with(
    store: Store,
    table: SequenceTable,
    options: VectorOptions,
    *,
    encode: bool,
    no_antigen: bool = False,
) -> dict[Kind, EncoderFolder]:
    """Find the folders that hold the vectors of a table.

    With `encode`, missing sequences are first encoded by the store's own encoders. Of a table
    with `no_antigen`, only antibodies have a folder.
    """
    kinds = [kind for kind in table.sequences if kind == "antibody" or not no_antigen]
    encoders = {kind: options.vectors_of(kind)["encoder"] for kind in kinds}
    if encode:
        chosen = {kind: store.folder(kind, encoder) for kind, encoder in encoders.items()}
        lacking = [kind for kind in kinds if chosen[kind].missing(table.sequences[kind].keys).any()]
        if lacking:
            antibodies = table.antibodies
            antigens = table.antigens
            chains = [antibodies.chains[i] for i in antibodies.of_row]
            pairs = pd.DataFrame(chains, columns=["heavy", "light"])
            if not no_antigen:
                pairs["antigen"] = ["|".join(antigens.chains[i]) for i in antigens.of_row]
            embed_like_folders(pairs.drop_duplicates(), store.path, chosen)
    return {kind: folder_with(store, table, kind, encoder) for kind, encoder in encoders.items()}
