"""Labels that are no affinity, from the column to every page: value, name, unit and direction."""

import json
import re

import invoke
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import read_labels, read_sequences
from sklearn.metrics import mean_squared_error
from trastuzumab import HEAVY, LIGHT

import abag
from abag import AbagError, ColumnError, LabelError, OptionError, PredictionError
from abag.head.evaluation.metrics import MeasuredRows
from abag.head.evaluation.verdicts import score_strong
from abag.head.labels.headers import PKD, Quantity, read_header
from abag.sklearn import AffinityRegressor

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
SITES = range(98, 108)
"""Residues of CDR H3 that the variants change."""


def variants(n, seed=0):
    """Draw variants of one antibody, each with an additive effect; the first is the parent."""
    rng = np.random.default_rng(seed)
    effect = rng.normal(size=(len(HEAVY), 20))
    rows = {HEAVY: 0.0}
    while len(rows) < n:
        chain = list(HEAVY)
        total = 0.0
        for at in rng.choice(SITES, rng.integers(1, 4), replace=False):
            new = int(rng.integers(20))
            total += effect[at, new] * (RESIDUES[new] != chain[at])
            chain[at] = RESIDUES[new]
        rows.setdefault("".join(chain), total)
    return pd.DataFrame({"heavy": [*rows], "light": LIGHT, "effect": [*rows.values()]})


def table(name, values):
    return pd.DataFrame({"heavy": [3 * x for x in "ACDEFG"], "antigen": [*"HIKLMN"], name: values})


def labelled(name, values, columns=None, **options):
    return read_labels(table(name, values), columns=columns or {}, **options)


VALUES = [61.5, 0.0, -3.25, 70.0, 68.0, 64.0]


# ---- the column ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "name", "unit", "better"),
    [
        ("Tm (°C)", "Tm", "°C", "higher"), ("Fab Tm by DSF [°C]", "Fab Tm by DSF", "°C", "higher"),
        ("ddG (kcal/mol)", "ddG", "kcal/mol", "lower"), ("ΔΔG", "ΔΔG", "", "lower"),
        ("delta delta G", "delta delta G", "", "lower"), ("enrichment", "enrichment", "", "higher"),
        ("log2_enrichment", "log2_enrichment", "", "higher"),
        ("HEK Titer (mg/L)", "HEK Titer", "mg/L", "higher"),
        ("neutralization (%)", "neutralization", "%", "higher"),
        ("HIC Retention Time (Min)", "HIC Retention Time", "Min", "lower"),
        ("fitness", "fitness", "", None), ("y", "y", "", None), ("atm", "atm", "", None),
        ("expression_sd", "expression_sd", "", None), ("HIC RT (min)", "HIC RT", "min", "lower"),
        ("-ddG", "-ddG", "", "higher"), ("neg_ddG", "neg_ddG", "", "higher"),
        ("−ΔΔG (kcal/mol)", "−ΔΔG", "kcal/mol", "higher"),
        ("minus log enrichment", "minus log enrichment", "", "lower"),
        ("enrichment_neg", "enrichment_neg", "", None),
        ("expression_loss", "expression_loss", "", None),
        ("neutralization_escape", "neutralization_escape", "", None),
        ("neutralization IC80 (µg/mL)", "neutralization IC80", "µg/mL", "lower"),
        ("Neutralization IC50", "Neutralization IC50", "", None),
        ("AC-SINS_pH7.4", "AC-SINS_pH7.4", "", "lower"),
        ("SGAC-SINS AS100 (mM)", "SGAC-SINS AS100", "mM", "higher"),
        ("ELISA OD450", "ELISA OD450", "", "higher"), ("bvp_od", "bvp_od", "", None),
        ("tm_score", "tm_score", "", None), ("titer_replicates", "titer_replicates", "", None),
        ("NT50", "NT50", "", "higher"), ("NT50 (ng/mL)", "NT50", "ng/mL", None),
        ("aggregation temperature (°C)", "aggregation temperature", "°C", "higher"),
        ("aggregation onset (°C)", "aggregation onset", "°C", None),
        ("ΔTm (°C)", "ΔTm", "°C", "higher"), ("dTm", "dTm", "", "higher"),
        ("log10(MFI)", "log10(MFI)", "", "higher"), ("log2(signal)", "log2(signal)", "", None),
        ("Tm (SD)", "Tm", "SD", None), ("enrichment p-value", "enrichment p-value", "", None),
    ],
)  # fmt: skip
def test_the_name_of_a_column_tells_a_quantity_its_unit_and_direction(column, name, unit, better):
    header = read_header(column)
    assert (header.quantity, header.written_unit, header.better) == (name, unit, better)


@pytest.mark.parametrize("columns", [{}, {"label": "Tm (°C)"}, {"pkd": "Tm (°C)"}])
def test_a_usual_quantity_is_read_as_it_is_named(columns):
    pairs = labelled("Tm (°C)", VALUES, columns)
    assert pairs.quantity == Quantity(name="Tm", unit="°C", better="higher", affinity=False)
    assert sorted(pairs.pkd) == sorted(VALUES)
    assert pairs.reading.line == (
        "labels: 'Tm (°C)' read as Tm (°C), higher is better (6 values, -3.25 to 70; the column is "
        "named so)"
    )


def test_any_column_is_a_quantity_if_the_options_say_so():
    pairs = labelled(
        "y", VALUES, {"label": "y"}, label="value", better="lower", unit="nM of nothing"
    )
    assert str(pairs.quantity) == "y (nM of nothing)"
    assert pairs.quantity.sign == -1
    assert sorted(pairs.pkd) == sorted(VALUES)
    assert labelled("y", VALUES, better="higher").quantity.name == "y"  # the only numbers


def test_an_option_reverses_the_direction_of_a_known_name():
    assert labelled("ddG", VALUES).quantity.better == "lower"
    assert labelled("ddG", VALUES, better="higher").quantity.better == "higher"


def test_an_enrichment_from_2_to_14_is_not_called_pkd():
    pairs = labelled("enrichment", [2.0, 5, 8, 11, 13, 14], {"pkd": "enrichment"})
    assert not pairs.quantity.affinity
    assert "pKd" not in pairs.reading.line


@pytest.mark.parametrize("column", ["HIC", "BVP ELISA", "fitness", "value"])
def test_a_label_that_says_nothing_is_not_called_pkd_unless_the_user_does(column):
    values = [2.0, 5, 8, 11, 13, 14]
    with pytest.raises(ColumnError, match=r"does not say what it measures.*--label value --better"):
        labelled(column, values, {"label": column})
    assert labelled(column, values, {"label": column}, label="pkd").quantity == PKD
    assert labelled(column, values, {"pkd": column}).quantity == PKD
    assert labelled(column, values, {"label": column}, better="lower").quantity.name == column


def test_a_label_that_is_named_wins_over_a_column_of_affinities():
    frame = table("KD (nM)", [1.0, 2, 3, 4, 5, 6]).assign(Tm=VALUES, censored="=")
    pairs = read_labels(frame, columns={"label": "Tm"})
    assert pairs.reading.column == pairs.table.columns["pkd"] == "Tm"
    assert "label" not in pairs.table.columns


@pytest.mark.parametrize("column", ["% inhibition", "ΔlogKa", "stability", "dG_unfold (kcal/mol)"])
def test_a_column_that_is_no_affinity_is_proposed_as_a_value(column):
    with pytest.raises(ColumnError, match=r"affinity with --column .*--label value --better"):
        labelled(column, VALUES)


def test_pkd_stays_what_it_is():
    pairs = labelled("pKd", [6.0, 6.5, 7, 7.5, 8, 9])
    assert pairs.quantity == PKD
    assert labelled("pIC50", [6.0, 6.5, 7, 7.5, 8, 9]).quantity == Quantity(name="pIC50")


def test_an_affinity_beside_another_quantity_is_taken():
    frame = table("KD (nM)", [1.0, 2, 3, 4, 5, 6]).assign(Tm=VALUES)
    assert read_labels(frame).reading.column == "KD (nM)"


def test_one_of_several_numbers_is_not_guessed():
    frame = table("Tm", VALUES).assign(expression=VALUES)
    said = "'Tm' is named like a quantity.*: use --column label=Tm. 'expression' is"
    with pytest.raises(ColumnError, match=said):
        read_labels(frame)
    with pytest.raises(ColumnError, match="--column label=Tm"):
        read_labels(frame, label="value")


def test_a_quantity_beside_a_copy_called_fitness_is_proposed_first():
    said = "but 'Tm' is named like a quantity that is no affinity: use --column label=Tm. 'fitness'"
    with pytest.raises(ColumnError, match=said):
        read_labels(table("Tm", VALUES).assign(fitness=VALUES))


def test_a_constant_beside_the_label_is_no_second_label():
    frame = table("Tm", VALUES).assign(pH=7.4)
    assert read_labels(frame).reading.column == "Tm"
    frame = table("fitness", VALUES).assign(pH=7.4)
    assert read_labels(frame, better="higher").reading.column == "fitness"


def test_a_column_that_pandas_writes_for_its_index_is_not_a_label(tmp_path):
    table("Tm", VALUES).to_csv(tmp_path / "t.csv")
    assert read_labels(tmp_path / "t.csv").reading.column == "Tm"


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        ("y", {"label": "value"}, "does not say which of its values are better.*--better higher"),
        ("koff", {"label": "value"}, "--better higher"),
        ("KD (nM)", {"label": "value", "better": "lower"}, "is named like kd_nm, an affinity"),
        ("Tm", {"label": "kd_nm"}, "another quantity than an affinity, but --label says kd_nm"),
        ("KD error", {}, "not like an affinity"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_with_the_line_that_reads_the_column(column, options, said):
    with pytest.raises((LabelError, ColumnError), match=said):
        labelled(column, VALUES, {"label": column}, **options)


def test_options_of_other_quantities_are_refused_for_affinities():
    with pytest.raises(OptionError, match="--label says pkd; expected --label value"):
        abag.PlanOptions(label="pkd", better="higher")
    with pytest.raises(OptionError, match="--unit"):
        abag.PlanOptions(unit="a\nb")
    with pytest.raises(OptionError, match="each names the label"):
        abag.PlanOptions(columns={"label": "a", "pkd": "b"})


# ---- the cells -----------------------------------------------------------------------------------


def test_replicates_have_their_median_and_the_parent_keeps_its_zero(tmp_path):
    drawn = variants(12)
    frame = pd.concat([drawn] * 3, ignore_index=True)
    frame["ddG"] = frame["effect"] + np.tile([-0.1, 0.0, 0.4], 12).round(3)
    frame.loc[frame["heavy"] == HEAVY, "ddG"] = 0.0
    frame.drop(columns="effect").to_csv(tmp_path / "t.csv", index=False)
    pairs = read_labels(tmp_path / "t.csv", no_antigen=True)
    expected = pd.read_csv(tmp_path / "t.csv").groupby("heavy")["ddG"].median()
    chains = pairs.table.antibodies.chains
    values = {chains[i][0]: y for i, y in zip(pairs.antibody, pairs.pkd, strict=True)}
    assert values == pytest.approx(expected.to_dict())
    assert values[HEAVY] == 0.0


def test_bounds_lie_on_the_side_that_is_written():
    pairs = labelled("Tm", [">80", "<40", "61.5", "≥79", "-2", "0"], better="higher")
    assert dict(zip(pairs.pkd.tolist(), pairs.censored.tolist(), strict=True)) == {
        80: 1,
        40: -1,
        61.5: 0,
        79: 1,
        -2: 0,
        0: 0,
    }


def test_relations_in_a_column_are_of_the_quantity():
    frame = table("ddG", [1.0, 2, 3, 4, 5, 6]).assign(censored=["", ">", "=", "<", "", ">6"])
    pairs = read_labels(frame)
    assert dict(zip(pairs.pkd.tolist(), pairs.censored.tolist(), strict=True)) == {
        1: 0,
        2: 1,
        3: 0,
        4: -1,
        5: 0,
        6: 1,
    }


@pytest.mark.parametrize(("better", "side"), [("higher", -1), ("lower", 1)])
def test_words_for_no_binding_are_bounds_at_the_bad_end(better, side):
    bound = 1.0 if better == "higher" else 9.0
    options = {"label": "value", "better": better, "no_binding": bound}
    pairs = labelled("y", ["2", "3", "4", "5", "NB", "6"], {"label": "y"}, **options)
    assert pairs.censored[pairs.pkd == bound].tolist() == [side]


@pytest.mark.parametrize("cell", [None, "", "n/a", np.nan])
def test_a_missing_cell_is_missing(cell):
    with pytest.raises(LabelError, match=r"row 2, column 'Tm'|rows? 2"):
        labelled("Tm", [60, cell, 62, 63, 64, 65])
    pairs = labelled("Tm", [60, cell, 62, 63, 64, 65], bad_rows="skip")
    assert sorted(pairs.pkd) == [60, 62, 63, 64, 65]


@pytest.mark.parametrize("options", [{}, {"label": "value"}])
def test_two_values_are_refused_before_anything_is_asked(options):
    with pytest.raises(LabelError, match="holds only 2 and 5, which are two classes"):
        labelled("y", [2, 5, 5, 5, 2, 2], {"label": "y"}, **options)


@pytest.mark.parametrize("label", ["pkd", "kd_nm", "value"])
def test_words_for_classes_are_no_numbers_in_any_unit(label):
    asked = {"label": label} | ({"better": "higher"} if label == "value" else {})
    with pytest.raises(LabelError, match=r"'yes' is not a valid label.*--label binary"):
        labelled("binder", ["yes", "no", "no", "yes", "no", "no"], {"label": "binder"}, **asked)


def test_numbers_of_an_unknown_name_are_proposed():
    said = "a quantity that is no affinity with --column label=DMS --label value --better higher"
    with pytest.raises(ColumnError, match=said):
        labelled("DMS", VALUES)
    with pytest.raises(ColumnError, match=r"'fitness' may be one: .*\(value --better higher"):
        labelled("fitness", VALUES)


LIKELY = (
    "peptide_activity", "mean_enrichment", "binding_score", "log10 fitness", "KDapp2", "ka_variant",
    "exp_avg_fit", "DMS", "affinity_round2", "heavy_chain_kd", "SPR signal",
)  # fmt: skip


@given(st.sampled_from(LIKELY), st.randoms(use_true_random=False))
def test_columns_that_count_or_number_rows_are_proposed_behind_all_others(likely, random):
    rows = [*range(8)]
    others = {
        "pmid": [35589842] * 7 + [35589843], "mutclass": [1, 2, 3, 4, 3, 2, 1, 2], "chip_id": rows,
        "InputExp_Count": [12, 87, 12, 55, 3, 9, 100, 4], "published": [*range(2001, 2009)],
        "position": [5, 7, 9, 11, 12, 30, 2, 8], "n_mutations": [1, 1, 2, 2, 3, 3, 4, 4],
        "pH": [7.4, 6.0, 7.4, 6.0, 5.5, 7.4, 6, 6], "plddt": np.linspace(80, 95.5, 8),
    }  # fmt: skip
    names = [likely, *others]
    random.shuffle(names)
    frame = pd.DataFrame({"heavy": [3 * x for x in "ACDEFGHI"], "antigen": [*"KLMNPQRS"]})
    for name in names:
        frame[name] = others.get(name, [0.0, 0.5, 1.5, 1.25, 3, 0.75, 2, 9.5])
    with pytest.raises(ColumnError) as caught:
        read_labels(frame, label="value", better="higher")
    listed = re.findall("'([^']+)'", str(caught.value).partition(" may be ")[0])
    assert listed[0] == likely
    assert {*listed} == {*names}
    assert f"label={likely}" in str(caught.value).replace("'", "")


def test_all_columns_of_numbers_are_listed_with_a_mean_before_what_it_summarises():
    frame = table("exp1_fit", VALUES).assign(count=range(6), exp_avg_fit=VALUES, other=VALUES)
    said = abag.plan(frame)["refused"]
    assert "--column label=exp_avg_fit --label value --better higher, or lower; columns of" in said
    assert "likely labels first: 'exp_avg_fit', 'exp1_fit', 'other', 'count'." in said


def test_measurements_beside_a_quantity_of_known_direction_are_proposed_too():
    frame = table("expression", VALUES).assign(pmid=range(6), binding_activity=VALUES)
    said = "label=expression. Other columns of numbers: 'binding_activity' .*--label value --better"
    with pytest.raises(ColumnError, match=said):
        read_labels(frame)
    frame = table("score", VALUES).assign(pmid=range(6), binding_activity=VALUES)
    with pytest.raises(ColumnError, match="Other columns of numbers: 'binding_activity'"):
        read_labels(frame)


@pytest.mark.parametrize(("better", "worst"), [("higher", 1.0), ("lower", 9.0)])
def test_the_floor_is_at_the_bad_end(better, worst):
    drawn = variants(40)
    values = np.linspace(2, 8, 40)
    values[:6] = worst
    frame = drawn.assign(y=values).drop(columns="effect")
    options = {"no_antigen": True, "label": "value", "better": better}
    pairs = read_labels(frame, **options, floor="censor")
    assert set(pairs.censored[pairs.pkd == worst]) == {-1 if better == "higher" else 1}
    assert any("a floor" in problem for problem in abag.plan(frame, **options)["problems"])


def test_replicates_that_differ_by_more_than_a_standard_deviation_are_said():
    frame = pd.concat([table("Tm", VALUES), table("Tm", [-9.0, *VALUES[1:]])], ignore_index=True)
    spread = pd.Series(frame["Tm"]).std()
    (said,) = [line for line in abag.plan(frame)["problems"] if "apart" in line]
    assert said == (
        f"1 pair has labels or bounds more than {spread:.3g} Tm, a standard deviation, apart. See "
        "--replicates."
    )
    half = len(VALUES)
    for cells, is_told in (
        (half * ["Tm_onset"] + half * ["breadth"], True),
        (half * ["plate 1", "plate 2"], False),  # shared by rows of one pair
        ([*range(2 * half)], False),  # of each row its own
        (half * ["1"] + half * ["2"], False),  # numbers of replicates
    ):
        planned = abag.plan(frame.assign(metric=cells), columns={"label": "Tm"})
        (said,) = [line for line in planned["problems"] if "apart" in line]
        assert ("Column 'metric' tells them apart: if it says what" in said) == is_told


@pytest.mark.parametrize("cells", [(7.4, 6.0), ("huPD1", "muPD1"), ("25 °C", "37 °C")])
def test_a_column_by_which_replicates_differ_is_named_instead_of_the_error_of_a_label(cells):
    one = pd.DataFrame({"heavy": [3 * x for x in "ACDEFGHIKLMN"], "antigen": "MKT"})
    values = np.random.default_rng(0).normal(60, 5, 2 * len(one))
    frame = pd.concat([one, one], ignore_index=True)
    frame = frame.assign(condition=np.repeat(cells, len(one)), Tm=values)
    chosen = {"columns": {"label": "Tm"}}
    assert any("the error of a label" in line for line in abag.plan(frame, **chosen)["problems"])
    shifted = frame.assign(Tm=[*values[: len(one)], *(values[: len(one)] - 0.1)])
    said = abag.plan(shifted, **chosen)["problems"]
    told = "most of it between the values of column 'condition': if it says what was measured, keep"
    assert any(told in line for line in said)
    assert not any("the error of a label" in line for line in said)


@pytest.mark.parametrize("shift", [0.0, 5.0], ids=["differs in each pair", "shifts all pairs"])
@pytest.mark.parametrize("column", ["condition", "assay", "antigen_name"])
def test_such_a_column_is_named_where_each_of_its_values_has_replicates(column, shift):
    one = pd.DataFrame({"heavy": [3 * x for x in "ACDEFGHIKLMN"]})
    values = np.random.default_rng(0).normal(60, 5, (2, len(one)))
    values[1] += shift
    values = np.ravel([values, values + 0.1])
    frame = pd.concat(4 * [one], ignore_index=True).assign(Tm=values)
    chosen = {"columns": {"label": "Tm"}, "no_antigen": True}
    of_halves = np.tile(np.repeat(["huPD1", "muPD1"], len(one)), 2)
    said = abag.plan(frame.assign(**{column: of_halves}), **chosen)["problems"]
    assert any(f"most of it between the values of column {column!r}" in line for line in said)
    for other in (
        np.random.default_rng(1).choice(["huPD1", "muPD1"], len(frame)),  # by chance
        np.tile(["plate 1", "plate 2"], len(frame) // 2),  # of pairs
        frame["Tm"].rank() // 5,  # the label in another unit
    ):
        said = abag.plan(frame.assign(**{column: other}), **chosen)["problems"]
        assert any("the error of a label that was measured once" in line for line in said)


def test_the_column_that_parts_pairs_of_both_classes_is_named():
    one = pd.DataFrame({"heavy": [3 * x for x in "ACDEFGHIKLMN"]})
    frame = pd.concat(4 * [one], ignore_index=True)
    is_first = np.tile(np.repeat([True, False], len(one)), 2)
    frame = frame.assign(virus=np.where(is_first, "Wuhan", "BA.1"), binds=is_first.astype(int))
    (said,) = [line for line in abag.plan(frame, no_antigen=True)["problems"] if "both" in line]
    assert said.startswith("12 pairs have replicates of different classes")
    assert "Column 'virus' tells them apart" in said


# ---- scale ---------------------------------------------------------------------------------------


def test_positive_values_over_decades_are_learned_as_logarithms_unless_said_otherwise():
    values = 10 ** np.random.default_rng(0).normal(2, 0.8, 40)
    drawn = variants(40).drop(columns="effect").assign(MFI=values)
    pairs = read_labels(drawn, no_antigen=True)
    by_row = pd.Series(pairs.pkd, pairs.row).sort_index()
    np.testing.assert_allclose(by_row, np.log10(values))
    assert str(pairs.quantity) == "log10 MFI"
    assert not any("Logarithms" in line for line in abag.plan(drawn, no_antigen=True)["problems"])
    linear = read_labels(drawn, no_antigen=True, scale="linear")
    np.testing.assert_allclose(pd.Series(linear.pkd, linear.row).sort_index(), values)
    assert str(linear.quantity) == "MFI"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("MFI", np.linspace(1, 1000, 40)),  # far apart, but evenly spread
        ("MFI", [0.0, *np.geomspace(1, 1000, 39)]),
        ("MFI", np.geomspace(1, 50, 40)),
        ("log2_enrichment", np.geomspace(0.01, 9, 40)),
        ("ddG (kcal/mol)", np.geomspace(0.01, 9, 40)),
        ("neutralization (%)", np.geomspace(0.01, 99, 40)),
        ("% neutralization", np.geomspace(0.01, 99, 40)),
    ],
)  # fmt: skip
def test_other_values_are_learned_as_they_are_written(name, values):
    drawn = variants(40).drop(columns="effect")
    drawn[name] = values
    assert read_labels(drawn, no_antigen=True).quantity.scale == "linear"


def test_bounds_errors_and_ranges_are_of_the_values_that_are_written():
    drawn = variants(4).drop(columns="effect")
    drawn["titer (mg/L)"] = ["100", "<10", "ND", "1000"]
    drawn["sd"] = [10.0, 1.0, 1.0, 230.2585]
    options = {"scale": "log", "no_antigen": True, "error": "sd"}
    pairs = read_labels(drawn, **options, no_binding=5, label_range="1:2000")
    found = dict(zip(pairs.row.tolist(), zip(pairs.pkd, pairs.censored, strict=True), strict=True))
    assert found[0] == (2.0, 0)
    assert found[1] == (1.0, -1)
    assert found[2] == (pytest.approx(np.log10(5)), -1)
    noise = dict(zip(pairs.row.tolist(), pairs.share.tolist(), strict=True))
    assert noise[3] > noise[0]  # 230 of 1,000, and 10 of 100
    with pytest.raises(AbagError, match="expected a value from 1 to 500"):
        read_labels(drawn, **options, no_binding=5, label_range="1:500")
    with pytest.raises(LabelError, match="--no-binding 0 has no logarithm"):
        read_labels(drawn, **options, no_binding=0)
    zero = drawn.assign(**{"titer (mg/L)": ["100", "0", "5", "1000"]})
    with pytest.raises(AbagError, match=r"limit of detection, such as <0\.1, or give --scale lin"):
        read_labels(zero, **options)
    with pytest.raises(OptionError, match="--scale: are of other quantities than affinities"):
        read_labels(drawn, label="kd_nm", scale="log")


def test_a_threshold_of_the_values_is_refused_where_predictions_are_logarithms():
    quantity = Quantity(name="titer", better="higher", affinity=False, scale="log")
    for name in ("--strong", "--above"):
        with pytest.raises(OptionError, match=rf"{name}: 100.* of log10 titer: 2 for 100"):
            quantity.check_threshold(100.0, name)
        quantity.check_threshold(2.0, name)
    scored = pd.DataFrame({"heavy": [HEAVY], "pkd_predicted": [8.0], "sigma": [0.1]})
    with pytest.raises(OptionError, match=r"above: 100.* is out of range; expected -20 to 20"):
        abag.rank(scored, no_antigen=True, batch=1, above=100)


def test_a_run_on_a_log_scale_predicts_and_evaluates_on_it(tmp_path):
    drawn = variants(60)
    drawn["titer (mg/L)"] = 10 ** drawn.pop("effect")
    table = tmp_path / "titers.csv"
    drawn.to_csv(table, index=False)
    store = tmp_path / "store"
    run = tmp_path / "run"
    plain = ["--antibody-encoder", "composition"]
    invoke.run("embed", table, "--store", store, "--no-antigen", *plain)
    invoke.run("fit", table, "--store", store, "--run", run, "--no-antigen", "--head", "ridge")
    config = json.loads((run / "config.json").read_text())
    assert config["layout"]["label"]["quantity"]["scale"] == "log"
    scored = tmp_path / "scored.csv"
    invoke.run("predict", table, "--run", run, "--store", store, "--out", scored)
    predicted = pd.read_csv(scored)["predicted"]
    measured = np.log10(drawn["titer (mg/L)"])
    said = invoke.run("evaluate", table, "--run", run, "--store", store, "--json").stdout
    rmse = mean_squared_error(measured, predicted) ** 0.5
    assert json.loads(said)["table"]["regimes"][0]["rmse"] == pytest.approx(rmse, rel=1e-3)
    pair = ["--run", run, "--heavy", HEAVY, "--light", LIGHT]
    one = invoke.run("predict", *pair).output
    assert re.search(r"\ntiter \(mg/L\) [0-9.e+]+; 90 % interval [0-9.e+-]+ to ", one)


# ---- scores --------------------------------------------------------------------------------------


def test_metrics_of_the_best_look_at_the_low_end_where_lower_is_better():
    rng = np.random.default_rng(1)
    y = rng.normal(size=200)
    predicted = y + rng.normal(size=200)
    antigen = np.zeros(200, int)
    lower = MeasuredRows.of(y, antigen, sign=-1).score(predicted, -1.5)
    mirror = MeasuredRows.of(-y, antigen).score(-predicted, 1.5)
    for name in ("spearman", "rmse", "top_enrichment", "r2"):
        assert lower[name] == pytest.approx(mirror[name])
    assert lower["recall_at_-1.5"] == mirror["recall_at_1.5"]
    picked = np.argsort(predicted)[:20]
    best = np.argsort(y)[:20]
    assert lower["top_enrichment"] == pytest.approx(len(set(picked) & set(best)) / 20 / 0.1)


def test_metrics_of_strong_binders_need_a_threshold():
    y = np.linspace(60, 80, 50)
    scores = MeasuredRows.of(y, np.zeros(50, int)).score(y, None)
    assert {scores[f"{name}_at_9"] for name in ("recall", "precision", "average_precision")} == {
        None
    }


def test_pairs_are_strong_from_the_threshold_downward_where_lower_is_better():
    rng = np.random.default_rng(2)
    y = rng.normal(size=120)
    rows = pd.DataFrame(
        {
            "regime": "known",
            "fold": np.arange(120) % 4,
            "group": np.arange(120),
            "pkd": y,
            "censored": 0,
            "pkd_predicted": y + rng.normal(size=120) / 2,
            "sigma": 0.5,
        }
    )
    (regime,) = score_strong(
        rows, [{"regime": "known", "words": "w"}], -1.0, quantity=Quantity(better="lower")
    )["regimes"]
    assert regime["strong"] == int((y <= -1).sum())
    picked = rows["pkd_predicted"] <= -1
    assert regime["at_threshold"]["picked"] == int(picked.sum())
    assert regime["at_threshold"]["recall"] == pytest.approx(
        (picked & (y <= -1)).sum() / (y <= -1).sum()
    )
    assert regime["at_threshold"]["cutoff"] == -1.0


# ---- a run, from table to order ------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on the same variants without antigens: of Tm, and of ddG, which is its mirror."""
    folder = tmp_path_factory.mktemp("quantities")
    drawn = variants(80)
    of = {"tm": ("Tm (°C)", 70 + 3 * drawn["effect"]), "ddg": ("ddG (kcal/mol)", -drawn["effect"])}
    for name, (column, values) in of.items():
        frame = drawn[["heavy", "light"]].assign(**{column: values.round(4)})
        frame.to_csv(folder / f"{name}.csv", index=False)
        invoke.run(
            "embed",
            folder / "tm.csv",
            "--store",
            folder / "store",
            "--no-antigen",
            "--antibody-encoder",
            "composition",
        )
        invoke.run(
            "fit",
            folder / f"{name}.csv",
            "--store",
            folder / "store",
            "--no-antigen",
            "--run",
            folder / name,
            "--head",
            "gp",
        )
    return folder


def test_a_run_keeps_its_quantity_everywhere(runs):
    config = json.loads((runs / "tm/config.json").read_text())
    predictor = json.loads((runs / "tm/predictor/predictor.json").read_text())
    summary = json.loads((runs / "tm/summary.json").read_text())
    quantity = {"name": "Tm", "unit": "°C", "better": "higher", "affinity": False}
    quantity |= {"classes": [], "scale": "linear"}
    assert config["layout"] == predictor["layout"]
    assert config["layout"]["label"]["quantity"] == quantity
    assert (summary["data"]["quantity"], summary["data"]["better"]) == ("Tm (°C)", "higher")
    assert summary["strong"] == {"threshold": None, "regimes": []}
    scores = summary["regimes"][0]["metrics"]["head"]
    assert {score for key, score in scores.items() if key.endswith("_at_9")} == {None}
    assert abag.load_predictor(runs / "tm").quantity == Quantity.of_json(quantity)


def test_nothing_of_such_a_run_says_pkd(runs, tmp_path):
    texts = [(runs / "ddg" / name).read_text() for name in ("report.html", "predictor/README.md")]
    shown = [invoke.run("plan", runs / "ddg.csv", "--no-antigen").output]
    shown.append(invoke.run("evaluate", "--run", runs / "ddg").output)
    shown.append(invoke.run("runs", runs).output)
    out = tmp_path / "p.csv"
    shown.append(
        invoke.run("predict", runs / "ddg.csv", "--run", runs / "ddg", "--out", out).output
    )
    pair = ["--run", runs / "ddg", "--heavy", HEAVY, "--light", LIGHT, "--strong", "-1"]
    shown.append(invoke.run("predict", *pair).output)
    scan = ["--heavy", HEAVY, "--light", LIGHT, "--region", "cdrh3", "--out", tmp_path / "s.csv"]
    shown.append(invoke.run("scan", runs / "ddg", *scan).output)
    texts.append((tmp_path / "s.html").read_text())
    best = ["--batch", "3", "--keep-far", "--run", runs / "ddg", "--out", tmp_path / "o.csv"]
    shown.append(invoke.run("rank", tmp_path / "s.csv", *best).output)
    shown += [path.read_text().partition("\n")[0] for path in tmp_path.glob("*.csv")]
    scripts = "|".join(["const what.*", r"data\.columns.*", "pkd: ?", r"\.pkd", "const pkd.*"])
    for text in [*shown, *texts]:
        text = re.sub(scripts, "", text)
        assert not re.search(r"pKd|strong binder|[Kk]d in M", text)
    for text in [*shown[:3], *shown[4:7], *texts]:
        assert "ddG" in text


def test_the_rmse_of_a_run_is_that_of_its_predictions(runs):
    tested = pd.read_parquet(runs / "tm/predictions.parquet")
    assert {"measured", "predicted", "sigma"} < {*tested}
    for regime in json.loads((runs / "tm/summary.json").read_text())["regimes"]:
        rows = tested[tested["regime"] == regime["regime"]]
        rmse = mean_squared_error(rows["measured"], rows["predicted"]) ** 0.5
        assert regime["rmse"] == pytest.approx(rmse)


def test_the_mirror_of_a_quantity_is_learned_as_its_mirror(runs, tmp_path):
    predicted = {}
    for name in ("tm", "ddg"):
        abag.predict(runs / "tm.csv", runs / name, tmp_path / f"{name}.csv")
        predicted[name] = pd.read_csv(tmp_path / f"{name}.csv")["predicted"]
    np.testing.assert_allclose(predicted["tm"], 70 - 3 * predicted["ddg"], atol=0.02)


def test_the_lowest_are_ranked_first_where_lower_is_better(runs, tmp_path):
    scan = tmp_path / "s.csv"
    order = tmp_path / "o.csv"
    parent = {"heavy": HEAVY, "light": LIGHT}
    summary = abag.scan(runs / "ddg", scan, region="cdrh3", **parent)
    table = pd.read_csv(scan)
    improved = table[table["difference"] < -table["difference_sigma"].fillna(0.0)]
    assert summary["improved"] == len(improved)
    best = improved.nsmallest(5, "difference")["mutation"].tolist()
    assert [variant["mutation"] for variant in summary["best"]] == best
    compared = table["predicted"] - table["difference"]
    assert np.allclose(compared, compared.groupby(table["regime"]).transform("first"), atol=2e-4)
    assert summary["parent_compared"] == pytest.approx(compared.median(), abs=2e-4)

    chosen = {"batch": 6, "keep_far": True, "run": runs / "ddg"}
    ranking = abag.rank(scan, order, **chosen)
    left = table[table["measured"].isna()]
    lowest = left.nsmallest(6, "predicted")
    assert pd.read_csv(order)["mutation"].tolist() == lowest["mutation"].tolist()
    assert ranking["predicted"] == pytest.approx(
        (lowest["predicted"].min(), lowest["predicted"].max())
    )
    abag.rank(scan, order, rule="ucb", force=True, **chosen)
    bound = left["predicted"] - 0.5 * left["sigma_model"]
    assert (
        pd.read_csv(order)["mutation"].tolist()
        == table.loc[bound.nsmallest(6).index, "mutation"].tolist()
    )
    np.testing.assert_allclose(pd.read_csv(order)["score"], bound.nsmallest(6), atol=2e-4)


def test_expected_improvement_is_below_the_best_where_lower_is_better(runs, tmp_path):
    abag.predict(runs / "ddg.csv", runs / "ddg", tmp_path / "p.csv")
    table = pd.read_csv(tmp_path / "p.csv")
    best_of_run = table["ddG (kcal/mol)"].min()
    table["heavy"] += "A"  # not those that the run has measured
    measured = table.head(30)[["heavy", "light", "ddG (kcal/mol)"]]
    measured.loc[7, "ddG (kcal/mol)"] = best_of_run - 1
    measured.to_csv(tmp_path / "m.csv", index=False)
    candidates = table.drop(columns="ddG (kcal/mol)")
    ranking = abag.rank(
        candidates,
        tmp_path / "o.csv",
        rule="improvement",
        batch=4,
        keep_far=True,
        measured=tmp_path / "m.csv",
        run=runs / "ddg",
        above=-0.5,
    )
    assert ranking["best_measured"] == pytest.approx(best_of_run - 1)
    assert ranking["left_out"]["measured"] == 30
    assert ranking["above"] == -0.5
    order = pd.read_csv(tmp_path / "o.csv")
    assert (order["expected_best"].diff().dropna() <= 1e-9).all()
    likely = order["probability_above"] > 0.5
    assert (likely == (order["predicted"] < -0.5)).all()


def test_a_table_whose_direction_is_unknown_is_not_ranked(runs, tmp_path):
    abag.predict(runs / "ddg.csv", runs / "ddg", tmp_path / "p.csv")
    with pytest.raises(
        PredictionError, match=r"of a quantity that the table does not name.*better"
    ):
        abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", batch=3, keep_far=True)
    abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", batch=3, keep_far=True, better="lower")
    with pytest.raises(
        PredictionError, match=r"the run predicts ddG \(kcal/mol\), lower is better"
    ):
        abag.rank(tmp_path / "p.csv", tmp_path / "q.csv", run=runs / "ddg", better="higher")


def test_evaluate_reads_the_quantity_of_the_run_and_no_other(runs):
    summary = abag.evaluate(runs / "ddg", table=runs / "ddg.csv", strong=-1)
    values = pd.read_csv(runs / "ddg.csv")["ddG (kcal/mol)"]
    (regime,) = summary["strong_at"]["regimes"]
    assert regime["strong"] == int((values <= -1).sum())
    with pytest.raises(ColumnError, match=r"no column for ddG \(kcal/mol\)"):
        abag.evaluate(runs / "ddg", table=runs / "tm.csv")
    with pytest.raises(LabelError, match="higher is better; expected ddG"):
        abag.evaluate(runs / "ddg", table=runs / "tm.csv", columns={"label": "Tm (°C)"})
    joules = pd.read_csv(runs / "ddg.csv").rename(columns={"ddG (kcal/mol)": "ddG (kJ/mol)"})
    with pytest.raises(LabelError, match="is in kJ/mol; expected kcal/mol"):
        abag.evaluate(runs / "ddg", table=joules)
    kd = pd.read_csv(runs / "ddg.csv").rename(columns={"ddG (kcal/mol)": "KD (nM)"})
    with pytest.raises(LabelError, match="named like kd_nm, an affinity; expected ddG"):
        abag.evaluate(runs / "ddg", table=kd, columns={"label": "KD (nM)"})


def test_predictions_of_another_tool_are_compared_as_they_are(runs):
    tested = pd.read_parquet(runs / "tm/predictions.parquet")
    frame = pd.read_csv(runs / "tm.csv")
    theirs = frame.assign(predicted=frame["Tm (°C)"])[["heavy", "light", "predicted"]]
    keys = {*tested["antibody_key"]}
    assert keys
    used = read_sequences(theirs, no_antigen=True)
    hexed = [bytes(key).hex() for key in used.antibodies.keys]
    kept = theirs[[hexed[i] in keys for i in used.antibodies.of_row]]
    comparison = abag.evaluate(runs / "tm", predictions=kept)["predictions"]
    for regime in comparison["regimes"]:
        assert regime["rmse"] == pytest.approx(0)
    assert all("Tm (°C)" in verdict for verdict in comparison["verdicts"])


def test_small_values_keep_their_digits(tmp_path, runs):
    drawn = variants(60, seed=3)
    frame = drawn[["heavy", "light"]].assign(enrichment=1e-4 * (3 + drawn["effect"]))
    abag.embed_table(frame, runs / "store", antibody_encoder="composition", no_antigen=True)
    abag.fit(frame, runs / "store", tmp_path / "run", no_antigen=True, head="ridge", report=True)
    abag.predict(frame, tmp_path / "run", tmp_path / "p.csv", store=runs / "store")
    predicted = pd.read_csv(tmp_path / "p.csv")["predicted"]
    assert predicted.nunique() > 50
    report = (tmp_path / "run/report.html").read_text()
    assert not re.search(r"RMSE \(enrichment\)[^%]{0,400}>0\.00<", report)


# ---- scikit-learn --------------------------------------------------------------------------------


@pytest.mark.ci
def test_the_estimator_takes_a_named_series_or_the_options(runs):
    frame = pd.read_csv(runs / "tm.csv")
    X = frame[["heavy", "light"]]
    y = frame["Tm (°C)"]
    quick = {"head": "ridge", "no_antigen": True}
    named = AffinityRegressor(runs / "store", **quick).fit(X, y)
    assert str(named.predictor_.quantity) == "Tm (°C)"
    told = AffinityRegressor(runs / "store", better="lower", unit="K", **quick)
    told.fit(X, y.to_numpy())
    assert told.predictor_.quantity == Quantity(name="y", unit="K", better="lower", affinity=False)
    np.testing.assert_allclose(named.predict(X), told.predict(X))
    assert named.predict(X).std() > 0
    with pytest.raises(LabelError, match="better"):
        AffinityRegressor(runs / "store", **quick).fit(X, y.to_numpy())
