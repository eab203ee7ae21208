"""The limit of a point: the storage, this client's CPU, quota, link or loader, or compute (nothing)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from emulator.analysis.flags import held_up
from emulator.analysis.storage_limit import REACHED, Reading, storage_limit
from emulator.record.result import Bound, BoundKind, HostShare, Point, Probe, Starved
from emulator.units import counted, show_rate, show_seconds

FED = 0.95
"""Throughput / ideal from which compute is the limit, if processes had held no accelerator up."""
TRAINS = 0.90
"""Throughput / ideal from which compute is the limit, if only late processes lowered it. With torch it is
93 % on hosts that are short of nothing (results/causes.md): handing a batch over takes time."""
BUSY = 0.90
"""Share of a host's CPU time from which CPU is the limit."""
SAME = 0.90
"""Ratio from which two rates count as the same."""
SPARE = 0.75
"""Busy share of a host's CPU below which it had a core left over."""
OTHERS = 0.25
"""Share of the cores used by other programs, from which they are named as the cause."""
WORTH = 0.05
"""Share of the lost time from which a cause gets a sentence."""

NAMES = {
    "storage": "storage",
    "link": "the link of a host",
    "cores": "waiting for a core",
    "quota": "CPU quota",
    "work": "working on a core",
    "loader": "the loader",
    "steps": "longer steps of other ranks",
    "barrier": "the emulator's barriers",
}
"""Fields of Starved in words."""

LIMIT_NAMES: dict[BoundKind, str] = {
    "compute": "compute",
    "storage": "storage",
    "bandwidth": "storage bandwidth",
    "iops": "storage IOPS",
    "metadata": "storage metadata",
    "memory": "page cache",
    "latency": "storage latency",
    "client-cpu": "client CPU",
    "cpu-quota": "CPU quota",
    "client-link": "client link",
    "straggler": "straggling rank",
    "loader": "loader",
    "emulator": "emulator",
}
"""Kinds of limits in words. A client's link is its network or its device."""

HELPS: dict[BoundKind, str] = {
    "storage": "a faster storage, or a faster path to it, would feed more",
    "bandwidth": "more bandwidth would feed more",
    "iops": "more IOPS, or larger requests, would feed more",
    "metadata": "opens that take less time would feed more",
    "memory": "--cache cold reads from the storage",
    "latency": "more workers, or larger requests, would feed more",
    "client-cpu": "more hosts or cores would get more",
    "cpu-quota": "a larger CPU quota would get more",
    "client-link": "a faster link of that client, or more clients, would get more",
    "straggler": "look for what stops that rank or takes its cores",
    "loader": "more workers or prefetch (loader.workers, loader.prefetch) may get more",
    "emulator": "fewer ranks on each core, or TCP between the hosts, would get more",
}
"""Advice for a limit that has no number of its own (`Bound.help`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShape:
    """The configuration of emulated storage."""

    rate: float
    """Bytes per second that the ranks of a host share."""
    request_seconds: float
    """Seconds of a request when there is no other."""


def classify(
    point: Point,
    others: Sequence[Point] = (),
    shape: StorageShape | None = None,
    probes: Sequence[Probe] = (),
    reading: Reading | None = None,
) -> Bound:
    """The limit of a point, with the evidence for it.

    `others` are the other points of the sweep. `shape` is None for real storage. Without `reading` the
    storage's limits are not told apart.
    """
    limit = compute(point) or at_cap(point, shape)
    if limit is None and (point.starved is None or point.starved.seconds <= 0):
        limit = busy_client(point) or client_link(point, others) or storage(point)
    return limit or _starving(point, others, shape, probes, reading)


def _starving(
    point: Point,
    others: Sequence[Point],
    shape: StorageShape | None,
    probes: Sequence[Probe],
    reading: Reading | None,
) -> Bound:
    """The limit of a point of which schedstat tells what starved its accelerators."""
    assert point.starved is not None
    kind, limit = _largest_share(point, point.starved), None
    of_storage = storage_limit(point, probes, reading, others) if reading else None
    if kind == "storage":
        limit = client_link(point, others) or of_storage or answers_at_once(point, shape)
    elif kind == "client-cpu" and _cores_to_spare(point):
        # Threads queue for a core at times even where some are idle; a storage at its maximum outweighs that.
        at_maximum = of_storage is not None and of_storage.kind in ("bandwidth", "iops")
        limit = of_storage if at_maximum else None
    if limit is None:
        limit = _bound_of_share(point, kind)
    return replace(limit, evidence=(*limit.evidence, *_shares(point), *busy_hosts(point).values()))


def compute(point: Point) -> Bound | None:
    """The storage feeds the accelerators, and the processes of these clients keep up."""
    if point.x_ideal + held_up(point) < FED or point.x_ideal < TRAINS:
        return None
    evidence = (
        f"throughput without the first step is {point.x_ideal:.1%} of ideal",
        f"with it, ranks waited {point.wait_share:.1%} of the time",
    )
    return Bound(kind="compute", evidence=evidence)


def at_cap(point: Point, shape: StorageShape | None) -> Bound | None:
    """Emulated storage delivers the rate that it is shaped to; where hosts have idle cores, most of it."""
    if shape is None or point.x_ideal >= FED:
        return None
    hosts = max(1, len(point.hosts))
    least = REACHED if _cores_to_spare(point) else SAME
    if point.bytes_per_second < least * shape.rate * hosts:
        return None
    rates = f"{show_rate(point.bytes_per_second)} of the {show_rate(shape.rate * hosts)}"
    evidence = (f"it delivered {rates} that it is shaped to, on {counted(hosts, 'host')}", *_shares(point))
    return Bound(kind="bandwidth", evidence=evidence)


def _bound_of_share(point: Point, kind: BoundKind) -> Bound:
    """The bound of the largest share, where nothing else names the limit."""
    if kind == "straggler" and point.starved is not None:
        rank, host = point.starved.straggler, point.starved.straggler_host
        evidence = (f"rank {rank} lost twice as much time by itself as any other",)
        return Bound(kind=kind, evidence=evidence, host=host)
    advice = cores_wanted(point) if kind in ("client-cpu", "cpu-quota") else ""
    return Bound(kind=kind, evidence=(), host=_only_host(point, kind), help=advice)


def _cores_to_spare(point: Point) -> bool:
    """True if every host had idle cores, and the largest share is the storage's or of waits for cores."""
    if point.starved is None or _largest_share(point, point.starved) not in ("storage", "client-cpu"):
        return False
    return all(host.busy_share is not None and host.busy_share < SPARE for host in point.hosts)


def _largest_share(point: Point, lost: Starved) -> BoundKind:
    """The name of the largest share; the storage's only where it exceeds all of the client's together."""
    if lost.steps > 0.5:
        return "compute"
    if lost.straggler is not None:
        return "straggler"
    shares: dict[BoundKind, float] = {
        "client-cpu": lost.cores,
        "cpu-quota": lost.quota,
        "client-link": lost.link,
        "loader": lost.loader,
        "emulator": lost.barrier,
    }
    # Time on a core is the CPU's where no core was idle. Elsewhere it is the loader's, which would have used
    # more cores with more workers.
    working: BoundKind = "loader"
    if any(_crowded(point, host) for host in point.hosts):
        working = "cpu-quota" if lost.quota > lost.cores else "client-cpu"
    shares[working] += lost.work
    if lost.storage > sum(shares.values()):
        return "storage"
    return max(shares, key=lambda kind: shares[kind])


def _crowded(point: Point, host: HostShare) -> bool:
    """True if the ranks of a host had no idle core."""
    if host.cpu_seconds >= BUSY * host.cores * point.seconds:
        return True
    lost = host.starved
    if lost is None or lost.cores + lost.quota <= 0.25 * lost.work:
        return False
    # Threads waited for cores a quarter as long as they ran. Where cores were idle, each waited only until
    # the kernel had moved it to one. Busy cores alone prove nothing: work of lower priority gives way.
    has_idle_cores = host.busy_share is not None and host.busy_share < SPARE
    return not has_idle_cores or lost.quota > 0


def _only_host(point: Point, kind: BoundKind) -> str:
    """The one host of several that `kind` limits; empty when it limits more of them, or none."""
    if kind in ("storage", "compute"):
        return ""
    limited = [
        host.host for host in point.hosts if host.starved and _largest_share(point, host.starved) == kind
    ]
    return limited[0] if len(limited) == 1 < len(point.hosts) else ""


def _shares(point: Point) -> tuple[str, ...]:
    """A sentence with the shares of what starved the accelerators."""
    lost = point.starved
    if lost is None or lost.seconds <= 0:
        return ()
    shares = sorted(((getattr(lost, name), words) for name, words in NAMES.items()), reverse=True)
    named = [f"{words} {share:.0%}" for share, words in shares if share >= WORTH]
    return (f"of the time in which accelerators starved: {', '.join(named)}",)


def cores_wanted(point: Point) -> str:
    """Say how many cores would feed the point's accelerators, and who else uses those of its hosts."""
    used = sum(host.cpu_seconds for host in point.hosts) / max(1e-9, point.seconds)
    cores = sum(host.cores for host in point.hosts)
    if not (point.x_ideal > 0 and used and cores):
        return ""
    wanted = max(1, math.ceil(used / point.x_ideal))
    feeding = f"{counted(wanted, 'core')} for the ranks alone would feed {point.ranks}"
    if point.starved is not None and point.starved.quota > point.starved.cores:
        return f"a quota of {feeding}"  # the other cores do not matter
    if others := cores_of_others(point):
        return f"other programs use {others:.1f} of the {counted(cores, 'core')}: end them; {feeding}"
    if wanted <= cores:
        return ""
    return f"{feeding}, or {math.ceil(wanted / cores * len(point.hosts))} hosts like this"


def cores_of_others(point: Point) -> float:
    """Cores of the point's hosts that other programs kept busy, mean; 0 up to a share of OTHERS."""
    cores = sum(host.cores for host in point.hosts)
    own = sum(host.cpu_seconds for host in point.hosts) / max(1e-9, point.seconds)
    others = sum((host.busy_share or 0.0) * host.cores for host in point.hosts) - own
    return others if others > OTHERS * cores else 0.0


def answers_at_once(point: Point, shape: StorageShape | None) -> Bound | None:
    """Emulated storage answers each request as fast as one by itself: too few are in flight."""
    requests = sum(point.read_latency.values())
    if shape is None or not requests:
        return None
    mean = sum(float(edge) * 1e-6 * count for edge, count in point.read_latency.items()) / requests
    if mean > 1.25 * shape.request_seconds:
        return None
    delivered = point.bytes_per_second / (shape.rate * max(1, len(point.hosts)))
    evidence = (
        f"a request took {show_seconds(mean)}, as long as one by itself, and the storage delivered "
        f"{delivered:.0%} of what it is shaped to",
    )
    return Bound(kind="latency", evidence=evidence)


def client_link(point: Point, others: Sequence[Point]) -> Bound | None:
    """Every host reads as fast as one that starved alone: capacity grows with hosts."""
    starved = [other for other in others if len(other.hosts) == 1 and other.x_ideal < FED]
    if len(point.hosts) < 2 or not starved:
        return None
    alone = max(other.hosts[0].bytes / other.seconds for other in starved)
    least = min(host.bytes / point.seconds for host in point.hosts)
    if least < SAME * alone:
        return None
    evidence = (
        f"each of {len(point.hosts)} hosts read {show_rate(least)} or more",
        f"one host alone read {show_rate(alone)} and starved: capacity grew with hosts",
    )
    return Bound(kind="client-link", evidence=evidence)


def busy_client(point: Point) -> Bound | None:
    """Where the kernel has no schedstat: the CPU of the hosts whose cores were busy."""
    busy = busy_hosts(point)
    only = next(iter(busy), "") if len(busy) == 1 < len(point.hosts) else ""
    return Bound(kind="client-cpu", evidence=tuple(busy.values()), host=only) if busy else None


def busy_hosts(point: Point) -> dict[str, str]:
    """The hosts whose cores were busy, each with a sentence on it."""
    sentences = {}
    for host in point.hosts:
        own = host.cpu_seconds / max(1e-9, host.cores * point.seconds)
        busy = max(own, host.busy_share or 0.0)
        if busy >= BUSY:
            others = ", most of it by other processes" if busy - own > 0.5 * busy else ""
            used = f"the ranks used {own:.0%} of {host.cores} cores"
            sentences[host.host] = f"{host.host}: {used}, the host was {busy:.0%} busy{others}"
    return sentences


def storage(point: Point) -> Bound:
    """The storage is the limit when nothing else is."""
    waited = f"ranks waited {point.wait_share:.0%} of the time and no client was short of CPU"
    return Bound(kind="storage", evidence=(waited,))
