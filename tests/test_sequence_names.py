"""Columns of names are looked up in FASTA files and tables of sequences."""

import gzip

import openpyxl
import pandas as pd
import pytest
from reading import demo_table, read_chunks, read_sequences
from trastuzumab import D13_HEAVY, D13_LIGHT, HEAVY, LIGHT

import abag
from abag import AbagError, ColumnError, TableError
from abag.core.messages import reporting

ANTIGENS = {
    "HER2 ECD": "TQVCTGTDMKLRLPASPETHLDMLRHLYQGCQVVQGNLELTYLPTNASLSF",
    "HIV-1 gp120": "MRVKEKYQHLWRWGWRWGTMLLGMLMICSATEKLWVTVYYGVPVWKEATTT",
}
OTHER_HEAVY = HEAVY.replace("W", "Y")


def write_fasta(path, records):
    text = "".join(f">{name}\n{chain[:40]}\n{chain[40:]}\n" for name, chain in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def antibody_fasta(path):
    return write_fasta(
        path, [("tras_H", HEAVY), ("tras_L", LIGHT), ("vhh1_VHH heavy", OTHER_HEAVY)]
    )


def named_like_numbers(path, names):
    """Write a heavy chain of its own for each name, and return them."""
    heavy = [f"{HEAVY[:100]}{'AY' * number}{HEAVY[100:]}" for number in range(1, len(names) + 1)]
    write_fasta(path, zip((f"{name}_H" for name in names), heavy, strict=True))
    return heavy


def chains_of(pairs, kind):
    return [pairs.sequences[kind].chains[i] for i in pairs.sequences[kind].of_row]


def test_a_name_of_an_antibody_in_the_place_of_an_antigen_is_not_proposed_again(tmp_path):
    antibodies = antibody_fasta(tmp_path / "abs.fasta")
    files = (antibodies, write_fasta(tmp_path / "ag.fasta", ANTIGENS.items()))
    table = pd.DataFrame({"antibody": ["tras", "tras"], "antigen": ["HER2 ECD", "tras"]})
    with pytest.raises(AbagError) as caught:
        read_sequences(table, sequences=files)
    expected = "'tras' has no antigen sequence in abs.fasta, ag.fasta; expected one. Add"
    assert f"row 2, column 'antigen': {expected}" in str(caught.value)


@pytest.mark.parametrize("name", ["abs.fasta", "abs.fa.gz"])
def test_names_on_both_sides_are_read_as_their_sequences(tmp_path, name):
    antibodies = write_fasta(
        tmp_path / name, [("tras_H", HEAVY), ("tras_L", LIGHT), ("mut heavy chain", OTHER_HEAVY)]
    )
    pd.DataFrame({"name": [*ANTIGENS], "sequence": [*ANTIGENS.values()]}).to_excel(
        tmp_path / "ag.xlsx", index=False
    )
    table = pd.DataFrame(
        {"mAb": ["tras", "mut", "Tras"], "strain": ["HER2 ECD", "HIV-1 gp120", "HIV-1 gp120"]}
    )
    read = read_sequences(table, sequences=(antibodies, str(tmp_path / "ag.xlsx")))
    assert chains_of(read, "antibody") == [(HEAVY, LIGHT), (OTHER_HEAVY, ""), (HEAVY, LIGHT)]
    expected = [ANTIGENS["HER2 ECD"], ANTIGENS["HIV-1 gp120"], ANTIGENS["HIV-1 gp120"]]
    assert chains_of(read, "antigen") == [(text,) for text in expected]
    assert read.frame["mAb"].tolist() == ["tras", "mut", "Tras"]
    named = [role for role in read.columns if role.endswith("_name")]
    assert named == ["antibody_name", "antigen_name"]  # also in other hash seeds
    assert "column 'mAb' holds names of antibodies, looked up in" in " ".join(read.notes)


@pytest.mark.parametrize(
    ("column", "names"), [("Clone", [1, 2]), ("Sample ID", [1, 2]), ("unusual", ["ab 1", "ab 2"])]
)
def test_a_table_of_name_heavy_light_names_antibodies_in_any_column(tmp_path, column, names):
    pd.DataFrame({"Name": names, "VH": [HEAVY, OTHER_HEAVY], "VL": [LIGHT, None]}).to_csv(
        tmp_path / "ab.csv", index=False
    )
    table = pd.DataFrame({column: names[::-1], "antigen": [*ANTIGENS.values()], "n": [7, 8]})
    read = read_sequences(table, sequences=(str(tmp_path / "ab.csv"),))
    assert chains_of(read, "antibody") == [(OTHER_HEAVY, ""), (HEAVY, LIGHT)]


@pytest.mark.parametrize("no_antigen", [True, False])
def test_measurements_are_not_looked_up_as_names_nor_rows_of_the_file_as_its_names(
    tmp_path, no_antigen
):
    names = ["ab 1", "ab 2", "ab 3"]
    file = tmp_path / "ab.csv"
    chains = [HEAVY, OTHER_HEAVY, HEAVY[:-2]]
    table = pd.DataFrame({"unusual": names[::-1], "score": [1, 2, 1], "target": ANTIGEN})
    options = {"sequences": (str(file),), "no_antigen": no_antigen}
    pd.DataFrame({"unusual": names, "Sequence": chains}).to_csv(file)  # numbers of rows in front
    read = read_sequences(table, **options)
    assert chains_of(read, "antibody") == [(chain, "") for chain in chains[::-1]]
    numbered = pd.DataFrame({"unusual": [1, 2, 3], "class": "IgG", "Sequence": chains})
    numbered.to_csv(file, index=False)  # numbers that are names: the texts tell no rows apart
    as_numbers = table.rename(columns={"unusual": "antibody"}).assign(antibody=[3, 2, 1])
    assert chains_of(read_sequences(as_numbers, **options), "antibody") == chains_of(
        read, "antibody"
    )
    pd.DataFrame({"Name": [1, 2, 3], "Sequence": chains}).to_csv(file, index=False)
    with pytest.raises(ColumnError, match=r"no column holds names .* such as '1', '2', '3'"):
        read_sequences(table, **options)


def test_names_of_other_binders_are_looked_up_if_antibodies_are_alone(tmp_path):
    write_fasta(tmp_path / "b.fasta", [("b1", ANTIGEN), ("b2", ANTIGEN[::-1])])
    table = pd.DataFrame({"design": ["b2", "b1"], "pKd": [7, 8]})
    options = {"sequences": (str(tmp_path / "b.fasta"),), "no_antigen": True}
    read = read_sequences(table, **options)
    assert chains_of(read, "antibody") == [(ANTIGEN[::-1], ""), (ANTIGEN, "")]
    # names of antibodies that are not in the file are never replaced by those of antigens
    for name in ("antibody", "clone"):
        with pytest.raises(ColumnError, match="no column holds names of --sequences"):
            read_sequences(pd.DataFrame({name: ["x1", "x2"], "target": "b1"}), **options)
    # beside names of antibodies, those are of antigens
    write_fasta(tmp_path / "b.fasta", [("b1", HEAVY), ("b2", OTHER_HEAVY), ("her2", ANTIGEN)])
    read = read_sequences(table.assign(target="her2"), **options)
    assert chains_of(read, "antibody") == [(OTHER_HEAVY, ""), (HEAVY, "")]


def test_a_table_with_a_row_per_chain_names_antibodies(tmp_path):
    rows = [("a", "H", HEAVY), ("a", "L", LIGHT), ("b", "heavy", OTHER_HEAVY)]
    pd.DataFrame(rows, columns=["name", "chain", "sequence"]).to_csv(tmp_path / "c.csv")
    table = pd.DataFrame({"clone": ["b", "a"], "antigen": [*ANTIGENS.values()]})
    read = read_sequences(table, sequences=(str(tmp_path / "c.csv"),))
    assert chains_of(read, "antibody") == [(OTHER_HEAVY, ""), (HEAVY, LIGHT)]


@pytest.mark.parametrize("place", ["cell", "name", "parent"])
def test_stop_codons_and_rare_residues_are_counted_wherever_a_sequence_is_written(tmp_path, place):
    heavy = HEAVY.replace("K", "U", 1) + "*"
    target = "MKTB" + "AGLI" * 8 + "*"
    records = tmp_path / "records.fasta"
    records.write_text(f">Ab\n{heavy}\n>Target\n{target}\n")
    options = {"antigen": target, "parent": heavy}
    frame = pd.DataFrame({"mutations": ["E1Q", "WT"]})
    if place == "cell":
        options = {}
        frame = pd.DataFrame({"heavy": [heavy], "antigen": target})
    elif place == "name":
        options = {"sequences": (str(records),)}
        frame = pd.DataFrame({"antibody": ["Ab"], "antigen": "Target"})
    pairs = read_sequences(frame, **options)
    antibodies = len(pairs.antibodies.chains)
    assert pairs.counts["stopped_antibodies"] == antibodies
    assert pairs.counts["stopped_antigens"] == 1
    assert pairs.counts["replaced_residues"] == antibodies + 1
    records.write_text(f">Ab\n{HEAVY}**\n")
    names = pd.DataFrame({"antibody": ["Ab"], "antigen": target})
    with pytest.raises(AbagError, match=r"'\*' at position"):
        read_sequences(names, sequences=(str(records),))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_of_a_table_of_names_without_a_sequence_or_a_name_are_left_out(tmp_path, suffix):
    names = ["trastuzumab", "unknown", None]
    named = pd.DataFrame({"name": names, "heavy": [HEAVY, None, OTHER_HEAVY]})
    path = tmp_path / f"names.{suffix}"
    named.to_csv(path, index=False) if suffix == "csv" else named.to_parquet(path)
    table = pd.DataFrame({"antibody": ["trastuzumab"], "antigen": [ANTIGEN]})
    pairs = read_sequences(table, sequences=[path])
    assert chains_of(pairs, "antibody") == [(HEAVY, "")]
    left_out = "1 record of names." + suffix + " without a name or residues left out: "
    assert any(note.startswith(left_out) for note in pairs.notes)


def test_records_of_a_database_are_found_by_accession_and_entry_name(tmp_path):
    path = write_fasta(tmp_path / "a.fasta", [("sp|P04626|ERBB2_HUMAN ", ANTIGENS["HER2 ECD"])])
    table = pd.DataFrame(
        {"heavy": [HEAVY] * 3, "antigen": ["P04626", "ERBB2_HUMAN", "sp|P04626|ERBB2_HUMAN"]}
    )
    read = read_sequences(table, sequences=(path,))
    assert chains_of(read, "antigen") == [(ANTIGENS["HER2 ECD"],)] * 3


def test_names_without_a_sequence_are_bad_rows_and_peptides_are_no_names(tmp_path):
    path = antibody_fasta(tmp_path / "a.fasta")
    table = pd.DataFrame({"clone": ["tras", "tra", "ACE"], "antigen": [ANTIGENS["HER2 ECD"]] * 3})
    options = {"sequences": (path,)}
    with pytest.raises(abag.AbagError, match="2 rows are bad") as caught:
        abag.plan(table, **options)
    # ACE consists of residues, and is no sequence in a column of names
    assert (
        "row 2, column 'clone': 'tra' has no antibody sequence in a.fasta (did you mean 'tras'?)"
        in str(caught.value)
    )
    assert "row 3, column 'clone': 'ACE' has no antibody sequence" in str(caught.value)
    planned = abag.plan(table, sequences=(path,), bad_rows="skip")
    assert planned["notes"][-1].startswith("2 bad rows skipped (name without a sequence: 2 rows")


def test_chunks_are_read_by_what_the_first_decided(tmp_path):
    path = antibody_fasta(tmp_path / "a.fasta")
    names = ["tras", "tras", "unknown", "unknown", "tras"]
    table = pd.DataFrame({"clone": names, "antigen": [ANTIGENS["HER2 ECD"]] * 5})
    table.to_csv(tmp_path / "t.csv", index=False)
    options = {"sequences": (path,), "bad_rows": "skip"}
    chunks = [*read_chunks(tmp_path / "t.csv", rows=2, **options)]
    assert [len(chunk.frame) for chunk in chunks] == [2, 0, 1]
    assert [p for chunk in chunks for p in chunk.positions.tolist()] == [0, 1, 4]


@pytest.mark.parametrize("suffix", [".fasta", ".csv"])
def test_a_name_with_two_sequences_is_refused_with_both_places(tmp_path, suffix):
    rows = [("VEGF", ANTIGENS["HER2 ECD"]), ("x", HEAVY), ("VEGF", ANTIGENS["HIV-1 gp120"])]
    if suffix == ".csv":
        pd.DataFrame(rows, columns=["name", "sequence"]).to_csv(tmp_path / "a.csv", index=False)
        places = "'VEGF' at a.csv row 2 and a.csv row 4"
    else:
        write_fasta(tmp_path / "a.fasta", rows)
        places = "'VEGF' at a.fasta record 1 and a.fasta record 3"
    table = pd.DataFrame({"heavy": [HEAVY], "antigen": ["VEGF"]})
    with pytest.raises(TableError, match="a name has different sequences") as caught:
        abag.plan(table, sequences=(str(tmp_path / f"a{suffix}"),))
    assert places in str(caught.value)


def test_the_same_sequence_twice_is_no_conflict(tmp_path):
    text = ANTIGENS["HER2 ECD"]
    path = write_fasta(tmp_path / "a.fasta", [("VEGF", text), ("VEGF", text.lower())])
    table = pd.DataFrame({"heavy": [HEAVY], "antigen": ["VEGF"]})
    assert chains_of(read_sequences(table, sequences=(path,)), "antigen") == [(text,)]


def test_a_first_word_of_two_records_stands_for_none_of_them(tmp_path):
    records = [("VEGF human", ANTIGENS["HER2 ECD"]), ("VEGF mouse", ANTIGENS["HIV-1 gp120"])]
    path = write_fasta(tmp_path / "a.fasta", records)
    table = pd.DataFrame({"heavy": [HEAVY] * 2, "antigen": ["VEGF", "VEGF mouse"]})
    with pytest.raises(
        abag.AbagError, match=r"'VEGF' has no .* sequence.*did you mean 'VEGF human'"
    ):
        abag.plan(table, sequences=(path,))


def test_sequences_that_no_column_names_are_refused(tmp_path):
    path = antibody_fasta(tmp_path / "a.fasta")
    table = pd.DataFrame({"clone": ["x"], "antigen": [ANTIGENS["HER2 ECD"]]})
    with pytest.raises(ColumnError, match="no column holds names of --sequences"):
        read_sequences(table, sequences=(path,))
    # a table of measured pairs may have the sequences that another one names
    table = table.assign(heavy=HEAVY)
    notes = abag.plan(table, sequences=(path,))["notes"]
    assert "--sequences a.fasta is not used: the columns hold sequences" in notes


VHH = OTHER_HEAVY
ANTIGEN = ANTIGENS["HER2 ECD"]


@pytest.mark.parametrize(
    ("records", "antibody", "antigen"),
    [
        ({"Nb1": VHH, "nb1 H": HEAVY, "nb1 L": LIGHT}, {"Nb1": (VHH, "")}, {}),
        ({"Nb1": VHH, "Nb1_H": HEAVY, "Nb1_L": LIGHT}, {"Nb1": (VHH, "")}, {}),
        ({"P1": HEAVY, "P1_L": LIGHT}, {"P1": (HEAVY, LIGHT)}, {}),
        ({"P1_VH": HEAVY, "P1": LIGHT}, {"P1": (HEAVY, LIGHT)}, {}),
        ({"P1": HEAVY + LIGHT, "P1_L": LIGHT}, {"P1": (HEAVY, LIGHT)}, {}),
        ({"cathepsin": VHH, "cathepsin-L": ANTIGEN}, {"cathepsin": (VHH, "")}, {}),
        ({"cathepsin_H": HEAVY, "cathepsin-L": ANTIGEN}, {"cathepsin": (HEAVY, "")}, {}),
        ({"X": ANTIGEN, "X_H": HEAVY, "X_L": LIGHT}, {"X": (HEAVY, LIGHT)}, {"X": ANTIGEN}),
        ({"X": VHH, "X_ag": ANTIGEN}, {"X": (VHH, "")}, {"X": ANTIGEN}),
        ({"HER2 ECD": ANTIGENS["HIV-1 gp120"], "HER2": ANTIGEN, "a_H": VHH}, {}, {"HER2": ANTIGEN}),
    ],
)
def test_a_record_of_the_very_name_rules_out_similar_ones(tmp_path, records, antibody, antigen):
    path = write_fasta(tmp_path / "a.fasta", records.items())
    others = {"heavy": [HEAVY], "antigen": [ANTIGEN]}
    for name, chains in antibody.items():
        table = pd.DataFrame({"antibody": [name], "antigen": others["antigen"]})
        assert chains_of(read_sequences(table, sequences=(path,)), "antibody") == [chains]
    for name, text in antigen.items():
        table = pd.DataFrame({"heavy": others["heavy"], "antigen": [name]})
        assert chains_of(read_sequences(table, sequences=(path,)), "antigen") == [(text,)]


def test_an_exact_name_in_one_file_rules_out_similar_ones_of_others(tmp_path):
    rows = [("7D12", VHH, None), ("7D12 IgG", HEAVY, LIGHT)]
    pd.DataFrame(rows, columns=["name", "heavy", "light"]).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"name": ["HER2 ECD"], "antigen": [ANTIGENS["HIV-1 gp120"]]}).to_csv(
        tmp_path / "b.csv", index=False
    )
    fasta = write_fasta(tmp_path / "c.fasta", [("HER2", ANTIGEN), ("spare", ANTIGEN[:-1])])
    table = pd.DataFrame({"antibody": ["7D12", "7D12 IgG"], "antigen": "HER2"})
    files = (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), fasta)
    for sequences in (files, files[::-1]):
        read = read_sequences(table, sequences=sequences)
        assert chains_of(read, "antibody") == [(VHH, ""), (HEAVY, LIGHT)]
        assert chains_of(read, "antigen") == [(ANTIGEN,)] * 2
        notes = " ".join(read.notes)
        assert "1 name of a heavy chain alone, 1 name of a heavy and a light chain" in notes


def test_a_light_chain_is_not_read_from_the_record_of_a_heavy_one(tmp_path):
    path = write_fasta(tmp_path / "a.fasta", [("7D12", VHH), ("t_H", HEAVY), ("t_L", LIGHT)])
    table = pd.DataFrame({"heavy": ["t", "7D12"], "light": ["t", "7D12"], "antigen": ANTIGEN})
    with pytest.raises(
        abag.AbagError,
        match=r"'light': '7D12' has no light chain sequence in a\.fasta, where it is a heavy "
        r"chain; expected one. Write it into the other column, or correct the file",
    ):
        read_sequences(table, sequences=(path,))


def test_records_that_the_table_does_not_use_cannot_refuse_it(tmp_path):
    records = [("a", HEAVY), ("b", HEAVY), ("b", VHH), ("c", ""), ("", LIGHT), ("d", "AC1")]
    fasta = write_fasta(tmp_path / "a.fasta", records)
    columns = ["name", "sequence"]
    pd.DataFrame(records, columns=columns).to_csv(tmp_path / "a.csv", index=False)
    table = pd.DataFrame({"antibody": ["a"], "antigen": [ANTIGEN]})
    for path in (fasta, str(tmp_path / "a.csv")):
        read = read_sequences(table, sequences=(path,))
        assert chains_of(read, "antibody") == [(HEAVY, "")]
        assert "without a name or residues left out" in " ".join(read.notes)
        with pytest.raises(TableError, match="different sequences: 'b' at"):
            read_sequences(table.assign(antibody="b"), sequences=(path,))
        with pytest.raises(abag.AbagError, match=r"'c' has no .* sequence"):
            read_sequences(pd.concat([table, table.assign(antibody="c")]), sequences=(path,))


PEPTIDES = ["SIINFEKL", "GILGFVFTL", "NLVPMVATV", "RTLEDLLM", "IVYRDGNPYAV", "KISEYRHY"]


def test_peptides_beside_names_are_sequences(tmp_path):
    alleles = write_fasta(tmp_path / "a.fasta", [(f"HLA-{n}", HEAVY[n:40]) for n in range(6)])
    columns = {"antibody": "allele", "antigen": "peptide"}
    table = pd.DataFrame({"allele": [f"HLA-{n}" for n in range(6)], "peptide": PEPTIDES})
    read = read_sequences(table, sequences=(alleles,), columns=columns)
    assert chains_of(read, "antigen") == [(text,) for text in PEPTIDES]
    for column in ("antigen", "sequence"):  # and their own list
        names = pd.DataFrame({"name": PEPTIDES, column: PEPTIDES})
        names.to_csv(tmp_path / "p.csv", index=False)
        files = (alleles, str(tmp_path / "p.csv"))
        read = read_sequences(table, sequences=files, columns=columns)
        assert chains_of(read, "antigen") == [(text,) for text in PEPTIDES]
    # a few of them have names
    write_fasta(tmp_path / "b.fasta", [("NLVPMVATV", "NLVPMVATA")])
    files = (alleles, str(tmp_path / "b.fasta"))
    read = read_sequences(table, sequences=files, columns=columns)
    expected = [text.replace("NLVPMVATV", "NLVPMVATA") for text in PEPTIDES]
    assert chains_of(read, "antigen") == [(text,) for text in expected]


@pytest.mark.parametrize("name", ["EGFR", "SPIKE", "Lysozyme"])
def test_a_name_without_a_sequence_is_no_peptide(tmp_path, name):
    path = antibody_fasta(tmp_path / "a.fasta")
    table = pd.DataFrame({"antibody": ["tras", "vhh1"], "antigen": name})
    with pytest.raises(abag.AbagError, match=f"'{name}' has no .* sequence"):
        read_sequences(table, sequences=(path,))


@pytest.mark.parametrize(
    "cells",
    [
        {"antibody": ["Imdevimab", "Bamlanivimab"]},
        {"antibody": ["IMDEVIMAB"]},
        {"antibody": ["PARENT", "CAMEL", "LLAMA"]},
        {"heavy": ["Imdevimab", HEAVY]},
        {"light": ["scFv", LIGHT]},
        {"antigen": ["Lysozyme"]},
        {"antigen": ["Spike", ANTIGEN]},
        {"antigen": ["Receptor binding domain"]},
        {"antigen": ["INSULIN", "LYSOZYME"]},
        {"antigen": ["MyAntigen"]},
        {"heavy": ["H", "A", "HL"], "light": ["L", "B", ""]},  # chains of PDB files
        {"light": ["VHH", LIGHT]},
        {"light": ["same as above", LIGHT]},
        {"antigen": ["unpublished", ANTIGEN]},
        {"heavy": ["VH", HEAVY], "light": ["VL", LIGHT]},  # the header of another file
    ],
)
def test_words_are_not_read_as_sequences(cells):
    others = {} if "antibody" in cells else {"heavy": HEAVY}
    frame = pd.DataFrame({**others, "antigen": ANTIGEN, **cells})
    with pytest.raises(abag.AbagError, match=r"holds names|is a word, not a sequence"):
        abag.plan(frame)


@pytest.mark.parametrize("text", ["GlyIleLeuGlyPheVal", "ALA GLY SER VAL"])
def test_codes_of_three_letters_are_not_read_as_residues(text):
    frame = pd.DataFrame({"heavy": [HEAVY, HEAVY], "antigen": [text, ANTIGEN]})
    with pytest.raises(abag.SequenceError, match=r"row 1.*has codes of three letters.*Convert it"):
        read_sequences(frame)


@pytest.mark.parametrize("text", [*PEPTIDES, "hhhhhh", "DYKDDDDK", "YIGSR"])
def test_peptides_are_read_as_antigens(text):
    read = read_sequences(pd.DataFrame({"heavy": [HEAVY], "antigen": [text]}))
    assert chains_of(read, "antigen") == [(text.upper(),)]


@pytest.mark.parametrize("texts", [[ANTIGEN + "*", ANTIGEN[1:] + "*"], ["SIINFEKL*", "YIGSR*"]])
def test_antigens_that_end_in_a_stop_codon_are_no_names(texts):
    frame = pd.DataFrame({"heavy": HEAVY, "antigen": texts})
    assert chains_of(read_sequences(frame), "antigen") == [(text.rstrip("*"),) for text in texts]
    inside = frame.assign(antigen=[f"{text[:5]}*{text[5:]}" for text in texts])
    with pytest.raises(abag.AbagError, match=r"character '\*' at position") as caught:
        abag.plan(inside)
    assert "holds names" not in str(caught.value)


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".jsonl"])
@pytest.mark.parametrize("column", ["antigen", "antigen_name"])
def test_an_antigen_called_na_is_a_name(tmp_path, suffix, column, as_written):
    path = write_fasta(tmp_path / "a.fasta", [("NA", ANTIGEN), ("HA", ANTIGEN[:40])])
    table = pd.DataFrame({"heavy": HEAVY, column: ["NA", "HA", "NA"], "pKd": ["7", "NA", "8"]})
    if suffix == ".csv":
        table.to_csv(tmp_path / "t.csv", index=False)
    elif suffix == ".jsonl":
        table.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    else:
        table.to_excel(tmp_path / "t.xlsx", index=False)
    read = read_sequences(tmp_path / f"t{suffix}", sequences=(path,), as_written=as_written)
    assert chains_of(read, "antigen") == [(ANTIGEN,), (ANTIGEN[:40],), (ANTIGEN,)]
    if not as_written:
        assert read.frame["pKd"].isna().tolist() == [False, True, False]


def test_na_that_no_file_names_is_an_empty_cell(tmp_path):
    path = write_fasta(tmp_path / "a.fasta", [("HA", ANTIGEN), ("spike", ANTIGENS["HIV-1 gp120"])])
    table = pd.DataFrame({"heavy": HEAVY, "light": ["NA", LIGHT], "antigen": ["spike", "HA"]})
    table.to_csv(tmp_path / "t.csv", index=False)
    read = read_sequences(tmp_path / "t.csv", sequences=(path,))
    assert chains_of(read, "antibody") == [(HEAVY, ""), (HEAVY, LIGHT)]
    pd.concat([table, table.assign(antigen="NA")]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(abag.AbagError, match=r"2 rows are bad[^$]*empty antigen chain"):
        read_sequences(tmp_path / "t.csv", sequences=(path,))


def test_a_table_of_names_alone_proposes_the_option(tmp_path):
    table = pd.DataFrame({"antibody": ["mAb-1", "mAb-2"], "antigen": ["HER2 ECD"] * 2})
    with pytest.raises(ColumnError, match="--sequences FILE"):
        read_sequences(table)


def test_one_antigen_may_come_from_a_file(tmp_path):
    path = write_fasta(tmp_path / "her2.fasta", [("HER2 ECD", ANTIGENS["HER2 ECD"])])
    read = read_sequences(pd.DataFrame({"heavy": [HEAVY]}), antigen=path)
    assert chains_of(read, "antigen") == [(ANTIGENS["HER2 ECD"],)]
    two = write_fasta(tmp_path / "two.fasta", [*ANTIGENS.items()])
    with pytest.raises(TableError, match="holds 2 sequences"):
        abag.plan(pd.DataFrame({"heavy": [HEAVY]}), antigen=two)


@pytest.mark.ci
def test_a_run_of_names_is_continued_when_the_files_have_moved(tmp_path):
    pairs = demo_table().head(60)
    names = pairs[["heavy", "light"]].drop_duplicates()
    names.insert(0, "name", [f"ab{n}" for n in range(len(names))])
    names.to_csv(tmp_path / "names.csv", index=False)
    table = pairs.merge(names, on=["heavy", "light"])[["name", "antigen", "pKd"]]
    store = tmp_path / "store"
    options = {"split": "random", "epochs": 1, "device": "cpu"}
    named = {"sequences": [tmp_path / "names.csv"]}
    abag.embed_table(table, store, "composition", "composition", **named)
    first = abag.fit(table, store, tmp_path / "run", report=False, **named, **options)
    (tmp_path / "names.csv").rename(tmp_path / "moved.csv")
    named = {"sequences": [tmp_path / "moved.csv"]}
    assert abag.fit(table, store, tmp_path / "run", report=False, **named, **options) == first
    # other sequences of the names are other pairs
    changed = names.assign(heavy=names["heavy"].str.replace("W", "Y"))
    changed.to_csv(tmp_path / "moved.csv", index=False)
    abag.embed_table(table, store, "composition", "composition", **named)
    with pytest.raises(abag.AbagError, match="sequences, labels or features of the table differ"):
        abag.fit(table, store, tmp_path / "run", report=False, **named, **options)


LIKE_NUMBERS = ["1.1", "1.10", "0012", "12", "4E10", "-1", "1e400", "12.0"]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.xlsx", "t.parquet", "frame"])
def test_names_that_look_like_numbers_are_read_as_they_are_written(tmp_path, name):
    heavy = named_like_numbers(tmp_path / "ab.fasta", LIKE_NUMBERS)
    table = pd.DataFrame({"clone": LIKE_NUMBERS, "antigen": ANTIGENS["HER2 ECD"], "pKd": "7.10"})
    writers = {
        "csv": lambda path: table.to_csv(path, index=False),
        "tsv": lambda path: table.to_csv(path, sep="\t", index=False),
        "jsonl": lambda path: table.to_json(path, orient="records", lines=True),
        "xlsx": lambda path: table.to_excel(path, index=False),
        "parquet": table.to_parquet,
    }
    source = tmp_path / name
    if source.suffix:
        writers[source.suffix[1:]](source)
    options = {"sequences": (str(tmp_path / "ab.fasta"),)}
    for as_written in (False, True):
        read = read_sequences(source if source.suffix else table, **options, as_written=as_written)
        assert chains_of(read, "antibody") == [(chain, "") for chain in heavy]
        assert read.frame["clone"].tolist() == LIKE_NUMBERS
    first = next(
        iter(read_chunks([source if source.suffix else table, table.assign(x=1)], **options))
    )
    assert chains_of(first, "antibody") == [(chain, "") for chain in heavy]


@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("name", ["m.csv", "m.xlsx"])
def test_names_of_a_matrix_that_look_like_numbers_are_text(tmp_path, name, side):
    names = ["1.1", "1.10", "0012", "12"]
    heavy = named_like_numbers(tmp_path / "ab.fasta", names)
    write_fasta(tmp_path / "ag.fasta", [("1.1", "MKTAYIAKQRQISFVK"), ("1.10", "MRVKEKYQHLWRWGWR")])
    cells = pd.DataFrame({"clone": names, "1.1": [7.5, 8, 9, 6], "1.10": [6.5, 7, 8, 9]})
    getattr(cells, "to_csv" if name == "m.csv" else "to_excel")(tmp_path / name, index=False)
    files = (str(tmp_path / "ab.fasta"), str(tmp_path / "ag.fasta"))
    read = read_sequences(tmp_path / name, sequences=files, matrix=True)
    if side == "rows":
        assert chains_of(read, "antibody")[::2] == [(chain, "") for chain in heavy]
    else:
        assert read.frame["antigen"].tolist() == ["1.1", "1.10"] * 4
        assert len(read.antigens.chains) == 2


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
def test_names_may_be_the_index_of_a_series(tmp_path, suffix):
    series = pd.Series({"spike": 4 * "MKTAYIAKQRQ", "omicron": 4 * "MKTAYIAKQRE"}, name="sequence")
    path = tmp_path / f"names.{suffix}"
    series.to_csv(path) if suffix == "csv" else series.to_excel(path)
    table = pd.DataFrame({"heavy": HEAVY, "antigen": [*series.index], "pKd": [6, 7]})
    read = read_sequences(table, sequences=(str(path),))
    assert chains_of(read, "antigen") == [(chain,) for chain in series]


def test_codes_that_begin_with_zeros_are_names_in_a_column_of_any_name(tmp_path):
    names = ["000", "001", "010", "110"]
    heavy = named_like_numbers(tmp_path / "ab.fasta", names)
    table = pd.DataFrame({"genotype": names, "antigen": "MKTAYIAKQRQISFVK", "pKd": [6, 7, 8, 9]})
    table.to_csv(tmp_path / "t.csv", index=False)
    read = read_sequences(tmp_path / "t.csv", sequences=(str(tmp_path / "ab.fasta"),))
    assert chains_of(read, "antibody") == [(chain, "") for chain in heavy]


def test_a_name_that_is_a_number_in_a_spreadsheet_has_no_point(tmp_path):
    heavy = named_like_numbers(tmp_path / "ab.fasta", ["12", "1000"])
    book = openpyxl.Workbook()
    for row in (
        ["clone", "antigen", "pKd"],
        [12.0, "MKTAYIAKQRQISFVK", 8],
        [1e3, "MKTAYIAKQRQISFVK", 7],
    ):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    read = read_sequences(tmp_path / "t.xlsx", sequences=(str(tmp_path / "ab.fasta"),))
    assert chains_of(read, "antibody") == [(chain, "") for chain in heavy]


def test_a_workbook_may_hold_measurements_and_sequences_in_sheets_of_their_own(tmp_path):
    book = openpyxl.Workbook()
    sheets = {
        "Notes": [["Made by hand"]],
        "KD": [["clone", "target", "KD (nM)"], ["tras", "peptide", 1.5], ["d13", "peptide", 20]],
        "Antibodies": [["name", "VH", "VL"], ["tras", HEAVY, LIGHT], ["d13", D13_HEAVY, D13_LIGHT]],
        "Targets": [["name", "sequence"], ["peptide", "MKTAYIAKQRQISFVKSHFSRQ"]],
    }
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    del book["Sheet"]
    path = tmp_path / "book.xlsx"
    book.save(path)
    said = []
    with reporting(said.append):
        read = read_sequences(path, sheet="KD", sequences=(str(path),))
    assert chains_of(read, "antibody") == [(HEAVY, LIGHT), (D13_HEAVY, D13_LIGHT)]
    assert said == ["book.xlsx: sequences are read from sheets 'Antibodies', 'Targets'"]
    del book["Antibodies"], book["Targets"]
    book.save(path)
    with pytest.raises(AbagError, match=r"--sequences .*: no column for sequences"):
        read_sequences(path, sheet="KD", sequences=(str(path),))
    (tmp_path / "broken.xlsx").write_bytes(path.read_bytes()[:900])
    with pytest.raises(AbagError, match=r"broken\.xlsx: cannot be read"):
        read_sequences(path, sheet="KD", sequences=(str(tmp_path / "broken.xlsx"),))


def test_nucleotides_in_a_file_of_names_are_not_read_as_residues(tmp_path):
    genes = write_fasta(
        tmp_path / "genes.fasta", [("tras", "GATCTGGAAGCT" * 30), ("ag", "GATC" * 60)]
    )
    table = pd.DataFrame({"antibody": ["tras", "tras"], "antigen": ["ag", "ag"]})
    for role in ("antibody", "antigen"):
        others = {"antigen": ANTIGENS["HER2 ECD"]} if role == "antibody" else {"antibody": HEAVY}
        with pytest.raises(AbagError, match=f"'{role}': 'GATC.* holds nucleotides; expected amino"):
            read_sequences(table.assign(**others), sequences=(genes,))
    named = table.assign(antibody=HEAVY)[["antibody"]]
    with pytest.raises(AbagError, match="holds nucleotides; expected amino"):
        read_sequences(named, sequences=(genes,), antigen="ag")
    variants = pd.DataFrame({"mutations": ["H:D1A"]})
    with pytest.raises(AbagError, match="holds nucleotides; expected amino"):
        read_sequences(variants, sequences=(genes,), parent="tras", antigen=ANTIGENS["HER2 ECD"])
