"""Tables as people and publications write them: read, or refused with what reads them."""

import json
import re
import shlex

import numpy as np
import openpyxl
import pandas as pd
import pytest
from chunks import set_chunk_rows
from drawn import COMPOSITION
from invoke import one_line, run
from reading import demo_table, read_labels, read_sequences
from trastuzumab import CH1, HEAVY, LAMBDA, LIGHT

import abag
from abag import AbagError, ColumnError, LabelError, SequenceError
from abag.embed.tables.formats import ReadOptions
from abag.embed.tables.table import open_table

AG = "KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYG"


def mutants(parent, n=12):
    return [f"{parent[:30]}{'ACDEFGHIKLMNPQRSTVWY'[i]}{parent[31:]}" for i in range(n)]


ALONE = {"kind": "antigen", **COMPOSITION}
HEAVIES = mutants(HEAVY)
LIGHTS = mutants(LIGHT)
PKD = np.linspace(6, 9.5, 12)


def arguments(message):
    """Return the options that a message says to add, by role and option."""
    options = re.findall(r"--(column|label) ('[^']+'|[^\s',.]+)", message)
    found = {}
    for option, text in options:
        (value,) = shlex.split(text)
        if option == "label":
            found["label"] = ["--label", "pkd" if value == "UNIT" else value]  # the user knows it
        elif not value.endswith("=NAME"):
            found[value.partition("=")[0]] = ["--column", value]
    return found


def test_bad_sequences_and_labels_of_a_table_are_listed_at_once_with_their_rows(tmp_path):
    table = pd.DataFrame({"heavy": HEAVIES, "light": LIGHTS, "antigen": AG, "pKd": PKD.astype(str)})
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    table.loc[1, "heavy"] = "E*VQ"
    table.loc[4, "antigen"] = ""
    table.loc[7, "pKd"] = "n.d."
    table.loc[9, "pKd"] = "7,5"
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_excel(tmp_path / "t.xlsx", index=False)
    for name in ("t.csv", "t.xlsx"):
        for read in (abag.plan, lambda path: abag.fit(path, tmp_path / "store", tmp_path / "run")):
            with pytest.raises(AbagError) as caught:
                read(tmp_path / name)
            head, *rows = str(caught.value).split("\n  ")
            assert head == (
                f"{name}: 4 rows are bad; expected valid sequences and labels. Fix them, or skip "
                'them with bad_rows="skip".'
            )
            assert [row.partition(",")[0] for row in rows] == ["row 3", "row 6", "row 9", "row 11"]
            assert "'7,5' is not a valid label" in rows[3]


def test_rows_are_counted_as_read_skipped_and_used(tmp_path):
    frame = pd.DataFrame({"heavy": HEAVIES, "antigen": AG, "KD (nM)": (10 ** (9 - PKD)).round(4)})
    frame = frame.astype({"KD (nM)": str})
    frame.loc[1, "heavy"] = "E*VQ"
    frame.loc[4, "KD (nM)"] = "n.d."
    frame.loc[5, "KD (nM)"] = ""
    frame.to_csv(tmp_path / "t.csv", index=False)
    skip = ("--bad-rows", "skip")
    store = ("--store", tmp_path / "store")
    planned = run("plan", tmp_path / "t.csv", *skip)
    assert planned.stdout.startswith("t.csv: 12 rows read, 3 skipped, 9 used\n")
    options = ("--antibody-encoder", "composition", "--antigen-encoder", "composition")
    embedded = run("embed", tmp_path / "t.csv", *store, *options, *skip)
    assert "t.csv: 12 rows read, 1 skipped, 11 used; running on" in embedded.stderr
    labelled = []
    abag.dataset(tmp_path / "store", tmp_path / "t.csv", bad_rows="skip", say=labelled.append)
    said = "t.csv: 9 pairs (12 rows read, 3 skipped, 9 used"
    assert any(line.startswith(said) for line in labelled)
    typed = frame.drop(index=[1, 5]).assign(affinity_type=["ic50"] * 6 + ["kd"] * 4)
    read = abag.plan(typed, affinity_type="ic50", bad_rows="skip")["read"]
    assert read == "10 rows read, 1 skipped, 4 of other affinity types, 5 used"
    assert abag.plan(frame.drop(index=[1, 4, 5]))["read"] == "9 rows"


LIGHT_HEADERS = """
light|light_chain|LC|VL|vl_seq|VL_sequence|vl_sequence_aa|light_AA_sequence|sequence_light|VL domain
light_chain_variable|LCVR|VK|VK_sequence|kappa|lambda|kappa chain|lambda_sequence|light_chain_aa|L
Light Chain Sequence|lightChainSeq|LightSequence|VLaa|vl.aa|sequence_alignment_aa_light|aa_light
L_seq|seq_light|AA VL|variable light chain|light variable domain|VL (aa)|VL/VK|IgL sequence|igk_aa
Lchain|fv_light|mAb light chain|ab_lc_seq|antibody_light_chain_sequence|LC protein sequence
LC full length|K|LCVR_sequence|light region|light_chain_variable_region|vl_region|light_protein|Vκ
Vλ seq|chain L|light_variable_region_sequence|Fab light chain|fab_l|V-L|Light.Chain|light1|VL [Fv]
mut_light_chain_seq|sequence 2|igl_vj_aa|IGK VJ (aa)
"""
HEAVY_HEADERS = """
heavy|heavy_chain|HC|VH|vh_seq|VH_sequence|vh_sequence_aa|heavy_AA_sequence|sequence_heavy|VH domain
heavy_chain_variable|HCVR|VHH|VHH_sequence|IGH|heavy chain|heavy_chain_aa|Heavy Chain Sequence
nanobody|heavyChainSeq|HeavySequence|VHaa|vh.aa|sequence_alignment_aa_heavy|aa_heavy|seq_heavy
AA VH|H|H_seq|variable heavy chain|heavy variable domain|VH (aa)|VH/VHH|IgH sequence|igh_aa
fv_heavy|Hchain|mAb heavy chain|ab_hc_seq|antibody_heavy_chain_sequence|HC protein sequence
HC full length|chain H|HCVR_sequence|heavy region|heavy_chain_variable_region|vh_region
heavy_protein|heavy_region_aa|fab_h|heavy_variable_region_sequence|Fab heavy chain|V-H|Heavy.Chain
heavy1|VH [Fv]|mut_heavy_chain_seq|nanobody sequence|sdAb_aa|VHH domain|sequence 1|IGH VDJ (aa)
"""


def headers(text):
    return re.split(r"[|\n]", text.strip())


@pytest.mark.ci
@pytest.mark.parametrize("role", ["light", "heavy"])
def test_the_header_of_a_chain_is_recognised_by_its_parts_or_the_cells(role):
    names = headers(LIGHT_HEADERS if role == "light" else HEAVY_HEADERS)
    assert len(names) >= 58
    table = pd.DataFrame({"VH": HEAVIES, "VL": LIGHTS, "antigen": AG}).head(2)
    replaced = "VL" if role == "light" else "VH"
    for name in names:
        read = read_sequences(table.rename(columns={replaced: name}))
        assert read.columns[role] == name
        assert read.antibodies.chains == [*zip(HEAVIES[:2], LIGHTS[:2], strict=True)]


def test_chain_letters_beside_each_other_are_chains_if_their_cells_are():
    table = pd.DataFrame({"L": LIGHTS, "H": HEAVIES, "antibody": "mAb1", "antigen": AG})
    read = read_sequences(table)
    assert [read.columns["heavy"], read.columns["light"]] == ["H", "L"]
    assert "column 'L' is used as light: it holds light variable domains" in read.notes
    with pytest.raises(AbagError, match="column 'antibody': character '1' at position 4 of 'mAb1'"):
        read_sequences(table.assign(L=1.5))


def test_numbers_names_and_parts_of_chains_play_no_role():
    others = {
        "light_scattering": 0.5, "kappa_value": 1.5, "lambda_max": 280, "L": 2.5, "K": 3,
        "kappa": 0.1, "heavy_metal": "Zn", "hc_cdr3": "ARDYYGSSYFDY", "v_call_light": "IGKV1-39*01",
        "lambda": 0.2,
        "light_v_gene": "IGKV1-39", "light_chain_type": "kappa", "light_isotype": "kappa",
        "cdrl3_aa": "QQHYTTPPT", "light_nt": "GACATCCAGATGACCCAG" * 18, "fwr1_light": LIGHT[:23],
        "light_constant_region": "RTVAAPSVFIFPPSDEQLKSGTASVVCLLNNFYPREAKVQWKVDNALQSG" * 2,
        "heavy_name": "mAb 7", "lc_ms": 12.5, "heavy_length": 120,
        "note": "a light chain was lost " * 9,
    }  # fmt: skip
    table = pd.DataFrame({"VH": HEAVIES, "antigen": AG, **others})
    read = read_sequences(table)
    assert {read.columns[role] for role in ("heavy", "light") if read.has(role)} == {"VH"}
    assert not any("variable domains" in note for note in read.notes)


UNUSED_CHAINS = {
    "two light chains": {"VH": HEAVIES, "first": LIGHTS, "second": [LAMBDA, *LIGHTS[1:]]},
    "an scFv beside its heavy chain": {
        "VH": HEAVIES,
        "construct": [f"{h}GGGGSGGGGSGGGGS{k}" for h, k in zip(HEAVIES, LIGHTS, strict=True)],
    },
    "another heavy chain": {"VH": HEAVIES, "VL": LIGHTS, "arm B": HEAVIES[::-1]},
    "a chain that is rarely filled": {"VH": HEAVIES, "VL": LIGHTS, "VL2?": [*[""] * 11, LAMBDA]},
    "a light chain named like an antigen": {"VH": HEAVIES, "target_x": LIGHTS},
    "an aligned light chain": {"VH": HEAVIES, "VL": LIGHTS, "aln": [f"--{LAMBDA}-"] * 12},
}


@pytest.mark.parametrize("kind", UNUSED_CHAINS)
def test_variable_domains_that_no_role_uses_are_an_error_whose_options_settle_it(kind, tmp_path):
    table = pd.DataFrame({**UNUSED_CHAINS[kind], "antigen": AG, "pKd": PKD})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    embed = ["embed", "--store", tmp_path / "s", "--antibody-encoder", "composition"]
    embed += ["--antigen-encoder", "composition", "--device", "cpu"]
    for name in ("t.csv", "t.parquet"):
        refused = one_line("plan", tmp_path / name)
        assert re.search(
            r"column '.+' holds .+ variable domains that no role uses; expected", refused
        )
        assert one_line(*embed, tmp_path / name) == refused
    assert not (tmp_path / "s").exists()
    use, leave_out = re.search(r"Use it with (.+), or leave it out with (.+)\.$", refused).groups()
    left_out = run("plan", tmp_path / "t.csv", *shlex.split(leave_out))
    assert "variable domains that are not used" in left_out.stdout + left_out.stderr
    if kind == "a chain that is rarely filled":  # the others would lose theirs
        assert "rows whose column 'VL2?' is empty" in one_line(
            "plan", tmp_path / "t.csv", *shlex.split(use)
        )
    elif kind not in ("another heavy chain", "an aligned light chain"):
        run("plan", tmp_path / "t.csv", *shlex.split(use))
    with pytest.raises(AbagError, match=r'columns={"(light|heavy|antibody)": "[^"]+"}, or leave'):
        abag.plan(table)


@pytest.mark.parametrize("written", [">ab L\n{}", '"{}"', "{};", "{} (kappa)", "1 {}"])
def test_light_chains_with_text_beside_their_residues_are_never_left_out(written):
    light = [written.format(text) for text in LIGHTS]
    table = pd.DataFrame({"VH": HEAVIES, "chain 2": light, "antigen": AG})
    with pytest.raises(AbagError, match=r"column 'chain 2': character .* not a valid residue"):
        read_sequences(table)


@pytest.mark.parametrize("names", [("kappa", "lambda"), ("VK", "VL"), ("chain 2", "chain 3")])
def test_light_chains_in_two_columns_are_never_half_read(names):
    light = [text if at % 2 else "" for at, text in enumerate(LIGHTS)]
    other = ["" if at % 2 else LAMBDA for at in range(len(LIGHTS))]
    table = pd.DataFrame({"VH": HEAVIES, names[0]: light, names[1]: other, "antigen": AG})
    for name, left in (names, names[::-1]):
        with pytest.raises(AbagError) as caught:
            read_sequences(table, columns={"light": name})
        assert f"column {left!r} holds light variable domains of rows whose" in str(caught.value)
    assert read_sequences(table, columns={"light": ""}).notes
    joined = table.assign(light=[a or b for a, b in zip(light, other, strict=True)])
    joined = joined.drop(columns=[*names])
    assert all(light for _, light in read_sequences(joined).antibodies.chains)


def test_columns_that_repeat_the_chains_or_what_they_come_from_are_no_reason_to_refuse():
    table = pd.DataFrame({"heavy": HEAVIES, "VL": LIGHTS, "antigen": AG})
    table["sequence_aa"] = table["heavy"].str.lower()
    table["full"] = "MEFGLSWLFLVAILKGVQC" + table["heavy"] + CH1
    table["framework to CDR3"] = table["VL"].str[:100]
    table["joined"] = table["heavy"] + "|" + table["VL"]
    table["scFv"] = table["VL"] + "GGGGSGGGGSGGGGS" + table["heavy"]
    table["aligned"] = table["VL"].str[:30] + "--" + table["VL"].str[30:]
    assert not any("variable" in note for note in read_sequences(table).notes)
    table["germline_alignment_aa_heavy"] = HEAVY
    table["wt light"] = LIGHT
    notes = read_sequences(table).notes
    assert "column 'wt light' holds light variable domains that are not used" in notes
    for name in ("mut_heavy_chain_seq", "antibody_heavy_seq_mut"):
        mutants_beside = table[["antigen"]].assign(heavy_chain_seq=HEAVY, **{name: HEAVIES})
        read = read_sequences(mutants_beside)
        assert read.columns["heavy"] == name
        assert (
            "column 'heavy_chain_seq' holds heavy variable domains that are not used" in read.notes
        )


@pytest.mark.parametrize("cells", [["A1G", "WT"], [5, 12], [0.05, 0.11], ["5", ""], ["", ""]])
def test_a_column_that_says_or_counts_mutations_is_not_taken_for_the_chains(cells):
    table = pd.DataFrame({"VH": HEAVIES, "antigen": AG, "VH_mut": np.resize(cells, len(HEAVIES))})
    assert read_sequences(table).columns["heavy"] == "VH"
    assert read_sequences(table).antibodies.chains == [(heavy, "") for heavy in HEAVIES]


def test_a_chain_can_be_said_to_have_no_column():
    table = pd.DataFrame({"heavy": HEAVIES, "light": LIGHTS, "antigen": AG})
    read = read_sequences(table, columns={"light": ""})
    assert read.antibodies.chains == [(heavy, "") for heavy in HEAVIES]
    assert "column 'light' holds light variable domains that are not used" in read.notes
    with pytest.raises(AbagError, match=r'columns={"antigen": ""}: names no column'):
        abag.plan(table, columns={"antigen": ""})


def test_antibodies_without_a_light_chain_are_counted_beside_others(tmp_path):
    table = pd.DataFrame({"heavy": HEAVIES, "light": LIGHTS, "antigen": AG})
    table.loc[[2, 5], "light"] = ["#N/A", ""]  # a look-up of Excel that found nothing
    table.to_csv(tmp_path / "t.csv", index=False)
    (note,) = read_sequences(tmp_path / "t.csv").notes
    assert note.startswith("2 antibodies with a heavy chain but no light one: nanobodies, or is")
    assert not read_sequences(table.assign(light="")).notes


def test_many_bad_rows_are_counted_and_each_reason_is_shown():
    stopped = ["E*V"] * 25
    unknown = [f"EV{sign}Q" for sign in "1234567"]
    table = pd.DataFrame({"heavy": [*stopped, *unknown, *HEAVIES], "antigen": AG})
    with pytest.raises(AbagError) as caught:
        abag.plan(table)
    _, same, *each, rest = str(caught.value).split("\n  ")
    assert same.startswith("rows 1, 2, 3, 4, ")
    assert ", 19, 20 and 5 more, column 'heavy': character '*'" in same
    assert [line.partition(", ")[0] for line in each] == [f"row {row}" for row in range(26, 30)]
    assert rest == "rows 30, 31, 32: unknown residue, too"


def test_bad_rows_of_later_chunks_are_listed_too(tmp_path):
    table = demo_table().head(60).drop(columns="pKd")
    table.loc[[3, 50], "heavy"] = "E*V"
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        set_chunk_rows(patch, 20)
        with pytest.raises(AbagError, match=r"(?s)2 rows are bad.*rows 5, 52, column"):
            abag.embed_table(tmp_path / "t.csv", tmp_path / "store", **COMPOSITION)
    assert not (tmp_path / "store").exists()


@pytest.mark.ci
def test_plan_and_fit_list_the_rows_that_they_skip(tmp_path):
    table = demo_table().head(80)
    table["pKd"] = table["pKd"].astype(object)
    table.loc[2, "heavy"] = "E*V"
    table.loc[5, "pKd"] = "x"
    table.to_csv(tmp_path / "t.csv", index=False)
    skip = {"bad_rows": "skip"}
    abag.embed_table(tmp_path / "t.csv", tmp_path / "store", **COMPOSITION, **skip)
    abag.plan(tmp_path / "t.csv", skipped=tmp_path / "plan.csv", **skip)
    abag.fit(
        tmp_path / "t.csv",
        tmp_path / "store",
        tmp_path / "run",
        split="random",
        epochs=1,
        report=False,
        skipped=tmp_path / "fit.csv",
        **skip,
    )
    skipped = pd.read_csv(tmp_path / "plan.csv")
    assert skipped["row"].tolist() == [4, 7]
    assert skipped["reason"].tolist() == ["unknown residue", "invalid label"]
    assert (tmp_path / "fit.csv").read_text() == (tmp_path / "plan.csv").read_text()
    with pytest.raises(AbagError, match="skipped: no row is skipped"):
        abag.plan(tmp_path / "t.csv", skipped=tmp_path / "plan.csv")


BAD_TABLES = {
    "classes": {"pKd": np.arange(12) % 2},
    "a unit": {"pKd": 10.0 ** (9 - PKD) * 100},
    "constant labels": {"pKd": 7.0},
    "bounds alone": {"pKd": [f"<{y:.2f}" for y in PKD - np.arange(12) % 3]},
    "no number": {"pKd": "high"},
    "one bad label": {"pKd": [*PKD[:-1], "x"]},
    "types": {"pKd": PKD, "affinity_type": ["kd", "ic50"] * 6},
    "two labels": {"pKd": PKD, "pkd_value": PKD},
    "two units": {"kd_nM": 10 ** (9 - PKD), "IC50_nM": 10 ** (9 - PKD)},
    "no unit": {"Kd": 10 ** (9 - PKD)},
    "a bad sequence": {"pKd": PKD, "heavy": [*HEAVIES[:-1], "E*V"]},
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_plan_exits_with_1_on_what_fit_refuses_and_says_the_same(tmp_path, name):
    table = pd.DataFrame({"heavy": HEAVIES, "light": LIGHTS, "antigen": AG})
    table.assign(**BAD_TABLES[name]).to_csv(tmp_path / "t.csv", index=False)
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    fit = ["fit", tmp_path / "t.csv", "--store", tmp_path / "store", "--run", tmp_path / "run"]
    said = run(*fit, code=1).stderr.split("Error: ", 1)[1].strip()
    planned = run("plan", tmp_path / "t.csv", code=1)
    assert said.split(".")[0].split("training labels")[0] in planned.output


def test_plan_of_a_table_for_prediction_is_no_error(tmp_path):
    pd.DataFrame({"heavy": HEAVIES, "antigen": AG}).to_csv(tmp_path / "t.csv", index=False)
    planned = json.loads(run("plan", tmp_path / "t.csv", "--json").stdout)
    assert (planned["labels"], planned["problems"]) == (None, [])
    assert planned["refused"] == planned["sense"] == ""


@pytest.mark.ci
def test_plan_and_fit_say_the_same_of_the_labels(tmp_path):
    table = demo_table()
    antigens = pd.factorize(table["antigen"])[0]
    table["pKd"] = 6 + antigens % 5 + np.linspace(0, 1, len(table))
    table = pd.concat([table, table.head(40).assign(pKd=lambda t: t["pKd"] + 0.9)])
    table.to_csv(tmp_path / "t.csv", index=False)
    abag.embed_table(tmp_path / "t.csv", tmp_path / "store", **COMPOSITION)
    run = tmp_path / "run"
    fitted = abag.fit(
        tmp_path / "t.csv", tmp_path / "store", run, split="random", head="ridge", report=False
    )
    share = [line for line in abag.plan(tmp_path / "t.csv")["problems"] if "alone explains" in line]
    assert share
    assert set(share) <= set(fitted["warnings"])


def test_a_range_of_labels_refuses_rows_outside_or_skips_them():
    table = pd.DataFrame({"heavy": HEAVIES, "antigen": AG, "Kd [nM]": 10 ** (9 - PKD)})
    with pytest.raises(
        LabelError, match=r"(?s)2 rows are bad.*row 1, .* expected a pKd from 6.5 to 14"
    ):
        read_labels(table, label_range="6.5:14")
    pairs = read_labels(table, label_range="6.5:14", bad_rows="skip")
    assert pairs.pkd.min() > 6.5
    assert pairs.counts["skipped_labels"] == 2
    for text in ("7", "9:5", "a:b", "nan:7", "5:5"):
        with pytest.raises(AbagError, match=r"--label-range: .* expected MIN:MAX in pKd"):
            abag.PlanOptions(label_range=text)


@pytest.mark.parametrize("column", ["Antigen", "Target"])
@pytest.mark.parametrize(
    ("names", "bad_rows"),
    [
        (["MIT_Target"], "error"), (["HER2", "VEGF", "SARS-CoV-2 RBD"], "error"),
        (["IL6", "P00533"], "skip"), (["HER2", "VEGF", "SARS-CoV-2 RBD"], "skip"),
    ],
)  # fmt: skip
def test_names_of_antigens_are_answered_with_the_option_for_a_sequence(
    tmp_path, column, names, bad_rows
):
    table = pd.DataFrame({"heavy": HEAVIES, column: (names * 12)[:12]})
    table.to_csv(tmp_path / "t.csv", index=False)
    store = ["--store", tmp_path / "store"]
    refused = one_line("embed", tmp_path / "t.csv", *store, "--bad-rows", bad_rows)
    assert f"column '{column}' holds names, such as '{names[0]}', not sequences" in refused
    assert "--antigen SEQ" in refused
    assert one_line("plan", tmp_path / "t.csv", "--bad-rows", bad_rows) == refused
    assert abag.plan(table, antigen=AG)["rows"] == 12


N = 12
PUBLISHED = {
    "AbRank": (
        {
            "Ab_name": "a", "Ag_name": "b", "IC50 [ug/mL]": 1.5e8 * 10**-PKD,
            "Affinity_Kd [nM]": 10 ** (9 - PKD), "log(Kd_ratio)": 0.1, "log_Aff": PKD,
            "Source": "x", "Aff_op": "=", "Ab_heavy_chain_seq": HEAVIES,
            "Ab_light_chain_seq": LIGHTS, "Ag_seq": AG, "Ab_PDB_ID": "1abc",
        },
        {},
    ),
    "FLAb2": ({"heavy": HEAVIES, "light": LIGHTS, "fitness": PKD}, {"antigen": AG}),
    "FLAb2, Kd": (
        {"heavy": HEAVIES, "light": LIGHTS, "KD (nM)": 10 ** (9 - PKD), "fitness": PKD},
        {"antigen": AG},
    ),
    "AlphaSeq": (
        {
            "mata_description": "a", "matalpha_description": "b",
            "mata_sequence": [h + "GGGGS" * 3 + LIGHT for h in HEAVIES], "matalpha_sequence": AG,
            "alphaseq_affinity": 9 - PKD, "alphaseq_affinity_lower_bound": 8.9 - PKD,
            "alphaseq_affinity_upper_bound": 9.1 - PKD,
        },
        {},
    ),
    "AlphaSeq of MIT": (
        {
            "POI": "AAYL49_1", "Sequence": HEAVIES, "Target": "MIT_Target", "Assay": 1,
            "Replicate": 1, "Pred_affinity": 9 - PKD, "HC": HEAVIES, "LC": LIGHTS,
            "CDRH1": "GFNIKDTY", "CDRH2": "IYPTNGYT", "CDRH3": "SRWGGDGFYAMDY",
        },
        {"antigen": AG},
    ),
    "AbBiBench": (
        {
            "mutations": "A1C", "heavy_chain_seq": HEAVY, "mut_heavy_chain_seq": HEAVIES,
            "light_chain_seq": LIGHT, "binding_score": PKD,
        },
        {"antigen": AG},
    ),
    "BioMap": (
        {
            "pdb": "1abc", "antibody_seq_a": HEAVIES, "antibody_seq_b": LIGHTS,
            "antigen_seq": AG, "delta_g": -1.364 * PKD,
        },
        {},
    ),
    "BioMap, light chains first": (
        {
            "pdb": "1abc", "antibody_seq_a": LIGHTS, "antibody_seq_b": HEAVIES,
            "antigen_seq": AG, "delta_g": -1.364 * PKD,
        },
        {},
    ),
    "PPB-Affinity, with sequences added": (
        {
            "Source Data Set": "SAbDab", "PDB": "1ABC", "Mutations": "", "Ligand Chains": "A",
            "Receptor Chains": "H, L", "Ligand Name": "lysozyme", "Receptor Name": "Fab",
            "Ligand Sequences": AG, "Receptor Sequences": [f"{h}|{LIGHT}" for h in HEAVIES],
            "KD(M)": 10**-PKD, "Affinity Method": "SPR", "Temperature(K)": 298,
        },
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_headers_of_public_tables_are_read_or_answered_with_what_reads_them(tmp_path, name):
    cells, options = PUBLISHED[name]
    table = pd.DataFrame(cells, index=range(N))
    table.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    told = {}
    for _ in range(4):  # each message names the next option
        given = [word for option in told.values() for word in option]
        given += ["--antigen", options["antigen"]] if options else []
        done = run("plan", tmp_path / "t.tsv", "--json", *given, code=None)
        planned = json.loads(done.stdout or "{}")
        message = planned.get("refused", done.stderr)
        if not message:
            break
        proposed = arguments(message)
        assert proposed.keys() - {"label"}, message
        told |= proposed
    assert planned["labels"]["pairs"] == N, message
    assert planned["labels"]["range"] == pytest.approx([6, 9.5], abs=0.01)
    assert planned["antibodies"]["unique"] == N
    expected = {(h, x) for h, x in zip(HEAVIES, LIGHTS, strict=True)}
    columns = {role: told[role][1].partition("=")[2] for role in told.keys() - {"label"}}
    pairs = read_sequences(tmp_path / "t.tsv", columns=columns, **options)
    if "light" in pairs.columns and table[pairs.columns["light"]].nunique() > 1:
        assert set(pairs.antibodies.chains) == expected


SABDAB = (
    "pdb\tHchain\tLchain\tmodel\tantigen_chain\tantigen_type\tantigen_het_name\tantigen_name\t"
    "short_header\tdate\tcompound\torganism\theavy_species\tlight_species\tantigen_species\t"
    "authors\tresolution\tmethod\tr_free\tr_factor\tscfv\tengineered\theavy_subclass\t"
    "light_subclass\tlight_ctype\taffinity\tdelta_g\taffinity_method\ttemperature\tpmid"
).split("\t")


SABDAB_ROW = dict.fromkeys(SABDAB, "NA") | {
    "pdb": "1dvf",
    "Hchain": "B",
    "Lchain": "A",
    "antigen_chain": "D | C",
    "antigen_name": "FV E5.2",
    "affinity": "3.0e-09",
}
PPB_ROW = {
    "Source Data Set": "SAbDab", "Complex ID": 1, "PDB": "1DVF", "Mutations": "",
    "Ligand Chains": "D, C", "Receptor Chains": "B, A", "Ligand Name": "E5.2",
    "Receptor Name": "D1.3", "KD(M)": 3.0e-09, "Affinity Method": "SPR", "Temperature(K)": 298,
}  # fmt: skip


@pytest.mark.parametrize("row", [SABDAB_ROW, PPB_ROW], ids=["SAbDab", "PPB-Affinity"])
def test_tables_of_structures_are_refused_because_they_hold_no_sequences(tmp_path, row):
    pd.DataFrame([row] * 3).to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    with pytest.raises(AbagError, match=r"no column for heavy, light or antibody.*No column holds"):
        abag.plan(tmp_path / "t.tsv")


def test_a_table_without_a_line_of_names_is_refused_and_keeps_its_first_pair(tmp_path):
    table = pd.DataFrame({"heavy": HEAVIES, "light": LIGHTS, "antigen": AG, "pKd": PKD})
    table.to_csv(tmp_path / "t.csv", index=False, header=False)
    for source in (tmp_path / "t.csv", pd.read_csv(tmp_path / "t.csv")):
        for read in (abag.plan, lambda source: abag.embed_table(source, tmp_path / "s", **ALONE)):
            with pytest.raises(AbagError, match="the first line holds a sequence, 'EVQ") as caught:
                read(source)
            assert "--column" not in str(caught.value)


@pytest.mark.parametrize(("before", "ends"), [("", ""), ("", ",,,"), (",", ",,")])
@pytest.mark.parametrize("name", ["t.csv", "t.xlsx"])
def test_titles_above_the_names_are_not_read_and_said(tmp_path, name, before, ends):
    table = pd.DataFrame({"VH": HEAVIES, "VL": LIGHTS, "antigen": AG, "KD (nM)": 10 ** (9 - PKD)})
    title = ["Supplementary Table 1. Affinities", "", "by SPR"]
    if name == "t.csv":
        lines = [before + line + ends for line in title]
        lines += table.to_csv(index=False).splitlines()
        (tmp_path / name).write_text("\n".join(lines))
    else:
        book = openpyxl.Workbook()
        for line in title:
            book.active.append([None] * len(before) + [line])
        for row in [[*table], *table.to_numpy().tolist()]:
            book.active.append(row)
        book.active.merge_cells("A1:D1" if not before else "B1:D1")
        book.save(tmp_path / name)
    pairs = read_sequences(tmp_path / name)
    assert pairs.frame["VH"].tolist() == HEAVIES
    assert pairs.row_name(0) == "5"  # as an editor counts
    said = "2 lines above the header not read: 'Supplementary Table 1. Affinities', 'by SPR'"
    assert said in pairs.notes


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx"])
@pytest.mark.parametrize("unit", ["nM", "[nM]"])
def test_a_row_of_units_below_the_names_is_read_into_them(tmp_path, name, unit):
    kd = (10 ** (9 - PKD)).round(6)
    names = ["VH", "VL", "antigen", "KD", "Tm"]
    rows = [*zip(HEAVIES, LIGHTS, [AG] * len(kd), kd.tolist(), [65] * len(kd), strict=True)]

    def write(*lines):
        if name == "t.csv":
            texts = [",".join(map(str, line)) for line in lines]
            (tmp_path / name).write_text("\n".join(texts), encoding="utf-8")
            return
        book = openpyxl.Workbook()
        for line in lines:
            book.active.append([cell or None for cell in line])
        book.save(tmp_path / name)

    write(names, ["", "", "", unit, "°C"], *rows)
    pairs = read_labels(tmp_path / name)
    assert pairs.reading.unit == "kd_nm"
    assert np.sort(pairs.pkd) == pytest.approx(np.sort(9 - np.log10(kd)))
    assert pairs.table.row_name(0) == "3"
    assert "row 2 is read as units: 'KD' in nM, 'Tm' in °C" in pairs.table.notes
    assert read_labels(tmp_path / name, columns={"label": "Tm"}).quantity.unit == "°C"
    for tables in (tmp_path / name, [tmp_path / name, pairs.table.frame.iloc[:4]]):
        assert read_labels(tables, columns={"pkd": "KD"}).reading.column == "KD (nM)"
    for chunk_rows in (1, 2):
        parts = [*open_table(tmp_path / name, ReadOptions(rows=chunk_rows))]
        assert [row for part in parts for row in part.frame["VH"]] == HEAVIES
        assert {part.first_row for part in parts} == {3}
    molar = [(*row[:3], row[3] * 1e-9, row[4]) for row in rows]
    write([*names[:3], "KD_Mean", "Tm"], ["", "", "", "M", "°C"], *molar)
    assert np.sort(read_labels(tmp_path / name).pkd) == pytest.approx(np.sort(pairs.pkd))
    write(names, ["", "", "", unit, "°C"], *rows)
    # the name without it keeps its unit
    with pytest.raises(LabelError, match=r"'KD \(nM\)' is named like kd_nm, but --label says"):
        read_labels(tmp_path / name, columns={"pkd": "KD"}, label="kd_pm")
    # single letters may be residues
    write(["wt", "mut", "note"], ["K", "M", ""], ["S", "T", ""])
    (table,) = open_table(tmp_path / name, ReadOptions())
    assert table.frame["wt"].tolist() == ["K", "S"]
    # cells that the row below repeats are of a column of units
    write([*names, "unit"], ["", "", "", "", "", "nM"], *([*row, "nM"] for row in rows))
    stated = read_labels(tmp_path / name, columns={"pkd": "KD"}, bad_rows="skip")
    assert stated.reading.why == "column 'unit' says so"


def test_names_below_lines_of_several_cells_are_found_and_these_are_to_be_removed(tmp_path):
    table = pd.DataFrame({"VH": HEAVIES, "VL": LIGHTS, "antigen": AG, "KD (nM)": 10 ** (9 - PKD)})
    for line in ("Table 1,,n = 3,", "Sequence,,,Kinetics"):  # of which one is named like a role
        (tmp_path / "t.csv").write_text(f"{line}\n{table.to_csv(index=False)}")
        with pytest.raises(AbagError, match=r"row 2 holds 'VH', 'VL', 'antigen'"):
            abag.plan(tmp_path / "t.csv")


def test_a_row_of_types_of_chains_is_no_line_of_names():
    kinds = {"Type 1": "heavy", "Chain 1": HEAVIES, "Type 2": "light", "Chain 2": LIGHTS}
    with pytest.raises(AbagError, match=r"no column for heavy.*By their content.*Chain 1"):
        abag.plan(pd.DataFrame({**kinds, "antigen": AG, "pKd": PKD}))


@pytest.mark.parametrize(
    ("column", "heavy", "light"),
    [("chain", "IGH", "IGK"), ("name", "ab{}_VH", "ab{}_VL"), ("id", "{} heavy chain", "{}-K")],
)
def test_rows_of_single_chains_are_no_antibodies_unless_that_is_said(column, heavy, light):
    chains = [*HEAVIES, *LIGHTS]
    table = pd.DataFrame({"sequence": chains, "antigen": AG, "pKd": [*PKD, *PKD]})
    names = [heavy.format(n) for n in range(len(HEAVIES))]
    table[column] = [*names, *(light.format(n) for n in range(len(LIGHTS)))]
    with pytest.raises(
        ColumnError, match=r"'sequence' holds one chain per row.*an antibody per row"
    ):
        read_sequences(table)
    assert len(read_sequences(table, columns={"antibody": "sequence"}).antibodies.chains) == 24
    # the chain that is mutated, of whole antibodies
    whole = table.assign(sequence=[h + LIGHT for h in HEAVIES] * 2)
    assert len(read_sequences(whole).antibodies.chains) == len(HEAVIES)


@pytest.mark.parametrize("names", [("Antibody", "Antigen"), ("X1", "X2")])
def test_lists_of_chains_as_pandas_writes_them_are_read_as_chains(tmp_path, names):
    pairs = [*zip(HEAVIES, LIGHTS, strict=True)]
    antibodies = [*map(str, map(list, pairs)), f"['{HEAVY}', nan]", f'["{HEAVY}"]']
    antibodies[0] = str(np.array(pairs[0]))  # without a comma
    antibodies[1] = str(np.array(pairs[1])).replace("\n", r"\n")  # as TDC has it
    antigens = [f"['{AG}', '{AG[::-1]}']"] * len(antibodies)
    table = pd.DataFrame(dict(zip(names, (antibodies, antigens), strict=True)))
    table.to_csv(tmp_path / "t.csv", index=False)
    options = {}
    if names[0] == "X1":  # proposed by their content
        with pytest.raises(AbagError) as caught:
            read_sequences(tmp_path / "t.csv")
        options = {"columns": {"antibody": "X1", "antigen": "X2"}}
        assert "No column is named like an antigen" not in str(caught.value)
        for role, column in options["columns"].items():
            assert f"--column {role}={column}" in str(caught.value)
    read = read_sequences(tmp_path / "t.csv", **options)
    assert read.antibodies.chains == [*pairs, (HEAVY, "")]
    assert read.antigens.chains == [tuple(sorted((AG, AG[::-1])))]
    table[names[0]] = f"['{HEAVY}', '{LIGHTS[0]}', '{LIGHTS[1]}']"
    with pytest.raises(AbagError, match=r"has 3 chains; expected heavy\|light"):
        read_sequences(table, **options)


@pytest.mark.parametrize("sign", [":", "/"])
def test_an_antigen_that_is_joined_to_a_nanobody_is_not_its_light_chain(sign):
    other = "MKT" + 3 * AG
    designed = pd.DataFrame({"seq": [f"{heavy}{sign}{other}" for heavy in HEAVIES], "score": PKD})
    options = {"no_antigen": True, "columns": {"antibody": "seq"}}
    with pytest.raises(SequenceError, match="domain is not one itself; expected heavy and light"):
        read_sequences(designed, **options)
    # what the user divides is taken, and so are light chains and chains of which none is known
    for text in (f"{HEAVY}|{other}", f"{HEAVY}{sign}{LIGHT}", f"{other}{sign}{other[::-1]}"):
        read = read_sequences(pd.DataFrame({"seq": [text]}), **options)
        assert read.antibodies.chains == [tuple(re.split("[|/:]", text))]


@pytest.mark.parametrize("sign", [",", ";", "/", "_", " + ", " [SEP] ", "<sep>"])
def test_chains_that_are_joined_by_another_sign_are_read(sign):
    antibodies = [f"{heavy}{sign}{light}" for heavy, light in zip(HEAVIES, LIGHTS, strict=True)]
    table = pd.DataFrame({"seqs": antibodies, "antigen": f"{AG}{sign}{AG[::-1]}"})
    with pytest.raises(ColumnError, match="By their content: --column antibody=seqs"):
        read_sequences(table)
    read = read_sequences(table.rename(columns={"seqs": "antibody"}))
    assert read.antibodies.chains == [*zip(HEAVIES, LIGHTS, strict=True)]
    assert read.antigens.chains == [tuple(sorted((AG, AG[::-1])))]
    assert read.counts["joined_antigens"] == 1
    assert (
        read_sequences(table.assign(antibody=antibodies, antigen=f"{AG}|{AG}")).counts[
            "joined_antigens"
        ]
        == 0
    )
    with pytest.raises(AbagError, match=r"column 'heavy': .* has 2 chains; expected one"):
        read_sequences(table.rename(columns={"seqs": "heavy"}))


def test_of_two_columns_for_a_chain_the_one_that_holds_sequences_is_read():
    table = pd.DataFrame({"HC": HEAVIES, "LC": LIGHTS, "light": "kappa", "antigen": AG})
    assert read_sequences(table).antibodies.chains == [*zip(HEAVIES, LIGHTS, strict=True)]
    with pytest.raises(AbagError, match="fit light equally well"):
        abag.plan(table.assign(light=LIGHTS))


def test_the_affinity_of_alphaseq_is_proposed_alone_and_with_the_unit_that_it_has():
    frame = pd.DataFrame(
        {
            "mata_sequence": [h + "GGGGS" * 3 + LIGHT for h in HEAVIES],
            "alphaseq_affinity": 9 - PKD, "predicted_affinity": 9.5 - PKD,
            "avg_off_target_affinity": 4.5 + PKD / 100,
        }
    )  # fmt: skip
    option = "--column pkd=alphaseq_affinity --label log10_kd_nm"
    for columns in ({}, {"label": "alphaseq_affinity"}):
        reason = abag.plan(frame, columns=columns, no_antigen=True)["refused"]
        assert option in reason
        assert "off_target" not in reason


def chembl(**columns):
    """Return a table as ChEMBL and others export measurements: a value, and columns about it."""
    table = {"heavy": HEAVIES[:6], "light": LIGHTS[:6], "antigen": AG}
    return pd.DataFrame(table | {"Standard Value": [10.0, 100, 30, 5, 8, 1000]} | columns)


VALUE = {"columns": {"pkd": "Standard Value"}}
RELATIONS = ["'='", "'>'", "", "'='", "'<'", "'='"]


@pytest.mark.parametrize("name", ["Standard Relation", "Measurement Inequality", "KD qualifier"])
def test_relations_are_told_by_their_cells_whatever_their_column_is_called(name):
    pairs = read_labels(chembl(**{name: RELATIONS}), label="kd_nm", **VALUE)
    by_label = dict(zip(pairs.pkd.round(2).tolist(), pairs.censored.tolist(), strict=True))
    assert by_label == {8.0: 0, 7.0: -1, 7.52: 0, 8.3: 0, 8.1: 1, 6.0: 0}
    said = f"column {name!r} is used as censored: it holds relations such as > or ="
    assert said in pairs.table.notes


def test_a_bound_far_below_rows_without_any_is_read():
    rows = pd.concat([chembl(operator="=")] * (50_000 // 6 + 1), ignore_index=True)
    rows.loc[rows.index[-1], "operator"] = ">"
    assert (read_labels(rows, label="kd_nm", **VALUE).censored == -1).sum() == 1
    assert not read_labels(chembl(operator="="), label="kd_nm", **VALUE).table.has("censored")


@pytest.mark.parametrize("name", ["modifier", "relation", "censored"])
@pytest.mark.parametrize("words", [
    ("GT", "LT", "eq"),
    ("greater than", "Less than", "equal"),
    ("lower bound", "upper bound", "interpolated"),
])  # fmt: skip
def test_relations_in_words_are_bounds(name, words):
    above, below, exact = words
    pairs = read_labels(
        chembl(**{name: [exact, above, "", exact, below, exact]}), label="kd_nm", **VALUE
    )
    by_label = dict(zip(pairs.pkd.round(2).tolist(), pairs.censored.tolist(), strict=True))
    assert by_label == {8.0: 0, 7.0: -1, 7.52: 0, 8.3: 0, 8.1: 1, 6.0: 0}


@pytest.mark.parametrize("exact", ["interpolated", "exact", ""])
def test_lower_and_upper_are_sides_of_a_bound_in_a_column_of_bounds(exact):
    cells = [exact, "lower", "", exact, "upper", exact]
    table = chembl(ic50_bound=cells).rename(columns={"Standard Value": "ic50"})
    pairs = read_labels(table, label="kd_nm")
    by_label = dict(zip(pairs.pkd.round(2).tolist(), pairs.censored.tolist(), strict=True))
    assert by_label == {8.0: 0, 7.0: -1, 7.52: 0, 8.3: 0, 8.1: 1, 6.0: 0}
    for name in ("bound", "pic50_bound"):  # a lower bound of a pIC50 is one of the affinity
        of_log = chembl(**{name: cells}).rename(columns={"Standard Value": "pIC50"})
        of_log["pIC50"] = 9 - np.log10(of_log["pIC50"].astype(float))
        pairs = read_labels(of_log, columns={"censored": name})
        by_label = dict(zip(pairs.pkd.round(2).tolist(), pairs.censored.tolist(), strict=True))
        assert by_label == {8.0: 0, 7.0: 1, 7.52: 0, 8.3: 0, 8.1: -1, 6.0: 0}
    with pytest.raises(LabelError, match=r"'lower' .* is not a valid relation"):  # or less than it?
        read_labels(chembl(relation=cells), label="kd_nm", **VALUE)


@pytest.mark.parametrize("cells", [[False, True], ["no", "yes"], [0, 1], ["uncensored", "right"]])
def test_flags_that_no_label_is_a_bound_are_read_and_others_lack_the_side(cells):
    table = chembl(censored=cells[0])
    assert not read_labels(table, label="kd_nm", **VALUE).censored.any()
    said = rf"row 3, column censored: '?{cells[1]}'? .* is not a valid relation; expected > or <"
    flagged = table.assign(censored=[*2 * cells[:1], *4 * cells[1:]])
    with pytest.raises(LabelError, match=said):
        read_labels(flagged, label="kd_nm", **VALUE)
    with pytest.raises(LabelError, match="column is_censored"):
        read_labels(flagged.rename(columns={"censored": "is_censored"}), label="kd_nm", **VALUE)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("below_LOD", ["no", "yes"]),
        ("Exclude", ["", "x"]),
        ("qcPass", [True, False]),
        ("Outlier?", [0, 1]),
        ("QC", ["PASS", "Fail"]),
        ("at_bound", ["yes", "no"]),
        ("greater_than", [0, 1]),
        ("IC50_isBound", [True, False]),
    ],
)
def test_columns_that_may_say_which_rows_not_to_use_are_reported(name, cells, tmp_path):
    def notes(cells, **options):
        chembl(**{name: cells}).to_csv(tmp_path / "t.csv", index=False)
        return " ".join(
            read_labels(tmp_path / "t.csv", label="kd_nm", **VALUE, **options).table.notes
        )

    said = f"column {name!r} is not used; if it says which labels are bounds"
    assert said in notes(3 * cells)
    assert said not in notes(cells[0])  # of no row
    assert said not in notes(["fine", *5 * ["see the notebook"]])
    assert said not in notes(3 * cells, categories=[name])


@pytest.mark.parametrize("name", ["potency", "result", "Standard Value"])
def test_a_column_of_units_is_of_a_label_of_any_name(name):
    table = chembl(**{"Unit": "ng/mL"}).rename(columns={"Standard Value": name})
    chosen = {"columns": {"pkd": name}}
    assert read_labels(table, **chosen).unit == "ng_ml"
    with pytest.raises(LabelError, match=r"'ng/mL' .* is not the unit of labels that are read as"):
        read_labels(table, label="ug_ml", **chosen)
    value = {"columns": {"label": name}, "label": "value", "better": "lower"}
    assert len(read_labels(table, **value)) == 6
    with pytest.raises(LabelError, match="expected one unit in all rows"):
        read_labels(table.assign(Unit=3 * ["ng/mL", "ug/mL"]), **value)


@pytest.mark.parametrize("cells", [["Alice", "Bob"], ["1", "2"], [1, 2]])
def test_a_column_of_persons_called_operator_is_no_relation(cells):
    table = chembl(operator=3 * cells)
    assert "censored" not in read_labels(table, label="kd_nm", **VALUE).table.columns
    for words in (["gt", "eq"], [">", "="]):
        used = table.assign(operator=3 * words)
        assert read_labels(used, label="kd_nm", **VALUE).censored.any()
    columns = VALUE["columns"] | {"censored": "operator"}
    with pytest.raises(LabelError, match="is not a valid relation"):
        read_labels(table, label="kd_nm", columns=columns)


@pytest.mark.parametrize("name", ["pChEMBL relation", "IC80 relation"])
def test_relations_of_another_quantity_are_reported_and_not_used(name):
    pairs = read_labels(chembl(**{name: RELATIONS}), label="kd_nm", **VALUE)
    assert not pairs.censored.any()
    assert any("are not used; if they are of Kd" in note for note in pairs.table.notes)


def test_one_of_two_columns_of_relations_has_to_be_chosen():
    table = chembl(relation=RELATIONS, kd_relation=RELATIONS)
    with pytest.raises(ColumnError, match="fit censored equally well"):
        read_labels(table, label="kd_nm", **VALUE)
    columns = VALUE["columns"] | {"censored": "relation"}
    assert read_labels(table, label="kd_nm", columns=columns).censored.any()
    # also in one of several tables
    with pytest.raises(ColumnError, match="fit censored equally well"):
        read_labels([chembl(censored=RELATIONS), table], label="kd_nm", **VALUE)


@pytest.mark.parametrize(
    "types",
    [
        ["Kd", "IC50"],
        ["KD (nM)", "IC50 (nM)"],
        ["kon", "KD"],
        ["Tm", "pKd"],
        ["Binding", "Expression"],
        ["Affinity", "Stability"],
    ],
)
def test_measurements_of_different_quantities_are_told_by_their_cells(types):
    table = chembl(**{"Standard Type": 3 * types})
    with pytest.raises(LabelError, match=r"several affinity types.* 3 of .* or rename the column"):
        read_labels(table, label="kd_nm", **VALUE)
    assert len(read_labels(table, label="kd_nm", affinity_type=types[1], **VALUE)) == 3
    table["Standard Type"] = "IC50"
    assert read_labels(table, label="kd_nm", **VALUE).quantity.name == "pIC50"


def test_types_are_told_from_cells_that_have_the_value_too_as_pdbbind_writes_them():
    cells = ["Kd=1.5nM", "Kd~3nM", "IC50<2uM", "Kd=4.1nM", "IC50=7uM", "Kd>9mM"]
    table = chembl(**{"Affinity Data": cells, "pKd pIC50": [7.1, 6.2, 8.3, 5.4, 9.5, 6.6]})
    given = {"columns": VALUE["columns"] | {"pkd": "pKd pIC50"}}
    with pytest.raises(LabelError, match=r"several affinity types .*: 4 of 'Kd', 2 of 'IC50'; exp"):
        read_labels(table, **given)
    read = read_labels(table, affinity_type="Kd", **given)
    assert (len(read), read.quantity.name) == (4, "pKd")
    # a condition is no value: labels at two of them are not mixed
    table["Affinity Data"] = ["Kd pH=7.4", "Kd pH=6.0"] * 3
    with pytest.raises(LabelError, match=r"3 of 'Kd pH=7\.4', 3 of 'Kd pH=6\.0'; expected one"):
        read_labels(table, **given)


@pytest.mark.parametrize("name", ["Standard Units", "KD unit", "unit"])
def test_labels_in_several_units_are_refused_by_the_column_that_says_so(name, tmp_path):
    units = ["nM", "nM", "uM", "nM", "", "µM"]
    said = rf"row 4, column {name}: 'uM' \(2 such rows\) is not the unit of labels .* as kd_nm"
    table = chembl(**{name: units})
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(LabelError, match=said):
        read_labels(tmp_path / "t.csv", label="kd_nm", **VALUE)
    # of another column than the label
    named = table.rename(columns={"Standard Value": "Kd (nM)"})
    assert len(read_labels(named)) == 6


def test_a_column_of_one_unit_says_what_labels_are_read_in():
    table = chembl(**{"KD unit": "nmol/L"}).rename(columns={"Standard Value": "KD"})
    pairs = read_labels(table, columns={"pkd": "KD"})
    assert pairs.unit == "kd_nm"
    assert "column 'KD unit' says so" in pairs.reading.line
    with pytest.raises(ColumnError, match="'KD' is kd_nm by column 'KD unit': use") as caught:
        read_labels(table)
    proposed = {"pkd": ["--column", "pkd=KD"], "label": ["--label", "kd_nm"]}
    assert arguments(str(caught.value)) == proposed
    unnamed = table.rename(columns={"KD": "Standard Value", "KD unit": "Standard Units"})
    with pytest.raises(ColumnError, match="'Standard Value' is kd_nm by column") as caught:
        read_labels(unnamed)
    assert arguments(str(caught.value))["label"] == ["--label", "kd_nm"]
    with pytest.raises(ColumnError, match="'KD' may be one") as caught:
        read_labels(table.drop(columns="KD unit").assign(**{"KD unit": "°C"}))
    assert "'KD unit' may be" not in str(caught.value)


@pytest.mark.parametrize("name", ["antigen_seq_2", "antigen_chain_b", "Target"])
def test_a_second_column_of_antigens_is_reported(name):
    frame = pd.DataFrame({"heavy": HEAVIES, "antigen": AG, name: AG[::-1]})
    (note,) = read_sequences(frame).notes
    assert note.startswith(f"column {name!r} holds sequences that are not used; if they are")
    assert not read_sequences(frame.assign(**{name: "HER2"})).notes
    assert not read_sequences(frame.rename(columns={name: "antigen_epitope"})).notes


@pytest.mark.parametrize("name", ["sample_id", "plate number", "n_reads"])
def test_a_column_that_numbers_or_counts_rows_is_not_proposed_as_the_label(name):
    table = pd.DataFrame({"heavy": HEAVIES, "light": LIGHTS, "antigen": AG})
    numbers = np.arange(len(table)) % 7 + 1.5
    refused = abag.plan(table.assign(**{name: numbers}))["refused"]
    assert "no column for pkd" in refused
    assert "label=" not in refused
    assert (
        "label=signal" in abag.plan(table.assign(**{name: numbers, "signal": numbers}))["refused"]
    )


CODONS = dict(zip("ACDEFGHIKLMNPQRSTVWY", (
    "GCT TGT GAT GAA TTT GGT CAT ATT AAA CTG ATG AAT CCG CAG CGT TCT ACC GTT TGG TAT".split()
), strict=True))  # fmt: skip


def coded(chains):
    return ["".join(CODONS[residue] for residue in chain) for chain in chains]


NUCLEOTIDES_BESIDE = {
    "heavy": ({"heavy_sequence": coded(HEAVIES), "VH_protein": HEAVIES}, "VH_protein"),
    "light": ({"VL sequence": coded(LIGHTS), "VL translation": LIGHTS}, "VL translation"),
    "antigen": ({"antigen_seq": coded([AG] * 12), "antigen": AG}, "antigen"),
}


@pytest.mark.parametrize("role", NUCLEOTIDES_BESIDE)
def test_amino_acids_are_read_where_a_column_of_nucleotides_fits_the_role_by_its_name(role):
    columns, protein = NUCLEOTIDES_BESIDE[role]
    others = {"VH": HEAVIES, "antigen": AG}
    others = {name: cells for name, cells in others.items() if role not in ("heavy", name)}
    others = {"antigen": AG} if role == "heavy" else others
    table = pd.DataFrame({**columns, **others})
    read = read_sequences(table)
    assert read.columns[role] == protein
    (note,) = read.notes[:1]
    assert note == f"column {protein!r} is used as {role}: {table.columns[0]!r} holds nucleotides"
    table[table.columns[0]] = ""
    (note,) = read_sequences(table).notes
    assert note.endswith("holds no sequences")


@pytest.mark.parametrize("name", ["VHH", "Nanobody", "Antibody", "scFv", "Clone"])
@pytest.mark.parametrize("sequence", ["Sequence", "AA sequence", "protein_seq"])
def test_the_column_of_sequences_is_read_beside_one_of_names_that_fits_the_role(name, sequence):
    names = [f"Nb{number}" for number in range(len(HEAVIES))]
    table = pd.DataFrame({name: names, sequence: HEAVIES, "Antigen": "HEL", "target seq": AG})
    read = read_sequences(table)
    assert [chains[0] for chains in read.antibodies.chains] == HEAVIES
    assert read.columns["antigen"] == "target seq"


def test_antigens_are_read_from_the_column_of_sequences_beside_one_of_their_names():
    table = pd.DataFrame({"VHH": HEAVIES, "Antigen": "HEL", "Target protein sequence": AG})
    read = read_sequences(table)
    assert read.columns["antigen"] == "Target protein sequence"
    assert read.columns["antigen_name"] == "Antigen"
    other = table.rename(columns={"Target protein sequence": "protein_seq"}).drop(columns="Antigen")
    with pytest.raises(AbagError, match=r"no column for antigen.*'protein_seq' may hold it"):
        read_sequences(other)
    varied = ["KALEDIVANAKE", "AALEDIVANAKE", "KALADIVANAKE"]  # which can be pronounced
    for peptides in (["GILGFVFTL"], varied):
        read = read_sequences(table.assign(Antigen=np.resize(peptides, len(table))))
        assert read.columns["antigen"] == "Antigen"
    for words in (["Alpha", "Gamma", "Delta"], ["ANTIGENA", "ANTIGENC", "ANTIGEND"]):
        names = table.assign(Antigen=np.resize(words, len(table)))
        assert read_sequences(names).columns["antigen"] == "Target protein sequence"


def test_names_of_antigens_of_which_some_are_residues_are_said_to_be_names():
    table = pd.DataFrame({"VHH": HEAVIES, "antigen": np.resize(["WT", "BA.1", "XBB"], 12)})
    words = r"column 'antigen' holds names, such as 'BA.1', not sequences\."
    with pytest.raises(AbagError, match=words + " If all"):
        read_sequences(table)
    chains = table.assign(antigen_a_seq=AG, antigen_b_seq=AG[::-1], ab_seq=AG)
    with pytest.raises(
        AbagError, match=words + r".*antigen=antigen_a_seq or .*antigen=antigen_b_seq"
    ):
        read_sequences(chains)


@pytest.mark.parametrize("name", ["P04626", "HER2"])
@pytest.mark.parametrize("option", ["antigen", "parent"])
def test_a_name_given_as_a_sequence_is_said_to_be_one(option, name):
    table = pd.DataFrame({"VHH": HEAVIES, "antigen": AG, "mutations": "A1G"})
    with pytest.raises(AbagError, match=f"{option}: '{name}' is a name, not a sequence; expected"):
        read_sequences(table, **{option: name})


def test_columns_of_sequences_are_proposed_beside_one_of_names_whatever_its_longest():
    names = ["adalimumab beta", "belantamab mafodotin", "actinium (225Ac) lintuzumab satetraxetan"]
    names += [f"{syllable}limumab" for syllable in "abcdefghi"]
    table = pd.DataFrame({"Antibody": names, "VH humanized": HEAVIES, "antigen": AG})
    said = "column 'Antibody' holds names, such as .* sequences with --column 'heavy=VH humanized'"
    for bad_rows in ("error", "skip"):
        with pytest.raises(AbagError, match=said):
            read_sequences(table, bad_rows=bad_rows)


def test_names_of_nanobodies_alone_are_said_to_be_names():
    names = [f"Nb{number}" for number in range(12)]
    with pytest.raises(AbagError, match="column 'VHH' holds names, such as 'Nb0', not"):
        read_sequences(pd.DataFrame({"VHH": names, "antigen": AG}))


@pytest.mark.parametrize(("name", "light"), [("scFv", LIGHT), ("Nanobody", ""), ("sdAb", "")])
def test_a_column_that_is_called_as_a_format_of_antibodies_is_read_if_it_holds_them(name, light):
    table = pd.DataFrame({name: [heavy + light for heavy in HEAVIES], "antigen": AG})
    read = read_sequences(table)
    assert read.antibodies.chains == [(heavy, light) for heavy in HEAVIES]
    assert f"column {name!r} is used as antibody: it holds antibody variable domains" in read.notes
    with pytest.raises(AbagError, match="no column for heavy, light or antibody"):
        read_sequences(table.assign(**{name: "True"}))


def test_a_table_of_nucleotides_alone_is_said_to_hold_these():
    table = pd.DataFrame({"VH_nt": coded(HEAVIES), "VL_nt": coded(LIGHTS), "pKd": PKD})
    with pytest.raises(AbagError, match="'VH_nt', 'VL_nt' hold nucleotides: translate them into"):
        abag.plan(table.assign(antigen=AG))
    with pytest.raises(AbagError, match="'VH_nt' holds nucleotides: translate them"):
        abag.plan(table[["VH_nt", "pKd"]])


@pytest.mark.parametrize("name", ["Open Enzyme Collection", "Adapter ligation library design"])
def test_words_of_many_letters_are_not_proposed_as_sequences(name):
    with pytest.raises(AbagError, match="no column for heavy") as caught:
        abag.plan(pd.DataFrame({"clone": ["a1", "a2"], "collection": [name, f"{name} kit"]}))
    assert "collection" not in str(caught.value).partition("found")[2].partition("Name them")[2]


@pytest.mark.parametrize(
    "antigen", ["HUMAN SERUM ALBUMIN", "CHICKEN LYSOZYME", "hemagglutinin stem"]
)
def test_words_in_capitals_are_not_read_as_residues(antigen):
    table = pd.DataFrame({"heavy": HEAVIES, "antigen": [antigen, AG] * 6})
    with pytest.raises(AbagError, match=f"'{antigen}' is a word, not a sequence"):
        read_sequences(table)
    blocks = [" ".join(re.findall(".{1,10}", AG)), "\n".join(re.findall(".{1,17}", AG))]
    blocks += [" ".join(re.findall(".{1,5}", AG)), " ".join(AG)]
    read = read_sequences(table.assign(antigen=blocks * 3))
    assert read.antigens.chains == [(AG,)]
    assert not read.notes


@pytest.mark.parametrize("mark", [" ", "\n", "\r\n", "  "])
def test_chains_of_an_antigen_with_blanks_between_them_are_reported(mark):
    chains = (AG, AG[::-1] + "MKT")
    table = pd.DataFrame({"heavy": HEAVIES, "antigen": AG})
    table.loc[0, "antigen"] = mark.join(chains)
    (note,) = read_sequences(table).notes
    assert note.startswith("1 antigen with blanks between runs of unequal lengths, read as one")
    wrapped = [mark.join(re.findall(f".{{1,{width}}}", "".join(chains))) for width in (60, 20)]
    assert not read_sequences(table.assign(antigen=wrapped * 6)).notes


@pytest.mark.parametrize("name", ["VL_nt", "insert", "light_nucleotide_sequence"])
def test_a_chain_that_a_table_has_as_nucleotides_alone_is_not_left_out(name):
    leader = "GC"  # another reading frame
    table = pd.DataFrame({"VH": HEAVIES, name: [leader + x for x in coded(LIGHTS)], "antigen": AG})
    with pytest.raises(AbagError) as caught:
        read_sequences(table)
    assert f"column {name!r} holds nucleotides of light variable domains, and no" in str(
        caught.value
    )
    assert read_sequences(table, columns={"light": ""}).antibodies.chains[0] == (HEAVIES[0], "")
    beside = table.assign(VL=LIGHTS, VH_dna=coded(HEAVIES))
    assert not any("nucleotides" in note for note in read_sequences(beside).notes)
