"""Refuse a run that could not meet the rules of a benchmark, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from emulator import live
from emulator.errors import SpecError
from emulator.record.result import RunResult
from emulator.registry import RULES
from emulator.units import counted


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a run has to meet."""

    version: str = ""
    """An entry point of `feedrate.rules`; empty: none."""
    closed: bool = False
    """True to add the rules of the strictest division."""

    def __post_init__(self) -> None:
        if self.closed and not self.version:
            raise SpecError("--closed was given without --rules", f"add --rules {max(RULES)}")
        if self.version and self.version not in RULES:
            raise SpecError(f"--rules {self.version!r} is not known", f"use one of {RULES}")

    def require(self, planned: RunResult) -> None:
        """Raise SpecError if `planned`, which has NaN for what is not measured yet, breaks a rule."""
        lines = RULES.load(self.version)([planned], self.version, self.closed) if self.version else []
        for line in lines:
            live.say(f"  {line}")
        if lines:
            division = " for CLOSED" if self.closed else ""
            broken = f"{counted(len(lines), 'rule')} of {self.version}{division}"
            raise SpecError(f"the run would not meet {broken}", "change what they list, or leave out --rules")


NO_RULES = Rules()
