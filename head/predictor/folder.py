"""A predictor as a folder: ``predictor/`` in a run, its copy, or the output of `abag share`.

    weights.safetensors    arrays of the parts, input statistics included, and the training
                           sequences, by which what is new is recognised; `abag share` leaves
                           these out
    predictor.json         the parts, the weights and the calibration of each regime, and a digest
                           of both files
    README.md              the model card (`abag.head.runs.report.write_card`)
    manifest.json          of a shared folder: the files that are read, with their digests

Digests are compared at each reading. What was downloaded of a commit once is read without a network
connection. Nothing is dated, and nothing is unpickled. The last step of a fit loads what it saved
and compares (`check_saved`). P pairs of a table, R rows of a sample.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, file_digest, sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from abag.core.arrays import Floats, Ints, checked_array, distinct, label_weights
from abag.core.errors import (
    DamagedFile,
    OptionError,
    OutputError,
    PredictionError,
    RunError,
    SequenceError,
)
from abag.core.files import (
    cache_dir,
    check_names,
    json_bytes,
    make_folder,
    read_inside,
    read_json,
    replacing,
    why_unreadable,
    write_bytes,
    write_json,
)
from abag.core.hub import Repository, is_hub_address, parse_address
from abag.core.messages import counted, quoted, say
from abag.core.options import MAY_LACK, parse, user_path
from abag.embed.store.shard import ADAPTER_PATHS, ROWS_FILE
from abag.embed.store.store import Store, open_store
from abag.embed.tables.chains import KINDS, PLURAL, Kind
from abag.embed.tables.columns import quote_some
from abag.embed.tables.pairs import Sequences
from abag.head.labels.column import RunLayout
from abag.head.labels.features import FeatureColumns, ReadFeatures
from abag.head.models.pair_vectors import PairVectors, SideVectors, StoredVectors
from abag.head.predictor.parts import MOST, Parts, UsedRegime, check_weights
from abag.head.predictor.predictor import (
    RECORD,
    WEIGHTS,
    KnownNoise,
    Predictor,
    Scorer,
    VectorSpec,
    ViewSpec,
)
from abag.head.regimes.sides import KnownSequences, TrainedChains
from abag.head.regimes.splits import LEAST_ROWS, standard_error

if TYPE_CHECKING:
    import pandas as pd

    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.predictor.weigh import WeighedRegime, WeighedRun
    from abag.head.training.inputs import RunInputs, SplitInputs


SCHEMA = 21
PREDICTOR = "predictor"
"""Folder of the predictor of a run."""
_MISMATCHES = (
    *(TypeError, LookupError, ValueError, RuntimeError, ArithmeticError),
    *(OptionError, PredictionError, RunError, SequenceError),
)
_HOW_TO_FIX = "Copy the whole predictor folder again, or train the run again."
_GET_AGAIN = "Get the predictor again."
MANIFEST = "manifest.json"
CARD = "README.md"
LICENCE = "LICENSE"
ADAPTER_FILES = tuple(f"{kind}-{path}" for kind in KINDS for path in ADAPTER_PATHS)
"""Files of the adapters, whose paths in a store are ``adapter/...``, by kind."""
READ = (RECORD, WEIGHTS, *ADAPTER_FILES)
"""Files that are read; the card and the licence are for people."""
FORMAT = {"format": "abag-predictor", "version": 1}


SCORED = 64
"""Most pairs that are scored by the predictor that was fitted and by the one that was saved."""
COMPARED = 512
"""Most pairs of each regime whose errors are compared."""
SAME_SHARE = 1e-3
"""Largest difference between predictions before and after saving, in standard deviations of the
labels: of large sums of numbers that are saved with 24 bits."""
EXCESS_SHARE = 0.02
"""Largest excess of errors on learned labels, in variances of the labels: without any signal both
predict a mean."""
CHANCE = 5.0
"""Standard errors by which errors on learned labels may be larger than out-of-fold errors."""
HOW_TO_GO_ON = (
    "The run is not finished. Use another --head, such as ridge, and report this with the command."
)


class PredictorDiffers(RunError):
    """A saved predictor does not predict what its run has measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRecord:
    """Content of predictor.json, apart from ``schema`` and ``digest``."""

    parts: Mapping[str, tuple[dict[str, Any], ...]]
    """Settings of the models of each part."""
    regimes: tuple[UsedRegime, ...]
    antibody: VectorSpec
    antigen: VectorSpec
    chains: TrainedChains
    label_sd: float
    layout: RunLayout
    features: FeatureColumns | None = field(default=None, metadata=MAY_LACK)
    """Absent from the file if there are none: versions that cannot read them refuse the record."""


def record_digest(record: Mapping[str, Any], weights: bytes | Path) -> str:
    """Hash the fields of predictor.json and the weights, bytes or a file: 32 hex digits."""
    hashed = {name: value for name, value in record.items() if name not in ("schema", "digest")}
    running = blake2b(json.dumps(hashed, sort_keys=True).encode(), digest_size=16)
    if isinstance(weights, bytes):
        running.update(weights)
    else:
        with weights.open("rb") as file:
            file_digest(file, lambda: running)
    return running.hexdigest()


def make_predictor(
    inputs: SplitInputs,
    parts: Parts,
    weighed: WeighedRun,
) -> Predictor:
    """Join what was fitted to all pairs, and what the folds have measured.

    Raises `RunError` if a regime gives weight to a part that was not fitted to all pairs.
    """
    pairs = inputs.pairs
    regimes = {regime.used.name: regime.used for regime in weighed.regimes}
    for name, regime in regimes.items():
        check_weights(name, regime.mixture.weights, parts.models)
    noise: dict[Kind, KnownNoise] = {}
    for kind, factor in weighed.noise.items():
        differs = factor != 1
        if differs.any():
            keys = pairs.table.sequences[kind].keys[: len(factor)]
            noise[kind] = KnownNoise(keys[differs], factor[differs])
    trained = inputs.trained
    seen: dict[Kind, KnownSequences] = {}
    for side in inputs.sides:
        identity = getattr(inputs.options, f"{side.kind}_identity")
        names = pairs.names_of(side.kind)
        of_trained = distinct(pairs.index(side.kind)[trained]).tolist()
        names_of_trained = {sequence: names[sequence] for sequence in of_trained}
        seen[side.kind] = KnownSequences.of(side, names_of_trained, identity)
    chains = seen["antibody"].chains
    assert chains is not None
    return Predictor(
        parts=parts,
        regimes=regimes,
        antibody=_vector_spec(inputs.vectors["antibody"], seen["antibody"]),
        antigen=_vector_spec(inputs.vectors["antigen"], seen["antigen"]),
        seen=seen,
        chains=TrainedChains.of(chains),
        label_sd=pairs.label_sd,
        noise=noise,
        category_noise=weighed.category_noise,
        layout=inputs.layout,
        features=pairs.features,
    )


def save_predictor(
    folder: Path, predictor: Predictor, vectors: Mapping[Kind, StoredVectors]
) -> str:
    """Write a predictor folder; predictor.json comes last, with the digest that is returned.

    `vectors` are those that it was trained on, whose encoders may have adapters.
    """
    make_folder(folder)
    tensors = {**predictor.parts.arrays(), **_noise_arrays(predictor)}
    for known in predictor.seen.values():
        tensors |= known.arrays()
    _write_adapters(folder, vectors)
    record = PredictorRecord(
        parts=predictor.parts.settings(),
        regimes=tuple(predictor.regimes.values()),
        antibody=predictor.antibody,
        antigen=predictor.antigen,
        chains=predictor.chains,
        label_sd=predictor.label_sd,
        layout=predictor.layout,
        features=predictor.features,
    )
    content = asdict(record) | {"layout": predictor.layout.to_json()}
    if predictor.features is None:
        del content["features"]
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    with replacing(folder / WEIGHTS) as partial:
        try:
            save_file(arrays, partial)  # no copies: they take as much memory as the training
        except SafetensorError as error:
            msg = (
                f"{folder / WEIGHTS}: cannot be written ({error}). Free disk space and run the "
                "same command again."
            )
            raise OutputError(msg) from error
        digest = record_digest(content, partial)
    write_json(folder / RECORD, {"schema": SCHEMA, "digest": digest, **content})
    return digest


def _noise_arrays(predictor: Predictor) -> dict[str, NDArray[Any]]:
    """Return the factors of the variance of errors that are not 1, and the keys they belong to."""
    arrays: dict[str, NDArray[Any]] = {}
    for kind, noise in predictor.noise.items():
        arrays[f"noise.{kind}.keys"] = noise.keys
        arrays[f"noise.{kind}.factor"] = noise.factor
    for number, factor_by_value in enumerate(predictor.category_noise.values()):
        factor = np.array(list(factor_by_value.values()), np.float64)
        if (factor != 1).any():
            arrays[f"noise.category.{number}"] = factor
    return arrays


def _vector_spec(vectors: StoredVectors, seen: KnownSequences) -> VectorSpec:
    views = []
    for view in vectors.views:
        info = view.folder.info
        spec = ViewSpec(
            name=view.folder.name,
            origin=str(info.get("origin", view.folder.name)),
            fingerprint=view.folder.fingerprint,
            long=str(info.get("long", "window")),
            random_weights=bool(info.get("random_weights", False)),
            pooling=view.pooling,
            width=view.width,
        )
        views.append(spec)
    return VectorSpec(views=tuple(views), training_sequences=len(seen.keys))


def _write_adapters(folder: Path, vectors: Mapping[Kind, StoredVectors]) -> None:
    """Copy the encoders' adapters, so that users of the predictor can encode with them."""
    for kind, stored in vectors.items():
        adapter = stored.folder.adapter_files() if stored.views else {}
        for name, content in adapter.items():
            path = folder.joinpath(f"{kind}-adapter", *Path(name).parts[1:])
            make_folder(path.parent)
            write_bytes(path, content)


def load_predictor(path: Path | str, *, embed: Callable[..., object] | None = None) -> Predictor:
    """Read the predictor of a run.

    Parameters
    ----------
    path : path
        The run folder or the predictor folder.
    embed : callable, optional
        Encodes sequences that a store lacks; without it they are refused.

    Raises
    ------
    DamagedFile
        If a file is missing, altered, truncated or of another version, or the predictor in the
        folder of a run is that of another run.
    """
    path = Path(path)
    folder = path / PREDICTOR if (path / PREDICTOR).is_dir() else path
    record, tensors, digest = _read(folder)
    store, no_store = store_of_run(folder.parent)
    if store is not None and not _is_near(store, folder.parent):
        # a run may be somebody else's: it does not choose where vectors are written
        where = "which is neither near the run nor in the current folder"
        no_store = f"the run was trained from {quoted(str(store))}, {where}"
        store = None
    pairs = folder.parent / "pairs.parquet"
    places = {kind: folder / f"{kind}-adapter" for kind in KINDS}
    with _refusing(folder / WEIGHTS, f"does not match {RECORD}", *_MISMATCHES):
        _check_values(record, tensors)
        predictor = Predictor(
            Parts.load(record.parts, tensors, _trial(record)),
            {regime.name: regime for regime in record.regimes},
            record.antibody,
            record.antigen,
            {kind: KnownSequences.load(kind, tensors) for kind in KINDS},
            record.chains,
            record.label_sd,
            noise=_load_noise(tensors),
            category_noise=_load_category_noise(tensors, record.features),
            layout=record.layout,
            store=store,
            no_store=no_store,
            embed=embed,
            adapters={kind: place for kind, place in places.items() if place.is_dir()},
            # beside a copy of the folder, the file may be of another run
            pairs=pairs if folder.name == PREDICTOR and pairs.is_file() else None,
            features=record.features,
        )
    is_shared = folder == path and (folder / MANIFEST).exists()  # which stands alone
    if folder.absolute().name == PREDICTOR and not is_shared:
        refuse_of_another_run(folder.absolute().parent, digest)
    return predictor


def refuse_of_another_run(run: Path, digest: object = None) -> None:
    """Raise `DamagedFile` if the predictor in the folder of a finished run is that of another run.

    `digest` is that of the predictor, by default as its record states it.
    """
    config = run / "config.json"
    summary = run / "summary.json"
    record = run / PREDICTOR / "predictor.json"
    if not (config.is_file() and summary.is_file() and record.is_file()):
        return
    recorded = read_json(summary).get("predictor_digest")
    if digest is None:
        digest = read_json(record).get("digest")
    if recorded not in (None, digest):  # None: the run is of an earlier version
        msg = (
            f"{record.parent}: its digest is {digest}, and that of the predictor of this run is "
            f"{recorded}; expected the predictor that the run has fitted. Copy the whole run "
            "folder again; a predictor of another run needs no run folder around it."
        )
        raise DamagedFile(msg)


@contextmanager
def _refusing(
    path: Path, problem: str, *errors: type[Exception], advice: str = _HOW_TO_FIX
) -> Iterator[None]:
    """Turn errors into `DamagedFile`, with the problem that they show in a file."""
    try:
        yield
    except errors as error:
        msg = f"{path}: {problem} ({' '.join(str(error).split())}). {advice}"
        raise DamagedFile(msg) from error


def _read(folder: Path) -> tuple[PredictorRecord, dict[str, NDArray[Any]], str]:
    """Read the record, the arrays and the digest of a predictor."""
    try:
        written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    # RecursionError: lists a thousand deep
    except (OSError, ValueError, RecursionError) as error:
        places = (folder, folder.parent)
        is_run = any((place / "config.json").is_file() for place in places)
        unfinished = isinstance(error, FileNotFoundError) and is_run
        msg = (
            f"{folder}: cannot read a predictor ({why_unreadable(folder, error)}); expected a run "
            "folder or its predictor folder."
        )
        if runs := sorted(folder.glob(f"*/{PREDICTOR}/{RECORD}")):
            msg += f" Give a run in it, such as {runs[0].parent.parent}."
        if unfinished:
            msg = (
                f"{folder}: a run that has not finished; expected a predictor. Run abag fit on it "
                "until it ends."
            )
        raise DamagedFile(msg) from error
    schema: Any = written.get("schema") if isinstance(written, dict) else None
    if schema != SCHEMA:
        msg = (
            f"{folder / RECORD}: schema {schema!r} is not supported; this abag reads schema "
            f"{SCHEMA}. Fit again into another folder, or use the version of abag that wrote it."
        )
        raise DamagedFile(msg)
    values = {n: value for n, value in written.items() if n not in ("schema", "digest")}
    errors = (TypeError, ValueError, LookupError, ArithmeticError)
    with _refusing(folder / RECORD, "invalid predictor", *errors):
        record = parse(PredictorRecord, values, "the record", most=MOST)
    with _refusing(folder / WEIGHTS, "cannot be read", OSError):
        # read once: what is parsed is what the digest was computed of
        weights = (folder / WEIGHTS).read_bytes()
    digest = record_digest(values, weights)
    if digest != written.get("digest"):
        msg = (
            f"{folder}: {WEIGHTS} or {RECORD} was altered or truncated (the digest differs). "
            f"{_HOW_TO_FIX}"
        )
        raise DamagedFile(msg)
    with _refusing(folder / WEIGHTS, "not a valid safetensors file", SafetensorError):
        return record, load(weights), digest


def _check_values(record: PredictorRecord, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError for what would fail, or give NaN, in the middle of a table."""
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            msg = f"{name} contains infinity or NaN"
            raise ValueError(msg)
    if not (record.parts and record.regimes and record.antibody.views):
        msg = "it has no parts, no regimes or no vectors"
        raise ValueError(msg)
    in_store = () if record.features is None else record.features.in_store
    if "antigen_loglik" in in_store and not record.antigen.views:
        msg = "it reads likelihoods of antigens, and has no antigens"
        raise ValueError(msg)
    record.layout.check()
    record.chains.check()
    for regime in record.regimes:
        regime.check(record.parts, len(record.layout.label.quantity.classes))
        check_weights(regime.name, regime.mixture.weights, record.parts)


def _load_noise(tensors: Mapping[str, NDArray[Any]]) -> dict[Kind, KnownNoise]:
    """Restore the factors of sequences; ValueError if they are no such."""
    noise: dict[Kind, KnownNoise] = {}
    for kind in KINDS:
        if f"noise.{kind}.keys" not in tensors or f"noise.{kind}.factor" not in tensors:
            continue
        keys = checked_array(tensors, f"noise.{kind}.keys", (None, 16), np.uint8)
        noise[kind] = KnownNoise(keys, _factors(tensors, f"noise.{kind}.factor", len(keys)))
    return noise


def _factors(tensors: Mapping[str, NDArray[Any]], name: str, number: int) -> Floats:
    """Restore factors of a variance, (N,); ValueError if they are no such."""
    factor = checked_array(tensors, name, (number,), np.float64)
    if not (factor > 0).all():
        msg = f"{name} has factors that are not above 0"
        raise ValueError(msg)
    return factor


def _load_category_noise(
    tensors: Mapping[str, NDArray[Any]], features: FeatureColumns | None
) -> dict[str, dict[str, float]]:
    """Restore the factors of values of categories; ValueError if they are no such."""
    factors: dict[str, dict[str, float]] = {}
    for number, column in enumerate(features.categories if features is not None else ()):
        if f"noise.category.{number}" in tensors:
            factor = _factors(tensors, f"noise.category.{number}", len(column.values))
            factors[column.name] = dict(zip(column.values, factor.tolist(), strict=True))
    return factors


def _trial(record: PredictorRecord) -> PairVectors:
    """Return vectors of a pair of the widths that a predictor reads."""
    first = np.zeros(1, np.int64)
    sides: dict[Kind, SideVectors] = {}
    specs = (record.antibody, record.antigen)
    for kind, spec, chains in zip(KINDS, specs, (("A", "A"), ("A",)), strict=True):
        sides[kind] = SideVectors(np.zeros((1, spec.width), np.float32), first, [chains])
    columns = record.features
    features = None if columns is None else columns.encode(columns.with_stored(None, 1))
    return PairVectors(sides, features)


# ---- what was saved predicts what was measured ---------------------------------------------------


def check_saved(
    folder: Path,
    predictor: Predictor,
    inputs: SplitInputs,
    regimes: Sequence[WeighedRegime],
) -> None:
    """Load a predictor that was saved, and compare it with the one that was fitted.

    It scores pairs of the table as `predict` does: vectors from the store, recognition of the
    regime, weights and sigma from the file. In every regime of `LEAST_ROWS` such pairs, the errors
    of the labels that it has learned from may not be larger than the out-of-fold errors of the same
    pairs by more than chance. One that differs is made unusable.

    Parameters
    ----------
    folder : path
        Where it was saved.
    predictor : Predictor
        As it was fitted.
    inputs : SplitInputs
        The pairs of the table, which of them the parts were fitted to, and the store with their
        vectors.
    regimes : sequence of WeighedRegime
        With their out-of-fold predictions.

    Raises
    ------
    PredictorDiffers
        If anything differs by more than rounding, or errors on learned labels are larger than on
        held-out ones.
    """
    store = open_store(inputs.store.path)
    trained = inputs.trained
    rng = np.random.default_rng([inputs.options.seed, len(trained)])
    saved = load_predictor(folder)
    try:
        rows = _sampled(rng, trained, SCORED)
        scores = []
        for scoring in (predictor, saved):
            scorer, index, features = _scorer(scoring, store, inputs, rows)
            scores.append(scorer.score(*index, features=features).scores)
        _compare(folder, inputs.pairs, rows, *scores)
        for regime in regimes:
            exact = regime.tested.rows[regime.tested.is_exact]
            learned = distinct(exact[np.isin(exact, trained)])
            rows = _sampled(rng, learned, COMPARED)
            if len(rows) >= LEAST_ROWS:  # else chance is not known
                scorer, index, features = _scorer(saved, store, inputs, rows)
                vectors, _ = scorer.read(*index, features=features)
                parts = saved.parts.predict(vectors, regime.mixture.weights)
                _compare_errors(folder, inputs.pairs, rows, regime, parts)
    except PredictorDiffers:
        (folder / RECORD).unlink()
        raise


def _sampled(rng: np.random.Generator, rows: Ints, most: int) -> Ints:
    return np.sort(rng.permutation(rows)[:most])


def _scorer(
    predictor: Predictor, store: Store, inputs: RunInputs, rows: Ints
) -> tuple[Scorer, list[NDArray[np.integer[Any]]], ReadFeatures | None]:
    """Return what scores some pairs of a table, (R,), as `predict` does, and these for it."""
    pairs = inputs.pairs
    sides = []
    for kind in KINDS:
        chains = pairs.table.sequences[kind].chains
        index = pairs.index(kind)[rows]
        sides.append(Sequences.of(kind, [chains[i] for i in index.tolist()]))
    features = None
    if pairs.features is not None and pairs.cells is not None:
        features = ReadFeatures(pairs.features, pairs.cells.take(rows))
    return Scorer(predictor, store, *sides), [side.of_row for side in sides], features


def _compare(
    folder: Path,
    pairs: LabelledPairs,
    rows: Ints,
    expected: pd.DataFrame,
    scores: pd.DataFrame,
) -> None:
    """Compare the scores of some pairs, (R,), before and after saving."""
    tolerance = SAME_SHARE * float(pairs.pkd.std())
    for column in expected:
        before = expected[column]
        after = scores[column]
        differs = (before != after).fillna(value=False).to_numpy(np.bool_)
        if before.dtype == np.float64:
            differs = (before - after).abs().to_numpy() > tolerance
        if differs.any():
            worst = int(differs.argmax())
            row = pairs.table.row_numbers[pairs.row[rows[worst]]]
            msg = (
                f"{folder}: {column} of row {row} is {after.iloc[worst]}, and "
                f"{before.iloc[worst]} with the parts that were fitted. {HOW_TO_GO_ON}"
            )
            raise PredictorDiffers(msg)


def _compare_errors(
    folder: Path,
    pairs: LabelledPairs,
    rows: Ints,
    regime: WeighedRegime,
    parts: Mapping[str, Floats],
) -> None:
    """Compare errors on learned labels with out-of-fold errors of the same pairs, (R,).

    `parts` are predictions of the saved parts, (R,) each.
    """
    predicted = regime.mixture.pkd(parts)
    # of labels that count for little, the fit may have learned nothing
    weight_R = np.ones(len(rows)) if pairs.share is None else label_weights(pairs.share[rows])
    learned = weight_R * np.square(pairs.pkd[rows] - predicted)
    tested = regime.tested.rows
    total = np.bincount(tested, np.square(pairs.pkd[tested] - regime.predicted), len(pairs))
    with np.errstate(invalid="ignore"):  # NaN for pairs that no fold held out
        held_out = total / np.bincount(tested, minlength=len(pairs))
    excess = learned - weight_R * held_out[rows]
    # pairs of one group alone, too: they would have no error by chance
    groups = [np.arange(len(pairs)), *regime.measured.groups]
    chance = CHANCE * max(standard_error(excess, group[rows]) for group in groups)
    if excess.mean() > chance + EXCESS_SHARE * float(pairs.pkd.var()):
        quantity = pairs.quantity
        rms_learned = quantity.show(float(np.sqrt(learned.mean())))
        rms_held_out = quantity.show(float(np.sqrt((learned - excess).mean())))
        msg = (
            f"{folder}: the errors of the saved predictor on {len(rows)} pairs of the regime "
            f"{regime.measured.regime.name} that it was trained on have a root mean square of "
            f"{rms_learned} {quantity}, more than the {rms_held_out} of the same pairs held out. "
            f"{HOW_TO_GO_ON}"
        )
        raise PredictorDiffers(msg)


def store_of_run(run: Path) -> tuple[Path | None, str]:
    """Return the store that a run was trained from, or None and why there is none.

    Of two, it is the one in the same place relative to the run: both may have been copied.
    """
    try:
        record = read_json(run / "config.json")
        recorded = Path(record["store"])
        beside = run / record["store_from_run"]
        if recorded.exists() and beside.exists() and recorded.samefile(beside):
            return recorded, ""  # without the way up from the run
        store = next((place for place in (beside, recorded) if place.exists()), None)
    # the run may be anybody's, and its config.json may have anything in these fields
    except (OSError, DamagedFile, ValueError, KeyError, TypeError):
        return None, "the store that the run was trained from is not known"
    if store is not None:
        return store, ""
    shown = quoted(str(recorded))
    return None, f"the run was trained from {shown}, which does not exist (moved or renamed?)"


def _is_near(store: Path, run: Path) -> bool:
    """Whether a store is below the current folder or that of the runs, or beside the latter."""
    # not all of what is below the next folder: it may be that of everybody's homes
    store = store.resolve()
    runs = run.resolve().parent
    is_below = store.is_relative_to(runs) or store.is_relative_to(Path.cwd())
    return is_below or store.parent == runs.parent


@dataclass(frozen=True, slots=True)
class FileContents:
    """What a file of a predictor holds of the data that it was trained on."""

    name: str
    sequences: tuple[str, ...]
    """Which sequences can be read in it."""
    other: tuple[str, ...]

    @property
    def words(self) -> str:
        """All of it in one line."""
        return "; ".join((*self.sequences, *self.other))


def contents_of(record: bytes, weights: BinaryIO, others: Iterable[str]) -> list[FileContents]:
    """Tell what the files of a predictor hold, from what is in them.

    Parameters
    ----------
    record : bytes
        Content of predictor.json.
    weights : file
        The weights, of which the shapes of the arrays are read.
    others : iterable of str
        Names of the other files in the folder.
    """
    fields = json.loads(record)
    # a safetensors file begins with the length of its head
    head = json.loads(weights.read(int.from_bytes(weights.read(8), "little")))
    shapes = {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}
    sides: dict[str, set[Kind]] = {}
    for name, of_part in fields["parts"].items():
        for i, settings in enumerate(of_part):
            sides[f"{name}.{i}."] = {side["kind"] for side in settings.get("sides", ())}
    files = [
        FileContents(RECORD, *_held_by_record(fields, sides)),
        FileContents(WEIGHTS, *_held_by_weights(fields, shapes, sides)),
    ]
    for name in others:
        held = "nothing of the training data"
        if name == CARD:
            held = "names of the table and of columns, counts and scores"
        elif name.endswith(ROWS_FILE):
            held = "the keys of the pairs that its adapters were trained on"
        elif name in ADAPTER_FILES:
            held = "an adapter, whose numbers were fitted to labels"
        files.append(FileContents(name, (), (held,)))
    return files


def _held_by_record(
    fields: Mapping[str, Any], sides: Mapping[str, set[Kind]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sequences = []
    for kind in KINDS:
        if any(kind in kinds for kinds in sides.values()):
            sequences.append(
                f"the consensus of the training {PLURAL[kind]}, of a library usually their parent, "
                "with the residues that they have at each position"
            )
    if fields["layout"]["parent"]:
        sequences.append("the parent that mutations are of")
    if fields["layout"]["antigen"]:
        sequences.append("the antigen of all rows")
    other = ["scores by regime", "names of encoders and columns"]
    if "features" in fields:
        columns = [*fields["features"]["numbers"], *fields["features"]["categories"]]
        names = quote_some([column["name"] for column in columns])
        other.append(f"ranges and values of categories of the columns {names}")
    return tuple(sequences), tuple(other)


def _held_by_weights(
    fields: Mapping[str, Any], shapes: Mapping[str, list[int]], sides: Mapping[str, set[Kind]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sequences = []
    other = ["numbers that were fitted to the labels"]
    stored: dict[Kind, int] = {}
    by_residues: dict[Kind, int] = {}
    by_vectors: dict[Kind, int] = {}
    for kind in KINDS:
        if not fields[kind]["views"]:
            continue  # the one antigen of antibodies alone, which is empty
        if f"seen.{kind}.sequences" in shapes:
            stored[kind] = shapes[f"seen.{kind}.keys"][0]
        for prefix, kinds in sides.items():
            rows = shapes.get(f"{prefix}{kind}.train", [0])[0]
            found = by_residues if kind in kinds else by_vectors
            found[kind] = max(rows, found.get(kind, 0))
    sequences += _of_training("the sequences of {}", stored)
    sequences += _of_training(
        "the sequences of {}, as residues that differ from the consensus", by_residues
    )
    other.append("keys of the training sequences, with which guesses can be tested")
    other += _of_training("vectors of {}", by_vectors)
    if any(name.endswith(".of_pair") for name in shapes):
        other.append("which of them are training pairs, with weights that follow from their labels")
    if any(name.endswith(".root") for name in shapes):  # of trees
        other.append("mean labels of two or more training pairs, by residues and lengths")
    if any(name.endswith("features.train") for name in shapes):
        other.append("features of the training pairs")
    if any(f"noise.{kind}.keys" in shapes for kind in KINDS):
        other.append("which training sequences have smaller or larger errors than others")
    columns = [column["name"] for column in fields.get("features", {}).get("categories", ())]
    noisy = [name for n, name in enumerate(columns) if f"noise.category.{n}" in shapes]
    if noisy:
        other.append(f"how large errors are by {', '.join(noisy)}")
    return tuple(sequences), tuple(other)


def _of_training(words: str, numbers: Mapping[Kind, int]) -> list[str]:
    """Put numbers of training sequences into words; nothing if there are none."""
    both = [counted(number, kind) for kind, number in numbers.items() if number]
    return [words.format(f"{' and '.join(both)} of the training data")] if both else []


def make_manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the content of manifest.json for files by name; the card may change later."""
    records = {name: _record(files[name]) for name in sorted(files) if name in READ}
    return json_bytes({**FORMAT, "files": records})


def _record(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def check_manifest(folder: Path) -> None:
    """Check the names of the files of a shared predictor, and each against its digest."""
    path = folder / MANIFEST
    errors = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
    with _refusing(path, "is not the manifest of a predictor", *errors, advice=_GET_AGAIN):
        written = json.loads(read_inside(folder, MANIFEST))
        files = dict(written["files"])
        format_fields = {name: written[name] for name in FORMAT}
    check_names(path, files, READ)
    if format_fields != FORMAT:
        msg = (
            f"{path}: {format_fields} is not supported; this abag reads {FORMAT}. Have the "
            "predictor shared again, or use the version of abag that wrote it."
        )
        raise DamagedFile(msg)
    unlisted = {name for name in READ if name in (RECORD, WEIGHTS) or (folder / name).exists()}
    for name in sorted(unlisted - files.keys()):
        msg = f"{folder / name}: is not listed in {MANIFEST}. {_GET_AGAIN}"
        raise DamagedFile(msg)
    for name, expected in files.items():
        with _refusing(folder / name, "cannot be read", OSError, advice=_GET_AGAIN):
            is_same = _record(read_inside(folder, name)) == expected
        if not is_same:
            msg = (
                f"{folder / name}: differs from its digest in {MANIFEST}; expected the file that "
                "was shared. Remove the folder and get it again."
            )
            raise DamagedFile(msg)


def predictor_folder(path: Path | str) -> Path:
    """Return the folder of a predictor, or of a run; download it if `path` is an address."""
    if not is_hub_address(path):
        folder = user_path(path, "run")
        if (folder / MANIFEST).exists():
            check_manifest(folder)
        return folder
    address = parse_address(path, "model")
    place = cache_dir() / "hub" / address.name
    commit = address.commit
    if commit is None or not (place / commit / MANIFEST).exists():
        hub = Repository(address)
        commit = hub.head()
        if address.commit is None:
            say(f"{address}: commit {commit}; for exactly this predictor, add @{commit}.")
        if not (place / commit / MANIFEST).exists():
            _save(hub, commit, place / commit)
    check_manifest(place / commit)
    return place / commit


def _save(hub: Repository, commit: str, folder: Path) -> None:
    listed = hub.files(commit)
    if MANIFEST not in listed or RECORD not in listed:
        where = hub.address.at(commit)
        msg = f"{where}: holds no predictor; expected a repository written by abag share."
        raise DamagedFile(msg)
    with TemporaryDirectory() as scratch:
        arrived = Path(scratch) / "arrived"
        names = [name for name in (*READ, MANIFEST) if name in listed]
        hub.download({name: listed[name] for name in names}, commit, arrived)
        # before any of it is in the cache
        check_manifest(arrived)
        # the manifest comes last: without it, the folder is downloaded again
        for name in names:
            make_folder((folder / name).parent)
            write_bytes(folder / name, read_inside(arrived, name))
