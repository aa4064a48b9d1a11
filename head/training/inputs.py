"""What a fit reads: the pairs of a table, their vectors, and how they are divided into folds.

Test pairs leak through adapted encoders, whose vectors depend on the labels that the adapter was
trained on: scores on those pairs would measure memorisation, so they must not be held out. By
default the head does not train on them either, because it would trust the vectors of new sequences
as much as these.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Ints, hex_keys
from abag.core.errors import OptionError, SplitError
from abag.core.files import read_json
from abag.core.messages import counted, detail, say, shell_quoted
from abag.core.options import VectorsOf
from abag.embed.store.shard import ADAPTER_FOLDER, ROWS_FILE
from abag.embed.store.store import EncoderFolder, Store, folder_with, open_store
from abag.embed.tables.chains import ALONE, MUTATIONS, Kind
from abag.embed.tables.layout import NOTHING, Layout, LayoutRecord
from abag.embed.tables.pairs import SequenceTable, read_rows
from abag.embed.tables.references import References
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
from abag.head.regimes.folds import RegimesOfTable, all_pairs, measure_regimes, with_distances
from abag.head.regimes.sides import Sides
from abag.head.regimes.splits import (
    KEYS,
    OF_SPLIT,
    REGIMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    MeasuredRegime,
    PairGroups,
    Split,
    pair_keys,
    with_clusters,
    without_absent,
)

_ROWS = f"{ADAPTER_FOLDER}/{ROWS_FILE}"
"""Pairs that an adapter was trained on, in the folder of its vectors."""


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
    history: list[dict[str, Any]] | None = None
    """With ``--add``, source and promise of each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitInputs(RunInputs):
    """The same with the clusters of the sequences, and how the pairs are divided."""

    sides: Sides
    """Antibodies and antigens as the folds see them."""
    regimes: tuple[MeasuredRegime, ...]
    last: Split
    """That of the predictor, which trains on all pairs that may be used."""
    trained: Ints
    """These pairs, (T,)."""

    @property
    def splits(self) -> list[Split]:
        """The folds of all regimes, those of a regime one after another."""
        return [split for regime in self.regimes for split in regime.splits]


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
    decide = partial(decide_label, options=config)
    table_layout = Layout.of(table, config, rows=None, label=decide)
    read = read_rows(table_layout, refuse=False)
    opened = open_store(store)
    region = config.antibody_region
    if region == "as-given" and not _has_antibodies(opened, read):
        cut = read_rows(table_layout.with_region("fv"), refuse=False)
        if _has_antibodies(opened, cut):
            say("antibodies: cut to their variable domains, as in the store (--antibody-region fv)")
            read = cut
            region = "fv"
    path = run and run / "config.json"
    before = read_json(path) if path and path.exists() else {}
    folders = partial(first_folders, read, opened, config, before)
    pairs = label_pairs(read, folders=folders)
    report_counts(pairs)
    pairs = with_feature_columns(pairs)
    if config.no_antigen:
        say(f"{pairs.table.source}: {ALONE}")
    if config.skipped is not None:
        pairs.table.skipped.write(Path(config.skipped))
    pairs.report_problems()
    config = replace(config, antibody_region=region)
    references = pairs.table.files[0].references
    layout = layout_of_run(config, pairs, pairs.table.columns, references)
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
    references: References,
    before: LayoutRecord = NOTHING,
) -> RunLayout:
    """Return what a run remembers of its table, checked as the reader of predictors does.

    Parameters
    ----------
    config : FitConfig
    pairs : LabelledPairs
        All pairs of the run, which has an antigen of its own if it is that of all of them.
    found : mapping
        Columns of the table by role.
    references : References
        What the cells of the table refer to.
    before : LayoutRecord
        That of earlier rounds, whose antigen and parent are those of a table that has none.

    Raises
    ------
    OptionError
        If the name of a column is too long.
    """
    antigen, parent = references.constants()
    antigen = antigen or before.antigen
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
        parent=parent or before.parent,
        numbering=config.numbering,
        first_residue=config.first_residue,
        mutations_in_order=references.mutations_in_order or before.mutations_in_order,
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


def split_inputs(inputs: RunInputs) -> SplitInputs:
    """Cluster the sequences, and divide the pairs into the folds of each regime."""
    config = inputs.options
    training_labels(inputs.pairs, np.arange(len(inputs.pairs)))  # raises if all are the same
    groups = PairGroups(inputs.pairs, config)
    pairs = with_clusters(groups)
    adapted = {}
    for kind, vectors in inputs.vectors.items():
        for view in vectors.views:
            if view.folder.info.get("adapter"):
                adapted[kind, view.folder.fingerprint] = view.folder
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
        splits = [*regime.splits]
        if adapted:
            splits = _apply_adapter_policy(splits, table, [*adapted.values()], config)
        for split in splits:
            training_labels(pairs, split.rows(TRAIN))  # raises if there is nothing to learn
        folds = counted(len(splits), "fold")
        parts = ", ".join(f"{n} {name}" for name, n in splits[0].rows_per_part().items() if n)
        detail(f"{regime.regime.words}: {folds}, the first with {parts} pairs")
        # one series over all regimes, so that splits.parquet tells their folds apart
        numbered = [replace(split, fold=n) for n, split in enumerate(splits, n_folds)]
        measured.append(replace(regime, splits=tuple(numbered)))
        n_folds += len(splits)
    last = all_pairs(measured)
    return SplitInputs(
        pairs,
        inputs.store,
        inputs.vectors,
        inputs.layout,
        config,
        inputs.history,
        sides=table.sides,
        regimes=tuple(measured),
        last=last,
        trained=last.rows(TRAIN),
    )


# ---- pairs that trained an adapter ----


def _apply_adapter_policy(
    splits: Sequence[Split],
    table: RegimesOfTable,
    adapted: Sequence[EncoderFolder],
    config: FitConfig,
) -> list[Split]:
    """Refuse splits that leak through adapters, and exclude the adapters' pairs from training.

    They leak if an adapter saw a held-out pair or a near-duplicate of one. Notes go to the report.
    """
    name = " and ".join(folder.name for folder in adapted)
    groups = table.groups
    rows_of_adapters = [_adapter_rows(folder) for folder in adapted]
    are_leaks = np.zeros(len(groups.pairs), np.bool_)
    is_held_out = are_leaks.copy()
    for split in splits:
        for rows in rows_of_adapters:
            are_leaks |= _leaks(split, groups, rows)
        is_held_out |= np.isin(split.part, (TEST, VALIDATION))
    if are_leaks.any():
        msg = (
            f"{name}: {are_leaks.sum()} of {is_held_out.sum()} validation and test pairs, or "
            "near-duplicates of them, trained its adapter; expected none. Use the adapter's own "
            f"split (--split {shell_quoted(f'file={adapted[0].path / _ROWS}')}), or adapt again "
            "with --split-from this split."
        )
        raise SplitError(msg)
    used_by_adapters = []
    for rows in rows_of_adapters:
        used_by_adapters.append(_contained(groups.pairs, rows[rows["adapter"] == "train"]))
    used = np.any(used_by_adapters, axis=0)
    trains_on = np.any([split.part == TRAIN for split in splits], axis=0)
    count = int((used & trains_on).sum())
    notes = list[str]()
    if count and config.adapter_rows == "train":
        notes.append(
            f"{count} training pairs also trained the adapter of {name}: their vectors depend on "
            "their labels, and the head may rely on vectors too much."
        )
    elif count:
        splits = [_exclude(split, used, name, table.sides) for split in splits]
        notes.append(
            f"{count} training pairs trained the adapter of {name} and are excluded from the "
            "training of the head."
        )
    return [replace(split, description=split.description | {"adapters": notes}) for split in splits]


def _adapter_rows(folder: EncoderFolder) -> pd.DataFrame:
    """Read which pairs an adapter was trained on (``train``) and validated on (``validation``)."""
    columns = [*KEYS, "adapter"]
    try:
        return pd.read_parquet(io.BytesIO(folder.adapter_files()[_ROWS]), columns=columns)
    except (KeyError, ValueError, OSError) as error:
        msg = (
            f"{folder.path}: its vectors come from an adapter, but {_ROWS} is missing or cannot be "
            f"read ({error}); expected the pairs that the adapter was trained on. Delete the "
            "folder and run abag embed with the adapter again."
        )
        raise SplitError(msg) from error


def _contained(pairs: LabelledPairs, rows: pd.DataFrame) -> Bools:
    """Return which pairs are among an adapter's rows, (P,)."""
    of_adapter = pd.MultiIndex.from_frame(rows[KEYS])
    return np.asarray(pd.MultiIndex.from_frame(pair_keys(pairs)).isin(of_adapter))


def _leaks(split: Split, groups: PairGroups, rows: pd.DataFrame) -> Bools:
    """Return which held-out pairs leak through an adapter's rows, shape (P,)."""
    trained = _exposed(split, groups, rows[rows["adapter"] == "train"])
    validated = _exposed(split, groups, rows[rows["adapter"] == "validation"])
    test = split.part == TEST
    validation = split.part == VALIDATION
    return np.asarray((test & (trained | validated)) | (validation & trained))


def _exposed(split: Split, groups: PairGroups, rows: pd.DataFrame) -> Bools:
    """Return which pairs share a group, or a held-out kind of sequence, with any row, (P,)."""
    pairs = groups.pairs
    exposed: Bools = np.isin(split.group, split.group[_contained(pairs, rows)])
    method = split.name.partition("=")[0]
    for kind in REGIMES[OF_SPLIT.get(method, method)].new:
        group = groups.of_method(kind)
        # the variants of a library share one cluster: its folds hold out mutations instead
        if np.isin(group[split.rows(TEST)], group[split.rows(TRAIN)]).any():
            continue
        keys = hex_keys(pairs.table.sequences[kind].keys)
        is_adapted = np.isin(keys, rows[f"{kind}_key"].to_numpy(str))[pairs.index(kind)]
        exposed |= np.isin(group, group[is_adapted])
    return exposed


def _exclude(split: Split, used: Bools, name: str, sides: Sides) -> Split:
    """Leave pairs that trained an adapter, (P,), unused: the nearest ones may be among them."""
    part = np.where(used & (split.part == TRAIN), np.int8(UNUSED), split.part)
    if not (part == TRAIN).any():
        msg = (
            f"{name}: its adapter was trained on all training pairs; expected some to remain for "
            "the head. Adapt with --head-share above 0, or use --adapter-rows train."
        )
        raise SplitError(msg)
    rest = replace(split, part=part, excluded=used | ~split.is_used)
    rest = with_distances(rest, sides)
    return replace(rest, description=split.description | {"rows": rest.rows_per_part()})
