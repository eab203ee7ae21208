"""The pages of all synthetic results, written once for all tests of this folder."""

from __future__ import annotations

import pytest
from synthetic_results import EXAMPLES, steps_of

from emulator.report.page import page


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    """Name of a synthetic result -> its page."""
    return {name: page(made(), steps_of(made())) for name, made in EXAMPLES.items()}
