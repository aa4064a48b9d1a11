"""FASTA and AIRR files: records become rows, and what cannot be meant is refused."""

from contextlib import suppress

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_sequences, read_table

import abag
from abag import OptionError, TableError

HEAVY = "EVQLVESGGGLVQPGGSLRLSCAAS"
LIGHT = "DIQMTQSPSSLSASVGDRVTITC"
AIRR = pd.DataFrame(
    {
        "sequence_id": ["a", "b", "c"],
        "locus": ["IGH", "IGK", "IGH"],
        "sequence_alignment_aa": ["EVQL..VES", "DIQ-MTQ", ""],
        "sequence_aa": ["", "", "QVQLVES"],
        "cell_id": ["cell1", "cell1", "cell2"],
        "v_call": ["IGHV3", "IGKV1", "IGHV1"],
        "pkd": [8.5, 8.5, 7.25],
    }
)


def written(path, text):
    path.write_text(text)
    return path


def test_fasta_records_with_a_role_in_their_names_are_joined_to_rows(tmp_path):
    text = f">ab1_H some text\n{HEAVY[:10]}\n{HEAVY[10:]}\n>ab1_L\n{LIGHT}\n>ab1|antigen\nMKT\n"
    text += f">ab2.VH\n{HEAVY}\n\n>ab2-antigen\nMKV\n"
    pairs = read_sequences(written(tmp_path / "x.fasta", text))
    assert pairs.antibodies.chains == [(HEAVY, LIGHT), (HEAVY, "")]
    assert pairs.antigens.chains == [("MKT",), ("MKV",)]
    assert pairs.frame["id"].tolist() == ["ab1", "ab2"]


@pytest.mark.parametrize(
    ("heavy", "light"),
    [
        ("Ab_heavy_chain", "Ab_light_chain"),
        ("Ab__VH", "Ab:VL-seq"),
        ("VH_Ab", "VL_Ab"),
        ("heavy_chain-Ab", "light_chain-Ab"),
    ],
)
def test_the_chains_of_a_fasta_file_are_told_by_the_endings_that_names_are_looked_up_by(
    tmp_path, heavy, light
):
    records = tmp_path / "records.fasta"
    records.write_text(f">{heavy}\n{HEAVY}\n>{light}\n{LIGHT}\n")
    joined = read_sequences(records, no_antigen=True)
    assert joined.antibodies.chains == [(HEAVY, LIGHT)]
    assert joined.frame["id"].tolist() == ["Ab"]
    (tmp_path / "names.csv").write_text("antibody\nAb\n")
    options = {"sequences": (str(records),), "no_antigen": True}
    named = read_sequences(tmp_path / "names.csv", **options)
    assert named.antibodies.chains == joined.antibodies.chains


def test_fasta_records_without_roles_are_antibodies_or_a_named_role(tmp_path):
    path = written(tmp_path / "x.fa", f">one\n{HEAVY}|{LIGHT}\n>two\n{HEAVY}|\n")
    antibodies = read_sequences(path, kinds=("antibody",)).antibodies
    assert antibodies.chains == [(HEAVY, LIGHT), (HEAVY, "")]
    options = {"columns": {"antigen": "sequence"}}
    path = written(tmp_path / "y.fa", ">one\nMKTAY\n>two\nMKV\n")
    assert read_sequences(path, **options, kinds=("antigen",)).antigens.chains == [
        ("MKTAY",),
        ("MKV",),
    ]


@pytest.mark.parametrize("names", [
    ("cathepsin-L", "HLA-H"), ("HLA-H", "HLA-L"), ("cathepsin-L", "HLA-antigen", "x.K"), ("a", "b"),
])  # fmt: skip
def test_names_of_antigens_that_end_like_chains_are_names(tmp_path, names):
    chains = [f"MKT{'A' * n}" for n, _ in enumerate(names)]
    text = "".join(f">{name} x\n{chain}\n" for name, chain in zip(names, chains, strict=True))
    path = written(tmp_path / "x.fasta", text)
    for options in ({}, {"columns": {"antigen": "sequence"}}):
        pairs = read_sequences(path, **options, kinds=("antigen",))
        assert pairs.antigens.chains == [(chain,) for chain in chains]
        assert pairs.frame["id"].tolist() == [*names]
    summary = abag.embed_table(path, tmp_path / "s", "igt6", "composition", kind="antigen")
    assert summary["antigens"]["encoded"] == len(names)


def test_whole_headers_are_names_where_their_first_words_are_not_distinct(tmp_path):
    path = written(tmp_path / "x.fasta", ">spike Wuhan\nMKT\n>spike BA.1\nMKV\n>NA\nMKA\n")
    pairs = read_sequences(path, kinds=("antigen",))
    assert pairs.frame["id"].tolist() == ["spike Wuhan", "spike BA.1", "NA"]
    twice = written(tmp_path / "y.fasta", ">spike BA.1\nMKT\n>spike BA.1\nMKV\n")
    with pytest.raises(TableError, match="'spike' is the second antigen of 'spike'"):
        read_sequences(twice, kinds=("antigen",))


def test_antigens_beside_their_antibodies_keep_their_role_when_asked_for_alone(tmp_path):
    text = f">ab1_H\n{HEAVY}\n>ab1_L\n{LIGHT}\n>ab1_antigen\nMKT\n"
    path = written(tmp_path / "x.fasta", text)
    assert read_sequences(path, kinds=("antigen",)).antigens.chains == [("MKT",)]


@pytest.mark.parametrize(("text", "words"), [
    ("MKT\n", "begins with 'MKT', not with '>'"),
    (">a_H\n>b_H\nEVQ\n", "'a_H' holds ''; expected residues"),
    (">a_H\nEVQ\n>a_VH\nEVQ\n", "'a_VH' is the second heavy of 'a'"),
    (">a_H\nEVQ\n>b\nEVQ\n", "'b' does not end in a role"),
    (">a_H\nEVQ\n>a_L\nnan\n", "'a_L' holds 'nan'; expected residues"), ("", "no rows"),
])  # fmt: skip
def test_fasta_that_cannot_be_meant_is_refused_in_one_line(tmp_path, text, words):
    with pytest.raises(TableError, match=words) as refused:
        abag.plan(written(tmp_path / "x.fasta", text))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("as_written", [False, True])
def test_airr_rows_of_a_cell_become_one_antibody_with_the_columns_of_the_cell(tmp_path, as_written):
    AIRR.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    table = read_table(tmp_path / "x.tsv", as_written=as_written)
    assert [*table.frame.columns] == ["id", "heavy", "light", "pkd"]
    assert table.frame["id"].tolist() == ["cell1", "cell2"]
    assert table.frame["heavy"].tolist() == ["EVQLVES", "QVQLVES"]
    assert table.frame["light"].tolist() == ["DIQMTQ", ""]
    assert table.frame["pkd"].astype(float).tolist() == [8.5, 7.25]


def test_airr_rows_without_a_cell_are_antibodies_of_their_own(tmp_path):
    AIRR.drop(columns="cell_id").to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    chains = read_sequences(tmp_path / "x.tsv", kinds=("antibody",)).antibodies.chains
    assert chains == [("EVQLVES", ""), ("", "DIQMTQ"), ("QVQLVES", "")]


@pytest.mark.parametrize("as_written", [False, True])
def test_airr_names_that_occur_twice_and_missing_cells_join_no_chains(tmp_path, as_written):
    """Two sequences of one name, a name that is that of a cell, and cells called NA."""
    table = AIRR.assign(
        sequence_id=["cell9", "x", "x"], cell_id=["NA", "NA", ""], note=["NA", "", "1"]
    )
    table = pd.concat([table, AIRR.iloc[[1]].assign(cell_id="cell9", note="2")])
    table.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    read = read_sequences(tmp_path / "x.tsv", kinds=("antibody",), as_written=as_written)
    rows = [read.antibodies.chains[i] for i in read.antibodies.of_row]
    assert rows == [("EVQLVES", ""), ("", "DIQMTQ"), ("QVQLVES", ""), ("", "DIQMTQ")]
    assert read.frame["id"].tolist() == ["cell9", "x", "x", "cell9"]
    assert "note" in read.frame


@pytest.mark.parametrize(("change", "words"), [
    ({"locus": ["IGH", "TRB", "IGH"]}, "'b' is of locus 'TRB', not of an antibody"),
    ({"locus": ["IGH", "IGH", "IGH"]}, "'cell1' has two heavy chains"),
    ({"sequence_aa": ["", "", None]}, "'c' has no amino acids"),
])  # fmt: skip
def test_airr_that_cannot_be_meant_is_refused_in_one_line(tmp_path, change, words):
    AIRR.assign(**change).to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    with pytest.raises(TableError, match=words) as refused:
        read_sequences(tmp_path / "x.tsv", kinds=("antibody",))
    assert "\n" not in str(refused.value)


def test_airr_without_columns_of_amino_acids_is_refused_rather_than_read_as_nucleotides(tmp_path):
    table = pd.DataFrame({"sequence_id": ["a"], "locus": ["IGH"], "sequence": ["ACGT" * 9]})
    table.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    with pytest.raises(TableError, match="'a' has no amino acids"):
        abag.plan(tmp_path / "x.tsv")


def test_fasta_is_embedded_and_planned_like_any_table(tmp_path):
    text = "".join(f">p{i}_H\n{HEAVY[i:]}\n>p{i}_Ag\nMKT{'A' * i}\n" for i in range(5))
    path = written(tmp_path / "x.fasta", text)
    summary = abag.embed_table(path, tmp_path / "store", "composition", "composition")
    assert (summary["rows"], summary["antigens"]["encoded"]) == (5, 5)
    assert abag.plan(path)["rows"] == 5


def test_one_kind_is_encoded_from_a_table_that_lacks_the_other(tmp_path):
    path = written(tmp_path / "x.fasta", f">one\n{HEAVY}|{LIGHT}\n>two\n{HEAVY}|\n")
    # igt6 is no encoder: that of the other kind is not even looked for
    summary = abag.embed_table(path, tmp_path / "s", "composition", "igt6", kind="antibody")
    assert summary.keys() == {"antibodies", "rows", "skipped_rows"}
    assert summary["antibodies"]["encoded"] == 2
    path = written(tmp_path / "y.csv", "antigen\nMKT\nMKV\nMKT\n")
    summary = abag.embed_table(path, tmp_path / "s", "igt6", "composition", kind="antigen")
    assert (summary["antigens"]["encoded"], summary["rows"]) == (2, 3)
    assert {folder.kind for folder in abag.open_store(tmp_path / "s").folders()} == {
        "antibody",
        "antigen",
    }
    with pytest.raises(OptionError, match="no antigen is encoded"):
        abag.embed_table(path, tmp_path / "s", kind="antibody", antigen="MKT")
    for alone in ({"kind": "antibody"}, {"no_antigen": True}):
        with pytest.raises(OptionError, match="antigen_adapter: no antigens are encoded, by"):
            abag.embed_table(path, tmp_path / "s", antigen_adapter="adapters/first", **alone)


def test_a_fasta_file_is_not_written(tmp_path):
    scored = pd.DataFrame({"heavy": [HEAVY], "antigen": ["MKT"], "prediction": [8.0]})
    with pytest.raises(TableError, match=r"\.fasta files are only read; expected .*\.csv, \.tsv"):
        abag.rank(scored, tmp_path / "out.fasta", rule="mean", batch=1)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=">acgtEVQ_HL|\n\r \t-.\x00é", max_size=60))
def test_any_text_is_read_as_fasta_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "x.fasta"
    path.write_text(text, encoding="utf-8", newline="")
    with suppress(TableError):
        assert len(read_table(path).frame)


@pytest.mark.ci
def test_two_ranks_encode_one_kind(tmp_path):
    text = "antigen\n" + "".join(f"MKT{'A' * i}\n" for i in range(9))
    path = written(tmp_path / "y.csv", text)
    options = {"kind": "antigen", "devices": 2, "device": "cpu"}
    summary = abag.embed_table(path, tmp_path / "s", "igt6", "composition", **options)
    assert summary["antigens"]["encoded"] == 9
