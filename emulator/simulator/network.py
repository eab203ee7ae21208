"""The compiled engine's network: simulator.reference.Network on flat arrays, for numba.

Every function here is compiled when simulator.compiled is imported; plain Python can run them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

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
