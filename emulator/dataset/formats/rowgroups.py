"""Which bytes of a Parquet file a read of rows is: the chunks of the wanted columns of whole row groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.formats.base import bad
from emulator.dataset.formats.index import Extent, Pieces
from emulator.dataset.formats.seekable import Seekable
from emulator.plan.reads import Read

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


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
