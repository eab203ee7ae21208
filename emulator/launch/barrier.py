"""The barrier of a training step. Ranks sleep in the kernel and wake within microseconds.

With 64 ranks on a node, a polled MPI barrier took 30 ms a step. Here the ranks of a node sleep until a pipe
is readable. The first rank of each node synchronizes with the others through sockets (`launch.links`).

On busy cores each wake-up waits for a core, so wake-ups must not form a chain. The last of the other ranks to
arrive wakes the first rank, once. The others sleep in poll(2), where one write wakes all of them; in read(2)
each would wake the next one, after its own wait for a core.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import termios
import time
from itertools import chain, pairwise
from statistics import median

from emulator.errors import storage_errors
from emulator.files import Closing
from emulator.launch.comm import STEP_POLL, Comm
from emulator.launch.links import HostLinks

_MOMENT = struct.Struct("=d")
"""A message in a pipe: CLOCK_MONOTONIC in seconds, which is the same in all processes of a host."""
_COST_ROUNDS = 15


class StepBarrier(Closing):
    """The barrier of all ranks of `comm`. All of them make and close it.

    Each rank but the first writes the end of its step to `arrive`. If `arrive` then holds the ends of all
    others, the rank wakes the first rank through `full`. Two ranks may both see that, so the first rank
    counts the ends itself. It writes the last end, once per other rank, to one of two `leave` pipes in turn,
    so that a fast rank in the next barrier does not read an answer meant for a slow one.
    """

    def __init__(self, comm: Comm, node: Comm, links: HostLinks | None = None) -> None:
        """Open the pipes. `node` is the group of `comm`'s ranks on this host; `links` connect joined hosts.

        The hosts of `comm` must be the first of the joined ones. Raises StorageError.
        """
        self._others = node.size - 1
        self._first = node.rank == 0
        self._hosts = len(set(comm.hosts()))
        self._links = links if self._hosts > 1 else None
        self._pipes = _open_pipes(node) if self._others else []
        self._answers = []
        for pipe in self._pipes[2:]:
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            self._answers.append(poll)
        self._turn = 0

    def wait(self, end: float) -> float:
        """Wait until every rank has called this; return the latest `end` of all.

        `end` is the end of this rank's step. Both are seconds of this host's time.monotonic. Raises RankError
        if another host is lost.
        """
        last = end
        if not self._others:
            last = self._other_nodes(end)
        elif self._first:
            arrive, full = self._pipes[:2]
            os.read(full, self._others)  # drain `full`, which may hold a second wake-up of an older step
            ends = b""
            missing = self._others * _MOMENT.size
            while len(ends) < missing:
                ends += os.read(arrive, missing - len(ends))
            last = self._other_nodes(max(end, *(moment for (moment,) in _MOMENT.iter_unpack(ends))))
            os.write(self._pipes[2 + self._turn], _MOMENT.pack(last) * self._others)
        else:
            arrive, full = self._pipes[:2]
            os.write(arrive, _MOMENT.pack(end))
            unread = int.from_bytes(fcntl.ioctl(arrive, termios.FIONREAD, bytes(4)), sys.byteorder)
            if unread == self._others * _MOMENT.size:
                os.write(full, b"\0")
            self._answers[self._turn].poll()
            (last,) = _MOMENT.unpack(os.read(self._pipes[2 + self._turn], _MOMENT.size))
        self._turn = 1 - self._turn
        return last

    def _other_nodes(self, last: float) -> float:
        """Wait for the other nodes; return the latest end of all."""
        return last if self._links is None else self._links.meet(last, self._hosts)

    def cost(self) -> float:
        """Return the median seconds that this barrier takes on this rank if all ranks arrive at once.

        Collective. Raises RankError.
        """
        moments = [time.monotonic()]
        for _ in range(_COST_ROUNDS):
            self.wait(moments[-1])
            moments.append(time.monotonic())
        return median(after - before for before, after in pairwise(moments[2:]))

    def close(self) -> None:
        """Close the pipes; a second call does nothing."""
        while self._pipes:
            os.close(self._pipes.pop())


def _open_pipes(node: Comm) -> list[int]:
    """Open the pipes `arrive`, `full` and two `leave` in every rank of this node. Raises StorageError."""
    with storage_errors("cannot make the pipes of the step barrier"):
        ends = [os.pipe() for _ in range(4)] if node.rank == 0 else []
        process, readers = node.bcast((os.getpid(), [reader for reader, _ in ends]))
        # With O_RDWR, no reader sees EOF.
        pipes = [os.open(f"/proc/{process}/fd/{reader}", os.O_RDWR | os.O_CLOEXEC) for reader in readers]
    node.barrier(STEP_POLL)
    for end in chain.from_iterable(ends):
        os.close(end)
    return pipes
