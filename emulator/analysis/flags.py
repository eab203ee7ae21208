"""Validity flags: reasons not to trust a number, each with its value, its threshold and a sentence.

The value of a point's flag is the share by which it may have moved the point's throughput, and it is raised
where that is more than the precision of a knee: a flag that is always on is none. One function a flag: it
returns the flag, or None where nothing is wrong or the evidence was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from emulator.analysis.parts import Floats
from emulator.analysis.throughput import drift
from emulator.config.workload import UNLIKE, Workload
from emulator.record.result import STORAGE, Flag, HostShare, Point
from emulator.units import counted, show_bytes, show_rate, show_seconds

PRECISION = 0.025
"""Share by which throughput may be moved without a flag: half of the 5 % that a knee's interval is wide."""
MEMORY = 5.0
"""Times client memory that the dataset should be, as MLPerf Storage asks for."""
UNEVEN = 0.10
"""Share of the point's time by which one host's ranks may wait longer than those of the median host."""
LONG = 5
"""Times the batches of read-ahead that a point should have steps."""
BARRIER = 0.01
"""Share of the point's time that the emulator's own barriers may take."""
FROM_MEMORY = 0.05
"""Value of the flag `page-cache` from which it invalidates: more than the precision of a knee."""


def invalid(point: Point) -> bool:
    """True where more than 5 % of the throughput came from memory, so that it is not the storage's."""
    # All other flags inform: points at a device's cap stay there while 6 % of the CPU is stolen, and a knee
    # without them is worse.
    return any(flag.name == "page-cache" and flag.value > FROM_MEMORY for flag in point.flags)


def point_flags(point: Point) -> tuple[Flag, ...]:
    """Every flag that follows from a point alone."""
    found = (check(point) for check in POINT_FLAGS)
    return tuple(flag for flag in found if flag is not None)


def overshoot(point: Point) -> Flag | None:
    """Accelerators were held up for > 2.5 % of the time by processes that came more than a step late."""
    value = point.overshoot_share
    if value <= PRECISION:
        return None
    sentence = (
        f"Accelerators were held up for {value:.1%} of the time by their own processes, which came more than "
        "a step late: throughput is lower by as much; use fewer ranks per host."
    )
    return Flag(name="overshoot", value=value, threshold=PRECISION, sentence=sentence)


def steal(point: Point) -> Flag | None:
    """A hypervisor ran somebody else (Linux, /proc/stat) while accelerators starved for want of a core."""
    known = [
        (min(1.0, host.steal_share / host.busy_share), host.steal_share, host.host)
        for host in point.hosts
        if host.steal_share is not None and host.busy_share
    ]
    taken, share, name = max(known, default=(0.0, 0.0, ""))
    lost = max(0.0, 1 - point.x_ideal)
    if point.starved is not None:
        lost *= point.starved.cores + point.starved.work
    value = lost * taken
    if value <= PRECISION:
        return None
    sentence = (
        f"A hypervisor took {share:.1%} of the CPU time of {name} away while ranks had work to do: "
        f"throughput may be lower by up to {value:.1%}, which is not the storage's."
    )
    return Flag(name="steal", value=value, threshold=PRECISION, sentence=sentence)


def page_cache(point: Point) -> Flag | None:
    """Sampled pages in the page cache before they were read > 2.5 %: memory answered, not storage."""
    value = point.resident_share
    if value is None or value <= PRECISION:
        return None
    sentence = (
        f"{value:.1%} of the pages were in memory before they were read: as much of the throughput is the "
        "page cache's, not the storage's."
    )
    return Flag(name="page-cache", value=value, threshold=PRECISION, sentence=sentence)


def retried(point: Point) -> Flag | None:
    """Repeated requests / requests > 2.5 %, or any that timed out: an object store failed now and then."""
    count = sum(point.read_retries.values())
    reads = max(sum(point.read_latency.values()), 1)
    value = count / reads
    if not count or (value <= PRECISION and not point.read_retries.get("timeout")):
        return None
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in point.read_retries.items())
    sentence = (
        f"{count:,} requests for {reads:,} reads had to be repeated ({kinds}): the object store failed now "
        f"and then, which lowered throughput by about {value:.1%}, and by more where requests timed out."
    )
    return Flag(name="retries", value=value, threshold=PRECISION, sentence=sentence)


def uneven_hosts(point: Point) -> Flag | None:
    """One host is slower: its ranks wait > 10 % of the time longer than the median host's, which all feel."""
    if len(point.hosts) < 2:
        return None
    extra, slow = slowest_host(point)
    # At barriers everybody waits for the slow host; without, its own ranks are late alone.
    value = extra if point.barrier_share > extra / 2 else extra * slow.ranks / point.ranks
    if extra <= UNEVEN or value <= PRECISION:
        return None
    sentence = (
        f"Ranks on {slow.host} waited {extra:.0%} of the time longer than those of the median host, which "
        f"lowers throughput by up to {value:.1%}: look at that host's network and load."
    )
    return Flag(name="uneven-hosts", value=value, threshold=PRECISION, sentence=sentence)


def client_behind(point: Point) -> Flag | None:
    """AU - AU here > 2.5 points: what a training on these clients loses, and the storage has no part in."""
    if point.au_here is None or not point.au - point.au_here > PRECISION:
        return None
    sentence = (
        f"The storage keeps accelerators busy {point.au:.1%} of the time, these clients only "
        f"{point.au_here:.1%}: their processes get batches and wake up late. The knee is the storage's; a "
        "training needs more cores or hosts."
    )
    return Flag(name="client", value=point.au - point.au_here, threshold=PRECISION, sentence=sentence)


def below_shape(point: Point, rate: float) -> Flag | None:
    """Shaped storage is the limit, and delivers > 2.5 % less than it is shaped to: `rate` bytes/s, a host."""
    shaped = rate * max(1, len(point.hosts))
    value = 1 - point.bytes_per_second / shaped
    if point.bound is None or point.bound.kind not in STORAGE or value <= PRECISION:
        return None
    sentence = (
        f"The emulated storage delivered {show_rate(point.bytes_per_second)} of the {show_rate(shaped)} that "
        "it is shaped to: it was late for want of a core, or at times nothing was asked of it (borders of "
        f"epochs, barriers); throughput is lower by up to {value:.1%}."
    )
    return Flag(name="below-shape", value=value, threshold=PRECISION, sentence=sentence)


def neighbour(point: Point, workload: Workload) -> Flag | None:
    """Others read and wrote > 2.5 % of the bytes of the dataset's own device, and the point was starved."""
    access = workload.access
    devices = [host.device for host in point.hosts if host.device is not None]
    # Parts of files are read with more around them: what the device read beyond them may be read-ahead.
    if not devices or access.bytes_read or access.columns or point.x_ideal > 1 - PRECISION:
        return None
    written = sum(device.written_bytes for device in devices)
    read = sum(device.bytes for device in devices) - sum(host.bytes for host in point.hosts if host.device)
    value = (max(0, read) + written) / max(1, sum(device.bytes + device.written_bytes for device in devices))
    if value <= PRECISION:
        return None
    sentence = (
        f"Others read {show_bytes(max(0, read))} and wrote {show_bytes(written)} on {devices[0].name} during "
        f"the point, {value:.1%} of its bytes: alone, the dataset may be read faster by as much."
    )
    return Flag(name="neighbour", value=value, threshold=PRECISION, sentence=sentence)


POINT_FLAGS = (client_behind, overshoot, steal, page_cache, retried, uneven_hosts)
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


def unlike_job(workload: Workload) -> Flag | None:
    """Where it was recorded, the workload's replay was > 5 % faster or slower than the job."""
    job = workload.job.replay
    if job is None or job.trusted:
        return None
    sentence = (
        f"The recording is not to be trusted: where it was made, its replay was {percent(job.difference)} "
        f"than the job ({job.replay_samples_per_second:.1f} samples/s, not {job.samples_per_second:.1f}): "
        f"{job.why}."
    )
    return Flag(name="unlike-job", value=abs(job.difference), threshold=UNLIKE, sentence=sentence)


def percent(difference: float) -> str:
    """A relative difference of speeds, as 12 % faster."""
    return f"{abs(difference):.0%} {'faster' if difference > 0 else 'slower'}"


def non_stationary(throughput: Sequence[float] | Floats) -> Flag | None:
    """Throughput drifts by more than 5 % over the point, with certainty 99 % (see `drift`).

    Its mean then differs from where it was going by half of that.
    """
    line = drift(throughput)
    if line is None or abs(line.relative) / 2 <= PRECISION or not line.certain():
        return None
    middle, half = float(np.mean(throughput)), line.relative / 2
    # A line runs past what was ever seen where throughput breaks down rather than drifts.
    begin, end = np.clip([middle * (1 - half), middle * (1 + half)], np.min(throughput), np.max(throughput))
    much = f" by {abs(end / begin - 1):.0%}" if begin > 0 else ""
    change = f"{'rose' if line.relative > 0 else 'fell'}{much}, from {begin:.3g} to {end:.3g} samples/s"
    sentence = f"Throughput {change}, during the point: it had not settled; run longer."
    return Flag(name="non-stationary", value=min(1.0, abs(half)), threshold=PRECISION, sentence=sentence)


def short_run(point: Point, workload: Workload) -> Flag | None:
    """Steps < 5 x batches of read-ahead, while ranks wait or nothing is read: the first step's is in AU.

    What was read ahead during the first step, which is left out of the time, is consumed in later ones: AU
    is too high by up to prefetch / steps. A shuffle buffer is filled by then, too. Throughput counts what
    arrived.
    """
    ahead = read_ahead(workload)
    enough = LONG * ahead
    if math.isnan(point.au):
        sentence = (
            f"AU is not measured: {counted(point.steps, 'step')}, {ahead} batches read ahead; use "
            f"--steps {enough}."
        )
        return Flag(name="short", value=point.steps, threshold=enough, sentence=sentence)
    if point.steps >= enough or (point.wait_share <= 0.01 and point.bytes_per_second):
        return None
    sentence = (
        f"{point.steps} steps are few against {ahead} batches of read-ahead: what was read during the first "
        f"step makes AU look higher, while throughput counts what arrived; use --steps {enough}."
    )
    return Flag(name="short", value=point.steps, threshold=enough, sentence=sentence)


def jobs_cpu(point: Point, workload: Workload) -> Flag | None:
    """To be as fast, the recorded job, which computes, would need > 97.5 % of the cores of a host."""
    steps = point.samples_per_second / point.ranks / workload.loader.batch_size
    cpu = workload.accelerator.host_cpu_seconds or 0.0
    wanted = [(host.ranks * steps * cpu / host.cores, host) for host in point.hosts]
    share, host = max(wanted, key=lambda one: one[0], default=(0.0, None))
    if host is None or share <= 1 - PRECISION:
        return None
    sentence = (
        f"The job that was recorded spends {show_seconds(cpu)} of CPU on a step; at this rate that is "
        f"{share:.0%} of the {host.cores} cores of {host.host}. The emulator computes nothing: on this host "
        "the job itself is slower, and the storage is not why."
    )
    return Flag(name="job-cpu", value=share, threshold=1 - PRECISION, sentence=sentence)


def read_ahead(workload: Workload) -> int:
    """Batches that a rank may have read before the first step is over."""
    return workload.loader.prefetch + workload.access.shuffle_buffer // workload.loader.batch_size


def costly_barrier(point: Point, workload: Workload, *, polled: bool) -> Flag | None:
    """Time of the emulator's own barriers / the point's time > 1 %: hosts far apart, or too few cores.

    Moments go through sockets with the barrier, so that only what it takes beyond a step holds anybody up;
    where MPI is `polled` between hosts, all of it does.
    """
    count = {"step": point.steps, "epoch": point.epochs, "none": 0}[workload.training.sync]
    cost, step = point.barrier_seconds or 0.0, workload.accelerator.step_seconds
    value = count * (cost if polled else max(0.0, cost - step)) / max(1e-9, point.seconds)
    if value <= BARRIER:
        return None
    advice = "let hosts reach each other's TCP ports" if polled else "use fewer ranks per core"
    sentence = (
        f"The barrier of a step takes {show_seconds(cost)} when all ranks come at once, beside a step of "
        f"{show_seconds(step)}: {value:.1%} of the time is the emulator's; {advice}."
    )
    return Flag(name="barrier", value=value, threshold=BARRIER, sentence=sentence)
