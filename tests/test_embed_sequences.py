"""Sequences of a table are checked, keyed and made unique."""

import hashlib
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trastuzumab import HEAVY as VH
from trastuzumab import LIGHT as VL

from abag import AbagError, ColumnError, SequenceError
from abag.embed.tables.chains import NO_SEQUENCE, UnsureDomains, antibody, antigen, keys_array
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import read_pairs

AG = "KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYG"

chains = st.text("ACDEFGHIKLMNPQRSTVWYX", min_size=3, max_size=30).filter(
    lambda text: text not in NO_SEQUENCE
)


def table(**columns):
    return pd.DataFrame(columns)


def refusal(frame, **options):
    with pytest.raises(AbagError) as caught:
        read_pairs(frame, TableOptions(**options))
    return caught.value


def sequence_key(kind, chains):
    return keys_array(kind, [chains]).tobytes()


def test_a_key_is_sixteen_bytes_of_blake2b_over_kind_and_chains():
    expected = hashlib.blake2b(b"antibody\0QVQ\0DIQ", digest_size=16).digest()
    assert sequence_key("antibody", ("QVQ", "DIQ")) == expected
    assert keys_array("antibody", [("QVQ", "DIQ")] * 2).tolist() == [list(expected)] * 2
    assert keys_array("antigen", []).shape == (0, 16)


@given(chains, chains, st.lists(st.sampled_from(string.whitespace), max_size=3))
def test_case_and_white_space_do_not_change_a_key(heavy, light, blanks):
    messy = "".join(blanks).join(["", *heavy.lower(), ""])
    assert sequence_key("antibody", antibody(messy, light)) == sequence_key(
        "antibody", (heavy, light)
    )


@given(chains, chains)
def test_heavy_and_light_swapped_are_another_antibody(heavy, light):
    swapped = sequence_key("antibody", (light, heavy)) == sequence_key("antibody", (heavy, light))
    assert swapped == (heavy == light)


@given(chains)
def test_an_empty_chain_keeps_its_place_in_the_key(chain):
    keys = [sequence_key("antibody", pair) for pair in (antibody(chain), antibody("", chain))]
    assert len({*keys, sequence_key("antigen", antigen(chain))}) == 3


@given(
    st.lists(chains, min_size=1, max_size=4).flatmap(
        lambda x: st.tuples(st.just(x), st.permutations(x))
    )
)
def test_the_order_of_antigen_chains_does_not_matter(orders):
    given_order, other_order = orders
    assert antigen("|".join(given_order)) == antigen(":".join(other_order))


@pytest.mark.ci
@given(st.lists(st.tuples(chains, chains, chains), min_size=1, max_size=8), st.randoms())
def test_the_key_of_a_sequence_does_not_depend_on_row_or_table(rows, random):
    def keys_by_row(side):
        return [side.keys[i].tobytes() for i in side.of_row]

    def keys_of(some):
        heavy, light, target = zip(*some, strict=True)
        pairs = read_pairs(table(heavy=heavy, light=light, antigen=target))
        return keys_by_row(pairs.antibodies), keys_by_row(pairs.antigens)

    shuffled = random.sample(rows, len(rows))
    for before, after in zip(keys_of(rows), keys_of(shuffled), strict=True):
        assert dict(zip(rows, before, strict=True)) == dict(zip(shuffled, after, strict=True))


def test_rare_residues_become_x():
    assert antibody("auzobx", "\tD I\n") == ("AXXXXX", "DI")


@pytest.mark.parametrize("character", ["-", ".", "*", "J", "1", "ß", "\u0131", "\0", "\u212a"])
def test_any_other_character_is_refused_with_its_position(character):
    # the last ones: str.upper() makes S, I and K of them
    with pytest.raises(SequenceError, match=r"heavy: .* at position 3 .* not a valid"):
        antibody(f"AC{character}D")


@pytest.mark.parametrize("character", "|:")
def test_several_chains_are_refused_where_one_is_expected(character):
    with pytest.raises(SequenceError, match=r"light: .* has 2 chains; expected one"):
        antibody("ACD", f"AC{character}D")


def test_an_antibody_without_chains_and_an_antigen_with_an_empty_one_are_refused():
    with pytest.raises(SequenceError, match="heavy and light are both empty"):
        antibody(" ", "")
    for text in ("", "MKT|", "MKT||ACD", ":"):
        with pytest.raises(SequenceError, match=r"antigen: .* empty antigen chain"):
            antigen(text)


def test_repeated_sequences_are_stored_once_and_indexed_by_row():
    pairs = read_pairs(
        table(heavy=["QVQ", "EVQ", "qv q"], light=["DIQ", None, "DIQ"], antigen=["M|A", "M", "a:m"])
    )
    assert pairs.antibodies.chains == [("QVQ", "DIQ"), ("EVQ", "")]
    assert pairs.antibodies.of_row.tolist() == [0, 1, 0]
    assert pairs.antigens.chains == [("A", "M"), ("M",)]
    assert pairs.antigens.of_row.tolist() == [0, 1, 0]
    assert np.array_equal(pairs.antigens.keys, keys_array("antigen", pairs.antigens.chains))
    assert pairs.notes == [
        "1 antibody with a heavy chain but no light one: nanobodies, or is that missing by "
        "mistake?",
        "2 antibodies with a chain of fewer than 70 residues, too short for a variable domain: is "
        "it a CDR, a fragment, a name, or missing?",
        "2 antigens with a chain of fewer than 20 residues: a peptide, or a name?",
    ]
    assert read_pairs(table(heavy=[VH], antigen=[AG])).notes == []


@pytest.mark.ci
def test_many_sequences_are_read_as_each_alone():
    spelled = [str, str.lower, lambda text: f" {text}", lambda text: text.replace("A", "B")]
    rng = np.random.default_rng(0)

    def draw_column():
        return ["".join(rng.choice([*"ACDEF"], 4)) for _ in range(5000)]

    columns = [draw_column() for _ in range(3)]
    for column in columns:  # most are as they will be stored; some, far apart, are not
        for at in (0, 1700, 1701, 4999):
            column[at] = spelled[at % 4](column[at])
    heavy, light, target = columns
    heavy[2500] = ""
    target[2600] = "AC|CA"
    pairs = read_pairs(table(heavy=heavy, light=light, antigen=target))
    antibodies = [antibody(*chains) for chains in zip(heavy, light, strict=True)]
    for unique, expected in (
        (pairs.antibodies, antibodies),
        (pairs.antigens, [antigen(text) for text in target]),
    ):
        assert [unique.chains[i] for i in unique.of_row] == expected
        assert unique.chains == [*dict.fromkeys(expected)]
        assert [expected[row - 1] for row in unique.first_rows] == unique.chains
        assert unique.first_rows.tolist() == [
            expected.index(chains) + 1 for chains in unique.chains
        ]


def test_a_table_may_hold_one_kind_of_chain_alone():
    assert read_pairs(table(vh=["QVQ"], antigen=["M"])).antibodies.chains == [("QVQ", "")]
    light = TableOptions(columns={"light": "vl"})
    assert read_pairs(table(vl=["DIQ"], antigen=["M"]), light).antibodies.chains == [("", "DIQ")]


def test_a_light_column_alone_has_to_be_named_as_the_heavy_one_may_not_be_recognized():
    error = refusal(table(**{"V_H 1": ["QVQ"], "VL": ["DIQ"], "antigen": ["M"]}))
    assert "no column for heavy, only 'VL' for light" in str(error)
    assert "--column light=VL" in str(error)
    pairs = read_pairs(table(VHorVHH=["QVQ"], VL=["DIQ"], antigen=["M"]))  # as in CoV-AbDab
    assert pairs.antibodies.chains == [("QVQ", "DIQ")]


@pytest.mark.parametrize(("cells", "word"), [
    ({"light": ["DIQ", "ND"]}, "'ND'"), ({"light": ["DIQ", "none"]}, "'none'"),
    ({"light": ["DIQ", "nanobody"]}, "'nanobody'"), ({"light": ["DIQ", "NT"]}, "'NT'"),
    ({"heavy": ["EVQ", "Unknown"]}, "'Unknown'"), ({"antigen": [AG, "nd"]}, "'nd'"),
    ({"antigen": [AG, "VEGF"]}, "'VEGF'"), ({"antigen": [AG, "Spike"]}, "'Spike'"),
])  # fmt: skip
def test_words_whose_letters_are_residues_are_not_read_as_sequences(cells, word):
    frame = table(**{"heavy": ["QVQ", "EVQ"], "light": ["DIQ", ""], "antigen": AG, **cells})
    error = refusal(frame)
    assert isinstance(error, SequenceError)
    assert f"row 2, column {next(iter(cells))!r}: {word} is a word" in str(error)
    assert len(read_pairs(frame, TableOptions(bad_rows="skip")).frame) == 1


@pytest.mark.parametrize("names", [["VEGF"], ["SPIKE", "EGFR"], ["STREPTAVIDIN"], ["FERRITIN"]])
def test_a_column_of_antigen_names_whose_letters_are_residues_is_refused(names):
    frame = table(heavy=["QVQ", "EVQ"], antigen=(2 * names)[:2])
    assert f"holds names, such as {names[0]!r}, not sequences" in str(refusal(frame))


DNA = "CAGGTGCAGCTGGTGCAGTCTGGGGCTGAG"


PRIMER = "GAGGTNCAGCTBKTGGAGWCTGG"  # letters for one of several bases


@pytest.mark.parametrize(
    "text", [DNA, DNA.lower(), DNA.replace("T", "U"), f"{DNA}N {DNA}", DNA[:18], PRIMER]
)
@pytest.mark.parametrize("role", ["heavy", "light", "antibody", "antigen"])
def test_nucleotides_are_not_read_as_residues(text, role):
    others = {"antigen": AG} if role == "antibody" else {"heavy": "QVQ", "antigen": AG}
    frame = table(**(others | {role: ["QVQ|DIQ" if role == "antibody" else "QVQ", text]}))
    with pytest.raises(SequenceError, match=f"row 2, column '{role}': .* holds nucleotides"):
        read_pairs(frame)
    assert len(read_pairs(frame, TableOptions(bad_rows="skip")).frame) == 1


@pytest.mark.parametrize(
    "protein", [DNA[:17], "G" * 40, "GA" * 30, f"{DNA}L", "CATHGRYNDSKVWACGTTGG"]
)
def test_proteins_of_few_letters_are_not_taken_for_nucleotides(protein):
    assert antigen(protein) == (protein,)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_cell_of_pandas_is_an_absent_chain_in_python_too(missing):
    assert antibody("QVQ", missing) == ("QVQ", "")
    with pytest.raises(SequenceError):
        antigen(missing)


@pytest.mark.parametrize("cell", [True, 7, "ND"])
def test_a_cell_that_is_no_sequence_is_refused_in_python_too(cell):
    with pytest.raises(SequenceError, match=f"light: {cell!r} is "):
        antibody("QVQ", cell)


def test_other_columns_are_passed_on_unread():
    frame = table(heavy=["QVQ"], antigen=["M"], pKd=["not a number"], batch=[7])
    pairs = read_pairs(frame)
    pd.testing.assert_frame_equal(pairs.frame, frame)


def test_a_separator_splits_the_single_column():
    pairs = read_pairs(table(antibody=["QVQ|DIQ", "|DIQ", "QVQ:"], antigen=["M"] * 3))
    assert pairs.antibodies.chains == [("QVQ", "DIQ"), ("", "DIQ"), ("QVQ", "")]
    assert pairs.counts["split_antibodies"] == 0


def test_strings_without_separator_are_split_by_domains_and_counted():
    texts = [VH + VL, VL + VH, VL + "GGGGS" * 3 + VH, VH, VL, "ACDWYK"]
    pairs = read_pairs(table(antibody=texts, antigen=["M"] * 6))
    assert pairs.antibodies.chains == [(VH, VL), (VH, ""), ("", VL), ("ACDWYK", "")]
    assert pairs.antibodies.of_row.tolist() == [0, 0, 0, 1, 2, 3]
    assert pairs.counts["split_antibodies"] == 1
    assert "1 antibody string split into heavy and light" in pairs.notes[0]
    assert "without a known variable domain" in pairs.notes[1]


def test_a_heavy_chain_written_twice_is_counted():
    pairs = read_pairs(table(antibody=[VH + VH], antigen=[AG]))
    assert pairs.antibodies.chains == [(VH, "")]
    assert pairs.notes == ["1 antibody with the heavy chain twice in one string, read once"]


def test_heavy_and_light_columns_replace_an_antibody_column_unless_it_is_named():
    frame = table(heavy=[VH], light=[VL], antibody=["EVQ|DIV"], antigen=[AG])
    pairs = read_pairs(frame)
    assert pairs.antibodies.chains == [(VH, VL)]
    assert pairs.notes == [
        "column 'antibody' is ignored, replaced by the columns of heavy and light chains"
    ]
    named = read_pairs(frame, TableOptions(columns={"antibody": "antibody"}))
    assert named.antibodies.chains == [("EVQ", "DIV")]


def test_one_antigen_can_be_given_for_the_whole_table():
    frame = table(heavy=["QVQ", "EVQ"], Target=["MIT_Target", "MIT_Target"])
    pairs = read_pairs(frame, TableOptions(antigen="MK|AC"))
    assert pairs.antigens.chains == [("AC", "MK")]
    assert pairs.antigens.of_row.tolist() == [0, 0]
    assert "column 'Target' is ignored, replaced by --antigen" in pairs.notes[0]


def test_replaced_residues_are_counted_once_per_unique_sequence():
    pairs = read_pairs(table(heavy=[VH + "U"] * 2, light=["Z" + VL] * 2, antigen=["bo" + AG, AG]))
    assert pairs.counts["replaced_residues"] == 4
    assert pairs.notes == ["4 residues U, Z, O, B read as X"]


def test_limit_reads_the_first_rows():
    pairs = read_pairs(table(heavy=["QVQ", "*"], antigen=["M", "M"]), TableOptions(limit=1))
    assert pairs.counts["rows"] == 1
    assert "--limit: 0" in str(refusal(table(heavy=["QVQ"], antigen=["M"]), limit=0))


@pytest.mark.parametrize(("bad", "error", "parts"), [
    ({"VH": "QV*E"}, SequenceError, ["column 'VH'", "'*'", "position 3", "'QV*E'"]),
    ({"VL": "D-Q"}, SequenceError, ["column 'VL'", "'-'", "position 2"]),
    ({"target": "MK.T"}, SequenceError, ["column 'target'", "'.'", "position 3"]),
    ({"target": None}, SequenceError, ["column 'target'", "empty antigen chain"]),
    ({"VH": " ", "VL": None}, SequenceError, ["column 'VH', 'VL'", "no antibody chain"]),
])  # fmt: skip
def test_a_bad_row_is_refused_by_row_column_and_value(bad, error, parts):
    good = {"VH": "QVQ", "VL": "DIQ", "target": "MKT"}
    caught = refusal(pd.DataFrame([good, good | bad]))
    assert isinstance(caught, error)
    assert all(part in str(caught) for part in ["table: row 2, ", *parts])


@pytest.mark.parametrize(("text", "part"), [
    ("QVQ|DIQ|EVQ", "3 chains; expected heavy|light"),
    (VH + VH[1:], "heavy + heavy; expected one heavy and one light"),
    (VH + "A" * 116, "the boundary between heavy and light is uncertain"),
])  # fmt: skip
def test_a_string_that_cannot_be_split_with_certainty_is_refused(text, part):
    caught = refusal(table(antibody=[VH, text], antigen=["M", "M"]))
    assert type(caught) is UnsureDomains
    assert "row 2, column 'antibody'" in str(caught)
    assert part in str(caught)
    assert len(str(caught)) < 350


def test_bad_rows_can_be_skipped_and_are_counted_by_reason():
    frame = table(
        heavy=[VH, "Q*Q", None, "EVQ", "Q*Q"], antigen=[AG, AG, AG, "", "K"], pKd=range(5)
    )
    pairs = read_pairs(frame, TableOptions(bad_rows="skip"))
    assert pairs.frame["pKd"].tolist() == [0]
    assert pairs.frame.index.tolist() == [0]
    assert pairs.row_numbers.tolist() == [1]
    assert pairs.counts["skipped_rows"] == 4
    assert pairs.antibodies.chains == [(VH, "")]
    assert pairs.antigens.chains == [(AG,)]
    assert pairs.notes == [
        "4 bad rows skipped (unknown residue: 2 rows, 1 antibody; empty sequence: 1 row, "
        "1 antibody; empty sequence: 1 row, 1 antigen)"
    ]


def test_a_table_with_only_bad_rows_is_refused_even_with_skip():
    caught = refusal(table(heavy=["*", "*"], antigen=["M", "M"]), bad_rows="skip")
    said = "table: all 2 rows are bad; expected valid sequences and labels. Fix them."
    assert said in str(caught)
    assert "\n  rows 1, 2, column 'heavy': character '*'" in str(caught)


def test_a_table_without_the_columns_needed_is_refused_with_those_found():
    caught = refusal(table(name=["a"], antigen=["M"]))
    assert isinstance(caught, ColumnError)
    assert "no column for heavy, light or antibody; found 'name', 'antigen'" in str(caught)
    assert "--column heavy=NAME" in str(caught)
    error = str(refusal(table(heavy=["QVQ"])))
    assert "no column for antigen; found 'heavy'" in error
    assert "one antigen for all rows with --antigen SEQ" in error


def test_two_columns_that_fit_equally_well_are_refused_only_if_they_are_needed():
    frame = table(VH=["QVQ"], heavy=["EVQ"], antigen=["M"])
    caught = refusal(frame)
    assert isinstance(caught, ColumnError)
    assert "columns 'VH', 'heavy' fit heavy equally well" in str(caught)
    assert "--column heavy=NAME" in str(caught)
    both = refusal(frame.assign(VL="DIQ", light="EIV"))
    assert "So do 'VL', 'light' for light" in str(both)
    two = frame.assign(prediction=1, predicted=2)
    pairs = read_pairs(two, TableOptions(columns={"heavy": "VH"}))
    assert pairs.antibodies.chains == [("QVQ", "")]
    with pytest.raises(ColumnError, match="'prediction', 'predicted' fit prediction equally"):
        pairs.column("prediction")


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(AbagError, match="each defines the antigen"):
        TableOptions(antigen="M", columns={"antigen": "x"})
    with pytest.raises(AbagError, match="a heavy or light column: each defines the antibody"):
        TableOptions(columns={"antibody": "x", "heavy": "y"})


def test_kept_rows_remember_their_number_in_the_file():
    frame = table(heavy=["*", "QVQ", "*", "EVQ"], antigen=["M"] * 4)
    pairs = read_pairs(frame, TableOptions(bad_rows="skip"))
    assert pairs.row_numbers.tolist() == [2, 4]
    assert pairs.antibodies.of_row.tolist() == [0, 1]
