"""A search for N_AU: the process count to run next, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from emulator.analysis.families import Indices
from emulator.analysis.parts import Floats
from emulator.analysis.posterior import DISCREPANCY, Posterior, posterior, weighted_quantiles
from emulator.record.result import Point

CERTAIN = 0.975
"""Probability that counts as certain, one-sided."""
BEYOND_DOUBT = 0.998
"""Probability that takes more than one run, since a single one may have stalled."""
INTERVAL = (0.0125, 0.5, 0.9875)
"""Quantiles of the posterior for a 95 % interval and its middle. They lie further out than 95 %, because
systems are no members of the families, and drift is no AR(1) process."""
WIDTH = 0.05
"""Relative width of the 95 % interval of N_AU at which a search stops."""
MAX_RUNS = 24
"""Most runs of a search. Where a run varies by 1 %, curves that bend slowly (USL) need as many for 8 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRun:
    """One run of one process count."""

    ranks: int
    efficiency: float
    """throughput / (ranks x ideal rate of one process)."""
    slack: float = 0.0
    """Upper bound of what the client lost: efficiency may have been higher by up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KneeSearch:
    """The target of a search and its limits."""

    maximum: int
    threshold: float = 0.9
    """Efficiency that defines N_AU (0 to 1)."""
    precision: float = WIDTH
    """Stop when the 95 % interval of N_AU is narrower than this share of it."""
    max_runs: int = MAX_RUNS
    min_runs: int = 6
    """Runs before a narrow interval is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The posterior after the runs so far, with its intervals."""

    n_au: tuple[float, float, float]
    """The 95 % interval of N_AU and its middle; below 1 where even one process is under the threshold."""
    n_saturation: float
    """Median of N* = C / r; little is known of it until some point is saturated."""
    beyond: float
    """Probability that N_AU is at or above the maximum."""
    below: float
    """Probability that even one process is under the threshold."""
    posterior: Posterior

    @property
    def deviation(self) -> float:
        """Relative standard deviation of one run, drift included."""
        return math.hypot(self.posterior.deviation, self.posterior.drift)

    @property
    def width(self) -> float:
        """Width of the 95 % interval of N_AU / its median."""
        low, middle, high = self.n_au
        return (high - low) / middle


def observe(point: Point) -> CountRun:
    """Return the efficiency of a point, throughput / ideal, and by how much the client may have lowered it.

    Without the client's part in starving the accelerators, the storage might have delivered more, up to the
    time that the client lost. It need not have: other ranks may have read in that time.
    """
    efficiency = point.samples_per_second / point.ideal_samples_per_second
    slack = 0.0
    if lost := point.starved:
        client_share = lost.link + lost.cores + lost.quota + lost.work + lost.loader
        client_loss = client_share * lost.seconds / max(1e-9, point.ranks * point.seconds)
        slack = max(0.0, min(client_loss, 1 - efficiency))
    return CountRun(ranks=point.ranks, efficiency=efficiency, slack=slack)


def believe(history: Sequence[CountRun], search: KneeSearch) -> Belief:
    """The posterior after these runs (`emulator.analysis.posterior`) and its 95 % intervals."""
    return _believe(tuple(history), search)


# A posterior takes 0.05 s or more, and the verdict, the outlook and the next count all need the same one.
@lru_cache(maxsize=2)
def _believe(history: tuple[CountRun, ...], search: KneeSearch) -> Belief:
    hypotheses = posterior(
        [run.ranks for run in history],
        [run.efficiency for run in history],
        search.threshold,
        search.maximum,
        [run.slack for run in history],
    )
    log_knee = hypotheses.log_n_au
    (median_saturation,) = hypotheses.quantiles(hypotheses.log_n_saturation, (0.5,))
    return Belief(
        n_au=_within(hypotheses, *hypotheses.quantiles(log_knee, INTERVAL)),
        n_saturation=median_saturation,
        beyond=float(hypotheses.weight[log_knee >= math.log(search.maximum)].sum()),
        below=float(hypotheses.weight[log_knee < 0].sum()),
        posterior=hypotheses,
    )


def _within(hypotheses: Posterior, low: float, middle: float, high: float) -> tuple[float, float, float]:
    """Cut the interval of N_AU at counts whose own runs prove that they are fed, or that they starve.

    A curve through all runs may contradict those of one count, and explain the difference by drift.
    """
    bare = hypotheses.crossings
    if bare is None:
        return low, middle, high
    counts = np.exp(bare.log_counts)
    largest_fed = float(counts[bare.fed > BEYOND_DOUBT].max(initial=0.0))
    smallest_starved = float(counts[bare.fed < 1 - BEYOND_DOUBT].min(initial=math.inf))
    if largest_fed < min(smallest_starved, high) and low < smallest_starved:
        low = max(low, largest_fed)
        high = min(high, smallest_starved)
    return low, min(max(middle, low), high), high


def next_count(history: Sequence[CountRun], search: KneeSearch) -> int | str:
    """The count to run next, or why to stop. Pure and deterministic.

    Next is the count N with the largest expected fall of the variance of k = ln N_AU per cost:

        cov(k, m_N)^2 / (var(m_N) + deviation^2 + discrepancy^2) / cost(N)

    with m_N = ln efficiency at N over the posterior: the exact fall for a linear Gaussian model (Bayesian
    D-optimal design, Chaloner and Verdinelli 1995). A count may be repeated. If all runs are on one side of
    the interval, its middle is next, because a knee needs a count that is fed and one that is not.
    """
    belief = believe(history, search)
    if stop := _stop(history, search, belief):
        return stop
    if belief.beyond >= CERTAIN:  # by extrapolation, since the maximum was not run yet
        return search.maximum
    if belief.below >= CERTAIN:
        return 1
    if len(history) >= search.min_runs // 2 and (count := _other_side(history, belief)):
        return min(count, search.maximum)
    counts, gain, _ = _gains(search, belief)
    return int(counts[int(np.argmax(gain))])


def runs_left(history: Sequence[CountRun], search: KneeSearch, belief: Belief) -> int:
    """Number of runs that `next_count` may still ask for, if each narrows the interval as the next does."""
    if _stop(history, search, belief):
        return 0
    _, _, variance_left = _gains(search, belief)
    most = search.max_runs - len(history)
    least = max(1, search.min_runs - len(history))
    if variance_left >= 1 or belief.width <= search.precision:
        return min(most, least)
    # The width falls with the square root of the variance.
    needed = 2 * math.log(search.precision / belief.width) / math.log(max(variance_left, 1e-6))
    return int(min(most, max(least, math.ceil(needed))))


def _stop(history: Sequence[CountRun], search: KneeSearch, belief: Belief) -> str:
    """Return why no further run is worth it; empty if one is."""
    counts = {run.ranks for run in history}
    if search.maximum in counts and belief.beyond >= CERTAIN:
        return f"no knee up to {search.maximum} processes"
    if 1 in counts and belief.below >= CERTAIN:
        return f"even one process gets less than {100 * search.threshold:.3g} % of its demand"
    precise = len(history) >= search.min_runs and belief.width < search.precision
    if precise and not _other_side(history, belief):
        return f"the 95 % interval of the knee is {100 * belief.width:.1f} % wide"
    if len(history) >= search.max_runs:
        return f"{search.max_runs} runs; the 95 % interval is still {100 * belief.width:.0f} % wide"
    return ""


def _other_side(history: Sequence[CountRun], belief: Belief) -> int:
    """Return the middle of the interval, as a count, if all runs are above it, or all below; else 0."""
    low, middle, high = belief.n_au
    counts = [run.ranks for run in history]
    if high < min(counts, default=0):
        return max(1, math.floor(middle))
    if low > max(counts, default=math.inf):
        return math.ceil(middle)
    return 0


def _gains(search: KneeSearch, belief: Belief) -> tuple[Indices, Floats, float]:
    """Candidate counts, their gain per cost, and what the best leaves of the variance of ln N_AU (0 to 1)."""
    hypotheses = belief.posterior
    # Systematic resampling: each hypothesis is drawn as often as its weight says, without randomness.
    ticks = (np.arange(2000) + 0.5) / 2000
    drawn = np.searchsorted(np.cumsum(hypotheses.weight), ticks).clip(max=len(hypotheses.weight) - 1)
    # Where the knee is beyond the maximum, or below one process, makes no difference.
    log_knee = np.clip(hypotheses.log_n_au[drawn], math.log(0.8), math.log(1.1 * search.maximum))
    counts = _candidates(log_knee, search.maximum)

    curves = hypotheses.curves(counts.tolist(), drawn)
    mean_curve = curves.mean(axis=1)
    next_runs = curves + hypotheses.ahead[drawn]
    deviations = log_knee - log_knee.mean()
    covariance = next_runs @ deviations / len(deviations)
    noise = hypotheses.deviation**2 + float(hypotheses.loose[drawn].mean())
    distance = np.minimum(np.abs(np.log(counts) - log_knee.mean()), 2.0)
    gain = covariance**2 / (next_runs.var(axis=1) + noise + (DISCREPANCY * distance) ** 2)
    # The time of a run's steps is in proportion to 1 / efficiency. The fixed cost of a run is set to 30 times
    # the steps of one that is fed, so that a search has few runs.
    cost = 30.0 + 1 / np.exp(mean_curve)
    best = int(np.argmax(gain / cost))
    return counts, gain / cost, 1 - float(gain[best]) / max(float(log_knee.var()), 1e-12)


def _candidates(log_knee: Floats, maximum: int) -> Indices:
    """Counts spread evenly along ln N, from a third of the lowest knee to three times the highest."""
    equal = np.full(len(log_knee), 1 / len(log_knee))
    low, high = np.exp(weighted_quantiles(log_knee, equal, (0.001, 0.999)))
    begin = min(max(1.0, low / 3), float(maximum))
    end = max(begin, min(float(maximum), high * 3))
    spread = np.geomspace(begin, end, 60)
    return np.unique(np.round(spread).astype(np.intp).clip(1, maximum))
