"""`feedrate checkpoint`: write and restore the checkpoints of a large model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import options
from emulator.errors import LaunchError, SpecError

if TYPE_CHECKING:
    from emulator.run.comm import Comm
    from emulator.satellites.checkpoint.session import CheckpointJob

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
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Write checkpoints with every rank, synced, then read them back and compare checksums."""
    from emulator.run.comm import started_by_mpi, world
    from emulator.satellites.checkpoint.model import load_checkpoint_model, parse_scale
    from emulator.satellites.checkpoint.session import CheckpointJob

    if models:
        _list_models()
        return
    if folder is None:
        raise SpecError(
            "checkpoint needs a folder on the storage", "feedrate checkpoint --models lists models"
        )
    given = {"writes": writes, "reads": reads, "pause": pause}
    own = [f"io.{key}={value}" for key, value in given.items() if value is not None]
    job = CheckpointJob(
        folder=folder, model=load_checkpoint_model(model, [*(settings or []), *own]), subset=subset,
        scale=parse_scale(scale), cache=cache, keep=keep, shift=shift,
        command=options.command_line(),
        out=out or options.default_out("checkpoint"),
    )  # fmt: skip
    needed = ranks or (min(8, job.model.parallelism.ranks) if subset else job.model.parallelism.ranks)
    if dry_run:
        _dry_run(job, needed)
    elif started_by_mpi():
        _measure(job, world(), ranks, force)
    else:
        _launch(job, needed, force)


def _list_models() -> None:
    from emulator.satellites.checkpoint.model import checkpoint_models, load_checkpoint_model
    from emulator.satellites.checkpoint.session import size_rows

    rows = list(size_rows([load_checkpoint_model(name) for name in checkpoint_models()]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]
        typer.echo("  ".join(cells).rstrip())
    typer.echo("PUBLISHED is in GiB: MLPerf Storage v2.0, rules, table 2.")


def _dry_run(job: CheckpointJob, ranks: int) -> None:
    from emulator.satellites.checkpoint.session import plan_lines

    for line in plan_lines(job, ranks):
        typer.echo(line)


def _measure(job: CheckpointJob, world: Comm, ranks: int | None, force: bool) -> None:
    from dataclasses import replace

    from emulator.satellites.checkpoint.session import measure

    if ranks is not None and ranks != world.size:
        raise LaunchError(f"-n {ranks} was given, but mpirun started {world.size} ranks", "leave -n out")
    job = replace(job, out=world.bcast(job.out))  # one clock decides on the default name
    result = measure(job, world, force=force, say=typer.echo if world.rank == 0 else _silent)
    if result is not None:
        typer.echo("")
        options.show_result(result, job.out)


def _launch(job: CheckpointJob, ranks: int, force: bool) -> None:
    """Look at what can be seen from here, start the same command under mpirun, sweep up after it."""
    import sys

    from emulator.run.mpirun import launch
    from emulator.satellites.checkpoint.session import check, sweep_up

    check(job, ranks, force)
    status = launch(ranks, [*sys.argv[1:], "--out", str(job.out)])
    if status:
        for line in sweep_up(job):
            print(f"feedrate: {line}", file=sys.stderr)
    raise typer.Exit(status)


def _silent(line: str) -> None:
    pass
