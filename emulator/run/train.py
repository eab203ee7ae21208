"""The training loop of one rank: read a batch, compute, wait for the other ranks (DESIGN.md, One rank).

With a loader that reads as a training does, a step computes from when its process has the batch, and ends
when the process wakes up, as in a training: what the process adds is overshoot. A recorded step has that of
its job already: then only what taking batches costs beyond the job's is added.

Other loaders show what the storage can feed. Their accelerators keep their pace: a step begins when its batch
has arrived and the previous step, or at a barrier the last rank's, has ended. The process may notice later:
of 100 ranks on two cores some always run late, and AU was 81 to 87 % while data arrived in time. Only a
process that is late by more than the step delays its accelerator: that is overshoot. At a barrier it does so
before the others, who wait for the process.

A process whose accelerator queues steps (`accelerator.in_flight`) takes batches while earlier steps compute.
"""

from __future__ import annotations

import math
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
    as_training: bool = False,
    taking: float | None = None,
    meanwhile: Callable[[float], None] = lambda now: None,
    until: float = math.inf,
) -> float:
    """Train as `plan` says, with one row per step in `log`; return the seconds until the last step ended.

    `compute(begin)` is Accelerator.compute, or that of a real accelerator. `rank` is this rank's number among
    the active ones. `barrier(end)` waits for all active ranks and returns the latest `end`; the loop starts
    with a barrier, and `sync` says when others follow. `as_training` is as LoaderPlugin has it, `taking`
    AcceleratorSpec.taking_seconds. `meanwhile(now)` is called once a step for bookkeeping. Every second is in
    one column of one row. Once the clock has passed `until`, no step is begun after the first; with barriers,
    all ranks stop at the same one. Raises the loader's errors.
    """
    start = free = asked = barrier(clock.now())  # the same start for all ranks
    owed = 0.0  # what taking batches has cost beyond the job's, and no step has yet
    batches = (batch for portions in plan.stretches(rank) for batch in loader.read(portions))
    for number, batch in enumerate(batches):
        now = clock.now()
        meanwhile(now)  # host work overlaps compute, as in a training
        got = now if batch.taken is None else batch.taken
        begin = max(free, batch.ready)
        delay = 0.0
        if as_training:
            owed = got - begin if taking is None else owed + got - max(asked, batch.ready) - taking
            delay = max(0.0, owed)
            owed -= delay
        nominal, computed = compute(begin + delay)
        if as_training and taking is None:
            computed = max(computed, clock.now())
        end = computed
        stops = number > 0 and clock.now() > until
        if sync == "step" or (sync == "epoch" and plan.ends_epoch(number)):
            # Others wait for this process: what delays it beyond a step is its own overshoot, not theirs.
            computed = max(computed, clock.now() - nominal)
            # All ranks get the latest end: infinity stops all of them at the same step.
            end = barrier(math.inf if stops else computed)
        if end == math.inf or (stops and sync == "none"):
            break
        asked = clock.now()
        epoch, step = plan.place(number)
        log.add(
            epoch=epoch,
            step=step,
            samples=batch.samples,
            bytes=batch.bytes,
            begin=free - start,
            wait=begin - free,
            compute=nominal,
            overshoot=computed - begin - nominal,
            barrier=end - computed,
            late=max(0.0, asked - end),
            requested=batch.began - start,
            arrived=batch.ready - start,
        )
        free = end
    clock.sleep_until(free)  # steps that are still queued
    return free - start
