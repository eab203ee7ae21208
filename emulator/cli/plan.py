"""`feedrate plan`: how many accelerators does this feed; what do so many accelerators need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.errors import SpecError

if TYPE_CHECKING:
    from emulator.simulator.engine import Chosen
    from emulator.simulator.plan import Feeds, Needs
    from emulator.spec.system import System
    from emulator.spec.workload import Workload

Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", "-w", help="Repeatable; default: 3D U-Net on every accelerator."),
]
SystemName = Annotated[
    str | None, typer.Option("--system", "-s", help="System file or name; fit writes one.")
]
Accelerators = Annotated[int | None, typer.Option(min=1, help="Ask what this many need.")]
PerHost = Annotated[int, typer.Option(min=1, help="Accelerators of a host, with --accelerators.")]
Threshold = Annotated[float | None, typer.Option(min=0.01, max=1.0, help="AU; default: the workload's.")]
Margin = Annotated[float, typer.Option(min=0.0, max=0.9, help="Share to keep in reserve.")]
Hosts = Annotated[int | None, typer.Option(min=1, help="Client hosts, instead of the system file's.")]
PlotsOut = Annotated[Path | None, typer.Option(help="Folder for a simulated result and a plot of each knee.")]

DEFAULT = ("unet3d-v100", "unet3d-a100", "unet3d-h100", "unet3d-b200")


def plan(
    system: SystemName = None,
    workload: Workloads = None,
    accelerators: Accelerators = None,
    per_host: PerHost = 8,
    au: Threshold = None,
    margin: Margin = 0.1,
    hosts: Hosts = None,
    out: PlotsOut = None,
    settings: options.Settings = None,
) -> None:
    """How many accelerators a system feeds, or what a number of accelerators needs."""
    from emulator.simulator.engine import choose
    from emulator.spec.catalog import load_workload
    from emulator.spec.system import load_system, on_hosts

    if system is None and accelerators is None:
        raise SpecError("plan needs a question", "give --system FILE, --accelerators N, or both")
    jobs = [load_workload(name, settings or []) for name in workload or DEFAULT]
    stated = on_hosts(load_system(system), hosts) if system else None
    engine = choose()
    if accelerators is not None:
        _print_needs(jobs, accelerators, per_host, au, margin, stated, engine)
    elif stated is not None:
        _print_feeds(jobs, stated, au, margin, engine, out)


def _print_feeds(
    jobs: list[Workload], system: System, au: float | None, margin: float, engine: Chosen, out: Path | None
) -> None:
    from emulator.simulator.plan import feeds

    typer.echo(f"{system.title or system.name}\n")
    typer.echo(f"{'workload':16} {'one asks for':>13} {'feeds':>9} {f'with {margin:.0%}':>9}  bound by")
    for job in jobs:
        found = feeds(job, system, engine, au)
        typer.echo(_feeds_row(found, margin))
        if out is not None and found.limited and found.accelerators:
            _picture(found, system, engine, out)
    typer.echo(
        f"\nfeeds: accelerators at {_threshold(jobs, au)}, simulated; with {margin:.0%}: so much in reserve"
    )
    for line in _caveats(system):
        typer.echo(line)


def _feeds_row(found: Feeds, margin: float) -> str:
    from emulator.units import show_rate

    start = f"{found.workload.name:16} {show_rate(found.demand):>13}"
    if not found.limited or found.bound is None:
        return f"{start} {'no limit':>9} {'':>9}  the system states nothing that limits this workload"
    reserve = int(found.accelerators * (1 - margin))
    whose = {"system": "", "host": " a host", "rank": " a rank"}[found.bound.scope]
    bound = f"{found.bound.name}, {show_rate(found.bound.rate)}{whose}"
    return f"{start} {found.accelerators:9,} {reserve:9,}  {bound}"


def _threshold(jobs: list[Workload], au: float | None) -> str:
    shares = sorted({job.training.au_threshold for job in jobs}) if au is None else [au]
    return "AU " + " or ".join(f"{share:.0%}" for share in shares)


def _caveats(system: System) -> list[str]:
    """What a fitted system does not know."""
    if system.fit is None:
        return []
    seen = ", ".join(f"{count:,}" for count in system.fit.counts)
    lines = [
        f"fitted: to counts {seen} of {system.fit.workload}; other counts and workloads are extrapolated"
    ]
    if not system.fit.identified:
        lines.append("not identified: no count was beyond saturation, so every number is a lower bound")
    return lines


def _picture(found: Feeds, system: System, engine: Chosen, out: Path) -> None:
    """A simulated result around the knee in OUT/WORKLOAD, and its plot beside it."""
    import sys

    from emulator.record.machine import cpu_seconds
    from emulator.report.plots import write_picture
    from emulator.simulator.plan import STEPS, around
    from emulator.simulator.predict import Simulation
    from emulator.simulator.result import result_of, sweep, write
    from emulator.simulator.sizes import default_files, sample_sizes

    job, counts = found.workload, around(found.accelerators)
    files = default_files(job.loader.batch_size * max(counts), STEPS)
    simulation = Simulation(
        workload=job, system=system, sizes=sample_sizes(job.sample_read, files), engine=engine, steps=STEPS
    )
    begin = cpu_seconds()
    points, rows, played = sweep(simulation, counts, lambda line: None)
    command = ("feedrate", *sys.argv[1:])
    spent = cpu_seconds() - begin
    result = result_of(simulation, points, played, command=command, dataset={}, cpu_seconds=spent)
    write(out / job.name, result, rows, force=True)
    write_picture(result, rows, out / f"{job.name}.png", "png")
    typer.echo(f"  plot: {out / job.name}.png   (feedrate report {out / job.name})")


def _print_needs(
    jobs: list[Workload], accelerators: int, per_host: int, au: float | None, margin: float,
    system: System | None, engine: Chosen,
) -> None:  # fmt: skip
    from emulator.simulator.plan import needs

    cost = system.clients.cpu_seconds_per_gb if system else None
    for job in jobs:
        found = needs(
            job, accelerators, per_host, engine, threshold=au, margin=margin, cpu_seconds_per_gb=cost
        )
        for line in _needs_lines(found, per_host, margin, _threshold([job], au)):
            typer.echo(line)
        if system is not None:
            typer.echo(_verdict(found, system, margin))
        typer.echo("")


def _needs_lines(found: Needs, per_host: int, margin: float, threshold: str) -> list[str]:
    from emulator.units import show_rate

    speed = found.link(margin)
    link = f"{speed} Gb/s" if speed else "more than any common network card"
    lines = [
        f"{found.accelerators:,} x {found.workload.accelerator.name}, {found.workload.name}, {threshold}",
        f"  storage   {show_rate(found.bandwidth):>11} at least, "
        f"{show_rate(found.bandwidth / (1 - margin))} with {margin:.0%} in reserve",
        f"  hosts     {found.hosts:11,} with {per_host} accelerators each",
        f"  network   {show_rate(found.nic):>11} a host at least; {link} with {margin:.0%} in reserve",
    ]
    if found.cores is not None:
        lines.append(f"  cores     {found.cores:11.1f} of a host busy with reading")
    return lines


def _verdict(found: Needs, system: System, margin: float) -> str:
    """What the system has, and what is short first."""
    from emulator.simulator.limits import limits
    from emulator.units import show_rate

    bound = limits(system, found.workload)
    shares = {
        "storage": bound.system / (found.bandwidth / (1 - margin)),
        "client hosts": bound.host / (found.nic / (1 - margin)),
        "one rank": bound.rank / (found.nic / (1 - margin) * found.hosts / found.accelerators),
    }
    if system.clients.hosts is not None:
        shares["number of hosts"] = system.clients.hosts / found.hosts
    name = min(shares, key=lambda key: shares[key])
    if shares[name] >= 1:
        return f"  {system.name or system.title} has all of it, {name} is the nearest to its limit"
    have = {"storage": bound.system, "client hosts": bound.host, "one rank": bound.rank}
    what = f"{system.clients.hosts} hosts" if name == "number of hosts" else show_rate(have[name])
    subject = system.name or system.title
    return f"  {subject} falls short: {name} has {what}, {shares[name]:.0%} of what is needed"
