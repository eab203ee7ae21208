"""How much data a fair measurement needs, by MLPerf Storage's rule."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.config.workload import Workload

MEMORY_FACTOR = 5
"""Least size of a dataset / memory of all client hosts, so that caches cannot serve it."""
MIN_STEPS = 500
"""Fewest steps of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """The size of the dataset that a benchmark needs."""

    files: int
    bytes: int
    """At the workload's mean bytes per sample."""
    samples: int
    """In all files; as many as files where a file holds one."""
    by_memory: int
    """Samples that the rule of memory asks for."""
    by_steps: int
    """Samples that the rule of steps asks for."""


def needed_data(workload: Workload, accelerators: int, hosts: int, host_memory: int) -> DataSize:
    """Files, samples and bytes for `accelerators` in all on `hosts` hosts of `host_memory` bytes each.

    max(500 x batch size x accelerators, 5 x memory of all hosts / bytes of a sample), as MLPerf Storage's
    rules say, rounded up to whole files: `mlpstorage training datasize` (calculate_training_data_size in
    mlpstorage_py/rules/utils.py) rounds down, and its checker then refuses that.
    """
    by_memory = -(-hosts * host_memory * MEMORY_FACTOR // workload.sample.bytes_mean)
    by_steps = MIN_STEPS * workload.loader.batch_size * accelerators
    samples_per_file = workload.sample.samples_per_file
    files = -(-max(by_memory, by_steps) // samples_per_file)
    return DataSize(
        files=files,
        bytes=files * samples_per_file * workload.sample.bytes_mean,
        samples=files * samples_per_file,
        by_memory=by_memory,
        by_steps=by_steps,
    )
