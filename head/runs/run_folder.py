"""The folder of a run: what it is trained on, how it is split, and a finished run read back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import numpy as np
import pandas as pd

from abag import AbagError
from abag.core.cache import cache_dir
from abag.core.files import (
    FileDamaged,
    is_partial,
    read_json,
    replacing,
    sweep_partials,
    why_mistyped,
    why_unreadable,
    write_json,
)
from abag.core.messages import detail, first_line, say
from abag.core.options import schema
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import Store, open_store
from abag.head.data.affinities import Remembered
from abag.head.data.labels import (
    LabelledPairs,
    label_pairs,
    report_counts,
    training_labels,
)
from abag.head.data.options import read_molar_mass
from abag.head.data.units import to_pkd
from abag.head.data.vectors import StoredVectors, read_vectors
from abag.head.evaluation.metrics import Scores
from abag.head.evaluation.regime_scores import RegimeScore, TestedPairs, describe_regimes
from abag.head.evaluation.strong import StrongSummary
from abag.head.models.config import FitConfig, RunMismatch, check_same
from abag.head.regimes.clusters import KNOWN_ANTIGEN, PairGroups, with_clusters
from abag.head.regimes.folds import MeasuredRegime, measure_regimes
from abag.head.regimes.leaks import apply_adapter_policy
from abag.head.regimes.sides import Side, sides_of
from abag.head.regimes.splits import KEYS, TRAIN, Split, describe_parts, split_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.options import AntibodyRegion
    from abag.embed.sequences.pairs import SequenceTable


RUN_FORMAT = "abag-run 2"


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The pairs of a table and the vectors of their unique sequences."""

    pairs: LabelledPairs
    store: Store
    vectors: dict[Kind, StoredVectors]
    region: AntibodyRegion = "as-given"
    """Of the antibodies whose vectors these are."""
    sides: tuple[Side, Side] | None = None
    """Antibodies and antigens as the folds see them; by `split_inputs`."""
    identities: tuple[tuple[float, float], tuple[float, float]] = ((0.9, 0.9), (0.9, 0.4))
    """Identities of near-duplicates and of families, of antibodies and of antigens."""


def read_inputs(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    config: FitConfig,
    run: Path | None = None,
) -> RunInputs:
    """Read the labelled pairs of a table and their vectors, and report what was read.

    Of several encoders in the store, those of `run` are used, if it was started and none is given.
    Antibodies are cut to their variable domains if the store holds them so and not as given.
    """
    reading = replace(config, bad_rows="skip")  # bad rows are refused with those of bad labels
    read = read_pairs(table, reading)
    opened = open_store(store)
    region = config.antibody_region
    if region == "as-given" and not _has_antibodies(opened, read):
        cut = read_pairs(table, replace(reading, antibody_region="fv"))
        if _has_antibodies(opened, cut):
            say("antibodies: cut to their variable domains, as in the store (--antibody-region fv)")
            read, region = cut, "fv"
    pairs = label_pairs(read, config, refuse_sequences=config.bad_rows == "error")
    report_counts(pairs)
    if config.skipped is not None:
        pairs.table.skipped.write(Path(config.skipped))
    for problem in pairs.reading.problems:
        say(f"{pairs.table.source}: {problem}")
    path = run and run / "config.json"
    before = read_json(path) if path and path.exists() else {}
    vectors = {}
    for kind in pairs.table.sequences:
        views, known = config.views_of(kind), before.get(f"{kind}_fingerprint")
        if known in {f.fingerprint for f in opened.folders(kind)}:
            for view in views:
                view["encoder"] = view["encoder"] or known
        vectors[kind] = read_vectors(opened, pairs.table, kind, views)
    return RunInputs(pairs, opened, vectors, region)


def _has_antibodies(store: Store, table: SequenceTable) -> bool:
    """Whether an encoder of a store has the vectors of all antibodies of a table."""
    keys = table.antibodies.keys
    return any(not folder.missing(keys).any() for folder in store.folders("antibody"))


def describe_inputs(config: FitConfig, inputs: RunInputs) -> dict[str, Any]:
    """Return the content of config.json: the options, and what identifies the inputs."""
    pairs = inputs.pairs
    digest = blake2b(digest_size=16)
    for array in (pairs.keys("antibody"), pairs.keys("antigen"), pairs.pkd, pairs.censored):
        digest.update(np.ascontiguousarray(array).data)
    record = config.to_json()
    record["label_column"] = pairs.reading.column
    record["label_unit"] = pairs.reading.unit
    record["label_why"] = pairs.reading.why
    for kind, vectors in inputs.vectors.items():
        record[f"{kind}_encoder"] = vectors.folder.name
        record[f"{kind}_fingerprint"] = vectors.folder.fingerprint
        record[f"{kind}_views"] = vectors.names
    return record | {
        "store": str(inputs.store.path.absolute()),
        "pairs": len(pairs),
        "pairs_digest": digest.hexdigest(),
    }


def read_config(run: Path) -> dict[str, Any]:
    """Read config.json of a run, or raise `FileDamaged` or `OSError`."""
    path = run / "config.json"
    config = read_json(path)
    if (found := config.get("format")) != RUN_FORMAT:
        msg = (
            f"{path}: format {found!r} is not supported; this abag reads {RUN_FORMAT!r}. Fit again "
            "into another folder, or use the version of abag that wrote it."
        )
        raise FileDamaged(msg)
    names = [*(one.name for one in schema(FitConfig)), "label_column", "label_unit"]
    if missing := [name for name in names if name not in config]:
        msg = f"{path}: {missing[0]} is missing. Copy the whole run folder again."
        raise FileDamaged(msg)
    if type(epochs := config["epochs"]) is not int:
        msg = f"{path}: epochs is {epochs!r}; expected a whole number. Copy the run folder again."
        raise FileDamaged(msg)
    return config


def remembered_label(config: Mapping[str, Any]) -> Remembered:
    """Return how a run read its label, with its bound of non-binders in pKd."""
    unit, floor = config["label_unit"], None
    if config["no_binding"] is not None:
        mass = read_molar_mass(config["molar_mass"])
        floor = float(to_pkd(np.array([config["no_binding"]]), unit, mass)[0])
    return Remembered(
        column=config["label_column"], unit=unit, no_binding_pkd=floor,
        no_binding_empty=config["no_binding_empty"],
    )  # fmt: skip


def training_logs(run: Path) -> list[Path]:
    """Return the logs of the trainings of an unfinished run's folds."""
    folder = run / "checkpoints"
    return [*folder.glob("log.jsonl"), *sorted(folder.glob("stack-*/log.jsonl"))]


def finished_summary(run: Path, record: Mapping[str, Any]) -> RunSummary | None:
    """Return the summary of a finished run, or None if there is something left to train.

    A folder of another run than that of `record`, the config.json of this command, is refused.
    """
    # An interruption in the first moment leaves nothing but a partial file.
    if not run.exists() or all(map(is_partial, run.iterdir())):
        return None
    if not (run / "config.json").exists():
        msg = f"{run}: is not empty and contains no run. Use another --run folder."
        raise RunMismatch(msg)
    before = read_config(run)
    check_same(run, before, record)
    epochs = before["epochs"]
    if record["epochs"] < epochs:
        msg = (
            f"{run}: was started with epochs = {epochs}, and now has {record['epochs']}; "
            "expected as many or more. Give "
            f"--epochs {epochs}, or use another --run folder."
        )
        raise RunMismatch(msg)
    if not (run / "summary.json").exists() or epochs != record["epochs"]:
        return None
    return read_summary(run)


def start_run(
    run: Path, record: Mapping[str, Any], pairs: LabelledPairs, splits: Sequence[Split]
) -> None:
    """Write the configuration and the splits; the run is unfinished from here on."""
    frame, path = split_frame(pairs, splits), run / "splits.parquet"
    if path.exists():
        try:
            is_same = pd.read_parquet(path).equals(frame)
        except (ValueError, LookupError, TypeError, OSError) as error:
            reason = " ".join(str(error).split())
            msg = f"{path}: damaged ({reason}). Restore it, or use another --run folder."
            raise FileDamaged(msg) from error
        if not is_same:  # to resume with another split would leak
            msg = (
                f"{path}: differs from the split that the same options give now; expected the same "
                "split. Undo what changed, such as a split file, or use another --run folder."
            )
            raise RunMismatch(msg)
    sweep_partials(run)
    (run / "summary.json").unlink(missing_ok=True)
    # both are followed: the absolute path, and this one if run and store have moved together
    from_run = os.path.relpath(Path(record["store"]).resolve(), run.resolve())
    own = {**record, "format": RUN_FORMAT, "store_from_run": from_run}
    write_json(run / "config.json", own, sort_keys=True)  # first: it marks the folder as a run
    with replacing(path) as partial:
        frame.to_parquet(partial, index=False)


def split_inputs(inputs: RunInputs, config: FitConfig) -> tuple[RunInputs, list[MeasuredRegime]]:
    """Return the inputs with the clusters of their sequences, and the folds of each regime."""
    training_labels(inputs.pairs, np.arange(len(inputs.pairs)))  # raises if all are the same
    groups = PairGroups(inputs.pairs, config, cache_dir() / "clusters")
    pairs = with_clusters(groups)
    folders = [folder for vectors in inputs.vectors.values() for folder in vectors.folders]
    sides = sides_of(groups)
    measured, n_folds = list[MeasuredRegime](), 0
    for one in measure_regimes(groups, sides):
        if not one.splits:
            say(f"{one.regime.words}: {one.why_not}")
            measured.append(one)
            continue
        splits = apply_adapter_policy(
            one.splits, groups, folders,
            adapter_rows=config.adapter_rows, allow_leak=config.allow_adapter_leak,
        )  # fmt: skip
        for split in splits:
            training_labels(pairs, split.rows(TRAIN))  # raises if there is nothing to learn
        detail(f"{one.regime.words}: {describe_parts(splits)}")
        numbered = (replace(split, fold=n) for n, split in enumerate(splits, n_folds))
        measured.append(replace(one, splits=tuple(numbered)))
        n_folds += len(splits)
    antibody, antigen = config.antibody_identity, config.antigen_identity
    identities = ((antibody, antibody), (max(antigen, KNOWN_ANTIGEN), antigen))
    inputs = replace(inputs, pairs=pairs, sides=sides, identities=identities)
    return inputs, measured


# ---- a finished run ------------------------------------------------------------------------------


class NoFinishedRun(AbagError):
    """A folder does not contain a finished run, or it is damaged."""


class RegimeSummary(RegimeScore):
    """What is known of a measured regime."""

    folds: int
    weights: Mapping[str, float]
    """Weight of each part of the prediction, with sum 1."""
    spread: float
    noise: float
    split: dict[str, Any]
    """Rows per part, clusters and leaks of the folds."""
    metrics: dict[str, Scores]
    """Scores on the test pairs, averaged over folds: of the ``head`` and of the baselines. Those
    of strong binders have their threshold in the name, ``recall_at_9`` and the like; a
    ``--select`` with another threshold adds its own."""


class UnmeasuredRegime(TypedDict):
    """A regime that a table does not allow to measure."""

    regime: str
    words: str
    why: str


class DataSummary(TypedDict):
    """What a run was trained on."""

    source: str
    """Name of the table."""
    pairs: int
    antibodies: int
    antigens: int
    quantity: str
    """Of the labels, such as pKd or pIC50."""


class RunSummary(TypedDict):
    """Content of summary.json: what ``fit`` and ``evaluate`` return."""

    run: str
    regimes: list[RegimeSummary]
    """Those that were measured: the table that everybody should see."""
    not_measured: list[UnmeasuredRegime]
    """The other regimes."""
    warnings: list[str]
    steps: int
    epochs: int
    """Of the networks that were fitted to all pairs; 0 without networks."""
    seconds: float
    resumed_from_step: int | None
    used: dict[str, Any]
    """Settings that the run chose itself; several values if folds differ."""
    data: DataSummary
    noise: float | None
    counts: Mapping[str, int]
    strong: StrongSummary
    """How well strong binders are found; strong is 9.0, or the threshold of ``--select``."""
    learning_curve: NotRequired[list[dict[str, Any]]]
    """With ``--learning-curve``: ``share`` of the training groups, mean number of
    ``training_pairs`` and ``score`` of the first regime. The last point is the run itself."""
    table: NotRequired[dict[str, Any]]
    """What ``evaluate`` adds for another table: ``regimes`` and ``metrics`` (scores), ``pairs``,
    how many are ``in_training`` and ``far``, ``bias`` (predicted minus measured, in pKd)."""
    predictions: NotRequired[dict[str, Any]]
    """What it adds for a file of predictions: ``regimes`` (scores) and ``verdicts``."""
    strong_at: NotRequired[StrongSummary]
    """The same for ``evaluate --strong``; of the table, if one is given."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The contents of a finished run's folder."""

    run: Path
    config: Mapping[str, Any]
    summary: RunSummary
    frame: pd.DataFrame
    """Rows of ``pairs.parquet``, (P,); ``antibody`` and ``antigen`` are numbers by keys."""
    tested: pd.DataFrame
    """Rows of ``predictions.parquet``: the test pairs of each fold of each regime."""

    @property
    def quantity(self) -> str:
        return str(self.summary["data"]["quantity"])

    @property
    def mean_label(self) -> float:
        """Mean of the exact labels, in pKd."""
        return float(self.frame.loc[self.frame["censored"] == 0, "pkd"].mean())

    def regimes(self) -> Iterator[tuple[Mapping[str, Any], pd.DataFrame, TestedPairs]]:
        """Yield the summary of each regime, and its exact test rows in two forms."""
        for one in self.summary["regimes"]:
            rows = self.tested[
                (self.tested["regime"] == one["regime"]) & (self.tested["censored"] == 0)
            ]
            pair = rows["pair"].to_numpy(np.int64)
            groups = [rows[name].to_numpy(np.int64) for name in ("group", "second_group")]
            tested = TestedPairs(
                pair,
                rows["pkd"].to_numpy(np.float64),
                rows["fold"].to_numpy(np.int64),
                self.frame["antibody"].to_numpy(np.int64)[pair],
                self.frame["antigen"].to_numpy(np.int64)[pair],
                groups[:1] if np.array_equal(groups[0], groups[1]) else groups,
            )
            yield one, rows, tested


def read_summary(run: Path) -> RunSummary:
    """Read summary.json, or raise `FileDamaged` or `OSError`."""
    path = run / "summary.json"
    found = read_json(path)
    reason = why_mistyped(found, RunSummary)
    if not reason:
        try:
            describe_regimes(found["regimes"])
        except (LookupError, TypeError, ValueError) as error:
            reason = f"the scores of its regimes are damaged ({first_line(error)})"
    if reason:
        msg = f"{path}: {reason}. Copy the whole run folder again."
        raise FileDamaged(msg)
    return cast("RunSummary", found)


def read_run(run: Path) -> SavedRun:
    """Read the folder of a finished run, or raise `NoFinishedRun`."""
    with naming_damage(run):
        return read_tables(run, read_config(run), read_summary(run))


def read_tables(run: Path, config: Mapping[str, Any], summary: RunSummary) -> SavedRun:
    """Read the tables of a run, whose summary may not be written yet."""
    frame = pd.read_parquet(run / "pairs.parquet")
    tested = pd.read_parquet(run / "predictions.parquet")
    labels = [*KEYS, "pkd", "censored"]
    same = frame[labels].iloc[tested["pair"]].reset_index(drop=True)
    if not same.equals(tested[labels]):
        msg = f"{run}: predictions.parquet and pairs.parquet belong to different runs"
        raise ValueError(msg)
    for kind in ("antibody", "antigen"):
        frame[kind] = pd.factorize(frame[f"{kind}_key"], sort=True)[0]
    return SavedRun(run, config, summary, frame, tested)


_UNREADABLE = (
    OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError,
)  # fmt: skip
"""What content of the wrong kind raises where it is read."""


@contextmanager
def naming_damage(run: Path) -> Iterator[None]:
    """Raise `NoFinishedRun`, in one line, for what missing and damaged files of a run raise."""
    try:
        yield
    except FileDamaged as error:
        raise NoFinishedRun(str(error)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = (
            f"{run}: not a finished run ({why_unreadable(run, error)}). Check the path, or run "
            "abag fit on it until it ends."
        )
        raise NoFinishedRun(msg) from error
    except _UNREADABLE as error:
        reason = why_unreadable(run, error).rstrip(".")
        msg = f"{run}: a file of the run is damaged ({reason}). Copy the whole run folder again."
        raise NoFinishedRun(msg) from error
