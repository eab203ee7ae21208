"""The engine in plain Python: virtual-time processor sharing on heaps. The compiled engine does the same.

Hosts with the same number k of active streams always progress at the same rate, min(level, host / k,
rank): they form class k, with one service clock (bytes that a stream of the class has been given). A
stream ends when its host's service reaches its key; a host that changes class takes an offset along.
So an event costs a few heap operations and a pass over the classes in use, whatever the number of ranks.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from emulator.satellites.systems.engine import FAST, Played, Scene

_NEVER = float("inf")


class Network:
    """Streams of bytes that share the system's, their host's and their own limit max-min fairly."""

    def __init__(self, scene: Scene) -> None:
        self._system = min(scene.system, FAST)
        most = -(-scene.ranks // scene.hosts)
        self._own = [0.0] + [min(scene.host / k, scene.rank, FAST) for k in range(1, most + 1)]
        self._service = [0.0] * (most + 1)
        self._rate = [0.0] * (most + 1)
        self._members = [0] * (most + 1)
        self._queue: list[list[tuple[float, int, int]]] = [[] for _ in range(most + 1)]
        self._live: list[int] = []  # classes with members
        self._flows: list[list[tuple[float, int]]] = [[] for _ in range(scene.hosts)]
        self._offset = [0.0] * scene.hosts  # host's service minus that of its class
        self._stamp = [0] * scene.hosts  # entries of a class's queue with an older stamp are void
        self._hosts = scene.hosts

    def advance(self, seconds: float) -> None:
        """Let every stream progress for `seconds`, in which none may end."""
        for k in self._live:
            self._service[k] += self._rate[k] * seconds

    def start(self, rank: int, size: float) -> None:
        """A stream of `size` bytes begins, of a rank that has none."""
        host = rank % self._hosts
        flows = self._flows[host]
        service = self._leave(host)
        heapq.heappush(flows, (service + size, rank))
        self._enter(host, service)
        self._share()

    def next_end(self) -> tuple[float, int]:
        """Seconds until the next stream ends, and its class (0: there is none)."""
        best, which = _NEVER, 0
        for k in self._live:
            queue = self._queue[k]
            while queue[0][2] != self._stamp[queue[0][1]]:
                heapq.heappop(queue)
            seconds = max(0.0, queue[0][0] - self._service[k]) / self._rate[k]
            if seconds < best:
                best, which = seconds, k
        return best, which

    def end(self, which: int) -> int:
        """The rank whose stream, the first of class `which`, has just ended."""
        key, host, _ = self._queue[which][0]
        self._service[which] = key  # exactly: no drift
        return self._flows[host][0][1]

    def go_on(self, rank: int, size: float) -> None:
        """The stream of `rank` that has ended is followed by one of `size` bytes."""
        host = rank % self._hosts
        flows = self._flows[host]
        heapq.heapreplace(flows, (flows[0][0] + size, rank))
        self._enqueue(host, len(flows))

    def stop(self, rank: int) -> None:
        """The stream of `rank` that has ended is followed by none."""
        host = rank % self._hosts
        service = self._leave(host)
        heapq.heappop(self._flows[host])
        self._enter(host, service)
        self._share()

    def _leave(self, host: int) -> float:
        """Take `host` out of its class; its service so far."""
        k = len(self._flows[host])
        if k == 0:
            return 0.0
        self._members[k] -= 1
        self._stamp[host] += 1
        if self._members[k] == 0:
            self._live.remove(k)
            self._queue[k].clear()
        return self._service[k] + self._offset[host]

    def _enter(self, host: int, service: float) -> None:
        k = len(self._flows[host])
        if k == 0:
            return
        if self._members[k] == 0:
            self._live.append(k)
            self._service[k] = 0.0
        self._members[k] += 1
        self._offset[host] = service - self._service[k]
        self._enqueue(host, k)

    def _enqueue(self, host: int, k: int) -> None:
        self._stamp[host] += 1
        entry = (self._flows[host][0][0] - self._offset[host], host, self._stamp[host])
        heapq.heappush(self._queue[k], entry)

    def _share(self) -> None:
        """Water-filling: the largest level at which the streams of all classes fit into the system."""
        left, streams = self._system, sum(k * self._members[k] for k in self._live)
        open_classes = self._live
        while streams:
            level = left / streams
            bound = [k for k in open_classes if self._own[k] < level]
            if not bound:
                break
            for k in bound:
                self._rate[k] = self._own[k]
                left -= k * self._members[k] * self._own[k]
                streams -= k * self._members[k]
            open_classes = [k for k in open_classes if self._own[k] >= level]
        for k in open_classes:
            self._rate[k] = level


class _Run:
    """One scene from its beginning to its end."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.now = 0.0
        self.events = 0
        self.network = Network(scene)
        self.ready = np.zeros((scene.steps, scene.ranks))
        self._size = scene.size.tolist()
        self._compute = scene.compute.tolist()
        self._varies = scene.compute.size > 1
        self._gates = scene.gates.tolist()
        self.taken = [0] * scene.ranks  # batches that the accelerator has begun with
        self.delivered = [0] * scene.ranks
        self.admitted = [0] * scene.ranks  # batches that may be read
        self.reading = [False] * scene.ranks
        self.waiting = [False] * scene.ranks
        self.arrived = 0
        self.latent: deque[tuple[float, int]] = deque()
        self.computing: list[tuple[float, int, int]] = []

    def play(self) -> Played:
        for rank in range(self.scene.ranks):
            self._admit(rank, min(self.scene.steps, self.scene.prefetch))
            self._ask(rank)
        while self._step():
            self.events += 1
        return Played(ready=self.ready, events=self.events)

    def _step(self) -> bool:
        """Go to the next event; False when there is none."""
        seconds, which = self.network.next_end()
        end = self.now + seconds
        latent = self.latent[0][0] if self.latent else _NEVER
        computed = self.computing[0][0] if self.computing else _NEVER
        if end <= latent and end <= computed:
            if not which:
                return False
            self.network.advance(seconds)
            self.now = end
            self._deliver(self.network.end(which))
        elif latent <= computed:
            self._advance(latent)
            rank = self.latent.popleft()[1]
            self.network.start(rank, self._size[self.delivered[rank]][rank])
        else:
            self._advance(computed)
            self._computed(heapq.heappop(self.computing)[2])
        return True

    def _advance(self, then: float) -> None:
        self.network.advance(then - self.now)
        self.now = then

    def _deliver(self, rank: int) -> None:
        self.delivered[rank] += 1
        number = self.delivered[rank]
        if self.admitted[rank] > number:
            self.network.go_on(rank, self._size[number][rank])
        else:
            self.network.stop(rank)
            self.reading[rank] = False
        if self.waiting[rank]:
            self._take(rank)

    def _admit(self, rank: int, batches: int) -> None:
        """Allow `rank` to read its first `batches` batches; its stream begins after the latency."""
        self.admitted[rank] = max(self.admitted[rank], batches)
        if not self.reading[rank] and self.admitted[rank] > self.delivered[rank]:
            self.reading[rank] = True
            if self.scene.latency > 0:
                self.latent.append((self.now + self.scene.latency, rank))
            else:
                self.network.start(rank, self._size[self.delivered[rank]][rank])

    def _ask(self, rank: int) -> None:
        """The accelerator of `rank` wants its next batch."""
        if self.taken[rank] == self.scene.steps:
            return
        self.waiting[rank] = True
        if self.delivered[rank] > self.taken[rank]:
            self._take(rank)
        else:
            self._admit(rank, self.taken[rank] + 1)

    def _take(self, rank: int) -> None:
        self.waiting[rank] = False
        step = self.taken[rank]
        self.ready[step, rank] = self.now
        self.taken[rank] += 1
        seconds = self._compute[step][rank] if self._varies else self._compute[0][0]
        heapq.heappush(self.computing, (self.now + seconds, self.events, rank))
        self._admit(rank, min(self.scene.steps, self.taken[rank] + self.scene.prefetch))

    def _computed(self, rank: int) -> None:
        if not self._gates[self.taken[rank] - 1]:
            self._ask(rank)
            return
        self.arrived += 1
        if self.arrived == self.scene.ranks:
            self.arrived = 0
            for each in range(self.scene.ranks):
                self._ask(each)


def play(scene: Scene) -> Played:
    """Play `scene` to its end, in plain Python: about 300,000 events a second."""
    return _Run(scene).play()
