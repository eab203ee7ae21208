"""The engine compiled by numba: the algorithm of simulator.reference on flat arrays, millions of events/s."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from emulator.simulator import network
from emulator.simulator.network import inlined
from emulator.simulator.scene import FAST, Played, Scene


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


def _add(timers: Timers, then: float, rank: int) -> None:
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


def _sink(timers: Timers, then: float, rank: int) -> None:
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
    rank = network.end(net, which)
    number = ranks.state[rank].delivered + 1
    ranks.state[rank].delivered = number
    if ranks.state[rank].waiting:
        ranks.asking[0] = rank
        ranks.counts[0] = 1
    if ranks.state[rank].admitted > number:
        network.go_on(net, rank % course.hosts, rank, course.size[number, rank])
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
        seconds, which = network.next_end(net)
        then, late, computed = now + seconds, _timer_first(latent), _timer_first(computing)
        rank, size = -1, 0.0
        if then <= late and then <= computed:
            if which == 0:
                return events
            network.advance(net, seconds)
            now = then
            host = net.queue[which, 0]
            if _rank_deliver(net, course, ranks, which):
                rank = net.flow[host * net.room].rank
        else:
            network.advance(net, min(late, computed) - now)
            now = min(late, computed)
            if late <= computed:
                rank = _timer_remove(latent)
                size = course.size[ranks.state[rank].delivered, rank]
            else:
                _rank_computed(course, ranks, _timer_remove(computing))
        if rank >= 0:
            network.change(net, rank % course.hosts, rank, size)
            network.share(net)
        events += 1


_timer_add, _timer_first, _timer_sink = inlined(_add), inlined(_first), inlined(_sink)
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
    net = network.make(count, scene.hosts, scene.system, scene.host, scene.rank, FAST)
    # Always the same types and layouts: another one would be compiled anew.
    size, compute = (np.ascontiguousarray(array, np.float64) for array in (scene.size, scene.compute))
    course = Course(size, compute, scene.gates, int(scene.prefetch), float(scene.latency), int(scene.hosts))
    state = np.zeros(count, RANK)
    state["admitted"] = min(scene.steps, scene.prefetch)
    ranks = Ranks(state=state, asking=np.arange(count), counts=np.array([count, 0]))
    constant = scene.compute.size == 1
    events = _play(net, course, ranks, _timers(count, True), _timers(count, constant), ready)
    return Played(ready=ready, events=int(events))
