"""`feedrate adopt DIR`: a manifest for files that somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def adopt(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the files; of DLIO's: over train/.")
    ],
    form: Annotated[
        str | None, typer.Option("--format", help="Take these only, where there are several formats.")
    ] = None,
    samples_per_file: Annotated[int, typer.Option(min=1, help="Samples in each file.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Readers; default: cores.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make a manifest that is there anew.")] = False,
) -> None:
    """Write a manifest for files without one (DLIO's, anyone's), so that run, sweep and verify take them."""
    import os

    from emulator.dataset.adopt import adopted, find_samples, look, write_manifest
    from emulator.dataset.progress import Tally, clear_terminal, show_on_terminal, shown
    from emulator.units import show_bytes

    found = find_samples(folder, form or "", force)
    pool, tally = threads or min(16, len(os.sched_getaffinity(0))), Tally()
    with shown(tally.now, len(found.names), found.bytes, show_on_terminal, 1.0):
        rows = look(found, samples_per_file, pool, tally.add)
    clear_terminal()
    write_manifest(folder, adopted(found, rows, samples_per_file), rows)
    typer.echo(
        f"{folder}: adopted {len(found.names)} {found.format} files, {show_bytes(found.bytes)}"
        + (f"; {found.left} other files are left alone" if found.left else "")
    )
