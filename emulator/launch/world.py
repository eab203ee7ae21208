"""The world of ranks: those that mpirun or srun started, or those that are forked here."""

from __future__ import annotations

from pathlib import Path

from emulator.errors import LaunchError
from emulator.launch.comm import Comm
from emulator.launch.forked import Work, fork_ranks
from emulator.launch.launched import started_by_mpi


def world(expected: int | None = None) -> Comm:
    """Return all ranks that mpirun or srun started; a world of one if this process was started alone.

    The first call is collective. Raises LaunchError if there is no MPI or not the launcher's, if the ranks do
    not see each other, if their number is not `expected` (that of -n), or if hosts run different versions of
    feedrate.
    """
    if not started_by_mpi():
        return Comm()
    from emulator.launch.mpi import mpi_world  # here: only these ranks need MPI

    comm = mpi_world()
    if expected not in (None, comm.size):
        raise LaunchError(f"-n {expected} was given, but mpirun started {comm.size} ranks", "leave -n out")
    return comm


def on_ranks(work: Work, ranks: int | None = None, usual: int | None = None, out: Path | None = None) -> int:
    """Run `work` on the ranks of mpirun or srun, else on `ranks` or `usual` forked ones; return the status.

    Without either number, this process does the work. `out` is the folder of the result. Raises LaunchError,
    and what `work` raises unless ranks are forked.
    """
    number = ranks or usual
    if number is None or started_by_mpi():
        return work(world(expected=ranks)) or 0
    return fork_ranks(number, work, out)
