"""The points that say something about the storage: knees, curves and fitted systems use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from emulator.analysis.bound import FED
from emulator.analysis.flags import invalid
from emulator.record.result import CLIENT, Point


def limited_by_client(point: Point) -> bool:
    """True where the client kept the storage from showing what it delivers."""
    # Where accelerators were fed all the same, the storage delivered what was asked for, however late the
    # client's processes were.
    return point.bound is not None and point.bound.kind in CLIENT and point.x_ideal < FED


def usable(points: Sequence[Point]) -> list[Point]:
    """The points that a knee, its curve and a fitted system are made from, in their order.

    Left out are those that the client held back, since the storage might have delivered more, and those of
    which a flag says that memory answered (`flags.invalid`), as long as those leave two process counts.
    """
    served = [point for point in points if not limited_by_client(point)]
    # A knee, its curve, the lines of figures and `fit` leave the same points out.
    valid = [point for point in served if not invalid(point)]
    return valid if len({point.ranks for point in valid}) > 1 else served


def left_out(points: Sequence[Point], used: Sequence[Point] | None = None) -> list[str]:
    """Sentences on points that are not `used`, or not `usable`, such as `2 of 8 runs (page-cache)`."""
    used = usable(points) if used is None else used
    reasons = Counter(
        "page-cache" if invalid(point) else "limited by the client" for point in points if point not in used
    )
    return [f"{runs} of {len(points)} runs ({why})" for why, runs in reasons.items()]
