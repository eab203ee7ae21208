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
    if memory := from_memory(point):
        return memory
    in_reads = point.read_seconds
    if not in_reads or not probes:
        return None
    point, others = _from_storage(point), [_from_storage(other) for other in others]
    request_bytes = _request_bytes(point, reading)
    alone = _lone_request(probes, request_bytes)
    opened = _open_seconds(point, reading, alone)
    read = in_reads - opened if reading.read_ahead else in_reads
    if opened > read:
        return _metadata(point, opened, read)
    best = max(probes, key=lambda probe: probe.bytes_per_second)
    most = max(best.bytes_per_second, *(other.bytes_per_second for other in (point, *others)))
    requests = _requests_of(probes, point, request_bytes)
    # The most requests per second hardly depends on their size. A point that made more than the probe shows
    # that something else limited the probe.
    if REACHED <= requests.rate / requests.most <= 1 / REACHED:
        return _iops(point, requests, best)
    slowdown = in_reads * request_bytes / max(1, point.bytes) / alone.latency_seconds
    at_most = point.bytes_per_second >= REACHED * most
    if at_most and (slowdown > ALONE or _is_flat(point, others, probes, best)):
        return _bandwidth(point, most)
    # Beside a neighbour on the device, the probe's lone request waited for others' requests, so that it does
    # not show whether the storage has capacity left.
    shared = any(flag.name == "neighbour" and flag.value > 0.25 for flag in point.flags)
    if slowdown <= ALONE and not shared:
        return _latency(point, probes, reading, alone, min(most, requests.most * requests.bytes))
    return None


def _open_seconds(point: Point, reading: Reading, alone: Probe) -> float:
    """Seconds that the point's readers spent on opening files."""
    if not reading.read_ahead:
        return point.open_seconds or 0.0
    # A library opens a file within its call, so the time is the probe's, which opens a file for each request.
    return point.samples * max(0.0, alone.depth / alone.requests_per_second - alone.latency_seconds)


def _lone_request(probes: Sequence[Probe], wanted: float) -> Probe:
    """The probe of the least depth, of those whose requests are nearest to `wanted` bytes."""
    size = min((probe.request_bytes for probe in probes), key=lambda size: abs(math.log(size / wanted)))
    return min((probe for probe in probes if probe.request_bytes == size), key=lambda probe: probe.depth)


def _is_flat(point: Point, others: Sequence[Point], probes: Sequence[Probe], best: Probe) -> bool:
    """True if more requests in flight got no more from the storage: of the probe, or of more ranks."""
    rates = [probe.requests_per_second for probe in probes if probe.request_bytes == best.request_bytes]
    if len(rates) > 1 and max(rates) < FLAT * max(rates[:-1]):
        return True
    twice = [other for other in others if other.ranks >= 2 * point.ranks]
    return any(other.bytes_per_second < FLAT * point.bytes_per_second for other in twice)


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


def _requests_of(probes: Sequence[Probe], point: Point, request_bytes: float) -> _Requests:
    rates = [(probe.requests_per_second, probe.cores) for probe in probes]
    by_device = [
        (probe.device_requests_per_second, probe.cores)
        for probe in probes
        if probe.device_requests_per_second is not None
    ]
    if by_device and (mean := device_request_bytes(point)):
        request_bytes, rates = mean, by_device
    most, cores = max(rates)
    if cores >= 0.75:  # Python runs one thread: the probe may have measured itself
        most = math.inf
    return _Requests(request_bytes, point.bytes_per_second / request_bytes, most)


def device_request_bytes(point: Point) -> float | None:
    """Mean bytes of a read request as the hosts' devices count them; None: not counted."""
    devices = [host.device for host in point.hosts if host.device is not None]
    requests = sum(device.requests for device in devices)
    return sum(device.bytes for device in devices) / requests if requests else None


def _request_bytes(point: Point, reading: Reading) -> float:
    """Mean bytes of a request that the storage answers while a reader waits."""
    # Only the device knows the size of read-ahead's requests: they grow within a file.
    by_device = device_request_bytes(point) if reading.read_ahead else None
    return reading.request_bytes if by_device is None else by_device


def from_memory(point: Point) -> Bound | None:
    """The limit where most bytes came from the page cache; None where they did not, or it is not known."""
    devices = [host.device for host in point.hosts if host.device is not None]
    if not devices or len(devices) < len(point.hosts) or not point.bytes:
        return None
    share = 1 - sum(device.bytes for device in devices) / point.bytes
    if share < 0.5:
        return None
    return Bound(kind="memory", evidence=(f"{share:.0%} of the bytes came from the page cache",))


def _metadata(point: Point, opened: float, read: float) -> Bound:
    samples = max(1, point.samples)
    opening = show_seconds(opened / samples)
    share = min(1.0, opened / (opened + read))
    evidence = (f"opening files took {share:.0%} of the time of reading, {opening} a sample",)
    # Accelerators are fed if opening and reading take x_ideal of their present time, of which reading stays.
    time_to_open = (opened + read) * point.x_ideal - read
    if time_to_open > 0:
        faster = show_seconds(time_to_open / samples)
        advice = f"opens of {faster} a sample instead of {opening} would feed {point.ranks}"
    else:
        rate = point.bytes_per_second * (opened + read) / max(read, 1e-9)
        advice = f"opens that take no time would {_feed(point, rate)}"
    return Bound(kind="metadata", evidence=evidence, help=advice)


def _bandwidth(point: Point, most: float) -> Bound:
    evidence = (
        f"{show_rate(point.bytes_per_second)} of the {show_rate(most)} that the storage gave at most, "
        f"to this run, the others and the probe",
    )
    return Bound(kind="bandwidth", evidence=evidence)


def _iops(point: Point, requests: _Requests, best: Probe) -> Bound:
    evidence = [
        f"{requests.rate:,.0f} of the {requests.most:,.0f} requests per second that the storage answers at "
        f"any size and depth, {show_bytes(requests.bytes)} each"
    ]
    if best.bytes_per_second > ALONE * point.bytes_per_second:
        evidence.append(
            f"requests of {show_bytes(best.request_bytes)} got {show_rate(best.bytes_per_second)}"
        )
    return Bound(kind="iops", evidence=tuple(evidence))


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
        shallowest = min(probe.depth for probe in probes)
        lone = [probe for probe in probes if probe.depth == shallowest]
        best = max(lone, key=lambda probe: probe.bytes_per_second)
        # The kernel's window grows from a small one within each file: of small files it never is that large.
        large = point.bytes > 16 * best.request_bytes * point.samples
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
