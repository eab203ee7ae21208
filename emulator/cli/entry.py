"""Where every process of feedrate begins: the first rank reads the command line, the others follow it."""

from __future__ import annotations

import sys
from contextlib import suppress

from emulator.cli.follow import VERBS, dismiss, follow
from emulator.errors import FeedrateError, LaunchError
from emulator.run.comm import rank_hint, started_by_mpi, world


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
