"""What is no variable domain: leaders, tags, CDRs and columns of nucleotides."""

import json
import random
import re

import pandas as pd
import pytest
from invoke import PLAIN_ENCODERS, run
from reading import read_sequences
from trastuzumab import D13_HEAVY, D13_LIGHT, HEAVY, LIGHT

import abag
from abag import ColumnError, OptionError, TableError

LEADERS = [
    "MKYLLPTAAAGLLLLAAQPAMA", "MGWSCIILFLVATATGVHS", "MEFGLSWLFLVAILKGVQC", "MSSHHHHHHSSG", "GGGGS",
    "MDMRVPAQLLGLLLLWLRGARC",
]  # fmt: skip
TAILS = ["GGSHHHHHH", "GGGGSGGGGS", "LPETGG", "AAAEQKLISEEDL", "EPKTPKPQ", "RGSHHHHHH"]
ANTIGEN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"


def table(heavies, lights=None, antigens=ANTIGEN):
    columns = {"heavy": heavies, "light": lights or [""] * len(heavies), "antigen": antigens}
    return pd.DataFrame(columns)


def notes(frame):
    return abag.plan(frame)["notes"]


def counts(frame, **options):
    return abag.plan(frame, **options)["found"]


@pytest.mark.parametrize("leader", LEADERS)
def test_residues_before_a_variable_domain_are_counted(leader):
    for heavy, light in ((leader + HEAVY, LIGHT), (HEAVY, leader + LIGHT)):
        (note,) = notes(table([heavy, D13_HEAVY], [light, D13_LIGHT]))
        assert note.startswith("1 antibody with residues before the variable domain")
        assert "--antibody-region fv" in note
        cut = table([heavy], [light])
        assert read_sequences(cut, antibody_region="fv").antibodies.chains == [(HEAVY, LIGHT)]
        assert counts(cut, antibody_region="fv")["leader_antibodies"] == 0


@pytest.mark.parametrize("tail", TAILS)
def test_residues_behind_a_variable_domain_are_counted(tail):
    for heavy, light in ((HEAVY + tail, LIGHT), (HEAVY, LIGHT + tail)):
        (note,) = notes(table([heavy, D13_HEAVY], [light, D13_LIGHT]))
        assert note.startswith("1 antibody with residues behind the variable domain that are no")


def test_a_stop_codon_behind_a_chain_is_left_out_and_counted():
    stopped = [f"{HEAVY}*", f"{D13_HEAVY} *\n", HEAVY]
    frame = table(stopped, [LIGHT, f"{D13_LIGHT}*", LIGHT], f"{ANTIGEN}*")
    read = read_sequences(frame)
    assert read.antibodies.chains == [(HEAVY, LIGHT), (D13_HEAVY, D13_LIGHT)]
    assert read.antigens.chains == [(ANTIGEN,)]
    assert "1 antigen with a stop codon (*) behind the last residue of a chain" in read.notes[1]
    found = counts(frame)
    assert (found["stopped_antibodies"], found["stopped_antigens"]) == (2, 1)
    as_one = pd.DataFrame({"antibody": [f"{HEAVY}*|{LIGHT}*", D13_HEAVY], "antigen": ANTIGEN})
    assert read_sequences(as_one).antibodies.chains == [(HEAVY, LIGHT), (D13_HEAVY, "")]
    assert counts(as_one)["stopped_antibodies"] == 1


@pytest.mark.parametrize("heavy", [f"{HEAVY[:50]}*{HEAVY[50:]}", f"{HEAVY}**", f"*{HEAVY}", "*"])
def test_other_stop_codons_are_refused(heavy):
    with pytest.raises(abag.SequenceError, match=r"character '\*' at position"):
        read_sequences(table([heavy, D13_HEAVY], [LIGHT, D13_LIGHT]))


@pytest.mark.parametrize(("heavy", "light"), [
    (HEAVY, LIGHT), (D13_HEAVY, D13_LIGHT), (f"M{HEAVY}", LIGHT[1:]), (HEAVY[3:], f"{LIGHT}RT"),
    (f"{HEAVY}ASTKGPSVFPLAPSSK", f"{LIGHT}RTVAAPSVFIFPPSDEQ"), (f"{HEAVY}ASTKG", f"{LIGHT}R"),
])  # fmt: skip
def test_variable_domains_and_their_constant_domains_have_no_leader_and_no_tag(heavy, light):
    flanks = counts(table([heavy], [light]))
    assert flanks["leader_antibodies"] == flanks["tail_antibodies"] == 0


def test_every_command_reports_leaders_and_tags_as_it_does_constant_domains(tmp_path):
    rng = random.Random(0)
    heavies = [HEAVY.replace("GFNIK", "".join(rng.choices("ADEFGHKLNQ", k=5))) for _ in range(40)]
    train = table([LEADERS[0] + heavies[0], *heavies[1:]]).assign(
        pkd=[rng.gauss(8, 1) for _ in heavies]
    )
    path = tmp_path / "t.csv"
    folder = tmp_path / "run"
    train.to_csv(path, index=False)
    store = ["--store", tmp_path / "s"]
    done = [
        run("embed", path, *store, *PLAIN_ENCODERS),
        run("fit", path, *store, "--run", folder, "--head", "ridge", "--device", "cpu"),
        run("plan", path),
        run("predict", path, "--run", folder, "--out", tmp_path / "o.csv"),
    ]
    for result in done:
        assert "a leader peptide or a tag, which harms" in result.output + result.stderr
    flanks = json.loads(run("plan", path, "--json").stdout)["found"]
    assert (flanks["leader_antibodies"], flanks["tail_antibodies"]) == (1, 0)


@pytest.mark.parametrize("cdrs", [
    ["ARDYYGMDV", "AKGGYSSGWYFDY"], ["CARKPFYQGYFDVW", "CAQYYYGRYFDVW", "CARW" + "G" * 9 + "W"],
    ["ARDYYGMDV", "AKGGYSSGWYFDY", "ARGSTYYSSYFDQ"],
])  # fmt: skip
def test_a_table_of_nothing_but_cdrs_is_refused(cdrs):
    words = f"column 'heavy' holds parts of heavy chains, such as '{cdrs[0]}'"
    for lights in (None, [LIGHT] * len(cdrs)):
        with pytest.raises(TableError, match=words):
            abag.plan(table(cdrs, lights))
    for fault in ("AT-SYEGMDV", "ARHG_YYYYMDV"):  # no names, of which a file could have the chains
        others = [f"AR{residue}YYGMDV" for residue in "ACDEFGHIKLMNPQRSTVWY"]
        strings = pd.DataFrame({"seq": [*cdrs, *others, fault, f"{fault}Y"]})
        with pytest.raises(TableError, match=words.replace("heavy'", "seq'")):
            abag.plan(strings, no_antigen=True)
    # as they are named, whatever they look like
    named = table(["GFTFSSYA", "GYTFTNYG"]).rename(columns={"heavy": "cdr_h1"})
    with pytest.raises(TableError, match="column 'cdr_h1' holds parts of heavy chains"):
        abag.plan(named, columns={"heavy": "cdr_h1"})


def test_short_chains_among_others_are_counted():
    (note,) = notes(table(["ARDYYGMDV", HEAVY, HEAVY[:60], "GFTFSSYAISGSGGSTARDYYGMDV"]))
    assert note.startswith("3 antibodies with a chain of fewer than 70 residues, too short for a")
    assert counts(table(["GFTFSSYA", "EVQLVES"]))["short_antibodies"] == 2  # peptides are encoded


def test_chains_in_which_no_variable_domain_is_found_are_counted():
    other = "".join(random.Random(1).choices("ACDEFGHIKLMNPQRSTVWY", k=120))
    assert notes(table([other, HEAVY])) == [
        "1 antibody with a chain in which no variable domain is found"
    ]


def test_antigens_with_a_histidine_tag_are_counted():
    flanks = counts(
        table([HEAVY] * 3, None, [ANTIGEN, f"{ANTIGEN}GSHHHHHHHH", f"MGHHHHHH{ANTIGEN}"])
    )
    assert flanks["tagged_antigens"] == 2


# --- columns --------------------------------------------------------------------------------------


def test_columns_of_nucleotides_are_proposed_for_no_role():
    genes = ["GAGGTGCAGCTGGTGGAGTCTGGAGGCGGC", "GACATCCAGATGACCCAGTCTCCATCCTCC"]
    frame = pd.DataFrame(
        {
            "gene": genes,
            "short_nt": [gene[:22] for gene in genes],
            "mine": [HEAVY, D13_HEAVY],
            "lower": [gene.lower() for gene in genes],
            "rna": [g.replace("T", "U") for g in genes],
        }
    )
    with pytest.raises(ColumnError, match=r"By their content: --column heavy=mine\. "):
        read_sequences(frame)
    with pytest.raises(ColumnError, match="'gene', 'short_nt', 'lower', 'rna' hold nucleotides"):
        abag.plan(frame.drop(columns="mine"))


def test_of_two_columns_for_a_role_that_of_nucleotides_is_never_taken():
    genes = ["GAGGTGCAGCTGGTGGAGTCTGGAGGCGGC"] * 2
    frame = pd.DataFrame({"hc": genes, "heavy": [HEAVY, D13_HEAVY], "antigen": ANTIGEN})
    assert read_sequences(frame).antibodies.chains == [(HEAVY, ""), (D13_HEAVY, "")]


def test_columns_that_may_play_one_role_are_listed_as_alternatives():
    heavies = [HEAVY, D13_HEAVY]
    lights = [LIGHT, D13_LIGHT]
    frame = pd.DataFrame(
        {"p": heavies, "q": [h + "ASTK" for h in heavies], "r": lights, "s": ANTIGEN}
    )
    words = r"By their content: \(--column heavy=p or --column heavy=q\) --column light=r"
    with pytest.raises(ColumnError, match=words + " --column antigen=s"):
        read_sequences(frame)
    both = frame.drop(columns="q").assign(
        t=[f"{h}|{k}" for h, k in zip(heavies, lights, strict=True)]
    )
    words = r"\(--column heavy=p --column light=r or --column antibody=t\) --column antigen=s\."
    with pytest.raises(ColumnError, match=words):
        read_sequences(both)
    parts = pd.DataFrame({"fwr3": [HEAVY[65:97]] * 2, "cdr3_aa": ["ARDYYGMDVARDYYGMDVARD"] * 2})
    with pytest.raises(ColumnError, match="'fwr3', 'cdr3_aa' hold parts of chains"):
        abag.plan(parts)


def test_a_role_given_twice_and_a_column_given_for_two_roles_are_errors(tmp_path):
    table([HEAVY]).to_csv(tmp_path / "t.csv", index=False)
    plan = ["plan", tmp_path / "t.csv", "--column"]
    twice = run(*plan, "heavy=heavy", "--column", "heavy=light", code=2)
    assert "heavy is given twice, 'heavy' and 'light'; expected one" in twice.stderr
    run(*plan, "heavy=heavy", "--column", "heavy=heavy")
    assert (
        "one column for two roles"
        in run(*plan, "heavy=heavy", "--column", "light=heavy", code=1).stderr
    )
    with pytest.raises(OptionError, match="one column for two roles"):
        abag.plan(tmp_path / "t.csv", columns={"heavy": "heavy", "antigen": "heavy"})


def test_a_table_of_loops_without_chains_is_told_to_write_them_into_the_parent():
    loops = {"HCDR1": ["GFNIKDTY", "GYNIKDTY"], "HCDR3": ["ARWGGYGFYAMDY", "TRWGEYFYFMDL"]}
    distances = {"HCDR3 edit distance to trastuzumab": [3, 5], "KD (nM)": [0.56, 0.63]}
    words = "'HCDR1', 'HCDR3' hold parts of chains: write whole variable domains"
    with pytest.raises(TableError, match=words):
        abag.plan(pd.DataFrame(loops | distances), no_antigen=True)
    target = {"Target": ["IL17A", "IL23A"]}  # reads as a mutation of a chain I
    with pytest.raises(TableError, match=words):
        abag.plan(pd.DataFrame(target | loops | distances))


@pytest.mark.parametrize("name", ["Unnamed: 0", "loop", "SASFYFDTYI"])
def test_peptides_of_no_antigen_are_called_parts_of_chains(name):
    loops = pd.DataFrame({name: ["AAAAYDYWFDY", "ARDGYSSGWYF"], "log(R3/R2)": [0.1, -1.2]})
    with pytest.raises(ColumnError, match=f"{name!r} holds parts of chains: write whole variable"):
        abag.plan(loops)
    other = loops.rename(columns={name: "epitope"})
    with pytest.raises(ColumnError, match="No column holds sequences"):
        abag.plan(other)


@pytest.mark.parametrize(("name", "role"), [
    ("linker sequence", ""), ("Linker_AA", ""), ("FASTA_Ab", "antibody"),
    ("VDJ_translation", "antibody"), ("Ab_target", "antigen"),
])  # fmt: skip
def test_what_is_called_an_antibody_or_a_linker_is_proposed_for_no_antigen(name, role):
    words = f'content: columns={{"{role}": "{name}"}}' if role else "No column holds sequences"
    cells = ["GGGGSGGGGSGGGGSGGGGSGGGGS", "GGGGSGGGGSGGGGSGGGGSGGGGSGGGGS"]
    with pytest.raises(ColumnError, match=re.escape(words)):
        abag.plan(pd.DataFrame({"nanobody_id": ["7D12", "9G8"], name: cells}))


@pytest.mark.parametrize("name", ["VH", "antibody"])
def test_mutations_in_the_place_of_chains_are_told_to_need_the_parent(name):
    cells = ["V2Q, Q3L, L4V", "E1Q", "V2Q, Q3L, L4V, S7T, G8A, A49G"]
    with pytest.raises(ColumnError, match=f"column {name!r} holds mutations, .* with parent="):
        abag.plan(pd.DataFrame({name: cells, "antigen": ANTIGEN}))


def test_a_table_of_a_column_per_residue_is_told_to_join_them():
    numbered = {str(at): [residue, "-"] for at, residue in enumerate(HEAVY, 1)}
    table = pd.DataFrame({"Id": ["a", "b"], "cdr3": "ARDYYGMDV", "chain_type": "H", **numbered})
    words = r"'1', '2', .* hold one residue each, as ANARCI numbers them: join those of each chain"
    with pytest.raises(ColumnError, match=words):
        abag.plan(table, no_antigen=True)


def test_a_table_of_all_parts_of_chains_is_told_to_join_them():
    ends = {"fwr1": 25, "cdr1": 33, "fwr2": 50, "cdr2": 58, "fwr3": 96, "cdr3": 109, "fwr4": 120}
    table = {}
    start = 0
    for name, end in ends.items():
        table[name] = [HEAVY[start:end]] * 2
        table[f"{name}_nt"] = ["GCTGAT" * (end - start)] * 2
        start = end
    listed = ", ".join(f"'{name}'" for name in ends)
    words = f"{listed} hold parts of chains: .* for example FR1, CDR1, FR2, .* in this order"
    with pytest.raises(ColumnError, match=words):
        abag.plan(pd.DataFrame(table), no_antigen=True)
