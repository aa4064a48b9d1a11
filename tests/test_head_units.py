"""What headers of real tables say about affinity, and the conversion of every unit."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import read_labels

import abag
from abag import ColumnError, LabelError, OptionError
from abag.core.options import schema
from abag.head.labels.headers import read_header, to_pkd
from abag.head.labels.options import NO_AFFINITIES, UNITS

RT_LN10 = 1.987204259e-3 * 298.15 * np.log(10)  # kcal/mol
PKD = np.linspace(5, 11, 12).round(2)
AFFINITIES = [name for name in UNITS if name not in NO_AFFINITIES]


def in_units(pkd):
    """Write the same affinities in every unit, by plain arithmetic."""
    kd = 10.0**-pkd
    return {
        "pkd": pkd, "kd_m": kd, "kd_mm": kd * 1e3, "kd_um": kd * 1e6, "kd_nm": kd * 1e9,
        "kd_pm": kd * 1e12, "kd_fm": kd * 1e15,
        "log10_kd_m": np.log10(kd), "log10_kd_um": np.log10(kd * 1e6),
        "log10_kd_nm": np.log10(kd * 1e9), "log10_kd_pm": np.log10(kd * 1e12),
        "neg_log10_kd_nm": -np.log10(kd * 1e9), "ln_kd_m": np.log(kd),
        "ln_kd_nm": np.log(kd * 1e9), "ka_per_m": 1 / kd, "ka_per_um": 1 / (kd * 1e6),
        "ka_per_nm": 1 / (kd * 1e9), "log10_ka_per_m": np.log10(1 / kd),
        "ug_ml": kd * 150_000 * 1e3, "ng_ml": kd * 150_000 * 1e6,
        "dg_kcal": RT_LN10 * np.log10(kd), "dg_kj": 4.184 * RT_LN10 * np.log10(kd),
    }  # fmt: skip


def table(name, values):
    heavy = [f"EVQ{'A' * i}" for i in range(len(values))]
    return pd.DataFrame({"heavy": heavy, "antigen": "MKT", name: values})


def labelled(name, values, **options):
    pairs = read_labels(table(name, values), **options)
    return pd.Series(pairs.pkd, pairs.row).sort_index().to_numpy(), pairs


STATED = {
    "KD (nM)": "kd_nm", "KD (µM)": "kd_um", "KD (μM)": "kd_um", "KD (uM)": "kd_um",
    "Kd avg (M)": "kd_m", "Fab KD (nM)": "kd_nm", "KD (nM) mean": "kd_nm", "SPR KD (nM)": "kd_nm",
    "kd_nM": "kd_nm", "IC50 [ug/mL]": "ug_ml",
    "KD (fM)": "kd_fm", "Kd, femtomolar": "kd_fm", "KDmmolar": "kd_mm",
    "BLI_KD_nM": "kd_nm", "Affinity_nM": "kd_nm", "KD_pM": "kd_pm", "KD mM": "kd_mm",
    "Binding Affinity (KD nM)": "kd_nm", "IC50 avg (nM)": "kd_nm", "IgG Kd avg (nM)": "kd_nm",
    "Kd_microM": "kd_um", "IC50 (nanoM)": "kd_nm", "KD (nano M)": "kd_nm",
    "fit KD (nM)": "kd_nm", "Kd [nM]": "kd_nm", "KD(M)": "kd_m", "KDnM": "kd_nm",
    "KD, nanomolar": "kd_nm", "KD (nmol/L)": "kd_nm", "KD (10⁻⁹ M)": "kd_nm", "Kᴅ (nM)": "kd_nm",
    "KD (x10^-9 M)": "kd_nm", "K_D (nM)": "kd_nm", "K_{D} [µM]": "kd_um", "KD\u00a0(nM)": "kd_nm",
    "ＫＤ（nM）": "kd_nm", "KD / nM": "kd_nm", "Kd,app (nM)": "kd_nm", "EC50_nM": "kd_nm",
    "dissociation constant (nM)": "kd_nm", "SPR KD at 25 °C (nM)": "kd_nm",
    "IC50 (µg/mL)": "ug_ml", "IC50 (µg·mL⁻¹)": "ug_ml", "ic50_ug_per_ml": "ug_ml",
    "IC50 [ng/mL]": "ng_ml", "KD (mg/L)": "ug_ml",
    "Avg Neutralization IC50 (ng/µL)": "ug_ml", "IC50 (pg/uL)": "ng_ml",
    "pKd": "pkd", "pChEMBL Value": "pkd", "pIC50": "pkd", "affinity_pkd": "pkd", "pKD (M)": "pkd",
    "pKd (-log10 M)": "pkd", "X.log10.KD..M..": "pkd", "X.log10.KD.": "pkd",
    "minus_log_Kd": "pkd", "neg_log10_kd": "pkd", "-log10(KD)": "pkd",
    "-log(KD [M])": "pkd", "Affinity_Kd [nM]": "kd_nm",
    "−log10 KD (M)": "pkd", "−log₁₀(K_D)": "pkd", "-log10 KD (nM)": "neg_log10_kd_nm",
    "log10 Kd (M)": "log10_kd_m", "log10(KD, nM)": "log10_kd_nm", "log₁₀ KD (µM)": "log10_kd_um",
    "ln KD (M)": "ln_kd_m", "ln(KD [nM])": "ln_kd_nm",
    "dG (kcal/mol)": "dg_kcal", "ΔG": "dg_kcal", "ΔG (kJ/mol)": "dg_kj", "delta_g": "dg_kcal",
    "ΔG (kcal mol⁻¹)": "dg_kcal", "∆G° (kcal/mol)": "dg_kcal", "dG_kJ_mol": "dg_kj",
    "binding free energy (kcal/mol)": "dg_kcal",
    "Ka (1/M)": "ka_per_m", "KA (M⁻¹)": "ka_per_m", "KA (M-1)": "ka_per_m",
    "log10 KA (1/M)": "log10_ka_per_m", "log10(KA [M⁻¹])": "log10_ka_per_m",
    "Ka (nM^-1)": "ka_per_nm", "Ka (L/mol)": "ka_per_m", "Affinity (1/M)": "ka_per_m",
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_a_header_that_states_its_unit_is_read_in_it_unasked_and_when_named(name):
    unit = STATED[name]
    values = in_units(PKD)[unit]
    for named in ({}, {"columns": {"pkd": name}}):
        pkd, pairs = labelled(name, values, **named)
        np.testing.assert_allclose(pkd, PKD, atol=1e-9)
        assert pairs.unit == unit
        assert pairs.reading.column == name
        assert f"{name!r} read as {unit}" in pairs.reading.line


NO_AFFINITY = (
    "ΔpKd", "ΔKD (nM)", "delta pKd", "Δ dG (kcal/mol)",
    "KD ratio", "KD fold change", "KD FC", "KD mut/KD wt", "fold change", "KD (% of WT)",
    "relative KD", "Mean_Relative_Affinity", "rel..Affinity",
    "KD error", "KD std (nM)", "KD (nM) SD", "KD 95% CI", "KD lower (nM)", "KD (nM) ± SD",
    "kon", "koff", "MW_kDa", "ka (1/Ms)", "ka (M⁻¹s⁻¹)", "kd (1/s)", "kd (s⁻¹)", "k_off (s-1)",
)  # fmt: skip


@pytest.mark.parametrize("name", NO_AFFINITY)
def test_differences_ratios_errors_and_rates_are_never_labels(name):
    with pytest.raises(ColumnError, match="no column for pkd"):
        labelled(name, PKD)
    for options in ({}, {"label": "kd_nm"}):
        with pytest.raises(LabelError, match="not like an affinity"):
            labelled(name, PKD, **options, columns={"pkd": name})


@pytest.mark.parametrize("name", ["ka", "kd"])
def test_ka_and_kd_in_lower_case_are_rates_beside_each_other(name):
    rates = table("ka", PKD).assign(kd=PKD)
    with pytest.raises(LabelError, match=f"{name}' is named like a rate"):
        read_labels(rates, label="kd_m", columns={"pkd": name})
    for stated in (rates.assign(KD=PKD), rates.assign(**{"Affinity": PKD})):
        chosen = str(stated.columns[-1])
        with pytest.raises(ColumnError, match=f"'{chosen}' may be one") as caught:
            read_labels(stated)
        assert "'ka'" not in str(caught.value)
        assert "'kd'" not in str(caught.value)
        assert read_labels(stated, label="pkd").reading.column == chosen
    with pytest.raises(ColumnError, match="--column pkd=kd --label UNIT"):
        read_labels(rates.drop(columns="ka"))


UNKNOWN = (
    "Kd", "KD", "IC50", "fit_KD", "log10(KD)", "ln KD", "KD (nM⁻¹)", "KD (1/nM)", "KD (nM^{-1})",
    "KD (☃M)", "KD (n☃)", "KD (nМ)", "Ka", "Ka (nM)", "1/KD (nM)", "-KD (nM)", "-ΔG (kcal/mol)",
    "log10 Ka", "log10 KD (fM)", "IC50 (g/mL)", "KD (nM, uM)", "KD – log10 (nM)", "KD² (nM)",
    "K (nM)", "亲和力 (nM)", "pKd (KD nM)", "KD1",
    "log2 KD (nM)", "KD (log2 nM)", "sqrt KD (nM)", "KD (M) x 1e9", "KD × 10⁹ (M)",
    "KD (M) ×10-9", "KD (n M)", "KD (10 nM)", "KD (nM/10)", "KD (aM)", "dG (REU)", "dG_separated",
    "normalized KD (nM)", "inverse KD (nM)", "KD rank (nM)", "Kd_min", "KD format", "KD by mass",
)  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_affinity_whose_unit_is_not_understood_is_asked_for(name):
    with pytest.raises(ColumnError):
        labelled(name, PKD)
    with pytest.raises(ColumnError, match=r"names no unit .* --label UNIT") as caught:
        labelled(name, PKD, columns={"pkd": name})
    assert "\n" not in str(caught.value)
    pkd, _ = labelled(name, in_units(PKD)["kd_nm"], label="kd_nm", columns={"pkd": name})
    np.testing.assert_allclose(pkd, PKD, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["fitness", "affinity", "score", "label", "measurement", "binding_score",
             "ProcessedMeasurement"],
)  # fmt: skip
def test_words_for_any_measurement_state_no_unit(name):
    with pytest.raises(ColumnError, match=f"{name!r} may be one: use .*pkd={name}.* --label UNIT"):
        labelled(name, PKD)
    pkd, pairs = labelled(name, PKD, columns={"pkd": name})  # the user says so
    np.testing.assert_allclose(pkd, PKD)
    assert "no unit is stated" in pairs.reading.line
    with pytest.raises(LabelError, match="are not affinities if read as pkd"):
        labelled(name, in_units(PKD)["kd_nm"] * 1e3, columns={"pkd": name})
    pkd, _ = labelled(name, in_units(PKD)["kd_um"], label="kd_um")
    np.testing.assert_allclose(pkd, PKD, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["heavy", "id", "regime", "measured", "Tm", "kim", "M", "dose", "min", "mass", "format"]
)
def test_other_headers_say_nothing(name):
    header = read_header(name)
    assert (header.units, header.not_label, header.plain) == ((), "", False)


def test_the_lowest_of_several_affinities_is_not_taken_for_one_in_m():
    kd = in_units(PKD)["kd_m"]
    frame = table("Kd", kd).assign(Kd_min=kd / 2, Kd_max=kd * 2)
    with pytest.raises(ColumnError, match=r"'Kd' holds M, .*'Kd_min' holds M, "):
        read_labels(frame)


@pytest.mark.parametrize("name", ["HER2 KD (nM)", "KD (nM) HER2-Fc", "A/Perth/16/2009 KD (nM)"])
def test_a_word_that_is_not_understood_is_asked_for_with_the_unit_that_was_found(name):
    values = in_units(PKD)["kd_nm"]
    with pytest.raises(ColumnError, match=f"{re.escape(repr(name))} is named like kd_nm: use"):
        labelled(name, values)
    pkd, _ = labelled(name, values, columns={"pkd": name})
    np.testing.assert_allclose(pkd, PKD, atol=1e-9)


def test_each_unit_is_a_choice_of_every_command_and_on_the_page_of_units():
    page = (Path(__file__).parent.parent / "docs/how-to/own-table.md").read_text(encoding="utf-8")
    for options in (abag.PlanOptions, abag.EvaluateOptions, abag.RankOptions):
        (label,) = [option for option in schema(options) if option.name == "label"]
        assert label.choices == (*AFFINITIES, *NO_AFFINITIES)
    for unit in AFFINITIES:
        first = page.split("| stronger |")[1]
        assert f"`{unit}`" in first
        line = next(line for line in first.splitlines() if f"`{unit}`" in line)
        assert line.endswith(f"| {UNITS[unit].stronger} |")


@given(st.lists(st.integers(300, 1300), min_size=3, max_size=12, unique=True))
def test_the_same_affinities_in_every_unit_are_the_same_pkd_and_direction(hundredths):
    pkd = np.array(hundredths) / 100
    written = in_units(pkd)
    assert [*written] == AFFINITIES
    for unit, values in written.items():
        np.testing.assert_allclose(to_pkd(values, unit), pkd, atol=1e-9)
        order = np.argsort(values) if UNITS[unit].stronger == "higher" else np.argsort(-values)
        assert np.array_equal(order, np.argsort(pkd))


@pytest.mark.parametrize("unit", AFFINITIES)
def test_a_bound_is_weaker_or_stronger_by_the_direction_of_its_unit(unit):
    values = [f"{value:.12g}" for value in in_units(PKD)[unit]]
    sign = {"higher": "<", "lower": ">"}[UNITS[unit].stronger]
    values[0] = f"{sign}{values[0]}"  # at most this strong
    pkd, pairs = labelled("label", values, label=unit)
    censored = pd.Series(pairs.censored, pairs.row).sort_index()
    np.testing.assert_allclose(pkd, PKD, atol=1e-6)
    assert censored.tolist() == [-1] + [0] * (len(PKD) - 1)


@pytest.mark.parametrize("unit", AFFINITIES)
def test_the_bound_that_is_advised_for_a_non_binder_is_weak(unit):
    cells = [*map(str, in_units(PKD)[unit][1:])]
    refused = abag.plan(table("label", ["NB", *cells]), label=unit)["refused"]
    bound = re.search(rf"such as (\S+) \({unit}\)", refused)[1]
    pkd, pairs = labelled("label", [bound, *cells], label=unit)
    assert pkd[0] == pytest.approx(5.0, abs=0.02)
    assert pd.Series(pairs.censored, pairs.row)[0] == -1


@pytest.mark.parametrize(
    ("given_mass", "kda"), [(None, 150), ("igg", 150), ("VHH", 15), ("scfv", 27), ("50", 50)]
)
@pytest.mark.parametrize(("unit", "per_ug"), [("ug_ml", 1.0), ("ng_ml", 1e3)])
def test_concentrations_in_mass_are_converted_with_the_molar_mass(given_mass, kda, unit, per_ug):
    ug_per_ml = 10.0**-PKD * kda * 1e3 * 1e3  # mol/L * g/mol = g/L = 1e3 ug/mL
    options = {"label": unit, "molar_mass": given_mass}
    pkd, pairs = labelled("score", ug_per_ml * per_ug, **options)
    np.testing.assert_allclose(pkd, PKD, atol=1e-9)
    said = ", that of IgG: --molar-mass gives another" if kda == 150 else ""
    assert f"; molar mass {kda} kDa{said})" in pairs.reading.line


def test_a_molar_mass_is_refused_if_invalid_or_not_used():
    with pytest.raises(OptionError, match="--molar-mass: 'mouse' is not valid"):
        abag.PlanOptions(molar_mass="mouse")
    with pytest.raises(LabelError, match="needs no molar mass"):
        labelled("KD (nM)", in_units(PKD)["kd_nm"], molar_mass="vhh")


def test_a_table_whose_every_label_would_be_skipped_says_why():
    with pytest.raises(LabelError, match=r"all 2 rows are bad.*\n.*'1,200' is not a valid label"):
        labelled("KD (nM)", ["1,200", "3,400"], bad_rows="skip")


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        ({"KD (M)": "{:.1e}", "KD (nM)": "{:.7g}"}, "KD (nM)"),  # of more digits
        ({"KD (nM)": "{:.3g}", "KD (pM)": "{:.3g}"}, "KD (nM)"),
        ({"KD (M)": "", "KD (nM)": "{:.3g}"}, "KD (nM)"),
        ({"KD (M)": ">{:.5e}", "KD (nM)": "> {:.4f}"}, "KD (M)"),
        ({"KD (M)": "{:.5e}", "KD (nM)": "> {:.4f}"}, None),
        ({"KD (M)": "{:.5e}", "KD (nM)": "{:.0f}"}, None),  # too coarse to be the same
        ({"HER2 KD (nM)": "{:.5g}", "HER3 KD (nM)": "{:.5g}"}, None),
        ({"KD (M)": "NB", "KD (nM)": "NB"}, None),
    ],
)
def test_an_affinity_in_two_units_is_one_label(columns, taken):
    pkd = np.linspace(8.02, 8.05, 12)
    frame = table("x", pkd).drop(columns="x")
    for name, spelled in columns.items():
        per_m = {"(M)": 0, "(nM)": 9, "(pM)": 12}[name.split()[-1]]
        frame[name] = [spelled.format(kd) if spelled else None for kd in 10 ** (per_m - pkd)]
    if taken is None:
        with pytest.raises(ColumnError, match="no column for pkd, but '"):
            read_labels(frame)
    else:
        labels = read_labels(frame)
        assert labels.table.column("pkd") == taken
        np.testing.assert_allclose(sorted(labels.pkd), pkd, atol=0.02)
