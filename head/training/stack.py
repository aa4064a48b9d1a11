"""Heads of one shape that train in one step: their tables, batches, learning rates and step.

Member k has the weights of a single run with ``--seed`` seed + k, and its own bootstrap sample. The
tables hold all pairs once per fold, standardised for it: pair p of fold f is row p + f P. A step
reads rows and rates at a cursor on the device, so it is the same kernels on the same addresses: one
CUDA graph on a GPU.

S steps of an epoch, A batches per step, B pairs per batch, P pairs, N of them in training or N
antibodies of width D, M heads or M antigens of width E, G training sets, F folds, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from abag.core.arrays import label_weights
from abag.core.errors import DamagedFile
from abag.core.messages import detail
from abag.head.models.network import LOSSES, AdamW, Mlp, NetworkModel, PredictedPairs
from abag.head.models.pair_vectors import FeatureScaling, NetworkSettings, Standardizer
from abag.head.regimes.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from abag.embed.tables.chains import Kind
    from abag.head.models.config import Compile, FitConfig
    from abag.head.models.pair_vectors import Labels, PairVectors
    from abag.head.regimes.splits import Split


# streams of the seed, beside those of networks.py and sweep.py
ORDER = 1
DROPOUT = 2
INITIAL = 3
BOOTSTRAP = 5
WARMUP = 0.05
"""Share of all steps in which the learning rate rises."""
CompiledMode = Literal["off", "graph", "full"]
PREDICTION_BATCH = 16384
"""Pairs per forward pass of a prediction on a GPU: 150 MB of inputs at the usual widths, and as
much for each layer."""
CPU_PREDICTION_BATCH = 2048
"""Pairs per forward pass of a prediction on a CPU: 19 MB of inputs."""
MAX_TABLE_BYTES = 2**30
"""Largest size of the vectors of a stack on a GPU, which holds them once per fold."""
MAX_CPU_BYTES = 2**26
"""Largest size, on a CPU, of all that a stack holds: vectors, weights, gradients, two moments and
best weights. Larger stacks are not faster there."""


def make_training_sets(config: FitConfig, split: Split) -> list[NDArray[np.int64]]:
    """Return all training pairs, shape (N,), as one set, or a bootstrap sample per head."""
    training = split.rows(TRAIN)
    if config.members == 1:
        return [training]
    seeds = range(config.seed, config.seed + config.members)
    return [draw_bootstrap_sample(training, split.group[training], seed) for seed in seeds]


def draw_bootstrap_sample(
    rows: NDArray[np.int64], group: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Draw as many groups as there are, with replacement; repeat each row as often as its group."""
    _, dense = np.unique(group, return_inverse=True)
    n_groups = int(dense.max()) + 1
    drawn = np.random.default_rng([seed, BOOTSTRAP]).integers(0, n_groups, n_groups)
    return np.repeat(rows, np.bincount(drawn, minlength=n_groups)[dense])


def steps_per_epoch(n_pairs: int, batch_size: int, accumulate: int) -> int:
    """Return the optimizer steps that take every pair once; the last may be smaller."""
    return -(-n_pairs // (batch_size * accumulate))


def epoch_permutation(epoch: int, count: int) -> NDArray[np.int64]:
    """Return a random permutation, (count,); without its larger numbers that of a smaller count."""
    # as fast as a shuffle: random numbers are sorted with the index in their low bits
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
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Order the training pairs of an epoch: rows and weights, (S, A, G, B) each.

    The order depends on the epoch alone. A sum with the weights is a step's mean; padding has 0.
    """
    steps = steps_per_epoch(epoch_pairs[0], batch_size, accumulate)
    shape = (steps, accumulate, batch_size)
    size = np.prod(shape)
    permutation = epoch_permutation(epoch, max(map(len, training_sets)))
    sets = []
    weights = []
    for training, n_pairs in zip(training_sets, epoch_pairs, strict=True):
        order = np.resize(permutation[permutation < len(training)], n_pairs)
        rows = np.full(size, training[order[0]])
        rows[:n_pairs] = training[order]
        sets.append(rows.reshape(shape))
        weight = (np.arange(size) < n_pairs).astype(np.float32).reshape(steps, -1)
        weight /= weight.sum(axis=1, keepdims=True)
        weights.append(weight.reshape(shape))
    return np.stack(sets, axis=2), np.stack(weights, axis=2)


def cosine_rates(first: int, count: int, total: int, lr: float) -> NDArray[np.float32]:
    """Return the rates, (count,), from a step on: a linear rise to `lr`, then half a cosine."""
    step = np.arange(first, first + count) + 1.0
    rising = max(1.0, round(WARMUP * total))
    fallen = np.clip((step - rising) / max(1.0, total + 1 - rising), 0, 1)
    cosine = 0.5 * (1 + np.cos(np.pi * fallen))
    share = np.where(step < rising, step / rising, cosine).astype(np.float32)
    return np.float32(lr) * share


@dataclass(frozen=True, slots=True)
class PairStandardizer:
    """Convert stored vectors to inputs, and outputs to pKd."""

    sides: Mapping[Kind, Standardizer]
    pkd_mean: float
    """Mean of the training labels, in pKd."""
    pkd_scale: float
    """Standard deviation of the training labels, in pKd."""
    features: FeatureScaling | None = None
    """Scaling of the features of pairs; None: there are none."""

    @classmethod
    def of(
        cls, labels: Labels, training: NDArray[np.int64], vectors: PairVectors
    ) -> PairStandardizer:
        """Fit the scaling to the training rows, (R,), alone."""
        pkd = labels.pkd[training[labels.censored[training] == 0]]
        sides = {}
        for kind, side in vectors.sides.items():
            sides[kind] = Standardizer.of(side.x_ND, side.index[training], side.widths)
        scaling = cls(sides, pkd_mean=float(pkd.mean()), pkd_scale=float(pkd.std()))
        if vectors.features is None:
            return scaling
        return replace(scaling, features=FeatureScaling.of(vectors.features.take(training)))

    def model(self, widths: tuple[int, ...], weights: Mapping[str, Tensor]) -> NetworkModel:
        """Return the model of one head, which predicts pKd from stored vectors."""
        settings = NetworkSettings(widths, self.pkd_mean, self.pkd_scale)
        return NetworkModel.of(settings, weights, self.sides, self.features)


class PairTables:
    """Hold the vectors of all sequences and the pairs, on the device as far as they fit.

    Parameters
    ----------
    vectors : sequence of NDArray, dtype=float32
        Standardised antibodies, (N, D), and antigens, (M, E). They stay on the host if they are too
        large for the device.
    index : sequence of NDArray, shape=(P,), dtype=int64
        Row of the antibody, and of the antigen, of each pair.
    target : NDArray, shape=(P,), dtype=float32
        Label or bound in standard deviations.
    censored : NDArray, shape=(P,), dtype=int8, or None
        -1 if the label is below its bound, 1 if above, 0 if exact; None: all that train are exact.
    device : torch.device
        Where the steps run.
    features : NDArray, shape=(P, K), dtype=float32, optional
        Scaled features of the pairs.
    """

    def __init__(
        self,
        vectors: Sequence[NDArray[np.float32]],
        index: Sequence[NDArray[np.int64]],
        target: NDArray[np.float32],
        censored: NDArray[np.int8] | None,
        device: torch.device,
        features: NDArray[np.float32] | None,
    ) -> None:
        needed_bytes = sum(x_ND.nbytes for x_ND in vectors)
        self.device = device
        self.on_host = not fit_on_device(needed_bytes, device)
        if device.type != "cpu":
            where = "host" if self.on_host else device
            detail(f"vectors: {needed_bytes / 2**20:.0f} MiB on the {where}")
        place = torch.device("cpu") if self.on_host else device
        self.vectors = [torch.from_numpy(x_ND).to(place) for x_ND in vectors]
        self.index = [torch.from_numpy(index_P).to(place) for index_P in index]
        self.target_P = torch.from_numpy(target).to(device)
        self.censored_P = None if censored is None else torch.from_numpy(censored).to(device)
        self.antigen_P = self.index[1].to(device)
        self.features_PK = None if features is None else torch.from_numpy(features).to(place)

    def read(self, rows_GB: Tensor) -> tuple[Tensor, ...]:
        """Gather the vectors of pairs, (G, B, D) and (G, B, E), and any features, (G, B, K)."""
        if self.on_host:
            rows_GB = rows_GB.cpu()  # GPU sync
        gathered = []
        for index_P, x_ND in zip(self.index, self.vectors, strict=True):
            gathered.append(embedding(index_P[rows_GB], x_ND).to(self.device))
        if self.features_PK is not None:
            gathered.append(embedding(rows_GB, self.features_PK).to(self.device))
        return tuple(gathered)


def fit_on_device(needed_bytes: int, device: torch.device) -> bool:
    """Return whether tables of so many bytes leave enough of a device's memory to the steps."""
    # half of a GPU's free memory, as steps need the rest; a CPU has them in memory already
    return device.type != "cuda" or needed_bytes <= torch.cuda.mem_get_info(device)[0] / 2


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a step's dropout, a non-negative number of 63 bits."""
    (state,) = np.random.SeedSequence([seed, DROPOUT, step]).generate_state(1, np.uint64)
    return int(state >> 1)


class TrainingStep:
    """Take steps of the heads: model, optimizer and the buffers of an epoch, (S, A, G, B).

    `shape` is that of the buffers. With `alike`, all heads have the same learning rate and weight
    decay.
    """

    def __init__(
        self,
        model: Mlp,
        tables: PairTables,
        config: FitConfig,
        decay_M: Sequence[float],
        shape: tuple[int, int, int, int],
        *,
        in_bf16: bool,
        alike: bool,
    ) -> None:
        device = tables.device
        members = len(decay_M)
        self.model = model
        self.tables = tables
        self.config = config
        self.in_bf16 = in_bf16
        self.device = device
        self.rows_SAGB = torch.zeros(shape, dtype=torch.int64, device=device)
        self.weight_SAGB = torch.zeros(shape, device=device)
        self.rate_SM = torch.zeros(shape[0], members, device=device)
        self.loss_SM = torch.zeros(shape[0], members, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        # A tensor: a Python number would be a constant of the graph.
        self.lr_M = torch.zeros(members, device=device)
        # torch.manual_seed also tries every other kind of device, which takes 0.2 ms per call.
        self._seed: Callable[[int], object] = torch.cuda.manual_seed
        if device.type != "cuda":  # other threads train meanwhile
            generator = torch.Generator()
            model.use_generator(generator)
            self._seed = generator.manual_seed
        self.optimizer = AdamW(model, decay_M, self.lr_M, alike=alike)
        self.mode: CompiledMode = "off" if tables.on_host else choose_mode(config.compile, device)
        self._prepared = False
        # An eager step is a method, which would keep this object in memory if it were kept here.
        self._compiled_loss: Callable[..., Tensor] | None = None
        self._replay: Callable[[], None] | None = None

    def run(self, seed: int) -> None:
        """Take the step at the cursor; `seed` determines its dropout."""
        if not self._prepared:
            self._prepared = True
            if self.mode == "full":
                torch.compiler.reset()  # or torch silently runs the ninth training eagerly
                self._compiled_loss = torch.compile(self._batch_loss, dynamic=False)
            if self.device.type == "cuda" and self.mode != "off":
                self._replay = self._captured()
        self._seed(seed)
        (self._replay or self._step)()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name: the live tensors, not copies."""
        model = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        optimizer = {f"optimizer.{name}": t for name, t in self.optimizer.tensors().items()}
        return {**model, **optimizer, "losses": self.loss_SM}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Copy saved tensors into those of `tensors`; raise `DamagedFile` if a shape differs."""
        load_tensors(self.tensors(), saved)

    def _batch_loss(self, rows_SGB: Tensor, weight_SGB: Tensor) -> Tensor:
        """Return the losses of a batch of the step at the cursor, (M,)."""
        rows_B = rows_SGB.index_select(0, self.cursor)[0]
        weight_B = weight_SGB.index_select(0, self.cursor)[0]
        vectors = self.tables.read(rows_B)  # here, so that the compiler fuses it
        heads = len(self.lr_M) // len(rows_B)
        rows_B = rows_B.repeat_interleave(heads, 0)
        weight_B = weight_B.repeat_interleave(heads, 0)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16):
            predicted_B = self.model(*vectors)
        censored_P = self.tables.censored_P
        predicted = PredictedPairs(
            predicted_B,
            self.tables.target_P[rows_B],
            None if censored_P is None else censored_P[rows_B],
            self.tables.antigen_P[rows_B],
            weight_B,
        )
        return (LOSSES[self.config.loss](predicted) * weight_B).sum(-1)

    def _step(self) -> None:
        self.lr_M.copy_(self.rate_SM.index_select(0, self.cursor)[0])
        self.optimizer.clear()
        batch_loss = self._compiled_loss or self._batch_loss
        losses = []
        batches = zip(self.rows_SAGB.unbind(1), self.weight_SAGB.unbind(1), strict=True)
        for rows_SGB, weight_SGB in batches:
            loss_M = batch_loss(rows_SGB, weight_SGB)
            # Members share no weights, so the gradient of the sum is that of each member's loss.
            # With a gradient as its argument, backward would import sympy.
            loss_M.sum().backward()  # type: ignore[no-untyped-call]
            losses.append(loss_M.detach())
        self.optimizer.update()
        self.loss_SM.index_copy_(0, self.cursor, reduce(torch.add, losses)[None])
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
    """Return whether matrix products are in bfloat16; `stacked`: a step has several heads."""
    if config.precision != "auto":
        return config.precision == "bf16"
    # a step of one head is bound by kernel launches; older GPUs have no units for bf16
    on_gpu = stacked and device.type == "cuda"
    return on_gpu and torch.cuda.get_device_capability(device)[0] >= 8


def choose_mode(requested: Compile, device: torch.device) -> CompiledMode:
    """Return how steps run on a device; what ``auto`` means depends on it."""
    if device.type == "cpu":  # compiling takes 40 s there, and saves little
        return "off"
    return "graph" if requested == "auto" else requested


def load_tensors(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into live tensors in place: graphs keep their addresses.

    Raises
    ------
    DamagedFile
        If a tensor is missing or has another shape.
    """
    with torch.no_grad():
        for name, tensor in live.items():
            if name not in saved or saved[name].shape != tensor.shape:
                shape = tuple(saved[name].shape) if name in saved else "missing"
                msg = (
                    f"checkpoint: {name} is {shape}; expected {tuple(tensor.shape)}. Do the "
                    "vectors in the store have another width now? Restore them, or use another "
                    "folder."
                )
                raise DamagedFile(msg)
            tensor.copy_(saved[name])


class StackedHeads:
    """Hold M heads, their shared step, and the pairs and vectors that it uses.

    `labels` are those of each fold; training sets and members are in the order of folds.
    """

    def __init__(
        self,
        labels: Sequence[Labels],
        vectors: PairVectors,
        scalings: Sequence[PairStandardizer],
        training_sets: Sequence[NDArray[np.int64]],
        members: Sequence[FitConfig],
        *,
        epoch_pairs: Sequence[int],
        device: torch.device,
    ) -> None:
        self.device = device
        config = members[0]
        self.config = config
        self._scalings = scalings
        self._training_sets = training_sets
        self._epoch_pairs = epoch_pairs
        self._members = members
        self.batch_size, self.accumulate = config.fitting_batch(epoch_pairs[0])
        self.steps = steps_per_epoch(epoch_pairs[0], self.batch_size, self.accumulate)
        self.epochs = config.filled().epochs
        folds = range(len(scalings))
        sets_per_fold = len(training_sets) // len(scalings)
        self._first_rows = np.repeat([fold * len(vectors) for fold in folds], sets_per_fold)
        of_sets = np.repeat(folds, sets_per_fold)
        has_bounds = any(
            labels[fold].censored[rows].any()
            for fold, rows in zip(of_sets, training_sets, strict=True)
        )
        self.tables = _join_folds(labels, vectors, scalings, device, has_bounds=has_bounds)
        share = labels[0].share
        self.weight_P = None if share is None else np.tile(label_weights(share), len(scalings))
        self._inputs = sum(side.x_ND.shape[1] for side in vectors.sides.values())
        if self.tables.features_PK is not None:
            self._inputs += self.tables.features_PK.shape[1]
        seeds = []
        for member in members:
            sequence = np.random.SeedSequence([member.seed, INITIAL])
            seeds.append(int(sequence.generate_state(1)[0]))
        self._make_step(folds, seeds)

    def _make_step(self, folds: Sequence[int], seeds: Sequence[int] = ()) -> None:
        """Make the model and the step of some folds; without `seeds`, its weights are not set."""
        self.folds = tuple(folds)
        self.scalings = [self._scalings[fold] for fold in folds]
        sets = self._of_folds(len(self._training_sets))
        self.training_sets = [self._training_sets[at] for at in sets]
        self.epoch_pairs = [self._epoch_pairs[at] for at in sets]
        self.first_row_G = self._first_rows[sets]
        members = [self._members[at] for at in self.heads]
        self.members = [member.filled() for member in members]
        dropouts = [member.dropout for member in self.members]
        widths = self.config.filled().widths
        model = Mlp(self._inputs, widths, dropouts, of_stack=len(self._members) > 1)
        if seeds:
            model.draw(seeds)
        self.model = model.to(self.device)
        optimizer_settings = {(member.lr, member.weight_decay) for member in self.members}
        # Folds are in the precision of separate training.
        in_bf16 = uses_bf16(self.config, self.device, stacked=len(members) > len(folds))
        decays = [member.weight_decay for member in self.members]
        shape = (self.steps, self.accumulate, len(sets), self.batch_size)
        self.training_step = TrainingStep(
            self.model,
            self.tables,
            self.config,
            decays,
            shape,
            in_bf16=in_bf16,
            alike=len(optimizer_settings) == 1,
        )

    @property
    def heads(self) -> NDArray[np.int64]:
        """Return the numbers of the heads that train, among those of all folds."""
        return self._of_folds(len(self._members))

    def _of_folds(self, total: int) -> NDArray[np.int64]:
        """Return which of so many sets or heads of all folds belong to the folds that train."""
        of_fold = np.arange(total).reshape(len(self._scalings), -1)
        return of_fold[list(self.folds)].reshape(-1)

    def keep_folds(self, folds: Sequence[int], *, with_state: bool) -> None:
        """Train only these folds from now on; without their state, it has to be loaded."""
        heads = self.heads
        state = self.training_step.tensors()
        self._make_step(folds)
        if not with_state:
            return
        kept = torch.from_numpy(np.searchsorted(heads, self.heads)).to(self.device)
        kept_state = {}
        for name, tensor in state.items():
            head_axis = 1 if name == "losses" else 0
            kept_state[name] = tensor.detach().index_select(head_axis, kept)
        self.training_step.load(kept_state)

    def begin_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Fill the buffers of the step with the batches and rates of an epoch."""
        total = self.epochs * self.steps
        first = epoch * self.steps
        step = self.training_step
        sets = []
        for training_set, first_row in zip(self.training_sets, self.first_row_G, strict=True):
            sets.append(training_set + first_row)
        rows_SAGB, weight_SAGB = make_epoch_batches(
            sets, epoch, self.batch_size, self.accumulate, self.epoch_pairs
        )
        if self.weight_P is not None:
            weight_SAGB = weight_SAGB * self.weight_P[rows_SAGB].astype(np.float32)
        rates_MS = [cosine_rates(first, self.steps, total, member.lr) for member in self.members]
        step.rows_SAGB.copy_(torch.from_numpy(rows_SAGB))
        step.weight_SAGB.copy_(torch.from_numpy(weight_SAGB))
        step.rate_SM.copy_(torch.from_numpy(np.stack(rates_MS, axis=1)))
        step.cursor.fill_(first_step)

    @torch.no_grad()
    def predict(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Predict rows, (R,) or (G, R) if they differ between training sets: pKd, (M, R)."""
        rows_GR = np.atleast_2d(rows)
        if self.first_row_G.any():
            rows_GR = rows_GR + self.first_row_G[:, None]
        members = len(self.members)
        batch = PREDICTION_BATCH if self.device.type == "cuda" else CPU_PREDICTION_BATCH
        size = max(1, batch // members)
        training = self.model.training
        self.model.eval()
        scores = []
        for at in range(0, max(1, rows_GR.shape[1]), size):
            rows_GB = torch.from_numpy(rows_GR[:, at : at + size]).to(self.device)
            scores.append(self.model(*self.tables.read(rows_GB)))
        self.model.train(training)
        scores_MR = torch.cat(scores, -1).cpu().numpy()  # GPU sync
        units = np.array([(scaling.pkd_scale, scaling.pkd_mean) for scaling in self.scalings])
        scale_M, mean_M = np.repeat(units, members // len(self.scalings), axis=0).T
        return np.asarray(scores_MR.astype(np.float64) * scale_M[:, None] + mean_M[:, None])

    def predict_parts(self, parts: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
        """Predict other rows, (R,), for each part of the members, (M / parts, R)."""
        if len(parts) == 1:
            return [self.predict(parts[0])]
        longest = max(map(len, parts))
        sets_per_part = len(self.training_sets) // len(parts)
        rows_GR = np.stack([np.resize(rows, longest) for rows in parts]).repeat(sets_per_part, 0)
        predicted_parts = np.split(self.predict(rows_GR), len(parts))
        return [
            predicted_MR[:, : len(rows)]
            for predicted_MR, rows in zip(predicted_parts, parts, strict=True)
        ]


def _join_folds(
    labels: Sequence[Labels],
    vectors: PairVectors,
    scalings: Sequence[PairStandardizer],
    device: torch.device,
    *,
    has_bounds: bool,
) -> PairTables:
    """Standardise the table for each fold, and join the folds: pair p of fold f is row p + f P."""
    vectors_of_sides = []
    index = []
    for kind, side in vectors.sides.items():
        vectors_of_sides.append(_join([fold.sides[kind].apply(side.x_ND) for fold in scalings]))
        index.append(_join([side.index + n * len(side.x_ND) for n in range(len(scalings))]))
    targets = []
    for of_fold, scaling in zip(labels, scalings, strict=True):
        targets.append((of_fold.pkd - scaling.pkd_mean) / scaling.pkd_scale)
    target = _join(targets).astype(np.float32)
    censored = _join([of_fold.censored for of_fold in labels]) if has_bounds else None
    features = None
    if vectors.features is not None:
        scalers = [scaling.features for scaling in scalings if scaling.features is not None]
        features = _join([scaler.apply(vectors.features) for scaler in scalers])
    return PairTables(vectors_of_sides, index, target, censored, device, features)


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def folds_per_stack(config: FitConfig, vectors: PairVectors, cpu: bool) -> int:
    """Return how many folds train in one step at most."""
    tables = [side.x_ND for side in vectors.sides.values()]
    table_bytes = sum(int(x_ND.nbytes) for x_ND in tables)
    if not cpu:  # as many as possible: its steps are bound by kernel launches
        return max(1, MAX_TABLE_BYTES // table_bytes)
    inputs = sum(x_ND.shape[1] for x_ND in tables)
    widths = config.filled().widths
    weights: int = sum((inner + 3) * outer for inner, outer in pairwise((inputs, *widths)))
    weight_bytes = 4 * (weights + widths[-1] + 1)
    return max(1, MAX_CPU_BYTES // (table_bytes + 5 * weight_bytes))


def group_folds(splits: Sequence[Split], config: FitConfig, size: int) -> list[list[int]]:
    """Group the folds whose steps have the same shapes, at most `size` each, divided evenly."""
    one_by_one = config.members > 1  # several heads are a stack already
    groups: dict[tuple[int, ...], list[int]] = {}
    for fold, split in enumerate(splits):
        n_pairs = len(split.rows(TRAIN))
        batch = config.fitting_batch(n_pairs)
        shape = (*batch, steps_per_epoch(n_pairs, *batch))
        key = (fold,) if one_by_one else shape
        groups.setdefault(key, []).append(fold)
    stacks = []
    for group in groups.values():
        n_stacks = -(-len(group) // size)
        stacks += [stack.tolist() for stack in np.array_split(group, n_stacks)]
    return stacks
