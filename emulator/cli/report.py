"""`feedrate report` and `feedrate compare`: tables in the terminal; the page and the pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator.record.folder import read_result
from emulator.report import compare as comparing
from emulator.report.drawing import write_picture
from emulator.report.page import beside, gather, write_html
from emulator.report.page import write_picture as write_result_picture
from emulator.report.reference import load_references
from emulator.report.terminal import print_blocks, result_blocks
from emulator.sweep.summary import recovered

Html = Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the plots as a picture.")]
Svg = Annotated[Path | None, typer.Option("--svg", help="Write the plots as a drawing.")]


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
    html: Html = None,
    png: Png = None,
    svg: Svg = None,
) -> None:
    """Show a result: table, knee, what qualifies it; write it as a page or a picture."""
    found = gather(out, baseline or [], system or [])
    result, steps = recovered(found.main)
    tables, figures = beside(result, found)
    print_blocks([*result_blocks(result), *tables])
    if html is not None:
        write_html(result, steps, html, tables, figures)
        typer.echo(f"page: {html}")
    for path, kind in ((png, "png"), (svg, "svg")):
        if path is not None:
            write_result_picture(result, steps, path, kind)
            typer.echo(f"picture: {path}")


def compare(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results: folders given to --out.")],
    reference: Annotated[
        list[str] | None,
        typer.Option(help="A table of published figures, by name or CSV file; repeatable; all: every one."),
    ] = None,
    match: Annotated[str, typer.Option(help="Only published systems whose name contains this.")] = "",
    html: Html = None,
    png: Png = None,
    svg: Svg = None,
) -> None:
    """Compare results on the same axes: per accelerator, per host, X/X_ideal; and say what differs."""
    results = list(zip(comparing.names_of(outs), map(read_result, outs), strict=True))
    comparison = comparing.compare(results, *load_references(reference or []), match)
    print_blocks(comparing.blocks(comparison))
    if html is not None:
        comparing.write_html(comparison, html)
        typer.echo(f"page: {html}")
    for path, kind in ((png, "png"), (svg, "svg")):
        if path is not None:
            write_picture(comparing.figures(comparison), path, kind, "Comparison")
            typer.echo(f"picture: {path}")
