"""The simulation loop of a scene, compiled by numba: millions of events a second. For `scene.play` only.

Streams of bytes share the bandwidth of the system, of their host and of their rank max-min fairly. Hosts
with the same number k of active streams progress at the same rate, min(level, host / k, rank), and form
class k. A class has one service clock: the bytes that each of its streams has received. A stream ends when
its host's service reaches its key; a host that changes class gets an offset. So an event costs a few heap
operations and a pass over the classes in use, for any number of ranks: 100,000 of them take 40 ms a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from emulator.analysis.parts import Floats
from emulator.plugins.systems.scene import Scene

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """Return `function` compiled by numba.njit(inline="always"), with its types kept."""
    # A call would pass arrays by value and count references, which costs more than the functions themselves.
    return cast(Function, numba.njit(inline="always")(function))


def compiled(function: Function) -> Function:
    """Return `function` compiled by numba.njit, cached on disk, without reference counts on arrays."""
    # The loop is four times as fast without reference counts, and allocates nothing that needs them.
    return cast(Function, numba.njit(cache=True, _nrt=False)(function))


FAST = 1e21
"""Rate in bytes/s in place of no limit: infinity would cause 0 x infinity."""


# Heaps of entries, the smallest key first, with four children per entry: half as many levels miss the cache
# as with two. Several heaps may share an array, in which one begins at `base`. `spot` receives the place of
# each item; if it is None, numba compiles no code for it.

CHILDREN = 4
ENTRY = np.dtype([("key", "<f8"), ("item", "<i8")])
"""Key and item of an entry, which share a cache line. Items are ranks or hosts."""


@inlined
def put(heap: Any, base: int, place: int, key: float, item: int, spot: Any) -> None:
    heap[base + place].key = key
    heap[base + place].item = item
    if spot is not None:
        spot[item] = place


@inlined
def climb(heap: Any, base: int, place: int, key: float, item: int, spot: Any) -> None:
    """Put an entry into a free place, or above it; the entries that it passes move down."""
    while place > 0:
        above = (place - 1) // CHILDREN
        if heap[base + above].key <= key:
            break
        put(heap, base, place, heap[base + above].key, heap[base + above].item, spot)
        place = above
    put(heap, base, place, key, item, spot)


@inlined
def sink(heap: Any, base: int, size: int, place: int, key: float, item: int, spot: Any) -> None:
    """Put an entry into a free place of a heap of `size` entries, or below it."""
    while True:
        child = CHILDREN * place + 1
        if child >= size:
            break
        least = heap[base + child].key
        for other in range(child + 1, min(child + CHILDREN, size)):
            if heap[base + other].key < least:
                least = heap[base + other].key
                child = other
        if least >= key:
            break
        put(heap, base, place, least, heap[base + child].item, spot)
        place = child
    put(heap, base, place, key, item, spot)


# The network: streams that share bandwidth.


class Net(NamedTuple):
    """Arrays by host (h) and class (k); scalars are arrays of length 1."""

    system: Any
    """Bytes/s of all streams."""
    own: Any
    """k: bytes/s of a stream if the system does not limit it."""
    service: Any
    """k: bytes that a stream of the class has received."""
    rate: Any
    """k: bytes/s of a stream."""
    members: Any
    """k: hosts in the class."""
    live: Any
    """The classes in use, `lives[0]` of them."""
    place: Any
    """k: index of the class in `live`."""
    lives: Any
    queue: Any
    """k: heap of the class's hosts, keyed by the class's service at which their first streams end; `hosts`
    places each."""
    spot: Any
    """h: index of the host in its class's heap."""
    offset: Any
    """h: service of the host minus that of its class."""
    active: Any
    """h: number of streams, which is the class."""
    flow: Any
    """h: heap of the host's streams, keyed by the host's service at which they end; `most` places each."""
    hosts: int
    most: int


def make_net(scene: Scene) -> Net:
    hosts, most = scene.hosts, -(-scene.ranks // scene.hosts)
    own = np.minimum(np.minimum(scene.host / np.arange(1, most + 1), scene.rank), FAST)
    return Net(
        system=np.array([min(scene.system, FAST)]),
        own=np.concatenate([np.zeros(1), own]),
        service=np.zeros(most + 1),
        rate=np.zeros(most + 1),
        members=np.zeros(most + 1, np.int64),
        live=np.zeros(most + 1, np.int64),
        place=np.zeros(most + 1, np.int64),
        lives=np.zeros(1, np.int64),
        queue=np.zeros((most + 1) * hosts, ENTRY),
        spot=np.zeros(hosts, np.int64),
        offset=np.zeros(hosts),
        active=np.zeros(hosts, np.int64),
        flow=np.zeros(hosts * most, ENTRY),
        hosts=int(hosts),
        most=most,
    )


@inlined
def advance(net: Net, seconds: float) -> None:
    """Advance every stream by `seconds`, within which no stream may end."""
    for i in range(net.lives[0]):
        k = net.live[i]
        net.service[k] += net.rate[k] * seconds


@inlined
def next_end(net: Net) -> tuple[float, int]:
    """Return the seconds until the next stream ends, and its class; class 0 if there is no stream."""
    best, which = np.inf, 0
    for i in range(net.lives[0]):
        k = net.live[i]
        seconds = max(0.0, net.queue[k * net.hosts].key - net.service[k]) / net.rate[k]
        if seconds < best:
            best, which = seconds, k
    return best, which


@inlined
def share(net: Net) -> None:
    """Set the rates by water-filling: the largest level at which all streams fit into the system."""
    # A class has the rate 0 until it is decided whether the system or the class itself limits it.
    left, streams, level = net.system[0], 0, 0.0
    for i in range(net.lives[0]):
        k = net.live[i]
        net.rate[k] = 0.0
        streams += k * net.members[k]
    changed = True
    while changed and streams > 0:
        changed = False
        level = left / streams
        for i in range(net.lives[0]):
            k = net.live[i]
            if net.rate[k] == 0.0 and net.own[k] < level:
                net.rate[k] = net.own[k]
                left -= k * net.members[k] * net.own[k]
                streams -= k * net.members[k]
                changed = True
    for i in range(net.lives[0]):
        k = net.live[i]
        if net.rate[k] == 0.0:
            net.rate[k] = level


@inlined
def leave(net: Net, host: int) -> float:
    """Take `host` out of its class, and return its service so far."""
    k = net.active[host]
    if k == 0:
        return 0.0
    service: float = net.service[k] + net.offset[host]
    net.members[k] -= 1
    base, last, place = k * net.hosts, net.members[k], net.spot[host]
    if place != last:  # the last entry takes its place
        key, moved = net.queue[base + last].key, net.queue[base + last].item
        if key < net.queue[base + place].key:
            climb(net.queue, base, place, key, moved, net.spot)
        else:
            sink(net.queue, base, last, place, key, moved, net.spot)
    if last == 0:
        net.lives[0] -= 1
        other = net.live[net.lives[0]]
        net.live[net.place[k]] = other
        net.place[other] = net.place[k]
    return service


@inlined
def enter(net: Net, host: int, service: float) -> None:
    """Put `host`, which has received `service`, into the class of its number of streams."""
    k = net.active[host]
    if net.members[k] == 0:
        net.live[net.lives[0]] = k
        net.place[k] = net.lives[0]
        net.lives[0] += 1
        net.service[k] = 0.0
    net.offset[host] = service - net.service[k]
    key = net.flow[host * net.most].key - net.offset[host]
    climb(net.queue, k * net.hosts, net.members[k], key, host, net.spot)
    net.members[k] += 1


@inlined
def change(net: Net, host: int, rank: int, size: float) -> None:
    """Start a stream of `size` bytes for `rank` on `host`; with size 0, stop the first stream of the host."""
    service, base, streams = leave(net, host), host * net.most, net.active[host]
    if size > 0:
        climb(net.flow, base, streams, service + size, rank, None)
        net.active[host] = streams + 1
    else:
        last = streams - 1
        sink(net.flow, base, last, 0, net.flow[base + last].key, net.flow[base + last].item, None)
        net.active[host] = last
    if net.active[host] > 0:
        enter(net, host, service)
    share(net)


# The ranks: they read batches, compute, and wait for each other.

RANK = np.dtype(
    [("taken", "<i4"), ("delivered", "<i4"), ("admitted", "<i4"), ("reading", "<i4"), ("waiting", "<i4")]
)
"""Batches of a rank that its accelerator has taken, that have arrived, and that may be read; whether it
reads now; whether its accelerator waits for a batch. In one row, for the cache."""


class RankStates(NamedTuple):
    """The ranks' states, with the arrays of the scene."""

    size: Any
    compute: Any
    gates: Any
    prefetch: int
    latency: float
    epoch: int
    """Steps of an epoch, which starts with nothing prefetched."""
    state: Any
    """Rows of RANK."""
    asking: Any
    """Ranks that request a batch for their accelerator now, `counts[0]` of them."""
    counts: Any
    """Number of ranks in `asking`, and number of ranks at the barrier."""


class Timers(NamedTuple):
    """A heap of ranks that wait until a given time."""

    row: Any
    """ENTRY with the time as key."""
    size: Any
    """Number of entries, in an array of length 1."""


@inlined
def add(timers: Timers, then: float, rank: int) -> None:
    climb(timers.row, 0, timers.size[0], then, rank, None)
    timers.size[0] += 1


@inlined
def first(timers: Timers) -> float:
    """Return the earliest time, or infinity for an empty heap."""
    return timers.row[0].key if timers.size[0] else np.inf


@inlined
def remove(timers: Timers) -> int:
    rank: int = timers.row[0].item
    last = timers.size[0] - 1
    timers.size[0] = last
    sink(timers.row, 0, last, 0, timers.row[last].key, timers.row[last].item, None)
    return rank


@inlined
def ask(ranks: RankStates, latent: Timers, computing: Timers, ready: Any, now: float) -> None:
    """Give the last rank in `asking` its next batch, or let it wait, and start its permitted reads."""
    ranks.counts[0] -= 1
    rank = ranks.asking[ranks.counts[0]]
    step = ranks.state[rank].taken
    if step == len(ranks.size):
        return
    last = min(len(ranks.size), (step // ranks.epoch + 1) * ranks.epoch)
    if ranks.state[rank].delivered > step:
        ready[step, rank] = now
        ranks.state[rank].waiting = 0
        ranks.state[rank].taken = step + 1
        add(computing, now + ranks.compute[step % len(ranks.compute), rank % ranks.compute.shape[1]], rank)
        admit(ranks, latent, rank, min(last, step + 1 + ranks.prefetch), now)
    else:
        ranks.state[rank].waiting = 1
        # An epoch starts with nothing prefetched, and requests all of `prefetch` at once.
        admit(ranks, latent, rank, max(step + 1, min(last, step + ranks.prefetch)), now)


@inlined
def admit(ranks: RankStates, latent: Timers, rank: int, batches: int, now: float) -> None:
    """Permit `rank` to read up to a number of batches, and start if it does not read yet."""
    ranks.state[rank].admitted = max(ranks.state[rank].admitted, batches)
    if not ranks.state[rank].reading and ranks.state[rank].admitted > ranks.state[rank].delivered:
        ranks.state[rank].reading = 1
        add(latent, now + ranks.latency, rank)


@inlined
def deliver(net: Net, ranks: RankStates, k: int) -> int:
    """End the first stream of class `k`. Return its rank if the rank stops reading, else -1."""
    host = net.queue[k * net.hosts].item
    net.service[k] = net.queue[k * net.hosts].key  # exactly, to avoid drift
    base = host * net.most
    rank: int = net.flow[base].item
    number = ranks.state[rank].delivered + 1
    ranks.state[rank].delivered = number
    if ranks.state[rank].waiting:
        ranks.asking[0] = rank
        ranks.counts[0] = 1
    if ranks.state[rank].admitted > number:
        key = net.flow[base].key + ranks.size[number, rank]
        sink(net.flow, base, net.active[host], 0, key, rank, None)
        key = net.flow[base].key - net.offset[host]
        sink(net.queue, k * net.hosts, net.members[k], 0, key, host, net.spot)
        return -1
    ranks.state[rank].reading = 0
    return rank


@inlined
def computed(ranks: RankStates, rank: int) -> None:
    """End a step's compute: the rank requests its next batch; at a barrier all do after the last arrival."""
    count = len(ranks.state)
    if not ranks.gates[ranks.state[rank].taken - 1]:
        ranks.asking[0] = rank
        ranks.counts[0] = 1
        return
    ranks.counts[1] += 1
    if ranks.counts[1] == count:
        ranks.counts[1] = 0
        ranks.counts[0] = count
        for each in range(count):
            ranks.asking[each] = each


@compiled
def run(net: Net, ranks: RankStates, latent: Timers, computing: Timers, ready: Floats) -> None:
    """Simulate to the end, and record when each batch was ready."""
    now = 0.0
    while True:
        while ranks.counts[0] > 0:
            ask(ranks, latent, computing, ready, now)
        seconds, which = next_end(net)
        then, late, done = now + seconds, first(latent), first(computing)
        rank, size = -1, 0.0  # the rank that begins or stops a stream
        if then <= late and then <= done:
            if which == 0:
                return
            advance(net, seconds)
            now = then
            rank = deliver(net, ranks, which)
        else:
            advance(net, min(late, done) - now)
            now = min(late, done)
            if late <= done:
                rank = remove(latent)
                size = ranks.size[ranks.state[rank].delivered, rank]
            else:
                computed(ranks, remove(computing))
        if rank >= 0:
            change(net, rank % net.hosts, rank, size)


def play(scene: Scene) -> Floats:
    """Simulate `scene`; return the seconds at which accelerators took their batches, shape (steps, ranks)."""
    count = scene.ranks
    ready = np.zeros((scene.steps, count))
    state = np.zeros(count, RANK)
    epoch = scene.epoch or scene.steps
    state["admitted"] = min(epoch, scene.steps, scene.prefetch)
    # For other layouts and types numba would compile again, for seconds. The cost of a step delays the rank
    # like its compute.
    size = np.ascontiguousarray(scene.size, np.float64)
    compute = np.ascontiguousarray(scene.compute + scene.step_cost, np.float64)
    ranks = RankStates(
        size=size,
        compute=compute,
        gates=scene.gates,
        prefetch=int(scene.prefetch),
        latency=float(scene.latency),
        epoch=int(epoch),
        state=state,
        asking=np.arange(count),
        counts=np.array([count, 0]),
    )
    latent, computing = (Timers(row=np.zeros(count + 1, ENTRY), size=np.zeros(1, np.int64)) for _ in range(2))
    run(make_net(scene), ranks, latent, computing, ready)
    return ready
