"""What an engine plays and what it returns. The only interface between engines and everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from emulator.errors import MissingError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Ranks that read, compute and wait for each other, and the bandwidth that they share.

    Each rank reads its batches in order, the next one as soon as at most `prefetch` batches are ahead of
    the one that it computes on; with prefetch 0 it begins to read a batch when it needs it. Rank a is on
    host a mod hosts.
    """

    size: Floats
    """Bytes of each batch, shape (steps, ranks)."""
    compute: Floats
    """Seconds of compute of each step, shape (steps, ranks); (1, 1) when it is constant."""
    gates: Bools
    """True where all ranks wait for each other after the step, shape (steps,)."""
    prefetch: int
    """Batches read ahead of the accelerator, at most."""
    system: float = np.inf
    """Bytes/s of all ranks together."""
    host: float = np.inf
    """Bytes/s of the ranks of one host together."""
    rank: float = np.inf
    """Bytes/s of one rank."""
    hosts: int = 1
    latency: float = 0.0
    """Seconds before the first byte for a rank that had nothing to read."""

    @property
    def steps(self) -> int:
        return int(self.size.shape[0])

    @property
    def ranks(self) -> int:
        return int(self.size.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened in a scene."""

    ready: Floats
    """Second at which each batch was there and its compute began, shape (steps, ranks)."""
    events: int
    """Events that the engine went through."""


Engine = Callable[[Scene], Played]

FAST = 1e21
"""Bytes/s that stand for no limit: infinity would make 0 x infinity."""


def constant(seconds: float) -> Floats:
    """A compute time that is the same for every step."""
    return np.full((1, 1), float(seconds))


def ends(scene: Scene, ready: Floats) -> Floats:
    """Second at which each step ended, its barrier included: shape (steps, ranks)."""
    end: Floats = ready + scene.compute
    for step in np.flatnonzero(scene.gates):
        end[step] = end[step].max()
    return end


# ---- The compiled engine's network: simulator.reference.Network on flat arrays, for numba.
#
# Every function here is compiled when simulator.compiled is imported; plain Python can run them too.


inlined: Callable[[Any], Any] = numba.njit(inline="always")
"""Not used as a decorator, which would take the types away. Everything is inlined into one loop: a call
passes arrays by value and counts references, which costs more than what these functions do."""


FLOW = np.dtype([("key", "<f8"), ("rank", "<i8")])
"""One stream: the service of its host at which it ends, and whose it is. Side by side for the cache."""

WIDTH = 4
"""Children of a place in a heap of streams: with four, half as many levels miss the cache as with two."""


class Net(NamedTuple):
    """Arrays by host (h), class (k), stream slot; scalars are arrays of length 1."""

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
    """k, n: heap of the class's hosts by `key`."""
    spot: Any
    """h: where the host stands in its class's heap."""
    key: Any
    """h: service of the class at which the host's first stream ends."""
    offset: Any
    """h: service of the host minus that of its class."""
    active: Any
    """h: streams, which is its class."""
    flow: Any
    """Heaps of the hosts' streams, rows of FLOW, `room` for each host."""
    room: int


def make(ranks: int, hosts: int, system: float, host: float, rank: float, fast: float) -> Net:
    """A network without streams."""
    most = -(-ranks // hosts)
    counts = np.arange(1, most + 1, dtype=np.float64)
    own = np.concatenate([np.zeros(1), np.minimum(np.minimum(host / counts, rank), fast)])
    return Net(
        system=np.array([min(system, fast)]), own=own, service=np.zeros(most + 1), rate=np.zeros(most + 1),
        members=np.zeros(most + 1, np.int64), live=np.zeros(most + 1, np.int64),
        place=np.zeros(most + 1, np.int64), lives=np.zeros(1, np.int64),
        queue=np.zeros((most + 1, hosts), np.int32), spot=np.zeros(hosts, np.int64), key=np.zeros(hosts),
        offset=np.zeros(hosts), active=np.zeros(hosts, np.int64), flow=np.zeros(hosts * most, FLOW),
        room=most,
    )  # fmt: skip


def _advance(net: Net, seconds: float) -> None:
    for i in range(net.lives[0]):
        k = net.live[i]
        net.service[k] += net.rate[k] * seconds


def _next_end(net: Net) -> tuple[float, int]:
    best, which = np.inf, 0
    for i in range(net.lives[0]):
        k = net.live[i]
        seconds = max(0.0, net.key[net.queue[k, 0]] - net.service[k]) / net.rate[k]
        if seconds < best:
            best, which = seconds, k
    return best, which


def _share(net: Net) -> None:
    """Water-filling. Classes are told apart by the sign of their rate: 0 while they are still open."""
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


def _raise(net: Net, k: int, i: int, host: int) -> None:
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


def _lower(net: Net, k: int, i: int, host: int) -> None:
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


def _leave(net: Net, host: int) -> float:
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
            _climb(net, k, i, moved)
        else:
            _sink(net, k, i, moved)
    if last == 0:
        net.lives[0] -= 1
        other = net.live[net.lives[0]]
        net.live[net.place[k]] = other
        net.place[other] = net.place[k]
    return service


def _enter(net: Net, host: int, service: float) -> None:
    """Put `host`, which has been given `service`, into the class of its number of streams."""
    k = net.active[host]
    if k == 0:
        return
    if net.members[k] == 0:
        net.live[net.lives[0]] = k
        net.place[k] = net.lives[0]
        net.lives[0] += 1
        net.service[k] = 0.0
    net.members[k] += 1
    net.offset[host] = service - net.service[k]
    net.key[host] = net.flow[host * net.room].key - net.offset[host]
    _climb(net, k, net.members[k] - 1, host)


def _sift(net: Net, host: int, size: int, key: float, rank: int) -> None:
    """Put a stream at the top of its host's heap of `size` and let it sink."""
    base, i = host * net.room, 0
    while True:
        child = WIDTH * i + 1
        if child >= size:
            break
        least = net.flow[base + child].key
        for other in range(child + 1, min(child + WIDTH, size)):
            if net.flow[base + other].key < least:
                least = net.flow[base + other].key
                child = other
        if least >= key:
            break
        net.flow[base + i].key = least
        net.flow[base + i].rank = net.flow[base + child].rank
        i = child
    net.flow[base + i].key = key
    net.flow[base + i].rank = rank


def _join(net: Net, host: int, rank: int, key: float) -> None:
    """Add a stream that ends at service `key` to the heap of `host`."""
    base, i = host * net.room, net.active[host]
    net.active[host] += 1
    while i > 0:
        above = (i - 1) // WIDTH
        if net.flow[base + above].key <= key:
            break
        net.flow[base + i].key = net.flow[base + above].key
        net.flow[base + i].rank = net.flow[base + above].rank
        i = above
    net.flow[base + i].key = key
    net.flow[base + i].rank = rank


def _change(net: Net, host: int, rank: int, size: float) -> None:
    """A stream of `size` bytes of `rank` begins on `host`; with size 0 the host's first one stops.

    Rates are wrong until `share` is called.
    """
    service = _out(net, host)
    if size > 0:
        _add(net, host, rank, service + size)
    else:
        net.active[host] -= 1
        last = net.active[host]
        if last > 0:
            _settle(
                net, host, last, net.flow[host * net.room + last].key, net.flow[host * net.room + last].rank
            )
    _in(net, host, service)


def _end(net: Net, k: int) -> int:
    """The rank whose stream, the first of class k, has just ended."""
    host = net.queue[k, 0]
    net.service[k] = net.key[host]  # exactly: no drift
    return net.flow[host * net.room].rank  # type: ignore[no-any-return]


def _go_on(net: Net, host: int, rank: int, size: float) -> None:
    """The stream of `rank` that has ended, the first of its class, is followed by one of `size` bytes."""
    _settle(net, host, net.active[host], net.flow[host * net.room].key + size, rank)
    net.key[host] = net.flow[host * net.room].key - net.offset[host]
    _sink(net, net.active[host], 0, host)


_climb, _sink, _settle, _add = inlined(_raise), inlined(_lower), inlined(_sift), inlined(_join)
_out, _in = inlined(_leave), inlined(_enter)
advance, next_end, end, share = inlined(_advance), inlined(_next_end), inlined(_end), inlined(_share)
change, go_on = inlined(_change), inlined(_go_on)


# ---- The engine compiled by numba: the algorithm of simulator.reference on flat arrays, millions of
# events/s.


class Course(NamedTuple):
    """What the ranks do; the fields of Scene that the loop needs."""

    size: Any
    compute: Any
    gates: Any
    prefetch: int
    latency: float
    hosts: int


RANK = np.dtype(
    [("taken", "<i4"), ("delivered", "<i4"), ("admitted", "<i4"), ("reading", "<i2"), ("waiting", "<i2")]
)
"""Where a rank is; the same names as in the reference. Side by side for the cache."""

TIMER = np.dtype([("time", "<f8"), ("rank", "<i8")])


class Ranks(NamedTuple):
    """All ranks."""

    state: Any
    """Rows of RANK."""
    asking: Any
    """Ranks whose accelerator wants a batch now, `counts[0]` of them."""
    counts: Any
    """How many are asking, how many have arrived at the barrier."""


class Timers(NamedTuple):
    """Ranks that wait for a time. Of constant waits the first to come is the first to go: a ring."""

    row: Any
    """Rows of TIMER."""
    span: Any
    """Place of the first, number of all."""
    ring: bool
    """False: a heap by time."""


def _add_compiled(timers: Timers, then: float, rank: int) -> None:
    i = timers.span[1]
    timers.span[1] += 1
    if timers.ring:
        i += timers.span[0]
        if i >= len(timers.row):
            i -= len(timers.row)
    else:
        while i > 0:
            above = (i - 1) >> 1
            if timers.row[above].time <= then:
                break
            timers.row[i].time = timers.row[above].time
            timers.row[i].rank = timers.row[above].rank
            i = above
    timers.row[i].time = then
    timers.row[i].rank = rank


def _first(timers: Timers) -> float:
    return timers.row[timers.span[0]].time if timers.span[1] else np.inf


def _sink_compiled(timers: Timers, then: float, rank: int) -> None:
    """Put a timer at the top of the heap and let it sink."""
    size, i = timers.span[1], 0
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        if below + 1 < size and timers.row[below + 1].time < timers.row[below].time:
            below += 1
        if timers.row[below].time >= then:
            break
        timers.row[i].time = timers.row[below].time
        timers.row[i].rank = timers.row[below].rank
        i = below
    timers.row[i].time = then
    timers.row[i].rank = rank


def _remove(timers: Timers) -> int:
    """Take the first out; its rank."""
    i = timers.span[0]
    rank = timers.row[i].rank
    timers.span[1] -= 1
    if timers.ring:
        timers.span[0] = i + 1 if i + 1 < len(timers.row) else 0
    elif timers.span[1] > 0:
        _timer_sink(timers, timers.row[timers.span[1]].time, timers.row[timers.span[1]].rank)
    return rank  # type: ignore[no-any-return]


def _ask(course: Course, ranks: Ranks, latent: Timers, computing: Timers, ready: Any, now: float) -> None:
    """The accelerator of the last rank that asks wants its next batch: take it, or wait for it."""
    ranks.counts[0] -= 1
    rank = ranks.asking[ranks.counts[0]]
    step = ranks.state[rank].taken
    if step == len(course.size):
        return
    admitted = step + 1
    if ranks.state[rank].delivered > step:
        ready[step, rank] = now
        ranks.state[rank].waiting = 0
        ranks.state[rank].taken = step + 1
        seconds = course.compute[0, 0] if computing.ring else course.compute[step, rank]
        _timer_add(computing, now + seconds, rank)
        admitted = min(len(course.size), step + 1 + course.prefetch)
    else:
        ranks.state[rank].waiting = 1
    if admitted > ranks.state[rank].admitted:
        ranks.state[rank].admitted = admitted
    if not ranks.state[rank].reading and ranks.state[rank].admitted > ranks.state[rank].delivered:
        ranks.state[rank].reading = 1
        _timer_add(latent, now + course.latency, rank)


def _deliver(net: Any, course: Course, ranks: Ranks, which: int) -> bool:
    """The first stream of class `which` has ended; True when the host has one stream less."""
    rank = end(net, which)
    number = ranks.state[rank].delivered + 1
    ranks.state[rank].delivered = number
    if ranks.state[rank].waiting:
        ranks.asking[0] = rank
        ranks.counts[0] = 1
    if ranks.state[rank].admitted > number:
        go_on(net, rank % course.hosts, rank, course.size[number, rank])
        return False
    ranks.state[rank].reading = 0
    return True


def _computed(course: Course, ranks: Ranks, rank: int) -> None:
    """A step is computed: the rank asks for the next batch, or all do when the last has arrived."""
    count = len(ranks.state)
    if not course.gates[ranks.state[rank].taken - 1]:
        ranks.asking[0] = rank
        ranks.counts[0] = 1
        return
    ranks.counts[1] += 1
    if ranks.counts[1] == count:
        ranks.counts[1] = 0
        ranks.counts[0] = count
        for each in range(count):
            ranks.asking[each] = each


def _run(net: Any, course: Course, ranks: Ranks, latent: Timers, computing: Timers, ready: Any) -> int:
    """Play to the end; the number of events."""
    now, events = 0.0, 0
    while True:
        while ranks.counts[0] > 0:
            _rank_ask(course, ranks, latent, computing, ready, now)
        seconds, which = next_end(net)
        then, late, computed = now + seconds, _timer_first(latent), _timer_first(computing)
        rank, size = -1, 0.0
        if then <= late and then <= computed:
            if which == 0:
                return events
            advance(net, seconds)
            now = then
            host = net.queue[which, 0]
            if _rank_deliver(net, course, ranks, which):
                rank = net.flow[host * net.room].rank
        else:
            advance(net, min(late, computed) - now)
            now = min(late, computed)
            if late <= computed:
                rank = _timer_remove(latent)
                size = course.size[ranks.state[rank].delivered, rank]
            else:
                _rank_computed(course, ranks, _timer_remove(computing))
        if rank >= 0:
            change(net, rank % course.hosts, rank, size)
            share(net)
        events += 1


_timer_add, _timer_first, _timer_sink = inlined(_add_compiled), inlined(_first), inlined(_sink_compiled)
_timer_remove = inlined(_remove)
_rank_ask, _rank_deliver, _rank_computed = inlined(_ask), inlined(_deliver), inlined(_computed)
# Nothing is allocated in it: without numba's reference counts on arrays it runs four times as fast.
_play = numba.njit(cache=True, _nrt=False)(_run)


def _timers(ranks: int, ring: bool) -> Timers:
    return Timers(row=np.zeros(ranks + 1, TIMER), span=np.zeros(2, np.int64), ring=ring)


def play(scene: Scene) -> Played:
    """Play `scene` to its end."""
    count = scene.ranks
    ready = np.zeros((scene.steps, count))
    net = make(count, scene.hosts, scene.system, scene.host, scene.rank, FAST)
    # Always the same types and layouts: another one would be compiled anew.
    size, compute = (np.ascontiguousarray(array, np.float64) for array in (scene.size, scene.compute))
    course = Course(size, compute, scene.gates, int(scene.prefetch), float(scene.latency), int(scene.hosts))
    state = np.zeros(count, RANK)
    state["admitted"] = min(scene.steps, scene.prefetch)
    ranks = Ranks(state=state, asking=np.arange(count), counts=np.array([count, 0]))
    constant = scene.compute.size == 1
    events = _play(net, course, ranks, _timers(count, True), _timers(count, constant), ready)
    return Played(ready=ready, events=int(events))


# ---- Which engine plays a scene: compiled where numba is installed, else plain Python.


EngineKind = Literal["numba", "python"]

REPRESENTATIVES = 2000
"""Ranks that the plain Python engine plays when they do not wait for each other; more are stood for by these,
with the limits scaled down. With barriers all are played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An engine and how many ranks it plays at most."""

    kind: EngineKind
    play: Engine
    most_ranks: int | None


def choose(kind: EngineKind | None = None, most_ranks: int | None = None) -> Chosen:
    """The engine `kind`; None: the fastest that is there. Raises MissingError."""
    if kind != "python" and find_spec("numba") is not None:
        return Chosen(kind="numba", play=play, most_ranks=most_ranks)
    if kind == "numba":
        raise MissingError("--engine numba needs numba", "pip install 'feedrate[sim]'")
    from emulator.satellites.systems import reference

    return Chosen(kind="python", play=reference.play, most_ranks=most_ranks or REPRESENTATIVES)
