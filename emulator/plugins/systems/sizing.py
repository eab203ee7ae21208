"""Capacity planning: accelerators that a system feeds, and storage that accelerators need.

Both search, by halving and simulation, for the count (or bandwidth) at which accelerator utilization crosses
the threshold; formulas only give the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from emulator.analysis.knee import NO_KNEE
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.plugins.systems.limits import Constraint, binding, cap, constraints
from emulator.plugins.systems.predict import Simulation, on_paper, predict
from emulator.plugins.systems.system import ClientSystem, StorageSystem, System
from emulator.record.result import Knee
from emulator.report.table import number
from emulator.units import show_rate

DECIDING_STEPS = 60
"""Steps per rank in the simulations of the search."""
MOST = 100_000
"""Largest number of accelerators to consider."""
WHOSE = {"system": "", "host": " a host", "rank": " a rank"}
"""Text after a rate, by the scope of the limit."""
_TOLERANCE, _ROUGH = 0.002, 0.01
"""Relative tolerance of the answer, and of an end of its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """The number of accelerators that a system feeds."""

    workload: Workload
    crossing: float = MOST
    """Count at which throughput / ideal falls below the threshold, interpolated."""
    interval: tuple[float, float] = (MOST, math.inf)
    """95 % interval of `crossing`: model choice, the fit's uncertainty and run-to-run variation."""
    bound: Constraint | None = None
    """The limit that would starve one more accelerator; None if none was reached."""
    knee: Knee

    @property
    def accelerators(self) -> int:
        """Return the largest count with throughput / ideal at or above the threshold."""
        return math.floor(self.crossing)


def utilization(workload: Workload, system: System, ranks: int, over: Simulation | None = None) -> float:
    """Simulate ranks, and return throughput / ideal (0 to 1), which is AU if all steps have the same compute.

    `over` is the run; None for one without ends of epochs.
    """
    run = replace(over, system=system) if over else on_paper(workload, system, ranks, steps=DECIDING_STEPS)
    return predict(run, ranks).point.x_ideal


def feeds(workload: Workload, system: System, over: Simulation | None = None) -> Feeds:
    """Return the number of accelerators that the system feeds at the workload's AU threshold.

    This is the answer of plan, simulate and efficiency; it does not depend on counts or steps. `over` is a
    run on a dataset, where readers wait at the ends of epochs; None for a run without ends of epochs.
    """
    wanted = workload.training.au_threshold
    if not workload.ideal_samples_per_second < math.inf:
        return Feeds(workload=workload, knee=NO_KNEE)
    system = system.cautious
    runs, full = _Runs(workload=workload, system=system, over=over), cap(system, workload)
    if math.isinf(full):
        return _all_fed(workload, MOST, "No stated limit of the system applies to this workload.")
    crossing = runs.crossing(wanted)
    if crossing == runs.most:
        why = "the dataset has no batch for another one" if over else "larger counts are not simulated"
        return _all_fed(workload, runs.most, f"This system feeds {runs.most:,} accelerators or more: {why}.")
    low, high = _interval(runs, wanted, crossing, full)
    bound = binding(constraints(system, workload), math.floor(crossing) + 1, system.clients.hosts)
    inside = crossing >= 1
    knee = Knee(
        kind="knee" if inside else "below",
        n_au=crossing if inside else None,
        n_saturation=full or None,
        interval=(low, high) if inside else None,
        starved=None if inside else 1,
        sentence=_sentence(system, crossing, (low, high), wanted, bound, over),
    )
    return Feeds(workload=workload, crossing=crossing, interval=(low, high), bound=bound, knee=knee)


def _all_fed(workload: Workload, most: int, sentence: str) -> Feeds:
    """Return the answer if all counts up to `most` are fed."""
    knee = replace(NO_KNEE, kind="beyond", fed=most, sentence=sentence)
    return Feeds(workload=workload, crossing=most, interval=(most, math.inf), knee=knee)


@dataclass
class _Runs:
    """Simulated runs of a workload on a system, each count once."""

    workload: Workload
    system: System
    over: Simulation | None
    known: dict[int, float] = field(default_factory=dict)
    """Throughput / ideal by count."""

    @property
    def most(self) -> int:
        return min(MOST, self.over.samples // self.workload.loader.batch_size) if self.over else MOST

    def efficiency(self, ranks: int) -> float:
        """Return throughput / ideal at a count."""
        if ranks not in self.known:
            self.known[ranks] = utilization(self.workload, self.system, ranks, self.over)
        return self.known[ranks]

    def crossing(self, wanted: float, tolerance: float = _TOLERANCE) -> float:
        """Return the count at which throughput / ideal falls below `wanted`, interpolated between counts.

        0 if one rank has less; `most` if as many have it. The search starts at the count of the limits.
        """
        guess = cap(self.system, self.workload, wanted) / wanted
        if not guess or (above := self.efficiency(1)) < wanted:
            return 0.0
        fed, starved = 1, min(self.most, max(2, math.ceil(1.05 * guess) + 1))
        below = self.efficiency(starved)
        while below >= wanted and starved < self.most:
            fed, above = starved, below
            starved = min(self.most, 2 * starved)
            below = self.efficiency(starved)
        if below >= wanted:
            return float(starved)
        step = max(1, round(tolerance * guess))
        while starved - fed > step:
            # The guess is slightly too high, so the first count to try is slightly lower.
            middle = (fed + starved) // 2 if fed > 1 else max(2, min(starved - 1, round(0.85 * starved)))
            reached = self.efficiency(middle)
            if reached >= wanted:
                fed, above = middle, reached
            else:
                starved, below = middle, reached
        return fed + (starved - fed) * (above - wanted) / max(above - below, 1e-12)


def _interval(runs: _Runs, wanted: float, crossing: float, full: float) -> tuple[float, float]:
    """Return the 95 % interval around `crossing`; `full` is the count of the limits without simulation.

    It spans the system's alternatives, `full` if the system is only described, and run-to-run variation,
    which changes a knee about as much as a throughput.
    """
    system = runs.system
    crossings = [
        crossing,
        *(replace(runs, system=other, known={}).crossing(wanted, _ROUGH) for other in system.alternatives),
    ]
    if system.fit is None:
        crossings.append(full / wanted)
    error = math.exp(system.run_error)
    low, high = min(crossings) / error, math.inf if system.lower_bound else max(crossings) * error
    # Near the threshold run-to-run variation decides whether a single accelerator is fed.
    alone = runs.efficiency(1)
    if wanted <= alone < wanted * error:
        low = 0.0
    elif wanted / error <= alone < wanted:
        high = max(high, runs.crossing(wanted / error) * error)
    return low, high


def _sentence(
    system: System,
    crossing: float,
    interval: tuple[float, float],
    wanted: float,
    bound: Constraint,
    over: Simulation | None,
) -> str:
    """Return the answer as a sentence: the number, its interval, the interval's origin, and the limit."""
    count = math.floor(crossing)
    accelerators = f"{count:,} accelerator{'' if count == 1 else 's'}"
    what = f"the {bound.name}, {show_rate(bound.rate)}{WHOSE[bound.scope]}"
    demand_met = f"at {100 * wanted:.3g} % of their demand" + (", ends of epochs included" if over else "")
    low, high = interval
    if not count:
        close = f", by less than run-to-run variation: it may be up to {number(high, 3)}" if high >= 1 else ""
        return f"This system does not feed 1 accelerator {demand_met}{close}; bound by {what}."
    if math.isinf(high):
        return (
            f"This system feeds at least {accelerators} {demand_met} (95 % interval from {low:,.3g} on: the "
            f"measurements show no limit)."
        )
    why = "the uncertainty of the fit" if system.fit else "a hard or a soft limit"
    varies = f"{100 * system.run_error:.2g} % for run-to-run variation; the simulation itself has none"
    return (
        f"This system feeds {accelerators} {demand_met} (knee at {number(crossing, 3)}, 95 % interval "
        f"{number(low, 3)} to {number(high, 3)}: {why}, and {varies}); bound by {what}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Storage and hosts that a number of accelerators needs."""

    workload: Workload
    accelerators: int
    hosts: int
    bandwidth: float
    """Bytes/s of the storage at which AU equals the threshold, with clients that do not limit."""
    nic: float
    """Bytes/s of one host at which AU equals the threshold, with a storage that has the margin."""
    cores: float | None
    """Cores per host that reading keeps busy; None if the system does not state CPU time per byte."""


def needs(
    workload: Workload,
    accelerators: int,
    per_host: int,
    *,
    margin: float = 0.1,
    cpu_seconds_per_gb: float | None = None,
) -> Needs:
    """Return the storage and hosts that `accelerators` of `workload` need at its AU threshold.

    Raises SpecError above MOST accelerators.
    """
    if accelerators > MOST:
        raise SpecError(f"{accelerators:,} accelerators are too many to simulate", f"{MOST:,} at most")
    wanted, each = workload.training.au_threshold, workload.demand
    hosts = -(-accelerators // per_host)

    def with_storage(rate: float) -> float:
        return utilization(workload, System(storage=StorageSystem(bandwidth=rate)), accelerators)

    bandwidth = _least(with_storage, wanted, accelerators * each)

    def with_nic(rate: float) -> float:
        storage = StorageSystem(bandwidth=bandwidth / (1 - margin))
        system = System(storage=storage, clients=ClientSystem(hosts=hosts, nic=rate))
        return utilization(workload, system, accelerators)

    nic = _least(with_nic, wanted, per_host * each)
    cost = cpu_seconds_per_gb
    return Needs(
        workload=workload,
        accelerators=accelerators,
        hosts=hosts,
        bandwidth=bandwidth,
        nic=nic,
        cores=None if cost is None else per_host * each / 1e9 * cost,
    )


def _least(au: Callable[[float], float], wanted: float, scale: float) -> float:
    """Return the least rate with au(rate) >= wanted, by halving in logarithms; it is near `scale`."""
    low, high = math.log(0.25 * scale), math.log(1.5 * scale)
    while au(math.exp(high)) < wanted and high < math.log(64 * scale):
        low, high = high, high + math.log(2)
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if au(math.exp(middle)) >= wanted else (middle, high)
    return math.exp(high)
