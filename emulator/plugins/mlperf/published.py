"""Read and check a run's summary.json: machines and published figures. Fields have the names of DLIO's keys.

DLIO's GB is 2^30 bytes. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from emulator.config.reader import Source, build
from emulator.errors import SpecError
from emulator.plugins.mlperf.tree import RunFolder, as_table

MIB = 2**20
GIB = 2**30


def within(low: float, high: float, spec: object, *names: str) -> None:
    """Check that fields, numbers or tuples of numbers, are from `low` to `high`. Raises SpecError."""
    for name in names:
        value = getattr(spec, name)
        for number in value if isinstance(value, tuple) else (value,):
            if not low <= number <= high:  # true for NaN, too
                raise SpecError(f"{name} must be from {low:g} to {high:g}, not {number:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Published machines, dataset and figures of a training."""

    num_accelerators: int
    num_hosts: int = 1
    host_memory_GB: tuple[float, ...] = ()  # noqa: N815 - DLIO's name
    """Memory of each host in GiB."""
    host_cpu_count: tuple[float, ...] = ()
    """CPU cores of each host."""
    start: str = ""
    """Start time, ISO 8601."""
    hostname: str = ""
    """Host of the first rank."""
    num_files_train: int
    num_samples_per_file: int
    train_au_percentage: tuple[float, ...]
    """AU of each epoch."""
    train_throughput_samples_per_second: tuple[float, ...]
    """Throughput of all accelerators in each epoch."""
    most_steps: int = 0
    """Most steps of an epoch by the configuration; 0 for no limit."""

    def __post_init__(self) -> None:
        within(1, 1e7, self, "num_accelerators", "num_hosts")
        within(0, 1e9, self, "host_memory_GB")
        within(0, 1e6, self, "host_cpu_count")
        within(1, 1e12, self, "num_files_train", "num_samples_per_file")
        within(0, 1000, self, "train_au_percentage")
        within(0, 1e15, self, "train_throughput_samples_per_second")
        epochs, rates = len(self.train_au_percentage), len(self.train_throughput_samples_per_second)
        if not epochs or epochs != rates:
            raise SpecError(f"train_au_percentage has {epochs} epochs, the throughput {rates}")

    @property
    def memory(self) -> tuple[int, ...]:
        """Bytes of memory of each host."""
        return tuple(round(value * GIB) for value in _of_each(self.host_memory_GB, self.num_hosts))

    @property
    def cores(self) -> tuple[int, ...]:
        """Cores of each host."""
        return tuple(round(value) for value in _of_each(self.host_cpu_count, self.num_hosts))

    @property
    def samples(self) -> int:
        return self.num_files_train * self.num_samples_per_file

    @property
    def epochs(self) -> int:
        return len(self.train_au_percentage)

    @property
    def au(self) -> float:
        """Accelerator utilization, 0 to 1, mean over the epochs."""
        return sum(self.train_au_percentage) / self.epochs / 100

    @property
    def rate(self) -> float:
        """Samples/s of all accelerators, mean over the epochs."""
        return sum(self.train_throughput_samples_per_second) / self.epochs

    def steps_per_epoch(self, batch: int) -> int:
        """Return the whole steps of all accelerators in an epoch."""
        steps = self.samples // (batch * self.num_accelerators)
        return min(steps, self.most_steps) if self.most_steps else steps


def read_published(run: RunFolder, most_steps: int, samples_per_file: int) -> Published:
    """Return the figures in the summary of `run`.

    `most_steps` of an epoch and `samples_per_file` are those of the configuration, for a summary without
    them. Raises SpecError naming the key that is missing or wrong.
    """
    metric = as_table(run.summary.get("metric"))
    table = {"num_samples_per_file": samples_per_file, **run.summary, **metric, "most_steps": most_steps}
    known = {}
    for field in fields(Published):
        if field.name in table:
            value = table[field.name]
            plain = str(field.type).startswith("tuple") and not isinstance(value, list)
            known[field.name] = [value] if plain else value
    return build(Published, known, Source(f"{run.name}/summary.json"))


def _of_each(values: Sequence[float], hosts: int) -> Sequence[float]:
    """Return a value for each host: the mean if DLIO added several hosts up into one entry."""
    if not values or (len(values) == hosts and all(values)):
        return values
    return (sum(values) / hosts,) * hosts
