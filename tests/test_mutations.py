"""Variants that are written as mutations of a parent are read as their sequences."""

import pandas as pd
import pytest
from reading import read_labels, read_sequences
from trastuzumab import HEAVY, LIGHT

import abag
from abag import ColumnError, OptionError, PlanOptions, SequenceError
from abag.embed.tables.layout import LayoutRecord, RecordedColumn
from abag.embed.tables.mutations import BadMutation, MutationRules, mutate, read_mutations
from abag.embed.tables.pairs import read_pairs

RBD = "NITNLCPFGEVFNATRFASVYAWNRKRISNCVADYSVLYNSASFSTFKCYG"  # from residue 331 of the spike
ANTIBODY = MutationRules(kind="antibody")
ANTIGEN = MutationRules(kind="antigen")
ONE_TO_THREE = {
    "A": "Ala", "R": "Arg", "N": "Asn", "D": "Asp", "C": "Cys", "Q": "Gln", "E": "Glu", "G": "Gly",
    "H": "His", "I": "Ile", "L": "Leu", "K": "Lys", "M": "Met", "F": "Phe", "P": "Pro", "S": "Ser",
    "T": "Thr", "W": "Trp", "Y": "Tyr", "V": "Val",
}  # fmt: skip


def exchanged(chain, *changes):
    """Exchange residues by their places, from 1, with plain lists."""
    residues = [*chain]
    for place, residue in changes:
        residues[place - 1] = residue
    return "".join(residues)


def variants(table, **options):
    read = read_sequences(table, **options)
    return [read.antibodies.chains[i] for i in read.antibodies.of_row]


def named(chain, place, residue):
    return f"{chain[place - 1]}{place}{residue}"


@pytest.mark.parametrize(
    "text",
    [
        "H:{0},L:{1}", "H:{0};L:{1}", "H:{0}/L:{1}", "H:{0} L:{1}", "H_{0}_L_{1}", "VH:{0}, VL:{1}",
        "heavy:{0}|light:{1}", "h:{0}+l:{1}", "H:{0}:L:{1}", " H-{0} & L-{1} ", "HC:{0} , LC:{1}",
        "H.{0},L.{1}", "Heavy chain {0}; light chain {1}",
    ],
)  # fmt: skip
def test_mutations_of_both_chains_in_all_ways_of_writing_them(text):
    heavy = named(HEAVY, 33, "A")
    light = named(LIGHT, 91, "K")
    expected = (exchanged(HEAVY, (33, "A")), exchanged(LIGHT, (91, "K")))
    table = pd.DataFrame({"mutations": [text.format(heavy, light)]})
    assert variants(table, parent=f"{HEAVY}|{LIGHT}", antigen=RBD) == [expected]


def test_both_chains_in_order_where_one_cell_has_the_parent_of_a_chain():
    first, second = named(HEAVY, 33, "A"), named(HEAVY, 50, "K")
    light = named(LIGHT, 32, "Y")
    cells = ["WT:WT", f"{first}/{second}:WT", f"WT:{light}", f"{first}:{light}", "WT"]
    table = pd.DataFrame({"mutation": cells})
    expected = [
        (HEAVY, LIGHT),
        (exchanged(HEAVY, (33, "A"), (50, "K")), LIGHT),
        (HEAVY, exchanged(LIGHT, (32, "Y"))),
        (exchanged(HEAVY, (33, "A")), exchanged(LIGHT, (32, "Y"))),
        (HEAVY, LIGHT),
    ]
    parent = f"{HEAVY}|{LIGHT}"
    assert variants(table, parent=parent, antigen=RBD) == expected
    notes = read_sequences(table, parent=parent, antigen=RBD).notes
    assert sum("before ':' are of the heavy chain" in note for note in notes) == 1
    # both may be of one chain
    assert "names no chain" in refusal([f"{first}:{light}", "WT"], parent=parent)
    assert "has 3 parts" in refusal([f"{first}:WT", f"{first}:{light}:WT"], parent=parent)
    # of antigens, nothing is guessed
    columns = {"antigen_mutations": "mutant"}
    of_antigen = f"{named(RBD, 5, 'A')}:WT"
    assert "not understood" in refusal([of_antigen], parent=parent, columns=columns)


@pytest.mark.parametrize("text", ["Ser52aThr", "p.Ser52AThr", "S52Athr", "H:S52aT"])
def test_positions_with_letters_are_understood_beside_codes_of_three_letters(text):
    (mutation,) = read_mutations(text)
    assert (mutation.wild, mutation.position, mutation.residues) == ("S", "52A", "T")


def test_a_chain_holds_for_the_mutations_that_follow_it():
    first = named(HEAVY, 33, "A")
    second = named(HEAVY, 50, "K")
    text = f"VH: {first}, {second}; VL: {named(LIGHT, 32, 'Y')}"
    expected = f"{exchanged(HEAVY, (33, 'A'), (50, 'K'))}|{exchanged(LIGHT, (32, 'Y'))}"
    assert mutate(f"{HEAVY}|{LIGHT}", text, ANTIBODY) == expected


@pytest.mark.parametrize("text", [
    "", "WT", "wt", "wild-type", "Wildtype", "wild type", "-", "_wt", "_sy", "parent", "p.=",
])  # fmt: skip
def test_what_has_no_mutation_is_the_parent(text):
    assert mutate(HEAVY, text, ANTIBODY) == HEAVY


@pytest.mark.parametrize("text", [
    "{0}:{1}", "{0},{1}", "{0}_{1}", "{0} {1}", "{0}+{1}", "p.[{2};{3}]", "{2};{3}", "p.{2};p.{3}",
    "NP_000537.3:p.[{2};{3}]", "{4},{5}",
])  # fmt: skip
def test_tables_of_deep_mutational_scans(text):
    first = named(RBD, 5, "A")
    second = named(RBD, 20, "W")
    long = [f"{ONE_TO_THREE[m[0]]}{m[1:-1]}{ONE_TO_THREE[m[-1]]}" for m in (first, second)]
    cell = text.format(first, second, *long, first.lower(), second.lower())
    assert mutate(RBD, cell, ANTIGEN) == exchanged(RBD, (5, "A"), (20, "W"))


def test_the_notation_of_skempi_has_the_chain_behind_the_wild_type():
    place = 52
    text = f"{HEAVY[place - 1]}H{place}G,{LIGHT[30 - 1]}L{30}D"
    expected = f"{exchanged(HEAVY, (place, 'G'))}|{exchanged(LIGHT, (30, 'D'))}"
    assert mutate(f"{HEAVY}|{LIGHT}", text, ANTIBODY) == expected


def test_deletions_and_insertions():
    first = RBD[9]
    second = RBD[10]
    assert mutate(RBD, f"{first}10del", ANTIGEN) == RBD[:9] + RBD[10:]
    assert mutate(RBD, f"{first}10-", ANTIGEN) == RBD[:9] + RBD[10:]
    assert mutate(RBD, f"{first}10_{second}11del", ANTIGEN) == RBD[:9] + RBD[11:]
    assert mutate(RBD, f"{first}10_{second}11insGGS", ANTIGEN) == RBD[:10] + "GGS" + RBD[10:]
    text = f"{first}10_{second}11insGG,{RBD[4]}5W,{RBD[19]}20del"
    expected = RBD[:4] + "W" + RBD[5:10] + "GG" + RBD[10:19] + RBD[20:]
    assert mutate(RBD, text, ANTIGEN) == expected


# Published positions of trastuzumab (hu4D5-8), Kabat numbering: Kelley and O'Connell 1993,
# Biochemistry 32:6828; the sequence has R50, W95 and Y100a of the heavy chain at 50, 99 and 105.
KABAT = {
    "R50A": 50,
    "P52aA": 53,
    "W95A": 99,
    "G97A": 101,
    "F100A": 104,
    "Y100aA": 105,
    "D101A": 108,
}
KABAT_LIGHT = {"N30A": 30, "F53A": 53, "H91A": 91, "Y92A": 92, "T94A": 94}


@pytest.mark.parametrize("scheme", ["kabat", "chothia"])
def test_published_positions_with_letters(scheme):
    table = pd.DataFrame({"mutant": [f"H:{m}" for m in KABAT] + [f"L:{m}" for m in KABAT_LIGHT]})
    read = variants(table, parent=f"{HEAVY}|{LIGHT}", antigen=RBD, numbering=scheme)
    expected = [(exchanged(HEAVY, (place, "A")), LIGHT) for place in KABAT.values()]
    expected += [(HEAVY, exchanged(LIGHT, (place, "A"))) for place in KABAT_LIGHT.values()]
    assert read == expected


# IGKV4-1 and IGHV4-39, whose first CDRs have six and two residues more: Kabat places them at 27A to
# 27F and at 35A and 35B, Chothia at 30A to 30F and at 31A and 31B (Al-Lazikani et al. 1997,
# J Mol Biol 273:927)
LONG_L1 = (
    "DIVMTQSPDSLAVSLGERATINCKSSQSVLYSSNNKNYLAWYQQKPGQPPKLLIYWASTRESGVPDRFSGSGSGTDFTLTISSLQAEDVAVYYCQQ"
    "YYSTPLTFGQGTKVEIK"
)
LONG_H1 = (
    "QLQLQESGPGLVKPSETLSLTCTVSGGSISSSSYYWGWIRQPPGKGLEWIGSIYYSGSTYYNPSLKSRVTISVDTSKNQFSLKLSSVTAADTAVYY"
    "CARDYYGSYFDYWGQGTLVTVSS"
)


@pytest.mark.parametrize(
    ("scheme", "light", "heavy"),
    [
        ("kabat", ["S27AA", "S27FA", "N28A"], ["W35AA", "G35BA", "W36A"]),
        ("chothia", ["Y30AA", "K30FA", "N31A"], ["S31AA", "S31BA", "Y32A"]),
    ],
)
def test_kabat_and_chothia_place_insertions_differently(scheme, light, heavy):
    after_cysteine = LONG_L1.index("CKSSQ") + 1  # of residue 24
    steps = {"kabat": (4, 9, 10), "chothia": (7, 12, 13)}[scheme]
    light_places = [after_cysteine + 1 + step for step in steps]
    tryptophan = LONG_H1.index("WIRQ") + 1  # residue 36
    steps = {"kabat": (-2, -1, 0), "chothia": (-6, -5, -4)}[scheme]
    heavy_places = [tryptophan + step for step in steps]
    cells = [f"L:{m}" for m in light] + [f"H:{m}" for m in heavy]
    read = variants(
        pd.DataFrame({"m": cells}), parent=f"{LONG_H1}|{LONG_L1}", antigen=RBD, numbering=scheme
    )
    expected = [(LONG_H1, exchanged(LONG_L1, (place, "A"))) for place in light_places]
    expected += [(exchanged(LONG_H1, (place, "A")), LONG_L1) for place in heavy_places]
    assert read == expected


def test_imgt_numbers_of_conserved_residues():
    # the cysteines 23 and 104 and the tryptophans 41 and 118 of IMGT
    cysteines = [at for at, residue in enumerate(HEAVY, 1) if residue == "C"]
    j_motif = HEAVY.index("WGQG") + 1
    table = pd.DataFrame({"mutant": ["C23A", "C104A", "W118A"]})
    read = variants(table, parent=f"{HEAVY}|", antigen=RBD, numbering="imgt")
    places = [cysteines[0], cysteines[1], j_motif]
    assert read == [(exchanged(HEAVY, (place, "A")), "") for place in places]


def test_a_single_chain_parent_is_numbered_as_it_is_given():
    linker = "GGGGSGGGGSGGGGS"
    parent = HEAVY + linker + LIGHT
    place = len(HEAVY + linker) + 30
    table = pd.DataFrame({"variant": ["WT", named(parent, place, "W"), named(parent, 3, "K")]})
    expected = [
        (HEAVY, LIGHT),
        (HEAVY, exchanged(LIGHT, (30, "W"))),
        (exchanged(HEAVY, (3, "K")), LIGHT),
    ]
    assert variants(table, parent=parent, antigen=RBD) == expected


def test_a_parent_from_a_fasta_file_whose_chains_are_told_by_content(tmp_path):
    (tmp_path / "wt.fasta").write_text(f">4D5 one\n{LIGHT}\n>4D5 two\n{HEAVY}\n")
    table = pd.DataFrame({"mutant": [f"H:{named(HEAVY, 33, 'A')}", None], "n": [1, 2]})
    read = variants(table, parent=str(tmp_path / "wt.fasta"), antigen=RBD)
    assert read == [(exchanged(HEAVY, (33, "A")), LIGHT), (HEAVY, LIGHT)]


def test_variants_of_the_antigen_are_of_the_antigen_of_the_row_or_of_all():
    cells = [f"{RBD[170 - 166]}{170 - 166 + 331}K", "WT"]
    options = {"columns": {"antigen_mutations": "mutant"}, "first_residue": 331}
    table = pd.DataFrame({"heavy": [HEAVY] * 2, "mutant": cells})
    expected = [(exchanged(RBD, (5, "K")),), (RBD,)]
    column = RecordedColumn(role="antigen_mutations", name="antigen", given=True)
    of_run = LayoutRecord(columns=(column,), antigen=RBD, first_residue=331)
    renamed = table.rename(columns={"mutant": "antigen"})
    for read in (
        read_sequences(table, antigen=RBD, **options),
        read_pairs(renamed, PlanOptions(), remembered=of_run),
        read_sequences(table.assign(antigen=RBD), **options),
    ):
        assert [read.antigens.chains[i] for i in read.antigens.of_row] == expected
        assert not any("is ignored" in note for note in read.notes)


def test_one_column_with_the_mutations_of_both_sides():
    both = {"mutations": "Mutation", "antigen_mutations": "Mutation"}
    cells = [f"H:{named(HEAVY, 33, 'A')},A:{named(RBD, 5, 'K')}", f"A:{named(RBD, 6, 'K')}"]
    table = pd.DataFrame({"Mutation": cells})
    read = read_sequences(table, parent=f"{HEAVY}|{LIGHT}", antigen=RBD, columns=both)
    heavies = [read.antibodies.chains[i][0] for i in read.antibodies.of_row]
    assert heavies == [exchanged(HEAVY, (33, "A")), HEAVY]
    targets = [read.antigens.chains[i] for i in read.antigens.of_row]
    assert targets == [(exchanged(RBD, (5, "K")),), (exchanged(RBD, (6, "K")),)]


def test_mutations_of_antibodies_that_each_row_has(tmp_path):
    other = HEAVY.replace("W", "Y")
    column = {"columns": {"mutations": "mut"}}
    cells = [f"H:{named(HEAVY, 33, 'A')}", f"H:{named(other, 36, 'K')}"]
    table = pd.DataFrame({"heavy": [HEAVY, other], "light": [LIGHT] * 2, "mut": cells})
    expected = [(exchanged(HEAVY, (33, "A")), LIGHT), (exchanged(other, (36, "K")), LIGHT)]
    assert variants(table, antigen=RBD, **column) == expected
    # and of antibodies that each row names
    names = pd.DataFrame({"name": ["a", "b"], "heavy": [HEAVY, other], "light": [LIGHT] * 2})
    names.to_csv(tmp_path / "names.csv", index=False)
    table = pd.DataFrame({"clone": ["a", "b"], "mut": cells})
    sequences = (str(tmp_path / "names.csv"),)
    assert variants(table, antigen=RBD, sequences=sequences, **column) == expected


def refusal(cells, **options):
    with pytest.raises(BadMutation) as caught:
        variants(pd.DataFrame({"mutant": cells}), antigen=RBD, **options)
    return str(caught.value)


@pytest.mark.parametrize("others", [{}, {"antigen_mutations": "of_antigen"}])
def test_mutations_of_light_chains_alone_are_never_left_out(others):
    cells = {"l": [named(LIGHT, 91, "K"), "WT"], "of_antigen": ["WT", "WT"]}
    table = pd.DataFrame(cells | {"heavy": HEAVY, "light": LIGHT, "antigen": RBD})
    with pytest.raises(ColumnError, match="no column has the mutations of heavy chains"):
        read_sequences(table, columns={"light_mutations": "l", **others})
    (unchanged, changed) = sorted(
        read_sequences(table, columns={"mutations": "l"}).antibodies.chains,
        key=lambda chains: chains[1] != LIGHT,
    )
    assert unchanged == (HEAVY, LIGHT)
    assert changed == (HEAVY, exchanged(LIGHT, (91, "K")))


def test_every_wild_type_residue_is_checked_and_bad_rows_are_listed():
    good = named(HEAVY, 33, "A")
    text = refusal([good, "W33A", good, "W500A"], parent=f"{HEAVY}|")
    assert text.startswith("table: 2 rows are bad")
    message = (
        "row 2, column 'mutant': 'W33A': residue 33 of the heavy chain is Y, not W (sequential"
    )
    assert message in text
    assert "row 4, column 'mutant': 'W500A': the heavy chain has no residue 500" in text


def test_the_numbers_that_fit_are_proposed():
    kabat = [f"H:{m}" for m in KABAT]
    text = refusal(kabat, parent=f"{HEAVY}|{LIGHT}")
    assert text.endswith("\n  7 of 7 variants fit --numbering kabat or --numbering chothia.")
    assert text.count("7 of 7 variants") == 1
    by_chance = pd.DataFrame({"mutant": [*kabat, f"H:{named(HEAVY, 33, 'A')}"], "antigen": RBD})
    with pytest.raises(abag.TableError, match=r"6 of 8 cells .* 8 of 8 variants fit --numbering"):
        read_sequences(by_chance, parent=f"{HEAVY}|{LIGHT}", bad_rows="skip")
    shifted = [f"{HEAVY[at]}{at}A" for at in (3, 10, 20, 30, 50)]  # from 0, as Python counts
    assert "5 of 5 variants fit --first-residue 0" in refusal(shifted, parent=f"{HEAVY}|")
    for first in (1, 331):
        of_antigen = [f"{RBD[at]}{at + first}A" for at in (3, 10, 20, 30, 50)]
        number = f" --first-residue {first}" if first > 1 else ""
        said = f"5 of 5 variants fit the antigen: use --column antigen_mutations=mutant{number}."
        assert said in refusal(of_antigen, parent=f"{HEAVY}|{LIGHT}")


def test_letters_of_positions_are_not_proposed_for_antigens():
    options = {"antigen": RBD, "columns": {"antigen_mutations": "mutant"}}
    with pytest.raises(
        BadMutation, match=r"has no residue 52A \(sequential numbering; it has 1 to"
    ):
        variants(pd.DataFrame({"mutant": ["S52aT"], "heavy": HEAVY}), **options)


@pytest.mark.parametrize(("cell", "words"), [
    ("E1G,E1K", "changes a residue twice"), ("E1*", "is a stop codon"), ("p.Glu1Ter", "is a stop"),
    ("E1B", "B is not one of the 20 residues"), ("E1fs", "is a frame shift"),
    ("G1", "is not understood"), ("V2G and", "is not understood"), ("E1delinsGG", "understood"),
    ("E1_Q3insG", "3 does not follow 1"), ("A", "is one residue, without its position"),
])  # fmt: skip
def test_what_is_not_clear_is_refused(cell, words):
    assert words in refusal([cell, named(HEAVY, 3, "A")], parent=f"{HEAVY}|")


@pytest.mark.parametrize("cell", [
    "H:82a_82bdel", "H:R82a_82bdel", "82a-82bdel", "82a_S82bdel", "H:50_52del", "5_7del", "5_9A",
    "50A_52dup", "H:R50.9999999A", "R50.5AG", "R111.0A", "R111.27A", "R" + "9" * 5_000 + "A",
    "L:I30(H)V", "H:Y100(A)V", "X" * 100_000,
])  # fmt: skip
def test_what_may_be_read_in_two_ways_or_is_no_position_is_refused_in_a_short_line(cell):
    with pytest.raises(BadMutation) as refused:
        read_mutations(cell)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", [
    "{0}(H){1}", "{0}(VH){1}", "{0}(heavy){1}", "{0}{1}(H)", "{0}{1} (H)", "(H){0}{1}",
    "H({0}{1})", "VH({0}{1})", "{2}(H){3}",
])  # fmt: skip
def test_a_chain_in_parentheses_is_read(text):
    wild = HEAVY[32]
    long = (f"{ONE_TO_THREE[wild]}33", ONE_TO_THREE["K"])
    cell = text.format(f"{wild}33", "K", *long)
    both = f"{cell}, {LIGHT[31]}32(L)Y"
    assert mutate(f"{HEAVY}|{LIGHT}", cell, ANTIBODY) == f"{exchanged(HEAVY, (33, 'K'))}|{LIGHT}"
    expected = f"{exchanged(HEAVY, (33, 'K'))}|{exchanged(LIGHT, (32, 'Y'))}"
    assert mutate(f"{HEAVY}|{LIGHT}", both, ANTIBODY) == expected


def test_variants_of_an_antigen_without_an_antibody_are_told_to_give_one_for_all():
    table = pd.DataFrame({"mutant": ["N1A", "I2V"], "mut": ["N331A", "I332V"], "pKd": [7, 8]})
    with pytest.raises(ColumnError, match="all rows have one antibody, give it with --parent"):
        variants(table, antigen=RBD, columns={"antigen_mutations": "mutant"})


def test_names_of_antigens_that_read_as_mutations_are_none():
    table = pd.DataFrame({"clone": [named(HEAVY, 33, "A"), "WT"], "Target": "IL17A", "pKd": [7, 8]})
    changed = exchanged(HEAVY, (33, "A"))
    assert variants(table, parent=HEAVY, antigen=RBD) == [(changed, ""), (HEAVY, "")]


@pytest.mark.parametrize("names", [
    ("heavy_mutations", "light_mutations"), ("VH mut", "VL mut"), ("mutations_in_HC", "muts_L"),
    ("Mutations (heavy chain)", "Mutations (light chain)"), ("IgH_mutations", "IgK_mutations"),
    ("VH", "VL"), ("heavy", "light"),
])  # fmt: skip
def test_a_column_of_mutations_for_each_chain_is_read(names):
    heavy = named(HEAVY, 33, "A")
    light = f"{named(LIGHT, 32, 'Y')}; {named(LIGHT, 91, 'K')}"
    cells = {names[0]: [heavy, "WT", f"H:{heavy}", None], names[1]: [light, light, "", ""]}
    changed = exchanged(LIGHT, (32, "Y"), (91, "K"))
    changed_heavy = exchanged(HEAVY, (33, "A"))
    expected = [(changed_heavy, changed), (HEAVY, changed), (changed_heavy, LIGHT), (HEAVY, LIGHT)]
    parent = f"{HEAVY}|{LIGHT}"
    table = pd.DataFrame(cells).assign(pKd=[8.0, 7.0, 6.0, 5.0])
    assert variants(table, parent=parent, antigen=RBD) == expected
    both = read_sequences(table, parent=parent, antigen=RBD)
    assert not any("is ignored" in note for note in both.notes)
    chosen = {"mutations": names[0]}
    one = read_sequences(table, parent=parent, antigen=RBD, columns=chosen)
    assert f"column {names[1]!r} holds mutations that are not applied" in " ".join(one.notes)
    alone = table.drop(columns=names[0])
    assert variants(alone, parent=parent, antigen=RBD)[0] == (HEAVY, changed)
    other = table.assign(**{names[1]: f"H:{heavy}"})
    with pytest.raises(SequenceError, match=r"columns .* and .*is of chain H; expected L"):
        variants(other, parent=parent, antigen=RBD)
    with pytest.raises(ColumnError, match="called heavy_mutations and light_mutations"):
        variants(table.rename(columns={names[0]: "mutations"}), parent=parent, antigen=RBD)


def test_mutations_of_both_chains_are_read_beside_labels():
    cells = {"VH mut": [named(HEAVY, 33, "A")] * 2, "VL mut": ["WT", named(LIGHT, 32, "Y")]}
    table = pd.DataFrame(cells).assign(pKd=[8.0, 7.0])
    pairs = read_labels([table, table.head(1)], parent=f"{HEAVY}|{LIGHT}", antigen=RBD)
    changed = exchanged(HEAVY, (33, "A"))
    light = exchanged(LIGHT, (32, "Y"))
    assert {*pairs.table.antibodies.chains} == {(changed, LIGHT), (changed, light)}
    columns = {"light_mutations": "VL mut"}
    renamed = table.rename(columns={"VH mut": "mutations"})
    pairs = read_labels(renamed, parent=f"{HEAVY}|{LIGHT}", antigen=RBD, columns=columns)
    assert {*pairs.table.antibodies.chains} == {(changed, LIGHT), (changed, light)}


PARTS = pd.DataFrame({
    "wildtype": [HEAVY[32], HEAVY[32], None, HEAVY[98]], "site": [33, 33, None, 99],
    "mutation": ["A", "Lys", "WT", "-"], "pKd": [8.0, 7.0, 9.0, 6.0],
})  # fmt: skip


@pytest.mark.parametrize(
    ("names", "given"),
    [
        ({}, {}),
        ({"site": "pos", "wildtype": "wt_aa", "mutation": "mut_aa"}, {}),
        ({"site": "Position", "wildtype": "ref", "mutation": "Mutant residue"}, {}),
        ({"site": "our number"}, {"mutation_position": "our number"}),
        ({"mutation": "became"}, {"mutations": "became"}),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".xlsx"])
def test_mutations_whose_parts_stand_in_columns_are_read(names, given, suffix, tmp_path):
    table = PARTS.rename(columns=names)
    write = {".csv": table.to_csv, ".parquet": table.to_parquet, ".xlsx": table.to_excel}[suffix]
    write(tmp_path / f"t{suffix}", index=False)
    pairs = read_labels(tmp_path / f"t{suffix}", parent=HEAVY, antigen=RBD, columns=given)
    read = [pairs.table.antibodies.chains[i][0] for i in pairs.table.antibodies.of_row]
    whole = [exchanged(HEAVY, (33, "A")), exchanged(HEAVY, (33, "K")), HEAVY]
    assert read == [*whole, HEAVY[:98] + HEAVY[99:]]
    assert len({*table.columns} & {*pairs.table.columns.values()}) == 4  # none is said to be unused


def test_parts_of_mutations_are_checked_and_may_be_of_a_chain_or_antigen():
    parent = f"{HEAVY}|{LIGHT}"
    both = PARTS.assign(chain=["H", "heavy", "L", "H"])
    read = variants(both, parent=parent, antigen=RBD)
    assert [light for _, light in read] == 4 * [LIGHT]
    assert len({*read}) == 4
    with pytest.raises(SequenceError, match=r"columns 'wildtype', 'site' and 'mutation'.*no chain"):
        variants(PARTS, parent=parent, antigen=RBD)
    shifted = PARTS.assign(site=PARTS["site"] + 1)
    with pytest.raises(SequenceError, match=r"residue 34 of .*"):
        variants(shifted, parent=HEAVY, antigen=RBD)
    kabat = PARTS.head(2).assign(site="52A", wildtype="P")
    read = read_sequences(kabat, parent=HEAVY, antigen=RBD, numbering="kabat")
    assert not any("name no wild-type" in note for note in read.notes)
    two = PARTS.assign(position=PARTS["site"])
    with pytest.raises(ColumnError, match="with --column mutation_position=NAME if positions are"):
        variants(two, parent=HEAVY, antigen=RBD)
    unchecked = read_sequences(PARTS.drop(columns="wildtype"), parent=HEAVY, antigen=RBD)
    assert "no column has the wild-type residues" in " ".join(unchecked.notes)
    of_antigen = pd.DataFrame(
        {"VHH": HEAVY, "site": [331, 332], "wt": ["N", "I"], "mut": ["A", "V"]}
    )
    options = {"columns": {"antigen_mutations": "mut"}, "first_residue": 331, "antigen": RBD}
    read = read_sequences(of_antigen, **options)
    assert [chain[0][:3] for chain in read.antigens.chains] == ["AIT", "NVT"]
    with pytest.raises(SequenceError, match="give --column mutation_position=NAME"):
        variants(of_antigen.drop(columns="site"), **options)


def test_a_mutation_without_a_chain_of_two_is_refused():
    assert "names no chain; expected H:E1G or L:E1G" in refusal(["E1G"], parent=f"{HEAVY}|{LIGHT}")
    text = refusal(["D:E1G"], parent=f"{HEAVY}|{LIGHT}")
    assert "has no chain D; expected H and L" in text


def test_mutations_without_a_wild_type_as_in_evolvepro_are_read_and_said_to_be_unchecked():
    table = pd.DataFrame({"Variant": ["33K", "50W_99S", "WT", "H:3K"], "activity": [1, 2, 3, 4]})
    read = read_sequences(table, parent=f"{HEAVY}|", antigen=RBD)
    expected = [
        exchanged(HEAVY, (33, "K")),
        exchanged(HEAVY, (50, "W"), (99, "S")),
        HEAVY,
        exchanged(HEAVY, (3, "K")),
    ]
    assert [read.antibodies.chains[i][0] for i in read.antibodies.of_row] == expected
    assert "mutations such as '33K' name no wild-type residue" in " ".join(read.notes)
    assert "no residue 500" in refusal(["500G", "WT"], parent=f"{HEAVY}|")
    # the well of a plate is not a mutation
    wells = table.rename(columns={"Variant": "well"})
    with pytest.raises(ColumnError, match="no column holds mutations"):
        abag.plan(wells, parent=f"{HEAVY}|", antigen=RBD)


def test_letters_need_a_numbering_that_has_them():
    assert "--numbering imgt, kabat or chothia" in refusal(["P52aA"], parent=f"{HEAVY}|")


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(OptionError, match="each defines the antibody"):
        abag.PlanOptions(parent=HEAVY, columns={"heavy": "VH"})
    with pytest.raises(OptionError, match="--first-residue 331 and --numbering kabat"):
        abag.PlanOptions(first_residue=331, numbering="kabat")


def test_no_mutation_is_ever_lost():
    text = ",".join(
        named(HEAVY, place, "A" if HEAVY[place - 1] != "A" else "G") for place in range(1, 60)
    )
    assert len(read_mutations(text)) == 59
    assert sum(a != b for a, b in zip(mutate(HEAVY, text, ANTIBODY), HEAVY, strict=True)) == 59


def test_a_column_of_mutations_that_is_not_applied_is_said(tmp_path):
    cells = [named(HEAVY, place, "W") for place in (2, 3, 4, 5)]
    table = pd.DataFrame({"heavy": [HEAVY] * 4, "antigen": [RBD] * 4, "mutation": cells})
    (note,) = abag.plan(table)["notes"]
    assert "holds mutations that are not applied" in note
    assert "--column mutations=mutation or --column antigen_mutations=mutation" in note
    (tmp_path / "names.csv").write_text(f"name,heavy\nA1,{HEAVY}\n")
    named_so = table.drop(columns="heavy").assign(clone="A1")
    notes = " ".join(abag.plan(named_so, sequences=[str(tmp_path / "names.csv")])["notes"])
    assert "holds mutations that are not applied" in notes
    # the sequences of the variants are in the table
    table["heavy"] = [exchanged(HEAVY, (place, "W")) for place in (2, 3, 4, 5)]
    assert abag.plan(table)["notes"] == []


def test_a_parent_that_is_no_antibody_is_refused_first():
    table = pd.DataFrame({"mutant": ["WT"], "n": [1]})
    for parent in (HEAVY + "1", "ATGCATGC" * 10):
        with pytest.raises(SequenceError, match=r"^--parent: "):
            read_sequences(table, parent=parent, antigen=RBD)


def test_a_substitution_at_an_insertion_is_no_frame_shift():
    (mutation,) = read_mutations("H:Y100fS")
    assert (mutation.wild, mutation.position, mutation.residues) == ("Y", "100F", "S")
