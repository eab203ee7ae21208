"""What the emulator itself costs, measured: nothing of it is subtracted from any result.

An empty loader and zero compute leave the loop; RAM files and zero compute leave loop and loader.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from emulator.accelerator.occupy import Accelerator
from emulator.clock import MonotonicClock
from emulator.errors import storage_error
from emulator.loader.base import Batch, Loader
from emulator.loader.choose import make_loader
from emulator.plan.epoch import Course, EpochPlan
from emulator.plan.reads import Portion
from emulator.record.machine import cpu_seconds
from emulator.record.step import StepLog
from emulator.run.job import LoaderKind
from emulator.run.train import train
from emulator.spec.workload import LoaderSpec, TrainingSpec
from emulator.storage.posix import PosixStorage
from emulator.storage.timed import TimedStorage

FILES = 16
EDGE = 92
"""Voxels per axis of a RAM file: 3.9 MB."""
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


@dataclass(frozen=True, slots=True)
class _Files:
    format: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    samples_per_file: int = 1


class _Empty:
    """A loader that reads nothing."""

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        return (Batch(portion.samples, 0) for portion in portions)

    def helper_cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


def self_test(kind: LoaderKind, spec: LoaderSpec) -> Overhead:
    """Measure this process with the loader `kind`; takes about half a second. Raises StorageError."""
    small = replace(spec, batch_size=1, prefetch=max(spec.prefetch, spec.workers), crop=(64, 64, 64))
    with tempfile.TemporaryDirectory(prefix="feedrate-", dir=_ram()) as folder:
        files = _write(Path(folder))
        storage = TimedStorage(PosixStorage(Path(folder), direct=False, cache="warm"))
        loader = make_loader(kind, small, storage, files)
        try:
            _loop(loader, FILES)  # imports, threads and buffers are there from here on
            steps, spent, seconds = 0, 0.0, 0.0
            while seconds < READ_SECONDS:
                cpu = cpu_seconds() + loader.helper_cpu_seconds()
                seconds += _loop(loader, FILES)
                spent += cpu_seconds() + loader.helper_cpu_seconds() - cpu
                steps += FILES
        finally:
            loader.close()
    size = files.sizes[0]
    return Overhead(
        step_seconds=_loop(_Empty(), LOOP_STEPS) / LOOP_STEPS,
        cpu_seconds_per_gb=spent / (steps * size / 1e9),
        samples_per_second=steps / seconds,
        sample_bytes=size,
    )


def _ram() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _write(folder: Path) -> _Files:
    shape = (1, EDGE, EDGE, EDGE)
    names = tuple(f"ram_{number}.npz" for number in range(FILES))
    try:
        for name in names:
            np.savez(folder / name, x=np.zeros(shape, np.float32), y=np.zeros(shape, np.uint8))
    except OSError as error:
        raise storage_error(error, "cannot write files for the self-test") from None
    return _Files("npz", names, tuple((folder / name).stat().st_size for name in names))


def _loop(loader: Loader, steps: int) -> float:
    """Wall seconds of `steps` steps of THE loop without compute."""
    clock = MonotonicClock()
    course = Course(plan=EpochPlan(samples=FILES, ranks=1, batch_size=1), seed=0, steps=steps)
    begin = time.perf_counter()
    train(
        course, TrainingSpec(sync="none"), loader, Accelerator(0.0, clock), 0, lambda: None, clock,
        StepLog(0, 0), lambda now: None,
    )  # fmt: skip
    return time.perf_counter() - begin
