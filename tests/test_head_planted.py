"""What abag says of planted tables whose scores would mislead: warnings and the plain verdict."""

import numpy as np
import pandas as pd
import pytest

import abag

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
QUICK = {"head": "ridge", "report": False, "device": "cpu", "say": lambda _text: None}
NOT_BETTER = "than predicting the mean: do not use it to rank"


def draw_chains(rng, number):
    """Unrelated chains of different compositions."""
    shares = rng.dirichlet(np.ones(20), number)
    return ["".join(rng.choice(RESIDUES, rng.integers(60, 120), p=one)) for one in shares]


def standardised(values):
    return (values - np.mean(values)) / np.std(values)


def share_of(chains, residue):
    return standardised([chain.count(residue) / len(chain) for chain in chains])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """200 pairs of as many antibodies and 10 antigens, labels that follow from the antibody."""
    at, rng = tmp_path_factory.mktemp("planted"), np.random.default_rng(0)
    heavies, antigens = draw_chains(rng, 200), draw_chains(rng, 10)
    frame = pd.DataFrame({"heavy": heavies, "antigen": rng.choice(antigens, 200)})
    frame["pKd"] = 7 + share_of(heavies, "W") + 0.3 * rng.normal(size=200)
    everything = pd.concat([frame, frame.assign(antigen=antigens[0])])
    abag.embed_table(everything, at / "store", **COMPOSITION)
    return frame, at / "store"


def fit(drawn, tmp_path, table, **options):
    return abag.fit(table, drawn[1], tmp_path / "run", **QUICK | options)


def test_thirty_percent_of_the_labels_at_the_floor_are_reported(drawn, tmp_path):
    frame = drawn[0]
    floored = frame.assign(pKd=frame["pKd"].clip(lower=frame["pKd"].quantile(0.3)))
    summary = fit(drawn, tmp_path, floored, split="random")
    assert any(text.startswith("60 of 200 exact labels equal") for text in summary["warnings"])
    assert any("a floor" in text and "--floor" in text for text in summary["warnings"])


def test_a_frequent_label_in_the_middle_is_no_floor(drawn, tmp_path):
    frame, rng = drawn[0], np.random.default_rng(1)
    tied = frame.assign(pKd=frame["pKd"].where(rng.random(200) < 0.5, 7.0))
    summary = fit(drawn, tmp_path, tied, split="random")
    (said,) = [text for text in summary["warnings"] if "exact labels equal" in text]
    assert "neither the lowest nor the highest" in said
    assert "floor" not in said


def test_different_labels_of_few_rows_are_no_floor(drawn, tmp_path):
    summary = fit(drawn, tmp_path, drawn[0].head(5))
    assert not any("labels equal" in text for text in summary["warnings"])
    assert "too few test rows to tell" in summary["verdict"]
    assert not any(
        " better than " in text or " worse than " in text for text in summary["verdicts"][1:]
    )


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
    scores = summary["metrics"]["test"]
    assert scores["spearman"] > scores["spearman_within_antigen"] + 0.3
    (said,) = [text for text in summary["warnings"] if "antigen alone explains" in text]
    assert "use the metrics within antigen" in said


def test_one_antigen_is_split_by_its_antibodies(drawn, tmp_path):
    one = drawn[0].assign(antigen=drawn[0]["antigen"].iloc[0])
    abag.embed_table(one, drawn[1], **COMPOSITION)
    summary = fit(drawn, tmp_path, one)
    assert summary["split"]["name"] == "antibody"
    assert "On antibodies not seen in training" in summary["verdict"]
    assert not any("antigen alone" in text for text in summary["warnings"])


@pytest.mark.parametrize("head", ["ridge", "stack"])
def test_shuffled_labels_are_not_predicted(drawn, tmp_path, head):
    frame, rng = drawn[0], np.random.default_rng(3)
    shuffled = frame.assign(pKd=rng.permutation(frame["pKd"]))
    options = {"head": head} | ({"epochs": 5} if head == "stack" else {})
    summary = fit(drawn, tmp_path, shuffled, split="antibody", folds=3, repeats=1, **options)
    assert NOT_BETTER in summary["verdict"]
    mean = summary["baselines"]["train_mean"]["test"]["rmse"]
    assert summary["metrics"]["test"]["rmse"] < 1.05 * mean


def test_leaked_variants_are_counted_and_held_out_by_the_default_split(drawn, tmp_path):
    frame, rng = drawn[0].head(25), np.random.default_rng(4)
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
    leaked = fit(drawn, tmp_path / "random", variants, split="random", head="kernel")
    honest = fit(drawn, tmp_path / "auto", variants, head="kernel", folds=3, repeats=1)
    assert leaked["metrics"]["test"]["spearman"] > 0.8
    test_rows = leaked["split"]["rows"]["test"]
    assert leaked["split"]["leaks"]["antibody"]["0.9"] > 0.9 * test_rows
    assert leaked["verdict"].startswith("On random pairs, of sequences also seen in training")
    assert honest["split"]["name"] == "antibody"
    assert honest["split"]["leaks_of_all_folds"]["antibody"]["0.9"] == 0
    assert "not clearly better than predicting the mean" in honest["verdict"]
