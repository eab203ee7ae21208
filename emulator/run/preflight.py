"""Refuse a run, before it starts, that the rules of a benchmark would not count after it."""

from __future__ import annotations

from dataclasses import dataclass

from emulator import live
from emulator.errors import SpecError
from emulator.record.result import RunResult
from emulator.registry import RULES
from emulator.units import counted


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a run is to be valid by."""

    version: str = ""
    """An entry point of `feedrate.rules`; empty: none."""
    closed: bool = False
    """True for those of the strictest division as well."""

    def __post_init__(self) -> None:
        if self.closed and not self.version:
            raise SpecError("--closed was given without --rules", f"add --rules {max(RULES)}")
        if self.version and self.version not in RULES:
            raise SpecError(f"--rules {self.version!r} is not known", f"use one of {RULES}")

    def require(self, planned: RunResult) -> None:
        """Refuse a result that would break a rule. Raises SpecError.

        `planned` has the facts that are known beforehand, and NaN for what it will measure.
        """
        lines = RULES.load(self.version)([planned], self.version, self.closed) if self.version else []
        for line in lines:
            live.say(f"  {line}")
        if lines:
            division = " for CLOSED" if self.closed else ""
            broken = f"{counted(len(lines), 'rule')} of {self.version}{division}"
            raise SpecError(f"the run would not meet {broken}", "change what is said, or leave out --rules")


NO_RULES = Rules()
