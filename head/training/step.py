"""One optimiser step with static shapes, and the tables it draws from.

S steps of an epoch, A forward passes a step, B pairs a pass, P pairs, M heads that step together,
G feeds: orders of pairs, each read by M / G heads. One head has no axis of members or feeds:
its shapes, kernels and bits are those of a plain head. Several have one before B, and a step of all
is as many kernels as a step of one.

The step is a function of a cursor that lies on the device: it reads its rows, weights and
learning rate at the cursor, writes its loss at the cursor and moves it on. So every step is the
same sequence of kernels on the same addresses: eager on a CPU, and on a GPU one CUDA graph that
holds the whole step. All that goes in or comes out are buffers made here before the capture and
kept as long as the step. Nothing that the graph's own pool holds is ever handed out, so "accessing
tensor output of CUDAGraphs that has been overwritten" cannot come up: there is no such output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from abag.head.model.layers import bf16_copy, has_bf16_units
from abag.head.model.losses import LOSSES, PredictedPairs
from abag.head.model.optimizer import AdamW, stacked_update
from abag.head.model.vector_tables import pick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from abag.head.model.config import FitConfig
    from abag.head.model.vector_tables import TrainingPairs, VectorSource, VectorTables

ORDER, DROPOUT = 1, 2  # streams of the seed
COMBINED: dict[str, Any] = {"combo_kernels": True, "combo_kernel_allow_mixed_sizes": 0}
"""Compile small kernels that do not wait for each other into one: a stack has many."""


@dataclass(frozen=True, slots=True)
class EpochBatches:
    """The steps of an epoch: which pairs, in which order, with which weight."""

    rows_SAGB: NDArray[np.int64]
    weight_SAB: NDArray[np.float32]
    """1 / pairs of the step, so that a sum is the step's mean; 0 is padding."""


def steps_per_epoch(n_pairs: int, batch_size: int, accumulate: int) -> int:
    """Count optimiser steps, the last one possibly short."""
    return -(-n_pairs // (batch_size * accumulate))


def epoch_permutation(epoch: int, count: int) -> NDArray[np.int64]:
    """Put ``count`` places in the random order of an epoch; of fewer places it is the same order.

    Sorted random numbers that hold their places: as fast as a shuffle, and one sort serves feeds of
    every length.
    """
    random = np.random.default_rng([ORDER, epoch]).bit_generator.random_raw(count)
    keyed = (random << np.uint64(32)) | np.arange(count, dtype=np.uint64)
    keyed.sort()
    return (keyed & np.uint64(0xFFFFFFFF)).astype(np.int64)


def make_epoch_batches(
    feeds: Sequence[NDArray[np.int64]], epoch: int, batch_size: int, accumulate: int, take: int
) -> EpochBatches:
    """Order the training pairs of one epoch: a function of the epoch and nothing else.

    The same for every seed, so that heads of several seeds can read one feed.

    Parameters
    ----------
    feeds : sequence of NDArray, dtype=int64
        The training pairs of each feed.
    epoch : int
    batch_size, accumulate : int
        B and A. The last step is padded with pairs of weight 0, so every shape is the same.
    take : int
        Pairs in the epoch: the first of the order, which starts again where a feed is too short.

    Returns
    -------
    Plan
    """
    steps = steps_per_epoch(take, batch_size, accumulate)
    shape = (steps, accumulate, batch_size)
    places = np.prod(shape)
    whole = epoch_permutation(epoch, max(map(len, feeds)))
    rows_SAGB = np.empty((steps, accumulate, len(feeds), batch_size), np.int64)
    for g, training in enumerate(feeds):
        order = np.resize(whole[whole < len(training)], take)
        rows = np.full(places, training[order[0]])
        rows[:take] = training[order]
        rows_SAGB[:, :, g] = rows.reshape(shape)
    weight = (np.arange(places) < take).astype(np.float32).reshape(steps, -1)
    weight /= weight.sum(axis=1, keepdims=True)
    return EpochBatches(rows_SAGB, weight.reshape(shape))


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


class TrainingStep:
    """Model, optimiser and the buffers of one epoch.

    Parameters
    ----------
    model : nn.Module
        One head, or a stack of M.
    tables : Tables
    pairs : TrainingPairs
    config : FitConfig
        Loss, precision, clipping and how the step is compiled; the same for every member.
    decay_M : sequence of float
        Weight decay of each member.
    shape : tuple of int
        (S, A, B), or (S, A, G, B) of a stack.
    device : torch.device
    """

    def __init__(
        self,
        model: nn.Module,
        tables: VectorTables,
        pairs: TrainingPairs,
        config: FitConfig,
        decay_M: Sequence[float],
        shape: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.model, self.tables, self.pairs, self.config = model, tables, pairs, config
        self.device = device
        on_gpu = device.type == "cuda"
        steps, passes, *feeds, size = shape
        members = (len(decay_M),) if feeds else ()
        self.rows_SAB = torch.zeros(shape, dtype=torch.int64, device=device)
        self.weight_SAB = torch.zeros(steps, passes, size, device=device)
        self.rate_S = torch.zeros(steps, *members, device=device)
        self.loss_S = torch.zeros(steps, *members, device=device)
        # `torch.manual_seed` formats a traceback a call for devices that are not there: 0.2 ms
        self._seed = torch.cuda.manual_seed if on_gpu else torch.default_generator.manual_seed
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        # A tensor: a Python number would be baked into the graph.
        self.lr = torch.zeros(members, device=device)
        self.in_bf16 = uses_bf16(config, device, stacked=bool(members))
        self.working = bf16_copy(model) if self.in_bf16 and members else model
        self.optimizer = AdamW(model, decay_M, self.lr, config.clip, self.working)
        mode = config.compile if config.compile != "auto" else "full" if on_gpu else "off"
        fused = mode == "full"
        if fused:  # else the ninth training of a process is left uncompiled, without a word
            torch.compiler.reset()
        self._loss, self._update = self._loss_of, self.optimizer.update
        if fused:
            options = COMBINED if members else None
            self._loss = torch.compile(self._loss_of, dynamic=False, options=options)
        if members and (fused or self.in_bf16):
            self._update = self._stacked_update(compiled=fused)
        self._execute = self._captured() if on_gpu and mode != "off" else self._step

    def begin_epoch(self, plan: EpochBatches, rates_S: NDArray[np.float32], at: int) -> None:
        """Fill the buffers and put the cursor on step ``at`` of the epoch."""
        rows_SAB = plan.rows_SAGB.reshape(self.rows_SAB.shape)
        self.rows_SAB.copy_(torch.from_numpy(rows_SAB))
        self.weight_SAB.copy_(torch.from_numpy(plan.weight_SAB))
        self.rate_S.copy_(torch.from_numpy(rates_S))
        self.cursor.fill_(at)
        self.tables.begin(rows_SAB)

    def run(self, at: int, seed: int) -> None:
        """Take step ``at`` of the epoch; its dropout depends on ``seed`` alone."""
        self._seed(seed)
        self.tables.prepare(at)
        self._execute()

    def tensors(self) -> dict[str, Tensor]:
        """Return all that training changes, by name: the live tensors, not copies."""
        model = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        return model | {f"optimizer.{name}": t for name, t in self.optimizer.state.items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Put all that training changes back to what `tensors` once returned."""
        load_tensors(self.tensors(), saved)
        self.optimizer.refresh()

    def _loss_of(self, source: VectorSource, rows_SB: Tensor, weight_SB: Tensor) -> Tensor:
        rows_B = rows_SB.index_select(0, self.cursor)[0]
        weight_B = weight_SB.index_select(0, self.cursor)[0]
        antibody_BD, antigen_BE = source.read(self.pairs, rows_B)
        if rows_B.ndim > 1:  # from here on, each member its own
            rows_B = rows_B.repeat_interleave(len(self.lr) // len(rows_B), 0)
        autocast = self.in_bf16 and self.working is self.model
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            predicted_B = self.working(antibody_BD, antigen_BE)
        predicted = PredictedPairs(
            predicted_B,
            pick(self.pairs.target_P, rows_B),
            pick(self.pairs.censored_P, rows_B),
            pick(self.pairs.antigen_P, rows_B),
            weight_B,
            self.config.rank_scope,
        )
        losses_B = LOSSES[self.config.loss](predicted)
        return (losses_B * weight_B).sum(-1)

    def _step(self) -> None:
        self.lr.copy_(self.rate_S.index_select(0, self.cursor)[0])
        self.optimizer.clear()
        losses = []
        passes = list(zip(self.rows_SAB.unbind(1), self.weight_SAB.unbind(1), strict=True))
        for part, (rows_SB, weight_SB) in enumerate(passes):
            loss = self._loss(self.tables.take(part), rows_SB, weight_SB)
            # Members share no weights: the gradient of their sum is each one's own.
            loss.backward(torch.ones_like(loss))  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if len(passes) > 1:
                self.optimizer.collect()
        self._update()
        self.loss_S.index_copy_(0, self.cursor, reduce(torch.add, losses)[None])
        self.cursor.add_(1)

    def _stacked_update(self, *, compiled: bool) -> Callable[[], None]:
        """Update a stack by the formula; compiled, it is one pass over its tensors."""
        update: Callable[..., None] = stacked_update
        if compiled:
            update = torch.compile(stacked_update, dynamic=False, options=COMBINED)
        return lambda: update(*self.optimizer.arguments())

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
        with torch.cuda.graph(graph, stream=side):  # torch's own lies on the first GPU used
            self._step()
        self.load(before)
        return graph.replay


def uses_bf16(config: FitConfig, device: torch.device, *, stacked: bool) -> bool:
    """Tell whether products take bf16: if asked for, and by default for several heads on a GPU.

    One head is bound by launches and gains nothing; several are bound by their products and by
    the vectors and weights that they read.
    """
    if config.precision != "auto":
        return config.precision == "bf16"
    return stacked and has_bf16_units(device)


def load_tensors(live: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Copy saved values into live tensors, which stay where they are."""
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(saved[name])


def step_seed(seed: int, step: int) -> int:
    """Derive the seed of one step's dropout."""
    return int(np.random.SeedSequence([seed, DROPOUT, step]).generate_state(1, np.uint64)[0] >> 1)
