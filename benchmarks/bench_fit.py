"""Measure the training speed of a head: eager and compiled, old notebooks.

    python benchmarks/bench_fit.py --out benchmarks/results            # on the GPU of this machine
    python benchmarks/bench_fit.py --out DIR --tiny                   # seconds, on a CPU

Vectors are random and have the real widths (1024 and 1280): speed does not depend on their values.
Writes fit_HARDWARE_DATE.md and .json.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from abag.core.device import resolve_device
from abag.head.labels.labelled_pairs import LabelledPairs
from abag.head.models.config import PRESETS, FitConfig
from abag.head.models.pair_vectors import PairVectors, SideVectors
from abag.head.regimes.splits import Split
from abag.head.training.networks import HeadTraining, TrainingInputs, torch_settings, train
from abag.head.training.stack import step_seed


@dataclass(frozen=True)
class Size:
    """The amount of training, and the time for which it is measured."""

    pairs: int
    antibodies: int
    antigens: int
    antibody_width: int
    antigen_width: int
    timed_s: float
    epochs: int


REAL = Size(160_000, 100_000, 2_000, 1024, 1280, timed_s=3.0, epochs=50)
TINY = Size(600, 200, 20, 32, 40, timed_s=0.2, epochs=2)


@dataclass(frozen=True)
class Row:
    """One measured way to train."""

    way: str
    batch: str
    first_step_s: float
    steps_s: float
    pairs_s: float
    epoch_s: float
    busy: float | None = None
    """Share of the time in which a kernel runs; the rest is gaps between kernels."""


def make_pairs(size: Size, seed: int = 0) -> tuple[LabelledPairs, np.ndarray, np.ndarray]:
    """Draw a table of distinct pairs and its vectors."""
    rng = np.random.default_rng(seed)
    flat = rng.choice(size.antibodies * size.antigens, size.pairs, replace=False)
    pairs = LabelledPairs(
        antibody=flat // size.antigens,
        antigen=flat % size.antigens,
        pkd=rng.normal(8, 1.5, size.pairs),
        censored=np.zeros(size.pairs, np.int8),
        row=np.arange(size.pairs),
        table=SimpleNamespace(source="drawn", row_numbers=np.arange(size.pairs) + 1),
        measurements=np.ones(size.pairs, np.int64),
        noise=None,
    )
    antibody_ND = rng.standard_normal((size.antibodies, size.antibody_width), dtype=np.float32)
    antigen_ME = rng.standard_normal((size.antigens, size.antigen_width), dtype=np.float32)
    return pairs, antibody_ND, antigen_ME


def random_split(n_pairs: int) -> Split:
    """Split distinct pairs 8:1:1."""
    place = np.random.default_rng(0).permutation(n_pairs)
    part = np.searchsorted([0.8 * n_pairs, 0.9 * n_pairs], place, side="right").astype(np.int8)
    return Split(name="random", part=part, group=np.arange(n_pairs))


def make_task(inputs, config: FitConfig, device: torch.device, folder: Path) -> TrainingInputs:
    """Set up a training outside of any run folder."""
    pairs, antibody_ND, antigen_ME = inputs
    return TrainingInputs(
        pairs=pairs,
        vectors=PairVectors(
            {
                "antibody": SideVectors(antibody_ND, pairs.antibody),
                "antigen": SideVectors(antigen_ME, pairs.antigen),
            }
        ),
        splits=[random_split(len(pairs))],
        labels=[pairs],
        config=config,
        device=device,
        folder=folder,
    )


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(way: str, inputs, size: Size, device: torch.device, **options) -> Row:
    """Time steps alone: no validation, log or checkpoint."""
    config = FitConfig(**{"head": "mlp", "epochs": 1000} | options)
    with tempfile.TemporaryDirectory() as folder, torch_settings(device, config):
        task = make_task(inputs, config, device, Path(folder))
        task.folder.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        training = HeadTraining(task)
        runner = Runner(training, config)
        runner.take(1)
        synchronize(device)
        first_s = time.perf_counter() - begun
        runner.take(20)
        synchronize(device)
        steps = 0
        begun = time.perf_counter()
        while (seconds := time.perf_counter() - begun) < size.timed_s:
            runner.take(20)
            synchronize(device)
            steps += 20
        busy = busy_share(runner, device)
    in_step = training.stack.epoch_pairs[0] / training.steps_per_epoch
    filled = config.filled()
    return Row(
        way,
        f"{filled.batch_size} x {filled.accumulate}",
        first_s,
        steps / seconds,
        steps / seconds * in_step,
        training.steps_per_epoch / (steps / seconds),
        busy,
    )


class Runner:
    """Takes steps, epoch after epoch."""

    def __init__(self, training: HeadTraining, config: FitConfig) -> None:
        self.training = training
        self.config = config
        self.done = 0

    def take(self, steps: int) -> None:
        """Take some steps."""
        training = self.training
        for _ in range(steps):
            epoch, at = divmod(self.done, training.steps_per_epoch)
            if at == 0:
                training.stack.begin_epoch(epoch)
            training.training_step.run(step_seed(0, self.done))
            self.done += 1


def busy_share(runner: Runner, device: torch.device) -> float | None:
    """Measure how much of 50 steps' time some kernel runs; GPUs only."""
    if device.type != "cuda":
        return None
    synchronize(device)
    begun = time.perf_counter()
    runner.take(50)
    synchronize(device)
    wall_s = time.perf_counter() - begun
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        runner.take(50)
        synchronize(device)
    kernels_s = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
    return min(1.0, kernels_s / wall_s)


def notebooks_way(inputs, size: Size, device: torch.device) -> Row:
    """Time the old training loop, encoders left out: a row per pair, a DataLoader, ``.item()``."""
    pairs, antibody_ND, antigen_ME = inputs
    rows = min(len(pairs), 20_000)  # a row per pair of 160k would be 1.5 GB
    data = TensorDataset(
        torch.from_numpy(antibody_ND[pairs.antibody[:rows]]),
        torch.from_numpy(antigen_ME[pairs.antigen[:rows]]),
        torch.from_numpy(pairs.pkd[:rows].astype(np.float32)),
    )
    widths = (size.antibody_width + size.antigen_width, 1024, 512, 256, 128)
    blocks = [
        nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(b))
        for a, b in pairwise(widths)
    ]
    model = nn.Sequential(*blocks, nn.Linear(widths[-1], 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loader = DataLoader(data, batch_size=12, shuffle=True)
    steps = 0
    begun = 0.0
    total = 0.0
    for at, (antibody, antigen, pkd) in enumerate(loader):
        inputs_BD = torch.cat([antibody.to(device), antigen.to(device)], dim=1)
        loss = nn.functional.mse_loss(model(inputs_BD).squeeze(1), pkd.to(device)) / 4
        loss.backward()
        total += loss.item()
        if at % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        if steps == 2 and not begun:
            begun = time.perf_counter()
        if steps > 2 and time.perf_counter() - begun > size.timed_s:
            break
    rate = (steps - 2) / (time.perf_counter() - begun)
    epoch = 0.8 * len(pairs) / 48 / rate
    return Row("the notebooks' loop, encoders left out", "12 x 4", 0.0, rate, rate * 48, epoch)


def whole_fit(inputs, size: Size, device: torch.device, **options) -> dict[str, object]:
    """Time a training from its first line to its last: validation, log, checkpoints and all."""
    config = FitConfig(**{"head": "mlp", "epochs": size.epochs} | options)
    with tempfile.TemporaryDirectory() as folder, torch_settings(device, config):
        begun = time.perf_counter()
        [done] = train(make_task(inputs, config, device, Path(folder)))
        seconds = time.perf_counter() - begun
    filled = config.filled()
    return {
        "preset": config.preset,
        "batch": filled.batch_size * filled.accumulate,
        "epochs": size.epochs,
        "pairs": size.pairs,
        "steps": done.steps,
        "seconds": round(seconds, 2),
        "of it training": round(done.seconds, 2),
    }


def ways(device: torch.device, size: Size) -> list[tuple[str, dict[str, object]]]:
    """List what is compared; a CPU has no graphs to capture."""
    batch = {"preset": "seed", "batch_size": 48, "accumulate": 1}
    wide = {} if size is REAL else {"widths": (64, 32)}
    modes = ("off", "graph", "full") if device.type == "cuda" else ("off",)
    best = {"compile": modes[-1]}
    listed: list[tuple[str, dict[str, object]]] = []
    for name, options in [("seed preset", {"preset": "seed"}), ("batch 48", batch)]:
        listed += [(f"{name}, {STEP[mode]}", options | {"compile": mode}) for mode in modes]
    for preset in ("small", "medium"):
        options = {"preset": preset, "batch_size": PRESETS[preset].batch_size}
        listed += [(f"{preset}, {STEP[mode]}", options | {"compile": mode}) for mode in modes]
        if device.type == "cuda":
            listed.append((f"{preset}, compiled, bf16", options | best | {"precision": "bf16"}))
    return [(name, wide | options) for name, options in listed]


STEP = {"off": "eager", "graph": "one CUDA graph", "full": "compiled"}


def markdown(report: dict) -> str:
    """Lay the report out as a page."""
    lines = [
        f"# Training a head on {report['hardware']}, {report['date']}",
        "",
        f"Command: `{report['command']}`  ",
        f"torch {report['torch']}, Python {report['python']}; {report['size']}",
        "",
        "| way | batch | first step s | steps/s | pairs/s | epoch s | kernels busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        busy = "-" if row["busy"] is None else f"{row['busy']:.0%}"
        lines.append(
            f"| {row['way']} | {row['batch']} | {row['first_step_s']:.1f} | {row['steps_s']:.0f} "
            f"| {row['pairs_s']:.0f} | {row['epoch_s']:.2f} | {busy} |"
        )
    fits = report["whole fits"]
    lines += ["", "Whole trainings, validation, log and checkpoints included:", ""]
    lines += ["| " + " | ".join(fits[0]) + " |", "|" + "---|" * len(fits[0])]
    lines += ["| " + " | ".join(map(str, fit.values())) + " |" for fit in fits]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    size = TINY if arguments.tiny else REAL
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    inputs = make_pairs(size)
    rows = [notebooks_way(inputs, size, device)]
    for name, options in ways(device, size):
        rows.append(measure(name, inputs, size, device, **options))
        print(rows[-1], flush=True)
    presets = ("small", "medium") if size is REAL else ("small",)
    report = {
        "hardware": hardware,
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python benchmarks/bench_fit.py --out DIR{' --tiny' if arguments.tiny else ''}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "size": asdict(size),
        "rows": [asdict(row) for row in rows],
        "whole fits": [whole_fit(inputs, size, device, preset=name) for name in presets],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = f"fit_{hardware.replace(' ', '-').lower()}_{report['date']}"
    (arguments.out / f"{name}.md").write_text(markdown(report))
    (arguments.out / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    print(markdown(report))


if __name__ == "__main__":
    main()
