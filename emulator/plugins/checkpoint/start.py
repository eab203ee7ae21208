"""Start a checkpoint run with mpirun, or join one as a rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emulator.cli.entry import rank_server
from emulator.errors import FeedrateError, SpecError, StorageError
from emulator.launch.forkserver import Preload
from emulator.launch.launched import started_by_mpi
from emulator.launch.mpirun import launch
from emulator.launch.watch import briefly, storage_timeout
from emulator.plugins.checkpoint import cycle
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.job import CheckpointJob, check
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.run.comm import Quiet
from emulator.run.world import world
from emulator.units import counted

_SWEEP_SECONDS_OF_FAILED_STORAGE = 1.0
"""Time limit for the removal of leftovers after the storage has failed, because it may hang."""


def run_checkpoint(
    job: CheckpointJob, words: Sequence[str], ranks: int | None = None, *, force: bool = False
) -> RunResult | None:
    """Run `job` and return its result; under mpirun on rank 0, None on others.

    Otherwise this starts `ranks` ranks of `feedrate WORDS` (None for as many as the model has). Raises
    FeedrateError before the start, Quiet after an error that a rank has reported.
    """
    if started_by_mpi():
        return cycle.measure(job, world(expected=ranks), force=force)
    ranks = ranks or job.usual_ranks
    check(job, ranks, force)
    status = launch(ranks, words, job.out, Preload(rank_server, [cycle]))
    if not status:
        return read_result(job.out)
    if status != SpecError.exit_code:  # a refused run has left nothing
        lines: list[str] = []
        failed = status == StorageError.exit_code
        seconds = _SWEEP_SECONDS_OF_FAILED_STORAGE if failed else storage_timeout(words)
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
