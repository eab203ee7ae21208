"""Where every process of feedrate begins: the first rank reads the command line, the others follow it."""

from __future__ import annotations

import sys

from emulator.cli.follow import VERBS, dismiss, follow
from emulator.errors import FeedrateError
from emulator.run.comm import rank_hint, started_by_mpi


def entry() -> None:
    """Run the command, or as a rank after the first do what it is told to."""
    together = sys.argv[1:2] and sys.argv[1] in VERBS and started_by_mpi()
    if together and rank_hint() > 0:
        try:
            follow()
        except FeedrateError as error:  # rank 0 has met it too, and said so
            raise SystemExit(error.exit_code) from None
    from emulator.cli.main import command

    status = 1
    try:
        status = command()
    finally:
        if together:
            dismiss(status)
    raise SystemExit(status)
