"""Parquet files, written by pyarrow and read as raw extents of their column chunks.

Loaders parse the footer once, with pyarrow, and then request the wanted column chunks of a row group, each in
one request, like Parquet's C++ reader without pre-buffering; requests are split at the block size. Nothing is
compressed. Values are random bytes in PLAIN encoding; those of one byte, which PLAIN would store as four, are
in a dictionary. Every page has a checksum. The bytes of a file also depend on pyarrow's version.

A file without columns in its recipe has a volume per row: `x`, float32, and `y`, uint8, as fixed-size lists.
"""

from __future__ import annotations

import io
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from emulator.config.recipe import ColumnSpec, Recipe
from emulator.dataset.formats.base import SLACK, Format, Index, Peek, Piece, Shape, Source, Sources, bad
from emulator.order import Read

_MAGIC = b"PAR1"
_SHAPE = b"feedrate.shape"
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class RowGroups(Index):
    """The index of one file, which is read by row groups, never by single rows."""

    name: str
    starts: Sequence[int]
    """First row of each group, and the number of rows."""
    chunks: Sequence[Sequence[tuple[int, int]]]
    """Offset and bytes of each chunk of each group."""

    def _groups(self, read: Read) -> range:
        """Return the groups that begin in `read`, and unless it continues, the one with its first row."""
        within = read.how != "on"
        first = bisect_left(self.starts, read.first + within)
        return range(first - within, bisect_left(self.starts, read.first + read.samples, first))

    def extents(self, read: Read, block: int) -> Sequence[tuple[int, int]]:
        return [chunk for group in self._groups(read) for chunk in self.chunks[group]]


class Parquet(Format):
    """One .parquet file of many rows."""

    suffix = ".parquet"
    many = True
    records = True

    def __init__(self, columns: tuple[ColumnSpec, ...] = (), row_group: int = 0) -> None:
        """Take the columns (none for volumes) and the rows of a row group (0 for a single group)."""
        self._columns = columns
        self._row_group = row_group

    def of(self, recipe: Recipe) -> Parquet:
        return Parquet(recipe.columns, recipe.row_group)

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        columns = self._columns or _volume_columns(1)
        each = sum(column.bytes for column in columns) if self._columns else 5 * voxels
        groups = -(-samples // (self._row_group or samples))
        data = samples * each
        # Headers and a share of the footer for each chunk of a column; dictionaries have 256 values.
        overhead = 256 * len(columns) + 1280 * len(_in_dictionaries(columns))
        return data + data // 512 + groups * overhead + 4096

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        return [self._row_groups(shape, sources)]

    def _row_groups(self, shape: Shape, sources: Sources) -> Iterator[Piece]:
        """Yield the file by row groups. Columns are filled from the source x, volumes from x and y."""
        columns = self._columns or _volume_columns(math.prod(shape[1:]))
        fields = [pa.field(column.name, _type(column), nullable=False) for column in columns]
        schema = pa.schema(fields, metadata={_SHAPE: json.dumps(shape[1:])})
        sink = io.BytesIO()
        with pq.ParquetWriter(
            sink,
            schema,
            compression="none",
            use_dictionary=_in_dictionaries(columns) or False,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer:
            rows_a_group = self._row_group or shape[0]
            for first in range(0, shape[0], rows_a_group):
                rows = min(rows_a_group, shape[0] - first)
                arrays = []
                for column in columns:
                    is_label = not self._columns and column.name == "y"
                    arrays.append(_filled(column, rows, sources["y" if is_label else "x"]))
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=rows)
                yield _taken(sink)
        yield _taken(sink)

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> RowGroups:
        metadata = _footer(peek, size, name)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        starts = [0, *accumulate(group.num_rows for group in groups)]
        if not groups or starts[-1] != samples:
            raise bad(name, f"{starts[-1]} rows, but the manifest says {samples}")
        leaves = [groups[0].column(number) for number in range(groups[0].num_columns)]
        names = [leaf.path_in_schema.partition(".")[0] for leaf in leaves]
        missing = set(columns) - set(names)
        if missing:
            raise bad(name, f"no column {sorted(missing)[0]!r}, which access.columns names")
        wanted = [number for number, column in enumerate(names) if not columns or column in columns]
        chunks = [[_extent(group.column(number)) for number in wanted] for group in groups]
        return RowGroups(name, starts, chunks)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if bytes(head[:4]) != _MAGIC or size < 128:
            raise bad(name, "not a Parquet file, or its end is missing")


def _volume_columns(voxels: int) -> tuple[ColumnSpec, ...]:
    return (
        ColumnSpec(name="x", dtype="float32", size=voxels),
        ColumnSpec(name="y", dtype="uint8", size=voxels),
    )


def _in_dictionaries(columns: Sequence[ColumnSpec]) -> list[str]:
    """Return the paths of columns of single bytes, each of which PLAIN would store as four."""
    small = [column for column in columns if column.dtype in ("int8", "uint8")]
    return [f"{column.name}.list.element" if column.size else column.name for column in small]


def _filled(column: ColumnSpec, rows: int, source: Source) -> Any:
    """Return `rows` rows of a column as a pyarrow array over the bytes of `source`."""
    size = rows * column.bytes
    memory = memoryview(bytearray(size + SLACK))
    source.into(memory, size)
    kind = _type(column)
    value = kind.value_type if column.size else kind
    buffers = [None, pa.py_buffer(memory[:size])]  # no bitmap: no value is null
    values = pa.Array.from_buffers(value, rows * max(column.size, 1), buffers)
    return pa.FixedSizeListArray.from_arrays(values, type=kind) if column.size else values


def _footer(peek: Peek, size: int, name: str) -> Any:
    """Return the metadata of a file. Raises DatasetError."""
    tail = peek(max(0, size - 8), min(size, 8))
    length = int.from_bytes(tail[:4], "little")
    most = min(size - 12, 1 << 28)  # a damaged length must not allocate gigabytes
    if bytes(tail[4:]) != _MAGIC or not 0 < length <= most:
        raise bad(name, "not a Parquet file, or its footer is missing")
    try:
        return pq.read_metadata(pa.BufferReader(peek(size - 8 - length, length + 8)))
    except _UNREADABLE as error:
        first_line = str(error).partition("\n")[0]
        raise bad(name, f"a broken footer ({first_line[:120]})") from None


def _type(column: ColumnSpec) -> Any:
    kind = getattr(pa, column.dtype)()
    return pa.list_(pa.field("element", kind, nullable=False), column.size) if column.size else kind


def _taken(sink: io.BytesIO) -> bytes:
    """Return and drop the bytes that pyarrow has written, which tracks the file's position itself."""
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data


def _extent(chunk: Any) -> tuple[int, int]:
    offset = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        offset = min(offset, chunk.dictionary_page_offset)
    return offset, chunk.total_compressed_size
