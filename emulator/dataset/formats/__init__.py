"""File formats of samples by name: the entry points of `feedrate.formats`. Each is imported on demand."""

from __future__ import annotations

from functools import cache

from emulator.dataset.formats.base import Format
from emulator.errors import DatasetError
from emulator.registry import FORMATS


@cache
def format_named(name: str) -> Format:
    """The format of that name. Raises DatasetError."""
    if name not in FORMATS:
        raise DatasetError(f"the format {name!r} is not known", f"known: {FORMATS}")
    form: Format = FORMATS.load(name)()
    return form
