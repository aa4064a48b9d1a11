"""What a fit reads: the pairs of a table, their vectors, and how they are divided into folds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from abag.core.errors import OptionError
from abag.core.files import read_json
from abag.core.messages import detail, say
from abag.core.options import VectorsOf
from abag.embed.store.store import EncoderFolder, Store, folder_with, open_store
from abag.embed.tables.chains import ALONE, MUTATIONS, Kind
from abag.embed.tables.layout import Layout
from abag.embed.tables.pairs import SequenceTable, read_rows
from abag.embed.tables.table import TableLike
from abag.head.labels.column import Remembered, RunLayout, decide_label
from abag.head.labels.labelled_pairs import (
    LabelledPairs,
    label_pairs,
    report_counts,
    training_labels,
    with_feature_columns,
)
from abag.head.models.config import FitConfig
from abag.head.models.pair_vectors import StoredVectors
from abag.head.regimes.folds import (
    MeasuredRegime,
    RegimesOfTable,
    measure_regimes,
    with_distances,
)
from abag.head.regimes.relations import PairGroups, with_clusters
from abag.head.regimes.sides import Sides
from abag.head.regimes.splits import TRAIN, apply_adapter_policy, describe_parts, without_absent


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The pairs of a table and the vectors of their unique sequences."""

    pairs: LabelledPairs
    store: Store
    vectors: dict[Kind, StoredVectors]
    layout: RunLayout
    """What the columns of the table are."""
    options: FitConfig
    """Those that were given, with the region of the antibodies, and those of the run of ``--add``.
    """
    sides: Sides | None = None
    """Antibodies and antigens as the folds see them; by `split_inputs`."""
    history: list[dict[str, Any]] | None = None
    """With ``--add``, source and promise of each round."""


def read_inputs(
    table: TableLike,
    store: Path | str,
    config: FitConfig,
    run: Path | None = None,
) -> RunInputs:
    """Read the labelled pairs of a table and their vectors, and report what was read.

    Of several encoders in the store, those of `run` are used, if it was started and none is given.
    Antibodies are cut to their variable domains if the store holds them so and not as given.
    """
    reading = replace(config, bad_rows="skip")  # bad rows are refused with those of bad labels
    decide = partial(decide_label, options=config)
    table_layout = Layout.of(table, reading, rows=None, label=decide)
    read = read_rows(table_layout)
    opened = open_store(store)
    region = config.antibody_region
    if region == "as-given" and not _has_antibodies(opened, read):
        cut = read_rows(table_layout.with_region("fv"))
        if _has_antibodies(opened, cut):
            say("antibodies: cut to their variable domains, as in the store (--antibody-region fv)")
            read = cut
            region = "fv"
    path = run and run / "config.json"
    before = read_json(path) if path and path.exists() else {}
    pairs = label_pairs(
        read,
        refuse_sequences=config.bad_rows == "error",
        folders=partial(first_folders, read, opened, config, before),
    )
    report_counts(pairs)
    pairs = with_feature_columns(pairs)
    if config.no_antigen:
        say(f"{pairs.table.source}: {ALONE}")
    if config.skipped is not None:
        pairs.table.skipped.write(Path(config.skipped))
    pairs.report_problems()
    config = replace(config, antibody_region=region)
    constants = pairs.table.files[0].references.constants()
    layout = layout_of_run(config, pairs, pairs.table.columns, constants)
    vectors = vectors_of_pairs(pairs, opened, config, before)
    return RunInputs(pairs, opened, vectors, layout, config)


def first_folders(
    table: SequenceTable, opened: Store, config: FitConfig, before: Mapping[str, Any]
) -> dict[Kind, EncoderFolder]:
    """Return the folder of a store with the first view of each kind that a run encodes."""
    folders: dict[Kind, EncoderFolder] = {}
    for kind in table.kinds:
        encoder = _views(config, kind, opened, before)[0]["encoder"]
        folders[kind] = folder_with(opened, kind, encoder, table.sequences[kind].keys, table.source)
    return folders


def vectors_of_pairs(
    pairs: LabelledPairs, opened: Store, config: FitConfig, before: Mapping[str, Any]
) -> dict[Kind, StoredVectors]:
    """Read the vectors of all sequences, of the encoders of an earlier run if none is named."""
    vectors: dict[Kind, StoredVectors] = {}
    for kind in pairs.table.sequences:
        views = _views(config, kind, opened, before)
        vectors[kind] = read_vectors(opened, pairs.table, kind, views)
    return vectors


def read_vectors(
    store: Store, table: SequenceTable, kind: Kind, views: Sequence[VectorsOf]
) -> StoredVectors:
    """Read the vectors of the unique sequences; by default from the only encoder of a kind.

    Those of a kind that the rows do not have say nothing.
    """
    if kind not in table.kinds:
        return StoredVectors.absent()
    keys = table.sequences[kind].keys
    places = []
    for view in views:
        folder = folder_with(store, kind, view["encoder"], keys, table.source)
        places.append((folder, view["pooling"]))
    return StoredVectors.read(places, keys)


def _views(
    config: FitConfig, kind: Kind, store: Store, before: Mapping[str, Any]
) -> list[VectorsOf]:
    """Return the vectors of a kind: of the encoders that a run was started with, if none is named.

    `before` is the content of its config.json.
    """
    views = config.views_of(kind)
    fingerprint = str(before.get(f"{kind}_fingerprint"))
    if fingerprint in {folder.fingerprint for folder in store.folders(kind)}:
        for view in views:
            view["encoder"] = view["encoder"] or fingerprint
    return views


def _has_antibodies(store: Store, table: SequenceTable) -> bool:
    """Whether an encoder of a store has the vectors of all antibodies of a table."""
    keys = table.antibodies.keys
    return any(not folder.missing(keys).any() for folder in store.folders("antibody"))


def layout_of_run(
    config: FitConfig,
    pairs: LabelledPairs,
    found: Mapping[str, str],
    constants: tuple[str, str],
) -> RunLayout:
    """Return what a run remembers of its table, checked as the reader of predictors does.

    Parameters
    ----------
    config : FitConfig
    pairs : LabelledPairs
        All pairs of the run, which has an antigen of its own if it is that of all of them.
    found : mapping
        Columns of the table by role.
    constants : tuple of str
        Antigen and parent of all rows, see `References.constants`.

    Raises
    ------
    OptionError
        If the name of a column is too long.
    """
    antigen, parent = constants
    label = pairs.reading
    if "antigen" in pairs.kinds and MUTATIONS["antigen"] not in found:
        antigens = pairs.table.antigens.chains
        antigen = "|".join(antigens[0]) if len(antigens) == 1 else ""
    files = [str(Path(path).expanduser().absolute()) for path in config.sequences]
    layout = RunLayout(
        columns=tuple(RunLayout.columns_of(config.columns, found)),
        antigen=antigen,
        antibody_region=config.antibody_region,
        bad_rows=config.bad_rows,
        chains=config.chains,
        parent=parent,
        numbering=config.numbering,
        first_residue=config.first_residue,
        sequences=tuple(files),
        label=Remembered(
            column=label.column,
            unit=label.unit,
            why=label.why,
            no_binding_pkd=label.no_binding_pkd,
            no_binding_empty=config.no_binding_empty,
            quantity=label.quantity,
        ),
    )
    try:
        layout.check()
    except ValueError as error:
        msg = f"--column: {error}, as predictors are read with. Rename the column."
        raise OptionError(msg) from error
    return layout


def describe_inputs(config: FitConfig, inputs: RunInputs) -> dict[str, Any]:
    """Return the content of config.json: the options, and what identifies the inputs."""
    pairs = inputs.pairs
    digest = blake2b(digest_size=16)
    for array in (pairs.keys("antibody"), pairs.keys("antigen"), pairs.pkd, pairs.censored):
        digest.update(np.ascontiguousarray(array).data)
    if pairs.share is not None:
        digest.update(pairs.share.tobytes())
    if pairs.cells is not None:
        digest.update(pairs.cells.numbers_RF.tobytes())
        digest.update(json.dumps(pairs.cells.words_RG.tolist()).encode())
    layout = inputs.layout
    record = config.to_json() | {
        # sequences, of which the options may name a file, and absolute paths
        "antigen": layout.antigen or None,
        "parent": layout.parent or None,
        "sequences": [*layout.sequences],
        "layout": layout.to_json(),
    }
    for kind, vectors in inputs.vectors.items():
        folder = vectors.folder if vectors.views else None
        record[f"{kind}_encoder"] = None if folder is None else folder.name
        record[f"{kind}_fingerprint"] = None if folder is None else folder.fingerprint
        record[f"{kind}_views"] = vectors.names
    return record | {
        "store": str(inputs.store.path.absolute()),
        "pairs": len(pairs),
        "pairs_digest": digest.hexdigest(),
    }


def split_inputs(inputs: RunInputs) -> tuple[RunInputs, list[MeasuredRegime]]:
    """Return the inputs with the clusters of their sequences, and the folds of each regime."""
    config = inputs.options
    training_labels(inputs.pairs, np.arange(len(inputs.pairs)))  # raises if all are the same
    groups = PairGroups(inputs.pairs, config)
    pairs = with_clusters(groups)
    folders = [folder for vectors in inputs.vectors.values() for folder in vectors.folders]
    table = RegimesOfTable(groups)
    measured = list[MeasuredRegime]()
    n_folds = 0
    for regime in measure_regimes(table):
        if not regime.splits and not {*regime.regime.new} <= {*pairs.kinds}:
            continue  # there are no new antigens
        words = without_absent(regime.regime.words, pairs.kinds)
        regime = replace(regime, regime=replace(regime.regime, words=words))
        if not regime.splits:
            say(f"{regime.regime.words}: {regime.why_not}")
            measured.append(regime)
            continue
        checked = apply_adapter_policy(
            regime.splits,
            groups,
            folders,
            adapter_rows=config.adapter_rows,
        )
        splits = []
        for before, split in zip(regime.splits, checked, strict=True):
            training_labels(pairs, split.rows(TRAIN))  # raises if there is nothing to learn
            is_same = split.part is before.part  # else the nearest pairs may be excluded
            splits.append(split if is_same else with_distances(split, table.sides))
        detail(f"{regime.regime.words}: {describe_parts(splits)}")
        # one series over all regimes, so that splits.parquet tells their folds apart
        numbered = [replace(split, fold=n) for n, split in enumerate(splits, n_folds)]
        measured.append(replace(regime, splits=tuple(numbered)))
        n_folds += len(splits)
    return replace(inputs, pairs=pairs, sides=table.sides), measured
