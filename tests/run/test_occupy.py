"""The emulated accelerator: absolute deadlines, asleep until then."""

import time
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.run.accelerator import Accelerator, MonotonicClock


class LateClock:
    """A clock whose sleeps end late by a given amount, as a busy scheduler's do."""

    def __init__(self, late: float) -> None:
        self.time = 100.0
        self.late = late

    def now(self) -> float:
        return self.time

    def sleep_until(self, deadline: float) -> None:
        if deadline > self.time:
            self.time = deadline + self.late


@given(st.floats(0.0, 0.004), st.integers(2, 300))
def test_late_wake_ups_do_not_add_up(late, steps):
    clock = LateClock(late)
    accelerator = Accelerator(repeat(0.005), clock)
    free = clock.now()
    for _ in range(steps):
        _, free = accelerator.compute(free)
    assert clock.now() - 100.0 == pytest.approx(0.005 * steps + late, abs=1e-9)


def test_a_step_that_would_be_over_ends_when_it_is_asked_for():
    clock = LateClock(0.0)
    clock.time += 0.3
    assert Accelerator(repeat(0.1), clock).compute(100.0) == (0.1, 100.3)
    assert clock.now() == 100.3


def test_work_while_computing_is_hidden_behind_the_step():
    clock = LateClock(0.0)
    clock.time += 0.04  # bookkeeping after the step has begun
    Accelerator(repeat(0.1), clock).compute(100.0)
    assert clock.now() == pytest.approx(100.1)


@pytest.mark.alone
def test_a_real_clock_sleeps_and_does_not_spin():
    clock = MonotonicClock()
    accelerator = Accelerator(repeat(0.01), clock)
    begin, cpu = clock.now(), time.process_time()
    for _ in range(50):
        accelerator.compute(clock.now())
    assert clock.now() - begin >= 0.5
    assert time.process_time() - cpu < 0.1
