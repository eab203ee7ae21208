"""`feedrate report OUT`: the table in the terminal; the page and the picture as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from emulator.record.result import RunResult
    from emulator.record.steps import Steps


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
    from emulator.report.page import beside, gather
    from emulator.report.tables import print_grids, print_table
    from emulator.sweep.summary import recovered

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
    from emulator.report.figures import write_picture

    if png is not None:
        write_picture(result, steps, png, "png")
        typer.echo(f"picture: {png}")
    if svg is not None:
        write_picture(result, steps, svg, "svg")
        typer.echo(f"picture: {svg}")


# ---- `feedrate compare OUT1 OUT2 ...`: results beside each other and beside published figures.


def compare(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results: folders given to --out.")],
    reference: Annotated[
        list[str] | None,
        typer.Option(help="A table of published figures, by name or CSV file; repeatable; all: every one."),
    ] = None,
    match: Annotated[str, typer.Option(help="Only published systems whose name contains this.")] = "",
    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write the plots as a picture.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the plots as a drawing.")] = None,
) -> None:
    """Compare results on the same axes: per accelerator, per host, X/X_ideal; and say what differs."""
    from emulator.record.folder import read_result
    from emulator.report.compare import compare as compared
    from emulator.report.compare import names_of, print_comparison
    from emulator.report.reference import load_references

    results = list(zip(names_of(outs), map(read_result, outs), strict=True))
    submissions, figures = load_references(reference or [])
    comparison = compared(results, submissions, figures, match)
    print_comparison(comparison)
    if html is not None:
        from emulator.report.compare import write_html

        write_html(comparison, html)
        typer.echo(f"page: {html}")
    if png is not None or svg is not None:
        from emulator.report.compare import write_picture

        if png is not None:
            write_picture(comparison, png, "png")
            typer.echo(f"picture: {png}")
        if svg is not None:
            write_picture(comparison, svg, "svg")
            typer.echo(f"picture: {svg}")
