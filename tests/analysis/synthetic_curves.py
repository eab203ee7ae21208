"""Throughput curves with known knees, for tests and for benchmarks/knee.py.

Each is scaled by `limit` = C / r, the storage's limit in units of one process's demand r = 1; efficiency is
X(N) / N. None is handed to the search: MVA and collapse are no members of the families it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.search import Belief, Observation, Search, Stop, believe, next_count

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Efficiency at every whole count 1, 2, ... (index 0 is one process)."""

    name: str
    efficiency: Floats
    limit: float
    saturation: float
    """Largest throughput that the curve reaches, in units of one process's demand."""

    def at(self, ranks: int) -> float:
        return float(self.efficiency[ranks - 1])

    def knee(self, threshold: float = 0.9) -> float:
        """Largest N with efficiency >= threshold; along ln N between counts where only whole ones exist."""
        last = int(np.flatnonzero(self.efficiency >= threshold)[-1])
        between = np.geomspace(last + 1, last + 2, 2000)
        if self.name in WHOLE_COUNTS:
            ends = np.log([last + 1, last + 2])
            efficiency = np.exp(np.interp(np.log(between), ends, np.log(self.efficiency[last : last + 2])))
        else:
            efficiency = FORMS[self.name](between, self.limit)
        return float(between[np.flatnonzero(efficiency >= threshold)[-1]])


def roofline(n: Floats, limit: float) -> Floats:
    """min(N, C)."""
    return np.minimum(1.0, limit / n)


def soft(p: float) -> Callable[[Floats, float], Floats]:
    """(N^-p + C^-p)^(-1/p): a limit that is felt before it is reached."""
    return lambda n, limit: np.power(1 + np.power(n / limit, p), -1 / p)


def usl(n: Floats, limit: float) -> Floats:
    """Universal scalability law (Gunther 1993): 1 / (1 + a (N - 1) + b N (N - 1))."""
    return 1 / (1 + 0.05 / limit * (n - 1) + 0.06 / limit**2 * n * (n - 1))


def mva(n: Floats, limit: float) -> Floats:
    """Exact mean value analysis of a closed queue: think time 1, service 0.05 on round(C / 20) servers.

    Several servers by Seidmann's approximation (1987): a queue of D / m and a delay of D (m - 1) / m.
    """
    servers = max(1, round(0.05 * limit))
    demand, delay, waiting = 0.05 / servers, 0.05 * (servers - 1) / servers, 0.0
    out = np.empty(len(n))
    for i in range(len(n)):
        stay = demand * (1 + waiting)
        rate = (i + 1) / (1 + delay + stay)
        waiting = rate * stay
        out[i] = rate / (i + 1)
    return out


def collapse(n: Floats, limit: float) -> Floats:
    """A hard limit that shrinks beyond it: min(N, C / (1 + (N / C - 1) / 2))."""
    return np.minimum(1.0, limit / (1 + 0.5 * np.maximum(0, n / limit - 1)) / n)


FORMS: dict[str, Callable[[Floats, float], Floats]] = {
    "roofline": roofline,
    "soft p=6": soft(6),
    "soft p=3": soft(3),
    "usl": usl,
    "mva": mva,
    "collapse": collapse,
}


WHOLE_COUNTS = frozenset({"mva"})
"""Forms that are recursions over 1, 2, ... processes."""


@cache
def curve(name: str, limit: float, most: int = 4096) -> Curve:
    """The curve of a name at 1 ... `most` processes."""
    far = np.arange(1, max(most, math.ceil(8 * limit)) + 1, dtype=np.float64)
    efficiency = FORMS[name](far, limit)
    return Curve(name, efficiency, limit, float((far * efficiency).max()))


LIMITS = (20.0, 1200.0)
"""Knees of trials are drawn from these limits C / r, evenly along the logarithm."""


@dataclass(frozen=True)
class Trial:
    """One search on one noisy curve."""

    curve: Curve
    belief: Belief
    stop: Stop
    runs: tuple[Observation, ...]

    @property
    def error(self) -> float:
        """Relative error of N_AU."""
        return self.belief.n_au[1] / self.curve.knee() - 1

    def covers(self, slack: float = 0.01) -> bool:
        """Whether the 95 % interval, widened by `slack` at either end, holds the knee."""
        low, _, high = self.belief.n_au
        return low * (1 - slack) <= self.curve.knee() <= high * (1 + slack)

    @property
    def effort(self) -> float:
        """Time of all runs in units of a run that never waits, every rank doing the same number of steps."""
        return sum(1 / run.efficiency for run in self.runs)


def trial_random(name: str, noise: float, number: int) -> tuple[Curve, np.random.Generator]:
    """The curve of a trial and the generator of its noise: the same for every method that is compared."""
    random = np.random.default_rng([crc32(name.encode()), round(noise * 1e4), number])
    low, high = np.log(LIMITS)
    return curve(name, float(np.exp(random.uniform(low, high)))), random


def trial(truth: Curve, noise: float, random: np.random.Generator, search: Search) -> Trial:
    """Search until it stops; each run is exp(normal) off the curve by `noise` (relative)."""
    runs: list[Observation] = []
    while True:
        now = believe(runs, search)
        wish = next_count(runs, search, now)
        if isinstance(wish, Stop):
            return Trial(truth, now, wish, tuple(runs))
        measured = truth.at(wish) * math.exp(random.normal(0, noise))
        runs.append(Observation(ranks=wish, efficiency=measured))
