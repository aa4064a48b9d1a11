"""JSON Lines: an object per line, written as a CSV file with the same cells would be."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import IO, Any

from abag.embed.sequences.delimited import Chunk, ReadOptions, read_separated, refuse_repeated


def read_json_lines(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read an object per line, as a CSV file with the same cells would be read."""
    records = [*_json_records(file.read().decode("utf-8-sig"))]
    distinct: dict[str, None] = {}  # in the order in which they occur first
    for _, record in records:
        distinct |= dict.fromkeys(record)
    names = [*distinct]
    sequences = options.sequence_columns(names)
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    for number, record in records:
        for name in sequences:
            if isinstance(record.get(name), dict | list):
                held = type(record[name]).__name__
                msg = f"line {number}: {name!r} holds {held}; expected a sequence as text"
                raise ValueError(msg)
        writer.writerow([_json_cell(record.get(name)) for name in names])
    yield from read_separated(text, ",", options, first_row=1)


def _json_records(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file and the numbers of their lines; numbers stay as written."""
    # not splitlines: a text may contain U+2028 and other ends of lines
    lines = text.rstrip().split("\n")
    if lines == [""]:
        msg = "it is empty"
        raise ValueError(msg)
    if lines[0].lstrip().startswith("["):
        msg = (
            "line 1 begins a JSON array; save one object per line, as pandas does with "
            "to_json(path, orient='records', lines=True)"
        )
        raise ValueError(msg)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(
                line,
                parse_float=str,  # 7.10 stays 7.10, and a long id all of its digits
                parse_int=str,
                parse_constant=str,
                object_pairs_hook=_distinct_names,
            )
        except json.JSONDecodeError as error:
            msg = f"line {number} is not JSON ({error.msg}); expected one object per line"
            raise ValueError(msg) from None
        if not isinstance(record, dict) or not record:
            msg = (
                f"line {number} holds {line.strip()[:20]!r}, not an object; expected one object "
                'such as {"heavy": "EVQ", "pKd": 8.5} per line'
            )
            raise ValueError(msg)
        yield number, record


def _distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _json_cell(value: object) -> str:
    """Return a value as text; lists and objects, which are passed on only, as JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)
