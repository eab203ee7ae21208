"""How much data a fair measurement needs, by MLPerf Storage's rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulator.config.workload import Workload
from emulator.errors import SpecError

MEMORY_FACTOR = 5
"""A dataset is at least so many times the memory of all client hosts: caches cannot serve it."""

MIN_STEPS = 500
"""An epoch has at least so many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """What is needed."""

    files: int
    bytes: int
    """At the workload's mean bytes per sample."""
    samples: int
    """In all files; as many as files where a file holds one."""
    by_memory: int
    """Samples that the rule of memory asks for."""
    by_steps: int
    """Samples that the rule of steps asks for."""


def datasize(workload: Workload, accelerators: int, hosts: int, host_memory: int) -> DataSize:
    """Files, samples and bytes for `accelerators` in all on `hosts` hosts of `host_memory` bytes each.

    max(500 x batch size x accelerators, 5 x memory of all hosts / bytes of a sample), as MLPerf Storage's
    rules say. Raises SpecError.
    """
    if accelerators < 1 or hosts < 1 or host_memory < 0:
        raise SpecError("accelerators and hosts must be at least 1, host memory at least 0")
    by_memory = math.ceil(hosts * host_memory * MEMORY_FACTOR / workload.sample.bytes_mean)
    by_steps = MIN_STEPS * workload.loader.batch_size * accelerators
    each = workload.sample.samples_per_file
    files = -(-max(by_memory, by_steps) // each)
    return DataSize(
        files=files, bytes=files * each * workload.sample.bytes_mean, samples=files * each,
        by_memory=by_memory, by_steps=by_steps,
    )  # fmt: skip
