"""`--require N`: do these storage and client feed N accelerators, yes, no, or not to be told?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from emulator.record.result import CLIENT, Knee, Point

FED, UNKNOWN, NOT_FED = 0, 9, 10
"""Exit statuses."""


def gate(required: int, knee: Knee | None, points: Sequence[Point], threshold: float) -> int:
    """FED, NOT_FED or UNKNOWN for `required` accelerators.

    FED needs the lower end of the knee's interval, or a count that was seen to be fed, to reach `required`;
    NOT_FED needs the upper end to lie below it, or a count that the storage was seen to starve not to exceed
    it. `threshold` is the workload's AU threshold, 0 to 1. Without a knee, single counts decide.
    """
    if knee is not None and knee.kind == "knee" and knee.interval is not None:
        low, high = knee.interval
        if math.floor(low) >= required:
            return FED
        return NOT_FED if high < required else UNKNOWN
    fed = [point.ranks for point in points if point.x_ideal >= threshold]
    starved = [point.ranks for point in points if point.x_ideal < threshold and not _by_client(point)]
    if knee is not None:
        fed, starved = [knee.fed or 0], [knee.starved] if knee.starved else []
        if knee.kind == "at-least":
            starved = []  # the client was the limit: the storage may feed more
        elif knee.kind == "below":
            starved = [point.ranks for point in points]
    if max(fed, default=0) >= required:
        return FED
    return NOT_FED if min(starved, default=math.inf) <= required else UNKNOWN


def verdict(required: int, status: int) -> str:
    """One line for people."""
    words = {FED: "met", NOT_FED: "not met", UNKNOWN: "cannot be told from these runs"}
    return f"--require {required}: {words[status]}"


def _by_client(point: Point) -> bool:
    return point.bound is not None and point.bound.kind in CLIENT
