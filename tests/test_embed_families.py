"""Encoder families: fingerprints that must never change, and what a new family needs."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from drawn import demo_table
from encoding import (
    ALIASES,
    CPU,
    FAMILIES,
    LayerStates,
    assert_close,
    family_of,
    identify,
    load_encoder,
    pack_spans,
    pool_tokens,
    pooling_of,
    random_encoder,
    save_random_checkpoint,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_antiberty
from shapes import SHAPES

import abag
from abag.core.messages import reporting
from abag.embed.encoders.family import Architecture, Family
from abag.embed.encoders.packing import Vocabulary, number_tokens
from abag.embed.encoders.registry import Alias

FINGERPRINTS = {
    ("composition", "antibody"): "6f242c929e27d7fb25d300aecb856a2b",
    ("composition", "antigen"): "6f242c929e27d7fb25d300aecb856a2b",
    ("tiny-igt5", "antibody"): "d35cae4cf0aba7d7d69c01f64def01cb",
    ("tiny-igt5", "antigen"): "36e375bb181ca76c789704afebb9b60d",
    ("tiny-esm2", "antibody"): "eed5532d0f68a7d115bc6e1931cd883c",
    ("tiny-esm2", "antigen"): "eed5532d0f68a7d115bc6e1931cd883c",
    ("antiberty", "antibody"): "847876246cb2b8d0433118148bc3833c",
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*case, marks=needs_antiberty if "antiberty" in case else ())
        for case in FINGERPRINTS
    ],
)
def test_fingerprints_do_not_change(name, kind):
    assert identify(name, kind).fingerprint == FINGERPRINTS[name, kind]


def test_the_fingerprint_covers_exactly_these_fields():
    assert identify("tiny-esm2", "antigen").meaning == {
        "weights": "4676184ed08ff3aa49c6c09935eaee2d",
        "family": "esm",
        "tokens": 1,
        "pooling": 1,
        "long": "window-1022",
        "adapter": None,
        "config": {
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 33,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 1026,
            "hidden_act": "gelu",
            "position_embedding_type": "rotary",
            "rope_theta": 10000.0,
            "emb_layer_norm_before": False,
            "token_dropout": True,
            "mask_token_id": 32,
            "pad_token_id": 1,
            "is_decoder": False,
            "add_cross_attention": False,
        },
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


def test_a_new_family_needs_a_description_an_alias_and_nothing_else(monkeypatch, tmp_path):
    tokens = number_tokens("<pad> <s> </s> <unk> A C D E F G H I K L M N P Q R S T V W Y X")
    vocabulary = Vocabulary.of(tokens, start="<s>", end="</s>", window=40)
    letters = Family(
        name="letters",
        vocabulary=vocabulary,
        backends=("letters",),
        build=lambda _plan: LetterEmbedding(),
    )
    monkeypatch.setitem(FAMILIES, "letters", letters)
    monkeypatch.setitem(ALIASES, "letters", Alias("letters"))
    table = demo_table().head(8)
    store = tmp_path / "store"
    summary = abag.embed_table(table, store, "letters", "letters", store_dtype="float32")
    assert summary["antigens"]["encoder"] == "letters"
    antigen = table["antigen"].iloc[0]
    assert len(antigen) > 40  # encoded in overlapping windows
    expected = LetterEmbedding.table[torch.from_numpy(vocabulary.encode(antigen)).long()].mean(0)
    (vector,) = abag.open_store(store).vectors("antigen", [antigen])
    np.testing.assert_allclose(vector, expected.numpy(), atol=1e-6)


def test_a_new_encoder_of_known_layers_is_one_table(monkeypatch, tmp_path):
    tokens = number_tokens("<s> </s> ? | A C D E F G H I K L M N P Q R S T V W Y")
    family = Family(
        name="own",
        model_type="own",
        tokens=tokens,
        vocabulary=Vocabulary.of(
            tokens, unknown="?", start="<s>", end="</s>", separator="|", max_residues=500
        ),
        sizes=("layers", "width", "heads", "hidden"),
        config_keys=("layers", "width", "heads", "hidden"),
        architecture=Architecture(
            embedding="tokens",
            layers="blocks",
            norms=("n1", "n2"),
            qkv=("qkv",),
            out="out",
            up=("gate", "up"),
            down="down",
            last_norm="norm",
            norm="rms",
            biased=False,
            rotary="halves",
            activation="silu",
            gate="first",
            eps=1e-6,
        ),
        tiny_config={
            "model_type": "own",
            "layers": 3,
            "width": 32,
            "heads": 2,
            "hidden": 64,
            "vocab_size": 24,
        },
    )
    monkeypatch.setitem(FAMILIES, "own", family)
    folder = str(save_random_checkpoint(tmp_path / "model", family.tiny_config, seed=0))
    table = demo_table().head(8)
    vectors = {}
    for backend in ("packed", "reference"):
        options = {"antibody_backend": backend, "antigen_backend": backend, "layers": (2,)}
        store = tmp_path / backend
        abag.embed_table(table, store, folder, folder, store_dtype="float32", **options)
        pairs = list(zip(table["heavy"], table["light"], strict=True))
        vectors[backend] = abag.open_store(store).vectors("antibody", pairs, pooling="mean@2")
    assert vectors["packed"].shape == (8, 32)
    np.testing.assert_allclose(*vectors.values(), atol=1e-5)


def test_every_alias_has_a_family_a_licence_and_the_size_of_a_hub_model():
    for name, alias in ALIASES.items():
        assert alias.family in FAMILIES
        assert alias.licence, name
        assert alias.hub_name is None or (alias.parameters and alias.width), name


@pytest.mark.parametrize("name", SHAPES)
def test_the_size_of_an_alias_is_that_of_its_shape(name):
    shape = FAMILIES[ALIASES[name].family].shape(SHAPES[name])
    alias = ALIASES[name]
    products = 4 * shape.attention_width + shape.feed_forward_products * shape.feed_forward_width
    assert shape.width == alias.width
    assert shape.layers * shape.width * products == pytest.approx(alias.parameters, rel=0.03)


def test_a_licence_without_commercial_use_is_noted_once(monkeypatch, tmp_path):
    licence = ALIASES["ankh-base"].licence
    bound = ALIASES["composition"]._replace(licence=licence)
    monkeypatch.setitem(ALIASES, "composition", bound)
    said = []
    with reporting(said.append, silent=True):
        abag.embed_table(demo_table().head(2), tmp_path, "composition", "composition")
    expected = f"composition: the licence of its weights, {licence}, forbids commercial use"
    assert [line for line in said if "licence" in line] == [f"note: {expected}"]


def test_a_class_that_transformers_lacks_is_an_error_with_its_version(monkeypatch, tmp_path):
    identity = random_encoder(tmp_path, "roformer")
    monkeypatch.setattr("transformers.RoFormerModel", None)
    load_encoder(identity, CPU)  # packed: does not need it
    with pytest.raises(abag.AbagError, match=r"has no RoFormerModel.*pip install -U transformers"):
        load_encoder(identity, CPU, backend="reference")


@pytest.mark.skipif(not hasattr(transformers, "EsmcModel"), reason="there is nothing to compare")
def test_esmc_without_its_class_in_transformers_runs_as_a_module_of_abag(monkeypatch, tmp_path):
    identity = random_encoder(tmp_path, "esmc")
    chains = [("ACDEFGHIKLMNPQRSTVWYX" * n,) for n in (1, 3, 2)]
    batch = pack_spans([(i, s) for i, c in enumerate(chains) for s in identity.layout.spans(c)])

    def states():
        kept = LayerStates()
        out = load_encoder(identity, CPU, backend="reference")(batch, kept)
        return [*kept.states, out]

    theirs = states()
    monkeypatch.setattr("transformers.EsmcModel", None)
    ours = states()
    assert len(ours) == len(theirs) == 4
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other)


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "esm", "position_embedding_type": "rotary"}, "esm"),
        ({"model_type": "esm", "position_embedding_type": "absolute"}, "esm1"),
        ({"model_type": "esm"}, "esm1"),  # transformers leaves a default value out
        ({"model_type": "esm", "position_embedding_type": None}, "esm1"),
        ({"model_type": "bert", "vocab_size": 25}, "bert"),
        ({"model_type": "bert", "vocab_size": 30}, "protbert"),
        ({"model_type": "t5", "vocab_size": 128}, "t5"),
        ({"model_type": "t5", "vocab_size": 144}, "ankh"),
        ({"model_type": "t5", "vocab_size": 150}, "prostt5"),
        ({"model_type": "t5", "vocab_size": 256}, "ankh3"),
        ({"model_type": "t5", "vocab_size": 32128}, "t5"),  # its tokenizer will be refused
    ],
)
def test_config_json_decides_between_families_of_one_model_type(config, family):
    assert family_of(config) is FAMILIES[family]


def test_family_descriptions_and_token_layouts_load_no_torch():
    program = (
        "import sys; from abag.embed.encoders.families import FAMILIES\n"
        "from abag.embed.encoders.packing import TokenLayout\n"
        "assert TokenLayout('antigen', FAMILIES['esm'].vocabulary).span_lengths(('MKV',)) == [5]\n"
        "assert not {'torch', 'transformers', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("ACDWYX", min_size=1, max_size=40), min_size=2, max_size=8), st.booleans())
def test_composition_counts_like_pooled_vectors_of_its_tokens(chains, paired):
    kind = "antibody" if paired else "antigen"
    identity = identify("composition", kind)
    encoder = load_encoder(identity, CPU)
    sequences = [("", chains[0]), *itertools.pairwise(chains)]
    spans = [(k, s) for k, c in enumerate(sequences) for s in identity.layout.spans(c)]
    batch = pack_spans(spans)
    assert torch.equal(encoder.pool(batch), pool_tokens(encoder(batch), *pooling_of(batch)))
