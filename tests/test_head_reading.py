"""A run remembers how its table was read; commands of the run need none of it again."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from trastuzumab import HEAVY, LIGHT

import abag
from abag.head.predictor import folder as predictor_folder
from abag.head.predictor.scoring import predict_pair

ANTIGEN = "TQVCTGTDMKLRLPASPETHLDMLRHLYQGCQVVQGNLELTYLPTNASLSFLQ"
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}


def library(rows=40):
    """Return single mutants of one antibody under odd headers, and labels that residues decide."""
    residues = "ACDEFGHIKLMNPQRSTVWY"
    heavies = []
    for row in range(rows):
        at = 50 + row // 20
        heavies.append(HEAVY[:at] + residues[row % 20] + HEAVY[at + 1 :])
    label = [7 + "ACDEFGHIKLMNPQRSTVWY".index(h[50]) / 10 + len(h) % 3 for h in heavies]
    frame = pd.DataFrame({"clone seq A": heavies, "clone seq B": LIGHT, "result": label})
    return frame.drop_duplicates("clone seq A").reset_index(drop=True)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reading")
    table = library()
    table.loc[len(table)] = ["EVQ1", LIGHT, 7.0]
    table.to_csv(folder / "pairs.csv", index=False)
    options = {
        "columns": {"heavy": "clone seq A", "light": "clone seq B", "pkd": "result"},
        "antigen": ANTIGEN,
        "bad_rows": "skip",
    }
    abag.embed_table(folder / "pairs.csv", folder / "store", **options, **COMPOSITION)
    read = {"label": "pkd"} | options
    quick = {"head": "ridge", "report": False}
    abag.fit(folder / "pairs.csv", folder / "store", folder / "run", **quick, **read)
    return folder


def recorded(role, name):
    """Return what a run records of a column that the user named."""
    return {"role": role, "name": name, "given": True}


def new_table(folder, **columns):
    """Write variants that the run has not seen, as the laboratory names its columns."""
    frame = library().drop(columns="result").head(6)
    frame["clone seq A"] = frame["clone seq A"].str.replace("WVAR", "WVAK")
    frame.assign(**columns).to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


def test_predict_reads_a_table_as_the_run_did(case, tmp_path, said):
    table = new_table(tmp_path, note=["EVQ1"] + [""] * 5)
    abag.predict(table, case / "run", tmp_path / "out.csv")
    predicted = pd.read_csv(tmp_path / "out.csv")
    columns = {"heavy": "clone seq A", "light": "clone seq B"}
    abag.predict(table, case / "run", tmp_path / "given.csv", columns=columns, antigen=ANTIGEN)
    pd.testing.assert_frame_equal(predicted, pd.read_csv(tmp_path / "given.csv"))
    assert "new.csv: the antigen of the run is taken for all rows" in said


def test_bad_rows_are_skipped_as_in_the_run_unless_the_user_says_otherwise(case, tmp_path):
    frame = pd.read_csv(new_table(tmp_path))
    frame.loc[0, "clone seq A"] = "EVQ1"
    frame.to_csv(tmp_path / "new.csv", index=False)
    summary = abag.predict(tmp_path / "new.csv", case / "run", tmp_path / "out.csv")
    assert (summary["rows"], summary["skipped_rows"]) == (5, 1)
    with pytest.raises(abag.AbagError, match="row 2"):
        abag.predict(tmp_path / "new.csv", case / "run", tmp_path / "x.csv", bad_rows="error")
    assert not (tmp_path / "x.csv").exists()


def test_what_the_table_has_instead_wins_and_is_said(case, tmp_path, said):
    other = ANTIGEN[:-1] + "A"
    table = new_table(tmp_path, antigen=other)
    frame = pd.read_csv(table).rename(columns={"clone seq A": "heavy"})
    frame.to_csv(table, index=False)
    abag.predict(table, case / "run", tmp_path / "out.csv")
    text = "new.csv: column 'heavy' is used as heavy; the run used 'clone seq A'"
    assert text in said
    assert "new.csv: antigens are those of column 'antigen', not that of the run" in said
    expected = abag.load_predictor(case / "run").predict(
        frame["heavy"].tolist(), frame["clone seq B"].tolist(), other
    )
    predicted = pd.read_csv(tmp_path / "out.csv")["pkd_predicted"]
    assert predicted.tolist() == pytest.approx(expected["pkd_predicted"].tolist(), abs=1e-4)


def test_a_column_of_other_antigens_is_not_passed_over_for_that_of_the_run(case, tmp_path, said):
    for antigen in (ANTIGEN[::-1], re.sub("(.{10})", r"\1 ", ANTIGEN[::-1])):
        other = new_table(tmp_path, **{"human antigen (aa)": antigen})
        with pytest.raises(abag.ColumnError, match=r"'human antigen \(aa\)' may hold it"):
            abag.predict(other, case / "run", tmp_path / "out.csv")
    faulty = new_table(tmp_path, antigen=f"{ANTIGEN[::-1]}*{ANTIGEN}")
    with pytest.raises(abag.AbagError, match=r"column 'antigen': character '\*'"):
        abag.predict(faulty, case / "run", tmp_path / "out.csv", bad_rows="error")
    for names in ({"human antigen (aa)": ANTIGEN}, {"target": "HER2"}):
        abag.predict(new_table(tmp_path, **names), case / "run", tmp_path / "out.csv", force=True)
        assert "new.csv: the antigen of the run is taken for all rows" in said


def test_the_only_antigen_of_a_run_is_taken_until_a_second_one_is_added(tmp_path, said):
    frame = library().rename(columns={"clone seq A": "heavy", "clone seq B": "light"})
    frame = frame.rename(columns={"result": "pKd"}).assign(antigen=ANTIGEN)
    store = tmp_path / "store"
    abag.embed_table(frame, store, **COMPOSITION)
    quick = {"head": "ridge", "report": False}
    abag.fit(frame, store, tmp_path / "run", **quick)
    given = abag.predict(frame, tmp_path / "run", tmp_path / "given.csv")
    chains = frame[["heavy", "light"]]
    assert given["rows"] == abag.predict(chains, tmp_path / "run", tmp_path / "own.csv")["rows"]
    assert "table: the antigen of the run is taken for all rows" in said
    expected = pd.read_csv(tmp_path / "given.csv")["pkd_predicted"].tolist()
    assert pd.read_csv(tmp_path / "own.csv")["pkd_predicted"].tolist() == expected
    own = abag.load_predictor(tmp_path / "run").predict(*chains.T.to_numpy().tolist())
    assert own["pkd_predicted"].tolist() == pytest.approx(expected, abs=1e-4)
    assert "the antigen of the run is taken" in said
    # a column that may name or hold another one is not passed over
    for other in ({"antigen_name": "HER2"}, {"antigen": "HER2"}, {"virus_seq": ANTIGEN[::-1] * 3}):
        with pytest.raises(abag.AbagError, match="antigen"):
            abag.predict(chains.assign(**other), tmp_path / "run", tmp_path / "x.csv")
    second = frame.head(8).assign(antigen=ANTIGEN[::-1])
    abag.embed_table(second, store, **COMPOSITION)
    abag.fit(second, store, tmp_path / "both", add=tmp_path / "run", **quick)
    with pytest.raises(abag.ColumnError, match="no column for antigen"):
        abag.predict(chains, tmp_path / "both", tmp_path / "x.csv")


def test_scan_and_one_pair_take_the_antigen_of_the_run(case, tmp_path, said):
    options = {"heavy": HEAVY, "light": LIGHT, "positions": "H57", "exclude": "C"}
    scanned = abag.scan(case / "run", tmp_path / "scan.csv", **options)
    with_antigen = abag.scan(case / "run", tmp_path / "given.csv", antigen=ANTIGEN, **options)
    assert scanned["parent_pkd"] == with_antigen["parent_pkd"]
    assert "the antigen of the run is taken" in said


def test_rank_with_the_run_reads_predictions_and_measured_pairs_as_the_run_did(case, tmp_path):
    both = pd.concat([library().head(3).drop(columns="result"), pd.read_csv(new_table(tmp_path))])
    both.to_csv(tmp_path / "new.csv", index=False)
    abag.predict(tmp_path / "new.csv", case / "run", tmp_path / "scored.csv")
    options = {"measured": case / "pairs.csv", "run": case / "run", "batch": 2, "keep_far": True}
    summary = abag.rank(tmp_path / "scored.csv", tmp_path / "order.csv", **options)
    assert summary["left_out"]["measured"] == 3


def test_evaluate_reads_a_table_as_the_run_did(case, tmp_path):
    library().to_csv(tmp_path / "again.csv", index=False)
    summary = abag.evaluate(case / "run", table=tmp_path / "again.csv")
    assert summary["table"]["pairs"] == len(library())


def test_a_run_and_its_predictor_hold_one_record_of_what_every_column_is(case):
    config = json.loads((case / "run/config.json").read_text())
    predictor = json.loads((case / "run/predictor/predictor.json").read_text())
    assert config["layout"] == predictor["layout"]
    columns = {"heavy": "clone seq A", "light": "clone seq B", "pkd": "result"}
    assert config["layout"]["columns"] == [recorded(*column) for column in columns.items()]
    label = config["layout"]["label"]
    assert (label["column"], label["unit"], label["quantity"]["name"]) == ("result", "pkd", "pKd")
    assert not {"label_column", "quantity", "reading"} & {*config, *predictor}


def test_columns_that_were_found_are_recorded_and_found_again_in_another_table(case, tmp_path):
    table = library().set_axis(["VH", "VL", "pKd"], axis="columns")
    quick = {"head": "ridge", "split": "random", "report": False}
    abag.fit(table, case / "store", tmp_path / "run", antigen=ANTIGEN, **quick)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    found = [("heavy", "VH"), ("light", "VL"), ("pkd", "pKd")]
    assert config["layout"]["columns"] == [recorded(*x) | {"given": False} for x in found]
    other = library().set_axis(["heavy", "light", "pKd"], axis="columns").assign(VH="EVQ1")
    options = {"columns": {"heavy": "heavy"}, "store": case / "store"}
    abag.predict(other, tmp_path / "run", tmp_path / "out.csv", **options)
    assert len(pd.read_csv(tmp_path / "out.csv")) == len(other)


def test_a_shared_predictor_remembers_columns_but_has_the_antigen_only_with_sequences(
    case, tmp_path
):
    abag.share(case / "run", tmp_path / "shared")
    abag.share(case / "run", tmp_path / "whole", with_sequences=True)
    bare = json.loads((tmp_path / "shared" / "predictor.json").read_text())["layout"]
    whole = json.loads((tmp_path / "whole" / "predictor.json").read_text())["layout"]
    assert {"role": "heavy", "name": "clone seq A", "given": True} in bare["columns"]
    assert (bare["antigen"], whole["antigen"]) == ("", ANTIGEN)
    assert ANTIGEN not in (tmp_path / "shared" / "predictor.json").read_text()
    table = new_table(tmp_path)
    abag.predict(table, tmp_path / "whole", tmp_path / "out.csv", store=case / "store")
    with pytest.raises(abag.AbagError, match="no column for antigen"):
        abag.predict(table, tmp_path / "shared", tmp_path / "x.csv", store=case / "store")


@pytest.mark.parametrize(("key", "value"), [
    ("columns", [recorded("price", "x")]), ("columns", [recorded("antigen", "")]),
    ("columns", [recorded("heavy", "a" * 1_001)]), ("first_residue", 5_000_001),
    ("columns", [recorded("heavy", "a"), recorded("heavy", "b")]),
    ("antigen", "../../etc"), ("antigen", "|"), ("bad_rows", "ignore"), ("chains", "x"),
    ("antibody_region", "x"), ("label", {"column": "y", "unit": "furlong"}),
])  # fmt: skip
def test_a_forged_layout_is_refused(case, tmp_path, key, value):
    folder = tmp_path / "predictor"
    folder.mkdir()
    weights = (case / "run/predictor/weights.safetensors").read_bytes()
    record = json.loads((case / "run/predictor/predictor.json").read_text())
    record["layout"][key] = value
    record["digest"] = predictor_folder.record_digest(record, weights)
    (folder / "weights.safetensors").write_bytes(weights)
    (folder / "predictor.json").write_text(json.dumps(record))
    with pytest.raises(abag.DamagedFile):
        abag.load_predictor(folder)


def test_a_table_of_mutations_is_read_with_the_parent_and_numbers_of_the_run(tmp_path, said):
    rng = np.random.default_rng(0)
    places = [(at, new) for at in range(30, 50) for new in "AW" if HEAVY[at] != new]
    frame = pd.DataFrame(
        {
            "change": [f"H:{HEAVY[at]}{at + 1000}{new}" for at, new in places],
            "pKd": rng.normal(8, 1, len(places)),
        }
    )
    told = {"parent": f"{HEAVY}|{LIGHT}", "first_residue": 1000, "antigen": "MKTAYIAKQR"}
    abag.embed_table(
        frame,
        tmp_path / "store",
        **told,
        columns={"mutations": "change"},
        antibody_encoder="composition",
        antigen_encoder="composition",
    )
    abag.fit(
        frame,
        tmp_path / "store",
        tmp_path / "run",
        head="ridge",
        split="random",
        columns={"mutations": "change"},
        **told,
        report=False,
    )
    alone = frame[["change"]]
    abag.predict(alone, tmp_path / "run", tmp_path / "out.csv")
    more = frame.assign(pKd=frame["pKd"] + 0.5)
    abag.fit(more, tmp_path / "store", tmp_path / "next", add=tmp_path / "run", report=False)
    layouts = [
        json.loads((tmp_path / run / "predictor/predictor.json").read_text())["layout"]
        for run in ("run", "next")
    ]
    assert layouts[0] == layouts[1]
    assert any("mutations are of the parent of the run" in line for line in said)
    whole = pd.DataFrame(
        {
            "heavy": [HEAVY[:at] + new + HEAVY[at + 1 :] for at, new in places],
            "light": LIGHT,
        }
    )
    abag.predict(whole, tmp_path / "run", tmp_path / "whole.csv")
    predicted, expected = (pd.read_csv(tmp_path / name) for name in ("out.csv", "whole.csv"))
    assert predicted["pkd_predicted"].tolist() == expected["pkd_predicted"].tolist()


def test_chains_that_a_run_put_in_their_places_are_the_same_antibodies_in_all_commands(tmp_path):
    frame = library().rename(columns={"clone seq A": "light", "clone seq B": "heavy"})
    frame = frame.rename(columns={"result": "pKd"})  # heavy and light chains are exchanged
    options = {"antigen": ANTIGEN, "chains": "auto"}
    abag.embed_table(frame, tmp_path / "store", **options, **COMPOSITION)
    quick = {"head": "ridge", "report": False}
    abag.fit(frame[:30], tmp_path / "store", tmp_path / "run", **quick, **options)
    abag.predict(frame, tmp_path / "run", tmp_path / "p.csv")
    written = pd.read_csv(tmp_path / "p.csv")
    direct = predictor_folder.load_predictor(tmp_path / "run").predict(
        frame["heavy"], frame["light"], ANTIGEN
    )
    np.testing.assert_allclose(direct["pkd_predicted"], written["pkd_predicted"], atol=1e-4)
    assert direct["regime"].tolist() == written["regime"].tolist()
    chosen = {"run": tmp_path / "run", "batch": 2, "keep_far": True}
    summary = abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", **chosen)
    assert summary["left_out"]["measured"] == 30
    summary = abag.rank(tmp_path / "p.csv", tmp_path / "o2.csv", measured=frame[28:35], **chosen)
    assert summary["left_out"]["measured"] == 35


def test_a_molar_mass_of_a_run_is_that_of_later_tables(tmp_path):
    frame = library().rename(columns={"clone seq A": "heavy", "clone seq B": "light"})
    molar = 10 ** -frame.pop("result")
    frame["IC50 (ug/mL)"] = (
        molar * 27e6
    )  # of an scFv: 27 kDa are 27,000 g/mol, or 27e6 ug/mL at 1 M
    options = {"antigen": ANTIGEN, "molar_mass": "scfv"}
    abag.embed_table(frame, tmp_path / "store", antigen=ANTIGEN, **COMPOSITION)
    run = tmp_path / "run"
    abag.fit(frame[:30], tmp_path / "store", run, head="ridge", report=False, **options)
    own = pd.read_parquet(run / "predictions.parquet")
    one_fold = own.groupby("pair").first()
    sequences = frame.iloc[one_fold["row"] - 1][["heavy", "light"]].reset_index(drop=True)
    in_mass = sequences.assign(antigen=ANTIGEN)
    in_mass["predicted IC50 (ug/mL)"] = 27e6 * 10 ** -one_fold["pkd_predicted"].to_numpy()
    ours = abag.evaluate(run)["regimes"][0]["rmse"]
    theirs = abag.evaluate(run, predictions=in_mass)["predictions"]["regimes"][0]["rmse"]
    assert theirs == pytest.approx(ours, abs=1e-6)
    as_measured = {"rule": "improvement", "run": run, "batch": 2, "keep_far": True}
    abag.predict(frame[30:], run, tmp_path / "p.csv")
    better = frame[:30].assign(**{"IC50 (ug/mL)": molar[:30] * 27e6 / 10})
    summary = abag.rank(tmp_path / "p.csv", tmp_path / "o.csv", measured=better, **as_measured)
    assert summary["best_measured"] == pytest.approx(1 - np.log10(molar[:30]).min(), abs=1e-3)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Fit a run to names whose letters are all residues, looked up in a file."""
    folder = tmp_path_factory.mktemp("named")
    table = library()
    table.insert(0, "clone", [f"SERV{a}{b}" for a in "ACDEFGHI" for b in "ACDEF"][: len(table)])
    lists = table[["clone", "clone seq A", "clone seq B"]]
    lists.columns = ["name", "heavy", "light"]
    lists.to_csv(folder / "names.csv", index=False)
    table[["clone", "result"]].to_csv(folder / "pairs.csv", index=False)
    options = {
        "columns": {"antibody": "clone", "pkd": "result"},
        "antigen": ANTIGEN,
        "sequences": [folder / "names.csv"],
    }
    abag.embed_table(folder / "pairs.csv", folder / "store", **options, **COMPOSITION)
    quick = {"head": "ridge", "report": False, "label": "pkd"}
    abag.fit(folder / "pairs.csv", folder / "store", folder / "run", **quick, **options)
    return folder


@pytest.fixture
def names_file(named):
    """Return the file of names, and put it back as it was."""
    path = named / "names.csv"
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


def test_names_are_looked_up_in_the_files_of_the_run(named, tmp_path, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"sequences": [named / "names.csv"], "columns": {"antibody": "clone"}}
    abag.predict(named / "pairs.csv", named / "run", "given.csv", **given)
    abag.predict(named / "pairs.csv", named / "run", "out.csv")
    assert "pairs.csv: names are looked up in the file of the run, names.csv" in said
    predicted, expected = (pd.read_csv(name) for name in ("out.csv", "given.csv"))
    pd.testing.assert_frame_equal(predicted, expected)
    assert set(predicted["regime"]) == {"known"}
    with pytest.raises(abag.AbagError, match=f"{len(predicted)} measured"):  # and not new names
        abag.rank("out.csv", "order.csv", run=named / "run", batch=2, keep_far=True)
    parents = pd.read_csv(named / "pairs.csv").head(2)
    scanned = abag.scan(named / "run", "scan.csv", parents=parents, positions="H57")
    assert scanned["parents"] == 2
    assert abag.evaluate(named / "run", table=named / "pairs.csv")["table"]["pairs"] == len(
        predicted
    )


def test_the_antigen_of_one_pair_is_a_sequence_a_file_or_a_name(tmp_path, monkeypatch):
    frame = library().rename(columns={"clone seq A": "VH", "clone seq B": "VL", "result": "pKd"})
    frame["antigen"] = [f"HER{2 + row % 2}" for row in range(len(frame))]
    fasta = tmp_path / "antigens.fasta"
    fasta.write_text(f">HER2\n{ANTIGEN}\n>HER3\n{ANTIGEN[5:]}\n")
    (tmp_path / "one.fasta").write_text(f">x\n{ANTIGEN}\n")
    names = {"sequences": [fasta]}
    abag.embed_table(frame, tmp_path / "store", **names, **COMPOSITION)
    quick = {"head": "ridge", "report": False}
    abag.fit(frame, tmp_path / "store", tmp_path / "run", **quick, **names)
    predictor = abag.load_predictor(tmp_path / "run")
    pairs = []
    for antigen in (ANTIGEN, "HER2", str(tmp_path / "one.fasta")):
        pairs.append(predict_pair(predictor, frame["VH"][0], LIGHT, antigen=antigen))
    assert pairs[0] == pairs[1] == pairs[2]
    assert pairs[0]["nearest"].endswith(" + HER2")
    with pytest.raises(abag.AbagError, match="'HER9' is a name, not a sequence"):
        predict_pair(predictor, frame["VH"][0], LIGHT, antigen="HER9")
    (tmp_path / "one.fasta").write_text(f">HER9\n{ANTIGEN}\n")
    one = {"antigen": "HER9", "sequences": (str(tmp_path / "one.fasta"),)}
    assert predict_pair(predictor, frame["VH"][0], LIGHT, **one) == pairs[0]
    abag.share(tmp_path / "run", tmp_path / "shared")
    monkeypatch.chdir(tmp_path)  # where a file is called as that of the run
    with pytest.raises(abag.AbagError, match="'HER2' is a name, not a sequence"):
        predict_pair(abag.load_predictor("shared"), frame["VH"][0], LIGHT, antigen="HER2")


def test_names_without_the_files_of_the_run_are_refused(named, names_file, tmp_path):
    names_file.unlink()
    before = (named / "store").stat().st_mtime_ns
    out = tmp_path / "out.csv"
    commands = (
        lambda: abag.predict(named / "pairs.csv", named / "run", out),
        lambda: abag.evaluate(named / "run", table=named / "pairs.csv"),
        lambda: abag.scan(named / "run", out, parents=named / "pairs.csv", positions="H57"),
    )
    for command in commands:
        with pytest.raises(
            abag.TableError, match=f"{names_file}, in which .* does not exist"
        ) as caught:
            command()
        assert "such as 'SERVAA'" in str(caught.value)
    assert not out.exists()
    assert (named / "store").stat().st_mtime_ns == before
    whole = library().drop(columns="result")  # sequences need no names
    columns = {"heavy": "clone seq A", "light": "clone seq B"}
    abag.predict(whole, named / "run", out, columns=columns)


def test_a_shared_predictor_names_the_file_that_it_needs(named, tmp_path, monkeypatch):
    abag.share(named / "run", tmp_path / "shared")
    text = (tmp_path / "shared" / "predictor.json").read_text()
    assert str(named) not in text
    options = {"store": named / "store"}
    # another file of this name is not taken
    (tmp_path / "names.csv").write_bytes((named / "names.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(abag.TableError, match=r"and names\.csv, in .* not part of the predictor"):
        abag.predict(named / "pairs.csv", tmp_path / "shared", tmp_path / "out.csv", **options)


def test_a_round_keeps_the_names_of_earlier_rounds(named, tmp_path):
    new = library().head(1).assign(result=7.0)
    heavy = HEAVY[:60] + "W" + HEAVY[61:]
    names = pd.DataFrame({"name": ["SERVWW"], "heavy": [heavy], "light": [LIGHT]})
    names.to_csv(tmp_path / "new.csv", index=False)
    table = pd.DataFrame({"clone": ["SERVWW"], "result": new["result"]})
    options = {"sequences": [tmp_path / "new.csv"], "antigen": ANTIGEN}
    columns = {"columns": {"antibody": "clone"}}
    abag.embed_table(table, named / "store", **options, **columns, **COMPOSITION)
    quick = {"head": "ridge", "report": False}
    abag.fit(table, None, tmp_path / "run", add=named / "run", **quick, **options)
    both = pd.concat([table, pd.read_csv(named / "pairs.csv")])
    abag.predict(both, tmp_path / "run", tmp_path / "out.csv", store=named / "store")
    assert set(pd.read_csv(tmp_path / "out.csv")["regime"]) == {"known"}


@pytest.mark.parametrize("light", [["WT", f"{LIGHT[30]}31G"], ["WT", "WT"]])
def test_columns_of_mutations_named_as_chains_are_read_as_in_the_run(tmp_path, light):
    rng = np.random.default_rng(0)
    heavy = [f"{HEAVY[at]}{at + 1}A" for at in range(28, 60) if HEAVY[at] != "A"]
    frame = pd.DataFrame({"VH": heavy, "VL": np.resize([f"{LIGHT[30]}31G", "WT"], len(heavy))})
    told = {"parent": f"{HEAVY}|{LIGHT}", "antigen": "MKTAYIAKQR"}
    abag.embed_table(frame, tmp_path / "store", **told, **COMPOSITION)
    labelled = frame.assign(pKd=rng.normal(8, 1, len(frame)))
    options = {"head": "ridge", "split": "random", "report": False}
    abag.fit(labelled, tmp_path / "store", tmp_path / "run", **told, **options)
    new = pd.DataFrame({"VH": heavy[:2], "VL": light})
    abag.predict(new, tmp_path / "run", tmp_path / "as-in-run.csv")
    abag.predict(new, tmp_path / "run", tmp_path / "told.csv", **told)
    as_in_run, as_told = (pd.read_csv(tmp_path / f"{n}.csv") for n in ("as-in-run", "told"))
    pd.testing.assert_frame_equal(as_in_run, as_told)


def test_mutations_of_both_chains_in_order_are_read_as_in_the_run(tmp_path):
    rng = np.random.default_rng(0)
    heavy = [f"{HEAVY[at]}{at + 1}A" for at in range(28, 44) if HEAVY[at] != "A"]
    light = [f"{LIGHT[at]}{at + 1}G" for at in range(28, 44) if LIGHT[at] != "G"]
    cells = [f"{mutation}:WT" for mutation in heavy] + [f"WT:{mutation}" for mutation in light]
    frame = pd.DataFrame({"mutation": cells, "pKd": rng.normal(8, 1, len(cells))})
    told = {"parent": f"{HEAVY}|{LIGHT}", "antigen": "MKTAYIAKQR"}
    store = tmp_path / "store"
    abag.embed_table(frame, store, **told, **COMPOSITION)
    abag.fit(frame, store, tmp_path / "run", head="ridge", split="random", **told, report=False)

    def predicted(run, table, **options):
        out = tmp_path / "out.csv"
        abag.predict(pd.DataFrame(table), tmp_path / run, out, force=True, **options)
        return pd.read_csv(out)["pkd_predicted"].tolist()

    doubles = [f"{heavy[0]}:{light[0]}", f"{heavy[1]}:{light[1]}"]
    variant = {"heavy": [f"{HEAVY[:28]}A{HEAVY[29:]}"], "light": [f"{LIGHT[:28]}G{LIGHT[29:]}"]}
    expected = predicted("run", variant)
    assert predicted("run", {"mutation": doubles})[:1] == expected
    # names of chains win
    assert predicted("run", {"mutation": [f"H:{heavy[0]}:L:{light[0]}"]}) == expected
    for number, double in enumerate(doubles):
        measured = pd.DataFrame({"mutation": [double], "pKd": [9.0]})
        run = ("run", "run-0")[number]
        abag.fit(measured, store, tmp_path / f"run-{number}", add=tmp_path / run, report=False)
    written = pd.read_parquet(tmp_path / "run-1/measured.parquet")
    assert written["heavy"].iloc[-2] == variant["heavy"][0]
