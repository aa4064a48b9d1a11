"""An antibody string without separator -> heavy and light."""

import re
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trastuzumab import CH1, CK, D13_HEAVY, D13_LIGHT, LAMBDA
from trastuzumab import HEAVY as VH
from trastuzumab import LIGHT as VL

from abag.embed.tables import chains
from abag.embed.tables.chains import UnsureDomains, split_domains

D13 = (D13_HEAVY, D13_LIGHT)
PAIRS = [(VH, VL), D13, (VH, LAMBDA), (D13_HEAVY, VL)]
LINKERS = ["", "GGGGS" * 3, "GGGGS" * 4, "GGGGS", "XXX", "GSTSGSGKPGSGEGSTKG"]
WITH_SITES = [
    "SSGGGGSGGGGSGGGGS", "GGGGSGGGGSGGGGSAS", "GGGGSGGRASGGGGSGGGGS", "SGGGGSGGGGSTSAS",
    "SGGGGSGGGGSGGGGS",
]  # fmt: skip
"""Linkers with residues of restriction sites beside their repeats."""


@pytest.mark.parametrize("linker", [*LINKERS, *WITH_SITES, "GSGSGSGS"])
@pytest.mark.parametrize(("heavy", "light"), PAIRS)
def test_two_domains_are_split_in_either_order_and_the_linker_removed(heavy, light, linker):
    form = "linker" if linker else "glued"
    assert split_domains(heavy + linker + light) == (heavy, light, form)
    assert split_domains(light + linker + heavy) == (heavy, light, form)


def test_a_trimmed_domain_takes_no_residues_from_the_other_chain_or_the_linker():
    assert split_domains(VH[:-2] + VL) == (VH[:-2], VL, "glued")
    assert split_domains(D13_HEAVY[:-2] + D13_LIGHT[2:]) == (D13_HEAVY[:-2], D13_LIGHT[2:], "glued")
    assert split_domains(VL + "R" + VH) == (VH, VL + "R", "glued")
    assert split_domains(LAMBDA + "G" + VH) == (VH, LAMBDA + "G", "glued")
    assert split_domains(VH[:-1] + "GGGGS" * 3 + VL[2:]) == (VH[:-1], VL[2:], "linker")
    assert split_domains(VL + "R" + "GGGGS" * 3 + VH[1:]) == (VH[1:], VL + "R", "linker")


def test_only_the_start_of_a_constant_domain_stays_beside_a_linker():
    for linker in ("GGGGSGG", "GGGGSGGGGSGG"):
        assert split_domains(VL + linker + VH) == (VH, VL, "linker")
        without_motif = VL.replace("AWYQQ", "AFYQQ")
        assert split_domains(VH + linker + without_motif) == (VH, without_motif, "linker")
    assert split_domains(VH + "AST" + "GGGGS" * 3 + VL) == (VH + "AST", VL, "linker")
    assert split_domains(VL + "RT" + "GGGGS" * 3 + VH) == (VH, VL + "RT", "linker")


@pytest.mark.parametrize("unknown", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize(("heavy", "light"), PAIRS)
def test_unknown_first_residues_of_the_second_domain_are_no_linker(heavy, light, unknown):
    masked_heavy, masked_light = ("X" * unknown + chain[unknown:] for chain in (heavy, light))
    assert split_domains(heavy + masked_light) == (heavy, masked_light, "glued")
    assert split_domains(light + masked_heavy) == (masked_heavy, light, "glued")


@pytest.mark.parametrize("trimmed", [1, 2])
@pytest.mark.parametrize("end", ["EIK", "DIK", "TVL"])
def test_trimmed_residues_of_framework_4_are_not_taken_from_a_complete_second_domain(end, trimmed):
    light = VL.replace("EIK", end)
    assert split_domains(light[:-trimmed] + VH) == (VH, light[:-trimmed], "glued")
    heavy = VH[: -2 - trimmed]
    assert split_domains(heavy + light) == (heavy, light, "glued")


def test_usual_and_mutated_residues_of_framework_4_stay_in_their_chain():
    # of other J segments, where the second domain lacks its first residues
    for end in ("GAGTKLELK", "GTGTKVTAL"):
        light = re.sub("G.GTK.{4}$", end, VL)
        assert light != VL
        for lacking in (1, 2):
            assert split_domains(light + VH[lacking:]) == (VH[lacking:], light, "glued")
    # before the start of a second domain that looks like the trimmed end
    heavy, light = VH.replace("TLVTVSS", "TMITV"), "QSALTQPAS" + LAMBDA[9:]
    assert split_domains(heavy + light) == (heavy, light, "glued")


def test_mutated_or_further_residues_at_the_boundary_stay_in_their_chain():
    for end in ("VTVPS", "VTVYS", "VTVFS"):
        heavy = VH.replace("VTVSS", end)
        assert split_domains(heavy + VL) == (heavy, VL, "glued")
    for start in ("Q", "M", "G"):
        assert split_domains(VL + "RTV" + start + VH) == (start + VH, VL + "RTV", "glued")


def test_a_framework_motif_in_cdr3_does_not_end_the_domain():
    heavy = VH.replace("SRWGGDGFYAMDYWGQG", "SRWGGWGFGAFDYWGQG")
    assert split_domains(heavy + VL) == (heavy, VL, "glued")
    trimmed = D13_HEAVY.replace("ARERDYRLDYWGQG", "ARWGYGAFDYWGQG")[:-2]
    assert split_domains(trimmed + VL[2:]) == (trimmed, VL[2:], "glued")
    mutant = heavy.replace("YWGQG", "YWGQA")
    assert split_domains(mutant + VL) == (mutant, VL, "glued")


def test_a_linker_after_a_broken_framework_motif_is_removed():
    light = D13_LIGHT.replace("FGGGTKLEIK", "CGEETFLEFK")
    for linker in ("GGGGS" * 3, "SS" + "GGGGS" * 3):
        assert split_domains(light + linker + VH) == (VH, light, "linker")


@pytest.mark.parametrize("start", ["", "A", "X", "ASTK", "ASTKGX", "TSTKGPSVFPL"])
def test_residues_of_a_constant_region_stay_with_the_chain_they_follow(start):
    assert split_domains(VH + start + VL) == (VH + start, VL, "glued")
    assert split_domains(VH + start + VL + CK) == (VH + start, VL + CK, "glued")
    for light_end in ("RTVAAP", "RTVAAPSVFIF"):
        assert split_domains(VL + light_end + VH) == (VH, VL + light_end, "glued")


def test_the_j_segment_ends_a_domain_that_immunum_ends_within_a_long_cdr3():
    long = VH.replace("SRWGGDGFYAMDY", "VKDLREYECEEWTSDYYDFGKPQPCLDRRGVSGIFDY")
    assert split_domains(long + VL) == (long, VL, "glued")
    sequence = long + VL
    first, second = chains.find_domains(sequence)
    early = first._replace(end=first.end - 46)
    assert chains._boundary(sequence, early, second) == (len(long), len(long))
    with pytest.raises(UnsureDomains):
        split_domains(long + "ASPAAPAPASPAAPAP" + VL)


@pytest.mark.parametrize("end", ["PIIVTS", "LVTVTA", "TVIVST", "MVTVSP"])
def test_a_mutated_framework_4_keeps_its_last_residues(end):
    heavy = VH.replace("LVTVSS", end)
    assert split_domains(heavy + VL) == (heavy, VL, "glued")


def test_a_heavily_mutated_domain_is_found_by_its_conserved_residues():
    heavy = (  # trastuzumab with random residues in half of its positions
        "EVQLVESGNATVGQDGSLRTSCAATDFSTADTYIQWTRTAANNTTESKATNASTNSTARYADSTEGRFTIKGDQSTNTGYLQMGNLQAEDESVQGC"
        "SRTEGDNFTEMAYWGQGTLVTVSS"
    )
    (domain,) = chains._annotator().number_domains(heavy)
    assert chains.MIN_CONFIDENCE < domain.confidence < chains.SURE_CONFIDENCE
    assert split_domains(heavy + VL) == (heavy, VL, "glued")
    with pytest.raises(UnsureDomains):
        split_domains(heavy.replace("TSCAAT", "TSAAAT") + VL)


def test_a_heavy_chain_written_twice_is_read_once():
    assert split_domains(VH + VH) == (VH, "", "repeated")
    assert split_domains((VH + "AAAEQK") * 2) == (VH + "AAAEQK", "", "repeated")


def test_an_unknown_linker_is_removed_and_a_gap_too_short_for_a_linker_is_refused():
    assert split_domains(VH + "ASPAAPAPASPAAPAP" + VL).form == "linker"
    with pytest.raises(UnsureDomains, match="two variable domains with an uncertain boundary"):
        split_domains(VH + "TPKWP" + VL)


def test_a_string_with_one_domain_is_a_chain_of_its_type():
    for chain in (VH, VH + CH1, "MGWSCIILFLVATATGVHS" + VH, VH + "AAAHHHHHH"):
        assert split_domains(chain) == (chain, "", "one chain")
    for chain in (VL, VL + CK, LAMBDA):
        assert split_domains(chain) == ("", chain, "one chain")


@pytest.mark.parametrize("text", ["ACD", "A" * 120])
def test_a_short_string_without_a_known_domain_is_a_heavy_chain(text):
    assert split_domains(text) == (text, "", "unrecognised")


@pytest.mark.parametrize(("text", "part"), [
    (VH + D13_HEAVY, "heavy + heavy"), (VL + "GGGGS" * 3 + LAMBDA, "light + light"),
    (VH + VL + VH + VL, "heavy + light + heavy + light"), (VH[:60] + VL, "fragment"),
    (VH + VL[:60], "fragment"), (VL + VL, "light + light"), (VH + CH1 + VL, "uncertain boundary"),
    (VH + CH1[:40] + VL, "uncertain boundary"), (VH + "M" * 61, "61 residues"),
    ("M" * 61 + VH, "61 residues"), ("M" * 191, "191 residues"),
    (VH + "GGGGS" * 3 + VL + "M" * 100, "100 residues"),
])  # fmt: skip
def test_an_uncertain_split_is_refused(text, part):
    with pytest.raises(UnsureDomains, match=re.escape(part)):
        split_domains(text)


@settings(max_examples=50, deadline=None)
@given(st.text("ACDEFGHIKLMNPQRSTVWY", max_size=250))
def test_a_random_string_is_never_split(text):
    try:
        assert split_domains(text) == (text, "", "unrecognised")
    except UnsureDomains:
        assert len(text) > chains.MAX_UNRECOGNIZED_RESIDUES


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(PAIRS), st.sampled_from(LINKERS + WITH_SITES[:1]), st.booleans(), st.data())
def test_a_split_mutant_loses_only_the_residues_of_the_linker(pair, linker, swapped, data):
    first, second = (list(chain) for chain in (reversed(pair) if swapped else pair))
    for chain in (first, second):
        for _ in range(4):
            at = data.draw(st.integers(8, 90))
            chain[at] = data.draw(st.sampled_from("ACDEFGHIKLMNPQRSTVWY"))
    try:
        split = split_domains("".join(first) + linker + "".join(second))
    except UnsureDomains:
        return
    chains = (split.light, split.heavy) if swapped else (split.heavy, split.light)
    assert chains == ("".join(first), "".join(second))


def test_the_benchmark_checks_boundaries_by_conserved_residues(tmp_path, capsys):
    table = tmp_path / "glued.csv"
    texts = [VH + VL, VH + "ASTKGP" + VL, VH[:-2] + VL, VL + VH, VH + VH, VH + D13_HEAVY]
    table.write_text("antibody,antigen\n" + "".join(f"{text},M\n" for text in texts))
    path = Path(__file__).parents[1] / "benchmarks" / "bench_domains.py"
    runpy.run_path(str(path))["main"](str(table))
    printed = capsys.readouterr().out
    assert "3 confirmed" in printed
    assert "1 not confirmed" in printed
    assert "1 repeated" in printed
    assert "- unsure, 1 rows: holds the variable domains heavy + heavy" in printed
