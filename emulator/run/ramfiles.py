"""Files in memory that look like a workload's: what the emulator costs is measured on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from emulator.dataset.formats import Format, format_named
from emulator.dataset.formats.base import Room, Shape
from emulator.dataset.formats.layout import Key, Source
from emulator.dataset.formats.parquet import Parquet
from emulator.errors import storage_error
from emulator.spec.recipe import ColumnSpec
from emulator.spec.workload import Workload

FILES = 16
EDGE = 92
"""Voxels per axis of a volume: 3.9 MB."""
FILE_BYTES = 5 * EDGE**3
"""About so many bytes of a file are read."""
_ROW_GROUP = 6144
"""Rows of a row group of narrow rows, as DLRM has them."""


@dataclass(frozen=True, slots=True)
class RamFiles:
    """A dataset, as loaders want it listed."""

    format: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    samples_per_file: int = 1


def ram_files(folder: Path, workload: Workload) -> RamFiles:
    """FILES files in `folder` with samples of the workload's kind and size. Raises StorageError."""
    try:
        return _files(folder, workload)
    except OSError as error:
        raise storage_error(error, "cannot write files for the self-test") from None


def _files(folder: Path, workload: Workload) -> RamFiles:
    form, sample = workload.sample.format, workload.sample_read
    several = workload.sample.samples_per_file > 1
    if not (several or format_named(form).records):
        return _written(folder, "npz", (1, EDGE, EDGE, EDGE))
    size = min(sample.bytes_mean, FILE_BYTES)
    count = max(2, FILE_BYTES // size) if several else 1
    return _written(folder, form, (count, 1, 1, max(1, size // 5)), _columns(workload))


def _columns(workload: Workload) -> tuple[ColumnSpec, ...]:
    """Columns as wide as those that are read, on the average."""
    names = workload.access.columns or ("x",)
    values = max(1, workload.sample_read.bytes_mean // len(names) // 4)
    return tuple(ColumnSpec(name=name, dtype="float32", size=values if values > 1 else 0) for name in names)


def _written(folder: Path, name: str, shape: Shape, columns: tuple[ColumnSpec, ...] = ()) -> RamFiles:
    form = Parquet(columns, _ROW_GROUP) if name == "parquet" else format_named(name)
    names = tuple(f"ram_{number}{form.suffix}" for number in range(FILES))
    data = b"".join(_bytes(form, shape))
    for one in names:
        (folder / one).write_bytes(data)
    return RamFiles(name, names, (len(data),) * FILES, shape[0])


def _bytes(form: Format, shape: Shape) -> Iterator[bytes]:
    """A file of zeros."""
    if form.serial:
        zeros: dict[Key, Source] = {"x": _Zeros(), "y": _Zeros()}
        yield from (block.tobytes() for block in form.blocks(shape, zeros))
    else:
        (encoded,) = form.encode(shape, lambda x, y: None, Room())
        yield bytes(encoded.memory[: encoded.size])


class _Zeros:
    """The bytes of an array of zeros: fresh memory holds them."""

    crc = 0

    def into(self, memory: memoryview, size: int) -> None:
        pass
