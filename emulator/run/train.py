"""THE loop of one rank: read a batch, compute on it, wait for the others.

    for epoch: for batch in loader:   wait       the accelerator had no batch
        compute                       compute    nominal
                                      overshoot  it was occupied for longer
        barrier, where asked for      barrier    the others were

The columns are the accelerator's time, not its process's. A step begins when its batch has arrived and the
accelerator is free, that is, when its previous step was over, or after a barrier, when everybody's was. The
process that emulates it may notice later: of 100 ranks on two cores some always run late. That is no fault of
the storage's, so the moments at which the process was there are logged beside the columns, and
`analysis.here` makes of them what a training on this very client would feel. Only a process that is so late
that the step should be over already has held its accelerator up: that is overshoot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from emulator.loader.base import Loader
from emulator.order import RankPlan
from emulator.record.steps import StepLog
from emulator.run.accelerator import Clock


def train(
    plan: RankPlan,
    loader: Loader,
    compute: Callable[[float], tuple[float, float]],
    log: StepLog,
    clock: Clock,
    *,
    sync: Literal["step", "epoch", "none"] = "none",
    rank: int = 0,
    barrier: Callable[[float], float] = lambda end: end,
    meanwhile: Callable[[float], None] = lambda now: None,
) -> float:
    """Train along `plan`, one row of `log` per step; the seconds until the end of the last step.

    `compute(begin)` is Accelerator's, or that of a real one. `rank` is this rank's number among the active
    ones. `barrier(end)` returns when all of them have called it, each with the end of its step, and returns
    the last of these; one barrier opens the loop, and `sync` says when others follow. `meanwhile(now)` is
    called once a step while the accelerator computes: the place for bookkeeping. Every second is in one
    column of one row. Raises what the loader raises.
    """
    start = free = barrier(clock.now())  # one start for all ranks
    batches = (batch for portions in plan.stretches(rank) for batch in loader.read(portions))
    for number, batch in enumerate(batches):
        got = clock.now()
        meanwhile(got)
        begin = max(free, batch.ready)
        nominal, computed = compute(begin)
        woke = clock.now()
        end = computed
        if sync == "step" or (sync == "epoch" and plan.ends_epoch(number)):
            end = barrier(computed)
        epoch, step = plan.place(number)
        log.add(
            epoch=epoch,
            step=step,
            samples=batch.samples,
            size=batch.bytes,
            begin=free - start,
            wait=begin - free,
            compute=nominal,
            overshoot=computed - begin - nominal,
            barrier=end - computed,
            late=clock.now() - end,
            requested=batch.began - start,
            arrived=batch.ready - start,
            got=got - start,
            woke=woke - start,
        )
        free = end
    return free - start
