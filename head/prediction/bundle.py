"""A predictor as a folder that can be shared: ``predictor/`` in a run.

``weights.safetensors`` holds the heads, the input statistics and the representatives of the
training sequences. ``predictor.json`` describes them and has a digest of both files. ``README.md``
is the model card (`abag.head.report.report.model_card`). Nothing is dated and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from abag import AbagError
from abag.core.files import write_bytes, write_json
from abag.core.options import BadOption
from abag.embed.sequences.chains import KINDS
from abag.embed.sequences.options import AntibodyRegion  # read by get_type_hints
from abag.head.data.scaling import Standardizer
from abag.head.model.config import FitConfig
from abag.head.model.heads import build_head
from abag.head.prediction.applicability import Applicability, measure_applicability
from abag.head.prediction.predictor import EmbedFunction, EnsembleMember, Predictor, VectorSpec
from abag.head.splits.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.vectors import StoredVectors
    from abag.head.splits.splits import Split
    from abag.head.training.train import TrainedHeads
    from abag.head.training.uncertainty import Sigma

SCHEMA = 2
WEIGHTS, RECORD = "weights.safetensors", "predictor.json"
_HOW_TO_FIX = "Copy the whole predictor folder again, or train the run again."


class PredictorDamaged(AbagError):
    """A predictor folder is incomplete, altered or of another version."""


@dataclass(frozen=True, slots=True)
class LabelScale:
    """Scaling of one member's output to pKd."""

    pkd_mean: float
    pkd_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRecord:
    """Content of predictor.json, apart from ``schema`` and ``digest``."""

    head: str
    widths: tuple[int, ...]
    rank: int
    members: tuple[LabelScale, ...]
    spread: float
    noise: float
    antibody: VectorSpec
    antigen: VectorSpec
    antibody_region: AntibodyRegion


def save_predictor(
    folder: Path,
    pairs: LabelledPairs,
    splits: Sequence[Split],
    trained: Sequence[TrainedHeads],
    config: FitConfig,
    antibody: StoredVectors,
    antigen: StoredVectors,
    sigma: Sigma,
) -> None:
    """Write a predictor folder; predictor.json comes last, with the digest of the weights.

    `splits` and `trained` have one entry per fold.
    """
    folder.mkdir(exist_ok=True)
    tensors: dict[str, Tensor] = {}
    heads = [(one.scaling, weights) for one in trained for weights in one.weights]
    for k, (scaling, weights) in enumerate(heads):
        tensors |= {f"{k}.model.{name}": t.contiguous() for name, t in weights.items()}
        for kind in KINDS:
            statistics: Standardizer = getattr(scaling, kind)
            # Copies, because safetensors refuses the shared tensors of heads of one split.
            tensors[f"{k}.{kind}.mean"] = torch.tensor(statistics.mean)
            tensors[f"{k}.{kind}.scale"] = torch.tensor(statistics.scale)
    specs = {}
    for kind, vectors in (("antibody", antibody), ("antigen", antigen)):
        seen = np.unique(np.concatenate([getattr(pairs, kind)[s.part == TRAIN] for s in splits]))
        applicability = measure_applicability(vectors.x_ND[seen])
        tensors[f"{kind}.representatives"] = torch.from_numpy(applicability.vectors_RD)
        specs[kind] = _vector_spec(vectors, len(seen), applicability)
        _keep_adapter(folder / f"{kind}-adapter", vectors.folder.adapter_files())
    filled = config.filled()
    record = PredictorRecord(
        head=str(filled.head),
        widths=filled.widths,
        rank=config.rank,
        members=tuple(LabelScale(one.pkd_mean, one.pkd_scale) for one, _ in heads),
        spread=sigma.spread,
        noise=sigma.noise,
        antibody_region=config.antibody_region,
        **specs,
    )
    content, fields = save(tensors), asdict(record)
    write_bytes(folder / WEIGHTS, content)
    write_json(folder / RECORD, {"schema": SCHEMA, "digest": _digest(fields, content), **fields})


def _keep_adapter(folder: Path, files: Mapping[str, bytes]) -> None:
    """Copy the adapter of an encoder, so that users of the folder can encode with it."""
    for name, content in files.items():
        path = folder.joinpath(*Path(name).parts[1:])  # without the adapter folder of the store
        path.parent.mkdir(parents=True, exist_ok=True)
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


def _digest(record: Mapping[str, Any], weights: bytes) -> str:
    """Hash the fields of predictor.json and the bytes of the weights: 32 hex digits."""
    hashed = {name: value for name, value in record.items() if name not in ("schema", "digest")}
    running = blake2b(json.dumps(hashed, sort_keys=True).encode(), digest_size=16)
    running.update(weights)
    return running.hexdigest()


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
    record, tensors = _read(folder)
    kinds: dict[Kind, VectorSpec] = {"antibody": record.antibody, "antigen": record.antigen}
    with _refusing(folder / WEIGHTS, f"does not match {RECORD}", KeyError, RuntimeError, BadOption):
        return Predictor(
            tuple(_member(k, record, tensors) for k in range(len(record.members))),
            record.antibody,
            record.antigen,
            {
                kind: Applicability(tensors[f"{kind}.representatives"].numpy(), spec.far_distance)
                for kind, spec in kinds.items()
            },
            spread=record.spread,
            noise=record.noise,
            antibody_region=record.antibody_region,
            store=_store_of(folder.parent),
            embed=embed,
            adapters={k: path for k in kinds if (path := folder / f"{k}-adapter").is_dir()},
        )


@contextmanager
def _refusing(path: Path, problem: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors into `PredictorDamaged`, with the problem that they show in a file."""
    try:
        yield
    except errors as error:
        msg = f"{path}: {problem} ({' '.join(str(error).split())}). {_HOW_TO_FIX}"
        raise PredictorDamaged(msg) from error


def _read(folder: Path) -> tuple[PredictorRecord, dict[str, Tensor]]:
    """Read both files and check that they belong together."""
    try:
        written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = (
            f"{folder}: cannot read a predictor ({error}); expected a run folder or its predictor "
            "folder."
        )
        raise PredictorDamaged(msg) from error
    if not isinstance(written, dict) or written.get("schema") != SCHEMA:
        found = written.get("schema") if isinstance(written, dict) else None
        msg = (
            f"{folder / RECORD}: schema {found!r} is not supported; expected schema {SCHEMA}. Use "
            "the version of abag that wrote it, or train the run again."
        )
        raise PredictorDamaged(msg)
    values = {n: value for n, value in written.items() if n not in ("schema", "digest")}
    with _refusing(folder / RECORD, f"invalid predictor of schema {SCHEMA}", TypeError):
        # absent before 2026-11-22
        record = _parse(PredictorRecord, {"antibody_region": "as-given", **values})
    with _refusing(folder / WEIGHTS, "cannot be read", OSError):
        weights = (folder / WEIGHTS).read_bytes()
    if _digest(values, weights) != written.get("digest"):
        msg = (
            f"{folder}: {WEIGHTS} or {RECORD} was altered or truncated (the digest differs). "
            f"{_HOW_TO_FIX}"
        )
        raise PredictorDamaged(msg)
    with _refusing(folder / WEIGHTS, "not a valid safetensors file", SafetensorError):
        return record, load(weights)


def _parse(kind: Any, value: Any, where: str = "the record") -> Any:  # noqa: ANN401
    """Convert a JSON value to a dataclass, tuple or plain type, or raise `TypeError`."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            found = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
            msg = f"{where} has {found}; expected {', '.join(hints)}"
            raise TypeError(msg)
        inner = {f.name: _parse(hints[f.name], value[f.name], f.name) for f in fields(kind)}
        return kind(**inner)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_parse(get_args(kind)[0], one, where) for one in value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        expected = "a list" if get_origin(kind) is tuple else getattr(kind, "__name__", str(kind))
        msg = f"{where} is {value!r}; expected {expected}"
        raise TypeError(msg)
    return value


def _member(k: int, record: PredictorRecord, tensors: Mapping[str, Tensor]) -> EnsembleMember:
    # Built without memory, because an altered record may have any width.
    with torch.device("meta"):
        config = FitConfig(head=record.head, widths=record.widths, rank=record.rank, dropout=0.0)  # type: ignore[arg-type]  # checked by FitConfig
        model = build_head(config, record.antibody.width, record.antigen.width)
    prefix = f"{k}.model."
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    model.load_state_dict(own, assign=True)
    antibody, antigen = (
        Standardizer(tensors[f"{k}.{kind}.mean"].numpy(), tensors[f"{k}.{kind}.scale"].numpy())
        for kind in KINDS
    )
    scale = record.members[k]
    return EnsembleMember(model.eval(), antibody, antigen, scale.pkd_mean, scale.pkd_scale)


def _store_of(run: Path) -> Path | None:
    """Return the store that a run was trained from; None if it is unknown or does not exist."""
    try:
        store = json.loads((run / "config.json").read_text(encoding="utf-8"))["store"]
        return Path(store) if Path(store).exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
