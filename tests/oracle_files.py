"""Tables as other software writes them, and what they hold, read without any code of abag.

`write` draws a file; `cells_of` reads it with csv, openpyxl or pyarrow, and joins the records of
FASTA and AIRR files by the rules of docs/how-to/own-table.md. Both formats are read here from their
definitions: FASTA record by record, AIRR Rearrangement 1.5 row by row.
"""

import csv
import gzip
import io
import re
from pathlib import Path

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
from pandas._libs.parsers import STR_NA_VALUES

CHAINS = ["EVQLVESGGG", "DIQMTQSPSS", "ev qlvES", "QVQ\nLVQ", "MKTAYIAKQRU", "AV" * 20, "WYX"]
ANTIGENS = [*CHAINS, "MKT|ACD", "gg:AA", "MKT | DIQ"]
BAD = [
    "", "NA", "nan", "None", "ND", "EV1Q", "EVQ*", "é", "EVQ-L", "|", "<NA>", "a,b", 'E"V', "E;V",
]  # fmt: skip
NOTES = ["", "x", 'a "b"', "a,b", "a\nb", "a\tb", "1;2", "'", "NA", '""', "é", "  ", "-"]
LABELS = ["", "x", "8,5", "NA", "7.1.2", "--"]
KINDS = ["csv", "csv", "tsv", "parquet", "xlsx", "fasta", "airr"]
ROLE_NAMES = {
    "heavy": ["H", "VH", "HC", "heavy", "h"],
    "light": ["L", "VL", "LC", "light", "K", "VK", "kappa", "lambda"],
    "antigen": ["Ag", "antigen", "AG"],
}
ROLES = {name.lower(): role for role, names in ROLE_NAMES.items() for name in names}
LOCI = {"IGH": "heavy", "IGK": "light", "IGL": "light"}
AIRR_NAMES = ["sequence_id", "locus", "sequence_alignment_aa", "sequence_aa", "cell_id"]
WORDS = "na nan nd nil nill none null tbd missing unknown heavy light kappa lambda".split()
NUCLEOTIDES = "ACGTACGTAC" * 3


def label(rng, odd):
    return rng.choice(LABELS) if rng.random() < odd else f"{rng.uniform(5, 10):.4f}"


def make_rows(rng, n):
    """Return the names of the columns and the cells of a table."""
    names = ["heavy", "antigen", "pKd", *rng.sample(["light", "note", "more"], rng.randint(0, 3))]
    rng.shuffle(names)
    odd = rng.choice([0, 0, 0.05, 0.3])
    pools = {"light": [*CHAINS, ""], "heavy": CHAINS, "antigen": ANTIGENS}

    def cell(name):
        if name == "pKd":
            return label(rng, odd)
        if name not in pools:
            return rng.choice(NOTES)
        return rng.choice(BAD if rng.random() < odd else pools[name])

    def row():
        if rng.random() < odd / 3:
            return ["" for _ in names]
        return [cell(name) for name in names]

    return names, [row() for _ in range(n)]


def write(rng, folder, kind, n):
    """Write about `n` rows as the usual library does; damage some of the text files."""
    return WRITERS[kind](rng, Path(folder), n)


def write_parquet(rng, folder, n):
    names, rows = make_rows(rng, n)
    columns = []
    for cells in zip(*rows, strict=True):
        columns.append([v if rng.random() < 0.95 else None for v in cells])
    at = names.index("pKd")
    columns[at] = [float(v) if v and re.fullmatch(r"\d+\.\d+", v) else None for v in columns[at]]
    table = pa.table(
        [pa.array(c, pa.float64() if i == at else pa.string()) for i, c in enumerate(columns)],
        names,
    )
    path = folder / "a.parquet"
    dictionary = rng.random() < 0.5
    encoding = None if dictionary or rng.random() < 0.5 else rng.choice(["DELTA_BYTE_ARRAY"] * 2)
    pq.write_table(
        table,
        path,
        row_group_size=rng.choice([1, 2, 9]),
        use_dictionary=dictionary,
        column_encoding={n: encoding for i, n in enumerate(names) if i != at} if encoding else None,
    )
    return path


def write_xlsx(rng, folder, n):
    names, rows = make_rows(rng, n)
    book = openpyxl.Workbook()
    for row in [names, *rows]:
        book.active.append([v if not re.fullmatch(r"\d+\.\d+", v) else float(v) for v in row])
    path = folder / "a.xlsx"
    book.save(path)
    return path


def write_csv(rng, folder, n):
    return write_text(
        rng, folder / "a.csv", separated(rng, rng.choice(",,;\t"), *make_rows(rng, n))
    )


def write_tsv(rng, folder, n):
    return write_text(rng, folder / "a.tsv", separated(rng, "\t", *make_rows(rng, n)))


def separated(rng, mark, names, rows):
    out = io.StringIO(newline="")
    csv.writer(
        out,
        delimiter=mark,
        lineterminator=rng.choice(["\n", "\n", "\r\n"]),
        quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    ).writerows([names, *rows])
    return out.getvalue()


def write_text(rng, path, text):
    """Change some characters after the first line, and compress some of the files."""
    start = text.index("\n") + 1
    for _ in range(0 if "\r" in text else rng.choice([0, 0, 0, 1, 2, 4])):
        at = rng.randint(start, len(text))
        end = min(len(text), at + rng.choice([0, 1, 3]))
        new = rng.choice(["", "", '"', ",", "\n", "A", "7", "\t", ";", ">", "_", "."])
        text = text[:at] + new + text[end:]
    data = (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + text.encode()
    if rng.random() < 0.15:
        path = Path(f"{path}.gz")
        data = gzip.compress(data, 1)
    path.write_bytes(data)
    return path


def write_fasta(rng, folder, n):
    mark = rng.choice("_-|.:/")
    odd = rng.choice([0, 0, 0.02, 0.1])
    plain = rng.random() < 0.2
    shuffled = rng.random() < 0.3
    ends = {role: mark + rng.choice(names) for role, names in ROLE_NAMES.items()}
    records = []
    for i in range(n):
        for role in ["heavy"] if plain else ROLE_NAMES:
            if rng.random() < (0.3 if role == "light" else odd):
                continue
            name = f"ab{mark}{i}{'' if plain else ends[role]}"
            if rng.random() < odd:
                name = rng.choice([f"ab{mark}0{ends[role]}", f"ab{i}", f"{mark}H", "", "x_y"])
            chain = rng.choice(CHAINS).replace("\n", "")
            if rng.random() < odd:
                chain = rng.choice([*BAD, NUCLEOTIDES, NUCLEOTIDES[:29], "EVQ|DIQ"])
            records.append((name, chain))
    if shuffled:
        rng.shuffle(records)
    width = rng.choice([5, 60])
    end = rng.choice(["\n", "\n", "\r\n"])
    lines = []
    for name, chain in records:
        lines += [f">{name}{rng.choice(['', '', ' IgG1 kappa', '  |x|'])}"]
        lines += [chain[at : at + width] for at in range(0, len(chain), width)]
        lines += [""] * (rng.random() < 0.1)
    path = folder / rng.choice(["a.fasta", "a.fa"])
    return write_text(rng, path, "".join(line + end for line in lines) or end)


def write_airr(rng, folder, n):
    odd = rng.choice([0, 0, 0.02, 0.1])
    left_out = rng.choice([[], [], ["cell_id"], ["sequence_aa"], ["sequence_alignment_aa"]])
    names = [name for name in AIRR_NAMES if name not in left_out]
    names += ["antigen", "pKd", *rng.sample(["sequence", "v_call", "note"], rng.randint(0, 3))]
    rng.shuffle(names)
    rows = []
    for i in range(n):
        shared = {"cell_id": f"c{i:03}", "antigen": rng.choice(ANTIGENS), "pKd": label(rng, odd)}
        shared["note"] = rng.choice(NOTES)
        for locus in ["IGH", *rng.choice([["IGK"], ["IGL"], []])]:
            chain = re.sub(r"\s", "", rng.choice(CHAINS))
            row = shared | {
                "sequence_id": f"{i}_{locus}",
                "locus": locus,
                "sequence_aa": chain,
                "sequence_alignment_aa": f"{chain[:3]}{rng.choice(['', '..', '-'])}{chain[3:]}",
                "sequence": NUCLEOTIDES,
                "v_call": f"{locus}V1",
            }
            for name in names:
                if rng.random() < odd / 4:
                    row[name] = rng.choice(["", "NA", "x", "007", "igh", "IGK", "c000", "TRB", "1"])
            rows.append([row[name] for name in names])
    if rng.random() < 0.3:
        rng.shuffle(rows)
    return write_text(
        rng, folder / rng.choice(["a.tsv", "a.csv"]), separated(rng, "\t", names, rows)
    )


WRITERS = {
    "csv": write_csv,
    "tsv": write_tsv,
    "parquet": write_parquet,
    "xlsx": write_xlsx,
    "fasta": write_fasta,
    "airr": write_airr,
}


def cells_of(path, alone=False):
    """Return the rows of a file as dicts of text or None, or None if it cannot be a table.

    `alone`: antigens are asked for, no antibodies, which tells how the names of FASTA are read.
    """
    if path.suffix == ".parquet":
        return filled(pq.ParquetFile(path).read().to_pylist())
    if path.suffix == ".xlsx":
        header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        kept = [i for i, name in enumerate(header) if name is not None]
        texts = []
        for row in rows:
            texts.append(["" if row[i] is None else str(row[i]) for i in kept])
        return as_dicts([header[i] for i in kept], texts)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        if ".fa" in path.name:
            return fasta_rows(file.read(), alone)
        first = file.readline()
        mark = max(",\t;", key=first.count)
        file.seek(0)
        blank = " \t".replace(mark, "")
        names, *rows, end = csv.reader(io.StringIO(f"{file.read()}\nend", ""), delimiter=mark)
    if end != ["end"]:  # a quotation mark is not closed
        return None
    rows = [row for row in rows if row and (row[1:] or row[0].strip(blank) or not row[0])]
    if has_row_names(rows, names, mark != "," or first.count('"') == 2 * len(names)):
        names = ["", *names]
    if any(len(row) > len(names) for row in rows):
        return None
    rows = as_dicts(names, [row + [""] * (len(names) - len(row)) for row in rows])
    return airr_rows(rows) if {"sequence_id", "locus"} <= {*names} else rows


def has_row_names(rows, names, is_of_r):
    """Tell whether the rows begin with names as those of R, for which the header has no name."""
    first = {row[0] for row in rows}
    return (
        is_of_r
        and 1 < len(first) == len(rows)
        and {len(row) for row in rows} == {len(names) + 1}
        and any(row[-1] for row in rows)
        and not any(re.search("[A-Z]{20}", name) for name in first)
    )


def as_dicts(names, rows):
    records = []
    for row in rows:
        cells = [None if cell in STR_NA_VALUES else cell for cell in row]
        records.append(dict(zip(names, cells, strict=True)))
    return filled(records)


def filled(rows):
    return [row for row in rows if has_text(row)]


def has_text(row):
    return any(str(cell).strip() for cell in row.values() if cell is not None)


def fasta_rows(text, alone=False):
    """Join the records whose names end in a role; None if the file breaks a rule."""
    before, *records = re.split(r"(?m)^[^\S\n]*>", re.sub(r"\r", "\n", text))
    if before.strip():
        return None
    rows = {}
    roles = set()
    roles_of_name = {}
    chains = {}
    titles = [" ".join(record.partition("\n")[0].split()) for record in records]
    names = [title.partition(" ")[0] for title in titles]
    are_distinct = len({*titles}) == len(titles) and not any(map(role_at_end, names))
    for record, name in zip(records, titles if are_distinct else names, strict=True):
        chain = record.partition("\n")[2]
        chain = "".join(chain.split())
        if not chain or chain in STR_NA_VALUES:
            return None
        stem, role = role_at_end(name) or (name, None)
        if role:
            roles_of_name.setdefault(stem, set()).add(role)
        chains.setdefault(name, []).append(chain)
        row = rows.setdefault(stem, {})
        if (role or "") in row:
            row["twice"] = ""
        row[role or ""] = chain
        roles.add(role)
    if alone and not any("antigen" in of and len(of) > 1 for of in roles_of_name.values()):
        if any(len(of) > 1 for of in chains.values()):
            return None
        return [{"antigen": chain} for (chain,) in chains.values()]
    if any("twice" in row for row in rows.values()):
        return None
    if None in roles:  # each record is an antibody
        return [strands(row[""]) for row in rows.values()] if roles == {None} else None
    if "light" in roles and "heavy" not in roles:  # which may be missing by mistake
        return None
    return [{role: row.get(role, "") for role in roles} for row in rows.values()]


def role_at_end(name):
    """Return what a name of a record is before its role, with the role, or None."""
    stem, mark, end = re.fullmatch(r"(?s)(.*?)([_\-|.:/]*)([^_\-|.:/]*)", name).groups()
    role = ROLES.get(end.lower()) if stem and mark else None
    return (stem, role) if role else None


def strands(antibody):
    """Return the chains of an antibody in one string, ``heavy|light`` or ``heavy:light``."""
    heavy, *light = re.split("[|:]", antibody)
    return {"heavy": heavy, "light": light[0]} if len(light) == 1 else {"heavy": antibody}


def airr_rows(rows):
    """Join the chains of each cell; None if the file breaks a rule."""
    cells = {}
    labels = [row.get("pKd") for row in rows]
    number = r"(\d+\.?\d*|\.\d+)\s*"
    if all(re.fullmatch(number, pkd) for pkd in labels if pkd):  # 7.0 is 7.00
        rows = [
            row | {"pKd": pkd and str(float(pkd))} for row, pkd in zip(rows, labels, strict=True)
        ]
    for at, row in enumerate(rows):
        aligned = re.sub(r"[.-]", "", row.get("sequence_alignment_aa") or "")
        chain = aligned or re.sub(r"[.-]", "", row.get("sequence_aa") or "")
        call = re.search("IG[HKL]", (row.get("v_call") or "").upper())
        locus = (row["locus"] or (call.group() if call else "")).upper()
        role = LOCI.get(locus)
        cell = cells.setdefault(row.get("cell_id") or at, {})
        others = {n: v for n, v in row.items() if n not in AIRR_NAMES}
        if cell.get(role, ("",))[0] == chain and chain and role:
            continue  # the same chain again
        if not chain or role is None or role in cell:
            cell[f"bad {at}"] = ("*", others)
        else:
            cell[role] = (chain, others)
    joined = []
    kept = {*(rows[0] if rows else ())} - {*AIRR_NAMES}
    for cell in cells.values():
        others = [of for _, of in cell.values()]
        kept = {name for name in kept if len({of[name] for of in others} - {None, ""}) < 2}
    for cell in cells.values():
        others = [of for _, of in cell.values()]
        of = {n: next(filter(None, (other[n] for other in others)), None) for n in kept}
        row = {role: cell[role][0] if role in cell else "" for role in ("heavy", "light")}
        if any(chain == "*" for chain, _ in cell.values()):
            row["heavy"] = "*"
        joined.append(row | {name: of[name] for name in kept})
    return joined


def residues(text):
    """Return a chain as the rules say, or None if it is not valid."""
    text = re.sub(r"(?<=.)\*$", "", "".join((text or "").split()))
    if not re.fullmatch("[A-Za-z]*", text, re.ASCII) or re.search("[Jj]", text):
        return None
    return re.sub("[UZOB]", "X", text.upper())


def may_be_names(rows):
    """Tell whether a column of short texts may be one of names: one is no chain, or too short."""
    columns = [[row.get(role) or "" for row in rows] for role in ("heavy", "light", "antigen")]
    is_odd = any(None in expected(row)[:2] for row in rows)
    is_odd |= any(0 < len(text) < 3 for texts in columns for text in texts)
    return is_odd and any(
        max(map(len, filter(residues, texts)), default=1) < 40 for texts in columns
    )


def with_points(rows):
    """Return rows whose labels have points for commas, or nothing, where all of them tell it.

    A row whose sequences are not valid tells nothing.
    """
    usable = [row for row in rows if None not in expected(row)[:2]]
    labels = [str(row.get("pKd") or "").strip(" <>") for row in usable]
    marked = [label for label in labels if "," in label or label.count(".") > 1]
    german = [re.fullmatch(r"\d+,\d+(e-?\d+)?|\d{1,3}(\.\d{3})+(,\d+)?", label) for label in marked]
    english = [re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?", label) for label in marked]
    marks = {}
    if all(german) and not all(english):
        has_points = any(re.fullmatch(r"\d*\.\d*(e-?\d+)?", label) for label in labels)
        marks = {} if has_points else {".": "", ",": "."}
    elif all(english) and not all(german):
        marks = {",": ""}
    plain = str.maketrans(marks)
    return [row | {"pKd": row.get("pKd") and str(row["pKd"]).translate(plain)} for row in rows]


def expected(row):
    """Return chains and label of a row; None for what is not valid."""
    for role in ("heavy", "light", "antigen"):
        if any((row.get(role) or "") in (word, word.upper(), word.title()) for word in WORDS):
            row = row | {role: "*"}
        if re.fullmatch("[ACGTUN|:]{18,}", (row.get(role) or "").upper()):
            row = row | {role: "*"}
        if re.fullmatch("(?=.*[a-z])(?=.*[A-Z])[A-Za-z]{3,6}", (row.get(role) or "").strip()):
            row = row | {role: "*"}  # as scFv is written
        words = re.fullmatch(r"([A-Za-z]{3,}) ([A-Za-z]{1,19})", (row.get(role) or "").strip())
        if words and len(words[1]) < len(words[2]):
            row = row | {role: "*"}  # no lines of a sequence
    heavy = residues(row.get("heavy"))
    light = residues(row.get("light"))
    antibody = (heavy, light) if None not in (heavy, light) and (heavy or light) else None
    antigen = sorted(map(residues, re.split("[|:]", row.get("antigen") or "")), key=str)
    antigen = None if None in antigen or "" in antigen else tuple(antigen)
    try:
        pkd = float(re.sub("^[<>]", "", str(row["pKd"]).strip()))  # a changed character: a bound
    except (KeyError, TypeError, ValueError):
        pkd = None
    return antibody, antigen, None if "_" in str(row.get("pKd")) else pkd  # 5_0 is 50 in Python
