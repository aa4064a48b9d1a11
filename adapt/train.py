"""``adapt_encoders``: a table and a split in, an adapter's folder out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import torch

from abag.adapt.config import AdaptConfig
from abag.adapt.model import AdaptationModel
from abag.adapt.pairs import assign_pairs, make_epoch_batches
from abag.core.device import DevicePlan, plan_device
from abag.core.errors import DamagedFile, OptionError, RunError, TrainingError
from abag.core.files import (
    is_partial,
    json_text,
    make_folder,
    only_writer,
    read_json,
    replacing,
    sweep_partials,
    why_mistyped,
    write_bytes,
    write_json,
    write_text,
)
from abag.core.messages import counted, reporting, say
from abag.embed.encoders.adapters import ADAPTER_FORMAT, adapter_digest, read_adapter_files
from abag.embed.encoders.identity import identify
from abag.embed.encoders.lora import fit_lora, import_peft
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store_files import ADAPTER_FILE, CONFIG_FILE, ROWS_FILE, WEIGHTS_FILE
from abag.head.data.labels import read_labelled_pairs, training_labels
from abag.head.evaluation import metrics
from abag.head.models.config import check_same
from abag.head.models.losses import one_sided_errors
from abag.head.training.checkpoint import digest
from abag.head.training.loop import ResumableTraining, TrainingProgress, training_digest
from abag.head.training.stack import cosine_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd
    from numpy.typing import NDArray
    from torch import Tensor

    from abag.adapt.pairs import PairAssignment
    from abag.embed.encoders.identity import Identity
    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs

CLIP = 1.0
WEIGHT_DECAY = 0.01
INITIAL, STEP = 2, 3  # streams of the seed, beside those of pairs.py
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class AdaptSummary(TypedDict):
    """The keys of ``abag adapt --json``."""

    adapter: str  # the folder
    # by kind: the ``encoder``, its ``fingerprint`` and the digest of its ``weights`` before, the
    # ``digest`` of the adapter, and the number of ``trainable_parameters``
    sides: dict[str, dict[str, Any]]
    pairs: dict[str, int]  # that trained the ``adapter``, are left to the ``head``, ``validation``
    steps: int
    epochs: int
    best_epoch: int
    first_loss: float
    last_loss: float
    best_validation_loss: float | None
    seconds: float
    resumed_from_step: int | None


@dataclass(slots=True, kw_only=True)
class AdapterProgress(TrainingProgress):
    best_loss: float | None = None
    best_epoch: int = 0
    stale: int = 0  # epochs since the best one
    loss_sum: float = 0.0  # over the `loss_pairs` pairs of the current epoch so far
    loss_pairs: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)  # the lines of metrics.jsonl


class AdapterTraining(ResumableTraining):
    progress: AdapterProgress

    def __init__(
        self,
        out: Path,
        pairs: LabelledPairs,
        assignment: PairAssignment,
        identities: dict[Kind, Identity],
        plan: DevicePlan,
        config: AdaptConfig,
    ) -> None:
        self.out, self.pairs, self.assignment = out, pairs, assignment
        self.identities, self.plan, self.config = identities, plan, config
        labels = training_labels(pairs, assignment.adapter)
        self.mean, self.scale = float(labels.mean()), float(labels.std())
        target = torch.from_numpy(((pairs.pkd - self.mean) / self.scale).astype(np.float32))
        self.target_P = target.to(plan.device)
        self.censored_P = torch.from_numpy(pairs.censored).to(plan.device)
        self._seed(INITIAL, 0)
        self.model = AdaptationModel(identities, pairs, assignment.adapter, plan, config)
        self.trainable = self.model.trainable()
        self.lengths = self.model.lengths()
        # The encoders' factors first, then the head: AdamW numbers its state in this order.
        groups = [
            {n: p for n, p in self.trainable.items() if n.startswith("head.") == is_head}
            for is_head in (False, True)
        ]
        self._names = [name for group in groups for name in group]
        self.optimizer = torch.optim.AdamW(
            [{"params": list(group.values())} for group in groups], weight_decay=WEIGHT_DECAY
        )
        self.best = {n: p.detach().clone() for n, p in self.trainable.items()}
        trained: list[NDArray[Any]]
        trained = [pairs.antibody, pairs.antigen, pairs.pkd, pairs.censored, assignment.adapter]
        super().__init__(
            name=out.name,
            checkpoints=out / "checkpoints",
            epochs=config.epochs,
            steps_per_epoch=-(-len(assignment.adapter) // config.batch_size),
            save_every=config.save_every,
            progress=AdapterProgress(training=training_digest(config, trained)),
        )

    def parameter_counts(self) -> dict[Kind, int]:
        return {
            kind: sum(p.numel() for p in encoder.factors().values())
            for kind, encoder in self.model.adapted().items()
        }

    def _announce(self) -> None:
        assignment, config = self.assignment, self.config
        for kind, count in self.parameter_counts().items():
            name = self.identities[kind].checkpoint.name
            say(f"{kind}: {name} with {count:,} trainable parameters")
        say(
            f"{counted(len(assignment.adapter), 'pair')} for the adapter, {len(assignment.head)} "
            f"for the head, {len(assignment.validation)} for validation; "
            f"{counted(config.epochs, 'epoch')} of {counted(self.steps_per_epoch, 'step')}, "
            f"{config.batch_size} pairs per step; {self.plan.reason}, {self.plan.precision}"
        )

    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        rows = self.assignment.adapter
        self._batches = make_epoch_batches(rows, self.lengths, self.config, epoch)

    def _take_step(self, step_in_epoch: int) -> None:
        progress, config, rows = self.progress, self.config, self._batches[step_in_epoch]
        total = self.epochs * self.steps_per_epoch
        for group, lr in zip(self.optimizer.param_groups, (config.lr, config.head_lr), strict=True):
            group["lr"] = float(cosine_rates(progress.step, 1, total, lr)[0])
        self._seed(STEP, progress.step)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._losses(rows, self.model(rows)).sum()
        (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self.trainable.values()), CLIP)
        self.optimizer.step()
        progress.loss_sum += (value := float(loss.detach()))  # GPU sync
        progress.loss_pairs += len(rows)
        if not np.isfinite(value):
            msg = (
                f"{self.out}: the loss is {value} at step {progress.step + 1}; expected a finite "
                "number. The last checkpoint is kept. Use a lower --lr with another --out folder, "
                "or --precision fp32."
            )
            raise TrainingError(msg)

    def _end_epoch(self, epochs_done: int) -> None:
        progress = self.progress
        validation_loss, scores = self._validate()
        loss = progress.loss_sum / progress.loss_pairs
        record = {
            "epoch": epochs_done,
            "step": progress.step,
            "loss": loss,
            "validation_loss": validation_loss,
            "validation": scores,
            "seconds": round(self.elapsed_s(), 3),
        }
        progress.epochs.append(record)
        progress.loss_sum, progress.loss_pairs = 0.0, 0
        if progress.best_loss is None or validation_loss < progress.best_loss:
            progress.best_loss, progress.best_epoch = validation_loss, epochs_done
            progress.stale = 0
            self.best = {n: p.detach().clone() for n, p in self.trainable.items()}
        else:
            progress.stale += 1
        spearman = scores["spearman"]
        shown = f", Spearman {spearman:.3f}" if spearman is not None else ""
        say(f"epoch {epochs_done}: loss {loss:.4f}, validation {validation_loss:.4f}{shown}")
        self.save()

    def _is_out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{n}": p.detach() for n, p in self.trainable.items()}
        tensors |= {f"best.{n}": p for n, p in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{self._names[i]}.{key}": tensor for key, tensor in state.items()}
        return tensors

    def _write_checkpoint(self) -> None:
        # first: a kill in between leaves a log that the resumed training writes again
        lines = "".join(json_text(line) + "\n" for line in self.progress.epochs)
        write_text(self.out / "metrics.jsonl", lines)
        super()._write_checkpoint()

    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        if tensors is None:
            return
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(tensors[f"model.{name}"])
                self.best[name].copy_(tensors[f"best.{name}"])
        moments = {
            i: {key: tensors[f"adam.{name}.{key}"] for key in MOMENTS}
            for i, name in enumerate(self._names)
        }
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})

    def _losses(self, rows: NDArray[np.int64], predicted_B: Tensor) -> Tensor:
        rows_B = torch.from_numpy(rows).to(self.plan.device)
        target_B, censored_B = self.target_P[rows_B], self.censored_P[rows_B]
        return one_sided_errors(predicted_B, target_B, censored_B).square()

    @torch.no_grad()
    def _validate(self) -> tuple[float, metrics.Scores]:
        self.model.eval()
        rows, size = self.assignment.validation, self.config.batch_size
        order = rows[np.argsort(self.lengths[rows], kind="stable")]
        batches = [order[at : at + size] for at in range(0, len(order), size)]
        predicted_V = torch.cat([self.model(batch) for batch in batches])
        loss = float(self._losses(order, predicted_V).mean())
        pairs, pkd = self.pairs, predicted_V.double().cpu().numpy() * self.scale + self.mean
        quantity = pairs.quantity
        measured = metrics.MeasuredRows.of(
            pairs.pkd[order], pairs.antigen[order], pairs.censored[order], quantity.sign
        )
        scores = measured.score(pkd, metrics.STRONG_PKD if quantity.affinity else None)
        return loss, scores

    def _seed(self, stream: int, number: int) -> None:
        state = np.random.SeedSequence([self.config.seed, stream, number]).generate_state(1)
        torch.manual_seed(int(state[0]))


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
    if config.no_antigen:
        msg = (
            "--no-antigen: abag adapt trains on pairs of an antibody and an antigen; expected an "
            "antigen column or --antigen SEQ. Leave it out."
        )
        raise OptionError(msg)
    plan = _plan_training(config)
    pairs = read_labelled_pairs(table, config, config)
    say(pairs.reading.line)
    for problem in pairs.reading.problems:
        say(f"{pairs.table.source}: {problem}")
    assignment = assign_pairs(pairs, config)
    identities = {kind: identify(config.encoder(kind), kind) for kind in KINDS}
    _refuse_unused_names(config, identities)
    record = _describe_inputs(config, pairs, assignment, identities)
    if (summary := _finished_summary(out, record)) is not None:
        say(f"{out}: nothing to do, this adapter is finished")
        return summary
    devices = range(torch.cuda.device_count())
    with only_writer(out), torch.random.fork_rng(devices=devices):
        training = AdapterTraining(out, pairs, assignment, identities, plan, config)
        make_folder(out / "checkpoints")
        sweep_partials(out)
        write_json(out / "config.json", record, sort_keys=True)
        training.run()
        return _write_adapter(out, record, training)


def _describe_inputs(
    config: AdaptConfig,
    pairs: LabelledPairs,
    assignment: PairAssignment,
    identities: Mapping[Kind, Identity],
) -> dict[str, Any]:
    labels = {"pkd": pairs.pkd.tolist(), "censored": pairs.censored.tolist()}
    text = assignment.to_frame(pairs).to_csv(index=False) + json.dumps(labels)
    return config.to_json() | {
        "pairs": len(pairs),
        "label_column": pairs.reading.column,
        "label_unit": pairs.reading.unit,
        "pairs_digest": digest({}, text),
        **{f"{kind}_fingerprint": one.fingerprint for kind, one in identities.items()},
    }


def _finished_summary(out: Path, record: dict[str, Any]) -> AdaptSummary | None:
    names = [path.name for path in out.iterdir()] if out.exists() else []
    # What a process leaves that is killed before it writes config.json.
    if all(name == "checkpoints" or is_partial(out / name) for name in names):
        return None
    if "config.json" not in names:
        msg = f"{out}: is not empty and contains no adapter. Use another --out folder."
        raise RunError(msg)
    before, may_change = read_json(out / "config.json"), AdaptConfig.changeable()
    check_same(out, before, record, may_change=may_change, option="--out")
    if ADAPTER_FILE not in names:
        return None
    written = read_json(out / ADAPTER_FILE)
    if reason := why_mistyped(written.get("summary"), AdaptSummary, "summary"):
        msg = f"{out / ADAPTER_FILE}: {reason}. Copy the whole folder again."
        raise DamagedFile(msg)
    return cast("AdaptSummary", written["summary"])


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
            raise OptionError(msg)


def _plan_training(config: AdaptConfig) -> DevicePlan:
    plan = plan_device(config.device, config.precision)
    # fp16 gradients would need loss scaling, so fp32 is used where bf16 is not supported.
    return plan_device(config.device, "fp32") if plan.precision == "fp16" else plan


def _write_adapter(out: Path, record: dict[str, Any], training: AdapterTraining) -> AdaptSummary:
    with replacing(out / ROWS_FILE) as partial:
        training.assignment.to_frame(training.pairs).to_parquet(partial, index=False)
    encoders: dict[str, dict[str, Any]] = {
        kind: _write_encoder(out, kind, training) for kind in training.config.kinds()
    }
    assignment, progress = training.assignment, training.progress
    uses = {
        "adapter": assignment.adapter, "head": assignment.head, "validation": assignment.validation,
    }  # fmt: skip
    summary = AdaptSummary(
        adapter=str(out),
        sides=encoders,
        pairs={use: len(rows) for use, rows in uses.items()},
        steps=progress.step,
        epochs=len(progress.epochs),
        best_epoch=progress.best_epoch,
        first_loss=progress.epochs[0]["loss"],
        last_loss=progress.epochs[-1]["loss"],
        best_validation_loss=progress.best_loss,
        seconds=round(progress.seconds, 3),
        resumed_from_step=training.resumed_from_step,
    )
    name = "-".join("".join(c if c.isalnum() else " " for c in out.resolve().name.lower()).split())
    content = {**ADAPTER_FORMAT, "name": name or "adapter", "sides": encoders, "options": record}
    write_json(out / ADAPTER_FILE, content | {"summary": summary})
    return summary


def _write_encoder(out: Path, kind: Kind, training: AdapterTraining) -> dict[str, Any]:
    make_folder(out / kind)
    encoder = training.model.adapted()[kind]
    best = {name: training.best[f"{kind}.encoder._model.{name}"] for name in encoder.factors()}
    weights, config = encoder.saved(best)
    write_bytes(out / kind / WEIGHTS_FILE, weights)
    write_json(out / kind / CONFIG_FILE, config, sort_keys=True)
    identity = training.identities[kind]
    base = str(identity.meaning["weights"])
    return {
        "encoder": identity.checkpoint.origin,
        "fingerprint": identity.fingerprint,
        "weights": base,
        "digest": adapter_digest(base, read_adapter_files(out, kind)),
        "trainable_parameters": training.parameter_counts()[kind],
    }


def describe_adapter(summary: AdaptSummary) -> str:
    lines = [
        f"{kind}: {side['encoder']}, {side['trainable_parameters']:,} trainable parameters, "
        f"adapter {side['digest'][:8]}"
        for kind, side in summary["sides"].items()
    ]
    best, pairs = summary["best_validation_loss"], summary["pairs"]
    lines.append(
        f"best of {counted(summary['epochs'], 'epoch')}: {summary['best_epoch']}, validation loss "
        f"{best:.4f}; trained on {counted(pairs['adapter'], 'pair')}, {pairs['head']} left for the "
        "head"
    )
    return "\n".join(lines)
