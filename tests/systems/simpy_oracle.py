"""The oracle: the same ranks and network as processes of simpy, as its users write them.

Nothing of the engine is in it: rates are recomputed from the definition of max-min fairness whenever a stream
begins or ends.
"""

from collections import Counter

import numpy as np
import simpy

from emulator.plugins.systems.scene import Scene


class Network:
    """Streams that share the bandwidth of the system and of their hosts, no one faster than `scene.rank`."""

    def __init__(self, world: simpy.Environment, scene: Scene) -> None:
        self.world, self.scene = world, scene
        self.left: dict[int, float] = {}
        self.done: dict[int, simpy.Event] = {}
        self.since = 0.0
        self.events = 0
        self.process = world.process(self._serve())

    def transfer(self, rank: int, size: float) -> simpy.Event:
        self._progress()
        self.left[rank], self.done[rank] = size, self.world.event()
        self.process.interrupt()
        return self.done[rank]

    def _rates(self) -> dict[int, float]:
        """Streams that get less of their own take it; what they leave is shared equally by the others."""
        hosts = Counter(rank % self.scene.hosts for rank in self.left)
        own = {
            rank: min(self.scene.rank, self.scene.host / hosts[rank % self.scene.hosts]) for rank in self.left
        }
        rates, system = {}, min(self.scene.system, 1e21)
        for number, rank in enumerate(sorted(own, key=own.get)):
            rates[rank] = min(own[rank], system / (len(own) - number))
            system -= rates[rank]
        return rates

    def _progress(self) -> None:
        if self.world.now > self.since:
            for rank, rate in self._rates().items():
                self.left[rank] -= rate * (self.world.now - self.since)
        self.since = self.world.now

    def _serve(self):
        while True:
            try:
                if self.left:
                    rates = self._rates()
                    first = min(self.left, key=lambda rank: self.left[rank] / rates[rank])
                    yield self.world.timeout(max(0.0, self.left[first] / rates[first]))
                    self._progress()
                    del self.left[first]
                    self.done.pop(first).succeed()
                else:
                    yield self.world.event()  # until a transfer interrupts
            except simpy.Interrupt:
                pass
            self.events += 1


class Barrier:
    """Whoever arrives waits for the last of `count`."""

    def __init__(self, world: simpy.Environment, count: int) -> None:
        self.world, self.count, self.arrived, self.open = world, count, 0, world.event()

    def arrive(self) -> simpy.Event:
        opened = self.open
        self.arrived += 1
        if self.arrived == self.count:
            self.arrived, self.open = 0, self.world.event()
            opened.succeed()
        return opened


def play(scene: Scene) -> tuple[np.ndarray, int]:
    """Seconds at which each batch is ready, and the events; with a prefetch of at least 1."""
    world = simpy.Environment()
    network, barrier = Network(world, scene), Barrier(world, scene.ranks)
    ready = np.zeros(scene.size.shape)
    compute = np.broadcast_to(scene.compute, ready.shape)
    events = [0]

    def reader(rank, free, arrived):
        for step in range(scene.steps):
            idle = step == 0 or free.level == 0
            yield free.get(1)
            if idle:
                yield world.timeout(scene.latency)  # there was nothing to read
            yield network.transfer(rank, scene.size[step, rank])
            yield arrived.put(1)
            events[0] += 3

    def accelerator(rank, free, arrived):
        for step in range(scene.steps):
            yield arrived.get(1)
            ready[step, rank] = world.now
            yield free.put(1)
            yield world.timeout(compute[step, rank])
            if scene.gates[step]:
                yield barrier.arrive()
            events[0] += 3

    every = []
    for rank in range(scene.ranks):
        free, arrived = simpy.Container(world, init=scene.prefetch), simpy.Container(world)
        every += [world.process(each(rank, free, arrived)) for each in (reader, accelerator)]
    world.run(until=simpy.AllOf(world, every))
    return ready, events[0] + network.events
