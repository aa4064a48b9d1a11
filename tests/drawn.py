"""Stores of vectors that no encoder has computed, to fit heads to."""

import numpy as np

from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store


def write_vectors(store, kind, keys, x_ND, *, fingerprint="ab" * 16):
    """Add vectors, (N, D), as if of an encoder called drawn; `store` is open."""
    folder = store.create_folder(kind, {"name": "drawn", "fingerprint": fingerprint})
    with folder.writer(attrs={"precision": "fp32"}) as writer:
        writer.add(keys, np.full(len(keys), 15, np.int32), {"mean": x_ND})


def add_vectors(path, frame, *, fingerprint="ab" * 16, shift=0.0):
    """Add the sequences of a table that a store lacks; each vector is a function of its sequence.

    Two calls agree.
    """
    store = open_store(path, create=True)
    for kind, unique in read_pairs(frame).sequences.items():
        info = {"name": "drawn", "fingerprint": fingerprint}
        keys = unique.keys[store.find_folder(kind, info).missing(unique.keys)]
        x_ND = keys[:, :6].astype(np.float32) / 64 + shift
        write_vectors(store, kind, keys, x_ND, fingerprint=fingerprint)
