"""The pages of all synthetic results, written once for all tests of this folder."""

from __future__ import annotations

import pytest
from synthetic_results import PAGES, flagged_sweep, long_names_sweep, multi_host_sweep, with_steps

from emulator.plugins.page.compare import compare
from emulator.plugins.page.reference import load_references
from emulator.report.document import document_of


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    """Name of a synthetic result -> its page."""
    return {name: document_of(with_steps(made())).text("html") for name, made in PAGES.items()}


@pytest.fixture(scope="session")
def comparison_pages() -> dict[str, str]:
    """Two comparisons as pages: one with published figures, one with very long names."""
    results = [("fast", multi_host_sweep()), ("slow", flagged_sweep())]
    with_published = compare(results, load_references(["all"]))
    long = compare([("a-name-" * 12, long_names_sweep()), ("<b>", long_names_sweep())])
    return {"compared": with_published.text("html"), "compared-long": long.text("html")}
