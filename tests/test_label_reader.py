"""Every command reads the label, or another tool's predictions, by its own header."""

import json
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pytest
from drawn import add_vectors, draw_pairs
from hypothesis import given
from hypothesis import strategies as st
from invoke import run
from reading import read_labels, read_table

import abag
from abag import AbagError, ColumnError, LabelError
from abag.embed.tables.pairs import read_pairs
from abag.embed.tables.table import read_bounds
from abag.head.labels import headers
from abag.head.labels.column import decide_label
from abag.head.labels.headers import PKD
from abag.head.labels.options import LabelOptions
from abag.head.labels.values import read_affinities
from abag.head.runs.evaluate import decide_prediction

QUICK = {"split": "random", "report": False, "head": "ridge", "device": "cpu"}
DG = -1.987204259e-3 * 298.15 * np.log(10)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("labels")
    frame = draw_pairs(30, 6)
    add_vectors(at / "store", frame)
    written = {
        "pkd": frame,
        "nm": in_nm(frame, "KD (nM)"),
        "k": in_nm(frame, "K"),
        "cells": in_nm(frame, "KD").assign(KD=lambda table: table["KD"].astype(str) + " nM"),
    }
    for name, table in written.items():
        table.to_csv(at / f"{name}.csv", index=False)
    said = {}
    for name, options in {
        "pkd": {},
        "nm": {},
        "cells": {},
        "k": {"columns": {"pkd": "K"}, "label": "kd_nm"},
    }.items():
        said[name] = []
        abag.fit(
            at / f"{name}.csv",
            at / "store",
            at / f"run-{name}",
            say=said[name].append,
            **QUICK | options,
        )
    return at, frame, said


def in_nm(frame, name):
    return frame.assign(**{name: 10 ** (9 - frame["pKd"])}).drop(columns="pKd")


@pytest.mark.parametrize("trained", ["pkd", "nm", "k"])
@pytest.mark.parametrize("table", ["pkd", "nm"])
def test_evaluate_reads_a_table_by_its_own_header_whatever_the_run_was_trained_on(
    case, trained, table
):
    at, frame, _ = case
    scores = abag.evaluate(at / f"run-{trained}", table=at / f"{table}.csv")["table"]
    predicted = (
        abag.load_predictor(at / f"run-{trained}")
        .predict(heavy=frame["heavy"], antigen=frame["antigen"])["pkd_predicted"]
        .to_numpy()
    )
    expected = np.sqrt(np.mean((predicted - frame["pKd"].to_numpy()) ** 2))
    assert scores["metrics"]["rmse"] == pytest.approx(expected, rel=1e-4)


def test_numbers_without_a_unit_are_not_read_in_that_of_the_cells_of_the_run(case):
    at, frame, _ = case
    table = in_nm(frame, "KD")
    with pytest.raises(ColumnError, match="column 'KD' names no unit that is understood"):
        abag.evaluate(at / "run-cells", table=table)
    told, in_cells = (
        abag.evaluate(at / "run-cells", **options)["table"]["metrics"]["rmse"]
        for options in ({"table": table, "label": "kd_nm"}, {"table": at / "cells.csv"})
    )
    assert told == pytest.approx(in_cells)


def rounded(scores):
    """Round the numbers of nested scores: sums of the same values differ in their last digit."""
    return json.loads(json.dumps(scores), parse_float=lambda text: round(float(text), 9))


def test_the_table_that_fit_read_is_evaluated_without_further_options(case):
    at, _, _ = case
    in_own_unit, in_pkd = (
        abag.evaluate(at / "run-k", table=at / name)["table"]["metrics"]
        for name in ("k.csv", "pkd.csv")
    )
    assert rounded(in_own_unit) == rounded(in_pkd)


@pytest.mark.parametrize(("name", "options"), [
    ("nm", []), ("pkd", []), ("k", ["--column", "pkd=K", "--label", "kd_nm"]), ("k", ["--run"]),
])  # fmt: skip
def test_rank_reads_the_measured_table_in_its_own_unit(case, tmp_path, name, options):
    at, frame, _ = case
    measured = pd.read_csv(at / f"{name}.csv").head(90)
    measured.to_csv(tmp_path / "measured.csv", index=False)
    scored = frame[["heavy", "antigen"]].assign(prediction=frame["pKd"] - 0.1, sigma=0.5)
    scored["heavy"] += "A"  # not those that are measured
    scored.to_csv(tmp_path / "scored.csv", index=False)
    of_run = options == ["--run"]
    options = [*options, at / "run-k"] if of_run else options
    result = run(
        "rank",
        tmp_path / "scored.csv",
        "--measured",
        tmp_path / "measured.csv",
        "--out",
        tmp_path / "o.csv",
        "--rule",
        "improvement",
        "--batch",
        3,
        "--json",
        *options,
    )
    best = frame["pKd"].iloc[: None if of_run else 90].max()
    assert json.loads(result.stdout)["best_measured"] == pytest.approx(best, abs=1e-6)


def test_fit_says_what_it_read_as_plan_does_and_the_model_card_too(case):
    at, _, said = case
    line = abag.plan(at / "nm.csv")["sense"]
    assert line.startswith("labels: 'KD (nM)' read as kd_nm, lower is stronger (")
    assert line in said["nm"]
    card = (at / "run-nm" / "predictor" / "README.md").read_text()
    assert "labels of column `KD (nM)` read as `kd_nm`" in card
    assert "read as `None`" not in card


def test_a_label_option_that_contradicts_the_header_is_refused_by_every_command(case, tmp_path):
    at, _, _ = case
    for call in (
        lambda: abag.fit(at / "nm.csv", at / "store", tmp_path / "r", label="kd_um", **QUICK),
        lambda: abag.evaluate(at / "run-nm", table=at / "nm.csv", label="kd_um"),
        lambda: abag.dataset(at / "store", at / "nm.csv", label="kd_um"),
        lambda: abag.sweep(at / "nm.csv", at / "store", tmp_path / "r", label="kd_um", trials=1),
        lambda: abag.adapt_encoders(
            at / "nm.csv", tmp_path / "r", split_from=at / "run-nm", label="kd_um"
        ),
    ):
        with pytest.raises(LabelError, match=r"'KD \(nM\)' is named like kd_nm"):
            call()
    assert not (tmp_path / "r").exists()
    assert abag.plan(at / "nm.csv", label="kd_um")["refused"]


def test_no_other_quantity_is_proposed_to_a_run_of_affinities(case):
    at, frame, _ = case
    for name in ("enrichment", "y"):
        table = frame.rename(columns={"pKd": name})
        with pytest.raises(ColumnError, match="no column for pkd") as refused:
            abag.evaluate(at / "run-nm", table=table)
        assert "value" not in str(refused.value)
        assert "quantity" not in str(refused.value)


# ---- predictions of another tool -----------------------------------------------------------------


def theirs(frame, name, values):
    return frame[["heavy", "antigen"]].assign(**{name: values})


@pytest.mark.parametrize(("name", "write", "options"), [
    ("prediction", lambda pkd: pkd, {}),
    ("predicted KD (nM)", lambda pkd: 10 ** (9 - pkd), {}),
    ("predicted_dG", lambda pkd: DG * pkd, {}),
    ("prediction", lambda pkd: DG * pkd, {"label": "dg_kcal"}),
    ("prediction", lambda pkd: 10 ** (9 - pkd), {"label": "kd_nm"}),
    ("KD (nM)", lambda pkd: 10 ** (9 - pkd), {"columns": {"prediction": "KD (nM)"}}),
])  # fmt: skip
def test_predictions_are_compared_as_pkd_whatever_their_unit(case, name, write, options):
    at, frame, _ = case
    summary = abag.evaluate(
        at / "run-pkd", predictions=theirs(frame, name, write(frame["pKd"])), **options
    )
    (regime,) = summary["predictions"]["regimes"]
    assert regime["rmse"] == pytest.approx(0, abs=1e-6)
    assert regime["spearman"]["value"] == pytest.approx(1)


@pytest.mark.parametrize("write", [lambda pkd: DG * pkd, lambda pkd: 10 ** (12 - pkd)])
def test_predictions_outside_the_range_of_pkd_get_no_verdict_but_the_option(case, write):
    at, frame, _ = case
    predictions = theirs(frame, "prediction", write(frame["pKd"]))
    said = []
    with pytest.raises(AbagError, match=r"predictions, such as .* or the unit with label"):
        abag.evaluate(at / "run-pkd", predictions=predictions, say=said.append)
    assert not any("the run is" in line for line in said)


def test_rank_reads_the_predictions_of_each_table_by_its_own_header(case, tmp_path):
    _, frame, _ = case
    kd_nm = 10 ** (9 - frame["pKd"])
    theirs(frame[:40], "predicted KD (nM)", kd_nm).to_csv(tmp_path / "a.csv", index=False)
    theirs(frame[40:], "Predicted Kd [nM]", kd_nm).to_csv(tmp_path / "b.csv", index=False)
    tables = [tmp_path / "a.csv", tmp_path / "b.csv"]
    summary = abag.rank(tables, tmp_path / "o.csv", rule="mean", batch=3)
    assert summary["predicted"][1] == pytest.approx(frame["pKd"].max())


def test_rank_refuses_tables_whose_predictions_are_in_different_units(case, tmp_path):
    _, frame, _ = case
    kd_nm = 10 ** (9 - frame["pKd"])
    theirs(frame[:40], "predicted KD (nM)", kd_nm).to_csv(tmp_path / "a.csv", index=False)
    theirs(frame[40:], "prediction", frame["pKd"]).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(AbagError, match=r"different units: .* of a\.csv as kd_nm; .* as pkd;"):
        abag.rank([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "o.csv", batch=3)
    assert not (tmp_path / "o.csv").exists()


def test_rank_converts_predictions_whose_header_states_a_unit(case, tmp_path):
    _, frame, _ = case
    scored = theirs(frame, "predicted KD (nM)", 10 ** (9 - frame["pKd"]))
    summary = abag.rank(scored, tmp_path / "o.csv", rule="mean", batch=3)
    assert summary["predicted"][1] == pytest.approx(frame["pKd"].max())
    with pytest.raises(AbagError, match="is in kd_nm, and column 'sigma'"):
        abag.rank(scored.assign(sigma=0.1), tmp_path / "o.csv", rule="mean", batch=3, force=True)


# ---- columns of abag -----------------------------------------------------------------------------


def order(**columns):
    frame = draw_pairs(6, 2).drop(columns="pKd")
    predicted = np.linspace(9, 10, len(frame))
    return frame.assign(
        pkd_predicted=predicted,
        sigma=0.3,
        regime="known",
        far=False,
        why_far="",
        rank=range(len(frame)),
        score=predicted,
        expected_best=predicted,
        probability_above=0.5,
        p_strong=0.2,
        **columns,
    )


def test_columns_of_rank_and_predict_are_never_the_label_and_the_measurements_are_proposed():
    measured = np.linspace(6, 8, 12)
    with pytest.raises(ColumnError, match=r"no column for pkd.* with --column label=measured"):
        read_labels(order(measured=measured))
    for name in ("score", "rank", "expected_best", "pkd_predicted", "p_strong", "sigma"):
        frame = order(measured=measured)
        with pytest.raises(AbagError, match=f"{name!r} is a column of abag"):
            read_labels(frame, columns={"pkd": name})
    assert abag.plan(order())["refused"] == ""  # an order without results is no error
    pairs = read_labels(order(**{"Kd avg (nM)": 10 ** (9 - measured)}))
    np.testing.assert_allclose(np.sort(pairs.pkd), measured, atol=1e-9)


def test_a_score_of_another_tool_is_no_column_of_rank():
    frame = draw_pairs(6, 2).rename(columns={"pKd": "score"})
    pairs = read_labels(frame, label="pkd")
    assert pairs.reading.column == "score"


# ---- numbers as they are typeset -----------------------------------------------------------------


@pytest.mark.ci
@given(
    st.floats(1e-3, 1e5).map(lambda value: float(f"{value:.4g}")),
    st.sampled_from(["", *">~"]),
    st.sampled_from([*"\u00a0\u2009\u202f"]),
)
def test_numbers_with_typeset_signs_and_spaces_are_the_plain_ones(value, relation, space):
    frame = pd.DataFrame({"heavy": ["EVQ", "EVK", "EVR"], "antigen": "MKT"})
    plain = [f"{value:f}", f"{value:.3e}", "12345"]
    typeset = [
        f"{space}{value:,.6f}".replace(",", space),
        f"{value:.3e}\u200b{space}".replace("-", "\u2212"),
        f"\ufeff12{space}345",
    ]
    read = [
        read_labels(frame.assign(**{"KD (nM)": [relation + cell for cell in cells]}))
        for cells in (plain, typeset)
    ]
    np.testing.assert_array_equal(read[0].pkd, read[1].pkd)
    np.testing.assert_array_equal(read[0].censored, read[1].censored)


def test_typeset_minus_signs_are_read_in_labels_matrices_and_features(tmp_path):
    cells = ["\u22127.5", "\u20138.25", "-9.125"]
    frame = pd.DataFrame({"heavy": ["EVQ", "EVK", "EVR"], "antigen": "MKT", "dG (kcal/mol)": cells})
    assert (read_labels(frame).pkd > 5).all()
    pairs = read_labels(frame.assign(pH=cells), features=("pH",))
    assert sorted(pairs.cells.numbers_RF[:, 0]) == [-9.125, -8.25, -7.5]
    matrix = pd.DataFrame({"heavy": frame["heavy"], "MKT": cells, "MKV": ["1.2e\u22121", "3", ""]})
    assert len(read_labels(matrix, matrix=True, label="value", better="lower")) == 5


@pytest.mark.parametrize(
    ("cells", "marks", "said"),
    [
        (["0,5", "12", "1,234"], ",.", "commas are read as decimal points"),
        (["1.234,5", "12.000.000", "9,25"], ",.", "commas are read as decimal points"),
        (["6,02E-01", "1,5e+02", "+3,25"], ",.", "commas are read as decimal points"),
        (["1,234.5", "900", "12,000"], ".,", "commas between thousands are left out"),
        (["1,234,567", "0.5", "12,000"], ".,", "commas between thousands are left out"),
    ],
)
def test_commas_are_read_as_the_column_shows_that_they_are_meant(tmp_path, cells, marks, said):
    table = pd.DataFrame({"heavy": ["EVQ", "EVK", "EVR"], "antigen": "MKT", "KD (nM)": cells})
    table.to_csv(tmp_path / "a.csv", sep=";", index=False)
    decimal, thousands = marks
    told = pd.read_csv(tmp_path / "a.csv", sep=";", decimal=decimal, thousands=thousands)
    pairs = read_labels(tmp_path / "a.csv")
    np.testing.assert_allclose(sorted(pairs.pkd), sorted(9 - np.log10(told["KD (nM)"])))
    assert said in str(abag.plan(tmp_path / "a.csv"))
    bounds = read_labels(table.assign(**{"KD (nM)": ["> " + cell for cell in cells]}))
    np.testing.assert_array_equal(bounds.pkd, pairs.pkd)
    pairs = read_labels(table.assign(pKd=7.5, pH=cells), features=("pH",))
    assert sorted(pairs.cells.numbers_RF[:, 0]) == sorted(told["KD (nM)"])


@pytest.mark.parametrize(
    ("cells", "bad"),
    [
        (["1,234", "5", "12,500"], 2),
        (["1,234", "7.25", "5"], 1),  # a table may mix numbers with text
        (["0,5", "1.5", "5"], 1),
        (["12,5", "1.234", "5"], 1),
        (["12,5", "1,234.5", "5"], 2),
        (["12.000.000", "60.256", "5"], 2),  # of which the second may be 60256
        (["1,2,3", "0,5", "5"], 2),
    ],
)
def test_commas_of_which_the_column_does_not_show_the_meaning_are_refused(cells, bad):
    table = pd.DataFrame({"heavy": ["EVQ", "EVK", "EVR"], "antigen": "MKT", "KD (nM)": cells})
    with pytest.raises(LabelError, match="with a point before decimals and nothing between"):
        read_labels(table)
    assert len(read_labels(table, bad_rows="skip")) == 3 - bad


@pytest.mark.parametrize(
    ("cell", "kd", "censored"),
    [
        ("1.5 x 10^1", 15, 0), ("> 1.5x10^(2)", 150, -1), ("1.5·10⁻²", 0.015, 0),
        ("2 × 10−1", 0.2, 0), ("3*10^+1", 30, 0), ("&gt;200", 200, -1), ("&lt; 0.5", 0.5, 1),
        ("＞200", 200, -1), ("⩽5", 5, 1), ("≈7", 7, 0),
    ],
)  # fmt: skip
def test_powers_of_ten_and_relations_in_other_signs_are_read(cell, kd, censored):
    pairs = read_labels(with_words([cell]))
    expected = 9 - np.log10(kd)
    at = np.argmin(np.abs(pairs.pkd - expected))
    assert pairs.pkd[at] == pytest.approx(expected)
    assert pairs.censored[at] == censored


@pytest.mark.parametrize(
    ("cell", "advice"),
    [
        *(
            (
                cell,
                "number alone, with a point before decimals and nothing between",
            )
            for cell in (
                "3.2 ± 0.4 x 10^-9",  # whose power may be of both
                "3.2 ± 20%",
                "<3.2 +/- 0.4",
                "1.200 ± 150,5",  # whose error says that its point is before thousands
                "1.2E-9 (0.4)",
                "36,058",
                "1'200",
                "1_200",
                "1.5 x 109",  # whose 9 may have been raised
                "1.5 x 10",
                "10⁻⁹",
                "10^-9",
                "< LOD",
                ">LLOQ",
                "3.2 mol",
                "3.2 nM (n=2)",
                "1_0 nM",
                "3.2 nM^-1",
                "39%",
                "10-15",
                "Poor fit",
                "3.2; 3.5",
            )
        ),
        ("NBD", "Write a non-binder as a bound, such as >10000"),
        ("Inf*", "Write a non-binder as a bound, such as >10000"),
        ("no signal", "Write a non-binder as a bound, such as >10000"),
    ],
)
def test_numbers_as_publications_write_them_are_refused_with_how_to_write_them(cell, advice):
    refused = abag.plan(with_words([cell]))["refused"]
    assert f"{cell!r} is not a valid label" in refused
    assert advice in refused


@pytest.mark.parametrize(
    ("name", "cells", "options", "nanomolar", "sides"),
    [
        ("KD (nM)", ["7", "> 10 µM", "300 pM", "2 nM", "≤1E-9M"], {}, [7, 1e4, 0.3, 2, 1], "0<00>"),
        (
            "KD (nM)",
            ["7", "above 10 µM", "less than 2", "at least 30"],
            {},
            [7, 1e4, 2, 30],
            "0<><",
        ),
        ("KD", ["7 nM", "1.5nM", "0.3 nM"], {}, [7, 1.5, 0.3], "000"),
        (
            "Affinity",
            ["7 nM", "1.5 µM", "30 pM", "NB"],
            {"no_binding": 9e3},
            [7, 1500, 0.03, 9e3],
            "000<",
        ),
        ("KD", ["1.2 × 10⁻⁹ M", "3.1 x 10^-8 M", ">1e-5 M"], {}, [1.2, 31, 1e4], "00<"),
        ("KD", ["7 nM", "0.03 μM"], {"label": "kd_um"}, [7, 30], "00"),
        ("KD", ["7", "30 pM"], {"label": "kd_nm"}, [7, 0.03], "00"),
        ("IC50", ["1,5 nM", "30 nM"], {}, [1.5, 30], "00"),
        ("EC50", ["0.15 µg/mL", "<3 ng/mL"], {}, [1, 0.02], "0>"),
        ("value", ["7 nM", "30 pM"], {"columns": {"pkd": "value"}}, [7, 0.03], "00"),
        ("result", ["7 nM", "30 pM"], {"columns": {"label": "result"}}, [7, 0.03], "00"),
    ],
)
def test_a_unit_in_a_cell_is_that_of_its_number(name, cells, options, nanomolar, sides):
    table = with_words([]).rename(columns={"KD (nM)": name}).head(len(cells))
    read = read_labels(table.assign(**{name: cells}), replicates="keep", **options)
    order = np.argsort(read.row)
    np.testing.assert_allclose(read.pkd[order], 9 - np.log10(nanomolar), rtol=1e-9)
    assert read.censored[order].tolist() == [{"0": 0, "<": -1, ">": 1}[side] for side in sides]


def test_a_number_without_a_unit_is_no_label_where_the_others_state_theirs():
    cells = [f"{number}.5 nM" for number in range(1, 1101)] + ["7"]
    table = pd.DataFrame({"heavy": ["EVQ"] * len(cells), "antigen": "MKT", "KD": cells})
    refused = abag.plan(table)["refused"]
    assert "'KD': 7 is not a valid label; expected a number with its unit" in refused
    few = table.drop(index=range(500))
    assert "use --column pkd=KD --label UNIT" in abag.plan(few)["refused"]


def test_numbers_without_a_unit_beside_some_with_one_are_never_read_as_pkd():
    table = with_words([]).rename(columns={"KD (nM)": "affinity"}).head(4)
    table = table.assign(affinity=["7.5", "8 nM", "6.5", "9"])
    with pytest.raises(AbagError, match=r"'8 nM', and others without.* pkd=affinity --label UNIT"):
        read_labels(table, columns={"pkd": "affinity"}, bad_rows="skip")


@pytest.mark.parametrize("name", ["KD (nM) ± SD", "KD ± SEM (nM)", "EC50 +/- SD, nM"])
def test_a_column_of_values_with_their_errors_is_read_without_these(name):
    table = with_words([]).rename(columns={"KD (nM)": name})
    texts = table.assign(**{name: table[name] + " ± 0.4"})
    planned = abag.plan(texts)
    rows = len(table)
    assert f"{rows} cells with an error, such as {texts[name][0]!r}, which is left out" in str(
        planned
    )
    expected = read_labels(table.rename(columns={name: "KD (nM)"}))
    assert read_labels(texts).pkd == pytest.approx(expected.pkd)
    assert "is named like an error" in abag.plan(table, columns={"pkd": name})["refused"]


@pytest.mark.parametrize(
    ("cell", "kd"),
    [
        ("3.2 ± 0.4", 3.2),
        ("12.5+/-2", 12.5),
        ("1.2e1 +/- 3e0", 12),
        ("30 ± 4 pM", 0.03),
        ("1.5E-3 ± 0.1", 1.5e-3),
        ("3.2 x 10^-2 ± 0.4 x 10^-2", 3.2e-2),
        ("(3.2 ± 0.4) × 10⁻²", 3.2e-2),
        ("(3.2±0.4)e-2", 3.2e-2),
        ("3.2 (± 0.4)", 3.2),
        ("3.2 &plusmn; 0.4", 3.2),
        ("3.2 ± nan", 3.2),  # of one replicate
        ("(30 ± 4) pM", 0.03),
    ],
)
def test_the_error_behind_a_label_is_left_out(cell, kd):
    assert np.isclose(read_labels(with_words([cell])).pkd, 9 - np.log10(kd)).any()
    assert "1 cell with an error" in str(abag.plan(with_words([cell])))


@pytest.mark.parametrize(
    ("name", "cells", "is_told"),
    [
        ("KD (nM)", ["nM", "uM"], True),
        ("KD (nM)", ["uM", "uM"], True),
        ("KD (nM)", ["nM", "nM"], False),
        ("pKd", ["nM", "uM"], False),
    ],
)
def test_units_in_cells_that_contradict_the_name_of_the_label_are_told(name, cells, is_told):
    frame = with_words([], name, (5.0, 6.0, 7.0, 8.0)).assign(unit=cells * 2)
    told = "column 'unit' holds other units than the name of 'KD (nM)' states"
    assert any(told in note for note in abag.plan(frame)["notes"]) == is_told


def test_points_between_thousands_are_not_read_as_decimal_points_beside_decimal_commas():
    frame = with_words([]).assign(Tm=["65,3", "70,25", "66", "71,5", "60,1"])
    thousands = frame.assign(**{"KD (nM)": ["1.000", ">2.500", "12", "3.100", "NB"]})
    with pytest.raises(LabelError, match=r"1\.000, and 'Tm' decimal commas.*1000 or 1;"):
        read_labels(thousands, bad_rows="skip")
    # one number tells what all points are before, and so does a table without commas
    clear = thousands.assign(**{"KD (nM)": ["1.000", "2.500", "0.125", "3.100", "7.750"]})
    assert read_labels(clear).pkd.max() == pytest.approx(9 - np.log10(0.125))
    assert read_labels(thousands.drop(columns="Tm"), bad_rows="skip").pkd.max() == 9
    # no pKd is 8881, and the commas may be between the numbers of residues
    sites = {"pKd": ["8.881", "7.250", "9.000", "6.125", "8.500"], "sites": ["30,31"] * 5}
    pkd = frame.drop(columns=["KD (nM)", "Tm"]).assign(**sites)
    assert read_labels(pkd).pkd.max() == 9


def test_a_space_that_is_no_separator_of_thousands_is_shown_in_the_error():
    frame = pd.DataFrame({"heavy": ["EVQ", "EVK"], "antigen": "MKT", "KD (nM)": ["12\xa05", "5"]})
    with pytest.raises(LabelError, match=r"row 1, column 'KD \(nM\)': '12\\xa05' is not a valid"):
        read_labels(frame)


# ---- pairs that do not bind ----------------------------------------------------------------------

WORDS = ["NB", "no binding", "n.b.", "Non-Binder", "ND", "0, No binding", "Inf", "inf*"]


def with_words(words, name="KD (nM)", kd=(1.0, 10.0, 100.0, 500.0, 900.0)):
    cells = [*map(str, kd), *words]
    heavy = [f"EVQ{'A' * i}" for i in range(len(cells))]
    return pd.DataFrame({"heavy": heavy, "antigen": "MKT", name: cells})


def test_a_non_binder_in_words_is_refused_with_the_bound_to_write():
    with pytest.raises(LabelError, match=r"such as >10000 \(kd_nm\).*--no-binding VALUE"):
        read_labels(with_words(["NB"]))
    with pytest.raises(LabelError, match=r"such as <5 \(pkd\)"):
        read_labels(with_words(["no binding"], "pKd", (5, 6, 7, 8, 9)))


def test_no_binding_reads_words_as_a_bound_counted_and_told():
    pairs = read_labels(with_words(WORDS), no_binding=10_000)
    bounds = pairs.censored == -1
    assert pairs.pkd[bounds].tolist() == [5.0] * len(WORDS)  # 9 - log10(10000)
    assert bounds.sum() == pairs.counts["no_binding_rows"] == len(WORDS)
    assert "8 cells such as 'NB', 'no binding', 'n.b.' read as >10000" in pairs.reading.line
    typed = with_words(["inf"]).astype({"KD (nM)": float})
    assert read_labels(typed, no_binding=10_000).counts["no_binding_rows"] == 1
    of_pkd = with_words(["NB", "-inf"], "pKd", (5, 6, 7, 8, 9))
    pairs = read_labels(of_pkd, no_binding=4.5)
    assert pairs.pkd[pairs.censored == -1].tolist() == [4.5, 4.5]


@pytest.mark.parametrize(
    ("name", "cell", "kd"), [("pKd", "inf", (5, 6, 7, 8, 9)), ("KD (nM)", "-inf", (1, 10, 100))]
)
def test_an_infinite_label_at_the_strong_end_is_no_non_binder(name, cell, kd):
    for frame in (with_words([cell], name, kd), with_words([cell], name, kd).astype({name: float})):
        with pytest.raises(LabelError, match=r"inf'? is not a valid label.*Fix it\. Or skip it"):
            read_labels(frame, no_binding=4.5 if name == "pKd" else 10_000)


def test_empty_cells_are_bounds_only_if_asked():
    frame = with_words(["NB", None, ""])
    with pytest.raises(LabelError, match="2 rows are bad"):
        read_labels(frame, no_binding=10_000)
    options = {"no_binding": 10_000, "no_binding_empty": True}
    assert read_labels(frame, **options).counts["no_binding_rows"] == 3
    with pytest.raises(AbagError, match="--no-binding-empty: no bound is given"):
        abag.PlanOptions(no_binding_empty=True)


@pytest.mark.parametrize(("value", "says"), [
    (1e-9, "is not an affinity if read as kd_nm"), (0.01, "at the weak end"),
])  # fmt: skip
def test_a_bound_of_non_binders_that_cannot_be_meant_is_refused(value, says):
    with pytest.raises(LabelError, match=f"--no-binding.*{says}"):
        read_labels(with_words(["NB"]), no_binding=value)


def test_plan_names_the_label_among_the_roles_also_if_its_cells_are_bad():
    planned = abag.plan(with_words(["NB"]))
    assert planned["columns"] == "columns: heavy 'heavy', antigen 'antigen', pkd 'KD (nM)'"
    assert "such as >10000" in planned["refused"]


def test_evaluate_reads_non_binders_as_the_run_did_also_in_another_unit(case, tmp_path):
    at, frame, _ = case
    nm = in_nm(frame, "KD (nM)")
    nm["KD (nM)"] = nm["KD (nM)"].astype(str)
    nm.loc[[3, 5], "KD (nM)"] = "NB"
    weak = float(10 ** (9.5 - frame["pKd"].min()))
    abag.fit(nm, at / "store", tmp_path / "run", no_binding=weak, **QUICK)
    pkd = frame.assign(pKd=frame["pKd"].astype(str))
    pkd.loc[[3, 5], "pKd"] = "n.b."
    both = [
        abag.evaluate(tmp_path / "run", table=table, store=at / "store")["table"]["metrics"]
        for table in (nm, pkd)
    ]
    assert both[0]["rmse"] == pytest.approx(both[1]["rmse"], rel=1e-6)


def test_the_cells_of_a_column_are_read_once_to_find_the_label(monkeypatch):
    read = Counter()

    def counted(cells):
        read[cells.name] += 1
        return read_bounds(cells)

    monkeypatch.setattr(headers, "read_bounds", counted)
    frame = pd.DataFrame({"heavy": ["EVQ", "EVK", "EVR"], "antigen": "MKT"})
    for name in ("signal", "binding", "od450", "dose"):
        frame[name] = [0.5, 1.5, 2.5]
    table = read_table(frame)
    decided = decide_label(table, LabelOptions())
    words = "use --column label=od450. Other columns of numbers: 'binding', 'signal' ("
    assert words in str(decided.refused)
    assert read == dict.fromkeys(("signal", "binding", "od450", "dose"), 1)


def test_predictions_are_found_with_the_other_columns_of_their_table():
    frame = pd.DataFrame(
        {"heavy": ["EVQ", "EVK"], "antigen": "MKT", "predicted KD (ng/mL)": [1, 2]}
    )
    decide = partial(decide_prediction, options=LabelOptions(), quantity=PKD, molar_mass="vhh")
    table = read_pairs(frame, label=decide)
    (label,) = table.labels
    assert table.columns["pkd"] == label.column == "predicted KD (ng/mL)"
    read = read_affinities(table, label)
    assert (read.unit, read.molar_mass_kda) == ("ng_ml", 15.0)
    missing = decide(read_table(frame[["heavy", "antigen"]]))
    with pytest.raises(ColumnError, match="no column for prediction"):
        missing.checked()
