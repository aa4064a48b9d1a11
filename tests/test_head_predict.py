"""`predict` from table to file: cells, order, chunks, new sequences, all pairs, errors."""

import json
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import set_chunk_rows, set_sizes
from drawn import COMPOSITION, QUICK, add_vectors, draw_chains, draw_pairs, predicting_the_mean
from faults import left_by_the_dead, raising
from hypothesis import example, given
from hypothesis import strategies as st
from invoke import run
from reading import read_table, read_table_chunks
from scipy.stats import norm

import abag
from abag import (
    EncoderError,
    MissingVectors,
    OptionError,
    OutputError,
    PredictionError,
    SequenceError,
    TableError,
)
from abag.embed.tables.chains import MISSING_TEXT
from abag.embed.tables.pairs import SequenceCollector, Sequences
from abag.embed.tables.table import with_types, writing_table
from abag.head.predictor.predictor import SCORE_COLUMNS
from abag.head.predictor.scoring import by_antibody

OURS = [*SCORE_COLUMNS]


def fake_embed(frame, store, *, calls=None, kind, **_encoders):
    if calls is not None:
        calls.append(frame)
    add_vectors(store, frame, kind=kind)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at = tmp_path_factory.mktemp("predict")
    frame = draw_pairs(24, 4)
    frame.insert(0, "id", [f"{i:03d}" for i in range(len(frame))])
    add_vectors(at / "store", frame.head(37))  # two shards: their order is not that of the keys
    add_vectors(at / "store", frame)
    abag.fit(frame, at / "store", at / "run", **QUICK | {"folds": 3})
    return SimpleNamespace(at=at, frame=frame, store=at / "store", run=at / "run")


@pytest.fixture(scope="module")
def paired(tmp_path_factory):
    """A run of 40 heavy chains with two light chains each, of which one pair has no light chain."""
    at = tmp_path_factory.mktemp("paired")
    rng = np.random.default_rng(1)
    lights = draw_chains(rng, 2)
    frame = pd.DataFrame({"heavy": draw_chains(rng, 40), "antigen": draw_chains(rng, 1)[0]})
    frame = pd.concat([frame.assign(light=light) for light in lights], ignore_index=True)
    frame.loc[79, "light"] = ""
    frame["pKd"] = rng.normal(8, 1, len(frame))
    abag.embed_table(frame, at / "store", **COMPOSITION)
    options = {"head": "ridge", "split": "random", "report": False}
    abag.fit(frame, at / "store", at / "run", **options)
    return SimpleNamespace(frame=frame, run=at / "run", store=at / "store")


def test_a_table_without_a_chain_that_nearly_all_of_training_had_is_refused(paired, tmp_path):
    chains = json.loads((paired.run / "predictor/predictor.json").read_text())["chains"]
    assert chains == {"heavy": 1.0, "light": 79 / 80}
    reason = "no antibody has a light chain, which 98.8% of the training antibodies have; expected"
    without = paired.frame.drop(columns="light")
    for table in (without, without.assign(light="")):
        with pytest.raises(PredictionError, match=f"table: {reason}"):
            abag.predict(table, paired.run, tmp_path / "out.csv")
        with pytest.raises(PredictionError, match=f"table: {reason}"):
            abag.evaluate(paired.run, table=table)
        scored = table.drop_duplicates(["heavy"]).assign(pkd_predicted=8.0, sigma=0.1)
        with pytest.raises(PredictionError, match=f"table: {reason}"):
            abag.rank(scored.drop(columns="pKd"), tmp_path / "order.csv", run=paired.run, batch=2)
    with pytest.raises(PredictionError, match=f"predict: {reason}"):
        abag.load_predictor(paired.run).predict(without["heavy"], antigen=without["antigen"])
    antigens = paired.frame[["antigen"]].head(1)
    without.drop_duplicates("heavy").to_csv(tmp_path / "antibodies.csv", index=False)
    with pytest.raises(PredictionError, match=f"antibodies.csv: {reason}"):
        abag.predict(tmp_path / "antibodies.csv", paired.run, tmp_path / "o.csv", cross=antigens)
    assert [path.name for path in tmp_path.iterdir()] == ["antibodies.csv"]


def test_rows_without_a_chain_of_training_are_far_but_not_those_that_were_in_training(
    paired, tmp_path
):
    table = paired.frame.copy()
    table.loc[[3, 5], "light"] = ""
    said = []
    summary = abag.predict(table, paired.run, tmp_path / "out.csv", say=said.append)
    written = pd.read_csv(tmp_path / "out.csv")
    reason = "it has no light chain, which 98.8% of the training antibodies have"
    assert written.index[written["far"]].tolist() == [3, 5]
    assert set(written.loc[[3, 5], "why_far"]) == {reason}
    assert summary["why_far"] == {reason: 2}
    scores = abag.load_predictor(paired.run).predict(
        table["heavy"], table["light"], antigen=table["antigen"]
    )
    assert scores["why_far"].tolist() == written["why_far"].fillna("").tolist()
    assert abag.evaluate(paired.run, table=table)["table"]["far"] == 2
    scored = written.drop(columns=["pKd", "far", "why_far"]).fillna({"light": ""})
    options = {"run": paired.run, "rule": "mean", "batch": 2}
    abag.rank(scored, tmp_path / "order.csv", keep_far=True, **options)
    with pytest.raises(PredictionError, match=r"left out: 78 measured, 2 far"):
        abag.rank(scored, tmp_path / "order2.csv", **options)


def test_a_chain_that_no_training_antibody_had_makes_a_row_far(case, tmp_path):
    table = case.frame.head(20).assign(light=["", "ACDEFGHIK"] * 10)
    add_vectors(case.store, table)
    run_predict(case, table, tmp_path / "out.csv")
    written = pd.read_csv(tmp_path / "out.csv").fillna({"why_far": ""})
    assert written["far"].tolist() == [False, True] * 10
    reason = "it has a light chain, which no training antibody has"
    assert written["why_far"].tolist() == ["", reason] * 10


def test_nearest_sequences_are_named_by_the_first_row_that_has_them(case):
    scored = abag.predict(case.frame, case.run, store=case.store, say=False)
    antibodies = case.frame.groupby("heavy")["id"].transform("first")
    antigens = case.frame.groupby("antigen")["id"].transform("first")
    assert list(scored["nearest"]) == list(antibodies + " + " + antigens)


def test_a_table_whose_every_row_is_far_is_scored_evaluated_and_not_ranked(case, tmp_path):
    strange = draw_pairs(12, 1, seed=5)
    store = tmp_path / "store"
    add_vectors(store, strange, shift=50.0)
    predictor = encoding_by(None, case.run)
    out = tmp_path / "out.csv"
    said = []
    abag.predict(strange, predictor, out, store=store, say=said.append)
    written = pd.read_csv(out)
    assert written["far"].all()
    assert (written["sigma"] >= 0.999 * case.frame["pKd"].std(ddof=0)).all()
    assert written["nearest"].isna().all()
    assert written["distance"].isna().all()
    assert any("far" in text or "outside" in text for text in said)
    assert abag.evaluate(case.run, table=strange, store=store)["table"]["far"] == 12
    with pytest.raises(PredictionError, match="12 far"):
        abag.rank(out, tmp_path / "order.csv", run=case.run, rule="mean", batch=2)


def run_predict(case, table, out, **options):
    said = []
    predictor = encoding_by(options.pop("embed", None), case.run)
    return abag.predict(table, predictor, out, say=said.append, **options), said


def encoding_by(embed, run):
    """Load a predictor that encodes new sequences by this function; None: it cannot."""
    return replace(abag.load_predictor(run), embed=embed)


def read_back(path):
    if ".parquet" in path.name:
        return pd.read_parquet(path)
    separator = "\t" if ".tsv" in path.name else ","
    return pd.read_csv(path, sep=separator, dtype={"id": str})


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.parquet"])
@pytest.mark.parametrize("chunk", [7, 50_000])
def test_every_format_gives_the_scores_of_the_predictor_in_the_order_of_the_rows(
    case, tmp_path, monkeypatch, name, chunk
):
    set_chunk_rows(monkeypatch, chunk)
    table = tmp_path / "in.csv"
    shuffled = case.frame.sample(frac=1, random_state=0).reset_index(drop=True)
    shuffled.to_csv(table, index=False)
    summary, _ = run_predict(case, table, tmp_path / name)
    written = read_back(tmp_path / name)
    assert list(written.columns) == ["id", "heavy", "antigen", "pKd", *OURS]
    assert written["id"].tolist() == shuffled["id"].tolist()
    want = abag.load_predictor(case.run).predict(
        heavy=list(shuffled["heavy"]), antigen=list(shuffled["antigen"])
    )
    off = 1e-6 if name.endswith("parquet") else 5.1e-5  # text has 4 digits after the point
    np.testing.assert_allclose(written["pkd_predicted"], want["pkd_predicted"], atol=off)
    np.testing.assert_allclose(written["sigma"], want["sigma"], atol=off)
    for column in ("regime", "far"):
        assert written[column].tolist() == want[column].tolist()
    assert summary["regimes"] == {"known": len(case.frame)}
    assert json.loads(json.dumps(summary))["rows"] == len(case.frame)
    assert not list(tmp_path.glob("*.partial"))


def test_predict_says_in_one_line_that_all_rows_have_the_same_prediction(
    case, tmp_path, monkeypatch
):
    predictor = predicting_the_mean(abag.load_predictor(case.run))
    set_sizes(monkeypatch, predicted_pairs=7)  # the rows are scored in parts
    for name, cross in (("a.csv", None), ("b.csv", case.frame)):
        said = []
        table = case.frame if cross is None else case.frame.head(24)
        summary = abag.predict(table, predictor, tmp_path / name, cross=cross, say=said.append)
        rows = summary["rows"]
        pkd = pd.read_csv(tmp_path / name)["pkd_predicted"]
        assert pkd.nunique() == 1
        line = f"{tmp_path / name}: all {rows} rows have the same prediction, pKd {pkd[0]:.2f}: "
        assert f"{line}the run cannot rank them" in said
        assert (summary["can_rank"], summary["same_prediction"]) == (False, {"known": rows})


def test_different_predictions_and_one_pair_are_nothing_to_remark_on(case, tmp_path):
    for table, name in (
        (case.frame, "a.csv"),
        (case.frame.head(1), "b.csv"),
        (pd.concat([case.frame.head(1)] * 12), "c.csv"),
    ):
        summary, said = run_predict(case, table, tmp_path / name)
        assert (summary["can_rank"], summary["same_prediction"]) == (True, {})
        assert not any("cannot rank" in line for line in said)


def test_strong_adds_the_probability_of_a_pkd_or_more(case, tmp_path):
    run_predict(case, case.frame, tmp_path / "plain.csv")
    run_predict(case, case.frame, tmp_path / "strong.csv", strong=8.5)
    plain, strong = (read_back(tmp_path / name) for name in ("plain.csv", "strong.csv"))
    assert list(strong) == [*plain, "p_strong"]
    want = norm.sf(8.5, loc=plain["pkd_predicted"], scale=plain["sigma"])
    np.testing.assert_allclose(strong["p_strong"], want, atol=1e-4)
    crossed = tmp_path / "crossed.csv"
    run_predict(case, case.frame.head(8), crossed, cross=case.frame.head(8), strong=8.5)
    scores = pd.read_csv(crossed)
    want = norm.sf(8.5, loc=scores["pkd_predicted"], scale=scores["sigma"])
    np.testing.assert_allclose(scores["p_strong"], want, atol=1e-4)
    row = case.frame.iloc[0]
    pair = ["predict", "--run", case.run, "--heavy", row["heavy"], "--antigen", row["antigen"]]
    p_strong = json.loads(run(*pair, "--strong", "8.5", "--json").stdout)["p_strong"]
    assert p_strong == pytest.approx(strong["p_strong"].iloc[0], abs=1e-4)
    assert f"a pKd of 8.5 or more: {p_strong:.0%}" in run(*pair, "--strong", "8.5").stdout


@pytest.mark.parametrize("strong", [float("nan"), float("inf"), "high"])
def test_a_threshold_of_strong_pairs_that_is_no_pkd_is_refused(case, tmp_path, strong):
    with pytest.raises(abag.AbagError, match=r"^strong"):
        run_predict(case, case.frame, tmp_path / "out.csv", strong=strong)
    taken = case.frame.assign(p_strong=1.0)
    with pytest.raises(PredictionError, match="already has a column 'p_strong'"):
        run_predict(case, taken, tmp_path / "out.csv", strong=9)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.ci
def test_memory_grows_by_two_indices_and_the_scores_of_each_pair(case, tmp_path, monkeypatch):
    set_chunk_rows(monkeypatch, 2000)
    set_sizes(monkeypatch, predicted_pairs=4096)
    peaks = []
    sizes = (10_000, 30_000)
    for pairs in sizes:
        table = case.frame.sample(pairs, replace=True, random_state=0)
        tracemalloc.start()
        run_predict(case, table, tmp_path / f"{pairs}.parquet")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # two indices and the columns of the scores, twice while they are put in order
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 2 * 4 + 2 * (6 * 8 + 2) + 4 * 9


CELL_TEXTS = st.from_regex(r"\A[-+ 0-9.eE]{0,6}\Z")
CELLS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8),
    min_size=1,
    max_size=12,
)


@given(CELLS)
def test_cells_are_written_as_they_were_read(tmp_path_factory, cells):
    folder = tmp_path_factory.mktemp("cells")
    frame = pd.DataFrame({"heavy": ["EVQL"] * len(cells), "cell": cells})
    with writing_table(folder / "in.csv") as write:
        write(frame)
    read = read_table(folder / "in.csv", as_written=True).frame
    assert read["cell"].tolist() == cells
    with writing_table(folder / "out.csv") as write:
        write(read)
    assert (folder / "out.csv").read_bytes() == (folder / "in.csv").read_bytes()


def test_ids_dates_and_missing_values_are_written_unchanged(case, tmp_path):
    cells = ["007", "1e5", "NA", "2026-01-02", "", " x ", '"', "a,b"]
    frame = case.frame.head(8).drop(columns="pKd").assign(id=cells)
    frame.to_csv(tmp_path / "in.csv", index=False)
    run_predict(case, tmp_path / "in.csv", tmp_path / "out.csv")
    before = (tmp_path / "in.csv").read_text().splitlines()
    after = (tmp_path / "out.csv").read_text().splitlines()
    assert all(b.startswith(a + ",") for a, b in zip(before, after, strict=True))


def test_columns_of_a_text_table_are_numbers_in_parquet_where_no_cell_loses_anything(
    case, tmp_path, monkeypatch
):
    set_chunk_rows(monkeypatch, 5)
    columns = {
        "count": [*range(12)],
        "plate": [7] * 12,
        "signal": ["0.5", "", "1e-05", "7", "-2.25", *["1.0"] * 7],
        "money": ["8.50", "7.25"] * 6,
        "bound": ["True", "False"] * 6,
        "late": [*["1"] * 11, "n.d."],  # text in the last chunk
        "version": ["1.1", "1.10"] * 6,
        "well": ["4E10", "5E11"] * 6,
        "padded": ["0012", "12"] * 6,
        "accession": ["123456789012345678901", "1"] * 6,
        "clone": [*range(12)],  # names are text
        "comment": [""] * 12,
    }
    frame = case.frame.head(12).drop(columns="pKd").assign(**columns)
    frame.to_csv(tmp_path / "in.csv", index=False)
    run_predict(case, tmp_path / "in.csv", tmp_path / "out.parquet")
    written = pd.read_parquet(tmp_path / "out.parquet")
    numbers = ["count", "plate", "signal", "money", "bound"]
    assert [written[name].dtype.kind for name in numbers] == [*"iiffb"]
    expected = pd.read_csv(tmp_path / "in.csv")[numbers]
    pd.testing.assert_frame_equal(written[numbers], expected)
    for name in {*frame} - {*numbers}:
        assert written[name].tolist() == [str(cell) for cell in frame[name]]
    cross = tmp_path / "crossed.parquet"
    run_predict(case, tmp_path / "in.csv", cross, cross=tmp_path / "in.csv")
    assert pd.read_parquet(cross)["plate"].dtype.kind == "i"


NUMBERS = st.one_of(
    st.integers(-(2**59), 2**59), st.floats(allow_nan=False), st.booleans(), st.none()
)


@given(st.lists(NUMBERS, min_size=1) | st.lists(CELL_TEXTS, min_size=1))
@example([3.7028163832025146e-175, None])
def test_types_of_columns_lose_no_number_and_no_text(cells):
    texts = ["" if cell is None else str(cell) for cell in cells]
    frame = pd.DataFrame({"a": pd.Series(texts, dtype=object)})
    typed = with_types(frame, {})["a"]
    if typed.dtype == object:
        assert typed.tolist() == texts
        return
    for text, cell in zip(texts, typed.tolist(), strict=True):
        if text.strip() in MISSING_TEXT:
            assert pd.isna(cell)
        else:
            assert type(cell)(float(text) if isinstance(cell, float) else text) == cell or (
                isinstance(cell, bool) and str(cell).lower() == text.strip().lower()
            )


def test_parquet_keeps_its_types_and_a_folder_of_it_is_one_table(case, tmp_path):
    typed = case.frame.assign(n=pd.array([1, None] * 48, dtype="Int64"), flag=True)
    (tmp_path / "many").mkdir()
    typed.head(50).to_parquet(tmp_path / "many" / "a.parquet", index=False)
    typed.tail(46).to_parquet(tmp_path / "many" / "b.parquet", index=False)
    run_predict(case, tmp_path / "many", tmp_path / "out.parquet")
    written = pd.read_parquet(tmp_path / "out.parquet", dtype_backend="numpy_nullable")
    assert written["n"].dtype == "Int64"
    assert written["id"].tolist() == typed["id"].tolist()
    assert written["n"].isna().sum() == 48


ARROW_COLUMNS = {
    "text views": (pa.string_view(), "a"),
    "bytes views": (pa.binary_view(), b"a"),
    "decimals": (pa.decimal256(50, 2), Decimal("1.25")),
    "lists": (pa.list_(pa.int8()), [1, 2]),
    "times": (pa.timestamp("us", "+05:30"), datetime(2026, 1, 2, tzinfo=UTC)),
    "durations": (pa.duration("s"), timedelta(days=2)),
    "nothing": (pa.null(), None),
}


@pytest.mark.parametrize("name", ARROW_COLUMNS)
@pytest.mark.parametrize("out", ["out.csv", "out.parquet"])
def test_a_column_of_any_type_of_arrow_is_copied(case, tmp_path, name, out):
    kind, value = ARROW_COLUMNS[name]
    table = pa.Table.from_pandas(case.frame, preserve_index=False)
    column = pa.array([value, None] * (len(table) // 2), kind)
    pq.write_table(table.append_column("x", column), tmp_path / "in.parquet")
    run_predict(case, tmp_path / "in.parquet", tmp_path / out)
    if out.endswith("parquet"):
        assert pq.read_table(tmp_path / out).column("x").to_pylist() == column.to_pylist()
    else:
        written = pd.read_csv(tmp_path / out)["x"]
        assert written.notna().tolist() == [value is not None, False] * (len(table) // 2)


def test_labels_are_copied_and_never_used(case, tmp_path):
    run_predict(case, case.frame, tmp_path / "a.csv")
    shuffled = case.frame.assign(pKd=case.frame["pKd"].sample(frac=1, random_state=1).tolist())
    run_predict(case, shuffled, tmp_path / "b.csv")
    a, b = (pd.read_csv(tmp_path / f"{name}.csv") for name in "ab")
    assert a["pKd"].tolist() != b["pKd"].tolist()
    pd.testing.assert_frame_equal(a[OURS], b[OURS])
    run_predict(case, case.frame.assign(pKd="?"), tmp_path / "c.csv")
    pd.testing.assert_frame_equal(a[OURS], pd.read_csv(tmp_path / "c.csv")[OURS])


@pytest.mark.ci
def test_the_same_rows_are_the_same_bytes_in_another_process_which_imports_little(case, tmp_path):
    case.frame.to_csv(tmp_path / "in.csv", index=False)
    script = (
        "import sys, abag; abag.predict(*sys.argv[1:4], store=sys.argv[4]);"
        "assert not {'scipy.optimize', 'sklearn', 'jinja2'} & sys.modules.keys()"
    )
    inputs = [tmp_path / "in.csv", case.run / "predictor"]
    here = tmp_path / "here.csv.gz"
    there = tmp_path / "there.csv.gz"
    abag.predict(*inputs, here, store=case.store)
    subprocess.run([sys.executable, "-c", script, *inputs, there, case.store], check=True)
    assert here.read_bytes() == there.read_bytes()


def test_a_bad_row_is_named_by_its_place_and_nothing_is_written(case, tmp_path, monkeypatch):
    set_chunk_rows(monkeypatch, 4)
    frame = case.frame.head(12).astype(str)
    frame.loc[9, "heavy"] = "EV*QL"
    frame.to_csv(tmp_path / "in.csv", index=False)
    with pytest.raises(SequenceError, match=r"^in\.csv: row 11, column 'heavy'"):
        run_predict(case, tmp_path / "in.csv", tmp_path / "out.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("bad", [[9], [4, 5, 6, 7], [0, 11], list(range(11))])
def test_skipped_rows_are_counted_and_others_keep_their_scores(case, tmp_path, monkeypatch, bad):
    set_chunk_rows(monkeypatch, 4)
    frame = case.frame.head(12).copy()
    run_predict(case, frame, tmp_path / "whole.csv")
    frame.loc[bad, "heavy"] = "EV*QL"
    summary, said = run_predict(case, frame, tmp_path / "out.csv", bad_rows="skip")
    assert (summary["rows"], summary["skipped_rows"]) == (12 - len(bad), len(bad))
    skipped = f"{len(bad)} bad row{'s' * (len(bad) > 1)} skipped"
    assert any(skipped in line for line in said)
    whole, written = (pd.read_csv(tmp_path / f"{n}.csv", dtype=str) for n in ("whole", "out"))
    np.testing.assert_allclose(
        written["pkd_predicted"].astype(float),
        whole["pkd_predicted"].astype(float).drop(bad),
        atol=1.1e-4,
    )
    assert written["id"].tolist() == whole["id"].drop(bad).tolist()


def test_a_table_with_only_bad_rows_is_refused(case, tmp_path):
    frame = case.frame.head(3).assign(heavy="*")
    with pytest.raises(SequenceError, match=r"(?s)all 3 rows are bad;.*rows 1, 2, 3, "):
        run_predict(case, frame, tmp_path / "out.csv", bad_rows="skip")
    with pytest.raises(TableError, match="the table has no rows"):
        run_predict(case, frame.head(0), tmp_path / "out.csv")


def test_an_existing_output_is_kept_unless_forced(case, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("mine")
    with pytest.raises(OutputError, match="use force to overwrite"):
        run_predict(case, case.frame, out)
    assert out.read_text() == "mine"
    run_predict(case, case.frame, out, force=True)
    assert "pkd_predicted" in out.read_text()
    with pytest.raises(PredictionError, match="already has a column 'pkd_predicted'"):
        run_predict(case, out, tmp_path / "again.csv")
    with pytest.raises(OutputError, match="out is the same file as another argument"):
        run_predict(case, out, out, force=True)
    with pytest.raises(OutputError, match="out is the same file as another argument"):
        run_predict(case, case.frame, out, force=True, sequences=[out])


@pytest.mark.parametrize(
    ("out", "words"),
    [("a.doc", "not a supported table format"), ("a.xlsx", "only read"), ("no/a.csv", "folder")],
)
def test_an_output_that_cannot_be_written_is_refused_before_reading(case, tmp_path, out, words):
    with pytest.raises(abag.AbagError, match=words):
        run_predict(case, tmp_path / "not-read.csv", tmp_path / out)


def test_a_write_that_fails_leaves_the_old_file_and_no_partial(case, tmp_path, monkeypatch):
    (tmp_path / "out.csv").write_text("mine")
    monkeypatch.setattr(pd.DataFrame, "to_csv", raising(OSError(28, "No space left on device")))
    with pytest.raises(TableError, match="No space left"):
        run_predict(case, case.frame, tmp_path / "out.csv", force=True)
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


CHANGES = {
    "shorter": lambda table: table.head(9),
    "two rows swapped": lambda table: table.iloc[[1, 0, *range(2, len(table))]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_changes_while_it_is_read_is_refused(case, tmp_path, monkeypatch, change):
    set_chunk_rows(monkeypatch, 7)
    case.frame.to_csv(tmp_path / "in.csv", index=False)

    def embed(frame, store, kind, **_encoders):
        CHANGES[change](case.frame).to_csv(tmp_path / "in.csv", index=False)
        add_vectors(store, frame, kind=kind)

    with pytest.raises(PredictionError, match="the table changed while it was read"):
        run_predict(
            case, tmp_path / "in.csv", tmp_path / "out.csv", embed=embed, store=tmp_path / "new"
        )
    assert not (tmp_path / "out.csv").exists()


@pytest.fixture
def new(case):
    rng = np.random.default_rng(5)
    extra = pd.DataFrame({"heavy": draw_chains(rng, 3), "antigen": case.frame["antigen"][0]})
    return pd.concat([case.frame.head(4), extra, extra], ignore_index=True)


def test_missing_vectors_are_refused_if_they_cannot_be_encoded(case, tmp_path, new):
    with pytest.raises(MissingVectors, match="3 of 4 antibody"):
        run_predict(case, new, tmp_path / "out.csv")


@pytest.fixture
def foreign(case, tmp_path):
    """Return a copy of the run whose config.json names a store that is not near it."""
    run = tmp_path / "theirs" / "runs" / "first"
    shutil.copytree(case.run, run)
    config = json.loads((run / "config.json").read_text())
    store = tmp_path / "mine" / "store"
    store.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(config | {"store": str(store)}))
    return run


def test_a_foreign_run_does_not_choose_where_vectors_are_written(foreign, new, tmp_path):
    calls = []
    mine = tmp_path / "mine" / "store"
    predictor = encoding_by(partial(fake_embed, calls=calls), foreign)
    with pytest.raises(MissingVectors, match=f"{mine}', which is neither near the run nor in the"):
        abag.predict(new, predictor, tmp_path / "out.csv")
    config = foreign / "config.json"
    config.write_text(config.read_text().replace("mine", "moved"))
    lost = encoding_by(partial(fake_embed, calls=calls), foreign)
    with pytest.raises(
        MissingVectors, match=r"trained from .*moved.*, which does not exist \(moved"
    ):
        abag.predict(new, lost, tmp_path / "out.csv")
    assert not calls
    predictor.predict([*new["heavy"]], antigen=new["antigen"][0])  # with a temporary store
    assert not [*mine.iterdir()]
    abag.predict(new, predictor, tmp_path / "out.csv", store=mine)
    assert len(calls) == 4  # of either kind, in the temporary store and in mine


@pytest.mark.parametrize("place", ["theirs/store", "theirs/runs/store", "mine/store"])
def test_the_store_near_a_run_or_in_the_current_folder_is_used(foreign, place, monkeypatch):
    project = foreign.parents[2]
    config = json.loads((foreign / "config.json").read_text())
    (project / place).mkdir(exist_ok=True)
    config["store"] = str(project / place)
    (foreign / "config.json").write_text(json.dumps(config))
    if place == "mine/store":
        monkeypatch.chdir(project / "mine")
    assert abag.load_predictor(foreign).store == project / place


def test_only_new_sequences_are_encoded_into_the_store_and_reported(case, tmp_path, new):
    add_vectors(tmp_path / "store", case.frame)
    calls = []

    def embed(frame, store, **encoders):
        fake_embed(frame, store, calls=calls, **encoders)

    options = {"store": tmp_path / "store", "embed": embed}
    _, said = run_predict(case, new, tmp_path / "out.csv", **options)
    assert len(calls[0]) == 3
    assert [*calls[0].columns] == ["heavy", "light"]  # all antigens are stored
    assert any(str(tmp_path / "store") in line and "3 antibodies" in line for line in said)
    run_predict(case, new, tmp_path / "again.csv", **options)
    assert len(calls) == 1
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()


@pytest.fixture(scope="module")
def composed(case):
    """A run whose encoders can really encode."""
    table = case.frame.drop(columns="id")
    abag.embed_table(table, case.at / "composed", **COMPOSITION)
    abag.fit(table, case.at / "composed", case.at / "composed-run", **QUICK)
    return SimpleNamespace(run=case.at / "composed-run", store=case.at / "composed")


def test_a_bundle_alone_scores_new_sequences_and_reports_encoding(composed, tmp_path, capsys):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for path in (composed.run / "predictor").iterdir():
        (bundle / path.name).write_bytes(path.read_bytes())
    heavy = ["EVQLVESGG", "QVQLQQSGA"]
    antigen = "MKTAYIAKQR"
    scores = abag.load_predictor(bundle).predict(heavy=heavy, antigen=antigen)
    assert (
        "encoding 2 antibodies with composition and 1 antigen with composition"
        in capsys.readouterr().err
    )
    kept = abag.load_predictor(bundle).predict(heavy, None, antigen, store=tmp_path / "store")
    assert scores.equals(kept)
    held = abag.open_store(tmp_path / "store").vectors("antibody", [(h, "") for h in heavy])
    assert len(held) == 2


def test_a_folder_with_partial_files_only_is_not_a_store_yet(composed, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    left_by_the_dead(store, "abag-store").touch()
    scores = abag.load_predictor(composed.run).predict("EVQLVESGG", None, "MKTAYIAKQR", store=store)
    assert len(scores) == 1


def test_another_encoder_than_the_runs_is_refused_with_both_fingerprints(composed, tmp_path):
    table = tmp_path / "in.csv"
    table.write_text("heavy,antigen\nEVQLVESGG,MKTAYIAKQR\n")
    with pytest.raises(EncoderError, match=r"[0-9a-f]{32}; expected [0-9a-f]{32}"):
        abag.predict(
            table,
            composed.run,
            tmp_path / "a.csv",
            store=tmp_path / "s",
            antibody_encoder="tiny-igt5",
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv"]


@pytest.mark.parametrize("block", [3, None])
def test_a_cross_scores_every_antibody_against_every_antigen(case, tmp_path, monkeypatch, block):
    if block == 3:
        set_sizes(monkeypatch, predicted_pairs=3, predicted_antibodies=10)
    antibodies = case.frame[["heavy"]].drop_duplicates().assign(name=range(24), score=1.0)
    antigens = case.frame[["antigen"]].drop_duplicates().assign(name=list("abcd"))
    antibodies.to_csv(tmp_path / "antibodies.csv", index=False)
    antigens.to_csv(tmp_path / "antigens.csv", index=False)
    summary, said = run_predict(
        case, tmp_path / "antibodies.csv", tmp_path / "out.csv", cross=tmp_path / "antigens.csv"
    )
    crossed = pd.read_csv(tmp_path / "out.csv")
    assert list(crossed.columns) == ["heavy", "name_antibody", "antigen", "name_antigen", *OURS]
    assert any("left out" in line and "score" in line for line in said)
    assert crossed["name_antibody"].tolist() == [i for i in range(24) for _ in range(4)]
    assert crossed["name_antigen"].tolist() == list("abcd") * 24
    want = abag.load_predictor(case.run).predict(
        list(crossed["heavy"]), None, list(crossed["antigen"])
    )
    np.testing.assert_allclose(crossed["pkd_predicted"], want["pkd_predicted"], atol=5.1e-5)
    assert summary["rows"] == 96


def test_a_table_crossed_with_itself_keeps_the_columns_of_each_kind(case, tmp_path):
    table = case.frame.assign(
        lot="7",
        clone=case.frame["heavy"].str[:4],
        target=case.frame["antigen"].str[:4],
        far=case.frame["pKd"],
    ).sample(60, random_state=0)
    _, said = run_predict(case, table, tmp_path / "out.csv", cross=table)
    crossed = pd.read_csv(tmp_path / "out.csv")
    names = ["id_antibody", "heavy", "lot", "clone", "id_antigen", "antigen", "target"]
    assert list(crossed.columns) == [*names, *OURS]
    first = table.drop_duplicates("heavy").set_index("heavy")["id"]
    assert (crossed["id_antibody"] == crossed["heavy"].map(first).astype(int)).all()
    assert len(crossed) == table["heavy"].nunique() * table["antigen"].nunique()
    assert (crossed["target"] == crossed["antigen"].str[:4]).all()
    assert any("left out" in line and "pKd, far" in line for line in said)


def test_a_cross_and_a_single_antigen_are_refused(case, tmp_path):
    with pytest.raises(OptionError, match="antigen and cross"):
        run_predict(case, case.frame, tmp_path / "o.csv", cross=case.frame, antigen="MKT")


@pytest.fixture
def traced():
    """Bytes that Python and numpy hold beyond those of before, and at most held."""
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


@pytest.mark.parametrize("group", [20_000, 1_000_000])  # many row groups; the table in one
def test_reading_parquet_keeps_a_small_part_of_the_file_in_memory(tmp_path, traced, group):
    path = tmp_path / "in.parquet"
    noise = np.random.default_rng(0).random((1_000_000, 2))
    frame = pd.DataFrame(noise, columns=["a", "b"])
    frame.to_parquet(path, row_group_size=group, use_dictionary=False)
    before = traced()[0] + pa.total_allocated_bytes()
    most = max(
        traced()[0] + pa.total_allocated_bytes()
        for _ in read_table_chunks(path, rows=5_000, as_written=True)
    )
    assert most - before < path.stat().st_size / 4


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=9))
def test_every_row_keeps_its_sequence_after_any_number_of_chunks(rows):
    collected = SequenceCollector("antibody")
    for numbers in rows:
        used, of_row = np.unique(numbers, return_inverse=True)
        collected.add([(f"EVQL{'A' * n}", "") for n in used], of_row)
    sequences = collected.finish()
    numbers_read = [len(sequences.chains[n][0]) - 4 for n in sequences.of_row]
    assert numbers_read == np.concatenate(rows).tolist()
    assert len(sequences.keys) == len({*sequences.chains}) == len(sequences.chains)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_blocks_hold_each_row_once_by_antibody(antibodies, pairs, most):
    sequences = Sequences.of("antibody", [(f"EVQL{'A' * n}", "") for n in antibodies])
    blocks = by_antibody(sequences, pairs=pairs, most=most)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(antibodies)))
    for rows in blocks:
        assert 0 < len(rows) <= pairs
        assert len({antibodies[row] for row in rows}) <= most
    changes = np.diff(np.array(antibodies)[np.concatenate(blocks)]) != 0
    assert changes.sum() == len({*antibodies}) - 1
