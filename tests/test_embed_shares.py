"""Ranks: who owns what, and jobs of several processes that meet in the store alone."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from drawn import COMPOSITION, demo_table
from embedding import assert_same_vectors, finished, start_embed, wait_for_shards
from hypothesis import given
from hypothesis import strategies as st

import abag
from abag import DeviceError, WorkerError, embed_table
from abag.embed.job import Rank, owners, rank_here
from abag.embed.workers import count_devices


def keys_of(n, seed=0):
    drawn = np.random.default_rng(seed).integers(0, 256, (n, 16), dtype=np.uint8)
    return np.unique(drawn, axis=0)


@given(st.lists(st.integers(1, 5000), max_size=300), st.integers(1, 9), st.text(max_size=5))
def test_every_sequence_has_one_owner_and_no_owner_more_than_one_sequence_too_much(
    lengths, world, job
):
    keys = keys_of(len(lengths))
    tokens = np.array(lengths[: len(keys)], np.int64)
    masks = [owners(keys, tokens, world, job) == r for r in range(world)]
    assert (np.sum(masks, axis=0) == 1).all() if len(keys) else True
    sums = [int(tokens[mask].sum()) for mask in masks]
    assert max(sums) - min(sums) <= max(lengths, default=0)


def test_what_one_rank_left_behind_is_shared_by_all_ranks_of_the_next_job():
    keys = keys_of(20_000)
    tokens = np.random.default_rng(1).integers(30, 1024, len(keys))
    left = owners(keys, tokens, 4, "first job") == 3  # this rank never ran
    new = owners(keys, tokens, 4, "second job")
    shares = np.bincount(new[left], tokens[left], minlength=4) / tokens[left].sum()
    assert np.abs(shares - 0.25).max() < 0.02  # 5,000 draws: a standard deviation of 0.007
    again = owners(keys, tokens, 4, "first job")
    assert (np.bincount(again[left], minlength=4) == [0, 0, 0, left.sum()]).all()


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, Rank()),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "a"},
            Rank(3, 4, 1, "a"),
        ),
        # without --rdzv-id: the same for all jobs
        ({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, Rank(0, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Rank(1, 2)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, Rank(1, 2, 1)),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}
            | {"SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            Rank(1, 2, 0, "7.0"),
        ),
        # a batch script is not a task: nobody would encode the other three quarters
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, Rank()),
    ],
)
def test_a_rank_is_read_from_what_torchrun_or_srun_sets(environment, rank):
    assert rank_here(environment) == rank


@pytest.mark.parametrize("number", ["4", "-1", "x"])
def test_a_rank_that_cannot_be_is_refused_with_its_variables(number):
    with pytest.raises(WorkerError, match=f"RANK={number}, WORLD_SIZE=4"):
        rank_here({"RANK": number, "WORLD_SIZE": "4"})


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(DeviceError, match="--devices all: this machine has 0 GPUs"):
        count_devices("all", "cpu")
    with pytest.raises(DeviceError, match="--devices 0"):
        count_devices(0, "cpu")
    assert count_devices(3, "cpu") == 3


def test_devices_and_a_launcher_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WorkerError, match="rank 0 of 2"):
        embed_table(
            demo_table().head(3), tmp_path / "store", devices=2, device="cpu", **COMPOSITION
        )
    assert not (tmp_path / "store").exists()


def as_rank(monkeypatch, number, table, store, **options):
    monkeypatch.setenv("SLURM_PROCID", str(number))
    monkeypatch.setenv("SLURM_NTASKS", "3")
    return embed_table(table, store, **COMPOSITION, **options)


def test_ranks_encode_all_between_them(tmp_path, monkeypatch):
    table = demo_table().head(200)
    parts = [as_rank(monkeypatch, r, table, tmp_path / "store") for r in (2, 1, 0)]
    monkeypatch.delenv("SLURM_PROCID")
    whole = embed_table(table, tmp_path / "whole", **COMPOSITION)
    store = abag.open_store(tmp_path / "store")
    rows = sum(folder.rows for folder in store.folders())
    assert rows == whole["antibodies"]["unique"] + whole["antigens"]["unique"]
    for plural in ("antibodies", "antigens"):
        assert all(part[plural]["encoded"] > 0 for part in parts)
        last = parts[-1][plural]
        assert last["encoded"] + last["reused"] == last["unique"]


def ranks_of(process):
    """Process ids of the ranks that a launcher started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {c: Path(f"/proc/{c}/cmdline").read_bytes() for c in children}
    return [int(c) for c, line in commands.items() if b"spawn_main" in line or b"embed" in line]


def check_whole(tmp_path, summary):
    """Every sequence is stored once, equal to one process's store."""
    embed_table(demo_table().head(240), tmp_path / "whole", **COMPOSITION)
    counts = assert_same_vectors(tmp_path / "store", tmp_path / "whole")
    store = abag.open_store(tmp_path / "store")
    assert counts == [store.folder(kind).rows for kind in ("antibody", "antigen")]
    assert counts == [summary[plural]["unique"] for plural in ("antibodies", "antigens")]


@pytest.mark.ci
def test_a_killed_rank_is_started_again_and_no_committed_sequence_is_encoded_twice(tmp_path):
    process = start_embed(tmp_path, 240, "--devices", "2")
    wait_for_shards(tmp_path / "store", process, 4)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    check_whole(tmp_path, finished(process))


@pytest.mark.ci
def test_torchrun_starts_ranks_and_the_first_prints_the_whole_result(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    check_whole(tmp_path, finished(start_embed(tmp_path, 240, launcher=launcher)))


@pytest.mark.ci
def test_a_stopped_launcher_stops_its_ranks_with_everything_committed(tmp_path):
    process = start_embed(tmp_path, 240, "--devices", "2")
    wait_for_shards(tmp_path / "store", process, 4)
    ranks = ranks_of(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "run the same command again" in err
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert sum(folder.rows for folder in abag.open_store(tmp_path / "store").folders()) > 0


@pytest.mark.ci
def test_a_refusal_of_a_rank_is_one_line_and_nothing_is_tried_again(tmp_path):
    process = start_embed(tmp_path, 9, "--devices", "2", divisor=0)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    (error,) = [line for line in err.splitlines() if "returned NaN or infinity" in line]
    assert error.startswith("Error: row ")
    assert "Traceback" not in err
