"""`feedrate adopt`: write a manifest for existing files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.dataset.progress import READERS, DoneCount, showing
from emulator.plugins.adopt.adopt import adopt_samples, adopting
from emulator.units import counted, show_bytes


def adopt(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the files; for DLIO's, the one with train/.")
    ],
    form: Annotated[
        str | None, typer.Option("--format", help="The format to take, if there are several.")
    ] = None,
    samples_per_file: Annotated[int, typer.Option(min=1, help="Samples in each file.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Reader threads; default 16.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing manifest.")] = False,
) -> None:
    """Write a manifest for existing files, such as DLIO's, so that run, sweep and verify accept them.

    \b
    Examples:
      feedrate adopt /mnt/ai/theirs
      feedrate adopt /mnt/ai/unet3d_data --format npz
    """
    tally = DoneCount()
    with adopting(folder, form or "", force) as taken, showing("adopt", tally, len(taken.names), taken.bytes):
        adopt_samples(taken, samples_per_file, threads or READERS, tally.add)
    typer.echo(
        f"{folder}: adopted {counted(len(taken.names), f'{taken.format} file')}, {show_bytes(taken.bytes)}"
        + (f"; ignored: {counted(taken.left, 'other file')}" if taken.left else "")
    )
    if live.for_programs():
        counts = {"files": len(taken.names), "bytes": taken.bytes, "left": taken.left}
        live.answer({"folder": str(folder), "format": taken.format, **counts})
