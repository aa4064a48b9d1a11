"""Checkpoints as transformers writes them, and the digest of an encoder's weights."""

import itertools
import json
import os
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from encoding import (
    ALIASES,
    CPU,
    FAMILIES,
    TINY_CONFIG,
    EncoderNotFound,
    assert_close,
    batch_of,
    change_weights,
    family_of,
    find_checkpoint,
    identify,
    load_encoder,
    save_random_checkpoint,
    weights_digest,
)
from faults import UnsafeFile
from marks import in_ci
from safetensors.torch import load_file

from abag import EncoderError
from abag.embed.encoders import checkpoints
from abag.embed.encoders.weights import WeightNames

CHAIN = "ACDEFGHIKLMNPQRSTVWYXEVQLVESGG"
CONFIG = {
    name: family.tiny_config for name, family in FAMILIES.items() if family.transformers_class
}
ENCODER = {name: FAMILIES[name].transformers_class for name in CONFIG}
HEADS = [
    ("t5", "T5Model"), ("t5", "T5ForConditionalGeneration"), ("t5", "T5ForTokenClassification"),
    ("t5", "T5ForQuestionAnswering"), ("esm", "EsmForMaskedLM"),
    ("esm1", "EsmForMaskedLM"), ("esm", "EsmForTokenClassification"),
    ("ankh", "T5ForConditionalGeneration"),
    ("ankh3", "T5ForConditionalGeneration"), ("esmc", "EsmcForMaskedLM"),
    ("roformer", "RoFormerForMaskedLM"), ("roberta", "RobertaForMaskedLM"),
    ("bert", "BertForMaskedLM"), ("bert", "BertForSequenceClassification"),
    ("t5", "T5ForSequenceClassification"), ("bert", "BertForPreTraining"),
    ("esmc", "EsmcForTokenClassification"),
]  # fmt: skip
LAYOUTS = itertools.cycle(["safetensors", "sharded", "bin"])


def class_of(name):
    """A class of transformers; the test is skipped where this version lacks it."""
    return getattr(transformers, name, None) or pytest.skip(f"transformers has no {name}")


def make_model(family, class_name, **changes):
    """A transformers model of random weights: the norms, too, differ from what is initialized."""
    cls = class_of(class_name)
    torch.manual_seed(3)
    config = cls.config_class.from_dict({**CONFIG[family], "is_encoder_decoder": False, **changes})
    model = cls(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:  # computed, not learned
                continue
            parameter += 0.2 * torch.randn(parameter.shape)
    return model


def save(model, family, folder, layout="safetensors"):
    """Save a model and the tokenizer of its family as a checkpoint folder."""
    model.save_pretrained(folder, max_shard_size="30KB" if layout == "sharded" else "1GB")
    if layout in ("bin", "old-bin"):
        (folder / "model.safetensors").unlink()
        zipped = layout == "bin"
        torch.save(
            model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped
        )
    (folder / "vocab.json").write_text(json.dumps(FAMILIES[family].tokens))
    return folder


@torch.no_grad()
def theirs(family, folder, ids):
    """Every token's vector as transformers itself loads the folder: (T, D)."""
    dtype = {"dtype" if transformers.__version__ >= "5" else "torch_dtype": torch.float32}
    model = getattr(transformers, ENCODER[family]).from_pretrained(folder, **dtype).eval()
    # transformers 5 also saves rotary frequencies and angles, in the type of the weights: rounded
    exact = type(model)(type(model).config_class.from_dict(CONFIG[family]))
    angles = {n: x for n, x in exact.state_dict().items() if "embed_positions" in n}
    model.load_state_dict(dict(exact.named_buffers()) | angles, strict=False)
    return model(input_ids=torch.from_numpy(ids)[None].long()).last_hidden_state[0].numpy()


def assert_equals_transformers(family, folder):
    """Compare every token's vector, by both backends, with that of transformers."""
    expected = theirs(family, folder, batch_of(identify(str(folder), "antigen"), (CHAIN,)).ids)
    for backend in ("packed", "reference"):
        assert_close(encode(folder, backend), expected)


@pytest.mark.parametrize(("layout", "dtype"), [
    ("safetensors", torch.float32), ("sharded", torch.bfloat16),
    *in_ci(*(("safetensors", dtype) for dtype in (torch.float16, torch.bfloat16)),
           *((layout, torch.bfloat16) for layout in ("bin", "old-bin"))),
])  # fmt: skip
@pytest.mark.parametrize("family", CONFIG)
def test_every_file_layout_and_dtype_gives_the_vectors_of_transformers(
    tmp_path, family, dtype, layout
):
    model = make_model(family, ENCODER[family]).to(dtype)
    assert_equals_transformers(family, save(model, family, tmp_path / "model", layout))
    assert layout != "sharded" or len(list((tmp_path / "model").glob("*.safetensors"))) > 1


@pytest.mark.parametrize(
    ("family", "class_name", "layout"),
    [(*head, layout) for head, layout in zip(HEADS, LAYOUTS, strict=False)],
)
def test_task_heads_and_decoders_leave_vectors_and_fingerprint_unchanged(
    tmp_path, family, class_name, layout
):
    model = make_model(family, class_name)
    with_head = save(model, family, tmp_path / "with", layout)
    assert_equals_transformers(family, with_head)
    encoder = getattr(transformers, ENCODER[family]).from_pretrained(with_head)
    alone = save(encoder, family, tmp_path / "alone")
    prints = [identify(str(f), "antigen").fingerprint for f in (with_head, alone)]
    assert prints[0] == prints[1]


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("content", ["command", "arguments", "nested", "list", "numbers", "page"])
def test_a_bin_file_with_more_than_tensors_is_refused_and_nothing_runs(tmp_path, content):
    folder = tiny(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    contents = {
        "command": weights | {"x": Command(tmp_path / "ran")},
        "nested": {"model": weights},
        "arguments": {"model": weights, "args": SimpleNamespace(epochs=3)},
        "list": [*weights.values()],
        "numbers": weights | {"epoch": 3},
    }
    if content == "page":
        path.write_text("<html>")
    else:
        torch.save(contents[content], path)
    with pytest.raises(EncoderError, match="something other than named tensors") as error:
        load_encoder(identify(str(folder), "antigen"), CPU)
    assert "weights_only" not in str(error.value)
    assert not (tmp_path / "ran").exists()


def tiny(folder, name="tiny-esm2", **config):
    """Write a tiny checkpoint of an alias or family, with other values in its config.json."""
    tiny_config = TINY_CONFIG.get(name) or FAMILIES[name].tiny_config
    save_random_checkpoint(folder, tiny_config, seed=1)
    (folder / "config.json").write_text(json.dumps({**tiny_config, **config}))
    return folder


def fingerprint(folder):
    return identify(str(folder), "antigen").fingerprint


def test_names_of_the_norms_and_of_buffers_from_other_versions_are_understood(tmp_path):
    plain = tiny(tmp_path / "plain")
    old = tiny(tmp_path / "old")

    def former(name):
        return name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")

    frequencies = {"encoder.layer.*.attention.self.rotary_embeddings.inv_freq": torch.ones(8)}
    change_weights(old, lambda tensors: {former(n): t for n, t in tensors.items()} | frequencies)
    assert_equals_transformers("esm", old)
    assert fingerprint(old) == fingerprint(plain)


@pytest.mark.parametrize(("family", "class_name"), [
    ("esm", "EsmModel"), ("esm", "EsmForMaskedLM"), ("t5", "T5EncoderModel"),
    ("bert", "BertForPreTraining"),
])  # fmt: skip
@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "module._orig_mod.", "inner"])
def test_names_of_wrapped_modules_give_the_vectors_of_the_module(
    tmp_path, family, class_name, wrapper
):
    """As torch.compile, of the whole or of each layer, and DistributedDataParallel name them."""
    model = make_model(family, class_name)
    plain = save(model, family, tmp_path / "plain")
    wrapped = save(model, family, tmp_path / "wrapped")

    def renamed(name):
        return (
            name.replace("layer.0.", "layer.0._orig_mod.") if wrapper == "inner" else wrapper + name
        )

    change_weights(wrapped, lambda tensors: {renamed(n): t for n, t in tensors.items()})
    expected = theirs(family, plain, batch_of(identify(str(plain), "antigen"), (CHAIN,)).ids)
    for backend in ("packed", "reference"):
        assert_close(encode(wrapped, backend), expected)
    assert fingerprint(wrapped) == fingerprint(plain)


def test_another_prefix_of_all_names_is_named(tmp_path):
    folder = tiny(tmp_path / "model")
    change_weights(folder, lambda tensors: {f"student.net.{n}": t for n, t in tensors.items()})
    words = "weights begin with 'student.net.', as student.net.*; expected .*without this prefix"
    for backend in ("packed", "reference"):
        with pytest.raises(EncoderError, match=words):
            encode(folder, backend)


# --- adapters and quantised weights ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
def test_an_adapter_beside_the_weights_is_refused_and_its_merged_model_read(tmp_path):
    """Transformers adds the adapter of such a folder, which makes other vectors."""
    peft = pytest.importorskip("peft")
    folder = save(make_model("esm", "EsmModel"), "esm", tmp_path / "model")
    base = theirs("esm", folder, batch_of(identify(str(folder), "antigen"), (CHAIN,)).ids)
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(make_model("esm", "EsmModel"), config)
    adapted.save_pretrained(folder)
    words = (
        r"model: adapter_config\.json: an adapter, which .*merge_and_unload.*without adapter_con"
    )
    with pytest.raises(EncoderError, match=words) as refused:
        identify(str(folder), "antigen")
    assert "\n" not in str(refused.value)
    # what the message advises
    merged = save(adapted.merge_and_unload(), "esm", tmp_path / "merged")
    assert_equals_transformers("esm", merged)
    assert not np.allclose(encode(merged, "packed"), base, atol=0.1)
    (folder / "adapter_config.json").rename(tmp_path / "adapter_config.json")
    assert_close(encode(folder, "packed"), base)


def test_an_adapter_without_its_model_is_refused_by_name(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(EncoderError, match=r"an adapter, which .*--antigen-adapter"):
        identify(str(tmp_path), "antigen")


@pytest.mark.parametrize(("key", "settings"), [
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    ("quantization_config", {"load_in_8bit": True}),
    ("compression_config", {"quant_method": "compressed-tensors"}),
])  # fmt: skip
def test_quantised_checkpoints_are_refused_by_their_config(tmp_path, key, settings):
    folder = tiny(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: settings}))
    with pytest.raises(EncoderError, match=f"config.json: {key}.*quantised"):
        identify(str(folder), "antigen")
    (folder / "config.json").write_text(json.dumps({**config, key: None}))
    identify(str(folder), "antigen")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_of_quantised_values_are_refused(tmp_path, dtype):
    folder = tiny(tmp_path / "model")
    weight = "encoder.layer.0.output.dense.weight"
    change_weights(folder, lambda tensors: tensors | {weight: tensors[weight].to(dtype)})
    for backend in ("packed", "reference"):
        with pytest.raises(EncoderError, match=f"{weight} holds {dtype}, a quantised value"):
            encode(folder, backend)


def test_a_version_of_antiberty_without_weights_names_the_one_that_has_them(tmp_path, monkeypatch):
    (tmp_path / "antiberty").mkdir()
    (tmp_path / "antiberty" / "__init__.py").touch()
    (tmp_path / "antiberty-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: antiberty\nVersion: 1.0\n"
    (tmp_path / "antiberty-1.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.delitem(sys.modules, "antiberty", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    words = "antiberty has no weights in the installed version .*pip install antiberty==0.1.3, .*"
    with pytest.raises(EncoderNotFound, match=words + "or give the folder AntiBERTy_md_smooth"):
        identify("antiberty", "antibody")
    # the version of the extra
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extra = pyproject["project"]["optional-dependencies"]["antiberty"]
    assert extra == [FAMILIES[ALIASES["antiberty"].family].package.requirement]


def test_two_tensors_for_one_weight_are_refused():
    names = ["a.LayerNorm.gamma", "a.LayerNorm.weight"]
    with pytest.raises(EncoderError, match=r"gamma and .*weight are both weight a\.LayerNorm"):
        WeightNames().of_encoder(names)


def test_the_digest_is_that_of_the_specification(tmp_path):
    from blake3 import blake3

    folder = tiny(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    hashers = [
        blake3(f"{n}\0float32\0{','.join(map(str, t.shape))}\0".encode() + t.numpy().tobytes())
        for n, t in sorted(tensors.items())
    ]
    expected = blake3(b"".join(hasher.digest() for hasher in hashers)).hexdigest(length=16)
    assert weights_digest(find_checkpoint(str(folder))) == expected


def test_half_precision_files_have_the_digest_of_the_same_values_in_float32(tmp_path):
    model = make_model("t5", "T5EncoderModel").half()
    half = save(model, "t5", tmp_path / "half")
    full = save(model.float(), "t5", tmp_path / "full")
    assert fingerprint(half) == fingerprint(full)


def test_each_tensor_name_shape_and_value_changes_the_digest(tmp_path):
    weight = "encoder.layer.0.output.dense.weight"
    changes = {
        "value": lambda t: t | {weight: t[weight].clone().index_fill_(0, torch.tensor(63), 0.5)},
        "shape": lambda t: t | {weight: t[weight].T.contiguous()},
        "name": lambda t: {n.replace("layer.0.output", "layer.7.output"): x for n, x in t.items()},
        "nothing": lambda t: t,
    }
    digests = {}
    for change, apply in changes.items():
        change_weights(tiny(tmp_path / change), apply)
        digests[change] = weights_digest(find_checkpoint(str(tmp_path / change)))
    assert len(set(digests.values())) == 4
    assert digests["nothing"] == weights_digest(find_checkpoint(str(tiny(tmp_path / "again"))))


def test_other_weights_of_the_same_path_size_and_time_have_another_digest(tmp_path):
    path = tiny(tmp_path / "model") / "model.safetensors"
    os.utime(path, ns=(0, 0))
    before = weights_digest(find_checkpoint(str(path.parent)))
    save_random_checkpoint(path.parent, TINY_CONFIG["tiny-esm2"], seed=2)
    os.utime(path, ns=(0, 0))
    assert weights_digest(find_checkpoint(str(path.parent))) != before


def encode(folder, backend):
    identity = identify(str(folder), "antigen")
    return load_encoder(identity, CPU, backend=backend)(batch_of(identity, (CHAIN,))).numpy()


def other_values(value):
    if isinstance(value, bool) or value is None:
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value / 2 if isinstance(value, float) else value // 2]
    if isinstance(value, str):
        return ["relu", "gelu", "gelu_new", "silu", "gated-gelu", "absolute", "other"]
    return []


def with_config(folder, config):
    """Write another config.json into a checkpoint folder; None is a key that it lacks."""
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["tiny-igt5", *in_ci("tiny-esm2", "ankh", "esmc", "protbert", "roformer")]
)
def test_a_value_in_config_json_that_changes_vectors_changes_the_fingerprint(tmp_path, name):
    """And the packed encoder refuses a value, or reads it as transformers does."""
    plain = tiny(tmp_path / "plain", name)
    config = find_checkpoint(str(plain)).config
    default_config = class_of(family_of(config).transformers_class).config_class()
    backends = ("packed", "reference")
    expected = {backend: encode(plain, backend) for backend in backends}
    changing = set()
    folder = tiny(tmp_path / "changed", name)
    for key, value in {**default_config.to_dict(), **config}.items():
        for other in [None, *other_values(value)] if key != "model_type" else ():
            with_config(folder, {**config, key: other})
            encoded = {}
            for backend in backends:
                try:
                    encoded[backend] = encode(folder, backend)
                except Exception:  # noqa: BLE001 - whatever refuses the value
                    continue
                if not np.allclose(encoded[backend], expected[backend], atol=1e-6):
                    changing.add(key)
                    assert fingerprint(folder) != fingerprint(plain), (key, other, backend)
            if len(encoded) == 2:
                assert np.allclose(*encoded.values(), atol=1e-5), (key, other)
    is_t5 = family_of(config).model_type == "t5"
    assert ("layer_norm_epsilon" if is_t5 else "num_attention_heads") in changing


@pytest.mark.parametrize(("name", "change", "message"), [
    ("tiny-esm2", {"rope_theta": 5000.0}, "rope_theta 5000.0; only 10000.0 is supported"),
    ("tiny-esm2", {"token_dropout": None}, "token_dropout False; only True is supported"),
    ("tiny-esm2", {"position_embedding_type": "relative_key"}, "'relative_key'; only 'rotary' is"),
    ("esm1", {"token_dropout": False}, "token_dropout False; only True is supported"),
    ("esm1", {"max_position_embeddings": 514}, "514; esm1 encoders need 1026"),
    ("tiny-igt5", {"dense_act_fn": "gelu"}, "dense_act_fn 'gelu'; only 'relu' is supported"),
    ("tiny-igt5", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj 'gated-relu'; only"),
    ("amplify", {"rms_norm": False}, "rms_norm False; only True is supported"),
    ("esmc", {"rope_scaling": {"type": "linear"}}, "rope_scaling .* only None is supported"),
    ("protbert", {"hidden_size": 64.5}, "hidden_size 64.5; expected a whole number"),
    ("tiny-igt5", {"d_kv": 10**400}, "d_kv 10+; expected a whole number"),
    ("tiny-igt5", {"feed_forward_proj": ["relu"]}, r"\['relu'\]; expected text"),
    ("tiny-esm2", {"layer_norm_eps": "small"}, "layer_norm_eps 'small'; expected a number"),
    ("tiny-esm2", {"hidden_size": 0}, "4 attention heads do not divide a width of 0"),
    ("esmc", {"hidden_size": None, "d_model": 64}, "missing hidden_size"),
    ("glm2", {"ffn_dim_multiplier": "two"}, "gives no sizes of layers"),
    ("tiny-esm2", {"num_attention_heads": 0}, "0 attention heads do not divide a width of 64"),
])  # fmt: skip
def test_a_value_in_config_json_that_the_packed_encoder_lacks_is_refused(
    tmp_path, name, change, message
):
    folder = tiny(tmp_path / "model", name)
    config = json.loads((folder / "config.json").read_text())
    with_config(folder, {**config, **change})
    with pytest.raises(EncoderError, match=f"config.json: .*{message}"):
        load_encoder(identify(str(folder), "antigen"), CPU)


@pytest.mark.parametrize("text", ["null", "[" * 100_000, '{"tokenizer_class": 5}'])
def test_a_damaged_config_is_overruled_or_refused(tmp_path, text):
    folder = tiny(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(text)
    with suppress(EncoderError):
        load_encoder(identify(str(folder), "antigen"), CPU)
    (folder / "config.json").write_text(text)
    with pytest.raises(EncoderError, match=r"config\.json: (not valid JSON|model_type None)"):
        identify(str(folder), "antigen")


@pytest.mark.parametrize("name", ["tiny-esm2", "esmc"])
def test_fewer_positions_in_config_json_do_not_limit_what_is_rotated(tmp_path, name):
    plain = tiny(tmp_path / "plain", name)
    few = tiny(tmp_path / "few", name)
    config = json.loads((few / "config.json").read_text())
    with_config(few, {**config, "max_position_embeddings": 9})
    for backend in ("packed", "reference"):
        assert np.array_equal(encode(few, backend), encode(plain, backend))


def test_a_default_that_is_written_out_leaves_the_fingerprint_unchanged(tmp_path):
    written_out = tiny(
        tmp_path / "given", rope_theta=10000.0, is_decoder=None, transformers_version="9"
    )
    assert fingerprint(written_out) == fingerprint(tiny(tmp_path / "plain"))


@pytest.mark.parametrize(("content", "expected"), [
    (
        '{"weight_map": {"shared.weight": "model-00009-of-00009.safetensors"}}',
        "1 of 1 shards .* missing .*00009",
    ),
    (
        '{"weight_map": {"shared.weight": "../../secret"}}',
        "'../../secret', which its format does not allow",
    ),
    ('{"weight_map": {"shared.weight": 3}}', "'3', which its format does not allow"),
    ("[1]", "not an index of weights"), ("{", "not an index of weights"),
])  # fmt: skip
def test_an_index_that_cannot_be_followed_is_refused_in_one_line(tmp_path, content, expected):
    folder = save(make_model("t5", "T5EncoderModel"), "t5", tmp_path / "model", "sharded")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises((EncoderError, UnsafeFile), match=expected):
        find_checkpoint(str(folder))


def test_a_truncated_shard_is_refused_with_its_name(tmp_path):
    folder = save(make_model("t5", "T5EncoderModel"), "t5", tmp_path / "model", "sharded")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(EncoderError, match=f"{shard.name}: cannot be read"):
        identify(str(folder), "antigen")


@pytest.mark.parametrize(("name", "said"), [
    ("~/models/none", "does not exist; expected a checkpoint folder"),
    ("models/esm/none", "does not exist; expected a checkpoint folder"),
    ("igt6", "not an alias and not an existing folder"),
    ("./none", "does not exist; expected a checkpoint folder"),
    ("/models/none", "does not exist; expected a checkpoint folder"),
    ("work@home/models/none", "does not exist; expected a checkpoint folder"),
])  # fmt: skip
def test_a_folder_that_does_not_exist_is_not_looked_for_on_the_hub(name, said, monkeypatch):
    monkeypatch.setattr(checkpoints, "_fetch", lambda *_, **__: pytest.fail("was looked for"))
    with pytest.raises(EncoderNotFound, match=said):
        identify(name, "antigen")
