"""predictor.json: what it holds, and the digest that ties it to the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from abag.embed.sequences.options import AntibodyRegion  # read by get_type_hints
from abag.head.prediction.predictor import VectorSpec

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
