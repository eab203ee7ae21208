"""Find the settings and facts about machines in which results differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.record.result import RunResult
from emulator.report.table import Column, Table
from emulator.units import show_bytes, show_seconds

SETTINGS = {
    "workload.sample.bytes_mean": "mean sample",
    "workload.sample.format": "format",
    "workload.loader.batch_size": "batch size",
    "workload.accelerator.step_seconds": "step time",
    "workload.accelerator.name": "accelerator",
    "workload.training.sync": "ranks wait for each other at",
    "workload.training.au_threshold": "AU threshold",
    "storage.cache": "page cache",
    "loader": "loader",
    "kind": "kind of result",
    "dataset.bytes": "dataset",
}
"""Displayed names of settings; two results differ only by their storage if these are equal."""
MACHINE = {
    "version": "feedrate",
    "environment.python": "Python",
    "environment.torch": "PyTorch",
    "environment.mpi": "MPI",
    "environment.kernel": "kernel",
    "environment.cpu": "CPU",
    "environment.cores": "cores",
    "environment.cpu_limit": "CPU quota, cores",
    "environment.governor": "CPU governor",
    "environment.numa_nodes": "NUMA nodes",
    "environment.memory_bytes": "memory",
    "environment.network": "network",
    "environment.dataset_mount.type": "file system",
    "environment.dataset_mount.options": "mount options",
    "environment.io_scheduler": "I/O scheduler",
    "environment.reads.call": "reads by",
    "environment.reads.request_bytes": "request",
    "environment.reads.read_ahead_bytes": "read-ahead",
}
"""Displayed names of facts about rank 0's host and its mount."""


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
    for key, words in {**SETTINGS, **MACHINE}.items():
        values = [setting(result, key, absent if key in MACHINE else None) for _, result in named]
        if absent not in values and not all(same(values[0], value) for value in values):
            rows.append((words, *(_show(key, value) for value in values)))
    columns = (Column("fact", align="left"), *(Column(name, align="fold") for name, _ in named))
    return Table(caption="What differs", columns=columns, rows=tuple(rows))


def same(a: Any, b: Any) -> bool:
    """Return True for equal values, for numbers within 1 %, and for a run and a sweep."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) <= 0.01 * max(abs(a), abs(b))
    return bool(a == b) or (a, b) in (("run", "sweep"), ("sweep", "run"))


def _show(key: str, value: Any) -> str:
    if value is None:
        return "none" if key in MACHINE else "unknown"
    if key.endswith("network") and isinstance(value, Mapping):
        return "; ".join(f"{name} {_link(facts)}" for name, facts in value.items()) or "none"
    if key.endswith(("bytes", "bytes_mean")):
        return show_bytes(value)
    return show_seconds(value) if key.endswith("seconds") else str(value)


def _link(facts: Any) -> str:
    speed, mtu = map(facts.get, ("speed", "mtu")) if isinstance(facts, Mapping) else (None, None)
    return f"{speed / 1e9:g} Gbit/s, MTU {mtu}" if speed else f"MTU {mtu}"
