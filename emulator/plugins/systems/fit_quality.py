"""The worth of a fit: counts predicted from all the others, and the run that would narrow it most."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.config.workload import Workload
from emulator.plugins.systems.fit import Fit, fit
from emulator.plugins.systems.predict import efficiency_interval, on_paper, predict
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import System, on_hosts

TRIAL_STEPS = 30
"""Steps of a rank that a candidate is simulated with."""
TRIAL_COUNTS = 9
"""Counts that are considered, from 1 to twice the largest that was seen."""
LEAST = 4
"""Counts from which on each is held out: from fewer than three others nothing is identified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A count that the fit has not seen. Efficiencies are throughput / ideal."""

    ranks: int
    measured: float
    simulated: float
    least: bool
    """True when no limit was visible without this count: `simulated` is then a lower bound."""
    interval: tuple[float, float]
    """95 % interval of a run about `simulated`."""
    constant: float
    """The mean efficiency of the other counts."""
    cap: float
    """The largest throughput of the others, divided among the ranks; at most 1."""

    @property
    def errors(self) -> tuple[float, float, float]:
        """Relative errors of throughput: simulated, constant, cap."""
        simulated, constant, cap = (
            guess / self.measured - 1 for guess in (self.simulated, self.constant, self.cap)
        )
        return simulated, constant, cap


def held_out(workload: Workload, seen: Sequence[Seen]) -> list[HeldOut]:
    """Every count that the others can predict; those whose others are refused as a fit are left out."""
    found = []
    for ranks in sorted({one.ranks for one in seen}):
        others = [one for one in seen if one.ranks != ranks]
        left = [one for one in seen if one.ranks == ranks]
        fitted = fit((), workload, others) if others else None
        if fitted is None or fitted.refusal:
            continue
        system, steps = on_hosts(fitted.system, left[0].hosts), len(left[0].size)
        simulation = on_paper(workload, system, ranks, files=left[0].samples, steps=steps)
        point = predict(simulation, ranks).point
        most = max(one.efficiency * one.ranks for one in others)
        found.append(
            HeldOut(
                ranks=ranks,
                measured=statistics.mean(one.efficiency for one in left),
                simulated=point.x_ideal,
                least=system.lower_bound,
                interval=efficiency_interval(simulation, ranks, 0, point),
                constant=statistics.mean(one.efficiency for one in others),
                cap=min(1.0, most / ranks),
            )
        )
    return found


def median_errors(rows: Sequence[HeldOut]) -> tuple[float, ...]:
    """Median |error| of throughput: simulated, constant, cap; empty without rows."""
    return tuple(
        statistics.median(map(abs, errors)) for errors in zip(*(row.errors for row in rows), strict=True)
    )


def further_run(workload: Workload, found: Fit) -> str:
    """Say which further run would narrow which parameter most; empty when none would.

    A run tells two values of a parameter apart by how far they move the throughput there, in units of the
    variation from run to run.
    """
    fitted = found.fitted
    if not fitted.identified:
        return f"a run with {2 * fitted.counts[-1]} ranks or more would tell most: whether there is a limit"
    intervals = {
        "bandwidth": fitted.bandwidth_interval,
        "latency": fitted.latency_interval,
        "step_cost": fitted.step_cost_interval,
    }
    counts = np.unique(np.round(np.geomspace(1, 2 * fitted.counts[-1], TRIAL_COUNTS)).astype(int)).tolist()
    moves = [
        (_moved(workload, found.system, name, ends, ranks), name, -ranks)
        for name, ends in intervals.items()
        for ranks in counts
        if ends
    ]
    moved, name, fewest = max(moves, default=(0.0, "", 0))  # of counts that tell as much, the smallest
    if not moved:
        return ""
    text = (
        f"a run with {-fewest} ranks would narrow {name.replace('_', ' ')} most: its interval moves "
        f"throughput there by {100 * moved:.1f} %, run-to-run variation is {100 * fitted.deviation:.1f} %"
    )
    if fitted.hosts[-1] > 1 and len(fitted.hosts) == 1:
        text += f"; one on {fitted.hosts[-1] // 2} host(s) would tell a limit of the hosts from the storage's"
    return text


def _moved(workload: Workload, system: System, name: str, ends: tuple[float, ...], ranks: int) -> float:
    """|ln| of the ratio of throughput at `ranks` between the ends of a parameter's interval."""
    trials = (on_paper(workload, _having(system, name, value), ranks, steps=TRIAL_STEPS) for value in ends)
    low, high = (predict(trial, ranks).point.x_ideal for trial in trials)
    return abs(math.log(high / low))


def _having(system: System, name: str, value: float) -> System:
    """`system` with another value of a fitted parameter."""
    storage, clients = system.storage, system.clients
    if name == "latency":
        storage = replace(storage, latency=value)
    elif name == "step_cost":
        clients = replace(clients, step_cost=value)
    elif clients.nic is not None:  # the fitted bandwidth is each host's
        clients = replace(clients, nic=value)
    else:
        storage = replace(storage, bandwidth=value)
    return replace(system, storage=storage, clients=clients)
