"""The emulated accelerator: occupy it for the length of a step.

The wait is an absolute deadline, not a loop of relative sleeps: each sleep oversleeps a little, and
relative sleeps add that up (500 x 5 ms drifted by 97 ms on an idle machine and by 2.1 s on a busy one).
Deadlines chain while data is ready, as a real accelerator runs on without a gap, and start anew after
a stall. Nothing spins.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from emulator.clock import Clock

JITTER_SECONDS = 0.001
"""A gap below this is the scheduler's, not a stall: the next deadline chains onto the last one."""

JITTER_SHARE = 0.02
"""The same as a share of the step, so that short steps do not hide real stalls."""


class Accelerator:
    """Computes by waiting: `step_seconds` a step, or as `times` says, one nominal time after the other."""

    def __init__(self, step_seconds: float, clock: Clock, times: Iterator[float] | None = None) -> None:
        self._step_seconds = step_seconds
        self._times = repeat(step_seconds) if times is None else times
        self._jitter = min(JITTER_SECONDS, JITTER_SHARE * step_seconds)
        self._clock = clock
        self._deadline = float("-inf")

    @property
    def step_seconds(self) -> float:
        """Nominal seconds of a step, their mean where they differ."""
        return self._step_seconds

    def compute(self, ready: float, stalled: float) -> float:
        """Return when the step that could begin at `ready` is computed; its nominal seconds.

        `stalled` is how long the accelerator had nothing to do before `ready`, in seconds: blocked on
        the loader or on other ranks. Work that the caller does between `ready` and this call is hidden
        behind the step, as host work is hidden behind a real accelerator.
        """
        chained = stalled <= self._jitter
        begin = self._deadline if chained and self._deadline > float("-inf") else ready
        nominal = next(self._times)
        self._deadline = begin + nominal
        self._clock.sleep_until(self._deadline)
        return nominal
