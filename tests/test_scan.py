"""`scan`: mutants against a plain enumeration, their differences, bad input, and the heat map."""

import errno
import itertools
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from chunks import set_sizes
from drawn import COMPOSITION, demo_table, predicting_the_mean
from faults import raising
from invoke import draw, needs_chromium, run
from trastuzumab import CH1, HEAVY, LIGHT

import abag
from abag import AbagError, MissingVectors, OptionError, OutputError, PredictionError
from abag.embed.tables.chains import locate_positions
from abag.head.design.scan import describe_scan
from abag.head.models import kernels
from abag.head.models.pair_vectors import Standardizer

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
ANTIGEN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"
H3 = HEAVY.index("WGGDGFYAMDY")
QUICK = {"split": "random", "report": False, "device": "cpu"}
HEADS = {
    "ensemble": {"head": "mlp", "members": 3, "epochs": 2, "batch_size": 16, "widths": (8,)},
    "gp": {"head": "gp"},
    "ridge": {"head": "ridge"},
}


def variants(n):
    rng = np.random.default_rng(0)
    for _ in range(n):
        chain = list(HEAVY)
        for at in rng.integers(H3, H3 + 11, 2):
            chain[at] = rng.choice(list(RESIDUES))
        yield "".join(chain)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("scan")
    heavy = [HEAVY, *variants(40)]
    antigens = [ANTIGEN, ANTIGEN[::-1]]
    frame = pd.DataFrame(
        [(h, LIGHT, g) for h in heavy for g in antigens], columns=["heavy", "light", "antigen"]
    )
    frame["pKd"] = [8 + h.count("Y") / 3 - len(g) % 7 / 5 for h, _, g in frame.to_numpy()]
    frame["pKd"] += np.random.default_rng(1).normal(0, 0.2, len(frame))
    abag.embed_table(frame, at / "store", **COMPOSITION)
    for name, options in HEADS.items():
        abag.fit(frame, at / "store", at / name, **QUICK | options)
    return SimpleNamespace(at=at, frame=frame, runs={name: at / name for name in HEADS})


def run_scan(case, out, run="ensemble", **options):
    if "parents" not in options:
        options = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN} | options
    said = []
    predictor = case.runs[run] if isinstance(run, str) else run
    summary = abag.scan(predictor, out, say=said.append, **options)
    frame = pd.read_csv(out, dtype={"position": str}, keep_default_na=False)
    frame["pkd_measured"] = pd.to_numeric(frame["pkd_measured"])
    return summary, frame, said


def enumerate_plainly(case, chains, region, run, at):
    """Every single mutant of an IMGT range by a loop, scored by `abag.predict`."""
    rows = []
    for chain, first, last in region:
        for position, place in locate_positions(chains[chain], chain).items():
            if first <= int(position.rstrip("ABCDEF")) <= last:
                for residue in RESIDUES:
                    if residue != chains[chain][place]:
                        text = chains[chain][:place] + residue + chains[chain][place + 1 :]
                        row = {"chain": chain, "position": position, "mutant": residue}
                        rows.append(row | chains | {chain: text})
    frame = pd.concat([pd.DataFrame(rows), pd.DataFrame([chains])], ignore_index=True)
    abag.predict(frame, case.runs[run], at / "plain.parquet")
    table = pd.read_parquet(at / "plain.parquet")
    return table.iloc[:-1].reset_index(drop=True), table.iloc[-1]


def test_a_scan_says_in_one_line_that_all_mutants_have_the_same_prediction(case, tmp_path):
    chains = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN}
    equal = predicting_the_mean(abag.load_predictor(case.runs["gp"]))
    for predictor, can_rank in ((equal, False), (case.runs["gp"], True)):
        said = []
        summary = abag.scan(
            predictor, tmp_path / "a.csv", region="cdrl2", force=True, say=said.append, **chains
        )
        lines = [line for line in said if "the run cannot rank them" in line]
        assert len(lines) == (not can_rank)
        assert summary["can_rank"] == can_rank
        assert sum(summary["same_prediction"].values()) == (0 if can_rank else summary["rows"])
        assert ("cannot rank them" in (tmp_path / "a.html").read_text()) == (not can_rank)


@pytest.mark.parametrize("run", HEADS)
def test_a_scan_equals_a_plain_enumeration_and_predict(case, tmp_path, run):
    summary, table, _ = run_scan(case, tmp_path / "a.csv", run, region="cdrh3,cdrl2")
    chains = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN}
    region = [("heavy", 105, 117), ("light", 56, 65)]
    plain, parent = enumerate_plainly(case, chains, region, run, tmp_path)
    sequences = ["chain", "position", "mutant", "heavy", "light", "antigen"]
    pd.testing.assert_frame_equal(table[sequences], plain[sequences], check_dtype=False)
    for name in ("pkd_predicted", "sigma"):
        np.testing.assert_allclose(table[name], plain[name], atol=1e-4)
    for name in ("regime", "far"):
        assert table[name].tolist() == plain[name].tolist()
    expected = plain["pkd_predicted"] - parent["pkd_predicted"]
    np.testing.assert_allclose(table["difference"], expected, atol=1e-4)
    assert summary["rows"] == len(table) == 19 * summary["sites"]
    assert summary["parent_pkd"] == pytest.approx(parent["pkd_predicted"], rel=1e-5)
    improving = table["difference"] > table.get("difference_sigma", 0.0)
    best = table[improving].nlargest(5, "difference")
    assert [variant["mutation"] for variant in summary["best"]] == best["mutation"].tolist()
    assert summary["improved"] == improving.sum()
    assert not list(tmp_path.glob("*.partial"))


@pytest.fixture(scope="module")
def outlying(tmp_path_factory):
    """Labels that residues of the heavy chain plant, but for two measured parents."""
    at = tmp_path_factory.mktemp("outlying")
    frame = demo_table().head(200)
    rng = np.random.default_rng(3)
    effects = rng.normal(0, 0.5, 20)
    effect = dict(zip(RESIDUES, effects - effects.mean(), strict=True))

    def value(heavy):
        return sum(effect[residue] for residue in heavy)

    planted = frame["heavy"].map(value)
    label = 9 + (planted - planted.mean()) / planted.std() + rng.normal(0, 0.5, len(frame))
    for name in ("heavy", "antigen"):
        cells = frame[name].unique()
        label += frame[name].map(dict(zip(cells, rng.normal(0, 1, len(cells)), strict=True)))
    weak, strong = label.idxmin(), label.idxmax()
    label[weak] -= 2
    label[strong] += 2
    frame["pKd"] = label
    abag.embed_table(frame, at / "store", **COMPOSITION)
    abag.fit(frame, at / "store", at / "run", head="ridge", report=False)
    parents = frame.loc[[weak, strong], ["heavy", "light", "antigen"]]
    return SimpleNamespace(run=at / "run", parents=parents, value=value, label=label, at=at)


def test_mutants_of_an_outlying_measured_parent_improve_as_often_as_they_do(outlying):
    for number, (row, parent) in enumerate(outlying.parents.iterrows()):
        said = []
        mutants = abag.scan(outlying.run, region="cdr", say=said.append, **parent)
        of_heavy = mutants[mutants["chain"] == "heavy"]
        assert {*of_heavy["regime"]} == {"new_variant"}
        true = of_heavy["heavy"].map(outlying.value) - outlying.value(parent["heavy"])
        assert 0.3 < (true > 0).mean() < 0.7
        assert (of_heavy["difference"] > 0).mean() == pytest.approx((true > 0).mean(), abs=0.2)
        # both predictions of the parent are said, and its label
        first = next(line for line in said if line.startswith("1 parent"))
        known = abag.load_predictor(outlying.run).predict(
            *(parent[name] for name in parent.index), store=outlying.at / "store"
        )
        of_known = float(known["pkd_predicted"].iloc[0])
        compared = (mutants["pkd_predicted"] - mutants["difference"]).to_numpy()
        np.testing.assert_allclose(compared, compared[0], atol=1e-9)
        is_nearer = (compared[0] > of_known) if number == 0 else (compared[0] < of_known)
        assert is_nearer  # to the mean
        assert f"predicted pKd {of_known:.2f} ({compared[0]:.2f} if it were as new" in first
        assert f"measured {outlying.label[row]:.2f}" in first


def test_the_page_of_an_outlying_parent_has_the_predictions_of_the_table(outlying, tmp_path):
    summary = abag.scan(
        outlying.run, tmp_path / "a.csv", region="cdrh1", **outlying.parents.iloc[0]
    )
    table = pd.read_csv(tmp_path / "a.csv")
    compared = table["pkd_predicted"] - table["difference"]
    np.testing.assert_allclose(summary["parent_compared"], compared, atol=2e-4)
    page = (tmp_path / "a.html").read_text()
    (content,) = re.findall(r'"predicted": ?\[([^\]]*)\]', page)
    drawn = [float(value) for value in content.split(",")]
    np.testing.assert_allclose(drawn, table["pkd_predicted"], atol=1e-4)
    assert f"({summary['parent_compared']:.2f} if it were as new" in page


def test_every_format_and_batch_size_gives_the_same_rows(case, tmp_path, monkeypatch):
    _, whole, _ = run_scan(case, tmp_path / "a.csv", region="cdrh3", pairs_of=3)
    set_sizes(monkeypatch, scanned_mutants=7)
    asked = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN, "region": "cdrh3", "pairs_of": 3}
    abag.scan(case.runs["ensemble"], tmp_path / "b.parquet", **asked)
    batched = pd.read_parquet(tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(whole, batched, check_dtype=False, atol=1e-4)
    assert (tmp_path / "b.html").exists()


def test_positions_are_imgt_positions_with_their_insertions(case, tmp_path):
    _, by_region, _ = run_scan(case, tmp_path / "a.csv", region="cdrh3")
    _, by_position, _ = run_scan(case, tmp_path / "b.csv", positions="H105-117")
    pd.testing.assert_frame_equal(by_region, by_position)
    longer = HEAVY.replace("WGGDGFYAMDY", "WGGDGFYAAAAAAAAAAMDY")
    assert "111B" in locate_positions(longer, "heavy")
    _, table, _ = run_scan(case, tmp_path / "c.csv", heavy=longer, positions="h111b, L56")
    assert table["position"].unique().tolist() == ["111B", "56"]
    _, table, _ = run_scan(case, tmp_path / "d.csv", heavy=longer, positions="H111-H112")
    assert {"111", "111B", "112A", "112"} <= set(table["position"])
    _, table, _ = run_scan(case, tmp_path / "e.csv", heavy=longer, positions="H111")
    assert table["position"].unique().tolist() == ["111"]


def test_regions_cover_the_variable_domains_and_chains_may_be_longer(case, tmp_path):
    parts = {}
    for region in ("cdr", "framework", "fv"):
        options = {"region": region, "mutate_to": "AG", "heavy": "MKT" + HEAVY + "ASTKGPSV"}
        _, table, _ = run_scan(case, tmp_path / f"{region}.csv", **options)
        parts[region] = set(zip(table["chain"], table["position"], strict=True))
    assert parts["cdr"] | parts["framework"] == parts["fv"]
    assert not parts["cdr"] & parts["framework"]
    assert len(parts["fv"]) == len(locate_positions(HEAVY, "heavy")) + len(
        locate_positions(LIGHT, "light")
    )
    assert table["heavy"].str.startswith("MKT").all()


def test_residues_can_be_chosen_and_excluded(case, tmp_path):
    _, table, _ = run_scan(case, tmp_path / "a.csv", region="cdrh3", exclude="CM")
    assert set(table["mutant"]) == set(RESIDUES) - {"C", "M"}
    _, table, _ = run_scan(case, tmp_path / "b.csv", region="cdrh3", mutate_to="yw")
    assert set(table["mutant"]) == {"Y", "W"}
    assert (table["mutant"] != table["wild_type"]).all()


def test_double_mutants_combine_the_best_single_ones_at_different_sites(case, tmp_path):
    summary, table, _ = run_scan(case, tmp_path / "a.csv", region="cdrh3", pairs_of=6)
    single = table[~table["mutation"].str.contains("+", regex=False)]
    top = single.nlargest(6, "difference")["mutation"].tolist()
    doubles = table[len(single) :]
    expected = set()
    for first, second in itertools.combinations(top, 2):
        if first[:-1] != second[:-1]:  # two sites
            expected.add(frozenset((first, second)))
    assert {frozenset(name.split("+")) for name in doubles["mutation"]} == expected
    assert len(doubles) == len(expected) == summary["double_mutants"] > 5
    abag.predict(doubles[["heavy", "light", "antigen"]], case.runs["ensemble"], tmp_path / "p.csv")
    plain = pd.read_csv(tmp_path / "p.csv")["pkd_predicted"]
    np.testing.assert_allclose(doubles["pkd_predicted"], plain, atol=1e-4)
    a, b = doubles.iloc[0]["mutation"].split("+")
    chain = list(HEAVY)
    for mutation in (a, b):
        position = mutation[3:-1]
        residue = mutation[-1]
        chain[locate_positions(HEAVY, "heavy")[position]] = residue
    assert doubles.iloc[0]["heavy"] == "".join(chain)


def best_of_each_site(single, most):
    """Return the best single mutants, of which at most three are at one site."""
    ordered = single.sort_values("difference", ascending=False, kind="stable")
    place = ordered.groupby(["chain", "position"]).cumcount()
    return {*ordered[place < 3].head(most)["mutation"]}


def test_mutants_with_more_mutations_are_drawn_from_the_best_single_ones(case, tmp_path):
    options = {"region": "cdrh3", "mutations": (3, 4), "drawn": 15}
    summary, table, _ = run_scan(case, tmp_path / "a.csv", **options)
    parts = table["mutation"].str.split("+")
    top = best_of_each_site(table[parts.str.len() == 1], 20)
    for number in (3, 4):
        drawn = parts[parts.str.len() == number]
        assert len(drawn) == 15
        assert drawn.map(frozenset).nunique() == 15
        for mutations in drawn:
            assert {*mutations} <= top
            assert len({mutation[:-1] for mutation in mutations}) == number
    assert summary["drawn_mutants"] == 30
    assert summary["double_mutants"] == 0
    assert "30 drawn with more mutations" in repr(summary)
    triple = table[parts.str.len() == 3]
    single = table[parts.str.len() == 1]
    assert (triple["distance"].min() > single["distance"].max()) or triple["distance"].isna().all()
    _, again, _ = run_scan(case, tmp_path / "b.csv", **options)
    assert again["mutation"].tolist() == table["mutation"].tolist()


def test_all_combinations_are_scored_where_there_are_few(case, tmp_path):
    options = {"positions": "H105-H107", "mutations": (3,), "pairs_of": 5, "drawn": 400}
    _, table, said = run_scan(case, tmp_path / "a.csv", **options)
    parts = table["mutation"].str.split("+")
    top = best_of_each_site(table[parts.str.len() == 1], 5)
    expected = set()
    for three in itertools.combinations(top, 3):
        if len({mutation[:-1] for mutation in three}) == 3:
            expected.add(frozenset(three))
    assert {*parts[parts.str.len() == 3].map(frozenset)} == expected
    assert any("1 parent with fewer than 400 combinations" in line for line in said)


def test_drawn_mutants_need_a_number_of_mutations(case, tmp_path):
    with pytest.raises(OptionError, match="drawn: given without mutations=LIST; expected it, too"):
        run_scan(case, tmp_path / "a.csv", drawn=5)
    with pytest.raises(OptionError, match=r"mutations: \(2,\) is out of range"):
        run_scan(case, tmp_path / "a.csv", mutations=(2,))


def test_the_residues_of_an_antigen_are_scanned_by_their_number(case, tmp_path):
    two = f"{ANTIGEN}|AAAWWW"
    _, table, _ = run_scan(case, tmp_path / "a.csv", region="antigen", antigen=two, mutate_to="K")
    sites = table[["chain", "position", "wild_type"]].to_numpy().tolist()
    assert sites[0] == ["antigen 1", "1", "A"]
    assert ["antigen 2", "1", "M"] in sites
    assert table["heavy"].unique().tolist() == [HEAVY]
    assert table.iloc[0]["antigen"] == f"KAAWWW|{ANTIGEN}"
    assert table.iloc[0]["mutation"] == "A1:A1K"
    _, table, _ = run_scan(case, tmp_path / "b.csv", positions="A3", mutate_to="W")
    assert table["mutation"].tolist() == ["A:T3W"]
    assert table["antigen"].tolist() == ["MKW" + ANTIGEN[3:]]


def mixing(predictor, **changed):
    """Return a predictor whose mixtures have other settings."""
    regimes = {}
    for name, used in predictor.regimes.items():
        regimes[name] = replace(used, mixture=replace(used.mixture, **changed))
    return replace(predictor, regimes=regimes)


def test_the_sigma_of_a_process_is_that_of_its_joint_posterior(case, tmp_path):
    predictor = abag.load_predictor(case.runs["gp"])
    # the folds of this small table may leave the posterior no part in sigma: look at it alone
    predictor = mixing(predictor, spread=1.0)
    _, table, _ = run_scan(case, tmp_path / "a.csv", predictor, region="cdrh3")
    store = abag.open_store(case.at / "store")
    antibody = store.vectors(
        "antibody", [(h, LIGHT) for h in [HEAVY, *table["heavy"]]], pooling="mean"
    )
    antigen = store.vectors("antigen", [ANTIGEN], pooling="mean")
    variances = []
    processes = predictor.parts.models["gp"]
    assert processes
    for process in processes:
        prior, between = plain_kernels(process, antibody, antigen)
        explained = process.root.astype(float) @ process.root.astype(float).T
        posterior = (
            prior - between[:, : len(explained)] @ explained @ between[:, : len(explained)].T
        )
        variance = np.diag(posterior) + posterior[0, 0] - 2 * posterior[0]
        variances.append(process.settings.amplitude * np.maximum(variance[1:], 0))
    expected = np.sqrt(np.mean(variances, axis=0))
    np.testing.assert_allclose(table["difference_sigma"], expected, rtol=1e-3, atol=1e-4)
    assert (table["difference_sigma"] > 0).all()


def test_the_sigma_of_networks_is_by_how_much_their_differences_from_the_parent_vary(
    case, tmp_path
):
    predictor = mixing(abag.load_predictor(case.runs["ensemble"]), spread=1.0, weights={"mlp": 1.0})
    networks = predictor.parts.models["mlp"]

    def scanned(name, models):
        parts = replace(predictor.parts, models={"mlp": models})
        out = tmp_path / f"{name}.csv"
        return run_scan(case, out, replace(predictor, parts=parts), region="cdrh3")[1]

    differences = [scanned(at, (network,))["difference"] for at, network in enumerate(networks)]
    expected = np.std(differences, axis=0)
    assert len(networks) > 1
    assert (expected > 1e-3).any()
    np.testing.assert_allclose(scanned("all", networks)["difference_sigma"], expected, atol=3e-4)


def test_what_parts_differ_in_is_a_part_of_the_sigma_of_a_difference(case, tmp_path):
    predictor = abag.load_predictor(case.runs["gp"])
    ridge = abag.load_predictor(case.runs["ridge"]).parts.models
    predictor = replace(
        predictor, parts=replace(predictor.parts, models={**predictor.parts.models, **ridge})
    )

    def scanned(**weights):
        mixed = mixing(predictor, spread=1.0, weights=weights)
        out = tmp_path / f"{len(weights)}-{next(iter(weights))}.csv"
        return run_scan(case, out, mixed, region="cdrh3")[1]

    both = scanned(gp=0.25, ridge=0.75)
    process = scanned(gp=1.0)
    differ = process["difference"] - scanned(ridge=1.0)["difference"]
    expected = np.sqrt(process["difference_sigma"] ** 2 + 0.25 * 0.75 * differ**2)
    assert (expected > 1.04 * process["difference_sigma"]).any()
    np.testing.assert_allclose(both["difference_sigma"], expected, atol=3e-4)


def test_the_sigma_of_a_difference_is_never_smaller_than_what_the_models_say(case, tmp_path):
    predictor = abag.load_predictor(case.runs["gp"])
    sigma = {}
    for spread in (0.0, 0.4, 1.0, 2.0):
        mixed = mixing(predictor, spread=spread)
        summary, table, _ = run_scan(case, tmp_path / f"{spread}.csv", mixed, region="cdrh3")
        sigma[spread] = table["difference_sigma"].to_numpy()
        assert summary["median_sigma"] == pytest.approx(np.median(sigma[spread]), abs=1e-4)
        assert summary["improved"] == (table["difference"] > sigma[spread]).sum()
    for spread, factor in ((0.0, 1), (0.4, 1), (2.0, 2)):
        np.testing.assert_allclose(sigma[spread], factor * sigma[1.0], atol=2e-4)


def plain_kernels(process, antibody, antigen):
    """The kernel of all pairs with one antigen, and with the training pairs, row by row."""
    settings = process.settings
    train = process.train

    def kernel_of(x, y, unit):
        squared = np.array([((row - y) ** 2).sum(axis=1) for row in x])
        return 1 / (1 + squared / unit / (2 * settings.scale))

    sides = []
    for side, x in ((train.sides[0], antibody), (train.sides[1], antigen)):
        (unit,) = side.units  # of the only view
        z = side.scaling.apply(x).astype(float)
        t = side.train_AD.astype(float)
        sides.append((kernel_of(z, z, unit), kernel_of(z, t, unit)))
    share = (1 - settings.product) / 2
    (own_a, cross_a), (own_g, cross_g) = sides
    prior = settings.product * own_a * own_g[0, 0] + share * (own_a + own_g[0, 0])
    a = cross_a[:, train.index[0]]
    g = cross_g[0][train.index[1]]
    return prior, settings.product * a * g + share * (a + g)


def test_mutants_are_predicted_once_and_scaled_as_often_as_they_are_read(
    case, tmp_path, monkeypatch
):
    predicted, scaled = [], []
    predict_process, apply = kernels.GaussianProcess.predict, Standardizer.apply

    def predict(process, vectors):
        predicted.append(len(vectors))
        return predict_process(process, vectors)

    def scale(scaling, x_ND):
        scaled.append(len(x_ND))
        return apply(scaling, x_ND)

    monkeypatch.setattr(kernels, "BLOCK", 16)  # in each of which all were scaled
    predictor = abag.load_predictor(case.runs["gp"])
    monkeypatch.setattr(kernels.GaussianProcess, "predict", predict)
    monkeypatch.setattr(Standardizer, "apply", scale)
    summary, _, _ = run_scan(case, tmp_path / "a.csv", predictor, region="cdrh3")
    assert predicted == [1, summary["rows"] + 1]
    assert sum(scaled) < 10 * summary["rows"]


def test_a_single_model_without_variance_gives_no_sigma_of_differences(case, tmp_path):
    summary, table, _ = run_scan(case, tmp_path / "a.csv", "ridge", region="cdrh3")
    assert "difference_sigma" not in table
    assert summary["median_sigma"] is None
    assert summary["improved"] == (table["difference"] > 0).sum()
    assert "gives no sigma of these differences" in (tmp_path / "a.html").read_text()
    assert "by any difference, whose sigma is not known: " in describe_scan(summary)


def parents_table(at):
    frame = pd.DataFrame(
        {
            "antibody_name": ["first", "unknown", "second", "first", "third"],
            "heavy": [HEAVY, "W" * 30, HEAVY.replace("WGGDG", "YGGDG"), HEAVY, HEAVY],
            "light": [LIGHT, "", LIGHT, LIGHT, ""],
            "antigen": [ANTIGEN, ANTIGEN, ANTIGEN, ANTIGEN, ANTIGEN],
        }
    )
    frame.to_csv(at / "parents.csv", index=False)
    return frame


def test_parents_of_a_frame_whose_names_are_numbers_are_named_as_in_a_file(case, tmp_path):
    frame = parents_table(tmp_path).iloc[[0, 2, 4]].assign(antibody_name=[1.0, np.nan, 3.0])
    table = abag.scan(case.runs["ensemble"], parents=frame, region="cdrh3")
    assert table["parent"].unique().tolist() == ["1", "row 2", "3"]


def test_a_table_of_parents_goes_on_without_those_that_cannot_be_numbered(case, tmp_path):
    parents_table(tmp_path)
    summary, table, said = run_scan(
        case, tmp_path / "a.csv", parents=tmp_path / "parents.csv", region="cdrh3,cdrl1"
    )
    assert table["parent"].unique().tolist() == ["first (row 2)", "second", "third"]
    assert summary["parents"] == 3
    assert summary["skipped_parents"] == 1
    text = "\n".join(said)
    assert "not scanned: the heavy chain cannot be numbered, in 1 of 4 parents" in text
    assert "1 row repeats a parent" in text
    assert set(table.loc[table["parent"] == "third", "chain"]) == {"heavy"}
    second = table[table["parent"] == "second"]
    parent = abag.load_predictor(case.runs["ensemble"]).predict(
        HEAVY.replace("WGGDG", "YGGDG"), LIGHT, ANTIGEN
    )
    expected = second["pkd_predicted"] - parent["pkd_predicted"][0]
    np.testing.assert_allclose(second["difference"], expected, atol=1e-4)


def test_a_range_may_end_after_some_antigens_and_each_chain_has_its_own_gaps(case, tmp_path):
    frame = pd.DataFrame({"heavy": HEAVY, "antigen": [ANTIGEN, ANTIGEN[:-2]], "id": ["a", "b"]})
    frame.to_csv(tmp_path / "parents.csv", index=False)
    last = len(ANTIGEN)
    positions = f"A{last - 3}-A{last},H111-H129"
    _, table, said = run_scan(
        case, tmp_path / "a.csv", parents=tmp_path / "parents.csv", positions=positions
    )
    text = f"not scanned: no position A{last} of A{last - 3}-A{last}, in 1 of 2 parents"
    assert text in "\n".join(said)
    of_antigen = table[table["chain"] == "antigen"].groupby("parent")["position"].nunique()
    assert of_antigen.to_dict() == {"a": 4, "b": 2}


def test_new_sequences_are_encoded_once(case, tmp_path):
    options = {"region": "cdrl1", "mutate_to": "AWK", "store": tmp_path / "store"}
    first, _, said = run_scan(case, tmp_path / "a.csv", **options)
    encoded = f"encoding {first['rows'] + 1} antibodies with composition and 1 antigen with comp"
    assert encoded in "\n".join(said)
    _, _, said = run_scan(case, tmp_path / "a.csv", force=True, **options)
    assert not any("encoding" in line for line in said)


def test_chains_are_cut_to_the_region_of_the_run(case, tmp_path):
    predictor = abag.load_predictor(case.runs["ensemble"])
    predictor = replace(predictor, layout=replace(predictor.layout, antibody_region="fv"))
    asked = {"heavy": HEAVY + CH1, "light": LIGHT, "antigen": ANTIGEN, "region": "cdrh3"}
    abag.scan(predictor, tmp_path / "a.csv", **asked)
    assert set(pd.read_csv(tmp_path / "a.csv")["heavy"].str.len()) == {len(HEAVY)}


def test_residues_of_an_antigen_of_several_chains_are_not_said_to_be_absent(case, tmp_path):
    asked = {"heavy": HEAVY, "light": LIGHT, "antigen": f"{ANTIGEN}|{ANTIGEN}", "positions": "A3"}
    with pytest.raises(abag.AbagError, match="of an antigen of one chain"):
        abag.scan(case.runs["ensemble"], tmp_path / "a.csv", **asked)


def test_a_run_whose_pairs_are_damaged_is_refused(case, tmp_path):
    run = shutil.copytree(case.runs["ensemble"], tmp_path / "run")
    (run / "pairs.parquet").write_bytes(b"PAR1")
    asked = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN, "positions": "H107"}
    with pytest.raises(abag.RunError, match=r"run: a file of the run is damaged .* Copy the whole"):
        abag.scan(run, tmp_path / "a.csv", store=tmp_path / "s", **asked)
    assert not (tmp_path / "a.csv").exists()


def test_a_shared_predictor_needs_a_store(case, tmp_path):
    shutil.copytree(case.runs["ensemble"] / "predictor", tmp_path / "shared")
    asked = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN, "positions": "H107"}
    with pytest.raises(MissingVectors, match="Give store=DIR"):
        abag.scan(tmp_path / "shared", tmp_path / "a.csv", **asked)
    assert not (tmp_path / "a.csv").exists()
    abag.scan(tmp_path / "shared", tmp_path / "v1.2.csv.gz", store=tmp_path / "s", **asked)
    assert len(pd.read_csv(tmp_path / "v1.2.csv.gz")) == 19
    assert (tmp_path / "v1.2.html").exists()


BAD = [
    ({"region": "cdrh4"}, OptionError, "region: 'cdrh4' is unknown; expected one of cdr, "),
    ({"region": "fv", "positions": "H1"}, OptionError, "each chooses the residues to mutate"),
    ({"positions": "H9-L12"}, OptionError, "'H9-L12' is not a position or range of one chain"),
    ({"positions": "H12-H9"}, OptionError, "not a position or range"),
    (
        {"positions": "H105-H999"},
        OptionError,
        "'H105-H999' is not a position or range of one chain",
    ),
    (
        {"positions": "A12-A999"},
        PredictionError,
        "A999 of A12-A999: the parent has no such residue",
    ),
    ({"mutate_to": "AB"}, OptionError, "mutate_to: 'B' is not a standard residue"),
    ({"mutate_to": "C", "exclude": "C"}, OptionError, "leaves no residue to mutate to"),
    ({"parents": "x.csv", "heavy": HEAVY}, OptionError, "both are given; expected one"),
    ({"antigen": None}, OptionError, "antigen: not given"),
    ({"heavy": "EVQ1"}, AbagError, "is not a valid residue"),
    ({"heavy": "W" * 30, "light": ""}, PredictionError, "the heavy chain cannot be numbered"),
    ({"positions": "H107,H32B"}, PredictionError, "H32B: the parent has no such residue"),
    ({"light": "", "region": "cdrl1"}, PredictionError, "no residue in cdrl1"),
    ({"positions": "H108", "mutate_to": "G"}, PredictionError, "no residue other than G in H108"),
    ({"antibody_region": "fv"}, PredictionError, "the run used 'as-given'"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_input_is_one_line_and_nothing_is_written_or_encoded(
    case, tmp_path, options, error, text
):
    before = sorted(case.at.rglob("*"))
    base = {"heavy": HEAVY, "light": LIGHT, "antigen": ANTIGEN}
    if "parents" in options:
        base = {}
    with pytest.raises(error, match=re.escape(text)) as caught:
        abag.scan(case.runs["ensemble"], tmp_path / "a.csv", **base | options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    assert sorted(case.at.rglob("*")) == before


def test_files_that_exist_are_kept_unless_forced(case, tmp_path):
    options = {"region": "cdrh3", "mutate_to": "A"}
    (tmp_path / "a.html").write_text("mine")
    with pytest.raises(OutputError, match=r"a\.html: already exists"):
        run_scan(case, tmp_path / "a.csv", **options)
    assert (tmp_path / "a.html").read_text() == "mine"
    assert not (tmp_path / "a.csv").exists()
    run_scan(case, tmp_path / "a.csv", force=True, **options)
    assert "<!doctype html>" in (tmp_path / "a.html").read_text()
    parents_table(tmp_path)
    with pytest.raises(OutputError, match="same file as another argument"):
        abag.scan(
            case.runs["ensemble"],
            tmp_path / "parents.csv",
            parents=tmp_path / "parents.csv",
            force=True,
        )
    with pytest.raises(OutputError, match="same file as another argument"):
        run_scan(case, tmp_path / "parents.csv", force=True, sequences=[tmp_path / "parents.csv"])


@pytest.mark.parametrize("failing", [(Path, "write_text"), (pd.DataFrame, "to_csv")])
def test_a_full_disk_leaves_neither_the_table_nor_the_page(case, tmp_path, monkeypatch, failing):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(*failing, raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises((OSError, AbagError), match="No space left on device"):
        run_scan(case, tmp_path / "out" / "scan.csv")
    assert not [*(tmp_path / "out").iterdir()]


def test_the_command_prints_at_most_twelve_lines_or_json(case, tmp_path):
    arguments = ["scan", case.runs["ensemble"], "--heavy", HEAVY, "--light", LIGHT]
    arguments += ["--antigen", ANTIGEN, "--region", "cdrh3", "--out"]
    done = run(*arguments, tmp_path / "a.csv", "--pairs-of", 3)
    lines = done.stdout.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("1 parent, predicted pKd ")
    assert "outside the training data" in done.stdout
    summary = json.loads(run(*arguments, tmp_path / "b.csv", "--json").stdout)
    assert summary["heat_map"] == str(tmp_path / "b.html")
    most = summary | {"far_rows": summary["rows"], "far_parents": 1}
    assert "and so is the parent: their order may mean nothing" in describe_scan(most)
    assert len(describe_scan(most | {"parents": 4}).splitlines()) <= 12


class Page(HTMLParser):
    """What a page would load, its scripts and its tables."""

    def __init__(self, html):
        super().__init__()
        self.loads = []
        self.tags = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]


HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


def hostile_page(case, tmp_path):
    frame = parents_table(tmp_path).assign(antibody_name=[HOSTILE, "b", "c", "d", "e"])
    _, table, _ = run_scan(case, tmp_path / "a.csv", parents=frame, region="cdrh3")
    return table, (tmp_path / "a.html").read_text()


def page_data(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def test_the_page_has_the_numbers_of_the_table_and_loads_nothing(case, tmp_path):
    table, html = hostile_page(case, tmp_path)
    page = Page(html)
    assert page.loads == ["data:,"]
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert "default-src 'none'" in html
    for parent in page_data(html)["parents"]:
        rows = table[table["parent"] == parent["name"]]
        assert parent["difference"] == pytest.approx(rows["difference"], abs=6e-4)
        assert parent["sigma"] == pytest.approx(rows["difference_sigma"], abs=6e-4)
        assert parent["far"] == "".join(map(str, rows["far"].astype(int)))
        positions = rows.drop_duplicates("position")
        assert [site[2] for site in parent["sites"]] == positions["position"].tolist()
        assert [site[4] for site in parent["sites"]] == positions["wild_type"].tolist()


def test_a_large_scan_shows_its_first_parents_and_says_so(case, tmp_path, monkeypatch):
    set_sizes(monkeypatch, map_cells=300)
    parents_table(tmp_path)
    run_scan(case, tmp_path / "a.csv", parents=tmp_path / "parents.csv", region="cdrh3")
    html = (tmp_path / "a.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert [parent["name"] for parent in data["parents"]] == ["first (row 2)"]
    assert "The map shows the first parents only (1 of 3); the table has all." in html


@pytest.mark.ci
@needs_chromium
def test_chromium_draws_every_cell_and_runs_nothing_else(case, tmp_path):
    table, _ = hostile_page(case, tmp_path)
    drawn = draw(tmp_path / "a.html", tmp_path / "profile")
    assert "<title>Scan</title>" in drawn
    first = table[table["parent"] == table["parent"].iloc[0]]
    sites = first["position"].nunique()
    map_svg = re.search(r'<div class="scroll"><svg.*?</svg>', drawn, re.DOTALL)[0]
    assert len(re.findall(r'<rect[^>]*style="fill', map_svg)) == len(first) + sites
    assert map_svg.count('class="wild"') == sites
