"""Several vectors per sequence: views of a side, in every model, bundle and command."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from drawn import draw_chains, labelled
from marks import in_ci

import abag
from abag import FitConfig, OptionError, load_predictor
from abag.head.models import kernels as kernels
from abag.head.models.kernel_search import fit_gaussian_process
from abag.head.models.kernels import KernelSide, view_weights
from abag.head.models.pair_vectors import PairVectors, SideVectors, Standardizer, TrainingRows
from abag.head.predictor.parts import inner_folds

QUICK = {"report": False, "split": "random", "device": "cpu"}
SMALL = {"widths": (8,), "epochs": 2}
VIEWS = ("composition:mean", "tiny-igt5:mean@1", "tiny-igt5:heavy_mean")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Return a table and a store with two encoders for antibodies, one with two layers."""
    at = tmp_path_factory.mktemp("views")
    rng = np.random.default_rng(0)
    heavies = draw_chains(rng, 40, 30)
    antigens = draw_chains(rng, 5, 40)
    frame = pd.DataFrame(
        [(h, rng.choice(antigens)) for h in heavies for _ in range(3)], columns=["heavy", "antigen"]
    ).drop_duplicates(ignore_index=True)
    frame["pKd"] = (
        7 + frame["heavy"].map(lambda h: 0.3 * h.count("W")) + 0.1 * rng.normal(size=len(frame))
    )
    for encoder, layers in (("composition", None), ("tiny-igt5", (1,))):
        abag.embed_table(frame, at / "store", encoder, "composition", layers=layers)
    return at, frame


def fit(case, name, **options):
    at, frame = case
    shutil.rmtree(at / name, ignore_errors=True)
    return abag.fit(frame, at / "store", at / name, **QUICK | options), at / name


def test_views_are_standardised_each_and_scaled_by_the_root_of_their_number():
    rng = np.random.default_rng(0)
    left = rng.normal(5, 1, (50, 3))
    right = rng.normal(0, 100, (50, 2))
    joined = np.hstack([left, right]).astype(np.float32)
    standardised = Standardizer.of(joined, widths=(3, 2)).apply(joined)
    alone = [Standardizer.of(view).apply(view.astype(np.float32)) for view in (left, right)]
    np.testing.assert_allclose(standardised, np.hstack(alone) / np.sqrt(2), rtol=1e-4, atol=1e-6)


def test_the_kernel_of_a_side_is_the_weighted_mean_over_its_views():
    rng = np.random.default_rng(0)
    x_AD = rng.normal(size=(20, 5)).astype(np.float32)
    side = KernelSide.of(x_AD, (2, 3))
    kernel = kernels.PairKernel(0.3, 1.0, ((0.75, 0.25), (1.0,)))
    matrix = side.kernel(kernel, 0, x_AD)
    expected = 0.0
    for weight, columns in ((0.75, slice(0, 2)), (0.25, slice(2, 5))):
        alone = KernelSide.of(x_AD[:, columns], (columns.stop - columns.start,))
        view_kernel = kernels.PairKernel(0.3, 1.0, ((1.0,), (1.0,)))
        expected = expected + weight * alone.kernel(view_kernel, 0, x_AD[:, columns])
    np.testing.assert_allclose(matrix, expected, atol=1e-6)
    assert view_weights(1) == [(1.0,)]
    assert all(sum(weights) == pytest.approx(1) for weights in view_weights(4))


def test_a_view_that_carries_the_signal_is_used_and_one_of_noise_does_little_harm():
    rng = np.random.default_rng(1)
    signal, noise = (rng.normal(size=(120, 4)).astype(np.float32) for _ in range(2))
    y_ME = np.zeros((1, 2), np.float32)
    index = np.arange(120)
    pkd = 7 + np.sin(signal[:, 0]) + signal[:, 1]
    rows = np.arange(90)
    labels = labelled(index, np.zeros(120, np.int64), pkd)

    def error(*views):
        x_ND = np.hstack(views)
        widths = tuple(view.shape[1] for view in views)
        antibodies = SideVectors(x_ND, index, views=widths)
        antigens = SideVectors(y_ME, np.zeros(120, np.int64))
        vectors = PairVectors({"antibody": antibodies, "antigen": antigens})
        fit = fit_gaussian_process(TrainingRows(labels, vectors, rows, inner_folds(rows)), "error")
        return np.sqrt(np.mean((fit.predict(vectors) - labels.pkd)[90:] ** 2))

    alone = error(signal)
    useless = error(noise)
    assert error(noise, signal) < 0.6 * useless
    assert error(signal, noise) < 1.15 * alone


@pytest.mark.parametrize("head", ["ridge", *in_ci("kernel", "mlp")])
def test_one_view_is_the_pooling_of_that_name(case, head):
    options = {"head": head} | (SMALL if head == "mlp" else {})
    options["antibody_encoder"] = "tiny-igt5"
    single = fit(case, "one", antibody_pooling="heavy_mean", **options)[1]
    other = fit(case, "other", antibody_vectors=("heavy_mean",), **options)[1]
    files = [at / "predictor" / "weights.safetensors" for at in (single, other)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_predictor_with_views_encodes_what_is_missing_for_each_of_its_encoders(case, tmp_path):
    _, run = fit(case, "views", antibody_vectors=VIEWS, **SMALL)
    record = json.loads((run / "predictor/predictor.json").read_text())
    views = [f"{view['name']}:{view['pooling']}" for view in record["antibody"]["views"]]
    assert views == [*VIEWS]
    frame = case[1].head(4)
    chains = {"heavy": [*frame["heavy"]], "antigen": [*frame["antigen"]]}
    predictor = abag.load_predictor(run)
    stored = predictor.predict(**chains)
    again = predictor.predict(**chains, store=tmp_path / "new")
    columns = ["pkd_predicted", "sigma"]
    np.testing.assert_allclose(again[columns], stored[columns], atol=1e-3)
    out = tmp_path / "out.csv"
    other = tmp_path / "other"
    abag.predict(frame, run, out, store=other, device="cpu")
    np.testing.assert_allclose(pd.read_csv(out)[columns], stored[columns], atol=1e-3)


def test_a_view_of_an_encoder_that_the_store_lacks_is_refused(case):
    with pytest.raises(abag.AbagError, match="antiberty"):
        fit(case, "absent", head="ridge", antibody_vectors=("composition:mean", "antiberty:mean"))


@pytest.mark.parametrize(("options", "words"), [
    ({"antibody_vectors": ("mean", "mean")}, "one twice"),
    ({"antigen_vectors": ()}, "names no vector"),
    ({"antibody_vectors": ("mean",), "antibody_pooling": "heavy_mean"}, "expected one of them"),
])  # fmt: skip
def test_views_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        FitConfig(**options)


def test_a_plan_counts_the_encoders_of_all_views(case):
    _, frame = case
    usual = {"antibody_encoder": "antiberty", "antigen_encoder": "esm2-8m"}
    single = abag.plan(frame, **usual)["machines"]["T4"]
    more = abag.plan(frame, **usual, antibody_vectors=("mean", "igt5:mean"))["machines"]["T4"]
    assert more["embed_s"] > single["embed_s"]


def test_a_sweep_keeps_the_views_that_are_given(case):
    pytest.importorskip("optuna")
    at, frame = case
    summary = abag.sweep(
        frame,
        at / "store",
        at / "sweep",
        trials=2,
        folds=2,
        split="random",
        epochs=2,
        antibody_vectors=VIEWS,
        device="cpu",
        final=True,
        members=1,
    )
    assert summary["best"]["params"].get("antibody_pooling", "mean") == "mean"
    predictor = load_predictor(at / "sweep" / "final")
    assert len(predictor.antibody.views) == 3


def test_a_run_with_other_views_is_another_run(case):
    fit(case, "first", head="ridge", antibody_vectors=VIEWS)
    at, frame = case
    with pytest.raises(abag.AbagError, match="antibody_vectors was"):
        abag.fit(
            frame, at / "store", at / "first", head="ridge", antibody_vectors=VIEWS[:2], **QUICK
        )


def test_the_regressor_takes_views(case):
    sklearn = pytest.importorskip("abag.sklearn")
    at, frame = case
    model = sklearn.AffinityRegressor(
        at / "store", head="ridge", split="random", antibody_vectors=list(VIEWS)
    )
    x = frame[["heavy", "antigen"]]
    predicted = model.fit(x, frame["pKd"]).predict(x)
    assert np.corrcoef(predicted, frame["pKd"])[0, 1] > 0.5
    assert len(model.predictor_.antibody.views) == 3
