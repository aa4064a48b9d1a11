"""Print a digest of the vectors that tiny random encoders of every family give on this CPU.

    python benchmarks/freeze_encoders.py > before.txt

Two versions of abag on one machine whose output is equal encode every family to the same bits.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import torch

from abag.core.device import plan_device
from abag.embed.encode import encode_stream
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.identity import identify
from abag.embed.encoders.loading import load_encoder
from abag.embed.families.registry import FAMILIES

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def draw_chains() -> dict[str, list[tuple[str, ...]]]:
    """Draw antibodies, with absent chains among them, and antigens, with long ones."""
    rng = np.random.default_rng(0)

    def chain(length: int) -> str:
        return "".join(rng.choice(list(RESIDUES), length))

    antibodies = [(chain(n), chain(n - 9)) for n in (135, 121, 110)]
    antibodies += [(chain(118), ""), ("", chain(105)), (chain(20) + "X", chain(7))]
    antigens = [(chain(2300),), (chain(300), chain(150)), (chain(90),), (chain(5) + "X",)]
    return {"antibody": antibodies, "antigen": antigens}


def main() -> None:
    """Print the digest of the vectors of each family, kind, policy and backend."""
    torch.set_num_threads(1)
    chains = draw_chains()
    plan = plan_device("cpu", "fp32")
    with tempfile.TemporaryDirectory() as folder:
        for name, family in FAMILIES.items():
            at = name
            if family.tiny_config:
                at = str(save_random_checkpoint(Path(folder) / name, family.tiny_config, seed=1))
            for kind, sequences in chains.items():
                for long in ("window", "truncate")[: 2 if kind == "antigen" else 1]:
                    identity = identify(at, kind, long)
                    for backend in ("packed", "reference")[: 2 if family.tiny_config else 1]:
                        digest = hashlib.blake2b(digest_size=16)
                        encoder = load_encoder(identity, plan, backend=backend)
                        layers = (1,) if family.tiny_config else ()
                        for done in encode_stream(
                            encoder, identity.layout, sequences, plan, 5000, torch.float32, layers
                        ):
                            digest.update(done.stored_SPD.tobytes())
                        print(name, kind, long, backend, identity.fingerprint, digest.hexdigest())


if __name__ == "__main__":
    main()
