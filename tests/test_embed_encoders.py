"""Golden numerics: what is stored against transformers, one sequence at a time, by hand."""

import json

import numpy as np
import pytest
import torch
import transformers
from drawn import draw_chain
from encoding import (
    CPU,
    FAMILIES,
    TINY_CONFIG,
    EncoderNotFound,
    assert_close,
    batch_of,
    change_weights,
    distance,
    find_checkpoint,
    identify,
    load_encoder,
    pack_spans,
    pooled,
    random_encoder,
    save_random_checkpoint,
)
from faults import raising
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_antiberty
from transformers import EsmConfig, EsmModel, T5EncoderModel

from abag import EncoderError

RNG = np.random.default_rng(7)
TOKENS = {  # of the authors: before the residues, the residues, after them
    "tiny-igt5": ((), dict(enumerate("ALGVSREDTIPKFQNYMHWCX", 3)), 1),
    "tiny-esm2": ((0,), dict(enumerate("LAGVSERTIDPKQNFYMHWCX", 4)), 2),
}


def vectors(identity, chains, encoder=None):
    """Our vectors of one sequence: {pooling: (D,)}."""
    encoder = encoder or load_encoder(identity, CPU)
    out_PD = pooled(encoder, batch_of(identity, chains))[0]
    return dict(zip(identity.layout.poolings, out_PD.numpy(), strict=True))


@torch.no_grad()
def hidden_states(name, text):
    """Every token's vector from transformers itself, (T, D), of residues with spaces between."""
    start, letters, end = TOKENS[name]
    at = {letter: i for i, letter in letters.items()} | {"</s>": 1}
    ids = torch.tensor([[*start, *(at[word] for word in text.split()), end]])
    folder = find_checkpoint(name).folder
    model = (T5EncoderModel if "igt5" in name else EsmModel).from_pretrained(folder).eval()
    return model(input_ids=ids).last_hidden_state[0].numpy()


@pytest.mark.parametrize(("heavy", "light"), [(118, 107), (121, 0), (0, 109), (1, 1), (1, 0)])
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_igt5_vectors_equal_transformers_with_residues_averaged_by_hand(heavy, light, backend):
    chains = (draw_chain(RNG, heavy), draw_chain(RNG, light))
    spaced = [" ".join(chain) for chain in chains if chain]
    token_TD = hidden_states("tiny-igt5", " </s> ".join(spaced))
    heavy_LD = token_TD[:heavy]
    first_light = heavy + bool(heavy and light)
    light_LD = token_TD[first_light : first_light + light]
    identity = identify("tiny-igt5", "antibody")
    ours = vectors(identity, chains, load_encoder(identity, CPU, backend=backend))
    assert_close(ours["mean"], np.concatenate([heavy_LD, light_LD]).mean(0))
    for name, part in (("heavy_mean", heavy_LD), ("light_mean", light_LD)):
        if len(part):
            assert_close(ours[name], part.mean(0))
        else:
            assert not ours[name].any()


@pytest.mark.parametrize("lengths", [[1], [300], [1022], [90, 40, 7]])
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_esm_vectors_equal_transformers_with_residues_averaged_by_hand(lengths, backend):
    chains = tuple(draw_chain(RNG, n) for n in lengths)
    token_TD = [hidden_states("tiny-esm2", " ".join(chain)) for chain in chains]
    identity = identify("tiny-esm2", "antigen")
    ours = vectors(identity, chains, load_encoder(identity, CPU, backend=backend))
    assert_close(ours["mean"], np.concatenate([x[1:-1] for x in token_TD]).mean(0))
    assert_close(ours["cls"], np.mean([x[0] for x in token_TD], axis=0))


def test_a_2500_residue_antigen_averages_its_windows_residue_by_residue_then_pools():
    chain = draw_chain(RNG, 2500)
    total_LD = np.zeros((2500, 64))
    cover_L = np.zeros(2500)
    cls = []
    for start in (0, 511, 1022, 1533):
        token_TD = hidden_states("tiny-esm2", " ".join(chain[start : start + 1022]))
        total_LD[start : start + 1022] += token_TD[1:-1]
        cover_L[start : start + 1022] += 1
        cls.append(token_TD[0])
    ours = vectors(identify("tiny-esm2", "antigen"), (chain,))
    assert_close(ours["mean"], (total_LD / cover_L[:, None]).mean(0))
    assert_close(ours["cls"], np.mean(cls, axis=0))


@torch.no_grad()
def esm1_states(model, chain):
    """Every residue's vector from transformers itself, (L, D)."""
    letters = {letter: i for i, letter in TOKENS["tiny-esm2"][1].items()}
    ids = torch.tensor([[0, *(letters[letter] for letter in chain), 2]])
    return model(input_ids=ids).last_hidden_state[0, 1:-1].numpy()


@pytest.mark.parametrize("normed", [True, False], ids=["esm1b", "esm1v"])
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_esm1_reads_learned_positions_and_windows_as_transformers_does(normed, backend, tmp_path):
    torch.manual_seed(5)
    config = EsmConfig(
        vocab_size=33,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        position_embedding_type="absolute",
        max_position_embeddings=1026,
        emb_layer_norm_before=normed,
        token_dropout=True,
        mask_token_id=32,
        pad_token_id=1,
    )
    model = EsmModel(config, add_pooling_layer=False).eval()
    for name, parameter in model.named_parameters():  # the initial norms change nothing
        parameter.data += torch.randn_like(parameter) * (0.3 if "norm" in name.lower() else 0.1)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(FAMILIES["esm1"].tokens))
    identity = identify(str(tmp_path), "antigen")
    assert identity.checkpoint.family == "esm1"
    encoder = load_encoder(identity, CPU, backend=backend)
    longest = draw_chain(RNG, 1022)
    longer = draw_chain(RNG, 1500)
    assert_close(
        vectors(identity, (longest,), encoder)["mean"], esm1_states(model, longest).mean(0)
    )
    total_LD = np.zeros((1500, 64))
    cover_L = np.zeros(1500)
    for start in (0, 511):
        window = longer[start : start + 1022]
        total_LD[start : start + 1022] += esm1_states(model, window)
        cover_L[start : start + 1022] += 1
    ours = vectors(identity, (longer,), encoder)["mean"]
    assert_close(ours, (total_LD / cover_L[:, None]).mean(0))


@pytest.mark.parametrize("name", ["tiny-igt5", "tiny-esm2"])
def test_pooling_one_residue_off_is_far_outside_the_tolerance(name):
    chain = draw_chain(RNG, 120)
    kind, chains = ("antibody", (chain, "")) if "igt5" in name else ("antigen", (chain,))
    token_TD = hidden_states(name, " ".join(chain))
    first = 0 if "igt5" in name else 1
    shifted = token_TD[first + 1 : first + 121].mean(0)
    ours = vectors(identify(name, kind), chains)["mean"]
    assert distance(ours, shifted) > 1e-3


@pytest.mark.parametrize(("family", "first"), [("protbert", (1, 120)), ("roformer", (2, 122))])
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_paired_bert_vectors_equal_transformers_with_residues_averaged_by_hand(
    family, first, backend, tmp_path
):
    identity = random_encoder(tmp_path, family, "antibody")
    chains = (draw_chain(RNG, 118), draw_chain(RNG, 107))
    span = identity.layout.spans(chains)[0]
    model = getattr(transformers, FAMILIES[family].transformers_class).from_pretrained(tmp_path)
    with torch.no_grad():
        ids = torch.from_numpy(span.ids)[None].long()
        token_TD = model.eval()(input_ids=ids).last_hidden_state[0].numpy()
    parts = [
        token_TD[start : start + len(chain)] for start, chain in zip(first, chains, strict=True)
    ]
    ours = vectors(identity, chains, load_encoder(identity, CPU, backend=backend))
    assert_close(ours["mean"], np.concatenate(parts).mean(0))
    assert_close(ours["heavy_mean"], parts[0].mean(0))
    assert_close(ours["light_mean"], parts[1].mean(0))


@needs_antiberty
def test_antiberty_encodes_heavy_and_light_separately_and_averages_all_residues():
    chains = (draw_chain(RNG, 118), draw_chain(RNG, 107))
    identity = identify("antiberty", "antibody")
    encoder = load_encoder(identity, CPU)
    both = vectors(identity, chains, encoder)
    heavy = vectors(identity, (chains[0], ""), encoder)["mean"]
    light = vectors(identity, ("", chains[1]), encoder)["mean"]
    assert_close(both["heavy_mean"], heavy)
    assert_close(both["light_mean"], light)
    assert_close(both["mean"], (118 * heavy + 107 * light) / 225)


def test_fewer_positions_than_windows_need_are_refused_before_loading(tmp_path):
    with pytest.raises(EncoderError, match=r"max_position_embeddings 512; protbert .* need 1024"):
        load_encoder(random_encoder(tmp_path, "protbert", max_position_embeddings=512), CPU)


def test_composition_counts_residues_and_needs_no_weights():
    ours = vectors(identify("composition", "antigen"), ("AAAC", "C"))["mean"]
    assert ours[0] == pytest.approx(3 / 5)
    assert ours[1] == pytest.approx(2 / 5)
    assert ours[22:].sum() == pytest.approx(2 / 5)  # AAA and AAC, of five residues


def test_the_fingerprint_depends_on_the_weights_and_not_on_name_or_path(tmp_path):
    first = save_random_checkpoint(tmp_path / "one", TINY_CONFIG["tiny-esm2"], seed=1)
    same = save_random_checkpoint(tmp_path / "same", TINY_CONFIG["tiny-esm2"], seed=1)
    other = save_random_checkpoint(tmp_path / "other", TINY_CONFIG["tiny-esm2"], seed=2)
    prints = [identify(str(f), "antigen").fingerprint for f in (first, same, other)]
    assert prints[0] == prints[1] != prints[2]
    assert identify(str(first), "antigen", "truncate").fingerprint != prints[0]
    assert identify(str(first), "antigen", "error").fingerprint == prints[0]


def test_an_unknown_name_lists_the_aliases():
    with pytest.raises(EncoderNotFound, match=r"'nothing': not an alias .* igt5, .*composition"):
        find_checkpoint("nothing")


@pytest.mark.parametrize(("name", "near"), [
    ("igt6", "igt5"), ("esm1v", "esm1v-"), ("esm2-650M", "esm2-650m"),
    ("ESM2_t33_650M", "esm2-650m"), ("esmc", "esmc-"),
    ("Ankh3", "ankh3-"),
])  # fmt: skip
def test_a_name_like_that_of_an_encoder_is_answered_with_its_alias(name, near):
    with pytest.raises(EncoderNotFound, match=rf"; did you mean {near}.*, a hub name"):
        find_checkpoint(name)


def test_missing_weights_give_an_error_that_says_how_to_get_them(monkeypatch, tmp_path):
    unreachable = raising(OSError("no network\nand a long story"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    monkeypatch.setattr("abag.core.hub.Repository.head", unreachable)
    with pytest.raises(EncoderNotFound, match=r"not on disk.*\(no network\).*hf download.*folder"):
        find_checkpoint("igt5")


def test_a_folder_of_another_model_type_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(EncoderError, match="model_type 'gpt2' is not supported"):
        find_checkpoint(str(tmp_path))


PACKED = [
    *((name, {}) for name, family in FAMILIES.items() if "packed" in family.backends),
    ("ankh", {"feed_forward_proj": "gated-silu"}),
]


@pytest.mark.parametrize(("family", "config"), PACKED)
def test_packed_equals_transformers_one_at_a_time_at_any_mix_of_lengths(family, config, tmp_path):
    identity = random_encoder(tmp_path, family, **config)
    packed = load_encoder(identity, CPU)
    reference = load_encoder(identity, CPU, backend="reference")

    @settings(max_examples=12, deadline=None)
    @given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(0, 99))
    def check(lengths, seed):
        rng = np.random.default_rng(seed)
        chains = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWYX"), n)) for n in lengths]
        spans = [(i, p) for i, c in enumerate(chains) for p in identity.layout.spans((c,))]
        ours = packed(pack_spans(spans))
        theirs = torch.cat([reference(pack_spans([span])) for span in spans])
        assert_close(ours.numpy(), theirs.numpy())

    check()


@pytest.mark.parametrize(("name", "weight", "value", "message"), [
    ("tiny-esm2", "encoder.layer.1.output.dense.weight", None, "layer.1.output.* is missing"),
    ("tiny-igt5", "encoder.final_layer_norm.weight", 65, r" \(65,\), config.json says \(64,\)"),
    ("tiny-igt5", "encoder.block.0.layer.1.x.weight", 3, "not part of a t5 encoder.*layer.1.x"),
])  # fmt: skip
def test_a_weight_that_is_missing_unknown_or_of_another_shape_is_refused(
    tmp_path, name, weight, value, message
):
    folder = save_random_checkpoint(tmp_path / name, TINY_CONFIG[name], seed=1)
    new = {} if value is None else {weight: torch.ones(value)}
    change_weights(folder, lambda x: {n: t for n, t in x.items() if n != weight} | new)
    with pytest.raises(EncoderError, match=message):
        load_encoder(identify(str(folder), "antigen"), CPU)


@pytest.mark.parametrize(("file", "text", "message"), [
    ("vocab.json", {"<s>": 0}, "lacks .*A, C, D"), ("vocab.json", [1], "no readable tokenizer"),
    ("tokenizer.json", {"model": 3}, "no readable tokenizer"),
    ("config.json", {"max_position_embeddings": 4}, "roberta encoders need 152"),
    ("config.json", {"vocab_size": 20}, "above 19"),
])  # fmt: skip
def test_tokens_or_positions_that_roberta_cannot_use_are_refused(tmp_path, file, text, message):
    random_encoder(tmp_path, "roberta")
    if file == "config.json":
        text = {**FAMILIES["roberta"].tiny_config, **text}
    (tmp_path / file).write_text(json.dumps(text))
    with pytest.raises(EncoderError, match=message):
        load_encoder(identify(str(tmp_path), "antibody"), CPU)
