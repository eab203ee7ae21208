"""THE loop of one rank: read a batch, compute on it, wait for the others.

for epoch: for batch in loader:   wait       the accelerator had no batch
    compute                       compute    nominal
                                  overshoot  it was occupied for longer
    barrier, where asked for      barrier    the others were

The columns are the accelerator's time. A step begins when its batch has arrived and the accelerator is
free: when its last step was over, or, after a barrier, the last of all of theirs. That the process which
emulates it looks a little later does not hold it up: of 100 ranks on two cores some are late at any time,
and in a barrier all would wait for the latest, step after step, while real accelerators do not meet
through the scheduler of their host. How late the process was is logged beside. Only when it comes so late
that the step would be over already has the accelerator waited for it: that is overshoot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from emulator.config.workload import TrainingSpec
from emulator.loader.base import Loader
from emulator.plan import RankPlan
from emulator.record.steps import StepLog
from emulator.run.accelerator import Clock


class Computing(Protocol):
    """What computes: an emulated accelerator (accelerator.occupy), or a real one (run.truth)."""

    def compute(self, begin: float) -> tuple[float, float]:
        """As Accelerator.compute: return when the step is computed; its nominal seconds and its end."""
        ...


def train(
    course: RankPlan,
    training: TrainingSpec,
    loader: Loader,
    accelerator: Computing,
    rank: int,
    barrier: Callable[[float], float],
    clock: Clock,
    log: StepLog,
    meanwhile: Callable[[float], None],
) -> float:
    """Train along `course`, one row of `log` per step, and return the seconds until the last one's end.

    `rank` is this one's among the active ranks. `barrier(end)` returns when all of them have called it,
    each with the end of its step, and returns the last of these; the loop begins with one, for a common
    start. `meanwhile(now)` is called once a step while the accelerator computes: the place for bookkeeping.
    Every second is in some row, and in one of its columns. Raises what the loader raises.
    """
    start = free = barrier(clock.now())  # one for all ranks
    for number, batch in enumerate(loader.read(course.portions(rank))):
        meanwhile(clock.now())
        begin = max(free, batch.ready)
        nominal, computed = accelerator.compute(begin)
        end = computed
        if training.sync == "step" or (training.sync == "epoch" and course.ends_epoch(number)):
            end = barrier(computed)
        epoch, step = course.place(number)
        log.add(
            epoch=epoch, step=step, samples=batch.samples, size=batch.bytes, begin=free - start,
            wait=begin - free, compute=nominal, overshoot=computed - begin - nominal, barrier=end - computed,
            late=clock.now() - end,
        )  # fmt: skip
        free = end
    return free - start
