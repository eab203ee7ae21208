"""One MPI world, many points: ranks start once, and every count runs on a part of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from emulator.dataset.manifest import Manifest, read_manifest
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Kind, Point, RunResult
from emulator.record.step import STEP, Steps
from emulator.record.store import Spool, prepare_out, remove_spools, write_result, write_steps
from emulator.run.comm import Comm
from emulator.run.guard import agreed, guarded
from emulator.run.job import Job
from emulator.run.point import course_of, run_point
from emulator.run.selftest import self_test
from emulator.sweep.placement import activation_order
from emulator.sweep.resume import reopen
from emulator.sweep.schedule import Schedule
from emulator.sweep.summary import result_of, summarise
from emulator.units import show_rate, show_seconds

Say = Callable[[str], None]

PROGRESS_SECONDS = 5.0
"""Between two lines of progress within a point."""


def measure(
    job: Job, kind: Kind, schedule: Schedule, world: Comm, *, force: bool, resume: bool, say: Say
) -> RunResult | None:
    """Run the points of `schedule`, write OUT, and return the result on rank 0 (None elsewhere).

    With `resume`, the points that OUT holds count as run. Collective over `world`: when a rank fails,
    every rank ends and the first one that failed says why.
    """
    with guarded(world, job.out):
        manifest = agreed(world, lambda: read_manifest(job.dataset))
        earlier = agreed(world, lambda: _prepare(job, manifest, force, resume) if world.rank == 0 else None)
        hosts = world.allgather(socket.gethostname())
        session = _Session(job, kind, manifest, world, hosts, say, earlier or ((), _NO_STEPS))
        with agreed(world, lambda: Spool(job.out, world.rank)) as spool:
            while True:
                count = world.bcast(schedule.next_count(session.points) if world.rank == 0 else None)
                if count is None:
                    break
                if world.rank == 0:
                    say(f"{schedule.outlook(session.points)}: {_ranks(count)}")
                session.point(count, spool)
        if world.rank == 0 and schedule.verdict(session.points):
            say(f"done: {schedule.verdict(session.points)}")
        return session.finish()


_NO_STEPS = np.zeros(0, dtype=STEP)


def _prepare(job: Job, manifest: Manifest, force: bool, resume: bool) -> tuple[tuple[Point, ...], Steps]:
    if resume:
        return reopen(job, manifest)
    prepare_out(job.out, force)
    return (), _NO_STEPS


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


@dataclass
class _Session:
    """What accumulates over the points; points and steps on rank 0 only."""

    job: Job
    kind: Kind
    manifest: Manifest
    world: Comm
    hosts: Sequence[str]
    say: Say
    earlier: tuple[tuple[Point, ...], Steps]

    def __post_init__(self) -> None:
        self.points: list[Point] = list(self.earlier[0])
        self._steps: list[Steps] = [self.earlier[1]]
        self._number = self.world.bcast(len(self.points))
        self._environment: dict[str, Any] = {}
        if self.world.rank == 0:
            self._environment = {
                **describe_machine(),
                "ranks_started": self.world.size,
                "hosts": sorted(set(self.hosts)),
                "dataset_mount": describe_mount(self.job.dataset),
                "emulator": asdict(self_test(self.job.loader, self.job.workload.loader)),
            }
            self._write("incomplete", "the run has not ended, or was killed")

    def point(self, count: int, spool: Spool) -> None:
        """Run `count` ranks; the others sleep until they are done."""
        active = set(activation_order(self.hosts)[:count])
        group = self.world.split(0 if self.world.rank in active else 1)
        if self.world.rank in active:
            length = course_of(self.job, len(self.manifest.names), self._number, count).length
            progress = _Progress(self.say, length)
            reports = run_point(self.job, self.manifest, self._number, group, spool, progress.show)
            if reports:
                point = summarise(self.job, self.manifest, count, reports)
                self.points.append(point)
                self._steps.extend(report.steps for report in reports)
                self._write("incomplete", "the run has not ended, or was killed")
                self.say("  " + _line(point))
        self._number += 1
        self.world.barrier()

    def finish(self) -> RunResult | None:
        """Write the complete result and the step log; the spools have done their service."""
        if self.world.rank != 0:
            return None
        write_steps(self.job.out, np.concatenate(self._steps))
        result = self._write("complete", "")
        remove_spools(self.job.out)
        return result

    def _write(self, status: Any, reason: str) -> RunResult:
        result = result_of(self.job, self.manifest, self.kind, status, self.points, self._environment, reason)
        write_result(self.job.out, result)
        return result


def _line(point: Point) -> str:
    return (
        f"{_ranks(point.ranks)}: {point.samples_per_second:.4g} samples/s, "
        f"{show_rate(point.bytes_per_second)}, AU {100 * point.au:.1f} %, {show_seconds(point.seconds)}"
    )


class _Progress:
    """A line every few seconds, so that a long point does not look hung."""

    def __init__(self, say: Say, length: int) -> None:
        self._say = say
        self._length = length
        self._next = time.monotonic() + PROGRESS_SECONDS

    def show(self, steps: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_SECONDS
            self._say(f"    step {steps + 1} of {self._length}")
