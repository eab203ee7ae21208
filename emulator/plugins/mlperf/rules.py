"""Check a result against MLPerf Storage's rules for OPEN and CLOSED.

A check considers the steps that ran and the bytes that were read, not the workload's parameters. This is a
self-check: a submission needs MLPerf's own code and review, and some rules concern facts in no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.plugins.mlperf.rule import CLOSED, Division, Rule
from emulator.plugins.mlperf.rules_checkpoint import CHECKPOINTING, CheckpointRuns
from emulator.plugins.mlperf.rules_training import TRAINING, TrainingRuns
from emulator.record.result import RunResult

VERSION = "v3.0"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one rule."""

    number: str
    """Section of the rules; empty for a rule of feedrate's."""
    name: str
    division: Division
    value: str
    threshold: str
    met: bool | None
    """None if the result does not tell."""

    @property
    def line(self) -> str:
        word = {True: "met", False: "NOT MET", None: "unknown"}[self.met]
        number = f"{self.number}, " if self.number else ""
        return f"{word:8} {self.name}: {self.value} (required: {self.threshold}; {number}{self.division})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of all rules for one accelerator count."""

    version: str
    accelerators: int
    rules: tuple[Outcome, ...]

    @property
    def open(self) -> bool:
        """True when every rule of the open division is known to be met."""
        return all(rule.met for rule in self.rules if rule.division != CLOSED)

    @property
    def closed(self) -> bool:
        """True when every rule is known to be met."""
        return all(rule.met for rule in self.rules)

    @property
    def lines(self) -> list[str]:
        opened = "every rule met" if self.open else "not every rule met"
        closed = "every rule met" if self.closed else "not every rule met"
        first = f"{self.accelerators} accelerators, rules of {self.version}: OPEN: {opened}; CLOSED: {closed}"
        return [first, *(f"  {rule.line}" for rule in self.rules)]


def self_check(*results: RunResult, au: Sequence[float] | None = None) -> list[Check]:
    """Check a set of runs, by ascending accelerator count.

    `results` are of one kind and workload, in the order of their start. `au` is the AU of each point of one
    result by MLPerf's formula, the mean over its epochs. The default is the point's own, over all epochs, or
    that of an imported run.
    """
    if results[-1].kind == "checkpoint":
        runs = CheckpointRuns(results)
        return [_check(CHECKPOINTING, runs, runs.ranks)]
    counts = sorted({point.ranks for result in results for point in result.points})
    return [_check(TRAINING, TrainingRuns(results, count, au), count) for count in counts]


def broken(results: Sequence[RunResult], version: str, closed: bool) -> list[str]:
    """Return a line for each rule that the set of runs does not meet. NaN, as in a plan, breaks no rule.

    `version` is the only one that is registered.
    """
    return [
        f"{check.accelerators} accelerators: {rule.line}"
        for check in self_check(*results)
        for rule in check.rules
        if rule.met is False and (closed or rule.division != CLOSED)
    ]


def _check(rules: Sequence[Rule], subject: TrainingRuns | CheckpointRuns, accelerators: int) -> Check:
    outcomes = []
    for rule in rules:
        value, met = rule.check(subject)
        asks = rule.asks.format(subject=subject)
        outcomes.append(Outcome(rule.number, rule.name, rule.division, value, asks, met))
    return Check(version=VERSION, accelerators=accelerators, rules=tuple(outcomes))
