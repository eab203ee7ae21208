"""Heartbeats between the ranks of a host: they end a run in which a rank is stopped or hangs.

The ranks share a page of memory. Each writes the time into its own slot and checks that of the next rank, so
that no process has to outlive the others. Hosts watch each other through `run.links`.
"""

from __future__ import annotations

import atexit
import math
import mmap
import os
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

from emulator.errors import RankError, storage_errors
from emulator.files import SCRATCH_VARIABLE, memory_folder
from emulator.launch.process import no_heartbeat
from emulator.launch.watch import at_each_beat, end_rank, storage_timeout
from emulator.run.comm import Comm, agreed

_SLOT = struct.Struct("=d2q")
"""Last heartbeat (CLOCK_MONOTONIC in seconds; infinity after the rank's end), process, rank in the world."""


def watch_each_other(world: Comm) -> None:
    """End all ranks when a rank of this host has had no heartbeat for --storage-timeout.

    Does nothing under feedrate's own launcher, which watches every rank. Collective over `world`; all ranks
    end if a host has no room for the page.
    """
    if SCRATCH_VARIABLE in os.environ:
        return
    node = world.node()
    alone = node.size == 1  # other hosts may have more ranks, so this one takes part in the collectives
    path = node.bcast(agreed(world, lambda: _new_page(node.size) if node.rank == 0 and not alone else ""))
    page = agreed(world, lambda: None if alone else _mapped(path))
    if page is not None:
        at_each_beat(_Watch(page, node, world.rank, storage_timeout(sys.argv[1:])).look)
    world.barrier()
    if node.rank == 0 and not alone:
        Path(path).unlink()
    world.barrier()  # a rank that is killed later leaves no file


def _new_page(ranks: int) -> str:
    with storage_errors("cannot make the page of heartbeats"):
        number, path = tempfile.mkstemp(prefix="feedrate-", dir=memory_folder())
        os.posix_fallocate(number, 0, ranks * _SLOT.size)  # a full tmpfs would cause a SIGBUS later
        os.close(number)
        return path


def _mapped(path: str) -> mmap.mmap:
    with storage_errors("cannot map the page of heartbeats"):
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(number, 0)
        finally:
            os.close(number)


class _Watch:
    """One rank's watch over the next rank of its host."""

    def __init__(self, page: mmap.mmap, node: Comm, rank: int, timeout: float) -> None:
        self._page, self._rank, self._timeout = page, rank, timeout
        self._own, self._next = node.rank * _SLOT.size, (node.rank + 1) % node.size * _SLOT.size
        self._since = self._looked = time.monotonic()
        self._beat(self._looked)
        atexit.register(self._end)

    def _end(self) -> None:
        self._looked = math.inf  # the watchdog may still run while MPI ends
        self._beat(math.inf)

    def _beat(self, now: float) -> None:
        _SLOT.pack_into(self._page, self._own, now, os.getpid(), self._rank)

    def look(self) -> None:
        """Write a heartbeat; end all ranks if the next one has had none for too long."""
        if self._looked == math.inf:
            return
        now = time.monotonic()
        self._beat(now)
        if now - self._looked > self._timeout / 2:
            self._since = now  # this process was stopped: so may have been the next one
        self._looked = now
        beat, pid, rank = _SLOT.unpack_from(self._page, self._next)
        silent = now - max(beat, self._since)
        if silent > self._timeout:
            problem = no_heartbeat(rank, socket.gethostname(), silent, pid)
            end_rank(self._rank, RankError(problem, "what was measured is kept"), witness=True)
