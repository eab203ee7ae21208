"""The barrier of a training step: asleep in the kernel, woken within microseconds.

A polled MPI barrier polls in each of its log2(ranks) rounds: with 64 ranks on a node and a millisecond of
sleep between polls it took 30 ms a step. Here the ranks of a node sleep until a pipe can be read, and only
the first rank of each node talks to the other nodes, through sockets (run/links.py). Where those could not
be joined, it polls an MPI barrier: what that costs is measured (`cost`) and stands in the result.

On busy cores each wake-up of a rank is a wait for a core, so no rank waits for another's. The first rank is
woken once, by the last of the others to arrive. The others sleep in poll(2), where one write wakes all of
them at once; if they slept in read(2), each would wake the next one only after it got a core itself.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from emulator.errors import storage_errors
from emulator.files import memory_folder
from emulator.run.comm import STEP_POLL, Comm
from emulator.run.links import HostLinks
from emulator.storage.base import Closing

_PIPES = ("arrive", "full", "leave-0", "leave-1")
_MOMENT = struct.Struct("=d")
"""What goes through a pipe: seconds of CLOCK_MONOTONIC, which all processes of a machine share."""
_COST_ROUNDS = 15


class StepBarrier(Closing):
    """Makes all ranks of `comm` wait for each other. Made and closed by all of them.

    Each of the other ranks of a node writes the end of its step into `arrive`. One that then finds as many
    ends in there as there are others wakes the first rank through `full`. Two ranks may both find that, so
    the first rank reads `full` only as a wake-up and counts the ends itself. It answers with the last end,
    once for each of the others, in one of two `leave` pipes that take turns: a fast rank that is in the
    next barrier already must not read the answer meant for a slow one.
    """

    def __init__(self, comm: Comm, node: Comm, links: HostLinks | None = None) -> None:
        """`node` is the group of those ranks of `comm` that are on this host, `links` this host's to others.

        The hosts of `comm` are the first of those that are joined. Raises StorageError.
        """
        self._others = node.size - 1
        self._first = node.rank == 0
        leaders = comm.split(0 if self._first else 1)
        self._leaders = leaders if self._first and leaders.size > 1 else None
        self._links = None
        if self._leaders and all(self._leaders.allgather(links is not None and links.number == leaders.rank)):
            self._links = links
        # A polled barrier that all entered at once takes up to so long: a look in each of its rounds.
        self._polled = 2 * STEP_POLL * math.ceil(math.log2(max(2, leaders.size)))
        self._pipes = _open_pipes(node) if self._others else []
        self._answers = []
        for pipe in self._pipes[2:]:
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            self._answers.append(poll)
        self._turn = 0

    def wait(self, end: float) -> float:
        """Return when every rank of the group has called this.

        `end` is that of this rank's step, in seconds of time.monotonic; the last of all ranks' is returned,
        on this host's clock. Where MPI is polled, hosts' clocks cannot be compared: if another node held this
        one up, it is the moment when that was over. Raises RankError when another host is gone.
        """
        last = end
        if not self._others:
            last = self._other_nodes(end)
        elif self._first:
            arrive, full = self._pipes[:2]
            os.read(full, self._others)  # all that is there: a second wake-up of an older step may be
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

    @property
    def polled(self) -> bool:
        """True when what it takes shows in the columns of a step: hosts look for each other through MPI."""
        return self._leaders is not None and self._links is None

    def _other_nodes(self, last: float) -> float:
        """Wait for them: the last end of all, or the moment when they no longer held this node up."""
        if self._leaders is None:
            return last
        if self._links is not None:
            return self._links.meet(last, self._leaders.size)
        begin = time.monotonic()
        self._leaders.barrier(STEP_POLL)
        now = time.monotonic()
        return now if now - begin > self._polled else last

    def cost(self) -> float:
        """Seconds that this barrier takes when all ranks come at once: a median, as this rank saw it.

        Collective. Raises RankError.
        """
        moments = [time.monotonic()]
        for _ in range(_COST_ROUNDS):
            self.wait(moments[-1])
            moments.append(time.monotonic())
        return median(after - before for before, after in pairwise(moments[2:]))

    def close(self) -> None:
        """Let go of the pipes; a second call does nothing."""
        while self._pipes:
            os.close(self._pipes.pop())


def _open_pipes(node: Comm) -> list[int]:
    """The pipes of this node, open in every rank, their names gone again. Raises StorageError."""
    folder = None
    try:
        with storage_errors("cannot make the pipes of the step barrier"):
            if node.rank == 0:
                folder = tempfile.mkdtemp(prefix="feedrate-", dir=memory_folder())
                for name in _PIPES:
                    os.mkfifo(Path(folder) / name, 0o600)
            place = Path(node.bcast(folder))
            # Open for both directions: nobody waits for a peer to open, and nobody sees an end of file.
            pipes = [os.open(place / name, os.O_RDWR | os.O_CLOEXEC) for name in _PIPES]
            node.barrier()
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return pipes
