"""From the steps of a point to its throughput and accelerator utilisation.

For one rank, over its steady steps:

    T  = sum of wait + compute + overshoot + barrier      seconds
    X  = samples / T                                      samples/s, summed over ranks
    AU = nominal compute / T                              averaged over ranks

as MLPerf Storage defines AU (rules v2.0: the first step is left out of both). Compute is nominal, never
measured: an overslept wait must not look like utilisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.record.step import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates of all ranks of a point together."""

    samples_per_second: float
    bytes_per_second: float
    au: float
    """Accelerator utilisation, 0 to 1."""


def durations(steps: Steps) -> NDArray[np.float64]:
    """Seconds of each step, shape (steps,): wait + compute + overshoot + barrier."""
    total: NDArray[np.float64] = steps["wait"] + steps["compute"] + steps["overshoot"] + steps["barrier"]
    return total


def steady(steps: Steps) -> Steps:
    """The steps of a point while all of its ranks were busy: X and AU are taken over these.

    Without the first step of each rank, which waits for a pipeline that is still empty (MLPerf Storage
    leaves it out too), and without what slower ranks did after the first rank had ended, when they had
    the storage for themselves. A rank of which nothing would be left keeps its later steps, or its only one.
    """
    if not len(steps):
        return steps
    ends = steps["begin"] + durations(steps)
    ranks, rank = np.unique(steps["rank"], return_inverse=True)
    last = np.zeros(len(ranks))
    np.maximum.at(last, rank, ends)
    later = (steps["epoch"] > 0) | (steps["step"] > 0)
    kept = later & (ends <= last.min() + 1e-9)
    for choice in (later, np.ones_like(later)):
        missing = np.bincount(rank, weights=kept, minlength=len(ranks)) == 0
        kept |= missing[rank] & choice
    chosen: Steps = steps[kept]
    return chosen


def throughput(steps: Steps) -> Throughput:
    """Throughput and AU over `steps` of one point, by the formulas at the top of this module."""
    if not len(steps):
        return Throughput(samples_per_second=0.0, bytes_per_second=0.0, au=0.0)
    _, rank = np.unique(steps["rank"], return_inverse=True)
    seconds = np.bincount(rank, weights=durations(steps))
    samples = np.bincount(rank, weights=steps["samples"])
    size = np.bincount(rank, weights=steps["bytes"])
    compute = np.bincount(rank, weights=steps["compute"])
    return Throughput(
        samples_per_second=float(np.sum(samples / seconds)),
        bytes_per_second=float(np.sum(size / seconds)),
        au=float(np.mean(compute / seconds)),
    )


def overshoot_p99(steps: Steps, step_seconds: float) -> float:
    """99th percentile over the steps of |overshoot| and lateness, as a share of the step time.

    Whether it held the accelerator up or not: a process that comes late also asks late for the next data.
    0 without compute.
    """
    if not len(steps) or step_seconds <= 0:
        return 0.0
    return float(np.percentile(np.abs(steps["overshoot"]) + steps["late"], 99) / step_seconds)


def share_of_time(steps: Steps, column: str) -> float:
    """Share of the ranks' loop time that `column` (wait, compute, overshoot or barrier) takes."""
    total = float(np.sum(durations(steps)))
    return float(np.sum(steps[column])) / total if total > 0 else 0.0


def loop_seconds(steps: Steps) -> float:
    """Wall seconds of the loop: from the start of the point to the end of the last step of any rank."""
    return float(np.max(steps["begin"] + durations(steps))) if len(steps) else 0.0


def rate_series(steps: Steps, bins: int = 40) -> NDArray[np.float64]:
    """Samples/s of all ranks in `bins` equal spans of the steps' time, shape (bins,).

    A step's samples are spread evenly over its duration, so that steps which cross a border count for
    both sides.
    """
    if not len(steps):
        return np.zeros(0)
    begin, length = steps["begin"], np.maximum(durations(steps), 1e-9)
    edges = np.linspace(begin.min(), (begin + length).max(), bins + 1)
    # Samples delivered up to each edge: the sum over steps of the share of the step before it.
    before = np.clip((edges[:, None] - begin[None, :]) / length[None, :], 0, 1) @ steps["samples"]
    rates: NDArray[np.float64] = np.diff(before) / np.diff(edges)
    return rates
