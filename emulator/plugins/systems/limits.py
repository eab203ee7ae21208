"""The limits of a storage for a job's reads, and the closed form of what accelerators lose to them.

N accelerators demand N r bytes/s. A hard limit B leaves them the utilization min(1, B / (N r)), a soft one
(1 + (N r / B)^p)^(-1/p). Real storage lies between the two (DESIGN.md). `full` is B / r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from emulator.analysis.variation import PRIOR_DEVIATION
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.plugins.systems.system import StorageSystem
from emulator.units import show_bytes

SOFTNESS = 8.5
"""p of a documented system that feeds 288 accelerators at 98 % with a hard limit of 352
(results/seed-case-45GBps.md)."""
RUN_ERROR = 1.96 * PRIOR_DEVIATION
"""Half width of the 95 % interval of ln throughput from run to run."""
IOPS = "storage IOPS"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a workload's reads."""

    name: str
    bytes_per_second: float


def soft_count(full: float, au: float) -> float:
    """Return the count at which a soft limit leaves the utilization `au`; it leaves 100 % to none."""
    au = min(au, 0.999)
    return float(full / au * (1 - au**SOFTNESS) ** (1 / SOFTNESS))


def soft_utilization(full: float, count: float) -> float:
    """Return the utilization (0 to 1) that a soft limit leaves to `count` accelerators."""
    return float((1 + (count / full) ** SOFTNESS) ** (-1 / SOFTNESS))


def read_share(storage: StorageSystem, size: float) -> float:
    """Return the share of the bandwidth for reads of `size` bytes, interpolated along ln size.

    Raises SpecError if only smaller reads are known.
    """
    if not storage.read_efficiency:
        return 1.0
    sizes, shares = zip(*storage.read_efficiency, strict=True)
    if sizes[-1] < min(size, 128 * 2**10):  # the rate of small reads is no bandwidth
        what = (
            f"known are reads of up to {show_bytes(sizes[-1])}, and the workload's are of {show_bytes(size)}"
        )
        raise SpecError(what, "measure larger ones: feedrate baseline --suite sequential")
    return float(np.interp(math.log(size), np.log(sizes), shares))


def storage_limits(storage: StorageSystem, workload: Workload) -> tuple[Limit, ...]:
    """Return the limits of the whole storage on the reads of `workload`, the tightest first."""
    size, limits = workload.request_bytes, []
    if storage.bandwidth is not None:
        limits.append(Limit("storage bandwidth", storage.bandwidth * read_share(storage, size)))
    if storage.nodes is not None and storage.node_bandwidth is not None:
        limits.append(Limit("links of the storage nodes", storage.nodes * storage.node_bandwidth))
    if storage.read_iops is not None:
        limits.append(Limit(IOPS, storage.read_iops * size))
    return tuple(sorted(limits, key=lambda limit: limit.bytes_per_second))


def latency_limit(storage: StorageSystem, workload: Workload) -> Limit | None:
    """Return what the readers of one accelerator get at the latency of a lone request, if that is stated.

    A latency under load says nothing of fewer requests.
    """
    if storage.latency is None or storage.depth is not None:
        return None
    readers = workload.loader.workers
    rate = readers * workload.request_bytes / storage.latency
    return Limit(f"latency of {storage.latency * 1e3:.3g} ms with {readers} readers an accelerator", rate)
