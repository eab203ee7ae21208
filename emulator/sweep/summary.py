"""What follows from points, planned or measured: limits, knee, broken rules; and runs that were cut off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator.analysis.bound import StorageShape, classify
from emulator.analysis.flags import another_dataset, small_dataset, unlike_job
from emulator.analysis.knee import find_knee
from emulator.analysis.point import point_of
from emulator.analysis.storage_limit import Reading
from emulator.config.workload import stored_workload
from emulator.dataset.manifest import Manifest
from emulator.record.out import read_failure, read_result
from emulator.record.result import Flag, HostShare, Point, Probe, RunResult, new_result
from emulator.record.steps import STEP, step_blocks
from emulator.run.job import TrainingJob, mismatch


def first_result(job: TrainingJob, manifest: Manifest, environment: dict[str, Any]) -> RunResult:
    """Return the result before its first point."""
    memory = sum(environment["memory_of_hosts"].values())
    small = None if job.storage.emulated else small_dataset(manifest.total, memory)
    flags = (small, another_dataset(mismatch(job.workload, manifest)), unlike_job(job.workload))
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


def planned_point(job: TrainingJob, manifest: Manifest, number: int, hosts: Sequence[str]) -> Point:
    """Return point `number` with a rank on each of `hosts`, and NaN for measured figures.

    Raises DatasetError for too few samples.
    """
    ranks, workload, unknown = len(hosts), job.workload, math.nan
    plan = job.rank_plan(manifest, number, ranks)
    samples = plan.length * ranks * workload.loader.batch_size
    size = round(samples * manifest.total / manifest.samples)
    shares = (
        HostShare(host=host, ranks=active, bytes=0, samples=0, cpu_seconds=unknown, cores=0)
        for host, active in Counter(hosts).items()
    )
    return Point(
        ranks=ranks,
        hosts=tuple(shares),
        epochs=math.ceil(plan.length / plan.plan.steps),
        steps=plan.length,
        samples=samples,
        bytes=size,
        left_out=0,
        seconds=unknown,
        samples_per_second=unknown,
        bytes_per_second=unknown,
        ideal_samples_per_second=ranks * workload.ideal_samples_per_second,
        x_ideal=unknown,
        au=unknown,
        x_ideal_first=unknown,
        au_first=unknown,
        wait_share=unknown,
        barrier_share=unknown,
    )


def require_rules(
    job: TrainingJob, manifest: Manifest, result: RunResult, hosts: Sequence[str], counts: Sequence[int]
) -> None:
    """Raise SpecError if `result` with runs of `counts` ranks on the first of `hosts` would break a rule."""
    if job.rules.version:
        first = len(result.points)
        planned = [
            planned_point(job, manifest, number, hosts[:count]) for number, count in enumerate(counts, first)
        ]
        job.rules.require(replace(result, points=(*result.points, *planned)))


def conclusions(
    job: TrainingJob, points: Sequence[Point], probes: Sequence[Probe] = (), reading: Reading | None = None
) -> dict[str, Any]:
    """Return the fields of a result that follow from its points: the limit of each, and the knee.

    A knee needs two process counts.
    """
    shape = None
    if (rate := job.storage.shaped_rate) is not None:
        lone_request_seconds = job.storage.shaped_latency + job.workload.request_bytes / rate
        shape = StorageShape(rate=rate, request_seconds=lone_request_seconds)
    # All points anew, because each is compared with the others and with the probe.
    bound = tuple(replace(point, bound=classify(point, points, shape, probes, reading)) for point in points)
    several = len({point.ranks for point in points}) > 1
    knee = find_knee(bound, job.workload.training.au_threshold) if several else None
    return {"points": bound, "knee": knee}


def dataset_facts(job: TrainingJob, manifest: Manifest) -> dict[str, Any]:
    """Return the facts about its dataset that a result records."""
    return {
        "path": str(job.dataset),
        "files": len(manifest.names),
        "samples": manifest.samples,
        "samples_per_file": manifest.samples_per_file,
        "bytes": manifest.total,
        "file_bytes_sd": manifest.spread,
        "format": manifest.format,
        "recipe": manifest.recipe,
        "seed": manifest.seed,
        "identity": manifest.identity,
    }


_CUT_OFF_ROWS = 250_000
"""Most rows of a point that was cut off to hold in memory (1 kB each), but at least a step of each rank."""


def _cut_off(out: Path, number: int, result: RunResult) -> Point | None:
    """Return the point in which the run died, from the first steps of each rank; None if it has no steps.

    Raises StorageError, SpecError.
    """
    ranks: set[int] = set()
    total, steps_per_epoch = 0, 0
    for rows in step_blocks(out, number):
        ranks.update(np.unique(rows["rank"]).tolist())
        total += len(rows)
        steps_per_epoch = max(steps_per_epoch, 1 + int(rows["step"].max(initial=-1)))
    if not total:
        return None
    steps = max(1, _CUT_OFF_ROWS // len(ranks))
    blocks = [np.zeros(0, STEP)]
    for rows in step_blocks(out, number):
        step = rows["epoch"] * np.int64(steps_per_epoch) + rows["step"]
        blocks.append(rows[step < steps])
    rows = np.concatenate(blocks)
    samples = int(result.dataset["samples"])
    point = point_of(stored_workload(result.workload), samples, len(ranks), rows)
    if len(rows) == total:
        return point
    sentence = (
        f"The run was cut off in this point: its figures are over the first {steps:,} steps of each rank, "
        f"{len(rows):,} of {total:,} in all."
    )
    flag = Flag(name="step-log", value=len(rows), threshold=total, sentence=sentence)
    return replace(point, flags=(*point.flags, flag))


def recovered(out: Path) -> RunResult:
    """Return the result in OUT, including the point in which a run that was cut off died.

    Raises StorageError, SpecError.
    """
    result = read_result(out)
    if out.is_file() or result.status == "complete":  # a file may be a copy without the step log
        return result
    result = replace(result, reason=read_failure(out) or result.reason)
    points = result.points
    if result.kind in ("run", "sweep") and (torn := _cut_off(out, len(points), result)):
        result = replace(result, points=(*points, torn))
    return result
