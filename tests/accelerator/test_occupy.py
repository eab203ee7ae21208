"""The emulated accelerator: absolute deadlines, chained while data is ready, new after a stall."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.accelerator.occupy import Accelerator
from emulator.clock import MonotonicClock


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
    accelerator = Accelerator(0.005, clock)
    for _ in range(steps):
        accelerator.compute(clock.now(), stalled=0.0)
    assert clock.now() - 100.0 == pytest.approx(0.005 * steps + late, abs=1e-9)


@given(st.lists(st.floats(0.002, 0.5), min_size=1, max_size=30))
def test_a_stall_is_never_made_up_for(stalls):
    clock = LateClock(0.0)
    accelerator = Accelerator(0.05, clock)
    for stall in stalls:
        clock.time += stall
        accelerator.compute(clock.now(), stalled=stall)
    assert clock.now() - 100.0 == pytest.approx(sum(stalls) + 0.05 * len(stalls))


def test_work_while_computing_is_hidden_behind_the_step():
    clock = LateClock(0.0)
    accelerator = Accelerator(0.1, clock)
    ready = clock.now()
    clock.time += 0.04  # bookkeeping after the batch was ready
    accelerator.compute(ready, stalled=1.0)
    assert clock.now() == pytest.approx(100.1)


def test_without_compute_nothing_is_waited_for():
    clock = LateClock(0.0)
    Accelerator(0.0, clock).compute(clock.now(), stalled=0.0)
    assert clock.now() == 100.0


def test_a_real_clock_sleeps_and_does_not_spin():
    clock = MonotonicClock()
    accelerator = Accelerator(0.01, clock)
    begin, cpu = clock.now(), time.process_time()
    for _ in range(50):
        accelerator.compute(clock.now(), stalled=0.0)
    assert clock.now() - begin >= 0.5
    assert time.process_time() - cpu < 0.1
