"""The answer of `feedrate plan`: the accelerators that a system feeds, or the needs of accelerators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.config.reader import to_plain
from emulator.config.workload import Workload
from emulator.errors import SpecError
from emulator.plugins.systems.limits import tightest_limits
from emulator.plugins.systems.sizing import WHOSE, Feeds, Needs, feeds, needs
from emulator.plugins.systems.system import System
from emulator.units import show_rate

LINKS = (10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
"""Common speeds of network cards, and pairs of cards, in Gb/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer for each workload, with the question."""

    system: System | None
    per_host: int
    margin: float
    """Share to keep in reserve."""
    answers: tuple[Needs | Feeds, ...]
    """Needs of the accelerators; without a number of them, what the system feeds."""

    @property
    def plain(self) -> list[dict[str, Any]]:
        """Return the answers for programs, with None for what the system does not limit."""
        tables = []
        for one in self.answers:
            if isinstance(one, Needs):
                answer = {"needs": {**to_plain(one), "workload": one.workload.name}}
            else:
                known = {"accelerators": one.accelerators, "interval": one.interval, "bound": one.bound}
                answer = {"feeds": to_plain(known) if one.bound else dict.fromkeys(known)}
            tables.append({"workload": one.workload.name, **answer})
        return tables

    @property
    def lines(self) -> list[str]:
        """Return a paragraph of needs per workload, or a table of what the system feeds."""
        needed = [one for one in self.answers if isinstance(one, Needs)]
        fed = [one for one in self.answers if isinstance(one, Feeds)]
        paragraphs = [line for one in needed for line in self._of_needs(one)]
        return [*paragraphs, *(self._of_feeds(fed, self.system) if fed and self.system else ())]

    def _of_needs(self, found: Needs) -> Iterator[str]:
        job, margin = found.workload, self.margin
        wanted = found.nic / (1 - margin) * 8 / 1e9
        speed = next((speed for speed in LINKS if speed >= wanted), None)
        link = f"{speed} Gb/s" if speed else "more than any common network card"
        yield f"{found.accelerators:,} x {job.accelerator.name}, {job.name}, {_wanted([job])}"
        yield (
            f"  storage   {show_rate(found.bandwidth):>11} at least, "
            f"{show_rate(found.bandwidth / (1 - margin))} with {margin:.0%} in reserve"
        )
        yield f"  hosts     {found.hosts:11,} with {self.per_host} accelerators each"
        yield f"  network   {show_rate(found.nic):>11} a host at least; {link} with {margin:.0%} in reserve"
        if found.cores is not None:
            yield f"  cores     {found.cores:11.1f} of a host busy with reading"
        if self.system:
            yield f"  {verdict(found, self.system, margin)}"
        yield ""

    def _of_feeds(self, found: Sequence[Feeds], system: System) -> Iterator[str]:
        reserved = f"with {self.margin:.0%}"
        yield f"{system.title or system.name}\n"
        head = f"{'workload':16} {'demand of one':>13} {'feeds':>9} {reserved:>9}"
        yield f"{head}  {'95 % interval':17}  bound by"
        for one in found:
            start = f"{one.workload.name:16} {show_rate(one.workload.demand):>13}"
            if one.bound is None:
                yield f"{start} {'no limit':>9} {'':>9}  no stated limit applies to this workload"
                continue
            low, high = one.interval
            interval = f"from {low:,.3g} on" if math.isinf(high) else f"{low:,.3g} to {high:,.3g}"
            bound = f"{one.bound.name}, {show_rate(one.bound.rate)}{WHOSE[one.bound.scope]}"
            reserve = int(one.accelerators * (1 - self.margin))
            yield f"{start} {one.accelerators:9,} {reserve:9,}  {interval:17}  {bound}"
        fit = system.fit
        spans = "the uncertainty of the fit" if fit else "a hard or a soft limit"
        yield (
            f"\nfeeds: accelerators at {_wanted([one.workload for one in found])}, simulated; "
            f"{reserved}: with this reserve; interval: {spans}, and run-to-run variation, "
            f"{100 * system.run_error:.2g} %"
        )
        if fit is None:
            return
        seen = ", ".join(f"{count:,}" for count in fit.counts)
        yield f"fitted: to counts {seen} of {fit.workload}; other counts and workloads are extrapolated"
        if fit.no_better:
            yield fit.standing
        if not fit.identified:
            yield "not identified: no limit was visible, so all numbers are lower bounds"


def _wanted(jobs: Sequence[Workload]) -> str:
    return "AU " + " or ".join(
        f"{share:.0%}" for share in sorted({job.training.au_threshold for job in jobs})
    )


def plan(
    jobs: Sequence[Workload],
    system: System | None = None,
    accelerators: int | None = None,
    *,
    per_host: int = 8,
    margin: float = 0.1,
) -> Plan:
    """Return what `accelerators` of each workload need, or if that is None, how many the system feeds.

    Arguments are those of `Plan`. Raises SpecError if both are None; MissingError without numba.
    """
    answers: list[Needs | Feeds]
    if accelerators is not None:
        cost = system.clients.cpu_seconds_per_gb if system else None
        answers = [needs(job, accelerators, per_host, margin=margin, cpu_seconds_per_gb=cost) for job in jobs]
    elif system is not None:
        answers = [feeds(job, system) for job in jobs]
    else:
        raise SpecError("plan needs a question", "give --system FILE, --accelerators N, or both")
    return Plan(system=system, per_host=per_host, margin=margin, answers=tuple(answers))


def verdict(found: Needs, system: System, margin: float) -> str:
    """Return a sentence on whether the system meets the needs, and which limit is closest."""
    bound, nic = tightest_limits(system, found.workload), found.nic / (1 - margin)
    # Each existing rate, and its ratio to the need.
    have = {
        "storage": (bound.system, bound.system / (found.bandwidth / (1 - margin))),
        "client hosts": (bound.host, bound.host / nic),
        "one rank": (bound.rank, bound.rank / (nic * found.hosts / found.accelerators)),
    }
    shown = {what: (show_rate(rate), share) for what, (rate, share) in have.items()}
    if (hosts := system.clients.hosts) is not None:
        shown["number of hosts"] = (f"{hosts} hosts", hosts / found.hosts)
    least = min(shown, key=lambda what: shown[what][1])
    there, share = shown[least]
    if share >= 1:
        return f"{system.name} meets these needs; {least} is the nearest to its limit"
    return f"{system.name} falls short: {least} has {there}, {share:.0%} of the need"
