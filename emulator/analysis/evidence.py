"""The points that say something about the storage: knees, curves and fitted systems use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from emulator.analysis.bound import FED
from emulator.analysis.flags import invalid
from emulator.record.result import CLIENT, Point


def limited_by_client(point: Point) -> bool:
    """True where the client kept the storage from showing what it delivers."""
    # Where accelerators were fed, the storage delivered what was asked for, however late processes were.
    return point.bound is not None and point.bound.kind in CLIENT and point.x_ideal < FED


def usable(points: Sequence[Point]) -> list[Point]:
    """The points that a knee, its curve and a fitted system are made from, in their order.

    Points that the client limited are left out: the storage might have delivered more. So are those that
    memory answered (`flags.invalid`), if two process counts remain without them.
    """
    by_storage = [point for point in points if not limited_by_client(point)]
    valid = [point for point in by_storage if not invalid(point)]
    return valid if len({point.ranks for point in valid}) > 1 else by_storage


def left_out(points: Sequence[Point]) -> list[str]:
    """Why points are not `usable`, in words such as `2 of 8 runs (page-cache)`."""
    used = usable(points)
    reasons = Counter(
        "page-cache" if invalid(point) else "limited by the client" for point in points if point not in used
    )
    return [f"{runs} of {len(points)} runs ({reason})" for reason, runs in reasons.items()]
