"""The training of adapters and their regression head, resumable to the step."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from abag.adapt.config import AdaptConfig
from abag.adapt.model import AdaptationModel
from abag.adapt.pairs import AdapterSplit, make_epoch_batches, steps_per_epoch
from abag.core.device import DevicePlan
from abag.core.files import write_text
from abag.head.data.labels import LabelledPairs, training_labels
from abag.head.evaluation import metrics
from abag.head.model.heads import pair_losses
from abag.head.training import checkpoint
from abag.head.training.loop import LossNotFinite, signals_held_back
from abag.head.training.step import cosine_rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from abag.embed.encoders.loading import Identity
    from abag.embed.sequences.chains import Kind

WARMUP = 0.05
CLIP = 1.0
WEIGHT_DECAY = 0.01
_INITIAL, _STEP = 2, 3  # streams of the seed, beside those of pairs.py


@dataclass(slots=True)
class AdapterProgress:
    """Where training stands: the part of a checkpoint that is not tensors."""

    step: int = 0
    best_loss: float | None = None
    best_epoch: int = 0
    stale: int = 0
    """Epochs since the best one."""
    loss_sum: float = 0.0
    """Of the epoch so far, over `loss_pairs`."""
    loss_pairs: int = 0
    seconds: float = 0.0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """A line of metrics.jsonl for each finished epoch."""


class AdapterTraining:
    """One adapter in the making."""

    def __init__(
        self,
        out: Path,
        pairs: LabelledPairs,
        parts: AdapterSplit,
        identities: dict[str, Identity],
        plan: DevicePlan,
        config: AdaptConfig,
        say: Callable[[str], None],
    ) -> None:
        self.out, self.pairs, self.parts, self.config = out, pairs, parts, config
        self.identities, self.plan, self.say = identities, plan, say
        labels = training_labels(pairs, parts.adapter)
        self.mean, self.scale = float(labels.mean()), float(labels.std())
        target = torch.from_numpy(((pairs.pkd - self.mean) / self.scale).astype(np.float32))
        self.target_P = target.to(plan.device)
        self.censored_P = torch.from_numpy(pairs.censored).to(plan.device)
        self._seed(_INITIAL, 0)
        self.model = AdaptationModel(identities, pairs, parts.adapter, plan, config)
        self.learning = self.model.learning()
        self.lengths = self.model.lengths()
        self.steps = steps_per_epoch(len(parts.adapter), config)
        heads = {f"head.{name}" for name, _ in self.model.head.named_parameters()}
        self.optimiser = torch.optim.AdamW(
            [
                {"params": [p for n, p in self.learning.items() if (n in heads) == is_head]}
                for is_head in (False, True)
            ],
            weight_decay=WEIGHT_DECAY,
        )
        self.progress = AdapterProgress()
        self.best = {n: p.detach().clone() for n, p in self.learning.items()}
        self.resumed_from_step = self._restore()
        self.started = time.monotonic() - self.progress.seconds

    def trainable(self) -> dict[str, int]:
        """Count what learns, by kind of encoder."""
        return {
            kind: sum(p.numel() for p in encoder.factors().values())
            for kind, encoder in self.model.adapted().items()
        }

    def best_factors(self, kind: Kind) -> dict[str, torch.Tensor]:
        """Return what one encoder learned up to the best epoch, by the encoder's own names."""
        names = self.model.adapted()[kind].factors()
        return {name: self.best[f"{kind}.encoder._model.{name}"] for name in names}

    def run(self, *, bar: bool) -> None:
        """Train what is left."""
        self._announce()
        total = self.config.epochs * self.steps
        drawn = tqdm(
            total=total,
            initial=self.progress.step,
            unit="step",
            desc=self.out.name,
            disable=not bar,
        )
        with drawn, signals_held_back() as held:
            while not held and not self._is_done():
                self._run_epoch(drawn, held)
            if held:
                self._save()
        # the held signal, if any, has been raised by now

    def _announce(self) -> None:
        parts, config = self.parts, self.config
        for kind, count in self.trainable().items():
            name = self.identities[kind].checkpoint.name
            self.say(f"{kind}: {name} with {count:,} trainable parameters")
        self.say(
            f"{len(parts.adapter)} pairs for the adapter, {len(parts.head)} left to the head, "
            f"{len(parts.validation)} for validation; {config.epochs} epochs of {self.steps} steps "
            f"of {config.batch_size} x {config.accumulate} pairs; {self.plan.why}, "
            f"{self.plan.precision}"
        )
        if self.resumed_from_step is not None:
            self.say(f"going on from step {self.resumed_from_step}")

    def _is_done(self) -> bool:
        stopped = 0 < self.config.patience <= self.progress.stale
        return stopped or self.progress.step >= self.config.epochs * self.steps

    def _run_epoch(self, bar: tqdm[Any], held: list[int]) -> None:
        """Take the rest of the current epoch's steps, or stop between two when signalled."""
        epoch, first = divmod(self.progress.step, self.steps)
        plan = make_epoch_batches(self.parts.adapter, self.lengths, self.config, epoch)
        for at, batches in enumerate(plan):
            if at < first:
                continue
            self._step(batches)
            if at == self.steps - 1:
                self._end_epoch(epoch + 1)
            if at == self.steps - 1 or self.progress.step % self.config.save_every == 0:
                self._save()
            bar.update()
            if held:
                return

    def _step(self, batches: list[NDArray[np.int64]]) -> None:
        progress, config = self.progress, self.config
        total = config.epochs * self.steps
        for group, lr in zip(self.optimiser.param_groups, (config.lr, config.head_lr), strict=True):
            group["lr"] = float(cosine_rates(progress.step, 1, total, WARMUP, lr)[0])
        self._seed(_STEP, progress.step)
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        pairs = sum(map(len, batches))
        loss_sum = torch.zeros((), device=self.plan.device)
        for rows in batches:
            loss = self._losses(rows).sum()
            (loss / pairs).backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.detach()
        torch.nn.utils.clip_grad_norm_(list(self.learning.values()), CLIP)
        self.optimiser.step()
        progress.step += 1
        progress.loss_sum += (value := float(loss_sum))  # GPU sync
        progress.loss_pairs += pairs
        if not np.isfinite(value):
            msg = (
                f"{self.out}: the loss is {value} at step {progress.step}; expected a number. The "
                "last checkpoint is kept. Try a lower --lr in another --out, or --precision fp32."
            )
            raise LossNotFinite(msg)

    def _losses(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Square each pair's error, one-sided where its label is a bound; shape (B,)."""
        rows_B = torch.from_numpy(rows).to(self.plan.device)
        censored_B = self.censored_P[rows_B]
        return pair_losses(
            "mse", "batch", self.model(rows), self.target_P[rows_B], censored_B,
            rows_B, torch.ones_like(self.target_P[rows_B]),
        )  # fmt: skip

    def _end_epoch(self, done: int) -> None:
        """Score the validation pairs and keep the weights if they are the best so far."""
        progress, rows = self.progress, self.parts.validation
        loss, scores = self._validate(rows)
        progress.seconds = time.monotonic() - self.started
        line = {
            "epoch": done,
            "step": progress.step,
            "loss": progress.loss_sum / progress.loss_pairs,
            "validation_loss": loss,
            "validation": scores,
            "seconds": round(progress.seconds, 3),
        }
        progress.epochs.append(line)
        progress.loss_sum, progress.loss_pairs = 0.0, 0
        if progress.best_loss is None or loss < progress.best_loss:
            progress.best_loss, progress.best_epoch, progress.stale = loss, done, 0
            self.best = {n: p.detach().clone() for n, p in self.learning.items()}
        else:
            progress.stale += 1
        self.say(
            f"epoch {done}: loss {line['loss']:.4f}, validation {loss:.4f}"
            + (f", Spearman {scores['spearman']:.3f}" if scores["spearman"] is not None else "")
        )

    @torch.no_grad()
    def _validate(self, rows: NDArray[np.int64]) -> tuple[float, metrics.Scores]:
        self.model.eval()
        order = rows[np.argsort(self.lengths[rows], kind="stable")]
        size = self.config.batch_size
        scored = [self.model(order[at : at + size]) for at in range(0, len(order), size)]
        predicted_V = torch.cat(scored)
        at_V = torch.from_numpy(order).to(self.plan.device)
        losses_V = pair_losses(
            "mse", "batch", predicted_V, self.target_P[at_V], self.censored_P[at_V], at_V,
            torch.ones_like(predicted_V),
        )  # fmt: skip
        pairs, pkd = self.pairs, predicted_V.double().cpu().numpy() * self.scale + self.mean
        scores = metrics.score(pairs.pkd[order], pkd, pairs.antigen[order], pairs.censored[order])
        return float(losses_V.mean()), scores

    def _seed(self, stream: int, number: int) -> None:
        """Fix every random draw to come."""
        state = np.random.SeedSequence([self.config.seed, stream, number]).generate_state(1)
        torch.manual_seed(int(state[0]))

    # --- checkpoints ---

    def _tensors(self) -> dict[str, torch.Tensor]:
        names = [
            n for g in self.optimiser.param_groups for p in g["params"] for n in [self._name(p)]
        ]
        moments = self.optimiser.state_dict()["state"]
        return (
            {f"model.{n}": p.detach() for n, p in self.learning.items()}
            | {f"best.{n}": p for n, p in self.best.items()}
            | {f"adam.{names[i]}.{k}": v for i, one in moments.items() for k, v in one.items()}
        )

    def _name(self, parameter: torch.nn.Parameter) -> str:
        return next(n for n, p in self.learning.items() if p is parameter)

    def _save(self) -> None:
        """Commit the state, then show it in metrics.jsonl."""
        self.progress.seconds = time.monotonic() - self.started
        checkpoint.save_rotating(self.out / "checkpoints", self._tensors(), asdict(self.progress))
        self.show_log()

    def show_log(self) -> None:
        """Write metrics.jsonl: a line for each epoch of the newest checkpoint."""
        lines = "".join(json.dumps(line) + "\n" for line in self.progress.epochs)
        write_text(self.out / "metrics.jsonl", lines)

    def _restore(self) -> int | None:
        """Take up the newest whole checkpoint."""
        found = checkpoint.load_newest(self.out / "checkpoints", self.say)
        if found is None:
            return None
        self.progress = AdapterProgress(**found.state)
        moments = self.optimiser.state_dict()
        with torch.no_grad():
            for name, parameter in self.learning.items():
                parameter.copy_(found.tensors[f"model.{name}"])
                self.best[name] = found.tensors[f"best.{name}"].to(parameter.device)
        flat = [self._name(p) for g in self.optimiser.param_groups for p in g["params"]]
        moments["state"] = {
            i: {k: found.tensors[f"adam.{n}.{k}"] for k in ("step", "exp_avg", "exp_avg_sq")}
            for i, n in enumerate(flat)
        }
        self.optimiser.load_state_dict(moments)
        return self.progress.step
