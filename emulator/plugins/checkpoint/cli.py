"""`feedrate checkpoint`: write and restore the checkpoints of a large model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.cli.entry import rank_server
from emulator.config.checkpoint import (
    CheckpointModel,
    checkpoint_models,
    load_checkpoint_model,
    parameters,
    parse_scale,
    total,
)
from emulator.config.reader import to_plain
from emulator.errors import SpecError, StorageError
from emulator.launch.forkserver import Preload
from emulator.launch.launched import started_by_mpi
from emulator.launch.mpirun import launch
from emulator.launch.watch import briefly
from emulator.plugins.checkpoint import cycle
from emulator.plugins.checkpoint.cycle import CheckpointJob, check, measure, sweep_up
from emulator.record.out import read_result
from emulator.run.comm import world
from emulator.units import show_bytes

GIB = 2**30

Folder = Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder on the storage.")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="Name or TOML file; see --models.")]
Models = Annotated[bool, typer.Option("--models", help="List the models with their sizes.")]
Subset = Annotated[bool, typer.Option("--subset", help="One host: the first 8 ranks write what is theirs.")]
ScaleText = Annotated[str, typer.Option("--scale", help="Share of the real sizes: 1/1000.")]
Writes = Annotated[int | None, typer.Option(min=0, help="Checkpoints to write; default 10.")]
Reads = Annotated[int | None, typer.Option(min=0, help="Checkpoints to read back; default 10.")]
Pause = Annotated[str | None, typer.Option(help="Between two of them; default 5s.")]
Shift = Annotated[bool, typer.Option("--shift", help="Read back on another host than the one that wrote.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the checkpoints in DIR.")]


def checkpoint(
    folder: Folder = None,
    model: ModelName = "llama3-8b",
    ranks: options.Ranks = None,
    subset: Subset = False,
    scale: ScaleText = "1",
    writes: Writes = None,
    reads: Reads = None,
    pause: Pause = None,
    cache: options.CacheName = "cold",
    settings: options.Settings = None,
    keep: Keep = False,
    shift: Shift = False,
    models: Models = False,
    out: options.Out = None,
    label: options.Label = "",
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Write checkpoints with every rank, synced, then read them back and compare checksums."""
    if models:
        known = [load_checkpoint_model(name) for name in checkpoint_models()]
        if live.for_programs():
            live.answer([{**to_plain(model), "parameters": parameters(model.shape)} for model in known])
            return
        rows = list(_size_rows(known))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]
            typer.echo("  ".join(cells).rstrip())
        typer.echo("PUBLISHED is in GiB: MLPerf Storage v2.0, rules, table 2.")
        typer.echo("Its 18,000 for 1T is a misprint: runs published under v3.0 report 15,426.6.")
        return
    if folder is None:
        raise SpecError(
            "checkpoint needs a folder on the storage", "feedrate checkpoint --models lists models"
        )
    given = {"writes": writes, "reads": reads, "pause": pause}
    own = [f"io.{key}={value}" for key, value in given.items() if value is not None]
    job = CheckpointJob(
        folder=folder,
        model=load_checkpoint_model(model, [*(settings or []), *own]),
        subset=subset,
        scale=parse_scale(scale),
        cache=cache,
        keep=keep,
        shift=shift,
        command=options.command_line(),
        label=label,
        out=out or options.default_out("checkpoint"),
    )
    published = job.model.parallelism.ranks
    needed = ranks or (min(8, published) if subset else published)
    if dry_run:
        if live.for_programs():
            live.answer({"model": job.model.name, "ranks": needed, "bytes": job.total(needed)})
        for line in _plan_lines(job, needed):
            typer.echo(line)
    elif started_by_mpi():
        _measure(job, ranks, force)
    else:
        # Look at what can be seen from here, start the same command under mpirun, sweep up after it.
        check(job, needed, force)
        status = launch(needed, options.words_with(job.out), job.out, Preload(rank_server, [cycle]))
        if status not in (0, SpecError.exit_code):  # a run that was refused has left nothing
            _sweep_up(job, 3.0 if status == StorageError.exit_code else 60.0)  # the folder may be what hangs
        elif not status:
            options.show_result(read_result(job.out), job.out)
        raise typer.Exit(status)


def _sweep_up(job: CheckpointJob, seconds: float) -> None:
    """Remove what killed ranks left, and say so, as far as that takes no longer; the next run goes on."""
    lines: list[str] = []
    briefly(lambda: lines.extend(sweep_up(job)), seconds)
    for line in lines:
        print(f"feedrate: {line}", file=sys.stderr)


def _measure(job: CheckpointJob, ranks: int | None, force: bool) -> None:
    comm = world(expected=ranks)
    job = replace(job, out=comm.bcast(job.out))  # one clock decides on the default name
    result = measure(job, comm, force=force, say=live.say)
    if result is not None:
        options.show_result(result, job.out)


def _plan_lines(job: CheckpointJob, ranks: int) -> Iterator[str]:
    """What a run of `ranks` ranks would do. Raises SpecError."""
    model, io, size = job.model, job.model.io, job.total(ranks)
    files = [job.shards(ranks, rank) for rank in range(ranks)]
    sums = [sum(shard.size for shard in shards) for shards in files]
    yield f"model:       {model.name}, {model.title}, {parameters(model.shape):,} parameters"
    part = f", ranks 0 to {ranks - 1} of {model.parallelism.ranks}" if job.subset else ""
    yield f"ranks:       {ranks}{part}; data parallel {job.data(ranks)}, ZeRO {model.parallelism.zero}"
    scaled = "" if job.scale == 1 else f", scaled to {job.scale}"
    yield f"checkpoint:  {show_bytes(size)} in {sum(map(len, files))} files{scaled}"
    yield f"of a rank:   {show_bytes(min(sums))} to {show_bytes(max(sums))}"
    yield f"room needed: {show_bytes(size * io.writes)} in {job.folder} for {io.writes} checkpoints"
    yield f"then:        {io.reads} read back, {job.cache}; {io.pause:g} s after each"


def _size_rows(models: list[CheckpointModel]) -> Iterator[tuple[str, ...]]:
    """A table of models, smallest first: what their shapes give, and what was published, as text."""
    yield ("MODEL", "PARAMETERS", "RANKS", "BYTES", "GiB", "PUBLISHED", "DIFFERS", "8 RANKS", "PUBLISHED")
    for model in sorted(models, key=lambda model: parameters(model.shape)):
        spread, published = model.parallelism, model.published
        whole, subset = (total(model, spread.data, ranks) for ranks in (spread.ranks, min(8, spread.ranks)))
        yield (
            model.name,
            f"{parameters(model.shape) / 1e9:,.2f}e9",
            f"{spread.tensor}x{spread.pipeline}x{spread.data}, ZeRO {spread.zero}",
            show_bytes(whole),
            f"{whole / GIB:,.1f}",
            f"{published.size / GIB:,.0f}" if published else "",
            f"{whole / published.size - 1:+.1%}" if published else "",
            f"{subset / GIB:,.1f}",
            f"{published.subset / GIB:,.0f}" if published else "",
        )
