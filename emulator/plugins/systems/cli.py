"""The verbs about systems: simulate, fit, plan and efficiency. None of them reads a byte of a dataset."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from emulator import live
from emulator.analysis.flags import invalid
from emulator.cli import options
from emulator.config.reader import to_plain
from emulator.config.workload import Workload, load_workload
from emulator.dataset.manifest import read_manifest
from emulator.errors import Inconclusive, SpecError
from emulator.plugins.systems.efficiency import efficiency_table, lacks, match_table
from emulator.plugins.systems.fit import Fit, further_run
from emulator.plugins.systems.fit import fit as estimate
from emulator.plugins.systems.held_out import LEAST, held_out, median_errors
from emulator.plugins.systems.limits import demand
from emulator.plugins.systems.predict import Simulation, on_paper
from emulator.plugins.systems.seen import described, seen_in, workload_of
from emulator.plugins.systems.simulate import sweep
from emulator.plugins.systems.sizing import STEPS, WHOSE, around, feeds, needs, verdict
from emulator.plugins.systems.system import System, check_file, load_system, on_hosts, write_system
from emulator.record.out import read_result
from emulator.record.steps import step_blocks
from emulator.report.drawing import draw_result
from emulator.report.table import as_plain
from emulator.report.terminal import print_blocks
from emulator.sweep.schedule import parse_counts
from emulator.units import show_rate, show_seconds

SYSTEM = typer.Option("--system", "-s", help="System file (fit writes one), or a name in results/systems.")
Hosts = Annotated[int | None, typer.Option(min=1, help="Client hosts, instead of the system file's.")]

DEFAULT_STEPS = 100
"""Steps of a rank when neither --epochs nor --steps is given."""
DEFAULT_WORKLOADS = ("unet3d-v100", "unet3d-a100", "unet3d-h100", "unet3d-b200")
"""What `plan` is asked about when nobody says."""
INTERVAL = {True: "a hard or a soft limit", False: "what the fit leaves open"}
"""What an interval spans, by whether the system is only described."""


def simulate(
    workload: options.WorkloadName,
    system: Annotated[str, SYSTEM],
    counts: Annotated[str, typer.Option(help="Process counts: 1,8,64 or 1-8 or 1,10,...,100000.")],
    out: options.Out = None,
    label: options.Label = "",
    hosts: Hosts = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    dataset: Annotated[Path | None, typer.Option(help="Take the samples' sizes from it.")] = None,
    files: Annotated[int | None, typer.Option(min=1, help="Samples, when no dataset is given.")] = None,
    settings: options.Settings = None,
    force: options.Force = False,
) -> None:
    """Predict a sweep on a described or fitted system, up to 100,000 ranks."""
    wanted = parse_progression(counts)
    spec = load_workload(workload, settings or [])
    on = on_hosts(load_system(system), hosts)
    steps = steps or (None if epochs else DEFAULT_STEPS)
    if dataset is None:
        simulation = on_paper(spec, on, max(wanted), files=files, epochs=epochs, steps=steps)
    else:
        manifest = read_manifest(dataset)
        each = manifest.samples_per_file
        sizes = (manifest.sizes[:].astype("float64") / each).repeat(each)
        simulation = Simulation(
            workload=spec, system=on, sizes=sizes, samples=len(sizes), epochs=epochs, steps=steps
        )
    out = out or options.default_out(spec.name)
    command = options.command_line()
    result, _ = sweep(
        simulation, wanted, out, command=command, label=label, dataset=dataset, force=force, say=live.say
    )
    options.show_result(result, out)


def parse_progression(text: str) -> tuple[int, ...]:
    """Counts from `1,8,64`, `1-8`, or with `...`, which goes on by the ratio of the two before it, or by
    their difference when the last count is not met by the ratio. Raises SpecError.
    """
    counts: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part not in ("...", "…"):
            counts.extend(parse_counts(part))
            continue
        after = parts[place + 1] if place + 1 < len(parts) else ""
        if len(counts) < 2 or not after.isdigit() or not counts[-2] < counts[-1] < int(after):
            raise SpecError(
                f"--counts {text!r}: '...' stands between ascending counts", "write it like 1,10,...,1000"
            )
        before, last, end = counts[-2], counts[-1], int(after)
        found = [last]
        while last % before == 0 and found[-1] < end:
            found.append(found[-1] * (last // before))
        if found[-1] != end and (end - last) % (last - before) == 0:
            found = list(range(last, end + 1, last - before))
        if found[-1] != end:
            raise SpecError(
                f"--counts {text!r}: {end} does not follow from {before}, {last}",
                "end with a count that does",
            )
        counts.extend(found[1:-1])
    return tuple(counts)


def fit(
    results: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results of run or sweep.")],
    out: Annotated[Path, typer.Option(help="The system file to write.")] = Path("system.toml"),
    counts: Annotated[str | None, typer.Option(help="Use only these process counts.")] = None,
    force: options.Force = False,
) -> None:
    """Estimate a system's bandwidth and latency from measured counts, with intervals."""
    check_file(out, force)
    wanted = parse_progression(counts) if counts else None
    workloads, seen = [], []
    for path in results:
        result = read_result(path)
        workloads.append(workload_of(result))
        used = described(result.points)
        reasons = Counter(
            "page-cache" if invalid(point) else "limited by the client"
            for point in result.points
            if point not in used
        )
        for why, runs in reasons.items():
            typer.echo(f"{path}: left out: {runs} of {len(result.points)} runs ({why})")
        if result.points and not used:
            if "page-cache" in reasons:
                raise Inconclusive(f"{path}: no run is left to fit", f"see feedrate report {path}")
            raise Inconclusive(
                f"{path}: the client was the limit of every run, so a fit would describe the client",
                "use more hosts",
            )
        found = seen_in(result, partial(step_blocks, path))
        seen += [count for count in found if wanted is None or count.ranks in wanted]
    if any(workload != workloads[0] for workload in workloads):
        raise SpecError("the results are of different workloads", "fit each of them by itself")
    if not seen:
        raise SpecError(f"no result has the process counts {counts}", "see feedrate report OUT")
    fitted = estimate([str(path) for path in results], workloads[0], seen)
    if not fitted.refusal and len(fitted.fitted.counts) >= LEAST:
        fitted = fitted.with_errors(median_errors(held_out(workloads[0], seen)))
    if live.for_programs() and not fitted.refusal:
        live.answer({"system": str(out), **to_plain(fitted.system)})
    for line in _fit_lines(fitted):
        typer.echo(line)
    if fitted.refusal:
        raise SpecError(
            f"{fitted.refusal}; {out} was not written",
            "see the residuals above; repeat the counts that are off, or leave them out with --counts",
        )
    if advice := further_run(workloads[0], fitted):
        typer.echo(f"next: {advice}")
    write_system(out, fitted.system)
    typer.echo(f"\nsystem: {out}   (feedrate simulate --system {out} --workload ... --counts ...)")


def _fit_lines(found: Fit) -> list[str]:
    """The counts, the parameters and how sure they are, for people."""
    system, fitted = found.system, found.fitted
    rate = system.storage.bandwidth or system.clients.nic or 0.0
    what = "bandwidth of a host" if system.clients.nic else "bandwidth"
    lines = ["ranks   measured        fitted        off       95 % interval of a run"]
    rows = zip(found.counts, found.measured, found.played, found.intervals, strict=True)
    for ranks, measured, played, (low, high) in sorted(rows):
        off = 100 * (played / measured - 1)
        lines.append(
            f"{ranks:5}   {show_rate(measured):12}    {show_rate(played):12} {off:+6.1f} %  "
            f"{show_rate(low)} to {show_rate(high)}"
        )
    if fitted.identified:
        low, high = fitted.bandwidth_interval
        lines.append(f"{what}: {show_rate(rate)}, 95 % interval {show_rate(low)} to {show_rate(high)}")
    else:
        lines.append(
            f"{what}: not identified. {found.unlimited}; its bandwidth is at "
            f"least {show_rate(fitted.at_least or 0.0)} (95 %). Measure a larger count."
        )
    for name, value, interval in (
        ("latency", system.storage.latency, fitted.latency_interval),
        ("cost of each step", system.clients.step_cost, fitted.step_cost_interval),
    ):
        if interval:
            short, long = map(show_seconds, interval)
            lines.append(f"{name}: {show_seconds(value)}, 95 % interval {short} to {long}")
        else:
            lines.append(f"{name}: none is visible")
    if system.clients.start:
        lines.append(f"start-up: {show_seconds(system.clients.start)} before a rank's first read")
    lines += found.notes
    lines.append(
        f"noise of a run: {100 * fitted.noise:.1f} % ({fitted.freedom} degrees of freedom), of residuals, "
        f"repeats and drift"
    )
    if fitted.standing:
        lines.append(fitted.standing)
    hosts = ", ".join(map(str, fitted.hosts))
    lines.append(
        f"seen: counts {', '.join(f'{count:,}' for count in fitted.counts)}; on {hosts} host(s). Points that "
        f"simulate adds outside of these are flagged as extrapolated."
    )
    return lines


def plan(
    system: Annotated[str | None, SYSTEM] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Repeatable; default: 3D U-Net on every accelerator."),
    ] = None,
    accelerators: Annotated[int | None, typer.Option(min=1, help="Ask what this many need.")] = None,
    per_host: Annotated[int, typer.Option(min=1, help="Accelerators of a host, with --accelerators.")] = 8,
    au: Annotated[float | None, typer.Option(min=0.01, max=1.0, help="AU; default: the workload's.")] = None,
    margin: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share to keep in reserve.")] = 0.1,
    hosts: Hosts = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a simulated result and a plot of each knee.")
    ] = None,
    settings: options.Settings = None,
) -> None:
    """How many accelerators a system feeds, or what a number of accelerators needs."""
    jobs = [load_workload(name, settings or []) for name in workload or DEFAULT_WORKLOADS]
    stated = on_hosts(load_system(system), hosts) if system else None
    if live.for_programs() and (accelerators is not None or stated is not None):
        live.answer([_planned(job, accelerators, per_host, au, margin, stated) for job in jobs])
    if accelerators is not None:
        for job in jobs:
            _print_needs(job, accelerators, per_host, au, margin, stated)
    elif stated is not None:
        _print_feeds(jobs, stated, au, margin, out)
    else:
        raise SpecError("plan needs a question", "give --system FILE, --accelerators N, or both")


def _planned(
    job: Workload, accelerators: int | None, per_host: int, au: float | None, margin: float, on: System | None
) -> dict[str, Any]:
    """What `plan` answers for one workload, for programs."""
    found: dict[str, Any] = {"workload": job.name}
    if accelerators is not None:
        cost = on.clients.cpu_seconds_per_gb if on else None
        asked = needs(job, accelerators, per_host, threshold=au, margin=margin, cpu_seconds_per_gb=cost)
        found["needs"] = to_plain(asked)
    elif on is not None:
        fed = feeds(job, on, au)
        found["feeds"] = {
            "accelerators": fed.accelerators if fed.bound else None,
            "interval": to_plain(fed.interval) if fed.bound else None,
            "bound": to_plain(fed.bound),
        }
    return found


def _print_feeds(
    jobs: list[Workload], system: System, au: float | None, margin: float, out: Path | None
) -> None:
    typer.echo(f"{system.title or system.name}\n")
    typer.echo(
        f"{'workload':16} {'one asks for':>13} {'feeds':>9} {f'with {margin:.0%}':>9}  "
        f"{'95 % interval':17}  bound by"
    )
    for job in jobs:
        found = feeds(job, system, au)
        start = f"{job.name:16} {show_rate(demand(job)):>13}"
        if found.bound is None:
            typer.echo(
                f"{start} {'no limit':>9} {'':>9}  the system states nothing that limits this workload"
            )
            continue
        reserve = int(found.accelerators * (1 - margin))
        low, high = found.interval
        interval = f"from {low:,.3g} on" if math.isinf(high) else f"{low:,.3g} to {high:,.3g}"
        bound = f"{found.bound.name}, {show_rate(found.bound.rate)}{WHOSE[found.bound.scope]}"
        typer.echo(f"{start} {found.accelerators:9,} {reserve:9,}  {interval:17}  {bound}")
        if out is not None and found.accelerators:
            counts = around(found.accelerators)
            simulation = on_paper(job, system, max(counts), steps=STEPS)
            command = options.command_line()
            result, _ = sweep(simulation, counts, out / job.name, command=command, force=True)
            draw_result(result, out / f"{job.name}.png", "png")
            typer.echo(f"  plot: {out / job.name}.png   (feedrate report {out / job.name})")
    typer.echo(
        f"\nfeeds: accelerators at {_threshold(jobs, au)}, simulated; with {margin:.0%}: so much in reserve; "
        f"interval: {INTERVAL[system.fit is None]}, and the noise of a run, {100 * system.run_error:.2g} %"
    )
    if system.fit is not None:
        seen = ", ".join(f"{count:,}" for count in system.fit.counts)
        typer.echo(
            f"fitted: to counts {seen} of {system.fit.workload}; other counts and workloads are extrapolated"
        )
        if system.fit.no_better:
            typer.echo(system.fit.standing)
        if not system.fit.identified:
            typer.echo("not identified: no limit was visible, so every number is a lower bound")


def _threshold(jobs: list[Workload], au: float | None) -> str:
    shares = sorted({job.training.au_threshold for job in jobs}) if au is None else [au]
    return "AU " + " or ".join(f"{share:.0%}" for share in shares)


def _print_needs(
    job: Workload, accelerators: int, per_host: int, au: float | None, margin: float, system: System | None
) -> None:
    cost = system.clients.cpu_seconds_per_gb if system else None
    found = needs(job, accelerators, per_host, threshold=au, margin=margin, cpu_seconds_per_gb=cost)
    speed = found.link(margin)
    link = f"{speed} Gb/s" if speed else "more than any common network card"
    typer.echo(f"{accelerators:,} x {job.accelerator.name}, {job.name}, {_threshold([job], au)}")
    typer.echo(
        f"  storage   {show_rate(found.bandwidth):>11} at least, "
        f"{show_rate(found.bandwidth / (1 - margin))} with {margin:.0%} in reserve"
    )
    typer.echo(f"  hosts     {found.hosts:11,} with {per_host} accelerators each")
    typer.echo(f"  network   {show_rate(found.nic):>11} a host at least; {link} with {margin:.0%} in reserve")
    if found.cores is not None:
        typer.echo(f"  cores     {found.cores:11.1f} of a host busy with reading")
    if system is not None:
        typer.echo(f"  {verdict(found, system, margin)}")
    typer.echo("")


def efficiency(
    systems: Annotated[
        list[str], typer.Option("--system", "-s", help="System file, or its name; repeatable.")
    ],
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Count accelerators of this workload.")
    ] = None,
    result: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Take the accelerators fed from this sweep's knee.")
    ] = None,
    match: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="Nodes that it takes to match this system.")
    ] = None,
) -> None:
    """GB/s, IOPS and accelerators per TB, watt and price; nodes to match another system."""
    loaded = [load_system(name) for name in systems]
    fed: list[float | None] = [None] * len(loaded)
    intervals: list[tuple[float, float] | None] = [None] * len(loaded)
    if workload and result:
        raise SpecError("--workload and --result were both given", "leave one of them out")
    if result is not None:
        knee = read_result(result).knee
        if knee is None or knee.n_au is None:
            why = f": {knee.sentence}" if knee is not None and knee.sentence else ""
            raise SpecError(f"{result} has no knee{why}", "give the result of a sweep that found one")
        fed, intervals = [knee.n_au] * len(loaded), [knee.interval] * len(loaded)
    elif workload is not None:
        job = load_workload(workload)
        for number, system in enumerate(loaded):
            found = feeds(job, system)
            if found.bound is not None:
                fed[number], intervals[number] = found.accelerators, found.interval
    tables = [efficiency_table(loaded, fed, intervals)]
    if match is not None:
        tables.append(match_table(loaded, load_system(match)))
    if live.for_programs():
        live.answer([as_plain(table) for table in tables])
    print_blocks(tables)
    for system in loaded:
        for sentence in lacks(system):
            typer.echo(sentence)
        if workload is not None and fed[loaded.index(system)] is None:
            typer.echo(f"{system.name} lacks a bandwidth: nothing in it limits {workload}")
