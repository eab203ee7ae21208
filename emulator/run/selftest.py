"""Files in memory that look like a workload's: what the emulator costs is measured on them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.config.recipe import ColumnSpec
from emulator.config.workload import LoaderSpec, TrainingSpec, Workload
from emulator.dataset.formats import Format, format_named
from emulator.dataset.formats.base import Key, Room, Shape, Source
from emulator.dataset.formats.parquet import Parquet
from emulator.errors import storage_error
from emulator.loader import make_loader
from emulator.loader.base import Batch, Loader
from emulator.plan import EpochPlan, Portion, RankPlan
from emulator.record.machine import cpu_seconds
from emulator.record.steps import StepLog, Steps
from emulator.run.accelerator import Accelerator, MonotonicClock
from emulator.run.train import train
from emulator.storage.base import TimedStorage
from emulator.storage.posix import PosixStorage

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


# ---- What the emulator itself costs, measured: nothing of it is subtracted from any result.
#
# An empty loader and zero compute leave the loop; RAM files and zero compute leave loop and loader. The files
# hold samples of the workload's kind, read in its pattern: small requests cost more than large ones.


LOOP_STEPS = 2000
READ_SECONDS = 0.3
"""Reading goes on for about this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What one rank costs where storage and compute cost nothing."""

    step_seconds: float
    """Wall seconds of the loop per step, with a loader that reads nothing."""
    cpu_seconds_per_gb: float
    """User + system seconds per 10^9 bytes, reading RAM files."""
    samples_per_second: float
    """Samples of `sample_bytes` that one rank reads a second from RAM."""
    sample_bytes: int


class _Empty:
    """A loader that reads nothing."""

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        return (Batch(portion.samples, 0, 0.0) for portion in portions)

    def helper_cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


def self_test(kind: str, workload: Workload) -> Overhead:
    """Measure this process with the loader `kind`; takes about half a second. Raises StorageError."""
    with tempfile.TemporaryDirectory(prefix="feedrate-", dir=_ram()) as folder:
        files = ram_files(Path(folder), workload)
        small = _small(workload, files)
        storage = TimedStorage(PosixStorage(Path(folder), direct=False, cache="warm"))
        loader = make_loader(kind, small, storage, files, columns=workload.access.columns)
        course = _course(workload, small.batch_size, files)
        try:
            _loop(loader, course)  # imports, threads and buffers are there from here on
            spent, seconds, samples, size = 0.0, 0.0, 0, 0
            while seconds < READ_SECONDS:
                cpu = cpu_seconds() + loader.helper_cpu_seconds()
                took, rows = _loop(loader, course)
                spent += cpu_seconds() + loader.helper_cpu_seconds() - cpu
                seconds += took
                samples, size = samples + int(rows["samples"].sum()), size + int(rows["bytes"].sum())
        finally:
            loader.close()
    empty = RankPlan(plan=EpochPlan(samples=FILES, ranks=1, batch_size=1), seed=0, steps=LOOP_STEPS)
    return Overhead(
        step_seconds=_loop(_Empty(), empty)[0] / LOOP_STEPS,
        cpu_seconds_per_gb=spent / (size / 1e9),
        samples_per_second=samples / seconds,
        sample_bytes=round(size / samples),
    )


def _small(workload: Workload, files: RamFiles) -> LoaderSpec:
    """The workload's loader for a step as small as a file."""
    spec = workload.loader
    batch_size = max(1, min(spec.batch_size, files.samples_per_file))
    crop = (64, 64, 64) if files.format == "npz" else ()
    return replace(spec, batch_size=batch_size, prefetch=max(spec.prefetch, spec.workers), crop=crop)


def _course(workload: Workload, batch_size: int, files: RamFiles) -> RankPlan:
    """One pass over `files`, in the workload's pattern."""
    plan = EpochPlan(
        samples=FILES * files.samples_per_file, ranks=1, batch_size=batch_size,
        samples_per_file=files.samples_per_file, access=workload.access,
    )  # fmt: skip
    return RankPlan(plan=plan, seed=0, epochs=1)


def _ram() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _loop(loader: Loader, course: RankPlan) -> tuple[float, Steps]:
    """Wall seconds of THE loop without compute, and its steps."""
    clock = MonotonicClock()
    log = StepLog(0, 0)
    begin = time.perf_counter()
    train(
        course, TrainingSpec(sync="none"), loader, Accelerator(0.0, clock), 0, lambda end: end, clock, log,
        lambda now: None,
    )  # fmt: skip
    return time.perf_counter() - begin, log.rows()
