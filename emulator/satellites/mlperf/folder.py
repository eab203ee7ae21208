"""One run's folder as MLPerf Storage v0.5 to v2.0 (DLIO) writes it: its documents, in and out.

summary.json
per_epoch_stats.json                      v0.5 and v1.0; or one of each rank:
0_per_epoch_stats.json, 1_ ...            v2.0
0_output.json, 1_ ...                     the log of each rank; not always published
dlio_config/, configs/ or .hydra/         config.yaml, hydra.yaml, overrides.yaml
training_*_metadata.json                  v2.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError, storage_error
from emulator.files import write_whole
from emulator.record.steps import STEP, Steps
from emulator.satellites.mlperf.bounded import read_json, read_yaml, yaml_text

Layout = Literal["v1.0", "v2.0"]
"""v1.0: also that of v0.5, and of DLIO 2.0 run by itself."""

SUMMARY = "summary.json"
MARK = "made_by_feedrate.json"
"""In a folder that feedrate exported: what it is, and that it is no submission."""
_CONFIGS = ("dlio_config", "configs", ".hydra")
_CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_LOG = re.compile(r"(\d{1,7})_output\.json")
_STATS = re.compile(r"(?:(\d{1,7})_)?per_epoch_stats\.json")
_METADATA = re.compile(r"[A-Za-z0-9_-]{1,80}_metadata\.json")
_DEPTH = 8
_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The documents of one run, as plain values."""

    name: str
    """Path below the folder that was given; for people, and to export under."""
    layout: Layout
    summary: Mapping[str, Any]
    epochs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rank ("" where one file stands for all) -> epoch -> start, end, duration, block1 ..."""
    logs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Rank -> its log: epoch -> load, proc, compute, au, throughput by block; hostname."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Name of the file -> its value."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Name of the file -> its value."""


def find_runs(folder: Path) -> list[Path]:
    """The folders at or below `folder` that hold a summary.json. Raises SpecError, StorageError."""
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", "give the folder of a run, or one above several")
    try:
        found = sorted(_runs(folder, 0))
    except OSError as error:
        raise storage_error(error, "cannot list the folder") from None
    if not found:
        raise SpecError(f"{folder} holds no {SUMMARY}", "give MLPerf Storage's results, or a run of DLIO")
    if len(found) > _RUNS:
        raise SpecError(f"{folder} holds {len(found)} runs, more than {_RUNS}", "give a folder of fewer")
    return found


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / SUMMARY).is_file():
        yield folder
    for inner in folder.iterdir() if depth < _DEPTH else ():
        if inner.is_dir() and not inner.is_symlink():
            yield from _runs(inner, depth + 1)


def read_run(folder: Path, name: str = "") -> RunFolder:
    """The run in `folder`. Raises SpecError naming the file that is damaged, StorageError."""
    try:
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise storage_error(error, "cannot list the folder") from None
    stats = {match[1] or "": _table(folder / file) for file in files if (match := _STATS.fullmatch(file))}
    logs = {int(match[1]): _table(folder / file) for file in files if (match := _LOG.fullmatch(file))}
    place = next((folder / one for one in _CONFIGS if (folder / one).is_dir()), None)
    ranked = any(stats) or (place is not None and place.name == _CONFIGS[0])
    return RunFolder(
        name=name or folder.name,
        layout="v2.0" if ranked else "v1.0",
        summary=_table(folder / SUMMARY),
        epochs={rank: _tables(doc, f"{folder}: {rank} per_epoch_stats.json") for rank, doc in stats.items()},
        logs=logs,
        configs={} if place is None else _read_configs(place),
        metadata={file: read_json(folder / file) for file in files if _METADATA.fullmatch(file)},
    )


def _read_configs(place: Path) -> dict[str, Any]:
    return {name: read_yaml(place / name) for name in _CONFIG_FILES if (place / name).is_file()}


def _table(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError, StorageError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: no object", "MLPerf Storage writes one")
    return value


def _tables(doc: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`doc`, of which every value is an object itself. Raises SpecError."""
    if not all(isinstance(value, dict) for value in doc.values()):
        raise SpecError(f"{where}: an epoch that is no object")
    return dict(doc)


def write_run(run: RunFolder, folder: Path) -> None:
    """The run as files in a new folder, each whole or not at all. Raises StorageError."""
    place = folder / (_CONFIGS[0] if run.layout == "v2.0" else _CONFIGS[1])
    try:
        folder.mkdir(parents=True)
        if run.configs or run.layout == "v2.0":
            place.mkdir()
    except OSError as error:
        raise storage_error(error, "cannot make the folder") from None
    for rank, log in run.logs.items():
        write_json(folder / f"{rank}_output.json", log)
    for rank_name, stats in run.epochs.items():
        write_json(folder / f"{rank_name}{'_' if rank_name else ''}per_epoch_stats.json", stats)
    for name, value in run.configs.items():
        write_text(place / name, yaml_text(value))
    for name, value in run.metadata.items():
        write_json(folder / name, value)
    write_json(folder / SUMMARY, run.summary)


def write_json(path: Path, value: Any) -> None:
    """`value` as DLIO formats its JSON, whole or not at all. Raises StorageError."""
    write_text(path, json.dumps(value, indent=4, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `path` whole or not at all. Raises StorageError."""
    write_whole(path, text)


# ---- What a run's documents say, checked and in SI units: DLIO's MB is 2^20 bytes, its GB 2^30.


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


# ---- The logs of ranks ({rank}_output.json): blocks of steps, their times, and rows of our step log.
#
# A block is what lies between two checkpoints. DLIO writes for each step `load` (the wait for a batch),
# `proc`
# (load and compute together, measured) and `compute` (nominal in v1.0, the measured sleep later), and for
# each
# block `au` and `throughput`; the length of the block follows from them.


Floats = NDArray[np.float64]
_LONGEST = 1e7
"""Seconds of a step, at most."""
_BLOCKS = 10_000


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one rank between two checkpoints. Seconds."""

    rank: int
    epoch: int
    """From 0."""
    number: int
    """Within the epoch, from 1."""
    load: Floats
    proc: Floats
    compute: Floats
    au: float
    """Published, 0 to 1."""
    throughput: float
    """Published, samples/s of this rank."""

    @property
    def steps(self) -> int:
        return len(self.proc)

    def seconds(self, batch: int, skips: int) -> float:
        """How long the block took, first step and barriers included.

        From the published AU, which is compute without the first step over time without the first step; or
        from the throughput, of (steps - skips) steps over the whole time (skips 0) or over that without the
        first step. At least the sum of its steps.
        """
        first = float(self.proc[0])
        own = float(self.proc.sum())
        if self.au > 0 and self.steps > 1:
            return max(own, float(self.compute[1:].sum()) / self.au + first)
        if self.throughput > 0 and self.steps > skips:
            whole = (self.steps - skips) * batch / self.throughput
            return max(own, whole + (first if skips else 0.0))
        return own


def blocks_of(run: RunFolder, accelerators: int) -> list[Block]:
    """The blocks of all ranks; none unless every rank's log is there. Raises SpecError."""
    if sorted(run.logs) != list(range(accelerators)):
        return []
    found = [block for rank in sorted(run.logs) for block in _of_rank(run, rank)]
    shapes = {
        rank: [(b.epoch, b.number, b.steps) for b in found if b.rank == rank] for rank in range(accelerators)
    }
    if not found or any(shape != shapes[0] for shape in shapes.values()):
        raise SpecError(f"{run.name}: the logs of its ranks do not have the same steps")
    return found


def _of_rank(run: RunFolder, rank: int) -> list[Block]:
    log, name = run.logs[rank], f"{run.name}/{rank}_output.json"
    epochs = sorted((key for key in log if key.isdecimal() and len(key) < 9), key=int)
    found = []
    for epoch, key in enumerate(epochs):
        table = log[key] if isinstance(log[key], Mapping) else {}
        loads = table.get("load")
        names = [one for one in loads if one.startswith("block")] if isinstance(loads, Mapping) else []
        if len(names) > _BLOCKS or any(not one[5:].isdecimal() for one in names):
            raise SpecError(f"{name}: epoch {key} has blocks that are none")
        found += [_block(table, rank, epoch, one, name) for one in sorted(names, key=lambda b: int(b[5:]))]
    return [block for block in found if block.steps]


def _block(table: Mapping[str, Any], rank: int, epoch: int, key: str, name: str) -> Block:
    lists = [_seconds(table, what, key, name) for what in ("load", "proc", "compute")]
    if len({len(one) for one in lists}) != 1:
        raise SpecError(f"{name}: {key} of epoch {epoch + 1} has lists of different lengths")
    load, proc, compute = lists
    au, rate = (_value(table, what, key) for what in ("au", "throughput"))
    return Block(rank, epoch, int(key[5:]), load, proc, compute, au / 100, rate)


def _seconds(table: Mapping[str, Any], what: str, key: str, name: str) -> Floats:
    inner = table.get(what)
    values = inner.get(key) if isinstance(inner, Mapping) else None
    good = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONGEST
        for value in values
    )
    if not good:
        raise SpecError(f"{name}: {what} of {key} must be a list of seconds")
    return np.array(values, dtype=np.float64)


def _value(table: Mapping[str, Any], what: str, key: str) -> float:
    inner = table.get(what)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1e15 else 0.0


def step_rows(
    blocks: Sequence[Block], point: int, step_seconds: float, batch: int, sample_bytes: float, skips: int
) -> Steps:
    """The blocks as rows of our step log.

    Compute is nominal; what the sleep took beyond it is overshoot. What a block took beyond its steps,
    barriers and bookkeeping, is spread evenly over them: DLIO does not log it step by step.
    """
    parts = [np.zeros(0, dtype=STEP)]
    clock: dict[int, float] = {}
    counted: dict[tuple[int, int], int] = {}
    for block in blocks:
        rows = np.zeros(block.steps, dtype=STEP)
        seconds = block.seconds(batch, skips)
        rows["point"], rows["rank"], rows["epoch"] = point, block.rank, block.epoch
        done = counted.get((block.rank, block.epoch), 0)
        rows["step"] = done + np.arange(block.steps)
        rows["samples"], rows["bytes"] = batch, round(batch * sample_bytes)
        rows["wait"] = block.load
        rows["compute"] = step_seconds
        rows["overshoot"] = block.proc - block.load - step_seconds
        rows["barrier"] = (seconds - float(block.proc.sum())) / block.steps
        lengths = block.proc + rows["barrier"]
        begin = clock.get(block.rank, 0.0)
        rows["begin"] = begin + np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
        clock[block.rank] = begin + float(lengths.sum())
        counted[block.rank, block.epoch] = done + block.steps
        parts.append(rows)
    return np.concatenate(parts)


def epoch_seconds(run: RunFolder, epoch: int) -> float | None:
    """Seconds of the blocks of an epoch (from 0), checkpoints left out, by the first rank's clock."""
    stats = run.epochs.get("", run.epochs.get("0", {})).get(str(epoch + 1))
    if stats is None:
        return None
    spans = [_span(table) for key, table in stats.items() if key.startswith("block")]
    known = [span for span in spans if span is not None]
    return sum(known) if known and len(known) == len(spans) else None


def _span(table: Any) -> float | None:
    """From its start to its end; None when it does not say."""
    if not isinstance(table, Mapping):
        return None
    try:
        begin, end = (datetime.fromisoformat(str(table.get(key))) for key in ("start", "end"))
        span = (end - begin).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return span if 0 < span < _LONGEST * 1000 else None
