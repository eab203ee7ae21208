"""`feedrate report` and `feedrate compare`: tables in the terminal; the page and the pictures as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.errors import SpecError
from emulator.files import require_writable
from emulator.plugins.page import compare as comparing
from emulator.plugins.page.page import beside, gather, write_html
from emulator.plugins.page.reference import load_references
from emulator.record.out import read_result
from emulator.report.drawing import draw_result, write_picture
from emulator.report.table import as_plain, to_csv
from emulator.report.terminal import as_markdown, print_blocks, result_blocks
from emulator.report.view import kind_of
from emulator.sweep.summary import recovered

Html = Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the plots as a picture.")]
Svg = Annotated[Path | None, typer.Option("--svg", help="Write the plots as a drawing.")]
Csv = Annotated[bool, typer.Option("--csv", help="The table of points as CSV, with all digits.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="All of it as Markdown.")]


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
    csv: Csv = False,
    markdown: Markdown = False,
    require: options.Require = None,
) -> None:
    """Show a result: table, knee, what qualifies it; write it as a page or a picture."""
    _check(html, png, svg, csv, markdown)
    found = gather(out, baseline or [], system or [])
    result = recovered(found.main)
    tables, figures = beside(result, found)
    blocks = [*result_blocks(result), *tables]
    if live.for_programs():
        folder = found.main.parent if found.main.is_file() else found.main
        live.answer({**options.answer_of(result, folder), "beside": [as_plain(table) for table in tables]})
    if csv:
        sys.stdout.write(to_csv(kind_of(result).tables(result)[0]))
    elif markdown:
        sys.stdout.write(as_markdown(blocks))
    elif not live.for_programs():
        print_blocks(blocks)
    if html is not None:
        write_html(result, html, tables, figures, found.limit)
        _said(f"page: {html}")
    for path, kind in ((png, "png"), (svg, "svg")):
        if path is not None:
            draw_result(result, path, kind)
            _said(f"picture: {path}")
    if require is not None:
        raise typer.Exit(options.required(result, require))


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
    csv: Csv = False,
    markdown: Markdown = False,
) -> None:
    """Compare results on the same axes: per accelerator, per host, X/X_ideal; and say what differs."""
    _check(html, png, svg, csv, markdown)
    found = [read_result(out) for out in outs]
    names = comparing.names_of(outs, [result.label for result in found])
    results = list(zip(names, found, strict=True))
    comparison = comparing.compare(results, *load_references(reference or []), match)
    blocks = comparing.blocks(comparison)
    if live.for_programs():
        live.answer(comparing.as_plain(comparison))
    if csv:
        sys.stdout.write(to_csv(comparing.tables(comparison)[0]))
    elif markdown:
        sys.stdout.write(as_markdown(blocks))
    elif not live.for_programs():
        print_blocks(blocks)
    if html is not None:
        comparing.write_html(comparison, html)
        _said(f"page: {html}")
    for path, kind in ((png, "png"), (svg, "svg")):
        if path is not None:
            write_picture(comparing.figures(comparison), path, kind, "Comparison")
            _said(f"picture: {path}")


def _said(line: str) -> None:
    """A line for people, where stdout is not the answer alone."""
    if not live.quiet():
        typer.echo(line)


def _check(html: Path | None, png: Path | None, svg: Path | None, csv: bool, markdown: bool) -> None:
    """Refuse files that cannot be written, before anything is drawn. Raises SpecError, StorageError."""
    if csv and markdown:
        raise SpecError("--csv and --markdown were both given", "leave one of them out")
    for path, suffix in ((png, ".png"), (svg, ".svg"), (html, ".html")):
        if path is None:
            continue
        known = {".png", ".svg", ".html", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"} - {suffix}
        if path.suffix.lower() in known:
            raise SpecError(
                f"--{suffix[1:]} {path} ends in {path.suffix}, and it would be {suffix[1:].upper()}",
                f"write {path.with_suffix(suffix)}",
            )
        require_writable(path)
