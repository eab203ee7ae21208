"""Validity flags: reasons not to trust a number, each with its value, its threshold and a sentence.

The value of a point's flag is the share by which it may have moved the point's throughput; `uneven-hosts`
compares another quantity with its threshold. A flag is a function that returns None where nothing is wrong or
the evidence was not measured. Flags that need the workload or the job are raised in `run/point.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from emulator.analysis.drift import drift
from emulator.analysis.parts import Floats
from emulator.config.workload import Workload
from emulator.record.result import Flag, HostShare, Point
from emulator.units import counted, show_bytes, show_seconds

PRECISION = 0.025
"""Share by which throughput may be moved without a flag: half of the 5 % that a knee's interval is wide."""
MEMORY = 5.0
"""Ratio of dataset to client memory below which caches may answer; MLPerf Storage asks for it."""
UNEVEN = 0.10
"""Share of the point's time by which one host's ranks may wait longer than those of the median host."""
LONG = 5
"""Ratio of steps to batches of read-ahead that a point should have."""
READ_BEFORE = 0.05
"""Share of what was consumed that may have been read before, for AU to count: AU is too high by as much."""


def invalid(point: Point) -> bool:
    """True where more than 5 % of the throughput came from memory, so that it is not the storage's."""
    # All other flags inform: points at a device's cap stay there while 6 % of the CPU is stolen, and a knee
    # without them is worse.
    return any(flag.name == "page-cache" and flag.value > 0.05 for flag in point.flags)


def point_flags(point: Point) -> tuple[Flag, ...]:
    """Every flag that follows from a point alone."""
    return tuple(flag for check in POINT_FLAGS if (flag := check(point)))


def above(name: str, value: float, sentence: str, threshold: float = PRECISION) -> Flag | None:
    """The flag `name` where `value` exceeds `threshold`."""
    return Flag(name=name, value=value, threshold=threshold, sentence=sentence) if value > threshold else None


def held_up(point: Point) -> float:
    """Share of the mean step in which accelerators were fed but their processes were late.

    At barriers, the late process may be another rank's.
    """
    total = sum(point.step.values())
    return point.step["overshoot"] / total if total else point.overshoot_share


def client_late(point: Point) -> Flag | None:
    """The processes of the client hold up their accelerators: they take batches, or wake up, late."""
    value = held_up(point)
    return above(
        "client",
        value,
        f"Accelerators were held up for {value:.1%} of the time by their own processes, which took batches "
        "or woke up late: throughput is lower by as much, not by the storage; use fewer ranks per host.",
    )


def steal(point: Point) -> Flag | None:
    """Steal: a hypervisor ran another guest (/proc/stat) while accelerators starved for want of a core."""
    by_host = [
        (min(1.0, host.steal_share / host.busy_share), host.steal_share, host.host)
        for host in point.hosts
        if host.steal_share is not None and host.busy_share
    ]
    share_of_busy, share, name = max(by_host, default=(0.0, 0.0, ""))
    lost = max(0.0, 1 - point.x_ideal)
    if point.starved is not None:
        lost *= point.starved.cores + point.starved.work
    value = lost * share_of_busy
    return above(
        "steal",
        value,
        f"A hypervisor took {share:.1%} of the CPU time of {name} away while ranks had work to do: "
        f"throughput may be lower by up to {value:.1%}, which is not the storage's.",
    )


def memory_share(point: Point) -> float:
    """The share of the bytes that memory answered (0 to 1), by pages before reads, or by bytes fetched."""
    # Few files under much read-ahead are evicted once and read twice: no page was there before the epoch.
    # 0 bytes fetched is no evidence: FUSE and object stores count none.
    fetched = point.read_amplification or 1.0
    return max(point.resident_share or 0.0, 1 - fetched)


def page_cache(point: Point) -> Flag | None:
    """Bytes came from the page cache: memory answered, not the storage."""
    value = memory_share(point)
    return above(
        "page-cache",
        value,
        f"{value:.1%} of the bytes came from memory: as much of the throughput is the page cache's, not the "
        "storage's.",
    )


def retried(point: Point) -> Flag | None:
    """An object store failed at times: requests were repeated, or timed out."""
    count = sum(point.read_retries.values())
    reads = max(sum(point.read_latency.values()), 1)
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in point.read_retries.items())
    return above(
        "retries",
        count / reads,
        f"{count:,} requests for {reads:,} reads had to be repeated ({kinds}): the object store failed now "
        f"and then, which lowered throughput by about {count / reads:.1%}, and by more where requests timed "
        "out.",
        # A single timeout can last longer than the point's steps.
        threshold=0.0 if point.read_retries.get("timeout") else PRECISION,
    )


def uneven_hosts(point: Point) -> Flag | None:
    """One host's ranks wait for more than 10 % of the time longer than the median host's."""
    if len(point.hosts) < 2:
        return None

    # Every rank reads the same number of samples, so a slow host shows in waiting, not in bytes.
    def share(host: HostShare) -> float:
        return host.wait_seconds / max(1e-9, host.ranks * point.seconds)

    ordered = sorted(point.hosts, key=share)
    median, slow = ordered[(len(ordered) - 1) // 2], ordered[-1]
    extra = share(slow) - share(median)
    if extra <= UNEVEN:
        return None
    # With barriers all ranks wait for the slow host's; without, only its own ranks are late.
    value = extra if point.barrier_share > extra / 2 else extra * slow.ranks / point.ranks
    return above(
        "uneven-hosts",
        value,
        f"Ranks on {slow.host} waited {extra:.0%} of the time longer than those of the median host, which "
        f"lowers throughput by up to {value:.1%}: look at that host's network and load.",
    )


POINT_FLAGS = (client_late, steal, page_cache, retried, uneven_hosts)
"""The flags that follow from a point alone; a new one is a function here."""


def neighbour(point: Point, workload: Workload) -> Flag | None:
    """Others read or wrote on the dataset's own device while accelerators starved."""
    watched = [(host.bytes, host.device) for host in point.hosts if host.device is not None]
    if not watched or point.read_amplification is None or point.x_ideal > 1 - PRECISION:
        return None
    consumed = sum(size for size, _ in watched)
    read = sum(device.bytes for _, device in watched)
    written = sum(device.written_bytes for _, device in watched)
    # The point's own reads include the kernel's read-ahead, and batches that were read but not consumed.
    own = consumed * point.read_amplification * (1 + workload.batches_ahead / max(1, point.steps))
    others_read = max(0.0, read - own)
    value = (others_read + written) / max(1, read + written)
    name = watched[0][1].name
    return above(
        "neighbour",
        value,
        f"Others read {show_bytes(others_read)} and wrote {show_bytes(written)} on {name} during "
        f"the point, {value:.1%} of its bytes: alone, the dataset may be read faster by as much.",
    )


def no_o_direct(ranks: int, buffered: int) -> Flag | None:
    """The file system refused O_DIRECT to `buffered` of the ranks."""
    return above(
        "no-o-direct",
        buffered / ranks,
        "The file system refuses O_DIRECT: reads went through the page cache and were evicted, at a higher "
        "cost in CPU.",
        threshold=0.0,
    )


def small_dataset(dataset_bytes: int, memory_bytes: int) -> Flag | None:
    """The dataset is less than 5 times the memory of all client hosts: some stays in memory."""
    value = dataset_bytes / max(1, memory_bytes)
    if value >= MEMORY:
        return None
    sentence = (
        f"The dataset ({show_bytes(dataset_bytes)}) is {value:.2g} times the clients' memory "
        f"({show_bytes(memory_bytes)}), not {MEMORY:.0f}: caches may answer for the storage."
    )
    return Flag(name="small-dataset", value=value, threshold=MEMORY, sentence=sentence)


def another_dataset(difference: str) -> Flag | None:
    """The dataset is not the workload's; `difference` says why, and is empty where it is."""
    return above(
        "mismatched-dataset",
        float(bool(difference)),
        f"The dataset is not the workload's: {difference}. The figures are not this workload's.",
        threshold=0.0,
    )


def unlike_job(workload: Workload) -> Flag | None:
    """The recording of the workload's job is not to be trusted (`JobSpec.doubt`)."""
    doubt = workload.job.doubt
    sentence = f"The recording of the job is not to be trusted: {doubt}."
    return above("unlike-job", float(bool(doubt)), sentence, threshold=0.0)


def non_stationary(throughput: Sequence[float] | Floats) -> Flag | None:
    """Throughput drifts by more than 5 % over the point, with certainty 99 % (see `drift`).

    The mean of a line is off from its end by half of the drift, which is the flag's value.
    """
    half = drift(throughput) / 2
    if not half:
        return None
    middle = float(np.mean(throughput))
    # Where throughput breaks down at once, the fitted line ends beyond all measured rates.
    begin, end = np.clip([middle * (1 - half), middle * (1 + half)], np.min(throughput), np.max(throughput))
    moved = "rose" if half > 0 else "fell"
    share = f" by {abs(end / begin - 1):.0%}" if begin > 0 else ""
    return above(
        "non-stationary",
        min(1.0, abs(half)),
        f"Throughput {moved}{share}, from {begin:.3g} to {end:.3g} samples/s, during "
        "the point: it had not settled; run longer.",
    )


def read_ahead(workload: Workload) -> int:
    """Most batches that a rank has read before its first step is over."""
    return workload.batches_ahead + workload.access.shuffle_buffer // workload.loader.batch_size


def au_measured(steps: int, workload: Workload) -> bool:
    """True if at least as many batches were read after a rank's first step as before its end."""
    return steps >= 2 * read_ahead(workload)


def short_run(point: Point, workload: Workload) -> Flag | None:
    """Too few steps for AU, or so few that it is too high, while ranks wait or nothing is read.

    What was read ahead during the first step, which AU leaves out, is consumed in later ones: AU is too high
    by up to read-ahead / steps. Throughput counts what arrived, and needs no such care.
    """
    ahead = read_ahead(workload)
    steps, enough = counted(point.steps, "step"), LONG * ahead
    if math.isnan(point.au):
        enough = max(round(ahead / READ_BEFORE), 2 * point.steps)
        sentence = f"AU is not measured: {steps}, {ahead} batches read ahead; use --steps {enough}."
    elif point.steps >= enough or (point.wait_share <= 0.01 and point.bytes_per_second):
        return None
    else:
        sentence = (
            f"{steps} are few against {ahead} batches of read-ahead: AU looks higher than it is, throughput "
            f"does not; use --steps {enough}."
        )
    return Flag(name="short", value=point.steps, threshold=enough, sentence=sentence)


def jobs_cpu(point: Point, workload: Workload) -> Flag | None:
    """The recorded job, which computes, would need > 97.5 % of a host's cores to be as fast."""
    cpu = workload.accelerator.host_cpu_seconds
    if not cpu or not point.hosts:
        return None
    steps = point.samples_per_second / point.ranks / workload.loader.batch_size
    host = max(point.hosts, key=lambda host: host.ranks / host.cores)
    value = host.ranks * steps * cpu / host.cores
    return above(
        "job-cpu",
        value,
        f"The job that was recorded spends {show_seconds(cpu)} of CPU on a step; at this rate that is "
        f"{value:.0%} of the {host.cores} cores of {host.host}. The emulator computes nothing: on this host "
        "the job itself is slower, and the storage is not why.",
        threshold=1 - PRECISION,
    )


def costly_barrier(point: Point, workload: Workload) -> Flag | None:
    """The emulator's own barriers take more than 1 % of the time: hosts far apart, or too few cores."""
    count = {"step": point.steps, "epoch": point.epochs, "none": 0}[workload.training.sync]
    cost, step = point.barrier_seconds or 0.0, workload.accelerator.step_seconds
    # Ranks learn the end of a step by the barrier: only what it takes beyond a step holds anybody up.
    value = count * max(0.0, cost - step) / max(1e-9, point.seconds)
    return above(
        "barrier",
        value,
        f"The barrier of a step takes {show_seconds(cost)} when all ranks come at once, beside a step of "
        f"{show_seconds(step)}: {value:.1%} of the time is the emulator's; use fewer ranks per core.",
        threshold=0.01,
    )
