"""MLPerf Storage's rules as a table, and a result held against them: OPEN and CLOSED.

A version of the rules is data: which rules it has, under which number, and with which limits. What a check
computes is in the functions that the table names. This is a self-check: a submission needs MLPerf's own code
and review, and there are rules about things that no file shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from emulator.config.catalog import names
from emulator.config.reader import build
from emulator.config.workload import Workload, load_workload
from emulator.dataset.sizes import MEMORY_FACTOR, MIN_STEPS
from emulator.record.result import RunResult
from emulator.units import show_bytes

Division = Literal["open and closed", "closed"]
BOTH: Division = "open and closed"
CLOSED: Division = "closed"

_MEMORY = "dataset / memory of all client hosts"
_SPREAD = "at most {limits.spread_percent} %, {limits.runs} runs"
_GROUPS = "a multiple of {subject.group}, or 8 of a subset"

Answer = tuple[str, bool | None]
"""What was found, for people, and whether the rule is met; None: nothing that was recorded tells."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers and keys of one version of the rules."""

    steps_per_epoch: int
    memory_factor: int
    """Size of the dataset / memory of all client hosts."""
    runs: int
    """Runs that count; what comes before them warms up."""
    spread_percent: int
    """Largest - smallest throughput of the runs that count, in per cent of the mean."""
    fixed: Mapping[str, tuple[str, ...]]
    """Section of a workload -> keys that CLOSED leaves as published."""
    checkpoints: int
    """Checkpoints that are written, and that are read."""
    ranks_of_a_host: int
    """In a checkpoint run."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of one version."""

    number: str
    """Section of the version's Submission_guidelines.md; empty: feedrate's own."""
    name: str
    division: Division
    asks: str
    """What it asks, for people: a format with the names `limits` and `subject`."""
    check: Callable[[Any, Limits], Answer]
    """Takes the subject, TrainingRuns or CheckpointRun."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the rules."""

    limits: Limits
    training: tuple[Rule, ...]
    checkpointing: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule says of a result."""

    name: str
    division: Division
    value: str
    threshold: str
    met: bool | None
    """None: nothing that was recorded tells."""

    @property
    def line(self) -> str:
        word = {True: "met", False: "NOT MET", None: "unknown"}[self.met]
        return f"{word:8} {self.name}: {self.value} (asked: {self.threshold}; {self.division})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """All rules for one accelerator count."""

    accelerators: int
    rules: tuple[Finding, ...]

    @property
    def open(self) -> bool:
        """Every rule of the open division is known to be met."""
        return all(rule.met for rule in self.rules if rule.division != CLOSED)

    @property
    def closed(self) -> bool:
        """Every rule is known to be met."""
        return all(rule.met for rule in self.rules)

    @property
    def lines(self) -> list[str]:
        """For people."""
        opened, closed = (
            "every rule met" if met else "not every rule met" for met in (self.open, self.closed)
        )
        first = f"{self.accelerators} accelerators: OPEN: {opened}; CLOSED: {closed}"
        return [first, *(f"  {rule.line}" for rule in self.rules)]


class TrainingRuns:
    """The runs of a result with one accelerator count, in their order."""

    def __init__(self, result: RunResult, accelerators: int) -> None:
        self.result = result
        self.accelerators = accelerators
        self.workload = build(Workload, result.workload)
        self.au_percent = 100 * self.workload.training.au_threshold
        """AU that the workload asks for."""
        numbers = [number for number, point in enumerate(result.points) if point.ranks == accelerators]
        self.points = [result.points[number] for number in numbers]
        self.au = [point.au for point in self.points]
        """As published, where it was: that is what the rule is about."""
        self.seeds: list[int | None] = [*numbers]
        """feedrate gives every point a seed of its own; imported runs state theirs, or do not."""
        imported = result.environment.get("imported")
        if isinstance(imported, list) and len(imported) == len(result.points):
            runs = [imported[number] for number in numbers]
            published = [run.get("au_published") or [au] for run, au in zip(runs, self.au, strict=True)]
            self.au = [sum(epochs) / len(epochs) for epochs in published]
            self.seeds = [run.get("seed") for run in runs]


def _steps_per_epoch(runs: TrainingRuns, limits: Limits) -> Answer:
    dataset = runs.result.dataset
    samples = int(dataset.get("files", 0)) * int(dataset.get("samples_per_file", 1))
    steps = samples // (runs.workload.loader.batch_size * runs.accelerators)
    return f"{steps}", steps >= limits.steps_per_epoch


def _memory(runs: TrainingRuns, limits: Limits) -> Answer:
    hosts = runs.result.environment.get("hosts")
    each = int(runs.result.environment.get("memory_bytes", 0))
    memory = each * (len(hosts) if isinstance(hosts, list) else 1)
    size = int(runs.result.dataset.get("bytes", 0))
    if not memory:
        return "not recorded", None
    value = f"{size / memory:.3g} x ({show_bytes(size)} of {show_bytes(memory)})"
    return value, size >= limits.memory_factor * memory


def _runs(runs: TrainingRuns, limits: Limits) -> Answer:
    return f"{len(runs.points)}", len(runs.points) >= limits.runs


def _warm_up(runs: TrainingRuns, limits: Limits) -> Answer:
    more = len(runs.points) - limits.runs
    return (f"{more} more runs", True) if more > 0 else ("none in this result", None)


def _utilisation(runs: TrainingRuns, limits: Limits) -> Answer:
    lowest = min(runs.au[-limits.runs :])
    return f"{lowest * 100:.2f} % at least", lowest >= runs.workload.training.au_threshold


def _spread(runs: TrainingRuns, limits: Limits) -> Answer:
    rates = [point.samples_per_second for point in runs.points[-limits.runs :]]
    mean = sum(rates) / len(rates)
    percent = 100 * (max(rates) - min(rates)) / mean if mean else 0.0
    return f"{percent:.2f} %", percent <= limits.spread_percent if len(rates) >= limits.runs else None


def _seeds(runs: TrainingRuns, limits: Limits) -> Answer:
    seeds = runs.seeds[-limits.runs :]
    if None in seeds:
        return "not recorded", None
    return f"{len(set(seeds))} in {len(seeds)} runs", len(set(seeds)) == len(seeds)


def _same_on_every_host(runs: TrainingRuns, limits: Limits) -> Answer:
    ranks = sorted({host.ranks for host in runs.points[-1].hosts})
    if not ranks:
        return "not recorded", None
    return " to ".join(dict.fromkeys((str(ranks[0]), str(ranks[-1])))), len(ranks) == 1


def _storage_as_it_is(runs: TrainingRuns, limits: Limits) -> Answer:
    storage = runs.result.storage
    shaped = storage.get("shaped_rate") is not None or bool(storage.get("noise"))
    return "emulated, or beside noise" if shaped else "as it is", not shaped


def _parameters(runs: TrainingRuns, limits: Limits) -> Answer:
    """Files, folders, read threads, prefetch and transfer size may change; `limits.fixed` may not."""
    name = runs.workload.name.replace("_", "-")
    known = load_workload(name) if name in names("workloads") else None
    if known is None or known.accelerator.provenance not in ("published", "scaled"):
        return f"{runs.workload.name} is none of its workloads", False
    own, published = asdict(runs.workload), asdict(known)
    keys = [(section, key) for section, keys in limits.fixed.items() for key in keys]
    differ = [f"{section}.{key}" for section, key in keys if own[section][key] != published[section][key]]
    return (", ".join(differ) + " differ", False) if differ else ("as published", True)


class CheckpointRun:
    """A result of kind `checkpoint`."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        self.ranks = result.checkpoints[0].ranks
        self.subset = bool(result.workload["subset"])
        parallelism = result.workload["parallelism"]
        self.group: int = parallelism["tensor"] * parallelism["pipeline"]
        """Ranks that hold the model once."""
        self.closed_ranks: int = 8 if self.subset else self.group * parallelism["data"]
        """Ranks that CLOSED asks for."""


def _whole_sizes(run: CheckpointRun, limits: Limits) -> Answer:
    scale = str(run.result.workload["scale"])
    return scale, scale == "1"


def _checkpoints(run: CheckpointRun, limits: Limits) -> Answer:
    directions = [checkpoint.direction for checkpoint in run.result.checkpoints]
    written, read = directions.count("write"), directions.count("read")
    return f"{written} written, {read} read", written == read == limits.checkpoints


def _synced(run: CheckpointRun, limits: Limits) -> Answer:
    return "files and folder", True  # feedrate checkpoint always does


def _cold(run: CheckpointRun, limits: Limits) -> Answer:
    cache = str(run.result.storage.get("cache"))
    return cache, cache == "cold"


def _ranks_in_groups(run: CheckpointRun, limits: Limits) -> Answer:
    return str(run.ranks), run.ranks % run.group == 0 or run.subset


def _ranks(run: CheckpointRun, limits: Limits) -> Answer:
    return str(run.ranks), run.ranks == run.closed_ranks


def _ranks_of_a_host(run: CheckpointRun, limits: Limits) -> Answer:
    each = run.ranks / run.result.checkpoints[0].hosts
    return f"{each:g}", each >= limits.ranks_of_a_host


VERSIONS = {
    "v2.0": Version(
        Limits(
            steps_per_epoch=MIN_STEPS,
            memory_factor=MEMORY_FACTOR,
            runs=5,
            spread_percent=5,
            fixed={
                "sample": ("format", "bytes_mean", "bytes_sd"),
                "loader": ("batch_size",),
                "accelerator": ("step_seconds",),
                "training": ("epochs", "sync", "au_threshold"),
            },
            checkpoints=10,
            ranks_of_a_host=5,
        ),
        training=(
            Rule("7", "steps an epoch", BOTH, "at least {limits.steps_per_epoch}", _steps_per_epoch),
            Rule("6.6", _MEMORY, BOTH, "at least {limits.memory_factor} x", _memory),
            Rule("6.6", "runs", BOTH, "{limits.runs}, one after the other", _runs),
            Rule("6.6", "warm-up run before them", BOTH, "1", _warm_up),
            Rule("4", "AU of every run", BOTH, "at least {subject.au_percent:g} %", _utilisation),
            Rule("6.7", "spread of the runs' throughput", BOTH, _SPREAD, _spread),
            Rule("6.6", "shuffle seeds", BOTH, "another one for every run", _seeds),
            Rule("9", "accelerators on a host", BOTH, "the same on every host", _same_on_every_host),
            Rule("", "storage", BOTH, "as it is", _storage_as_it_is),
            Rule("10.1", "parameters of the workload", CLOSED, "as published", _parameters),
        ),
        checkpointing=(
            Rule("2.2.1", "sizes", BOTH, "1, the whole sizes", _whole_sizes),
            Rule("2.2.5", "checkpoints", BOTH, "{limits.checkpoints} and {limits.checkpoints}", _checkpoints),
            Rule("2.2.2", "fsync", BOTH, "synced before a write ends", _synced),
            Rule("2.2.2", "caches", BOTH, "cold: nothing read from memory", _cold),
            Rule("2.2.5", "ranks in groups", BOTH, _GROUPS, _ranks_in_groups),
            Rule("2.2.1", "ranks", CLOSED, "{subject.closed_ranks}", _ranks),
            Rule("2.2.1", "ranks of a host", CLOSED, "at least {limits.ranks_of_a_host}", _ranks_of_a_host),
        ),
    )
}


def self_check(result: RunResult) -> list[Check]:
    """The rules of v2.0 for every accelerator count of `result`, ascending."""
    rules = VERSIONS["v2.0"]
    if result.kind == "checkpoint":
        run = CheckpointRun(result)
        return [_check(rules.checkpointing, run, rules.limits, run.ranks)]
    counts = sorted({point.ranks for point in result.points})
    return [_check(rules.training, TrainingRuns(result, count), rules.limits, count) for count in counts]


def _check(rules: Sequence[Rule], subject: TrainingRuns | CheckpointRun, limits: Limits, count: int) -> Check:
    findings = []
    for rule in rules:
        value, met = rule.check(subject, limits)
        asked = rule.asks.format(subject=subject, limits=limits)
        findings.append(
            Finding(name=rule.name, division=rule.division, value=value, threshold=asked, met=met)
        )
    return Check(accelerators=count, rules=tuple(findings))
