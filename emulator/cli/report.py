"""`feedrate report OUT`: the table in the terminal; the page and the picture as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    out: Annotated[Path, typer.Argument(help="A result: the folder given to --out, or its run.json.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write the plots as a picture.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the plots as a drawing.")] = None,
) -> None:
    """Show a result: table, knee, what qualifies it; write it as a page or a picture."""
    from emulator.report.table import print_table
    from emulator.sweep.recover import recovered

    result, steps = recovered(out if out.is_dir() else out.parent)
    print_table(result)
    if html is None and png is None and svg is None:
        return
    if html is not None:
        from emulator.report.page import write_html

        write_html(result, steps, html)
        typer.echo(f"page: {html}")
    if png is not None or svg is not None:
        from emulator.report.plots import write_picture

        if png is not None:
            write_picture(result, steps, png, "png")
            typer.echo(f"picture: {png}")
        if svg is not None:
            write_picture(result, steps, svg, "svg")
            typer.echo(f"picture: {svg}")
