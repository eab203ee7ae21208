"""`feedrate compare OUT1 OUT2 ...`: results beside each other and beside published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from emulator.record.store import read_result
    from emulator.report.compare import compare as compared
    from emulator.report.compare import names_of
    from emulator.report.compare_table import print_comparison
    from emulator.report.reference import load_references

    results = list(zip(names_of(outs), map(read_result, outs), strict=True))
    submissions, figures = load_references(reference or [])
    comparison = compared(results, submissions, figures, match)
    print_comparison(comparison)
    if html is not None:
        from emulator.report.compare_page import write_html

        write_html(comparison, html)
        typer.echo(f"page: {html}")
    if png is not None or svg is not None:
        from emulator.report.compare_plots import write_picture

        if png is not None:
            write_picture(comparison, png, "png")
            typer.echo(f"picture: {png}")
        if svg is not None:
            write_picture(comparison, svg, "svg")
            typer.echo(f"picture: {svg}")
