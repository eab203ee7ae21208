"""Quality of a fit: errors at held-out counts, and the additional run that would narrow it most."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.config.workload import Workload
from emulator.plugins.systems.fit import Fit, fit
from emulator.plugins.systems.model import having
from emulator.plugins.systems.predict import forecast, on_paper, predict
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import System, on_hosts

TRIAL_STEPS = 30
"""Steps per rank in the simulation of a candidate run."""
TRIAL_COUNTS = 9
"""Number of candidate counts, from 1 to twice the largest measured count."""
LEAST = 4
"""Fewest counts for holding out each: fewer than three others identify nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A count held out of the fit. Efficiencies are throughput / ideal."""

    ranks: int
    measured: float
    simulated: float
    interval: tuple[float, float]
    """95 % interval of a run around `simulated`."""
    constant: float
    """Mean efficiency of the other counts."""
    cap: float
    """Efficiency if the largest throughput of the others is divided among the ranks; at most 1."""

    @property
    def errors(self) -> tuple[float, float, float]:
        """Return the relative errors of throughput: simulated, constant, cap."""
        simulated, constant, cap = (
            guess / self.measured - 1 for guess in (self.simulated, self.constant, self.cap)
        )
        return simulated, constant, cap


def held_out(workload: Workload, seen: Sequence[Seen]) -> list[HeldOut]:
    """Return every count with its prediction from the others, if those give a usable fit."""
    predictions = []
    for ranks in sorted({one.ranks for one in seen}):
        others = [one for one in seen if one.ranks != ranks]
        left = [one for one in seen if one.ranks == ranks]
        fitted = fit((), workload, others) if others else None
        if fitted is None or fitted.refusal:
            continue
        system, steps = on_hosts(fitted.system, left[0].hosts), len(left[0].size)
        simulation = on_paper(workload, system, ranks, files=left[0].samples, steps=steps)
        guess = forecast(simulation, ranks)
        most = max(one.efficiency * one.ranks for one in others)
        predictions.append(
            HeldOut(
                ranks=ranks,
                measured=statistics.mean(one.efficiency for one in left),
                simulated=guess.point.x_ideal,
                interval=guess.interval,
                constant=statistics.mean(one.efficiency for one in others),
                cap=min(1.0, most / ranks),
            )
        )
    return predictions


def median_errors(rows: Sequence[HeldOut]) -> tuple[float, ...]:
    """Return the median |error| of throughput: simulated, constant, cap; empty without rows."""
    return tuple(
        statistics.median(map(abs, errors)) for errors in zip(*(row.errors for row in rows), strict=True)
    )


def further_run(workload: Workload, found: Fit) -> str:
    """Return a sentence on the additional run that would narrow a parameter most; empty if none would.

    A run distinguishes two values of a parameter better, the more they change its throughput relative to
    run-to-run variation.
    """
    fitted = found.fitted
    if not fitted.identified:
        return f"a run with {2 * fitted.counts[-1]} ranks or more, to show whether there is a limit"
    counts = np.unique(np.round(np.geomspace(1, 2 * fitted.counts[-1], TRIAL_COUNTS)).astype(int)).tolist()
    moves = [
        (_moved(workload, found.system, name, ends, ranks), name, -ranks)
        for name, ends in fitted.interval.items()
        for ranks in counts
    ]
    moved, name, fewest = max(moves, default=(0.0, "", 0))  # among equal moves the smallest count
    if not moved:
        return ""
    text = (
        f"a run with {-fewest} ranks would narrow {name.replace('_', ' ')} most: its interval moves "
        f"throughput there by {100 * moved:.1f} %, run-to-run variation is {100 * fitted.deviation:.1f} %"
    )
    if fitted.hosts[-1] > 1 and len(fitted.hosts) == 1:
        text += f"; one on {fitted.hosts[-1] // 2} host(s) would separate a limit of hosts from the storage's"
    return text


def _moved(workload: Workload, system: System, name: str, ends: tuple[float, float], ranks: int) -> float:
    """Return |ln| of the ratio of throughput at `ranks` between the ends of a parameter's interval."""
    systems = (system.having(having(system.parameters, name, value)) for value in ends)
    trials = (on_paper(workload, trial, ranks, steps=TRIAL_STEPS) for trial in systems)
    low, high = (predict(trial, ranks).point.x_ideal for trial in trials)
    return abs(math.log(high / low))
