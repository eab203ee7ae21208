"""The commands about systems: plan and efficiency. They read no samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.systems.efficiency import efficiency as efficiency_of
from emulator.plugins.systems.plan import DEFAULT_WORKLOADS
from emulator.plugins.systems.plan import plan as planned
from emulator.plugins.systems.report import plan_result
from emulator.record.out import ResultFolder
from emulator.report.document import document_of
from emulator.report.terminal import print_blocks
from emulator.report.view import answer_of


def plan(
    result: Annotated[
        str | None, typer.Argument(metavar="[OUT]", help="A result of sweep, run or baseline.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            "-s",
            help="System file, or a name in results/systems.",
            autocompletion=options.completing("results/systems"),
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="Repeatable; default: 3D U-Net on every accelerator."),
    ] = None,
    accelerators: Annotated[int | None, typer.Option(min=1, help="Show what this many need.")] = None,
    per_host: Annotated[int, typer.Option(min=1, help="Accelerators of a host, with --accelerators.")] = 8,
    margin: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share to keep in reserve.")] = 0.1,
    settings: options.Settings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Keep the answer, for feedrate report OUT --html.")
    ] = None,
    force: options.Force = False,
) -> None:
    """Show how many accelerators a storage feeds, and what a number of accelerators needs.

    \b
    Examples:
      feedrate plan sweep -w resnet50-h100
      feedrate plan -s weka-performance --accelerators 512
    """
    if result and system:
        raise SpecError("plan takes one storage", "give a result or --system, not both")
    answers = planned(
        workload or DEFAULT_WORKLOADS,
        result or system,
        accelerators,
        per_host=per_host,
        margin=margin,
        settings=settings or (),
    )
    made = replace(plan_result(answers, options.command_line()), status="complete", reason="")
    if out is not None:
        with ResultFolder.create(out, made, force=force) as folder:
            made = folder.complete()
    if live.for_programs():
        live.answer(to_plain(answers))
    elif live.quiet():
        typer.echo(answer_of(made).line)
    if not live.quiet():  # beside JSON this goes to stderr
        print_blocks(document_of(made).blocks)


def efficiency(
    results: Annotated[
        list[str] | None, typer.Argument(metavar="[OUT...]", help="Results of sweep, run or baseline.")
    ] = None,
    systems: Annotated[
        list[str] | None, typer.Option("--system", "-s", help="System file, or its name; repeatable.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Count accelerators of this workload.")
    ] = None,
    match: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="Show the nodes to match this system.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Storage nodes of a result's system.")] = None,
    drives: Annotated[int | None, typer.Option(min=1, help="Drives of a node.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of a result's or system's file."),
    ] = None,
    as_nodes: Annotated[
        int | None, typer.Option(min=1, help="Scale the systems to this many nodes, in proportion.")
    ] = None,
    write_factor: Annotated[
        float, typer.Option(min=0.01, help="Multiply write rates, as for another protection.")
    ] = 1.0,
) -> None:
    """Show GB/s, IOPS and accelerators per TB, watt and price, and nodes to match another system.

    \b
    Examples:
      feedrate efficiency -s weka-performance -w unet3d-h100
      feedrate efficiency sweep --nodes 6 --drives 8 --set hardware.drive_capacity=7.68TB
      feedrate efficiency -s ceph-hdd --match ceph-nvme --write-factor 1.27
    """
    names = [*(results or ()), *(systems or ())]
    if not names:
        raise SpecError("efficiency needs a system", "give a result, or --system NAME")
    stated = {"storage.nodes": nodes, "hardware.drives_per_node": drives}
    given = [f"{key}={value}" for key, value in stated.items() if value is not None]
    compared = efficiency_of(
        names,
        workload,
        match,
        settings=[*given, *(settings or ())],
        nodes=as_nodes,
        write_factor=write_factor,
    )
    if live.for_programs():
        live.answer(to_plain(compared))
    print_blocks(compared.tables)
