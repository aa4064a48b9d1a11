"""Every reader of tables finds what the csv module, openpyxl or pyarrow finds in the file.

The oracle knows the rules of docs/how-to/own-table.md and uses no code of abag. Tables have odd
cells, quotes, separators and line ends; some bytes of text files are changed after the header.
``python tests/test_table_oracle.py FILES SEED`` runs it by hand.
"""

import csv
import gzip
import io
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from abag import AbagError
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import read_one_kind, read_pair_chunks, read_pairs
from abag.head.data.label_options import LabelOptions
from abag.head.data.labels import label_pairs

CHAINS = ["EVQLVESGGG", "DIQMTQSPSS", "evqlv ES", "QVQ\nLVQ", "MKTAYIAKQRU", "A" * 40, "WYX"]
ANTIGENS = [*CHAINS, "MKT|ACD", "gg:AA", "MKT | DIQ"]
BAD = ["", "NA", "nan", "None", "EV1Q", "EVQ*", "é", "EVQ-L", "|", "<NA>", "a,b", 'E"V', "E;V"]
NOTES = ["", "x", 'a "b"', "a,b", "a\nb", "a\tb", "1;2", "'", "NA", '""', "é", "  ", "-"]
LABELS = ["", "x", "8,5", "NA", "7.1.2", "--"]
TEXT = (".csv", ".tsv")


def make_rows(rng, kind):
    """Return the names of the columns and the cells of a table."""
    names = ["heavy", "antigen", "pKd", *rng.sample(["light", "note", "more"], rng.randint(0, 3))]
    rng.shuffle(names)
    odd = rng.choice([0, 0, 0.05, 0.3])
    pools = {"light": [*CHAINS, ""], "heavy": CHAINS, "antigen": ANTIGENS}

    def cell(name):
        if name == "pKd":
            return rng.choice(LABELS) if rng.random() < odd else f"{rng.uniform(5, 10):.4f}"
        if name not in pools:
            return rng.choice(NOTES)
        return rng.choice(BAD if rng.random() < odd else pools[name])

    rows = [[cell(name) for name in names] for _ in range(rng.randint(1, 7))]
    return names, rows


def write(rng, folder):
    """Write a table as the usual library does; damage some of the text files after the header."""
    suffix = rng.choice([*TEXT, ".csv", ".parquet", ".xlsx"])
    names, rows = make_rows(rng, suffix)
    path, out = Path(folder, f"a{suffix}"), io.StringIO(newline="")
    if suffix == ".parquet":
        columns = [
            [row[i] if rng.random() < 0.95 else None for row in rows] for i in range(len(names))
        ]
        at = names.index("pKd")
        columns[at] = [
            float(v) if v and re.fullmatch(r"\d+\.\d+", v) else None for v in columns[at]
        ]
        table = pa.table(
            [pa.array(c, pa.float64() if i == at else pa.string()) for i, c in enumerate(columns)],
            names,
        )
        pq.write_table(
            table, path, row_group_size=rng.choice([1, 2, 9]), use_dictionary=rng.random() < 0.5
        )
        return path
    if suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in [names, *rows]:
            book.active.append([v if not re.fullmatch(r"\d+\.\d+", v) else float(v) for v in row])
        book.save(path)
        return path
    writer = csv.writer(
        out, delimiter="\t" if suffix == ".tsv" else rng.choice(",,;\t"),
        lineterminator=rng.choice(["\n", "\n", "\r\n"]),
        quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    )  # fmt: skip
    writer.writerows([names, *rows])
    text = out.getvalue()
    start = text.index("\n") + 1
    for _ in range(rng.choice([0, 0, 0, 1, 2, 4])):
        at = rng.randint(start, len(text))
        end = min(len(text), at + rng.choice([0, 1, 3]))
        text = (
            text[:at] + rng.choice(["", "", '"', ",", "\n", "A", "7", "\r", "\t", ";"]) + text[end:]
        )
    data = (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + text.encode()
    if rng.random() < 0.15:
        path, data = Path(f"{path}.gz"), gzip.compress(data, 1)
    path.write_bytes(data)
    return path


def cells_of(path):
    """Return the rows of a file as dicts of text or None, or None if it cannot be a table."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read().to_pylist()
    if path.suffix == ".xlsx":
        header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        kept = [i for i, name in enumerate(header) if name is not None]
        rows = [
            ["" if row[i] is None else str(row[i]) for i in kept]
            for row in rows
            if any(v not in (None, "") for v in row)
        ]
        names = [header[i] for i in kept]
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            mark = max(",\t;", key=first.count)
            file.seek(0)
            names, *rows, end = csv.reader(io.StringIO(f"{file.read()}\nend", ""), delimiter=mark)
        if end != ["end"]:  # a quotation mark is not closed
            return None
        rows = [row for row in rows if row and not (len(row) == 1 and not row[0].strip(" "))]
        if any(len(row) > len(names) for row in rows):
            return None
        rows = [row + [""] * (len(names) - len(row)) for row in rows]
    missing = STR_NA_VALUES
    return [
        {n: None if v in missing else v for n, v in zip(names, row, strict=True)} for row in rows
    ]


def residues(text):
    """Return a chain as the rules say, or None if it is not valid."""
    text = "".join((text or "").split())
    if not re.fullmatch("[A-Za-z]*", text, re.ASCII) or re.search("[Jj]", text):
        return None
    return re.sub("[UZOB]", "X", text.upper())


def expected(row):
    """Return chains and label of a row; None for what is not valid."""
    heavy, light = residues(row["heavy"]), residues(row.get("light"))
    antibody = (heavy, light) if None not in (heavy, light) and (heavy or light) else None
    antigen = sorted(map(residues, re.split("[|:]", row["antigen"] or "")), key=str)
    antigen = None if None in antigen or "" in antigen else tuple(antigen)
    try:
        label = float(row["pKd"])
    except (TypeError, ValueError):
        label = None
    return antibody, antigen, label


def found_in(table, kinds):
    """Return the chains of each row of what a reader returned."""
    columns = [
        [table.sequences[kind].chains[i] for i in table.sequences[kind].of_row] for kind in kinds
    ]
    return list(zip(*columns, strict=True))


def check(path, rng):
    """Compare every reader with the oracle; return how the file was taken."""
    rows = cells_of(path)
    skip = rng.random() < 0.5
    options = TableOptions(bad_rows="skip" if skip else "error")
    truth = None if rows is None else [expected(row) for row in rows]
    outcomes = []
    for kinds, read in {
        ("antibody", "antigen"): [
            lambda: [read_pairs(path, options)],
            lambda: read_pair_chunks(path, options, only_sequences=True),
            lambda: read_pair_chunks(path, options, as_written=True),
        ],
        ("antibody",): [lambda: [read_one_kind(path, "antibody", options, as_written=True)]],
        ("antigen",): [lambda: [read_one_kind(path, "antigen", options)]],
    }.items():
        want = None
        if truth:
            of_row = [
                tuple(row[("antibody", "antigen").index(kind)] for kind in kinds) for row in truth
            ]
            good = [one for one in of_row if None not in one]
            want = good if good and (skip or len(good) == len(of_row)) else None
        for one in read:
            try:
                got = [row for table in one() for row in found_in(table, kinds)]
            except AbagError:
                got = None
            assert got == want, (kinds, got, want)
            outcomes.append(got is not None)
    check_labels(path, options, truth, skip)
    return outcomes


def check_labels(path, options, truth, skip):
    """Compare the labels of plan, fit, sweep, evaluate and adapt."""
    usable = [row for row in truth or () if None not in row[:2]]
    want = [row for row in usable if row[2] is not None]
    if any(not 4 < row[2] < 12 for row in want):  # damaged; may be taken for another unit
        return
    if not want or (not skip and len(want) < len(truth)):
        want = None
    try:
        labels = label_pairs(
            read_pairs(path, options), LabelOptions(bad_rows=options.bad_rows, replicates="keep")
        )
    except AbagError:
        pairs = None
    else:
        table = labels.table
        pairs = [
            (table.antibodies.chains[a], table.antigens.chains[g], y)
            for a, g, y in zip(labels.antibody, labels.antigen, labels.pkd.tolist(), strict=True)
        ]
    assert sorted(pairs or ()) == sorted(want or ()), (pairs, want)


def fuzz(files, seed):
    rng, counts = random.Random(seed), Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            path = write(rng, folder)
            try:
                outcomes = check(path, rng)
            except Exception as error:
                kept = Path(tempfile.mkdtemp(prefix="abag-oracle-"), path.name)
                path.rename(kept)
                error.add_note(f"file {number} of seed {seed}, kept as {kept}")
                raise
            counts["read" if outcomes[0] else "refused"] += 1
            counts["readings"] += len(outcomes) + 1
            path.unlink()
    return counts


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("files", [150, pytest.param(100_000, marks=pytest.mark.slow)])
def test_every_reader_finds_what_other_software_finds(files):
    counts = fuzz(files, seed=1)
    assert min(counts["read"], counts["refused"]) > 20


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("error")
    print(dict(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
