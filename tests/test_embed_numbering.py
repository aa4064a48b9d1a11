"""IMGT numbering of tables: as a whole, from the cache, and one chain at a time."""

from importlib import metadata
from types import SimpleNamespace

import immunum
import numpy as np
import pytest
from chunks import set_cores, set_sizes
from trastuzumab import HEAVY, LIGHT

from abag.embed.tables.chains import CHAIN_ROLES, locate_positions
from abag.embed.tables.numbering import number_antibodies

H3 = HEAVY.index("WGGDGFYAMDY")
NOT_AN_ANTIBODY = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEK"


@pytest.fixture(scope="module")
def antibodies():
    """Variants with insertions, deletions, trimmed ends and leaders; some chains are no domain."""
    rng = np.random.default_rng(0)
    made = []
    for n in range(120):
        heavy, light = ("".join(part) for part in (HEAVY[n % 3 :], LIGHT[: -1 - n % 4]))
        for _ in range(rng.integers(6)):
            at = rng.integers(H3 - 3, len(HEAVY) - 12)
            kept = rng.integers(2)
            heavy = heavy[:at] + "".join(rng.choice(list("ACDY"), 1)) + heavy[at + kept :]
        made.append((("MGWSCIILFLVATATGVHS" * (n % 5 == 0)) + heavy, light * (n % 7 > 0)))
    return [*made, (NOT_AN_ANTIBODY, LIGHT), ("", LIGHT)]


def assert_numbers(numbered, chains, name):
    """Compare with the numbering of one chain at a time."""
    assert set(numbered.chains) == set(chains) - {""}
    residue_of = {chain: {} for chain in numbered.chains}
    for layout, rows, codes_RL in numbered.by_layout():
        for row, codes in zip(rows, codes_RL, strict=True):
            residues = bytes(codes).decode()
            residue_of[numbered.chains[row]] = dict(zip(layout, residues, strict=True))
    for chain, residues in residue_of.items():
        places = locate_positions(chain, name)
        assert residues == {position: chain[at] for position, at in places.items()}


@pytest.mark.ci
@pytest.mark.parametrize("fewest", [1, 1000])
def test_a_table_is_numbered_as_its_chains_one_by_one(antibodies, fewest, monkeypatch):
    set_cores(monkeypatch, 2)
    set_sizes(monkeypatch, numbered_by_processes=fewest, numbered_part=50)
    for at, name in enumerate(CHAIN_ROLES):
        chains = [antibody[at] for antibody in antibodies]
        assert_numbers(number_antibodies(antibodies, None)[name], chains, name)


def same(first, second):
    return all(
        first[name].chains == second[name].chains
        and list(first[name].layouts) == list(second[name].layouts)
        and np.array_equal(first[name].layout, second[name].layout)
        and np.array_equal(first[name].start, second[name].start)
        for name in CHAIN_ROLES
    )


def test_a_second_numbering_is_read_whatever_the_order(antibodies, tmp_path, monkeypatch):
    first = number_antibodies(antibodies, tmp_path)
    monkeypatch.setattr(immunum.Annotator, "number", None)
    assert same(first, number_antibodies(antibodies[::-1] + antibodies[:3], tmp_path))


def test_another_version_of_immunum_numbers_again(antibodies, tmp_path, monkeypatch):
    number_antibodies(antibodies[:3], tmp_path)
    files = set(tmp_path.iterdir())
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(version="9.9"))
    number_antibodies(antibodies[:3], tmp_path)
    assert len(set(tmp_path.iterdir())) == 2 * len(files)


def test_a_damaged_cache_is_numbered_again(antibodies, tmp_path):
    first = number_antibodies(antibodies[:9], tmp_path)
    files = [*tmp_path.iterdir()]
    assert files
    for path in files:
        whole = path.read_bytes()
        for content in (b"", whole[:-1], whole[:16], whole[16:]):
            path.write_bytes(content)
            assert same(first, number_antibodies(antibodies[:9], tmp_path))
            assert path.read_bytes() == whole


def test_a_chain_whose_beginning_is_unknown_has_no_positions_or_one_for_each_residue():
    numbered = 0
    for unknown in range(len(HEAVY)):
        chain = "X" * unknown + HEAVY[unknown:]
        places = locate_positions(chain, "heavy")
        assert [*places.values()] == [*range(min(places.values(), default=0), len(chain))][
            : len(places)
        ]
        numbered += bool(places)
    assert numbered > 10
    # a domain is found, but none of its residues is numbered
    chain = (
        "XXXXXXXXXXXXXXXXXXXXXXXASGGTFSTYAITWVRRAPGQGLEWMGGIIPRLGRTEYAQKFLGRVTITADEITSTAHMQLTSLRPDDTAVYYCARE"
        "GAIDDPQAGYHYYNGIDVWGQGTTVTVSS"
    )
    assert locate_positions(chain, "heavy") == {}
