"""The world of ranks: those that mpirun or srun started, or those that are forked here."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import emulator
from emulator.errors import LaunchError
from emulator.launch.comm import Comm, agreed
from emulator.launch.forked import Work, fork_ranks
from emulator.launch.launched import started_by_mpi
from emulator.record.machine import installed

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


def compared(comm: Comm, library: str) -> str:
    """Return how the hosts' software differs, as text. Ends all ranks if it must not differ. Collective."""
    node = comm.node()
    if node.size == comm.size:
        return ""
    facts = comm.gather((socket.gethostname(), _software(library)) if node.rank == 0 else None)
    return str(comm.bcast(agreed(comm, lambda: differences(dict(filter(None, facts))))))


def _software(library: str) -> dict[str, str]:
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
        "MPI": library,
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
