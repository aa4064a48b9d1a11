"""``adapt_encoders``: a table and a split in, an adapter's folder out.

What a step does depends on (seed, step) and the state alone. A checkpoint holds all of that
state and one rename commits it, so the same command, run again after a kill at any instant, ends
as an unbroken one: bit for bit on a CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from abag.adapt.config import AdaptConfig
from abag.adapt.folder import describe, finished_summary, publish
from abag.adapt.pairs import split_for_adapter
from abag.adapt.training import AdapterTraining
from abag.core.device import DevicePlan, plan_device
from abag.core.files import write_json
from abag.core.options import BadOption
from abag.embed.encoders.loading import identify
from abag.embed.encoders.lora import fit_lora, import_peft
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.labels import label_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from abag.embed.encoders.loading import Identity


def adapt_encoders(
    table: Path | str | pd.DataFrame,
    out: Path | str,
    *,
    split_from: Path | str,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of AdaptConfig
) -> dict[str, Any]:
    """Adapt encoders to the training pairs of a split, or go on where that was stopped.

    Parameters
    ----------
    table : path or DataFrame
        Pairs with a measured affinity.
    out : path
        Folder of the adapter; made if it is not there.
    split_from : path
        A run's folder, or a file like its splits.parquet.
    say : callable, optional
        Takes each message; by default they go to stderr.
    progress : bool
        Whether to draw a bar on stderr.
    **options
        Fields of `AdaptConfig`.

    Returns
    -------
    dict
        The keys of ``abag adapt --json``.

    Raises
    ------
    AbagError
        In one line, before anything is written if an input is at fault.
    """
    config = AdaptConfig.from_keywords({**options, "split_from": split_from}, "adapt")
    out, say = Path(out), say or _to_stderr
    import_peft()
    plan = _plan(config)
    pairs = label_pairs(read_pairs(table, config), config)
    parts = split_for_adapter(pairs, config)
    identities = {kind: identify(config.encoder(kind), kind) for kind in ("antibody", "antigen")}
    _refuse_what_nothing_has(config, identities)
    record = describe(config, pairs, parts, identities)
    if (summary := finished_summary(out, record)) is not None:
        say(f"{out}: nothing to do, this adapter is finished")
        return summary
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        training = AdapterTraining(out, pairs, parts, identities, plan, config, say)
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_json(out / "config.json", record, sort_keys=True)
        training.run(bar=progress)
    return publish(out, record, training)


def _refuse_what_nothing_has(config: AdaptConfig, identities: dict[str, Identity]) -> None:
    """Two encoders share one list of targets and layers: each must be in one of them."""
    fitting = [fit_lora(config, identities[kind].checkpoint) for kind in config.kinds()]
    for name in ("targets", "layers"):
        asked = set(getattr(config, name))
        left = asked - {one for lora in fitting for one in getattr(lora, name)}
        if left:
            msg = (
                f"--{name}: {sorted(left)[0]} is in no adapted encoder; expected each to be in "
                "one. Leave it out."
            )
            raise BadOption(msg)


def _plan(config: AdaptConfig) -> DevicePlan:
    plan = plan_device(config.device, config.precision)
    # fp16 gradients would need loss scaling: where there is no bf16, fp32 it is
    return plan_device(config.device, "fp32") if plan.precision == "fp16" else plan


def _to_stderr(text: str) -> None:
    tqdm.write(text, file=sys.stderr)  # above the bar, if there is one
