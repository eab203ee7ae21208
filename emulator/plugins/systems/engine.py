"""The loop that plays a scene, compiled by numba: millions of events a second. Loaded by `scene.play` alone.

Streams of bytes share the bandwidth of the system, of their host and of their rank max-min fairly. Hosts with
the same number k of active streams always progress at the same rate, min(level, host / k, rank): they form
class k, with one service clock, the bytes that a stream of the class has been given. A stream ends when its
host's service reaches its key; a host that changes class takes an offset along. So an event costs a few heap
operations and a pass over the classes in use, whatever the number of ranks.

A host keeps its streams in buckets by the service at which they end, and only those of the first one in a
heap: service only grows, so others need no order yet. A heap of a million streams would miss the cache at
every level. Who comes next is mostly known, so rows of ranks are asked for ahead: at a hundred thousand ranks
most time went into waiting for memory.

Everything is inlined into one loop: a call passes arrays by value and counts references, which costs more
than what these functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from emulator.plugins.systems.scene import Floats, Scene

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """numba.njit(inline="always"), which keeps the types."""
    return cast(Function, numba.njit(inline="always")(function))


def compiled(function: Function) -> Function:
    """numba.njit, cached on disk. Without reference counts on arrays the loop is four times as fast, and it
    allocates nothing that would need them."""
    return cast(Function, numba.njit(cache=True, _nrt=False)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[[Any, Any], None]:
    """numba.extending.intrinsic, with a type."""
    return cast(Callable[[Any, Any], None], numba.extending.intrinsic(function))


@intrinsic
def prefetch(_: Any, array: Any, index: Any) -> Any:
    """Ask for what stands at the tuple `index` of an array, without waiting; beyond its end: no harm."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, kinds = signature.args
        places = [
            context.cast(builder, place, each, numba.intp)
            for place, each in zip(cgutils.unpack_tuple(builder, arguments[1]), kinds, strict=True)
        ]
        value = make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, value, places)
        place, number = builder.bitcast(place, ir.IntType(8).as_pointer()), ir.IntType(32)
        wanted = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, wanted, "llvm.prefetch.p0i8")
        builder.call(ask, [place, number(0), number(3), number(1)])  # to read, often, as data
        return context.get_dummy_value()

    return numba.none(array, index), emit


AHEAD = 6
"""How many buckets, or ranks that wait for a time, before its turn a rank's row is asked for."""

FAST = 1e21
"""Bytes/s that stand for no limit: infinity would make 0 x infinity."""


# Heaps of entries with the smallest key first. With four children an entry, half as many levels miss the
# cache as with two.

ENTRY = np.dtype([("key", "<f8"), ("rank", "<i8")])
"""A key and whose it is, side by side for the cache."""


@inlined
def push(heap: Any, base: int, size: int, key: float, rank: int, children: int) -> None:
    """Add an entry to the heap of `size` entries that begins at `base`."""
    i = size
    while i > 0:
        above = (i - 1) // children
        if heap[base + above].key <= key:
            break
        heap[base + i].key = heap[base + above].key
        heap[base + i].rank = heap[base + above].rank
        i = above
    heap[base + i].key = key
    heap[base + i].rank = rank


@inlined
def replace_first(heap: Any, base: int, size: int, key: float, rank: int, children: int) -> None:
    """Put an entry in place of the first one of the heap, and let it sink."""
    i = 0
    while True:
        child = children * i + 1
        if child >= size:
            break
        least = heap[base + child].key
        for other in range(child + 1, min(child + children, size)):
            if heap[base + other].key < least:
                least = heap[base + other].key
                child = other
        if least >= key:
            break
        heap[base + i].key = least
        heap[base + i].rank = heap[base + child].rank
        i = child
    heap[base + i].key = key
    heap[base + i].rank = rank


# The network: streams that share bandwidth.


IN_BUCKET = 1
"""Streams of a bucket, about: few, so that the order of buckets says which ranks come next."""


class Net(NamedTuple):
    """Arrays by host (h) and class (k); scalars are arrays of length 1."""

    system: Any
    """Bytes/s of all streams."""
    own: Any
    """k: bytes/s of a stream when the system does not limit it."""
    service: Any
    """k: bytes that a stream of the class has been given."""
    rate: Any
    """k: bytes/s of a stream."""
    members: Any
    """k: hosts in the class."""
    live: Any
    """The classes in use, `lives[0]` of them."""
    place: Any
    """k: where the class stands in `live`."""
    lives: Any
    queue: Any
    """k, n: binary heap of the class's hosts by `key`."""
    spot: Any
    """h: where the host stands in its class's heap."""
    key: Any
    """h: service of the class at which the host's first stream ends."""
    offset: Any
    """h: service of the host minus that of its class."""
    active: Any
    """h: streams, which is its class."""
    flow: Any
    """h: heap of the host's streams that end in its first bucket, by the service of the host at which they
    end, `most` places each."""
    near: Any
    """h: streams in the heap."""
    bucket: Any
    """h: number of the first bucket, which begins at a service of `bucket * width`."""
    far: Any
    """h, bucket modulo their number: a rank whose stream ends in it, the first of a list; -1: none."""
    width: float
    """Bytes of service that a bucket spans: no batch is longer than all but two of the buckets."""
    most: int


def make_net(scene: Scene) -> Net:
    """A network without streams."""
    hosts, most = scene.hosts, -(-scene.ranks // scene.hosts)
    own = np.minimum(np.minimum(scene.host / np.arange(1, most + 1), scene.rank), FAST)
    buckets = most // IN_BUCKET
    return Net(
        system=np.array([min(scene.system, FAST)]),
        own=np.concatenate([np.zeros(1), own]),
        service=np.zeros(most + 1),
        rate=np.zeros(most + 1),
        members=np.zeros(most + 1, np.int64),
        live=np.zeros(most + 1, np.int64),
        place=np.zeros(most + 1, np.int64),
        lives=np.zeros(1, np.int64),
        queue=np.zeros((most + 1, hosts), np.int32),
        spot=np.zeros(hosts, np.int64),
        key=np.zeros(hosts),
        offset=np.zeros(hosts),
        active=np.zeros(hosts, np.int64),
        flow=np.zeros(hosts * most, ENTRY),
        near=np.zeros(hosts, np.int64),
        bucket=np.zeros(hosts, np.int64),
        far=np.full((hosts, buckets + 2), -1, np.int32),
        width=float(scene.size.max()) / buckets if buckets else np.inf,
        most=most,
    )


@inlined
def advance(net: Net, seconds: float) -> None:
    """Let every stream progress for `seconds`, in which none may end."""
    for i in range(net.lives[0]):
        k = net.live[i]
        net.service[k] += net.rate[k] * seconds


@inlined
def next_end(net: Net) -> tuple[float, int]:
    """Seconds until the next stream ends, and its class (0: there is none)."""
    best, which = np.inf, 0
    for i in range(net.lives[0]):
        k = net.live[i]
        seconds = max(0.0, net.key[net.queue[k, 0]] - net.service[k]) / net.rate[k]
        if seconds < best:
            best, which = seconds, k
    return best, which


@inlined
def share(net: Net) -> None:
    """Water-filling: the largest level at which the streams of all classes fit into the system.

    A class has the rate 0 until it is known whether the system or the class itself limits it.
    """
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
def climb(net: Net, k: int, i: int, host: int) -> None:
    """Let `host` climb from place i of its class's heap to where its key belongs."""
    key = net.key[host]
    while i > 0:
        above = (i - 1) >> 1
        if net.key[net.queue[k, above]] <= key:
            break
        net.queue[k, i] = net.queue[k, above]
        net.spot[net.queue[k, i]] = i
        i = above
    net.queue[k, i] = host
    net.spot[host] = i


@inlined
def sink(net: Net, k: int, i: int, host: int) -> None:
    """Let `host` sink from place i of its class's heap to where its key belongs."""
    key, size = net.key[host], net.members[k]
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        if below + 1 < size and net.key[net.queue[k, below + 1]] < net.key[net.queue[k, below]]:
            below += 1
        if net.key[net.queue[k, below]] >= key:
            break
        net.queue[k, i] = net.queue[k, below]
        net.spot[net.queue[k, i]] = i
        i = below
    net.queue[k, i] = host
    net.spot[host] = i


@inlined
def leave(net: Net, host: int) -> float:
    """Take `host` out of its class; its service so far."""
    k = net.active[host]
    if k == 0:
        return 0.0
    service: float = net.service[k] + net.offset[host]
    net.members[k] -= 1
    last = net.members[k]
    moved, i = net.queue[k, last], net.spot[host]
    if moved != host:
        if net.key[moved] < net.key[host]:
            climb(net, k, i, moved)
        else:
            sink(net, k, i, moved)
    if last == 0:
        net.lives[0] -= 1
        other = net.live[net.lives[0]]
        net.live[net.place[k]] = other
        net.place[other] = net.place[k]
    return service


@inlined
def enter(net: Net, host: int, service: float) -> None:
    """Put `host`, which has been given `service`, into the class of its number of streams."""
    k = net.active[host]
    if net.members[k] == 0:
        net.live[net.lives[0]] = k
        net.place[k] = net.lives[0]
        net.lives[0] += 1
        net.service[k] = 0.0
    net.members[k] += 1
    net.offset[host] = service - net.service[k]
    net.key[host] = net.flow[host * net.most].key - net.offset[host]
    climb(net, k, net.members[k] - 1, host)


@inlined
def put(net: Net, state: Any, host: int, rank: int, key: float) -> None:
    """The stream of `rank` will end when the service of `host` is `key`."""
    bucket = int(key / net.width)
    if bucket <= net.bucket[host]:
        push(net.flow, host * net.most, net.near[host], key, rank, 4)
        net.near[host] += 1
    else:
        place = bucket % net.far.shape[1]
        state[rank].key = key
        state[rank].next = net.far[host, place]
        net.far[host, place] = rank


@inlined
def take(net: Net, host: int) -> None:
    """Remove the first stream of `host`'s heap."""
    base, last = host * net.most, net.near[host] - 1
    net.near[host] = last
    replace_first(net.flow, base, last, net.flow[base + last].key, net.flow[base + last].rank, 4)


@inlined
def refill(net: Net, state: Any, sizes: Any, host: int) -> None:
    """Where the heap of `host` is empty, the streams of the next bucket that has some go into it."""
    buckets = net.far.shape[1]
    while net.near[host] == 0:
        net.bucket[host] += 1
        place = net.bucket[host] % buckets
        prefetch(state, (net.far[host, (place + 2 * AHEAD) % buckets],))
        soon = net.far[host, (place + AHEAD) % buckets]
        if soon >= 0:
            prefetch(sizes, (state[soon].delivered + 1, soon))
            prefetch(state, (state[soon].next,))
        rank = net.far[host, place]
        net.far[host, place] = -1
        while rank >= 0:
            push(net.flow, host * net.most, net.near[host], state[rank].key, rank, 4)
            net.near[host] += 1
            rank = state[rank].next


@inlined
def change(net: Net, state: Any, sizes: Any, host: int, rank: int, size: float) -> None:
    """A stream of `size` bytes of `rank` begins on `host`; with size 0 the host's first one stops."""
    service = leave(net, host)
    if size > 0:
        if net.active[host] == 0:
            net.bucket[host] = int(service / net.width)
        put(net, state, host, rank, service + size)
        net.active[host] += 1
    else:
        take(net, host)
        net.active[host] -= 1
    if net.active[host] > 0:
        refill(net, state, sizes, host)
        enter(net, host, service)
    share(net)


# The ranks: they read batches, compute, and wait for each other.

RANK = np.dtype(
    [
        ("key", "<f8"),
        ("next", "<i4"),
        ("taken", "<i4"),
        ("delivered", "<i4"),
        ("admitted", "<i4"),
        ("reading", "<i4"),
        ("waiting", "<i4"),
    ]
)
"""Where a rank is, side by side for the cache: the service at which its stream ends, and the next rank in its
bucket; batches that its accelerator has begun with, that have arrived, and that may be read; whether it reads
now; whether its accelerator waits for a batch."""


class Ranks(NamedTuple):
    """What the ranks do, from the scene, and where they are."""

    size: Any
    compute: Any
    gates: Any
    prefetch: int
    latency: float
    hosts: int
    epoch: int
    """Steps after which nothing has been read ahead."""
    state: Any
    """Rows of RANK."""
    asking: Any
    """Ranks whose accelerator wants a batch now, `counts[0]` of them."""
    counts: Any
    """How many are asking, how many have arrived at the barrier."""


class Timers(NamedTuple):
    """Ranks that wait for a time: a heap, or a ring where all wait equally long and so leave as they came."""

    row: Any
    """ENTRY with the time as key."""
    span: Any
    """Place of the first, number of all."""
    ring: bool


@inlined
def add(timers: Timers, then: float, rank: int) -> None:
    i = timers.span[1]
    timers.span[1] += 1
    if timers.ring:
        i += timers.span[0]
        if i >= len(timers.row):
            i -= len(timers.row)
        timers.row[i].key = then
        timers.row[i].rank = rank
    else:
        push(timers.row, 0, i, then, rank, 2)


@inlined
def first(timers: Timers) -> float:
    return timers.row[timers.span[0]].key if timers.span[1] else np.inf


@inlined
def remove(timers: Timers, state: Any) -> int:
    """Take the first out; its rank."""
    i = timers.span[0]
    rank: int = timers.row[i].rank
    if timers.ring and i + AHEAD < len(timers.row):
        prefetch(state, (timers.row[i + AHEAD].rank,))
    timers.span[1] -= 1
    last = timers.span[1]
    if timers.ring:
        timers.span[0] = i + 1 if i + 1 < len(timers.row) else 0
    elif last > 0:
        replace_first(timers.row, 0, last, timers.row[last].key, timers.row[last].rank, 2)
    return rank


@inlined
def ask(ranks: Ranks, latent: Timers, computing: Timers, ready: Any, now: float) -> None:
    """The accelerator of the last rank that asks wants its next batch: take it, or wait for it."""
    ranks.counts[0] -= 1
    rank = ranks.asking[ranks.counts[0]]
    step = ranks.state[rank].taken
    if step == len(ranks.size):
        return
    last = min(len(ranks.size), (step // ranks.epoch + 1) * ranks.epoch)
    admitted = step + 1
    if step % ranks.epoch == 0:  # what is read ahead begins with nothing, and is asked for at once
        admitted = max(admitted, min(last, step + ranks.prefetch))
    if ranks.state[rank].delivered > step:
        ready[step, rank] = now
        ranks.state[rank].waiting = 0
        ranks.state[rank].taken = step + 1
        seconds = ranks.compute[0, 0] if computing.ring else ranks.compute[step, rank]
        add(computing, now + seconds, rank)
        admitted = min(last, step + 1 + ranks.prefetch)
    else:
        ranks.state[rank].waiting = 1
    if admitted > ranks.state[rank].admitted:
        ranks.state[rank].admitted = admitted
    if not ranks.state[rank].reading and ranks.state[rank].admitted > ranks.state[rank].delivered:
        ranks.state[rank].reading = 1
        prefetch(ranks.size, (ranks.state[rank].delivered, rank))
        add(latent, now + ranks.latency, rank)


@inlined
def deliver(net: Net, ranks: Ranks, k: int) -> int:
    """The first stream of class `k` has ended: the rank whose stream stops, or -1 when it reads on."""
    host = net.queue[k, 0]
    net.service[k] = net.key[host]  # exactly: no drift
    base = host * net.most
    rank: int = net.flow[base].rank
    number = ranks.state[rank].delivered + 1
    ranks.state[rank].delivered = number
    if ranks.state[rank].waiting:
        ranks.asking[0] = rank
        ranks.counts[0] = 1
    if ranks.state[rank].admitted > number:
        key = net.flow[base].key + ranks.size[number, rank]
        take(net, host)
        put(net, ranks.state, host, rank, key)
        refill(net, ranks.state, ranks.size, host)
        net.key[host] = net.flow[base].key - net.offset[host]
        sink(net, k, 0, host)
        return -1
    ranks.state[rank].reading = 0
    return rank


@inlined
def computed(ranks: Ranks, rank: int) -> None:
    """A step is computed: the rank asks for the next batch, or all do when the last has arrived."""
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
def run(net: Net, ranks: Ranks, latent: Timers, computing: Timers, ready: Floats) -> int:
    """Play to the end; the number of events."""
    now, events = 0.0, 0
    while True:
        while ranks.counts[0] > 0:
            ask(ranks, latent, computing, ready, now)
        seconds, which = next_end(net)
        then, late, done = now + seconds, first(latent), first(computing)
        rank, size = -1, 0.0  # whose stream begins, or stops
        if then <= late and then <= done:
            if which == 0:
                return events
            advance(net, seconds)
            now = then
            rank = deliver(net, ranks, which)
        else:
            advance(net, min(late, done) - now)
            now = min(late, done)
            if late <= done:
                rank = remove(latent, ranks.state)
                size = ranks.size[ranks.state[rank].delivered, rank]
            else:
                computed(ranks, remove(computing, ranks.state))
        if rank >= 0:
            change(net, ranks.state, ranks.size, rank % ranks.hosts, rank, size)
        events += 1


def play(scene: Scene) -> tuple[Floats, int]:
    """Seconds at which batches are there and taken, shape (steps, ranks); number of events."""
    count = scene.ranks
    ready = np.zeros((scene.steps, count))
    state = np.zeros(count, RANK)
    epoch = scene.epoch or scene.steps
    state["admitted"] = min(epoch, scene.steps, scene.prefetch)
    # Always the same layouts, and one of two types: others would be compiled anew. To the engine, what a step
    # costs beside its compute is the same as compute.
    size = np.ascontiguousarray(scene.size, np.float32 if scene.size.dtype == np.float32 else np.float64)
    compute = np.ascontiguousarray(scene.compute + scene.step_cost, np.float64)
    ranks = Ranks(
        size=size,
        compute=compute,
        gates=scene.gates,
        prefetch=int(scene.prefetch),
        latency=float(scene.latency),
        hosts=int(scene.hosts),
        epoch=int(epoch),
        state=state,
        asking=np.arange(count),
        counts=np.array([count, 0]),
    )
    latent, computing = (
        Timers(row=np.zeros(count + 1, ENTRY), span=np.zeros(2, np.int64), ring=ring)
        for ring in (True, scene.compute.size == 1)
    )
    return ready, int(run(make_net(scene), ranks, latent, computing, ready))
