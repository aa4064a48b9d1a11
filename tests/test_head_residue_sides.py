"""Models of residues on either side of a pair: variants of antibodies, of antigens, or of both."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION, RESIDUES
from heads import MODELS, PairVectors, TrainingRows, parse, reloaded
from trastuzumab import HEAVY as TRASTUZUMAB

import abag
from abag import TrainingError
from abag.embed.tables.chains import KINDS
from abag.head.models.pair_vectors import SideVectors
from abag.head.models.residue_kernel import (
    OneHot,
    OneHotRidgeSettings,
    ResidueSettings,
    SideColumns,
    columns_of,
    find_residue_sides,
)
from abag.head.predictor.parts import RunParts

HEADS = ("residue_kernel", "one_hot_ridge")
SITES = np.arange(3, 11)
PARENT = "".join(np.random.default_rng(7).choice(RESIDUES, 60))
QUICK = {"report": False, "split": "random", "device": "cpu"}


def draw_variants(rng, number, parent=PARENT, *, indels=0.0):
    """Mutate up to three of the sites of a chain, and delete or insert a residue in some."""
    drawn = {}
    while len(drawn) < number:
        letters = list(parent)
        for at in rng.permutation(SITES)[: rng.integers(0, 4)]:
            letters[at] = rng.choice(RESIDUES)
        if rng.random() < indels:
            letters[20:21] = [] if rng.random() < 0.5 else ["W", "W"]
        drawn["".join(letters)] = None
    return list(drawn)


def unrelated(rng, number):
    return ["".join(rng.choice(RESIDUES, 40 + 7 * n)) for n in range(number)]


def effects_of(rng, texts):
    """Draw an effect of each residue at each site, and add those of each chain."""
    effect = rng.normal(size=(len(SITES), 256))
    sums = []
    for text in texts:
        sums.append(sum(effect[k, ord(text[at])] for k, at in enumerate(SITES)))
    return np.array(sums)


def make_training(antibodies, antigens, index, pkd, train):
    """Pairs of single chains whose vectors tell nothing, of which the first are in training."""
    rng = np.random.default_rng(5)
    chains = {
        "antibody": [(text, "") for text in antibodies],
        "antigen": [(text,) for text in antigens],
    }
    sides = {}
    for (kind, of_kind), of_pair in zip(chains.items(), index, strict=True):
        x_ND = rng.normal(size=(len(of_kind), 3)).astype(np.float32)
        sides[kind] = SideVectors(x_ND, of_pair, of_kind)
    vectors = PairVectors(sides)
    rows = np.arange(train)
    size = len(pkd)
    labels = SimpleNamespace(
        pkd=pkd, measurements=np.ones(size), censored=np.zeros(size, np.int8), share=None
    )
    return TrainingRows(labels, vectors, rows, rows % 5)


def antigen_library(indels=0.0, *, variants=150, train=450):
    """Variants of one antigen whose residues have effects that differ between four antibodies."""
    rng = np.random.default_rng(0)
    antibodies = unrelated(rng, 4)
    antigens = draw_variants(rng, variants, indels=indels)
    shared = effects_of(rng, antigens)
    value_AG = 8 + shared + 0.7 * np.stack([effects_of(rng, antigens) for _ in antibodies])
    cells = rng.permutation(value_AG.size)
    index = np.unravel_index(cells, value_AG.shape)
    pkd = value_AG[index] + 0.1 * rng.normal(size=len(cells))
    return antibodies, antigens, index, pkd, train


def held_out_error(training, predicted):
    held_out = np.setdiff1d(np.arange(len(predicted)), training.rows)
    return np.sqrt(np.square(predicted - training.labels.pkd)[held_out].mean())


def test_variants_of_an_antigen_have_effects_of_their_own_for_each_antibody():
    training = make_training(*antigen_library())
    models = {name: MODELS[name].fit(training) for name in ("residue_kernel", "composition_ridge")}
    assert [side.kind for side in models["residue_kernel"].compared] == ["antigen"]
    error = {
        name: held_out_error(training, m.predict(training.vectors)) for name, m in models.items()
    }
    assert error["residue_kernel"] < 0.7 * error["composition_ridge"]
    assert models["residue_kernel"].inner.kernel.product > 0


def test_a_ridge_on_the_residues_of_antigens_is_that_of_their_columns():
    training = make_training(*antigen_library())
    model = MODELS["one_hot_ridge"].fit(training)
    (side,) = model.settings.sides
    assert side.kind == "antigen"
    assert not model.sides["antibody"].weight_D.any()
    side = training.vectors.sides["antigen"]
    antigens = [text for (text,) in side.chains]
    residues = pd.DataFrame({at: [text[at] for text in antigens] for at in SITES})
    predicted = model.predict(training.vectors)
    dummies = pd.get_dummies(residues).to_numpy(float)[side.index]
    # a linear function of the residues of the sites, whatever the strength of the ridge
    both = np.column_stack([np.ones(len(predicted)), dummies])
    linear = both @ np.linalg.lstsq(both, predicted, rcond=None)[0]
    trained = np.isin(side.index, side.index[training.rows])
    np.testing.assert_allclose(linear[trained], predicted[trained], atol=0.02)


def exchanged(training):
    """Exchange antibodies and antigens; a single chain is a heavy chain."""
    antibody, antigen = training.vectors.sides.values()
    swapped = {
        "antibody": replace(antigen, chains=[(chains[0], "") for chains in antigen.chains]),
        "antigen": replace(antibody, chains=[(chains[0],) for chains in antibody.chains]),
    }
    return training.with_vectors(PairVectors(swapped))


def both_libraries():
    rng = np.random.default_rng(1)
    antibodies = draw_variants(rng, 25, TRASTUZUMAB)
    antigens = draw_variants(rng, 30, indels=0.2)
    value = 8 + effects_of(rng, antibodies)[:, None] + effects_of(rng, antigens)
    cells = rng.permutation(value.size)[:300]
    index = np.unravel_index(cells, value.shape)
    return antibodies, antigens, index, value[index] + 0.1 * rng.normal(size=len(cells)), 220


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "draw", [lambda: antigen_library(0.1, variants=60, train=150), both_libraries]
)
def test_exchanging_the_sides_exchanges_the_model(head, draw):
    training = make_training(*draw())
    mirrored = exchanged(training)
    model, other = (MODELS[head].fit(rows) for rows in (training, mirrored))
    pairs = training.vectors, mirrored.vectors
    np.testing.assert_allclose(model.predict(pairs[0]), other.predict(pairs[1]), atol=1e-6)
    if MODELS[head].has_variance:
        np.testing.assert_allclose(model.variance(pairs[0]), other.variance(pairs[1]), atol=1e-5)


def test_both_sides_of_two_libraries_are_compared_by_residues():
    training = make_training(*both_libraries())
    for head in HEADS:
        model = MODELS[head].fit(training)
        assert [side.kind for side in model.settings.sides] == ["antibody", "antigen"]
        # additive in both: a ridge on one side cannot tell the variants of the other
        assert held_out_error(training, model.predict(training.vectors)) < 0.6 * training.pkd.std()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "draw", [lambda: antigen_library(0.3, variants=60, train=150), both_libraries]
)
def test_a_model_that_was_stored_predicts_the_same(head, draw):
    training = make_training(*draw())
    model = MODELS[head].fit(training)
    again = reloaded(model)
    vectors = training.vectors
    np.testing.assert_allclose(again.predict(vectors), model.predict(vectors), rtol=1e-10)
    if MODELS[head].has_variance:
        np.testing.assert_allclose(again.variance(vectors), model.variance(vectors), atol=1e-6)


def test_antigens_with_other_numbers_of_chains_differ_from_the_reference():
    reference = ("ACDEF", "GHIKL")
    trained = [reference, ("ACDEF",), ("ACDEF", "GHIKL", "MNPQR"), ("ACDEF", "GHIKW")]
    one_hot = OneHot.of(trained, reference, marks_new=True)
    x = one_hot.encode(trained)[:, : one_hot.width]
    squared = np.square(x[:, None] - x[None]).sum(axis=2)
    np.testing.assert_array_equal(squared[0], [0, 10, 2, 2])
    assert (squared[np.triu_indices(4, 1)] > 0).all()


def test_chains_of_an_antigen_are_compared_whatever_their_first_letters():
    other = PARENT[::-1] + "ACDEF"
    antigens = [
        (PARENT, other),
        tuple(sorted(["Y" + PARENT[1:], other])),
        ("A" + PARENT[1:], other),
    ]
    assert antigens[1] != ("Y" + PARENT[1:], other)
    sides = {
        "antibody": SideVectors(np.zeros((1, 2), np.float32), np.zeros(3, int), [("EVQ", "")]),
        "antigen": SideVectors(np.zeros((3, 2), np.float32), np.arange(3), antigens),
    }
    vectors = PairVectors(sides)
    rows = np.arange(3)
    assert find_residue_sides(vectors, [rows])[0] == ("antigen",)
    (side,) = columns_of(vectors, rows, ("antigen",), marks_new=False)
    assert side.one_hot.width == 3  # the first letter


@pytest.mark.parametrize(("antigens", "message"), [
    (["ACDEFGHIKL"], "all training pairs have the same antigen"),
    (["ACDEFGHIKL", "MNPQRSTVWY"], "share 0% of their residues"),
    (["ACDEFGHIKLMNPQRSTVWY", "WYVTS", "QRPNM"], "antigens share|same lengths"),
    (["A" * n for n in range(5, 25)], "antigens of the same lengths"),
    (["A" * 12_000, "A" * 11_999 + "C"], "antigens of 12,000 residues are too many columns"),
])  # fmt: skip
def test_antigens_that_are_no_variants_keep_their_vectors(antigens, message):
    antibodies = unrelated(np.random.default_rng(0), 4)
    cells = np.arange(4 * len(antigens))
    index = np.unravel_index(cells, (4, len(antigens)))
    training = make_training(antibodies, antigens, index, cells.astype(float), len(cells))
    refusal = f"residue_kernel: .*({message}).*; expected variants of"
    with pytest.raises(TrainingError, match=refusal):
        MODELS["residue_kernel"].fit(training)


def test_a_long_antigen_with_few_variable_places_is_cheap():
    rng = np.random.default_rng(0)
    parent = "".join(rng.choice(RESIDUES, 1300))
    antigens = draw_variants(rng, 200, parent)
    chains = [(text,) for text in antigens]
    side = SideVectors(np.zeros((200, 1), np.float32), np.arange(200), chains)
    vectors = PairVectors({"antigen": side})
    (columns,) = columns_of(vectors, side.index, ("antigen",), marks_new=False)
    assert columns.one_hot.width <= len(SITES) * len(RESIDUES)


def test_a_side_that_one_fold_cannot_compare_has_its_vectors_in_all():
    rng = np.random.default_rng(0)
    antigens = draw_variants(rng, 8)
    index = np.array([0] * 20 + [1] * 20), np.array([0] * 20 + [*range(8)] * 2 + [0] * 4)
    antibodies = draw_variants(rng, 2, TRASTUZUMAB)
    vectors = make_training(antibodies, antigens, index, np.arange(40.0), 40).vectors
    every = np.arange(40)
    first = np.arange(20)
    last = np.arange(20, 40)
    assert find_residue_sides(vectors, [every])[0] == ("antibody", "antigen")
    assert find_residue_sides(vectors, [every, last])[0] == ("antigen",)
    sides, why = find_residue_sides(vectors, [every, first, last])
    assert not sides
    assert "the same antibody, and all training pairs have the same antigen; expected" in why
    decided = RunParts.decide("residue_kernel", KINDS, vectors, [every, last])
    assert decided.residue_sides == ("antigen",)
    with pytest.raises(TrainingError, match="residue_kernel: all training pairs have the same"):
        RunParts.decide("residue_kernel", KINDS, vectors, [every, first, last])
    stack = RunParts.decide("stack", KINDS, vectors, [every, first, last])
    assert "residue_kernel" not in stack.models
    assert any(text.startswith("residue_kernel left out: all") for text in stack.left_out)


def test_a_fit_compares_the_sides_that_the_run_decided():
    training = make_training(*both_libraries())
    model = MODELS["residue_kernel"].fit(replace(training, residue_sides=("antigen",)))
    assert [side.kind for side in model.compared] == ["antigen"]


def test_columns_of_forged_sides_are_refused():
    one_hot = OneHot(("E",), (".", "E", "."), marks_new=True)
    antigen = SideColumns("antigen", one_hot)
    antibody = SideColumns("antibody", OneHot(("E", ""), (".", "E", ".", "."), marks_new=True))
    with pytest.raises(ValueError, match="antibody with 1 chains"):
        SideColumns("antibody", one_hot)
    assert OneHotRidgeSettings(0.0, (antibody, antigen))
    for sides in ((), (antigen, antigen), (antigen, antibody)):
        with pytest.raises(ValueError, match="one-hot columns of the sides"):
            OneHotRidgeSettings(0.0, sides)
    model = MODELS["residue_kernel"].fit(make_training(*both_libraries()))
    process = replace(
        model.settings.process, antigen=replace(model.settings.process.antigen, widths=(1,))
    )
    with pytest.raises(ValueError, match="residues of antigen with"):
        ResidueSettings(model.compared, process)
    record = asdict(model.settings)
    record["sides"][0]["kind"] = "protein"
    with pytest.raises(TypeError, match="kind is 'protein'"):
        parse(ResidueSettings, json.loads(json.dumps(record)))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("sides")
    antibodies, antigens, (i, j), pkd, _ = antigen_library(0.1, variants=70)
    frame = pd.DataFrame(
        {"heavy": np.array(antibodies)[i], "antigen": np.array(antigens)[j], "pKd": pkd}
    )
    abag.embed_table(frame, at / "store", **COMPOSITION)
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


@pytest.mark.parametrize("head", ["residue_kernel", "one_hot_ridge"])
def test_a_predictor_of_an_antigen_library_predicts_what_its_run_measured(case, head):
    held_out = case.frame.index % 4 == 0
    run = case.at / head
    summary = abag.fit(case.frame[~held_out], case.store, run, head=head, **QUICK)
    rows = case.frame[held_out]
    predictor = abag.load_predictor(run)
    scores = predictor.predict(
        rows["heavy"], None, rows["antigen"], store=case.store, say=lambda _text: None
    )
    error = np.sqrt(np.square(scores["pkd_predicted"].to_numpy() - rows["pKd"].to_numpy()).mean())
    metrics = summary["regimes"][0]["metrics"]
    assert error == pytest.approx(metrics["head"]["rmse"], rel=0.25)
    if head == "residue_kernel":
        assert error < 0.8 * metrics["composition_ridge"]["rmse"]


@pytest.mark.ci
def test_a_stack_leans_on_the_residues_of_antigens_and_a_share_says_so(case, capfd):
    run = case.at / "stack"
    summary = abag.fit(case.frame, case.store, run, widths=(8,), epochs=2, **QUICK)
    (regime,) = summary["regimes"]
    assert regime["weights"]["residue_kernel"] > 0.3
    abag.share(run, to=str(case.at / "shared"))
    said = capfd.readouterr().err
    antigens = case.frame["antigen"].nunique()
    assert f"the sequences of {antigens} antigens of the training data, as residues" in said
    assert "the consensus of the training antigens" in said
