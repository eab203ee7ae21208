"""One MPI world, many points: ranks start once, and every count runs on a part of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.dataset.manifest import Manifest, read_manifest
from emulator.record.result import Kind, Point, RunResult
from emulator.record.store import Spool
from emulator.run.comm import Comm
from emulator.run.guard import agreed, guarded
from emulator.run.job import Job
from emulator.run.point import course_of, run_point
from emulator.sweep.placement import activation_order
from emulator.sweep.schedule import Schedule
from emulator.units import show_rate, show_seconds

if TYPE_CHECKING:
    from emulator.sweep.book import Book

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
    from emulator.sweep.book import Book

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
