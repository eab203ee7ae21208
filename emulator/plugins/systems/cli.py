"""The commands about systems: simulate, fit, plan and efficiency. They read no samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.config.reader import to_plain
from emulator.config.workload import load_workload
from emulator.files import refuse_existing
from emulator.plugins.systems.efficiency import compare_systems
from emulator.plugins.systems.fit_results import fit_lines, fit_results
from emulator.plugins.systems.plan import plan as answer
from emulator.plugins.systems.simulate import simulate as in_virtual_time
from emulator.plugins.systems.system import load_system, on_hosts
from emulator.report.table import as_plain
from emulator.report.terminal import print_blocks
from emulator.sweep.schedule import parse_counts

SYSTEM = typer.Option("--system", "-s", help="System file (fit writes one), or a name in results/systems.")
Hosts = Annotated[int | None, typer.Option(min=1, help="Client hosts, instead of the system file's.")]

DEFAULT_WORKLOADS = ("unet3d-v100", "unet3d-a100", "unet3d-h100", "unet3d-b200")
"""The workloads of `plan` without --workload."""


def simulate(
    workload: options.WorkloadName,
    system: Annotated[str, SYSTEM],
    counts: Annotated[str, typer.Option(help="Process counts, such as 1,8,64 or 1-8.")],
    gate: options.Gate,
    out: options.Out = None,
    label: options.Label = "",
    hosts: Hosts = None,
    steps: options.Steps = None,
    dataset: Annotated[Path | None, typer.Option(help="Take the sizes of samples from this dataset.")] = None,
    settings: options.Settings = None,
    force: options.Force = False,
) -> None:
    """Predict a sweep on a described or fitted system, up to 100,000 ranks.

    \b
    Examples:
      feedrate simulate -w unet3d-h100 -s weka-performance --counts 64,128,256,512
      feedrate simulate -w mine.toml -s system.toml --counts 1-64 --hosts 8
    """
    spec = load_workload(workload, gate.settings(settings))
    out = out or options.default_out(spec.name)
    result, _ = in_virtual_time(
        spec,
        on_hosts(load_system(system), hosts),
        parse_counts(counts),
        out,
        dataset=dataset,
        steps=steps,
        command=options.command_line(),
        label=label,
        force=force,
        say=live.say,
    )
    options.show_result(result, out)
    gate.leave(result)


def fit(
    results: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results of run or sweep.")],
    out: Annotated[Path, typer.Option(help="The system file to write.")] = Path("system.toml"),
    counts: Annotated[str | None, typer.Option(help="Use only these process counts.")] = None,
    force: options.Force = False,
) -> None:
    """Estimate a system's bandwidth and latency from measured counts, with intervals.

    \b
    Examples:
      feedrate fit sweep --out system.toml
      feedrate fit run-1 run-8 run-64 --out system.toml
    """
    refuse_existing(out, force)  # before a minute of fitting
    found = fit_results(results, parse_counts(counts) if counts else None, say=typer.echo)
    if live.for_programs() and not found.fit.refusal:
        live.answer({"system": str(out), **to_plain(found.fit.system)})
    for line in fit_lines(found.fit):
        typer.echo(line)
    if found.advice:
        typer.echo(f"next: {found.advice}")
    found.write(out)
    typer.echo(f"\nsystem: {out}   (feedrate simulate --system {out} --workload ... --counts ...)")


def plan(
    system: Annotated[str | None, SYSTEM] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Repeatable; default: 3D U-Net on every accelerator."),
    ] = None,
    accelerators: Annotated[int | None, typer.Option(min=1, help="Show what this many need.")] = None,
    per_host: Annotated[int, typer.Option(min=1, help="Accelerators of a host, with --accelerators.")] = 8,
    margin: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share to keep in reserve.")] = 0.1,
    hosts: Hosts = None,
    settings: options.Settings = None,
) -> None:
    """Show how many accelerators a system feeds, or what a number of accelerators needs.

    \b
    Examples:
      feedrate plan -s system.toml -w unet3d-h100
      feedrate plan -s weka-performance --accelerators 512
    """
    jobs = [load_workload(name, settings or []) for name in workload or DEFAULT_WORKLOADS]
    stated = on_hosts(load_system(system), hosts) if system else None
    found = answer(jobs, stated, accelerators, per_host=per_host, margin=margin)
    if live.for_programs():
        live.answer(found.plain)
    for line in found.lines:
        typer.echo(line)


def efficiency(
    systems: Annotated[
        list[str], typer.Option("--system", "-s", help="System file, or its name; repeatable.")
    ],
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Count accelerators of this workload.")
    ] = None,
    match: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="Show the nodes to match this system.")
    ] = None,
) -> None:
    """Show GB/s, IOPS and accelerators per TB, watt and price, and nodes to match another system.

    \b
    Examples:
      feedrate efficiency -s weka-performance -w unet3d-h100
      feedrate efficiency -s mine.toml --match weka-performance
    """
    found = compare_systems(
        [load_system(name) for name in systems],
        load_workload(workload) if workload else None,
        load_system(match) if match else None,
    )
    if live.for_programs():
        live.answer([as_plain(table) for table in found.tables])
    print_blocks(found.tables)
    for sentence in found.missing:
        typer.echo(sentence)
