from types import SimpleNamespace

import numpy as np
import pytest
import torch

from abag.core.options import BadOption
from abag.head.data.labels import LabelledPairs
from abag.head.models.config import PRESETS, FitConfig, head_names
from abag.head.models.layers import Mlp, plain_layers
from abag.head.models.losses import LOSSES, PredictedPairs
from abag.head.models.registry import MODELS
from abag.head.training.stack import Member, PairStandardizer, StackedHeads

IGT5, ESM = 1024, 1280


def losses(kind="mse", *, predicted, target, censored=None, antigen=None, weight=None):
    n = len(predicted)
    pairs = PredictedPairs(
        torch.tensor(predicted, requires_grad=True),
        torch.tensor(target),
        torch.tensor(censored or [0] * n, dtype=torch.int8),
        torch.tensor(antigen or [0] * n),
        torch.tensor(weight or [1.0] * n),
    )
    return LOSSES[kind](pairs)


@pytest.mark.parametrize(
    ("preset", "millions"), [("seed", 3.05), ("small", 0.78), ("medium", 3.94)]
)
def test_presets_have_the_documented_number_of_parameters(preset, millions):
    head = Mlp(IGT5, ESM, PRESETS[preset].widths, plain_layers(0.0))
    assert sum(p.numel() for p in head.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


def test_the_seed_preset_has_the_numbers_of_the_old_notebooks():
    seed = FitConfig(preset="seed").filled()
    assert (seed.head, seed.widths, seed.dropout) == ("mlp", (1024, 512, 256, 128), 0.3)
    assert (seed.batch_size, seed.accumulate, seed.lr, seed.epochs) == (12, 4, 4e-3, 50)
    assert seed.weight_decay == 0.01


@pytest.mark.parametrize(
    ("options", "pooling"),
    [
        ({"preset": "seed"}, "cls"),
        ({"preset": "seed", "antigen_pooling": "mean@2"}, "mean@2"),
        ({"preset": "seed", "antigen_vectors": ("mean",)}, "mean"),
        ({}, "mean"),
    ],
)
def test_the_seed_preset_reads_cls_of_antigens_as_the_old_notebooks(options, pooling):
    assert [view["pooling"] for view in FitConfig(**options).views_of("antigen")] == [pooling]


def test_each_field_of_a_preset_can_be_overridden():
    filled = FitConfig(preset="medium", dropout=0.0, widths=(8,)).filled()
    assert (filled.dropout, filled.widths, filled.epochs) == (0.0, (8,), PRESETS["medium"].epochs)


def test_a_prediction_does_not_depend_on_the_rest_of_the_batch():
    torch.manual_seed(0)
    model = Mlp(6, 5, (16, 8), plain_layers(0.3)).eval()
    antibody_BD, antigen_BE = torch.randn(7, 6), torch.randn(7, 5)
    scores_B = model(antibody_BD, antigen_BE)
    assert scores_B.shape == (7,)
    torch.testing.assert_close(model(antibody_BD[2:3], antigen_BE[2:3]), scores_B[2:3])


def test_a_censored_label_has_a_one_sided_loss():
    found = losses(predicted=[1.0, 3.0, 1.0, 3.0], target=[2.0] * 4, censored=[-1, -1, 1, 1])
    assert found.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_huber_is_quadratic_for_small_and_linear_for_large_errors():
    assert losses("huber", predicted=[0.5, 3.0], target=[0.0, 0.0]).tolist() == [0.125, 2.5]


def test_the_ranking_loss_compares_within_an_antigen():
    pairs = {"predicted": [0.0, 1.0], "target": [1.0, 0.0]}
    squared = losses(**pairs)
    assert torch.equal(losses("rank", **pairs, antigen=[0, 1]), squared)
    assert losses("rank", **pairs, antigen=[0, 0]).sum() > squared.sum()


def test_pairs_with_undecidable_order_are_not_ranked():
    # the stronger label is only an upper bound of its pKd: either may be the stronger one
    case = {"predicted": [0.0, 0.5], "target": [1.0, 0.0], "censored": [-1, 0]}
    assert torch.equal(losses("rank", **case), losses("mse", **case))


def test_padding_is_not_ranked():
    case = {"predicted": [0.0, 1.0], "target": [1.0, 0.0]}
    padded = losses("rank", **case, weight=[1.0, 0.0])
    assert padded[0] == losses("mse", **case)[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dropout": 1.0}, "--dropout: 1.0 is out of range"),
        ({"epochs": 0}, "--epochs"),
        ({"preset": "huge"}, "--preset: 'huge' is unknown; expected one of small, medium"),
        ({"select": "loss"}, "--select"),
        ({"save_every": 0}, "--save-every"),
        ({"widths": ()}, "--widths"),
    ],
)
def test_an_option_out_of_range_is_refused(options, said):
    with pytest.raises(BadOption, match=said):
        FitConfig(**options)


@pytest.mark.parametrize(
    ("options", "n_training", "expected"),
    [
        ({}, 128_000, (1024, 1)),
        ({}, 773, (32, 1)),  # 24 steps an epoch, not one
        ({}, 5, (5, 1)),
        ({"batch_size": 512}, 773, (512, 1)),
        ({"preset": "seed"}, 773, (12, 4)),
        ({"batch_size": 512, "accumulate": 4}, 773, (512, 2)),
    ],
)
def test_the_batch_size_is_reduced_for_small_tables(options, n_training, expected):
    assert FitConfig(**options).fitting_batch(n_training) == expected


def test_a_registered_loss_is_accepted_and_trained_with(monkeypatch):
    monkeypatch.setitem(LOSSES, "signed", lambda pairs: pairs.predicted_B - pairs.target_B)
    config = FitConfig(loss="signed", head="mlp", widths=(4,), lr=0.1, epochs=1, batch_size=4)
    table = SimpleNamespace(source="drawn", row_numbers=np.arange(8) + 1)
    pairs = LabelledPairs(
        antibody=np.arange(8),
        antigen=np.arange(8) % 2,
        pkd=np.linspace(6, 9, 8),
        censored=np.zeros(8, np.int8),
        row=np.arange(8),
        table=table,
        measurements=np.ones(8, np.int64),
        noise=None,
    )
    vectors = [np.random.default_rng(k).normal(size=(n, 3)) for k, n in enumerate((8, 2))]
    antibody_ND, antigen_ME = (x.astype(np.float32) for x in vectors)
    every = np.arange(8)
    stack = StackedHeads(
        [pairs],
        antibody_ND,
        antigen_ME,
        [PairStandardizer.of(pairs, every, antibody_ND, antigen_ME)],
        [every],
        [Member.of(config, config.seed)],
        config=config,
        epoch_pairs=[8],
        device=torch.device("cpu"),
    )
    before = stack.predict(every)
    stack.begin_epoch(0)
    for step in range(stack.steps):
        stack.training_step.run(seed=step)
    assert stack.steps == 2
    assert stack.predict(every).mean() < before.mean() - 0.1  # which is all that lowers this loss


def test_an_unregistered_loss_is_refused_and_valid_names_are_listed():
    with pytest.raises(BadOption, match=r"--loss: 'l1'.*mse, huber, rank"):
        FitConfig(loss="l1")


def test_the_head_option_lists_exactly_the_registered_heads():
    assert {*head_names(), "train_mean"} == {"stack", *MODELS}
