"""Tables in memory: of pandas, Polars, PyArrow, dicts and others, and results as they came."""

import inspect
import logging
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from drawn import COMPOSITION, demo_table
from invoke import run as run_command
from reading import read_labels

import abag
from abag import TableError
from abag.core.frames import as_it_came, as_pandas

ADDED = ["pkd_predicted", "sigma", "sigma_model", "regime", "far", "why_far", "nearest", "distance"]
QUIET = {"head": "ridge", "report": False, "say": False}


def own_table():
    """Return measured pairs beside columns with missing cells of each type that has some."""
    table = demo_table().head(60)
    table["number"] = pd.array([1, None] * 30, dtype="Int64")
    table["truth"] = pd.array([True, None, False] * 20, dtype="boolean")
    table["word"] = ["a", None, "b"] * 20
    return table


class Exporting:
    """A table of another library, which exports its rows by one protocol alone."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.Table.from_pandas(self._table).__arrow_c_stream__(requested_schema)


def polars_table(table):
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(pa.Table.from_pandas(table, preserve_index=False))
    return frame.with_columns(polars.col("heavy").cast(polars.Categorical))


KINDS_OF_TABLES = {
    "nullable": pd.DataFrame.convert_dtypes,
    "arrow types": lambda table: table.convert_dtypes(dtype_backend="pyarrow"),
    "categories": lambda table: table.astype({"heavy": "category", "antigen": "category"}),
    "polars": polars_table,
    "pyarrow": lambda table: pa.Table.from_pandas(table, preserve_index=False),
    "dict": lambda table: {name: table[name].tolist() for name in table},
    "exporting": Exporting,
}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A run of few pairs, and what it predicts of them in pandas."""
    folder = tmp_path_factory.mktemp("frames")
    table = own_table()
    abag.embed_table(table, folder / "store", say=False, **COMPOSITION)
    abag.fit(table, folder / "store", folder / "run", **QUIET)
    scored = abag.predict(table, folder / "run", say=False)
    return SimpleNamespace(folder=folder, run=folder / "run", table=table, scored=scored)


def columns_of(frame):
    """Return the columns of a table of any kind as lists; missing cells are None."""
    frame = as_pandas(frame, "frame")
    return as_it_came(frame, {})


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_a_table_of_any_kind_gives_the_same_run_and_the_same_predictions_of_its_kind(
    case, tmp_path, kind
):
    table = KINDS_OF_TABLES[kind](case.table)
    abag.fit(table, case.folder / "store", tmp_path / "run", **QUIET)
    scored = abag.predict(table, tmp_path / "run", store=case.folder / "store", say=False)
    assert type(scored) is (pa.Table if kind == "exporting" else type(table))
    expected = columns_of(case.scored)
    assert columns_of(scored) == expected
    assert expected["number"][:3] == [1, None, 1]
    assert expected["truth"][:3] == [True, None, False]
    assert expected["word"][:3] == ["a", None, "b"]
    order = abag.rank(scored, batch=4, say=False)
    assert type(order) is type(scored)
    assert columns_of(order)["rank"] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_missing_labels_and_chains_are_missing_in_every_kind_of_table(case, kind):
    table = own_table().drop(columns=["number", "truth", "word"])
    table["pKd"] = [None, 7, *[8] * 58]
    table["pKd"] = table["pKd"].astype("Int64")
    table["light"] = table["light"].where(np.arange(60) != 1)
    pairs = read_labels(as_pandas(KINDS_OF_TABLES[kind](table), "table"), bad_rows="skip")
    chains = [pairs.table.antibodies.chains[number] for number in pairs.table.antibodies.of_row]
    assert pairs.measurements.sum() == 59
    assert ("", table["heavy"][1]) not in chains
    assert [light for _, light in chains].count("") == (table["light"].fillna("") == "").sum()
    assert {*pairs.pkd} == {7.0, 8.0}


def test_types_of_arrow_that_pandas_cannot_compare_are_read(case):
    table = case.table.assign(pKd=case.table["pKd"].round(1))
    columns = pa.Table.from_pandas(table, preserve_index=False)
    for name, kind in (("heavy", pa.string_view()), ("pKd", pa.float16())):
        at = columns.schema.get_field_index(name)
        columns = columns.set_column(at, name, pa.array(table[name].tolist()).cast(kind))
    frame = columns.to_pandas(types_mapper=pd.ArrowDtype)
    halves = table.assign(pKd=table["pKd"].astype("float16").astype(float))
    expected = read_labels(halves)
    for read in (frame, columns):
        pairs = read_labels(as_pandas(read, "table"))
        assert pairs.table.antibodies.chains == expected.table.antibodies.chains
        np.testing.assert_array_equal(pairs.pkd, expected.pkd)
    assert str(frame["heavy"].dtype) == "string_view[pyarrow]"  # the caller's table stays


def test_predictions_keep_the_index_and_the_types_of_their_table(case):
    table = case.table.set_axis([f"row {number // 2}" for number in range(60)])
    scored = abag.predict(table, case.run, say=False)
    assert [*scored] == [*table, *ADDED]
    pd.testing.assert_frame_equal(scored[[*table]], table)
    levels = pd.MultiIndex.from_product([range(6), range(10)], names=["plate", "well"])
    scored = abag.predict(table.set_axis(levels), case.run, say=False)
    assert scored.index.equals(levels)
    assert scored.index.names == ["plate", "well"]


def test_skipped_rows_and_the_order_of_a_batch_keep_the_index(case):
    table = case.table.set_axis(range(100, 160))
    table.loc[101, "heavy"] = "B4D"
    scored = abag.predict(table, case.run, bad_rows="skip", say=False)
    assert scored.index.tolist() == [100, *range(102, 160)]
    order = abag.rank(scored, batch=5, say=False)
    best = scored["pkd_predicted"].sort_values(ascending=False).index[:5]
    assert order.index.tolist() == best.tolist()


def test_predictions_of_a_file_are_a_pandas_frame_with_types(case, tmp_path):
    case.table.to_csv(tmp_path / "pairs.csv", index=False)
    scored = abag.predict(tmp_path / "pairs.csv", case.run, say=False)
    assert scored["pKd"].dtype == np.float64
    assert scored["pkd_predicted"].tolist() == case.scored["pkd_predicted"].tolist()
    crossed = abag.predict(case.table.head(3), case.run, cross=case.table.head(2), say=False)
    antigens = case.table.head(2)["antigen"].nunique()
    assert len(crossed) == 3 * antigens
    assert crossed.index.tolist() == [*range(3 * antigens)]


def test_predictions_in_memory_are_those_of_the_file(case, tmp_path):
    summary = abag.predict(case.table, case.run, tmp_path / "scored.parquet", say=False)
    assert summary["rows"] == 60
    written = pd.read_parquet(tmp_path / "scored.parquet")
    assert columns_of(written) == columns_of(case.scored)


def test_a_scan_without_a_file_is_a_row_per_mutant_and_says_what_is_best(case, tmp_path):
    options = {"parents": case.table.head(1), "positions": "H107", "say": False}
    summary = abag.scan(case.run, tmp_path / "scan.parquet", **options)
    mutants = abag.scan(case.run, **options)
    assert columns_of(mutants) == columns_of(pd.read_parquet(tmp_path / "scan.parquet"))
    said = []
    abag.scan(case.run, **{**options, "say": said.append})
    assert any(line.startswith("predicted to improve") for line in said)
    assert not any("heat map" in line for line in said)
    page = summary._repr_html_()
    assert "iframe" in page
    assert "heat" in page.lower()


def test_rank_without_a_file_says_what_the_batch_is_expected_to_hold(case):
    said = []
    order = abag.rank(case.scored, batch=3, say=said.append)
    assert "expected_best" in order
    assert any(line.startswith("expected ") for line in said)
    assert not any(line.startswith("order ") for line in said)


def test_column_names_that_are_numbers_stay_numbers(case):
    table = case.table.rename(columns={"heavy": 0, "light": 1, "antigen": 2, "word": 3.5})
    columns = {"heavy": "0", "light": "1", "antigen": "2"}
    scored = abag.predict(table, case.run, columns=columns, say=False)
    assert [*scored] == [*table, *ADDED]
    assert scored["pkd_predicted"].tolist() == case.scored["pkd_predicted"].tolist()


def nested(table):
    return table.assign(note=[[1, 2], *[None] * 59])


REFUSED = {
    "lazy": (lambda table: SimpleNamespace(collect=lambda: table), "is lazy; expected rows in"),
    "nested": (nested, "column 'note' has cells of the nested type list; expected text, numbers"),
    "arrays": (
        lambda table: table.assign(note=[np.zeros(3) for _ in range(60)]),
        "nested type ndarray",
    ),
    "records": (
        lambda table: pa.Table.from_pandas(nested(table), preserve_index=False),
        "column 'note' has cells of the nested type list<",
    ),
    "repeated": (
        lambda table: pd.concat([table, table[["heavy"]]], axis=1),
        "two columns are called 'heavy'",
    ),
    "repeated in arrow": (
        lambda table: pa.Table.from_arrays([pa.array(["a"])] * 2, ["heavy", "heavy"]),
        "two columns are called 'heavy'",
    ),
    "levels": (
        lambda table: pd.concat([table], axis=1, keys=["measured"]),
        "names of 2 levels; expected one name each",
    ),
    "chains in the index": (
        lambda table: table.set_index(["heavy", "light"]),
        "'heavy' is in the index; expected a column. Pass table.reset_index().",
    ),
    "a chain in the index": (
        lambda table: table.assign(light="").set_index("light"),
        "'light' is in the index; expected a column",
    ),
    "a list of records": (
        lambda table: table.to_dict("records"),
        "a record per row; expected columns. Pass pandas.DataFrame(",
    ),
    "unequal": (lambda table: {"heavy": ["EVQ"], "light": []}, "have 0 to 1 cells"),
    "scalars": (lambda table: {"heavy": "EVQ"}, "column 'heavy' is str; expected a list"),
    "a column": (lambda table: pa.chunked_array([["EVQ"]]), "is not a table that can be read"),
    "a number": (lambda table: 3, "int; expected a path, a DataFrame of pandas, Polars"),
}


def test_names_of_antibodies_may_be_in_the_index(case):
    named = case.table.set_index(pd.Index([f"mAb {i}" for i in range(60)], name="antibody"))
    scored = abag.predict(named, case.run, say=False)
    assert scored.index.equals(named.index)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_table_of_plain_rows_is_refused_in_one_line(case, name):
    make, words = REFUSED[name]
    with pytest.raises(TableError) as caught:
        abag.predict(make(case.table), case.run, say=False)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", abag._FUNCTIONS)
def test_every_public_function_takes_say_and_progress(name):
    parameters = inspect.signature(getattr(abag, name)).parameters
    assert parameters["say"].default is None
    assert parameters["progress"].default is False


def test_messages_go_where_the_caller_says_and_nowhere_if_it_says_false(case, tmp_path, capsys):
    lines = []
    abag.embed_table(case.table, tmp_path / "store", say=lines.append, **COMPOSITION)
    assert any("running on CPU" in line for line in lines)
    logger = logging.getLogger("abag test")
    abag.predict(case.table, case.run, say=logger.info)
    abag.embed_table(case.table, tmp_path / "other", say=False, **COMPOSITION)
    assert capsys.readouterr() == ("", "")
    abag.embed_table(case.table, tmp_path / "third", **COMPOSITION)
    assert "running on CPU" in capsys.readouterr().err
    with pytest.raises(abag.OptionError, match=r"^say: 3; expected a function such as print"):
        abag.predict(case.table, case.run, say=3)


def test_messages_of_residues_go_where_the_caller_says_while_they_are_yielded(case, capsys):
    lines = []
    vectors = abag.residues(case.table.head(2), say=lines.append, **COMPOSITION)
    assert len([*vectors]) == 4
    assert capsys.readouterr() == ("", "")


@pytest.mark.ci
def test_python_prints_no_line_that_the_terminal_does_not_print(case, tmp_path, capsys):
    case.table.to_csv(tmp_path / "pairs.csv", index=False)
    store = tmp_path / "store"
    arguments = ["embed", tmp_path / "pairs.csv", "--store", store]
    arguments += ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
    terminal = run_command(*arguments).stderr
    fit = ["fit", tmp_path / "pairs.csv", "--store", store, "--head", "ridge"]
    terminal += run_command(*fit, "--run", tmp_path / "run").stderr
    capsys.readouterr()
    abag.embed_table(tmp_path / "pairs.csv", tmp_path / "again", **COMPOSITION)
    abag.fit(tmp_path / "pairs.csv", store, tmp_path / "run2", head="ridge")
    printed = capsys.readouterr().err.replace("run2", "run").replace("again", "store")
    assert {shape(line) for line in printed.splitlines()} <= {
        shape(line) for line in terminal.splitlines()
    }


def shape(line):
    """Return a line without its numbers, as times differ."""
    return re.sub(r"[0-9][0-9.,]*", "0", line)
