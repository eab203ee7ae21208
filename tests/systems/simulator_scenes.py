"""Scenes and independent answers for the simulator's tests: brute force, queueing theory, closed forms."""

import numpy as np

from emulator.plugins.systems.scene import Scene


def scene(size, compute=1.0, prefetch=2, sync=False, **more):
    """A scene over batches of `size` (steps, ranks); `sync` puts a barrier after every step."""
    size = np.asarray(size, dtype=float)
    return Scene(
        size=size,
        compute=np.atleast_2d(np.asarray(compute, dtype=float)),
        gates=np.full(len(size), sync),
        prefetch=prefetch,
        **more,
    )


def lognormal(steps, ranks, seed=0, mean=100e6, sigma=0.3):
    random = np.random.default_rng(seed)
    return mean * np.exp(sigma * random.standard_normal((steps, ranks)) - sigma**2 / 2)


def utilization(scene, ready, warm=0):
    """Mean over ranks of compute / time from the end of step `warm` on; without barriers."""
    end = ready + scene.compute
    seconds = end[-1] - (end[warm - 1] if warm else 0.0)
    busy = np.broadcast_to(scene.compute, ready.shape)[warm:].sum(axis=0)
    return float(np.mean(busy / seconds))


def mean_value_analysis(ranks, think, service):
    """Throughput of a closed queue of `ranks` customers: exact MVA (Reiser and Lavenberg 1980)."""
    queue = 0.0
    for count in range(1, ranks + 1):
        response = service * (1 + queue)
        rate = count / (think + response)
        queue = rate * response
    return rate


def water_level(scene, active):
    """Rates of the streams `active` (bool per rank), by filling step by step: the definition."""
    host = np.arange(scene.ranks) % scene.hosts
    rate = np.zeros(scene.ranks)
    free = active.copy()
    system = min(scene.system, 1e21)
    while free.any():
        room = [(system - rate.sum()) / free.sum(), (scene.rank - rate[free]).min()]
        for h in set(host[free]):
            room.append((scene.host - rate[host == h].sum()) / free[host == h].sum())
        grown = max(0.0, min(room))
        rate[free] += grown
        tight = 1e-12
        full = system - rate.sum() <= tight * system
        for a in np.flatnonzero(free):
            of_host = rate[host == host[a]].sum()
            if full or of_host >= scene.host * (1 - tight) or rate[a] >= scene.rank * (1 - tight):
                free[a] = False
    return rate


def brute_force(scene):
    """The scene played with every rate recomputed from its definition at every event. For a few ranks."""
    steps, ranks = scene.steps, scene.ranks
    compute = np.broadcast_to(scene.compute, (steps, ranks))
    ready = np.full((steps, ranks), np.nan)
    left = np.zeros(ranks)
    taken, got, may = (np.zeros(ranks, int) for _ in range(3))
    state = np.array(["idle"] * ranks, dtype=object)  # idle, late, on
    late, busy = np.full(ranks, np.inf), np.full(ranks, np.inf)
    blocked = np.zeros(ranks, bool)  # at the barrier
    now = 0.0
    epoch = scene.epoch or steps
    may[:] = min(steps, epoch, scene.prefetch)
    while True:
        for a in range(ranks):  # settle what can happen now
            if busy[a] == np.inf and not blocked[a] and taken[a] < steps:
                last = min(steps, (taken[a] // epoch + 1) * epoch)
                may[a] = max(may[a], taken[a] + 1)
                if taken[a] % epoch == 0:
                    may[a] = max(may[a], min(last, taken[a] + scene.prefetch))
                if got[a] > taken[a]:
                    ready[taken[a], a] = now
                    busy[a] = now + compute[taken[a], a]
                    taken[a] += 1
                    may[a] = max(may[a], min(last, taken[a] + scene.prefetch))
            if state[a] == "idle" and may[a] > got[a]:
                state[a], late[a] = "late", now + scene.latency
        rate = water_level(scene, state == "on")
        with np.errstate(divide="ignore", invalid="ignore"):
            done = np.where(state == "on", now + left / rate, np.inf)
        then = min(done.min(), late.min(), busy.min())
        if then == np.inf:
            return ready
        left -= np.where(state == "on", rate * (then - now), 0.0)
        now = then
        for a in np.flatnonzero(done <= then):
            got[a] += 1
            state[a] = "on" if may[a] > got[a] else "idle"
            left[a] = scene.size[got[a], a] if state[a] == "on" else 0.0
        for a in np.flatnonzero(late <= then):
            state[a], late[a], left[a] = "on", np.inf, scene.size[got[a], a]
        for a in np.flatnonzero(busy <= then):
            busy[a] = np.inf
            blocked[a] = scene.gates[taken[a] - 1]
        if blocked.all():
            blocked[:] = False
