"""`feedrate report OUT`: the table in the terminal; the page and the picture as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from emulator.record.result import RunResult
    from emulator.record.step import Steps


def report(
    out: Annotated[
        Path, typer.Argument(help="A result: the folder given to --out, its run.json, or a folder of them.")
    ],
    baseline: Annotated[
        list[Path] | None, typer.Option(metavar="OUT", help="Beside this feedrate baseline; repeatable.")
    ] = None,
    system: Annotated[
        list[str] | None, typer.Option(help="With the efficiency of this system; name or file; repeatable.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write the plots as a picture.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the plots as a drawing.")] = None,
) -> None:  # fmt: skip
    """Show a result: table, knee, what qualifies it; write it as a page or a picture."""
    from emulator.report.gather import beside, gather
    from emulator.report.table import print_grids, print_table
    from emulator.sweep.recover import recovered

    found = gather(out, baseline or [], system or [])
    result, steps = recovered(found.main)
    grids = beside(result, found)
    print_table(result)
    print_grids(grids)
    if html is not None:
        from emulator.report.page import write_html

        write_html(result, steps, html, grids, [one for _, one in found.baselines])
        typer.echo(f"page: {html}")
    if png is not None or svg is not None:
        _draw(result, steps, png, svg)


def _draw(result: RunResult, steps: Steps, png: Path | None, svg: Path | None) -> None:
    from emulator.report.plots import write_picture

    if png is not None:
        write_picture(result, steps, png, "png")
        typer.echo(f"picture: {png}")
    if svg is not None:
        write_picture(result, steps, svg, "svg")
        typer.echo(f"picture: {svg}")
