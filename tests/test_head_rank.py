"""`rank` from table to file: what is chosen, left out, kept, expected and refused."""

import json
import re
import shutil

import invoke
import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from heads import demo_table, sign
from trastuzumab import HEAVY

import abag
from abag import ColumnError, OptionError, OutputError, PredictionError
from abag.head.design.rank import describe_rank

ADDED = ["rank", "score", "expected_best"]
PAIR = ["heavy", "light", "antigen"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on composition vectors, and what it predicts for its own pairs."""
    folder = tmp_path_factory.mktemp("rank")
    pairs = demo_table().drop_duplicates(PAIR).head(240)
    pairs.to_csv(folder / "pairs.csv", index=False)
    abag.embed_table(folder / "pairs.csv", folder / "store", **COMPOSITION)
    run = folder / "run"
    quick = {"split": "random", "report": False}
    abag.fit(folder / "pairs.csv", folder / "store", run, head="gp", **quick)
    abag.predict(folder / "pairs.csv", run, folder / "scored.csv")
    return folder


@pytest.fixture
def scored(run):
    table = pd.read_csv(run / "scored.csv").fillna({"light": ""})
    return table.assign(far=False)


def ranked(predictions, folder, **options):
    out = folder / "order.csv"
    abag.rank(predictions, out, force=True, **options)
    return pd.read_csv(out).fillna({"light": ""})


def test_a_batch_is_the_best_by_mean_plus_sigma_of_the_model_with_all_columns_of_its_rows(
    scored, tmp_path
):
    batch = ranked(scored, tmp_path, batch=20, rule="ucb")
    bound = scored["pkd_predicted"] + 0.5 * scored["sigma_model"]
    best = scored.assign(bound=bound).sort_values("bound", ascending=False).head(20)
    assert batch["id"].tolist() == best["id"].tolist()
    assert batch.columns.tolist() == [*scored.columns, *ADDED]
    pd.testing.assert_frame_equal(
        batch[scored.columns], best[scored.columns].reset_index(drop=True)
    )
    np.testing.assert_allclose(batch["score"], best["bound"], atol=1e-4)
    assert batch["rank"].tolist() == [*range(1, 21)]
    assert batch["expected_best"].is_monotonic_increasing


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({"rule": "mean"}, lambda t: t["pkd_predicted"]),
        ({"rule": "ucb", "explore": 0}, lambda t: t["pkd_predicted"]),
        ({"rule": "ucb", "explore": 3}, lambda t: t["pkd_predicted"] + 3 * t["sigma_model"]),
        ({"rule": "probability", "above": 9}, lambda t: (t["pkd_predicted"] - 9) / t["sigma"]),
    ],
)  # fmt: skip
def test_a_rule_orders_the_pairs(scored, tmp_path, options, by):
    rng = np.random.default_rng(0)
    scored["sigma"] = rng.uniform(0.3, 1.5, len(scored))
    scored["sigma_model"] = rng.uniform(0, 0.3, len(scored))
    batch = ranked(scored, tmp_path, batch=30, **options)
    assert (
        batch["id"].tolist() == scored.loc[by(scored).sort_values()[::-1].index[:30], "id"].tolist()
    )


def test_improvement_is_what_the_model_does_not_know_and_the_whole_sigma_without_such_a_part(
    scored, tmp_path
):
    table = scored.assign(pkd_predicted=np.linspace(7, 7.5, 240), sigma=np.linspace(0.2, 2, 240))
    known = np.arange(240) % 2 == 0
    options = {"batch": 12, "rule": "improvement", "best": 9}
    batch = ranked(table.assign(sigma_model=np.where(known, 0.0, 0.5)), tmp_path, **options)
    assert not set(batch["id"]) & set(table.loc[known, "id"])
    whole = ranked(table.drop(columns="sigma_model"), tmp_path, **options)
    none = ranked(table.assign(sigma_model=0.0), tmp_path, **options)  # such as that of a ridge
    assert none["id"].tolist() == whole["id"].tolist()
    with pytest.raises(PredictionError, match=r"sigma_model: -1 .* not a valid standard err"):
        ranked(table.assign(sigma_model=-1), tmp_path, **options)


def test_pairs_of_a_batch_that_have_a_label_already_are_said(run, scored, tmp_path, said):
    ranked(scored, tmp_path, batch=8)
    line = "8 of the 8 chosen pairs have a value in column 'pKd', as if measured already: "
    assert f"{line}run=DIR or measured=TABLE leaves out pairs that are measured" in said
    said.clear()
    others = scored.assign(heavy=scored["heavy"] + "A")
    others.loc[others.nlargest(3, "pkd_predicted").index, "pKd"] = np.nan
    ranked(others, tmp_path, batch=8, run=run / "run")
    line = "5 of the 8 chosen pairs have a value in column 'pKd', as if measured already: the run "
    assert any(text.startswith(line) for text in said)
    said.clear()
    ranked(scored.drop(columns="pKd"), tmp_path, batch=8)
    ranked(scored.assign(pKd=""), tmp_path, batch=8)
    assert not any("as if measured" in text for text in said)


def test_rows_and_cells_stay_as_they_are_written(scored, tmp_path):
    numbered = scored.assign(id=[f"{n:03}" for n in range(len(scored))], note="NA")
    texts = numbered.astype(str).replace("nan", "").fillna("")  # missing, by the version of pandas
    texts.to_csv(tmp_path / "scored.tsv", sep="\t", index=False)
    abag.rank(tmp_path / "scored.tsv", tmp_path / "order.tsv", batch=5)
    batch = pd.read_csv(tmp_path / "order.tsv", sep="\t", dtype=str, keep_default_na=False)
    expected = texts.set_index("id").loc[batch["id"]].reset_index()[texts.columns]
    pd.testing.assert_frame_equal(batch[texts.columns], expected, check_dtype=False)


def test_measured_pairs_are_left_out_by_their_sequences_not_their_text(scored, tmp_path, said):
    best = ranked(scored, tmp_path, batch=10)
    measured = best[PAIR].rename(columns={"heavy": "VH", "light": "VL"}).assign(note="x")
    measured["VH"] = " " + measured["VH"].str.lower()
    batch = ranked(scored, tmp_path, batch=10, measured=measured)
    assert not set(batch["id"]) & set(best["id"])
    assert any("left out: 10 already measured" in line for line in said)


def test_pairs_without_a_label_are_not_measured(scored, tmp_path, said):
    best = ranked(scored, tmp_path, batch=10)
    labels = [7.0, *[None] * 9]
    batch = ranked(scored, tmp_path, batch=9, measured=best[PAIR].assign(pKd=labels))
    assert batch["id"].tolist() == best["id"].tolist()[1:]
    assert any("9 rows without a value in column 'pKd' are not measured" in x for x in said)


def test_an_antibody_measured_with_another_antigen_is_not_left_out(scored, tmp_path):
    best = ranked(scored, tmp_path, batch=1)
    other = scored.loc[scored["antigen"] != best["antigen"][0], "antigen"].iloc[0]
    measured = best[PAIR].assign(antigen=other)
    batch = ranked(scored, tmp_path, batch=1, measured=measured)
    assert batch["id"].tolist() == best["id"].tolist()


def test_improvement_compares_with_the_best_measured_of_the_same_antigens(scored, tmp_path):
    measured = scored[[*PAIR, "pKd"]].head(3)
    foreign = measured.head(1).assign(antigen="MKTAYIAKQRQISFVKSHFSRQ", pKd=13.0)
    measured = pd.concat([measured, foreign])
    best = float(measured["pKd"].iloc[:3].max())
    batch = ranked(scored, tmp_path, batch=5, rule="improvement", measured=measured)
    with_best = ranked(scored.iloc[3:], tmp_path, batch=5, rule="improvement", best=best)
    assert batch["score"].tolist() == with_best["score"].tolist()
    with pytest.raises(PredictionError, match="Give best=PKD"):
        ranked(scored, tmp_path, batch=5, rule="improvement", measured=foreign)
    other = measured.assign(KD=1.0).drop(columns="pKd")
    with pytest.raises(ColumnError, match=r"'KD' may be one: use .*KD.* label=UNIT"):
        ranked(scored, tmp_path, batch=5, rule="improvement", measured=other)


def test_far_pairs_are_left_out_unless_kept_and_flags_may_be_those_of_excel(scored, tmp_path, said):
    best = scored.sort_values("pkd_predicted").index[-7:]
    scored["far"] = pd.Series("FALSE", scored.index).where(~scored.index.isin(best), "TRUE")
    scored.to_excel(tmp_path / "scored.xlsx", index=False)
    batch = ranked(tmp_path / "scored.xlsx", tmp_path, batch=7, rule="mean")
    assert any("7 outside the training data" in line for line in said)
    assert not batch["far"].any()
    kept = ranked(tmp_path / "scored.xlsx", tmp_path, batch=7, rule="mean", keep_far=True)
    assert kept["far"].all()


def test_a_pair_is_ordered_once_and_refused_with_two_predictions(scored, tmp_path, said):
    batch = ranked(pd.concat([scored, scored]), tmp_path, batch=20)
    assert not batch.duplicated(PAIR).any()
    assert any("240 repeat a pair" in line for line in said)
    rounded = scored.assign(pkd_predicted=scored["pkd_predicted"] + 1e-6)
    again = ranked(pd.concat([scored, rounded]), tmp_path, batch=20)
    assert again["score"].tolist() == batch["score"].tolist()
    differing = pd.concat([scored, scored.tail(1).assign(pkd_predicted=3.0)])
    with pytest.raises(PredictionError, match="rows 240 and 241 are the same pair with different"):
        ranked(differing, tmp_path)


def test_predictions_without_sigma_are_ranked_by_mean_only(scored, tmp_path):
    bare = scored.drop(columns="sigma")
    with pytest.raises(
        PredictionError, match='no column for sigma, which rule="ucb" needs'
    ) as caught:
        ranked(bare, tmp_path, rule="ucb")
    assert 'use rule="mean"' in str(caught.value)
    batch = ranked(bare, tmp_path, batch=5)
    assert batch.columns.tolist() == [*bare.columns, "rank", "score"]
    summary = abag.rank(bare, tmp_path / "o.csv", batch=5, rule="mean", above=9)
    assert summary["expected_best"] is None
    assert "expected" not in repr(summary).split("keys")[0]


def test_a_table_without_antigens_is_ranked_by_antibody(scored, tmp_path, said):
    antibodies = scored.drop_duplicates(["heavy", "light"])
    measured = antibodies[["heavy", "light", "antigen"]].head(4)
    batch = ranked(antibodies.drop(columns="antigen"), tmp_path, batch=9, measured=measured)
    assert any("no antigen column" in line for line in said)
    assert not any("peptide" in line for line in said)  # of what stands for the antigen
    (of_regimes,) = (line for line in said if line.startswith("candidates: "))
    assert "antigens" not in of_regimes
    assert batch["id"].tolist() == ranked(antibodies.iloc[4:], tmp_path, batch=9)["id"].tolist()


def test_several_tables_of_another_quantity_give_the_best_rows_of_all(tmp_path):
    tables = []
    for n, letters in enumerate(("ACDEF", "GHIKL")):
        heavies = [HEAVY[:100] + letter + HEAVY[101:] for letter in letters]
        values = {"heavy": heavies, "antigen": "MKTAYIAKQRQISFVKSHFSRQ" * 3}
        tables.append(tmp_path / f"{n}.csv")
        frame = pd.DataFrame(values | {"predicted": np.arange(5.0) + 5 * n})
        frame.to_csv(tables[-1], index=False)
    columns = {"prediction": "predicted"}
    batch = abag.rank(tables, better="higher", batch=3, columns=columns)
    assert batch["predicted"].tolist() == [9.0, 8.0, 7.0]


def test_values_that_are_no_pkd_are_ranked_with_a_warning(scored, tmp_path, said):
    large = scored.assign(pkd_predicted=scored["pkd_predicted"] * 1000)
    batch = ranked(large, tmp_path, batch=9)
    assert any("outside the usual range of pKd" in line for line in said)
    assert batch["pkd_predicted"].max() == pytest.approx(large["pkd_predicted"].max())


def scanned(scored):
    """The best rows as a scan would name them, three in four at one position."""
    places = [("heavy", "107"), ("heavy", "107"), ("light", "38"), ("heavy+light", "107+38")]
    bound = scored["pkd_predicted"] + scored["sigma"]
    rows = scored.loc[bound.sort_values(ascending=False).index[:40]]
    chain, position = zip(*(places[n % 4] for n in range(len(rows))), strict=True)
    return rows.assign(chain=chain, position=position)


def test_positions_are_capped_and_a_batch_on_one_position_is_a_warning(scored, tmp_path, said):
    table = scanned(scored)
    free = ranked(table, tmp_path, batch=8)
    on_107 = free["position"].str.contains("107").sum()
    assert any(f"{on_107} of the 8 chosen pairs change heavy 107" in line for line in said)
    capped = ranked(table, tmp_path, batch=8, per_position=5)
    assert capped["position"].str.contains("107").sum() <= 5
    assert capped["position"].str.contains("38").sum() <= 5
    with pytest.raises(PredictionError, match=r"per_position=1 allows \d pairs; expected 8"):
        ranked(table, tmp_path, batch=8, per_position=1)
    with pytest.raises(PredictionError, match="no columns chain and position"):
        ranked(scored, tmp_path, batch=8, per_position=1)


def test_the_verdicts_of_the_regimes_that_occur_are_said_first(run, scored, tmp_path, said):
    others = scored.assign(
        heavy=scored["heavy"] + "A"
    )  # the run has measured the pairs of `scored`
    ranked(others, tmp_path, batch=5, run=run / "run")
    (regime,) = abag.load_predictor(run / "run").regimes.values()
    # but for what was read
    first = next(line for line in said if not line.startswith("table: "))
    assert first == (
        f"240 candidates: known antibodies, known antigens, predicted as {regime.verdict}"
    )
    ranked(scored, tmp_path, batch=5)
    assert any("rank says how well" in line for line in said)


RULES = [
    {"rule": "ucb"}, {"rule": "ucb", "explore": 0}, {"rule": "mean"},
    {"rule": "probability", "above": 9}, {"rule": "improvement", "best": 9},
]  # fmt: skip
SIGMAS = np.linspace(0.15, 0.2, 240)


@pytest.mark.parametrize("options", RULES)
def test_equal_predictions_are_not_ranked_but_drawn_and_nothing_is_promised(
    scored, tmp_path, said, options
):
    equal = scored.assign(pkd_predicted=8.6441, sigma=SIGMAS)
    batch = ranked(equal, tmp_path, batch=24, **options)
    assert any(
        "all 240 candidates have the same prediction, pKd 8.64: the" in line for line in said
    )
    drawn = batch["id"].str[-4:].astype(int)
    assert drawn.between(60, 180).mean() < 0.9  # from the whole file, not only its ends
    assert drawn.min() < 60
    assert drawn.max() > 180
    assert batch["score"].nunique() == 1
    assert "expected_best" not in batch
    summary = abag.rank(equal, tmp_path / "o.csv", batch=24, **options)
    assert pd.read_csv(tmp_path / "o.csv")["id"].tolist() == batch["id"].tolist()  # seeded
    assert (summary["can_rank"], summary["drawn"], summary["seed"]) == (False, 24, 0)
    assert summary["chosen_by"] == "at random, seed 0"
    assert summary["expected_best"] is summary["expected_above"] is None


@pytest.mark.parametrize("equal", [False, True])
def test_a_batch_and_what_is_expected_of_it_do_not_depend_on_the_order_of_the_rows(
    run, scored, tmp_path, equal
):
    table = scored.drop(columns="pKd").assign(heavy=scored["heavy"] + "A")
    table = table.assign(pkd_predicted=8.6) if equal else table
    options = {"batch": 24, "run": run / "run", "above": 9}
    batch = ranked(table, tmp_path, **options)
    other = ranked(table.sample(frac=1, random_state=0), tmp_path, **options)
    pd.testing.assert_frame_equal(batch, other)


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("has_sigma", [True, False])
def test_negligible_differences_of_predictions_are_none(scored, tmp_path, noise, has_sigma):
    rng = np.random.default_rng(0)
    nearly = scored.assign(pkd_predicted=8.6 + noise * rng.random(240), sigma=SIGMAS)
    table = nearly if has_sigma else nearly.drop(columns="sigma")
    rule = "ucb" if has_sigma else "mean"
    summary = abag.rank(table, tmp_path / "o.csv", batch=24, rule=rule)
    assert summary["can_rank"] == (noise == 1e-3 and not has_sigma)
    wide = nearly.assign(pkd_predicted=8.6 + 0.1 * rng.random(240))
    assert abag.rank(wide, tmp_path / "p.csv", batch=24)["can_rank"]


@pytest.mark.parametrize("batch", [40, 100])
def test_of_a_regime_with_equal_predictions_pairs_are_drawn(scored, tmp_path, said, batch):
    half = np.arange(240) < 120
    table = scored.assign(
        regime=np.where(half, "new_antibody", "known"),
        sigma=SIGMAS[::-1],
        pkd_predicted=np.where(half, 8.0, np.linspace(8.5, 9.5, 240)),
    )
    first = np.arange(240) < 150  # 30 known pairs are measured: 90 are left to be ranked
    table = table[half | ~first]
    summary = abag.rank(table, tmp_path / "o.csv", batch=batch)
    order = pd.read_csv(tmp_path / "o.csv")
    assert summary["drawn"] == (order["regime"] == "new_antibody").sum() == max(0, batch - 90)
    assert summary["can_rank"]
    drawn = order.loc[order["regime"] == "new_antibody", "id"]
    if batch > 90:
        assert f"10 of {batch} pairs are drawn at random (seed 0) from 120 cand" in "\n".join(said)
        assert drawn.tolist() != table["id"].head(10).tolist()
    most = abag.rank(table.iloc[:130], tmp_path / "p.csv", batch=batch)
    assert not most["can_rank"]
    assert most["expected_best"] is None


def test_pairs_of_one_antigen_and_a_large_share_of_equal_predictions_are_drawn(scored, tmp_path):
    by_antigen = scored.groupby("antigen")["pkd_predicted"].transform("mean")
    antigens = abag.rank(
        scored.assign(pkd_predicted=by_antigen, regime="known"),
        tmp_path / "a.csv",
        batch=5,
        rule="mean",
    )
    assert antigens["drawn"] == 5
    third = np.arange(240) < 80
    largest = scored["pkd_predicted"].max() + 1
    share = scored.assign(pkd_predicted=scored["pkd_predicted"].mask(third, largest))
    summary = abag.rank(share.drop(columns="regime"), tmp_path / "b.csv", batch=20, rule="mean")
    assert (summary["drawn"], summary["can_rank"]) == (20, False)


@pytest.mark.parametrize("damaged", ["predictions.parquet", "summary.json"])
def test_a_run_with_a_damaged_file_is_refused(run, scored, tmp_path, damaged):
    copied = shutil.copytree(run / "run", tmp_path / "run")
    (copied / damaged).write_bytes(b"PAR1")
    new = scored.assign(heavy=scored["heavy"] + "A")  # not of the run
    with pytest.raises(abag.AbagError, match=r"damaged.* (Copy the whole|Restore it)"):
        abag.rank(new, tmp_path / "order.csv", batch=4, run=copied)
    assert not (tmp_path / "order.csv").exists()


def test_a_single_candidate_is_no_draw(scored, tmp_path, said):
    summary = abag.rank(scored.head(1), tmp_path / "order.csv", batch=1)
    assert (summary["drawn"], summary["can_rank"]) == (0, True)
    assert summary["expected_best"] is not None
    assert not any("drawn" in line for line in said)


def test_a_few_equal_predictions_are_ordered_by_sigma_as_ever(scored, tmp_path):
    best = scored.nlargest(4, "pkd_predicted").index
    twins = scored.drop(columns="sigma_model").assign(sigma=SIGMAS)
    twins.loc[best, "pkd_predicted"] = 12.0
    batch = ranked(twins, tmp_path, batch=4, rule="ucb")
    assert batch["sigma"].is_monotonic_decreasing
    assert "expected_best" in batch


@pytest.mark.parametrize(("ranking", "by_chance"), [
    ("ranking is better than chance; errors are not smaller than those of the mean", False),
    ("ranking is not shown to be better than chance; errors are smaller", True),
    ("ranking within antigens is worse than chance; errors are smaller", True),
    ("ranking cannot be judged; errors are not smaller than those of the mean", False),
])  # fmt: skip
def test_rank_says_if_ranking_such_pairs_is_not_shown_to_be_better_than_random(
    run, scored, tmp_path, said, ranking, by_chance
):
    def judge(record):
        (regime,) = record["regimes"]
        words, _, verdict = regime["verdict"].partition(": ")
        assert verdict.startswith("ranking ")
        regime["verdict"] = f"{words}: {ranking}"

    judged = shutil.copytree(run / "run", tmp_path / "run")
    sign(judged / "predictor", judge)
    (regime,) = abag.load_predictor(judged).regimes
    table = scored.assign(regime=regime, heavy=scored["heavy"] + "A")  # not of the run
    summary = abag.rank(table, tmp_path / "o.csv", batch=9, run=judged, say=said.append)
    line = "ranking is not shown to be better than random for 9 of 9 pairs ("
    assert not any(line in text for text in said)  # it is in the summary
    assert summary["can_rank"] != by_chance
    assert summary["expected_best"] is not None  # nothing shows that there is nothing
    assert (line in str(summary)) == by_chance
    assert "no better than" not in str(summary)


@pytest.mark.parametrize(("verdict", "regimes", "can_rank"), [
    ("better", ["both_new"] * 9, False),  # which no measured regime covers
    ("better", ["both_new"] * 5 + ["known"] * 4, False),
    ("better", ["both_new"] * 4 + ["known"] * 5, True),
    ("not shown to be better", ["known"] * 5 + ["both_new"] * 4, False),
])  # fmt: skip
def test_a_regime_that_was_not_measured_is_no_evidence_that_the_run_ranks(
    run, scored, tmp_path, said, verdict, regimes, can_rank
):
    def judge(record):
        (regime,) = record["regimes"]
        words, _, _ = regime["verdict"].partition(": ")
        regime["verdict"] = f"{words}: ranking is {verdict} than chance; errors are smaller"

    judged = shutil.copytree(run / "run", tmp_path / "run")
    sign(judged / "predictor", judge)
    table = scored.head(9).assign(regime=regimes, heavy=scored["heavy"] + "A")
    table["pkd_predicted"] = np.linspace(6, 9, 9)
    summary = abag.rank(table, tmp_path / "o.csv", batch=9, run=judged, say=said.append)
    assert summary["can_rank"] == can_rank
    assert summary["expected_best"] is not None
    kind = "(new|known) antibodies, (new|known) antigens"
    line = rf"not shown to be better than random for \d of 9 pairs \({kind}(; {kind})?\)"
    shown = [text for text in [*said, str(summary)] if re.search(line, text)]
    assert len(shown) == 1


@pytest.mark.ci
def test_a_label_called_score_is_kept_beside_the_scores_of_rank(run, tmp_path):
    table = pd.read_csv(run / "pairs.csv").rename(columns={"pKd": "score"}).assign(note=1.23456789)
    table["score"] += 0.00001
    quick = {"label": "pkd", "head": "ridge", "report": False}
    abag.fit(table[:200], run / "store", tmp_path / "r", **quick)
    abag.predict(table, tmp_path / "r", tmp_path / "p.csv", store=run / "store")
    predicted = pd.read_csv(tmp_path / "p.csv")
    chosen = {"run": tmp_path / "r", "batch": 4, "keep_far": True}
    abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", **chosen)
    order = pd.read_csv(tmp_path / "o.csv")
    assert order.columns.tolist() == [*predicted.columns, "rank", "rank_score", "expected_best"]
    measured = predicted.set_index("id").loc[order["id"], "score"]
    assert order["score"].tolist() == measured.tolist()
    assert order["rank_score"].tolist() == order["pkd_predicted"].tolist()
    with pytest.raises(PredictionError, match="already has a column 'rank'"):
        abag.rank(order, tmp_path / "o2.csv", **chosen)
    again = abag.fit(predicted, run / "store", tmp_path / "r2", **quick)
    assert again["data"]["pairs"] == len(table)
    # the laboratory fills the column of the run, in the order of rank
    added = abag.fit(order, None, tmp_path / "r3", add=tmp_path / "r", report=False)
    assert added["data"]["pairs"] == 204


BAD_TABLES = {
    "no predictions": (lambda t: t.drop(columns="pkd_predicted"), ColumnError, "no column for"),
    "two predictions": (lambda t: t.assign(predicted_pkd=1), ColumnError, "equally well"),
    "not a number": (
        lambda t: t.assign(pkd_predicted=["x", *t["pkd_predicted"][1:]]), PredictionError,
        r"row 1, column pkd_predicted: 'x' \(1 such row\) is not a valid prediction",
    ),
    "infinite": (lambda t: t.assign(pkd_predicted=np.inf), PredictionError, ": inf .240 such"),
    "empty": (lambda t: t.assign(pkd_predicted=None), PredictionError, "an empty cell .*240 such"),
    "negative sigma": (lambda t: t.assign(sigma=-t["sigma"]), PredictionError, "standard error"),
    "no flag": (lambda t: t.assign(far="maybe"), PredictionError, "'maybe' .* is not a valid"),
    "rank": (lambda t: t.assign(rank=1), PredictionError, "already has a column 'rank'"),
}  # fmt: skip


@pytest.mark.parametrize("problem", BAD_TABLES)
def test_a_bad_table_is_refused_in_one_line_and_nothing_is_written(scored, tmp_path, problem):
    change, error, text = BAD_TABLES[problem]
    (tmp_path / "order.csv").write_text("kept")
    with pytest.raises(error, match=text) as caught:
        ranked(change(scored), tmp_path)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "order.csv").read_text() == "kept"
    assert [*tmp_path.iterdir()] == [tmp_path / "order.csv"]


def test_a_batch_larger_than_what_is_left_is_refused_with_the_number_that_is(scored, tmp_path):
    scored.loc[:9, "far"] = True
    with pytest.raises(PredictionError) as caught:
        ranked(scored, tmp_path, batch=300, measured=scored.tail(20))
    assert str(caught.value) == (
        "table: 210 of 240 rows are left (left out: 20 measured, 10 far); expected at least 300. "
        "Use batch=210 or keep_far or more predictions."
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "text"), [
    ({"rule": "probability"}, 'rule="probability": no threshold'),
    ({"rule": "improvement"}, 'rule="improvement": the best measured pKd is not known'),
    ({"rule": "mean", "explore": 2}, 'explore: given without rule="ucb"; expected it, too.'),
    ({"rule": "best"}, "rule: 'best' is unknown; expected one of mean, ucb"),
])  # fmt: skip
def test_options_that_contradict_each_other_are_refused(scored, tmp_path, options, text):
    with pytest.raises(OptionError) as caught:
        ranked(scored, tmp_path, **options)
    assert text in str(caught.value)


def test_an_existing_file_and_the_input_itself_are_not_overwritten(run, scored, tmp_path):
    out = tmp_path / "order.csv"
    out.write_text("kept")
    with pytest.raises(OutputError, match="already exists; use force"):
        abag.rank(scored, out, batch=5)
    with pytest.raises(OutputError, match="same file as another argument"):
        abag.rank(run / "scored.csv", run / "scored.csv", batch=5, force=True)
    with pytest.raises(OutputError, match="same file as another argument"):
        abag.rank(scored, out, measured=out, batch=5, force=True)
    with pytest.raises(OutputError, match="same file as another argument"):
        abag.rank(scored, out, sequences=[out], batch=5, force=True)
    assert out.read_text() == "kept"


def test_a_table_that_changes_between_its_two_readings_is_refused(scored, tmp_path):
    table = tmp_path / "scored.csv"
    scored.to_csv(table, index=False)

    def rewrite(text):
        if "candidates: 240" in text:  # said after the first reading
            scored.assign(heavy=scored["heavy"].to_numpy()[::-1]).to_csv(table, index=False)

    with pytest.raises(PredictionError, match="changed while it was read"):
        ranked(table, tmp_path, batch=5, say=rewrite)
    assert [*tmp_path.iterdir()] == [table]


def test_the_command_says_that_equal_predictions_cannot_be_ranked(scored, tmp_path):
    scored.assign(pkd_predicted=8.0).to_csv(tmp_path / "equal.csv", index=False)
    line = ["rank", tmp_path / "equal.csv", "--out", tmp_path / "order.csv", "--batch", "10"]
    done = invoke.run(*line)
    assert "(at random, seed 0)" in done.stdout
    assert "no better than a random batch: all 240 candidates have the same" in done.stdout
    assert "best pKd" not in done.stdout
    assert "cannot rank them" in done.stderr
    assert json.loads(invoke.run(*line, "--json", "--force").stdout)["can_rank"] is False


@pytest.mark.parametrize(
    ("drawn", "why", "said"),
    [
        (6, "6 of 8 pairs are drawn", "expected   no better than a random batch: 6 of 8 pairs"),
        (0, "ranking is not shown to be better than random for 8 of 8 pairs", "note       ranking"),
        (3, "ranking is not shown to be better than random for 8 of 8 pairs", "note       ranking"),
    ],
)
def test_only_a_drawn_batch_is_said_to_be_no_better_than_a_random_one(drawn, why, said):
    # without sigma, and of classes, nothing is expected of the best pair
    summary = {
        "pairs": 8, "candidates": 50, "chosen_by": "highest prediction", "predicted": (7.0, 8.0),
        "why_not": why, "drawn": drawn, "expected_best": None, "best_interval": None,
        "expected_above": None, "above_interval": None, "out": "",
    }  # fmt: skip
    assert describe_rank(summary).splitlines()[1].startswith(said)


def test_the_command_says_what_the_batch_is_expected_to_hold(run, tmp_path):
    line = ["rank", run / "scored.csv", "--out", tmp_path / "order.csv", "--keep-far"]
    line += ["--batch", "10", "--above", "9"]
    lines = invoke.run(*line).stdout.splitlines()
    assert lines[0].startswith("Chose 10 of 240 (highest prediction). Predicted pKd: ")
    assert "90 % interval" in lines[1]
    assert "pairs above 9 (" in lines[2]
    assert json.loads(invoke.run(*line, "--json", "--force").stdout)["pairs"] == 10
    assert "already exists" in invoke.one_line(*line)


def test_pairs_that_are_ordered_are_not_ordered_again_until_they_are_taken_off_the_list(
    scored, tmp_path, said
):
    orders = tmp_path / "orders.csv"
    first = ranked(scored, tmp_path, batch=6, ordered=orders)
    assert pd.read_csv(orders)["order"].tolist() == ["order.csv"] * 6
    again = ranked(scored, tmp_path, batch=6, ordered=orders)  # the same order is made again
    assert again["id"].tolist() == first["id"].tolist()
    assert any("6 pairs of 'order.csv' are taken off, as this order repl" in line for line in said)
    said.clear()
    summary = abag.rank(scored, tmp_path / "second.csv", batch=6, ordered=orders)
    assert not any("taken off" in line for line in said)
    assert summary["left_out"]["ordered"] == 6
    assert any("6 ordered and not measured yet (orders.csv)" in line for line in said)
    second = pd.read_csv(tmp_path / "second.csv")
    best = scored.nlargest(12, "pkd_predicted")["id"].tolist()
    assert [*first["id"], *second["id"]] == best
    rows = pd.read_csv(orders)
    assert rows["order"].tolist() == ["order.csv"] * 6 + ["second.csv"] * 6
    rows.iloc[6:].to_csv(orders, index=False)
    third = abag.rank(scored, batch=6, ordered=orders)
    assert third["id"].tolist() == best[:6]
    assert pd.read_csv(orders)["order"].tolist()[6:] == ["order 2"] * 6


def test_orders_of_one_name_in_two_folders_are_both_on_the_list(scored, tmp_path):
    orders = tmp_path / "orders.csv"
    for folder in ("round-1", "round-2"):
        (tmp_path / folder).mkdir()
        abag.rank(scored, tmp_path / folder / "order.csv", batch=4, ordered=orders)
    rows = pd.read_csv(orders)
    assert rows["order"].tolist() == ["round-1/order.csv"] * 4 + ["round-2/order.csv"] * 4
    assert not rows.duplicated(["heavy", "light", "antigen"]).any()


def test_an_order_without_a_file_replaces_no_other_that_is_out(scored, tmp_path):
    orders = tmp_path / "orders.csv"
    abag.rank(scored, batch=3, ordered=orders)
    second = abag.rank(scored, batch=3, ordered=orders)
    rows = pd.read_csv(orders)
    rows[rows["order"] == "order 2"].to_csv(orders, index=False)  # the first has come back
    third = abag.rank(scored, batch=3, ordered=orders)
    assert not {*second["id"]} & {*third["id"]}
    assert len(pd.read_csv(orders)) == 6


def test_a_list_of_orders_whose_rows_were_all_deleted_is_empty(scored, tmp_path):
    orders = tmp_path / "orders.csv"
    first = ranked(scored, tmp_path, batch=3, ordered=orders)
    orders.write_text(orders.read_text().splitlines()[0] + "\n")
    again = abag.rank(scored, batch=3, ordered=orders)
    assert again["id"].tolist() == first["id"].tolist()
    assert len(pd.read_csv(orders)) == 3


def test_ordered_pairs_that_came_back_count_as_measured(run, scored, tmp_path, said):
    orders = tmp_path / "orders.csv"
    order = ranked(scored, tmp_path, batch=6, ordered=orders)
    summary = abag.rank(
        scored, tmp_path / "o.csv", batch=6, ordered=orders, measured=order.head(4)[[*PAIR, "pKd"]]
    )
    assert summary["left_out"]["measured"] == 4
    assert summary["left_out"]["ordered"] == 2
    left_out = "left out: 4 already measured, 2 ordered and not measured yet (orders.csv)"
    assert any(line.endswith(left_out) for line in said)


def test_an_antibody_ordered_without_an_antigen_is_not_ordered_with_one(scored, tmp_path):
    orders = tmp_path / "orders.csv"
    antibodies = scored.drop_duplicates(["heavy", "light"]).drop(columns="antigen")
    first = ranked(antibodies, tmp_path, batch=5, ordered=orders)
    assert pd.read_csv(orders)["antigen"].isna().all()
    summary = abag.rank(scored, tmp_path / "o.csv", batch=5, ordered=orders)
    ordered = {*zip(first["heavy"], first["light"], strict=True)}
    chosen = pd.read_csv(tmp_path / "o.csv").fillna({"light": ""})
    assert not ordered & {*zip(chosen["heavy"], chosen["light"], strict=True)}
    assert summary["left_out"]["ordered"] >= 5


def test_missing_cells_of_a_list_of_orders_are_empty_in_any_format(scored, tmp_path):
    antibodies = scored.drop_duplicates(["heavy", "light"]).drop(columns="antigen")
    ranked(antibodies, tmp_path, batch=5, ordered=tmp_path / "orders.csv")
    rows = pd.read_csv(tmp_path / "orders.csv")
    rows.to_parquet(tmp_path / "orders.parquet")
    summary = abag.rank(scored, tmp_path / "o.csv", batch=5, ordered=tmp_path / "orders.parquet")
    assert summary["left_out"]["ordered"] >= 5
    assert not pd.read_parquet(tmp_path / "orders.parquet").isna().any(axis=None)


def test_a_list_of_orders_is_refused_if_it_is_another_file(run, scored, tmp_path):
    order = tmp_path / "order.csv"
    ranked(scored, tmp_path, batch=6)
    before = order.read_bytes()
    with pytest.raises(
        abag.TableError, match=r"order\.csv: has no column 'order'; expected a list"
    ):
        abag.rank(scored, tmp_path / "o.csv", batch=5, ordered=order)
    with pytest.raises(OutputError, match="ordered is the same file as another argument"):
        abag.rank(scored, order, batch=5, ordered=order, force=True)
    with pytest.raises(OutputError, match="its folder does not exist"):
        abag.rank(scored, tmp_path / "o.csv", batch=5, ordered=tmp_path / "absent" / "o.csv")
    assert order.read_bytes() == before
    assert not (tmp_path / "o.csv").exists()


@pytest.fixture
def melting(scored):
    """Predictions of a second property, lower for stronger binders, in another order of rows."""
    antibodies = scored.drop_duplicates(["heavy", "light"])
    noise = np.random.default_rng(0).normal(size=len(antibodies))
    value = 90 - 4 * antibodies["pkd_predicted"] + noise
    table = antibodies[["heavy", "light"]].assign(predicted=value, sigma=2.0)
    return table.sample(frac=1, random_state=0)


SECOND = {"second_better": "higher", "rule": "mean", "keep_far": True}


def test_a_batch_of_two_properties_is_of_their_pareto_front(scored, melting, tmp_path):
    antibodies = scored.drop_duplicates(["heavy", "light"])
    batch = ranked(antibodies, tmp_path, batch=12, second=melting, **SECOND)
    both = antibodies.merge(melting, on=["heavy", "light"], suffixes=("", "_second"))
    pkd = both["pkd_predicted"].to_numpy()
    tm = both["predicted"].to_numpy()
    worse = (
        (pkd >= pkd[:, None]) & (tm >= tm[:, None]) & ((pkd > pkd[:, None]) | (tm > tm[:, None]))
    )
    best = {*both.loc[~worse.any(axis=1), "id"]}
    first = batch.loc[batch["front"] == 1, "id"]
    assert {*first} <= best
    assert len(first) == min(12, len(best))
    assert {both["pkd_predicted"].idxmax(), both["predicted"].idxmax()} <= {
        *both.index[both["id"].isin(batch["id"])]
    }
    predicted = both.set_index("id").loc[batch["id"], "predicted"]
    np.testing.assert_allclose(batch["second_predicted"], predicted, atol=1e-4)
    assert batch["second_sigma"].tolist() == [2.0] * 12


@pytest.mark.parametrize("same", [False, True])
def test_pairs_of_one_prediction_that_the_second_property_orders_are_not_drawn(
    scored, melting, tmp_path, same
):
    antibodies = scored.drop_duplicates(["heavy", "light"]).assign(pkd_predicted=8.5)
    second = melting.assign(predicted=60.0) if same else melting
    out = tmp_path / "order.csv"
    summary = abag.rank(antibodies, out, batch=12, second=second, **SECOND)
    best = second["predicted"].nlargest(12).tolist()
    np.testing.assert_allclose(pd.read_csv(out)["second_predicted"], best, atol=1e-4)
    assert summary["drawn"] == (12 if same else 0)
    assert summary["can_rank"] != same
    assert ("expected_best" in pd.read_csv(out)) != same


def test_pairs_that_miss_a_value_of_the_second_property_are_left_out(scored, melting, tmp_path):
    antibodies = scored.drop_duplicates(["heavy", "light"])
    limit = float(melting["predicted"].median())
    summary = abag.rank(
        antibodies, tmp_path / "o.csv", batch=9, second=melting, second_above=limit, **SECOND
    )
    order = pd.read_csv(tmp_path / "o.csv")
    assert (order["second_predicted"] >= limit).all()
    assert summary["left_out"]["second"] == (melting["predicted"] < limit).sum()
    allowed = antibodies.merge(melting[melting["predicted"] >= limit], on=["heavy", "light"])
    assert order["id"].tolist() == allowed.nlargest(9, "pkd_predicted")["id"].tolist()
    assert "front" not in order
    assert order["second_probability_above"].between(0.5, 1).all()
    lower = melting.assign(predicted=-melting["predicted"])
    options = SECOND | {"second_better": "lower"}
    again = ranked(antibodies, tmp_path, batch=9, second=lower, second_above=-limit, **options)
    assert again["id"].tolist() == order["id"].tolist()
    assert "second     predicted value: " in str(summary)
    with pytest.raises(PredictionError, match=r"by second_above\).*or another second_above or"):
        abag.rank(antibodies, batch=99, second=melting, second_above=limit, **SECOND)


def test_a_second_antigen_is_matched_by_antibody_and_the_same_antigens_by_pair(scored, tmp_path):
    antibodies = scored.drop_duplicates(["heavy", "light"])[[*PAIR, "pkd_predicted", "id"]]
    other = antibodies.assign(
        antigen="MKTAYIAKQRQISFVKSHFSRQ", pkd_predicted=range(len(antibodies))
    )
    batch = ranked(antibodies, tmp_path, batch=3, second=other, second_above=0, rule="mean")
    expected = other.set_index("id").loc[batch["id"], "pkd_predicted"]
    assert batch["second_predicted"].tolist() == expected.tolist()
    some = scored[[*PAIR, "pkd_predicted"]].iloc[:100]
    summary = abag.rank(scored, tmp_path / "o.csv", batch=3, second=some, rule="mean", force=True)
    assert summary["left_out"]["unpredicted"] == 140
    assert "(Pareto fronts of highest prediction and of the second property)" in str(summary)
    assert summary["second"]["fronts"] == 3  # of equal predictions, one pair each


def test_predictions_of_a_second_run_are_better_as_it_says_and_bad_ones_are_refused(
    run, scored, tmp_path
):
    labels = scored[[*PAIR]].assign(**{"Tm (°C)": 60 + scored["pkd_predicted"]})
    tm = tmp_path / "tm"
    abag.fit(labels, run / "store", tm, head="ridge", split="random", report=False)
    second = abag.predict(scored[PAIR], tm, store=run / "store")
    summary = abag.rank(
        scored, tmp_path / "o.csv", batch=4, second=second, second_run=tm, rule="mean"
    )
    assert summary["second"]["quantity"]["name"] == "Tm"
    advice = "column 'predicted' is of a quantity that.*Give second_run=DIR.*, or second_better="
    with pytest.raises(PredictionError, match=advice):
        abag.rank(scored, batch=4, second=second, rule="mean")
    with pytest.raises(PredictionError, match=r"^second_better=.*Leave second_better out"):
        abag.rank(scored, batch=4, second=second, second_run=tm, second_better="lower")
    with pytest.raises(PredictionError, match="has no prediction of the antibodies of table"):
        abag.rank(
            scored, batch=4, second=second.head(1).assign(heavy=HEAVY), second_run=tm, rule="mean"
        )
    several = pd.concat([second.head(1)] * 2).assign(antigen=["MKT" * 20, "MKV" * 20])
    with pytest.raises(PredictionError, match="has several antigens per antibody, none of which"):
        abag.rank(scored, batch=4, second=several, second_run=tm, rule="mean")
    with pytest.raises(OptionError, match=r"^second_above: given without second=TABLE;"):
        abag.rank(scored, batch=4, second_above=3.0)
