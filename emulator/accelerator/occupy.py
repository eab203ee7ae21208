"""The emulated accelerator: occupy it for the length of a step.

The wait is an absolute deadline, not a loop of relative sleeps: each sleep oversleeps a little, and
relative sleeps add that up (500 x 5 ms drifted by 97 ms on an idle machine and by 2.1 s on a busy one).
Nothing spins.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from emulator.clock import Clock


class Accelerator:
    """Computes by waiting: `step_seconds` a step, or as `times` says, one nominal time after the other."""

    def __init__(self, step_seconds: float, clock: Clock, times: Iterator[float] | None = None) -> None:
        self._times = repeat(step_seconds) if times is None else times
        self._clock = clock

    def compute(self, begin: float) -> tuple[float, float]:
        """Return when the step that began at `begin` is computed; its nominal seconds and its end.

        Whatever the caller does between `begin` and this call is hidden behind the step, as host work is
        hidden behind a real accelerator. Where the step would be over already, it ends now.
        """
        nominal = next(self._times)
        end = max(begin + nominal, self._clock.now())
        self._clock.sleep_until(end)
        return nominal, end
