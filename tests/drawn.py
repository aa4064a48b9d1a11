"""The demo table, pairs with planted labels, and stores of vectors that no encoder has computed."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
from reading import demo_table as demo_table  # for the tests that read it from here
from reading import read_labels, read_sequences, splits_of

from abag import open_store
from abag.embed.tables.chains import KINDS
from abag.head.labels.labelled_pairs import LabelledPairs
from abag.head.models.pair_vectors import PairModel
from abag.head.predictor.parts import Parts
from abag.head.regimes.splits import split_frame

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
TINY = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "tiny-esm2"}


def labelled(antibody, antigen, pkd, censored=None, measurements=None):
    """Return pairs without a table, given the sequences and label of each."""
    n = len(pkd)
    return LabelledPairs(
        antibody=antibody,
        antigen=antigen,
        pkd=pkd,
        censored=np.zeros(n, np.int8) if censored is None else censored,
        row=np.arange(n),
        table=SimpleNamespace(source="drawn", row_numbers=np.arange(n) + 1, kinds=KINDS),
        measurements=np.ones(n, np.int64) if measurements is None else measurements,
        noise=None,
    )


def write_split(table, path, **options):
    """Write the split of a table that `fit` makes with these options as a file for other runs."""
    pairs = read_labels(table)
    frame = split_frame(pairs, splits_of(pairs, **options))
    write = frame.to_parquet if path.suffix == ".parquet" else frame.to_csv
    write(path, index=False)


class Constant(PairModel):
    """A model of pairs that predicts a pKd of 8."""

    def predict(self, pairs):
        return np.full(len(pairs), 8.0)


def predicting_the_mean(predictor):
    """Return a predictor whose regimes have all weight on one value."""
    parts = Parts({**predictor.parts.models, "train_mean": (Constant(),)})
    regimes = {}
    for name, regime in predictor.regimes.items():
        mixture = replace(regime.mixture, weights={"train_mean": 1.0})
        regimes[name] = replace(regime, mixture=mixture)
    return replace(predictor, parts=parts, regimes=regimes)


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


QUICK = {
    "split": "random",
    "report": False,
    "widths": (8,),
    "epochs": 2,
    "batch_size": 16,
    "device": "cpu",
}
"""Options of a fit that takes a second."""


def draw_chain(rng, length):
    return "".join(rng.choice(RESIDUES, length))


def draw_chains(rng, n, length=15):
    return [draw_chain(rng, length) for _ in range(n)]


def mutated(rng, chain, mutations):
    """Exchange as many residues of a chain for others."""
    letters = list(chain)
    for at in rng.choice(len(chain), mutations, replace=False):
        letters[at] = rng.choice([residue for residue in RESIDUES if residue != letters[at]])
    return "".join(letters)


def draw_pairs(n_antibodies, n_antigens, seed=0, antigens=None):
    """Draw a table of every antibody with every antigen and a random pKd."""
    rng = np.random.default_rng(seed)
    heavy = draw_chains(rng, n_antibodies)
    antigens = antigens or draw_chains(rng, n_antigens)
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigens], columns=["heavy", "antigen"])
    return frame.assign(pKd=8 + rng.normal(size=len(frame)))


def write_vectors(store, kind, keys, x_ND, *, fingerprint="ab" * 16, poolings=None, **info):
    """Add vectors, (N, D), as if of an encoder called drawn; `store` is open."""
    folder = store.create_folder(kind, {"name": "drawn", "fingerprint": fingerprint} | info)
    with folder.writer(attrs={"precision": "fp32"}) as writer:
        writer.add(keys, np.full(len(keys), 15, np.int32), {"mean": x_ND} | (poolings or {}))


def add_vectors(path, frame, *, kind=None, fingerprint="ab" * 16, shift=0.0):
    """Add the sequences of a table that a store lacks; two calls give the same vectors."""
    store = open_store(path, create=True)
    kinds = KINDS if kind is None else (kind,)
    for kind, unique in read_sequences(frame, kinds=kinds).sequences.items():
        info = {"name": "drawn", "fingerprint": fingerprint}
        keys = unique.keys[store.find_folder(kind, info).missing(unique.keys)]
        x_ND = keys[:, :6].astype(np.float32) / 64 + shift
        write_vectors(store, kind, keys, x_ND, fingerprint=fingerprint)
    return store


def planted_table(n_antibodies=30, n_antigens=4, seed=0, noise=0.0):
    """Make pairs whose pKd is the sum of one number per sequence."""
    rng = np.random.default_rng(seed)
    heavy = draw_chains(rng, n_antibodies)
    antigen = draw_chains(rng, n_antigens)
    side = rng.normal(size=n_antibodies)
    other = rng.normal(size=n_antigens)
    rows = [
        {"heavy": h, "antigen": g, "pKd": 8 + side[i] + other[j] + noise * rng.normal()}
        for i, h in enumerate(heavy)
        for j, g in enumerate(antigen)
    ]
    part = rng.permutation(np.resize(["train"] * 8 + ["validation", "test"], len(rows)))
    return pd.DataFrame(rows).assign(part=part)


def linear_table(at, n_antibodies, n_antigens, noise):
    """Store random vectors of a table whose labels are a linear function of them, plus noise."""
    rng = np.random.default_rng(0)
    heavy = draw_chains(rng, n_antibodies)
    antigen = draw_chains(rng, n_antigens)
    frame = pd.DataFrame([(h, g) for h in heavy for g in antigen], columns=["heavy", "antigen"])
    store = open_store(at / "store", create=True)
    value = np.zeros(len(frame))
    for kind, unique in read_sequences(frame).sequences.items():
        x_ND = rng.normal(size=(len(unique.keys), 4)).astype(np.float32)
        value += x_ND[unique.of_row, 0]
        write_vectors(store, kind, unique.keys, x_ND)
    frame["pKd"] = 8 + value + noise * rng.normal(size=len(frame))
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


def fill_store(path, frame, *, drop=0):
    """Store vectors with the number of each sequence in their first column; ``cls`` is noise."""
    store = open_store(path, create=True)
    for kind, unique in read_sequences(frame).sequences.items():
        planted = pd.Series(frame["pKd"].to_numpy()).groupby(unique.of_row).mean().to_numpy()
        x_2ND = np.random.default_rng(0).normal(size=(2, len(unique.keys), 6)).astype(np.float32)
        x_2ND[0, :, 0] = planted
        x_2ND = x_2ND[:, : len(unique.keys) - drop]
        write_vectors(
            store, kind, unique.keys[: x_2ND.shape[1]], x_2ND[0], poolings={"cls": x_2ND[1]}
        )
    return path
