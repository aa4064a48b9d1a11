"""A predictor as a folder that somebody else can use: ``predictor/`` in a run.

``weights.safetensors`` holds heads, input statistics and representatives of the training
sequences; ``predictor.json`` says what they are, under a digest of both; ``README.md`` is for
people (`abag.head.runs.model_card`). Nothing in it is dated, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from abag import AbagError
from abag.core.files import write_bytes, write_json
from abag.core.options import BadOption
from abag.head.data.scaling import Standardizer
from abag.head.data.splits import TRAIN
from abag.head.model.config import FitConfig
from abag.head.model.heads import build_head
from abag.head.prediction.applicability import Applicability, measure_applicability
from abag.head.prediction.predictor import EmbedFunction, EnsembleMember, Predictor, VectorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from abag.head.data.labels import LabelledPairs
    from abag.head.data.splits import Split
    from abag.head.data.vectors import StoredVectors
    from abag.head.training.loop import TrainedHeads
    from abag.head.training.uncertainty import Sigma

SCHEMA = 2
WEIGHTS, RECORD = "weights.safetensors", "predictor.json"


class PredictorDamaged(AbagError):
    """A predictor folder is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScale:
    """What turns one member's output into pKd."""

    pkd_mean: float
    pkd_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRecord:
    """Content of predictor.json, beside ``schema`` and ``digest``."""

    head: str
    widths: tuple[int, ...]
    rank: int
    members: tuple[LabelScale, ...]
    spread: float
    noise: float
    antibody: VectorSpec
    antigen: VectorSpec


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
    """Write the bundle; its JSON comes last and holds the digest of the weights."""
    folder.mkdir(exist_ok=True)
    tensors: dict[str, Tensor] = {}
    heads = [(one.scaling, weights) for one in trained for weights in one.weights]
    for k, (scaling, weights) in enumerate(heads):
        tensors |= {f"{k}.model.{name}": t.contiguous() for name, t in weights.items()}
        for kind in ("antibody", "antigen"):
            statistics: Standardizer = getattr(scaling, kind)
            # copies: heads of one split share theirs, which safetensors refuses
            tensors[f"{k}.{kind}.mean"] = torch.tensor(statistics.mean)
            tensors[f"{k}.{kind}.scale"] = torch.tensor(statistics.scale)
    sides = {}
    for kind, vectors in (("antibody", antibody), ("antigen", antigen)):
        seen = np.unique(np.concatenate([getattr(pairs, kind)[s.part == TRAIN] for s in splits]))
        applicability = measure_applicability(vectors.x_ND[seen])
        tensors[f"{kind}.representatives"] = torch.from_numpy(applicability.vectors_RD)
        sides[kind] = _side(vectors, len(seen), applicability)
        _keep_adapter(folder / f"{kind}-adapter", vectors.folder.adapter_files())
    record = PredictorRecord(
        head=str(config.filled().head),
        widths=config.filled().widths,
        rank=config.rank,
        members=tuple(
            LabelScale(pkd_mean=scaling.pkd_mean, pkd_scale=scaling.pkd_scale)
            for scaling, _ in heads
        ),
        spread=sigma.spread,
        noise=sigma.noise,
        **sides,
    )
    content, fields = save(tensors), asdict(record)
    write_bytes(folder / WEIGHTS, content)
    write_json(folder / RECORD, {"schema": SCHEMA, "digest": _digest(fields, content), **fields})


def _keep_adapter(folder: Path, files: Mapping[str, bytes]) -> None:
    """Copy what adapted an encoder: whoever is handed the bundle encodes with what was trained."""
    for name, content in files.items():
        path = folder.joinpath(*Path(name).parts[1:])  # less the folder that holds it in a store
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)


def _side(
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
    """Hash what predictor.json says and the bytes it says it of: 32 hex digits."""
    said = {name: value for name, value in record.items() if name not in ("schema", "digest")}
    running = blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16)
    running.update(weights)
    return running.hexdigest()


def load_predictor(path: Path | str, *, embed: EmbedFunction | None = None) -> Predictor:
    """Read a run's predictor, from the run folder or the bundle itself.

    Parameters
    ----------
    path : path
    embed : callable, optional
        Encodes sequences that a store lacks; without it they are refused.

    Raises
    ------
    PredictorDamaged
        If a file is missing, altered, cut or of another version.
    """
    path = Path(path)
    folder = path / "predictor" if (path / "predictor").is_dir() else path
    record, tensors = _read(folder)
    try:
        members = tuple(_member(k, record, tensors) for k in range(len(record.members)))
        return Predictor(
            members,
            record.antibody,
            record.antigen,
            Applicability(
                tensors["antibody.representatives"].numpy(), record.antibody.far_distance
            ),
            Applicability(tensors["antigen.representatives"].numpy(), record.antigen.far_distance),
            spread=record.spread,
            noise=record.noise,
            store=_store_of(folder.parent),
            embed=embed,
            adapters={
                kind: path
                for kind in ("antibody", "antigen")
                if (path := folder / f"{kind}-adapter").is_dir()
            },
        )
    except (KeyError, RuntimeError, BadOption) as error:
        reason = " ".join(str(error).split())
        msg = f"{folder / WEIGHTS}: does not hold what {RECORD} says ({reason}). {_MEND}"
        raise PredictorDamaged(msg) from error


_MEND = "Copy the whole predictor folder again, or fit anew."


def _read(folder: Path) -> tuple[PredictorRecord, dict[str, Tensor]]:
    """Read both files and check them against each other."""
    try:
        written = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{folder}: no predictor can be read here ({error}); expected a run or its predictor folder."  # noqa: E501
        raise PredictorDamaged(msg) from error
    if not isinstance(written, dict) or written.get("schema") != SCHEMA:
        found = written.get("schema") if isinstance(written, dict) else None
        msg = f"{folder / RECORD}: of schema {found!r}; this abag reads schema {SCHEMA}. Use the abag that wrote it, or fit anew."  # noqa: E501
        raise PredictorDamaged(msg)
    try:
        said = {n: value for n, value in written.items() if n not in ("schema", "digest")}
        record = parse_record(PredictorRecord, said)
    except TypeError as error:
        msg = f"{folder / RECORD}: not a predictor of schema {SCHEMA}: {error}. {_MEND}"
        raise PredictorDamaged(msg) from error
    try:
        weights = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        msg = f"{folder / WEIGHTS}: cannot be read ({error}). {_MEND}"
        raise PredictorDamaged(msg) from error
    if _digest(written, weights) != written.get("digest"):
        msg = f"{folder}: {WEIGHTS} or {RECORD} is not as it was written (digest differs). {_MEND}"
        raise PredictorDamaged(msg)
    try:
        return record, load(weights)
    except SafetensorError as error:
        msg = f"{folder / WEIGHTS}: no safetensors file ({error}). {_MEND}"
        raise PredictorDamaged(msg) from error


def parse_record(kind: Any, value: Any, where: str = "the record") -> Any:  # noqa: ANN401
    """Turn a JSON value into a frozen dataclass, checking each name and type.

    Raises
    ------
    TypeError
        Naming the first value that is not what the annotations say.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            msg = f"{where} holds {_listed(value)}; expected {', '.join(hints)}"
            raise TypeError(msg)
        inner = {f.name: parse_record(hints[f.name], value[f.name], f.name) for f in fields(kind)}
        return kind(**inner)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            msg = f"{where} is {value!r}; expected a list"
            raise TypeError(msg)
        return tuple(parse_record(get_args(kind)[0], one, where) for one in value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        msg = f"{where} is {value!r}; expected {kind.__name__}"
        raise TypeError(msg)
    return value


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)


def _member(k: int, record: PredictorRecord, tensors: Mapping[str, Tensor]) -> EnsembleMember:
    # Built without memory: a record may say any width, and only tensors that are there count.
    with torch.device("meta"):
        model = build_head(_head_config(record), record.antibody.width, record.antigen.width)
    prefix = f"{k}.model."
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    model.load_state_dict(own, assign=True)
    antibody, antigen = (
        Standardizer(tensors[f"{k}.{kind}.mean"].numpy(), tensors[f"{k}.{kind}.scale"].numpy())
        for kind in ("antibody", "antigen")
    )
    scale = record.members[k]
    return EnsembleMember(model.eval(), antibody, antigen, scale.pkd_mean, scale.pkd_scale)


def _head_config(record: PredictorRecord) -> FitConfig:
    return FitConfig(head=record.head, widths=record.widths, rank=record.rank, dropout=0.0)  # type: ignore[arg-type]  # checked by FitConfig


def _store_of(run: Path) -> Path | None:
    """Look up which store a run was trained from; None where there is none any more."""
    try:
        store = json.loads((run / "config.json").read_text(encoding="utf-8"))["store"]
        return Path(store) if Path(store).exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
