"""Variants as other programs write them, and what is said of several tables and of refusals."""

import pandas as pd
import pytest
from invoke import PLAIN_ENCODERS, run
from reading import read_sequences
from trastuzumab import D13_HEAVY, D13_LIGHT, HEAVY, LIGHT

import abag
from abag import ColumnError, OptionError, SequenceError, TableError

PARENT = f"{HEAVY}|{LIGHT}"
ANTIGEN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEK"


def replaced(chain, position, residue):
    """Return a chain with the residue at a position, from 1, replaced."""
    return chain[: position - 1] + residue + chain[position:]


def chains_of(table, **options):
    pairs = read_sequences(table, **{"antigen": ANTIGEN, "parent": PARENT} | options)
    return [pairs.antibodies.chains[of] for of in pairs.antibodies.of_row], pairs


def test_a_round_of_evolvepro_has_no_wild_type_residues_and_says_so(tmp_path):
    table = pd.DataFrame({"Variant": ["WT", "50G", "107W"], "activity": [1.0, 1.2, 0.7]})
    table.to_excel(tmp_path / "round.xlsx", index=False)
    chains, pairs = chains_of(tmp_path / "round.xlsx", parent=HEAVY)
    heavies = [HEAVY, replaced(HEAVY, 50, "G"), replaced(HEAVY, 107, "W")]
    assert chains == [(heavy, "") for heavy in heavies]
    assert any("such as '50G' name no wild-type residue" in note for note in pairs.notes)


def test_positions_with_letters_are_no_column_of_mutations():
    table = pd.DataFrame({"position": ["52A", "100B"], "pKd": [8.0, 9.0]})
    with pytest.raises(ColumnError, match="no column holds mutations"):
        chains_of(table)


@pytest.mark.parametrize(
    "options", [{"numbering": "kabat"}, {"numbering": "kabat", "first_residue": 331}]
)
def test_a_scheme_numbers_antibodies_and_antigens_stay_sequential(options):
    first = options.get("first_residue", 1)
    table = pd.DataFrame(
        {"mutations": ["H:Y100aA"], "of_antigen": [f"K{first + 1}R"], "pKd": [8.0]}
    )
    chains, pairs = chains_of(table, columns={"antigen_mutations": "of_antigen"}, **options)
    assert HEAVY[104] == "Y"
    assert chains == [(replaced(HEAVY, 105, "A"), LIGHT)]  # Y100a of trastuzumab is residue 105
    assert pairs.antigens.chains == [(replaced(ANTIGEN, 2, "R"),)]


def test_the_first_residue_is_that_of_the_antigen_where_both_sides_have_mutations():
    table = pd.DataFrame({"mutations": ["H:R50G"], "of_antigen": ["K332R"], "pKd": [8.0]})
    columns = {"antigen_mutations": "of_antigen"}
    chains, pairs = chains_of(table, columns=columns, first_residue=331)
    assert chains == [(replaced(HEAVY, 50, "G"), LIGHT)]
    assert pairs.antigens.chains == [(replaced(ANTIGEN, 2, "R"),)]


def test_the_first_residue_of_an_antibody_needs_sequential_numbers():
    with pytest.raises(OptionError, match="--first-residue 331"):
        abag.PlanOptions(parent=PARENT, numbering="kabat", first_residue=331)


def test_a_parent_that_is_a_name_is_refused():
    table = pd.DataFrame({"mutations": ["H:R50G"], "pKd": [8.0]})
    with pytest.raises(SequenceError, match=r"--parent trastuzumab: has 11 residues.*--sequences"):
        chains_of(table, parent="trastuzumab")


def test_one_of_several_antibodies_of_a_file_is_a_parent_by_its_name(tmp_path):
    path = tmp_path / "two.fasta"
    records = [("a_H", HEAVY), ("a_L", LIGHT), ("b_H", D13_HEAVY), ("b_L", D13_LIGHT)]
    path.write_text("".join(f">{name}\n{chain}\n" for name, chain in records))
    table = pd.DataFrame({"mutations": ["H:R50G"], "pKd": [8.0]})
    with pytest.raises(TableError, match=r"--sequences '.*two\.fasta' --parent NAME"):
        chains_of(table, parent=str(path))
    chains, _ = chains_of(table, parent="a", sequences=(str(path),))
    assert chains == [(replaced(HEAVY, 50, "G"), LIGHT)]


def test_a_light_chain_with_an_unclear_name_is_not_left_out(tmp_path):
    path = tmp_path / "two.fasta"
    records = [("mab1_H", HEAVY), ("MAb1_L", LIGHT), ("MAB1_L", D13_LIGHT), ("D1.3", D13_HEAVY)]
    path.write_text("".join(f">{name}\n{chain}\n" for name, chain in records))
    table = pd.DataFrame({"antibody": ["mab1", "D1.3"], "pKd": [8.0, 9.0]})
    with pytest.raises(SequenceError, match="did you mean 'MAB1' or 'MAb1'"):
        abag.plan(table, antigen=ANTIGEN, sequences=(str(path),))


def test_a_table_of_mutations_alone_is_refused_with_the_option_that_reads_it():
    table = pd.DataFrame({"variant": ["H:R50G", "H:Y52A"], "pKd": [8.0, 7.0]})
    with pytest.raises(ColumnError, match=r"Column 'variant' holds mutations, .*--parent"):
        read_sequences(table, antigen=ANTIGEN)


def test_the_antibodies_of_a_matrix_may_be_mutations(tmp_path):
    table = pd.DataFrame({"variant": ["WT", "H:R50G"], "HER2": [8.0, 9.0], "HEL": ["", "7"]})
    table.to_csv(tmp_path / "matrix.csv", index=False)
    antigens = pd.DataFrame({"name": ["HER2", "HEL"], "sequence": [ANTIGEN, ANTIGEN[:40]]})
    antigens.to_csv(tmp_path / "antigens.csv", index=False)
    chains, pairs = chains_of(
        tmp_path / "matrix.csv",
        matrix=True,
        antigen=None,
        sequences=(str(tmp_path / "antigens.csv"),),
    )
    variant = (replaced(HEAVY, 50, "G"), LIGHT)
    assert chains == [(HEAVY, LIGHT), variant, variant]
    assert pairs.row_numbers.tolist() == [2, 3, 3]
    assert not any("ignored" in note for note in pairs.notes)


def test_embed_says_what_was_done_to_each_of_several_tables(tmp_path):
    first = pd.DataFrame({"heavy": [HEAVY], "light": [LIGHT], "antigen": [ANTIGEN]})
    second = pd.DataFrame({"VH": [D13_HEAVY], "VL": [D13_LIGHT], "target": [ANTIGEN]})
    first.assign(antibody="x").to_csv(tmp_path / "a.csv", index=False)
    second.assign(antibody="x").to_csv(tmp_path / "b.csv", index=False)
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    said = run("embed", *files, "--store", tmp_path / "store", *PLAIN_ENCODERS).stderr
    assert "a.csv, b.csv: 2 rows" in said
    for name in ("a.csv", "b.csv"):
        assert f"{name}: column 'antibody' is ignored" in said
    assert "'VH' as 'heavy'" in said
    assert abag.open_store(tmp_path / "store").vectors("antibody", [(D13_HEAVY, D13_LIGHT)]).any()


def test_variants_are_evaluated_and_crossed_as_their_sequences_are(tmp_path):
    residues = "ACDEFGHIKLMNPQRSTVWY"
    variants = [(at, residue) for at in (99, 101, 103) for residue in residues]
    mutations = [f"H:{HEAVY[at - 1]}{at}{residue}" for at, residue in variants]
    pkd = [7 + 0.1 * residues.index(residue) + 0.01 * at for at, residue in variants]
    whole = pd.DataFrame(
        {
            "heavy": [replaced(HEAVY, at, residue) for at, residue in variants],
            "light": LIGHT,
            "antigen": ANTIGEN,
            "pKd": pkd,
        }
    )
    store = tmp_path / "store"
    out = tmp_path / "run"
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(whole, store, device="cpu", **encoders)
    abag.fit(whole, store, out, split="random", epochs=1, device="cpu")
    named = pd.DataFrame({"variant": mutations, "pKd": pkd})
    parent = tmp_path / "parent.fasta"
    parent.write_text(f">parent_H\n{HEAVY}\n>parent_L\n{LIGHT}\n")
    summary = abag.evaluate(out, table=named, store=store, parent=parent, antigen=ANTIGEN)
    assert summary["table"] == abag.evaluate(out, table=whole, store=store)["table"]
    changed = pd.DataFrame({"name": ["HER2", "HER2"], "change": ["WT", "K2R"]})
    antigens = tmp_path / "antigens.fasta"
    antigens.write_text(f">HER2\n{ANTIGEN}\n")
    same = f"H:{HEAVY[98]}99{HEAVY[98]}"  # as the parent, so that "variant" differs for a sequence
    abag.predict(
        named.head(3).assign(variant=["WT", same, "H:R50A"]),
        out,
        tmp_path / "crossed.csv",
        cross=changed,
        store=store,
        parent=parent,
        sequences=[antigens],
        columns={"antigen_mutations": "change"},
    )
    crossed = pd.read_csv(tmp_path / "crossed.csv")
    assert crossed["variant"].tolist() == ["WT", "WT", "H:R50A", "H:R50A"]
    assert crossed["change"].tolist() == ["WT", "K2R"] * 2
    for option in ({"parent": parent}, {"numbering": "imgt"}):
        with pytest.raises(OptionError, match=f"^{next(iter(option))}: given without a TABLE"):
            abag.evaluate(out, **option)
