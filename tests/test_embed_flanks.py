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
NO_CHAINS = "column holds sequences: write columns with those of whole chains, joined from their"


def table(heavies, lights=None, antigens=ANTIGEN):
    columns = {"heavy": heavies, "light": lights or [""] * len(heavies), "antigen": antigens}
    return pd.DataFrame(columns)


def notes(frame):
    return abag.plan(frame)["notes"]


def counts(frame, **options):
    return abag.plan(frame, **options)["found"]


@pytest.mark.parametrize(("before", "behind"), [
    *((leader, "") for leader in LEADERS), *(("", tail) for tail in TAILS),
    ("", "ASTKGPSVFPLAPSSK"), ("", "RTVAAPSVFIFPPSDEQ"), (LEADERS[0], TAILS[0]),
])  # fmt: skip
def test_residues_beside_a_variable_domain_are_counted(before, behind):
    for heavy, light in ((before + HEAVY + behind, LIGHT), (HEAVY, before + LIGHT + behind)):
        (note,) = notes(table([heavy, D13_HEAVY], [light, D13_LIGHT]))
        assert note.startswith("1 antibody with residues beside the variable domain, such as")
        assert "--antibody-region fv" in note
        cut = table([heavy], [light])
        assert counts(cut, antibody_region="fv")["flanked_antibodies"] == 0


@pytest.mark.parametrize("leader", LEADERS)
def test_leaders_are_cut_off(leader):
    for heavy, light in ((leader + HEAVY, LIGHT), (HEAVY, leader + LIGHT)):
        read = read_sequences(table([heavy], [light]), antibody_region="fv")
        assert read.antibodies.chains == [(HEAVY, LIGHT)]


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
    (f"{HEAVY}AST", f"{LIGHT}R"),
])  # fmt: skip
def test_ends_of_variable_domains_may_vary(heavy, light):
    assert counts(table([heavy], [light]))["flanked_antibodies"] == 0


def test_every_command_reports_residues_beside_variable_domains(tmp_path):
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
        assert "a linker or a constant domain, which harms" in result.output + result.stderr
    assert json.loads(run("plan", path, "--json").stdout)["found"]["flanked_antibodies"] == 1


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
    with pytest.raises(ColumnError, match=NO_CHAINS):
        abag.plan(parts)
    for chosen in (frame, both):  # an antigen that is chosen is not proposed again
        with pytest.raises(ColumnError, match=r"--column light=r(?! --column antigen)"):
            read_sequences(chosen, columns={"antigen": "s"})
    variants = frame[["s"]].assign(name="mAb1")
    with pytest.raises(ColumnError, match="No other " + NO_CHAINS) as caught:
        read_sequences(variants, columns={"antigen": "s"})
    assert "By their content" not in str(caught.value)


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


@pytest.mark.parametrize("names", [["HCDR1", "HCDR3"], ["loop", "epitope"], ["1", "2"]])
def test_a_table_of_parts_of_chains_is_told_to_write_whole_ones(names):
    loops = dict(zip(names, [["GFNIKDTY", "GYNIKDTY"], ["ARWGGYGFYAMDY", "TRWGEYF"]], strict=True))
    target = {"Target": ["IL17A", "IL23A"]}  # reads as a mutation of a chain I
    for others in ({}, target, {str(at): [residue, "-"] for at, residue in enumerate(HEAVY, 3)}):
        with pytest.raises(ColumnError, match=NO_CHAINS):
            abag.plan(pd.DataFrame(others | loops | {"KD (nM)": [0.56, 0.63]}))


@pytest.mark.parametrize(("name", "role"), [
    ("linker sequence", ""), ("Linker_AA", ""), ("FASTA_Ab", "antibody"),
    ("VDJ_translation", "antibody"), ("Ab_target", "antigen"),
])  # fmt: skip
def test_what_is_called_an_antibody_or_a_linker_is_proposed_for_no_antigen(name, role):
    words = f'content: columns={{"{role}": "{name}"}}' if role else NO_CHAINS
    cells = ["GGGGSGGGGSGGGGSGGGGSGGGGS", "GGGGSGGGGSGGGGSGGGGSGGGGSGGGGS"]
    with pytest.raises(ColumnError, match=re.escape(words)):
        abag.plan(pd.DataFrame({"nanobody_id": ["7D12", "9G8"], name: cells}))


@pytest.mark.parametrize("name", ["VH", "antibody"])
def test_mutations_in_the_place_of_chains_are_told_to_need_the_parent(name):
    cells = ["V2Q, Q3L, L4V", "E1Q", "V2Q, Q3L, L4V, S7T, G8A, A49G"]
    with pytest.raises(ColumnError, match=f"column {name!r} holds mutations, .* with parent="):
        abag.plan(pd.DataFrame({name: cells, "antigen": ANTIGEN}))
