"""What rank 0 does besides its own steps: it chooses the counts, sums up, says so, and keeps the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from emulator.config.reader import build, to_plain
from emulator.config.storage import StorageSpec
from emulator.config.workload import Workload
from emulator.dataset.manifest import Dataset, Manifest
from emulator.errors import SpecError
from emulator.record.folder import ResultFolder, read_result
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Point, RunResult
from emulator.record.steps import STEP, Steps, read_steps
from emulator.run.point import RankReport, TrainingJob
from emulator.run.selftest import self_test
from emulator.storage.objects import ObjectStore
from emulator.sweep.schedule import ForFit, Schedule
from emulator.sweep.summary import conclusions, dataset_facts, first_result, summarise
from emulator.units import show_rate, show_seconds

PROGRESS_SECONDS = 5.0
"""Between two lines of progress within a point, so that a long one does not look hung."""


class Leader:
    """Rank 0's part of a run or a sweep; OUT/run.json is whole after every point."""

    def __init__(self, job: TrainingJob, schedule: Schedule) -> None:
        self._job = job
        self._schedule = schedule

    def open(self, dataset: Dataset, hosts: Sequence[str]) -> None:
        """Make OUT, or take up the one to resume; `hosts` has the host of every rank of the world.

        Raises SpecError, StorageError.
        """
        job, store, manifest = self._job, dataset.store, dataset.manifest
        self._manifest = manifest
        if isinstance(self._schedule, ForFit):
            self._schedule.hosts = len(set(hosts))
        points, steps = _reopened(job, manifest) if job.resume else ((), np.zeros(0, dtype=STEP))
        mount = store.describe() if isinstance(store, ObjectStore) else describe_mount(Path(str(store)))
        environment = {
            **describe_machine(),
            "ranks_started": len(hosts),
            "hosts": sorted(set(hosts)),
            "dataset_mount": mount,
            "emulator": asdict(self_test(job.loader, job.workload)),
        }
        result = first_result(job, manifest, environment)
        self._steps = [steps]
        if job.resume:
            result = replace(result, **conclusions(job, result, points))
            self._folder = ResultFolder.resume(job.out, result, steps)
        else:
            self._folder = ResultFolder.create(job.out, result, force=job.force)

    @property
    def _points(self) -> tuple[Point, ...]:
        return self._folder.result.points

    @property
    def number(self) -> int:
        """Number of the next point."""
        return len(self._points)

    def next_count(self) -> int | None:
        """Process count of the next point; None: enough."""
        count = self._schedule.next_count(self._points)
        if count is not None:
            say(f"{self._schedule.outlook(self._points)}: {_ranks(count)}")
            self._length = self._job.rank_plan(self._manifest, self.number, count).length
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
        return count

    @property
    def on_half(self) -> bool:
        """Whether the next point is measured on half of the hosts."""
        return isinstance(self._schedule, ForFit) and self._schedule.on_half(self._points)

    def progress(self, steps: int) -> None:
        """Say now and then how far the point is: rank 0 has done `steps` steps."""
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            say(f"    step {steps + 1} of {self._length}")

    def add(self, ranks: int, reports: Sequence[RankReport]) -> None:
        """Keep the point that `ranks` ranks measured. Raises StorageError."""
        point = summarise(self._job, self._manifest, ranks, reports)
        self._steps.extend(report.steps for report in reports)
        self._folder.update(**conclusions(self._job, self._folder.result, (*self._points, point)))
        say(
            f"  {_ranks(ranks)}: {point.samples_per_second:.4g} samples/s, "
            f"{show_rate(point.bytes_per_second)}, AU {100 * point.au:.1f} %, {show_seconds(point.seconds)}"
        )

    def complete(self) -> RunResult:
        """The complete result, written with its step log. Raises StorageError."""
        if verdict := self._schedule.verdict(self._points):
            say(f"done: {verdict}")
        return self._folder.complete(np.concatenate(self._steps))


def say(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


def _reopened(job: TrainingJob, manifest: Manifest) -> tuple[tuple[Point, ...], Steps]:
    """The complete points in OUT and their steps; those of the point that was cut off are dropped.

    Fields that an older version did not write have their default values. Raises SpecError when OUT is no
    sweep, or not of this job.
    """
    result = read_result(job.out)
    if result.kind != "sweep":
        raise SpecError(
            f"{job.out} holds a {result.kind}, not a sweep", "give the OUT of a sweep to --resume"
        )
    facts = to_plain(dataset_facts(job, manifest))
    same = {
        "workload": build(Workload, result.workload, path=("workload",)) == job.workload,
        "dataset": all(name in facts and facts[name] == value for name, value in result.dataset.items()),
        "storage": build(StorageSpec, result.storage, path=("storage",)) == job.storage,
        "loader": result.loader == job.loader,
    }
    for name, holds in same.items():
        if not holds:
            raise SpecError(
                f"the sweep in {job.out} is of another {name}", "resume with the options it was started with"
            )
    for number, point in enumerate(result.points):
        length = job.rank_plan(manifest, number, point.ranks).length
        if length != point.steps:
            raise SpecError(
                f"the points in {job.out} have {point.steps} steps a rank, these options give {length}",
                "resume with the --epochs and --steps that it was started with",
            )
    steps = read_steps(job.out)
    return result.points, steps[steps["point"] < len(result.points)]
