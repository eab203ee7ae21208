"""Read and write the documents of a run in the folder layouts of MLPerf Storage v0.5 to v3.0 (DLIO).

summary.json
per_epoch_stats.json                      v0.5 and v1.0; or one of each rank:
0_per_epoch_stats.json, 1_ ...            v2.0 and v3.0
0_output.json, 1_ ...                     the log of each rank; not always published
dlio_config/, configs/ or .hydra/         config.yaml, hydra.yaml, overrides.yaml
training_*_metadata.json                  v2.0 and v3.0
fs_separation.json                        v3.0: whether data and results are on one file system

Only summary.json is required. In published trees other files are missing, truncated, or placeholders of a few
bytes for a file that was too large. They are left out, and reported.
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
"""Version whose formulas a run's figures follow."""

SUMMARY = "summary.json"
SEPARATION = "fs_separation.json"
ADDED = "added_by_feedrate"
"""Key that marks metadata which an export added."""
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
"""Bytes below which an unreadable file is a placeholder."""
_CODE = re.compile(r"code(-images|-[0-9a-f]{8})?")
"""Names of folders with copies of the benchmark in a submitter's tree. Its tests contain runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The documents of one run, as plain values."""

    name: str
    """Path below the imported folder, for display and for exports."""
    layout: RunLayout
    summary: Mapping[str, Any]
    epochs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """start, end, duration, block1 ... by rank ("" for a file of all ranks) and epoch."""
    logs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Logs by rank: load, proc, compute, au and throughput of each block by epoch, and the hostname."""
    configs: Mapping[str, Any] = field(default_factory=dict)
    """Values by file name."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values by file name."""
    separation: Mapping[str, Any] = field(default_factory=dict)
    """Values in fs_separation.json; empty if there is none."""
    unread: tuple[str, ...] = ()
    """Sentences on files that were left out."""

    def __post_init__(self) -> None:
        # These become file names.
        known = all(rank == "" or _RANK.fullmatch(rank) for rank in (*self.epochs, *self.logs))
        if (
            not known
            or self.configs.keys() - set(_CONFIG_FILES)
            or not all(map(_METADATA.fullmatch, self.metadata))
        ):
            raise SpecError("the documents of a run have names that MLPerf Storage does not use")

    @property
    def system(self) -> str:
        """`SUBMITTER SYSTEM` for a run in a submission tree (SUBMITTER/results/SYSTEM/...), else empty."""
        parts = self.name.split("/")
        at = parts.index("results") if "results" in parts[1:-1] else 0
        return f"{parts[at - 1]} {parts[at + 1]}" if at else ""

    @property
    def first_epochs(self) -> Mapping[str, Any]:
        """Epochs by the clock of the first rank; empty if not recorded."""
        return self.epochs.get("0", self.epochs.get("", {}))

    @property
    def same_filesystem(self) -> bool | None:
        """True if results and data were on one file system; None if not recorded."""
        same = self.separation.get("same_filesystem")
        return same if isinstance(same, bool) else None

    @property
    def version(self) -> Version | None:
        """Version whose formulas the run follows; None if its files do not distinguish v2.0 and v3.0."""
        if self.layout == "v1.0":
            return "v1.0"
        for value in self.metadata.values():
            if {"benchmark_type", "num_processes", "parameters"} <= as_table(value).keys():
                return "v3.0"
            if {"args", "benchmark_type"} <= as_table(value).keys():
                return "v2.0"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(ABC):
    """An imported run of a training or of checkpoints."""

    run: RunFolder
    said: tuple[str, ...]
    """Sentences on documents that were left out, are missing, or do not agree."""

    @property
    @abstractmethod
    def group(self) -> object:
        """Key that is equal for runs of one result."""

    @property
    @abstractmethod
    def order(self) -> str:
        """Key that sorts the runs of a result."""

    @property
    @abstractmethod
    def named(self) -> tuple[str, str]:
        """Name of its result, and a word that distinguishes groups of this name."""

    @property
    @abstractmethod
    def line(self) -> str:
        """One line of text on the run."""

    @abstractmethod
    def result(self, runs: Sequence[Self], command: Sequence[str]) -> tuple[RunResult, Steps]:
        """Join `runs`, of which this is the first, into a result and their steps."""


def as_table(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a table, else an empty one: a published document may have anything there."""
    return value if isinstance(value, Mapping) else {}


def stats_file(rank: str) -> str:
    """Return the name of the file with the epochs of `rank`; "" for a file of all ranks."""
    return f"{rank}_per_epoch_stats.json" if rank else "per_epoch_stats.json"


def find_runs(folder: Path) -> list[Path]:
    """Return the folders at or below `folder` that contain a document of a run.

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
        raise SpecError(f"{folder} has no {SUMMARY}", "give MLPerf Storage's results, or a run of DLIO")
    if len(runs) > _MOST_RUNS:
        raise SpecError(f"{folder} has {len(runs)} runs, more than {_MOST_RUNS}", "give a smaller folder")
    return runs


def why_no_run(folder: Path, name: str) -> str:
    """Return why the folder `name` has no run of DLIO; empty if it may have one."""
    if any(_CODE.fullmatch(part) for part in name.split("/")[:-1]):
        return "part of a copy of the benchmark's code"
    for kind in ("kv_cache", "vector_database"):
        if kind in name.split("/") or any(folder.glob(f"{kind}_*_metadata.json")):
            return f"a run of the benchmark {kind}"
    if not (folder / SUMMARY).is_file():
        return f"it has no {SUMMARY}: data generation, or a run that did not finish"
    return ""


def read_run(folder: Path, name: str = "", strict: bool = False) -> RunFolder:
    """Read the run in `folder`. Unless `strict`, damaged files other than the summary are left out.

    Raises SpecError naming the damaged file, StorageError.
    """
    with storage_errors("cannot list the folder"):
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
    config = next((folder / name for name in _CONFIG_FOLDERS if (folder / name).is_dir()), None)
    configured = {name: config / name for name in _CONFIG_FILES} if config else {}
    inside = folder.resolve()
    for path in (*(folder / file for file in files), *configured.values()):
        if not path.resolve().is_relative_to(inside):  # its content would be copied into the result
            raise SpecError(f"{path} is a link out of the folder", "import reads only files in the folder")
    skipped: dict[str, list[str]] = {}

    def read_all(paths: Mapping[str, Path], read: Callable[[Path], Any]) -> dict[str, Any]:
        """Return the values of files by key, without those that are damaged or empty."""
        values = {}
        for key, path in paths.items():
            try:
                values[key] = read(path)
            except SpecError as error:
                if strict:
                    raise
                short = path.stat().st_size < _PLACEHOLDER
                why = "a placeholder of a few bytes" if short else str(error).removeprefix(f"{path}: ")
                skipped.setdefault(why, []).append(path.name)
        return {key: value for key, value in values.items() if value is not None}

    def of_ranks(pattern: re.Pattern[str]) -> dict[str, Path]:
        matches = map(pattern.fullmatch, files)
        return {match[1] or "": folder / match[0] for match in matches if match}

    stats, logs = read_all(of_ranks(_STATS), _epochs), read_all(of_ranks(_LOG), _object)
    configs = read_all({name: path for name, path in configured.items() if path.is_file()}, read_yaml)
    described = {file: folder / file for file in files if _METADATA.fullmatch(file)}
    metadata = read_all(described, read_json)
    # Metadata that an export added to v1.0's documents, for newer tools, is not the run's own.
    added = {file for file, value in metadata.items() if as_table(value).get(ADDED) is True}
    separation = {SEPARATION: folder / SEPARATION} if SEPARATION in files else {}
    by_dlio = config is not None and config.name == _CONFIG_FOLDERS[0]
    newer = any(stats) or by_dlio or bool(described.keys() - added)
    return RunFolder(
        name=name or folder.name,
        layout="v2.0" if newer else "v1.0",
        summary=_object(folder / SUMMARY),
        epochs=stats,
        logs=logs,
        configs=configs,
        metadata={file: value for file, value in metadata.items() if file not in added},
        separation=read_all(separation, _object).get(SEPARATION, {}),
        unread=tuple(
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}"
            for why, names in skipped.items()
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
        raise SpecError(f"{path}: not a JSON object", "MLPerf Storage's files are objects")
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
        write_json(folder / stats_file(rank), stats)
    for name, value in run.configs.items():
        write_whole(config / name, yaml_text(value))
    for name, value in {**run.metadata, SEPARATION: run.separation, SUMMARY: run.summary}.items():
        if value or name != SEPARATION:
            write_json(folder / name, value)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON in DLIO's format, whole or not at all, with null for numbers that are not finite.

    Raises StorageError.
    """
    write_whole(path, json.dumps(finite(value), indent=4, allow_nan=False) + "\n")
