"""One optimiser step with static shapes, and the tables it draws from.

S steps of an epoch, A forward passes a step, B pairs a pass, P pairs, N sequences, D/E widths.

The step is a function of a cursor that lies on the device: it reads its rows, weights and
learning rate at the cursor, writes its loss at the cursor and moves it on. So every step is the
same sequence of kernels on the same addresses: eager on a CPU, and on a GPU one CUDA graph that
holds the whole step. All that goes in or comes out are buffers made here before the capture and
kept as long as the step. Nothing that the graph's own pool holds is ever handed out, so "accessing
tensor output of CUDAGraphs that has been overwritten" cannot come up: there is no such output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from abag.head.model import pair_losses

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from abag.head.config import FitConfig
    from abag.head.placement import Tables, TrainingPairs

ORDER, DROPOUT = 1, 2  # streams of the seed


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of an epoch: which pairs, in which order, with which weight."""

    rows_SAB: NDArray[np.int64]
    weight_SAB: NDArray[np.float32]
    """1 / pairs of the step, so that a sum is the step's mean; 0 is padding."""


def steps_an_epoch(n_pairs: int, batch_size: int, accumulate: int) -> int:
    """Count optimiser steps, the last one possibly short."""
    return -(-n_pairs // (batch_size * accumulate))


def plan_epoch(
    training: NDArray[np.int64], seed: int, epoch: int, batch_size: int, accumulate: int
) -> Plan:
    """Order the training pairs of one epoch: a function of (seed, epoch) and nothing else.

    Parameters
    ----------
    training : NDArray, shape=(T,), dtype=int64
        The training pairs.
    seed, epoch : int
    batch_size, accumulate : int
        B and A. The last step is padded with pairs of weight 0, so every shape is the same.

    Returns
    -------
    Plan
    """
    steps = steps_an_epoch(len(training), batch_size, accumulate)
    shape = (steps, accumulate, batch_size)
    order = np.random.default_rng([seed, ORDER, epoch]).permutation(len(training))
    rows = np.full(np.prod(shape), training[order[0]], dtype=np.int64)
    rows[: len(order)] = training[order]
    weight = (np.arange(len(rows)) < len(order)).astype(np.float32).reshape(steps, -1)
    weight /= weight.sum(axis=1, keepdims=True)
    return Plan(rows.reshape(shape), weight.reshape(shape))


def cosine_rates(
    first: int, count: int, total: int, warmup: float, lr: float
) -> NDArray[np.float32]:
    """Learning rate of steps ``first`` to ``first + count`` of ``total``: a rise, then a cosine."""
    step = np.arange(first, first + count) + 1.0
    rising = max(1.0, round(warmup * total))
    fallen = np.clip((step - rising) / max(1.0, total + 1 - rising), 0, 1)
    return np.float32(lr) * np.where(
        step < rising, step / rising, 0.5 * (1 + np.cos(np.pi * fallen))
    ).astype(np.float32)


class AdamW:
    """torch's fused AdamW, by its functional form.

    The whole state exists from the start, at addresses that never change, which a CUDA graph
    needs; and the class in ``torch.optim`` would import torch._dynamo, 2 s before the first step.
    """

    def __init__(self, model: nn.Module, weight_decay: float, lr: Tensor) -> None:
        self.lr = lr
        self.named = dict(model.named_parameters())
        # Decay shrinks matrices; biases and norms have no scale to shrink.
        self.decays = (
            {
                weight_decay: [name for name, p in self.named.items() if p.ndim >= 2],
                0.0: [name for name, p in self.named.items() if p.ndim < 2],
            }
            if weight_decay
            else {0.0: list(self.named)}
        )
        self.state = {
            f"{name}.{key}": torch.zeros(shape, device=p.device)
            for name, p in self.named.items()
            for key, shape in (("mean", p.shape), ("square", p.shape), ("step", ()))
        }

    @torch.no_grad()
    def update(self) -> None:
        """Apply the gradients."""
        for decay, names in self.decays.items():
            adamw(
                [self.named[n] for n in names],
                [g for n in names if (g := self.named[n].grad) is not None],
                [self.state[f"{n}.mean"] for n in names],
                [self.state[f"{n}.square"] for n in names],
                [],
                [self.state[f"{n}.step"] for n in names],
                fused=True,
                capturable=self.lr.is_cuda,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.lr,  # a tensor, as torch.optim.AdamW passes it
                weight_decay=decay,
                eps=1e-8,
                maximize=False,
            )


class Stepper:
    """Model, optimiser and the buffers of one epoch."""

    def __init__(
        self,
        model: nn.Module,
        tables: Tables,
        pairs: TrainingPairs,
        config: FitConfig,
        shape_SAB: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        self.model, self.tables, self.pairs, self.config = model, tables, pairs, config
        self.device = device
        self.rows_SAB = torch.zeros(shape_SAB, dtype=torch.int64, device=device)
        self.weight_SAB = torch.zeros(shape_SAB, device=device)
        self.rate_S = torch.zeros(shape_SAB[0], device=device)
        self.loss_S = torch.zeros(shape_SAB[0], device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        # A 0-d tensor: a Python number would be baked into the graph.
        self.lr = torch.zeros((), device=device)
        self.optimizer = AdamW(model, config.filled().weight_decay, self.lr)
        on_gpu = device.type == "cuda"
        mode = config.compile if config.compile != "auto" else "full" if on_gpu else "off"
        fused = mode == "full"
        self._loss = torch.compile(self._loss_of, dynamic=False) if fused else self._loss_of
        self._run = self._captured() if on_gpu and mode != "off" else self._step

    def begin_epoch(self, plan: Plan, rates_S: NDArray[np.float32], at: int) -> None:
        """Fill the buffers and put the cursor on step ``at`` of the epoch."""
        self.rows_SAB.copy_(torch.from_numpy(plan.rows_SAB))
        self.weight_SAB.copy_(torch.from_numpy(plan.weight_SAB))
        self.rate_S.copy_(torch.from_numpy(rates_S))
        self.cursor.fill_(at)
        self.tables.begin(plan.rows_SAB)

    def step(self, at: int, seed: int) -> None:
        """Take step ``at`` of the epoch; its dropout depends on ``seed`` alone."""
        torch.manual_seed(seed)
        self.tables.prepare(at)
        self._run()

    def tensors(self) -> dict[str, Tensor]:
        """Return all that training changes, by name: the live tensors, not copies."""
        model = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        return model | {f"optimizer.{name}": t for name, t in self.optimizer.state.items()}

    def _loss_of(
        self,
        antibody_BD: Tensor,
        antigen_BE: Tensor,
        target_B: Tensor,
        censored_B: Tensor,
        antigen_B: Tensor,
        weight_B: Tensor,
    ) -> Tensor:
        bf16 = self.config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            predicted_B = self.model(antibody_BD, antigen_BE)
        losses_B = pair_losses(
            self.config.loss, self.config.rank_scope, predicted_B, target_B, censored_B, antigen_B,
            weight_B,
        )  # fmt: skip
        return (losses_B * weight_B).sum()

    def _step(self) -> None:
        rows_AB = self.rows_SAB.index_select(0, self.cursor)[0]
        weight_AB = self.weight_SAB.index_select(0, self.cursor)[0]
        self.lr.copy_(self.rate_S.index_select(0, self.cursor)[0])
        for parameter in self.model.parameters():
            parameter.grad = None
        losses = []
        for part, (rows_B, weight_B) in enumerate(zip(rows_AB, weight_AB, strict=True)):
            loss = self._loss(
                *self.tables.take(part, rows_B),
                self.pairs.target_P.index_select(0, rows_B),
                self.pairs.censored_P.index_select(0, rows_B),
                self.pairs.antigen_P.index_select(0, rows_B),
                weight_B,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.update()
        self.loss_S.index_copy_(0, self.cursor, torch.stack(losses).sum(0, keepdim=True))
        self.cursor.add_(1)

    def _captured(self) -> Callable[[], None]:
        """Record the whole step as one CUDA graph, leaving no trace of the warm-up."""
        before = {name: t.clone() for name, t in self.tensors().items()}
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
                self.cursor.zero_()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        load_tensors(self.tensors(), before)
        return graph.replay


def load_tensors(live: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Copy saved values into live tensors, which stay where they are."""
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(saved[name])


def step_seed(seed: int, step: int) -> int:
    """Derive the seed of one step's dropout."""
    return int(np.random.SeedSequence([seed, DROPOUT, step]).generate_state(1, np.uint64)[0] >> 1)
