"""Residue vectors: against transformers by hand, in files that are whole or absent."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from drawn import TINY, demo_table, draw_chain
from encoding import assert_close, find_checkpoint, plan_device
from faults import change_encoders, forbid_encoders, left_by_the_dead
from invoke import one_line
from transformers import EsmModel, T5EncoderModel

import abag
from abag import DeviceError, EncoderError, OptionError, OutputError

RNG = np.random.default_rng(3)
ESM_IDS = dict(zip("LAGVSERTIDPKQNFYMHWCX", range(4, 25), strict=True))
T5_IDS = dict(zip("ALGVSREDTIPKFQNYMHWCX", range(3, 24), strict=True))


@torch.no_grad()
def esm_states(chain):
    """Every residue's vector from transformers itself, (L, 64)."""
    model = EsmModel.from_pretrained(find_checkpoint("tiny-esm2").folder).eval()
    ids = torch.tensor([[0, *(ESM_IDS[letter] for letter in chain), 2]])
    return model(input_ids=ids).last_hidden_state[0, 1:-1].numpy()


@torch.no_grad()
def igt5_states(heavy, light):
    """The vectors of heavy, then of light residues, from transformers itself."""
    model = T5EncoderModel.from_pretrained(find_checkpoint("tiny-igt5").folder).eval()
    heavy_ids = [T5_IDS[letter] for letter in heavy]
    light_ids = [T5_IDS[letter] for letter in light]
    separator = [1] if heavy and light else []
    ids = heavy_ids + separator + light_ids
    states_LD = model(input_ids=torch.tensor([[*ids, 1]])).last_hidden_state[0].numpy()
    is_residue = np.array([i != 1 for i in [*ids, 1]])
    return states_LD[is_residue]


def encoded(table, **options):
    """The vectors of residues by kind and chains, in float32."""
    vectors = abag.residues(table, **TINY, dtype="float32", **options)
    return {(residues.kind, *residues.chains): residues.vectors for residues in vectors}


def test_residues_are_those_of_transformers_in_the_order_of_chains():
    pairs = [(draw_chain(RNG, 118), draw_chain(RNG, 107)), (draw_chain(RNG, 30), ""), ("", "DIQ")]
    three_strands = "|".join(draw_chain(RNG, n) for n in (9, 40, 7))
    antigens = [three_strands, draw_chain(RNG, 1)]
    table = pd.DataFrame(pairs, columns=["heavy", "light"])
    table["antigen"] = [*antigens, antigens[0]]
    ours = encoded(table)
    assert len(ours) == 5
    for heavy, light in pairs:
        assert_close(ours["antibody", heavy, light], igt5_states(heavy, light))
    for antigen in antigens:
        chains = sorted(antigen.split("|"))
        expected = np.concatenate([esm_states(chain) for chain in chains])
        assert_close(ours["antigen", *chains], expected)


@pytest.mark.parametrize("batch_tokens", [None, 1100])  # windows in one batch, or in several
@pytest.mark.parametrize("backend", ["packed", "reference"])
def test_residues_in_several_windows_have_the_mean_of_their_vectors(batch_tokens, backend):
    long = draw_chain(RNG, 2500)
    short = draw_chain(RNG, 20)
    total_LD = np.zeros((2500, 64))
    windows_L = np.zeros(2500)
    for start in (0, 511, 1022, 1533):
        total_LD[start : start + 1022] += esm_states(long[start : start + 1022])
        windows_L[start : start + 1022] += 1
    mean_LD = total_LD / windows_L[:, None]
    table = pd.DataFrame({"antigen": [short, f"{long}|{short}"]})
    options = {"antigen_backend": backend, "batch_tokens": batch_tokens}
    ours = encoded(table, kind="antigen", **options)
    parts = {long: mean_LD, short: esm_states(short)}
    assert_close(ours["antigen", short], parts[short])
    chains = sorted([long, short])
    assert_close(ours["antigen", *chains], np.concatenate([parts[chain] for chain in chains]))


def test_the_longest_sequence_comes_first_with_its_row():
    table = pd.DataFrame({"antigen": ["MK", "MKTAY", "MK", "MKT"]})
    residues = list(abag.residues(table, kind="antigen", antigen_encoder="tiny-esm2"))
    assert [(sequence.row, sequence.chains) for sequence in residues] == [
        (2, ("MKTAY",)),
        (4, ("MKT",)),
        (1, ("MK",)),
    ]
    assert {sequence.vectors.dtype for sequence in residues} == {np.dtype("float16")}


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def table():
    return demo_table().head(150)


def read_files(out):
    """The chains, key, row and vectors of every sequence by its file and place."""
    sequences = {}
    for path in sorted(out.glob("*.h5")):
        with h5py.File(path) as file:
            ends = file["offsets"][:]
            for place, text in enumerate(file["sequence"].asstr()[:]):
                vectors = file["vectors"][ends[place] : ends[place + 1]]
                sequences[path.name, place] = text, int(file["row"][place]), vectors
    return sequences


def test_files_hold_what_is_yielded_and_rows_say_where(table, tmp_path):
    out = tmp_path / "out"
    summary = abag.export_residues(table, out, **TINY, dtype="float32", file_mb=2)
    files = read_files(out)
    yielded = encoded(table)
    assert summary["antibodies"]["files"] == summary["antibodies"]["written"] > 2
    assert len(files) == len(yielded)
    assert summary["antibodies"]["residues"] == sum(
        len(vectors) for (kind, *_), vectors in yielded.items() if kind == "antibody"
    )
    for text, _, vectors in files.values():
        kind = "antibody" if ("antibody", *text.split("|")) in yielded else "antigen"
        assert_close(vectors, yielded[kind, *text.split("|")])
        assert len(vectors) == len(text.replace("|", ""))
    rows = pd.read_csv(out / "rows.csv")
    assert len(rows) == len(table)
    for at, row in rows.iterrows():
        heavy, light, antigen = table.loc[at, ["heavy", "light", "antigen"]]
        text, first, _ = files[row["antibody_file"], row["antibody_place"]]
        assert text == f"{heavy}|{light}"
        assert first <= row["row"]
        stored_antigen = files[row["antigen_file"], row["antigen_place"]][0]
        assert stored_antigen == "|".join(sorted(antigen.split("|")))


def test_a_second_run_writes_only_what_is_missing_or_damaged(table, tmp_path):
    out = tmp_path / "out"
    options = {**TINY, "file_mb": 1, "kind": "antibody"}
    first = abag.export_residues(table, out, **options)
    before = read_files(out)
    names = sorted(path.name for path in out.glob("*.h5"))
    (out / names[1]).unlink()
    cut = (out / names[2]).read_bytes()[:-100_000]
    (out / names[2]).write_bytes(cut)
    left = (out / names[0]).stat().st_mtime_ns
    again = abag.export_residues(table, out, **options)
    assert first["antibodies"]["written"] == len(names) >= 3
    assert again["antibodies"]["written"] == 2
    assert (out / names[0]).stat().st_mtime_ns == left
    after = read_files(out)
    assert before.keys() == after.keys()
    for place, (text, row, vectors) in before.items():
        assert after[place][:2] == (text, row)
        np.testing.assert_allclose(after[place][2], vectors, rtol=2e-3, atol=2e-3)
    state = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    third = abag.export_residues(table, out, **options)
    assert third["antibodies"]["written"] == 0
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == state


def test_a_full_disk_is_refused_before_anything_is_encoded(table, tmp_path, monkeypatch, said):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    forbid_encoders(monkeypatch)
    words = r'needs 6\.\d MB for residue vectors, and 1\.0 MB are free.*dtype="float16", limit'
    with pytest.raises(OutputError, match=words) as caught:
        abag.export_residues(table, tmp_path / "out", **TINY, dtype="float32", progress=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("change", "words"), [
    ({"dtype": "float32"}, "begun with dtype float16, now float32"),
    ({"limit": 5}, "begun with antibody sequences 8, now 5"),
    ({"antibody_encoder": "composition"}, "begun with antibody fingerprint "),
    ({"kind": "antigen"}, "begun with antigen fingerprint nothing, now "),
    ({"file_mb": 3}, "begun with file_mb 256, now 3"),
])  # fmt: skip
def test_other_sequences_or_options_are_refused_and_the_files_left(tmp_path, change, words):
    out = tmp_path / "out"
    options = {**TINY, "kind": "antibody"}
    table = demo_table().drop_duplicates(["heavy", "light"]).head(8)
    abag.export_residues(table, out, **options)
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(OutputError, match=words):
        abag.export_residues(table, out, **options | change)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_the_same_sequences_in_other_rows_are_another_table(tmp_path):
    options = {"kind": "antigen", "antigen_encoder": "tiny-esm2"}
    abag.export_residues(pd.DataFrame({"antigen": ["MKT", "MK"]}), tmp_path / "out", **options)
    again = pd.DataFrame({"antigen": ["MKT", "MK", "MKT"]})
    with pytest.raises(OutputError, match="begun with rows "):
        abag.export_residues(again, tmp_path / "out", **options)


def test_a_run_that_was_killed_before_its_first_file_is_begun_again(table, tmp_path):
    partial = left_by_the_dead(tmp_path, "residues")
    partial.write_text("{")
    abag.export_residues(table, tmp_path, **TINY)
    assert not partial.exists()


def test_a_folder_of_other_files_or_a_cut_policy_is_refused(table, tmp_path):
    (tmp_path / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(OutputError, match=r"holds cat\.jpg and no residues; expected a new folder"):
        abag.export_residues(table, tmp_path, **TINY)
    for file in (tmp_path / "cat.jpg", "/dev/null"):
        with pytest.raises(OutputError, match="is a file; expected a new folder"):
            abag.export_residues(table, file, **TINY)
    with pytest.raises(OptionError, match=r"would have no vectors; expected window or error"):
        abag.export_residues(table, tmp_path / "out", **TINY, long_antigens="truncate")
    table.loc[0, "antigen"] = "MKV" * 500
    with pytest.raises(
        abag.AbagError,
        match=r"1 antigen with a chain of more than 1,022 residues \(longest 1,500\)",
    ):
        abag.export_residues(table, tmp_path / "out", **TINY, long_antigens="error")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat.jpg"]


def test_a_write_that_fails_is_one_line_and_the_earlier_files_stay(table, tmp_path, monkeypatch):
    written = []
    real = Path.write_bytes

    def fails_third(path, content):
        if "antibody" in path.name:
            written.append(path)
            if len(written) == 3:
                raise OSError(28, "No space left on device", str(path))
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", fails_third)
    with pytest.raises(OutputError, match=r"antibody-00002\.h5: cannot .*No space"):
        abag.export_residues(table, tmp_path / "out", **TINY, file_mb=1)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["antibody-00000.h5", "antibody-00001.h5", "residues.json", "rows.csv"]
    monkeypatch.undo()
    again = abag.export_residues(table, tmp_path / "out", **TINY, file_mb=1)
    assert again["antibodies"]["written"] == again["antibodies"]["files"] - 2


def limit_batches(monkeypatch):
    """Let batches of more than 700 tokens run out of memory; return the list of all sizes."""
    sizes = []

    def full(encode, batch):
        sizes.append(len(batch.ids))
        if sizes[-1] > 700:
            raise torch.OutOfMemoryError
        return encode(batch)

    change_encoders(monkeypatch, full)
    return sizes


def test_residues_survive_batches_that_do_not_fit(table, monkeypatch):
    expected = encoded(table)
    sizes = limit_batches(monkeypatch)
    ours = encoded(table)
    assert max(sizes) > 700
    assert ours.keys() == expected.keys()
    for name, vectors in ours.items():
        np.testing.assert_allclose(vectors, expected[name], rtol=1e-4, atol=1e-5)
    table.loc[3, "antigen"] = "MKV" * 300
    with pytest.raises(DeviceError, match=r"row 4: antigen MKVMKV.*even alone; what was yielded"):
        encoded(table, kind="antigen")


def test_a_value_that_float16_cannot_hold_is_refused_by_row(monkeypatch):
    change_encoders(monkeypatch, lambda encode, batch: encode(batch) * 1e6)
    table = pd.DataFrame({"antigen": ["MKT"]})
    residues = abag.residues(table, kind="antigen", antigen_encoder="tiny-esm2")
    with pytest.raises(EncoderError, match=r"row 1: antigen MKT: .* Give --dtype float32"):
        next(residues)
    wide = encoded(table, kind="antigen")
    assert float(np.abs(next(iter(wide.values()))).max()) > 65504


def test_the_command_says_the_size_and_prints_one_line_on_errors(table, tmp_path, capsys):
    path = tmp_path / "pairs.csv"
    out = tmp_path / "out"
    table.to_csv(path, index=False)
    abag.export_residues(path, out, **TINY, progress=True)
    said = capsys.readouterr().err
    residues = table["antigen"].drop_duplicates().str.replace("|", "").str.len().sum()
    assert f"{residues:,} residues of" in said
    assert " MB to write, " in said
    assert "begun with dtype float16" in one_line(
        "residues",
        path,
        "--out",
        out,
        "--dtype",
        "float32",
        "--antibody-encoder",
        "tiny-igt5",
        "--antigen-encoder",
        "tiny-esm2",
    )


@pytest.mark.gpu
def test_residues_of_a_gpu_are_those_of_the_cpu(table):
    table.loc[0, "antigen"] = "MKV" * 500
    exact = encoded(table, device="cpu")
    ours = encoded(table, device="cuda", precision="fp32")
    half = encoded(table, device="cuda")
    assert plan_device("cuda").precision in ("bf16", "fp16")
    for name, vectors in exact.items():
        np.testing.assert_allclose(ours[name], vectors, rtol=1e-3, atol=1e-3)
        error = np.linalg.norm(half[name] - vectors) / np.linalg.norm(vectors)
        assert error < 3e-2


def test_what_happens_while_vectors_are_yielded_is_told_where_the_caller_says(table, monkeypatch):
    sizes = limit_batches(monkeypatch)
    lines = []
    assert len([*abag.residues(table, say=lines.append, **TINY)]) > 0
    assert max(sizes) > 700
    assert any("out of memory with" in line for line in lines)
