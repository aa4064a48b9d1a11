"""Likelihoods of residues from the pass that makes the vectors, against transformers by hand."""

import itertools
import json

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from chunks import set_sizes
from drawn import TINY, demo_table, draw_chain
from encoding import (
    CPU,
    FAMILIES,
    change_weights,
    find_checkpoint,
    identify,
    load_encoder,
    pack_spans,
    plan_device,
    save_random_checkpoint,
)
from invoke import one_line, run
from marks import needs_antiberty
from safetensors.torch import load_file
from stores import merge
from test_embed_checkpoints import class_of, make_model, save
from transformers import BertConfig, BertForMaskedLM, EsmForMaskedLM, EsmModel

import abag
from abag import EncoderError, StoreError
from abag.embed.encoders.identity import head_digest
from abag.embed.encoders.loading import LanguageModelHead
from abag.embed.tables.chains import RESIDUES

RNG = np.random.default_rng(11)
CLASSES = {
    "esm": "EsmForMaskedLM", "esm1": "EsmForMaskedLM", "esmc": "EsmcForMaskedLM",
    "bert": "BertForMaskedLM", "protbert": "BertForMaskedLM", "roformer": "RoFormerForMaskedLM",
    "roberta": "RobertaForMaskedLM",
}  # fmt: skip
LAYOUTS = itertools.cycle(["safetensors", "bin", "sharded"])
PAIRS = [(draw_chain(RNG, 60), draw_chain(RNG, 41) + "X"), (draw_chain(RNG, 25), "")]
ANTIGENS = [f"{draw_chain(RNG, 30)}|{draw_chain(RNG, 9)}", "M"]


@pytest.fixture
def pairs():
    table = pd.DataFrame(PAIRS, columns=["heavy", "light"])
    return table.assign(antigen=ANTIGENS)


@pytest.fixture
def table():
    return demo_table().head(12)


@torch.no_grad()
def by_hand(logits_of, layout, chains):
    """The mean log-probability of all residues, each span read alone; no windows."""
    residues = set(layout.vocabulary.encode(RESIDUES).tolist())
    logps = []
    for span in layout.spans(chains):
        ids = torch.from_numpy(span.ids).long()
        logp = logits_of(ids[None])[0].double().log_softmax(-1)
        logps += [
            float(logp[i, token]) for i, token in enumerate(ids.tolist()) if token in residues
        ]
    assert len(logps) == sum(map(len, chains))
    return np.mean(logps)


def stored_logliks(store, kind, sequences):
    return abag.open_store(store).vectors(kind, sequences, pooling="loglik")


@pytest.mark.parametrize("family", ["bert", "protbert", "roformer", "roberta", "esm"])
def test_a_head_that_is_not_tied_has_the_bias_that_transformers_adds(pairs, tmp_path, family):
    untied = make_model(family, CLASSES[family], tie_word_embeddings=False)
    folder = save(untied, family, tmp_path / "model")
    model = class_of(CLASSES[family]).from_pretrained(folder).eval()
    kinds = {"kind": "antigen", "antigen_encoder": str(folder)}
    abag.embed_table(pairs, tmp_path / "store", loglik=True, **kinds)
    ours = stored_logliks(tmp_path / "store", "antigen", ANTIGENS)
    layout = identify(str(folder), "antigen").layout
    for sequence, value in zip(ANTIGENS, ours[:, 0], strict=True):
        chains = tuple(sorted(sequence.split("|")))
        expected = by_hand(lambda ids: model(input_ids=ids).logits, layout, chains)
        assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("family", "layout"), [(name, layout) for name, layout in zip(CLASSES, LAYOUTS, strict=False)]
)
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_likelihoods_are_those_of_transformers_language_model(
    pairs, tmp_path, family, layout, backend
):
    folder = save(make_model(family, CLASSES[family]), family, tmp_path / "model", layout)
    model = class_of(CLASSES[family]).from_pretrained(folder).eval()
    backends = {"antibody_backend": backend, "antigen_backend": backend}
    abag.embed_table(
        pairs,
        tmp_path / "store",
        str(folder),
        str(folder),
        loglik=True,
        batch_tokens=50,
        **backends,
    )
    for kind, sequences in (("antibody", PAIRS), ("antigen", ANTIGENS)):
        ours = stored_logliks(tmp_path / "store", kind, sequences)
        assert ours.shape == (2, 1)
        layout_of = identify(str(folder), kind).layout
        for sequence, value in zip(sequences, ours[:, 0], strict=True):
            chains = sequence if kind == "antibody" else tuple(sorted(sequence.split("|")))
            expected = by_hand(lambda ids: model(input_ids=ids).logits, layout_of, chains)
            assert value == pytest.approx(expected, rel=1e-5)


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("family", ["amplify", "glm2"])
def test_amplify_and_glm2_norm_the_states_and_multiply_once(family, tmp_path):
    folder = save_random_checkpoint(tmp_path / "m", FAMILIES[family].tiny_config, 1, with_head=True)
    weights = transformers.modeling_utils.load_state_dict(folder / "model.safetensors")
    identity = identify(str(folder), "antigen")
    encoder = load_encoder(identity, CPU, backend="reference")
    if family == "amplify":
        norm, decoder, bias = (
            weights[n] for n in ("layer_norm_2.weight", "decoder.weight", "decoder.bias")
        )
    else:
        norm = weights["lm_head.norm.weight"]
        decoder = weights["lm_head.proj_output.weight"]
        bias = torch.zeros(len(decoder))

    def logits_of(ids):
        (span,) = identity.layout.spans((ANTIGENS[1],))
        assert ids.tolist()[0] == span.ids.tolist()
        return (rms(encoder(pack_spans([(0, span)])), norm) @ decoder.T + bias)[None]

    table = pd.DataFrame({"antigen": ANTIGENS[1:]})
    abag.embed_table(table, tmp_path / "s", "igt5", str(folder), kind="antigen", loglik=True)
    ours = stored_logliks(tmp_path / "s", "antigen", ANTIGENS[1:])
    expected = by_hand(logits_of, identity.layout, ("M",))
    assert ours[0, 0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.ci
@needs_antiberty
def test_antiberty_gives_the_likelihoods_of_its_weights_in_transformers_bert(pairs, tmp_path):
    checkpoint = find_checkpoint("antiberty")
    model = BertForMaskedLM(BertConfig(**checkpoint.config)).eval()
    tensors = torch.load(checkpoint.weights[0], map_location="cpu", weights_only=True)
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert missing == []
    options = {"antibody_encoder": "antiberty", "kind": "antibody", "loglik": True}
    abag.embed_table(pairs, tmp_path / "store", **options)
    layout = identify("antiberty", "antibody").layout
    ours = stored_logliks(tmp_path / "store", "antibody", PAIRS)
    for chains, value in zip(PAIRS, ours[:, 0], strict=True):
        expected = by_hand(lambda ids: model(input_ids=ids).logits, layout, chains)
        assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batch_tokens", [None, 1100])  # windows in one batch, or in several
@torch.no_grad()
def test_a_residue_in_several_windows_counts_once_with_their_mean(batch_tokens, tmp_path):
    chain = draw_chain(RNG, 1500)
    model = EsmForMaskedLM.from_pretrained(find_checkpoint("tiny-esm2").folder).eval()
    vocabulary = FAMILIES["esm"].vocabulary
    total = np.zeros(1500)
    windows = np.zeros(1500)
    for start in (0, 511):
        ids = torch.from_numpy(vocabulary.encode(chain[start : start + 1022])).long()
        framed = torch.cat([torch.tensor([0]), ids, torch.tensor([2])])[None]
        logp = model(input_ids=framed).logits[0, 1:-1].double().log_softmax(-1)
        total[start : start + 1022] += logp.gather(1, ids[:, None])[:, 0].numpy()
        windows[start : start + 1022] += 1
    options = {"antigen_encoder": "tiny-esm2", "kind": "antigen", "batch_tokens": batch_tokens}
    table = pd.DataFrame({"antigen": [chain, "MK"]})
    abag.embed_table(table, tmp_path / "store", loglik=True, **options)
    ours = stored_logliks(tmp_path / "store", "antigen", [chain])
    assert ours[0, 0] == pytest.approx((total / windows).mean(), rel=1e-5)


def test_scores_of_few_tokens_at_a_time_give_the_same_values(monkeypatch):
    identity = identify("tiny-esm2", "antigen")
    (span,) = identity.layout.spans((draw_chain(RNG, 200),))
    batch = pack_spans([(0, span)])
    hidden_TD = load_encoder(identity, CPU)(batch)
    ids_T = torch.from_numpy(batch.ids)
    head = LanguageModelHead(identity.checkpoint, CPU)
    sizes = []
    whole = head.log_probabilities(hidden_TD, ids_T)
    scores = head.scores
    monkeypatch.setattr(head, "scores", lambda x_TD: sizes.append(len(x_TD)) or scores(x_TD))
    set_sizes(monkeypatch, scored_tokens=7)
    torch.testing.assert_close(head.log_probabilities(hidden_TD, ids_T), whole)
    assert max(sizes) == 7
    assert sum(sizes) == len(ids_T)


@pytest.mark.ci
@needs_antiberty
def test_likelihoods_leave_vectors_and_fingerprint_and_keep_float32(table, tmp_path):
    encoders = {"antibody_encoder": "antiberty", "antigen_encoder": "tiny-esm2"}
    plain = abag.embed_table(table, tmp_path / "plain", **encoders)
    more = abag.embed_table(table, tmp_path / "more", loglik=True, layers=(1,), **encoders)
    assert plain["antigens"]["fingerprint"] == more["antigens"]["fingerprint"]
    stores = [abag.open_store(tmp_path / name) for name in ("plain", "more")]
    for pooling in ("mean", "cls"):
        ours, theirs = (s.vectors("antigen", table["antigen"], pooling=pooling) for s in stores)
        np.testing.assert_array_equal(ours, theirs)
    folder = stores[1].folder("antigen")
    assert folder.poolings == ("mean", "cls", "mean@1", "cls@1", "loglik")
    assert folder.vector_poolings == folder.poolings[:-1]  # what a sweep tries
    with h5py.File(next((tmp_path / "more").glob("antigen-*/*.h5"))) as shard:
        assert shard["mean"].dtype == np.float16
        assert shard["loglik"].dtype == np.float32
        exact = shard["loglik"][:, 0]
    assert np.any(exact != exact.astype(np.float16))
    with pytest.raises(StoreError, match=r"'loglik' is not stored.*abag embed --loglik into"):
        stores[0].vectors("antigen", table["antigen"], pooling="loglik")


def test_a_store_continues_as_it_was_begun(table, tmp_path):
    options = {**TINY, "kind": "antigen"}
    abag.embed_table(table, tmp_path / "with", limit=5, loglik=True, **options)
    abag.embed_table(table, tmp_path / "with", **options)  # without the option
    assert len(stored_logliks(tmp_path / "with", "antigen", table["antigen"])) == len(table)
    assert abag.open_store(tmp_path / "with").folder("antigen").damaged == []
    with pytest.raises(StoreError, match=r"begun with loglik of head \w{32}, not none"):
        abag.embed_table(table, tmp_path / "with", loglik=False, **options)
    abag.embed_table(table, tmp_path / "without", limit=5, **options)
    before = sorted((tmp_path / "without").rglob("*.h5"))
    with pytest.raises(StoreError, match=r"begun with loglik none, not of head \w{32}"):
        abag.embed_table(table, tmp_path / "without", loglik=True, **options)
    assert sorted((tmp_path / "without").rglob("*.h5")) == before
    with pytest.raises(StoreError, match="has the loglik"):
        merge([tmp_path / "with", tmp_path / "without"], tmp_path / "both")


def esm_folder(folder, change=None):
    save_random_checkpoint(folder, FAMILIES["esm"].tiny_config, 4, with_head=True)
    if change is not None:
        change_weights(folder, change)
    return str(folder)


def test_likelihoods_of_another_head_never_mix(table, tmp_path, said):
    def other_head(tensors):
        return {**tensors, "lm_head.bias": tensors["lm_head.bias"] + 1}

    first = esm_folder(tmp_path / "one" / "esm")
    other = esm_folder(tmp_path / "two" / "esm", other_head)
    assert identify(first, "antigen").fingerprint == identify(other, "antigen").fingerprint
    options = {"kind": "antigen", "loglik": True}
    abag.embed_table(table, tmp_path / "store", antigen_encoder=first, limit=5, **options)
    abag.embed_table(table, tmp_path / "theirs", antigen_encoder=other, **options)
    for more in ({"loglik": True}, {}):  # also without the option
        with pytest.raises(
            StoreError, match=r"begun with loglik of head (\w{32}), not of head (?!\1)"
        ):
            abag.embed_table(
                table, tmp_path / "store", antigen_encoder=other, kind="antigen", **more
            )
    with pytest.raises(StoreError, match="has the loglik"):
        merge([tmp_path / "store", tmp_path / "theirs"], tmp_path / "both")
    (folder,), (foreign,) = ((tmp_path / n).glob("antigen-*") for n in ("store", "theirs"))
    for shard in foreign.glob("*.h5"):  # what the format allows for equal heads
        (folder / shard.name).write_bytes(shard.read_bytes())
    antigens = abag.open_store(tmp_path / "store").folder("antigen")
    assert antigens.count_unique() == table["antigen"].head(5).nunique()
    assert "likelihoods of head" in antigens.damaged[0][1]


@pytest.mark.parametrize("layout", ["safetensors", "bin", "sharded"])
@pytest.mark.parametrize("family", ["esm", "bert", "roberta"])
def test_the_head_is_the_same_in_every_file_layout(family, layout, tmp_path):
    model = make_model(family, CLASSES[family])
    plain = save(model, family, tmp_path / "plain")
    other = save(model, family, tmp_path / "other", layout)
    digests = {head_digest(find_checkpoint(str(folder))) for folder in (plain, other)}
    assert len(digests) == 1


def test_an_encoder_without_a_head_is_refused_before_anything_is_written(table, tmp_path):
    path = tmp_path / "pairs.csv"
    table.to_csv(path, index=False)
    line = one_line(
        "embed",
        path,
        "--store",
        tmp_path / "store",
        "--loglik",
        "--antibody-encoder",
        "tiny-igt5",
        "--antigen-encoder",
        "tiny-esm2",
    )
    assert "--loglik: tiny-igt5 is an encoder only" in line
    with pytest.raises(EncoderError, match="composition is an encoder only"):
        abag.embed_table(table, tmp_path / "store", "composition", "composition", loglik=True)
    model = make_model("esm", "EsmModel")
    assert isinstance(model, EsmModel)
    folder = str(save(model, "esm", tmp_path / "bare"))
    words = r"bare holds the encoder without the head.*\(lm_head\..* is missing\).*EsmForMaskedLM"
    with pytest.raises(EncoderError, match=words) as caught:
        abag.embed_table(
            table, tmp_path / "store", antigen_encoder=folder, kind="antigen", loglik=True
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.ci
@needs_antiberty
def test_likelihoods_are_read_by_name_in_files_and_datasets(table, tmp_path):
    path = tmp_path / "pairs.csv"
    store = tmp_path / "store"
    table.to_csv(path, index=False)
    encoders = ["--antibody-encoder", "antiberty", "--antigen-encoder", "tiny-esm2"]
    run("embed", path, "--store", store, "--loglik", *encoders)
    expected = stored_logliks(store, "antigen", table["antigen"])[:, 0]
    to = tmp_path / "logliks.parquet"
    run(
        "store",
        "export",
        store,
        "--table",
        path,
        "--kind",
        "antigen",
        "--antigen-pooling",
        "loglik",
        "--to",
        to,
    )
    written = pd.read_parquet(to)
    np.testing.assert_array_equal([row[0] for row in written["vector"]], expected)
    data = abag.dataset(store, table, antigen_pooling="loglik", split="random")
    assert data.vectors("antigen").shape[1] == 1
    assert set(data.vectors("antigen")[:, 0]) == set(expected)
    assert "loglik 1" in run("store", "info", store).stdout


def test_embeddings_that_are_not_tied_are_read_as_config_json_says(tmp_path):
    folder = tmp_path / "esm"
    esm_folder(folder)
    tied = head_digest(find_checkpoint(str(folder)))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(EncoderError, match=r"lm_head\.decoder\.weight is missing"):
        head_digest(find_checkpoint(str(folder)))
    change_weights(folder, lambda x: {**x, "lm_head.decoder.weight": torch.ones(33, 64)})
    checkpoint = find_checkpoint(str(folder))
    assert head_digest(checkpoint) != tied
    hidden = torch.randn(4, 64)
    scores = LanguageModelHead(checkpoint, CPU).scores(hidden)
    bias = load_file(folder / "model.safetensors")["lm_head.bias"]
    assert torch.allclose((scores - bias).std(1), torch.zeros(4), atol=1e-4)


@needs_antiberty
@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_likelihoods_of_a_gpu_are_those_of_the_cpu(table, tmp_path, precision):
    table.loc[0, "antigen"] = "MKV" * 500
    options = {"antibody_encoder": "antiberty", "antigen_encoder": "tiny-esm2", "loglik": True}
    abag.embed_table(table, tmp_path / "cpu", device="cpu", **options)
    abag.embed_table(table, tmp_path / "gpu", device="cuda", precision=precision, **options)
    near = 1e-4 if plan_device("cuda", precision).precision == "fp32" else 2e-2
    pairs = list(zip(table["heavy"], table["light"], strict=True))
    for kind, sequences in (("antibody", pairs), ("antigen", table["antigen"])):
        exact, ours = (stored_logliks(tmp_path / n, kind, sequences) for n in ("cpu", "gpu"))
        np.testing.assert_allclose(ours, exact, rtol=near, atol=near)
