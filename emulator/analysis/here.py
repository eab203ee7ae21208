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
accelerator keeps its pace; a training cannot, and here it does not. So it also asks later: a stretch of
reading moves as a whole by as much as the process was behind when the first request of it was made, and takes
as long as it took. While a rank always has a request under way, as where the storage is the limit, no batch
arrives later than it did.

A worker that is reading may hand over a batch slowly: PyTorch passes memory through a thread of the worker
process, and h5py keeps the GIL in a read. A process that asks later may find the worker idle, because it has
read all that it may before one of its batches is taken. Handing over then costs as much as in the quickest
tenth of the steps.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.parts import WHOLE, Floats, Whole, least
from emulator.analysis.throughput import durations, table
from emulator.config.workload import Workload
from emulator.record.steps import Steps


def here_of(steps: Steps, workload: Workload, over: Whole = WHOLE) -> Steps | None:
    """Play the steps of one point of `workload` in their processes' time, as `here` does."""
    return here(
        steps, workload.training.sync, workload.loader.queued, over, workload.accelerator.taking_seconds
    )


def here(
    steps: Steps,
    sync: Literal["step", "epoch", "none"],
    queued: int = 0,
    over: Whole = WHOLE,
    taking: float = 0.0,
) -> Steps | None:
    """Play the steps of one point in their processes' time; return None if the log lacks the moments.

    Rows are in the order of ranks, with the columns of STEP: `wait` includes handing over, `overshoot` is how
    late the process woke up, `barrier` its wait for others and how late it was woken, `late` that alone.
    Steps that not all ranks have made, as in a run that was cut off, are left out. Given a part of the ranks,
    `over` knows when the others came to a barrier. `queued` is LoaderSpec.queued, `taking`
    AcceleratorSpec.taking_seconds.
    """
    unknown = np.isnan(steps["got"]) | np.isnan(steps["woke"])
    count, without = over.sum(np.array([len(steps), unknown.sum()], np.float64))
    if not count or without:
        return None
    log = table(steps, over)
    ranks = log.shape[1]
    end = log["begin"] + durations(log)
    went_on = end + log["late"]
    asked = np.concatenate([np.zeros((1, ranks)), went_on[:-1]])
    arrived = np.where(np.isnan(log["arrived"]), log["begin"] + log["wait"], log["arrived"])
    handed = np.maximum(0.0, log["got"] - np.maximum(asked, arrived) - taking)
    overslept = np.maximum(0.0, log["woke"] - (end - log["barrier"]))
    gates = np.full(len(log), sync == "step")
    if sync == "epoch":
        gates = np.append(log["epoch"][1:, 0] != log["epoch"][:-1, 0], True)
    through = went_on.copy()  # when the process was through with a step, at a barrier the last of all
    through[gates] = over.max(log["woke"][gates].max(axis=1))[:, None]
    woken = np.maximum(0.0, went_on - through)

    # A step is done at max(free, arrived) + cost.
    cost = handed + log["compute"] + overslept
    woken_before = np.concatenate([np.zeros_like(cost[:1]), woken[:-1]])
    idle = np.full_like(arrived, np.inf)  # when the worker of a batch has nothing to read
    if queued:
        idle[:-queued] = arrived[queued:]
    spared = np.where(asked < idle, np.maximum(0.0, handed - np.quantile(handed, 0.1, axis=0)), 0.0)
    from_free, from_data = woken_before + cost, arrived + cost
    quick_free, quick_data = from_free - spared, from_data - spared
    asked_in = _asked_in(log, arrived)
    if sync == "step":  # one line for all ranks, in which they wait for the data that comes last
        last = over.max(from_data.max(axis=1))
        its = np.where(from_data < last[:, None], np.inf, asked_in).min(axis=1)
        asked_in = least(over, its)[:, None].astype(np.int64)
        from_data = last[:, None]
        from_free, quick_free, quick_data, idle = (
            over.max(each.max(axis=1))[:, None] for each in (from_free, quick_free, quick_data, idle)
        )
        through = through[:, :1]
    slow, quick = _Costs(from_free, from_data), _Costs(quick_free, quick_data)
    ends, behind, was_idle = _ends(slow, quick, idle, asked_in, through, gates & (sync == "epoch"), over)
    cost = cost - np.where(was_idle, spared, 0.0)
    came = arrived + np.take_along_axis(behind, asked_in, axis=0)
    ends = np.broadcast_to(ends, cost.shape)
    free = np.concatenate([np.zeros_like(cost[:1]), ends[:-1]]) + woken_before
    done = np.maximum(free, came) + cost
    after = np.where(gates[:, None], ends + woken, done)
    begin = done - log["compute"] - overslept
    log["begin"] = np.concatenate([np.zeros((1, ranks)), after[:-1]])
    log["wait"], log["overshoot"] = begin - log["begin"], overslept
    log["barrier"], log["late"] = after - done, woken
    log["got"], log["woke"] = begin, done
    played: Steps = log.T.reshape(-1)
    return played


def _asked_in(log: Steps, arrived: Floats) -> NDArray[np.int64]:
    """Return the step of its rank, from 1 on, in which the stretch of reading began that brought a batch.

    0: before the first, or not known. Shapes (steps, ranks). In a stretch a request is always under way.
    """
    ready = np.concatenate([np.full_like(arrived[:1], -np.inf), np.maximum.accumulate(arrived)[:-1]])
    opens = log["requested"] >= ready
    opener = np.maximum.accumulate(np.where(opens, np.arange(len(log))[:, None], -1))
    opened = np.take_along_axis(log["requested"], np.maximum(opener, 0), axis=0)
    asked = np.where(opener < 0, -np.inf, opened)
    taken = [np.searchsorted(got, at, side="right") for got, at in zip(log["got"].T, asked.T, strict=True)]
    return np.stack(taken, axis=1)


class _Costs(NamedTuple):
    """The costs of steps, of shape (steps, lines): a line is a rank's, or that of all together."""

    from_free: Floats
    """Seconds from the end of the step before it to that of a step."""
    from_data: Floats
    """End of a step that waits for its data, in the log's seconds."""


def _ends(
    slow: _Costs,
    quick: _Costs,
    idle: Floats,
    asked_in: NDArray[np.int64],
    through: Floats,
    gates: NDArray[np.bool_],
    over: Whole,
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the ends of steps in the processes' time, how much later than logged a line took batches, with
    a 0 before the first, and which steps are quick, because they begin when their worker is `idle`.

    Data come as much later as the line was when it asked for them. `through` are the ends in the log. At
    `gates` lines wait for each other.
    """
    ends, behind = np.zeros_like(slow.from_free), np.zeros((len(idle) + 1, idle.shape[1]))
    lines, end, was_idle = np.arange(idle.shape[1]), np.zeros(idle.shape[1]), np.zeros(idle.shape, bool)
    before = np.concatenate([np.zeros_like(through[:1]), through[:-1]])
    in_log = np.maximum(before + slow.from_free, slow.from_data)
    for step, gate in enumerate(gates):
        moved = behind[asked_in[step], lines]
        was_idle[step] = end >= idle[step] + moved
        slowly, quickly = (
            np.maximum(end + costs.from_free[step], costs.from_data[step] + moved) for costs in (slow, quick)
        )
        end = np.where(was_idle[step], quickly, slowly)
        behind[step + 1] = end - in_log[step]
        if gate:
            end = np.full_like(end, over.max(end.max(keepdims=True))[0])
        ends[step] = end
    return ends, behind, was_idle
