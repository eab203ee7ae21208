"""The loop of one rank: every second of it is accounted for, in the right column."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
import pytest
from clocks import LateClock
from hypothesis import given
from hypothesis import strategies as st

from emulator.analysis.throughput import durations
from emulator.config.workload import AcceleratorSpec
from emulator.loader.base import Batch
from emulator.order import EpochPlan, RankPlan
from emulator.record.steps import StepLog
from emulator.run.accelerator import Accelerator, MonotonicClock
from emulator.run.train import train


class MemoryLoader:
    """Batches of 100-byte samples, each after `delay` seconds; remembers what was asked for."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.seen: list[tuple[int, ...]] = []

    def read(self, portions):
        for portion in portions:
            self.seen.append(tuple(read.file for read in portion.reads))
            if self.delay:
                time.sleep(self.delay)
            yield Batch(portion.samples, 100 * portion.samples, time.monotonic())

    def helper_cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


class BusyBarrier:
    """A barrier that takes time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.barriers = 0

    def __call__(self, end: float) -> float:
        self.barriers += 1
        time.sleep(self.seconds)
        return time.monotonic()


class Listener:
    """A clock, and the last moment that it has told."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.sleep_until = clock.sleep_until
        self.told = 0.0

    def now(self) -> float:
        self.told = self.clock.now()
        return self.told


def rows_of(
    loader, *, step=0.005, samples=40, epochs=2, steps=None, sync="none", barrier=None, clock=None, **how
):
    log = StepLog(point=3, rank=0)
    clock = Listener(clock or MonotonicClock())
    plan = RankPlan(
        plan=EpochPlan(samples=samples, ranks=1, batch_size=4), epochs=epochs, steps=steps, seed=7
    )
    begun = []

    def noted(end):
        begun.append((barrier or (lambda end: end))(end))
        return begun[-1]

    compute = Accelerator(repeat(step), clock).compute
    seconds = train(plan, loader, compute, log, clock, sync=sync, barrier=noted, **how)
    return log.rows(), seconds, clock.told - begun[0]


@pytest.mark.parametrize("sync", ["none", "step", "epoch"])
@pytest.mark.parametrize("delay", [0.0, 0.004])
@pytest.mark.parametrize("as_training", [True, False])
def test_the_columns_sum_to_the_loop_time(sync, delay, as_training):
    barrier = BusyBarrier(0.0002)
    rows, seconds, measured = rows_of(
        MemoryLoader(delay), sync=sync, barrier=barrier, as_training=as_training
    )
    assert durations(rows).sum() == pytest.approx(seconds, rel=1e-9)
    assert durations(rows).sum() + rows["late"][-1] == pytest.approx(measured, rel=1e-6)
    assert np.allclose(rows["begin"][1:], (rows["begin"] + durations(rows))[:-1], atol=1e-9)


@pytest.mark.parametrize(
    ("sync", "steps"), [("none", [20, 20, 1]), ("step", [1, 1, 1]), ("epoch", [9, 9, 9])]
)
def test_ranks_stop_at_the_same_barrier_when_the_time_of_one_is_up(sync, steps):
    """Each has its first step; an epoch has ten. Without barriers, each rank stops for itself."""
    all_here, ends = threading.Barrier(3), [0.0] * 3

    def train_rank(rank):
        def barrier(end):
            ends[rank] = end
            all_here.wait(10)
            last = max(ends)
            all_here.wait(10)
            return last

        until = 0.0 if rank == 2 else math.inf
        return len(rows_of(MemoryLoader(), sync=sync, barrier=barrier, until=until)[0])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(train_rank, range(3))) == steps


@pytest.mark.parametrize("sync", ["none", "step"])
def test_a_process_that_is_late_by_less_than_a_step_holds_no_accelerator_up(sync):
    rows, seconds, _ = rows_of(MemoryLoader(), sync=sync, clock=LateClock(0.004))
    assert seconds == pytest.approx(20 * 0.005)
    assert rows["late"] == pytest.approx(0.004)
    assert rows["overshoot"] == pytest.approx(0.0, abs=1e-9)


def test_a_process_that_is_late_by_more_than_a_step_holds_its_accelerator_up():
    rows, seconds, _ = rows_of(MemoryLoader(), clock=LateClock(0.008))
    assert rows["overshoot"][1:] == pytest.approx(0.003)
    assert seconds == pytest.approx(20 * 0.005 + 19 * 0.003)


def test_at_a_barrier_others_wait_for_a_late_process():
    """They are woken when it has come: without its overshoot all of them would be late by themselves."""
    came = []
    rows, _, _ = rows_of(
        MemoryLoader(), sync="step", clock=LateClock(0.008), barrier=lambda end: came.append(end) or end
    )
    assert rows["overshoot"] == pytest.approx(0.003) and rows["late"] == pytest.approx(0.005)
    assert np.diff(came) == pytest.approx(0.008)


def test_a_batch_counts_from_its_arrival_not_from_when_somebody_looks():
    clock = LateClock(0.004)
    loader = MemoryLoader()
    arrivals = [clock.time - 1, clock.time + 0.5, clock.time + 0.501]
    loader.read = lambda portions: (Batch(4, 400, ready) for ready in arrivals)
    rows, _, _ = rows_of(loader, clock=clock, epochs=1)
    assert rows["wait"] == pytest.approx([0.0, 0.495, 0.0])
    assert rows["late"] == pytest.approx(0.004)


COSTS = st.lists(st.tuples(*[st.floats(0.0, 0.05)] * 2), min_size=1, max_size=30)


@given(COSTS, st.floats(0.0, 0.01), st.none() | st.floats(0.0, 0.02))
def test_a_training_spends_what_a_plain_loop_does(costs, late, taking):
    """Batches arrive after a gap, then are handed over. Recorded steps have `taking` of it, and lateness."""
    clock, loader = LateClock(late), MemoryLoader()

    def read(portions):
        for gap, hand in costs:
            ready = clock.time + gap
            clock.time = ready + hand
            yield Batch(4, 400, ready)

    loader.read = read
    rows, seconds, _ = rows_of(
        loader, samples=4 * len(costs), epochs=1, clock=clock, as_training=True, taking=taking
    )
    asks_late = 0.0 if taking is None else late  # the data come later, too
    waits = [gap + asks_late * bool(number) for number, (gap, _) in enumerate(costs)]
    if taking is None:
        steps = [hand + 0.005 + late for _, hand in costs]
    else:
        steps, owed = [], 0.0
        for _, hand in costs:
            owed += hand - taking
            steps.append(max(max(0.0, owed) + 0.005, hand))
            owed = min(0.0, owed)
    assert rows["wait"] == pytest.approx(waits, abs=1e-9)
    assert seconds == pytest.approx(sum(waits) + sum(steps))
    assert (rows["overshoot"] >= -1e-9).all()
    assert rows["late"] == pytest.approx(asks_late, abs=1e-9)


def test_the_emulators_bookkeeping_is_no_delay_of_a_training():
    clock, loader = LateClock(0.0), MemoryLoader()

    def read(portions):
        for _ in portions:
            taken = clock.time + 0.001
            clock.time += 0.004  # three of them are the loader's own
            yield Batch(4, 400, taken - 0.001, taken=taken)

    loader.read = read
    rows, _, _ = rows_of(loader, clock=clock, as_training=True)
    assert rows["overshoot"] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("provenance", "taking", "together", "has"),
    [
        ("measured", None, False, False),
        ("recorded", 0.001, False, False),
        ("recorded", 0.001, True, True),
        ("recorded", None, False, True),
        ("bound", None, False, True),
    ],
)
def test_a_recorded_step_that_does_not_tell_has_all_that_taking_a_batch_costs(
    provenance, taking, together, has
):
    spec = AcceleratorSpec(
        name="job", step_seconds=0.03, step_batch_size=8, provenance=provenance, taking_seconds=taking,
        together=together,
    )  # fmt: skip
    assert spec.includes_taking == has


def test_a_training_is_held_up_at_a_barrier_by_who_wakes_up_last():
    def late_peer(end):
        clock.time = max(clock.time, end) + 0.01
        return clock.time - 0.001  # this one is woken 1 ms after the last one came

    clock = LateClock(0.004)
    rows, _, _ = rows_of(MemoryLoader(), sync="step", barrier=late_peer, clock=clock, as_training=True)
    assert rows["barrier"] == pytest.approx(0.009) and rows["late"] == pytest.approx(0.001)
    assert rows["overshoot"][1:] == pytest.approx(0.005), "woken late, taken late, 4 ms late again"


@given(st.lists(st.floats(0.002, 0.5), min_size=1, max_size=30))
def test_a_stall_is_never_made_up_for(stalls):
    clock = LateClock(0.0)
    loader = MemoryLoader()
    loader.read = lambda portions: (Batch(4, 400, clock.time + stall) for stall in stalls)
    rows, seconds, _ = rows_of(loader, step=0.05, samples=4 * len(stalls), epochs=1, clock=clock)
    assert rows["wait"] == pytest.approx(stalls)
    assert seconds == pytest.approx(sum(stalls) + 0.05 * len(stalls))


@pytest.mark.parametrize(("refill", "calls"), [("epoch", 3), ("persistent", 3), ("never", 1)])
def test_the_loader_begins_with_nothing_where_the_workload_says_so(refill, calls):
    loader, read = MemoryLoader(), []
    inner = loader.read
    loader.read = lambda portions: read.append(1) or inner(portions)
    plan = RankPlan(plan=EpochPlan(samples=40, ranks=1, batch_size=4, refill=refill), steps=25, seed=0)
    log, clock = StepLog(0, 0), MonotonicClock()
    train(plan, loader, Accelerator(repeat(0.0), clock).compute, log, clock)
    assert len(read) == calls
    assert loader.seen == [tuple(read.file for read in step.reads) for step in plan.portions(0)]
    assert log.rows()["epoch"].tolist() == [0] * 10 + [1] * 10 + [2] * 5


def test_a_slow_peer_is_barrier():
    clock, meetings = LateClock(0.0), []

    def late_peer(end):
        meetings.append(end)
        clock.time = max(clock.time, end) + 0.01
        return clock.time

    held, _, _ = rows_of(MemoryLoader(), step=0.002, sync="step", barrier=late_peer, clock=clock)
    assert held["barrier"] == pytest.approx(0.01) and held["wait"] == pytest.approx(0.0, abs=1e-9)
    assert len(meetings) == 1 + 20, "one for a common start"
    assert (held["compute"] == 0.002).all(), "compute is nominal, never measured"


def test_sync_by_epoch_waits_once_an_epoch():
    barrier = BusyBarrier(0.0)
    rows_of(MemoryLoader(), step=0.0, sync="epoch", barrier=barrier)
    assert barrier.barriers == 1 + 2


QUEUES = st.lists(st.tuples(st.floats(0, 0.5), st.floats(0.01, 0.5)), min_size=1, max_size=30)


@given(QUEUES, st.integers(1, 5), st.booleans())
def test_a_queue_is_worked_off_in_order_and_its_process_waits_for_it_now_and_then(
    steps, in_flight, as_training
):
    """A step begins at max(end of the one before, its batch); each `in_flight` steps the queue runs empty."""
    clock = LateClock(0.0)
    start, arrives, ends, taken = clock.time, 0.0, [], []
    lasts, arrivals = [last for _, last in steps], []
    for number, (gap, last) in enumerate(steps):
        arrives += gap
        arrivals.append(start + arrives)
        waited = taken[-1] if number % in_flight else ends[-1] if ends else 0.0
        taken.append(max(arrives, waited))
        ends.append(max(ends[-1] if ends else 0.0, arrives) + last)

    def read(portions):
        for at in arrivals:
            clock.time = max(clock.time, at)
            yield Batch(4, 400, at)

    loader, log = MemoryLoader(), StepLog(point=0, rank=0)
    loader.read = read
    plan = RankPlan(
        plan=EpochPlan(samples=4 * len(steps), ranks=1, batch_size=4), epochs=1, steps=None, seed=7
    )
    compute = Accelerator(iter(lasts), clock, in_flight).compute
    taken_at = []
    seconds = train(
        plan, loader, compute, log, clock, as_training=as_training,
        meanwhile=lambda now: taken_at.append(now - start),
    )  # fmt: skip
    rows = log.rows()
    assert taken_at == pytest.approx(taken, abs=1e-9) and seconds == pytest.approx(ends[-1])
    assert rows["begin"] + durations(rows) == pytest.approx(ends)
    assert rows["compute"].sum() / seconds == pytest.approx(sum(lasts) / ends[-1])
    assert clock.time == pytest.approx(start + seconds), "the loop ends when the queue is empty"
    assert rows["late"] == pytest.approx(0.0)
