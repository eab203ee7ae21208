"""Start the ranks of a checkpoint run."""

from __future__ import annotations

import sys

from emulator import notes
from emulator.errors import FeedrateError, SpecError, StorageError
from emulator.launch.comm import Comm, Quiet
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.watch import briefly
from emulator.launch.world import on_ranks
from emulator.plugins.checkpoint import cycle
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.job import CheckpointJob, check
from emulator.record.out import read_result
from emulator.record.result import RunResult


def run_checkpoint(job: CheckpointJob, ranks: int | None = None, *, force: bool = False) -> RunResult | None:
    """Run `job` on `ranks` ranks (None for as many as the model has) and return its result.

    Under mpirun, its ranks do so, and those after the first return None. Raises FeedrateError before the
    start, Quiet after an error that a rank has reported.
    """

    def work(comm: Comm) -> int:
        cycle.measure(job, comm, force=force)
        return 0

    if not started_by_mpi():
        check(job, ranks or job.usual_ranks, force)
    status = on_ranks(work, ranks, job.usual_ranks, job.out)
    if not status:
        return None if rank_hint() else read_result(job.out)
    if status != SpecError.exit_code:  # a refused run has left nothing
        failed = status == StorageError.exit_code  # then it may hang
        briefly(lambda: sweep_up(job), 1.0 if failed else notes.timeout())
    raise Quiet(status)


def sweep_up(job: CheckpointJob) -> None:
    """Remove what killed ranks have left, and say so on stderr. Never raises."""
    try:
        with place.locked(job.root):
            for name in place.clean(job.root):
                print(f"feedrate: removed {name}, which a run that died had left", file=sys.stderr)
    except FeedrateError as error:
        print(f"feedrate: {error}", file=sys.stderr)
