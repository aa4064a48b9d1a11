"""An adapter's folder: its configuration, whether it is finished, and the files of its result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict, cast

from abag.adapt.config import AdaptConfig
from abag.core.files import (
    FileDamaged,
    is_partial,
    read_json,
)
from abag.embed.store.store_files import ADAPTER_FILE
from abag.head.models.config import RunMismatch, check_same
from abag.head.training import checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from abag.adapt.pairs import PairAssignment
    from abag.embed.encoders.identity import Identity
    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs


class EncoderRecord(TypedDict):
    """What adapter.json says about one adapted encoder."""

    encoder: str
    fingerprint: str
    """Of the encoder before its adaptation."""
    weights: str
    """Digest of the encoder's weights."""
    digest: str
    """Digest of the adapter."""
    trainable_parameters: int


class PairCounts(TypedDict):
    """How many pairs had which use."""

    adapter: int
    head: int
    validation: int


class AdaptSummary(TypedDict):
    """The keys of ``abag adapt --json``."""

    adapter: str
    """The folder."""
    sides: dict[Kind, EncoderRecord]
    pairs: PairCounts
    steps: int
    epochs: int
    best_epoch: int
    first_loss: float
    last_loss: float
    best_validation_loss: float | None
    seconds: float
    resumed_from_step: int | None


def describe_inputs(
    out: Path,
    config: AdaptConfig,
    pairs: LabelledPairs,
    assignment: PairAssignment,
    identities: Mapping[Kind, Identity],
) -> dict[str, Any]:
    """Return the content of config.json: the options, and what they are applied to."""
    labels = {"pkd": pairs.pkd.tolist(), "censored": pairs.censored.tolist()}
    text = assignment.to_frame(pairs).to_csv(index=False) + json.dumps(labels)
    return config.to_json() | {
        "pairs": len(pairs),
        "pairs_digest": checkpoint.digest({}, text),
        **{f"{kind}_fingerprint": one.fingerprint for kind, one in identities.items()},
    }


def finished_summary(out: Path, record: dict[str, Any]) -> AdaptSummary | None:
    """Return the result in a folder, or None if there is none yet.

    Raises
    ------
    RunMismatch
        If the folder belongs to other options or pairs, or is not an adapter's.
    FileDamaged
        If its result cannot be read.
    """
    names = [path.name for path in out.iterdir()] if out.exists() else []
    # What a process leaves that is killed before it writes config.json.
    if all(name == "checkpoints" or is_partial(out / name) for name in names):
        return None
    if "config.json" not in names:
        msg = f"{out}: is not empty and contains no adapter. Use another --out folder."
        raise RunMismatch(msg)
    check_same(
        out,
        read_json(out / "config.json"),
        record,
        may_change=AdaptConfig.changeable(),
        option="--out",
    )
    if ADAPTER_FILE not in names:
        return None
    summary = read_json(out / ADAPTER_FILE).get("summary")
    if not isinstance(summary, dict):
        msg = f"{out / ADAPTER_FILE}: has no summary of the adaptation. Restore it, or adapt again."
        raise FileDamaged(msg)
    return cast("AdaptSummary", summary)


def describe_adapter(summary: AdaptSummary) -> str:
    """Describe a finished adapter: what was adapted, and the best epoch."""
    lines = [
        f"{kind}: {side['encoder']}, {side['trainable_parameters']:,} trainable parameters, "
        f"adapter {side['digest'][:8]}"
        for kind, side in summary["sides"].items()
    ]
    best, pairs = summary["best_validation_loss"], summary["pairs"]
    lines.append(
        f"best of {summary['epochs']} epochs: {summary['best_epoch']}, validation loss {best:.4f}; "
        f"trained on {pairs['adapter']} pairs, {pairs['head']} are left for the head"
    )
    return "\n".join(lines)
