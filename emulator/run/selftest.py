"""Measure the emulator's own cost, which is not subtracted from any result.

Without compute, an empty loader shows the cost of the loop, and files in memory that of loop and loader. The
files hold samples of the workload's kind and are read in its pattern, because small requests cost more.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np

from emulator.config.recipe import ColumnSpec, load_recipe
from emulator.config.workload import Workload
from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import write_file
from emulator.dataset.grow import random_sources
from emulator.dataset.manifest import Manifest
from emulator.dataset.plan import DatasetPlan
from emulator.errors import storage_errors
from emulator.files import memory_folder
from emulator.loader import make_loader
from emulator.loader.base import Batch, Loader
from emulator.order import EpochPlan, Portion, RankPlan
from emulator.record.steps import StepLog, Steps
from emulator.registry import FORMATS
from emulator.run.accelerator import Accelerator, MonotonicClock
from emulator.run.train import train
from emulator.storage.base import WriteOptions
from emulator.storage.folder import REQUEST, FileDraft
from emulator.storage.posix import PosixStorage, aligned_buffer

FILES = 16
"""Fewest files of the self-test."""
EDGE = 92
"""Voxels per axis of a volume of 3.9 MB."""
FILE_BYTES = 5 * EDGE**3
"""Approximate bytes of a file."""
_ROW_GROUP = 6144
"""Rows per row group, as in DLRM."""
LOOP_STEPS = 2000
READ_SECONDS = 0.3
"""Shortest time of reading, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """One rank's cost with free storage and compute."""

    step_seconds: float
    """Wall seconds per step with a loader that reads nothing."""
    cpu_seconds_per_gb: float
    """User + system seconds per 10^9 bytes read from files in memory."""
    samples_per_second: float
    """Samples/s of `sample_bytes` that one rank reads from memory."""
    sample_bytes: int


def self_test(kind: str, workload: Workload) -> Overhead:
    """Measure this process with the loader `kind`, in about half a second. Raises StorageError."""
    with tempfile.TemporaryDirectory(prefix="feedrate-", dir=memory_folder()) as folder:
        with storage_errors(f"cannot write the self-test's files to {folder}"):
            files = ram_files(Path(folder), workload)
        spec = workload.loader
        small = replace(  # a step takes one file
            spec,
            batch_size=max(1, min(spec.batch_size, files.samples // FILES)),
            prefetch=spec.prefetch and max(spec.prefetch, spec.workers),
            crop=(64, 64, 64) if files.format == "npz" else (),
            # Workers persist: they start once an epoch, and a pass is much shorter than an epoch.
            refill="persistent",
        )
        storage = PosixStorage(Path(folder), direct=False, cache="warm")
        access = replace(workload.access, calls="")
        loader = make_loader(kind, small, storage, files, access=access)
        plan = EpochPlan(
            samples=files.samples,
            ranks=1,
            batch_size=small.batch_size,
            samples_per_file=files.samples_per_file,
            access=access,
            refill=small.refill,
        )
        one_pass = RankPlan(plan=plan, seed=0, epochs=1)
        try:
            _loop(loader, one_pass)  # a first pass pays for imports, threads and buffers
            spent, seconds, samples, size = 0.0, 0.0, 0, 0
            while seconds < READ_SECONDS:
                before = time.process_time() + loader.helper_cpu_seconds()
                took, rows = _loop(loader, one_pass)
                spent += time.process_time() + loader.helper_cpu_seconds() - before
                seconds += took
                samples, size = samples + int(rows["samples"].sum()), size + int(rows["bytes"].sum())
        finally:
            loader.close()
    nothing = RankPlan(plan=EpochPlan(samples=FILES, ranks=1, batch_size=1), seed=0, steps=LOOP_STEPS)
    return Overhead(
        step_seconds=_loop(_Empty(), nothing)[0] / LOOP_STEPS,
        cpu_seconds_per_gb=spent / (size / 1e9),
        samples_per_second=samples / seconds,
        sample_bytes=round(size / samples),
    )


def ram_files(folder: Path, workload: Workload) -> Manifest:
    """Write files with samples of the workload's kind and size for FILES steps. Raises OSError."""
    name, sample = workload.sample.format, workload.sample_read
    form = format_named(name)
    if workload.sample.samples_per_file == 1 and not form.records:
        name, shape = "npz", (1, EDGE, EDGE, EDGE)
        form = format_named(name)
    else:
        size = min(sample.bytes_mean, FILE_BYTES)
        count = max(2, FILE_BYTES // size) if workload.sample.samples_per_file > 1 else 1
        shape = (count, 1, 1, max(1, size // 5))
    if name == "parquet":
        names = workload.access.columns or ("x",)
        values = max(1, sample.bytes_mean // len(names) // 4)  # width of the mean column that is read
        width = values if values > 1 else 0
        columns = tuple(ColumnSpec(name=column, dtype="float32", size=width) for column in names)
        form = FORMATS.load(name)(columns, _ROW_GROUP)
    # A step takes several of the files that are smaller than FILE_BYTES.
    many = FILES * max(1, min(workload.loader.batch_size, FILE_BYTES // (5 * math.prod(shape))))
    files = tuple(f"ram_{number}{form.suffix}" for number in range(many))
    sources = random_sources("incompressible", 0, 0)
    (pieces,) = form.files(shape, sources)
    with FileDraft(folder / files[0], WriteOptions(direct=False, sync=False)) as target:
        _, size = write_file(target, pieces, sources, aligned_buffer(REQUEST))
        target.publish()
    data = (folder / files[0]).read_bytes()
    # Containers limit /dev/shm to 64 MB by default: then one file in the CPU's cache has to do for all.
    roomy = shutil.disk_usage(folder).free > 4 * many * size
    for file in files[1:]:
        if roomy:
            (folder / file).write_bytes(data)
        else:
            (folder / file).hardlink_to(folder / files[0])
    sizes = np.full(many, size)
    # With a plan they are feedrate's own, which the torch loader reads with np.load.
    plan = DatasetPlan(recipe=load_recipe("tiny"), seed=0, files=many) if name == "npz" else None
    return Manifest(format=name, names=files, sizes=sizes, samples_per_file=shape[0], plan=plan)


class _Empty:
    """A loader that reads nothing."""

    def read(self, portions: Iterable[Portion]) -> Iterator[Batch]:
        return (Batch(portion.samples, 0, 0.0) for portion in portions)

    def helper_cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


def _loop(loader: Loader, plan: RankPlan) -> tuple[float, Steps]:
    """Run the loop of a rank without compute; return its wall seconds and steps."""
    clock, log = MonotonicClock(), StepLog(0, 0)
    begin = time.perf_counter()
    train(plan, loader, Accelerator(repeat(0.0), clock).compute, log, clock)
    return time.perf_counter() - begin, log.rows()
