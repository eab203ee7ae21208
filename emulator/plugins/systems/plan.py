"""`feedrate plan`: how many accelerators a storage feeds, and what a number of accelerators needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from emulator.analysis.knee import whole_accelerators
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.plugins.systems import limits
from emulator.plugins.systems.limits import Limit
from emulator.plugins.systems.measured import measured_knee, open_system
from emulator.plugins.systems.system import System
from emulator.record.result import RunResult
from emulator.report.table import number
from emulator.units import show_rate, show_seconds

DEFAULT_WORKLOADS = ("unet3d-v100", "unet3d-a100", "unet3d-h100", "unet3d-b200")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """How many accelerators of one workload the storage feeds."""

    workload: str
    au_threshold: float
    """Accelerator utilization (0 to 1) that counts as fed."""
    demand_bytes_per_second: float
    """What one accelerator reads that never waits."""
    fully_fed: float | None
    """Count whose demand equals the storage's limit; None: not known."""
    knee: float | None
    """Count at which utilization crosses the threshold; None: not known."""
    interval: tuple[float, float]
    """95 % interval of the knee, or the counts between which it is known to be."""
    accelerators: int
    """Whole accelerators of the knee; without one, of the interval's lower end."""
    limit: str
    """What limits the count; empty: nothing is known to."""
    limit_bytes_per_second: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing that a number of accelerators needs, and how much of it the system has."""

    workload: str
    resource: str
    unit: str
    """B/s, requests/s, requests or hosts."""
    full: float
    """Amount with which no accelerator waits."""
    least: float
    """Amount with which utilization equals the threshold behind a hard limit."""
    reserved: float
    """Amount with which it does behind a soft limit, with the margin in reserve."""
    available: float | None
    """None: the system does not state it."""
    shortfall: str
    """A sentence; empty if `available` is as much as `reserved`, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Answers for each workload."""

    system: str
    """Name of the system or of the result; empty if none was given."""
    title: str
    measured: bool
    """True if the limit is the knee of a result, false if it is a data sheet's or a baseline's."""
    accelerators: int | None
    """Accelerators whose needs are shown."""
    per_host: int
    margin: float
    """Share to keep in reserve."""
    feeds: tuple[Feeds, ...]
    needs: tuple[Need, ...]


def plan(
    workloads: Sequence[str] = DEFAULT_WORKLOADS,
    system: str | None = None,
    accelerators: int | None = None,
    *,
    per_host: int = 8,
    margin: float = 0.1,
    settings: Sequence[str] = (),
) -> Plan:
    """Return how many accelerators `system` feeds, and what `accelerators` of each workload need.

    `system` is a system file, a name in results/systems, or the folder of a sweep, run or baseline. Raises
    SpecError, StorageError.
    """
    if system is None and accelerators is None:
        raise SpecError("plan needs a question", "give a result or --system, --accelerators N, or both")
    jobs = [load_workload(name, settings) for name in workloads]
    for job in jobs:
        if not math.isfinite(job.demand):
            raise SpecError(f"{job.name} does not compute, so it has no demand", "choose another workload")
    described, result = open_system(system) if system else (System(title="What accelerators need"), None)
    feeds: list[Feeds] = []
    needs: list[Need] = []
    for job in jobs:
        storage = described.storage
        if system:
            feeds.append(what_it_feeds(described, result, job))
        if result:  # its largest rate is what was asked for, not what the storage can give
            storage = replace(storage, bandwidth=feeds[-1].limit_bytes_per_second)
        if accelerators:
            needs += _needs(job, accelerators, replace(described, storage=storage), per_host, margin)
    return Plan(
        system=described.name, title=described.title or described.name, measured=result is not None,
        accelerators=accelerators, per_host=per_host, margin=margin, feeds=tuple(feeds), needs=tuple(needs),
    )  # fmt: skip


def what_it_feeds(system: System, result: RunResult | None, workload: Workload) -> Feeds:
    """Return what a storage feeds: the knee of the result, or else by the system's limits.

    A hard limit gives the count, a soft one the lower end of the interval. Raises SpecError.
    """
    wanted, demand = workload.training.au_threshold, workload.demand
    if result is not None:
        knee, interval, name = measured_knee(result, workload)
        limit = None if knee is None else Limit(name, knee * wanted * demand)
        return _feeds(system.name, workload, knee, interval, limit)
    alone = limits.latency_limit(system.storage, workload)
    if alone is not None and alone.bytes_per_second < wanted * demand:
        return _feeds(system.name, workload, 0.0, (0.0, 0.0), alone)
    limit = next(iter(limits.storage_limits(system.storage, workload)), None)
    if limit is None:
        return _feeds(system.name, workload, None, (0.0, math.inf), None)
    full, error = limit.bytes_per_second / demand, math.exp(limits.RUN_ERROR)
    knee = full / wanted
    interval = (limits.soft_count(full, wanted) / error, knee * error)
    return _feeds(system.name, workload, knee, interval, limit)


def _feeds(
    system: str, workload: Workload, knee: float | None, interval: tuple[float, float], limit: Limit | None
) -> Feeds:
    wanted, low = workload.training.au_threshold, interval[0]
    count = math.floor(low) if knee is None else whole_accelerators(knee)
    fed = Feeds(
        workload=workload.name, au_threshold=wanted, demand_bytes_per_second=workload.demand,
        fully_fed=None if knee is None else knee * wanted, knee=knee, interval=interval, accelerators=count,
        limit=limit.name if limit else "", limit_bytes_per_second=limit.bytes_per_second if limit else None,
        sentence="",
    )  # fmt: skip
    return replace(fed, sentence=_sentence(system, fed))


def _sentence(system: str, fed: Feeds) -> str:
    low, high = fed.interval
    accelerators = f"{fed.workload} at AU {fed.au_threshold:.0%}"
    counted = f"{system} feeds {fed.accelerators:,} x {accelerators}"
    span = f"{number(low, 3)} to {number(high, 3)}"
    if fed.limit_bytes_per_second is not None:
        rate = show_rate(fed.limit_bytes_per_second)
        if not fed.accelerators:
            return f"{system} feeds no {fed.workload}: it gets at most {rate}, by the {fed.limit}."
        knee = f"knee at {number(fed.knee, 4)}, 95 % interval {span}"
        return f"{counted} ({knee}): its limit is the {fed.limit}, {rate}."
    if math.isinf(high):
        if not low:
            return f"{system} states no limit on reads."
        return f"{counted}, or more: it met no limit."
    if not fed.accelerators:
        return f"{system} feeds fewer than {number(high, 3)} x {accelerators}."
    return f"{counted}, or more: its knee is somewhere from {span}."


def show_amount(amount: float, unit: str) -> str:
    """Format an amount of a need: `44 GB/s`, `1,234 requests/s`."""
    if unit == "B/s":
        return show_rate(amount)
    return "1 host" if unit == "hosts" and amount == 1 else f"{amount:,.0f} {unit}"


def _needs(job: Workload, accelerators: int, system: System, per_host: int, margin: float) -> list[Need]:
    """Return everything that the accelerators need with what the system has: the storage first."""
    storage, clients = system.storage, system.clients
    bandwidth = accelerators * job.demand
    requests = bandwidth / job.request_bytes
    hosts = -(-accelerators // per_host)
    rates = {limit.name: limit.bytes_per_second for limit in limits.storage_limits(storage, job)}
    rates.pop(limits.IOPS, None)  # a need of its own, which is shown without a limit, too
    of_storage = "The storage has"
    of_clients = "The clients of the sheet, which are not the storage, have"
    # Resource, unit, amount with which none waits, amount that is there, and the beginning of a shortfall.
    rows: list[tuple[str, str, float, float | None, str]] = []
    rows += [(name, "B/s", bandwidth, rate, of_storage) for name, rate in rates.items()]
    if not rates:
        rows.append(("storage bandwidth", "B/s", bandwidth, None, ""))
    rows.append((limits.IOPS, "requests/s", requests, storage.read_iops, of_storage))
    if storage.latency is not None:
        workers = job.loader.workers
        of_readers = f"At {show_seconds(storage.latency)} a request, {workers} readers each keep"
        in_flight = requests * storage.latency  # Little's law
        rows.append(("requests in flight", "requests", in_flight, accelerators * workers, of_readers))
    rows.append(("client hosts", "hosts", hosts, clients.hosts, of_clients))
    of_host = min(per_host, accelerators) * job.demand
    rows.append(("link of a client host", "B/s", of_host, clients.nic, of_clients))
    who = f"{accelerators:,} x {job.name}"
    return [_need(job, who, margin, *row) for row in rows]


def _need(
    job: Workload, who: str, margin: float, resource: str, unit: str, full: float,
    available: float | None, has: str,
) -> Need:  # fmt: skip
    wanted = job.training.au_threshold
    least, reserved = full * wanted, full / limits.soft_count(1, wanted) / (1 - margin)
    if unit == "hosts":  # the accelerators fill them, whatever the utilization
        least = reserved = full
    shortfall = ""
    if available is not None and available < reserved:
        part = f"{show_amount(available, unit)} of the {show_amount(reserved, unit)}"
        shortfall = f"{has} {part} that {who} need ({resource}, {available / reserved:.0%})."
    return Need(
        workload=job.name, resource=resource, unit=unit, full=full, least=least, reserved=reserved,
        available=available, shortfall=shortfall,
    )  # fmt: skip
