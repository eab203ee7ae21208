"""Lead a run or a sweep on rank 0: choose the counts, print each point, store the result."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator import live
from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.analysis.evidence import limited_by_client
from emulator.analysis.flags import au_measured
from emulator.analysis.point import show_au
from emulator.analysis.storage_limit import Reading
from emulator.analysis.throughput import throughput
from emulator.config.reader import to_plain
from emulator.config.workload import stored_workload
from emulator.dataset.manifest import Dataset, Manifest
from emulator.errors import SpecError
from emulator.launch.comm import Comm
from emulator.live import Now
from emulator.order import plan_for
from emulator.record.device import io_scheduler
from emulator.record.machine import describe_mount
from emulator.record.out import ResultFolder, read_result
from emulator.record.result import BoundKind, Point, Probe
from emulator.record.steps import STEP, StepLog
from emulator.run.environment import describe_run
from emulator.run.job import TrainingJob
from emulator.run.probe import how_read
from emulator.sweep.outlook import PRIOR_STEPS, Pace
from emulator.sweep.schedule import Schedule, activation_order
from emulator.sweep.summary import conclusions, dataset_facts, first_result, require_rules
from emulator.units import counted, show_rate, show_seconds

UNPROBED: tuple[BoundKind, ...] = ("storage", "latency")
"""Limits that only a probe can distinguish or quantify."""


class Leader:
    """Rank 0's part of a run or a sweep. It rewrites OUT/run.json after every point."""

    def __init__(self, job: TrainingJob, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule
        self._begin = time.monotonic()
        self._ranks = self._length = self._step = 0
        self._later: Sequence[int] = ()
        self._recent = np.zeros(0, STEP)

    def open(
        self, dataset: Dataset, hosts: Sequence[str], memory: Mapping[str, int], world: Comm
    ) -> ResultFolder:
        """Make OUT, or open it to resume. `hosts` has every rank's host, `memory` the bytes of each host.

        Raises SpecError, StorageError.
        """
        job, manifest = self._job, dataset.manifest
        require_samples(job, manifest, self._schedule.largest)
        self._manifest, self._pace = manifest, Pace(job, manifest)
        self._schedule.cost = self._pace.run
        points, probe = _reopened(job, manifest) if job.resume else ((), ())
        environment = _environment(job, dataset, hosts, memory, world)
        self._reading = Reading(
            request_bytes=environment["reads"]["request_bytes"],
            workers=job.workload.loader.workers,
            read_ahead=not environment["reads"]["direct"],
        )
        result = first_result(job, manifest, environment)
        active = [hosts[rank] for rank in activation_order(hosts, job.placement)]
        counts = self._schedule.expected(points, self._pace.limit)
        # Before OUT is made, so that a refused run leaves nothing.
        require_rules(job, manifest, replace(result, points=tuple(points)), active, counts)
        if job.resume:
            self._pace.probed(probe)
            result = replace(result, probe=probe, **conclusions(job, points, probe, self._reading))
            self._folder = ResultFolder.resume(job.out, result)
        else:
            self._folder = ResultFolder.create(job.out, result, force=job.force)
        return self._folder

    def keep_rows_on(self, apart: Collection[str]) -> None:
        """Record the hosts `apart`, which do not share OUT and keep their step log in their own folder."""
        if apart:
            where = ", ".join(sorted(apart))
            live.say(f"note: {self._job.out} is not shared with {where}: their steps stay there")
            environment = {**self._folder.result.environment, "steps_left_on": sorted(apart)}
            self._folder.update(environment=environment)

    @property
    def points(self) -> tuple[Point, ...]:
        """Points so far."""
        return self._folder.result.points

    def next_run(self) -> tuple[int, float] | None:
        """Return the process count of the next point, and the seconds for it; None when the sweep is done."""
        count = self._schedule.next_count(self.points)
        if count is not None:
            live.say(f"{self._schedule.outlook(self.points)}: {counted(count, 'rank')}")
            # The present count is the first of those expected; the time of the others is estimated.
            self._later = self._schedule.expected(self.points, self._pace.limit)[1:]
            self._length, self._recent = self._pace.steps(count), np.zeros(0, STEP)
            self._point_begin = self._first_step = time.monotonic()
            self._ranks, self._step = count, 0
        return None if count is None else (count, self._schedule.seconds_left)

    def progress(self, log: StepLog) -> None:
        """Record the steps of the point that rank 0 has finished."""
        if len(log) == 1:
            self._first_step = time.monotonic()
        self._step = len(log)
        self._recent = log.rows(max(1, len(log) - 8))  # for the present rate

    def now(self) -> Now:
        """Return how far the sweep is. Another thread calls this."""
        seconds = time.monotonic() - self._begin
        if not self._ranks:
            doing = f"{counted(len(self.points), 'run')} done" if self._step else "starting"
            return Now(verb=self._job.kind, doing=doing, seconds=seconds)
        points = self.points
        left = self._seconds_left(points)
        step = min(self._step + 1, self._length)
        now = Now(
            verb=self._job.kind,
            doing=f"{counted(self._ranks, 'rank')}, step {step} of {self._length}",
            part=len(points) + 1,
            parts=len(points) + 1 + len(self._later),
            about=not self._schedule.certain,
            share=live.share_done(seconds, left),
            seconds=seconds,
            eta_seconds=left,
        )
        if len(self._recent):
            rates = throughput(self._recent)  # of rank 0: the others do the same
            now = replace(now, bytes_per_second=self._ranks * rates.bytes_per_second)
            # With fewer steps, prefetched batches make the accelerators look busy.
            if au_measured(self._step, self._job.workload):
                now = replace(now, au=rates.au)
        if points and (bound := points[-1].bound):
            now = replace(now, limit=f"{LIMIT_NAMES[bound.kind]} at {counted(points[-1].ranks, 'rank')}")
        knee = self._folder.result.knee
        if knee and knee.interval and knee.n_au:
            low, high = knee.interval
            now = replace(now, knee=(low, knee.n_au, high))
        return now

    def _seconds_left(self, points: Sequence[Point]) -> float:
        """Estimate the seconds left: of this run from its steps, of later ones from the runs so far."""
        pace, now = self._pace, time.monotonic()
        step = pace.step(self._ranks, points)
        if self._step:
            # Without the first step, which waited for the loaders to start.
            elapsed = now - self._first_step
            step = (PRIOR_STEPS * step + elapsed) / (PRIOR_STEPS + self._step - 1)
        starting = 0.0 if self._step else max(0.0, pace.between(self._ranks) - (now - self._point_begin))
        rest = starting + max(0, self._length - self._step) * step
        later = sum(pace.run(ranks, points) for ranks in self._later)
        return min(rest + later, max(rest, self._schedule.seconds_left))

    def add(self, measured: Point) -> None:
        """Classify the limit of a measured point, store it and print it. Raises StorageError."""
        self._conclude((*self.points, measured))
        point = self.points[-1]
        self._pace.took(time.monotonic() - self._point_begin, point)
        live.say(
            f"  {counted(point.ranks, 'rank')}: "
            f"{point.samples_per_second * self._job.workload.job.samples:.4g} samples/s, "
            f"{show_rate(point.bytes_per_second)}, {show_au(point)}, {show_seconds(point.seconds)}"
        )
        if point.steps < self._length:
            live.say(f"  stopped after {point.steps} of {self._length} steps: the time is used up")
        if limited_by_client(point) and point.bound is not None:
            bound = point.bound
            live.say(f"  limited by {LIMIT_NAMES[bound.kind]}: {bound.help or HELPS[bound.kind]}")
        self._ranks = 0

    def _conclude(self, points: Sequence[Point]) -> None:
        probe = self._folder.result.probe
        self._folder.update(**conclusions(self._job, points, probe, self._reading))

    @property
    def request_to_probe(self) -> int | None:
        """Bytes of a request if the storage should be probed now; None if not.

        It is probed after the first point that waited for it, and before a search, to estimate its length.
        """
        if self._job.storage.emulated or self._folder.result.probe:
            return None  # its limits are known
        waited = any(point.bound and point.bound.kind in UNPROBED for point in self.points)
        is_search = not self._schedule.certain
        return self._reading.request_bytes if waited or is_search else None

    def add_probe(self, probe: tuple[Probe, ...]) -> None:
        """Store the results of a probe, and classify the storage's limits with it. Raises StorageError."""
        self._folder.update(probe=probe)
        self._pace.probed(probe)
        self._conclude(self.points)

    def say_verdict(self) -> None:
        """Print why the sweep ended, after the last line of progress."""
        if verdict := self._schedule.verdict(self.points):
            live.say(f"done: {verdict}")


def _environment(
    job: TrainingJob, dataset: Dataset, hosts: Sequence[str], memory: Mapping[str, int], world: Comm
) -> dict[str, Any]:
    """The facts about the hosts, their MPI and the mount that a result records."""
    store = dataset.store
    return {
        **describe_run(hosts, memory, job.out),
        "mpi": world.library or None,
        "dataset_mount": store.describe() or describe_mount(Path(str(store))),
        "io_scheduler": io_scheduler(job.dataset) if isinstance(job.dataset, Path) else None,
        "reads": how_read(job.loader, job.workload, dataset, job.direct and store.takes_direct()),
    }


def require_samples(job: TrainingJob, manifest: Manifest, ranks: int) -> None:
    """Raise DatasetError if the dataset is too small for a step of `ranks` ranks."""
    plan_for(job.workload, manifest.samples, ranks, manifest.samples_per_file).require_a_step()


def _reopened(job: TrainingJob, manifest: Manifest) -> tuple[tuple[Point, ...], tuple[Probe, ...]]:
    """Return the points and the probe in OUT. Raises SpecError if they are of another job."""
    result = read_result(job.out)
    if result.kind != "sweep":
        raise SpecError(
            f"{job.out} holds a {result.kind}, not a sweep", "give the OUT of a sweep to --resume"
        )
    matches = {
        "workload": stored_workload(result.workload) == job.workload,
        "dataset": result.dataset == to_plain(dataset_facts(job, manifest)),
        "storage": result.storage.items() >= to_plain(job.storage).items(),
        "loader": result.loader == job.loader,
    }
    for name, is_same in matches.items():
        if not is_same:
            raise SpecError(
                f"the sweep in {job.out} is of another {name}", "resume with the options it was started with"
            )
    # Points that were stopped when the time was up are shorter, perhaps all of them.
    longest = (job.rank_plan(manifest, n, point.ranks).length for n, point in enumerate(result.points))
    if any(point.steps > steps for point, steps in zip(result.points, longest, strict=True)):
        raise SpecError(
            f"the points in {job.out} have more steps per rank than these options give",
            "resume with the --epochs and --steps that it was started with",
        )
    return result.points, result.probe
