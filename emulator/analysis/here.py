"""The same steps as a training on this very client would feel them.

The step log's columns are the accelerators' time: a step begins when its batch has arrived, whether or not
the process that emulates the accelerator had a core to notice. That is the storage's side of the question. A
training has no such accelerators: its step begins when its process holds the batch, ends when the process
wakes up, and at a barrier all wait for the process that woke up last. From the moments that the log keeps,
this module plays the steps once more in the processes' time:

    begin = max(the process was free, the batch had arrived) + how long handing it over took
    end   = begin + nominal compute + how late the process woke up
    free  = end, or after a barrier the last end of all ranks + how late the process was woken from it

Each cost counts once, where it arose. The emulated process sleeps less when it is late, so that the
accelerator keeps its pace; a training cannot, and here it does not. Batches arrive when they arrived: a
slower training asks for none of them earlier.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from emulator.analysis.parts import WHOLE, Whole, least
from emulator.analysis.throughput import durations
from emulator.record.steps import Steps


def here(steps: Steps, sync: Literal["step", "epoch", "none"], over: Whole = WHOLE) -> Steps | None:
    """`steps` of one point in their processes' time, rank after rank: None where the log lacks the moments.

    Columns as in STEP. `wait` has the handing over, `overshoot` how late the process woke up, `barrier` the
    others and how late it was woken from it; `late` is that alone. Of ranks that have not made equally many
    steps, as in a run that was cut off, the later ones are left out. Of a part of the ranks, theirs: `over`
    knows when the others came to a barrier.
    """
    unknown = np.isnan(steps["got"]) | np.isnan(steps["woke"])
    count, without = over.sum(np.array([len(steps), unknown.sum()], np.float64))
    if not count or without:
        return None
    ordered = steps[np.argsort(steps["rank"], kind="stable")]
    counts = np.unique(ordered["rank"], return_counts=True)[1]
    first = np.cumsum(counts) - counts
    shortest = int(least(over, np.array([counts.min()], np.float64))[0])
    log = ordered[first + np.arange(shortest)[:, None]]  # shape (steps, ranks)
    end = log["begin"] + durations(log)
    went_on = end + log["late"]
    asked = np.concatenate([np.zeros((1, len(counts))), went_on[:-1]])
    arrived = np.where(np.isnan(log["arrived"]), log["begin"] + log["wait"], log["arrived"])
    handed = np.maximum(0.0, log["got"] - np.maximum(asked, arrived))
    overslept = np.maximum(0.0, log["woke"] - (end - log["barrier"]))
    woken = np.maximum(0.0, went_on - over.max(log["woke"].max(axis=1))[:, None])
    gates = np.full(len(log), sync == "step")
    if sync == "epoch":
        gates = np.append(log["epoch"][1:, 0] != log["epoch"][:-1, 0], True)

    # A step is done at max(free, arrived) + cost. So the end of a stretch between two barriers is, of what
    # was before it, max(free + a, b), and the barrier's of all ranks the same of the largest a and b.
    cost = handed + log["compute"] + overslept
    spent = np.cumsum(cost, axis=0)
    before = spent - cost
    ahead = arrived - before
    gate = np.flatnonzero(gates)
    free = np.zeros((1 + len(gate), len(counts)))  # when each rank is free to begin a stretch
    start = np.append(0, gate + 1)
    if len(gate):
        late = np.concatenate([np.zeros_like(woken[:1]), woken[gate[:-1]]])
        a = late + spent[gate] - before[start[:-1]]
        b = spent[gate] + np.maximum.reduceat(ahead[: gate[-1] + 1], start[:-1], axis=0)
        a, b = over.max(np.stack([a.max(axis=1), b.max(axis=1)]))
        total = np.cumsum(a)
        last = total + np.maximum.accumulate(np.maximum(b - total, 0.0))  # of the k-th barrier
        free[1:] = last[:, None] + woken[gate]
    start, free = start[start < len(log)], free[: len(start[start < len(log)])]
    # Nobody is free again before its own last step was done, so that one running maximum does for all.
    ahead[start] = np.maximum(ahead[start], free - before[start])
    done = spent + np.maximum.accumulate(ahead, axis=0)
    after = done.copy()
    if len(gate):
        after[gate] = last[:, None] + woken[gate]
    begin = done - log["compute"] - overslept
    log["begin"] = np.concatenate([np.zeros((1, len(counts))), after[:-1]])
    log["wait"], log["overshoot"] = begin - log["begin"], overslept
    log["barrier"], log["late"] = after - done, np.where(gates[:, None], woken, 0.0)
    log["got"], log["woke"] = begin, done
    played: Steps = log.T.reshape(-1)
    return played
