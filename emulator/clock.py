"""Time: the one clock that the emulator reads, and how it sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on a monotonic axis. Tests pass a clock of their own."""

    def now(self) -> float: ...

    def sleep_until(self, deadline: float) -> None: ...


class MonotonicClock:
    """CLOCK_MONOTONIC: one axis for all processes of a Linux machine. Sleeps; never spins."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)
