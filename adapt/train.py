"""``adapt_encoders``: a table and a split in, an adapter's folder out.

Pairs are divided between adapter and head, and those of the adapter into batches, by draws that
depend only on the split, the options and the seed. Every step that was saved survives an
interruption; on a CPU, a resumed adaptation equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import pandas as pd
import torch

from abag.adapt.config import AdaptConfig
from abag.adapt.model import AdaptationModel, fit_lora, import_peft, lora_choices
from abag.core.arrays import Ints, distinct
from abag.core.device import DevicePlan, plan_device
from abag.core.errors import DamagedFile, OptionError, SplitError, TrainingError
from abag.core.files import (
    check_same,
    is_begun,
    json_text,
    make_folder,
    only_writer,
    read_json,
    refuse_read_only,
    replacing,
    sweep_partials,
    write_bytes,
    write_json,
    write_text,
)
from abag.core.messages import counted, say
from abag.core.options import schema, why_mistyped
from abag.embed.encoders.identity import identify
from abag.embed.encoders.weights import ADAPTER_FORMAT, read_adapter_files
from abag.embed.store.shard import (
    ADAPTER_FILE,
    CONFIG_FILE,
    ROWS_FILE,
    WEIGHTS_FILE,
    adapter_digest,
)
from abag.embed.tables.chains import KINDS
from abag.embed.tables.options import ReferenceOptions, TableOptions
from abag.head.evaluation import metrics
from abag.head.labels.labelled_pairs import read_labelled_pairs, training_labels
from abag.head.labels.options import LabelOptions, PairColumnOptions, named_beside
from abag.head.models.network import one_sided_errors
from abag.head.models.probit import latent_labels
from abag.head.regimes.splits import (
    KEYS,
    REGIMES,
    TRAIN,
    VALIDATION,
    Split,
    grouped_folds,
    pair_keys,
    read_splits,
    split_frame,
)
from abag.head.runs.run_folder import SavedRun, read_run
from abag.head.training.networks import ResumableTraining, TrainingProgress, training_digest
from abag.head.training.stack import cosine_rates
from abag.head.training.tasks import Stage, Task, digest, run_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.embed.encoders.identity import Identity
    from abag.embed.tables.chains import Kind
    from abag.embed.tables.table import TableLike
    from abag.head.labels.labelled_pairs import LabelledPairs


BUCKET_BATCHES = 16
"""Batches whose pairs are sorted by length together."""
MAX_SHARES = 20
"""Parts into which the training groups are divided between adapter and head."""
OF_LAYOUT = frozenset(
    {
        "label",
        "no_binding",
        "no_binding_empty",
        *(option.name for option in schema(ReferenceOptions)),
    }
)
"""Options of reading that a run keeps in its layout, as it has resolved them."""
SAME_LABEL = 1e-3
"""Difference up to which two readings of a label are the same."""
ORDER = 0
"""Stream of the seed that orders the pairs of an epoch."""
ASSIGNMENT = 1
"""Stream of the seed that divides the training groups."""


@dataclass(frozen=True, slots=True)
class PairAssignment:
    """A split whose training pairs are divided between the adapter and the head."""

    split: Split
    adapter: Ints
    """Indices of the training pairs of the adapter."""
    head: Ints
    """Indices of the training pairs that the adapter does not see."""
    validation: Ints
    """Indices of the pairs that decide when to stop."""

    def to_frame(self, pairs: LabelledPairs) -> pd.DataFrame:
        """Return the split as ``--split file=`` reads it, with a column ``adapter``.

        Its values are ``train`` for pairs that trained the adapter, ``validation`` for those that
        decided when to stop, and empty for all others.
        """
        use = np.full(len(pairs), "", dtype=object)
        use[self.adapter] = "train"
        use[self.validation] = "validation"
        frame = split_frame(pairs, [replace(self.split, fold=0)])
        # With --replicates keep, or a bound beside a label, several rows are one pair.
        ids = np.stack([pairs.antibody, pairs.antigen])
        _, first_rows = np.unique(ids, axis=1, return_index=True)
        return frame.assign(adapter=use[np.sort(first_rows)])


def assign_pairs(
    pairs: LabelledPairs, config: AdaptConfig, saved: SavedRun | None = None
) -> PairAssignment:
    """Divide a split's training groups between adapter and head.

    The head must not rely on vectors that saw its labels. No group is divided. `saved` is the run
    that the split is of, if it is of one, whose labels have to be the same.

    Raises
    ------
    OptionError
        If the split does not exist, or has not the fold asked for.
    SplitError
        If its training or validation part is empty, if labels differ from those of the run, or if
        too few groups can be divided.
    """
    split = _read_split(pairs, config, saved)
    for part, name in ((TRAIN, "training"), (VALIDATION, "validation")):
        if not len(split.rows(part)):
            msg = (
                f"--split-from {config.split_from}: the {name} part is empty; expected at least "
                "one pair. Use another split."
            )
            raise SplitError(msg)
    training = split.rows(TRAIN)
    groups = split.group[training]
    share = config.head_share
    is_head = np.zeros(len(training), bool)
    if share > 0:
        folds = min(MAX_SHARES, len(distinct(groups)))
        if folds < 2:
            msg = (
                f"--head-share {share}: the {len(training)} training pairs form {folds} group, "
                "which cannot be divided between adapter and head. Use --head-share 0 and train "
                "the head with abag fit --adapter-rows train, or use another split."
            )
            raise SplitError(msg)
        fold = grouped_folds(groups, folds, [config.seed, ASSIGNMENT])
        head_folds = min(max(round(share * folds), 1), folds - 1)
        is_head = fold < head_folds
    return PairAssignment(split, training[~is_head], training[is_head], split.rows(VALIDATION))


def _read_split(pairs: LabelledPairs, config: AdaptConfig, saved: SavedRun | None) -> Split:
    path = Path(config.split_from)
    splits = read_splits(_split_file(path), pairs)
    if saved is not None:
        _refuse_other_labels(saved, pairs)
    if config.fold is None and len(splits) == 1:
        return splits[0]
    if config.fold is None or not 0 <= config.fold < len(splits):
        option = "--fold: not given" if config.fold is None else f"--fold {config.fold}"
        msg = (
            f"{option}; {path} has folds 0 to {len(splits) - 1}{_tested_by_folds(path)}; expected "
            "one of them, because an adapter belongs to one fold. Give its number."
        )
        raise OptionError(msg)
    return splits[config.fold]


def _split_file(path: Path) -> Path:
    """Return the file of a split, which may be given by the folder of its run."""
    file = path / "splits.parquet" if path.is_dir() else path
    if not file.exists():
        msg = (
            f"--split-from {file}: does not exist; expected a run folder, or a file like its "
            "splits.parquet. Check the path."
        )
        raise OptionError(msg)
    return file


def _run_of_split(path: Path) -> SavedRun | None:
    """Read the run that a split is of; None for a file."""
    _split_file(path)  # whose absence is told before the table lacks what the run says of it
    return read_run(path) if (path / "pairs.parquet").is_file() else None


def _read_as_in(saved: SavedRun, config: AdaptConfig) -> AdaptConfig:
    """Return options of reading with those of a run in place of those that were not given.

    What is not among these, its layout has. What is given and differs is reported.
    """
    of_run = {}
    for option in (*schema(LabelOptions), *schema(TableOptions)):
        name = option.name
        if name in OF_LAYOUT:
            continue
        before = option.parse(saved.config[name])
        given = getattr(config, name)
        if given == option.default:
            of_run[name] = before
        elif given != before:
            was = "not given" if before is None else f"{before}"
            say(f"{saved.run}: {option.flag} was {was}; {given} is used")
    return replace(config, **of_run)


def _read_pairs(table: TableLike, config: AdaptConfig, saved: SavedRun | None) -> LabelledPairs:
    """Read pairs and labels, where a split is of a run with the columns that joined its labels."""
    if saved is None:
        return read_labelled_pairs(table, config, config)
    # of a pair, categories keep measurements apart, errors and weights give the median
    joined = {name: saved.config[name] for name in ("categories", "error", "weight")}
    named = named_beside(PairColumnOptions(**joined))
    return read_labelled_pairs(table, config, config, saved.layout, named)


def _refuse_other_labels(saved: SavedRun, pairs: LabelledPairs) -> None:
    """Refuse labels that are read in another way than the run has read them."""
    run = saved.run
    # a pair may be several rows, here and in the run: a label is one of them
    labels = pair_keys(pairs).assign(pair=np.arange(len(pairs)), read=pairs.pkd)
    compared = labels.merge(saved.frame[[*KEYS, "pkd"]], "left", on=KEYS)
    is_equal = (compared["read"] - compared["pkd"]).abs() <= SAME_LABEL
    differs = ~is_equal.groupby(compared["pair"]).any().to_numpy()
    if differs.any():
        first = compared[compared["pair"] == differs.argmax()].iloc[0]
        msg = (
            f"--split-from {run}: {differs.sum():,} of {counted(len(pairs), 'label')} differ from "
            f"those of the run, such as {first['read']:.4g} and {first['pkd']:.4g}; expected "
            "the same. Leave out options of reading that differ from those of the run, or give "
            f"{run / 'splits.parquet'} to learn from others."
        )
        raise SplitError(msg)


def _tested_by_folds(run: Path) -> str:
    """Say which kind of new pairs each fold of a finished run tests; "" of anything else."""
    file = run / "predictions.parquet"
    if not file.is_file():
        return ""
    tested = pd.read_parquet(file, columns=["fold", "regime"])
    parts = []
    for regime, folds in tested.groupby("regime", sort=False)["fold"]:
        parts.append(f"{folds.min()} to {folds.max()}: {REGIMES[str(regime)].words}")
    return f" ({'; '.join(parts)})"


def batch_pairs(rows: Ints, lengths: Ints, config: AdaptConfig, epoch: int) -> list[Ints]:
    """Divide the pairs of an epoch into batches, one per step, of pairs of similar length.

    Parameters
    ----------
    rows : ndarray, dtype=int64
        Indices of the training pairs.
    lengths : ndarray, dtype=int64
        Tokens of every pair.
    epoch : int
        Number of the epoch; with the seed, it decides the order.
    """
    rng = np.random.default_rng([config.seed, ORDER, epoch])
    shuffled = rng.permutation(rows)
    size = config.batch_size
    bucket_size = BUCKET_BATCHES * size
    batches: list[Ints] = []
    for start in range(0, len(shuffled), bucket_size):
        bucket = shuffled[start : start + bucket_size]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


CLIP = 1.0
WEIGHT_DECAY = 0.01
INITIAL = 2
"""Stream of the seed for the initial weights."""
STEP = 3
"""Stream of the seed for the dropout of a step."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""Names of AdamW's state of a parameter."""


class AdaptSummary(TypedDict):
    """The keys of ``abag adapt --json``."""

    adapter: str
    """Folder of the adapter."""
    sides: dict[str, dict[str, Any]]
    """By kind: the ``encoder``, its ``fingerprint`` and the digest of its ``weights`` before, the
    ``digest`` of the adapter, and the number of ``trainable_parameters``."""
    pairs: dict[str, int]
    """Number of pairs: those of the ``adapter``, the ``head`` and the ``validation`` part."""
    steps: int
    epochs: int
    best_epoch: int
    """Epoch whose weights were kept, counted from 1."""
    first_loss: float
    last_loss: float
    best_validation_loss: float | None
    seconds: float
    resumed_from_step: int | None
    """None if the adaptation was not interrupted."""


@dataclass(slots=True, kw_only=True)
class AdapterProgress(TrainingProgress):
    """State of an adaptation that a checkpoint holds beside its tensors."""

    best_loss: float | None = None
    best_epoch: int = 0
    stale: int = 0
    """Epochs since the best one."""
    loss_sum: float = 0.0
    """Sum over the `loss_pairs` pairs of the current epoch so far."""
    loss_pairs: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """The lines of metrics.jsonl."""


class AdapterTraining(ResumableTraining):
    """Trains adapters and a regression head together, and keeps the best epoch's parameters."""

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
        self.out = out
        self.assignment = assignment
        self.identities = identities
        self.plan = plan
        self.config = config
        training_labels(pairs, assignment.adapter)  # raises for one class, which has no values
        pairs = replace(pairs, pkd=latent_labels(pairs, assignment.adapter).pkd)
        labels = training_labels(pairs, assignment.adapter)
        self.pairs = pairs
        self.mean = float(labels.mean())
        self.scale = float(labels.std())
        target = torch.from_numpy(((pairs.pkd - self.mean) / self.scale).astype(np.float32))
        self.target_P = target.to(plan.device)
        self.censored_P = torch.from_numpy(pairs.censored).to(plan.device)
        self._seed(INITIAL, 0)
        self.model = AdaptationModel(identities, pairs, assignment.adapter, plan, config)
        self.trainable = self.model.trainable()
        self.lengths = self.model.lengths()
        factors: dict[str, torch.nn.Parameter] = {}
        head: dict[str, torch.nn.Parameter] = {}
        for name, parameter in self.trainable.items():
            group = head if name.startswith("head.") else factors
            group[name] = parameter
        # The encoders' factors first, then the head: AdamW numbers its state in this order.
        self._names = [*factors, *head]
        groups = [{"params": [*factors.values()]}, {"params": [*head.values()]}]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY)
        self.best = self._copy_parameters()
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
        """Count the trainable parameters of each adapter."""
        counts: dict[Kind, int] = {}
        for kind, encoder in self.model.adapted().items():
            counts[kind] = sum(factor.numel() for factor in encoder.factors().values())
        return counts

    def _copy_parameters(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.trainable.items()}

    def _announce(self) -> None:
        assignment = self.assignment
        config = self.config
        adapter_pairs = counted(len(assignment.adapter), "pair")
        epochs = counted(config.epochs, "epoch")
        steps = counted(self.steps_per_epoch, "step")
        for kind, count in self.parameter_counts().items():
            name = self.identities[kind].checkpoint.name
            say(f"{kind}: {name} with {count:,} trainable parameters")
        say(
            f"{adapter_pairs} for the adapter, {len(assignment.head)} for the head, "
            f"{len(assignment.validation)} for validation; {epochs} of {steps}, "
            f"{config.batch_size} pairs per step; {self.plan.reason}, {self.plan.precision}"
        )

    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        rows = self.assignment.adapter
        self._batches = batch_pairs(rows, self.lengths, self.config, epoch)

    def _take_step(self, step_in_epoch: int) -> None:
        progress = self.progress
        rows = self._batches[step_in_epoch]
        total = self.epochs * self.steps_per_epoch
        peak_rates = (self.config.lr, self.config.head_lr)
        for group, peak_rate in zip(self.optimizer.param_groups, peak_rates, strict=True):
            group["lr"] = float(cosine_rates(progress.step, 1, total, peak_rate)[0])
        # a seed per step: a resumed adaptation draws the dropout of an uninterrupted one
        self._seed(STEP, progress.step)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._losses(rows, self.model(rows)).sum()
        (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self.trainable.values()), CLIP)
        self.optimizer.step()
        value = float(loss.detach())  # GPU sync
        progress.loss_sum += value
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
        progress.loss_sum = 0.0
        progress.loss_pairs = 0
        if progress.best_loss is None or validation_loss < progress.best_loss:
            progress.best_loss = validation_loss
            progress.best_epoch = epochs_done
            progress.stale = 0
            self.best = self._copy_parameters()
        else:
            progress.stale += 1
        spearman = scores["spearman"]
        shown = f", Spearman {spearman:.3f}" if spearman is not None else ""
        say(f"epoch {epochs_done}: loss {loss:.4f}, validation {validation_loss:.4f}{shown}")
        self.save()

    def _is_out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor.detach() for name, tensor in self.trainable.items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            name = self._names[i]
            tensors |= {f"adam.{name}.{key}": tensor for key, tensor in state.items()}
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
        moments: dict[int, dict[str, Tensor]] = {}
        for i, name in enumerate(self._names):
            moments[i] = {key: tensors[f"adam.{name}.{key}"] for key in MOMENTS}
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})

    def _losses(self, rows: NDArray[np.int64], predicted_B: Tensor) -> Tensor:
        rows_B = torch.from_numpy(rows).to(self.plan.device)
        errors_B = one_sided_errors(predicted_B, self.target_P[rows_B], self.censored_P[rows_B])
        return errors_B.square()

    @torch.no_grad()
    def _validate(self) -> tuple[float, metrics.Scores]:
        self.model.eval()
        rows = self.assignment.validation
        # by length, because a batch is padded to its longest pair
        order = rows[np.argsort(self.lengths[rows], kind="stable")]
        size = self.config.batch_size
        predictions = []
        for start in range(0, len(order), size):
            predictions.append(self.model(order[start : start + size]))
        predicted_V = torch.cat(predictions)
        loss = float(self._losses(order, predicted_V).mean())  # GPU sync
        pkd = predicted_V.double().cpu().numpy() * self.scale + self.mean
        pairs = self.pairs
        quantity = pairs.quantity
        measured = metrics.MeasuredRows.of(
            pairs.pkd[order], pairs.antigen[order], pairs.censored[order], quantity.sign
        )
        strong_pkd = metrics.STRONG_PKD if quantity.affinity else None
        return loss, measured.score(pkd, strong_pkd)

    def _seed(self, stream: int, number: int) -> None:
        state = np.random.SeedSequence([self.config.seed, stream, number]).generate_state(1)
        torch.manual_seed(int(state[0]))


def adapt_encoders(
    table: TableLike,
    out: Path | str,
    *,
    split_from: Path | str,
    **options: Any,  # noqa: ANN401 - the fields of AdaptConfig
) -> AdaptSummary:
    """Adapt encoders to the training pairs of a split, or resume an interrupted adaptation.

    An adaptation that was interrupted at any point and resumed ends like an uninterrupted one,
    bit for bit on a CPU.

    Parameters
    ----------
    table : path, DataFrame or list of these
        Pairs with a measured affinity.
    out : path
        Folder of the adapter; created if it does not exist.
    split_from : path
        A run folder, or a file like its splits.parquet.
    **options
        Fields of `AdaptConfig`.

    Raises
    ------
    AbagError
        If an option, the table, the split or the folder is invalid, before anything is written;
        or if training diverges or a file cannot be written.
    """
    config = AdaptConfig.from_keywords({**options, "split_from": split_from}, "adapt")
    out = Path(out)
    import_peft()
    saved = _run_of_split(Path(config.split_from))
    if saved is not None:
        config = _read_as_in(saved, config)
    if config.no_antigen:
        what = "--no-antigen"
        advice = "Leave it out"
        if saved is not None and saved.config["no_antigen"]:
            what = f"--split-from {saved.run}: a run of antibodies alone"
            advice = "Give the run of another table"
        msg = (
            f"{what}: abag adapt trains on pairs of an antibody and an antigen; expected an "
            f"antigen column or --antigen SEQ. {advice}."
        )
        raise OptionError(msg)
    plan = plan_device(config.device, config.precision)
    if plan.precision == "fp16":  # whose gradients would need loss scaling
        plan = plan_device(config.device, "fp32")
    pairs = _read_pairs(table, config, saved)
    say(pairs.reading.line)
    pairs.report_problems()
    assignment = assign_pairs(pairs, config, saved)
    identities = {kind: identify(config.encoder(kind), kind) for kind in KINDS}
    _refuse_unused_names(config, identities)
    record = _describe_inputs(config, pairs, assignment, identities)
    summary = _finished_summary(out, record)
    if summary is not None:
        say(f"{out}: nothing to do, this adapter is finished")
        return summary
    refuse_read_only(out)
    devices = range(torch.cuda.device_count())
    # the caller's random numbers go on as if nothing had been drawn here
    with only_writer(out), torch.random.fork_rng(devices=devices):
        training = AdapterTraining(out, pairs, assignment, identities, plan, config)
        make_folder(out / "checkpoints")
        sweep_partials(out)
        write_json(out / "config.json", record, sort_keys=True)
        run_tasks(Stage("adapt", [Task(training.run)], 1))
        return _write_adapter(out, record, training)


def _describe_inputs(
    config: AdaptConfig,
    pairs: LabelledPairs,
    assignment: PairAssignment,
    identities: Mapping[Kind, Identity],
) -> dict[str, Any]:
    labels = {"pkd": pairs.pkd.tolist(), "censored": pairs.censored.tolist()}
    text = assignment.to_frame(pairs).to_csv(index=False) + json.dumps(labels)
    record = config.to_json() | {
        "pairs": len(pairs),
        "label_column": pairs.reading.column,
        "label_unit": pairs.reading.unit,
        "pairs_digest": digest({}, text),
    }
    for kind, identity in identities.items():
        record[f"{kind}_fingerprint"] = identity.fingerprint
    return record


def _finished_summary(out: Path, record: dict[str, Any]) -> AdaptSummary | None:
    if not is_begun(out, "config.json", "adapter", "--out", besides=("checkpoints",)):
        return None
    before = read_json(out / "config.json")
    may_change = AdaptConfig.changeable()
    for kind in KINDS:  # a folder may be given by another path
        if before.get(f"{kind}_fingerprint") == record[f"{kind}_fingerprint"]:
            may_change |= {f"{kind}_encoder"}
    check_same(out, before, record, may_change, "--out")
    if not (out / ADAPTER_FILE).exists():
        return None
    written = read_json(out / ADAPTER_FILE)
    if reason := why_mistyped(written.get("summary"), AdaptSummary, "summary"):
        msg = f"{out / ADAPTER_FILE}: {reason}. Copy the whole folder again."
        raise DamagedFile(msg)
    return cast("AdaptSummary", written["summary"])


def _refuse_unused_names(config: AdaptConfig, identities: Mapping[Kind, Identity]) -> None:
    """Refuse a target or layer that neither encoder has; both share one list."""
    for kind in config.adapted_kinds():
        fit_lora(config, identities[kind].checkpoint)
    choices = [lora_choices(identities[kind].checkpoint) for kind in config.adapted_kinds()]
    for option, of_encoders in zip(("targets", "layers"), zip(*choices, strict=True), strict=True):
        names = dict.fromkeys(chain(*of_encoders))
        unused = set(getattr(config, option)).difference(names)
        if unused:
            msg = (
                f"--{option}: no adapted encoder has {min(unused)}; expected some of "
                f"{', '.join(map(str, names))}. Remove it."
            )
            raise OptionError(msg)


def _write_adapter(out: Path, record: dict[str, Any], training: AdapterTraining) -> AdaptSummary:
    with replacing(out / ROWS_FILE) as partial:
        training.assignment.to_frame(training.pairs).to_parquet(partial, index=False)
    encoders: dict[str, dict[str, Any]] = {}
    for kind in training.config.adapted_kinds():
        encoders[kind] = _write_encoder(out, kind, training)
    assignment = training.assignment
    progress = training.progress
    summary = AdaptSummary(
        adapter=str(out),
        sides=encoders,
        pairs={
            "adapter": len(assignment.adapter),
            "head": len(assignment.head),
            "validation": len(assignment.validation),
        },
        steps=progress.step,
        epochs=len(progress.epochs),
        best_epoch=progress.best_epoch,
        first_loss=progress.epochs[0]["loss"],
        last_loss=progress.epochs[-1]["loss"],
        best_validation_loss=progress.best_loss,
        seconds=round(progress.seconds, 3),
        resumed_from_step=training.resumed_from_step,
    )
    words = re.findall(r"[^\W_]+", out.resolve().name.lower())
    content = {
        **ADAPTER_FORMAT,
        "name": "-".join(words) or "adapter",
        "sides": encoders,
        "options": record,
        "summary": summary,
    }
    write_json(out / ADAPTER_FILE, content)  # last: a folder with this file is a whole adapter
    return summary


def _write_encoder(out: Path, kind: Kind, training: AdapterTraining) -> dict[str, Any]:
    make_folder(out / kind)
    encoder = training.model.adapted()[kind]
    best = {}
    for name in encoder.factors():
        best[name] = training.best[f"{kind}.encoder._model.{name}"]
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
    """Describe an adapter in a few lines, as ``abag adapt`` prints it."""
    lines = []
    for kind, side in summary["sides"].items():
        lines.append(
            f"{kind}: {side['encoder']}, {side['trainable_parameters']:,} trainable parameters, "
            f"adapter {side['digest'][:8]}"
        )
    pairs = summary["pairs"]
    lines.append(
        f"best of {counted(summary['epochs'], 'epoch')}: {summary['best_epoch']}, validation loss "
        f"{summary['best_validation_loss']:.4f}; trained on {counted(pairs['adapter'], 'pair')}, "
        f"{pairs['head']} left for the head"
    )
    options = [] if len(summary["sides"]) > 1 else ["--kind", *summary["sides"]]
    for kind, side in summary["sides"].items():
        options += [f"--{kind}-encoder", side["encoder"], f"--{kind}-adapter", summary["adapter"]]
    split = shlex.quote(f"file={summary['adapter']}/{ROWS_FILE}")
    lines.append(f"embed      abag embed TABLE --store DIR {shlex.join(options)}")
    lines.append(f"fit        abag fit TABLE --store DIR --run DIR --split {split}")
    return "\n".join(lines)
