"""Validity flags: reasons not to trust a number, each with its value, its threshold and a sentence.

One function a flag: it returns the flag, or None where nothing is wrong or the evidence was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.analysis.throughput import Floats, drift
from emulator.config.workload import Workload
from emulator.record.result import Flag, HostShare, Point
from emulator.units import show_bytes

OVERSHOOT = 0.01
"""Share of a step by which a rank may be late at its end, 99th percentile."""
STEAL = 0.02
"""Share of CPU time that a hypervisor may take away from a host."""
RUNQUEUE = 1.0
"""Runnable threads per core, mean of a point."""
RESIDENT = 0.01
"""Share of pages that may be in the page cache before they are read."""
MEMORY = 5.0
"""Times client memory that the dataset should be, as MLPerf Storage asks for."""
UNEVEN = 0.10
"""Share of the point's time by which one host's ranks may wait longer than those of the median host."""
LONG = 5
"""Times the batches of read-ahead that a point should have steps."""
DRIFT = 0.05
"""Relative change of throughput over a point, when it is certain at 99 %."""
FROM_MEMORY = 0.05
"""Value of the flag `page-cache` from which it invalidates: more than the precision of a knee."""


def invalid(point: Point) -> bool:
    """Whether a flag says that the throughput is not the storage's: more than 5 % of it came from memory.

    All other flags inform. Late wake-ups, stolen CPU or a crowded run queue need not show in throughput:
    points at a device's cap stay there while 6 % of the CPU is stolen, and a knee without them is worse.
    """
    return any(flag.name == "page-cache" and flag.value > FROM_MEMORY for flag in point.flags)


def usable(points: Sequence[Point]) -> list[Point]:
    """The points that a knee, its curve and a fitted system are made from, in their order.

    Those that are not `invalid`; all of them where fewer than two process counts would be left.
    """
    valid = [point for point in points if not invalid(point)]
    return valid if len({point.ranks for point in valid}) > 1 else list(points)


def point_flags(point: Point) -> tuple[Flag, ...]:
    """Every flag that follows from a point alone."""
    found = (check(point) for check in POINT_FLAGS)
    return tuple(flag for flag in found if flag is not None)


def overshoot(point: Point) -> Flag | None:
    """Lateness at the end of a step > 1 % of the step time (p99): processes do not keep time."""
    value = point.overshoot_p99
    if value <= OVERSHOOT:
        return None
    sentence = (
        f"One step in a hundred ended late, by {value:.1%} of the step time or more: the ranks were not "
        "scheduled in time; use fewer ranks per host."
    )
    return Flag(name="overshoot", value=value, threshold=OVERSHOOT, sentence=sentence)


def steal(point: Point) -> Flag | None:
    """Steal time / CPU time > 2 % on some host (Linux, /proc/stat): a hypervisor ran somebody else."""
    known = [(host.steal_share, host.host) for host in point.hosts if host.steal_share is not None]
    value, name = max(known, default=(0.0, ""))
    if value <= STEAL:
        return None
    sentence = (
        f"A hypervisor took {value:.1%} of the CPU time of {name} away: part of the waiting is not the "
        "storage's."
    )
    return Flag(name="steal", value=value, threshold=STEAL, sentence=sentence)


def runqueue(point: Point) -> Flag | None:
    """Mean runnable threads / cores > 1 on some host: threads waited for a core, not for storage."""
    known = [(host.runqueue / host.cores, host) for host in point.hosts if host.runqueue is not None]
    value, host = max(known, key=lambda pair: pair[0], default=(0.0, None))
    if host is None or value <= RUNQUEUE:
        return None
    cores = "1 core" if host.cores == 1 else f"{host.cores} cores"
    sentence = (
        f"{host.runqueue:.1f} threads wanted the {cores} of {host.host}: ranks waited for CPU; use more "
        "hosts or fewer ranks per host."
    )
    return Flag(name="runqueue", value=value, threshold=RUNQUEUE, sentence=sentence)


def page_cache(point: Point) -> Flag | None:
    """Sampled pages in the page cache before they were read > 1 %: memory answered, not storage."""
    value = point.resident_share
    if value is None or value <= RESIDENT:
        return None
    sentence = (
        f"{value:.1%} of the pages were in memory before they were read: part of the throughput is the page "
        "cache's."
    )
    return Flag(name="page-cache", value=value, threshold=RESIDENT, sentence=sentence)


def retried(point: Point) -> Flag | None:
    """Repeated requests / requests > 0: an object store failed, and reading went on all the same."""
    count = sum(point.read_retries.values())
    if not count:
        return None
    reads = max(sum(point.read_latency.values()), 1)
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in point.read_retries.items())
    sentence = (
        f"{count:,} requests for {reads:,} reads had to be repeated ({kinds}): the object store failed now "
        "and then, and the time that this took is in the throughput."
    )
    return Flag(name="retries", value=count / reads, threshold=0.0, sentence=sentence)


def uneven_hosts(point: Point) -> Flag | None:
    """Wait per rank of one host - that of the median host > 10 % of the point's time: one host is slower."""
    if len(point.hosts) < 2:
        return None
    value, slow = slowest_host(point)
    if value <= UNEVEN:
        return None
    sentence = (
        f"Ranks on {slow.host} waited {value:.0%} of the time longer than those of the median host: look at "
        "that host's network and load."
    )
    return Flag(name="uneven-hosts", value=value, threshold=UNEVEN, sentence=sentence)


POINT_FLAGS = (overshoot, steal, runqueue, page_cache, retried, uneven_hosts)
"""The flags that follow from a point alone; a new one is a function here."""


def slowest_host(point: Point) -> tuple[float, HostShare]:
    """The host whose ranks waited longest, and how much longer than the median host's (share of the time).

    Every rank reads the same number of samples, so a slow host shows in waiting, not in bytes. Raises
    ValueError without hosts.
    """
    ordered = sorted(point.hosts, key=lambda host: wait_share(point, host))
    slow, median = ordered[-1], ordered[(len(ordered) - 1) // 2]
    return wait_share(point, slow) - wait_share(point, median), slow


def wait_share(point: Point, host: HostShare) -> float:
    """Share of the point's time that a rank of the host was blocked on the loader (0 to 1)."""
    return host.wait_seconds / max(1e-9, host.ranks * point.seconds)


def small_dataset(dataset_bytes: int, memory_bytes: int) -> Flag | None:
    """Dataset / memory of all client hosts < 5 (MLPerf Storage): some stays in memory between epochs."""
    value = dataset_bytes / max(1, memory_bytes)
    if value >= MEMORY:
        return None
    sentence = (
        f"The dataset ({show_bytes(dataset_bytes)}) is {value:.2g} times the clients' memory "
        f"({show_bytes(memory_bytes)}), not {MEMORY:.0f}: caches may answer for the storage."
    )
    return Flag(name="small-dataset", value=value, threshold=MEMORY, sentence=sentence)


def another_dataset(difference: str) -> Flag | None:
    """`difference` says how the dataset differs from the workload's; empty: it does not."""
    if not difference:
        return None
    sentence = f"The dataset is not the workload's: {difference}. The figures are not this workload's."
    return Flag(name="mismatched-dataset", value=1.0, threshold=0.0, sentence=sentence)


def non_stationary(throughput: Sequence[float] | Floats) -> Flag | None:
    """Throughput drifts by more than 5 % over the point, with certainty 99 % (see `drift`)."""
    line = drift(throughput)
    if line is None or abs(line.relative) <= DRIFT or not line.certain():
        return None
    middle, half = float(np.mean(throughput)), line.relative / 2
    begin, end = (max(0.0, middle * (1 + sign * half)) for sign in (-1, 1))
    change = f"{'rose' if line.relative > 0 else 'fell'} from {begin:.3g} to {end:.3g} samples/s"
    sentence = f"Throughput {change} during the point: it had not settled; run longer."
    return Flag(name="non-stationary", value=abs(line.relative), threshold=DRIFT, sentence=sentence)


def short_run(point: Point, workload: Workload) -> Flag | None:
    """Steps < 5 x batches of read-ahead, while ranks wait: the first step's reading is in the others' rate.

    What was read ahead during the first step, which is left out of the time, is consumed in later ones: an
    excess of up to prefetch / steps. A shuffle buffer is filled by then, too.
    """
    ahead = workload.loader.prefetch + workload.access.shuffle_buffer // workload.loader.batch_size
    enough = LONG * ahead
    if point.steps >= enough or point.wait_share <= 0.01:
        return None
    sentence = (
        f"{point.steps} steps are few against {ahead} batches of read-ahead: what was read during the first "
        f"step makes throughput look higher; use --steps {enough}."
    )
    return Flag(name="short", value=point.steps, threshold=enough, sentence=sentence)
