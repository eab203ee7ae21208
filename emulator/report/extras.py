"""The optional packages of the report, or one line that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from emulator.errors import MissingError


def extra(name: str) -> ModuleType:
    """The module altair, vl_convert or jinja2. Raises MissingError with the pip line."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingError(
            f"the package {name.replace('_', '-')} is not installed", "pip install 'feedrate[report]'"
        ) from None
