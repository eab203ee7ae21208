"""Read and write the documents of a run as MLPerf Storage v0.5 to v3.0 (DLIO) lays them out in a folder.

summary.json
per_epoch_stats.json                      v0.5 and v1.0; or one of each rank:
0_per_epoch_stats.json, 1_ ...            v2.0 and v3.0
0_output.json, 1_ ...                     the log of each rank; not always published
dlio_config/, configs/ or .hydra/         config.yaml, hydra.yaml, overrides.yaml
training_*_metadata.json                  v2.0 and v3.0
fs_separation.json                        v3.0: whether data and results are on one file system

Only summary.json is indispensable: in published trees others are missing, cut short, or placeholders of a few
bytes in place of what was too large. They are left out, and named.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from emulator.errors import SpecError, storage_errors
from emulator.files import write_whole
from emulator.live import finite
from emulator.plugins.mlperf.bounded import read_json, read_yaml, yaml_text
from emulator.record.result import RunResult
from emulator.record.steps import Steps

RunLayout = Literal["v1.0", "v2.0"]
"""v1.0: also that of v0.5, and of DLIO 2.0 run by itself. v2.0: also that of v3.0."""
Version = Literal["v1.0", "v2.0", "v3.0"]
"""Version that has the formulas of a run's figures."""

SUMMARY = "summary.json"
SEPARATION = "fs_separation.json"
ADDED = "added_by_feedrate"
"""Key of metadata that no run wrote."""
_CONFIG_FOLDERS = ("dlio_config", "configs", ".hydra")
_CONFIG_FILES = ("config.yaml", "hydra.yaml", "overrides.yaml")
_LOG = re.compile(r"(\d{1,7})_output\.json")
_STATS = re.compile(r"(?:(\d{1,7})_)?per_epoch_stats\.json")
_RANK = re.compile(r"\d{1,7}")
_METADATA = re.compile(r"[A-Za-z0-9_-]{1,100}_metadata\.json")
_DOCUMENT = re.compile("|".join((re.escape(SUMMARY), *(p.pattern for p in (_LOG, _STATS, _METADATA)))))
_MOST_DEPTH = 12
_MOST_RUNS = 10_000
_PLACEHOLDER = 64
"""A file of fewer bytes that is no JSON is a placeholder."""
_CODE = re.compile(r"code(-images|-[0-9a-f]{8})?")
"""Folders of a submitter's tree with copies of the benchmark: its tests have runs of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The documents of one run, as plain values."""

    name: str
    """Path below the imported folder, for people and for exports."""
    layout: RunLayout
    summary: Mapping[str, Any]
    epochs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rank ("" where one file stands for all) -> epoch -> start, end, duration, block1 ..."""
    logs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rank -> its log: epoch -> load, proc, compute, au, throughput by block; hostname."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Values by file name."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values by file name."""
    separation: Mapping[str, Any] = field(default_factory=dict)
    """fs_separation.json; empty without."""
    unread: tuple[str, ...] = ()
    """Sentences on why files were left out."""

    def __post_init__(self) -> None:
        # These become names of files.
        known = all(rank == "" or _RANK.fullmatch(rank) for rank in (*self.epochs, *self.logs))
        if (
            not known
            or self.configs.keys() - set(_CONFIG_FILES)
            or not all(map(_METADATA.fullmatch, self.metadata))
        ):
            raise SpecError("the documents of a run have names that MLPerf Storage does not give")

    @property
    def system(self) -> str:
        """`SUBMITTER SYSTEM` for a run in a submission tree (SUBMITTER/results/SYSTEM/...), else empty."""
        parts = self.name.split("/")
        at = parts.index("results") if "results" in parts[1:-1] else 0
        return f"{parts[at - 1]} {parts[at + 1]}" if at else ""

    @property
    def same_filesystem(self) -> bool | None:
        """True when results lay on the file system of the data; None: not recorded."""
        same = self.separation.get("same_filesystem")
        return same if isinstance(same, bool) else None

    @property
    def version(self) -> Version | None:
        """Version that has the run's formulas; None: its files do not tell v2.0 from v3.0."""
        if self.layout == "v1.0":
            return "v1.0"
        for value in self.metadata.values():
            if isinstance(value, dict) and {"benchmark_type", "num_processes", "parameters"} <= value.keys():
                return "v3.0"
            if isinstance(value, dict) and {"args", "benchmark_type"} <= value.keys():
                return "v2.0"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(ABC):
    """A run that was read, of trainings or of checkpoints."""

    run: RunFolder
    said: tuple[str, ...]
    """Sentences on documents that were left out, are missing, or do not agree."""

    @property
    @abstractmethod
    def group(self) -> object:
        """Equal for runs of one result."""

    @property
    @abstractmethod
    def order(self) -> str:
        """The key that sorts the runs of a result."""

    @property
    @abstractmethod
    def named(self) -> tuple[str, str]:
        """The name of its result, and what distinguishes it from another group of this name."""

    @property
    @abstractmethod
    def line(self) -> str:
        """The run in one line for people."""

    @abstractmethod
    def result(self, runs: Sequence[Self], command: Sequence[str]) -> tuple[RunResult, Steps]:
        """Join `runs`, of which this is the first, into a result and their steps."""


def find_runs(folder: Path) -> list[Path]:
    """Return the folders at or below `folder` that hold a document of a run.

    Raises SpecError, StorageError.
    """

    def search(inside: Path, depth: int) -> Iterator[Path]:
        inner = list(inside.iterdir())
        if any(_DOCUMENT.fullmatch(path.name) for path in inner if path.is_file()):
            yield inside
        for path in inner if depth < _MOST_DEPTH else ():
            if path.is_dir() and not path.is_symlink():
                yield from search(path, depth + 1)

    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}", "give the folder of a run, or one above several")
    with storage_errors("cannot list the folder"):
        runs = sorted(search(folder, 0))
    if not runs:
        raise SpecError(f"{folder} holds no {SUMMARY}", "give MLPerf Storage's results, or a run of DLIO")
    if len(runs) > _MOST_RUNS:
        raise SpecError(f"{folder} holds {len(runs)} runs, more than {_MOST_RUNS}", "give a folder of fewer")
    return runs


def why_no_run(folder: Path, name: str) -> str:
    """Return why the folder `name` holds no run of DLIO; empty where it may hold one."""
    if any(_CODE.fullmatch(part) for part in name.split("/")[:-1]):
        return "part of a copy of the benchmark's code"
    for kind in ("kv_cache", "vector_database"):
        if kind in name.split("/") or any(folder.glob(f"{kind}_*_metadata.json")):
            return f"a run of the benchmark {kind}"
    if not (folder / SUMMARY).is_file():
        return f"it holds no {SUMMARY}: data generation, or a run that did not end"
    return ""


def read_run(folder: Path, name: str = "", strict: bool = False) -> RunFolder:
    """Read the run in `folder`. Files beside the summary that cannot be read are left out, unless `strict`.

    Raises SpecError naming the file that is damaged, StorageError.
    """
    with storage_errors("cannot list the folder"):
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
    refused: dict[str, list[str]] = {}

    def wanted(path: Path, read: Callable[[Path], Any]) -> Any:
        try:
            return read(path)
        except SpecError as error:
            if strict:
                raise
            short = path.stat().st_size < _PLACEHOLDER
            why = "a placeholder of a few bytes" if short else str(error).removeprefix(f"{path}: ")
            refused.setdefault(why, []).append(path.name)
            return None

    def of_ranks(pattern: re.Pattern[str], read: Callable[[Path], Any]) -> dict[str, Any]:
        found = {
            match[1] or "": wanted(folder / file, read)
            for file in files
            if (match := pattern.fullmatch(file))
        }
        return {rank: value for rank, value in found.items() if value is not None}

    stats, logs = of_ranks(_STATS, _epochs), of_ranks(_LOG, _object)
    config = next((folder / name for name in _CONFIG_FOLDERS if (folder / name).is_dir()), None)
    inside = folder.resolve()
    documents = [*(folder / file for file in files), *(config / name for name in _CONFIG_FILES if config)]
    for path in documents:
        if not path.resolve().is_relative_to(inside):  # what it shows would be copied into the result
            raise SpecError(f"{path} is a link out of the folder", "import reads the run's own files alone")
    configs = {}
    if config is not None:
        for file in _CONFIG_FILES:
            if (config / file).is_file() and (value := wanted(config / file, read_yaml)) is not None:
                configs[file] = value
    metadata = {file: wanted(folder / file, read_json) for file in files if _METADATA.fullmatch(file)}
    # What an export added to v1.0's documents, for newer tools, is no document of the run.
    metadata = {
        file: value
        for file, value in metadata.items()
        if not (isinstance(value, Mapping) and value.get(ADDED) is True)
    }
    separation = wanted(folder / SEPARATION, _object) if SEPARATION in files else None
    newer = any(stats) or (config is not None and config.name == _CONFIG_FOLDERS[0]) or bool(metadata)
    return RunFolder(
        name=name or folder.name,
        layout="v2.0" if newer else "v1.0",
        summary=_object(folder / SUMMARY),
        epochs=stats,
        logs=logs,
        configs=configs,
        metadata={file: value for file, value in metadata.items() if value is not None},
        separation=separation or {},
        unread=tuple(
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}"
            for why, names in refused.items()
        ),
    )


def _epochs(path: Path) -> dict[str, Any]:
    """Read the epochs in a per_epoch_stats.json. Raises SpecError, StorageError."""
    epochs = _object(path)
    if not all(isinstance(epoch, dict) for epoch in epochs.values()):
        raise SpecError(f"{path}: an epoch is not an object")
    return epochs


def _object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises SpecError, StorageError."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: not a JSON object", "MLPerf Storage writes one")
    return value


def write_run(run: RunFolder, folder: Path) -> None:
    """Write the run's files to a new folder, each whole or not at all. Raises StorageError."""
    config = folder / _CONFIG_FOLDERS[0 if run.layout == "v2.0" else 1]
    with storage_errors("cannot make the folder"):
        folder.mkdir(parents=True)
        if run.configs or run.layout == "v2.0":
            config.mkdir()
    for rank, log in run.logs.items():
        write_json(folder / f"{rank}_output.json", log)
    for rank, stats in run.epochs.items():
        write_json(folder / f"{rank}{'_' if rank else ''}per_epoch_stats.json", stats)
    for name, value in run.configs.items():
        write_whole(config / name, yaml_text(value))
    for name, value in {**run.metadata, SEPARATION: run.separation, SUMMARY: run.summary}.items():
        if value or name != SEPARATION:
            write_json(folder / name, value)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as DLIO formats its JSON, whole or not at all, with null for what is not finite.

    Raises StorageError.
    """
    write_whole(path, json.dumps(finite(value), indent=4, allow_nan=False) + "\n")
