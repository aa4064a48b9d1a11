"""Stage one as a whole, on the tiny encoders."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import COMPOSITION, TINY, demo_table
from embedding import assert_same_vectors, start_embed, wait_for_shards
from encoding import change_weights, find_checkpoint
from faults import change_encoders, forbid_encoders, host_name
from invoke import PLAIN_ENCODERS, TINY_ENCODERS, one_line
from marks import in_ci
from stores import open_shard

import abag
from abag import DeviceError, EncoderError, OptionError, embed_table
from abag.core.device import torch_threads
from abag.embed import job
from abag.embed.encoders.families import _ResidueComposition
from abag.embed.tables.chains import antibody, keys_array


@pytest.fixture
def table():
    return demo_table().head(30)


def stored(store, table, kind="antibody", pooling="mean"):
    opened = abag.open_store(store)
    if kind == "antigen":
        return opened.vectors("antigen", list(table["antigen"]), pooling=pooling)
    chains = [(h, light or "") for h, light in zip(table["heavy"], table["light"], strict=True)]
    return opened.vectors("antibody", chains, pooling=pooling)


@pytest.mark.parametrize(
    ("encoder", "error"),
    [(Path("no-such-folder"), EncoderError), (None, OptionError), (3, OptionError)],
)
def test_an_encoder_is_named_by_a_text_or_a_path(table, tmp_path, encoder, error):
    with pytest.raises(error, match=r"no-such-folder|^antibody_encoder: .* expected a string"):
        embed_table(table, tmp_path / "store", antibody_encoder=encoder)


def test_composition_is_counted_in_one_thread_and_others_keep_theirs(table, tmp_path, monkeypatch):
    seen = set()
    pool = _ResidueComposition.pool

    def counted(*given):
        seen.add(torch.get_num_threads())
        return pool(*given)

    monkeypatch.setattr(_ResidueComposition, "pool", counted)
    with torch_threads(2):
        embed_table(table, tmp_path / "store", **COMPOSITION)
        assert torch.get_num_threads() == 2
    assert seen == {1}


def test_a_second_run_encodes_nothing_and_leaves_every_file_as_it_was(table, tmp_path):
    first = embed_table(table, tmp_path / "store", **TINY)
    before = {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()}
    again = embed_table(table, tmp_path / "store", **TINY)
    assert first["antibodies"]["encoded"] == first["antibodies"]["unique"] > 0
    assert again["antibodies"]["encoded"] == again["antigens"]["encoded"] == 0
    assert again["antibodies"]["reused"] == first["antibodies"]["unique"]
    assert {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()} == before


def test_a_run_without_anything_to_encode_removes_what_dead_processes_left(table, tmp_path):
    embed_table(table, tmp_path / "store", **COMPOSITION)
    folder = next((tmp_path / "store").glob("antibody-*"))
    dead = [
        place / f"a.0123.{host_name()}.999999999.partial" for place in (tmp_path / "store", folder)
    ]
    living = folder / f"a.0123.{host_name()}.{os.getpid()}.partial"
    for path in (*dead, living):
        path.touch()
    assert not embed_table(table, tmp_path / "store", **COMPOSITION)["antibodies"]["encoded"]
    assert [path.exists() for path in (*dead, living)] == [False, False, True]


@pytest.mark.ci
def test_torch_is_not_imported_where_nothing_is_missing(table, tmp_path):
    table.to_csv(tmp_path / "pairs.csv", index=False)
    embed_table(table, tmp_path / "store", **TINY)
    code = (
        "import sys; from abag.embed.embed import embed_table\n"
        f"found = embed_table('pairs.csv', 'store', **{TINY})\n"
        "assert found['antibodies']['reused'] and not found['antibodies']['encoded']\n"
        "assert not {'torch', 'transformers', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_table_is_refused_before_an_encoder_is_loaded(table, tmp_path, monkeypatch):
    forbid_encoders(monkeypatch)
    table.loc[29, "antigen"] = "M*K"
    with pytest.raises(abag.AbagError, match="row 30"):
        embed_table(table, tmp_path / "store", **TINY)
    assert not (tmp_path / "store").exists()


def test_a_grown_reordered_and_duplicated_table_encodes_only_what_is_new(table, tmp_path):
    few = embed_table(table, tmp_path / "store", limit=10, **TINY)
    grown = pd.concat([table, table]).sample(frac=1, random_state=0)
    more = embed_table(grown, tmp_path / "store", **TINY)
    assert more["antibodies"]["reused"] == few["antibodies"]["unique"]
    assert more["antibodies"]["encoded"] == (
        more["antibodies"]["unique"] - few["antibodies"]["unique"]
    )
    assert more["rows"] == 60


def test_a_resumed_store_equals_an_unbroken_one_within_rounding(table, tmp_path):
    embed_table(table, tmp_path / "whole", store_dtype="float32", **TINY)
    embed_table(table, tmp_path / "broken", store_dtype="float32", limit=7, **TINY)
    embed_table(table, tmp_path / "broken", store_dtype="float32", batch_tokens=600, **TINY)
    for kind, pooling in (("antibody", "mean"), ("antibody", "light_mean"), ("antigen", "cls")):
        whole, broken = (stored(tmp_path / s, table, kind, pooling) for s in ("whole", "broken"))
        np.testing.assert_allclose(broken, whole, rtol=1e-4, atol=1e-5)


def test_vectors_do_not_depend_on_how_long_antigens_are_cut_over_batches(tmp_path):
    long = "ACDEFGHIKLMNPQRSTVWY" * 150
    table = pd.DataFrame({"heavy": ["EVQL"], "light": ["DIQM"], "antigen": [f"{long}|MKT"]})
    for name, budget in (("one", 9000), ("many", 1024)):
        embed_table(table, tmp_path / name, batch_tokens=budget, store_dtype="float32", **TINY)
    whole, many = (stored(tmp_path / n, table, "antigen") for n in ("one", "many"))
    np.testing.assert_allclose(many, whole, rtol=1e-4, atol=1e-6)


def test_absent_chains_are_zero_and_flagged(tmp_path):
    table = pd.DataFrame({"heavy": ["EVQLV", ""], "light": ["", "DIQMT"], "antigen": ["MK", "MK"]})
    embed_table(table, tmp_path / "store", **TINY)
    light = stored(tmp_path / "store", table, pooling="light_mean")
    assert not light[0].any()
    assert light[1].any()
    folder = abag.open_store(tmp_path / "store").folder("antibody")
    keys = keys_array("antibody", [antibody("EVQLV"), antibody("", "DIQMT")])
    assert folder.read_array(keys, "has_light", np.uint8).tolist() == [0, 1]
    assert folder.read_array(keys, "length", np.int32).tolist() == [5, 5]


def refused(tmp_path, *arguments):
    """Return the error of a command that writes nothing."""
    line = one_line("embed", *arguments, "--store", tmp_path / "store")
    assert not (tmp_path / "store").exists()
    return line


def write(tmp_path, text):
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("options", "heavy", "antigen", "words"), [
    (["--antibody-encoder", "igt6"], "EVQL", "MKT", "igt6"),
    (["--device", "cpu", "--attention", "varlen"], "EVQL", "MKT", "needs a CUDA device"),
    (["--long-antigens", "error"], "EVQL", "E" * 1500, "1,500"),
])  # fmt: skip
def test_what_an_encoder_cannot_do_is_refused_before_the_store_is_made(
    tmp_path, options, heavy, antigen, words
):
    path = write(tmp_path, f"heavy,light,antigen\n{heavy},DIQ,{antigen}\n")
    assert words in refused(tmp_path, path, *TINY_ENCODERS, *options)


def test_mixed_precision_is_said(table, tmp_path, capsys):
    embed_table(table, tmp_path / "store", limit=5, precision="fp32", **TINY)
    embed_table(table, tmp_path / "store", precision="bf16", progress=True, **TINY)
    assert "begun in fp32, continued in bf16" in capsys.readouterr().err


def content(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize(("rows", "said"), [
    (20, "stored antigens keep their float16 vectors\n"),
    (60, "stored antigens keep their float16 vectors; those encoded now are stored as float32"),
])  # fmt: skip
def test_stored_vectors_of_another_type_are_reused_and_reported(tmp_path, capsys, rows, said):
    embed_table(demo_table().head(20), tmp_path, progress=True, **TINY)
    assert "keep their" not in capsys.readouterr().err
    options = {"store_dtype": "float32", "progress": True}
    summary = embed_table(demo_table().head(rows), tmp_path, **options, **TINY)
    assert summary["antigens"]["reused"] > 0
    assert said in capsys.readouterr().err


def test_a_refusal_of_one_encoder_makes_no_folder_for_the_other(table, tmp_path):
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "tiny-esm2"}
    embed_table(table, tmp_path / "store", limit=5, layers=(1,), **encoders)
    before = content(tmp_path)
    with pytest.raises(abag.AbagError, match="begun with layers=1"):
        embed_table(table, tmp_path / "store", layers=(2,), **TINY)
    assert content(tmp_path) == before


@pytest.mark.parametrize(("name", "change", "match"), [
    ("model.safetensors", lambda content: content[:-9], ": cannot be read .*may be incomplete"),
    ("config.json", lambda _: b'{"model_type": "es', ": not valid JSON"),
])  # fmt: skip
def test_an_antigen_encoder_that_cannot_be_loaded_is_refused_before_antibodies_are_encoded(
    tmp_path, name, change, match
):
    folder = shutil.copytree(find_checkpoint("tiny-esm2").folder, tmp_path / "esm")
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    path = write(tmp_path, "heavy,light,antigen\nEVQL,DIQ,MKT\n")
    line = refused(tmp_path, path, "--antibody-encoder", "tiny-igt5", "--antigen-encoder", folder)
    assert re.search(name + match, line), line


def test_each_encoder_is_identified_and_checked_once(table, tmp_path, monkeypatch):
    folders = [
        shutil.copytree(find_checkpoint(name).folder, tmp_path / name)
        for name in ("tiny-igt5", "tiny-esm2")
    ]
    read_paths = []
    read_text = Path.read_text

    def noted(path, **options):
        read_paths.append(path)
        return read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", noted)
    embed_table(table, tmp_path / "store", *map(str, folders))
    once = [folder / name for folder in folders for name in ("config.json", "vocab.json")]
    assert [path for path in read_paths if path.parent in folders] == once


@pytest.mark.parametrize(
    ("value", "match"),
    [(float("nan"), "returned NaN or infinity.*fp32"), (7e4, 'exceeds .* store_dtype="float32"')],
)
def test_what_cannot_be_stored_stops_the_run_and_names_the_sequence(
    table, tmp_path, monkeypatch, value, match
):
    def broken(_encode, batch):
        out = torch.ones(len(batch.ids), 4)
        out[batch.offsets[2] : batch.offsets[3]] = value
        return out

    change_encoders(monkeypatch, broken)
    with pytest.raises(EncoderError, match=f"row [0-9]+: antibody .*{match}"):
        embed_table(table, tmp_path / "store", batch_tokens=1024, **TINY)


@pytest.mark.ci
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *in_ci(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
)
def test_a_stopped_run_goes_on_without_encoding_any_committed_sequence_twice(tmp_path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, which the run respects")
    table = demo_table().head(120)
    store = tmp_path / "store"
    process = start_embed(tmp_path, 120)
    wait_for_shards(store, process, 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), err
    committed = {p.relative_to(store): p.read_bytes() for p in store.rglob("*.h5")}
    safe = sum(folder.rows for folder in abag.open_store(store).folders())
    assert safe > 0
    resumed = embed_table(table, store, **COMPOSITION)
    assert resumed["antibodies"]["reused"] + resumed["antigens"]["reused"] == safe
    for name, content in committed.items():
        assert (store / name).read_bytes() == content
    embed_table(table, tmp_path / "whole", **COMPOSITION)
    assert_same_vectors(store, tmp_path / "whole")


def test_skipped_rows_are_listed_with_their_text_and_reason(tmp_path, capsys):
    table = pd.DataFrame(
        {
            "antibody": ["QVQ|DIQ", "EVQ|DIV|DIV", "QVQ|DIQ", "EVQ|DIV|DIV"],
            "antigen": ["MK", "MK", "M*K", "MKT"],
        }
    )
    options = {"bad_rows": "skip", "skipped": str(tmp_path / "skipped.csv"), "progress": True}
    for _ in range(2):  # an older list is replaced
        summary = embed_table(table, tmp_path / "store", **COMPOSITION, **options)
    assert summary["skipped_rows"] == 3
    said = "unsure domains: 2 rows, 1 antibody; unknown residue: 1 row, 1 antigen"
    assert f"3 bad rows skipped ({said})" in capsys.readouterr().err
    listed = pd.read_csv(tmp_path / "skipped.csv")
    assert listed[["row", "kind", "reason", "text"]].to_numpy().tolist() == [
        [2, "antibody", "unsure domains", "EVQ|DIV|DIV"],
        [3, "antigen", "unknown residue", "M*K"],
        [4, "antibody", "unsure domains", "EVQ|DIV|DIV"],
    ]
    assert "has 3 chains; expected heavy|light" in listed["error"][0]


def test_a_list_of_skipped_rows_replaces_no_other_file(table, tmp_path):
    other = tmp_path / "results.csv"
    other.write_text("a,b\n")
    with pytest.raises(abag.AbagError, match="already exists and is not a list of skipped rows"):
        embed_table(table, tmp_path / "store", **TINY, bad_rows="skip", skipped=other)
    assert other.read_text() == "a,b\n"
    with pytest.raises(abag.AbagError, match=r"^skipped: no row is skipped"):
        embed_table(table, tmp_path / "store", **TINY, skipped=tmp_path / "skipped.csv")


def raise_for(monkeypatch, is_large, error):
    """Let every encoder raise an error for batches that are too large."""

    def small(encode, batch):
        if is_large(batch):
            raise error
        return encode(batch)

    change_encoders(monkeypatch, small)


@pytest.mark.parametrize(("options", "batches"), [({}, 1), ({"batch_tokens": 1_000}, 4)])
def test_composition_counts_many_sequences_at_a_time(tmp_path, monkeypatch, options, batches):
    heavies = ["EVQLV" * 20 + "ACDEFGHIKLMNPQRSTVWY"[i] for i in range(20)]
    table = pd.DataFrame({"heavy": heavies, "light": "DIQMT" * 15, "antigen": "MKTAYIAK" * 5})
    counted = []
    pool = _ResidueComposition.pool
    monkeypatch.setattr(
        _ResidueComposition, "pool", lambda self, batch: counted.append(batch) or pool(self, batch)
    )
    embed_table(table, tmp_path / "store", "composition", "composition", **options)
    assert len(counted) == batches + 1  # that of the antigen


def test_running_out_of_memory_halves_the_batch_and_goes_on(table, tmp_path, monkeypatch, capsys):
    sizes = []
    raise_for(
        monkeypatch,
        lambda batch: sizes.append(len(batch.ids)) or sizes[-1] > 700,
        torch.OutOfMemoryError(),
    )
    embed_table(table, tmp_path / "store", **TINY)
    assert max(sizes) > 700
    said = capsys.readouterr().err
    assert "out of memory with 2,048 tokens per batch; continuing with 1,024" in said
    monkeypatch.undo()
    embed_table(table, tmp_path / "whole", **TINY)
    np.testing.assert_allclose(
        stored(tmp_path / "store", table), stored(tmp_path / "whole", table), rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError(), MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"batch_tokens": 100_000}])
def test_a_sequence_that_does_not_fit_even_alone_is_named(
    table, tmp_path, monkeypatch, error, options
):
    raise_for(monkeypatch, lambda batch: batch.max_length > 5000, error)
    frame = table.copy()
    frame.loc[3, "heavy"] = "QVQ" * 20_000
    with pytest.raises(DeviceError, match=r"row 4: antibody QVQ.* even alone; the seq") as caught:
        embed_table(frame, tmp_path / "store", **TINY | options)
    assert "\n" not in str(caught.value)


def test_a_shard_with_a_flipped_bit_is_encoded_again_by_the_next_run(table, tmp_path, capfd):
    embed_table(table, tmp_path / "store", **TINY)
    before = stored(tmp_path / "store", table)
    shard = next((tmp_path / "store").glob("antibody-*/*.h5"))
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    repaired = embed_table(table, tmp_path / "store", **TINY)
    assert repaired["antibodies"]["encoded"] == repaired["antibodies"]["unique"]
    assert repaired["antigens"]["encoded"] == 0
    open_shard(shard).check()  # the same vectors have the same name: it is sound again
    np.testing.assert_array_equal(stored(tmp_path / "store", table), before)


def test_a_folder_that_is_not_a_store_is_refused_and_left_alone(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    path = write(tmp_path, "heavy,light,antigen\nEVQL,DIQ,MKT\n")
    assert "photos" in one_line("embed", path, "--store", tmp_path / "photos", *PLAIN_ENCODERS)
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_missing_weight_stops_the_run_after_what_was_encoded_before(table, tmp_path):
    folder = shutil.copytree(find_checkpoint("tiny-esm2").folder, tmp_path / "esm")
    lost = "esm.encoder.layer.1.output.dense.weight"
    change_weights(folder, lambda tensors: {n: x for n, x in tensors.items() if n != lost})
    with pytest.raises(abag.AbagError, match=r"layer.1.output.dense.weight is missing; the downl"):
        embed_table(table, tmp_path / "store", "composition", str(folder))
    again = embed_table(table, tmp_path / "store", "composition", "composition")
    assert again["antibodies"]["encoded"] == 0


def test_the_bar_counts_tokens_as_the_longest_sequences_come_first(tmp_path, monkeypatch):
    drawn = []

    make_bar = job.KindJob.bar

    def token_bar(kind_job, total, *, shown):
        drawn.append(make_bar(kind_job, total, shown=shown))
        updates.append([])
        monkeypatch.setattr(drawn[-1], "update", updates[-1].append)
        totals.append(total)
        return drawn[-1]

    updates = []
    totals = []
    monkeypatch.setattr(job.KindJob, "bar", token_bar)
    table = demo_table().head(40)
    table["antigen"] += "A" * 300 + np.where(np.arange(40) == 7, "G" * 2000, "")  # cut into windows
    embed_table(table, tmp_path / "store", batch_tokens=1000, **TINY)
    assert [sum(of_bar) for of_bar in updates] == totals
    assert all(len(of_bar) > 3 for of_bar in updates)
