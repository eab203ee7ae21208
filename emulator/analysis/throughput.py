"""Throughput and accelerator utilization of a point's steps; tests whether a series has settled.

For one rank, over its steps while all were busy:

    T  = sum of wait + compute + overshoot + barrier      seconds
    X  = samples / T                                      samples/s consumed, summed over ranks
    AU = nominal compute / T                              averaged over ranks, first steps of epochs left out

as MLPerf Storage defines AU (rules v2.0). Compute is nominal, never measured: a rank that wakes up late must
not look busy.

Some batches that are consumed in a stretch of time were read before it. So the throughput of a point is the
lesser of two rates (`sustained`): what was consumed, which cannot exceed what the accelerators ask for, and
what arrived, which cannot exceed what the storage gives.

Steps may be those of a part of a point's ranks: then `over` knows the other parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.parts import WHOLE, Floats, Whole, least
from emulator.record.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of all ranks of a point together."""

    samples_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput(Rates):
    """Rates, and how well they keep the accelerators busy."""

    au: float
    """Accelerator utilization, 0 to 1."""


def durations(steps: Steps) -> Floats:
    """Seconds of each step, shape (steps,): wait + compute + overshoot + barrier."""
    total: Floats = steps["wait"] + steps["compute"] + steps["overshoot"] + steps["barrier"]
    return total


def steady(steps: Steps, over: Whole = WHOLE) -> Steps:
    """The steps that AU is taken over: those of `busy` without the first step of each epoch.

    MLPerf Storage leaves that step out of compute and of time (DLIO's statscounter), since it waits for a
    pipeline that is still empty. Where epochs have no other step, as `busy`.
    """
    return _chosen(steps, steps["step"] > 0, over)


def busy(steps: Steps, over: Whole = WHOLE) -> Steps:
    """The steps of a point while all of its ranks were busy: X is taken over these, borders of epochs too.

    Without the first step of each rank, and without what slower ranks did after the first rank had ended,
    when they had the storage for themselves. A rank that would have no step left keeps its later steps, or
    its only one.
    """
    return _chosen(steps, later_steps(steps), over)


def later_steps(steps: Steps) -> NDArray[np.bool_]:
    """True for steps that are not the first of their rank."""
    later: NDArray[np.bool_] = (steps["epoch"] > 0) | (steps["step"] > 0)
    return later


def _chosen(steps: Steps, wanted: NDArray[np.bool_], over: Whole) -> Steps:
    """The `wanted` steps that ended before the first rank did; of a rank without any, its next best."""
    ends = steps["begin"] + durations(steps)
    ranks, rank = np.unique(steps["rank"], return_inverse=True)
    last = np.zeros(len(ranks))
    np.maximum.at(last, rank, ends)
    together = ends <= least(over, last.min(keepdims=True, initial=np.inf))[0] + 1e-9
    later = later_steps(steps)
    # Of each rank, the steps of its lowest class: wanted (0); else later than the first, while all ranks were
    # busy (1); else later than the first (2); else the first (3).
    class_of_step = np.select([wanted & together, later & together, later], [0, 1, 2], 3)
    lowest = np.full(len(ranks), 3)
    np.minimum.at(lowest, rank, class_of_step)
    chosen: Steps = steps[class_of_step == lowest[rank]]
    return chosen


def table(steps: Steps, over: Whole = WHOLE) -> Steps:
    """The steps of each rank, shape (steps, ranks): as many as all ranks have.

    Of a run that was cut off, the later steps of some ranks are left out.
    """
    ordered = steps[np.argsort(steps["rank"], kind="stable")]
    counts = np.unique(ordered["rank"], return_counts=True)[1]
    first = np.cumsum(counts) - counts
    shortest = int(least(over, np.array([counts.min()], np.float64))[0])
    rows: Steps = ordered[first + np.arange(shortest)[:, None]]
    return rows


def throughput(steps: Steps, over: Whole = WHOLE) -> Throughput:
    """Throughput and AU over `steps` of one point, by the formulas at the top of this module."""
    ranks, rank = np.unique(steps["rank"], return_inverse=True)
    seconds = np.bincount(rank, weights=durations(steps))
    rates = [
        (np.bincount(rank, weights=steps[name]) / seconds).sum() for name in ("samples", "bytes", "compute")
    ]
    samples, size, compute, count = over.sum(np.array([*rates, len(ranks)])).tolist()
    return Throughput(samples_per_second=samples, bytes_per_second=size, au=compute / count if count else 0.0)


def arrived(steps: Steps, over: Whole = WHOLE) -> Rates | None:
    """The rate at which bytes arrived, from when all ranks were reading until one had read everything.

    Where ranks never read together, it is from the first one's beginning to the last one's end. A share of a
    batch counts if its reading, from `requested` to `arrived`, reaches out of that time. The share is as if
    ranks that read at the same time got equal parts of the storage. None: the log lacks the moments.
    """
    read = steps[steps["bytes"] > 0]
    known, unknown = over.sum(np.array([len(read), np.isnan(read["arrived"]).sum()], np.float64))
    if not known or unknown:
        return None
    ranks, rank = np.unique(read["rank"], return_inverse=True)
    start = np.where(np.isnan(read["requested"]), read["arrived"], read["requested"])
    first, last = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
    np.minimum.at(first, rank, start)
    np.maximum.at(last, rank, read["arrived"])
    first, last = over.all(np.stack([first, last], axis=1)).T
    begin, end = first.max(), last.min()
    if end <= begin:  # one had read everything before another began
        begin, end = first.min(), last.max()
    if end <= begin:
        return None
    moments = np.unique([*first, *last])
    reading = np.searchsorted(np.sort(first), moments[:-1], "right")
    reading -= np.searchsorted(np.sort(last), moments[:-1], "right")
    # What a rank that always reads has received up to each moment, of a storage that gives 1 per second.
    part = np.append(0.0, np.cumsum(np.diff(moments) / np.maximum(reading, 1)))

    def received(moment: Floats) -> Floats:
        return np.asarray(np.interp(moment, moments, part))

    whole = np.maximum(received(read["arrived"]) - received(start), 1e-12)
    inside = received(np.minimum(read["arrived"], end)) - received(np.maximum(start, begin))
    share = np.where(
        read["arrived"] > start, np.clip(inside / whole, 0.0, 1.0), (begin < start) & (start <= end)
    )
    samples, size = over.sum(np.array([share @ read["samples"], share @ read["bytes"]]))
    return Rates(
        samples_per_second=float(samples / (end - begin)), bytes_per_second=float(size / (end - begin))
    )


def sustained(steps: Steps, consumed: Rates, over: Whole = WHOLE) -> Rates:
    """The throughput of a point: what was `consumed` while all ranks were busy, or what arrived if that is
    less."""
    rates = arrived(steps, over)
    return rates if rates and rates.bytes_per_second < consumed.bytes_per_second else consumed


def share_of_time(steps: Steps, column: str, over: Whole = WHOLE) -> float:
    """Share of the ranks' loop time that `column` (wait, compute, overshoot or barrier) takes."""
    own, total = over.sum(np.array([steps[column].sum(), durations(steps).sum()]))
    return float(own / total) if total > 0 else 0.0


def loop_seconds(steps: Steps, over: Whole = WHOLE) -> float:
    """Wall seconds of the loop: from the start of the point to the end of the last step of any rank."""
    return float(over.max(np.max(steps["begin"] + durations(steps), keepdims=True, initial=0.0))[0])


@dataclass(frozen=True, slots=True)
class Series:
    """Rates in equal spans of the time in which all ranks were busy."""

    begin: float
    """Seconds since the start of the point."""
    end: float
    rates: Floats
    """Samples/s or bytes/s of all ranks; empty where they were never busy together."""


def rate_series(steps: Steps, bins: int = 40, over: Whole = WHOLE) -> Series:
    """Samples/s that all ranks consumed, in `bins` equal spans of the time in which each had steps.

    A step's samples are spread evenly over its duration, so that steps which cross a border count for
    both sides. Where one rank began later or ended earlier than another, nothing rose or fell.
    """
    return _series(steps["rank"], steps["begin"], durations(steps), steps["samples"], bins, over)


def read_series(steps: Steps, bins: int = 40, over: Whole = WHOLE) -> Series:
    """Bytes/s that all ranks read, in `bins` equal spans of the time in which each was reading.

    A batch counts from when its reading began until it had arrived, not when it was consumed: batches that
    were read ahead are consumed faster than storage delivers. Where the log lacks these moments, a batch
    counts for its step.
    """
    read = steps[steps["bytes"] > 0]
    begin = np.where(np.isnan(read["requested"]), read["arrived"], read["requested"])
    length = read["arrived"] - begin
    if over.sum(np.array([np.isnan(read["arrived"]).sum()], np.float64))[0]:
        read = steps[later_steps(steps)]
        begin, length = read["begin"], durations(read)
    return _series(read["rank"], begin, length, read["bytes"], bins, over)


def _series(
    rank: NDArray[Any], begin: Floats, length: Floats, amount: NDArray[Any], bins: int, over: Whole
) -> Series:
    """The rate of `amount`, each spread over `length` seconds from `begin`, while all ranks were busy."""
    length, amount = np.maximum(length, 1e-9), amount.astype(np.float64)
    ranks, place = np.unique(rank, return_inverse=True)
    first, last = np.full(len(ranks), np.inf), np.zeros(len(ranks))
    np.minimum.at(first, place, begin)
    np.maximum.at(last, place, begin + length)
    latest, earliest = over.max(np.array([first.max(initial=-np.inf), -last.min(initial=np.inf)]))
    start, end = latest, -earliest
    if not start < end < np.inf:
        return Series(0.0, 0.0, np.zeros(0))
    edges = np.linspace(start, end, bins + 1)
    # Delivered up to each edge: the sum of the shares that came before it.
    before = over.sum(np.array([np.clip((edge - begin) / length, 0, 1) @ amount for edge in edges]))
    return Series(float(start), float(end), np.diff(before) / np.diff(edges))
