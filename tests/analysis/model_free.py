"""A knee without a model: the posterior is compared with it, here and in benchmarks/knee.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from emulator.analysis.crossing import decreasing
from emulator.analysis.knee import means

Where = Literal["inside", "below", "beyond"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where efficiency falls through a threshold."""

    ranks: float | None
    """Number of processes, interpolated; None unless `where` is `inside`."""
    where: Where
    """`inside` the counts that were run; `below`: never above; `beyond`: still above at the largest."""


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
