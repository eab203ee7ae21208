"""`feedrate import PATH`: MLPerf's and DLIO's YAML and result folders become feedrate's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from emulator.satellites.mlperf.workload import Converted


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
    from emulator.satellites.mlperf.config import read_overrides

    if path.is_dir():
        _results(path, out, workload, force)
        return
    texts = [*(read_overrides(overrides) if overrides else []), *(override or [])]
    _workload(path, out, texts, recipe, force)


def _workload(path: Path, out: Path, overrides: list[str], recipe: Path | None, force: bool) -> None:
    """Nothing is written unless all of it can be."""
    from emulator.config.reader import toml_text
    from emulator.errors import SpecError
    from emulator.satellites.mlperf.config import read_config
    from emulator.satellites.mlperf.folder import write_text
    from emulator.satellites.mlperf.workload import check_new, convert, recipe_table, workload_text

    if out.suffix != ".toml":
        raise SpecError(f"--out {out} does not end in .toml", "a workload is a TOML file")
    for file in (out, recipe):
        if file is not None:
            check_new(file, force)
    converted = convert(read_config(path, overrides), out.stem)
    table = recipe_table(converted) if recipe else None
    write_text(out, workload_text(converted, path.name))
    if recipe is not None and table is not None:
        write_text(recipe, f"# Imported by feedrate from {path.name}.\n{toml_text(table)}")
    _say(converted, out, recipe)


def _say(converted: Converted, out: Path, recipe: Path | None) -> None:
    from emulator.units import show_bytes, show_rate, show_seconds

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
    for one in converted.left_out:
        typer.echo(f"  {one.key} = {str(one.value)[:40]}: {one.why}")
    if recipe is not None:
        folders = f" --subfolders {converted.subfolders}" if converted.subfolders > 1 else ""
        typer.echo(f"dataset: feedrate generate DIR --recipe {recipe}{folders}")


def _results(path: Path, out: Path, workload: str, force: bool) -> None:
    """Every run is read before anything is written."""
    import sys

    from emulator.satellites.mlperf.results import import_folder, write_imported

    groups = import_folder(path, workload)
    places = {group.name: out / group.name if len(groups) > 1 else out for group in groups}
    write_imported(groups, places, ("feedrate", *sys.argv[1:]), force)
    for group in groups:
        typer.echo(f"{places[group.name]}: {group.name}, {len(group.runs)} runs")
        for one in group.runs:
            typer.echo(f"  {one.said.accelerators} accelerators, {one.run.name}: {one.figures.verdict}")


# ---- `feedrate export --mlperf OUT --out FOLDER`: a result in MLPerf Storage's layout, and a self-check.


def export(
    mlperf: Annotated[Path, typer.Option("--mlperf", metavar="OUT", help="A result, as MLPerf Storage's.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to be.")],
) -> None:
    """Write a result in MLPerf Storage's layout, marked as no submission; check it against the rules."""
    from emulator.satellites.mlperf.export import export as write
    from emulator.satellites.mlperf.rules import check_lines

    checks = write(mlperf, out)
    whole = [check for check in checks if check.open] or checks
    for line in check_lines(whole[-1]):
        typer.echo(line)
    if len(checks) > 1:
        typer.echo(f"{len(checks)} counts were checked: {out / 'self-check.json'}")
    typer.echo(f"{out}: made by feedrate, not an official submission")
