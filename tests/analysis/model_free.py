"""A knee without a model: the posterior is compared with it, here and in benchmarks/knee.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.analysis.knee import Floats, Where, means


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where efficiency falls through a threshold."""

    ranks: float | None
    """Number of processes, interpolated; None unless `where` is `inside`."""
    where: Where
    """`inside` the counts that were run; `below`: never above; `beyond`: still above at the largest."""


def decreasing(values: Floats, weights: Floats) -> Floats:
    """The non-increasing sequence nearest to `values` in weighted least squares.

    Pool-adjacent-violators (Ayer, Brunk, Ewing, Reid, Silverman 1955): neighbours that rise are
    replaced by their weighted mean until none does.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, size = float(value), float(weight), 1
        while blocks and blocks[-1][0] < mean:
            last, last_total, last_size = blocks.pop()
            mean = (last * last_total + mean * total) / (last_total + total)
            total += last_total
            size += last_size
        blocks.append((mean, total, size))
    return np.concatenate([np.full(size, mean) for mean, _, size in blocks])


def crossing(ranks: Sequence[float], efficiency: Sequence[float], threshold: float) -> Crossing:
    """The largest N with efficiency >= threshold, between the counts that were run.

    Means per count, then `decreasing`, then a straight line of ln efficiency along ln N between the last
    count above and the next one below; beyond a hard limit C, efficiency = C / (N r) is that straight line.
    Raises ValueError when there is no run.
    """
    if len(ranks) == 0:
        raise ValueError("no run to find a knee in")
    count, mean, runs = means(ranks, efficiency)
    fit = decreasing(mean, runs)
    above = np.flatnonzero(fit >= threshold)
    if above.size == 0:
        return Crossing(ranks=None, where="below")
    last = int(above[-1])
    if last == len(count) - 1:
        return Crossing(ranks=None, where="beyond")
    low, high = np.log(np.maximum(fit[last : last + 2], 1e-12))
    part = (low - np.log(threshold)) / (low - high)
    return Crossing(ranks=float(count[last] * (count[last + 1] / count[last]) ** part), where="inside")
