"""One self-contained HTML page of a comparison, in the clothes of the report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from emulator.record.store import write_whole
from emulator.report.compare import Comparison, Entry
from emulator.report.compare_plots import draw
from emulator.report.compare_table import cells, shared_rows
from emulator.report.kinds import answer, setting
from emulator.report.page import figures, render
from emulator.report.view import marks, title

CAPTIONS = {
    "throughput": "All accelerators together.",
    "per-accelerator": "What one accelerator gets.",
    "per-host": "What one client host reads.",
    "x-ideal": "Samples per second over what accelerators that never wait would consume.",
}
"""What each plot shows, in words."""


def write_html(comparison: Comparison, path: Path) -> None:
    """Write the page whole or not at all. Raises MissingError, StorageError."""
    content = page(comparison).encode()
    write_whole(path, lambda file: file.write(content))


def page(comparison: Comparison) -> str:
    """The page as text. Raises MissingError."""
    return render(
        "compare.html",
        title="Comparison",
        results=[
            {
                "name": one.name,
                "answer": answer(one.result),
                "title": title(one.result),
                "setting": setting(one.result),
                "marks": marks(one.result),
            }
            for one in comparison.results
        ],
        cautions=comparison.cautions,
        moves=comparison.moves,
        figures=figures(CAPTIONS, lambda name, size: draw(name, comparison, size)),
        shared=shared_rows(comparison) if len(comparison.results) > 1 else [],
        measured=_entries(entry for one in comparison.results for entry in one.entries),
        published=_entries(comparison.published),
        documents=comparison.figures,
    )


def _entries(found: Iterable[Entry]) -> list[dict[str, Any]]:
    return [{"name": entry.name, "flagged": entry.flagged, "cells": cells(entry)} for entry in found]
