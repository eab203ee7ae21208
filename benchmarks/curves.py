"""Throughput curves with known knees, for knee.py and for tests.

Each is scaled by `limit` = C / r, the storage's limit in units of one process's demand r = 1; efficiency is
X(N) / N. None is handed to the search: MVA and collapse are no members of the families it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.search import Belief, CountRun, KneeSearch, believe, next_count

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Efficiency at every whole count 1, 2, ... (index 0 is one process)."""

    name: str
    efficiency: Floats
    limit: float

    def at(self, ranks: int) -> float:
        return float(self.efficiency[ranks - 1])

    def knee(self, threshold: float = 0.9) -> float:
        """Largest N with efficiency >= threshold; along ln N between counts where only whole ones exist."""
        fed = np.flatnonzero(self.efficiency >= threshold)
        if not len(fed):
            return 0.0
        last = int(fed[-1])
        if last + 1 == len(self.efficiency):
            return math.inf
        between = np.geomspace(last + 1, last + 2, 2000)
        if self.name == "mva":  # a recursion over 1, 2, ... processes
            ends = np.log([last + 1, last + 2])
            efficiency = np.exp(np.interp(np.log(between), ends, np.log(self.efficiency[last : last + 2])))
        else:
            efficiency = EVERY[self.name](between, self.limit)
        return float(between[np.flatnonzero(efficiency >= threshold)[-1]])


Form = Callable[[Floats, float], Floats]
"""Efficiency of N processes, by N and the limit C."""


def roofline(n: Floats, limit: float) -> Floats:
    """min(N, C)."""
    return np.minimum(1.0, limit / n)


def soft(p: float) -> Form:
    """(N^-p + C^-p)^(-1/p): a limit that is felt before it is reached."""
    return lambda n, limit: np.power(1 + np.power(n / limit, p), -1 / p)


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


FORMS: dict[str, Form] = {
    "roofline": roofline,
    "soft p=6": soft(6),
    "soft p=3": soft(3),
    # Universal scalability law (Gunther 1993): 1 / (1 + a (N - 1) + b N (N - 1)).
    "usl": lambda n, c: 1 / (1 + 0.05 / c * (n - 1) + 0.06 / c**2 * n * (n - 1)),
    "mva": mva,
    # A hard limit that shrinks beyond it.
    "collapse": lambda n, c: np.minimum(1.0, c / (1 + 0.5 * np.maximum(0, n / c - 1)) / n),
}
"""Forms that systems are known to have; the search's own families come near all of them."""
SMOOTH = FORMS | {
    "soft p=2": soft(2),
    # Coherency alone: throughput falls soon after its peak.
    "usl strong": lambda n, c: 1 / (1 + 0.3 / c**2 * n * (n - 1)),
    "tanh": lambda n, c: c / n * np.tanh(n / c),
    # Slow to saturate.
    "exponential": lambda n, c: c / n * -np.expm1(-n / c),
    # A process alone gets 97 %.
    "overhead": lambda n, c: 0.97 * roofline(n, c),
    # 1.2 % lost per e-fold, and a hard limit.
    "latency": lambda n, c: (1 - 0.012 * np.log(n)) * roofline(n, c),
    # A first limit costs 5 % from 0.4 C on, a second one is hard.
    "two steps": lambda n, c: np.where(n > 0.4 * c, 0.95, 1.0) * roofline(n, c),
    # A cache that helps at other counts than 0.35 C: a dip of 4 % there.
    "cache bump": lambda n, c: roofline(n, c) * (1 - 0.04 * np.exp(-((np.log(n / (0.35 * c)) / 0.3) ** 2))),
    # Beyond the limit throughput still grows, as the root of N.
    "root": lambda n, c: np.minimum(1.0, np.sqrt(c / n)),
}


def cliff(left: float) -> Form:
    """Everything up to C processes, the share `left` from there on."""
    return lambda n, limit: np.where(n > limit, left, 1.0)


def plateau(level: float) -> Form:
    """Falls to `level` at C and to 0.3 at 4 C: two limits."""
    return lambda n, limit: np.where(n > 4 * limit, 0.3, np.where(n > limit, level, 1.0))


BROKEN: dict[str, Form] = {
    "cliff 0.8": cliff(0.8),
    "cliff 0.5": cliff(0.5),
    "cliff 0.1": cliff(0.1),
    "plateau 0.93": plateau(0.93),
    "plateau 0.86": plateau(0.86),
    # Falls smoothly to 0.86 about C, and at 4 C to 0.3.
    "sunk": lambda n, c: np.where(n > 4 * c, 0.3, 0.86 + 0.14 / (1 + np.power(n / c, 4))),
    # Starved between 0.2 C and 0.4 C, fed again up to the hard limit: crossed three times.
    "hole": lambda n, c: np.where((n > 0.2 * c) & (n < 0.4 * c), 0.84, 1.0) * roofline(n, c),
}
"""Forms that no family of the search comes near."""
STAIRS = ((2, 0.5), (1, 0.75), (0.8, 0.93), (0.5, 0.95), (0.2, 0.98))
HELD_OUT: dict[str, Form] = {
    # Always falling, ever faster.
    "stretched": lambda n, c: np.exp(-0.3 * np.power(n / c, 1.5)),
    "staircase": lambda n, c: np.select([n > part * c for part, _ in STAIRS], [e for _, e in STAIRS], 1.0),
    "soft p=4": soft(4),
    # Everything up to C, then 0.7 C shared by all.
    "cut off": lambda n, c: np.where(n > c, 0.7 * c / n, 1.0),
    # Beyond C, a slower tier gives each further process 40 % of its demand.
    "second tier": lambda n, c: np.minimum(1.0, (c + 0.4 * (n - c)) / n),
}
"""Forms that nobody looked at while the method was made."""
EVERY = SMOOTH | BROKEN | HELD_OUT


@cache
def curve(name: str, limit: float, most: int = 4096) -> Curve:
    """The curve of a name at 1 ... `most` processes."""
    far = np.arange(1, max(most, math.ceil(8 * limit)) + 1, dtype=np.float64)
    return Curve(name, EVERY[name](far, limit), limit)


LIMITS = (20.0, 1200.0)
"""Knees of trials are drawn from these limits C / r, evenly along the logarithm."""


@dataclass(frozen=True)
class Trial:
    """One search on one noisy curve."""

    curve: Curve
    belief: Belief
    stop: str
    runs: tuple[CountRun, ...]

    @property
    def error(self) -> float:
        """Relative error of N_AU."""
        return self.belief.n_au[1] / self.curve.knee() - 1

    def covers(self, slack: float = 0.01) -> bool:
        """True when the 95 % interval, widened by `slack` at either end, holds the knee."""
        low, _, high = self.belief.n_au
        return low * (1 - slack) <= self.curve.knee() <= high * (1 + slack)


def trial_random(
    name: str, variation: float, number: int, limits: tuple[float, float] = LIMITS
) -> tuple[Curve, np.random.Generator]:
    """The curve of a trial and the generator of its variation: the same for every method that is compared."""
    random = np.random.default_rng([crc32(name.encode()), round(variation * 1e4), number])
    low, high = np.log(limits)
    return curve(name, float(np.exp(random.uniform(low, high)))), random


Variation = Iterator[float]
"""ln(measured / true) of run after run."""


def white(random: np.random.Generator, sd: float) -> Variation:
    """Normal, each run by itself."""
    while True:
        yield random.normal(0, sd)


def drifting(random: np.random.Generator, sd: float, kept: float = 0.9) -> Variation:
    """AR(1): a machine that drifts for minutes. `sd` of a run, `kept` of it left at the next one."""
    off = random.normal(0, sd)
    while True:
        yield off
        off = kept * off + random.normal(0, sd * math.sqrt(1 - kept**2))


def heavy(random: np.random.Generator, sd: float, share: float = 0.05, loss: float = 0.3) -> Variation:
    """Normal, but a `share` of the runs loses `loss`: something else ran."""
    while True:
        yield random.normal(0, sd) + (math.log(1 - loss) if random.random() < share else 0.0)


def walking(random: np.random.Generator, sd: float) -> Variation:
    """Normal, about a random walk with steps of `sd`."""
    off = 0.0
    while True:
        yield off + random.normal(0, sd)
        off += random.normal(0, sd)


def jumping(random: np.random.Generator, sd: float) -> Variation:
    """Normal; from the seventh run on 5 % are lost: a neighbour came."""
    run = 0
    while True:
        yield random.normal(0, sd) + (math.log(0.95) if run > 5 else 0.0)
        run += 1


def losing(random: np.random.Generator, sd: float) -> Variation:
    """Only ever slower: exponential."""
    while True:
        yield -random.exponential(sd)


def skewed(random: np.random.Generator, sd: float) -> Variation:
    """Exponential as `losing`, but the truth is the mean: what the machine gives, losses included."""
    for off in losing(random, sd):
        yield off + sd


def sliding(random: np.random.Generator, sd: float, truth: float = 0.0) -> Variation:
    """Normal, about a line that falls or rises by 8 % over 20 runs; the truth is that of run `truth`."""
    slope = random.choice([-1, 1]) * 0.08 / 19
    run = -truth
    while True:
        yield random.normal(0, sd) + slope * run
        run += 1


def passing(random: np.random.Generator, sd: float) -> Variation:
    """`sliding` whose truth is in the middle of 20 runs."""
    return sliding(random, sd, 9.5)


def tailed(random: np.random.Generator, sd: float) -> Variation:
    """Student t with three degrees of freedom."""
    while True:
        yield sd * random.standard_t(3)


def trial(truth: Curve, variation: float, random: np.random.Generator, search: KneeSearch) -> Trial:
    """KneeSearch until it stops; each run is exp(normal) off the curve by `variation` (relative)."""
    return searched(truth, white(random, variation), search)


def searched(truth: Curve, variation: Variation, search: KneeSearch) -> Trial:
    """KneeSearch until it stops, where runs are off the curve by `variation`."""
    runs: list[CountRun] = []
    while True:
        now = believe(runs, search)
        wish = next_count(runs, search)
        if isinstance(wish, str):
            return Trial(truth, now, wish, tuple(runs))
        runs.append(CountRun(ranks=wish, efficiency=truth.at(wish) * math.exp(next(variation))))
