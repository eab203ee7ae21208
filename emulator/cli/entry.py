"""The start of every process of feedrate. Rank 0 reads the command line; the other ranks follow rank 0."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import suppress

from emulator.errors import FeedrateError, LaunchError
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.supervise import supervised, tell_status
from emulator.launch.watch import DEFAULT_TIMEOUT, leave_status, storage_timeout, watch_rank
from emulator.run.world import world

_LAST_WORDS_SECONDS = 2.0
"""Time that other ranks wait when MPI does not start: the launcher ends all ranks when one ends, and rank 0
still has to print the error."""
TOGETHER = ("ask", "run", "sweep")
"""Commands whose other ranks follow rank 0 (`sweep.ranks.follow`)."""
OF_PROGRAMS = ("record",)
"""Commands that run a user's program: signals are meant for it, and it may be a rank, but they are none."""


def open_streams() -> None:
    """Make stdin, stdout and stderr usable: closed, in any encoding, whatever the locale is.

    The number of a closed one would go to the next file that is opened, and what is printed into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            lowest = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(lowest, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a middle dot in an ASCII locale


def entry() -> None:
    """Run the command, or follow rank 0 as one of the other ranks. Never returns."""
    open_streams()
    # Open MPI needs a home. Schedulers may set none, and a container's user ID may be in no passwd file.
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises
    os.environ.setdefault("HOME", "/" if home == "~" else home)
    together = len(sys.argv) > 1 and sys.argv[1] in TOGETHER and started_by_mpi()
    try:
        timeout = storage_timeout(sys.argv[1:])
    except FeedrateError:
        timeout = DEFAULT_TIMEOUT  # the command line reports the error
    runs_a_program = len(sys.argv) > 1 and sys.argv[1] in OF_PROGRAMS
    if started_by_mpi() and not runs_a_program:
        watch_rank(rank_hint(), timeout)
    else:
        supervised(timeout, runs_a_program=runs_a_program)
    try:
        if together and rank_hint() > 0:
            comm = world()
            from emulator.sweep.ranks import follow  # after MPI_Init, in which ranks wait for the last one

            followed = follow(comm)
            leave_status(followed)
            raise SystemExit(followed)
    except FeedrateError as error:  # rank 0 meets the same error and prints it
        time.sleep(_LAST_WORDS_SECONDS)
        raise SystemExit(error.exit_code) from None
    if together:
        # MPI_Init before imports: ranks poll in it until the last one comes, and take the CPU that it needs.
        try:
            world()
        except LaunchError as error:
            print(f"feedrate: error: {error}", file=sys.stderr, flush=True)
            raise SystemExit(error.exit_code) from None
    status = 1
    try:
        from emulator.cli.main import command

        status = command()
    finally:
        if together:
            with suppress(LaunchError):
                world().bcast(status)
        tell_status(status)
    if started_by_mpi():
        leave_status(status)
    raise SystemExit(status)


def rank_server() -> None:
    """Serve forked ranks that run `entry`: the main function of the fork server's process."""
    from emulator.launch.forkserver import serve_ranks

    serve_ranks(entry)
