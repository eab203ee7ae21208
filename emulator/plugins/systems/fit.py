"""Estimate the parameters of a system from a few measured counts, with intervals, or report why that fails.

Each measured count is simulated with its own batches (the step log has their bytes), the known workload,
loader and plan, and the unknowns of a model (`systems.model`). An additional unknown must lower the loss by
more than chance would. A limit is identified only if models without one are far worse. Models, and ends of
parameters, within t^2 s^2 of the best are its alternatives, where s is the relative deviation of one run
(`FitModel.variance`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from emulator.analysis.drift import student_t
from emulator.config.workload import Workload
from emulator.plugins.systems.model import FitModel, having
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import ALONE, SOFT, ClientSystem, Evidence, Fitted, Parameters, System

CONFIDENCE = 3.84
"""Least reduction of the loss by an unknown, in s^2: 95 % of chi-squared with 1 degree of freedom."""
SURE = 9.0
"""Margin in s^2 by which models without a limit must be worse for a limit to be identified."""
LATENT = 0.90
"""Efficiency of the smallest count below which the loss of a single rank is latency, not a cost of steps."""
HUGE, SCATTERED = 0.30, 0.15
"""Largest |ln measured - ln simulated| of a count, and deviation of a run, that a system can describe."""
SOFTNESS = (SOFT, 20.0)
_SECTION = {"bandwidth": "storage", "latency": "storage", "softness": "storage"}
"""Section of a system file by parameter; others are in `clients`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted system, and its agreement with the measurements."""

    system: System
    played: tuple[float, ...]
    """Simulated throughput of the fitted system at the measured counts, in bytes/s."""
    intervals: tuple[tuple[float, float], ...]
    """95 % intervals of a run around `played`, in bytes/s."""
    unlimited: str
    """Reason why no limit is identified; empty if one is."""
    refusal: str
    """Reason why the system must not be used; empty if it may be."""
    notes: tuple[str, ...]
    """Sentences on parameters that are not identified."""

    @property
    def fitted(self) -> Fitted:
        assert self.system.fit is not None
        return self.system.fit

    def with_errors(self, held_out: tuple[float, ...]) -> Fit:
        """Return the fit with the relative errors of held-out counts (`Fitted.held_out`)."""
        return replace(self, system=replace(self.system, fit=replace(self.fitted, held_out=held_out)))


def fit(result_names: Sequence[str], workload: Workload, seen: Sequence[Seen]) -> Fit:
    """Return the system that explains the measured counts `seen`, at least one, best.

    `result_names` are its sources. Raises MissingError without numba.
    """
    model = FitModel(workload, seen)
    chosen, others, identified = _choose(model, *_candidates(model))
    variance, freedom = model.variance(chosen)
    fitted = Fitted(
        results=tuple(result_names),
        workload=workload.name,
        seen=tuple(
            Evidence(ranks=one.ranks, hosts=one.hosts, rate=one.rate, efficiency=one.efficiency)
            for one in seen
        ),
        identified=identified,
        deviation=math.sqrt(variance),
        freedom=freedom,
    )
    ends = _ends(model, chosen, fitted.run_error**2)
    most = model.loss(chosen) + fitted.run_error**2
    alternatives = [*(end for pair in ends.values() for end in pair)]
    alternatives += [other for other in others if model.loss(other) < most]
    fitted = replace(
        fitted,
        interval={name: (getattr(low, name), getattr(high, name)) for name, (low, high) in ends.items()},
        alternative=tuple(alternatives),
    )
    source, error = "fitted to " + ", ".join(fitted.results), math.exp(fitted.run_error)
    rates = [[model.rate(number, each) for each in (chosen, *alternatives)] for number in range(len(seen))]
    clients = ClientSystem(hosts=fitted.hosts[-1], start=_start(model, chosen))
    system = System(
        title=f"fitted to {fitted.workload}",
        clients=clients,
        fit=fitted,
        sources={f"{_SECTION.get(name, 'clients')}.{name}": source for name in chosen.free},
    )
    return Fit(
        system=system.having(chosen),
        played=tuple(rate[0] for rate in rates),
        intervals=tuple((min(rate) / error, max(rate) * error) for rate in rates),
        unlimited="" if identified else _unlimited(max(seen, key=lambda count: count.ranks), chosen),
        refusal=_refusal(model, chosen, fitted.deviation),
        notes=_notes(chosen, alternatives),
    )


def _candidates(model: FitModel) -> tuple[list[Parameters], list[Parameters]]:
    """Return every model with its best parameters: those without a limit, and those with one."""
    losses = _own_losses(model)
    free = [Parameters(), *(model.best(having(Parameters(), name, value), name) for name, value in losses)]
    limited = []
    # Only runs on different numbers of hosts can distinguish a limit of each host from one of the storage.
    several = len({count.hosts for count in model.seen}) > 1
    for limit in ("bandwidth", "nic") if several else ("bandwidth",):
        plain = model.best(having(Parameters(), limit, 1.0), limit)
        hard = [plain] + [
            model.best(having(plain, name, value), limit, name, near=0.7) for name, value in losses
        ]
        best = min(hard, key=model.loss)
        soft = (model.best(replace(best, softness=p), limit, near=0.2) for p in SOFTNESS)
        limited += [*hard, *soft]
    return free, limited


def _own_losses(model: FitModel) -> list[tuple[str, float]]:
    """Return losses of a single rank, as (parameter, seconds) from the smallest count, the likelier first.

    Empty if the smallest count loses nothing.
    """
    smallest = min(model.seen, key=lambda count: count.ranks)
    if smallest.efficiency > ALONE:
        return []
    alone = FitModel(model.workload, [smallest])
    losses = [
        (name, getattr(alone.best(having(Parameters(), name, 1e-3), name), name))
        for name in ("step_cost", "latency")
    ]
    # If both explain the runs equally well, the first wins. A latency that costs only a few per cent would
    # have to have just the length that prefetching almost hides: a cost of steps is then likelier.
    return losses[::-1] if smallest.efficiency < LATENT else losses


def _choose(
    model: FitModel, free: list[Parameters], limited: list[Parameters]
) -> tuple[Parameters, list[Parameters], bool]:
    """Return the model with the least loss, penalised per unknown, others, and whether a limit is identified.

    The model and the others have a limit only if one is identified.
    """
    unit = min(model.variance(parameters)[0] for parameters in (*free, *limited))

    def score(parameters: Parameters) -> float:
        return model.loss(parameters) + CONFIDENCE * unit * len(parameters.free)

    limit, unlimited = min(limited, key=score), min(free, key=score)
    variance, freedom = model.variance(limit)
    # At the confidence of its interval, which would otherwise have no end.
    least = max(SURE, student_t(0.95, freedom) ** 2)
    identified = model.loss(unlimited) - model.loss(limit) > least * variance
    chosen, kind = (limit, limited) if identified else (unlimited, free)
    return chosen, [other for other in kind if other != chosen], identified


def _ends(model: FitModel, chosen: Parameters, rise: float) -> dict[str, tuple[Parameters, Parameters]]:
    """Return the ends of each parameter's 95 % interval, at which the loss has risen by `rise`."""
    return {
        part.name: model.ends(chosen, part.name, rise)
        for part in fields(chosen)
        if part.name in chosen.free and part.name != "softness"  # which has only the values SOFTNESS
    }


def _start(model: FitModel, chosen: Parameters) -> float:
    """Return the seconds before a rank requests its first batch."""
    # The engine simulates the time to fill the pipeline. Ranks that waited longer had a start-up.
    beyond = [
        count.first_wait - float(model.play(count, chosen).ready[0].mean())
        for count in model.seen
        if count.first_wait > 0
    ]
    return max(0.0, float(np.median(beyond))) if beyond else 0.0


def _unlimited(largest: Seen, chosen: Parameters) -> str:
    """Return a sentence on why no limit is identified at the largest count."""
    text = f"AU {100 * largest.efficiency:.3g} % at {largest.ranks:,} ranks"
    if largest.efficiency >= LATENT:
        return f"{text}: the storage was not at its limit"
    cause = "latency" if chosen.latency else "a cost of each step"
    return f"{text}: {cause} explains it as well as a limit does"


def _refusal(model: FitModel, chosen: Parameters, deviation: float) -> str:
    """Return a sentence on why no model describes the runs; empty if one does."""
    residuals = model.residuals(chosen)
    worst = int(np.argmax(np.abs(residuals)))
    if abs(residuals[worst]) <= HUGE and deviation <= SCATTERED:
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
        notes.append("not distinguished: whether a rank loses time to latency or to a cost of each step")
    if len({other.nic is None for other in every}) > 1:
        notes.append("not distinguished: a limit of the storage or of each host")
    if (chosen.bandwidth or chosen.nic) and len({other.softness for other in every}) > 1:
        notes.append("not distinguished: a hard or a gradual limit")
    return tuple(notes)
