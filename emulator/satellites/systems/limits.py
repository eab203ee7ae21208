"""What a system allows a job to read: every constraint with its name, and the tightest of each scope. Pure.

A rank's reads are one stream: its readers work on its batches in order, so that what the rank gets is
shared among them. Streams share the storage max-min fairly, within what their host can take:

    rate of a stream = min(level, host / active streams of its host, stream)

with the largest level that the storage can give to all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from emulator.config.workload import Workload
from emulator.satellites.systems.system import StorageSystem, System, parse_protection

Scope = Literal["system", "host", "rank"]
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One thing that can bind."""

    name: str
    """What it is, for people."""
    scope: Scope
    """Whose bytes it limits: those of all ranks, of the ranks of one host, or of one rank."""
    rate: float
    """Bytes/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The tightest constraint of each scope, in bytes/s; infinite where nothing is stated."""

    system: float
    host: float
    rank: float
    latency: float
    """Seconds before the first byte of a rank that had nothing to read."""

    def total(self, ranks: int, hosts: int | None) -> float:
        """Bytes/s that `ranks` ranks on `hosts` hosts can read when all of them want data all the time."""
        clients = math.inf if hosts is None else self.host * min(hosts, ranks)
        return min(self.system, clients, self.rank * ranks)


def read_share(storage: StorageSystem, size: float) -> float:
    """Share of the bandwidth that reads of `size` bytes reach: the curve, interpolated along ln size."""
    curve = storage.read_efficiency
    if not curve or size <= curve[0][0]:
        return curve[0][1] if curve else 1.0
    for (low, below), (high, above) in pairwise(curve):
        if size <= high:
            return below + (above - below) * math.log(size / low) / math.log(high / low)
    return curve[-1][1]


def constraints(system: System, workload: Workload) -> tuple[Constraint, ...]:
    """Everything that limits the reads of `workload` on `system`."""
    part = read_share(system.storage, workload.request_bytes)
    return (*_storage(system, part), *_clients(system), *_ranks(system, workload, part))


def limits(system: System, workload: Workload) -> Limits:
    """The tightest constraint of each scope."""
    found = constraints(system, workload)

    def least(scope: Scope) -> float:
        return min((one.rate for one in found if one.scope == scope), default=math.inf)

    return Limits(
        system=least("system"), host=least("host"), rank=least("rank"), latency=system.storage.latency
    )


def _storage(system: System, part: float) -> list[Constraint]:
    storage, found = system.storage, []
    if storage.bandwidth is not None:
        found.append(Constraint(name="storage bandwidth", scope="system", rate=storage.bandwidth * part))
    if storage.nodes is not None and storage.node_bandwidth is not None:
        rate = storage.nodes * storage.node_bandwidth * part
        found.append(Constraint(name="storage nodes", scope="system", rate=rate))
    return found


def _clients(system: System) -> list[Constraint]:
    clients, found = system.clients, []
    if clients.nic is not None:
        found.append(Constraint(name="client NIC", scope="host", rate=clients.nic))
    if clients.cores is not None and clients.cpu_seconds_per_gb is not None:
        rate = clients.cores * GB / clients.cpu_seconds_per_gb
        found.append(Constraint(name="client CPU", scope="host", rate=rate))
    return found


def _ranks(system: System, workload: Workload, part: float) -> list[Constraint]:
    """What one rank can read alone: its network, its nodes, its threads' cores, and latency."""
    storage, clients, found = system.storage, system.clients, []
    readers = workload.loader.workers
    if clients.nic is not None:
        found.append(Constraint(name="client NIC", scope="rank", rate=clients.nic))
    if storage.node_bandwidth is not None:
        # A read goes to the nodes that hold the data of its stripe, all at the same time.
        nodes = parse_protection(storage.protection).data
        rate = nodes * storage.node_bandwidth * part
        found.append(Constraint(name="storage nodes of one stripe", scope="rank", rate=rate))
    if clients.cpu_seconds_per_gb is not None:
        busy = min(readers, clients.cores or readers)
        found.append(
            Constraint(name="readers of a rank", scope="rank", rate=busy * GB / clients.cpu_seconds_per_gb)
        )
    if storage.latency > 0:
        block = workload.request_bytes
        alone = min((one.rate for one in found), default=math.inf)
        # A reader waits for the first byte of each request; the others transfer meanwhile.
        rate = readers * block / (storage.latency + block / alone)
        found.append(Constraint(name="latency x readers of a rank", scope="rank", rate=rate))
    return found


def write_limit(storage: StorageSystem) -> float:
    """Bytes/s that clients can write: nodes also take the parity, (k + m) / k bytes per byte."""
    found = [math.inf]
    if storage.write_bandwidth is not None:
        found.append(storage.write_bandwidth)
    if storage.nodes is not None and storage.node_bandwidth is not None:
        found.append(storage.nodes * storage.node_bandwidth / parse_protection(storage.protection).overhead)
    return min(found)


def binding(found: Sequence[Constraint], ranks: int, hosts: int | None) -> Constraint | None:
    """The constraint that limits `ranks` ranks on `hosts` hosts first; None when nothing is stated."""
    parts = {"system": 1, "host": math.inf if hosts is None else min(hosts, ranks), "rank": ranks}
    return min(found, key=lambda one: one.rate * parts[one.scope], default=None)
