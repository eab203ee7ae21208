"""Which bytes of a Parquet file a read of rows is: the chunks of the wanted columns of whole row groups."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import ColumnSpec
from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import (
    SLACK,
    Array,
    Encoded,
    Extent,
    Fill,
    Index,
    Key,
    OneFile,
    Peek,
    Pieces,
    Place,
    Room,
    Seekable,
    Shape,
    Source,
    Span,
    bad,
)
from emulator.plan import Read

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The index of one file. A row is never read alone: its row group is."""

    name: str
    metadata: Any
    """pyarrow's, parsed from the footer once."""
    columns: tuple[int, ...]
    """Numbers of the leaf columns that are read."""
    starts: NDArray[np.int64]
    """First row of each group, and the number of rows behind the last."""
    places: NDArray[np.int64]
    """Offset and bytes of each chunk: shape (groups, columns, 2)."""

    @classmethod
    def of(cls, metadata: Any, name: str, samples: int, columns: Sequence[str]) -> RowGroups:
        """From what a footer says, for these columns, or all. Raises DatasetError."""
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        starts = np.cumsum([0, *(group.num_rows for group in groups)])
        if not groups or starts[-1] != samples:
            raise bad(name, f"{starts[-1]} rows where the manifest says {samples}")
        first = groups[0]
        fields = [
            first.column(number).path_in_schema.partition(".")[0] for number in range(first.num_columns)
        ]
        missing = set(columns) - set(fields)
        if missing:
            raise bad(name, f"it has no column {sorted(missing)[0]!r}, which access.columns names")
        wanted = tuple(number for number, field in enumerate(fields) if not columns or field in columns)
        places = [[_place(group.column(number)) for number in wanted] for group in groups]
        return cls(name, metadata, wanted, starts, np.array(places, np.int64))

    def _groups(self, read: Read) -> range:
        """Those that begin within the rows of `read`, and with the first row of one that does not go on."""
        side: Any = "left" if read.how == "on" else "right"
        first = int(np.searchsorted(self.starts, read.first, side)) - (read.how != "on")
        return range(first, int(np.searchsorted(self.starts, read.first + read.samples, "left")))

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        return self.checked(read)

    def checked(self, read: Read) -> Sequence[Extent]:
        groups = self._groups(read)
        return [Extent(*place) for place in self.places[groups.start : groups.stop].reshape(-1, 2).tolist()]

    def check(self, read: Read, pieces: Pieces) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(
                _Pieces(pieces), metadata=self.metadata, pre_buffer=False, page_checksum_verification=True
            )
            for group in self._groups(read):
                file.reader.read_row_group(group, column_indices=list(self.columns), use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            said = str(error).splitlines()[0][:120]
            raise bad(self.name, f"a page is not what was written ({said})") from None


def _place(chunk: Any) -> tuple[int, int]:
    offset = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None:
        offset = min(offset, chunk.dictionary_page_offset)
    return offset, chunk.total_compressed_size


class _Pieces(Seekable):
    """A file of which only some extents are there; what is between them reads as zeros."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self.size = max((extent.offset + extent.size for extent, _ in pieces), default=0)

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        target[:] = bytes(len(target))
        for extent, data in self._pieces:
            first = max(self.at, extent.offset)
            last = min(self.at + len(target), extent.offset + extent.size)
            if first < last:
                part = data[first - extent.offset : last - extent.offset]
                target[first - self.at : last - self.at] = part
        self.at += len(target)
        return len(target)


# ---- Parquet files, written by pyarrow and read as raw extents of their column chunks.
#
# A reader parses the footer once (pyarrow does) and then asks for the column chunks that it wants of a row
# group, each in one request, as Parquet's C++ reader does without pre-buffering: so do loaders here, which
# cut requests at their block size. Nothing is compressed; values are random bytes in PLAIN encoding, but for
# those of one byte, which PLAIN would store as four: they are in a dictionary. Every page has a checksum. The
# bytes of a file depend on pyarrow's version too.
#
# Without columns of its own a file holds volumes, one a row: `x`, float32, and `y`, uint8, as fixed-size
# lists.


_MAGIC = b"PAR1"
_SMALLEST = 128
_LARGEST_FOOTER = 1 << 28
_SHAPE = b"feedrate.shape"
_VOLUME = ("x", "y")


class _Sink(io.RawIOBase):
    """Keeps what pyarrow writes until it is taken."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        self._parts.append(np.frombuffer(bytes(data), np.uint8))
        return len(self._parts[-1])

    def take(self) -> Iterator[NDArray[np.uint8]]:
        taken, self._parts = self._parts, []
        yield from taken


@dataclass(frozen=True, slots=True)
class Parquet(OneFile):
    """One .parquet file of many rows."""

    columns: tuple[ColumnSpec, ...] = ()
    """None: volumes."""
    row_group: int = 0
    """Rows of a row group; 0: all in one."""

    suffix = ".parquet"
    records = True
    streams = False
    serial = True

    def planned_bytes(self, voxels: Any) -> Any:
        return self.file_bytes(voxels, 1)

    def file_bytes(self, voxels: Any, samples: int) -> Any:
        columns = self.columns or _volume_columns(1)
        each = sum(column.bytes for column in columns) if self.columns else 5 * voxels
        groups = -(-samples // (self.row_group or samples))
        data = samples * each
        return data + data // 256 + groups * len(columns) * 2048 + 4096

    def blocks(self, shape: Shape, sources: Mapping[Key, Source]) -> Iterator[NDArray[np.uint8]]:
        def draw(column: ColumnSpec, rows: int) -> NDArray[np.uint8]:
            size = rows * column.bytes
            memory = memoryview(bytearray(size + SLACK))
            sources["y" if column.name == "y" and not self.columns else "x"].into(memory, size)
            return np.frombuffer(memory, np.uint8, size)

        sink = _Sink()
        columns = self.columns or _volume_columns(math.prod(shape[1:]))
        with _writer(sink, columns, shape) as write:
            for first in range(0, shape[0], self.row_group or shape[0]):
                rows = min(self.row_group or shape[0], shape[0] - first)
                write([draw(column, rows) for column in columns], rows)
                yield from sink.take()
        yield from sink.take()

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        voxels = math.prod(shape)
        places = [Place(room(part, size * voxels), 0, size * voxels) for part, size in ((1, 4), (2, 1))]
        fill(places[0], places[1])
        whole = {"x": places[0].data, "y": places[1].data}
        sink = _Sink()
        columns = _volume_columns(math.prod(shape[1:]))
        with _writer(sink, columns, shape) as write:
            write([np.frombuffer(whole[column.name], np.uint8) for column in columns], shape[0])
        data = np.concatenate(list(sink.take()))
        memory = room(0, data.size)
        memory[: data.size] = data.data
        memory[data.size :] = bytes(len(memory) - data.size)
        return (Encoded(memory, data.size, crc32(memory[: data.size])),)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        table = _read(data, name)
        try:
            edges = json.loads((table.schema.metadata or {})[_SHAPE])
            shape = (table.num_rows, *(int(edge) for edge in edges))
            found = {key: table[key].combine_chunks().flatten().to_numpy() for key in _VOLUME}
            return {key: array.reshape(shape) for key, array in found.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise bad(name, f"a Parquet file without volumes ({type(error).__name__})") from None

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        return None

    def index(self, peek: Peek, size: int, name: str, samples: int, columns: Sequence[str]) -> Index:
        return RowGroups.of(_metadata(peek, size, name), name, samples, columns)

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if bytes(head[:4]) != _MAGIC or size < _SMALLEST:
            raise bad(name, "not a Parquet file, or its end is missing")


def _volume_columns(voxels: int) -> tuple[ColumnSpec, ...]:
    return (
        ColumnSpec(name="x", dtype="float32", size=voxels),
        ColumnSpec(name="y", dtype="uint8", size=voxels),
    )


class _writer:  # noqa: N801  a context manager that is called like a function
    """Gives a function that writes a row group from the bytes of its columns and its rows."""

    def __init__(self, sink: _Sink, columns: Sequence[ColumnSpec], shape: Shape) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._types = [_type(column) for column in columns]
        fields = [pa.field(c.name, t, nullable=False) for c, t in zip(columns, self._types, strict=True)]
        self._schema = pa.schema(fields, metadata={_SHAPE: json.dumps(shape[1:])})
        self._columns = columns
        small = [c.name + ".list.element" * (c.size > 0) for c in columns if c.dtype in ("int8", "uint8")]
        self._file = pq.ParquetWriter(
            sink, self._schema, compression="none", use_dictionary=small or False, write_statistics=False,
            write_page_checksum=True,
        )  # fmt: skip

    def __enter__(self) -> Any:
        return self._write

    def _write(self, data: Sequence[NDArray[np.uint8]], rows: int) -> None:
        import pyarrow as pa

        arrays = []
        for column, kind, values in zip(self._columns, self._types, data, strict=True):
            flat = kind.value_type if column.size else kind
            array = pa.Array.from_buffers(flat, rows * max(column.size, 1), [None, pa.py_buffer(values)])
            arrays.append(pa.FixedSizeListArray.from_arrays(array, type=kind) if column.size else array)
        self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=rows)

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _type(column: ColumnSpec) -> Any:
    import pyarrow as pa

    kind = getattr(pa, column.dtype)()
    return pa.list_(pa.field("element", kind, nullable=False), column.size) if column.size else kind


def _read(data: memoryview, name: str) -> Any:
    """The whole table in the bytes of a file. Raises DatasetError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(pa.BufferReader(data), use_threads=False)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise bad(name, f"not a Parquet file ({str(error).splitlines()[0][:120]})") from None


def _metadata(peek: Peek, size: int, name: str) -> Any:
    """What the footer of a file says, read in two requests. Raises DatasetError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tail = peek(max(0, size - 8), min(size, 8))
    length = int.from_bytes(tail[:4], "little")
    if bytes(tail[4:]) != _MAGIC or not 0 < length <= min(size - 12, _LARGEST_FOOTER):
        raise bad(name, "not a Parquet file, or its footer is missing")
    try:
        return pq.read_metadata(pa.BufferReader(peek(size - 8 - length, length + 8)))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise bad(name, f"a broken footer ({str(error).splitlines()[0][:120]})") from None
