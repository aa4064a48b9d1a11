"""An adapter's folder: what it was started with, whether it is finished, and its last files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from abag.adapt.config import AdaptConfig
from abag.core.files import is_partial, replacing, write_bytes, write_json
from abag.embed.store.adapter_files import ADAPTER_FILE, CONFIG_FILE, ROWS_FILE, WEIGHTS_FILE
from abag.embed.weights.adapters import FORMAT, adapter_digest, adapter_files
from abag.head.model.config import RunMismatch, check_same
from abag.head.training import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from abag.adapt.pairs import AdapterSplit
    from abag.adapt.training import AdapterTraining
    from abag.embed.encoders.loading import Identity
    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs


def describe(
    config: AdaptConfig, pairs: LabelledPairs, parts: AdapterSplit, identities: dict[str, Identity]
) -> dict[str, Any]:
    """Return what config.json holds: the options and what they were applied to."""
    labels = {"pkd": pairs.pkd.tolist(), "censored": pairs.censored.tolist()}
    text = parts.frame(pairs).to_csv(index=False) + json.dumps(labels)
    return config.to_json() | {
        "pairs": len(pairs),
        "pairs_digest": checkpoint.digest({}, text),
        "antibody_fingerprint": identities["antibody"].fingerprint,
        "antigen_fingerprint": identities["antigen"].fingerprint,
    }


def finished_summary(out: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """Check the folder against this command; return its result if it has one.

    Raises
    ------
    RunMismatch
    """
    names = [path.name for path in out.iterdir()] if out.exists() else []
    # A kill in the first instant leaves no more than this.
    if all(name == "checkpoints" or is_partial(out / name) for name in names):
        return None
    if "config.json" not in names:
        msg = f"{out}: is not empty and holds no adapter. Give another --out folder."
        raise RunMismatch(msg)
    before = json.loads((out / "config.json").read_text(encoding="utf-8"))
    check_same(out, before, record, may_change=AdaptConfig.changeable(), option="--out")
    if ADAPTER_FILE not in names:
        return None
    result: dict[str, Any] = json.loads((out / ADAPTER_FILE).read_text(encoding="utf-8"))["summary"]
    return result


def publish(out: Path, record: dict[str, Any], training: AdapterTraining) -> dict[str, Any]:
    """Write the best adapter; adapter.json comes last and says that the rest is there.

    Returns
    -------
    dict
        The keys of ``abag adapt --json``.
    """
    training.show_log()
    with replacing(out / ROWS_FILE) as partial:
        training.parts.frame(training.pairs).to_parquet(partial, index=False)
    sides = {kind: _publish_side(out, kind, training) for kind in training.config.kinds()}
    summary = _summary(out, sides, training)
    name = "-".join("".join(c if c.isalnum() else " " for c in out.resolve().name.lower()).split())
    whole = {**FORMAT, "name": name or "adapter", "sides": sides, "options": record}
    write_json(out / ADAPTER_FILE, {**whole, "summary": summary})
    return summary


def _publish_side(out: Path, kind: Kind, training: AdapterTraining) -> dict[str, Any]:
    """Write one encoder's factors; return what adapter.json says of them."""
    (out / kind).mkdir(exist_ok=True)
    weights, config = training.model.adapted()[kind].saved(training.best_factors(kind))
    write_bytes(out / kind / WEIGHTS_FILE, weights)
    write_json(out / kind / CONFIG_FILE, config, sort_keys=True)
    identity = training.identities[kind]
    base = str(identity.meaning["weights"])
    return {
        "encoder": identity.checkpoint.origin,
        "fingerprint": identity.fingerprint,
        "weights": base,
        "digest": adapter_digest(base, adapter_files(out, kind)),
        "trainable_parameters": training.trainable()[kind],
    }


def _summary(out: Path, sides: dict[Kind, Any], training: AdapterTraining) -> dict[str, Any]:
    parts, progress = training.parts, training.progress
    return {
        "adapter": str(out),
        "sides": sides,
        "pairs": {
            "adapter": len(parts.adapter),
            "head": len(parts.head),
            "validation": len(parts.validation),
        },
        "steps": progress.step,
        "epochs": len(progress.epochs),
        "best_epoch": progress.best_epoch,
        "first_loss": progress.epochs[0]["loss"],
        "last_loss": progress.epochs[-1]["loss"],
        "best_validation_loss": progress.best_loss,
        "seconds": round(progress.seconds, 3),
        "resumed_from_step": training.resumed_from_step,
    }


def describe_adapter(summary: dict[str, Any]) -> str:
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
