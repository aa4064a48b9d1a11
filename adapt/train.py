"""``adapt_encoders``: a table and a split in, an adapter's folder out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from abag.adapt.config import AdaptConfig
from abag.adapt.folder import AdaptSummary, describe_inputs, finished_summary, write_adapter
from abag.adapt.pairs import assign_pairs
from abag.adapt.training import AdapterTraining
from abag.core.device import DevicePlan, plan_device
from abag.core.files import make_folder, only_writer, sweep_partials, write_json
from abag.core.messages import reporting, say
from abag.core.options import BadOption
from abag.embed.encoders.loading import identify
from abag.embed.encoders.lora import fit_lora, import_peft
from abag.embed.sequences.chains import KINDS
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.labels import label_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from abag.embed.encoders.loading import Identity
    from abag.embed.sequences.chains import Kind


def adapt_encoders(
    table: Path | str | pd.DataFrame,
    out: Path | str,
    *,
    split_from: Path | str,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of AdaptConfig
) -> AdaptSummary:
    """Adapt encoders to the training pairs of a split, or resume an interrupted adaptation.

    An adaptation that was interrupted at any point and resumed ends like an uninterrupted one,
    bit for bit on a CPU.

    Parameters
    ----------
    table : path or DataFrame
        Pairs with a measured affinity.
    out : path
        Folder of the adapter; created if it does not exist.
    split_from : path
        A run folder, or a file like its splits.parquet.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Whether to draw a progress bar on stderr.
    **options
        Fields of `AdaptConfig`.

    Raises
    ------
    AbagError
        If an option, the table, the split or the folder is invalid, before anything is written;
        or if training diverges or a file cannot be written.
    """
    config = AdaptConfig.from_keywords({**options, "split_from": split_from}, "adapt")
    with reporting(say, bars=progress):
        return _adapt(table, Path(out), config)


def _adapt(table: Path | str | pd.DataFrame, out: Path, config: AdaptConfig) -> AdaptSummary:
    import_peft()
    plan = _plan_training(config)
    pairs = label_pairs(read_pairs(table, config), config)
    assignment = assign_pairs(pairs, config)
    identities = {kind: identify(config.encoder(kind), kind) for kind in KINDS}
    _refuse_unused_names(config, identities)
    record = describe_inputs(out, config, pairs, assignment, identities)
    if (summary := finished_summary(out, record)) is not None:
        say(f"{out}: nothing to do, this adapter is finished")
        return summary
    devices = range(torch.cuda.device_count())
    with only_writer(out), torch.random.fork_rng(devices=devices):
        training = AdapterTraining(out, pairs, assignment, identities, plan, config)
        make_folder(out / "checkpoints")
        sweep_partials(out)
        write_json(out / "config.json", record, sort_keys=True)
        training.run()
        return write_adapter(out, record, training)


def _refuse_unused_names(config: AdaptConfig, identities: Mapping[Kind, Identity]) -> None:
    """Refuse a target or layer that neither encoder has; both share one list."""
    fitting = [fit_lora(config, identities[kind].checkpoint) for kind in config.kinds()]
    for option in ("targets", "layers"):
        used = [getattr(lora, option) for lora in fitting]
        if unused := set(getattr(config, option)).difference(*used):
            msg = (
                f"--{option}: no adapted encoder has {min(unused)}; expected each to exist in at "
                "least one of them. Remove it."
            )
            raise BadOption(msg)


def _plan_training(config: AdaptConfig) -> DevicePlan:
    plan = plan_device(config.device, config.precision)
    # fp16 gradients would need loss scaling, so fp32 is used where bf16 is not supported.
    return plan_device(config.device, "fp32") if plan.precision == "fp16" else plan
