"""The start of every process of feedrate."""

from __future__ import annotations

import atexit
import io
import os
import sys
import time

from emulator import notes
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.process import end_process
from emulator.launch.supervise import supervised, tell_status, watched

_LAST_WORDS_SECONDS = 2.0
"""Time that other ranks wait after an error: when one ends, their launcher ends all, and rank 0 still has to
print it."""
WITH_RANKS = ("ask", "checkpoint", "generate", "run", "sweep", "verify")
"""Commands that fork ranks with -n."""
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
    """Run the command. Never returns."""
    status = 1
    open_streams()
    # Open MPI needs a home. Schedulers may set none, and a container's user ID may be in no passwd file.
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises
    os.environ.setdefault("HOME", "/" if home == "~" else home)
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in WITH_RANKS:
        for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            # Ranks only read: a thread pool for linear algebra would waste memory, and not survive a fork.
            os.environ.setdefault(variable, "1")
    joined = started_by_mpi() and verb not in OF_PROGRAMS
    if joined:
        watched(rank_hint())
    else:
        # CPython's shutdown ends threads of libraries that want to return to it. In those of obstore that
        # aborts the process (9 of 60 listings on a busy machine). So it ends before, after all other exit
        # functions: the first that is registered runs last. With MPI it does not: MPI needs that shutdown.
        atexit.register(lambda: end_process(status))
        supervised(runs_a_program=verb in OF_PROGRAMS)
    notes.note_file_calls()
    try:
        from emulator.cli.main import command

        status = command()
    finally:
        if joined and status and rank_hint():
            time.sleep(_LAST_WORDS_SECONDS)
        tell_status(status)
    raise SystemExit(status)
