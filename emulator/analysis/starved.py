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
    """Waits until batches had been read, without the first one. Only proportions matter; rescaled later."""
    process: Stretch
    """Threads that do not read, including workers', from the first batch to the last: they notice batches and
    hand them over."""
    readers: Stretch
    """Threads that read; in workers only while they make a batch. A batch is handed over between two of their
    holds of the GIL."""
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
    first = min(1, len(rows) - 1)  # that one where there is no other
    later, before = rows[first:], rows[: len(rows) - first]
    waited, late, barrier = later["wait"], later["overshoot"], later["barrier"]
    # A rank that is woken late from a barrier holds its next step up, and the others at the next barrier.
    gates = over.max(before["barrier"].max(axis=1))[:, None] > 0
    woken = np.where(gates, np.minimum(before["late"], late), 0.0)
    lost = waited + late
    seconds = (later["compute"] + barrier + lost).sum(axis=0)
    # From here on some numbers of each rank of the point: (all ranks, causes).
    hosts = over.all(np.array([rank.host for rank in ranks], "U64"))
    mine = zip(ranks, *(each.sum(axis=0) for each in (waited, late, woken)), strict=True)
    *by_cause, guessed = over.all(np.array([_own(*rank) for rank in mine])).T
    own = np.array(by_cause).T
    numbers = over.all(np.unique(steps["rank"]))
    places = np.searchsorted(numbers, np.unique(steps["rank"]))
    everywhere = over.all(seconds)
    _move_to_link(own, hosts, everywhere)
    alone = _straggler(own, guessed, everywhere)
    total = own[places] + _barriers(own, places, lost, barrier, later["compute"], over)
    names = list(dict.fromkeys(hosts.tolist()))
    by_host = over.sum(np.array([total[hosts[places] == name].sum(axis=0) for name in names]))
    found = _shares(by_host.sum(axis=0))
    if alone is not None:
        found = replace(found, straggler=alone, straggler_host=str(hosts[alone]))
    return found, dict(zip(names, map(_shares, by_host), strict=True))


def _own(rank: RankAccount, waited: float, late: float, woken: float) -> Floats:
    """Seconds that a rank lost by itself, by cause, shape (causes + 1,); `woken` of `late` after barriers.

    The last one is the part of cores and quota that was sleep, and is taken for a wait for the GIL.
    """
    reading, process = rank.reading.lasting(waited), rank.process
    stolen = min(reading.storage, reading.work * rank.stolen / max(1e-9, 1 - rank.stolen))
    ready = min(late, process.cores + process.quota)
    quota = ready * process.quota / max(1e-9, process.cores + process.quota)
    work = min(late - ready, process.work)
    # The rest is sleep: at the barrier until it lets go, or for the GIL, whose holder runs, or has lost its
    # core and keeps the GIL all the same.
    barrier = min(late - ready - work, woken)
    asleep = late - ready - work - barrier
    holding = asleep / max(1e-9, rank.readers.cores + rank.readers.quota + rank.readers.work)
    guessed = holding * (rank.readers.cores + rank.readers.quota)
    found = np.zeros(len(CAUSES) + 1)
    found[_STORAGE] = reading.storage - stolen
    found[_CORES] = reading.cores + stolen + ready - quota + holding * rank.readers.cores
    found[_QUOTA] = reading.quota + quota + holding * rank.readers.quota
    found[_WORK] = reading.work + work
    found[_LOADER] = reading.loader + asleep - guessed
    found[_BARRIER] = barrier
    found[-1] = guessed
    return found


def _move_to_link(own: Floats, hosts: NDArray[np.str_], seconds: Floats) -> None:
    """Call `link` what storage kept one host's ranks waiting for longer than those of the median host.

    A host that the client's side held up asked the storage for less: it is not compared with.
    """
    lost = {name: own[hosts == name] / seconds[hosts == name, None] for name in dict.fromkeys(hosts.tolist())}
    share = {
        name: float(of_host[:, _STORAGE].mean())
        for name, of_host in lost.items()
        if of_host.sum(axis=1).mean() - of_host[:, _STORAGE].mean() < UNEVEN
    }
    if len(share) < 2:
        return
    median = sorted(share.values())[(len(share) - 1) // 2]
    for name in share:
        if share[name] - median > UNEVEN:
            extra = own[hosts == name, _STORAGE] * (1 - median / share[name])
            own[hosts == name, _STORAGE] -= extra
            own[hosts == name, _LINK] += extra


def _straggler(own: Floats, guessed: Floats, seconds: Floats) -> int | None:
    """The rank that lost twice as much of its time as any other, mostly asleep for no reason; or None.

    Waiting for the storage, or for a core, is not that: one of many may have bad luck. Sleep that was
    `guessed` to be a wait for the GIL is: its readers would hold up the other ranks as well.
    """
    share = own.sum(axis=1) / np.maximum(1e-12, seconds)
    worst = int(share.argmax())
    others = np.delete(share, worst).max(initial=0.0)
    late = len(share) > 1 and share[worst] > max(2 * others, others + UNEVEN)
    return worst if late and own[worst, _LOADER] + guessed[worst] > own[worst].sum() / 2 else None


def _barriers(
    own: Floats, mine: NDArray[np.intp], lost: Floats, barrier: Floats, compute: Floats, over: Whole
) -> Floats:
    """Seconds that the ranks `mine` waited at barriers, by what held up the rank that came last.

    Shape (ranks, causes). What that rank had neither lost itself nor computed for longer is the barrier's
    own. `own` is of all ranks, `lost`, `barrier` and `compute` have a column for each of `mine`.
    """
    last, (itself, longest) = last_at(barrier, mine, np.stack([lost, compute]), over)
    held = np.minimum(1.0, itself / np.maximum(1e-12, over.max(barrier.max(axis=1))))
    shares = own / np.maximum(1e-12, own.sum(axis=1, keepdims=True))
    found = (barrier * held[:, None]).T @ shares[last]
    rest = barrier * (1 - held)[:, None]
    longer = np.clip(longest[:, None] - compute, 0.0, rest)
    found[:, _STEPS] += longer.sum(axis=0)
    found[:, _BARRIER] += barrier.sum(axis=0) - found.sum(axis=1)
    return np.asarray(found)


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
