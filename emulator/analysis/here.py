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

from emulator.analysis.throughput import durations
from emulator.record.steps import Steps


def here(steps: Steps, sync: Literal["step", "epoch", "none"]) -> Steps | None:
    """`steps` of one point in their processes' time, rank after rank: None where the log lacks the moments.

    Columns as in STEP. `wait` has the handing over, `overshoot` how late the process woke up, `barrier` the
    others and how late it was woken from it; `late` is 0. Of ranks that have not made equally many steps, as
    in a run that was cut off, the later ones are left out.
    """
    if not len(steps) or np.isnan(steps["got"]).any() or np.isnan(steps["woke"]).any():
        return None
    ordered = steps[np.argsort(steps["rank"], kind="stable")]
    counts = np.unique(ordered["rank"], return_counts=True)[1]
    first = np.cumsum(counts) - counts
    log = ordered[first + np.arange(counts.min())[:, None]]  # shape (steps, ranks)
    end = log["begin"] + durations(log)
    went_on = end + log["late"]
    asked = np.concatenate([np.zeros((1, len(counts))), went_on[:-1]])
    arrived = np.where(np.isnan(log["arrived"]), log["begin"] + log["wait"], log["arrived"])
    handed = np.maximum(0.0, log["got"] - np.maximum(asked, arrived))
    overslept = np.maximum(0.0, log["woke"] - (end - log["barrier"]))
    woken = np.maximum(0.0, went_on - log["woke"].max(axis=1, keepdims=True))
    gates = np.full(len(log), sync == "step")
    if sync == "epoch":
        gates = np.append(log["epoch"][1:, 0] != log["epoch"][:-1, 0], True)

    free = np.zeros(len(counts))
    for step, gate in enumerate(gates):
        begin = np.maximum(free, arrived[step]) + handed[step]
        done = begin + log["compute"][step] + overslept[step]
        after = done.max() + woken[step] if gate else done
        row = log[step]
        row["begin"], row["wait"], row["overshoot"] = free, begin - free, overslept[step]
        row["barrier"], row["late"] = after - done, 0.0
        row["got"], row["woke"] = begin, done
        free = after
    played: Steps = log.T.reshape(-1)
    return played
