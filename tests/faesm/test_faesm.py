"""FAESM against the packed encoder and transformers; run by .ci/faesm in its own environment."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from drawn import draw_chain
from encoding import CPU, change_weights, distance

from abag import EncoderError, open_store
from abag.core.device import plan_device
from abag.embed.encoders.checkpoints import TINY_CONFIG, save_random_checkpoint
from abag.embed.encoders.identity import find_checkpoint, identify
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import pack_spans

pytestmark = pytest.mark.faesm

LENGTHS = (300, 1, 1022, 41, 1)


def chains(lengths):
    rng = np.random.default_rng(3)
    return [draw_chain(rng, n) for n in lengths]


def batch_of(sequences):
    layout = identify("tiny-esm2", "antigen").layout
    return pack_spans([(i, span) for i, s in enumerate(sequences) for span in layout.spans((s,))])


def encode(batch, name="tiny-esm2", backend="faesm", plan=CPU):
    """Every token's vector: (T, D) float32."""
    return load_encoder(identify(str(name), "antigen"), plan, backend=backend)(batch).float()


def test_faesm_equals_the_packed_encoder_on_every_token():
    batch = batch_of(chains(LENGTHS))
    assert distance(encode(batch), encode(batch, backend="packed")) <= 1e-5


def test_faesm_equals_transformers_one_sequence_at_a_time():
    from transformers import EsmModel

    batch = batch_of(chains(LENGTHS))
    model = EsmModel.from_pretrained(find_checkpoint("tiny-esm2").folder).eval()
    ours_TD = encode(batch)
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.ids[start:stop]).long()[None]
        with torch.no_grad():
            theirs_TD = model(ids).last_hidden_state[0]
        assert distance(ours_TD[start:stop], theirs_TD) <= 1e-5


def test_padding_does_not_leak_into_a_sequence():
    short, long = chains((41, 1022))
    together = batch_of([short, long])
    alone = batch_of([short])
    assert distance(encode(together)[: len(alone.ids)], encode(alone)) <= 1e-5


def test_dropout_is_off(tmp_path):
    config = TINY_CONFIG["tiny-esm2"]
    dropout = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    folder = save_random_checkpoint(tmp_path / "esm", {**config, **dropout}, seed=1)
    batch = batch_of(chains(LENGTHS))
    assert distance(encode(batch, folder), encode(batch, folder, "packed")) <= 1e-5


def test_bf16_keeps_rotary_angles_exact_at_far_positions():
    batch = batch_of(chains((1022,)))
    exact = encode(batch)
    bf16 = plan_device("cpu", "bf16")
    faesm, packed = (
        distance(encode(batch, backend=b, plan=bf16), exact) for b in ("faesm", "packed")
    )
    assert faesm <= 1.5 * packed


def test_a_checkpoint_without_one_of_its_weights_is_refused(tmp_path):
    folder = save_random_checkpoint(tmp_path / "esm", TINY_CONFIG["tiny-esm2"], seed=1)
    name = "encoder.layer.1.output.dense.weight"
    change_weights(
        folder, lambda tensors: {n: x for n, x in tensors.items() if not n.endswith(name)}
    )
    with pytest.raises(EncoderError, match=r"layer.1.output.dense.weight"):
        encode(batch_of(["MKT"]), folder)


def test_the_command_prints_one_json_object_and_its_shards_say_faesm(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text("heavy,light,antigen\nEVQL,DIQM,MKTAYIAK\n")
    command = [sys.executable, "-c", "from abag.cli import main; main()", "embed", table]
    command += ["--store", tmp_path / "store", "--antibody-encoder", "composition"]
    command += ["--antigen-encoder", "tiny-esm2", "--antigen-backend", "faesm"]
    command += ["--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["antigens"]["encoded"] == 1
    (block,) = open_store(tmp_path / "store").folder("antigen").shards()
    assert block.attrs["backend"] == "faesm"
