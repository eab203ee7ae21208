"""`feedrate import` and `feedrate export`: files of MLPerf Storage and DLIO, in and out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emulator.errors import SpecError
from emulator.files import write_whole
from emulator.satellites.mlperf.config import read_config, read_overrides
from emulator.satellites.mlperf.export import CHECK, export_result
from emulator.satellites.mlperf.results import import_folder, write_imported
from emulator.satellites.mlperf.workload import convert, recipe_text, workload_text
from emulator.units import show_bytes, show_rate, show_seconds


def import_(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A DLIO YAML file, or a folder of MLPerf Storage results.")
    ],
    out: Annotated[Path, typer.Option(help="The workload (.toml), or the folder for results.")],
    override: Annotated[
        list[str] | None,
        typer.Option("--override", metavar="KEY=VALUE", help="As Hydra's: reader.batch_size=8; repeatable."),
    ] = None,
    overrides: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A list of them: overrides.yaml.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a recipe for the YAML's dataset, too.")
    ] = None,
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="What a result without a configuration ran.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
) -> None:
    """A workload from a DLIO YAML with overrides, or results from MLPerf Storage's folders."""
    if not path.is_dir():
        texts = [*(read_overrides(overrides) if overrides else []), *(override or [])]
        _import_workload(path, out, texts, recipe, force)
        return
    groups = import_folder(path, workload)  # every run is read before anything is written
    folders = {name: out / name if len(groups) > 1 else out for name in groups}
    write_imported(groups, folders, ("feedrate", *sys.argv[1:]), force)
    for name, runs in groups.items():
        typer.echo(f"{folders[name]}: {name}, {len(runs)} runs")
        for imported in runs:
            accelerators = imported.published.accelerators
            typer.echo(f"  {accelerators} accelerators, {imported.run.name}: {imported.figures.verdict}")


def _import_workload(path: Path, out: Path, overrides: list[str], recipe: Path | None, force: bool) -> None:
    """Nothing is written unless all of it can be."""
    if out.suffix != ".toml":
        raise SpecError(f"--out {out} does not end in .toml", "a workload is a TOML file")
    for file in (out, recipe):
        if file is not None and file.is_dir():
            raise SpecError(f"{file} is a folder", "give the file that is to be written")
        if file is not None and file.exists() and not force:
            raise SpecError(f"{file} is there already", "choose another --out, or add --force")
    converted = convert(read_config(path, overrides), out.stem)
    recipe_toml = recipe_text(converted, path.name) if recipe else ""
    write_whole(out, workload_text(converted, path.name))
    if recipe is not None:
        write_whole(recipe, recipe_toml)

    spec = converted.workload
    demand = spec.ideal_samples_per_second * spec.sample.bytes_mean
    typer.echo(f"{out}: {spec.title}")
    typer.echo(
        f"  {spec.sample.format}, {show_bytes(spec.sample.bytes_mean)} a sample, batch size "
        f"{spec.loader.batch_size}, {show_seconds(spec.accelerator.step_seconds)} a step"
        + (f": one accelerator asks for {show_rate(demand)}" if spec.accelerator.step_seconds else "")
    )
    if converted.left_out:
        typer.echo("left out:")
    for item in converted.left_out:
        typer.echo(f"  {item.key} = {str(item.value)[:40]}: {item.why}")
    if recipe is not None:
        folders = f" --subfolders {converted.subfolders}" if converted.subfolders > 1 else ""
        typer.echo(f"dataset: feedrate generate DIR --recipe {recipe}{folders}")


def export(
    mlperf: Annotated[Path, typer.Option("--mlperf", metavar="OUT", help="A result, as MLPerf Storage's.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to be.")],
) -> None:
    """Write a result in MLPerf Storage's layout, marked as no submission; check it against the rules."""
    checks = export_result(mlperf, out)
    largest = [check for check in checks if check.open] or checks
    for line in largest[-1].lines:
        typer.echo(line)
    if len(checks) > 1:
        typer.echo(f"{len(checks)} counts were checked: {out / CHECK}")
    typer.echo(f"{out}: made by feedrate, not an official submission")
