import itertools
from decimal import Decimal
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from chunks import set_sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_labels

from abag import LabelError, TableError
from abag.head.models.pair_vectors import Standardizer

ANTIBODIES = {"a": "EVQLVESGG", "b": "QVQLQESGP", "c": "DVQLQASGG"}


def labelled(rows, **options):
    """Label pairs given as (antibody letter, antigen, label[, censored])."""
    frame = pd.DataFrame(rows, columns=["who", "antigen", "pKd", "censored"][: len(rows[0])])
    frame["heavy"] = frame.pop("who").map(ANTIBODIES)
    if options.get("label", "pkd") != "pkd":  # the name would contradict it
        frame = frame.rename(columns={"pKd": "affinity"})
    return read_labels(frame, **options)


def by_antibody(pairs):
    chains = [pairs.table.antibodies.chains[i][0] for i in pairs.antibody]
    names = {sequence: letter for letter, sequence in ANTIBODIES.items()}
    return [(names[c], round(float(y), 6)) for c, y in zip(chains, pairs.pkd, strict=True)]


@pytest.mark.parametrize("value", ["n.d.", np.nan, np.inf, "", "4,835", ">1,500", "9.3 nM"])
def test_a_label_that_is_not_a_finite_number_is_refused_or_skipped_with_its_row(value):
    with pytest.raises(LabelError, match=r"row 2, column 'pKd'.*--bad-rows skip"):
        labelled([("a", "MKT", 7.0), ("b", "MKT", value)])
    pairs = labelled([("a", "MKT", 7.0), ("b", "MKT", value)], bad_rows="skip")
    assert (len(pairs), pairs.counts["skipped_labels"]) == (1, 1)


def test_replicates_are_merged_to_their_median_and_their_spread_is_kept():
    pairs = labelled([("a", "MKT", 6.0), ("a", "MKT", 7.0), ("a", "MKT", 9.0), ("b", "MKT", 5.0)])
    assert dict(by_antibody(pairs)) == {"a": 7.0, "b": 5.0}
    assert pairs.counts["replicate_rows"] == 2
    assert pairs.noise == pytest.approx(np.std([6, 7, 9], ddof=1))


@pytest.mark.parametrize(
    ("how", "pkd", "measurements"),
    [("mean", [31 / 4], [3]), ("median", [8], [3]), ("first", [6], [1]),
     ("keep", [6, 7, 9, 9], [1, 1, 1, 1])],
)  # fmt: skip
def test_replicates_are_merged_as_asked(how, pkd, measurements):
    rows = [("a", "MKT", label) for label in (6.0, 7.0, 9.0, 9.0)]
    pairs = labelled(rows, replicates=how)
    assert pairs.pkd.tolist() == pytest.approx(pkd)
    assert pairs.measurements.tolist() == measurements


def typed(rows, **options):
    frame = pd.DataFrame(rows, columns=["who", "antigen", "pKd", "affinity_type"])
    frame["heavy"] = frame.pop("who").map(ANTIBODIES)
    return read_labels(frame, **options)


MIXED = [
    ("c", "MKT", "high", "elisa"), ("a", "MKT", 7.0, "kd"), ("b", "MKT", 8.0, "kd"),
    ("c", "GGS", 0.4, "elisa"),
]  # fmt: skip


def test_affinity_types_are_never_mixed_and_a_single_one_needs_no_choice():
    with pytest.raises(LabelError, match=r"2 of 'elisa', 2 of 'kd'.*--affinity-type"):
        typed(MIXED)
    unlabelled = ("c", "MKT", None, "elisa")  # does not count
    assert len(typed([*MIXED[1:3], unlabelled], bad_rows="skip")) == 2


def test_rows_of_other_affinity_types_are_skipped_and_counted():
    pairs = typed(MIXED, affinity_type="kd")
    assert dict(by_antibody(pairs)) == {"a": 7.0, "b": 8.0}
    assert pairs.counts["other_affinity_type_rows"] == 2
    assert pairs.counts["skipped_labels"] == 0


def test_units_and_values_of_other_affinity_types_do_not_count():
    frame = pd.DataFrame(
        {
            "heavy": [*ANTIBODIES.values()][:3],
            "antigen": "MKT",
            "KD (nM)": [1.0, 10.0, 1e12],
            "unit": ["nM", "nM", "uM"],
            "affinity_type": ["kd", "kd", "elisa"],
        }
    )
    pairs = read_labels(frame, affinity_type="kd")
    assert pairs.pkd.tolist() == pytest.approx([9, 8])
    assert "2 of 2 are in the usual range" in pairs.reading.line
    assert not pairs.reading.problems
    written = frame.assign(**{"KD (nM)": ["1 ± 0.1", "10 nM", "7 ± 2 uM"]})
    line = read_labels(written.drop(columns="unit"), affinity_type="kd").reading.line
    assert "1 cell with a unit, such as '10 nM'; 1 cell with an error, such as '1 ± 0.1'" in line


def test_kd_above_means_pkd_below_and_bounds_are_not_averaged_with_measurements():
    rows = [("a", "MKT", 5.0, ">="), ("a", "MKT", 7.0, "")]
    pairs = labelled([*rows, ("b", "MKT", 11.0, "<"), ("c", "MKT", 8, "=")])
    labels = sorted(zip(by_antibody(pairs), pairs.censored.tolist(), strict=True))
    assert labels == [(("a", 5.0), -1), (("a", 7.0), 0), (("b", 11.0), 1), (("c", 8.0), 0)]


@pytest.mark.parametrize(
    ("floor", "size", "sides"), [("keep", 4, 0), ("drop", 2, 0), ("censor", 4, -1)]
)
def test_a_floor_is_kept_dropped_or_censored(floor, size, sides):
    rows = [("a", "MKT", 6.0), ("b", "MKT", 7.0), ("c", "MKT", 8.0), ("c", "GGS", 6.0)]
    pairs = labelled(rows, floor=floor)
    assert (len(pairs), pairs.censored.min()) == (size, sides)
    assert pairs.counts["floor_rows"] == 2


@pytest.mark.parametrize("floor", ["drop", "censor"])
def test_the_lowest_label_of_one_pair_is_no_floor(floor):
    rows = [("a", "MKT", 6.0), ("a", "MKT", 6.0), ("b", "MKT", 7.0), ("c", "MKT", 8.0)]
    pairs = labelled(rows, floor=floor)
    assert (len(pairs), pairs.censored.min()) == (3, 0)
    assert pairs.counts["floor_rows"] == 0


@cache
def in_order(order):
    """Return six pairs of a table whose rows are in some order."""
    names = itertools.product("abc", ("MKT", "GGS"))
    rows = [(antibody, antigen, 5.0 + i) for i, (antibody, antigen) in enumerate(names)]
    return labelled([rows[i] for i in order])


@pytest.mark.ci
@settings(deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_rows_does_not_matter(order):
    pairs = in_order((0, 1, 2, 3, 4, 5))
    other = in_order(tuple(order))
    assert np.array_equal(pairs.keys("antibody"), other.keys("antibody"))
    assert np.array_equal(pairs.pkd, other.pkd)


def test_the_distinct_training_rows_are_measured_like_by_numpy_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    x_ND = rng.normal(300, [1, 2, 4, 100], (500, 4)).astype(np.float32)
    rows = rng.integers(400, size=900)
    used_ND = x_ND[np.unique(rows)].astype(np.float64)
    set_sizes(monkeypatch, standardised_numbers=64)
    standardizer = Standardizer.of(x_ND, rows)
    assert standardizer.mean == pytest.approx(used_ND.mean(0), rel=1e-7)
    assert standardizer.scale == pytest.approx(1 / used_ND.std(0), rel=1e-7)
    expected = ((x_ND - standardizer.mean) * standardizer.scale).clip(-10, 10)
    assert np.array_equal(standardizer.apply(x_ND), expected)


def test_a_constant_column_becomes_zero_even_with_float16_rounding():
    x_ND = np.random.default_rng(0).normal(0, 1, (50, 3)).astype(np.float32)
    x_ND[:, 0] = 7.3
    x_ND[:, 1] = np.where(np.arange(50) % 2, 7.3, 7.3 * (1 + 2**-11))
    assert not Standardizer.of(x_ND).apply(x_ND * 2)[:, :2].any()


@pytest.mark.parametrize("block", [1, 50, 1 << 19])
@pytest.mark.parametrize("rows", [0, 33])
def test_projections_equal_products_with_standardised_vectors(block, rows, monkeypatch):
    set_sizes(monkeypatch, standardised_numbers=block)
    rng = np.random.default_rng(0)
    scales = Standardizer.of(rng.normal(size=(9, 7)))
    x_ND = rng.normal(2, size=(rows, 7))
    x_ND = x_ND.astype(np.float32)
    weight_D = rng.normal(size=7)
    x_ND[:1] *= 1000  # is clipped
    expected = scales.apply(x_ND) @ weight_D
    np.testing.assert_allclose(scales.project(x_ND, weight_D), expected, rtol=1e-12)


@pytest.mark.parametrize(("cell", "says"), [
    ("about", "'about' .* is not a valid relation"),
    (">1e-6", "'>1e-6' .* is not the label, as pKd or as Kd in M"),
    ("<", r"'<' \(2 such rows\) is at the end of the labels, as if its relation were of pKd"),
])  # fmt: skip
def test_an_unclear_relation_is_refused_with_its_row(cell, says):
    rows = [("a", "MKT", 5.0, cell), ("b", "MKT", 5.0, cell), ("c", "MKT", 7.0, "")]
    with pytest.raises(LabelError, match=f"row 1, column censored: {says}") as caught:
        labelled(rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("rows", "sides"), [
    ([(7.0, "<=7"), (7.1, "<7.1"), (9.5, ">9.5"), (6.0, "")], [-1, -1, 1, 0]),  # of pKd
    ([(5.0, ">1E-5"), (11.0, "< 1e-11"), (5.0, ">10000"), (5.52, ">3")], [-1, 1, -1, -1]),  # of Kd
    ([(7.1, "<=7.1"), (7.0, "<"), (8.1, "<8.1")], [-1, -1, -1]),  # as in the other rows
])  # fmt: skip
def test_a_bound_in_a_column_of_relations_shows_whether_they_are_of_pkd_or_kd(rows, sides):
    pairs = labelled([("a", "MK" + "A" * i, *cells) for i, cells in enumerate(rows)])
    assert pairs.censored[np.argsort(pairs.row)].tolist() == sides


@pytest.mark.parametrize(("unit", "cells", "want"), [
    ("kd_nm", [">1000", "<0.1", "5", " >= 200"], [(6, -1), (10, 1), (8.301, 0), (6.699, -1)]),
    ("kd_m", [">1e-6", "≤1E-10", "~1e-8"], [(6, -1), (10, 1), (8, 0)]),
    ("pkd", ["<5", ">9.5", "7", "=8"], [(5, -1), (9.5, 1), (7, 0), (8, 0)]),
    ("log10_kd_nm", [">3", "1", "<-1"], [(6, -1), (8, 0), (10, 1)]),
    ("dg_kcal", ["> -6", "-9"], [(4.398, -1), (6.597, 0)]),
])  # fmt: skip
def test_a_bound_in_the_label_column_is_a_censored_label_in_its_unit(unit, cells, want):
    pairs = labelled([("a", "MK" + "A" * i, cell) for i, cell in enumerate(cells)], label=unit)
    order = np.argsort([len(pairs.table.antigens.chains[i][0]) for i in pairs.antigen])
    labels = zip(pairs.pkd[order].round(3), pairs.censored[order], strict=True)
    assert [(float(y), int(side)) for y, side in labels] == want


def test_a_bound_in_the_label_that_contradicts_is_refused():
    with pytest.raises(
        LabelError, match=r"row 2, column pKd: '>5' .* as if its relation were of Kd"
    ):
        labelled([("a", "MKT", "7"), ("b", "MKT", ">5")])
    with pytest.raises(
        LabelError, match=r"row 1, column affinity: '>1000' .* contradicts the relation"
    ):
        labelled([("a", "MKT", ">1000", "<"), ("b", "MKT", "2000", "")], label="kd_nm")
    agreeing = labelled([("a", "MKT", ">1000", ">"), ("b", "MKT", "5", "")], label="kd_nm")
    assert sorted(agreeing.censored.tolist()) == [-1, 0]


def test_a_measurement_that_contradicts_a_bound_is_a_conflict():
    rows = [("a", "MKT", 7.0, ""), ("a", "MKT", ">9.5", "")]
    rows += [("b", "MKT", "<6.5", ""), ("c", "MKT", 6.0, "")]
    assert labelled(rows).counts["conflicting_pairs"] == 1
    with pytest.raises(LabelError, match=r"rows 1, 2 .* 2\.50 pKd"):
        labelled(rows, replicates="error")
    agreeing = [("a", "MKT", 9.6, ""), ("a", "MKT", ">7.0", ""), ("b", "MKT", 6.0, "")]
    assert labelled(agreeing, replicates="error").counts["conflicting_pairs"] == 0


@pytest.mark.parametrize("convert", [
    lambda pkd: 10 ** (9 - pkd), lambda pkd: 10**-pkd, lambda pkd: 9 - pkd,  # nM, M, log10 nM
    lambda pkd: 10 ** (6 - pkd), lambda pkd: -1.364 * pkd,  # uM, kcal/mol
    lambda pkd: np.log(10) * -pkd, lambda pkd: -pkd, np.log10,  # ln of M
])  # fmt: skip
def test_labels_in_another_unit_are_refused(convert):
    pkd = np.random.default_rng(0).normal(8.5, 1.5, 300).clip(5, 12)
    rows = [("a", "M" * (i + 1), float(convert(y))) for i, y in enumerate(pkd)]
    with pytest.raises(LabelError, match=r"of 300 labels, such as .*--label"):
        labelled(rows)


def test_identical_copies_do_not_lower_the_noise_of_replicates():
    rows = [("a", "MKT", 6.0), ("a", "MKT", 7.0), ("b", "MKT", 5.0), ("b", "MKT", 5.4)]
    copies = [*rows, *rows, ("a", "GGS", 8.0), ("a", "GGS", 8.0)]
    assert labelled(copies).noise == pytest.approx(labelled(rows).noise)
    assert labelled([("a", "MKT", 6.0), ("a", "MKT", 6.0), ("b", "MKT", 5.0)]).noise is None


NOT_LABELS = {
    "times": pd.to_datetime(["2020-01-01"] * 6), "booleans": [True, False] * 3,
    "arrow booleans": pd.array([True, None] * 3, dtype="bool[pyarrow]"),
    "words": ["True", "x", "", "1_0", "0x7", "７,1"],
    "integers beyond float64": pd.Series([10**400] * 6, dtype=object),
}  # fmt: skip
LABELS = {
    "decimals": [Decimal("7.1")] * 6,
    "text": ["7.1"] * 6,
    "mixed": pd.Series([7.1, "7.1", Decimal("7.1"), np.float32(7.1), 7.1, "7.1"], dtype=object),
    "arrow": pd.array([7.1] * 6, dtype="double[pyarrow]"),
    "arrow decimals": pd.array([Decimal("7.1")] * 6, dtype=pd.ArrowDtype(pa.decimal128(4, 1))),
    "categories": pd.Categorical(["7.1"] * 6),
}


def six_pairs(pkd):
    return pd.DataFrame({"heavy": [3 * x for x in "ACDEFG"], "antigen": [*"HIKLMN"]}).assign(
        pKd=pkd
    )


@pytest.mark.parametrize("name", NOT_LABELS)
def test_a_label_of_another_type_or_size_is_not_a_number(name):
    frame = six_pairs(NOT_LABELS[name])
    for policy in ("error", "skip"):  # of a table without any other row
        with pytest.raises(LabelError, match=r"rows? 1, .*column 'pKd': .* is not a valid label"):
            read_labels(frame, bad_rows=policy)


def test_lists_as_labels_are_refused_by_their_type():
    with pytest.raises(TableError, match="column 'pKd' has cells of the nested type list"):
        read_labels(six_pairs([[7.0]] * 6))


@pytest.mark.parametrize("cell", [1e300, 1_577_836_800, "1e300"])
def test_numbers_beyond_any_affinity_are_refused(cell):
    with pytest.raises(LabelError, match=r"6 of 6 labels, such as .* are not affinities"):
        read_labels(six_pairs([cell] * 6))


@pytest.mark.parametrize("name", LABELS)
def test_numbers_are_labels_whatever_holds_them(name):
    np.testing.assert_allclose(read_labels(six_pairs(LABELS[name])).pkd, 7.1, rtol=1e-6)
