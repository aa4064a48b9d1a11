from types import SimpleNamespace

import drawn
import numpy as np
import pandas as pd
import pytest
import torch
from chunks import keep_tables_on_host, train_without_bootstrap
from drawn import fill_store, labelled, lines_of, planted_table
from heads import TEST, TRAIN, VALIDATION, PairVectors, Split
from hypothesis import given, settings
from hypothesis import strategies as st

import abag
from abag import FitConfig
from abag.head.models.network import MAX_GRADIENT_NORM, AdamW, _Dropout
from abag.head.models.pair_vectors import SideVectors
from abag.head.training.stack import (
    PairStandardizer,
    StackedHeads,
    draw_bootstrap_sample,
    make_training_sets,
    step_seed,
    uses_bf16,
)


def predicted_by(part, run):
    return pd.read_parquet(run / "baselines.parquet")[part].to_numpy()


QUICK = drawn.QUICK | {"split": "auto", "head": "mlp", "widths": (16, 8), "epochs": 3}


def drawn_pairs(n=90, seed=0):
    rng = np.random.default_rng(seed)
    censored = rng.choice(np.array([-1, 0, 0, 0, 1], np.int8), n)
    return labelled(rng.integers(0, 30, n), rng.integers(0, 5, n), rng.normal(8, 1, n), censored)


EVERY = np.arange(90)
SMALL = {"head": "mlp", "epochs": 10, "batch_size": 16, "widths": (8, 4)}


def make_stack(members, training_sets=(EVERY,), *, on_host=False, **options):
    pairs = drawn_pairs()
    rng = np.random.default_rng(1)
    sides = {}
    for kind, shape in (("antibody", (30, 6)), ("antigen", (5, 4))):
        x_ND = rng.standard_normal(shape, dtype=np.float32)
        sides[kind] = SideVectors(x_ND, pairs.index(kind))
    vectors = PairVectors(sides)
    with pytest.MonkeyPatch.context() as patch:
        if on_host:
            keep_tables_on_host(patch)
        return StackedHeads(
            [pairs],
            vectors,
            [PairStandardizer.of(pairs, EVERY, vectors)],
            training_sets,
            [FitConfig(**SMALL | options | member) for member in members],
            epoch_pairs=[60] * len(training_sets),
            device=torch.device("cpu"),
        )


def take_steps(stack, steps):
    """Return the losses of some steps, (steps, M), as training takes them."""
    losses = []
    for step in range(steps):
        epoch, at = divmod(step, stack.steps)
        if at == 0:
            stack.begin_epoch(epoch)
        stack.training_step.run(step_seed(0, step))
        losses.append(stack.training_step.loss_SM[at].reshape(-1).tolist())
    return np.array(losses)


def drawn_member(seed, **fields):
    rng = np.random.default_rng([seed, 7])
    usual = {
        "lr": float(10 ** rng.uniform(-4, -2)),
        "weight_decay": float(rng.choice([0.0, 0.05, 0.5])),
        "dropout": 0.0,
    }
    return {"seed": seed, **usual, **fields}


@pytest.mark.ci
@settings(max_examples=10, deadline=None)
@given(
    options=st.fixed_dictionaries(
        {"loss": st.sampled_from(["mse", "huber", "rank"]), "accumulate": st.integers(1, 3)}
    ),
    on_host=st.booleans(),
    seeds=st.lists(st.integers(0, 99), min_size=2, max_size=4),
    shared=st.integers(1, 3),
)
def test_each_member_of_a_stack_trains_like_a_single_head(options, on_host, seeds, shared):
    members = [drawn_member(seed) for seed in seeds for _ in range(shared)]
    training_sets = [np.random.default_rng(seed).integers(0, 90, 40 + seed % 50) for seed in seeds]
    stack = make_stack(members, training_sets, on_host=on_host, **options)
    losses_SM = take_steps(stack, 20)
    for k, member in enumerate(members):
        alone = make_stack([member], [training_sets[k // shared]], **options)
        assert losses_SM[:, k] == pytest.approx(take_steps(alone, 20)[:, 0], rel=2e-4, abs=1e-6)
        assert stack.predict(EVERY)[k] == pytest.approx(alone.predict(EVERY)[0], rel=1e-4, abs=1e-4)


def test_bounds_of_pairs_that_do_not_train_change_no_step():
    exact = EVERY[drawn_pairs().censored == 0]
    without, among_bounds = (make_stack([{}, {}], [rows, rows]) for rows in (exact, EVERY))
    assert without.tables.censored_P is None
    assert among_bounds.tables.censored_P.any()
    read = make_stack([{}, {}], [exact, exact])
    read.tables.censored_P = among_bounds.tables.censored_P
    assert np.array_equal(take_steps(without, 9), take_steps(read, 9))


def test_each_member_has_its_own_dropout_rate():
    torch.manual_seed(0)
    dropout = _Dropout([0.0, 0.25, 0.75], of_stack=True).train()
    out = dropout(torch.ones(3, 100, 100))
    assert (out == 0).float().mean((1, 2)).tolist() == pytest.approx([0, 0.25, 0.75], abs=0.02)
    assert out.mean((1, 2)).tolist() == pytest.approx([1, 1, 1], abs=0.05)
    assert torch.equal(dropout.eval()(out), out)
    shared = _Dropout([0.25, 0.25], of_stack=True).train()(torch.ones(2, 100, 100))
    assert (shared == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(shared[0], shared[1])


@pytest.mark.parametrize("alike", [False, True])
def test_each_member_is_updated_as_by_adamw_of_torch(alike):
    decay_M, lr_M = ([0.1] * 3, [0.01] * 3) if alike else ([0.0, 0.1, 0.5], [1e-3, 1e-2, 0.1])
    stack = torch.nn.Module()
    alone = []
    stack.weight, stack.bias = (torch.nn.Parameter(torch.randn(3, 4, n)) for n in (5, 1))
    stack.bias.data = stack.bias.data[..., 0]
    for k in range(3):
        weight, bias = (p.detach()[k].clone().requires_grad_() for p in stack.parameters())
        groups = [{"params": [weight], "weight_decay": decay_M[k]}, {"params": [bias]}]
        alone.append((torch.optim.AdamW(groups, lr=lr_M[k], weight_decay=0.0), [weight, bias]))
    ours = AdamW(stack, decay_M, torch.tensor(lr_M), alike=alike)
    for _ in range(3):
        for p in stack.parameters():
            p.grad = torch.randn_like(p)
        for k, (theirs, parameters) in enumerate(alone):
            for p, stacked in zip(parameters, stack.parameters(), strict=True):
                p.grad = stacked.grad[k].clone()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
            theirs.step()
        ours.update()
    for k, (_, parameters) in enumerate(alone):
        for p, stacked in zip(parameters, stack.parameters(), strict=True):
            torch.testing.assert_close(stacked[k], p)
    assert ours.tensors()["bias.step"].tolist() == [3, 3, 3]


def test_bf16_training_stays_close_to_fp32_training():
    members = [drawn_member(seed, lr=1e-3) for seed in range(4)]
    losses = {
        precision: take_steps(make_stack(members, [EVERY, EVERY], precision=precision), 20)
        for precision in ("fp32", "bf16")
    }
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert not np.array_equal(losses["bf16"], losses["fp32"])


def test_bf16_is_the_default_for_several_heads_on_a_supporting_gpu(monkeypatch):
    def halves(device, members, precision="auto", major=9):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, 0))
        config = FitConfig(precision=precision)
        return uses_bf16(config, torch.device(device), stacked=members > 1)

    assert halves("cuda", 16)
    assert not halves("cuda", 1)
    assert not halves("cpu", 16)
    assert not halves("cuda", 16, major=7)
    assert not halves("cuda", 16, precision="fp32")
    assert halves("cpu", 1, precision="bf16")


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), seed=st.integers(0, 99))
def test_a_bootstrap_sample_contains_whole_groups(sizes, seed):
    group = np.repeat(np.arange(len(sizes)) * 3, sizes)
    rows = np.arange(100, 100 + len(group))
    bag = draw_bootstrap_sample(rows, group, seed)
    times = np.bincount(bag - 100, minlength=len(group))
    of_group = [np.unique(times[group == g]) for g in np.unique(group)]
    assert all(len(counts) == 1 for counts in of_group)
    assert sum(int(counts[0]) for counts in of_group) == len(sizes)


def test_members_draw_different_bootstrap_samples_and_a_single_head_none():
    part = np.repeat(np.array([TRAIN, VALIDATION, TEST], np.int8), 60)
    split = Split(name="x", part=part, group=np.repeat(np.arange(60), 3))
    bags = make_training_sets(FitConfig(head="mlp", members=3, seed=5), split)
    assert len({tuple(bag) for bag in bags}) == 3
    assert max(map(max, bags)) < 60
    assert bags[1].tolist() == draw_bootstrap_sample(np.arange(60), split.group[:60], 6).tolist()
    (training,) = make_training_sets(FitConfig(head="mlp"), split)
    assert training.tolist() == list(range(60))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("planted")
    frame = planted_table(24, 8, noise=0.3)
    return SimpleNamespace(frame=frame, store=fill_store(at / "store", frame), at=at)


def quick_fit(case, run, **options):
    options = QUICK | {"split": "column=part"} | options
    return abag.fit(case.frame, case.store, run, **options)


def test_saving_and_loading_a_stack_keeps_tensor_addresses():
    stack = make_stack([drawn_member(1), drawn_member(2)])
    live = stack.training_step.tensors()
    at = {name: t.data_ptr() for name, t in live.items()}
    saved = {name: torch.rand_like(t) for name, t in live.items()}
    stack.training_step.load(saved)
    after = stack.training_step.tensors()
    assert all(torch.equal(t, saved[n]) for n, t in after.items())
    assert {name: t.data_ptr() for name, t in after.items()} == at


@pytest.mark.ci
def test_each_member_equals_the_single_run_with_its_seed(case, tmp_path, monkeypatch):
    train_without_bootstrap(monkeypatch)
    options = {"dropout": 0.0, "split_seed": 0, "lr": 1e-2, "select": "rmse"}
    quick_fit(case, tmp_path / "all", members=3, seed=4, **options)
    together = lines_of(tmp_path / "all")
    alone = []
    for k in range(3):
        quick_fit(case, tmp_path / f"{k}", seed=4 + k, **options)
        losses = [line["loss"] for line in lines_of(tmp_path / f"{k}")]
        assert [line["losses"][k] for line in together][:20] == pytest.approx(losses[:20], rel=1e-4)
        alone.append(predicted_by("mlp", tmp_path / f"{k}"))
    predicted = predicted_by("mlp", tmp_path / "all")
    np.testing.assert_allclose(predicted, np.mean(alone, axis=0), atol=1e-2)


def test_networks_of_all_pairs_train_for_as_long_as_the_median_member_did(
    case, tmp_path, monkeypatch
):
    train_without_bootstrap(monkeypatch)
    options = {"dropout": 0.0, "split_seed": 0, "lr": 0.05, "epochs": 6, "select": "rmse"}
    alone = []
    for seed in (4, 5, 6):
        alone.append(quick_fit(case, tmp_path / f"{seed}", seed=seed, **options)["epochs"])
    together = quick_fit(case, tmp_path / "all", members=3, seed=4, **options)["epochs"]
    assert together == np.median(alone) != alone[0]
