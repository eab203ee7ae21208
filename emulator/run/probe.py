"""Probe the storage with random reads of several sizes at several queue depths, for a few seconds in total.

The results show which limit a point met: bandwidth is the rate that a larger depth does not raise, IOPS the
requests per second that smaller requests do not raise, and latency the time of a single request.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emulator.analysis.storage_limit import FLAT
from emulator.config.workload import Workload
from emulator.dataset.formats import format_named
from emulator.dataset.manifest import Dataset, Manifest
from emulator.errors import FeedrateError
from emulator.launch.comm import Comm, agreed
from emulator.loader import reads_by_library
from emulator.record.device import Counters, counters_of, read_ahead_bytes
from emulator.record.result import Probe
from emulator.record.schedstat import thread_busy_seconds
from emulator.storage.base import Storage
from emulator.storage.posix import PosixStorage, aligned_buffer
from emulator.units import BLOCK_BYTES

LARGE_BYTES = 2**20
"""Bytes of a request from which bandwidth, not IOPS, limits most storage."""
SECONDS = 0.25
"""Seconds of reading at each size and depth, at least; longer until each reader has made two requests."""
DEPTHS = (1, 4, 16, 64)
"""Requests in flight on each host."""
MOST_BYTES = 16 * 2**20
"""Most bytes in flight on a host: some clients have little memory for buffers."""
DEFAULT_READ_AHEAD = 128 * 1024
"""Linux's default read-ahead in bytes, for file systems that do not report theirs."""


def how_read(loader: str, workload: Workload, dataset: Dataset, direct: bool) -> dict[str, Any]:
    """Return how samples are read, for the result: the call, the bytes of a request, and what calls.

    `engine` is an Engine of storage.batches; None where blobs or a library read.
    `read_ahead_bytes` is the kernel's for this mount; None if unknown or not on a mount.
    """
    root, engine = getattr(dataset.store, "root", None), None
    ahead = read_ahead_bytes(root) if isinstance(root, Path) else None
    if reads_by_library(loader, dataset.manifest, workload.access) and root is not None:
        call = format_named(dataset.manifest.format).library
        size = ahead or DEFAULT_READ_AHEAD
    else:
        call = "GET" if root is None else "preadv, O_DIRECT" if direct else "preadv"
        size = workload.request_bytes
        spec, mean = workload.loader, workload.sample_read.bytes_mean
        if loader == "direct":
            storage = dataset.store.for_ranks(direct=direct, cache="cold")
            if isinstance(storage, PosixStorage):
                engine = storage.engine(spec.workers, spec.batch_size, mean)
    return {
        "call": call,
        "direct": call in ("GET", "preadv, O_DIRECT"),
        "engine": engine,
        "request_bytes": round(size),
        "read_ahead_bytes": ahead,
    }


def read_rate(storage: Storage, manifest: Manifest, size: int, depth: int, seconds: float) -> float:
    """Read with `depth` threads for `seconds`, in requests of `size` bytes; return bytes per second.

    Raises StorageError, DatasetError.
    """
    reads = _read(storage, manifest, size, depth, seed=0, seconds=seconds)
    return reads.bytes / reads.seconds


def probe_storage(
    storage: Storage, manifest: Manifest, folder: Path | None, request_bytes: int, comm: Comm
) -> tuple[Probe, ...]:
    """Read from every rank of `comm` at once; return the results on all of them.

    `folder` is that of the dataset on a mount; `request_bytes` is the size of the requests of a point.
    Raises StorageError, DatasetError.
    """
    request = max(BLOCK_BYTES, request_bytes // BLOCK_BYTES * BLOCK_BYTES)
    plan = {request: DEPTHS, BLOCK_BYTES: DEPTHS[1:], max(request, LARGE_BYTES): DEPTHS}
    counters = counters_of(folder) if folder else lambda: None
    probes: list[tuple[int, Probe]] = []
    for size, depths in plan.items():
        probed = partial(_probed, storage, manifest, counters, size, comm=comm)
        probes += [(size, probe) for probe in _at_depths(probed, size, depths)]
    # The best of many short measurements is too high by chance: measure it again, for longer.
    best = max(range(len(probes)), key=lambda place: probes[place][1].bytes_per_second)
    size, short = probes[best]
    again = _probed(storage, manifest, counters, size, short.depth // comm.size, comm, 4 * SECONDS)
    probes[best] = size, replace(again, request_bytes=short.request_bytes)
    return tuple(probe for _, probe in probes)


def _at_depths(probed: Callable[[int], Probe], size: int, depths: Sequence[int]) -> list[Probe]:
    """Probe with requests of `size` bytes at these depths, until a larger one is not faster."""
    probes: list[Probe] = []
    rate = 0.0
    for depth in depths:
        if depth > 1 and depth * size > MOST_BYTES:
            continue
        probes.append(probed(depth))
        before, rate = rate, probes[-1].requests_per_second
        if rate < FLAT * before:
            break
    # Reads of files smaller than `size` are shorter. All depths get the mean, so that they compare.
    mean = round(sum(probe.request_bytes for probe in probes) / max(1, len(probes)))
    return [replace(probe, request_bytes=mean) for probe in probes]


def _probed(
    storage: Storage,
    manifest: Manifest,
    counters: Counters,
    size: int,
    depth: int,
    comm: Comm,
    seconds: float = SECONDS,
) -> Probe:
    before = counters()
    reads = agreed(comm, lambda: _read(storage, manifest, size, depth, comm.rank, seconds))
    after = counters()
    on_device = after.since(before).requests / reads.seconds if before and after else math.nan
    count, got = len(reads.times), reads.bytes
    counts = np.array([count, got, sum(reads.times), count / reads.seconds, on_device, reads.cores])
    count, got, spent, rate, device_rate, cores = comm.sum(counts).tolist()
    return Probe(
        request_bytes=round(got / max(1.0, count)),
        depth=depth * comm.size,
        requests_per_second=rate,
        latency_seconds=spent / max(1.0, count),
        device_requests_per_second=None if math.isnan(device_rate) else device_rate,
        cores=cores / comm.size,
    )


class _Reads(NamedTuple):
    """The reads of one size and depth."""

    times: Sequence[float]
    """Seconds of each request."""
    bytes: int
    seconds: float
    """Seconds from the start of the first request to the end of the last one."""
    cores: float
    """Cores that its threads used or waited for, as a mean."""


def _read(
    storage: Storage, manifest: Manifest, size: int, depth: int, seed: int, seconds: float = SECONDS
) -> _Reads:
    """Read at random offsets with `depth` threads for `seconds`, and at least twice with each."""
    parts = format_named(manifest.format).parts
    times: list[float] = []
    sizes: list[int] = []
    failed: list[FeedrateError] = []
    busy: list[float] = []
    begin = time.monotonic()

    def read(number: int) -> None:
        draw, buffer, done = np.random.default_rng((seed, number)), aligned_buffer(size), 0
        try:
            while done < 2 or time.monotonic() - begin < seconds:
                file = int(draw.integers(len(manifest.names)))
                # Opened each time: opening evicts what other reads left in the page cache.
                name = parts(manifest.names[file])[0]
                with storage.open(name) as blob:
                    at = int(draw.integers(max(1, blob.size - size))) // BLOCK_BYTES * BLOCK_BYTES
                    before = time.monotonic()
                    sizes.append(blob.read_into(at, buffer))
                    times.append(time.monotonic() - before)
                done += 1
            busy.append(thread_busy_seconds())
        except FeedrateError as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    took = time.monotonic() - begin
    return _Reads(times, sum(sizes), took, sum(busy) / took)
