"""Folds that train as one stack equal folds that train one by one."""

import gc
import json

import numpy as np
import pytest
import torch
from drawn import labelled
from faults import stop_after
from marks import in_ci

from abag import FitConfig
from abag.core.messages import telling
from abag.head.models.pair_vectors import PairVectors, SideVectors
from abag.head.regimes.splits import TEST, TRAIN, VALIDATION, Split
from abag.head.training import stack
from abag.head.training.networks import TrainingInputs, train
from abag.head.training.stack import TrainingStep, choose_mode, folds_per_stack, group_folds

PAIRS = 90


def drawn_pairs():
    rng = np.random.default_rng(0)
    pair = rng.permutation(30 * 5)[:PAIRS]  # distinct, as rounding would break ties
    censored = rng.choice(np.array([-1, 0, 0, 0, 1], np.int8), PAIRS)
    return labelled(pair // 5, pair % 5, rng.normal(8, 1, PAIRS), censored)


def split(fold, n_training):
    order = np.random.default_rng(fold).permutation(PAIRS)
    part = np.full(PAIRS, TEST, np.int8)
    part[order[:n_training]] = TRAIN
    part[order[n_training : n_training + 10 + fold]] = VALIDATION
    return Split(name="drawn", part=part, group=np.arange(PAIRS), fold=fold)


FOLDS = [split(fold, n) for fold, n in enumerate((60, 57, 50, 59))]
"""The third has three steps of 16 pairs and two more, the others four."""


def train_folds(folder, folds, **options):
    rng = np.random.default_rng(1)
    config = FitConfig(**{"widths": (8, 4), "epochs": 4, "batch_size": 16} | options)
    pairs = drawn_pairs()
    sides = {}
    for kind, shape in (("antibody", (30, 6)), ("antigen", (5, 4))):
        x_ND = rng.standard_normal(shape, dtype=np.float32)
        sides[kind] = SideVectors(x_ND, pairs.index(kind))
    vectors = PairVectors(sides)
    return train(
        TrainingInputs(
            pairs=pairs,
            vectors=vectors,
            splits=folds,
            labels=[pairs for _ in folds],
            config=config,
            device=torch.device("cpu"),
            folder=folder,
        )
    )


def losses(folder, fold):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["fold"] == fold]


@pytest.mark.parametrize(
    "options", [{"accumulate": 2}, *in_ci({"loss": "rank"}, {"head": "stack"})]
)
def test_stacked_folds_equal_folds_trained_one_by_one(tmp_path, options):
    options |= {"dropout": 0.0}
    stacked = train_folds(tmp_path / "stack", FOLDS, **options)
    for fold, together in zip(FOLDS, stacked, strict=True):
        [alone] = train_folds(tmp_path / str(fold.fold), [fold], **options)
        np.testing.assert_allclose(together.predicted_MP, alone.predicted_MP, atol=2e-5)
        assert np.isnan(together.predicted_MP[0]).tolist() == (fold.part != TEST).tolist()
        assert together.best_step == alone.best_step
        expected = losses(tmp_path / str(fold.fold), fold.fold)
        assert losses(tmp_path / "stack", fold.fold) == pytest.approx(expected, rel=1e-4)
        assert together.models[0].arrays().keys() == alone.models[0].arrays().keys()


def test_a_fold_with_dropout_does_not_depend_on_the_other_folds_of_its_stack(tmp_path):
    four = train_folds(tmp_path / "four", FOLDS, dropout=0.3)
    two = train_folds(tmp_path / "two", FOLDS[1:3], dropout=0.3)
    for fold, other in zip(four[1:3], two, strict=True):
        np.testing.assert_allclose(fold.predicted_MP, other.predicted_MP, atol=2e-5)


def test_folds_whose_steps_have_the_same_shape_are_grouped():
    config = FitConfig(batch_size=16)
    assert group_folds(FOLDS, config, 100) == [[0, 1, 2, 3]]
    fewer = [*FOLDS, split(4, 40), split(5, 36)]  # two steps per epoch
    assert group_folds(fewer, config, 100) == [[0, 1, 2, 3], [4, 5]]
    assert group_folds(fewer, config, 2) == [[0, 1], [2, 3], [4, 5]]
    assert group_folds(FOLDS, FitConfig(members=2), 100) == [[0], [1], [2], [3]]  # one by one


def steps_taken(monkeypatch):
    """Return a list that gets the number of heads of every step."""
    heads = []
    real = TrainingStep.run

    def noted(self, seed):
        heads.append(len(self.lr_M))
        real(self, seed)

    monkeypatch.setattr(TrainingStep, "run", noted)
    return heads


@pytest.mark.parametrize("dropout", [0.3, *in_ci(0.0)])
def test_patience_ends_each_fold_of_a_stack_as_if_the_others_were_not_there(
    tmp_path, monkeypatch, dropout
):
    folds = [FOLDS[0], FOLDS[1], FOLDS[3]]
    options = {"epochs": 40, "patience": 3, "lr": 0.03, "dropout": dropout, "select": "rmse"}
    heads = steps_taken(monkeypatch)
    stacked = train_folds(tmp_path / "stack", folds, **options)
    per_epoch = 4
    ends = sorted(fold.epochs for fold in stacked)
    assert ends[0] < ends[-1] < 40
    # folds that have ended take no more steps
    expected = [sum(end > epoch for end in ends) for epoch in range(ends[-1])]
    assert heads == np.repeat(expected, per_epoch).tolist()
    for at, (fold, together) in enumerate(zip(folds, stacked, strict=True)):
        pair = [fold, folds[at - 1]]  # a fold alone has other random numbers
        alone = train_folds(tmp_path / str(fold.fold), pair, **options)[0]
        np.testing.assert_allclose(together.predicted_MP, alone.predicted_MP, atol=2e-4)
        assert (together.best_step, together.steps) == (alone.best_step, alone.steps)
        lines = losses(tmp_path / "stack", fold.fold)
        assert len(lines) == together.epochs == together.best_step[0] // per_epoch + 3


def test_the_share_done_of_a_stack_allows_for_its_patience(tmp_path):
    folds = [FOLDS[0], FOLDS[1], FOLDS[3]]
    options = {"epochs": 60, "patience": 10, "lr": 0.03, "select": "rmse"}
    told = []
    with telling(lambda share, before: told.append(share)):
        stacked = train_folds(tmp_path, folds, **options)
    steps = max(fold.steps for fold in stacked)
    assert steps < 0.75 * 60 * 4
    assert len(told) == steps + 1
    assert told[0] == 0.0
    assert told[-1] == 1.0
    # half of the steps of all folds are about half of the time
    work = np.cumsum([sum(fold.steps > step for fold in stacked) for step in range(steps)])
    halfway = told[1 + int(np.searchsorted(work, work[-1] / 2))]
    assert 0.3 < halfway < 0.7


@pytest.mark.ci
def test_a_stack_that_lost_folds_resumes_to_the_same_bits(tmp_path, monkeypatch):
    folds = [FOLDS[0], FOLDS[1], FOLDS[3]]
    options = {"epochs": 40, "patience": 3, "lr": 0.03, "dropout": 0.3, "select": "rmse"}
    whole = train_folds(tmp_path / "whole", folds, **options)
    total = max(fold.steps for fold in whole)
    first_end = min(fold.steps for fold in whole)
    for stop in (first_end, first_end + 1, total - 1):
        with monkeypatch.context() as patched:
            stop_after(patched, stop)
            with pytest.raises(KeyboardInterrupt):
                train_folds(tmp_path / str(stop), folds, save_every=1, **options)
        resumed = train_folds(tmp_path / str(stop), folds, save_every=1, **options)
        for unbroken, other in zip(whole, resumed, strict=True):
            assert other.resumed_from_step == stop
            np.testing.assert_array_equal(unbroken.predicted_MP, other.predicted_MP)
            assert (unbroken.best_step, unbroken.steps) == (other.best_step, other.steps)
        for fold in folds:
            assert losses(tmp_path / "whole", fold.fold) == losses(tmp_path / str(stop), fold.fold)


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_a_stack_that_patience_has_ended_is_read_again(tmp_path, patience):
    folds = [FOLDS[0], FOLDS[1], FOLDS[3]]
    options = {"epochs": 40, "patience": patience, "lr": 0.03, "select": "rmse"}
    whole = train_folds(tmp_path, folds, **options)
    total = max(fold.steps for fold in whole)
    assert total < 40 * 4
    before = [losses(tmp_path, fold.fold) for fold in folds]
    for unbroken, other in zip(whole, train_folds(tmp_path, folds, **options), strict=True):
        assert other.resumed_from_step == total
        np.testing.assert_array_equal(unbroken.predicted_MP, other.predicted_MP)
        assert (unbroken.best_step, unbroken.steps) == (other.best_step, other.steps)
    assert [losses(tmp_path, fold.fold) for fold in folds] == before


def test_a_stack_on_a_cpu_is_as_large_as_its_memory_and_on_a_gpu_as_its_vectors():
    state = torch.get_rng_state()
    first = np.array([0])
    antibodies = SideVectors(np.zeros((256, 512), np.float32), first)
    antigens = SideVectors(np.zeros((512, 256), np.float32), first)
    vectors = PairVectors({"antibody": antibodies, "antigen": antigens})
    config = FitConfig(head="mlp", widths=(320, 128))
    weights = 4 * (769 * 320 + 2 * 320 + 321 * 128 + 2 * 128 + 129)
    size = stack.MAX_CPU_BYTES // (2**20 + 5 * weights)
    assert size > 5
    assert folds_per_stack(config, vectors, cpu=True) == size
    assert folds_per_stack(config, vectors, cpu=False) == 2**10
    sides = {}
    for kind, side in vectors.sides.items():
        x_ND = np.broadcast_to(side.x_ND[:1], (2**30, side.x_ND.shape[1]))
        sides[kind] = SideVectors(x_ND, side.index)
    large = PairVectors(sides)
    assert [folds_per_stack(config, large, cpu=cpu) for cpu in (True, False)] == [1, 1]
    assert torch.equal(state, torch.get_rng_state())


def test_a_step_is_a_graph_on_a_gpu_unless_told_otherwise():
    cpu = torch.device("cpu")
    gpu = torch.device("cuda")
    assert [choose_mode(mode, cpu) for mode in ("auto", "full", "off")] == ["off"] * 3
    assert [choose_mode(mode, gpu) for mode in ("auto", "full", "off")] == ["graph", "full", "off"]


def test_a_finished_training_is_not_kept_in_memory(tmp_path):
    gc.collect()  # what other tests have left
    gc.disable()
    try:
        train_folds(tmp_path, FOLDS[:2])
        assert TrainingStep not in map(type, gc.get_objects())
    finally:
        gc.enable()
