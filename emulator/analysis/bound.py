"""What bounds a point: client CPU, client network or device, shared storage, the emulator, or compute.

One function a cause, asked in the order in which one explains away the next (`classify`).
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.analysis.flags import OVERSHOOT, UNEVEN, slowest_host, wait_share
from emulator.record.result import Bound, HostShare, Point
from emulator.units import show_rate

FED = 0.95
"""Throughput / ideal from which compute is the limit."""
BUSY = 0.90
"""Share of a host's CPU time from which CPU is the limit."""
HALF = 0.5
"""Share of what a rank reads from memory from which its own reading is the limit."""
SAME = 0.90
"""Two rates closer than this ratio count as the same."""


def classify(point: Point, references: Sequence[Point] = (), from_memory: float | None = None) -> Bound:
    """The bound class of a point; `references` are other points of the sweep, better with than without.

    `from_memory` is what one rank reads from RAM in bytes per second (the self-test); None: not known.

    The first that holds, in the order in which one explains away the next:

    1. compute: throughput >= 95 % of ideal.
    2. client-link of one host: its ranks wait longer than the median host's by 10 % of the time, and CPU is
       no scarcer there than elsewhere.
    3. client-cpu: on some host busy share >= 90 %, or the ranks' CPU seconds >= 90 % of cores x seconds, or
       runnable threads > cores while it is at least half busy.
    4. emulator: overshoot p99 > 1 % of a step, and waiting and barriers explain less than half of the loss;
       or each rank reads at more than half of what it reads from RAM; or a rank starves just as much at half
       the ranks per host, so that nothing shared limits.
    5. client-link: every host reads as fast (>= 90 %) as the fastest single host whose ranks starved alone.
    6. storage: what is left; with the fall of the rate per host as hosts were added, when that was seen.

    Utilisation first, then saturation of the next resource: Gregg's USE method (2013).
    """
    return (
        compute(point)
        or slow_host(point)
        or client_cpu(point)
        or late_ranks(point)
        or own_reading(point, from_memory)
        or starved_alone(point, references)
        or client_link(point, references)
        or storage(point, references)
    )


def compute(point: Point) -> Bound | None:
    """The accelerators are fed."""
    if point.x_ideal < FED:
        return None
    evidence = (
        f"throughput is {point.x_ideal:.1%} of ideal",
        f"ranks waited {point.wait_share:.1%} of the time",
    )
    return Bound(kind="compute", evidence=evidence)


def slow_host(point: Point) -> Bound | None:
    """One host is slower than the others, and not for its CPU."""
    if len(point.hosts) < 2:
        return None
    extra, slow = slowest_host(point)
    short = [host.host for host in point.hosts if short_of_cpu(point, host)]
    if extra <= UNEVEN or (slow.host in short and len(short) < len(point.hosts)):
        return None
    evidence = (
        f"ranks on {slow.host} waited {wait_share(point, slow):.0%} of the time, "
        f"{extra:.0%} longer than those of the median host",
        f"{slow.host} read {show_rate(slow.bytes / point.seconds)}; its CPU was not the limit",
    )
    return Bound(kind="client-link", evidence=evidence, host=slow.host)


def client_cpu(point: Point) -> Bound | None:
    """Some host is short of CPU."""
    short = [(host, evidence) for host in point.hosts if (evidence := short_of_cpu(point, host))]
    if not short:
        return None
    only = short[0][0].host if len(short) == 1 < len(point.hosts) else ""
    return Bound(kind="client-cpu", evidence=tuple(evidence for _, evidence in short), host=only)


def short_of_cpu(point: Point, host: HostShare) -> str:
    """Why this host is short of CPU; empty when it is not."""
    own = host.cpu_seconds / max(1e-9, host.cores * point.seconds)
    busy, queue = host.busy_share, host.runqueue
    full = own >= BUSY or (busy is not None and busy >= BUSY)
    queued = queue is not None and queue > host.cores and (busy is None or busy >= 0.5)
    if not full and not queued:
        return ""
    parts = [f"the ranks used {own:.0%} of {host.cores} cores"]
    if busy is not None:
        parts.append(f"the host was {busy:.0%} busy")
    if queue is not None:
        parts.append(f"{queue:.1f} threads were runnable")
    if busy is not None and busy - own > 0.5 * busy:
        parts.append("most of it by other processes")
    return f"{host.host}: {', '.join(parts)}"


def late_ranks(point: Point) -> Bound | None:
    """The emulator loses time that neither data nor other ranks explain: its processes come late."""
    lost, explained = 1 - point.x_ideal, point.wait_share + point.barrier_share
    if point.overshoot_p99 <= OVERSHOOT or explained >= 0.5 * lost:
        return None
    evidence = (
        f"one step in a hundred ended late by {point.overshoot_p99:.1%} of a step or more",
        f"waiting and barriers explain {explained:.1%} of {lost:.1%} lost",
    )
    return Bound(kind="emulator", evidence=evidence)


def own_reading(point: Point, from_memory: float | None) -> Bound | None:
    """A rank reads nearly as fast as it reads from RAM."""
    rate = point.bytes_per_second / point.ranks
    if from_memory is None or rate < HALF * from_memory:
        return None
    evidence = (
        f"a rank read {show_rate(rate)}, and {show_rate(from_memory)} from memory (self-test)",
        "the loader itself is the limit: more workers, or --loader direct",
    )
    return Bound(kind="emulator", evidence=evidence)


def starved_alone(point: Point, references: Sequence[Point]) -> Bound | None:
    """A rank starves just as much among half the ranks per host: nothing that ranks share limits it."""

    def per_host(other: Point) -> float:
        return other.ranks / max(1, len(other.hosts))

    fewer = [other for other in references if 2 * per_host(other) <= per_host(point)]
    if not fewer:
        return None
    least = min(fewer, key=lambda other: (other.ranks, -other.x_ideal))
    if least.x_ideal >= FED or point.x_ideal < 0.97 * least.x_ideal:
        return None
    evidence = (
        f"a rank gets {point.x_ideal:.1%} of its demand among {point.ranks} "
        f"and {least.x_ideal:.1%} among {least.ranks}",
        "nothing that ranks share limits it: give the loader more workers or prefetch",
    )
    return Bound(kind="emulator", evidence=evidence)


def client_link(point: Point, references: Sequence[Point]) -> Bound | None:
    """Every host reads as fast as one that was alone and starved: capacity grows with hosts."""
    starved = [other for other in references if len(other.hosts) == 1 and other.x_ideal < FED]
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


def storage(point: Point, references: Sequence[Point]) -> Bound:
    """What is left when nothing else limits."""
    evidence = [f"ranks waited {point.wait_share:.0%} of the time and no client was short of CPU"]
    here = max((host.bytes / point.seconds for host in point.hosts), default=0.0)
    fewer = [other for other in references if 0 < len(other.hosts) < len(point.hosts)]
    best = max((host.bytes / other.seconds for other in fewer for host in other.hosts), default=0.0)
    if here < SAME * best:
        evidence.append(f"a host read {show_rate(here)}, and {show_rate(best)} when there were fewer hosts")
    elif len(point.hosts) == 1:
        evidence.append(_source(point.hosts[0]))
    else:
        evidence.append("no point with fewer hosts shows that a host could read faster")
    return Bound(kind="storage", evidence=tuple(evidence))


def _source(host: HostShare) -> str:
    """Where the bytes of a single host came from: its network or device is part of the storage then."""
    for name, count in (("its own block devices", host.device_bytes), ("its network", host.nic_bytes)):
        if count is not None and count >= 0.5 * host.bytes > 0:
            return f"{host.host} got {count / host.bytes:.0%} of what it read from {name}"
    return "with one host its network or device cannot be told from the storage behind it"
