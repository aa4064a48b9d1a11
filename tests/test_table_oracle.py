"""Every command finds in a table what csv, openpyxl, pyarrow and plain definitions find in it.

Tables of all formats have odd cells, quotes, separators and line ends; some characters of text
files are changed. Each file is read in all ways that commands read tables; each fortieth, with
more rows, is also given to embed, plan, fit, predict, evaluate and adapt. By hand:
``python tests/test_table_oracle.py FILES SEED --jobs J``.
"""

import random
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import many
import oracle_files
import pytest
from marks import in_ci
from oracle_commands import Commands
from reading import read_chunks, read_labels, read_sequences

from abag import AbagError

COMMANDS_EVERY = 40
"""Of so many files, one is given to the commands."""


def found_in(table, kinds):
    """Return the chains of each row of what a reader returned."""
    columns = []
    for kind in kinds:
        sequences = table.sequences[kind]
        columns.append([sequences.chains[i] for i in sequences.of_row])
    return list(zip(*columns, strict=True))


def check_sequences(path, bad_rows, truth, antigens, *, may_be_names):
    """Compare every reader of sequences with the oracle; return which of them accepted the file.

    None: a column was taken for one of names, which it may be.
    """
    outcomes = []
    for kinds, read in {
        ("antibody", "antigen"): [
            lambda: [read_sequences(path, bad_rows=bad_rows)],
            lambda: read_chunks(path, bad_rows=bad_rows),
            lambda: read_chunks(path, bad_rows=bad_rows, as_written=True),
        ],
        ("antibody",): [
            lambda: [read_sequences(path, bad_rows=bad_rows, kinds=("antibody",), as_written=True)]
        ],
        ("antigen",): [lambda: [read_sequences(path, bad_rows=bad_rows, kinds=("antigen",))]],
    }.items():
        want = None
        rows = antigens if kinds == ("antigen",) else truth
        if rows:
            columns = [("antibody", "antigen").index(kind) for kind in kinds]
            of_row = [tuple(row[column] for column in columns) for row in rows]
            good = [chains for chains in of_row if None not in chains]
            is_read = good and (bad_rows == "skip" or len(good) == len(of_row))
            want = good if is_read else None
        for reader in read:
            refused = ""
            try:
                got = []
                for table in reader():
                    got += found_in(table, kinds)
            except AbagError as error:
                got = None
                refused = str(error)
            if may_be_names and "holds names" in refused:
                return None
            assert got == want, (kinds, got, want, refused)
            outcomes.append(got is not None)
    return outcomes


def labelled_rows(truth, bad_rows):
    """Return the rows that can train a head; None if fit has to refuse the table."""
    usable = [row for row in truth or () if None not in row[:2]]
    want = [row for row in usable if row[2] is not None]
    return want if want and (bad_rows == "skip" or len(want) == len(truth)) else None


def has_usual_labels(truth):
    """Tell whether no label was damaged, and may be taken for another unit."""
    return all(row[2] is None or 4 < row[2] < 12 for row in truth or ())


def check_labels(path, bad_rows, want):
    """Compare the labels of plan, fit, sweep, evaluate and adapt."""
    try:
        labels = read_labels(path, bad_rows=bad_rows, replicates="keep")
    except AbagError:
        pairs = None
    else:
        table = labels.table
        pairs = [
            (table.antibodies.chains[a], table.antigens.chains[g], y)
            for a, g, y in zip(labels.antibody, labels.antigen, labels.pkd.tolist(), strict=True)
        ]
    assert sorted(pairs or ()) == sorted(want or ()), (pairs, want)


def check_file(seed, number):
    """Check the file with this number; return how it was taken."""
    rng = random.Random(f"{seed} {number}")
    by_commands = number % COMMANDS_EVERY == 0
    folder = Path(tempfile.mkdtemp(prefix=f"abag-oracle-{seed}-{number}-"))
    kind = rng.choice(oracle_files.KINDS)
    n = rng.randint(12, 30) if by_commands else rng.randint(1, 7)
    path = oracle_files.write(rng, folder, kind, n)
    rows = oracle_files.cells_of(path)
    truth = None
    if rows is not None:
        truth = [*map(oracle_files.expected, oracle_files.with_points(rows))]
    bad_rows = rng.choice(["skip", "error"])
    cells = oracle_files.cells_of(path, alone=True)
    antigens = None if cells is None else [*map(oracle_files.expected, cells)]
    may_be_names = oracle_files.may_be_names([*(rows or ()), *(cells or ())])
    outcomes = check_sequences(path, bad_rows, truth, antigens, may_be_names=may_be_names)
    if outcomes is None:
        shutil.rmtree(folder)
        return Counter({"taken for names": 1})
    counts = Counter({"readings": len(outcomes)})
    if has_usual_labels(truth):
        want = labelled_rows(truth, bad_rows)
        check_labels(path, bad_rows, want)
        counts["readings of labels"] += 1
        if by_commands:
            counts.update(Commands.of_process().check(path, rows, truth, want, bad_rows))
    counts[f"{kind}, {'read' if outcomes[0] else 'refused'}"] += 1
    shutil.rmtree(folder)  # kept, with the file, after a disagreement
    return counts


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "numbers",
    [range(80), *in_ci(range(80, 150)), pytest.param(range(100_000), marks=pytest.mark.slow)],
)
def test_every_command_finds_what_other_software_finds(numbers):
    counts, failures = many.run(partial(check_file, 1), numbers)
    assert not failures, min(failures.items())[1]
    if 0 in numbers:  # the others are fewer, and no kind of file has to be among them
        for kind in oracle_files.KINDS:
            assert counts[f"{kind}, read"]
            assert counts[f"{kind}, refused"]
    assert counts["fit and evaluate, done"]


if __name__ == "__main__":
    many.main(lambda seed: partial(check_file, seed), __doc__)
