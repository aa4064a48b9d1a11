"""Units and direction of label columns."""

import re

import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION

import abag
from abag.core.errors import ColumnError, LabelError
from abag.embed.sequences.pairs import read_pairs
from abag.embed.sequences.table_options import TableOptions
from abag.head.data.label_options import LabelOptions
from abag.head.data.label_reading import label_sense
from abag.head.data.label_unit import name_affinity
from abag.head.data.labels import label_pairs
from abag.head.data.units import TO_PKD
from abag.head.plan import describe_plan, plan

PKD = np.linspace(5, 10, 60).round(3)
IN_UNIT = {
    "pkd": PKD, "kd_m": 10**-PKD, "kd_um": 10 ** (6 - PKD), "kd_nm": 10 ** (9 - PKD),
    "kd_mm": 10 ** (3 - PKD), "kd_pm": 10 ** (12 - PKD),
    "log10_kd_m": -PKD, "log10_kd_um": 6 - PKD, "log10_kd_nm": 9 - PKD, "log10_kd_pm": 12 - PKD,
    "neg_log10_kd_nm": PKD - 9, "ln_kd_m": -np.log(10) * PKD, "ln_kd_nm": np.log(10) * (9 - PKD),
    "ka_per_m": 10**PKD, "ka_per_um": 10 ** (PKD - 6), "ka_per_nm": 10 ** (PKD - 9),
    "ug_ml": 1.5e8 * 10**-PKD, "ng_ml": 1.5e11 * 10**-PKD,
    "dg_kcal": -1.364 * PKD, "dg_kj": -5.708 * PKD,
}  # fmt: skip


def table(**columns):
    names = ["".join(np.random.default_rng(i).choice(list("ACDEFGHIK"), 20)) for i in range(60)]
    return pd.DataFrame({"heavy": names, "antigen": "MKT", **columns})


def problems_of(**columns):
    return [*label_sense(read_pairs(table(**columns)))[1].problems]


@pytest.mark.parametrize("unit", TO_PKD)
def test_every_unit_is_converted_to_pkd(unit):
    frame = table(affinity=IN_UNIT[unit])
    pairs = label_pairs(read_pairs(frame), LabelOptions(label=unit))
    np.testing.assert_allclose(np.sort(pairs.pkd), PKD, atol=2e-3)


@pytest.mark.parametrize(
    ("column", "types", "expected"),
    [("pIC50", None, "pIC50"), ("pkd", None, "pKd"), ("pkd", "IC50", "pIC50"), ("pkd", "Kd", "pKd"),
     ("pEC50", None, "pEC50")],
)  # fmt: skip
def test_labels_are_called_by_their_column_or_affinity_type(column, types, expected):
    frame = table(**{column: PKD}, **({"affinity_type": types} if types else {}))
    assert name_affinity(label_pairs(read_pairs(frame)).table, None) == expected


def test_a_unit_that_contradicts_the_name_is_refused_with_both():
    pairs = read_pairs(table(dG_kcal=IN_UNIT["dg_kcal"]), TableOptions(columns={"pkd": "dG_kcal"}))
    with pytest.raises(LabelError, match=r"'dG_kcal' is named like dg_kcal, but --label says pkd"):
        label_pairs(pairs, LabelOptions(label="pkd"))


@pytest.mark.parametrize("label", ["pkd", "log10_kd_nm", "dg_kcal"])
def test_classes_are_not_affinities_in_any_unit(label):
    frame = table(affinity=np.arange(60) % 2)
    said = "column affinity holds only 0 and 1, which are classes, not affinities"
    with pytest.raises(LabelError, match=f"{said}.*--column pkd=NAME") as caught:
        label_pairs(read_pairs(frame), LabelOptions(label=label))
    assert "--label" not in str(caught.value)
    assert any(said in problem for problem in plan(frame, label=label)["problems"])


def test_a_kd_of_zero_is_not_valid_in_any_unit_with_a_logarithm():
    values = IN_UNIT["ug_ml"].copy()
    values[3] = 0
    with pytest.raises(LabelError, match=r"row 4.*expected a positive number"):
        label_pairs(read_pairs(table(affinity=values)), LabelOptions(label="ug_ml"))


def test_the_plan_names_the_role_of_every_column_and_the_direction():
    frame = table(pIC50=PKD, ic50_ug_per_ml=IN_UNIT["ug_ml"], note="x")
    planned = plan(frame)
    assert planned["columns"] == (
        "columns: heavy 'heavy', antigen 'antigen', pkd 'pIC50'; not used: 'ic50_ug_per_ml', 'note'"
    )
    assert planned["sense"] == (
        "labels: 'pIC50' read as pkd, higher is stronger (60 of 60 are in the usual range of pKd "
        "(2 to 14); the column is named so)"
    )
    assert {planned["columns"], planned["sense"]} < {*describe_plan(planned)}


@pytest.mark.parametrize(
    ("name", "unit"),
    [("IC50 (µg/mL)", "ug_ml"), ("dG_kJ_mol", "dg_kj"), ("log10 Kd (M)", "log10_kd_m")],
)
def test_plan_refuses_a_label_that_contradicts_the_name(name, unit):
    frame = table(**{name: PKD})
    planned = plan(frame, columns={"pkd": name}, label="pkd")
    assert f"column {name!r} is named like {unit}, but --label says pkd" in planned["refused"]


def test_a_second_measurement_that_ranks_the_other_way_is_a_problem():
    problems = problems_of(pKd=PKD[::-1].copy(), kd_nm=IN_UNIT["kd_nm"])
    assert problems == [
        "Column 'kd_nm', read as kd_nm, ranks the rows the other way round than 'pKd', read as pkd."
    ]


def test_few_labels_in_another_unit_are_a_problem():
    mixed = PKD.copy()
    mixed[:5] = [120, 300, 450, 80, 95]
    problems = problems_of(pKd=mixed)
    assert problems == ["5 labels, such as 120, are impossible as pkd: mixed units?"]
    assert not problems_of(pKd=np.r_[1.8, PKD[1:]])  # a weak binder, not another unit


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
    with pytest.raises(ColumnError, match=re.escape(f"no column for pkd, but {hint}")):
        label_pairs(read_pairs(frame))
    assert plan(frame)["problems"] == [f"table: no column for pkd, but {hint}"]
