"""Damaged and odd tables of every format are read, or refused with an `AbagError`.

The usual library writes a file from random cells, which is then damaged: bytes, words and lines
are changed before or after compression, also inside the parts of an Excel file, or the file gets
the name of another format. ``python tests/test_fuzz_tables.py FILES SEED`` runs it by hand.
"""

import gzip
import random
import re
import sys
import tempfile
import time
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from marks import in_ci
from reading import FORMATS, read_chunks, read_labels, read_sequences, read_table, read_table_chunks

from abag import AbagError

GOOD = ["EVQLVESGGGLVQ", "DIQMTQSPSSLSA", "MKTAYIAKQR", "evqlves", "EVQ|DIQ"]
ODD = [
    "", "NA", "nan", "8.5", "-1e309", "1e-9", ">7", "<=1e-6", "8,5", "TRUE", "2026-11-22", "é",
    "a\nb", "a\rb", '"', "'", ",", ";", "\t", "=1+1", "#REF!", "IGH", "IGK", "cell1", "0x1",
    "9" * 400, "evq-l", "EVQ X", "QVQ*", "ACGT" * 9, "\u202e",
]  # fmt: skip
NAMES = [
    "heavy", "light", "antigen", "antibody", "pKd", "kd_nm", "censored", "assay", "id", "locus",
    "affinity_type", "sequence_id", "cell_id", "sequence_aa", "sequence_alignment_aa", "sequence",
    "", "heavy",
]  # fmt: skip
WORDS = [
    *(text.encode() for text in [*GOOD, *ODD, *NAMES]), b"\x00", b"\xff\xfe", b"\xef\xbb\xbf",
    b">", b"</c>", b"<f>1</f>", b'r="XFD1048576"', b'r="0"', b'r="99999999999"', b't="s"',
    b't="e"', b"<!DOCTYPE a>", b"PAR1",
]  # fmt: skip
KINDS = ["csv", "tsv", "parquet", "fasta", "airr", "xlsx"]


def some_table(rng):
    names = ["heavy", "light", "antigen", "pKd"]
    if rng.random() < 0.3:
        names = rng.sample([*NAMES, *names], rng.randint(1, 7))
    rows = rng.choice([0, *range(1, 7), *range(1, 7)])
    odd = rng.choice([0, 0, 0.05, 0.3])
    cells = []
    for _ in range(rows):
        cells.append([rng.choice(ODD if rng.random() < odd else GOOD) for _ in names])
    frame = pd.DataFrame(cells, columns=names, dtype=object)
    for name in {"pKd", "kd_nm"} & {*names}:
        frame[name] = [rng.choice(ODD) if rng.random() < odd else 6 + r / 4 for r in range(rows)]
    return frame


def written(rng, kind):
    """Return the bytes of a file as the usual library writes it, and its suffix."""
    frame = some_table(rng)
    out = BytesIO()
    if kind == "fasta":
        ends = rng.choice([["_H", "_antigen"], ["_L", ".VH", "-Ag"], [""], ["", "_H"]])
        names = [f"ab{i}{end}" for i in range(rng.randint(0, 3)) for end in ends]
        lines = [f">{name}\n{rng.choice(GOOD)}\n" for name in names]
        return "".join(lines).encode(), ".fasta"
    if kind == "parquet":
        frame.loc[:, ~frame.columns.duplicated()].astype(str).to_parquet(out)
    elif kind == "xlsx":
        book = openpyxl.Workbook()
        for row in [[*frame], *frame.to_numpy().tolist()]:
            book.active.append(row)
        if rng.random() < 0.1:
            book.create_sheet("b").append([rng.choice(ODD)])
        if rng.random() < 0.1:
            book.active.merge_cells("A1:B2")
        book.save(out)
    elif kind == "airr":
        names = ["sequence_id", "locus", "sequence_aa", "cell_id", "pKd"]
        rows = [
            [str(i), rng.choice(["IGH"] * 40 + ["TRB"]), rng.choice(GOOD), f"c{i}", 7.5]
            for i in range(rng.randint(0, 5))
        ]
        pd.DataFrame(rows, columns=names).to_csv(out, sep="\t", index=False)
        return out.getvalue(), ".tsv"
    else:
        mark = "\t" if kind == "tsv" else rng.choice(",,;")
        frame.to_csv(out, sep=mark, index=False, encoding=rng.choice(["utf-8"] * 19 + ["utf-16"]))
    return out.getvalue(), f".{kind}"


def damaged(rng, data):
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice([1, 1, 4, 40]))
        new = rng.choice([b"", rng.randbytes(end - at), rng.choice(WORDS), data[at:end] * 2])
        data = data[:at] + new + data[end:]
        if rng.random() < 0.05:
            data = data[: rng.randint(0, len(data))]
    return data


def damaged_inside(rng, data):
    with zipfile.ZipFile(BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(
        [name for name in parts if "sheet" in name or "Strings" in name] * 3 + [*parts]
    )
    parts[name] = damaged(rng, parts[name])
    if rng.random() < 0.05:
        del parts[name]
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return out.getvalue()


def make_file(rng, folder):
    kind = rng.choice(KINDS)
    data, suffix = written(rng, kind)
    data = (
        damaged_inside(rng, data) if kind == "xlsx" and rng.random() < 0.7 else damaged(rng, data)
    )
    if rng.random() < 0.15:
        data = gzip.compress(data, 1)
        suffix = f"{suffix}.gz"
        data = damaged(rng, data) if rng.random() < 0.5 else data
    if rng.random() < 0.05:
        suffix = rng.choice([*FORMATS, ".CSV.GZ"])
    path = Path(folder, f"a{suffix}")
    path.write_bytes(data)
    return path


def read_somehow(rng, path):
    """Read a file as one of the commands does; return whether it was accepted."""
    options = {
        "bad_rows": rng.choice(["error", "skip"]),
        "antigen": rng.choice([None, None, "MKT"]),
    }
    kind = rng.choice(["antibody", "antigen"])
    ways = [
        lambda: read_labels(path, **options),
        lambda: [*read_chunks(path, **options, as_written=True)],
        lambda: read_sequences(path, **options, kinds=(kind,)),
        lambda: check_row_counts(path),
    ]
    try:
        rng.choice([ways[0], *ways])()
    except AbagError as error:
        if "\n" in re.sub("\n  (rows? |and )", "", str(error)):
            raise AssertionError(str(error)) from error
        return False
    return True


def check_row_counts(path):
    rows = {len(read_table(path, as_written=as_written).frame) for as_written in (False, True)}
    rows.add(sum(len(chunk.frame) for chunk in read_table_chunks(path, rows=2)))
    assert len(rows) == 1, f"the readers of one file found {rows} rows"


def fuzz(files, seed):
    rng = random.Random(seed)
    counts = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            path = make_file(rng, folder)
            start = time.perf_counter()
            try:
                accepted = read_somehow(rng, path)
            except Exception as error:
                kept = Path(tempfile.mkdtemp(prefix="abag-fuzz-"), path.name)
                path.rename(kept)
                error.add_note(f"file {number} of seed {seed}, kept as {kept}")
                raise
            slowest = max(slowest, time.perf_counter() - start)
            counts[path.suffixes[0].lower(), "read" if accepted else "refused"] += 1
            path.unlink()
    assert slowest < 60
    return counts, slowest


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("files", [80, *in_ci(250), pytest.param(100_000, marks=pytest.mark.slow)])
def test_any_file_is_read_as_a_table_or_refused(files):
    counts, _ = fuzz(files, seed=1)
    assert {outcome for _, outcome in counts} == {"read", "refused"}


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("error")
    print(*fuzz(int(sys.argv[1]), int(sys.argv[2])))
