"""What a run's documents say, checked and in SI units: DLIO's MB is 2^20 bytes, its GB 2^30."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emulator.errors import SpecError
from emulator.mlperf.folder import RunFolder

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The figures of summary.json."""

    start: str
    """ISO 8601; empty where it is not stated."""
    accelerators: int
    hosts: int
    hostname: str
    """Of the first rank."""
    au: tuple[float, ...]
    """Accelerator utilisation of each epoch, 0 to 1, as published."""
    samples_per_second: tuple[float, ...]
    """Throughput of each epoch, all accelerators, as published."""
    bytes_per_second: float
    """Mean, as published, in bytes."""
    met: bool | None
    """Whether it says that the AU was met; None where it does not."""
    files: int
    samples_per_file: int
    host_memory: tuple[int, ...]
    """Bytes of each host."""
    cores: tuple[int, ...]
    """Cores of each host."""

    @property
    def bytes_per_sample(self) -> float:
        """As the published figures imply; 0 where they do not."""
        mean = sum(self.samples_per_second) / len(self.samples_per_second)
        return self.bytes_per_second / mean if mean else 0.0


def trains(run: RunFolder) -> bool:
    """False for a run of checkpoints alone."""
    metric = run.summary.get("metric")
    keys = list(metric) if isinstance(metric, Mapping) else []
    return "train_au_percentage" in keys or not any("checkpoint" in key for key in keys)


def published(run: RunFolder) -> Published:
    """The figures of `run`. Raises SpecError naming the key that is missing or wrong."""
    summary = _Reader(run.summary, f"{run.name}/summary.json")
    metric = _Reader(summary.table("metric"), f"{run.name}/summary.json: metric")
    if "train_au_percentage" not in metric.values:
        raise SpecError(f"{metric.name} has no train_au_percentage", "only training runs are imported")
    au = metric.numbers("train_au_percentage", 1000)
    rates = metric.numbers("train_throughput_samples_per_second", 1e15)
    if not au or len(au) != len(rates):
        raise SpecError(f"{metric.name}: {len(au)} epochs of AU, {len(rates)} of throughput")
    said = metric.values.get("train_au_meet_expectation")
    return Published(
        start=str(summary.values.get("start", ""))[:40],
        accelerators=summary.whole("num_accelerators", 1, 10_000_000),
        hosts=summary.whole("num_hosts", 1, 10_000_000, 1),
        hostname=str(summary.values.get("hostname", ""))[:80],
        au=tuple(value / 100 for value in au),
        samples_per_second=rates,
        bytes_per_second=metric.number("train_io_mean_MB_per_second", 1e15, 0.0) * MIB,
        met=None if said not in ("success", "fail") else said == "success",
        files=summary.whole("num_files_train", 1, 10**12),
        samples_per_file=summary.whole("num_samples_per_file", 1, 10**12, 1),
        host_memory=tuple(round(value * GIB) for value in summary.numbers("host_memory_GB", 1e9, some=True)),
        cores=tuple(round(value) for value in summary.numbers("host_cpu_count", 1e6, some=True)),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """An object of somebody else's JSON; `name` is where it lies."""

    values: Mapping[str, Any]
    name: str

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return value

    def number(self, key: str, most: float, default: float | None = None) -> float:
        """A number from 0 to `most`."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise self._wrong(key, f"a number from 0 to {most:g}", value)
        return float(value)

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self.number(key, most, default)
        if value != round(value) or value < least:
            raise self._wrong(key, f"a whole number from {least}", value)
        return round(value)

    def numbers(self, key: str, most: float, some: bool = False) -> tuple[float, ...]:
        """A list of numbers from 0 to `most`; one number stands for a list, with `some` nothing as well."""
        value = self.values.get(key, [] if some else None)
        listed = value if isinstance(value, list) else [value]
        if len(listed) > 1_000_000:
            raise self._wrong(key, "a list of at most a million", "more")
        return tuple(_Reader({key: one}, self.name).number(key, most) for one in listed)

    def _wrong(self, key: str, wanted: str, value: Any) -> SpecError:
        if value is None:
            return SpecError(f"{self.name}: {key} is missing or null", f"it should be {wanted}")
        return SpecError(f"{self.name}: {key} must be {wanted}, not {str(value)[:40]!r}")
