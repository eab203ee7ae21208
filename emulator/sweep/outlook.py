"""How far a sweep is: what the ranks read just now, from their spools, and how long the rest will take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from emulator.analysis.throughput import Throughput, throughput
from emulator.record.result import Point
from emulator.record.steps import last_steps

MOST_RANKS = 16
"""Ranks whose rows are looked at; the others are taken to be like them."""
RECENT_STEPS = 8
"""Steps of a rank that count as now."""


class Spools:
    """The last steps of a point that runs."""

    def __init__(self, number: int, spools: Sequence[tuple[Path, int, int]]) -> None:
        """`spools` has, of each rank that runs point `number`, where its rows lie (`last_steps`)."""
        places = np.unique(np.linspace(0, len(spools) - 1, min(MOST_RANKS, len(spools))).astype(int))
        self._spools = [spools[place] for place in places]
        self._number = number
        self._ranks = len(spools)

    def now(self) -> Throughput | None:
        """What all ranks get now, the first step left out; None until some of them have shown it."""
        parts = []
        for spool in self._spools:
            with suppress(OSError):
                rows = last_steps(*spool)
                rows = rows[(rows["point"] == self._number) & ((rows["step"] > 0) | (rows["epoch"] > 0))]
                if len(rows):
                    parts.append(rows[-RECENT_STEPS:])
        if not parts:
            return None
        found, scale = throughput(np.concatenate(parts)), self._ranks / len(parts)
        return Throughput(
            samples_per_second=found.samples_per_second * scale,
            bytes_per_second=found.bytes_per_second * scale,
            au=found.au,
        )


def step_seconds(ranks: int, points: Sequence[Point], nominal: float, least: float = 0.0) -> float:
    """Seconds that a step of `ranks` ranks may take, from the points so far; else `nominal` or `least`.

    Between counts that were run it is a straight line; beyond the largest it grows with the ranks where that
    one starved, and does not where it did not.
    """
    known: dict[int, float] = {point.ranks: point.seconds / point.steps for point in points if point.steps}
    if not known:
        return max(nominal, least)
    counts = sorted(known)
    last = counts[-1]
    if ranks > last:
        starved = any(point.ranks == last and point.x_ideal < 0.98 for point in points)
        return known[last] * (ranks / last if starved else 1.0)
    return float(np.interp(ranks, counts, [known[count] for count in counts]))


def share_done(seconds: float, left: float | None) -> float | None:
    """Share of the whole time that is over (0 to 1); None where what is left is not known."""
    if left is None or not math.isfinite(left) or seconds + left <= 0:
        return None
    return seconds / (seconds + left)
