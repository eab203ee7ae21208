"""The parameters of a system from a few measured counts, with intervals; or why they cannot be known.

Every measured count is played again on its own batches (the step log has their bytes), with everything known
(workload, loader, plan) and the unknowns of a model (`systems.model`). One more unknown must lower the loss
by more than chance would. A limit is identified only when models without one are far worse. Models, and ends
of parameters, that are within t^2 s^2 of the best are its alternatives; predictions span them. s is the
relative deviation of one run (`FitModel.variance`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.analysis.drift import student_t
from emulator.config.workload import Workload
from emulator.plugins.systems.model import ALONE, FitModel, Parameters
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import SOFT, ClientSystem, Fitted, StorageSystem, System

CONFIDENCE = 3.84
"""Reduction of the loss, in s^2, that an unknown must bring: 95 % quantile of chi-squared with 1 degree of
freedom."""
SURE = 9.0
"""Margin in s^2 by which models without a limit must be worse for a limit to be identified."""
LATENT = 0.90
"""Efficiency of the smallest count below which a lone rank's loss is called latency, not a cost of steps."""
HUGE, SCATTERED = 0.30, 0.15
"""Largest |ln measured - ln played| of a count, and deviation of a run, that a system can describe."""
SOFTNESS = (SOFT, 20.0)
"""Values of softness to try."""
UNKNOWNS = ("bandwidth", "latency", "step_cost")
"""Parameters that get an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted system and how it follows the measurements."""

    system: System
    fitted: Fitted
    """Certainty of the fit; the system's `fit`."""
    counts: tuple[int, ...]
    """Process counts, in the order of `measured` and `played`."""
    measured: tuple[float, ...]
    """Measured throughput in bytes/s."""
    played: tuple[float, ...]
    """Throughput of the fitted system at the same counts, in bytes/s."""
    intervals: tuple[tuple[float, float], ...]
    """95 % intervals of a run about `played`, in bytes/s."""
    unlimited: str
    """Reason why no limit is identified; empty if one is."""
    refusal: str
    """Reason why the system must not be used; empty if it may be."""
    notes: tuple[str, ...]
    """Sentences on parameters that are not identified."""

    def with_errors(self, held_out: tuple[float, ...]) -> Fit:
        """Return the fit with the relative errors of held-out counts (`Fitted.held_out`)."""
        fitted = replace(self.fitted, held_out=held_out)
        return replace(self, fitted=fitted, system=replace(self.system, fit=fitted))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The model that was chosen, at its best parameters."""

    parameters: Parameters
    identified: bool
    """True if a limit is identified."""
    others: Sequence[Parameters]
    """The other models that were tried, with a limit or all without."""
    deviation: float
    """Relative standard deviation of one run."""
    freedom: int
    """Degrees of freedom of `deviation`."""

    @property
    def error(self) -> float:
        """Return the half width of the 95 % interval of ln throughput of a run."""
        return student_t(0.95, self.freedom) * self.deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Parameters and models that the measurements do not exclude at 95 %."""

    alternatives: Sequence[Parameters]
    intervals: dict[str, tuple[float, ...]]
    """Intervals by unknown; empty for one that was not estimated."""
    at_least: float | None
    """Lower bound of the bandwidth in bytes/s; None if a limit is identified."""


def fit(result_names: Sequence[str], workload: Workload, seen: Sequence[Seen]) -> Fit:
    """Return the system that best explains the counts `seen`, of which there is at least one.

    `result_names` are its sources. Raises MissingError without numba.
    """
    model = FitModel(workload, seen)
    choice = _choose(model, *_candidates(model))
    span = _span(model, choice)
    chosen = choice.parameters
    fitted = Fitted(
        results=tuple(result_names),
        workload=workload.name,
        identified=choice.identified,
        counts=tuple(sorted({count.ranks for count in seen})),
        hosts=tuple(sorted({count.hosts for count in seen})),
        at_least=span.at_least,
        bandwidth_interval=span.intervals["bandwidth"],
        latency_interval=span.intervals["latency"],
        step_cost_interval=span.intervals["step_cost"],
        error=math.sqrt(model.loss(chosen) / len(seen)),
        deviation=choice.deviation,
        freedom=choice.freedom,
        alternative=tuple(other.alternative for other in span.alternatives),
    )
    numbers, every = range(len(seen)), (chosen, *span.alternatives)
    rates = [[model.rate(number, parameters) for parameters in every] for number in numbers]
    error = math.exp(choice.error)
    return Fit(
        system=_system(fitted, chosen, _start(model, chosen)),
        fitted=fitted,
        counts=tuple(count.ranks for count in seen),
        measured=tuple(count.rate for count in seen),
        played=tuple(model.rate(number, chosen) for number in numbers),
        intervals=tuple((min(rate) / error, max(rate) * error) for rate in rates),
        unlimited=_unlimited(max(seen, key=lambda count: count.ranks), chosen),
        refusal=_refusal(model, choice),
        notes=_notes(chosen, span.alternatives),
    )


def _candidates(model: FitModel) -> tuple[list[Parameters], list[Parameters]]:
    """Return every model at its best parameters: those without a limit, and those with one."""
    own = _own_losses(model)
    free = [Parameters(), *(model.best(Parameters().having(name, value), name) for name, value in own)]
    limited = []
    # A limit of each host is told from one of the storage only by runs on different numbers of hosts.
    for hosted in (False, True) if len({count.hosts for count in model.seen}) > 1 else (False,):
        plain = model.best(Parameters(bandwidth=1.0, hosted=hosted), "bandwidth")
        hard = [plain] + [
            model.best(plain.having(name, value), "bandwidth", name, near=0.7) for name, value in own
        ]
        best = min(hard, key=model.loss)
        soft = (model.best(replace(best, softness=p), "bandwidth", near=0.2) for p in SOFTNESS)
        limited += [*hard, *soft]
    return free, limited


def _own_losses(model: FitModel) -> list[tuple[str, float]]:
    """List losses of a rank alone, as (parameter, seconds) from the smallest count, the likelier first.

    Empty where the smallest count loses nothing.
    """
    smallest = min(model.seen, key=lambda count: count.ranks)
    if smallest.efficiency > ALONE:
        return []
    alone = FitModel(model.workload, [smallest])
    found = [
        (name, getattr(alone.best(Parameters().having(name, 1e-3), name), name))
        for name in ("step_cost", "latency")
    ]
    # Where both explain the runs equally well, the first wins. A latency that costs only a few per cent would
    # have to be just so long that reading ahead nearly hides it: then a cost of steps is likelier.
    return found[::-1] if smallest.efficiency < LATENT else found


def _choose(model: FitModel, free: list[Parameters], limited: list[Parameters]) -> _Choice:
    """Return the model with the least loss, penalised per unknown, with a limit only if identified."""
    unit = min(model.variance(parameters)[0] for parameters in (*free, *limited))

    def score(parameters: Parameters) -> float:
        return model.loss(parameters) + CONFIDENCE * unit * parameters.unknowns

    limit, unlimited = min(limited, key=score), min(free, key=score)
    variance, freedom = model.variance(limit)
    # As sure as its interval: one that had no end would identify nothing.
    least = max(SURE, student_t(0.95, freedom) ** 2)
    identified = model.loss(unlimited) - model.loss(limit) > least * variance
    chosen, kind = (limit, limited) if identified else (unlimited, free)
    variance, freedom = model.variance(chosen)
    return _Choice(
        parameters=chosen,
        identified=identified,
        others=[other for other in kind if other != chosen],
        deviation=math.sqrt(variance),
        freedom=freedom,
    )


def _span(model: FitModel, choice: _Choice) -> _Span:
    """Return the interval of each parameter, and the other models that are not excluded."""
    chosen, rise = choice.parameters, choice.error**2
    alternatives = list[Parameters]()
    intervals: dict[str, tuple[float, ...]] = dict.fromkeys(UNKNOWNS, ())
    for name in UNKNOWNS:
        if 0 < getattr(chosen, name) < math.inf:
            low, high = model.ends(chosen, name, rise)
            alternatives += [low, high]
            intervals[name] = (getattr(low, name), getattr(high, name))
    most = model.loss(chosen) + rise
    alternatives += [other for other in choice.others if model.loss(other) < most]
    if choice.identified:
        return _Span(alternatives=alternatives, intervals=intervals, at_least=None)
    at_least = max(count.rate for count in model.seen) * math.exp(-choice.error)
    return _Span(
        alternatives=[replace(other, bandwidth=at_least) for other in alternatives],
        intervals=intervals,
        at_least=at_least,
    )


def _start(model: FitModel, chosen: Parameters) -> float:
    """Return the seconds before a rank requests its first batch."""
    # The engine plays the time that a pipeline takes to fill. What ranks waited beyond it is start-up.
    beyond = [
        count.first_wait - float(model.play(count, chosen).ready[0].mean())
        for count in model.seen
        if count.first_wait > 0
    ]
    return max(0.0, float(np.median(beyond))) if beyond else 0.0


def _system(fitted: Fitted, chosen: Parameters, start: float) -> System:
    """Return the system file of the chosen parameters."""
    found, source = chosen.alternative, "fitted to " + ", ".join(fitted.results)
    values = {
        "storage.bandwidth": found.bandwidth,
        "clients.nic": found.nic,
        "storage.latency": found.latency,
        "clients.step_cost": found.step_cost,
        "storage.softness": found.softness,
    }
    return System(
        title=f"fitted to {fitted.workload}",
        storage=StorageSystem(bandwidth=found.bandwidth, latency=found.latency, softness=found.softness),
        clients=ClientSystem(hosts=fitted.hosts[-1], nic=found.nic, step_cost=found.step_cost, start=start),
        fit=fitted,
        sources={key: source for key, value in values.items() if value},
    )


def _unlimited(largest: Seen, chosen: Parameters) -> str:
    """Return a sentence on why no limit is identified at the largest count."""
    text = f"AU {100 * largest.efficiency:.3g} % at {largest.ranks:,} ranks"
    if largest.efficiency >= LATENT:
        return f"{text}: the storage was not at its limit"
    own = "latency" if chosen.latency else "a cost of each step"
    return f"{text}: {own} explains it as well as a limit does"


def _refusal(model: FitModel, choice: _Choice) -> str:
    """Return a sentence on why no model describes the runs; empty if one does."""
    residuals = model.residuals(choice.parameters)
    worst = int(np.argmax(np.abs(residuals)))
    if abs(residuals[worst]) <= HUGE and choice.deviation <= SCATTERED:
        return ""
    count, off = model.seen[worst], 100 * math.expm1(-residuals[worst])
    text = f"no model describes these runs: at {count.ranks} ranks the best one is off by {off:+.0f} %"
    drifting = max(model.seen, key=lambda seen: abs(seen.drift))
    if abs(drifting.drift) > SCATTERED:
        change = 100 * math.expm1(drifting.drift)
        text += f", and throughput changed by {change:+.0f} % within the run of {drifting.ranks} ranks"
    return text


def _notes(chosen: Parameters, alternatives: Sequence[Parameters]) -> tuple[str, ...]:
    """Return sentences on the parameters that the measurements cannot distinguish."""
    notes, every = [], (chosen, *alternatives)
    if (chosen.latency or chosen.step_cost) and len({other.latency > 0 for other in every}) > 1:
        notes.append("not told apart: whether a rank loses time to latency or to a cost of each step")
    if len({other.hosted for other in every}) > 1:
        notes.append("not told apart: a limit of the storage or of each host")
    if math.isfinite(chosen.bandwidth) and len({other.softness for other in every}) > 1:
        notes.append("not told apart: a limit that is reached at once or gradually")
    return tuple(notes)
