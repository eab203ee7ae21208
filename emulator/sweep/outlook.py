"""How far a sweep is: what the ranks read just now, from their spools, and how long the rest will take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from emulator.analysis.throughput import Throughput, throughput
from emulator.record.result import Point
from emulator.record.steps import SPOOL, STEP

MOST_RANKS = 16
"""Spools that are looked at; the others are taken to be like them."""
RECENT_STEPS = 8
"""Steps of a rank that count as now."""
_TAIL = 4 * RECENT_STEPS * STEP.itemsize


class Spools:
    """The last steps of a point that runs."""

    def __init__(self, out: Path, number: int, active: Sequence[int]) -> None:
        """`active` has the world's numbers of the ranks that run point `number`."""
        places = np.unique(np.linspace(0, len(active) - 1, min(MOST_RANKS, len(active))).astype(int))
        self._files = [out / SPOOL / f"rank-{active[place]:05d}.steps" for place in places]
        self._number = number
        self._ranks = len(active)

    def now(self) -> Throughput | None:
        """What all ranks get now, the first step left out; None until some of them have shown it."""
        parts = []
        for path in self._files:
            with suppress(OSError), path.open("rb") as file:
                size = file.seek(0, 2) // STEP.itemsize * STEP.itemsize
                file.seek(max(0, size - _TAIL))
                rows = np.frombuffer(file.read(min(size, _TAIL)), dtype=STEP)
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
