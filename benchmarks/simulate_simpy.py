"""The same ranks and network as processes of simpy, as its users write them: for speed and as an oracle."""

import numpy as np
import simpy

from emulator.satellites.systems.engine import Scene


class Network:
    """Streams that share the system's bandwidth equally, no one faster than `scene.rank`."""

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

    def _rate(self) -> float:
        return min(self.scene.rank, self.scene.system / len(self.left))

    def _progress(self) -> None:
        for rank in self.left:
            self.left[rank] -= self._rate() * (self.world.now - self.since)
        self.since = self.world.now

    def _serve(self):
        while True:
            first = min(self.left, key=self.left.get) if self.left else None
            try:
                if first is None:
                    yield self.world.event()  # until a transfer interrupts
                else:
                    yield self.world.timeout(max(0.0, self.left[first] / self._rate()))
                    self._progress()
                    del self.left[first]
                    self.done.pop(first).succeed()
            except simpy.Interrupt:
                pass
            self.events += 1


def play(scene: Scene) -> tuple[np.ndarray, int]:
    """Seconds at which each batch is ready, and the events; without barriers, hosts and prefetch 0."""
    world = simpy.Environment()
    network = Network(world, scene)
    ready = np.zeros(scene.size.shape)
    compute = np.broadcast_to(scene.compute, ready.shape)
    events = [0]

    def reader(rank, room, arrived):
        for step in range(scene.steps):
            if step == 0 or room.level == 0:
                yield room.get(1)
                yield world.timeout(scene.latency)  # there was nothing to read
            else:
                yield room.get(1)
            yield network.transfer(rank, scene.size[step, rank])
            yield arrived.put(1)
            events[0] += 3

    def accelerator(rank, room, arrived):
        for step in range(scene.steps):
            yield arrived.get(1)
            ready[step, rank] = world.now
            yield room.put(1)
            yield world.timeout(compute[step, rank])
            events[0] += 3

    every = []
    for rank in range(scene.ranks):
        room, arrived = simpy.Container(world, init=scene.prefetch), simpy.Container(world)
        every += [world.process(each(rank, room, arrived)) for each in (reader, accelerator)]
    world.run(until=simpy.AllOf(world, every))
    return ready, events[0] + network.events
