"""Schedules: the process counts of a sweep, from a list or by halving."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from emulator.errors import SpecError
from emulator.record.result import Point
from emulator.run.accelerator import Clock


class Schedule(ABC):
    """Chooses process counts on rank 0 from the points so far."""

    largest: int
    """Largest count that it may choose."""
    certain: bool = False
    """True if no measurement can change the number of runs."""
    assumption: str = ""
    """The assumption behind `expected`; empty if there is none."""

    @abstractmethod
    def next_count(self, points: Sequence[Point]) -> int | None:
        """Return the process count of the next point; None if no more are needed."""

    @abstractmethod
    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        """Return the counts that are expected after `points`, if the storage feeds `limit` processes.

        `limit` is infinite if it is unknown.
        """

    @abstractmethod
    def outlook(self, points: Sequence[Point]) -> str:
        """Return the present estimate and the runs left, in a few words."""

    def verdict(self, points: Sequence[Point]) -> str:
        """Return why the sweep ended; empty if it did not, or there is nothing to report."""
        return ""

    @property
    def seconds_left(self) -> float:
        """Seconds after which no further run begins; infinite without a budget."""
        return math.inf


class FixedCounts(Schedule):
    """Runs one point for each of a list of process counts, in its order."""

    certain = True

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = counts
        self.largest = max(counts)

    def next_count(self, points: Sequence[Point]) -> int | None:
        return self.counts[len(points)] if len(points) < len(self.counts) else None

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        return self.counts[len(points) :]

    def outlook(self, points: Sequence[Point]) -> str:
        return f"point {min(len(points) + 1, len(self.counts))} of {len(self.counts)}"


def parse_counts(text: str) -> tuple[int, ...]:
    """Parse process counts such as `1,2,4,8` or `1-4,8`. Raises SpecError."""
    counts: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SpecError(
                f"--counts {text!r} is not a list of process counts", "write it like 1,2,4,8 or 1-8"
            )
        low, high = int(first), int(last or first)
        if not 1 <= low <= high:
            raise SpecError(f"--counts {text!r} has {part.strip()!r}", "counts are above 0, ranges ascend")
        counts.extend(range(low, high + 1))
    return tuple(counts)


def require_ranks(counts: Sequence[int], world: int) -> None:
    """Raise SpecError if a count needs more ranks than were started."""
    if max(counts) > world:
        raise SpecError(
            f"--counts needs {max(counts)} processes, but only {world} ranks were started",
            f"start {max(counts)} with mpirun -n {max(counts)}, or leave that count out",
        )


def fed_between(points: Sequence[Point], threshold: float) -> tuple[int, int]:
    """Return the largest count that was fed, 0 for none, and the smallest one above it that was not."""
    fed = max((point.ranks for point in points if point.x_ideal >= threshold), default=0)
    starved = [point.ranks for point in points if point.x_ideal < threshold and point.ranks > fed]
    return fed, min(starved, default=fed + 1)


class Halving(Schedule):
    """Searches for the largest fed count, between 0 and `most`, within a time."""

    def __init__(
        self,
        most: int,
        threshold: float,
        clock: Clock,
        seconds: float,
        cost: Callable[[int, Sequence[Point]], float],
    ) -> None:
        """`cost` estimates the seconds of a run of a count, from the points so far."""
        while most > 1 and cost(most, ()) > seconds:
            most -= 1
        self.largest, self._threshold, self._cost = most, threshold, cost
        self._clock, self._seconds, self._begin = clock, seconds, clock.now()

    def next_count(self, points: Sequence[Point]) -> int | None:
        if not points:
            return self.largest  # it may be fed
        fed, starved = fed_between(points, self._threshold)
        count = (fed + starved) // 2
        if starved - fed <= 1 or self._cost(count, points) > self.seconds_left:
            return None
        return count

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        if not points:
            return (self.largest,)
        fed, starved = fed_between(points, self._threshold)
        return ((fed + starved) // 2,) * max(1, math.ceil(math.log2(max(2, starved - fed))))

    @property
    def seconds_left(self) -> float:
        return self._seconds - (self._clock.now() - self._begin)

    def outlook(self, points: Sequence[Point]) -> str:
        if not points:
            return "looking for the largest fed count"
        fed, starved = fed_between(points, self._threshold)
        return f"{fed} or more are fed, fewer than {starved}"
