"""Choose the next process count: from a list, where it narrows the knee the most, or for a fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np

from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.analysis.evidence import held
from emulator.analysis.search import (
    Belief,
    CountRun,
    KneeSearch,
    Stop,
    believe,
    next_count,
    observe,
    runs_left,
)
from emulator.errors import SpecError
from emulator.record.result import Point
from emulator.run.accelerator import Clock
from emulator.units import counted, show_seconds


class Schedule(Protocol):
    """Chooses process counts on rank 0 from the points so far."""

    @property
    def largest(self) -> int:
        """The largest count that it may choose."""
        ...

    @property
    def certain(self) -> bool:
        """True when no measurement can change how many runs remain."""
        ...

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        """Return the counts that are expected after `points`, if the storage feeds `limit` processes.

        `limit` is infinite when it is not known.
        """
        ...

    @property
    def seconds_left(self) -> float:
        """The time after which no further run begins; infinite without a budget."""
        ...

    def next_count(self, points: Sequence[Point]) -> int | None:
        """Return the process count of the next point; None when no more are needed."""
        ...

    def outlook(self, points: Sequence[Point]) -> str:
        """Return the present estimate and what is left, in a few words."""
        ...

    def verdict(self, points: Sequence[Point]) -> str:
        """Return why the sweep ended, for people; may be empty."""
        ...

    @property
    def assumption(self) -> str:
        """The assumption that `expected` rests on; empty when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCounts:
    """A list of process counts, one point each, in the order given."""

    counts: tuple[int, ...]
    certain = True
    assumption = ""
    seconds_left = math.inf

    @property
    def largest(self) -> int:
        return max(self.counts)

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        return self.counts[len(points) :]

    def next_count(self, points: Sequence[Point]) -> int | None:
        return self.counts[len(points)] if len(points) < len(self.counts) else None

    def outlook(self, points: Sequence[Point]) -> str:
        return f"point {min(len(points) + 1, len(self.counts))} of {len(self.counts)}"

    def verdict(self, points: Sequence[Point]) -> str:
        return ""


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
    """Raise SpecError when a count needs more ranks than were started."""
    if max(counts) > world:
        raise SpecError(
            f"--counts asks for {max(counts)} processes, but only {world} ranks were started",
            f"start {max(counts)} with mpirun -n {max(counts)}, or leave that count out",
        )


TYPICAL_VARIATION = 0.02
"""Relative standard deviation of a run that is assumed before the first one, for the number of runs.

Without any, a played search ends after 6 runs, its least number; real ones take 9 more often than not.
"""
TYPICAL_SEED = 2
"""Gives a play of typical length: 8 to 12 runs to a knee, where seeds 0 to 6 give 6 to 14."""
CLOSE = 0.1
"""Gap between a fed and a starved count, as a share, that is halved no further if the client is the limit."""


class Adaptive:
    """Chooses the count that should narrow the interval of the knee the most (analysis.search)."""

    certain = False
    assumption = ""

    def __init__(self, search: KneeSearch, clock: Clock, *, repeats: int, budget: float | None) -> None:
        """Run each count `repeats` times, for at most `budget` seconds in all; None sets no limit."""
        self.largest = search.maximum
        self._search = search
        self._clock = clock
        self._repeats = repeats
        self._budget = budget
        self._begin = clock.now()
        self._started: int | None = None

    def next_count(self, points: Sequence[Point]) -> int | None:
        """Return the next count; None when the knee is precise enough or a limit is reached."""
        if self._started is None:
            self._started = len(points)  # points of a resumed sweep do not count against this budget
        if self._unfinished(points):
            return points[-1].ranks
        choice = self._choice(points)
        return None if isinstance(choice, Stop) else choice

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        """Play the search, with a limit at half of the largest count when it is not known.

        Once there are points, the counts are those around the knee, as many as `runs_left` tells.
        """
        if points:
            now = believe(self._history(points), self._search)
            near = min(self._search.maximum, max(1, round(now.n_au[1])))
            return (near,) * self._left(points, now)
        known = math.isfinite(limit)
        knee = limit if known else self._search.maximum / 2
        self.assumption = f"here with a limit at {knee:.3g} processes" + (
            "" if known else ", which is a guess"
        )
        varied = np.random.default_rng(TYPICAL_SEED).normal(0, TYPICAL_VARIATION, self._search.max_runs)
        history: list[CountRun] = []
        while not isinstance(count := next_count(history, self._search), Stop):
            efficiency = min(1.0, knee / count * math.exp(varied[len(history) // self._repeats]))
            history += [CountRun(ranks=count, efficiency=efficiency)] * self._repeats
        return [run.ranks for run in history]

    @property
    def seconds_left(self) -> float:
        return math.inf if self._budget is None else self._budget - (self._clock.now() - self._begin)

    def _left(self, points: Sequence[Point], now: Belief) -> int:
        """Assume that every run will narrow the interval as much as the next one is expected to."""
        runs = runs_left(self._history(points), self._search, now)
        if max(now.beyond, now.below) > 0.5:  # a run of the largest or smallest count, most likely, tells
            runs = min(runs, 2)
        return max(1, min(runs * self._repeats, self._search.max_runs - len(points)))

    def verdict(self, points: Sequence[Point]) -> str:
        """Return why the sweep stops; empty while it goes on."""
        choice = None if self._unfinished(points) else self._choice(points)
        return choice.reason if isinstance(choice, Stop) else ""

    def outlook(self, points: Sequence[Point]) -> str:
        """Return the knee believed so far, and about how long the rest will take."""
        if not points:
            return "looking for the knee"
        now = believe(self._history(points), self._search)
        left = self._left(points, now)
        low, _, high = now.n_au
        where = f"knee between {low:.3g} and {high:.3g} (95 %)"
        if now.beyond > 0.5:
            where = f"no knee below {self._search.maximum} so far"
        return f"{where}, about {counted(left, 'run')} left"

    def _choice(self, points: Sequence[Point]) -> int | Stop:
        again = points[-1].ranks if _disturbed(points) and len(points) < self._search.max_runs else None
        history = self._history(points)
        choice = again or _below_client(points, self._search) or next_count(history, self._search)
        if len(points) >= self._search.max_runs and not isinstance(choice, Stop):
            reason = f"{len(points)} runs, {len(points) - len(history)} of them disturbed by the client"
            return Stop(reason=reason, precise=False)
        tight = points and self._per_run(points) > self.seconds_left
        if tight and self._budget is not None and not isinstance(choice, Stop):
            reason = f"the budget of {show_seconds(self._budget)} is used up"
            return Stop(reason=reason, precise=False)
        return choice

    @staticmethod
    def _history(points: Sequence[Point]) -> list[CountRun]:
        """Return the runs that counts are chosen by: without those that the client limited, if others exist.

        When the client limits every run of a count, they are kept: the client's own knee is then a lower
        bound of the storage's.
        """
        clean = {point.ranks for point in points if not held(point)}
        kept = [point for point in points if point.ranks not in clean or not held(point)]
        return [observe(point) for point in kept]

    def _unfinished(self, points: Sequence[Point]) -> bool:
        """True while the last count has been run fewer times than asked."""
        same = takewhile(lambda point: point.ranks == points[-1].ranks, reversed(points))
        return len(list(same)) % self._repeats != 0

    def _per_run(self, points: Sequence[Point]) -> float:
        """Return the mean seconds of a run, with the start of its loaders."""
        here = len(points) - (self._started or 0)
        return (self._clock.now() - self._begin) / here if here else points[-1].seconds


def _below_client(points: Sequence[Point], search: KneeSearch) -> int | Stop | None:
    """Halve towards the largest fed count where only the client was the limit, and stop there.

    No run can tell where the storage's knee is, only that it is above. None: other rules choose.
    """
    fed = max((point.ranks for point in points if point.x_ideal >= search.threshold), default=0)
    starved = [point for point in points if point.ranks > fed]
    if not starved or not all(map(held, starved)):
        return None
    least = min(point.ranks for point in starved)
    if least - fed > max(1, CLOSE * fed):
        return (fed + least) // 2
    bound = next(point.bound for point in reversed(starved) if point.ranks == least)
    assert bound is not None
    reason = f"from {least} processes on the limit is {LIMIT_NAMES[bound.kind]}, not the storage"
    return Stop(reason=f"{reason}: {bound.help or HELPS[bound.kind]}", precise=False)


def _disturbed(points: Sequence[Point]) -> bool:
    """True when the client limited the last run, and no count twice yet: the cause may have passed."""
    if not points or not held(points[-1]):
        return False
    again = Counter(point.ranks for point in points if held(point))
    runs = [point for point in points if point.ranks == points[-1].ranks]
    return len(runs) == 1 and max(again.values()) == 1


class ForFit:
    """Chooses three or four runs for `feedrate fit`: the largest count, one below the limit that it shows,
    one above, and with several hosts one on half of them.

    The count below shows what a rank loses by itself. The two above separate the limit from run-to-run
    variation. Half of the hosts separate a limit of the storage from one of the hosts.
    """

    certain = True
    assumption = ""
    seconds_left = math.inf
    BELOW, ABOVE = 0.6, 1.3
    """The two counts as shares of the count whose demand equals the limit."""

    def __init__(self, maximum: int) -> None:
        self.largest = maximum
        self.hosts = 1
        """Hosts of the world; the leader sets it before the first count."""

    def next_count(self, points: Sequence[Point]) -> int | None:
        counts = self._counts(points)
        return counts[len(points)] if len(points) < len(counts) else None

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        if points:
            return self._counts(points)[len(points) :]
        full = min(limit, self.largest)
        self.assumption = f"here with a limit at {full:.3g} processes or above"
        return self._around(full)

    def on_half(self, points: Sequence[Point]) -> bool:
        """True when the run after `points` is the one on half of the hosts."""
        return self.hosts > 1 and bool(points) and len(points) == len(self._counts(points)) - 1

    def outlook(self, points: Sequence[Point]) -> str:
        half = " on half of the hosts" if self.on_half(points) else ""
        return f"run {len(points) + 1} for a fit{half}"

    def verdict(self, points: Sequence[Point]) -> str:
        if self.next_count(points) is not None:
            return ""
        if self._full(points) >= self.largest:
            return f"no limit up to {self.largest} processes: a fit gives only a lower bound of bandwidth"
        return "feedrate fit has what it needs"

    def _full(self, points: Sequence[Point]) -> float:
        """Return the number of processes whose demand equals what the largest count got."""
        return observe(points[0]).efficiency * points[0].ranks

    def _counts(self, points: Sequence[Point]) -> tuple[int, ...]:
        if not points:
            return (self.largest,)
        return self._around(self._full(points))

    def _around(self, full: float) -> tuple[int, ...]:
        """Return the counts to run when `full` processes use all of the bandwidth."""
        most = self.largest
        below, above = (min(most, max(1, round(share * full))) for share in (self.BELOW, self.ABOVE))
        return (most, below, above, *((max(1, min(above, most // 2)),) if self.hosts > 1 else ()))
