"""What is said of a result and which tables it has, by its kind."""

from __future__ import annotations

from typing import Any

from emulator.record.result import RunResult
from emulator.registry import KINDS, load
from emulator.report.view import Grid


def _of(result: RunResult) -> Any:
    """The module that speaks for this kind of result."""
    return load(KINDS.get(result.kind, "report.view"))


def grids(result: RunResult) -> tuple[Grid, ...]:
    """Its tables beside that of its points."""
    found: tuple[Grid, ...] = _of(result).grids(result)
    return found


def setting(result: RunResult) -> str:
    """Where and how it was measured, in one line."""
    return str(_of(result).setting(result))


def answer(result: RunResult) -> str:
    """The answer in one sentence."""
    return str(_of(result).answer(result))


def question(result: RunResult) -> str:
    """The question that it answers."""
    return str(_of(result).QUESTION)
