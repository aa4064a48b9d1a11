from itertools import chain

import pytest
import torch
from heads import MODELS, choices_of
from torch import nn

from abag import FitConfig, OptionError
from abag.head.models.network import LOSSES, Mlp, PredictedPairs

IGT5 = 1024
ESM = 1280


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


def test_each_loss_that_fit_offers_can_be_computed():
    assert choices_of(FitConfig, "loss") == {*LOSSES}


@pytest.mark.parametrize(
    ("preset", "millions"), [("seed", 3.05), ("small", 0.78), ("medium", 3.94)]
)
def test_presets_have_the_documented_number_of_parameters(preset, millions):
    head = Mlp(IGT5 + ESM, FitConfig(preset=preset).filled().widths, (0.0,))
    assert sum(p.numel() for p in head.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


def test_the_seed_preset_has_the_numbers_of_the_old_notebooks():
    seed = FitConfig(preset="seed").filled()
    assert (seed.head, seed.widths, seed.dropout) == ("mlp", (1024, 512, 256, 128), 0.3)
    assert (seed.batch_size, seed.accumulate, seed.lr, seed.epochs) == (12, 4, 4e-3, 50)
    assert seed.weight_decay == 0.01


@pytest.mark.parametrize(("options", "pooling"), [
    ({"preset": "seed"}, "cls"), ({"preset": "seed", "antigen_pooling": "mean@2"}, "mean@2"),
    ({"preset": "seed", "antigen_vectors": ("mean",)}, "mean"), ({}, "mean"),
])  # fmt: skip
def test_the_seed_preset_reads_cls_of_antigens_as_the_old_notebooks(options, pooling):
    assert [view["pooling"] for view in FitConfig(**options).views_of("antigen")] == [pooling]


def test_each_field_of_a_preset_can_be_overridden():
    filled = FitConfig(preset="medium", dropout=0.0, widths=(8,)).filled()
    assert (filled.dropout, filled.widths, filled.epochs) == (
        0.0,
        (8,),
        FitConfig(preset="medium").filled().epochs,
    )


def test_a_prediction_does_not_depend_on_the_rest_of_the_batch():
    torch.manual_seed(0)
    model = Mlp(11, (16, 8), (0.3,)).eval()
    model.draw([0])
    antibody_GBD = torch.randn(1, 7, 6)
    antigen_GBE = torch.randn(1, 7, 5)
    scores_MB = model(antibody_GBD, antigen_GBE)
    assert scores_MB.shape == (1, 7)
    alone_MB = model(antibody_GBD[:, 2:3], antigen_GBE[:, 2:3])
    torch.testing.assert_close(alone_MB, scores_MB[:, 2:3])


@pytest.mark.parametrize("seed", [0, 7])
def test_one_head_has_the_weights_steps_and_dropout_of_the_layers_of_torch(seed):
    torch.manual_seed(seed)
    blocks = [
        (nn.Linear(i, o), nn.LayerNorm(o), nn.GELU(), nn.Dropout(0.3))
        for i, o in [(11, 16), (16, 8)]
    ]
    plain = nn.Sequential(*chain(*blocks), nn.Linear(8, 1))
    model = Mlp(11, (16, 8), (0.3,))
    model.draw([seed])
    for parameter, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(other[0], parameter)
    x_BI = torch.randn(9, 11)
    torch.manual_seed(seed)
    wanted = plain(x_BI)[:, 0]
    model.use_generator(torch.Generator().manual_seed(seed))
    output = model(x_BI[None, :, :6], x_BI[None, :, 6:])[0]
    assert torch.equal(output, wanted)
    wanted.square().sum().backward()
    output.square().sum().backward()
    for parameter, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(other.grad[0], parameter.grad)


def test_a_censored_label_has_a_one_sided_loss_and_huber_is_linear_for_large_errors():
    costs = losses(predicted=[1.0, 3.0, 1.0, 3.0], target=[2.0] * 4, censored=[-1, -1, 1, 1])
    assert costs.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert losses("huber", predicted=[0.5, 3.0], target=[0.0, 0.0]).tolist() == [0.125, 2.5]


@pytest.mark.parametrize("kind", [*LOSSES])
def test_losses_and_gradients_without_bounds_are_those_of_exact_labels(kind):
    torch.manual_seed(0)
    results = []
    for censored in (None, torch.zeros(2, 9, dtype=torch.int8)):
        predicted = torch.linspace(-3, 3, 18).view(2, 9).requires_grad_()
        target = predicted.detach().flip(1).cos()
        antigen = torch.arange(18).view(2, 9) % 2
        pairs = PredictedPairs(predicted, target, censored, antigen, torch.ones(2, 9))
        costs = LOSSES[kind](pairs)
        costs.sum().backward()
        results.append((costs, predicted.grad))
    for without, exact in zip(*results, strict=True):
        assert torch.equal(without, exact)


def test_the_ranking_loss_compares_pairs_of_an_antigen_in_a_known_order():
    pairs = {"predicted": [0.0, 1.0], "target": [1.0, 0.0]}
    squared = losses(**pairs)
    assert torch.equal(losses("rank", **pairs, antigen=[0, 1]), squared)
    assert losses("rank", **pairs, antigen=[0, 0]).sum() > squared.sum()
    # the stronger label is only an upper bound of its pKd: either may be the stronger one
    case = {"predicted": [0.0, 0.5], "target": [1.0, 0.0], "censored": [-1, 0]}
    assert torch.equal(losses("rank", **case), losses("mse", **case))
    padded = losses("rank", **pairs, weight=[1.0, 0.0])
    assert padded[0] == squared[0]


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


def test_an_unregistered_loss_is_refused_and_valid_names_are_listed():
    with pytest.raises(OptionError, match=r"--loss: 'l1'.*mse, huber, rank"):
        FitConfig(loss="l1")


def test_the_head_option_lists_exactly_the_registered_heads():
    assert {*choices_of(FitConfig, "head"), "train_mean"} == {"stack", *MODELS}
