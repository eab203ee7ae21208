"""Which of MLPerf Storage's rules runs meet, and which not: OPEN and CLOSED, after the rules of v2.0.

A check of one's own. A submission needs MLPerf's code, its review and what no file can show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from emulator.config.catalog import names
from emulator.config.reader import build
from emulator.config.workload import Workload, load_workload
from emulator.dataset.datasize import MEMORY_FACTOR, MIN_STEPS
from emulator.record.result import Point, RunResult
from emulator.units import show_bytes

Division = Literal["open and closed", "closed"]
BOTH: Division = "open and closed"
RUNS = 5
"""Runs that count, after one that does not."""
SPREAD = 0.05
"""Share of the mean within which the runs' throughputs lie."""
FIXED = ("sample.format", "sample.bytes_mean", "sample.bytes_sd", "loader.batch_size",
         "accelerator.step_seconds", "training.epochs", "training.sync", "training.au_threshold")  # fmt: skip
"""Keys that a closed run leaves alone; files, folders, read threads, prefetch, transfer size may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, held against runs."""

    name: str
    division: Division
    value: str
    threshold: str
    met: bool | None
    """None: nothing that was recorded tells."""

    @property
    def line(self) -> str:
        word = {True: "met", False: "NOT MET", None: "unknown"}[self.met]
        asked = f"{self.threshold}; {self.division}"
        return f"{word:8} {self.name}: {self.value} (asked: {asked})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """All rules for one accelerator count."""

    accelerators: int
    rules: tuple[Rule, ...]

    @property
    def open(self) -> bool:
        """Every rule of the open division is known to be met."""
        return all(rule.met for rule in self.rules if rule.division != "closed")

    @property
    def closed(self) -> bool:
        """Every rule is known to be met."""
        return all(rule.met for rule in self.rules)


def self_check(result: RunResult) -> list[Check]:
    """The rules for every accelerator count of `result`, ascending."""
    workload = build(Workload, result.workload)
    counts = sorted({point.ranks for point in result.points})
    return [_check(result, workload, count) for count in counts]


def _check(result: RunResult, workload: Workload, count: int) -> Check:
    numbers = [number for number, point in enumerate(result.points) if point.ranks == count]
    points = [result.points[number] for number in numbers]
    au = [_au(result, number) for number in numbers]
    counted = points[-RUNS:]
    rules = (
        _steps(result, workload, count),
        _memory(result),
        _runs(points),
        _warm_up(points),
        _utilisation(au[-RUNS:], workload.training.au_threshold),
        _spread([point.samples_per_second for point in counted]),
        _seeds(result, numbers[-RUNS:]),
        _even(points[-1]),
        _real(result),
        _parameters(result, workload),
    )
    return Check(accelerators=count, rules=rules)


def _au(result: RunResult, number: int) -> float:
    """As published where it was: that is what the rule is about."""
    about: Sequence[Mapping[str, Any]] = result.environment.get("imported", [])
    if number < len(about) and about[number].get("au_published"):
        published: Sequence[float] = about[number]["au_published"]
        return sum(published) / len(published)
    return result.points[number].au


def _steps(result: RunResult, workload: Workload, count: int) -> Rule:
    samples = int(result.dataset.get("files", 0)) * int(result.dataset.get("samples_per_file", 1))
    steps = samples // (workload.loader.batch_size * count)
    return Rule(
        name="steps an epoch", division=BOTH, value=f"{steps}", threshold=f"at least {MIN_STEPS}",
        met=steps >= MIN_STEPS,
    )  # fmt: skip


def _memory(result: RunResult) -> Rule:
    hosts = result.environment.get("hosts")
    memory = int(result.environment.get("memory_bytes", 0)) * (len(hosts) if isinstance(hosts, list) else 1)
    size = int(result.dataset.get("bytes", 0))
    value = (
        f"{size / memory:.3g} x ({show_bytes(size)} of {show_bytes(memory)})" if memory else "not recorded"
    )
    return Rule(
        name="dataset / memory of all client hosts", division=BOTH, value=value,
        threshold=f"at least {MEMORY_FACTOR} x", met=size >= MEMORY_FACTOR * memory if memory else None,
    )  # fmt: skip


def _runs(points: Sequence[Point]) -> Rule:
    return Rule(
        name="runs", division=BOTH, value=f"{len(points)}", threshold=f"{RUNS}, one after the other",
        met=len(points) >= RUNS,
    )  # fmt: skip


def _warm_up(points: Sequence[Point]) -> Rule:
    more = len(points) - RUNS
    return Rule(
        name="warm-up run before them", division=BOTH,
        value=f"{more} more runs" if more > 0 else "none in this result", threshold="1",
        met=True if more > 0 else None,
    )  # fmt: skip


def _utilisation(au: Sequence[float], threshold: float) -> Rule:
    return Rule(
        name="AU of every run", division=BOTH, value=f"{min(au) * 100:.2f} % at least",
        threshold=f"at least {threshold * 100:g} %", met=min(au) >= threshold,
    )  # fmt: skip


def _spread(rates: Sequence[float]) -> Rule:
    mean = sum(rates) / len(rates)
    spread = (max(rates) - min(rates)) / mean if mean else 0.0
    return Rule(
        name="spread of the runs' throughput", division=BOTH, value=f"{spread * 100:.2f} %",
        threshold=f"at most {SPREAD * 100:g} %, {RUNS} runs",
        met=spread <= SPREAD if len(rates) >= RUNS else None,
    )  # fmt: skip


def _seeds(result: RunResult, numbers: Sequence[int]) -> Rule:
    """feedrate gives every point of a result a seed of its own; imported runs say theirs, or do not."""
    about: Sequence[Mapping[str, Any]] = result.environment.get("imported", [])
    seeds = [about[number].get("seed") for number in numbers] if about else list(numbers)
    known = all(seed is not None for seed in seeds)
    value = f"{len(set(seeds))} in {len(seeds)} runs" if known else "not recorded"
    return Rule(
        name="shuffle seeds", division=BOTH, value=value, threshold="another one for every run",
        met=len(set(seeds)) == len(seeds) if known else None,
    )  # fmt: skip


def _even(point: Point) -> Rule:
    ranks = sorted({host.ranks for host in point.hosts})
    value = " to ".join(dict.fromkeys((str(ranks[0]), str(ranks[-1])))) if ranks else "not recorded"
    return Rule(
        name="accelerators on a host", division=BOTH, value=value,
        threshold="the same on every host", met=len(ranks) == 1 if ranks else None,
    )  # fmt: skip


def _real(result: RunResult) -> Rule:
    shaped = result.storage.get("shaped_rate") is not None or bool(result.storage.get("noise"))
    return Rule(
        name="storage", division=BOTH, value="emulated, or beside noise" if shaped else "as it is",
        threshold="as it is", met=not shaped,
    )  # fmt: skip


def _parameters(result: RunResult, workload: Workload) -> Rule:
    """What a closed run leaves as MLPerf Storage publishes it."""
    name = workload.name.replace("_", "-")
    known = load_workload(name) if name in names("workloads") else None
    if known is None or known.accelerator.provenance not in ("published", "scaled"):
        value, met = f"{workload.name} is none of its workloads", False
    else:
        differ = [key for key in FIXED if _at(workload, key) != _at(known, key)]
        value, met = ", ".join(differ) + " differ" if differ else "as published", not differ
    return Rule(
        name="parameters of the workload", division="closed", value=value, threshold="as published", met=met
    )


def _at(workload: Workload, key: str) -> Any:
    value: Any = asdict(workload)
    for part in key.split("."):
        value = value[part]
    return value


def check_lines(check: Check) -> list[str]:
    """One accelerator count's check, for people."""
    verdict = f"OPEN: {_word(check.open)}; CLOSED: {_word(check.closed)}"
    return [f"{check.accelerators} accelerators: {verdict}", *(f"  {rule.line}" for rule in check.rules)]


def _word(met: bool) -> str:
    return "every rule met" if met else "not every rule met"
