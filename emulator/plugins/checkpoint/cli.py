"""`feedrate checkpoint`: write and restore the checkpoints of a large model."""

from __future__ import annotations

import socket
from dataclasses import dataclass
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
from emulator.registry import STORES
from emulator.report.table import Cell, Column, Table
from emulator.report.terminal import print_blocks
from emulator.run.preflight import Rules
from emulator.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The options that define the job, from the command line and from Python."""

    model: Annotated[str, typer.Option("--model", "-m", help="Model name or TOML file; see --models.")] = (
        "llama3-8b"
    )
    subset: Annotated[
        bool, typer.Option("--subset", help="Write the shards of the first 8 ranks (one host).")
    ] = False
    scale: Annotated[str, typer.Option(help="Scale of the sizes, such as 1/1000.")] = "1"
    writes: Annotated[int | None, typer.Option(min=0, help="Checkpoints to write; default 10.")] = None
    reads: Annotated[int | None, typer.Option(min=0, help="Checkpoints to read back; default 10.")] = None
    pause: Annotated[str | None, typer.Option(help="Time between two checkpoints; default 5s.")] = None
    settings: options.Settings = None
    keep: Annotated[bool, typer.Option("--keep", help="Leave the checkpoints in DIR.")] = False
    shift: Annotated[
        bool, typer.Option("--shift", help="Read each shard on another host than its writer's.")
    ] = False
    accelerator: Annotated[
        str, typer.Option(metavar="NAME", help="Emulated accelerator, for MLPerf's rules: b200 or mi355.")
    ] = ""
    label: options.Label = ""
    rules: options.RulesName = ""
    closed: options.Closed = False

    def job(self, folder: Path, out: Path, command: tuple[str, ...] = ()) -> CheckpointJob:
        """Return the job in `folder` that `command` repeats. Raises SpecError, StorageError."""
        if (scheme := str(folder).partition(":/")[0]) in STORES:
            raise SpecError(f"checkpoints are files, not objects of {scheme}://", "name a mounted folder")
        given = {"writes": self.writes, "reads": self.reads, "pause": self.pause}
        overrides = [f"io.{key}={value}" for key, value in given.items() if value is not None]
        return CheckpointJob(
            folder=folder,
            model=load_checkpoint_model(self.model, [*(self.settings or ()), *overrides]),
            subset=self.subset,
            scale=parse_scale(self.scale),
            keep=self.keep,
            shift=self.shift,
            out=out,
            command=command,
            label=self.label,
            accelerator=self.accelerator,
            rules=Rules(self.rules, self.closed),
        )


def checkpoint(
    choices: Choices,
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder on the storage.")] = None,
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
        raise SpecError(
            "checkpoint needs a folder on the storage", "list models with feedrate checkpoint --models"
        )
    job = choices.job(folder, out or options.default_out("checkpoint"), options.command_line())
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
