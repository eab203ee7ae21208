"""Steps of a recorded job, and what one takes where the loader kept up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import at_least
from emulator.run.accelerator import quantiles_of

SEEN = np.dtype(
    [
        ("loader", "<i4"),  # its number in record.json
        ("rank", "<i4"),
        ("epoch", "<i4"),
        ("step", "<i4"),  # within the epoch
        ("samples", "<i4"),  # in the batch; 0: the batch does not tell
        ("ready", "<i1"),  # 1: the batch was there when it was asked for; 0: it was not; 2: not known
        ("asked", "<f8"),  # seconds since the first batch of the loader was asked for
        ("wait", "<f8"),  # seconds until it was handed over
        ("between", "<f8"),  # seconds from then until the next one was asked for; NaN: none was
        ("cpu", "<f8"),  # CPU seconds of the process, from ask to ask; NaN: not known
        ("traced", "<i1"),  # 1: its calls were traced meanwhile, which takes time
        ("others", "<i4"),  # batches of other DataLoaders that the process took in `between`
        ("other_wait", "<f8"),  # seconds of `between` in which it waited for those
    ]
)
"""One step of the job: a row of profile.parquet."""

Table = NDArray[np.void]
"""Rows of dtype SEEN, one loader's of one rank, in order."""

MOST_STEPS = 2_000_000
"""Steps of a loader that are kept; further ones are counted."""

FEW = 10
"""Fewer steps than these give no step time."""
_SETTLE = 2
"""Steps at the head of a stretch that are left out: an accelerator may still catch up with its queue."""
_SMALL = 0.02
"""Share of a step that taking a batch may cost although it was there."""
_BUSY = 0.5
"""Share of the time in which reads may be under way beside the steps of a job that marks them."""
_DEAR = 0.2
"""The same where nothing tells whether it was there, and the quickest batches cost half of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of a step without waiting for data."""

    seconds: float
    """Mean seconds of a step; for a bound, an upper limit."""
    bound: bool = False
    """True: at too few steps no batch was waited for, or these are unlike others. A step takes `seconds` or
    less."""
    at_least: float = 0.0
    """Of a bound: median seconds between two batches, which a step takes unless it goes on beyond them."""
    steps: int
    """Steps that it is taken from."""
    all_steps: int
    """Steps that were recorded, after the warm-up."""
    waited: float
    """Share of the recorded time in which the job waited for a batch."""
    traced: bool = False
    """True: too few steps came after the tracing of reads: these are longer than the job's."""
    in_flight: int = 1
    """Steps from one wait of the host for its accelerator to the next, during which it runs ahead."""
    in_turn: bool = False
    """True: the job reads and computes in turn, so that a step is all that is between two batches."""
    quantiles: tuple[float, ...] = ()
    """The step times, sorted, in equal parts: mean seconds of each."""

    def __post_init__(self) -> None:
        at_least(0, self, "seconds", "at_least", "steps", "all_steps", "waited")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast steps follow each other, waiting included."""

    seconds: float
    """Mean seconds from batch to batch."""
    waited: float
    """Share of the time in which a batch was waited for."""
    steps: int
    """Steps that it is taken from."""
    samples: float = 0.0
    """Mean samples of a batch; 0: batches do not tell."""


@dataclass(slots=True)
class Track:
    """The steps of one loader as they come in, one rank's."""

    rank: int
    rows: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    """epoch, step, samples, ready, asked, got (nanoseconds of the monotonic clock), used (nanoseconds of the
    process's CPU when it asked)."""
    ends: dict[int, int] = field(default_factory=dict)
    """Epoch -> when the batch after its last one was asked for."""
    sent: dict[int, int] = field(default_factory=dict)
    """Epoch -> batches that workers were asked for."""
    delivered: dict[int, int] = field(default_factory=dict)
    """Epoch -> batches that the job got."""
    samples: int = 0
    read: tuple[int, int] = (0, 0)
    """`batches`, when reads were seen for the last time."""

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

    @property
    def batches(self) -> tuple[int, int]:
        """Batches that were delivered, and that were asked for: those on their way are read, too."""
        asked = sum(
            self.delivered[epoch] if epoch in self.ends else max(self.sent[epoch], self.delivered[epoch])
            for epoch in self.delivered
        )
        return sum(self.delivered.values()), asked

    def table(self, traced_until: int = 0, taken: NDArray[np.int64] | None = None) -> Table:
        """Its rows, in order: dtype SEEN. `traced_until`: nanoseconds of the monotonic clock; `taken`: as
        `batches_taken` gives it, of its process."""
        rows = sorted(self.rows)
        table = np.zeros(len(rows), SEEN)
        if not rows:
            return table
        columns = (np.array(column) for column in zip(*rows, strict=True))
        epoch, step, samples, ready, asked, got, used = columns
        following = np.full(len(rows), -1, np.int64)
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
        table["cpu"] = np.append(np.where(same, np.diff(used) / 1e9, np.nan), np.nan)
        return table


def batches_taken(tracks: Iterable[Track]) -> NDArray[np.int64]:
    """When any of `tracks` asked for a batch, ascending, and how long it was waited for: nanoseconds."""
    rows = sorted((row[4], 0 if row[3] == 1 else row[5] - row[4]) for track in tracks for row in track.rows)
    return np.array(rows, np.int64).reshape(-1, 2)


def joined(tables: Sequence[Table]) -> Table:
    """The steps of loaders that the job made one after another, their epochs counted on."""
    epochs = 0
    for table in tables:
        table["epoch"] += epochs
        epochs = int(table["epoch"].max(initial=epochs - 1)) + 1
    return np.concatenate(tables)


def untraced(table: Table) -> Table:
    """Return the untraced steps if there are enough of them, else all."""
    free = table[table["traced"] == 0]
    return free if np.count_nonzero(~np.isnan(free["between"])) >= FEW else table


def from_batch_to_batch(table: Table) -> float | None:
    """Return the median seconds from one batch to the next, or None for too few."""
    cycles = (table["wait"] + table["between"])[~np.isnan(table["between"])]
    return float(np.median(cycles)) if len(cycles) >= FEW else None


def step_cpu(table: Table) -> float:
    """Return the median CPU seconds of the process per step; 0: not known."""
    known = untraced(table)["cpu"]
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else 0.0


def settled(epoch: NDArray[np.int32], step: NDArray[np.int32], ahead: int) -> NDArray[np.bool_]:
    """Steps after what was read ahead at the epoch's start, or in the second half of a short epoch."""
    _, which, counts = np.unique(epoch, return_inverse=True, return_counts=True)
    found: NDArray[np.bool_] = step >= np.clip(counts // 2, 1, max(1, ahead))[which]
    return found


def pace_of(tables: Sequence[Table], warmup: int, ahead: int, in_flight: int = 1) -> Pace | None:
    """The job's pace over steps that are like those of a replay, from all ranks; None: there are too few.

    Left out are the first `ahead` batches of an epoch, and what `step_time` leaves out for another
    DataLoader's sake. Of a host that runs ahead (`in_flight` above 1) whole periods count, from one wait for
    its accelerator to another: a wait stands for all the steps before it.
    """
    parts: list[Table] = []
    for table in tables:
        used = untraced(table[warmup:])
        used = used[_alone(used) & settled(used["epoch"], used["step"], ahead)]
        parts += _periods(used) if in_flight > 1 else [used]
    rows = np.concatenate(parts) if parts else np.zeros(0, SEEN)
    total = float((rows["wait"] + rows["between"]).sum())
    if len(rows) < FEW or not total:
        return None
    return Pace(
        seconds=total / len(rows),
        waited=float(rows["wait"][rows["ready"] != 1].sum()) / total,
        steps=len(rows),
        samples=float(rows["samples"].mean()),
    )


def _alone(table: Table) -> NDArray[np.bool_]:
    """Steps that are whole and in which the process took no more than usual of another DataLoader."""
    whole: NDArray[np.bool_] = ~np.isnan(table["between"])
    if not whole.any():
        return whole
    typical = float(np.median(table["between"][whole]))
    usual: NDArray[np.bool_] = table["others"] <= np.median(table["others"][whole])
    return whole & usual & (table["other_wait"] <= _SMALL * typical)


_PERIODS = 5
"""Fewer stretches than these between waits of the host for its accelerator tell nothing."""
_UNLIKE = 0.05
"""Steps at which no batch was waited for are no sample of all if they are shorter by so much than all without
their waits, or longer than all with them: a host that runs ahead waits for its accelerator at others."""
_OPPOSED = -0.5
"""Correlation and slope of a wait against the time before it, at most, where both make up one time."""


def _long(table: Table) -> NDArray[np.intp]:
    """Return the places of steps of more than twice the mean: there a host that runs ahead waits."""
    cycle = table["wait"] + table["between"]
    whole = ~np.isnan(cycle)
    if np.count_nonzero(whole) < FEW:
        return np.zeros(0, np.intp)
    return np.flatnonzero(whole & (table["between"] > 2 * float(cycle[whole].mean())))


def _periods(table: Table) -> list[Table]:
    """Return the steps of each epoch from behind its first wait for the accelerator to its last."""
    found = []
    for epoch in np.unique(table["epoch"]):
        one = table[table["epoch"] == epoch]
        long = _long(one)
        if len(long):
            found.append(one[long[0] + 1 : long[-1] + 1])
    return found


def queued(tables: Sequence[Table], warmup: int) -> tuple[float, int] | None:
    """Return seconds of a step on an accelerator that queues steps, and the steps between waits for it.

    Between two waits the host submits steps in little time, or as fast as batches come; then it waits for the
    accelerator to end them. That wait is the shorter, the longer the host took before it: both together are
    the accelerator's time. A host that computes, validates or saves has a long step of its own time instead,
    whatever came before. None: the latter, or it cannot be told.
    """
    found = []
    for table in tables:
        table = untraced(table[warmup:])
        for before, last in pairwise(_long(table).tolist()):
            part = table[before + 1 : last + 1]
            if part["epoch"][0] != table["epoch"][before] or part["epoch"][-1] != part["epoch"][0]:
                continue
            # The accelerator has nothing to do until the first batch has come.
            total = float((part["wait"] + part["between"]).sum() - part["wait"][0])
            wait = float(part["between"][-1])
            if part["other_wait"].any() or wait < 2 * total / len(part):
                continue  # its queue may have run empty
            found.append((len(part), total, wait))
    if len(found) < _PERIODS:
        return None
    steps, totals, waits = np.array(found).T
    # What more steps explain is left out: they make both longer.
    alike = np.stack([np.ones(len(steps)), steps], 1)
    before_it, wait = (part - alike @ np.linalg.lstsq(alike, part)[0] for part in (totals - waits, waits))
    if np.median(steps) < 2 or not wait.std() or not before_it.std():
        return None
    opposed = float(np.corrcoef(before_it, wait)[0, 1])
    slope = opposed * float(wait.std() / before_it.std())
    if max(opposed, slope) > _OPPOSED:
        return None
    return float(totals.sum() / steps.sum()), int(np.median(steps))


def step_time(tables: Sequence[Table], warmup: int, in_turn: bool = False, few: int = FEW) -> StepTime | None:
    """Return what a step takes, from the steps of all ranks after `warmup` of each; None for too few.

    A step counts where no batch was waited for: then what is between two batches is the accelerator's time.
    `in_turn`: the process itself reads and computes in turn, and all that is between two batches is
    computing. Steps that were traced do not count where there are enough others.
    """
    used = [untraced(table[warmup:]) for table in tables]
    used = [table for table in used if not np.isnan(table["between"]).all()]
    whole = np.concatenate([np.zeros(0, SEEN), *(table[~np.isnan(table["between"])] for table in used)])
    cycles = whole["wait"] + whole["between"]
    if len(cycles) < few or not used:
        return None
    found = partial(
        StepTime,
        all_steps=len(cycles),
        waited=float((whole["wait"] + whole["other_wait"]).sum() / cycles.sum()) if cycles.sum() else 0.0,
        traced=bool(whole["traced"].any()),
    )
    if not in_turn and (ahead := queued(tables, warmup)):
        return found(seconds=ahead[0], in_flight=ahead[1], steps=len(cycles))
    most, like = float(cycles.mean()), True
    if in_turn:
        times = np.concatenate([table["between"][_alone(table)] for table in used])
    else:
        times = _fed(used)
        if len(times):
            most, like = _compared(used, times)
    if len(times) < few or not like:
        at_least = float(np.median(whole["between"] - whole["other_wait"]))
        return found(seconds=most, bound=True, at_least=at_least, steps=len(times))
    return found(
        seconds=float(times.mean()), steps=len(times), in_turn=in_turn, quantiles=quantiles_of(times)
    )


def _fed(tables: Sequence[Table]) -> NDArray[np.float64]:
    """Return the seconds from batch to batch of steps at which no rank waited for a batch.

    Nor at the _SETTLE steps before. Ranks wait for each other at every step, so that all must have been fed.
    Taking a batch that is there belongs to the step.
    """
    chosen, names = [], []
    for table in tables:
        typical = float(np.nanmedian(table["between"]))
        ready = _was_there(table, typical)
        begins = np.r_[True, (np.diff(table["epoch"]) != 0) | (np.diff(table["step"]) != 1)]
        length, fed = 0, _alone(table)
        for number in range(len(table)):
            length = 0 if begins[number] or not ready[number] else length + 1
            fed[number] &= length > _SETTLE
        chosen.append((table["wait"] + table["between"])[fed])
        names.append((table["epoch"].astype(np.int64) << 32 | table["step"])[fed])
    everywhere = reduce(np.intersect1d, names)
    return np.concatenate([times[np.isin(its, everywhere)] for times, its in zip(chosen, names, strict=True)])


def _was_there(table: Table, typical: float) -> NDArray[np.bool_]:
    """Return at which steps the batch was there when it was asked for, and was handed over in time."""
    quick = 2 * float(np.quantile(table["wait"], 0.1))  # what taking a batch costs anyway
    quick = max(_SMALL * typical, quick if quick <= _DEAR * typical else 0.0)
    ready = np.where(table["ready"] == 2, table["wait"] <= quick, table["ready"] == 1)
    there: NDArray[np.bool_] = ready | (table["wait"] <= _SMALL * typical)
    return there & (table["wait"] <= max(typical, 1e-3))


def _compared(tables: Sequence[Table], times: NDArray[np.float64]) -> tuple[float, bool]:
    """Return the mean seconds from batch to batch, and whether the fed steps' `times` are like all steps."""
    own = np.concatenate([table[_alone(table)] for table in tables])
    periods = np.concatenate(
        [own[:0], *(part for table in tables for part in _periods(table[_alone(table)]))]
    )
    own = periods if 2 * len(periods) > len(own) else own
    most = float((own["wait"] + own["between"]).mean())
    return most, bool((1 - _UNLIKE) * own["between"].mean() < times.mean() < (1 + _UNLIKE) * most)


def less_reading(step: StepTime, reading: float | None, workers: int) -> StepTime:
    """A step of a job that marks its steps, whose reads take `reading` seconds of one; None: not known.

    Without `workers` the job reads and computes in turn, and the rest is computing. With them a step is a
    bound where reads are under way for most of the time.
    """
    if reading is None:
        return replace(step, bound=True, in_turn=False, quantiles=())
    share = min(1.0, reading / max(1, workers) / step.seconds) if step.seconds else 0.0
    if workers:
        return replace(
            step, bound=share > _BUSY, in_turn=False, quantiles=() if share > _BUSY else step.quantiles
        )
    left = 1 - share
    quantiles = tuple(left * time for time in step.quantiles)
    return replace(step, seconds=left * step.seconds, waited=share, in_turn=True, quantiles=quantiles)
