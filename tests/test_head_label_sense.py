"""Units and direction of label columns."""

import re

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from invoke import run

import abag

PKD = np.linspace(5, 10, 60).round(3)
IN_UNIT = {"kd_nm": 10 ** (9 - PKD), "ug_ml": 1.5e8 * 10**-PKD, "dg_kcal": -1.364 * PKD}


def table(**columns):
    names = ["".join(np.random.default_rng(i).choice(list("ACDEFGHIK"), 20)) for i in range(60)]
    return pd.DataFrame({"heavy": names, "antigen": "MKT", **columns})


def refusal(frame, **options):
    """Return why `fit` would refuse a table."""
    return abag.plan(frame, **options)["refused"]


@pytest.mark.parametrize(
    ("column", "types", "expected"),
    [("pIC50", None, "pIC50"), ("pkd", None, "pKd"), ("pkd", "IC50", "pIC50"), ("pkd", "Kd", "pKd"),
     ("pEC50", None, "pEC50"), ("pEC\u2085\u2080", None, "pEC50"), ("pIC_50", None, "pIC50")],
)  # fmt: skip
def test_labels_are_called_by_their_column_or_affinity_type(column, types, expected):
    frame = table(**{column: PKD}, **({"affinity_type": types} if types else {}))
    assert abag.plan(frame)["labels"]["quantity"] == expected


@pytest.mark.parametrize("label", ["pkd", "log10_kd_nm", "dg_kcal"])
def test_classes_are_not_affinities_in_any_unit(label):
    frame = table(affinity=np.arange(60) % 2)
    refused = refusal(frame, label=label)
    said = "column affinity holds only 0 and 1, which are two classes, not measurements of pKd"
    assert re.search(f"{said}.*--column pkd=NAME, or learn classes with --label binary", refused)


def test_a_kd_of_zero_is_not_valid_in_any_unit_with_a_logarithm():
    values = IN_UNIT["ug_ml"].copy()
    values[3] = 0
    refused = refusal(table(affinity=values), label="ug_ml")
    assert re.search(r"row 4.*expected a positive number", refused)


def test_the_plan_names_the_role_of_every_column_and_the_direction(tmp_path):
    frame = table(pIC50=PKD, ic50_ug_per_ml=IN_UNIT["ug_ml"], SD=0.1)
    planned = abag.plan(frame)
    assert planned["columns"] == (
        "columns: heavy 'heavy', antigen 'antigen', pkd 'pIC50'; not used: 'ic50_ug_per_ml', 'SD'"
    )
    assert planned["sense"] == (
        "labels: 'pIC50' read as pkd, higher is stronger (60 of 60 are in the usual range of pKd "
        "(2 to 14); the column is named so)"
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    lines = run("plan", tmp_path / "t.csv").stdout.splitlines()
    assert {planned["columns"], planned["sense"]} < {*lines}


@pytest.mark.parametrize(
    ("name", "unit"),
    [("IC50 (µg/mL)", "ug_ml"), ("dG_kJ_mol", "dg_kj"), ("log10 Kd (M)", "log10_kd_m"),
     ("dG_kcal", "dg_kcal")],
)  # fmt: skip
def test_plan_refuses_a_label_that_contradicts_the_name(name, unit):
    frame = table(**{name: PKD})
    refused = refusal(frame, columns={"pkd": name}, label="pkd")
    assert f"column {name!r} is named like {unit}, but --label says pkd" in refused


def test_a_second_measurement_that_ranks_the_other_way_is_a_problem():
    problems = abag.plan(table(pKd=PKD[::-1].copy(), kd_nm=IN_UNIT["kd_nm"]))["problems"]
    assert problems == [
        "Column 'kd_nm', read as kd_nm, ranks the rows the other way round than 'pKd', read as pkd."
    ]


@pytest.mark.parametrize("words", [("No", "Yes"), (0, 1), ("non-binder", "binder")])
def test_labels_of_pairs_that_do_not_bind_are_a_problem(words):
    no, yes = words
    kd = IN_UNIT["kd_nm"].astype(object)
    binding = [no] * 3 + [yes] * (len(kd) - 3)
    first = f"{kd[0]:g}"
    expected = (
        "Column 'Binding' says no binding beside an exact label in 3 rows, such as row 1 with "
        f"{first}: write limits of the assay as bounds, such as >{first} or <{first}."
    )
    assert abag.plan(table(**{"KD (nM)": kd, "Binding": binding}))["problems"] == [expected]
    bounds = np.r_[[f">{value:g}" for value in kd[:3]], kd[3:]]
    assert abag.plan(table(**{"KD (nM)": bounds, "Binding": binding}))["problems"] == []
    relation = [">"] * 3 + [""] * (len(kd) - 3)
    stated = table(**{"KD (nM)": kd, "Binding": binding, "relation": relation})
    assert abag.plan(stated)["problems"] == []
    for other in ("binds_mouse", "non_binding"):
        assert abag.plan(table(**{"KD (nM)": kd, other: binding}))["problems"] == []


@pytest.mark.parametrize(
    ("name", "comment", "is_told"),
    [
        ("Comment", "no binding", True),
        ("Status", "below LOD", True),
        ("Fit", "NB", True),
        ("Comment", "n.d.", False),
        ("Comment", "poor fit", False),
        ("IC50", "no binding", False),
    ],
)
def test_a_comment_that_nothing_binds_beside_an_exact_label_is_a_problem(name, comment, is_told):
    kd = IN_UNIT["kd_nm"]
    planned = abag.plan(table(**{"KD (nM)": kd, name: [comment] * 3 + [""] * (len(kd) - 3)}))
    said = f"Column {name!r} says no binding beside an exact label in 3 rows"
    assert any(line.startswith(said) for line in planned["problems"]) == is_told


@pytest.mark.parametrize("cell", ["", "n.d."])
@pytest.mark.parametrize("words", [("false", "true", "unknown"), ("non-binder", "binder", "")])
def test_pairs_read_as_no_binding_of_which_another_column_says_less_are_a_problem(cell, words):
    no, yes, unknown = words
    kd = IN_UNIT["kd_nm"].astype(object)
    kd[-3:] = cell
    frame = table(**{"KD (nM)": kd})
    options = {"no_binding": 1e6, "no_binding_empty": True}

    def problems(*last):
        binding = [yes] * (len(kd) - 3) + [*last]
        planned = abag.plan(frame.assign(binding=binding), **options)
        return [line for line in planned["problems"] if "binding" in line]

    assert problems(no, unknown, yes) == [
        "Column 'binding' does not say no binding in 2 rows read as no binding, such as row 59 "
        f"with {unknown!r}: leave out pairs that were not measured."
    ]
    assert problems(no, no, no) == []
    frame["KD (nM)"] = [*kd[:-3], "NB", "no binding", "NB"]  # which say more than an empty cell
    assert problems(no, "", "") == []


@pytest.mark.parametrize("name", ["potency_upper_limit", "LOD (nM)", "Max. conc. (nM)"])
def test_labels_that_are_the_limit_in_another_column_are_a_problem(name):
    for label in ("KD (nM)", "ID50"):
        values = IN_UNIT["kd_nm"].round(3)
        frame = table(**{label: values, name: float(values[0])})
        (said,) = [x for x in abag.plan(frame)["problems"] if "limits of the assay" in x]
        assert said.startswith(f"Column {name!r} has the number of an exact label in 1 row, such")
        assert f"such as >{values[0]:g} or <" in said
        bounds = frame.assign(**{label: [f">{values[0]}", *values[1:]]})
        assert not any("limits of the assay" in x for x in abag.plan(bounds)["problems"])


@pytest.mark.parametrize("other", ["binding_energy", "dG", "KD_pred (nM)"])
def test_energies_without_a_unit_and_predictions_are_not_taken_before_a_measured_kd(other):
    computed = PKD if "pred" in other else -PKD
    frame = table(**{other: computed, "kd": 10**-PKD})
    refused = refusal(frame)
    assert "'kd' holds M, by the size of its numbers: use" in refused
    assert f"{other!r} is named like" in refused
    assert abag.plan(frame, columns={"pkd": "kd"}, label="kd_m")["labels"]["quantity"] == "pKd"
    # alone, the usual unit of an energy is taken, and one that is written is in any table
    if other != "KD_pred (nM)":
        assert "read as dg_kcal" in abag.plan(frame.drop(columns="kd"))["sense"]
        stated = frame.rename(columns={other: f"{other} (kcal/mol)"})
        assert "read as dg_kcal" in abag.plan(stated)["sense"]


def test_two_rows_do_not_say_which_way_a_second_measurement_ranks():
    few = table(pKd=PKD[::-1].copy(), kd_nm=IN_UNIT["kd_nm"])
    assert not any("ranks" in problem for problem in abag.plan(few.head(2))["problems"])


def test_few_labels_in_another_unit_are_a_problem():
    mixed = PKD.copy()
    mixed[:5] = [120, 300, 450, 80, 95]
    problems = abag.plan(table(pKd=mixed))["problems"]
    assert "5 labels, such as 120, are impossible as pkd: mixed units?" in problems
    mixed[1:5] = PKD[1:5]
    problems = abag.plan(table(pKd=mixed))["problems"]
    assert "1 label, 120, is impossible as pkd: mixed units?" in problems
    with_a_weak_binder = table(pKd=np.r_[1.8, PKD[1:]])
    outside = "1 label is outside the usual range of pKd (2 to 14). See --label."
    assert abag.plan(with_a_weak_binder)["problems"] == [outside]


def test_the_converted_label_is_fitted(tmp_path):
    frame = table(ic50=IN_UNIT["ug_ml"], EC50_nM=IN_UNIT["kd_nm"][::-1])
    said = []
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    frame.to_csv(tmp_path / "t.csv", index=False)
    summary = abag.fit(
        tmp_path / "t.csv",
        tmp_path / "store",
        tmp_path / "run",
        columns={"pkd": "ic50"},
        label="ug_ml",
        split="random",
        epochs=1,
        report=False,
        say=said.append,
    )
    assert summary["regimes"][0]["rmse"] < 5
    assert any("'EC50_nM', read as kd_nm, ranks the rows the other way round" in x for x in said)


def test_a_table_whose_only_labels_are_yes_and_no_is_told_how_to_read_them():
    frame = table(is_human=PKD > np.median(PKD)).astype({"is_human": int})
    said = abag.plan(frame)["problems"][0]
    assert said.endswith(
        "Name it with --column pkd=NAME, or a label of yes and no with --column label=is_human "
        "--label binary."
    )


@pytest.mark.parametrize(("scale", "hint"), [
    (1e-9, "'Kd' holds M, by the size of its numbers: use --column pkd=Kd --label kd_m."),
    (1e-3, "'Kd' may be one: use --column pkd=Kd --label UNIT."),
])  # fmt: skip
def test_numbers_as_small_as_those_in_molar_are_said_to_be_in_it(scale, hint):
    values = scale * 10 ** (9 - PKD)
    flag = (PKD < 6) * 1.0
    for flags in (flag, np.where(PKD == PKD.max(), np.nan, flag)):
        problems = abag.plan(table(Kd=values, Kd_is_greater=flags))["problems"]
        assert problems == [f"table: no column for pkd, but {hint}"]


@pytest.mark.parametrize(("names", "hint"), [
    (
        ["KD (nM)", "IC50 [nM]"],
        "'KD (nM)' is named like kd_nm: use --column 'pkd=KD (nM)' --label kd_nm. "
        "'IC50 [nM]' is named like kd_nm: use --column 'pkd=IC50 [nM]' --label kd_nm.",
    ),
    (["IC50"], "'IC50' may be one: use --column pkd=IC50 --label UNIT."),
])  # fmt: skip
def test_a_table_without_pkd_is_answered_with_an_option_to_paste(names, hint):
    frame = table(**{name: 10 ** (9 - PKD) for name in names})
    assert abag.plan(frame)["problems"] == [f"table: no column for pkd, but {hint}"]
