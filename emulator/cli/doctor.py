"""`feedrate doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    folder: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Folder on the storage, s3://BUCKET or rados://POOL.")
    ] = ".",
) -> None:
    """Check MPI, torch, the storage and the limits of this machine."""
    from emulator.run.doctor import examine
    from emulator.spec.place import parse_place

    findings = examine(parse_place(folder))
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.required else "note   ")
        line = f"{mark}  {finding.what:{width}}  {finding.found}"
        typer.echo(line if finding.good or not finding.advice else f"{line}: {finding.advice}")
    if any(finding.required and not finding.good for finding in findings):
        raise typer.Exit(1)
