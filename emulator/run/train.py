"""THE loop of one rank: read a batch, compute on it, wait for the others.

for epoch: for batch in loader:   wait     blocked on the loader
    compute                       compute  nominal; overshoot = measured - nominal
    barrier, where asked for      barrier  outside wait and compute
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from emulator.clock import Clock
from emulator.loader.base import Loader
from emulator.plan.epoch import Course
from emulator.record.step import StepLog
from emulator.spec.workload import TrainingSpec

BARRIER_SECONDS = 0.002
"""Seconds in a barrier that are put down to the barrier itself."""


class Computing(Protocol):
    """What computes: an emulated accelerator (accelerator.occupy), or a real one (run.truth)."""

    def compute(self, ready: float, stalled: float) -> float:
        """As Accelerator.compute: return when the step is computed, with its nominal seconds."""
        ...


def train(
    course: Course,
    training: TrainingSpec,
    loader: Loader,
    accelerator: Computing,
    rank: int,
    barrier: Callable[[], None],
    clock: Clock,
    log: StepLog,
    meanwhile: Callable[[float], None],
) -> float:
    """Train along `course`, one row of `log` per step, and return the seconds that the loop took.

    `rank` is this one's among the active ranks; `barrier()` returns when all of them have called it.
    `meanwhile(now)` is called once a step while the accelerator computes: the place for bookkeeping.
    Every second of the loop is in some row: what passes between two steps is wait of the later one.
    Raises what the loader raises.
    """
    start = begin = clock.now()
    held_up = 0.0  # seconds in the last barrier
    for number, batch in enumerate(loader.read(course.portions(rank))):
        ready = clock.now()
        meanwhile(ready)
        # What a barrier takes to wake everybody is our own way of waiting, not an accelerator that idles.
        nominal = accelerator.compute(ready, stalled=ready - begin + max(0.0, held_up - BARRIER_SECONDS))
        computed = end = clock.now()
        if training.sync == "step" or (training.sync == "epoch" and course.ends_epoch(number)):
            barrier()
            end = clock.now()
        held_up = end - computed
        epoch, step = course.place(number)
        log.add(
            epoch=epoch, step=step, samples=batch.samples, size=batch.bytes, begin=begin - start,
            wait=ready - begin, compute=nominal, overshoot=computed - ready - nominal, barrier=held_up,
        )  # fmt: skip
        begin = end
    return begin - start
