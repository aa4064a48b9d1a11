"""What a fit promises, against rows that were held out before abag saw the table.

Nothing here is recorded: labels are planted, rows are split by pandas, and errors and intervals are
computed by numpy from the file that `abag.predict` wrote.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import trastuzumab
from chunks import set_sizes
from drawn import QUICK, draw_chains, linear_table, mutated
from heads import MODELS, sign, used_options
from marks import in_ci

import abag
from abag import DamagedFile, RunError
from abag.head.models import kernel_search
from abag.head.predictor.parts import Parts

FAST = {name: value for name, value in QUICK.items() if name != "split"}
Z_90 = 1.6448536269514722
"""Half the width of a 90 % interval of a normal distribution."""


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """500 antibodies with 3 antigens; labels are linear in the vectors, with noise of 0.5."""
    return linear_table(tmp_path_factory.mktemp("linear"), 500, 3, noise=0.5)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """1,200 variants of one antibody with two to four mutations, and additive effects."""
    at = tmp_path_factory.mktemp("library")
    rng = np.random.default_rng(5)
    sites = rng.choice(np.arange(30, 100), 12, replace=False)
    effect = {(site, letter): rng.normal(0, 0.5) for site in sites for letter in "ADKWY"}
    rows = {}
    while len(rows) < 1200:
        letters = list(trastuzumab.HEAVY)
        pkd = 8.0
        for site in rng.choice(sites, rng.integers(2, 5), replace=False):
            letters[site] = str(rng.choice(list("ADKWY")))
            pkd += effect[site, letters[site]]
        rows["".join(letters)] = pkd + 0.2 * rng.normal()
    frame = pd.DataFrame({"heavy": rows.keys(), "light": trastuzumab.LIGHT, "pKd": rows.values()})
    frame["antigen"] = draw_chains(rng, 1, 60)[0]
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(frame, at / "store", **encoders)
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


def divide(frame, antibodies, seed):
    """Return the rows of so many antibodies, to fit, and those of all others."""
    unique = frame["heavy"].unique()
    chosen = np.random.default_rng(seed).choice(unique, antibodies, replace=False)
    is_in = frame["heavy"].isin(chosen)
    return frame[is_in], frame[~is_in]


def fit(case, table, run, **options):
    used = used_options(FAST, options.get("head", "stack"))
    return abag.fit(table, case.store, run, **used | options)


def score(case, table, run, out):
    """Predict with the command's function; return RMSE, coverage and the written frame."""
    abag.predict(table, run, out, store=case.store, force=True)
    scored = pd.read_csv(out)
    error = (scored["pkd_predicted"] - scored["pKd"]).to_numpy()
    inside = np.abs(error) <= Z_90 * scored["sigma"].to_numpy()
    return float(np.sqrt(np.mean(error**2))), float(inside.mean()), scored


def sums_of_weights(run):
    record = json.loads((run / "predictor" / "predictor.json").read_text())
    return [sum(regime["mixture"]["weights"].values()) for regime in record["regimes"]]


def limit(monkeypatch, name, most_pairs):
    monkeypatch.setitem(MODELS, name, replace(MODELS[name], most_pairs=most_pairs))


@pytest.mark.ci
@pytest.mark.parametrize("above", [0, 1, *in_ci(60)])
@pytest.mark.parametrize("name", ["kernel", *in_ci("gp")])
def test_a_part_is_in_all_fits_or_in_none_whatever_the_size_of_the_folds(
    linear, tmp_path, monkeypatch, name, above
):
    table, new = divide(linear.frame, 80, seed=0)
    limit(monkeypatch, name, len(table) - above)  # above 0, folds are smaller than the limit
    summary = fit(linear, table, tmp_path / "run")
    has_part = any(name in regime["weights"] for regime in summary["regimes"])
    assert not (above and has_part)
    assert sums_of_weights(tmp_path / "run") == pytest.approx([1, 1])
    rmse, coverage, scored = score(linear, new, tmp_path / "run", tmp_path / "out.csv")
    promised = next(regime for regime in summary["regimes"] if regime["regime"] == "new_antibody")
    assert (scored["regime"] == "new_antibody").all()
    assert rmse < 1.3 * promised["rmse"]
    assert coverage > 0.8


@pytest.mark.ci
@pytest.mark.parametrize("above", [1, *in_ci(0)])
def test_the_residue_kernel_of_a_library_is_in_all_fits_or_in_none(
    library, tmp_path, monkeypatch, above
):
    table, new = divide(library.frame, 200, seed=0)
    limit(monkeypatch, "residue_kernel", len(table) - above)
    summary = fit(library, table, tmp_path / "run")
    saved = abag.load_predictor(tmp_path / "run").parts.models
    is_fitted = "residue_kernel" in summary["regimes"][0]["metrics"]
    assert is_fitted == (not above)
    assert is_fitted or "residue_kernel" not in saved
    assert sums_of_weights(tmp_path / "run") == pytest.approx([1] * len(summary["regimes"]))
    rmse, coverage, _ = score(library, new, tmp_path / "run", tmp_path / "out.csv")
    assert rmse < 0.6 * new["pKd"].std()
    assert coverage > 0.8


@pytest.mark.ci
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "head", ["stack", "ridge", "kernel", *in_ci("gp", "antibody_ridge", "composition_ridge", "mlp")]
)
def test_the_error_of_new_antibodies_is_the_promised_one_with_one_fold_and_with_five(
    linear, tmp_path, monkeypatch, head, large
):
    if large:  # one fold is enough
        set_sizes(monkeypatch, large_table=100, enough_groups=5.0)
    table, new = divide(linear.frame, 80, seed=1)
    options = {"epochs": 30, "lr": 1e-2} if head == "mlp" else {}
    summary = fit(linear, table, tmp_path / "run", head=head, **options)
    promised = next(regime for regime in summary["regimes"] if regime["regime"] == "new_antibody")
    assert promised["folds"] == (1 if large else 5)
    rmse, coverage, _ = score(linear, new, tmp_path / "run", tmp_path / "out.csv")
    # one fold of a short training may promise too much error, never too little
    assert 0.6 * promised["rmse"] < rmse < 1.35 * promised["rmse"]
    assert 0.75 < coverage < 1


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["linear", *in_ci("library")])
def test_printed_intervals_of_the_error_contain_the_error_outside(request, tmp_path, kind):
    case = request.getfixturevalue(kind)
    inside = []
    coverages = []
    for seed in range(5):
        table, new = divide(case.frame, 240 if kind == "library" else 80, seed)
        run = tmp_path / f"run{seed}"
        summary = fit(case, table, run, seed=seed, head="ridge" if kind == "linear" else "stack")
        rmse, coverage, scored = score(case, new, run, tmp_path / "out.csv")
        intervals = {regime["regime"]: regime["intervals"]["rmse"] for regime in summary["regimes"]}
        regime = scored["regime"].mode()[0]
        low, high = intervals[regime]
        inside.append(low <= rmse <= high)
        coverages.append(coverage)
    assert sum(inside) >= 4
    assert 0.8 < np.mean(coverages) < 0.98


@pytest.mark.ci
def test_a_fit_larger_than_its_folds_uses_inducing_points_in_all_or_in_none(
    linear, tmp_path, monkeypatch
):
    solved = []
    original = kernel_search._solve_inducing
    set_sizes(monkeypatch, exact_pairs=250)  # between the folds and all
    monkeypatch.setattr(
        kernel_search,
        "_solve_inducing",
        lambda *arguments: solved.append(len(arguments[0])) or original(*arguments),
    )
    fit(linear, linear.frame[:300], tmp_path / "run", head="kernel", split="antibody", folds=5)
    assert len(solved) == 6
    assert max(solved) == 300
    assert min(solved) < 250


def test_the_batch_of_the_networks_is_that_of_all_pairs_in_every_fold(linear, tmp_path):
    options = {"head": "mlp", "batch_size": None, "split": "random", "folds": 5}
    summary = fit(linear, linear.frame[:300], tmp_path / "run", **options)
    assert isinstance(summary["used"]["batch_size"], int)  # several would be a list


@pytest.fixture(scope="module")
def complexes(tmp_path_factory):
    """14 complexes and single mutants of each; of the first, all are measured with each other.

    Mutations of antigens change the affinity much more than those of antibodies.
    """
    at = tmp_path_factory.mktemp("complexes")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(14):
        level = rng.normal(8, 0.7)
        sides = []
        for length, spread in ((110, 0.2), (140, 1.2)):
            (parent,) = draw_chains(rng, 1, length)
            mutants = [(mutated(rng, parent, 1), rng.normal(0, spread)) for _ in range(10)]
            sides.append([(parent, 0.0), *mutants])
        antibodies, antigens = sides
        if number == 0:
            cells = [(antibody, antigen) for antibody in antibodies for antigen in antigens]
        else:
            cells = [(antibody, antigens[0]) for antibody in antibodies]
            cells += [(antibodies[0], antigen) for antigen in antigens[1:]]
        for (heavy, of_antibody), (antigen, of_antigen) in cells:
            pkd = level + of_antibody + of_antigen + rng.normal(0, 0.3)
            rows.append({"heavy": heavy, "antigen": antigen, "pKd": pkd})
    frame = pd.DataFrame(rows)
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(frame, at / "store", **encoders)
    return SimpleNamespace(at=at, frame=frame, store=at / "store")


@pytest.mark.ci
def test_known_pairs_of_few_families_have_the_sigma_of_their_own_errors(complexes, tmp_path):
    known_rows = []
    coverages = []
    for seed in (1, 2):  # one draw has 25 such pairs, too few to tell
        is_in = np.random.default_rng(seed).random(len(complexes.frame)) < 0.8
        run = tmp_path / f"run-{seed}"
        summary = fit(complexes, complexes.frame[is_in], run, head="kernel")
        known = next(regime for regime in summary["regimes"] if regime["regime"] == "known")
        assert known["intervals"]["rmse"] is None
        assert known["sentence"].endswith("errors are those of pairs like these")
        rest = complexes.frame[~is_in]
        _, coverage, scored = score(complexes, rest, run, tmp_path / f"out-{seed}.csv")
        coverages.append(coverage)
        known_rows.append(scored[scored["regime"] == "known"])
    assert 0.8 < np.mean(coverages) < 1  # of 14 draws: .78 to .99, .89 in the mean
    rows = pd.concat(known_rows)
    rmse = np.sqrt(np.mean((rows["pkd_predicted"] - rows["pKd"]) ** 2))
    assert len(rows) >= 30
    assert not rows["far"].any()
    assert 0.7 * rmse < rows["sigma"].mean() < 1.4 * rmse


# ---- what refuses a wrong predictor --------------------------------------------------------------


def test_weights_of_a_part_that_was_not_fitted_to_all_pairs_are_not_saved(
    linear, tmp_path, monkeypatch
):
    fit_parts = Parts.fit

    def without_ridge(training, names):
        names = [name for name in names if name != "ridge" or len(training.rows) < 300]
        return fit_parts(training, names)

    monkeypatch.setattr(Parts, "fit", without_ridge)
    with pytest.raises(RunError, match=r"regime known: .* add up to .* ridge .* expected"):
        fit(linear, linear.frame[:300], tmp_path / "run", head="ridge", split="random")
    assert not (tmp_path / "run/predictor" / "predictor.json").exists()


@pytest.mark.parametrize("total", [0.275, 0.851, 1.01, 1.7])
def test_a_predictor_whose_weights_do_not_add_up_to_one_is_not_loaded(linear, tmp_path, total):
    fit(linear, linear.frame[:300], tmp_path / "run", head="ridge", split="random")

    def scale(record):
        (regime,) = record["regimes"]
        weights = regime["mixture"]["weights"]
        regime["mixture"]["weights"] = {name: w * total for name, w in weights.items()}

    sign(tmp_path / "run/predictor", scale)
    with pytest.raises(DamagedFile, match=rf"weights .* add up to {total:g}; expected 1"):
        abag.load_predictor(tmp_path / "run")


def test_a_fit_fails_whose_saved_parts_predict_something_else(linear, tmp_path, monkeypatch):
    ridge = MODELS["ridge"]

    def changed(arrays, settings):
        model = ridge.load(arrays, settings)
        side = model.sides["antibody"]
        wrong = replace(side, weight_D=side.weight_D + 0.3)
        return replace(model, sides={**model.sides, "antibody": wrong})

    monkeypatch.setitem(MODELS, "ridge", replace(ridge, load=changed))
    with pytest.raises(RunError, match=r"pkd_predicted of row .* were fitted"):
        fit(linear, linear.frame[:300], tmp_path / "run", head="ridge", split="random")
    assert not (tmp_path / "run/summary.json").exists()
    with pytest.raises(DamagedFile, match="has not finished"):
        abag.load_predictor(tmp_path / "run")


def test_a_fit_fails_whose_predictor_knows_its_training_labels_worse_than_its_folds_did(
    linear, tmp_path, monkeypatch
):
    ridge = MODELS["ridge"]

    def worse(training):
        if len(training.rows) == 300:  # all pairs: fitted to other labels
            labels = np.random.default_rng(0).permutation(training.labels.pkd)
            training = replace(training, labels=replace(training.labels, pkd=labels), shared={})
        return ridge.fit(training)

    monkeypatch.setitem(MODELS, "ridge", replace(ridge, fit=worse))
    with pytest.raises(RunError, match=r"more than the .* held out"):
        fit(linear, linear.frame[:300], tmp_path / "run", head="ridge", split="random")


@pytest.mark.parametrize("seed", [0, *in_ci(1, 2)])
def test_labels_without_any_signal_pass_the_check(linear, tmp_path, seed):
    labels = np.random.default_rng(seed).normal(8, 1, 300)
    table = linear.frame[:300].assign(pKd=labels).sample(60, random_state=seed)
    options = {"head": "mlp", "epochs": 3, "split": "antibody", "folds": 3}
    fit(linear, table, tmp_path / "mlp", **options)
    fit(linear, table, tmp_path / "stack")


def test_a_mutant_at_positions_that_no_variant_changed_is_not_known(library, tmp_path):
    """Case of a scan: the third CDR of the heavy chain was never mutated in training."""
    loop = trastuzumab.HEAVY.index("WGGDGFYAMDY")
    rng = np.random.default_rng(3)
    sites = [at for at in range(30, 90) if at not in range(loop, loop + 11)]
    rows = []
    for _ in range(80):
        letters = list(trastuzumab.HEAVY)
        for at in sites[:3]:  # each residue is in many variants, so that training has seen it
            letters[at] = str(rng.choice([letters[at], "A", "W"]))
        rows.append("".join(letters))
    table = pd.DataFrame({"heavy": sorted(set(rows)), "light": trastuzumab.LIGHT})
    table = table.assign(pKd=rng.normal(8, 0.5, len(table)), antigen=library.frame["antigen"][0])
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(table, library.store, **encoders)
    summary = fit(library, table, tmp_path / "run", split="random", head="ridge", folds=3)
    assert [regime["regime"] for regime in summary["regimes"]] == ["new_variant"]
    mutants = [mutate(trastuzumab.HEAVY, at, "W") for at in range(loop + 1, loop + 8)]
    predictor = abag.load_predictor(tmp_path / "run")
    antigen = table["antigen"][0]
    store = library.store
    again = predictor.predict([*table["heavy"]], trastuzumab.LIGHT, antigen, store=store)
    assert (again["regime"] == "known").all()
    new = pd.DataFrame({"heavy": mutants, "light": trastuzumab.LIGHT, "antigen": antigen})
    abag.embed_table(new, store, **encoders)
    scores = predictor.predict(mutants, trastuzumab.LIGHT, antigen, store=store)
    assert (scores["regime"] == "new_mutations").all()
    assert scores["far"].all()
    assert scores["why_far"].str.contains("could not measure new mutations").all()


def mutate(chain, at, letter):
    return chain[:at] + letter + chain[at + 1 :]
