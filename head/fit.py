"""``fit``: table and store in, a run folder out.

Every input is checked before the folder is touched. Each file of the folder is written whole or
not at all, so the same command, run again after a kill at any instant, goes on where it was.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from abag import cache_dir
from abag.core.device import resolve_device
from abag.core.files import is_partial, replacing, write_json
from abag.core.messages import reporting
from abag.core.options import BadOption
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store
from abag.head.data.adapter_leaks import apply_adapter_policy
from abag.head.data.labels import LabelledPairs, label_pairs, report_counts, training_labels
from abag.head.data.leakage import describe_splits
from abag.head.data.partition import make_splits
from abag.head.data.split_files import split_frame
from abag.head.data.splits import TRAIN, Split
from abag.head.data.vectors import StoredVectors, read_vectors
from abag.head.evaluation.baselines import predict_baselines
from abag.head.model.config import FitConfig, RunMismatch, check_same
from abag.head.prediction.bundle import save_predictor
from abag.head.runs.results import RunResults, RunSummary
from abag.head.runs.summary import join_logs, write_results
from abag.head.training.train import TrainingInputs, train
from abag.head.training.uncertainty import calibrate, combine, describe_sigma

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.store import Store


LONG_CLUSTERING = 3_000
"""Unique sequences from which comparing them takes long enough to be said."""


def fit(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    run: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    verbose: bool = False,
    report: bool = True,
    **options: Any,  # noqa: ANN401
) -> RunSummary:
    """Train a head on the stored vectors of a table, or go on with a run that was stopped.

    Parameters
    ----------
    table : path or DataFrame
        Pairs with a measured affinity.
    store : path
        Holds a vector for every sequence of the table.
    run : path
        Folder of the run; made if it is not there.
    say : callable, optional
        Takes each message; by default they go to stderr.
    progress : bool
        Whether to draw a bar on stderr.
    verbose : bool
        Whether to say the score of every validation.
    report : bool
        Whether to draw ``report.html``, which takes a few seconds.
    **options
        Fields of `FitConfig`.

    Returns
    -------
    dict
        The keys of ``abag fit --json``.

    Raises
    ------
    AbagError
        In one line, before anything is written if an input is at fault.
    """
    config, run, say = FitConfig.from_keywords(options, "fit"), Path(run), say or _to_stderr
    device = resolve_device(config.device)
    _refuse_graph_on_cpu(device, config)
    pairs = label_pairs(read_pairs(table, config), config)
    with reporting(say):
        report_counts(pairs)
    opened = open_store(store)
    antibody = read_vectors(opened, pairs.table, "antibody", **config.vectors_of("antibody"))
    antigen = read_vectors(opened, pairs.table, "antigen", **config.vectors_of("antigen"))
    record = describe_inputs(config, opened, pairs, antibody, antigen)
    finished = _finished_summary(run, record)
    if finished is not None:
        say(f"{run}: nothing to do, this run has finished")
        return finished
    splits = _open_run(run, record, pairs, config, (antibody.folder, antigen.folder), say)
    for line in describe_splits(splits):
        say(line)
    begun = time.monotonic()
    with reporting(say, bars=progress), torch_switches(device, config):
        trained = [
            train(
                TrainingInputs(
                    pairs=pairs,
                    antibody_ND=antibody.x_ND,
                    antigen_ME=antigen.x_ND,
                    split=split,
                    config=config,
                    device=device,
                    checkpoints=_checkpoints(run, splits, i),
                    log=_log(run, splits, i),
                    label=run.name if len(splits) == 1 else f"{run.name} fold {i + 1}",
                    verbose=verbose,
                )
            )
            for i, split in enumerate(splits)
        ]
    sigmas = [calibrate(pairs, split, one) for split, one in zip(splits, trained, strict=True)]
    results = RunResults(
        title=run.name,
        facts=record,
        pairs=pairs,
        splits=splits,
        predicted=[one.predicted for one in trained],
        sigma=[width.of(one.predicted_MP) for width, one in zip(sigmas, trained, strict=True)],
        baselines=[
            predict_baselines(pairs, split, antibody.x_ND, antigen.x_ND) for split in splits
        ],
        log=join_logs([_log(run, splits, i) for i in range(len(splits))], run / "metrics.jsonl"),
        antibody_ND=antibody.x_ND,
        antigen_ND=antigen.x_ND,
    )
    save_predictor(
        run / "predictor", pairs, splits, trained, config, antibody, antigen, combine(sigmas)
    )
    summary = write_results(run, results, trained, sigmas, report=report)
    for text in summary["warnings"] + summary["verdicts"] + [describe_sigma(summary["sigma"])]:
        say(text)
    kept = sum(path.stat().st_size for path in (run / "checkpoints").rglob("*") if path.is_file())
    say(
        f"{run}: {summary['steps']} steps in {time.monotonic() - begun:.1f} s; "
        f"checkpoints hold {kept / 2**20:.1f} MiB"
    )
    if old_way := _old_way(antibody, antigen, pairs, summary["epochs"]):
        say(old_way)
    return summary


def _refuse_graph_on_cpu(device: torch.device, config: FitConfig) -> None:
    if config.compile == "graph" and device.type == "cpu":
        msg = "--compile graph: CUDA graphs need a CUDA device; this run is on the CPU. Give --compile auto."  # noqa: E501
        raise BadOption(msg)


@contextmanager
def torch_switches(device: torch.device, config: FitConfig) -> Iterator[None]:
    """Set torch's process-wide switches for one training, and put them back.

    The device is made the current one: that is where a graph is captured.
    """
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(config.threads)
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")  # TF32
    if config.deterministic and not deterministic:  # the call imports the compiler: 2 s
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if config.deterministic and not deterministic:
            torch.use_deterministic_algorithms(False)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def describe_inputs(
    config: FitConfig,
    store: Store,
    pairs: LabelledPairs,
    antibody: StoredVectors,
    antigen: StoredVectors,
) -> dict[str, Any]:
    """Return what config.json holds: the options and what they were applied to."""
    running = blake2b(digest_size=16)
    for array in (pairs.keys("antibody"), pairs.keys("antigen"), pairs.pkd, pairs.censored):
        running.update(np.ascontiguousarray(array).data)
    return config.to_json() | {
        "antibody_encoder": antibody.folder.name,
        "antibody_fingerprint": antibody.folder.fingerprint,
        "antigen_encoder": antigen.folder.name,
        "antigen_fingerprint": antigen.folder.fingerprint,
        "store": str(store.path),
        "pairs": len(pairs),
        "pairs_digest": running.hexdigest(),
    }


def _old_way(
    antibody: StoredVectors, antigen: StoredVectors, pairs: LabelledPairs, epochs: int
) -> str | None:
    """Say what encoding both sequences of every pair in every epoch would have taken."""
    seconds = 0.0
    for side, keys in (
        (antibody, pairs.keys("antibody")),
        (antigen, pairs.keys("antigen")),
    ):
        speed = side.folder.notes.residues_per_s()
        if speed is None:
            return None
        seconds += epochs * float(side.folder.lengths(keys).sum()) / speed
    return (
        f"re-encoding every pair in all {epochs} epochs would have taken {seconds / 3600:,.1f} h "
        "at the speed of stage one's latest run"
    )


def _finished_summary(run: Path, record: dict[str, Any]) -> RunSummary | None:
    """Check the folder against this command; return its result if it has one."""
    # A kill in the first instant leaves nothing but a partial file.
    if not run.exists() or all(map(is_partial, run.iterdir())):
        return None
    if not (run / "config.json").exists():
        msg = f"{run}: is not empty and holds no run. Give another --run folder."
        raise RunMismatch(msg)
    before = json.loads((run / "config.json").read_text(encoding="utf-8"))
    check_same(run, before, record)
    summary = run / "summary.json"
    if not summary.exists() or before["epochs"] != record["epochs"]:
        return None
    result: RunSummary = json.loads(summary.read_text(encoding="utf-8"))
    return result


def _open_run(
    run: Path,
    record: dict[str, Any],
    pairs: LabelledPairs,
    config: FitConfig,
    folders: tuple[EncoderFolder, ...],
    say: Callable[[str], None],
) -> list[Split]:
    """Fix split and configuration on disk before the first step."""
    bodies, targets = len(pairs.table.antibodies.chains), len(pairs.table.antigens.chains)
    if bodies + targets > LONG_CLUSTERING:
        say(
            f"comparing {bodies:,} antibodies and {targets:,} antigens for the split and leaks: "
            "minutes the first time, then kept"
        )
    # clusters take seconds and depend on the sequences alone: the next fit finds them
    cache = cache_dir() / "clusters"
    splits = apply_adapter_policy(
        make_splits(pairs, config, cache=cache),
        pairs,
        folders,
        config,
        cache=cache,
        adapter_rows=config.adapter_rows,
        allow_leak=config.allow_adapter_leak,
    )
    for split in splits:
        training_labels(pairs, split.rows(TRAIN))  # refuses for itself, before anything is written
    frame = split_frame(pairs, splits)
    _refuse_other_split(run / "splits.parquet", frame)
    run.mkdir(parents=True, exist_ok=True)
    (run / "summary.json").unlink(missing_ok=True)
    write_json(run / "config.json", record, sort_keys=True)
    with replacing(run / "splits.parquet") as partial:
        frame.to_parquet(partial, index=False)
    return splits


def _refuse_other_split(path: Path, frame: pd.DataFrame) -> None:
    """A split may depend on a file or on MMseqs2: going on with another one would leak."""
    if path.exists() and not pd.read_parquet(path).equals(frame):
        msg = (
            f"{path}: the same options now give another split; expected the stored one. Undo what "
            "changed (a split file, MMseqs2 installed since), or give another --run folder."
        )
        raise RunMismatch(msg)


def _checkpoints(run: Path, splits: list[Split], i: int) -> Path:
    return run / "checkpoints" if len(splits) == 1 else run / "checkpoints" / f"fold-{i:02d}"


def _log(run: Path, splits: list[Split], i: int) -> Path:
    return run / "metrics.jsonl" if len(splits) == 1 else _checkpoints(run, splits, i) / "log.jsonl"
