"""Lines for people."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from emulator.errors import FeedrateError, LaunchError
from emulator.run.comm import Comm, rank_hint, started_by_mpi, world

if TYPE_CHECKING:
    from emulator.record.result import Kind, RunResult
    from emulator.run.point import Job
    from emulator.sweep.schedule import Schedule


def say(line: str) -> None:
    """A line of progress or of a result, at once."""
    print(line, flush=True)


# ---- What ranks after the first do: they are told, and need no command line of their own.
#
# Reading the command line and the workload costs a rank as much CPU as all the rest of its start; sixty-four
# of them on two cores notice. So rank 0 alone reads it, hands the task to the others, and says when to end.


VERBS = ("run", "sweep")
"""The commands whose ranks are led like this."""


@dataclass(frozen=True, slots=True)
class Task:
    """A measurement, as every rank has to know it."""

    job: Job
    kind: Kind
    force: bool
    resume: bool


def carry_out(task: Task, schedule: Schedule, comm: Comm) -> RunResult | None:
    """Measure; the result on rank 0, whose `schedule` it is that counts. Collective over `comm`."""
    from emulator.cli.noise import noise_beside
    from emulator.sweep.session import measure

    with noise_beside(task.job, comm):
        return measure(task.job, task.kind, schedule, comm, force=task.force, resume=task.resume, say=say)


def follow() -> NoReturn:
    """Carry out what rank 0 hands out, until it says with which status to end. Raises LaunchError."""
    from emulator.run.comm import Quiet
    from emulator.sweep.schedule import FixedCounts

    comm = world()
    while not isinstance(word := comm.bcast(None), int):
        with suppress(Quiet):  # all ranks failed together: rank 0 has said why, and ends as well
            carry_out(word, FixedCounts(()), comm)
    raise SystemExit(word)


def dismiss(status: int) -> None:
    """On rank 0: let the others end, with that status."""
    with suppress(LaunchError):  # without MPI there are no others
        world().bcast(status)


# ---- Where every process of feedrate begins: the first rank reads the command line, the others follow it.


def entry() -> None:
    """Run the command, or as a rank after the first do what it is told to."""
    together = len(sys.argv) > 1 and sys.argv[1] in VERBS and started_by_mpi()
    if together and rank_hint() > 0:
        try:
            follow()
        except FeedrateError as error:  # rank 0 has met it too, and said so
            raise SystemExit(error.exit_code) from None
    if together:
        _meet()
    from emulator.cli.main import command

    status = 1
    try:
        status = command()
    finally:
        if together:
            dismiss(status)
    raise SystemExit(status)


def _meet() -> None:
    """Initialise MPI before anything that takes time: all others poll in there until the last one comes.

    Sixty-three of them take the CPU that the last one needs to come. Once inside, they wait politely.
    """
    with suppress(LaunchError):  # the command says so, if it needs ranks at all
        world()
