"""`feedrate export --mlperf OUT --out FOLDER`: a result in MLPerf Storage's layout, and a self-check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    mlperf: Annotated[Path, typer.Option("--mlperf", metavar="OUT", help="A result, as MLPerf Storage's.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to be.")],
) -> None:
    """Write a result in MLPerf Storage's layout, marked as no submission; check it against the rules."""
    from emulator.mlperf.export import export as write
    from emulator.mlperf.rules import check_lines

    checks = write(mlperf, out)
    whole = [check for check in checks if check.open] or checks
    for line in check_lines(whole[-1]):
        typer.echo(line)
    if len(checks) > 1:
        typer.echo(f"{len(checks)} counts were checked: {out / 'self-check.json'}")
    typer.echo(f"{out}: made by feedrate, not an official submission")
