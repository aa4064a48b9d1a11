import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abag.embed.encoders import reference
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.encoders.loading import identify
from abag.embed.encoders.reference import check_tokenizer, load_tokenizer
from abag.embed.families.registry import FAMILIES
from abag.embed.packing.tokens import Layout, SequenceTooLong, TokenizerMismatch
from abag.embed.sequences.chains import RESIDUES

T5, ESM, BERT = (FAMILIES[name].vocabulary for name in ("t5", "esm", "bert"))
chain = st.text(RESIDUES, min_size=1, max_size=60)


@given(heavy=chain, light=chain)
def test_paired_igt5_tokens_equal_the_spaced_input_of_its_tokenizer(heavy, light):
    tokenizer = load_tokenizer(find_checkpoint("tiny-igt5"))
    span = Layout("antibody", T5).spans((heavy, light))[0]
    expected = tokenizer(f"{' '.join(heavy)} </s> {' '.join(light)}")["input_ids"]
    assert span.ids.tolist() == expected
    assert len(span.ids) == len(heavy) + len(light) + 2


@given(sequence=chain)
def test_a_single_heavy_or_light_chain_is_its_residues_and_one_end_token(sequence):
    layout = Layout("antibody", T5)
    heavy, light = layout.spans((sequence, ""))[0], layout.spans(("", sequence))[0]
    assert heavy.ids.tolist() == light.ids.tolist()
    assert len(heavy.ids) == len(sequence) + 1
    assert heavy.weights[:, 1].sum() == pytest.approx(1)
    assert not heavy.weights[:, 2].any()
    assert not light.weights[:, 1].any()


@given(sequence=chain)
def test_esm_tokens_equal_those_of_its_tokenizer(sequence):
    tokenizer = load_tokenizer(find_checkpoint("tiny-esm2"))
    span = Layout("antigen", ESM).spans((sequence,))[0]
    assert span.ids.tolist() == tokenizer(" ".join(sequence))["input_ids"]


@pytest.mark.parametrize("name", ["tiny-igt5", "tiny-esm2", "antiberty"])
@pytest.mark.parametrize("kind", ["antibody", "antigen"])
def test_every_vocabulary_agrees_with_its_checkpoints_tokenizer(name, kind):
    identity = identify(name, kind)
    check_tokenizer(identity.checkpoint, identity.layout)


def test_a_tokenizer_that_differs_is_an_error_with_the_first_differing_position(monkeypatch):
    checkpoint, layout = find_checkpoint("tiny-esm2"), Layout("antigen", ESM)
    tokenizer = load_tokenizer(checkpoint)

    def shifted(text):
        ids = list(tokenizer(text)["input_ids"])
        ids[3] += 1
        return {"input_ids": ids}

    monkeypatch.setattr(reference, "load_tokenizer", lambda _: shifted)
    with pytest.raises(TokenizerMismatch, match=r"at position 3 .*\[10\] against \[9\]|position 3"):
        check_tokenizer(checkpoint, layout)


@pytest.mark.parametrize(
    ("vocabulary", "kind", "lengths"),
    [
        (ESM, "antigen", [1]),
        (ESM, "antigen", [1022]),
        (ESM, "antigen", [1023]),
        (ESM, "antigen", [2500, 80]),
        (T5, "antigen", [2044]),
        (BERT, "antibody", [120, 700]),
        (T5, "antibody", [130, 110]),
        (ESM, "antibody", [130, 0]),
    ],
)
def test_weights_average_every_residue_equally_and_special_tokens_never(vocabulary, kind, lengths):
    layout = Layout(kind, vocabulary)
    rng = np.random.default_rng(0)
    chains = tuple("".join(rng.choice(list(RESIDUES[:20]), n)) for n in lengths)
    spans = layout.spans(chains)
    assert [len(p.ids) for p in spans] == layout.span_lengths(chains)
    total = np.sum([p.weights.sum(0) for p in spans], axis=0)
    expected = [1.0 if name != "light_mean" or lengths[1] else 0.0 for name in layout.poolings]
    np.testing.assert_allclose(total, expected, atol=1e-5)
    specials = {vocabulary.start, vocabulary.end, vocabulary.separator} - {None}
    for span in spans:
        special = np.isin(span.ids, list(specials))
        assert not span.weights[special, 0].any()
        if layout.limit is not None and kind == "antigen":
            assert len(span.ids) <= layout.limit + vocabulary.special_tokens


def test_windows_of_a_2500_residue_chain_start_every_511_residues_and_reach_the_end():
    layout = Layout("antigen", ESM)
    assert layout.span_lengths(("A" * 2500,)) == [1024, 1024, 1024, 2500 - 3 * 511 + 2]


def test_long_chains_are_truncated_or_refused_only_on_request():
    chains = ("A" * 1500,)
    assert Layout("antigen", ESM, "truncate").span_lengths(chains) == [1024]
    assert Layout("antigen", ESM, "truncate").spans(chains)[0].weights[1:-1, 0].sum() == (
        pytest.approx(1, rel=1e-5)
    )
    with pytest.raises(SequenceTooLong, match="1500 residues"):
        Layout("antigen", ESM, "error").spans(chains)
