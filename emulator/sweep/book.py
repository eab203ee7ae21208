"""What rank 0 keeps of a sweep: points, steps, environment; run.json after every point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from emulator.dataset.manifest import Manifest
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Kind, Point, RunResult, Status
from emulator.record.step import STEP, Steps
from emulator.record.store import prepare_out, remove_spools, write_result, write_steps
from emulator.run.job import Job
from emulator.run.point import RankReport
from emulator.run.selftest import self_test
from emulator.spec.place import ObjectPlace, Place
from emulator.storage.place import describe_objects
from emulator.sweep.resume import reopen
from emulator.sweep.summary import result_of, summarise

_UNFINISHED = "the run has not ended, or was killed"


class Book:
    """The record of one OUT folder, open for adding."""

    def __init__(
        self, job: Job, kind: Kind, manifest: Manifest, environment: dict[str, Any],
        points: Sequence[Point], steps: Steps,
    ) -> None:  # fmt: skip
        self.points = list(points)
        self._job = job
        self._kind = kind
        self._manifest = manifest
        self._environment = environment
        self._steps = [steps]

    @classmethod
    def open(
        cls, job: Job, kind: Kind, manifest: Manifest, hosts: Sequence[str], *, force: bool, resume: bool
    ) -> Book:
        """A new OUT, or one to go on with; `hosts` has the host of every rank.

        Raises SpecError, StorageError.
        """
        points: Sequence[Point] = ()
        steps = np.zeros(0, dtype=STEP)
        if resume:
            points, steps = reopen(job, manifest)
        else:
            prepare_out(job.out, force)
        environment = {
            **describe_machine(),
            "ranks_started": len(hosts),
            "hosts": sorted(set(hosts)),
            "dataset_mount": _mount(job.dataset),
            "emulator": asdict(self_test(job.loader, job.workload)),
        }
        book = cls(job, kind, manifest, environment, points, steps)
        book._write("incomplete", _UNFINISHED)
        return book

    def add(self, ranks: int, reports: Sequence[RankReport]) -> Point:
        """The point that `ranks` ranks measured, added and written down. Raises StorageError."""
        point = summarise(self._job, self._manifest, ranks, reports)
        self.points.append(point)
        self._steps.extend(report.steps for report in reports)
        self._write("incomplete", _UNFINISHED)
        return point

    def close(self, verdict: str, say: Callable[[str], None]) -> RunResult:
        """Write the step log and the complete result; the spools have done their service."""
        if verdict:
            say(f"done: {verdict}")
        write_steps(self._job.out, np.concatenate(self._steps))
        result = self._write("complete", "")
        remove_spools(self._job.out)
        return result

    def _write(self, status: Status, reason: str) -> RunResult:
        result = result_of(
            self._job, self._manifest, self._kind, status, self.points, self._environment, reason
        )
        write_result(self._job.out, result)
        return result


def _mount(place: Place) -> dict[str, str]:
    return describe_objects(place) if isinstance(place, ObjectPlace) else describe_mount(place)
