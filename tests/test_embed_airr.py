"""AIRR files: which chains are one antibody, and what becomes of those that cannot be."""

import gzip

import numpy as np
import pandas as pd
import pytest
from reading import read_sequences, read_table
from trastuzumab import HEAVY, LIGHT

import abag
from abag import SequenceError, TableError

LAMBDA = (
    "QSALTQPASVSGSPGQSITISCTGTSSDVGGYNYVSWYQQHPGKAPKLMIYDVSNRPSGVSNRFSGSKSGNTASLTISGLQAEDEADYYCSSYTSS"
    "STRVFGTGTKVTVL"
)
LEADER = "MEFGLSWLFLVAILKGVQC"
PAIR = {
    "sequence_id": ["a", "b"],
    "cell_id": ["c1", "c1"],
    "locus": ["IGH", "IGK"],
    "sequence_alignment_aa": [HEAVY, LIGHT],
}
THREE = {
    "sequence_id": ["a", "b", "c"],
    "cell_id": ["c1"] * 3,
    "locus": ["IGH", "IGK", "IGL"],
    "sequence_alignment_aa": [HEAVY, LIGHT, LAMBDA],
}


def read(folder, columns, **options):
    pd.DataFrame(columns).to_csv(folder / "x.tsv", sep="\t", index=False)
    return read_sequences(folder / "x.tsv", **options, kinds=("antibody",))


def antibodies(pairs):
    return [pairs.antibodies.chains[i] for i in pairs.antibodies.of_row]


@pytest.mark.parametrize(
    "column",
    ["repertoire_id", "sample_id", "data_processing_id", "sample_processing_id", "Donor ID"],
)
def test_one_barcode_in_two_samples_joins_no_chains(tmp_path, column):
    pairs = read(tmp_path, PAIR | {column: ["r1", "r2"]})
    assert antibodies(pairs) == [(HEAVY, ""), ("", LIGHT)]
    assert pairs.frame[column].tolist() == ["r1", "r2"]  # the column of the cells is kept
    same = read(tmp_path, PAIR | {column: ["r1", "r1"]})
    assert antibodies(same) == [(HEAVY, LIGHT)]
    assert same.notes == []


def test_units_of_oas_have_a_line_of_metadata_and_no_names_of_sequences(tmp_path):
    columns = {
        "sequence": "ACGT" * 90,
        "locus": ["H", "H", "K"],
        "v_call": ["IGHV3-66*01", "IGHV3-66*01", "IGKV1-39*01"],
        "sequence_alignment": "ACGT" * 90,
        "sequence_alignment_aa": [HEAVY, HEAVY[:-3], LIGHT],
        "Redundancy": [1, 2, 1],
    }
    text = pd.DataFrame(columns).to_csv(index=False)
    for name, opened in (("x.csv", open), ("x.csv.gz", gzip.open)):
        with opened(tmp_path / name, "wt") as file:
            file.write('"{""Run"": ""SRR1"", ""Chain"": ""Heavy""}"\n' + text)
        pairs = read_sequences(tmp_path / name, kinds=("antibody",))
        assert antibodies(pairs) == [(HEAVY, ""), (HEAVY[:-3], ""), ("", LIGHT)]


def test_a_cell_with_two_light_chains_is_a_bad_row(tmp_path):
    good = {"sequence_id": "d", "cell_id": "c2", "locus": "IGH", "sequence_alignment_aa": HEAVY}
    table = pd.concat([pd.DataFrame(THREE), pd.DataFrame([good])])
    words = r"x\.tsv: row 1, cell 'c1' has two light chains \('b', 'c'\); expected one of each"
    with pytest.raises(TableError, match=words) as refused:
        read(tmp_path, table)
    assert "\n" not in str(refused.value)
    pairs = read(tmp_path, table, bad_rows="skip")
    assert antibodies(pairs) == [(HEAVY, "")]
    assert pairs.notes == ["1 bad row skipped (several chains: 1 row, 1 antibody)"]
    out = tmp_path / "skipped.csv"
    pairs.skipped.write(out)
    assert pd.read_csv(out)["reason"].tolist() == ["several chains"]


@pytest.mark.parametrize(("counts", "light"), [
    ({"umi_count": [9, 3, 4]}, LAMBDA), ({"duplicate_count": [1, 30, 4]}, LIGHT),
    ({"umi_count": [9, 3, 4], "duplicate_count": [1, 30, 4]}, LAMBDA),
    ({"umi_count": [9, 4, 4], "duplicate_count": [1, 30, 4]}, LIGHT),
])  # fmt: skip
def test_chains_most_takes_the_chain_that_was_seen_most(tmp_path, counts, light):
    pairs = read(tmp_path, THREE | counts, chains="most")
    assert antibodies(pairs) == [(HEAVY, light)]
    assert [note for note in pairs.notes if "than another of the cell: left out" in note]


@pytest.mark.parametrize("counts", [{}, {"umi_count": [9, 4, 4]}, {"umi_count": [9, None, None]}])
def test_chains_most_does_not_choose_between_equal_counts(tmp_path, counts):
    with pytest.raises(TableError, match="two light chains"):
        read(tmp_path, THREE | counts, chains="most")


@pytest.mark.parametrize("words", [["T", "T", "F"], [True, True, False], ["true", "", "False"]])
def test_chains_that_are_not_productive_are_left_out_beside_others_and_counted(tmp_path, words):
    pairs = read(tmp_path, THREE | {"productive": words})
    assert antibodies(pairs) == [(HEAVY, LIGHT)]
    assert pairs.notes == [
        "1 rearrangement not productive: left out, beside productive ones of the cell"
    ]


def test_a_cell_without_a_productive_chain_is_counted(tmp_path):
    table = pd.concat(
        [
            pd.DataFrame(PAIR).assign(productive="T"),
            pd.DataFrame(PAIR).assign(productive="F", cell_id="c2"),
        ]
    )
    pairs = read(tmp_path, table)
    assert antibodies(pairs) == [(HEAVY, LIGHT)] * 2
    assert pairs.notes[0].startswith("1 antibody only of rearrangements that are not productive")
    most = read(tmp_path, table, chains="most")
    assert antibodies(most) == [(HEAVY, LIGHT)]
    assert most.notes == ["1 row without a productive chain skipped; the first is row 2"]
    whole = table["sequence_alignment_aa"].str
    stop = table.assign(sequence_alignment_aa=whole[:50] + "*" + whole[50:])
    with pytest.raises(SequenceError, match=r"row 1, .*'\*' at position 51"):
        read(tmp_path, stop)
    table.iloc[2:, table.columns.get_loc("sequence_alignment_aa")] += "*"
    assert antibodies(read(tmp_path, table)) == [(HEAVY, LIGHT)]


@pytest.mark.parametrize("calls", [
    {"v_call": ["IGHV3-66*01,IGHV3-64*02", "Homsap IGKV1-39*01 F"]},
    {"v_call": ["", ""], "c_call": ["IGHG1", "IGKC"]}, {"j_call": ["IGHJ4", "IGKJ1"]},
    {"locus": ["", "NA"], "v_call": ["IGHV3-66", "IGKV1-39"]},
])  # fmt: skip
def test_the_locus_is_read_from_the_genes_if_no_column_has_it(tmp_path, calls):
    """And nucleotides beside the amino acids are not read, as in the files of 10x."""
    table = {name: PAIR[name] for name in ("sequence_id", "cell_id", "sequence_alignment_aa")}
    pairs = read(tmp_path, table | calls | {"sequence": ["GAGGTGCAGC" * 9, "GACATCCAGA" * 9]})
    assert antibodies(pairs) == [(HEAVY, LIGHT)]


@pytest.mark.parametrize(("change", "words"), [
    ({"locus": ["IGH", "TRB"]}, "sequence 'b' is of locus 'TRB', not of an antibody"),
    ({"locus": ["IGH", ""]}, "sequence 'b' names no locus; expected IGH, IGK or IGL"),
    ({"sequence_alignment_aa": [HEAVY, ""]}, "sequence 'b' has no amino acids"),
    ({"productive": ["T", "maybe"]}, "sequence 'b' has productive 'maybe'; expected T or F"),
])  # fmt: skip
def test_a_rearrangement_that_cannot_be_read_is_a_bad_row(tmp_path, change, words):
    table = pd.concat([pd.DataFrame(PAIR | change), pd.DataFrame(PAIR).assign(cell_id="c2")])
    with pytest.raises(TableError, match=words):
        read(tmp_path, table)
    pairs = read(tmp_path, table, bad_rows="skip")
    assert antibodies(pairs) == [(HEAVY, LIGHT)]
    assert pairs.row_numbers.tolist() == [2]


def test_a_row_of_a_locus_alone_is_a_bad_row_not_an_empty_one(tmp_path):
    columns = {name: [*cells, ""] for name, cells in PAIR.items()} | {"locus": ["IGH", "IGK", "x"]}
    with pytest.raises(TableError, match="row 2, sequence '' is of locus 'X', not of an antibody"):
        read(tmp_path, columns)
    assert read(tmp_path, columns, bad_rows="skip").counts["skipped_rows"] == 1


def test_whole_translations_are_cut_to_the_variable_domain_that_alignments_hold(tmp_path):
    whole = {name: PAIR[name] for name in ("sequence_id", "cell_id", "locus")}
    pairs = read(tmp_path, whole | {"sequence_aa": [f"{LEADER}{HEAVY}ASTKGPSVFPLAP", LIGHT]})
    assert antibodies(pairs) == [(HEAVY, LIGHT)]
    assert "1 antibody cut to variable domains" in pairs.notes


def test_a_predictor_scores_the_cells_of_an_airr_file(tmp_path):
    """Whose table is read twice, and with another number of rows than the file has."""
    rng = np.random.default_rng(0)
    letters = np.array([*"ADEFGHKLNQRSTVY"])
    heavies = [HEAVY.replace("GFNIK", "".join(rng.choice(letters, 5))) for _ in range(40)]
    train = pd.DataFrame({"heavy": heavies, "light": LIGHT, "antigen": "MKTAYIAKQR" * 4})
    train.assign(pkd=rng.normal(8, 1, 40)).to_csv(tmp_path / "train.csv", index=False)
    names = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(tmp_path / "train.csv", tmp_path / "store", **names)
    abag.fit(
        tmp_path / "train.csv", tmp_path / "store", tmp_path / "run", head="ridge", device="cpu"
    )
    columns = pd.DataFrame(THREE).assign(umi_count=[1, 2, 3], antigen="MKTAYIAKQR" * 4)
    both = pd.concat([columns, columns.iloc[:2].assign(cell_id="c2")])
    both.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    abag.predict(tmp_path / "x.tsv", tmp_path / "run", out=tmp_path / "out.csv", chains="most")
    predictor = abag.load_predictor(tmp_path / "run")
    out = pd.read_csv(tmp_path / "out.csv")
    assert out["light"].tolist() == [LAMBDA, LIGHT]
    alone = predictor.predict([HEAVY] * 2, [LAMBDA, LIGHT], ["MKTAYIAKQR" * 4] * 2)
    assert out["pkd_predicted"].to_numpy() == pytest.approx(
        alone["pkd_predicted"], abs=1e-4
    )  # as it is written


@pytest.mark.parametrize("samples", [("1.1", "1.10"), ("1", "01"), ("4E10", "40000000000")])
def test_samples_that_look_like_one_number_join_no_chains(tmp_path, samples):
    pairs = read(tmp_path, PAIR | {"sample_id": samples, "v_score": ["310.5", "298.50"]})
    assert antibodies(pairs) == [(HEAVY, ""), ("", LIGHT)]
    assert tuple(pairs.frame["sample_id"]) == samples


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize("other", ["", "NA", "8.5"])
def test_what_one_chain_of_a_cell_says_is_said_of_the_antibody(tmp_path, other, as_written):
    rows = [
        "sequence_id\tlocus\tcell_id\tsequence_alignment_aa\tpKd\tbatch",
        f"a\tIGK\tc1\t{LIGHT}\t{other}\t1",
        f"b\tIGH\tc1\t{HEAVY}\t8.5\t2",
        f"c\tIGH\tc2\t{HEAVY}\t\t",
    ]
    path = tmp_path / "x.tsv"
    path.write_text("\n".join(rows))
    frame = read_table(path, as_written=as_written).frame
    assert frame["pKd"].fillna("").tolist() == ["8.5", ""]
    assert "batch" not in frame
