"""Each count of a fit predicted from all the others, beside two guesses that simulate nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from emulator.config.workload import Workload
from emulator.plugins.systems.fit import fit
from emulator.plugins.systems.predict import efficiency_interval, on_paper, predict
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import on_hosts

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
