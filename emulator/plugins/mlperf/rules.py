"""Check a result against MLPerf Storage's rules for OPEN and CLOSED.

A version of the rules is data: its rules, their section numbers and their limits. A check looks at the steps
that were run and the bytes that were read, not at what the workload asks for. This is a self-check: a
submission needs MLPerf's own code and review, and some rules are about things that no file records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from emulator.config.catalog import names
from emulator.config.checkpoint import data_parallel, load_checkpoint_model, total
from emulator.config.workload import load_workload, stored_workload
from emulator.dataset.sizes import MEMORY_FACTOR, MIN_STEPS
from emulator.errors import SpecError
from emulator.record.result import RunResult
from emulator.units import show_bytes

Division = Literal["open and closed", "closed"]
BOTH: Division = "open and closed"
CLOSED: Division = "closed"

_MEMORY = "dataset / memory of all client hosts"
_SPREAD = "at most {limits.spread_percent} %, {limits.runs} runs"
_CACHES = "cold, or {limits.checkpoint_memory} x the memory of a host"
_APART = "results on a file system of their own"
_GROUPS = "a multiple of {subject.group}, or 8 of a subset"

Answer = tuple[str, bool | None]
"""The finding for people, and True when the rule is met; None: not recorded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers and keys of one version of the rules."""

    steps_per_epoch: int
    memory_factor: int
    """Size of the dataset / memory of all client hosts."""
    runs: int
    """Runs that count; those before them warm up."""
    spread_percent: int
    """Largest - smallest throughput of the runs that count, in per cent of the mean."""
    fixed: Mapping[str, tuple[str, ...]]
    """Section of a workload -> keys that neither division may change."""
    checkpoints: int
    """Checkpoints to write, and to read."""
    checkpoint_memory: int
    """Size of a host's part of a checkpoint / its memory, above which no cache can hold it."""
    accelerator_memory: int
    """Bytes of memory of an accelerator that holds its part of the model."""
    ranks_of_a_host: int
    """Fewest ranks of a host in a checkpoint run."""
    workloads: Mapping[str, tuple[str, ...]]
    """Trained model -> accelerators."""
    subsets: tuple[str, ...]
    """Models that may be checkpointed by 8 of their ranks alone."""
    withdrawn: tuple[str, ...] = ()
    """Models that the version once had."""
    saved: tuple[str, ...] = ()
    """Models whose training writes a checkpoint."""

    @property
    def listed(self) -> str:
        """The workloads, for people."""
        return "; ".join(
            f"{model} on {' or '.join(accelerators)}" for model, accelerators in self.workloads.items()
        )

    @property
    def listed_subsets(self) -> str:
        """The models that may be subsets, for people."""
        return " or ".join(self.subsets)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of one version."""

    number: str
    """Section of the version's Submission_guidelines.md; empty: a rule of feedrate's."""
    name: str
    division: Division
    asks: str
    """The requirement for people: a format string with `limits` and `subject`."""
    check: Callable[[Any, Limits], Answer]
    """Takes the subject, TrainingRuns or CheckpointRun."""


@dataclass(frozen=True, slots=True)
class RuleBook:
    """One version of the rules."""

    limits: Limits
    training: tuple[Rule, ...]
    checkpointing: tuple[Rule, ...]
    """Empty: the version has no such benchmark."""
    checker: str = ""
    """MLPerf's program whose verdicts these were compared with, rule by rule (results/mlperf-rules.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one rule."""

    number: str
    """Section of the rules; empty: a rule of feedrate's."""
    name: str
    division: Division
    value: str
    threshold: str
    met: bool | None
    """None: the result does not record it."""

    @property
    def line(self) -> str:
        word = {True: "met", False: "NOT MET", None: "unknown"}[self.met]
        number = f"{self.number}, " if self.number else ""
        return f"{word:8} {self.name}: {self.value} (asked: {self.threshold}; {number}{self.division})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of all rules of a version for one accelerator count."""

    version: str
    accelerators: int
    rules: tuple[Outcome, ...]

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
        """The check as lines for people."""
        opened, closed = (
            "every rule met" if met else "not every rule met" for met in (self.open, self.closed)
        )
        first = f"{self.accelerators} accelerators, rules of {self.version}: OPEN: {opened}; CLOSED: {closed}"
        return [first, *(f"  {rule.line}" for rule in self.rules)]


class TrainingRuns:
    """The runs of a result with one accelerator count, in their order."""

    def __init__(self, result: RunResult, accelerators: int) -> None:
        self.result = result
        self.accelerators = accelerators
        self.workload = stored_workload(result.workload)
        self.au_percent = 100 * self.workload.training.au_threshold
        """AU that the workload asks for."""
        numbers = [number for number, point in enumerate(result.points) if point.ranks == accelerators]
        self.points = [result.points[number] for number in numbers]
        self.au = [point.au if point.au_here is None else point.au_here for point in self.points]
        """AU of each run, the published one where there is one: the rule is about that."""
        self.seeds: list[int | None] = [*numbers]
        """feedrate gives every point a seed of its own; imported runs state theirs, or do not."""
        self.saved: list[bool | None] = [False for _ in numbers]
        """Whether the training wrote a checkpoint: feedrate's never do; imported runs state it, or do not."""
        self.model, _, accelerator = self.workload.name.replace("_", "-").partition("-")
        self.accelerator = accelerator.partition("-")[0]
        name = f"{self.model}-{self.accelerator}"
        known = load_workload(name) if name in names("workloads") else None
        self.published = known if known and known.accelerator.provenance in ("published", "scaled") else None
        """The workload as MLPerf publishes it; None where it is none of theirs."""
        dataset = result.dataset
        memory: dict[str, int] = result.environment.get("memory_of_hosts") or {}
        hosts = [[memory.get(host.host, 0) for host in point.hosts] for point in self.points]
        self.memory = [sum(own) if own and all(own) else None for own in hosts]
        """Bytes of all hosts of each run; None: not recorded of every one."""
        self.sizes: list[int | None] = [dataset.get("bytes")] * len(numbers)
        """Bytes of each run's dataset."""
        self.each: list[int | None] = [dataset.get("samples_per_file")] * len(numbers)
        """Samples of a file, of each run."""
        self.versions: set[str | None] = set()
        """Versions that imported runs are of; None: their documents do not tell."""
        imported = result.environment.get("imported")
        if isinstance(imported, list) and len(imported) == len(result.points):
            runs = [imported[number] for number in numbers]
            published = [run.get("au_published") or [au] for run, au in zip(runs, self.au, strict=True)]
            self.au = [sum(epochs) / len(epochs) for epochs in published]
            self.seeds = [run.get("seed") for run in runs]
            self.saved = [run.get("saved") for run in runs]
            self.memory = [run.get("memory_bytes") for run in runs]
            self.sizes = [run.get("dataset_bytes") for run in runs]
            self.each = [run.get("samples_per_file") for run in runs]
            self.versions = {run.get("version") for run in runs}


def _workload(runs: TrainingRuns, limits: Limits) -> Answer:
    name = runs.workload.name
    if runs.model in limits.withdrawn:
        return f"{name}: withdrawn from this version", False
    return name, runs.accelerator in limits.workloads.get(runs.model, ())


def _steps_per_epoch(runs: TrainingRuns, limits: Limits) -> Answer:
    steps = min(point.steps / max(1, point.epochs) for point in runs.points)
    return f"{steps:g} were run", steps >= limits.steps_per_epoch


def _whole_epochs(runs: TrainingRuns, limits: Limits) -> Answer:
    """All steps that the dataset has for this many accelerators, in all epochs of the published workload."""
    dataset = runs.result.dataset
    if "files" not in dataset or "samples_per_file" not in dataset:
        return "files and samples of the dataset are not recorded", None
    samples = int(dataset.get("samples") or dataset["files"] * dataset["samples_per_file"])
    steps = samples // (runs.workload.loader.batch_size * runs.accelerators)
    epochs = runs.published.training.epochs if runs.published else runs.workload.training.epochs
    fewest = min((point.epochs, point.steps) for point in runs.points)
    value = f"{fewest[0]} with {fewest[1]:,} steps in all"
    return f"{value} of {epochs * steps:,}", all(
        point.epochs == epochs and point.steps >= epochs * steps for point in runs.points
    )


def _saved(runs: TrainingRuns, limits: Limits) -> Answer:
    if runs.model not in limits.saved:
        return "none, as published", True
    if False in runs.saved:
        return "not every run wrote one", False
    return ("not recorded", None) if None in runs.saved else ("every run wrote one", True)


def _bytes_read(runs: TrainingRuns, limits: Limits) -> Answer:
    """The mean sample that was read, within 1 % and three standard errors of the published one."""
    if runs.published is None:
        return f"{runs.workload.name} is not one of its workloads", False
    expected, sd = runs.published.sample_read.bytes_mean, runs.published.sample_read.bytes_sd
    means = [point.bytes / point.samples for point in runs.points if point.samples]
    if not means:
        return "nothing was read", False
    room = 0.01 * expected + 3 * sd / min(point.samples for point in runs.points if point.samples) ** 0.5
    furthest = max(means, key=lambda mean: abs(mean - expected))
    return f"{furthest:,.0f} bytes each, published: {expected:,}", abs(furthest - expected) <= room


def _format(runs: TrainingRuns, limits: Limits) -> Answer:
    if runs.published is None:
        return f"{runs.workload.name} is not one of its workloads", False
    form, wanted = str(runs.result.dataset.get("format", "")), runs.published.sample.format
    return f"{form or 'not recorded'}, published: {wanted}", form == wanted if form else None


def _samples_per_file(runs: TrainingRuns, limits: Limits) -> Answer:
    if runs.published is None:
        return f"{runs.workload.name} is not one of its workloads", False
    wanted = runs.published.sample.samples_per_file
    if None in runs.each:
        return f"not recorded, published: {wanted:,}", None
    found = " and ".join(f"{each:,}" for each in dict.fromkeys(runs.each) if each)
    return f"{found}, published: {wanted:,}", set(runs.each) == {wanted}


def _loader(runs: TrainingRuns, limits: Limits) -> Answer:
    return runs.result.loader, runs.result.loader != "direct"


def _memory(runs: TrainingRuns, limits: Limits) -> Answer:
    known = [(size, memory) for size, memory in zip(runs.sizes, runs.memory, strict=True) if size and memory]
    if len(known) < len(runs.points):
        return "dataset, or the memory of every host, is not recorded", None
    size, memory = min(known, key=lambda pair: pair[0] / pair[1])
    value = f"{size / memory:.3g} x ({show_bytes(size)} of {show_bytes(memory)})"
    return value, size >= limits.memory_factor * memory


def _one_set(runs: TrainingRuns, limits: Limits) -> Answer:
    """Runs of one set are on the same number of hosts, of one version, over the same dataset."""
    versions = {version for version in runs.versions if version}
    differ = [
        f"{what} {' and '.join(map(str, sorted(found)))}"
        for what, found in (
            ("hosts:", {len(point.hosts) for point in runs.points}),
            ("versions", versions),
            ("samples a file:", {each for each in runs.each if each}),
            ("bytes:", {size for size in runs.sizes if size}),
        )
        if len(found) > 1
    ]
    if differ:
        return "; ".join(differ), False
    told = all(point.hosts for point in runs.points) and None not in {*runs.versions, *runs.each, *runs.sizes}
    return ("the same", True) if told else ("not recorded of every run", None)


def _spread_of_sizes(runs: TrainingRuns, limits: Limits) -> Answer:
    """The spread of sizes: DLIO draws a product of two normals, a third narrower than its YAML says."""
    if runs.published is None:
        return f"{runs.workload.name} is not one of its workloads", False
    sample = runs.published.sample
    spread = runs.result.dataset.get("file_bytes_sd")
    if sample.samples_per_file > 1:
        return "files of many samples", True
    if spread is None:
        return "not recorded", None
    value = f"sd {spread:,.0f} bytes, published: {sample.bytes_sd:,}"
    return value, 0.6 * sample.bytes_sd <= spread <= 1.1 * sample.bytes_sd + 0.01 * sample.bytes_mean


def _separate(subject: TrainingRuns | CheckpointRun, limits: Limits) -> Answer:
    """As `df` tells it: results do not lie in the file system that is measured."""
    environment = subject.result.environment
    mount = environment.get("dataset_mount") or environment.get("mount") or {}
    out = environment.get("out_mount") or {}
    if not (mount and out):
        return "not recorded", None
    apart = mount.get("mount") != out.get("mount")
    return f"{mount.get('mount') or mount['source']} and {out['mount']}", apart


def _runs(runs: TrainingRuns, limits: Limits) -> Answer:
    enough = len(runs.points) >= limits.runs
    if enough and "--resume" in runs.result.command:
        return f"{len(runs.points)}, of a sweep that was resumed: perhaps not one after the other", None
    return f"{len(runs.points)}", enough


def _warm_up(runs: TrainingRuns, limits: Limits) -> Answer:
    more = len(runs.points) - limits.runs
    return (f"{more} more runs", more == 1) if more > 0 else ("none in this result", None)


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
    """OPEN may change format, samples a file and data loader, too; `limits.fixed` nobody may."""
    if runs.published is None:
        return f"{runs.workload.name} is not one of its workloads", False
    own, published = asdict(runs.workload), asdict(runs.published)
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
        self.name = str(result.workload["name"])
        self.group: int = parallelism["tensor"] * parallelism["pipeline"]
        """Ranks that hold the model once."""
        self.closed_ranks: int = 8 if self.subset else self.group * parallelism["data"]
        """Ranks that CLOSED asks for."""


def _whole_sizes(run: CheckpointRun, limits: Limits) -> Answer:
    """The bytes that were written, within 2 % of what the published shapes give."""
    if str(run.result.workload["scale"]) != "1":
        return f"scaled to {run.result.workload['scale']}", False
    if run.name not in names("workloads/checkpoints"):
        return f"{run.name} is not one of its models", False
    model = load_checkpoint_model(run.name)
    try:
        data = data_parallel(model, run.ranks, run.subset)
    except SpecError as error:
        return error.what, False
    expected = total(model, data, run.ranks)
    written = {checkpoint.bytes for checkpoint in run.result.checkpoints}
    value = f"{show_bytes(min(written))} of {show_bytes(expected)}"
    return value, all(abs(size / expected - 1) <= 0.02 for size in written)


def _subset(run: CheckpointRun, limits: Limits) -> Answer:
    if not run.subset:
        return "all ranks", True
    return f"{run.ranks} ranks of {run.name}", run.name in limits.subsets and run.ranks == 8


def _accelerator_memory(run: CheckpointRun, limits: Limits) -> Answer:
    size, memory = run.result.checkpoints[0].bytes, run.ranks * limits.accelerator_memory
    return f"{show_bytes(size)} in {show_bytes(memory)}", size <= memory


def _checkpoints(run: CheckpointRun, limits: Limits) -> Answer:
    directions = [checkpoint.direction for checkpoint in run.result.checkpoints]
    written, read = directions.count("write"), directions.count("read")
    return f"{written} written, {read} read", written == read == limits.checkpoints


def _synced(run: CheckpointRun, limits: Limits) -> Answer:
    if run.result.loader == "checkpoint":
        return "files and folder", True  # feedrate checkpoint always does
    return "not recorded", None


def _cold(run: CheckpointRun, limits: Limits) -> Answer:
    """Caches are cleared or passed by, unless a host's part is larger than what its memory could hold."""
    cache, memory = str(run.result.storage.get("cache")), run.result.environment.get("memory_of_hosts") or {}
    first = run.result.checkpoints[0]
    if cache == "cold":
        return cache, True
    if not memory or len(memory) != first.hosts:
        return f"{cache}, memory of its hosts not recorded", None
    share = first.bytes / first.hosts / max(memory.values())
    value = f"{cache}, {share:.3g} x memory on a host"
    if share >= limits.checkpoint_memory:
        return value, True
    return value, None if cache == "unknown" else False


def _ranks_in_groups(run: CheckpointRun, limits: Limits) -> Answer:
    return str(run.ranks), run.ranks % run.group == 0 or run.subset


def _ranks(run: CheckpointRun, limits: Limits) -> Answer:
    return str(run.ranks), run.ranks == run.closed_ranks


def _ranks_of_a_host(run: CheckpointRun, limits: Limits) -> Answer:
    each = run.ranks / run.result.checkpoints[0].hosts
    return f"{each:g}", each >= limits.ranks_of_a_host


_V1_WORKLOADS = dict.fromkeys(("unet3d", "resnet50", "cosmoflow"), ("a100", "h100"))
_FIXED = {
    "sample": ("bytes_mean", "bytes_sd"),
    "access": ("columns",),
    "loader": ("batch_size",),
    "accelerator": ("step_seconds",),
    "training": ("epochs", "sync", "au_threshold"),
}
_V1 = Limits(
    steps_per_epoch=MIN_STEPS,
    memory_factor=MEMORY_FACTOR,
    runs=5,
    spread_percent=5,
    fixed=_FIXED,
    checkpoints=10,
    checkpoint_memory=3,
    accelerator_memory=80 * 2**30,
    ranks_of_a_host=5,
    workloads=_V1_WORKLOADS,
    subsets=(),
    saved=("unet3d",),
)
_ALL_SUBSETS = ("llama3-8b", "llama3-70b", "llama3-405b", "llama3-1t")


_NUMBERED = ("separate", "held")
"""Rules that only versions with a number for them have."""


def _training(**numbers: str) -> tuple[Rule, ...]:
    """Return the rules of training under the section numbers of one version."""
    return tuple(
        Rule(numbers.get(key, ""), *rule)
        for key, rule in {
            "workload": ("workload and accelerator", BOTH, "{limits.listed}", _workload),
            "steps": ("steps an epoch", BOTH, "at least {limits.steps_per_epoch}", _steps_per_epoch),
            "memory": (_MEMORY, BOTH, "at least {limits.memory_factor} x", _memory),
            "set": ("one set", BOTH, "the same hosts, version and dataset in every run", _one_set),
            "separate": ("file systems", BOTH, _APART, _separate),
            "runs": ("runs", BOTH, "{limits.runs}, one after the other", _runs),
            "warm_up": ("warm-up run before them", BOTH, "1", _warm_up),
            "au": ("AU of every run", BOTH, "at least {subject.au_percent:g} %", _utilisation),
            "spread": ("spread of the runs' throughput", BOTH, _SPREAD, _spread),
            "seeds": ("shuffle seeds", BOTH, "another one for every run", _seeds),
            "hosts": ("accelerators on a host", BOTH, "the same on every host", _same_on_every_host),
            "storage": ("storage", BOTH, "as it is", _storage_as_it_is),
            "epochs": ("epochs that were run", BOTH, "whole ones, as many as published", _whole_epochs),
            "bytes": ("samples that were read", BOTH, "the published ones", _bytes_read),
            "sizes": ("spread of sizes", BOTH, "the published one", _spread_of_sizes),
            "parameters": ("parameters of the workload", BOTH, "as published", _parameters),
            "saved": ("checkpoint of the training", BOTH, "as published", _saved),
            "format": ("format of the dataset", CLOSED, "the published one", _format),
            "file": ("samples of a file", CLOSED, "as many as published", _samples_per_file),
            "loader": ("data loader", CLOSED, "the framework's", _loader),
        }.items()
        if key in numbers or key not in _NUMBERED
    )


def _checkpointing(counted: Division = BOTH, **numbers: str) -> tuple[Rule, ...]:
    """Return the rules of checkpoints under the section numbers of one version.

    `counted` is the division that asks for a number of checkpoints.
    """
    both = "{limits.checkpoints} and {limits.checkpoints}"
    return tuple(
        Rule(numbers.get(key, ""), *rule)
        for key, rule in {
            "sizes": ("sizes", BOTH, "1, the whole sizes", _whole_sizes),
            "subset": ("subset", BOTH, "8 ranks of {limits.listed_subsets}, or no subset", _subset),
            "held": ("accelerators' memory", BOTH, "holds a checkpoint", _accelerator_memory),
            "checkpoints": ("checkpoints", counted, both, _checkpoints),
            "fsync": ("fsync", BOTH, "synced before a write ends", _synced),
            "caches": ("caches", BOTH, _CACHES, _cold),
            "separate": ("file systems", BOTH, _APART, _separate),
            "groups": ("ranks in groups", BOTH, _GROUPS, _ranks_in_groups),
            "ranks": ("ranks", CLOSED, "{subject.closed_ranks}", _ranks),
            "hosts": ("ranks of a host", CLOSED, "at least {limits.ranks_of_a_host}", _ranks_of_a_host),
        }.items()
        if key in numbers or key not in _NUMBERED
    )


VERSIONS = {
    "v1.0": RuleBook(
        _V1,
        _training(
            workload="1",
            steps="3",
            memory="3",
            runs="2",
            warm_up="2",
            au="1",
            spread="2",
            seeds="2",
            hosts="5",
            epochs="6",
            bytes="3",
            sizes="6",
            parameters="6",
            saved="6",
            format="6",
            file="6",
            loader="6",
        ),
        (),
    ),
    "v2.0": RuleBook(
        replace(_V1, subsets=_ALL_SUBSETS),
        _training(
            workload="2.1",
            steps="7",
            memory="6.6",
            runs="6.6",
            warm_up="6.6",
            au="4",
            spread="6.7",
            seeds="6.6",
            hosts="9",
            epochs="10.2",
            bytes="10.2",
            sizes="10.2",
            parameters="10.2",
            saved="10.2",
            format="10.2",
            file="10.2",
            loader="10.2",
        ),
        _checkpointing(
            sizes="2.2.1",
            subset="2.2.2",
            checkpoints="2.2.5",
            fsync="2.2.2",
            caches="2.2.2",
            groups="2.2.5",
            ranks="2.2.1",
            hosts="2.2.1",
        ),
    ),
    "v3.0": RuleBook(
        replace(
            _V1,
            workloads={"unet3d": ("b200",), "retinanet": ("b200", "mi355")},
            subsets=("llama3-70b", "llama3-405b", "llama3-1t"),
            withdrawn=("dlrm", "flux"),
            saved=(),
        ),
        _training(
            workload="2.1.11",
            steps="3.1.2",
            memory="3.1.2",
            runs="2.1.17",
            warm_up="2.1.17",
            au="3.3.2",
            separate="3.4.2",
            hosts="3.3.6",
            epochs="3.6.2, 3.6.3",
            bytes="3.6.2, 3.6.3",
            sizes="3.6.2, 3.6.3",
            parameters="3.6.2, 3.6.3",
            saved="3.6.2, 3.6.3",
            format="3.6.2",
            file="3.6.2",
            loader="3.6.2",
        ),
        _checkpointing(
            counted=CLOSED,
            sizes="4.3.3",
            held="4.3.4",
            subset="4.3.5",
            checkpoints="4.7.1",
            fsync="4.3.2",
            caches="4.3.1",
            separate="4.4.2",
            groups="4.6.4",
            ranks="4.6.1",
            hosts="4.6.2",
        ),
        checker="mlpstorage 3.0.26, github.com/hazemawadalla/storage a56caeaf79fa (2026-07-01)",
    ),
}
"""Name -> version, ascending. v3.0's text has no rule on the spread of runs and on seeds: v2.0's are kept."""


def version_for(result: RunResult) -> str:
    """Return the newest version of imported runs, else the newest with the workload, else the newest."""
    imported = result.environment.get("imported")
    versions = [run.get("version") for run in imported] if isinstance(imported, list) else []
    if known := [name for name in VERSIONS if name in versions]:
        return known[-1]
    if result.kind != "checkpoint":
        model, _, rest = str(result.workload["name"]).replace("_", "-").partition("-")
        for name in reversed(VERSIONS):
            limits = VERSIONS[name].limits
            if model in limits.withdrawn or rest.partition("-")[0] in limits.workloads.get(model, ()):
                return name
    return max(VERSIONS)


def self_check(result: RunResult, version: str = "") -> list[Check]:
    """Check `result` by the rules of `version` (empty: `version_for`), by accelerator count, ascending.

    Raises SpecError when the version has no such rules.
    """
    version = version or version_for(result)
    if version not in VERSIONS:
        raise SpecError(f"there are no rules {version!r}", f"known: {', '.join(VERSIONS)}")
    rules = VERSIONS[version]
    if result.kind == "checkpoint":
        if not rules.checkpointing:
            raise SpecError(f"{version} of the rules has no checkpoints", f"--rules {max(VERSIONS)}")
        run = CheckpointRun(result)
        return [_check(version, rules.checkpointing, run, run.ranks)]
    counts = sorted({point.ranks for point in result.points})
    return [_check(version, rules.training, TrainingRuns(result, count), count) for count in counts]


def _check(version: str, rules: Sequence[Rule], subject: TrainingRuns | CheckpointRun, count: int) -> Check:
    limits = VERSIONS[version].limits
    findings = []
    for rule in rules:
        value, met = rule.check(subject, limits)
        findings.append(
            Outcome(
                number=rule.number,
                name=rule.name,
                division=rule.division,
                value=value,
                threshold=rule.asks.format(subject=subject, limits=limits),
                met=met,
            )
        )
    return Check(version=version, accelerators=count, rules=tuple(findings))
