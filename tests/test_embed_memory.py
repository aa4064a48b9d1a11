"""Loading IgT5, whose fp32 weights take 4.5 GiB, fits into the memory of a free Colab machine."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from encoding import FAMILIES
from shapes import SHAPES

from abag.embed.encoders.checkpoints import draw_weights

GIB = 2**30
LOAD = """
import sys, threading, time
from pathlib import Path
import torch
from abag.core.device import DevicePlan
from abag.embed.encoders.identity import identify
from abag.embed.encoders.loading import load_encoder

def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

def watch():
    while True:
        seen.append(anonymous())
        time.sleep(0.002)

seen = [anonymous()]
threading.Thread(target=watch, daemon=True).start()
identity = identify(sys.argv[1], "antibody")
encoder = load_encoder(identity, DevicePlan(torch.device("cpu"), "fp16", ""))
print(max(seen))
"""


def write_checkpoint(folder, config):
    """Write random weights a tensor at a time: all of them in memory would take 10 GB."""
    family = FAMILIES[config["model_type"]]
    rng = np.random.default_rng(0)
    # zero bytes per tensor: every value is the scale at which it is to be drawn
    scales = draw_weights(
        family, config, lambda shape, scale: np.broadcast_to(np.float32(scale), shape)
    )
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "vocab.json").write_text(json.dumps(family.tokens))
    header = {}
    end = 0
    for name, x in scales.items():
        header[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [end, end + 4 * x.size]}
        end += 4 * x.size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in scales.values():
            drawn = rng.standard_normal(x.shape, np.float32) if x.ndim == 2 else np.float32(1)
            file.write((drawn * x).astype(np.float32, copy=False).data)
    return folder


@pytest.mark.slow
def test_igt5_is_read_and_loaded_with_little_memory_beside_its_weights_on_the_device(tmp_path):
    folder = write_checkpoint(tmp_path / "igt5", SHAPES["igt5"])
    on_disk = (folder / "model.safetensors").stat().st_size
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}  # no cached digest
    child = [sys.executable, "-c", LOAD, folder]
    done = subprocess.run(child, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    on_device = on_disk / 2  # here the device is the CPU, and shares the memory
    assert int(done.stdout) - on_device < 1.5 * GIB
