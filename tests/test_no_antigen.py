"""Tables of antibodies alone: what is encoded, fitted, predicted and refused."""

import json
import re
from dataclasses import replace

import invoke
import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION, draw_chain, mutated
from heads import sign
from reading import read_labels, read_sequences
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from trastuzumab import HEAVY

import abag
from abag import (
    AbagError,
    ColumnError,
    DamagedFile,
    OptionError,
    PredictionError,
    SequenceError,
    open_store,
)
from abag.embed.tables.columns import column_option
from abag.embed.tables.pairs import Sequences
from abag.head.labels.features import FeatureColumns, NumberColumn
from abag.head.predictor.predictor import VectorSpec, ViewSpec
from abag.sklearn import AffinityRegressor, PairVectorizer, pair_groups

ONLY_ANTIBODIES = {"antibody_encoder": "composition", "no_antigen": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Antibodies of several families with an expression level, written by pandas, and a run."""
    folder = tmp_path_factory.mktemp("alone")
    rng = np.random.default_rng(0)
    parents = [draw_chain(rng, 110) for _ in range(12)]
    rows = [mutated(rng, parents[n % 12], 4) for n in range(96)]
    level = [row.count("K") - row.count("D") + rng.normal() / 2 for row in rows]
    frame = pd.DataFrame({"heavy": rows, "expression (mg/L)": np.round(level, 3)})
    frame.to_csv(folder / "t.csv", index=False)
    invoke.run(
        "embed",
        folder / "t.csv",
        "--store",
        folder / "store",
        "--no-antigen",
        "--antibody-encoder",
        "composition",
    )
    invoke.run(
        "fit",
        folder / "t.csv",
        "--store",
        folder / "store",
        "--run",
        folder / "run",
        "--no-antigen",
    )
    return folder


@pytest.fixture
def frame(folder):
    return pd.read_csv(folder / "t.csv")


# ---- without the option --------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "embed", "fit"])
def test_a_table_without_antigen_is_told_the_option(command, folder, tmp_path):
    options = {"plan": [], "embed": ["--store", tmp_path / "s"]}
    options["fit"] = ["--store", folder / "store", "--run", tmp_path / "r"]
    said = invoke.one_line(command, folder / "t.csv", *options[command])
    assert "no column for antigen; found 'heavy', 'expression (mg/L)'" in said
    assert "--antigen SEQ" in said
    assert said.endswith("learn from antibodies alone with --no-antigen.")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("column", "values"),
    [("virus_strain", ["WA1", "BA.1"]), ("partner", [draw_chain(np.random.default_rng(n), 60)
                                                     for n in (1, 2)])],
)  # fmt: skip
def test_a_column_that_may_hold_the_antigen_is_named(column, values, frame):
    frame[column] = np.resize(values, len(frame))
    with pytest.raises(ColumnError, match=f"--no-antigen. {column!r} may hold it."):
        read_sequences(frame)


@pytest.mark.parametrize("column", ["fr1", "FWR3_aa", "FW2-IMGT", "paratope_heavy"])
def test_a_column_of_parts_of_chains_is_not_named_as_one_of_antigens(column, frame):
    frame[column] = [heavy[:25] for heavy in frame["heavy"]]
    with pytest.raises(ColumnError, match=r"--no-antigen\.$"):
        read_sequences(frame)


@pytest.mark.parametrize("values", [np.linspace(4.5, 5.5, 4), ["", " "], [None]])
def test_a_column_of_measurements_or_nothing_is_not_named_as_one_of_antigens(values, frame):
    frame["avg_off_target_affinity"] = np.resize(np.array(values, object), len(frame))
    with pytest.raises(ColumnError, match=r"--no-antigen\.$"):
        read_sequences(frame)


def test_a_column_of_names_of_antigens_is_told_the_option_too(frame):
    frame["target"] = "HER2"
    with pytest.raises(ColumnError, match=r"holds names, such as 'HER2'.*alone: --no-antigen"):
        read_sequences(frame)


def test_a_table_has_antigens_unless_the_option_says_that_it_has_none(frame):
    unknown = frame.assign(antigen="XXXX")
    assert read_labels(unknown).kinds == ("antibody", "antigen")
    for table in (unknown, frame):
        assert read_labels(table, no_antigen=True).kinds == ("antibody",)


def test_an_antigen_column_is_used_without_the_option_and_ignored_with_it(frame):
    frame["antigen"] = "MKTIIALSYIFCLVFADYKDDDDK"
    assert read_sequences(frame).antigens.chains == [("MKTIIALSYIFCLVFADYKDDDDK",)]
    note = abag.plan(frame, no_antigen=True)["notes"][0]
    assert note == "column 'antigen' is ignored: antibodies alone (--no-antigen)"


def test_a_column_that_may_hold_antigens_is_told_with_the_option_too(frame):
    frame["strain"] = np.resize(["WA1", "BA.1"], len(frame))
    frame["target_name"] = "one"
    frame["hc_protein_sequence"] = (
        frame["heavy"] + "ASTKGPSVFPLAPSSKSTSGGTAALGCLVKDYFPEPVTVSWNSGALTSG"
    )
    notes = abag.plan(frame, no_antigen=True)["notes"]
    assert notes[0] == (
        "column 'strain' may hold antigens, and is not used: antibodies alone (--no-antigen)"
    )
    assert not any("target_name" in note or "hc_protein" in note for note in notes)


def test_a_column_of_other_proteins_is_proposed_as_a_chain_of_antibodies_alone():
    designs = [f"MKTIIALSYIFCLVFADYKDDDDKGSE{'AEELLKK' * n}" for n in range(1, 5)]
    with pytest.raises(AbagError, match=r"By their content: .*heavy.*design") as refused:
        abag.plan(pd.DataFrame({"design": designs, "Tm": [50, 51, 52, 53]}), no_antigen=True)
    assert "antigen" not in str(refused.value)


@pytest.mark.parametrize("names", [("TRA", "TRB"), ("tcr_alpha_seq", "TCR beta"), ("TRG", "trd")])
@pytest.mark.parametrize("no_antigen", [True, False])
def test_chains_of_t_cell_receptors_are_proposed_as_a_pair_and_not_as_antigens(names, no_antigen):
    chains = [draw_chain(np.random.default_rng(n), 110) for n in range(4)]
    table = pd.DataFrame(dict(zip(names, (chains[:2], chains[2:]), strict=True)))
    light, heavy = [column_option(r, n) for r, n in zip(("light", "heavy"), names, strict=True)]
    with pytest.raises(ColumnError, match=re.escape(f"By their content: {heavy} {light}.")):
        read_sequences(table, no_antigen=no_antigen)


@pytest.mark.parametrize("options", [{"antigen": "MKT"}, {"columns": {"antigen": "a"}}])
def test_the_option_contradicts_an_antigen(options):
    with pytest.raises(OptionError, match="each says what the antigen is"):
        abag.PlanOptions(no_antigen=True, **options)


@pytest.mark.parametrize(
    "options",
    [{"antigen_encoder": "composition"}, {"antigen_vectors": ("mean",)}, {"head": "antigen_ridge"},
     {"split": "antigen"}, {"split": "both"}],
)  # fmt: skip
def test_options_about_antigens_are_refused_with_it(options, folder, tmp_path):
    with pytest.raises(OptionError, match="antibodies alone have no antigens"):
        abag.fit(folder / "t.csv", folder / "store", tmp_path / "r", no_antigen=True, **options)


# ---- with it -------------------------------------------------------------------------------------


def test_nothing_is_loaded_or_stored_for_antigens(folder):
    kinds = {stored.kind for stored in open_store(folder / "store").folders()}
    assert kinds == {"antibody"}
    config = json.loads((folder / "run/config.json").read_text())
    assert config["no_antigen"] is True
    assert config["antigen_encoder"] is config["antigen_fingerprint"] is None
    record = json.loads((folder / "run/predictor/predictor.json").read_text())
    assert record["antigen"]["views"] == []


def test_a_run_says_that_it_is_of_antibodies_alone(folder):
    done = invoke.run("plan", folder / "t.csv", "--no-antigen", "--antibody-encoder", "composition")
    assert "antibodies alone (--no-antigen)" in done.stdout
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["data"]["antigens"] == 0
    words = [regime["words"] for regime in (*summary["regimes"], *summary["not_measured"])]
    assert not any("antigen" in text for text in words)
    assert not any("antigen" in regime["sentence"] for regime in summary["regimes"])
    card = (folder / "run/predictor/README.md").read_text()
    assert "of antibodies alone" in card
    assert "antigen=" not in card
    again = invoke.run(
        "fit",
        folder / "t.csv",
        "--store",
        folder / "store",
        "--run",
        folder / "run",
        "--no-antigen",
    )
    assert "nothing to do" in again.stderr


@pytest.mark.ci
def test_the_vectors_say_nothing_about_antigens(folder, frame, tmp_path):
    """A run with the same antigen in every row, as in old tables, gives the same predictions."""
    frame["antigen"] = "MKTIIALSYIFCLVFADYKDDDDK"
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    abag.fit(frame, tmp_path / "store", tmp_path / "run", report=False)
    bare = frame[["heavy"]]
    abag.predict(bare, folder / "run", tmp_path / "alone.csv")
    abag.predict(frame[["heavy", "antigen"]], tmp_path / "run", tmp_path / "one.csv")
    alone, single = (pd.read_csv(tmp_path / name) for name in ("alone.csv", "one.csv"))
    assert alone.columns.tolist() == [
        "heavy",
        "predicted",
        "sigma",
        "sigma_model",
        "regime",
        "far",
        "why_far",
        "nearest",
        "distance",
    ]
    np.testing.assert_allclose(alone["predicted"], single["predicted"], atol=2e-3)
    np.testing.assert_allclose(alone["sigma"], single["sigma"], atol=2e-3)


def test_predict_encodes_new_antibodies_and_needs_no_antigen(folder, tmp_path):
    rng = np.random.default_rng(5)
    new = pd.DataFrame({"heavy": [draw_chain(rng, 110) for _ in range(3)]})
    new["antigen"] = "MKTIIALSYIFCLVFADYKDDDDK"
    said = []
    abag.predict(new, folder / "run", tmp_path / "p.csv", say=said.append)
    assert any("encoding 3 antibodies with composition" in line for line in said)
    assert any("column 'antigen' is ignored: antibodies alone" in line for line in said)
    table = pd.read_csv(tmp_path / "p.csv")
    assert table["antigen"].tolist() == new["antigen"].tolist()
    scores = abag.load_predictor(folder / "run").predict(heavy=new["heavy"].tolist())
    np.testing.assert_allclose(scores["predicted"], table["predicted"], atol=1e-3)


def test_an_antigen_that_is_given_is_refused(folder, frame, tmp_path):
    run = folder / "run"
    with pytest.raises(SequenceError, match="of antibodies alone; expected none"):
        abag.load_predictor(run).predict(heavy=["EVQL"], antigen="MKT")
    with pytest.raises(PredictionError, match="of antibodies alone; expected no antigen"):
        abag.predict(frame, run, tmp_path / "p.csv", antigen="MKT")
    with pytest.raises(PredictionError, match=r"cross.*of antibodies alone"):
        abag.predict(frame, run, tmp_path / "p.csv", cross=frame)
    with pytest.raises(PredictionError, match="of antibodies alone"):
        abag.evaluate(run, table=frame, antigen="MKT")
    heavy = frame["heavy"][0]
    with pytest.raises(PredictionError, match="antigen"):
        abag.scan(run, tmp_path / "s.csv", heavy=heavy, antigen="MKT")
    with pytest.raises(OptionError, match="expected residues of an antibody"):
        abag.scan(run, tmp_path / "s.csv", heavy=heavy, region="antigen")
    assert not any(tmp_path.iterdir())


@pytest.mark.ci
def test_a_run_with_antigens_still_needs_them(frame, tmp_path):
    frame["antigen"] = "MKTIIALSYIFCLVFADYKDDDDK"
    frame.loc[0, "antigen"] = "MKTIIALSYIFCLVFADYKDDDDA"  # of two, none is taken
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    abag.fit(frame, tmp_path / "store", tmp_path / "run", report=False, head="ridge")
    with pytest.raises(ColumnError, match="no column for antigen"):
        abag.predict(frame[["heavy"]], tmp_path / "run", tmp_path / "p.csv")
    with pytest.raises(PredictionError, match="trained with antigens"):
        abag.predict(frame[["heavy"]], tmp_path / "run", tmp_path / "p.csv", no_antigen=True)
    with pytest.raises(SequenceError, match="empty antigen chain"):
        abag.load_predictor(tmp_path / "run").predict(frame["heavy"].tolist())
    more = {"store": tmp_path / "store", "run": tmp_path / "more", "add": tmp_path / "run"}
    with pytest.raises(PredictionError, match=r"^no_antigen: the run was trained with anti"):
        abag.fit(frame, **more, no_antigen=True)


def test_evaluate_reads_a_table_of_antibodies_alone(folder, frame):
    scores = abag.evaluate(folder / "run", table=frame)["table"]
    assert scores["pairs"] == scores["in_training"]["pair"] == len(frame)
    assert [regime["words"] for regime in scores["regimes"]] == ["known antibodies"]


def test_predictions_of_antibodies_alone_are_not_ranked_within_antigens(folder, frame):
    level = frame.pop("expression (mg/L)")
    frame["prediction"] = level + np.random.default_rng(1).normal(0, 0.1, len(frame))
    judged = abag.evaluate(folder / "run", predictions=frame)["predictions"]["regimes"]
    assert [regime["sentence"] for regime in judged] == [
        f"{regime['words']}: ranking is better than chance; errors are smaller than those of the "
        "mean"
        for regime in judged
    ]


def test_the_candidates_of_a_run_are_ranked(folder, frame, tmp_path):
    others = frame.assign(heavy=frame["heavy"] + "A")  # not those that the run has measured
    abag.predict(others[["heavy"]], folder / "run", tmp_path / "p.csv")
    abag.rank(
        tmp_path / "p.csv",
        tmp_path / "o.csv",
        batch=5,
        keep_far=True,
        run=folder / "run",
        measured=others.head(10),
    )
    best = pd.read_csv(tmp_path / "p.csv")[10:].nlargest(5, "predicted")
    assert pd.read_csv(tmp_path / "o.csv")["heavy"].tolist() == best["heavy"].tolist()


def test_rank_reads_no_antigen_where_the_run_has_none(folder, frame, tmp_path, said):
    others = pd.DataFrame({"heavy": frame["heavy"] + "A", "target": "HER2"})
    abag.predict(others, folder / "run", tmp_path / "p.csv")
    choice = {"batch": 5, "rule": "mean", "keep_far": True, "run": folder / "run"}
    abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", **choice)
    best = pd.read_csv(tmp_path / "p.csv").nlargest(5, "predicted")
    order = pd.read_csv(tmp_path / "o.csv")
    assert order["heavy"].tolist() == best["heavy"].tolist()
    assert order["target"].tolist() == ["HER2"] * 5
    assert not any("known antigens" in line for line in said)
    with pytest.raises(PredictionError, match="of antibodies alone; expected no antigen"):
        abag.rank(tmp_path / "p.csv", tmp_path / "q.csv", antigen="MKT", **choice)


@pytest.mark.ci
def test_the_reason_why_an_antibody_is_far_names_no_antigen(folder, frame, tmp_path, said):
    run = folder / "random"
    abag.fit(frame, folder / "store", run, split="random", head="ridge", no_antigen=True)
    abag.predict(pd.DataFrame({"heavy": ["DIQMTQ" * 20]}), run, tmp_path / "p.csv")
    reasons = pd.read_csv(tmp_path / "p.csv")["why_far"].tolist()
    assert reasons == ["the run could not measure new antibodies"]
    assert not any("known antigens" in line for line in said)


def test_a_shared_predictor_is_of_antibodies_alone_too(folder, frame, tmp_path):
    abag.share(folder / "run", tmp_path / "shared")
    predictor = abag.load_predictor(tmp_path / "shared")
    assert predictor.kinds == ("antibody",)
    assert "antibodies alone" in repr(predictor)


def test_a_predictor_of_antibodies_alone_reads_no_likelihood_of_antigens(folder, tmp_path):
    abag.share(folder / "run", tmp_path / "shared")
    (tmp_path / "shared" / "manifest.json").unlink()
    number = {"name": "antigen_loglik", "low": 0, "high": 1, "has_missing": False, "head": "a"}
    features = {"numbers": [number], "categories": []}
    sign(tmp_path / "shared", lambda record: record.update(features=features))
    with pytest.raises(DamagedFile, match="reads likelihoods of antigens, and has no antigens"):
        abag.load_predictor(tmp_path / "shared")


def test_antibodies_alone_are_encoded_by_each_encoder_of_the_run(folder, tmp_path):
    calls = []
    view = ViewSpec(
        name="one", origin="one", fingerprint="a", long="whole", random_weights=False,
        pooling="mean@3", width=2,
    )  # fmt: skip
    views = (view, replace(view, origin="two", fingerprint="b", pooling="mean"))
    likelihood = NumberColumn(name="antibody_loglik", low=0, high=1, has_missing=False, head="c")
    predictor = replace(
        abag.load_predictor(folder / "run"),
        antibody=VectorSpec(views=views, training_sequences=1),
        embed=lambda table, store, **options: calls.append((table, store, options)),
        adapters={},
        features=FeatureColumns(numbers=(likelihood,), categories=()),
    )
    sides = Sequences.of("antibody", [("EVQ", "")]), Sequences.of("antigen", [("X",)])
    predictor.encode(tmp_path / "new", *sides, antibody_encoder="here", device="cpu")
    assert all([*table.columns] == ["heavy", "light"] for table, _, _ in calls)
    of_all = {"kind": "antibody", "device": "cpu"}
    first = {"antibody_encoder": "here", "fingerprints": {"antibody": "a"}} | of_all
    first |= {"antibody_adapter": None, "layers": (3,), "loglik": True}
    second = {"antibody_encoder": "two", "fingerprints": {"antibody": "b"}} | of_all
    second |= {"layers": None, "loglik": None}
    assert [options for _, _, options in calls] == [first, second]


@pytest.mark.ci
def test_several_views_and_networks_work_on_one_block(folder, frame, tmp_path):
    views = ("composition:mean", "composition:heavy_mean")
    abag.fit(
        frame,
        folder / "store",
        tmp_path / "run",
        no_antigen=True,
        report=False,
        head="mlp",
        epochs=2,
        widths=(8,),
        antibody_vectors=views,
        device="cpu",
    )
    abag.predict(frame, tmp_path / "run", tmp_path / "p.csv", store=folder / "store")
    assert pd.read_csv(tmp_path / "p.csv")["predicted"].notna().all()


# ---- Python --------------------------------------------------------------------------------------


@pytest.mark.ci
def test_scikit_learn_sees_one_block_of_vectors(folder, frame):
    X = frame[["heavy"]]
    y = frame["expression (mg/L)"]
    store = folder / "store"
    vectors = PairVectorizer(store, no_antigen=True).fit_transform(X)
    stored = open_store(store).vectors("antibody", [(chain, "") for chain in X["heavy"]])
    np.testing.assert_array_equal(vectors, stored)
    model = make_pipeline(PairVectorizer(store, no_antigen=True), Ridge(1e-3)).fit(X, y)
    assert model.score(X, y) > 0.5
    ours = AffinityRegressor(store, no_antigen=True, head="ridge").fit(X, y)
    assert ours.predictor_.kinds == ("antibody",)
    value, sigma = ours.predict(X, return_std=True)
    assert np.corrcoef(value, y)[0, 1] > 0.5
    assert (sigma > 0).all()
    groups = pair_groups(X, "antibody", no_antigen=True)
    assert 1 < len(np.unique(groups)) <= 12  # families


def test_a_dataset_has_one_block_of_vectors(folder, frame):
    data = abag.dataset(folder / "store", frame, no_antigen=True)
    assert data.X.shape == (len(frame), data.vectors("antibody").shape[1])
    assert sorted(data.y) == sorted(frame["expression (mg/L)"])
    x, y = data.torch()[0]
    assert (len(x), y.shape) == (data.X.shape[1], ())
    assert "mg/L" in repr(data)


def test_vectors_of_a_table_are_exported(folder, tmp_path):
    abag.export_vectors(
        folder / "store", tmp_path / "v.parquet", table=folder / "t.csv", no_antigen=True
    )
    assert len(pd.read_parquet(tmp_path / "v.parquet")) == 96


def test_adapt_needs_antigens(folder, tmp_path):
    pytest.importorskip("peft")
    splits = folder / "run" / "splits.parquet"
    for split_from, words in (
        (folder / "run", "run: a run of antibodies alone: abag adapt trains on pairs of an"),
        (splits, "^no_antigen: abag adapt trains on pairs of an antibody and an antigen"),
    ):
        with pytest.raises(OptionError, match=words):
            abag.adapt_encoders(
                folder / "t.csv", tmp_path / "a", split_from=split_from, no_antigen=True
            )


def test_near_duplicates_of_a_given_split_are_those_of_antibodies(folder, frame, tmp_path):
    frame["part"] = np.resize(["train"] * 6 + ["validation", "test"], len(frame))
    summary = abag.fit(
        frame, folder / "store", tmp_path / "r", no_antigen=True, split="column=part", head="ridge"
    )
    said = [line for line in summary["warnings"] if "near-duplicate" in line]
    assert not any("antigen" in line for line in said)
    assert said


def test_pages_and_tables_of_scores_leave_antigens_out(folder):
    report = (folder / "run/report.html").read_text()
    shown = re.sub("<script.*?</script>|<figure.*?</figure>", "", report, flags=re.S)
    settings = shown.index("Settings and data")
    assert "antigen" not in shown[:settings].lower()
    assert "coloured by antigen" not in report
    charts = json.loads(re.search(r"<script[^>]*json[^>]*>(.*?)</script>", report, re.S)[1])
    assert all(view["antigens"]["names"] == [] for view in charts["views"])
    summary = json.loads((folder / "run/summary.json").read_text())
    for regime in summary["regimes"]:
        assert not any("antigen" in model for model in (*regime["metrics"], *regime["weights"]))
    assert "within antigen" not in (folder / "run/predictor/README.md").read_text()
    evaluated = invoke.run("evaluate", folder / "t.csv", "--run", folder / "run").stdout
    assert "Spearman" in evaluated
    assert "antigen" not in evaluated


# ---- single mutants ------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize(
    ("parent", "censored", "options"),
    [
        (HEAVY, "", {"split": "random"}),
        (HEAVY, "<", {}),  # too few exact labels to hold out residues
        (draw_chain(np.random.default_rng(3), 110), "", {}),  # has no IMGT numbers
    ],
)
def test_fit_and_predict_say_the_same_of_single_mutants(parent, censored, options, tmp_path):
    rng = np.random.default_rng(0)
    mutants = list({mutated(rng, parent, 1) for _ in range(60)})[:50]
    weight = [sum(map(ord, mutant)) - sum(map(ord, parent)) for mutant in mutants]
    frame = pd.DataFrame({"heavy": mutants, "pKd": 8 + np.array(weight) / 20})
    frame["censored"] = np.where(np.arange(50) % 5, censored, "")
    abag.embed_table(frame, tmp_path / "store", **ONLY_ANTIBODIES)
    learned = frame[:40]
    fitted = {"no_antigen": True, "head": "ridge", "report": False, **options}
    summary = abag.fit(learned, tmp_path / "store", tmp_path / "run", **fitted)
    assert [regime["words"] for regime in summary["regimes"]] == ["new mutations"]
    predicted = abag.predict(frame[40:][["heavy"]], tmp_path / "run", tmp_path / "p.csv")
    assert predicted["regimes"] == {"new_mutations": 10}
    assert predicted["far_rows"] == 0
    batch = abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", run=tmp_path / "run", batch=5)
    assert batch["candidates"] == 10
