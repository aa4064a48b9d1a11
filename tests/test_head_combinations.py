"""Combinations of changes that almost no training antibody had."""

import json
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trastuzumab import HEAVY, LIGHT

import abag
from abag.embed.sequences.domains import number_domain
from abag.embed.sequences.numbering import number_antibodies
from abag.head.prediction import combinations as combinations_module
from abag.head.prediction import novelty as novelty_module
from abag.head.prediction.novelty import (
    UNCOUNTED,
    Novelty,
    as_columns,
    measure_novelty,
    widening_of,
)
from abag.sklearn import AffinityRegressor

H3, FRAMEWORK, H2 = HEAVY.index("WGGDGFYAMDY"), 67, HEAVY.index("YPTNGY")
RESIDUES = "ADEFGHIKLN"


def mutated(chain, *changes):
    for at, residue in changes:
        chain = chain[:at] + residue + chain[at + 1 :]
    return chain


def library(sites, rows=300):
    """Variants with one random residue in each of some sites, all sites in each variant."""
    rng = np.random.default_rng(0)
    found = {}
    while len(found) < rows:
        changes = [(at, rng.choice([r for r in RESIDUES if r != HEAVY[at]])) for at in sites]
        found[mutated(HEAVY, *changes), LIGHT] = None
    return list(found)


@pytest.fixture(scope="module")
def linked():
    """Trained on changes in CDR H3 and framework 3 together, and on framework 3 alone."""
    both, alone = library([H3, H3 + 1, FRAMEWORK]), library([FRAMEWORK + 2, FRAMEWORK + 3], 90)
    return [*both, *alone]


def test_known_residues_in_a_new_set_of_regions_are_a_new_combination(linked):
    novelty = measure_novelty(linked)
    asked = [
        mutated(HEAVY, (H3, "A"), (H3 + 1, "E")),  # CDR H3 without the framework
        mutated(HEAVY, (H3, "A"), (FRAMEWORK, "E")),
        mutated(HEAVY, (FRAMEWORK, "E")),
        HEAVY,
        mutated(HEAVY, (H3, "X"), (H3 + 1, "X")),
    ]
    found = novelty.count([(heavy, LIGHT) for heavy in asked])
    assert not found[:, :2].any()  # every residue was seen
    assert found[:, 2].tolist() == [2, 2, 1, 0, 0]
    assert found[:, 3].tolist() == [1, 0, 0, 0, 0]
    assert novelty.is_far(found).tolist() == [True, False, False, False, False]


def test_more_changes_than_in_training_are_a_new_combination():
    sites = [H3, H3 + 1, H3 + 2, H3 + 3]
    rng, training = np.random.default_rng(1), {}
    while len(training) < 300:
        chosen = rng.choice(sites, 2, replace=False)
        changes = ((at, RESIDUES[rng.integers(10)]) for at in chosen)
        training[mutated(HEAVY, *changes), LIGHT] = None
    novelty = measure_novelty(list(training))
    asked = [mutated(HEAVY, *((at, "A") for at in sites[:n])) for n in range(5)]
    found = novelty.count([(heavy, LIGHT) for heavy in asked])
    assert found[:, 2].tolist() == [0, 1, 2, 3, 4]
    assert found[:, 3].tolist() == [0, 0, 0, 1, 1]


def test_at_most_two_of_a_hundred_training_antibodies_are_new_combinations(linked):
    rng = np.random.default_rng(2)
    rare = [mutated(HEAVY, (H2, RESIDUES[k])) for k in range(3)]
    training = [*linked, *((heavy, LIGHT) for heavy in rare)]
    novelty = measure_novelty([training[n] for n in rng.permutation(len(training))])
    new = novelty.reasons(novelty.count(training))["new_combination"]
    assert new[-3:].all()  # 0.8 % of the training antibodies
    assert new.mean() <= 0.02


def test_unrelated_and_few_antibodies_have_no_combinations(linked):
    few = measure_novelty(linked[:199])
    assert few.combinations is None
    assert few.count(linked[:3]).shape == (3, 2)
    assert list(as_columns(few.count(linked[:3]))) == ["new_positions", "new_residues"]
    rng = np.random.default_rng(0)
    at = [n for n in range(len(HEAVY)) if HEAVY[n] not in "CW"]
    strange = [
        (mutated(HEAVY, *((k, RESIDUES[rng.integers(10)]) for k in rng.choice(at, 50))), "")
        for _ in range(250)
    ]
    assert measure_novelty(strange).combinations is None


def test_an_antibody_that_cannot_be_numbered_has_empty_cells_and_is_not_far(linked):
    novelty = measure_novelty([*linked, ("W" * 15, "")])
    found = novelty.count([("W" * 15, ""), (HEAVY, "")])
    assert found[0].tolist() == [UNCOUNTED] * 5
    assert novelty.widening(found).tolist() == [1.0, 1.0]
    assert found[1, 3] == 0
    assert not novelty.is_far(found).any()
    table = pd.DataFrame(as_columns(found))
    assert table.isna().to_numpy().tolist() == [[True] * 4, [False] * 4]
    assert [str(kind) for kind in table.dtypes] == ["Int16", "Int16", "Int16", "boolean"]


def plain(training, asked):
    """Changes, new combination and share of the same regions, from dictionaries of residues."""
    places = (26, 38, 55, 65, 104, 117, 128)

    def numbered(antibody):
        return {
            (name, position): residue
            for name, chain in zip(("heavy", "light"), antibody, strict=True)
            for position, residue in (number_domain(chain, name) if chain else {}).items()
        }

    known = [numbered(antibody) for antibody in training]
    every = dict.fromkeys(place for one in known for place in one)
    common = {}
    for place in every:
        found = Counter(one.get(place, "-") for one in known if has(one, place))
        most = max(count for residue, count in found.items() if residue != "X")
        common[place] = min(r for r, count in found.items() if count == most and r != "X")

    def changes(one):
        counts = Counter()
        for place in {*one, *common}:
            residue = one.get(place, "-")
            if has(one, place) and residue not in ("X", common.get(place, "-")):
                number = int(place[1].rstrip("ABCDEFGHIJ"))
                counts[place[0], next(n for n, last in enumerate(places) if number <= last)] += 1
        return counts

    def tail(one):
        return min(
            np.mean([amount(other, region) >= amount(one, region) for other in all_changes])
            for region in [None, *{r for c in all_changes for r in c}, *one]
        )

    def amount(one, region):
        return one.total() if region is None else one[region]

    all_changes = [changes(one) for one in known]
    level = np.quantile([tail(one) for one in all_changes], 0.01, method="lower")
    sets = Counter(frozenset(one) for one in all_changes)
    others = [sets[frozenset(one)] - 1 for one in all_changes]
    least = np.quantile(others, 0.01, method="lower")
    found = []
    for one in map(changes, map(numbered, asked)):
        is_rare = bool(one) and sets[frozenset(one)] < least
        share = 10_000 if not one else round(10_000 * sets[frozenset(one)] / len(known))
        found.append([one.total(), int(tail(one) < level or is_rare), share])
    return found


def has(one, place):
    """Tell whether a position is within the chain of a numbered antibody."""
    numbers = [int(p.rstrip("ABCDEFGHIJ")) for name, p in one if name == place[0]]
    number = int(place[1].rstrip("ABCDEFGHIJ"))
    return bool(numbers) and min(numbers) <= number <= max(numbers)


changed = st.lists(
    st.tuples(st.sampled_from([28, H2, H2 + 1, H3, H3 + 4]), st.sampled_from("ACX")), max_size=4
)
variants = st.tuples(
    st.builds(lambda c, cut: mutated(HEAVY, *c)[cut:], changed, st.sampled_from([0, 0, 2])),
    st.sampled_from([LIGHT, LIGHT, "", mutated(LIGHT, (30, "A"))]),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(variants, min_size=1, max_size=8), st.lists(variants, min_size=1, max_size=4))
def test_changes_and_new_combinations_equal_a_plain_reference(training, asked):
    training = [*dict.fromkeys([*training, (HEAVY, LIGHT)])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combinations_module, "LEAST_ANTIBODIES", 1)
        novelty = measure_novelty(training)
    found = novelty.count([*asked, *training])
    assert found[:, 2:].tolist() == plain(training, [*asked, *training])
    record = json.loads(json.dumps(novelty.to_json()))
    for again in (Novelty.from_json(record), pickle.loads(pickle.dumps(novelty))):
        assert again.count(asked).tolist() == found[: len(asked)].tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"known": [-1]},
        {"known": [1 << 14]},
        {"known": [True]},
        {"known": {}},
        {"most_changes": [1] * 14},
        {"most_changes": [0.5] * 15},
        {"most_changes": [1000] * 15},
        {"shares": [[0]]},
        {"shares": [[1 << 14, 5]]},
        {"shares": [[1, 10_001]]},
        {"shares": [[1, 0.5]]},
        {"shares": [[1, -1]]},
        {"shares": {}},
        {"consensus": []},
        {"consensus": {"heavy": {}}},
        {"consensus": {"heavy": {"1": "?"}, "light": {}}},
        {"more": 1},
    ],
)
def test_forged_combinations_are_refused(linked, change):
    record = measure_novelty(linked).to_json()
    Novelty.from_json(record)
    forged = record | {"combinations": record["combinations"] | change}
    with pytest.raises(ValueError, match="combinations of changes are not valid"):
        Novelty.from_json(forged)


@pytest.mark.parametrize("value", [[], 1, "a", {}])
def test_combinations_that_are_no_object_are_refused(linked, value):
    record = measure_novelty(linked[:10]).to_json()
    with pytest.raises(ValueError, match="combinations of changes are not valid"):
        Novelty.from_json(record | {"combinations": value})


def test_sigma_grows_where_few_training_antibodies_change_the_same_regions(linked):
    novelty = measure_novelty(linked)  # 300 change CDR H3 and framework 3, 90 framework 3 alone
    rare = library([H2], 4)
    many = measure_novelty([*linked, *rare])
    asked = [HEAVY, mutated(HEAVY, (FRAMEWORK, "E")), mutated(HEAVY, (H3, "A"))]
    pairs = [(heavy, LIGHT) for heavy in asked]
    assert novelty.widening(novelty.count(pairs)).tolist() == [1.0, 1.0, 2.0]
    found = many.widening(many.count(rare[:1]))[0]
    assert found == pytest.approx((0.1 / (4 / 394)) ** 0.2, rel=1e-3)  # 1.58
    chains = [*linked, *rare]
    numbered = number_antibodies(chains, None)
    of_all = widening_of(chains, measure_novelty(linked, numbered), numbered)
    assert of_all.tolist() == novelty.widening(novelty.count(chains)).tolist()
    assert set(of_all[len(linked) :]) == {2.0}
    few = measure_novelty(linked[:50], numbered)
    assert widening_of(chains, few, numbered).tolist() == [1.0] * len(chains)


# ---- fit, predict, scan --------------------------------------------------------------------------

ANTIGEN = "MKTAYIAKQRQISFVKSHFSRQ"
QUIET = {"say": lambda _text: None}


@pytest.fixture(scope="module")
def run(linked, tmp_path_factory):
    at = tmp_path_factory.mktemp("linked")
    table = pd.DataFrame([*linked, *library([H2], 6)], columns=["heavy", "light"])
    table["antigen"] = ANTIGEN
    table["pKd"] = 8 + np.random.default_rng(0).normal(size=len(table))
    table["part"] = "train"
    table.loc[::40, "part"] = "test"
    table.loc[1::40, "part"] = "val"
    abag.embed_table(table, at / "store", "composition", "composition")
    options = {"split": "column=part", "head": "ridge", "report": False}
    abag.fit(table, at / "store", at / "run", **options, **QUIET)
    return at / "run"


def asked_table():
    alone = [mutated(HEAVY, (H3, a), (H3 + 1, b)) for a in "ADE" for b in "EF"]
    heavy = [*alone, mutated(HEAVY, (H3, "A"), (FRAMEWORK, "E")), "W" * 15]
    return pd.DataFrame({"heavy": heavy, "light": LIGHT, "antigen": ANTIGEN})


def test_predict_all_pairs_and_the_predictor_agree_and_say_why_most_rows_are_far(run, tmp_path):
    table, said = asked_table(), []
    summary = abag.predict(table, run, tmp_path / "a.parquet", say=said.append)
    found = pd.read_parquet(tmp_path / "a.parquet")
    assert found["changes"].tolist() == [2] * 7 + [0]
    assert found["new_combination"].tolist() == [True] * 6 + [False] * 2
    assert found["far_antibody"][:6].all()
    assert summary["far_by"]["new_combination"] == 6
    assert summary["far_by"]["new_residues"] == 0
    assert any("6 by a new combination of changes" in line for line in said)
    abag.predict(table, run, tmp_path / "b.parquet", cross=table, **QUIET)
    crossed = pd.read_parquet(tmp_path / "b.parquet")
    predictor = abag.load_predictor(run)
    direct = predictor.predict(table["heavy"], table["light"], ANTIGEN, **QUIET)
    for other in (crossed, direct):
        for name in ("far_antibody", "changes", "new_combination"):
            assert other[name].tolist() == found[name].tolist()
        np.testing.assert_allclose(other["sigma"], found["sigma"], rtol=1e-6)
    constant = found["sigma"].iloc[-1]  # ridge has no variance of its own
    np.testing.assert_allclose(found["sigma"] / constant, [2.0] * 6 + [1.0] * 2)


def test_a_predictor_gives_the_sigma_that_the_fit_wrote(run, linked, tmp_path):
    written = pd.read_parquet(run / "predictions.parquet").sort_values("row")
    table = pd.DataFrame([*linked, *library([H2], 6)], columns=["heavy", "light"])
    table["antigen"] = ANTIGEN
    assert written["sigma"].nunique() > 1
    model = AffinityRegressor(str(run.parent / "store"), head="ridge")
    found = abag.load_predictor(run).predict(table["heavy"], table["light"], ANTIGEN, **QUIET)
    np.testing.assert_allclose(found["sigma"], written["sigma"], rtol=1e-5)
    model.predictor_ = abag.load_predictor(run)
    _, sigma = model.predict(table, return_std=True)
    np.testing.assert_allclose(sigma, written["sigma"], rtol=1e-5)
    abag.predict(table, run, tmp_path / "a.csv", **QUIET)
    np.testing.assert_allclose(
        pd.read_csv(tmp_path / "a.csv")["sigma"], written["sigma"], rtol=1e-5
    )


@pytest.mark.parametrize(("folds", "times"), [(0, 1), (2, 3)])
def test_a_fit_of_one_split_measures_its_training_antibodies_once(
    run, linked, tmp_path, monkeypatch, folds, times
):
    measured, measure = [], novelty_module.measure_novelty
    monkeypatch.setattr(
        novelty_module, "measure_novelty", lambda *given: measured.append(1) or measure(*given)
    )
    table = pd.DataFrame(linked, columns=["heavy", "light"]).assign(antigen=ANTIGEN)
    table["pKd"] = 8 + np.random.default_rng(0).normal(size=len(table))
    options = {"split": "random", "folds": folds, "repeats": 1, "head": "ridge", "report": False}
    abag.fit(table, run.parent / "store", tmp_path / "run", **options, **QUIET)
    assert len(measured) == times


def test_a_scan_has_the_columns_of_predict(run, tmp_path):
    asked = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN, "region": "cdrh3"}
    abag.scan(run, tmp_path / "a.csv", **asked, **QUIET)
    found = pd.read_csv(tmp_path / "a.csv")
    assert set(found["changes"]) == {1}
    assert found["new_combination"].all()
    assert found["far_antibody"].all()
    asked = found[["heavy", "light", "antigen"]]
    abag.predict(asked, run, tmp_path / "b.csv", **QUIET)
    again = pd.read_csv(tmp_path / "b.csv")
    np.testing.assert_allclose(again["sigma"], found["sigma"], rtol=1e-6)
    assert "a new combination has more of them" in (tmp_path / "a.html").read_text()
