"""AMPLIFY and gLM2, whose classes transformers lacks, against its Llama."""

import json

import numpy as np
import pytest
import torch
from encoding import (
    CPU,
    FAMILIES,
    EncoderNotFound,
    LayerStates,
    assert_close,
    batch_of,
    change_weights,
    find_checkpoint,
    identify,
    load_encoder,
    save_random_checkpoint,
)
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaModel

from abag import EncoderError

CHAIN = "ACDEFGHIKLMNPQRSTVWYX" * 9
NAMES = {  # tensors of each layer: in transformers' Llama, in AMPLIFY, in gLM2
    "input_layernorm": ("attention_norm", "attention_norm"),
    "self_attn.q_proj": ("q", None),
    "self_attn.k_proj": ("k", None),
    "self_attn.v_proj": ("v", None),
    "self_attn.o_proj": ("wo", "attention.wo"),
    "post_attention_layernorm": ("ffn_norm", "ffn_norm"),
    "mlp.gate_proj": (None, "feed_forward.w1"),
    "mlp.up_proj": (None, "feed_forward.w3"),
    "mlp.down_proj": ("ffn.w3", "feed_forward.w2"),
}
HEAD = {  # what a language model has beside the encoder: the prefix of its tensors, and others
    "amplify": ("", {"layer_norm_2.weight": (256,), "decoder.weight": (27, 256)}),
    "glm2": ("glm2.", {"lm_head.norm.weight": (256,), "lm_head.proj_output.weight": (37, 256)}),
}


def llama_weights(family, weights, shape):
    """The weights under Llama's names; its heads rotate halves, so AMPLIFY's pairs are moved."""
    amplify = family == "amplify"
    pairs = np.arange(shape.width).reshape(shape.heads, -1, 2).transpose(0, 2, 1).ravel()
    named = {"embed_tokens": weights["encoder.weight" if amplify else "tok_embeddings.weight"]}
    for i in range(shape.layers):
        at = f"transformer_encoder.{i}" if amplify else f"encoder.layers.{i}"
        read = {n.removeprefix(f"{at}.").removesuffix(".weight"): w for n, w in weights.items()}
        parts = {llama: read[n] for llama, both in NAMES.items() if (n := both[not amplify])}
        if amplify:
            parts["mlp.gate_proj"], parts["mlp.up_proj"] = read["ffn.w12"].chunk(2)
            for p in "qk":
                parts[f"self_attn.{p}_proj"] = parts[f"self_attn.{p}_proj"][pairs]
        else:
            three = read["attention.wqkv"].chunk(3)
            parts |= {f"self_attn.{p}_proj": w for p, w in zip("qkv", three, strict=True)}
        named |= {f"layers.{i}.{name}": w for name, w in parts.items()}
    return {f"{name}.weight": w.float() for name, w in named.items()}


@torch.no_grad()
def llama_states(family, weights, ids):
    """The states of every layer by transformers' Llama, with attention in both directions."""
    shape = FAMILIES[family].shape(FAMILIES[family].reduced_config)
    llama = LlamaModel(
        LlamaConfig(
            vocab_size=len(FAMILIES[family].tokens),
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward_width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            rms_norm_eps=1e-5,
            pad_token_id=None,
            attn_implementation="eager",
        )
    ).eval()
    llama.norm = torch.nn.Identity()  # the last layer's states are returned before the head's norm
    llama.load_state_dict(llama_weights(family, weights, shape))
    out = llama(
        input_ids=torch.from_numpy(ids)[None].long(),
        attention_mask=torch.zeros(1, 1, len(ids), len(ids)),  # nothing is hidden
        output_hidden_states=True,
    )
    return [state[0] for state in out.hidden_states]


def checkpoint(folder, family, **config):
    """A random checkpoint whose feed-forward width is not that of config.json: 688 or 768."""
    save_random_checkpoint(folder, {**FAMILIES[family].reduced_config, **config}, seed=5)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", HEAD)
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_every_layer_is_that_of_a_llama_with_attention_in_both_directions(
    tmp_path, family, backend
):
    weights = checkpoint(tmp_path, family)
    (prefix, head) = HEAD[family]
    stored = {prefix + n: w for n, w in weights.items()}
    stored |= {name: torch.ones(shape) for name, shape in head.items()}
    change_weights(tmp_path, lambda _weights: stored)
    identity = identify(str(tmp_path), "antigen")
    batch = batch_of(identity, (CHAIN,))
    layers = LayerStates()
    last = load_encoder(identity, CPU, backend=backend)(batch, layers)
    theirs = llama_states(family, weights, batch.ids)
    assert_close(last, theirs[-1])
    for ours, expected in zip(layers.states, theirs, strict=True):
        assert_close(ours, expected)


def test_an_amplify_with_another_vocabulary_is_not_taken_for_one(tmp_path):
    checkpoint(tmp_path, "amplify")
    config = {**FAMILIES["amplify"].reduced_config, "vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises((EncoderError, EncoderNotFound), match="AMPLIFY"):
        find_checkpoint(str(tmp_path))


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    code = {"AutoConfig": "amplify.AMPLIFYConfig", "AutoModel": "amplify.AMPLIFY"}
    checkpoint(tmp_path, "amplify", auto_map=code)
    proof = tmp_path / "ran"
    program = f"open({str(proof)!r}, 'w').close()\n"
    (tmp_path / "amplify.py").write_text(program, encoding="utf-8")
    for backend in ("packed", "reference"):
        load_encoder(identify(str(tmp_path), "antigen"), CPU, backend=backend)
    assert not proof.exists()


@pytest.mark.parametrize(("family", "longest"), [("amplify", 2046), ("glm2", 4095)])
def test_chains_are_divided_where_training_ended(tmp_path, family, longest):
    checkpoint(tmp_path, family)
    layout = identify(str(tmp_path), "antigen").layout
    assert len(layout.spans(("A" * longest,))) == 1
    assert len(layout.spans(("A" * (longest + 1),))) == 2
