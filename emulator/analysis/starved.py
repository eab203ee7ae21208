"""Shares of what starved the accelerators of a point, from each rank's account and the step log.

A rank's account says what its waits for batches went into; the log says how long these were, for how long its
process held its accelerator up, and for whom it waited at barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.flags import UNEVEN
from emulator.analysis.parts import WHOLE, Floats, Whole, least
from emulator.analysis.throughput import table
from emulator.record.result import Starved
from emulator.record.schedstat import Stretch
from emulator.record.steps import Steps

CAUSES = ("storage", "link", "cores", "quota", "work", "loader", "steps", "barrier")
"""The shares of `Starved`, in the order of the columns below."""
_STORAGE, _LINK, _CORES, _QUOTA, _WORK, _LOADER, _STEPS, _BARRIER = range(len(CAUSES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """The lost time of one rank by its own account, in seconds."""

    host: str
    reading: Stretch
    """How the waits for batches to be read divide, without the first one. Scaled to the waits in the log."""
    process: Stretch
    """Threads that do not read, including workers', from the first batch to the last: they notice batches and
    hand them over."""
    readers: Stretch
    """Threads that read, in workers only while they make a batch. A batch can be handed over only while none
    of them holds the GIL."""
    stolen: float = 0.0
    """Share of the time on a core that a hypervisor took away (0 to 1): it looks like sleep."""


def starved(
    steps: Steps, ranks: Sequence[RankAccount], over: Whole = WHOLE
) -> tuple[Starved, dict[str, Starved]]:
    """The shares of what starved all ranks of a point together, and those of each host.

    `steps` are those of the point, or of a part of its ranks, `ranks` the accounts in rank order. The first
    step of a rank is left out: it waits for a pipeline that is still empty.
    """
    rows = table(steps, over)
    first = min(1, len(rows) - 1)  # a log of one step keeps it
    later, before = rows[first:], rows[: len(rows) - first]
    waited, late, barrier = later["wait"], later["overshoot"], later["barrier"]
    # A rank that is woken late from a barrier begins its next step late, and holds the others up at the next.
    had_barrier = over.max(before["barrier"].max(axis=1))[:, None] > 0
    woken_late = np.where(had_barrier, np.minimum(before["late"], late), 0.0)
    lost = waited + late
    seconds = (later["compute"] + barrier + lost).sum(axis=0)

    # From here on, arrays have a row for each rank of the point, also for those whose steps are elsewhere.
    hosts = over.all(np.array([rank.host for rank in ranks], "U64"))
    losses = zip(ranks, waited.sum(axis=0), late.sum(axis=0), woken_late.sum(axis=0), strict=True)
    columns = over.all(np.array([_own(*rank_losses) for rank_losses in losses]))
    own, asleep = columns[:, :-1].copy(), columns[:, -1]
    numbers = over.all(np.unique(steps["rank"]))
    mine = np.searchsorted(numbers, np.unique(steps["rank"]))
    rank_seconds = over.all(seconds)
    _move_to_link(own, hosts, rank_seconds)
    straggler = _straggler(own, asleep, rank_seconds)

    total = own[mine] + _barriers(own, mine, lost, barrier, later["compute"], over)
    names = list(dict.fromkeys(hosts.tolist()))
    by_host = over.sum(np.array([total[hosts[mine] == name].sum(axis=0) for name in names]))
    shares = _shares(by_host.sum(axis=0))
    if straggler is not None:
        shares = replace(shares, straggler=straggler, straggler_host=str(hosts[straggler]))
    return shares, {name: _shares(row) for name, row in zip(names, by_host, strict=True)}


def _own(rank: RankAccount, waited: float, late: float, woken_late: float) -> Floats:
    """Seconds that a rank lost by itself, by cause, shape (causes + 1,); `woken_late` is a part of `late`.

    The last element is the part of cores and quota in which the process slept: it is taken for a wait for the
    GIL while the GIL's holder had no core.
    """
    reading, process, readers = rank.reading.lasting(waited), rank.process, rank.readers
    stolen = min(reading.storage, reading.work * rank.stolen / max(1e-9, 1 - rank.stolen))

    # While its accelerator was held up, the process was ready to run, worked, or slept.
    ready = min(late, process.cores + process.quota)
    quota = ready * process.quota / max(1e-9, process.cores + process.quota)
    work = min(late - ready, process.work)
    # It slept at the barrier, or for the GIL. The GIL's holder runs, or has lost its core and keeps the GIL.
    barrier = min(late - ready - work, woken_late)
    gil = late - ready - work - barrier
    gil_per_second = gil / max(1e-9, readers.cores + readers.quota + readers.work)
    gil_cores, gil_quota = gil_per_second * readers.cores, gil_per_second * readers.quota

    seconds = np.zeros(len(CAUSES) + 1)
    seconds[_STORAGE] = reading.storage - stolen
    seconds[_CORES] = reading.cores + stolen + ready - quota + gil_cores
    seconds[_QUOTA] = reading.quota + quota + gil_quota
    seconds[_WORK] = reading.work + work
    seconds[_LOADER] = reading.loader + gil - gil_cores - gil_quota
    seconds[_BARRIER] = barrier
    seconds[-1] = gil_cores + gil_quota
    return seconds


def _move_to_link(own: Floats, hosts: NDArray[np.str_], seconds: Floats) -> None:
    """Count as `link` the time that one host's ranks waited for storage longer than the median host's.

    Hosts that lost much time to their own CPU or loader asked the storage for less, so they are left out.
    """
    storage_share: dict[str, float] = {}
    for name in dict.fromkeys(hosts.tolist()):
        lost = own[hosts == name] / seconds[hosts == name, None]
        storage = float(lost[:, _STORAGE].mean())
        client = float(lost.sum(axis=1).mean()) - storage
        if client < UNEVEN:
            storage_share[name] = storage
    if len(storage_share) < 2:
        return
    median = sorted(storage_share.values())[(len(storage_share) - 1) // 2]
    for name, share in storage_share.items():
        if share - median > UNEVEN:
            extra = own[hosts == name, _STORAGE] * (1 - median / share)
            own[hosts == name, _STORAGE] -= extra
            own[hosts == name, _LINK] += extra


def _straggler(own: Floats, asleep: Floats, seconds: Floats) -> int | None:
    """The rank that lost twice as much of its time as any other, mostly asleep for no known reason; or None.

    Waits for the storage or a core are known reasons, which one rank of many may have by bad luck. Seconds
    `asleep` that were taken for waits for the GIL are none: readers without cores would delay others, too.
    """
    share = own.sum(axis=1) / np.maximum(1e-12, seconds)
    worst = int(share.argmax())
    others = np.delete(share, worst).max(initial=0.0)
    if len(share) < 2 or share[worst] <= max(2 * others, others + UNEVEN):
        return None
    unexplained = own[worst, _LOADER] + asleep[worst]
    return worst if unexplained > own[worst].sum() / 2 else None


def _barriers(
    own: Floats, mine: NDArray[np.intp], lost: Floats, barrier: Floats, compute: Floats, over: Whole
) -> Floats:
    """Seconds that the ranks `mine` waited at barriers, by what held up the rank that came last.

    Shape (ranks, causes). What that rank neither lost by itself nor computed for longer is the barrier's own.
    `own` has a row for each rank of the point; `lost`, `barrier` and `compute` have a column for each of
    `mine`.
    """
    last, (lost_by_last, compute_of_last) = last_at(barrier, mine, np.stack([lost, compute]), over)
    explained = np.minimum(1.0, lost_by_last / np.maximum(1e-12, over.max(barrier.max(axis=1))))
    shares = own / np.maximum(1e-12, own.sum(axis=1, keepdims=True))
    seconds = (barrier * explained[:, None]).T @ shares[last]
    unexplained = barrier * (1 - explained)[:, None]
    longer_steps = np.clip(compute_of_last[:, None] - compute, 0.0, unexplained)
    seconds[:, _STEPS] += longer_steps.sum(axis=0)
    seconds[:, _BARRIER] += barrier.sum(axis=0) - seconds.sum(axis=1)
    return np.asarray(seconds)


def last_at(
    barrier: Floats, mine: NDArray[np.intp], columns: Floats, over: Whole = WHOLE
) -> tuple[NDArray[np.intp], Floats]:
    """The rank that came last to each barrier, and its row of each of `columns`, shape (columns, barriers).

    It is the first of those that waited least: `barrier` has a column for each of the ranks `mine`, infinite
    where it was not there.
    """
    shortest = least(over, barrier.min(axis=1))
    came = np.where(barrier == shortest[:, None], mine, np.inf)
    last = least(over, came.min(axis=1))
    of_last = np.where(came == last[:, None], columns, -np.inf).max(axis=2)
    return last.astype(np.intp), over.max(of_last)


def _shares(seconds: Floats) -> Starved:
    seconds = np.maximum(0.0, seconds)  # differences of sums that are equal
    total = float(seconds.sum())
    if total <= 0:
        return Starved(seconds=0.0)
    return Starved(seconds=total, **dict(zip(CAUSES, (seconds / total).tolist(), strict=True)))
