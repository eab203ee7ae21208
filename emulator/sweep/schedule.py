"""Schedules: the process counts of a sweep, from a list or by halving; and which ranks run a count."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

from emulator.config.workload import Placement
from emulator.errors import SpecError
from emulator.record.result import Point
from emulator.run.accelerator import Clock

Cost = Callable[[int, Sequence[Point]], float]
"""Estimates the seconds of a run of a count, from the points so far."""


class Schedule(ABC):
    """Chooses process counts on rank 0 from the points so far."""

    largest: int
    """Largest count that it may choose."""
    certain: bool = False
    """True if no measurement can change the number of runs."""
    assumption: str = ""
    """The assumption behind `expected`; empty if there is none."""

    def __init__(self, clock: Clock | None = None, seconds: float = math.inf) -> None:
        """Begin only runs that would end within `seconds` from now, as `cost` estimates them."""
        self.seconds = seconds
        self.cost: Cost = lambda ranks, points: 0.0  # the leader sets a real one
        self._now = clock.now if clock else lambda: 0.0
        self._begin = self._now()

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
        """Seconds within which runs have to end; infinite without a limit."""
        return self.seconds - (self._now() - self._begin)

    def fitting(self, count: int, points: Sequence[Point], least: int = 1) -> int | None:
        """The largest count from `least` to `count` whose run would end in time; None if there is none."""
        # The first run may take half of the time, since one count alone tells little.
        left = self.seconds_left if points else self.seconds_left / 2
        fits = (ranks for ranks in range(count, least - 1, -1) if self.cost(ranks, points) <= left)
        return next(fits, None)


class FixedCounts(Schedule):
    """Runs one point for each of a list of process counts, in its order."""

    certain = True

    def __init__(self, counts: tuple[int, ...]) -> None:
        super().__init__()
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


def fed_between(points: Sequence[Point], threshold: float, beyond: int = 0) -> tuple[int, int]:
    """Return the largest count that was fed, 0 for none, and the smallest above it that was not.

    The second is `beyond`, or else the first + 1, if no count above it was run.
    """
    fed = max((point.ranks for point in points if point.x_ideal >= threshold), default=0)
    starved = [point.ranks for point in points if point.x_ideal < threshold and point.ranks > fed]
    return fed, min(starved, default=beyond or fed + 1)


class Halving(Schedule):
    """Searches for the largest fed count: twice as many while all are fed, then by halves."""

    def __init__(self, largest: int, threshold: float, clock: Clock, seconds: float) -> None:
        super().__init__(clock, seconds)
        self.largest, self._threshold = largest, threshold

    def next_count(self, points: Sequence[Point]) -> int | None:
        if not points:
            return self.fitting(1, points)  # it shows what a rank costs the client
        fed, starved = fed_between(points, self._threshold, self.largest + 1)
        # Not `largest` at once: two cores that feed 4 trainings took 25 s for a run of 16.
        count = min(self.largest, 2 * fed) if starved > self.largest else (fed + starved) // 2
        return self.fitting(count, points, fed + 1) if starved - fed > 1 else None

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        fed, starved = fed_between(points, self._threshold, self.largest + 1)
        return ((fed + starved) // 2,) * max(1, math.ceil(math.log2(max(2, starved - fed))))

    def outlook(self, points: Sequence[Point]) -> str:
        if not points:
            return "looking for the largest fed count"
        fed, starved = fed_between(points, self._threshold, self.largest + 1)
        fewer = f", fewer than {starved}" if starved <= self.largest else ""
        return f"{fed} or more are fed{fewer}"


def activation_order(hosts: Sequence[str], placement: Placement = "spread") -> list[int]:
    """Return the world ranks in the order in which they become active. `hosts` has the host of each rank.

    spread: the first rank of every host, then the second of every host, and so on, so that active ranks are
    spread as evenly as the hosts' slots allow. pack: all ranks of the first host, then all of the second.
    World rank 0 is always first.
    """
    names = list(dict.fromkeys(hosts))
    if placement == "pack":
        return sorted(range(len(hosts)), key=lambda rank: names.index(hosts[rank]))
    ranks_before: Counter[str] = Counter()
    turns = []
    for rank, host in enumerate(hosts):
        turns.append((ranks_before[host], rank))
        ranks_before[host] += 1
    return [rank for _, rank in sorted(turns)]
