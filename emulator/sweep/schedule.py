"""Which process count to run next: from a list, or wherever the next run tells the most about the knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from emulator.analysis.search import Search, Stop, believe, next_count, observe, runs_left
from emulator.errors import SpecError
from emulator.record.result import Point
from emulator.run.accelerator import Clock
from emulator.units import show_seconds


class Schedule(Protocol):
    """Decides on rank 0, from what was measured so far."""

    def next_count(self, points: Sequence[Point]) -> int | None:
        """Process count of the next point; None: enough."""
        ...

    def outlook(self, points: Sequence[Point]) -> str:
        """What is believed and what is left, in a few words."""
        ...

    def verdict(self, points: Sequence[Point]) -> str:
        """Why it ended, for people; empty when there is nothing to say."""
        ...

    def planned(self) -> Sequence[int]:
        """The counts that are sure to be run, for a dry run."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCounts:
    """A list of process counts, one point each, in the order given."""

    counts: tuple[int, ...]

    def next_count(self, points: Sequence[Point]) -> int | None:
        return self.counts[len(points)] if len(points) < len(self.counts) else None

    def outlook(self, points: Sequence[Point]) -> str:
        return f"point {min(len(points) + 1, len(self.counts))} of {len(self.counts)}"

    def verdict(self, points: Sequence[Point]) -> str:
        return ""

    def planned(self) -> Sequence[int]:
        return self.counts


def parse_counts(text: str) -> tuple[int, ...]:
    """Process counts from `1,2,4,8` or `1-4,8`. Raises SpecError."""
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
    """Raises SpecError when a count asks for more ranks than were started."""
    if max(counts) > world:
        raise SpecError(
            f"--counts asks for {max(counts)} processes, but only {world} ranks were started",
            f"start {max(counts)} with mpirun -n {max(counts)}, or leave that count out",
        )


class Adaptive:
    """Chooses the count that narrows the interval of the knee the most (analysis.search)."""

    def __init__(self, search: Search, clock: Clock, *, repeats: int, budget: float | None) -> None:
        """`repeats` runs of each count that is chosen; `budget` seconds for all of them, None: no limit."""
        self._search = search
        self._clock = clock
        self._repeats = repeats
        self._budget = budget
        self._begin = clock.now()
        self._started: int | None = None

    def next_count(self, points: Sequence[Point]) -> int | None:
        """The next count; None when sure enough, or when a limit is reached."""
        if self._started is None:
            self._started = len(points)  # a resumed sweep has points that took no time of this budget
        if self._unfinished(points):
            return points[-1].ranks
        choice = self._choice(points)
        return None if isinstance(choice, Stop) else choice

    def verdict(self, points: Sequence[Point]) -> str:
        """Why no further run is worth it; empty while one is."""
        choice = None if self._unfinished(points) else self._choice(points)
        return choice.reason if isinstance(choice, Stop) else ""

    def outlook(self, points: Sequence[Point]) -> str:
        """What is believed so far, and about how long it will take."""
        if not points:
            return "looking for the knee"
        history = [observe(point) for point in points]
        now = believe(history, self._search)
        left = runs_left(history, self._search, now) * self._repeats
        low, _, high = now.n_au
        where = f"knee between {low:.3g} and {high:.3g} (95 %)"
        if now.beyond > 0.5:
            where = f"no knee below {self._search.maximum} so far"
        return f"{where}, about {left} runs and {show_seconds(left * self._per_run(points))} left"

    def planned(self) -> Sequence[int]:
        """The first count; the others depend on what is measured."""
        first = self._choice(())
        return () if isinstance(first, Stop) else (first,)

    def _choice(self, points: Sequence[Point]) -> int | Stop:
        choice = next_count([observe(point) for point in points], self._search)
        if points and self._budget is not None and not isinstance(choice, Stop):
            spent = self._clock.now() - self._begin
            if spent + self._per_run(points) > self._budget:
                reason = f"the budget of {show_seconds(self._budget)} is used up"
                return Stop(reason=reason, precise=False)
        return choice

    def _unfinished(self, points: Sequence[Point]) -> bool:
        """True while the last count has not been run as often as asked for."""
        same = takewhile(lambda point: point.ranks == points[-1].ranks, reversed(points))
        return len(list(same)) % self._repeats != 0

    def _per_run(self, points: Sequence[Point]) -> float:
        """Seconds that a run takes, start-up of its loaders included."""
        here = len(points) - (self._started or 0)
        return (self._clock.now() - self._begin) / here if here else points[-1].seconds


class ForFit:
    """The few runs from which `feedrate fit` knows a system: the largest count, one below the limit that it
    shows, another above, and, where there are more hosts than one, one on half of them.

    A count below tells what a rank loses by itself, two above tell the limit from its noise, and half of the
    hosts tell a limit of the storage from one of the hosts.
    """

    BELOW, ABOVE = 0.6, 1.3
    """Counts as shares of the one whose demand is the limit."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.hosts = 1
        """Hosts of the world; whoever knows them says so before the first count."""

    def next_count(self, points: Sequence[Point]) -> int | None:
        counts = self._counts(points)
        return counts[len(points)] if len(points) < len(counts) else None

    def on_half(self, points: Sequence[Point]) -> bool:
        """Whether the run after `points` is the one on half of the hosts."""
        return self.hosts > 1 and bool(points) and len(points) == len(self._counts(points)) - 1

    def outlook(self, points: Sequence[Point]) -> str:
        half = " on half of the hosts" if self.on_half(points) else ""
        return f"run {len(points) + 1} for a fit{half}"

    def verdict(self, points: Sequence[Point]) -> str:
        if self.next_count(points) is not None:
            return ""
        if self._full(points) >= self._maximum:
            return f"no limit up to {self._maximum} processes: a fit will know only a least bandwidth"
        return "feedrate fit has what it needs"

    def planned(self) -> Sequence[int]:
        return (self._maximum,)

    def _full(self, points: Sequence[Point]) -> float:
        """Processes whose demand is what the largest count got."""
        return observe(points[0]).efficiency * points[0].ranks

    def _counts(self, points: Sequence[Point]) -> tuple[int, ...]:
        if not points:
            return (self._maximum,)
        full, most = self._full(points), self._maximum
        below, above = (min(most, max(1, round(share * full))) for share in (self.BELOW, self.ABOVE))
        return (most, below, above, *((max(1, min(above, most // 2)),) if self.hosts > 1 else ()))
