"""MLPerf Storage's rules for checkpoints: one run of writes and reads, or a run of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from emulator.config.catalog import names
from emulator.config.checkpoint import data_parallel, load_checkpoint_model, total
from emulator.errors import SpecError
from emulator.plugins.mlperf.rule import (
    BOTH,
    CLOSED,
    MEMORY,
    Answer,
    Rule,
    declared_accelerator,
    file_systems,
)
from emulator.record.result import RunResult
from emulator.units import show_bytes

_CHECKPOINTS = 10
"""Checkpoints to write and to read."""
_PAUSE_SECONDS = 30
"""Longest pause from the end of the run of writes to the start of the run of reads."""
_RANKS_OF_A_HOST = 4
"""A host must have more ranks than this. Whether as many are enough is undecided (mlcommons/storage #866)."""


class CheckpointRuns:
    """Results of the kind `checkpoint`, in their order."""

    def __init__(self, results: Sequence[RunResult]) -> None:
        self.results = results
        self.result = results[-1]
        self.made = [checkpoint for result in results for checkpoint in result.checkpoints]
        self.ranks, self.hosts = self.made[0].ranks, self.made[0].hosts
        workload = self.result.workload
        self.name = str(workload["name"])
        self.scale = str(workload["scale"])
        self.subset = bool(workload["subset"])
        self.accelerator = declared_accelerator(self.result)
        parallelism = workload["parallelism"]
        self.group: int = parallelism["tensor"] * parallelism["pipeline"]
        """Ranks that hold one copy of the model."""
        self.closed_ranks: int = 8 if self.subset else self.group * parallelism["data"]
        """Ranks that CLOSED requires."""


def _whole_sizes(runs: CheckpointRuns) -> Answer:
    """Compare the written bytes, within 2 %, with those by the published shapes."""
    if runs.scale != "1":
        return f"scaled to {runs.scale}", False
    if runs.name not in names("workloads/checkpoints"):
        return f"{runs.name} is not one of its models", False
    model = load_checkpoint_model(runs.name)
    try:
        expected = total(model, data_parallel(model, runs.ranks, runs.subset), runs.ranks)
    except SpecError as error:
        return error.what, False
    sizes = {checkpoint.bytes for checkpoint in runs.made}
    value = f"{show_bytes(min(sizes))} of {show_bytes(expected)}"
    return value, all(abs(size / expected - 1) <= 0.02 for size in sizes)


def _subset(runs: CheckpointRuns) -> Answer:
    if not runs.subset:
        return "all ranks", True
    return f"{runs.ranks} ranks of {runs.name}", runs.name == "llama3-8b" and runs.ranks == 8


def _accelerator_memory(runs: CheckpointRuns) -> Answer:
    if runs.accelerator not in MEMORY:
        return f"accelerator {runs.accelerator or 'not declared: add --accelerator'}", False
    size, memory = runs.made[0].bytes, runs.ranks * MEMORY[runs.accelerator]
    return f"{show_bytes(size)} in {show_bytes(memory)} of {runs.ranks} {runs.accelerator}", size <= memory


def _checkpoints(runs: CheckpointRuns) -> Answer:
    directions = [checkpoint.direction for checkpoint in runs.made]
    written, read = directions.count("write"), directions.count("read")
    value = f"{written} written, {read} read"
    if {written, read} == {0, _CHECKPOINTS}:
        return f"{value}: half of a set of two runs", None
    return value, written == read == _CHECKPOINTS


def _pause(runs: CheckpointRuns) -> Answer:
    """Compare the time from the end of a run to the moment at which the next was started."""
    pauses = []
    for before, after in pairwise(runs.results):
        started = after.environment.get("invocation_start")
        if not started:
            return "not recorded for every run", None
        ended = datetime.fromisoformat(before.created)
        pauses.append((datetime.fromisoformat(str(started)) - ended).total_seconds())
    if not pauses:
        return "one run", True
    if min(pauses) < 0:
        return f"{min(pauses):.1f} s: the clocks of two hosts differ, or the runs overlap", None
    return f"{max(pauses):.1f} s", max(pauses) <= _PAUSE_SECONDS


def _cold(runs: CheckpointRuns) -> Answer:
    cache = str(runs.result.storage.get("cache"))
    return cache, cache == "cold"


def _ranks_in_groups(runs: CheckpointRuns) -> Answer:
    return str(runs.ranks), runs.ranks % runs.group == 0 or runs.subset


def _ranks(runs: CheckpointRuns) -> Answer:
    return str(runs.ranks), runs.ranks == runs.closed_ranks


def _ranks_of_a_host(runs: CheckpointRuns) -> Answer:
    ranks = runs.ranks / runs.hosts
    if ranks == _RANKS_OF_A_HOST:
        return f"{ranks:g}: by the text too few, but such runs were published (#866, undecided)", None
    return f"{ranks:g}", ranks > _RANKS_OF_A_HOST


_COUNTS = f"{_CHECKPOINTS} written and {_CHECKPOINTS} read, in one run or two"
_GROUPS = "a multiple of {subject.group}, or 8 of a subset"
_MEMORY = f"that of {' or '.join(MEMORY)} holds a checkpoint"
_APART = "results on a file system of their own"

CHECKPOINTING = (
    Rule("4.3.3", BOTH, "sizes", "1, the whole sizes", _whole_sizes),
    Rule("4.3.5", BOTH, "subset", "8 ranks of llama3-8b, or no subset", _subset),
    Rule("4.3.4", BOTH, "accelerators' memory", _MEMORY, _accelerator_memory),
    Rule("4.7.1", CLOSED, "checkpoints", _COUNTS, _checkpoints),
    Rule("4.7.1", BOTH, "pause between runs", f"at most {_PAUSE_SECONDS} s", _pause),
    Rule("4.3.1", BOTH, "caches", "cold", _cold),
    Rule("4.4.2", BOTH, "file systems", _APART, lambda runs: file_systems(runs.result)),
    Rule("4.6.4", BOTH, "ranks in groups", _GROUPS, _ranks_in_groups),
    Rule("4.6.1", CLOSED, "ranks", "{subject.closed_ranks}", _ranks),
    Rule("4.6.2", CLOSED, "ranks of a host", f"more than {_RANKS_OF_A_HOST}", _ranks_of_a_host),
)
