"""Steps of a recorded job, and the time of a step that does not wait for data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.run.accelerator import quantiles_of

SEEN = np.dtype(
    [
        ("loader", "<i4"),  # number in record.json
        ("rank", "<i4"),
        ("epoch", "<i4"),
        ("step", "<i4"),  # within the epoch
        ("samples", "<i4"),  # in the batch; 0: unknown
        ("ready", "<i1"),  # 1: the batch was ready when it was requested; 0: it was not, or that is unknown
        ("asked", "<f8"),  # seconds since the first batch of the loader was requested
        ("wait", "<f8"),  # seconds until it was delivered
        ("between", "<f8"),  # seconds from then until the next one was requested; NaN: none was
        ("cpu", "<f8"),  # CPU seconds of the process between requests; NaN: unknown
        ("traced", "<i1"),  # 1: calls were traced meanwhile, which takes time
        ("computed", "<f8"),  # seconds of the GPU from the batch to the end of its step; NaN: unknown
    ]
)
"""One step of the job: a row of profile.parquet."""

Table = NDArray[np.void]
"""Rows of dtype SEEN of one loader of one rank, in order."""

MOST_STEPS = 2_000_000
"""Most steps of a loader that are kept; others are only counted."""

FEW = 10
"""Fewest steps for a step time."""
_UNLIKE = 0.05
"""Relative difference at which steps that do not wait for a batch are not representative: shorter than all
steps without their waits, or longer than all with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of a step without waits for data."""

    seconds: float
    """Mean seconds of a step; for a bound, an upper limit."""
    bound: bool = False
    """True if too few steps did not wait for a batch, or these are unlike others: `seconds` is an upper
    limit then."""
    at_least: float = 0.0
    """For a bound: median seconds between two batches, which a step takes unless it overlaps the next one."""
    steps: int
    """Number of steps in the mean."""
    all_steps: int
    """Number of recorded steps after the warm-up."""
    waited: float
    """Share of the recorded time in which the job waited for a batch."""
    traced: bool = False
    """True if traced steps are in the mean, which take longer, because too few came after tracing."""
    in_flight: int = 1
    """Steps that the host is ahead of its accelerator, and 1."""
    in_turn: bool = False
    """True if the job reads and computes in turn, so that a step is the time between two batches."""
    by_events: bool = False
    """True if the times are those from a batch to the end of its step on the GPU, by CUDA events, because few
    steps did not wait for data."""
    taking: float | None = None
    """Mean seconds of the step for taking a batch that was ready; None: not known, as for a bound."""
    quantiles: tuple[float, ...] = ()
    """Mean seconds of equal parts of the sorted step times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The rate of steps, waits included."""

    seconds: float
    """Mean seconds from batch to batch."""
    waited: float
    """Share of the time in waits for a batch."""
    samples: float = 0.0
    """Mean samples of a batch; 0 if unknown."""


@dataclass(slots=True)
class Track:
    """The steps of one loader of one rank, as they arrive."""

    rank: int
    rows: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    """epoch, step, samples, ready, asked, got (nanoseconds of the monotonic clock), used (CPU nanoseconds of
    the process at the request)."""
    ends: dict[int, int] = field(default_factory=dict)
    """Time of the request after the last batch, by epoch."""
    sent: dict[int, int] = field(default_factory=dict)
    """Batches requested from workers, by epoch."""
    delivered: dict[int, int] = field(default_factory=dict)
    """Delivered batches, by epoch."""
    computed: dict[tuple[int, int], int] = field(default_factory=dict)
    """Nanoseconds between CUDA events before and after a step's launches, by (epoch, step)."""

    def add(
        self, epoch: int, step: int, samples: int, ready: int, asked: int, got: int, sent: int, used: int
    ) -> None:
        """Add a delivered batch."""
        if len(self.rows) < MOST_STEPS:
            self.rows.append((epoch, step, samples, ready, asked, got, used))
        self.sent[epoch] = max(sent, self.sent.get(epoch, 0))
        self.delivered[epoch] = self.delivered.get(epoch, 0) + 1

    def add_computed(self, epoch: int, step: int, nanoseconds: int) -> None:
        """Add the time that the GPU took for a step."""
        if len(self.computed) < MOST_STEPS:
            self.computed[epoch, step] = nanoseconds

    @property
    def batches(self) -> tuple[int, int]:
        """Numbers of delivered batches, and of requested ones, which are read, too."""
        requested = sum(
            self.delivered[epoch] if epoch in self.ends else max(self.sent[epoch], self.delivered[epoch])
            for epoch in self.delivered
        )
        return sum(self.delivered.values()), requested

    def table(self, traced_until: int = 0) -> Table:
        """Return the rows in order, with dtype SEEN. `traced_until`: nanoseconds of the monotonic clock."""
        epoch, step, samples, ready, asked, got, used = np.array(sorted(self.rows)).T
        table = np.zeros(len(epoch), SEEN)
        following = np.full(len(epoch), -1)
        same = (epoch[1:] == epoch[:-1]) & (step[1:] == step[:-1] + 1)
        following[:-1][same] = asked[1:][same]
        last = np.flatnonzero(np.append(epoch[1:] != epoch[:-1], True))
        following[last] = [self.ends.get(int(number), -1) for number in epoch[last]]
        table["rank"], table["epoch"], table["step"] = self.rank, epoch, step
        table["samples"], table["ready"], table["traced"] = samples, ready, asked < traced_until
        table["asked"] = (asked - asked.min()) / 1e9
        table["wait"] = (got - asked) / 1e9
        table["between"] = np.where(following >= 0, (following - got) / 1e9, np.nan)
        places = zip(epoch.tolist(), step.tolist(), strict=True)
        table["computed"] = [self.computed.get(place, math.nan) / 1e9 for place in places]
        table["cpu"] = np.append(np.where(same, np.diff(used) / 1e9, np.nan), np.nan)
        return table


def joined(tables: Sequence[Table]) -> Table:
    """Return the steps of loaders that the job made one after another, with consecutive epochs."""
    epochs = 0
    for table in tables:
        table["epoch"] += epochs
        epochs = int(table["epoch"].max(initial=epochs - 1)) + 1
    return np.concatenate(tables)


def _complete(table: Table) -> Table:
    """Return the steps after which the job requested another batch."""
    followed: Table = table[~np.isnan(table["between"])]
    return followed


def _cycles(table: Table) -> NDArray[np.float64]:
    """Return the seconds of each step from its request to the next one; NaN: there was none."""
    cycles: NDArray[np.float64] = table["wait"] + table["between"]
    return cycles


def untraced(table: Table) -> Table:
    """Return the untraced steps if there are enough of them, otherwise all."""
    free = table[table["traced"] == 0]
    return free if len(_complete(free)) >= FEW else table


def step_cpu(table: Table) -> float:
    """Return the median CPU seconds of the process per step; 0 if unknown."""
    known = untraced(table)["cpu"]
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else 0.0


def settled(epoch: NDArray[np.integer[Any]], step: NDArray[np.int32], ahead: int) -> NDArray[np.bool_]:
    """Return True for steps after the prefetched ones of an epoch, or in the second half of a short one."""
    _, which, counts = np.unique(epoch, return_inverse=True, return_counts=True)
    after: NDArray[np.bool_] = step >= np.clip(counts // 2, 1, max(1, ahead))[which]
    return after


def pace_of(tables: Sequence[Table], warmup: int, ahead: int) -> Pace | None:
    """Return the job's pace over steps that are like those of a replay, of all ranks; None for too few.

    The first `ahead` batches of an epoch are left out.
    """
    parts = [np.zeros(0, SEEN)]
    for table in tables:
        used = untraced(table[warmup:])
        parts.append(_complete(used[settled(used["epoch"], used["step"], ahead)]))
    rows = np.concatenate(parts)
    total = float(_cycles(rows).sum())
    if len(rows) < FEW or not total:
        return None
    return Pace(
        seconds=total / len(rows),
        waited=float(rows["wait"][rows["ready"] != 1].sum()) / total,
        samples=float(rows["samples"].mean()),
    )


def step_time(tables: Sequence[Table], warmup: int, in_turn: bool = False) -> StepTime | None:
    """Return the step time, from the steps of all ranks after `warmup` of each; None for too few.

    Steps that do not wait for a batch count: the time between two batches is then the accelerator's.
    `in_turn`: the process itself reads and computes in turn, and computes all the time between two batches.
    Traced steps do not count if there are enough others.
    """
    used = [untraced(table[warmup:]) for table in tables]
    used = [table for table in used if len(_complete(table))]
    steps = np.concatenate([np.zeros(0, SEEN), *map(_complete, used)])
    total = float(_cycles(steps).sum())
    if len(steps) < FEW or not total:
        return None
    fed = steps if in_turn else _fed(used)
    bound = StepTime(
        seconds=total / len(steps),
        bound=True,
        at_least=float(np.median(steps["between"])),
        steps=len(fed),
        all_steps=len(steps),
        waited=float(steps["wait"].sum()) / total,
        traced=bool(steps["traced"].any()),
    )
    if in_turn:
        return _measured(bound, steps["between"], in_turn=True, taking=0.0)
    if len(fed) >= FEW and _representative(_cycles(fed), steps):
        return _measured(bound, _cycles(fed), taking=float(fed["wait"].mean()))
    computed = _computed(used)
    if 2 * len(computed) * len(used) < len(steps):
        return bound
    # A host that launches steps faster than the GPU computes them runs ahead. How far is unknown.
    ahead = bound.at_least < (1 - _UNLIKE) * computed.mean()
    return _measured(bound, computed, by_events=True, in_flight=1 + int(ahead), taking=0.0)


def _measured(bound: StepTime, times: NDArray[np.float64], **how: Any) -> StepTime:
    """Return the step time of steps that took `times` seconds instead of a bound; `how`: other fields."""
    return replace(
        bound,
        seconds=float(times.mean()),
        bound=False,
        at_least=0.0,
        steps=len(times),
        quantiles=quantiles_of(times),
        **how,
    )


def _representative(times: NDArray[np.float64], steps: Table) -> bool:
    """Return True if steps that did not wait, of `times` seconds, are like all the job's `steps`."""
    shortest, longest = steps["between"].mean(), _cycles(steps).mean()
    if not (1 - _UNLIKE) * shortest < times.mean() < (1 + _UNLIKE) * longest:
        return False
    # Long steps now and then: the host may run ahead of its accelerator, or validate or save.
    long = times[times > 2 * np.median(times)].sum()
    return bool(long <= _UNLIKE * times.sum())


def _computed(tables: Sequence[Table]) -> NDArray[np.float64]:
    """Return the GPU's seconds for each step of which they are known.

    Of several ranks, the least counts: the others' GPUs wait for the one whose batch came last.
    """
    rows = np.concatenate([table[~np.isnan(table["computed"])] for table in map(_complete, tables)])
    rows = rows[np.argsort(rows["computed"], kind="stable")]
    _, least = np.unique(_step_ids(rows), return_index=True)  # the first of each step
    computed: NDArray[np.float64] = rows["computed"][least]
    return computed


def _fed(tables: Sequence[Table]) -> Table:
    """Return the steps of all ranks in which no rank waited for a batch.

    Ranks wait for each other in every step, so all must have been fed. Taking a batch that is ready is part
    of the step.
    """
    fed_by_rank = []
    for table in tables:
        typical = float(np.nanmedian(table["between"]))
        ready = (table["ready"] == 1) | (table["wait"] <= 0.02 * typical)
        fed = ready & (table["wait"] <= max(typical, 1e-3))
        fed &= np.r_[False, (np.diff(table["epoch"]) == 0) & (np.diff(table["step"]) == 1)]
        # Nor may it have waited in the two steps before: the accelerator still works through its queue then.
        for _ in range(2):
            fed[1:] &= fed[:-1]
        fed_by_rank.append(_complete(table[fed]))
    everywhere = reduce(np.intersect1d, map(_step_ids, fed_by_rank))
    return np.concatenate([rows[np.isin(_step_ids(rows), everywhere)] for rows in fed_by_rank])


def _step_ids(table: Table) -> NDArray[np.int64]:
    """Return a number for each step that is the same on all ranks."""
    numbers: NDArray[np.int64] = table["epoch"].astype(np.int64) << 32 | table["step"]
    return numbers
