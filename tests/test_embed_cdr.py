"""The pooling over CDR residues, which is stored on request."""

import numpy as np
import pandas as pd
import pytest
import torch
from trastuzumab import HEAVY, LIGHT

import abag
from abag import OptionError, StoreError
from abag.embed.encode import weigh_cdrs
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.packing import TokenLayout

CDRS = (("GFNIKDTY", "IYPTNGYT", "SRWGGDGFYAMDY"), ("QDVNTA", "SAS", "QQHYTTPPT"))  # by IMGT
UNKNOWN = "ACDEFGHIKLMNPQRSTVWY"
TABLE = pd.DataFrame(
    {
        "heavy": [HEAVY, HEAVY, UNKNOWN],
        "light": [LIGHT, "", UNKNOWN[::-1]],
        "antigen": ["MKT", "MKV", "MKW"],
    }
)
OPTIONS = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "composition"}


def places(chain, cdrs):
    """Positions of the residues of CDRs, each found by its sequence behind the one before."""
    positions = []
    end = 0
    for cdr in cdrs:
        start = chain.index(cdr, end + 14 if end else 20)
        end = start + len(cdr)
        positions += range(start, end)
    return positions


def test_cdr_mean_is_the_mean_over_the_residues_that_imgt_calls_cdrs(tmp_path, said):
    options = OPTIONS | {"poolings": ("cdr_mean",), "layers": (1,), "store_dtype": "float32"}
    abag.embed_table(TABLE, tmp_path, **options)
    store = abag.open_store(tmp_path)
    options = OPTIONS | {"kind": "antibody", "dtype": "float32"}
    of_chains = {encoded.chains: encoded.vectors for encoded in abag.residues(TABLE, **options)}
    pairs = list(zip(TABLE["heavy"], TABLE["light"], strict=True))
    ours = store.vectors("antibody", pairs, pooling="cdr_mean")
    heavy = places(HEAVY, CDRS[0])
    light = places(LIGHT, CDRS[1])
    residues = [heavy + [len(HEAVY) + i for i in light], heavy]
    for chains, pooled, at in zip(pairs, ours, residues, strict=False):
        expected = of_chains[chains][at].mean(axis=0)
        np.testing.assert_allclose(pooled, expected, rtol=1e-4, atol=1e-5)
    mean = store.vectors("antibody", pairs, pooling="mean")
    np.testing.assert_allclose(ours[2], mean[2], rtol=1e-5, atol=1e-6)
    assert not np.allclose(ours[0], mean[0], rtol=1e-2)
    assert store.vectors("antibody", pairs, pooling="cdr_mean@1").shape == ours.shape
    assert "without IMGT numbering (antibodies with such a chain: 1)" in "\n".join(said)


def test_a_chain_without_numbering_leaves_the_cdrs_of_the_other():
    ((heavy, light),), unnumbered = weigh_cdrs([(HEAVY, UNKNOWN)])
    assert unnumbered == 1
    assert np.flatnonzero(heavy).tolist() == places(HEAVY, CDRS[0])
    assert heavy.sum() == pytest.approx(1)
    assert not light.any()
    (both,), unnumbered = weigh_cdrs([(HEAVY, LIGHT)])
    assert unnumbered == 0
    assert sum(map(np.sum, both)) == pytest.approx(1)


@pytest.mark.parametrize("family", ["roformer", "esm", "t5", "ablang2"])
@pytest.mark.parametrize("length", [0, 107, 500])
def test_weights_of_residues_are_kept_in_pairs_chains_and_windows(family, length):
    layout = TokenLayout("antibody", FAMILIES[family].vocabulary)
    rng = np.random.default_rng(0)
    chains = ("A" * 120, "C" * length)
    extra = tuple(rng.random(len(chain)).astype(np.float32) for chain in chains)
    spans = layout.spans(chains, extra)
    plain = layout.spans(chains)
    assert all(
        np.array_equal(a.weights[:, :-1], b.weights) for a, b in zip(spans, plain, strict=True)
    )
    vocabulary = layout.vocabulary
    total = sum(span.weights[:, -1].sum() for span in spans)
    assert total == pytest.approx(sum(map(np.sum, extra)), rel=1e-5)
    letters = np.concatenate([span.ids for span in spans])
    weights = torch.from_numpy(np.concatenate([span.weights[:, -1] for span in spans]))
    for chain, expected in zip("AC", extra, strict=True):
        chain_weights = weights[torch.from_numpy(letters == vocabulary.ids[ord(chain)])]
        assert float(chain_weights.sum()) == pytest.approx(float(expected.sum()), rel=1e-5)


def test_a_store_keeps_the_poolings_that_it_was_begun_with(tmp_path):
    abag.embed_table(TABLE.head(1), tmp_path, poolings=("cdr_mean",), **OPTIONS)
    abag.embed_table(TABLE, tmp_path, **OPTIONS)  # without the option
    folder = abag.open_store(tmp_path).folder("antibody")
    assert folder.poolings == ("mean", "heavy_mean", "light_mean", "cdr_mean")
    assert abag.open_store(tmp_path).folder("antigen").poolings == ("mean",)
    assert folder.rows == 3
    with pytest.raises(StoreError, match="begun with poolings cdr_mean, not none"):
        abag.embed_table(TABLE, tmp_path, poolings=(), **OPTIONS)
    with pytest.raises(OptionError, match="poolings median: unknown; expected cdr_mean"):
        abag.embed_table(TABLE, tmp_path, poolings=("median",), **OPTIONS)
