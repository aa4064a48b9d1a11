"""AbLang2 against the classes of its own package."""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import ablang2
import pandas as pd
import pytest
import torch
from ablang2.models.ablang2.ablang import AbLang
from ablang2.models.ablang2.tokenizers import ABtokenizer
from encoding import (
    CPU,
    FAMILIES,
    EncoderNotFound,
    LayerStates,
    assert_close,
    identify,
    load_encoder,
    pack_spans,
)
from safetensors.torch import save_file

import abag
from abag import EncoderError

SETTINGS = {  # those of the published weights, with fewer and narrower layers
    "vocab_size": 26,
    "hidden_embed_size": 72,
    "n_attn_heads": 3,
    "n_encoder_blocks": 3,
    "pad_tkn": 21,
    "mask_tkn": 23,
    "layer_norm_eps": 1e-12,
    "a_fn": "swiglu",
    "dropout": 0.1,
}
HEAVY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWX"
LIGHT = "DIQMTQSPSSLSASVGDRVTITC"
WEIGHTS = "model-weights-ablang2-paired"


@pytest.fixture
def theirs():
    """The class of the package, with seeded weights whose attention is not uniform."""
    torch.manual_seed(0)
    model = AbLang(
        SETTINGS["vocab_size"],
        SETTINGS["hidden_embed_size"],
        SETTINGS["n_attn_heads"],
        SETTINGS["n_encoder_blocks"],
        SETTINGS["pad_tkn"],
        SETTINGS["mask_tkn"],
        SETTINGS["layer_norm_eps"],
        SETTINGS["a_fn"],
    ).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, float("norm.weight" in name), 0.3)
        elif "q_proj" in name or "k_proj" in name:
            parameter.data *= 4
    return model


@pytest.fixture
def package(tmp_path, monkeypatch, theirs):
    """The package's folder as it is once the weights are downloaded."""
    real = Path(find_spec("ablang2").submodule_search_locations[0])
    shutil.copytree(real / "models", tmp_path / "models")
    (tmp_path / WEIGHTS).mkdir()
    torch.save(theirs.state_dict(), tmp_path / WEIGHTS / "model.pt")
    (tmp_path / WEIGHTS / "hparams.json").write_text(json.dumps(SETTINGS))
    monkeypatch.setattr(ablang2.__spec__, "submodule_search_locations", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize("backend", ["packed", "reference"])
@pytest.mark.parametrize("chains", [(HEAVY, LIGHT), (HEAVY, ""), ("", LIGHT)])
@torch.no_grad()
def test_every_layer_is_that_of_the_package(package, theirs, backend, chains):
    identity = identify("ablang2", "antibody")
    layers = LayerStates()
    (span,) = identity.layout.spans(chains)
    tokens = ABtokenizer()(chains)
    assert span.ids.tolist() == tokens[0].tolist()
    last = load_encoder(identity, CPU, backend=backend)(pack_spans([(0, span)]), layers)
    out = theirs.AbRep(tokens[0][None], return_rep_layers=[0, 1, 2])
    expected = [*out.many_hidden_states.values(), out.last_hidden_states]
    assert len(layers.states) == len(expected)
    for ours, other in zip([*layers.states, last], [*expected, expected[-1]], strict=True):
        assert_close(ours, other[0])


def test_an_antigen_is_read_as_a_heavy_chain_alone(package):
    antibody, antigen = (identify("ablang2", kind).layout for kind in ("antibody", "antigen"))
    (alone,) = antibody.spans((HEAVY, ""))
    spans = antigen.spans((HEAVY, LIGHT))
    assert spans[0].ids.tolist() == alone.ids.tolist()
    assert [spans[1].ids[0], *spans[1].ids[-2:]] == [0, 22, 25]


@pytest.mark.parametrize(("light", "lengths"), [(254, [515]), (255, [259, 258])])
def test_a_pair_longer_than_a_span_is_encoded_chain_by_chain(package, light, lengths):
    layout = identify("ablang2", "antibody").layout
    chains = ("A" * 256, "C" * light)
    assert (
        layout.span_lengths(chains) == [len(span.ids) for span in layout.spans(chains)] == lengths
    )
    assert layout.vocabulary.longest_span == 515
    weights = sum(float(span.weights[:, 0].sum()) for span in layout.spans(chains))
    assert weights == pytest.approx(1)


def test_a_copy_of_the_weights_in_a_folder_is_the_same_encoder(package, tmp_path, theirs):
    folder = tmp_path / "copy"
    folder.mkdir()
    tensors = {n: w.contiguous().clone() for n, w in theirs.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "ablang2", **SETTINGS}))
    (folder / "vocab.json").write_text(json.dumps(FAMILIES["ablang2"].tokens))
    same = identify(str(folder), "antibody")
    assert same.fingerprint == identify("ablang2", "antibody").fingerprint


@pytest.mark.parametrize(("lost", "message"), [
    (f"{WEIGHTS}/model.pt", r"has not downloaded its weights.*run python -c"),
    (f"{WEIGHTS}/hparams.json", "has not downloaded its weights"),
    (None, r"is not installed; run pip install 'abag\[ablang2\]'"),
])  # fmt: skip
def test_weights_that_are_not_there_are_one_line(package, monkeypatch, lost, message):
    if lost is None:
        monkeypatch.setitem(sys.modules, "ablang2", None)
    else:
        (package / lost).unlink()
    with pytest.raises(EncoderNotFound, match=message):
        identify("ablang2", "antibody")


def test_a_package_with_other_token_ids_is_refused(package):
    path = package / "models" / "ablang2" / "vocab.py"
    path.write_text(path.read_text().replace('"H": 3', '"H": 4').replace('"K": 4', '"K": 3'))
    with pytest.raises(EncoderError, match="disagrees with abag's vocabulary"):
        load_encoder(identify("ablang2", "antibody"), CPU)


@torch.no_grad()
def test_likelihoods_are_those_of_the_package(package, theirs, tmp_path):
    torch.nn.init.normal_(theirs.AbHead.bias, 0, 0.3)
    torch.save(theirs.state_dict(), package / WEIGHTS / "model.pt")
    pairs = [(HEAVY, LIGHT), (HEAVY, ""), ("", LIGHT)]
    table = pd.DataFrame(pairs, columns=["heavy", "light"])
    abag.embed_table(table, tmp_path / "store", "ablang2", kind="antibody", loglik=True)
    ours = abag.open_store(tmp_path / "store").vectors("antibody", pairs, pooling="loglik")
    for chains, value in zip(pairs, ours[:, 0], strict=True):
        (ids,) = ABtokenizer()(chains)
        logp = theirs(ids[None])[0].log_softmax(-1).gather(1, ids[:, None])[:, 0]
        is_residue = torch.tensor([ABtokenizer().token_to_aa[int(i)].isalpha() for i in ids])
        assert int(is_residue.sum()) == sum(map(len, chains))
        assert value == pytest.approx(float(logp[is_residue].mean()), rel=1e-5)
