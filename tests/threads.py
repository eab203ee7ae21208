"""Ranks as threads of one process, for what several ranks do together."""

import threading

import numpy as np


class Group:
    """State that the threads of a ThreadComm share."""

    def __init__(self, size):
        self.size = size
        self.meet = threading.Barrier(size)
        self.said = [None] * size
        self.lock = threading.Lock()
        self.parts = {}

    def part(self, color, size):
        with self.lock:
            return self.parts.setdefault(color, Group(size))


class ThreadComm:
    """Ranks as threads; `nodes` are the numbers of ranks on each, one by default."""

    raises = False

    def __init__(self, group, rank, nodes=()):
        self.group, self.rank, self.size = group, rank, group.size
        self.nodes = nodes or (1,) * group.size

    def barrier(self, poll=0.0):
        self.group.meet.wait(60)  # hundreds of threads on a busy machine

    def bcast(self, value):
        return self._all(value)[0]

    def split(self, color):
        colors = self._all(color)
        rank = colors[: self.rank].count(color)
        found = ThreadComm(self.group.part(color, colors.count(color)), rank)
        self.barrier()
        if self.rank == 0:
            self.group.parts = {}
        self.barrier()
        return found

    def hosts(self):
        return [f"host{node}" for node, ranks in enumerate(self.nodes) for _ in range(ranks)]

    def node(self):
        return self.split(self.hosts().index(self.hosts()[self.rank]))

    def gather(self, value):
        everyone = self._all(value)
        return everyone if self.rank == 0 else []

    def allgather(self, value):
        return self._all(value)

    def max(self, values):
        return np.max(self._all(values), axis=0)

    def _all(self, value):
        self.group.said[self.rank] = value
        self.barrier()
        said = list(self.group.said)
        self.barrier()
        return said
