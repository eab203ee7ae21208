"""`feedrate fit`: a system file from a few measured process counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.errors import SpecError

if TYPE_CHECKING:
    from emulator.simulator.fit import Fit, Seen
    from emulator.spec.workload import Workload


def fit(
    results: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results of run or sweep.")],
    out: Annotated[Path, typer.Option(help="The system file to write.")] = Path("system.toml"),
    counts: Annotated[str | None, typer.Option(help="Use only these process counts.")] = None,
    force: options.Force = False,
) -> None:
    """Estimate a system's bandwidth and latency from measured counts, with intervals."""
    from emulator.simulator.engine import choose
    from emulator.simulator.fit import fit as estimate
    from emulator.simulator.systemfile import check_file, write_system

    check_file(out, force)
    workload, seen = _seen(results, counts)
    found = estimate([str(path) for path in results], workload, seen, choose())
    write_system(out, found)
    for line in _lines(found):
        typer.echo(line)
    typer.echo(f"\nsystem: {out}   (feedrate simulate --system {out} --workload ... --counts ...)")


def _seen(results: list[Path], counts: str | None) -> tuple[Workload, list[Seen]]:
    """The counts of all results, which must be of one workload. Raises SpecError, StorageError."""
    from emulator.analysis.flags import usable
    from emulator.record.store import read_result, read_steps
    from emulator.simulator.counts import parse_progression
    from emulator.simulator.fit import seen_in, workload_of

    wanted = parse_progression(counts) if counts else None
    workloads, seen = [], []
    for path in results:
        result = read_result(path)
        workloads.append(workload_of(result))
        used = usable(result.points)
        if dropped := [str(point.ranks) for point in result.points if point not in used]:
            typer.echo(f"{path}: points that a flag invalidates are left out: {', '.join(dropped)}")
        seen += [one for one in seen_in(result, read_steps(path)) if wanted is None or one.ranks in wanted]
    if any(workload != workloads[0] for workload in workloads):
        raise SpecError("the results are of different workloads", "fit each of them by itself")
    if not seen:
        raise SpecError(f"no result has the process counts {counts}", "see feedrate report OUT")
    return workloads[0], seen


def _lines(found: Fit) -> list[str]:
    """The counts, the parameters and what they are worth, for people."""
    from emulator.units import show_rate, show_seconds

    system, fitted = found.system, found.system.fit
    assert fitted is not None
    rate = system.storage.bandwidth or system.clients.nic or 0.0
    what = "bandwidth of a host" if system.clients.nic else "bandwidth"
    lines = ["ranks   measured        fitted"]
    for ranks, measured, played in zip(found.counts, found.measured, found.played, strict=True):
        off = 100 * (played / measured - 1)
        lines.append(f"{ranks:5}   {show_rate(measured):12}    {show_rate(played):12} {off:+5.1f} %")
    if fitted.identified:
        low, high = fitted.bandwidth_interval
        lines.append(f"{what}: {show_rate(rate)}, 95 % interval {show_rate(low)} to {show_rate(high)}")
    else:
        lines.append(
            f"{what}: not identified. No count up to {fitted.counts[-1]:,} was beyond saturation; it is at "
            f"least {show_rate(rate)} (95 %). Measure a larger count."
        )
    if fitted.latency_interval:
        short, long = (show_seconds(value) for value in fitted.latency_interval)
        lines.append(
            f"latency: {show_seconds(system.storage.latency)}, 95 % interval {short} to {long}: the smallest "
            f"count was below its ideal"
        )
    hosts = ", ".join(map(str, fitted.hosts))
    lines.append(
        f"seen: counts {', '.join(f'{count:,}' for count in fitted.counts)}; on {hosts} host(s). Points that "
        f"simulate adds outside of these are flagged as extrapolated."
    )
    return lines
