"""Residues of variants as columns, and kernel ridge on them as a head and as part of a stack."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from chunks import set_sizes
from drawn import COMPOSITION, RESIDUES
from heads import PairVectors, TrainingRows, reloaded
from hypothesis import given
from hypothesis import strategies as st
from trastuzumab import HEAVY as TRASTUZUMAB

import abag
from abag import TrainingError
from abag.head.models import residue_kernel
from abag.head.models.kernel_search import NOISES, fit_gaussian_process
from abag.head.models.pair_vectors import SideVectors
from abag.head.models.residue_kernel import (
    RESIDUE_WEIGHTS,
    OneHot,
    common_reference,
    coordinates,
    fit_residue_kernel,
    similarity,
)
from abag.head.predictor.parts import Parts

PARENT = ("EVQLVESGGGLV", "DIQMTQSPSS")
H3 = np.arange(98, 104)
QUICK = {"report": False, "split": "random", "device": "cpu"}
SMALL = {"widths": (8,), "epochs": 2}
chain = st.text("ACDE", max_size=8)


def variants(number, seed=0):
    """Trastuzumab with mutations in CDR H3, of which one residue is absent in one in ten."""
    rng = np.random.default_rng(seed)
    drawn = {}
    while len(drawn) < number:
        heavy = list(TRASTUZUMAB)
        for at in H3[rng.permutation(len(H3))[: rng.integers(0, 4)]]:
            heavy[at] = rng.choice(RESIDUES)
        if rng.random() < 0.1:
            del heavy[H3[2]]
        drawn["".join(heavy), ""] = None
    return list(drawn)


@given(st.lists(st.tuples(chain, chain), min_size=1, max_size=6), st.tuples(chain, chain))
def test_chains_of_the_length_of_the_reference_are_as_far_as_they_have_mismatches(chains, other):
    length = tuple(map(len, chains[0]))
    used = [antibody for antibody in chains if tuple(map(len, antibody)) == length]
    one_hot = OneHot.of(used, used[0], marks_new=True)
    x = one_hot.encode(used)[:, : one_hot.width]
    assert set(np.unique(x)) <= {0, 1}
    for i, left in enumerate(used):
        for j, right in enumerate(used):
            mismatches = sum(a != b for a, b in zip("".join(left), "".join(right), strict=True))
            assert np.square(x[i] - x[j]).sum() == 2 * mismatches
    assert one_hot.encode([other]).shape == (1, sum(one_hot.views))  # of any length


def test_a_deletion_and_an_insertion_differ_from_the_reference_in_one_place_each():
    deleted = "EVLVESGGGLV"
    inserted = "EVQLVEWSGGGLV"
    light = PARENT[1]
    trained = [PARENT, (deleted, light), (inserted, light)]
    one_hot = OneHot.of(trained, PARENT, marks_new=True)
    x = one_hot.encode(trained)[:, : one_hot.width]
    squared = np.square(x[:, None] - x[None]).sum(axis=2)
    np.testing.assert_array_equal(squared, [[0, 2, 2], [2, 0, 4], [2, 4, 0]])


def test_a_residue_that_no_training_antibody_had_is_in_a_column_of_its_own():
    trained = [PARENT, ("AVQLVESGGGLV", PARENT[1])]
    one_hot = OneHot.of(trained, PARENT, marks_new=True)
    new_residue, new_position, of_parent = one_hot.encode(
        [("WVQLVESGGGLV", PARENT[1]), ("EVQLVESGGGLW", PARENT[1]), PARENT]
    )[:, : one_hot.width]
    assert np.square(new_residue - of_parent).sum() == 2
    assert np.square(new_position - of_parent).sum() == 1
    lean = OneHot.of(trained, PARENT, marks_new=False)
    assert lean.width == 2  # E and A at the first position
    assert not lean.encode([("WVQLVESGGGLV", PARENT[1])]).any()
    assert OneHot.of([PARENT], PARENT, marks_new=False) is None  # nothing varies


def test_the_reference_is_the_consensus_of_the_pairs_with_the_commonest_lengths():
    chains = [PARENT, ("EVQLVESGGGLW", PARENT[1]), ("EVQLVESGGGLV", "DIQ"), PARENT]
    assert common_reference(chains, np.array([0, 0, 1, 2])) == PARENT
    assert common_reference(chains, np.array([2, 2, 2, 0])) == ("EVQLVESGGGLV", "DIQ")
    different = [("A" * n, "") for n in range(1, 9)]
    assert common_reference(different, np.arange(8)) is None


@pytest.mark.parametrize("forged", [
    {"reference": ("EV",)}, {"reference": ("e", "")}, {"seen": (".", "EE", ".", ".")},
    {"seen": (".", "E!", ".", ".")}, {"marks_new": False},
])  # fmt: skip
def test_columns_of_a_forged_predictor_are_refused(forged):
    valid = {"reference": ("E", ""), "seen": (".", "E", ".", "."), "marks_new": True}
    assert OneHot(**valid).width == 4
    with pytest.raises(ValueError, match="one-hot columns"):
        OneHot(**valid | forged)


def make_training(chains, pkd, train):
    antibodies = SideVectors(np.zeros((len(chains), 2), np.float32), np.arange(len(chains)), chains)
    antigens = SideVectors(np.zeros((1, 2), np.float32), np.zeros(len(chains), np.int64))
    vectors = PairVectors({"antibody": antibodies, "antigen": antigens})
    rows = np.arange(train)
    labels = SimpleNamespace(pkd=pkd, measurements=np.ones(len(pkd)), share=None)
    return TrainingRows(labels, vectors, rows, rows % 5)


def test_the_first_view_is_that_of_mismatches_between_each_two_antibodies(monkeypatch):
    monkeypatch.setattr(residue_kernel, "RESIDUE_WEIGHTS", [(1.0, 0.0, 0.0)])
    chains = [antibody for antibody in variants(60) if len(antibody[0]) == len(TRASTUZUMAB)]
    rng = np.random.default_rng(1)
    training = make_training(chains, 8 + rng.normal(size=len(chains)), 40)
    fit = fit_residue_kernel(training)
    settings = fit.inner.settings
    # residues that training did not have are of one kind, and where nothing varied half as far
    seen = [set(column) for column in zip(*(heavy for heavy, _ in chains[:40]), strict=True)]

    def residues_as_seen(antibody):
        return [a if a in s else "new" for a, s in zip(antibody[0], seen, strict=True)]

    def squared(left, right):
        distance = 0
        columns = zip(residues_as_seen(left), residues_as_seen(right), seen, strict=True)
        for a, b, letters in columns:
            if a != b:
                distance += 2 if len(letters) > 1 else 1
        return distance

    d = np.zeros((len(chains), len(chains)))
    for i, left in enumerate(chains):
        d[i] = [squared(left, right) for right in chains]
    unit = d[:40, :40].mean()
    k = 1 / (1 + d / unit / (2 * settings.scale))
    mean = training.pkd.mean()
    predicted = fit.predict(training.vectors)
    weights = [
        np.linalg.solve(k[:40, :40] + noise * np.eye(40), training.pkd - mean) for noise in NOISES
    ]
    expected = [mean + k[:, :40] @ weight for weight in weights]
    assert sum(np.allclose(predicted, pkd, rtol=1e-7) for pkd in expected) == 1


def test_coordinates_have_the_distances_of_substitutions_also_to_residues_not_seen():
    alike = similarity()
    np.testing.assert_allclose(alike, alike.T, rtol=1e-12)
    assert np.linalg.eigvalsh(alike).min() > 0
    table = coordinates("ATS")
    for letter in "WVAG-X":
        for seen in "ATS":
            squared = np.square(table[ord(letter)] - table[ord(seen)]).sum()
            assert squared == pytest.approx(2 - 2 * alike[ord(letter), ord(seen)], abs=1e-5)
    alone = coordinates("A")
    assert alone.shape == (256, 1)
    assert np.square(alone[ord("V")] - alone[ord("A")]).sum() == pytest.approx(1 - alike[65, 86])


def test_residues_that_replace_each_other_share_what_the_residue_kernel_learns(monkeypatch):
    rng = np.random.default_rng(0)
    alike = similarity()
    codes = [ord(letter) for letter in RESIDUES]
    root = np.linalg.cholesky(alike[np.ix_(codes, codes)])
    effect = {at: root @ rng.normal(size=20) for at in range(98, 104)}
    chains = [antibody for antibody in variants(160) if len(antibody[0]) == len(TRASTUZUMAB)]
    pkd = np.full(len(chains), 8.0)
    for row, (heavy, _) in enumerate(chains):
        pkd[row] += sum(effect[at][RESIDUES.index(heavy[at])] for at in effect)
    training = make_training(chains, pkd, 60)
    errors = []
    for tried in ([(1.0, 0.0, 0.0)], RESIDUE_WEIGHTS):
        monkeypatch.setattr(residue_kernel, "RESIDUE_WEIGHTS", tried)
        model = fit_residue_kernel(training)
        errors.append(np.square(model.predict(training.vectors) - pkd)[60:].mean())
    assert errors[1] < errors[0]
    assert model.inner.kernel.weights[0] != (1.0, 0.0, 0.0)
    again = reloaded(model)
    np.testing.assert_allclose(
        again.predict(training.vectors), model.predict(training.vectors), rtol=1e-10
    )
    variance = model.variance(training.vectors)
    np.testing.assert_allclose(again.variance(training.vectors), variance, rtol=1e-5, atol=1e-9)


def test_residues_are_aligned_once_for_predictions_and_their_variance(monkeypatch):
    training = make_training(variants(40), np.linspace(6, 9, 40), 30)
    model = fit_residue_kernel(training)
    expected = model.predict(training.vectors)
    variance = model.variance(training.vectors)
    calls = []
    number = residue_kernel.align
    monkeypatch.setattr(
        residue_kernel, "align", lambda chains, r: calls.append(len(chains)) or number(chains, r)
    )
    parts = Parts({"residue_kernel": (model,)})
    predicted, of_parts = parts.predict_with_variance(training.vectors, ["residue_kernel"])
    np.testing.assert_array_equal(predicted["residue_kernel"], expected)
    np.testing.assert_array_equal(of_parts["residue_kernel"], variance)
    assert calls.count(40) == 1


def test_only_the_variances_that_count_are_computed():
    training = make_training(variants(40), np.linspace(6, 9, 40), 30)
    models = {
        "gp": (fit_gaussian_process(training, "evidence"),),
        "residue_kernel": (fit_residue_kernel(training),),
    }
    parts = Parts(models)
    of_all, variances = parts.predict_with_variance(training.vectors, ["gp"])
    assert ({*of_all}, {*variances}) == ({"gp"}, {*models})
    for varying in ([], ["gp"], [*models]):
        predicted, of_varying = parts.predict_with_variance(training.vectors, ["gp"], varying)
        np.testing.assert_array_equal(predicted["gp"], of_all["gp"])
        assert [*of_varying] == varying
        for name, variance in of_varying.items():
            np.testing.assert_array_equal(variance, variances[name])


@pytest.mark.parametrize("values", [100, 2**24])
def test_variants_compared_by_letter_are_as_far_as_their_columns(monkeypatch, values):
    monkeypatch.setattr(residue_kernel, "MOST_VALUES", values)  # training in blocks, or at once
    drawn = variants(60)
    drawn += [
        (heavy[:50] + "ACX"[i] + heavy[51 + i :], "") for i, (heavy, _) in enumerate(drawn[:3])
    ]
    training = make_training(drawn, np.sin(np.arange(63)), 40)
    model = fit_residue_kernel(training)
    pairs = training.vectors
    for weights in RESIDUE_WEIGHTS:
        settings = model.inner.settings
        antibody = replace(settings.antibody, weights=weights)
        inner = replace(model.inner, settings=replace(settings, antibody=antibody))
        model = replace(model, inner=inner)
        by_columns = model.encode(pairs)
        np.testing.assert_allclose(model.predict(pairs), inner.predict(by_columns), rtol=1e-9)
        variance = inner.variance(by_columns)
        np.testing.assert_allclose(model.variance(pairs), variance, rtol=1e-4, atol=1e-7)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Variants whose labels have an interaction of two positions, and composition vectors."""
    at = tmp_path_factory.mktemp("one_hot")
    rng = np.random.default_rng(0)
    chains = variants(240)
    effect = rng.normal(size=(6, 256))
    letters = np.array([list(heavy.encode())[H3[0] : H3[-1] + 1] for heavy, _ in chains])
    value = sum(effect[k, letters[:, k]] for k in range(6))
    changed = letters != list(TRASTUZUMAB.encode())[H3[0] : H3[-1] + 1]
    value += 1.5 * (changed[:, 0] & changed[:, 1])
    frame = pd.DataFrame(chains, columns=["heavy", "light"])[["heavy"]]
    frame["antigen"] = "MKTAYIAKQRQISFVK"
    frame["pKd"] = 8 + 0.5 * value + 0.1 * rng.normal(size=len(frame))
    abag.embed_table(frame, at / "store", **COMPOSITION)
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


@pytest.fixture(scope="module")
def runs(case):
    return {
        head: abag.fit(case.frame, case.store, case.at / head, head=head, **QUICK | network)
        for head, network in (("stack", SMALL), ("residue_kernel", {}), ("one_hot_ridge", {}))
    }


def rmse(summary, name="head"):
    return summary["regimes"][0]["metrics"][name]["rmse"]


def test_a_stack_of_variants_leans_on_its_kernel_on_residues(runs):
    stack = runs["stack"]
    alone = runs["residue_kernel"]
    assert stack["regimes"][0]["weights"]["residue_kernel"] > 0.3
    assert rmse(alone) <= rmse(stack) < 1.5 * rmse(alone)  # beside networks of two epochs
    assert rmse(stack) < 0.7 * min(rmse(stack, model) for model in ("antibody_ridge", "train_mean"))


@pytest.mark.parametrize("head", ["stack", "residue_kernel", "one_hot_ridge"])
def test_every_way_to_predict_gives_the_same(case, runs, tmp_path, head):
    run = case.at / head

    def said(_text):
        return None

    rows = case.frame
    predictor = abag.load_predictor(run)
    direct = predictor.predict(rows["heavy"], None, rows["antigen"], store=case.store, say=said)
    expected = direct["pkd_predicted"].to_numpy()
    abag.predict(rows, run, tmp_path / "rows.csv", store=case.store, say=said)
    abag.predict(rows, run, tmp_path / "all.csv", cross=rows.head(1), store=case.store, say=said)
    for name in ("rows.csv", "all.csv"):
        predicted = pd.read_csv(tmp_path / name)
        np.testing.assert_allclose(predicted["pkd_predicted"], expected, rtol=1e-5)
    scored = abag.evaluate(table=rows, run=run, store=case.store)
    error = expected - rows["pKd"].to_numpy()
    assert scored["table"]["metrics"]["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-4)


@pytest.mark.parametrize(("lengths", "message"), [(40, "fewer than 50%"), (1, "share")])
def test_unrelated_antibodies_are_refused_before_anything_is_written(tmp_path, lengths, message):
    rng = np.random.default_rng(0)
    heavies = ["".join(rng.choice(RESIDUES, 20 + i * (lengths > 1))) for i in range(40)]
    frame = pd.DataFrame({"heavy": heavies, "antigen": "MKTAYIAKQR", "pKd": rng.normal(8, 1, 40)})
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    with pytest.raises(TrainingError, match=f"{message}.*expected variants of one antibody"):
        abag.fit(frame, tmp_path / "store", tmp_path / "run", head="residue_kernel", **QUICK)
    assert not (tmp_path / "run").exists()
    said = []
    options = QUICK | SMALL | {"say": said.append, "verbose": True}
    summary = abag.fit(frame, tmp_path / "store", tmp_path / "run", **options)
    assert "residue_kernel" not in summary["regimes"][0]["weights"]
    assert any("residue_kernel left out: " in text for text in said)


def test_too_many_antibodies_for_a_ridge_are_refused_before_anything_is_written(case, monkeypatch):
    set_sizes(monkeypatch, one_hot_products=1000)
    with pytest.raises(TrainingError, match="training antibodies; expected few enough"):
        abag.fit(case.frame, case.store, case.at / "refused", head="one_hot_ridge", **QUICK)
    assert not (case.at / "refused").exists()


def test_a_scan_predicts_new_residues_with_a_sigma_of_the_difference(case, runs, tmp_path):
    case.frame.head(1).to_csv(tmp_path / "parent.csv", index=False)
    abag.scan(
        case.at / "stack",
        parents=tmp_path / "parent.csv",
        out=tmp_path / "scan.csv",
        store=case.store,
        region="cdrh3",
    )
    scanned = pd.read_csv(tmp_path / "scan.csv")
    assert np.isfinite(scanned[["pkd_predicted", "difference", "difference_sigma"]]).all(axis=None)
