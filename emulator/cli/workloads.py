"""`feedrate workloads`: list the workloads, or show one with the source of every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from emulator import live
from emulator.cli import options
from emulator.config.catalog import find, names
from emulator.config.reader import read_toml, to_plain
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.units import show_rate, show_seconds


def workloads(
    name: Annotated[
        str | None, typer.Argument(help="Name or path of one workload.", autocompletion=options.WORKLOADS)
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print its file, to write one of your own.")] = False,
) -> None:
    """List the workloads, or show one with the source of every number.

    \b
    Examples:
      feedrate workloads unet3d-a100
      feedrate workloads unet3d-a100 --toml > mine.toml
    """
    if toml:
        if name is None:
            raise SpecError(
                "--toml prints the file of one workload", "name it: feedrate workloads NAME --toml"
            )
        typer.echo(read_toml(find("workloads", name))[1].text, nl=False)
        return
    if name is None:
        specs = [load_workload(known) for known in names("workloads")]
        if live.for_programs():
            live.answer([to_plain(spec) for spec in specs])
        else:
            _list(specs)
    elif live.for_programs():
        live.answer(to_plain(load_workload(name)))
    else:
        _show(load_workload(name))


def _list(specs: Sequence[Workload]) -> None:
    typer.echo(f"{'NAME':16} {'BATCH':>5} {'STEP':>8} {'ONE ASKS':>10}  {'STEP TIME':10} TITLE")
    for spec in specs:
        step, demand = show_seconds(spec.accelerator.step_seconds), show_rate(spec.demand)
        typer.echo(
            f"{spec.name:16} {spec.loader.batch_size:5d} {step:>8} {demand:>10}  "
            f"{spec.accelerator.provenance:10} {spec.title}"
        )


def _show(spec: Workload) -> None:
    """Print every value with its source."""
    typer.echo(f"{spec.name}: {spec.title}")
    if "yaml" in spec.sources:
        typer.echo(f"from {spec.sources['yaml']}")
    if spec.accelerator.provenance == "scaled":
        typer.echo("NOTE: the step time was scaled from another accelerator, not measured.")
    sections = ["sample", "access", "loader", "accelerator", "training"]
    if spec.access.pattern == "random" and not spec.access.columns:
        sections.remove("access")
    for section in sections:
        typer.echo(f"\n[{section}]")
        for key, value in asdict(getattr(spec, section)).items():
            source = spec.sources.get(f"{section}.{key}", "")
            if value or source:  # else it is a default
                typer.echo(f"{key:16} {_shown(key, value):18} {source}".rstrip())


def _shown(key: str, value: Any) -> str:
    """Return a value as text; of long lists their length."""
    if key == "columns":
        return f"{len(value)} columns"
    if key == "quantiles":
        return f"{len(value)} times"
    return str(list(value) if isinstance(value, tuple) else value)
