"""`feedrate checkpoint`: write and restore the checkpoints of a large model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.config.checkpoint import (
    CheckpointModel,
    checkpoint_models,
    load_checkpoint_model,
    parameters,
    parse_scale,
    total,
)
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.plugins.checkpoint.job import HOST_RANKS, CheckpointJob, checkpoint_job
from emulator.plugins.checkpoint.start import run_checkpoint
from emulator.run.preflight import Rules
from emulator.units import show_bytes

GIB = 2**30

Folder = Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder on the storage.")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="Name or TOML file; see --models.")]
Models = Annotated[bool, typer.Option("--models", help="List the models with their sizes.")]
Subset = Annotated[bool, typer.Option("--subset", help="Write the shards of the first 8 ranks (one host).")]
ScaleText = Annotated[str, typer.Option("--scale", help="Scale of the sizes: 1/1000.")]
Writes = Annotated[int | None, typer.Option(min=0, help="Checkpoints to write; default 10.")]
Reads = Annotated[int | None, typer.Option(min=0, help="Checkpoints to read back; default 10.")]
Pause = Annotated[str | None, typer.Option(help="Time between two checkpoints; default 5s.")]
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
    rules: options.RulesName = "",
    closed: options.Closed = False,
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
            "checkpoint needs a folder on the storage", "feedrate checkpoint --models lists models"
        )
    job = checkpoint_job(
        folder,
        out or options.default_out("checkpoint"),
        model=model,
        settings=settings or (),
        writes=writes,
        reads=reads,
        pause=pause,
        subset=subset,
        scale=parse_scale(scale),
        cache=cache,
        keep=keep,
        shift=shift,
        command=options.command_line(),
        label=label,
        rules=Rules(rules, closed),
    )
    if dry_run:
        _show_plan(job, ranks or job.usual_ranks)
    elif (result := run_checkpoint(job, options.words_with(job.out), ranks, force=force)) is not None:
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
    rows = list(_size_rows(known))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]
        typer.echo("  ".join(cells).rstrip())
    typer.echo("PUBLISHED is in GiB: MLPerf Storage v2.0, rules, table 2.")
    typer.echo("Its 18,000 for 1T is a misprint: runs published under v3.0 report 15,426.6.")


def _size_rows(models: list[CheckpointModel]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of models, smallest first: computed and published sizes, as text."""
    yield ("MODEL", "PARAMETERS", "RANKS", "BYTES", "GiB", "PUBLISHED", "DIFFERS", "8 RANKS", "PUBLISHED")
    for model in sorted(models, key=lambda model: parameters(model.shape)):
        spread, published = model.parallelism, model.published
        whole = total(model, spread.data, spread.ranks)
        subset = total(model, spread.data, min(HOST_RANKS, spread.ranks))
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
