"""What is said of a result and which tables it has, by its kind."""

from __future__ import annotations

from emulator.record.result import RunResult
from emulator.report import baseline, checkpoint, view
from emulator.report.baseline import Grid


def grids(result: RunResult) -> tuple[Grid, ...]:
    """Its tables beside that of its points."""
    return checkpoint.grids(result) if result.kind == "checkpoint" else baseline.grids(result)


def setting(result: RunResult) -> str:
    """Where and how it was measured, in one line."""
    if result.kind == "checkpoint":
        return checkpoint.setting(result)
    return baseline.setting(result) if result.kind == "baseline" else view.setting(result)


def answer(result: RunResult) -> str:
    """The answer in one sentence."""
    if result.kind == "checkpoint":
        return checkpoint.answer(result)
    return baseline.answer(result) if result.kind == "baseline" else view.answer(result)


def question(result: RunResult) -> str:
    """The question that it answers."""
    if result.kind == "checkpoint":
        return "How long does a checkpoint take?"
    return "How many accelerators can this storage feed?"
