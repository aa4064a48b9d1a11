"""What abag says of planted tables whose scores would mislead: warnings and sentences."""

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION, RESIDUES

import abag

QUICK = {"head": "ridge", "report": False, "device": "cpu"}


def draw_chains(rng, number):
    """Unrelated chains of different compositions."""
    shares = rng.dirichlet(np.ones(20), number)
    return ["".join(rng.choice(RESIDUES, rng.integers(60, 120), p=share)) for share in shares]


def standardised(values):
    return (values - np.mean(values)) / np.std(values)


def share_of(chains, residue):
    return standardised([chain.count(residue) / len(chain) for chain in chains])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """200 pairs of as many antibodies and 10 antigens, labels that follow from the antibody."""
    at = tmp_path_factory.mktemp("planted")
    rng = np.random.default_rng(0)
    heavies = draw_chains(rng, 200)
    antigens = draw_chains(rng, 10)
    frame = pd.DataFrame({"heavy": heavies, "antigen": rng.choice(antigens, 200)})
    frame["pKd"] = 7 + share_of(heavies, "W") + 0.3 * rng.normal(size=200)
    everything = pd.concat([frame, frame.assign(antigen=antigens[0])])
    abag.embed_table(everything, at / "store", **COMPOSITION)
    return frame, at / "store"


def by_name(summary):
    return {regime["regime"]: regime for regime in summary["regimes"]}


def fit(drawn, tmp_path, table, **options):
    return abag.fit(table, drawn[1], tmp_path / "run", **QUICK | options)


def test_simpsons_paradox_shows_within_antigens(drawn, tmp_path):
    frame = drawn[0].copy()
    w = share_of(frame["heavy"], "W")
    order = np.argsort(w)
    antigens = frame["antigen"].unique()
    group = np.empty(200, int)
    group[order] = np.arange(200) * len(antigens) // 200  # many W, another antigen
    frame["antigen"] = antigens[group]
    within = w - pd.Series(w).groupby(group).transform("mean").to_numpy()
    frame["pKd"] = 9 - 0.5 * group + standardised(within) * 0.3
    abag.embed_table(frame, drawn[1], **COMPOSITION)
    summary = fit(drawn, tmp_path, frame, split="random", folds=4, repeats=1)
    (regime,) = summary["regimes"]
    assert regime["spearman"]["value"] > regime["spearman_within_antigen"]["value"] + 0.3
    (said,) = [text for text in summary["warnings"] if "antigen alone explains" in text]
    assert "metrics within antigen" in said


def test_one_antigen_is_measured_with_new_antibodies_only(drawn, tmp_path):
    one_antigen = drawn[0].assign(antigen=drawn[0]["antigen"].iloc[0])
    abag.embed_table(one_antigen, drawn[1], **COMPOSITION)
    summary = fit(drawn, tmp_path, one_antigen)
    new = by_name(summary)["new_antibody"]
    assert new["sentence"].startswith("new antibodies, known antigens: ranking")
    assert new["better_than_mean"]["low"] > 0
    assert {"new_antigen", "both_new"} <= {regime["regime"] for regime in summary["not_measured"]}
    assert not any("antigen alone" in text for text in summary["warnings"])


def test_one_antibody_is_measured_with_new_antigens_only(drawn, tmp_path):
    frame = drawn[0]
    one_antibody = frame.assign(heavy=frame["heavy"].iloc[0], antigen=frame["heavy"])
    abag.embed_table(one_antibody, drawn[1], **COMPOSITION)
    summary = fit(drawn, tmp_path, one_antibody)
    new = by_name(summary)["new_antigen"]
    assert new["sentence"].startswith("known antibodies, new antigens: ranking")
    assert new["better_than_mean"]["low"] > 0
    assert {"new_antibody", "both_new"} <= {regime["regime"] for regime in summary["not_measured"]}
    scores = abag.load_predictor(tmp_path / "run").predict(
        [*frame["heavy"].head(3)], None, frame["heavy"].iloc[5], store=drawn[1]
    )
    assert scores["far"].tolist() == [False, True, True]


@pytest.mark.parametrize("head", ["ridge", "stack"])
def test_shuffled_labels_are_not_predicted(drawn, tmp_path, head):
    frame = drawn[0]
    rng = np.random.default_rng(3)
    shuffled = frame.assign(pKd=rng.permutation(frame["pKd"]))
    options = {"head": head} | ({"epochs": 5} if head == "stack" else {})
    summary = fit(drawn, tmp_path, shuffled, split="antibody", folds=3, repeats=1, **options)
    (regime,) = summary["regimes"]
    assert "errors are not shown to be smaller than those of the mean" in regime["sentence"]
    assert regime["rmse"] < 1.05 * regime["rmse_of_mean"]


def test_families_are_recognised_where_they_are_known_and_not_where_they_are_new(drawn, tmp_path):
    frame = drawn[0].head(25)
    rng = np.random.default_rng(4)
    rows = []
    for _, row in frame.iterrows():
        label = rng.normal(8, 1)  # of the family: nothing can be learned but to recognize it
        for _ in range(8):
            letters = list(row["heavy"])
            letters[rng.integers(len(letters))] = rng.choice(RESIDUES)
            label_of_row = label + 0.1 * rng.normal()
            rows.append({"heavy": "".join(letters), "antigen": row["antigen"], "pKd": label_of_row})
    variants = pd.DataFrame(rows).drop_duplicates("heavy").assign(antigen=frame["antigen"].iloc[0])
    abag.embed_table(variants, drawn[1], **COMPOSITION)
    regimes = by_name(fit(drawn, tmp_path, variants, head="kernel", folds=3, repeats=1))
    known = regimes["new_variant"]
    new = regimes["new_antibody"]
    assert known["spearman"]["value"] > 0.8
    assert known["better_than_mean"]["low"] > 0
    assert "errors are not shown to be smaller than those of the mean" in new["sentence"]
    assert known["split"]["leaks_of_all_folds"]["antibody"]["0.9"] > 0.9 * known["n"]
    assert new["split"]["leaks_of_all_folds"]["antibody"]["0.9"] == 0


def test_thirty_percent_of_the_labels_at_the_floor_are_reported(drawn, tmp_path):
    frame = drawn[0]
    floored = frame.assign(pKd=frame["pKd"].clip(lower=frame["pKd"].quantile(0.3)))
    summary = fit(drawn, tmp_path, floored, split="random")
    assert any(text.startswith("60 of 200 exact labels equal") for text in summary["warnings"])
    assert any("a floor" in text and "--floor" in text for text in summary["warnings"])


@pytest.mark.parametrize("pairs", [2, 5])
def test_too_few_pairs_for_any_regime_are_refused_with_the_numbers(drawn, tmp_path, pairs):
    with pytest.raises(abag.AbagError, match=f"{pairs} distinct pairs, too few to measure any"):
        fit(drawn, tmp_path, drawn[0].head(pairs))
    assert not (tmp_path / "run").exists()


def test_two_pairs_are_too_few_for_any_split(drawn, tmp_path):
    with pytest.raises(abag.AbagError, match="only 2 groups; expected at least one group per fold"):
        fit(drawn, tmp_path, drawn[0].head(2), split="random")
    assert not (tmp_path / "run").exists()
