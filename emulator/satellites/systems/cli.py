"""Process counts with an ellipsis: `1,10,...,100000`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.errors import SpecError

if TYPE_CHECKING:
    from emulator.config.workload import Workload
    from emulator.satellites.systems.engine import Chosen
    from emulator.satellites.systems.fit import Fit, Seen
    from emulator.satellites.systems.plan import Feeds, Needs
    from emulator.satellites.systems.predict import Simulation
    from emulator.satellites.systems.system import System


def parse_progression(text: str) -> tuple[int, ...]:
    """Counts from `1,8,64`, `1-8`, or with `...`, which goes on by the ratio of the two before it, or by
    their difference when the last count is not met by the ratio. Raises SpecError.
    """
    counts: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part in ("...", "…"):
            counts.extend(_between(counts, parts[place + 1 : place + 2], text))
        else:
            counts.extend(_counts(part, text))
    return tuple(counts)


def _counts(part: str, text: str) -> range:
    first, dash, last = part.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise SpecError(
            f"--counts {text!r} is not a list of process counts",
            "write it like 1,2,4,8, 1-8 or 1,10,...,1000",
        )
    low, high = int(first), int(last or first)
    if not 1 <= low <= high:
        raise SpecError(f"--counts {text!r} has {part!r}", "counts begin at 1 and ranges ascend")
    return range(low, high + 1)


def _between(before: list[int], after: list[str], text: str) -> list[int]:
    """The counts that `...` stands for, without its neighbours."""
    if len(before) < 2 or not after or not after[0].isdigit() or not before[-2] < before[-1] < int(after[0]):
        raise SpecError(
            f"--counts {text!r}: '...' stands between ascending counts", "write it like 1,10,...,1000"
        )
    first, second, last = before[-2], before[-1], int(after[0])
    if second % first == 0:
        found = [second]
        while found[-1] < last:
            found.append(found[-1] * (second // first))
        if found[-1] == last:
            return found[1:-1]
    if (last - second) % (second - first) == 0:
        return list(range(second, last, second - first))[1:]
    raise SpecError(
        f"--counts {text!r}: {last} does not follow from {first}, {second}", "end with a count that does"
    )


# ---- `feedrate simulate`: a sweep in virtual time, with the files of a measured one.


SystemName = Annotated[
    str, typer.Option("--system", "-s", help="System file (fit writes one), or a name in results/systems.")
]
Counts = Annotated[str, typer.Option(help="Process counts: 1,8,64 or 1-8 or 1,10,...,100000.")]
Hosts = Annotated[int | None, typer.Option(min=1, help="Client hosts, instead of the system file's.")]
EngineName = Annotated[str, typer.Option("--engine", help="auto, numba or python.")]
SizesFrom = Annotated[Path | None, typer.Option("--dataset", help="Take the samples' sizes from it.")]
Files = Annotated[int | None, typer.Option(min=1, help="Samples, when no dataset is given.")]

DEFAULT_STEPS = 100
"""Steps of a rank when neither --epochs nor --steps is given."""


def simulate(
    workload: options.WorkloadName,
    system: SystemName,
    counts: Counts,
    out: options.Out = None,
    hosts: Hosts = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    dataset: SizesFrom = None,
    files: Files = None,
    engine: EngineName = "auto",
    settings: options.Settings = None,
    force: options.Force = False,
) -> None:
    """Predict a sweep on a described or fitted system, up to 100,000 ranks."""

    wanted = parse_progression(counts)
    steps = steps or (None if epochs else DEFAULT_STEPS)
    simulation = prepare(workload, settings or [], system, hosts, engine)
    simulation = with_data(simulation, dataset, files, epochs, steps, max(wanted))
    run(simulation, wanted, out or default_out(simulation), {"path": str(dataset)} if dataset else {}, force)


def run(
    simulation: Simulation, counts: tuple[int, ...], out: Path, dataset: dict[str, str], force: bool
) -> None:
    """Simulate the counts, write OUT and show it. Raises SpecError, StorageError."""
    from emulator.record.folder import check_out
    from emulator.record.machine import cpu_seconds
    from emulator.satellites.systems.predict import result_of, sweep, write

    check_out(out, force)
    begin, command = cpu_seconds(), options.command_line()
    points, rows, played = sweep(simulation, counts, typer.echo)
    spent = cpu_seconds() - begin
    result = result_of(simulation, points, played, command=command, dataset=dataset, cpu_seconds=spent)
    write(out, result, rows, force)
    options.show_result(result, out)


def default_out(simulation: Simulation) -> Path:
    """Where a result goes when nobody says."""
    return options.default_out(simulation.workload.name)


def prepare(workload: str, settings: list[str], system: str, hosts: int | None, engine: str) -> Simulation:
    """What the options ask for, still without data. Raises SpecError, MissingError."""
    import numpy as np

    from emulator.config.catalog import load_workload
    from emulator.satellites.systems.engine import choose
    from emulator.satellites.systems.predict import Simulation
    from emulator.satellites.systems.system import load_system, on_hosts

    if engine not in ("auto", "numba", "python"):
        raise SpecError(f"--engine {engine!r} is not known", "use auto, numba or python")
    kind = None if engine == "auto" else engine
    return Simulation(
        workload=load_workload(workload, settings), system=on_hosts(load_system(system), hosts),
        sizes=np.zeros(0), engine=choose(kind),  # type: ignore[arg-type]
    )  # fmt: skip


def with_data(
    simulation: Simulation, dataset: Path | None, files: int | None, epochs: int | None, steps: int | None,
    most: int,
) -> Simulation:  # fmt: skip
    """`simulation` on the sizes of a dataset, or on as many as `most` ranks need. Raises DatasetError."""
    from dataclasses import replace

    from emulator.satellites.systems.predict import default_files, sample_sizes

    if dataset is not None:
        from emulator.dataset.manifest import read_manifest

        manifest = read_manifest(dataset)
        each = manifest.samples_per_file
        sizes = (manifest.sizes.astype("float64") / each).repeat(each)
    else:
        loader, sample = simulation.workload.loader, simulation.workload.sample_read
        sizes = sample_sizes(sample, files or default_files(loader.batch_size * most, steps))
    return replace(simulation, sizes=sizes, epochs=epochs, steps=steps)


# ---- `feedrate fit`: a system file from a few measured process counts.


def fit(
    results: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results of run or sweep.")],
    out: Annotated[Path, typer.Option(help="The system file to write.")] = Path("system.toml"),
    counts: Annotated[str | None, typer.Option(help="Use only these process counts.")] = None,
    force: options.Force = False,
) -> None:
    """Estimate a system's bandwidth and latency from measured counts, with intervals."""
    from emulator.satellites.systems.engine import choose
    from emulator.satellites.systems.fit import check_file, write_system
    from emulator.satellites.systems.fit import fit as estimate

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
    from emulator.record.folder import read_result
    from emulator.record.steps import read_steps
    from emulator.satellites.systems.fit import seen_in, workload_of

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


# ---- `feedrate plan`: how many accelerators does this feed; what do so many accelerators need.


Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", "-w", help="Repeatable; default: 3D U-Net on every accelerator."),
]
PlannedSystem = Annotated[
    str | None, typer.Option("--system", "-s", help="System file or name; fit writes one.")
]
Accelerators = Annotated[int | None, typer.Option(min=1, help="Ask what this many need.")]
PerHost = Annotated[int, typer.Option(min=1, help="Accelerators of a host, with --accelerators.")]
Threshold = Annotated[float | None, typer.Option(min=0.01, max=1.0, help="AU; default: the workload's.")]
Margin = Annotated[float, typer.Option(min=0.0, max=0.9, help="Share to keep in reserve.")]
PlannedHosts = Annotated[int | None, typer.Option(min=1, help="Client hosts, instead of the system file's.")]
PlotsOut = Annotated[Path | None, typer.Option(help="Folder for a simulated result and a plot of each knee.")]

DEFAULT = ("unet3d-v100", "unet3d-a100", "unet3d-h100", "unet3d-b200")


def plan(
    system: PlannedSystem = None,
    workload: Workloads = None,
    accelerators: Accelerators = None,
    per_host: PerHost = 8,
    au: Threshold = None,
    margin: Margin = 0.1,
    hosts: PlannedHosts = None,
    out: PlotsOut = None,
    settings: options.Settings = None,
) -> None:
    """How many accelerators a system feeds, or what a number of accelerators needs."""
    from emulator.config.catalog import load_workload
    from emulator.satellites.systems.engine import choose
    from emulator.satellites.systems.system import load_system, on_hosts

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
    from emulator.satellites.systems.plan import feeds

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
    from emulator.report.figures import write_picture
    from emulator.satellites.systems.plan import STEPS, around
    from emulator.satellites.systems.predict import (
        Simulation,
        default_files,
        result_of,
        sample_sizes,
        sweep,
        write,
    )

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
    from emulator.satellites.systems.plan import needs

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
    from emulator.satellites.systems.limits import limits
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


# ---- `feedrate efficiency`: per terabyte, per watt, per unit of money.


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
) -> None:  # fmt: skip
    """GB/s, IOPS and accelerators per TB, watt and price; nodes to match another system."""
    from emulator.report.tables import print_grids
    from emulator.satellites.systems.efficiency import efficiency_grid, match_grid
    from emulator.satellites.systems.system import load_system

    loaded = [load_system(name) for name in systems]
    grids = [efficiency_grid(loaded, [_fed(system, workload, result) for system in loaded])]
    if match is not None:
        grids.append(match_grid(loaded, load_system(match)))
    print_grids(grids)


def _fed(system: System, workload: str | None, result: Path | None) -> float | None:
    """Accelerators that the system feeds: the knee of a result, else read bandwidth / demand."""
    from emulator.config.catalog import load_workload
    from emulator.errors import SpecError
    from emulator.record.folder import read_result
    from emulator.satellites.systems.efficiency import accelerators_fed

    if workload and result:
        raise SpecError("--workload and --result were both given", "leave one of them out")
    if result is not None:
        knee = read_result(result).knee
        if knee is None or knee.n_au is None:
            raise SpecError(f"{result} has no knee", "give the result of a sweep that found one")
        return knee.n_au
    if workload is None:
        return None
    spec = load_workload(workload)
    demand = spec.ideal_samples_per_second * spec.sample_read.bytes_mean
    return accelerators_fed(system.storage.bandwidth, demand)
