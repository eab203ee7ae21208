"""Flags of points, bounds and knee from points, and what a run that was cut off left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.analysis.bound import StorageShape, classify
from emulator.analysis.flags import (
    another_dataset,
    below_shape,
    costly_barrier,
    jobs_cpu,
    non_stationary,
    point_flags,
    short_run,
    small_dataset,
)
from emulator.analysis.here import here
from emulator.analysis.knee import find_knee
from emulator.analysis.point import point_of, with_course
from emulator.config.workload import stored_workload
from emulator.dataset.manifest import Manifest
from emulator.record.out import read_failure, read_result
from emulator.record.result import Flag, Point, RunResult, new_result
from emulator.record.steps import STEP, Steps, step_blocks
from emulator.run.point import Measured, TrainingJob, mismatch


def summarise(job: TrainingJob, measured: Measured) -> Point:
    """The point that was measured, with its flags."""
    reads, ranks = measured.reads, measured.point.ranks
    point = replace(
        measured.point,
        resident_share=reads.pages_resident / reads.pages_sampled if reads.pages_sampled else None,
        read_latency={str(edge): reads.latency[edge] for edge in sorted(reads.latency)},
        read_latency_max=reads.slowest or None,
        read_retries=dict(sorted(reads.retries.items())),
    )
    flags = [
        non_stationary(measured.rates),
        short_run(point, job.workload),
        jobs_cpu(point, job.workload),
        costly_barrier(point, job.workload, polled=measured.barrier_polled),
    ]
    if job.direct and reads.buffered:
        sentence = (
            "The file system refuses O_DIRECT: reads went through the page cache and were evicted, "
            "at a higher cost in CPU."
        )
        flags.insert(
            1, Flag(name="no-o-direct", value=reads.buffered / ranks, threshold=0.0, sentence=sentence)
        )
    return replace(point, flags=point_flags(point) + tuple(flag for flag in flags if flag))


def first_result(job: TrainingJob, manifest: Manifest, environment: dict[str, Any]) -> RunResult:
    """The result before its first point."""
    memory = int(environment["memory_bytes"]) * len(environment["hosts"])
    small = None if job.storage.emulated else small_dataset(manifest.total, memory)
    flags = (small, another_dataset(mismatch(job.workload, manifest)))
    return new_result(
        job.kind,
        command=job.command,
        label=job.label,
        workload=asdict(job.workload),
        dataset=dataset_facts(job, manifest),
        storage=asdict(job.storage),
        loader=job.loader,
        environment=environment,
        flags=tuple(flag for flag in flags if flag),
    )


def conclusions(job: TrainingJob, result: RunResult, points: Sequence[Point]) -> dict[str, Any]:
    """The fields of `result` that follow from its points: what bounds each, and the knee.

    There is a knee as soon as there are two process counts.
    """
    several = len({point.ranks for point in points}) > 1
    shape = None
    if job.storage.shaped_rate is not None:
        rate = job.storage.shaped_rate
        alone = job.storage.shaped_latency + job.workload.request_bytes / rate
        shape = StorageShape(rate=rate, request_seconds=alone)
    bound = tuple(replace(point, bound=classify(point, points, shape)) for point in points)
    if shape is not None:
        bound = tuple(_against_shape(point, shape.rate) for point in bound)
    return {
        "points": bound,
        "knee": find_knee(bound, job.workload.training.au_threshold) if several else None,
    }


def _against_shape(point: Point, rate: float) -> Point:
    """The point with the flag that its bound brings; after a `--resume` it may have it already."""
    flags = [flag for flag in point.flags if flag.name != "below-shape"]
    found = below_shape(point, rate)
    return replace(point, flags=(*flags, found) if found else tuple(flags))


def dataset_facts(job: TrainingJob, manifest: Manifest) -> dict[str, Any]:
    """What a result says of its dataset."""
    return {
        "path": str(job.dataset),
        "files": len(manifest.names),
        "samples": manifest.samples,
        "samples_per_file": manifest.samples_per_file,
        "bytes": manifest.total,
        "format": manifest.format,
        "recipe": manifest.recipe,
        "seed": manifest.seed,
        "identity": manifest.identity,
    }


_DRAWN_ROWS = 500_000
"""Rows that figures of a point are drawn from, at most, but for a rank's own: 300 bytes each."""


def _ranks_drawn(point: Point) -> int:
    """Of how many of its ranks a point is drawn."""
    return min(point.ranks, max(1, _DRAWN_ROWS // point.steps))


def _of_some_ranks(out: Path, number: int, point: Point) -> Steps:
    """The rows of point `number`, or of some of its ranks, by lot. Raises StorageError, SpecError."""
    ranks = np.random.default_rng(number).permutation(point.ranks)[: _ranks_drawn(point)]
    some = (rows[np.isin(rows["rank"], ranks)] for rows in step_blocks(out, number))
    return np.concatenate([np.zeros(0, STEP), *some])


def _drawn_of_some(points: Sequence[Point]) -> tuple[Flag, ...]:
    """A flag where what was just drawn of these points rests on some ranks' rows; of the worst of them."""
    some = [point for point in points if point.step and _ranks_drawn(point) < point.ranks]
    if not some:
        return ()
    worst = min(some, key=lambda point: _ranks_drawn(point) / point.ranks)
    sentence = (
        f"An older version wrote this result: where a step goes and throughput over time are drawn from the "
        f"rows of {_ranks_drawn(worst):,} of {worst.ranks:,} ranks, by lot; all other figures are over all."
    )
    return (Flag(name="step-log", value=_ranks_drawn(worst), threshold=worst.ranks, sentence=sentence),)


_CUT_OFF_ROWS = 250_000
"""Rows of a point that was cut off that its figures are made of, at most, but for a step of each rank: 1 kB
each."""


def _cut_off(out: Path, number: int, result: RunResult) -> Point | None:
    """The point that a run died in, of each rank's first steps where there are many; None: it had no steps.

    Raises StorageError, SpecError.
    """
    ranks: set[int] = set()
    count, epoch = 0, 0
    for rows in step_blocks(out, number):
        ranks.update(np.unique(rows["rank"]).tolist())
        count, epoch = count + len(rows), max(epoch, 1 + int(rows["step"].max(initial=-1)))
    if not count:
        return None
    most = max(1, _CUT_OFF_ROWS // len(ranks))
    some = (rows[rows["epoch"] * np.int64(epoch) + rows["step"] < most] for rows in step_blocks(out, number))
    rows = np.concatenate([np.zeros(0, STEP), *some])
    samples = int(result.dataset.get("samples", result.dataset["files"]))
    workload = stored_workload(result.workload)
    point = point_of(workload, samples, len(ranks), rows, here(rows, workload.training.sync))
    if len(rows) == count:
        return point
    sentence = (
        f"The run was cut off in this point: its figures are over the first {most:,} steps of each rank, "
        f"{len(rows):,} of {count:,} in all."
    )
    flag = Flag(name="step-log", value=len(rows), threshold=count, sentence=sentence)
    return replace(point, flags=(*point.flags, flag))


def recovered(out: Path) -> RunResult:
    """The result in OUT; of a run that was cut off also the point that it died in.

    Of points that an older version wrote, what figures show of their steps is taken from the step log, of so
    many ranks as are held in memory easily. Raises StorageError, SpecError.
    """
    result = read_result(out)
    if out.is_file():  # a result under another name: the step log beside it is of run.json
        return result
    sync = result.workload.get("training", {}).get("sync", "none")
    older = {
        number: with_course(point, _of_some_ranks(out, number, point), sync)
        for number, point in enumerate(result.points)
        if not point.step and point.steps
    }
    points = tuple(older.get(number, point) for number, point in enumerate(result.points))
    result = replace(result, points=points, flags=(*result.flags, *_drawn_of_some([*older.values()])))
    if result.status == "complete":
        return result
    result = replace(result, reason=read_failure(out) or result.reason)
    if result.kind in ("run", "sweep") and (torn := _cut_off(out, len(points), result)):
        result = replace(result, points=(*points, torn))
    return result
