"""Groups of pairs with the same prediction, drawn and counted plainly."""

import numpy as np
import pandas as pd
import pytest

from abag.embed.tables.chains import KINDS
from abag.head.labels.headers import PKD
from abag.head.predictor.scoring import PredictionsByRegime, equal_groups


def scores(**pkd_of_regime):
    return pd.DataFrame(
        [
            {"regime": name, "pkd_predicted": value, "sigma": 0.5}
            for name, pkd in pkd_of_regime.items()
            for value in pkd
        ]
    )


@pytest.mark.parametrize(("high", "same"), [(8.0, True), (8.004, True), (8.006, False)])
def test_a_range_below_a_hundredth_of_sigma_is_none(high, same):
    groups = equal_groups(np.array([8.0, 8.001, high]), np.full(3, 0.5))
    assert (groups == 0).all() == same


def test_predictions_in_any_unit_are_compared_by_their_size():
    small = np.linspace(1e-9, 5e-7, 50)  # Kd in M, without sigma
    assert (equal_groups(small, np.zeros(50)) == -1).all()
    assert (equal_groups(np.full(50, 3e-9), np.zeros(50)) == 0).all()


def test_a_group_of_the_first_grouping_stays_one_in_the_second():
    mean = np.r_[np.full(20, 8.0), np.full(12, 7.0), np.linspace(5, 10, 50)]
    regime = np.r_[np.zeros(20, int), np.ones(62, int)]
    antigen = np.r_[np.arange(20) % 2, np.full(12, 5), np.full(50, 6)]
    groups = equal_groups(mean, np.full(82, 0.1), [regime, regime * 10 + antigen])
    assert groups.tolist() == [0] * 20 + [1] * 12 + [-1] * 50


def test_regimes_with_one_prediction_are_found_over_parts_of_a_table():
    by_regime = PredictionsByRegime(PKD, KINDS)
    by_regime.add(scores(known=[8.0] * 6, new_antibody=[7.0, 9.0]))
    by_regime.add(scores(known=[8.001] * 6, new_antibody=[7.0] * 20))
    assert by_regime.can_rank
    assert by_regime.rows == {"known": 12, "new_antibody": 22}
    assert by_regime.same == {"known": 12}
    (line,) = by_regime.describe("row")
    assert line == (
        "12 rows (known antibodies, known antigens) have the same prediction, pKd 8.00: the run "
        "cannot rank them"
    )
    few = PredictionsByRegime(PKD, KINDS)
    few.add(scores(known=[8.0] * 9, new_antibody=[7.0, 9.0]))
    assert (few.same, few.describe("row")) == ({}, [])
