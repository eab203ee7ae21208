"""Answers for who buys: how many accelerators a system feeds, and what a number of accelerators needs.

Both ask the simulator, by halving, at which count (or bandwidth) accelerator utilisation crosses the
threshold; formulas only say where to begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator.config.workload import Workload
from emulator.satellites.systems.limits import Constraint, binding, constraints, demand, limits
from emulator.satellites.systems.predict import on_paper, predict
from emulator.satellites.systems.system import ClientSystem, StorageSystem, System
from emulator.units import show_rate

STEPS = 60
"""Steps of every rank that a question is decided on."""
MOST = 1_000_000
"""Accelerators beyond which nobody asks."""
LINKS = (10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
"""Gb/s that network cards and pairs of them have."""
_TOLERANCE = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """How many accelerators a system feeds."""

    workload: Workload
    accelerators: int
    """Largest count with AU at or above the threshold."""
    bound: Constraint | None
    """What keeps the next one from being fed; None: nothing that the system states limits the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a number of accelerators needs."""

    workload: Workload
    accelerators: int
    hosts: int
    bandwidth: float
    """Bytes/s of the storage at which AU is at the threshold, with clients that do not limit."""
    nic: float
    """Bytes/s of one host at which AU is at the threshold, with a storage that has the margin."""
    cores: float | None
    """Cores of a host that reading keeps busy; None: the system does not say what a byte costs."""

    def link(self, margin: float) -> int | None:
        """The smallest common network speed in Gb/s that has the NIC's need with `margin`; None: none has."""
        wanted = self.nic / (1 - margin) * 8 / 1e9
        return next((speed for speed in LINKS if speed >= wanted), None)


def utilisation(workload: Workload, system: System, ranks: int) -> float:
    """AU (0 to 1) of `ranks` ranks, simulated."""
    return predict(on_paper(workload, system, ranks, steps=STEPS), ranks).point.au


def feeds(workload: Workload, system: System, threshold: float | None = None) -> Feeds:
    """How many accelerators of `workload` the system feeds at the AU `threshold`; None: the workload's."""
    wanted = workload.training.au_threshold if threshold is None else threshold
    found, hosts, asked = constraints(system, workload), system.clients.hosts, demand(workload) * wanted
    counts = []  # accelerators at which each constraint is full; 0: one alone exceeds it
    for constraint in found:
        if constraint.scope == "system":
            counts.append(constraint.rate / asked)
        elif constraint.scope == "host" and hosts is not None:
            counts.append(constraint.rate * hosts / asked)
        elif constraint.scope == "rank" and constraint.rate < asked:
            counts.append(0.0)
    if not counts:
        return Feeds(workload=workload, accelerators=MOST, bound=None)
    guess = min(counts)
    least, most = 0, max(2, min(MOST, math.ceil(1.05 * guess) + 1))
    while most < MOST and utilisation(workload, system, most) >= wanted:
        least, most = most, min(MOST, 2 * most)
    step = max(1, round(_TOLERANCE * guess))
    while most - least > step:
        # The guess is a little too high, so the first try below it is near.
        middle = (least + most) // 2 if least else max(1, min(most - 1, round(0.85 * most)))
        if utilisation(workload, system, middle) >= wanted:
            least = middle
        elif middle == 1:
            break
        else:
            most = middle
    return Feeds(workload=workload, accelerators=least, bound=binding(found, least + 1, hosts))


def needs(
    workload: Workload,
    accelerators: int,
    per_host: int,
    *,
    threshold: float | None = None,
    margin: float = 0.1,
    cpu_seconds_per_gb: float | None = None,
) -> Needs:
    """What storage and hosts `accelerators` of `workload` need at the AU `threshold`."""
    wanted = workload.training.au_threshold if threshold is None else threshold
    hosts = -(-accelerators // per_host)
    each = demand(workload)

    def with_storage(rate: float) -> float:
        return utilisation(workload, System(storage=StorageSystem(bandwidth=rate)), accelerators)

    bandwidth = _least(with_storage, wanted, accelerators * each)

    def with_nic(rate: float) -> float:
        storage = StorageSystem(bandwidth=bandwidth / (1 - margin))
        system = System(storage=storage, clients=ClientSystem(hosts=hosts, nic=rate))
        return utilisation(workload, system, accelerators)

    nic = _least(with_nic, wanted, per_host * each)
    cost = cpu_seconds_per_gb
    return Needs(
        workload=workload,
        accelerators=accelerators,
        hosts=hosts,
        bandwidth=bandwidth,
        nic=nic,
        cores=None if cost is None else per_host * each / 1e9 * cost,
    )


def _least(au: Callable[[float], float], wanted: float, scale: float) -> float:
    """The least rate with au(rate) >= wanted, by halving in logarithms; `scale` is the order of it."""
    low, high = math.log(0.25 * scale), math.log(1.5 * scale)
    while au(math.exp(high)) < wanted and high < math.log(64 * scale):
        low, high = high, high + math.log(2)
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if au(math.exp(middle)) >= wanted else (middle, high)
    return math.exp(high)


def verdict(found: Needs, system: System, margin: float) -> str:
    """Whether the system has what is needed, and what falls short first, as a sentence."""
    bound, name = limits(system, found.workload), system.name or system.title
    nic = found.nic / (1 - margin)
    have = {"storage": bound.system, "client hosts": bound.host, "one rank": bound.rank}
    shares = {
        "storage": bound.system / (found.bandwidth / (1 - margin)),
        "client hosts": bound.host / nic,
        "one rank": bound.rank / (nic * found.hosts / found.accelerators),
    }
    if system.clients.hosts is not None:
        shares["number of hosts"] = system.clients.hosts / found.hosts
    least = min(shares, key=lambda key: shares[key])
    if shares[least] >= 1:
        return f"{name} has all of it, {least} is the nearest to its limit"
    what = show_rate(have[least]) if least in have else f"{system.clients.hosts} hosts"
    return f"{name} falls short: {least} has {what}, {shares[least]:.0%} of what is needed"


def around(fed: int) -> tuple[int, ...]:
    """Process counts for a picture of the knee at `fed`."""
    wanted = np.unique(np.round(max(1, fed) * np.array([0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5])))
    return tuple(int(count) for count in wanted if count >= 1)
