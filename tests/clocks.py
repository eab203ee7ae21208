"""Clocks for tests."""

import time


class LateClock:
    """A clock whose sleeps end late by a given amount, as a busy scheduler's do."""

    def __init__(self, late: float) -> None:
        self.time = time.monotonic() + 1  # all batches have arrived by then
        self.late = late

    def now(self) -> float:
        return self.time

    def sleep_until(self, deadline: float) -> None:
        self.time = max(self.time, deadline) + self.late
