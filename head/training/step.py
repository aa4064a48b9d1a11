"""One optimizer step with static shapes, and the batches of an epoch.

S steps of an epoch, A batches per step, B pairs per batch, P pairs, M heads that step together, G
training sets, each read by M / G heads. One head has no axes of members or training sets, so its
shapes, kernels and bits are those of a plain head. Several heads have one before B, and a step of
all of them is as many kernels as a step of one.

The step reads its rows, weights and learning rate at a cursor on the device, writes its loss there
and advances the cursor. Every step is therefore the same sequence of kernels on the same addresses:
eager on a CPU, one CUDA graph on a GPU. Inputs and outputs are buffers allocated before the
capture, so a replay cannot overwrite a tensor that is still in use.

N antibodies with vectors of width D, M antigens with vectors of width E.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import embedding
from torch.optim.adamw import adamw

from abag.head.models.layers import supports_bf16, use_generator
from abag.head.models.losses import LOSSES, PredictedPairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from abag.head.models.config import Compile, FitConfig

CompiledMode = Literal["off", "graph", "full"]
PREDICTION_BATCH, CPU_PREDICTION_BATCH = 16384, 2048
"""Pairs per forward pass of a prediction, on a GPU and a CPU: 150 and 19 MB of inputs at the usual
widths, and as much for each layer."""
MAX_GRADIENT_NORM = 1.0
"""Of one head; larger gradients are scaled down to it."""
NORM_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


@dataclass(frozen=True, slots=True)
class TrainingPairs:
    """The pairs on the device; every tensor has shape (P,)."""

    antibody_P: Tensor
    """Index of the antibody, int64."""
    antigen_P: Tensor
    """Index of the antigen, int64."""
    target_P: Tensor
    """Standardized label, float32."""
    censored_P: Tensor
    """int8: -1 if the true value is below the label, +1 if above, 0 if exact."""


class VectorTables:
    """The vectors of all sequences, and the two that form each pair.

    Tables that do not fit on the device stay in host memory (`on_host`). Their steps run eagerly,
    because each batch is gathered there.
    """

    def __init__(
        self,
        antibody_ND: Tensor,
        antigen_ME: Tensor,
        pairs: TrainingPairs,
        device: torch.device,
        *,
        on_host: bool,
    ) -> None:
        self.device, self.on_host = device, on_host
        place = torch.device("cpu") if on_host else device
        self.tables = antibody_ND.to(place), antigen_ME.to(place)
        self.index = pairs.antibody_P.to(place), pairs.antigen_P.to(place)

    def read(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the vectors of pairs, shapes (B, D) and (B, E), on the device."""
        if self.on_host:
            rows_B = rows_B.cpu()  # GPU sync
        (antibody_ND, antigen_ME), (antibody_P, antigen_P) = self.tables, self.index
        antibody_BD = embedding(antibody_P[rows_B], antibody_ND)
        antigen_BE = embedding(antigen_P[rows_B], antigen_ME)
        return antibody_BD.to(self.device), antigen_BE.to(self.device)


@torch.no_grad()
def predict_rows(
    model: nn.Module,
    tables: VectorTables,
    rows: NDArray[np.int64],
    device: torch.device,
    members: int,
) -> NDArray[np.float32]:
    """Predict pairs in batches, without dropout: (members, R), in deviations of the labels.

    `rows` has shape (R,), or for stacked heads (G, R): the pairs of each training set's members.
    """
    training = model.training
    model.eval()
    batch = PREDICTION_BATCH if device.type == "cuda" else CPU_PREDICTION_BATCH
    size = max(1, batch // members)
    parts = [
        model(*tables.read(torch.from_numpy(rows[..., at : at + size]).to(device)))
        for at in range(0, max(1, rows.shape[-1]), size)
    ]
    model.train(training)
    scores: NDArray[np.float32] = torch.cat(parts, -1).cpu().numpy()  # GPU sync
    return scores.reshape(members, -1)


class AdamW:
    """AdamW with torch's fused kernel.

    The state is allocated at once and its addresses never change, as a CUDA graph requires. The
    class in ``torch.optim`` does the same, but imports torch._dynamo, which takes 1.3 s. The weight
    decay of each of M members is that of matrices, not of biases and norms; `lr` holds the rate of
    the current step, () or (M,). Members that are `alike` have the same rate and decay, so that one
    call of the kernel updates them all.
    """

    def __init__(
        self, model: nn.Module, decay_M: Sequence[float], lr: Tensor, *, alike: bool
    ) -> None:
        self.lr, self.stacked = lr, lr.ndim == 1
        self.named = dict(model.named_parameters())
        self.state = {
            f"{name}.{key}": torch.zeros(shape, device=p.device)
            for name, p in self.named.items()
            for key, shape in (("mean", p.shape), ("square", p.shape), ("step", lr.shape))
        }
        self.whole = not self.stacked or alike
        """Whether one call updates all members."""
        matrices = [name for name, p in self.named.items() if p.ndim - lr.ndim >= 2]
        rest = [name for name in self.named if name not in matrices]
        self.groups = [
            (member, names, decay if names is matrices else 0.0)
            for member, decay in enumerate(decay_M[:1] if self.whole else decay_M)
            for names in (matrices, rest)
        ]

    def clear(self) -> None:
        """Delete all gradients."""
        for p in self.named.values():
            p.grad = None

    @torch.no_grad()
    def update(self) -> None:
        """Clip and apply the gradients."""
        if self.stacked:
            clip_members([p.grad for p in self.named.values() if p.grad is not None])
        else:
            nn.utils.clip_grad_norm_(self.named.values(), MAX_GRADIENT_NORM)
        for member, names, decay in self.groups:
            steps = [self.state[f"{name}.step"] for name in names]
            adamw(
                self._of_member(member, (self.named[name] for name in names)),
                self._of_member(member, (self.named[name].grad for name in names)),
                self._of_member(member, (self.state[f"{name}.mean"] for name in names)),
                self._of_member(member, (self.state[f"{name}.square"] for name in names)),
                [],
                [step[member] for step in steps] if self.stacked else steps,
                fused=True,
                capturable=self.lr.is_cuda,
                amsgrad=False,
                maximize=False,
                lr=self.lr[member] if self.stacked else self.lr,
                beta1=0.9,
                beta2=0.999,
                weight_decay=decay,
                eps=1e-8,
            )
            if self.stacked and self.whole:  # the kernel counts one member's steps
                for step in steps:
                    step[1:] = step[0]

    def _of_member(self, member: int, tensors: Iterable[Tensor | None]) -> list[Tensor]:
        return [t if self.whole else t[member] for t in tensors if t is not None]


def clip_members(gradients: Sequence[Tensor]) -> None:
    """Clip each member's gradients, of shape (M, ...), in place by their norm."""
    norms = [vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    scale_M = (MAX_GRADIENT_NORM / (vector_norm(torch.stack(norms), dim=0) + NORM_EPS)).clamp(
        max=1.0
    )
    for gradient in gradients:
        gradient.mul_(scale_M.view(-1, *[1] * (gradient.ndim - 1)))


WARMUP = 0.05
"""Share of all steps in which the learning rate rises."""
ORDER, DROPOUT = 1, 2  # streams of the seed


@dataclass(frozen=True, slots=True)
class EpochBatches:
    """The batches of an epoch."""

    rows_SAGB: NDArray[np.int64]
    """Pairs."""
    weight_SAGB: NDArray[np.float32]
    """1 / pairs of the set's step, so that a sum is the step's mean; 0 for padding."""


def steps_per_epoch(n_pairs: int, batch_size: int, accumulate: int) -> int:
    """Count the optimizer steps of an epoch, of which the last may be incomplete."""
    return -(-n_pairs // (batch_size * accumulate))


def epoch_permutation(epoch: int, count: int) -> NDArray[np.int64]:
    """Return a random permutation of ``range(count)``, shape (count,), int64.

    That of a smaller count is the same without the numbers that are too large, so one permutation
    serves training sets of every size. Sorting random numbers with the index in their low bits is
    as fast as a shuffle.
    """
    random = np.random.default_rng([ORDER, epoch]).bit_generator.random_raw(count)
    keyed = (random << np.uint64(32)) | np.arange(count, dtype=np.uint64)
    keyed.sort()
    return (keyed & np.uint64(0xFFFFFFFF)).astype(np.int64)


def make_epoch_batches(
    training_sets: Sequence[NDArray[np.int64]],
    epoch: int,
    batch_size: int,
    accumulate: int,
    epoch_pairs: Sequence[int],
) -> EpochBatches:
    """Order the training pairs of an epoch.

    The order depends on the epoch alone, so heads with different seeds can read the same batches.
    Each set gives the first `epoch_pairs` of its order, which is repeated if it is shorter; all
    give the same number of steps. The last step is padded with pairs of weight 0.
    """
    steps = steps_per_epoch(epoch_pairs[0], batch_size, accumulate)
    shape = (steps, accumulate, batch_size)
    size = np.prod(shape)
    permutation = epoch_permutation(epoch, max(map(len, training_sets)))
    sets, weights = [], []
    for training, n_pairs in zip(training_sets, epoch_pairs, strict=True):
        order = np.resize(permutation[permutation < len(training)], n_pairs)
        rows = np.full(size, training[order[0]])
        rows[:n_pairs] = training[order]
        sets.append(rows.reshape(shape))
        weight = (np.arange(size) < n_pairs).astype(np.float32).reshape(steps, -1)
        weight /= weight.sum(axis=1, keepdims=True)
        weights.append(weight.reshape(shape))
    return EpochBatches(np.stack(sets, axis=2), np.stack(weights, axis=2))


def cosine_rates(first: int, count: int, total: int, lr: float) -> NDArray[np.float32]:
    """Return the rates, (count,), of the steps of `total` from `first` on.

    A linear rise to the peak `lr`, then half a cosine.
    """
    step = np.arange(first, first + count) + 1.0
    rising = max(1.0, round(WARMUP * total))
    fallen = np.clip((step - rising) / max(1.0, total + 1 - rising), 0, 1)
    return np.float32(lr) * np.where(
        step < rising, step / rising, 0.5 * (1 + np.cos(np.pi * fallen))
    ).astype(np.float32)


class TrainingStep:
    """A step of one head or of several: model, optimizer and the buffers of an epoch.

    The weight decay is that of each member; the shape is (S, A, B), of stacked heads (S, A, G, B).
    Products are in bf16 with `in_bf16`. Members that are `alike` have the same learning rate and
    weight decay.
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
        *,
        in_bf16: bool,
        alike: bool,
    ) -> None:
        self.model, self.tables, self.pairs, self.config = model, tables, pairs, config
        self.device = device
        on_gpu = device.type == "cuda"
        steps, _, *training_sets, _ = shape
        members = (len(decay_M),) if training_sets else ()
        self.rows_SAB = torch.zeros(shape, dtype=torch.int64, device=device)
        self.weight_SAB = torch.zeros(shape, device=device)
        self.rate_S = torch.zeros(steps, *members, device=device)
        self.loss_S = torch.zeros(steps, *members, device=device)
        self.owns_generator = bool(members) and not on_gpu and config.compile != "full"
        """Whether steps draw from a generator of their own, not from torch's."""
        generator = torch.Generator() if self.owns_generator else torch.default_generator
        # torch.manual_seed also tries every other kind of device, which takes 0.2 ms per call.
        self._seed = torch.cuda.manual_seed if on_gpu else generator.manual_seed
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        # A tensor: a Python number would be a constant of the graph.
        self.lr = torch.zeros(members, device=device)
        self.in_bf16 = in_bf16
        if self.owns_generator:
            use_generator(model, generator)
        self.optimizer = AdamW(model, decay_M, self.lr, alike=alike)
        self.mode: CompiledMode = "off" if tables.on_host else choose_mode(config.compile, device)
        self._prepared = False
        # An eager step is a method, which would keep this object in memory if it were kept here.
        self._compiled_loss: Callable[..., Tensor] | None = None
        self._replay: Callable[[], None] | None = None

    def _prepare(self) -> None:
        """Compile and capture the step, as far as its mode says."""
        if self.mode == "full":
            torch.compiler.reset()  # or torch silently runs the ninth training eagerly
            self._compiled_loss = torch.compile(self._batch_loss, dynamic=False)
        if self.device.type == "cuda" and self.mode != "off":
            self._replay = self._captured()
        self._prepared = True

    def begin_epoch(
        self, batches: EpochBatches, rates_S: NDArray[np.float32], first_step: int
    ) -> None:
        """Fill the buffers and set the cursor; learning rates have shape (S,) or (S, M)."""
        rows_SAB = batches.rows_SAGB.reshape(self.rows_SAB.shape)
        self.rows_SAB.copy_(torch.from_numpy(rows_SAB))
        weight_SAB = batches.weight_SAGB.reshape(self.weight_SAB.shape)
        self.weight_SAB.copy_(torch.from_numpy(weight_SAB))
        self.rate_S.copy_(torch.from_numpy(rates_S))
        self.cursor.fill_(first_step)

    def run(self, seed: int) -> None:
        """Take the step at the cursor; `seed` determines its dropout."""
        if not self._prepared:
            self._prepare()
        self._seed(seed)
        (self._replay or self._step)()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name: the live tensors, not copies."""
        model = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        return model | {f"optimizer.{name}": t for name, t in self.optimizer.state.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        load_tensors(self.tensors(), saved)

    def _batch_loss(self, rows_SB: Tensor, weight_SB: Tensor) -> Tensor:
        """Return the loss of a batch of the step at the cursor, shape () or (M,)."""
        rows_B = rows_SB.index_select(0, self.cursor)[0]
        weight_B = weight_SB.index_select(0, self.cursor)[0]
        vectors = self.tables.read(rows_B)  # here, so that the compiler fuses it
        if rows_B.ndim > 1:  # from (G, B) to (M, B)
            heads = len(self.lr) // len(rows_B)
            rows_B, weight_B = (x.repeat_interleave(heads, 0) for x in (rows_B, weight_B))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16):
            predicted_B = self.model(*vectors)
        predicted = PredictedPairs(
            predicted_B,
            self.pairs.target_P[rows_B],
            self.pairs.censored_P[rows_B],
            self.pairs.antigen_P[rows_B],
            weight_B,
        )
        return (LOSSES[self.config.loss](predicted) * weight_B).sum(-1)

    def _step(self) -> None:
        self.lr.copy_(self.rate_S.index_select(0, self.cursor)[0])
        self.optimizer.clear()
        losses, batch_loss = [], self._compiled_loss or self._batch_loss
        batches = zip(self.rows_SAB.unbind(1), self.weight_SAB.unbind(1), strict=True)
        for rows_SB, weight_SB in batches:
            loss = batch_loss(rows_SB, weight_SB)
            # Members share no weights, so the gradient of the sum is that of each member's loss.
            # With a gradient as its argument, backward would import sympy.
            (loss.sum() if loss.ndim else loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self.optimizer.update()
        self.loss_S.index_copy_(0, self.cursor, reduce(torch.add, losses)[None])
        self.cursor.add_(1)

    def _captured(self) -> Callable[[], None]:
        """Capture the whole step as a CUDA graph and undo the warm-up."""
        before = {name: t.clone() for name, t in self.tensors().items()}
        first_step = self.cursor.clone()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
                self.cursor.zero_()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # torch's default capture stream belongs to the first GPU that was used.
        with torch.cuda.graph(graph, stream=stream):
            self._step()
        self.load(before)
        self.cursor.copy_(first_step)
        return graph.replay


def uses_bf16(config: FitConfig, device: torch.device, *, stacked: bool) -> bool:
    """Whether products are in bf16: on request, and by default for several heads on a GPU.

    A step of one head is bound by kernel launches and gains nothing; a step of several is bound by
    products and memory traffic.
    """
    if config.precision != "auto":
        return config.precision == "bf16"
    return stacked and supports_bf16(device)


def choose_mode(requested: Compile, device: torch.device) -> CompiledMode:
    """Choose how steps run: by default as one CUDA graph on a GPU, and eagerly on a CPU."""
    if requested == "auto":
        return "graph" if device.type == "cuda" else "off"
    return requested


def load_tensors(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into live tensors of the same names and shapes, in place."""
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(saved[name])


def step_seed(seed: int, step: int) -> int:
    """Derive the seed of a step's dropout."""
    return int(np.random.SeedSequence([seed, DROPOUT, step]).generate_state(1, np.uint64)[0] >> 1)
