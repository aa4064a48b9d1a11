"""Every antibody of one table against every antigen of another.

A row of the output holds the columns of an antibody, those of an antigen, and their scores.
Antibodies come in the order of their table, each with all antigens in the order of theirs.
N antibodies, M antigens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.messages import say
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import read_pairs
from abag.embed.sequences.table_writer import TableWriter
from abag.embed.sequences.tables import CHUNK_ROWS, TableLike
from abag.head.data.label_units import TO_PKD
from abag.head.models.pair_model import PairVectors
from abag.head.prediction.inputs import (
    CannotPredict,
    CollectedSequences,
    PairScores,
    RegimeCounts,
    Scorer,
    encode_missing,
    refuse_score_columns,
    row_bar,
    score_columns,
    with_p_strong,
)
from abag.head.prediction.predictor import existing_store
from abag.head.regimes.recognise import NewSequences

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.store import Store
    from abag.head.prediction.options import PredictOptions

SLICE = 16_384
"""Antibodies whose vectors are in memory at a time: 67 MB at IgT5's width."""
PAIRS = 1 << 20
"""Pairs scored at a time."""
PAIR_ROLES = frozenset({*TO_PKD, "prediction", "sigma", "censored", "affinity_type"})
"""Roles of columns that describe one pair, and would be wrong beside another."""
KIND_ROLES: dict[Kind, frozenset[str]] = {
    "antibody": frozenset({"heavy", "light", "antibody"}),
    "antigen": frozenset({"antigen"}),
}


def predict_all_pairs(
    scorer: Scorer, antibodies: TableLike, antigens: TableLike, out: Path, options: PredictOptions
) -> PairScores:
    """Score each distinct antibody of one table against each distinct antigen of another.

    Raises
    ------
    AbagError
        As `predict`.
    """
    if options.antigen is not None:
        msg = "--antigen and --cross: each defines the antigens; expected one of them. Remove one."
        raise CannotPredict(msg)
    antibody_table, antibody_sequences = _read_kind(scorer, antibodies, "antibody", options)
    antigen_table, antigen_sequences = _read_kind(scorer, antigens, "antigen", options)
    same = antibodies is antigens
    if not (isinstance(antibodies, pd.DataFrame) or isinstance(antigens, pd.DataFrame)):
        same = Path(antibodies).samefile(antigens)
    left, right = _sequence_columns(antibody_table, antigen_table, same=same)
    added = score_columns(options.strong)
    refuse_score_columns(left, antibody_table.source, added)
    refuse_score_columns(right, antigen_table.source, added)
    store = encode_missing(scorer, antibody_sequences, antigen_sequences)
    keys = antibody_table.antibodies.keys, antigen_table.antigens.keys
    chains = antibody_table.antibodies.chains, antigen_table.antigens.chains
    sequences = antibody_sequences, antigen_sequences
    counts = _write_scores(
        scorer, store, keys, (left, right), sequences, chains, out, options.strong
    )
    skipped = len(antibody_table.skipped) + len(antigen_table.skipped)
    return counts.summary(len(left) * len(right), skipped, *sequences)


def _read_kind(
    scorer: Scorer, table: TableLike, kind: Kind, options: TableOptions
) -> tuple[SequenceTable, CollectedSequences]:
    """Read one kind of a table, and find the sequences that the store lacks."""
    columns = {role: name for role, name in options.columns.items() if role in KIND_ROLES[kind]}
    read = read_pairs(table, replace(options, columns=columns), kinds=(kind,), as_written=True)
    read.report_notes()
    collected = CollectedSequences(kind, scorer.predictor.seen)
    unique = read.sequences[kind]
    store = existing_store(scorer.store_path)
    collected.add(unique, scorer.predictor.missing(store, kind, unique.keys))
    collected.finish()
    return read, collected


def _sequence_columns(
    antibodies: SequenceTable, antigens: SequenceTable, *, same: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Select the columns that belong to each distinct sequence; report which are left out."""
    left = _columns_of_kind(antibodies, "antibody")
    right = _columns_of_kind(antigens, "antigen")
    if same:  # a column of both, such as a constant one, is written once
        right = right.drop(columns=[name for name in right if name in left])
    dropped = [n for n in antibodies.frame if n not in left and not (same and n in right)]
    if not same:
        dropped += [n for n in antigens.frame if n not in right]
    if dropped:
        say(
            "columns left out, because they describe a pair or differ between rows of the same "
            f"sequence: {', '.join(map(str, dropped))}"
        )
    both = set(left) & set(right)
    return (
        left.rename(columns={name: f"{name}_antibody" for name in both}),
        right.rename(columns={name: f"{name}_antigen" for name in both}),
    )


def _columns_of_kind(table: SequenceTable, kind: Kind) -> pd.DataFrame:
    """Select the columns with one value per sequence; one row per distinct sequence."""
    foreign = PAIR_ROLES | KIND_ROLES["antigen" if kind == "antibody" else "antibody"]
    excluded = {name for role, name in table.columns.items() if role in foreign}
    sequence = {table.columns.get(role) for role in KIND_ROLES[kind]}
    of_row = table.sequences[kind].of_row
    _, first = np.unique(of_row, return_index=True)
    selected = []
    for name in table.frame.columns:
        value = pd.factorize(table.frame[name], use_na_sentinel=False)[0]
        constant = (value == value[first[of_row]]).all()
        if name in sequence or (name not in excluded and constant):
            selected.append(name)
    return table.frame[selected].iloc[first].reset_index(drop=True)


def _write_scores(
    scorer: Scorer,
    store: Store,
    keys: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    columns: tuple[pd.DataFrame, pd.DataFrame],
    sequences: tuple[CollectedSequences, CollectedSequences],
    chains: tuple[Sequence[Chains], Sequence[Chains]],
    out: Path,
    strong: float | None,
) -> RegimeCounts:
    """Score and write all pairs; both kinds of all arguments are in the order of their keys."""
    predictor, (antibody_keys, antigen_keys) = scorer.predictor, keys
    predictor.refuse_missing(store, "antibody", antibody_keys)
    antigen_ME = predictor.read(store, "antigen", antigen_keys)
    pairs, counts = len(antibody_keys) * len(antigen_keys), RegimeCounts()
    with TableWriter(out) as writer, row_bar("scoring", pairs) as shown:
        for at in range(0, len(antibody_keys), SLICE):
            rows = slice(at, at + SLICE)
            antibody_ND = predictor.read(store, "antibody", antibody_keys[rows])
            states = sequences[0].state[rows], sequences[1].state
            for i, j in _index_pairs(len(antibody_ND), len(antigen_ME)):
                vectors = PairVectors(antibody_ND, antigen_ME, i, j, chains[0][rows], chains[1])
                scores = predictor.score(vectors, NewSequences(states[0][i], states[1][j]))
                counts.add(scores)
                scores = with_p_strong(scores, strong)
                for first in range(0, len(scores), CHUNK_ROWS):
                    chunk = slice(first, first + CHUNK_ROWS)
                    left, right = columns[0].iloc[at + i[chunk]], columns[1].iloc[j[chunk]]
                    frames = [f.reset_index(drop=True) for f in (left, right, scores[chunk])]
                    writer.write(pd.concat(frames, axis=1))
                    shown.update(len(left))
    return counts


def _index_pairs(n: int, m: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield all pairs of n and m indices, about `PAIRS` at a time, the second varying faster."""
    step = max(1, PAIRS // m)
    for first in range(0, n, step):
        rows = np.arange(first, min(first + step, n))
        yield np.repeat(rows, m), np.tile(np.arange(m), len(rows))
