"""Checks that specs share. A message begins with the field's name, so that its line can be named."""

from __future__ import annotations

import math

from emulator.errors import SpecError


def at_least(name: str, value: float, minimum: float) -> None:
    """Refuse NaN, infinity and anything below `minimum`. Raises SpecError."""
    if not math.isfinite(value) or value < minimum:
        raise SpecError(f"{name} must be at least {minimum:g}, not {value:g}")


def positive(name: str, value: float) -> None:
    """Refuse NaN, infinity, zero and below. Raises SpecError."""
    if not math.isfinite(value) or value <= 0:
        raise SpecError(f"{name} must be above 0, not {value:g}")


def share(name: str, value: float) -> None:
    """Refuse anything outside (0, 1]. Raises SpecError."""
    if not 0 < value <= 1:
        raise SpecError(f"{name} must be above 0 and at most 1, not {value:g}")
