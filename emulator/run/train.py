"""The loop of one rank: read a batch, compute on it, wait for the others.

    for epoch: for batch in loader:   wait       the accelerator had no batch
        compute                       compute    nominal
                                      overshoot  it was occupied for longer
        barrier, where asked for      barrier    the others were

The columns are the accelerator's time, not its process's. A step begins when its batch has arrived and the
accelerator is free: at the end of its previous step or, after a barrier, of everybody's. The process may
notice later: of 100 ranks on two cores some always run late, and AU was 81 to 87 % while data arrived in
time. That is not the storage's fault, so the columns leave it out. The log also has the times at which the
process ran, from which `analysis.here` computes what a training on this client would get. Only a process
that is late by more than the step delays its accelerator: that is overshoot. No delay is made up for.

A process whose accelerator queues steps (`accelerator.in_flight`) takes batches while earlier steps compute.
The log has it back from a step at the step's end, unless it is later than that.
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
    """Train along `plan`, adding one row per step to `log`; return the seconds to the end of the last.

    `compute(begin)` is Accelerator.compute, or a real accelerator's. `rank` is this rank's number among the
    active ones. `barrier(end)` waits for all active ranks and returns the latest `end`; one barrier opens the
    loop, and `sync` says when others follow. `meanwhile(now)` is called once a step for bookkeeping. Every
    second is in one column of one row. Raises the loader's errors.
    """
    start = free = barrier(clock.now())  # one start for all ranks
    batches = (batch for portions in plan.stretches(rank) for batch in loader.read(portions))
    for number, batch in enumerate(batches):
        got = clock.now()
        meanwhile(got)  # while the accelerator computes, as host work happens in a training
        begin = max(free, batch.ready)
        nominal, computed = compute(begin)
        woke = max(computed, clock.now())
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
            late=max(0.0, clock.now() - end),
            requested=batch.began - start,
            arrived=batch.ready - start,
            got=got - start,
            woke=woke - start,
        )
        free = end
    clock.sleep_until(free)  # steps that are still queued
    return free - start
