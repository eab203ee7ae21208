"""Suites: access patterns, queue depths and their order.

Sources: the two WekaFS briefs (2020: 9 clients x 8 jobs; 2023: 12 clients x 32 jobs) and the
noisy-neighbour brief (2023); results/README.md has their titles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from emulator.errors import SpecError
from emulator.units import counted

KIB = 1024
MIB = 1024 * KIB

PatternKind = Literal["random", "sequential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access pattern of a fio job."""

    pattern: PatternKind
    block_bytes: int
    read_share: float
    """Share of the requests that read (0 to 1)."""

    @property
    def name(self) -> str:
        """Name, such as `4 KiB random read`, `4 KiB random 70 % read` or `1 MiB sequential write`."""
        size = self.block_bytes
        block = f"{size // MIB} MiB" if size % MIB == 0 else f"{size / KIB:g} KiB"
        reads = {1.0: "read", 0.0: "write"}.get(self.read_share, f"{self.read_share * 100:.0f} % read")
        return f"{block} {self.pattern} {reads}"

    @property
    def slug(self) -> str:
        """Name for files and fio's jobs, such as `4-kib-random-70-read`."""
        return re.sub(r"\W+", "-", self.name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One section of a job file."""

    access: Access
    depth: int
    """Requests in flight of each job."""
    jobs: int
    """Number of jobs, each with its own file."""
    first_file: int = 0
    rate: float | None = None
    """Most bytes/s of all jobs together; None for no limit."""
    beside: str = ""
    """Its neighbours: `nothing`, `writers` or `readers`; empty outside of a noisy-neighbour suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of the tool on a number of clients at once."""

    name: str
    tasks: tuple[Task, ...]
    clients: int

    @property
    def title(self) -> str:
        tasks = (f"{task.access.name}, depth {task.depth}" for task in self.tasks)
        return f"{' beside '.join(tasks)}, {counted(self.clients, 'client')}"


DEPTHS = (1, 2, 4, 8, 16, 32)
QUICK_DEPTHS = (1, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Default sizes and times of a suite."""

    file_bytes: int
    """Bytes of a job's file."""
    seconds: float
    """Measured time of a turn."""
    ramp_seconds: float
    """Seconds of ramp-up before it."""


FULL = Effort(file_bytes=2**30, seconds=30.0, ramp_seconds=5.0)
QUICK = Effort(file_bytes=64 * 2**20, seconds=2.0, ramp_seconds=0.2)


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of access patterns with queue depths and jobs."""

    name: str
    title: str
    accesses: tuple[Access, ...]
    depths: tuple[int, ...] = DEPTHS
    jobs: int = 8
    """Jobs of a client."""


def _random(*read_shares: float) -> tuple[Access, ...]:
    return tuple(Access(pattern="random", block_bytes=4 * KIB, read_share=share) for share in read_shares)


def _sequential(*blocks: int) -> tuple[Access, ...]:
    return tuple(
        Access(pattern="sequential", block_bytes=block, read_share=share)
        for block in blocks
        for share in (0.0, 1.0)
    )


_FOUR_CORNERS = _sequential(MIB) + _random(0.0, 1.0)
_MIXED = _random(0.0, 0.3, 0.5, 0.7, 1.0)
_SEQUENTIAL = _sequential(128 * KIB, MIB)
NOISY = "noisy-neighbour"

SUITES = {
    suite.name: suite
    for suite in (
        Suite("four-corners", "fio, four corners: random and sequential, reads and writes", _FOUR_CORNERS),
        Suite("mixed", "fio, 4 KiB random reads and writes in five proportions", _MIXED),
        Suite("sequential", "fio, sequential reads and writes of 128 KiB and 1 MiB", _SEQUENTIAL),
        Suite(
            "weka2023", "fio, as the WekaFS brief of 2023: 32 jobs a client", _SEQUENTIAL + _MIXED, jobs=32
        ),
        Suite(NOISY, "fio, noisy neighbour: readers at queue depth 1 beside writers at 8", (), (), 1),
    )
}


def find_suite(name: str) -> Suite:
    """Return the suite of that name. Raises SpecError."""
    if name not in SUITES:
        raise SpecError(f"--suite {name!r} is not known", "use one of: " + ", ".join(SUITES))
    return SUITES[name]


def tuned(suite: Suite, depths: Sequence[int] | None, jobs: int | None) -> Suite:
    """Return `suite` with other queue depths or jobs. Raises SpecError if it has fixed ones."""
    if suite.name == NOISY and (depths or jobs):
        raise SpecError(
            "the noisy-neighbour suite fixes its depths and jobs", "leave --depths and --jobs out"
        )
    return replace(suite, depths=tuple(depths or suite.depths), jobs=jobs or suite.jobs)


def turns(suite: Suite, clients: Sequence[int]) -> tuple[Turn, ...]:
    """Return the runs of fio, in order.

    Sequential comes before random, and writes before reads: so each pattern reads files that were last
    written with its own pattern, and no unwritten blocks.
    """
    if suite.name == NOISY:
        return tuple(turn for count in clients for turn in _noisy(count))
    accesses = sorted(
        suite.accesses, key=lambda access: (access.pattern == "random", access.read_share, access.block_bytes)
    )
    return tuple(
        Turn(
            name=f"{access.slug}-qd{depth}-c{count}",
            tasks=(Task(access=access, depth=depth, jobs=suite.jobs),),
            clients=count,
        )
        for access in accesses
        for count in clients
        for depth in suite.depths
    )


def neighbour_tasks(read: bool, first_file: int = 0, beside: str = "") -> tuple[Task, ...]:
    """Return three jobs of 4, 8 and 16 KiB: readers at queue depth 1, writers at 8."""
    return tuple(
        Task(
            access=Access(pattern="random", block_bytes=block, read_share=float(read)),
            depth=1 if read else 8,
            jobs=1,
            first_file=first_file + number,
            beside=beside,
        )
        for number, block in enumerate((4 * KIB, 8 * KIB, 16 * KIB))
    )


def _noisy(clients: int) -> tuple[Turn, ...]:
    together = neighbour_tasks(False, 0, "readers") + neighbour_tasks(True, 3, "writers")
    return (
        Turn(name=f"writers-alone-c{clients}", tasks=neighbour_tasks(False, 0, "nothing"), clients=clients),
        Turn(name=f"readers-alone-c{clients}", tasks=neighbour_tasks(True, 3, "nothing"), clients=clients),
        Turn(name=f"together-c{clients}", tasks=together, clients=clients),
    )


def files_needed(planned: Sequence[Turn]) -> int:
    """Return the number of files that the turns need on a client."""
    return max((task.first_file + task.jobs for turn in planned for task in turn.tasks), default=0)
