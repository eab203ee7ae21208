"""The barrier of a training step: asleep in the kernel, woken within microseconds.

An MPI barrier that polls needs a look for each of its log2(ranks) rounds: with 64 ranks on a node and a
millisecond of sleep between looks it took 30 ms a step. Here the ranks of a node sleep in a read of a
pipe; only the first rank of each node talks to the other nodes through MPI.

The first rank is woken once, by the last of the others, who sees in the pipe that all have arrived: on
busy cores each time that it is woken is a wait for a core.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import termios
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator.errors import storage_error
from emulator.run.comm import STEP_POLL, Comm

_NAMES = ("arrive", "full", "leave-0", "leave-1")


class StepBarrier:
    """Makes all ranks of `comm` wait for each other. Made and closed by all of them.

    Ranks say that they have arrived with a byte in one pipe, and leave with a byte from another; who finds
    all bytes in the first says so in a third. Two may find that, so it is a hint and the bytes are counted.
    Two pipes to leave by, in turn: a fast rank that is in the next barrier already must not take the byte
    of a slow one.
    """

    def __init__(self, comm: Comm, node: Comm) -> None:
        self._others = node.size - 1
        self._first = node.rank == 0
        leaders = comm.split(0 if self._first else 1)
        self._leaders = leaders if self._first and leaders.size > 1 else None
        self._pipes = _open_pipes(node) if self._others else []
        self._turn = 0

    def wait(self) -> None:
        """Return when every rank of the group has called this."""
        if self._first:
            self._collect()
            if self._leaders is not None:
                self._leaders.barrier(STEP_POLL)
            if self._others:
                os.write(self._pipes[2 + self._turn], bytes(self._others))
        else:
            self._arrive()
            os.read(self._pipes[2 + self._turn], 1)
        self._turn = 1 - self._turn

    def _arrive(self) -> None:
        arrive, full = self._pipes[:2]
        os.write(arrive, b"\0")
        if _waiting(arrive) == self._others:
            os.write(full, b"\0")

    def _collect(self) -> None:
        missing = self._others
        if missing:
            os.read(self._pipes[1], missing)  # all that is there: an older hint may be among it
        while missing:
            missing -= len(os.read(self._pipes[0], missing))

    def close(self) -> None:
        """Let go of the pipes; a second call does nothing."""
        while self._pipes:
            os.close(self._pipes.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _waiting(pipe: int) -> int:
    """Bytes that can be read from it."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _open_pipes(node: Comm) -> list[int]:
    """The pipes of this node, open in every rank, their names gone again. Raises StorageError."""
    folder = None
    try:
        if node.rank == 0:
            folder = tempfile.mkdtemp(
                prefix="feedrate-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            )
            for name in _NAMES:
                os.mkfifo(Path(folder) / name, 0o600)
        place = Path(node.bcast(folder))
        # Open for both directions: nobody waits for a peer to open, and nobody sees an end of file.
        pipes = [os.open(place / name, os.O_RDWR | os.O_CLOEXEC) for name in _NAMES]
        node.barrier()
    except OSError as error:
        raise storage_error(error, "cannot make the pipes of the step barrier") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return pipes
