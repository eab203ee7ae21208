"""Check a result against MLPerf Storage's rules for OPEN and CLOSED.

A check considers the steps that ran and the bytes that were read, not the workload's parameters. This is a
self-check: a submission needs MLPerf's own code and review, and some rules concern facts in no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

from emulator.config.catalog import names
from emulator.config.checkpoint import data_parallel, load_checkpoint_model, total
from emulator.config.workload import Workload, load_workload, stored_workload
from emulator.dataset.sizes import MEMORY_FACTOR, MIN_STEPS
from emulator.errors import SpecError
from emulator.record.result import Point, RunResult
from emulator.units import counted, show_bytes

Division = Literal["open and closed", "closed"]
BOTH: Division = "open and closed"
CLOSED: Division = "closed"

RUNS = 5
"""Runs that count, after one warm-up run."""
SPREAD_PERCENT = 5
"""Most percent of the mean by which throughputs of the runs that count may differ."""
CHECKPOINTS = 10
"""Checkpoints to write and to read."""
CHECKPOINT_MEMORY = 3
"""Bytes of a host's part of a checkpoint / its memory, above which no cache can hold the part."""
ACCELERATOR_MEMORY = 80 * 2**30
"""Bytes of memory of one accelerator."""
PAUSE_SECONDS = 30
"""Longest pause in seconds, for clearing caches, between a run of writes and one of reads."""
RANKS_OF_A_HOST = 5
"""Fewest ranks of a host in a checkpoint run."""
_FIXED = {
    "sample": ("bytes_mean", "bytes_sd"),
    "access": ("columns",),
    "loader": ("batch_size",),
    "accelerator": ("step_seconds",),
    "training": ("epochs", "sync", "au_threshold"),
}
"""Keys that neither division may change, by section of a workload."""

Answer = tuple[str, bool | None]
"""Finding as text, and whether the rule is met; None if not recorded."""


@dataclass(frozen=True, slots=True)
class Version:
    """The workloads of one version of the rules."""

    workloads: Mapping[str, tuple[str, ...]]
    """Accelerators by trained model."""
    subsets: tuple[str, ...] = ()
    """Models of which only 8 ranks may be checkpointed."""
    withdrawn: tuple[str, ...] = ()
    """Models that were removed from the version."""
    saved: tuple[str, ...] = ()
    """Models whose training writes a checkpoint."""
    checker: str = ""
    """MLPerf's program that these verdicts were compared with, rule by rule (results/mlperf-rules.md)."""

    @property
    def listed(self) -> str:
        return "; ".join(f"{model} on {' or '.join(made)}" for model, made in self.workloads.items())


_V1_WORKLOADS = dict.fromkeys(("unet3d", "resnet50", "cosmoflow"), ("a100", "h100"))
VERSIONS = {
    "v1.0": Version(_V1_WORKLOADS, saved=("unet3d",)),
    "v2.0": Version(
        _V1_WORKLOADS, subsets=("llama3-8b", "llama3-70b", "llama3-405b", "llama3-1t"), saved=("unet3d",)
    ),
    "v3.0": Version(
        {"unet3d": ("b200",), "retinanet": ("b200", "mi355")},
        subsets=("llama3-8b",),  # by the chairs: mlcommons/storage #841
        withdrawn=("dlrm", "flux"),
        checker="mlpstorage 3.0.26, github.com/hazemawadalla/storage a56caeaf79fa (2026-07-01)",
    ),
}
"""Versions by name, ascending."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, with its section in each version."""

    sections: tuple[str | None, str | None, str | None]
    """Section of Submission_guidelines.md in v1.0, v2.0 and v3.0: empty for a rule of feedrate's, None if
    the version does not have the rule."""
    division: Division
    name: str
    asks: str
    """Requirement, as a format string with `version`, `subject` and `subsets`."""
    check: Callable[[Any], Answer]
    """Function of the subject: TrainingRuns or CheckpointRun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one rule."""

    number: str
    """Section of the rules; empty for a rule of feedrate's."""
    name: str
    division: Division
    value: str
    threshold: str
    met: bool | None
    """None if the result does not record it."""

    @property
    def line(self) -> str:
        word = {True: "met", False: "NOT MET", None: "unknown"}[self.met]
        number = f"{self.number}, " if self.number else ""
        return f"{word:8} {self.name}: {self.value} (required: {self.threshold}; {number}{self.division})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of all rules of a version for one accelerator count."""

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
        opened, closed = (
            "every rule met" if met else "not every rule met" for met in (self.open, self.closed)
        )
        first = f"{self.accelerators} accelerators, rules of {self.version}: OPEN: {opened}; CLOSED: {closed}"
        return [first, *(f"  {rule.line}" for rule in self.rules)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """One run of a set, with None for facts that are not recorded."""

    point: Point
    au: float
    """Published AU, to which the rule applies, if there is one."""
    seed: int | None
    saved: bool | None
    """True when the training wrote a checkpoint."""
    memory: int | None
    """Bytes of memory of all hosts."""
    size: int | None
    """Bytes of the dataset."""
    samples_per_file: int | None
    version: str | None
    """Version of an imported run; empty for a run of feedrate's."""


class TrainingRuns:
    """Runs with one accelerator count in several results, in their order."""

    def __init__(
        self, version: Version, results: Sequence[RunResult], accelerators: int, au: Sequence[float] | None
    ) -> None:
        self.version = version
        self.result = results[-1]
        self.accelerators = accelerators
        self.workload = stored_workload(self.result.workload)
        self.au_percent = 100 * self.workload.training.au_threshold
        """AU that the workload asks for."""
        self.runs = [
            _trained_run(result, number, None if au is None else au[number])
            for result in results
            for number, point in enumerate(result.points)
            if point.ranks == accelerators
        ]
        self.points = [run.point for run in self.runs]
        self.counted = self.runs[-RUNS:]
        self.model, self.accelerator = model_and_accelerator(self.workload.name)
        name = f"{self.model}-{self.accelerator}"
        known = load_workload(name) if name in names("workloads") else None
        self.published = known if known and known.accelerator.provenance in ("published", "scaled") else None
        """The workload as MLPerf publishes it; None if it is not one of theirs."""


def model_and_accelerator(name: str) -> tuple[str, str]:
    """Split a workload's name: unet3d and a100 of unet3d-a100-v04."""
    model, accelerator, *_ = [*name.replace("_", "-").split("-"), ""]
    return model, accelerator


def _imported(result: RunResult) -> Sequence[Mapping[str, Any]]:
    """Return the facts that an import states for each run; empty for feedrate's results."""
    imported = result.environment.get("imported")
    return imported if isinstance(imported, list) else []


def _trained_run(result: RunResult, number: int, au: float | None) -> TrainedRun:
    """Return the facts of point `number`, which an import states for each run."""
    point = result.points[number]
    imported = _imported(result)
    if len(imported) == len(result.points):
        facts: Mapping[str, Any] = imported[number]
    else:
        memory = result.environment.get("memory_of_hosts") or {}
        hosts = [memory.get(host.host, 0) for host in point.hosts]
        facts = {
            "seed": result.workload["training"]["shuffle_seed"] + number,
            "saved": False,
            "memory_bytes": sum(hosts) if hosts and all(hosts) else None,
            "dataset_bytes": result.dataset.get("bytes"),
            "samples_per_file": result.dataset.get("samples_per_file"),
            "version": "",
        }
    return TrainedRun(
        point=point,
        au=facts.get("au_published", point.au if au is None else au),
        seed=facts.get("seed"),
        saved=facts.get("saved"),
        memory=facts.get("memory_bytes"),
        size=facts.get("dataset_bytes"),
        samples_per_file=facts.get("samples_per_file"),
        version=facts.get("version"),
    )


def _of_published(compare: Callable[[TrainingRuns, Workload], Answer]) -> Callable[..., Answer]:
    """Turn a comparison with the published workload into a check that fails if there is none."""

    def check(runs: TrainingRuns) -> Answer:
        if runs.published is None:
            return f"{runs.workload.name} is not one of its workloads", False
        return compare(runs, runs.published)

    return check


def _workload(runs: TrainingRuns) -> Answer:
    name = runs.workload.name
    if runs.model in runs.version.withdrawn:
        return f"{name}: withdrawn from this version", False
    return name, runs.accelerator in runs.version.workloads.get(runs.model, ())


def _steps_per_epoch(runs: TrainingRuns) -> Answer:
    steps = min(point.steps / max(1, point.epochs) for point in runs.points)
    return f"{steps:g} were run", steps >= MIN_STEPS


def _memory(runs: TrainingRuns) -> Answer:
    known = [(run.size, run.memory) for run in runs.runs if run.size and run.memory]
    if len(known) < len(runs.runs):
        return "dataset, or the memory of every host, is not recorded", None
    size, memory = min(known, key=lambda pair: pair[0] / pair[1])
    # mlpstorage_py/rules/utils.py, calculate_training_data_size: files = 5 x memory // bytes of a file, with
    # memory in bytes. Its submission checker does not round down, and may refuse what is accepted here.
    file = max(run.samples_per_file or 1 for run in runs.runs) * runs.workload.sample.bytes_mean
    digits = 3 if abs(size / memory - MEMORY_FACTOR) > 0.01 else 10
    value = f"{size / memory:.{digits}g} x ({show_bytes(size)} of {show_bytes(memory)})"
    return value, size + file > MEMORY_FACTOR * memory


def _one_set(runs: TrainingRuns) -> Answer:
    """Compare hosts, version and dataset of the runs."""
    facts: dict[str, set[Any]] = {
        "versions": {run.version for run in runs.runs},
        "samples a file:": {run.samples_per_file for run in runs.runs},
        "bytes:": {run.size for run in runs.runs},
    }
    hosts = [{host.host for host in point.hosts} for point in runs.points]
    numbers = set(map(len, hosts))
    changed = set().union(*hosts) - hosts[0].intersection(*hosts)
    known: dict[str, set[Any]] = {"hosts:": numbers if len(numbers) > 1 else changed}
    known |= {what: {value for value in values if value} for what, values in facts.items()}
    differ = [
        f"{what} {' and '.join(map(str, sorted(values)))}"
        for what, values in known.items()
        if len(values) > 1
    ]
    if differ:
        return "; ".join(differ), False
    recorded = not any(None in values for values in facts.values())
    recorded = recorded and all(point.hosts for point in runs.points)
    return ("the same", True) if recorded else ("not recorded for every run", None)


def _separate(subject: TrainingRuns | CheckpointRun) -> Answer:
    """Compare the mounts of dataset and results, by `df` or v3.0's fs_separation.json."""
    environment = subject.result.environment
    if imported := _imported(subject.result):
        same = [run["same_filesystem"] for run in imported if run.get("same_filesystem") is not None]
        value = f"{'one' if any(same) else 'two'}, by {len(same)} of {counted(len(imported), 'run')}"
        return (value, not any(same)) if same else ("not recorded", None)
    mount = environment.get("dataset_mount") or environment.get("mount") or {}
    out = environment.get("out_mount") or {}
    if not (mount and out):
        return "not recorded", None
    apart = mount.get("mount") != out.get("mount")
    return f"{mount.get('mount') or mount.get('source')} and {out.get('mount')}", apart


def _runs(runs: TrainingRuns) -> Answer:
    enough = len(runs.runs) >= RUNS
    if enough and "--resume" in runs.result.command:
        return f"{len(runs.runs)}, but the sweep was resumed: perhaps not one after the other", None
    return f"{len(runs.runs)}", enough


def _warm_up(runs: TrainingRuns) -> Answer:
    more = len(runs.runs) - RUNS
    return (f"{more} more runs", more == 1) if more > 0 else ("none in this result", None)


def _utilization(runs: TrainingRuns) -> Answer:
    # min() may skip a NaN, and give 0.95 for 0.95 and "not measured".
    if any(math.isnan(run.au) for run in runs.counted):
        return "not measured in every run: too few steps", None
    lowest = min(run.au for run in runs.counted)
    return f"lowest {lowest * 100:.2f} %", lowest >= runs.workload.training.au_threshold


def _spread(runs: TrainingRuns) -> Answer:
    rates = [run.point.samples_per_second for run in runs.counted]
    mean = sum(rates) / len(rates)
    percent = 100 * (max(rates) - min(rates)) / mean if mean else 0.0
    if len(rates) < RUNS or math.isnan(percent):
        return f"{percent:.2f} %", None
    return f"{percent:.2f} %", percent <= SPREAD_PERCENT


def _seeds(runs: TrainingRuns) -> Answer:
    seeds = [run.seed for run in runs.counted]
    if None in seeds:
        return "not recorded", None
    return f"{len(set(seeds))} in {len(seeds)} runs", len(set(seeds)) == len(seeds)


def _same_on_every_host(runs: TrainingRuns) -> Answer:
    ranks = sorted({host.ranks for host in runs.points[-1].hosts})
    if not ranks:
        return "not recorded", None
    return " to ".join(dict.fromkeys((str(ranks[0]), str(ranks[-1])))), len(ranks) == 1


def _storage_as_it_is(runs: TrainingRuns) -> Answer:
    storage = runs.result.storage
    shaped = storage.get("shaped_rate") is not None or bool(storage.get("noise"))
    return "emulated, or beside noise" if shaped else "as it is", not shaped


def _whole_epochs(runs: TrainingRuns) -> Answer:
    """Check that as many epochs ran as published, each with all steps of the dataset."""
    dataset = runs.result.dataset
    if "files" not in dataset or "samples_per_file" not in dataset:
        return "files and samples of the dataset are not recorded", None
    samples = int(dataset.get("samples") or dataset["files"] * dataset["samples_per_file"])
    steps = samples // (runs.workload.loader.batch_size * runs.accelerators)
    epochs = (runs.published or runs.workload).training.epochs
    fewest = min((point.epochs, point.steps) for point in runs.points)
    whole = all(point.epochs == epochs and point.steps >= epochs * steps for point in runs.points)
    return f"{fewest[0]} with {fewest[1]:,} of {epochs * steps:,} steps in all", whole


@_of_published
def _bytes_read(runs: TrainingRuns, published: Workload) -> Answer:
    """Compare the mean sample that was read, within 1 % and three standard errors."""
    expected, sd = published.sample_read.bytes_mean, published.sample_read.bytes_sd
    samples = [point.samples for point in runs.points if point.samples]
    if not samples:
        return "nothing was read", False
    means = [point.bytes / point.samples for point in runs.points if point.samples]
    furthest = max(means, key=lambda mean: abs(mean - expected))
    room = 0.01 * expected + 3 * sd / min(samples) ** 0.5
    return f"{furthest:,.0f} bytes each, published: {expected:,}", abs(furthest - expected) <= room


@_of_published
def _spread_of_sizes(runs: TrainingRuns, published: Workload) -> Answer:
    sample = published.sample
    spread = runs.result.dataset.get("file_bytes_sd")
    if sample.samples_per_file > 1:
        return "files of many samples", True
    if spread is None:
        return "not recorded", None
    value = f"sd {spread:,.0f} bytes, published: {sample.bytes_sd:,}"
    # DLIO draws a product of two normals, a third narrower than its YAML says.
    return value, 0.6 * sample.bytes_sd <= spread <= 1.1 * sample.bytes_sd + 0.01 * sample.bytes_mean


@_of_published
def _parameters(runs: TrainingRuns, published: Workload) -> Answer:
    """Compare what both divisions fix. OPEN may change the format, samples per file and data loader."""
    used, known = asdict(runs.workload), asdict(published)
    keys = [(section, key) for section, keys in _FIXED.items() for key in keys]
    differ = [f"{section}.{key}" for section, key in keys if used[section][key] != known[section][key]]
    return (", ".join(differ) + " differ", False) if differ else ("as published", True)


def _saved(runs: TrainingRuns) -> Answer:
    if runs.model not in runs.version.saved:
        return "none, as published", True
    saved = [run.saved for run in runs.runs]
    if False in saved:
        return "not every run wrote one", False
    return ("not recorded", None) if None in saved else ("every run wrote one", True)


@_of_published
def _format(runs: TrainingRuns, published: Workload) -> Answer:
    form, wanted = str(runs.result.dataset.get("format", "")), published.sample.format
    return f"{form or 'not recorded'}, published: {wanted}", form == wanted if form else None


@_of_published
def _samples_per_file(runs: TrainingRuns, published: Workload) -> Answer:
    wanted, counts = published.sample.samples_per_file, [run.samples_per_file for run in runs.runs]
    if None in counts:
        return f"not recorded, published: {wanted:,}", None
    shown = " and ".join(f"{each:,}" for each in dict.fromkeys(counts) if each)
    return f"{shown}, published: {wanted:,}", set(counts) == {wanted}


def _loader(runs: TrainingRuns) -> Answer:
    return runs.result.loader, runs.result.loader != "direct"


class CheckpointRun:
    """Results of the kind `checkpoint`, imported or feedrate's, as one run."""

    def __init__(self, version: Version, results: Sequence[RunResult]) -> None:
        self.version = version
        made = tuple(checkpoint for result in results for checkpoint in result.checkpoints)
        self.result = result = replace(results[-1], checkpoints=made)
        self.runs = _imported(result) or [{}] * len(results)
        """The facts that an import states for each run; empty for feedrate's."""
        self.first = made[0]
        self.ranks = self.first.ranks
        self.subset = bool(result.workload["subset"])
        parallelism = result.workload["parallelism"]
        self.name = str(result.workload["name"])
        self.group: int = parallelism["tensor"] * parallelism["pipeline"]
        """Ranks that hold one copy of the model."""
        self.closed_ranks: int = 8 if self.subset else self.group * parallelism["data"]
        """Ranks that CLOSED requires."""


def _whole_sizes(run: CheckpointRun) -> Answer:
    """Compare the written bytes, within 2 %, with those by the published shapes."""
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


def _subset(run: CheckpointRun) -> Answer:
    if not run.subset:
        return "all ranks", True
    return f"{run.ranks} ranks of {run.name}", run.name in run.version.subsets and run.ranks == 8


def _accelerator_memory(run: CheckpointRun) -> Answer:
    size, memory = run.first.bytes, run.ranks * ACCELERATOR_MEMORY
    return f"{show_bytes(size)} in {show_bytes(memory)}", size <= memory


def _checkpoints(run: CheckpointRun) -> Answer:
    directions = [checkpoint.direction for checkpoint in run.result.checkpoints]
    written, read = directions.count("write"), directions.count("read")
    return f"{written} written, {read} read", written == read == CHECKPOINTS


def _synced(run: CheckpointRun) -> Answer:
    if run.result.loader == "checkpoint":
        return "files and folder", True  # feedrate checkpoint always syncs both
    synced = {one.get("fsync") for one in run.runs}
    if False in synced:
        return "not in every run", False
    return ("by every run's configuration", True) if synced == {True} else ("not recorded", None)


def _pause(run: CheckpointRun) -> Answer:
    """Compare the time from the end of a run to the start of the next, as in MLPerf's checker."""
    if len(run.runs) == 1:
        return "one run", True
    gaps = []
    for before, after in pairwise(run.runs):
        if not (before.get("end") and after.get("start")):
            return "not recorded for every run", None
        begun, ended = (datetime.fromisoformat(str(when)) for when in (after["start"], before["end"]))
        gaps.append((begun - ended).total_seconds())
    return f"{max(gaps):.1f} s", min(gaps) >= 0 and max(gaps) <= PAUSE_SECONDS


def _cold(run: CheckpointRun) -> Answer:
    """Require that caches are cleared or bypassed, unless a host's part is too large for its memory."""
    cache, memory = str(run.result.storage.get("cache")), run.result.environment.get("memory_of_hosts") or {}
    if cache == "cold":
        return cache, True
    if not memory or len(memory) != run.first.hosts:
        return f"{cache}, memory of the hosts not recorded", None
    share = run.first.bytes / run.first.hosts / max(memory.values())
    value = f"{cache}, {share:.3g} x memory on a host"
    if share >= CHECKPOINT_MEMORY:
        return value, True
    return value, None if cache == "unknown" else False


def _ranks_in_groups(run: CheckpointRun) -> Answer:
    return str(run.ranks), run.ranks % run.group == 0 or run.subset


def _ranks(run: CheckpointRun) -> Answer:
    return str(run.ranks), run.ranks == run.closed_ranks


def _ranks_of_a_host(run: CheckpointRun) -> Answer:
    each = run.ranks / run.first.hosts
    return f"{each:g}", each >= RANKS_OF_A_HOST


_BOTH_KINDS = f"{CHECKPOINTS} and {CHECKPOINTS}"
_MEMORY_NAME = "dataset / memory of all client hosts"
_SPREAD = f"at most {SPREAD_PERCENT} %, {RUNS} runs"
_CACHES = f"cold, or {CHECKPOINT_MEMORY} x the memory of a host"
_GROUPS = "a multiple of {subject.group}, or 8 of a subset"
_HOST_RANKS = f"at least {RANKS_OF_A_HOST}"
_APART = "results on a file system of their own"
_OWN = ("", "", "")
_ANY = ("6", "10.2", "3.6.2, 3.6.3")
_CLOSED = ("6", "10.2", "3.6.2")

# v3.0's text has no rules on the spread of runs and on seeds, so v2.0's are kept.
TRAINING = (
    Rule(("1", "2.1", "2.1.11"), BOTH, "workload and accelerator", "{version.listed}", _workload),
    Rule(("3", "7", "3.1.2"), BOTH, "steps an epoch", f"at least {MIN_STEPS}", _steps_per_epoch),
    Rule(("3", "6.6", "3.1.2"), BOTH, _MEMORY_NAME, f"at least {MEMORY_FACTOR} x, in whole files", _memory),
    Rule(_OWN, BOTH, "one set", "the same hosts, version and dataset in every run", _one_set),
    Rule((None, None, "3.4.2"), BOTH, "file systems", _APART, _separate),
    Rule(("2", "6.6", "2.1.17"), BOTH, "runs", f"{RUNS}, one after the other", _runs),
    Rule(("2", "6.6", "2.1.17"), BOTH, "warm-up run before them", "1", _warm_up),
    Rule(("1", "4", "3.3.2"), BOTH, "AU of every run", "at least {subject.au_percent:g} %", _utilization),
    Rule(("2", "6.7", ""), BOTH, "spread of the runs' throughput", _SPREAD, _spread),
    Rule(("2", "6.6", ""), BOTH, "shuffle seeds", "a different one for every run", _seeds),
    Rule(("5", "9", "3.3.6"), BOTH, "accelerators on a host", "the same on every host", _same_on_every_host),
    Rule(_OWN, BOTH, "storage", "as it is", _storage_as_it_is),
    Rule(_ANY, BOTH, "epochs that were run", "whole ones, as many as published", _whole_epochs),
    Rule(("3", *_ANY[1:]), BOTH, "samples that were read", "the published ones", _bytes_read),
    Rule(_ANY, BOTH, "spread of sizes", "the published one", _spread_of_sizes),
    Rule(_ANY, BOTH, "parameters of the workload", "as published", _parameters),
    Rule(_ANY, BOTH, "checkpoint of the training", "as published", _saved),
    Rule(_CLOSED, CLOSED, "format of the dataset", "the published one", _format),
    Rule(_CLOSED, CLOSED, "samples of a file", "as many as published", _samples_per_file),
    Rule(_CLOSED, CLOSED, "data loader", "the framework's", _loader),
)
CHECKPOINTING = (
    Rule((None, "2.2.1", "4.3.3"), BOTH, "sizes", "1, the whole sizes", _whole_sizes),
    Rule((None, "2.2.2", "4.3.5"), BOTH, "subset", "8 ranks of {subsets}, or no subset", _subset),
    Rule((None, None, "4.3.4"), BOTH, "accelerators' memory", "holds a checkpoint", _accelerator_memory),
    Rule((None, "2.2.5", None), BOTH, "checkpoints", _BOTH_KINDS, _checkpoints),
    Rule((None, None, "4.7.1"), CLOSED, "checkpoints", _BOTH_KINDS, _checkpoints),
    Rule((None, None, "4.7.1"), BOTH, "pause between runs", f"at most {PAUSE_SECONDS} s", _pause),
    Rule((None, "2.2.2", "4.3.2"), BOTH, "fsync", "synced before a write ends", _synced),
    Rule((None, "2.2.2", "4.3.1"), BOTH, "caches", _CACHES, _cold),
    Rule((None, None, "4.4.2"), BOTH, "file systems", _APART, _separate),
    Rule((None, "2.2.5", "4.6.4"), BOTH, "ranks in groups", _GROUPS, _ranks_in_groups),
    Rule((None, "2.2.1", "4.6.1"), CLOSED, "ranks", "{subject.closed_ranks}", _ranks),
    Rule((None, "2.2.1", "4.6.2"), CLOSED, "ranks of a host", _HOST_RANKS, _ranks_of_a_host),
)


def version_for(result: RunResult) -> str:
    """Return the newest version of imported runs, else the newest with the workload, else the newest."""
    versions = [run.get("version") for run in _imported(result)]
    if known := [name for name in VERSIONS if name in versions]:
        return known[-1]
    if result.kind != "checkpoint":
        model, accelerator = model_and_accelerator(str(result.workload["name"]))
        for name, version in reversed(VERSIONS.items()):
            if model in version.withdrawn or accelerator in version.workloads.get(model, ()):
                return name
    return max(VERSIONS)


def self_check(*results: RunResult, version: str = "", au: Sequence[float] | None = None) -> list[Check]:
    """Check a set of runs by the rules of `version` (empty: `version_for`), by ascending accelerator count.

    `results` are of one kind and workload, in the order of their start. `au` is the AU of each point of one
    result by MLPerf's formula, the mean over its epochs. The default is the point's own, over all epochs, or
    that of an imported run. Raises SpecError if the version has no such rules.
    """
    version = version or version_for(results[-1])
    if version not in VERSIONS:
        raise SpecError(f"unknown version of the rules: {version!r}", f"known: {', '.join(VERSIONS)}")
    if results[-1].kind == "checkpoint":
        run = CheckpointRun(VERSIONS[version], results)
        return [_check(version, CHECKPOINTING, run, run.ranks)]
    counts = sorted({point.ranks for result in results for point in result.points})
    runs = [TrainingRuns(VERSIONS[version], results, count, au) for count in counts]
    return [_check(version, TRAINING, each, each.accelerators) for each in runs]


def broken(results: Sequence[RunResult], version: str, closed: bool) -> list[str]:
    """Return a line for each rule that the set of runs does not meet. NaN, as in a plan, breaks no rule."""
    return [
        f"{check.accelerators} accelerators: {rule.line}"
        for check in self_check(*results, version=version)
        for rule in check.rules
        if rule.met is False and (closed or rule.division != CLOSED)
    ]


def rules_of(version: str, rules: tuple[Rule, ...]) -> list[tuple[str, Rule]]:
    """Return the rules that `version` has, each with its section."""
    at = list(VERSIONS).index(version)
    return [(section, rule) for rule in rules if (section := rule.sections[at]) is not None]


def _check(version: str, rules: tuple[Rule, ...], subject: TrainingRuns | CheckpointRun, count: int) -> Check:
    known = subject.version
    outcomes = []
    for section, rule in rules_of(version, rules):
        value, met = rule.check(subject)
        asks = rule.asks.format(subject=subject, version=known, subsets=" or ".join(known.subsets))
        outcomes.append(
            Outcome(
                number=section, name=rule.name, division=rule.division, value=value, threshold=asks, met=met
            )
        )
    if not outcomes:
        raise SpecError(f"{version} of the rules has no checkpoints", f"use --rules {max(VERSIONS)}")
    return Check(version=version, accelerators=count, rules=tuple(outcomes))
