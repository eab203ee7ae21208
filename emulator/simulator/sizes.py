"""How many bytes each batch has: the plan's epoch orders over the sizes of a dataset."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from emulator.dataset.sizes import quantiles
from emulator.plan.epoch import Course
from emulator.plan.order import epoch_order
from emulator.simulator.scene import Floats
from emulator.spec.workload import SampleSpec

_GRID = 4096
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: an evenly spread sequence, as dataset.sizes has it
DRAWN_SAMPLES = 30_000_000
"""Samples whose order is the plan's; beyond them the same batches are dealt to other ranks."""


def sample_sizes(sample: SampleSpec, files: int, seed: int = 0) -> Floats:
    """Bytes of `files` samples, shape (files,): lognormal with the workload's mean and deviation.

    The mean is exact to a byte, whatever the number of files; without a deviation all have it.
    """
    if sample.bytes_sd == 0:
        return np.full(files, float(sample.bytes_mean))
    sigma = math.sqrt(math.log1p((sample.bytes_sd / sample.bytes_mean) ** 2))
    normal = NormalDist()
    bends = np.array([normal.inv_cdf((step + 0.5) / _GRID) for step in range(_GRID)])
    place = quantiles(np.arange(files, dtype=np.int64), seed, "simulated", _GOLDEN)
    size = np.exp(sigma * bends[(place * _GRID).astype(np.int64)])
    return np.asarray(np.rint(size * (sample.bytes_mean / size.mean())))


def batch_bytes(course: Course, sizes: Floats) -> Floats:
    """Bytes of every batch of `course` over samples of `sizes` bytes: shape (steps, ranks).

    The batches are those that `course.batches` gives each rank. After DRAWN_SAMPLES samples, where drawing
    orders would take longer than simulating, the first epochs' batches come again, moved on by some ranks.
    """
    plan = course.plan
    if sizes.min() == sizes.max():  # any order gives the same batches
        return np.full((course.length, plan.ranks), plan.batch_size * sizes[0])
    size = np.empty((course.length, plan.ranks))
    step_samples = plan.ranks * plan.batch_size
    drawn = min(course.length, max(plan.steps, DRAWN_SAMPLES // step_samples))
    for first in range(0, drawn, plan.steps):
        steps = min(plan.steps, drawn - first)
        order = epoch_order(plan.samples, course.seed, first // plan.steps)[: steps * step_samples]
        batches = sizes[order].reshape(steps, plan.ranks, plan.batch_size)
        size[first : first + steps] = batches.sum(axis=2)
    for step in range(drawn, course.length):
        turn = (step // drawn) * 7919 + step * 104729
        size[step] = np.roll(size[step % drawn], turn % plan.ranks)
    return size


def default_files(step_samples: int, steps: int | None) -> int:
    """Samples of a dataset that nobody specified: enough for some steps of `step_samples` samples.

    Whole epochs of at most about 4 million samples, so that epoch orders stay cheap to draw.
    """
    return step_samples * max(1, min(steps or 8, 4_000_000 // step_samples))
