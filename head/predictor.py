"""A trained head that somebody else can use: weights, input statistics, and what made the vectors.

``predictor/`` holds ``weights.safetensors`` and ``predictor.json``; nothing in it is dated, and
nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load, save_file

from abag import AbagError
from abag.embed.sequences import antibody as antibody_chains
from abag.embed.sequences import antigen as antigen_chains
from abag.embed.sequences import keys_array
from abag.embed.store import open_store
from abag.head.checkpoint import publish, write_text
from abag.head.config import FitConfig
from abag.head.model import build_head
from abag.head.splits import TRAIN
from abag.head.table import Statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import nn

    from abag.embed.sequences import Kind
    from abag.embed.store import Store
    from abag.head.loop import Trained
    from abag.head.sigma import Sigma
    from abag.head.splits import Split
    from abag.head.table import LabelledPairs
    from abag.head.train import Vectors

SCHEMA = 1
FAR_QUANTILE = 0.99
PREDICTED = 16384
"""Pairs a pass."""


class PredictorDamaged(AbagError):
    """A predictor folder is not what was written."""


class VectorsMissing(AbagError):
    """The store lacks some of the sequences asked for."""


@dataclass(frozen=True, slots=True)
class Side:
    """What the predictor knows of one kind of vector."""

    name: str
    """Encoder, for reading."""
    fingerprint: str
    """Encoder, for checking."""
    pooling: str
    width: int
    far: float
    """Distance from the training mean beyond which a sequence is called far."""


@dataclass(frozen=True, slots=True)
class Member:
    """One trained head and its scaling; a cross-validated run has one a fold."""

    model: nn.Module
    antibody: Statistics
    antigen: Statistics
    pkd_mean: float
    pkd_scale: float


@dataclass(frozen=True, slots=True)
class Predictor:
    """Heads that score pairs of vectors, and the store that usually holds the vectors."""

    members: tuple[Member, ...]
    antibody: Side
    antigen: Side
    spread: float
    """What the members' standard deviation is multiplied by; see `abag.head.sigma`."""
    noise: float
    """What all members miss, in pKd."""
    store: Path | None = None

    def predict(
        self,
        *,
        antigen: Sequence[str] | str,
        heavy: Sequence[str] | None = None,
        light: Sequence[str] | None = None,
        store: Path | str | None = None,
    ) -> pd.DataFrame:
        """Score antibodies against antigens, pair by pair.

        Parameters
        ----------
        antigen : sequence of str, or str
            One an antibody, or one for all; chains joined by ``|``.
        heavy, light : sequence of str, optional
            Chains of the antibodies; either may be left out.
        store : path, optional
            Holds the vectors; by default the store of the run.

        Returns
        -------
        DataFrame
            ``pkd_predicted``, ``sigma``, ``far_antibody``, ``far_antigen``, one row a pair.

        Raises
        ------
        VectorsMissing
            If a sequence was not embedded with the encoder of the run.
        """
        opened = open_store(self._store(store))
        rows = len(heavy or light or ())
        antigens = [antigen] * rows if isinstance(antigen, str) else antigen
        bodies = zip(heavy or [""] * rows, light or [""] * rows, strict=True)
        antibody_keys = keys_array("antibody", [antibody_chains(h, x) for h, x in bodies])
        antigen_keys = keys_array("antigen", [antigen_chains(text) for text in antigens])
        return self.predict_keys(opened, antibody_keys, antigen_keys)

    def predict_keys(
        self, store: Store, antibody_keys: NDArray[np.uint8], antigen_keys: NDArray[np.uint8]
    ) -> pd.DataFrame:
        """Score pairs given by key, each array of shape (P, 16); see `predict`."""
        antibody_ND, antibody = _read(store, "antibody", self.antibody, antibody_keys)
        antigen_ME, antigen = _read(store, "antigen", self.antigen, antigen_keys)
        return self.predict_vectors(antibody_ND, antigen_ME, antibody, antigen)

    def predict_vectors(
        self,
        antibody_ND: NDArray[np.float32],
        antigen_ME: NDArray[np.float32],
        antibody: NDArray[np.int64],
        antigen: NDArray[np.int64],
    ) -> pd.DataFrame:
        """Score pairs of stored vectors.

        Parameters
        ----------
        antibody_ND, antigen_ME : NDArray, dtype=float32
            One row a unique sequence.
        antibody, antigen : NDArray, shape=(P,), dtype=int64
            Their rows in each pair.

        Returns
        -------
        DataFrame
            See `predict`.
        """
        scores = np.stack(
            [_score(m, antibody_ND, antigen_ME, antibody, antigen) for m in self.members]
        )
        return pd.DataFrame(
            {
                "pkd_predicted": scores.mean(axis=0),
                "sigma": np.sqrt(self.spread**2 * scores.var(axis=0) + self.noise**2),
                "far_antibody": self._far(antibody_ND, "antibody")[antibody],
                "far_antigen": self._far(antigen_ME, "antigen")[antigen],
            }
        )

    def _far(self, x_ND: NDArray[np.float32], kind: Kind) -> NDArray[np.bool_]:
        """Tell which sequences lie beyond nearly all training ones, as seen by any member."""
        side = self.antibody if kind == "antibody" else self.antigen
        distances = [distance(x_ND, getattr(member, kind)) for member in self.members]
        return np.asarray(np.min(distances, axis=0) > side.far)

    def _store(self, given: Path | str | None) -> Path:
        if given is None and self.store is None:
            msg = "predict: no store is known to this predictor. Give store=PATH."
            raise VectorsMissing(msg)
        return Path(given or self.store or "")


def distance(x_ND: NDArray[np.float32], statistics: Statistics) -> NDArray[np.float64]:
    """Measure how far vectors lie from the training mean, in units of its length; (N,)."""
    length = max(float(np.linalg.norm(statistics.mean)), 1e-12)
    # Not standardised: a column that never varied in training must count when it does now.
    return np.asarray(np.linalg.norm(x_ND - statistics.mean, axis=1), np.float64) / length


def _read(
    store: Store, kind: Kind, side: Side, keys: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read each distinct sequence once; return vectors and each row's place among them."""
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    folder = store.folder(kind, side.fingerprint)
    missing = int(folder.missing(unique).sum())
    if missing:
        msg = (
            f"{store.path}: {missing} of {len(unique)} {kind} sequences have no vector from "
            f"{side.name} ({side.fingerprint[:8]}). Run abag embed on them into this store first."
        )
        raise VectorsMissing(msg)
    return folder.read(unique, side.pooling), index.reshape(-1).astype(np.int64)


@torch.no_grad()
def _score(
    member: Member,
    antibody_ND: NDArray[np.float32],
    antigen_ME: NDArray[np.float32],
    antibody: NDArray[np.int64],
    antigen: NDArray[np.int64],
) -> NDArray[np.float64]:
    z_ND = torch.from_numpy(member.antibody.apply(antibody_ND))
    z_ME = torch.from_numpy(member.antigen.apply(antigen_ME))
    scores = [
        member.model(z_ND[antibody[at : at + PREDICTED]], z_ME[antigen[at : at + PREDICTED]])
        for at in range(0, len(antibody), PREDICTED)
    ]
    z = torch.cat(scores).numpy() if scores else np.zeros(0, np.float32)
    return z.astype(np.float64) * member.pkd_scale + member.pkd_mean


def save_predictor(
    folder: Path,
    pairs: LabelledPairs,
    splits: Sequence[Split],
    trained: Sequence[Trained],
    config: FitConfig,
    antibody: Vectors,
    antigen: Vectors,
    sigma: Sigma,
) -> None:
    """Write the bundle; its JSON comes last and holds the digest of the weights."""
    folder.mkdir(exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    heads = [(one.scaling, weights) for one in trained for weights in one.weights]
    for k, (scaling, weights) in enumerate(heads):
        tensors |= {f"{k}.model.{name}": t.contiguous() for name, t in weights.items()}
        for kind in ("antibody", "antigen"):
            statistics: Statistics = getattr(scaling, kind)
            # copies: heads of one split share theirs, which safetensors refuses
            tensors[f"{k}.{kind}.mean"] = torch.tensor(statistics.mean)
            tensors[f"{k}.{kind}.scale"] = torch.tensor(statistics.scale)
    partial = folder / "weights.safetensors.partial"
    save_file(tensors, partial)
    record = {
        "schema": SCHEMA,
        "weights_blake2b": blake2b(partial.read_bytes(), digest_size=16).hexdigest(),
        "head": config.filled().head,
        "widths": list(config.filled().widths),
        "rank": config.rank,
        "members": [
            {"pkd_mean": scaling.pkd_mean, "pkd_scale": scaling.pkd_scale} for scaling, _ in heads
        ],
        "spread": sigma.spread,
        "noise": sigma.noise,
        "antibody": _side(antibody, [t.scaling.antibody for t in trained], pairs.antibody, splits),
        "antigen": _side(antigen, [t.scaling.antigen for t in trained], pairs.antigen, splits),
    }
    publish(partial, folder / "weights.safetensors")
    write_text(folder / "predictor.json", json.dumps(record, indent=2) + "\n")


def _side(
    vectors: Vectors,
    statistics: Sequence[Statistics],
    index: NDArray[np.int64],
    splits: Sequence[Split],
) -> dict[str, Any]:
    seen = [np.unique(index[split.part == TRAIN]) for split in splits]
    reach = [
        np.quantile(distance(vectors.x_ND[rows], one), FAR_QUANTILE)
        for rows, one in zip(seen, statistics, strict=True)
    ]
    return {
        "name": vectors.folder.name,
        "fingerprint": vectors.folder.fingerprint,
        "pooling": vectors.pooling,
        "width": vectors.x_ND.shape[1],
        # a little more than rounding, for the one antigen that all training pairs share
        "far": float(max(reach)) + 1e-3,
    }


def load_predictor(path: Path | str) -> Predictor:
    """Read a run's predictor, from the run folder or the bundle itself.

    Raises
    ------
    PredictorDamaged
        If a file is missing, altered or of another version.
    """
    path = Path(path)
    folder = path / "predictor" if (path / "predictor").is_dir() else path
    record = _read_record(folder)
    tensors = load(_read_weights(folder, record))
    sides = {kind: Side(**record[kind]) for kind in ("antibody", "antigen")}
    members = tuple(_member(k, record, tensors, sides) for k in range(len(record["members"])))
    return Predictor(
        members,
        sides["antibody"],
        sides["antigen"],
        record["spread"],
        record["noise"],
        _store_of(folder.parent),
    )


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "predictor.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{folder}: no predictor can be read here ({error}); expected a run or its predictor folder."  # noqa: E501
        raise PredictorDamaged(msg) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA or RECORD - record.keys():
        msg = f"{folder / 'predictor.json'}: not a predictor of schema {SCHEMA}. Use the abag that wrote it."  # noqa: E501
        raise PredictorDamaged(msg)
    return record


RECORD = {
    "weights_blake2b",
    "head",
    "widths",
    "rank",
    "members",
    "spread",
    "noise",
    "antibody",
    "antigen",
}


def _read_weights(folder: Path, record: dict[str, Any]) -> bytes:
    path = folder / "weights.safetensors"
    try:
        weights = path.read_bytes()
    except OSError as error:
        msg = f"{path}: cannot be read ({error}). Copy the whole predictor folder again."
        raise PredictorDamaged(msg) from error
    if blake2b(weights, digest_size=16).hexdigest() != record["weights_blake2b"]:
        msg = f"{path}: is not the file that predictor.json was written for. Copy the whole predictor folder again."  # noqa: E501
        raise PredictorDamaged(msg)
    return weights


def _member(
    k: int, record: dict[str, Any], tensors: dict[str, torch.Tensor], sides: dict[str, Side]
) -> Member:
    config = FitConfig(
        head=record["head"], widths=tuple(record["widths"]), rank=record["rank"], dropout=0.0
    )
    model = build_head(config, sides["antibody"].width, sides["antigen"].width).eval()
    prefix = f"{k}.model."
    model.load_state_dict(
        {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    )
    antibody, antigen = (
        Statistics(tensors[f"{k}.{kind}.mean"].numpy(), tensors[f"{k}.{kind}.scale"].numpy())
        for kind in ("antibody", "antigen")
    )
    return Member(model, antibody, antigen, **record["members"][k])


def _store_of(run: Path) -> Path | None:
    """Look up which store a run was trained from."""
    config = run / "config.json"
    if not config.exists():
        return None
    store = json.loads(config.read_text(encoding="utf-8")).get("store")
    return Path(store) if store else None
