"""``abag.dataset``: arrays and torch datasets of a table's pairs."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import COMPOSITION
from marks import in_ci
from reading import demo_table, groups_of, read_labels, splits_of
from torch.utils.data import DataLoader

import abag
from abag import DatasetOptions, MissingVectors, OptionError
from abag.head.regimes.splits import TEST, TRAIN


@pytest.fixture(scope="module")
def table():
    """Pairs in any order, some measured twice and some censored."""
    frame = demo_table().head(120).assign(censored="")
    twice = frame.head(10).assign(pKd=lambda rows: rows["pKd"] + 0.4)
    low = frame.tail(8).assign(censored=">")
    whole = pd.concat([frame.iloc[:-8], twice, low], ignore_index=True)
    return whole.sample(frac=1, random_state=1, ignore_index=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("dataset") / "store"
    for part in (table.head(50), table):
        abag.embed_table(part, path, **COMPOSITION)
    return path


@pytest.fixture(scope="module")
def data(store, table):
    return abag.dataset(store, table, split="antigen", folds=3)


def test_the_labels_are_those_that_fit_reads(data, table):
    expected = read_labels(table)
    assert np.array_equal(data.y, expected.pkd)
    assert np.array_equal(data.censored, expected.censored)
    assert (data.censored == -1).sum() == 8
    assert len(data) == 120
    kept = abag.dataset(data.folders["antigen"].path.parent, table, replicates="keep")
    assert len(kept) == len(table)


def test_x_holds_both_vectors_of_each_pair(data, store):
    frame = data.frame
    opened = abag.open_store(store)
    antibodies = list(zip(frame["heavy"], frame["light"], strict=True))
    expected = [opened.vectors("antibody", antibodies), opened.vectors("antigen", frame["antigen"])]
    assert np.array_equal(data.X, np.hstack(expected))
    assert np.array_equal(data.vectors("antigen")[data.index("antigen")], expected[1])
    assert data.keys("antigen") == [bytes(key).hex() for key in data.pairs.keys("antigen")]


def test_groups_and_splits_are_those_of_fit(data, table):
    pairs = read_labels(table)
    options = {"split": "antigen", "folds": 3}
    groups = groups_of(pairs, **options)
    for kind in ("antibody", "antigen"):
        assert np.array_equal(data.groups[kind], groups.of_method(kind))
    for ours, theirs in zip(data.splits(), splits_of(pairs, **options), strict=True):
        assert np.array_equal(ours.part, theirs.part)


def test_the_order_of_the_rows_does_not_matter(store, table, data):
    turned = abag.dataset(store, table.iloc[::-1].reset_index(drop=True))
    assert np.array_equal(turned.X, data.X)
    assert np.array_equal(turned.y, data.y)


def test_rows_of_a_data_frame_keep_their_index(store, table):
    named = table.assign(pH=np.arange(len(table)) / 100)
    named.index = [f"clone {number}" for number in range(len(named))]
    named.iloc[3, named.columns.get_loc("heavy")] = "1234"
    read = abag.dataset(store, named, features=("pH",), bad_rows="skip", replicates="keep")
    assert len(read) == len(named) - 1
    assert read.frame["heavy"].tolist() == named.loc[read.frame.index, "heavy"].tolist()
    assert read.features.index.equals(read.frame.index)
    assert np.array_equal(read.features["pH"], named.loc[read.features.index, "pH"])


def test_a_torch_dataset_gives_the_rows_of_x(data):
    rows = data.splits()[0].rows(TRAIN)
    pairs = data.torch(rows)
    assert len(pairs) == len(rows)
    x, y = pairs[3]
    assert (x.dtype, x.shape, y.shape) == (torch.float32, (data.X.shape[1],), ())
    assert np.array_equal(x, data.X[rows[3]])
    loaded = [*DataLoader(pairs, batch_size=16)]
    assert np.array_equal(torch.cat([x for x, _ in loaded]), data.X[rows])
    assert np.array_equal(torch.cat([y for _, y in loaded]), data.y[rows].astype(np.float32))
    again = pickle.loads(pickle.dumps(pairs))
    assert np.array_equal(again.batch([5, 5, 0])[0], data.X[rows[[5, 5, 0]]])


def test_pairs_of_a_torch_dataset_are_chosen_by_number_or_mask(data):
    is_strong = data.y > np.median(data.y)
    pairs = data.torch(is_strong)
    assert len(pairs) == is_strong.sum()
    assert np.array_equal(pairs.batch(range(len(pairs)))[0], data.X[is_strong])
    assert np.array_equal(data.torch([2, 0]).y, data.y[[2, 0]].astype(np.float32))


@pytest.mark.parametrize("start", ["fork", *in_ci("spawn")])
def test_workers_of_a_loader_read_the_same_rows(data, start):
    pairs = data.torch(data.splits()[0].rows(TEST))
    loader = DataLoader(pairs, batch_size=8, num_workers=1, multiprocessing_context=start)
    rows = data.splits()[0].rows(TEST)
    assert np.array_equal(torch.cat([x for x, _ in loader]), data.X[rows])


def test_invalid_input_is_refused_in_one_line(store, table):
    new = table.assign(heavy=["EVQ", *table["heavy"][1:]])
    for error, words, options in [
        (MissingVectors, "1 of 8. antibody", {"table": new}),
        (abag.AbagError, "no column for pkd", {"table": table.drop(columns="pKd")}),
        (abag.AbagError, "'cls' is not stored", {"table": table, "antigen_pooling": "cls"}),
        (OptionError, "dataset: unknown option 'epochs'", {"table": table, "epochs": 3}),
        (OptionError, "split: 'x' is unknown", {"table": table, "split": "x"}),
    ]:
        with pytest.raises(error, match=words) as caught:
            abag.dataset(store, **options)
        assert "\n" not in str(caught.value)


def test_a_store_makes_the_dataset_too(store, table, data):
    opened = abag.open_store(store).dataset(table)
    assert np.array_equal(opened.y, data.y)
    assert repr(opened).splitlines()[0] == "PairDataset: 120 pairs of table"
    shown = opened._repr_html_()
    assert shown.startswith("<pre>PairDataset")
    assert " pKd" in shown
    assert "<table" in shown  # the first pairs
    assert opened.options == DatasetOptions()


def with_scores(table):
    """Return a table with columns of a score, a laboratory and the error of each label."""
    rng = np.random.default_rng(3)
    n = len(table)
    score = rng.normal(size=n)
    score[:4] = np.nan
    lab = np.resize(["north", "south"], n)
    return table.assign(score=score, lab=lab, sd=rng.uniform(0.1, 0.5, n))


def test_features_and_weights_are_those_that_fit_reads(store, table):
    scored = with_scores(table)
    columns = {"features": ("score",), "categories": ("lab",), "error": "sd"}
    data = abag.dataset(store, scored, **columns)
    pairs = read_labels(scored, **columns)
    np.testing.assert_array_equal(data.features["score"], pairs.cells.numbers_RF[:, 0])
    assert data.features["lab"].tolist() == pairs.cells.words_RG[:, 0].tolist()
    np.testing.assert_allclose(data.weight, (1 / pairs.share) / np.mean(1 / pairs.share))
    assert len(data.features) == len(data.weight) == len(data) > 120  # a pair in two laboratories


def test_without_columns_there_are_no_features_and_no_weights(data):
    assert data.features.shape == (len(data), 0)
    assert data.weight is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": ("scores",)}, "no column 'scores', which is to be read as a feature"),
        ({"features": ("pKd",)}, "column 'pKd' is the label"),
        ({"features": ("loglik",)}, "no likelihood of the antibody or antigen in the store"),
        ({"weight": "lab"}, "column lab: .* is not a valid weight"),
    ],
)
def test_columns_that_fit_would_refuse_are_refused(store, table, options, words):
    with pytest.raises(abag.AbagError, match=words):
        abag.dataset(store, with_scores(table), **options)


def test_the_frame_of_a_text_file_has_numbers_and_names_as_text(table, store, tmp_path):
    clones = np.resize(["1.1", "1.10", "0012"], len(table))
    new = table.assign(clone=clones, n=range(len(table)), round=np.resize(["1", "2"], len(table)))
    new.to_csv(tmp_path / "t.csv", index=False)
    frame = abag.dataset(store, tmp_path / "t.csv", categories=("round",)).frame
    assert [frame[name].dtype.kind for name in ("pKd", "n")] == ["f", "i"]
    assert set(frame["clone"]) == set(clones)
    assert set(frame["round"]) == {"1", "2"}
