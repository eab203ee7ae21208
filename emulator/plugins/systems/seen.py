"""Reduce measured counts for a fit: the rate over all steps, and batches to simulate.

The rows of a point are never all in memory. Two passes over them, in any order, make sums for each rank: the
first finds when the first rank ended, the second what was consumed until then. The batches of the first steps
(PLAYED) are simulated, of whole epochs if there are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.analysis.evidence import held, usable
from emulator.analysis.flags import invalid
from emulator.analysis.parts import Floats
from emulator.analysis.throughput import KINDS_OF_STEPS, durations, kind_of_step, later_steps
from emulator.config.workload import Workload, stored_workload
from emulator.errors import SpecError
from emulator.order import plan_for
from emulator.plugins.systems.predict import batch_bytes, on_paper, rank_plan_of
from emulator.plugins.systems.scene import Bools, gates_of
from emulator.plugins.systems.system import Evidence, System
from emulator.record.result import Point, RunResult
from emulator.record.steps import Steps

PLAYED, LEAST_STEPS = 200_000, 200
"""Most simulated batches of a count, and fewest simulated steps of each rank. 500,000 batches of each of two
counts took a minute longer; the mean size of 200,000 is that of all within 0.04 %."""
PUBLISHED_STEPS = 16
"""Simulated steps of each rank of an imported count."""
SLOW_HOST = 0.10
"""Largest difference between hosts in the share of time that accelerators are busy."""
DISTURBED = 0.05
"""Share of time that waits for a core from which a run is not limited by the storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen(Evidence):
    """One measured count, with batches to simulate."""

    size: Floats
    """Bytes of the batches that were read, shape (steps, ranks)."""
    compute: Floats
    """Nominal seconds of compute of the steps, shape (steps, ranks)."""
    gates: Bools
    """True if all ranks waited for each other after the step."""
    first_wait: float = 0.0
    """Mean seconds that ranks waited for their first batch."""
    drift: float = 0.0
    """ln of the throughput of the second half of the steps over that of the first."""
    epoch: int = 0
    """Steps per epoch if each epoch started with nothing prefetched; 0 if reading continued across epochs."""
    samples: int | None = None
    """Number of samples of the dataset; None if unknown, for as many as were read."""


def described(points: Sequence[Point]) -> list[Point]:
    """Return the points that a system can describe, in their order.

    They are those of a knee, and those limited by latency with few readers or by the links of all hosts.
    """
    # A knee counts these two as limits of the client, but a system has parameters for them. It has none for
    # waits for a core. Points are excluded by their schedstat, never by their residuals.
    used = usable(points)

    def waited(point: Point) -> bool:
        lost = point.starved
        return held(point) and lost is not None and lost.storage + lost.link > 0.5 and not invalid(point)

    return [point for point in points if (point in used or waited(point)) and not _disturbed(point)]


def _disturbed(point: Point) -> bool:
    lost = point.starved
    short = (lost.cores + lost.quota) * lost.seconds if lost else 0.0
    return short > DISTURBED * point.ranks * point.seconds


def published(workload: Workload, point: Point) -> Seen | None:
    """Return an imported point with drawn batches, because the bytes of its steps are not published.

    None if no AU could be recomputed.
    """
    if not point.x_ideal > 0:  # or NaN
        return None
    efficiency = min(1.0, point.x_ideal)
    paper = on_paper(workload, System(), point.ranks, steps=PUBLISHED_STEPS)
    size = batch_bytes(rank_plan_of(paper, point.ranks, 0), paper.sizes)
    return Seen(
        ranks=point.ranks,
        hosts=len(point.hosts) or 1,
        rate=efficiency * point.ranks * workload.demand,
        efficiency=efficiency,
        size=size,
        compute=np.full(size.shape, workload.accelerator.step_seconds),
        gates=np.full(len(size), workload.training.sync == "step"),
    )


def seen_in(result: RunResult, blocks: Callable[[int], Iterable[Steps]]) -> list[Seen]:
    """Return the measured counts of a result; `blocks` yields the rows of a point, given its number.

    Interrupted points are left out, and those that no system describes. Raises SpecError.
    """
    if result.kind == "imported":
        points = [published(stored_workload(result.workload), point) for point in described(result.points)]
        if not any(points):
            raise SpecError("the result has no point whose AU could be recomputed", "give another one")
        return [point for point in points if point]
    if result.kind not in ("run", "sweep", "simulated"):
        raise SpecError(f"a {result.kind} has no training steps", "give a result of feedrate run or sweep")
    workload, used = stored_workload(result.workload), described(result.points)
    samples = int(result.dataset.get("samples", result.dataset.get("files", 0)))
    found = []
    for number, point in enumerate(result.points):
        if point not in used or not (extent := _extent(blocks(number), point)):
            continue
        epoch = plan_for(workload, samples, point.ranks).steps
        refilled = workload.access.refill != "never"
        most = min(point.steps, max(LEAST_STEPS, PLAYED // point.ranks))
        rows = _Reduced(point, extent, most - most % epoch if refilled and most > epoch > 0 else most)
        for block in blocks(number):
            rows.add(block)
        ends_epoch = np.arange(1, len(rows.size) + 1) % max(1, epoch) == 0
        ends_epoch[-1] = True
        found.append(
            Seen(
                ranks=point.ranks,
                hosts=len(point.hosts) or 1,
                # Like the engine's, this rate includes batches prefetched from the first step on, which the
                # point's own throughput excludes.
                rate=rows.rate("bytes"),
                efficiency=rows.rate("samples") / point.ideal_samples_per_second,
                size=rows.size,
                compute=rows.compute,
                gates=gates_of(workload.training.sync, ends_epoch),
                first_wait=rows.first_wait / point.ranks,
                drift=rows.drift(),
                epoch=epoch if refilled else 0,
                samples=samples,
            )
        )
    _require_equal_hosts(used)
    if not found:
        raise SpecError("the result has no complete point", "run it to its end, or give another OUT")
    return found


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bounds in time of a point's rows."""

    epoch: int
    """Steps of the longest epoch."""
    first_end: float
    """Time at which the first rank ended, in seconds."""
    middle: float
    """Time half-way between the end of the first step that counts and `first_end`, in seconds."""


def _extent(blocks: Iterable[Steps], point: Point) -> _Extent | None:
    """Return the extent of a point's rows; None if steps are missing."""
    last, count, epoch, earliest = np.zeros(point.ranks), 0, 0, math.inf
    for rows in blocks:
        if ((rows["rank"] < 0) | (rows["rank"] >= point.ranks)).any():
            return None
        ends = rows["begin"] + durations(rows)
        np.maximum.at(last, rows["rank"], ends)
        count, epoch = count + len(rows), max(epoch, 1 + int(rows["step"].max(initial=0)))
        earliest = min(earliest, ends[later_steps(rows)].min(initial=math.inf))
    if not count or count != point.ranks * point.steps:
        return None
    return _Extent(epoch, float(last.min()), float(earliest + last.min()) / 2)


class _Reduced:
    """Sums of each rank of a point, and the batches of its first steps; rows are added block by block."""

    def __init__(self, point: Point, extent: _Extent, steps: int) -> None:
        self._extent, self._ranks = extent, point.ranks
        # Sums by column, half of the time, kind of the step, and rank.
        self._shape = 2, KINDS_OF_STEPS, point.ranks
        self._sums = {name: np.zeros(self._shape) for name in ("seconds", "samples", "bytes")}
        self.size, self.compute = np.ones((steps, point.ranks)), np.zeros((steps, point.ranks))
        self.first_wait = 0.0
        """Seconds, summed over all ranks."""

    def add(self, rows: Steps) -> None:
        seconds, counts = durations(rows), later_steps(rows)
        ends, shape = rows["begin"] + seconds, self._shape
        kind = kind_of_step(counts, counts, ends <= self._extent.first_end + 1e-9)
        into = np.ravel_multi_index(((ends > self._extent.middle).astype(int), kind, rows["rank"]), shape)
        for name, values in (("seconds", seconds), ("samples", rows["samples"]), ("bytes", rows["bytes"])):
            self._sums[name] += np.bincount(into, values, math.prod(shape)).reshape(shape)
        self.first_wait += float(rows["wait"][~counts].sum())
        at = rows["epoch"] * np.int64(self._extent.epoch) + rows["step"]
        rows, at = rows[at < len(self.size)], at[at < len(self.size)]
        # A step whose samples were read before has no bytes.
        self.size[at, rows["rank"]] = np.maximum(rows["bytes"], 1)
        self.compute[at, rows["rank"]] = rows["compute"]

    def rate(self, name: str, half: int | None = None) -> float:
        """Return samples/s or bytes/s of all ranks, over all steps that count or those of one half."""
        best = (self._sums["seconds"].sum(axis=0) > 0).argmax(axis=0)
        own, seconds = (self._sums[of][:, best, np.arange(self._ranks)] for of in (name, "seconds"))
        own, seconds = (own.sum(axis=0), seconds.sum(axis=0)) if half is None else (own[half], seconds[half])
        return float((own[seconds > 0] / seconds[seconds > 0]).sum())

    def drift(self) -> float:
        """Return ln of the ratio of the second half's throughput to the first's, in samples or bytes.

        The smaller change counts: accelerators that do not wait keep their samples/s, and a storage at its
        limit keeps its bytes/s.
        """
        pairs = [[self.rate(name, half) for half in (0, 1)] for name in ("samples", "bytes")]
        logs = [math.log(second / first) for first, second in pairs if first > 0 and second > 0]
        return min(logs, key=abs, default=0.0)


def _require_equal_hosts(points: Sequence[Point]) -> None:
    """Raise SpecError if accelerators of a host were less busy than those of a host with as many or more.

    No single system describes both. The share of time in which a host's accelerators were busy, without
    barriers, is compared with the best such host of the same point, as a mean over points.
    """
    shares: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        alone = point.ideal_samples_per_second / point.ranks  # samples/s of a rank that never waits
        found = [host for host in point.hosts if host.samples]
        busy = {host.host: 1 / (1 + host.wait_seconds * alone / host.samples) for host in found}
        for host in found:
            best = max(busy[other.host] for other in found if other.ranks >= host.ranks)
            if len(found) > 1:
                shares.setdefault(host.host, []).append((busy[host.host], best))
    for name, pairs in shares.items():
        own, best = (float(np.mean(column)) for column in zip(*pairs, strict=True))
        if own < best - SLOW_HOST:
            raise SpecError(
                f"{name} kept its accelerators busy {100 * own:.0f} % of the time, and hosts with as many "
                f"{100 * best:.0f} %: one system does not describe both",
                f"check why {name} is slow, or fit runs without it",
            )
