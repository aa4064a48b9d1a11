"""Labels that are yes or no, or ordered classes: how they are read, learned, predicted, scored."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from dataclasses import replace
from functools import partial

import drawn
import numpy as np
import pandas as pd
import pytest
from heads import sign
from hypothesis import given
from hypothesis import strategies as st
from invoke import one_line
from invoke import run as run_command
from scipy.special import ndtr
from sklearn.base import clone, is_classifier
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.utils.estimator_checks import check_estimator

import abag
from abag.core.arrays import label_weights
from abag.core.errors import (
    AbagError,
    ColumnError,
    DamagedFile,
    LabelError,
    OptionError,
    PredictionError,
)
from abag.core.messages import reporting
from abag.embed.tables.pairs import read_pairs
from abag.head.design.rank import describe_rank
from abag.head.evaluation import scores as scores_of_regimes
from abag.head.evaluation.verdicts import describe_strong, score_strong
from abag.head.labels.classes import read_classes
from abag.head.labels.column import decide_label
from abag.head.labels.headers import Quantity
from abag.head.labels.labelled_pairs import label_pairs, read_labelled_pairs, training_labels
from abag.head.models import probit
from abag.head.models.config import FitConfig
from abag.head.models.probit import (
    Bend,
    HeldOutClasses,
    class_thresholds,
    expected_latent,
    fit_link,
    log_loss,
    working_errors,
)
from abag.head.predictor.parts import Predictions
from abag.head.predictor.weigh import stack_weights, weigh_run
from abag.head.regimes.splits import (
    REGIMES,
    TEST,
    TRAIN,
    MeasuredRegime,
    Split,
    grouped_folds,
    mean_product,
)
from abag.head.runs.rounds import describe_promises
from abag.head.runs.run_folder import describe_fit, describe_scores, read_run
from abag.sklearn import AffinityRegressor, BindingClassifier

LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
ROWS = 30


def variants(rows, seed=0, length=60):
    """Return variants of one chain, each with a few substitutions."""
    rng = np.random.default_rng(seed)
    parent = rng.choice(LETTERS, length)
    chains = np.tile(parent, (rows, 1))
    for row in chains:
        row[rng.choice(length, 4, replace=False)] = rng.choice(LETTERS, 4)
    return ["".join(row) for row in chains]


def table(rows=ROWS, **columns):
    """Return pairs of one antigen with columns of cells."""
    frame = pd.DataFrame({"heavy": variants(rows), "antigen": "".join(LETTERS) * 3})
    return frame.assign(**columns)


def labelled(frame, **options):
    config = FitConfig(**options)
    return read_labelled_pairs(frame, config, config)


def labelled_with(frame, **options):
    """Read labels with the columns beside them."""
    config = FitConfig(**options)
    return label_pairs(read_pairs(frame, config, label=partial(decide_label, options=config)))


def of_rows(pairs):
    """Return the labels in the order of the rows."""
    return pairs.pkd[np.argsort(pairs.row)]


ANSWERS = np.random.default_rng(1).integers(0, 2, ROWS)


def words(no, yes):
    return [(no, yes)[answer] for answer in ANSWERS]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("binder", words("no", "yes")),
        ("is_binder", ANSWERS),
        ("Binding", words("Non-binder", "Binder")),
        ("neutralizes", words("-", "+")),
        ("binds", words(False, True)),
        ("binds", words("FALSCH", "WAHR")),
        ("binder", words("Faux", "Vrai")),
        ("polyreactive", words("neg", "pos")),
        ("label", ANSWERS.astype(float)),
        ("Label", 2 * ANSWERS - 1),
        ("class", words("negative", "positive")),
        ("hit", words("N", "Y")),
        ("Interaction label", ANSWERS),
        ("AgClass", ANSWERS),
        ("hit", words("no hit", "hit")),
        ("ACE2 blocking", words("Non-blocking", "Blocking")),
    ],
)
def test_words_for_yes_and_no_are_recognised_by_name_and_cells(name, cells):
    pairs = labelled(table(**{name: cells}))
    assert np.array_equal(of_rows(pairs), ANSWERS)
    assert (pairs.unit, len(pairs.quantity.classes)) == ("binary", 2)
    assert "cells are" in pairs.reading.line


def test_classes_of_an_unknown_name_are_taken_when_they_are_asked_for():
    frame = table(expressed=words("no", "yes"))
    with pytest.raises(ColumnError):
        labelled(frame)
    for options in ({"label": "binary"}, {"columns": {"label": "expressed"}}):
        assert np.array_equal(of_rows(labelled(frame, **options)), ANSWERS)


def test_a_value_of_any_name_is_positive_if_the_user_says_so():
    frame = table(outcome=words("weak", "strong"))
    assert np.array_equal(of_rows(labelled(frame, positive="strong")), ANSWERS)
    with pytest.raises(LabelError, match=r"no cell 'stong'.*'strong', 'weak'"):
        labelled(frame, positive="stong", columns={"label": "outcome"})
    with pytest.raises(LabelError, match="--positive 'strong' or --positive 'weak'"):
        labelled(frame, label="binary", columns={"label": "outcome"})


@pytest.mark.parametrize(("one", "other"), [("y", "yes"), ("no", "0")])
def test_two_words_of_one_meaning_are_no_two_classes(one, other):
    with pytest.raises(LabelError, match=r"has 2 different cells.*Write one word per class"):
        labelled(table(binder=words(one, other)), positive=other, columns={"label": "binder"})


@pytest.mark.parametrize("pair", [("weak", "none"), ("weak binder", "tight binder"), ("A", "B")])
def test_words_of_any_kind_are_no_measurements_and_need_their_order(pair):
    frame = table(binding_strength=words(*pair))
    for options in ({}, {"label": "kd_nm"}):
        with pytest.raises(LabelError, match=rf"'{pair[1]}' is not a valid.* --classes NAMES"):
            labelled(frame, columns={"label": "binding_strength"}, **options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Binding", ["+++", "++", "+", "+/-", "-"]),
        ("binding_strength", ["strong", "medium", "weak", "none"]),
        ("affinity class", ["High", "Low", "Non-binder"]),
    ],
)
def test_a_column_of_words_for_strengths_is_proposed_as_ordered_classes(name, words):
    rows = [f"EVQ{'A' * number}" for number in range(12)]
    table = pd.DataFrame({"heavy": rows, "antigen": "MKT", name: np.resize(words, 12)})
    listed = ", ".join(map(repr, words))
    said = rf"{name!r} holds {re.escape(listed)}: use --column .* --classes NAMES, the worst first"
    assert re.search(said, abag.plan(table)["refused"])
    others = table.rename(columns={name: "isotype class"}).replace(words[0], "IgG1")
    assert not abag.plan(others)["refused"]
    named = abag.plan(table, columns={"label": name}, classes=[*map(str.lower, words[::-1])])
    assert "with an error" not in str(named)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["yes", "no", "n.d."], "no,yes"),
        (["Binder", "Non-binder", "not tested"], "non-binder,binder"),
        (["1", "0", "?"], "0,1"),
        (["1", "0", "-1"], "0,1"),
        (["1", "0", "-"], "0,1"),
        (["yes", "no", "-"], "no,yes"),
        (["yes", "no", "partial"], "no,yes"),
        ([1, "TRUE", "FALSE", "unknown"], None),
        (["1", "0", "0.5"], None),
    ],
)
def test_classes_beside_other_words_are_proposed_and_read_so(words, named):
    frame = table(binder=np.resize(np.array(words, object), ROWS))
    refused = abag.plan(frame)["refused"]
    if named is None:
        assert "binder" not in refused.partition("found")[0]
        return
    if not {"-1", "-"} & {*words}:  # of which either may say no
        assert f"use --column label=binder --classes '{named}' --bad-rows skip to" in refused
    options = {"columns": {"label": "binder"}, "classes": tuple(named.split(","))}
    pairs = labelled(frame, **options, bad_rows="skip")
    assert sorted(pairs.pkd) == [0] * 10 + [1] * 10
    assert pairs.unit == "binary"


def test_ordered_classes_are_numbered_from_the_lowest():
    level = np.random.default_rng(2).integers(0, 3, ROWS)
    cells = np.array(["low", "medium", "high"])[level]
    pairs = labelled(table(bin=cells), classes=("low", "medium", "high"))
    assert np.array_equal(of_rows(pairs), level)
    assert (pairs.unit, pairs.quantity.classes) == ("classes", ("low", "medium", "high"))


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        (range(ROWS), {"label": "binary"}, "30 different cells .*--classes NAMES"),
        ([n % 6 for n in range(ROWS)], {}, "does not say what it measures.*--classes 0,1,2,3,4,5"),
        (
            ["yes", "pos", "no"] * 10,
            {},
            "3 different cells .'no', 'pos', 'yes'.; expected a word for each",
        ),
        (["maybe", *words("no", "yes")[1:]], {}, "row 1.*'maybe'.*expected one of 'no', 'yes'"),
        (words("no", "yes"), {"classes": ("low", "high")}, "has no cell"),
        ([1.5, 2.5] * 15, {"label": "binary"}, "--positive '1.5' or --positive '2.5'"),
    ],
)
def test_what_is_no_class_is_refused_in_one_line(cells, options, said):
    with pytest.raises(AbagError, match=said) as refused:
        labelled(table(**{"class": [*cells]}), columns={"label": "class"}, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "kd_nm", "positive": "yes"}, "--label says kd_nm"),
        ({"label": "binary", "no_binding": 3.0}, "--no-binding is of numbers"),
        ({"label": "binary", "classes": ("a", "b", "c")}, "--label says binary"),
        ({"classes": ("a", "a")}, "two or more different names"),
        ({"label": "classes"}, "expected --classes too"),
        ({"positive": "a", "classes": ("a", "b")}, "each names the classes"),
        ({"label": "binary", "floor": "drop"}, "--floor is of numbers"),
    ],
)
def test_options_of_classes_that_contradict_others_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        FitConfig(**options)


def test_numbers_beside_words_stay_affinities_with_bounds():
    kd = [f"{value:.4g}" for value in np.geomspace(1, 9000, ROWS - 5)]
    pairs = labelled(table(**{"KD (nM)": ["NB"] * 5 + kd}), no_binding=1e4)
    assert pairs.quantity.affinity
    assert (pairs.censored != 0).sum() == 5
    both = table(**{"KD (nM)": np.geomspace(1, 9000, ROWS)}, binder=words("no", "yes"))
    assert labelled(both).quantity.affinity


@pytest.mark.parametrize("classes", [("no", "yes"), ("yes", "no"), ("0", "1"), ("1", "0")])
def test_other_words_for_no_are_no_whichever_is_looked_for(classes):
    no = float(classes[1] in ("no", "0"))
    cells = pd.Series(["no", "0", "FALSE", "Non_binder", "-", "yes", "1", "True", "binder", "+"])
    assert read_classes(cells, classes).tolist() == [no] * 5 + [1 - no] * 5


def test_replicates_that_disagree_are_counted_on_both_sides():
    frame = table(binder=words("no", "yes"))
    other = frame.iloc[[0]].assign(binder=words("yes", "no")[0])
    pairs = labelled(pd.concat([frame, frame.iloc[[0]], other], ignore_index=True))
    assert len(pairs) == ROWS + 1
    assert pairs.counts["conflicting_pairs"] == 1
    of_pair = pairs.antibody == pairs.antibody[pairs.row == 0][0]
    assert sorted(pairs.measurements[of_pair]) == [1, 2]
    weight = 1 / pairs.share[of_pair]
    assert weight.max() == pytest.approx(2 * weight.min())
    with pytest.raises(LabelError, match="measure the same pair and are 'no' and 'yes'"):
        labelled(pd.concat([frame, other], ignore_index=True), replicates="error")


def test_replicates_of_a_class_have_the_sum_of_their_weights():
    frame = table(binder=words("no", "yes"), reads=1.0)
    again = pd.concat([frame, frame.iloc[[0]].assign(reads=1e-3)], ignore_index=True)
    weight = 1 / labelled_with(again, weight="reads").share
    assert weight / weight.min() == pytest.approx(np.where(weight > weight.min(), 1.001, 1))
    assert weight.max() / weight.min() == pytest.approx(1.001)


def test_the_direction_of_a_recognised_label_may_be_given():
    pairs = labelled(table(polyreactive=words("no", "yes")))
    assert pairs.quantity.better == "lower"
    pairs = labelled(table(binder=words("no", "yes")), better="lower")
    assert (pairs.quantity.better, pairs.quantity.sign) == ("lower", -1)
    assert "'no' is better" in pairs.reading.line
    with pytest.raises(OptionError, match="--floor is of numbers"):
        labelled(table(binder=words("no", "yes")), floor="drop")


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("binder", "higher"),
        ("specific", "higher"),
        ("inhibits", "higher"),
        ("no. of hits", "higher"),
        ("non_binder", "lower"),
        ("isNonBinder", "lower"),
        ("not neutralizing", "lower"),
        ("nonneutralizing", "lower"),
        ("no_binding", "lower"),
        ("loss_of_binding", "lower"),
        ("inactive", "lower"),
        ("unbound", "lower"),
        ("unspecific", "lower"),
        ("nonspecific", "lower"),
        ("non_polyreactive", "higher"),
        ("escape", "lower"),
        ("autoreactive", "lower"),
        ("fails to bind", "lower"),
        ("binding lost", "lower"),
        ("is not a binder", "lower"),
        ("doesn't bind", "lower"),
        ("isnt_binder", "lower"),
        ("no detectable binding", "lower"),
        ("binding abolished", "lower"),
        ("no loss of binding", "higher"),
        ("does not lose binding", "higher"),
        ("no loss of function call", "higher"),
        ("fail to bind", "lower"),
        ("QC fail label", "lower"),
        ("pass_fail_call", "higher"),
        ("human T-cell binding", "higher"),
        ("troponin_T_binder", "higher"),
        ("Binder (yes/no)", "higher"),
    ],
)
def test_a_name_that_negates_says_that_no_is_better(name, better):
    assert labelled(table(**{name: ANSWERS})).quantity.better == better


@pytest.mark.parametrize("name", ["escape", "non_binder", "polyreactive", "aggregation", "dead"])
def test_a_word_for_no_that_is_chosen_as_positive_is_better(name):
    frame = table(**{name: ANSWERS})
    quantity = labelled(frame, positive="0", columns={"label": name}).quantity
    assert (quantity.classes, quantity.better) == (("1", "0"), "higher")
    lower = labelled(frame, positive="0", columns={"label": name}, better="lower").quantity
    assert lower.better == "lower"


def test_classes_have_weights_and_no_errors():
    frame = table(binder=words("no", "yes"), trust=np.arange(1.0, ROWS + 1))
    weight = label_weights(labelled_with(frame, weight="trust").share)
    assert weight.max() == pytest.approx(ROWS * weight.min())
    with pytest.raises(LabelError, match=r"expected weights[.] Use"):
        labelled_with(frame, error="trust")


def test_one_class_is_nothing_to_learn():
    frame = table(binder=["yes"] * ROWS)
    pairs = labelled(frame)
    with pytest.raises(AbagError, match="'yes', which is one class; expected 'no' too"):
        training_labels(pairs, np.arange(len(pairs)))
    (problem,) = abag.plan(frame)["problems"]
    assert "which is one class" in problem


# ---- on the latent scale -------------------------------------------------------------------------


def latent_pairs(rows, thresholds, seed=0):
    """Return predictions, and classes of a latent value that they are half of the variance of."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=rows)
    level = np.searchsorted(thresholds, known + rng.normal(size=rows)).astype(float)
    return known, level


def link_of(mixed, level, classes=2, **options):
    return fit_link(mixed, level, class_thresholds(level, classes), **options)


@pytest.mark.parametrize("thresholds", [[1.0], [-0.5, 0.8], [-1.0, 0.3, 1.2]])
@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_what_follows_from_a_latent_value_is_found(thresholds, factor):
    known, level = latent_pairs(4000, thresholds)
    classes = len(thresholds) + 1
    above = np.array([np.ones(len(known)), *(ndtr(known - at) for at in thresholds)])
    share_CR = above - np.vstack([above[1:], np.zeros(len(known))])
    values = expected_latent(class_thresholds(level, classes))
    predicted = factor * values @ share_CR  # what a model of the values of classes predicts
    link = link_of(predicted, level, classes)
    latent = link.latent(predicted)
    expected = link.expected(latent)
    assert expected.mean() == pytest.approx(level.mean(), rel=0.02)
    assert np.sqrt(np.square(expected - above[1:].sum(axis=0)).mean()) < 0.03 * classes
    assert np.allclose(link.latent_of(expected), latent, atol=1e-2)
    assert link.spread(latent).mean() < level.std()


def test_two_classes_are_learned_as_their_numbers_are():
    level = np.random.default_rng(0).integers(0, 2, 50).astype(float)
    no, yes = expected_latent(class_thresholds(level, 2))
    assert (1 - level.mean()) * no + level.mean() * yes == pytest.approx(0)
    assert yes > 0 > no


def test_predictions_that_tell_nothing_give_the_prevalence():
    level = (np.arange(200) % 10 == 0).astype(float)
    link = link_of(np.zeros(200), level)
    assert link.expected(link.latent(np.zeros(3))) == pytest.approx(0.1, abs=0.005)
    low, high = link.interval(np.array([0.1]))
    assert low[0] < 0.1 < high[0]


def test_few_pairs_say_little_of_slope_and_thresholds():
    known, level = latent_pairs(2000, [1.0])
    prior = class_thresholds(level, 2)
    few = slice(0, 12)
    alone = fit_link(known[few] * 5, np.zeros(12), prior)
    assert 0 < alone.slope
    of_few = alone.expected(alone.latent(np.zeros(1)))[0]
    assert 0.02 < of_few < level.mean()  # none of 12 is yes, and yet some will be
    many = fit_link(known, level, prior)
    usual = many.expected(many.latent(np.zeros(1)))  # where the slope says nothing
    width = np.subtract(*many.interval(usual)[::-1])
    wider = np.subtract(*fit_link(known[:50], level[:50], prior).interval(usual)[::-1])
    assert wider > 3 * width
    grouped = fit_link(known, level, prior, group=np.arange(2000) % 20)
    assert np.subtract(*grouped.interval(usual)[::-1]) > 2 * width


def test_pairs_of_a_group_tell_as_little_as_they_have_in_common():
    rng = np.random.default_rng(0)

    def width(group, shift, pair=None):
        known = rng.normal(size=len(group))
        away = shift * rng.normal(size=group.max() + 1)[group]
        latent = known + away + rng.normal(size=len(group))
        level = (latent > 0.5 * np.sqrt(2 + shift**2)).astype(float)
        if pair is not None:  # each is held out several times
            known, level = known[pair], level[pair]
        link = fit_link(0.4 * known, level, np.array([0.5]), pair=pair, group=group)
        usual = link.expected(link.latent(np.zeros(1)))
        return np.subtract(*link.interval(usual)[::-1]).item()

    every = np.arange(800)
    alone = width(every, 0.0)
    of_40 = width(every % 40, 0.0)
    assert alone < of_40 < 2 * alone  # groups that say nothing
    assert width(every % 40, 1.0) > 1.25 * of_40
    assert width(every % 2, 0.0) > 3 * alone  # two groups do not tell that they say nothing
    assert width(every // 4, 0.0, pair=every // 4) == pytest.approx(
        width(every[:200], 0.0), rel=0.2
    )


def test_pairs_of_few_dependent_groups_count_where_parts_are_weighed_but_not_in_intervals():
    known, level = latent_pairs(300, [0.5])
    pairs = labelled_classes(level)
    every = np.arange(300)
    widths = []
    for dependent in (every, every % 3):
        held_out = HeldOutClasses.of(pairs, every, 0.4 * known[:, None], every, dependent)
        joined = HeldOutClasses.joined([held_out.take(every < 150), held_out.take(every >= 150)])
        assert len(np.unique(joined.dependent)) == min(300, 2 * len(np.unique(dependent)))
        assert len(np.unique(joined.group)) == 300
        low, high = held_out.link(np.ones(1)).interval(np.array([0.35]))
        widths.append(high[0] - low[0])
    assert widths[1] > 2 * widths[0]
    held_out = HeldOutClasses.of(pairs, every, 0.4 * known[:, None], every)
    once, twice = (HeldOutClasses.joined([held_out] * n).link(np.ones(1)) for n in (1, 2))
    assert twice.errors == pytest.approx(once.errors, rel=1e-3)  # the same pairs in two regimes


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_what_pairs_of_a_group_have_in_common_is_an_intraclass_correlation(share):
    rng = np.random.default_rng(0)
    groups, rows = 400, 2400
    group = np.concatenate([np.arange(groups), rng.integers(0, groups, rows - groups)])
    common = np.sqrt(share) * rng.normal(size=groups)[group]
    value = common + np.sqrt(1 - share) * rng.normal(size=rows)
    # one-way analysis of variance of groups of different sizes
    size = np.bincount(group)
    mean = np.bincount(group, value) / size
    between = size @ np.square(mean - value.mean()) / (groups - 1)
    within = np.square(value - mean[group]).sum() / (rows - groups)
    usual = (rows - np.square(size).sum() / rows) / (groups - 1)
    correlation = (between - within) / (between + (usual - 1) * within)
    scaled = (value - value.mean()) / value.std()
    assert mean_product(scaled, group) == pytest.approx(correlation, abs=0.03)
    few = slice(0, 900)
    weight = rng.lognormal(size=900)
    both = (group[few, None] == group[few]) & ~np.eye(900, dtype=bool)
    products = np.outer(value[few], value[few])[both]
    expected = np.average(products, weights=np.outer(weight, weight)[both])
    assert mean_product(value[few], group[few], weight) == pytest.approx(expected)


def test_many_held_out_pairs_do_not_tell_the_slope_of_models_of_all_pairs():
    known, level = latent_pairs(40_000, [0.0])
    link = link_of(0.4 * np.tanh(known), level)
    usual, away = (link.interval(np.array([share])) for share in (0.5, 0.95))
    assert usual[1] - usual[0] < 0.05
    steeper = ndtr(1.3 * link.latent_of(np.array([0.95])))
    assert away[0] < 0.92
    assert away[1] > steeper


@pytest.mark.parametrize("thresholds", [[0.5], [-0.5, 0.5], [-1.5, -0.5, 0.5]])
def test_the_errors_of_a_link_are_those_of_its_highest_threshold_and_slope(monkeypatch, thresholds):
    """As maximum likelihood has them in many draws, once nothing is known before."""
    for name in ("SLOPE_SPREAD", "THRESHOLD_SPREAD"):
        monkeypatch.setattr(probit, name, 50.0)
    for name, value in {"CROSS_VALIDATED": 1.0, "OF_ALL_PAIRS": 0.0, "PRIOR_GROUPS": 1e6}.items():
        monkeypatch.setattr(probit, name, value)
    prior = np.array(thresholds) / np.sqrt(2)
    links = []
    for seed in range(150):
        known, level = latent_pairs(400, thresholds, seed)
        links.append(fit_link(0.4 * known, level, prior))
    found = np.cov([link.thresholds[-1] for link in links], [link.slope for link in links])
    told = np.mean([link.errors for link in links], axis=0)
    assert told[:2] == pytest.approx(np.diag(found), rel=0.3)
    assert told[2] == pytest.approx(found[0, 1], abs=0.25 * np.sqrt(told[0] * told[1]))


def test_what_is_far_is_pulled_to_the_prevalence():
    known, level = latent_pairs(2000, [1.0])
    link = link_of(known, level)
    usual = link.expected(link.latent(np.zeros(1)))[0]
    pulled = link.pulled(np.array([0.9, usual, 0.001]))
    assert usual < pulled[0] < 0.9
    assert pulled[1] == pytest.approx(usual, abs=1e-6)
    assert 0.001 < pulled[2] < usual


def labelled_classes(level, share=None):
    """Pairs of two classes, without a table."""
    every = np.arange(len(level))
    pairs = drawn.labelled(every, every, level)
    quantity = Quantity(name="binds", affinity=False, classes=("no", "yes"))
    return replace(pairs, reading=replace(pairs.reading, quantity=quantity), share=share)


def test_errors_of_parts_are_their_log_losses_to_first_order():
    known, level = latent_pairs(3000, [0.5])
    link = link_of(known, level)
    part_RK = np.stack([known, known + 0.05, 0.9 * known], axis=1)
    square = np.square(working_errors(part_RK, level, link, known)).mean(axis=0) / 2
    loss = [log_loss(level, link.latent(part), link).mean() for part in part_RK.T]
    assert square - square[0] == pytest.approx(np.array(loss) - loss[0], abs=3e-4)


def test_with_few_yes_parts_are_weighed_nearly_as_usual():
    rng = np.random.default_rng(0)
    known = rng.normal(size=3000)
    parts = np.stack([known, known + rng.normal(size=3000), 0 * known], axis=1)
    usual_K = np.array([0.25, 0.75, 0.0])

    def weights(threshold):
        level = (known + rng.normal(size=3000) > threshold).astype(float)
        every = np.arange(3000)
        of_classes = HeldOutClasses.of(labelled_classes(level), every, 0.3 * parts, every)
        share = level.mean()
        assert of_classes.informative == pytest.approx(4 * share * (1 - share))
        stack = partial(stack_weights, mean=2, usual_K=usual_K, informative=of_classes.informative)
        return of_classes.weigh(stack)[0]

    assert weights(0.0)[0] > 0.8  # 1,500 yes tell which part is right
    assert weights(4.2)[0] < 0.6  # 4 of them do not


def binders_of_one_antigen(rows, seed, above):
    """Pairs that bind where a normal number with some noise is `above`; these numbers, shrunken."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=rows)
    words = np.where(known + 0.3 * rng.normal(size=rows) > above, "yes", "no")
    frame = pd.DataFrame({"heavy": variants(rows), "antigen": "".join(LETTERS) * 3})
    pairs = labelled(frame.assign(binder=words))
    return pairs, 0.15 * known[pairs.row]


def five_folds(name, tested):
    """A regime whose tested pairs are each held out in one of five folds."""
    number = np.arange(len(tested))
    splits = []
    for fold in range(5):
        part = np.where(tested & (number % 5 == fold), TEST, TRAIN).astype(np.int8)
        splits.append(Split(name=name, part=part, group=number, fold=fold))
    return MeasuredRegime(REGIMES[name], tuple(splits), (number,))


def test_a_regime_with_few_yes_is_weighed_by_the_pairs_of_all():
    rows = 400
    pairs, latent = binders_of_one_antigen(rows, seed=5, above=1.0)
    yes = pairs.pkd == 1
    latent[np.flatnonzero(yes)[0]] = -1.0  # by chance
    number = np.arange(rows)
    # one with 1 yes of 40 pairs, and one with the others
    is_rare = np.isin(number, [*np.flatnonzero(yes)[:1], *np.flatnonzero(~yes)[:39]])

    def weighed(pairs, *regimes):
        folds = []
        for name, tested in regimes:
            predicted = {"train_mean": np.zeros(rows), "gp": latent}
            parts = [Predictions((*predicted,), {**predicted}) for _ in range(5)]
            folds.append((five_folds(name, tested), parts))
        return weigh_run(pairs, folds).regimes[0]

    regimes = (("known", is_rare), ("new_variant", ~is_rare))
    assert weighed(pairs, regimes[0]).mixture.weights["gp"] < 0.6
    rare = weighed(pairs, *regimes)
    assert rare.mixture.weights["gp"] > 0.9
    # no pair says how it is predicted itself
    changed = replace(pairs, pkd=np.where(number == rare.tested.rows[-1], 1.0, pairs.pkd))
    last = rare.tested.fold == rare.tested.fold[-1]
    again = weighed(changed, *regimes).predicted
    assert again[last] == pytest.approx(rare.predicted[last], rel=1e-12)
    assert again[~last] != pytest.approx(rare.predicted[~last], rel=1e-6)
    # where only one of several classes is rare, the others tell enough
    quantity = replace(pairs.quantity, classes=("no", "weak", "yes"))
    reading = replace(pairs.reading, quantity=quantity)
    graded = replace(pairs, reading=reading, pkd=np.where(yes, 2.0, number % 2))
    alone = weighed(graded, regimes[0]).mixture
    assert weighed(graded, *regimes).mixture == alone


def test_parts_alone_are_turned_into_classes_as_their_mixture_is():
    rows = 240
    # as of a ridge, whose predictions are shrunken, and that is compared with itself
    pairs, latent = binders_of_one_antigen(rows, seed=3, above=0.5)
    predicted = {"train_mean": np.zeros(rows), "gp": latent, "one_hot_ridge": latent}
    folds = [Predictions(("train_mean", "gp"), {**predicted}) for _ in range(5)]
    measured = five_folds("known", np.ones(rows, np.bool_))
    score = weigh_run(pairs, [(measured, folds)]).regimes[0].score
    assert score["best_baseline"] == "one_hot_ridge"
    assert score["rmse_of_best"] == pytest.approx(score["rmse"], abs=0.003)


# ---- scores --------------------------------------------------------------------------------------


NO_OR_YES = Quantity(name="hit", affinity=False, classes=("no", "yes"))


def measured_pairs(level, folds=1, weight=None):
    rows = np.arange(len(level))
    antigen = rows % 3
    return scores_of_regimes.TestedPairs(
        rows, level, rows % folds, rows, antigen, [rows], weight=weight
    )


def class_scores(tested, probability, mean=0.3):
    means = np.full(len(probability), mean)
    return scores_of_regimes.score_regime(
        "known", "w", tested, probability, means, {}, None, quantity=NO_OR_YES
    )


@pytest.mark.parametrize("rows", [4, 6])
def test_the_interval_of_a_brier_score_ends_at_1(rows):
    level = np.r_[np.zeros(rows), 1.0]
    intervals = class_scores(measured_pairs(level), np.full(rows + 1, 0.02))["intervals"]
    for name in ("rmse", "rmse_of_mean", "rmse_of_best"):
        low, high = intervals[name]
        assert 0 <= low < high <= 1


def test_average_precision_area_and_losses_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    level = (rng.random(300) < 0.3).astype(float)
    p = np.round(np.clip(0.3 + 0.3 * (level - 0.3) + 0.2 * rng.normal(size=300), 0.01, 0.99), 2)
    score = class_scores(measured_pairs(level), p)
    scores = score["classes"]
    assert scores["average_precision"]["value"] == pytest.approx(average_precision_score(level, p))
    assert scores["auc"]["value"] == pytest.approx(roc_auc_score(level, p))
    assert scores["brier"] == pytest.approx(brier_score_loss(level, p))
    assert scores["log_loss"] == pytest.approx(sklearn_log_loss(level, p))
    within = [roc_auc_score(level[g::3], p[g::3]) for g in range(3)]
    assert min(within) < scores["auc_within_antigen"]["value"] < max(within)
    for name in ("average_precision", "auc"):
        assert scores[name]["low"] < scores[name]["value"] < scores[name]["high"]
    assert score["sentence"].endswith("probabilities are better than the prevalence")


def test_weights_count_in_the_average_precision_as_in_scikit_learn():
    rng = np.random.default_rng(1)
    level = (rng.random(200) < 0.4).astype(float)
    p = rng.random(200) * 0.5 + 0.3 * level
    weight = rng.random(200) + 0.5
    scores = class_scores(measured_pairs(level, weight=weight), p)["classes"]
    expected = average_precision_score(level, p, sample_weight=weight)
    assert scores["average_precision"]["value"] == pytest.approx(expected)


@pytest.mark.parametrize("gain", [0.0, 1.0, 2.0])
def test_the_average_precision_of_folds_is_that_of_new_pairs(gain):
    """Folds of 30 pairs with three positive ones each had twice that of chance, in 19 % inside."""
    rng = np.random.default_rng(0)
    level = rng.random(100_000) < 0.1
    truth = average_precision_score(level, rng.normal(size=len(level)) + gain * level)
    values, inside = [], []
    for _ in range(60):
        level = (rng.random(150) < 0.1).astype(float)
        p = ndtr(rng.normal(size=150) + gain * level - 1)
        claim = class_scores(measured_pairs(level, folds=5), p)["classes"]["average_precision"]
        values.append(claim["value"])
        inside.append(claim["low"] <= truth <= claim["high"])
    assert np.mean(values) == pytest.approx(truth, abs=0.05)
    assert np.mean(inside) >= 0.85


def test_equal_probabilities_are_never_said_to_rank_or_to_be_better():
    rng = np.random.default_rng(0)
    for seed in range(5):
        level = (np.random.default_rng(seed).random(120) < 0.3).astype(float)
        tested = measured_pairs(level, folds=4, weight=rng.random(120) + 0.5)
        sentence = class_scores(tested, np.full(120, 0.3))["sentence"]
        assert "ranking is not shown to be better than chance" in sentence
        assert "probabilities are not shown to be better than the prevalence" in sentence


def test_few_pairs_of_a_class_are_not_judged_by_their_ranks():
    level = (np.arange(200) < 6).astype(float)
    sentence = class_scores(measured_pairs(level), np.linspace(0.9, 0.1, 200))["sentence"]
    assert "ranking cannot be judged" in sentence
    again = replace(measured_pairs(np.tile(level, 3)), rows=np.tile(np.arange(200), 3))
    assert class_scores(again, np.tile(np.linspace(0.9, 0.1, 200), 3))["sentence"] == sentence
    level = (np.arange(200) < 20).astype(float)
    sentence = class_scores(measured_pairs(level), np.linspace(0.9, 0.1, 200))["sentence"]
    assert "is better than chance" in sentence


def test_intervals_of_the_auc_hold_it_where_a_class_is_rare():
    rng = np.random.default_rng(0)
    level = (np.arange(200) < 5).astype(float)
    inside = 0
    for _ in range(150):
        p = rng.normal(size=200) + 1.19 * level  # an AUC of .80
        claim = scores_of_regimes.concordance_claim(measured_pairs(level), p)
        inside += claim.low <= 0.8 <= claim.high
    assert inside > 0.88 * 150


def test_a_perfect_order_of_few_pairs_is_not_taken_for_a_sure_one():
    p = np.linspace(0.9, 0.1, 60)
    for positives, has_interval in ((1, False), (4, True), (30, True), (58, False)):
        level = (np.arange(60) < positives).astype(float)
        scores = class_scores(measured_pairs(level), p)["classes"]
        for name in ("auc", "average_precision"):
            assert scores[name]["value"] == 1
            assert (scores[name]["low"] is not None) == has_interval
            if has_interval:
                assert 1 - 5 / positives < scores[name]["low"] < 1 - 2 / positives
    one_order = replace(  # a single label above its bounds, which happens by chance
        measured_pairs(np.arange(12.0)), censored=np.array([-1] * 11 + [0], np.int8)
    )
    assert not scores_of_regimes.concordance_claim(one_order, np.arange(12.0)).above(0.5).holds


@pytest.mark.parametrize("positives", [0, 1, 9])
def test_low_probabilities_are_not_better_because_hardly_any_yes_was_tested(positives):
    tested = measured_pairs((np.arange(200) < positives).astype(float))
    sentence = class_scores(tested, np.full(200, 0.03), mean=0.05)["sentence"]
    verb = "is" if positives == 1 else "are"
    assert sentence == (
        "w: ranking cannot be judged; probabilities cannot be judged, as "
        f"{positives} of 200 tested pairs {verb} not of the most frequent class"
    )
    compared = scores_of_regimes.compare_models(
        "w", "a", "b", tested, np.full(200, 0.03), np.full(200, 0.05),
        Quantity(name="hit", affinity=False, classes=("no", "yes")),
    )  # fmt: skip
    assert "statistically indistinguishable" in compared


def test_folds_hold_their_share_of_a_rare_class():
    level = np.zeros(100)
    level[:5] = 1
    for group in (np.arange(100), np.arange(100) // 2):
        fold = grouped_folds(group, 5, seed=3, level=level)
        assert np.bincount(fold, minlength=5).tolist() == pytest.approx([20] * 5, abs=2)
        of_class = np.bincount(fold[level == 1], minlength=5)
        assert of_class.max() <= (1 if group[-1] == 99 else 2)


# ---- runs ----------------------------------------------------------------------------------------


PARENT = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDT"
    "AVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
ANTIGENS = ("ACDEFGHIKL" * 6, "LKIHGFEDCA" * 6)


def planted_table(rows=140, seed=0):
    """Return variants of an antibody that bind by a few of their residues, and two antigens."""
    rng = np.random.default_rng(seed)
    sites = np.array([28, 33, 52, 57, 75, 99, 101, 104])
    others = np.array(list("WKDYEHRT"))
    effect = np.array([1.5, -1.5, 1.2, -1.2, 0.9, -0.9, 0.6, -0.6])
    changed = rng.random((rows, len(sites))) < 0.4
    chains = np.tile(list(PARENT), (rows, 1))
    for site, residue, rows_of_site in zip(sites, others, changed.T, strict=True):
        chains[rows_of_site, site] = residue
    antigen = rng.integers(0, 2, rows)
    binds = changed @ effect + antigen - 0.5 + 0.5 * rng.normal(size=rows) > 0.3
    return pd.DataFrame(
        {
            "heavy": ["".join(chain) for chain in chains],
            "antigen": np.array(ANTIGENS)[antigen],
            "binder": np.where(binds, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a folder with a store, a run of yes and no, and predictions of new rows."""
    folder = tmp_path_factory.mktemp("classes")
    table_of_run = planted_table()
    new = planted_table(80, seed=1)
    both = pd.concat([table_of_run, new], ignore_index=True)
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    with reporting(silent=True, bars=False):
        abag.embed_table(both, folder / "store", **encoders)
        abag.fit(table_of_run, folder / "store", folder / "run", head="ridge")
        abag.predict(
            new, folder / "run", folder / "out.csv", store=folder / "store", say=lambda _: None
        )
    new.to_csv(folder / "new.csv", index=False)
    return folder


def test_predictions_are_probabilities_with_an_interval_and_no_sigma(run):
    predicted = pd.read_csv(run / "out.csv")
    assert [*predicted][3:] == [
        "probability", "probability_low", "probability_high", "regime", "far", "why_far",
        "nearest", "distance",
    ]  # fmt: skip
    inside = (predicted["probability_low"] <= predicted["probability"]) & (
        predicted["probability"] <= predicted["probability_high"]
    )
    assert inside.all()
    answers = pd.read_csv(run / "new.csv")["binder"] == "yes"
    assert average_precision_score(answers, predicted["probability"]) > 0.8
    assert brier_score_loss(answers, predicted["probability"]) < 0.17


def test_a_run_says_in_words_what_its_probabilities_are_worth(run):
    summary = json.loads((run / "run/summary.json").read_text())
    config = json.loads((run / "run/config.json").read_text())
    assert config["layout"]["label"]["quantity"]["classes"] == ["no", "yes"]
    assert config["layout"]["label"]["unit"] == "binary"
    (regime, *_) = summary["regimes"]
    assert "probabilities are better than the prevalence" in regime["sentence"]
    text = describe_fit(summary, verbose=True)
    for word in ("Brier score of prevalence", "average precision", "AUC within antigen"):
        assert word in text
    for path in ("run/report.html", "run/predictor/README.md"):
        page = (run / path).read_text()
        assert "pKd" not in page.split("<script")[0].split("<style")[0]
        assert "Brier score" in page
    headings = re.findall("<th[^>]*>([^<]*)</th>", (run / "run/report.html").read_text())
    assert headings.count("average precision") == 1  # with folds pooled, it is another number


def test_another_table_is_read_as_in_the_run_whatever_words_it_uses(run):
    other = pd.read_csv(run / "new.csv")
    other["binder"] = np.where(other["binder"] == "yes", 1, 0)
    said = []
    evaluated = abag.evaluate(run / "run", table=other, store=run / "store", say=said.append)
    assert any("'yes' or 'no'" in line and "as in the run" in line for line in said)
    text = describe_scores(evaluated)
    assert "Pairs that are 'yes'" in text
    assert "a precision of 80%" in text
    with pytest.raises(LabelError, match="has no cell that is 'no' or 'yes'"):
        abag.evaluate(
            run / "run",
            table=other.assign(binder="strong"),
            store=run / "store",
            say=said.append,
        )


def test_probabilities_of_another_tool_are_compared_by_their_brier_score(run):
    others = planted_table().assign(probability=0.4).drop(columns="binder")
    compared = abag.evaluate(run / "run", predictions=others, say=lambda _: None)["predictions"]
    assert all("the run is better than table (Brier score" in v for v in compared["verdicts"])
    with pytest.raises(PredictionError, match="expected a probability from 0 to 1"):
        abag.evaluate(run / "run", predictions=others.assign(probability=1.4), say=lambda _: None)


def test_rank_expects_so_many_hits_of_a_batch(run):
    for options in ({"run": run / "run"}, {"rule": "ucb"}):
        ranked = abag.rank(
            run / "out.csv", run / "batch.csv", batch=8, force=True, say=lambda _: None, **options
        )
        few, many = ranked["above_interval"]
        assert few <= ranked["expected_above"] <= many <= 8
        assert "of 8 pairs 'yes' (90 % interval" in describe_rank(ranked)
    said = []
    for options in ({"run": run / "run"}, {"better": "higher"}, {}):
        abag.rank(run / "out.csv", batch=8, say=said.append, **options)
    assert sum("is taken as the probability of what is looked for" in line for line in said) == 1
    chosen = pd.read_csv(run / "batch.csv")
    assert chosen["probability"].min() > pd.read_csv(run / "out.csv")["probability"].median()
    for option in ({"rule": "improvement", "best": 0.5}, {"above": 0.5}):
        with pytest.raises(OptionError, match="is of numbers"):
            abag.rank(run / "out.csv", run / "b.csv", run=run / "run", batch=8, **option)


def test_a_mutant_is_scored_by_the_change_of_its_probability(run):
    parent = planted_table()["heavy"][0]
    scanned = abag.scan(
        run / "run",
        run / "scan.csv",
        heavy=parent,
        antigen=ANTIGENS[0],
        positions="H105",
        store=run / "store",
        say=lambda _: None,
    )
    table_of_scan = pd.read_csv(run / "scan.csv")
    assert "probability_high" in table_of_scan
    assert not {"sigma", "sigma_model", "difference_sigma"} & {*table_of_scan}
    of_parent = scanned["parent_compared"]
    change = (table_of_scan["probability"] - of_parent).to_numpy()
    assert change == pytest.approx(table_of_scan["difference"].to_numpy(), abs=2e-4)


@pytest.mark.ci
def test_the_next_round_joins_classes_with_the_first(run):
    results = pd.read_csv(run / "out.csv").assign(
        binder=pd.read_csv(run / "new.csv")["binder"].map({"yes": "binder", "no": "non-binder"})
    )
    said = []
    summary = abag.fit(results, None, run / "next", add=run / "run", report=False, say=said.append)
    assert summary["data"]["classes"] == ["no", "yes"]
    assert summary["data"]["pairs"] > 150
    (errors,) = [entry["errors"] for entry in summary["rounds"] if entry.get("errors")]
    assert errors["rmse"] < 0.45
    assert any("Brier score" in line for line in describe_fit(summary).splitlines())


def test_what_needs_numbers_is_refused_in_one_line(run):
    arguments = [run / "new.csv", "--run", run / "run", "--store", run / "store"]
    line = one_line("predict", *arguments, "--out", run / "x.csv", "--strong", "8")
    assert "--strong: 8 is a threshold of numbers" in line


@pytest.mark.parametrize("forged", [
    {"thresholds": []},
    {"thresholds": [0.0, 1.0]},
    {"errors": [1.0, 1.0]},
    {"ends": [0.0]},
    {"unit": 0.0},
    None,
])  # fmt: skip
def test_a_forged_link_of_classes_is_refused(run, tmp_path, forged):
    def change(record):
        mixture = record["regimes"][0]["mixture"]
        mixture["link"] = forged and mixture["link"] | forged

    copied = shutil.copytree(run / "run" / "predictor", tmp_path / "forged")
    with pytest.raises(DamagedFile, match="does not match"):
        abag.load_predictor(sign(copied, change))


def test_one_pair_is_said_to_be_probable(run):
    done = run_command(
        "predict", "--run", run / "run", "--store", run / "store",
        "--heavy", planted_table()["heavy"][0], "--antigen", ANTIGENS[0],
    )  # fmt: skip
    assert "'yes' with a probability of" in done.stdout
    assert "pKd" not in done.stdout


def test_a_plan_says_what_the_classes_are():
    planned = abag.plan(planted_table())
    assert "'yes' or 'no'" in planned["sense"]
    counts = re.fullmatch(r"(\d+) 'yes', (\d+) 'no': 0\.\d+ 'yes'", planned["labels"]["classes"])
    assert sum(map(int, counts.groups())) == planned["labels"]["pairs"]


@pytest.fixture(scope="module")
def ordered(run):
    """Return the folder of a run of three classes, and its predictions of new rows."""
    table_of_three = planted_table()
    rng = np.random.default_rng(0)
    is_strong = (table_of_three["binder"] == "yes") & (rng.random(len(table_of_three)) < 0.5)
    level = (table_of_three["binder"] == "yes").astype(int) + is_strong
    frame = table_of_three.drop(columns="binder").assign(
        response=np.array(["none", "weak", "strong"])[level]
    )
    with reporting(silent=True, bars=False):
        abag.fit(
            frame, run / "store", run / "three", head="ridge", report=False,
            classes=("none", "weak", "strong"),
        )  # fmt: skip
        abag.predict(
            pd.read_csv(run / "new.csv"), run / "three", run / "three.csv", store=run / "store"
        )
    return run / "three", pd.read_csv(run / "three.csv")


@pytest.mark.ci
def test_ordered_classes_are_predicted_as_expected_numbers(ordered):
    folder, predicted = ordered
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["data"]["classes"] == ["none", "weak", "strong"]
    assert predicted["predicted"].between(0, 2).all()
    assert predicted["probability"].between(0, 1).all()
    assert predicted["probability"].corr(predicted["predicted"]) > 0.8


@pytest.mark.ci
def test_the_errors_of_a_batch_of_ordered_classes_are_called_squared_errors(ordered, tmp_path):
    folder, predicted = ordered
    back = predicted.head(8).assign(response=["none", "weak", "strong", "weak"] * 2)
    options = {"add": folder, "report": False, "say": lambda _: None}
    later = abag.fit(back, None, tmp_path / "later", **options)
    (errors,) = [entry["errors"] for entry in later["rounds"] if entry["errors"]]
    said = describe_fit(later)
    assert f"round 1: squared error {errors['rmse'] ** 2:.3f} (expected " in said
    assert "Brier" not in said


@pytest.mark.ci
def test_rank_expects_hits_of_the_highest_of_several_classes(ordered, tmp_path):
    folder, predicted = ordered
    for options in ({}, {"rule": "ucb"}):
        ranked = abag.rank(
            predicted, tmp_path / "batch.csv", run=folder, batch=8, force=True,
            say=lambda _: None, **options,
        )  # fmt: skip
        chosen = pd.read_csv(tmp_path / "batch.csv")
        assert ranked["expected_above"] == pytest.approx(chosen["probability"].sum())
        assert "of 8 pairs 'strong' (90 % interval" in describe_rank(ranked)
    with pytest.raises(PredictionError, match="expected a number from 0 to 2"):
        abag.rank(predicted.assign(predicted=3), run=folder, batch=8, say=lambda _: None)


@pytest.mark.ci
def test_numbers_of_no_class_are_no_predictions_of_ordered_ones(ordered):
    folder, _ = ordered
    others = planted_table().drop(columns="binder").assign(predicted=3.0)
    with pytest.raises(PredictionError, match=r"class, 0 \('none'\) to 2 \('strong'\)"):
        abag.evaluate(folder, predictions=others, say=lambda _: None)


@pytest.mark.ci
def test_the_highest_class_is_looked_for_by_its_probability_whichever_is_better(ordered):
    folder, _ = ordered
    saved = read_run(folder)
    for better in ("higher", "lower"):
        quantity = replace(saved.quantity, better=better)
        summary = score_strong(saved.tested, saved.summary["regimes"], 1.5, quantity=quantity)
        for of_regime in summary["regimes"]:
            rows = saved.tested[saved.tested["regime"] == of_regime["regime"]]
            assert of_regime["strong"] == (rows["pkd"] == 2).sum()
            assert of_regime["expected"] == pytest.approx(rows["probability"].sum())
        assert "probability" in "".join(describe_strong(summary, quantity))


def test_no_held_out_pair_tells_how_frequent_its_class_is():
    rng = np.random.default_rng(0)
    rows = np.arange(120)
    fold = rows % 6
    level = (rng.random(120) < 0.3).astype(float)
    turned = np.where(fold == 0, 1 - level, level)
    expected = []
    for level_P in (level, turned):
        held_out = HeldOutClasses.of(labelled_classes(level_P), rows, np.zeros((120, 1)), fold)
        expected.append(held_out.expected(fold)[fold == 0])
    assert expected[0] == pytest.approx(expected[1])


def test_pairs_of_hardly_any_weight_make_no_interval_narrower():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=400)
    level = (mixed + rng.normal(size=400) > 0.5).astype(float)
    rows = np.arange(400)
    pairs = labelled_classes(level, share=np.where(rows < 100, 1.0, 1e6))
    held_out = HeldOutClasses.of(pairs, rows, 0.4 * mixed[:, None], rows)
    widths = []
    alone = replace(held_out.take(rows < 100), pairs=replace(pairs, share=None))
    for some in (held_out, held_out.take(rows < 100), alone):
        low, high = some.link(np.ones(1)).interval(np.array([0.3]))
        widths.append(float(high[0] - low[0]))
    assert widths == pytest.approx([widths[2]] * 3, rel=0.1)


def test_only_the_squared_error_of_a_probability_is_called_brier_score():
    level = np.repeat([0.0, 1.0, 2.0], 20)
    tested = measured_pairs(level)
    for classes, name in ((("no", "yes"), "Brier score"), (("a", "b", "c"), "squared error")):
        quantity = Quantity(name="hit", affinity=False, classes=classes)
        said = scores_of_regimes.compare_models("w", "a", "b", tested, level, level, quantity)
        errors = {"rmse": 0.5, "sigma": 0.5, "pairs": 3}
        score = {"words": "w", "n": 60, "spearman": None, "rmse": 0.5, "classes": {
            "brier": 0.25, "average_precision": None}}  # fmt: skip
        lines = describe_promises(
            [{"by_round": [score, score]}], [{"round": 1, "errors": errors}], quantity
        )
        for text in (said, lines[0], lines[-1]):
            assert re.findall("Brier score|squared error", text) in ([name], [name] * 2)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.97])
def test_predictions_of_a_rare_class_between_the_classes_are_shares(share):
    rng = np.random.default_rng(0)
    true = rng.beta(0.1, 0.1 * (1 - share) / share, 40_000)
    level = (rng.random(len(true)) < true).astype(float)
    low, high = expected_latent(class_thresholds(level, 2))
    predicted = low + true * (high - low)
    link = link_of(predicted, level, 2)
    expected = link.expected(link.latent(predicted))
    assert np.square(expected - true).mean() < 0.1 * true.var()


@given(st.floats(0.001, 0.999), st.floats(-3, 3))
def test_bent_predictions_ascend_and_are_as_they_are_near_the_usual_share(share, at):
    weight = np.array([1 - share, share])
    bend = Bend(*expected_latent(class_thresholds(np.array([0.0, 1.0]), 2, weight)))
    assert bend.usual == pytest.approx(share)
    step = 1e-5 * min(share, 1 - share)
    near, further = (np.array([x - step, x + step]) for x in (0.0, at))
    assert np.diff(bend.of(near)) == pytest.approx(2 * step, rel=1e-3)
    slope = bend.slope(np.array([at]))
    assert np.diff(bend.of(further)) / (2 * step) == pytest.approx(slope, rel=1e-2)
    inside = np.array([bend.low, 0.5 * bend.high])
    assert bend.inverse(bend.of(inside)) == pytest.approx(inside, abs=1e-3)


def test_what_models_do_not_know_of_an_expected_class_is_on_its_scale():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=400)
    level = np.digitize(mixed + rng.normal(size=400), [-0.5, 0.5]).astype(float)
    link = link_of(mixed, level, 3)
    middle = link.expected(np.array([0.0]))
    assert link.deviation(middle, np.array([0.05 * link.unit**2])) > 0.2  # of 0 to 2


# ---- scikit-learn --------------------------------------------------------------------------------


def test_a_classifier_gives_probabilities_of_both_classes(run):
    rows = planted_table()
    new = planted_table(80, seed=1)
    columns = ["heavy", "antigen"]
    model = BindingClassifier(run / "store", head="ridge")
    assert model.fit(rows[columns], rows["binder"]) is model
    assert model.classes_.tolist() == ["no", "yes"]
    probability = model.predict_proba(new[columns])
    assert probability.sum(axis=1) == pytest.approx(np.ones(len(new)))
    assert set(model.predict(new[columns])) <= {"no", "yes"}
    assert model.score(new[columns], new["binder"]) > 0.65
    predicted = pd.read_csv(run / "out.csv")["probability"]
    assert probability[:, 1] == pytest.approx(predicted.to_numpy(), abs=1e-3)
    assert is_classifier(model)
    assert clone(model).get_params()["head"] == "ridge"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other checks want numbers
        (cloneable,) = check_estimator(BindingClassifier(run / "store"), on_skip=None)
    assert cloneable["status"] == "passed"


OF_TWO_TYPES = pd.Series([1, "yes", 0, "no"] * 35, dtype=object)


@pytest.mark.parametrize("y", [[0] * 140, [0, 1, 2, 3] * 35, OF_TWO_TYPES])
def test_a_classifier_takes_two_classes(run, y):
    rows = planted_table()
    with pytest.raises(ValueError, match="only binary classification is supported"):
        BindingClassifier(run / "store").fit(rows[["heavy", "antigen"]], y)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_classifier_refuses_rows_without_a_class(run, missing):
    rows = planted_table()
    y = rows["binder"].astype(object).where(rows.index > 1, missing)
    with pytest.raises(LabelError, match=r"^y: 2 of 140 classes are missing; expected one per row"):
        BindingClassifier(run / "store").fit(rows[["heavy", "antigen"]], y)


def test_a_regressor_refuses_classes_and_names_the_classifier(run):
    rows = planted_table()
    with pytest.raises(ValueError, match=r"Use abag\.sklearn\.BindingClassifier"):
        AffinityRegressor(run / "store").fit(
            rows[["heavy", "antigen"]], (rows["binder"] == "yes").astype(int)
        )


@pytest.mark.ci
def test_what_residues_contribute_is_on_the_latent_scale(run):
    with reporting(silent=True, bars=False):
        abag.fit(planted_table(), run / "store", run / "residues", head="one_hot_ridge")
        abag.predict(
            pd.read_csv(run / "new.csv").head(20), run / "residues", run / "r.csv",
            store=run / "store", explain=run / "why.csv", say=lambda _: None,
        )  # fmt: skip
    why = pd.read_csv(run / "why.csv")
    largest = why.loc[why["contribution"].abs().idxmax()]
    assert 0.3 < abs(largest["contribution"]) < 5


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("is_binder", "higher"),
        ("non_binder", "lower"),
        ("isNotBinder", "lower"),
        ("nonbinding", "lower"),
        ("escape", "lower"),
        ("binding negative", "lower"),
        ("polyreactive", "lower"),
        ("not polyreactive", "higher"),
    ],
)
def test_yes_to_a_negation_is_not_what_is_better(name, better):
    for no, yes in (("no", "yes"), ("0", "1")):
        quantity = labelled(table(**{name: words(no, yes)})).quantity
        assert (quantity.classes, quantity.better) == ((no, yes), better)
    # words that say it themselves
    assert labelled(table(**{name: words("non-binder", "binder")})).quantity.better == (
        "lower" if "polyreactive" in name else "higher"
    )
    assert labelled(table(**{name: words("fail", "pass")})).quantity.better == "higher"
