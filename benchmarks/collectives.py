"""Times each collective of `run.comm` beside the pickle that mpi4py would send for every rank.

    mpirun --oversubscribe --bind-to none -n 256 python benchmarks/collectives.py

The median of ten, each from the moment that the last rank is there until the last one has it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from mpi4py import MPI

from emulator.run.comm import STEP_POLL, MpiComm, agreed

ROUNDS = 10


def timed(comm: MpiComm, action: Callable[[], object]) -> float:
    """Median seconds of `action()`. Collective."""
    seconds = []
    for _ in range(ROUNDS):
        comm.barrier(STEP_POLL)
        began = time.monotonic()  # one clock for all ranks of this host
        action()
        began, ended = comm.max(np.array([began, time.monotonic()]))
        seconds.append(ended - began)
    return median(seconds)


def main() -> None:
    comm = MpiComm(MPI.COMM_WORLD)
    ask = {
        "barrier": comm.barrier,
        "hosts": lambda: MpiComm(MPI.COMM_WORLD).hosts(),
        "node, hosts known": lambda: MpiComm(MPI.COMM_WORLD).split(comm.hosts().index(socket.gethostname())),
        "agreed": lambda: agreed(comm, lambda: None),
        "sum of 8192": lambda: comm.sum(np.zeros(8192)),
        "all, 2 numbers each": lambda: comm.all(np.zeros((1, 2))),
        "bcast of a token": lambda: comm.bcast(bytes(32)),
        "allgather of pickled names": lambda: comm.allgather(socket.gethostname()),
    }
    for name, action in ask.items():
        seconds = timed(comm, action)
        if comm.rank == 0:
            print(f"| {name} | {comm.size} | {1e3 * seconds:.1f} ms |", flush=True)


main()
