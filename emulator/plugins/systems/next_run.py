"""The run that would narrow a fit most."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from emulator.config.workload import Workload
from emulator.plugins.systems.fit import Fit
from emulator.plugins.systems.predict import on_paper, predict
from emulator.plugins.systems.system import System

TRIAL_STEPS = 30
"""Steps of a rank that a candidate is simulated with."""
TRIAL_COUNTS = 9
"""Counts that are considered, from 1 to twice the largest that was seen."""


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
