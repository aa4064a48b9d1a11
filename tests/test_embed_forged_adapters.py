"""Adapters that anybody may have written: whatever is wrong with their files is one error."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from abag.core.device import plan_device
from abag.embed.encoders.adapters import (
    ADAPTER_FORMAT,
    PEFT_PREFIX,
    AdapterDamaged,
    AdapterNotFound,
    adapter_digest,
    read_adapter_files,
)
from abag.embed.encoders.identity import find_checkpoint, identify
from abag.embed.encoders.loading import load_encoder
from abag.embed.weights import AdapterMismatch, weights_digest

ENCODER = "tiny-esm2"
MODULE = "encoder.layer.0.attention.self.query"
WIDTH = find_checkpoint(ENCODER).config["hidden_size"]
A, B = np.ones((2, WIDTH), np.float32), np.ones((WIDTH, 2), np.float32)
CONFIG = {"lora_alpha": 4.0, "r": 2}


def factors(a=A, b=B):
    names = {"A": a, "B": b}
    found = {f"{PEFT_PREFIX}{MODULE}.lora_{n}.weight": x for n, x in names.items() if x is not None}
    return save(found)


def write(folder, config=CONFIG, weights=None):
    """Write an adapter of antigens, and sign what it holds."""
    (folder / "antigen").mkdir(parents=True)
    (folder / "splits.parquet").write_bytes(b"rows")
    (folder / "antigen" / "adapter_config.json").write_text(json.dumps(config))
    (folder / "antigen" / "adapter_model.safetensors").write_bytes(weights or factors())
    base = weights_digest(find_checkpoint(ENCODER))
    digest = adapter_digest(base, read_adapter_files(folder, "antigen"))
    side = {"encoder": ENCODER, "weights": base, "digest": digest}
    record = {**ADAPTER_FORMAT, "name": "first", "sides": {"antigen": side}}
    (folder / "adapter.json").write_text(json.dumps(record))
    return record


def test_an_adapter_is_read_with_its_scale(tmp_path):
    write(tmp_path / "a")
    adapter = identify(ENCODER, "antigen", adapter=tmp_path / "a").checkpoint.adapter
    assert adapter.scale == 2.0
    assert list(adapter.factors) == [MODULE]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("sides"), lambda record: record.pop("name"),
        lambda record: record.update(sides=["antigen"]), lambda record: record.update(name=5),
        lambda record: record["sides"].update(antigen="x"),
        lambda record: record["sides"]["antigen"].pop("digest"),
        lambda record: record["sides"]["antigen"].update(weights=None),
    ],
)  # fmt: skip
def test_a_record_without_what_a_reader_needs_is_refused(tmp_path, change):
    record = write(tmp_path / "a")
    change(record)
    (tmp_path / "a" / "adapter.json").write_text(json.dumps(record))
    with pytest.raises(AdapterDamaged, match=r"adapter\.json: .*Copy the whole folder again"):
        identify(ENCODER, "antigen", adapter=tmp_path / "a")


def test_a_record_that_is_nested_too_deeply_is_no_adapter(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "adapter.json").write_text("[" * 100_000)
    with pytest.raises(AdapterNotFound, match="no finished adapter"):
        identify(ENCODER, "antigen", adapter=tmp_path / "a")


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ([], None), ({}, None), ({**CONFIG, "r": 0}, None), ({**CONFIG, "r": "2"}, None),
        ({**CONFIG, "lora_alpha": float("nan")}, None), ({**CONFIG, "lora_alpha": 10**400}, None),
        (CONFIG, b"not safetensors"), (CONFIG, factors(b=None)),
    ],
)  # fmt: skip
def test_files_that_are_signed_and_invalid_are_refused(tmp_path, config, weights):
    write(tmp_path / "a", config, weights)
    with pytest.raises(AdapterDamaged, match="its files cannot be read"):
        identify(ENCODER, "antigen", adapter=tmp_path / "a")


@pytest.mark.parametrize(
    "weights",
    [factors(a=A[:, 1:]), factors(a=A[:1]), factors(b=B[1:]), factors(a=A[0]), factors(a=A[:, :1])],
)
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_factors_of_another_shape_than_the_weight_are_refused(tmp_path, weights, backend):
    write(tmp_path / "a", weights=weights)
    identity = identify(ENCODER, "antigen", adapter=tmp_path / "a")
    with pytest.raises(AdapterMismatch, match=rf"its change of {MODULE} has the shapes"):
        load_encoder(identity, plan_device("cpu"), backend=backend)
