"""The answers of fit and plan as lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from emulator.config.workload import Workload
from emulator.plugins.systems.fit import Fit
from emulator.plugins.systems.sizing import WHOSE, Feeds, Needs, Planned
from emulator.plugins.systems.system import System
from emulator.units import show_rate, show_seconds


def fit_lines(found: Fit) -> list[str]:
    """Return lines on the counts, the parameters and their intervals."""
    lines = ["ranks   measured        fitted        off       95 % interval of a run"]
    rows = zip(found.counts, found.measured, found.played, found.intervals, strict=True)
    for ranks, measured, played, (low, high) in sorted(rows):
        off = 100 * (played / measured - 1)
        lines.append(
            f"{ranks:5}   {show_rate(measured):12}    {show_rate(played):12} {off:+6.1f} %  "
            f"{show_rate(low)} to {show_rate(high)}"
        )
    return [*lines, *_parameters(found), *found.notes, *_seen(found)]


def _parameters(found: Fit) -> Iterator[str]:
    system, fitted = found.system, found.fitted
    what = "bandwidth of a host" if system.clients.nic else "bandwidth"
    if fitted.identified:
        rate = system.storage.bandwidth or system.clients.nic or 0.0
        low, high = fitted.bandwidth_interval
        yield f"{what}: {show_rate(rate)}, 95 % interval {show_rate(low)} to {show_rate(high)}"
    else:
        yield (
            f"{what}: not identified. {found.unlimited}; its bandwidth is at "
            f"least {show_rate(fitted.at_least or 0.0)} (95 %). Measure a larger count."
        )
    for name, value, interval in (
        ("latency", system.storage.latency, fitted.latency_interval),
        ("cost of each step", system.clients.step_cost, fitted.step_cost_interval),
    ):
        if interval:
            short, long = map(show_seconds, interval)
            yield f"{name}: {show_seconds(value)}, 95 % interval {short} to {long}"
        else:
            yield f"{name}: none is visible"
    if system.clients.start:
        yield f"start-up: {show_seconds(system.clients.start)} before a rank's first read"


def _seen(found: Fit) -> Iterator[str]:
    fitted = found.fitted
    yield (
        f"run-to-run variation: {100 * fitted.deviation:.1f} % ({fitted.freedom} degrees of freedom), from "
        f"residuals, repeats and drift"
    )
    if fitted.standing:
        yield fitted.standing
    counts, hosts = (", ".join(f"{one:,}" for one in seen) for seen in (fitted.counts, fitted.hosts))
    yield (
        f"seen: counts {counts}; on {hosts} host(s). simulate flags points outside of these as extrapolated."
    )


def plan_lines(
    found: Sequence[Planned], system: System | None, *, threshold: float | None, margin: float, per_host: int
) -> list[str]:
    """A table of what the system feeds, or a paragraph a workload of what the accelerators need."""
    lines = [line for each in found for line in _needs(each, threshold, margin, per_host)]
    fed = [each.feeds for each in found if each.feeds is not None]
    if fed and system is not None:
        lines += _feeds(fed, system, threshold, margin)
    return lines


def _needs(planned: Planned, threshold: float | None, margin: float, per_host: int) -> Iterator[str]:
    found: Needs | None = planned.needs
    if found is None:
        return
    job, speed = planned.workload, found.link(margin)
    link = f"{speed} Gb/s" if speed else "more than any common network card"
    yield f"{found.accelerators:,} x {job.accelerator.name}, {job.name}, {_wanted([job], threshold)}"
    yield (
        f"  storage   {show_rate(found.bandwidth):>11} at least, "
        f"{show_rate(found.bandwidth / (1 - margin))} with {margin:.0%} in reserve"
    )
    yield f"  hosts     {found.hosts:11,} with {per_host} accelerators each"
    yield f"  network   {show_rate(found.nic):>11} a host at least; {link} with {margin:.0%} in reserve"
    if found.cores is not None:
        yield f"  cores     {found.cores:11.1f} of a host busy with reading"
    if planned.verdict:
        yield f"  {planned.verdict}"
    yield ""


def _feeds(found: Sequence[Feeds], system: System, threshold: float | None, margin: float) -> Iterator[str]:
    yield f"{system.title or system.name}\n"
    yield (
        f"{'workload':16} {'one asks for':>13} {'feeds':>9} {f'with {margin:.0%}':>9}  "
        f"{'95 % interval':17}  bound by"
    )
    for each in found:
        start = f"{each.workload.name:16} {show_rate(each.workload.demand):>13}"
        if each.bound is None:
            yield f"{start} {'no limit':>9} {'':>9}  the system states nothing that limits this workload"
            continue
        low, high = each.interval
        interval = f"from {low:,.3g} on" if math.isinf(high) else f"{low:,.3g} to {high:,.3g}"
        bound = f"{each.bound.name}, {show_rate(each.bound.rate)}{WHOSE[each.bound.scope]}"
        reserve = int(each.accelerators * (1 - margin))
        yield f"{start} {each.accelerators:9,} {reserve:9,}  {interval:17}  {bound}"
    spans = "a hard or a soft limit" if system.fit is None else "what the fit leaves open"
    yield (
        f"\nfeeds: accelerators at {_wanted([each.workload for each in found], threshold)}, simulated; with "
        f"{margin:.0%}: so much in reserve; interval: {spans}, and run-to-run variation, "
        f"{100 * system.run_error:.2g} %"
    )
    if system.fit is None:
        return
    seen = ", ".join(f"{count:,}" for count in system.fit.counts)
    yield f"fitted: to counts {seen} of {system.fit.workload}; other counts and workloads are extrapolated"
    if system.fit.no_better:
        yield system.fit.standing
    if not system.fit.identified:
        yield "not identified: no limit was visible, so every number is a lower bound"


def _wanted(jobs: Sequence[Workload], threshold: float | None) -> str:
    shares = sorted({job.training.au_threshold for job in jobs}) if threshold is None else [threshold]
    return "AU " + " or ".join(f"{share:.0%}" for share in shares)
