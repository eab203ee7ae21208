"""The fitted curve and its 95 % band, from the same posterior as the knee's interval."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from emulator.analysis.flags import usable
from emulator.analysis.posterior import posterior
from emulator.record.result import RunResult
from emulator.report.frames import Rows, Unit, logarithmic, mean_demand, ordered
from emulator.report.view import computes

LEVELS = (0.025, 0.5, 0.975)
PLACES = 60
"""Process counts at which the curve is drawn."""


def fit_rows(result: RunResult, unit: Unit, top: float) -> Rows:
    """The curve where it stays below `top` units: ranks, and rate and each with low and high ends.

    [] without an interval of the knee: then nothing was fitted. From the same points as the knee.
    """
    points = ordered(result)
    one = mean_demand(points)
    used = [point for point in usable(points) if computes(point)]
    if result.knee is None or result.knee.interval is None or one is None:
        return []
    first, last = points[0].ranks, points[-1].ranks
    space = np.geomspace if logarithmic(first, last) else np.linspace
    counts = tuple(space(first, last, PLACES).tolist())
    band = _band(
        tuple(point.ranks for point in used),
        tuple(point.samples_per_second / point.ideal_samples_per_second for point in used),
        result.workload.get("training", {}).get("au_threshold", 0.9),
        counts,
    )
    rows: Rows = []
    for place, ranks in enumerate(counts):
        low, middle, high = (one / unit.size * min(1.0, level[place]) for level in band)
        if ranks * middle < top:
            rows.append(
                {
                    "ranks": ranks, "rate": ranks * middle, "rate_low": ranks * low,
                    "rate_high": min(top, ranks * high), "each": middle, "each_low": low, "each_high": high,
                }
            )  # fmt: skip
    return rows


@lru_cache(maxsize=8)
def _band(
    ranks: tuple[int, ...], efficiency: tuple[float, ...], threshold: float, counts: tuple[float, ...]
) -> tuple[tuple[float, ...], ...]:
    """Quantiles of the fitted efficiency at each count; kept, since several plots draw the same."""
    found = posterior(ranks, efficiency, threshold, max(ranks))
    return tuple(tuple(level) for level in found.band(counts, LEVELS).tolist())
