"""A predictor as a folder that can be shared: ``predictor/`` in a run.

``weights.safetensors`` holds the arrays of the members, input statistics included, and the
representatives of the training sequences. ``predictor.json`` describes them, and has the residues
of the training antibodies by position, the combinations of their changes and a digest of both
files. ``antigens.json`` is optional: the training antigens, to count the changes of others
(`abag.head.prediction.antigen_changes`). ``README.md`` is the model card
(`abag.head.report.report.model_card`). Nothing is dated and nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from abag.core.arrays import distinct
from abag.core.files import (
    DiskFull,
    FileDamaged,
    make_folder,
    read_json,
    replacing,
    why_unreadable,
    write_bytes,
    write_json,
)
from abag.core.options import BadOption
from abag.embed.sequences.options import AntibodyRegion  # read by get_type_hints
from abag.head.closed_form.gaussian_process import GaussianProcess, ProcessSettings
from abag.head.closed_form.pair_model import (
    ConstantModel,
    ConstantSettings,
    LinearModel,
    LinearSettings,
    PairVectors,
)
from abag.head.closed_form.residue_model import (
    OneHotKernel,
    OneHotRidge,
    OneHotRidgeSettings,
    OneHotSettings,
)
from abag.head.prediction.antigen_changes import FILE as ANTIGENS
from abag.head.prediction.antigen_changes import load_antigens, measure_antigens, save_antigens
from abag.head.prediction.applicability import Applicability, measure_applicability
from abag.head.prediction.network import NetworkModel, NetworkSettings
from abag.head.prediction.novelty import Novelty
from abag.head.prediction.predictor import (
    EmbedFunction,
    Member,
    Predictor,
    PredictorDamaged,
    VectorSpec,
)
from abag.head.splits.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.head.closed_form.pair_model import PairModel
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.vectors import StoredVectors
    from abag.head.splits.splits import Split
    from abag.head.training.uncertainty import Sigma

SCHEMA = 7
MOST = 1e15
"""Of a number in predictor.json; the square of a larger one could overflow."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member of the predictor without its arrays."""

    model: str
    """Key of `abag.head.prediction.bundle.MODELS`."""
    weight: float
    settings: dict[str, Any]
    """Fields of the model's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRecord:
    """Content of predictor.json, apart from ``schema`` and ``digest``."""

    members: tuple[MemberRecord, ...]
    spread: float
    noise: float
    calibrated: bool
    antibody: VectorSpec
    antigen: VectorSpec
    antibody_region: AntibodyRegion
    novelty: dict[str, Any]
    """See `Novelty.to_json`."""


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


def parse_record(kind: Any, value: Any, where: str = "the record") -> Any:  # noqa: ANN401
    """Convert a JSON value to a dataclass, tuple or plain type.

    Raises
    ------
    TypeError
        If it is of another type, or lacks or adds a field.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            found = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
            msg = f"{where} has {found}; expected {', '.join(hints)}"
            raise TypeError(msg)
        inner = {f.name: parse_record(hints[f.name], value[f.name], f.name) for f in fields(kind)}
        return kind(**inner)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(parse_record(get_args(kind)[0], one, where) for one in value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind is float and type(value) is int:
        value = float(value)
    kind = get_origin(kind) or kind
    if type(value) is not kind or (kind is float and not abs(value) <= MOST):
        expected = "a list" if kind is tuple else getattr(kind, "__name__", str(kind))
        msg = f"{where} is {value!r}; expected {expected}"
        raise TypeError(msg)
    return value


MODELS: Mapping[str, tuple[Any, Any]] = {
    "network": (NetworkModel, NetworkSettings),
    "ridge": (LinearModel, LinearSettings),
    "process": (GaussianProcess, ProcessSettings),
    "one_hot_kernel": (OneHotKernel, OneHotSettings),
    "one_hot_ridge": (OneHotRidge, OneHotRidgeSettings),
    "mean": (ConstantModel, ConstantSettings),
}
"""Classes of models and of their settings, by the name in predictor.json."""
WEIGHTS, RECORD = "weights.safetensors", "predictor.json"
_MISMATCHES = (TypeError, LookupError, ValueError, RuntimeError, ArithmeticError, BadOption)
_HOW_TO_FIX = "Copy the whole predictor folder again, or train the run again."


def save_predictor(
    folder: Path,
    pairs: LabelledPairs,
    splits: Sequence[Split],
    members: Sequence[Member],
    vectors: Mapping[Kind, StoredVectors],
    sigma: Sigma,
    antibody_region: AntibodyRegion,
    novelty: Novelty,
) -> None:
    """Write a predictor folder; predictor.json comes last, with the digest of the weights.

    `members` are those of all folds, and their weights add up to 1. `novelty` is that of the
    training antibodies of all folds.
    """
    make_folder(folder)
    tensors: dict[str, NDArray[Any]] = {}
    for k, member in enumerate(members):
        tensors |= {f"{k}.{name}": array for name, array in member.model.arrays().items()}
    in_training = np.any([split.part == TRAIN for split in splits], axis=0)
    seen = {kind: distinct(pairs.index(kind)[in_training]) for kind in vectors}
    specs, chains = {}, {kind: unique.chains for kind, unique in pairs.table.sequences.items()}
    for kind, stored in vectors.items():
        applicability = measure_applicability(stored.x_ND, seen[kind])
        tensors[f"{kind}.representatives"] = applicability.vectors_RD
        specs[kind] = _vector_spec(stored, len(seen[kind]), applicability)
        _keep_adapter(folder / f"{kind}-adapter", stored.folder.adapter_files())
    record = PredictorRecord(
        members=tuple(
            MemberRecord(_model_name(one.model), one.weight, asdict(one.model.settings))
            for one in members
        ),
        spread=sigma.spread,
        noise=sigma.noise,
        calibrated=sigma.calibrated,
        antibody_region=antibody_region,
        antibody=specs["antibody"],
        antigen=specs["antigen"],
        novelty=novelty.to_json(),
    )
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    fields = asdict(record)
    with replacing(folder / WEIGHTS) as partial:
        try:
            save_file(arrays, partial)  # no copies: they take as much memory as the training
        except SafetensorError as error:
            msg = (
                f"{folder / WEIGHTS}: cannot be written ({error}). Free disk space and run the "
                "same command again."
            )
            raise DiskFull(msg) from error
        digest = record_digest(fields, partial)
    antigens = measure_antigens([chains["antigen"][n] for n in seen["antigen"].tolist()])
    save_antigens(folder, antigens, digest)
    write_json(folder / RECORD, {"schema": SCHEMA, "digest": digest, **fields})


def _model_name(model: PairModel) -> str:
    return next(name for name, (cls, _) in MODELS.items() if isinstance(model, cls))


def _keep_adapter(folder: Path, files: Mapping[str, bytes]) -> None:
    """Copy the adapter of an encoder, so that users of the folder can encode with it."""
    for name, content in files.items():
        path = folder.joinpath(*Path(name).parts[1:])  # without the adapter folder of the store
        make_folder(path.parent)
        write_bytes(path, content)


def _vector_spec(
    vectors: StoredVectors, training_sequences: int, applicability: Applicability
) -> VectorSpec:
    info: Mapping[str, Any] = vectors.folder.info
    return VectorSpec(
        name=vectors.folder.name,
        origin=str(info.get("origin", vectors.folder.name)),
        fingerprint=vectors.folder.fingerprint,
        long=str(info.get("long", "window")),
        random_weights=bool(info.get("random_weights", False)),
        pooling=vectors.pooling,
        width=vectors.x_ND.shape[1],
        training_sequences=training_sequences,
        far_distance=applicability.far_distance,
    )


def load_predictor(path: Path | str, *, embed: EmbedFunction | None = None) -> Predictor:
    """Read the predictor of a run.

    Parameters
    ----------
    path : path
        The run folder or the predictor folder.
    embed : callable, optional
        Encodes sequences that a store lacks; without it they are refused.

    Raises
    ------
    PredictorDamaged
        If a file is missing, altered, truncated or of another version.
    """
    path = Path(path)
    folder = path / "predictor" if (path / "predictor").is_dir() else path
    record, tensors, digest = _read(folder)
    store = store_of_run(folder.parent)
    kinds: dict[Kind, VectorSpec] = {"antibody": record.antibody, "antigen": record.antigen}
    with _refusing(folder / WEIGHTS, f"does not match {RECORD}", *_MISMATCHES):
        _check_values(record, tensors)
        predictor = Predictor(
            tuple(_member(k, record, tensors) for k in range(len(record.members))),
            record.spread,
            record.noise,
            record.calibrated,
            record.antibody,
            record.antigen,
            {
                kind: Applicability(tensors[f"{kind}.representatives"], spec.far_distance)
                for kind, spec in kinds.items()
            },
            novelty=Novelty.from_json(record.novelty),
            antibody_region=record.antibody_region,
            store=store,
            store_is_far=store is not None and not _is_near(store, folder.parent),
            embed=embed,
            adapters={k: path for k in kinds if (path := folder / f"{k}-adapter").is_dir()},
        )
    errors = (OSError, ValueError, FileDamaged)
    with _refusing(folder / ANTIGENS, "is damaged or of another predictor", *errors):
        return replace(predictor, antigens=load_antigens(folder, digest))


@contextmanager
def _refusing(path: Path, problem: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors into `PredictorDamaged`, with the problem that they show in a file."""
    try:
        yield
    except errors as error:
        msg = f"{path}: {problem} ({' '.join(str(error).split())}). {_HOW_TO_FIX}"
        raise PredictorDamaged(msg) from error


def _read(folder: Path) -> tuple[PredictorRecord, dict[str, NDArray[Any]], str]:
    """Read record and weights, check that they belong together, and return their digest, too."""
    try:
        written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        unfinished = isinstance(error, FileNotFoundError) and (folder / "config.json").is_file()
        msg = (
            f"{folder}: a run that has not finished; expected a predictor. Run abag fit on it "
            "until it ends."
            if unfinished
            else f"{folder}: cannot read a predictor ({why_unreadable(folder, error)}); expected a "
            "run folder or its predictor folder."
        )
        raise PredictorDamaged(msg) from error
    schema: Any = written.get("schema") if isinstance(written, dict) else None
    if schema != SCHEMA:
        msg = (
            f"{folder / RECORD}: schema {schema!r} is not supported; this abag reads schema "
            f"{SCHEMA}. Fit the run again, or use the version of abag that wrote it."
        )
        raise PredictorDamaged(msg)
    values = {n: value for n, value in written.items() if n not in ("schema", "digest")}
    errors = (TypeError, LookupError, ArithmeticError)
    with _refusing(folder / RECORD, "invalid predictor", *errors):
        record = parse_record(PredictorRecord, values)
    with _refusing(folder / WEIGHTS, "cannot be read", OSError):
        weights = (folder / WEIGHTS).read_bytes()
    digest = record_digest(values, weights)
    if digest != written.get("digest"):
        msg = (
            f"{folder}: {WEIGHTS} or {RECORD} was altered or truncated (the digest differs). "
            f"{_HOW_TO_FIX}"
        )
        raise PredictorDamaged(msg)
    with _refusing(folder / WEIGHTS, "not a valid safetensors file", SafetensorError):
        return record, load(weights), digest


def _check_values(record: PredictorRecord, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError for what would fail, or give NaN, in the middle of a table."""
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            msg = f"{name} contains infinity or NaN"
            raise ValueError(msg)
    for kind, spec in (("antibody", record.antibody), ("antigen", record.antigen)):
        shape, width = tensors[f"{kind}.representatives"].shape, spec.width
        if len(shape) != 2 or not shape[0] or shape[1] != width:
            msg = f"the representatives are of shape {shape}; expected vectors of {width} values"
            raise ValueError(msg)
    if not record.members:
        msg = "it has no members"
        raise ValueError(msg)


def _member(k: int, record: PredictorRecord, tensors: Mapping[str, NDArray[Any]]) -> Member:
    member, prefix = record.members[k], f"{k}."
    model_class, settings_class = MODELS[member.model]
    own = {n.removeprefix(prefix): array for n, array in tensors.items() if n.startswith(prefix)}
    settings = parse_record(settings_class, member.settings, "settings")
    model: PairModel = model_class.load(own, settings)
    # Arrays of other shapes would fail in the middle of a table.
    first = np.zeros(1, np.int64)
    antibody_ND, antigen_ME = (
        np.zeros((1, spec.width), np.float32) for spec in (record.antibody, record.antigen)
    )
    vectors = PairVectors(antibody_ND, antigen_ME, first, first, [("A", "A")])
    with np.errstate(all="ignore"):  # `Predictor.score` checks what it returns
        model.predict(vectors)
        model.variance(vectors)
    return Member(model, member.weight)


def store_of_run(run: Path) -> Path | None:
    """Return the store that a run was trained from; None if it is unknown or does not exist."""
    try:
        record = read_json(run / "config.json")
        places = Path(record["store"]), run / record["store_from_run"]
        return next((place for place in places if place.exists()), None)
    except (OSError, FileDamaged, ValueError, KeyError, TypeError):
        return None


def _is_near(store: Path, run: Path) -> bool:
    """Whether a store is below the current folder or the folder of the runs, or beside the latter.

    All of what is below the next folder would be too much: it may be that of everybody's homes.
    """
    store, runs = store.resolve(), run.resolve().parent
    is_below = store.is_relative_to(runs) or store.is_relative_to(Path.cwd())
    return is_below or store.parent == runs.parent
