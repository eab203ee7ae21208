"""The barrier of a training step: asleep in the kernel, woken within microseconds.

An MPI barrier that polls needs a look for each of its log2(ranks) rounds: with 64 ranks on a node and a
millisecond of sleep between looks it took 30 ms a step. Here the ranks of a node sleep until a pipe can be
read; only the first rank of each node talks to the other nodes through MPI.

On busy cores each time that a rank is woken is a wait for a core, so nobody waits for another's. The
first rank is woken once, by the last of the others, who sees in the pipe that all have arrived. The
others sleep in poll(2), which one write wakes all together; of those who sleep in read(2) each wakes the
next one, when it has got a core.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator.errors import storage_error
from emulator.run.comm import STEP_POLL, Comm

_NAMES = ("arrive", "full", "leave-0", "leave-1")
_MOMENT = struct.Struct("=d")
"""What goes through a pipe: seconds of CLOCK_MONOTONIC, which all processes of a machine share."""
_EXCHANGE_SECONDS = 2 * STEP_POLL
"""Seconds that a node takes to find out that it need not wait for another."""


class StepBarrier:
    """Makes all ranks of `comm` wait for each other. Made and closed by all of them.

    Each says through one pipe when its step was computed, and leaves with the last of these moments from
    another; who finds all in the first says so in a third. Two may find that, so it is a hint, and they are
    counted. Two pipes to leave by, in turn: a fast rank that is in the next barrier already must not take
    what is a slow one's.
    """

    def __init__(self, comm: Comm, node: Comm) -> None:
        self._others = node.size - 1
        self._first = node.rank == 0
        leaders = comm.split(0 if self._first else 1)
        self._leaders = leaders if self._first and leaders.size > 1 else None
        self._pipes = _open_pipes(node) if self._others else []
        self._leave = [_readable(pipe) for pipe in self._pipes[2:]]
        self._turn = 0

    def wait(self, end: float) -> float:
        """Return when every rank of the group has called this.

        `end` is that of this rank's step, in seconds of time.monotonic; the last of all ranks' is returned.
        Clocks of other nodes cannot be compared: where another node held this one up it is the moment when
        that was over.
        """
        leave = self._pipes[2 + self._turn] if self._others else -1
        if self._first:
            last = max([end, *self._collect()])
            if self._leaders is not None:
                last = _later(last, self._leaders)
            if self._others:
                os.write(leave, _MOMENT.pack(last) * self._others)
        else:
            self._arrive(end)
            self._leave[self._turn].poll()
            (last,) = _MOMENT.unpack(os.read(leave, _MOMENT.size))
        self._turn = 1 - self._turn
        return last

    def _arrive(self, end: float) -> None:
        arrive, full = self._pipes[:2]
        os.write(arrive, _MOMENT.pack(end))
        if _waiting(arrive) == self._others * _MOMENT.size:
            os.write(full, b"\0")

    def _collect(self) -> list[float]:
        """What the others of this node have said."""
        said = b""
        missing = self._others * _MOMENT.size
        if missing:
            os.read(self._pipes[1], self._others)  # all that is there: an older hint may be among it
        while len(said) < missing:
            said += os.read(self._pipes[0], missing - len(said))
        return [moment for (moment,) in _MOMENT.iter_unpack(said)]

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


def _later(last: float, leaders: Comm) -> float:
    """Wait for the other nodes: `last`, or the moment when they no longer held this one up."""
    begin = time.monotonic()
    leaders.barrier(STEP_POLL)
    now = time.monotonic()
    return now if now - begin > _EXCHANGE_SECONDS else last


def _readable(pipe: int) -> select.poll:
    """What waits until there is a byte in it."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return poll


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
