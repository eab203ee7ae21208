"""Where every process of feedrate begins: rank 0 reads the command line, the other ranks follow it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from emulator.errors import FeedrateError, LaunchError
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.watch import DEFAULT_TIMEOUT, storage_timeout, supervised, tell_status, watch_rank
from emulator.run.comm import world

_LAST_WORDS_SECONDS = 2.0
"""How long ranks after the first stay when MPI does not start: a launcher ends all when one has ended."""
TOGETHER = ("run", "sweep")
"""The commands whose ranks after the first follow rank 0 (sweep.session)."""
ALONE = ("record",)
"""The commands whose time is a job's of the user: it may hang, and signals are for it."""


def entry() -> None:
    """Run the command, or as a rank after the first follow rank 0."""
    together = len(sys.argv) > 1 and sys.argv[1] in TOGETHER and started_by_mpi()
    try:
        timeout = storage_timeout(sys.argv[1:])
    except FeedrateError:
        timeout = DEFAULT_TIMEOUT  # the command line says what is wrong with it
    if len(sys.argv) < 2 or sys.argv[1] not in ALONE:
        if started_by_mpi():
            watch_rank(rank_hint(), timeout)
        else:
            supervised(timeout)
    try:
        if together and rank_hint() > 0:
            comm = world()  # before any import
            from emulator.sweep.ranks import follow  # after MPI: the last rank to start is not kept waiting

            raise SystemExit(follow(comm))
    except FeedrateError as error:  # rank 0 has met it too, and says so
        time.sleep(_LAST_WORDS_SECONDS)
        raise SystemExit(error.exit_code) from None
    if together:
        # MPI first: until the last rank has initialised it, the others poll in there and take the CPU that
        # the last one needs. Afterwards they wait politely.
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
    raise SystemExit(status)


def rank_server() -> None:
    """Fork ranks of this machine: what the process of launch.forkserver calls."""
    from emulator.launch.forkserver import serve_ranks

    serve_ranks(entry)
