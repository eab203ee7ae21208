"""`feedrate doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder on the storage that will be measured.")
    ] = Path(),
) -> None:
    """Check MPI, torch, the storage and the limits of this machine."""
    from emulator.run.doctor import examine

    findings = examine(folder)
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.required else "note   ")
        line = f"{mark}  {finding.what:{width}}  {finding.found}"
        typer.echo(line if finding.good or not finding.advice else f"{line}: {finding.advice}")
    if any(finding.required and not finding.good for finding in findings):
        raise typer.Exit(1)
