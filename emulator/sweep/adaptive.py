"""A schedule that chooses the counts that narrow the knee's interval most, and when to stop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.analysis.evidence import held
from emulator.analysis.search import Belief, CountRun, KneeSearch, believe, next_count, observe, runs_left
from emulator.record.result import Point
from emulator.run.accelerator import Clock
from emulator.sweep.schedule import Schedule
from emulator.units import counted, show_seconds

TYPICAL_VARIATION = 0.02
"""Relative standard deviation of a run, assumed before the first one to estimate the number of runs.

Without variation, a simulated search ends after 6 to 9 runs; real ones take more.
"""
TYPICAL_SEED = 2
"""Seed of a simulated search of typical length: 12 to 19 runs to a knee, where seeds 0 to 6 give 8 to 20."""
CLOSE = 0.1
"""Relative gap between a fed and a starved count at which halving stops if the client is the limit."""


Cost = Callable[[int, Sequence[Point]], float]
"""Estimates the seconds of a run of a count, from the points so far."""


class Adaptive(Schedule):
    """Chooses counts with `analysis.search`, without the runs that the client limited."""

    def __init__(
        self, search: KneeSearch, clock: Clock, budget: float | None, cost: Cost | None = None
    ) -> None:
        """Run for at most `budget` seconds in total; None sets no limit.

        `cost` estimates the seconds of a run, so that none begins that does not fit; None: as the mean run.
        """
        self._cost = cost
        self.largest = search.maximum
        self._search = search
        self._clock = clock
        self._budget = budget
        self._begin = clock.now()
        self._started: int | None = None

    def next_count(self, points: Sequence[Point]) -> int | None:
        """Return the next count; None when the knee is precise enough or a limit is reached."""
        if self._started is None:
            self._started = len(points)  # points of a resumed sweep do not count against this budget
        choice = self._choice(points)
        return None if isinstance(choice, str) else choice

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        """Simulate the search, with a limit at half of the largest count if it is unknown.

        Once there are points, the counts are at the knee, as many as `runs_left` estimates.
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
        while not isinstance(count := next_count(history, self._search), str):
            efficiency = min(1.0, knee / count * math.exp(varied[len(history)]))
            history.append(CountRun(ranks=count, efficiency=efficiency))
        return [run.ranks for run in history]

    @property
    def seconds_left(self) -> float:
        return math.inf if self._budget is None else self._budget - (self._clock.now() - self._begin)

    def _left(self, points: Sequence[Point], now: Belief) -> int:
        """Return the runs left if each narrows the interval as much as the next one is expected to."""
        runs = runs_left(self._history(points), self._search, now)
        if max(now.beyond, now.below) > 0.5:  # one run of the largest or smallest count will probably decide
            runs = min(runs, 2)
        return max(1, min(runs, self._search.max_runs - len(points)))

    def verdict(self, points: Sequence[Point]) -> str:
        """Return why the sweep stops; empty while it continues."""
        choice = self._choice(points)
        return choice if isinstance(choice, str) else ""

    def outlook(self, points: Sequence[Point]) -> str:
        """Return the present estimate of the knee, and the approximate number of runs left."""
        if not points:
            return "looking for the knee"
        now = believe(self._history(points), self._search)
        left = self._left(points, now)
        low, _, high = now.n_au
        where = f"knee between {low:.3g} and {high:.3g} (95 %)"
        if now.beyond > 0.5:
            where = f"no knee below {self._search.maximum} so far"
        return f"{where}, about {counted(left, 'run')} left"

    def _choice(self, points: Sequence[Point]) -> int | str:
        """Return the next count, or why the sweep stops."""
        again = points[-1].ranks if _disturbed(points) and len(points) < self._search.max_runs else None
        history = self._history(points)
        choice = again or _below_client(points, self._search) or next_count(history, self._search)
        if len(points) >= self._search.max_runs and not isinstance(choice, str):
            return f"{len(points)} runs, {len(points) - len(history)} of them disturbed by the client"
        if isinstance(choice, str) or self._budget is None:
            return choice
        fits = self._fitting(choice, points)
        return fits or f"the budget of {show_seconds(self._budget)} is used up"

    def _fitting(self, choice: int, points: Sequence[Point]) -> int | None:
        """Return the count, or the largest below it of which a run still fits; None if there is none."""
        if self._cost is None:
            return None if points and self._per_run(points) > self.seconds_left else choice
        count = choice
        while count >= 1 and self._cost(count, points) > self.seconds_left:
            count -= 1
        runs = sum(point.ranks == count for point in points)
        return count if count >= 1 and (count == choice or runs < 2) else None

    @staticmethod
    def _history(points: Sequence[Point]) -> list[CountRun]:
        """Return the runs for the choice of counts: without those that the client limited, if others exist.

        If the client limits every run of a count, they stay: the client's own knee is then a lower bound of
        the storage's.
        """
        clean = {point.ranks for point in points if not held(point)}
        kept = [point for point in points if point.ranks not in clean or not held(point)]
        return [observe(point) for point in kept]

    def _per_run(self, points: Sequence[Point]) -> float:
        """Return the mean seconds of a run, including the start of its loaders."""
        here = len(points) - (self._started or 0)
        return (self._clock.now() - self._begin) / here if here else points[-1].seconds


def _below_client(points: Sequence[Point], search: KneeSearch) -> int | str | None:
    """Halve towards the largest fed count if only the client limits counts above it, and stop there.

    No run can then find the storage's knee, only that it is above. None: other rules choose.
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
    return f"{reason}: {bound.help or HELPS[bound.kind]}"


def _disturbed(points: Sequence[Point]) -> bool:
    """Return True if the client limited the last run, and no count twice yet: the cause may have passed."""
    if not points or not held(points[-1]):
        return False
    again = Counter(point.ranks for point in points if held(point))
    runs = [point for point in points if point.ranks == points[-1].ranks]
    return len(runs) == 1 and max(again.values()) == 1
