"""Start the ranks of a checkpoint run."""

from __future__ import annotations

import sys

from emulator.errors import FeedrateError, SpecError, StorageError
from emulator.launch.comm import Comm, Quiet
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.watch import briefly, storage_timeout
from emulator.launch.world import on_ranks
from emulator.plugins.checkpoint import cycle
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.job import CheckpointJob, check
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.units import counted

_SWEEP_SECONDS_OF_FAILED_STORAGE = 1.0
"""Time limit for the removal of leftovers after the storage has failed, because it may hang."""


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
        lines: list[str] = []
        failed = status == StorageError.exit_code
        seconds = _SWEEP_SECONDS_OF_FAILED_STORAGE if failed else storage_timeout(sys.argv[1:])
        briefly(lambda: lines.extend(sweep_up(job)), seconds)
        for line in lines:
            print(f"feedrate: {line}", file=sys.stderr)
    raise Quiet(status)


def sweep_up(job: CheckpointJob) -> list[str]:
    """Remove unfinished checkpoints of killed ranks, and return messages. Never raises."""
    try:
        with place.locked(job.root):
            gone = [f"removed {name}, which a run that died had left" for name in place.clean(job.root)]
            kept = place.complete(job.root)
    except FeedrateError as error:
        return [str(error)]
    verb = "is" if len(kept) == 1 else "are"
    return [*gone, *([f"{counted(len(kept), 'complete checkpoint')} {verb} in {job.root}"] if kept else [])]
