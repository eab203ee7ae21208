"""Percentiles from a histogram of read requests."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from emulator.record.result import Point

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


def percentiles(histogram: Mapping[str, int], wanted: tuple[float, ...] = PERCENTILES) -> tuple[float, ...]:
    """Seconds at or below which each percentage of the requests ended; () without requests.

    `histogram` maps the upper edge of a bucket in microseconds to requests. The answer is the upper edge
    of the bucket that the percentile falls into, so it never flatters.
    """
    edges = np.array([_edge(name) for name in histogram])
    counts = np.array(list(histogram.values()), dtype=np.int64)
    if not len(edges) or counts.sum() <= 0:
        return ()
    order = np.argsort(edges)
    total = np.cumsum(counts[order])
    places = np.searchsorted(total, np.ceil(total[-1] * np.array(wanted) / 100 - 1e-9))
    return tuple((edges[order][np.minimum(places, len(edges) - 1)] * 1e-6).tolist())


def _edge(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf  # a bucket without an upper edge, whatever it is called


def measured(points: tuple[Point, ...]) -> list[tuple[Point, tuple[float, ...]]]:
    """The points that have a histogram, by rank count, with their percentiles in seconds."""
    ordered = sorted(points, key=lambda point: point.ranks)
    found = [(point, percentiles(point.read_latency)) for point in ordered]
    return [(point, values) for point, values in found if values]
