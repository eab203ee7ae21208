"""From the steps of a point to its throughput and accelerator utilisation.

For one rank and one epoch, with the first step left out as MLPerf Storage does (rules v2.0):

    T  = sum of wait + compute + overshoot + barrier      seconds, steps 2 ... n
    X  = samples / T                                      samples/s, summed over ranks
    AU = nominal compute / T                              of all epochs, averaged over ranks

Compute is nominal, never measured: an overslept wait must not look like utilisation.
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


def without_first(steps: Steps) -> Steps:
    """The steps less the first one of each epoch; all of them when no epoch has a second step."""
    kept = steps[steps["step"] > 0]
    return kept if len(kept) else steps


def throughput(steps: Steps) -> Throughput:
    """Throughput and AU over `steps` of one point, by the formulas at the top of this module.

    Per rank over all its epochs: samples and time are summed before they are divided, so that a
    short last epoch does not weigh as much as a whole one.
    """
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
    """99th percentile of |overshoot| over the steps as a share of the step time; 0 without compute.

    Deadlines chain, so a late wake-up is followed by an equally early one: half of the difference
    between neighbours would be nearer the truth, the plain percentile is on the safe side.
    """
    if not len(steps) or step_seconds <= 0:
        return 0.0
    return float(np.percentile(np.abs(steps["overshoot"]), 99) / step_seconds)


def share_of_time(steps: Steps, column: str) -> float:
    """Share of the ranks' loop time that `column` (wait, compute, overshoot or barrier) takes."""
    total = float(np.sum(durations(steps)))
    return float(np.sum(steps[column])) / total if total > 0 else 0.0


def loop_seconds(steps: Steps) -> float:
    """Wall seconds of the loop: from the start of the point to the end of the last step of any rank."""
    return float(np.max(steps["begin"] + durations(steps))) if len(steps) else 0.0
