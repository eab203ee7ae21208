"""MLPerf Storage's rules for a set of training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload, stored_workload
from emulator.plugins.mlperf.datasize import MEMORY_FACTOR, MIN_STEPS, needed_data
from emulator.plugins.mlperf.rule import (
    BOTH,
    CLOSED,
    WORKLOADS,
    Answer,
    Rule,
    file_systems,
    model_and_accelerator,
)
from emulator.record.result import Point, RunResult
from emulator.units import counted, show_bytes

RUNS = 5
"""Runs that count, after one warm-up run."""
_FIXED = {
    "sample": ("bytes_mean", "bytes_sd"),
    "access": ("columns",),
    "loader": ("batch_size",),
    "accelerator": ("step_seconds",),
    "training": ("epochs", "sync", "au_threshold"),
}
"""Keys that neither division may change, by section of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a set, with None for facts that are not recorded."""

    point: Point
    au: float
    """Published AU, to which the rule applies, if there is one."""
    memory: int | None
    """Bytes of memory of all hosts, as measured."""
    files: int | None
    samples_per_file: int | None
    version: str | None
    """Version of an imported run; empty for a run of feedrate's."""


class TrainingRuns:
    """Runs with one accelerator count in several results, in their order."""

    def __init__(self, results: Sequence[RunResult], accelerators: int, au: Sequence[float] | None) -> None:
        self.result = results[-1]
        self.accelerators = accelerators
        self.workload = stored_workload(self.result.workload)
        self.au_percent = 100 * self.workload.training.au_threshold
        """AU that the workload asks for."""
        self.runs = [
            _run(result, number, None if au is None else au[number])
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


def _run(result: RunResult, number: int, au: float | None) -> Run:
    """Return the facts of point `number`, which an import states for each run."""
    point, dataset = result.points[number], result.dataset
    imported = result.environment.get("imported")
    facts: Mapping[str, Any]
    if isinstance(imported, list) and len(imported) == len(result.points):
        facts = imported[number]
    else:
        memory = result.environment.get("memory_of_hosts") or {}
        hosts = [memory.get(host.host, 0) for host in point.hosts]
        facts = {
            "memory_bytes": sum(hosts) if hosts and all(hosts) else None,
            "files": dataset.get("files"),
            "samples_per_file": dataset.get("samples_per_file"),
            "version": "",
        }
    return Run(
        point=point,
        au=facts.get("au_published", point.au if au is None else au),
        memory=facts.get("memory_bytes"),
        files=facts.get("files"),
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
    if runs.model in ("cosmoflow", "resnet50", "dlrm", "flux"):
        return f"{name}: only a what-if in this version, in no division", False
    return name, runs.accelerator in WORKLOADS.get(runs.model, ())


def _files(runs: TrainingRuns) -> Answer:
    """Compare the number of files with that of `datasize`, rounded up, by the memory that was measured."""
    if not all(run.files and run.memory for run in runs.runs):
        return "files, or the memory of every host, are not recorded", None
    fewest = min(runs.runs, key=lambda run: (run.files or 0) / (run.memory or 1))
    files, memory, samples_per_file = fewest.files or 0, fewest.memory or 0, fewest.samples_per_file or 1
    needed = needed_data(runs.workload, runs.accelerators, 1, memory)
    needed_files = math.ceil(max(needed.by_memory, needed.by_steps) / samples_per_file)
    by = f"{MIN_STEPS} steps an epoch"
    if needed.by_memory > needed.by_steps:
        by = f"{MEMORY_FACTOR} x {show_bytes(memory)} of memory of all hosts"
    return f"{files:,} of {needed_files:,}, by {by}", files >= needed_files


def _one_set(runs: TrainingRuns) -> Answer:
    """Compare hosts, version and dataset of the runs."""
    hosts = [{host.host for host in point.hosts} for point in runs.points]
    not_in_every_run = set().union(*hosts) - hosts[0].intersection(*hosts)
    differ = [f"hosts: {' and '.join(sorted(not_in_every_run))}"] if not_in_every_run else []
    recorded = all(hosts)
    facts: dict[str, set[Any]] = {
        "versions": {run.version for run in runs.runs},
        "samples a file:": {run.samples_per_file for run in runs.runs},
        "files:": {run.files for run in runs.runs},
    }
    for name, values in facts.items():
        recorded = recorded and None not in values
        stated = sorted(map(str, filter(None, values)))
        if len(stated) > 1:
            differ.append(f"{name} {' and '.join(stated)}")
    if differ:
        return "; ".join(differ), False
    return ("the same", True) if recorded else ("not recorded for every run", None)


def _separate(runs: TrainingRuns) -> Answer:
    imported = runs.result.environment.get("imported")
    if not isinstance(imported, list):
        return file_systems(runs.result)
    same = [run["same_filesystem"] for run in imported if run.get("same_filesystem") is not None]
    if not same:
        return "not recorded", None
    value = f"{'one' if any(same) else 'two'}, by {len(same)} of {counted(len(imported), 'run')}"
    return value, not any(same)


def _runs(runs: TrainingRuns) -> Answer:
    number = len(runs.runs)
    if number == RUNS + 1 and "--resume" in runs.result.command:
        return f"{number}, but the sweep was resumed: perhaps not one after the other", None
    if number == RUNS:
        return f"{number}, without a warm-up run", None
    return f"{number}", number == RUNS + 1


def _utilization(runs: TrainingRuns) -> Answer:
    # min() may skip a NaN, and give 0.95 for 0.95 and "not measured".
    if any(math.isnan(run.au) for run in runs.counted):
        return "not measured in every run: too few steps", None
    lowest = min(run.au for run in runs.counted)
    return f"lowest {lowest * 100:.2f} %", lowest >= runs.workload.training.au_threshold


def _same_on_every_host(runs: TrainingRuns) -> Answer:
    ranks = sorted({host.ranks for host in runs.points[-1].hosts})
    if not ranks:
        return "not recorded", None
    return " to ".join(dict.fromkeys((str(ranks[0]), str(ranks[-1])))), len(ranks) == 1


def _storage_as_it_is(runs: TrainingRuns) -> Answer:
    if runs.result.storage.get("shaped_rate") is not None:
        return "emulated", False
    return "as it is", True


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
    differ = [
        f"{section}.{key}"
        for section, keys in _FIXED.items()
        for key in keys
        if used[section][key] != known[section][key]
    ]
    return (", ".join(differ) + " differ", False) if differ else ("as published", True)


@_of_published
def _closed_parameters(runs: TrainingRuns, published: Workload) -> Answer:
    """Compare what only CLOSED fixes: format, samples per file, and the framework's own loader."""
    form, samples = runs.result.dataset.get("format"), {run.samples_per_file for run in runs.runs}
    if not form or None in samples:
        return "format or samples of a file are not recorded", None
    wanted = published.sample
    differ = [f"format {form} instead of {wanted.format}"] if form != wanted.format else []
    if samples != {wanted.samples_per_file}:
        differ.append(f"samples a file {samples} instead of {wanted.samples_per_file}")
    if runs.result.loader == "direct":
        differ.append("loader direct instead of the framework's")
    return "; ".join(differ) or "as published", not differ


_LISTED = "; ".join(f"{model} on {' or '.join(accelerators)}" for model, accelerators in WORKLOADS.items())
_APART = "results on a file system of their own"

TRAINING = (
    Rule("2.1.11", BOTH, "workload and accelerator", _LISTED, _workload),
    Rule("3.1.2, 3.3.1", BOTH, "files of the dataset", "as many as feedrate datasize says", _files),
    Rule("", BOTH, "one set", "the same hosts, version and dataset in every run", _one_set),
    Rule("3.4.2", BOTH, "file systems", _APART, _separate),
    Rule("2.1.17", BOTH, "runs", "6: a warm-up, and 5 one after the other", _runs),
    Rule("3.3.2", BOTH, "AU of every run", "at least {subject.au_percent:g} %", _utilization),
    Rule("3.3.6", BOTH, "accelerators on a host", "the same on every host", _same_on_every_host),
    Rule("", BOTH, "storage", "as it is", _storage_as_it_is),
    Rule("3.6.2, 3.6.3", BOTH, "epochs that were run", "whole ones, as many as published", _whole_epochs),
    Rule("3.6.2, 3.6.3", BOTH, "samples that were read", "the published ones", _bytes_read),
    Rule("3.6.2, 3.6.3", BOTH, "spread of sizes", "the published one", _spread_of_sizes),
    Rule("3.6.2, 3.6.3", BOTH, "parameters of the workload", "as published", _parameters),
    Rule("3.6.2", CLOSED, "format, samples of a file, loader", "as published", _closed_parameters),
)
