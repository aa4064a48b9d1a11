"""Measure the step time of 1, 4, 16 and 64 heads, and the time of the trials of a sweep.

    python benchmarks/bench_members.py --out benchmarks/results        # on the GPU of this machine
    python benchmarks/bench_members.py --out DIR --parts trials        # only steps, fits or trials
    python benchmarks/bench_members.py --out DIR --quick              # one preset, 1 and 16 heads
    python benchmarks/bench_members.py --out DIR --tiny               # seconds, on a CPU

Vectors are random and have the real widths (1024 and 1280): speed does not depend on their values.
Trials are proposed at random, so Optuna is not needed, and none is stopped early. Writes members.md.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from bench_fit import make_pairs, make_task, synchronize

from abag.core.device import resolve_device
from abag.head.models.config import FitConfig
from abag.head.models.pair_vectors import StoredVectors
from abag.head.regimes.splits import grouped_folds
from abag.head.sweep import (
    LOGARITHMIC,
    RANGES,
    SHAPES,
    SearchProblem,
    score_batch,
)
from abag.head.training.networks import HeadTraining, torch_settings, train
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
    trials: int
    at_once: int


REAL = Size(160_000, 100_000, 2_000, 1024, 1280, timed_s=2.0, epochs=50, trials=100, at_once=8)
TINY = Size(400, 100, 20, 16, 12, timed_s=0.1, epochs=2, trials=4, at_once=2)
MEMBERS = (1, 4, 16, 64)
QUICK = (1, 16)
PARTS = ("steps", "fits", "trials")
KINDS = [
    # preset, batch, precision; the aim is 16 heads in twice the time of one, batch 1024 or less
    ("small", 1024, "auto"),
    ("small", 1024, "fp32"),
    ("small", 512, "auto"),
    ("small", 256, "auto"),
    ("medium", 1024, "auto"),
]


def time_steps(inputs, size: Size, device: torch.device, **options) -> dict[str, object]:
    """Time steps alone: no validation, log or checkpoint."""
    config = FitConfig(**{"head": "mlp", "epochs": 1000} | options)
    with tempfile.TemporaryDirectory() as folder, torch_settings(device, config):
        task = make_task(inputs, config, device, Path(folder))
        task.folder.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        stack = HeadTraining(task).stack
        stack.begin_epoch(0)
        stack.training_step.run(step_seed(0, 0))
        synchronize(device)
        first_s = time.perf_counter() - begun
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        steps = 0
        seconds = 0.0
        while seconds < size.timed_s:
            stack.begin_epoch(steps // stack.steps)
            synchronize(device)
            begun = time.perf_counter()
            for at in range(stack.steps):
                stack.training_step.run(step_seed(0, steps + at))
            synchronize(device)
            seconds += time.perf_counter() - begun
            steps += stack.steps
        peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
        return {
            "batch": f"{stack.batch_size} x {stack.accumulate}",
            "first step s": first_s,
            "steps/s": steps / seconds,
            "ms per step": seconds / steps * 1e3,
            "peak GiB": peak,
        }


def time_fit(inputs, size: Size, device: torch.device, **options) -> dict[str, object]:
    """Time a training from its first line to its last: validation, log, checkpoints and all."""
    config = FitConfig(**{"head": "mlp", "epochs": size.epochs} | options)
    with tempfile.TemporaryDirectory() as folder, torch_settings(device, config):
        begun = time.perf_counter()
        [done] = train(make_task(inputs, config, device, Path(folder)))
        return {
            "seconds": time.perf_counter() - begun,
            "of it training": done.seconds,
            "steps": done.steps,
        }


def draw_trials(problem: SearchProblem, rng: np.random.Generator, count: int) -> list[dict]:
    """Draw a batch of trials at random, all of the same shape."""
    shared = {name: str(rng.choice(values)) for name, values in problem.choices().items()}
    shared["shape"] = str(
        rng.choice([name for name, shape in SHAPES.items() if shape["head"] == "mlp"])
    )
    batch = []
    for _ in range(count):
        options = {}
        for name, (low, high) in RANGES.items():
            if name in LOGARITHMIC:
                options[name] = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            else:
                options[name] = float(rng.uniform(low, high))
        batch.append(shared | options)
    return batch


def time_trials(inputs, size: Size, device: torch.device) -> list[dict[str, object]]:
    """Time batches of random trials on three inner folds, as a sweep trains them."""
    pairs, antibody_ND, antigen_ME = inputs
    config = FitConfig(head="mlp", epochs=size.epochs)
    poolings = {"antibody": ("mean", "heavy_mean", "light_mean"), "antigen": ("mean", "cls")}
    stored = {"antibody": antibody_ND, "antigen": antigen_ME}
    vectors = {}
    for kind, names in poolings.items():
        vectors |= {(kind, name): StoredVectors((), stored[kind]) for name in names}
    problem = SearchProblem(
        pairs=pairs,
        fold=grouped_folds(pairs.antigen, 3, 0),
        group=pairs.antigen,
        store=None,  # all is read
        read=vectors,
        poolings=poolings,
        config=config,
        device=device,
        objective=config.select,
    )
    rng = np.random.default_rng(0)
    rows = []
    with torch_settings(device, config):
        for at in range(0, size.trials, size.at_once):
            batch = draw_trials(problem, rng, min(size.at_once, size.trials - at))
            if size is TINY:
                batch = [params | {"shape": "mlp 64"} for params in batch]
            begun = time.perf_counter()
            score_batch(problem, batch)
            rows.append(
                {
                    "shape": batch[0]["shape"],
                    "loss": batch[0]["loss"],
                    "trials": len(batch),
                    "heads": 3 * len(batch),
                    "seconds": time.perf_counter() - begun,
                }
            )
            print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, object]]) -> list[str]:
    """Lay rows of equal keys out in Markdown."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    for row in rows:
        cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def ratios(rows: list[dict[str, object]], quantity: str) -> list[dict[str, object]]:
    """Add how much longer each number of heads takes than one head of its kind."""
    ones = {(r["preset"], r["precision"], r["asked"]): r[quantity] for r in rows if r["heads"] == 1}
    return [
        r | {"times one": r[quantity] / ones[r["preset"], r["precision"], r["asked"]]} for r in rows
    ]


def time_kinds(measure, kinds, members, inputs, size: Size, device: torch.device) -> list[dict]:
    """Time every number of heads of every kind."""
    rows = []
    for preset, batch, precision in kinds:
        # 64 heads of other presets take minutes to say the same
        for heads in members if preset == "small" else members[:3]:
            options = {"preset": preset, "batch_size": batch, "precision": precision}
            options |= {"members": heads} | ({"widths": (8, 4)} if size is TINY else {})
            row = {"preset": preset, "precision": precision, "asked": batch, "heads": heads}
            rows.append(row | measure(inputs, size, device, **options))
            print(rows[-1], flush=True)
    return rows


def report_trials(size: Size, rows: list[dict[str, object]]) -> list[str]:
    """Lay out what each batch of trials took."""
    total = sum(r["seconds"] for r in rows)
    return [
        "",
        f"{size.trials} trials of a sweep, {size.epochs} epochs on three inner folds each, none "
        f"stopped early: {total:.0f} s",
        "",
        *table(rows),
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    size = TINY if arguments.tiny else REAL
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    inputs = make_pairs(size)
    members = MEMBERS[:2] if arguments.tiny else QUICK if arguments.quick else MEMBERS
    kinds = KINDS[:1] if arguments.tiny or arguments.quick else KINDS
    flags = " --tiny" * arguments.tiny + " --quick" * arguments.quick
    flags += f" --parts {' '.join(arguments.parts)}" * (len(arguments.parts) < len(PARTS))
    lines = [
        f"# Heads that train in one step, {hardware}, {datetime.now(UTC).date().isoformat()}",
        "",
        f"Command: `python benchmarks/bench_members.py --out DIR{flags}`  ",
        f"torch {torch.__version__}, Python {platform.python_version()}; {size}",
    ]
    if "steps" in arguments.parts:
        rows = time_kinds(time_steps, kinds, members, inputs, size, device)
        lines += ["", *table(ratios(rows, "ms per step"))]
    if "fits" in arguments.parts:
        rows = time_kinds(time_fit, kinds[:2], members, inputs, size, device)
        lines += [
            "",
            f"Whole trainings of {size.epochs} epochs, validation, log and checkpoints included; "
            "times one by the training's own seconds, without set-up and compilation:",
            "",
            *table(ratios(rows, "of it training")),
        ]
    if "trials" in arguments.parts:
        lines += report_trials(size, time_trials(inputs, size, device))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "members.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
