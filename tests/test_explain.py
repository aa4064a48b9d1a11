"""`predict --explain`: what each residue contributes, against a planted law and by deletion."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from scipy.special import ndtri
from trastuzumab import HEAVY, LIGHT

import abag
from abag import OptionError, OutputError, PredictionError
from abag.embed.tables.chains import locate_positions

ANTIGEN = "TQVCTGTDMKLRLPASPETHLDMLRHLYQGCQVVQGNLELTYLPTNASLSFLQ"
PLACES = (52, 54, 98, 100, 102, 104)
"""Indices in the heavy chain; the first three decide about the label, the others about nothing."""
ANTIGEN_PLACES = (10, 20, 30)
RESIDUES = "AFKST"


def library(number, seed=0):
    """Return variants on both sides whose pKd is a sum over residues, and the effect of each."""
    rng = np.random.default_rng(seed)
    effect = {}
    law = np.random.default_rng(1)
    for side, places in (("heavy", PLACES), ("antigen", ANTIGEN_PLACES)):
        for number_of_place, place in enumerate(places):
            size = 1.0 if side == "antigen" or number_of_place < 3 else 0.0
            for residue in RESIDUES:
                effect[side, place, residue] = float(size * law.normal())
    rows = []
    for _ in range(number):
        chains = {"heavy": list(HEAVY), "antigen": list(ANTIGEN)}
        pkd = 8.0
        for side, places in (("heavy", PLACES), ("antigen", ANTIGEN_PLACES)):
            for place in places:
                residue = RESIDUES[rng.integers(5)]
                chains[side][place] = residue
                pkd += 0.3 * effect[side, place, residue]
        texts = {side: "".join(chain) for side, chain in chains.items()}
        rows.append(texts | {"light": LIGHT, "pKd": pkd + 0.02 * rng.normal()})
    return pd.DataFrame(rows), effect


# predictions of trees are shrunk: each leaf has pairs with other residues, too
NEAR = {"one_hot_ridge": 0.12, "residue_kernel": 0.12, "trees": 0.3}


@pytest.fixture(scope="module", params=NEAR)
def case(request, tmp_path_factory):
    head = request.param
    folder = tmp_path_factory.mktemp("explain")
    table, effect = library(240)
    abag.embed_table(table, folder / "store", say=False, **COMPOSITION)
    options = {"head": head, "split": "random", "report": False, "say": False}
    abag.fit(table, folder / "store", folder / "run", **options)
    scored = table.head(12)
    summary = abag.predict(
        scored, folder / "run", folder / "s.csv", explain=folder / "why.csv", say=False
    )
    why = pd.read_csv(folder / "why.csv", dtype={"position": str})
    return SimpleNamespace(
        folder=folder,
        run=folder / "run",
        near=NEAR[head],
        table=table,
        effect=effect,
        scored=scored,
        summary=summary,
        why=why,
    )


def named(side, place):
    """Return how the table of contributions names a place."""
    if side == "antigen":
        return f"{place + 1}"
    return {at: name for name, at in locate_positions(HEAVY, "heavy").items()}[place]


def test_contributions_are_those_of_a_planted_law(case):
    expected = []
    found = []
    for row, pair in case.scored.reset_index(drop=True).iterrows():
        of_row = case.why[case.why["row"] == row + 1].set_index(["chain", "position"])
        for side, places in (("heavy", PLACES), ("antigen", ANTIGEN_PLACES)):
            for place in places:
                residue = pair[side][place]
                effects = [case.effect[side, place, other] for other in RESIDUES]
                own = case.effect[side, place, residue]
                expected.append(0.3 * (own - (sum(effects) - own) / 4))
                cell = of_row.loc[(side, named(side, place))]
                assert cell["residue"] == residue
                found.append(cell["contribution"])
    share = next(iter(case.summary["explained_share"].values()))
    assert share > 0.9
    np.testing.assert_allclose(found, np.multiply(share, expected), atol=case.near)
    assert np.corrcoef(found, expected)[0, 1] > 1 - case.near / 3


@pytest.mark.ci
def test_contributions_are_what_predictions_lose_when_the_residue_is_exchanged(case):
    pair = case.scored.iloc[0]
    row = case.why[case.why["row"] == case.why["row"].iloc[0]]
    base = abag.predict(case.scored.head(1), case.run, store=case.folder / "store", say=False)
    for side, places in (("heavy", PLACES), ("antigen", ANTIGEN_PLACES)):
        for place in places:
            own = pair[side][place]
            others = [residue for residue in RESIDUES if residue != own]
            text = pair[side]
            exchanged = pd.DataFrame(
                [
                    pair.to_dict() | {side: text[:place] + residue + text[place + 1 :]}
                    for residue in others
                ]
            )
            predicted = abag.predict(exchanged, case.run, store=case.folder / "store", say=False)
            lost = base["pkd_predicted"].iloc[0] - predicted["pkd_predicted"].mean()
            at = row[(row["chain"] == side) & (row["position"] == named(side, place))].iloc[0]
            assert at["contribution"] == pytest.approx(lost, abs=1e-4)
            if own == at["reference"]:
                assert at["against_reference"] == 0
            else:
                alone = predicted["pkd_predicted"].iloc[others.index(at["reference"])]
                lost = base["pkd_predicted"].iloc[0] - alone
                assert at["against_reference"] == pytest.approx(lost, abs=1e-4)


@pytest.mark.parametrize("head", ["ridge", "trees"])
def test_a_run_without_parts_that_are_explained_is_refused(case, tmp_path, head):
    table = case.scored
    learned = library(60)[0]
    if head == "trees":  # of unrelated sequences, which it tells apart by their shares of residues
        rng = np.random.default_rng(0)
        for side in ("heavy", "light", "antigen"):
            texts = learned[side]
            learned[side] = ["".join(rng.permutation([*text])[rng.integers(9) :]) for text in texts]
        abag.embed_table(learned, case.folder / "store", say=False, **COMPOSITION)
    abag.fit(
        learned, case.folder / "store", tmp_path / "run", head=head, split="random", report=False,
        say=False,
    )  # fmt: skip
    options = {"store": case.folder / "store", "say": False}
    with pytest.raises(
        PredictionError, match=r"^explain: no part of the predictor compares residues"
    ):
        abag.predict(table, tmp_path / "run", explain=tmp_path / "why.csv", **options)
    with pytest.raises(OptionError, match=r"^explain and cross: pairs of a table"):
        abag.predict(table, case.run, cross=table, explain=tmp_path / "why.csv", **options)
    with pytest.raises(OutputError, match="explain is the same file as another argument"):
        abag.predict(table, case.run, tmp_path / "s.csv", explain=tmp_path / "s.csv", **options)
    many = pd.concat([table] * 100)
    with pytest.raises(PredictionError, match=r"^explain: 1,200 pairs; expected at most 1,000"):
        abag.predict(many, case.run, explain=tmp_path / "why.csv", **options)
    assert not (tmp_path / "why.csv").exists()


def test_a_regime_without_weight_on_residues_is_said_and_not_explained(case, tmp_path, said):
    predictor = abag.load_predictor(case.run)
    regimes = {}
    for name, regime in predictor.regimes.items():
        mixture = replace(regime.mixture, weights=dict.fromkeys(regime.mixture.weights, 0.0))
        regimes[name] = replace(regime, mixture=mixture)
    unweighted = replace(predictor, regimes=regimes)
    abag.predict(
        case.scored, unweighted, tmp_path / "s.csv", explain=tmp_path / "why.csv",
        store=case.folder / "store",
    )  # fmt: skip
    assert any("the parts that compare residues have no weight there" in line for line in said)
    assert not (tmp_path / "why.csv").exists()
    assert (tmp_path / "s.csv").exists()


def test_a_run_says_what_residues_contribute_on_average(case):
    averages = pd.read_parquet(case.run / "residues.parquet")
    summary = json.loads((case.run / "summary.json").read_text())
    assert [*averages["regime"].unique()] == [regime["regime"] for regime in summary["regimes"]]
    share = averages["share"].iloc[0]
    assert share > 0.9
    assert not averages.duplicated(["chain", "position", "residue"]).any()
    of_residue = averages.set_index(["chain", "position", "residue"])
    expected = []
    found = []
    for side, places in (("heavy", PLACES), ("antigen", ANTIGEN_PLACES)):
        for place in places:
            effects = [case.effect[side, place, residue] for residue in RESIDUES]
            for residue in RESIDUES:
                own = case.effect[side, place, residue]
                expected.append(0.3 * (own - (sum(effects) - own) / 4))
                cell = of_residue.loc[(side, named(side, place), residue)]
                assert cell["pairs"] == (case.table[side].str[place] == residue).sum()
                found.append(cell["contribution"])
    np.testing.assert_allclose(found, np.multiply(share, expected), atol=case.near)
    assert len(averages) == len(found)


def test_the_report_shows_the_positions_that_matter(case):
    abag.report(case.run, say=False)
    page = (case.run / "report.html").read_text()
    drawn = drawn_in_report(case.run)
    assert drawn["to"] == "pKd"
    shown = {*drawn["places"][:6]}
    deciding = {("heavy", place) for place in PLACES[:3]}
    deciding |= {("antigen", place) for place in ANTIGEN_PLACES}
    assert shown == {f"{side} {named(side, place)}" for side, place in deciding}
    assert {*drawn["letter"]} == {*RESIDUES}
    assert "Residues that matter" in page
    assert re.search(
        r"For new variants, new antigen variants, by the parts with \d+% of the weight\.", page
    )


def test_a_run_without_parts_that_compare_residues_shows_no_positions(case, tmp_path):
    table = library(60)[0]
    abag.fit(
        table, case.folder / "store", tmp_path / "run", head="ridge", split="random", say=False
    )
    assert not (tmp_path / "run" / "residues.parquet").exists()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Residues that matter" not in page


def drawn_in_report(run):
    page = (run / "report.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["residues"]


@pytest.mark.ci
def test_contributions_to_classes_are_to_their_latent_values(tmp_path):
    table = library(120)[0]
    binder = np.where(table["pKd"] > 8, "yes", "no")
    table = table.drop(columns="pKd").assign(binder=binder)
    abag.embed_table(table, tmp_path / "store", say=False, **COMPOSITION)
    options = {"head": "residue_kernel", "split": "random", "say": False}
    abag.fit(table, tmp_path / "store", tmp_path / "run", **options)
    drawn = drawn_in_report(tmp_path / "run")
    assert drawn["to"] == "latent value (probit)"
    assert max(map(abs, drawn["x"])) > 0.2


def test_contributions_to_a_rare_class_are_what_its_latent_value_loses(tmp_path):
    table = library(600)[0]
    binder = np.where(table["pKd"] > table["pKd"].quantile(0.9), "yes", "no")
    table = table.drop(columns="pKd").assign(binder=binder)
    abag.embed_table(table, tmp_path / "store", say=False, **COMPOSITION)
    options = {"head": "residue_kernel", "split": "random", "report": False, "say": False}
    abag.fit(table.head(240), tmp_path / "store", tmp_path / "run", **options)
    pairs = table.drop(columns="binder").iloc[240:]
    predictor = abag.load_predictor(tmp_path / "run")

    def latent(rows):
        columns = (rows[name].tolist() for name in ("heavy", "light", "antigen"))
        return ndtri(predictor.predict(*columns)["probability"].to_numpy())

    # those further up than held-out pairs count by less
    top = pairs.iloc[np.argsort(-latent(pairs), kind="stable")[8:16]].reset_index(drop=True)
    abag.predict(top, tmp_path / "run", tmp_path / "s.csv", explain=tmp_path / "why.csv", say=False)
    why = pd.read_csv(tmp_path / "why.csv", dtype={"position": str})
    told = why[why["chain"] == "antigen"].set_index(["row", "position"])["contribution"]
    found = []
    lost = []
    for number, pair in top.iterrows():
        for place in ANTIGEN_PLACES:
            own = pair["antigen"]
            others = [own[:place] + r + own[place + 1 :] for r in RESIDUES if r != own[place]]
            exchanged = pd.DataFrame([pair.to_dict() | {"antigen": text} for text in others])
            lost.append((latent(top.iloc[[number]]) - latent(exchanged)).mean())
            found.append(told.loc[number + 1, f"{place + 1}"])
    assert np.corrcoef(found, lost)[0, 1] > 0.8
    assert np.abs(found).mean() == pytest.approx(np.abs(lost).mean(), rel=0.3)


def drawn_parents(case, out, **options):
    options |= {"store": case.folder / "store", "say": False, "mutate_to": "AF"}
    abag.scan(case.run, out, **options)
    page = out.with_suffix(".html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    return data["parents"], page


def test_a_heat_map_shows_what_the_residues_of_the_parent_contribute(case, tmp_path):
    of_pair = case.why[case.why["row"] == 2].set_index(["chain", "position"])["contribution"]
    parent = case.scored.iloc[[1]]
    positions = "H50-H129,A5-A40"
    (drawn,), page = drawn_parents(case, tmp_path / "m.csv", parents=parent, positions=positions)
    found = {}
    for (chain, _, position, *_), value in zip(drawn["sites"], drawn["contribution"], strict=True):
        if value is not None:
            found[chain, position] = value
    assert len(found) == len(PLACES) + len(ANTIGEN_PLACES)
    for place, value in found.items():
        assert value == pytest.approx(of_pair[place], abs=2e-3)
    assert 'The row "own"' in page


def test_residues_of_a_parent_with_an_insertion_keep_their_places(case, tmp_path):
    plain = case.scored.iloc[[1]]
    longer = plain.assign(heavy=plain["heavy"].str[:3] + "S" + plain["heavy"].str[3:])
    cells = []
    for number, parents in enumerate((plain, longer)):
        out = tmp_path / f"{number}.csv"
        (drawn,), _ = drawn_parents(case, out, parents=parents, positions="H50-H129")
        values = [value for value in drawn["contribution"] if value is not None]
        cells.append((np.array(values), [site[4] for site in drawn["sites"]]))
    (values, residues), (values_longer, residues_longer) = cells
    assert residues == residues_longer
    np.testing.assert_allclose(values, values_longer, atol=0.1)


def test_a_heat_map_of_a_run_without_such_parts_has_no_such_row(case, tmp_path):
    run = tmp_path / "run"
    abag.fit(
        library(60)[0], case.folder / "store", run, head="ridge", split="random", report=False,
        say=False,
    )  # fmt: skip
    other = SimpleNamespace(folder=case.folder, run=run)
    parent = case.scored.iloc[[1]]
    (drawn,), page = drawn_parents(other, tmp_path / "m.csv", parents=parent, positions="A5-A40")
    assert "contribution" not in drawn
    assert 'The row "own"' not in page
