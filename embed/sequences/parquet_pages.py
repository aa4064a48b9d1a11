"""What the pages of a Parquet file hold, from the header of each page.

The footer of a file states sizes and numbers of rows, too. A reader that believes it allocates, or
leaves out, what a damaged or forged footer says. The headers are compared with it before anything
is unpacked.

References
----------
parquet.thrift and Encodings.md of apache/parquet-format; doc/specs/thrift-compact-protocol.md of
apache/thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import pyarrow.parquet as pq

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
"""Types of pages that hold values."""
_SHARED_PREFIXES = 7
"""DELTA_BYTE_ARRAY: a text may repeat the start of the one before it, at no cost."""
_MOST_SHARED_BYTES = 16 << 20
"""Most bytes of one page of each column, which are in memory twice: as stored, and as a text."""
_HEADER_BYTES = 1 << 10
"""Read for a header at first; one with long texts as statistics is read again in larger pieces."""
_MOST_HEADER_BYTES = 1 << 24
_MOST_DEPTH = 8
(
    _STOP,
    _TRUE,
    _FALSE,
    _BYTE,
    _INT16,
    _INT32,
    _INT64,
    _DOUBLE,
    _BINARY,
    _LIST,
    _SET,
    _MAP,
    _STRUCT,
) = range(13)
"""Types of the compact protocol."""


class Page(NamedTuple):
    """One page of a column."""

    kind: int
    unpacked_bytes: int
    values: int
    """With nulls; distinct ones in a dictionary."""
    encoding: int


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of some columns of a file, in numbers."""

    total_bytes: int
    """Unpacked size of all."""
    largest_bytes: int
    """Unpacked size of the largest one, which is held in memory as a whole."""
    mean_row_bytes: int
    """Stored bytes of a row, in the row group where they are most."""
    longest_bytes: int
    """Most bytes that the texts of a row take if they come from dictionaries."""
    prefix_bytes: int
    """Most bytes that the texts of a row take if they share prefixes; 0 if none do. A text is then
    not longer than its page, but all texts of a small page may be as long as that."""


def measure_pages(file: IO[bytes], schema: pq.ParquetSchema, wanted: list[str] | None) -> Pages:
    """Walk over the headers of the pages of columns, all of them by default.

    Raises
    ------
    ValueError
        The footer states something else, or a page has no valid header.
    """
    # not from pyarrow, whose accessors end the process at some damaged entries
    rows, groups, end = _read_footer(file)
    prefixes = tuple(f"{name}." for name in wanted or ())
    columns = [schema.column(number) for number in range(len(schema.names))]
    _expect(sum(group_rows for group_rows, _ in groups), rows, "rows")
    total = largest = mean = longest = most_shared = 0
    for group_rows, chunks in groups:
        _expect(len(chunks), len(columns), "columns")
        group_bytes = texts_bytes = shared_bytes = 0
        for column, chunk in zip(columns, chunks, strict=True):
            if wanted is not None and not f"{column.path}.".startswith(prefixes):
                continue
            pages = [*_pages(file, column.path, chunk, end)]
            values = sum(page.values for page in pages if page.kind in (_DATA, _DATA_V2))
            _expect(values, chunk.values, f"values of column {column.path!r}")
            if not column.max_repetition_level:
                _expect(values, group_rows, f"rows of column {column.path!r}")
            group_bytes += sum(page.unpacked_bytes for page in pages)
            largest = max([largest, *(page.unpacked_bytes for page in pages)])
            texts_bytes += max([0, *(_longest(page) for page in pages)])
            shared_bytes += max([0, *(_shared(page) for page in pages)])
        total += group_bytes
        longest = max(longest, texts_bytes)
        most_shared = max(most_shared, shared_bytes)
        if shared_bytes > _MOST_SHARED_BYTES:
            msg = (
                f"its pages in the encoding DELTA_BYTE_ARRAY have {shared_bytes >> 10} KiB per "
                f"row, more than {_MOST_SHARED_BYTES >> 10}; write smaller pages"
            )
            raise ValueError(msg)
        mean = max(mean, group_bytes // max(1, group_rows))
    return Pages(total, largest, mean, longest, most_shared)


def _longest(page: Page) -> int:
    """Return the most bytes that a text of a dictionary can have: the others may be empty."""
    return page.unpacked_bytes - 4 * page.values if page.kind == _DICTIONARY else 0


def _shared(page: Page) -> int:
    """Return the most bytes that a text of a page can have if texts share prefixes, else 0."""
    return page.unpacked_bytes if page.encoding == _SHARED_PREFIXES else 0


def _expect(found: int, stated: int, what: str) -> None:
    if found != stated:
        msg = f"its footer states {stated:,} {what}, its pages have {found:,}; it is damaged"
        raise ValueError(msg)


class _Chunk(NamedTuple):
    """A column of a row group, as stated in the footer."""

    values: int
    packed_bytes: int
    data_at: int
    dictionary_at: int | None


def _read_footer(file: IO[bytes]) -> tuple[int, list[tuple[int, list[_Chunk]]], int]:
    """Return the rows of a file; the rows and columns of its row groups; and its size."""
    end = file.seek(0, 2)
    file.seek(end - 8)
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(max(0, end - 8 - footer_bytes))
    try:
        footer, _ = _Reader(file.read(footer_bytes)).struct()
        groups = [(group[3], [_chunk(one[3]) for one in group[1]]) for group in footer.get(4, [])]
        return footer[3], groups, end
    except (LookupError, TypeError) as error:
        msg = "its footer lacks entries; it is damaged"
        raise ValueError(msg) from error


def _chunk(entries: dict[int, Any]) -> _Chunk:
    return _Chunk(entries[5], entries[7], entries[9], entries.get(11))


def _pages(file: IO[bytes], name: str, chunk: _Chunk, end: int) -> Iterator[Page]:
    """Read the headers of the pages of a column of a row group."""
    at = min(chunk.data_at, chunk.dictionary_at or chunk.data_at)
    stop = at + chunk.packed_bytes
    if not 0 <= at <= stop <= end:
        msg = f"column {name!r} lies outside the file; it is damaged"
        raise ValueError(msg)
    left = chunk.values
    while left > 0 and at < stop:
        header, header_bytes = _read_header(file, at)
        kind, unpacked, packed = (header[field] for field in (1, 2, 3))
        own = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
        page = Page(kind, unpacked, own.get(1, 0), own.get(4 if kind == _DATA_V2 else 2, 0))
        if min(unpacked, packed, page.values) < 0:
            msg = f"a page of column {name!r} has a negative size; it is damaged"
            raise ValueError(msg)
        yield page
        left -= page.values if kind in (_DATA, _DATA_V2) else 0
        at += header_bytes + packed


def _read_header(file: IO[bytes], at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a page's header by their numbers, and its size."""
    size = _HEADER_BYTES
    while True:
        file.seek(at)
        text = file.read(size)
        try:
            fields, length = _Reader(text).struct()
        except IndexError:
            if len(text) < size or size >= _MOST_HEADER_BYTES:
                break
            size *= 16
            continue
        if {1, 2, 3} <= fields.keys():
            return fields, length
        break
    msg = f"no valid header of a page at byte {at:,}; it is damaged"
    raise ValueError(msg)


class _Reader:
    """A struct in Thrift's compact protocol; raises IndexError where the text ends too early."""

    def __init__(self, text: bytes) -> None:
        self._text, self._at = text, 0

    def struct(self, depth: int = 0) -> tuple[dict[int, Any], int]:
        """Return the values of fields by their numbers, and the position after the struct."""
        fields: dict[int, Any] = {}
        number = 0
        if depth > _MOST_DEPTH:
            msg = "an entry is nested too deeply; it is damaged"
            raise ValueError(msg)
        while (head := self._bytes(1)[0]) != _STOP:
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, depth)
        return fields, self._at

    def _value(self, kind: int, depth: int) -> Any:  # noqa: ANN401 - as written
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in (_INT16, _INT32, _INT64):
            return self._integer()
        if kind in (_BYTE, _DOUBLE):
            return self._bytes(1 if kind == _BYTE else 8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)[0]
        if kind in (_LIST, _SET):
            return self._list(depth)
        msg = f"an entry has the type {kind}; it is damaged"  # Parquet has no maps
        raise ValueError(msg)

    def _list(self, depth: int) -> list[Any]:
        head = self._bytes(1)[0]
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if head & 15 in (_TRUE, _FALSE):  # in a list, a value of its own
            return [self._bytes(1) for _ in range(count)]
        return [self._value(head & 15, depth) for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._text):
            raise IndexError
        found, self._at = self._text[self._at : end], end
        return found

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._bytes(1)[0]) & 128 and shift < 63:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
