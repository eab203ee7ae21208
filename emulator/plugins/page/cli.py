"""`feedrate report` and `feedrate compare`: tables in the terminal, and pages and pictures as files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.errors import SpecError
from emulator.plugins.page import compare as comparing
from emulator.plugins.page.reference import published_entries, published_table
from emulator.plugins.page.report import report as reported
from emulator.record.out import require_output
from emulator.registry import RULES
from emulator.report.document import Document
from emulator.report.junit import write_junit
from emulator.report.terminal import print_blocks
from emulator.units import parse_share

STDOUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Options that write the output to files."""

    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None
    png: Annotated[Path | None, typer.Option(help="Write the plots as a picture.")] = None
    svg: Annotated[Path | None, typer.Option(help="Write the plots as a drawing.")] = None
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the points as CSV, in bytes and seconds; - is stdout."),
    ] = None
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write Markdown; - is stdout.")] = None

    def paths(self, openmetrics: Path | None = None) -> dict[str, Path]:
        """Return the requested files by suffix. Raises SpecError, StorageError if one cannot be written."""
        options = {
            "html": self.html,
            "png": self.png,
            "svg": self.svg,
            "csv": self.csv,
            "md": self.markdown,
            "prom": openmetrics,
        }
        requested = {suffix: path for suffix, path in options.items() if path}
        if list(requested.values()).count(STDOUT) > 1:
            raise SpecError("two options write to stdout", "give one of them the name of a file")
        # Before anything is computed: drawing a page takes seconds.
        for path in requested.values():
            if path != STDOUT:
                require_output(path)
        return requested


def report(
    outs: Annotated[
        list[Path],
        typer.Argument(metavar="OUT...", help="A result, the folder given to --out; and others beside it."),
    ],
    files: Files,
    gate: options.Gate,
    rules: Annotated[
        str, typer.Option(metavar="|".join(RULES), help="Show which runs are a valid set by MLPerf's rules.")
    ] = "",
    openmetrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the figures as OpenMetrics, for node_exporter's textfiles."),
    ] = None,
) -> None:
    """Show a result: tables, knee and flags; write it as a page or a picture.

    \b
    Examples:
      feedrate report sweep --html sweep.html
      feedrate report sweep --require 8 --junit gate.xml
    """
    paths = files.paths(openmetrics)
    shown = reported(outs[0], outs[1:], rules=rules, threshold=gate.threshold, required=gate.require)
    if live.for_programs():
        live.answer(options.plain_result(shown.result, shown.folder, shown.answer))
    _show(shown, paths)
    gate.leave(shown.answer, str(shown.result.dataset.get("path", "")))


def compare(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Results: folders given to --out.")],
    files: Files,
    reference: Annotated[
        list[str] | None,
        typer.Option(help="A table of published figures, by name or CSV file; repeatable; all: every one."),
    ] = None,
    fail_if_worse: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Exit with 10 if another result is worse than the first by more than this, for example 5%; "
            "with 9 if the runs do not show it.",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts of --fail-if-worse as JUnit XML.")
    ] = None,
) -> None:
    """Compare results: what moved, the same figures side by side, and the settings that differ.

    \b
    Examples:
      feedrate compare old new --html compare.html
      feedrate compare old new --fail-if-worse 5%
    """
    paths = files.paths()
    share = None if fail_if_worse is None else parse_share("--fail-if-worse", fail_if_worse)
    if junit is not None:
        if share is None:
            raise SpecError("--junit was given without --fail-if-worse", "add --fail-if-worse 5%")
        require_output(junit)
    comparison = comparing.compare_folders(outs, reference or [], share)
    if live.for_programs():
        live.answer(comparison.as_plain())
    _show(comparison, paths)
    if junit is not None:
        subject = comparison.results[0].name
        write_junit(junit, subject, comparison.verdicts, comparison.answer.lines)
    if share is not None:
        # One that is not met (10) decides, then one that cannot be told (9).
        raise typer.Exit(max(verdict.status for verdict in comparison.verdicts))


def _show(document: Document, paths: Mapping[str, Path]) -> None:
    """Print the document, unless a file is stdout, and write the files. Raises StorageError, MissingError."""
    # A program has had its line of JSON, and a file on stdout must stand there alone.
    if not live.for_programs() and live.quiet():
        print(document.answer.line)
    elif not live.for_programs() and STDOUT not in paths.values():
        print_blocks(document.blocks)
    for form, path in paths.items():
        if path == STDOUT:
            sys.stdout.write(document.text(form))
            continue  # nothing else may be printed there
        document.write(path, form)
        if not live.quiet():
            what = {"html": "page", "png": "picture", "svg": "picture"}.get(form, "file")
            typer.echo(f"{what}: {path}")


def published(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="Name, as in feedrate workloads.")],
) -> None:
    """Show published MLPerf Storage results of a workload, with their sources.

    \b
    Examples:
      feedrate published unet3d-h100
      feedrate published retinanet-b200 --json
    """
    if live.for_programs():
        live.answer({"results": [asdict(entry) for entry in published_entries(workload)]})
        return
    print_blocks([published_table(workload)])
