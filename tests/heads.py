"""What heads learn from, for tests of models: pairs, vectors, splits and training rows.

Tests of models take these names of abag from here, so that the move of one is one edit.
"""

import json
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import pandas as pd
from drawn import write_vectors
from reading import demo_table, groups_of, read_labels, read_sequences, splits_of

from abag import open_store
from abag.core.arrays import hex_keys
from abag.core.options import parse, schema
from abag.head.labels.options import SPLIT_VALUES
from abag.head.models.config import is_used
from abag.head.models.pair_vectors import DoesNotApply, PairVectors, Standardizer, TrainingRows
from abag.head.models.registry import MODELS
from abag.head.predictor.folder import record_digest
from abag.head.predictor.parts import BASELINES, inner_folds
from abag.head.regimes.splits import TEST, TRAIN, UNUSED, VALIDATION, Split, with_clusters

__all__ = [
    "BASELINES",
    "MODELS",
    "SPLIT_VALUES",
    "TEST",
    "TRAIN",
    "UNUSED",
    "VALIDATION",
    "PairVectors",
    "Split",
    "Standardizer",
    "TrainingRows",
    "demo_table",
    "inner_folds",
    "parse",
    "read_labels",
    "read_sequences",
    "schema",
    "splits_of",
]


def used_options(options, head="stack"):
    """Leave out the options that a head does not use, which a fit refuses."""
    return {name: value for name, value in options.items() if is_used(name, head)}


def choices_of(options, name):
    """Return the values that an option of a class offers."""
    (declared,) = (option for option in schema(options) if option.name == name)
    return {*declared.choices}


def with_cluster_numbers(pairs, **options):
    """Add the clusters of antibodies and antigens, as `fit` finds them with these options."""
    return with_clusters(groups_of(pairs, **options))


def sequence_keys(frame):
    """Return the keys of both sequences of each row, as run folders hold them."""
    table = read_sequences(frame)
    keys = {}
    for kind, unique in table.sequences.items():
        keys[f"{kind}_key"] = np.array(hex_keys(unique.keys), object)[unique.of_row]
    return pd.DataFrame(keys, index=frame.index)


def store_vectors(path, frame, vectors_of, info_of=lambda _kind: {}):
    """Store vectors, (N, D), which a function gives for N sequences of a kind of a table."""
    store = open_store(path, create=True)
    for kind, unique in read_sequences(frame).sequences.items():
        x_ND = np.asarray(vectors_of(kind, len(unique.keys)), np.float32)
        write_vectors(store, kind, unique.keys, x_ND, **info_of(kind))
    return store


def fitted_models(training, names=tuple(MODELS)):
    """Fit the models that apply to training rows; yield the name and the fit of each."""
    for name in names:
        if MODELS[name].fit is not None:
            with suppress(DoesNotApply):
                yield name, MODELS[name].fit(training)


def reloaded(model):
    """Return a fitted model as one that was saved in a predictor and loaded."""
    settings = parse(type(model.settings), json.loads(json.dumps(asdict(model.settings))))
    arrays = {name: np.array(array) for name, array in model.arrays().items()}
    return type(model).load(arrays, settings)


def sign(folder, change=lambda _record: None):
    """Change the record of a predictor folder, and sign it as a stranger can."""
    path = folder / "predictor.json"
    record = json.loads(path.read_text())
    change(record)
    record["digest"] = record_digest(record, (folder / "weights.safetensors").read_bytes())
    path.write_text(json.dumps(record))
    summary = folder.parent / "summary.json"
    if folder.name == "predictor" and summary.exists():  # it is then the predictor of the run
        signed = json.loads(summary.read_text()) | {"predictor_digest": record["digest"]}
        summary.write_text(json.dumps(signed))
    return folder
