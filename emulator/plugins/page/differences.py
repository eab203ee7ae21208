"""Find the settings and facts about machines in which results differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.record.result import RunResult
from emulator.report.document import facts, in_words, show
from emulator.report.table import Column, Table

SETTINGS = (
    "workload.sample.bytes_mean",
    "workload.sample.format",
    "workload.loader.batch_size",
    "workload.accelerator.step_seconds",
    "workload.accelerator.name",
    "workload.training.sync",
    "workload.training.au_threshold",
    "storage.cache",
    "loader",
    "kind",
    "dataset.bytes",
)
"""Settings; two results differ only by their storage if these are equal."""
MACHINE = (
    "version",
    "environment.python",
    "environment.torch",
    "environment.mpi",
    "environment.kernel",
    "environment.cpu",
    "environment.cores",
    "environment.cpu_limit",
    "environment.governor",
    "environment.numa_nodes",
    "environment.memory_bytes",
    "environment.network",
    "environment.dataset_mount.type",
    "environment.dataset_mount.options",
    "environment.io_scheduler",
    "environment.reads.call",
    "environment.reads.request_bytes",
    "environment.reads.read_ahead_bytes",
)
"""Facts about rank 0's host and its mount."""


def setting(result: RunResult, key: str, missing: object = None) -> Any:
    """Return the value under a dotted key of a result; `missing` if it has none."""
    head, *rest = key.split(".")
    value = getattr(result, head)
    for part in rest:
        value = value.get(part, missing) if isinstance(value, Mapping) else missing
    return value


def differences(named: Sequence[tuple[str, RunResult]]) -> Table:
    """Return a row for each setting or fact that is not the same in all results.

    A fact about machines is left out if one of the results did not record it.
    """
    rows, absent = [], object()
    for key in (*SETTINGS, *MACHINE):
        missing = absent if key in MACHINE else None
        values = [setting(result, key, missing) for _, result in named]
        if absent in values or all(same(values[0], value) for value in values):
            continue
        name = key.removeprefix("workload.").removeprefix("environment.")
        rows.append((in_words(name), *(_shown(key, value) for value in values)))
    columns = (Column("fact", align="left"), *(Column(name, align="fold") for name, _ in named))
    return Table(caption="What differs", columns=columns, rows=tuple(rows))


def same(a: Any, b: Any) -> bool:
    """Return True for equal values, for numbers within 1 %, and for a run and a sweep."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        # Generated datasets and mean samples differ by less than that from seed to seed.
        return abs(a - b) <= 0.01 * max(abs(a), abs(b))
    return bool(a == b) or (a, b) in (("run", "sweep"), ("sweep", "run"))


def _shown(key: str, value: Any) -> str:
    if value is None:  # a machine was asked, and has none
        return "none" if key in MACHINE else "unknown"
    if isinstance(value, Mapping):
        return "; ".join(f"{fact.name} {fact.value}" for fact in facts(value)) or "none"
    return show(key, value)
