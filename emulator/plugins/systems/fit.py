"""The parameters of a system from a few measured counts, with intervals; or why they cannot be known.

Every measured count is played again on its own batches (the step log has their bytes), with everything known
(workload, loader, plan) and unknowns of which each model has some:

    limit        none | a bandwidth that all share | a bandwidth of each host, where numbers of hosts differ
    rank         nothing | a latency of requests | a cost of each step
    saturation   hard | soft (system.Alternative.softness)

The loss of a model is the sum over counts of (ln X measured - ln X played)^2 at its best parameters. One more
unknown must lower it by more than chance would. A limit is identified only when models without any are far
worse. Models, and ends of parameters, that are within t^2 s^2 of the best are its alternatives; predictions
span them. s is the relative deviation of one run: residuals and repeats, or drift within runs if larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from emulator.analysis.knee import PRIOR_NOISE
from emulator.analysis.throughput import student_t, throughput
from emulator.config.workload import Workload
from emulator.plugins.systems.limits import Limits, demand, limits, soft_limits
from emulator.plugins.systems.predict import on_paper, predict
from emulator.plugins.systems.scene import Floats, Played, Scene, play
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import SOFT, Alternative, ClientSystem, Fitted, StorageSystem, System

CONFIDENCE = 3.84
"""95 % quantile of chi-squared, one degree of freedom: what an unknown must take off the loss, in s^2."""
SURE = 9.0
"""How much worse, in the same unit, a model without a limit must be at least for a limit to be seen."""
LATENT = 0.90
"""Where a latency and a cost of steps explain the same, it is called latency if the smallest count's
efficiency is lower: one that costs less would have to be just so long that reading ahead nearly hides it."""
ALONE = 0.995
"""Efficiency from which on a rank loses nothing."""
HUGE, NOISY = 0.30, 0.15
"""Largest |ln measured - ln played| of a count, and deviation of a run, that still describe a system."""
SOFTNESS = (SOFT, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted system and how it follows the measurements."""

    system: System
    fitted: Fitted
    """How sure it is; the system's `fit`."""
    counts: tuple[int, ...]
    """In the order of `measured` and `played`."""
    measured: tuple[float, ...]
    """Bytes/s."""
    played: tuple[float, ...]
    """Bytes/s of the fitted system at the same counts."""
    intervals: tuple[tuple[float, float], ...]
    """95 % intervals of a run about `played`, in bytes/s."""
    unlimited: str
    """Why no limit is identified, where none is."""
    refusal: str
    """Why the system must not be used; empty: it may."""
    notes: tuple[str, ...]
    """What is not identified, as sentences."""

    def with_errors(self, held_out: tuple[float, ...]) -> Fit:
        """The same, and how well held-out counts are predicted (`Fitted.held_out`)."""
        fitted = replace(self.fitted, held_out=held_out)
        return replace(self, fitted=fitted, system=replace(self.system, fit=fitted))


@dataclass(frozen=True, slots=True)
class _Parameters:
    """A point of a model: infinite bandwidth is no limit."""

    bandwidth: float = math.inf
    hosted: bool = False
    """Whether the bandwidth is each host's."""
    latency: float = 0.0
    step_cost: float = 0.0
    softness: float | None = None

    @property
    def unknowns(self) -> int:
        known = (math.isinf(self.bandwidth), not self.latency, not self.step_cost, self.softness is None)
        return len(known) - sum(known)

    def having(self, name: str, value: float) -> _Parameters:
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed)

    @property
    def alternative(self) -> Alternative:
        rate = self.bandwidth if math.isfinite(self.bandwidth) else None
        return Alternative(
            bandwidth=None if self.hosted else rate,
            nic=rate if self.hosted else None,
            latency=self.latency,
            step_cost=self.step_cost,
            softness=self.softness,
        )


@dataclass
class _Model:
    """The counts that were seen, played on parameters."""

    workload: Workload
    seen: Sequence[Seen]
    known: dict[tuple[int, _Parameters], float] = field(default_factory=dict)

    def rate(self, number: int, parameters: _Parameters) -> float:
        """Bytes/s over the same steps of a count."""
        if (number, parameters) not in self.known:
            self.known[number, parameters] = self._rate(self.seen[number], parameters)
        return self.known[number, parameters]

    def play(self, count: Seen, parameters: _Parameters) -> Played:
        trial = System(storage=StorageSystem(latency=parameters.latency))
        bandwidth, hosts = parameters.bandwidth, count.hosts if parameters.hosted else 1
        hard = Limits(
            system=math.inf if parameters.hosted else bandwidth,
            host=bandwidth if parameters.hosted else math.inf,
            rank=limits(trial, self.workload).rank,
        )
        asked = count.rate / count.efficiency / count.ranks if count.efficiency else demand(self.workload)
        bound = soft_limits(hard, asked, count.ranks, hosts, parameters.softness)
        scene = Scene(
            size=count.size,
            compute=count.compute,
            gates=count.gates,
            prefetch=self.workload.loader.prefetch,
            system=bound.system,
            host=bound.host,
            rank=bound.rank,
            hosts=hosts,
            latency=parameters.latency,
            step_cost=parameters.step_cost,
            epoch=count.epoch,
        )
        return play(scene)

    def _rate(self, count: Seen, parameters: _Parameters) -> float:
        played = self.play(count, parameters)
        _, lasting, _ = played.totals(self.workload.loader.batch_size, len(count.size))
        return throughput(lasting).bytes_per_second

    def residuals(self, parameters: _Parameters) -> Floats:
        """ln measured - ln played of every count."""
        return np.array(
            [math.log(count.rate / self.rate(number, parameters)) for number, count in enumerate(self.seen)]
        )

    def loss(self, parameters: _Parameters) -> float:
        return float((self.residuals(parameters) ** 2).sum())

    def best(self, parameters: _Parameters, *free: str, near: float = math.inf) -> _Parameters:
        """The parameters with the least loss, `free` ones in turns: everywhere at first, or `near` where they
        are, in logarithms; then around what was found."""
        for turn in range(2 if len(free) > 1 else 1):
            for name in free:
                here, (low, high) = math.log(getattr(parameters, name)), self._reach(name)
                reach = min(near, 0.2 if turn else math.inf)
                low, high = (low, high) if math.isinf(reach) else (here - reach, here + reach)
                log = _golden(partial(self._at, parameters, name), low, high)
                parameters = parameters.having(name, math.exp(log))
        return parameters

    def _at(self, parameters: _Parameters, name: str, log: float) -> float:
        return self.loss(parameters.having(name, math.exp(log)))

    def _reach(self, name: str) -> tuple[float, float]:
        """Logarithms between which a parameter is looked for."""
        if name == "latency":
            return math.log(1e-5), math.log(10)
        if name == "step_cost":
            each = float(np.mean([count.compute.mean() for count in self.seen]))
            return math.log(1e-4 * each), math.log(4 * each)
        # A bandwidth is about what was read, or asked for, in all.
        asked = [max(seen.rate, seen.rate / seen.efficiency if seen.efficiency else 0) for seen in self.seen]
        most = max(seen.hosts for seen in self.seen)
        return math.log(0.5 * min(seen.rate for seen in self.seen) / most), math.log(2 * max(asked))

    def ends(self, parameters: _Parameters, name: str, rise: float) -> tuple[_Parameters, _Parameters]:
        """Where the loss has risen by `rise` below and above."""
        start, most = math.log(getattr(parameters, name)), self.loss(parameters) + rise

        def over(log: float) -> float:
            return self._at(parameters, name, log) - most

        low, high = (parameters.having(name, math.exp(_edge(over, start, sign))) for sign in (-1, 1))
        return low, high


def fit(result_names: Sequence[str], workload: Workload, seen: Sequence[Seen]) -> Fit:
    """The system that explains the counts `seen`."""
    model = _Model(workload, seen)
    smallest = min(range(len(seen)), key=lambda number: seen[number].ranks)
    alone = _Model(workload, [seen[smallest]])
    cost, latency = (alone.best(_Parameters().having(name, 1e-3), name) for name in ("step_cost", "latency"))
    ranks = [("step_cost", cost.step_cost), ("latency", latency.latency)]
    if seen[smallest].efficiency < LATENT:
        ranks.reverse()

    # Every model at its best, by what limits it.
    if seen[smallest].efficiency > ALONE:
        ranks = []
    free = [_Parameters(), *(model.best(_Parameters().having(name, value), name) for name, value in ranks)]
    limited = []
    for hosted in (False, True) if len({count.hosts for count in seen}) > 1 else (False,):
        plain = model.best(_Parameters(bandwidth=1.0, hosted=hosted), "bandwidth")
        hard = [plain] + [
            model.best(plain.having(name, value), "bandwidth", name, near=0.7) for name, value in ranks
        ]
        best = min(hard, key=model.loss)
        soft = (model.best(replace(best, softness=p), "bandwidth", near=0.2) for p in SOFTNESS)
        limited += [*hard, *soft]
    every = free + limited
    drifted = float(np.mean([count.drift**2 for count in seen])) / 4
    # Where nobody waits, accelerators' clocks were measured: that says nothing of the noise of the storage.
    waiting = sum(count.efficiency < ALONE for count in seen)

    def spread(parameters: _Parameters) -> tuple[float, int]:
        """The deviation of one run, squared, and its degrees of freedom."""
        freedom = max(0, waiting - parameters.unknowns) + 2
        return max((model.loss(parameters) + 2 * PRIOR_NOISE**2) / freedom, drifted), freedom

    unit, _ = min(spread(parameters) for parameters in every)

    def score(parameters: _Parameters) -> float:
        return model.loss(parameters) + CONFIDENCE * unit * parameters.unknowns

    limit, unlimited = min(limited, key=score), min(free, key=score)
    variance, freedom = spread(limit)
    # As sure as its interval: one that had no end would identify nothing.
    least = max(SURE, student_t(0.95, freedom) ** 2)
    identified = model.loss(unlimited) - model.loss(limit) > least * variance
    chosen = limit if identified else unlimited
    variance, freedom = spread(chosen)
    noise, sure = math.sqrt(variance), student_t(0.95, freedom)
    rise = sure**2 * variance

    alternatives: list[_Parameters] = []
    intervals: dict[str, tuple[float, ...]] = {"bandwidth": (), "latency": (), "step_cost": ()}
    for name in intervals:
        if 0 < getattr(chosen, name) < math.inf:
            low, high = model.ends(chosen, name, rise)
            alternatives += [low, high]
            intervals[name] = (getattr(low, name), getattr(high, name))
    alternatives += [
        other
        for other in (limited if identified else free)
        if other != chosen and model.loss(other) < model.loss(chosen) + rise
    ]
    most, largest = max(seen, key=lambda count: count.rate), max(seen, key=lambda count: count.ranks)
    at_least = None if identified else most.rate * math.exp(-sure * noise)
    if at_least is not None:
        alternatives = [replace(other, bandwidth=at_least) for other in alternatives]
    # What a pipeline takes to fill is played; what ranks waited beyond that, they had not begun to read.
    start = [
        count.first_wait - float(model.play(count, chosen).ready[0].mean())
        for count in seen
        if count.first_wait > 0
    ]
    fitted = Fitted(
        results=tuple(result_names),
        workload=workload.name,
        identified=identified,
        counts=tuple(sorted({count.ranks for count in seen})),
        hosts=tuple(sorted({count.hosts for count in seen})),
        at_least=at_least,
        bandwidth_interval=intervals["bandwidth"],
        latency_interval=intervals["latency"],
        step_cost_interval=intervals["step_cost"],
        error=math.sqrt(model.loss(chosen) / len(seen)),
        noise=noise,
        freedom=freedom,
        alternative=tuple(other.alternative for other in alternatives),
    )
    found, source = chosen.alternative, "fitted to " + ", ".join(result_names)
    values = {
        "storage.bandwidth": found.bandwidth,
        "clients.nic": found.nic,
        "storage.latency": found.latency,
        "clients.step_cost": found.step_cost,
        "storage.softness": found.softness,
    }
    system = System(
        title=f"fitted to {fitted.workload}",
        storage=StorageSystem(bandwidth=found.bandwidth, latency=found.latency, softness=found.softness),
        clients=ClientSystem(
            hosts=fitted.hosts[-1],
            nic=found.nic,
            step_cost=found.step_cost,
            start=max(0.0, float(np.median(start))) if start else 0.0,
        ),
        fit=fitted,
        sources={key: source for key, value in values.items() if value},
    )
    played = tuple(model.rate(number, chosen) for number in range(len(seen)))
    spans = [[model.rate(number, other) for other in (chosen, *alternatives)] for number in range(len(seen))]
    error = math.exp(sure * noise)
    return Fit(
        system=system,
        fitted=fitted,
        counts=tuple(count.ranks for count in seen),
        measured=tuple(count.rate for count in seen),
        played=played,
        intervals=tuple((min(span) / error, max(span) * error) for span in spans),
        unlimited=_unlimited(largest, chosen),
        refusal=_refusal(model, chosen, noise),
        notes=_notes(chosen, alternatives),
    )


def _unlimited(largest: Seen, chosen: _Parameters) -> str:
    """Why no limit is identified, from the largest count."""
    text = f"AU {100 * largest.efficiency:.3g} % at {largest.ranks:,} ranks"
    if largest.efficiency >= LATENT:
        return f"{text}: the storage was not at its limit"
    own = "latency" if chosen.latency else "a cost of each step"
    return f"{text}: {own} explains it as well as a limit does"


def _refusal(model: _Model, chosen: _Parameters, noise: float) -> str:
    """Why no model describes the runs; empty: one does."""
    residuals = model.residuals(chosen)
    worst = int(np.argmax(np.abs(residuals)))
    if abs(residuals[worst]) <= HUGE and noise <= NOISY:
        return ""
    count, off = model.seen[worst], 100 * math.expm1(-residuals[worst])
    text = f"no model describes these runs: at {count.ranks} ranks the best one is off by {off:+.0f} %"
    drifting = max(model.seen, key=lambda seen: abs(seen.drift))
    if abs(drifting.drift) > NOISY:
        change = 100 * math.expm1(drifting.drift)
        text += f", and throughput changed by {change:+.0f} % within the run of {drifting.ranks} ranks"
    return text


def _notes(chosen: _Parameters, alternatives: Sequence[_Parameters]) -> tuple[str, ...]:
    """What the measurements do not tell apart."""
    notes, every = [], (chosen, *alternatives)
    if (chosen.latency or chosen.step_cost) and len({other.latency > 0 for other in every}) > 1:
        notes.append("not told apart: whether a rank loses time to latency or to a cost of each step")
    if len({other.hosted for other in every}) > 1:
        notes.append("not told apart: a limit of the storage or of each host")
    if math.isfinite(chosen.bandwidth) and len({other.softness for other in every}) > 1:
        notes.append("not told apart: a limit that is reached at once or gradually")
    return tuple(notes)


def further_run(workload: Workload, found: Fit) -> str:
    """Which further run would narrow which parameter most, as a sentence; empty when none would.

    A run tells two values of a parameter apart by how far they move the throughput there, in units of the
    noise of a run.
    """
    fitted, system = found.fitted, found.system
    if not fitted.identified:
        return f"a run with {2 * fitted.counts[-1]} ranks or more would tell most: whether there is a limit"
    pairs = {
        name: interval
        for name, interval in (
            ("bandwidth", fitted.bandwidth_interval),
            ("latency", fitted.latency_interval),
            ("step_cost", fitted.step_cost_interval),
        )
        if interval
    }
    counts = np.unique(np.round(np.geomspace(1, 2 * fitted.counts[-1], 9)).astype(int))
    best = (0.0, "", 0)
    for name, ends in pairs.items():
        for ranks in counts:
            rates = []
            for value in ends:
                storage, clients = system.storage, system.clients
                if name == "latency":
                    storage = replace(storage, latency=value)
                elif name == "step_cost":
                    clients = replace(clients, step_cost=value)
                elif clients.nic is not None:
                    clients = replace(clients, nic=value)
                else:
                    storage = replace(storage, bandwidth=value)
                trial = replace(system, storage=storage, clients=clients)
                rates.append(
                    predict(on_paper(workload, trial, int(ranks), steps=30), int(ranks)).point.x_ideal
                )
            best = max(best, (abs(math.log(rates[1] / rates[0])), name, -int(ranks)))
    moved, name, ranks = best
    if not moved:
        return ""
    text = (
        f"a run with {-ranks} ranks would narrow {name.replace('_', ' ')} most: its interval moves "
        f"throughput there by {100 * moved:.1f} %, the noise of a run is {100 * fitted.noise:.1f} %"
    )
    if fitted.hosts[-1] > 1 and len(fitted.hosts) == 1:
        text += f"; one on {fitted.hosts[-1] // 2} host(s) would tell a limit of the hosts from the storage's"
    return text


def _golden(loss: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of `loss` from low to high: a grid, as it is flat beyond the data, then golden section."""
    points = 9 if high - low < 1.5 else 25
    grid = np.linspace(low, high, points)
    best = int(np.argmin([loss(float(x)) for x in grid]))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(points - 1, best + 1)])
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    below, above = loss(left), loss(right)
    while high - low > 2e-4:
        if below <= above:
            high, right, above = right, left, below
            left = high - ratio * (high - low)
            below = loss(left)
        else:
            low, left, below = left, right, above
            right = low + ratio * (high - low)
            above = loss(right)
    return (low + high) / 2


def _edge(over: Callable[[float], float], start: float, sign: int) -> float:
    """Where `over`, below 0 at `start`, becomes 0 in the direction `sign`: doubling steps, then halving."""
    step = 1e-3
    while over(start + sign * step) < 0 and step < 20:
        step *= 2
    low, high = 0.0, step
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if over(start + sign * middle) < 0 else (low, middle)
    return start + sign * low
