"""Which ranks of the world are active at a process count: spread over hosts, pure."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.config.reader import build, to_plain
from emulator.config.storage import Place, StorageSpec
from emulator.config.workload import Workload
from emulator.dataset.manifest import Manifest, read_manifest
from emulator.errors import SpecError
from emulator.record.folder import continue_out, prepare_out, read_result, write_result
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.result import Kind, Point, RunResult, Status
from emulator.record.steps import STEP, Spool, Steps, read_steps, remove_spools, write_steps
from emulator.run.comm import Comm, agreed, guarded
from emulator.run.point import Job, RankReport, course_of, run_point
from emulator.run.selftest import self_test
from emulator.storage import open_store
from emulator.storage.objects import ObjectStore
from emulator.sweep.schedule import Schedule
from emulator.sweep.summary import dataset_facts, result_of, summarise
from emulator.units import show_rate, show_seconds


def activation_order(hosts: Sequence[str]) -> list[int]:
    """World ranks in the order in which they become active, given each world rank's host.

    The first rank of every host, then the second of every host, and so on: n active ranks are spread
    over the hosts as evenly as their slots allow. World rank 0 always comes first.
    """
    seen: Counter[str] = Counter()
    place = []
    for rank, host in enumerate(hosts):
        place.append((seen[host], rank))
        seen[host] += 1
    return [rank for _, rank in sorted(place)]


# ---- Going on with a sweep that was interrupted: what it has is kept, if it measured the same thing.


def reopen(job: Job, manifest: Manifest) -> tuple[tuple[Point, ...], Steps]:
    """The complete points of OUT and their steps; what a point that was cut off left is dropped.

    Fields that an older version did not write have their default values. Raises SpecError when OUT is no
    sweep, or not of this job.
    """
    result = read_result(job.out)
    if result.kind != "sweep":
        raise SpecError(
            f"{job.out} holds a {result.kind}, not a sweep", "give the OUT of a sweep to --resume"
        )
    facts = _plain(dataset_facts(job, manifest))
    same = {
        "workload": build(Workload, result.workload, path=("workload",)) == job.workload,
        "dataset": all(name in facts and facts[name] == value for name, value in result.dataset.items()),
        "storage": build(StorageSpec, result.storage, path=("storage",)) == job.storage,
        "loader": result.loader == job.loader,
    }
    for name, holds in same.items():
        if not holds:
            raise SpecError(
                f"the sweep in {job.out} was of another {name}", "resume with the options it was started with"
            )
    steps = read_steps(job.out)
    kept = steps[steps["point"] < len(result.points)]
    continue_out(job.out, kept)
    return result.points, kept


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` as JSON gives them back."""
    return {name: to_plain(value) for name, value in facts.items()}


# ---- What rank 0 keeps of a sweep: points, steps, environment; run.json after every point.


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
    if isinstance(place, Path):
        return describe_mount(place)
    store = open_store(place)
    assert isinstance(store, ObjectStore)
    return store.describe()


# ---- One MPI world, many points: ranks start once, and every count runs on a part of them.


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
        hosts = world.allgather(socket.gethostname())
        book = agreed(
            world, lambda: _open_book(job, kind, manifest, hosts, force, resume) if world.rank == 0 else None
        )
        session = _Session(job, manifest, world, hosts, book)
        with agreed(world, lambda: Spool(job.out, world.rank)) as spool:
            while True:
                count = world.bcast(schedule.next_count(book.points) if book else None)
                if count is None:
                    break
                if book:
                    say(f"{schedule.outlook(book.points)}: {_ranks(count)}")
                session.point(count, spool, say)
        return book.close(schedule.verdict(book.points), say) if book else None


def _open_book(
    job: Job, kind: Kind, manifest: Manifest, hosts: Sequence[str], force: bool, resume: bool
) -> Book:
    # Imported by rank 0 alone: what it needs to sum up would cost every rank a tenth of a second of CPU.

    return Book.open(job, kind, manifest, hosts, force=force, resume=resume)


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


@dataclass
class _Session:
    """The world of ranks over the points; what they measured is in the book of rank 0."""

    job: Job
    manifest: Manifest
    world: Comm
    hosts: Sequence[str]
    book: Book | None
    """On rank 0 only."""

    def __post_init__(self) -> None:
        self._number: int = self.world.bcast(len(self.book.points) if self.book else 0)

    def point(self, count: int, spool: Spool, say: Say) -> None:
        """Run `count` ranks; the others sleep until they are done."""
        active = set(activation_order(self.hosts)[:count])
        group = self.world.split(0 if self.world.rank in active else 1)
        if self.world.rank in active:
            length = course_of(self.job, self.manifest, self._number, count).length
            progress = _Progress(say, length)
            reports = run_point(self.job, self.manifest, self._number, group, spool, progress.show)
            if self.book:
                say("  " + _line(self.book.add(count, reports)))
        self._number += 1
        self.world.barrier()


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
