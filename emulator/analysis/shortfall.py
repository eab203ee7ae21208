"""What a starved point's limit lets through, and what it lacks for more, in the unit of that limit."""

from __future__ import annotations

from emulator.analysis.bound import LIMIT_NAMES
from emulator.analysis.storage_limit import device_request_bytes
from emulator.record.result import Point
from emulator.units import show_bytes, show_rate, show_seconds


def request_bytes(point: Point) -> float | None:
    """Mean bytes of a request, as the device counts them, or else as readers make them; None: not counted."""
    if counted := device_request_bytes(point):
        return counted
    requests = sum(point.read_latency.values())
    return point.bytes / requests if requests else None


def request_seconds(point: Point) -> float | None:
    """Mean seconds of a read request; None: not counted."""
    requests = sum(point.read_latency.values())
    return point.read_seconds / requests if requests and point.read_seconds else None


def show_limit(point: Point) -> str:
    """The limit of a point and its number: `storage IOPS, 400 requests/s of 457 kB`."""
    if point.bound is None:
        return ""
    name, size, seconds = LIMIT_NAMES[point.bound.kind], request_bytes(point), request_seconds(point)
    match point.bound.kind:
        case "iops" if size:
            return f"{name}, {point.bytes_per_second / size:,.0f} requests/s of {show_bytes(size)}"
        case "latency" if seconds:
            return f"{name}, {show_seconds(seconds)} a request"
        case "metadata" if point.open_seconds:
            return f"{name}, {show_seconds(point.open_seconds / max(1, point.samples))} to open a sample"
        case "storage" | "bandwidth" | "iops" | "latency" | "metadata":
            return f"{name}, {show_rate(point.bytes_per_second)}"
    return name


def lacking(point: Point, wanted: float) -> str:
    """What the limit of `point` lacks to deliver `wanted` bytes/s; empty if storage lacks nothing."""
    more = wanted - point.bytes_per_second
    if more <= 0 or point.bound is None:
        return ""
    size, seconds = request_bytes(point), request_seconds(point)
    match point.bound.kind:
        case "iops" if size:
            return f"{more / size:,.0f} requests/s more, or larger requests"
        case "latency" if seconds:
            faster = show_seconds(seconds * point.bytes_per_second / wanted)
            return (
                f"requests that take {faster} instead of {show_seconds(seconds)}, or more of them in flight"
            )
        case "metadata":
            samples = more * point.samples / max(1, point.bytes)
            return f"{samples:,.0f} more files opened per second"
        case "storage" | "bandwidth":
            return f"{show_rate(more)} more"
    return ""
