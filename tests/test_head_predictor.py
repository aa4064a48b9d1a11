import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import drawn
import numpy as np
import pandas as pd
import pytest
import torch
from drawn import add_vectors, draw_pairs
from heads import PairVectors, Standardizer, sign, store_vectors
from hypothesis import given
from hypothesis import strategies as st
from invoke import one_line, run
from safetensors.torch import load_file, save_file

import abag
from abag import DamagedFile, SequenceError, StoreError, load_predictor
from abag.head.models.network import Mlp, NetworkModel
from abag.head.models.pair_vectors import NetworkSettings, SideVectors
from abag.head.predictor.parts import Growth, Mixture, Parts

QUICK = drawn.QUICK | {"head": "mlp", "epochs": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    at = tmp_path_factory.mktemp("predictor")
    frame = draw_pairs(20, 3)
    add_vectors(at / "store", frame)
    abag.fit(frame, at / "store", at / "run", **QUICK)
    return SimpleNamespace(at=at, frame=frame, run=at / "run", store=at / "store")


def predict(case, frame, **options):
    """Predict pairs whose sequences are stored; others cannot be encoded."""
    predictor = replace(load_predictor(case.run), embed=None)
    return predictor.predict(heavy=list(frame["heavy"]), antigen=list(frame["antigen"]), **options)


def test_a_predictor_weighs_its_parts_as_the_run_did(trained):
    predictor = load_predictor(trained.run)
    (regime,) = json.loads((trained.run / "summary.json").read_text())["regimes"]
    (used,) = predictor.regimes.values()
    assert used.mixture.weights == pytest.approx(regime["weights"])
    assert used.mixture.noise == pytest.approx(regime["noise"])
    assert used.verdict == regime["sentence"]
    scores = predict(trained, trained.frame)
    assert (scores["regime"] == "known").all()
    assert not scores["far"].any()
    assert (scores["sigma"] > 0).all()


def recorded(compute, computed, name):
    """Return a method that adds a name to a list when it is called."""

    def method(model, vectors):
        computed.append(name)
        return compute(model, vectors)

    return method


def test_parts_without_weight_in_the_regimes_of_a_table_are_not_computed(trained, monkeypatch):
    predictor = replace(load_predictor(trained.run), embed=None)
    computed = []
    for name, (model, *_) in predictor.parts.models.items():
        monkeypatch.setattr(type(model), "predict", recorded(type(model).predict, computed, name))
    (used,) = predictor.regimes.values()
    names = [*predictor.parts.models]
    for weights in ((1.0, 0.0), (0.0, 1.0), (0.25, 0.75)):
        of_part = {n: w for n, w in zip(names, weights, strict=True) if w}
        mixture = replace(used.mixture, weights=of_part)
        weighed = replace(predictor, regimes={used.name: replace(used, mixture=mixture)})
        computed.clear()
        pairs = {"heavy": [*trained.frame["heavy"]], "antigen": [*trained.frame["antigen"]]}
        weighed.predict(**pairs)
        assert computed == [name for name, weight in zip(names, weights, strict=True) if weight]


def test_pairs_that_a_table_has_many_times_are_computed_once(trained, monkeypatch):
    once = trained.frame.head(30)
    many = pd.concat([once, once.head(7), once], ignore_index=True).sample(frac=1, random_state=0)
    expected = predict(trained, once).loc[many.index % 37 % 30].reset_index(drop=True)
    sizes = []
    compute = Parts.predict_with_variance
    monkeypatch.setattr(
        Parts,
        "predict_with_variance",
        lambda parts, vectors, *also: sizes.append(len(vectors)) or compute(parts, vectors, *also),
    )
    pd.testing.assert_frame_equal(predict(trained, many), expected, rtol=1e-6)
    assert sizes[-1] == 30


def test_pairs_of_regimes_that_were_not_measured_are_far(trained):
    strange = pd.DataFrame({"heavy": ["W" * 15], "antigen": ["P" * 15], "pKd": [7.0]})
    other = trained.at / "strange"
    add_vectors(other, strange, shift=50.0)
    scores = predict(trained, strange, store=other)
    assert scores["regime"].tolist() == ["both_new"]
    assert scores["far"].all()
    assert "could not measure new antibodies, new antigens" in scores["why_far"][0]


def test_a_run_finds_its_store_from_another_folder_and_after_both_have_moved(
    trained, tmp_path, monkeypatch
):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(trained.store, home / "store")
    monkeypatch.chdir(home)
    abag.fit(trained.frame, "store", "runs/first", **QUICK)
    monkeypatch.chdir(tmp_path)
    assert load_predictor(home / "runs/first").store == home / "store"
    home.rename(tmp_path / "away")
    store = load_predictor(tmp_path / "away/runs/first").store
    assert store.resolve() == tmp_path / "away/store"
    assert abag.fit(trained.frame, "away/store", "away/runs/first", **QUICK)["steps"]


def test_a_run_that_was_copied_with_its_store_uses_the_copy(trained, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(trained.store, home / "store")
    abag.fit(trained.frame, home / "store", home / "runs/first", **QUICK)
    shutil.copytree(home, tmp_path / "other" / "copy")
    run_of_copy = tmp_path / "other" / "copy" / "runs" / "first"
    store = load_predictor(run_of_copy).store
    assert store.resolve() == tmp_path / "other" / "copy" / "store"
    assert abag.fit(trained.frame, store, run_of_copy, **QUICK)["steps"]


def test_vectors_of_another_width_under_one_fingerprint_are_refused(trained, tmp_path):
    store_vectors(tmp_path / "store", trained.frame, lambda _kind, number: np.ones((number, 4)))
    expected = r"the mean vectors of drawn \(abababab\) have 4 numbers; the run was trained with 6"
    with pytest.raises(StoreError, match=expected):
        predict(trained, trained.frame, store=tmp_path / "store")
    with pytest.raises(StoreError, match=expected):
        abag.evaluate(trained.run, table=trained.frame, store=tmp_path / "store")


@pytest.mark.parametrize("opens", range(12))
def test_a_store_that_moves_while_it_is_read_gives_one_line_or_the_same(
    trained, tmp_path, monkeypatch, opens
):
    shutil.copytree(trained.store, tmp_path / "store")
    predictor = load_predictor(trained.run)
    left = [opens]
    real = os.open

    def moving(*args, **options):
        if not left[0]:
            (tmp_path / "store").rename(tmp_path / "away")
        left[0] -= 1
        return real(*args, **options)

    rows = {"heavy": list(trained.frame["heavy"]), "antigen": list(trained.frame["antigen"])}
    expected = predictor.predict(**rows)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", moving)
        try:
            scores = predictor.predict(**rows, store=tmp_path / "store")
        except abag.AbagError as error:
            assert "\n" not in str(error)  # noqa: PT017 - or it succeeds
        else:
            pd.testing.assert_frame_equal(scores, expected)


@pytest.mark.ci
def test_a_copied_bundle_predicts_the_same_bits_in_another_process(trained, tmp_path):
    bundle = copied(trained, tmp_path / "bundle")
    script = (
        "import sys, abag, json; p = abag.load_predictor(sys.argv[1]);"
        "f = p.predict(heavy=[sys.argv[3]], antigen=sys.argv[4], store=sys.argv[2]);"
        "print(f['pkd_predicted'][0].hex())"
    )
    row = trained.frame.iloc[0]
    command = [sys.executable, "-c", script, bundle, trained.store, row["heavy"], row["antigen"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    here = predict(trained, trained.frame[:1])["pkd_predicted"][0]
    assert float.fromhex(done.stdout.strip()) == here


def test_vectors_of_another_encoder_are_never_used(trained, tmp_path):
    add_vectors(tmp_path / "other", trained.frame, fingerprint="cd" * 16)
    with pytest.raises(abag.AbagError, match="abab"):
        predict(trained, trained.frame, store=tmp_path / "other")


def test_nothing_in_a_bundle_is_dated(trained, tmp_path):
    abag.fit(trained.frame, trained.store, tmp_path / "again", **QUICK)
    for name in ("weights.safetensors", "predictor.json", "README.md"):
        first, other = (run / "predictor" / name for run in (trained.run, tmp_path / "again"))
        assert first.read_bytes() == other.read_bytes()


def copied(trained, to):
    to.mkdir(exist_ok=True)
    for path in (trained.run / "predictor").iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize("damage", ["truncated", "flipped", "longer", "gone"])
@pytest.mark.parametrize("name", ["weights.safetensors", "predictor.json"])
def test_an_altered_or_truncated_bundle_is_refused_in_one_line(trained, tmp_path, name, damage):
    path = copied(trained, tmp_path / "bundle") / name
    content = path.read_bytes()
    at = content.index(b"noise") + 10 if name.endswith("json") else -1
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at:][1:]
    changed = {"truncated": content[:-4], "flipped": flipped, "longer": content + b"0"}
    path.unlink()
    if damage != "gone":
        path.write_bytes(changed[damage])
    with pytest.raises(DamagedFile, match="bundle") as error:
        load_predictor(path.parent)
    assert "\n" not in str(error.value)


def test_a_run_that_has_not_finished_is_called_that(trained, tmp_path):
    with pytest.raises(DamagedFile, match=r"predictor \(it has no predictor\.json\)"):
        load_predictor(tmp_path)
    with pytest.raises(DamagedFile, match=r"cannot read a predictor \(it does not exist\)"):
        load_predictor(tmp_path / "nowhere")
    with pytest.raises(DamagedFile, match=f"Give a run in it, such as {trained.run}.$"):
        load_predictor(trained.run.parent)
    shutil.copy(trained.run / "config.json", tmp_path)
    with pytest.raises(DamagedFile, match="a run that has not finished"):
        load_predictor(tmp_path)


@pytest.fixture(scope="module")
def mixed(trained):
    """A run whose predictor was replaced by that of another run, and a table of predictions."""
    other = trained.frame.assign(pKd=trained.frame["pKd"] + 2)
    for name, frame in (("first", trained.frame), ("other", other)):
        abag.fit(frame, trained.store, trained.at / name, head="ridge", split="random")
    abag.predict(trained.frame, trained.at / "first", trained.at / "scored.csv")
    run = shutil.copytree(trained.at / "first", trained.at / "mixed")
    shutil.rmtree(run / "predictor")
    shutil.copytree(trained.at / "other" / "predictor", run / "predictor")
    return run


COMMANDS = {
    "load": lambda run, _, __: load_predictor(run),
    "load its folder": lambda run, _, __: load_predictor(run / "predictor"),
    "predict": lambda run, case, out: abag.predict(case.frame, run, out),
    "rank": lambda run, case, out: abag.rank(case.at / "scored.csv", out, run=run, batch=2),
    "scan": lambda run, case, out: abag.scan(run, out, parents=case.frame[:1]),
    "evaluate": lambda run, _, __: abag.evaluate(run),
    "evaluate a table": lambda run, case, _: abag.evaluate(run, table=case.frame),
    "report": lambda run, _, __: abag.report(run),
    "add": lambda run, case, out: abag.fit(case.frame, None, out.with_suffix(""), add=run),
    "share": lambda run, _, out: abag.share(run, out.with_suffix("")),
    "fit": lambda run, case, _: abag.fit(case.frame, case.store, run, head="ridge", split="random"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_predictor_of_another_run_in_a_run_folder_is_refused(trained, mixed, tmp_path, command):
    before = {path: path.read_bytes() for path in mixed.rglob("*") if path.is_file()}
    with pytest.raises(abag.AbagError, match=r"predictor: its digest is \w{32}, and that of the "):
        COMMANDS[command](mixed, trained, tmp_path / "out.csv")
    assert not any(tmp_path.iterdir())
    assert before == {path: path.read_bytes() for path in mixed.rglob("*") if path.is_file()}


def test_predictors_of_their_run_and_those_that_stand_alone_are_loaded(
    trained, mixed, tmp_path, monkeypatch
):
    abag.share(trained.at / "other", tmp_path / "predictor")
    for name in ("config.json", "summary.json"):  # beside a shared predictor, of another run
        shutil.copy(trained.at / "first" / name, tmp_path)
    copy = shutil.copytree(mixed / "predictor", mixed.parent / "copy")
    for folder in (tmp_path / "predictor", copy, trained.run, trained.run / "predictor"):
        assert load_predictor(folder).parts
    monkeypatch.chdir(mixed / "predictor")
    with pytest.raises(DamagedFile, match="its digest is"):
        load_predictor(".")


def test_a_bundle_of_another_schema_is_refused(trained, tmp_path):
    record = json.loads((trained.run / "predictor/predictor.json").read_text())
    (tmp_path / "predictor.json").write_text(json.dumps(record | {"schema": 7}))
    with pytest.raises(
        DamagedFile, match=r"schema 7 is not supported.*Fit again into another folder"
    ):
        load_predictor(tmp_path)


def test_the_files_of_a_run_and_its_predictor_have_the_same_permissions(trained):
    files = [path for path in trained.run.rglob("*") if path.is_file()]
    assert {"weights.safetensors", "splits.parquet"} <= {p.name for p in files}
    assert len({path.stat().st_mode for path in files}) == 1


def settings(record):
    return record["parts"]["mlp"][0]


def mixture(record):
    return record["regimes"][0]["mixture"]


@pytest.mark.parametrize(("change", "words"), [
    (lambda r: mixture(r).update(noise="0.5"), "noise is '0.5'; expected a finite number"),
    (lambda r: mixture(r).update(noise=float("nan")), "noise is nan"),
    (lambda r: mixture(r).update(noise=1e308), "noise is 1e.308; expected a finite"),
    (lambda r: settings(r).update(pkd_mean=10**310), "does not match"),
    (lambda r: settings(r).update(widths=8), "widths is 8; expected a list"),
    (lambda r: r.update(more=1), "the record has"),
    (lambda r: mixture(r).pop("spread"), "mixture has"),
    (lambda r: settings(r).pop("widths"), "does not match"),
    (lambda r: r["parts"].update(exec=r["parts"].pop("mlp")), "does not match"),
    (lambda r: r["parts"].update(mlp={}), "mlp is"),
    (lambda r: r["parts"].update(mlp=[]), "does not match"),
    (lambda r: r["antibody"]["views"][0].update(width=True), "width is True"),
    (lambda r: r.update(parts=[{}]), "parts is"),
    (lambda r: r["regimes"].append({}), "regimes has"),
    (lambda r: r.update(regimes=[]), "does not match"),
    (lambda r: r["regimes"][0].update(name="best"), "does not match"),
    (lambda r: mixture(r).update(weights=[1.0]), "weights is"),
    (lambda r: mixture(r).update(weights={"exec": 1.0}), "does not match"),
    (lambda r: mixture(r)["growth"].update(growth=-1.0), "does not match"),
    (lambda r: mixture(r).update(levels={"predicted": [2.0, 1.0], "factors": [1.0, 1.0]}),
     "does not match"),
    (lambda r: mixture(r).update(levels={"predicted": [1.0], "factors": [0.0]}), "does not match"),
    (lambda r: mixture(r)["growth"].update(least=3, most=2), "does not match"),
    (lambda r: mixture(r)["growth"].update(growth=1.0, power=0.0), "does not match"),
    (lambda r: r["regimes"][0].update(reach=-1), "does not match"),
    (lambda r: r["regimes"][0].update(error=-1.0), "does not match"),
    (lambda r: r["antigen"].update(views=[]), "does not match"),
    (lambda r: r.update(antibody=r["antigen"], antigen=r["antibody"] | {"views": []}),
     "does not match"),
    (lambda r: settings(r).update(widths=[10**12]), "does not match"),
    (lambda r: settings(r).update(head="exec"), "does not match"),
])  # fmt: skip
def test_a_forged_record_is_refused_for_its_types_or_shapes(trained, tmp_path, change, words):
    with pytest.raises(DamagedFile, match=words):
        load_predictor(sign(copied(trained, tmp_path / "forged"), change))


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_forged_tensor_with_values_that_are_not_finite_is_refused(trained, tmp_path, value):
    tensors = load_file(trained.run / "predictor/weights.safetensors")
    for number, name in enumerate(n for n, x in tensors.items() if x.is_floating_point()):
        bundle = copied(trained, tmp_path / str(number))
        save_file(tensors | {name: tensors[name] * float(value)}, bundle / "weights.safetensors")
        with pytest.raises(DamagedFile, match=f"{name} contains infinity or NaN"):
            load_predictor(sign(bundle))


def test_weights_that_overflow_give_no_predictions(trained, tmp_path):
    tensors = load_file(trained.run / "predictor/weights.safetensors")
    bundle = copied(trained, tmp_path / "bundle")
    forged = {n: torch.full_like(x, 3e38) for n, x in tensors.items() if ".model." in n}
    save_file(tensors | forged, bundle / "weights.safetensors")
    row = trained.frame.iloc[0]
    with pytest.raises(DamagedFile, match="the predictor gives infinity or NaN"):
        load_predictor(sign(bundle)).predict(
            row["heavy"], antigen=row["antigen"], store=trained.store
        )


@pytest.mark.parametrize("change", [lambda x: x[0], lambda x: torch.cat([x, x], 1)])
def test_forged_keys_of_other_shapes_are_refused(trained, tmp_path, change):
    tensors = load_file(trained.run / "predictor/weights.safetensors")
    bundle = copied(trained, tmp_path / "bundle")
    name = "seen.antibody.keys"
    save_file(tensors | {name: change(tensors[name]).contiguous()}, bundle / "weights.safetensors")
    with pytest.raises(DamagedFile, match=r"seen\.antibody\.\w+ has"):
        load_predictor(sign(bundle))


def test_forged_sides_are_refused(trained, tmp_path):
    tensors = load_file(trained.run / "predictor/weights.safetensors")
    names = [name.removeprefix("seen.antibody.") for name in tensors if "seen.antibody" in name]
    assert {"keys", "sequences", "names", "loops"} <= {*names}
    for name in ("keys", "sequences", "names", "loops"):
        bundle = copied(trained, tmp_path / name)
        other = tensors.get(f"seen.antigen.{name}", tensors["seen.antibody.loops"][1:])
        forged = {f"seen.antibody.{name}": other.clone()}
        save_file(tensors | forged, bundle / "weights.safetensors")
        with pytest.raises(DamagedFile, match=r"seen\.antibody\.\w+"):
            load_predictor(sign(bundle))


@pytest.mark.parametrize("shapes", [((0,), (0,)), ((6,), (5,)), ((1, 6), (1, 6)), ((), ())])
def test_a_forged_scaling_of_another_shape_is_refused(shapes):
    arrays = dict(zip(("antigen.mean", "antigen.scale"), map(np.ones, shapes), strict=True))
    with pytest.raises(ValueError, match=r"antigen\.mean and antigen\.scale have shapes"):
        Standardizer.load(arrays, "antigen")


def test_the_model_card_has_data_split_scores_limits_and_licences(trained):
    card = (trained.run / "predictor" / "README.md").read_text()
    for title in ("Use", "Data", "What was measured", "Limits", "Encoders"):
        assert f"## {title}" in card
    summary = json.loads((trained.run / "summary.json").read_text())
    assert f"| {summary['regimes'][0]['rmse']:.2f} " in card
    assert "60 pairs" in card
    assert f"fingerprint `{'ab' * 16}`; licence not known" in card


@pytest.mark.parametrize("widths", [(16,), (16, 8)])
def test_a_network_that_reads_each_sequence_once_gives_the_output_of_the_whole_network(widths):
    torch.manual_seed(1)
    model = Mlp(11, widths, (0.0,)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    x_ND = torch.randn(7, 6)
    y_ME = torch.randn(4, 5)
    i = torch.randint(7, (50,))
    j = torch.randint(4, (50,))
    scalings = {"antibody": Standardizer.identity(6), "antigen": Standardizer.identity(5)}
    network = NetworkModel(NetworkSettings(widths, 0.0, 1.0), model, scalings)
    sides = {
        "antibody": SideVectors(x_ND.numpy(), i.numpy()),
        "antigen": SideVectors(y_ME.numpy(), j.numpy()),
    }
    with torch.no_grad():
        expected = model(x_ND[i][None], y_ME[j][None])[0]
    np.testing.assert_allclose(network.predict(PairVectors(sides)), expected, rtol=1e-5, atol=1e-5)


def test_members_predict_their_mean_and_sigma_adds_spread_and_noise(trained):
    abag.fit(trained.frame, trained.store, trained.at / "members", **QUICK | {"members": 4})
    predictor = load_predictor(trained.at / "members")
    data = abag.dataset(trained.store, trained.frame)
    kinds = ("antibody", "antigen")
    vectors = PairVectors(
        {kind: SideVectors(data.vectors(kind), data.index(kind)) for kind in kinds}
    )
    parts = predictor.parts
    member_pkd = [model.predict(vectors) for model in parts.models["mlp"]]
    assert len(member_pkd) == 4
    (regime,) = predictor.regimes.values()
    mixture = regime.mixture
    weights = mixture.weights
    want = weights["mlp"] * np.mean(member_pkd, axis=0)
    want += weights.get("train_mean", 0.0) * parts.predict(vectors, ["train_mean"])["train_mean"]
    scores = predictor.predict(data.frame["heavy"], None, data.frame["antigen"])
    np.testing.assert_allclose(scores["pkd_predicted"], want, rtol=1e-12)
    of_model = mixture.spread**2 * np.var(member_pkd, axis=0)
    factor = mixture.levels.factor(want)
    np.testing.assert_allclose(scores["sigma"], np.sqrt((of_model + mixture.noise**2) * factor))
    np.testing.assert_allclose(scores["sigma_model"], np.sqrt(of_model * factor))


@given(
    spread=st.floats(0, 3), noise=st.floats(0.01, 2), growth=st.floats(0, 4), factor=st.floats(1, 5)
)
def test_sigma_is_its_own_part_of_the_model_and_noise_and_grows_by_the_former(
    spread, noise, growth, factor
):
    mixture = Mixture({"mean": 1.0}, spread, noise, Growth(growth, 1.0, 0, 10))
    variance = np.linspace(0, 2, 11)
    distance = np.arange(11)
    whole = mixture.sigma(np.zeros(11), variance, distance)
    of_model = mixture.sigma_model(np.zeros(11), variance, distance)
    np.testing.assert_allclose(np.square(whole), np.square(of_model) + noise**2)
    assert (np.diff(of_model) >= -1e-12).all()
    assert (of_model <= mixture.sigma(np.zeros(11), variance, distance, factor)).all()


def test_one_chain_is_used_for_all_pairs_and_unequal_lists_are_refused(trained):
    predictor = load_predictor(trained.run)
    heavy = trained.frame["heavy"][0]
    antigens = trained.frame["antigen"].unique()
    scores = predictor.predict(heavy, None, antigens)
    assert (len(scores), list(scores)) == (
        3,
        [
            "pkd_predicted",
            "sigma",
            "sigma_model",
            "regime",
            "far",
            "why_far",
            "nearest",
            "distance",
        ],
    )
    assert len(predictor.predict(heavy, antigen=antigens[0])) == 1
    assert predictor.predict([], None, []).empty
    with pytest.raises(SequenceError, match="2 heavy, 3 antigen"):
        predictor.predict([heavy, heavy], None, antigens)
    with pytest.raises(SequenceError, match=r"is a DataFrame.*abag.predict\(table"):
        predictor.predict(trained.frame)
    with pytest.raises(SequenceError, match="antigen"):
        predictor.predict(heavy)


def test_scores_have_the_index_of_the_series_that_were_given(trained):
    predictor = load_predictor(trained.run)
    in_order = predict(trained, trained.frame)["pkd_predicted"].to_numpy()
    shuffled = trained.frame.sample(frac=1, random_state=0)
    heavy, antigen = shuffled["heavy"], shuffled["antigen"]
    named = shuffled.set_axis([f"row {n}" for n in shuffled.index])
    for scores in (
        predictor.predict(heavy, None, antigen),
        predictor.predict(heavy, None, antigen.tolist()),
        predictor.predict(named["heavy"], None, named["antigen"]).set_axis(shuffled.index),
    ):
        assert scores.index.equals(shuffled.index)
        assert np.allclose(trained.frame.assign(p=scores["pkd_predicted"])["p"], in_order)
    one = predictor.predict(heavy.iloc[0], antigen=antigen[[7, 3]])
    assert one.index.tolist() == [7, 3]
    assert predictor.predict(heavy[:0], None, antigen[:0]).empty


def test_series_of_different_rows_are_not_paired(trained):
    predictor = load_predictor(trained.run)
    heavy = trained.frame["heavy"]
    expected = r"^predict: heavy and antigen have different indexes; expected the same rows .*list"
    with pytest.raises(SequenceError, match=expected):
        predictor.predict(heavy, None, trained.frame["antigen"].iloc[::-1])
    for whole in (trained.frame[["antigen"]], 3):
        with pytest.raises(SequenceError, match=r"^predict: antigen is "):
            predictor.predict(heavy, None, whole)


def test_one_pair_is_printed_in_words_and_as_json(trained):
    row = trained.frame.iloc[0]
    pair = ["predict", "--run", trained.run, "--heavy", row["heavy"], "--antigen", row["antigen"]]
    printed = json.loads(run(*pair, "--json").stdout)
    whole = abag.load_predictor(trained.run).predict(row["heavy"], "", row["antigen"]).iloc[0]
    assert printed["pkd_predicted"] == pytest.approx(whole["pkd_predicted"])
    assert printed["sigma"] == pytest.approx(whole["sigma"])
    assert printed["regime"] == whole["regime"]
    words = run(*pair).stdout
    assert words.startswith(f"pKd {printed['pkd_predicted']:.2f}, Kd ")
    assert printed["verdict"].split(":")[0] in words


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "Give a TABLE and --out FILE, or one pair"),
    (["--heavy", "EVQL"], "A pair needs an antigen"),
    (["new.csv", "--heavy", "EVQL", "--antigen", "MK"], "Leave out TABLE and --out"),
    (["--light", "EVQL", "--antigen", "MK", "--force"], "--force: is an option of tables"),
    (["--heavy", "EV1L", "--antigen", "MK"], "character '1' at position 3"),
])  # fmt: skip
def test_one_pair_that_cannot_be_predicted_is_one_line(trained, arguments, message):
    assert message in one_line("predict", "--run", trained.run, *arguments)
