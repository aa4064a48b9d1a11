"""Encoder families: fingerprints that must never change, and what a new family needs."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import abag
from abag.embed.encoders.loading import identify
from abag.embed.families.family import Family
from abag.embed.families.registry import ALIASES, FAMILIES, Alias
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.head.data.demo import demo_table

# recorded before families had one description each: stores are found by these
FINGERPRINTS = {
    ("composition", "antibody"): "6f242c929e27d7fb25d300aecb856a2b",
    ("composition", "antigen"): "6f242c929e27d7fb25d300aecb856a2b",
    ("tiny-igt5", "antibody"): "267795414039090d1645ac1ded387a8e",
    ("tiny-igt5", "antigen"): "dd323e2faaa051396d78a08aeedd9f89",
    ("tiny-esm2", "antibody"): "fdbad22b6c9e5c1879d6d47de9072cfe",
    ("tiny-esm2", "antigen"): "fdbad22b6c9e5c1879d6d47de9072cfe",
    ("antiberty", "antibody"): "65a8c6e73de85d0f0016ca508a38ebb7",
}


@pytest.mark.parametrize(("name", "kind"), FINGERPRINTS)
def test_fingerprints_are_those_of_existing_stores(name, kind):
    assert identify(name, kind).fingerprint == FINGERPRINTS[name, kind]


def test_the_fingerprint_covers_exactly_these_fields():
    assert identify("tiny-esm2", "antigen").meaning == {
        "weights": "7f5b3fde136af6b7fd81a4109358bab3",
        "family": "esm",
        "tokens": 1,
        "pooling": 1,
        "long": "window-1022",
        "adapter": None,
    }
    assert identify("composition", "antigen").meaning == {
        "weights": "",
        "family": "composition",
        "tokens": 1,
        "pooling": 1,
        "long": "whole",
        "adapter": None,
    }


class LetterEmbedding:
    """A fixed random vector per token id."""

    width = 3
    table = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))

    def __call__(self, batch, layer_pooling=None):
        return self.table[torch.from_numpy(batch.ids).long()]


class LetterFamily(Family):
    def build(self, backend, checkpoint, plan, attention):
        assert backend == "letters"
        return LetterEmbedding()


def test_a_new_family_needs_a_description_an_alias_and_nothing_else(monkeypatch, tmp_path):
    vocabulary = Vocabulary(residue_ids("ACDEFGHIKLMNPQRSTVWYX", 4), start=1, end=2, window=40)
    letters = LetterFamily(name="letters", vocabulary=vocabulary, backends=("letters",))
    monkeypatch.setitem(FAMILIES, "letters", letters)
    monkeypatch.setitem(ALIASES, "letters", Alias("letters"))
    table, store = demo_table().head(8), tmp_path / "store"
    summary = abag.embed_table(table, store, "letters", "letters", store_dtype="float32")
    assert summary["antigens"]["encoder"] == "letters"
    antigen = table["antigen"].iloc[0]
    assert len(antigen) > 40  # encoded in overlapping windows
    expected = LetterEmbedding.table[torch.from_numpy(vocabulary.encode(antigen)).long()].mean(0)
    (vector,) = abag.open_store(store).vectors("antigen", [antigen])
    np.testing.assert_allclose(vector, expected.numpy(), atol=1e-6)


def test_every_alias_names_a_family():
    assert {alias.family for alias in ALIASES.values()} <= FAMILIES.keys()


def test_family_descriptions_and_token_layouts_load_no_torch():
    program = (
        "import sys; from abag.embed.families.registry import FAMILIES\n"
        "from abag.embed.packing.tokens import Layout\n"
        "assert Layout('antigen', FAMILIES['esm'].vocabulary).span_lengths(('MKV',)) == [5]\n"
        "assert not {'torch', 'transformers', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
