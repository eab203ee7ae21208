"""A schedule that chooses the counts that narrow the knee's interval most, and when to stop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.analysis.evidence import limited_by_client
from emulator.analysis.search import Belief, CountRun, KneeSearch, believe, next_count, observe, runs_left
from emulator.record.result import Point
from emulator.run.accelerator import Clock
from emulator.sweep.schedule import Schedule, fed_between
from emulator.units import counted, show_seconds


class Adaptive(Schedule):
    """Chooses counts with `analysis.search`, without the runs that the client limited."""

    def __init__(self, search: KneeSearch, clock: Clock, seconds: float = math.inf) -> None:
        super().__init__(clock, seconds)
        self.largest = search.maximum
        self._search = search

    def next_count(self, points: Sequence[Point]) -> int | None:
        """Return the next count; None when the knee is precise enough or a limit is reached."""
        choice = self._choice(points)
        return choice if isinstance(choice, int) else None

    def expected(self, points: Sequence[Point], limit: float) -> Sequence[int]:
        """Assume a search of typical length at `limit`, or at half of the largest count if it is unknown.

        Once there are points, the counts are at the knee, as many as `runs_left` estimates.
        """
        if points:
            belief = believe(self._history(points), self._search)
            near = min(self._search.maximum, max(1, round(belief.n_au[1])))
            return (near,) * self._left(points, belief)
        knee = limit if math.isfinite(limit) else self._search.maximum / 2
        guessed = "" if math.isfinite(limit) else ", which is a guess"
        self.assumption = f"here with a limit at {knee:.3g} processes{guessed}"
        # Beyond the counts that can be run, the first and the last of them decide.
        inside = 1 <= knee <= self._search.maximum
        # Where runs hardly vary, a search ends after 6 to 9.
        runs = min(12 if inside else 3, self._search.max_runs)
        first = next_count((), self._search)
        assert isinstance(first, int)
        return (first, *[min(self._search.maximum, max(1, round(knee)))] * (runs - 1))

    def _left(self, points: Sequence[Point], belief: Belief) -> int:
        """Return the runs left if each narrows the interval as much as the next one is expected to."""
        runs = runs_left(self._history(points), self._search, belief)
        if max(belief.beyond, belief.below) > 0.5:  # the largest or smallest count will probably decide
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
        belief = believe(self._history(points), self._search)
        left = self._left(points, belief)
        low, _, high = belief.n_au
        where = f"knee between {low:.3g} and {high:.3g} (95 %)"
        if belief.beyond > 0.5:
            where = f"no knee below {self._search.maximum} so far"
        return f"{where}, about {counted(left, 'run')} left"

    def _choice(self, points: Sequence[Point]) -> int | str:
        """Return the next count, or why the sweep stops."""
        history, runs = self._history(points), len(points)
        if runs < self._search.max_runs and _disturbed(points):
            best: int | str = points[-1].ranks
        else:
            best = _below_client(points, self._search) or next_count(history, self._search)
        if isinstance(best, str):
            return best
        if runs >= self._search.max_runs:
            return f"{runs} runs, {runs - len(history)} of them disturbed by the client"
        return self._in_time(best, points) or f"the budget of {show_seconds(self.seconds)} is used up"

    def _in_time(self, best: int, points: Sequence[Point]) -> int | None:
        """Return the count nearest below `best` whose run would end in time; None if none is worth it."""
        count = self.fitting(best, points)
        if not points:
            return count or 1
        # A smaller count than the best one tells less each time.
        repeated = sum(point.ranks == count for point in points) > 1
        return None if count is not None and count < best and repeated else count

    @staticmethod
    def _history(points: Sequence[Point]) -> list[CountRun]:
        """Return the runs for the choice of counts: without those that the client limited, if others exist.

        If the client limits every run of a count, they stay: the client's own knee is then a lower bound of
        the storage's.
        """
        clean = {point.ranks for point in points if not limited_by_client(point)}
        return [
            observe(point) for point in points if point.ranks not in clean or not limited_by_client(point)
        ]


def _below_client(points: Sequence[Point], search: KneeSearch) -> int | str | None:
    """Halve towards the largest fed count if only the client limits counts above it, and stop there.

    No run can then find the storage's knee, only that it is above. None: other rules choose.
    """
    fed, starved = fed_between(points, search.threshold)
    above = [point for point in points if point.ranks > fed]
    if not above or not all(map(limited_by_client, above)):
        return None
    if starved - fed > max(1, 0.1 * fed):
        return (fed + starved) // 2
    bound = next(point.bound for point in reversed(above) if point.ranks == starved)
    assert bound is not None  # the client limited all of them
    reason = f"from {starved} processes on the limit is {LIMIT_NAMES[bound.kind]}, not the storage"
    return f"{reason}: {bound.help or HELPS[bound.kind]}"


def _disturbed(points: Sequence[Point]) -> bool:
    """Return True if the client limited the last run, and no count twice yet: the cause may have passed."""
    if not points or not limited_by_client(points[-1]):
        return False
    runs = Counter(point.ranks for point in points)
    limited_runs = Counter(point.ranks for point in points if limited_by_client(point))
    return runs[points[-1].ranks] == 1 and max(limited_runs.values()) == 1
