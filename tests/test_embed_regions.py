"""Antibodies given as two chains: exchanged chains, constant domains, the Fv region."""

import itertools

import immunum
import numpy as np
import pandas as pd
import pytest
from chunks import set_sizes
from drawn import COMPOSITION
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import demo_table, read_chunks, read_sequences
from trastuzumab import CH1, CK, CL, LAMBDA
from trastuzumab import D13_HEAVY as D13_H
from trastuzumab import HEAVY as VH
from trastuzumab import LIGHT as VL

import abag
from abag import TableError
from abag.core.messages import reporting
from abag.embed.tables import numbering
from abag.embed.tables import table as tables
from abag.embed.tables.chains import find_domains, variable_domain
from abag.embed.tables.columns import find_columns
from abag.embed.tables.numbering import chain_types
from abag.head.training.inputs import read_inputs

SIGNAL = "MGWSCIILFLVATATGVHS"


def table(heavy, light):
    return pd.DataFrame({"heavy": heavy, "light": light, "antigen": "MKT" * 7})


def read(heavy, light, **options):
    return read_sequences(table(heavy, light), **options)


@pytest.mark.parametrize("tail", ["", CH1, CH1[:8], "A", "HHHHHH", CH1 + "DKTHTCPPCPAPELLGG"])
@pytest.mark.parametrize("heavy", [VH, D13_H])
def test_a_heavy_chain_is_cut_to_its_variable_domain(heavy, tail):
    assert variable_domain(heavy + tail) == heavy
    assert variable_domain(SIGNAL + heavy + tail) == heavy


@pytest.mark.parametrize(("light", "tail"), [(VL, CK), (VL, "R"), (LAMBDA, CL), (LAMBDA, "GQPK")])
def test_a_light_chain_is_cut_to_its_variable_domain(light, tail):
    assert variable_domain(light + tail) == light


@pytest.mark.parametrize("heavy", [VH[:-1], VH[:-2], VH.replace("YWGQG", "YWCQG")])
def test_a_trimmed_or_mutated_domain_ends_where_the_constant_region_starts(heavy):
    assert variable_domain(heavy + CH1) == variable_domain(heavy) == heavy


def test_a_long_cdr3_is_never_cut():
    long = VH.replace("SRWGGDGFYAMDY", "VKDLREYECEEWTSDYYDFGKPQPCLDRRGVSGIFDY")
    assert variable_domain(long + CH1) == long
    assert variable_domain(long + "HHHHHH") in (long, None)


@pytest.mark.parametrize("chain", ["QVQ", "M" * 120, VH + "GGGGS" * 3 + VL, VH[:60]])
def test_a_chain_without_one_certain_domain_is_not_cut(chain):
    assert variable_domain(chain) in (None, chain)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([VH, VL, D13_H, LAMBDA]), st.sampled_from(["", CH1, CK, CL]), st.data())
def test_the_motifs_agree_with_the_domains_that_immunum_finds(chain, tail, data):
    residues = list(chain)
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(4, len(chain) - 1))
        residues[at] = data.draw(st.sampled_from("ACDEFGHIKLMNPQRSTVWY"))
    chain = "".join(residues) + tail
    types = chain_types(chain)
    assert types == [domain.chain for domain in find_domains(chain)]
    if numbering._VARIABLE_DOMAIN.fullmatch(chain):
        assert variable_domain(chain) == chain


def test_mutated_j_segments_do_not_change_the_types_of_domains():
    heavy = D13_H.replace("DYWGQG", "DYFGQG")
    assert chain_types(heavy) == chain_types(heavy + CH1) == ["heavy"]
    assert chain_types(VH + "GGGGS" * 3 + VL.replace("FGQGTK", "CGQETK")) == ["heavy", "light"]


def test_fabs_and_fvs_of_the_same_antibody_get_the_same_key_with_fv():
    chains = [VH, VH + CH1, VH], [VL + CK, VL, VL + "R"]
    assert len(read(*chains).antibodies.keys) == 3
    cut = read(*chains, antibody_region="fv")
    assert cut.antibodies.chains == [(VH, VL)]
    planned = abag.plan(table(*chains), antibody_region="fv")
    assert planned["notes"] == ["1 antibody cut to variable domains"]


def test_antibodies_with_constant_domains_are_counted_with_what_to_do():
    pairs = read([VH + CH1, VH, D13_H + CH1], [VL + CK, VL, LAMBDA + CL])
    assert pairs.antibodies.chains[0] == (VH + CH1, VL + CK)
    (note,) = pairs.notes
    assert note.startswith("2 antibodies with residues beside the variable domain")
    assert "--antibody-region fv" in note


def test_chains_that_cannot_be_cut_are_left_whole_and_counted():
    pairs = read(["QVQ", VH + CH1], ["DIQ", VL], antibody_region="fv")
    assert pairs.antibodies.chains == [("QVQ", "DIQ"), (VH, VL)]
    assert pairs.counts["cut_antibodies"] == pairs.counts["uncut_antibodies"] == 1


def test_a_glued_antibody_is_split_and_then_cut():
    frame = pd.DataFrame({"antibody": [VH + VL + CK], "antigen": ["MKT"]})
    pairs = read_sequences(frame, antibody_region="fv")
    assert pairs.antibodies.chains == [(VH, VL)]
    assert (pairs.counts["split_antibodies"], pairs.counts["cut_antibodies"]) == (1, 1)


@pytest.mark.parametrize("tails", [("", ""), (CH1, CK)])
def test_a_table_with_exchanged_columns_is_refused_with_the_fix(tails):
    heavies = [h + tails[0] for h in (VH, D13_H)]
    lights = [x + tails[1] for x in (VL, VL)]
    match = "most rows hold a light chain.*--column heavy=light --column light=heavy.*--chains auto"
    with pytest.raises(TableError, match=match):
        read(lights, heavies)
    pairs = read(lights, heavies, chains="auto")
    assert pairs.antibodies.chains == list(zip(heavies, lights, strict=True))
    assert pairs.notes[0] == "2 antibodies with heavy and light exchanged: put right"


def test_few_exchanged_rows_are_counted_and_exchanged_only_on_request():
    chains = [VH, VL, D13_H, VL], [VL, D13_H, LAMBDA, ""]
    pairs = read(*chains)
    assert pairs.antibodies.chains[1] == (VL, D13_H)
    assert "2 antibodies with heavy and light exchanged, left" in pairs.notes[0]
    repaired = read(*chains, chains="auto").antibodies.chains
    assert repaired == [(VH, VL), (D13_H, VL), (D13_H, LAMBDA), ("", VL)]


ANTIGENS = ["KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYG" * 2, "MKTAYIAKQRQISFVKSHF" * 6]


@pytest.mark.parametrize("chains", [("", VH), (VL, ""), (VH + "GGGGS" * 3 + VL, "")])
def test_a_chain_that_is_put_into_its_place_has_a_known_domain(chains):
    heavy, light = zip((VH, VL), (VH, VL), chains, strict=True)
    notes = read(heavy, light, chains="auto").notes
    assert not [note for note in notes if "no variable domain" in note]


@pytest.mark.parametrize("light", ["", VL])
def test_a_table_with_antigens_and_heavy_chains_exchanged_is_refused(light):
    frame = pd.DataFrame({"heavy": [*ANTIGENS, "M|K"], "light": light, "antigen": [VH, D13_H, VH]})
    said = "most antigens are variable domains.*, and most antibodies"
    with pytest.raises(TableError, match=f"{said}.*heavy=antigen --column antigen=heavy"):
        read_sequences(frame, bad_rows="skip")


@pytest.mark.parametrize(
    ("heavy", "antigen"), [([VH, D13_H], [D13_H, VH]), (ANTIGENS, [VH, ANTIGENS[0]])]
)
def test_antigens_may_be_antibodies(heavy, antigen):
    frame = pd.DataFrame({"heavy": heavy, "antigen": antigen})
    assert abag.plan(frame)["rows"] == 2


def test_a_light_chain_beside_an_empty_heavy_cell_is_reported():
    frame = pd.DataFrame({"heavy": [VH, "", ""], "light": [VL, VL, LAMBDA], "antigen": "MKT" * 7})
    note = "2 antibodies with a light chain but no heavy one: is that missing by mistake?"
    assert abag.plan(frame)["notes"] == [note]
    lights = frame.drop(columns="heavy")
    assert not abag.plan(lights, columns={"light": "light"})["notes"]
    strings = pd.DataFrame({"antibody": [f"|{VL}"], "antigen": "MKT" * 7})
    assert not abag.plan(strings)["notes"]
    strings["antibody"] = VL
    assert abag.plan(strings)["notes"][0].startswith("1 antibody with a light chain but no heavy")


def test_a_single_chain_fv_in_a_chain_column_is_split_on_request():
    chains = [VL + "GGGGS" * 3 + VH, VH], ["", VL]
    pairs = read(*chains)
    assert "1 antibody with two variable domains in one chain" in pairs.notes[0]
    assert read(*chains, chains="auto").antibodies.chains == [(VH, VL)]
    unsure = [VH + VL + VH, VH], ["", VL]
    with pytest.raises(abag.AbagError, match=r"row 1, column 'heavy', 'light'.*heavy \+ light"):
        read(*unsure, chains="auto")


def test_two_chains_of_one_type_are_counted():
    planned = abag.plan(table([VH, VH], [VL, D13_H]))
    assert "2 heavy or two light" not in planned["notes"][0]
    assert planned["found"]["same_type_antibodies"] == 1


def test_chunks_agree_with_the_whole_table(monkeypatch):
    table = demo_table().head(40)
    table.loc[:9, ["heavy", "light"]] = table.loc[:9, ["light", "heavy"]].to_numpy()
    options = {"chains": "auto", "antibody_region": "fv"}
    whole = read_sequences(table, **options).antibodies.chains
    chunked = [c for chunk in read_chunks(table, **options) for c in chunk.antibodies.chains]
    assert chunked == whole
    assert whole == read_sequences(demo_table().head(40)).antibodies.chains


@pytest.fixture
def numbered(monkeypatch):
    """The chains that immunum numbers to find their domains; none twice in one process."""
    chains = []
    number = immunum.Annotator.number_domains

    def noted(annotator, chain):
        chains.append(chain)
        return number(annotator, chain)

    monkeypatch.setattr(immunum.Annotator, "number_domains", noted)
    return chains


def test_no_chain_of_antibodies_as_usual_is_numbered(numbered):
    heavy = f"{VH[:8]}W{VH[9:]}"  # no other test has numbered it
    heavies = [heavy, D13_H, "QVQ", heavy]
    lights = [VL, LAMBDA, "DIQ", ""]
    assert read(heavies, lights).antibodies.forms[:2] == ["", ""]
    cut = read([heavy], [VL], antibody_region="fv")
    assert cut.antibodies.chains == [(heavy, VL)]
    assert not numbered


PIECES = [VH, VL, LAMBDA, CH1, CK, CL, VH[:-9], VL[:84], "FG", "W", "PSVFPLAP", "A" * 90]
chains = st.lists(st.sampled_from(PIECES), max_size=3).map("".join)


@pytest.mark.ci
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(chains, chains).filter(any), min_size=1, max_size=6, unique=True))
def test_what_is_found_in_an_antibody_does_not_depend_on_the_others(antibodies):
    usual = [(VH, VL)] * (2 * len(antibodies))  # so that no table is refused
    heavies, lights = zip(*usual, *antibodies, strict=True)
    cut = read(heavies, lights).antibodies
    form_of = dict(zip(cut.chains, cut.forms, strict=True))
    for heavy, light in antibodies:
        alone = read([VH, VH, heavy], [VL, VL, light]).antibodies
        assert alone.forms[-1] == form_of[alone.chains[-1]]


def mutants_without_j_segment(n, of_test):
    """As many heavy chains as asked for, cut before framework 4; each test has its own."""
    letters = itertools.product("ACDEFGHIKLMNPQRSTVWY", "ACDEFGHIKLM")
    start = f"{VH[:9]}{of_test}"
    return [start[:5] + a + start[6:] + VH[10:-11] + b for a, b in itertools.islice(letters, n)]


def test_of_many_chains_without_j_segment_only_a_sample_is_numbered(numbered, monkeypatch):
    set_sizes(monkeypatch, recognised_cells=0)
    pairs = read(mutants_without_j_segment(220, "A"), VL)
    assert len(numbered) == 200
    (note,) = pairs.notes
    assert note.startswith("20 antibodies with a chain without a clear J segment")
    assert "--chains auto" in note
    few = read(mutants_without_j_segment(200, "C"), VL)
    assert not few.notes
    assert len(numbered) == 400


def test_of_a_later_chunk_none_are_numbered(numbered, monkeypatch):
    set_sizes(monkeypatch, recognised_cells=0)
    frame = table(mutants_without_j_segment(215, "D"), VL)
    assert len([*read_chunks(frame, rows=210)]) == 2
    assert len(numbered) == 200


def test_a_sample_shows_that_the_columns_are_exchanged():
    heavies = mutants_without_j_segment(220, "E")
    with pytest.raises(TableError, match="most rows hold a light chain"):
        read(VL, heavies)
    assert read(VL, heavies, chains="auto").antibodies.chains == [(h, VL) for h in heavies]


def test_a_chain_of_many_antibodies_is_numbered_once(numbered):
    light = VL.replace("FGQGTK", "CGQEWK")
    read([VH[:5] + a + VH[6:] for a in "ACDEFGHIKLMNPQRSTVWY"], light)
    assert numbered == [light]


@pytest.mark.ci
def test_a_predictor_cuts_antibodies_as_its_run_did(tmp_path):
    table = demo_table().head(150)
    fabs = table.assign(
        heavy=table["heavy"] + CH1,
        light=table["light"].where(table["light"] == "", table["light"] + CK),
    )
    fabs.to_csv(tmp_path / "fabs.csv", index=False)
    fv = {"antibody_region": "fv"}
    abag.embed_table(tmp_path / "fabs.csv", tmp_path / "store", **COMPOSITION, **fv)
    again = abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    assert again["antibodies"]["encoded"] == 0
    run = tmp_path / "run"
    abag.fit(tmp_path / "fabs.csv", tmp_path / "store", run, split="random", epochs=2, **fv)
    out = [tmp_path / "fab.csv", tmp_path / "fv.csv"]
    for rows, path in zip((fabs, table), out, strict=True):
        abag.predict(rows, run, path, **COMPOSITION)
    scores = [pd.read_csv(path)["pkd_predicted"] for path in out]
    np.testing.assert_array_equal(*scores)
    prediction = abag.load_predictor(run).predict(
        fabs["heavy"][0], fabs["light"][0], fabs["antigen"][0]
    )
    np.testing.assert_allclose(prediction["pkd_predicted"], scores[0][:1], rtol=1e-5)
    with pytest.raises(abag.AbagError, match="antibody_region='as-given': the run used 'fv'"):
        abag.predict(table, run, tmp_path / "x.csv", antibody_region="as-given")
    abag.evaluate(run, table=tmp_path / "fabs.csv")


def test_a_store_of_variable_domains_is_read_by_the_same_decisions(tmp_path, monkeypatch):
    fabs = demo_table().head(30)
    fabs = fabs.assign(heavy=fabs["heavy"] + CH1)
    abag.embed_table(fabs, tmp_path / "store", **COMPOSITION, antibody_region="fv")
    decided = []

    def find(*arguments):
        decided.append(arguments)
        return find_columns(*arguments)

    monkeypatch.setattr(tables, "find_columns", find)
    said = []
    with reporting(said.append):
        inputs = read_inputs(fabs, tmp_path / "store", abag.FitConfig())
    assert inputs.layout.antibody_region == "fv"
    assert any("cut to their variable domains, as in the store" in line for line in said)
    assert len(decided) == 1


def test_antigens_and_light_chains_exchanged_are_refused_before_anything_is_stored(tmp_path):
    frame = pd.DataFrame({"heavy": [VH, D13_H], "light": ANTIGENS, "antigen": [VL, LAMBDA]})
    with pytest.raises(TableError, match="most antigens are variable domains"):
        abag.embed_table(frame, tmp_path / "store", "composition", "composition")
    assert not (tmp_path / "store").exists()
