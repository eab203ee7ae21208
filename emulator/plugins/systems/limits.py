"""The limits of a system for a job's reads, and the tightest of each scope.

A rank's reads are one stream: its readers work on its batches in order, and share its rate. Streams share the
storage max-min fairly, within the limit of their host:

    rate of a stream = min(level, host / active streams of its host, stream)

with the largest level that the storage can sustain for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from emulator.config.workload import Workload
from emulator.plugins.systems.system import StorageSystem, System, parse_protection

Scope = Literal["system", "host", "rank"]
GB = 1e9


@dataclass(frozen=True, slots=True)
class Constraint:
    """One limit on reading."""

    name: str
    scope: Scope
    """Ranks that share the limit: all, those of one host, or one."""
    rate: float
    """Bytes/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLimits:
    """The tightest constraint of each scope, in bytes/s; infinite if none is stated."""

    system: float
    host: float
    rank: float


def read_share(storage: StorageSystem, size: float) -> float:
    """Return the share of the bandwidth for reads of `size` bytes: the curve, interpolated along ln size."""
    if not storage.read_efficiency:
        return 1.0
    sizes, shares = zip(*storage.read_efficiency, strict=True)
    return float(np.interp(math.log(size), np.log(sizes), shares))


def constraints(system: System, workload: Workload) -> tuple[Constraint, ...]:
    """Return every limit on the reads of `workload` on `system`."""
    storage, clients, readers = system.storage, system.clients, workload.loader.workers
    share = read_share(storage, workload.request_bytes)
    limits = []
    if storage.bandwidth is not None:
        limits.append(Constraint("storage bandwidth", "system", storage.bandwidth * share))
    if storage.nodes is not None and storage.node_bandwidth is not None:
        limits.append(Constraint("storage nodes", "system", storage.nodes * storage.node_bandwidth * share))
    if clients.nic is not None:
        limits.append(Constraint("client NIC", "host", clients.nic))
    if clients.cores is not None and clients.cpu_seconds_per_gb is not None:
        limits.append(Constraint("client CPU", "host", clients.cores * GB / clients.cpu_seconds_per_gb))
    # Limits of a single rank: its network, its nodes, its threads' cores, and latency.
    alone = []
    if clients.nic is not None:
        alone.append(Constraint("client NIC", "rank", clients.nic))
    if storage.node_bandwidth is not None:
        # A read goes to all nodes with data of its stripe at the same time.
        nodes = parse_protection(storage.protection).data
        alone.append(
            Constraint("storage nodes of one stripe", "rank", nodes * storage.node_bandwidth * share)
        )
    if clients.cpu_seconds_per_gb is not None:
        busy = min(readers, clients.cores or readers)
        alone.append(Constraint("readers of a rank", "rank", busy * GB / clients.cpu_seconds_per_gb))
    if storage.latency > 0:
        # While a reader waits for the first byte of a request, the others transfer.
        block, rate = workload.request_bytes, _tightest(alone, "rank")
        rate = readers * block / (storage.latency + block / rate)
        alone.append(Constraint("latency x readers of a rank", "rank", rate))
    return (*limits, *alone)


def _tightest(found: Sequence[Constraint], scope: Scope) -> float:
    return min((constraint.rate for constraint in found if constraint.scope == scope), default=math.inf)


def tightest_limits(system: System, workload: Workload) -> SystemLimits:
    """Return the tightest limit of each scope."""
    limits = constraints(system, workload)
    return SystemLimits(
        system=_tightest(limits, "system"), host=_tightest(limits, "host"), rank=_tightest(limits, "rank")
    )


def soft_limits(
    bound: SystemLimits, each: float, ranks: int, hosts: int, softness: float | None
) -> SystemLimits:
    """Return limits lowered by `StorageSystem.softness`, for `ranks` ranks that demand `each` bytes/s."""
    full = min(bound.system, bound.host * hosts) / min(each, bound.rank)  # ranks that fill the limit
    if softness is None or not 0 < full < math.inf:
        return bound
    ratio = min(ranks / full, full / ranks)
    share = (1 + ratio**softness) ** (-1 / softness)
    return SystemLimits(system=bound.system * share, host=bound.host * share, rank=bound.rank * share)


def cap(system: System, workload: Workload, threshold: float | None = None) -> float:
    """Return the number of accelerators whose demand fills the tightest limit, without simulation.

    0 if the demand of one is more than a rank can read; infinite if no limit is stated. `threshold` is the
    wanted AU; None for the workload's.
    """
    wanted = workload.training.au_threshold if threshold is None else threshold
    each, hosts = workload.demand, system.clients.hosts
    limits = tightest_limits(system, workload)
    full = limits.system / each
    if hosts is not None:
        full = min(full, limits.host * hosts / each)
    return full if limits.rank >= each * wanted else 0.0


def binding(found: Sequence[Constraint], ranks: int, hosts: int | None) -> Constraint:
    """Return the limit that `ranks` ranks on `hosts` hosts reach first; at least one must be stated."""
    parts = {"system": 1, "host": math.inf if hosts is None else min(hosts, ranks), "rank": ranks}
    return min(found, key=lambda constraint: constraint.rate * parts[constraint.scope])
