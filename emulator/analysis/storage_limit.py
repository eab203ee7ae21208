"""The storage's limit that a point met: bandwidth, IOPS, metadata, its latency, or the memory before it.

The point's rates are compared with the most that other points and a probe of the same dataset got
(`RunResult.probe`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from emulator.analysis.flags import memory_share
from emulator.record.result import Bound, Point, Probe
from emulator.units import show_bytes, show_rate, show_seconds

REACHED = 0.75
"""Share of the probe's most from which a point has met a limit."""
ALONE = 1.5
"""Ratio of a request's seconds to those of one alone, up to which the storage has capacity left."""
FLAT = 1.3
"""Gain of four times the requests in flight below which the storage gives no more."""
PROBES_OWN = 0.75
"""Cores that a probing process uses from which it may have measured itself: Python runs one thread."""
BESIDE = 0.25
"""Share of the device's bytes that others moved, from which its latencies are those beside them."""
FROM_MEMORY = 0.5
"""Share of the bytes that did not come from the device, from which memory answered."""


GROWN = 16
"""Largest windows of read-ahead that a file must have before the window's growth within it is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reads of a point's ranks: request size and read-ahead."""

    request_bytes: int
    """Bytes of a request that the storage sees."""
    workers: int
    """Samples that a rank reads at the same time."""
    read_ahead: bool
    """True if the kernel's read-ahead makes the requests, as for a library that reads a file in order."""


def storage_limit(
    point: Point, probes: Sequence[Probe], reading: Reading, others: Sequence[Point] = ()
) -> Bound | None:
    """The limit that a point met whose accelerators starved for the storage; None if it is not told apart."""
    if (memory := from_memory(point)) is not None:
        return memory
    point, others = _from_storage(point), [_from_storage(other) for other in others]
    if not point.read_seconds or not probes:
        return None
    wanted = _request_bytes(point, reading)
    size = min((probe.request_bytes for probe in probes), key=lambda one: abs(math.log(one / wanted)))
    alone = min((one for one in probes if one.request_bytes == size), key=lambda one: one.depth)
    opened, read = point.open_seconds or 0.0, point.read_seconds
    if reading.read_ahead:  # a library opens within its call: the probe opens a file for each request
        opened = point.samples * max(0.0, alone.depth / alone.requests_per_second - alone.latency_seconds)
        read -= opened
    if opened > read:
        return _metadata(point, opened, read)
    best = max(probes, key=lambda probe: probe.bytes_per_second)
    most = max(best.bytes_per_second, *(other.bytes_per_second for other in (point, *others)))
    iops = _iops_of(probes, point, wanted)
    # Of requests of any size: that they are smaller helps little. A point with more of them than the probe
    # shows that the probe met another limit.
    if REACHED <= iops.rate / iops.most <= 1 / REACHED:
        return _iops(point, iops, best)
    slower = point.read_seconds * wanted / max(1, point.bytes) / alone.latency_seconds
    same = [one.requests_per_second for one in probes if one.request_bytes == best.request_bytes]
    flat = len(same) > 1 and max(same) < FLAT * max(same[:-1])
    flat = flat or any(
        other.ranks >= 2 * point.ranks and other.bytes_per_second < FLAT * point.bytes_per_second
        for other in others
    )
    if point.bytes_per_second >= REACHED * most and (flat or slower > ALONE):
        return _bandwidth(point, most)
    # Where others use the device, the probe's lone request waited for theirs, too: it shows no capacity left.
    if slower <= ALONE and not any(flag.name == "neighbour" and flag.value > BESIDE for flag in point.flags):
        return _latency(point, probes, reading, alone, min(most, iops.most * iops.bytes))
    return None


def _from_storage(point: Point) -> Point:
    """The point with the rate that storage delivered, without what memory answered."""
    return replace(point, bytes_per_second=point.bytes_per_second * (1 - memory_share(point)))


class _Requests(NamedTuple):
    """Requests of a point as its device counts them, or else as its readers make them."""

    bytes: float
    """Mean bytes of one."""
    rate: float
    """Requests per second of the point."""
    most: float
    """Requests per second of the probe, the most at any size and depth; infinite where it measured itself."""


def _iops_of(probes: Sequence[Probe], point: Point, request_bytes: float) -> _Requests:
    devices = [host.device for host in point.hosts if host.device is not None]
    known = [one for one in probes if one.device_requests_per_second is not None]
    count = sum(device.requests for device in devices)
    size, rates = request_bytes, [(one.requests_per_second, one.cores) for one in probes]
    if known and count:
        size = sum(device.bytes for device in devices) / count
        rates = [(one.device_requests_per_second or 0.0, one.cores) for one in known]
    most, cores = max(rates)
    return _Requests(size, point.bytes_per_second / size, most if cores < PROBES_OWN else math.inf)


def _request_bytes(point: Point, reading: Reading) -> float:
    """Mean bytes of a request that the storage answers while a reader waits."""
    devices = [host.device for host in point.hosts if host.device is not None]
    count = sum(device.requests for device in devices)
    if reading.read_ahead and count:  # windows grow within a file, and files are not whole windows
        return sum(device.bytes for device in devices) / count
    return reading.request_bytes


def from_memory(point: Point) -> Bound | None:
    """The limit where most bytes came from the page cache; None where they did not, or it is not known."""
    devices = [host.device for host in point.hosts if host.device is not None]
    if not devices or len(devices) < len(point.hosts) or not point.bytes:
        return None
    share = 1 - sum(device.bytes for device in devices) / point.bytes
    if share < FROM_MEMORY:
        return None
    return Bound(kind="memory", evidence=(f"{share:.0%} of the bytes came from the page cache",))


def _metadata(point: Point, opened: float, read: float) -> Bound:
    each = opened / max(1, point.samples)
    evidence = (
        f"opening files took {min(1.0, opened / (opened + read)):.0%} of the time of reading, "
        f"{show_seconds(each)} a sample",
    )
    # A reader's time for a sample is that of opening and that of reading, which stays.
    room = (opened + read) * point.x_ideal - read
    if room > 0:
        faster = show_seconds(room / max(1, point.samples))
        help_ = f"opens of {faster} a sample instead of {show_seconds(each)} would feed {point.ranks}"
    else:
        rate = point.bytes_per_second * (opened + read) / max(read, 1e-9)
        help_ = f"opens that take no time would {_feed(point, rate)}"
    return Bound(kind="metadata", evidence=evidence, help=help_)


def _bandwidth(point: Point, most: float) -> Bound:
    evidence = (
        f"{show_rate(point.bytes_per_second)} of the {show_rate(most)} that the storage gave at most, "
        f"to this run, the others and the probe",
    )
    missing = show_rate(_demand(point) - point.bytes_per_second)
    return Bound(
        kind="bandwidth",
        evidence=evidence,
        help=f"{missing} more would feed {point.ranks}; more workers or read-ahead would not",
    )


def _iops(point: Point, requests: _Requests, best: Probe) -> Bound:
    size = requests.bytes
    evidence = (
        f"{requests.rate:,.0f} of the {requests.most:,.0f} requests per second that the storage answers at "
        f"any size and depth, {show_bytes(size)} each",
    )
    missing = (_demand(point) - point.bytes_per_second) / size
    text = f"{missing:,.0f} more requests per second would feed {point.ranks}"
    if best.bytes_per_second > ALONE * point.bytes_per_second:
        text += f", requests of {show_bytes(best.request_bytes)} would {_feed(point, best.bytes_per_second)}"
    return Bound(kind="iops", evidence=evidence, help=text)


def _latency(point: Point, probes: Sequence[Probe], reading: Reading, alone: Probe, most: float) -> Bound:
    depth = (point.read_seconds or 0.0) / point.seconds
    size = show_bytes(alone.request_bytes)
    evidence = (
        f"a request of {size} takes {show_seconds(alone.latency_seconds)}, alone and "
        f"with {depth:.2g} in flight as here; with more in flight the storage gives {show_rate(most)}",
    )
    wanted = min(most, _demand(point)) / point.bytes_per_second
    workers = math.ceil(reading.workers * wanted)
    if workers <= reading.workers:  # nothing had more in flight: how much that would give is not known
        return Bound(kind="latency", evidence=evidence)
    text = f"{workers} workers instead of {reading.workers} would {_feed(point, most)}"
    if reading.read_ahead:
        first = min(one.depth for one in probes)
        single = [one for one in probes if one.depth == first]
        best = max(single, key=lambda one: one.bytes_per_second)
        # The kernel's window grows from a small one within each file: of small files it never is that large.
        large = point.bytes > GROWN * best.request_bytes * point.samples
        if large and best.bytes_per_second > ALONE * alone.bytes_per_second:
            gain = best.bytes_per_second / alone.bytes_per_second
            text += (
                f", a read-ahead of {show_bytes(best.request_bytes)} instead of "
                f"{size} would {_feed(point, gain * point.bytes_per_second)}"
            )
    return Bound(kind="latency", evidence=evidence, help=text)


def _demand(point: Point) -> float:
    """Bytes per second of accelerators that never wait."""
    return point.ideal_samples_per_second * point.bytes / max(1, point.samples)


def _feed(point: Point, rate: float) -> str:
    """Say how many of the point's accelerators `rate` bytes per second feed."""
    share = min(1.0, rate / _demand(point))
    fed = math.floor(1.005 * share * point.ranks)
    return f"feed about {fed} of {point.ranks}" if fed else f"give {share:.0%} of the demand of {point.ranks}"
