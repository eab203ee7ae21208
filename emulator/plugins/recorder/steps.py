"""Steps of a recorded job, and the time of a step that does not wait for data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import at_least
from emulator.run.accelerator import quantiles_of

SEEN = np.dtype(
    [
        ("loader", "<i4"),  # number in record.json
        ("rank", "<i4"),
        ("epoch", "<i4"),
        ("step", "<i4"),  # within the epoch
        ("samples", "<i4"),  # in the batch; 0: unknown
        ("ready", "<i1"),  # 1: the batch was ready when it was requested; 0: it was not; 2: unknown
        ("asked", "<f8"),  # seconds since the first batch of the loader was requested
        ("wait", "<f8"),  # seconds until it was delivered
        ("between", "<f8"),  # seconds from then until the next one was requested; NaN: none was
        ("cpu", "<f8"),  # CPU seconds of the process between requests; NaN: unknown
        ("traced", "<i1"),  # 1: calls were traced meanwhile, which takes time
        ("others", "<i4"),  # batches of other DataLoaders that the process took in `between`
        ("other_wait", "<f8"),  # seconds of `between` in which it waited for those
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
_SETTLE = 2
"""Skipped steps at the start of a stretch, in which an accelerator may still work through its queue."""
_SMALL = 0.02
"""Largest share of a step for taking a batch that was ready."""
_BUSY = 0.5
"""Share of the time with reads under way, above which a job that marks its steps has only a bound."""
_DEAR = 0.2
"""Largest share of a step for taking a batch that was ready, if it is unknown which ones were. Those count as
ready that took at most twice as long as the quickest tenth."""


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
    steps did not wait for data, or because it is unknown how the host waits."""
    taking: float | None = None
    """Mean seconds of the step for taking a batch that was ready; None: not known, for a bound, where steps
    overlap, and where the job marks them."""
    quantiles: tuple[float, ...] = ()
    """Mean seconds of equal parts of the sorted step times."""

    def __post_init__(self) -> None:
        at_least(0, self, "seconds", "at_least", "steps", "all_steps", "waited")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The rate of steps, waits included."""

    seconds: float
    """Mean seconds from batch to batch."""
    waited: float
    """Share of the time in waits for a batch."""
    steps: int
    """Number of steps in the mean."""
    samples: float = 0.0
    """Mean samples of a batch; 0 if unknown."""
    paused: float = 0.0
    """Share of the time in steps that use another DataLoader, as for validation, and are not in the mean."""
    pauses: float = 0.0
    """Number of such steps for each step."""


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
    samples: int = 0
    read: tuple[int, int] = (0, 0)
    """`batches` at the end of the recording of reads."""

    def add(
        self,
        epoch: int,
        step: int,
        samples: int,
        ready: int,
        asked: int,
        got: int,
        sent: int,
        used: int,
        *,
        made: bool = False,
    ) -> None:
        """Add a delivered batch; `made`: the dataset made it, so it counts as one sample."""
        if len(self.rows) < MOST_STEPS:
            self.rows.append((epoch, step, samples, ready, asked, got, used))
        self.sent[epoch] = max(sent, self.sent.get(epoch, 0))
        self.delivered[epoch] = self.delivered.get(epoch, 0) + 1
        self.samples += 1 if made else samples

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

    def table(self, traced_until: int = 0, taken: NDArray[np.int64] | None = None) -> Table:
        """Return the rows in order, with dtype SEEN.

        `traced_until` is in nanoseconds of the monotonic clock; `taken` is `batches_taken` of the process.
        """
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
        if taken is not None:
            waited = np.append(0, np.cumsum(taken[:, 1]))
            first, beyond = (np.searchsorted(taken[:, 0], at) for at in (got, np.maximum(following, got)))
            table["others"] = beyond - first
            table["other_wait"] = (waited[beyond] - waited[first]) / 1e9
        places = zip(epoch.tolist(), step.tolist(), strict=True)
        table["computed"] = [self.computed.get(place, math.nan) / 1e9 for place in places]
        table["cpu"] = np.append(np.where(same, np.diff(used) / 1e9, np.nan), np.nan)
        return table


def batches_taken(tracks: Iterable[Track]) -> NDArray[np.int64]:
    """Return the times of requests of `tracks`, ascending, and of the waits for them, in nanoseconds."""
    rows = sorted((row[4], 0 if row[3] == 1 else row[5] - row[4]) for track in tracks for row in track.rows)
    return np.array(rows, np.int64).reshape(-1, 2)


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


def from_batch_to_batch(table: Table) -> float | None:
    """Return the median seconds from one request to the next; None for too few steps."""
    cycles = _cycles(_complete(table))
    return float(np.median(cycles)) if len(cycles) >= FEW else None


def step_cpu(table: Table) -> float:
    """Return the median CPU seconds of the process per step; 0 if unknown."""
    known = untraced(table)["cpu"]
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else 0.0


def settled(epoch: NDArray[np.int32], step: NDArray[np.int32], ahead: int) -> NDArray[np.bool_]:
    """Return True for steps after the prefetched ones of an epoch, or in the second half of a short one."""
    _, which, counts = np.unique(epoch, return_inverse=True, return_counts=True)
    after: NDArray[np.bool_] = step >= np.clip(counts // 2, 1, max(1, ahead))[which]
    return after


def pace_of(tables: Sequence[Table], warmup: int, ahead: int) -> Pace | None:
    """Return the job's pace over steps that are like those of a replay, of all ranks; None for too few.

    The first `ahead` batches of an epoch are left out, and steps with unusual waits for another DataLoader.
    """
    parts, complete, elsewhere = [np.zeros(0, SEEN)], [np.zeros(0, SEEN)], [np.zeros(0, SEEN)]
    for table in tables:
        used = untraced(table[warmup:])
        alone = _alone(used)
        parts.append(used[alone & settled(used["epoch"], used["step"], ahead)])
        complete.append(_complete(used))
        elsewhere.append(_complete(used[~alone]))
    rows, every, pauses = map(np.concatenate, (parts, complete, elsewhere))
    total = float(_cycles(rows).sum())
    if len(rows) < FEW or not total:
        return None
    return Pace(
        seconds=total / len(rows),
        waited=float(rows["wait"][rows["ready"] != 1].sum()) / total,
        steps=len(rows),
        samples=float(rows["samples"].mean()),
        paused=float(_cycles(pauses).sum() / _cycles(every).sum()),
        pauses=len(pauses) / len(every),
    )


def _alone(table: Table) -> NDArray[np.bool_]:
    """Return True for complete steps without unusual use of another DataLoader."""
    whole: NDArray[np.bool_] = ~np.isnan(table["between"])
    if not whole.any():
        return whole
    typical = float(np.median(table["between"][whole]))
    usual: NDArray[np.bool_] = table["others"] <= np.median(table["others"][whole])
    return whole & usual & (table["other_wait"] <= _SMALL * typical)


_UNLIKE = 0.05
"""Relative difference at which steps that do not wait for a batch are not representative: shorter than all
steps without their waits, or longer than all with them."""


def step_time(tables: Sequence[Table], warmup: int, in_turn: bool = False, few: int = FEW) -> StepTime | None:
    """Return the step time, from the steps of all ranks after `warmup` of each; None for too few.

    Steps that do not wait for a batch count: the time between two batches is then the accelerator's.
    `in_turn`: the process itself reads and computes in turn, and computes all the time between two batches.
    Traced steps do not count if there are enough others.
    """
    used = [untraced(table[warmup:]) for table in tables]
    used = [table for table in used if len(_complete(table))]
    whole = np.concatenate([np.zeros(0, SEEN), *map(_complete, used)])
    cycles = _cycles(whole)
    if len(cycles) < few:
        return None
    timing = partial(
        StepTime,
        all_steps=len(cycles),
        waited=float((whole["wait"] + whole["other_wait"]).sum() / cycles.sum()) if cycles.sum() else 0.0,
        traced=bool(whole["traced"].any()),
    )
    at_least = float(np.median(whole["between"] - whole["other_wait"]))
    most, like, taking = float(cycles.mean()), True, None
    if in_turn:
        taking = 0.0
        times = np.concatenate([table["between"][_alone(table)] for table in used])
    else:
        fed = _fed(used)
        times = _cycles(fed)
        if len(times):
            taking = float(fed["wait"].mean())
            most, like = _compared(used, times)
    # Long steps now and then: the host may run ahead of its accelerator, or validate or save.
    long = float(times[times > 2 * np.median(times)].sum()) if len(times) else 0.0
    if len(times) < few or not like or (long > _UNLIKE * times.sum() and not in_turn):
        found = timing(seconds=most, bound=True, at_least=at_least, steps=len(times))
        return _by_events(found, used)
    return timing(
        seconds=float(times.mean()),
        steps=len(times),
        in_turn=in_turn,
        taking=taking,
        quantiles=quantiles_of(times),
    )


def _by_events(bound: StepTime, tables: Sequence[Table]) -> StepTime:
    """Return the step time that the GPU took, or `bound` where that is unknown."""
    computed = _computed(tables)
    if 2 * len(computed) * len(tables) < bound.all_steps:
        return bound
    ahead = int(bound.at_least < (1 - _UNLIKE) * computed.mean())
    return replace(
        bound,
        seconds=float(computed.mean()),
        bound=False,
        at_least=0.0,
        steps=len(computed),
        by_events=True,
        in_flight=1 + ahead,  # how far the host would run ahead of an accelerator that is fed, is unknown
        taking=0.0,
        quantiles=quantiles_of(computed),
    )


def _computed(tables: Sequence[Table]) -> NDArray[np.float64]:
    """Return the GPU's seconds for each step of which they are known.

    Of several ranks, the least counts: the others' GPUs wait for the one whose batch came last.
    """
    rows = np.concatenate([table[_alone(table) & ~np.isnan(table["computed"])] for table in tables])
    names = rows["epoch"].astype(np.int64) << 32 | rows["step"]
    order = np.lexsort((rows["computed"], names))
    _, first = np.unique(names[order], return_index=True)
    least: NDArray[np.float64] = rows["computed"][order][first]
    return least


def _fed(tables: Sequence[Table]) -> Table:
    """Return the steps of all ranks in which no rank waited for a batch.

    No rank must have waited in the _SETTLE steps before, either. Ranks wait for each other in every step, so
    all must have been fed. Taking a batch that is ready is part of the step.
    """
    chosen, names = [], []
    for table in tables:
        typical = float(np.nanmedian(table["between"]))
        ready = _was_there(table, typical)
        follows = np.r_[False, (np.diff(table["epoch"]) == 0) & (np.diff(table["step"]) == 1)]
        fed = ready & follows
        for _ in range(_SETTLE):  # and so was the step before
            fed[1:] &= fed[:-1]
        fed &= _alone(table)
        chosen.append(table[fed])
        names.append((table["epoch"].astype(np.int64) << 32 | table["step"])[fed])
    everywhere = reduce(np.intersect1d, names)
    return np.concatenate([rows[np.isin(its, everywhere)] for rows, its in zip(chosen, names, strict=True)])


def _was_there(table: Table, typical: float) -> NDArray[np.bool_]:
    """Return True for steps whose batch was ready when it was requested, and was delivered in time."""
    wait, quick = table["wait"], _SMALL * typical
    taking = 2 * float(np.quantile(wait, 0.1))  # a batch that was ready
    unknown = taking if quick < taking <= _DEAR * typical else quick
    ready = (table["ready"] == 1) | (wait <= np.where(table["ready"] == 2, unknown, quick))
    in_time: NDArray[np.bool_] = ready & (wait <= max(typical, 1e-3))
    return in_time


def _compared(tables: Sequence[Table], times: NDArray[np.float64]) -> tuple[float, bool]:
    """Return the mean seconds from batch to batch, and whether the fed steps' `times` are representative."""
    alone = np.concatenate([table[_alone(table)] for table in tables])
    most = float(_cycles(alone).mean())
    return most, bool((1 - _UNLIKE) * alone["between"].mean() < times.mean() < (1 + _UNLIKE) * most)


def less_reading(step: StepTime, reading: float | None, workers: int) -> StepTime:
    """Return the step time of a job that marks its steps, less `reading` seconds of reads (None: unknown).

    Without `workers` the job reads and computes in turn, and computes the rest of the time. With workers the
    step time is a bound if reads are under way for most of the time. A host that runs ahead reads while its
    accelerator computes.
    """
    if step.in_flight > 1:
        return step
    share = min(1.0, (reading or 0.0) / max(1, workers) / step.seconds) if step.seconds else 0.0
    if reading is None or (workers and share > _BUSY):
        return replace(step, bound=True, in_turn=False, taking=None, quantiles=())
    if workers:
        return replace(step, in_turn=False, taking=None)
    left = 1 - share
    quantiles = tuple(left * time for time in step.quantiles)
    return replace(step, seconds=left * step.seconds, waited=share, in_turn=True, quantiles=quantiles)
