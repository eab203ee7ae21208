"""The point that a step log shows: all figures that follow from rows alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from emulator.analysis.flags import READ_BEFORE, au_measured
from emulator.analysis.parts import WHOLE, Floats, Whole, least
from emulator.analysis.starved import last_at
from emulator.analysis.throughput import (
    busy,
    later_steps,
    loop_seconds,
    read_series,
    share_of_time,
    steady,
    sustained,
    throughput,
)
from emulator.config.workload import Workload
from emulator.order import plan_for
from emulator.record.result import Course, Point
from emulator.record.steps import Steps

Sync = Literal["step", "epoch", "none"]

PARTS = ("compute", "wait", "barrier", "overshoot")

SPANS = 40
"""Spans of a course, at most."""


def point_of(
    workload: Workload, samples: int, ranks: int, rows: Steps, over: Whole = WHOLE, **more: Any
) -> Point:
    """The point that the step log `rows` of `ranks` ranks shows; `more` are fields that it does not.

    `samples` are those of the dataset. `rows` may be those of a part of the ranks: `over` knows the others.
    """
    sync = workload.training.sync
    plan = plan_for(workload, samples, ranks)
    consumed, whole = throughput(busy(rows, over), over), throughput(rows, over)
    lasting = sustained(rows, consumed, over)
    ideal = ranks * workload.ideal_samples_per_second
    own_sums = np.array([len(rows), rows["samples"].sum(), rows["bytes"].sum()], np.float64)
    steps, samples_read, bytes_read = over.sum(own_sums).tolist()
    epochs = over.max(np.array([len(np.unique(rows["epoch"]))], np.float64))
    point = Point(
        ranks=ranks,
        hosts=more.pop("hosts", ()),
        epochs=int(epochs[0]),
        steps=int(steps) // ranks,
        samples=int(samples_read),
        bytes=int(bytes_read),
        left_out=plan.left_out,
        seconds=loop_seconds(rows, over),
        samples_per_second=lasting.samples_per_second,
        bytes_per_second=lasting.bytes_per_second,
        ideal_samples_per_second=ideal,
        x_ideal=lasting.samples_per_second / ideal,
        au=throughput(steady(rows, over), over).au,
        x_ideal_first=whole.samples_per_second / ideal,
        au_first=whole.au,
        wait_share=share_of_time(rows, "wait", over),
        barrier_share=share_of_time(rows, "barrier", over),
        overshoot_share=share_of_time(rows, "overshoot", over),
        **more,
    )
    kept_up = lasting.bytes_per_second >= (1 - READ_BEFORE) * consumed.bytes_per_second
    return with_course(measured_au(point, workload, kept_up), rows, sync, over)


def measured_au(point: Point, workload: Workload, kept_up: bool = True) -> Point:
    """`point` with NaN for AU where batches that were read before would decide it.

    These are runs of few steps beside the batches of read-ahead, and runs whose data did not arrive as fast
    as they were consumed (not `kept_up`): on storage with 64 % of the rate, 8 batches last for 22 steps.
    """
    if kept_up and au_measured(point.steps, workload):
        return point
    return replace(point, au=math.nan)


def show_au(point: Point) -> str:
    return "AU not measured" if math.isnan(point.au) else f"AU {100 * point.au:.1f} %"


def with_course(point: Point, rows: Steps, sync: Sync, over: Whole = WHOLE) -> Point:
    """`point` with what figures show of its steps, so that they need not be read again."""
    steps = np.unique(rows["rank"][later_steps(rows)], return_counts=True)[1]
    ranks = over.sum(np.array([len(steps)], np.float64))[0]  # with more than a first step
    if not ranks:
        return replace(point, course=None, step={})
    fewest = least(over, steps.min(keepdims=True, initial=2 * SPANS).astype(np.float64))[0]
    series = read_series(rows, int(max(1, min(SPANS, fewest // 2))), over)
    course = None
    if len(series.rates) > 2:
        rates = series.rates * point.ranks / ranks
        course = Course(begin=series.begin, end=series.end, bytes_per_second=tuple(rates.tolist()))
    step = dict(zip(PARTS, mean_step(rows, sync, over).tolist(), strict=True))
    return replace(point, course=course, step=step)


def mean_step(rows: Steps, sync: Sync, over: Whole = WHOLE) -> Floats:
    """Mean seconds of the PARTS of a step; 0 without steps.

    Time at a barrier counts as what the rank that came last did longer than others. Between two barriers all
    ranks begin together; a rank waits as long as the last one is busier. That excess is shared out over wait,
    compute and overshoot as the last one's exceed this rank's.
    """
    sums = np.array([rows[part].sum() for part in PARTS])
    count, waited = over.sum(np.array([float(len(rows)), sums[PARTS.index("barrier")]]))
    if sync in ("step", "epoch") and waited:
        sums += over_barriers(rows, sync, over)
    total = over.sum(sums)
    return total / count if count else total


def over_barriers(rows: Steps, sync: Sync, over: Whole) -> Floats:
    """Change of the sums of PARTS, in seconds, when time at barriers counts as what the last rank did."""
    ranks, rank = np.unique(rows["rank"], return_inverse=True)
    stretch = rows["epoch"].astype(np.int64)
    if sync == "step":  # the number of the step, counted over all epochs
        order = np.argsort(rank, kind="stable")
        counts = np.bincount(rank)
        stretch = np.empty(len(rows), np.int64)
        stretch[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    # A stretch ends at a barrier. A cell holds what one rank did in one stretch.
    length = int(over.max(stretch.max(keepdims=True, initial=-1).astype(np.float64))[0]) + 1
    cell = stretch * len(ranks) + rank
    shape = (length, len(ranks))

    def seconds(part: str) -> Floats:
        sums = np.bincount(cell, weights=rows[part], minlength=length * len(ranks))
        return sums.astype(np.float64).reshape(shape)

    busy = np.stack([seconds("compute"), seconds("wait"), seconds("overshoot")])
    barrier = seconds("barrier")
    present = np.bincount(cell, minlength=length * len(ranks)).reshape(shape) > 0
    _, last = last_at(np.where(present, barrier, np.inf), ranks, busy, over)
    excess = np.maximum(0.0, last[:, :, None] - busy) * present
    total = excess.sum(axis=0)
    gained = np.divide(excess, total, out=np.zeros_like(excess), where=total > 0) * barrier
    compute, wait, overshoot = gained.sum(axis=(1, 2))
    return np.array([compute, wait, -gained.sum(), overshoot])
