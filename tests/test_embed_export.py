"""``store export``: files that NumPy, pandas, pyarrow and anndata read back equal."""

import errno
import json
import re
import shutil
import subprocess
import sys

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import TINY, demo_table
from encoding import TINY_CONFIG, save_random_checkpoint
from faults import failing
from hypothesis import given, settings
from hypothesis import strategies as st
from invoke import one_line, run
from marks import in_ci

import abag
from abag import MissingVectors, OptionError, OutputError, open_store

SUFFIXES = [".npz", ".parquet", ".h5ad", ".csv"]


@pytest.fixture(scope="module")
def table():
    """Pairs with the columns that tables of other people have."""
    frame = demo_table().head(60).reset_index(drop=True)
    frame["Kd (ng/ml)"] = np.where(np.arange(60) % 7 == 0, np.nan, np.arange(60) / 3)
    frame["note"] = np.where(np.arange(60) % 5 == 0, None, 'tested, "twice"\nby ÅÄÖ')
    frame["batch"] = np.arange(60) % 4
    frame["binds"] = frame["pKd"] > 7
    return frame


@pytest.fixture(scope="module")
def store(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("export") / "store"
    abag.embed_table(table, path, **TINY)
    return path


def vectors_of(path, names):
    """Read the vectors, (N, D), as users of each format do."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["vectors"]
    if path.suffix == ".parquet":
        return np.stack(pd.read_parquet(path)["vector"])
    if path.suffix == ".h5ad":
        return anndata.read_h5ad(path).X
    return pd.read_csv(path)[names].to_numpy(np.float32)


def column_of(path, name):
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return pd.Series(file[name])
    if path.suffix == ".h5ad":
        return anndata.read_h5ad(path).obs[name].reset_index(drop=True)
    read = pd.read_parquet if path.suffix == ".parquet" else pd.read_csv
    return read(path)[name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_stored_vector_is_read_back_bit_for_bit(store, tmp_path, suffix):
    out = tmp_path / f"vectors{suffix}"
    summary = abag.export_vectors(store, out, kind="antigen", antigen_pooling="cls")
    text = "".join(column_of(out, "antigen_key").astype(str))
    keys = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, 16)
    folder = open_store(store).folder("antigen")
    assert {*map(bytes, keys)} == {*map(bytes, np.concatenate(folder.keys()))}
    names = [f"antigen_cls_{i}" for i in range(summary["width"])]
    assert np.array_equal(vectors_of(out, names), folder.read(keys, "cls"))
    assert np.array_equal(column_of(out, "antigen_length"), folder.read_array(keys, "length", int))
    assert (summary["rows"], summary["dtype"]) == (folder.rows, "float16")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_gives_one_row_per_row_with_its_columns(store, table, tmp_path, suffix):
    out = tmp_path / f"pairs{suffix}"
    summary = abag.export_vectors(store, out, table=table)
    opened = open_store(store)
    antibodies = list(zip(table["heavy"], table["light"], strict=True))
    sides = {
        "antibody": opened.vectors("antibody", antibodies),
        "antigen": opened.vectors("antigen", table["antigen"]),
    }
    expected = np.hstack([*sides.values()])
    names = [f"{kind}_mean_{i}" for kind, x_ND in sides.items() for i in range(x_ND.shape[1])]
    assert np.array_equal(vectors_of(out, names), expected)
    assert summary["width"] == len(names)
    renamed = {"Kd (ng/ml)": "Kd (ng_ml)"} if suffix == ".h5ad" else {}
    for name in table:
        column = column_of(out, renamed.get(name, name))
        if pd.api.types.is_numeric_dtype(table[name]):
            # the last bit of what pandas 2.2 reads may differ
            np.testing.assert_allclose(column.to_numpy(float), table[name], rtol=4e-16)
        else:
            plain = column.astype(object).where(column.notna(), "").tolist()
            assert plain == table[name].fillna("").tolist()


def test_the_types_of_the_columns_are_kept(store, table, tmp_path):
    abag.export_vectors(store, tmp_path / "a.h5ad", table=table)
    abag.export_vectors(store, tmp_path / "a.npz", table=table)
    abag.export_vectors(store, tmp_path / "a.parquet", table=table)
    obs = anndata.read_h5ad(tmp_path / "a.h5ad").obs
    assert obs.dtypes.astype(str)[["pKd", "batch", "binds", "note"]].tolist() == [
        "float64",
        "int64",
        "bool",
        "category",
    ]
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert [file[n].dtype.kind for n in ("pKd", "batch", "binds", "note")] == [*"fibU"]
        assert json.loads(str(file["about"]))["antigen"]["encoder"] == "tiny-esm2"
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert str(schema.field("vector").type).startswith("fixed_size_list<element: halffloat>")
    assert json.loads(schema.metadata[b"abag"])["antibody"]["pooling"] == "mean"


def test_columns_of_any_type_of_arrow_are_exported(store, table, tmp_path):
    pairs = pa.Table.from_pandas(table[["heavy", "light", "antigen"]], preserve_index=False)
    n = len(pairs)
    for name, values in {
        "view": pa.array(["a", None] * (n // 2), pa.string_view()),
        "bytes": pa.array([b"\xff", None] * (n // 2)),
        "time": pa.array([10**13, None] * (n // 2), pa.timestamp("s")),
        "list": pa.array([[1], None] * (n // 2)),
        "truth": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1] * n, pa.int8())),
    }.items():
        pairs = pairs.append_column(name, values)
    pq.write_table(pairs, tmp_path / "a.parquet")
    for suffix in SUFFIXES:
        out = tmp_path / f"out{suffix}"
        abag.export_vectors(store, out, table=tmp_path / "a.parquet")
        for name in ("view", "bytes", "time", "list"):
            texts = map(str, column_of(out, name).tolist())
            filled = [text not in ("", "None", "nan", "NaT") for text in texts]
            assert filled == [True, False] * (n // 2)


def test_anndata_and_plain_h5py_read_the_same_file(store, tmp_path):
    abag.export_vectors(store, tmp_path / "a.h5ad", kind="antibody")
    data = anndata.read_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad") as file:
        assert np.array_equal(file["X"][:], data.X)
    assert data.var_names[0] == "antibody_mean_0"
    assert data.uns["abag"]["antibody"]["encoder"] == "tiny-igt5"
    backed = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")
    assert np.array_equal(backed.X[:3], data.X[:3])
    backed.file.close()


def test_cells_of_a_csv_table_stay_as_written_in_csv(store, table, tmp_path):
    table.assign(id="007", other="NA").to_csv(tmp_path / "in.csv", index=False)
    abag.export_vectors(store, tmp_path / "out.csv", table=tmp_path / "in.csv")
    exported = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert set(exported["id"]) == {"007"}
    assert set(exported["other"]) == {"NA"}


def test_one_row_of_a_sequence_that_is_stored_twice(store, tmp_path, table):
    twice = tmp_path / "twice"
    for dtype in ("float16", "float32"):
        part_store = tmp_path / dtype
        abag.embed_table(table.head(20), part_store, store_dtype=dtype, **TINY)
        run("store", "merge", part_store, "--out", twice)
    folder = open_store(twice).folder("antibody")
    keys = np.concatenate(folder.keys())
    assert len(keys) == 2 * len(np.unique(keys, axis=0))
    abag.export_vectors(twice, tmp_path / "a.npz", kind="antibody")
    with np.load(tmp_path / "a.npz") as file:
        assert len(file["vectors"]) == len(set(file["antibody_key"])) == len(keys) // 2


def test_float32_on_request_and_for_a_store_of_float32(store, table, tmp_path):
    abag.export_vectors(store, tmp_path / "a.npz", kind="antigen", dtype="float32")
    abag.export_vectors(store, tmp_path / "b.npz", kind="antigen")
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert (a["vectors"].dtype, b["vectors"].dtype) == (np.float32, np.float16)
        assert np.array_equal(a["vectors"], b["vectors"])
    abag.embed_table(table.head(9), tmp_path / "wide", store_dtype="float32", **TINY)
    assert abag.export_vectors(tmp_path / "wide", tmp_path / "c.npz", kind="antigen")["dtype"] == (
        "float32"
    )


def test_the_command_prints_what_it_wrote(store, table, tmp_path):
    table.to_csv(tmp_path / "pairs.csv", index=False)
    arguments = ["store", "export", store, "--table", tmp_path / "pairs.csv"]
    arguments += ["--kind", "antigen", "--to", tmp_path / "a.parquet"]
    summary = json.loads(run(*arguments, "--json").stdout)
    assert summary["rows"] == 60
    assert summary["kind"] == "antigen"
    assert summary["bytes"] == (tmp_path / "a.parquet").stat().st_size
    assert "already exists; use --force to overwrite" in one_line(*arguments)
    assert "60 antigen vectors of" in run(*arguments, "--force").stdout


def test_invalid_input_is_refused_in_one_line_and_nothing_is_written(store, table, tmp_path):
    out = tmp_path / "a.npz"
    for error, words, to, options in [
        (OutputError, "not a supported format", tmp_path / "a.pkl", {}),
        (OutputError, "its folder does not exist", tmp_path / "no" / "a.npz", {}),
        (OutputError, "expected the choice of one", out, {}),
        (OptionError, "^kind=.pair.: ", out, {"kind": "pair"}),
        (abag.AbagError, "'max' is not stored", out, {"kind": "antigen", "antigen_pooling": "max"}),
        (
            abag.AbagError,
            "no antigen encoder 'esm9'",
            out,
            {"kind": "antigen", "antigen_encoder": "esm9"},
        ),
        (
            MissingVectors,
            "1 of 5. antibody sequences",
            out,
            {"table": pd.concat([table, table.head(1).assign(heavy="EVQLVE")])},
        ),
        (
            abag.OptionError,
            "^bad_rows, limit: given without table=TABLE; expected it, too",
            out,
            {"kind": "antigen", "limit": 3, "bad_rows": "skip"},
        ),
        (
            abag.OptionError,
            '^antibody_encoder, antibody_pooling with kind="antigen": no vectors of the other',
            out,
            {"kind": "antigen", "antibody_pooling": "heavy_mean", "antibody_encoder": "x"},
        ),
        (OutputError, "'antigen_key' has the name", out, {"table": table.assign(antigen_key=1)}),
        (
            OutputError,
            "several columns called 'a_b'",
            tmp_path / "a.h5ad",
            {"table": table.assign(**{"a/b": 1, "a_b": 2})},
        ),
        (
            abag.AbagError,
            "row 1, .*not a valid residue",
            out,
            {"table": table.assign(heavy=["Z1", *table["heavy"].iloc[1:]])},
        ),
    ]:
        with pytest.raises(error, match=words) as caught:
            abag.export_vectors(store, to, **options)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def test_the_table_is_not_overwritten_even_by_force(store, table, tmp_path):
    table.to_csv(tmp_path / "pairs.csv", index=False)
    (tmp_path / "link.csv").symlink_to("pairs.csv")
    before = (tmp_path / "pairs.csv").read_bytes()
    read = tmp_path / "pairs.csv"
    for options in (
        {"table": read},
        {"table": [table, read]},
        {"table": table, "sequences": [read]},
    ):
        for to in ("pairs.csv", "link.csv"):
            with pytest.raises(OutputError, match="same file as another argument"):
                abag.export_vectors(store, tmp_path / to, force=True, **options)
    assert (tmp_path / "pairs.csv").read_bytes() == before


def test_without_anndata_one_line_says_how_to_install_it(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(OutputError, match="pip install anndata"):
        abag.export_vectors(store, tmp_path / "a.h5ad", kind="antigen")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(store, tmp_path):
    out = tmp_path / "a.npz"
    out.write_bytes(b"old")
    full = failing(tmp_path, errno.ENOSPC, at="rename")
    with full, pytest.raises(OutputError, match="cannot be written"):
        abag.export_vectors(store, out, kind="antigen", force=True)
    assert out.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


FULL_DISK = """
import resource, signal, sys
sys.dont_write_bytecode = True  # else what is imported below is cut for all later processes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from abag.cli import main
main(["store", "export", *sys.argv[2:], "--kind", "antigen"])
"""


@pytest.mark.ci
@pytest.mark.parametrize("suffix", [".h5ad", *in_ci(".npz", ".parquet", ".csv")])
@pytest.mark.parametrize("share", [0.7, *in_ci(0.01, 0.95)])
def test_a_disk_that_fills_up_ends_an_export_with_one_line(store, tmp_path, suffix, share):
    whole = tmp_path / f"whole{suffix}"
    abag.export_vectors(store, whole, kind="antigen")
    room = int(share * whole.stat().st_size)
    whole.unlink()
    command = [sys.executable, "-c", FULL_DISK, str(room), store, "--to", tmp_path / f"a{suffix}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {tmp_path / f'a{suffix}'}: cannot be written (")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_sound_shard_is_refused(store, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    for shard in open_store(copy).folder("antigen").path.glob("*.h5"):
        shard.write_bytes(b"")
    for options in ({"kind": "antigen"}, {"kind": "antigen", "antigen_encoder": "tiny-esm2"}):
        with pytest.raises(OutputError, match=r"holds no vectors \(1 damaged shard\); expected"):
            abag.export_vectors(copy, tmp_path / "a.npz", **options)
    assert not (tmp_path / "a.npz").exists()


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@pytest.mark.ci
@settings(max_examples=8)
@given(st.lists(st.tuples(TEXT, st.none() | TEXT, st.none() | st.floats()), min_size=1, max_size=9))
def test_any_text_and_number_of_a_table_is_read_back(store, table, tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("any")
    frame = table.head(len(rows))[["heavy", "light", "antigen"]].assign(
        one=[row[0] for row in rows],
        two=pd.Series([row[1] for row in rows], dtype=object),
        three=pd.Series([row[2] for row in rows], dtype=float),
    )
    for suffix in (".npz", ".parquet", ".h5ad"):
        out = folder / f"a{suffix}"
        abag.export_vectors(store, out, table=frame, force=True)
        for name in ("one", "two"):
            column = column_of(out, name).astype(object)
            expected = frame[name].fillna("").tolist()
            if suffix == ".npz":  # NumPy drops NUL at the end of a text only
                expected = [text.rstrip("\0") for text in expected]
            assert column.where(column.notna(), "").tolist() == expected
        np.testing.assert_array_equal(column_of(out, "three").to_numpy(float), frame["three"])


@pytest.mark.parametrize("suffix", [".CSV", ".Parquet"])
def test_the_case_of_a_suffix_does_not_matter(store, table, tmp_path, suffix):
    abag.export_vectors(store, tmp_path / f"to{suffix}", table=table, kind="antigen")
    read = pd.read_csv if suffix == ".CSV" else pd.read_parquet
    assert len(read(tmp_path / f"to{suffix}")) == len(table)


def test_what_csv_has_no_form_for_is_written_as_pandas_shows_it(store, table, tmp_path):
    few = table.head(2).assign(
        incubated=pd.to_timedelta([30, 90], unit="min"),
        month=pd.period_range("2024-01", periods=2, freq="M"),
        range=pd.interval_range(0, 2),
        huge=pd.Series([10**30, 1], dtype=object),
    )
    abag.export_vectors(store, tmp_path / "to.csv", table=few, kind="antigen")
    written = pd.read_csv(tmp_path / "to.csv", dtype=str)
    for name in ("incubated", "month", "range", "huge"):
        assert written[name].tolist() == [str(cell) for cell in few[name]]


def test_a_missing_sequence_is_to_be_embedded_with_the_encoder_as_it_was_given(table, tmp_path):
    own = str(save_random_checkpoint(tmp_path / "my model", TINY_CONFIG["tiny-esm2"], seed=3))
    encoder = {"kind": "antigen", "antigen_encoder": own}
    abag.embed_table(table.head(2), tmp_path / "store", **encoder)
    with pytest.raises(MissingVectors, match=f"--antigen-encoder '{re.escape(own)}', "):
        abag.export_vectors(tmp_path / "store", tmp_path / "to.npz", table=table, kind="antigen")
