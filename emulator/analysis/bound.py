"""The limit of a point: the storage, this client's CPU, quota, link or loader, or compute (nothing).

`RULES` are asked in order, and the first that knows the limit names it, with its evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from emulator.analysis.flags import held_up
from emulator.analysis.storage_limit import REACHED, Reading, storage_limit
from emulator.record.result import Bound, BoundKind, HostShare, Point, Probe, Starved
from emulator.units import counted, show_rate, show_seconds

FED = 0.95
"""Throughput / ideal from which compute is the limit, if processes had held no accelerator up."""
TRAINS = 0.90
"""Throughput / ideal from which compute is the limit. Lower than FED: with torch it is 93 % where nothing is
short (results/causes.md), since handing a batch over takes time on any host."""
BUSY = 0.90
"""Share of a host's CPU time from which CPU is the limit."""
SAME = 0.90
"""Ratio from which two rates count as the same."""
CROWDED = 0.25
"""Seconds waiting for a core per second on one, from which a host has no core left over."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    point: Point
    others: Sequence[Point]
    """Other points of the sweep: what a host or a rank got among fewer."""
    shape: StorageShape | None
    """None for real storage."""
    probes: Sequence[Probe]
    reading: Reading | None
    """How the ranks read; None: not known, so that the storage's limits are not told apart."""


def classify(
    point: Point,
    others: Sequence[Point] = (),
    shape: StorageShape | None = None,
    probes: Sequence[Probe] = (),
    reading: Reading | None = None,
) -> Bound:
    """The limit of a point, with the evidence for it."""
    facts = Facts(point=point, others=others, shape=shape, probes=probes, reading=reading)
    return next(bound for rule in RULES if (bound := rule(facts)) is not None)


def compute(facts: Facts) -> Bound | None:
    """The storage feeds the accelerators, and the processes of these clients keep up."""
    point = facts.point
    if point.x_ideal + held_up(point) < FED or point.x_ideal < TRAINS:
        return None
    evidence = (
        f"throughput without the first step is {point.x_ideal:.1%} of ideal",
        f"with it, ranks waited {point.wait_share:.1%} of the time",
    )
    return Bound(kind="compute", evidence=evidence)


def at_cap(facts: Facts) -> Bound | None:
    """Emulated storage delivers the rate that it is shaped to, whatever the client did; or most of it beside
    cores that are idle for longer than the storage."""
    point, shape = facts.point, facts.shape
    hosts = max(1, len(point.hosts))
    if shape is None or point.x_ideal >= FED:
        return None
    least = REACHED if _cores_to_spare(point) else SAME
    if point.bytes_per_second < least * shape.rate * hosts:
        return None
    rates = f"{show_rate(point.bytes_per_second)} of the {show_rate(shape.rate * hosts)}"
    evidence = (f"it delivered {rates} that it is shaped to, on {counted(hosts, 'host')}", *_shares(point))
    return Bound(kind="bandwidth", evidence=evidence)


def own_barriers(facts: Facts) -> Bound | None:
    """The emulator's own barriers take at least half of the loss."""
    point = facts.point
    flag = next((flag for flag in point.flags if flag.name == "barrier"), None)
    lost, known = 1 - point.x_ideal, point.starved
    # Barriers are slow without cores, too: then the shares name what held up the ranks that came last.
    if flag is None or flag.value < 0.5 * lost or (known is not None and known.barrier < 0.5):
        return None
    return Bound(kind="emulator", evidence=(flag.sentence, f"{lost:.1%} of the throughput is lost"))


def largest_share(facts: Facts) -> Bound | None:
    """The largest share of what starved the accelerators; None without schedstat."""
    point, lost = facts.point, facts.point.starved
    if lost is None or lost.seconds <= 0:
        return None
    kind = _kind(point, lost)
    if kind == "straggler":
        said = f"rank {lost.straggler} lost twice as much time by itself as any other"
        return Bound(kind=kind, evidence=(said, *_shares(point)), host=lost.straggler_host)
    evidence = [*_shares(point), *short_of_cpu(point).values()]
    if kind == "client-cpu" and _cores_to_spare(point):
        # Threads queue for a core now and then, also where most of the loss is a storage without reserves.
        known = _of_storage(facts)
        if known is not None and known.kind in ("bandwidth", "iops"):
            return replace(known, evidence=(*known.evidence, *evidence))
    if kind == "storage":
        known = client_link(facts) or _of_storage(facts)
        # Storage that answers each request as fast as it ever does is not the limit: too few are in flight.
        known = known or answers_at_once(facts) or (None if facts.probes else starved_alone(facts))
        if known is not None:
            return replace(known, evidence=(*known.evidence, *evidence))
        evidence += _seen(facts)
    help_ = cores_wanted(point) if kind in ("client-cpu", "cpu-quota") else ""
    return Bound(kind=kind, evidence=tuple(evidence), host=_only_host(point, kind), help=help_)


def _of_storage(facts: Facts) -> Bound | None:
    """The storage's limit by its kind; None if it is not told apart."""
    if facts.reading is None:
        return None
    return storage_limit(facts.point, facts.probes, facts.reading, facts.others)


def _cores_to_spare(point: Point) -> bool:
    """True when the storage or waiting for cores starved accelerators, and every host had cores left."""
    if point.starved is None or _kind(point, point.starved) not in ("storage", "client-cpu"):
        return False
    return all(host.busy_share is not None and host.busy_share < SPARE for host in point.hosts)


def _kind(point: Point, lost: Starved) -> BoundKind:
    """The name of the largest share; the storage's only where it exceeds all of the client's together."""
    if lost.steps > 0.5:
        return "compute"
    if lost.straggler is not None:
        return "straggler"
    crowded = any(_crowded(point, host) for host in point.hosts)
    groups: dict[BoundKind, float] = {
        "client-cpu": lost.cores,
        "cpu-quota": lost.quota,
        "client-link": lost.link,
        "loader": lost.loader,
        "emulator": lost.barrier,
    }
    # Time on a core is the CPU's where no core was left over, else the loader's: more workers would have used
    # more cores.
    mine: BoundKind = "cpu-quota" if lost.quota > lost.cores else "client-cpu"
    groups[mine if crowded else "loader"] += lost.work
    if lost.storage > sum(groups.values()):
        return "storage"
    return max(groups, key=lambda kind: groups[kind])


def _crowded(point: Point, host: HostShare) -> bool:
    """True when no core was left over on a host."""
    lost = host.starved
    # Busy cores prove nothing: work of a lower priority gives way. Idle ones do: a thread that was ready
    # to run waited only until the kernel had moved it to one.
    spare = host.busy_share is not None and host.busy_share < SPARE and not (lost and lost.quota)
    if lost is not None and lost.cores + lost.quota > CROWDED * lost.work and not spare:
        return True
    return host.cpu_seconds >= BUSY * host.cores * point.seconds


def _only_host(point: Point, kind: BoundKind) -> str:
    """The one host of several that `kind` limits; empty when it limits more of them, or none."""
    if kind in ("storage", "compute"):
        return ""
    found = [host for host in point.hosts if host.starved and _kind(point, host.starved) == kind]
    if kind == "client-link":
        found = [host for host in found if host.starved and host.starved.link > WORTH]
    return found[0].host if len(found) == 1 < len(point.hosts) else ""


def _shares(point: Point) -> tuple[str, ...]:
    """A sentence with the shares of what starved the accelerators."""
    lost = point.starved
    if lost is None or lost.seconds <= 0:
        return ()
    shares = sorted(((getattr(lost, name), words) for name, words in NAMES.items()), reverse=True)
    parts = [f"{words} {share:.0%}" for share, words in shares if share >= WORTH]
    return (f"of the time in which accelerators starved: {', '.join(parts)}",)


def cores_wanted(point: Point) -> str:
    """Say how many cores would feed the point's accelerators, and who else uses those of its hosts."""
    used = sum(host.cpu_seconds for host in point.hosts) / max(1e-9, point.seconds)
    cores = sum(host.cores for host in point.hosts)
    if not (point.x_ideal > 0 and used and cores):
        return ""
    wanted = max(1, math.ceil(used / point.x_ideal))
    fed = f"{counted(wanted, 'core')} for the ranks alone would feed {point.ranks}"
    if point.starved is not None and point.starved.quota > point.starved.cores:
        return f"a quota of {fed}"  # the other cores do not matter
    if others := cores_of_others(point):
        return f"other programs use {others:.1f} of the {counted(cores, 'core')}: end them; {fed}"
    if wanted <= cores:
        return ""
    return f"{fed}, or {math.ceil(wanted / cores * len(point.hosts))} hosts like this"


def cores_of_others(point: Point) -> float:
    """Cores of the point's hosts that other programs kept busy, mean; 0 up to a share of OTHERS."""
    cores = sum(host.cores for host in point.hosts)
    own = sum(host.cpu_seconds for host in point.hosts) / max(1e-9, point.seconds)
    others = sum((host.busy_share or 0.0) * host.cores for host in point.hosts) - own
    return others if others > OTHERS * cores else 0.0


def answers_at_once(facts: Facts) -> Bound | None:
    """Emulated storage answers each request as fast as if there were no other: too few are in flight."""
    point, shape = facts.point, facts.shape
    requests = sum(point.read_latency.values())
    if shape is None or not requests:
        return None
    mean = sum(float(edge) * 1e-6 * count for edge, count in point.read_latency.items()) / requests
    if mean > 1.25 * shape.request_seconds:
        return None
    evidence = (
        f"a request took {show_seconds(mean)}, as long as one by itself, and the storage delivered "
        f"{point.bytes_per_second / (shape.rate * max(1, len(point.hosts))):.0%} of what it is shaped to",
    )
    return Bound(kind="latency", evidence=evidence)


# From here on: the load of the hosts, for kernels without schedstat. Utilization first, then saturation of
# the next resource: Gregg's USE method (2013).


def client_cpu(facts: Facts) -> Bound | None:
    short = short_of_cpu(facts.point)
    if not short:
        return None
    only = next(iter(short)) if len(short) == 1 < len(facts.point.hosts) else ""
    return Bound(kind="client-cpu", evidence=tuple(short.values()), host=only)


def short_of_cpu(point: Point) -> dict[str, str]:
    """The hosts that are short of CPU, with the evidence."""
    found = {}
    for host in point.hosts:
        own = host.cpu_seconds / max(1e-9, host.cores * point.seconds)
        busy, queue = host.busy_share, host.runqueue or 0.0
        # Threads that sleepers wake together queue for a moment, on a host that is mostly idle.
        queued = queue > host.cores and (busy is None or busy >= 0.5)
        if max(own, busy or 0.0) < BUSY and not queued:
            continue
        parts = [f"the ranks used {own:.0%} of {host.cores} cores"]
        if busy is not None:
            parts.append(f"the host was {busy:.0%} busy")
        if host.runqueue is not None:
            parts.append(f"{queue:.1f} threads were runnable")
        if busy is not None and busy - own > 0.5 * busy:
            parts.append("most of it by other processes")
        found[host.host] = f"{host.host}: {', '.join(parts)}"
    return found


def starved_alone(facts: Facts) -> Bound | None:
    """A rank starves just as much among half the ranks per host: nothing that ranks share limits it."""
    point = facts.point

    def per_host(other: Point) -> float:
        return other.ranks / max(1, len(other.hosts))

    fewer = [other for other in facts.others if 2 * per_host(other) <= per_host(point)]
    if not fewer:
        return None
    least = min(fewer, key=lambda other: (other.ranks, -other.x_ideal))
    if least.x_ideal >= FED or point.x_ideal < 0.97 * least.x_ideal:
        return None
    evidence = (
        f"a rank gets {point.x_ideal:.1%} of its demand among {point.ranks} "
        f"and {least.x_ideal:.1%} among {least.ranks}",
        "nothing that ranks share limits it",
    )
    return Bound(kind="latency", evidence=evidence)


def client_link(facts: Facts) -> Bound | None:
    """Every host reads as fast as one that starved alone: capacity grows with hosts."""
    point = facts.point
    starved = [other for other in facts.others if len(other.hosts) == 1 and other.x_ideal < FED]
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


def storage(facts: Facts) -> Bound:
    """The storage is the limit when nothing else is."""
    waited = f"ranks waited {facts.point.wait_share:.0%} of the time and no client was short of CPU"
    return Bound(kind="storage", evidence=(waited, *_seen(facts)))


def _seen(facts: Facts) -> list[str]:
    """A sentence on what a host read when there were fewer hosts, where that was more."""
    point = facts.point
    here = max((host.bytes / point.seconds for host in point.hosts), default=0.0)
    fewer = [other for other in facts.others if 0 < len(other.hosts) < len(point.hosts)]
    best = max((host.bytes / other.seconds for other in fewer for host in other.hosts), default=0.0)
    if here >= SAME * best:
        return []
    return [f"a host read {show_rate(here)}, and {show_rate(best)} when there were fewer hosts"]


RULES: tuple[Callable[[Facts], Bound | None], ...] = (
    compute,
    at_cap,
    own_barriers,
    largest_share,
    client_cpu,
    starved_alone,
    client_link,
    storage,
)
"""Asked in this order; the last one always answers."""
