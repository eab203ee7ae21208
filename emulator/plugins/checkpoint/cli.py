"""`feedrate checkpoint`: write and restore the checkpoints of a large model."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.config.checkpoint import (
    checkpoint_models,
    load_checkpoint_model,
    parameters,
    parse_scale,
    total,
)
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.checkpoint.cycle import run_checkpoint
from emulator.plugins.checkpoint.job import HOST_RANKS, CheckpointJob, check, planned
from emulator.record.machine import memory_bytes
from emulator.report.table import Cell, Column, Table
from emulator.report.terminal import print_blocks
from emulator.run.preflight import Rules
from emulator.units import show_bytes

ModelName = Annotated[str, typer.Option("--model", "-m", help="Model name or TOML file; see --models.")]
Subset = Annotated[bool, typer.Option("--subset", help="Write the shards of the first 8 ranks (one host).")]
Scale = Annotated[str, typer.Option(help="Scale of the sizes, such as 1/1000.")]
Writes = Annotated[int | None, typer.Option(min=0, help="Checkpoints to write; default 10.")]
Reads = Annotated[int | None, typer.Option(min=0, help="Checkpoints to read back; default 10.")]
Pause = Annotated[str | None, typer.Option(help="Time between two checkpoints; default 5s.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the checkpoints in DIR.")]
Shift = Annotated[bool, typer.Option("--shift", help="Read each shard on another host than its writer's.")]
AcceleratorName = Annotated[
    str, typer.Option(metavar="NAME", help="Emulated accelerator, for MLPerf's rules: b200 or mi355.")
]


def checkpoint(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder on the storage.")] = None,
    model: ModelName = "llama3-8b",
    subset: Subset = False,
    scale: Scale = "1",
    writes: Writes = None,
    reads: Reads = None,
    pause: Pause = None,
    settings: options.Settings = None,
    keep: Keep = False,
    shift: Shift = False,
    accelerator: AcceleratorName = "",
    label: options.Label = "",
    rules: options.RulesName = "",
    closed: options.Closed = False,
    ranks: options.Ranks = None,
    models: Annotated[bool, typer.Option("--models", help="List the models with their sizes.")] = False,
    out: options.Out = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Write checkpoints with every rank, synced, then read them back and compare checksums.

    \b
    Examples:
      feedrate checkpoint /mnt/ai --model llama3-8b -n 8 --scale 1/100
      feedrate checkpoint --models
    """
    if models:
        _show_models()
        return
    if folder is None:
        raise SpecError("checkpoint needs a folder on the storage", "--models lists the models")
    given = {"writes": writes, "reads": reads, "pause": pause}
    overrides = [f"io.{key}={value}" for key, value in given.items() if value is not None]
    job = CheckpointJob(
        folder=folder,
        model=load_checkpoint_model(model, [*(settings or ()), *overrides]),
        subset=subset,
        scale=parse_scale(scale),
        keep=keep,
        shift=shift,
        out=out or options.default_out("checkpoint"),
        command=options.command_line(),
        label=label,
        accelerator=accelerator,
        rules=Rules(rules, closed),
    )
    if dry_run:
        count = ranks or job.usual_ranks
        check(job, count, force)
        hosts = [socket.gethostname()] * count
        job.rules.require(planned(job, hosts, {hosts[0]: memory_bytes()}))
        _show_plan(job, count)
    elif (result := run_checkpoint(job, ranks, force=force)) is not None:
        options.show_result(result, job.out)


def _show_plan(job: CheckpointJob, ranks: int) -> None:
    if live.for_programs():
        live.answer({"model": job.model.name, "ranks": ranks, "bytes": job.total(ranks)})
    for line in job.lines(ranks):
        typer.echo(line)


def _show_models() -> None:
    known = [load_checkpoint_model(name) for name in checkpoint_models()]
    if live.for_programs():
        live.answer([{**to_plain(model), "parameters": parameters(model.shape)} for model in known])
        return
    rows: list[tuple[Cell, ...]] = []
    for model in sorted(known, key=lambda model: parameters(model.shape)):
        spread = model.parallelism
        whole, host = (total(model, spread.data, ranks) for ranks in (spread.ranks, HOST_RANKS))
        how = f"{spread.tensor} x {spread.pipeline} x {spread.data}, ZeRO {spread.zero}"
        count = f"{parameters(model.shape) / 1e9:,.2f}e9"
        rows.append((model.name, count, how, show_bytes(whole), show_bytes(host)))
    heads = ("parameters", "ranks: tensor x pipeline x data", "checkpoint", f"of {HOST_RANKS} ranks")
    columns = (Column("model", align="left"), *map(Column, heads))
    print_blocks([Table(caption="", columns=columns, rows=tuple(rows))])
