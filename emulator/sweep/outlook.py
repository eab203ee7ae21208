"""Estimate the time that runs of a sweep take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from emulator.dataset.manifest import Manifest
from emulator.record.machine import cores
from emulator.record.result import Point, Probe
from emulator.run.job import TrainingJob

BETWEEN_SECONDS = 1.0
"""Assumed seconds of a run outside its steps, in which loaders start and rows are summarised."""
PRIOR_STEPS = 4
"""Weight of the expected time of a step, in steps."""


class Pace:
    """Estimates how long runs take, from the runs so far."""

    def __init__(self, job: TrainingJob, manifest: Manifest) -> None:
        self._job = job
        self._manifest = manifest
        workload = job.workload
        share = workload.sample_read.bytes_mean / workload.sample.bytes_mean
        self.sample_bytes = manifest.total / manifest.samples * share
        """Mean bytes read for a sample."""
        self._rate = job.storage.shaped_rate or math.inf
        self._between = dict[int, float]()

    @property
    def limit(self) -> float:
        """Processes that the storage feeds, from its shaped rate or a probe; infinite if neither is known."""
        demand = self._job.workload.ideal_samples_per_second * self.sample_bytes
        return self._rate / demand if math.isfinite(demand) else math.inf

    def probed(self, probe: Sequence[Probe]) -> None:
        """Take the largest bandwidth of a probe as that of the storage, unless it is shaped."""
        if probe and not self._job.storage.shaped_rate:
            self._rate = max(measured.bytes_per_second for measured in probe)

    def steps(self, ranks: int) -> int:
        """Return the steps of each rank in a run of `ranks`."""
        return self._job.rank_plan(self._manifest, 0, ranks).length

    def step(self, ranks: int, points: Sequence[Point]) -> float:
        """Estimate the seconds of a step of `ranks` ranks from the points so far.

        Interpolates linearly between measured counts. Below the smallest one, the time shrinks with the
        ranks, down to the accelerator's. Above the largest one, it grows with the ranks if that one starved,
        and is constant otherwise, until the ranks' CPU time fills the cores. Without points it is that of
        the accelerator, or of the storage if that takes longer.
        """
        known = {point.ranks: point.seconds / point.steps for point in points if point.steps}
        workload = self._job.workload
        if not known:
            reading = ranks * workload.loader.batch_size * self.sample_bytes / self._rate
            return max(workload.accelerator.step_seconds, reading)
        smallest, largest = min(known), max(points, key=lambda point: point.ranks)
        if ranks < smallest:
            return max(workload.accelerator.step_seconds, known[smallest] * ranks / smallest)
        if ranks <= largest.ranks:
            return _interpolated(ranks, known)
        growth = ranks / largest.ranks
        # What the ranks' CPU time takes at least, if they share all cores evenly.
        cores = max(1, sum(host.cores for host in largest.hosts))
        on_cores = sum(host.cpu_seconds for host in largest.hosts) / cores / largest.steps
        on_storage = known[largest.ranks] * (growth if largest.x_ideal < 0.98 else 1.0)
        return max(on_storage, on_cores * growth)

    def run(self, ranks: int, points: Sequence[Point]) -> float:
        """Return the estimated seconds of a run, from the choice of its count to the next choice."""
        return self.between(ranks) + self.steps(ranks) * self.step(ranks, points)

    def between(self, ranks: int) -> float:
        """Return the seconds of a run of `ranks` outside its steps, in proportion above the largest known."""
        if not self._between:
            return BETWEEN_SECONDS
        return _interpolated(ranks, self._between) * max(1.0, ranks / max(self._between))

    def took(self, seconds: float, point: Point) -> None:
        """Record that a run took `seconds` in total, of which `point` has its steps."""
        self._between[point.ranks] = max(0.0, seconds - point.seconds)


def _interpolated(ranks: int, known: Mapping[int, float]) -> float:
    """Interpolate linearly between known counts; beyond them it is constant."""
    counts = sorted(known)
    return float(np.interp(ranks, counts, [known[count] for count in counts]))


def start_seconds(ranks: int) -> float:
    """Estimate the seconds that a command takes to start `ranks` ranks on this host and to end."""
    return 2.0 + 0.2 * ranks / cores()
