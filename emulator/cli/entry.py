"""Where every process of feedrate begins: rank 0 reads the command line, the other ranks follow it."""

from __future__ import annotations

import sys
from contextlib import suppress

from emulator.errors import FeedrateError, LaunchError
from emulator.registry import load
from emulator.run.comm import rank_hint, started_by_mpi, world
from emulator.run.watch import DEFAULT_TIMEOUT, storage_timeout, supervised, watch_rank

TOGETHER = ("run", "sweep")
"""The commands whose ranks after the first follow rank 0 (sweep.session)."""


def entry() -> None:
    """Run the command, or as a rank after the first follow rank 0."""
    together = len(sys.argv) > 1 and sys.argv[1] in TOGETHER and started_by_mpi()
    try:
        timeout = storage_timeout(sys.argv[1:])
    except FeedrateError:
        timeout = DEFAULT_TIMEOUT  # the command line says what is wrong with it
    if started_by_mpi():
        watch_rank(rank_hint(), timeout)
    else:
        supervised(timeout)
    try:
        if together and rank_hint() > 0:
            comm = world()  # before any import
            raise SystemExit(load("sweep.session:follow")(comm))
    except FeedrateError as error:  # rank 0 has met it too, and said so
        raise SystemExit(error.exit_code) from None
    if together:
        # MPI first: until the last rank has initialised it, the others poll in there and take the CPU that
        # the last one needs. Afterwards they wait politely. Where there is no MPI, the command says so.
        with suppress(LaunchError):
            world()
    status = 1
    try:
        status = load("cli.main:command")()
    finally:
        if together:
            with suppress(LaunchError):
                world().bcast(status)
    raise SystemExit(status)
