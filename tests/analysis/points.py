"""Points with the fields that a test cares about; the rest is what an undisturbed point would say."""

from __future__ import annotations

from typing import Any

from emulator.record.result import HostShare, Point

SAMPLES, SAMPLE_BYTES = 100, 10_000_000
RATE = 8.0
"""Samples per second that one process would consume: 80 MB/s."""


def point(ranks: int, efficiency: float, **fields: Any) -> Point:
    values: dict[str, Any] = {
        "ranks": ranks,
        "hosts": (host(ranks=ranks),),
        "epochs": 2,
        "steps": 10,
        "samples": SAMPLES,
        "bytes": SAMPLES * SAMPLE_BYTES,
        "left_out": 0,
        "seconds": 10.0,
        "samples_per_second": efficiency * ranks * RATE,
        "bytes_per_second": efficiency * ranks * RATE * SAMPLE_BYTES,
        "ideal_samples_per_second": ranks * RATE,
        "x_ideal": efficiency,
        "au": efficiency,
        "x_ideal_first": efficiency,
        "au_first": efficiency,
        "wait_share": 1 - efficiency,
        "barrier_share": 0.0,
    }
    return Point(**{**values, **fields})


def host(name: str = "a", **fields: Any) -> HostShare:
    values: dict[str, Any] = {
        "host": name,
        "ranks": 4,
        "bytes": 10**9,
        "samples": 100,
        "cpu_seconds": 8.0,
        "cores": 8,
        "busy_share": 0.15,
        "steal_share": 0.0,
    }
    return HostShare(**{**values, **fields})
