"""What a job will take, told before anything is touched. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from emulator.dataset.manifest import Manifest
from emulator.plan import RankPlan, plan_for
from emulator.run.point import Job
from emulator.units import show_bytes, show_rate, show_seconds

TORCH_BYTES = 350e6
"""Resident bytes of a rank with PyTorch imported, before it reads anything (measured, torch 2.13 CPU)."""

DIRECT_BYTES = 60e6
"""Resident bytes of a rank with the direct loader, before it reads anything."""


def steps_of(job: Job, manifest: Manifest, ranks: int) -> int:
    """Steps of a rank in a point of `ranks` ranks."""
    plan = plan_for(job.workload, manifest.samples, ranks, manifest.samples_per_file)
    plan.require_a_step()
    return RankPlan(plan=plan, seed=0, epochs=job.epochs, steps=job.steps).length


def memory_per_rank(job: Job, sample_bytes: float) -> float:
    """Bytes of memory that a rank needs, about: the interpreter, buffers, batches read ahead."""
    loader = job.workload.loader
    if job.loader == "direct":
        return DIRECT_BYTES + loader.workers * loader.block_bytes
    voxel_bytes = 5  # float32 image and uint8 label
    kept = math.prod(loader.crop) * voxel_bytes if loader.crop else sample_bytes
    return TORCH_BYTES + loader.workers * sample_bytes + (loader.prefetch + 1) * loader.batch_size * kept


def plan_lines(job: Job, manifest: Manifest, counts: Sequence[int]) -> list[str]:
    """The plan for people: bytes, steps, expected seconds, memory per rank. Raises DatasetError."""
    workload = job.workload
    mean = manifest.total / manifest.samples * workload.sample_read.bytes_mean / workload.sample.bytes_mean
    demand = workload.ideal_samples_per_second * mean
    lines = [
        f"workload:       {workload.name}: {workload.title}",
        f"dataset:        {job.dataset}: {len(manifest.names)} files, {show_bytes(manifest.total)}",
        f"storage:        {job.storage}",
        f"loader:         {job.loader}; one rank asks {show_rate(demand)}",
        f"memory a rank:  about {show_bytes(memory_per_rank(job, mean))}",
        "",
        "ranks  steps  bytes read  seconds at least",
    ]
    total = 0.0
    for ranks in counts:
        steps = steps_of(job, manifest, ranks)
        read = ranks * steps * workload.loader.batch_size * mean
        seconds = max(steps * workload.accelerator.step_seconds, read / (job.storage.shaped_rate or math.inf))
        total += seconds
        lines.append(f"{ranks:5d}  {steps:5d}  {show_bytes(read):>10}  {show_seconds(seconds):>16}")
    return [*lines, "", f"expected time:  {show_seconds(total)} or more, without start-up"]
