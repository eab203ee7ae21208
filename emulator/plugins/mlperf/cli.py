"""Commands `feedrate datasize`, `import` and `export`: MLPerf Storage's rules, and its files and DLIO's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import psutil
import typer

from emulator import live
from emulator.cli import options
from emulator.config.reader import to_plain
from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.datasize import MEMORY_FACTOR, MIN_STEPS, needed_data
from emulator.plugins.mlperf.export import CHECK, export_results
from emulator.plugins.mlperf.training import Imports, import_folder, write_imports
from emulator.plugins.mlperf.workload import Converted, import_yaml
from emulator.units import counted, parse_bytes, show_bytes, show_rate, show_seconds

_CHECKED = ("version", "accelerators", "open", "closed")


def import_(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="YAML file of DLIO, or folder of MLPerf results.")
    ],
    out: Annotated[Path, typer.Option(help="The workload (.toml) or the folder of results to write.")],
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a recipe for the YAML's dataset.")
    ] = None,
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="Workload of a result without a configuration.")
    ] = "",
    label: options.Label = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
) -> None:
    """Import a DLIO YAML as a workload (of datagen: as a recipe), or MLPerf Storage's folders as results.

    \b
    Examples:
      feedrate import unet3d_h100.yaml --out mine.toml
      feedrate import mlperf-results --out imported
    """
    if not path.is_dir():
        _show_workload(import_yaml(path, out, recipe, force=force), out, recipe)
        return
    imports = import_folder(path, workload)  # reads every run before anything is written
    _show_imports(imports, write_imports(imports, out, options.command_line(), force, label))


def _show_imports(imports: Imports, folders: Mapping[str, Path]) -> None:
    if live.for_programs():
        notes = {read.run.name: list(read.run.unread) for read in imports.runs if read.run.unread}
        shown = {"results": {name: str(path) for name, path in folders.items()}, "runs": len(imports.runs)}
        live.answer({**shown, "notes": notes, "skipped": dict(imports.skipped)})
    for name, folder in folders.items():
        typer.echo(f"{folder}: {name}")
    for imported in imports.runs:
        typer.echo(f"  {imported.line}")
    for name, why in imports.skipped.items():
        typer.echo(f"skipped {name}: {why}")
    skipped = counted(len(imports.skipped), "folder")
    typer.echo(f"{counted(len(imports.runs), 'run')} imported, {skipped} skipped")


def _show_workload(converted: Converted, out: Path, recipe: Path | None) -> None:
    spec = converted.workload
    if live.for_programs():
        left = {item.key: item.why for item in converted.left_out}
        live.answer({"file": str(out), "workload": to_plain(spec), "left_out": left})
    if converted.config.purpose == "generation":
        typer.echo(f"{out}: a recipe; feedrate generate DIR --recipe {out}")
        return
    demand = spec.demand
    typer.echo(f"{out}: {spec.title}")
    typer.echo(
        f"  {spec.sample.format}, {show_bytes(spec.sample.bytes_mean)} a sample, batch size "
        f"{spec.loader.batch_size}, {show_seconds(spec.accelerator.step_seconds)} a step"
        + (f": one accelerator asks for {show_rate(demand)}" if spec.accelerator.step_seconds else "")
    )
    if spec.loader.crop:
        edges = " x ".join(map(str, spec.loader.crop))
        typer.echo(f"  crop (feedrate's choice): --loader torch keeps {edges} random voxels of each sample")
    if converted.left_out:
        typer.echo("left out:")
    for item in converted.left_out:
        typer.echo(f"  {item.key} = {str(item.value)[:40]}: {item.why}")
    if recipe is not None:
        subfolders = converted.config.whole("dataset.num_subfolders_train")
        folders = f" --subfolders {subfolders}" if subfolders > 1 else ""
        typer.echo(f"dataset: feedrate generate DIR --recipe {recipe}{folders}")


def export(
    mlperf: Annotated[
        list[Path],
        typer.Option("--mlperf", metavar="OUT", help="Result. Twice: a checkpoint's writes, and its reads."),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder to write.")],
) -> None:
    """Write a result in MLPerf Storage's layout, marked as not a submission, and check it against the rules.

    \b
    Examples:
      feedrate export --mlperf sweep --out submission
      feedrate export --mlperf writes --mlperf reads --out submission
    """
    checks = export_results(mlperf, out)
    if live.for_programs():
        shown = [{key: getattr(check, key) for key in _CHECKED} for check in checks]
        live.answer({"folder": str(out), "checks": shown})
    largest = [check for check in checks if check.open] or checks
    for line in largest[-1].lines:
        typer.echo(line)
    if len(checks) > 1:
        typer.echo(f"checks of all {len(checks)} accelerator counts: {out / CHECK}")
    typer.echo(f"{out}: made by feedrate, not an official submission")


def datasize(
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="Name or path.", autocompletion=options.WORKLOADS)
    ],
    accelerators: Annotated[int, typer.Option(min=1, help="Emulated accelerators in all.")],
    hosts: Annotated[int, typer.Option(min=1, help="Client hosts.")] = 1,
    host_memory: Annotated[
        str | None, typer.Option(help="Memory of one host, like 256GiB; default: this machine's.")
    ] = None,
) -> None:
    """Files and bytes by MLPerf Storage's rule: 5 x the hosts' memory, and 500 steps an epoch.

    \b
    Examples:
      feedrate datasize -w unet3d-h100 --accelerators 64 --hosts 8 --host-memory 512GiB
      feedrate datasize -w resnet50-a100 --accelerators 8
    """
    if host_memory is not None and host_memory.strip().isdecimal():
        raise SpecError(f"--host-memory {host_memory} has no unit", f"write {host_memory.strip()}GiB")
    spec, memory = load_workload(workload), int(psutil.virtual_memory().total)
    if host_memory:
        memory = parse_bytes(host_memory)
    size = needed_data(spec, accelerators, hosts, memory)
    if live.for_programs():
        live.answer(dataclasses.asdict(size))
        return
    samples = "files" if size.samples == size.files else "samples"
    many = "" if samples == "files" else f" of {spec.sample.samples_per_file} samples"
    print(f"{counted(size.files, 'file')}{many}, {show_bytes(size.bytes)}")
    wanted = f"{MEMORY_FACTOR} x {show_bytes(hosts * memory)} of memory on {counted(hosts, 'host')}"
    print(f"  {wanted}: {size.by_memory} {samples}")
    steps, ranks = f"{MIN_STEPS} steps x batch size", counted(accelerators, "accelerator")
    print(f"  {steps} {spec.loader.batch_size} x {ranks}: {size.by_steps} {samples}")
