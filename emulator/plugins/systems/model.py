"""Simulate measured counts with the parameters of a system, and search for the parameters that fit best.

A model is a choice of unknowns:

    limit        none | a shared bandwidth | a bandwidth of each host, if numbers of hosts differ
    rank         nothing | a latency of requests | a cost of each step
    saturation   hard | soft (StorageSystem.softness)

Its loss is the sum over counts of (ln X measured - ln X simulated)^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from emulator.analysis.parts import Floats
from emulator.analysis.throughput import throughput
from emulator.analysis.variation import PRIOR_DEVIATION
from emulator.config.workload import Workload
from emulator.plugins.systems.predict import scene_on
from emulator.plugins.systems.scene import Played, play
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import ALONE, ClientSystem, Parameters, System


def having(parameters: Parameters, name: str, value: float) -> Parameters:
    changed: dict[str, Any] = {name: value}
    return replace(parameters, **changed)


@dataclass
class FitModel:
    """Measured counts, simulated with given parameters."""

    workload: Workload
    seen: Sequence[Seen]
    known: dict[tuple[int, Parameters], float] = field(default_factory=dict)
    """Simulated bytes/s by count and parameters, because searches repeat evaluations."""

    def rate(self, number: int, parameters: Parameters) -> float:
        """Return the simulated bytes/s of a count, over the measured steps."""
        if (number, parameters) not in self.known:
            count = self.seen[number]
            _, lasting, _ = self.play(count, parameters).totals(
                self.workload.loader.batch_size, len(count.size)
            )
            self.known[number, parameters] = throughput(lasting).bytes_per_second
        return self.known[number, parameters]

    def play(self, count: Seen, parameters: Parameters) -> Played:
        """Simulate a count with its own batches. Raises MissingError without numba."""
        trial = System(clients=ClientSystem(hosts=count.hosts)).having(parameters)
        asked = count.rate / count.efficiency / count.ranks if count.efficiency else self.workload.demand
        batches = count.size, count.compute, count.gates
        return play(scene_on(trial, self.workload, *batches, demand=asked, epoch=count.epoch))

    def residuals(self, parameters: Parameters) -> Floats:
        """Return ln measured - ln simulated for every count."""
        return np.array(
            [math.log(count.rate / self.rate(number, parameters)) for number, count in enumerate(self.seen)]
        )

    def loss(self, parameters: Parameters) -> float:
        """Return the sum of squared residuals."""
        return float((self.residuals(parameters) ** 2).sum())

    def variance(self, parameters: Parameters) -> tuple[float, int]:
        """Return the variance of ln throughput of one run with these parameters, and its degrees of freedom.

        It comes from residuals and repeats, or from drift within runs if that is larger.
        """
        drifted = float(np.mean([count.drift**2 for count in self.seen])) / 4
        # If nobody waits, a count measures the accelerators' clock, which does not vary like the storage.
        waiting = sum(count.efficiency < ALONE for count in self.seen)
        freedom = max(0, waiting - len(parameters.free)) + 2
        return max((self.loss(parameters) + 2 * PRIOR_DEVIATION**2) / freedom, drifted), freedom

    def best(self, parameters: Parameters, *free: str, near: float = math.inf) -> Parameters:
        """Return the parameters with the least loss, searching the `free` ones in turn.

        The first search is over their whole range, or within `near` of their logarithms; with several, each
        is searched a second time near its first result, because they depend on each other.
        """
        for turn in range(2 if len(free) > 1 else 1):
            for name in free:
                here, (low, high) = math.log(getattr(parameters, name)), self._range(name)
                reach = min(near, 0.2 if turn else math.inf)
                low, high = (low, high) if math.isinf(reach) else (here - reach, here + reach)
                log = minimum(partial(self._loss_at, parameters, name), low, high)
                parameters = having(parameters, name, math.exp(log))
        return parameters

    def ends(self, parameters: Parameters, name: str, rise: float) -> tuple[Parameters, Parameters]:
        """Return the parameters below and above where the loss has risen by `rise`, changing only `name`."""
        start, most = math.log(getattr(parameters, name)), self.loss(parameters) + rise

        def over(log: float) -> float:
            return self._loss_at(parameters, name, log) - most

        low, high = (having(parameters, name, math.exp(edge(over, start, sign))) for sign in (-1, 1))
        return low, high

    def _loss_at(self, parameters: Parameters, name: str, log: float) -> float:
        return self.loss(having(parameters, name, math.exp(log)))

    def _range(self, name: str) -> tuple[float, float]:
        """Return the logarithms between which a parameter is searched."""
        if name == "latency":
            return math.log(1e-5), math.log(10)
        if name == "step_cost":
            each = float(np.mean([count.compute.mean() for count in self.seen]))
            return math.log(1e-4 * each), math.log(4 * each)
        # A bandwidth is about the throughput, or the demand, of all ranks together.
        asked = [max(seen.rate, seen.rate / seen.efficiency if seen.efficiency else 0) for seen in self.seen]
        most = max(seen.hosts for seen in self.seen)
        return math.log(0.5 * min(seen.rate for seen in self.seen) / most), math.log(2 * max(asked))


def minimum(loss: Callable[[float], float], low: float, high: float) -> float:
    """Return where `loss` is least from low to high, on finer and finer grids around the best point."""
    # A fine grid first: outside the range of the runs the loss is flat.
    points = 9 if high - low < 1.5 else 25
    while high - low > 2e-4:
        grid = np.linspace(low, high, points)
        best = int(np.argmin([loss(float(x)) for x in grid]))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(points - 1, best + 1)])
        points = 5
    return (low + high) / 2


def edge(over: Callable[[float], float], start: float, sign: int) -> float:
    """Return the zero of `over`, negative at `start`, in direction `sign`: doubling steps, then halving."""
    step = 1e-3
    while over(start + sign * step) < 0 and step < 20:
        step *= 2
    low, high = 0.0, step
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if over(start + sign * middle) < 0 else (low, middle)
    return start + sign * low
